/* Generation. A sequence has a slot: `positions` rows of every layer's key/value cache.
 *
 *     slot 0 | prompt, by chunks of PREFILL | token | token | ...          |
 *     slot 1 | prompt                            | token | ...             |
 *
 * A step samples a token of every sequence from the logits of its last one, and then runs these tokens together, as many rows
 * as the next power of two; the rows that are left over repeat the last one. When a slot is full, its later half runs again as a
 * prompt.
 *
 * A slot remembers its prompt when its sequence has ended. A prompt that begins like a remembered one continues from there; if
 * that slot is in use, its rows are copied. Only whole chunks are reused, so that a text does not depend on what was generated
 * before it: rows that ran as a chunk are not bit-equal to rows that ran one by one. Models with gated DeltaNet layers have a state
 * per slot beside the rows, which no token can be removed from: they run every prompt.
 *
 * Sequences beyond a length may have other rotary frequencies (rope_switch). One that grows beyond it runs again as a prompt, since
 * its keys were rotated by the others; until then its rows are of no use to longer ones. */
#include "eval/eval.h"

#include <stdlib.h>
#include <string.h>

typedef struct text_writer {
    token_decoder decoder;
    str fresh;  /* not emitted yet */
    bool ended; /* a stop text was found */
} text_writer;

typedef struct sequence {
    bool busy;
    int32_t *text;     /* [positions]: prompt and what was generated; owned, as all pointers here */
    int64_t at, made;  /* tokens in it, and those before the first generated one */
    float *logits;     /* [vocab], of the last token */
    float *remembered; /* [vocab], of the prompt's last token */
    int64_t prompt;    /* tokens of the prompt that the slot's cache holds */
    sample_options o;
    rng_key key;
    decode_sink to;
    text_writer writer;
    generated out;
} sequence;

struct generation {
    const generator *g;
    exec *x;
    int64_t vocab;
    device_ticket result; /* the logits of a step, on the host */
    sequence slot[GENERATOR_SLOTS];
};

static bool is_rotated_long(const generator *g, int64_t length) {
    return length > rope_switch(model_conf(g->m));
}

static err plan_chains(generator *g, plan *p, bool beyond) {
    decode_chains *d = &g->by_length[beyond];
    model *m = g->m;
    TRY(model_record_decode(m, PREFILL, g->positions, g->slots, beyond, &d->many));
    TRY(plan_chain(p, &d->many, model_bucket_regions, m, &d->many_id));
    for (int width = 1, i = 0; i == 0 || width / 2 < g->slots; width *= 2, i++) {
        TRY(model_record_decode(m, width, g->positions, g->slots, beyond, &d->step[i]));
        TRY(plan_chain(p, &d->step[i], model_bucket_regions, m, &d->step_id[i]));
        g->widths = i + 1;
    }
    return OK;
}

err generator_plan(model *m, plan *p, int64_t positions, int slots, generator *g) {
    *g = (generator){ .m = m, .positions = MIN(positions, model_conf(m)->max_seq) };
    g->slots = MAX(1, MIN(slots, (int)GENERATOR_SLOTS));
    TRY(plan_chains(g, p, false));
    return is_rotated_long(g, g->positions) ? plan_chains(g, p, true) : OK;
}

const decode_chains *generator_chains(const generator *g, int64_t length) {
    return &g->by_length[is_rotated_long(g, length)];
}

generation *generation_new(const generator *g, exec *x) {
    generation *d = mem_alloc(sizeof *d);
    d->g = g;
    d->x = x;
    d->vocab = model_conf(g->m)->vocab;
    return d;
}

void generation_free(generation *d) {
    if (d) plan_drop(d->x->plan, &d->result);
    for (int i = 0; d && i < d->g->slots; i++) {
        free(d->slot[i].text);
        free(d->slot[i].logits);
        free(d->slot[i].remembered);
        str_free(&d->slot[i].writer.fresh);
    }
    free(d);
}

int generation_busy(const generation *d) {
    int n = 0;
    for (int i = 0; i < d->g->slots; i++) n += d->slot[i].busy;
    return n;
}
bool generation_has_slot(const generation *d) { return generation_busy(d) < d->g->slots; }

