/* Building blocks of deduplication and decontamination: words, n-grams, MinHash signatures; spill
 * files and grouping by key, so that memory does not grow with the corpus; disjoint sets.
 *
 *     text -> words -> n-grams -> signature -> a key per band -> spill file, partitioned by key
 *          -> groups of equal keys -> disjoint sets of documents
 */
#ifndef INGOT_DEDUP_INTERNAL_H
#define INGOT_DEDUP_INTERNAL_H

#include "curate/curate.h"
#include "io/io.h"
#include "text/text.h"

#include <string.h>

/* ---- words -----------------------------------------------------------------------------------
 * A word is a run of letters and digits, decomposed (NFD), by default in lower case and without
 * marks. Everything else separates words. Letters of scripts written without spaces are words of
 * their own. */
typedef struct normalizer normalizer; /* immutable, shared by threads */
normalizer *normalizer_new(normalization rules);
void normalizer_free(normalizer *t); /* takes NULL */

typedef struct normalized_word {
    uint64_t hash;
    uint32_t begin, end; /* bytes of the text */
} normalized_word;
/* Finds the next words of a text of less than 4 GiB. @param at position in the text, 0 at first.
 * @param capacity of `out`, at least 2. @return how many; 0 at the end of the text. */
size_t normalizer_next_words(const normalizer *t, text_span text, size_t *at, normalized_word *out,
                             size_t capacity);

/* ---- n-grams: the rolling hash of the last n words ------------------------------------------- */
typedef struct rolling_ngram {
    uint64_t sum;
    uint64_t leaving; /* NGRAM_BASE^n */
    int n, have;      /* have <= n */
} rolling_ngram;
#define NGRAM_BASE 0x9E3779B97F4A7C15u
rolling_ngram rolling_ngram_new(int n);
/* @param left the hash of the word n positions before `word`; any value while there are fewer. */
static inline void rolling_ngram_push(rolling_ngram *g, uint64_t word, uint64_t left) {
    if (g->have < g->n) {
        g->have++;
        left = 0;
    }
    g->sum = g->sum * NGRAM_BASE + word - left * g->leaving;
}
/* Mixes a sum over all 64 bits. */
static inline uint64_t hash_mix(uint64_t h) {
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93u;
    return h ^ h >> 32;
}

/* ---- MinHash --------------------------------------------------------------------------------- */
enum { MINHASH_LANES = 8, MINHASH_CHUNK = 1024 };
typedef struct minhash {
    int ngram, bands, rows;
    int n;           /* hash functions: bands * rows */
    uint32_t *a, *b; /* [n, up to a multiple of MINHASH_LANES]: h(x) = a x + b mod 2^32, a odd */
    normalizer *words;
} minhash;
typedef struct minhash_scratch {
    normalized_word
        words[NGRAM_MAX + MINHASH_CHUNK]; /* the last words of the previous chunk, and a chunk */
    uint32_t grams[MINHASH_CHUNK + 16];
    uint32_t least[MINHASH_MAX]; /* the signature */
} minhash_scratch;
minhash *minhash_new(int ngram, int bands, int rows, normalization words);
void minhash_free(minhash *m); /* takes NULL */
/* Computes the minimum of each hash function over the text's n-grams, into s->least [n]. A text
 * of fewer than n words is one gram of all of them; one without words a gram of its bytes. */
void minhash_sign(const minhash *m, text_span text, minhash_scratch *s);
/* Computes one key per band; texts that share a key are candidates. @param keys [bands]. */
void minhash_keys(const minhash *m, const minhash_scratch *s, uint64_t *keys);

/* ---- spill files -----------------------------------------------------------------------------
 * Many sections, written interleaved into one file and read back one by one. A file appears only
 * when it is complete, so an existing one need not be written again.
 *
 *     | page of section 3 | page of section 0 | page of section 3 | ... | index by section |
 * footer |
 */
