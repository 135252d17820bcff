/* A layout that the search finds fits, keeps the batch, is what training would lay out, and is not beaten by layouts made
 * by hand. */
#include "support/test.h"

#include <math.h>

#include "planning/planning.h"

typedef const char *search_settings[40];

static config config_with(search_settings set) {
    config c;
    config_init(&c);
    assert_ok(config_set(&c, "precision.dtype", "bf16"));
    assert_ok(config_set(&c, "parallelism.tensor_parallel_chunks", "1")); /* as on a GPU */
    for (int i = 0; set[i]; i += 2) assert_ok(config_set(&c, set[i], set[i + 1]));
    return c;
}

static run_target anywhere(int ranks) {
    return (run_target){ .ops = ops_cpu(OPS_ISA_BEST), .device = true, .ranks = ranks };
}

typedef struct search_case {
    const char *gpu;
    int gpus;
    bool for_cost;
    search_settings set;
    bool all; /* some layout can use all accelerators, so every one that is found does */
} search_case;

static layout_result search_for(const hardware *h, const search_case *k, double limit) {
    layout_result r;
    config c = config_with((const char **)k->set);
    search_options o = { .gpus = k->gpus, .for_cost = k->for_cost };
    run_target on = anywhere(0);
    assert_ok(hardware_find(h, k->gpu, &o.gpu));
    o.limit = limit > 0 ? limit : plan_limit_of_gpu(o.gpu->memory);
    assert_ok(layout_find(&c, &on, &o, &r));
    for (int i = 0; i < r.n; i++) {
        const layout_choice *b = &r.best[i];
        config own;
        capacity cap;
        step_time t;
        run_target all = anywhere(choice_ranks(b));
        assert_true(b->cap.total <= o.limit && choice_ranks(b) <= k->gpus);
        if (i) assert_true(b->score <= r.best[i - 1].score);
        /* the closed form, which chooses what is simulated, is near that */
        assert_true(b->bytes > 0.7 * b->cap.total && b->bytes < 1.15 * b->cap.total);
        double fast = b->estimate / b->time.tokens_per_second;
        if (!(fast > 0.9 && fast < (b->pp > 8 || b->ep > 1 ? 1.5 : 1.3)))
            fail_msg(
                "%s %s on %d x %s: estimate %.3f of simulated, tp %d pp %d dp %d cp %d ep %d zero %d chunks %d update %.3f of %.3f s",
                k->set[1], k->set[3], k->gpus, k->gpu, fast, b->tp, b->pp, b->dp, b->cp, b->ep,
                b->zero, b->chunks, b->time.update, b->time.seconds);
        double batch = (double)(b->dp * b->rows * b->micros);
        cfg_amount wanted = c.training.global_batch_size;
        if (wanted.unit == CFG_TOKENS) wanted.value /= (double)c.training.seq_len;
        assert_true(fabs(batch / wanted.value - 1) < (wanted.unit == CFG_TOKENS ? 0.10 : 1e-9));
        if (r.n && k->all && !k->for_cost) assert_int_equal(choice_ranks(b), k->gpus);
        if (i) continue;
        config_copy(&own, &c);
        assert_ok(layout_apply(b, &own));
        assert_ok(capacity_of(&own, &all, &cap));
        assert_ok(step_simulate(&own, &all, o.gpu, NULL, &t));
        assert_true(cap.total == b->cap.total && t.seconds == b->time.seconds);
        config_free(&own);
    }
    config_free(&c);
    return r;
}

static const search_case cases[] = {
    { "h100", 8, false, { "model.preset", "llama-1b", "training.global_batch_size", "64" }, true },
    { "a100-80gb",
      512,
      false,
      { "model.preset", "llama2-7b", "training.seq_len", "4096", "training.global_batch_size",
        "4e6 tokens" },
      true },
    { "h100",
      256,
      false,
      { "model.preset", "llama3-70b", "training.seq_len", "8192", "training.global_batch_size",
        "4e6 tokens" } },
    { "h100",
      100000,
      false,
      { "model.preset", "llama3-405b", "training.seq_len", "8192", "training.global_batch_size",
        "16e6 tokens" } },
};

static const search_case experts = { "h100",
                                     64,
                                     false,
                                     { "model.preset", "mixtral-8x7b", "training.seq_len", "4096",
                                       "training.global_batch_size", "2e6 tokens" } };

