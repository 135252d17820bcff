/* Regular expressions, on PCRE2 compiled to machine code. The patterns we are given are written for
 * Oniguruma or for Rust, to which some escapes, options and repetitions mean something else. These
 * are spelled out in terms that PCRE2 reads the same way, or refused. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/chars_internal.h"
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
/* Letters, marks, digits, connectors, and the symbols that are Alphabetic. */
#define CHARACTER_RANGE(first, last) "\\x{" #first "}-\\x{" #last "}"
#define WORDS                        "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}" FRAMED_LETTERS(CHARACTER_RANGE)
/* Outside of [ ], Oniguruma has a table of its own for Latin-1, with superscripts and fractions. */
#define ONIGURUMA_WORDS        WORDS "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"
#define RUST_WORDS             WORDS "\\x{200c}\\x{200d}"
#define WORD_EDGE(words)       "(?:(?<=[" words "])(?![" words "])|(?<![" words "])(?=[" words "]))"
#define SAME_BOTH_SIDES(words) "(?:(?<=[" words "])(?=[" words "])|(?<![" words "])(?![" words "]))"
#define HEX_DIGITS             "0-9a-fA-F"
#define NOT_HEX_DIGITS                                                                             \
    "\\x{0}-\\x{2f}\\x{3a}-\\x{40}\\x{47}-\\x{60}\\x{67}-\\x{d7ff}\\x{e000}-\\x{10ffff}"

enum { OF_ONIGURUMA = 1 << REGEX_ONIGURUMA, OF_RUST = 1 << REGEX_RUST, OF_BOTH = 3 };
static const struct {
    char escape;
    int flavors;
    const char *in_class, *alone; /* NULL: cannot be expressed */
} spelled_out[] = {
    { 's', OF_BOTH, SPACES, "[" SPACES "]" },
    { 'S', OF_BOTH, NOT_SPACES, "[^" SPACES "]" },
    { 'w', OF_ONIGURUMA, WORDS, "[" ONIGURUMA_WORDS "]" },
    { 'W', OF_ONIGURUMA, NULL, "[^" ONIGURUMA_WORDS "]" },
    { 'b', OF_ONIGURUMA, "\\x{8}", WORD_EDGE(ONIGURUMA_WORDS) },
    { 'B', OF_ONIGURUMA, NULL, SAME_BOTH_SIDES(ONIGURUMA_WORDS) },
    { 'w', OF_RUST, RUST_WORDS, "[" RUST_WORDS "]" },
    { 'W', OF_RUST, NULL, "[^" RUST_WORDS "]" },
    { 'b', OF_RUST, NULL, WORD_EDGE(RUST_WORDS) },
    { 'B', OF_RUST, NULL, SAME_BOTH_SIDES(RUST_WORDS) },
    { 'h', OF_BOTH, HEX_DIGITS, "[" HEX_DIGITS "]" },
    { 'H', OF_BOTH, NOT_HEX_DIGITS, "[^" HEX_DIGITS "]" },
    { 'v', OF_BOTH, "\\x{b}", "\\x{b}" }, /* to PCRE2, all that separates lines */
};
/* Other escaped letters that mean the same to Oniguruma and PCRE2. */
static const char same_escapes[] = "dDnrtfaexpPAzZGkKRX";

/* Bytes of the escape at p: \s, or \p{L}. */
static size_t escape_length(const char *p) {
    const char *close = strchr("pPx", p[1]) && p[2] == '{' ? strchr(p, '}') : NULL;
    return close ? (size_t)(close - p) + 1 : 2;
}

static bool compiles(const char *pattern) {
    int problem = 0;
    PCRE2_SIZE at = 0;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP, &problem, &at, NULL);
    pcre2_code_free(code);
    return code != NULL;
}

/* Copies \p{Name}. That of a script means the characters of that script, to PCRE2 since 10.40 also
 * those that several scripts share, unless it is written \p{sc:Name}. */
static void add_property(const char *p, str *out) {
    enum { SHORTEST_SCRIPT = 3 };
    size_t len = escape_length(p), before = strlen("\\p{") + (p[2] == '{' && p[3] == '^');
    str script = { 0 };
    if (len > before + SHORTEST_SCRIPT)
        str_add(&script, "%.*ssc:%.*s", (int)before, p, (int)(len - before), p + before);
    bool is_script = script.len && compiles(script.text);
    str_add_bytes(out, is_script ? script.text : p, is_script ? script.len : len);
    str_free(&script);
}

