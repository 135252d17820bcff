/* Decontamination in two passes over the documents.
 *
 *     1  find which documents contain which n-grams of the references -> one spill file per split
 *        count documents per n-gram: those in more than `common` documents are ignored
 *        write the report, warn about references without a match
 *     2  the transform: search again, and remove the matches that are not common
 *
 * Pass 1 keeps hits on disk, so memory is bounded by the references (decontaminate_refs.c) and not
 * by the documents. Searching twice is cheaper than keeping positions: most documents have no hit,
 * and the filter in front of the table answers those with one lookup per word. A killed run
 * resumes from the spill files of pass 1 and from the parts of pass 2. */
#include "comm/comm.h"
#include "curate/decontaminate_internal.h"

#include <stdlib.h>

enum { SPILL_FORMAT = 3 }; /* version of the spill files, part of their settings */

enum { RULE_CONTAMINATED, RULE_PIECES };
static const char *const rules[] = { "contaminated", "too many pieces" };
enum { COUNT_REMOVALS, COUNT_BYTES, COUNT_SHORT };
static const char *const counters[] = { "spans removed", "bytes removed", "pieces too short" };

decontaminate_options decontaminate_defaults(void) {
    return (decontaminate_options){ .ngram = 13,
                                    .shortest = 8,
                                    .sentence = 3,
                                    .common = 10,
                                    .margin = 200,
                                    .piece = 200,
                                    .pieces = 10,
                                    .pass.memory = (size_t)1 << 30 };
}

/* ---- pass 1: hits into spill files ----------------------------------------------------------- */

typedef struct hits_of_block {
    str bytes; /* records as they are written to the section */
    uint64_t documents;
} hits_of_block;

typedef struct hit_reader {
    decontaminate *d;
    spill_writer *out;
    text_progress *progress;
    segment_counts counts; /* of the segment; items: documents with hits */
} hit_reader;

static void add_hit_record(const text_doc *doc, const ref_hits *hits, str *out) {
    hit_record head = { (uint64_t)doc->number, (uint32_t)hits->n, 0 };
    size_t at = out->len;
    str_add_bytes(out, &head, sizeof head);
    add_document_names(doc, out);
    head.names = (uint32_t)(out->len - at - sizeof head);
    memcpy(out->text + at, &head, sizeof head);
    str_add_bytes(out, hits->at, (size_t)hits->n * sizeof *hits->at);
}

static err find_block_hits(void *ctx, int worker, const text_block *b, void *result) {
    decontaminate *d = ((hit_reader *)ctx)->d;
    hits_of_block *to = result;
    ref_hits *hits = &d->workers[worker].hits;
    for (int i = 0; i < b->n; i++) {
        hits->n = 0;
        refs_find_in_text(d->refs, b->docs[i].text, hits);
        if (!hits->n) continue;
        add_hit_record(&b->docs[i], hits, &to->bytes);
        to->documents++;
    }
    return OK;
}

static void free_block_hits(void *result) { str_free(&((hits_of_block *)result)->bytes); }

static err write_block_hits(void *ctx, const text_block *b, void *result) {
    hit_reader *r = ctx;
    hits_of_block *from = result;
    r->counts.documents += (uint64_t)b->n;
    r->counts.items += from->documents;
    err e = spill_write(r->out, SECTION_HITS, from->bytes.text, from->bytes.len);
    free_block_hits(result);
    return e ? e : text_progress_add(r->progress, b->raw_bytes);
}

static err find_split_hits(void *ctx, int split, spill_writer *out, text_progress *p) {
    decontaminate *d = ctx;
    hit_reader r = { .d = d, .out = out, .progress = p };
    text_pipeline flow = { &r, sizeof(hits_of_block), find_block_hits, write_block_hits,
                           free_block_hits };
    return split_job_read(&d->reading, split, &flow, &r.counts, SECTION_DOCUMENTS, out);
}

/* ---- reading hits back ----------------------------------------------------------------------- */

static err read_hit_document(const decontaminate *d, spill_reader *r, uint64_t first,
                             hit_document *doc) {
    hit_record head;
    TRY(spill_read(r, &head, sizeof head));
    doc->number = first + head.number;
    doc->hits.n = 0;
    TRY(spill_read_str(r, head.names, &doc->names));
    for (uint32_t i = 0; i < head.hits; i++) {
        ref_hit *h = &LIST_ADD(doc->hits.at, doc->hits.n, doc->hits.cap);
        TRY(spill_read(r, h, sizeof *h));
        if (h->gram >= (uint32_t)d->refs->n_grams)
            return ERR("a spill file in %s names n-gram %u of %d", d->o.pass.work, h->gram,
                       d->refs->n_grams);
    }
    return OK;
}

