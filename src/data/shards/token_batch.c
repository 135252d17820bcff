/* Makes one row of a batch from one window: tokens, targets, positions, document starts.
 *
 * A row is made in passes, each a plain loop that the compiler vectorizes; only the few documents
 * of a row are handled one by one. */
#include "shards/data_internal.h"

#include <string.h>

/* ---- the tokens of a window --------------------------------------------------------------------
 * Without packing a window is seq_len tokens and the target of the last. The windows of epoch 0
 * begin at the range's first token. In later epochs, where the source shifts, they begin at an offset
 * of the epoch's own, and the range is a ring: the window that crosses its end is two pieces, the
 * range's last tokens and its first, which are as separate as two documents.
 *
 *     epoch 0   |  0  |  1  |  2  |  3  |.|        . dropped: fewer than seq_len + 1 tokens
 *     epoch 1   | 2' |.|  0  |  1  |  2  | 3' ...  a window that begins at the range's end
 *               ^ range.from               ^ continues at its beginning
 */

/* Separates these draws from those of other users of the seed. */
static const uint64_t DRAWS_OFFSET = (uint64_t)0x6f6666736574 << 16; /* "offset" */

static int64_t epoch_offset(const window_source *s, int64_t epoch) {
    if (!s->shifts || epoch == 0) return 0;
    rng_key key = rng_key_of(s->seed, DRAWS_OFFSET + (uint64_t)epoch);
    return (int64_t)rng_below(key, 0, (uint64_t)(s->range.to - s->range.from));
}

/* @return the pieces of a window. @param own memory for the pieces of a window that is not packed. */
static const packed_piece *window_pieces(const window_source *s, const loader_options *o,
                                         window_ref w, packed *held, packed_piece own[2], int *n) {
    if (s->pack) return packing_window(s->pack, w.window, held, n);
    int64_t T = o->seq_len, all = s->range.to - s->range.from;
    int64_t begin = epoch_offset(s, w.epoch) + w.window * T, here = begin;
    if (s->shifts && here >= all) here -= all;
    int64_t left = MAX(0, all - here), rest = s->shifts ? T - MIN(left, T) : 0;
    own[0] = (packed_piece){ s->range.from + here, (int32_t)MIN(left, T), left > T };
    own[1] = (packed_piece){ s->range.from, (int32_t)rest, true };
    *n = (left > 0) + (rest > 0);
    return own;
}

int64_t window_first_token(const window_source *s, const loader_options *o, window_ref w) {
    packed held = { 0 };
    packed_piece own[2];
    int n;
    const packed_piece *p = window_pieces(s, o, w, &held, own, &n);
    int64_t first = n ? p[0].from : s->range.from;
    packed_free(&held);
    return first;
}

/* Finds the tokens that end documents in an eos-parted piece. @return how many. */
static int find_eos_tokens(const token_view *v, int32_t eos, int32_t *ends) {
    enum { STRIDE = 128 };
    int found = 0;
    for (int64_t i = 0; i < v->n; i += STRIDE) {
        int64_t to = MIN(i + STRIDE, v->n), left = view_count(v, i, to, eos);
        for (int64_t k = i; left > 0; k++)
            if (view_token(v, k) == eos) ends[found++] = (int32_t)k, left--;
    }
    return found;
}

/* The same by the index, for sources without an id that ends documents. */
static int find_indexed(const data_source *s, int64_t from, int64_t n, int32_t *ends) {
    int found = 0;
    for (int64_t d = data_document_of(s, from); d < s->info.documents; d++) {
        int64_t end = data_document(s, d).to - from - 1;
        if (end >= n) break;
        ends[found++] = (int32_t)end;
    }
    return found;
}

/* The tokens of one piece that end a document. A packed piece ends at most one: !p->more. */
static int find_ends(const window_source *s, const loader_options *o, const packed_piece *p,
                     const token_view *v, int32_t *ends) {
    if (!o->mask_documents) return 0;
    if (s->pack) {
        ends[0] = p->n - 1;
        return !p->more;
    }
    if (s->source->info.eos >= 0) return find_eos_tokens(v, s->source->info.eos, ends);
    return s->source->indexed ? find_indexed(s->source, p->from, p->n, ends) : 0;
}

