/* Presets against the sizes their publishers state, the parameter table, initial weights. */
#include "support/model.h"

#include <math.h>

#include "model/model.h"

/* Parameters of the Hugging Face models of these names, counted by transformers. */
static void presets_have_the_published_sizes(void **state) {
    static const struct {
        const char *name;
        int64_t count;
    } known[] = {
        { "gpt2-124m", 124439808LL },
        { "gpt2-1558m", 1557611200LL },
        { "pythia-160m", 162322944LL },
        { "pythia-6.9b", 6857302016LL },
        { "llama2-7b", 6738415616LL },
        { "llama2-70b", 68976648192LL },
        { "llama3-8b", 8030261248LL },
        { "llama3-405b", 405853388800LL },
        { "mistral-7b", 7241732096LL },
        { "olmo2-7b", 7298617344LL },
        { "qwen3-0.6b", 596049920LL },
        { "qwen3-32b", 32762123264LL },
        { "mixtral-8x7b", 46702792704LL },
        { "qwen3-30b-a3b", 30532122624LL },
        { "olmo3-7b", 7298011136LL },
        { "smollm3-3b", 3075098624LL },
        { "granite3-2b", 2533531648LL },
        { "phi3-mini", 3821079552LL },
        { "phi4-14b", 14659507200LL },
        { "starcoder2-3b", 3030371328LL },
        { "gemma2-2b", 2614341888LL },
        { "gemma2-9b", 9241705984LL },
        { "gemma2-27b", 27227128320LL },
        { "gemma3-270m", 268098176LL },
        { "gemma3-1b", 999885952LL },
        { "falcon-7b", 6921720704LL },
        { "falcon-40b", 41303293952LL },
        { "stablelm2-1.6b", 1644515328LL },
        { "olmoe-1b-7b", 6919161856LL },
        { "glm4-9b", 9400279040LL },
        { "deepseek-v3", 671026404352LL },
        { "moonlight-16b-a3b", 15960108544LL },
        { "qwen1.5-moe-a2.7b", 14315784192LL },
        { "qwen2-57b-a14b", 57408658944LL },
        { "glm4.5-air", 106852245504LL },
        { "glm4.5", 352797814784LL },
        { "gpt-oss-20b", 20914757184LL },
        { "gpt-oss-120b", 116829156672LL },
        { "llama4-scout", 107769861120LL },
        { "llama4-maverick", 400711848960LL },
        { "deepseek-v2-lite", 15706484224LL },
        { "deepseek-v2", 235741434880LL },
        { "mpt-7b", 6649286656LL },
        { "qwen3-next-80b-a3b", 79674391296LL },
        { "qwen2.5-0.5b", 494032768LL },
        { "qwen2.5-7b", 7615616512LL },
        { "nanochat-d20", 560988160LL },
        { "phi3.5-mini", 3821079552LL },
        { "kimi-k2", 1026408209408LL },
    };
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        model_config c;
        assert_ok(model_preset(known[i].name, &c));
        if (model_count(&c) != known[i].count)
            fail_msg("%s has %lld parameters, expected %lld", known[i].name,
                     (long long)model_count(&c), (long long)known[i].count);
    }
}

/* Mixtral's paper states 13 of 47 billion, Qwen's 3.3 of 30.5. */
static void a_token_uses_its_own_experts_alone(void **state) {
    model_config c;
    assert_ok(model_preset("mixtral-8x7b", &c));
    assert_int_equal(model_count_active(&c), 12879925248LL);
    double idle = 32.0 * 6 * 3 * 4096 * 14336, weights = 46702792704.0 - idle - 65 * 4096.0;
    weights -= 32000.0 * 4096; /* the embedding multiplies nothing */
    assert_true(fabs(model_flops(&c, 0, false) / (6 * weights) - 1) < 1e-12);
    assert_ok(model_preset("qwen3-30b-a3b", &c));
    assert_int_equal(model_count_active(&c), 30532122624LL - 48LL * 120 * 3 * 2048 * 768);
}

