/* ingot plan: the config that is planned. It is a file and options, or the bare name of a model with a recipe: then it is
 * the published training, in the best layout on the accelerators asked for. --tokens sets its length, --params checks its
 * size. */
#include "cli/plan_common.h"

#include <math.h>
#include <string.h>

/* Whether the model's name is all that was set: then nothing else states how it is trained. */
static bool is_bare_name(const config *c) {
    for (int i = 0; i < config_option_count(); i++) {
        const char *name = config_option_name(i);
        if (strcmp(name, "model.preset") != 0 && strcmp(config_where(c, name), "default") != 0)
            return false;
    }
    return !strcmp(config_where(c, "model.preset"), "command line");
}

static err read_recipe(config *c, plan_source *s) {
    if (!is_bare_name(c)) return OK;
    for (int i = 0; i < recipe_count(); i++) {
        if (strcmp(recipe_name(i), c->model.preset) != 0) continue;
        const char *text = recipe_text(i);
        s->recipe = recipe_name(i);
        config_free(c);
        config_init(c);
        return config_parse(c, text, strlen(text), s->recipe);
    }
    return OK;
}

static err set_plan_length(const plan_args *a, config *c) {
    double tokens;
    char text[64];
    TRY(plan_quantity("tokens", a->tokens, &tokens));
    if (isnan(tokens)) return OK;
    if (!(tokens >= 1))
        return err_hint(ERR_USAGE("--tokens: expected at least 1; got %g", tokens),
                        "--tokens 1.5T");
    snprintf(text, sizeof text, "%.17g tokens", tokens);
    return config_set(c, "training.steps", text);
}

/* Names of models round: 405B are 405.9B. */
static err check_stated_size(const plan_args *a, const config *c) {
    const double rounding = 0.05;
    model_config m;
    double params;
    TRY(plan_quantity("params", a->params, &params));
    if (isnan(params)) return OK;
    TRY(model_from_config(c, &m));
    double count = (double)model_count(&m);
    if (fabs(count / params - 1) <= rounding) return OK;
    return err_hint(ERR_USAGE("--params: %s; the model of the config, %s, has %s",
                              show_count(params), m.name, show_count(count)),
                    "--params %s, or another --model", show_count(count));
}

err plan_read_config(const plan_args *a, int argc, char **args, config *c, plan_source *s) {
    *s = (plan_source){ 0 };
    TRY(config_from_args(c, argc, args, NULL, 0));
    TRY(read_recipe(c, s));
    TRY(set_plan_length(a, c));
    return check_stated_size(a, c);
}

err plan_choose_layout(const plan_machine *m, const run_target *on, double limit, config *c,
                       plan_source *s, int *ranks) {
    search_options o = { .gpu = m->gpu, .gpus = (int)m->gpus, .limit = limit };
    layout_result r;
    if (!s->recipe || !m->gpu || m->gpu->shared || !(m->gpus > 1)) return OK;
    log_mute_thread(true); /* what layouts round is of no interest before one is chosen */
    err e = layout_find(c, on, &o, &r);
    log_mute_thread(false);
    if (e) return e;
    if (!r.n)
        return err_hint(
            ERR("no layout on up to %d x %s fits %.3g GB", o.gpus, o.gpu->title, o.limit / 1e9),
            "use more accelerators, or another training.global_batch_size");
    s->chosen_layout = true;
    *ranks = choice_ranks(&r.best[0]);
    return layout_apply(&r.best[0], c);
}

void plan_report_source(const plan_source *s, double gpus, json_t *doc) {
    if (!s->recipe) return;
    if (doc) {
        json_object_set_new(doc, "recipe", json_string(s->recipe));
        json_object_set_new(doc, "layout_searched", json_boolean(s->chosen_layout));
        return;
    }
    printf("The recipe %s", s->recipe);
    if (s->chosen_layout)
        printf(", in the best layout that --search finds on up to %s of them", show_whole(gpus));
    printf(":\n\n");
}
