/* Every op on the GPU against the CPU: each float type and mixtures, a spread of shapes, fresh
 * random data, outputs poisoned before each run.
 *
 *     gpu_ops [SEED [--most ELEMENTS] [--deterministic] [--threads N] [NAME]]
 *
 * --most: without calls of larger operands; NAME: only tests that have it in their name.
 *
 * A line an op; the last says 'N passed, N failed'. */
#include "gpu_harness.h"
#include "ops/op_table.h"

static void test_elementwise(void) {
    for (size_t s = 0; s < COUNT_OF(SHAPES); s++) EACH_TYPE(dt) {
            int64_t n = SHAPES[s].n, d = SHAPES[s].d;
            for (int other = 0; other < N_TYPES; other++) {
                op_call c = { .op = OP_ADD, .in = { random_of(dt, n, d, 0, 1) } };
                if (other) c.in[1] = random_of(TYPES[other], n, d, 0, 1);
                c.out[0] = random_of(TYPES[other], n, d, 0, 1);
                compare(&c, false, 1e-6);
                if (dt == (int)TYPES[other]) compare_in_place(&c, 1e-6);
                c.op = OP_SCALE;
                c.attr.scale.by = 0.37f;
                compare(&c, false, 1e-6);
                if (dt == (int)TYPES[other]) compare_in_place(&c, 1e-6);
                free(c.in[1].data);
                c.in[1] = (tensor){ 0 };
                c.op = OP_CAST;
                compare(&c, false, 1e-6);
                release(&c);
            }
            op_call c = { .op = OP_DROPOUT,
                          .in = { random_of(dt, n, d, 0, 1), make(DT_I64, 1, n) },
                          .out = { random_of(dt, n, d, 0, 1) } };
            for (int64_t i = 0; i < n; i++) ((int64_t *)c.in[1].data)[i] = (i + 1) * 77777777777;
            c.attr.dropout.p = 0.3f;
            c.attr.dropout.site = 2;
            compare(&c, false, 1e-6);
            compare_in_place(&c, 1e-6);
            release(&c);
        }
    op_call z = { .op = OP_ZERO, .out = { random_of(DT_F32, 1000, 0, 0, 1) } };
    compare(&z, false, 1e-9);
    release(&z);
}

static void test_activations(void) {
    for (size_t s = 0; s < COUNT_OF(SHAPES); s++) EACH_TYPE(dt) for (int act = 0; act < 2; act++) {
            int64_t n = SHAPES[s].n, d = SHAPES[s].d;
            op_call c = { .op = OP_GELU,
                          .in = { random_of(dt, n, d, 0, 2) },
                          .out = { random_of(dt, n, d, 0, 1) } };
            c.attr.act = (act_kind)act;
            compare(&c, false, 3e-6);
            release(&c);
            op_call b = { .op = OP_GELU_BWD,
                          .in = { random_of(dt, n, d, 0, 1), random_of(dt, n, d, 0, 2) },
                          .out = { random_of(dt, n, d, 0, 1) } };
            b.attr.act = (act_kind)act;
            compare(&b, false, 3e-6);
            compare_in_place(&b, 3e-6);
            release(&b);
            op_call g = { .op = OP_SWIGLU,
                          .in = { random_of(dt, n, 2 * d, 0, 2) },
                          .out = { random_of(dt, n, d, 0, 1) } };
            compare(&g, false, 3e-6);
            release(&g);
            op_call h = { .op = OP_SWIGLU_BWD,
                          .in = { random_of(dt, n, d, 0, 1), random_of(dt, n, 2 * d, 0, 2) },
                          .out = { random_of(dt, n, 2 * d, 0, 1) } };
            if (act) h.out[1] = random_of(dt, n, d, 0, 1);
            compare(&h, false, 3e-6);
            release(&h);
        }
}

static void norm_case(bool rms, dtype dt, dtype rt, int64_t n, int64_t d, bool delta, bool add) {
    op_call c = { .op = rms ? OP_RMSNORM : OP_LAYERNORM };
    c.attr.eps = 1e-5f;
    c.in[0] = random_of(rt, n, d, 0.3f, 1);
    if (delta) c.in[1] = random_of(dt, n, d, 0, 1);
    c.in[2] = random_of(DT_F32, d, 0, 1, 0.2f);
    if (!rms) c.in[3] = random_of(DT_F32, d, 0, 0, 0.2f);
    c.out[0] = random_of(rt, n, d, 0, 1);
    c.out[1] = random_of(dt, n, d, 0, 1);
    c.out[2] = rms ? make(DT_F32, 1, n) : make(DT_F32, 2, n, (int64_t)2);
    compare(&c, false, 3e-6);
    op_call b = { .op = rms ? OP_RMSNORM_BWD : OP_LAYERNORM_BWD };
    b.in[0] = random_of(dt, n, d, 0, 1);
    b.in[1] = c.out[0];
    b.in[2] = c.out[2];
    b.in[3] = c.in[2];
    if (delta) b.in[4] = random_of(rt, n, d, 0, 1);
    b.out[0] = random_of(rt, n, d, 0, 1);
    b.out[1] = random_of(DT_F32, d, 0, 0, 1);
    if (!rms) b.out[2] = random_of(DT_F32, d, 0, 0, 1);
    b.accumulate = add ? ~0u : 0;
    if (add) memset(b.out[0].data, 0, tensor_bytes(&b.out[0]));
    compare(&b, false, 1e-5);
    free(b.in[0].data);
    free(b.in[4].data);
    for (int i = 0; i < 3; i++) free(b.out[i].data);
    release(&c);
}

