/* ATTENTION_CACHED: keys and values are stored in a cache, one row per position, the sequences back to back. Several
 * consecutive tokens of one sequence (a prompt) use the same tiles as training; single tokens go row by row, as fast as
 * the cache can be read. */
#include "attention_internal.h"
#include "bandwidth.h"

#include <string.h>

enum { PROMPT = 8 }; /* fewest tokens for which tiles are faster */

typedef struct cached {
    att_layout layout; /* without tile_row and start: positions define what is seen */
    const op_call *c;
    const int32_t *pos, *start;
    tensor cache;
    char *worker;
    size_t worker_bytes;
} cached;

/* The row of a token in the cache, and the first row that it sees. */
static int64_t row_of(const cached *a, int64_t i) { return (int64_t)a->start[i] + a->pos[i]; }
static int64_t first_row(const cached *a, int64_t i) {
    int64_t window = a->layout.window, chunk = a->c->attr.heads.chunk;
    if (chunk > 0) return row_of(a, i) - a->pos[i] % chunk;
    return a->start[i] + (window > 0 ? MAX(0, a->pos[i] - window + 1) : 0);
}
static tile_src cache_src(const cached *a, int64_t row, int kv, bool value, int rows) {
    int64_t col = (int64_t)(kv + (value ? a->layout.kv : 0)) * a->layout.dim;
    return att_src(&a->cache, row, col, rows, a->layout.dim);
}

/* Copies k|v of each token, which follow q in its row, to its row of the cache. */
static void store_tokens(const cached *a) {
    const att_layout *p = &a->layout;
    const tensor *qkv = &a->c->in[0];
    int64_t width = 2 * (int64_t)p->kv * p->dim;
    float part[ATT_TILE];
    for (int64_t i = 0; i < p->n; i++) {
        BUG_IF(a->pos[i] < 0 || a->start[i] < 0 || row_of(a, i) >= a->cache.dim[0]);
        for (int64_t c = 0; c < width; c += ATT_TILE) {
            int n = (int)MIN(ATT_TILE, width - c);
            tile_src from = att_src(qkv, i, att_k_col(p, 0) + c, 1, n);
            tile_src to = att_src(&a->cache, row_of(a, i), c, 1, n);
            CPU(to_f32)(from.dt, from.data, part, n);
            CPU(from_f32)(to.dt, part, (void *)to.data, n);
        }
    }
}

/* ---- a run of tokens, by tiles ------------------------------------------------------------- */
static void tile_task(void *ctx, int64_t task, int worker) {
    const cached *a = ctx;
    const att_layout *p = &a->layout;
    int head = (int)(task % p->heads);
    int64_t row = task / p->heads * ATT_TILE;
    int nq = (int)MIN(ATT_TILE, p->n - row);
    int64_t lo[ATT_TILE], end[ATT_TILE];
    for (int q = 0; q < nq; q++) {
        lo[q] = first_row(a, row + q);
        end[q] = row_of(a, row + q) + 1;
    }
    char *buffer = a->worker + worker * a->worker_bytes, *k = buffer + CPU(att_state_bytes)(p);
    char *v = k + p->tile_bytes;
    att_state st;
    CPU(att_state_init)(&st, p, buffer);
    tile_src q = att_src(&a->c->in[0], row, att_q_col(p, head), nq, p->dim);
    CPU(att_state_begin)(&st, p, &q);
    for (int64_t key = lo[0]; key < end[nq - 1]; key += ATT_TILE) {
        int keys = (int)MIN(ATT_TILE, end[nq - 1] - key);
        tile_src ks = cache_src(a, key, head / p->group, false, keys);
        tile_src vs = cache_src(a, key, head / p->group, true, keys);
        p->path->left_outer(k, &ks, p->width);
        p->path->left_inner(v, &vs, p->width);
        att_band band;
        const att_band *mask = CPU(att_band_of)(&band, p, lo, end, nq, key, keys);
        CPU(att_state_add)(&st, p, (att_keys){ k, v, keys, NULL }, nq, mask);
    }
    CPU(att_state_sink)(&st, p, nq, &a->c->in[4], a->c->attr.heads.sink_first, head);
    CPU(att_state_end)(&st, p, nq, &a->c->out[0], row, head, NULL);
}

/* ---- single tokens, by rows ----------------------------------------------------------------- */
/* Rows of fp32 or bf16, `stride` elements apart. */
typedef struct rows {
    dtype t;
    const void *at;
    int64_t stride;
} rows;

/* Where several heads read the rows, or a type has no loop of its own, they are converted to fp32, contiguous: in the
 * cache they are often a power of two apart, and would evict each other from the processor's cache before the next
 * head reads them. */
