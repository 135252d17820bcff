/* curate, inside: what finding copies and finding evaluation texts are made of. Words, n-grams,
 * MinHash signatures; spill files and grouping by key, so that neither needs memory for the corpus;
 * disjoint sets.
 *
 *     text -> words -> n-grams -> signature -> a key for each band -> spill, cut by key
 *          -> groups of equal keys -> disjoint sets of documents
 */
#ifndef INGOT_DEDUP_INTERNAL_H
#define INGOT_DEDUP_INTERNAL_H

#include "curate/curate.h"
#include "text/text.h"

#include <string.h>

/* ---- words ------------------------------------------------------------------------------------
 * A word is a run of letters and digits, in lower case, decomposed (NFD) and without marks.
 * Everything else parts words. Letters of scripts written without spaces are words of their own. */
typedef struct norm norm; /* never changes once made: threads share it */
/* @param zero_digits "1984" and "2001" are the same word, "0000". */
norm *norm_new(bool zero_digits);
void norm_free(norm *t); /* takes NULL */

typedef struct norm_word {
    uint64_t hash;
    uint32_t begin, end; /* bytes of the text */
} norm_word;
/* The next words of a text of under 4 GiB. @param at where to go on: 0 at first. @param room at
 * least 2. @return how many: 0 at the end of the text. */
size_t norm_words(const norm *t, text_span text, size_t *at, norm_word *out, size_t room);

/* ---- n-grams: the rolling hash of the last n words ----------------------------------------- */
typedef struct gram {
    uint64_t sum;
    uint64_t leaving; /* GRAM_BASE^n */
    int n, have;      /* have <= n */
} gram;
#define GRAM_BASE 0x9E3779B97F4A7C15u
gram gram_new(int n);
/* @param left the word n before `word`; any value while fewer than n are in. */
static inline void gram_roll(gram *g, uint64_t word, uint64_t left) {
    if (g->have < g->n) {
        g->have++;
        left = 0;
    }
    g->sum = g->sum * GRAM_BASE + word - left * g->leaving;
}
/* Spreads a sum over all 64 bits. */
static inline uint64_t gram_mix(uint64_t h) {
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93u;
    return h ^ h >> 32;
}

/* ---- MinHash ------------------------------------------------------------------------------- */
enum { MINHASH_LANES = 8, MINHASH_CHUNK = 1024 };
typedef struct minhash {
    int ngram, bands, rows;
    int n;           /* hash functions: bands * rows */
    uint32_t *a, *b; /* [n, up to a multiple of MINHASH_LANES]: h(x) = a x + b mod 2^32, a odd */
    norm *words;
} minhash;
typedef struct minhash_scratch {
    norm_word words[GRAM_MOST + MINHASH_CHUNK]; /* the last of the chunk before, and a chunk */
    uint32_t grams[MINHASH_CHUNK + 16];
    uint32_t least[MINHASH_MOST]; /* the signature */
} minhash_scratch;
minhash *minhash_new(int ngram, int bands, int rows);
void minhash_free(minhash *m); /* takes NULL */
/* The least value of each hash function over the text's n-grams, into s->least [n]. A text of
 * fewer than n words is one gram of all of them, and one without words a gram of its bytes. */
void minhash_sign(const minhash *m, text_span text, minhash_scratch *s);
/* One key a band: texts that share one are candidates. @param keys [bands]. */
void minhash_keys(const minhash *m, const minhash_scratch *s, uint64_t *keys);

/* ---- spill files ------------------------------------------------------------------------------
 * Many byte streams written at once into one file, each read again on its own. A file appears when
 * it is whole, so one that is there need not be made again.
 *
 *     | page of stream 3 | page of stream 0 | page of stream 3 | ... | index by stream | footer |
 */
typedef struct spill_writer spill_writer;
/* @param settings names what the content depends on: spill_open refuses a file of another. */
err spill_create(const char *path, int streams, uint64_t settings, spill_writer **out) MUST_USE;
err spill_write(spill_writer *w, int stream, const void *bytes, size_t n) MUST_USE;
err spill_commit(spill_writer *w) MUST_USE; /* frees it, on an error too */
void spill_abort(spill_writer *w);          /* takes NULL */
/* "FOLDER/NAME-000012.spill", owned (free). */
char *spill_path(const char *folder, const char *name, int number);
/* Removes the spill files of that name, and the folder when nothing else is left in it. */
err spill_clear(const char *folder, const char *name) MUST_USE;

typedef struct spill spill;
/* @param out NULL, without an error, when there is no such file or it is of other settings. */
err spill_open(const char *path, int streams, uint64_t settings, spill **out) MUST_USE;
uint64_t spill_bytes(const spill *s, int stream);
void spill_close(spill *s); /* takes NULL */

typedef struct spill_reader {
    const spill *from;
    int fd;
    size_t page, end; /* of the index */
    char *buffer;
    size_t used, len;
} spill_reader;
err spill_reader_open(const spill *s, int stream, spill_reader *out) MUST_USE;
/* Fills n bytes. The stream must have them. */
err spill_read(spill_reader *r, void *into, size_t n) MUST_USE;
/* The same into a string, which is emptied first. */
err spill_read_str(spill_reader *r, size_t n, str *out) MUST_USE;
void spill_reader_close(spill_reader *r); /* takes a zeroed one */

