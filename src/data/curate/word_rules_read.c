/* Reads the rules by which text is split into words from a JSON file; word_rules.h has its form. */
#include <stdlib.h>
#include <string.h>

#include "curate/word_rules_internal.h"
#include "io/io.h"

enum { MAX_FILE_BYTES = 16 << 20, MAX_EXCEPTIONS = 1 << 20 };

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

static err read_exceptions(word_rules *w, const json_t *doc, const char *path) {
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

static err read_ranges(word_rules *w, const json_t *doc, const char *path, const char *key,
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

static err read_rules(word_rules *w, const json_t *doc, const char *path) {
    static const struct {
        const char *name;
        pattern_kind kind;
    } patterns[] = {
        { "prefix", PREFIX }, { "suffix", SUFFIX }, { "infix", INFIX }, { "url", URL }
    };
    for (size_t i = 0; i < COUNT_OF(patterns); i++) {
        pattern_kind kind = patterns[i].kind;
        const char *name = patterns[i].name, *text;
        TRY(io_json_text(doc, path, name, &text));
        TRY(word_rules_compile(text, kind, path, name, &w->pattern[kind]));
    }
    TRY(read_exceptions(w, doc, path));
    TRY(read_ranges(w, doc, path, "punctuation", &w->punctuation));
    return read_ranges(w, doc, path, "sentence_ends", &w->sentence_ends);
}

err word_rules_read(const char *path, word_rules **out) {
    char *bytes = NULL;
    size_t n = 0;
    json_t *doc = NULL;
    *out = NULL;
    TRY(io_read(path, MAX_FILE_BYTES, &bytes, &n));
    word_rules *w = mem_alloc(sizeof *w);
    w->arena = arena_new();
    w->hash = hash_bytes(bytes, n, 0);
    err e = OK;
    TRY_CLEAN(io_json_parse(bytes, n, path, &doc));
    TRY_CLEAN(read_rules(w, doc, path));
    word_rules_prepare(w);
    *out = w;
    w = NULL;
cleanup:
    word_rules_free(w);
    json_decref(doc);
    free(bytes);
    return e;
}
