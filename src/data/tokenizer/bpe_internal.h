/* Pieces of text to ids by merges: joined pair by pair (bpe.c), or where the merges allow it walked (bpe_walk.c), or
 * walked by characters (bpe_units.c). */
#ifndef INGOT_TOKENIZER_BPE_INTERNAL_H
#define INGOT_TOKENIZER_BPE_INTERNAL_H

#include "text/text.h"
#include "tokenizer/trie_internal.h"

enum { TOKEN_MAX_ID = (1 << 24) - 1 }; /* ids and ranks fit beside other things in a word */

typedef struct bpe_pair {
    int32_t left, right;
} bpe_pair;
typedef struct pair_slot {
    uint64_t pair; /* left << 32 | right; UINT64_MAX: empty */
    uint64_t made; /* rank << 32 | id */
} pair_slot;
/* How a token is made, for bpe_walk.c. */
typedef struct walk_token {
    int32_t left, right; /* the two that are joined to it */
    int32_t rank;        /* of that join; -1: it is a byte; WALK_NOT_MADE: no piece gives it */
    int32_t shorter;     /* the longest token that it begins with; -1: none */
} walk_token;
enum { WALK_NOT_MADE = -2 };

/* Where a character of three bytes leads in the trie. */
typedef struct walk_char {
    int32_t node;  /* -1: no token goes beyond it */
    int32_t token; /* the longest one that it begins with, or is */
    int32_t len;   /* its bytes */
} walk_char;
typedef struct bpe_walk {
    walk_token *tokens; /* [n] */
    token_trie trie;    /* of those that pieces give */
    walk_char *chars;   /* [65536] by code point, those of three bytes */
} bpe_walk;
/* Holds the tables of the search in bpe_units.c. Merges are numbered in order of rank; a symbol is a byte, or 256 + a merge. */
typedef struct bpe_units {
    uint64_t *
        slots; /* [n_slots] left << 44 | right << 24 | merge; owns all tables but nodes and units */
    uint32_t *buckets; /* factor << 16 | a bit for each of its pairs */
    bpe_pair *halves;  /* [256 + n] symbols that are joined to a symbol */
    int32_t *ids;      /* [256 + n] of symbols */
    bool ids_in_order; /* those of merges count up */
    uint16_t *bounds,
        *suffix_bounds; /* merge >> bound_shift, at most that of all merges between two characters */
    uint64_t *nodes;    /* [n_nodes] trie of tokens; owns units */
    uint64_t *units;    /* [65536] by code point */
    int64_t n;          /* merges */
    uint32_t n_slots, n_nodes;
    int bucket_shift, bounds_shift, bound_shift;
} bpe_units;
typedef struct bpe {
    text_span *tokens; /* [n] as bytes, at `bytes`; empty: no such id */
    int64_t n;
    char *bytes;
    uint32_t *index; /* ids + 1 of the tokens that a piece may be, by their bytes */
    uint64_t index_mask;
    pair_slot *pairs;
    uint64_t pairs_mask;
    uint64_t *filter; /* a bit for each hash of a pair: whether one in the table has it */
    uint64_t filter_mask;
    int64_t n_pairs;
    bpe_walk *walk;       /* NULL: pieces are joined, bpe.c */
    bpe_units *units;     /* NULL: bpe_walk_piece encodes all pieces */
    int32_t byte_id[256]; /* what a byte begins as, or falls back to; -1: none */
    bool chars;           /* symbols begin as characters, not bytes */
    bool whole_first;     /* a piece that is a token is that token */
    bool fuse_unknown;
    int32_t unknown; /* id for what has none; -1: it is left out */
} bpe;
/* Copies the texts. @param indexed whether each can be a piece or a part of one; NULL: all. */
void bpe_set_tokens(bpe *b, const text_span *tokens, int64_t n, const bool *indexed);
/* A copy of the spans and of what they show, owned: free both. */
text_span *spans_copy(const text_span *from, int64_t n, char **bytes);
void bpe_reserve_pairs(bpe *b, int64_t n);
/* The last rank given to a pair counts. */
void bpe_add_pair(bpe *b, bpe_pair pair, uint32_t rank, int32_t made);
int32_t bpe_find(const bpe *b, const char *text, size_t n);
void bpe_free(bpe *b);

/* Buffers for one thread. */
typedef struct bpe_work {
    int32_t *ids; /* [cap] symbols */
    size_t cap;
    uint32_t *prev, *next; /* [links] the symbol before and after */
    uint64_t *heap;        /* [3 links] */
    size_t links;
    uint64_t *dead; /* [dead_words] of bpe_walk_piece */
    size_t dead_words;
} bpe_work;
/* @return ids of a piece, in w->ids until the next call. @param n_ids how many. */
const int32_t *bpe_piece(const bpe *b, bpe_work *w, const char *piece, size_t n, size_t *n_ids);
void bpe_work_free(bpe_work *w);
/* Prepares the walk, if the merges allow it; after all pairs are there. */
void bpe_walk_build(bpe *b);
void bpe_walk_free(bpe *b);
/* The ids of a piece of n > 0 bytes, in w->ids, which holds n. @return how many. */
size_t bpe_walk_piece(const bpe *b, bpe_work *w, const char *piece, size_t n);
/* Prepares bpe_units_pieces, if there is a walk. */
void bpe_units_build(bpe *b);
void bpe_units_free(bpe *b);
enum { BPE_JOB_BYTES = 255 };
/* A piece to be encoded beside others. */
typedef struct bpe_job {
    const char *piece;
    size_t len;   /* 1 to BPE_JOB_BYTES */
    size_t n;     /* ids; 0: bpe_walk_piece has to encode it */
    int32_t *ids; /* [n], borrowed: holds len */
} bpe_job;
/* Encodes pieces for which there are units. */
void bpe_units_pieces(const bpe *b, bpe_job *jobs, size_t n);

/* ---- the table of merges, as bpe.c and bpe_walk.c look pairs up ----------------------------------- */
static const uint64_t PAIR_NONE =
    UINT64_MAX; /* an empty slot; found for a pair that is not a merge */

static inline uint64_t pair_hash(uint64_t pair) {
    uint64_t h = pair * 0x9E3779B97F4A7C15u;
    return h ^ h >> 32;
}

static inline pair_slot *pair_at(const bpe *b, uint64_t pair, uint64_t hash) {
    uint64_t i = hash & b->pairs_mask;
    while (b->pairs[i].pair != pair && b->pairs[i].pair != PAIR_NONE) i = (i + 1) & b->pairs_mask;
    return &b->pairs[i];
}

/* Most pairs looked up are not a merge: a bit for each of many hashes shows, from memory that is near, that
 * a pair is not in the table. */
static inline uint64_t *filter_word(const bpe *b, uint64_t hash) {
    return &b->filter[(hash & b->filter_mask) >> 6];
}

/* @return rank << 32 | id of what the two make; PAIR_NONE: they make nothing. */
static inline uint64_t find_merge(const bpe *b, int32_t left, int32_t right) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right, hash = pair_hash(pair);
    if (!(*filter_word(b, hash) >> (hash & 63) & 1)) return PAIR_NONE;
    return pair_at(b, pair, hash)->made;
}

#endif
