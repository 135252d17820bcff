/* Rules: normalizers, and the search for what a rule matches. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "tokenizer/chars_internal.h"
#include "tokenizer/text_rules_internal.h"

/* ---- finding --------------------------------------------------------------------------------------- */

static bool finder_next(const finder *f, regex_work *w, const char *text, size_t n, size_t from,
                        size_t *start, size_t *end) {
    if (f->re) return regex_find(f->re, w, text, n, from, start, end);
    if (from >= n) return false;
    if (f->scan) {
        *start = from;
        return f->scan(text, n, from, end, 1) > 0;
    }
    size_t len = f->literal ? strlen(f->literal) : 0;
    const char *found = len == 1 ? memchr(text + from, f->literal[0], n - from)
                        : len    ? memmem(text + from, n - from, f->literal, len)
                                 : NULL;
    if (!found) return false;
    *start = (size_t)(found - text);
    *end = *start + len;
    return true;
}

/* One match after another, as Oniguruma's users iterate: an empty one right after a match is
 * skipped. */
bool finder_walk(const finder *f, regex_work *w, const char *text, size_t n, finder_cursor *p,
                 size_t *start, size_t *end) {
    while (p->from <= n && finder_next(f, w, text, n, p->from, start, end)) {
        bool again = *start == *end && p->matched && *end == p->last;
        if (!again) {
            *p = (finder_cursor){ *end, *end, true };
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

/* ---- normalizers ------------------------------------------------------------------------------------ */

static const int unicode_options[] = {
    [NORM_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
    [NORM_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
    [NORM_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
    [NORM_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
};

/* Code points under construction. */
typedef struct code_points {
    utf8proc_int32_t *at;
    size_t n, cap;
} code_points;

static void decompose_text(const char *text, size_t n, utf8proc_option_t options, code_points *to) {
    enum { MOST = 32 }; /* code points of one character's decomposition: 18 is the largest */
    int boundary = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += (size_t)utf8_decode(text + i, &cp);
        if (to->n + MOST > to->cap) {
            to->cap = MAX(2 * to->cap, to->n + MOST);
            to->at = mem_grow(to->at, to->cap * sizeof *to->at);
        }
        utf8proc_ssize_t made =
            utf8proc_decompose_char((utf8proc_int32_t)cp, to->at + to->n, MOST, options, &boundary);
        BUG_IF(made < 0 || made > MOST); /* the text is valid UTF-8 */
        to->n += (size_t)made;
    }
}

static unsigned combining_class(utf8proc_int32_t cp) {
    return (uint8_t)utf8proc_get_property(cp)->combining_class;
}

/* Sorts marks by their class, those of one class as they were. By counting: utf8proc sorts by
 * exchanging neighbors, and the length of a run of marks is the text's to choose. */
static void sort_marks(utf8proc_int32_t *marks, size_t n) {
    size_t first[256 + 1] = { 0 };
    utf8proc_int32_t *sorted = mem_alloc(n * sizeof *sorted);
    for (size_t i = 0; i < n; i++) first[combining_class(marks[i]) + 1]++;
    for (int c = 0; c < 256; c++) first[c + 1] += first[c];
    for (size_t i = 0; i < n; i++) sorted[first[combining_class(marks[i])]++] = marks[i];
    memcpy(marks, sorted, n * sizeof *sorted);
    free(sorted);
}

/* Canonical order: each run of marks sorted. */
static void order_marks(code_points *p) {
    for (size_t i = 0; i < p->n;) {
        size_t end = i;
        bool sorted = true;
        unsigned last = 0, class;
        while (end < p->n && (class = combining_class(p->at[end])) > 0) {
            sorted = sorted && class >= last;
            last = class;
            end++;
        }
        if (!sorted) sort_marks(p->at + i, end - i);
        i = end + 1;
    }
}

static void add_normal_form(const char *text, size_t n, normalizer_kind kind, str *out) {
    utf8proc_option_t options = (utf8proc_option_t)unicode_options[kind];
    code_points p = { 0 };
    decompose_text(text, n, options, &p);
    order_marks(&p);
    utf8proc_ssize_t left = (utf8proc_ssize_t)p.n;
    if (options & UTF8PROC_COMPOSE) left = utf8proc_normalize_utf32(p.at, left, options);
    BUG_IF(left < 0);
    for (utf8proc_ssize_t i = 0; i < left; i++) {
        char code[4];
        str_add_bytes(out, code, (size_t)utf8_encode((uint32_t)p.at[i], code));
    }
    free(p.at);
}

/* No ASCII character joins one before it, so each run of others is normalized with the one
 * ASCII character before it. */
static void normalize_form(const char *text, size_t n, normalizer_kind kind, str *out) {
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

static void add_lowercase(const char *text, size_t n, str *out) {
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

static void add_replaced(const norm_step *step, regex_work *w, const char *text, size_t n,
                         str *out) {
    finder_cursor p = { 0 };
    size_t done = 0, start, end, with = strlen(step->with);
    while (finder_walk(&step->find, w, text, n, &p, &start, &end)) {
        str_add_bytes(out, text + done, start - done);
        str_add_bytes(out, step->with, with);
        done = end;
    }
    str_add_bytes(out, text + done, n - done);
}

/* ---- normalizers of Unigram models ------------------------------------------------------------------ */

static bool is_space_cp(uint32_t cp) { return unicode_class(cp) & CLASS_SPACE; }

static void add_stripped(const norm_step *step, const char *text, size_t n, str *out) {
    size_t begin = 0;
    uint32_t cp;
    for (size_t len; step->strip_left && begin < n; begin += len) {
        len = (size_t)utf8_decode(text + begin, &cp);
        if (!is_space_cp(cp)) break;
    }
    for (size_t len; step->strip_right && n > begin; n -= len) {
        len = (size_t)char_back(text, n, &cp);
        if (!is_space_cp(cp)) break;
    }
    str_add_bytes(out, text + begin, n - begin);
}

static void add_without_marks(const char *text, size_t n, str *out) {
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        len = (size_t)utf8_decode(text + i, &cp);
        if (!(unicode_class(cp) & CLASS_MARK)) str_add_bytes(out, text + i, len);
    }
}

/* Characters that SentencePiece's rule "nmt" removes, and those that it reads as a space. */
static bool nmt_removes(uint32_t cp) {
    return (cp >= 1 && cp <= 8) || cp == 0xB || (cp >= 0xE && cp <= 0x1F) || cp == 0x7F ||
           cp == 0x8F || cp == 0x9F;
}
static bool nmt_is_space(uint32_t cp) {
    return cp == '\t' || cp == '\n' || cp == '\f' || cp == '\r' || cp == 0x1680 ||
           (cp >= 0x200B && cp <= 0x200F) || cp == 0x2028 || cp == 0x2029 || cp == 0x2581 ||
           cp == 0xFEFF || cp == 0xFFFD;
}

static void add_nmt(const char *text, size_t n, str *out) {
    for (size_t i = 0, len; i < n; i += len) {
        uint32_t cp;
        len = (size_t)utf8_decode(text + i, &cp);
        if (nmt_removes(cp)) continue;
        bool space = nmt_is_space(cp);
        str_add_bytes(out, space ? " " : text + i, space ? 1 : len);
    }
}

/* Does at once what SQUEEZE_STEPS do one after another, then puts U+2581 before the text, if `prepend`, and for each
 * space, if `mark`. */
static void add_squeezed(const char *text, size_t n, bool prepend, bool mark, str *out) {
    static const char symbol[] = "\xE2\x96\x81";
    size_t begin = 0;
    while (begin < n && text[begin] == ' ') begin++;
    for (size_t len; n > begin; n -= len) {
        len = text[n - 1] == ' ' ? 1 : 3;
        if (len == 3 && (n < begin + 3 || memcmp(text + n - 3, symbol, 3) != 0)) break;
    }
    str_reserve(out, 3 * (n - begin) + 3); /* all of it spaces */
    char *to = out->text + out->len;
    if (prepend && n > begin) memcpy(to, symbol, 3), to += 3;
    for (size_t i = begin; i < n;) {
        const char *gap = memchr(text + i, ' ', n - i);
        size_t end = gap ? (size_t)(gap - text) : n;
        memcpy(to, text + i, end - i);
        to += end - i;
        for (i = end; i < n && text[i] == ' ';) i++;
        if (i == end) continue;
        memcpy(to, mark ? symbol : " \0", 3); /* of a space, one of the three is kept */
        to += mark ? 3 : 1;
    }
    *to = 0;
    out->len = (size_t)(to - out->text);
}

static const char *const squeeze_steps[] = SQUEEZE_STEPS;
enum { N_SQUEEZE = (int)COUNT_OF(squeeze_steps) };

static bool is_squeeze(const norm_step *steps) {
    for (int k = 0; k < N_SQUEEZE; k++) {
        const norm_step *s = &steps[k];
        if (s->kind != NORM_REPLACE || !s->find.source ||
            strcmp(s->find.source, squeeze_steps[k]) != 0 ||
            strcmp(s->with, k == N_SQUEEZE - 1 ? " " : "") != 0)
            return false;
    }
    return true;
}

static bool is_mark(const char *s) { return s && strcmp(s, "\xE2\x96\x81") == 0; }

void norms_find_squeeze(norm_step *steps, int n) {
    for (int i = 0; i + N_SQUEEZE <= n; i++) {
        norm_step *s = &steps[i];
        if (!is_squeeze(s)) continue;
        int k = N_SQUEEZE;
        s->squeeze_prepend = i + k < n && s[k].kind == NORM_PREPEND && is_mark(s[k].with);
        k += s->squeeze_prepend;
        s->squeeze_mark = i + k < n && s[k].kind == NORM_REPLACE && is_mark(s[k].with) &&
                          s[k].find.literal && strcmp(s[k].find.literal, " ") == 0;
        s->n_squeezed = k + s->squeeze_mark;
    }
}

static void normalize_step(const norm_step *step, regex_work *w, const char *text, size_t n,
                           str *out) {
    switch (step->kind) {
    case NORM_LOWERCASE: add_lowercase(text, n, out); return;
    case NORM_REPLACE: add_replaced(step, w, text, n, out); return;
    case NORM_PREPEND:
        if (n) str_add(out, "%s", step->with);
        str_add_bytes(out, text, n);
        return;
    case NORM_CHARSMAP: charsmap_normalize(step->map, step->longest, text, n, out); return;
    case NORM_STRIP: add_stripped(step, text, n, out); return;
    case NORM_STRIP_ACCENTS: add_without_marks(text, n, out); return;
    case NORM_NMT: add_nmt(text, n, out); return;
    case NORM_NFC:
    case NORM_NFD:
    case NORM_NFKC:
    case NORM_NFKD: normalize_form(text, n, step->kind, out);
    }
}

static const struct {
    const char *name;
    normalizer_kind kind;
    const char *type;
} named[] = {
#define NORMALIZER_ROW(name, kind, type) { name, kind, type },
    NAMED_NORMALIZERS(NORMALIZER_ROW)
};

const char *normalizer_type(normalizer_kind kind) {
    for (size_t i = 0; i < COUNT_OF(named); i++)
        if (named[i].kind == kind) return named[i].type;
    return NULL;
}

err norms_parse(const char *list, norm_step *steps, int *n) {
    *n = 0;
    for (const char *p = list; p && *p;) {
        size_t len = strcspn(p, ","), i = 0;
        while (i < COUNT_OF(named) &&
               (strlen(named[i].name) != len || memcmp(named[i].name, p, len)))
            i++;
        if (i == COUNT_OF(named))
            return err_hint(
                ERR_USAGE("--normalize: \"%.*s\" is not the name of a normalizer", (int)len, p),
                "the names are " NORMALIZER_NAMES);
        if (*n == MAX_STEPS) return ERR_USAGE("--normalize: more than %d normalizers", MAX_STEPS);
        steps[(*n)++] =
            (norm_step){ .kind = named[i].kind, .strip_left = true, .strip_right = true };
        p += len + (p[len] == ',');
    }
    return OK;
}

text_span normalize_text(const norm_step *steps, int n_steps, regex_work *w, text_span text,
                         str scratch[2]) {
    for (int i = 0, turn = 0; i < n_steps; turn ^= 1) {
        str *out = &scratch[turn];
        out->len = 0;
        if (steps[i].n_squeezed)
            add_squeezed(text.at, text.len, steps[i].squeeze_prepend, steps[i].squeeze_mark, out);
        else
            normalize_step(&steps[i], w, text.at, text.len, out);
        i += MAX(steps[i].n_squeezed, 1);
        text = (text_span){ out->text ? out->text : "", out->len };
    }
    return text;
}
