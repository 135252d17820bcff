/* The table of model facts: every row reaches its option, its member, a checkpoint and the
 * comparison of two models, and what older checkpoints lack has its default. */
#include "support/facts.h"
#include "support/test.h"

#include "checkpoint/checkpoint.h"
#include "config/config_internal.h"

/* A model to which every fact matters but those that exclude others. */
static model_config whole(void) {
    model_config c;
    assert_ok(model_preset("tiny", &c));
    c.rope_scaling = ROPE_LLAMA3;
    c.mup = true;
    c.norm = NORM_LAYER;
    c.experts = 4;
    c.router_bias = true;
    c.shared_experts = 1;
    c.tied = false;
    c.qknorm = QKNORM_HEAD;
    c.window = 6;
    return c;
}

/* Latent attention excludes norms of queries and keys. */
static bool is_latent(const model_fact *f) {
    return (f->flags & FACT_OF_LATENT) || !strcmp(f->key, "kv_latent_dim");
}

/* The same as far as another value of this fact allows, and so that it matters: experts are gated and have no
 * biases, there is one kind of rope scaling, and branches in parallel have their norms before them. */
static model_config whole_for(const model_fact *f) {
    model_config c = whole();
    if (!strcmp(f->key, "activation") || !strcmp(f->key, "bias") || !strcmp(f->key, "mlp_bias"))
        c.experts = 0;
    if (f->flags & (FACT_OF_YARN | FACT_OF_ROPE_ATTENTION)) c.rope_scaling = ROPE_YARN;
    if (f->flags & FACT_OF_LONG_ROPE) c.rope_scaling = ROPE_LONG;
    if (f->flags & FACT_OF_PARALLEL) c.parallel = true;
    if (f->flags & FACT_OF_ALIBI) c.pos = POS_ALIBI;
    if (f->flags & FACT_OF_GROUPS) c.groups = 2;
    if (f->flags & FACT_OF_CLAMPED) c.mlp = MLP_SWIGLU_CLAMPED;
    if (f->flags & FACT_OF_NOPE) c.layer_pattern = 13;
    if (f->flags & FACT_OF_TEMPERATURE) c.temperature = 0.1;
    if (f->flags & FACT_OF_DELTA) { /* other numbers of heads divide, too */
        c.layer_pattern = 51;
        c.delta_keys = 1;
        c.delta_values = 2;
    }
    if (is_latent(f)) {
        c.kv_heads = c.heads;
        c.qknorm = QKNORM_NONE;
        c.head_dim = 128;
        c.kv_latent = f->flags & FACT_OF_LATENT ? 8 : 0;
    }
    fill_rope_lists(&c);
    assert_true(model_fact_applies(f, &c));
    return c;
}

static void every_model_option_is_a_fact(void **state) {
    int n = 0;
    for (int i = 0; i < option_count; i++) {
        const option *o = &option_table[i];
        if (strcmp(o->section, "model") || !strcmp(o->key, "preset")) continue;
        if (!model_fact_find(o->key))
            fail_msg("%s is not a row of model_facts.def: checkpoints would not keep it", o->name);
        n++;
    }
    assert_int_equal(n, model_facts());
}

static void every_fact_has_its_option(void **state) {
    for (int i = 0; i < model_facts(); i++) {
        const model_fact *f = model_fact_at(i);
        model_config c;
        config cfg;
        char text[4096];
        config_init(&cfg);
        assert_ok(config_set(&cfg, "model.norm", "layer"));
        if (f->flags & FACT_OF_EXPERTS) assert_ok(config_set(&cfg, "model.experts", "4"));
        if (f->flags & FACT_OF_LATENT) assert_ok(config_set(&cfg, "model.kv_latent_dim", "8"));
        if (is_latent(f)) assert_ok(config_set(&cfg, "model.head_dim", "128"));
        if (f->flags & FACT_OF_DELTA) {
            assert_ok(config_set(&cfg, "model.layer_pattern", "5"));
            assert_ok(config_set(&cfg, "model.delta_key_heads", "1"));
            assert_ok(config_set(&cfg, "model.delta_value_heads", "2"));
        }
        assert_ok(model_from_config(&cfg, &c));
        model_config want = c;
        set_other_value(f, &want);
        assert_ok(config_set(&cfg, f->name, model_fact_shown(f, &want, text, sizeof text)));
        assert_ok(model_from_config(&cfg, &c));
        if (!model_fact_same(f, &c, &want))
            fail_msg("%s=%s does not reach the model", f->name, text);
        model_config_init(&c);
        model_to_config(&want, &cfg); /* and back, where it matters to the model */
        model_fact_take_option(f, &cfg, &c);
        if (model_fact_applies(f, &want) && !model_fact_same(f, &c, &want))
            fail_msg("%s=%s does not become an option", f->name, text);
        config_free(&cfg);
    }
}