/* Masks the targets of a piece that are tokens of prompts. The last token of a prompt has a target, the first one after it.
 * @param targets NULL: they are only counted. @return how many had a loss until then */
static int64_t mask_prompts(const window_source *s, const loader_options *o, const packed_piece *p,
                            const token_view *v, int32_t *targets) {
    const data_source *from = s->source;
    int64_t end = p->from + p->n + p->more, masked = 0;
    if (!from->info.prompts) return 0;
    for (int64_t d = data_document_of(from, p->from); d < from->info.documents; d++) {
        int64_t begin = data_document(from, d).from, to = begin + data_document_prompt(from, d);
        if (begin >= end) break;
        for (int64_t t = MAX(begin, p->from + 1); t < MIN(to, end); t++) {
            int64_t at = t - 1 - p->from; /* of the token before it, whose target it is */
            bool ends = o->mask_documents && !s->pack &&
                        (from->info.eos >= 0 ? view_token(v, at) == from->info.eos : t == begin);
            masked += targets ? targets[at] != DATA_NO_TARGET : !ends;
            if (targets) targets[at] = DATA_NO_TARGET;
        }
    }
    return masked;
}

static int64_t piece_targets(const window_source *s, const loader_options *o, const packed_piece *p,
                             const token_view *v, int32_t *ends) {
    int64_t inputs = p->n - !p->more; /* with a token after them */
    if (s->pack || !o->mask_documents) return inputs;
    if (s->source->info.eos >= 0) return inputs - view_count(v, 0, inputs, s->source->info.eos);
    packed_piece part = { p->from, (int32_t)inputs, true };
    return inputs - find_ends(s, o, &part, v, ends);
}

/* ---- windows to reject --------------------------------------------------------------------- */

static err beyond_vocabulary(const window_source *s, int64_t limit, const packed_piece *p) {
    int64_t at = 0;
    while ((uint32_t)data_token(s->source, p->from + at) < limit) at++;
    return err_hint(ERR("%s: token %lld has id %lld, the model's vocabulary ends at %lld",
                        s->source->info.path, (long long)(p->from + at),
                        (long long)(uint32_t)data_token(s->source, p->from + at),
                        (long long)limit - 1),
                    "the file was made with another tokenizer, or it is damaged; `ingot data "
                    "inspect` shows what it holds");
}

/* Also the token after the piece, which is a target. */
static bool is_beyond(const window_source *s, const loader_options *o, const packed_piece *p,
                      const token_view *v) {
    if (o->vocab_limit <= 0 || (v->width == 2 && o->vocab_limit > UINT16_MAX)) return false;
    if (s->source->below > 0 && s->source->below <= o->vocab_limit) return false;
    if (view_largest(v) >= o->vocab_limit) return true;
    return p->more && (uint32_t)data_token(s->source, p->from + p->n) >= o->vocab_limit;
}

static bool guard_applies(const loader_options *o) { return o->guard.on && !o->evaluation; }

/* Holds the tokens of pieces, and the token after each, which is a target. @return an error, when none is held. */
static err hold_pieces(const window_source *s, const packed_piece *p, int n) {
    for (int i = 0; i < n; i++) {
        err e = data_hold(s->source, p[i].from, p[i].n + p[i].more);
        if (!e) continue;
        while (i-- > 0) data_release(s->source, p[i].from, p[i].n + p[i].more);
        return e;
    }
    return OK;
}

static void release_pieces(const window_source *s, const packed_piece *p, int n) {
    for (int i = 0; i < n; i++) data_release(s->source, p[i].from, p[i].n + p[i].more);
}

static int64_t count_piece_targets(const window_source *s, const loader_options *o,
                                   const packed_piece *p, int n, row_maker *m) {
    int64_t used = 0, valid = 0;
    token_view all = { m->ids, 4, 0 };
    for (int i = 0; i < n; i++) {
        token_view v = source_view(s->source, p[i].from, p[i].n, m->ids + used);
        if (guard_applies(o) && is_beyond(s, o, &p[i], &v)) return 0;
        valid += piece_targets(s, o, &p[i], &v, m->ends) - mask_prompts(s, o, &p[i], &v, NULL);
        if (n == 1)
            all = v;
        else if (guard_applies(o))
            data_read(s->source, p[i].from, p[i].n, m->ids + used);
        used += p[i].n;
    }
    all.n = used;
    return guard_applies(o) && guard_judge(&o->guard, s->text, &all, &m->guard) != GUARD_FINE
               ? 0
               : valid;
}

