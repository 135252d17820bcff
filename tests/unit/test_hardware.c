/* The catalogue of hardware, and time and cost from it. */
#include "support/folder.h"

#include <math.h>

#include "observe/observe.h"
#include "planning/planning_internal.h"

static void assert_near(double got, double expected, double tolerance) {
    if (!(fabs(got / expected - 1) <= tolerance))
        fail_msg("%.10g is not within %g of %.10g", got, tolerance, expected);
}

static hardware open_catalogue(void) {
    hardware h;
    assert_ok(hardware_open(NULL, &h));
    return h;
}

static const accelerator *find(const hardware *h, const char *name) {
    const accelerator *a = NULL;
    assert_ok(hardware_find(h, name, &a));
    return a;
}

/* Every accelerator that is asked for is there, and plausible. */
static void is_complete(void **state) {
    static const char *const names[] = { "a100",   "A100-80GB", "h100",    "H200", "b200",
                                         "gb200",  "v100",      "a10g",    "l40s", "t4",
                                         "mi300x", "tpu-v4",    "TPU v5p", "cpu" };
    hardware h = open_catalogue();
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const accelerator *a = find(&h, names[i]);
        double half = isnan(a->peak[PEAK_BF16]) ? a->peak[PEAK_FP16] : a->peak[PEAK_BF16];
        assert_true(half > 1e12 && half < 1e16 && a->memory > 1e10 && a->memory < 1e12);
        assert_true(a->memory_bandwidth > 1e11 && a->link > 1e10 && a->host > 1e10);
        assert_true(*a->source);
    }
    assert_true(find(&h, "a100")->link == 600e9 && find(&h, "h100")->link == 900e9);
    assert_true(find(&h, "a100")->network == 25e9 && find(&h, "a100")->host == 32e9);
    static const char *const providers[] = { "aws", "gcp", "azure", "lambda" };
    for (size_t i = 0; i < COUNT_OF(providers); i++) {
        const hardware_price *p;
        assert_ok(hardware_find_price(&h, find(&h, "a100"), providers[i], &p));
        assert_true(p->usd > 0.5 && p->usd < 10 && strlen(p->date) == 10 && *p->source);
    }
    for (int i = 0; i < h.n_prices; i++) find(&h, h.prices[i].accelerator);
    assert_true(h.n_stores > 0 && h.stores[0].usd_gb_egress > 0);
    hardware_free(&h);
}

/* A published peak is written once: the catalogue has only those of chips that observe/chips.c lacks. */
static void peaks_are_written_once(void **state) {
    hardware h = open_catalogue();
    int published = 0;
    for (int i = 0; i < h.n_accelerators; i++) {
        const accelerator *a = &h.accelerators[i];
        char entry[64];
        if (isnan(chip_peak(a->chip, "fp32"))) continue;
        published++;
        assert_near(a->peak[PEAK_FP16], chip_peak(a->chip, "fp16"), 1e-9);
        snprintf(entry, sizeof entry, "{name: %s,", a->name);
        const char *from = strstr(hardware_files[0].text, entry);
        assert_non_null(from);
        const char *peaks = strstr(from, "tflops"), *next = strstr(from, "{name:");
        next = strstr(next + 1, "{name:");
        if (peaks && peaks < next) fail_msg("%s: leave tflops out", a->name);
    }
    assert_true(published >= 8);
    hardware_free(&h);
}

static void users_extend_it(void **state) {
    test_folder *f = *state;
    hardware h;
    const accelerator *a;
    const hardware_price *p;
    assert_ok(hardware_open(
        folder_write(
            f, "ours.yaml",
            "accelerators:\n"
            "  - {name: ours, title: Our chip, chip: X1, memory: 64, memory_bandwidth: 1000,\n"
            "     tflops: {bf16: 500}, link: 100, host: 32, network: 25, disk: 5, per_node: 4,\n"
            "     source: us}\n"
            "prices:\n"
            "  - {provider: lambda, accelerator: a100, instance: 8x A100, usd: 1.5,\n"
            "     date: 2026-11-01, source: contract}\n"),
        &h));
    assert_ok(hardware_find(&h, "ours", &a));
    assert_true(a->memory == 64e9 && a->per_node == 4 && isnan(a->peak[PEAK_FP8]));
    assert_true(a->peak[PEAK_BF16] == 500e12);
    assert_ok(hardware_find_price(&h, find(&h, "a100"), "lambda", &p));
    assert_true(p->usd == 1.5);
    assert_error(hardware_find_price(&h, a, NULL, &p), "no price for ours");
    hardware_free(&h);
}

