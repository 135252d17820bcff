/* The CUDA backend: opening a device, its memory (device_table), and the table of kernels. Everything is
 * queued; only get, take, sync and seconds_between wait. */
#include "cuda_internal.h"
#include "ops/op_table.h"

#include <stdlib.h>
#include <string.h>

bool cuda_ok(cuda_context *x, cudaError_t status, const char *file, int line) {
    if (status == cudaSuccess) return true;
    err *fault = &x->device->fault;
    if (!*fault) *fault = err_make(file, line, "CUDA: %s", cudaGetErrorString(status));
    return false;
}

/* ---- memory and the queue ---------------------------------------------------------------------- */

/* @return what the functions here run in: the compute queue. */
static cuda_context *compute_of(void *context) {
    return &((cuda_device *)context)->queue[QUEUE_COMPUTE];
}

static err take_fault(cuda_device *d) {
    err e = d->fault;
    d->fault = OK;
    return e;
}

/* Restores an earlier fault, which outweighs whatever happened since it was taken. */
static void restore_fault(cuda_device *d, err before) {
    if (!before) return;
    err_free(d->fault);
    d->fault = before;
}

static err map_memory(void *context, size_t bytes, void **out) {
    cuda_context *x = compute_of(context);
    size_t free_bytes = 0, all = 0;
    cudaMemGetInfo(&free_bytes, &all);
    if (cudaMalloc(out, bytes) != cudaSuccess) {
        char need[32], have[32];
        cudaGetLastError(); /* clears it: the caller gets this error, not a later call */
        return err_hint(ERR("the GPU cannot hold %s: %s are free",
                            str_bytes(need, sizeof need, (double)bytes),
                            str_bytes(have, sizeof have, (double)free_bytes)),
                        "use a smaller batch, activation_checkpoint.mode=full, or a smaller model");
    }
    CUDA_OK(x, cudaMemsetAsync(*out, 0, bytes, x->stream));
    return OK;
}

static void unmap_memory(void *context, void *p, size_t bytes) { cudaFree(p); }

static void map_spare_memory(void *context, size_t bytes, void **out) {
    enum { LEFT = 1 << 30 }; /* to libraries, which take memory when they are first called */
    size_t free_bytes = 0, all = 0;
    *out = NULL;
    if (cudaMemGetInfo(&free_bytes, &all) == cudaSuccess && free_bytes > bytes + LEFT &&
        cudaMalloc(out, bytes) == cudaSuccess)
        return;
    cudaGetLastError(); /* clears it */
    *out = NULL;
}

/* Copies to the device go through a ring of pinned slots, so that queueing one never waits for the
 * calls before it: copies fill a slot, then the next, and a slot is refilled only after the copies out
 * of it are complete. */
enum { SLOTS = 16, SLOT_BYTES = 2 << 20 };
typedef struct cuda_staging {
    char *memory; /* [SLOTS][SLOT_BYTES]; NULL: it could not be pinned */
    cudaEvent_t slot_free[SLOTS];
    int slot;
    size_t used;       /* bytes of the slot */
    cudaEvent_t *mark; /* [marks], made as they are asked for */
    int marks, mark_cap;
} cuda_staging;

static err staging_new(cuda_staging **out) {
    cuda_staging *q = *out = mem_alloc(sizeof *q);
    cudaError_t status = cudaSuccess;
    for (int i = 0; i < SLOTS && status == cudaSuccess; i++)
        status = cudaEventCreateWithFlags(&q->slot_free[i], cudaEventDisableTiming);
    if (status != cudaSuccess) return ERR("CUDA events: %s", cudaGetErrorString(status));
    if (cudaHostAlloc((void **)&q->memory, SLOTS * SLOT_BYTES, 0) != cudaSuccess) {
        cudaGetLastError(); /* not an error: copies then read pageable memory, and may wait */
        q->memory = NULL;
    }
    return OK;
}

static void staging_free(cuda_staging *q) {
    if (!q) return;
    for (int i = 0; i < SLOTS; i++)
        if (q->slot_free[i]) cudaEventDestroy(q->slot_free[i]);
    for (int i = 0; i < q->marks; i++) cudaEventDestroy(q->mark[i]);
    free(q->mark);
    cudaFreeHost(q->memory);
    free(q);
}