static void every_fact_is_kept_and_compared(void **state) {
    model_config plain = whole();
    assert_int_equal(model_config_diff(&plain, &plain, 0), -1);
    for (int i = 0; i < model_facts(); i++) {
        const model_fact *f = model_fact_at(i);
        model_config like = whole_for(f), c = like, back;
        set_other_value(f, &c);
        assert_int_equal(model_config_diff(&c, &like, 0), i);
        json_t *o = model_to_json(&c);
        assert_non_null(json_object_get(o, f->key));
        assert_ok(model_from_json(o, "file", &back));
        json_decref(o);
        if (!model_fact_same(f, &back, &c) || model_config_diff(&c, &back, 0) >= 0)
            fail_msg("%s does not survive a checkpoint", f->name);
    }
}

static void facts_without_effect_do_not_differ(void **state) {
    model_config a, b;
    assert_ok(model_preset("gpt-small", &a));
    b = a;
    b.rope_theta = 7;
    b.rope_factor = 3;
    b.mup_base = 1;
    assert_int_equal(model_config_diff(&a, &b, 0), -1);
}

static void older_checkpoints_load(void **state) {
    for (int i = 0; i < model_facts(); i++) {
        const model_fact *f = model_fact_at(i);
        model_config c = whole(), back;
        json_t *o = model_to_json(&c);
        json_object_del(o, f->key);
        err e = model_from_json(o, "old.json", &back);
        json_decref(o);
        if (f->flags & FACT_REQUIRED) {
            assert_error(e, f->key);
            continue;
        }
        assert_ok(e);
        assert_true(model_fact_get(f, &back) == f->fallback);
    }
}

/* As version 0.1 wrote a model with learned positions and one with norms after the branches. */
static void first_format_loads(void **state) {
    static const char sizes[] = "\"name\": \"x\", \"layers\": 2, \"dim\": 32, \"heads\": 4, "
                                "\"kv_heads\": 4, \"head_dim\": 8, \"ffn_dim\": 64, "
                                "\"vocab_size\": 80, \"max_seq_len\": 64, \"norm\": \"layer\", "
                                "\"rope_scaling_factor\": 0.0, \"mup_base_dim\": 256";
    static const char *const cases[] = {
        "\"norm_post\": false, \"positions\": \"learned\", \"rope_theta\": 0.0, "
        "\"rope_fraction\": 0.0, \"rope_scaling\": false",
        "\"norm_post\": true, \"positions\": \"rope\", \"rope_theta\": 10000.0, "
        "\"rope_fraction\": 1.0, \"rope_scaling\": false",
    };
    for (int i = 0; i < 2; i++) {
        str text = { 0 };
        model_config c;
        str_add(&text, "{%s, %s}", sizes, cases[i]);
        json_t *o = json_loads(text.text, 0, NULL);
        assert_non_null(o);
        assert_ok(model_from_json(o, "old.json", &c));
        assert_int_equal(c.norm_position, i ? NORM_POST : NORM_PRE);
        assert_int_equal(c.pos, i ? POS_ROPE : POS_LEARNED);
        assert_true(c.rope_theta == 10000 && c.rope_fraction == 1 && c.rope_factor == 8);
        json_decref(o);
        str_free(&text);
    }
}

/* Version 0.1 rounded to an even number of rotated dims: 0.3 of 8 is 2.4, and it rotated 2;
 * 0.4 of 8 is 3.2, and it rotated 2 as well. */
