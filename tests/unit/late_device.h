/* A GPU that is the CPU, and does everything as late as it may: calls, copies and recordings only stand
 * in a queue until somebody waits for them, and what was queued aside runs no sooner than it is joined.
 * A program that defines these functions of ops.h itself gets this device for --device=cuda. */
#ifndef INGOT_TEST_LATE_DEVICE_H
#define INGOT_TEST_LATE_DEVICE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/watch.h"

enum { MOST_LEGS = 64 };
typedef enum { LATE_CALL, LATE_PUT, LATE_FETCH, LATE_JOIN } late_kind;
typedef struct late_work {
    late_kind kind;
    op_call call;
    op_run run;
    void *to;
    const void *from;
    char *bytes; /* of a put, owned */
    size_t n;    /* of a join: so much of what was queued aside */
    int leg;
} late_work;
typedef struct late_list {
    late_work *at;
    int n, cap, done;
} late_list;

/* What the tests watch and ask for, beside the queues. */
static struct {
    late_list main, side, *tape; /* tape: what is being recorded */
    int leg[MOST_LEGS];          /* what was queued aside up to its end */
    bool aside, no_graphs;
    int records, replays, ahead; /* ahead: losses queued behind an update not yet run */
    int clips_queued, clips_run;
    int poison; /* this clip finds a gradient that is not finite; 0: none */
    int broken; /* from this take on the device has a fault; 0: never */
    int takes;
    int stop_at;                   /* when this clip is queued */
    volatile sig_atomic_t stopped; /* ... this is set */
} late;

static late_work *late_add(late_list *l, late_kind kind) {
    mem_reserve((void **)&l->at, &l->cap, l->n, sizeof *l->at);
    l->at[l->n] = (late_work){ .kind = kind };
    return &l->at[l->n++];
}
static late_list *late_queue(void) {
    return late.tape ? late.tape : late.aside ? &late.side : &late.main;
}

static void late_run(late_list *l, int until);
static void late_do(late_work *w) {
    static float nothing[2] = { NAN, NAN };
    switch (w->kind) {
    case LATE_JOIN: late_run(&late.side, (int)w->n); break;
    case LATE_FETCH: memcpy(w->to, w->from, w->n); break;
    case LATE_PUT:
        memcpy(w->to, w->bytes, w->n);
        free(w->bytes);
        break;
    case LATE_CALL:
        w->call.run = &w->run;
        if (w->call.op == OP_CLIP && ++late.clips_run == late.poison) w->call.in[0].data = nothing;
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
    late_work *w = late_add(late_queue(), LATE_CALL);
    w->call = *c;
    w->run = *c->run;
    if (!late.tape) late_count(c);
}

static err late_map(void *x, size_t bytes, void **out) { return mem_map(bytes, out); }
static void late_unmap(void *x, void *p, size_t bytes) { mem_unmap(p, bytes); }
static void late_put(void *x, void *to, const void *from, size_t n) {
    BUG_IF(late.tape || late.aside);
    late_work *w = late_add(&late.main, LATE_PUT);
    w->to = to, w->n = n, w->bytes = mem_alloc(n);
    memcpy(w->bytes, from, n);
}
static void late_join(void *x, int leg) { /* a recorded one: when it is replayed */
    BUG_IF(late.aside || leg >= MOST_LEGS);
    late_work *w = late_add(late_queue(), LATE_JOIN);
    w->n = (size_t)(leg == OP_ALL_EVENTS ? late.side.n : late.leg[leg]);
    w->leg = leg;
}
static err late_sync(void *x) {
    BUG_IF(late.tape);
    late_join(x, OP_ALL_EVENTS);
    late_run(&late.main, late.main.n);
    return OK;
}
static err late_get(void *x, void *to, const void *from, size_t n) {
    err e = late_sync(x);
    memcpy(to, from, n);
    return e;
}
static void late_fetch(void *x, device_ticket *t, const void *from, size_t n) {
    BUG_IF(late.tape);
    if (t->capacity < n) t->memory = mem_grow(t->memory, t->capacity = n);
    t->bytes = n;
    late_work *w = late_add(late_queue(), LATE_FETCH);
    w->to = t->memory, w->from = from, w->n = n;
    /* how much of either queue must have run */
    t->event = (void *)((intptr_t)late.main.n << 32 | (late.aside ? late.side.n : 0));
}
static err late_take(void *x, device_ticket *t, void *to) {
    late_run(&late.main, (int)((intptr_t)t->event >> 32));
    late_run(&late.side, (int)((intptr_t)t->event & INT32_MAX));
    if (to) memcpy(to, t->memory, t->bytes);
    return late.broken && ++late.takes >= late.broken ? ERR("the device is broken") : OK;
}
static void late_drop(void *x, device_ticket *t) { /* pinned memory is not freed under a copy */
    late_run(&late.main, late.main.n);
    late_run(&late.side, late.side.n);
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
        if (l->at[i].kind == LATE_JOIN) {
            late_join(x, l->at[i].leg);
            continue;
        }
        BUG_IF(l->at[i].kind != LATE_CALL);
        *late_add(late_queue(), LATE_CALL) = l->at[i];
        late_count(&l->at[i].call);
    }
}
static void late_aside(void *x) { late.aside = true; }
static void late_back(void *x, int leg) {
    BUG_IF(leg >= MOST_LEGS);
    late.aside = false;
    late.leg[leg] = late.side.n;
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
                                         .side_begin = late_aside,
                                         .side_end = late_back,
                                         .join = late_join,
                                         .peak_flops = late_peak };
    op_backend *b = *out = mem_alloc(sizeof *b);
    static op_impl impls[OP_COUNT];
    *b = backend_watched(impls, late_call);
    b->device = &device;
    return OK;
}
void ops_cuda_close(op_backend *b) {
    free(late.main.at);
    free(late.side.at);
    late.main = late.side = (late_list){ 0 };
    memset(late.leg, 0, sizeof late.leg);
    free(b);
}

#endif
