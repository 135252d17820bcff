/* The loss: logits, their softmax, and the gradients of both operands in one pass over chunks of
 * rows, so that the logits of all tokens never exist at once.
 *
 *     for each chunk of rows
 *         z[R,V]  = h w^T                           GEMM, fp32
 *         loss, p = softmax(scale z), or of capped z   one task per row; p - onehot (or - the smoothed target),
 *                                                   times the loss's gradient, replaces z in place in h's type
 *         dh[R,D] = p w,   dw[V,D] += p^T h         GEMMs
 *
 * Chunks are large because each packs w twice and reads and writes all of dw once.
 *
 * Without gradients, rows that have no target are left out: h's others are gathered, since an evaluation of answers has a target
 * for few of its tokens.
 *
 * In fp8 (attr.ce.fp8) h and w are quantized first and p is stored in e5m2: the GEMMs widen them, and `unscale` turns their
 * results into real values.
 *
 * Workspace: | z, rows of `stride` floats | rows with a target, and h of a chunk of them | h and w in fp8 | workspace of the GEMMs |
 *
 * Where the vocabulary is sharded, the GEMMs are ops of their own, and ce_stat and ce_loss at the end of this
 * file are what lies between them, before and after a collective.
 */
#include "cpu_internal.h"
#include "ops/op_table.h"
#include "vmath.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { CHUNK_BYTES = 128 << 20, LEAST_ROWS = 32, LINE = 16, BLOCK = 512, NO_TARGET = -100 };

typedef struct ce_job {
    const op_call *call;
    int64_t n, d, v;
    int64_t rows;   /* of a chunk */
    int64_t stride; /* floats between rows of z */
    tensor h, w;    /* what the GEMMs read: the operands, or those in fp8 */
    dtype pt;       /* of p */
    float unscale_h, unscale_w, unscale_p;
    size_t z_bytes, gather_bytes, fp8_bytes;
    float *z;
    int64_t from, count; /* the current chunk */
    int32_t *row;        /* [n] where each row is; NULL: in its place */
    char *gathered;      /* [rows, d] of h's type */
} ce_job;

static bool has_gradients(const op_call *c) {
    return c->out[1].dt != DT_NONE || c->out[2].dt != DT_NONE;
}

static ce_job ce_job_of(const op_call *c) {
    bool fp8 = c->attr.ce.fp8;
    ce_job s = { .call = c, .n = c->in[0].dim[0], .d = c->in[0].dim[1], .v = c->in[1].dim[0] };
    s.h = c->in[0];
    s.w = c->in[1];
    s.unscale_h = s.unscale_w = s.unscale_p = 1;
    if (fp8) s.h.dt = s.w.dt = DT_E4M3;
    if (fp8) s.fp8_bytes = align_up(tensor_bytes(&s.h), 64) + align_up(tensor_bytes(&s.w), 64);
    s.pt = fp8 ? DT_E5M2 : s.h.dt;
    /* An odd number of cache lines: the rows of a tile then map to different sets of a cache. */
    s.stride = (ceil_div(s.v, LINE) | 1) * LINE;
    int64_t most = MAX(LEAST_ROWS, CHUNK_BYTES / (s.stride * (int64_t)sizeof(float)));
    s.rows = ceil_div(s.n, MAX(1, ceil_div(s.n, most)));
    s.z_bytes = align_up((size_t)(s.rows * s.stride) * sizeof(float), 64);
    if (!has_gradients(c))
        s.gather_bytes = align_up((size_t)s.n * sizeof *s.row, 64) +
                         align_up((size_t)(s.rows * s.d) * dt_size(s.h.dt), 64);
    return s;
}

/* ---- the three GEMMs -------------------------------------------------------------------------- */

/* The chunk's rows of h or dh. */
static tensor chunk_of(const ce_job *s, const tensor *t) {
    int64_t skip = s->from * s->d * (int64_t)dt_size(t->dt);
    return tensor_of(t->data ? (char *)t->data + skip : NULL, t->dt, 2,
                     (int64_t[]){ s->count, s->d });
}
static tensor z_of(const ce_job *s, dtype dt) {
    return tensor_of(s->z, dt, 2, (int64_t[]){ s->count, s->v });
}

