/* The floor of a training step: its GEMMs and its attention, each timed alone and bare (no bias, no
 * activation), plus the bytes of every other op, each operand moved once, at copy bandwidth. What a
 * step takes beyond this is lost in kernels, between them, or on the host.
 *
 *     bench_gpu_floor PRESET ROWS SEQ fp32|bf16 [--cuda] [--vocab=N] [--fp8=RECIPE] [--json]
 *
 * Without a GPU the copy bandwidth is not measured: only the GEMMs' times and the bytes are printed. */
#include "bench.h"

#include "prog/prog_internal.h"

#include "optim/optim.h"
#include "ops/op_table.h"

typedef struct entry { /* a call and how often it occurs in a step */
    op_call c;
    int times;
    double seconds; /* of one */
} entry;

typedef struct floor_run {
    bool cuda, json;
    bench_target target;
    model_config mc;
    model_layout l;
    entry *list;
    int n, capacity;
    double bytes; /* of everything that is not in the list */
} floor_run;

/* ---- what a step does -------------------------------------------------------------------- */
static tensor shape(dtype dt, int64_t rows, int64_t cols) {
    return tensor_of(NULL, dt, 2, (int64_t[]){ rows, cols });
}

static bool same_tensors(const tensor *a, const tensor *b, int n) {
    for (int i = 0; i < n; i++)
        if (a[i].dt != b[i].dt || a[i].ndim != b[i].ndim ||
            memcmp(a[i].dim, b[i].dim, (size_t)a[i].ndim * sizeof *a[i].dim) != 0)
            return false;
    return true;
}

static void add(floor_run *r, op_call c, int times) {
    for (int i = 0; i < r->n; i++) {
        const op_call *k = &r->list[i].c;
        if (k->op == c.op && same_tensors(k->in, c.in, OP_MAX_IN) &&
            same_tensors(k->out, c.out, OP_MAX_OUT)) {
            r->list[i].times += times;
            return;
        }
    }
    r->list = mem_reserve(r->list, &r->capacity, r->n + 1, sizeof *r->list);
    r->list[r->n++] = (entry){ .c = c, .times = times };
}

/* A GEMM alone; the rows of fp8 scales stay. */
static void add_bare(floor_run *r, op_code op, const op_call *of, int times) {
    op_call c = { .op = op };
    c.in[0] = of->in[0];
    c.in[1] = of->in[1];
    c.in[3] = of->in[3];
    c.in[4] = of->in[4];
    c.out[0] = of->out[0];
    add(r, c, times);
}

/* The head: its three GEMMs, and one pass over the logits that turns them into their gradient. */
static void add_head(floor_run *r, const op_call *of, int times) {
    tensor h = of->in[0], w = of->in[1], z = shape(h.dt, h.dim[0], w.dim[0]);
    add(r, (op_call){ .op = OP_LINEAR, .in = { h, w }, .out = { z } }, times);
    add(r, (op_call){ .op = OP_LINEAR_BWD_X, .in = { z, w }, .out = { of->out[1] } }, times);
    add(r, (op_call){ .op = OP_LINEAR_BWD_W, .in = { z, h }, .out = { of->out[2] } }, times);
    r->bytes += 2.0 * (double)tensor_bytes(&z) * times;
}

static void add_call(floor_run *r, const op_call *c, int times) {
    switch (c->op) {
    case OP_LINEAR:
    case OP_LINEAR_GELU: add_bare(r, OP_LINEAR, c, times); break;
    case OP_LINEAR_BWD_X:
    case OP_LINEAR_BWD_X_GELU: add_bare(r, OP_LINEAR_BWD_X, c, times); break;
    case OP_LINEAR_BWD_W: add_bare(r, OP_LINEAR_BWD_W, c, times); break;
    case OP_LINEAR_CE: add_head(r, c, times); break;
    case OP_ATTENTION:
    case OP_ATTENTION_BWD: add(r, *c, times); break;
    default: BUG_IF(ops_work(c).flops > 0); r->bytes += ops_work(c).bytes * times;
    }
}

static tensor tensor_at(const prog *p, val v) {
    if (v == VAL_NONE) return (tensor){ 0 };
    return tensor_of(NULL, p->val[v].dt, p->val[v].ndim, p->val[v].dim);
}

