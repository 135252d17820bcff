/* Regular expressions, on PCRE2 compiled to machine code. What \s and \w mean there is not what it
 * means to Oniguruma and Rust, whose patterns we are given, so they are written out. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/regex_internal.h"

struct regex {
    pcre2_code *code;
    char *pattern;        /* owned, for messages */
    atomic_flag *gave_up; /* owned: a search was given up, and a warning said so */
};
struct regex_work {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    pcre2_match_context *deep; /* limits of matches that do not fit in `stack` */
};

/* ---- patterns ---------------------------------------------------------------------------------- */

/* White_Space, and all else: PCRE2's \s has U+180E besides. */
#define SPACES                                                                                     \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"    \
    "\\x{205f}\\x{3000}"
#define NOT_SPACES                                                                                 \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-"         \
    "\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}"        \
    "\\x{3001}-\\x{d7ff}\\x{e000}-\\x{10ffff}"
/* Letters, marks, digits, connectors; the circled letters are Alphabetic though symbols. */
#define WORDS "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{24b6}-\\x{24e9}"

static const struct {
    char escape;
    const char *in_class, *alone; /* NULL: cannot be expressed */
} spelled_out[] = {
    { 's', SPACES, "[" SPACES "]" },
    { 'S', NOT_SPACES, "[^" SPACES "]" },
    { 'w', WORDS, "[" WORDS "]" },
    { 'W', NULL, "[^" WORDS "]" },
};

/* Bytes of the escape at p: \s, or \p{L}. */
static size_t escape_length(const char *p) {
    const char *close = strchr("pPx", p[1]) && p[2] == '{' ? strchr(p, '}') : NULL;
    return close ? (size_t)(close - p) + 1 : 2;
}

/* Copies an escape. @param in_class whether it stands between [ ]. */
static err spell_escape(const char *pattern, const char *p, bool in_class, str *out) {
    for (size_t i = 0; i < COUNT_OF(spelled_out); i++) {
        if (spelled_out[i].escape != p[1]) continue;
        const char *text = in_class ? spelled_out[i].in_class : spelled_out[i].alone;
        if (!text) return ERR("the pattern %s has \\%c inside [ ]", pattern, p[1]);
        str_add(out, "%s", text);
        return OK;
    }
    str_add_bytes(out, p, escape_length(p));
    return OK;
}

static err spell_out(const char *pattern, regex_flavor flavor, str *out) {
    bool in_class = false;
    for (const char *p = pattern; *p; p++) {
        if (*p == '\\' && p[1]) {
            TRY(spell_escape(pattern, p, in_class, out));
            p += escape_length(p) - 1;
            continue;
        }
        if (!in_class && flavor == REGEX_ONIGURUMA && str_starts(p, "}+"))
            return ERR("the pattern %s has }+, which repeats a repetition: not supported", pattern);
        if (in_class && (*p == '[' || str_starts(p, "&&")))
            return ERR("the pattern %s has a set inside a set, which is not supported", pattern);
        str_add_bytes(out, p, 1);
        if (*p == '[') {
            in_class = true;
            if (p[1] == '^') str_add_bytes(out, ++p, 1);
            if (p[1] == ']') str_add_bytes(out, ++p, 1); /* a ] that comes first is itself */
        } else if (*p == ']')
            in_class = false;
    }
    return OK;
}

err regex_new(const char *pattern, regex_flavor flavor, regex **out) {
    str text = { 0 };
    err e = OK;
    *out = NULL;
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK |
                       (flavor == REGEX_ONIGURUMA ? PCRE2_MULTILINE : PCRE2_DOLLAR_ENDONLY);
    if (utf8_valid(pattern, strlen(pattern)) != strlen(pattern))
        return ERR("the pattern is not UTF-8");
    TRY_CLEAN(spell_out(pattern, flavor, &text));
    int problem = 0;
    PCRE2_SIZE at = 0;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)text.text, text.len, options, &problem, &at, NULL);
    if (!code) {
        PCRE2_UCHAR why[128];
        pcre2_get_error_message(problem, why, sizeof why);
        e = ERR("cannot read the pattern %s: %s", pattern, (const char *)why);
        goto cleanup;
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* where it cannot, the interpreter matches */
    *out = mem_alloc(sizeof **out);
    **out = (regex){ code, strdup(pattern), mem_alloc(sizeof *(*out)->gave_up) };
    atomic_flag_clear((*out)->gave_up);
cleanup:
    str_free(&text);
    return e;
}

