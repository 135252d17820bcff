/* A causal convolution of each column over its last W tokens, and SiLU:
 *
 *     p[i] = sum of w[W-1-k] x[i-k]   over k < W whose token i-k is of the same document,   y = p sigmoid(p)
 *     dp = dy s (1 + p (1 - s)),   dx[j] = sum of w[W-1-k] dp[j+k],   dw[W-1-k] = sum of dp[i] x[i-k]
 *
 * A task has a block of columns. Backward steps over all rows and keeps the last W of dp, so that a task has whole sums for its
 * columns: deterministic. Bytes moved: each operand once; rows that taps read again are in cache. */
#include "chunks.h"
#include "ops/op_table.h"
#include "vmath.h"

#include <string.h>

enum { COLS = 256, TAPS = 16, ROWS = 256 };

typedef struct conv_job {
    const op_call *c;
    const tensor *x, *w, *y, *dy, *dw, *state;
    const int32_t *start, *pos;
    int64_t n, cols, taps;
} conv_job;

/* The taps of a block of columns, each contiguous. */
static void read_taps(const conv_job *j, int64_t col, int64_t m, float w[TAPS][COLS]) {
    float row[TAPS];
    for (int64_t e = 0; e < m; e++) {
        const float *at = elems_get(j->w, (col + e) * j->taps, j->taps, row);
        for (int64_t t = 0; t < j->taps; t++) w[t][e] = at[t];
    }
}

static void add_tap(float *sum, const float *w, const float *x, int64_t m) {
#pragma omp simd
    for (int64_t e = 0; e < m; e++) sum[e] += w[e] * x[e];
}

/* p of row i. */
static void convolve(const conv_job *j, int64_t i, int64_t col, int64_t m, float w[TAPS][COLS],
                     float *p) {
    float tmp[COLS];
    memset(p, 0, (size_t)m * sizeof *p);
    for (int64_t k = 0; k < j->taps && i - k >= j->start[i]; k++)
        add_tap(p, w[j->taps - 1 - k], elems_get(j->x, (i - k) * j->cols + col, m, tmp), m);
}

static void put_silu(const tensor *y, int64_t at, int64_t m, const float *p) {
    float out[COLS];
    for (int64_t e = 0; e < m; e++) out[e] = p[e] / (1 + vm_exp(-p[e]));
    elems_put(y, at, m, out);
}

static void conv_task(void *ctx, int64_t task, int worker) {
    const conv_job *j = ctx;
    int64_t blocks = ceil_div(j->cols, COLS), col = task % blocks * COLS;
    int64_t m = MIN(COLS, j->cols - col);
    span rows = span_of(task / blocks, ROWS, j->n);
    float w[TAPS][COLS], p[COLS];
    read_taps(j, col, m, w);
    for (int64_t i = rows.lo; i < rows.hi; i++) {
        convolve(j, i, col, m, w, p);
        put_silu(j->y, i * j->cols + col, m, p);
    }
}

static conv_job conv_job_of(const op_call *c, const tensor *x) {
    conv_job j = { .c = c, .x = x, .w = x + 1, .n = x->dim[0], .cols = x->dim[1] };
    j.taps = j.w->dim[1];
    BUG_IF(j.taps > TAPS);
    return j;
}

static void CPU(short_conv)(const op_call *c) {
    conv_job j = conv_job_of(c, &c->in[0]);
    j.start = c->in[2].data;
    j.y = &c->out[0];
    pool_run(c->run->pool, ceil_div(j.cols, COLS) * ceil_div(j.n, ROWS), conv_task, &j);
}

/* dp of row i, and its part of dw. */
static void conv_slope(const conv_job *j, int64_t i, int64_t col, int64_t m, float w[TAPS][COLS],
                       float dw[TAPS][COLS], float *dp) {
    float tmp[COLS], p[COLS];
    convolve(j, i, col, m, w, p);
    const float *dy = elems_get(j->dy, i * j->cols + col, m, tmp);
    for (int64_t e = 0; e < m; e++) {
        float s = 1 / (1 + vm_exp(-p[e]));
        dp[e] = dy[e] * s * (1 + p[e] * (1 - s));
    }
    for (int64_t k = 0; k < j->taps && i - k >= j->start[i]; k++)
        add_tap(dw[j->taps - 1 - k], dp, elems_get(j->x, (i - k) * j->cols + col, m, tmp), m);
}

