/* The optimizer of a run that names none: settings that were found to learn fastest (docs/recipes.md), for its size.
 *
 * A new run takes them from the tables below where the config leaves an option open; a run that is continued takes what
 * it began with from its checkpoint, so that the same command continues it, whatever these tables have become. The
 * result is a config like any other, which RUN/config.yaml states in full. */
#include "setup_internal.h"
#include "trainer_internal.h"

#include <string.h>

static const char by[] = "optimizer.recipe=fast", from_checkpoint[] = "checkpoint";

/* Rates are those of batches of 65,536 tokens: with another batch they are multiplied by the square root of the ratio. */
enum { BASE_BATCH = 65536 };
/* The rules by which rates follow the width are known to hold up to a few billion parameters. */
static const int64_t MOST_PARAMETERS = 4000000000;
static const struct {
    const char *option, *value;
} settings[] = {
    { "optimizer.name", "muon" },
    { "optimizer.lr", "0.03" },
    { "optimizer.lr_scaling", "sqrt" },
    { "optimizer.lr_base_tokens", "45000000" },
    { "optimizer.weight_decay", "0.2" },
    { "optimizer.weight_decay_schedule", "cosine" },
    { "optimizer.weight_decay_base_tokens", "45000000" },
    { "optimizer.momentum", "0.97" },
    { "optimizer.momentum_warmup", "300" },
    { "optimizer.momentum_start", "0.85" },
    { "optimizer.momentum_end", "0.9" },
    { "optimizer.polar_express", "true" },
    { "optimizer.muon_equilibrate", "true" },
    { "optimizer.muon_beta2", "0.9" },
    { "optimizer.cautious_decay", "true" },
    { "lr_scheduler.name", "wsd" },
    { "lr_scheduler.decay", "65%" },
    { "lr_scheduler.min_lr_factor", "0.05" },
};

/* AdamW's parameters, in the order in which groups match: a table that is normalized or read as values takes far larger
 * steps than one whose rows are added to the residual as they are, or that is the output layer too. */
typedef struct adam_group {
    const char *match;
    double lr, beta1, beta2, decay;
    int base_width; /* above it rates fall with the width; 0: they do not */
    bool (*applies)(const model_config *c);
} adam_group;
static bool has_values(const model_config *c) { return c->value_step > 0; }
static bool has_normal_table(const model_config *c) { return c->embedding_norm && !c->tied; }
static bool has_plain_table(const model_config *c) { return !has_normal_table(c); }
static bool has_head(const model_config *c) { return !c->tied; }
static bool has_scalars(const model_config *c) { return c->layer_scalars; }
static bool has_backout(const model_config *c) { return c->backout; }
static bool has_smear(const model_config *c) { return c->smear; }
/* Others than the factors above. */
static bool has_vectors(const model_config *c) {
    model_config plain = *c;
    plain.layer_scalars = plain.backout = plain.smear = false;
    return model_count_role(&plain, ROLE_VECTOR) > 0;
}
static const adam_group groups[] = {
    { "attn.values", 0.12, 0.8, 0.995, 0.01, 768, has_values },
    { "embed", 0.24, 0.8, 0.995, 0.001, 768, has_normal_table },
    { "embed", 0.01, 0.8, 0.995, 0, 768, has_plain_table },
    { "head", 0.0064, 0.8, 0.96, 0.01, 768, has_head },
    { "mix.residual", 0.0018, 0.8, 0.95, 0.05, 0, has_scalars },
    { "mix.embed", 0.18, 0.96, 0.95, 0, 0, has_scalars },
    { "mix.middle", 0.2, 0.8, 0.95, 0, 0, has_backout },
    { "smear.*", 0.2, 0.8, 0.95, 0, 0, has_smear },
    { "vectors", 0.01, 0.8, 0.995, 0, 768, has_vectors },
};

static void groups_text(const model_config *c, str *out) {
    for (size_t i = 0; i < COUNT_OF(groups); i++) {
        const adam_group *g = &groups[i];
        if (!g->applies(c)) continue;
        str_add(out,
                "%s{match: %s, name: adamw, lr: %g, betas: [%g, %g], eps: 1e-10, weight_decay: "
                "%g, weight_decay_schedule: constant, weight_decay_base_tokens: 0, lr_base_width: "
                "%d}",
                out->len ? ", " : "[", g->match, g->lr, g->beta1, g->beta2, g->decay,
                g->base_width);
    }
    str_add(out, "]");
}

/* Whether an option is one that the recipe decides. */
static bool is_decided(const char *name) {
    static const char *const others[] = { "optimizer.recipe", "optimizer.master",
                                          "optimizer.offload" };
    for (size_t i = 0; i < COUNT_OF(others); i++)
        if (!strcmp(name, others[i])) return false;
    return str_starts(name, "optimizer.") || str_starts(name, "lr_scheduler.");
}

