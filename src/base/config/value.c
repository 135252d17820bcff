/* One option's value: text to value and back, what it may be, and what it means. */
#include <stdlib.h>
#include <string.h>

#include "config/config_internal.h"

/* ---- amounts ------------------------------------------------------------------------------- */
/* The name printed comes first; of several sizes of a unit, the largest that leaves a whole number. A
 * number alone counts in the first of its option's units. */
static const struct {
    const char *text;
    cfg_unit unit;
    double size; /* 0: 1 */
} unit_names[] = {
    { "", CFG_STEPS },
    { "steps", CFG_STEPS },
    { "step", CFG_STEPS },
    { "", CFG_SEQUENCES },
    { "sequences", CFG_SEQUENCES },
    { "sequence", CFG_SEQUENCES },
    { " tokens", CFG_TOKENS },
    { "tokens", CFG_TOKENS },
    { "token", CFG_TOKENS },
    { " epochs", CFG_EPOCHS },
    { "epochs", CFG_EPOCHS },
    { "epoch", CFG_EPOCHS },
    { "%", CFG_PERCENT },
    { "d", CFG_SECONDS, 86400 },
    { "days", CFG_SECONDS, 86400 },
    { "day", CFG_SECONDS, 86400 },
    { "h", CFG_SECONDS, 3600 },
    { "hours", CFG_SECONDS, 3600 },
    { "hour", CFG_SECONDS, 3600 },
    { "m", CFG_SECONDS, 60 },
    { "minutes", CFG_SECONDS, 60 },
    { "minute", CFG_SECONDS, 60 },
    { "min", CFG_SECONDS, 60 },
    { "s", CFG_SECONDS },
    { "seconds", CFG_SECONDS },
    { "second", CFG_SECONDS },
};

static double unit_size(size_t i) { return unit_names[i].size > 0 ? unit_names[i].size : 1; }

static bool parse_amount(const char *text, int units, cfg_amount *out) {
    double v;
    const char *rest = number_take(text, &v);
    if (!rest) return false;
    while (*rest == ' ') rest++;
    for (size_t i = 0; i < COUNT_OF(unit_names); i++) {
        cfg_unit unit = unit_names[i].unit;
        if (!(unit & units) || strcmp(rest, unit_names[i].text) != 0) continue;
        double most = unit == CFG_PERCENT ? 100 : 1e18;
        bool whole = unit == CFG_STEPS || unit == CFG_TOKENS || unit == CFG_SEQUENCES;
        if (v < 0 || v > most || (whole && v != floor(v))) return false;
        *out = (cfg_amount){ v * unit_size(i), unit };
        return true;
    }
    return false;
}

static void print_amount(str *out, cfg_amount a) {
    if (isnan(a.value)) {
        str_add(out, "auto");
        return;
    }
    for (size_t i = 0; i < COUNT_OF(unit_names); i++) {
        double v = a.value / unit_size(i);
        if (unit_names[i].unit != a.unit || (unit_size(i) > 1 && (v != floor(v) || v == 0)))
            continue;
        print_real(out, v);
        str_add(out, "%s", unit_names[i].text);
        return;
    }
}

static err amount_error(cfg_amount a, const char *name, const char *unknown) {
    str text = { 0 };
    print_amount(&text, a);
    err e = unknown ? err_hint(ERR("%s: \"%s\" depends on %s, which is not known", name, text.text,
                                   unknown),
                               "give it in steps")
                    : err_hint(ERR("%s: \"%s\" is more than 1e18 steps or tokens", name, text.text),
                               "give a shorter length");
    str_free(&text);
    return e;
}

err cfg_amount_resolve(cfg_amount a, const cfg_scale *scale, const char *name, cfg_amount *out) {
    *out = a;
    if (a.unit == CFG_EPOCHS) {
        if (scale->tokens_per_epoch <= 0) return amount_error(a, name, "the size of the data");
        *out = (cfg_amount){ a.value * scale->tokens_per_epoch, CFG_TOKENS };
    } else if (a.unit == CFG_PERCENT) {
        if (scale->run.value <= 0) return amount_error(a, name, "the length of the run");
        /* Multiply first, so that a percentage of a round number stays a whole number. */
        *out = (cfg_amount){ a.value * scale->run.value / 100, scale->run.unit };
    }
    if (a.unit == CFG_SECONDS) return OK;
    out->value = ceil(out->value * (1 - 1e-12));
    return out->value > 1e18 ? amount_error(a, name, NULL) : OK;
}

/* ---- text ---------------------------------------------------------------------------------- */
/* @return the length of the UTF-8 character at s, 0 when it is not one. */
static int utf8_sequence_bytes(const unsigned char *s) {
    if (s[0] < 0x80) return 1;
    int n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4) return 0;
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    bool overlong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    bool beyond = (s[0] == 0xf4 && s[1] > 0x8f) || (s[0] == 0xed && s[1] > 0x9f);
    return overlong || beyond ? 0 : n;
}