/* ---- running --------------------------------------------------------------------------------- */
/* Reads n rows of the result from `row` on, one for each sequence. */
static err read_logits(generation *d, int which, int64_t row, float *const *logits, int n) {
    tensor all = exec_result(d->x, which);
    int64_t cols = all.dim[1]; /* those beyond the vocabulary are padding */
    bool pipelined = mesh_stages(&model_lay(d->g->m)->mesh) > 1,
         here = exec_has_result(d->x, which);
    size_t bytes = (size_t)d->vocab * sizeof(float);
    const void *rows;
    plan_fetch(d->x->plan, QUEUE_COMPUTE, &d->result, (const float *)all.data + row * cols,
               (size_t)(n * cols) * sizeof(float));
    TRY(plan_wait(d->x->plan, &d->result, &rows));
    for (int i = 0; i < n; i++) {
        memcpy(logits[i], (const float *)rows + i * cols, bytes);
        if (!pipelined) continue;
        /* every stage continues from the token that the last one's logits give */
        if (!here) memset(logits[i], 0, bytes);
        TRY(comm_sum(d->x->comm, AXES_STAGES, logits[i], d->vocab));
    }
    return OK;
}

/* Runs a slot's tokens [from, end) in chunks. */
static err run_prompt(generation *d, int slot, int64_t from, int64_t end) {
    sequence *s = &d->slot[slot];
    const decode_chains *c = generator_chains(d->g, end);
    int32_t tok[PREFILL], pos[PREFILL], start[PREFILL], previous[PREFILL];
    for (int64_t at = from; at < end; at += PREFILL) {
        int64_t n = MIN((int64_t)PREFILL, end - at), last = n - 1;
        for (int64_t i = 0; i < PREFILL; i++) {
            /* the rest of the chunk repeats the last token at its own position: nothing is overwritten */
            int64_t k = at + MIN(i, last);
            tok[i] = s->text[k];
            previous[i] = s->text[MAX(k - 1, 0)];
            pos[i] = (int32_t)k;
            start[i] = (int32_t)(slot * d->g->positions);
        }
        int which = n == 1 ? c->step_id[0] : c->many_id;
        model_batch b = { .tokens = tok, .pos = pos, .start = start, .previous = previous };
        b.n = n == 1 ? 1 : PREFILL;
        model_set_batch(d->g->m, d->x->plan, &b);
        TRY(exec_chain(d->x, which, 0, 1));
        if (at + n == end) TRY(read_logits(d, which, last, &s->logits, 1));
    }
    return OK;
}

/* Runs the last token of n slots, whose sequences run on the same chains. */
static err run_last_tokens(generation *d, const int *slot, int n) {
    int32_t tok[GENERATOR_SLOTS], pos[GENERATOR_SLOTS], start[GENERATOR_SLOTS];
    int32_t previous[GENERATOR_SLOTS];
    float *logits[GENERATOR_SLOTS];
    const decode_chains *c = generator_chains(d->g, d->slot[slot[0]].at);
    int w = 0;
    while (1 << w < n) w++;
    for (int i = 0; i < 1 << w; i++) {
        int k = slot[MIN(i, n - 1)];
        const sequence *s = &d->slot[k];
        tok[i] = s->text[s->at - 1];
        previous[i] = s->text[MAX(s->at - 2, 0)];
        pos[i] = (int32_t)(s->at - 1);
        start[i] = (int32_t)(k * d->g->positions);
        logits[i] = s->logits;
    }
    model_batch b = { .tokens = tok, .pos = pos, .start = start, .previous = previous };
    b.n = 1 << w;
    model_set_batch(d->g->m, d->x->plan, &b);
    TRY(exec_chain(d->x, c->step_id[w], 0, 1));
    return read_logits(d, c->step_id[w], 0, logits, n);
}

/* ---- prompts --------------------------------------------------------------------------------- */
/* Tokens of a remembered prompt that this one begins with, as far as the cache can continue from any of them: a recurrent state
 * has moved on. */
