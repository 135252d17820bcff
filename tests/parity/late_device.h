/* A GPU that is the CPU, and does everything as late as it may: calls, copies and recordings only stand
 * in a queue until somebody waits for them, and what is on another queue runs no sooner than the
 * compute queue waits for it.
 * A program that defines these functions of ops.h itself gets this device for --device=cuda. */
#ifndef INGOT_TEST_LATE_DEVICE_H
#define INGOT_TEST_LATE_DEVICE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/watch.h"

enum { MOST_EVENTS = 64 };
typedef enum { LATE_CALL, LATE_PUT, LATE_FETCH, LATE_AWAIT } late_kind;
typedef struct late_work {
    late_kind kind;
    op_call call;
    op_run run;
    void *to;
    const void *from;
    char *bytes; /* of a put, owned */
    size_t
        n; /* of an await: so much of queue `of`; of a call: so much of the compute queue was queued before */
    device_queue of;
    int event;
} late_work;
typedef struct late_list {
    late_work *at;
    int n, cap, done;
} late_list;

/* The tests watch and ask for these, beside the queues. */
static struct {
    late_list queue[QUEUE_COUNT], *tape; /* tape: what is being recorded */
    int event[QUEUE_COUNT][MOST_EVENTS]; /* how much of the queue is before it */
    struct {
        device_queue q;
        int n; /* of the queue's work, when the mark was set */
    } mark[MARKS_OF_STEPS];
    int forked[QUEUE_COUNT]; /* how much of the compute queue there was when this one joined it */
    bool no_graphs;
    int records, replays, ahead; /* ahead: losses queued behind an update not yet run */
    int beside; /* calls on another queue that ran behind calls queued after them on the compute queue */
    int clips_queued, clips_run;
    int poison; /* this clip finds a gradient that is not finite; 0: none */
    int broken; /* from this take on the device has a fault; 0: never */
    int takes;
    int stop_at;                   /* when this clip is queued */
    volatile sig_atomic_t stopped; /* ... this is set */
} late;

static late_work *late_add(late_list *l, late_kind kind) {
    l->at = mem_reserve(l->at, &l->cap, l->n, sizeof *l->at);
    l->at[l->n] = (late_work){ .kind = kind };
    return &l->at[l->n++];
}
static late_list *late_queue(device_queue q) {
    bool compute = q == QUEUE_COMPUTE;
    BUG_IF(!compute && (late.tape || late.forked[q] != late.queue[QUEUE_COMPUTE].n));
    return compute && late.tape ? late.tape : &late.queue[q];
}

static void late_run(late_list *l, int until);
static void late_do(late_work *w) {
    static float nothing[2] = { NAN, NAN };
    switch (w->kind) {
    case LATE_AWAIT: late_run(&late.queue[w->of], (int)w->n); break;
    case LATE_FETCH: memcpy(w->to, w->from, w->n); break;
    case LATE_PUT:
        memcpy(w->to, w->bytes, w->n);
        free(w->bytes);
        break;
    case LATE_CALL:
        w->call.run = &w->run;
        if (w->call.op == OP_CLIP && ++late.clips_run == late.poison) w->call.in[0].data = nothing;
        late.beside += w->run.queue != QUEUE_COMPUTE && late.queue[QUEUE_COMPUTE].done > (int)w->n;
        call_on_cpu(&w->call);
    }
}
static void late_run(late_list *l, int until) {
    while (l->done < until) {
        late_work w = l->at[l->done++];
        late_do(&w);
    }
}

static void late_count(const op_call *c) {
    if (c->op == OP_LINEAR_CE && late.clips_queued > late.clips_run) late.ahead++;
    if (c->op == OP_CLIP && ++late.clips_queued == late.stop_at) late.stopped = 1;
}
static void late_call(const op_call *c) {
    late_work *w = late_add(late_queue(c->run->queue), LATE_CALL);
    w->n = (size_t)late.queue[QUEUE_COMPUTE].n;
    w->call = *c;
    w->run = *c->run;
    if (!late.tape) late_count(c);
}