static err for_each_of_split(const decontaminate *d, int split, hit_document *doc,
                             err (*fn)(void *, const hit_document *), void *ctx) {
    spill_reader hits = { 0 }, counts = { 0 };
    err e = OK;
    TRY_CLEAN(spill_reader_open(d->reading.spills[split], SECTION_HITS, &hits));
    TRY_CLEAN(spill_reader_open(d->reading.spills[split], SECTION_DOCUMENTS, &counts));
    for (int s = d->reading.splits.first[split]; s < d->reading.splits.first[split + 1]; s++) {
        uint64_t both[2];
        TRY_CLEAN(spill_read(&counts, both, sizeof both));
        doc->segment = s;
        for (uint64_t i = 0; i < both[1]; i++) {
            TRY_CLEAN(read_hit_document(d, &hits, d->first_doc[s], doc));
            TRY_CLEAN(fn(ctx, doc));
        }
    }
cleanup:
    spill_reader_close(&hits);
    spill_reader_close(&counts);
    return e;
}

err decontaminate_for_each(const decontaminate *d, err (*fn)(void *ctx, const hit_document *doc),
                           void *ctx) {
    hit_document doc = { 0 };
    err e = OK;
    for (int i = 0; i < d->reading.splits.n && !e; i++)
        if (d->reading.spills[i]) e = for_each_of_split(d, i, &doc, fn, ctx);
    str_free(&doc.names);
    free(doc.hits.at);
    return e;
}

/* ---- common n-grams -------------------------------------------------------------------------- */

SORT_ORDER(by_gram, ref_hit, RISING(gram));

/* Each n-gram of a document once. */
static err count_grams(void *ctx, const hit_document *doc) {
    decontaminate *d = ctx;
    ref_hit *hits = doc->hits.at;
    sort_array(hits, (size_t)doc->hits.n, sizeof *hits, by_gram);
    for (int i = 0; i < doc->hits.n; i++)
        if (i == 0 || hits[i].gram != hits[i - 1].gram) d->refs->grams[hits[i].gram].documents++;
    return OK;
}

/* Counts what will be removed and what ignored. */
static err count_hit_document(void *ctx, const hit_document *doc) {
    decontaminate *d = ctx;
    hit_judge *j = &d->workers[0].judge;
    const ref_hit *hits = doc->hits.at;
    bool removed = false, ignored = false;
    decontaminate_judge_hits(d, &doc->hits, j);
    for (int i = 0; i < doc->hits.n; i++) {
        removed |= !j->ignored[i];
        ignored |= j->ignored[i];
        if (!j->ignored[i]) d->refs->grams[hits[i].gram].removed++;
    }
    d->summary.documents += removed;
    d->summary.ignored += ignored;
    return OK;
}

/* Adds up what the ranks have counted: documents of n-grams, or those from which they are removed. */
static err total_grams(decontaminate *d, bool removed) {
    enum { CHUNK = 4096 };
    ref_ngram *grams = d->refs->grams;
    double counts[CHUNK];
    for (int at = 0; at < d->refs->n_grams; at += CHUNK) {
        int n = MIN((int)CHUNK, d->refs->n_grams - at);
        for (int i = 0; i < n; i++)
            counts[i] = removed ? grams[at + i].removed : grams[at + i].documents;
        TRY(comm_total(d->o.pass.comm, counts, n));
        for (int i = 0; i < n; i++)
            *(removed ? &grams[at + i].removed : &grams[at + i].documents) =
                (uint32_t)MIN(counts[i], UINT32_MAX);
    }
    return OK;
}

/* An n-gram that occurs in several reference files counts for each of them. */
static void count_found(decontaminate *d) {
    refs *r = d->refs;
    for (int i = 0; i < r->n_grams; i++) {
        if (!r->grams[i].documents) continue;
        bool common = r->grams[i].removed == 0;
        *(common ? &d->summary.common : &d->summary.found) += 1;
        for (uint32_t at = (uint32_t)i + 1; at; at = r->grams[at - 1].next) {
            ref_file *f = &r->files[r->texts[r->grams[at - 1].text].file];
            *(common ? &f->common : &f->found) += 1;
        }
    }
}