static gemm logits_gemm(const ce_job *s) {
    tensor h = chunk_of(s, &s->h), z = z_of(s, DT_F32);
    if (s->row) h.data = s->gathered;
    gemm g = CPU(gemm_of)(&h, false, &s->w, true, &z);
    g.ldc = s->stride;
    g.alpha = s->unscale_h * s->unscale_w;
    return g;
}

/* The rows of p begin where those of z did. */
static int64_t p_stride(const ce_job *s) {
    return s->stride * (int64_t)(sizeof(float) / dt_size(s->pt));
}

static gemm grad_h_gemm(const ce_job *s) {
    tensor dh = chunk_of(s, &s->call->out[1]), p = z_of(s, s->pt);
    gemm g = CPU(gemm_of)(&p, false, &s->w, false, &dh);
    g.lda = p_stride(s);
    g.alpha = s->unscale_p * s->unscale_w;
    return g;
}

static gemm grad_w_gemm(const ce_job *s) {
    tensor h = chunk_of(s, &s->h), p = z_of(s, s->pt);
    gemm g = CPU(gemm_of)(&p, true, &h, false, &s->call->out[2]);
    g.lda = p_stride(s);
    g.alpha = s->unscale_p * s->unscale_h;
    g.accumulate = s->from > 0 || (s->call->accumulate & 4);
    return g;
}

/* @return the most bytes that a GEMM of a chunk of `count` rows needs */
static size_t chunk_workspace(ce_job s, int64_t count, int threads) {
    const op_call *c = s.call;
    s.count = count;
    gemm g[3] = { logits_gemm(&s) };
    /* Without gradients only rows that have targets are multiplied: any number of them up to a chunk's. */
    if (!has_gradients(c)) return CPU(gemm_workspace_rows)(&g[0], threads);
    int n = 1;
    if (c->out[1].dt != DT_NONE) g[n++] = grad_h_gemm(&s);
    if (c->out[2].dt != DT_NONE) g[n++] = grad_w_gemm(&s);
    size_t most = 0;
    for (int i = 0; i < n; i++) most = MAX(most, CPU(gemm_workspace)(&g[i], threads));
    return most;
}

static size_t CPU(linear_ce_workspace)(const op_backend *b, const op_call *c, int threads) {
    ce_job s = ce_job_of(c);
    int64_t last = s.n - (ceil_div(s.n, s.rows) - 1) * s.rows;
    size_t most = MAX(chunk_workspace(s, s.rows, threads), chunk_workspace(s, last, threads));
    return s.z_bytes + s.gather_bytes + s.fp8_bytes + most + 64;
}

static void run_loss_gemm(const ce_job *s, gemm g) {
    const op_run *run = s->call->run;
    char *rest = (char *)s->z + s->z_bytes + s->gather_bytes + s->fp8_bytes;
    char *end = (char *)run->workspace + run->workspace_bytes;
    CPU(gemm_run)(&g, run->pool, rest, (size_t)(end - rest));
}

/* ---- softmax of one row ----------------------------------------------------------------------- */

/* Floats are ordered as their bits read as integers, once all but the sign bit of negative ones are
 * flipped. Compilers vectorize an integer maximum, but not that of floats. */
static int32_t float_order_key(int32_t bits) { return bits ^ (bits >> 31 & 0x7fffffff); }

static float row_max(const float *z, int64_t n, float scale) {
    int32_t most = INT32_MIN;
    for (int64_t j = 0; j < n; j++) {
        int32_t key = float_order_key((int32_t)f32_bits(z[j] * scale));
        most = key > most ? key : most;
    }
    return f32_of_bits((uint32_t)float_order_key(most));
}

/* Replaces z by e^(scale z - max). @return their sum, in blocks: a vocabulary is long enough for
 * one fp32 sum to lose four digits. */
static double row_exp(float *z, int64_t n, float scale, float max) {
    double sum = 0;
    for (int64_t j = 0; j < n; j += BLOCK) {
        float part = 0;
        for (int64_t i = j, end = MIN(j + BLOCK, n); i < end; i++) {
            float e = vm_exp(z[i] * scale - max);
            z[i] = e;
            part += e;
        }
        sum += (double)part;
    }
    return sum;
}