static void test_norms(void) {
    for (size_t s = 0; s < COUNT_OF(SHAPES); s++)
        EACH_TYPE(dt) for (int rms = 0; rms < 2; rms++) for (int k = 0; k < 2; k++) {
            norm_case(rms, dt, dt, SHAPES[s].n, SHAPES[s].d, k, k);
            norm_case(rms, dt, DT_F32, SHAPES[s].n, SHAPES[s].d, !k, k);
        }
    norm_case(true, DT_BF16, DT_BF16, 4096, 768, true, false);
    /* rows of every width, and so many that a block takes several */
    static const int64_t wide[][2] = { { 830, 2048 }, { 700, 1600 }, { 290, 4096 },  { 270, 5120 },
                                       { 150, 8192 }, { 280, 9000 }, { 140, 16384 }, { 20000, 64 },
                                       { 9, 1025 },   { 9, 8193 },   { 9, 16383 },   { 4300, 8 } };
    for (size_t s = 0; s < COUNT_OF(wide); s++)
        for (int k = 0; k < 4; k++)
            norm_case(k & 1, DT_BF16, k & 2 ? DT_F32 : DT_BF16, wide[s][0], wide[s][1], true,
                      k & 1);
    for (int64_t d = 1; d < 8; d++)
        for (int k = 0; k < 4; k++) norm_case(k & 1, DT_F32, DT_F32, 40, d + 8, k & 2, k & 2);
}

static void qknorm_case(dtype dt, int64_t n, int q, int kv, int dim, bool full, bool add) {
    int64_t cols = (int64_t)(q + 2 * kv) * dim, stats = full ? 2 : q + kv;
    op_call c = { .op = OP_QKNORM, .in = { random_of(dt, n, cols, 0.2f, 1) } };
    c.attr.eps = 1e-6f;
    c.attr.heads.q = q, c.attr.heads.kv = kv, c.attr.heads.dim = dim;
    c.attr.heads.norm_full = full;
    c.in[1] = random_of(DT_F32, full ? q * dim : dim, 0, 1, 0.2f);
    c.in[2] = random_of(DT_F32, full ? kv * dim : dim, 0, 1, 0.2f);
    c.out[0] = random_of(dt, n, cols, 0, 1);
    c.out[1] = make(DT_F32, 2, n, stats);
    compare(&c, false, 3e-6);
    op_call b = { .op = OP_QKNORM_BWD, .attr = c.attr, .accumulate = add ? 6 : 0 };
    b.in[0] = random_of(dt, n, cols, 0, 1);
    b.in[1] = c.in[0], b.in[2] = c.out[1], b.in[3] = c.in[1], b.in[4] = c.in[2];
    b.out[0] = random_of(dt, n, cols, 0, 1);
    b.out[1] = random_of(DT_F32, tensor_count(&c.in[1]), 0, 0, 1);
    b.out[2] = random_of(DT_F32, tensor_count(&c.in[2]), 0, 0, 1);
    compare(&b, false, 1e-5);
    free(b.in[0].data);
    for (int i = 0; i < 3; i++) free(b.out[i].data);
    release(&c);
}

static void test_qknorm(void) {
    static const int heads[][3] = { { 6, 2, 12 }, { 6, 2, 70 }, { 6, 2, 128 }, { 4, 1, 10 },
                                    { 8, 1, 5 },  { 2, 1, 12 }, { 1, 1, 64 },  { 4, 2, 300 } };
    EACH_TYPE(dt)
    for (size_t k = 0; k < COUNT_OF(heads); k++)
        for (int full = 0; full < 2; full++)
            qknorm_case(dt, 37, heads[k][0], heads[k][1], heads[k][2], full, k & 1);
    qknorm_case(DT_BF16, 300, 32, 8, 128, false, false);
}

static void test_rope(void) {
    static const int dims[][2] = { { 64, 64 }, { 128, 128 }, { 80, 20 }, { 12, 12 }, { 64, 16 } };
    for (size_t k = 0; k < COUNT_OF(dims); k++) EACH_TYPE(dt) for (int bwd = 0; bwd < 2; bwd++) {
            int q = 2 + (int)(k & 1), kv = 1, dim = dims[k][0], rot = dims[k][1];
            int64_t n = 29, cols = (q + 2 * kv) * dim;
            op_call c = { .op = bwd ? OP_ROPE_BWD : OP_ROPE,
                          .in = { random_of(dt, n, cols, 0, 1), ints_below(n, 50),
                                  random_of(DT_F32, 50, rot, 0, 1) },
                          .out = { random_of(dt, n, cols, 0, 1) } };
            c.attr.heads.q = q, c.attr.heads.kv = kv, c.attr.heads.dim = dim;
            c.attr.heads.rot = rot;
            compare(&c, false, 3e-6);
            compare_in_place(&c, 3e-6);
            release(&c);
        }
}

