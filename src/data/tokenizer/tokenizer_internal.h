/* Shared by the files of tokenizer/. A tokenizer is three things, put together once and then only
 * read:
 *
 *     rules     what happens to text before the model sees it: added tokens, normalizers, splits
 *     model     pieces of text to ids: by merges (bpe) or by scores (unigram)
 *     texts     ids to bytes
 *
 * encode.c runs text through the first two, decode.c through the last. Text need not be UTF-8: a byte
 * that is not part of a character counts as a character of its own, not a letter, number or space.
 */
#ifndef INGOT_TOKENIZER_INTERNAL_H
#define INGOT_TOKENIZER_INTERNAL_H

#include "text/text.h"
#include "tokenizer/tokenizer.h"

enum {
    TOKEN_MAX_ID = (1 << 24) - 1, /* ids and ranks fit beside other things in a word */
    MAX_STEPS = 16,               /* of a tokenizer's normalizers, and of its splits */
};

/* ---- building ------------------------------------------------------------------------------- */
typedef struct bpe_pair {
    int32_t left, right;
} bpe_pair;

/* Whose regular expressions: Hugging Face's (^ and $ also match at line ends), or tiktoken's. */
typedef enum { REGEX_ONIGURUMA, REGEX_RUST } regex_flavor;

/* A learned or loaded vocabulary: everything is borrowed. */
typedef struct bpe_parts {
    const char *pattern;   /* a name that splitter_pattern knows, or a regular expression */
    const char *normalize; /* as norms_parse reads it; NULL: nothing */
    regex_flavor flavor;
    const text_span *tokens; /* [n_tokens] bytes in id order; empty: no such id */
    int64_t n_tokens;
    const bpe_pair *merges; /* [n_merges] in order of rank; what a pair makes is their joint text */
    int64_t n_merges;
    const int32_t *special; /* [n_special] ids of tokens that merges never make */
    int n_special;
    bool whole_first; /* a piece that is a token is that token, whatever the merges are */
} bpe_parts;
/* A byte-level tokenizer. An error when the two of a merge do not join to a token. */
err tokenizer_from_bpe(const bpe_parts *p, tokenizer **out) MUST_USE;

/* ---- characters of text that may be broken: chars.c ------------------------------------------- */
/* The code point at p, which has n > 0 bytes. @return its bytes; 1 and U+FFFD for a broken byte. */
int char_decode_any(const char *p, size_t n, uint32_t *cp);
/* The same, fast for what is common. */
static inline int char_decode(const char *p, size_t n, uint32_t *cp) {
    const uint8_t *s = (const uint8_t *)p;
    if (s[0] < 0x80) return *cp = s[0], 1;
    if (s[0] >= 0xC2 && s[0] < 0xE0 && n > 1 && (s[1] & 0xC0) == 0x80)
        return *cp = (s[0] & 31u) << 6 | (s[1] & 63u), 2;
    if (s[0] > 0xE0 && s[0] < 0xED && n > 2 && (s[1] & 0xC0) == 0x80 && (s[2] & 0xC0) == 0x80)
        return *cp = (s[0] & 15u) << 12 | (s[1] & 63u) << 6 | (s[2] & 63u), 3;
    return char_decode_any(p, n, cp);
}
/* Bytes of the last character before p[n], n > 0. */
int char_back(const char *p, size_t n, uint32_t *cp);
/* Broken text as valid UTF-8 for those who need it: each broken byte becomes a code point of
 * U+10FF00..U+10FFFF, and so do the bytes of such code points in the text. Undone exactly. */
void chars_escape(const char *text, size_t n, str *out);
void chars_unescape(const char *text, size_t n, str *out);
/* GPT-2's alphabet: each byte written as a printable character. */
uint32_t byte_to_char(uint8_t byte);
/* Appends the bytes that a text of that alphabet stands for. @return false, and nothing appended,
 * when a character is not of it. */
bool alphabet_to_bytes(const char *text, size_t n, str *out);
void alphabet_from_bytes(const char *bytes, size_t n, str *out);

/* Appends the bytes that base64 stands for. @return false when it is not base64. */
bool base64_to_bytes(const char *s, size_t n, str *out);
void base64_from_bytes(const char *bytes, size_t n, str *out);

