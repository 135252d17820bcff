/* ATTENTION_BWD and ATTENTION_BLOCK_BWD: probabilities are recomputed from the saved log-sum-exp, tile by tile, and the five GEMMs
 * of a pair of tiles run while it is in the cache.
 *
 * Gradients of keys and values are summed over query tiles in the workspace, those of queries over key
 * tiles in the worker's scratch, always in increasing order of tiles: deterministic for any number of
 * threads. */
#include "attention_mask.h"

#include <string.h>

#include "ops/op_table.h"

/* A tile of queries of one head, packed for the GEMMs with tiles of keys. */
typedef struct query_tile {
    int tile, rows;
    void *q_transposed, *do_transposed; /* right operands: dims x queries */
    void *q, *dout;                     /* right operands: queries x dims */
    float lse2[ATT_TILE];               /* log-sum-exp in powers of two */
    float delta[ATT_TILE];              /* sum of dO * O */
    float *dq;                          /* [width, ATT_TILE], before the scale */
    att_mask mask;
} query_tile;

typedef struct scores {
    float *p, *g;                    /* [ATT_TILE, ATT_TILE] P' and G' */
    float *slope;                    /* of the bound on scores, where there is one */
    void *p_left, *g_left, *g_right; /* buffers for packing them */
} scores;

typedef struct bwd {
    att_layout layout;
    const op_call *c;
    const tensor *dout, *q, *kv, *o, *lse; /* operands; q and kv may be one tensor */
    const tensor *dq, *dkv;                /* results; they may be one tensor */
    bool add_dq;
    float scale;
    char *packed; /* [kv, tile] K, V and K' as left operands */
    float *sums;  /* [kv, tile] dK before the scale, dV: [ATT_TILE, width] each */
    char *worker; /* [thread] */
    size_t worker_bytes;
} bwd;

enum { DO_QUERIES = 1, DO_KEYS = 2 };
/* Dividing by tiles needs seven GEMMs instead of five: the scores are computed twice. */
static const double CHUNKS_WORTH = 1.4;

/* ---- tiles ----------------------------------------------------------------------------------- */
static char *bwd_packed_tile(const bwd *b, int kv, int tile) {
    return b->packed + ((size_t)kv * b->layout.n_key_tiles + tile) * 3 * b->layout.tile_bytes;
}
static size_t sum_count(const att_layout *p) { return (size_t)ATT_TILE * p->width; }
static float *sums_tile(const bwd *b, int kv, int tile) {
    return b->sums + ((size_t)kv * b->layout.n_key_tiles + tile) * 2 * sum_count(&b->layout);
}

static void pack_keys(const bwd *b, int kv, int t) {
    const att_layout *p = &b->layout;
    int rows = att_key_rows(p, t);
    char *to = bwd_packed_tile(b, kv, t);
    tile_src k = att_src(b->kv, p->key_row[t], att_k_col(p, kv), rows, p->dim);
    tile_src v = att_src(b->kv, p->key_row[t], att_v_col(p, kv), rows, p->dim);
    p->path->left_outer(to, &k, p->width);
    p->path->left_outer(to + p->tile_bytes, &v, p->width);
    p->path->left_inner(to + 2 * p->tile_bytes, &k, p->width);
}

/* Sum of a[i] * b[i] over n elements of any type. */
static float dot_src(const tile_src *a, const tile_src *b, int row, int n) {
    float x[ATT_TILE], y[ATT_TILE], sum = 0;
    for (int c = 0; c < n; c += ATT_TILE) {
        int m = MIN(ATT_TILE, n - c);
        int64_t at_a = row * a->stride + c, at_b = row * b->stride + c;
        CPU(to_f32)(a->dt, (const char *)a->data + (size_t)at_a * dt_size(a->dt), x, m);
        CPU(to_f32)(b->dt, (const char *)b->data + (size_t)at_b * dt_size(b->dt), y, m);
        for (int i = 0; i < m; i++) sum += x[i] * y[i];
    }
    return sum;
}

