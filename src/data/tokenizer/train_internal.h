/* Training, from documents to merges:
 *
 *     documents -> word counts -> cells ------> merges -> tokenizer
 *       train.c    train_words.c  train_cells.c  train_learn.c, train_pairs.c
 *
 * A word is a piece of the splitter, or what Metaspace makes of text. Only how often each word was seen
 * matters, so nothing depends on the order of the documents or on which thread counted them.
 */
#ifndef INGOT_TOKENIZER_TRAIN_INTERNAL_H
#define INGOT_TOKENIZER_TRAIN_INTERNAL_H

#include "tokenizer/chars_internal.h"
#include "tokenizer/tokenizer_internal.h"

/* ---- progress ----------------------------------------------------------------------------------
 * On a terminal one line that is rewritten, elsewhere a line now and then. */
typedef struct train_progress {
    bool quiet, live, drawn;
    double last; /* when a line was due */
} train_progress;
void train_progress_show(train_progress *p, const char *fmt, ...)
    PRINTF_LIKE(2, 3); /* takes NULL */
void train_progress_end(train_progress *p);

/* ---- word counts ----------------------------------------------------------------------------
 * A hash table in shards, each with its part of the memory. A shard that is full is written to a
 * temporary file and begins anew; at the end each such file is read back and summed, one shard at a
 * time. The files have no name: nothing is left behind, however the program ends. */
typedef struct word_counts word_counts;
/* @param memory bytes for all tables. @param workers how many threads add. */
word_counts *word_counts_new(size_t memory, int workers);
/* Counts a word `times` more. Workers run side by side; each has a small table of its own that is
 * flushed into the shards when it is full. */
err word_counts_add(word_counts *c, int worker, const char *word, size_t len,
                    uint64_t times) MUST_USE;
/* Ends adding: what the workers hold goes to the shards. */
err word_counts_seal(word_counts *c) MUST_USE;
/* Visits every distinct word once, in no particular order.
 * @param last whether shards may be freed once visited: the counts are freed then. */
typedef void (*word_visit)(void *ctx, const char *word, size_t len, uint64_t count);
err word_counts_each(word_counts *c, bool last, word_visit visit, void *ctx) MUST_USE;
int64_t word_counts_spilled(const word_counts *c); /* bytes written to temporary files */
void word_counts_free(word_counts *c);             /* takes NULL */

/* ---- characters that get a token: train_chars.c -----------------------------------------------------
 * Tables over all code points. */
enum { CODE_POINTS = 0x110000 };
/* Adds the characters of a word that was seen `count` times. @param seen [CODE_POINTS] */
void chars_count(uint64_t *seen, const char *word, size_t len, uint64_t count);
/* Marks the most frequent characters that make up the share `coverage` of all that were seen.
 * @param covered [CODE_POINTS] zeros. @return how many were seen and are not marked. */
int64_t chars_choose(const uint64_t *seen, double coverage, bool *covered);
/* That these characters alone are more than the vocabulary. */
err too_many_chars(const tokenizer_options *o, int64_t chars) MUST_USE;

/* ---- cells ------------------------------------------------------------------------------------
 * All words in one array of ids, one cell per symbol, a CELL_NONE before and after each word. Symbols are bytes, or
 * characters; a character without a token is a CELL_NONE too, so nothing is learned across it.
 *
 *     # t h e # c a t #        the id of a token is in its first and its last cell, so that both
 *     # A - A # c a t #        neighbors are found from their lengths; cells between are CELL_NONE
 *
 * Words lie in order of falling counts, so that a few runs hold how often a cell's word was seen. */
#define CELL_NONE UINT32_MAX

/* The symbols of words before any merge. */
typedef struct bpe_symbols {
    bool chars;    /* not bytes */
    uint32_t *ids; /* owned: [256] by byte, or [CODE_POINTS] by code point; CELL_NONE: no token */
} bpe_symbols;

typedef struct cell_run {
    uint32_t first; /* up to the next run's first */
    int64_t weight; /* how often each word in it was seen */
} cell_run;

typedef struct bpe_cells {
    uint32_t *at; /* [n] */
    size_t n;
    cell_run *runs; /* [n_runs], and one more that begins at n */
    int n_runs;
    int64_t words, left_out; /* distinct words, and how many of them did not fit */
    int64_t least;           /* the lowest count of a word that is in */
    size_t wanted;           /* bytes of memory that all words would have taken */
} bpe_cells;

/* Lays the words out; the counts are used up. Words of one symbol have no pairs and need no cells. When
 * learning from all words would take more than `memory`, the rarest stay out.
 * @param others bytes of it that are needed for other things. */
err bpe_cells_fill(bpe_cells *c, const bpe_symbols *symbols, word_counts *from, size_t memory,
                   size_t others) MUST_USE;
void bpe_cells_free(bpe_cells *c);