/* A plan that names no precision is in one that the accelerator computes in, and so is the run. */
static void precisions_are_of_the_accelerator(void **state) {
    static const struct {
        const char *peaks, *of_gpu, *of_cpu; /* a CPU never trains in fp16 */
    } chips[] = { { "fp32: 1, fp16: 2, bf16: 4", "bf16", "bf16" },
                  { "fp32: 1, tf32: 2, fp16: 4", "fp16", "fp32" },
                  { "fp32: 1", "fp32", "fp32" } };
    for (size_t i = 0; i < 2 * COUNT_OF(chips); i++) {
        bool cpu = i % 2;
        const char *expected = cpu ? chips[i / 2].of_cpu : chips[i / 2].of_gpu;
        str text = { 0 };
        str_add(&text,
                "accelerators:\n"
                "  - {name: mine, title: Mine, chip: C, memory: 64, memory_bandwidth: 100,\n"
                "     shared: %s, tflops: {%s}, link: 100, host: 32, network: 25, disk: 5,\n"
                "     per_node: 2, source: us}\n",
                cpu ? "true" : "false", chips[i / 2].peaks);
        const char *path = folder_write(*state, "mine.yaml", text.text);
        plan_machine m;
        config c;
        run_target on = { 0 };
        double limit;
        assert_ok(plan_machine_open(path, &(machine_query){ .gpu = "mine" }, &m));
        assert_string_equal(m.dtype, expected);
        config_init(&c);
        assert_ok(plan_target_accelerator(m.gpu, &c, &on, &limit));
        assert_int_equal(c.precision.dtype, !strcmp(expected, "fp32")   ? CFG_FP32
                                            : !strcmp(expected, "fp16") ? CFG_FP16
                                                                        : CFG_BF16);
        assert_int_equal(c.device.kind, cpu ? OPS_CPU : OPS_AUTO);
        config_free(&c);
        plan_machine_close(&m);
        str_free(&text);
    }
    plan_machine m;
    assert_error(plan_machine_open(in_folder(*state, "mine.yaml"),
                                   &(machine_query){ .gpu = "mine", .dtype = "bf16" }, &m),
                 "mine does not compute in \"bf16\"");
    const char *none =
        folder_write(*state, "none.yaml",
                     "accelerators:\n"
                     "  - {name: none, title: None, chip: N, memory: 64, memory_bandwidth: 100,\n"
                     "     tflops: {}, link: 100, host: 32, network: 25, disk: 5, per_node: 2,\n"
                     "     source: us}\n");
    assert_error(plan_machine_open(none, &(machine_query){ .gpu = "none" }, &m),
                 "tflops: no type is given");
}

/* Calibration finds the terms of a sum again, and a term that is not there is not made up. */
static void calibration_finds_the_terms(void **state) {
    static const double terms[CALL_TERMS] = { 3e-6, 2e-12, 40e-12, 0 };
    measured_call p[5];
    double got[CALL_TERMS];
    for (int i = 0; i < 5; i++) {
        double d = 64 << i;
        p[i] = (measured_call){ .shape.work = { 1 + i, d * d * 1000, d * (3000 + 500 * i * i),
                                                d * 100 } };
        for (int t = 0; t < CALL_TERMS; t++) p[i].seconds += terms[t] * p[i].shape.work[t];
    }
    assert_true(calibration_fit(p, 5, got));
    for (int t = 0; t < CALL_TERMS; t++)
        assert_true(fabs(got[t] - terms[t]) <= 1e-6 * terms[t] + 1e-18);
    /* never negative, whatever noise there is */
    for (int i = 0; i < 5; i++) p[i].seconds *= i % 2 ? 0.5 : 1.5;
    assert_true(calibration_fit(p, 5, got));
    for (int t = 0; t < CALL_TERMS; t++) assert_true(got[t] >= 0);
}