static rows load_rows(const tile_src *s, int heads, float *buffer) {
    if (heads == 1 && (s->dt == DT_F32 || s->dt == DT_BF16))
        return (rows){ s->dt, s->data, s->stride };
    for (int r = 0; r < s->rows; r++) {
        size_t at = (size_t)(r * s->stride) * dt_size(s->dt);
        CPU(to_f32)(s->dt, (const char *)s->data + at, buffer + (size_t)r * s->cols, s->cols);
    }
    return (rows){ DT_F32, buffer, s->cols };
}

/* Rows are short and far apart, which no hardware prefetcher recognizes. */
static void prefetch_cached(const tile_src *s) {
    size_t size = dt_size(s->dt), bytes = (size_t)s->cols * size;
    for (int r = 0; r < s->rows; r++)
        for (size_t i = 0; i < bytes; i += PREFETCH_LINE)
            __builtin_prefetch((const char *)s->data + (size_t)(r * s->stride) * size + i, 0, 2);
}

/* The online softmax of one query over the keys added so far. */
typedef struct row_state {
    const float *q; /* [dim], scaled */
    float *out;     /* [dim] */
    float max, sum;
} row_state;

/* score[j] = q . row j */
LOOP_INLINE void score_rows(dtype t, const float *q, rows x, int n, int dim, float *score) {
    size_t stride = (size_t)x.stride * elem_size(t);
    const char *row = x.at;
    for (int j = 0; j < n; j++, row += stride) {
        vf part[UNIT_VECS] = { { 0 } };
        int d = 0;
        for (; d + UNIT <= dim; d += UNIT) {
            vf a[UNIT_VECS], b[UNIT_VECS];
            unit_load(DT_F32, q, d, a);
            unit_load(t, row, d, b);
            UNIT_EACH part[i] = vec_muladd(a[i], b[i], part[i]);
        }
        float sum = vec_total((part[0] + part[1]) + (part[2] + part[3]));
        for (; d < dim; d++) sum += q[d] * elem_get(t, row, d);
        score[j] = sum;
    }
}

/* out = out * shrink + sum of weight[j] * row j */
LOOP_INLINE void mix_rows(dtype t, float *out, float shrink, const float *weight, rows x, int n,
                          int dim) {
    size_t stride = (size_t)x.stride * elem_size(t);
    int d = 0;
    for (; d + UNIT <= dim; d += UNIT) {
        vf sum[UNIT_VECS];
        unit_load(DT_F32, out, d, sum);
        UNIT_EACH sum[i] *= shrink;
        const char *row = x.at;
        for (int j = 0; j < n; j++, row += stride) {
            vf v[UNIT_VECS];
            unit_load(t, row, d, v);
            UNIT_EACH sum[i] = vec_muladd(v[i], vec_of(weight[j]), sum[i]);
        }
        unit_store(DT_F32, out, d, sum);
    }
    for (; d < dim; d++) {
        float sum = out[d] * shrink;
        const char *row = x.at;
        for (int j = 0; j < n; j++, row += stride) sum += weight[j] * elem_get(t, row, d);
        out[d] = sum;
    }
}

/* The two loops over the rows, for each type that they may have. */
static void cached_scores(const float *q, rows k, int n, int dim, float *score) {
    if (k.t == DT_BF16)
        score_rows(DT_BF16, q, k, n, dim, score);
    else
        score_rows(DT_F32, q, k, n, dim, score);
}
static void cached_mix(float *out, float shrink, const float *weight, rows v, int n, int dim) {
    if (v.t == DT_BF16)
        mix_rows(DT_BF16, out, shrink, weight, v, n, dim);
    else
        mix_rows(DT_F32, out, shrink, weight, v, n, dim);
}

static void row_add(row_state *st, const att_layout *p, rows k, rows v, int keys) {
    int dim = p->dim;
    float s[ATT_TILE], top = st->max, sum = 0;
    vf best = vec_of(ATT_MASKED);
    cached_scores(st->q, k, keys, dim, s);
    for (int j = keys; j < ATT_TILE; j++) s[j] = ATT_MASKED;
    vf in = vec_of(1 / (p->cap2 > 0 ? p->cap2 : 1)), out = vec_of(p->cap2);
    for (int j = 0; p->cap2 > 0 && j < keys; j += VEC) {
        vf x = att_get(s + j), bounded = att_tanh(x * in) * out;
        att_put(s + j, vec_select(x > vec_of(ATT_MASKED), bounded, x));
    }
    for (int j = 0; j < keys; j += VEC) best = att_max(att_get(s + j), best);
    for (int i = 0; i < VEC; i++) top = best[i] > top ? best[i] : top;
    for (int j = 0; j < keys; j += VEC) att_put(s + j, att_exp2(att_get(s + j) - top));
    vf shrink = att_exp2(vec_of(st->max - top));
    for (int j = 0; j < keys; j++) sum += s[j];
    cached_mix(st->out, shrink[0], s, v, keys, dim);
    st->sum = st->sum * shrink[0] + sum;
    st->max = top;
}

