/* GEMMs with one row, as when text is generated token by token: B is read once, in place, since packing it
 * would cost more than multiplying it. Each element of C is one dot product; a task has as many columns as
 * the widest tile.
 *
 * Workspace: | the row of A in fp32 | one row of B per thread, for types without a loop of their own |
 */
#include "kernel/kernel_internal.h"
#include "vmath.h"

typedef struct row_run {
    const gemm *g;
    float *a;         /* [k] */
    char *convert;    /* one row of B for each thread */
    size_t row_bytes; /* k floats, aligned */
} row_run;

bool CPU(gemm_is_row)(const gemm *g) { return g->m == 1 && !g->ta && g->tb; }

static size_t row_bytes(const gemm *g) { return align_up((size_t)g->k * sizeof(float), 64); }

size_t CPU(gemm_row_workspace)(const gemm *g, int threads) {
    return row_bytes(g) * (size_t)(1 + threads) + 64;
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

static float dot_any(const row_run *r, int64_t col, int worker) {
    const gemm *g = r->g;
    const void *b = (const char *)g->b + col * g->ldb * (int64_t)dt_size(g->bt);
    if (g->bt == DT_F32) return dot_f32(r->a, b, g->k);
    if (g->bt == DT_BF16) return dot_bf16(r->a, b, g->k);
    float *row = (float *)(void *)(r->convert + r->row_bytes * (size_t)worker);
    CPU(to_f32)(g->bt, b, row, g->k);
    return dot_f32(r->a, row, g->k);
}

static void gemm_row_task(void *ctx, int64_t i, int worker) {
    const row_run *r = ctx;
    const gemm *g = r->g;
    float sums[GEMM_MAX_NR] = { 0 };
    gemm_tile t = { .t = sums, .mr = 1, .nr = GEMM_MAX_NR, .rows = 1, .bias = true };
    t.col = i * GEMM_MAX_NR;
    t.cols = MIN(GEMM_MAX_NR, g->n - t.col);
    t.add = g->accumulate;
    for (int64_t j = 0; j < t.cols; j++) sums[j] = dot_any(r, t.col + j, worker);
    CPU(gemm_store)(g, &t);
}

void CPU(gemm_row_run)(const gemm *g, pool *p, void *workspace) {
    row_run r = { .g = g, .row_bytes = row_bytes(g) };
    r.a = (float *)align_up((uintptr_t)workspace, 64);
    r.convert = (char *)r.a + r.row_bytes;
    CPU(to_f32)(g->at, g->a, r.a, g->k);
    pool_run(p, (g->n + GEMM_MAX_NR - 1) / GEMM_MAX_NR, gemm_row_task, &r);
}
