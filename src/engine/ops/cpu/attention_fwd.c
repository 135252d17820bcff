/* ATTENTION and ATTENTION_BLOCK: softmax(q k') v. A tile of queries goes through all tiles of keys that it sees, from the
 * first to the last (attention_internal.h has the design). */
#include "attention_mask.h"

#include <math.h>
#include <string.h>

#include "ops/op_table.h"

/* ---- one tile of queries --------------------------------------------------------------------- */
/* How far, in powers of two, a score may exceed the stored maximum before all sums are rescaled to a new
 * one. Any bound that keeps 2^x far from overflow gives the same result up to rounding. */
static const float RISE = 8.0f;
enum { VECS = ATT_LANES / VEC };

size_t CPU(att_state_bytes)(const att_layout *p) {
    size_t out = (size_t)p->width * ATT_TILE * sizeof(float), s = ATT_SQUARE * sizeof(float);
    return out + s + ATT_SQUARE * p->path->elem + p->tile_bytes;
}

void CPU(att_state_init)(att_state *st, const att_layout *p, void *buffer) {
    char *at = buffer;
    st->out = (float *)at;
    at += (size_t)p->width * ATT_TILE * sizeof(float);
    st->s = (float *)at;
    at += ATT_SQUARE * sizeof(float);
    st->p_buffer = at;
    at += ATT_SQUARE * p->path->elem;
    st->q = at;
}

void CPU(att_state_begin)(att_state *st, const att_layout *p, const tile_src *q) {
    for (int i = 0; i < ATT_TILE; i++) {
        st->max[i] = ATT_MASKED;
        st->sum[i] = 0;
    }
    st->mask.drop = NULL;
    memset(st->out, 0, (size_t)p->width * ATT_TILE * sizeof(float));
    p->path->right_outer(st->q, q, p->width);
}

/* Raises the maxima of ATT_LANES queries to `top`, if any of them rises by more than RISE. */
static void raise_max(att_state *st, int q0, const vf *top, int width) {
    float *max = st->max + q0, *sum = st->sum + q0;
    vi need = { 0 };
    ATT_UNROLL
    for (int i = 0; i < VECS; i++) need |= top[i] > att_get(max + i * VEC) + RISE;
    int any = 0;
    for (int i = 0; i < VEC; i++) any |= need[i];
    if (!any) return;
    vf shrink[VECS];
    ATT_UNROLL
    for (int i = 0; i < VECS; i++) {
        vf old = att_get(max + i * VEC), now = att_max(top[i], old);
        shrink[i] = att_exp2(old - now);
        att_put(sum + i * VEC, att_get(sum + i * VEC) * shrink[i]);
        att_put(max + i * VEC, now);
    }
    for (int d = 0; d < width; d++) {
        float *row = st->out + (size_t)d * ATT_TILE + q0;
        ATT_UNROLL
        for (int i = 0; i < VECS; i++) att_put(row + i * VEC, att_get(row + i * VEC) * shrink[i]);
    }
}

/* s -> 2^(s*scale2 - max) for ATT_LANES queries over keys [klo, khi), and their sums. A query that
 * has seen no key yet subtracts 0 from its masked scores, whose powers are then 0. */
static void softmax_lanes(att_state *st, const att_layout *p, int q0, int klo, int khi) {
    vf top[VECS], base[VECS], sum[VECS], masked = vec_of(ATT_MASKED), scale2 = vec_of(p->scale2);
    ATT_UNROLL
    for (int i = 0; i < VECS; i++) top[i] = masked;
    for (int k = klo; k < khi; k++) {
        const float *row = st->s + (size_t)k * ATT_TILE + q0;
        ATT_UNROLL
        for (int i = 0; i < VECS; i++) top[i] = att_max(att_get(row + i * VEC), top[i]);
    }
    ATT_UNROLL
    for (int i = 0; i < VECS; i++) top[i] = vec_select(top[i] > masked, top[i] * scale2, masked);
    raise_max(st, q0, top, p->width);
    ATT_UNROLL
    for (int i = 0; i < VECS; i++) {
        vf max = att_get(st->max + q0 + i * VEC);
        base[i] = vec_select(max > masked, max, vec_of(0));
        sum[i] = att_get(st->sum + q0 + i * VEC);
    }
    for (int k = klo; k < khi; k++) {
        float *row = st->s + (size_t)k * ATT_TILE + q0;
        ATT_UNROLL
        for (int i = 0; i < VECS; i++) {
            vf e = att_exp2(att_get(row + i * VEC) * scale2 - base[i]);
            att_put(row + i * VEC, e);
            sum[i] += e;
        }
    }
    ATT_UNROLL
    for (int i = 0; i < VECS; i++) att_put(st->sum + q0 + i * VEC, sum[i]);
}

