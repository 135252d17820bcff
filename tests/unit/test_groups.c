/* Parameter groups (optimizer.groups): what a config may say, which parameter belongs to which group, and that each gets
 * what an optimizer with its group's settings alone would give it. */
#include "support/optim.h"
#include "support/train.h"

/* ---- in a config ------------------------------------------------------------------------------ */
static void assert_groups(const char *given, const char *kept) {
    config c;
    config_init(&c);
    assert_ok(config_set(&c, "optimizer.groups", given));
    assert_string_equal(c.optimizer.groups, kept);
    /* what is kept reads back as itself */
    assert_ok(config_set(&c, "optimizer.groups", c.optimizer.groups));
    assert_string_equal(c.optimizer.groups, kept);
    config_free(&c);
}

static void a_list_is_kept_in_one_form(void **state) {
    assert_groups("[]", "[]");
    assert_groups("", "[]");
    assert_groups("[{lr: .30, match: embed}]", "[{match: embed, lr: 0.3}]");
    assert_groups("[{match: 'attn.*', betas: [0.8, 0.995], name: lion}, {match: head, eps: 1e-10}]",
                  "[{match: \"attn.*\", name: lion, beta1: 0.8, beta2: 0.995}, {match: head, eps: "
                  "1e-10}]");
}

static const char in_blocks[] = "optimizer:\n"
                                "  name: muon\n"
                                "  groups:\n"
                                "    - match: embed\n"
                                "      betas: [0.8, 0.995]\n"
                                "    - {match: \"*.norm*\", lr: 0.5}\n";

static void a_file_may_have_it_in_blocks(void **state) {
    config c, again;
    cfg_group g[CFG_MAX_GROUPS];
    str text = { 0 };
    config_init(&c);
    config_init(&again);
    assert_ok(config_parse(&c, in_blocks, strlen(in_blocks), "run.yaml"));
    assert_int_equal(config_groups(c.optimizer.groups, g), 2);
    assert_string_equal(g[0].match, "embed");
    assert_true(g[0].beta1 == 0.8 && g[0].beta2 == 0.995 && isnan(g[0].lr) && isnan(g[0].eps));
    assert_int_equal(g[0].name, CFG_AUTO);
    assert_string_equal(g[1].match, "*.norm*");
    assert_true(g[1].lr == 0.5);
    config_print_used(&c, &text);
    assert_ok(config_parse(&again, text.text, text.len, "config.yaml"));
    assert_string_equal(again.optimizer.groups, c.optimizer.groups);
    str_free(&text);
    config_free(&c);
    config_free(&again);
}

static void a_list_that_is_wrong_is_refused(void **state) {
    static const struct {
        const char *text, *because;
    } cases[] = {
        { "{match: embed}", "expected a list of groups" },
        { "embed", "expected a list of groups" },
        { "[embed]", "group 1: expected keys and values" },
        { "[{lr: 1}]", "group 1: match is missing" },
        { "[{match: embed}, {match: head, lrr: 1}]", "group 2: unknown key \"lrr\"" },
        { "[{match: embed, lr: fast}]", "group 1: lr: expected a number from 0 to 1000; got fast" },
        { "[{match: embed, lr: [1]}]", "got a list or a section" },
        { "[{match: embed, lr: 1, lr: 2}]", "lr is set twice" },
        { "[{match: embed, betas: [0.9]}]", "betas: expected a list of two numbers" },
        { "[{match: embed, betas: 0.9}]", "betas: expected a list of two numbers" },
        { "[{match: embed, betas: [0.9, 2]}]", "beta2: expected a number from 0" },
        { "[{match: embed, name: adamx}]", "name: expected sgd, momentum" },
        { "[{match: *.norm}]", "not a list in YAML" },
        { "[{match: embed", "not a list in YAML" },
        { "[{match: \"\"}]", "match: expected a role or a pattern" },
    };
    config c;
    config_init(&c);
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        assert_error(config_set(&c, "optimizer.groups", cases[i].text), cases[i].because);
    config_free(&c);
    /* aliases do not expand without limit */
    static const char bomb[] = "optimizer:\n  groups: &a [*a]\n";
    config_init(&c);
    assert_error(config_parse(&c, bomb, strlen(bomb), "run.yaml"), "");
    config_free(&c);
}

