/* One call on a backend: its tensors are copied into memory of the backend, each between guards; results
 * come back. The CPU backend's calls run the same way, so that what is checked is the same. */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

/* Around operands, bytes that are NaN in every float type: reading them shows in the results, writing
 * them is seen here. Under AddressSanitizer memory ends where the operand does, and it watches. */
#ifndef GUARD
#ifdef __SANITIZE_ADDRESS__
#define GUARD 0
#else
#define GUARD 1024
#endif
#endif
enum { POISON = 0xff };

/* ---- elements -------------------------------------------------------------------------------------- */
tensor encode(const double *v, dtype dt, int ndim, const int64_t *dim) {
    tensor x = tensor_of(NULL, dt, ndim, dim);
    int64_t n = tensor_count(&x);
    x.data = mem_alloc(tensor_bytes(&x) + 1);
    if (!v) {
        memset(x.data, POISON, tensor_bytes(&x));
    } else if (dt_is_float(dt)) {
        float *f = mem_alloc((size_t)n * sizeof *f + 1);
        for (int64_t i = 0; i < n; i++) f[i] = (float)v[i];
        dt_from_f32(dt, f, x.data, n);
        free(f);
    } else {
        for (int64_t i = 0; i < n; i++) {
            if (dt == DT_I32) ((int32_t *)x.data)[i] = (int32_t)v[i];
            if (dt == DT_I64) ((int64_t *)x.data)[i] = (int64_t)v[i];
            if (dt == DT_U8) ((uint8_t *)x.data)[i] = (uint8_t)v[i];
        }
    }
    return x;
}

double *decode(const tensor *x) {
    int64_t n = tensor_count(x);
    double *v = mem_alloc((size_t)n * sizeof *v + 1);
    if (dt_is_float(x->dt)) {
        float *f = mem_alloc((size_t)n * sizeof *f + 1);
        dt_to_f32(x->dt, x->data, f, n);
        for (int64_t i = 0; i < n; i++) v[i] = f[i];
        free(f);
        return v;
    }
    for (int64_t i = 0; i < n; i++)
        v[i] = x->dt == DT_I32   ? ((const int32_t *)x->data)[i]
               : x->dt == DT_I64 ? (double)((const int64_t *)x->data)[i]
                                 : ((const uint8_t *)x->data)[i];
    return v;
}

/* Returns the values that the kernel will see, rounded to the type they are passed in. */
void round_values(dtype dt, double *v, int64_t n) {
    if (!v || !dt_is_float(dt)) return;
    tensor x = encode(v, dt, 1, &n);
    double *rounded = decode(&x);
    memcpy(v, rounded, (size_t)n * sizeof *v);
    free(rounded);
    free(x.data);
}

/* ---- guarded memory ---------------------------------------------------------------------------------- */
typedef struct block {
    const op_backend *b;
    char *whole; /* owned: | GUARD | shift | bytes | GUARD | */
    size_t shift, bytes;
} block;

static void stop(err e) {
    if (!e) return;
    err_print(stderr, e, true);
    exit(2);
}

static void *block_data(const block *k) { return k->whole ? k->whole + GUARD + k->shift : NULL; }

static void put(const block *k, size_t at, const void *from, size_t bytes) {
    if (k->b->device)
        k->b->device->put(k->b->context, k->whole + at, from, bytes);
    else
        memcpy(k->whole + at, from, bytes);
}
static void get(const block *k, size_t at, void *to, size_t bytes) {
    if (k->b->device)
        stop(k->b->device->get(k->b->context, to, k->whole + at, bytes));
    else
        memcpy(to, k->whole + at, bytes);
}

/* @param from what it holds; NULL: poison. */
static block block_make(const op_backend *b, size_t bytes, size_t shift, const void *from) {
    block k = { .b = b, .bytes = bytes, .shift = shift };
    size_t all = bytes + shift + 2 * GUARD;
    void *p = NULL;
    if (b->device)
        stop(b->device->map(b->context, all ? all : 1, &p));
    else
        BUG_IF(posix_memalign(&p, 64, all ? all : 1));
    k.whole = p;
    char *image = mem_alloc(all + 1);
    memset(image, POISON, all);
    if (from) memcpy(image + GUARD + shift, from, bytes);
    put(&k, 0, image, all);
    free(image);
    return k;
}

