/* Seconds of attention, forward and backward, for shapes that are read from standard input: for bench/gpu/attention.
 *
 *     bench_gpu_attention < SHAPES
 *
 * A line of SHAPES is NAME HEADS KV_HEADS DIM SEQ ROWS WINDOW DOCUMENT DROPOUT: bf16, ROWS sequences of SEQ tokens;
 * WINDOW keys that a query sees at most (0: all before it); documents of DOCUMENT tokens on average (0: one per row);
 * the probability of DROPOUT. A line of JSON is printed for each, in milliseconds; without dropout also the time of ring
 * attention's kernel over the same queries and keys. */
#include "bench.h"

#include "ops/op_table.h"

typedef struct shape {
    char name[64];
    int q, kv, dim, seq, rows, window, document;
    float dropout;
} shape;

typedef struct times {
    double forward, backward;
} times;

static tensor put_numbers(const bench_target *t, tensor x, void *numbers) {
    x.data = bench_map(t, tensor_bytes(&x));
    bench_put(t, x.data, numbers, tensor_bytes(&x));
    bench_wait(t);
    free(numbers);
    return x;
}

/* The first token of each token's document. Documents are between a quarter and seven quarters of the mean, the same
 * ones as in the peer's script. @return owned by the caller */
static int32_t *document_starts(const shape *s) {
    int64_t n = (int64_t)s->rows * s->seq, next = 0;
    int32_t *v = mem_alloc((size_t)n * sizeof *v), start = 0;
    for (int64_t i = 0, k = 0; i < n; i++) {
        if (i % s->seq == 0) start = (int32_t)i;
        if (s->document && i == next) {
            start = (int32_t)i;
            next += s->document / 4 + s->document * 3 / 2 * (k++ * 618 % 1000) / 1000;
        }
        v[i] = start;
    }
    return v;
}

static tensor make_starts(const bench_target *t, const shape *s) {
    int64_t n = (int64_t)s->rows * s->seq;
    return put_numbers(t, tensor_of(NULL, DT_I32, 1, (int64_t[]){ n }), document_starts(s));
}

/* First key and end of each query's. */
static tensor make_ranges(const bench_target *t, const shape *s) {
    int64_t n = (int64_t)s->rows * s->seq;
    int32_t *start = document_starts(s), *v = mem_alloc((size_t)(2 * n) * sizeof *v);
    for (int64_t i = 0; i < n; i++) {
        v[i] = s->window ? (int32_t)MAX(start[i], i - s->window + 1) : start[i];
        v[n + i] = (int32_t)i + 1;
    }
    free(start);
    return put_numbers(t, tensor_of(NULL, DT_I32, 2, (int64_t[]){ 2, n }), v);
}

static tensor make_ids(const bench_target *t, int64_t n) {
    int64_t *v = mem_alloc((size_t)n * sizeof *v);
    for (int64_t i = 0; i < n; i++) v[i] = i;
    return put_numbers(t, tensor_of(NULL, DT_I64, 1, (int64_t[]){ n }), v);
}

static op_attr attr_of(const shape *s) {
    op_attr a = { .dropout = { .p = s->dropout } };
    a.heads.q = s->q, a.heads.kv = s->kv, a.heads.dim = s->dim;
    a.heads.window = s->window, a.heads.seq = s->seq, a.heads.documents = s->document > 0;
    a.heads.scale = 1 / sqrtf((float)s->dim);
    return a;
}

static times time_pair(const bench_target *t, op_call *forward, op_call *backward) {
    times r;
    r.forward = bench_call_seconds(t, forward);
    r.backward = bench_call_seconds(t, backward);
    return r;
}