/* Heads of queries and keys have 192 dims, those of values 128: a key costs one multiply-add per dim of both. */
static void latent_attention_counts_the_dims_of_keys_and_values(void **state) {
    model_config c;
    assert_ok(model_preset("deepseek-v3", &c));
    double more = model_flops(&c, 4096, false) - model_flops(&c, 0, false);
    assert_true(fabs(more / (6.0 * 61 * 128 * (192 + 128) * 4096) - 1) < 1e-12);
}

/* A layer of gated DeltaNet costs the same per token whatever the length; of 48 layers 12 are attention. */
static void gated_delta_nets_count_their_states(void **state) {
    model_config c, plain;
    assert_ok(model_preset("qwen3-next-80b-a3b", &c));
    double more = model_flops(&c, 4096, false) - model_flops(&c, 0, false);
    assert_true(fabs(more / (6.0 * 12 * 16 * (256 + 256) * 4096) - 1) < 1e-12);
    plain = c;
    plain.delta_key_dim = 64; /* and half of the state and of what yields keys */
    double less = 36 * (18.0 * 32 * 64 * 128 + 6.0 * 2 * 16 * 64 * (2048 + 4));
    assert_true(fabs((model_flops(&c, 0, false) - model_flops(&plain, 0, false)) / less - 1) <
                1e-12);
}

static void every_preset_is_sound(void **state) {
    int n = 0;
    for (; model_preset_name(n); n++) {
        model_config c;
        assert_ok(model_preset(model_preset_name(n), &c));
        assert_ok(model_check(&c));
    }
    assert_true(n > 30);
    model_config c;
    err e = model_preset("lama3-8b", &c);
    assert_non_null(e);
    assert_non_null(strstr(err_remedy(e), "llama3-8b"));
    err_free(e);
}

/* 6 per weight of a GEMM and 12 per layer, width and key, whichever way attention is counted. */
static void flops_count_six_per_weight_and_attention(void **state) {
    model_config c;
    assert_ok(model_preset("llama2-7b", &c));
    double weights = 0;
    for (int64_t l = 0; l < c.layers; l++) weights += 4.0 * 4096 * 4096 + 3.0 * 4096 * 11008;
    weights += 32000.0 * 4096;
    double attention = 12.0 * 32 * 4096 * 2048;
    assert_true(fabs(model_flops(&c, 2048, false) / (6 * weights + attention) - 1) < 1e-12);
    assert_true(fabs(model_flops(&c, 2048, true) / (6 * weights + attention / 2) - 1) < 1e-12);
}

/* ---- initial weights --------------------------------------------------------------------- */
typedef struct opened {
    model *m;
    plan *p;
} opened;

static opened open_model(const model_config *c, mesh m, int rank, int zero) {
    opened o;
    m.rank = rank;
    assert_ok(model_new(c, &(model_layout){ .mesh = m, .zero = zero }, &o.m));
    o.p = plan_new(&m, ops_cpu(OPS_ISA_BEST), 1);
    model_reserve(o.m, o.p, false);
    assert_ok(plan_commit(o.p));
    model_init(o.m, o.p, 7);
    return o;
}

static void close_model(opened *o) {
    plan_free(o->p);
    model_free(o->m);
}

static double deviation(const opened *o, const char *name) {
    int i = model_find_param(o->m, name);
    assert_true(i >= 0);
    param_range r;
    const float *v = model_param_data(o->m, o->p, i, PARAM_MASTER, &r);
    double sum = 0, sq = 0, n = (double)(r.to - r.from);
    for (int64_t k = 0; k < r.to - r.from; k++) {
        sum += v[k];
        sq += (double)v[k] * v[k];
    }
    assert_true(fabs(sum / n) < 5 * sqrt(sq / n) / sqrt(n));
    return sqrt(sq / n);
}

static model_config wide(int64_t dim) {
    model_config c;
    assert_ok(model_preset("tiny", &c));
    c.dim = dim;
    c.head_dim = dim / c.heads;
    c.ffn = 4 * dim;
    c.mup_base = 128;
    c.vocab = 1000;
    return c;
}

