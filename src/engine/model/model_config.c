/* From options to the facts of a model, and the checks of facts that depend on one another. */
#include "model_internal.h"

#include <math.h>

#include "ops/alibi.h"

void model_fact_take_option(const model_fact *f, const config *cfg, model_config *c) {
    const void *at = (const char *)cfg + f->option_at;
    if (f->type == FACT_LIST) {
        fact_list list = { 0 };
        list.n = config_numbers(*(const char *const *)at, list.of);
        if (list.n) model_fact_set_list(f, c, &list);
    } else if (f->type == FACT_REAL) {
        double v = *(const double *)at;
        if (!isnan(v)) model_fact_set(f, c, v);
    } else {
        int64_t v = f->type == FACT_INT ? *(const int64_t *)at : *(const int *)at;
        if (v != CFG_AUTO) model_fact_set(f, c, (double)v);
    }
}

/* Sizes that a preset derives from width and heads follow them where these were changed and they were not
 * set itself. */
static err derive_sizes(const config *cfg, const model_config *preset, model_config *c) {
    bool wider = c->dim != preset->dim, resized = wider || c->heads != preset->heads;
    int64_t ffn = preset->dim ? preset->ffn * c->dim / preset->dim : 4 * c->dim;
    bool own_kv = cfg->model.heads != CFG_AUTO || cfg->model.kv_latent_dim != CFG_AUTO;
    if (cfg->model.kv_heads == CFG_AUTO && own_kv) c->kv_heads = c->heads;
    if (cfg->model.ffn_dim == CFG_AUTO && wider) c->ffn = (ffn + 15) / 16 * 16;
    if (cfg->model.head_dim != CFG_AUTO || !resized || c->heads < 1) return OK;
    if (c->dim % c->heads)
        return err_hint(
            ERR("model.heads (%d) does not divide model.dim (%lld)", c->heads, (long long)c->dim),
            "choose a width that is a multiple of the heads, or set model.head_dim");
    c->head_dim = c->dim / c->heads;
    return OK;
}

err model_from_config(const config *cfg, model_config *c) {
    TRY(model_preset(cfg->model.preset, c));
    model_config preset = *c;
    for (int i = 0; i < model_facts(); i++) model_fact_take_option(model_fact_at(i), cfg, c);
    TRY(derive_sizes(cfg, &preset, c));
    if (cfg->model.norm_bias == CFG_AUTO) c->norm_bias = c->bias;
    return model_check(c);
}

/* Sets the option of a fact to the model's value, or to auto where it does not matter to the model. */
static void set_model_option(const model_fact *f, config *cfg, const model_config *c) {
    void *at = (char *)cfg + f->option_at;
    double value = model_fact_applies(f, c) ? model_fact_get(f, c) : CFG_AUTO_REAL;
    int64_t whole = isnan(value) ? CFG_AUTO : (int64_t)value;
    char list[FACT_MOST * 32];
    if (f->type == FACT_LIST)
        *(const char **)at =
            arena_strdup(cfg->memory, whole > 0 ? model_fact_shown(f, c, list, sizeof list) : "[]");
    else if (f->type == FACT_REAL)
        *(double *)at = value;
    else if (f->type == FACT_INT)
        *(int64_t *)at = whole;
    else
        *(int *)at = (int)whole;
}

void model_to_config(const model_config *c, config *cfg) {
    model_config preset;
    err e = model_preset(c->name, &preset);
    cfg->model.preset = e ? MODEL_CUSTOM : arena_strdup(cfg->memory, c->name);
    err_free(e);
    for (int i = 0; i < model_facts(); i++) set_model_option(model_fact_at(i), cfg, c);
}

static err check_ranges(const model_config *c) {
    for (int i = 0; i < model_facts(); i++) {
        const model_fact *f = model_fact_at(i);
        char value[64], expects[256];
        if (!model_fact_applies(f, c) || model_fact_legal_in(f, c)) continue;
        return err_hint(ERR("%s: expected %s; got %s", f->name,
                            model_fact_expects(f, expects, sizeof expects),
                            model_fact_shown(f, c, value, sizeof value)),
                        "give it a value in that range");
    }
    return OK;
}