void CPU(att_cap)(float *s, const att_layout *p, int q0, int klo, int khi) {
    vf in = vec_of(p->scale2 / p->cap2), out = vec_of(p->cap2 / p->scale2);
    for (int k = klo; k < khi; k++)
        for (int q = q0; q < q0 + ATT_LANES; q += VEC) {
            float *at = s + (size_t)k * ATT_TILE + q;
            att_put(at, att_tanh(att_get(at) * in) * out);
        }
}

/* Zeroes what dropout drops of ATT_LANES queries over keys [klo, khi). The sums are complete, and what is
 * kept is scaled at the end. */
static void drop_lanes(att_state *st, const int64_t *key_id, int q0, int klo, int khi) {
    att_drawn drawn = { .counter_of = -1 };
    for (int k = klo; k < khi; k++) {
        float *row = st->s + (size_t)k * ATT_TILE + q0;
        att_draw_key(&drawn, &st->mask, q0, key_id[k]);
        ATT_UNROLL
        for (int i = 0; i < VECS; i++)
            att_put(row + i * VEC, (vf)((vu)att_get(row + i * VEC) & att_kept(&drawn, i * VEC)));
    }
}

static void zero_row_range(float *s, int from, int to) {
    for (int k = from; k < to; k++) memset(s + (size_t)k * ATT_TILE, 0, ATT_LANES * sizeof *s);
}

void CPU(att_state_add)(att_state *st, const att_layout *p, att_keys t, int nq,
                        const att_band *band) {
    int m = att_pad(p, t.count), n = att_pad(p, nq);
    p->path->mul(&(tile_job){ TILE_SCORES, t.k, st->q, st->s, m, n, p->width, ATT_TILE, p->width,
                              false, band });
    for (int q0 = 0; q0 < n; q0 += ATT_LANES) {
        int klo, khi;
        att_lane_keys(band, q0, n, m, &klo, &khi);
        if (p->cap2 > 0) CPU(att_cap)(st->s, p, q0, klo, khi);
        if (band) {
            CPU(att_hide)(st->s, band, q0, klo, khi, ATT_MASKED);
            zero_row_range(st->s + q0, 0, klo);
            zero_row_range(st->s + q0, MAX(khi, klo), m);
        }
        softmax_lanes(st, p, q0, klo, khi);
        if (st->mask.drop) drop_lanes(st, t.id, q0, klo, khi);
    }
    const void *prob = p->path->right_scores(st->p_buffer, st->s, m, n);
    p->path->mul(&(tile_job){ TILE_BY_QUERY, t.v, prob, st->out, p->width, n, m, ATT_TILE, ATT_TILE,
                              true, band });
}

void CPU(att_state_end)(att_state *st, const att_layout *p, int nq, const tensor *o, int64_t row,
                        int head, float *lse) {
    float transposed[ATT_LANES][ATT_TILE];
    int64_t stride = o->dim[1];
    float kept = st->mask.drop ? st->mask.drop->keep : 1.0f; /* what dropout scales the rest by */
    for (int q0 = 0; q0 < nq; q0 += ATT_LANES) {
        for (int d = 0; d < p->dim; d += ATT_TILE) {
            int dims = MIN(ATT_TILE, p->width - d), keep = MIN(ATT_TILE, p->dim - d);
            CPU(tile_transpose)
            (transposed[0], ATT_TILE, st->out + (size_t)d * ATT_TILE + q0, ATT_TILE, dims,
             ATT_LANES);
            for (int q = q0; q < MIN(q0 + ATT_LANES, nq); q++) {
                float *from = transposed[q - q0], inverse = kept / st->sum[q];
                for (int i = 0; i < keep; i++) from[i] *= inverse;
                int64_t at = (row + q) * stride + (int64_t)head * p->dim + d;
                CPU(from_f32)(o->dt, from, (char *)o->data + (size_t)at * dt_size(o->dt), keep);
            }
        }
    }
    for (int q = 0; lse && q < nq; q++) lse[q] = st->max[q] * ATT_LN2 + logf(st->sum[q]);
}