/* The same without replacing z. */
static double row_exp_sum(const float *z, int64_t n, float scale, float max) {
    double sum = 0;
    for (int64_t j = 0; j < n; j += BLOCK) {
        float part = 0;
        for (int64_t i = j, end = MIN(j + BLOCK, n); i < end; i++)
            part += vm_exp(z[i] * scale - max);
        sum += (double)part;
    }
    return sum;
}

/* The gradient of a token's loss by its unscaled logits, but for the probabilities. */
static float loss_gradient(const op_call *c) {
    const step_block *step = c->run->step;
    float loss_scale = step->now.loss_scale > 0 ? step->now.loss_scale : 1;
    return step->loss_grad * c->attr.ce.logit_scale * loss_scale;
}

/* ---- what a row's statistics yield ---------------------------------------------------------------- */
typedef struct row_stats {
    double max, sum;  /* of the logits, of e^(logit - max) */
    double at_target; /* the target's logit */
    double logits;    /* their sum, with smoothing */
} row_stats;

/* The gradient by logit j is by e^(logit - max) - each, and at the target less `share`. */
typedef struct row_slopes {
    float by, each, share;
} row_slopes;

static double log_of_sum(const row_stats *r) { return log(r->sum) + r->max; }

/* top1 is the last result of both ops. */
static void store_top1(const op_call *c, int loss, int64_t at, bool is) {
    float *top1 = c->out[loss ? 2 : 3].data;
    if (top1) top1[at] = is;
}

/* @param loss the index of that result @param v of the whole vocabulary */
static void store_row(const op_call *c, int loss, int64_t at, const row_stats *r, int64_t v) {
    double smoothing = (double)c->attr.ce.smoothing, z = log_of_sum(r);
    double own = z - r->at_target + (double)c->attr.ce.z_loss * z * z;
    own += smoothing * (r->at_target - r->logits / (double)v);
    ((float *)c->out[loss].data)[at] = (float)own;
    store_top1(c, loss, at, r->at_target >= r->max);
}

static void store_no_target(const op_call *c, int loss, int64_t at) {
    ((float *)c->out[loss].data)[at] = 0;
    store_top1(c, loss, at, false);
}

static row_slopes slopes_of_row(const op_call *c, const row_stats *r, int64_t v) {
    float whole = loss_gradient(c), scale = c->attr.ce.fp8 ? fp8_logit_scale(whole) : 1;
    double unit = (double)(whole * scale), smoothing = (double)c->attr.ce.smoothing;
    double more = 1 + 2 * (double)c->attr.ce.z_loss * log_of_sum(r);
    return (row_slopes){ (float)(unit * more / r->sum), (float)(unit * smoothing / (double)v),
                         (float)(unit * (1 - smoothing)) };
}

static double row_sum(const float *z, int64_t n, float scale) {
    double sum = 0;
    for (int64_t j = 0; j < n; j += BLOCK) {
        float part = 0;
        for (int64_t i = j, end = MIN(j + BLOCK, n); i < end; i++) part += z[i];
        sum += (double)part;
    }
    return sum * (double)scale;
}

/* Replaces z by its gradient, in a type no wider than fp32: a block is read before the narrower one is written, which
 * never reaches past it. */
static void row_grad(float *z, int64_t n, row_slopes d, int64_t target, dtype dt) {
    float block[BLOCK];
    for (int64_t j = 0; j < n; j += BLOCK) {
        int64_t count = MIN(BLOCK, n - j);
        for (int64_t i = 0; i < count; i++) block[i] = z[j + i] * d.by - d.each;
        if (target >= j && target < j + count) block[target - j] -= d.share;
        CPU(from_f32)(dt, block, (char *)z + j * (int64_t)dt_size(dt), count);
    }
}

/* out = the logits of n elements of z, scaled and capped; out may be z. */
static void logits_as_seen(const op_call *c, const float *z, int64_t n, float *out) {
    float scale = c->attr.ce.logit_scale, cap = c->attr.ce.cap, into = scale / cap;
    if (cap > 0)
        for (int64_t i = 0; i < n; i++) out[i] = cap * vm_tanh(z[i] * into);
    else
        for (int64_t i = 0; i < n; i++) out[i] = z[i] * scale;
}
/* Turns gradients by capped logits into those by the logits before. */
static void grad_through_cap(const op_call *c, float *grad, const float *capped, int64_t n) {
    float by = 1 / c->attr.ce.cap;
    if (!(c->attr.ce.cap > 0)) return;
    for (int64_t i = 0; i < n; i++) grad[i] *= 1 - capped[i] * by * (capped[i] * by);
}

