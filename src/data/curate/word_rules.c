/* Words as datatrove counts them: by spaCy's rules for a language. Text is split at white space, and each chunk
 *
 *     1. is an exception with tokens of its own ("don't": do n't), or else
 *     2. loses prefixes and suffixes, one of each per round, until neither matches, or until an exception or a
 *        whole word by its pattern (a number with its suffix) is left;
 *     3. what is left is an exception, such a whole word, a URL, or is split at infixes ("and/or": and / or);
 *     4. neighboring tokens that together are an exception become it ("x-a.": x - a.).
 *
 * A chunk's tokens depend on nothing else, so that each worker remembers those of short chunks. The patterns and
 * exceptions come from tables (word_tables.c) or from a file (word_rules_read.c), so that they are checked, and a
 * pattern can only split text between characters. Languages without such rules have Unicode's (word_breaks.c). */
#include "curate/word_hash.h"
#include "curate/word_rules_internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    MATCH_LIMIT = 1000000,
    SUFFIX_REACH =
        64, /* bytes that a suffix and what it looks back at have at most, but for dots */
    CACHE_SLOTS = 1 << 16,
    CACHE_CHUNK = 22, /* bytes of a chunk that is remembered, */
    CACHE_WORDS = 7,  /* and the tokens of one */
};

typedef struct cached_chunk {
    char text[CACHE_CHUNK];
    uint8_t len, n; /* len 0: free */
    uint8_t rules;  /* the number of the rules that split it */
    uint8_t bytes[CACHE_WORDS];
} cached_chunk;
_Static_assert(sizeof(cached_chunk) == 32, "two fit in a cache line");

struct word_scratch {
    pcre2_match_data *match;
    pcre2_match_context *context;
    cached_chunk *cache; /* [CACHE_SLOTS] */
    word_breaks *breaks;
    uint32_t *bytes, *suffixes, *merged;
    size_t cap;
};

/* ---- exceptions ------------------------------------------------------------------------------------ */

/* Length and ends distinguish most texts from all exceptions. */
static uint32_t exception_bit(char first, char last, size_t n) {
    uint32_t ends = (uint8_t)first | (uint32_t)(uint8_t)last << 8 | (uint32_t)n << 16;
    return ends * 0x9E3779B1u >> 18;
}

static const word_exception *find_exception(const word_rules *w, const char *s, size_t n) {
    if (n == 0 || n > w->longest) return NULL;
    uint32_t bit = exception_bit(s[0], s[n - 1], n);
    if (!(w->maybe[bit / 64] >> bit % 64 & 1)) return NULL;
    for (uint64_t i = word_hash(s, n) & w->slot_mask; w->slot[i]; i = (i + 1) & w->slot_mask) {
        const word_exception *e = &w->exceptions[w->slot[i] - 1];
        if (strncmp(e->text, s, n) == 0 && e->text[n] == 0) return e;
    }
    return NULL;
}

static void index_exceptions(word_rules *w) {
    size_t slots = 16;
    while (slots < 4 * w->n_exceptions) slots *= 2;
    w->slot = arena_alloc(w->arena, slots * sizeof *w->slot);
    w->slot_mask = slots - 1;
    for (size_t k = 0; k < w->n_exceptions; k++) {
        const char *text = w->exceptions[k].text;
        size_t n = strlen(text);
        uint64_t i = word_hash(text, n) & w->slot_mask;
        uint32_t bit = exception_bit(text[0], text[n - 1], n);
        w->maybe[bit / 64] |= UINT64_C(1) << bit % 64;
        while (w->slot[i]) i = (i + 1) & w->slot_mask;
        w->slot[i] = (uint32_t)(k + 1);
        w->longest = MAX(w->longest, n);
    }
}

/* ---- patterns ---------------------------------------------------------------------------------------- */

static bool find_match(const word_rules *w, word_scratch *s, pattern_kind kind, const char *text,
                       size_t n, size_t from, size_t *begin, size_t *end) {
    const pcre2_code *code = w->pattern[kind];
    PCRE2_SPTR t = (PCRE2_SPTR)text;
    if (!code) return false;
    int rc = pcre2_match(code, t, n, from, PCRE2_NO_UTF_CHECK, s->match, s->context);
    if (rc ==
        PCRE2_ERROR_JIT_STACKLIMIT) /* of a chunk of many kilobytes: the interpreter has no such limit */
        rc = pcre2_match(code, t, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s->match, s->context);
    if (rc < 0)
        return false; /* none, or too costly to find: only a URL of thousands of bytes can be */
    const size_t *at = pcre2_get_ovector_pointer(s->match);
    *begin = at[0];
    *end = at[1];
    return *begin >= from && *begin <= *end; /* before PCRE2 10.38, \K in an assertion moves it */
}

