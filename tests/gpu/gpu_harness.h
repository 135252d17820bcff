/* One call on both backends: operands, the run, the difference. Included once, by gpu_ops.c. */
#ifndef INGOT_GPU_HARNESS_H
#define INGOT_GPU_HARNESS_H

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ops/block8.h"
#include "ops/op_table.h"

static struct {
    const op_backend *cpu;
    op_backend *gpu;
    pool *pool;
    uint64_t draws;
    rng_key key;
    int passed, failed;
    double worst; /* of the op at hand, as a share of what is allowed */
    char worst_case[160];
    step_block step, *step_gpu;
    size_t shift;  /* bytes by which operands lie off their alignment on the GPU */
    bool in_place; /* out[0] lies where in[0] does */
    int64_t most;  /* elements of a call's operands; larger calls are left out. 0: no limit */
    void *work;    /* of all calls, so that it holds anything but zeros */
    size_t work_bytes;
} t;

static void stop(err e) {
    if (!e) return;
    err_print(stderr, e, true);
    exit(1);
}

/* ---- tensors ------------------------------------------------------------------------------------ */
static tensor make(dtype dt, int ndim, ...) {
    int64_t dim[TENSOR_MAX_DIM] = { 0 };
    va_list list;
    va_start(list, ndim);
    for (int i = 0; i < ndim; i++) dim[i] = va_arg(list, int64_t);
    va_end(list);
    tensor x = tensor_of(NULL, dt, ndim, dim);
    x.data = mem_alloc(tensor_bytes(&x) + 64);
    return x;
}

static float draw(void) { return rng_normal(t.key, t.draws++); }

static tensor random_of(dtype dt, int64_t rows, int64_t cols, float mean, float spread) {
    tensor x = cols ? make(dt, 2, rows, cols) : make(dt, 1, rows);
    int64_t n = tensor_count(&x);
    int64_t fresh = t.most ? MIN(n, 4099) : n; /* to draw is slow; a prime, so that rows differ */
    float *v = mem_alloc((size_t)n * sizeof *v);
    for (int64_t i = 0; i < n; i++) v[i] = i < fresh ? mean + spread * draw() : v[i - fresh];
    dt_from_f32(dt, v, x.data, n);
    free(v);
    return x;
}

static tensor ints_below(int64_t n, int64_t below) {
    tensor x = make(DT_I32, 1, n);
    for (int64_t i = 0; i < n; i++)
        ((int32_t *)x.data)[i] = (int32_t)rng_below(t.key, t.draws++, (uint64_t)below);
    return x;
}

/* Rows of `seq` tokens, each cut into documents at random places, `length` tokens apart on average;
 * 0: not cut. */
static tensor starts(int64_t n, int64_t seq, int length) {
    tensor x = make(DT_I32, 1, n);
    int32_t *start = x.data;
    for (int64_t i = 0; i < n; i++) {
        bool fresh = i % seq == 0 || (length && rng_below(t.key, t.draws++, (uint64_t)length) == 0);
        start[i] = fresh ? (int32_t)i : start[i - 1];
    }
    return x;
}

/* ---- one call on both ------------------------------------------------------------------------------ */
/* Operands lie between bytes that are NaN in every type: who reads them shows, and so does who
 * writes them. Where memory is AddressSanitizer's (tests/emulate), there are none but its own. */
#ifndef GUARD
#define GUARD 1024
#endif

static void fill_gpu(void *p, size_t bytes) {
    char *all = mem_alloc(bytes);
    memset(all, 0xff, bytes);
    t.gpu->device->put(t.gpu->context, p, all, bytes);
    free(all);
}

static void *to_gpu(const tensor *x) {
    if (!x->data) return NULL;
    void *p = NULL;
    size_t bytes = tensor_bytes(x);
    stop(t.gpu->device->map(t.gpu->context, bytes + t.shift + 2 * GUARD, &p));
    fill_gpu(p, GUARD + t.shift);
    p = (char *)p + GUARD + t.shift;
    t.gpu->device->put(t.gpu->context, p, x->data, bytes);
    fill_gpu((char *)p + bytes, GUARD);
    return p;
}

static bool guarded(const void *p) {
    unsigned char bytes[GUARD];
    stop(t.gpu->device->get(t.gpu->context, bytes, p, GUARD));
    for (int i = 0; i < GUARD; i++)
        if (bytes[i] != 0xff) return false;
    return true;
}

/* @return false when something was written around it. */
static bool drop(void *p, const tensor *x) {
    if (!p) return true;
    bool fine = guarded((char *)p - GUARD) && guarded((char *)p + tensor_bytes(x));
    t.gpu->device->unmap(t.gpu->context, (char *)p - t.shift - GUARD, 0);
    return fine;
}

static void need_work(size_t bytes) {
    if (bytes == t.work_bytes) return;
    if (t.work) t.gpu->device->unmap(t.gpu->context, t.work, 0);
    stop(t.gpu->device->map(t.gpu->context, bytes + GUARD, &t.work));
    t.work_bytes = bytes;
    fill_gpu(t.work, bytes + GUARD);
}

static void put_step(void) {
    t.gpu->device->put(t.gpu->context, t.step_gpu, &t.step, sizeof t.step);
}

/* The outputs of both sides begin the same: poisoned, or what the call adds to. */
static void poison(op_call *c, bool keep) {
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (c->out[i].data && !keep) memset(c->out[i].data, 0xff, tensor_bytes(&c->out[i]));
}

