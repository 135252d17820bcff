/* Encoding: text, split at added tokens, normalized, split at those that match normalized text, split
 * by the rules, and each piece turned into ids, from the cache where it was met before.
 *
 *     encoder_add -> encode_segments(raw) -> add_normal -> encode_segments(normal) -> add_split -> add_piece
 *                                           nothing but a scanner to run: -> add_scanned
 *                                           words of a SentencePiece Unigram model: -> add_words
 */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/cache.h"
#include "tokenizer/chars_internal.h"
#include "tokenizer/tokenizer_internal.h"

/* The ids of a part that is a single character of three bytes: it is found by its number, without a hash. */
typedef struct char_ids {
    int32_t id[3];
    uint32_t n; /* 0: not known yet */
} char_ids;

enum { BATCH = 256 }; /* pieces and parts that are looked up together */

struct encoder {
    const tokenizer *t;
    cache cache;
    char_ids *chars; /* [ADJACENCY_CHARS]; NULL: pieces are never split */
    bpe_work work;
    bpe_job *jobs; /* [BATCH] scratch; NULL like chars */
    token_ids job_ids;
    unigram_work path;
    regex_work *regex;
    bool special; /* of the text at hand */
    bool escaped; /* its broken bytes are written as code points */
    token_ids *out;
    str escapes, unescaped, normal[2], changed[MAX_STEPS][2]; /* scratch */
};

encoder *encoder_new(const tokenizer *t) {
    encoder *e = mem_alloc(sizeof *e);
    e->t = t;
    e->regex = regex_work_new(true);
    cache_init(&e->cache);
    if (t->adjacency.whole) {
        e->chars = mem_alloc(ADJACENCY_CHARS * sizeof *e->chars);
        e->jobs = mem_alloc(BATCH * sizeof *e->jobs);
    }
    return e;
}

void encoder_free(encoder *e) {
    if (!e) return;
    cache_free(&e->cache);
    free(e->chars);
    free(e->jobs);
    token_ids_free(&e->job_ids);
    bpe_work_free(&e->work);
    unigram_work_free(&e->path);
    regex_work_free(e->regex);
    str_free(&e->escapes);
    str_free(&e->unescaped);
    for (int i = 0; i < 2; i++) str_free(&e->normal[i]);
    for (int i = 0; i < 2 * MAX_STEPS; i++) str_free(&e->changed[i / 2][i % 2]);
    free(e);
}

void token_ids_free(token_ids *ids) {
    free(ids->at);
    *ids = (token_ids){ 0 };
}

/* Reserves n more ids, and one entry of the cache, which is copied whole. */
static void reserve_token_ids(token_ids *ids, size_t more) {
    size_t need = ids->n + more + CACHE_INLINE;
    if (need <= ids->cap) return;
    ids->cap = MAX(need, 2 * ids->cap);
    ids->at = mem_grow(ids->at, ids->cap * sizeof *ids->at);
}

void token_ids_add(token_ids *ids, const int32_t *more, size_t n) {
    if (n == 0) return;
    reserve_token_ids(ids, n);
    memcpy(ids->at + ids->n, more, n * sizeof *more);
    ids->n += n;
}

/* ---- pieces -------------------------------------------------------------------------------------- */

static void store_ids(encoder *e, const int32_t *ids, size_t n) {
    memcpy(e->out->at + e->out->n, ids, n * sizeof *ids);
    e->out->n += n;
}

static void add_new(encoder *e, cache_key key, const char *piece, size_t len) {
    size_t n;
    const tokenizer *t = e->t;
    const int32_t *ids = t->unigram ? unigram_piece(t->unigram, &t->bpe, &e->path, piece, len, &n)
                                    : bpe_piece(&t->bpe, &e->work, piece, len, &n);
    bool lasts = !t->unigram || !t->unigram->single.score;
    if (lasts && len <= CACHE_LONGEST) cache_add(&e->cache, key, piece, len, ids, n);
    store_ids(e, ids, n);
}

static void add_long(encoder *e, cache_key key, const char *piece, size_t len) {
    size_t n;
    const int32_t *ids = NULL;
    if (len <= CACHE_LONGEST) ids = cache_find_long(&e->cache, key, piece, len, &n);
    if (ids)
        store_ids(e, ids, n);
    else
        add_new(e, key, piece, len);
}

/* @param readable bytes from the piece on. */
static inline cache_key piece_key(const char *piece, size_t len, size_t readable) {
    if (len > CACHE_SHORT) return cache_key_long(piece, MIN(len, CACHE_LONGEST));
    return readable >= 16 ? cache_key_of(piece, len) : cache_key_at_end(piece, len);
}