/* ---- SentencePiece's normalization: charsmap.c -------------------------------------------------- */
typedef struct charsmap charsmap;
/* @param bytes n bytes of the compiled table, copied. */
err charsmap_new(const char *bytes, size_t n, charsmap **out) MUST_USE;
void charsmap_free(charsmap *m); /* takes NULL */
uint64_t charsmap_hash(const charsmap *m);
/* Appends the normalized text. @param longest as SentencePiece does it, else as Hugging Face's library.
 * @param text valid UTF-8. */
void charsmap_normalize(const charsmap *m, bool longest, const char *text, size_t n, str *out);

/* ---- regular expressions: regex.c --------------------------------------------------------------- */
typedef struct regex regex;
typedef struct regex_work regex_work; /* what one thread needs to match */
err regex_new(const char *pattern, regex_flavor flavor, regex **out) MUST_USE;
void regex_free(regex *r);
/* @param lasting whether it is worth a stack of its own, for patterns that go deep. */
regex_work *regex_work_new(bool lasting);
void regex_work_free(regex_work *w);
/* The first match at or after `from` in valid UTF-8. @return false: none. */
bool regex_find(const regex *r, regex_work *w, const char *text, size_t n, size_t from,
                size_t *start, size_t *end);

/* ---- known patterns: split.c, scan*.c ------------------------------------------------------------ */
/* Ends of the pieces from `from` on, which is where one begins; any bytes.
 * @return how many were written, at least 1 and at most `max`; the last is n when all is done. */
typedef int (*scan_fn)(const char *text, size_t n, size_t from, size_t *ends, int max);
int scan_gpt2(const char *text, size_t n, size_t from, size_t *ends, int max);
int scan_cl100k(const char *text, size_t n, size_t from, size_t *ends, int max);
int scan_qwen2(const char *text, size_t n, size_t from, size_t *ends, int max);
int scan_o200k(const char *text, size_t n, size_t from, size_t *ends, int max);
/* Before each U+2581 that follows another character. */
int scan_words(const char *text, size_t n, size_t from, size_t *ends, int max);
int scan_whole(const char *text, size_t n, size_t from, size_t *ends, int max);
/* @param pattern a name or a regular expression. @return NULL: no scanner of ours does it. */
scan_fn scanner_of(const char *pattern);

/* ---- rules: text_rules.c ------------------------------------------------------------------------------ */
typedef enum {
    NORM_NFC,
    NORM_NFD,
    NORM_NFKC,
    NORM_NFKD,
    NORM_LOWERCASE,
    NORM_REPLACE,
    NORM_PREPEND,
    NORM_CHARSMAP,
    NORM_STRIP,
    NORM_STRIP_ACCENTS,
    NORM_NMT,
} normalizer_kind;

typedef struct finder { /* one of the three; none: finds nothing */
    regex *re;
    char *literal; /* owned */
    scan_fn scan;  /* matches follow one another without gaps */
    char *source;  /* owned: the regular expression, for saving and hashing */
    regex_flavor flavor;
} finder;

/* The next match at or after `from`. @return false: none. */
bool finder_next(const finder *f, regex_work *w, const char *text, size_t n, size_t from,
                 size_t *start, size_t *end);
typedef struct finder_cursor {
    size_t from, last; /* where to look, where the last match ended */
    bool matched;
} finder_cursor;
/* All matches, one a call. */
bool finder_walk(const finder *f, regex_work *w, const char *text, size_t n, finder_cursor *p,
                 size_t *start, size_t *end);
void finder_free(finder *f);
/* Looks for a regular expression or what splitter_pattern names, with our scanner where it can. */
err finder_of(const char *pattern, regex_flavor flavor, finder *out) MUST_USE;

typedef struct norm_step {
    normalizer_kind kind;
    finder find;
    char *with; /* owned: the replacement, or what is prepended */
    charsmap *map;
    bool longest;                 /* of NORM_CHARSMAP: as SentencePiece replaces */
    bool strip_left, strip_right; /* of NORM_STRIP */
} norm_step;

/* Normalizers that need no more than a name: X(name, kind, type in a tokenizer.json). */
#define NAMED_NORMALIZERS(X)                                                                       \
    X("nfc", NORM_NFC, "NFC")                                                                      \
    X("nfd", NORM_NFD, "NFD")                                                                      \
    X("nfkc", NORM_NFKC, "NFKC")                                                                   \
    X("nfkd", NORM_NFKD, "NFKD")                                                                   \
    X("lowercase", NORM_LOWERCASE, "Lowercase")                                                    \
    X("strip-accents", NORM_STRIP_ACCENTS, "StripAccents")                                         \
    X("strip", NORM_STRIP, "Strip")                                                                \
    X("nmt", NORM_NMT, "Nmt")
