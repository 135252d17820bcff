/* curate, inside: evaluation texts as a table of n-grams, and finding them. */
#ifndef INGOT_DECONTAMINATE_INTERNAL_H
#define INGOT_DECONTAMINATE_INTERNAL_H

#include "curate/dedup_internal.h"

/* ---- references ---------------------------------------------------------------------------- */
typedef struct ref_file {
    char *path;
    int64_t texts;         /* of enough words to look for */
    int64_t found, common; /* n-grams found in documents: cut, or left alone as common */
} ref_file;

/* One string of a reference: a question, an answer, a passage. */
typedef struct ref_text {
    int file, line;     /* line from 1 */
    const char *member; /* "question", "choices.text" */
    text_span text;
} ref_text;

/* A place in a reference. Places with the same words are chained; the first of a chain is the
 * n-gram, and its index the n-gram's number. */
typedef struct ref_gram {
    uint32_t text, begin, end; /* bytes of the text */
    uint32_t next;             /* another place, plus one; 0: none */
    uint32_t documents;        /* that have it: of a chain's first */
} ref_gram;

typedef struct ref_slot {
    uint64_t key;
    uint64_t value; /* of an n-gram: its number plus one; of a short text's end: its lengths */
} ref_slot;

typedef struct refs {
    int ngram, shortest; /* words; texts of fewer than ngram words are looked for whole */
    uint64_t hash;       /* of the files' content */
    arena *memory;
    norm *words;
    ref_file *files;
    ref_text *texts;
    ref_gram *grams;
    int n_files, files_cap, n_texts, texts_cap, n_grams, grams_cap;
    int n_distinct;  /* n-grams */
    ref_slot *slots; /* [2^bits] */
    int bits;
    size_t filled;
    uint64_t *filter; /* a bit for each value of the first FILTER_BITS of a key */
    size_t bytes, most_bytes;
} refs;

/* @param paths comma-separated: JSON lines, or folders with .jsonl files. @param fields
 * comma-separated members; NULL: every string. @param memory the references may take. */
err refs_read(const char *paths, const char *fields, int ngram, int shortest, size_t memory,
              refs **out) MUST_USE;
void refs_free(refs *r); /* takes NULL */

typedef struct ref_hit {
    uint32_t gram, begin, end; /* bytes of the document's text */
} ref_hit;
typedef struct ref_hits {
    ref_hit *at;
    int n, cap;
} ref_hits;
/* Appends every place of the text that has the words of an n-gram, in order of where they end. */
void refs_find(const refs *r, text_span text, ref_hits *out);
/* @return a place of n-gram `number` in text `text`; NULL: not there. */
const ref_gram *refs_place(const refs *r, uint32_t number, uint32_t text);

/* ---- decontamination, inside --------------------------------------------------------------- */
enum {
    STREAM_HITS,      /* hit_record, names and hits of each document that has any */
    STREAM_DOCUMENTS, /* u64 a segment: its documents, and those with hits */
    DECONTAMINATE_STREAMS
};
typedef struct hit_record {
    uint64_t number; /* of the document, in its segment */
    uint32_t hits, names;
} hit_record;

typedef struct cut {
    size_t begin, end;
} cut;
typedef struct decontaminate_worker {
    ref_hits hits;
    cut *cuts;
    int cuts_cap;
    str text; /* of the document last judged */
} decontaminate_worker;

struct decontaminate {
    decontaminate_options o;
    text_inputs *in;
    refs *refs;
    uint64_t settings;
    int segments, shares;
    spill **spills;
    decontaminate_worker *workers;
    decontaminate_summary summary;
};

static inline bool gram_is_common(const decontaminate *d, uint32_t number) {
    return d->o.common && d->refs->grams[number].documents > (uint32_t)d->o.common;
}

/* A document of the spill files, with its hits. Used again for the next. */
typedef struct hit_document {
    uint64_t number; /* in all the input */
    int segment;
    str names;
    ref_hits hits;
} hit_document;
/* Calls fn for every document with hits, in input order. */
err decontaminate_each(const decontaminate *d, err (*fn)(void *ctx, const hit_document *doc),
                       void *ctx) MUST_USE;
err decontaminate_report_write(const decontaminate *d) MUST_USE;

#endif