/* The buffer holds an id for each byte. */
static void add_piece(encoder *e, cache_key key, const char *piece, size_t len) {
    if (len > CACHE_SHORT) {
        add_long(e, key, piece, len);
        return;
    }
    const cache_entry *c = cache_find(cache_set(&e->cache, key), key);
    if (c)
        store_ids(e, c->n <= CACHE_INLINE ? c->id : e->cache.spill + c->id[0], c->n);
    else
        add_new(e, key, piece, len);
}

/* Pieces by the hundred: their keys first, so that the memory they lead to is on its way when they
 * are looked up. Long pieces of scripts that do not separate words are split further (adjacency.c). */
enum { ONE_CHAR = 3 };
typedef struct lookup {
    cache_key key; /* of a single character, its number; of a part that is not cached, its job's */
    cache_entry *set; /* NULL: it is a single character, or not cached */
    size_t len;
} lookup;
/* Pieces that the scanner found; a piece may be split into more parts than fit in a batch. */
typedef struct scanned {
    size_t ends[BATCH];
    int n, next; /* ends[next] is that of the piece at hand */
    struct {
        const char *text;
        int at;     /* in the batch */
    } parts[BATCH]; /* those of the batch that bpe_units_pieces may encode */
    int n_parts;
} scanned;

/* Prepares what follows `from` up to a piece that may have parts.
 * @return how many pieces. */
static inline int prepare_pieces(const encoder *e, const char *text, size_t n, size_t *from,
                                 const size_t *ends, int pieces, uint64_t stop,
                                 lookup *restrict at) {
    size_t begin = *from;
    int i = 0;
    for (; i < pieces; i++) {
        size_t len = ends[i] - begin;
        cache_key key = piece_key(text + begin, len, n - begin);
        if (key.low & stop) break;
        at[i] = (lookup){ key, cache_set(&e->cache, key), len };
        __builtin_prefetch(at[i].set);
        begin = ends[i];
    }
    *from = begin;
    return i;
}

/* Prepares the characters of three bytes that follow `from` and are parts of their own, up to a part that is not or
 * the end of the piece. @return how many. */
static inline int prepare_chars(const adjacency *a, const char *text, size_t *from, size_t end,
                                int most, lookup *restrict at) {
    size_t begin = *from;
    int n = 0;
    if (begin + ONE_CHAR > end || !is_three_bytes(text + begin)) return 0;
    for (uint32_t here = three_bytes_number(text + begin), next = 0; n < most; here = next) {
        size_t after = begin + ONE_CHAR;
        if (after < end) {
            if (after + ONE_CHAR > end || !is_three_bytes(text + after)) break;
            next = three_bytes_number(text + after);
            if (adjacency_covers(a, here, next)) break;
        }
        at[n++] = (lookup){ { here, 0 }, NULL, ONE_CHAR };
        begin = after;
        if (begin == end) break;
    }
    *from = begin;
    return n;
}

/* Whether a part may occur often enough to be cached: it is short, or not of characters of three bytes. */
static bool is_cached_part(const char *part, size_t len) {
    enum { MOSTLY_NEW = 25 }; /* bytes from which on other parts are */
    return len < MOSTLY_NEW || len > BPE_JOB_BYTES || !is_three_bytes(part + len - ONE_CHAR);
}

/* @return how many pieces and parts. @param bytes they have in all. */
static int prepare_text(const encoder *e, const char *text, size_t n, size_t from, scanned *s,
                        lookup *at, size_t *bytes) {
    const uint64_t not_ascii = e->t->adjacency.whole ? 0x8080808080808080u : 0;
    const bool has_units = e->t->bpe.units != NULL;
    size_t begin = from;
    int count = 0;
    s->n_parts = 0;
    if (s->next == s->n) {
        s->n = e->t->scan(text, n, from, s->ends, BATCH);
        s->next = 0;
    }
    while (count < BATCH && s->next < s->n) {
        int left = MIN(BATCH - count, s->n - s->next);
        int plain =
            prepare_pieces(e, text, n, &from, s->ends + s->next, left, not_ascii, at + count);
        count += plain;
        s->next += plain;
        size_t end = plain < left ? s->ends[s->next] : from;
        for (; from < end && count < BATCH; count++) {
            count += prepare_chars(&e->t->adjacency, text, &from, end, BATCH - count, at + count);
            if (from == end || count == BATCH) break;
            size_t part = adjacency_part_end(&e->t->adjacency, text, from, end), len = part - from;
            at[count] = (lookup){ .len = len };
            if (!has_units || is_cached_part(text + from, len)) {
                at[count].key = piece_key(text + from, len, n - from);
                at[count].set = cache_set(&e->cache, at[count].key);
                __builtin_prefetch(at[count].set);
            }
            s->parts[s->n_parts].text = text + from;
            s->parts[s->n_parts].at = count;
            s->n_parts += has_units && len <= BPE_JOB_BYTES;
            from = part;
        }
        s->next += plain < left && from == end;
    }
    *bytes = from - begin;
    return count;
}

