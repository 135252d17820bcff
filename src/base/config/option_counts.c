/* Options that are a list of numbers: counts, [1, 2, 2], of what each stage, rank or part has, or any numbers, [1, 1.25]. */
#include <stdlib.h>
#include <string.h>

#include "config/config_internal.h"

/* The numbers that a list may have. */
typedef struct number_kind {
    const char *what;
    const char *remedy;
    double most; /* the largest, from 0 on */
    bool whole;
    int many; /* numbers in a list */
} number_kind;

static const number_kind of_counts = { "counts", "write [2, 3, 3, 2]", CFG_MOST_COUNT, true,
                                       CFG_MAX_COUNTS };
static const number_kind of_numbers = { "numbers", "write [1, 1.25, 2]", 1e6, false,
                                        CFG_MAX_NUMBERS };

/* Quotes are skipped: a list in YAML's block style arrives with each item in them. */
static const char *skip_item_gap(const char *s) { return s + strspn(s, " \t\r\n\"'"); }

static err parse_numbers(const char *text, const char *label, const number_kind *k, double *out,
                         int *n) {
    const char *at = skip_item_gap(text);
    *n = 0;
    bool open = *at == '[';
    at = skip_item_gap(at + open);
    while (open && *at && *at != ']') {
        char *end;
        double value = k->whole ? (double)strtol(at, &end, 10) : strtod(at, &end);
        if (end == at || !(value >= 0 && value <= k->most)) break;
        if (*n == k->many) return ERR("%s: expected at most %d %s", label, k->many, k->what);
        out[(*n)++] = value;
        at = skip_item_gap(end);
        if (*at == ',') at = skip_item_gap(at + 1);
    }
    bool ends = !*skip_item_gap(text) || (open && *at == ']' && !*skip_item_gap(at + 1));
    if (ends) return OK;
    return err_hint(
        ERR("%s: expected a list of %s from 0 to %g; got %.60s", label, k->what, k->most, text),
        "%s", k->remedy);
}

static err write_numbers(const char *text, const char *label, const number_kind *k, str *out) {
    double value[MAX((int)CFG_MAX_COUNTS, (int)CFG_MAX_NUMBERS)];
    int n;
    TRY(parse_numbers(text, label, k, value, &n));
    str_add(out, "[");
    for (int i = 0; i < n; i++) {
        str_add(out, "%s", i ? ", " : "");
        print_real(out, value[i]);
    }
    str_add(out, "]");
    return OK;
}

err counts_normalize(const char *text, const char *label, str *out) {
    return write_numbers(text, label, &of_counts, out);
}

err numbers_normalize(const char *text, const char *label, str *out) {
    return write_numbers(text, label, &of_numbers, out);
}

cfg_counts config_counts(const char *text) {
    cfg_counts c;
    double value[CFG_MAX_COUNTS];
    err e = parse_numbers(text, "a list of counts", &of_counts, value, &c.n);
    BUG_IF(e); /* it was checked when it was set */
    for (int i = 0; i < c.n; i++) c.of[i] = (int)value[i];
    return c;
}

int config_numbers(const char *text, double out[CFG_MAX_NUMBERS]) {
    int n;
    err e = parse_numbers(text, "a list of numbers", &of_numbers, out, &n);
    BUG_IF(e);
    return n;
}
