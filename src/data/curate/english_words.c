/* Words as datatrove counts them in English: by spaCy's rules. Text is split at white space, and each chunk
 *
 *     1. is an exception with tokens of its own ("don't": do n't), or else
 *     2. loses prefixes and suffixes, one of each per round, until neither matches or an exception is left;
 *     3. what is left is an exception, a URL, or is split at infixes ("and/or": and / or);
 *     4. neighboring tokens that together are an exception become it ("x-a.": x - a.).
 *
 * A chunk's tokens depend on nothing else, so that each worker remembers those of short chunks. The patterns and
 * exceptions come from a file (english_words.h has its format), so that they are checked, and a pattern can
 * only split text between characters. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "curate/english_words.h"
#include "io/io.h"

enum {
    MAX_FILE_BYTES = 16 << 20,
    MAX_EXCEPTIONS = 1 << 20,
    MAX_EXCEPTION_BYTES = UINT8_MAX,
    MAX_EXCEPTION_TOKENS = 4,
    MATCH_LIMIT = 1000000,
    SUFFIX_REACH =
        64, /* bytes that a suffix and what it looks back at have at most, but for dots */
    CACHE_SLOTS = 1 << 14,
    CACHE_CHUNK = 32, /* bytes of a chunk that is remembered, */
    CACHE_WORDS = 14, /* and the tokens of one */
};
typedef enum { PREFIX, SUFFIX, INFIX, URL, PATTERNS } pattern_kind;

typedef struct word_exception {
    const char *text;
    uint8_t n, bytes[MAX_EXCEPTION_TOKENS]; /* [n] of each token */
} word_exception;

/* What an exception is split into when exceptions do not count: step 4 looks for these tokens. */
typedef struct exception_phrase {
    uint8_t n; /* 0: step 4 does not look for it */
    uint8_t bytes[15];
} exception_phrase;

typedef struct point_ranges {
    uint32_t (*at)[2]; /* [n] first and last code point, ascending */
    size_t n;
} point_ranges;

struct english_words {
    arena *arena; /* has the arrays and texts below */
    pcre2_code *pattern[PATTERNS];
    word_exception *exceptions; /* [n_exceptions] */
    exception_phrase *phrase;   /* [n_exceptions] */
    size_t n_exceptions;
    size_t longest; /* exception, in bytes */
    uint32_t *slot; /* [slot_mask + 1] index + 1; 0: free */
    uint64_t slot_mask;
    point_ranges punctuation, sentence_ends;
    uint64_t hash;
};

typedef struct cached_chunk {
    char text[CACHE_CHUNK];
    uint8_t len, n; /* len 0: free */
    uint8_t bytes[CACHE_WORDS];
} cached_chunk;

struct english_scratch {
    pcre2_match_data *match;
    pcre2_match_context *context;
    cached_chunk *cache; /* [CACHE_SLOTS] */
    uint32_t *bytes, *suffixes, *merged;
    size_t cap;
};

/* ---- exceptions ------------------------------------------------------------------------------------ */

static const word_exception *find_exception(const english_words *w, const char *s, size_t n) {
    if (n == 0 || n > w->longest) return NULL;
    for (uint64_t i = hash_bytes(s, n, 0) & w->slot_mask; w->slot[i]; i = (i + 1) & w->slot_mask) {
        const word_exception *e = &w->exceptions[w->slot[i] - 1];
        if (strncmp(e->text, s, n) == 0 && e->text[n] == 0) return e;
    }
    return NULL;
}

static void index_exceptions(english_words *w) {
    size_t slots = 16;
    while (slots < 4 * w->n_exceptions) slots *= 2;
    w->slot = arena_alloc(w->arena, slots * sizeof *w->slot);
    w->slot_mask = slots - 1;
    for (size_t k = 0; k < w->n_exceptions; k++) {
        const char *text = w->exceptions[k].text;
        size_t n = strlen(text);
        uint64_t i = hash_bytes(text, n, 0) & w->slot_mask;
        while (w->slot[i]) i = (i + 1) & w->slot_mask;
        w->slot[i] = (uint32_t)(k + 1);
        w->longest = MAX(w->longest, n);
    }
}