static const search_case few_gpus = { "a100-80gb",
                                      16,
                                      false,
                                      { "model.preset", "llama2-7b", "training.seq_len", "4096",
                                        "training.global_batch_size", "1e6 tokens" } };

/* Stages pass on values of earlier layers, and hold them for every microbatch in flight. */
static const search_case carrying = { "a100-80gb",
                                      16,
                                      false,
                                      { "model.preset", "llama2-7b", "training.seq_len", "4096",
                                        "training.global_batch_size", "1e6 tokens",
                                        "model.layer_scalars", "true", "model.backout", "true" } };

/* Where data parallelism spans many hosts, states that are sharded within fewer of them are gathered faster. */
static void assert_replicas_win(const hardware *h, const search_case *k,
                                const layout_choice *best) {
    layout_choice one = *best;
    config c = config_with((const char **)k->set);
    step_time t;
    const accelerator *gpu;
    run_target on = anywhere(choice_ranks(best));
    assert_true(best->replicas > 1 && best->dp % best->replicas == 0);
    assert_ok(hardware_find(h, k->gpu, &gpu));
    one.replicas = 1;
    assert_ok(layout_apply(&one, &c));
    assert_ok(step_simulate(&c, &on, gpu, NULL, &t));
    assert_true(t.seconds > best->time.seconds);
    config_free(&c);
}

static void what_is_found_fits_and_runs(void **state) {
    hardware h;
    assert_ok(hardware_open(NULL, &h));
    for (size_t i = 0; i < COUNT_OF(cases); i += SANITIZED ? COUNT_OF(cases) : 1) {
        if (i == 2) continue; /* below */
        layout_result r = search_for(&h, &cases[i], 0);
        assert_true(r.n > 1 && r.considered > 500 && r.examined >= r.n);
        str why = { 0 };
        layout_explain(&r.best[0], &r.best[1], false, &why);
        assert_non_null(strstr(why.text, "% slower, most of it by "));
        str_free(&why);
        for (int k = 0; k < r.n; k++) assert_true(r.best[k].offload == OFFLOAD_NONE);
        if (cases[i].gpus >= 100000) assert_replicas_win(&h, &cases[i], &r.best[0]);
    }
    if (!SANITIZED) assert_true(search_for(&h, &experts, 0).n > 1);
    layout_result r = search_for(&h, &carrying, 0);
    assert_true(r.n > 1);
    hardware_free(&h);
}

/* Layouts that published runs and common sense use. None that fits is faster. */
static void no_layout_by_hand_is_better(void **state) {
    static const search_settings by_hand[] = {
        { "parallelism.zero_stage", "3", "activation_checkpoint.mode", "full" },
        { "parallelism.tensor_parallel_degree", "8", "parallelism.pipeline_parallel_degree", "4",
          "activation_checkpoint.mode", "selective" },
        { "parallelism.tensor_parallel_degree", "8", "parallelism.pipeline_parallel_degree", "4",
          "parallelism.pipeline_parallel_schedule", "Interleaved1F1B", "activation_checkpoint.mode",
          "selective" },
        { "parallelism.tensor_parallel_degree", "8", "parallelism.pipeline_parallel_degree", "16" },
        { "parallelism.tensor_parallel_degree", "8", "parallelism.pipeline_parallel_degree", "16",
          "activation_checkpoint.mode", "full" },
        { "parallelism.tensor_parallel_degree", "4", "parallelism.pipeline_parallel_degree", "4",
          "parallelism.zero_stage", "2", "activation_checkpoint.mode", "selective" },
    };
    hardware h;
    assert_ok(hardware_open(NULL, &h));
    {
        const size_t i = 2;
        layout_result r = search_for(&h, &cases[i], 0);
        int fitting = 0;
        const accelerator *gpu;
        assert_ok(hardware_find(&h, cases[i].gpu, &gpu));
        for (size_t k = 0; k < COUNT_OF(by_hand); k++) {
            config c = config_with((const char **)cases[i].set);
            run_target on = anywhere(cases[i].gpus);
            capacity cap;
            step_time t;
            for (int n = 0; by_hand[k][n]; n += 2)
                assert_ok(config_set(&c, by_hand[k][n], by_hand[k][n + 1]));
            assert_ok(config_set(&c, "training.local_batch_size", "1"));
            err e = capacity_of(&c, &on, &cap);
            if (!e && cap.total <= plan_limit_of_gpu(gpu->memory)) {
                assert_ok(step_simulate(&c, &on, gpu, NULL, &t));
                assert_true(t.tokens_per_second <= r.best[0].time.tokens_per_second * 1.01);
                fitting++;
            }
            err_free(e);
            config_free(&c);
        }
        assert_true(fitting > 0);
    }
    hardware_free(&h);
}

