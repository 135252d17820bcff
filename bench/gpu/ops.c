/* How close the GPU's bandwidth-bound ops come to the speed of its memory: the bytes each must move at
 * least (every operand once) over time, as a share of a large copy (copy%) and of a copy of as many
 * bytes (same%): a call of tens of microseconds spends some of them filling and draining the GPU. Muon's
 * ops have one matrix. At the end attention, in microseconds, with and without documents.
 *
 *     bench_gpu_ops [--only=NAME]   only ops with NAME in their name
 *
 * Shapes are those of five models, with the types their programs have: bf16 activations, fp32 norm
 * weights, statistics, gradients and moments. Calls are queued in rounds and timed as a whole, launches
 * included; operands rotate through enough memory to leave nothing in the cache. */
#include "bench.h"

#include "ops/block8.h"
#include "ops/op_table.h"

enum { MOST_SETS = 16 };
static const size_t ARENA = (size_t)12 << 30, FOOTPRINT = (size_t)1 << 30, BLOCK = 64 << 20;

typedef struct bench_model {
    const char *name;
    int64_t n, d, f, v;
    int q, kv, head, seq;
} bench_model;
static const bench_model models[] = {
    { "gpt2-124m", 65536, 768, 3072, 50304, 12, 12, 64, 1024 },
    { "gpt2-1558m", 16384, 1600, 6400, 50304, 25, 25, 64, 1024 },
    { "llama-1b", 16384, 2048, 8192, 32000, 32, 8, 64, 4096 },
    { "llama-3b", 8192, 3072, 8192, 32000, 24, 8, 128, 4096 },
    { "fast-d12", 65536, 768, 3072, 32768, 6, 6, 128, 2048 },
};
enum {
    GPT = 3,
    LLAMA = 12,
    ALL = 15,
    FAST = 16,
    QK = 24
}; /* bits of models; QK: norms of queries and keys */

/* Operands by letter; '-' is absent, '=' the memory of in[0].
 *   activations [N, ...], bf16: d D, f F, g 2F, q heads; x D in fp32; D like d, not touched
 *   Q like q, not touched; v value heads; G gates of these, fp32; fp8: 8 [N, D], 9 [D, N], r a row of scales
 *   fp32: w [D], b [F], s [N], S [N, 2], H [head], h [N, q and k heads]; z [V, D]
 *   a parameter of PARAMS elements: p fp32, c bf16; read and written: u fp32, C bf16, B moments in
 *   bytes; e [2]
 *   i32: t tokens, k tokens as in text (the n-th most frequent at 1/n), o positions; the table of rope R [4096, head], of tokens T [V, D] bf16 */
