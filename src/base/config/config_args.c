/* The command line into a config: `[FILE.yaml] [--section.key=value]... [flags of the command]`. */
#include <string.h>

#include "config/config_internal.h"

/* The arguments are read twice: first to find the file, then, once it is loaded, to set the options
 * over it. */
typedef struct config_args_reader {
    config *c;
    const config_flag *flags;
    int n_flags;
    bool apply;
    const char *file;
} config_args_reader;

static bool find_flag(const config_args_reader *r, const char *name, args_option *out) {
    for (int i = 0; i < r->n_flags; i++) {
        const config_flag *f = &r->flags[i];
        if (strcmp(f->name + 2, name) != 0) continue;
        *out = (args_option){ f->value ? ARGS_VALUE : ARGS_FLAG, f, "VALUE" };
        return true;
    }
    return false;
}

static bool find_option(void *ctx, const char *name, args_option *out) {
    const config_args_reader *r = ctx;
    if (find_flag(r, name, out)) return true;
    const option *o = option_find_name(name);
    if (!o) return false;
    bool is_bool = o->type == OPT_BOOL || o->type == OPT_TRISTATE;
    str def = { 0 };
    option_print(o, &config_defaults, &def);
    *out = (args_option){ is_bool ? ARGS_SWITCH : ARGS_VALUE, o,
                          arena_strdup(r->c->memory, def.text) };
    str_free(&def);
    return true;
}

static err apply_option(void *ctx, const args_option *a, const char *label, const char *value) {
    const config_args_reader *r = ctx;
    for (int i = 0; i < r->n_flags; i++) {
        const config_flag *f = &r->flags[i];
        if (a->option != f) continue;
        if (f->value) *f->value = value;
        if (f->set) *f->set = true;
        return OK;
    }
    if (!r->apply) return OK;
    return option_set(r->c, a->option, value, arena_strdup(r->c->memory, label), COMMAND_LINE);
}

static err take_file(void *ctx, char *word) {
    config_args_reader *r = ctx;
    if (r->file)
        return err_hint(ERR("expected one config file; got \"%s\" and \"%s\"", r->file, word),
                        "put what differs on the command line, as --section.key=value");
    r->file = word;
    return OK;
}

static err suggest_nearest(err e, const char *name) {
    char head[64];
    snprintf(head, sizeof head, "%s", name);
    char *dot = strchr(head, '.');
    if (dot) *dot = '\0';
    return dot ? option_suggest(e, head, dot + 1) : option_suggest(e, NULL, head);
}

static err suggest_option(void *ctx, err e, const char *name) {
    if (strlen(name) == 1) return err_hint(e, "options start with two dashes");
    return suggest_nearest(e, name);
}

err config_from_args(config *c, int argc, char **argv, const config_flag *flags, int n_flags) {
    config_args_reader r = { .c = c, .flags = flags, .n_flags = n_flags };
    args_grammar g = { find_option, apply_option, take_file, suggest_option, &r };
    TRY(args_parse(&g, argc - 1, argv + 1));
    if (r.file) TRY(config_load(c, r.file));
    r.file = NULL;
    r.apply = true;
    TRY(args_parse(&g, argc - 1, argv + 1));
    return config_check_effects(c, true);
}

err config_set(config *c, const char *name, const char *value) {
    const option *o = option_find_name(name);
    if (!o) return suggest_nearest(ERR_USAGE("--%s: unknown option", name), name);
    return option_set(c, o, value, arena_printf(c->memory, "--%s", name), COMMAND_LINE);
}

err config_choose(config *c, const char *name, const char *value, const char *by) {
    const option *o = option_find_name(name);
    BUG_IF(!o);
    if (c->origin[option_index(o)]) return OK;
    return option_set(c, o, value, arena_printf(c->memory, "%s: %s", by, name), by);
}
