/* How close the bandwidth-bound ops come to the speed of memory: the bytes each must move at least
 * (every operand once) over time, as a share of a plain copy on the same threads.
 *
 *     bench_cpu_bandwidth [THREADS [OP [ISA [COLUMNS [KIB]]]]]
 *
 *     THREADS   0, the default: one per core
 *     OP        only ops whose names start with it; "": all
 *     ISA       an instruction set; "", the default: the best one
 *     COLUMNS   the width of rows, instead of the two shapes
 *     KIB       of memory that is touched before it repeats: less than a cache holds measures the ops inside it
 *
 * Linear layers of 1 and 4 tokens, as decoding calls them, are a share of a plain read instead: of their weights.
 *
 * Copy and op alternate, and the best of each counts: on a shared machine they slow down together.
 * Operands rotate through enough copies to exceed the last-level cache, as they do in a model.
 */
#include "bench.h"
#include "ops/op_table.h"

enum { REPEATS = 7 };
static const size_t FOOTPRINT = (size_t)128 << 20; /* most bytes touched before memory repeats */

typedef struct bench_shape {
    int64_t n, d;
} bench_shape;
static const bench_shape shapes[] = { { 1024, 768 }, { 4096, 2048 } };
static const dtype types[] = { DT_F32, DT_BF16 };

/* Operands of a call, as (rows, columns) in units of N and D; what: activations 'a' and fp32 'f' are
 * streamed, fp32 'u' read and written; ids of tokens 'p' (in no order), positions 'o' (in order) and
 * of dropout 'q'; statistics 's', of heads 'h'; weights 'w', their gradients 'g' and the table of rope 't'. */
typedef struct shape_of {
    char what;
    int rows,
        cols; /* rows: 'N' tokens, 'V' the table, 4, 1; cols in D, 0 means one column, 'V' one per row of the table */
} shape_of;
typedef struct bench_row {
    const char *name;
    op_code op;
    shape_of in[OP_MAX_IN], out[OP_MAX_OUT];
    bool reads; /* of a table of rows, which count as moved */
} bench_row;

#define ACT                                                                                        \
    { 'a', 'N', 1 }
#define ACT2                                                                                       \
    { 'a', 'N', 2 }
#define STAT                                                                                       \
    { 'f', 'N', 0 }
#define W                                                                                          \
    { 'w', 1, 1 }
#define DW                                                                                         \
    { 'g', 1, 1 }
#define FULL                                                                                       \
    { 'f', 'N', 1 }
#define UPD                                                                                        \
    { 'u', 'N', 1 }
#define NONE                                                                                       \
    { 0, 0, 0 }
