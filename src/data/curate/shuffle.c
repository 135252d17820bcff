/* A global shuffle in bounded memory.
 *
 *     1  each document gets a random key, a hash of seed, segment and number, and is written, as it will be in the
 *        output, to the section of its split's spill file that the key's top bits name
 *     2  the keys are divided into parts: runs of sections whose documents fit a part, or pieces of a section that is
 *        too large for one. A part is read into memory, sorted by key, and written
 *
 * Both passes are shared among ranks and resumed: splits and parts are the units. The order of all documents depends on
 * the seed and the inputs; where parts end also on their size and on the memory limit. */
#include "comm/comm.h"
#include "curate/dedup_internal.h"

#include <stdlib.h>

enum { KEY_BITS = 8, KEY_SECTIONS = 1 << KEY_BITS, SECTION_READ = KEY_SECTIONS, SHUFFLE_SECTIONS };
enum { SPILL_VERSION = 2, PART_BYTES = 256 << 20, SHARE_OF_MEMORY = 4 };

typedef struct spilled_head {
    uint64_t key;
    uint32_t bytes, text; /* as packed; of the text itself */
} spilled_head;

typedef struct key_range {
    uint64_t first, last; /* both included */
} key_range;

struct shuffle {
    shuffle_options o;
    text_inputs *in;
    split_job reading;
    text_packer **packers; /* [threads] */
    uint64_t hash;
    key_range *parts;
    int64_t *part_bytes;
    int n_parts, parts_cap;
    text_counts read; /* of all inputs */
};

/* ---- pass 1 ---------------------------------------------------------------------------------- */
typedef struct pack_reader {
    shuffle *s;
    spill_writer *out;
    text_progress *progress;
    text_counts read; /* of the split */
} pack_reader;

static err pack_block(void *ctx, int worker, const text_block *b, void *result) {
    shuffle *s = ((pack_reader *)ctx)->s;
    str *out = result;
    for (int i = 0; i < b->n; i++) {
        const text_doc *d = &b->docs[i];
        uint64_t facts[] = { s->o.seed, (uint64_t)b->segment, (uint64_t)d->number };
        spilled_head head = { hash_bytes(facts, sizeof facts, 0), 0, (uint32_t)d->text.len };
        size_t at = out->len;
        str_add_bytes(out, &head, sizeof head);
        TRY(text_packer_add(s->packers[worker], d, out));
        head.bytes = (uint32_t)(out->len - at - sizeof head);
        memcpy(out->text + at, &head, sizeof head);
    }
    return OK;
}

static void drop_packed(void *result) { str_free(result); }

static err spill_block(void *ctx, const text_block *b, void *result) {
    pack_reader *r = ctx;
    str *made = result;
    err e = OK;
    for (size_t at = 0; at < made->len && !e;) {
        spilled_head head;
        memcpy(&head, made->text + at, sizeof head);
        size_t n = sizeof head + head.bytes;
        e = spill_write(r->out, (int)(head.key >> (64 - KEY_BITS)), made->text + at, n);
        at += n;
    }
    str_free(made);
    return e ? e : text_progress_add(r->progress, b->raw_bytes);
}

static err pack_split(void *ctx, int split, spill_writer *out, text_progress *p) {
    shuffle *s = ctx;
    pack_reader r = { .s = s, .out = out, .progress = p };
    text_pipeline flow = { &r, sizeof(str), pack_block, spill_block, drop_packed };
    for (int i = s->reading.splits.first[split]; i < s->reading.splits.first[split + 1]; i++)
        TRY(text_pipeline_run(s->in, i, &flow, s->o.pass.threads, &r.read));
    return spill_write(out, SECTION_READ, &r.read, sizeof r.read);
}

