/* Attention on CPUs, in tiles of 64 queries by 64 keys, with online softmax: the matrix of all scores
 * never exists.
 *
 *     attention_layout.c   splits the tokens into chunks and tiles; masks within a tile
 *     attention_mask.h     dropout: which probabilities of a tile are zeroed
 *     attention_tile.c     how tiles are packed and multiplied, in fp32 or bf16 (kernel/tile_*.h)
 *     attention_fwd.c, attention_bwd.c, attention_cached.c   the ops
 *
 * ATTENTION_BLOCK and its backward are the same code: their keys are those of another tensor, and a query
 * sees the keys of a range that it is given. In ATTENTION keys are the queries' own tokens.
 *
 * Every matrix is kept with queries along the columns, so that maxima, sums and rescaling run down the
 * columns, lane by lane, and no GEMM needs a transposed copy of the scores:
 *
 *     forward     S'[key,q]  = K Q'               O'[dim,q] += V' P'
 *     backward    S' = K Q'      D' = V dO'       P' = exp(S' - lse),  G' = P' (D' - delta)
 *                 dV[key,dim] += P' dO            dK[key,dim] += G' Q      dQ'[dim,q] += K' G'
 *
 * Operands from keys are always on the left and are packed once for all queries that see them; operands
 * from queries are always on the right and are packed once for all keys they see.
 *
 * Work is divided in one of two ways (att_by_chunk). A chunk is a range of tokens that no token outside it
 * sees and that sees none outside, such as whole documents: a task per chunk and key head packs its keys
 * and uses them while they are in the cache. Where that gives too few tasks for the threads, all keys are
 * packed first and a task is a tile of queries and a head (in backward also a tile of keys, at the price
 * of computing scores twice). Tiles and the order of all sums are the same either way, and depend on the
 * documents alone: the result does not depend on the number of threads.
 */
#ifndef INGOT_OPS_CPU_ATTENTION_INTERNAL_H
#define INGOT_OPS_CPU_ATTENTION_INTERNAL_H

#include "cpu_internal.h"
#include "ops/attention_drop.h"
#include "vec.h"

enum {
    ATT_TILE = 64,   /* queries, and keys, of a tile */
    ATT_GROUP = 8,   /* granularity at which masked parts of a tile are skipped */
    ATT_LANES = 16,  /* queries whose softmax is computed together: the widest vector */
    ATT_CHUNK = 256, /* fewest tokens of a chunk: see att_layout */
    ATT_SQUARE = ATT_TILE * ATT_TILE,
};
static const float ATT_LOG2E = 1.44269504f, ATT_LN2 = 0.693147181f;
/* The score of a masked pair: far below any real one, yet finite. */
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
 * Cheaper than vm_exp: the scale of the scores already includes log2(e), they never exceed 127, and
 * conversions between int and float, slow on some processors, are done by adding 1.5 * 2^23: the
 * integer is then in the low bits. Adding 127 makes it the exponent of 2^n. */
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

/* tanh, relative error 4e-7: a polynomial near 0, where 1 - 2 / (1 + e^2x) would cancel. */
static inline vf att_tanh(vf x) {
    vf most = vec_of(15.0f), bounded = vec_select(x > most, most, vec_select(x < -most, -most, x));
    vf e = att_exp2(bounded * (2 * ATT_LOG2E)), far = 1.0f - 2.0f / (1.0f + e);
    vf z = x * x, y = z * 0.00359212794f - 0.00886323553f;
    y = y * z + 0.0218694885f;
    y = y * z - 0.0539682540f;
    y = y * z + 0.133333333f;
    y = y * z - 0.333333333f;
    return vec_select(z < vec_of(0.25f), x + x * z * y, far);
}

/* ---- GEMMs of tiles ----------------------------------------------------------------------- */
/* The mask of one tile: which queries see which keys. Both bounds of a query's keys grow with the query,
 * so that the queries that see a key are a range too. Indices are within the tile. */