static const bench_row rows[] = {
    { "rmsnorm", OP_RMSNORM, { ACT, NONE, W }, { NONE, ACT, STAT } },
    { "rmsnorm + residual", OP_RMSNORM, { ACT, ACT, W }, { ACT, ACT, STAT } },
    { "rmsnorm_bwd", OP_RMSNORM_BWD, { ACT, ACT, STAT, W, ACT }, { ACT, DW } },
    { "rmsnorm, no weights", OP_RMSNORM, { ACT }, { NONE, ACT, STAT } },
    { "rmsnorm_bwd, no weights", OP_RMSNORM_BWD, { ACT, ACT, STAT, NONE, ACT }, { ACT } },
    { "mix", OP_MIX, { ACT, ACT, ACT, W, W }, { ACT, ACT } },
    { "mix_bwd", OP_MIX_BWD, { ACT, ACT, ACT, W, W, ACT }, { ACT, ACT } },
    { "mix_norm", OP_MIX_NORM, { ACT, ACT, ACT, W, W }, { ACT, ACT, ACT, STAT } },
    { "mix_norm_bwd", OP_MIX_NORM_BWD, { ACT, ACT, ACT, W, W, STAT, ACT, ACT }, { ACT, ACT } },
    { "layernorm", OP_LAYERNORM, { ACT, NONE, W, W }, { NONE, ACT, { 's', 'N', 0 } } },
    { "layernorm + residual", OP_LAYERNORM, { ACT, ACT, W, W }, { ACT, ACT, { 's', 'N', 0 } } },
    { "layernorm_bwd", OP_LAYERNORM_BWD, { ACT, ACT, { 's', 'N', 0 }, W, ACT }, { ACT, DW, DW } },
    { "rope", OP_ROPE, { ACT, { 'o', 'N', 0 }, { 't', 'N', 0 } }, { ACT } },
    { "qknorm", OP_QKNORM, { ACT }, { ACT, { 'h', 'N', 0 } } },
    { "qknorm_bwd", OP_QKNORM_BWD, { ACT, ACT, { 'h', 'N', 0 } }, { ACT } },
    { "qknorm_rope",
      OP_QKNORM_ROPE,
      { ACT, { 'o', 'N', 0 }, { 't', 'N', 0 } },
      { ACT, { 'h', 'N', 0 } } },
    { "qknorm_rope_bwd",
      OP_QKNORM_ROPE_BWD,
      { ACT, ACT, { 'h', 'N', 0 }, { 'o', 'N', 0 }, { 't', 'N', 0 } },
      { ACT } },
    { "gelu", OP_GELU, { ACT }, { ACT } },
    { "gelu_bwd", OP_GELU_BWD, { ACT, ACT }, { ACT } },
    { "swiglu", OP_SWIGLU, { ACT2 }, { ACT } },
    { "swiglu_bwd", OP_SWIGLU_BWD, { ACT, ACT2 }, { ACT2 } },
    { "add", OP_ADD, { ACT, ACT }, { ACT } },
    { "dropout", OP_DROPOUT, { ACT, { 'q', 'N', 0 } }, { ACT } },
    { "embed", OP_EMBED, { { 'p', 'N', 0 }, { 'a', 'V', 1 } }, { ACT } },
    { "embed_bwd", OP_EMBED_BWD, { ACT, { 'p', 'N', 0 } }, { { 'g', 'V', 1 } } },
    { "linear, 1 token", OP_LINEAR, { { 'a', 1, 1 }, { 'a', 'V', 1 } }, { { 'a', 1, 'V' } }, true },
    { "linear, 4 tokens",
      OP_LINEAR,
      { { 'a', 4, 1 }, { 'a', 'V', 1 } },
      { { 'a', 4, 'V' } },
      true },
    { "update_lion", OP_UPDATE_LION, { FULL }, { UPD, UPD, ACT } },
    { "update_adam", OP_UPDATE_ADAM, { FULL }, { UPD, UPD, UPD, ACT } },
};

typedef struct arena_of {
    char *base;
    size_t used, size;
} arena_of;

static tensor operand(const shape_of *o, bench_shape s, dtype act, arena_of *a, size_t *moved) {
    if (!o->what) return (tensor){ 0 };
    const int head = 64, vocab = 8192;
    bool ids = o->what == 'p' || o->what == 'o';
    dtype dt = o->what == 'a' ? act : ids ? DT_I32 : o->what == 'q' ? DT_I64 : DT_F32;
    int64_t n = o->rows == 'N' ? s.n : o->rows == 'V' ? vocab : o->rows;
    int64_t cols = o->what == 's'   ? 2
                   : o->what == 't' ? head
                   : o->what == 'h' ? s.d / head
                   : o->cols == 'V' ? vocab
                   : o->cols        ? o->cols * s.d
                                    : 1;
    bool row = n == 1 && o->what != 'a'; /* a vector */
    tensor t = tensor_of(a->base + a->used, dt, row ? 1 : 2, (int64_t[]){ n, cols });
    if (row) t.dim[0] = cols;
    a->used += align_up(tensor_bytes(&t), 4096) + 4096;
    BUG_IF(a->used > a->size);
    bool table = o->rows == 'V' || o->what == 't';
    if (!table) *moved += tensor_bytes(&t) * (o->what == 'u' ? 2 : 1);
    for (int64_t i = 0; i < tensor_count(&t); i++) { /* values near 1 cost what any others do */
        if (dt == DT_I32)
            ((int32_t *)t.data)[i] = (int32_t)(i * (o->what == 'o' ? 1 : 7919) % MIN(s.n, vocab));
        else if (dt == DT_I64)
            ((int64_t *)t.data)[i] = i;
        else
            dt_from_f32(dt, &(float){ 0.5f + (float)(i % 97) / 97 },
                        (char *)t.data + i * (int64_t)dt_size(dt), 1);
    }
    return t;
}