static void block_free(block *k) {
    if (!k->whole) return;
    if (k->b->device)
        k->b->device->unmap(k->b->context, k->whole, k->bytes + k->shift + 2 * GUARD);
    else
        free(k->whole);
    *k = (block){ 0 };
}

static bool guards_intact(const block *k) {
    unsigned char bytes[2 * GUARD + 1];
    if (!k->whole || !GUARD) return true;
    get(k, k->shift, bytes, GUARD);
    get(k, GUARD + k->shift + k->bytes, bytes + GUARD, GUARD);
    for (int i = 0; i < 2 * GUARD; i++)
        if (bytes[i] != POISON) return false;
    return true;
}

/* ---- a call ------------------------------------------------------------------------------------------ */
typedef struct loaded {
    op_call call;
    op_run run;
    block in[OP_MAX_IN], out[OP_MAX_OUT], workspace, step;
} loaded;

/* A device's is kept from call to call, as in a program: it is large, and holds anything but zeros. */
static block workspace_make(const op_backend *b, size_t bytes) {
    static block kept;
    if (!b->device) return block_make(b, bytes, 0, NULL);
    if (kept.b != b || kept.bytes != bytes) {
        block_free(&kept);
        kept = block_make(b, bytes, 0, NULL);
    }
    return kept;
}

static void load(const op_backend *b, const op_call *c, const op_case *k, run_options o,
                 loaded *l) {
    *l = (loaded){ .call = *c };
    for (int i = 0; i < OP_MAX_IN; i++) {
        if (!c->in[i].data) continue;
        l->in[i] = block_make(b, tensor_bytes(&c->in[i]), o.shift, c->in[i].data);
        l->call.in[i].data = block_data(&l->in[i]);
    }
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (!c->out[i].data) continue;
        if (i || !o.in_place)
            l->out[i] = block_make(b, tensor_bytes(&c->out[i]), o.shift, c->out[i].data);
        l->call.out[i].data = block_data(i || !o.in_place ? &l->out[i] : &l->in[0]);
    }
    pool *p = b->device ? NULL : o.threads ? harness.pools[o.threads - 1] : harness.pool;
    size_t bytes = ops_workspace(b, &l->call, pool_size(p));
    l->workspace = workspace_make(b, bytes);
    l->step = block_make(b, sizeof k->step, 0, &k->step);
    l->run = (op_run){ .pool = p,
                       .workspace = block_data(&l->workspace),
                       .workspace_bytes = bytes,
                       .step = block_data(&l->step),
                       .layer = k->layer,
                       .context = b->context };
    l->call.run = &l->run;
}

static void unload(loaded *l) {
    for (int i = 0; i < OP_MAX_IN; i++) block_free(&l->in[i]);
    for (int i = 0; i < OP_MAX_OUT; i++) block_free(&l->out[i]);
    if (!l->workspace.b->device) block_free(&l->workspace);
    block_free(&l->step);
}

/* Results, and operands that are written; the others must be as they were. @return false: not so */
static bool fetch_results(const loaded *l, op_call *c, run_options o) {
    bool unchanged = true;
    for (int i = 0; i < OP_MAX_OUT; i++) {
        const block *k = i || !o.in_place ? &l->out[i] : &l->in[0];
        if (c->out[i].data) get(k, GUARD + k->shift, c->out[i].data, k->bytes);
    }
    for (int i = 0; i < OP_MAX_IN; i++) {
        const block *k = &l->in[i];
        if (!c->in[i].data || (!i && o.in_place)) continue;
        char *now = mem_alloc(k->bytes + 1);
        get(k, GUARD + k->shift, now, k->bytes);
        if (o.writes >> i & 1)
            memcpy(c->in[i].data, now, k->bytes);
        else
            unchanged &= !memcmp(c->in[i].data, now, k->bytes);
        free(now);
    }
    return unchanged;
}

