/* Whole runs drawn at random: every optimizer on layouts of all axes, with a growing batch, mixtures of experts and
 * generated text. Each is saved half way, continues on another layout, and logs what one rank logs.
 *
 * INGOT_TEST_RUNS: how many (32, under sanitizers 8); INGOT_TEST_SEED: the first one's seed (1). */
#include "support/train.h"

#include <math.h>
#include <unistd.h>

static int runs_to_try = SANITIZED ? 8 : 32;
static uint64_t first_seed = 1;

/* Rounding of another order of sums, as each rule passes it on: a sign or a code of 8 bits near its edge becomes
 * another one. */
static const struct {
    const char *name, *lr;
    double within;
} optimizers[] = {
    { "sgd", "0.01", 1e-5 },       { "momentum", "0.01", 1e-5 },   { "adam", "0.003", 1e-4 },
    { "adamw", "0.003", 1e-4 },    { "adafactor", "0.002", 1e-4 }, { "lion", "0.0003", 1e-3 },
    { "adam8bit", "0.003", 1e-3 }, { "muon", "0.003", 1e-4 },
};

typedef struct drawn_layout {
    int pp, replicas, dp, cp, ep, tp, zero;
    bool ulysses, interleaved;
    int first_less, last_less; /* layers that the ends of a pipeline count as */
    settings s;
    char text[12][24];
    int ranks;
} drawn_layout;

static int draw(rng_key key, uint64_t *at, int n) {
    return (int)rng_below(key, (*at)++, (uint64_t)n);
}

/* At most four ranks: the first axis in turn, so that each of them meets each optimizer, the second at random. */
static void draw_axes(rng_key key, uint64_t *at, int first, bool experts, drawn_layout *l) {
    int *axis[] = { &l->ep, &l->tp, &l->pp, &l->cp, &l->dp, &l->replicas };
    int n = COUNT_OF(axis);
    for (int i = 0; i < n; i++) *axis[i] = 1;
    int a = (first < 0 ? draw(key, at, n) : first) % n, b = draw(key, at, n);
    if (a == 0 && !experts) a = 1;
    *axis[a] = 2;
    if (b != a && (b != 0 || experts)) *axis[b] = 2;
    l->zero = draw(key, at, 4);
    l->ulysses = l->tp == 1 && draw(key, at, 2);
    l->interleaved = draw(key, at, 2);
    l->first_less = l->pp > 1 ? draw(key, at, 2) : 0;
    l->last_less = l->pp > 1 ? draw(key, at, 2) : 0;
}

#define FIRST_LESS "parallelism.pipeline_parallel_first_stage_less_layers"
#define LAST_LESS  "parallelism.pipeline_parallel_last_stage_less_layers"

static void add_setting(drawn_layout *l, int *n, const char *name, const char *value) {
    l->s[(*n)++] = name;
    l->s[(*n)++] = value;
}

static void add_number(drawn_layout *l, int *n, const char *name, int value) {
    char *text = l->text[*n / 2];
    snprintf(text, sizeof l->text[0], "%d", value);
    add_setting(l, n, name, text);
}

/* Microbatches of all ranks together have four sequences. */
static void set_layout(drawn_layout *l) {
    int n = 0, with_rows = l->replicas * l->dp * l->ep;
    memset(l->s, 0, sizeof l->s);
    l->ranks = l->pp * with_rows * l->cp * l->tp;
    add_number(l, &n, "training.local_batch_size", 4 / with_rows);
    add_number(l, &n, "parallelism.pipeline_parallel_degree", l->pp);
    add_number(l, &n, "parallelism.data_parallel_replicate_degree", l->replicas);
    add_number(l, &n, "parallelism.context_parallel_degree", l->cp);
    add_number(l, &n, "parallelism.expert_parallel_degree", l->ep);
    add_number(l, &n, "parallelism.tensor_parallel_degree", l->tp);
    if (l->dp * l->cp * l->ep > 1) add_number(l, &n, "parallelism.zero_stage", l->zero);
    if (l->cp > 1)
        add_setting(l, &n, "parallelism.context_parallel_mode", l->ulysses ? "ulysses" : "ring");
    if (l->pp > 1)
        add_setting(l, &n, "parallelism.pipeline_parallel_schedule",
                    l->interleaved ? "Interleaved1F1B" : "1F1B");
    if (l->first_less) add_number(l, &n, FIRST_LESS, l->first_less);
    if (l->last_less) add_number(l, &n, LAST_LESS, l->last_less);
}

