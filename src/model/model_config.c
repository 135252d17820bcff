/* From options to a model's description, and whether it makes sense. */
#include "model_internal.h"

#include <math.h>

static void set_int(int64_t *to, int64_t from) {
    if (from != CFG_AUTO) *to = from;
}
static void set_real(double *to, double from) {
    if (!isnan(from)) *to = from;
}
static void set_bool(bool *to, int from) {
    if (from != CFG_AUTO) *to = from;
}

/* What the preset leaves open has a default, over which the options are laid. */
static void set_rope(const config *cfg, model_config *c) {
    if (c->pos == POS_ROPE && c->rope_theta == 0) c->rope_theta = 10000;
    if (c->pos == POS_ROPE && c->rope_fraction == 0) c->rope_fraction = 1;
    set_real(&c->rope_theta, cfg->model.rope_theta);
    set_real(&c->rope_fraction, cfg->model.rope_fraction);
    if (cfg->model.rope_scaling != CFG_AUTO)
        c->scaling.on = cfg->model.rope_scaling == CFG_ROPE_LLAMA3;
    if (c->scaling.on && c->scaling.factor == 0) c->scaling = (rope_scaling){ true, 8, 1, 4, 8192 };
    set_real(&c->scaling.factor, cfg->model.rope_scaling_factor);
    set_real(&c->scaling.low, cfg->model.rope_low_freq_factor);
    set_real(&c->scaling.high, cfg->model.rope_high_freq_factor);
    set_int(&c->scaling.original, cfg->model.rope_original_max_seq_len);
}

/* Layer norms follow model.bias unless they have a setting of their own. */
static void set_biases(const config *cfg, model_config *c) {
    set_bool(&c->bias, cfg->model.bias);
    set_bool(&c->qkv_bias, cfg->model.qkv_bias);
    bool norms = c->bias;
    set_bool(&norms, cfg->model.norm_bias);
    c->norm_no_bias = c->norm == NORM_LAYER && !norms; /* RMS norms never have one */
}

err model_from_config(const config *cfg, model_config *c) {
    TRY(model_preset(cfg->model.preset, c));
    int64_t layers = c->layers, heads = c->heads, kv = c->kv_heads, dim = c->dim;
    set_int(&layers, cfg->model.layers);
    set_int(&heads, cfg->model.heads);
    set_int(&c->dim, cfg->model.dim);
    /* what the preset derived from width and heads follows them, unless it is set too */
    if (cfg->model.heads != CFG_AUTO) kv = heads;
    if (c->dim != dim && c->dim > 0) c->ffn = (c->ffn * c->dim / dim + 15) / 16 * 16;
    if ((c->dim != dim || heads != c->heads) && c->dim % heads == 0) c->head_dim = c->dim / heads;
    set_int(&kv, cfg->model.kv_heads);
    c->layers = (int)layers;
    c->heads = (int)heads;
    c->kv_heads = (int)kv;
    set_int(&c->head_dim, cfg->model.head_dim);
    if (cfg->model.head_dim == CFG_AUTO && c->dim % heads)
        return err_hint(ERR("model.heads (%lld) does not divide model.dim (%lld)", (long long)heads,
                            (long long)c->dim),
                        "choose a width that is a multiple of the heads, or set model.head_dim");
    set_int(&c->ffn, cfg->model.ffn_dim);
    set_int(&c->vocab, cfg->model.vocab_size);
    set_int(&c->max_seq, cfg->model.max_seq_len);
    set_int(&c->window, cfg->model.sliding_window);
    set_bool(&c->tied, cfg->model.tie_embeddings);
    set_bool(&c->parallel, cfg->model.parallel_branches);
    if (cfg->model.norm != CFG_AUTO) c->norm = (norm_kind)cfg->model.norm;
    set_biases(cfg, c);
    if (cfg->model.norm_position != CFG_AUTO)
        c->norm_post = cfg->model.norm_position == CFG_NORM_POST;
    if (cfg->model.activation != CFG_AUTO) c->mlp = (mlp_kind)cfg->model.activation;
    if (cfg->model.qk_norm != CFG_AUTO) c->qknorm = (qknorm_kind)cfg->model.qk_norm;
    if (cfg->model.positions != CFG_AUTO) c->pos = (pos_kind)cfg->model.positions;
    set_rope(cfg, c);
    set_real(&c->norm_eps, cfg->model.norm_eps);
    set_real(&c->dropout, cfg->model.dropout);
    set_real(&c->embed_dropout, cfg->model.embedding_dropout);
    set_real(&c->init_std, cfg->model.init_std);
    c->mup = cfg->model.mup;
    c->mup_base = cfg->model.mup_base_dim;
    if (c->norm == NORM_RMS && cfg->model.norm_bias == 1)
        return err_hint(ERR("model.norm_bias=true, but RMS norms have no biases"),
                        "set model.norm=layer, or leave model.norm_bias out");
    return model_check(c);
}

err model_check(const model_config *c) {
    if (c->layers < 1 || c->dim < 1 || c->heads < 1 || c->kv_heads < 1 || c->head_dim < 1 ||
        c->ffn < 1 || c->vocab < 1 || c->max_seq < 1)
        return err_hint(ERR("the model has a size of zero: %d layers, width %lld, %d heads, "
                            "feed-forward %lld, vocabulary %lld",
                            c->layers, (long long)c->dim, c->heads, (long long)c->ffn,
                            (long long)c->vocab),
                        "set model.preset, or every size of the model section");
    if (c->heads % c->kv_heads)
        return err_hint(
            ERR("model.kv_heads (%d) does not divide model.heads (%d)", c->kv_heads, c->heads),
            "each key/value head serves the same number of query heads");
    if (c->pos == POS_ROPE && rope_dims(c) < 2)
        return err_hint(ERR("rope_fraction %g of a head of %lld rotates nothing", c->rope_fraction,
                            (long long)c->head_dim),
                        "raise model.rope_fraction or model.head_dim");
    if (c->scaling.on && !(c->scaling.high > c->scaling.low))
        return err_hint(ERR("rope scaling: high_freq_factor (%g) must exceed low_freq_factor (%g)",
                            c->scaling.high, c->scaling.low),
                        "the defaults are 4 and 1");
    if (c->parallel && c->norm_post)
        return err_hint(ERR("parallel_branches and norm_position=post do not go together"),
                        "no published model combines them; choose one");
    return OK;
}