typedef struct spill_writer spill_writer;
/* @param settings hash of what the content depends on: spill_open refuses a file of another. */
err spill_create(const char *path, int sections, uint64_t settings, spill_writer **out) MUST_USE;
err spill_write(spill_writer *w, int section, const void *bytes, size_t n) MUST_USE;
err spill_commit(spill_writer *w) MUST_USE; /* frees it, on an error too */
void spill_abort(spill_writer *w);          /* takes NULL */
/* Yields "FOLDER/NAME-000012.spill", which lasts until the end of the block. */
#define SPILL_IN(folder, name, number) spill_path((char[IO_PATH_BYTES]){ 0 }, folder, name, number)
char *spill_path(char to[IO_PATH_BYTES], const char *folder, const char *name, int number);
/* Removes the spill files of that name, and the folder if it is then empty. */
err spill_clear(const char *folder, const char *name) MUST_USE;

typedef struct spill spill;
/* @param out NULL, without an error, if the file does not exist or its settings differ. */
err spill_open(const char *path, int sections, uint64_t settings, spill **out) MUST_USE;
uint64_t spill_bytes(const spill *s, int section);
void spill_close(spill *s); /* takes NULL */

typedef struct spill_reader {
    const spill *from;
    int fd;
    size_t page, end; /* of the index */
    char *buffer;
    size_t used, len;
} spill_reader;
err spill_reader_open(const spill *s, int section, spill_reader *out) MUST_USE;
/* Reads n bytes, which the section must have. */
err spill_read(spill_reader *r, void *into, size_t n) MUST_USE;
/* Likewise, into a string, whose content it replaces. */
err spill_read_str(spill_reader *r, size_t n, str *out) MUST_USE;
void spill_reader_close(spill_reader *r); /* takes a zeroed one */

/* ---- grouping --------------------------------------------------------------------------------
 * Finds equal keys among more records than memory holds. Records (key, item) are partitioned into
 * GROUP_PARTITIONS sections by the top byte of their key. A partition is grouped in a hash table;
 * one that does not fit is read several times, a range of keys each time. With several ranks a partition is
 * grouped by one of them, to which the others send its records. */
enum { GROUP_PARTITIONS = 256, GROUP_RECORD_BYTES = 12 };
/* @param section of partition 0. @param item relative to the first item of the spill file. */
err group_write(spill_writer *w, int section, uint64_t key, uint32_t item) MUST_USE;

typedef struct group_pair {
    uint64_t first,
        item; /* items with the same key, the first of those read so far; first <= item */
} group_pair;
typedef struct group_job {
    struct comm *comm; /* the ranks that share the keys, and call group_run together; NULL: alone */
    spill *const *spills;  /* NULL: of another rank */
    const uint64_t *base;  /* number of the first item of each spill file */
    int n_spills, section; /* section: that of partition 0 */
    int threads;
    size_t memory; /* for all threads */
    void *ctx;
    /* Called once at a time, in any order; a pair may be passed twice. With several ranks, on the one that has
     * the key. */
    void (*same)(void *ctx, const group_pair *pairs, int n);
} group_job;
err group_run(const group_job *g) MUST_USE;

/* ---- splits of the input ---------------------------------------------------------------------
 * A split is a run of consecutive segments with one spill file, so that many small input files do
 * not each get one. */
typedef struct input_splits {
    int n;
    int *first;     /* [n + 1] first segment of each; the last entry is the number of segments */
    int64_t *bytes; /* [n] of input, about */
} input_splits;
/* Writes a spill file for each split that has none with these settings yet, and opens it. Ranks share the
 * splits: each has only its own spill files open, and what others need of them is communicated. */