/* GEMMs whose rate depends on the inner dim, as no term expresses, with noise: calls of new shapes between the
 * measured ones are priced within a few percent, measured ones nearly as measured, those far away by the terms. */
static call_shape gemm_shape(double m, double n, double k) {
    return (call_shape){ .work = { 1, 2 * m * n * k, 4 * (m * n + m * k + n * k), 0 },
                         .dim = { m, k, m, n, 1 } };
}
static double gemm_seconds(const call_shape *s) {
    double k = s->dim[1];
    return 5e-6 + s->work[1] / 100e9 * (1 + 64 / k);
}
static void calls_are_priced_by_those_most_like_them(void **state) {
    enum { SIDES = 4, CALLS = SIDES * SIDES * SIDES };
    measured_call p[CALLS];
    call_cost c = { .measured = p, .n = CALLS };
    rng_key key = rng_key_of(5, 0);
    double mean[2] = { 0 };
    for (int i = 0; i < CALLS; i++) {
        call_shape s =
            gemm_shape(128 << i % SIDES, 64 << i / SIDES % SIDES, 32 << 2 * (i / SIDES / SIDES));
        p[i] =
            (measured_call){ s, gemm_seconds(&s) * (0.98 + 0.04 * rng_uniform(key, (uint64_t)i)) };
    }
    assert_true(calibration_fit(p, CALLS, c.term));
    call_cost terms = c;
    terms.n = 0;
    for (int i = 0; i < CALLS; i++) {
        assert_near(call_cost_seconds(&c, &p[i].shape, 1) / p[i].seconds, 1, 0.03);
        double m = 128 * pow(2, 3 * rng_uniform(key, (uint64_t)(1000 + i)));
        double n = 64 * pow(2, 3 * rng_uniform(key, (uint64_t)(2000 + i)));
        call_shape s = gemm_shape(m, n, 32 * pow(2, 6 * rng_uniform(key, (uint64_t)(3000 + i))));
        double truth = gemm_seconds(&s);
        mean[0] += fabs(call_cost_seconds(&terms, &s, 1) / truth - 1) / CALLS;
        mean[1] += fabs(call_cost_seconds(&c, &s, 1) / truth - 1) / CALLS;
    }
    assert_true(mean[0] > 0.1 && mean[1] < 0.05);
    call_shape far = gemm_shape(1 << 20, 1 << 20, 1 << 20);
    assert_near(call_cost_seconds(&c, &far, 1) / call_cost_seconds(&terms, &far, 1), 1, 0.1);
}

/* Large sums of few GPUs are faster by rings, small ones of many by trees; NCCL's choice is never slower than either. */
static void all_reduces_are_priced_by_algorithm(void **state) {
    static const struct {
        const char *seq_len, *rows, *degree;
        int ranks;
        const char *best;
    } cases[] = { { "4096", "16", "8", 8, "ring" }, { "1", "1", "256", 256, "tree" } };
    static const char *const names[] = { "auto", "ring", "tree" };
    hardware h;
    assert_ok(hardware_open(NULL, &h));
    for (size_t k = 0; k < COUNT_OF(cases); k++) {
        double seconds[3];
        for (int i = 0; i < 3; i++) {
            config c;
            step_time t;
            run_target on = { .ops = ops_cpu(OPS_ISA_BEST), .ranks = cases[k].ranks };
            config_init(&c);
            assert_ok(config_set(&c, "model.preset", "tiny"));
            assert_ok(config_set(&c, "model.heads", "256"));
            assert_ok(config_set(&c, "model.kv_heads", "256"));
            assert_ok(config_set(&c, "model.head_dim", "4"));
            assert_ok(config_set(&c, "model.dim", "1024"));
            assert_ok(config_set(&c, "model.ffn_dim", "4096"));
            assert_ok(config_set(&c, "model.max_seq_len", "4096"));
            assert_ok(config_set(&c, "training.seq_len", cases[k].seq_len));
            assert_ok(config_set(&c, "training.local_batch_size", cases[k].rows));
            assert_ok(config_set(&c, "parallelism.tensor_parallel_degree", cases[k].degree));
            assert_ok(config_set(&c, "parallelism.sequence_parallel", "false"));
            assert_ok(config_set(&c, "comm.nccl_algorithm", names[i]));
            assert_ok(step_simulate(&c, &on, find(&h, "h100"), NULL, &t));
            seconds[i] = t.seconds;
            config_free(&c);
        }
        assert_true(seconds[0] <= seconds[1] && seconds[0] <= seconds[2]);
        assert_true(seconds[1] != seconds[2]);
        assert_string_equal(seconds[1] < seconds[2] ? "ring" : "tree", cases[k].best);
    }
    hardware_free(&h);
}

