/* The command line into a config. */
#include <string.h>

#include "config/config_internal.h"

/* Where a walk over the arguments stands. */
typedef struct walk {
    int argc;
    char **argv;
    int i;             /* the argument being looked at */
    char name[64];     /* of --name or --name=value, without the dashes */
    const char *value; /* after "=", or NULL */
} walk;

static err split(walk *w) {
    const char *arg = w->argv[w->i] + 2, *equals = strchr(arg, '=');
    size_t n = equals ? (size_t)(equals - arg) : strlen(arg);
    if (n >= sizeof w->name) return ERR("--%.40s...: unknown option", arg);
    memcpy(w->name, arg, n);
    w->name[n] = '\0';
    w->value = equals ? equals + 1 : NULL;
    return OK;
}

/* The value behind "=", else the next argument. */
static err take_value(walk *w, const char *example) {
    if (w->value) return OK;
    if (w->i + 1 >= w->argc)
        return err_hint(ERR("--%s: expected a value; got the end of the command line", w->name),
                        "write --%s=%s", w->name, example);
    w->value = w->argv[++w->i];
    return OK;
}

static err take_flag(walk *w, const config_flag *f) {
    if (f->value) {
        TRY(take_value(w, "VALUE"));
        *f->value = w->value;
    } else if (w->value) {
        return ERR("--%s: takes no value; got \"%s\"", w->name, w->value);
    }
    if (f->set) *f->set = true;
    return OK;
}

/* A bool may stand alone: `--data.shuffle` is true, `--data.shuffle no` is not. */
static err take_option(walk *w, const option *o, config *c, bool apply) {
    bool b;
    bool is_bool = o->type == OPT_BOOL || o->type == OPT_TRISTATE;
    bool next_is_bool = w->i + 1 < w->argc && option_parse_bool(w->argv[w->i + 1], &b);
    if (is_bool && !w->value && !next_is_bool) {
        w->value = "true";
    } else {
        str def = { 0 };
        option_print(o, &config_defaults, &def);
        err e = take_value(w, def.text);
        str_free(&def);
        TRY(e);
    }
    if (!apply) return OK;
    return option_set(c, o, w->value, arena_printf(c->memory, "--%s", w->name), "command line");
}

static err unknown_option(const char *name) {
    err e = ERR("--%s: unknown option", name);
    char head[64];
    snprintf(head, sizeof head, "%s", name);
    char *dot = strchr(head, '.');
    if (dot) *dot = '\0';
    return dot ? option_suggest(e, head, dot + 1) : option_suggest(e, NULL, head);
}

static err take_dashed(walk *w, config *c, const config_flag *flags, int n_flags, bool apply) {
    TRY(split(w));
    for (int i = 0; i < n_flags; i++)
        if (strcmp(flags[i].name + 2, w->name) == 0) return take_flag(w, &flags[i]);
    const option *o = option_find_name(w->name);
    if (!o) return unknown_option(w->name);
    return take_option(w, o, c, apply);
}

/* One walk over all arguments: the first, with `apply` false, finds the file; the second sets the
 * options, over what the file said. */
static err walk_args(config *c, int argc, char **argv, const config_flag *flags, int n_flags,
                     bool apply) {
    walk w = { .argc = argc, .argv = argv };
    const char *file = NULL;
    for (w.i = 1; w.i < argc; w.i++) {
        const char *arg = argv[w.i];
        if (str_starts(arg, "--")) {
            TRY(take_dashed(&w, c, flags, n_flags, apply));
        } else if (arg[0] == '-') {
            return err_hint(ERR("%s: unknown option", arg), "options start with two dashes");
        } else if (file) {
            return ERR("usage: expected one config file; got \"%s\" and \"%s\"", file, arg);
        } else {
            file = arg;
        }
    }
    return file && !apply ? config_load(c, file) : OK;
}

err config_from_args(config *c, int argc, char **argv, const config_flag *flags, int n_flags) {
    TRY(walk_args(c, argc, argv, flags, n_flags, false));
    return walk_args(c, argc, argv, flags, n_flags, true);
}

err config_set(config *c, const char *name, const char *value) {
    const option *o = option_find_name(name);
    if (!o) return unknown_option(name);
    return option_set(c, o, value, arena_printf(c->memory, "--%s", name), "command line");
}
