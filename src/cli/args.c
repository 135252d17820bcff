#include "cli/cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Whole numbers, also as 10k, 5M or 2G (thousands, millions, thousand millions). */
static err parse_count(const cli_arg *o, const char *text, int64_t *out) {
    static const struct {
        char letter;
        int64_t by;
    } units[] = { { 'k', 1000 }, { 'K', 1000 }, { 'M', 1000000 }, { 'G', 1000000000 } };
    char *end = NULL;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    int64_t by = 1;
    for (size_t i = 0; i < COUNT_OF(units); i++)
        if (*end == units[i].letter && end[1] == 0) by = units[i].by;
    if (end == text || (*end && by == 1) || errno || n < 0 || n > INT64_MAX / by)
        return err_hint(ERR("--%s: \"%s\" is not a whole number", o->name, text),
                        "write it like 5000, 10k, 5M or 2G");
    *out = n * by;
    return OK;
}

static err parse_real(const cli_arg *o, const char *text, double *out) {
    char *end = NULL;
    bool fraction = o->type == ARG_FRACTION;
    *out = strtod(text, &end);
    if (end == text || *end || !isfinite(*out) || *out < 0 || (fraction && *out > 1))
        return err_hint(ERR("--%s: \"%s\" is not a %s", o->name, text,
                            fraction ? "fraction" : "number of at least 0"),
                        fraction ? "write a number from 0 to 1, such as 0.05"
                                 : "write it like 0.8 or 2");
    return OK;
}

static err parse_value(const cli_arg *o, const char *text, void *into) {
    void *at = (char *)into + o->offset;
    switch (o->type) {
    case ARG_COUNT: return parse_count(o, text, at);
    case ARG_FRACTION:
    case ARG_REAL: return parse_real(o, text, at);
    case ARG_TEXT: *(const char **)at = text; return OK;
    case ARG_FLAG: break;
    }
    BUG_IF("a flag takes no value");
    return OK;
}

static const char *arg_name(const void *ctx, int i) {
    return ((const cli_spec *)ctx)->args[i].name;
}

static err unknown_option(const cli_spec *s, const char *word, size_t n) {
    char name[64] = "";
    snprintf(name, sizeof name, "%.*s", (int)MIN(n, sizeof name - 1), word);
    err e = ERR("--%s: no such option of \"ingot %s\"", name, s->command);
    const char *near = str_nearest(name, arg_name, s, s->n_args);
    if (near) return err_hint(e, "did you mean --%s?", near);
    return err_hint(e, "\"ingot %s --help\" lists them", s->command);
}

/* Parses one option and its value. @param i moves to the last word used. */
static err parse_option(const cli_spec *s, int argc, char **argv, int *i, void *into) {
    const char *word = argv[*i] + 2, *equals = strchr(word, '=');
    size_t n = equals ? (size_t)(equals - word) : strlen(word);
    const cli_arg *o = NULL;
    for (int k = 0; k < s->n_args; k++)
        if (strlen(s->args[k].name) == n && !memcmp(s->args[k].name, word, n)) o = &s->args[k];
    if (!o) return unknown_option(s, word, n);
    if (o->type == ARG_FLAG) {
        if (equals) return ERR("--%s: takes no value", o->name);
        *(bool *)((char *)into + o->offset) = true;
        return OK;
    }
    if (!equals && *i + 1 == argc) return ERR("--%s: needs a value: %s", o->name, o->holder);
    return parse_value(o, equals ? equals + 1 : argv[++*i], into);
}

err cli_parse(const cli_spec *s, int argc, char **argv, void *into, const char **input) {
    int given = 0;
    for (int i = 0; i < argc; i++) {
        if (str_starts(argv[i], "--"))
            TRY(parse_option(s, argc, argv, &i, into));
        else if (given < s->inputs)
            input[given++] = argv[i];
        else
            return err_hint(ERR("usage: \"%s\" is one argument too many", argv[i]), "ingot %s %s",
                            s->command, s->usage);
    }
    if (given < s->inputs)
        return err_hint(ERR("usage: an argument is missing"), "ingot %s %s", s->command, s->usage);
    return OK;
}

void cli_print_args(const cli_spec *s) {
    for (int i = 0; i < s->n_args; i++) {
        char left[64];
        snprintf(left, sizeof left, "--%s %s", s->args[i].name,
                 s->args[i].holder ? s->args[i].holder : "");
        printf("  %-24s %s\n", left, s->args[i].help);
    }
}
