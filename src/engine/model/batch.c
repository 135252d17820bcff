/* The inputs of a batch, and which tokens of its sequences are a rank's.
 *
 * Context-parallel ranks divide every sequence. In a ring rank i of n has runs i and 2n-1-i of 2n, so
 * that under the causal mask each rank has as many keys to attend to; else it has run i of n:
 *
 *     ring     | 0 | 1 | 2 | 3 | 3 | 2 | 1 | 0 |        all-to-all   |   0   |   1   |   2   |   3   |
 *
 * A rank's tokens are in the order of the batch: those of the first sequence, of the second, ...
 * Sequence-parallel ranks divide that list once more, evenly. */
#include "model_internal.h"

#include <stdlib.h>

/* ---- the order of tokens ----------------------------------------------------------------- */
int context_runs(const model_layout *l) {
    CHOICE_DECIDED(context_mode, 2);
    return l->context == CONTEXT_RING ? 2 : 1;
}

typedef struct token_run {
    int64_t from, count; /* tokens of the batch */
} token_run;

/* The run of adjacent tokens that begins at token i of a context-parallel rank's. */
static token_run context_run(const model *m, int rank, int64_t i) {
    int64_t cp = mesh_size(&m->l.mesh, AX_CP), runs = context_runs(&m->l);
    int64_t length = m->l.seq / (cp * runs), at_run = i / length, at = i % length;
    int64_t sequence = at_run / runs, part = at_run % runs ? runs * cp - 1 - rank : rank;
    return (token_run){ sequence * m->l.seq + part * length + at, length - at };
}

/* The number of a context-parallel rank's tokens that come before token `end` of the batch. */
static int64_t context_before(const model *m, int rank, int64_t end) {
    int64_t cp = mesh_size(&m->l.mesh, AX_CP), runs = context_runs(&m->l);
    int64_t length = m->l.seq / (cp * runs), at = end % m->l.seq;
    int64_t n = end / m->l.seq * length * runs + MIN(MAX(at - rank * length, 0), length);
    if (runs == 2) n += MIN(MAX(at - (2 * cp - 1 - rank) * length, 0), length);
    return n;
}

/* The run of adjacent tokens that begins at token i of those that ranks sharing tokens over these axes
 * have. @param n tokens of the batch */
static token_run run_at(const model *m, axis_set shared, int64_t n, int64_t i) {
    const mesh *me = &m->l.mesh;
    axis_set cp = shared & AXIS(AX_CP), tp = shared & AXIS(AX_TP);
    int64_t own = n / mesh_span(me, cp | tp), left = own - i;
    i += mesh_index(me, tp) * own; /* of the context-parallel rank's */
    token_run run = { i, left };
    if (mesh_span(me, cp) > 1) run = context_run(m, mesh_coord(me, AX_CP), i);
    run.count = MIN(run.count, left);
    return run;
}

axis_set model_row_axes(const model *m) { return AXES_ROWS & mesh_axes(&m->l.mesh); }

static axis_set token_axes(placement pl) { return placement_axes(pl, PL_S) & ~AXES_ROWS; }

int64_t model_token_index(const model *m, placement pl, int64_t n, int64_t i) {
    return run_at(m, token_axes(pl), n, i).from;
}

/* @return the degree nearest to `wanted` that divides both; ties go down. */
static int nearest_divisor(int wanted, int64_t a, int64_t b) {
    for (int off = 1; off < wanted; off++) {
        if (a % (wanted - off) == 0 && b % (wanted - off) == 0) return wanted - off;
        if (a % (wanted + off) == 0 && b % (wanted + off) == 0) return wanted + off;
    }
    return 1;
}

err context_check(const model_config *c, const model_layout *l, int64_t n) {
    int cp = mesh_size(&l->mesh, AX_CP), tp = mesh_size(&l->mesh, AX_TP);
    int runs = context_runs(l);
    if (cp == 1) return OK;
    BUG_IF(l->seq < 1 || n % l->seq);
    if (model_has_delta(c))
        return err_hint(ERR("context_parallel_degree is %d, but the state of gated DeltaNet layers "
                            "(model.layer_pattern) runs through whole sequences",
                            cp),
                        "set it to 1, and use tensor or data parallelism instead");
    if (l->seq % ((int64_t)cp * runs))
        return err_hint(
            ERR("sequences of %lld tokens do not divide into %d runs for %d context-parallel "
                "ranks",
                (long long)l->seq, cp * runs, cp),
            "use context_parallel_degree=%d, or a training.seq_len that is a multiple of %d",
            l->seq % runs ? 1 : nearest_divisor(cp, l->seq / runs, 0), cp * runs);
    int q = c->heads / tp, kv = local_kv_heads(c, &l->mesh);
    if (l->context == CONTEXT_ULYSSES && (q % cp || kv % cp))
        return err_hint(
            ERR("%d query and %d key/value heads per tensor-parallel rank do not divide "
                "over %d context-parallel ranks",
                q, kv, cp),
            "use context_parallel_degree=%d, or context_parallel_mode=ring, which needs "
            "no particular number of heads",
            nearest_divisor(cp, q, kv));
    return OK;
}