typedef struct att_band {
    uint8_t from[ATT_TILE], to[ATT_TILE]; /* queries [from, to) see key k */
    struct {
        uint8_t lo, hi;
    } keys[ATT_TILE / ATT_GROUP],      /* of a group of queries: union of the keys they see */
        queries[ATT_TILE / ATT_GROUP]; /* of a group of keys: union of the queries that see them */
} att_band;

/* Names what the rows and columns of a GEMM stand for, which determines what a band allows it to skip. */
typedef enum {
    TILE_SCORES,   /* C[key,q]: parts of the result */
    TILE_BY_QUERY, /* C[*,q], sum over keys */
    TILE_BY_KEY,   /* C[key,*], sum over queries */
} tile_kind;

/* C[m,n] = or += L[m,k] R[k,n]. Sizes are multiples of the path's unit; rows of C are ldc apart. Parts of
 * the result that a band allows to skip are not written. */
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

/* rows x cols values of a tensor, rows `stride` elements apart */
typedef struct tile_src {
    const void *data;
    dtype dt;
    int64_t stride;
    int rows, cols;
} tile_src;

/* A way to multiply tiles: an element type, and the memory layout its kernels read. The packers write
 * zeros into the padding of rows and cols to the unit. Tokens are padded to ATT_TILE in address, heads to
 * `width`. */
typedef struct tile_path {
    const char *name;
    size_t elem;
    int unit;
    /* Packers. outer: the source's rows are the operand's outer index (m or n); inner: the summed one
     * (k). `width` is cols rounded up to the unit. */
    void (*left_outer)(void *dst, const tile_src *s, int width);
    void (*left_inner)(void *dst, const tile_src *s, int width);
    void (*right_outer)(void *dst, const tile_src *s, int width);
    void (*right_inner)(void *dst, const tile_src *s, int width);
    /* Packs a score tile [keys, q], rows ATT_TILE apart, as an operand. keys and queries are multiples
     * of the unit. @return `buffer` with the packed copy, or t itself where none is needed. */
    const void *(*left_scores)(void *buffer, const float *t, int keys, int queries);
    const void *(*right_scores)(void *buffer, const float *t, int keys, int queries);
    void (*mul)(const tile_job *j);
} tile_path;

/* @return the path for this type: fp32, or bf16 where the instruction set multiplies it. */
const tile_path *CPU(tile_path_for)(dtype dt);
/* dst[c][r] = src[r][c]; rows and cols are multiples of 4. */
void CPU(tile_transpose)(float *dst, int ldd, const float *src, int lds, int rows, int cols);

/* Finds the range of k that C's panel [m0,m1) x [n0,n1) needs, in multiples of `grain`.
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
/* The shape of a call, and its split into chunks and tiles. A chunk is a range of tokens that no token
 * outside it sees and that sees none outside: tasks of different chunks or kv heads share nothing. Each
 * chunk starts a new tile. Neither depends on the number of threads. */
typedef struct att_layout {
    const tile_path *path;
    int64_t n, keys;      /* tokens; keys, where they are not the tokens' own, else 0 */
    int heads, kv, group; /* query heads, key/value heads, query heads for each of them */
    int dim, width;       /* head size, and rounded up to the path's unit */
    int window;
    float scale2; /* of scores, with log2(e) */
    float cap2;   /* bound of scaled scores, with log2(e); 0: none */
    attention_drop drop;
    rng_key drop_key;
    const int64_t *key_id;      /* with dropout: [keys] */
    const int32_t *start;       /* [n] */
    const int32_t *first, *end; /* [n] of a query's keys, where they are not the tokens' own */
    int n_tiles, n_key_tiles, n_chunks;
    int32_t *tile_row;   /* [n_tiles + 1] first token; of the last: n */
    int32_t *key_row;    /* [n_key_tiles + 1] those of keys */
    int32_t *chunk_tile; /* [n_chunks + 1] first tile */
    int32_t *chunk_keys; /* [n_chunks + 1] first tile of keys */
    int64_t key_col;     /* column of the first key head: k heads, then v heads */
    size_t tile_bytes;   /* a packed tile of a head */
} att_layout;