static size_t build_call(const bench_row *r, bench_shape s, dtype act, arena_of *a, op_call *c) {
    size_t moved = 0;
    *c = (op_call){ .op = r->op, .attr = { .eps = 1e-5f } };
    for (int i = 0; i < OP_MAX_IN; i++) c->in[i] = operand(&r->in[i], s, act, a, &moved);
    for (int i = 0; i < OP_MAX_OUT; i++) c->out[i] = operand(&r->out[i], s, act, a, &moved);
    if (r->reads) moved = tensor_bytes(&c->in[1]);
    if (r->op == OP_EMBED) moved += tensor_bytes(&c->out[0]); /* the rows gathered */
    if (r->op == OP_EMBED_BWD) moved += 2 * (size_t)s.n * (size_t)s.d * sizeof(float);
    c->attr.heads.dim = c->attr.heads.rot = 64;
    c->attr.heads.kv = (int)(s.d / 64 / 6); /* a row is q|k|v, as wide as D */
    c->attr.heads.q = (int)(s.d / 64) - 2 * c->attr.heads.kv;
    c->attr.dropout.p = 0.1f;
    c->attr.update.lr_mul = 1;
    c->attr.update.beta1 = 0.9f;
    c->attr.update.beta2 = 0.95f;
    c->attr.update.eps = 1e-8f;
    if (r->op == OP_EMBED_BWD) c->accumulate = 1;
    return moved;
}

/* ---- copy ------------------------------------------------------------------------------------ */
typedef struct copy_job {
    char *to, *from;
    size_t bytes;
} copy_job;
static void copy_task(void *ctx, int64_t i, int worker) {
    const copy_job *j = ctx;
    size_t each = 1 << 20, at = (size_t)i * each;
    memcpy(j->to + at, j->from + at, MIN(each, j->bytes - at));
}
/* @return bytes read plus bytes written, per second, in `footprint` bytes. */
static double copy_rate(pool *p, char *memory, size_t footprint) {
    copy_job j = { .to = memory, .from = memory + footprint / 2, .bytes = footprint / 2 };
    double t = bench_now(p);
    pool_run(p, ceil_div((int64_t)j.bytes, 1 << 20), copy_task, &j);
    return 2 * (double)j.bytes / (bench_now(p) - t);
}

static void read_task(void *ctx, int64_t i, int worker) {
    const copy_job *j = ctx;
    const uint64_t *p = (const uint64_t *)(void *)(j->from + ((size_t)i << 20));
    uint64_t sum = 0;
    size_t n = MIN((size_t)1 << 20, j->bytes - ((size_t)i << 20)) / sizeof *p;
    for (size_t k = 0; k < n; k++) sum += p[k];
    ((volatile uint64_t *)(void *)j->to)[worker * 8] = sum;
}
static double read_rate(pool *p, char *memory, size_t footprint) {
    copy_job j = { .to = memory, .from = memory + footprint / 2, .bytes = footprint / 2 };
    double t = bench_now(p);
    pool_run(p, ceil_div((int64_t)j.bytes, 1 << 20), read_task, &j);
    return (double)j.bytes / (bench_now(p) - t);
}