static const char *refusal(err e) {
    static char text[200];
    snprintf(text, sizeof text, "%s; %s", err_message(e), err_remedy(e));
    err_free(e);
    return text;
}

/* Every other call of a device runs on a queue beside the one that its operands are put on: whatever an
 * op does outside of its call's queue comes too early or too late. */
static void choose_queue(const op_backend *b, op_run *run) {
    static int calls;
    if (!b->device || calls++ % 2 == 0) return;
    run->queue = QUEUE_UPDATE;
    b->device->join(b->context, QUEUE_UPDATE, QUEUE_COMPUTE);
    b->device->join(b->context, QUEUE_COPY_IN, QUEUE_COMPUTE); /* of state in host memory */
}

/* Flips the signs of all operands. */
static void negate_call(op_call *c) {
    for (int i = 0; i < OP_MAX_IN + OP_MAX_OUT; i++) {
        tensor *t = i < OP_MAX_IN ? &c->in[i] : &c->out[i - OP_MAX_IN];
        if (!t->data || !dt_is_float(t->dt)) continue;
        size_t size = dt_size(t->dt);
        for (size_t k = size - 1; k < tensor_bytes(t); k += size)
            ((char *)t->data)[k] ^= (char)0x80;
    }
}

/* Calls in a group must have the results of calls on their own, whatever is beside them: this one, another with opposite
 * signs, and this one again. */
static const char *run_in_group(const op_backend *b, op_call *c, const op_case *k, run_options o) {
    enum { N = 3 };
    loaded alone[N], together[N];
    op_call calls[N];
    const char *wrong = "";
    for (int i = 0; i < N; i++) {
        if (i) negate_call(c);
        load(b, c, k, o, &alone[i]);
        ops_run(b, &alone[i].call);
        stop(b->device->sync(b->context));
        load(b, c, k, o, &together[i]);
        calls[i] = together[i].call;
    }
    op_run run = together[0].run;
    size_t bytes = N * align_up(ops_workspace(b, c, 1), 256);
    block workspace = block_make(b, bytes, 0, NULL);
    run.workspace = block_data(&workspace), run.workspace_bytes = bytes;
    for (int i = 0; i < N; i++) calls[i].run = &run;
    ops_run_group(b, calls, N);
    stop(b->device->sync(b->context));
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < OP_MAX_OUT; j++) {
            const block *x = &alone[i].out[j], *y = &together[i].out[j];
            if (!x->whole) continue;
            char *want = mem_alloc(x->bytes + 1), *got = mem_alloc(x->bytes + 1);
            get(x, GUARD + x->shift, want, x->bytes);
            get(y, GUARD + y->shift, got, y->bytes);
            if (memcmp(want, got, x->bytes)) wrong = "has other results in a group";
            free(want);
            free(got);
        }
        unload(&alone[i]);
        unload(&together[i]);
    }
    if (!guards_intact(&workspace)) wrong = "wrote beyond the workspace of a group";
    block_free(&workspace);
    return wrong;
}

const char *run_call(const op_backend *b, op_call *c, const op_case *k, run_options o) {
    loaded l;
    const char *wrong = "";
    err e = ops_check(b, c);
    if (e) return refusal(e);
    if (b->impl[c->op]->run_group && !o.in_place) wrong = run_in_group(b, c, k, o);
    load(b, c, k, o, &l);
    choose_queue(b, &l.run);
    ops_run(b, &l.call);
    if (b->device) stop(b->device->sync(b->context));
    if (!fetch_results(&l, c, o)) wrong = "changed an operand";
    for (int i = 0; i < OP_MAX_IN; i++)
        if (!guards_intact(&l.in[i])) wrong = "wrote beyond an operand";
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (!guards_intact(&l.out[i])) wrong = "wrote beyond a result";
    if (!guards_intact(&l.workspace)) wrong = "wrote beyond its workspace";
    unload(&l);
    return wrong;
}