static size_t prefix_length(const word_rules *w, word_scratch *s, const char *t, size_t n) {
    size_t begin, end;
    return find_match(w, s, PREFIX, t, n, 0, &begin, &end) ? end : 0;
}

/* The leftmost match that ends the text. Only dots make a long one, so that the search begins near the end. */
static size_t suffix_length(const word_rules *w, word_scratch *s, const char *t, size_t n) {
    size_t begin, end, from = n;
    while (from > 0 && t[from - 1] == '.') from--;
    from -= MIN(from, SUFFIX_REACH);
    while (from > 0 && ((unsigned char)t[from] & 0xC0) == 0x80) from--;
    return find_match(w, s, SUFFIX, t, n, from, &begin, &end) ? end - begin : 0;
}

/* ---- splitting a chunk --------------------------------------------------------------------------------- */

/* A chunk being split: tokens found at its left end and, in reverse, at its right end. */
typedef struct chunk_split {
    const word_rules *w;
    word_scratch *s;
    bool with_exceptions;
    const char *left; /* what is left of it */
    size_t n;
    size_t n_tokens, n_suffixes;
} chunk_split;

static bool is_whole(const chunk_split *c) {
    size_t begin, end;
    return find_match(c->w, c->s, WHOLE, c->left, c->n, 0, &begin, &end);
}
static const word_exception *exception_at(const chunk_split *c, const char *s, size_t n) {
    return c->with_exceptions ? find_exception(c->w, s, n) : NULL;
}
static void add_word_token(chunk_split *c, size_t bytes) {
    if (bytes) c->s->bytes[c->n_tokens++] = (uint32_t)bytes;
}
static void take_word_prefix(chunk_split *c, size_t bytes) {
    add_word_token(c, bytes);
    c->left += bytes;
    c->n -= bytes;
}
static void take_word_suffix(chunk_split *c, size_t bytes) {
    c->s->suffixes[c->n_suffixes++] = (uint32_t)bytes;
    c->n -= bytes;
}

static void take_affixes(chunk_split *c) {
    for (size_t last = SIZE_MAX; c->n && c->n != last;) {
        if (is_whole(c) || exception_at(c, c->left, c->n)) return;
        last = c->n;
        size_t prefix = prefix_length(c->w, c->s, c->left, c->n);
        if (prefix && exception_at(c, c->left + prefix, c->n - prefix)) {
            take_word_prefix(c, prefix);
            return;
        }
        size_t suffix = suffix_length(c->w, c->s, c->left + prefix, c->n - prefix);
        if (suffix && exception_at(c, c->left, c->n - suffix)) {
            take_word_suffix(c, suffix);
            return;
        }
        if (prefix) take_word_prefix(c, prefix);
        if (suffix && suffix <= c->n) take_word_suffix(c, suffix);
    }
}

static size_t next_character(const char *s, size_t n, size_t at) {
    do at++;
    while (at < n && ((unsigned char)s[at] & 0xC0) == 0x80);
    return at;
}

static void take_middle(chunk_split *c) {
    size_t begin, end, from = 0;
    const word_exception *e = exception_at(c, c->left, c->n);
    for (int i = 0; e && i < e->n; i++) add_word_token(c, e->bytes[i]);
    if (e) return;
    if (is_whole(c) || find_match(c->w, c->s, URL, c->left, c->n, 0, &begin, &end)) {
        add_word_token(c, c->n);
        return;
    }
    for (size_t at = 0; at < c->n && find_match(c->w, c->s, INFIX, c->left, c->n, at, &begin, &end);
         at = end > at ? end : next_character(c->left, c->n, at)) {
        if (begin == 0) continue;
        add_word_token(c, begin - from);
        add_word_token(c, end - begin);
        from = end;
    }
    add_word_token(c, c->n - from);
}

/* ---- exceptions among the tokens ------------------------------------------------------------------------ */

typedef struct exception_run {
    uint32_t first, n;
    const word_exception *e;
} exception_run;

static bool is_phrase(const word_rules *w, const word_exception *e, const uint32_t *bytes,
                      size_t n) {
    const exception_phrase *p = &w->phrase[e - w->exceptions];
    if (p->n != n) return false;
    for (size_t i = 0; i < n; i++)
        if (p->bytes[i] != bytes[i]) return false;
    return true;
}

/* The longest run of tokens that is an exception, the first of equals, not in a run before. */
static exception_run next_run(const word_rules *w, const word_scratch *s, const char *chunk,
                              size_t n, const bool *taken) {
    exception_run best = { 0 };
    size_t at = 0;
    for (size_t i = 0; i < n; at += s->bytes[i++]) {
        size_t len = 0;
        for (size_t k = i; k < n && (len += s->bytes[k]) <= w->longest; k++) {
            if (k + 1 - i <= best.n || taken[i] || taken[k]) continue;
            const word_exception *e = find_exception(w, chunk + at, len);
            if (e && is_phrase(w, e, s->bytes + i, k + 1 - i))
                best = (exception_run){ (uint32_t)i, (uint32_t)(k + 1 - i), e };
        }
    }
    return best;
}