/* ---- patterns ---------------------------------------------------------------------------------------- */

static bool find_match(const english_words *w, english_scratch *s, pattern_kind kind,
                       const char *text, size_t n, size_t from, size_t *begin, size_t *end) {
    uint32_t options = PCRE2_NO_UTF_CHECK | (kind == PREFIX || kind == URL ? PCRE2_ANCHORED : 0);
    int rc =
        pcre2_match(w->pattern[kind], (PCRE2_SPTR)text, n, from, options, s->match, s->context);
    if (rc < 0)
        return false; /* none, or too costly to find: only a URL of thousands of bytes can be */
    const size_t *at = pcre2_get_ovector_pointer(s->match);
    *begin = at[0];
    *end = at[1];
    return *begin >= from && *begin <= *end; /* before PCRE2 10.38, \K in an assertion moves it */
}

static size_t prefix_length(const english_words *w, english_scratch *s, const char *t, size_t n) {
    size_t begin, end;
    return find_match(w, s, PREFIX, t, n, 0, &begin, &end) ? end : 0;
}

/* The leftmost match that ends the text. Only dots make a long one, so that the search begins near the end. */
static size_t suffix_length(const english_words *w, english_scratch *s, const char *t, size_t n) {
    size_t begin, end, from = n;
    while (from > 0 && t[from - 1] == '.') from--;
    from -= MIN(from, SUFFIX_REACH);
    while (from > 0 && ((unsigned char)t[from] & 0xC0) == 0x80) from--;
    return find_match(w, s, SUFFIX, t, n, from, &begin, &end) ? end - begin : 0;
}

/* ---- splitting a chunk --------------------------------------------------------------------------------- */