static void near(double got, double want) {
    if (fabs(got / want - 1) > 0.02) fail_msg("deviation %g, expected %g", got, want);
}

static void initial_weights_have_their_deviation(void **state) {
    model_config c = wide(256);
    opened o = open_model(&c, (mesh){ 0 }, 0, 0);
    near(deviation(&o, "embed.tokens"), 0.02);
    near(deviation(&o, "l0.attn.q"), 0.02);
    near(deviation(&o, "l3.mlp.down"), 0.02 / sqrt(2.0 * c.layers));
    const float *ones =
        model_param_data(o.m, o.p, model_find_param(o.m, "l1.norm1.w"), PARAM_MASTER, NULL);
    assert_true(ones[0] == 1 && ones[255] == 1);
    close_model(&o);
    /* muP: hidden weights shrink with the square root of the width, the embedding does not */
    c.mup = true;
    o = open_model(&c, (mesh){ 0 }, 0, 0);
    near(deviation(&o, "embed.tokens"), 0.02);
    near(deviation(&o, "l0.attn.q"), 0.02 / sqrt(2.0));
    close_model(&o);
    c = wide(128);
    c.mup = true; /* at the base width it changes nothing */
    o = open_model(&c, (mesh){ 0 }, 0, 0);
    near(deviation(&o, "l0.attn.q"), 0.02);
    close_model(&o);
}

/* The largest magnitude. */
static double largest(const opened *o, const char *name) {
    param_range r;
    const float *v = model_param_data(o->m, o->p, model_find_param(o->m, name), PARAM_MASTER, &r);
    double most = 0;
    for (int64_t k = 0; k < r.to - r.from; k++) most = fmax(most, fabs((double)v[k]));
    return most;
}

static void initial_weights_follow_their_role(void **state) {
    model_config c = wide(256);
    c.tied = false;
    c.init = INIT_BY_FAN_IN;
    c.init_zero_outputs = true;
    c.init_embed_std = 0.8;
    c.init_head_std = 0.001;
    c.value_step = 2;
    c.init_up_scale = 0.4;
    c.layer_scalars = c.backout = c.smear = true;
    opened o = open_model(&c, (mesh){ 0 }, 0, 0);
    near(deviation(&o, "embed.tokens"), 0.8);
    near(deviation(&o, "l0.mlp.up"), 0.4 / sqrt(256.0));
    near(deviation(&o, "l0.mlp.gate"), 0.4 / sqrt(256.0));
    near(largest(&o, "l0.mix.residual"), 1.15);
    near(largest(&o, "l3.mix.residual"), 1.05);
    near(largest(&o, "l0.mix.embed"), 0.2);
    near(largest(&o, "l3.mix.embed"), 0.05);
    near(largest(&o, "mix.middle"), 0.2);
    assert_true(largest(&o, "smear.gate") < 0.02 && largest(&o, "smear.gate") > 0.01);
    const float *gate =
        model_param_data(o.m, o.p, model_find_param(o.m, "smear.gate"), PARAM_MASTER, NULL);
    for (int i = 0; i < 24; i++) assert_true(gate[i] >= 0 && gate[i] != gate[(i + 1) % 24]);
    assert_true(largest(&o, "smear.factor") == 0);
    near(deviation(&o, "head"), 0.001);
    near(deviation(&o, "l0.attn.q"), 1 / sqrt(256.0));
    near(deviation(&o, "l1.attn.values"), 1 / sqrt((double)(c.kv_heads * c.head_dim)));
    near(largest(&o, "l0.attn.q"), sqrt(3) / sqrt(256.0)); /* uniform */
    assert_true(largest(&o, "head") > 3 * 0.001);          /* normal */
    assert_true(largest(&o, "l2.attn.o") == 0 && largest(&o, "l3.mlp.down") == 0);
    assert_true(largest(&o, "l3.attn.values.gate") == 0);
    assert_int_equal(model_find_param(o.m, "l2.attn.values"), -1);
    close_model(&o);
}

