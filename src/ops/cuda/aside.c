/* What lies on the host but works for the device: memory that kernels reach over the bus, and a second
 * queue, beside the first, for the calls that wait for it.
 *
 *     main  --- clip --+-- updates -- next step: blocks 0 1 2 --+-- block 3 --+-- block 4 ...
 *                      | fork                                   | join leg 4  | join leg 5
 *     side             +-- update of block 3 -------------------+-- of 4 -----+-- of 5 ...
 *
 * Fork and join are events. A join that is recorded in a CUDA graph waits, each time the graph runs, for
 * what was done aside before that. */
#include "cuda_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory ------------------------------------------------------------------------------------ */
err cuda_map_host(void *context, size_t bytes, void **out) {
    char size[32];
    cudaError_t status = cudaHostAlloc(out, bytes, 0);
    if (status == cudaSuccess) {
        memset(*out, 0, bytes);
        return OK;
    }
    cudaGetLastError(); /* no lasting fault */
    *out = NULL;
    return err_hint(ERR("%s of the host's memory cannot be given to the GPU: %s",
                        str_bytes(size, sizeof size, (double)bytes), cudaGetErrorString(status)),
                    "lower optimizer.offload; \"ulimit -l\" may limit memory that is pinned");
}

void cuda_unmap_host(void *context, void *p, size_t bytes) { cudaFreeHost(p); }

/* ---- the second queue ---------------------------------------------------------------------------- */
struct cuda_side {
    cudaStream_t stream;    /* while aside, the main one */
    cudaEvent_t fork, done; /* done: all that was queued aside */
    cudaEvent_t *leg;       /* [legs] NULL before its first */
    int legs;
    bool aside;
};

static struct cuda_side *side_of(cuda_context *x) {
    if (x->side) return x->side;
    int least, most; /* what goes aside is short, and the bus waits for it: it goes first */
    x->side = mem_alloc(sizeof *x->side);
    CUDA_OK(x, cudaDeviceGetStreamPriorityRange(&least, &most));
    CUDA_OK(x, cudaStreamCreateWithPriority(&x->side->stream, cudaStreamNonBlocking, most));
    CUDA_OK(x, cudaEventCreateWithFlags(&x->side->fork, cudaEventDisableTiming));
    CUDA_OK(x, cudaEventCreateWithFlags(&x->side->done, cudaEventDisableTiming));
    return x->side;
}

static void swap(cuda_context *x) {
    cudaStream_t other = x->side->stream;
    x->side->stream = x->stream;
    x->stream = other;
    x->side->aside = !x->side->aside;
}

void cuda_side_begin(void *context) {
    cuda_context *x = context;
    struct cuda_side *s = side_of(x);
    BUG_IF(s->aside);
    CUDA_OK(x, cudaEventRecord(s->fork, x->stream));
    CUDA_OK(x, cudaStreamWaitEvent(s->stream, s->fork, 0));
    swap(x);
}

static cudaEvent_t leg_of(cuda_context *x, int leg) {
    struct cuda_side *s = x->side;
    while (s->legs <= leg) mem_reserve((void **)&s->leg, &s->legs, s->legs, sizeof *s->leg);
    if (!s->leg[leg]) CUDA_OK(x, cudaEventCreateWithFlags(&s->leg[leg], cudaEventDisableTiming));
    return s->leg[leg];
}

cudaEvent_t cuda_forked(const cuda_context *x) {
    return x->side && x->side->aside ? x->side->fork : NULL;
}

void cuda_side_end(void *context, int leg) {
    cuda_context *x = context;
    BUG_IF(!x->side || !x->side->aside);
    CUDA_OK(x, cudaEventRecord(leg_of(x, leg), x->stream));
    CUDA_OK(x, cudaEventRecord(x->side->done, x->stream));
    swap(x);
}

void cuda_join(void *context, int leg) {
    cuda_context *x = context;
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (leg == OP_ALL_EVENTS && !x->side) return;
    BUG_IF(side_of(x)->aside); /* a leg that never ran yet may be in a recording that lasts */
    CUDA_OK(x, cudaStreamIsCapturing(x->stream, &status));
    bool recorded = status != cudaStreamCaptureStatusNone;
    if (leg == OP_ALL_EVENTS) cuda_ferry_join(x);
    CUDA_OK(x, cudaStreamWaitEvent(x->stream, leg == OP_ALL_EVENTS ? x->side->done : leg_of(x, leg),
                                   recorded ? cudaEventWaitExternal : 0));
}

void cuda_side_free(struct cuda_side *s) {
    if (!s) return;
    cudaEventDestroy(s->fork);
    cudaEventDestroy(s->done);
    for (int i = 0; i < s->legs; i++)
        if (s->leg[i]) cudaEventDestroy(s->leg[i]);
    free(s->leg);
    cudaStreamDestroy(s->stream);
    free(s);
}