typedef struct bench_row {
    const char *name;
    op_code op;
    int models;
    const char *in, *out;
} bench_row;
static const int64_t PARAMS = 50304 * 768;
static const bench_row rows[] = {
    { "copy", OP_ADD, 1, "f-", "f" },
    { "layernorm", OP_LAYERNORM, GPT, "d-ww", "-dS" },
    { "layernorm + residual", OP_LAYERNORM, GPT, "ddww", "ddS" },
    { "layernorm_bwd, first", OP_LAYERNORM_BWD, GPT, "ddSw-", "dww" },
    { "layernorm_bwd", OP_LAYERNORM_BWD, GPT, "ddSwd", "dww" },
    { "rmsnorm", OP_RMSNORM, LLAMA, "d-w", "-ds" },
    { "rmsnorm + residual", OP_RMSNORM, LLAMA, "ddw", "dds" },
    { "rmsnorm_bwd, first", OP_RMSNORM_BWD, LLAMA, "ddsw-", "dw" },
    { "rmsnorm_bwd", OP_RMSNORM_BWD, LLAMA, "ddswd", "dw" },
    { "rmsnorm, no weights", OP_RMSNORM, FAST, "d--", "-ds" },
    { "rmsnorm_bwd, no weights", OP_RMSNORM_BWD, FAST, "dds-d", "d" },
    { "mix", OP_MIX, FAST, "dddee", "dd" },
    { "mix_bwd", OP_MIX_BWD, FAST, "dddeed", "ddee" },
    { "mix_norm", OP_MIX_NORM, FAST, "dddee", "ddds" },
    { "mix_norm_bwd", OP_MIX_NORM_BWD, FAST, "dddeesdd", "ddee" },
    { "gelu", OP_GELU, GPT, "f", "f" },
    { "gelu_bwd", OP_GELU_BWD, GPT, "ff", "f" },
    { "swiglu", OP_SWIGLU, LLAMA, "g", "f" },
    { "swiglu_bwd", OP_SWIGLU_BWD, LLAMA, "fg", "g" },
    { "rope", OP_ROPE, LLAMA, "qoR", "q" },
    { "rope in place", OP_ROPE, LLAMA, "qoR", "=" },
    { "rope_bwd in place", OP_ROPE_BWD, LLAMA, "qoR", "=" },
    { "qknorm", OP_QKNORM, QK, "q--", "qh" },
    { "qknorm_bwd", OP_QKNORM_BWD, QK, "qqh--", "q" },
    { "qknorm_rope in place", OP_QKNORM_ROPE, QK, "qoR", "=h" },
    { "qknorm_rope_bwd in place", OP_QKNORM_ROPE_BWD, QK, "qqhoR", "=" },
    { "qknorm_rope_weighted", OP_QKNORM_ROPE_WEIGHTED, QK, "qHHoR", "qh" },
    { "qknorm_rope_weighted_bwd", OP_QKNORM_ROPE_WEIGHTED_BWD, QK, "qqhHHoR", "=HH" },
    { "quantize", OP_QUANTIZE, LLAMA | FAST, "dr", "89" },
    { "quantize_norm", OP_QUANTIZE_NORM, LLAMA | FAST, "drs", "89" },
    { "add_values in place", OP_ADD_VALUES, FAST, "QvDG", "=" },
    { "add_values_bwd in place", OP_ADD_VALUES_BWD, FAST, "QvDG", "=vdG" },
    { "bias gradient, D", OP_LINEAR_BWD_W, GPT, "dD", "-w" },
    { "bias gradient, F", OP_LINEAR_BWD_W, GPT, "fD", "-b" },
    { "add", OP_ADD, ALL, "dd", "d" },
    { "cast", OP_CAST, ALL, "d", "x" },
    { "embed", OP_EMBED, ALL, "tT", "d" },
    { "embed_bwd", OP_EMBED_BWD, ALL | FAST, "dt", "z" },
    { "embed_bwd, skewed", OP_EMBED_BWD, ALL | FAST, "dk", "z" },
    { "sqnorm", OP_SQNORM, 1, "p", "e" },
    { "update_adam", OP_UPDATE_ADAM, 1, "p", "uuuc" },
    { "update_adam, bf16 p", OP_UPDATE_ADAM, 1, "p", "Cuu" },
    { "update_adam8", OP_UPDATE_ADAM8, 1, "p", "uBBc" },
    { "update_lion", OP_UPDATE_LION, 1, "p", "uuc" },
};

typedef struct bench {
    op_backend *gpu;
    bench_target target;
    char *arena; /* device memory full of values near 1, of either type */
    size_t used;
    double copy; /* bytes per second */
    const char *only;
    bench_table table;
} bench;
static const bench_column columns[] = { { "op", -24 }, { "model", -10 }, { "us", 8 },
                                        { "GB/s", 8 }, { "copy%", 6 },   { "same%", 6 } };

/* ---- operands ---------------------------------------------------------------------------------- */

static tensor take_tensor(bench *b, dtype dt, int64_t rows_, int64_t cols) {
    int64_t dim[] = { rows_, cols };
    tensor t = tensor_of(b->arena + b->used, dt, cols ? 2 : 1, dim);
    b->used += align_up(tensor_bytes(&t), 1 << 20);
    BUG_IF(b->used > ARENA);
    return t;
}

