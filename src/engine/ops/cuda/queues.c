/* Queues as CUDA streams, their events, and host memory that kernels can reach over the bus.
 *
 * An event that another queue awaits later has a number. An await that is captured in a CUDA graph is an
 * external wait: each time the graph runs it waits for the event's latest record, not for the one that
 * was current during capture. Only where the signal is captured too is it an edge of the graph. */
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
    return err_hint(
        ERR("cannot pin %s of host memory for the GPU: %s",
            str_bytes(size, sizeof size, (double)bytes), cudaGetErrorString(status)),
        "lower optimizer.offload, or leave training.offload_params off; \"ulimit -l\" may limit pinned memory");
}

void cuda_unmap_host(void *context, void *p, size_t bytes) { cudaFreeHost(p); }

/* ---- queues ------------------------------------------------------------------------------------ */
typedef struct numbered_event {
    cudaEvent_t event; /* NULL until first used */
    bool captured;     /* its last record is part of a graph */
} numbered_event;

struct cuda_events {
    cudaEvent_t handover; /* of joins; each record is waited for at once */
    struct {
        numbered_event *event;
        int cap;
    } of[QUEUE_COUNT];
};

err cuda_queues_open(cuda_device *d) {
    int lowest = 0, highest = 0;
    d->events = mem_alloc(sizeof *d->events);
    cudaError_t status = cudaDeviceGetStreamPriorityRange(&lowest, &highest);
    for (int q = 0; q < QUEUE_COUNT && status == cudaSuccess; q++) {
        bool first = q == QUEUE_UPDATE; /* its kernels are short, and the bus waits for them */
        d->queue[q].device = d;
        status = cudaStreamCreateWithPriority(&d->queue[q].stream, cudaStreamNonBlocking,
                                              first ? highest : lowest);
    }
    if (status == cudaSuccess)
        status = cudaEventCreateWithFlags(&d->events->handover, cudaEventDisableTiming);
    return status == cudaSuccess ? OK : ERR("CUDA streams: %s", cudaGetErrorString(status));
}

void cuda_queues_close(cuda_device *d) {
    struct cuda_events *all = d->events;
    for (int q = 0; q < QUEUE_COUNT && all; q++) {
        for (int i = 0; i < all->of[q].cap; i++)
            if (all->of[q].event[i].event) cudaEventDestroy(all->of[q].event[i].event);
        free(all->of[q].event);
    }
    if (all && all->handover) cudaEventDestroy(all->handover);
    free(all);
    for (int q = 0; q < QUEUE_COUNT; q++)
        if (d->queue[q].stream) cudaStreamDestroy(d->queue[q].stream);
}

void *cuda_native_queue(void *context, device_queue q) {
    return ((cuda_device *)context)->queue[q].stream;
}

void cuda_join(void *context, device_queue q, device_queue other) {
    cuda_device *d = context;
    cuda_context *x = &d->queue[q];
    CUDA_OK(x, cudaEventRecord(d->events->handover, d->queue[other].stream));
    CUDA_OK(x, cudaStreamWaitEvent(x->stream, d->events->handover, 0));
}

/* @return the event of this number, created by the first call. */
static numbered_event *event_of(cuda_context *x, device_queue q, int i) {
    struct cuda_events *all = x->device->events;
    while (all->of[q].cap <= i)
        all->of[q].event = mem_reserve(all->of[q].event, &all->of[q].cap, all->of[q].cap,
                                       sizeof *all->of[q].event);
    numbered_event *e = &all->of[q].event[i];
    if (!e->event) CUDA_OK(x, cudaEventCreateWithFlags(&e->event, cudaEventDisableTiming));
    return e;
}

static bool is_captured(cuda_context *x) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    CUDA_OK(x, cudaStreamIsCapturing(x->stream, &status));
    return status != cudaStreamCaptureStatusNone;
}

void cuda_signal(void *context, device_queue q, int event) {
    cuda_context *x = &((cuda_device *)context)->queue[q];
    numbered_event *e = event_of(x, q, event);
    e->captured = is_captured(x);
    CUDA_OK(x, cudaEventRecord(e->event, x->stream));
}

void cuda_await(void *context, device_queue q, device_queue of, int event) {
    cuda_context *x = &((cuda_device *)context)->queue[q];
    /* A graph may await an event before it is first recorded: the graph outlives this call. */
    numbered_event *e = event_of(x, of, event);
    bool external = is_captured(x) && !e->captured;
    CUDA_OK(x, cudaStreamWaitEvent(x->stream, e->event, external ? cudaEventWaitExternal : 0));
}