/* ---- ops ------------------------------------------------------------------------------------- */
enum { MAX_COPIES = 64 };
typedef struct rates {
    double copy, op; /* bytes per second, the best of each */
} rates;
static rates measure(const op_backend *b, pool *p, const bench_row *r, bench_shape s, dtype act,
                     size_t footprint, char *memory, size_t size) {
    static const step_block step = { .loss_grad = 1,
                                     .update = { 1e-4f, 1 },
                                     .now = { .grad_scale = 1, .count = 1 } };
    char *copy_memory = memory + size - FOOTPRINT; /* not the op's: its values stay as they are */
    arena_of a = { .base = memory, .size = size - FOOTPRINT };
    op_call calls[MAX_COPIES];
    size_t moved = 0;
    int copies = 0;
    while (copies < MAX_COPIES && a.used < footprint)
        moved = build_call(r, s, act, &a, &calls[copies++]);
    op_run run = { .pool = p, .step = &step };
    run.workspace_bytes = ops_workspace(b, &calls[0], pool_size(p));
    run.workspace = aligned_alloc(64, align_up(run.workspace_bytes + 64, 64));
    rates best = { 0 };
    for (int i = 0; i < REPEATS; i++) {
        best.copy = MAX(best.copy, (r->reads ? read_rate : copy_rate)(p, copy_memory, footprint));
        double t = bench_now(p);
        for (int k = 0; k < copies; k++) {
            calls[k].run = &run;
            ops_run(b, &calls[k]);
        }
        best.op = MAX(best.op, (double)moved * copies / (bench_now(p) - t));
    }
    free(run.workspace);
    return best;
}

static void print_rates(bench_table *table, const bench_row *r, bench_shape s, dtype dt, rates m) {
    bench_cell(table, "%s", r->name);
    bench_cell(table, "%lld", (long long)s.n);
    bench_cell(table, "%lld", (long long)s.d);
    bench_cell(table, "%s", dt_name(dt));
    bench_cell(table, "%.1f", m.copy / 1e9);
    bench_cell(table, "%.1f", m.op / 1e9);
    bench_cell(table, "%.0f%%", 100 * m.op / m.copy);
}

int main(int argc, char **argv) {
    static const bench_column columns[] = { { "op", -22 }, { "N", 6 },    { "D", 6 },
                                            { "type", 6 }, { "copy", 8 }, { "GB/s", 8 },
                                            { "copy%", 6 } };
    pool *p = pool_new(argc > 1 ? atoi(argv[1]) : 0);
    const char *only = argc > 2 ? argv[2] : "";
    const op_backend *b = ops_cpu(argc > 3 && argv[3][0] ? argv[3] : OPS_ISA_BEST);
    size_t footprint = argc > 5 ? (size_t)atoll(argv[5]) << 10 : FOOTPRINT;
    const bench_shape *of = shapes;
    size_t n_shapes = COUNT_OF(shapes);
    if (footprint < 1 << 17 || footprint > FOOTPRINT)
        bench_check(ERR("KIB: expected 128 to %zu", FOOTPRINT >> 10));
    bench_shape wide = { .d = argc > 4 ? atoll(argv[4]) : 0 };
    if (argc > 4 && (wide.d < 64 || wide.d > 8192))
        bench_check(ERR("COLUMNS: expected 64 to 8192"));
    if (wide.d) {
        /* four operands of fp32 fit the footprint */
        wide.n = MAX(1, (int64_t)MIN(footprint, FOOTPRINT / 4) / (16 * wide.d));
        of = &wide;
        n_shapes = 1;
    }
    if (!b) bench_check(ERR("this processor does not have %s", argv[3]));
    size_t size = 2 * FOOTPRINT + ((size_t)512 << 20);
    void *memory;
    bench_check(mem_map(size, &memory));
    memset(memory, 1, size);
    printf("%s, %d threads\n", b->name, pool_size(p));
    bench_table table = bench_table_start(columns, COUNT_OF(columns));
    for (size_t s = 0; s < n_shapes; s++)
        for (size_t t = 0; t < COUNT_OF(types); t++)
            for (size_t r = 0; r < COUNT_OF(rows); r++)
                if (!strncmp(rows[r].name, only, strlen(only)))
                    print_rates(&table, &rows[r], of[s], types[t],
                                measure(b, p, &rows[r], of[s], types[t], footprint, memory, size));
    mem_unmap(memory, size);
    pool_free(p);
    return 0;
}