static err late_map(void *x, size_t bytes, void **out) { return mem_map(bytes, out); }
static void late_unmap(void *x, void *p, size_t bytes) { mem_unmap(p, bytes); }
static void late_put(void *x, void *to, const void *from, size_t n) {
    BUG_IF(late.tape);
    late_work *w = late_add(&late.queue[QUEUE_COMPUTE], LATE_PUT);
    w->to = to, w->n = n, w->bytes = mem_alloc(n);
    memcpy(w->bytes, from, n);
}
static void late_join(void *x, device_queue q, device_queue other) {
    BUG_IF(late.tape);
    late_work *w = late_add(&late.queue[q], LATE_AWAIT);
    w->of = other;
    w->n = (size_t)late.queue[other].n;
    if (other == QUEUE_COMPUTE) late.forked[q] = late.queue[other].n;
}
static void late_signal(void *x, device_queue q, int event) {
    BUG_IF(late.tape || event >= MOST_EVENTS);
    late.event[q][event] = late.queue[q].n;
}
static void late_await(void *x, device_queue q, device_queue of, int event) {
    BUG_IF(event >= MOST_EVENTS);
    late_work *w = late_add(late_queue(q), LATE_AWAIT); /* a recorded one: when it is replayed */
    w->n = (size_t)late.event[of][event];
    w->of = of;
    w->event = event;
}
static void late_mark(void *x, device_queue q, int i) {
    BUG_IF(late.tape || i >= MARKS_OF_STEPS);
    late.mark[i].q = q;
    late.mark[i].n = late.queue[q].n;
}
static double late_seconds(void *x, int from, int to) {
    late_run(&late.queue[late.mark[from].q], late.mark[from].n);
    late_run(&late.queue[late.mark[to].q], late.mark[to].n);
    return 1e-3;
}
static err late_sync(void *x) {
    BUG_IF(late.tape);
    for (int q = 0; q < QUEUE_COUNT; q++) late_run(&late.queue[q], late.queue[q].n);
    return OK;
}
static err late_get(void *x, void *to, const void *from, size_t n) {
    err e = late_sync(x);
    memcpy(to, from, n);
    return e;
}
static void late_fetch(void *x, device_queue q, device_ticket *t, const void *from, size_t n) {
    BUG_IF(late.tape);
    if (t->capacity < n) t->memory = mem_grow(t->memory, t->capacity = n);
    t->bytes = n;
    late_work *w = late_add(late_queue(q), LATE_FETCH);
    w->to = t->memory, w->from = from, w->n = n;
    t->event = (void *)((intptr_t)late.queue[q].n << 8 | (intptr_t)q);
}
static err late_take(void *x, device_ticket *t, void *to) {
    late_run(&late.queue[(intptr_t)t->event & 255], (int)((intptr_t)t->event >> 8));
    if (to) memcpy(to, t->memory, t->bytes);
    return late.broken && ++late.takes >= late.broken ? ERR("the device is broken") : OK;
}
static void late_drop(void *x, device_ticket *t) { /* pinned memory is not freed under a copy */
    for (int q = 0; q < QUEUE_COUNT; q++) late_run(&late.queue[q], late.queue[q].n);
    free(t->memory);
}

static void late_record(void *x) { late.tape = mem_alloc(sizeof *late.tape); }
static void late_forget(void *x, void *graph) {
    free(((late_list *)graph)->at);
    free(graph);
}
static void *late_recorded(void *x) {
    late_list *l = late.tape;
    late.tape = NULL;
    late.records++;
    if (!late.no_graphs) return l;
    late_forget(x, l);
    return NULL;
}
static void late_replay(void *x, void *graph) {
    const late_list *l = graph;
    late.replays++;
    for (int i = 0; i < l->n; i++) {
        if (l->at[i].kind == LATE_AWAIT) {
            late_await(x, QUEUE_COMPUTE, l->at[i].of, l->at[i].event);
            continue;
        }
        BUG_IF(l->at[i].kind != LATE_CALL);
        *late_add(&late.queue[QUEUE_COMPUTE], LATE_CALL) = l->at[i];
        late_count(&l->at[i].call);
    }
}
static double late_peak(void *x, dtype dt) { return NAN; }

/* ---- as ops.h has them ------------------------------------------------------------------------- */
int ops_cuda_count(void) { return 1; }
err ops_cuda_check(int number) { return OK; }
err ops_cuda_describe(int number, ops_gpu_info *out) {
    *out = (ops_gpu_info){ .name = "late" };
    return OK;
}
err ops_cuda_measure(const op_backend *b, ops_gpu_speed *out) { return OK; }
err ops_cuda_open(int number, int flags, op_backend **out) {
    static const device_table device = { .map = late_map,
                                         .unmap = late_unmap,
                                         .map_host = late_map,
                                         .unmap_host = late_unmap,
                                         .put = late_put,
                                         .get = late_get,
                                         .fetch = late_fetch,
                                         .take = late_take,
                                         .drop = late_drop,
                                         .sync = late_sync,
                                         .record_begin = late_record,
                                         .record_end = late_recorded,
                                         .replay = late_replay,
                                         .graph_free = late_forget,
                                         .signal = late_signal,
                                         .await = late_await,
                                         .join = late_join,
                                         .mark = late_mark,
                                         .seconds_between = late_seconds,
                                         .peak_flops = late_peak };
    op_backend *b = *out = mem_alloc(sizeof *b);
    static watched_kernels kernels;
    *b = backend_watched(&kernels, late_call);
    b->device = &device;
    return OK;
}
void ops_cuda_close(op_backend *b) {
    for (int q = 0; q < QUEUE_COUNT; q++) free(late.queue[q].at);
    memset(late.queue, 0, sizeof late.queue);
    memset(late.forked, 0, sizeof late.forked);
    memset(late.event, 0, sizeof late.event);
    free(b);
}

#endif