static tensor take_ids(bench *b, char what, int64_t n, int64_t below) {
    tensor t = take_tensor(b, DT_I32, n, 0);
    int32_t *v = mem_alloc((size_t)n * sizeof *v);
    for (int64_t i = 0; i < n; i++) {
        int64_t any = (int64_t)rng_below(rng_key_of(1, 2), (uint64_t)i, (uint64_t)below);
        double share = (double)any / (double)below;
        v[i] = (int32_t)(what == 'o'   ? i % below
                         : what == 'k' ? (int64_t)pow((double)below, share) % below
                                       : any);
    }
    bench_put(&b->target, t.data, v, tensor_bytes(&t));
    bench_wait(&b->target);
    free(v);
    return t;
}

static tensor operand(bench *b, char what, const bench_model *m, size_t *moved) {
    int64_t heads = (int64_t)(m->q + 2 * m->kv) * m->head;
    tensor t = { 0 };
    int times = 1;
    switch (what) {
    case 'd': t = take_tensor(b, DT_BF16, m->n, m->d); break;
    case 'D': t = take_tensor(b, DT_BF16, m->n, m->d), times = 0; break;
    case 'f': t = take_tensor(b, DT_BF16, m->n, m->f); break;
    case 'g': t = take_tensor(b, DT_BF16, m->n, 2 * m->f); break;
    case 'q': t = take_tensor(b, DT_BF16, m->n, heads); break;
    case 'Q': t = take_tensor(b, DT_BF16, m->n, heads), times = 0; break;
    case 'v': t = take_tensor(b, DT_BF16, m->n, (int64_t)m->kv * m->head); break;
    case 'G': t = take_tensor(b, DT_F32, m->kv, 12); break;
    case '8': t = take_tensor(b, DT_E4M3, m->n, m->d); break;
    case '9': t = take_tensor(b, DT_E4M3, m->d, m->n); break;
    case 'r': t = take_tensor(b, DT_F32, FP8_ROW, 0); break;
    case 'x': t = take_tensor(b, DT_F32, m->n, m->d); break;
    case 'w': t = take_tensor(b, DT_F32, m->d, 0); break;
    case 'b': t = take_tensor(b, DT_F32, m->f, 0); break;
    case 's': t = take_tensor(b, DT_F32, m->n, 0); break;
    case 'S': t = take_tensor(b, DT_F32, m->n, 2); break;
    case 'p': t = take_tensor(b, DT_F32, PARAMS, 0); break;
    case 'c': t = take_tensor(b, DT_BF16, PARAMS, 0); break;
    case 'u': t = take_tensor(b, DT_F32, PARAMS, 0), times = 2; break;
    case 'e': t = take_tensor(b, DT_F32, 2, 0); break;
    case 'C': t = take_tensor(b, DT_BF16, PARAMS, 0), times = 2; break;
    case 'B': t = take_tensor(b, DT_U8, (int64_t)block8_bytes(PARAMS), 0), times = 2; break;
    case 't':
    case 'k': t = take_ids(b, what, m->n, m->v); break;
    case 'o': t = take_ids(b, what, m->n, 4096); break;
    case 'H': t = take_tensor(b, DT_F32, m->head, 0); break;
    case 'h': t = take_tensor(b, DT_F32, m->n, m->q + m->kv); break;
    case 'R': t = take_tensor(b, DT_F32, 4096, m->head), times = 0; break;
    case 'T': t = take_tensor(b, DT_BF16, m->v, m->d), times = 0; break;
    case 'z': t = take_tensor(b, DT_F32, m->v, m->d); break;
    default: break;
    }
    *moved += (size_t)times * (t.data ? tensor_bytes(&t) : 0);
    return t;
}

