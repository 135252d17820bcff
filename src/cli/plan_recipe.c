/* ingot plan recipe: published trainings as configs. */
#include "cli/plan_common.h"

#include <string.h>

typedef struct recipe_args {
    const char *scale;
} recipe_args;
static const cli_arg args[] = {
    { "scale", ARG_TEXT, offsetof(recipe_args, scale), "tiny",
      "print the whole config shrunk to seconds on a CPU" },
};

static void list_recipes(void) {
    for (int i = 0; i < recipe_count(); i++) {
        str source = { 0 }, differs = { 0 };
        recipe_note(i, "source", &source);
        recipe_note(i, "not stated", &differs);
        printf("%-16s %s\n", recipe_name(i), source.text);
        if (differs.len) printf("%-16s differs: %s\n", "", differs.text);
        str_free(&source);
        str_free(&differs);
    }
}

static err print_scaled_recipe(int i, const char *scale) {
    config c;
    str text = { 0 };
    config_init(&c);
    err e = config_parse(&c, recipe_text(i), strlen(recipe_text(i)), recipe_name(i));
    if (!e) e = config_scale(&c, scale);
    if (!e) config_print(&c, &text);
    if (!e) fputs(text.text, stdout);
    str_free(&text);
    config_free(&c);
    return e;
}

static err run(const cli_subcommand *self, int argc, char **argv) {
    recipe_args a = { 0 };
    int n = 0, i = 0;
    TRY(cli_parse_many(&self->spec, argc, argv, &a, &n));
    if (n > 1)
        return err_hint(ERR_USAGE("expected one recipe; got %d", n), "ingot plan recipe %s",
                        argv[0]);
    if (!n) {
        list_recipes();
        return OK;
    }
    TRY(recipe_find(argv[0], &i));
    if (a.scale) return print_scaled_recipe(i, a.scale);
    fputs(recipe_text(i), stdout);
    return OK;
}

const cli_subcommand plan_recipe = {
    .summary = "published training runs as configs, with their sources",
    .run = run,
    .spec = { "plan recipe", "[NAME] [--scale tiny]", CLI_ARGS(args), 0, true },
    .help = "Without a name, lists the recipes, each with what a config cannot express.\n"
            "\n"
            "Examples\n"
            "  ingot plan recipe llama2-7b > run.yaml\n"
            "  ingot plan recipe llama2-7b --scale tiny > tiny.yaml && ingot train tiny.yaml\n",
};