void regex_free(regex *r) {
    if (!r) return;
    pcre2_code_free(r->code);
    free(r->pattern);
    free(r->gave_up);
    free(r);
}

/* ---- matching ---------------------------------------------------------------------------------- */

enum { DEEP_KIB = 1 << 20 }; /* of memory for one match on the heap: 1 GiB */

regex_work *regex_work_new(bool lasting) {
    regex_work *w = mem_alloc(sizeof *w);
    w->match = pcre2_match_data_create(1, NULL);
    w->context = pcre2_match_context_create(NULL);
    w->deep = pcre2_match_context_create(NULL);
    BUG_IF(!w->match || !w->context || !w->deep);
    pcre2_set_heap_limit(w->deep, DEEP_KIB);
    if (lasting) w->stack = pcre2_jit_stack_create((size_t)32 << 10, (size_t)1 << 20, NULL);
    if (w->stack) pcre2_jit_stack_assign(w->context, NULL, w->stack);
    return w;
}

void regex_work_free(regex_work *w) {
    if (!w) return;
    if (w->stack) pcre2_jit_stack_free(w->stack);
    pcre2_match_context_free(w->context);
    pcre2_match_context_free(w->deep);
    pcre2_match_data_free(w->match);
    free(w);
}

/* Matches on the heap, at a tenth of the speed, what is too long for the stack of compiled code.
 * The steps that a match may take grow with the text, so that one pass over it always ends well and
 * a hostile pattern still fails. The match data is released, as PCRE2 keeps the heap in it. */
static int find_deep(const regex *r, regex_work *w, const char *text, size_t n, size_t from,
                     PCRE2_SIZE at[2]) {
    enum { LEAST_STEPS = 10 * 1000 * 1000, STEPS_PER_BYTE = 16 };
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    BUG_IF(!match);
    size_t steps = MAX(LEAST_STEPS, STEPS_PER_BYTE * MIN(n, UINT32_MAX / STEPS_PER_BYTE));
    pcre2_set_match_limit(w->deep, (uint32_t)steps);
    int found = pcre2_match(r->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                            match, w->deep);
    memcpy(at, pcre2_get_ovector_pointer(match), 2 * sizeof *at);
    pcre2_match_data_free(match);
    return found;
}

/* Warns the first time that a search ends early: from there on, ids may differ from the original's. */
static void warn_given_up(const regex *r, int problem, size_t n, size_t from) {
    PCRE2_UCHAR why[128];
    if (atomic_flag_test_and_set(r->gave_up)) return;
    pcre2_get_error_message(problem, why, sizeof why);
    log_warn("the tokenizer's pattern %s was given up at byte %zu of a text of %zu bytes: %s; it "
             "finds nothing in the rest of that text, so ids may differ from the original's; "
             "simplify the pattern or divide such texts",
             r->pattern, from, n, (const char *)why);
}

bool regex_find(const regex *r, regex_work *w, const char *text, size_t n, size_t from,
                size_t *start, size_t *end) {
    PCRE2_SIZE deep[2];
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(w->match);
    int found =
        pcre2_match(r->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, w->match, w->context);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
        found = find_deep(r, w, text, n, from, deep);
        at = deep;
    }
    if (found < 0 && found != PCRE2_ERROR_NOMATCH) warn_given_up(r, found, n, from);
    if (found < 0) return false;
    *start = at[0];
    *end = MAX(at[0], at[1]); /* \K may put the beginning behind the end */
    return true;
}