static step_time simulated_step(const char *path, int ranks, const char *options[][2], int n) {
    hardware h;
    config c;
    step_time t;
    run_target on = { .ops = ops_cpu(OPS_ISA_BEST), .ranks = ranks };
    assert_ok(hardware_open(path, &h));
    config_init(&c);
    assert_ok(config_set(&c, "model.preset", "gpt-small"));
    for (int i = 0; i < n; i++) assert_ok(config_set(&c, options[i][0], options[i][1]));
    assert_ok(step_simulate(&c, &on, find(&h, "mine"), NULL, &t));
    config_free(&c);
    hardware_free(&h);
    return t;
}

static double simulated_seconds_in(const char *type, const char *path, int ranks) {
    const char *options[][2] = { { "precision.dtype", type } };
    step_time t = simulated_step(path, ranks, options, 1);
    return t.seconds - t.stragglers;
}

static double simulated_seconds(const char *path, int ranks) {
    return simulated_seconds_in("fp32", path, ranks);
}

/* A call that has been measured takes what was measured. Ranks that share a CPU have a part of its rates each, and
 * start calls as fast as one does. */
static void measured_calls_replace_the_roofline(void **state) {
    test_folder *f = *state;
#define MINE(calls)                                                                                 \
    "accelerators:\n"                                                                               \
    "  - {name: mine, title: Mine, chip: C, memory: 64, memory_bandwidth: 100, shared: true,\n"     \
    "     tflops: {fp32: 1}, link: 1e6, host: 32, network: 25, disk: 5, per_node: 2, source: us,\n" \
    "     calls: [" calls "]}\n"
    const char *plain = folder_write(f, "plain.yaml", MINE(""));
    double roofline = simulated_seconds(plain, 1);
    /* without a unit for bf16 its GEMMs are as fast as fp32's, and its copies move fewer bytes */
    double bf16 = simulated_seconds_in("bf16", plain, 1);
    assert_true(bf16 < roofline && bf16 > 0.5 * roofline);
    const char *flops =
        folder_write(f, "flops.yaml", MINE("{op: linear_bwd_w, type: fp32, ps_flop: 1000}"));
    /* four matrices per block, 2048 tokens: the rest stays on the roofline */
    double work = 6 * 2048 * 2.0 * 12 * 384 * 384 * 1000e-12, one = simulated_seconds(flops, 1);
    assert_true(one > work && one < work + roofline);
    assert_near(simulated_seconds(flops, 2) / one, 2, 0.02);
    const char *starts =
        folder_write(f, "starts.yaml", MINE("{op: linear_bwd_w, type: fp32, us: 1e6}"));
    assert_near(simulated_seconds(starts, 1), 24, 0.05);
    assert_near(simulated_seconds(starts, 2) / simulated_seconds(starts, 1), 1, 0.05);
    /* the update is priced by the ops that it is recorded as */
    const char *clip = folder_write(f, "clip.yaml", MINE("{op: clip, type: fp32, us: 5e6}"));
    assert_near(simulated_seconds(clip, 1), 5 + roofline, 0.05);
    /* of each block four square matrices and two of four squares, in five iterations; ranks of a CPU that share
     * the layers have half of its rate each */
    const char *muon =
        folder_write(f, "muon.yaml", MINE("{op: orthogonalize, type: fp32, ps_flop: 1000}"));
    const char *options[][2] = { { "precision.dtype", "fp32" },
                                 { "optimizer.name", "muon" },
                                 { "parallelism.zero_stage", "1" } };
    double gemms = 6 * 5 * (4 * 6 + 2 * 18) * 384.0 * 384 * 384 * 1000e-12;
    for (int ranks = 1; ranks <= 2; ranks++)
        assert_near(simulated_step(muon, ranks, options, 3).update / gemms, 1, 0.01);
    const char *other =
        folder_write(f, "other.yaml", MINE("{op: linear_bwd_w, type: bf16, us: 1e6}"));
    assert_near(simulated_seconds(other, 1), roofline, 1e-9);
    hardware h;
    assert_error(hardware_open(folder_write(f, "bad.yaml", MINE("{op: lineer, type: fp32}")), &h),
                 "unknown op \"lineer\"");
    assert_error(hardware_open(folder_write(f, "bad.yaml", MINE("{op: linear, type: x}")), &h),
                 "unknown type \"x\"");
    /* a measured call that takes twice as long as the term has it slows calls like it, and ops that were not measured */
#define LIKE(us)                                                                                   \
    MINE("{op: linear_bwd_w, type: fp32, ps_flop: 1000, measured: [[2048, 768, 768, 384, 1, "      \
         "1208, 10617, 0, " us "]]}")
    double same = simulated_seconds(folder_write(f, "same.yaml", LIKE("1208e3")), 1);
    double twice = simulated_seconds(folder_write(f, "twice.yaml", LIKE("2416e3")), 1);
    assert_true(same > 2 * one && twice > 1.8 * same && twice < 2.01 * same);
#undef LIKE
    /* an op that was not measured costs per byte what measured ones do, not what a GPU's copies would */
    const char *bytes = folder_write(
        f, "bytes.yaml",
        MINE("{op: add, type: fp32, ps_byte: 1e6, measured: [[8, 8, 8, 8, 1, 0, 1, 0, 1e3]]}"));
    assert_true(simulated_seconds(bytes, 1) > 100 && roofline < 2);
    /* ranks that share a CPU hide no communication: its time adds to that of the calls */
#define SLOW_LINK                                                                                  \
    "accelerators:\n"                                                                              \
    "  - {name: mine, title: Mine, chip: C, memory: 64, memory_bandwidth: 100, shared: true,\n"    \
    "     tflops: {fp32: 1}, link: 10, host: 32, network: 25, disk: 5, per_node: 2, source: us}\n"
    const char *fp32[][2] = { { "precision.dtype", "fp32" } };
    step_time fast = simulated_step(plain, 2, fp32, 1),
              slow = simulated_step(folder_write(f, "slow.yaml", SLOW_LINK), 2, fp32, 1);
    double moved = slow.run.exposed + slow.run.hidden - fast.run.exposed - fast.run.hidden;
    assert_true(moved > 0.005 && slow.run.hidden > 0);
    assert_near((slow.run.seconds - fast.run.seconds) / moved, 1, 0.02);
    const char *short_list = MINE("{op: linear, type: fp32, us: 1, measured: [[1, 2]]}");
    const char *no_term = MINE("{op: linear, type: fp32, measured: [[1, 1, 1, 1, 1, 0, 0, 0, 1]]}");
    assert_error(hardware_open(folder_write(f, "bad.yaml", short_list), &h), "lists of 9 numbers");
    assert_error(hardware_open(folder_write(f, "bad.yaml", no_term), &h), "no term");
#undef MINE
}

