/* Splitting: a scanner of our own where the pattern is known, else PCRE2. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/chars_internal.h"
#include "tokenizer/regex_internal.h"
#include "tokenizer/splitter_internal.h"
#include "tokenizer/tokenizer.h"

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
/* The end of the younger patterns, after words and digits. */
#define CL100K(digits)                                                                             \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                           \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CAPITALS "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define SMALL    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define SUFFIX   "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define O200K                                                                                      \
    "[^\\r\\n\\p{L}\\p{N}]?" CAPITALS "*" SMALL "+" SUFFIX "|[^\\r\\n\\p{L}\\p{N}]?" CAPITALS      \
    "+" SMALL "*" SUFFIX "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)"  \
    "|\\s+"

static const struct {
    const char *name, *pattern;
    scan_fn scan;
} known[] = {
    { "gpt2", GPT2, scan_gpt2 },
    { "r50k", GPT2, scan_gpt2 },
    { "cl100k", CL100K("\\p{N}{1,3}"), scan_cl100k },
    { "qwen2", CL100K("\\p{N}"), scan_qwen2 },
    { "o200k", O200K, scan_o200k },
};

const char *splitter_pattern(const char *name) {
    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (strcmp(known[i].name, name) == 0) return known[i].pattern;
    return NULL;
}

err splitter_check(const char *pattern) {
    static const char word[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    if (splitter_pattern(pattern) || pattern[strspn(pattern, word)]) return OK;
    return err_hint(ERR_USAGE("--pattern: no pattern is called \"%s\"", pattern),
                    "known are gpt2, cl100k, qwen2 and o200k; else give a regular expression");
}

scan_fn scanner_of(const char *pattern) {
    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (strcmp(known[i].name, pattern) == 0 || strcmp(known[i].pattern, pattern) == 0)
            return known[i].scan;
    return NULL;
}

struct splitter {
    scan_fn scan; /* NULL: the other two */
    regex *re;
};

err splitter_new(const char *pattern, splitter **out) {
    splitter *s = mem_alloc(sizeof *s);
    *out = NULL;
    s->scan = scanner_of(pattern);
    if (!s->scan) {
        err e = regex_new(pattern, REGEX_ONIGURUMA, &s->re);
        if (e) {
            free(s);
            return e;
        }
    }
    *out = s;
    return OK;
}

void splitter_free(splitter *s) {
    if (!s) return;
    regex_free(s->re);
    free(s);
}

size_t splitter_next(const splitter *s, const char *text, size_t n, size_t from) {
    size_t start = 0, end = 0;
    if (s->scan) {
        s->scan(text, n, from, &end, 1);
        return end;
    }
    /* Its own work area each time: a splitter is shared by threads. */
    regex_work *w = regex_work_new(false);
    bool found = regex_find(s->re, w, text, n, from, &start, &end);
    if (found && end == from) { /* nothing, found right here: up to the next match */
        uint32_t cp;
        size_t after = from + (size_t)char_decode(text + from, n - from, &cp);
        found = regex_find(s->re, w, text, n, after, &start, &end);
    }
    regex_work_free(w);
    return !found ? n : start > from ? start : end;
}