/* Keys and values of a kv head, rows [key, key + ATT_TILE) up to `last`: none beyond it. */
typedef struct row_tile {
    tile_src k, v;
} row_tile;
static row_tile row_tile_at(const cached *a, int64_t key, int64_t last, int kv) {
    int keys = (int)MAX(0, MIN(ATT_TILE, last + 1 - key));
    return (row_tile){ cache_src(a, key, kv, false, keys), cache_src(a, key, kv, true, keys) };
}

/* All query heads of a kv head for one token, so that the cache is read once. */
static void cached_row_task(void *ctx, int64_t task, int worker) {
    const cached *a = ctx;
    const att_layout *p = &a->layout;
    int kv = (int)(task % p->kv), dim = p->dim;
    int64_t i = task / p->kv, last = row_of(a, i);
    row_state *st = (row_state *)(a->worker + worker * a->worker_bytes);
    float *k = (float *)(st + p->group);
    float *v = k + (size_t)ATT_TILE * dim, *q = v + (size_t)ATT_TILE * dim;
    float *out = q + (size_t)p->group * dim;
    tile_src qs = att_src(&a->c->in[0], i, att_q_col(p, kv * p->group), 1, p->group * dim);
    CPU(to_f32)(qs.dt, qs.data, q, qs.cols);
    for (int d = 0; d < qs.cols; d++) q[d] *= p->scale2;
    memset(out, 0, (size_t)qs.cols * sizeof *out);
    const tensor *sink = &a->c->in[4];
    int first = a->c->attr.heads.sink_first + kv * p->group;
    for (int h = 0; h < p->group; h++) {
        st[h] = (row_state){ q + (size_t)h * dim, out + (size_t)h * dim, ATT_MASKED, 0 };
        if (sink->data) st[h].max = CPU(att_sink_of)(sink, first + h), st[h].sum = 1;
    }
    row_tile tile = row_tile_at(a, first_row(a, i), last, kv);
    for (int64_t key = first_row(a, i); key <= last; key += ATT_TILE) {
        row_tile next = row_tile_at(a, key + ATT_TILE, last, kv);
        prefetch_cached(&next.k);
        prefetch_cached(&next.v);
        rows kr = load_rows(&tile.k, p->group, k), vr = load_rows(&tile.v, p->group, v);
        int keys = tile.k.rows;
        for (int h = 0; h < p->group; h++) row_add(&st[h], p, kr, vr, keys);
        tile = next;
    }
    for (int h = 0; h < p->group; h++)
        for (int d = 0; d < dim; d++) st[h].out[d] /= st[h].sum;
    tile_src to = att_src(&a->c->out[0], i, att_q_col(p, kv * p->group), 1, p->group * dim);
    CPU(from_f32)(to.dt, out, (void *)to.data, to.cols);
}

/* ---- the op ---------------------------------------------------------------------------------- */
/* Tiles are multiplied in bf16 only when queries and cache both are bf16. */
static att_layout cached_layout(const op_call *c) {
    bool same = c->in[0].dt == c->in[1].dt;
    return CPU(att_layout_of)(c, c->in[0].dim[0], same ? c->in[0].dt : DT_F32);
}
static size_t cached_worker_bytes(const att_layout *p) {
    size_t tile = CPU(att_state_bytes)(p) + 2 * p->tile_bytes;
    size_t row = (2 * (size_t)ATT_TILE + 2 * p->group) * p->dim * sizeof(float);
    return align_up(MAX(tile, row + p->group * sizeof(row_state)), 64);
}
size_t CPU(att_cached_workspace)(const op_call *c, int threads) {
    att_layout p = cached_layout(c);
    return (size_t)threads * cached_worker_bytes(&p);
}

/* Whether the tokens are consecutive ones of a sequence. */
static bool is_run(const cached *a, int64_t n) {
    for (int64_t i = 1; i < n; i++)
        if (a->pos[i] <= a->pos[i - 1] || a->start[i] != a->start[0]) return false;
    return n >= PROMPT;
}

static void CPU(attention_cached)(const op_call *c) {
    cached a = { .layout = cached_layout(c), .c = c, .cache = c->in[1] };
    a.pos = c->in[2].data;
    a.start = c->in[3].data;
    const att_layout *p = &a.layout;
    BUG_IF(c->in[0].dim[1] != (int64_t)(p->heads + 2 * p->kv) * p->dim);
    BUG_IF(a.cache.dim[1] != 2 * (int64_t)p->kv * p->dim);
    a.worker = c->run->workspace;
    a.worker_bytes = cached_worker_bytes(p);
    store_tokens(&a);
    int64_t tiles = (p->n + ATT_TILE - 1) / ATT_TILE;
    if (is_run(&a, p->n))
        pool_run(c->run->pool, tiles * p->heads, tile_task, &a);
    else
        pool_run(c->run->pool, p->n * p->kv, cached_row_task, &a);
}

KERNEL(ATTENTION_CACHED, CPU(attention_cached), CPU(attention_workspace),
       ATTRS_HEADS | ATTRS_ATTENTION | ATTR(CHUNK));