static void refusals(void **state) {
    test_folder *f = *state;
    hardware h = open_catalogue(), bad;
    const accelerator *a;
    const hardware_price *p;
    double flops;
    err e = hardware_find(&h, "a1000", &a);
    assert_non_null(strstr(err_remedy(e), "--gpu a100"));
    assert_error(e, "\"a1000\" is not in the catalogue", "h200");
    assert_error(hardware_find_price(&h, find(&h, "h200"), "lambda", &p), "no price for h200");
    assert_error(hardware_find_peak(find(&h, "a100"), "fp8", &flops), "a100", "fp8");
    hardware_free(&h);
    static const struct {
        const char *text, *complaint;
    } files[] = {
        { "accelerators: 3\n", "expected a list" },
        { "chips: []\n", "unknown section \"chips\"" },
        { "accelerators:\n  - {name: x}\n", "accelerators[0]" },
        { "prices:\n  - {provider: a, accelerator: b, instance: c, usd: -1, date: d, source: e}\n",
          "above 0; got -1" },
        { "accelerators: [\n", "bad.yaml:" },
        { "- 1\n", "expected sections" },
    };
    for (size_t i = 0; i < COUNT_OF(files); i++)
        assert_error(hardware_open(folder_write(f, "bad.yaml", files[i].text), &bad),
                     files[i].complaint);
}