static void test_embed(void) {
    for (size_t s = 0; s < COUNT_OF(SHAPES); s++) EACH_TYPE(dt) for (int add = 0; add < 2; add++) {
            int64_t n = SHAPES[s].n * 7, d = SHAPES[s].d, v = 50;
            op_call c = { .op = OP_EMBED,
                          .in = { ints_below(n, v), random_of(dt, v, d, 0, 1) },
                          .out = { random_of(add ? DT_F32 : dt, n, d, 0, 1) } };
            compare(&c, false, 1e-7);
            op_call b = { .op = OP_EMBED_BWD,
                          .in = { random_of(dt, n, d, 0, 1), c.in[0] },
                          .out = { random_of(DT_F32, v, d, 0, 1) } };
            b.accumulate = add;
            compare(&b, false, 3e-6);
            free(b.in[0].data);
            free(b.out[0].data);
            release(&c);
        }
    static const int64_t long_runs[][3] = { { 3000, 1, 12 },
                                            { 3000, 3, 264 },
                                            { 3000, 1000, 520 } };
    for (size_t s = 0; s < COUNT_OF(long_runs); s++) { /* rows that most tokens share */
        int64_t n = long_runs[s][0], v = long_runs[s][1], d = long_runs[s][2];
        op_call b = { .op = OP_EMBED_BWD,
                      .in = { random_of(DT_BF16, n, d, 0, 1), ints_below(n, v) },
                      .out = { random_of(DT_F32, v, d, 0, 1) } };
        for (int64_t i = 0; i < n; i++)
            if (i % 5) ((int32_t *)b.in[1].data)[i] = 0;
        compare(&b, false, 1e-5);
        release(&b);
    }
}

/* Products on the CPU round their operands as the GPU does; only the order of sums differs. */
static void linear_case(dtype dt, dtype wt, int64_t n, int64_t k, int64_t m, bool bias, bool gelu,
                        int act) {
    op_call c = { .op = gelu ? OP_LINEAR_GELU : OP_LINEAR,
                  .in = { random_of(dt, n, k, 0, 1), random_of(wt, m, k, 0, 0.3f) },
                  .out = { random_of(dt, n, m, 0, 1) } };
    if (bias) c.in[2] = random_of(DT_F32, m, 0, 0, 1);
    if (gelu) c.out[1] = random_of(dt, n, m, 0, 1);
    c.attr.act = (act_kind)act;
    compare(&c, false, 2e-5);
    op_call x = { .op = OP_LINEAR_BWD_X,
                  .in = { random_of(dt, n, m, 0, 1), c.in[1] },
                  .out = { random_of(dt, n, k, 0, 1) } };
    compare(&x, false, 2e-5);
    op_call through = { .op = OP_LINEAR_BWD_X_GELU,
                        .in = { x.in[0], c.in[1], random_of(dt, n, k, 0, 1.5f) },
                        .out = { x.out[0] } };
    through.attr.act = (act_kind)act;
    compare(&through, false, 2e-5);
    free(through.in[2].data);
    for (int add = 0; add < 2; add++) {
        op_call w = { .op = OP_LINEAR_BWD_W,
                      .in = { x.in[0], c.in[0] },
                      .out = { random_of(DT_F32, m, k, 0, 1) } };
        if (bias) w.out[1] = random_of(DT_F32, m, 0, 0, 1);
        w.accumulate = add ? ~0u : 0;
        compare(&w, false, 2e-5);
        free(w.out[0].data);
        free(w.out[1].data);
    }
    free(x.in[0].data);
    free(x.out[0].data);
    release(&c);
}

static void test_linear(void) {
    static const int64_t shapes[][3] = {
        { 16, 64, 32 }, { 33, 24, 40 }, { 128, 768, 2304 }, { 7, 13, 5 }, { 200, 384, 1536 }
    };
    for (size_t s = 0; s < COUNT_OF(shapes); s++) EACH_TYPE(dt)
    for (int k = 0; k < 3; k++)
        linear_case(dt, dt, shapes[s][0], shapes[s][1], shapes[s][2], k > 0, k > 1, k & 1);
    linear_case(DT_F32, DT_BF16, 33, 64, 40, true, true, ACT_GELU_TANH);
    linear_case(DT_BF16, DT_BF16, 64, 64, 64, true, true, ACT_GELU_TANH);
}

/* ---- fp8: bytes and rows are the CPU's, bit for bit ---------------------------------------------- */
static tensor fp8_row(float scale, dtype dt) {
    tensor row = make(DT_F32, 1, (int64_t)FP8_ROW);
    float *v = row.data;
    v[FP8_TOP] = fp8_top(dt);
    fp8_set_scale(v, scale);
    v[FP8_AMAX] = 0.25f;
    return row;
}

static double different_bytes(const tensor *a, const tensor *b) {
    int64_t n = tensor_count(a), wrong = 0;
    float x, y;
    for (int64_t i = 0; i < n; i++) {
        dt_to_f32(a->dt, (const char *)a->data + i, &x, 1);
        dt_to_f32(b->dt, (const char *)b->data + i, &y, 1);
        wrong += isnan(x) ? !isnan(y) : memcmp(&x, &y, sizeof x) != 0;
    }
    return (double)wrong;
}