static size_t join_exceptions(const word_rules *w, word_scratch *s, const char *chunk, size_t n) {
    enum { MOST = 256 }; /* tokens of a chunk that is looked at */
    bool taken[MOST] = { 0 };
    exception_run run[MOST] = { { 0 } }; /* by first token */
    exception_run found;
    if (n > MOST) return n;
    size_t runs = 0, merged = 0;
    while ((found = next_run(w, s, chunk, n, taken)).n) {
        memset(taken + found.first, true, found.n);
        run[found.first] = found;
        runs++;
    }
    if (!runs) return n;
    for (size_t i = 0; i < n;) {
        const exception_run *r = &run[i];
        for (int k = 0; r->n && k < r->e->n; k++) s->merged[merged++] = r->e->bytes[k];
        if (!r->n) s->merged[merged++] = s->bytes[i];
        i += MAX(r->n, 1);
    }
    memcpy(s->bytes, s->merged, merged * sizeof *s->bytes);
    return merged;
}

static void reserve_word_tokens(word_scratch *s, size_t n) {
    if (n + 8 <= s->cap) return;
    s->cap = MAX(n + 8, 2 * s->cap);
    s->bytes = mem_grow(s->bytes, s->cap * sizeof *s->bytes);
    s->suffixes = mem_grow(s->suffixes, s->cap * sizeof *s->suffixes);
    s->merged = mem_grow(s->merged, s->cap * sizeof *s->merged);
}

static size_t split_new_chunk(const word_rules *w, word_scratch *s, const char *chunk, size_t n,
                              bool with_exceptions) {
    reserve_word_tokens(s, n);
    chunk_split c = { .w = w, .s = s, .with_exceptions = with_exceptions, .left = chunk, .n = n };
    take_affixes(&c);
    if (c.n) take_middle(&c);
    while (c.n_suffixes) add_word_token(&c, s->suffixes[--c.n_suffixes]);
    return with_exceptions ? join_exceptions(w, s, chunk, c.n_tokens) : c.n_tokens;
}

/* ---- chunks ---------------------------------------------------------------------------------------------- */

bool word_rules_keep_letters(const word_rules *w, char first, char last, size_t n) {
    uint32_t bit = exception_bit(first, last, n);
    return w->letters_alone && (n > w->longest || !(w->maybe[bit / 64] >> bit % 64 & 1));
}

/* Letters alone have no affixes: they are one word, or an exception. */
static bool is_letters(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((s[i] | 32) < 'a' || (s[i] | 32) > 'z') return false;
    return true;
}

static void remember_chunk(cached_chunk *c, const word_rules *w, const word_scratch *s,
                           const char *chunk, size_t n, size_t words) {
    if (words > CACHE_WORDS) return;
    c->rules = w->number;
    memcpy(c->text, chunk, n);
    c->len = (uint8_t)n;
    c->n = (uint8_t)words;
    for (size_t i = 0; i < words; i++) c->bytes[i] = (uint8_t)s->bytes[i];
}

const uint32_t *word_rules_split(const word_rules *w, word_scratch *s, const char *chunk, size_t n,
                                 size_t *words) {
    if (!w->splits_letters && is_letters(chunk, n) && !find_exception(w, chunk, n)) {
        s->bytes[0] = (uint32_t)n;
        *words = 1;
        return s->bytes;
    }
    cached_chunk *c = NULL;
    if (n <= CACHE_CHUNK) {
        c = &s->cache[word_hash(chunk, n) & (CACHE_SLOTS - 1)];
        if (c->len == n && c->rules == w->number && same_bytes(c->text, chunk, n)) {
            for (int i = 0; i < c->n; i++) s->bytes[i] = c->bytes[i];
            *words = c->n;
            return s->bytes;
        }
    }
    reserve_word_tokens(s, n);
    *words = w->breaks ? word_breaks_split(s->breaks, chunk, n, w->pairs, s->bytes)
                       : split_new_chunk(w, s, chunk, n, true);
    if (c) remember_chunk(c, w, s, chunk, n, *words);
    return s->bytes;
}