/* An option is in use where a group's optimizer reads it, and a group's key only where its own does. */
static void effects_follow_the_groups(void **state) {
    static const struct {
        const char *name, *groups, *option, *refused;
    } cases[] = {
        { "sgd", "[]", "optimizer.momentum", "optimizer.momentum has no effect" },
        { "sgd", "[{match: embed, name: muon}]", "optimizer.momentum", NULL },
        { "adamw", "[]", "optimizer.polar_express", "optimizer.polar_express has no effect" },
        { "adamw", "[{match: matrices, name: muon}]", "optimizer.polar_express", NULL },
        { "adamw", "[{match: embed, momentum: 0.5}]", NULL, "momentum has no effect: adamw" },
        { "adamw", "[{match: embed, name: sgd, betas: [0.8, 0.9]}]", NULL, "beta1 has no effect" },
        { "sgd", "[{match: embed, name: lion, eps: 1e-9}]", NULL, "eps has no effect: lion" },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        config c;
        config_init(&c);
        assert_ok(config_set(&c, "optimizer.name", cases[i].name));
        assert_ok(config_set(&c, "optimizer.groups", cases[i].groups));
        if (cases[i].option)
            assert_ok(
                config_set(&c, cases[i].option, strstr(cases[i].option, "polar") ? "true" : "0.5"));
        if (cases[i].refused)
            assert_error(config_check_effects(&c, false), cases[i].refused);
        else
            assert_ok(config_check_effects(&c, false));
        config_free(&c);
    }
}

/* ---- which parameter gets what ------------------------------------------------------------------- */
static optim_settings grouped(optim_kind kind, const char *groups) {
    optim_settings s = settings_of(kind);
    config c;
    config_init(&c);
    assert_ok(config_set(&c, "optimizer.groups", groups));
    s.lr = 0.01;
    s.groups = config_groups(c.optimizer.groups, s.group);
    config_free(&c);
    return s;
}

typedef struct weights {
    float *at;
    int64_t n;
} weights;
static void keep_weight(void *ctx, const element *e) {
    weights *w = ctx;
    if (w->at) w->at[w->n] = *e->p;
    w->n++;
}

/* The weights after three steps, in memory order. */
static weights after_steps(const model_config *c, const optim_settings *s, double lr) {
    comm *end = comm_self();
    optim_fixture r;
    weights w = { 0 };
    assert_ok(fixture_make(&r, c, &(model_layout){ .dt = DT_F32 }, s, end));
    for (uint64_t step = 0; step < 3; step++) {
        fill_gradients(&r, step);
        assert_ok(optim_step(r.o, &r.x, lr, 1));
    }
    each_element(&r, keep_weight, &w);
    w = (weights){ mem_alloc((size_t)w.n * sizeof *w.at), 0 };
    each_element(&r, keep_weight, &w);
    fixture_free(&r);
    comm_free(end);
    return w;
}

/* Weights that one group decides: those of a run of its settings alone. */
typedef struct group_check {
    const weights *got, *want;
    bool (*has)(const model_param *q);
    const char *name;
    int64_t at, seen;
} group_check;
static void compare_weight(void *ctx, const element *e) {
    group_check *k = ctx;
    int64_t i = k->at++;
    if (!k->has(e->q)) return;
    k->seen++;
    if (k->got->at[i] != k->want->at[i])
        fail_msg("%s of group %s is %.9g, expected %.9g", e->q->name, k->name, k->got->at[i],
                 k->want->at[i]);
}
static bool is_embed(const model_param *q) { return q->role == ROLE_INPUT; }
static bool is_in_first(const model_param *q) { return q->layer == 0; }
static bool is_down(const model_param *q) { return q->layer > 0 && !strcmp(q->base, "mlp.down"); }
static bool is_vector(const model_param *q) { return q->ndim == 1 && q->layer != 0; }
static bool is_other(const model_param *q) {
    return !is_embed(q) && !is_in_first(q) && !is_down(q) && !is_vector(q);
}