/* @return why a new run keeps the plain defaults; NULL: it does not. */
static const char *why_none(const trainer *t, str *memory) {
    const config *c = t->cfg;
    if (c->optimizer.recipe == CFG_RECIPE_NONE) return "optimizer.recipe is none";
    if (c->optimizer.recipe == CFG_RECIPE_FAST) return NULL;
    for (int i = 0; i < config_option_count(); i++) {
        const char *name = config_option_name(i);
        if (!is_decided(name) || !strcmp(config_where(c, name), "default")) continue;
        str_add(memory, "%s is given", name);
        return memory->text;
    }
    if (t->start.path) return "it begins with trained weights";
    if (model_count(&t->mc) > MOST_PARAMETERS)
        return "its rates are for models below 4e9 parameters";
    return t->mc.mup ? "model.mup scales rates by rules of its own" : NULL;
}

/* Refuses what the config gives without an effect, now that optimizer and schedule are known. */
static err check_given(const config *c) {
    for (int i = 0; i < config_option_count(); i++) {
        const char *name = config_option_name(i), *where = config_where(c, name);
        if (!is_decided(name) || config_has_effect(c, i)) continue;
        if (strcmp(where, by) != 0 && config_is_set(c, name))
            return err_hint(ERR("%s: %s has no effect with %s", where, name, by),
                            "leave it out; docs/config.md states what it needs");
    }
    return OK;
}

bool recipe_decides(const trainer *t, const char *name) {
    const char *where = config_where(t->cfg, name);
    return t->recipe == CFG_RECIPE_FAST && (!strcmp(where, by) || !strcmp(where, from_checkpoint));
}

static err choose_settings(const trainer *t, config *c) {
    char batch[32];
    str text = { 0 };
    for (size_t i = 0; i < COUNT_OF(settings); i++)
        TRY(config_choose(c, settings[i].option, settings[i].value, by));
    snprintf(batch, sizeof batch, "%lld", (long long)MAX(1, BASE_BATCH / t->len.seq));
    TRY(config_choose(c, "optimizer.lr_scaling_base_batch", batch, by));
    groups_text(&t->mc, &text);
    err e = config_choose(c, "optimizer.groups", text.text, by);
    str_free(&text);
    if (!e) e = check_given(c);
    if (!e) config_drop_idle(c); /* what the config gives may leave some of it without an effect */
    return e;
}

/* @return the recipe of the run that is continued; runs of earlier versions had none. */
static bool began_fast(const json_t *saved) {
    const char *text = json_string_value(json_object_get(saved, "optimizer.recipe"));
    return text && !strcmp(text, config_choice("optimizer.recipe", CFG_RECIPE_FAST));
}

static err keep_settings(const json_t *saved, config *c) {
    for (int i = 0; i < config_option_count(); i++) {
        const char *name = config_option_name(i);
        const char *text = json_string_value(json_object_get(saved, name));
        if (text && is_decided(name)) TRY(config_choose(c, name, text, from_checkpoint));
    }
    return OK;
}

err recipe_choose(trainer *t) {
    const json_t *saved = t->start.resume ? json_object_get(t->start.run, "options") : NULL;
    str why = { 0 };
    CHOICE_DECIDED(cfg_recipe, 3);
    bool fast = t->start.resume ? began_fast(saved) && t->cfg->optimizer.recipe != CFG_RECIPE_NONE
                                : !why_none(t, &why);
    str_free(&why);
    t->recipe = fast ? CFG_RECIPE_FAST : CFG_RECIPE_NONE;
    if (!fast) return OK;
    config_copy(&t->own, t->cfg);
    t->cfg = &t->own;
    TRY(t->start.resume ? keep_settings(saved, &t->own) : choose_settings(t, &t->own));
    return OK;
}

err train_settle(const config *c, const model_config *mc, config *out) {
    trainer *t = mem_alloc(sizeof *t);
    t->cfg = c;
    t->mc = *mc;
    t->len.seq = c->training.seq_len;
    err e = recipe_choose(t);
    if (t->cfg == &t->own)
        *out = t->own;
    else
        config_copy(out, c);
    free(t);
    return e;
}

void recipe_describe(const trainer *t, str *out) {
    str memory = { 0 };
    const char *why = t->start.resume ? NULL : why_none(t, &memory);
    if (t->recipe == CFG_RECIPE_FAST)
        str_add(out, "%s of this size (optimizer.recipe=none for the plain defaults)", by);
    else if (why && t->cfg->optimizer.recipe == CFG_RECIPE_AUTO)
        str_add(out, "none: %s (optimizer.recipe=fast for settings of this size)", why);
    str_free(&memory);
}