static void quantize_case(dtype xt, dtype dt, int64_t n, int64_t k, float scale, int which,
                          fp8_recipe recipe, bool given) {
    op_call c = { .op = OP_QUANTIZE, .in = { random_of(xt, n, k, 0, 3), fp8_row(scale, dt) } };
    if (which & 1) c.out[0] = make(dt, 2, n, k);
    if (which & 2) c.out[1] = make(dt, 2, k, n);
    float odd[] = { NAN, INFINITY, -INFINITY, 0, -0.0f };
    dt_from_f32(xt, odd, (char *)c.in[0].data + 11 * dt_size(xt), COUNT_OF(odd));
    c.attr.fp8.recipe = recipe;
    c.attr.fp8.given = given;
    if (too_large(&c)) return release(&c);
    poison(&c, false);
    op_call g = copy_outputs(&c);
    tensor row = fp8_row(scale, dt);
    g.in[1] = row;
    run_cpu(&c);
    run_gpu(&g);
    for (int i = 0; i < 2; i++)
        if (c.out[i].data) {
            note(&c, i, different_bytes(&g.out[i], &c.out[i]), 1e-3);
            free(g.out[i].data);
        }
    if (memcmp(row.data, c.in[1].data, tensor_bytes(&row))) note(&c, 2, 1, 1e-3);
    free(row.data);
    release(&c);
}

/* Activations differ in their last bits, so that a value in many thousands rounds the other way. */
static void quantize_activation_case(op_code op, int64_t n, int64_t k, int act, fp8_recipe recipe) {
    bool bwd = op == OP_QUANTIZE_SWIGLU_BWD || op == OP_QUANTIZE_GELU_BWD;
    int64_t in = op == OP_QUANTIZE_SWIGLU ? 2 * k : k,
            out = op == OP_QUANTIZE_SWIGLU_BWD ? 2 * k : k;
    dtype dt = bwd ? DT_E5M2 : DT_E4M3;
    op_call c = { .op = op, .in = { random_of(DT_BF16, n, in, 0.1f, 2), fp8_row(0, dt) } };
    if (bwd) c.in[2] = random_of(DT_BF16, n, op == OP_QUANTIZE_SWIGLU_BWD ? 2 * k : k, 0, 2);
    c.out[0] = make(dt, 2, n, out);
    c.out[1] = make(dt, 2, out, n);
    c.out[2] = random_of(DT_F32, out, 0, 0, 1);
    c.attr.act = (act_kind)act;
    c.attr.fp8.recipe = recipe;
    for (int add = 0; add < 2; add++) {
        c.accumulate = add ? ~0u : 0;
        memset(c.in[1].data, 0, tensor_bytes(&c.in[1]));
        compare(&c, false, 5e-3);
    }
    free(c.out[2].data); /* nor does anybody wait to add up columns then */
    c.out[2] = (tensor){ 0 };
    memset(c.in[1].data, 0, tensor_bytes(&c.in[1]));
    compare(&c, false, 5e-3);
    release(&c);
}

/* A tensor of zeros leaves its row cold; the next one warms it. */
static void zeros_case(int64_t n, int64_t k) {
    op_call c = { .op = OP_QUANTIZE,
                  .in = { make(DT_BF16, 2, n, k), fp8_row(0, DT_E4M3) },
                  .out = { make(DT_E4M3, 2, n, k), make(DT_E4M3, 2, k, n) } };
    c.attr.fp8.recipe = FP8_DELAYED;
    compare(&c, false, 1e-12);
    release(&c);
}

static void test_quantize_activations(void) {
    static const op_code ops[] = { OP_QUANTIZE, OP_QUANTIZE_SWIGLU, OP_QUANTIZE_SWIGLU_BWD,
                                   OP_QUANTIZE_GELU, OP_QUANTIZE_GELU_BWD };
    static const int64_t shapes[][2] = { { 16, 16 },   { 16, 144 },   { 272, 16 },  { 144, 272 },
                                         { 144, 400 }, { 400, 1600 }, { 2048, 768 } };
    for (size_t i = 0; i < COUNT_OF(ops); i++)
        for (size_t s = 0; s < COUNT_OF(shapes); s++)
            for (int k = 0; k < 2; k++)
                quantize_activation_case(ops[i], shapes[s][0], shapes[s][1], k,
                                         k ? FP8_CURRENT : FP8_DELAYED);
}

static void test_quantize(void) {
    static const int64_t shapes[][2] = { { 16, 16 },   { 16, 128 },   { 144, 16 },
                                         { 128, 272 }, { 400, 1600 }, { 2048, 768 } };
    for (size_t s = 0; s < COUNT_OF(shapes); s++) EACH_TYPE(xt) for (int k = 0; k < 24; k++) {
            dtype dt = k & 1 ? DT_E5M2 : DT_E4M3;
            float scale = k / 2 % 2 ? 64 : 0; /* 64: values beyond 7 saturate in e4m3 */
            quantize_case(xt, dt, shapes[s][0], shapes[s][1], scale, 1 + k / 4 % 3,
                          k < 12 ? FP8_DELAYED : FP8_CURRENT, k >= 20);
        }
    zeros_case(144, 272);
    op_call c = { .op = OP_FP8_COMMIT, .out = { make(DT_F32, 2, (int64_t)37, (int64_t)FP8_ROW) } };
    float *rows = c.out[0].data;
    for (int64_t i = 0; i < 37 * FP8_ROW; i++) rows[i] = fabsf(draw());
    for (int i = 0; i < 37; i++) rows[i * FP8_ROW + FP8_TOP] = fp8_top(i & 1 ? DT_E5M2 : DT_E4M3);
    memset(rows + 5 * FP8_ROW, 0, FP8_ROW * sizeof *rows);
    compare(&c, true, 1e-12);
    release(&c);
}