static double difference(const tensor *a, const tensor *b) {
    int64_t n = tensor_count(a);
    if (!dt_is_float(a->dt)) return memcmp(a->data, b->data, tensor_bytes(a)) ? 1 : 0;
    float *x = mem_alloc((size_t)n * sizeof *x), *y = mem_alloc((size_t)n * sizeof *y);
    double d = 0, size = 0;
    dt_to_f32(a->dt, a->data, x, n);
    dt_to_f32(b->dt, b->data, y, n);
    for (int64_t i = 0; i < n; i++) {
        d += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        size += (double)y[i] * y[i];
    }
    free(x);
    free(y);
    if (isnan(d) || isnan(size)) return 1e9;
    return size > 0 ? sqrt(d / size) : sqrt(d);
}

static double allowed(dtype dt, double fp32) {
    return dt == DT_BF16 ? 6e-3 : dt == DT_F16 ? 1e-3 : fp32;
}

static void note(const op_call *c, int out, double d, double most) {
    if (d / most <= t.worst && t.worst_case[0]) return;
    t.worst = d / most;
    const tensor *x = &c->out[out];
    snprintf(t.worst_case, sizeof t.worst_case,
             "%s out %d %s [%lld, %lld] in %s: %.2e, allowed %.0e", op_name(c->op), out,
             dt_name(x->dt), (long long)x->dim[0], (long long)x->dim[1], dt_name(c->in[0].dt), d,
             most);
}

static bool quantizes(op_code op) {
    return op == OP_QUANTIZE || op == OP_QUANTIZE_SWIGLU || op == OP_QUANTIZE_SWIGLU_BWD ||
           op == OP_QUANTIZE_GELU || op == OP_QUANTIZE_GELU_BWD;
}

/* Runs the call on the GPU, on copies of its tensors; results replace c's outputs. */
static void run_gpu(op_call *c) {
    op_call g = *c;
    size_t bytes = ops_workspace(t.gpu, c, 1);
    for (int i = 0; i < OP_MAX_IN; i++) g.in[i].data = to_gpu(&c->in[i]);
    for (int i = 0; i < OP_MAX_OUT; i++)
        g.out[i].data = i == 0 && t.in_place ? g.in[0].data : to_gpu(&c->out[i]);
    need_work(bytes);
    op_run run = { .workspace = t.work,
                   .workspace_bytes = bytes,
                   .step = t.step_gpu,
                   .layer = 3,
                   .context = t.gpu->context };
    g.run = &run;
    ops_run(t.gpu, &g);
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (c->out[i].data)
            stop(t.gpu->device->get(t.gpu->context, c->out[i].data, g.out[i].data,
                                    tensor_bytes(&c->out[i])));
    if (quantizes(c->op)) /* its row is written too */
        stop(t.gpu->device->get(t.gpu->context, c->in[1].data, g.in[1].data,
                                tensor_bytes(&c->in[1])));
    stop(t.gpu->device->sync(t.gpu->context));
    bool fine = !t.work || guarded((char *)t.work + t.work_bytes);
    for (int i = 0; i < OP_MAX_IN; i++) fine &= drop(g.in[i].data, &c->in[i]);
    for (int i = t.in_place; i < OP_MAX_OUT; i++) fine &= drop(g.out[i].data, &c->out[i]);
    if (!fine) note(c, 0, 1e9, 1); /* wrote outside its operands */
}

static void run_cpu(op_call *c) {
    size_t bytes = ops_workspace(t.cpu, c, pool_size(t.pool));
    op_run run = { .pool = t.pool,
                   .workspace = mem_alloc(bytes + 64),
                   .workspace_bytes = bytes,
                   .step = &t.step,
                   .layer = 3 };
    c->run = &run;
    ops_run(t.cpu, c);
    c->run = NULL;
    free(run.workspace);
}

static op_call copy_outputs(const op_call *c) {
    op_call g = *c;
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (!c->out[i].data) continue;
        g.out[i].data = mem_alloc(tensor_bytes(&c->out[i]) + 64);
        memcpy(g.out[i].data, c->out[i].data, tensor_bytes(&c->out[i]));
    }
    return g;
}

static bool too_large(const op_call *c) {
    int64_t n = 0;
    for (int i = 0; i < OP_MAX_IN; i++) n += c->in[i].data ? tensor_count(&c->in[i]) : 0;
    for (int i = 0; i < OP_MAX_OUT; i++) n += c->out[i].data ? tensor_count(&c->out[i]) : 0;
    return t.most && n > t.most;
}

/* @param keep outputs are inputs too. @param fp32 what fp32 outputs may differ by. */
static void compare(op_call *c, bool keep, double fp32) {
    if (too_large(c)) return;
    poison(c, keep || c->accumulate);
    op_call g = copy_outputs(c);
    run_cpu(c);
    run_gpu(&g);
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (!c->out[i].data) continue;
        note(c, i, difference(&g.out[i], &c->out[i]), allowed(c->out[i].dt, fp32));
        free(g.out[i].data);
    }
}

/* Of two tensors of one type and shape. */
static void compare_in_place(op_call *c, double fp32) {
    t.in_place = true;
    compare(c, false, fp32);
    t.in_place = false;
}

static void release(op_call *c) {
    for (int i = 0; i < OP_MAX_IN; i++) free(c->in[i].data);
    for (int i = 0; i < OP_MAX_OUT; i++) free(c->out[i].data);
}

/* ---- the ops ---------------------------------------------------------------------------------------- */
static const dtype TYPES[] = { DT_F32, DT_BF16, DT_F16 };
enum { N_TYPES = 3 };
#define EACH_TYPE(dt)                                                                              \
    for (int ti_ = 0, dt = TYPES[0]; ti_ < N_TYPES; ti_++, dt = TYPES[ti_ % N_TYPES])

static const struct {
    int64_t n, d;
} SHAPES[] = { { 1, 8 },    { 3, 20 },   { 17, 64 },   { 33, 768 },
               { 8, 1600 }, { 5, 2048 }, { 130, 129 }, { 4, 5120 } };

#endif
