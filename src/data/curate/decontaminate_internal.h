/* Internals of decontamination: the references as a table of n-grams, searching it, and the hits
 * that pass 1 writes to spill files. */
#ifndef INGOT_DECONTAMINATE_INTERNAL_H
#define INGOT_DECONTAMINATE_INTERNAL_H

#include "curate/dedup_internal.h"

/* ---- references ------------------------------------------------------------------------------ */
typedef struct ref_file {
    char *path;
    int64_t texts;         /* texts long enough to search for */
    int64_t unsearched;    /* texts that are not */
    int64_t found, common; /* n-grams found in documents and removed; found and ignored as common */
} ref_file;

/* One string of a reference: a question, an answer, a passage. */
typedef struct ref_text {
    int file, line;     /* line from 1 */
    const char *member; /* "question", "choices.text" */
    text_span text;
    uint32_t grams; /* different ones in it */
    bool sentence;  /* too short to match inside a sentence */
} ref_text;

/* An occurrence of an n-gram in a reference. Occurrences of the same words are chained; the
 * first of a chain represents the n-gram, and its index is the n-gram's number. */
typedef struct ref_ngram {
    uint32_t text, begin, end; /* bytes of the text */
    uint32_t next;             /* index of the next occurrence plus one; 0: none */
    uint32_t documents;        /* documents that contain it; only in the first of a chain */
    uint32_t removed;          /* occurrences in documents that are removed; likewise */
} ref_ngram;

typedef struct ref_slot {
    uint64_t key;
    /* of an n-gram: its number plus one; of the end of a short text: a bit set of lengths */
    uint64_t value;
} ref_slot;

typedef struct refs {
    /* In words. Texts of fewer than ngram words must match as a whole, of fewer than `shortest` as a sentence, and of
     * fewer than `sentence` are not searched for. */
    int ngram, shortest, sentence;
    uint64_t sentence_lengths; /* a bit for each number of words that such sentences have */
    uint64_t hash;             /* of the files' content */
    arena *memory;
    normalizer *words;
    ref_file *files;
    ref_text *texts;
    ref_ngram *grams;
    int n_files, files_cap, n_texts, texts_cap, n_grams, grams_cap;
    int n_distinct;  /* n-grams */
    ref_slot *slots; /* [2^bits] */
    int bits;
    size_t filled;
    uint64_t *filter; /* a bit for each value of the top FILTER_BITS of a key */
    size_t bytes, max_bytes;
} refs;

/* @param paths comma-separated: JSON lines files, or folders with .jsonl files. @param fields
 * comma-separated members; NULL: every string. @param memory limit for the references. */
typedef struct ref_lengths {
    int ngram, shortest, sentence; /* as in refs; sentence 0: none */
} ref_lengths;
err refs_read(const char *paths, const char *fields, ref_lengths lengths, size_t memory,
              refs **out) MUST_USE;
void refs_free(refs *r); /* takes NULL */

typedef struct ref_hit {
    uint32_t gram, begin, end; /* bytes of the document's text */
} ref_hit;
typedef struct ref_hits {
    ref_hit *at;
    int n, cap;
} ref_hits;
/* Appends every occurrence of an n-gram in the text, ordered by where they end. */
void refs_find_in_text(const refs *r, text_span text, ref_hits *out);
/* @return an occurrence of n-gram `number` in reference text `text`; NULL: none. */
const ref_ngram *refs_find_occurrence(const refs *r, uint32_t number, uint32_t text);

/* ---- decontamination, inside ----------------------------------------------------------------- */
enum {
    SECTION_HITS,      /* hit_record, names and hits of each document with hits */
    SECTION_DOCUMENTS, /* 2 x u64 per segment: its documents, and those with hits */
    DECONTAMINATE_SECTIONS
};
typedef struct hit_record {
    uint64_t number; /* index of the document in its segment */
    uint32_t hits, names;
} hit_record;

/* ---- which hits of a document count: decontaminate_judge.c ----------------------------------- */
typedef struct hit_judge {
    bool *ignored;   /* [hits] as common */
    uint32_t *grams; /* [hits] sorted */
    uint32_t *
        counts; /* [texts of the references] their n-grams in this document; zeros between documents */
    int cap;
} hit_judge;
typedef struct removal {
    size_t begin, end;
} removal;
typedef struct decontaminate_worker {
    ref_hits hits;
    hit_judge judge;
    removal *removals;
    int removals_cap;
    str text; /* of the document last judgment */
} decontaminate_worker;

struct decontaminate {
    decontaminate_options o;
    text_inputs *in;
    refs *refs;
    uint64_t settings;
    int segments;
    split_job reading;   /* pass 1 */
    uint64_t *first_doc; /* [segments + 1] number of a segment's first document */
    decontaminate_worker *workers;
    decontaminate_summary summary;
};

static inline bool ngram_is_common(const decontaminate *d, uint32_t number) {
    return d->o.common && d->refs->grams[number].documents > (uint32_t)d->o.common;
}
/* Fills j->ignored for each hit. */
void decontaminate_judge_hits(const decontaminate *d, const ref_hits *hits, hit_judge *j);
void hit_judge_free(hit_judge *j);

/* A document read back from the spill files, with its hits. Reused for the next one. */
typedef struct hit_document {
    uint64_t number; /* index in the whole input */
    int segment;
    str names;
    ref_hits hits;
} hit_document;
/* Calls fn for every document with hits in the spill files that are open, in input order. */
err decontaminate_for_each(const decontaminate *d, err (*fn)(void *ctx, const hit_document *doc),
                           void *ctx) MUST_USE;
err decontaminate_report_write(const decontaminate *d) MUST_USE;

#endif
