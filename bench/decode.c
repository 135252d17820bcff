/* How fast text is continued, token by token, and at what share of memory's speed: a step of decoding reads every weight
 * but the token table, and the keys and values of the tokens before.
 *
 *     bench_decode PRESET [TOKENS] [--cuda] [--dtype=fp32|bf16] [--prompt=N] [--sequences=N] [--temperature=X]
 *                  [--json] [options of a model]
 *     bench_decode PRESET --gguf=FILE [--dtype=fp32|bf16] [options of a model]
 *
 * Weights are random, so that a preset needs no checkpoint. Seconds are those from one step to the next, as `ingot sample`
 * takes them: the logits are copied to the host, which chooses the token, the likeliest unless there is a temperature. Prints their median over
 * TOKENS (64), the bytes of a step, and the share of the speed at which the same threads, or the GPU, read memory (on a GPU, copy it), which takes
 * turns with the steps. With one thread, seconds are CPU time. --json: these as a line of JSON. --gguf writes the same
 * weights as a file of llama.cpp, whose tokens are bytes and unused ids, instead of measuring.
 */
#include "bench.h"

#include "checkpoint/checkpoint.h"
#include "eval/eval.h"
#include "train/train.h"

typedef struct flags {
    bool cuda, json;
    const char *dtype, *prompt, *sequences, *temperature, *gguf;
} flags;

static int64_t count_of(const char *text, int64_t otherwise, int64_t most) {
    int64_t n = text ? atoll(text) : otherwise;
    if (n < 1 || n > most) bench_check(ERR("a count is from 1 to %lld", (long long)most));
    return n;
}

/* Bytes that a step reads of weights, of an expert's those of a token. */
static double weight_bytes(const model_config *c, dtype dt) {
    int64_t n = c->experts ? model_count_active(c) : model_count(c);
    if (!c->tied) n -= c->vocab * c->dim;
    return (double)n * (double)dt_size(dt);
}

/* ---- the speed of memory ------------------------------------------------------------------- */
enum { READ_BYTES = 256 << 20, READ_PART = 1 << 20, READ_EVERY = 8 };

static void read_part(void *ctx, int64_t i, int worker) {
    const uint64_t *at = (const uint64_t *)((const char *)ctx + i * READ_PART);
    uint64_t sum[16] = { 0 };
    (void)worker;
    for (size_t k = 0; k < READ_PART / sizeof *at; k += 16)
        for (int j = 0; j < 16; j++) sum[j] += at[k + (size_t)j];
    for (int j = 1; j < 16; j++) sum[0] += sum[j];
    volatile uint64_t kept = sum[0];
    (void)kept;
}

/* @return seconds per byte that the threads read. */
static double read_seconds(const bench_target *t, char *memory) {
    double from = bench_now(t->pool);
    pool_run(t->pool, READ_BYTES / READ_PART, read_part, memory);
    return (bench_now(t->pool) - from) / READ_BYTES;
}

/* ---- decoding ------------------------------------------------------------------------------ */
static bool keep_on(void *ctx, int32_t token) {
    (void)ctx;
    (void)token;
    return true;
}

static void add_sequences(generation *d, const model_config *c, const sample_options *o,
                          int64_t prompt, int64_t sequences) {
    int32_t *ids = mem_alloc((size_t)prompt * sizeof *ids);
    for (int64_t s = 0; s < sequences; s++) { /* that have nothing in common */
        for (int64_t i = 0; i < prompt; i++)
            ids[i] =
                (int32_t)rng_below(rng_key_of(5, (uint64_t)s), (uint64_t)i, (uint64_t)c->vocab);
        bench_check(generation_add(d, NULL, ids, prompt, o, (decode_sink){ .emit = keep_on }));
    }
    free(ids);
}

/* Median seconds. */
typedef struct decode_speed {
    double step; /* of a step, in which every sequence gets a token */
    double read; /* per byte of memory */
} decode_speed;

/* Steps and reads of memory take turns, so that both see the same machine. */
static decode_speed decode(generation *d, const bench_target *t, int64_t tokens) {
    double *steps = mem_alloc((size_t)tokens * sizeof *steps);
    double *reads = mem_alloc((size_t)tokens * sizeof *reads);
    char *memory = t->ops->device ? NULL : bench_map(t, READ_BYTES);
    const pool *clock = t->ops->device ? NULL : t->pool;
    int n = 0;
    if (memory) memset(memory, 1, READ_BYTES);
    bench_check(generation_step(d)); /* tunes GEMMs */
    for (int64_t i = 0; i < tokens; i++) {
        double from = bench_now(clock);
        bench_check(generation_step(d));
        steps[i] = bench_now(clock) - from;
        if (memory && i % READ_EVERY == 0) reads[n++] = read_seconds(t, memory);
    }
    decode_speed speed = { .step = bench_median(steps, (int)tokens) };
    if (memory) {
        speed.read = bench_median(reads, n);
        bench_unmap(t, memory, READ_BYTES);
    } else {
        ops_gpu_speed s;
        bench_check(ops_cuda_measure(t->ops, &s));
        speed.read = 1 / s.copy;
    }
    free(reads);
    free(steps);
    return speed;
}