static void describe_layout(const drawn_layout *l, char *to, size_t n) {
    snprintf(to, n, "pp%d%s (less %d and %d) x %d replicas x dp%d (zero%d) x cp%d%s x ep%d x tp%d",
             l->pp, l->interleaved ? " interleaved" : "", l->first_less, l->last_less, l->replicas,
             l->dp, l->zero, l->cp, l->ulysses ? " ulysses" : "", l->ep, l->tp);
}

static int count_samples(test_folder *f, const char *run) {
    char path[64];
    int n = 0;
    snprintf(path, sizeof path, "%s/events.jsonl", run);
    char *text = folder_read(f, path);
    for (const char *at = text; (at = strstr(at, "\"event\":\"sample\"")); at++) n++;
    free(text);
    return n;
}

static void compare_logs(test_folder *f, const char *what, double within) {
    static const char *const keys[] = { "loss", "grad_norm", "batch" };
    json_t *one = logged_steps(f, "one"), *many = logged_steps(f, "many");
    if (json_array_size(one) != json_array_size(many))
        fail_msg("%s: %zu steps, one rank %zu", what, json_array_size(many), json_array_size(one));
    for (size_t i = 0; i < json_array_size(one); i++)
        for (size_t k = 0; k < COUNT_OF(keys); k++) {
            double a = logged_number(one, i, keys[k]), b = logged_number(many, i, keys[k]);
            if (!(fabs(a - b) <= (k == 1 ? 10 : 1) * within * fabs(a)))
                fail_msg("%s: step %zu has %s %.8g, one rank %.8g", what, i + 1, keys[k], b, a);
        }
    json_decref(one);
    json_decref(many);
    assert_int_equal(count_samples(f, "many"), count_samples(f, "one"));
}

/* Groups that no group before them leaves without parameters, each with an optimizer and its rate. Half of the runs have
 * none. @return how far results may differ: as far as the group that differs most */
static double draw_groups(rng_key key, uint64_t *at, double within, str *out) {
    static const char *const matches[] = { "l0.*",  "attn.*",  "*.down",
                                           "embed", "vectors", "matrices" };
    bool some = draw(key, at, 2);
    int n = 0;
    for (size_t i = 0; some && i < COUNT_OF(matches); i++) {
        if (draw(key, at, 3)) continue;
        size_t which = (size_t)draw(key, at, COUNT_OF(optimizers));
        str_add(out, "%s{match: \"%s\", name: %s, lr: %s, weight_decay: 0.0%d}", n++ ? ", " : "[",
                matches[i], optimizers[which].name, optimizers[which].lr, draw(key, at, 3));
        within = MAX(within, optimizers[which].within);
    }
    if (n) str_add(out, "]");
    return within;
}

/* Options of rules that some parameters of the run have, each in half of the runs. @return how many texts were added */
static int draw_rule_options(rng_key key, uint64_t *at, bool muon, bool momentum, const char **to) {
    static const struct {
        bool muon, momentum;
        const char *name, *value;
    } options[] = {
        { true, false, "optimizer.muon_equilibrate", "true" },
        { true, false, "optimizer.muon_beta2", "0.9" },
        { true, false, "optimizer.cautious_decay", "true" },
        { true, false, "optimizer.polar_express", "true" },
        { false, true, "optimizer.momentum_warmup", "4" },
        { false, true, "optimizer.momentum_end", "0.8" },
        { false, false, "optimizer.weight_decay_schedule", "cosine" },
    };
    int n = 0;
    for (size_t i = 0; i < COUNT_OF(options); i++) {
        bool drawn = draw(key, at, 2);
        if (!drawn || (options[i].muon && !muon) || (options[i].momentum && !momentum)) continue;
        to[n++] = options[i].name;
        to[n++] = options[i].value;
    }
    return n;
}

