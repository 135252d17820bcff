/* The registry of metrics: every row is filled by a run, and holds what it promises. */
#include "support/train.h"

static void assert_near(double got, double expected, double relative) {
    if (fabs(got - expected) > relative * fabs(expected)) fail_msg("%g, not %g", got, expected);
}

/* ---- every metric is filled ---------------------------------------------------------------------- */
typedef struct seen_metrics {
    bool seen[METRICS];
} seen_metrics;

static void take_members(seen_metrics *s, const json_t *line) {
    for (int i = 0; i < METRICS; i++)
        if (json_is_number(json_object_get(line, metric_table[i].key))) s->seen[i] = true;
}

static bool has_numbers(const json_t *blocks, const char *name, size_t n) {
    const json_t *list = json_object_get(blocks, name);
    return json_array_size(list) == n && json_is_number(json_array_get(list, 0));
}

/* Values of a source, a set and a block are nested; what a sink gets of them is metric_visit's. */
static void take_nested(seen_metrics *s, const json_t *line) {
    const char *name;
    json_t *part, *blocks = json_object_get(line, "blocks");
    json_object_foreach(json_object_get(line, "sources"), name, part) {
        s->seen[METRIC_source_loss] |= json_is_number(json_object_get(part, "loss"));
        s->seen[METRIC_source_tokens] |= json_is_number(json_object_get(part, "tokens"));
    }
    json_object_foreach(json_object_get(line, "validation"), name, part) s->seen[METRIC_set_loss] |=
        json_is_number(part);
    json_t *ranks = json_object_get(line, "ranks");
    s->seen[METRIC_rank_busy] |= json_array_size(json_object_get(ranks, "busy_s")) == 4;
    s->seen[METRIC_rank_wait] |= json_array_size(json_object_get(ranks, "wait_s")) == 4;
    s->seen[METRIC_rank_ratio] |= json_array_size(json_object_get(ranks, "ratio")) == 4;
    json_object_foreach(json_object_get(line, "comm"), name, part) {
        s->seen[METRIC_comm_time] |= json_is_number(json_object_get(part, "s"));
        s->seen[METRIC_comm_bytes] |= json_is_number(json_object_get(part, "bytes"));
    }
    json_object_foreach(json_object_get(line, "tasks"), name, part) {
        s->seen[METRIC_task_acc] |= json_is_number(json_object_get(part, "acc"));
        s->seen[METRIC_task_acc_norm] |= json_is_number(json_object_get(part, "acc_norm"));
    }
    s->seen[METRIC_block_activation] |= has_numbers(blocks, "activation_rms", 1);
    s->seen[METRIC_block_fp8_amax] |= has_numbers(blocks, "fp8_amax", 1);
    s->seen[METRIC_block_fp8_saturated] |= has_numbers(blocks, "fp8_saturated", 1);
    s->seen[METRIC_block_grad_norm] |= json_array_size(json_object_get(blocks, "grad_norm")) == 2;
    s->seen[METRIC_block_param_norm] |= json_array_size(json_object_get(blocks, "param_norm")) == 2;
}

static void take_run(test_folder *f, const char *name, seen_metrics *s) {
    json_t *steps = logged_steps(f, name), *line;
    size_t i;
    json_array_foreach(steps, i, line) {
        take_members(s, line);
        take_nested(s, line);
    }
    json_decref(steps);
}

static void take_visited(void *ctx, const metric *m, const char *item, double value) {
    seen_metrics *s = ctx;
    assert_true(isfinite(value));
    assert_true((m->kind == METRIC_EACH) == (item != NULL));
    s->seen[m - metric_table] = true;
}