typedef struct split_job {
    /* Made by split_job_new: */
    pass_options o;
    text_inputs *in;
    input_splits splits;
    spill **spills;  /* [splits] NULL where another rank has it */
    text_lock *lock; /* of the folder, until the spill files are no longer needed */
    /* Set by the transform: */
    bool locked;              /* an earlier job holds the lock */
    const char *reading;      /* shown with the progress: "dedup, first pass" */
    text_transform transform; /* the transform that follows */
    const char *files;        /* name of the spill files; NULL: that of the transform */
    int sections;
    bool shares_spills; /* ranks read one another's spill files */
    uint64_t settings;
    void *ctx;
    err (*make)(void *ctx, int split, spill_writer *out, text_progress *p);
} split_job;
/* Its splits depend on the inputs alone, so that a rerun on another number of ranks finds its spill files. */
split_job split_job_new(const pass_options *o, text_inputs *in);
void split_job_free(split_job *j); /* takes a zeroed one */
/* Refuses standard input, which the transform would have to read again. Checks that the output and
 * the report can be written before anything is read. */
err split_job_run(split_job *j) MUST_USE;
/* Unlocks the folder, and removes the spill files unless they are to be kept. On all ranks together. */
err split_job_finish(split_job *j) MUST_USE;
/* Documents of a segment, and items as the transform counts them. */
typedef struct segment_counts {
    uint64_t documents, items;
} segment_counts;
/* For split_job.make: runs the pipeline over the segments of a split and writes the counts of each to `section`.
 * @param counts 0 when a segment begins; the pipeline adds to it */
err split_job_read(const split_job *j, int split, const text_pipeline *flow, segment_counts *counts,
                   int section, spill_writer *out) MUST_USE;
/* Reads from `section` what each segment holds, two counts each, and numbers it over all ranks.
 * @param first, second [segments + 1] number of a segment's first document, item; NULL: not wanted */
err split_job_number(const split_job *j, int section, uint64_t *first, uint64_t *second) MUST_USE;
/* Opens the spill files of other ranks too, for the one that writes a report. */
err split_job_open_others(const split_job *j) MUST_USE;
/* Lets rank 0 do something while the others wait, however long it takes. On all ranks together. */
err run_on_first_rank(struct comm *c, err (*run)(void *ctx), void *ctx) MUST_USE;

/* Appends `"id":"...","url":"...","source":"..."`, those that the document has. */
void add_document_names(const text_doc *d, str *out);
/* @return the error of a segment that is not as it was when it was first read. */
err input_has_changed(const text_inputs *in, int segment) MUST_USE;

/* ---- disjoint sets ---------------------------------------------------------------------------
 * The root of a set is its smallest number, so the result does not depend on the order of joins. */
typedef struct disjoint_sets {
    uint32_t *parent;
    uint32_t n;
} disjoint_sets;
err disjoint_sets_init(disjoint_sets *f, uint32_t n) MUST_USE;
void disjoint_sets_join(disjoint_sets *f, uint32_t a, uint32_t b);
void disjoint_sets_flatten(disjoint_sets *f); /* makes parent[i] the root of every i */
void disjoint_sets_free(disjoint_sets *f);    /* takes a zeroed one */
/* Joins on every rank what is joined on any. @param temporary [n]. */
err disjoint_sets_merge(disjoint_sets *f, uint32_t *temporary, struct comm *c) MUST_USE;

/* ---- paragraphs --------------------------------------------------------------------------- */
/* Iterates over paragraphs. @param at position, 0 at first. @return false at the end. */
typedef struct paragraph {
    text_span text;
    size_t end; /* end, in the document, of the blank that separates it from the next */
} paragraph;
bool paragraph_next(text_span text, bool lines, size_t *at, paragraph *out);
typedef struct uint64_list {
    uint64_t *at; /* owned: free */
    int n, cap;
} uint64_list;
static inline void uint64_list_add(uint64_list *l, uint64_t value) {
    l->at = mem_reserve(l->at, &l->cap, l->n, sizeof *l->at);
    l->at[l->n++] = value;
}
/* Selects what is compared of a paragraph: the whole, or its n-grams. */
typedef struct paragraph_rule {
    int least;         /* paragraphs of fewer words are not compared */
    int ngram, stride; /* ngram 0: the whole paragraph */
} paragraph_rule;
typedef struct paragraph_grams {
    rolling_ngram roll;
    uint64_t last[NGRAM_MAX]; /* hashes of the last words */
    size_t begin;             /* word with which the last n-gram that was added begins */
    int stride, n;
} paragraph_grams;
typedef struct paragraph_items {
    int n; /* keys; 0: not compared */
    bool
        whole; /* the last key is of the whole paragraph, and it alone counts; else the n-grams do */
} paragraph_items;
/* Appends the keys of a paragraph. One with fewer than two n-grams is compared as a whole. */
paragraph_items paragraph_keys(const normalizer *t, text_span text, const paragraph_rule *rule,
                               uint64_list *out);