/* The worked examples that people check planners with. */
static void worked_examples(void **state) {
    hardware h = open_catalogue();
    const hardware_price *lambda;
    double peak;
    assert_ok(hardware_find_price(&h, find(&h, "a100"), "lambda", &lambda));
    assert_ok(hardware_find_peak(find(&h, "a100"), "bf16", &peak));
    run_cost c = cost_of_flops(6 * 7e9 * 2e12, 256, peak, MFU_DEFAULT, lambda->usd);
    assert_near(c.seconds / 3600, 649, 0.001);
    assert_true(llround(c.gpu_hours) == 166192 && llround(c.usd) == 330722);
    /* 7B on 1T tokens: $165-330 k, between Lambda's price and twice that */
    assert_near(cost_of_flops(6 * 7e9 * 1e12, 512, peak, 0.45, 1.99).usd, 165.4e3, 0.001);
    /* 512 A100s for a night of 12 hours: $12-24 k, not $500,000 */
    assert_near(512 * 12 * lambda->usd, 12.2e3, 0.01);
    assert_ok(hardware_find_peak(find(&h, "h100"), "bf16", &peak));
    assert_near(cost_of_flops(6.3e23, 1024, peak, 0.45, 0).seconds / 86400, 16, 0.001);
    /* 6.3e23 FLOPs at 180 TFLOP/s sustained: 3.5 billion GPU-seconds */
    assert_near(cost_of_flops(6.3e23, 1, 180e12, 1, 0).seconds, 3.5e9, 1e-9);
    hardware_free(&h);
}

/* Rajbhandari et al. 2020, figure 1: 7.5B parameters on 64 GPUs. */
static void zero_table(void **state) {
    static const double gb[] = { 120, 31.4, 16.6, 1.88 };
    for (int stage = 0; stage < 4; stage++)
        assert_near(zero_state_bytes(7.5e9, 64, stage) / 1e9, gb[stage], 0.005);
    assert_near(zero_state_bytes(70e9, 8, 0), 1120e9, 1e-9);
    assert_near(zero_state_bytes(70e9, 8, 3), 140e9, 1e-9);
    assert_near(zero_state_bytes(70e9, 1, 0) / (8 * 4), 35e9, 1e-9); /* tp 8, pp 4 */
    assert_near(zero_state_bytes(7e9, 64, 3), 1.75e9, 1e-9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_complete),
        cmocka_unit_test(peaks_are_written_once),
        cmocka_unit_test(all_reduces_are_priced_by_algorithm),
        cmocka_unit_test_setup_teardown(users_extend_it, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(precisions_are_of_the_accelerator, folder_setup,
                                        folder_teardown),
        cmocka_unit_test(calibration_finds_the_terms),
        cmocka_unit_test(calls_are_priced_by_those_most_like_them),
        cmocka_unit_test_setup_teardown(measured_calls_replace_the_roofline, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(refusals, folder_setup, folder_teardown),
        cmocka_unit_test(worked_examples),
        cmocka_unit_test(zero_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