static bool is_utf8(const char *s) {
    const unsigned char *p = (const unsigned char *)s;
    while (*p) {
        int n = utf8_sequence_bytes(p);
        if (n == 0) return false;
        p += n;
    }
    return true;
}

/* @return the code point of the n bytes at p, a whole UTF-8 character. */
static unsigned utf8_code_point(const unsigned char *p, int n) {
    static const unsigned char lead_bits[] = { 0, 0x7f, 0x1f, 0x0f, 0x07 };
    unsigned cp = p[0] & lead_bits[n];
    for (int i = 1; i < n; i++) cp = cp << 6 | (p[i] & 0x3f);
    return cp;
}

/* Characters that YAML refuses or would read as line breaks. */
static bool needs_escape(unsigned cp) {
    return cp < 0x20 || (cp >= 0x7f && cp <= 0x9f) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0xfeff || cp == 0xfffe || cp == 0xffff;
}

void quote_text(str *out, const char *s) {
    str_add(out, "\"");
    for (const unsigned char *p = (const unsigned char *)s; *p;) {
        int n = utf8_sequence_bytes(p);
        unsigned cp = n ? utf8_code_point(p, n) : *p;
        if (cp == '"' || cp == '\\')
            str_add(out, "\\%c", *p);
        else if (cp == '\n')
            str_add(out, "\\n");
        else if (cp == '\t')
            str_add(out, "\\t");
        else if (n == 0 || (cp < 0x100 && needs_escape(cp)))
            str_add(out, "\\x%02x", cp);
        else if (needs_escape(cp))
            str_add(out, "\\u%04x", cp);
        else
            str_add_bytes(out, p, (size_t)n);
        p += n ? n : 1;
    }
    str_add(out, "\"");
}