/* ---- keys of an existing corpus -------------------------------------------------------------- */
typedef struct key_index key_index;
/* @param settings hash of the options that make keys; a file of others is refused. */
err key_index_open(const char *path, uint64_t settings, key_index **out) MUST_USE;
void key_index_close(key_index *x); /* takes NULL */
uint64_t key_index_hash(const key_index *x);
/* @return whether the key is one of the corpus, or with a small probability (--index-error) another one. */
bool key_index_has(const key_index *x, uint64_t key);
typedef struct key_filter key_filter; /* a Bloom filter that is being filled */
size_t key_filter_bytes(uint64_t keys, double error);
err key_filter_new(uint64_t keys, double error, uint64_t settings, key_filter **out) MUST_USE;
void key_filter_add(key_filter *f, uint64_t key);
void *key_filter_bits(key_filter *f, size_t *bytes); /* which ranks merge; borrowed */
/* @param before an index that the new one includes; NULL: none. */
err key_filter_write(key_filter *f, const key_index *before, const char *path) MUST_USE;
void key_filter_free(key_filter *f); /* takes NULL */

/* ---- deduplication, inside ------------------------------------------------------------------- */
enum {
    SECTION_NEAR = 0,                               /* keys of bands: (key, document) */
    SECTION_SAME = SECTION_NEAR + GROUP_PARTITIONS, /* keys of whole texts, or of paragraphs */
    SECTION_FACTS =
        SECTION_SAME + GROUP_PARTITIONS, /* u32 per document: bytes, or paragraphs compared */
    SECTION_COUNTS,                      /* 2 x u64 per segment: documents, items */
    SECTION_NAMES,                       /* u32 length and text per document, for the report */
    SECTION_KNOWN,                       /* u32: items with a key in the index, in the split */
    SECTION_COUNT
};

typedef struct dedup_worker {
    minhash_scratch hashes;
    str text;         /* of the document last judgment */
    uint64_list keys; /* of its paragraphs */
} dedup_worker;

struct dedup {
    dedup_options o;
    text_inputs *in;
    uint64_t settings; /* hash of what the spill files depend on */
    int segments;
    split_job reading;     /* pass 1 */
    uint64_t *first_doc;   /* number of a segment's first document */
    uint64_t *first_item;  /* ... and of its first item: document, or paragraph */
    uint64_t *split_item;  /* ... and of a split's first item */
    minhash *hashes;       /* NEAR */
    normalizer *words;     /* PARAGRAPH */
    dedup_worker *workers; /* [threads] */
    /* Results. After dedup_find_copies parent[i] is the document kept for i. */
    disjoint_sets cluster, same; /* same: sets of identical texts */
    key_index *index;            /* of an earlier corpus; NULL: none */
    uint8_t *known; /* bit per document that is kept: the earlier corpus has it; NULL: no index */
    uint8_t *repeated; /* bit per item of a paragraph: repeats an earlier one */
    size_t repeated_bytes;
    uint32_t *paragraph; /* [documents] items before the document, in its segment */
    size_t paragraph_bytes;
    dedup_summary summary;
};

/* Pass 1: fills the spill file of one split. */
err dedup_read(void *d, int split, spill_writer *out, text_progress *p) MUST_USE;
/* @return bytes of the memory cap that the clusters leave. */
size_t dedup_memory_left(const dedup *d);
err dedup_report_write(const dedup *d) MUST_USE;

#endif