static err check_experts(const model_config *c) {
    if (!c->experts) return OK;
    if (c->experts_per_token > c->experts)
        return err_hint(ERR("model.experts_per_token (%d) exceeds model.experts (%d)",
                            c->experts_per_token, c->experts),
                        "route each token to as many experts as there are, or fewer");
    bool some = false;
    for (int l = 0; l < c->layers; l++) some |= model_has_experts(c, l);
    if (!some)
        return err_hint(ERR("no layer has experts: of %d layers, with model.first_dense_layers=%d "
                            "and model.moe_layer_step=%d",
                            c->layers, c->first_dense, c->moe_step),
                        "lower one of the two, or set model.experts=0");
    if (!(mlp_kind_traits[c->mlp] & MLP_GATED))
        return err_hint(ERR("model.experts needs an activation with a gate"),
                        "set model.activation=swiglu, or model.experts=0");
    int least = c->group_best ? 1 : 2; /* whose scores are added */
    if (c->groups > 1 && (c->experts % c->groups || c->experts / c->groups < least))
        return err_hint(ERR("model.expert_groups: %d experts do not divide into %d groups of %d "
                            "or more",
                            c->experts, c->groups, least),
                        "choose a number of groups that divides model.experts");
    if (c->groups > 1 && (c->group_limit > c->groups ||
                          c->experts / c->groups * c->group_limit < c->experts_per_token))
        return err_hint(
            ERR("model.expert_groups_per_token: %d of %d groups, with %d experts in each, "
                "for %d experts per token",
                c->group_limit, c->groups, c->experts / c->groups, c->experts_per_token),
            "choose as many groups as a token's experts need, and no more than there are");
    return OK;
}

static err check_pattern(const model_config *c) {
    bool windows = false, unrotated = false;
    for (int64_t rest = c->layer_pattern; rest; rest /= 10) {
        if (rest % 10 < 1 || rest % 10 > 5)
            return err_hint(ERR("model.layer_pattern: %lld has the digit %lld",
                                (long long)c->layer_pattern, (long long)(rest % 10)),
                            "use the digits 1 to 5, one per layer, such as 1112");
        if (rest % 10 == 5) continue;
        windows |= rest % 2;
        unrotated |= rest % 10 > 2;
    }
    if (c->layer_pattern && c->full_step)
        return err_hint(ERR("model.layer_pattern and model.full_attention_step cannot be combined"),
                        "state with the pattern which layers have the window");
    if (unrotated && c->pos != POS_ROPE)
        return err_hint(ERR("model.layer_pattern %lld has layers without positions, which needs "
                            "model.positions=rope",
                            (long long)c->layer_pattern),
                        "use the digits 1 and 2");
    if (windows && !c->window)
        return err_hint(ERR("model.layer_pattern %lld has layers with a window, but there is none",
                            (long long)c->layer_pattern),
                        "set model.sliding_window, or use the digits 2 and 4");
    return OK;
}

/* Longrope has a factor for every frequency, and divides by the logarithm of the original context. */
static err check_long_rope(const model_config *c) {
    int64_t pairs = rope_dims(c) / 2;
    for (int i = 0; i < 2; i++) {
        int n = i ? c->rope_long.n : c->rope_short.n;
        if (n != pairs)
            return err_hint(ERR("model.rope_%s_factor: expected %lld numbers, one for each pair of "
                                "dims of a head that rotates; got %d",
                                i ? "long" : "short", (long long)pairs, n),
                            pairs > FACT_MOST ? "use another model.rope_scaling: lists have at "
                                                "most 128 numbers"
                                              : "list as many factors");
    }
    if (c->rope_original < 2 && c->rope_attention == 0 && c->rope_factor > 1)
        return err_hint(
            ERR("longrope with model.rope_original_max_seq_len %lld", (long long)c->rope_original),
            "use 2 or more, or set model.rope_attention_factor");
    return OK;
}