/* The GPU's state, and perplexities of sets, which are in sinks alone. */
static void take_sinks(test_folder *f, seen_metrics *s) {
    observe *o = NULL;
    const observe_source set = { "web", 10, 2 };
    observe_step step = OBSERVE_STEP_NONE;
    step.step = 1;
    step.loss = 1;
    step.validation = &set;
    step.n_validation = 1;
    observe_options options = {
        .dir = f->path, .gpu = true, .gpu_index = 3, .nvml = FAKE_NVML, .sys = f->path
    };
    const char *counter = "class/net/eth0/statistics/rx_errors";
    assert_ok(io_make_dirs(in_folder(f, "class/net/eth0/statistics")));
    folder_write(f, counter, "3\n");
    assert_true(link_errors(f->path) == 3);
    assert_true(isnan(link_errors("/nonexistent")));
    assert_ok(observe_open(&options, &o));
    folder_write(f, counter, "7\n");
    assert_ok(observe_log(o, &step));
    assert_true(step.link_errors == 4);
    metric_visit(&step, take_visited, s);
    observe_close(o);
}

static void write_mix(test_folder *f) {
    str text = { 0 };
    for (int i = 0; i < 400; i++)
        str_add(&text, "The %d quick foxes jump over lazy dogs %d.\n", i, i * 7);
    folder_write(f, "a.txt", text.text);
    for (char *at = text.text; *at; at++)
        if (*at == 'o') *at = 'u';
    folder_write(f, "b.txt", text.text);
    str mix = { 0 };
    str_add(&mix, "sources:\n  - { name: a, path: %s, weight: 1 }\n", in_folder(f, "a.txt"));
    str_add(&mix, "  - { name: b, path: %s, weight: 1 }\n", in_folder(f, "b.txt"));
    folder_write(f, "mix.yaml", mix.text);
    str_free(&mix);
    str_free(&text);
}

static void every_metric_is_filled(void **state) {
    test_folder *f = *state;
    seen_metrics s = { 0 };
    write_mix(f);
    train_small(f, "mix",
                (settings){ "data.train",
                            in_folder(f, "mix.yaml"),
                            "training.steps",
                            "24",
                            "training.seq_curriculum_start",
                            "16",
                            "training.global_batch_size",
                            "8",
                            "training.noise_scale",
                            "true",
                            "validation.every",
                            "4",
                            "sample.every",
                            "5",
                            "sample.tokens",
                            "2",
                            "checkpoint.every",
                            "7",
                            "metrics.detail_every",
                            "6",
                            "validation.tasks",
                            FIXTURES "/eval/piqa.jsonl",
                            "validation.tasks_limit",
                            "3" });
    train_small(f, "eighth",
                (settings){ "precision", "bf16", "precision.fp8", "delayed", "training.steps", "4",
                            "metrics.detail_every", "4" });
    train_small(f, "half", (settings){ "precision", "fp16" });
    train_small(f, "stages",
                (settings){ "model.layers", "2", "parallelism.pipeline_parallel_degree", "2",
                            "training.steps", "10" });
    train_small(f, "ranks",
                (settings){ "parallelism.tensor_parallel_degree", "2",
                            "parallelism.data_parallel_shard_degree", "2", "training.steps",
                            "10" });
    train_small(f, "experts", (settings){ "model.experts", "4", "model.capacity_factor", "1" });
    take_run(f, "mix", &s);
    take_run(f, "eighth", &s);
    take_run(f, "experts", &s);
    take_run(f, "stages", &s);
    take_run(f, "ranks", &s);
    take_run(f, "half", &s);
    take_sinks(f, &s);
    for (int i = 0; i < METRICS; i++)
        if (!s.seen[i]) fail_msg("%s is in metrics.def, but nothing fills it", metric_table[i].key);
}

/* ---- ranks --------------------------------------------------------------------------------------- */
static double number_at(const json_t *line, const char *group, const char *name, const char *key) {
    return json_number_value(
        json_object_get(json_object_get(json_object_get(line, group), name), key));
}

/* Every rank reports once in 10 steps. Of two ranks the faster one is the median. Bytes follow from the
 * model: what is scattered of gradients is gathered of weights, but for the first step's, which are there; a few
 * values of the host come on top. */
