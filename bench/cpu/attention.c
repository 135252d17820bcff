/* Speed of attention: forward, backward, and decoding from a cache.
 *
 *     bench_cpu_attention [threads [isa]]
 *
 * GFLOP/s count the pairs that attend, not the square: 4 N_pairs dim flops a head forward, 10
 * backward. Each figure is the best of several runs, since the machine may be shared. */
#include "ops/ops.h"

#include <math.h>
#include <stdlib.h>

typedef struct setting {
    int batch, seq, q, kv, dim;
} setting;
static const setting settings[] = {
    { 4, 256, 12, 12, 64 },
    { 16, 256, 6, 6, 64 },
    { 1, 2048, 8, 8, 128 },
    { 1, 2048, 16, 4, 64 },
};
static const dtype dtypes[] = { DT_F32, DT_BF16, DT_F16 };

typedef struct room {
    const op_backend *backend;
    pool *pool;
    op_run run;
} room;

/* Memory as a run has it: pages of the largest size there is. */
static void *big(size_t bytes) {
    void *p = NULL;
    err e = mem_map(bytes, &p);
    if (e) {
        err_print(stderr, e, true);
        exit(1);
    }
    return p;
}

/* Random values of unit size. */
static tensor values(dtype dt, int64_t rows, int64_t cols) {
    tensor t = tensor_of(NULL, dt, 2, (int64_t[]){ rows, cols });
    t.data = big(tensor_bytes(&t));
    rng_key key = rng_key_of(1, (uint64_t)cols);
    for (int64_t i = 0; i < rows * cols; i++) {
        float x = rng_normal(key, (uint64_t)i);
        dt_from_f32(dt, &x, (char *)t.data + (size_t)i * dt_size(dt), 1);
    }
    return t;
}

/* @return seconds of the fastest of the runs that fit half a second, three at least. */
static double best_time(room *r, op_call *c) {
    r->run = (op_run){ .pool = r->pool };
    r->run.workspace_bytes = ops_workspace(r->backend, c, pool_size(r->pool));
    r->run.workspace = big(r->run.workspace_bytes);
    c->run = &r->run;
    double best = INFINITY, begin = time_now();
    ops_run(r->backend, c);
    for (int i = 0; i < 3 || time_now() - begin < 0.5; i++) {
        double t0 = time_now();
        ops_run(r->backend, c);
        best = fmin(best, time_now() - t0);
    }
    mem_unmap(r->run.workspace, r->run.workspace_bytes);
    return best;
}

static op_attr attr_of(const setting *s) {
    op_attr a = { 0 };
    a.heads.q = s->q;
    a.heads.kv = s->kv;
    a.heads.dim = s->dim;
    a.heads.scale = 1.0f / sqrtf((float)s->dim);
    return a;
}

static void bench_training(room *r, const setting *s, dtype dt) {
    int64_t n = (int64_t)s->batch * s->seq, width = (int64_t)s->q * s->dim;
    int64_t cols = (int64_t)(s->q + 2 * s->kv) * s->dim;
    tensor start = tensor_of(big((size_t)n * 4), DT_I32, 1, (int64_t[]){ n });
    for (int64_t i = 0; i < n; i++) ((int32_t *)start.data)[i] = (int32_t)(i - i % s->seq);
    tensor qkv = values(dt, n, cols), dqkv = values(dt, n, cols), dout = values(dt, n, width);
    tensor o = values(dt, n, width), lse = values(DT_F32, s->q, n);
    op_call fwd = {
        .op = OP_ATTENTION, .attr = attr_of(s), .in = { qkv, start }, .out = { o, lse }
    };
    op_call bwd = { .op = OP_ATTENTION_BWD,
                    .attr = attr_of(s),
                    .in = { dout, qkv, o, lse, start },
                    .out = { dqkv } };
    double pairs = (double)s->batch * s->q * s->seq * (s->seq + 1) / 2;
    double f = best_time(r, &fwd), b = best_time(r, &bwd);
    printf("B%-2d T%-4d H%d/%-2d hd%-3d %-5s forward %7.2f ms %6.1f GFLOP/s   backward %7.2f ms "
           "%6.1f GFLOP/s\n",
           s->batch, s->seq, s->q, s->kv, s->dim, dt_name(dt), f * 1e3,
           4 * pairs * s->dim / f * 1e-9, b * 1e3, 10 * pairs * s->dim / b * 1e-9);
    tensor *all[] = { &start, &qkv, &dqkv, &dout, &o, &lse };
    for (size_t i = 0; i < COUNT_OF(all); i++) mem_unmap(all[i]->data, tensor_bytes(all[i]));
}

static void bench_cached(room *r, int tokens, dtype dt) {
    const setting s = { 1, 2048, 16, 4, 64 };
    tensor qkv = values(dt, tokens, (s.q + 2 * s.kv) * s.dim);
    tensor cache = values(dt, s.seq, 2 * s.kv * s.dim), o = values(dt, tokens, s.q * s.dim);
    tensor pos = tensor_of(big((size_t)tokens * 4), DT_I32, 1, (int64_t[]){ tokens });
    for (int i = 0; i < tokens; i++) ((int32_t *)pos.data)[i] = s.seq - tokens + i;
    op_call c = {
        .op = OP_ATTENTION_CACHED, .attr = attr_of(&s), .in = { qkv, cache, pos }, .out = { o }
    };
    double t = best_time(r, &c);
    printf("cache of %d, H%d/%d hd%d, %2d tokens %-5s %8.3f ms  %5.1f GB/s of cache  %6.1f "
           "GFLOP/s\n",
           s.seq, s.q, s.kv, s.dim, tokens, dt_name(dt), t * 1e3,
           (double)tensor_bytes(&cache) / t * 1e-9, 4.0 * tokens * s.seq * s.q * s.dim / t * 1e-9);
    tensor *all[] = { &qkv, &cache, &o, &pos };
    for (size_t i = 0; i < COUNT_OF(all); i++) mem_unmap(all[i]->data, tensor_bytes(all[i]));
}

int main(int argc, char **argv) {
    room r = { .backend = ops_cpu(argc > 2 ? argv[2] : OPS_ISA_BEST) };
    if (!r.backend) {
        fprintf(stderr, "this processor does not have %s\n", argv[2]);
        return 1;
    }
    r.pool = pool_new(argc > 1 ? atoi(argv[1]) : 0);
    printf("%s, %d threads\n", r.backend->name, pool_size(r.pool));
    for (size_t i = 0; i < COUNT_OF(settings) * COUNT_OF(dtypes); i++)
        bench_training(&r, &settings[i / COUNT_OF(dtypes)], dtypes[i % COUNT_OF(dtypes)]);
    for (size_t i = 0; i < 2 * COUNT_OF(dtypes); i++)
        bench_cached(&r, i < COUNT_OF(dtypes) ? 1 : 64, dtypes[i % COUNT_OF(dtypes)]);
    pool_free(r.pool);
    return 0;
}
