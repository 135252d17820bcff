/* Removal of repeated substrings, as Lee et al. 2022 ("Deduplicating Training Data Makes Language Models Better"):
 * every window of `length` symbols that occurs elsewhere, in another document or in the same one, is removed.
 *
 * Their program sorts all suffixes of the corpus, which takes several times its size. The windows that repeat are the
 * same without that:
 *
 *     1  anchors: each window has one, and equal windows have equal ones (window_scan.c). About 4% of the positions are
 *        anchors; their hashes go to spill files and are grouped. A window whose anchor occurs once occurs once
 *     2  windows whose anchors repeat are candidates: their hashes are grouped in the same way
 *     3  the transform: the text is read again, and the union of the windows that repeat is removed
 *
 * A window is identified by 64 bits, so that one in 10^9 of 10^10 candidates is taken for another. In memory are a bit
 * for each anchor and candidate and 8 bytes for each document. Numbering, ranks and resuming are as in dedup.c. */
#include "comm/comm.h"
#include "curate/substring_internal.h"
#include "tokenizer/tokenizer.h"

#include <stdlib.h>

enum { SUBSTRING_VERSION = 1, LEAST_TABLES = 4 << 20 };
enum {
    SECTION_KEYS = 0, /* (hash, item) of anchors, or of candidates */
    SECTION_PER_DOC = SECTION_KEYS + GROUP_PARTITIONS, /* u32: items of each document */
    SECTION_PER_SEGMENT,                               /* 2 x u64: documents, items */
    SUBSTRING_SECTIONS
};
enum { PHASE_ANCHORS, PHASE_WINDOWS, PHASES };

static const char *const substring_rules[] = { "duplicate-substrings" };
static const char *const substring_counters[] = { "substrings removed", "bytes removed" };
static const char *const phase_files[PHASES] = { "dedup-anchors", "dedup-windows" };
static const char *const phase_reading[PHASES] = { "dedup, anchors", "dedup, windows" };

typedef struct substring_worker {
    window_scan *scan;
    encoder *encoder;
    token_ids ids;
    str text;
} substring_worker;

/* Findings of a phase: which of its items, numbered in input order, repeat. */
typedef struct substring_phase {
    split_job reading;
    uint64_t *first_doc, *first_item; /* [segments + 1] */
    uint64_t *split_item;             /* [splits] */
    uint32_t *before;                 /* [documents] items before the document in its segment */
    uint8_t *repeated;                /* a bit for each item */
    size_t before_bytes, repeated_bytes;
} substring_phase;

struct substring {
    substring_options o;
    text_inputs *in;
    int segments;
    uint64_t settings;
    uint32_t *token_bytes; /* [vocabulary] bytes of each token; NULL: symbols are bytes */
    substring_worker *workers;
    substring_phase phase[PHASES];
    substring_summary summary;
};

static bool bit_of(const uint8_t *bits, uint64_t i) { return bits[i / 8] >> i % 8 & 1; }
static void mark_item(uint8_t *bits, uint64_t i) { bits[i / 8] |= (uint8_t)(1 << i % 8); }

/* ---- symbols --------------------------------------------------------------------------------- */
/* Begins the scan of a document, whose every byte must belong to a token. */
static err begin_document(const substring *s, int worker, const text_doc *d) {
    substring_worker *w = &s->workers[worker];
    if (!s->token_bytes) {
        window_scan_begin(w->scan, (const uint8_t *)d->text.at, NULL, d->text.len);
        return OK;
    }
    size_t bytes = 0;
    w->ids.n = 0;
    encoder_add(w->encoder, d->text.at, d->text.len, false, &w->ids);
    for (size_t i = 0; i < w->ids.n; i++) bytes += s->token_bytes[w->ids.at[i]];
    if (bytes != d->text.len)
        return err_hint(
            ERR("dedup: the tokens of a document have %zu bytes, its text %zu", bytes, d->text.len),
            "pass a byte-level tokenizer, which changes no text, or none, to count repeats "
            "in bytes");
    window_scan_begin(w->scan, NULL, w->ids.at, w->ids.n);
    return OK;
}

