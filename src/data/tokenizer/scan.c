/* Scanners for the split patterns everybody uses: what PCRE2 finds, found by hand. A scanner looks
 * at each byte a fixed number of times, whatever the text. */
#include <string.h>

#include "tokenizer/scan.h"
#include "tokenizer/splitter_internal.h"

/* ---- runs ------------------------------------------------------------------------------------- */

static size_t end_of_run(const char *s, size_t n, size_t i, unsigned wanted) {
    int len;
    while (i < n && (class_at(s, n, i, &len) & wanted)) i += (size_t)len;
    return i;
}

/* Neither letter, number nor white space: punctuation, symbols, marks, broken bytes. */
static size_t run_of_others(const char *s, size_t n, size_t i) {
    int len;
    while (i < n && !(class_at(s, n, i, &len) & (LETTER | NUMBER | SPACE))) i += (size_t)len;
    return i;
}

static size_t run_of_chars(const char *s, size_t n, size_t i, const char *set) {
    while (i < n && s[i] && strchr(set, s[i])) i++;
    return i;
}

static size_t run_of_numbers(const char *s, size_t n, size_t i, int most) {
    int len;
    for (; most > 0 && i < n && (class_at(s, n, i, &len) & NUMBER); most--) i += (size_t)len;
    return i;
}

/* White space: up to its last newline where `lines`; else all but the last character where
 * something follows, since that one may belong to what follows; else all. */
static size_t white_space(const char *s, size_t n, size_t from, bool lines) {
    size_t i = from, last = from, newline = from;
    int len;
    while (i < n && (class_at(s, n, i, &len) & SPACE)) {
        last = i;
        i += (size_t)len;
        if (s[last] == '\n' || s[last] == '\r') newline = i;
    }
    if (lines && newline > from) return newline;
    return i < n && last > from ? last : i;
}

/* @return bytes of 's, 't, 're, 've, 'm, 'll, 'd at s[i], 0: none. */
static size_t contraction_end(const char *s, size_t n, size_t i, bool any_case) {
    if (i + 1 >= n || s[i] != '\'') return 0;
    char a = any_case ? lower_ascii(s[i + 1]) : s[i + 1];
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (i + 2 >= n) return 0;
    char b = any_case ? lower_ascii(s[i + 2]) : s[i + 2];
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
    return any_case && memcmp(s + i + 1, "\xC5\xBF", 2) == 0 ? 3 : 0; /* U+017F, the long s */
}

/* ---- GPT-2 ------------------------------------------------------------------------------------- */

size_t scan_gpt2_one(const char *s, size_t n, size_t from) {
    size_t suffix = contraction_end(s, n, from, false);
    if (suffix) return from + suffix;
    size_t i = from + (s[from] == ' ' && from + 1 < n);
    int len;
    unsigned class = class_at(s, n, i, &len);
    if (class & LETTER) return end_of_run(s, n, i, LETTER);
    if (class & NUMBER) return end_of_run(s, n, i, NUMBER);
    if (!(class & SPACE)) return run_of_others(s, n, i);
    return white_space(s, n, from, false);
}

/* ---- cl100k, Qwen 2 ------------------------------------------------------------------------------ */

static size_t punctuation_end(const char *s, size_t n, size_t from, const char *tail) {
    size_t i = from + (s[from] == ' '), end = run_of_others(s, n, i);
    return end > i ? run_of_chars(s, n, end, tail) : from;
}

static size_t next_cl100k(const char *s, size_t n, size_t from, int digits) {
    size_t end = contraction_end(s, n, from, true);
    if (end) return from + end;
    int len;
    unsigned class = class_at(s, n, from, &len);
    if (class & LETTER) return end_of_run(s, n, from, LETTER);
    if (class & NUMBER) return run_of_numbers(s, n, from, digits);
    if (s[from] != '\r' && s[from] != '\n') {
        size_t word = from + (size_t)len;
        end = end_of_run(s, n, word, LETTER);
        if (end > word) return end;
    }
    end = punctuation_end(s, n, from, "\r\n");
    return end > from ? end : white_space(s, n, from, true);
}

/* ---- o200k -------------------------------------------------------------------------------------- */

static bool is_capital(unsigned class) {
    return (class & MARK) || (class & (LETTER | LOWER)) == LETTER;
}
static bool is_small(unsigned class) {
    return (class & MARK) || (class & (LETTER | UPPER)) == LETTER;
}

/* Capitals, then small letters; what has no case is both. */
typedef struct word {
    size_t capitals; /* where the capitals end that could be taken */
    size_t end;      /* of capitals* small+; 0: there is no such */
} word;

static word word_at(const char *s, size_t n, size_t from) {
    size_t i = from, both = 0;
    int len;
    unsigned class = 0;
    for (; i < n && is_capital(class = class_at(s, n, i, &len)); i += (size_t)len)
        if (is_small(class)) both = i + (size_t)len;
    word w = { i, both };
    for (; i < n && is_small(class_at(s, n, i, &len)); i += (size_t)len) w.end = i + (size_t)len;
    return w;
}

static size_t next_o200k(const char *s, size_t n, size_t from) {
    int len;
    unsigned class = class_at(s, n, from, &len);
    if (class & NUMBER) return run_of_numbers(s, n, from, 3);
    bool led = !(class & LETTER) && s[from] != '\r' && s[from] != '\n'; /* by any one character */
    size_t begin[2] = { from + (led ? (size_t)len : 0), from }, end = 0;
    word w[2] = { word_at(s, n, begin[0]) };
    w[1] = led ? word_at(s, n, from) : w[0];
    for (int k = 0; k < 2 && !end; k++) end = w[k].end;
    for (int k = 0; k < 2 && !end; k++)
        if (w[k].capitals > begin[k]) end = w[k].capitals;
    if (end) return end + contraction_end(s, n, end, true);
    end = punctuation_end(s, n, from, "\r\n/");
    return end > from ? end : white_space(s, n, from, true);
}

/* ---- words that begin with U+2581 -------------------------------------------------------------------- */

static bool mark_at(const char *s, size_t n, size_t i) {
    return i + 3 <= n && memcmp(s + i, "\xE2\x96\x81", 3) == 0;
}

static size_t next_word(const char *s, size_t n, size_t from) {
    size_t i = from;
    while (mark_at(s, n, i)) i += 3;
    for (; i < n; i++) {
        const char *found = memchr(s + i, 0xE2, n - i);
        if (!found) break;
        i = (size_t)(found - s);
        if (mark_at(s, n, i)) return i;
    }
    return n;
}

/* ---- many at a time ------------------------------------------------------------------------------ */

#define SCAN_ALL(next)                                                                             \
    int k = 0;                                                                                     \
    for (size_t i = from; i < n && k < max; k++) ends[k] = i = (next);                             \
    return k

int scan_cl100k(const char *s, size_t n, size_t from, size_t *ends, int max) {
    SCAN_ALL(next_cl100k(s, n, i, 3));
}
int scan_qwen2(const char *s, size_t n, size_t from, size_t *ends, int max) {
    SCAN_ALL(next_cl100k(s, n, i, 1));
}
int scan_o200k(const char *s, size_t n, size_t from, size_t *ends, int max) {
    SCAN_ALL(next_o200k(s, n, i));
}
int scan_words(const char *s, size_t n, size_t from, size_t *ends, int max) {
    SCAN_ALL(next_word(s, n, i));
}
int scan_whole(const char *s, size_t n, size_t from, size_t *ends, int max) { SCAN_ALL(n); }
