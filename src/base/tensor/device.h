/* device: the memory that kernels work on, and the queues that run their calls. A backend that has a
 * device brings one table of functions; a NULL table is the CPU: the process's own memory, and calls
 * that are complete when they return. It is a layer below ops, whose kernels are queued, and comm, whose
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

/* A queue runs what is queued on it in order; queues run beside each other, and wait for each other
 * only at a join or an await:
 *
 *     compute  --- clip --+-- other updates -- next step: blocks 0 1 2 --+-- block 3 ---+-- block 4 ...
 *                         | join                                         | await 3      | await 4
 *     update              +-- update of block 3 -- signal 3 -- of 4 -- signal 4 -- of 5 ...
 *
 * Whatever queues work takes the queue as an argument; none is the current one. */
typedef enum {
    QUEUE_COMPUTE,  /* everything that the table does not queue elsewhere */
    QUEUE_UPDATE,   /* optimizer updates that run beside the next step */
    QUEUE_COPY_IN,  /* from host memory to the device's, and */
    QUEUE_COPY_OUT, /* back: state that updates keep in host memory; checkpoints */
    QUEUE_FETCH,    /* parameters from host memory, for the programs that read them */
    QUEUE_COUNT
} device_queue;

/* A copy from the device in flight; all zero: none. */
typedef struct device_ticket {
    void *memory, *event; /* the backend's own */
    size_t bytes, capacity;
} device_ticket;

/* Marks before this one time the steps of a run, all the time; who times single calls numbers them from here. */
enum { MARKS_OF_STEPS = 6 };

typedef struct device_table {
    err (*map)(void *context, size_t bytes, void **out); /* zeroed */
    void (*unmap)(void *context, void *p, size_t bytes);
    /* Memory as map's, for an optional purpose: *out is NULL where too little would be left to
     * others. Not zeroed. May be NULL, as copy and pull, which belong to it. */
    void (*map_spare)(void *context, size_t bytes, void **out);
    /* Host memory that kernels can also reach, over the bus; zeroed. */
    err (*map_host)(void *context, size_t bytes, void **out);
    void (*unmap_host)(void *context, void *p, size_t bytes);
    /* Host to device, on QUEUE_COMPUTE; the bytes at `from` are read before it returns. */
    void (*put)(void *context, void *to, const void *from, size_t bytes);
    /* Device to host; waits. */
    err (*get)(void *context, void *to, const void *from, size_t bytes);
    /* To the host, from the device or from map_host's memory: fetch queues a copy of the bytes at `from`
     * on q; take waits for that copy alone, and with a NULL `to` leaves it in the ticket's
     * memory. A ticket keeps its memory from one use to the next; drop frees it. */
    void (*fetch)(void *context, device_queue q, device_ticket *t, const void *from, size_t bytes);
    err (*take)(void *context, device_ticket *t, void *to);
    void (*drop)(void *context, device_ticket *t);
    /* Queues a copy within the device's memory on q. */
    void (*copy)(void *context, device_queue q, void *to, const void *from, size_t bytes);
    /* Device to host on q; waits for that copy alone. Any thread may call it; `t` has memory for it, which is
     * kept from one call to the next. */
    err (*pull)(void *context, device_queue q, device_ticket *t, const void *from, size_t bytes,
                void *to);
    /* Waits for everything queued, on all queues; so does get. @return the first error since the last
     * call. */
    err (*sync)(void *context);
    /* Calls on QUEUE_COMPUTE between record_begin and record_end are recorded into a graph, not run;
     * replay queues them all as one. record_end returns NULL when they could not be recorded; none of
     * them ran then. */
    void (*record_begin)(void *context);
    void *(*record_end)(void *context);
    void (*replay)(void *context, void *graph);
    void (*graph_free)(void *context, void *graph);
    /* join makes q wait for everything queued on `other` so far. signal records an event behind what is
     * queued on q, under a number of the caller's choice; await makes q wait for the latest signal of
     * that number on `of`, and for none when there was none. Each queue has numbers of its own. An await
     * that is recorded in a graph waits each time for the signal that is the latest by then, unless that
     * signal is part of the same graph. */
    void (*join)(void *context, device_queue q, device_queue other);
    void (*signal)(void *context, device_queue q, int event);
    void (*await)(void *context, device_queue q, device_queue of, int event);
    /* The queue as the device's own libraries know it (CUDA: a cudaStream_t); it lives as long as the
     * context. */
    void *(*native_queue)(void *context, device_queue q);
    /* out = a + b, or a where b has no data, in the type of out, on a stream that is not one of its queues (CUDA: a
     * cudaStream_t): what collectives do to the values that they move. */
    void (*add)(void *context, void *stream, const tensor *a, const tensor *b, const tensor *out);
    /* mark records the time at which q gets here, as mark number i (see MARKS_OF_STEPS); seconds_between waits for two marks
     * and returns the time from one to the other. */
    void (*mark)(void *context, device_queue q, int i);
    double (*seconds_between)(void *context, int from, int to);
    /* Measured floating-point operations per second of a large GEMM of this type; NaN: cannot run. */
    double (*peak_flops)(void *context, dtype dt);
} device_table;

#endif