static void older_checkpoints_rotate_as_they_did(void **state) {
    static const double fractions[] = { 0.3, 0.4, 0.25, 1 }, want[] = { 2, 2, 2, 8 };
    for (size_t i = 0; i < COUNT_OF(fractions); i++) {
        model_config c = whole(), back;
        c.head_dim = 8;
        c.rope_fraction = fractions[i];
        json_t *o = model_to_json(&c);
        json_object_del(o, "norm_position");
        json_object_set_new(o, "norm_post", json_false());
        assert_ok(model_from_json(o, "old.json", &back));
        json_decref(o);
        assert_int_equal((int64_t)(back.rope_fraction * 8), want[i]);
    }
}

static void wrong_checkpoints_are_refused(void **state) {
    static const struct {
        const char *key, *value, *says;
    } cases[] = {
        { "softcap", "30", "\"softcap\"" },
        { "layers", "1e9", "layers" },
        { "layers", "-1", "from 1 to 1024" },
        { "layers", "9223372036854775807", "from 1 to 1024" },
        { "norm", "\"batch\"", "rms or layer" },
        { "bias", "1", "true or false" },
        { "rope_theta", "0.5", "a number from 1" },
        { "rope_theta", "\"x\"", "a number from 1" },
        { "dropout", "0.99", "from 0 to 0.95" },
        { "rope_short_factor", "[1, 0]", "a list of at most 128 numbers from 0.001" },
        { "rope_short_factor", "1", "a list of at most 128 numbers from 0.001" },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        model_config c = whole(), back;
        json_t *o = model_to_json(&c);
        json_object_set_new(o, cases[i].key, json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        assert_error(model_from_json(o, "bad.json", &back), cases[i].says);
        json_decref(o);
    }
}

/* ---- what facts do ------------------------------------------------------------------------ */
/* A hash of everything that a model is made of: parameters, initial weights, programs, constants and
 * the longest sequence. */
static uint64_t fingerprint(const model_config *c) {
    enum { TOKENS = 8 };
    model *m;
    chain train;
    int id;
    str text = { 0 };
    mesh one = { 0 };
    assert_ok(model_new(c, &(model_layout){ .dt = DT_F32 }, &m));
    plan *p = plan_new(&one, ops_cpu(OPS_ISA_BEST), 1);
    model_reserve(m, p, true);
    assert_ok(model_record(m, PROG_TRAIN, TOKENS, TOKENS, &train));
    assert_ok(plan_chain(p, &train, model_bucket_regions, m, &id));
    assert_ok(plan_commit(p));
    model_init(m, p, 7);
    prog_dump(train.first, &text);
    for (int k = 0; k < CHAIN_KINDS; k++)
        if (train.block[k]) prog_dump(train.block[k], &text);
    prog_dump(train.last, &text);
    uint64_t h = hash_bytes(text.text, text.len, (uint64_t)c->max_seq);
    for (int i = 0; i < model_params(m); i++) {
        const model_param *q = model_param_at(m, i);
        h = hash_bytes(q->name, strlen(q->name), h);
        h = hash_bytes(model_param_data(m, p, i, PARAM_MASTER, NULL),
                       (size_t)(q->dim[0] * q->dim[1]) * sizeof(float), h);
    }
    static const char *const tables[] = { "rope", "rope_long" };
    tensor rope;
    for (int i = 0; i < 2; i++)
        if (prog_input_shape(train.block[0], tables[i], &rope))
            h = hash_bytes(plan_input(p, tables[i], 0),
                           (size_t)(rope.dim[0] * rope.dim[1]) * sizeof(float), h);
    str_free(&text);
    plan_free(p);
    model_free(m);
    return h;
}

/* An option that is parsed and kept but changes nothing would pass every other test. */
static void every_fact_changes_the_model(void **state) {
    model_config plain = whole();
    plain.vocab = 64;
    plain.rope_original = 64; /* so that the scaling changes positions below 8 */
    plain.dim = 64;
    plain.head_dim = 16;
    plain.ffn = 48;
    assert_true(fingerprint(&plain) == fingerprint(&plain));
    for (int i = 0; i < model_facts(); i++) {
        const model_fact *f = model_fact_at(i);
        /* what the update alone reads: test_optim.c */
        if (!strcmp(f->key, "router_bias") || !strcmp(f->key, "router_bias_rate")) continue;
        model_config c = plain, like = whole_for(f);
        c.experts = like.experts;
        c.parallel = like.parallel;
        c.rope_scaling = like.rope_scaling;
        c.pos = like.pos;
        c.groups = like.groups;
        c.layer_pattern = like.layer_pattern;
        c.temperature = like.temperature;
        c.delta_keys = like.delta_keys;
        c.delta_values = like.delta_values;
        c.mlp = like.mlp;
        if (!strcmp(f->key, "swiglu_limit")) c.swiglu_limit = 1e-3; /* below what gates have here */
        if (is_latent(f)) {
            c.kv_heads = like.kv_heads;
            c.qknorm = like.qknorm;
            c.head_dim = like.head_dim;
            c.kv_latent = like.kv_latent;
        }
        if (c.rope_scaling == ROPE_YARN)
            c.rope_original = 4096; /* so that both bounds are within the head */
        if (!strcmp(f->key, "rope_long_factor")) c.rope_original = 4; /* below the 8 tokens */
        fill_rope_lists(&c);
        uint64_t before = fingerprint(&c);
        set_other_value(f, &c);
        if (fingerprint(&c) == before) fail_msg("%s changes nothing", f->name);
    }
}

/* Latent attention has code of its own: a fact is computed there, too, or refused beside it. */
static void no_fact_is_ignored_by_latent_attention(void **state) {
    model_config latent = whole();
    latent.vocab = latent.dim = latent.rope_original = 64;
    latent.kv_heads = latent.heads;
    latent.qknorm = QKNORM_NONE;
    latent.experts = 0;
    latent.kv_latent = 8;
    latent.head_dim = 16;
    latent.ffn = 48;
    latent.rope_head_dim = latent.value_head_dim = 8;
    latent.layer_pattern = 13;
    assert_ok(model_check(&latent));
    uint64_t before = fingerprint(&latent);
    int refused = 0;
    for (int i = 0; i < model_facts(); i++) {
        const model_fact *f = model_fact_at(i);
        model_config c = latent;
        if (!model_fact_applies(f, &c)) continue;
        set_other_value(f, &c);
        err e = model_check(&c);
        if (e) {
            assert_error(e, "model.");
            refused++;
        } else if (fingerprint(&c) == before) {
            fail_msg("%s changes nothing", f->name);
        }
    }
    assert_true(refused >= 5);
}

/* ---- options that follow from others --------------------------- */
static err model_of(const char *const *set, model_config *c) {
    config cfg;
    config_init(&cfg);
    for (; *set; set += 2) assert_ok(config_set(&cfg, set[0], set[1]));
    err e = model_from_config(&cfg, c);
    config_free(&cfg);
    return e;
}
#define MODEL_OF(c, ...) model_of((const char *const[]){ __VA_ARGS__, NULL }, c)

static void sizes_follow_width_and_heads(void **state) {
    model_config c;
    assert_ok(MODEL_OF(&c, "model.dim", "256"));
    assert_true(c.head_dim == 64 && c.ffn == 768 && c.kv_heads == 2);
    assert_ok(MODEL_OF(&c, "model.heads", "8"));
    assert_true(c.head_dim == 16 && c.kv_heads == 8);
    assert_ok(MODEL_OF(&c, "model", "qwen3-0.6b", "model.layers", "2"));
    assert_int_equal(c.head_dim, 128);
    assert_error(MODEL_OF(&c, "model.heads", "3"), "does not divide");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_model_option_is_a_fact),
        cmocka_unit_test(every_fact_has_its_option),
        cmocka_unit_test(every_fact_is_kept_and_compared),
        cmocka_unit_test(facts_without_effect_do_not_differ),
        cmocka_unit_test(older_checkpoints_load),
        cmocka_unit_test(first_format_loads),
        cmocka_unit_test(older_checkpoints_rotate_as_they_did),
        cmocka_unit_test(wrong_checkpoints_are_refused),
        cmocka_unit_test(every_fact_changes_the_model),
        cmocka_unit_test(no_fact_is_ignored_by_latent_attention),
        cmocka_unit_test(sizes_follow_width_and_heads),
    };
    return cmocka_run_group_tests_name("facts", tests, NULL, NULL);
}