static void add_list(floor_run *r, const prog *p, const op_list *l, int times) {
    for (int i = 0; i < l->n; i++) {
        const prog_op *o = &l->op[i];
        op_call c = { .op = o->op, .attr = o->attr };
        for (int k = 0; k < OP_MAX_IN; k++) c.in[k] = tensor_at(p, o->in[k]);
        for (int k = 0; k < OP_MAX_OUT; k++) c.out[k] = tensor_at(p, o->out[k]);
        if (o->acc == ACC_ADD) c.accumulate = ~0u;
        if (!(op_flags(o->op) & OPF_EXTERN)) add_call(r, &c, times);
    }
}

static void add_update(floor_run *r) {
    tensor all = tensor_of(NULL, DT_F32, 1, (int64_t[]){ model_count(&r->mc) }), copy = all;
    copy.dt = r->l.dt;
    op_call norm = { .op = OP_SQNORM, .in = { all } };
    op_call update = { .op = OP_UPDATE_ADAM, .in = { all }, .out = { all, all, all } };
    if (copy.dt != DT_F32) update.out[3] = copy;
    r->bytes += ops_work(&norm).bytes + ops_work(&update).bytes;
}

static void add_step(floor_run *r, int64_t rows, int64_t seq) {
    model *m;
    chain k;
    bench_check(model_new(&r->mc, &r->l, &m));
    bench_check(model_record(m, PROG_TRAIN, rows * seq, seq, &k));
    struct {
        const prog *p;
        int times;
    } parts[] = { { k.first, 1 }, { k.last, 1 }, { k.block[0], 0 }, { k.block[1], 0 } };
    for (int l = 0; l < k.layers; l++) parts[2 + k.kind[l]].times++;
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        if (!parts[i].p) continue;
        add_list(r, parts[i].p, &parts[i].p->fwd, parts[i].times);
        add_list(r, parts[i].p, &parts[i].p->bwd, parts[i].times);
    }
    add_update(r);
    model_free(m);
}

/* ---- timing ------------------------------------------------------------------------------ */
/* Values as they are in training: a chip that multiplies zeros draws less power and runs faster.
 * Scales are 1, and every row is one document. */
static void fill(const floor_run *r, const op_call *c, const tensor *t) {
    enum { CHUNK = 1 << 20 };
    float *normal = mem_alloc(CHUNK * sizeof *normal);
    uint32_t *bits = mem_alloc(CHUNK * sizeof *bits);
    int64_t seq = c->attr.heads.seq ? c->attr.heads.seq : tensor_count(t);
    bool rows = t->ndim == 1 && t->dt == DT_F32;
    for (int64_t i = 0; i < CHUNK; i++)
        normal[i] = rows ? 1 : rng_normal(rng_key_of(7, 0), (uint64_t)i);
    if (dt_is_float(t->dt)) dt_from_f32(t->dt, normal, bits, CHUNK);
    for (int64_t at = 0, n = tensor_count(t); at < n; at += CHUNK) {
        int64_t some = MIN((int64_t)CHUNK, n - at);
        for (int64_t i = 0; t->dt == DT_I32 && i < some; i++)
            bits[i] = (uint32_t)((at + i) / seq * seq);
        char *to = (char *)t->data + (size_t)at * dt_size(t->dt);
        size_t bytes = (size_t)some * dt_size(t->dt);
        bench_put(&r->target, to, bits, bytes);
    }
    free(normal);
    free(bits);
}

static double seconds_of(const floor_run *r, op_call c) {
    enum { ALIGN = 256 };
    tensor *all[OP_MAX_IN + OP_MAX_OUT];
    int n = 0;
    for (int i = 0; i < OP_MAX_IN; i++) all[n++] = &c.in[i];
    for (int i = 0; i < OP_MAX_OUT; i++) all[n++] = &c.out[i];
    size_t size = 0;
    for (int i = 0; i < n; i++)
        if (all[i]->dt != DT_NONE) size += align_up(tensor_bytes(all[i]), ALIGN);
    char *memory = bench_map(&r->target, size), *at = memory;
    for (int i = 0; i < n; i++) {
        if (all[i]->dt == DT_NONE) continue;
        all[i]->data = at;
        at += align_up(tensor_bytes(all[i]), ALIGN);
        if (i < OP_MAX_IN) fill(r, &c, all[i]);
    }
    double seconds = bench_call_seconds(&r->target, &c);
    bench_unmap(&r->target, memory, size);
    return seconds;
}

/* ---- printing ---------------------------------------------------------------------------- */
static bool is_attention(op_code op) { return op == OP_ATTENTION || op == OP_ATTENTION_BWD; }