/* @return the shape, without tiles and chunks; att_split adds those. Reads attr.heads of `c`.
 * @param n, dt the number of tokens and their type. */
att_layout CPU(att_layout_of)(const op_call *c, int64_t n, dtype dt);
/* The same of a call with keys of its own. */
att_layout CPU(att_block_layout_of)(const op_call *c, const tensor *q, const tensor *kv, dtype dt);
/* Bytes of the lists of tiles and chunks. */
size_t CPU(att_layout_bytes)(const att_layout *p);
int64_t CPU(att_max_key_tiles)(const att_layout *p);
/* Splits the tokens by `start`; `buffer` holds the lists. */
void CPU(att_split)(att_layout *p, const int32_t *start, void *buffer);
/* Splits queries and keys evenly. @param range [2, n] first and end of each query's keys */
void CPU(att_split_block)(att_layout *p, const int32_t *range, void *buffer);

/* Sets the dropout of the call. @param id, key_id its operands of these names */
void CPU(att_drop_init)(att_layout *p, const op_call *c, const tensor *id, const tensor *key_id);

/* @return whether one task per chunk and kv head keeps the threads busy: whether that takes at most
 * `worth` times as long as a perfectly even division of the work. If not, the work is divided by tiles, at
 * the cost of packing first, and in backward of computing the scores twice; the result is bit-exact with
 * the other way. */
bool CPU(att_by_chunk)(const att_layout *p, int threads, double worth);

/* The first key that token i sees. */
static inline int64_t att_first_key(const att_layout *p, int64_t i) {
    if (p->first) return p->first[i];
    int64_t lo = p->start[i];
    return p->window > 0 && i - p->window + 1 > lo ? i - p->window + 1 : lo;
}
/* The one after the last. */
static inline int64_t att_end_key(const att_layout *p, int64_t i) {
    return p->end ? p->end[i] : i + 1;
}
static inline int att_pad(const att_layout *p, int rows) {
    return (int)align_up(rows, p->path->unit);
}
static inline int att_tile_rows(const att_layout *p, int t) {
    return p->tile_row[t + 1] - p->tile_row[t];
}

static inline int att_key_rows(const att_layout *p, int t) {
    return p->key_row[t + 1] - p->key_row[t];
}

/* The tiles of keys that tile qt of queries sees: from the first to before the end, which is at most the
 * first where it sees none. */
int CPU(att_first_tile)(const att_layout *p, int qt);
int CPU(att_end_tile)(const att_layout *p, int qt);

/* Computes the mask of nq queries over keys [key0, key0 + keys). lo and end, [nq], are each query's first
 * key and the one after its last; neither decreases.
 * @return NULL when nothing is masked, else band filled. */
const att_band *CPU(att_band_of)(att_band *band, const att_layout *p, const int64_t *lo,
                                 const int64_t *end, int nq, int64_t key0, int keys);
/* The same for two tiles of a layout. */
const att_band *CPU(att_band_tiles)(att_band *band, const att_layout *p, int qt, int kt);
/* Sets the masked scores in [klo, khi) x [q0, q0 + ATT_LANES) of a tile to `hidden`. */
void CPU(att_hide)(float *s, const att_band *band, int q0, int klo, int khi, float hidden);

/* The range of keys that a block of ATT_LANES queries needs. */
static inline void att_lane_keys(const att_band *band, int q0, int nq, int keys, int *lo, int *hi) {
    *lo = band ? band->keys[q0 / ATT_GROUP].lo : 0;
    *hi = band ? band->keys[(MIN(q0 + ATT_LANES, nq) - 1) / ATT_GROUP].hi : keys;
}