static void read_token_lengths(substring *s, const tokenizer *t) {
    int64_t n = tokenizer_vocab(t);
    str text = { 0 };
    s->token_bytes = mem_alloc((size_t)n * sizeof *s->token_bytes);
    for (int32_t i = 0; i < n; i++) {
        text.len = 0;
        tokenizer_decode(t, &i, 1, true, &text);
        s->token_bytes[i] = (uint32_t)text.len;
    }
    str_free(&text);
}

/* ---- the items of a document ----------------------------------------------------------------- */
typedef struct block_items {
    uint64_t *keys;
    uint32_t *items; /* of the document */
    int n, keys_cap, items_cap;
    uint32_t *per_doc; /* [documents] items */
    int *end;          /* [documents] of its keys */
} block_items;

typedef struct item_reader {
    substring *s;
    int phase;
    spill_writer *out;
    text_progress *progress;
    uint64_t items;        /* of the split */
    segment_counts counts; /* of the segment */
} item_reader;

static void add_item_key(block_items *b, uint64_t key, uint32_t item) {
    b->keys = mem_reserve(b->keys, &b->keys_cap, b->n, sizeof *b->keys);
    b->items = mem_reserve(b->items, &b->items_cap, b->n, sizeof *b->items);
    b->keys[b->n] = key;
    b->items[b->n++] = item;
}

/* A tied anchor counts twice: that makes it one that repeats. */
static uint32_t find_anchors(window_scan *scan, block_items *b) {
    uint32_t n = 0;
    bool doubled = false;
    scanned_window w;
    while (window_scan_next(scan, &w)) {
        if (w.is_new) add_item_key(b, w.anchor, n++);
        doubled &= !w.is_new;
        if (w.tied && !doubled) add_item_key(b, w.anchor, n - 1);
        doubled |= w.tied;
    }
    return n;
}

/* Finds the next window whose anchor repeats. @param anchor the number of the next anchor of the document, 0 at first. */
static bool next_compared_window(window_scan *scan, const uint8_t *repeated, uint64_t *anchor,
                                 scanned_window *w) {
    while (window_scan_next(scan, w)) {
        *anchor += w->is_new;
        if (bit_of(repeated, *anchor - 1)) return true;
    }
    return false;
}

static uint64_t first_item_of(const substring *s, int phase, int segment, const text_doc *d) {
    const substring_phase *p = &s->phase[phase];
    return p->first_item[segment] + p->before[p->first_doc[segment] + (uint64_t)d->number];
}

static err find_items(void *ctx, int worker, const text_block *b, void *result) {
    const item_reader *r = ctx;
    const substring *s = r->s;
    block_items *out = result;
    out->per_doc = mem_alloc((size_t)b->n * sizeof *out->per_doc + 1);
    out->end = mem_alloc((size_t)b->n * sizeof *out->end + 1);
    for (int i = 0; i < b->n; i++) {
        window_scan *scan = s->workers[worker].scan;
        TRY(begin_document(s, worker, &b->docs[i]));
        if (r->phase == PHASE_ANCHORS) {
            out->per_doc[i] = find_anchors(scan, out);
        } else {
            const substring_phase *p = &s->phase[PHASE_ANCHORS];
            scanned_window w;
            if (p->first_doc[b->segment] + (uint64_t)b->docs[i].number >=
                p->first_doc[b->segment + 1])
                return input_has_changed(s->in, b->segment);
            uint64_t anchor = first_item_of(s, PHASE_ANCHORS, b->segment, &b->docs[i]);
            while (next_compared_window(scan, p->repeated, &anchor, &w))
                add_item_key(out, w.hash, out->per_doc[i]++);
        }
        out->end[i] = out->n;
    }
    return OK;
}

static void free_items(void *result) {
    block_items *b = result;
    free(b->keys);
    free(b->items);
    free(b->per_doc);
    free(b->end);
}

static err put_items(item_reader *r, const text_block *b, const block_items *k) {
    for (int i = 0, at = 0; i < b->n; i++) {
        if (r->items + k->per_doc[i] > UINT32_MAX)
            return err_hint(ERR("dedup: more than 2^32 windows to compare in one input file"),
                            "split the input into more files");
        for (; at < k->end[i]; at++)
            TRY(group_write(r->out, SECTION_KEYS, k->keys[at],
                            (uint32_t)(r->items + k->items[at])));
        TRY(spill_write(r->out, SECTION_PER_DOC, &k->per_doc[i], sizeof k->per_doc[i]));
        r->items += k->per_doc[i];
        r->counts.items += k->per_doc[i];
        r->counts.documents++;
    }
    return OK;
}

