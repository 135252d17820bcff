/* RMS norm of the q and of the k heads of a row, head by head or over the whole width. */
#include "norm.h"

#include <math.h>
#include <string.h>

/* Adjacent groups of a row, of equal width, each normalized by itself with the same weights. */
typedef struct head_segment {
    int64_t at, count, width; /* of group g: columns [at + g * width, at + (g + 1) * width) */
    int64_t stat;             /* column of the first group's statistic */
} head_segment;

typedef struct qknorm_job {
    const op_call *c;
    norm_space space;
    int64_t n, cols, each, stats; /* stats: columns of stat */
    head_segment seg[2];          /* q, k */
    int64_t v;                    /* first column of v */
} qknorm_job;

static qknorm_job qknorm_job_of(const op_call *c) {
    const tensor *x = &c->in[0];
    int64_t dim = c->attr.heads.dim, q = c->attr.heads.q, kv = c->attr.heads.kv;
    qknorm_job j = { .c = c,
                     .space = CPU(norm_space_of)(c),
                     .n = x->dim[0],
                     .cols = x->dim[1],
                     .each = rows_per_task(x->dim[1]),
                     .v = (q + kv) * dim };
    BUG_IF(j.cols != (q + 2 * kv) * dim);
    if (c->attr.heads.norm_full) {
        j.seg[0] = (head_segment){ .at = 0, .count = 1, .width = q * dim, .stat = 0 };
        j.seg[1] = (head_segment){ .at = q * dim, .count = 1, .width = kv * dim, .stat = 1 };
    } else {
        j.seg[0] = (head_segment){ .at = 0, .count = q, .width = dim, .stat = 0 };
        j.seg[1] = (head_segment){ .at = q * dim, .count = kv, .width = dim, .stat = q };
    }
    j.stats = j.seg[1].stat + j.seg[1].count;
    return j;
}

static void segment_fwd(const head_segment *s, const float *x, const float *w, float *y,
                        float *stat, float eps) {
    norm_finish o = { .x = NULL };
    for (int64_t g = 0; g <= s->count; g++) { /* finishes group g - 1 and sums up group g */
        const float *at = x + s->at + g * s->width;
        norm_next n = { .r = g < s->count ? (void *)at : NULL };
        float squares = norm_pass((norm_form){ .t = DT_F32 }, n, o, s->width);
        o = (norm_finish){ .x = at, .y = y + s->at + g * s->width, .w = w };
        o.scale = 1 / sqrtf(squares / (float)s->width + eps);
        if (n.r) stat[s->stat + g] = o.scale;
    }
}

static void qknorm_task(void *ctx, int64_t i, int worker) {
    const qknorm_job *j = ctx;
    const op_call *c = j->c;
    const tensor *xt = &c->in[0], *yt = &c->out[0];
    const norm_space *sp = &j->space;
    float *stat = c->out[1].data; /* [N, S] */
    const float *w[2];
    for (int k = 0; k < 2; k++)
        w[k] = CPU(norm_weights)(&c->in[1 + k], j->seg[k].width, norm_row(sp, worker, 2 + k));
    span rows = span_of(i, j->each, j->n);
    for (int64_t row = rows.lo; row < rows.hi; row++) {
        const float *x = CPU(row_get)(xt, row, j->cols, norm_row(sp, worker, 0));
        float *y = CPU(row_at)(yt, row, j->cols, norm_row(sp, worker, 1));
        for (int k = 0; k < 2; k++)
            segment_fwd(&j->seg[k], x, w[k], y, stat + row * j->stats, c->attr.eps);
        if (x != y) memcpy(y + j->v, x + j->v, (size_t)(j->cols - j->v) * sizeof *y);
        CPU(row_put)(yt, row, j->cols, y);
    }
}

static void CPU(qknorm)(const op_call *c) {
    qknorm_job j = qknorm_job_of(c);
    pool_run(c->run->pool, ceil_div(j.n, j.each), qknorm_task, &j);
}

static void segment_bwd(const head_segment *s, const float *dy, const float *x, const float *w,
                        const float *stat, float *dx, float *dw) {
    norm_back o = { .x = NULL };
    for (int64_t g = 0; g <= s->count; g++) {
        int64_t at = s->at + g * s->width;
        norm_back n = { .x = NULL };
        if (g < s->count)
            n = (norm_back){
                .dy = dy + at, .x = x + at, .dx = dx + at, .scale = stat[s->stat + g]
            };
        norm_back_pass((norm_form){ .t = DT_F32 }, &n, &o, (norm_grad){ .w = w, .dw = dw },
                       s->width);
        o = n;
    }
}

static void qknorm_bwd_task(void *ctx, int64_t i, int worker) {
    const qknorm_job *j = ctx;
    const op_call *c = j->c;
    const norm_space *sp = &j->space;
    const tensor *dyt = &c->in[0], *xt = &c->in[1], *dxt = &c->out[0];
    const float *stat = c->in[2].data; /* [N, S] */
    float *partial = sp->partial + i * sp->width;
    memset(partial, 0, (size_t)sp->width * sizeof *partial);
    float *dw[2] = { partial, partial + sp->ld };
    const float *w[2];
    for (int k = 0; k < 2; k++)
        w[k] = CPU(norm_weights)(&c->in[3 + k], j->seg[k].width, norm_row(sp, worker, 3 + k));
    span rows = span_of(i, sp->each, j->n);
    for (int64_t row = rows.lo; row < rows.hi; row++) {
        const float *dy = CPU(row_get)(dyt, row, j->cols, norm_row(sp, worker, 0));
        const float *x = CPU(row_get)(xt, row, j->cols, norm_row(sp, worker, 1));
        float *dx = CPU(row_at)(dxt, row, j->cols, norm_row(sp, worker, 2));
        for (int k = 0; k < 2; k++)
            segment_bwd(&j->seg[k], dy, x, w[k], stat + row * j->stats, dx, dw[k]);
        if (dx != dy) memcpy(dx + j->v, dy + j->v, (size_t)(j->cols - j->v) * sizeof *dx);
        CPU(row_put)(dxt, row, j->cols, dx);
    }
}

static void CPU(qknorm_bwd)(const op_call *c) {
    qknorm_job j = qknorm_job_of(c);
    pool_run(c->run->pool, j.space.chunks, qknorm_bwd_task, &j);
    CPU(norm_reduce)(c, &j.space, 0, 1);
    CPU(norm_reduce)(c, &j.space, j.space.ld, 2);
}

KERNEL(QKNORM, CPU(qknorm), CPU(norm_workspace), ATTRS_HEADS | ATTR(EPS) | ATTR(NORM_FULL));
KERNEL(QKNORM_BWD, CPU(qknorm_bwd), CPU(norm_workspace), ATTRS_HEADS | ATTR(NORM_FULL));