/* @return the run that cell p is in, given that it is not before `run`. */
static inline int bpe_cells_run(const bpe_cells *c, int run, uint32_t p) {
    if (p < c->runs[run + 1].first) return run;
    int low = run + 1, high = c->n_runs - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (p < c->runs[middle + 1].first)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* ---- pairs ------------------------------------------------------------------------------------
 * The count of each pair of neighbors and the positions where it was when it first appeared. Counts
 * only fall after that: a token that makes new pairs is made once, in one step. So a pair below the
 * least frequency never matters again, and a position may be stale: the cells decide. */
typedef struct pair_entry {
    uint64_t key;   /* left << 32 | right */
    int64_t count;  /* below the floor: dead */
    uint32_t first; /* in positions */
    uint32_t n;
} pair_entry;

typedef struct pair_rank {
    int64_t count;
    uint64_t key;
} pair_rank;

typedef struct bpe_pairs {
    const bpe_cells *cells;
    const uint32_t *length; /* of tokens, by id, in cells */
    int64_t floor;          /* pairs below are not kept */
    pair_entry *entries;    /* in the order of their positions */
    uint32_t n, cap;
    uint64_t *slots; /* hash << 32 | entry + 1; 0: free */
    size_t n_slots;  /* a power of two */
    uint32_t *positions;
    size_t n_positions, cap_positions;
    pair_rank *heap; /* pairs of at least `ranked`, highest first; counts may be out of date */
    size_t n_heap, cap_heap;
    int64_t ranked;
} bpe_pairs;

static inline uint64_t pair_key(uint32_t left, uint32_t right) {
    return (uint64_t)left << 32 | right;
}

/* Finds the pairs in the cells, which hold one symbol each. @param cells, length borrowed. */
err bpe_pairs_init(bpe_pairs *p, const bpe_cells *cells, const uint32_t *length,
                   int64_t floor) MUST_USE;
/* Takes the most frequent pair out: of equals the one with the smaller left id, then right id.
 * @param at its positions, in ascending order and valid until the next pairs_add.
 * @return false when no pair is left. */
bool bpe_pairs_pop(bpe_pairs *p, pair_entry *out, const uint32_t **at);
/* A pair was seen less often by `weight`. */
void bpe_pairs_subtract(bpe_pairs *p, uint32_t left, uint32_t right, int64_t weight);
/* Reserves n more positions. */
void bpe_pairs_reserve(bpe_pairs *p, size_t n);
/* A new pair with capacity for n positions, which must be reserved.
 * @return where they go; NULL: the pair is too rare to be kept. */
uint32_t *bpe_pairs_add(bpe_pairs *p, uint32_t left, uint32_t right, int64_t count, uint32_t n);
void bpe_pairs_free(bpe_pairs *p);

/* ---- learning --------------------------------------------------------------------------------- */
typedef struct bpe_learned {
    text_span *tokens; /* [n_tokens] */
    bpe_pair *merges;  /* [n_merges] */
    int32_t *special;  /* [n_special] ids, without repetitions */
    int64_t n_tokens, n_merges;
    int n_special;
    int32_t twin; /* a special token with the text of a symbol or of what a merge makes; -1: none */
    int64_t uncovered; /* distinct characters without a token */
    arena *memory;     /* of the tokens' bytes */
} bpe_learned;

/* Learns from the counts, which are used up. @param o whose vocabulary holds the special tokens and
 * bytes; its pattern does not matter. @param out to be freed whatever the outcome. */
err bpe_learn(word_counts *counts, const tokenizer_options *o, train_progress *progress,
              bpe_learned *out) MUST_USE;
/* The same from documents, whose words it counts first. */
err bpe_learn_documents(text_inputs *in, const tokenizer_options *o, bpe_learned *out) MUST_USE;
void bpe_learned_free(bpe_learned *l);

/* ---- Metaspace: train_metaspace.c ---------------------------------------------------------------- */
struct json_t;
/* @return whether a text has the name of a special token or of a byte, which have ids of their own. */
bool is_reserved_text(const tokenizer_options *o, const char *text, size_t len);
/* The tokenizer of a model over words by Metaspace, whose first ids are the special tokens.
 * @param model the member of a tokenizer.json, owned from here on. */
err metaspace_tokenizer(struct json_t *model, const tokenizer_options *o, tokenizer **out) MUST_USE;
err metaspace_bpe(const bpe_learned *l, const tokenizer_options *o, tokenizer **out) MUST_USE;

/* Logs how many characters have no token; nothing for 0. */
void report_uncovered(int64_t chars, const tokenizer_options *o);

/* ---- Unigram: train_unigram.c ------------------------------------------------------------------- */
/* Learns from the counts, which are used up. */
err unigram_learn(word_counts *counts, const tokenizer_options *o, train_progress *progress,
                  tokenizer **out) MUST_USE;

#endif