static void load_queries(const bwd *b, query_tile *qt, int head, int t) {
    const att_layout *p = &b->layout;
    const tile_path *path = p->path;
    int64_t row = p->tile_row[t], col = att_q_col(p, head);
    qt->tile = t;
    qt->rows = att_tile_rows(p, t);
    tile_src dout = att_src(b->dout, row, col, qt->rows, p->dim);
    tile_src q = att_src(b->q, row, col, qt->rows, p->dim);
    tile_src o = att_src(b->o, row, col, qt->rows, p->dim);
    for (int i = 0; i < qt->rows; i++) /* read last, and a page or so apart */
        __builtin_prefetch((const char *)o.data + (size_t)(i * o.stride) * dt_size(o.dt));
    path->right_outer(qt->q_transposed, &q, p->width);
    path->right_outer(qt->do_transposed, &dout, p->width);
    path->right_inner(qt->q, &q, p->width);
    path->right_inner(qt->dout, &dout, p->width);
    const float *lse = (const float *)b->lse->data + head * p->n + row;
    for (int i = 0; i < ATT_TILE; i++) {
        qt->lse2[i] = i < qt->rows ? lse[i] * ATT_LOG2E : 0;
        qt->delta[i] = i < qt->rows ? dot_src(&dout, &o, i, p->dim) : 0;
    }
    CPU(att_mask_init)(&qt->mask, p, head, row, qt->rows);
}

static void init_worker(const bwd *b, int worker, query_tile *qt, scores *s) {
    const att_layout *p = &b->layout;
    char *at = b->worker + worker * b->worker_bytes;
    void **operand[] = { &qt->q_transposed, &qt->do_transposed, &qt->q, &qt->dout };
    for (size_t i = 0; i < COUNT_OF(operand); i++, at += p->tile_bytes) *operand[i] = at;
    qt->dq = (float *)at;
    at += sum_count(p) * sizeof(float);
    s->p = (float *)at;
    s->g = s->p + ATT_SQUARE;
    s->slope = s->g + ATT_SQUARE;
    at += 3 * ATT_SQUARE * sizeof(float);
    void **operand_buffer[] = { &s->p_left, &s->g_left, &s->g_right };
    for (size_t i = 0; i < COUNT_OF(operand_buffer); i++, at += ATT_SQUARE * p->path->elem)
        *operand_buffer[i] = at;
}
static size_t bwd_worker_bytes(const att_layout *p) {
    return 4 * p->tile_bytes + sum_count(p) * sizeof(float) + 3 * ATT_SQUARE * sizeof(float) +
           3 * ATT_SQUARE * p->path->elem;
}

/* ---- a pair of tiles ------------------------------------------------------------------------- */
/* S' and D' become P' and G' for ATT_LANES queries over keys [klo, khi). */
static void grad_lanes(const scores *s, const query_tile *qt, float scale2, int q0, int klo,
                       int khi) {
    for (int k = klo; k < khi; k++) {
        float *p = s->p + (size_t)k * ATT_TILE, *g = s->g + (size_t)k * ATT_TILE;
        for (int q = q0; q < q0 + ATT_LANES; q += VEC) {
            vf prob = att_exp2(att_get(p + q) * scale2 - att_get(qt->lse2 + q));
            att_put(p + q, prob);
            att_put(g + q, prob * (att_get(g + q) - att_get(qt->delta + q)));
        }
    }
}

/* The same with dropout, which multiplies P' and D' by M', 0 or 1 / (1 - p): P' M' and P' (D' M' - delta).
 * delta is what it is without: the sum over keys of P' D' M' is that of dO * O too. */
static void grad_lanes_dropped(const scores *s, const query_tile *qt, const att_layout *layout,
                               int kt, int q0, int klo, int khi) {
    const int64_t *id = layout->key_id + layout->key_row[kt];
    const vf keep = vec_of(layout->drop.keep);
    att_drawn drawn = { .counter_of = -1 };
    for (int k = klo; k < khi; k++) {
        float *p = s->p + (size_t)k * ATT_TILE, *g = s->g + (size_t)k * ATT_TILE;
        att_draw_key(&drawn, &qt->mask, q0, id[k]);
        for (int q = q0; q < q0 + ATT_LANES; q += VEC) {
            vf factor = (vf)((vu)keep & att_kept(&drawn, q - q0));
            vf prob = att_exp2(att_get(p + q) * layout->scale2 - att_get(qt->lse2 + q));
            att_put(p + q, prob * factor);
            att_put(g + q, prob * (att_get(g + q) * factor - att_get(qt->delta + q)));
        }
    }
}

/* Multiplies G' by the slope of the bound, 1 - tanh^2, from the bounded scores. Those of masked pairs, whose
 * G' is 0, are far below the bound: the tanh is taken as -1. */
static void slope_lanes(const float *s, float *slope, const att_layout *p, int q0, int klo,
                        int khi) {
    vf in = vec_of(p->scale2 / p->cap2);
    for (int k = klo; k < khi; k++)
        for (int q = q0; q < q0 + ATT_LANES; q += VEC) {
            vf t = att_max(att_get(s + (size_t)k * ATT_TILE + q) * in, vec_of(-1.0f));
            att_put(slope + (size_t)k * ATT_TILE + q, 1.0f - t * t);
        }
}

