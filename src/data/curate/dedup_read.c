/* Pass 1 of deduplication: computes the keys of every document in parallel and writes them, in
 * input order, to the spill file of a split. Beside keys only lengths, counts and, for the
 * report, names are kept. */
#include "curate/dedup_internal.h"

#include <stdlib.h>

/* The keys of one block. */
typedef struct block_keys {
    uint64_list keys; /* per document: of the bands, then of the text; or of each paragraph */
    uint32_t *facts;
    uint8_t *known; /* [keys] whether the index has it; NULL: there is none */
    str names;      /* u32 length and text a document */
} block_keys;

typedef struct key_reader {
    dedup *d;
    spill_writer *out;
    text_progress *progress;
    uint64_t items;        /* so far in the split: documents, or paragraphs */
    segment_counts counts; /* so far in the segment */
} key_reader;

static uint64_t text_key(const text_doc *doc) { return hash_bytes(doc->text.at, doc->text.len, 0); }

static uint32_t near_keys(dedup *d, int worker, const text_doc *doc, block_keys *out) {
    minhash_scratch *s = &d->workers[worker].hashes;
    uint64_t keys[MINHASH_MAX];
    minhash_sign(d->hashes, doc->text, s);
    minhash_keys(d->hashes, s, keys);
    for (int i = 0; i < d->o.bands; i++) uint64_list_add(&out->keys, keys[i]);
    uint64_list_add(&out->keys, text_key(doc));
    return (uint32_t)MIN(doc->text.len, (size_t)UINT32_MAX);
}

static uint32_t exact_keys(dedup *d, int worker, const text_doc *doc, block_keys *out) {
    uint64_list_add(&out->keys, text_key(doc));
    return (uint32_t)MIN(doc->text.len, (size_t)UINT32_MAX);
}

static uint32_t document_paragraph_keys(dedup *d, int worker, const text_doc *doc,
                                        block_keys *out) {
    paragraph_rule rule = { d->o.paragraph_words, d->o.paragraph_ngram, d->o.stride };
    uint32_t n = 0;
    size_t at = 0;
    paragraph p;
    while (paragraph_next(doc->text, d->o.lines, &at, &p))
        n += (uint32_t)paragraph_keys(d->words, p.text, &rule, &out->keys).n;
    return n;
}

static uint32_t (*const keys_by[])(dedup *, int, const text_doc *,
                                   block_keys *) = { [DEDUP_NEAR] = near_keys,
                                                     [DEDUP_EXACT] = exact_keys,
                                                     [DEDUP_PARAGRAPH] = document_paragraph_keys };

static void add_names(const text_doc *doc, str *out) {
    uint32_t n = 0;
    size_t begin = out->len;
    str_add_bytes(out, &n, sizeof n);
    add_document_names(doc, out);
    n = (uint32_t)(out->len - begin - sizeof n);
    memcpy(out->text + begin, &n, sizeof n);
}

static err make_block_keys(void *ctx, int worker, const text_block *b, void *result) {
    dedup *d = ((key_reader *)ctx)->d;
    block_keys *k = result;
    k->facts = mem_alloc((size_t)b->n * sizeof *k->facts);
    for (int i = 0; i < b->n; i++) {
        k->facts[i] = keys_by[d->o.method](d, worker, &b->docs[i], k);
        if (d->o.pass.report) add_names(&b->docs[i], &k->names);
    }
    if (!d->index) return OK;
    k->known = mem_alloc((size_t)k->keys.n + 1);
    for (int i = 0; i < k->keys.n; i++) k->known[i] = key_index_has(d->index, k->keys.at[i]);
    return OK;
}

static void free_block_keys(void *result) {
    block_keys *k = result;
    free(k->keys.at);
    free(k->known);
    free(k->facts);
    str_free(&k->names);
}

/* ---- in input order -------------------------------------------------------------------------- */

/* Notes an item if the index has its key. */
static err put_known(key_reader *r, const uint8_t *known, uint32_t item) {
    return known && *known ? spill_write(r->out, SECTION_KNOWN, &item, sizeof item) : OK;
}

static err put_document(key_reader *r, const uint64_t *keys, const uint8_t *known, uint32_t fact) {
    bool paragraphs = r->d->o.method == DEDUP_PARAGRAPH;
    int bands = r->d->o.method == DEDUP_NEAR ? r->d->o.bands : 0;
    uint64_t items = paragraphs ? fact : 1;
    if (r->items + items > UINT32_MAX)
        return err_hint(ERR("dedup: more than 2^32 documents or paragraphs in one input file"),
                        "split the input into more files");
    TRY(spill_write(r->out, SECTION_FACTS, &fact, sizeof fact));
    for (int i = 0; i < bands; i++) {
        TRY(group_write(r->out, SECTION_NEAR, keys[i], (uint32_t)r->items));
        TRY(put_known(r, known ? known + i : NULL, (uint32_t)r->items));
    }
    keys += bands;
    for (uint64_t i = 0; i < items; i++) {
        TRY(put_known(r, known ? known + bands + i : NULL, (uint32_t)r->items));
        TRY(group_write(r->out, SECTION_SAME, keys[i], (uint32_t)r->items++));
    }
    r->counts.documents++;
    r->counts.items += items;
    return OK;
}

static err merge_documents(key_reader *r, const text_block *b, const block_keys *k) {
    const dedup *d = r->d;
    int at = 0;
    const char *names = k->names.text;
    for (int i = 0; i < b->n; i++) {
        BUG_IF((uint64_t)b->docs[i].number != r->counts.documents);
        TRY(put_document(r, k->keys.at + at, k->known ? k->known + at : NULL, k->facts[i]));
        at += d->o.method == DEDUP_PARAGRAPH ? (int)k->facts[i]
              : d->o.method == DEDUP_NEAR    ? d->o.bands + 1
                                             : 1;
        if (!d->o.pass.report) continue;
        uint32_t n;
        memcpy(&n, names, sizeof n);
        TRY(spill_write(r->out, SECTION_NAMES, names, sizeof n + n));
        names += sizeof n + n;
    }
    return OK;
}

static err write_block_keys(void *ctx, const text_block *b, void *result) {
    key_reader *r = ctx;
    err e = merge_documents(r, b, result);
    free_block_keys(result);
    return e ? e : text_progress_add(r->progress, b->raw_bytes);
}

err dedup_read(void *ctx, int split, spill_writer *out, text_progress *p) {
    dedup *d = ctx;
    key_reader r = { .d = d, .out = out, .progress = p };
    text_pipeline flow = { &r, sizeof(block_keys), make_block_keys, write_block_keys,
                           free_block_keys };
    return split_job_read(&d->reading, split, &flow, &r.counts, SECTION_COUNTS, out);
}
