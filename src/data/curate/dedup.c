/* Deduplication in three passes.
 *
 *     1  read all documents: keys of each document or paragraph -> one spill file per split
 *                                                                                  (dedup_read.c)
 *     2  group equal keys -> clusters of documents, or repeated paragraphs         (group.c)
 *     3  the transform: read again, write what is kept
 *
 * Keys. EXACT has one key per document, the hash of its text. NEAR adds one key per band of its
 * MinHash signature; two documents that share any band are joined. PARAGRAPH has one key per
 * paragraph. Items (documents or paragraphs) are numbered in input order over the whole input.
 *
 * Clusters. Pairs of items with equal keys go into disjoint sets whose root is the smallest
 * number, so clusters do not depend on the order in which pairs are found, nor on the number of
 * threads. NEAR keeps a second set over identical texts, only to report "duplicate" and
 * "near-duplicate" apart.
 *
 * Memory. Pass 1 streams to disk. Pass 2 needs 4 bytes per document and array (cluster_bytes), and
 * uses the rest of the cap as hash tables; a partition of keys that does not fit is read in
 * several ranges. Pass 3 needs only what pass 2 left. So the cap holds for inputs of any size, up
 * to 2^32 documents.
 *
 * Ranks. Each has the spill files of some splits. Pass 2 exchanges keys: a rank gets all records of its share of
 * the partitions (group.c). The sets that ranks find are then joined on all of them (disjoint_sets_merge), so
 * that each can judge any document. An array per document is on every rank; keys and tables are not.
 *
 * Resuming. Spill files and output parts appear atomically when they are complete. A killed run
 * skips the ones it finds, if their settings (options and inputs) are the same; pass 2 is fast and
 * runs again. Pass 3 recounts documents as it goes and refuses an input that has changed since
 * pass 1. */
#include "comm/comm.h"
#include "curate/dedup_internal.h"

#include <stdlib.h>

enum { SPILL_FORMAT = 4 };      /* version of the spill files, part of their settings */
enum { LEAST_TABLE = 4 << 20 }; /* minimum bytes per thread for grouping */

enum { RULE_EARLIER = 2 };
static const char *const document_rules[] = {
    "duplicate", "near-duplicate", [RULE_EARLIER] = "in-earlier-corpus"
};
static const char *const paragraph_rules[] = { "duplicate paragraphs" };
static const char *const paragraph_counters[] = { "paragraphs removed", "bytes removed" };