/* The GPU's sums of fp8 products are kept in fewer bits than fp32 has. */
static void fp8_linear_case(int64_t n, int64_t k, int64_t m, bool bias, bool gelu, int act) {
    op_call c = { .op = gelu ? OP_LINEAR_GELU : OP_LINEAR,
                  .in = { random_of(DT_E4M3, n, k, 0, 100), random_of(DT_E4M3, m, k, 0, 100) },
                  .out = { random_of(DT_BF16, n, m, 0, 1) } };
    if (bias) c.in[2] = random_of(DT_F32, m, 0, 0, 1);
    c.in[3] = fp8_row(0x1p7f, DT_E4M3), c.in[4] = fp8_row(0x1p8f, DT_E4M3);
    if (gelu) c.out[1] = random_of(DT_BF16, n, m, 0, 1);
    c.attr.act = (act_kind)act;
    compare(&c, false, 1e-3);
    op_call x = { .op = OP_LINEAR_BWD_X,
                  .in = { random_of(DT_E5M2, n, m, 0, 1000), random_of(DT_E4M3, k, m, 0, 100) },
                  .out = { random_of(DT_BF16, n, k, 0, 1) } };
    x.in[3] = fp8_row(0x1p11f, DT_E5M2), x.in[4] = c.in[4];
    compare(&x, false, 1e-3);
    for (int add = 0; add < 2; add++) {
        op_call w = { .op = OP_LINEAR_BWD_W,
                      .in = { random_of(DT_E5M2, m, n, 0, 1000), random_of(DT_E4M3, k, n, 0, 100) },
                      .out = { random_of(DT_F32, m, k, 0, 1) } };
        w.in[3] = x.in[3], w.in[4] = c.in[3];
        w.accumulate = add ? ~0u : 0;
        compare(&w, false, 1e-3);
        for (int i = 0; i < 2; i++) free(w.in[i].data);
        free(w.out[0].data);
    }
    for (int i = 0; i < 2; i++) free(x.in[i].data);
    free(x.in[3].data);
    free(x.out[0].data);
    release(&c);
}

static void test_fp8_linear(void) {
    static const int64_t shapes[][3] = {
        { 16, 16, 16 }, { 48, 32, 64 }, { 144, 272, 400 }, { 128, 768, 2304 }, { 1024, 384, 1536 }
    };
    for (size_t s = 0; s < COUNT_OF(shapes); s++)
        for (int k = 0; k < 4; k++)
            fp8_linear_case(shapes[s][0], shapes[s][1], shapes[s][2], k > 0, k > 1, k & 1);
}

/* @param grads bit 0: dh, bit 1: dw. */
static void loss_case(dtype ht, dtype wt, dtype dht, int64_t n, int64_t d, int64_t v, int grads,
                      bool add) {
    op_call c = { .op = OP_LINEAR_CE,
                  .in = { random_of(ht, n, d, 0, 1), random_of(wt, v, d, 0, 0.3f),
                          ints_below(n, v) },
                  .out = { random_of(DT_F32, n, 0, 0, 1) } };
    for (int64_t i = 0; i < n; i += 4) ((int32_t *)c.in[2].data)[i] = -100;
    c.attr.ce.logit_scale = 0.7f;
    if (grads & 1) c.out[1] = random_of(dht, n, d, 0, 1);
    if (grads & 2) c.out[2] = random_of(DT_F32, v, d, 0, 1);
    c.accumulate = add ? 4 : 0;
    /* logits pass through the operands' type here, through fp32 on the CPU */
    compare(&c, false, ht == DT_F32 && wt == DT_F32 ? 2e-5 : 1e-2);
    release(&c);
}

static void test_loss(void) {
    static const int64_t shapes[][3] = { { 33, 64, 101 },  { 17, 32, 4096 }, { 5, 16, 50257 },
                                         { 64, 24, 37 },   { 64, 64, 64 },   { 33, 64, 63 },
                                         { 4200, 64, 129 } };
    for (size_t s = 0; s < COUNT_OF(shapes); s++) EACH_TYPE(dt)
    for (int grads = 0; grads < 4; grads++)
        loss_case(dt, dt, dt, shapes[s][0], shapes[s][1], shapes[s][2], grads, grads == 2);
    loss_case(DT_BF16, DT_BF16, DT_F32, 33, 64, 101, 3, true);
    loss_case(DT_BF16, DT_F32, DT_BF16, 33, 64, 101, 3, false);
    for (int again = 0; again < 2; again++) /* trials meet what is there */
        loss_case(DT_BF16, DT_BF16, DT_BF16, 48, 64, 193, 3, true);
}

