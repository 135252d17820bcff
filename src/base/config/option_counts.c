/* Options that are a list of counts, [1, 2, 2]: how many of something each stage, rank or part has. */
#include <stdlib.h>
#include <string.h>

#include "config/config_internal.h"

/* Quotes are skipped: a list in YAML's block style arrives with each item in them. */
static const char *skip_item_gap(const char *s) { return s + strspn(s, " \t\r\n\"'"); }

static err parse_counts(const char *text, const char *label, cfg_counts *out) {
    const char *at = skip_item_gap(text);
    out->n = 0;
    bool open = *at == '[';
    at = skip_item_gap(at + open);
    while (open && *at && *at != ']') {
        char *end;
        long value = strtol(at, &end, 10);
        if (end == at || value < 0 || value > CFG_MOST_COUNT) break;
        if (out->n == CFG_MAX_COUNTS)
            return ERR("%s: expected at most %d counts", label, CFG_MAX_COUNTS);
        out->of[out->n++] = (int)value;
        at = skip_item_gap(end);
        if (*at == ',') at = skip_item_gap(at + 1);
    }
    bool ends = !*skip_item_gap(text) || (open && *at == ']' && !*skip_item_gap(at + 1));
    if (ends) return OK;
    return err_hint(
        ERR("%s: expected a list of counts from 0 to %d; got %.60s", label, CFG_MOST_COUNT, text),
        "write [2, 3, 3, 2]");
}

err counts_normalize(const char *text, const char *label, str *out) {
    cfg_counts c;
    TRY(parse_counts(text, label, &c));
    str_add(out, "[");
    for (int i = 0; i < c.n; i++) str_add(out, "%s%d", i ? ", " : "", c.of[i]);
    str_add(out, "]");
    return OK;
}

cfg_counts config_counts(const char *text) {
    cfg_counts c;
    err e = parse_counts(text, "a list of counts", &c);
    BUG_IF(e); /* it was checked when it was set */
    return c;
}