dedup_options dedup_defaults(void) {
    return (dedup_options){ .ngram = 5,
                            .bands = 14,
                            .rows = 8,
                            .paragraph_words = 10,
                            .overlap = 1,
                            .index_error = 1e-6,
                            .pass.memory = (size_t)1 << 30 };
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static err read_sizes(dedup *d) {
    TRY(split_job_number(&d->reading, SECTION_COUNTS, d->first_doc, d->first_item));
    for (int i = 0; i < d->reading.splits.n; i++)
        d->split_item[i] = d->first_item[d->reading.splits.first[i]];
    d->summary.documents = (int64_t)d->first_doc[d->segments];
    d->summary.paragraphs =
        d->o.method == DEDUP_PARAGRAPH ? (int64_t)d->first_item[d->segments] : 0;
    return OK;
}

/* Memory of the clusters, without tables for grouping. */
static uint64_t cluster_bytes(const dedup *d) {
    uint64_t docs = (uint64_t)d->summary.documents, items = d->first_item[d->segments];
    if (d->o.method == DEDUP_PARAGRAPH) return docs * sizeof *d->paragraph + items / 8 + 1;
    int arrays = d->o.method == DEDUP_NEAR ? 3 : 2; /* cluster, same, and a temporary one */
    if (d->o.keep == DEDUP_LONGEST) arrays++;
    return docs * (uint64_t)arrays * sizeof *d->cluster.parent + (d->index ? docs / 8 + 1 : 0);
}

size_t dedup_memory_left(const dedup *d) { return d->o.pass.memory - (size_t)cluster_bytes(d); }

static err check_cluster_memory(const dedup *d) {
    uint64_t docs = (uint64_t)d->summary.documents;
    uint64_t need = cluster_bytes(d) + (uint64_t)d->o.pass.threads * LEAST_TABLE;
    char count[32], cap[32], needed[32];
    str_count(count, sizeof count, (double)docs);
    if (docs >= UINT32_MAX)
        return err_hint(ERR("dedup: %s documents are more than the 2^32 it can number", count),
                        "deduplicate parts of the input separately");
    if (need > d->o.pass.memory)
        return err_hint(ERR_USAGE("--memory: %s is too little for %s documents: clusters need %s",
                                  str_bytes(cap, sizeof cap, (double)d->o.pass.memory), count,
                                  str_bytes(needed, sizeof needed, (double)need)),
                        "raise --memory; the next run reuses %s", d->o.pass.work);
    return OK;
}

static group_job group_job_of(const dedup *d, int section,
                              void (*same)(void *, const group_pair *, int)) {
    return (group_job){ .comm = d->o.pass.comm,
                        .spills = d->reading.spills,
                        .base = d->split_item,
                        .n_spills = d->reading.splits.n,
                        .section = section,
                        .threads = d->o.pass.threads,
                        .memory = dedup_memory_left(d),
                        .ctx = (void *)d,
                        .same = same };
}

/* ---- clusters -------------------------------------------------------------------------------- */

static void join_near(void *ctx, const group_pair *pairs, int n) {
    dedup *d = ctx;
    for (int i = 0; i < n; i++)
        disjoint_sets_join(&d->cluster, (uint32_t)pairs[i].first, (uint32_t)pairs[i].item);
}

static void join_same(void *ctx, const group_pair *pairs, int n) {
    dedup *d = ctx;
    join_near(d, pairs, n);
    for (int i = 0; d->same.parent && i < n; i++)
        disjoint_sets_join(&d->same, (uint32_t)pairs[i].first, (uint32_t)pairs[i].item);
}

/* Reads the length, or the number of paragraphs, of every document. @param out [documents], zeroed. */
static err read_facts(const dedup *d, uint32_t *out) {
    for (int i = 0; i < d->reading.splits.n; i++) {
        spill_reader r;
        uint64_t from = d->first_doc[d->reading.splits.first[i]];
        uint64_t to = d->first_doc[d->reading.splits.first[i + 1]];
        if (!d->reading.spills[i]) continue;
        TRY(spill_reader_open(d->reading.spills[i], SECTION_FACTS, &r));
        err e = spill_read(&r, out + from, (size_t)(to - from) * sizeof *out);
        spill_reader_close(&r);
        TRY(e);
    }
    return comm_merge(d->o.pass.comm, out, (size_t)d->summary.documents * sizeof *out);
}

/* Makes the parent of each document the one that is kept for it. @param best [documents]
 * temporary. */
static err choose_kept_documents(dedup *d, uint32_t *best) {
    uint32_t n = d->cluster.n, *parent = d->cluster.parent;
    if (d->o.keep == DEDUP_FIRST) return OK; /* the root is the first one */
    uint32_t *length = NULL;
    if (d->o.keep == DEDUP_LONGEST) {
        length = calloc((size_t)n + 1, sizeof *length);
        err e = length ? read_facts(d, length) : ERR("out of memory for %u documents", n);
        if (e) return free(length), e;
    }
    for (uint32_t i = 0; i < n; i++) { /* a root precedes the others of its set */
        uint32_t *b = &best[parent[i]];
        if (parent[i] == i || !length || length[i] > length[*b]) *b = i;
    }
    for (uint32_t i = 0; i < n; i++) parent[i] = best[parent[i]];
    free(length);
    return OK;
}

/* @param size [documents] temporary. */
static void count_clusters(dedup *d, uint32_t *size) {
    dedup_summary *s = &d->summary;
    memset(size, 0, (size_t)d->cluster.n * sizeof *size);
    for (uint32_t i = 0; i < d->cluster.n; i++) size[d->cluster.parent[i]]++;
    for (uint32_t i = 0; i < d->cluster.n; i++) {
        if (size[i] < 2) continue;
        s->clusters++;
        s->copies += size[i] - 1;
        s->largest = MAX(s->largest, (int64_t)size[i]);
        s->sizes[31 - __builtin_clz(size[i])]++;
    }
}

/* Calls `mark` for each item with a key in the index, on the rank that has read it. */
static err for_each_known(dedup *d, void (*mark)(dedup *d, uint64_t item)) {
    for (int i = 0; i < d->reading.splits.n; i++) {
        spill_reader r;
        if (!d->reading.spills[i]) continue;
        uint64_t n = spill_bytes(d->reading.spills[i], SECTION_KNOWN) / sizeof(uint32_t);
        TRY(spill_reader_open(d->reading.spills[i], SECTION_KNOWN, &r));
        err e = OK;
        for (uint32_t item; n > 0 && !e; n--) {
            e = spill_read(&r, &item, sizeof item);
            if (!e) mark(d, d->split_item[i] + item);
        }
        spill_reader_close(&r);
        TRY(e);
    }
    return OK;
}

static void mark_known_cluster(dedup *d, uint64_t item) {
    uint32_t kept = d->cluster.parent[item];
    d->known[kept / 8] |= (uint8_t)(1 << kept % 8);
}

/* A cluster with a document that the index has is not kept at all. */
static err find_known_clusters(dedup *d) {
    size_t bytes = (size_t)d->summary.documents / 8 + 1;
    if (!d->index) return OK;
    d->known = mem_alloc(bytes);
    TRY(for_each_known(d, mark_known_cluster));
    return comm_merge(d->o.pass.comm, d->known, bytes);
}

static err find_clusters(dedup *d) {
    uint32_t n = (uint32_t)d->summary.documents;
    TRY(disjoint_sets_init(&d->cluster, n));
    if (d->o.method == DEDUP_NEAR) {
        TRY(disjoint_sets_init(&d->same, n));
        group_job near = group_job_of(d, SECTION_NEAR, join_near);
        TRY(group_run(&near));
    }
    group_job same = group_job_of(d, SECTION_SAME, join_same);
    TRY(group_run(&same));
    void *temporary = NULL;
    TRY(mem_map((size_t)n * sizeof(uint32_t), &temporary));
    err e = disjoint_sets_merge(&d->cluster, temporary, d->o.pass.comm);
    if (!e) e = disjoint_sets_merge(&d->same, temporary, d->o.pass.comm);
    disjoint_sets_flatten(&d->cluster);
    disjoint_sets_flatten(&d->same);
    if (!e) e = choose_kept_documents(d, temporary);
    if (!e) e = find_known_clusters(d);
    if (!e) count_clusters(d, temporary);
    mem_unmap(temporary, (size_t)n * sizeof(uint32_t));
    return e;
}

/* ---- paragraphs ------------------------------------------------------------------------------ */

static void mark_repeated(void *ctx, const group_pair *pairs, int n) {
    dedup *d = ctx;
    for (int i = 0; i < n; i++) {
        d->repeated[pairs[i].item / 8] |= (uint8_t)(1 << pairs[i].item % 8);
    }
}

static void mark_known_item(dedup *d, uint64_t item) {
    d->repeated[item / 8] |= (uint8_t)(1 << item % 8);
}

/* Turns paragraphs per document into paragraphs before each document in its segment. */
static err sum_paragraphs(dedup *d) {
    TRY(read_facts(d, d->paragraph));
    for (int s = 0; s < d->segments; s++) {
        uint32_t before = 0;
        for (uint64_t i = d->first_doc[s]; i < d->first_doc[s + 1]; i++) {
            uint32_t here = d->paragraph[i];
            d->paragraph[i] = before;
            before += here;
        }
    }
    return OK;
}

static err find_paragraphs(dedup *d) {
    void *p = NULL;
    d->repeated_bytes = (size_t)d->summary.paragraphs / 8 + 1;
    TRY(mem_map(d->repeated_bytes, &p));
    d->repeated = p;
    d->paragraph_bytes = (size_t)d->summary.documents * sizeof *d->paragraph;
    TRY(mem_map(d->paragraph_bytes, &p));
    d->paragraph = p;
    TRY(sum_paragraphs(d));
    group_job job = group_job_of(d, SECTION_SAME, mark_repeated);
    TRY(group_run(&job));
    TRY(for_each_known(d, mark_known_item));
    TRY(comm_merge(d->o.pass.comm, d->repeated, d->repeated_bytes));
    for (size_t i = 0; i < d->repeated_bytes; i++)
        d->summary.copies += __builtin_popcount(d->repeated[i]);
    return OK;
}

/* ---- the transform ------------------------------------------------------------------------------- */

static err drop_duplicate(void *ctx, int worker, int segment, const text_doc *doc,
                          text_verdict *v) {
    dedup *d = ctx;
    segment += d->o.pass.first_segment;
    uint64_t number = d->first_doc[segment] + (uint64_t)doc->number;
    if (number >= d->first_doc[segment + 1]) return input_has_changed(d->in, segment);
    uint32_t kept = d->cluster.parent[number];
    bool earlier = kept < d->first_doc[d->o.pass.first_segment] ||
                   (d->known && d->known[kept / 8] >> kept % 8 & 1);
    if (kept == number && !earlier) return OK;
    bool same = !d->same.parent || d->same.parent[number] == d->same.parent[kept];
    v->rule = earlier ? RULE_EARLIER : same ? 0 : 1;
    v->value = kept; /* the number of the document that is kept */
    return OK;
}

static bool item_repeats(const dedup *d, uint64_t item) {
    return d->repeated[item / 8] >> item % 8 & 1;
}

/* Decides about a paragraph by its items, from number `item` on. */
static bool paragraph_repeats(const dedup *d, uint64_t item, paragraph_items of) {
    int seen = 0;
    if (of.n == 0) return false;
    if (of.whole) return item_repeats(d, item + (uint64_t)of.n - 1);
    for (int i = 0; i < of.n; i++) seen += item_repeats(d, item + (uint64_t)i);
    return seen >= d->o.overlap * of.n;
}

/* Appends the paragraphs that are kept. @param item the number of the first one that was
 * compared. @return how many were compared. */
static uint64_t remove_paragraphs(dedup *d, int worker, const text_doc *doc, uint64_t item,
                                  str *out, int64_t *removed) {
    paragraph_rule rule = { d->o.paragraph_words, d->o.paragraph_ngram, d->o.stride };
    uint64_list *keys = &d->workers[worker].keys;
    uint64_t first = item;
    size_t at = 0, begin = 0;
    bool last = false; /* the last paragraph was removed */
    paragraph p;
    for (; paragraph_next(doc->text, d->o.lines, &at, &p); begin = p.end) {
        keys->n = 0;
        paragraph_items of = paragraph_keys(d->words, p.text, &rule, keys);
        if (item + (uint64_t)of.n > d->first_item[d->segments]) break; /* the input has changed */
        last = paragraph_repeats(d, item, of);
        item += (uint64_t)of.n;
        if (last)
            ++*removed;
        else
            str_add_bytes(out, doc->text.at + begin, p.end - begin);
    }
    while (last && out->len && strchr(" \t\r\n", out->text[out->len - 1])) out->len--;
    return item - first;
}

static err judge_paragraphs(void *ctx, int worker, int segment, const text_doc *doc,
                            text_verdict *v) {
    dedup *d = ctx;
    segment += d->o.pass.first_segment;
    uint64_t number = d->first_doc[segment] + (uint64_t)doc->number;
    if (number >= d->first_doc[segment + 1]) return input_has_changed(d->in, segment);
    uint64_t item = d->first_item[segment] + d->paragraph[number];
    uint64_t end = number + 1 < d->first_doc[segment + 1]
                       ? d->first_item[segment] + d->paragraph[number + 1]
                       : d->first_item[segment + 1];
    bool any = false;
    for (uint64_t i = item; i < end && !any; i++) any = item_repeats(d, i);
    if (!any) return OK;
    str *out = &d->workers[worker].text;
    int64_t removed = 0;
    out->len = 0;
    if (remove_paragraphs(d, worker, doc, item, out, &removed) != end - item)
        return input_has_changed(d->in, segment);
    v->count[0] += removed;
    v->count[1] += (int64_t)(doc->text.len - out->len);
    v->text = (text_span){ out->text, out->len };
    if (span_trim(v->text).len > 0) return OK;
    v->rule = 0;
    v->value = (double)removed;
    return OK;
}

text_transform dedup_transform(dedup *d) {
    double choice[] = { (int)d->settings, d->o.keep,
                        d->o.method == DEDUP_PARAGRAPH ? d->o.overlap : 0,
                        d->o.pass.first_segment };
    text_transform s = { .name = "dedup",
                         .hash = hash_bytes(choice, sizeof choice, d->settings),
                         .ctx = d,
                         .rules = document_rules,
                         .n_rules = d->index || d->o.pass.first_segment ? RULE_EARLIER + 1
                                    : d->o.method == DEDUP_NEAR         ? 2
                                                                        : 1,
                         .judge = drop_duplicate };
    if (d->o.method != DEDUP_PARAGRAPH) return s;
    s.rules = paragraph_rules;
    s.n_rules = (int)COUNT_OF(paragraph_rules);
    s.counters = paragraph_counters;
    s.n_counters = (int)COUNT_OF(paragraph_counters);
    s.judge = judge_paragraphs;
    return s;
}

/* ---- the run --------------------------------------------------------------------------------- */

/* Hashes what the keys of a text depend on. */
static uint64_t key_settings(const dedup_options *o) {
    bool near = o->method == DEDUP_NEAR, paragraphs = o->method == DEDUP_PARAGRAPH;
    const normalization *w = &o->words;
    int rules =
        w->keep_case | w->keep_accents << 1 | w->keep_punctuation << 2 | w->zero_digits << 3;
    int64_t facts[] = { SPILL_FORMAT,
                        o->method,
                        near ? o->ngram : 0,
                        near ? o->bands : 0,
                        near ? o->rows : 0,
                        paragraphs && o->lines,
                        paragraphs ? o->paragraph_words : 0,
                        paragraphs ? o->paragraph_ngram : 0,
                        paragraphs ? o->stride : 0,
                        near || paragraphs ? rules : 0 };
    return hash_bytes(facts, sizeof facts, 0);
}

static dedup *dedup_new(const dedup_options *o, text_inputs *in) {
    dedup *d = mem_alloc(sizeof *d);
    d->o = *o;
    d->in = in;
    d->segments = text_segments(in);
    d->reading = split_job_new(&o->pass, in);
    d->first_doc = mem_alloc(((size_t)d->segments + 1) * sizeof *d->first_doc);
    d->first_item = mem_alloc(((size_t)d->segments + 1) * sizeof *d->first_item);
    d->split_item = mem_alloc((size_t)d->reading.splits.n * sizeof *d->split_item + 1);
    d->workers = mem_alloc((size_t)o->pass.threads * sizeof *d->workers);
    if (o->method == DEDUP_NEAR) d->hashes = minhash_new(o->ngram, o->bands, o->rows, o->words);
    if (o->method == DEDUP_PARAGRAPH) d->words = normalizer_new(o->words);
    return d;
}

/* Adds the keys of one partition of one spill file. Near-duplicates are found by their bands. */
static err add_partition_keys(const spill *from, int section, key_filter *f) {
    spill_reader r;
    uint64_t n = spill_bytes(from, section) / GROUP_RECORD_BYTES;
    TRY(spill_reader_open(from, section, &r));
    err e = OK;
    for (; n > 0 && !e; n--) {
        char record[GROUP_RECORD_BYTES];
        uint64_t key;
        e = spill_read(&r, record, sizeof record);
        memcpy(&key, record, sizeof key);
        if (!e) key_filter_add(f, key);
    }
    spill_reader_close(&r);
    return e;
}

static err fill_filter(dedup *d, key_filter *f) {
    int section = d->o.method == DEDUP_NEAR ? SECTION_NEAR : SECTION_SAME;
    size_t bytes = 0;
    for (int i = 0; i < d->reading.splits.n; i++)
        for (int k = 0; k < GROUP_PARTITIONS && d->reading.spills[i]; k++)
            TRY(add_partition_keys(d->reading.spills[i], section + k, f));
    void *bits = key_filter_bits(f, &bytes);
    return comm_merge(d->o.pass.comm, bits, bytes);
}

/* Writes the index of all keys; adds to it the one that was read. */
static err dedup_write_index(dedup *d) {
    uint64_t keys =
        d->first_item[d->segments] * (d->o.method == DEDUP_NEAR ? (uint64_t)d->o.bands : 1);
    size_t need = key_filter_bytes(keys, d->o.index_error);
    char cap[32], needed[32];
    key_filter *f = NULL;
    if (need > dedup_memory_left(d))
        return err_hint(ERR_USAGE("--memory: the index needs %s, but %s are left for tables",
                                  str_bytes(needed, sizeof needed, (double)need),
                                  str_bytes(cap, sizeof cap, (double)dedup_memory_left(d))),
                        "raise --memory or --index-error; the next run reuses %s", d->o.pass.work);
    TRY(key_filter_new(keys, d->o.index_error, key_settings(&d->o), &f));
    err e = fill_filter(d, f);
    bool first = comm_rank(d->o.pass.comm) == 0;
    if (!e)
        e = comm_agree(d->o.pass.comm, first ? key_filter_write(f, d->index, d->o.save_index) : OK);
    key_filter_free(f);
    return e;
}

/* Names of documents are in the spill files of all ranks. */
static err write_dedup_report(void *ctx) {
    dedup *d = ctx;
    TRY(split_job_open_others(&d->reading));
    return dedup_report_write(d);
}

err dedup_find_copies(const dedup_options *o, text_inputs *in, dedup **out) {
    *out = NULL;
    BUG_IF(o->pass.threads < 1 || !o->pass.work ||
           (o->pass.report && o->method == DEDUP_PARAGRAPH));
    dedup *d = dedup_new(o, in);
    err e = OK;
    if (o->index) TRY_CLEAN(key_index_open(o->index, key_settings(o), &d->index));
    uint64_t facts[] = { key_settings(o), o->pass.report != NULL,
                         d->index ? key_index_hash(d->index) : 0 };
    d->settings = hash_bytes(facts, sizeof facts, text_inputs_hash(in));
    d->reading.reading = "dedup, first pass";
    d->reading.transform = dedup_transform(d);
    d->reading.sections = SECTION_COUNT;
    d->reading.shares_spills = o->pass.report != NULL;
    d->reading.settings = d->settings;
    d->reading.ctx = d;
    d->reading.make = dedup_read;
    TRY_CLEAN(split_job_run(&d->reading));
    TRY_CLEAN(read_sizes(d));
    TRY_CLEAN(check_cluster_memory(d));
    TRY_CLEAN(o->method == DEDUP_PARAGRAPH ? find_paragraphs(d) : find_clusters(d));
    if (o->save_index) TRY_CLEAN(dedup_write_index(d));
    if (o->pass.report) TRY_CLEAN(run_on_first_rank(o->pass.comm, write_dedup_report, d));
    *out = d;
    d = NULL;
cleanup:
    dedup_free(d);
    return e;
}

const dedup_summary *dedup_get_summary(const dedup *d) { return &d->summary; }

err dedup_finish(dedup *d) { return split_job_finish(&d->reading); }

void dedup_free(dedup *d) {
    if (!d) return;
    disjoint_sets_free(&d->cluster);
    disjoint_sets_free(&d->same);
    mem_unmap(d->repeated, d->repeated_bytes);
    mem_unmap(d->paragraph, d->paragraph_bytes);
    split_job_free(&d->reading);
    for (int i = 0; i < d->o.pass.threads; i++) {
        str_free(&d->workers[i].text);
        free(d->workers[i].keys.at);
    }
    key_index_close(d->index);
    free(d->known);
    minhash_free(d->hashes);
    normalizer_free(d->words);
    free(d->workers);
    free(d->split_item);
    free(d->first_item);
    free(d->first_doc);
    free(d);
}