/* Reads the sink of a head, in powers of two. */
float CPU(att_sink_of)(const tensor *sink, int at) {
    float value;
    CPU(to_f32)(sink->dt, (const char *)sink->data + (size_t)at * dt_size(sink->dt), &value, 1);
    return value * ATT_LOG2E;
}

void CPU(att_state_sink)(att_state *st, const att_layout *p, int nq, const tensor *sink, int first,
                         int head) {
    if (!sink->data) return;
    float score = CPU(att_sink_of)(sink, first + head);
    for (int q = 0; q < nq; q++) {
        float top = score > st->max[q] + RISE ? score : st->max[q];
        float shrink = exp2f(st->max[q] - top);
        st->sum[q] = st->sum[q] * shrink + exp2f(score - top);
        for (int d = 0; top != st->max[q] && d < p->width; d++)
            st->out[(size_t)d * ATT_TILE + q] *= shrink;
        st->max[q] = top;
    }
}

void CPU(att_state_resume)(att_state *st, const att_layout *p, int nq, const tensor *o, int64_t row,
                           int head, const float *lse) {
    float values[ATT_TILE], inverse = 1 / (st->mask.drop ? st->mask.drop->keep : 1.0f);
    for (int q = 0; q < nq; q++) {
        st->max[q] = lse[q] * ATT_LOG2E;
        st->sum[q] = 1;
        for (int d = 0; d < p->dim; d += ATT_TILE) {
            int n = MIN(ATT_TILE, p->dim - d);
            int64_t at = (row + q) * o->dim[1] + (int64_t)head * p->dim + d;
            CPU(to_f32)(o->dt, (const char *)o->data + (size_t)at * dt_size(o->dt), values, n);
            for (int i = 0; i < n; i++)
                st->out[(size_t)(d + i) * ATT_TILE + q] = values[i] * inverse;
        }
    }
}

/* ---- the op ---------------------------------------------------------------------------------- */
/* Dividing by tiles costs little here: packed keys are no longer in the cache of the core that uses them. */
static const double CHUNKS_WORTH = 1.1;

typedef struct fwd {
    att_layout layout;
    const op_call *c;
    const tensor *q, *kv;              /* the tensors that hold queries, and keys and values */
    const tensor *before, *lse_before; /* what other keys gave; NULL: nothing */
    const tensor *sink;
    char *packed; /* [kv, tile] keys and values */
    char *worker; /* [thread] att_state_bytes */
    size_t worker_bytes;
} fwd;

static char *fwd_packed_tile(const fwd *f, int kv, int tile) {
    return f->packed + ((size_t)kv * f->layout.n_key_tiles + tile) * 2 * f->layout.tile_bytes;
}

static void pack_tile(const fwd *f, int kv, int t) {
    const att_layout *p = &f->layout;
    int rows = att_key_rows(p, t);
    char *to = fwd_packed_tile(f, kv, t);
    tile_src k = att_src(f->kv, p->key_row[t], att_k_col(p, kv), rows, p->dim);
    tile_src v = att_src(f->kv, p->key_row[t], att_v_col(p, kv), rows, p->dim);
    p->path->left_outer(to, &k, p->width);
    p->path->left_inner(to + p->tile_bytes, &v, p->width);
}

