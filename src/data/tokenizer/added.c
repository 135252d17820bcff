/* Added tokens: texts that are found before anything else is done, the longest of those that begin
 * first. With Hugging Face's rules for the words and the white space around them. */
#include <string.h>
#include <utf8proc.h>

#include "tokenizer/chars_internal.h"
#include "tokenizer/text_rules_internal.h"

/* ---- the set ------------------------------------------------------------------------------------ */

static int compare_bytes(const char *a, size_t na, const char *b, size_t nb) {
    int order = memcmp(a, b, MIN(na, nb));
    return order ? order : (na > nb) - (na < nb);
}

/* Of tokens that are looked for as the same text the special one wins, then the first. */
static int compare_tokens(const void *a, const void *b) {
    const added_token *x = *(added_token *const *)a, *y = *(added_token *const *)b;
    int order = compare_bytes(x->match, x->match_len, y->match, y->match_len);
    if (order == 0) order = (int)y->special - (int)x->special;
    return order ? order : (x > y) - (x < y);
}

void added_set_build(added_set *s, added_token *all, int n, bool normalized) {
    *s = (added_set){ .by_match = mem_alloc(((size_t)n + 1) * sizeof *s->by_match),
                      .only_first = -1 };
    for (int i = 0; i < n; i++) {
        if (all[i].normalized != normalized || all[i].match_len == 0) continue;
        s->by_match[s->n++] = &all[i];
        s->n_plain += !all[i].special;
        s->first[(uint8_t)all[i].match[0]] = true;
    }
    sort_array(s->by_match, (size_t)s->n, sizeof *s->by_match, compare_tokens);
    if (s->n && s->by_match[0]->match[0] == s->by_match[s->n - 1]->match[0])
        s->only_first = (uint8_t)s->by_match[0]->match[0];
}

/* The first of by_match[low, high) whose byte `at` is not below `byte`; all have that many bytes or
 * end there, and agree before it. */
static int first_not_below(const added_set *s, int low, int high, size_t at, int byte) {
    while (low < high) {
        int middle = (low + high) / 2;
        const added_token *t = s->by_match[middle];
        int here = at < t->match_len ? (uint8_t)t->match[at] : -1;
        if (here < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static const added_token *longest_at(const added_set *s, const char *text, size_t n) {
    const added_token *best = NULL;
    int low = 0, high = s->n;
    for (size_t k = 0; k < n && low < high; k++) {
        int byte = (uint8_t)text[k];
        low = first_not_below(s, low, high, k, byte);
        high = first_not_below(s, low, high, k, byte + 1);
        if (low < high && s->by_match[low]->match_len == k + 1) best = s->by_match[low];
    }
    return best;
}

/* ---- around a match ------------------------------------------------------------------------------- */

static bool is_framed_letter(uint32_t cp) {
#define HOLDS(first, last) || (cp >= 0x##first && cp <= 0x##last)
    return false FRAMED_LETTERS(HOLDS);
#undef HOLDS
}

/* As \w of Rust's regular expressions, with which Hugging Face looks around added tokens. */
static bool is_word(uint32_t cp) {
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NL) || c == UTF8PROC_CATEGORY_PC ||
           cp == 0x200C || cp == 0x200D || is_framed_letter(cp);
}

static bool stands_alone(const char *text, size_t n, size_t start, size_t end) {
    uint32_t cp;
    if (start > 0 && (char_back(text, start, &cp), is_word(cp))) return false;
    return end >= n || (char_decode(text + end, n - end, &cp), !is_word(cp));
}

/* Not before `least`. */
static size_t skip_space_back(const char *text, size_t at, size_t least) {
    uint32_t cp;
    for (int len; at > least; at -= (size_t)len) {
        len = char_back(text, at, &cp);
        if (!(unicode_class(cp) & CLASS_SPACE)) break;
    }
    return at;
}

static size_t skip_spaces_from(const char *text, size_t n, size_t at) {
    uint32_t cp;
    for (int len; at < n; at += (size_t)len) {
        len = char_decode(text + at, n - at, &cp);
        if (!(unicode_class(cp) & CLASS_SPACE)) break;
    }
    return at;
}

/* ---- search --------------------------------------------------------------------------------------- */

/* The next offset where one may begin; n: none. */
static size_t next_candidate(const added_set *s, const char *text, size_t n, size_t at) {
    if (s->only_first >= 0) {
        const char *found = at < n ? memchr(text + at, s->only_first, n - at) : NULL;
        return found ? (size_t)(found - text) : n;
    }
    while (at < n && !s->first[(uint8_t)text[at]]) at++;
    return at;
}

bool added_next(const added_set *s, const char *text, size_t n, size_t *from, bool special,
                added_match *out) {
    if (!(special ? s->n : s->n_plain)) return false;
    for (size_t at = *from; (at = next_candidate(s, text, n, at)) < n;) {
        const added_token *t = longest_at(s, text + at, n - at);
        size_t start = at, end = at + (t ? t->match_len : 1);
        at = end; /* what is passed over is not searched again */
        if (!t || (t->special && !special)) continue;
        if (t->single_word && !stands_alone(text, n, start, end)) continue;
        *from = end;
        if (t->lstrip) start = MAX(skip_space_back(text, start, out->end), out->end);
        if (t->rstrip) end = skip_spaces_from(text, n, end);
        *out = (added_match){ start, end, t };
        return true;
    }
    return false;
}