static void ranks_report_themselves(void **state) {
    test_folder *f = *state;
    train_small(
        f, "ranks",
        (settings){ "parallelism.data_parallel_shard_degree", "2", "training.steps", "20" });
    json_t *steps = logged_steps(f, "ranks");
    for (size_t i = 0; i < 20; i++) {
        const json_t *line = json_array_get(steps, i), *ranks = json_object_get(line, "ranks");
        assert_true((ranks != NULL) == (i % 10 == 9));
        assert_near(logged_number(steps, i, "tok_s_rank"), logged_number(steps, i, "tok_s") / 2,
                    1e-6);
        assert_near(logged_number(steps, i, "samples_s_rank"),
                    logged_number(steps, i, "samples_s") / 2, 1e-6);
        if (!ranks) continue;
        double busy[2], wait[2], ratio[2];
        for (size_t r = 0; r < 2; r++) {
            busy[r] = json_number_value(json_array_get(json_object_get(ranks, "busy_s"), r));
            wait[r] = json_number_value(json_array_get(json_object_get(ranks, "wait_s"), r));
            ratio[r] = json_number_value(json_array_get(json_object_get(ranks, "ratio"), r));
        }
        assert_true(busy[0] > 0 && busy[1] > 0 && wait[0] >= 0 && wait[1] >= 0);
        assert_true(MIN(ratio[0], ratio[1]) == 1);
        assert_near(MAX(ratio[0], ratio[1]), MAX(busy[0], busy[1]) / MIN(busy[0], busy[1]), 1e-6);
        double scattered = number_at(line, "comm", "dp_shard:reduce-scatter", "bytes");
        double gathered = number_at(line, "comm", "dp_shard:all-gather", "bytes");
        assert_true(scattered > 0);
        if (i == 19) assert_true(gathered >= scattered && gathered < 1.05 * scattered);
        assert_true(number_at(line, "comm", "dp_shard:all-gather", "s") > 0);
    }
    json_decref(steps);
}

/* ---- values -------------------------------------------------------------------------------------- */
/* The norms of blocks add up to the global norm; the update of SGD is lr times the clipped gradient. */
static void norms_are_those_of_the_step(void **state) {
    test_folder *f = *state;
    train_small(f, "a",
                (settings){ "optimizer", "sgd", "optimizer.weight_decay", "0",
                            "metrics.detail_every", "1", "training.max_norm", "0.5", "model.layers",
                            "2" });
    json_t *steps = logged_steps(f, "a");
    for (size_t i = 0; i < json_array_size(steps); i++) {
        json_t *blocks = json_object_get(json_array_get(steps, i), "blocks");
        double squares = 0, norm = logged_number(steps, i, "grad_norm");
        assert_int_equal(json_array_size(json_object_get(blocks, "grad_norm")), 3);
        for (size_t k = 0; k < 3; k++) {
            double v = json_number_value(json_array_get(json_object_get(blocks, "grad_norm"), k));
            assert_true(v > 0);
            squares += v * v;
        }
        assert_near(sqrt(squares), norm, 1e-5);
        double moved = logged_number(steps, i, "lr") * logged_number(steps, i, "clipped") * norm;
        assert_near(logged_number(steps, i, "update_ratio"),
                    moved / logged_number(steps, i, "param_norm"), 1e-2);
        assert_near(logged_number(steps, i, "perplexity"), exp(logged_number(steps, i, "loss")),
                    1e-6);
        assert_near(logged_number(steps, i, "mfu_6n") / logged_number(steps, i, "mfu"),
                    logged_number(steps, 0, "mfu_6n") / logged_number(steps, 0, "mfu"), 1e-6);
        assert_true(logged_number(steps, i, "mfu_6n") < logged_number(steps, i, "mfu_causal"));
        assert_true(logged_number(steps, i, "mfu_causal") < logged_number(steps, i, "mfu"));
    }
    json_decref(steps);
}

static void bf16_weights_have_a_norm(void **state) {
    test_folder *f = *state;
    train_small(f, "a", (settings){ "metrics.detail_every", "1", "precision", "bf16" });
    train_small(
        f, "b",
        (settings){ "metrics.detail_every", "1", "precision", "bf16", "optimizer.master", "bf16" });
    json_t *a = logged_steps(f, "a"), *b = logged_steps(f, "b");
    assert_near(logged_number(b, 0, "param_norm"), logged_number(a, 0, "param_norm"), 1e-2);
    json_decref(a);
    json_decref(b);
}