static err write_items(void *ctx, const text_block *b, void *result) {
    item_reader *r = ctx;
    err e = put_items(r, b, result);
    free_items(result);
    return e ? e : text_progress_add(r->progress, b->raw_bytes);
}

static err read_phase(substring *s, int phase, int split, spill_writer *out, text_progress *p) {
    item_reader r = { .s = s, .phase = phase, .out = out, .progress = p };
    text_pipeline flow = { &r, sizeof(block_items), find_items, write_items, free_items };
    return split_job_read(&s->phase[phase].reading, split, &flow, &r.counts, SECTION_PER_SEGMENT,
                          out);
}

static err read_anchors(void *s, int split, spill_writer *out, text_progress *p) {
    return read_phase(s, PHASE_ANCHORS, split, out, p);
}

static err read_windows(void *s, int split, spill_writer *out, text_progress *p) {
    return read_phase(s, PHASE_WINDOWS, split, out, p);
}

/* ---- a phase --------------------------------------------------------------------------------- */
static err read_items_before(substring *s, substring_phase *p) {
    uint64_t docs = p->first_doc[s->segments];
    for (int i = 0; i < p->reading.splits.n; i++) {
        spill_reader r;
        uint64_t from = p->first_doc[p->reading.splits.first[i]];
        uint64_t to = p->first_doc[p->reading.splits.first[i + 1]];
        if (!p->reading.spills[i]) continue;
        TRY(spill_reader_open(p->reading.spills[i], SECTION_PER_DOC, &r));
        err e = spill_read(&r, p->before + from, (size_t)(to - from) * sizeof *p->before);
        spill_reader_close(&r);
        TRY(e);
    }
    TRY(comm_merge(s->o.pass.comm, p->before, (size_t)docs * sizeof *p->before));
    for (int i = 0; i < s->segments; i++) {
        uint32_t sum = 0;
        for (uint64_t d = p->first_doc[i]; d < p->first_doc[i + 1]; d++) {
            uint32_t here = p->before[d];
            p->before[d] = sum;
            sum += here;
        }
    }
    return OK;
}

static err check_substring_memory(const substring *s, uint64_t need) {
    char cap[32], needed[32];
    if (need + (uint64_t)s->o.pass.threads * LEAST_TABLES <= s->o.pass.memory) return OK;
    return err_hint(
        ERR_USAGE("--memory: %s for tables is too little: the windows to compare need %s",
                  str_bytes(cap, sizeof cap, (double)s->o.pass.memory),
                  str_bytes(needed, sizeof needed,
                            (double)need + (double)s->o.pass.threads * LEAST_TABLES)),
        "raise --memory; the next run reuses %s", s->o.pass.work);
}

static void mark_items(void *ctx, const group_pair *pairs, int n) {
    const substring *s = ctx;
    bool windows = s->phase[PHASE_WINDOWS].repeated != NULL;
    uint8_t *bits = s->phase[windows ? PHASE_WINDOWS : PHASE_ANCHORS].repeated;
    for (int i = 0; i < n; i++) {
        mark_item(bits, pairs[i].item);
        if (!windows || !s->o.keep_first) mark_item(bits, pairs[i].first);
    }
}