/* The loss of a row of capped logits, and p in place of them: their slope is read beside the exponential. */
static void capped_row(const ce_job *s, float *z, int64_t at, bool grad) {
    const op_call *c = s->call;
    int64_t target = ((const int32_t *)c->in[2].data)[at];
    logits_as_seen(c, z, s->v, z);
    float max = row_max(z, s->v, 1), block[BLOCK];
    row_stats r = { (double)max, row_exp_sum(z, s->v, 1, max), (double)z[target] };
    if (c->attr.ce.smoothing > 0) r.logits = row_sum(z, s->v, 1);
    store_row(c, 0, at, &r, s->v);
    row_slopes d = slopes_of_row(c, &r, s->v);
    for (int64_t j = 0; grad && j < s->v; j += BLOCK) {
        int64_t count = MIN(BLOCK, s->v - j);
        for (int64_t i = 0; i < count; i++) block[i] = vm_exp(z[j + i] - max) * d.by - d.each;
        if (target >= j && target < j + count) block[target - j] -= d.share;
        grad_through_cap(c, block, z + j, count);
        CPU(from_f32)(s->pt, block, (char *)z + j * (int64_t)dt_size(s->pt), count);
    }
}

static void loss_row_task(void *ctx, int64_t i, int worker) {
    const ce_job *s = ctx;
    const op_call *c = s->call;
    int64_t at = s->row ? s->row[s->from + i] : s->from + i;
    int64_t target = ((const int32_t *)c->in[2].data)[at];
    float *z = s->z + i * s->stride;
    bool grad = c->out[1].data || c->out[2].data;
    if (target == NO_TARGET) {
        store_no_target(c, 0, at);
        if (grad) memset(z, 0, (size_t)s->v * dt_size(s->pt));
        return;
    }
    BUG_IF(target < 0 || target >= s->v);
    if (c->attr.ce.cap > 0) {
        capped_row(s, z, at, grad);
        return;
    }
    float scale = c->attr.ce.logit_scale, max = row_max(z, s->v, scale);
    row_stats r = { .max = (double)max, .at_target = (double)(z[target] * scale) };
    if (c->attr.ce.smoothing > 0) r.logits = row_sum(z, s->v, scale);
    r.sum = row_exp(z, s->v, scale, max);
    store_row(c, 0, at, &r, s->v);
    if (grad) row_grad(z, s->v, slopes_of_row(c, &r, s->v), target, s->pt);
}

/* Finds the rows that have a target, and sets the loss of the others. */
static void find_targets(ce_job *s) {
    const int32_t *target = s->call->in[2].data;
    int64_t all = s->n;
    s->row = (int32_t *)(void *)((char *)s->z + s->z_bytes);
    s->gathered = (char *)s->row + align_up((size_t)all * sizeof *s->row, 64);
    s->n = 0;
    for (int64_t i = 0; i < all; i++) {
        if (target[i] != NO_TARGET)
            s->row[s->n++] = (int32_t)i;
        else
            store_no_target(s->call, 0, i);
    }
}

/* Quantizes an operand by its own maximum. @return the factor that turns what is stored into real values */
static float quantize_by_maximum(const op_call *of, const tensor *x, const tensor *q) {
    float row[FP8_ROW] = { 0 };
    op_call c = { .op = OP_QUANTIZE, .run = of->run, .in = { *x }, .out = { *q } };
    c.in[1] = tensor_of(row, DT_F32, 1, (int64_t[]){ FP8_ROW });
    c.attr.fp8.recipe = FP8_CURRENT;
    CPU(quantize)(&c);
    return row[FP8_UNSCALE];
}