static void warn_unsearched(decontaminate *d) {
    for (int i = 0; i < d->refs->n_files; i++) {
        const ref_file *f = &d->refs->files[i];
        d->summary.unsearched += f->unsearched;
        if (f->unsearched && comm_rank(d->o.pass.comm) == 0)
            log_warn(
                "%s: %lld of its %lld texts have fewer than %d words and are not searched for; %s",
                f->path, (long long)f->unsearched, (long long)(f->unsearched + f->texts),
                d->refs->sentence ? d->refs->sentence : d->refs->shortest,
                "--fields chooses the members that matter, --sentence a lower limit");
    }
}

static void warn_silent(decontaminate *d) {
    for (int i = 0; i < d->refs->n_files; i++) {
        const ref_file *f = &d->refs->files[i];
        if (f->found) continue;
        d->summary.silent++;
        if (f->common)
            log_warn("%s: all %lld n-grams found are in more than %d documents and are ignored; "
                     "raise --common to remove them",
                     f->path, (long long)f->common, d->o.common);
        else
            log_warn("%s: none of its %lld texts was found; check that it is the right file",
                     f->path, (long long)f->texts);
    }
}

/* ---- the transform ------------------------------------------------------------------------------- */

/* @return the position `count` characters before (step_back) or after (step_forward) a byte. */
static size_t step_back(text_span text, size_t at, int count) {
    for (; count > 0 && at > 0; count--)
        for (at--; at > 0 && ((unsigned char)text.at[at] & 0xC0) == 0x80; at--) {
        }
    return at;
}

static size_t step_forward(text_span text, size_t at, int count) {
    for (; count > 0 && at < text.len; count--)
        for (at++; at < text.len && ((unsigned char)text.at[at] & 0xC0) == 0x80; at++) {
        }
    return at;
}

/* Merges hits and their margins into disjoint removals. Hits are ordered by their ends, but a
 * long one may begin before several short ones. */
static int find_removals(const decontaminate *d, text_span text, decontaminate_worker *w) {
    int n = 0;
    decontaminate_judge_hits(d, &w->hits, &w->judge);
    for (int i = 0; i < w->hits.n; i++) {
        const ref_hit *h = &w->hits.at[i];
        if (w->judge.ignored[i]) continue;
        size_t begin = step_back(text, h->begin, d->o.margin);
        size_t end = step_forward(text, h->end, d->o.margin);
        for (; n > 0 && w->removals[n - 1].end >= begin; n--)
            begin = MIN(begin, w->removals[n - 1].begin);
        LIST_ADD(w->removals, n, w->removals_cap) = (removal){ begin, end };
    }
    return n;
}

static err remove_hits(void *ctx, int worker, int segment, const text_doc *doc, text_verdict *v) {
    decontaminate *d = ctx;
    decontaminate_worker *w = &d->workers[worker];
    w->hits.n = 0;
    refs_find_in_text(d->refs, doc->text, &w->hits);
    int n = w->hits.n ? find_removals(d, doc->text, w) : 0;
    if (n == 0) return OK;
    int pieces = 0;
    w->text.len = 0;
    for (int i = 0; i <= n; i++) {
        size_t begin = i ? w->removals[i - 1].end : 0,
               end = i < n ? w->removals[i].begin : doc->text.len;
        if (begin == end) continue;
        pieces++;
        text_span piece = { doc->text.at + begin, end - begin };
        if (span_trim(piece).len == 0 || utf8_length(piece.at, piece.len) < d->o.piece) {
            v->count[COUNT_SHORT]++;
            continue;
        }
        if (w->text.len) str_add_bytes(&w->text, "\n\n", 2);
        str_add_bytes(&w->text, piece.at, piece.len);
    }
    v->count[COUNT_REMOVALS] += n;
    if (pieces > d->o.pieces) {
        v->rule = RULE_PIECES;
        v->value = pieces;
    } else if (w->text.len == 0) {
        v->rule = RULE_CONTAMINATED;
        v->value = n;
    } else {
        v->count[COUNT_BYTES] += (int64_t)doc->text.len - (int64_t)w->text.len;
        v->text = (text_span){ w->text.text, w->text.len };
    }
    return OK;
}