/* Rates that differ by powers of two are exact in fp32: weights agree to the bit. */
static void each_group_is_updated_as_by_its_settings_alone(void **state) {
    model_config c = small_llama();
    optim_settings s =
        grouped(OPTIM_MUON, "[{match: embed, name: adamw, lr: 0.04, betas: [0.8, 0.995], eps: "
                            "1e-6, weight_decay: 0.5}, {match: \"l0.*\", name: adafactor, lr: "
                            "0.005}, {match: mlp.down, name: lion, lr: 0.0025, beta2: 0.5}, "
                            "{match: vectors, name: momentum, momentum: 0.5}]");
    optim_settings alone[5];
    const double lr[5] = { 0.04, 0.005, 0.0025, 0.01, 0.01 };
    bool (*const has[5])(const model_param *) = { is_embed, is_in_first, is_down, is_vector,
                                                  is_other };
    alone[0] = settings_of(OPTIM_ADAMW);
    alone[0].beta1 = 0.8, alone[0].beta2 = 0.995, alone[0].eps = 1e-6, alone[0].weight_decay = 0.5;
    alone[1] = settings_of(OPTIM_ADAFACTOR);
    alone[2] = settings_of(OPTIM_LION);
    alone[2].beta2 = 0.5;
    alone[3] = settings_of(OPTIM_MOMENTUM);
    alone[3].momentum = 0.5;
    alone[4] = settings_of(OPTIM_MUON);
    weights got = after_steps(&c, &s, 0.01);
    comm *end = comm_self();
    optim_fixture r;
    assert_ok(fixture_make(&r, &c, &(model_layout){ .dt = DT_F32 }, &s, end));
    for (int i = 0; i < 5; i++) {
        weights want = after_steps(&c, &alone[i], lr[i]);
        group_check k = { &got, &want, has[i], i < s.groups ? s.group[i].match : "others" };
        each_element(&r, compare_weight, &k);
        assert_true(k.seen > 0);
        free(want.at);
    }
    int n;
    const optim_group *g = optim_groups(r.o, &n);
    assert_int_equal(n, 5);
    assert_string_equal(g[0].rules, "adamw");
    assert_int_equal(g[0].params, 1);
    assert_string_equal(g[4].rules, "muon, adamw"); /* matrices of other blocks, and the head */
    assert_true(g[3].decays == false && g[0].decays && !(g[0].reads & OPTIM_READS_MOMENTUM));
    int64_t all = 0;
    for (int i = 0; i < n; i++) all += g[i].elements;
    assert_int_equal(all, model_count(&c));
    fixture_free(&r);
    comm_free(end);
    free(got.at);
}

/* Where groups state what the section states, nothing changes. */
static void groups_that_repeat_the_section_change_nothing(void **state) {
    model_config c = small_llama();
    for (int kind = 0; kind < optim_kind_count; kind++) {
        optim_settings plain = settings_of((optim_kind)kind);
        optim_settings same = grouped((optim_kind)kind, "[{match: matrices}, {match: \"*\"}]");
        weights a = after_steps(&c, &plain, 0.01), b = after_steps(&c, &same, 0.01);
        assert_int_equal(a.n, b.n);
        assert_memory_equal(a.at, b.at, (size_t)a.n * sizeof *a.at);
        free(a.at);
        free(b.at);
    }
}

/* From weights of 3 without gradients, one step of SGD: only decay moves them. A decay that a group states is for its
 * vectors too. */
static void set_three(void *ctx, const element *e) {
    *e->p = 3;
    *e->g = 0;
}
static void check_decay(void *ctx, const element *e) {
    double decay = e->q->ndim == 1 && e->q->layer == 1 ? 0.25 : e->q->ndim == 1 ? 0 : 0.1;
    double want = 3 * (1 - 0.01 * decay);
    if (fabs(*e->p - want) > 1e-6) fail_msg("%s is %.8g, expected %.8g", e->q->name, *e->p, want);
}
static void a_stated_decay_is_for_vectors_too(void **state) {
    model_config c = small_llama();
    optim_settings s = grouped(OPTIM_SGD, "[{match: \"l1.norm*\", weight_decay: 0.25}]");
    comm *end = comm_self();
    optim_fixture r;
    assert_ok(fixture_make(&r, &c, &(model_layout){ .dt = DT_F32 }, &s, end));
    each_element(&r, set_three, NULL);
    assert_ok(optim_step(r.o, &r.x, 0.01, 0));
    each_element(&r, check_decay, NULL);
    fixture_free(&r);
    comm_free(end);
}

/* Lion's first step is its rate: that of the group, times sqrt(base / width), times µP's factor. */
typedef struct rate_check {
    double head, hidden, other;
} rate_check;
static void check_rate(void *ctx, const element *e) {
    const rate_check *k = ctx;
    double rate = e->q->role == ROLE_OUTPUT ? k->head : k->other;
    if (e->q->role == ROLE_HIDDEN) rate = k->hidden;
    if (fabs(3 - *e->p - rate) > 1e-6 * 3)
        fail_msg("%s moved by %.8g, expected %.8g", e->q->name, 3 - *e->p, rate);
}
static void set_one(void *ctx, const element *e) {
    *e->p = 3;
    *e->g = 1;
}
static void rates_multiply(void **state) {
    static const struct {
        bool mup;
        int64_t base;
        const char *groups;
        rate_check want;
    } cases[] = {
        { false, 0, "[{match: head, lr: 0.03}]", { 0.03, 0.01, 0.01 } },
        { false, 0, "[{match: head, lr: 0.03, lr_base_width: 8}]", { 0.015, 0.01, 0.01 } },
        { false, 8, "[{match: head, lr: 0.03, lr_base_width: 0}]", { 0.03, 0.005, 0.005 } },
        { false, 8, "[{match: head, lr: 0.03}]", { 0.015, 0.005, 0.005 } },
        { true, 0, "[{match: matrices, lr: 0.02}]", { 0.01, 0.02 * 8 / 32, 0.01 } },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        model_config c = small_llama();
        assert_int_equal(c.dim, 32);
        c.tied = false;
        c.mup = cases[i].mup;
        c.mup_base = 8;
        optim_settings s = grouped(OPTIM_LION, cases[i].groups);
        s.weight_decay = 0;
        s.lr_base_width = cases[i].base;
        comm *end = comm_self();
        optim_fixture r;
        assert_ok(fixture_make(&r, &c, &(model_layout){ .dt = DT_F32 }, &s, end));
        each_element(&r, set_one, NULL);
        assert_ok(optim_step(r.o, &r.x, 0.01, 0));
        rate_check want = cases[i].want;
        each_element(&r, check_rate, &want);
        fixture_free(&r);
        comm_free(end);
    }
}