static void attention_case(dtype dt, int64_t rows, int64_t seq, int q, int kv, int dim, int window,
                           int length, bool told) {
    int64_t n = rows * seq, cols = (int64_t)(q + 2 * kv) * dim, wide = (int64_t)q * dim;
    op_call c = { .op = OP_ATTENTION,
                  .in = { random_of(dt, n, cols, 0, 1), starts(n, seq, length) },
                  .out = { random_of(dt, n, wide, 0, 1), make(DT_F32, 2, (int64_t)q, n) } };
    c.attr.heads.q = q, c.attr.heads.kv = kv, c.attr.heads.dim = dim, c.attr.heads.window = window;
    c.attr.heads.scale = 1 / sqrtf((float)dim);
    c.attr.heads.seq = told ? (int)seq : 0;
    c.attr.heads.documents = length > 0;
    op_call g = copy_outputs(&c);
    poison(&g, false);
    run_cpu(&c);
    run_gpu(&g);
    note(&c, 0, difference(&g.out[0], &c.out[0]), allowed(dt, 1e-5));
    /* backward from each side's own forward: the layout of lse is the backend's affair */
    op_call b = { .op = OP_ATTENTION_BWD,
                  .attr = c.attr,
                  .in = { random_of(dt, n, wide, 0, 1), c.in[0], c.out[0], c.out[1], c.in[1] },
                  .out = { random_of(dt, n, cols, 0, 1) } };
    op_call h = copy_outputs(&b);
    h.in[2] = g.out[0], h.in[3] = g.out[1];
    poison(&h, false);
    run_cpu(&b);
    run_gpu(&h);
    note(&b, 0, difference(&h.out[0], &b.out[0]), dt == DT_BF16 ? 1.2e-2 : allowed(dt, 2e-5) * 2);
    free(b.in[0].data);
    free(b.out[0].data);
    free(h.out[0].data);
    free(g.out[0].data);
    free(g.out[1].data);
    release(&c);
}

static void test_attention(void) {
    int64_t part = t.most ? 2 : 1;
    EACH_TYPE(dt) {
        for (int length = 0; length < 10; length += 9)
            for (int told = 0; told < 2; told++) {
                attention_case(dt, 2, 64 / part, 4, 4, 64, 0, length, told);
                attention_case(dt, 3, 128 / part, 6, 2, 64, 0, length, told);
                attention_case(dt, 1, 200 / part, 4, 1, 128, 0, length, told);
                attention_case(dt, 2, 96 / part, 2, 2, 32, 17, length, told);
            }
        for (int length = 300; !t.most && dt != DT_F32 && length > 20; length /= 5) {
            attention_case(dt, 2, 2048, 4, 2, 64, 0, length,
                           true); /* each document apart; with 60 */
            attention_case(dt, 1, 2048, 2, 2, 128, 0, length, true); /* more than there are slots */
        }
        for (int k = 0; !t.most && dt != DT_F32 && k < 2;
             k++) { /* rows that are no multiples of 128 */
            attention_case(dt, 2, 1000, 4, 2, 64, 0, k * 300, true);
            attention_case(dt, 3, 192, 4, 4, 128, 0, k * 300, true);
            attention_case(dt, 2, 2112, 4, 1, 64, 0, k * 300, true);
            attention_case(dt, 1, 4096, 8, 2, 128, 512, k * 300, true);
            attention_case(dt, 1, 2048, 2, 2, 64, 0, k ? 1 : 2048, true);
        }
        attention_case(dt, 1, 45, 3, 3, 20, 0, 9, false);
        attention_case(dt, 1, 70, 2, 1, 256, 9, 9, false);
    }
}

static void test_cached(void) {
    EACH_TYPE(dt) for (int window = 0; window < 2; window++) for (int64_t n = 1; n < 50; n += 40) {
        int q = 4, kv = 2, dim = 64;
        int64_t room = 128, at = 30;
        op_call c = { .op = OP_ATTENTION_CACHED,
                      .in = { random_of(dt, n, (q + 2 * kv) * dim, 0, 1),
                              random_of(dt, room, 2 * kv * dim, 0, 1), make(DT_I32, 1, n) },
                      .out = { random_of(dt, n, q * dim, 0, 1) } };
        for (int64_t i = 0; i < n; i++) ((int32_t *)c.in[2].data)[i] = (int32_t)(at + i);
        c.attr.heads.q = q, c.attr.heads.kv = kv, c.attr.heads.dim = dim;
        c.attr.heads.window = window ? 11 : 0;
        c.attr.heads.scale = 0.125f;
        compare(&c, false, 1e-5);
        release(&c);
    }
}

static void test_sqnorm(void) {
    static const int64_t sizes[] = { 1, 7, 4096, 100003, 3000000 };
    for (size_t s = 0; s < COUNT_OF(sizes); s++)
        for (int add = 0; add < 2; add++) {
            op_call c = { .op = OP_SQNORM,
                          .in = { random_of(DT_F32, sizes[s], 0, 0, 1) },
                          .out = { random_of(DT_F32, 2, 0, 5, 1) } };
            c.attr.scale.by = 0.5f;
            c.accumulate = add;
            t.shift = add ? 4 : 0;
            compare(&c, false, 1e-7);
            release(&c);
        }
    t.shift = 0;
}