static void multiply_lanes(float *g, const float *slope, int q0, int klo, int khi) {
    for (int k = klo; k < khi; k++)
        for (int q = q0; q < q0 + ATT_LANES; q += VEC) {
            size_t at = (size_t)k * ATT_TILE + q;
            att_put(g + at, att_get(g + at) * att_get(slope + at));
        }
}

static void zero_score_rows(const scores *s, int q0, int from, int to) {
    for (int k = from; k < to; k++) {
        size_t at = (size_t)k * ATT_TILE + q0;
        memset(s->p + at, 0, ATT_LANES * sizeof(float));
        memset(s->g + at, 0, ATT_LANES * sizeof(float));
    }
}

static void process_pair(const bwd *b, query_tile *qt, const scores *s, int kv, int kt, int what) {
    const att_layout *p = &b->layout;
    const tile_path *path = p->path;
    int m = att_pad(p, att_key_rows(p, kt)), n = att_pad(p, qt->rows), w = p->width;
    const char *k = bwd_packed_tile(b, kv, kt), *v = k + p->tile_bytes,
               *k_transposed = v + p->tile_bytes;
    att_band buffer;
    const att_band *band = CPU(att_band_tiles)(&buffer, p, qt->tile, kt);
    path->mul(
        &(tile_job){ TILE_SCORES, k, qt->q_transposed, s->p, m, n, w, ATT_TILE, w, false, band });
    path->mul(
        &(tile_job){ TILE_SCORES, v, qt->do_transposed, s->g, m, n, w, ATT_TILE, w, false, band });
    for (int q0 = 0; q0 < n; q0 += ATT_LANES) {
        int klo, khi;
        att_lane_keys(band, q0, n, m, &klo, &khi);
        if (p->cap2 > 0) CPU(att_cap)(s->p, p, q0, klo, khi);
        if (band) {
            CPU(att_hide)(s->p, band, q0, klo, khi, ATT_MASKED);
            CPU(att_hide)(s->g, band, q0, klo, khi, 0); /* not computed there, and 0 * NaN is NaN */
            zero_score_rows(s, q0, 0, klo);
            zero_score_rows(s, q0, MAX(klo, khi), m);
        }
        float *slope = s->slope;
        if (p->cap2 > 0) slope_lanes(s->p, slope, p, q0, klo, khi);
        if (qt->mask.drop)
            grad_lanes_dropped(s, qt, p, kt, q0, klo, khi);
        else
            grad_lanes(s, qt, p->scale2, q0, klo, khi);
        if (p->cap2 > 0) multiply_lanes(s->g, slope, q0, klo, khi);
    }
    if (what & DO_QUERIES) {
        const void *g = path->right_scores(s->g_right, s->g, m, n);
        path->mul(&(tile_job){ TILE_BY_QUERY, k_transposed, g, qt->dq, w, n, m, ATT_TILE, ATT_TILE,
                               true, band });
    }
    if (what & DO_KEYS) {
        float *dk = sums_tile(b, kv, kt), *dv = dk + sum_count(p);
        const void *pl = path->left_scores(s->p_left, s->p, m, n);
        const void *gl = path->left_scores(s->g_left, s->g, m, n);
        path->mul(&(tile_job){ TILE_BY_KEY, pl, qt->dout, dv, m, w, n, w, ATT_TILE, true, band });
        path->mul(&(tile_job){ TILE_BY_KEY, gl, qt->q, dk, m, w, n, w, ATT_TILE, true, band });
    }
}

/* ---- results --------------------------------------------------------------------------------- */
/* to[row + r][col + c] = or += scale * from[r][c] */
static void store_rows(const tensor *to, bool add, const float *from, int ld, int64_t row,
                       int64_t col, int rows, int cols, float scale) {
    float scaled[ATT_TILE], old[ATT_TILE];
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < cols; c += ATT_TILE) {
            int n = MIN(ATT_TILE, cols - c);
            for (int i = 0; i < n; i++) scaled[i] = from[(size_t)r * ld + c + i] * scale;
            int64_t at = (row + r) * to->dim[1] + col + c;
            char *bytes = (char *)to->data + (size_t)at * dt_size(to->dt);
            if (add) CPU(to_f32)(to->dt, bytes, old, n);
            for (int i = 0; i < n && add; i++) scaled[i] += old[i];
            CPU(from_f32)(to->dt, scaled, bytes, n);
        }
    }
}