static layout_result search_as(const char *as, const char *gpu, int gpus, search_settings set) {
    hardware h;
    config c = config_with(set);
    layout_result r;
    run_target on = anywhere(0);
    search_options o = { .gpus = gpus };
    assert_ok(hardware_open(FIXTURES "/../../bench/plan/clusters.yaml", &h));
    assert_ok(hardware_find(&h, gpu, &o.gpu));
    assert_ok(other_system_find(as, &on.as));
    o.limit = plan_limit_of_gpu(o.gpu->memory);
    assert_ok(layout_find(&c, &on, &o, &r));
    assert_true(r.n <= 10);
    config_free(&c);
    hardware_free(&h);
    return r;
}

/* Dubey et al. 2024, table 4 and section 3.3.2, on 16,384 GPUs: the layout that was trained on. */
static void llama3s_own_layout_is_among_the_first_ten(void **state) {
    layout_result r = search_as("llama3", "h100-roce", 16384,
                                (search_settings){ "model.preset", "llama3-405b",
                                                   "training.seq_len", "8192", "model.max_seq_len",
                                                   "8192", "training.global_batch_size", "2048" });
    bool found = false;
    for (int i = 0; i < r.n; i++) {
        const layout_choice *k = &r.best[i];
        found |= k->tp == 8 && k->pp == 16 && k->cp == 1 && k->dp == 128 && k->chunks == 8 &&
                 k->ends_counted && k->schedule == PIPE_INTERLEAVED && k->recompute != CFG_AC_FULL;
    }
    assert_true(found);
}

/* DeepSeek-AI 2024, section 3.2, on 2,048 GPUs; zero bubble stands for DualPipe. */
static void deepseek_v3s_own_layout_is_among_those_shown(void **state) {
    layout_result r =
        search_as("deepseek", "h800", 2048,
                  (search_settings){ "model.preset", "deepseek-v3", "model.capacity_factor", "1",
                                     "training.seq_len", "4096", "model.max_seq_len", "4096",
                                     "training.global_batch_size", "15360", "precision.fp8",
                                     "current", "optimizer.name", "adamw" });
    bool found = false;
    for (int i = 0; i < r.n; i++) {
        const layout_choice *k = &r.best[i];
        found |= k->tp == 1 && k->pp == 16 && k->ep == 64 && k->zero == 1 &&
                 k->schedule == PIPE_ZERO_BUBBLE && k->recompute == CFG_AC_SELECTIVE;
    }
    assert_true(found);
}

static void less_memory_is_slower_and_none_is_nothing(void **state) {
    hardware h;
    assert_ok(hardware_open(NULL, &h));
    double last = INFINITY;
    for (double gb = 79; gb > 15; gb /= 4) {
        layout_result r = search_for(&h, &few_gpus, gb * 1e9);
        assert_true(r.n > 0 && r.best[0].time.tokens_per_second <= last);
        last = r.best[0].time.tokens_per_second;
    }
    assert_int_equal(search_for(&h, &few_gpus, 1e8).n, 0);
    hardware_free(&h);
}

static void cost_is_tokens_per_accelerator(void **state) {
    hardware h;
    assert_ok(hardware_open(NULL, &h));
    search_case cheap = few_gpus;
    cheap.for_cost = true;
    layout_result fast = search_for(&h, &few_gpus, 0), low = search_for(&h, &cheap, 0);
    const layout_choice *a = &fast.best[0], *b = &low.best[0];
    assert_true(b->time.tokens_per_second / choice_ranks(b) >=
                a->time.tokens_per_second / choice_ranks(a));
    assert_true(b->time.tokens_per_second <= a->time.tokens_per_second);
    config c = config_with((search_settings){ "model.preset", "llama-1b" });
    search_options o = { .gpus = 8, .limit = 8e10 };
    run_target on = anywhere(0);
    layout_result r;
    assert_ok(hardware_find(&h, "h100", &o.gpu));
    assert_error(layout_find(&c, &on, &o, &r), "size of a step");
    config_free(&c);
    hardware_free(&h);
}

