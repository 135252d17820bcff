/* The arguments of a command, by its own table; subcommands; their help. */
#include "cli/cli.h"
#include "cli/data_common.h"

#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "config/config.h"

/* ---- values ----------------------------------------------------------------------------------- */

static err parse_count(const char *label, const char *text, int64_t *out) {
    int64_t n;
    if (!number_parse_int(text, &n) || n < 0)
        return err_hint(ERR("%s: \"%.100s\" is not a whole number", label, text),
                        "write it like 5000, 10k, 5M, 2G or 1Gi");
    *out = n;
    return OK;
}

static err parse_real(const char *label, const char *text, bool fraction, double *out) {
    double v;
    if (!number_parse_real(text, &v) || v < 0 || (fraction && v > 1))
        return err_hint(ERR("%s: \"%.100s\" is not a %s", label, text,
                            fraction ? "fraction" : "number of at least 0"),
                        fraction ? "write a number from 0 to 1, such as 0.05"
                                 : "write it like 0.8 or 2");
    *out = v;
    return OK;
}

/* ---- options and words -------------------------------------------------------------------------- */

typedef struct args_reader {
    const cli_spec *spec;
    void *into;
    char **words; /* argv, whose first places they take */
    int n;
} args_reader;

static bool find_arg(void *ctx, const char *name, args_option *out) {
    const cli_spec *s = ((const args_reader *)ctx)->spec;
    for (int k = 0; k < s->n_args; k++) {
        const cli_arg *o = &s->args[k];
        bool is_letter = o->letter && name[0] == o->letter && !name[1];
        if (!is_letter && strcmp(o->name, name) != 0) continue;
        *out = (args_option){ o->type == ARG_FLAG ? ARGS_FLAG : ARGS_VALUE, o, o->holder };
        return true;
    }
    return false;
}

static err set_arg(void *ctx, const args_option *a, const char *label, const char *value) {
    const cli_arg *o = a->option;
    void *at = (char *)((const args_reader *)ctx)->into + o->offset;
    switch (o->type) {
    case ARG_COUNT: return parse_count(label, value, at);
    case ARG_FRACTION: return parse_real(label, value, true, at);
    case ARG_REAL: return parse_real(label, value, false, at);
    case ARG_TEXT: *(const char **)at = value; break;
    case ARG_FLAG: *(bool *)at = true; break;
    }
    return OK;
}

static err keep_word(void *ctx, char *word) {
    args_reader *r = ctx;
    const cli_spec *s = r->spec;
    if (r->n == s->inputs && !s->many)
        return err_hint(ERR("\"%s\" is one argument too many", word), "ingot %s %s", s->command,
                        s->usage);
    r->words[r->n++] = word;
    return OK;
}

static err suggest_arg(void *ctx, err e, const char *name) {
    const cli_spec *s = ((const args_reader *)ctx)->spec;
    const char *near = NULL, *longer = NULL; /* --min-words: --gopher-min-words */
    for (int i = 0; i < s->n_args && !longer; i++) {
        size_t whole = strlen(s->args[i].name), part = strlen(name);
        bool ends = whole > part + 1 && str_ends(s->args[i].name, name);
        if (ends && s->args[i].name[whole - part - 1] == '-') longer = s->args[i].name;
        near = str_nearer(name, s->args[i].name, near);
    }
    if (longer) near = longer;
    if (near) return err_hint(e, "--%s; \"ingot %s --help\" lists every option", near, s->command);
    return err_hint(e, "\"ingot %s --help\" lists every option", s->command);
}

err cli_parse_many(const cli_spec *s, int argc, char **argv, void *into, int *n) {
    args_reader r = { s, into, argv, 0 };
    TRY(args_parse(&(args_grammar){ find_arg, set_arg, keep_word, suggest_arg, &r }, argc, argv));
    *n = r.n;
    if (*n < s->inputs)
        return err_hint(ERR_USAGE("an argument is missing"), "ingot %s %s", s->command, s->usage);
    return OK;
}

err cli_parse(const cli_spec *s, int argc, char **argv, void *into, const char **input) {
    BUG_IF(s->many);
    int n = 0;
    TRY(cli_parse_many(s, argc, argv, into, &n));
    for (int i = 0; i < n; i++) input[i] = argv[i];
    return OK;
}

void cli_exit_stalled(void) { _exit(EXIT_HUNG); }

int cli_width(int least, int otherwise) {
    struct winsize size;
    bool wide = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= least;
    return wide ? MIN(size.ws_col, 160) : otherwise;
}

err cli_parse_config(const cli_spec *s, int argc, char **argv, config *c, void *into) {
    enum { MOST = 16, LONGEST = 32 };
    config_flag flags[MOST];
    char names[MOST][LONGEST];
    BUG_IF(s->n_args > MOST);
    for (int i = 0; i < s->n_args; i++) {
        const cli_arg *o = &s->args[i];
        void *at = (char *)into + o->offset;
        BUG_IF(o->type != ARG_FLAG && o->type != ARG_TEXT);
        BUG_IF(snprintf(names[i], LONGEST, "--%s", o->name) >= LONGEST);
        flags[i] = (config_flag){ names[i], o->type == ARG_FLAG ? at : NULL,
                                  o->type == ARG_TEXT ? at : NULL };
    }
    return config_from_args(c, argc, argv, flags, s->n_args);
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

const char *cli_subcommand_name(const cli_family *f, int i) {
    return f->members[i]->spec.command + strlen(f->command) + 1;
}

void cli_print_family(const cli_family *f) {
    for (int i = 0; i < f->n; i++)
        printf("  %-14s %s\n", cli_subcommand_name(f, i), f->members[i]->summary);
    printf("\nRun \"ingot %s SUBCOMMAND --help\" for details on one.\n", f->command);
}

static err unknown_sub(const cli_family *f, const char *name) {
    err e = ERR_USAGE("unknown subcommand \"%s %s\"", f->command, name);
    const char *near = NULL;
    for (int i = 0; i < f->n; i++) near = str_nearer(name, cli_subcommand_name(f, i), near);
    if (near)
        return err_hint(e, "\"ingot %s %s\"; \"ingot %s --help\" lists them all", f->command, near,
                        f->command);
    return err_hint(e, "\"ingot %s --help\" lists them all", f->command);
}

const cli_subcommand *cli_find_subcommand(const cli_family *f, const char *name) {
    for (int i = 0; i < f->n; i++)
        if (strcmp(cli_subcommand_name(f, i), name) == 0) return f->members[i];
    return NULL;
}

err cli_run_family(const cli_family *f, int argc, char **argv) {
    if (argc < 2)
        return err_hint(ERR_USAGE("ingot %s needs a subcommand", f->command),
                        "\"ingot %s --help\" lists them", f->command);
    const cli_subcommand *s = cli_find_subcommand(f, argv[1]);
    if (!s) return unknown_sub(f, argv[1]);
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--help") != 0 && strcmp(argv[i], "-h") != 0) continue;
        printf("ingot %s: %s\n\nusage: ingot %s %s\n\n", s->spec.command, s->summary,
               s->spec.command, s->spec.usage);
        cli_print_args(&s->spec);
        if (s->help) printf("\n%s", s->help);
        return OK;
    }
    return (s->run_rank ? data_run_on_ranks : s->run)(s, argc - 2, argv + 2);
}