/* Bounds the scores of ATT_LANES queries over keys [klo, khi), which are not yet scaled or masked. */
void CPU(att_cap)(float *s, const att_layout *p, int q0, int klo, int khi);

/* ---- dropout ------------------------------------------------------------------------------- */
/* Dropout of up to ATT_TILE queries of a head: what their counters share (attention_mask.h draws). */
typedef struct att_mask {
    const attention_drop *drop; /* NULL: none */
    rng_key key;
    int head;
    uint32_t id_low[ATT_TILE], id_high[ATT_TILE]; /* of the queries */
} att_mask;
/* @param row, rows the queries */
void CPU(att_mask_init)(att_mask *m, const att_layout *p, int head, int64_t row, int rows);

/* ---- the forward of one tile of queries ---------------------------------------------------- */
/* The online softmax of up to ATT_TILE queries of a head, over the key tiles added so far. */
typedef struct att_state {
    float max[ATT_TILE]; /* subtracted from the scores, in powers of two; near their maximum */
    float sum[ATT_TILE];
    float *out;     /* [width, ATT_TILE] O', not yet divided by sum */
    float *s;       /* [ATT_TILE, ATT_TILE] */
    void *p_buffer; /* of right_scores */
    void *q;        /* right operand: queries */
    att_mask mask;
} att_state;

size_t CPU(att_state_bytes)(const att_layout *p);
/* Sets the pointers of the state to parts of `buffer`, of att_state_bytes. */
void CPU(att_state_init)(att_state *st, const att_layout *p, void *buffer);
/* The state's mask is that of no dropout. */
void CPU(att_state_begin)(att_state *st, const att_layout *p, const tile_src *q);
/* Continues from what other keys have given: o and lse as att_state_end wrote them. After
 * att_state_begin and att_mask_init. */
void CPU(att_state_resume)(att_state *st, const att_layout *p, int nq, const tensor *o, int64_t row,
                           int head, const float *lse);
/* A tile of keys: k is left_outer of the keys, v is left_inner of the values. */
typedef struct att_keys {
    const void *k, *v;
    int count;
    const int64_t *id; /* of the keys, for dropout; else NULL */
} att_keys;
void CPU(att_state_add)(att_state *st, const att_layout *p, att_keys t, int nq,
                        const att_band *band);
float CPU(att_sink_of)(const tensor *sink, int at);
/* Adds the sink of a head to the denominators. @param sink of the call; without data nothing is done */
void CPU(att_state_sink)(att_state *st, const att_layout *p, int nq, const tensor *sink, int first,
                         int head);
/* Writes nq rows of the head's output and, where lse is not NULL, its log-sum-exp. */
void CPU(att_state_end)(att_state *st, const att_layout *p, int nq, const tensor *o, int64_t row,
                        int head, float *lse);

/* Workspace of each op. */
size_t CPU(att_fwd_workspace)(const op_call *c, int threads);
size_t CPU(att_bwd_workspace)(const op_call *c, int threads);
size_t CPU(att_cached_workspace)(const op_call *c, int threads);

/* Column of a head: q heads, then k heads, then v heads, the latter two maybe of another tensor. */
static inline int64_t att_q_col(const att_layout *p, int h) { return (int64_t)h * p->dim; }
static inline int64_t att_k_col(const att_layout *p, int g) {
    return p->key_col + (int64_t)g * p->dim;
}
static inline int64_t att_v_col(const att_layout *p, int g) {
    return p->key_col + (int64_t)(p->kv + g) * p->dim;
}
static inline tile_src att_src(const tensor *t, int64_t row, int64_t col, int rows, int cols) {
    int64_t stride = t->dim[1];
    const char *at = (const char *)t->data + (size_t)(row * stride + col) * dt_size(t->dt);
    return (tile_src){ at, t->dt, stride, rows, cols };
}

#endif