static void conv_bwd_task(void *ctx, int64_t task, int worker) {
    const conv_job *j = ctx;
    const tensor *dx = &j->c->out[0];
    int64_t col = task * COLS, m = MIN(COLS, j->cols - col), taps = j->taps;
    float w[TAPS][COLS], dw[TAPS][COLS], last[TAPS][COLS], sum[COLS];
    read_taps(j, col, m, w);
    memset(dw, 0, sizeof dw);
    for (int64_t i = 0; i < j->n + taps - 1; i++) {
        int64_t row = i - (taps - 1);
        if (i < j->n) conv_slope(j, i, col, m, w, dw, last[i % taps]);
        if (row < 0 || !dx->data) continue;
        memset(sum, 0, sizeof sum);
        for (int64_t k = 0; k < taps && row + k < j->n && j->start[row + k] <= row; k++)
            add_tap(sum, w[taps - 1 - k], last[(row + k) % taps], m);
        elems_put(dx, row * j->cols + col, m, sum);
    }
    float *to = j->dw->data;
    bool add = j->c->accumulate & 2;
    for (int64_t e = 0; to && e < m * taps; e++) {
        float *at = to + col * taps + e;
        *at = (add ? *at : 0) + dw[e % taps][e / taps];
    }
}

static void CPU(short_conv_bwd)(const op_call *c) {
    conv_job j = conv_job_of(c, &c->in[1]);
    j.dy = &c->in[0];
    j.start = c->in[3].data;
    j.dw = &c->out[1];
    pool_run(c->run->pool, ceil_div(j.cols, COLS), conv_bwd_task, &j);
}

/* ---- generation: a sequence's state holds its last W - 1 rows of x, the newest last ---------------- */
static void conv_cached_task(void *ctx, int64_t task, int worker) {
    const conv_job *j = ctx;
    int64_t col = task * COLS, m = MIN(COLS, j->cols - col), kept = j->taps - 1;
    float w[TAPS][COLS], p[COLS] = { 0 }, tmp[COLS];
    read_taps(j, col, m, w);
    for (int64_t i = 0; i < j->n; i++) {
        bool again = i && j->start[i] == j->start[i - 1] && j->pos[i] == j->pos[i - 1];
        float *state =
            (float *)j->state->data + j->start[i] / j->c->attr.heads.seq * kept * j->cols + col;
        if (!again) {
            const float *x = elems_get(j->x, i * j->cols + col, m, tmp);
            memset(p, 0, sizeof p);
            for (int64_t k = 0; k < kept; k++) {
                float *old = state + k * j->cols;
                if (j->pos[i] == 0) memset(old, 0, (size_t)m * sizeof *old);
                add_tap(p, w[k], old, m);
                const float *next = k + 1 < kept ? old + j->cols : x;
                if (j->pos[i] || next == x) memcpy(old, next, (size_t)m * sizeof *old);
            }
            add_tap(p, w[kept], x, m);
        }
        put_silu(j->y, i * j->cols + col, m, p);
    }
}

static void CPU(short_conv_cached)(const op_call *c) {
    conv_job j = conv_job_of(c, &c->in[0]);
    j.state = &c->in[2];
    j.pos = c->in[3].data;
    j.start = c->in[4].data;
    j.y = &c->out[0];
    BUG_IF(c->attr.heads.seq < 1 || j.state->dim[1] != (j.taps - 1) * j.cols);
    pool_run(c->run->pool, ceil_div(j.cols, COLS), conv_cached_task, &j);
}

KERNEL(SHORT_CONV, CPU(short_conv));
KERNEL(SHORT_CONV_BWD, CPU(short_conv_bwd));
KERNEL(SHORT_CONV_CACHED, CPU(short_conv_cached), NULL, ATTR(SEQ));
