/* Attention in tiles of 64 queries by 64 keys; scores of all pairs never exist. Everything is kept
 * with queries along the columns, so that maxima, sums and rescaling run down the columns, lane by
 * lane, and no product needs a transposed copy of the scores:
 *
 *     forward     S'[key,q]  = K Q'               O'[dim,q] += V' P'
 *     backward    S' = K Q'      D' = V dO'       P' = exp(S' - lse),  G' = P' (D' - delta)
 *                 dV[key,dim] += P' dO            dK[key,dim] += G' Q      dQ'[dim,q] += K' G'
 *
 * What comes from keys is always the left operand and is packed once for all queries that see it;
 * what comes from queries is always the right operand and is packed once for all keys it sees.
 */
#ifndef INGOT_OPS_CPU_ATTENTION_INTERNAL_H
#define INGOT_OPS_CPU_ATTENTION_INTERNAL_H

#include "cpu_internal.h"
#include "vec.h"

enum {
    ATT_TILE = 64,   /* queries, and keys, of a tile */
    ATT_GROUP = 8,   /* grain at which masked parts of a tile are skipped */
    ATT_LANES = 16,  /* queries whose softmax is done together: the widest vector */
    ATT_CHUNK = 256, /* least tokens of a chunk: see att_plan */
    ATT_SQUARE = ATT_TILE * ATT_TILE,
};
static const float ATT_LOG2E = 1.44269504f, ATT_LN2 = 0.693147181f;
/* The score of a pair that must not attend: far below any real one, yet finite. */
static const float ATT_MASKED = -1e30f;

/* ---- vectors of fp32 ---------------------------------------------------------------------- */
/* Before a loop over registers: gcc keeps an array in memory unless all its loops are unrolled. */
#if defined(__clang__)
#define ATT_UNROLL _Pragma("unroll")
#else
#define ATT_UNROLL _Pragma("GCC unroll 16")
#endif

static inline vf att_get(const float *p) { return vec_load(DT_F32, p, 0); }
static inline void att_put(float *p, vf x) { vec_store(DT_F32, p, 0, x); }
/* The larger; b where a is NaN. */
static inline vf att_max(vf a, vf b) { return vec_select(a > b, a, b); }

/* Hides a value from the compiler, which may reorder sums: (x + big) - big must round x. */
#if defined(__aarch64__)
#define ATT_OPAQUE(x) __asm__("" : "+w"(x))
#elif defined(__AVX512F__)
#define ATT_OPAQUE(x) __asm__("" : "+v"(x))
#elif defined(__SSE2__)
#define ATT_OPAQUE(x) __asm__("" : "+x"(x))
#else
#define ATT_OPAQUE(x) __asm__("" : "+m"(x))
#endif

/* 2^x for x below 127, relative error 2e-7, exactly 0 below the normal range; NaN stays NaN.
 * Cheaper than vm_exp: the scale of the scores already carries log2(e), they never lie above, and
 * conversions between int and float, slow on some processors, are done by adding 1.5 * 2^23: the
 * integer then stands in the low bits. 127 more makes of it the exponent of 2^n. */
static inline vf att_exp2(vf x) {
    const float big = 12582912.0f + 127.0f;
    vf n = x + big;
    ATT_OPAQUE(n);
    vf whole = n - big;
    ATT_OPAQUE(whole);
    vf r = x - whole; /* [-0.5, 0.5] */
    vf y = r * 0.00133908634f + 0.00967603192f;
    y = y * r + 0.0555035711f;
    y = y * r + 0.240221075f;
    y = y * r + 0.693147188f;
    y = y * r + 1.00000008f;
    y = y * (vf)((vu)n << 23);
    return (vf)((vi)y & ~(x < -126.0f));
}

/* ---- tile products ------------------------------------------------------------------------ */
/* Which pairs of one tile may attend. Both bounds of a query's keys grow with the query, so the
 * queries that see a key are an interval too. Indices are within the tile. */
typedef struct att_band {
    uint8_t from[ATT_TILE], to[ATT_TILE]; /* queries [from, to) see key k */
    struct {
        uint8_t lo, hi;
    } keys[ATT_TILE / ATT_GROUP],      /* of a group of queries: union of the keys they see */
        queries[ATT_TILE / ATT_GROUP]; /* of a group of keys: union of the queries that see them */
} att_band;

/* What the rows and columns of a product are, hence what a band lets it skip. */
typedef enum {
    TILE_SCORES,   /* C[key,q]: parts of the result */
    TILE_BY_QUERY, /* C[*,q], sum over keys */
    TILE_BY_KEY,   /* C[key,*], sum over queries */
} tile_kind;