/* Copies an escape. @param in_class whether it stands between [ ]. */
static err spell_escape(const char *pattern, regex_flavor flavor, const char *p, bool in_class,
                        str *out) {
    for (size_t i = 0; i < COUNT_OF(spelled_out); i++) {
        if (spelled_out[i].escape != p[1] || !(spelled_out[i].flavors & 1 << flavor)) continue;
        const char *text = in_class ? spelled_out[i].in_class : spelled_out[i].alone;
        if (!text) return ERR("the pattern %s has \\%c inside [ ]", pattern, p[1]);
        str_add(out, "%s", text);
        return OK;
    }
    bool property = p[1] == 'p' || p[1] == 'P', letter = (p[1] | 32) >= 'a' && (p[1] | 32) <= 'z';
    if (flavor == REGEX_ONIGURUMA && letter &&
        (!strchr(same_escapes, p[1]) || (property && p[2] != '{')))
        return ERR("the pattern %s has \\%c, which is not supported", pattern, p[1]);
    if (property)
        add_property(p, out);
    else
        str_add_bytes(out, p, escape_length(p));
    return OK;
}

/* Copies what begins a group of options, such as (?i: or (?m), as Oniguruma reads it: m is PCRE2's s,
 * and options without a group of their own hold for all that follows up to the group's end, as one
 * group: a(?i)b|c is a(?i:b|c). That is the same in PCRE2 where an alternative begins with them, and
 * where none follows. @return in *len its length; 0: there is no such group. */
static err spell_options(const char *pattern, const char *p, size_t *len, str *out) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOQRSTUVWXYZ-";
    size_t n = str_starts(p, "(?") ? strspn(p + 2, letters) : 0;
    *len = 0;
    if (n == 0) return OK;
    if (strspn(p + 2, "imx-") != n)
        return ERR("the pattern %s has the options %.*s: only i, m and x are supported", pattern,
                   (int)n, p + 2);
    bool escaped = p > pattern + 1 && p[-2] == '\\';
    bool begins = p == pattern || (strchr("(|", p[-1]) && !escaped);
    if (p[2 + n] == ')' && !begins && strchr(p, '|'))
        return ERR("the pattern %s has (?%.*s) inside an alternative, which is not supported; "
                   "write (?%.*s:...)",
                   pattern, (int)n, p + 2, (int)n, p + 2);
    str_add(out, "(?");
    for (size_t i = 2; i < n + 2; i++) str_add(out, "%c", p[i] == 'm' ? 's' : p[i]);
    *len = n + 2;
    return OK;
}

/* Refuses, outside of [ ], what Oniguruma reads in another way than PCRE2. */
static err check_oniguruma(const char *pattern, const char *p) {
    if (str_starts(p, "}+"))
        return ERR("the pattern %s has }+, which repeats a repetition: not supported", pattern);
    size_t digits = *p == '{' ? strspn(p + 1, "0123456789") : 0;
    if (digits && str_starts(p + 1 + digits, "}?"))
        return ERR("the pattern %s has {%.*s}?, which makes a repetition optional: not supported",
                   pattern, (int)digits, p + 1);
    if (str_starts(p, "(*")) return ERR("the pattern %s has (*, which is not supported", pattern);
    return OK;
}

static err spell_out(const char *pattern, regex_flavor flavor, str *out) {
    bool in_class = false, oniguruma = flavor == REGEX_ONIGURUMA;
    for (const char *p = pattern; *p; p++) {
        if (*p == '\\' && p[1]) {
            TRY(spell_escape(pattern, flavor, p, in_class, out));
            p += escape_length(p) - 1;
            continue;
        }
        if (!in_class && oniguruma) {
            size_t options;
            TRY(check_oniguruma(pattern, p));
            TRY(spell_options(pattern, p, &options, out));
            p += options;
            if (str_starts(p, "{,") && strchr("0123456789", p[2]) && p[2]) {
                str_add(out, "{0");
                p++;
            }
        }
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