/* ---- parts ----------------------------------------------------------------------------------- */
static void add_key_range(shuffle *s, uint64_t first, uint64_t last, uint64_t bytes) {
    s->parts = mem_reserve(s->parts, &s->parts_cap, s->n_parts, sizeof *s->parts);
    s->part_bytes = mem_grow(s->part_bytes, (size_t)s->parts_cap * sizeof *s->part_bytes);
    s->part_bytes[s->n_parts] = (int64_t)bytes;
    s->parts[s->n_parts++] = (key_range){ first, last };
}

static uint64_t section_end(int section) {
    return ((uint64_t)section << (64 - KEY_BITS)) | (UINT64_MAX >> KEY_BITS);
}

/* A section that is larger than a part is divided evenly: its keys are. */
static void divide_section(shuffle *s, int section, uint64_t bytes, uint64_t most) {
    uint64_t pieces = (bytes + most - 1) / most, width = ((uint64_t)1 << (64 - KEY_BITS)) / pieces;
    uint64_t first = (uint64_t)section << (64 - KEY_BITS);
    for (uint64_t i = 0; i < pieces; i++)
        add_key_range(s, first + i * width,
                      i + 1 < pieces ? first + (i + 1) * width - 1 : section_end(section),
                      bytes / pieces);
}

static void plan_ranges(shuffle *s) {
    uint64_t part = (uint64_t)(s->o.part_bytes ? s->o.part_bytes : PART_BYTES);
    uint64_t most = MIN(part, (uint64_t)s->o.pass.memory / SHARE_OF_MEMORY), filled = 0, first = 0;
    for (int k = 0; k < KEY_SECTIONS; k++) {
        uint64_t bytes = 0;
        for (int i = 0; i < s->reading.splits.n; i++) bytes += spill_bytes(s->reading.spills[i], k);
        if (filled && filled + bytes > most) {
            add_key_range(s, first, section_end(k - 1), filled);
            first = section_end(k - 1) + 1;
            filled = 0;
        }
        if (bytes > most) {
            divide_section(s, k, bytes, most);
            first = section_end(k) + 1; /* 0 after the last one, which is not used */
        } else {
            filled += bytes;
        }
    }
    if (filled || s->n_parts == 0) add_key_range(s, first, UINT64_MAX, filled);
}

static err total_read(shuffle *s) {
    for (int i = 0; i < s->reading.splits.n; i++) {
        spill_reader r = { 0 };
        text_counts counts;
        err e = spill_reader_open(s->reading.spills[i], SECTION_READ, &r);
        if (!e) e = spill_read(&r, &counts, sizeof counts);
        spill_reader_close(&r);
        TRY(e);
        text_counts_add(&s->read, &counts);
    }
    return OK;
}

/* ---- pass 2 ---------------------------------------------------------------------------------- */
typedef struct packed_doc {
    uint64_t key, at; /* at: in the text that is held */
    uint32_t bytes, number;
} packed_doc;
typedef struct shuffled {
    packed_doc *docs;
    int n, cap;
    str text;
    int64_t text_bytes;
} shuffled;

SORT_ORDER(by_key, packed_doc, RISING(key) RISING(number));

/* Reads the documents of one section of one spill file whose keys are in the range. */
static err read_key_section(const spill *from, int section, key_range range, str *skipped,
                            shuffled *to) {
    spill_reader r = { 0 };
    uint64_t left = spill_bytes(from, section);
    err e = spill_reader_open(from, section, &r);
    while (!e && left > 0) {
        spilled_head head;
        e = spill_read(&r, &head, sizeof head);
        if (e) break;
        bool in = head.key >= range.first && head.key <= range.last;
        if (in) {
            str_reserve(&to->text, head.bytes);
            e = spill_read(&r, to->text.text + to->text.len, head.bytes);
            packed_doc d = { head.key, to->text.len, head.bytes, (uint32_t)to->n };
            LIST_ADD(to->docs, to->n, to->cap) = d;
            to->text.len += head.bytes;
            to->text_bytes += head.text;
        } else {
            e = spill_read_str(&r, head.bytes, skipped);
        }
        left -= sizeof head + head.bytes;
    }
    spill_reader_close(&r);
    return e;
}