static err run_phase(substring *s, int phase) {
    substring_phase *p = &s->phase[phase];
    void *map = NULL;
    uint64_t held = s->phase[PHASE_ANCHORS].before_bytes + s->phase[PHASE_ANCHORS].repeated_bytes;
    TRY(split_job_run(&p->reading));
    TRY(split_job_number(&p->reading, SECTION_PER_SEGMENT, p->first_doc, p->first_item));
    for (int i = 0; i < p->reading.splits.n; i++)
        p->split_item[i] = p->first_item[p->reading.splits.first[i]];
    p->before_bytes = (size_t)p->first_doc[s->segments] * sizeof *p->before;
    p->repeated_bytes = (size_t)p->first_item[s->segments] / 8 + 1;
    if (phase == PHASE_ANCHORS) held = 0;
    held += p->before_bytes + p->repeated_bytes;
    TRY(check_substring_memory(s, held));
    TRY(mem_map(p->before_bytes + 1, &map));
    p->before = map;
    TRY(read_items_before(s, p));
    TRY(mem_map(p->repeated_bytes, &map));
    p->repeated = map;
    group_job job = { .comm = s->o.pass.comm,
                      .spills = p->reading.spills,
                      .base = p->split_item,
                      .n_spills = p->reading.splits.n,
                      .section = SECTION_KEYS,
                      .threads = s->o.pass.threads,
                      .memory = s->o.pass.memory - (size_t)held,
                      .ctx = s,
                      .same = mark_items };
    TRY(group_run(&job));
    return comm_merge(s->o.pass.comm, p->repeated, p->repeated_bytes);
}

/* ---- the transform ------------------------------------------------------------------------------- */
typedef struct strike {
    substring *s;
    const text_doc *doc;
    str *out;
    size_t copied; /* bytes of the document that are in `out` or removed */
    int64_t removed;
} strike;

static bool inside_character(text_span text, size_t at) {
    return at < text.len && ((uint8_t)text.at[at] & 0xC0) == 0x80;
}

/* Removes a range of bytes, less the characters that are not in it as a whole. */
static void remove_range(strike *r, size_t begin, size_t end) {
    text_span text = r->doc->text;
    while (begin < end && inside_character(text, begin)) begin++;
    while (end > begin && inside_character(text, end)) end--;
    if (begin >= end) return;
    str_add_bytes(r->out, text.at + r->copied, begin - r->copied);
    r->copied = end;
    r->removed++;
}

/* @return the position of a symbol in bytes. @param last a symbol before it and its position; updated. */
static size_t byte_of(const substring *s, const window_scan *scan, size_t symbol, size_t last[2]) {
    if (!s->token_bytes) return symbol;
    for (; last[0] < symbol; last[0]++) last[1] += s->token_bytes[scan->ids[last[0]]];
    return last[1];
}

static void remove_windows(strike *r, window_scan *scan, uint64_t anchor, uint64_t window) {
    const substring *s = r->s;
    size_t begin = 0, end = 0, last[2] = { 0, 0 }; /* symbols of the range that is growing */
    scanned_window w;
    while (next_compared_window(scan, s->phase[PHASE_ANCHORS].repeated, &anchor, &w)) {
        if (!bit_of(s->phase[PHASE_WINDOWS].repeated, window++)) continue;
        if (w.begin > end) {
            if (end > begin) {
                size_t from = byte_of(s, scan, begin, last);
                remove_range(r, from, byte_of(s, scan, end, last));
            }
            begin = w.begin;
        }
        end = w.begin + scan->length;
    }
    if (end == begin) return;
    size_t from = byte_of(s, scan, begin, last);
    remove_range(r, from, byte_of(s, scan, end, last));
}

static err judge_substrings(void *ctx, int worker, int segment, const text_doc *doc,
                            text_verdict *v) {
    substring *s = ctx;
    segment += s->o.pass.first_segment;
    const substring_phase *p = &s->phase[PHASE_WINDOWS];
    uint64_t number = p->first_doc[segment] + (uint64_t)doc->number;
    if (number >= p->first_doc[segment + 1]) return input_has_changed(s->in, segment);
    uint64_t window = first_item_of(s, PHASE_WINDOWS, segment, doc);
    uint64_t end = number + 1 < p->first_doc[segment + 1]
                       ? p->first_item[segment] + p->before[number + 1]
                       : p->first_item[segment + 1];
    bool any = false;
    for (uint64_t i = window; i < end && !any; i++) any = bit_of(p->repeated, i);
    if (!any) return OK;
    substring_worker *w = &s->workers[worker];
    strike r = { .s = s, .doc = doc, .out = &w->text };
    w->text.len = 0;
    TRY(begin_document(s, worker, doc));
    remove_windows(&r, w->scan, first_item_of(s, PHASE_ANCHORS, segment, doc), window);
    str_add_bytes(r.out, doc->text.at + r.copied, doc->text.len - r.copied);
    v->count[0] += r.removed;
    v->count[1] += (int64_t)(doc->text.len - r.out->len);
    v->text = (text_span){ r.out->text, r.out->len };
    if (span_trim(v->text).len > 0) return OK;
    v->rule = 0;
    v->value = (double)r.removed;
    return OK;
}