static void quantize_operands(ce_job *s) {
    float scale = fp8_logit_scale(loss_gradient(s->call));
    s->h.data = (char *)s->z + s->z_bytes + s->gather_bytes;
    s->w.data = (char *)s->h.data + align_up(tensor_bytes(&s->h), 64);
    s->unscale_h = quantize_by_maximum(s->call, &s->call->in[0], &s->h);
    s->unscale_w = quantize_by_maximum(s->call, &s->call->in[1], &s->w);
    s->unscale_p = scale > 0 ? 1 / scale : 0;
}

static void CPU(linear_ce)(const op_call *c) {
    ce_job s = ce_job_of(c);
    BUG_IF(c->out[0].dt != DT_F32 || (c->out[2].data && c->out[2].dt != DT_F32));
    s.z = (float *)align_up((uintptr_t)c->run->workspace, 64);
    if (c->attr.ce.fp8) quantize_operands(&s);
    if (!has_gradients(c)) find_targets(&s);
    size_t bytes = (size_t)s.d * dt_size(s.h.dt);
    for (s.from = 0; s.from < s.n; s.from += s.rows) {
        s.count = MIN(s.rows, s.n - s.from);
        for (int64_t i = 0; s.row && i < s.count; i++) /* only rows that have a target */
            memcpy(s.gathered + (size_t)i * bytes,
                   (const char *)s.h.data + (size_t)s.row[s.from + i] * bytes, bytes);
        run_loss_gemm(&s, logits_gemm(&s));
        pool_run(c->run->pool, s.count, loss_row_task, &s);
        if (c->out[1].data) run_loss_gemm(&s, grad_h_gemm(&s));
        if (c->out[2].data) run_loss_gemm(&s, grad_w_gemm(&s));
    }
}

/* ---- a sharded vocabulary ----------------------------------------------------------------------
 * A task per row: ce_stat reads it twice, ce_loss once. */
enum { STAT_MAX, STAT_SUM, STAT_TARGET, STAT_LOGITS, STATS };

typedef struct shard_job {
    const op_call *call;
    const float *z; /* [n, v] */
    const int32_t *target;
    int64_t n, v;
    int64_t own;   /* columns that are tokens; those behind them are padding */
    int64_t whole; /* tokens of all ranks */
} shard_job;

static shard_job shard_job_of(const op_call *c, const tensor *target) {
    int64_t v = c->in[0].dim[1], size = c->attr.vocab.size, first = c->attr.vocab.first;
    return (shard_job){ .call = c,
                        .z = c->in[0].data,
                        .target = target->data,
                        .n = c->in[0].dim[0],
                        .v = v,
                        .whole = size ? size : v,
                        .own = size ? MIN(v, MAX(size - first, 0)) : v };
}

/* @return the column of row i's target; one that is not among `own` belongs to another rank. */
static int64_t target_column(const shard_job *j, int64_t i) {
    int64_t id = j->target[i], size = j->call->attr.vocab.size;
    BUG_IF(id < 0 || id >= (size ? size : j->v));
    return id - j->call->attr.vocab.first;
}

static void stat_task(void *ctx, int64_t i, int worker) {
    const shard_job *j = ctx;
    const float *z = j->z + i * j->v;
    float *stat = (float *)j->call->out[0].data + i * STATS, block[BLOCK];
    memset(stat, 0, STATS * sizeof *stat);
    if (j->target[i] == NO_TARGET) return;
    int64_t at = target_column(j, i);
    double sum = 0, logits = 0;
    stat[STAT_MAX] =
        -FLT_MAX; /* a row without logits has none above it; scaling and capping keep the order */
    if (j->own) {
        float most = row_max(z, j->own, 1);
        logits_as_seen(j->call, &most, 1, &stat[STAT_MAX]);
    }
    for (int64_t k = 0; k < j->own; k += BLOCK) {
        int64_t count = MIN(BLOCK, j->own - k);
        logits_as_seen(j->call, z + k, count, block);
        sum += row_exp_sum(block, count, 1, stat[STAT_MAX]);
        if (j->call->attr.ce.smoothing > 0) logits += row_sum(block, count, 1);
    }
    stat[STAT_SUM] = (float)sum;
    stat[STAT_LOGITS] = (float)logits;
    if (at >= 0 && at < j->own) logits_as_seen(j->call, z + at, 1, &stat[STAT_TARGET]);
}

