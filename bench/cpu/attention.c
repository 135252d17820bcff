/* Speed of attention on the CPU: forward, backward, and decoding from a cache.
 *
 *     bench_cpu_attention [THREADS [ISA]]
 *
 * Where a line shows dropout, a mask is drawn as well. GFLOP/s count the pairs that attend, not the
 * square: 4 N_pairs dim flops per head forward, 10 backward. */
#include "bench.h"
#include "ops/op_table.h"

typedef struct setting {
    int batch, seq, q, kv, dim;
    float dropout;
} setting;
static const setting settings[] = {
    { 4, 256, 12, 12, 64 }, { 16, 256, 6, 6, 64 },       { 1, 2048, 8, 8, 128 },
    { 1, 2048, 16, 4, 64 }, { 16, 256, 6, 6, 64, 0.2f },
};
static const dtype dtypes[] = { DT_F32, DT_BF16, DT_F16 };

static tensor random_values(const bench_target *t, dtype dt, int64_t rows, int64_t cols) {
    return bench_tensor(t, dt, rows, cols, 0, 1);
}

static op_attr attr_of(const setting *s) {
    op_attr a = { 0 };
    a.heads.q = s->q;
    a.heads.kv = s->kv;
    a.heads.dim = s->dim;
    a.heads.scale = 1.0f / sqrtf((float)s->dim);
    a.dropout.p = s->dropout;
    return a;
}

static void bench_training(const bench_target *t, const setting *s, dtype dt) {
    int64_t n = (int64_t)s->batch * s->seq, width = (int64_t)s->q * s->dim;
    int64_t cols = (int64_t)(s->q + 2 * s->kv) * s->dim;
    tensor start = tensor_of(bench_map(t, (size_t)n * 4), DT_I32, 1, (int64_t[]){ n });
    tensor id = tensor_of(bench_map(t, (size_t)n * 8), DT_I64, 1, (int64_t[]){ n });
    for (int64_t i = 0; i < n; i++) {
        ((int32_t *)start.data)[i] = (int32_t)(i - i % s->seq);
        ((int64_t *)id.data)[i] = i;
    }
    tensor qkv = random_values(t, dt, n, cols), dqkv = random_values(t, dt, n, cols);
    tensor o = random_values(t, dt, n, width), dout = random_values(t, dt, n, width);
    tensor lse = random_values(t, DT_F32, s->q, n);
    op_call fwd = {
        .op = OP_ATTENTION, .attr = attr_of(s), .in = { qkv, start, id }, .out = { o, lse }
    };
    op_call bwd = { .op = OP_ATTENTION_BWD,
                    .attr = attr_of(s),
                    .in = { dout, qkv, o, lse, start, id },
                    .out = { dqkv } };
    double pairs = (double)s->batch * s->q * s->seq * (s->seq + 1) / 2;
    double f = bench_call_seconds(t, &fwd), b = bench_call_seconds(t, &bwd);
    printf("B%-2d T%-4d H%d/%-2d hd%-3d %-5s%s forward %7.2f ms %6.1f GFLOP/s   backward %7.2f ms "
           "%6.1f GFLOP/s\n",
           s->batch, s->seq, s->q, s->kv, s->dim, dt_name(dt), s->dropout > 0 ? " dropout" : "",
           f * 1e3, 4 * pairs * s->dim / f * 1e-9, b * 1e3, 10 * pairs * s->dim / b * 1e-9);
    tensor *all[] = { &start, &id, &qkv, &dqkv, &dout, &o, &lse };
    for (size_t i = 0; i < COUNT_OF(all); i++) bench_tensor_free(t, all[i]);
}

static void bench_cached(const bench_target *t, int tokens, dtype dt) {
    const setting s = { 1, 2048, 16, 4, 64 };
    tensor qkv = random_values(t, dt, tokens, (s.q + 2 * s.kv) * s.dim);
    tensor cache = random_values(t, dt, s.seq, 2 * s.kv * s.dim);
    tensor o = random_values(t, dt, tokens, s.q * s.dim);
    tensor pos = tensor_of(bench_map(t, (size_t)tokens * 4), DT_I32, 1, (int64_t[]){ tokens });
    tensor start = tensor_of(bench_map(t, (size_t)tokens * 4), DT_I32, 1, (int64_t[]){ tokens });
    for (int i = 0; i < tokens; i++) {
        ((int32_t *)pos.data)[i] = s.seq - tokens + i;
        ((int32_t *)start.data)[i] = 0;
    }
    op_call c = { .op = OP_ATTENTION_CACHED,
                  .attr = attr_of(&s),
                  .in = { qkv, cache, pos, start },
                  .out = { o } };
    double seconds = bench_call_seconds(t, &c);
    printf("cache of %d, H%d/%d hd%d, %2d tokens %-5s %8.3f ms  %5.1f GB/s of cache  %6.1f "
           "GFLOP/s\n",
           s.seq, s.q, s.kv, s.dim, tokens, dt_name(dt), seconds * 1e3,
           (double)tensor_bytes(&cache) / seconds * 1e-9,
           4.0 * tokens * s.seq * s.q * s.dim / seconds * 1e-9);
    tensor *all[] = { &qkv, &cache, &o, &pos, &start };
    for (size_t i = 0; i < COUNT_OF(all); i++) bench_tensor_free(t, all[i]);
}

int main(int argc, char **argv) {
    static const step_block step = { .dropout = { { 1, 2 } } };
    bench_target t = { .ops = ops_cpu(argc > 2 ? argv[2] : OPS_ISA_BEST), .step = &step };
    if (!t.ops) bench_check(ERR("this processor does not have %s", argv[2]));
    t.pool = pool_new(argc > 1 ? atoi(argv[1]) : 0);
    printf("%s, %d threads\n", t.ops->name, pool_size(t.pool));
    for (size_t i = 0; i < COUNT_OF(settings) * COUNT_OF(dtypes); i++)
        bench_training(&t, &settings[i / COUNT_OF(dtypes)], dtypes[i % COUNT_OF(dtypes)]);
    for (size_t i = 0; i < 2 * COUNT_OF(dtypes); i++)
        bench_cached(&t, i < COUNT_OF(dtypes) ? 1 : 64, dtypes[i % COUNT_OF(dtypes)]);
    pool_free(t.pool);
    return 0;
}