/* To the bit: both sides run the same lines. */
static void test_clip(void) {
    static const float sums[] = { 0, 1e-30f, 0.25f, 1, 4, 1e30f, INFINITY };
    static const float scales[] = { 0, 1, 1024, 4294967296.0f };
    for (size_t i = 0; i < COUNT_OF(sums); i++)
        for (size_t k = 0; k < COUNT_OF(scales); k++)
            for (int interval = 0; interval < 3; interval++) {
                op_call c = { .op = OP_CLIP, .in = { make(DT_F32, 1, (int64_t)2) } };
                ((float *)c.in[0].data)[0] = sums[i];
                ((float *)c.in[0].data)[1] = sums[i] * 1e-8f;
                c.out[0] = make(DT_U8, 1, (int64_t)sizeof(step_state));
                *(step_state *)c.out[0].data =
                    (step_state){ .loss_scale = scales[k], .count = 11, .good = 1 };
                c.attr.clip.growth_interval = interval;
                compare(&c, true, 1e-9);
                release(&c);
            }
}

static void test_updates(void) {
    static const struct {
        op_code op;
        int states;
    } rules[] = { { OP_UPDATE_SGD, 0 },
                  { OP_UPDATE_MOMENTUM, 1 },
                  { OP_UPDATE_ADAM, 2 },
                  { OP_UPDATE_LION, 1 } };
    static const int64_t sizes[] = { 37, 255, 1024, 70001 }; /* one alone may cancel */
    for (size_t r = 0; r < COUNT_OF(rules); r++)
        for (size_t s = 0; s < COUNT_OF(sizes); s++)
            for (int copy = 0; copy < 3; copy++) {
                op_call c = { .op = rules[r].op, .in = { random_of(DT_F32, sizes[s], 0, 0, 1) } };
                c.attr.update.lr_mul = 1.5f, c.attr.update.decay = 0.1f;
                c.attr.update.beta1 = 0.9f, c.attr.update.beta2 = 0.95f;
                c.attr.update.eps = 1e-8f, c.attr.update.momentum = 0.9f;
                c.attr.update.l2 = copy == 1, c.attr.update.nesterov = copy == 2;
                for (int i = 0; i <= rules[r].states; i++)
                    c.out[i] = random_of(DT_F32, sizes[s], 0, i == 2 ? 1 : 0, 0.1f);
                if (copy) c.out[rules[r].states + 1] = random_of(TYPES[copy], sizes[s], 0, 0, 1);
                t.shift = s & copy & 1 ? 4 : 0;
                compare(&c, true, 2e-6);
                t.step.now.skip = 1;
                put_step();
                compare(&c, true, 1e-12);
                t.step.now.skip = 0;
                put_step();
                t.shift = 0;
                release(&c);
            }
}

static op_call narrow_update(op_code op, int states, int64_t n) {
    op_call c = { .op = op, .in = { random_of(DT_F32, n, 0, 0, 0.01f) } };
    c.attr.update.lr_mul = 1, c.attr.update.beta1 = 0.9f, c.attr.update.beta2 = 0.95f;
    c.attr.update.eps = 1e-8f, c.attr.update.site = 3, c.attr.update.first = 4096;
    c.out[0] = random_of(DT_BF16, n, 0, 0, 1);
    for (int i = 1; i <= states; i++) {
        bool bytes = op == OP_UPDATE_ADAM8;
        c.out[i] = bytes ? make(DT_U8, 1, (int64_t)block8_bytes(n))
                         : random_of(DT_F32, n, 0, i == 2 ? 1 : 0, 0.1f);
    }
    return c;
}

/* Weights in bf16. Where the update itself has no rounding, p - g, both sides draw the same bits. */
static void test_rounding(void) {
    static const struct {
        op_code op;
        int states;
    } rules[] = { { OP_UPDATE_SGD, 0 },
                  { OP_UPDATE_MOMENTUM, 1 },
                  { OP_UPDATE_ADAM, 2 },
                  { OP_UPDATE_LION, 1 },
                  { OP_UPDATE_ADAM8, 2 } };
    static const int64_t sizes[] = { 1, 255, 1024, 70001 };
    for (size_t r = 0; r < COUNT_OF(rules); r++)
        for (size_t s = 0; s < COUNT_OF(sizes); s++) {
            op_call c = narrow_update(rules[r].op, rules[r].states, sizes[s]);
            compare(&c, true, 2e-6);
            release(&c);
        }
    step_block was = t.step;
    t.step.update.lr = t.step.now.grad_scale = 1;
    put_step();
    for (size_t s = 0; s < COUNT_OF(sizes); s++)
        for (int shift = 0; shift < 2; shift++) {
            op_call c = narrow_update(OP_UPDATE_SGD, 0, sizes[s]);
            c.attr.update.first += shift;
            t.shift = (size_t)shift * 4;
            op_call g = copy_outputs(&c);
            run_cpu(&c);
            run_gpu(&g);
            bool same = !memcmp(c.out[0].data, g.out[0].data, tensor_bytes(&c.out[0]));
            note(&c, 0, same ? 0 : 1, 1e-3);
            free(g.out[0].data);
            release(&c);
        }
    t.shift = 0;
    t.step = was;
    put_step();
}