/* Encodes the parts that the cache does not hold, several at a time, and adds to it those that are to be cached.
 * @param bytes of the batch. */
static void encode_parts(encoder *e, const scanned *s, lookup *at, size_t bytes) {
    const bpe *b = &e->t->bpe;
    size_t jobs = 0, n;
    e->job_ids.n = 0;
    if (s->n_parts) reserve_token_ids(&e->job_ids, bytes);
    for (int i = 0; i < s->n_parts; i++) {
        lookup *l = &at[s->parts[i].at];
        const char *part = s->parts[i].text;
        if (!l->set)
            l->key.low = jobs;
        else if (l->len > CACHE_SHORT ? cache_find_long(&e->cache, l->key, part, l->len, &n) != NULL
                                      : cache_find(l->set, l->key) != NULL)
            continue;
        e->jobs[jobs++] = (bpe_job){ part, l->len, 0, e->job_ids.at + e->job_ids.n };
        e->job_ids.n += l->len;
    }
    bpe_units_pieces(b, e->jobs, jobs);
    for (size_t k = 0; k < jobs; k++) {
        const bpe_job *job = &e->jobs[k];
        if (job->n == 0 || !is_cached_part(job->piece, job->len)) continue;
        cache_key key = piece_key(job->piece, job->len, job->len);
        cache_add(&e->cache, key, job->piece, job->len, job->ids, job->n);
    }
}

static const char_ids *char_ids_of(encoder *e, uint32_t number, const char *text) {
    char_ids *c = &e->chars[number];
    if (c->n) return c;
    size_t n;
    const int32_t *ids = bpe_piece(&e->t->bpe, &e->work, text, ONE_CHAR, &n);
    memcpy(c->id, ids, n * sizeof *ids);
    c->n = (uint32_t)n;
    return c;
}

static void add_job(encoder *e, const bpe_job *job) {
    size_t n = job->n;
    const int32_t *ids = job->ids;
    if (n == 0) ids = bpe_piece(&e->t->bpe, &e->work, job->piece, job->len, &n);
    store_ids(e, ids, n);
}

static void add_scanned(encoder *e, const char *text, size_t n) {
    lookup at[BATCH];
    scanned found = { .n = 0 };
    for (size_t from = 0, bytes; from < n;) {
        int pieces = prepare_text(e, text, n, from, &found, at, &bytes);
        reserve_token_ids(e->out, bytes);
        encode_parts(e, &found, at, bytes);
        int32_t *out = e->out->at + e->out->n;
        for (int i = 0; i < pieces; from += at[i++].len) {
            if (!at[i].set && at[i].len == ONE_CHAR) {
                const char_ids *c = char_ids_of(e, (uint32_t)at[i].key.low, text + from);
                memcpy(out, c->id, sizeof c->id);
                out += c->n;
                continue;
            }
            bool is_short = at[i].len <= CACHE_SHORT;
            const cache_entry *c = is_short ? cache_find(at[i].set, at[i].key) : NULL;
            if (c && c->n <= CACHE_INLINE) {
                memcpy(out, c->id, sizeof c->id);
                out += c->n;
                continue;
            }
            e->out->n = (size_t)(out - e->out->at);
            if (at[i].set)
                add_piece(e, at[i].key, text + from, at[i].len);
            else
                add_job(e, &e->jobs[at[i].key.low]);
            out = e->out->at + e->out->n;
        }
        e->out->n = (size_t)(out - e->out->at);
    }
}

/* ---- words of a SentencePiece Unigram model -------------------------------------------------------- */