/* C[m,n] = or += L[m,k] R[k,n]. Sizes are multiples of the path's unit; rows of C lie as far apart
 * as n is padded in memory. Where a band makes it skip
 * part of a result that is not added to, that part is left as it was. */
typedef struct tile_job {
    tile_kind kind;
    const void *left, *right;
    float *c;
    int m, n, k;
    int ldc;
    int inner; /* what k is padded to in memory: width of a head, or ATT_TILE */
    bool add;
    const att_band *band; /* NULL: no pair is masked */
} tile_job;

/* rows x cols values of a tensor, one row `stride` elements after the other */
typedef struct tile_src {
    const void *data;
    dtype dt;
    int64_t stride;
    int rows, cols;
} tile_src;

/* A way to multiply tiles: an element type and the layout its kernels want. The packers zero what
 * pads rows and cols to the unit. Tokens are padded to ATT_TILE in address, heads to `width`. */
typedef struct tile_path {
    const char *name;
    size_t elem;
    int unit;
    /* The source's rows are the operand's outer index (m or n), or its inner one (k). `width` is
     * cols rounded up to the unit. */
    void (*left_outer)(void *dst, const tile_src *s, int width);
    void (*left_inner)(void *dst, const tile_src *s, int width);
    void (*right_outer)(void *dst, const tile_src *s, int width);
    void (*right_inner)(void *dst, const tile_src *s, int width);
    /* A score tile [keys, q], rows ATT_TILE apart, as an operand; `room` holds the copy if one is
     * needed. keys and queries are multiples of the unit. @return t itself, or room. */
    const void *(*left_scores)(void *room, const float *t, int keys, int queries);
    const void *(*right_scores)(void *room, const float *t, int keys, int queries);
    void (*mul)(const tile_job *j);
} tile_path;

/* @return the path for products of this type: fp32 unless the instruction set has better. */
const tile_path *CPU(tile_path_for)(dtype dt);
/* dst[c][r] = src[r][c]; rows and cols are multiples of 4. */
void CPU(tile_transpose)(float *dst, int ldd, const float *src, int lds, int rows, int cols);

/* Part of the product that C's panel [m0,m1) x [n0,n1) needs, in multiples of `grain`.
 * @return false when it needs none. */
static inline bool tile_inner(const tile_job *j, int m0, int m1, int n0, int n1, int grain, int *k0,
                              int *k1) {
    *k0 = 0;
    *k1 = j->k;
    if (!j->band) return true;
    const att_band *b = j->band;
    if (j->kind == TILE_SCORES)
        return b->keys[(n1 - 1) / ATT_GROUP].hi > m0 && b->keys[n0 / ATT_GROUP].lo < m1;
    bool by_query = j->kind == TILE_BY_QUERY;
    int lo = by_query ? b->keys[n0 / ATT_GROUP].lo : b->queries[m0 / ATT_GROUP].lo;
    int hi = by_query ? b->keys[(n1 - 1) / ATT_GROUP].hi : b->queries[(m1 - 1) / ATT_GROUP].hi;
    *k0 = lo / grain * grain;
    *k1 = MIN((hi + grain - 1) / grain * grain, j->k);
    return *k0 < *k1;
}

/* ---- shapes, chunks, masks ---------------------------------------------------------------- */
/* Shape of a call, and its cut into tiles and chunks. A chunk is a run of tokens that no token
 * outside it sees and that sees none outside: tasks of different chunks or kv heads share nothing.
 * Tiles start anew with each chunk. Neither depends on the number of threads. */
typedef struct att_plan {
    const tile_path *path;
    int64_t n;            /* tokens */
    int heads, kv, group; /* query heads, key/value heads, query heads for each of them */
    int dim, width;       /* head size, and rounded up to the path's unit */
    int window;
    float scale2;         /* of scores, with log2(e) */
    const int32_t *start; /* [n] */
    int n_tiles, n_chunks;
    int32_t *tile_row;   /* [n_tiles + 1] first token; of the last: n */
    int32_t *chunk_tile; /* [n_chunks + 1] first tile */
    size_t tile_bytes;   /* a packed tile of a head */
} att_plan;

/* The shape alone; `c` gives attr.heads, `n` and `dt` the tokens and their type. */
att_plan CPU(att_shape)(const op_call *c, int64_t n, dtype dt);
/* Room for tile_row and chunk_tile. */
size_t CPU(att_plan_bytes)(const att_plan *p);
int64_t CPU(att_max_tiles)(const att_plan *p);
/* Cuts the tokens by start; `room` holds the lists. */
void CPU(att_cut)(att_plan *p, const int32_t *start, void *room);