static void test_matrix_updates(void) {
    static const int64_t sizes[][2] = { { 64, 96 }, { 130, 40 }, { 300, 300 }, { 77, 0 } };
    for (size_t s = 0; s < COUNT_OF(sizes); s++) {
        int64_t r = sizes[s][0], k = sizes[s][1], n = r * MAX(k, 1);
        op_call c = { .op = OP_UPDATE_ADAFACTOR, .in = { random_of(DT_F32, r, k, 0, 1) } };
        c.attr.update.lr_mul = 1, c.attr.update.decay = 0.1f, c.attr.update.eps = 1e-30f;
        c.attr.update.momentum = 0.95f, c.attr.update.nesterov = true;
        c.out[0] = random_of(DT_F32, r, k, 0, 1);
        c.out[1] = random_of(DT_F32, r, 0, 1, 0.1f);
        if (k) c.out[2] = random_of(DT_F32, k, 0, 1, 0.1f);
        c.out[3] = random_of(DT_BF16, r, k, 0, 1);
        compare(&c, true, 3e-6);
        release(&c);
        op_call a = { .op = OP_UPDATE_ADAM8,
                      .attr = c.attr,
                      .in = { random_of(DT_F32, n, 0, 0, 1) } };
        a.attr.update.beta1 = 0.9f, a.attr.update.beta2 = 0.99f, a.attr.update.eps = 1e-8f;
        a.out[0] = random_of(DT_F32, n, 0, 0, 1);
        a.out[1] = make(DT_U8, 1, (int64_t)block8_bytes(n));
        a.out[2] = make(DT_U8, 1, (int64_t)block8_bytes(n));
        compare(&a, true, 2e-6);
        release(&a);
        if (!k) continue;
        op_call m = { .op = OP_UPDATE_MUON,
                      .attr = c.attr,
                      .in = { random_of(DT_F32, r, k, 0, 1) } };
        m.out[0] = random_of(DT_F32, r, k, 0, 1);
        m.out[1] = random_of(DT_F32, r, k, 0, 1);
        m.out[2] = random_of(DT_BF16, r, k, 0, 1);
        compare(&m, true, 1e-4);
        release(&m);
        op_call g = { .op = OP_AGC,
                      .in = { random_of(DT_F32, r, k, 0, 1) },
                      .out = { random_of(DT_F32, r, k, 0, 1) } };
        g.attr.agc.factor = 0.5f, g.attr.agc.eps = 1e-3f;
        compare(&g, true, 2e-6);
        release(&g);
    }
}

/* ---- all of them ------------------------------------------------------------------------------------- */
static const struct {
    const char *name;
    void (*run)(void);
    size_t shift; /* once more with all operands so many bytes off their alignment; 0: not */
} tests[] = {
    { "add, scale, cast, dropout, zero", test_elementwise, 8 },
    { "gelu, swiglu", test_activations, 8 },
    { "rmsnorm, layernorm", test_norms, 8 },
    { "qknorm", test_qknorm, 8 },
    { "rope", test_rope, 8 },
    { "embed", test_embed, 8 },
    { "linear", test_linear, 16 },
    { "quantize, fp8_commit", test_quantize },
    { "quantize swiglu, gelu", test_quantize_activations },
    { "linear in fp8", test_fp8_linear },
    { "linear_ce", test_loss },
    { "attention", test_attention },
    { "attention_cached", test_cached },
    { "sqnorm", test_sqnorm },
    { "clip", test_clip },
    { "sgd, momentum, adam, lion", test_updates },
    { "weights in bf16", test_rounding },
    { "adafactor, adam8, muon, agc", test_matrix_updates },
};

int main(int argc, char **argv) {
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t)time(NULL);
    const char *only = "";
    int flags = 0, threads = 0;
    for (int i = 2; i < argc; i++)
        if (strcmp(argv[i], "--most") == 0 && i + 1 < argc)
            t.most = atoll(argv[++i]);
        else if (strcmp(argv[i], "--deterministic") == 0)
            flags = OPS_DETERMINISTIC;
        else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            threads = atoi(argv[++i]);
        else
            only = argv[i];
    t.key = rng_key_of(seed, 1);
    t.cpu = ops_cpu(OPS_ISA_BEST);
    t.pool = pool_new(threads);
    stop(ops_cuda_open(0, flags, &t.gpu));
    t.step = (step_block){ .loss_grad = 0.013f, .dropout = rng_key_of(seed, 2) };
    t.step.update.lr = 1e-2f, t.step.update.max_norm = 1;
    t.step.update.rounding = rng_key_of(seed, 3);
    t.step.now.grad_scale = 0.8f, t.step.now.count = 7;
    void *p = NULL;
    stop(t.gpu->device->map(t.gpu->context, sizeof t.step, &p));
    t.step_gpu = p;
    put_step();
    printf("seed %llu, CPU %s\n", (unsigned long long)seed, t.cpu->name);
    for (size_t i = 0; i < COUNT_OF(tests); i++) {
        if (!strstr(tests[i].name, only)) continue;
        t.worst = 0;
        t.worst_case[0] = 0;
        tests[i].run();
        t.shift = tests[i].shift;
        if (t.shift) tests[i].run();
        t.shift = 0;
        bool good = t.worst <= 1;
        t.passed += good;
        t.failed += !good;
        printf("%-4s %-34s worst: %s\n", good ? "ok" : "FAIL", tests[i].name, t.worst_case);
        fflush(stdout);
    }
    printf("%d passed, %d failed\n", t.passed, t.failed);
    ops_cuda_close(t.gpu);
    pool_free(t.pool);
    return t.failed > 0;
}