err window_valid(const window_source *s, const loader_options *o, window_ref w, row_maker *m,
                 int64_t *valid) {
    packed_piece own[2];
    int n;
    const packed_piece *p = window_pieces(s, o, w, &m->held[w.source], own, &n);
    TRY(hold_pieces(s, p, n));
    *valid = count_piece_targets(s, o, p, n, m);
    release_pieces(s, p, n);
    return OK;
}

void window_request(const window_source *s, const loader_options *o, window_ref w) {
    packed_piece own[2];
    int n = 0;
    if (s->pack) return;
    const packed_piece *p = window_pieces(s, o, w, NULL, own, &n);
    for (int i = 0; i < n; i++) source_request(s->source, p[i].from, p[i].n + p[i].more);
}

void window_prefetch(const window_source *s, const loader_options *o, window_ref w) {
    enum { LINE = 64, READ = 0, FAR_CACHE = 1 }; /* the nearest one has few requests in flight */
    packed_piece own[2];
    int pieces;
    if (s->pack) return;
    const packed_piece *p = window_pieces(s, o, w, NULL, own, &pieces);
    if (pieces == 0) return;
    const data_shard *shard = source_shard(s->source, p->from);
    int64_t at = p->from - shard->first, n = MIN(p->n, shard->n - at);
    const char *tokens = (const char *)shard->tokens + at * shard->width;
    for (int64_t byte = 0; byte < n * shard->width; byte += LINE)
        __builtin_prefetch(tokens + byte, READ, FAR_CACHE);
}

/* ---- filling a row ----------------------------------------------------------------------------- */

/* Rising numbers by four vectors at a time, so that one sum does not wait for the other: left to the
 * compiler these loops take twice as long. */
typedef int64_t i64x2 __attribute__((vector_size(16)));
typedef int32_t i32x4 __attribute__((vector_size(16)));

static void fill_ids(int64_t *out, int64_t n, int64_t first) {
    i64x2 a = { first, first + 1 }, b = a + 2, c = a + 4, d = a + 6;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        memcpy(out + i, &a, sizeof a);
        memcpy(out + i + 2, &b, sizeof b);
        memcpy(out + i + 4, &c, sizeof c);
        memcpy(out + i + 6, &d, sizeof d);
        a += 8, b += 8, c += 8, d += 8;
    }
    for (; i < n; i++) out[i] = first + i;
}

/* first, first + by, first + 2 by ... */
static void fill_steps(int32_t *out, int64_t n, int32_t first, int32_t by) {
    i32x4 a = { first, first + by, first + 2 * by, first + 3 * by };
    i32x4 b = a + 4 * by, c = a + 8 * by, d = a + 12 * by;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        memcpy(out + i, &a, sizeof a);
        memcpy(out + i + 4, &b, sizeof b);
        memcpy(out + i + 8, &c, sizeof c);
        memcpy(out + i + 12, &d, sizeof d);
        a += 16 * by, b += 16 * by, c += 16 * by, d += 16 * by;
    }
    for (; i < n; i++) out[i] = first + (int32_t)i * by;
}

static void fill_same(int32_t *out, int64_t n, int32_t value) { fill_steps(out, n, value, 0); }

/* Copies tokens and, shifted by one, targets, widened from the stored ids. */
static void copy_narrow(const uint16_t *restrict from, int64_t n, int32_t *restrict tokens,
                        int32_t *restrict targets) {
    for (int64_t i = 0; i < n - 1; i++) {
        tokens[i] = from[i];
        targets[i] = from[i + 1];
    }
    tokens[n - 1] = from[n - 1];
}

static void copy_tokens(const token_view *v, int32_t *tokens, int32_t *targets) {
    if (v->width == 2) {
        copy_narrow(v->at, v->n, tokens, targets);
        return;
    }
    memcpy(tokens, v->at, (size_t)v->n * sizeof *tokens);
    memcpy(targets, (const int32_t *)v->at + 1, (size_t)(v->n - 1) * sizeof *targets);
}