void print_real(str *out, double v) {
    char text[40];
    if (v == floor(v) && fabs(v) < 1e7) {
        str_add(out, "%.0f", v);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    char *exponent = strchr(text, 'e');
    if (!exponent) {
        str_add(out, "%s", text);
        return;
    }
    *exponent = '\0'; /* 2e+09 is better read as 2e9 */
    str_add(out, "%se%d", text, atoi(exponent + 1));
}

/* ---- any option ---------------------------------------------------------------------------- */
static void expects_number(const option *o, str *out) {
    if (o->type == OPT_INT) {
        str_add(out, "a whole number ");
        if (o->int_max == INT64_MAX)
            str_add(out, "of at least %lld", (long long)o->int_min);
        else
            str_add(out, "from %lld to %lld", (long long)o->int_min, (long long)o->int_max);
        return;
    }
    str_add(out, "a number from ");
    print_real(out, o->real_min);
    str_add(out, " to ");
    print_real(out, o->real_max);
}

void option_expects(const option *o, str *out) {
    switch (o->type) {
    case OPT_INT:
    case OPT_REAL:
        expects_number(o, out);
        if (o->has_auto) str_add(out, ",");
        break;
    case OPT_BOOL: str_add(out, "true or false"); break;
    case OPT_TRISTATE: str_add(out, "true, false"); break;
    case OPT_TEXT: str_add(out, "UTF-8 text"); break;
    case OPT_SECRET: str_add(out, "env:NAME, file:PATH or the secret itself"); break;
    case OPT_LIST: str_add(out, "a list"); break;
    case OPT_AMOUNT:
        str_add(
            out, "%s",
            o->units == CFG_BATCH ? "sequences or tokens, such as 256 or 4M tokens"
            : o->units == CFG_INTERVAL
                ? "steps, tokens, epochs, a percentage or a time, such as 1000, 2e9 tokens, 1.5 "
                  "epochs, 10%, 30m or 1h"
            : o->units == CFG_RUN
                ? "steps, tokens, epochs or a time, such as 1000, 2e9 tokens, 1.5 epochs, 25m or "
                  "2h"
            : o->units == CFG_ANY
                ? "steps, tokens, epochs or a percentage, such as 1000, 2e9 tokens, 1.5 epochs "
                  "or 10%"
                : "steps, tokens or epochs, such as 1000, 2e9 tokens or 1.5 epochs");
        if (o->has_auto) str_add(out, ",");
        break;
    case OPT_CHOICE:
        for (int i = 0; i < o->n_choices; i++)
            str_add(out, "%s%s",
                    i == 0                 ? ""
                    : i + 1 < o->n_choices ? ", "
                    : o->has_auto          ? ", "
                                           : " or ",
                    o->choices[i].text);
        break;
    }
    if (o->has_auto) str_add(out, " or auto");
}

void option_unset(const option *o, void *at) {
    if (o->type == OPT_INT)
        *(int64_t *)at = CFG_AUTO;
    else if (o->type == OPT_AMOUNT)
        ((cfg_amount *)at)->value = CFG_AUTO_REAL;
    else if (o->type == OPT_REAL)
        *(double *)at = CFG_AUTO_REAL;
    else
        *(int *)at = CFG_AUTO;
}

bool option_is_unset(const option *o, const void *at) {
    if (o->type == OPT_INT) return *(const int64_t *)at == CFG_AUTO;
    if (o->type == OPT_AMOUNT) return isnan(((const cfg_amount *)at)->value);
    if (o->type == OPT_REAL) return isnan(*(const double *)at);
    return *(const int *)at == CFG_AUTO;
}

/* @return false when the text is not a legal value; `at` is then untouched. */
static bool parse_value(config *c, const option *o, const char *text, void *at) {
    bool b = false;
    int64_t whole = 0;
    double real = 0;
    if (o->has_auto && strcmp(text, "auto") == 0) {
        option_unset(o, at);
        return true;
    }
    switch (o->type) {
    case OPT_INT:
        if (!number_parse_int(text, &whole) || whole < o->int_min || whole > o->int_max)
            return false;
        *(int64_t *)at = whole;
        return true;
    case OPT_REAL:
        if (!number_parse_real(text, &real) || real < o->real_min || real > o->real_max)
            return false;
        *(double *)at = real;
        return true;
    case OPT_BOOL: return args_parse_bool(text, at);
    case OPT_TRISTATE:
        if (!args_parse_bool(text, &b)) return false;
        *(int *)at = b;
        return true;
    case OPT_TEXT:
    case OPT_SECRET:
        if (!is_utf8(text)) return false;
        *(const char **)at = arena_strdup(c->memory, text);
        return true;
    case OPT_LIST: break; /* set_list */
    case OPT_CHOICE:
        for (int i = 0; i < o->n_choices; i++)
            if (!strcmp(text, o->choices[i].text)) {
                *(int *)at = i;
                return true;
            }
        return false;
    case OPT_AMOUNT: return parse_amount(text, o->units, at);
    }
    return false;
}

bool option_parse(const option *o, const char *text, void *at) {
    BUG_IF(o->type == OPT_TEXT || o->type == OPT_SECRET);
    return parse_value(NULL, o, text, at);
}

/* A list is kept as its function writes it, so that equal lists have equal texts. */
static err set_list(config *c, const option *o, const char *text, const char *label,
                    const char *origin) {
    str normal = { 0 };
    if (!is_utf8(text)) return ERR("%s: expected UTF-8 text", label);
    err e = o->normalize(text, label, &normal);
    if (!e) {
        *(const char **)((char *)c + o->offset) = arena_strdup(c->memory, normal.text);
        c->origin[option_index(o)] = origin;
    }
    str_free(&normal);
    return e;
}

err option_set(config *c, const option *o, const char *text, const char *label,
               const char *origin) {
    if (o->type == OPT_LIST) return set_list(c, o, text, label, origin);
    if (parse_value(c, o, text, (char *)c + o->offset)) {
        c->origin[option_index(o)] = origin;
        return OK;
    }
    str expected = { 0 }, got = { 0 };
    option_expects(o, &expected);
    quote_text(&got, o->type == OPT_SECRET ? CONFIG_WITHHELD : text);
    err e =
        ERR("%s: expected %s; got %.100s", label, expected.text, text[0] ? got.text : "nothing");
    const char *near = NULL;
    for (int i = 0; o->type == OPT_CHOICE && i < o->n_choices; i++)
        near = str_nearer(text, o->choices[i].text, near);
    const option *own = option_find(o->section, text); /* precision: fp8 */
    str own_takes = { 0 };
    if (own) option_expects(own, &own_takes);
    if (own && own != o)
        e = err_hint(e, "--%s, an option of its own: %s", own->name, own_takes.text);
    else if (near)
        e = err_hint(e, "\"%s\"", near);
    str_free(&own_takes);
    str_free(&expected);
    str_free(&got);
    return e;
}

void option_print(const option *o, const config *c, str *out) {
    option_print_value(o, (const char *)c + o->offset, out);
}

void option_print_value(const option *o, const void *at, str *out) {
    switch (o->type) {
    case OPT_INT: {
        int64_t v = *(const int64_t *)at;
        if (o->has_auto && v == CFG_AUTO)
            str_add(out, "auto");
        else
            str_add(out, "%lld", (long long)v);
        break;
    }
    case OPT_REAL: {
        double v = *(const double *)at;
        if (isnan(v))
            str_add(out, "auto");
        else
            print_real(out, v);
        break;
    }
    case OPT_BOOL: str_add(out, *(const bool *)at ? "true" : "false"); break;
    case OPT_TRISTATE: {
        int v = *(const int *)at;
        str_add(out, v == CFG_AUTO ? "auto" : v ? "true" : "false");
        break;
    }
    case OPT_TEXT: quote_text(out, *(const char *const *)at); break;
    case OPT_SECRET: quote_text(out, secret_shown(*(const char *const *)at)); break;
    case OPT_LIST: str_add(out, "%s", *(const char *const *)at); break;
    case OPT_CHOICE: {
        int v = *(const int *)at;
        str_add(out, "%s", v == CFG_AUTO ? "auto" : o->choices[v].text);
        break;
    }
    case OPT_AMOUNT: print_amount(out, *(const cfg_amount *)at); break;
    }
}