/* A run that does not fit otherwise fits with state in host memory, and pays for it where computing cannot hide it. */
static void memory_of_the_host_is_used_when_needed(void **state) {
    static const search_case few = { "a100",
                                     2,
                                     false,
                                     { "model.preset", "llama2-7b", "training.seq_len", "4096",
                                       "training.global_batch_size", "64" } };
    hardware h;
    assert_ok(hardware_open(NULL, &h));
    layout_result r = search_for(&h, &few, 0);
    assert_true(r.n > 0);
    for (int i = 0; i < r.n; i++) {
        assert_true(r.best[i].offload != OFFLOAD_NONE);
        assert_true(r.best[i].cap.offloaded > 0);
    }
    /* a slow bus shows */
    config c = config_with((const char **)few.set);
    layout_choice k = r.best[0];
    const accelerator *gpu;
    step_time t;
    run_target on = anywhere(choice_ranks(&k));
    assert_ok(hardware_find(&h, few.gpu, &gpu));
    accelerator slow = *gpu;
    slow.host = 1e9;
    assert_ok(layout_apply(&k, &c));
    assert_ok(step_simulate(&c, &on, &slow, NULL, &t));
    assert_true(t.host + t.run.exposed > 2 * (k.time.host + k.time.run.exposed));
    assert_true(t.seconds > 1.1 * k.time.seconds);
    config_free(&c);
    hardware_free(&h);
}

/* fp8 with scales of the step itself runs in pipelines too. */
static void fp8_may_have_a_pipeline(void **state) {
    static const search_case fp8 = { "h100",
                                     32,
                                     false,
                                     { "model.preset", "llama3-8b", "training.seq_len", "8192",
                                       "training.global_batch_size", "128", "precision.fp8",
                                       "current" } };
    hardware h;
    bool pipelined = false;
    assert_ok(hardware_open(NULL, &h));
    layout_result r = search_for(&h, &fp8, 0);
    for (int i = 0; i < r.n; i++) pipelined |= r.best[i].pp > 1;
    assert_true(pipelined);
    hardware_free(&h);
}

static void the_reason_names_every_choice(void **state) {
    layout_choice a = { .tp = 1, .pp = 2, .dp = 64, .cp = 1, .ep = 1, .replicas = 8, .chunks = 1 };
    a.time = (step_time){ .seconds = 2, .tokens_per_second = 100, .run = { .compute = 2 } };
    layout_choice b = a;
    str why = { 0 };
    b.replicas = 1;
    b.offload = OFFLOAD_MOMENTS;
    b.stages_near = true;
    b.time = (step_time){
        .seconds = 3, .tokens_per_second = 200.0 / 3, .host = 1, .run = { .compute = 2 }
    };
    layout_explain(&a, &b, false, &why);
    assert_string_equal(
        why.text,
        "50.0 % slower, most of it by waiting for host memory (+50.0 % of a step), with offload moments "
        "instead of none, states sharded over 64 instead of 8 of its ranks, pipeline stages as "
        "neighbors on a host");
    str_free(&why);
}

/* Reading is hidden until the disk cannot keep up; then it is what a step takes. Ranks of a node that share sequences
 * read them once. */
static void a_slow_disk_stalls_the_step(void **state) {
    static const struct {
        int ranks, readers; /* that read from one node's disk, of so many */
        const char *tp;
    } readings[] = { { 8, 8, "1" }, { 8, 1, "8" }, { 16, 8, "1" } };
    hardware h;
    const accelerator *gpu;
    assert_ok(hardware_open(NULL, &h));
    assert_ok(hardware_find(&h, "h100", &gpu));
    for (size_t i = 0; i < COUNT_OF(readings); i++) {
        config c = config_with((search_settings){
            "model.preset", "gpt3-350m", "training.seq_len", "1024", "training.local_batch_size",
            "4", "parallelism.tensor_parallel_degree", readings[i].tp });
        run_target on = anywhere(readings[i].ranks);
        accelerator slow = *gpu;
        step_time fast, stalled;
        assert_ok(step_simulate(&c, &on, gpu, NULL, &fast));
        assert_true(fast.data == 0);
        slow.disk = 1e3;
        assert_ok(step_simulate(&c, &on, &slow, NULL, &stalled));
        double read = 4.0 * 1024 * 2 * readings[i].readers / slow.disk; /* two bytes per token */
        assert_float_equal(stalled.seconds, read, 1e-6 * read);
        assert_float_equal(stalled.data, read - fast.seconds, 1e-6 * read);
        assert_float_equal(stalled.tokens_per_second * stalled.seconds,
                           fast.tokens_per_second * fast.seconds, 1);
        config_free(&c);
    }
    hardware_free(&h);
}