/* Facts that add parameters, kinds of blocks or work outside them, each in half of the runs. @return the settings */
static int draw_facts(rng_key key, uint64_t *at, bool experts, const char *groups,
                      const char **to) {
    static const struct {
        const char *name, *value;
    } facts[] = {
        { "model.value_embedding_step", "2" },
        { "model.weightless_norms", "true" },
        { "model.embedding_norm", "true" },
        { "model.logit_softcap", "4" },
        { "model.sliding_window", "9" },
        { "model.full_attention_step", "3" },
        { "model.init", "uniform" },
        { "model.activation", "relu2" },
        { "model.layer_scalars", "true" },
        { "model.backout", "true" },
        { "model.smear", "true" },
    };
    int n = 0;
    bool window = false;
    for (size_t i = 0; i < COUNT_OF(facts); i++) {
        bool on = draw(key, at, 2) == 0;
        if (!strcmp(facts[i].name, "model.sliding_window")) window = on;
        if (!strcmp(facts[i].name, "model.full_attention_step") && !window) on = false;
        if (!strcmp(facts[i].name, "model.activation") && experts) on = false; /* they are gated */
        if (!strcmp(facts[i].name, "model.weightless_norms") && strstr(groups, "vectors"))
            on = false; /* a group that matches nothing is refused */
        if (on) to[n++] = facts[i].name, to[n++] = facts[i].value;
    }
    return n;
}

static void try_sampled_run(test_folder *f, uint64_t seed) {
    rng_key key = rng_key_of(seed, hash_str("runs"));
    uint64_t at = 0;
    size_t which = (size_t)seed % COUNT_OF(optimizers);
    bool experts = (seed / COUNT_OF(optimizers)) % 2 == 0, ramp = draw(key, &at, 3) == 0;
    drawn_layout l[2];
    char what[1024], places[2][160];
    for (int i = 0; i < 2; i++) {
        draw_axes(key, &at, i ? -1 : (int)(seed / COUNT_OF(optimizers) % 6), experts, &l[i]);
        if (ramp) l[i].interleaved = false; /* which would round its steps up */
        set_layout(&l[i]);
        describe_layout(&l[i], places[i], sizeof places[i]);
    }
    str groups = { 0 };
    str_add(&groups, "%s", "");
    double within = draw_groups(key, &at, optimizers[which].within, &groups);
    snprintf(what, sizeof what, "seed %llu: %s %s, %s%s; %s, then %s", (unsigned long long)seed,
             optimizers[which].name, groups.len ? groups.text : "", experts ? "experts" : "dense",
             ramp ? ", ramp" : "", places[0], places[1]);
    print_message("%s\n", what);
    settings common = { SETTINGS_FOR_RANKS("4"), "optimizer.name", optimizers[which].name };
    int n = 0;
    while (common[n]) n++;
#define ADD(name, value) (common[n++] = name, common[n++] = value)
    ADD("optimizer.lr", optimizers[which].lr);
    ADD("sample.every", "2");
    ADD("sample.tokens", "5");
    ADD("validation.every", "0");
    if (experts) ADD("model.experts", "4"), ADD("model.expert_dim", "16");
    if (groups.len) ADD("optimizer.groups", groups.text);
    bool muon = !strcmp(optimizers[which].name, "muon") || strstr(groups.text, "muon");
    bool momentum = muon || !strcmp(optimizers[which].name, "momentum");
    n += draw_rule_options(key, &at, muon, momentum, &common[n]);
    if (ramp && at % 2)
        ADD("training.batch_schedule", "[{batch: 4, until: 40%}]");
    else if (ramp)
        ADD("training.batch_ramp_start", "4"), ADD("training.batch_ramp", "40%");
    n += draw_facts(key, &at, experts, groups.text, &common[n]);
    static const char *const runs[] = { "one", "many" };
    for (int i = 0; i < 2; i++) assert_ok(io_remove_tree(f->path, in_folder(f, runs[i])));
    assert_ok(run_on_ranks(f, "one", common, (settings){ "training.local_batch_size", "4" }, 1));
    for (int i = 0; i < 2; i++) {
        settings own;
        memcpy(own, l[i].s, sizeof own);
        int k = 0;
        while (own[k]) k++;
        if (i == 0) own[k] = "training.stop", own[k + 1] = "3";
        err e = run_on_ranks(f, "many", common, own, l[i].ranks);
        if (e) fail_msg("%s: %s", what, err_message(e));
    }
    compare_logs(f, what, within);
    str_free(&groups);
}

static void every_sampled_run_agrees_with_one_rank(void **state) {
    for (int i = 0; i < runs_to_try; i++) try_sampled_run(*state, first_seed + (uint64_t)i);
}

int main(void) {
    const char *runs = getenv("INGOT_TEST_RUNS"), *seed = getenv("INGOT_TEST_SEED");
    if (runs) runs_to_try = atoi(runs);
    if (seed) first_seed = strtoull(seed, NULL, 10);
    const struct CMUnitTest tests[] = { cmocka_unit_test_setup_teardown(
        every_sampled_run_agrees_with_one_rank, folder_setup, folder_teardown) };
    if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 0); /* without fsync */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