/* Words whose ids what came before can change are known by an entry without ids. @param set NULL: not cached. */
static void add_unigram_word(encoder *e, const char *word, size_t len, cache_key key,
                             cache_entry *set) {
    const unigram *u = e->t->unigram;
    unigram_work *w = &e->path;
    size_t n = 0;
    const int32_t *ids = NULL;
    if (set && unigram_float_is_near(&u->single, w, len)) {
        bool is_long = len > CACHE_SHORT, known;
        const cache_entry *c = is_long ? NULL : cache_find(set, key);
        if (c) n = c->n, ids = n <= CACHE_INLINE ? c->id : e->cache.spill + c->id[0];
        if (is_long) ids = cache_find_long(&e->cache, key, word, len, &n);
        known = ids != NULL;
        size_t chars;
        if (!known && unigram_float_decided(u, w, word, len, &chars)) {
            unigram_work_reserve_ids(w, len);
            w->n = 0;
            unigram_collect(u, &e->t->bpe, w, word, chars);
            ids = w->ids, n = w->n;
        }
        if (!known) cache_add(&e->cache, key, word, len, ids, n);
        for (size_t i = 0; i < n; i++) w->carried += u->single.score[ids[i]];
    }
    if (n == 0) ids = unigram_piece(u, &e->t->bpe, w, word, len, &n);
    store_ids(e, ids, n);
}

/* Whether a word occurs often enough to be cached: it is short, or of a script that separates words. */
static bool is_cached_word(const char *word, size_t len) {
    enum { MARK = 3, GLANCE = 8 };
    uint64_t bytes;
    if (len <= CACHE_SHORT) return true;
    memcpy(&bytes, word + MARK, GLANCE);
    return len <= UNIGRAM_CACHED && (bytes & 0x8080808080808080u) == 0;
}

static void add_words(encoder *e, const char *text, size_t n) {
    size_t ends[BATCH];
    lookup at[BATCH];
    for (size_t from = 0; from < n;) {
        int words = scan_words(text, n, from, ends, BATCH);
        size_t begin = from;
        for (int i = 0; i < words; begin = ends[i++]) {
            at[i] = (lookup){ .len = ends[i] - begin };
            if (!is_cached_word(text + begin, at[i].len)) continue;
            at[i].key = piece_key(text + begin, at[i].len, n - begin);
            at[i].set = cache_set(&e->cache, at[i].key);
            __builtin_prefetch(at[i].set);
        }
        reserve_token_ids(e->out, begin - from);
        for (int i = 0; i < words; from += at[i++].len)
            add_unigram_word(e, text + from, at[i].len, at[i].key, at[i].set);
    }
}

/* ---- splits ---------------------------------------------------------------------------------------- */

static void add_split(encoder *e, int step, text_span piece, bool first);

static void encode_piece(encoder *e, text_span piece) {
    if (e->escaped) {
        e->unescaped.len = 0;
        chars_unescape(piece.at, piece.len, &e->unescaped);
        piece = (text_span){ e->unescaped.text, e->unescaped.len };
    }
    reserve_token_ids(e->out, piece.len);
    add_piece(e, piece_key(piece.at, piece.len, piece.len), piece.at, piece.len);
}

static bool begins_with(text_span s, const char *prefix) {
    return s.len >= strlen(prefix) && memcmp(s.at, prefix, strlen(prefix)) == 0;
}

/* Changes a piece as the step asks, before it is split. */
static text_span apply_split_step(const split_step *c, text_span piece, bool first, str out[2]) {
    if (c->space) {
        out[0].len = 0;
        for (const char *p = piece.at, *end = p + piece.len, *gap; p; p = gap ? gap + 1 : NULL) {
            gap = memchr(p, ' ', (size_t)(end - p));
            str_add_bytes(&out[0], p, (size_t)((gap ? gap : end) - p));
            if (gap) str_add(&out[0], "%s", c->space);
        }
        piece = (text_span){ out[0].text, out[0].len };
    }
    bool wanted = c->scheme == PREPEND_ALWAYS || (c->scheme == PREPEND_FIRST && first);
    if (!c->prepend || !wanted || begins_with(piece, c->prepend)) return piece;
    out[1].len = 0;
    str_add(&out[1], "%s", c->prepend);
    str_add_bytes(&out[1], piece.at, piece.len);
    return (text_span){ out[1].text, out[1].len };
}

/* Whether a part is joined to the one before it. */
static bool joins_previous(split_behavior how, bool match_before, bool match) {
    switch (how) {
    case SPLIT_CONTIGUOUS: return match == match_before;
    case SPLIT_WITH_PREVIOUS: return match && !match_before;
    case SPLIT_WITH_NEXT: return !match && match_before;
    case SPLIT_ISOLATED:
    case SPLIT_REMOVED: break;
    }
    return false;
}