static void attend_tile(const fwd *f, int head, int qt, int worker) {
    const att_layout *p = &f->layout;
    int nq = att_tile_rows(p, qt);
    int64_t row = p->tile_row[qt];
    att_state st;
    CPU(att_state_init)(&st, p, f->worker + worker * f->worker_bytes);
    tile_src q = att_src(f->q, row, att_q_col(p, head), nq, p->dim);
    CPU(att_state_begin)(&st, p, &q);
    CPU(att_mask_init)(&st.mask, p, head, row, nq);
    const int64_t *id = p->key_id;
    int64_t stat = head * p->n + row;
    const float *lse = f->before ? (const float *)f->lse_before->data + stat : NULL;
    if (lse) CPU(att_state_resume)(&st, p, nq, f->before, row, head, lse);
    int end = CPU(att_end_tile)(p, qt);
    for (int kt = CPU(att_first_tile)(p, qt); kt < end; kt++) {
        att_band buffer;
        const att_band *band = CPU(att_band_tiles)(&buffer, p, qt, kt);
        const char *k = fwd_packed_tile(f, head / p->group, kt);
        att_keys keys = { k, k + p->tile_bytes, att_key_rows(p, kt),
                          id ? id + p->key_row[kt] : NULL };
        CPU(att_state_add)(&st, p, keys, nq, band);
    }
    float *new_lse = (float *)f->c->out[1].data + stat;
    CPU(att_state_sink)(&st, p, nq, f->sink, f->c->attr.heads.sink_first, head);
    CPU(att_state_end)(&st, p, nq, &f->c->out[0], row, head, new_lse);
}

/* A kv head of a chunk: its keys and values are packed, and used while they are in the cache. */
static void fwd_chunk_task(void *ctx, int64_t i, int worker) {
    const fwd *f = ctx;
    const att_layout *p = &f->layout;
    int kv = (int)(i % p->kv), chunk = (int)(i / p->kv);
    int t0 = p->chunk_tile[chunk], t1 = p->chunk_tile[chunk + 1];
    for (int t = p->chunk_keys[chunk]; t < p->chunk_keys[chunk + 1]; t++) pack_tile(f, kv, t);
    for (int h = kv * p->group; h < (kv + 1) * p->group; h++)
        for (int t = t0; t < t1; t++) attend_tile(f, h, t, worker);
}
static void fwd_pack_task(void *ctx, int64_t i, int worker) {
    const fwd *f = ctx;
    pack_tile(f, (int)(i % f->layout.kv), (int)(i / f->layout.kv));
}
static void attend_task(void *ctx, int64_t i, int worker) {
    const fwd *f = ctx;
    int back = (int)(i / f->layout.heads); /* later tiles see more keys: longest first */
    attend_tile(f, (int)(i % f->layout.heads), f->layout.n_tiles - 1 - back, worker);
}

static size_t fwd_packed_bytes(const att_layout *p) {
    return (size_t)CPU(att_max_key_tiles)(p) * p->kv * 2 * p->tile_bytes;
}

/* Divides the work and runs it. */
static void run_forward(fwd *f) {
    att_layout *p = &f->layout;
    f->packed = (char *)f->c->run->workspace + CPU(att_layout_bytes)(p);
    f->worker = f->packed + fwd_packed_bytes(p);
    f->worker_bytes = CPU(att_state_bytes)(p);
    pool *threads = f->c->run->pool;
    if (CPU(att_by_chunk)(p, pool_size(threads), CHUNKS_WORTH)) {
        pool_run(threads, (int64_t)p->kv * p->n_chunks, fwd_chunk_task, f);
        return;
    }
    pool_run(threads, (int64_t)p->kv * p->n_key_tiles, fwd_pack_task, f);
    pool_run(threads, (int64_t)p->heads * p->n_tiles, attend_task, f);
}

static att_layout block_layout(const op_call *c) {
    return CPU(att_block_layout_of)(c, &c->in[BLOCK_Q], &c->in[BLOCK_KV], c->in[BLOCK_Q].dt);
}

size_t CPU(att_fwd_workspace)(const op_call *c, int threads) {
    att_layout p = c->op == OP_ATTENTION_BLOCK
                       ? block_layout(c)
                       : CPU(att_layout_of)(c, c->in[0].dim[0], c->in[0].dt);
    return CPU(att_layout_bytes)(&p) + fwd_packed_bytes(&p) +
           (size_t)threads * CPU(att_state_bytes)(&p);
}

