/* The benchmarks share these: ending on an error, medians, tables, and op calls timed on any backend.
 *
 *     bench_target t = { .ops = ops_cpu(OPS_ISA_BEST), .pool = pool_new(0) };
 *     static const bench_column columns[] = { { "op", -20 }, { "ms", 8 } };
 *     bench_table table = bench_table_start(columns, COUNT_OF(columns));
 *     bench_cell(&table, "gelu");
 *     bench_cell(&table, "%.3f", 1e3 * bench_call_seconds(&t, &call));
 *
 * Times are the best of several rounds, since the machine may be shared; where something is compared
 * with something else, both run in turns in one process.
 */
#ifndef INGOT_BENCH_H
#define INGOT_BENCH_H

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ops/ops.h"

/* Prints the error and exits. */
static inline void bench_check(err e) {
    if (!e) return;
    err_print(stderr, e, true);
    exit(1);
}

/* ---- statistics ------------------------------------------------------------------------------ */

/* Sorts the n values. @return the middle one. */
static inline double bench_median(double *v, int n) {
    sort_array(v, (size_t)n, sizeof *v, compare_doubles);
    return v[n / 2];
}

/* ---- tables ---------------------------------------------------------------------------------- */

typedef struct bench_column {
    const char *name;
    int width; /* negative: aligned to the left */
} bench_column;

typedef struct bench_table {
    const bench_column *column; /* borrowed */
    int columns, at;            /* at: the column of the next cell */
} bench_table;

/* Prints a cell, and a newline after the last column's. */
__attribute__((format(printf, 2, 3))) static inline void bench_cell(bench_table *t, const char *fmt,
                                                                    ...) {
    char text[128];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    printf("%s%*s", t->at ? " " : "", t->column[t->at].width, text);
    t->at = (t->at + 1) % t->columns;
    if (t->at == 0) putchar('\n');
    fflush(stdout);
}

/* Prints the names of the columns. */
static inline bench_table bench_table_start(const bench_column *column, size_t columns) {
    bench_table t = { .column = column, .columns = (int)columns };
    for (size_t i = 0; i < columns; i++) bench_cell(&t, "%s", column[i].name);
    return t;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Calls run on this: the CPU with a pool, or a device. */
typedef struct bench_target {
    const op_backend *ops;  /* borrowed */
    pool *pool;             /* borrowed; NULL on a device */
    const step_block *step; /* borrowed, in the backend's memory; NULL where no call reads it */
} bench_target;

/* Memory as a run has it: on the CPU in pages of the largest size available. Zeroed. */
static inline void *bench_map(const bench_target *t, size_t bytes) {
    void *p = NULL;
    const device_table *d = t->ops->device;
    bench_check(d ? d->map(t->ops->context, bytes, &p) : mem_map(bytes, &p));
    return p;
}

static inline void bench_unmap(const bench_target *t, void *p, size_t bytes) {
    const device_table *d = t->ops->device;
    if (d)
        d->unmap(t->ops->context, p, bytes);
    else
        mem_unmap(p, bytes);
}

static inline void bench_put(const bench_target *t, void *to, const void *from, size_t bytes) {
    if (t->ops->device)
        t->ops->device->put(t->ops->context, to, from, bytes);
    else
        memcpy(to, from, bytes);
}

static inline void bench_wait(const bench_target *t) {
    if (t->ops->device) bench_check(t->ops->device->sync(t->ops->context));
}

/* A tensor of normally distributed values times `spread`, around `mean`; cols 0: a vector. A million
 * different values repeat: zeros would draw less power than a training step's values do. */
static inline tensor bench_tensor(const bench_target *t, dtype dt, int64_t rows, int64_t cols,
                                  float mean, float spread) {
    enum { PATTERN = 1 << 20 };
    tensor x = tensor_of(NULL, dt, cols ? 2 : 1, (int64_t[]){ rows, cols });
    int64_t n = tensor_count(&x), some = MIN(n, PATTERN);
    float *wide = mem_alloc((size_t)some * sizeof *wide);
    char *narrow = mem_alloc((size_t)some * dt_size(dt));
    rng_key key = rng_key_of(1, 2);
    for (int64_t i = 0; i < some; i++) wide[i] = mean + spread * rng_normal(key, (uint64_t)i);
    dt_from_f32(dt, wide, narrow, some);
    x.data = bench_map(t, tensor_bytes(&x));
    for (int64_t at = 0; at < n; at += some)
        bench_put(t, (char *)x.data + (size_t)at * dt_size(dt), narrow,
                  (size_t)MIN(some, n - at) * dt_size(dt));
    bench_wait(t);
    free(wide);
    free(narrow);
    return x;
}

static inline void bench_tensor_free(const bench_target *t, tensor *x) {
    if (x->data) bench_unmap(t, x->data, tensor_bytes(x));
    *x = (tensor){ 0 };
}

/* ---- time ------------------------------------------------------------------------------------ */

/* Seconds: CPU time where `p` has one thread, so that other work on a shared machine does not count. @param p NULL: a device
 * does the work */
static inline double bench_now(const pool *p) {
    struct timespec now;
    if (!p || pool_size(p) > 1) return time_now();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Seconds of `rounds` rounds over n calls whose `run` is set: by a device's events, or the clock. */
static inline double bench_rounds(const bench_target *t, const op_call *calls, int n, int rounds) {
    const device_table *d = t->ops->device;
    double start = time_now();
    if (d) d->mark(t->ops->context, QUEUE_COMPUTE, 0);
    for (int i = 0; i < rounds; i++)
        for (int k = 0; k < n; k++) ops_run(t->ops, &calls[k]);
    if (d) d->mark(t->ops->context, QUEUE_COMPUTE, 1);
    return d ? d->seconds_between(t->ops->context, 0, 1) : time_now() - start;
}

/* Seconds per call over n calls of one shape, which rotate through memory so that none finds its
 * operands in a cache: the best of five samples of at least 20 ms, after a warm-up in which a GPU
 * autotunes. Sets the calls' `run`. */
static inline double bench_calls_seconds(const bench_target *t, op_call *calls, int n) {
    enum { SAMPLES = 5 };
    static const double SAMPLE_SECONDS = 20e-3;
    op_run run = { .pool = t->pool, .step = t->step, .context = t->ops->context };
    run.workspace_bytes = ops_workspace(t->ops, &calls[0], t->pool ? pool_size(t->pool) : 1);
    if (run.workspace_bytes) run.workspace = bench_map(t, run.workspace_bytes);
    for (int k = 0; k < n; k++) calls[k].run = &run;
    bench_rounds(t, calls, n, 1);
    double once = bench_rounds(t, calls, n, 1), best = once;
    int rounds = (int)MAX(1, MIN(SAMPLE_SECONDS / MAX(once, 1e-9), 10000));
    for (int i = 0; i < SAMPLES; i++) best = MIN(best, bench_rounds(t, calls, n, rounds) / rounds);
    bench_wait(t);
    if (run.workspace) bench_unmap(t, run.workspace, run.workspace_bytes);
    for (int k = 0; k < n; k++) calls[k].run = NULL;
    return best / n;
}

static inline double bench_call_seconds(const bench_target *t, op_call *call) {
    return bench_calls_seconds(t, call, 1);
}

#endif