/* Reads a comma-separated list of their names; NULL: none. @param steps [MAX_STEPS]. */
err norms_parse(const char *list, norm_step *steps, int *n) MUST_USE;
/* @return named ones as a tokenizer.json has them, owned. */
struct json_t *norms_json(const norm_step *norms, int n);
/* @return the type of a named one in a tokenizer.json; NULL: it is not one of them. */
const char *normalizer_type(normalizer_kind kind);
/* @return the text, in one of the two buffers once a step has changed it. */
text_span normalize_text(const norm_step *steps, int n_steps, regex_work *w, text_span text,
                         str scratch[2]);

typedef enum {
    SPLIT_ISOLATED,
    SPLIT_REMOVED,
    SPLIT_WITH_PREVIOUS,
    SPLIT_WITH_NEXT,
    SPLIT_CONTIGUOUS
} split_behavior;
typedef enum { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS } prepend_scheme;

/* One pre-tokenizer: changes a piece a little, then splits it. */
typedef struct split_step {
    char *space;           /* owned: what ' ' becomes; NULL: stays */
    char *prepend;         /* owned: put before a piece that does not begin so; NULL: nothing */
    prepend_scheme scheme; /* when */
    finder find;
    split_behavior behavior;
    bool invert; /* what is between the matches counts as the match */
} split_step;

typedef struct added_token {
    char *text; /* owned: as written */
    size_t len;
    char *match; /* owned: what is looked for: `text`, normalized where that is wanted */
    size_t match_len;
    int32_t id;
    bool special, normalized, lstrip, rstrip, single_word;
} added_token;

/* Added tokens that are looked for together: in the text as it is, or as normalized. */
typedef struct added_set {
    added_token **by_match; /* [n] in byte order; the tokens are the tokenizer's */
    int n, n_plain;         /* n_plain of them are not special */
    bool first[256];        /* bytes that begin one */
    int only_first;         /* the one byte they all begin with; -1: several */
} added_set;
void added_set_build(added_set *s, added_token *all, int n, bool normalized);
typedef struct added_match {
    size_t start, end; /* with the white space it takes, be it part of the match before */
    const added_token *token;
} added_match;
/* The next token at or after *from that counts, as Hugging Face looks for it; *from moves on. */
bool added_next(const added_set *s, const char *text, size_t n, size_t *from, bool special,
                added_match *out);

/* ---- trie.c: tokens by their bytes --------------------------------------------------------------- */
typedef struct trie_node {
    int32_t base, check; /* byte b leads to entry base + b, if its `check` is this node */
    int32_t token;       /* -1: none ends here */
} trie_node;
typedef struct token_trie {
    trie_node *at; /* [n] 0 is the root; 256 entries follow every base */
    int32_t n;
} token_trie;
typedef struct trie_key {
    text_span text; /* not empty */
    int32_t id;
} trie_key;
/* Of keys with equal text the one with the highest id counts. Sorts the keys. */
void token_trie_build(token_trie *t, trie_key *keys, int32_t n);
void token_trie_free(token_trie *t);
/* Moves on along a byte. @return false: nothing continues so. */
static inline bool token_trie_step(const token_trie *t, int32_t *node, char byte) {
    int32_t next = t->at[*node].base + (uint8_t)byte;
    if (t->at[next].check != *node) return false;
    *node = next;
    return true;
}

/* ---- bpe.c ---------------------------------------------------------------------------------------- */
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
typedef struct bpe_walk {
    walk_token *tokens; /* [n] */
    token_trie trie;    /* of those that pieces give */
} bpe_walk;

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

/* ---- adjacency.c: where pieces can be split ------------------------------------------------------- */
typedef struct adjacency {
    uint64_t *whole, *prefix, *suffix; /* sets of bits; NULL: pieces are never split */
    int whole_shift, prefix_shift;     /* of a hash to a bit of the first two */
} adjacency;
enum { ADJACENCY_SUFFIX_BITS = 1 << 16 };
void adjacency_build(const bpe *b, adjacency *a);
void adjacency_free(adjacency *a);

