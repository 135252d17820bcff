/* device: the memory that kernels work on, and the queues that run their calls. A backend that has a
 * device brings one table of functions; a NULL table is the CPU: the process's own memory, and calls
 * that are complete when they return. It lies below ops, whose kernels are queued, and comm, whose
 * collectives are. Depends on tensor.h.
 *
 * Given `const device_table *d` with its `void *context`, and `float *x` of `size_t bytes`:
 *
 *     void *at;
 *     TRY(d->map(context, bytes, &at));
 *     d->put(context, at, x, bytes);
 *     TRY(d->get(context, x, at, bytes));
 *     d->unmap(context, at, bytes);
 */
#ifndef INGOT_DEVICE_H
#define INGOT_DEVICE_H

#include "tensor/tensor.h"

/* A queue runs what is queued on it in order; queues run beside each other. */
typedef enum {
    QUEUE_COMPUTE,
    QUEUE_UPDATE, /* optimizer updates that run beside the next step */
    QUEUE_COMM,   /* collectives */
    QUEUE_COPY,   /* copies between host and device */
    QUEUE_COUNT
} device_queue;

/* A copy from the device in flight; all zero: none. */
typedef struct device_ticket {
    void *memory, *event; /* the backend's own */
    size_t bytes, capacity;
} device_ticket;

enum { OP_ALL_EVENTS = -1 };
typedef struct device_table {
    err (*map)(void *context, size_t bytes, void **out); /* zeroed */
    void (*unmap)(void *context, void *p, size_t bytes);
    /* Host memory that kernels can also reach, over the bus; zeroed. */
    err (*map_host)(void *context, size_t bytes, void **out);
    void (*unmap_host)(void *context, void *p, size_t bytes);
    /* Host to device; the bytes at `from` are read before it returns. */
    void (*put)(void *context, void *to, const void *from, size_t bytes);
    /* Device to host; waits. */
    err (*get)(void *context, void *to, const void *from, size_t bytes);
    /* To the host, from the device or from map_host's memory: fetch queues a copy of the bytes at `from`;
     * take waits for that copy alone, and with a NULL `to` leaves it in the ticket's memory. A ticket keeps
     * its memory from one use to the next; drop frees it. */
    void (*fetch)(void *context, device_ticket *t, const void *from, size_t bytes);
    err (*take)(void *context, device_ticket *t, void *to);
    void (*drop)(void *context, device_ticket *t);
    /* Waits for everything queued. @return the first error since the last call. */
    err (*sync)(void *context);
    /* Calls between record_begin and record_end are recorded into a graph, not run; replay queues them
     * all as one. record_end returns NULL when they could not be recorded; none of them ran then. */
    void (*record_begin)(void *context);
    void *(*record_end)(void *context);
    void (*replay)(void *context, void *graph);
    void (*graph_free)(void *context, void *graph);
    /* Calls from side_begin to side_end go to a second queue, which starts them when the first gets to
     * side_begin; side_end records an event behind them. join makes the first queue wait for that
     * event and those before it, or for all (OP_ALL_EVENTS). get and sync join all. */
    void (*side_begin)(void *context);
    void (*side_end)(void *context, int event);
    void (*join)(void *context, int event);
    /* The queue as the device's own libraries know it (CUDA: a cudaStream_t), created by the first call;
     * it lives as long as the context. */
    void *(*native_queue)(void *context, device_queue q);
    /* mark records the time at which the queue gets here, as mark number i; seconds_between waits for
     * two marks and returns the time from one to the other. */
    void (*mark)(void *context, int i);
    double (*seconds_between)(void *context, int from, int to);
    /* Measured floating-point operations per second of a large GEMM of this type; NaN: cannot run. */
    double (*peak_flops)(void *context, dtype dt);
} device_table;

#endif