/* GPT-NeoX's small_init and wang_init; and one deviation for all matrices. */
static void initial_weights_follow_the_scheme(void **state) {
    model_config c = wide(256);
    c.tied = false;
    c.init = INIT_SMALL;
    opened o = open_model(&c, (mesh){ 0 }, 0, 0);
    near(deviation(&o, "embed.tokens"), sqrt(2 / (5 * 256.0)));
    near(deviation(&o, "l0.attn.q"), sqrt(2 / (5 * 256.0)));
    near(deviation(&o, "l0.attn.o"), 2 / (c.layers * sqrt(256.0)));
    near(deviation(&o, "l1.mlp.down"), 2 / (c.layers * sqrt(256.0)));
    close_model(&o);
    c.init = INIT_FLAT;
    c.init_std = 0.03;
    o = open_model(&c, (mesh){ 0 }, 0, 0);
    near(deviation(&o, "l0.attn.q"), 0.03);
    near(deviation(&o, "l0.attn.o"), 0.03);
    close_model(&o);
}

/* Every layout starts bit-identical: weights are drawn by global element. */
static void every_layout_starts_from_the_same_weights(void **state) {
    static const struct {
        mesh m;
        int zero;
    } layouts[] = { { { { [AX_TP] = 2 } }, 0 },
                    { { { [AX_DP_SHARD] = 2 } }, 3 },
                    { { { [AX_DP_SHARD] = 2 } }, 1 },
                    { { { [AX_DP_REPLICATE] = 2, [AX_DP_SHARD] = 2 } }, 2 },
                    { { { [AX_DP_SHARD] = 2, [AX_TP] = 2 } }, 3 } };
    model_config c = wide(128);
    opened one = open_model(&c, (mesh){ 0 }, 0, 0);
    for (size_t l = 0; l < COUNT_OF(layouts); l++)
        for (int rank = 0; rank < mesh_world(&layouts[l].m); rank++) {
            opened o = open_model(&c, layouts[l].m, rank, layouts[l].zero);
            int seen = 0;
            for (int i = 0; i < model_params(o.m); i++) {
                param_range r;
                const float *v = model_param_data(o.m, o.p, i, PARAM_MASTER, &r);
                const float *w = model_param_data(one.m, one.p, i, PARAM_MASTER, NULL);
                for (int64_t e = r.from; v && e < r.to; e++, seen++)
                    if (v[e - r.from] != w[model_global_index(o.m, i, e)])
                        fail_msg("%s differs on rank %d", model_param_at(o.m, i)->name, rank);
            }
            assert_true(seen > 0);
            close_model(&o);
        }
    close_model(&one);
}

/* How often the programs of a mode name dropout. */
static int dropouts_in(const model_config *c, prog_mode mode) {
    model *m;
    chain programs;
    str text = { 0 };
    int n = 0;
    assert_ok(model_new(c, &(model_layout){ .mesh = { .size = { 1, 1 } } }, &m));
    assert_ok(model_record(m, mode, 16, 16, &programs));
    prog_dump(programs.first, &text);
    prog_dump(programs.block[0], &text);
    prog_dump(programs.last, &text);
    for (const char *at = text.text; (at = strstr(at, "dropout.p=")); at++) n++;
    str_free(&text);
    model_free(m);
    return n;
}

/* Held-out losses and samples are those of the whole model. */
static void only_training_drops(void **state) {
    model_config c;
    assert_ok(model_preset("tiny", &c));
    assert_int_equal(dropouts_in(&c, PROG_TRAIN), 0);
    c.dropout = c.attn_dropout = c.embed_dropout = 0.25;
    assert_int_equal(dropouts_in(&c, PROG_TRAIN), 2 * 4); /* forward and backward */
    assert_int_equal(dropouts_in(&c, PROG_EVAL), 0);
    assert_int_equal(dropouts_in(&c, PROG_DECODE), 0);
}