static void put_through_slot(cuda_context *x, char *to, const char *from, size_t bytes) {
    cuda_staging *q = x->device->staging;
    if (q->used + bytes > SLOT_BYTES) {
        CUDA_OK(x, cudaEventRecord(q->slot_free[q->slot], x->stream));
        q->slot = (q->slot + 1) % SLOTS;
        q->used = 0;
        CUDA_OK(x, cudaEventSynchronize(q->slot_free[q->slot]));
    }
    char *at = q->memory + (size_t)q->slot * SLOT_BYTES + q->used;
    memcpy(at, from, bytes);
    q->used += align_up(bytes, 256);
    CUDA_OK(x, cudaMemcpyAsync(to, at, bytes, cudaMemcpyDefault, x->stream));
}

static void put_bytes(void *context, void *to, const void *from, size_t bytes) {
    cuda_context *x = compute_of(context);
    if (!x->device->staging->memory)
        CUDA_OK(x, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, x->stream));
    for (size_t at = 0; x->device->staging->memory && at < bytes; at += SLOT_BYTES)
        put_through_slot(x, (char *)to + at, (const char *)from + at,
                         MIN(bytes - at, (size_t)SLOT_BYTES));
}

static void join_all(void *context) {
    for (int q = QUEUE_COMPUTE + 1; q < QUEUE_COUNT; q++)
        cuda_join(context, QUEUE_COMPUTE, (device_queue)q);
}

static err sync_queues(void *context) {
    cuda_context *x = compute_of(context);
    join_all(context);
    CUDA_OK(x, cudaStreamSynchronize(x->stream));
    return take_fault(x->device);
}

static err get_bytes(void *context, void *to, const void *from, size_t bytes) {
    cuda_context *x = compute_of(context);
    join_all(context);
    CUDA_OK(x, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, x->stream));
    return sync_queues(context);
}

/* ---- reading results later: tickets ------------------------------------------------------------ */

static void ticket_free(void *context, device_ticket *t) {
    if (t->event) {
        cudaEventSynchronize(t->event); /* the copy may be in flight */
        cudaEventDestroy(t->event);
    }
    if (t->memory) cudaFreeHost(t->memory);
}

static void ticket_fetch(void *context, device_queue q, device_ticket *t, const void *from,
                         size_t bytes) {
    cuda_context *x = &((cuda_device *)context)->queue[q];
    if (t->capacity < bytes) {
        ticket_free(context, t);
        *t = (device_ticket){ .capacity = bytes };
        if (!CUDA_OK(x, cudaHostAlloc(&t->memory, bytes, 0))) t->memory = NULL, t->capacity = 0;
        cudaEvent_t event = NULL;
        CUDA_OK(x, cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        t->event = event;
    }
    t->bytes = bytes;
    if (!t->memory) return;
    CUDA_OK(x, cudaMemcpyAsync(t->memory, from, bytes, cudaMemcpyDefault, x->stream));
    CUDA_OK(x, cudaEventRecord(t->event, x->stream));
}

static err ticket_take(void *context, device_ticket *t, void *to) {
    cuda_context *x = compute_of(context);
    if (t->memory && CUDA_OK(x, cudaEventSynchronize(t->event)) && to)
        memcpy(to, t->memory, t->bytes);
    return take_fault(x->device);
}

static void copy_on_device(void *context, device_queue q, void *to, const void *from,
                           size_t bytes) {
    cuda_context *x = &((cuda_device *)context)->queue[q];
    CUDA_OK(x, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, x->stream));
}

/* Errors are the caller's own: the device's, which CUDA_OK keeps, belong to the thread that trains. */
static err pull_bytes(void *context, device_queue q, device_ticket *t, const void *from,
                      size_t bytes, void *to) {
    cuda_device *d = context;
    cudaStream_t stream = d->queue[q].stream;
    cudaError_t status = cudaSetDevice(d->number);
    if (t->capacity < bytes) {
        ticket_free(context, t);
        *t = (device_ticket){ 0 };
        if (status == cudaSuccess) status = cudaHostAlloc(&t->memory, bytes, 0);
        cudaEvent_t event = NULL;
        if (status == cudaSuccess)
            status =
                cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync);
        t->event = event;
        if (status == cudaSuccess) t->capacity = bytes;
    }
    if (status == cudaSuccess)
        status = cudaMemcpyAsync(t->memory, from, bytes, cudaMemcpyDefault, stream);
    if (status == cudaSuccess) status = cudaEventRecord(t->event, stream);
    if (status == cudaSuccess) status = cudaEventSynchronize(t->event);
    if (status != cudaSuccess) return ERR("reading from the GPU: %s", cudaGetErrorString(status));
    memcpy(to, t->memory, bytes);
    return OK;
}

/* ---- recording: capture into CUDA graphs ------------------------------------------------------- */