static void groups_that_cannot_be_are_refused(void **state) {
    static const struct {
        optim_kind kind;
        bool tied, mup;
        double lr;
        const char *groups, *because;
    } cases[] = {
        { OPTIM_ADAMW, false, false, 0.01, "[{match: nrom1.w}]",
          "\"nrom1.w\" matches no parameter" },
        { OPTIM_ADAMW, true, false, 0.01, "[{match: head}]", "\"head\" matches no parameter" },
        { OPTIM_ADAMW, false, false, 0.01, "[{match: \"x*\"}]", "matches no parameter" },
        { OPTIM_ADAMW, false, false, 0.01, "[{match: matrices}, {match: \"attn.*\"}]",
          "group 2: every parameter that \"attn.*\" matches belongs to a group before it" },
        { OPTIM_ADAMW, false, false, 0, "[{match: embed, lr: 1}]", "optimizer.lr, which is 0" },
        { OPTIM_ADAMW, false, true, 0.01, "[{match: embed, name: sgd}]",
          "model.mup has no learning rates for sgd" },
        { OPTIM_ADAMW, false, true, 0.01, "[{match: embed, lr_base_width: 8}]",
          "both scale the learning rate" },
        { OPTIM_ADAMW, false, false, 0.01, "[{match: embed, beta2: 0.99999999}]",
          "optimizer.beta2" },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        model_config c = small_llama();
        c.tied = cases[i].tied;
        c.mup = cases[i].mup;
        c.mup_base = 8;
        optim_settings s = grouped(cases[i].kind, cases[i].groups);
        s.lr = cases[i].lr;
        model_layout l = { .dt = DT_F32 };
        model *m;
        optimizer *o;
        assert_ok(model_new(&c, &l, &m));
        plan *p = plan_new(&l.mesh, ops_cpu(OPS_ISA_BEST), 1);
        model_reserve(m, p, true);
        assert_error(optim_new(&s, m, p, &o), cases[i].because);
        plan_free(p);
        model_free(m);
    }
}

/* ---- whole runs ------------------------------------------------------------------------------------ */
#define FIVE_STEPS "training.steps", "5", "validation.every", "0"
#define GROUPS                                                                                     \
    "[{match: embed, name: adafactor, lr: 0.004}, {match: vectors, lr: 0.02, betas: [0.8, 0.9]}]"

/* A run may change the rates of its groups, and is told so, but not which rules they have. */
static void a_resumed_run_keeps_its_rules(void **state) {
    test_folder *f = *state;
    settings first = { "optimizer.groups", GROUPS, FIVE_STEPS, "training.stop", "2" };
    train_small(f, "run", first);
    settings more = { "optimizer.groups", "[{match: embed, name: lion}]", FIVE_STEPS };
    assert_error(try_train(f, "run", more), "was trained with optimizer.groups");
    settings none = { FIVE_STEPS };
    assert_error(try_train(f, "run", none), "was trained with optimizer.groups");
    settings rates = { "optimizer.groups",
                       "[{match: embed, name: adafactor, lr: 0.1}, {match: vectors, lr: 0.02}]",
                       FIVE_STEPS };
    train_small(f, "run", rates);
    settings allowed = { "optimizer.groups",         "[{match: embed, name: lion}]",
                         "training.steps",           "6",
                         "validation.every",         "0",
                         "checkpoint.allow_changes", "optimizer.groups" };
    train_small(f, "run", allowed);
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, folder_setup, folder_teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_is_kept_in_one_form),
        cmocka_unit_test(a_file_may_have_it_in_blocks),
        cmocka_unit_test(a_list_that_is_wrong_is_refused),
        cmocka_unit_test(effects_follow_the_groups),
        cmocka_unit_test(each_group_is_updated_as_by_its_settings_alone),
        cmocka_unit_test(groups_that_repeat_the_section_change_nothing),
        cmocka_unit_test(a_stated_decay_is_for_vectors_too),
        cmocka_unit_test(rates_multiply),
        cmocka_unit_test(groups_that_cannot_be_are_refused),
        T(a_resumed_run_keeps_its_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
