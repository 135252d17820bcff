/* GEMMs with few rows, as when text is generated token by token: B is read once, in place, since packing it
 * would cost more than multiplying it. Each element of C is one dot product, so that a row does not depend on how many
 * others there are: a sequence that is decoded beside others gets the same bits as alone. A task has as many columns as
 * the widest tile.
 *
 * Workspace: | the rows of A in fp32 | one row of B per thread, for types without a loop of their own |
 */
#include "kernel/kernel_internal.h"
#include "vmath.h"

typedef struct row_run {
    const gemm *g;
    float *a;         /* [m][row_bytes] */
    char *convert;    /* one row of B for each thread */
    size_t row_bytes; /* k floats, aligned */
} row_run;

enum { FEW_ROWS = 8 };
bool CPU(gemm_is_row)(const gemm *g) { return g->m <= FEW_ROWS && !g->ta && g->tb; }

static size_t row_bytes(const gemm *g) { return align_up((size_t)g->k * sizeof(float), 64); }

size_t CPU(gemm_row_workspace)(const gemm *g, int threads) {
    return row_bytes(g) * (size_t)(FEW_ROWS + threads) + 64;
}

static float dot_f32(const float *a, const float *b, int64_t n) {
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static float dot_bf16(const float *a, const uint16_t *b, int64_t n) {
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * vm_from_bits((uint32_t)b[i] << 16);
    return sum;
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
        for (int64_t k = 0; k < g->m; k++) {
            const float *a = r->a + (size_t)k * (r->row_bytes / sizeof *a);
            sums[k * GEMM_MAX_NR + j] =
                g->bt == DT_BF16 ? dot_bf16(a, b, g->k) : dot_f32(a, b, g->k);
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