/* ---- the same weights for llama.cpp -------------------------------------------------------- */
typedef struct weight_source {
    const model *m;
    const plan *p;
} weight_source;

static err get_weights(void *ctx, int i, float *values) {
    const weight_source *s = ctx;
    return model_weights_get(s->m, s->p, i, values);
}

static void write_gguf(const char *path, const model *m, const plan *p, dtype dt) {
    weight_source s = { m, p };
    hf_export x = { .m = m, .get = get_weights, .ctx = &s };
    tokenizer *bytes;
    bench_check(tokenizer_open("bytes", NULL, &bytes));
    x.tok = bytes;
    bench_check(gguf_family_for(model_conf(m), NULL, &x.family));
    bench_check(gguf_export_file(path, &x, dt == DT_F32 ? GGUF_F32 : GGUF_BF16));
    tokenizer_free(bytes);
}

int main(int argc, char **argv) {
    flags f = { 0 };
    const config_flag known[] = { { "--cuda", &f.cuda, NULL },
                                  { "--json", &f.json, NULL },
                                  { "--gguf", NULL, &f.gguf },
                                  { "--dtype", NULL, &f.dtype },
                                  { "--prompt", NULL, &f.prompt },
                                  { "--sequences", NULL, &f.sequences },
                                  { "--temperature", NULL, &f.temperature } };
    if (argc < 2) {
        fprintf(
            stderr,
            "usage: bench_decode PRESET [TOKENS] [--cuda] [--dtype=fp32|bf16] [options of a model]\n");
        return 2;
    }
    bool counted = argc > 2 && argv[2][0] != '-';
    int64_t tokens = count_of(counted ? argv[2] : NULL, 64, 1 << 16);
    config c;
    model_config mc;
    config_init(&c);
    bench_check(config_set(&c, "model.preset", argv[1]));
    bench_check(
        config_from_args(&c, argc - 1 - counted, argv + 1 + counted, known, (int)COUNT_OF(known)));
    int64_t prompt = count_of(f.prompt, 64, 1 << 20),
            sequences = count_of(f.sequences, 1, GENERATOR_SLOTS);
    dtype dt = dt_from_name(f.dtype ? f.dtype : "bf16");
    if (dt != DT_F32 && dt != DT_BF16) bench_check(ERR("--dtype: expected fp32 or bf16"));
    c.device.kind = f.cuda ? OPS_CUDA : OPS_CPU;
    bench_check(model_from_config(&c, &mc));
    mc.max_seq = MAX(mc.max_seq, prompt + tokens + 2);

    const op_backend *ops;
    model *m;
    generator g;
    model_layout l = { .dt = dt };
    bench_check(train_device(&c, 0, &ops));
    bench_check(model_new(&mc, &l, &m));
    exec x = { .pool = pool_new((int)c.training.threads), .comm = comm_self() };
    x.plan = plan_new(&l.mesh, ops, pool_size(x.pool));
    model_reserve(m, x.plan, false);
    bench_check(generator_plan(m, x.plan, prompt + tokens + 2, (int)sequences, &g));
    bench_check(plan_commit(x.plan));
    model_init(m, x.plan, 1);
    if (f.gguf) {
        write_gguf(f.gguf, m, x.plan, dt);
        return 0;
    }
    generation *d = generation_new(&g, &x);
    sample_options o = { .tokens = tokens + 2, .stop = -1 };
    o.temperature = f.temperature ? atof(f.temperature) : 0;
    add_sequences(d, &mc, &o, prompt, sequences);
    decode_speed speed = decode(d, &(bench_target){ .ops = ops, .pool = x.pool }, tokens);

    double weights = weight_bytes(&mc, dt);
    int64_t row = 2 * mc.layers * mc.kv_heads * mc.head_dim,
            rows = sequences * (prompt + tokens / 2);
    double cache = (double)(rows * row) * (double)dt_size(dt);
    double rate = (weights + cache) / speed.step;
    if (f.json) {
        printf("{\"model\": \"%s\", \"dtype\": \"%s\", \"ms\": %.4f, \"gb_s\": %.3f, "
               "\"read_gb_s\": %.3f}\n",
               argv[1], dt_name(dt), 1e3 * speed.step, rate / 1e9, 1e-9 / speed.read);
        return 0;
    }
    printf(
        "%s %s, %lld sequences after %lld tokens: %.3f ms per step, %.0f tokens/s; %.1f MB of weights and %.1f of keys and values at "
        "%.1f GB/s, %.0f %% of %.1f\n",
        argv[1], dt_name(dt), (long long)sequences, (long long)prompt, 1e3 * speed.step,
        (double)sequences / speed.step, weights / 1e6, cache / 1e6, rate / 1e9,
        100 * rate * speed.read, 1e-9 / speed.read);
    return 0;
}