/* Yarn blends between two frequencies, and divides by the logarithm of the base. */
static err check_rope(const model_config *c) {
    if (c->pos != POS_ROPE) return OK;
    if (rope_dims(c) < 2)
        return err_hint(
            ERR("model.rope_fraction %g of a head of %lld rotates nothing", c->rope_fraction,
                (long long)c->head_dim),
            "raise model.rope_fraction or model.head_dim, or set model.positions=learned");
    if (rope_dims(c) > c->head_dim)
        return err_hint(
            ERR("a head of %lld dims, which is odd, cannot rotate whole", (long long)c->head_dim),
            "set an even model.head_dim, or a smaller model.rope_fraction");
    if (c->rope_scaling == ROPE_LLAMA3 && !(c->rope_high >= c->rope_low))
        return err_hint(ERR("model.rope_high_freq_factor (%g) is below "
                            "model.rope_low_freq_factor (%g)",
                            c->rope_high, c->rope_low),
                        "raise the one or lower the other; the defaults are 4 and 1");
    if (c->rope_scaling == ROPE_YARN && !(c->rope_fast > c->rope_slow && c->rope_theta > 1))
        return err_hint(ERR("yarn with model.rope_beta_fast %g, model.rope_beta_slow %g and "
                            "model.rope_theta %g",
                            c->rope_fast, c->rope_slow, c->rope_theta),
                        "let the first exceed the second, and the third exceed 1");
    if (c->rope_scaling == ROPE_LONG) TRY(check_long_rope(c));
    if (c->rope_local != 0 && c->rope_local < 1)
        return err_hint(ERR("model.rope_local_theta: %g is below 1", c->rope_local),
                        "use 0, for the base of the other layers, or 1 or more");
    return OK;
}

static err check_delta(const model_config *c) {
    if (c->attention_gate && c->kv_latent)
        return err_hint(ERR("model.attention_gate cannot be combined with model.kv_latent_dim"),
                        "leave one of them out");
    if (!model_has_delta(c)) return OK;
    if (c->delta_values % c->delta_keys)
        return err_hint(
            ERR("model.delta_key_heads (%d) does not divide model.delta_value_heads (%d)",
                c->delta_keys, c->delta_values),
            "choose a number of heads of keys that divides those of values");
    if (c->value_step)
        return err_hint(ERR("gated DeltaNet layers (model.layer_pattern) cannot be combined with "
                            "model.value_embedding_step"),
                        "leave one of them out");
    return OK;
}

/* Positions of keys are split in two digits, and scores must be linear in them (ops/alibi.h). */
static err check_alibi(const model_config *c) {
    if (c->pos != POS_ALIBI) return OK;
    if (c->kv_latent || c->attention_softcap > 0)
        return err_hint(ERR("model.positions=alibi cannot be combined with model.kv_latent_dim or "
                            "model.attention_softcap"),
                        "leave those out");
    if (c->max_seq > ALIBI_MOST)
        return err_hint(ERR("model.positions=alibi with model.max_seq_len %lld: at most %d",
                            (long long)c->max_seq, ALIBI_MOST),
                        "lower model.max_seq_len");
    return OK;
}

static err check_latent(const model_config *c) {
    if (!c->kv_latent) return OK;
    if (c->kv_heads != c->heads)
        return err_hint(
            ERR("model.kv_latent_dim with model.kv_heads %d of %d heads", c->kv_heads, c->heads),
            "leave model.kv_heads out: every head has keys and values of its own");
    if (c->qknorm != QKNORM_NONE || c->value_step || c->sinks || c->chunked || c->temperature > 0)
        return err_hint(ERR("model.kv_latent_dim cannot be combined with model.qk_norm, "
                            "model.value_embedding_step, model.attention_sinks, "
                            "model.chunked_attention or model.attention_temperature"),
                        "leave those out");
    if (c->rope_head_dim % 2 || c->rope_head_dim > c->head_dim || c->rope_fraction != 1)
        return err_hint(ERR("model.rope_head_dim %lld of model.head_dim %lld, with "
                            "model.rope_fraction %g",
                            (long long)c->rope_head_dim, (long long)c->head_dim, c->rope_fraction),
                        "use an even number of dims up to the whole head, and no fraction");
    return OK;
}

err model_check(const model_config *c) {
    TRY(check_ranges(c));
    TRY(check_latent(c));
    TRY(check_alibi(c));
    if (c->heads % c->kv_heads)
        return err_hint(
            ERR("model.kv_heads (%d) does not divide model.heads (%d)", c->kv_heads, c->heads),
            "choose a number of key/value heads that divides the query heads");
    TRY(check_rope(c));
    TRY(check_pattern(c));
    TRY(check_delta(c));
    TRY(check_experts(c));
    if (c->parallel && c->norm_position != NORM_PRE)
        return err_hint(ERR("model.parallel_branches needs model.norm_position=pre"),
                        "choose one of the two");
    return OK;
}
