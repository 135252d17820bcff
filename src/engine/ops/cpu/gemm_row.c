/* GEMMs with few rows, as when text is generated token by token: B is read once, in place, since packing it
 * would cost more than multiplying it. Each element of C is one dot product, so that a row does not depend on how many
 * others there are: a sequence that is decoded beside others is computed bit-exactly as alone. A task has as many columns as
 * the widest tile. A row of B is read and converted once for a few rows of A.
 *
 * Workspace: | the rows of A in fp32 | one row of B per thread, for types without a loop of their own |
 */
#include "bandwidth.h"
#include "kernel/kernel_internal.h"

typedef struct row_run {
    const gemm *g;
    float *a;         /* [m][row_bytes] */
    char *convert;    /* one row of B for each thread */
    size_t row_bytes; /* k floats, aligned */
} row_run;

enum {
    FEW_ROWS = 8,
    DOT_ROWS = VEC_BYTES == 32 ? 2 : 4, /* whose sums 16 or 32 registers hold */
};
bool CPU(gemm_is_row)(const gemm *g) { return g->m <= FEW_ROWS && !g->ta && g->tb; }

static size_t row_bytes(const gemm *g) { return align_up((size_t)g->k * sizeof(float), 64); }

size_t CPU(gemm_row_workspace)(const gemm *g, int threads) {
    return row_bytes(g) * (size_t)(FEW_ROWS + threads) + 64;
}

/* Ends a dot product: the sum of the lanes, and of what follows the last whole vectors. Not inlined, so that
 * every loop adds them up with the same instructions. */
static __attribute__((noinline)) float dot_end(vf sum, dtype t, const float *a, const void *b,
                                               int64_t k, int64_t n) {
    float s = vec_total(sum);
    for (; k < n; k++) s += a[k] * elem_get(t, b, k);
    return s;
}

/* out[r] = a[r] . b, whose elements have type t: in the sums of a unit each, whatever `rows` is. */
LOOP_INLINE void dot_weight_row(dtype t, int rows, const float *const *a, const void *b, int64_t n,
                                float *out) {
    vf sum[DOT_ROWS][UNIT_VECS] = { 0 };
    int64_t k = 0;
    for (; k + UNIT <= n; k += UNIT) {
        vf right[UNIT_VECS];
        unit_prefetch(t, b, k);
        unit_load(t, b, k, right);
        VEC_UNROLL for (int r = 0; r < rows; r++) {
            vf left[UNIT_VECS];
            unit_load(DT_F32, a[r], k, left);
            UNIT_EACH sum[r][i] = vec_muladd(left[i], right[i], sum[r][i]);
        }
    }
    VEC_UNROLL for (int r = 0; r < rows; r++) out[r] =
        dot_end((sum[r][0] + sum[r][1]) + (sum[r][2] + sum[r][3]), t, a[r], b, k, n);
}
static void one_row(dtype t, const float *const *a, const void *b, int64_t n, float *out) {
    if (t == DT_BF16)
        dot_weight_row(DT_BF16, 1, a, b, n, out);
    else
        dot_weight_row(DT_F32, 1, a, b, n, out);
}
static void several_rows(dtype t, const float *const *a, const void *b, int64_t n, float *out) {
    if (t == DT_BF16)
        dot_weight_row(DT_BF16, DOT_ROWS, a, b, n, out);
    else
        dot_weight_row(DT_F32, DOT_ROWS, a, b, n, out);
}

/* Row `col` of B, in its own type where there is a loop for it. */
static const void *row_of_b(const row_run *r, int64_t col, int worker) {
    const gemm *g = r->g;
    const void *b = (const char *)g->b + col * g->ldb * (int64_t)dt_size(g->bt);
    if (g->bt == DT_F32 || g->bt == DT_BF16) return b;
    float *row = (float *)(void *)(r->convert + r->row_bytes * (size_t)worker);
    CPU(to_f32)(g->bt, b, row, g->k);
    return row;
}

static void gemm_row_task(void *ctx, int64_t i, int worker) {
    const row_run *r = ctx;
    const gemm *g = r->g;
    float sums[FEW_ROWS * GEMM_MAX_NR] = { 0 };
    gemm_tile t = {
        .t = sums, .mr = (int)g->m, .nr = GEMM_MAX_NR, .rows = (int)g->m, .bias = true
    };
    t.col = i * GEMM_MAX_NR;
    t.cols = MIN(GEMM_MAX_NR, g->n - t.col);
    t.add = g->accumulate;
    for (int64_t j = 0; j < t.cols; j++) {
        const void *b = row_of_b(r, t.col + j, worker);
        for (int64_t k = 0; k < g->m; k += DOT_ROWS) {
            int64_t rows = MIN(DOT_ROWS, g->m - k);
            const float *a[DOT_ROWS];
            float out[DOT_ROWS] = { 0 };
            for (int e = 0; e < DOT_ROWS; e++) /* past the last row the last again */
                a[e] = r->a + (size_t)(k + MIN(e, rows - 1)) * (r->row_bytes / sizeof **a);
            (rows == 1 ? one_row : several_rows)(g->bt, a, b, g->k, out);
            for (int e = 0; e < rows; e++) sums[(k + e) * GEMM_MAX_NR + j] = out[e];
        }
    }
    CPU(gemm_store)(g, &t);
}

void CPU(gemm_row_run)(const gemm *g, pool *p, void *workspace) {
    row_run r = { .g = g, .row_bytes = row_bytes(g) };
    r.a = (float *)align_up((uintptr_t)workspace, 64);
    r.convert = (char *)r.a + r.row_bytes * FEW_ROWS;
    for (int64_t k = 0; k < g->m; k++) CPU(to_f32)
    (g->at, (const char *)g->a + k * g->lda * (int64_t)dt_size(g->at),
     r.a + (size_t)k * (r.row_bytes / sizeof *r.a), g->k);
    pool_run(p, (g->n + GEMM_MAX_NR - 1) / GEMM_MAX_NR, gemm_row_task, &r);
}