/* A chunk being split: tokens found at its left end and, in reverse, at its right end. */
typedef struct chunk_split {
    const english_words *w;
    english_scratch *s;
    bool with_exceptions;
    const char *left; /* what is left of it */
    size_t n;
    size_t n_tokens, n_suffixes;
} chunk_split;

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
        if (exception_at(c, c->left, c->n)) return;
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
    if (find_match(c->w, c->s, URL, c->left, c->n, 0, &begin, &end)) {
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

static bool is_phrase(const english_words *w, const word_exception *e, const uint32_t *bytes,
                      size_t n) {
    const exception_phrase *p = &w->phrase[e - w->exceptions];
    if (p->n != n) return false;
    for (size_t i = 0; i < n; i++)
        if (p->bytes[i] != bytes[i]) return false;
    return true;
}

/* The longest run of tokens that is an exception, the first of equals, not in a run before. */
static exception_run next_run(const english_words *w, const english_scratch *s, const char *chunk,
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

static size_t join_exceptions(const english_words *w, english_scratch *s, const char *chunk,
                              size_t n) {
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

static size_t split_new_chunk(const english_words *w, english_scratch *s, const char *chunk,
                              size_t n, bool with_exceptions) {
    if (n + 8 > s->cap) {
        s->cap = MAX(n + 8, 2 * s->cap);
        s->bytes = mem_grow(s->bytes, s->cap * sizeof *s->bytes);
        s->suffixes = mem_grow(s->suffixes, s->cap * sizeof *s->suffixes);
        s->merged = mem_grow(s->merged, s->cap * sizeof *s->merged);
    }
    chunk_split c = { .w = w, .s = s, .with_exceptions = with_exceptions, .left = chunk, .n = n };
    take_affixes(&c);
    if (c.n) take_middle(&c);
    while (c.n_suffixes) add_word_token(&c, s->suffixes[--c.n_suffixes]);
    return with_exceptions ? join_exceptions(w, s, chunk, c.n_tokens) : c.n_tokens;
}

/* ---- chunks ---------------------------------------------------------------------------------------------- */

/* Letters alone have no affixes: they are one word, or an exception. */
static bool is_letters(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((s[i] | 32) < 'a' || (s[i] | 32) > 'z') return false;
    return true;
}

static const uint32_t *recall_chunk(english_scratch *s, const cached_chunk *c, size_t *words) {
    for (int i = 0; i < c->n; i++) s->bytes[i] = c->bytes[i];
    *words = c->n;
    return s->bytes;
}

static void remember_chunk(cached_chunk *c, const english_scratch *s, const char *chunk, size_t n,
                           size_t words) {
    if (words > CACHE_WORDS) return;
    memcpy(c->text, chunk, n);
    c->len = (uint8_t)n;
    c->n = (uint8_t)words;
    for (size_t i = 0; i < words; i++) c->bytes[i] = (uint8_t)s->bytes[i];
}

const uint32_t *english_words_split(const english_words *w, english_scratch *s, const char *chunk,
                                    size_t n, size_t *words) {
    if (is_letters(chunk, n) && !find_exception(w, chunk, n)) {
        s->bytes[0] = (uint32_t)n;
        *words = 1;
        return s->bytes;
    }
    cached_chunk *c = NULL;
    if (n <= CACHE_CHUNK) {
        c = &s->cache[hash_bytes(chunk, n, 0) & (CACHE_SLOTS - 1)];
        if (c->len == n && memcmp(c->text, chunk, n) == 0) return recall_chunk(s, c, words);
    }
    *words = split_new_chunk(w, s, chunk, n, true);
    if (c) remember_chunk(c, s, chunk, n, *words);
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
bool english_is_punctuation(const english_words *w, uint32_t cp) {
    return is_in_ranges(&w->punctuation, cp);
}
bool english_ends_sentence(const english_words *w, uint32_t cp) {
    return is_in_ranges(&w->sentence_ends, cp);
}

/* ---- reading the rules ---------------------------------------------------------------------------------------- */

static err compile_word_pattern(const json_t *doc, const char *path, pattern_kind kind,
                                pcre2_code **out) {
    static const char *const names[PATTERNS] = {
        [PREFIX] = "prefix", [SUFFIX] = "suffix", [INFIX] = "infix", [URL] = "url"
    };
    const char *text;
    char message[128];
    int code;
    size_t at;
    TRY(io_json_text(doc, path, names[kind], &text));
    if (!*text) return ERR("%s: \"%s\": the pattern is empty", path, names[kind]);
    uint32_t options =
        PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | (kind == SUFFIX ? PCRE2_ENDANCHORED : 0);
    *out = pcre2_compile((PCRE2_SPTR)text, strlen(text), options, &code, &at, NULL);
    if (!*out) {
        pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof message);
        return ERR("%s: \"%s\": the pattern does not compile: %s, at byte %zu", path, names[kind],
                   message, at);
    }
    pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE); /* without it, matching is slower */
    return OK;
}

/* @return what is wrong with an exception, or NULL. */
static const char *read_exception(const char *text, const json_t *lengths, word_exception *out) {
    size_t n = strlen(text), sum = 0, tokens = json_array_size(lengths);
    if (n == 0 || n > MAX_EXCEPTION_BYTES) return "a text of 1 to 255 bytes";
    if (tokens == 0 || tokens > MAX_EXCEPTION_TOKENS) return "an array of 1 to 4 lengths";
    for (size_t i = 0; i < tokens; i++) {
        json_int_t bytes = json_integer_value(json_array_get(lengths, i));
        if (bytes < 1 || (size_t)bytes > n - sum)
            return "lengths that sum to the bytes of the text";
        sum += (size_t)bytes;
        if (((unsigned char)text[sum] & 0xC0) == 0x80) return "tokens of whole characters";
        out->bytes[i] = (uint8_t)bytes;
    }
    out->n = (uint8_t)tokens;
    return sum == n ? NULL : "lengths that sum to the bytes of the text";
}

static err read_exceptions(english_words *w, const json_t *doc, const char *path) {
    json_t *members = NULL, *lengths;
    const char *text;
    TRY(io_json_object(doc, path, "exceptions", &members));
    size_t n = json_object_size(members);
    if (n > MAX_EXCEPTIONS)
        return ERR("%s: \"exceptions\": expected at most %d; got %zu", path, MAX_EXCEPTIONS, n);
    w->exceptions = arena_alloc(w->arena, n * sizeof *w->exceptions);
    json_object_foreach(members, text, lengths) {
        word_exception *e = &w->exceptions[w->n_exceptions++];
        const char *expected = read_exception(text, lengths, e);
        if (expected)
            return ERR("%s: \"exceptions\": \"%.80s\": expected %s", path, text, expected);
        e->text = arena_strdup(w->arena, text);
    }
    return OK;
}

/* @return a code point of a range [from, to]; -1: it is not one. */
static int64_t read_point(const json_t *range, size_t i) {
    const json_t *v = json_array_get(range, i);
    json_int_t cp = json_is_integer(v) && json_array_size(range) == 2 ? json_integer_value(v) : -1;
    return cp >= 0 && cp <= 0x10FFFF ? cp : -1;
}

static err read_ranges(english_words *w, const json_t *doc, const char *path, const char *key,
                       point_ranges *out) {
    json_t *list = NULL;
    int64_t last = -1;
    TRY(io_json_array(doc, path, key, &list));
    out->at = arena_alloc(w->arena, json_array_size(list) * sizeof *out->at);
    for (; out->n < json_array_size(list); out->n++) {
        const json_t *range = json_array_get(list, out->n);
        int64_t from = read_point(range, 0), to = read_point(range, 1);
        if (from <= last || to < from)
            return ERR("%s: \"%s\"[%zu]: expected [from, to], code points above those before it",
                       path, key, out->n);
        out->at[out->n][0] = (uint32_t)from;
        out->at[out->n][1] = (uint32_t)to;
        last = to;
    }
    return OK;
}

static err read_rules(english_words *w, const json_t *doc, const char *path) {
    for (int i = 0; i < PATTERNS; i++) TRY(compile_word_pattern(doc, path, i, &w->pattern[i]));
    TRY(read_exceptions(w, doc, path));
    TRY(read_ranges(w, doc, path, "punctuation", &w->punctuation));
    return read_ranges(w, doc, path, "sentence_ends", &w->sentence_ends);
}

/* spaCy looks for an exception among tokens only if an affix or infix would split it. */
static void find_phrases_of(english_words *w, english_scratch *s) {
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

err english_words_new(const char *path, english_words **out) {
    char *bytes = NULL;
    size_t n = 0;
    json_t *doc = NULL;
    *out = NULL;
    TRY(io_read(path, MAX_FILE_BYTES, &bytes, &n));
    english_words *w = mem_alloc(sizeof *w);
    w->arena = arena_new();
    w->hash = hash_bytes(bytes, n, 0);
    err e = OK;
    TRY_CLEAN(io_json_parse(bytes, n, path, &doc));
    TRY_CLEAN(read_rules(w, doc, path));
    index_exceptions(w);
    english_scratch *s = english_scratch_new();
    find_phrases_of(w, s);
    english_scratch_free(s);
    *out = w;
    w = NULL;
cleanup:
    english_words_free(w);
    json_decref(doc);
    free(bytes);
    return e;
}

uint64_t english_words_hash(const english_words *w) { return w->hash; }

void english_words_free(english_words *w) {
    if (!w) return;
    for (int i = 0; i < PATTERNS; i++) pcre2_code_free(w->pattern[i]);
    arena_free(w->arena);
    free(w);
}

english_scratch *english_scratch_new(void) {
    english_scratch *s = mem_alloc(sizeof *s);
    s->match = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    BUG_IF(!s->match || !s->context);
    pcre2_set_match_limit(s->context, MATCH_LIMIT);
    s->cache = mem_alloc(CACHE_SLOTS * sizeof *s->cache);
    s->cap = 64;
    s->bytes = mem_alloc(s->cap * sizeof *s->bytes);
    s->suffixes = mem_alloc(s->cap * sizeof *s->suffixes);
    s->merged = mem_alloc(s->cap * sizeof *s->merged);
    return s;
}

void english_scratch_free(english_scratch *s) {
    if (!s) return;
    pcre2_match_data_free(s->match);
    pcre2_match_context_free(s->context);
    free(s->cache);
    free(s->bytes);
    free(s->suffixes);
    free(s->merged);
    free(s);
}