/* Parts, one after another, held back until it is known that nothing joins them. */
typedef struct piece_splitter {
    encoder *e;
    int step;
    bool first;
    text_span text;
    size_t start, end; /* of the part held */
    bool held, match;
} piece_splitter;

static void flush_pieces(piece_splitter *c) {
    const split_step *s = &c->e->t->splits[c->step];
    bool drop = s->behavior == SPLIT_REMOVED && c->match;
    text_span part = { c->text.at + c->start, c->end - c->start };
    if (c->held && part.len && !drop) add_split(c->e, c->step + 1, part, c->first && c->start == 0);
    c->held = false;
}

static void split_part(piece_splitter *c, size_t start, size_t end, bool match) {
    const split_step *s = &c->e->t->splits[c->step];
    match ^= s->invert;
    if (c->held && joins_previous(s->behavior, c->match, match)) {
        c->end = end;
    } else {
        flush_pieces(c);
        c->start = start, c->end = end;
        c->held = true;
    }
    c->match = match;
}

static void add_split(encoder *e, int step, text_span piece, bool first) {
    if (step == e->t->n_splits) {
        encode_piece(e, piece);
        return;
    }
    const split_step *s = &e->t->splits[step];
    piece = apply_split_step(s, piece, first, e->changed[step]);
    piece_splitter c = { .e = e, .step = step, .first = first, .text = piece };
    finder_cursor p = { 0 };
    size_t done = 0, start, end;
    while (finder_walk(&s->find, e->regex, piece.at, piece.len, &p, &start, &end)) {
        if (start > done) split_part(&c, done, start, false);
        split_part(&c, start, end, true);
        done = end;
    }
    if (done < piece.len) split_part(&c, done, piece.len, false);
    flush_pieces(&c);
}

/* ---- segments between added tokens ------------------------------------------------------------------ */

typedef void (*segment_fn)(encoder *e, text_span segment, bool first);

static void encode_segments(encoder *e, const added_set *s, text_span text, bool first,
                            segment_fn next) {
    added_match m = { .end = 0 };
    size_t done = 0, from = 0;
    while (added_next(s, text.at, text.len, &from, e->special, &m)) {
        if (m.start > done)
            next(e, (text_span){ text.at + done, m.start - done }, first && done == 0);
        if (m.start < m.end) token_ids_add(e->out, &m.token->id, 1);
        done = m.end;
    }
    if (done < text.len)
        next(e, (text_span){ text.at + done, text.len - done }, first && done == 0);
}

static void add_normal_segment(encoder *e, text_span text, bool first) {
    if (e->t->scan)
        add_scanned(e, text.at, text.len);
    else if (e->t->by_words && !e->escaped)
        add_words(e, text.at, text.len);
    else
        add_split(e, 0, text, first);
}

static void add_raw_segment(encoder *e, text_span text, bool first) {
    const tokenizer *t = e->t;
    e->path.carried = 0;
    e->escaped = !t->scan && utf8_valid(text.at, text.len) < text.len;
    if (e->escaped) {
        e->escapes.len = 0;
        chars_escape(text.at, text.len, &e->escapes);
        text = (text_span){ e->escapes.text, e->escapes.len };
    }
    text = normalize_text(t->norms, t->n_norms, e->regex, text, e->normal);
    encode_segments(e, &t->normal, text, first, add_normal_segment);
}

void encoder_add(encoder *e, const char *text, size_t n, bool special, token_ids *out) {
    e->out = out;
    e->special = special;
    encode_segments(e, &e->t->raw, (text_span){ text, n }, true, add_raw_segment);
}

void encoder_add_affixed(encoder *e, const char *text, size_t n, bool special, token_ids *out) {
    const token_affixes *a = &e->t->affixes;
    token_ids_add(out, a->prefix, (size_t)a->n_prefix);
    encoder_add(e, text, n, special, out);
    token_ids_add(out, a->suffix, (size_t)a->n_suffix);
}

size_t encoder_add_prefixed(encoder *e, const char *text, size_t n, bool special, token_ids *out) {
    const token_affixes *a = &e->t->affixes;
    size_t begin = out->n, len = (size_t)a->n_prefix, size = len * sizeof *a->prefix;
    token_ids_add(out, a->prefix, len);
    encoder_add(e, text, n, special, out);
    int32_t *own = out->at + begin + len; /* what the text gave */
    bool there = len && out->n - begin >= 2 * len && memcmp(own, a->prefix, size) == 0;
    if (!there) return len;
    out->n -= len;
    memmove(own - len, own, (out->n - begin) * sizeof *own);
    return 0;
}