/* Whether a character of three bytes is at p. */
static inline bool is_three_bytes(const char *p) {
    return ((uint8_t)p[0] & 0xF0) == 0xE0 && ((uint8_t)p[1] & 0xC0) == 0x80 &&
           ((uint8_t)p[2] & 0xC0) == 0x80;
}
static inline uint64_t adjacency_bytes(const char *p, int n) {
    uint64_t x = 0;
    for (int i = 0; i < n; i++) x = x << 8 | (uint8_t)p[i];
    return x;
}
static inline uint64_t adjacency_hash(uint64_t key, int shift) {
    return (key * 0x9E3779B97F4A7C15u ^ key >> 24) * 0xD6E8FEB86659FD93u >> shift;
}
static inline uint64_t adjacency_index(char l3, char r1, char r2) {
    return (uint64_t)(l3 & 63) << 10 | (uint64_t)(r1 & 15) << 6 | (uint64_t)(r2 & 63);
}
static inline uint64_t adjacency_has(const uint64_t *set, uint64_t bit) {
    return set[bit >> 6] >> (bit & 63) & 1;
}
/* Whether some token may cover the boundary between two characters of three bytes. @param at where the
 * second begins. */
static inline bool adjacency_covers(const adjacency *a, const char *at) {
    uint64_t left = adjacency_bytes(at - 3, 3), right = adjacency_bytes(at, 3);
    return adjacency_has(a->whole, adjacency_hash(left << 24 | right, a->whole_shift)) ||
           adjacency_has(a->prefix, adjacency_hash(left << 16 | right >> 8, a->prefix_shift)) ||
           adjacency_has(a->suffix, adjacency_index(at[-1], at[0], at[1]));
}
/* @return the end of the part of a piece that begins at `from`: the first boundary that no token covers, or
 * the piece's end. */
static inline size_t adjacency_part_end(const adjacency *a, const char *text, size_t from,
                                        size_t end) {
    bool three = false; /* the character before i has three bytes */
    for (size_t i = from; i + 3 <= end;) {
        bool here = is_three_bytes(text + i);
        if (three && here && !adjacency_covers(a, text + i)) return i;
        three = here;
        i += here ? 3 : 1;
    }
    return end;
}

/* ---- unigram.c ------------------------------------------------------------------------------------ */
typedef enum {
    TOKEN_NORMAL,
    TOKEN_UNUSED,       /* text never becomes it: special tokens of SentencePiece, bytes */
    TOKEN_USER_DEFINED, /* SentencePiece's: wins over all that is learned */
} token_use;
typedef struct unigram_parts { /* borrowed */
    const text_span *text;     /* [n] */
    const double *score;       /* [n] */
    const token_use *use;      /* [n] */
    int64_t n;
    int32_t unknown;
    bool single; /* SentencePiece's arithmetic, else Hugging Face's */
} unigram_parts;

typedef struct unigram {
    token_trie trie;
    double *score; /* [tokens] */
    double unknown_score;
    int32_t unknown;
    bool
        single; /* sums are rounded to float and go on from piece to piece: nothing can be cached */
} unigram;
err unigram_new(const unigram_parts *p, unigram **out) MUST_USE;
void unigram_free(unigram *u);                      /* takes NULL */
uint64_t unigram_hash(const unigram *u, int64_t n); /* of the n scores */

/* The best way to reach a position. */
typedef struct unigram_step {
    double sum;
    uint32_t start; /* of its last token */
    int32_t id;
} unigram_step;
typedef struct unigram_work {
    unigram_step *best; /* [cap] */
    int32_t *ids;       /* [cap] */
    size_t cap, n;
    double carried; /* the sum of what came before in this text; 0 where one begins */
} unigram_work;
/* @param b the tokenizer's: its tokens and the ids of bytes. @return as bpe_piece. */
const int32_t *unigram_piece(const unigram *u, const bpe *b, unigram_work *w, const char *piece,
                             size_t n, size_t *n_ids);
void unigram_work_free(unigram_work *w);