static int64_t common_tokens(const generation *d, const sequence *s, const int32_t *prompt,
                             int64_t n) {
    int64_t same = 0;
    if (model_has_delta(model_conf(d->g->m))) return 0;
    if (is_rotated_long(d->g, n) != is_rotated_long(d->g, s->prompt)) return 0;
    while (same < MIN(n, s->prompt) && s->text[same] == prompt[same]) same++;
    return same;
}

/* Chooses a free slot, and the slot whose prompt has most in common with this one. */
static void choose_slot(const generation *d, const int32_t *prompt, int64_t n, int *slot,
                        int *like) {
    int64_t most = -1, least = INT64_MAX;
    *slot = *like = -1;
    for (int i = 0; i < d->g->slots; i++) {
        const sequence *s = &d->slot[i];
        int64_t same = common_tokens(d, s, prompt, n);
        /* of equal ones a free slot, which needs no copy */
        if (same > most || (same == most && !s->busy && d->slot[*like].busy))
            most = same, *like = i;
        if (!s->busy && s->prompt < least) least = s->prompt, *slot = i;
    }
    BUG_IF(*slot < 0);
    if (!d->slot[*like].busy) *slot = *like;
}

/* Puts a prompt into a slot's text and cache, from where it differs from what is there. */
static err place_prompt(generation *d, const int32_t *prompt, int64_t n, int *out) {
    size_t bytes = (size_t)d->vocab * sizeof(float);
    int slot, like;
    choose_slot(d, prompt, n, &slot, &like);
    sequence *s = &d->slot[slot], *other = &d->slot[like];
    int64_t same = common_tokens(d, other, prompt, n), from = MIN(same, n - 1) / PREFILL * PREFILL;
    bool whole = same == n && n == other->prompt;
    if (!s->text) {
        s->text = mem_alloc((size_t)d->g->positions * sizeof *s->text);
        s->logits = mem_alloc(bytes);
        s->remembered = mem_alloc(bytes);
    }
    if (slot != like && (whole || from))
        plan_copy_rows(d->x->plan, "cache", d->g->slots * d->g->positions, slot * d->g->positions,
                       like * d->g->positions, whole ? n : from);
    s->prompt = 0; /* until it has run */
    memcpy(s->text, prompt, (size_t)n * sizeof *s->text);
    if (whole) {
        memcpy(s->logits, other->remembered, bytes);
    } else {
        TRY(run_prompt(d, slot, from, n));
    }
    memmove(s->remembered, s->logits, bytes);
    s->prompt = s->at = s->made = n;
    *out = slot;
    return OK;
}

/* ---- text ------------------------------------------------------------------------------------ */
/* @return where the first stop text begins in what is fresh, or, with `last` false, where one may begin that is not whole yet;
 * else its length. */
static size_t find_stop(sequence *s, bool last) {
    const str *fresh = &s->writer.fresh;
    for (size_t at = 0; at < fresh->len; at++)
        for (int i = 0; i < s->o.n_stop_texts; i++) {
            size_t n = strlen(s->o.stop_texts[i]), left = fresh->len - at;
            if (!n || memcmp(fresh->text + at, s->o.stop_texts[i], MIN(n, left)) != 0) continue;
            if (left >= n) s->writer.ended = true;
            if (left >= n || !last) return at;
        }
    return fresh->len;
}

static bool emit_fresh(sequence *s, bool last) {
    str *fresh = &s->writer.fresh;
    size_t n = find_stop(s, last);
    bool more = n == 0 || s->to.emit_text(s->to.ctx, fresh->text, n);
    if (n) memmove(fresh->text, fresh->text + n, fresh->len - n + 1);
    fresh->len -= n;
    return more && !s->writer.ended;
}

static bool emit_token(sequence *s, int32_t id) {
    if (!s->to.emit_text) return s->to.emit(s->to.ctx, id);
    token_decoder_push(&s->writer.decoder, id, &s->writer.fresh);
    return emit_fresh(s, false);
}

static void end_sequence(sequence *s) {
    s->busy = false;
    if (s->to.emit_text) {
        token_decoder_end(&s->writer.decoder, &s->writer.fresh);
        if (!s->writer.ended) emit_fresh(s, true);
        if (s->writer.ended) s->out.stopped = true;
        s->writer.fresh.len = 0;
    }
    if (s->to.done) s->to.done(s->to.ctx, &s->out);
}