/* Tokens [at, at + n) of the batch attend to one another and to nothing before them; the curriculum
 * splits them into pieces of `limit`. */
static void fill_document(data_batch *b, int64_t at, int64_t n, int64_t limit) {
    for (int64_t from = 0; from < n; from += limit) {
        int32_t here = (int32_t)MIN(limit, n - from), first = (int32_t)(at + from);
        fill_steps(b->pos + first, here, 0, 1);
        fill_same(b->start + first, here, first);
    }
}

/* Puts one piece at `at` in the batch. @return its targets. */
static int64_t fill_piece(const window_source *s, const loader_options *o, const packed_piece *p,
                          const token_view *v, int64_t limit, int32_t *ends, int64_t at,
                          data_batch *b) {
    int32_t *targets = b->targets + at;
    copy_tokens(v, b->tokens + at, targets);
    targets[p->n - 1] = p->more ? data_token(s->source, p->from + p->n) : DATA_NO_TARGET;
    fill_ids(b->id + at, p->n, s->first + p->from);
    int n_ends = find_ends(s, o, p, v, ends);
    int64_t begin = 0, valid = p->n - !p->more;
    for (int i = 0; i < n_ends; i++) {
        valid -= targets[ends[i]] != DATA_NO_TARGET;
        targets[ends[i]] = DATA_NO_TARGET;
        fill_document(b, at + begin, ends[i] + 1 - begin, limit);
        begin = ends[i] + 1;
    }
    fill_document(b, at + begin, p->n - begin, limit);
    return valid - mask_prompts(s, o, p, v, targets);
}

/* Padding is a document of its own, whose tokens have no target. */
static void fill_padding(data_batch *b, int64_t at, int64_t n, int64_t limit) {
    fill_same(b->tokens + at, n, 0);
    fill_same(b->targets + at, n, DATA_NO_TARGET);
    fill_ids(b->id + at, n, 0);
    fill_document(b, at, n, limit);
}

/* Fills a row with pieces that are held. */
static err fill_row(const window_source *s, const loader_options *o, window_ref w,
                    const packed_piece *p, int n, int64_t limit, row_maker *m, int64_t row,
                    data_batch *b) {
    int64_t T = o->seq_len, at = row * T, used = 0, valid = 0;
    bool beyond = false;
    for (int i = 0; i < n; i++) {
        token_view v = source_view(s->source, p[i].from, p[i].n, m->ids);
        beyond = beyond || is_beyond(s, o, &p[i], &v);
        if (beyond && !guard_applies(o)) return beyond_vocabulary(s, o->vocab_limit, &p[i]);
        valid += fill_piece(s, o, &p[i], &v, limit, m->ends, at + used, b);
        used += p[i].n;
    }
    fill_padding(b, at + used, T - used, limit);
    guard_verdict verdict = GUARD_FINE;
    if (beyond)
        verdict = GUARD_VOCABULARY;
    else if (guard_applies(o))
        verdict =
            guard_judge(&o->guard, s->text, &(token_view){ b->tokens + at, 4, used }, &m->guard);
    if (verdict != GUARD_FINE) {
        fill_same(b->targets + at, T, DATA_NO_TARGET);
        valid = 0;
    }
    if (beyond) fill_same(b->tokens + at, T, 0); /* no row of the embedding has such ids */
    bool real = n > 0 && (s->pack || used + p[n - 1].more > 1);
    b->valid_here += valid;
    b->window[row] = real ? w.window : -1;
    b->source[row] = w.source;
    b->row_valid[row] = valid;
    b->guard[row] = (uint8_t)verdict;
    return OK;
}

err window_fill(const window_source *s, const loader_options *o, window_ref w, int64_t limit,
                row_maker *m, int64_t row, data_batch *b) {
    packed_piece own[2];
    int n;
    const packed_piece *p = window_pieces(s, o, w, &m->held[w.source], own, &n);
    TRY(hold_pieces(s, p, n));
    err e = fill_row(s, o, w, p, n, limit, m, row, b);
    release_pieces(s, p, n);
    return e;
}