static void print_entry(bench_table *table, const entry *e) {
    const tensor *a = &e->c.in[0], *c = &e->c.out[0];
    bench_cell(table, "%s", op_name(e->c.op));
    bench_cell(table, "%s %lld x %lld -> %lld x %lld", dt_name(a->dt), (long long)a->dim[0],
               (long long)a->dim[1], (long long)c->dim[0], (long long)c->dim[1]);
    bench_cell(table, "%d", e->times);
    bench_cell(table, "%.3f", 1e3 * e->seconds);
    bench_cell(table, "%.1f", ops_work(&e->c).flops / e->seconds / 1e12);
    bench_cell(table, "%.2f", 1e3 * e->seconds * e->times);
}

static void print_floor(floor_run *r) {
    static const bench_column columns[] = { { "op", -14 }, { "from, to", -40 }, { "times", 5 },
                                            { "ms", 9 },   { "TFLOP/s", 9 },    { "ms/step", 9 } };
    ops_gpu_speed gpu = { .copy = NAN };
    double gemms = 0, attention = 0;
    bench_table table = { 0 };
    if (r->cuda) bench_check(ops_cuda_measure(r->target.ops, &gpu));
    if (!r->json) table = bench_table_start(columns, COUNT_OF(columns));
    for (int i = 0; i < r->n; i++) {
        entry *e = &r->list[i];
        e->seconds = seconds_of(r, e->c);
        *(is_attention(e->c.op) ? &attention : &gemms) += e->seconds * e->times;
        if (!r->json) print_entry(&table, e);
    }
    double moving = r->bytes / gpu.copy, all = gemms + attention + moving;
    if (r->json)
        printf("{\"floor_ms\": %.2f, \"gemms_ms\": %.2f, \"attention_ms\": %.2f, "
               "\"bytes_ms\": %.2f, \"copy_gb_s\": %.0f}\n",
               1e3 * all, 1e3 * gemms, 1e3 * attention, 1e3 * moving, gpu.copy / 1e9);
    else if (r->cuda)
        printf("GEMMs %.2f ms, attention %.2f ms, %.1f GB at %.0f GB/s %.2f ms: floor %.2f ms\n",
               1e3 * gemms, 1e3 * attention, r->bytes / 1e9, gpu.copy / 1e9, 1e3 * moving,
               1e3 * all);
    else
        printf("GEMMs %.2f ms, attention %.2f ms, %.1f GB\n", 1e3 * gemms, 1e3 * attention,
               r->bytes / 1e9);
}

static void read_options(floor_run *r, int argc, char **argv) {
    const char *vocab = "auto", *fp8 = "off";
    const config_flag known[] = { { "--cuda", &r->cuda, NULL },
                                  { "--json", &r->json, NULL },
                                  { "--vocab", NULL, &vocab },
                                  { "--fp8", NULL, &fp8 } };
    config c;
    config_init(&c);
    bench_check(config_from_args(&c, argc - 4, argv + 4, known, (int)COUNT_OF(known)));
    bench_check(config_set(&c, "model.preset", argv[1]));
    bench_check(config_set(&c, "model.vocab_size", vocab));
    bench_check(config_set(&c, "precision.dtype", argv[4]));
    bench_check(config_set(&c, "precision.fp8", fp8));
    bench_check(model_from_config(&c, &r->mc));
    r->l.dt = dt_from_name(config_choice("precision.dtype", c.precision.dtype));
    if (r->l.dt == DT_NONE) bench_check(ERR("the type must be fp32, bf16 or fp16"));
    r->l.fp8 = c.precision.fp8;
    config_free(&c);
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: bench_gpu_floor PRESET ROWS SEQ DTYPE [--cuda] [--vocab=N] "
                        "[--fp8=RECIPE] [--json]\n");
        return 2;
    }
    floor_run r = { 0 };
    int64_t rows = atoll(argv[2]), seq = atoll(argv[3]);
    read_options(&r, argc, argv);
    r.mc.max_seq = MAX(r.mc.max_seq, seq);
    r.l.seq = seq;
    bench_check(ops_open(&(ops_choice){ .kind = r.cuda ? OPS_CUDA : OPS_CPU }, &r.target.ops));
    r.target.pool = r.cuda ? NULL : pool_new(0);
    add_step(&r, rows, seq);
    print_floor(&r);
    pool_free(r.target.pool);
    ops_close(r.target.ops);
    free(r.list);
    return 0;
}