/* States of eight bits and weights without a master copy take less than AdamW's: a layout that fits without offloading
 * is not offered with it. */
static void states_are_those_of_the_optimizer(void **state) {
    static const search_case small = { "a100-80gb",
                                       8,
                                       false,
                                       { "model.preset", "llama2-13b", "training.seq_len", "4096",
                                         "training.global_batch_size", "64", "optimizer.name",
                                         "adam8bit", "optimizer.master", "bf16",
                                         "parallelism.zero_stage", "1" },
                                       true };
    hardware h;
    assert_ok(hardware_open(NULL, &h));
    layout_result r = search_for(&h, &small, 40e9);
    assert_true(r.n > 0);
    bool without = false;
    for (int i = 0; i < r.n; i++) {
        layout_choice plain = r.best[i];
        config c = config_with((const char **)small.set);
        run_target on = anywhere(small.gpus);
        capacity cap;
        without |= plain.offload == OFFLOAD_NONE;
        /* the estimate is near the layout, so few that do not fit are laid out */
        assert_true(fabs(plain.bytes / plain.cap.total - 1) < 0.25);
        if (plain.offload != OFFLOAD_NONE) {
            plain.offload = OFFLOAD_NONE;
            assert_ok(layout_apply(&plain, &c));
            assert_ok(capacity_of(&c, &on, &cap));
            assert_true(cap.total > 40e9);
        }
        config_free(&c);
    }
    assert_true(without && r.examined < 120);
    hardware_free(&h);
}

/* Blocks of each kind are recorded once, however many layers and experts there are; and few layouts are laid out that then
 * do not fit. */
static void many_experts_take_few_layouts(void **state) {
    static const search_case many = { "h800",
                                      2048,
                                      false,
                                      { "model.preset",
                                        "custom",
                                        "model.vocab_size",
                                        "129280",
                                        "model.max_seq_len",
                                        "4096",
                                        "model.layers",
                                        "61",
                                        "model.dim",
                                        "7168",
                                        "model.heads",
                                        "128",
                                        "model.kv_heads",
                                        "128",
                                        "model.head_dim",
                                        "128",
                                        "model.ffn_dim",
                                        "18432",
                                        "model.experts",
                                        "256",
                                        "model.experts_per_token",
                                        "8",
                                        "model.expert_dim",
                                        "2048",
                                        "model.first_dense_layers",
                                        "3",
                                        "training.seq_len",
                                        "4096",
                                        "training.global_batch_size",
                                        "15360" },
                                      true };
    hardware h;
    if (SANITIZED) return;
    assert_ok(hardware_open(NULL, &h));
    layout_result r = search_for(&h, &many, 0);
    assert_true(r.n > 0 && r.best[0].ep > 1);
    assert_true(r.examined < 64);
    hardware_free(&h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_found_fits_and_runs),
        cmocka_unit_test(no_layout_by_hand_is_better),
        cmocka_unit_test(llama3s_own_layout_is_among_the_first_ten),
        cmocka_unit_test(deepseek_v3s_own_layout_is_among_those_shown),
        cmocka_unit_test(less_memory_is_slower_and_none_is_nothing),
        cmocka_unit_test(cost_is_tokens_per_accelerator),
        cmocka_unit_test(memory_of_the_host_is_used_when_needed),
        cmocka_unit_test(fp8_may_have_a_pipeline),
        cmocka_unit_test(the_reason_names_every_choice),
        cmocka_unit_test(a_slow_disk_stalls_the_step),
        cmocka_unit_test(states_are_those_of_the_optimizer),
        cmocka_unit_test(many_experts_take_few_layouts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