text_transform decontaminate_transform(decontaminate *d) {
    int facts[] = { d->o.common, d->o.margin, d->o.piece, d->o.pieces };
    return (text_transform){ .name = "decontaminate",
                             .rules = rules,
                             .n_rules = (int)COUNT_OF(rules),
                             .counters = counters,
                             .n_counters = (int)COUNT_OF(counters),
                             .hash = hash_bytes(facts, sizeof facts, d->settings),
                             .ctx = d,
                             .judge = remove_hits };
}

/* ---- the run --------------------------------------------------------------------------------- */

static decontaminate *new_run(const decontaminate_options *o, text_inputs *in, refs *r) {
    decontaminate *d = mem_alloc(sizeof *d);
    uint64_t facts[] = { SPILL_FORMAT,
                         (uint64_t)o->ngram,
                         (uint64_t)o->shortest,
                         (uint64_t)o->sentence,
                         r->hash,
                         o->fields ? hash_str(o->fields) : 0 };
    d->o = *o;
    d->in = in;
    d->refs = r;
    d->settings = hash_bytes(facts, sizeof facts, text_inputs_hash(in));
    d->segments = text_segments(in);
    d->reading = split_job_new(&o->pass, in);
    d->first_doc = mem_alloc(((size_t)d->segments + 1) * sizeof *d->first_doc);
    d->workers = mem_alloc((size_t)o->pass.threads * sizeof *d->workers);
    d->summary.references = r->n_files;
    d->summary.grams = r->n_distinct;
    return d;
}

/* Matches are listed in the order of all documents. */
static err write_decontaminate_report(void *ctx) {
    decontaminate *d = ctx;
    TRY(split_job_open_others(&d->reading));
    return decontaminate_report_write(d);
}

static err count_matches(decontaminate *d) {
    TRY(split_job_number(&d->reading, SECTION_DOCUMENTS, d->first_doc, NULL));
    TRY(decontaminate_for_each(d, count_grams, d));
    TRY(total_grams(d, false));
    TRY(decontaminate_for_each(d, count_hit_document, d));
    TRY(total_grams(d, true));
    double n[] = { (double)d->summary.documents, (double)d->summary.ignored };
    TRY(comm_total(d->o.pass.comm, n, 2));
    d->summary.documents = (int64_t)n[0];
    d->summary.ignored = (int64_t)n[1];
    count_found(d);
    warn_unsearched(d);
    if (d->summary.ignored && comm_rank(d->o.pass.comm) == 0)
        log_warn(
            "%lld documents keep n-grams of the references that are in more than %d documents, "
            "without half of a reference text beside them; --report lists them, --common 0 "
            "removes them",
            (long long)d->summary.ignored, d->o.common);
    warn_silent(d);
    return OK;
}

err decontaminate_find_matches(const decontaminate_options *o, text_inputs *in,
                               decontaminate **out) {
    *out = NULL;
    BUG_IF(o->pass.threads < 1 || !o->pass.work || o->shortest < 1 || o->shortest > o->ngram);
    refs *r = NULL;
    TRY(refs_read(o->against, o->fields, (ref_lengths){ o->ngram, o->shortest, o->sentence },
                  o->pass.memory, &r));
    decontaminate *d = new_run(o, in, r);
    d->reading.reading = "decontaminate, first pass";
    d->reading.transform = decontaminate_transform(d);
    d->reading.sections = DECONTAMINATE_SECTIONS;
    d->reading.shares_spills = o->pass.report != NULL;
    d->reading.settings = d->settings;
    d->reading.ctx = d;
    d->reading.make = find_split_hits;
    err e = OK;
    TRY_CLEAN(split_job_run(&d->reading));
    TRY_CLEAN(count_matches(d));
    if (o->pass.report) TRY_CLEAN(run_on_first_rank(o->pass.comm, write_decontaminate_report, d));
    *out = d;
    d = NULL;
cleanup:
    decontaminate_free(d);
    return e;
}

const decontaminate_summary *decontaminate_get_summary(const decontaminate *d) {
    return &d->summary;
}

err decontaminate_finish(decontaminate *d) { return split_job_finish(&d->reading); }

void decontaminate_free(decontaminate *d) {
    if (!d) return;
    split_job_free(&d->reading);
    free(d->first_doc);
    for (int i = 0; i < d->o.pass.threads; i++) {
        free(d->workers[i].hits.at);
        free(d->workers[i].removals);
        hit_judge_free(&d->workers[i].judge);
        str_free(&d->workers[i].text);
    }
    refs_free(d->refs);
    free(d->workers);
    free(d);
}
