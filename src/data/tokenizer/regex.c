/* Regular expressions, on PCRE2 compiled to machine code. What \s and \w mean there is not what it
 * means to Oniguruma and Rust, whose patterns we are given, so they are written out. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/regex_internal.h"

struct regex {
    pcre2_code *code;
};
struct regex_work {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
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
    (*out)->code = code;
cleanup:
    str_free(&text);
    return e;
}

void regex_free(regex *r) {
    if (!r) return;
    pcre2_code_free(r->code);
    free(r);
}

/* ---- matching ---------------------------------------------------------------------------------- */

regex_work *regex_work_new(bool lasting) {
    regex_work *w = mem_alloc(sizeof *w);
    w->match = pcre2_match_data_create(1, NULL);
    w->context = pcre2_match_context_create(NULL);
    BUG_IF(!w->match || !w->context);
    if (lasting) w->stack = pcre2_jit_stack_create((size_t)32 << 10, (size_t)1 << 20, NULL);
    if (w->stack) pcre2_jit_stack_assign(w->context, NULL, w->stack);
    return w;
}

void regex_work_free(regex_work *w) {
    if (!w) return;
    if (w->stack) pcre2_jit_stack_free(w->stack);
    pcre2_match_context_free(w->context);
    pcre2_match_data_free(w->match);
    free(w);
}

bool regex_find(const regex *r, regex_work *w, const char *text, size_t n, size_t from,
                size_t *start, size_t *end) {
    int found =
        pcre2_match(r->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, w->match, w->context);
    /* Out of stack or of patience: a pattern that would take forever finds nothing more. */
    if (found < 0) return false;
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(w->match);
    *start = at[0];
    *end = MAX(at[0], at[1]); /* \K may put the beginning behind the end */
    return true;
}