static void store_key_grads(const bwd *b, int kv, int t) {
    const att_layout *p = &b->layout;
    const float *dk = sums_tile(b, kv, t), *dv = dk + sum_count(p);
    int64_t row = p->key_row[t];
    int rows = att_key_rows(p, t);
    store_rows(b->dkv, false, dk, p->width, row, att_k_col(p, kv), rows, p->dim, b->scale);
    store_rows(b->dkv, false, dv, p->width, row, att_v_col(p, kv), rows, p->dim, 1.0f);
}

static void store_queries(const bwd *b, const query_tile *qt, int head) {
    const att_layout *p = &b->layout;
    float transposed[ATT_LANES][ATT_TILE];
    int64_t row = p->tile_row[qt->tile], col = att_q_col(p, head);
    for (int q0 = 0; q0 < qt->rows; q0 += ATT_LANES) {
        for (int d = 0; d < p->dim; d += ATT_TILE) {
            const float *from = qt->dq + (size_t)d * ATT_TILE + q0;
            CPU(tile_transpose)
            (transposed[0], ATT_TILE, from, ATT_TILE, MIN(ATT_TILE, p->width - d), ATT_LANES);
            store_rows(b->dq, b->add_dq, transposed[0], ATT_TILE, row + q0, col + d,
                       MIN(ATT_LANES, qt->rows - q0), MIN(ATT_TILE, p->dim - d), b->scale);
        }
    }
}

/* ---- tasks ----------------------------------------------------------------------------------- */
static void zero_key_sums(const bwd *b, int kv, int t0, int t1) {
    size_t bytes = 2 * sum_count(&b->layout) * sizeof(float);
    memset(sums_tile(b, kv, t0), 0, (size_t)(t1 - t0) * bytes);
}

/* One tile of queries against all keys it sees. */
static void query_pass(const bwd *b, query_tile *qt, const scores *s, int head, int t, int what) {
    const att_layout *p = &b->layout;
    load_queries(b, qt, head, t);
    memset(qt->dq, 0, sum_count(p) * sizeof(float));
    int end = CPU(att_end_tile)(p, t);
    for (int kt = CPU(att_first_tile)(p, t); kt < end; kt++)
        process_pair(b, qt, s, head / p->group, kt, what);
    store_queries(b, qt, head);
}

/* The whole backward of a kv head of a chunk. */
static void bwd_chunk_task(void *ctx, int64_t i, int worker) {
    const bwd *b = ctx;
    const att_layout *p = &b->layout;
    int kv = (int)(i % p->kv), chunk = (int)(i / p->kv);
    int t0 = p->chunk_tile[chunk], t1 = p->chunk_tile[chunk + 1];
    query_tile qt;
    scores s;
    init_worker(b, worker, &qt, &s);
    int k0 = p->chunk_keys[chunk], k1 = p->chunk_keys[chunk + 1];
    for (int t = k0; t < k1; t++) pack_keys(b, kv, t);
    zero_key_sums(b, kv, k0, k1);
    for (int h = kv * p->group; h < (kv + 1) * p->group; h++)
        for (int t = t0; t < t1; t++) query_pass(b, &qt, &s, h, t, DO_QUERIES | DO_KEYS);
    for (int t = k0; t < k1; t++) store_key_grads(b, kv, t);
}

static void bwd_pack_task(void *ctx, int64_t i, int worker) {
    const bwd *b = ctx;
    pack_keys(b, (int)(i % b->layout.kv), (int)(i / b->layout.kv));
}

static void query_task(void *ctx, int64_t i, int worker) {
    const bwd *b = ctx;
    int back = (int)(i / b->layout.heads); /* later tiles see more keys: longest first */
    query_tile qt;
    scores s;
    init_worker(b, worker, &qt, &s);
    query_pass(b, &qt, &s, (int)(i % b->layout.heads), b->layout.n_tiles - 1 - back, DO_QUERIES);
}

/* One tile of keys against all queries that see it. */
static void key_task(void *ctx, int64_t i, int worker) {
    const bwd *b = ctx;
    const att_layout *p = &b->layout;
    int kv = (int)(i % p->kv), kt = (int)(i / p->kv);
    query_tile qt;
    scores s;
    init_worker(b, worker, &qt, &s);
    zero_key_sums(b, kv, kt, kt + 1);
    for (int h = kv * p->group; h < (kv + 1) * p->group; h++) {
        for (int t = p->keys ? 0 : kt; t < p->n_tiles; t++) {
            if (att_first_key(p, p->tile_row[t]) >= p->key_row[kt + 1]) break;
            if (att_end_key(p, p->tile_row[t + 1] - 1) <= p->key_row[kt]) continue;
            load_queries(b, &qt, h, t);
            process_pair(b, &qt, &s, kv, kt, DO_KEYS);
        }
    }
    store_key_grads(b, kv, kt);
}