static void capture_begin(void *context) {
    cuda_context *x = compute_of(context);
    x->device->fault_before_capture = take_fault(x->device);
    CUDA_OK(x, cudaStreamBeginCapture(x->stream, cudaStreamCaptureModeThreadLocal));
}

static void *capture_end(void *context) {
    cuda_context *x = compute_of(context);
    cudaGraph_t graph = NULL;
    cudaGraphExec_t made = NULL;
    cudaError_t status = cudaStreamEndCapture(x->stream, &graph);
    if (status == cudaSuccess && !x->device->fault) status = cudaGraphInstantiate(&made, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    if (!made) { /* the capture failed, nothing ran: the caller queues the calls one by one instead */
        err_free(take_fault(x->device));
        cudaGetLastError();
    }
    restore_fault(x->device, x->device->fault_before_capture);
    x->device->fault_before_capture = OK;
    return made;
}

static void graph_launch(void *context, void *graph) {
    cuda_context *x = compute_of(context);
    CUDA_OK(x, cudaGraphLaunch(graph, x->stream));
}

static void graph_free(void *context, void *graph) { cudaGraphExecDestroy(graph); }

/* ---- timing ------------------------------------------------------------------------------------ */

/* @return event number i, made if need be with all before it; NULL: the device refuses more. */
static cudaEvent_t mark_event(cuda_context *x, int i) {
    cuda_staging *s = x->device->staging;
    if (i >= s->mark_cap) {
        s->mark_cap = MAX(64, 2 * i);
        s->mark = mem_grow(s->mark, (size_t)s->mark_cap * sizeof *s->mark);
    }
    for (; s->marks <= i; s->marks++) {
        cudaError_t status = cudaEventCreate(&s->mark[s->marks]);
        CUDA_OK(x, status);
        if (status != cudaSuccess) return NULL;
    }
    return s->mark[i];
}

static void record_mark(void *context, device_queue q, int i) {
    cuda_context *x = &((cuda_device *)context)->queue[q];
    cudaEvent_t mark = mark_event(x, i);
    if (mark) CUDA_OK(x, cudaEventRecord(mark, x->stream));
}

static double seconds_between(void *context, int from, int to) {
    cuda_context *x = compute_of(context);
    float ms = 0;
    cudaEvent_t first = mark_event(x, from), last = mark_event(x, to);
    if (!first || !last) return 0;
    CUDA_OK(x, cudaEventSynchronize(last));
    CUDA_OK(x, cudaEventElapsedTime(&ms, first, last));
    return ms * 1e-3;
}

static double peak_flops(void *context, dtype dt) {
    cuda_context *x = compute_of(context);
    err before = take_fault(x->device);
    double flops = cuda_measure_gemm_rate(x, dt);
    err_free(take_fault(x->device)); /* a type the GPU does not multiply is not an error */
    cudaGetLastError();
    restore_fault(x->device, before);
    return flops;
}

static const device_table functions = {
    .map = map_memory,
    .unmap = unmap_memory,
    .map_spare = map_spare_memory,
    .copy = copy_on_device,
    .pull = pull_bytes,
    .map_host = cuda_map_host,
    .unmap_host = cuda_unmap_host,
    .join = cuda_join,
    .signal = cuda_signal,
    .await = cuda_await,
    .native_queue = cuda_native_queue,
    .add = cuda_add_on_stream,
    .put = put_bytes,
    .get = get_bytes,
    .fetch = ticket_fetch,
    .take = ticket_take,
    .drop = ticket_free,
    .sync = sync_queues,
    .record_begin = capture_begin,
    .record_end = capture_end,
    .replay = graph_launch,
    .graph_free = graph_free,
    .mark = record_mark,
    .seconds_between = seconds_between,
    .peak_flops = peak_flops,
};

/* ---- kernels ------------------------------------------------------------------------------------- */

/* cuDNN draws dropout masks of its own, which no other backend could repeat: calls with dropout always run
 * on our own kernels, forward and backward alike. */
static bool may_use_cudnn(const op_call *c) { return c->attr.dropout.p == 0; }

static void run_attention(const op_call *c) {
    if (!may_use_cudnn(c) || !cuda_attention_cudnn(c)) cuda_attention_tiles(c);
}
static void run_attention_bwd(const op_call *c) {
    if (!may_use_cudnn(c) || !cuda_attention_cudnn(c)) cuda_attention_tiles_bwd(c);
}

static size_t attention_workspace(const op_backend *b, const op_call *c, int threads) {
    size_t cudnn = may_use_cudnn(c) ? cuda_attention_cudnn_bytes(b->context, c) : 0;
    return cudnn ? cudnn : cuda_attention_tiles_bytes(b->context, c);
}

KERNEL(ATTENTION, run_attention, attention_workspace,
       ATTRS_HEADS | ATTRS_ATTENTION | ATTRS_ATTENTION_DROPOUT);
KERNEL(ATTENTION_BWD, run_attention_bwd, attention_workspace,
       ATTRS_HEADS | ATTRS_ATTENTION | ATTRS_ATTENTION_DROPOUT);

/* The kernel of every op: an op without one does not link, and the linker names it. */
#define OP(id, ...) extern const op_impl cuda_kernel_##id;
#define OP_EXTERN(id, ...)
#include "ops/ops.def"
static const op_impl *const kernels[OP_COUNT] = {
#define OP(id, ...)        [OP_##id] = &cuda_kernel_##id,
#define OP_EXTERN(id, ...) [OP_##id] = &(const op_impl){ 0 },
#include "ops/ops.def"
};

static const op_backend table = {
    .name = "cuda",
    .bf16_gemm = true,
    .polar = DT_F16,
    .device = &functions,
    .impl = kernels,
};

/* ---- opening and closing ----------------------------------------------------------------------- */

enum { LEAST_CAPABILITY = 80 }; /* in tenths: kernels multiply bf16 and copy asynchronously */
/* Kernels are compiled for a compute capability and later ones. */
static err check_compiled_for(cuda_device *d, int number) {
    ops_gpu_info gpu;
    int compiled = cuda_compiled_for();
    d->overlaps = d->capability >= 9 && compiled >= 90;
    if (compiled) return OK;
    TRY(ops_cuda_describe(number, &gpu));
    err e = ERR("GPU %d, %s, has compute capability %d.%d, for which this ingot was not built",
                number, gpu.name, gpu.capability / 10, gpu.capability % 10);
    if (gpu.capability < LEAST_CAPABILITY)
        return err_hint(e, "no build is for less than %d.%d; --device cpu runs without a GPU",
                        LEAST_CAPABILITY / 10, LEAST_CAPABILITY % 10);
    return err_hint(
        e,
        "build it with -DCMAKE_CUDA_ARCHITECTURES=%d, or leave that out where this GPU is; --device cpu runs without a GPU",
        gpu.capability);
}

static err open_device(cuda_device *d, int number) {
    d->number = number;
    cudaError_t status = cudaSetDevice(number);
    if (status == cudaSuccess)
        status = cudaDeviceGetAttribute(&d->sms, cudaDevAttrMultiProcessorCount, number);
    if (status == cudaSuccess)
        status = cudaDeviceGetAttribute(&d->capability, cudaDevAttrComputeCapabilityMajor, number);
    if (status == cudaSuccess)
        status =
            cudaDeviceGetAttribute(&d->shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, number);
    if (status != cudaSuccess)
        return err_hint(ERR("cannot open GPU %d: %s", number, cudaGetErrorString(status)),
                        "nvidia-smi lists the GPUs; --device cpu runs without one");
    TRY(check_compiled_for(d, number));
    TRY(cuda_queues_open(d));
    TRY(staging_new(&d->staging));
    TRY(cuda_gemm_cache_new(d, &d->gemm_cache));
    TRY(cuda_attention_new(&d->attention));
    return OK;
}

err ops_cuda_open(int number, int flags, op_backend **out) {
    TRY(ops_cuda_check(number));
    op_backend *b = mem_alloc(sizeof *b);
    cuda_device *d = mem_alloc(sizeof *d);
    *b = table;
    b->context = d;
    d->deterministic = flags & OPS_DETERMINISTIC;
    d->tf32 = flags & OPS_TF32;
    d->own_gemms = flags & OPS_OWN_GEMMS;
    d->offers_own_gemms = d->own_gemms || (flags & OPS_OFFER_OWN_GEMMS);
    err e = open_device(d, number);
    if (e) {
        ops_cuda_close(b);
        return err_trail(e, __FILE__, __LINE__);
    }
    *out = b;
    return OK;
}

void ops_cuda_close(op_backend *b) {
    if (!b) return;
    cuda_device *d = b->context;
    cuda_attention_free(d->attention);
    cuda_gemm_cache_free(d->gemm_cache);
    staging_free(d->staging);
    cuda_offload_free(d->offload);
    cuda_queues_close(d);
    err_free(d->fault);
    err_free(d->fault_before_capture);
    free(d);
    free(b);
}