/* ---- sequences ------------------------------------------------------------------------------- */
err generation_add(generation *d, const tokenizer *t, const int32_t *prompt, int64_t n,
                   const sample_options *o, decode_sink to) {
    int64_t keep = MIN(n, d->g->positions - 1);
    int slot = 0;
    BUG_IF(n < 1 || !generation_has_slot(d) || !to.emit == !to.emit_text || !t != !to.emit_text);
    TRY(place_prompt(d, prompt + n - keep, keep, &slot));
    sequence *s = &d->slot[slot];
    s->o = *o;
    s->to = to;
    s->key = rng_key_of(o->seed, hash_str("sample"));
    s->out = (generated){ .prompt = n };
    s->busy = true;
    if (!t) return OK;
    s->o.stop = tokenizer_eos(t);
    s->writer.decoder = (token_decoder){ .t = t };
    s->writer.ended = false;
    /* what the prompt reads as is not written again */
    for (int64_t i = 0; i < n; i++)
        token_decoder_push(&s->writer.decoder, prompt[i], &s->writer.fresh);
    s->writer.fresh.len = 0;
    return OK;
}

static bool ends_text(const sample_options *o, int32_t id) {
    for (int i = 0; i < o->n_stops; i++)
        if (id == o->stops[i]) return true;
    return id == o->stop;
}

/* Chooses a sequence's next token, and puts it at the end of its text unless that is full. @return false: the sequence has
 * ended. @param id the token */
static bool choose_next(generation *d, sequence *s, int32_t *id) {
    generated *out = &s->out;
    if (out->tokens >= s->o.tokens) return false;
    sample_penalize(s->logits, d->vocab, &s->o, s->text, s->at, s->made);
    *id = sample_token(s->logits, d->vocab, &s->o, rng_uniform(s->key, (uint64_t)out->tokens));
    out->stopped = ends_text(&s->o, *id);
    if (out->stopped) return false;
    out->tokens++;
    out->stopped = !emit_token(s, *id);
    return !out->stopped && out->tokens < s->o.tokens;
}

/* A full slot continues as from a prompt of its later half and the new token. */
static err start_over(generation *d, int slot, int32_t id) {
    sequence *s = &d->slot[slot];
    int64_t half = MAX(d->g->positions / 2, 1);
    memmove(s->text, s->text + s->at - half, (size_t)half * sizeof *s->text);
    s->made = MAX(0, s->made - (s->at - half));
    s->at = half;
    s->prompt = 0;
    if (s->at < d->g->positions) s->text[s->at++] = id;
    return run_prompt(d, slot, 0, s->at);
}

err generation_step(generation *d) {
    int slot[2][GENERATOR_SLOTS], n[2] = { 0 };
    int32_t id;
    for (int i = 0; i < d->g->slots; i++) {
        sequence *s = &d->slot[i];
        if (!s->busy) continue;
        if (!choose_next(d, s, &id)) {
            end_sequence(s);
        } else if (s->at == d->g->positions) {
            TRY(start_over(d, i, id));
        } else {
            s->text[s->at++] = id;
            bool beyond = is_rotated_long(d->g, s->at);
            if (beyond && !is_rotated_long(d->g, s->at - 1)) {
                s->prompt = 0; /* it continues as from a prompt of all its tokens */
                TRY(run_prompt(d, i, 0, s->at));
            } else {
                slot[beyond][n[beyond]++] = i;
            }
        }
    }
    if (n[0]) TRY(run_last_tokens(d, slot[0], n[0]));
    return n[1] ? run_last_tokens(d, slot[1], n[1]) : OK;
}

err generation_run(generation *d, int64_t n, err (*add)(void *ctx, int64_t i), void *ctx) {
    for (int64_t i = 0; i < n || generation_busy(d);) {
        while (i < n && generation_has_slot(d)) TRY(add(ctx, i++));
        TRY(generation_step(d));
    }
    return OK;
}