/* ---- the ops --------------------------------------------------------------------------------- */
/* Tiles are multiplied in bf16 only when both gradients and values are bf16. */
static att_layout bwd_layout(const op_call *c) {
    dtype dt = c->in[0].dt == c->in[1].dt ? c->in[1].dt : DT_F32;
    return c->op == OP_ATTENTION_BLOCK_BWD
               ? CPU(att_block_layout_of)(c, &c->in[BLOCK_BWD_Q], &c->in[BLOCK_BWD_KV], dt)
               : CPU(att_layout_of)(c, c->in[1].dim[0], dt);
}
static size_t bwd_packed_bytes(const att_layout *p) {
    return (size_t)CPU(att_max_key_tiles)(p) * p->kv * 3 * p->tile_bytes;
}
static size_t sums_bytes(const att_layout *p) {
    return (size_t)CPU(att_max_key_tiles)(p) * p->kv * 2 * sum_count(p) * sizeof(float);
}

size_t CPU(att_bwd_workspace)(const op_call *c, int threads) {
    att_layout p = bwd_layout(c);
    return CPU(att_layout_bytes)(&p) + bwd_packed_bytes(&p) + sums_bytes(&p) +
           (size_t)threads * bwd_worker_bytes(&p);
}

/* Divides the work and runs it. */
static void run_backward(bwd *b) {
    const att_layout *p = &b->layout;
    BUG_IF(b->dout->dim[1] != (int64_t)p->heads * p->dim || b->lse->dt != DT_F32);
    b->packed = (char *)b->c->run->workspace + CPU(att_layout_bytes)(p);
    b->sums = (float *)(b->packed + bwd_packed_bytes(p));
    b->worker = (char *)b->sums + sums_bytes(p);
    b->worker_bytes = bwd_worker_bytes(p);
    b->scale = b->c->attr.heads.scale;
    pool *threads = b->c->run->pool;
    if (CPU(att_by_chunk)(p, pool_size(threads), CHUNKS_WORTH)) {
        pool_run(threads, (int64_t)p->kv * p->n_chunks, bwd_chunk_task, b);
        return;
    }
    pool_run(threads, (int64_t)p->kv * p->n_key_tiles, bwd_pack_task, b);
    pool_run(threads, (int64_t)p->heads * p->n_tiles, query_task, b);
    pool_run(threads, (int64_t)p->kv * p->n_key_tiles, key_task, b);
}

static void CPU(attention_bwd)(const op_call *c) {
    const tensor *in = c->in, *dqkv = &c->out[0];
    bwd b = { bwd_layout(c), c, &in[0], &in[1], &in[1], &in[2], &in[3], dqkv, dqkv };
    BUG_IF(in[1].dim[1] != (int64_t)(b.layout.heads + 2 * b.layout.kv) * b.layout.dim);
    CPU(att_split)(&b.layout, in[4].data, c->run->workspace);
    CPU(att_drop_init)(&b.layout, c, &in[5], &in[5]);
    run_backward(&b);
}

static void CPU(attention_block_bwd)(const op_call *c) {
    const tensor *in = c->in;
    bwd b = { bwd_layout(c),      c,
              &in[BLOCK_BWD_DO],  &in[BLOCK_BWD_Q],
              &in[BLOCK_BWD_KV],  &in[BLOCK_BWD_O],
              &in[BLOCK_BWD_LSE], &c->out[0],
              &c->out[1],         c->accumulate & 1 };
    CPU(att_split_block)(&b.layout, in[BLOCK_BWD_RANGE].data, c->run->workspace);
    CPU(att_drop_init)(&b.layout, c, &in[BLOCK_BWD_ID], &in[BLOCK_BWD_KEY_ID]);
    run_backward(&b);
}

KERNEL(ATTENTION_BWD, CPU(attention_bwd), CPU(attention_workspace),
       ATTRS_HEADS | ATTRS_ATTENTION | ATTRS_ATTENTION_DROPOUT);
KERNEL(ATTENTION_BLOCK_BWD, CPU(attention_block_bwd), CPU(attention_workspace),
       ATTRS_HEADS | ATTRS_SCORES | ATTRS_ATTENTION_DROPOUT);