static err write_shuffled(shuffled *d, text_part *to) {
    text_span *docs = mem_alloc((size_t)d->n * sizeof *docs + 1);
    sort_array(d->docs, (size_t)d->n, sizeof *d->docs, by_key);
    for (int i = 0; i < d->n; i++)
        docs[i] = (text_span){ d->text.text + d->docs[i].at, d->docs[i].bytes };
    err e = text_part_write(to, docs, (size_t)d->n);
    to->report->kept_bytes += d->text_bytes;
    free(docs);
    return e;
}

static err fill_shuffled(void *ctx, int part, text_part *to, text_progress *p) {
    shuffle *s = ctx;
    key_range range = s->parts[part];
    shuffled d = { 0 };
    str skipped = { 0 };
    err e = OK;
    for (int k = (int)(range.first >> (64 - KEY_BITS));
         k <= (int)(range.last >> (64 - KEY_BITS)) && !e; k++)
        for (int i = 0; i < s->reading.splits.n && !e; i++)
            e = read_key_section(s->reading.spills[i], k, range, &skipped, &d);
    if (!e) e = write_shuffled(&d, to);
    if (!e) e = text_progress_add(p, s->part_bytes[part]);
    /* Unreadable inputs are counted once, for no part in particular. */
    if (part == 0) to->report->read = s->read;
    to->report->read.documents = d.n;
    to->report->read.bytes = d.text_bytes;
    str_free(&skipped);
    str_free(&d.text);
    free(d.docs);
    return e;
}

text_transform shuffle_transform(shuffle *s) {
    return (text_transform){ .name = "shuffle",
                             .hash = s->hash,
                             .ctx = s,
                             .n_parts = s->n_parts,
                             .part_bytes = s->part_bytes,
                             .fill = fill_shuffled };
}

/* ---- the run --------------------------------------------------------------------------------- */
err shuffle_new(const shuffle_options *o, text_inputs *in, shuffle **out) {
    BUG_IF(o->pass.threads < 1 || !o->pass.work || !o->pass.to);
    uint64_t facts[] = { SPILL_VERSION, o->seed,
                         o->pass.to->compress ? hash_str(o->pass.to->compress) : 0,
                         o->pass.to->out && str_ends(o->pass.to->out, ".parquet") };
    shuffle *s = mem_alloc(sizeof *s);
    err e = OK;
    *out = NULL;
    s->o = *o;
    s->in = in;
    s->hash = hash_bytes(facts, sizeof facts, 0);
    s->packers = mem_alloc((size_t)o->pass.threads * sizeof *s->packers);
    for (int i = 0; i < o->pass.threads && !e; i++)
        e = text_packer_new(in, o->pass.to, &s->packers[i]);
    s->reading = split_job_new(&o->pass, in);
    s->reading.reading = "shuffle, first pass";
    s->reading.transform = shuffle_transform(s);
    s->reading.shares_spills = true;
    s->reading.sections = SHUFFLE_SECTIONS;
    s->reading.settings = hash_bytes(&s->hash, sizeof s->hash, text_inputs_hash(in));
    s->reading.ctx = s;
    s->reading.make = pack_split;
    if (!e) e = split_job_run(&s->reading);
    if (!e) e = split_job_open_others(&s->reading);
    if (!e) e = total_read(s);
    if (e) {
        shuffle_free(s);
        return e;
    }
    plan_ranges(s);
    *out = s;
    return OK;
}

err shuffle_finish(shuffle *s) { return split_job_finish(&s->reading); }

void shuffle_free(shuffle *s) {
    if (!s) return;
    split_job_free(&s->reading);
    for (int i = 0; i < s->o.pass.threads; i++) text_packer_free(s->packers[i]);
    free(s->packers);
    free(s->parts);
    free(s->part_bytes);
    free(s);
}