/* ---- inputs ------------------------------------------------------------------------------ */
const char *token_input_name(token_fact fact, axis_set shared) {
    /* not shared, over cp, over tp, over both */
    static const char *const names[TOKEN_FACTS][4] = {
        [TOKEN_TOKENS] = { "tokens", "tokens_cp", "tokens_shard", "tokens_cp_shard" },
        [TOKEN_TARGETS] = { "targets", "targets_cp", "targets_shard", "targets_cp_shard" },
        [TOKEN_POS] = { "pos", "pos_cp", "pos_shard", "pos_cp_shard" },
        [TOKEN_IDS] = { "ids", "ids_cp", "ids_shard", "ids_cp_shard" },
        [TOKEN_START] = { "start", "start_cp", "start_shard", "start_cp_shard" },
        [TOKEN_CHUNK] = { "chunk", "chunk_cp", "chunk_shard", "chunk_cp_shard" },
        [TOKEN_PREVIOUS] = { "previous", "previous_cp", "previous_shard", "previous_cp_shard" },
    };
    return names[fact][!!(shared & AXIS(AX_CP)) + 2 * !!(shared & AXIS(AX_TP))];
}

/* Copies this rank's tokens of an input. */
static void put_tokens(const model *m, plan *p, const char *name, int slot, const void *from,
                       int64_t n) {
    input_info in;
    if (!from || !plan_input_info(p, name, &in)) return;
    axis_set shared = token_axes(in.pl);
    size_t size = dt_size(in.dt);
    char *to = plan_input(p, name, slot);
    int64_t own = n / mesh_span(&m->l.mesh, shared);
    if ((size_t)own * size > in.bytes) return; /* only programs of fewer tokens read it */
    for (int64_t i = 0; i < own;) {
        token_run run = run_at(m, shared, n, i);
        plan_put(p, to + (size_t)i * size, (const char *)from + (size_t)run.from * size,
                 (size_t)run.count * size);
        i += run.count;
    }
}

const char *ring_range_name(int64_t window) { return window ? "ring_range_window" : "ring_range"; }

/* ---- inputs of a ring ---------------------------------------------------------------------- */
/* The rank whose keys are here in step s. */
static int ring_source(const model *m, int s) {
    int cp = mesh_size(&m->l.mesh, AX_CP);
    return (mesh_coord(&m->l.mesh, AX_CP) + cp - s) % cp;
}

/* Fills [2, n] in pieces: of each own token the first key that it sees among those of a rank, and the end. */
static void put_ranges(const model *m, plan *p, const model_batch *b, int source, int64_t window,
                       int32_t *to) {
    enum { PIECE = 2048 };
    int64_t own = b->n / mesh_size(&m->l.mesh, AX_CP);
    int32_t first[PIECE], end[PIECE];
    for (int64_t at = 0; at < own; at += PIECE) {
        int64_t n = MIN(own - at, (int64_t)PIECE);
        for (int64_t i = 0; i < n; i++) {
            int64_t token = context_run(m, mesh_coord(&m->l.mesh, AX_CP), at + i).from;
            int64_t begin = b->start[token];
            if (window && m->c.chunked) begin = token - b->pos[token] % window;
            if (window && !m->c.chunked) begin = MAX(begin, token - window + 1);
            first[i] = (int32_t)context_before(m, source, begin);
            end[i] = (int32_t)context_before(m, source, token + 1);
        }
        plan_put(p, to + at, first, (size_t)n * sizeof *first);
        plan_put(p, to + own + at, end, (size_t)n * sizeof *end);
    }
}