/* The bytes that the letters do not count. */
static size_t moved_besides(const bench_row *r, const bench_model *m, const op_call *c) {
    switch (r->op) {
    case OP_EMBED: return tensor_bytes(&c->out[0]);
    case OP_QKNORM_ROPE_BWD:
    case OP_QKNORM_ROPE_WEIGHTED_BWD: /* in place: of three rows, q and k; two whole ones were counted */
        return (size_t)(m->n * (m->q - m->kv) * m->head) * sizeof(uint16_t);
    case OP_ADD_VALUES: return 2 * tensor_bytes(&c->in[1]); /* v is read and written, or read */
    case OP_ADD_VALUES_BWD: return tensor_bytes(&c->in[1]);
    case OP_QKNORM_ROPE:
    case OP_ROPE:
    case OP_ROPE_BWD: /* in place: q and k are written where they were read, v stays */
        if (r->out[0] != '=') return 0;
        return (size_t)(m->n * m->q * m->head) * sizeof(uint16_t);
    default: return 0;
    }
}

static size_t build(bench *b, const bench_row *r, const bench_model *m, op_call *c) {
    size_t moved = 0;
    *c = (op_call){ .op = r->op, .attr = { .eps = 1e-5f, .scale = { 1 } } };
    for (int i = 0; r->in[i]; i++) c->in[i] = operand(b, r->in[i], m, &moved);
    for (int i = 0; r->out[i]; i++)
        c->out[i] = r->out[i] == '=' ? c->in[0] : operand(b, r->out[i], m, &moved);
    c->attr.heads.q = m->q, c->attr.heads.kv = m->kv;
    c->attr.heads.dim = c->attr.heads.rot = m->head;
    c->attr.update.lr_mul = 1, c->attr.update.beta1 = 0.9f, c->attr.update.beta2 = 0.95f;
    c->attr.update.eps = 1e-8f;
    c->attr.fp8.recipe = FP8_DELAYED;
    c->accumulate = r->op == OP_SQNORM;
    return moved + moved_besides(r, m, c);
}

/* ---- timing ------------------------------------------------------------------------------------ */

static bool wanted(const bench *b, const char *name) { return !b->only || strstr(name, b->only); }

/* Seconds of a copy that moves as many bytes, read and written, in whole vectors. */
static double copy_seconds(bench *b, double moved) {
    op_call calls[MOST_SETS];
    int64_t n = (int64_t)align_up((size_t)moved / 2 / sizeof(uint16_t), 64);
    int sets = 0;
    b->used = 0;
    do {
        op_call *c = &calls[sets++];
        *c = (op_call){ .op = OP_ADD };
        c->in[0] = take_tensor(b, DT_BF16, n, 0);
        c->out[0] = take_tensor(b, DT_BF16, n, 0);
    } while (sets < MOST_SETS && b->used < FOOTPRINT);
    return bench_calls_seconds(&b->target, calls, sets);
}

static void print_speed(bench *b, const char *name, const char *model, double moved, double t) {
    bench_cell(&b->table, "%s", name);
    bench_cell(&b->table, "%s", model);
    bench_cell(&b->table, "%.1f", t * 1e6);
    bench_cell(&b->table, "%.0f", moved / t / 1e9);
    bench_cell(&b->table, "%.0f%%", 100 * moved / t / b->copy);
    bench_cell(&b->table, "%.0f%%", 100 * copy_seconds(b, moved) / t);
}

static void measure(bench *b, const bench_row *r, const bench_model *m) {
    op_call calls[MOST_SETS];
    size_t moved = 0;
    int sets = 0;
    b->used = 0;
    do moved = build(b, r, m, &calls[sets++]);
    while (sets < MOST_SETS && b->used < FOOTPRINT);
    double t = bench_calls_seconds(&b->target, calls, sets);
    if (!b->copy) b->copy = (double)moved / t; /* the first row */
    if (wanted(b, r->name)) print_speed(b, r->name, m->name, (double)moved, t);
}