/* ---- grouping ---------------------------------------------------------------------------------
 * Records (key, item) lie in GROUP_PARTS streams by the first byte of their key. A part is a table
 * in memory; one that is too large is read several times, a range of keys each. Records come in
 * the order of their items, so the first with a key has the least item. */
enum { GROUP_PARTS = 256, GROUP_RECORD = 12 };
/* @param stream of part 0. @param item counted from the spill's own first. */
err group_write(spill_writer *w, int stream, uint64_t key, uint32_t item) MUST_USE;

typedef struct group_pair {
    uint64_t first, item; /* share a key; first < item */
} group_pair;
typedef struct group_job {
    spill *const *spills;
    const uint64_t *base; /* [n_spills] the number of a spill's item 0 */
    int n_spills, stream; /* of part 0 */
    int threads;
    size_t memory; /* for all threads */
    void *ctx;
    /* One call at a time, in no order, and a pair may come twice. */
    void (*same)(void *ctx, const group_pair *pairs, int n);
} group_job;
err group_run(const group_job *g) MUST_USE;

/* ---- shares -----------------------------------------------------------------------------------
 * Consecutive segments that have a spill file in common: small files do not make one each. */
int share_count(const text_inputs *in);
/* @return the first segment of share i; of share share_count, the number of segments. */
int share_first(const text_inputs *in, int i);

/* Makes a spill file for each share that has none of these settings yet, and opens all. */
typedef struct share_job {
    const text_inputs *in;
    text_stage stage;             /* what comes after; its name is that of the files */
    const text_stage_options *to; /* where its result goes; NULL: not known */
    const char *folder, *report;  /* of the files; beside the result, NULL: none */
    int streams;
    uint64_t settings;
    bool fresh, quiet;
    void *ctx;
    err (*make)(void *ctx, int share, spill_writer *out);
} share_job;
/* Refuses standard input: who makes spill files reads it again. That the result and the report can
 * be written is checked before anything is read. @param spills [share_count]. */
err share_run(const share_job *j, spill **spills) MUST_USE;

/* `"id":"...","url":"...","source":"..."`, as far as the document has them. */
void doc_names(const text_doc *d, str *out);
/* A path, which may have any bytes, as a JSON string. */
void path_json(const char *path, str *out);

/* ---- disjoint sets ----------------------------------------------------------------------------
 * The root of a set is its least number, so the outcome does not depend on the order of joins. */
typedef struct forest {
    uint32_t *parent;
    uint32_t n;
} forest;
err forest_new(forest *f, uint32_t n) MUST_USE;
uint32_t forest_find(forest *f, uint32_t i);
void forest_join(forest *f, uint32_t a, uint32_t b);
void forest_flatten(forest *f); /* makes parent[i] the root, for all */
void forest_free(forest *f);    /* takes a zeroed one */

/* ---- deduplication, inside ----------------------------------------------------------------- */
enum {
    STREAM_NEAR = 0,                          /* bands: (key, document) */
    STREAM_SAME = STREAM_NEAR + GROUP_PARTS,  /* whole texts, or paragraphs */
    STREAM_FACTS = STREAM_SAME + GROUP_PARTS, /* u32 a document: bytes, or paragraphs compared */
    STREAM_COUNTS,                            /* u64 a segment: documents, items */
    STREAM_NAMES,                             /* u32 length and text a document, for the report */
    STREAM_COUNT
};

typedef struct dedup_worker {
    minhash_scratch hashes;
    str text; /* of the document last judged */
} dedup_worker;

struct dedup {
    dedup_options o;
    text_inputs *in;
    uint64_t settings; /* what spill files depend on */
    int segments, shares;
    uint64_t *first_doc;   /* [segments + 1] the number of a segment's first document */
    uint64_t *first_item;  /* [segments + 1] ... and item: document, or paragraph */
    uint64_t *share_item;  /* [shares] ... of the share's */
    spill **spills;        /* [shares] */
    minhash *hashes;       /* NEAR */
    norm *words;           /* PARAGRAPH */
    dedup_worker *workers; /* [threads] */
    /* What came out. After dedup_find parent[i] is the document kept for i. */
    forest cluster, same; /* same: of equal text */
    uint8_t *repeated;    /* a bit a paragraph: not the first of its words */
    size_t repeated_bytes;
    uint32_t *paragraph; /* [documents] paragraphs compared before, in the segment */
    size_t paragraph_bytes;
    dedup_summary summary;
};

/* Pass 1: fills the spill file of a share. */
err dedup_read(void *d, int share, spill_writer *out) MUST_USE;
/* Bytes that the result leaves of the memory cap. */
size_t dedup_room(const dedup *d);
err dedup_report_write(const dedup *d) MUST_USE;

/* A paragraph and the blank that ends it. @param at where to go on. @return false at the end. */
typedef struct paragraph {
    text_span text;
    size_t end; /* in the document, of what parts it from the next */
} paragraph;
bool paragraph_next(text_span text, bool lines, size_t *at, paragraph *out);
/* @return false when it has fewer than `least` words: it is not compared. */
bool paragraph_key(const norm *t, text_span text, int least, uint64_t *key);

#endif
