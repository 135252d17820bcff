/* Host memory that kernels can reach over the bus, and a side queue: a second stream for the calls
 * that work on that memory, so that the main stream need not wait for the bus.
 *
 *     main  --- clip --+-- updates -- next step: blocks 0 1 2 --+-- block 3 ---+-- block 4 ...
 *                      | fork                                   | join event 3 | join event 4
 *     side             +-- update of block 3 -------------------+-- of 4 ------+-- of 5 ...
 *
 * side_begin records the fork event on the main stream, lets the side stream wait for it, and exchanges
 * the two: from there to side_end the context's stream is the side stream, and kernels queue to it
 * without knowing. side_end records the numbered event that callers join. A join that is captured in a
 * CUDA graph is an external wait: each time the graph runs it waits for the event's latest record, not
 * for the one that was current during capture. */
#include "cuda_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- host memory ------------------------------------------------------------------------------- */
err cuda_map_host(void *context, size_t bytes, void **out) {
    char size[32];
    cudaError_t status = cudaHostAlloc(out, bytes, 0);
    if (status == cudaSuccess) {
        memset(*out, 0, bytes);
        return OK;
    }
    cudaGetLastError(); /* clears it: the caller gets this error, not a later call */
    *out = NULL;
    return err_hint(ERR("cannot pin %s of host memory for the GPU: %s",
                        str_bytes(size, sizeof size, (double)bytes), cudaGetErrorString(status)),
                    "lower optimizer.offload; \"ulimit -l\" may limit pinned memory");
}

void cuda_unmap_host(void *context, void *p, size_t bytes) { cudaFreeHost(p); }

/* ---- the side queue ---------------------------------------------------------------------------- */
struct cuda_side_queue {
    cudaStream_t stream;    /* the side stream; between side_begin and side_end the main one */
    cudaEvent_t fork, done; /* done: recorded after everything that was queued here */
    cudaEvent_t *event;     /* [events], created when first used; NULL before */
    int events;
    bool active; /* between side_begin and side_end */
};

/* @return the side queue, created by the first call. */
static struct cuda_side_queue *side_queue_of(cuda_context *x) {
    if (x->side_queue) return x->side_queue;
    struct cuda_side_queue *s = x->side_queue = mem_alloc(sizeof *s);
    int lowest, highest; /* its kernels are short and the bus waits for them: highest priority */
    CUDA_OK(x, cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    CUDA_OK(x, cudaStreamCreateWithPriority(&s->stream, cudaStreamNonBlocking, highest));
    CUDA_OK(x, cudaEventCreateWithFlags(&s->fork, cudaEventDisableTiming));
    CUDA_OK(x, cudaEventCreateWithFlags(&s->done, cudaEventDisableTiming));
    return s;
}

static void exchange_streams(cuda_context *x) {
    struct cuda_side_queue *s = x->side_queue;
    cudaStream_t other = s->stream;
    s->stream = x->stream;
    x->stream = other;
    s->active = !s->active;
}

void cuda_side_begin(void *context) {
    cuda_context *x = context;
    struct cuda_side_queue *s = side_queue_of(x);
    BUG_IF(s->active);
    CUDA_OK(x, cudaEventRecord(s->fork, x->stream));
    CUDA_OK(x, cudaStreamWaitEvent(s->stream, s->fork, 0));
    exchange_streams(x);
}

static cudaEvent_t event_of(cuda_context *x, int i) {
    struct cuda_side_queue *s = x->side_queue;
    while (s->events <= i) mem_reserve((void **)&s->event, &s->events, s->events, sizeof *s->event);
    if (!s->event[i]) CUDA_OK(x, cudaEventCreateWithFlags(&s->event[i], cudaEventDisableTiming));
    return s->event[i];
}

cudaEvent_t cuda_side_fork_event(const cuda_context *x) {
    return x->side_queue && x->side_queue->active ? x->side_queue->fork : NULL;
}

void cuda_side_end(void *context, int event) {
    cuda_context *x = context;
    BUG_IF(!x->side_queue || !x->side_queue->active);
    CUDA_OK(x, cudaEventRecord(event_of(x, event), x->stream));
    CUDA_OK(x, cudaEventRecord(x->side_queue->done, x->stream));
    exchange_streams(x);
}

void cuda_side_join(void *context, int event) {
    cuda_context *x = context;
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (event == OP_ALL_EVENTS && !x->side_queue) return;
    /* An event may be joined in a graph before it is first recorded: the graph outlives this call. */
    BUG_IF(side_queue_of(x)->active);
    CUDA_OK(x, cudaStreamIsCapturing(x->stream, &status));
    bool captured = status != cudaStreamCaptureStatusNone;
    if (event == OP_ALL_EVENTS) cuda_offload_join(x);
    cudaEvent_t last = event == OP_ALL_EVENTS ? x->side_queue->done : event_of(x, event);
    CUDA_OK(x, cudaStreamWaitEvent(x->stream, last, captured ? cudaEventWaitExternal : 0));
}

/* @return the stream, created by the first call. Other queues wait for what it does: highest priority. */
static cudaStream_t stream_of(cuda_context *x, cudaStream_t *s) {
    int lowest, highest;
    if (*s) return *s;
    CUDA_OK(x, cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    CUDA_OK(x, cudaStreamCreateWithPriority(s, cudaStreamNonBlocking, highest));
    return *s;
}

void *cuda_native_queue(void *context, device_queue q) {
    cuda_context *x = context;
    BUG_IF(x->side_queue && x->side_queue->active); /* the two streams are exchanged */
    switch (q) {
    case QUEUE_COMPUTE: return x->stream;
    case QUEUE_UPDATE: return side_queue_of(x)->stream;
    case QUEUE_COMM: return stream_of(x, &x->comm);
    case QUEUE_COPY: return stream_of(x, &x->copy);
    default: BUG("no such queue");
    }
}

void cuda_side_queue_free(struct cuda_side_queue *s) {
    if (!s) return;
    cudaEventDestroy(s->fork);
    cudaEventDestroy(s->done);
    for (int i = 0; i < s->events; i++)
        if (s->event[i]) cudaEventDestroy(s->event[i]);
    free(s->event);
    cudaStreamDestroy(s->stream);
    free(s);
}