/* The softmax inside LINEAR_CE: the whole minus its three GEMMs, which have few columns. */
static void measure_softmax(bench *b, const bench_model *m) {
    enum { N = 8192, D = 64 };
    if (!wanted(b, "softmax")) return;
    b->used = 0;
    tensor h = take_tensor(b, DT_BF16, N, D), w = take_tensor(b, DT_BF16, m->v, D),
           z = take_tensor(b, DT_BF16, N, m->v);
    tensor dh = take_tensor(b, DT_BF16, N, D), dw = take_tensor(b, DT_F32, m->v, D),
           loss = take_tensor(b, DT_F32, N, 0);
    op_call whole = { .op = OP_LINEAR_CE, .out = { loss, dh, dw }, .attr = { .ce = { 1 } } };
    whole.in[0] = h, whole.in[1] = w, whole.in[2] = take_ids(b, 't', N, m->v);
    op_call part[] = { { .op = OP_LINEAR, .in = { h, w }, .out = { z } },
                       { .op = OP_LINEAR_BWD_X, .in = { z, w }, .out = { dh } },
                       { .op = OP_LINEAR_BWD_W, .in = { z, h }, .out = { dw } } };
    double t = bench_call_seconds(&b->target, &whole);
    for (size_t i = 0; i < COUNT_OF(part); i++) t -= bench_call_seconds(&b->target, &part[i]);
    print_speed(b, "softmax of linear_ce", m->name, 2.0 * (double)tensor_bytes(&z), t);
}

/* Muon's ops before and after its GEMMs, of one matrix [rows, cols], as the recipes have them: rows get equal norms,
 * and second moments are kept for the lines of the longer side. */
static void measure_muon(bench *b, int64_t rows_, int64_t cols) {
    static const struct {
        op_code wide, tall;
    } ops[] = { { OP_MUON_PACK, OP_MUON_PACK }, { OP_MUON_UNPACK_COLS, OP_MUON_UNPACK_ROWS } };
    char shape[32];
    snprintf(shape, sizeof shape, "%lldx%lld", (long long)rows_, (long long)cols);
    for (size_t i = 0; i < COUNT_OF(ops); i++) {
        op_call calls[MOST_SETS];
        op_code op = rows_ < cols ? ops[i].wide : ops[i].tall;
        if (!wanted(b, op_name(op))) continue;
        b->used = 0;
        for (int k = 0; k < MOST_SETS; k++) {
            tensor u = take_tensor(b, DT_F32, rows_, cols);
            tensor x = take_tensor(b, DT_BF16, MIN(rows_, cols), MAX(rows_, cols));
            calls[k] = (op_call){ .op = op, .in = { i ? x : u }, .out = { i ? u : x } };
            if (i) calls[k].out[1] = take_tensor(b, DT_F32, MAX(rows_, cols), 0);
            calls[k].attr.update.equilibrate = true, calls[k].attr.update.beta2 = 0.9f;
        }
        double t = bench_calls_seconds(&b->target, calls, MOST_SETS);
        print_speed(b, op_name(op), shape, (double)(rows_ * cols * 6), t);
    }
}

/* Attention forward and backward over documents `length` tokens long on average; 0: one per row. */
static void measure_attention(bench *b, const bench_model *m, int length) {
    char name[64] = "attention";
    int64_t heads = (int64_t)(m->q + 2 * m->kv) * m->head, wide = (int64_t)m->q * m->head;
    if (length) snprintf(name, sizeof name, "attention, documents %d", length);
    if (!wanted(b, name)) return;
    b->used = 0;
    tensor start = take_tensor(b, DT_I32, m->n, 0), lse = take_tensor(b, DT_F32, m->q, m->n);
    tensor qkv = take_tensor(b, DT_BF16, m->n, heads), dqkv = take_tensor(b, DT_BF16, m->n, heads);
    tensor o = take_tensor(b, DT_BF16, m->n, wide), dout = take_tensor(b, DT_BF16, m->n, wide);
    int32_t *v = mem_alloc(tensor_bytes(&start));
    for (int64_t i = 0; i < m->n; i++) {
        bool new_document =
            length && rng_below(rng_key_of(1, 2), (uint64_t)i, (uint64_t)length) == 0;
        v[i] = i % m->seq == 0 || new_document ? (int32_t)i : v[i - 1];
    }
    bench_put(&b->target, start.data, v, tensor_bytes(&start));
    bench_wait(&b->target);
    free(v);
    op_call f = { .op = OP_ATTENTION, .in = { qkv, start }, .out = { o, lse } };
    f.attr.heads.q = m->q, f.attr.heads.kv = m->kv, f.attr.heads.dim = m->head;
    f.attr.heads.seq = m->seq, f.attr.heads.documents = length > 0;
    f.attr.heads.scale = 1 / sqrtf((float)m->head);
    op_call g = {
        .op = OP_ATTENTION_BWD, .in = { dout, qkv, o, lse, start }, .out = { dqkv }, .attr = f.attr
    };
    double forward = bench_call_seconds(&b->target, &f),
           backward = bench_call_seconds(&b->target, &g);
    printf("%-24s %-10s %8.1f forward, %8.1f backward\n", name, m->name, forward * 1e6,
           backward * 1e6);
}