/* ---- the tokenizer --------------------------------------------------------------------------------- */
struct tokenizer {
    const char *kind;
    bpe bpe;             /* without merges if there is a unigram model; its tokens count for both */
    adjacency adjacency; /* of the merges' tokens */
    unigram *unigram;    /* NULL: none */
    bool sentencepiece; /* came from a .model: where Hugging Face's rules differ, SentencePiece's */
    norm_step norms[MAX_STEPS];
    split_step splits[MAX_STEPS];
    int n_norms, n_splits;
    scan_fn scan;       /* set: all that the rules do is to split with this scanner */
    added_token *added; /* [n_added] */
    int n_added;
    added_set raw, normal; /* looked for before and after normalizing */
    int64_t vocab;
    text_span *decoded; /* [vocab] what each id gives, at `decoded_bytes` */
    char *decoded_bytes;
    bool *is_special;            /* [vocab] */
    int strip_left, strip_right; /* spaces taken from the ends of what is decoded */
    bool strip_first;            /* the first token loses its spaces */
    char *unknown_surface;       /* owned: what the unknown token gives; NULL: its text */
    token_affixes affixes;
    bool affixes_changed; /* they are not those of `source` */
    int32_t eos;
    bool
        eos_is_named; /* by the files beside it or by tokenizer_set_eos, which affixes do not change */
    uint64_t hash;
    char *source; /* the tokenizer.json it came from; NULL: made by us */
    size_t source_len;
};

/* Gives an added token its text, and with the normalizers in place what is looked for. */
void added_token_set(const tokenizer *t, added_token *a, const char *text, size_t n);
/* [vocab] the model's tokens, and added tokens as they are found; empty: no such id. @return owned. */
text_span *tokenizer_texts(const tokenizer *t);
/* Fills in what follows from the rest: sets of added tokens, the scanner, eos, hash.
 * @param decoded [vocab] what ids give, copied; NULL: tokenizer_texts. */
void tokenizer_finish(tokenizer *t, const text_span *decoded);

/* ---- the parts of a tokenizer.json: json_*.c -------------------------------------------------------- */
struct json_t;
/* An error unless all members of the object are among those named, separated by spaces. */
err json_only(const struct json_t *o, const char *where, const char *allowed) MUST_USE;
/* A kind of step of a normalizer, pre-tokenizer or post-processor, by its "type". */
typedef struct step_kind {
    const char *type, *members; /* that it may have beside "type" */
    err (*read)(const struct json_t *o, const struct step_kind *k, void *into);
    int what;
} step_kind;
/* Reads one object by its type, or a Sequence of them. @param list the member of a Sequence that holds them. */
err json_read_steps(const struct json_t *o, const char *where, const step_kind *kinds, int n,
                    const char *list, void *into) MUST_USE;
/* Reads the "pattern" of a step. */
err json_finder(const struct json_t *step, const char *where, finder *out) MUST_USE;
err json_normalizer(const struct json_t *o, tokenizer *t) MUST_USE;
/* @param byte_level whether bytes are written in GPT-2's alphabet. */
err json_pre_tokenizer(const struct json_t *o, tokenizer *t, bool *byte_level) MUST_USE;
/* Reads what is put around texts; the vocabulary must be complete. */
err json_post_processor(const struct json_t *o, tokenizer *t) MUST_USE;
/* @return what json_post_processor reads back, owned; null where there are no affixes. */
struct json_t *affixes_json(const tokenizer *t);
/* Applies the tokenizer_config.json in the folder `path`, unless that has a tokenizer.json, or beside a tokenizer.model. */
err affixes_from_settings(const char *path, tokenizer *t) MUST_USE;
/* @return the id that ends documents. */
int32_t tokenizer_find_eos(const tokenizer *t);
/* Fills in what ids give, and finishes the tokenizer. */
err json_decoder(const struct json_t *o, tokenizer *t, bool byte_level) MUST_USE;

/* ---- files: open_*.c ---------------------------------------------------------------------------------- */
err tokenizer_open_json(const char *path, tokenizer **out) MUST_USE;
err tokenizer_open_gpt2(const char *vocab, const char *merges, tokenizer **out) MUST_USE;
err tokenizer_open_sentencepiece(const char *path, tokenizer **out) MUST_USE;
err tokenizer_open_tiktoken(const char *path, const char *pattern, tokenizer **out) MUST_USE;
/* A document that holds what a tokenizer.json holds. @param name for messages. @param source the
 * document as text, owned from here on. */
err tokenizer_from_json(const struct json_t *doc, const char *name, char *source, size_t len,
                        tokenizer **out) MUST_USE;
err tokenizer_bytes(tokenizer **out) MUST_USE;

#endif