static void CPU(attention)(const op_call *c) {
    const tensor *qkv = &c->in[0], *id = &c->in[2];
    fwd f = { .layout = CPU(att_layout_of)(c, qkv->dim[0], qkv->dt),
              .c = c,
              .q = qkv,
              .kv = qkv,
              .sink = &c->in[3] };
    att_layout *p = &f.layout;
    BUG_IF(qkv->dim[1] != (int64_t)(p->heads + 2 * p->kv) * p->dim);
    BUG_IF(c->out[0].dim[1] != (int64_t)p->heads * p->dim || c->out[1].dt != DT_F32);
    CPU(att_split)(p, c->in[1].data, c->run->workspace);
    CPU(att_drop_init)(p, c, id, id);
    run_forward(&f);
}

static void CPU(attention_block)(const op_call *c) {
    fwd f = { .layout = block_layout(c),
              .c = c,
              .q = &c->in[BLOCK_Q],
              .kv = &c->in[BLOCK_KV],
              .sink = &c->in[BLOCK_SINK] };
    if (c->in[BLOCK_BEFORE].data) {
        BUG_IF(!c->in[BLOCK_LSE_BEFORE].data);
        f.before = &c->in[BLOCK_BEFORE];
        f.lse_before = &c->in[BLOCK_LSE_BEFORE];
    }
    CPU(att_split_block)(&f.layout, c->in[BLOCK_RANGE].data, c->run->workspace);
    CPU(att_drop_init)(&f.layout, c, &c->in[BLOCK_ID], &c->in[BLOCK_KEY_ID]);
    run_forward(&f);
}

/* ---- the gradient of sinks: a task per head, which adds the queries in order ------------------------------- */
static void sink_bwd_task(void *ctx, int64_t head, int worker) {
    const op_call *c = ctx;
    const tensor *dout = &c->in[0], *o = &c->in[1], *sink = &c->in[3];
    int64_t n = o->dim[0], width = o->dim[1], first = c->attr.heads.sink_first, q = c->attr.heads.q;
    float *dsink = (float *)c->out[0].data + head, sum = c->accumulate & 1 ? *dsink : 0;
    const float *lse = (const float *)c->in[2].data + (head - first) * n;
    bool own = head >= first && head < first + q;
    float score = CPU(att_sink_of)(sink, (int)head) * ATT_LN2;
    for (int64_t i = 0; own && i < n; i++) {
        float a[ATT_TILE], b[ATT_TILE], dot = 0;
        for (int d = 0; d < c->attr.heads.dim; d += ATT_TILE) {
            int m = MIN(ATT_TILE, c->attr.heads.dim - d);
            int64_t at = i * width + (head - first) * c->attr.heads.dim + d;
            CPU(to_f32)(dout->dt, (const char *)dout->data + (size_t)at * dt_size(dout->dt), a, m);
            CPU(to_f32)(o->dt, (const char *)o->data + (size_t)at * dt_size(o->dt), b, m);
            for (int e = 0; e < m; e++) dot += a[e] * b[e];
        }
        sum -= expf(score - lse[i]) * dot;
    }
    *dsink = sum;
}

static void CPU(attention_sink_bwd)(const op_call *c) {
    pool_run(c->run->pool, c->in[3].dim[0], sink_bwd_task, (void *)c);
}

KERNEL(ATTENTION_SINK_BWD, CPU(attention_sink_bwd), NULL, ATTRS_HEADS | ATTR(SINK_FIRST));
KERNEL(ATTENTION, CPU(attention), CPU(attention_workspace),
       ATTRS_HEADS | ATTRS_ATTENTION | ATTRS_ATTENTION_DROPOUT);
KERNEL(ATTENTION_BLOCK, CPU(attention_block), CPU(attention_workspace),
       ATTRS_HEADS | ATTRS_SCORES | ATTRS_ATTENTION_DROPOUT);