static void put_ring(const model *m, plan *p, const model_batch *b) {
    int64_t *ids = plan_input(p, "ring_ids", b->slot);
    int cp = mesh_size(&m->l.mesh, AX_CP);
    int64_t own = b->n / cp;
    const int64_t windows[] = { 0, m->c.window }; /* of layers */
    for (size_t w = 0; w < (m->c.window ? 2 : 1); w++) {
        int32_t *range = plan_input(p, ring_range_name(windows[w]), b->slot);
        for (int s = 0; s < cp && range; s++)
            put_ranges(m, p, b, ring_source(m, s), windows[w], range + s * 2 * own);
    }
    for (int s = 0; s < cp && ids; s++)
        for (int64_t i = 0; i < own;) {
            token_run run = context_run(m, ring_source(m, s), i);
            plan_put(p, ids + s * own + i, b->ids + run.from, (size_t)run.count * sizeof *ids);
            i += run.count;
        }
}

/* Puts the first token of each token's chunk, in pieces. Chunks are of documents, whose positions begin at 0. */
static void put_chunks(const model *m, plan *p, const model_batch *b) {
    enum { PIECE = 2048 };
    int32_t first[PIECE], *to = plan_input(p, token_input_name(TOKEN_CHUNK, 0), b->slot);
    for (int64_t at = 0; to && at < b->n; at += PIECE) {
        int64_t n = MIN(b->n - at, (int64_t)PIECE);
        for (int64_t i = 0; i < n; i++) first[i] = (int32_t)(at + i - b->pos[at + i] % m->c.window);
        plan_put(p, to + at, first, (size_t)n * sizeof *first);
    }
}

/* Puts the token before each of this rank's, in pieces. */
static void put_previous(const model *m, plan *p, const model_batch *b, const char *name) {
    enum { PIECE = 2048 };
    input_info in;
    int32_t piece[PIECE], *to = plan_input(p, name, b->slot);
    if (!to || !plan_input_info(p, name, &in)) return;
    axis_set shared = token_axes(in.pl);
    int64_t own = b->n / mesh_span(&m->l.mesh, shared);
    for (int64_t at = 0; at < own; at += PIECE) {
        int64_t n = MIN(own - at, (int64_t)PIECE);
        for (int64_t i = 0; i < n; i++) {
            int64_t token = run_at(m, shared, b->n, at + i).from;
            BUG_IF(token == 0 && b->pos[token] != 0); /* then the caller passes `previous` */
            piece[i] = b->tokens[token - (b->pos[token] != 0)];
        }
        plan_put(p, to + at, piece, (size_t)n * sizeof *piece);
    }
}

/* Puts the ranges of a chain that shares prefixes; without any, each token sees its document. */
static void put_shared_ranges(plan *p, const model_batch *b) {
    int32_t *to = plan_input(p, "ranges", b->slot);
    if (!to) return;
    size_t n = (size_t)MODEL_RANGES * 2 * (size_t)b->n;
    int32_t *own = b->ranges ? NULL : mem_alloc(n * sizeof *own);
    for (int64_t i = 0; own && i < b->n; i++) {
        own[i] = b->start[i];
        own[b->n + i] = (int32_t)i + 1;
    }
    plan_put(p, to, own ? own : b->ranges, n * sizeof *own);
    free(own);
}

void model_set_batch(const model *m, plan *p, const model_batch *b) {
    const axis_set ways[] = { 0, AXIS(AX_CP), AXIS(AX_TP), AXIS(AX_CP) | AXIS(AX_TP) };
    /* Generation has no documents, and every rank has all of its tokens: inputs that ranks divide belong to
     * the training programs of the same plan, whose shapes these tokens do not have. */
    bool documents = b->ids != NULL;
    size_t n_ways = documents ? COUNT_OF(ways) : 1;
    const void *facts[TOKEN_FACTS] = {
        [TOKEN_TOKENS] = b->tokens, [TOKEN_TARGETS] = b->targets, [TOKEN_POS] = b->pos,
        [TOKEN_IDS] = b->ids,       [TOKEN_START] = b->start,     [TOKEN_PREVIOUS] = b->previous
    };
    for (int i = 0; i < TOKEN_FACTS; i++)
        for (size_t k = 0; k < n_ways; k++)
            put_tokens(m, p, token_input_name((token_fact)i, ways[k]), b->slot, facts[i], b->n);
    for (size_t k = 0; m->c.smear && !b->previous && k < n_ways; k++)
        put_previous(m, p, b, token_input_name(TOKEN_PREVIOUS, ways[k]));
    if (documents && m->c.chunked) put_chunks(m, p, b);
    if (documents) put_ring(m, p, b);
    if (documents) put_shared_ranges(p, b);
}