static times time_attention(const bench_target *t, const shape *s) {
    int64_t n = (int64_t)s->rows * s->seq, wide = (int64_t)s->q * s->dim,
            all = wide + 2 * (int64_t)s->kv * s->dim;
    tensor start = make_starts(t, s), id = { 0 };
    if (s->dropout > 0) id = make_ids(t, n);
    tensor qkv = bench_tensor(t, DT_BF16, n, all, 0, 1),
           o = bench_tensor(t, DT_BF16, n, wide, 0, 1);
    tensor dout = bench_tensor(t, DT_BF16, n, wide, 0, 1),
           dqkv = bench_tensor(t, DT_BF16, n, all, 0, 1),
           lse = bench_tensor(t, DT_F32, s->q, n, 0, 1);
    op_call f = { .op = OP_ATTENTION, .in = { qkv, start, id }, .out = { o, lse } };
    op_call b = { .op = OP_ATTENTION_BWD, .in = { dout, qkv, o, lse, start, id }, .out = { dqkv } };
    f.attr = b.attr = attr_of(s);
    times r = time_pair(t, &f, &b);
    tensor *made[] = { &start, &id, &qkv, &o, &dout, &dqkv, &lse };
    for (size_t i = 0; i < COUNT_OF(made); i++) bench_tensor_free(t, made[i]);
    return r;
}

/* The block of a ring's first step: a query sees the keys up to its own. o and the gradients are sums in fp32. */
static times time_block(const bench_target *t, const shape *s) {
    int64_t n = (int64_t)s->rows * s->seq, wide = (int64_t)s->q * s->dim,
            keys = 2 * (int64_t)s->kv * s->dim;
    tensor range = make_ranges(t, s);
    tensor q = bench_tensor(t, DT_BF16, n, wide, 0, 1),
           kv = bench_tensor(t, DT_BF16, n, keys, 0, 1);
    tensor o = bench_tensor(t, DT_F32, n, wide, 0, 1),
           dout = bench_tensor(t, DT_BF16, n, wide, 0, 1);
    tensor dq = bench_tensor(t, DT_F32, n, wide, 0, 1),
           dkv = bench_tensor(t, DT_F32, n, keys, 0, 1);
    tensor lse = bench_tensor(t, DT_F32, s->q, n, 0, 1);
    tensor none = { 0 };
    op_call f = { .op = OP_ATTENTION_BLOCK, .in = { none, q, kv, range }, .out = { o, lse } };
    op_call b = { .op = OP_ATTENTION_BLOCK_BWD,
                  .in = { dout, q, kv, o, lse, range },
                  .out = { dq, dkv } };
    f.attr = b.attr = attr_of(s);
    times r = time_pair(t, &f, &b);
    tensor *made[] = { &range, &q, &kv, &o, &dout, &dq, &dkv, &lse };
    for (size_t i = 0; i < COUNT_OF(made); i++) bench_tensor_free(t, made[i]);
    return r;
}

int main(void) {
    char line[256];
    op_backend *gpu;
    bench_check(ops_cuda_open(0, 0, &gpu));
    bench_target t = { .ops = gpu };
    void *step = bench_map(&t, sizeof(step_block));
    t.step = step;
    while (fgets(line, sizeof line, stdin)) {
        shape s;
        if (sscanf(line, "%63s %d %d %d %d %d %d %d %f", s.name, &s.q, &s.kv, &s.dim, &s.seq,
                   &s.rows, &s.window, &s.document, &s.dropout) != 9)
            bench_check(ERR("not a shape: %s", line));
        times own = time_attention(&t, &s);
        printf("{\"name\": \"%s\", \"forward\": %.4f, \"backward\": %.4f", s.name,
               1e3 * own.forward, 1e3 * own.backward);
        if (!(s.dropout > 0)) {
            times block = time_block(&t, &s);
            printf(", \"block_forward\": %.4f, \"block_backward\": %.4f", 1e3 * block.forward,
                   1e3 * block.backward);
        }
        puts("}");
        fflush(stdout);
    }
    bench_unmap(&t, step, sizeof(step_block));
    ops_cuda_close(gpu);
    return 0;
}