text_transform substring_transform(substring *s) {
    return (text_transform){ .name = "dedup",
                             .hash =
                                 hash_bytes(&s->o.keep_first, sizeof s->o.keep_first, s->settings),
                             .ctx = s,
                             .rules = substring_rules,
                             .n_rules = (int)COUNT_OF(substring_rules),
                             .counters = substring_counters,
                             .n_counters = (int)COUNT_OF(substring_counters),
                             .judge = judge_substrings };
}

/* ---- the run --------------------------------------------------------------------------------- */
static void init_phase(substring *s, int phase) {
    substring_phase *p = &s->phase[phase];
    p->reading = split_job_new(&s->o.pass, s->in);
    p->first_doc = mem_alloc(((size_t)s->segments + 1) * sizeof *p->first_doc);
    p->first_item = mem_alloc(((size_t)s->segments + 1) * sizeof *p->first_item);
    p->split_item = mem_alloc((size_t)p->reading.splits.n * sizeof *p->split_item + 1);
    p->reading.reading = phase_reading[phase];
    p->reading.transform = substring_transform(s);
    p->reading.files = phase_files[phase];
    p->reading.locked = phase != PHASE_ANCHORS;
    p->reading.sections = SUBSTRING_SECTIONS;
    p->reading.settings = s->settings;
    p->reading.ctx = s;
    p->reading.make = phase == PHASE_ANCHORS ? read_anchors : read_windows;
}

err substring_find(const substring_options *o, text_inputs *in, substring **out) {
    BUG_IF(o->pass.threads < 1 || !o->pass.work || o->length < 2);
    substring *s = mem_alloc(sizeof *s);
    uint64_t facts[] = { SUBSTRING_VERSION, (uint64_t)o->length,
                         o->tokenizer ? tokenizer_hash(o->tokenizer) : 0 };
    err e = OK;
    *out = NULL;
    s->o = *o;
    s->in = in;
    s->segments = text_segments(in);
    s->settings = hash_bytes(facts, sizeof facts, text_inputs_hash(in));
    s->workers = mem_alloc((size_t)o->pass.threads * sizeof *s->workers);
    if (o->tokenizer) read_token_lengths(s, o->tokenizer);
    for (int i = 0; i < o->pass.threads; i++) {
        s->workers[i].scan = window_scan_new((size_t)o->length);
        if (o->tokenizer) s->workers[i].encoder = encoder_new(o->tokenizer);
    }
    for (int i = 0; i < PHASES; i++) init_phase(s, i);
    for (int i = 0; i < PHASES; i++) TRY_CLEAN(run_phase(s, i));
    const substring_phase *p = &s->phase[PHASE_WINDOWS];
    for (size_t i = 0; i < p->repeated_bytes; i++)
        s->summary.windows += __builtin_popcount(p->repeated[i]);
    s->summary.documents = (int64_t)p->first_doc[s->segments];
    s->summary.candidates = (int64_t)p->first_item[s->segments];
    *out = s;
    s = NULL;
cleanup:
    substring_free(s);
    return e;
}

const substring_summary *substring_get_summary(const substring *s) { return &s->summary; }

err substring_finish(substring *s) {
    for (int i = 0; i < PHASES; i++) TRY(split_job_finish(&s->phase[i].reading));
    return OK;
}

void substring_free(substring *s) {
    if (!s) return;
    for (int k = 0; k < PHASES; k++) {
        substring_phase *p = &s->phase[k];
        split_job_free(&p->reading);
        if (p->before) mem_unmap(p->before, p->before_bytes + 1);
        if (p->repeated) mem_unmap(p->repeated, p->repeated_bytes);
        free(p->first_doc);
        free(p->first_item);
        free(p->split_item);
    }
    for (int i = 0; i < s->o.pass.threads; i++) {
        window_scan_free(s->workers[i].scan);
        encoder_free(s->workers[i].encoder);
        token_ids_free(&s->workers[i].ids);
        str_free(&s->workers[i].text);
    }
    free(s->token_bytes);
    free(s->workers);
    free(s);
}