/* ---- the GPU ------------------------------------------------------------------------------------ */

static void fill_arena(bench *b) {
    size_t n = BLOCK / sizeof(uint16_t);
    float *v = mem_alloc(n * sizeof *v);
    uint16_t *narrow = mem_alloc(BLOCK); /* two of them make a float near the second */
    for (size_t i = 0; i < n; i++) v[i] = 0.5f + (float)(i * 7919 % 997) / 997;
    dt_from_f32(DT_BF16, v, narrow, (int64_t)n);
    bench_put(&b->target, b->arena, narrow, BLOCK);
    op_run run = { .context = b->gpu->context };
    op_call copy = { .op = OP_ADD, .run = &run };
    for (size_t done = BLOCK; done < ARENA; done += BLOCK) {
        copy.in[0] = tensor_of(b->arena, DT_BF16, 1, (int64_t[]){ (int64_t)n });
        copy.out[0] = tensor_of(b->arena + done, DT_BF16, 1, (int64_t[]){ (int64_t)n });
        ops_run(b->gpu, &copy);
    }
    bench_wait(&b->target);
    free(v);
    free(narrow);
}

static void open_gpu(bench *b) {
    bench_check(ops_cuda_open(0, 0, &b->gpu));
    b->target.ops = b->gpu;
    b->arena = bench_map(&b->target, ARENA);
    step_block step = { .loss_grad = 1, .update = { .lr = 1e-4f }, .now = { .grad_scale = 1 } };
    step.now.count = 1;
    void *on_gpu = bench_map(&b->target, sizeof step);
    bench_put(&b->target, on_gpu, &step, sizeof step);
    b->target.step = on_gpu;
    fill_arena(b);
}

static void close_gpu(bench *b) {
    bench_unmap(&b->target, (void *)(uintptr_t)b->target.step, sizeof *b->target.step);
    bench_unmap(&b->target, b->arena, ARENA);
    ops_cuda_close(b->gpu);
}

int main(int argc, char **argv) {
    bench b = { 0 };
    if (argc > 1 && !strncmp(argv[1], "--only=", 7)) b.only = argv[1] + 7;
    open_gpu(&b);
    b.table = bench_table_start(columns, COUNT_OF(columns));
    for (size_t r = 0; r < COUNT_OF(rows); r++)
        for (size_t m = 0; m < COUNT_OF(models); m++)
            if (rows[r].models >> m & 1 && (!b.copy || wanted(&b, rows[r].name)))
                measure(&b, &rows[r], &models[m]);
    static const int64_t matrices[][2] = {
        { 768, 768 }, { 2304, 768 }, { 3072, 768 }, { 768, 3072 }
    };
    for (size_t i = 0; i < COUNT_OF(matrices); i++)
        measure_muon(&b, matrices[i][0], matrices[i][1]);
    for (size_t m = 0; m < COUNT_OF(models); m += 2) measure_softmax(&b, &models[m]);
    for (size_t m = 0; m < COUNT_OF(models); m++)
        for (int length = 0; length <= 600; length += 600)
            measure_attention(&b, &models[m], length);
    close_gpu(&b);
    return 0;
}