static void unknown_modules_and_types_are_refused(void **state) {
    model_config c = wide(128);
    model *m;
    err e = model_new(&c, &(model_layout){ .dt = DT_BF16, .modules = "head=fp23" }, &m);
    assert_non_null(e);
    err_free(e);
    e = model_new(&c, &(model_layout){ .dt = DT_BF16, .modules = "tail=fp32" }, &m);
    assert_non_null(e);
    err_free(e);
    assert_ok(model_new(&c, &(model_layout){ .dt = DT_BF16, .modules = "mlp=fp32" }, &m));
    model_free(m);
}

/* ---- dropout ------------------------------------------------------------------------------------ */
/* The loss of a parallel block whose branches are constants that cancel: attention yields 1, the feed-forward
 * layer -1. */
static double loss_of_canceling_branches(double dropout) {
    model_config c = small_neox();
    c.dropout = dropout;
    c.bias = true;
    model *m;
    chain k;
    model_layout lay = { .dt = DT_F32 };
    assert_ok(model_new(&c, &lay, &m));
    exec x = { .comm = comm_self(), .plan = plan_new(&lay.mesh, ops_cpu(OPS_ISA_BEST), 1) };
    assert_ok(model_record(m, PROG_TRAIN, RUN_ROWS * RUN_SEQ, RUN_SEQ, &k));
    model_reserve(m, x.plan, true);
    rank_job job = { .c = &c, .end = x.comm };
    run_state r = { .j = &job, .m = m, .x = &x, .n = RUN_ROWS * RUN_SEQ };
    assert_ok(plan_chain(x.plan, &k, model_bucket_regions, m, &r.chain_id));
    assert_ok(plan_commit(x.plan));
    model_init(m, x.plan, 1);
    float *w = mem_alloc((size_t)(c.ffn * c.dim * 4) * sizeof *w);
    for (int i = 0; i < model_params(m); i++) {
        const model_param *q = model_param_at(m, i);
        bool attention = strstr(q->name, "attn.o"), forward = strstr(q->name, "mlp.down");
        for (int64_t e = 0; e < c.ffn * c.dim * 4; e++)
            w[e] = q->ndim == 2 ? 0 : attention ? 1 : -1;
        if (attention || forward) model_weights_set(m, x.plan, i, w);
    }
    free(w);
    assert_ok(model_publish(m, &x));
    make_batch(&r.batch[0], 0, c.vocab);
    x.step = (step_block){ .loss_grad = 1, .dropout = rng_key_of(5, 5) };
    assert_ok(
        exec_microbatches(&x, r.chain_id, 1, &(exec_hooks){ feed_batch, add_losses, .ctx = &r }));
    comm_free(x.comm);
    plan_free(x.plan);
    model_free(m);
    return r.loss;
}

/* Masks of their own leave a part of what would cancel. */
static void parallel_branches_have_masks_of_their_own(void **state) {
    double without = loss_of_canceling_branches(0), with = loss_of_canceling_branches(0.3);
    assert_true(isfinite(without) && isfinite(with));
    assert_true(fabs(with - without) > 1e-3 * without);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(presets_have_the_published_sizes),
        cmocka_unit_test(a_token_uses_its_own_experts_alone),
        cmocka_unit_test(latent_attention_counts_the_dims_of_keys_and_values),
        cmocka_unit_test(gated_delta_nets_count_their_states),
        cmocka_unit_test(every_preset_is_sound),
        cmocka_unit_test(flops_count_six_per_weight_and_attention),
        cmocka_unit_test(initial_weights_have_their_deviation),
        cmocka_unit_test(initial_weights_follow_their_role),
        cmocka_unit_test(initial_weights_follow_the_scheme),
        cmocka_unit_test(every_layout_starts_from_the_same_weights),
        cmocka_unit_test(only_training_drops),
        cmocka_unit_test(parallel_branches_have_masks_of_their_own),
        cmocka_unit_test(unknown_modules_and_types_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