/* @return whether one task for each chunk and kv head keeps the threads busy: whether it is done
 * within `worth` times the time that work cut ever finer would take. If not, it is cut by tiles, at
 * the cost of packing first, and in the backward of making the scores twice; tiles and the order of
 * sums, and so the bits, are the same either way. */
bool CPU(att_by_chunk)(const att_plan *p, int threads, double worth);

/* First key token i may see. */
static inline int64_t att_first(const att_plan *p, int64_t i) {
    int64_t lo = p->start[i];
    return p->window > 0 && i - p->window + 1 > lo ? i - p->window + 1 : lo;
}
static inline int att_pad(const att_plan *p, int rows) {
    return (int)align_up(rows, p->path->unit);
}
static inline int att_tile_rows(const att_plan *p, int t) {
    return p->tile_row[t + 1] - p->tile_row[t];
}

/* First tile of keys that tile qt of queries sees. */
int CPU(att_first_tile)(const att_plan *p, int qt);

/* The mask of `nq` queries over keys [key0, key0 + keys). lo and end, [nq], are each query's first
 * key and the one after its last, neither ever falling.
 * @return NULL when nothing is masked, else band filled. */
const att_band *CPU(att_band_of)(att_band *band, const att_plan *p, const int64_t *lo,
                                 const int64_t *end, int nq, int64_t key0, int keys);
/* The same for two tiles of a plan. */
const att_band *CPU(att_band_tiles)(att_band *band, const att_plan *p, int qt, int kt);
/* What the band hides in [klo, khi) x [q0, q0 + ATT_LANES) of a score tile becomes `hidden`. */
void CPU(att_mask)(float *s, const att_band *band, int q0, int klo, int khi, float hidden);

/* Rows of keys that a block of ATT_LANES queries needs. */
static inline void att_lane_keys(const att_band *band, int q0, int nq, int keys, int *lo, int *hi) {
    *lo = band ? band->keys[q0 / ATT_GROUP].lo : 0;
    *hi = band ? band->keys[(MIN(q0 + ATT_LANES, nq) - 1) / ATT_GROUP].hi : keys;
}

/* ---- the forward of one tile of queries ---------------------------------------------------- */
/* Softmax so far of up to ATT_TILE queries of a head, over the key tiles already seen. */
typedef struct att_state {
    float max[ATT_TILE]; /* subtracted from the scores, in powers of two; near the maximum */
    float sum[ATT_TILE];
    float *out;   /* [width, ATT_TILE] O', not yet divided by sum */
    float *s;     /* [ATT_TILE, ATT_TILE] */
    void *p_room; /* of right_scores */
    void *q;      /* right operand: queries */
} att_state;

size_t CPU(att_state_bytes)(const att_plan *p);
/* Lays the state out in `room`, of att_state_bytes. */
void CPU(att_state_init)(att_state *st, const att_plan *p, void *room);
void CPU(att_state_begin)(att_state *st, const att_plan *p, const tile_src *q);
/* Takes one tile of keys in. k: left_outer of the keys, v: left_inner of the values. */
void CPU(att_state_add)(att_state *st, const att_plan *p, const void *k, const void *v, int nq,
                        int keys, const att_band *band);
/* Writes nq rows of the head's output and, where lse is not NULL, its log-sum-exp. */
void CPU(att_state_end)(att_state *st, const att_plan *p, int nq, const tensor *o, int64_t row,
                        int head, float *lse);

/* Workspace of each op. */
size_t CPU(att_fwd_workspace)(const op_call *c, int threads);
size_t CPU(att_bwd_workspace)(const op_call *c, int threads);
size_t CPU(att_cached_workspace)(const op_call *c, int threads);

/* Column of a head in qkv: q heads, then k heads, then v heads. */
static inline int64_t att_q_col(const att_plan *p, int h) { return (int64_t)h * p->dim; }
static inline int64_t att_k_col(const att_plan *p, int g) {
    return (int64_t)(p->heads + g) * p->dim;
}
static inline int64_t att_v_col(const att_plan *p, int g) {
    return (int64_t)(p->heads + p->kv + g) * p->dim;
}
static inline tile_src att_src(const tensor *t, int64_t row, int64_t col, int rows, int cols) {
    int64_t stride = t->dim[1];
    const char *at = (const char *)t->data + (size_t)(row * stride + col) * dt_size(t->dt);
    return (tile_src){ at, t->dt, stride, rows, cols };
}

#endif