static void CPU(ce_stat)(const op_call *c) {
    shard_job j = shard_job_of(c, &c->in[1]);
    pool_run(c->run->pool, j.n, stat_task, &j);
}

/* The statistics of row i over all ranks. */
static row_stats merge_stats(const shard_job *j, int64_t i) {
    const float *stat = (const float *)j->call->in[1].data + i * STATS;
    int64_t ranks = j->call->in[1].dim[0] / j->n, next = j->n * STATS;
    row_stats all = { .max = -(double)FLT_MAX };
    for (int64_t r = 0; r < ranks; r++) all.max = MAX(all.max, (double)stat[r * next + STAT_MAX]);
    for (int64_t r = 0; r < ranks; r++) {
        const float *s = stat + r * next;
        all.sum += (double)s[STAT_SUM] * exp((double)s[STAT_MAX] - all.max);
        all.at_target += (double)s[STAT_TARGET];
        all.logits += (double)s[STAT_LOGITS];
    }
    return all;
}

static void loss_task(void *ctx, int64_t i, int worker) {
    const shard_job *j = ctx;
    const op_call *c = j->call;
    const tensor *dz = &c->out[0];
    size_t size = dt_size(dz->dt);
    char *to = dz->data ? (char *)dz->data + (size_t)(i * j->v) * size : NULL;
    float block[BLOCK], seen[BLOCK];
    if (j->target[i] == NO_TARGET) {
        store_no_target(c, 1, i);
        if (to) memset(to, 0, (size_t)j->v * size);
        return;
    }
    const row_stats r = merge_stats(j, i);
    store_row(c, 1, i, &r, j->whole);
    if (!to) return;
    const float *z = j->z + i * j->v;
    const float max = (float)r.max;
    row_slopes d = slopes_of_row(c, &r, j->whole);
    int64_t at = target_column(j, i);
    for (int64_t k = 0; k < j->own; k += BLOCK) {
        int64_t count = MIN(BLOCK, j->own - k);
        logits_as_seen(c, z + k, count, seen);
        for (int64_t e = 0; e < count; e++) block[e] = vm_exp(seen[e] - max) * d.by - d.each;
        if (at >= k && at < k + count) block[at - k] -= d.share;
        grad_through_cap(c, block, seen, count);
        CPU(from_f32)(dz->dt, block, to + (size_t)k * size, count);
    }
    memset(to + (size_t)j->own * size, 0, (size_t)(j->v - j->own) * size);
}

static void CPU(ce_loss)(const op_call *c) {
    shard_job j = shard_job_of(c, &c->in[2]);
    BUG_IF(c->in[1].dim[0] % j.n);
    if (c->out[3].data) fp8_set_scale(c->out[3].data, fp8_logit_scale(loss_gradient(c)));
    pool_run(c->run->pool, j.n, loss_task, &j);
}

/* ---- logits by themselves ------------------------------------------------------------------------ */
static void cap_task(void *ctx, int64_t i, int worker) {
    const op_call *c = ctx;
    const tensor *from = &c->in[0], *to = &c->out[0];
    float x[BLOCK];
    int64_t at = i * BLOCK, n = MIN(BLOCK, tensor_count(from) - at);
    CPU(to_f32)(from->dt, (const char *)from->data + at * (int64_t)dt_size(from->dt), x, n);
    logits_as_seen(c, x, n, x);
    CPU(from_f32)(to->dt, x, (char *)to->data + at * (int64_t)dt_size(to->dt), n);
}

static void CPU(cap_logits)(const op_call *c) {
    pool_run(c->run->pool, ceil_div(tensor_count(&c->in[0]), BLOCK), cap_task, (void *)c);
}

KERNEL(LINEAR_CE, CPU(linear_ce), CPU(linear_ce_workspace), ATTRS_LOSS | ATTR(LOSS_FP8));
KERNEL(CE_STAT, CPU(ce_stat), NULL, ATTRS_LOSS | ATTRS_VOCAB);
KERNEL(CE_LOSS, CPU(ce_loss), NULL, ATTRS_LOSS | ATTRS_VOCAB);
KERNEL(CAP_LOGITS, CPU(cap_logits), NULL, ATTRS_LOGITS);