static void peaks_are_published(void **state) {
    static const struct {
        const char *name, *dtype;
        double tflops;
    } known[] = {
        { "NVIDIA A100-SXM4-80GB", "bf16", 312 },
        { "NVIDIA H100 80GB HBM3", "bf16", 989.4 },
        { "NVIDIA H100 PCIe", "fp16", 756 },
        { "NVIDIA H200", "bf16", 989.4 },
        { "NVIDIA H200", "fp8", 1978.9 },
        { "NVIDIA L40S", "bf16", 362 },
        { "NVIDIA L4", "tf32", 60 },
        { "NVIDIA GH200 480GB", "fp32", 67 },
        { "NVIDIA GeForce RTX 4090", "bf16", 165.2 },
    };
    for (size_t i = 0; i < COUNT_OF(known); i++)
        assert_near(chip_peak(known[i].name, known[i].dtype), known[i].tflops * 1e12, 1e-9);
    assert_true(isnan(chip_peak("NVIDIA A100-PCIE-40GB", "fp8")));
    assert_true(isnan(chip_peak("Tesla K80", "fp32")));
}

/* ---- NVML ---------------------------------------------------------------------------------------- */
static void gpu_state_is_read(void **state) {
    observe_step s = OBSERVE_STEP_NONE;
    assert_null(nvml_open("/nonexistent/libnvidia-ml.so", 0));
    assert_null(nvml_open(FAKE_NVML, 0)); /* it has no GPU 0 */
    nvml *n = nvml_open(FAKE_NVML, 3);
    assert_non_null(n);
    nvml_read(n, &s);
    assert_true(s.gpu_mem == 40 && s.gpu_util == 97 && s.gpu_power == 650.5);
    assert_true(s.gpu_temp == 61 && s.gpu_ecc == 2);
    assert_true(s.gpu_ecc_corrected == 5 && s.gpu_throttled == 1 && s.gpu_xid == 79);
    nvml_close(n);
}

static void visible_devices_are_followed(void **state) {
    static const struct {
        const char *visible;
        int index;
        bool found;
    } cases[] = { { "3", 0, true },          { "1,3", 1, true },     { "1,3", 0, false },
                  { "1,3", 3, true },        { "GPU-abc", 0, true }, { "GPU-xyz", 0, false },
                  { "7,GPU-abc,8", 1, true } };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        setenv("CUDA_VISIBLE_DEVICES", cases[i].visible, 1);
        nvml *n = nvml_open(FAKE_NVML, cases[i].index);
        if ((n != NULL) != cases[i].found) fail_msg("%s, %d", cases[i].visible, cases[i].index);
        nvml_close(n);
    }
    unsetenv("CUDA_VISIBLE_DEVICES");
}

static void the_power_limit_is_no_throttling(void **state) {
    observe_step s = OBSERVE_STEP_NONE;
    setenv("CUDA_VISIBLE_DEVICES", "GPU-abc", 1);
    nvml *n = nvml_open(FAKE_NVML, 0);
    unsetenv("CUDA_VISIBLE_DEVICES");
    assert_non_null(n);
    nvml_read(n, &s);
    assert_true(s.gpu_throttled == 0);
    nvml_close(n);
}

static void sinks_have_names(void **state) {
    str name = { 0 };
    metric_sink_name(&metric_table[METRIC_set_loss], "web", &name);
    assert_string_equal(name.text, "eval/web_loss");
    str_free(&name);
    name = (str){ 0 };
    metric_sink_name(&metric_table[METRIC_lr], NULL, &name);
    assert_string_equal(name.text, "train/learning_rate");
    str_free(&name);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_metric_is_filled, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(ranks_report_themselves, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(norms_are_those_of_the_step, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(bf16_weights_have_a_norm, folder_setup, folder_teardown),
        cmocka_unit_test(peaks_are_published),
        cmocka_unit_test(gpu_state_is_read),
        cmocka_unit_test(visible_devices_are_followed),
        cmocka_unit_test(the_power_limit_is_no_throttling),
        cmocka_unit_test(sinks_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
