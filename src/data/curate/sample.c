/* Sampling documents.
 *
 * A share needs one pass: a hash of the text decides. A number of documents, bytes or tokens needs to know all
 * documents first: pass 1 writes the weight of each, and the group it belongs to, to spill files. Every document has a
 * random key, a hash of the seed and its number in the input; those with the smallest keys are taken. Which key is the
 * first that is not taken is found for each group by a radix search: eight passes over the spill files, each of which
 * fixes eight bits of it. Memory depends on the number of groups alone. */
#include "comm/comm.h"
#include "curate/dedup_internal.h"
#include "tokenizer/tokenizer.h"

#include <stdlib.h>

enum { SECTION_WEIGHTS, SECTION_SEGMENTS, SAMPLE_SECTIONS };
enum {
    SPILL_VERSION = 1,
    DIGIT_BITS = 8,
    DIGITS = 1 << DIGIT_BITS,
    ROUNDS = 64 / DIGIT_BITS,
    GROUPS_MAX = 1 << 16
};
#define SHARE_SALT                                                                                 \
    0x2545F4914F6CDD1Du /* `data tokenize --held-out` chooses by the same hash without it */

typedef struct doc_weight {
    uint64_t group; /* hash of the member's value; 0: without groups */
    uint64_t weight;
} doc_weight;

typedef struct sample_group {
    uint64_t hash;
    uint64_t below; /* keys below are taken; the digits that are known so far */
    int64_t taken;  /* weight of the keys below */
    int64_t *sums;  /* [DIGITS] weight by the next digit */
    bool all;       /* nothing is left out */
} sample_group;

typedef struct sample_worker {
    str value;
    encoder *encoder;
    token_ids ids;
} sample_worker;

struct sample {
    sampling_options o;
    text_inputs *in;
    split_job reading;
    uint64_t *first_doc; /* [segments + 1] */
    uint64_t below;      /* of a share */
    uint64_t hash;
    sample_group *groups;
    int n_groups, groups_cap;
    uint32_t *slots; /* [GROUPS_MAX * 2] index of a group plus one; 0: free */
    sample_worker *workers;
    sample_summary summary;
};

static bool needs_pass(const sampling_options *o) { return o->count || o->bytes || o->tokens; }
static uint64_t doc_key(const sample *s, uint64_t number) {
    uint64_t facts[] = { s->o.seed, number };
    return hash_bytes(facts, sizeof facts, SHARE_SALT);
}

/* ---- groups ---------------------------------------------------------------------------------- */
static uint64_t doc_group(const sample *s, sample_worker *w, const text_doc *d) {
    if (!s->o.per) return 0;
    w->value.len = 0;
    bool has = text_doc_member(d, s->o.per, &w->value);
    return has ? hash_bytes(w->value.text, w->value.len, 1) | 1
               : 0; /* 0: those without the member */
}

static uint32_t *group_slot(const sample *s, uint64_t hash) {
    size_t mask = 2 * GROUPS_MAX - 1, i = (size_t)(hash >> 7) & mask;
    while (s->slots[i] && s->groups[s->slots[i] - 1].hash != hash) i = (i + 1) & mask;
    return &s->slots[i];
}

static err find_group(sample *s, uint64_t hash, sample_group **out) {
    uint32_t *slot = group_slot(s, hash);
    if (!*slot) {
        if (s->n_groups == GROUPS_MAX)
            return err_hint(
                ERR_USAGE("--per: \"%s\" has more than %d different values", s->o.per, GROUPS_MAX),
                "name a member with fewer, such as source or language");
        LIST_ADD(s->groups, s->n_groups, s->groups_cap) =
            (sample_group){ .hash = hash, .sums = mem_alloc(DIGITS * sizeof(int64_t)) };
        *slot = (uint32_t)s->n_groups;
    }
    *out = &s->groups[*slot - 1];
    return OK;
}

/* ---- pass 1 ---------------------------------------------------------------------------------- */
typedef struct weight_reader {
    sample *s;
    spill_writer *out;
    text_progress *progress;
    segment_counts counts; /* of the segment, without items */
} weight_reader;

