/* Rules: normalisers, and finding what a rule looks for. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "tokenizer/tokenizer_internal.h"

/* ---- finding --------------------------------------------------------------------------------------- */

bool finder_next(const finder *f, regex_work *w, const char *text, size_t n, size_t from,
                 size_t *start, size_t *end) {
    if (f->re) return regex_find(f->re, w, text, n, from, start, end);
    if (from >= n) return false;
    if (f->scan) {
        *start = from;
        return f->scan(text, n, from, end, 1) > 0;
    }
    size_t len = f->literal ? strlen(f->literal) : 0;
    const char *found = len ? memmem(text + from, n - from, f->literal, len) : NULL;
    if (!found) return false;
    *start = (size_t)(found - text);
    *end = *start + len;
    return true;
}

/* One match after another, as Oniguruma's users walk them: an empty one right after a match is
 * passed over. */
bool finder_walk(const finder *f, regex_work *w, const char *text, size_t n, finder_place *p,
                 size_t *start, size_t *end) {
    while (p->from <= n && finder_next(f, w, text, n, p->from, start, end)) {
        bool again = *start == *end && p->matched && *end == p->last;
        if (!again) {
            *p = (finder_place){ *end, *end, true };
            return true;
        }
        uint32_t cp;
        p->from += p->from < n ? (size_t)char_decode(text + p->from, n - p->from, &cp) : 1;
    }
    return false;
}

void finder_free(finder *f) {
    regex_free(f->re);
    free(f->literal);
    free(f->source);
    *f = (finder){ 0 };
}

/* ---- normalisers ------------------------------------------------------------------------------------ */

static const int unicode_options[] = {
    [NORM_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
    [NORM_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
    [NORM_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
    [NORM_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
};

static void add_normal_form(const char *text, size_t n, norm_kind kind, str *out) {
    utf8proc_uint8_t *made = NULL;
    utf8proc_ssize_t len = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &made,
                                        (utf8proc_option_t)unicode_options[kind]);
    BUG_IF(len < 0); /* the text is valid UTF-8 */
    str_add_bytes(out, made, (size_t)len);
    free(made);
}

/* No ASCII character joins one before it, so each stretch of others is normalised with the one
 * ASCII character before it. */
static void normal_form(const char *text, size_t n, norm_kind kind, str *out) {
    size_t done = 0, i = 0;
    while (i < n) {
        while (i < n && (signed char)text[i] >= 0) i++;
        if (i == n) break;
        size_t begin = i > done ? i - 1 : i, end = i;
        while (end < n && (signed char)text[end] < 0) end++;
        str_add_bytes(out, text + done, begin - done);
        add_normal_form(text + begin, end - begin, kind, out);
        done = i = end;
    }
    str_add_bytes(out, text + done, n - done);
}

static void lowercase(const char *text, size_t n, str *out) {
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += (size_t)utf8_decode(text + i, &cp);
        char code[4];
        if (cp == 0x130) { /* I with a dot above: the one whose small form is two code points */
            str_add(out, "i\xCC\x87");
            continue;
        }
        uint32_t small = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
        str_add_bytes(out, code, (size_t)utf8_encode(small, code));
    }
}

static void replace(const norm_step *step, regex_work *w, const char *text, size_t n, str *out) {
    finder_place p = { 0 };
    size_t done = 0, start, end;
    while (finder_walk(&step->find, w, text, n, &p, &start, &end)) {
        str_add_bytes(out, text + done, start - done);
        str_add(out, "%s", step->with);
        done = end;
    }
    str_add_bytes(out, text + done, n - done);
}

static void normalize_step(const norm_step *step, regex_work *w, const char *text, size_t n,
                           str *out) {
    switch (step->kind) {
    case NORM_LOWERCASE: lowercase(text, n, out); return;
    case NORM_REPLACE: replace(step, w, text, n, out); return;
    case NORM_PREPEND:
        if (n) str_add(out, "%s", step->with);
        str_add_bytes(out, text, n);
        return;
    default: normal_form(text, n, step->kind, out);
    }
}

text_span normalize(const norm_step *steps, int n_steps, regex_work *w, text_span text,
                    str scratch[2]) {
    for (int i = 0; i < n_steps; i++) {
        str *out = &scratch[i & 1];
        out->len = 0;
        normalize_step(&steps[i], w, text.at, text.len, out);
        text = (text_span){ out->text ? out->text : "", out->len };
    }
    return text;
}