static bool is_in_ranges(const point_ranges *r, uint32_t cp) {
    size_t low = 0, high = r->n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (cp > r->at[middle][1])
            low = middle + 1;
        else
            high = middle;
    }
    return low < r->n && cp >= r->at[low][0];
}
bool word_is_punctuation(const word_rules *w, uint32_t cp) {
    if (cp < 128) return w->ascii_punctuation[cp / 64] >> cp % 64 & 1;
    return is_in_ranges(&w->punctuation, cp);
}
bool word_ends_sentence(const word_rules *w, uint32_t cp) {
    return is_in_ranges(&w->sentence_ends, cp);
}

/* ---- building ---------------------------------------------------------------------------------------------- */

err word_rules_compile(const char *text, pattern_kind kind, const char *where, const char *name,
                       pcre2_code **out) {
    char message[128];
    int code;
    size_t at;
    if (!*text) return ERR("%s: \"%s\": the pattern is empty", where, name);
    /* Not options of pcre2_match, which would not run the compiled machine code then. */
    bool anchored = kind == PREFIX || kind == WHOLE || kind == URL;
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C |
                       (anchored ? PCRE2_ANCHORED : 0) | (kind == SUFFIX ? PCRE2_ENDANCHORED : 0);
    *out = pcre2_compile((PCRE2_SPTR)text, strlen(text), options, &code, &at, NULL);
    if (!*out) {
        pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof message);
        return ERR("%s: \"%s\": the pattern does not compile: %s, at byte %zu", where, name,
                   message, at);
    }
    pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE); /* without it, matching is slower */
    return OK;
}

/* spaCy looks for an exception among tokens only if an affix or infix would split it. */
static void find_phrases_of(word_rules *w, word_scratch *s) {
    w->phrase = arena_alloc(w->arena, w->n_exceptions * sizeof *w->phrase);
    for (size_t k = 0; k < w->n_exceptions; k++) {
        const char *text = w->exceptions[k].text;
        size_t n = strlen(text), begin, end;
        bool split = prefix_length(w, s, text, n) || suffix_length(w, s, text, n) ||
                     find_match(w, s, INFIX, text, n, 0, &begin, &end);
        size_t tokens = split ? split_new_chunk(w, s, text, n, false) : 0;
        exception_phrase *p = &w->phrase[k];
        if (tokens > COUNT_OF(p->bytes)) continue;
        p->n = (uint8_t)tokens;
        for (size_t i = 0; i < tokens; i++) p->bytes[i] = (uint8_t)s->bytes[i];
    }
}

void word_rules_prepare(word_rules *w) {
    index_exceptions(w);
    for (uint32_t cp = 0; cp < 128; cp++)
        if (is_in_ranges(&w->punctuation, cp))
            w->ascii_punctuation[cp / 64] |= UINT64_C(1) << cp % 64;
    w->letters_alone = !w->splits_letters;
    for (uint32_t cp = 'a'; cp <= 'z'; cp++)
        if (word_is_punctuation(w, cp) || word_is_punctuation(w, cp - 32)) w->letters_alone = false;
    word_scratch *s = word_scratch_new();
    find_phrases_of(w, s);
    word_scratch_free(s);
}

/* ---- sentences ------------------------------------------------------------------------------------------- */

bool word_rules_have_sentences(const word_rules *w) { return w->pattern[SENTENCE]; }

int64_t word_rules_sentences(const word_rules *w, word_scratch *s, const char *text, size_t n) {
    int64_t sentences = 0;
    size_t begin, end;
    for (size_t at = 0; at < n && find_match(w, s, SENTENCE, text, n, at, &begin, &end) && end > at;
         at = end)
        sentences++;
    return sentences;
}

bool word_rules_only_blanks(const word_rules *w) { return w->blanks; }

uint64_t word_rules_hash(const word_rules *w) { return w->hash; }

void word_rules_free(word_rules *w) {
    if (!w) return;
    for (int i = 0; i < PATTERNS; i++) pcre2_code_free(w->pattern[i]);
    arena_free(w->arena);
    free(w);
}

word_scratch *word_scratch_new(void) {
    word_scratch *s = mem_alloc(sizeof *s);
    s->match = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    BUG_IF(!s->match || !s->context);
    pcre2_set_match_limit(s->context, MATCH_LIMIT);
    s->cache = mem_alloc(CACHE_SLOTS * sizeof *s->cache);
    s->breaks = word_breaks_new();
    s->cap = 64;
    s->bytes = mem_alloc(s->cap * sizeof *s->bytes);
    s->suffixes = mem_alloc(s->cap * sizeof *s->suffixes);
    s->merged = mem_alloc(s->cap * sizeof *s->merged);
    return s;
}

void word_scratch_free(word_scratch *s) {
    if (!s) return;
    pcre2_match_data_free(s->match);
    pcre2_match_context_free(s->context);
    word_breaks_free(s->breaks);
    free(s->cache);
    free(s->bytes);
    free(s->suffixes);
    free(s->merged);
    free(s);
}