static err weigh_block(void *ctx, int worker, const text_block *b, void *result) {
    sample *s = ((weight_reader *)ctx)->s;
    sample_worker *w = &s->workers[worker];
    str *out = result;
    for (int i = 0; i < b->n; i++) {
        const text_doc *d = &b->docs[i];
        doc_weight f = { doc_group(s, w, d), s->o.count ? 1 : d->text.len };
        if (s->o.tokens) {
            w->ids.n = 0;
            encoder_add(w->encoder, d->text.at, d->text.len, false, &w->ids);
            f.weight = w->ids.n + 1; /* and what ends the document */
        }
        str_add_bytes(out, &f, sizeof f);
    }
    return OK;
}

static err write_weights(void *ctx, const text_block *b, void *result) {
    weight_reader *r = ctx;
    str *made = result;
    r->counts.documents += (uint64_t)b->n;
    err e = spill_write(r->out, SECTION_WEIGHTS, made->text, made->len);
    str_free(made);
    return e ? e : text_progress_add(r->progress, b->raw_bytes);
}

static void drop_weights(void *result) { str_free(result); }

static err weigh_split(void *ctx, int split, spill_writer *out, text_progress *p) {
    sample *s = ctx;
    weight_reader r = { .s = s, .out = out, .progress = p };
    text_pipeline flow = { &r, sizeof(str), weigh_block, write_weights, drop_weights };
    return split_job_read(&s->reading, split, &flow, &r.counts, SECTION_SEGMENTS, out);
}

/* ---- which keys are taken -------------------------------------------------------------------- */
/* Adds the weight of every document whose key agrees with the digits that its group knows. */
static err sum_round(sample *s, int round) {
    int shift = 64 - DIGIT_BITS * (round + 1);
    for (int i = 0; i < s->reading.splits.n; i++) {
        spill_reader r = { 0 };
        uint64_t from = s->first_doc[s->reading.splits.first[i]],
                 to = s->first_doc[s->reading.splits.first[i + 1]];
        err e = spill_reader_open(s->reading.spills[i], SECTION_WEIGHTS, &r);
        for (uint64_t number = from; number < to && !e; number++) {
            doc_weight f;
            sample_group *g = NULL;
            uint64_t key = doc_key(s, number);
            e = spill_read(&r, &f, sizeof f);
            if (!e) e = find_group(s, f.group, &g);
            bool mine =
                !e && !g->all &&
                (round == 0 || key >> (shift + DIGIT_BITS) == g->below >> (shift + DIGIT_BITS));
            if (mine) g->sums[key >> shift & (DIGITS - 1)] += (int64_t)f.weight;
        }
        spill_reader_close(&r);
        TRY(e);
    }
    return OK;
}

/* Takes digits as long as their weight fits; the key is in the first that does not. */
static void take_digits(sample *s, sample_group *g, int round) {
    int shift = 64 - DIGIT_BITS * (round + 1), digit = 0;
    int64_t wanted = s->o.count + s->o.bytes + s->o.tokens; /* one of them is given */
    while (digit < DIGITS && g->taken + g->sums[digit] <= wanted) g->taken += g->sums[digit++];
    g->all = digit == DIGITS; /* only in the first round */
    g->below |= g->all ? 0 : (uint64_t)digit << shift;
    memset(g->sums, 0, DIGITS * sizeof *g->sums);
}

static err find_keys(sample *s) {
    TRY(split_job_number(&s->reading, SECTION_SEGMENTS, s->first_doc, NULL));
    TRY(split_job_open_others(&s->reading));
    for (int round = 0; round < ROUNDS; round++) {
        TRY(sum_round(s, round));
        for (int i = 0; i < s->n_groups; i++)
            if (!s->groups[i].all) take_digits(s, &s->groups[i], round);
    }
    s->summary.documents = (int64_t)s->first_doc[text_segments(s->in)];
    s->summary.groups = s->n_groups;
    for (int i = 0; i < s->n_groups; i++) s->summary.all_taken += s->groups[i].all;
    return OK;
}

