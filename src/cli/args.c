#include "cli/cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Whole numbers, also as 10k, 5M or 2G (thousands, millions, thousand millions), or 64Mi, 1Gi. */
static err parse_count(const cli_arg *o, const char *text, int64_t *out) {
    static const struct {
        const char *name;
        int64_t by;
    } units[] = { { "k", 1000 },     { "K", 1000 },     { "M", 1000000 }, { "G", 1000000000 },
                  { "Ki", 1 << 10 }, { "Mi", 1 << 20 }, { "Gi", 1 << 30 } };
    char *end = NULL;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    int64_t by = 1;
    for (size_t i = 0; i < COUNT_OF(units); i++)
        if (strcmp(end, units[i].name) == 0) by = units[i].by;
    if (end == text || (*end && by == 1) || errno || n < 0 || n > INT64_MAX / by)
        return err_hint(ERR("--%s: \"%s\" is not a whole number", o->name, text),
                        "write it like 5000, 10k, 5M, 2G or 1Gi");
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
    err e = ERR("%s: no such option of \"ingot %s\"", name, s->command);
    const char *near = str_nearest(name + strspn(name, "-"), arg_name, s, s->n_args);
    if (near) return err_hint(e, "did you mean --%s?", near);
    return err_hint(e, "\"ingot %s --help\" lists them", s->command);
}

static const cli_arg *find_option(const cli_spec *s, const char *word, size_t n) {
    bool is_long = str_starts(word, "--");
    for (int k = 0; k < s->n_args; k++) {
        const cli_arg *o = &s->args[k];
        if (is_long && strlen(o->name) == n - 2 && !memcmp(o->name, word + 2, n - 2)) return o;
        if (!is_long && n == 2 && o->letter == word[1] && o->letter) return o;
    }
    return NULL;
}

/* Parses one option and its value. @param i moves to the last word used. */
static err parse_option(const cli_spec *s, int argc, char **argv, int *i, void *into) {
    const char *word = argv[*i], *equals = strchr(word, '=');
    size_t n = equals ? (size_t)(equals - word) : strlen(word);
    const cli_arg *o = find_option(s, word, n);
    if (!o) return unknown_option(s, word, n);
    if (o->type == ARG_FLAG) {
        if (equals) return ERR("--%s: takes no value", o->name);
        *(bool *)((char *)into + o->offset) = true;
        return OK;
    }
    if (!equals && *i + 1 == argc) return ERR("--%s: needs a value: %s", o->name, o->holder);
    return parse_value(o, equals ? equals + 1 : argv[++*i], into);
}

err cli_parse_many(const cli_spec *s, int argc, char **argv, void *into, int *n) {
    *n = 0;
    for (int i = 0; i < argc; i++) {
        if (argv[i][0] == '-' && argv[i][1])
            TRY(parse_option(s, argc, argv, &i, into));
        else if (*n < s->inputs || s->many)
            argv[(*n)++] = argv[i];
        else
            return err_hint(ERR("usage: \"%s\" is one argument too many", argv[i]), "ingot %s %s",
                            s->command, s->usage);
    }
    if (*n < s->inputs)
        return err_hint(ERR("usage: an argument is missing"), "ingot %s %s", s->command, s->usage);
    return OK;
}

err cli_parse(const cli_spec *s, int argc, char **argv, void *into, const char **input) {
    BUG_IF(s->many);
    int n = 0;
    TRY(cli_parse_many(s, argc, argv, into, &n));
    for (int i = 0; i < n; i++) input[i] = argv[i];
    return OK;
}

void cli_print_args(const cli_spec *s) {
    for (int i = 0; i < s->n_args; i++) {
        const cli_arg *o = &s->args[i];
        char left[64], letter[8] = "";
        if (o->letter) snprintf(letter, sizeof letter, "-%c, ", o->letter);
        snprintf(left, sizeof left, "%s--%s %s", letter, o->name, o->holder ? o->holder : "");
        printf("  %-24s %s\n", left, o->help);
    }
}

/* ---- families of subcommands ------------------------------------------------------------------ */

/* The word after the family's: "filter" of "data filter". */
static const char *sub_name(const cli_family *f, int i) {
    return f->members[i]->spec.command + strlen(f->command) + 1;
}

static const char *nth_name(const void *ctx, int i) { return sub_name(ctx, i); }

void cli_print_family(const cli_family *f) {
    for (int i = 0; i < f->n; i++) printf("  %-14s %s\n", sub_name(f, i), f->members[i]->summary);
    printf("\n\"ingot %s %s --help\" tells more of one.\n", f->command, sub_name(f, 0));
}

static void print_sub_help(const cli_subcommand *s) {
    printf("ingot %s: %s\n\nusage: ingot %s %s\n\n", s->spec.command, s->summary, s->spec.command,
           s->spec.usage);
    cli_print_args(&s->spec);
    if (s->help) printf("\n%s", s->help);
}

static err unknown_sub(const cli_family *f, const char *name) {
    err e = ERR("usage: \"%s\" is no subcommand of %s", name, f->command);
    const char *near = str_nearest(name, nth_name, f, f->n);
    if (near) return err_hint(e, "did you mean \"ingot %s %s\"?", f->command, near);
    return err_hint(e, "\"ingot %s --help\" lists them", f->command);
}

err cli_run_family(const cli_family *f, int argc, char **argv) {
    if (argc < 2)
        return err_hint(ERR("usage: ingot %s SUBCOMMAND ...", f->command),
                        "\"ingot %s --help\" lists them", f->command);
    const cli_subcommand *s = NULL;
    for (int i = 0; i < f->n; i++)
        if (strcmp(sub_name(f, i), argv[1]) == 0) s = f->members[i];
    if (!s) return unknown_sub(f, argv[1]);
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--help") != 0 && strcmp(argv[i], "-h") != 0) continue;
        print_sub_help(s);
        return OK;
    }
    return s->run(s, argc - 2, argv + 2);
}