/* ---- the transform ------------------------------------------------------------------------------- */
static const char *const rules[] = { "not sampled" };

static err choose_document(void *ctx, int worker, int segment, const text_doc *d, text_verdict *v) {
    sample *s = ctx;
    if (!needs_pass(&s->o)) {
        bool in = hash_bytes(d->text.at, d->text.len, SHARE_SALT + s->o.seed) < s->below;
        v->rule = in || s->o.share >= 1 ? TEXT_KEEP : 0;
        return OK;
    }
    uint32_t slot = *group_slot(s, doc_group(s, &s->workers[worker], d));
    BUG_IF(!slot); /* pass 1 has seen it */
    const sample_group *g = &s->groups[slot - 1];
    uint64_t key = doc_key(s, s->first_doc[segment] + (uint64_t)d->number);
    v->rule = g->all || key < g->below ? TEXT_KEEP : 0;
    return OK;
}

text_transform sample_transform(sample *s) {
    return (text_transform){ .name = "sample",
                             .rules = rules,
                             .n_rules = (int)COUNT_OF(rules),
                             .hash = s->hash,
                             .ctx = s,
                             .judge = choose_document };
}

static uint64_t hash_sample_options(const sampling_options *o) {
    struct {
        double share;
        int64_t count, bytes, tokens;
        uint64_t seed, tokenizer, per;
    } facts = { o->share,
                o->count,
                o->bytes,
                o->tokens,
                o->seed,
                o->tokenizer ? tokenizer_hash(o->tokenizer) : 0,
                o->per ? hash_str(o->per) : 0 };
    return hash_bytes(&facts, sizeof facts, SPILL_VERSION);
}

static sample *new_sample(const sampling_options *o, text_inputs *in) {
    sample *s = mem_alloc(sizeof *s);
    s->o = *o;
    s->in = in;
    s->hash = hash_sample_options(o);
    s->below = o->share >= 1 ? UINT64_MAX : (uint64_t)(o->share * 0x1p64);
    s->workers = mem_alloc((size_t)o->pass.threads * sizeof *s->workers);
    for (int i = 0; i < o->pass.threads; i++)
        if (o->tokens) s->workers[i].encoder = encoder_new(o->tokenizer);
    s->reading = split_job_new(&o->pass, in);
    s->first_doc = mem_alloc(((size_t)text_segments(in) + 1) * sizeof *s->first_doc);
    s->slots = mem_alloc((size_t)2 * GROUPS_MAX * sizeof *s->slots);
    return s;
}

err sample_new(const sampling_options *o, text_inputs *in, sample **out) {
    BUG_IF(o->pass.threads < 1 || (needs_pass(o) && !o->pass.work) || (o->tokens && !o->tokenizer));
    *out = NULL;
    text_inputs_keep_members(in);
    sample *s = new_sample(o, in);
    s->reading.reading = "sample, first pass";
    s->reading.transform = sample_transform(s);
    s->reading.sections = SAMPLE_SECTIONS;
    s->reading.shares_spills = true;
    s->reading.settings = hash_bytes(&s->hash, sizeof s->hash, text_inputs_hash(in));
    s->reading.ctx = s;
    s->reading.make = weigh_split;
    err e = needs_pass(o) ? split_job_run(&s->reading) : OK;
    if (!e && needs_pass(o)) e = find_keys(s);
    if (e)
        sample_free(s);
    else
        *out = s;
    return e;
}

const sample_summary *sample_get_summary(const sample *s) { return &s->summary; }

err sample_finish(sample *s) { return needs_pass(&s->o) ? split_job_finish(&s->reading) : OK; }

void sample_free(sample *s) {
    if (!s) return;
    split_job_free(&s->reading);
    for (int i = 0; i < s->n_groups; i++) free(s->groups[i].sums);
    for (int i = 0; i < s->o.pass.threads; i++) {
        str_free(&s->workers[i].value);
        encoder_free(s->workers[i].encoder);
        token_ids_free(&s->workers[i].ids);
    }
    free(s->workers);
    free(s->groups);
    free(s->slots);
    free(s->first_doc);
    free(s);
}
