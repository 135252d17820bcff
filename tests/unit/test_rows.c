/* Simulated steps beside published ones (bench/plan/rows.txt) and beside ours. The planner's constants were fitted to the
 * calibration half of the published rows; the bars are those of the half that nothing was fitted to. */
#include "support/folder.h"

#include <math.h>

#include "../bench/plan/rows.h"

#define ROWS_FOLDER FIXTURES "/../../bench/plan"

/* docs/planning.md has the rows as they come out, good and bad alike, up to what compilers round differently. */
static void assert_documented(const published_rows *p) {
    char *text, line[ROW_LINE], *cut;
    size_t len;
    assert_ok(io_read(ROWS_FOLDER "/../../docs/planning.md", 1 << 24, &text, &len));
    for (int i = 0; i < p->sources; i++) {
        source_line(p, p->source[i], line);
        cut = strchr(strchr(line, '+'), '|');
        cut[1] = '\0'; /* its name and numbers of rows */
        if (!strstr(text, line)) fail_msg("docs/planning.md lacks %s", line);
    }
    for (int i = 0; i < p->n; i++) {
        const published_row *r = &p->row[i];
        snprintf(line, sizeof line, "| %s | ", r->name);
        const char *at = strstr(text, line);
        double simulated = NAN, published = NAN, off = NAN;
        char unit[16];
        if (!at || sscanf(at + strlen(line), "%lf %15[^|]| %lf | %lf", &simulated, unit, &published,
                          &off) != 4)
            fail_msg("docs/planning.md lacks %s", line);
        if (!(fabs(off - 100 * r->off) <= 0.2) || !(fabs(published / r->published - 1) <= 1e-4))
            fail_msg("docs/planning.md: %s %+.1f %%, now %+.1f %%: run bench/plan/rows --markdown",
                     r->name, off, 100 * r->off);
    }
    free(text);
}

static void published_rows_come_out(void **state) {
    published_rows p;
    assert_ok(rows_open(ROWS_FOLDER, &p));
    assert_true(p.n >= 120);
    assert_int_equal(rows_simulate(&p), 0); /* none is refused */
    rows_summary fitted = rows_sum(&p, false, NULL), reported = rows_sum(&p, true, NULL);
    printf(
        "fitted %d rows, median %.1f %%; reported %d rows, median %.1f %%, %d within 25 %%, %d of %d pairs in order\n",
        fitted.n, 100 * fitted.median, reported.n, 100 * reported.median, reported.within_25,
        reported.in_order, reported.pairs);
    assert_true(fitted.n > p.n / 3 && reported.n > p.n / 3);
    assert_true(reported.median <= 0.12);
    assert_true(reported.within_25 >= 0.9 * reported.n);
    assert_true(reported.pairs >= 10 && reported.in_order >= 0.9 * reported.pairs);
    for (int i = 0; i < p.n; i++) /* what ran fits under its profile */
        if (p.row[i].memory > p.row[i].limit) fail_msg("%s does not fit", p.row[i].name);
    assert_documented(&p);
    rows_close(&p);
}

/* Layouts of mixtures of experts, in both halves: the planner must rank them as their sources do. */
static void layouts_of_experts_come_out_in_order(void **state) {
    published_rows p;
    int pairs = 0, in_order = 0;
    assert_ok(rows_open(ROWS_FOLDER, &p));
    for (int i = 0; i < p.n; i++)
        if (!strncmp(p.row[i].source, "moe-", 4)) assert_ok(simulate_row(&p, &p.row[i]));
    for (int i = 0; i < p.n; i++)
        for (int k = 0; k < i; k++) {
            const published_row *a = &p.row[i], *b = &p.row[k];
            if (strncmp(a->source, "moe-", 4) != 0 || strcmp(a->source, b->source) != 0 ||
                !same_model(a, b))
                continue;
            bool right = (tokens_of(a, true) > tokens_of(b, true)) ==
                         (tokens_of(a, false) > tokens_of(b, false));
            double apart = fabs(log(tokens_of(a, true) / tokens_of(b, true)));
            if (!right) printf("%s and %s: the published order is the other\n", a->name, b->name);
            assert_true(right || apart < log(1.4)); /* never wrong by more */
            pairs++;
            in_order += right;
        }
    printf("%d of %d pairs of layouts of experts in order\n", in_order, pairs);
    assert_true(pairs >= 25 && in_order >= 0.8 * pairs);
    rows_close(&p);
}

/* The half must not depend on anything but the name, or rows could move once their errors are known. */
static void a_name_decides_the_half(void **state) {
    published_rows p;
    int reported = 0;
    assert_ok(rows_open(ROWS_FOLDER, &p));
    for (int i = 0; i < p.n; i++) {
        assert_int_equal(p.row[i].reported, row_is_reported(p.row[i].name));
        reported += p.row[i].reported;
        for (int k = 0; k < i; k++) assert_string_not_equal(p.row[i].name, p.row[k].name);
    }
    assert_true(row_is_reported("MPT 7b 2048 on 8 h100") !=
                row_is_reported("MPT 7b 2048 on 256 h100"));
    assert_true(reported > p.n / 3 && reported < p.n * 2 / 3);
    rows_close(&p);
}

/* Ours on one H200, as bench/gpu/run measured them: tokens per second. */
static const struct {
    const char *preset, *batch, *seq, *fp8;
    double rate;
} measured[] = {
    { "gpt2-124m", "64", "1024", "off", 626500 },
    { "gpt2-1558m", "16", "1024", "off", 53400 },
    { "llama-1b", "4", "4096", "off", 75100 },
    { "llama-3b", "2", "4096", "off", 27300 },
    { "gpt2-124m", "64", "1024", "delayed", 724000 },
    { "gpt2-1558m", "16", "1024", "delayed", 73100 },
    { "llama-1b", "4", "4096", "delayed", 100500 },
    { "llama-3b", "2", "4096", "delayed", 37000 },
};

static void measured_runs_come_out(void **state) {
    hardware h;
    const accelerator *gpu;
    assert_ok(hardware_open(NULL, &h));
    assert_ok(hardware_find(&h, "h200", &gpu));
    for (size_t i = 0; i < COUNT_OF(measured); i++) {
        config c;
        run_target on = { .ranks = 1 };
        step_time t;
        double limit;
        config_init(&c);
        assert_ok(config_set(&c, "model.preset", measured[i].preset));
        assert_ok(config_set(&c, "training.seq_len", measured[i].seq));
        assert_ok(config_set(&c, "training.local_batch_size", measured[i].batch));
        assert_ok(config_set(&c, "precision.fp8", measured[i].fp8));
        assert_ok(config_set(&c, "optimizer.name", "adamw")); /* with which they were measured */
        assert_ok(plan_target_accelerator(gpu, &c, &on, &limit));
        assert_ok(step_simulate(&c, &on, gpu, NULL, &t));
        double off = t.tokens_per_second / measured[i].rate - 1;
        printf("%-12s fp8 %-8s %+.1f %%\n", measured[i].preset, measured[i].fp8, 100 * off);
        assert_true(fabs(off) <= 0.10);
        config_free(&c);
    }
    hardware_free(&h);
}

/* ---- mechanisms --------------------------------------------------------------------------------- */
/* Tokens per second and rank of a config: "key=value ..." */
static step_time simulated(const char *catalogue, const char *gpu_name, int ranks, const char *as,
                           const char *settings) {
    hardware h;
    const accelerator *gpu;
    config c;
    run_target on = { .ranks = ranks };
    step_time t;
    double limit;
    assert_ok(hardware_open(catalogue, &h));
    assert_ok(hardware_find(&h, gpu_name, &gpu));
    config_init(&c);
    assert_ok(config_set(&c, "optimizer.name", "adamw"));
    assert_ok(apply_settings(settings, &c));
    if (as) assert_ok(other_system_find(as, &on.as));
    assert_ok(plan_target_accelerator(gpu, &c, &on, &limit));
    assert_ok(step_simulate(&c, &on, gpu, NULL, &t));
    config_free(&c);
    hardware_free(&h);
    return t;
}

/* A ring's blocks run at the rates that were measured of their kernels, not at that of fp32: of heads of 128 and 32k keys on an H200,
 * milliseconds forward and backward (bench/results/2026-11-18-h200.md). Eight ranks that share a long sequence lose to eight with a
 * sequence each about what attention alone would with every block recomputed, since attention is most of the step, and a twentieth at most for
 * what they send. */
static void ring_attention_runs_at_the_kernels_rate(void **state) {
    const char *base =
        "model.preset=llama3-8b model.max_seq_len=131072 training.seq_len=131072 "
        "training.local_batch_size=1 parallelism.zero_stage=3 activation_checkpoint.mode=full";
    char ring[512];
    snprintf(ring, sizeof ring, "%s parallelism.context_parallel_degree=8", base);
    double apart = simulated(NULL, "h100", 8, NULL, base).tokens_per_second;
    double shared = simulated(NULL, "h100", 8, NULL, ring).tokens_per_second;
    const double whole[2] = { 6.441, 20.369 }, blocks[2] = { 6.123, 23.734 };
    double least = (2 * whole[0] + whole[1]) / (2 * blocks[0] + blocks[1]); /* 0.92 */
    assert_true(shared > 0.95 * least * apart && shared < 1.2 * least * apart);
}

/* Of one model with a constant share per rank, 512 ranks lose 3 to 12 % to those of one host, as published tables show. */
static void efficiency_falls_with_ranks(void **state) {
    const char *base =
        "model.preset=llama2-7b training.seq_len=2048 training.local_batch_size=6 parallelism.zero_stage=3";
    double last = 0, first = 0;
    for (int ranks = 8; ranks <= 512; ranks *= 4) {
        double rate = simulated(NULL, "h100", ranks, NULL, base).tokens_per_second / ranks;
        if (ranks == 8) first = rate;
        assert_true(ranks == 8 || rate < last);
        last = rate;
    }
    assert_true(last < 0.97 * first && last > 0.88 * first);
}

/* An oversubscribed tier slows groups that cross it, and no others. */
static void upper_tiers_may_be_oversubscribed(void **state) {
    test_folder *f = *state;
#define FABRIC(more)                                                                                    \
    "accelerators:\n"                                                                                   \
    "  - {name: mine, title: Mine, chip: NVIDIA H100, memory: 80, memory_bandwidth: 3350, link: 900,\n" \
    "     host: 64, network: 5, disk: 7, per_node: 8, " more "source: us}\n"
    const char *flat = folder_write(f, "flat.yaml", FABRIC(""));
    const char *tiers = folder_write(f, "tiers.yaml", FABRIC("pod: 64, oversubscription: 4, "));
    const char *base =
        "model.preset=llama2-7b training.seq_len=2048 training.local_batch_size=1 parallelism.zero_stage=3";
    assert_true(simulated(tiers, "mine", 64, NULL, base).seconds ==
                simulated(flat, "mine", 64, NULL, base).seconds);
    assert_true(simulated(tiers, "mine", 128, NULL, base).seconds >
                1.5 * simulated(flat, "mine", 128, NULL, base).seconds);
    const char *bad = folder_write(f, "bad.yaml", FABRIC("oversubscription: 0.5, "));
    hardware h;
    assert_error(hardware_open(bad, &h), "oversubscription of 1 or more");
}

/* Tensor-parallel communication that overlaps GEMMs costs less; scores in memory and eager kernels cost more; each source
 * counts operations its own way. */
static void profiles_change_the_step(void **state) {
    const char *tp = "model.preset=llama3-8b training.seq_len=8192 training.local_batch_size=1 "
                     "parallelism.tensor_parallel_degree=8";
    const char *one = "model.preset=llama2-7b training.seq_len=4096 training.local_batch_size=1";
    step_time plain = simulated(NULL, "h100", 8, "torchtitan", tp),
              async = simulated(NULL, "h100", 8, "torchtitan-async", tp);
    assert_true(async.run.exposed < 0.6 * plain.run.exposed && async.seconds < plain.seconds);
    step_time ours = simulated(NULL, "a100-80gb", 1, NULL, one),
              stored = simulated(NULL, "a100-80gb", 1, "megatron-2021", one);
    step_time eager = simulated(NULL, "a100-80gb", 1, "torchtitan-eager", one);
    step_time compiled = simulated(NULL, "a100-80gb", 1, "torchtitan", one);
    assert_true(stored.seconds > 1.2 * ours.seconds);
    assert_true(eager.seconds > compiled.seconds && compiled.seconds > ours.seconds);
    assert_true(ours.flops_counted == ours.flops_full);
    assert_true(stored.flops_counted > 1.3 * stored.flops_full &&
                stored.flops_counted < 4.0 / 3 * stored.flops_full);
    assert_true(simulated(NULL, "h100", 8, "llama3", tp).flops_counted <
                simulated(NULL, "h100", 8, "llama3", tp).flops_full);
    /* rows to experts: ours from every tensor-parallel rank, then in shards, then once per host, then hidden */
    const char *experts =
        "model.preset=mixtral-8x7b model.experts=64 model.experts_per_token=8 model.expert_dim=1792 "
        "model.capacity_factor=1 training.seq_len=4096 training.local_batch_size=1 "
        "parallelism.tensor_parallel_degree=2 parallelism.expert_parallel_degree=32";
    const char *ways[] = { "torchtitan-async", "megatron-2024", "megatron-2025", "deepseek" };
    double exposed = INFINITY;
    for (size_t i = 0; i < COUNT_OF(ways); i++) {
        double next = simulated(NULL, "h100", 64, ways[i], experts).run.exposed;
        assert_true(next < 0.8 * exposed);
        exposed = next;
    }
    const other_system *as;
    assert_error(other_system_find("torchtitam", &as), "torchtitan");
}

/* An output layer in fp8 takes a share of its time less: of 9.9 TFLOP on an H200, and where ranks share the vocabulary. */
static void a_head_in_fp8_takes_less_time(void **state) {
    const char *const tp[] = { "1", "2" };
    for (size_t i = 0; i < COUNT_OF(tp); i++) {
        char plain[512], head[600];
        snprintf(
            plain, sizeof plain,
            "model.preset=gpt2-124m model.vocab_size=32768 training.seq_len=2048 model.max_seq_len=2048 "
            "training.local_batch_size=32 precision.dtype=bf16 precision.fp8=delayed "
            "parallelism.tensor_parallel_degree=%s",
            tp[i]);
        snprintf(head, sizeof head, "%s precision.fp8_head=true", plain);
        int ranks = atoi(tp[i]);
        double before = simulated(NULL, "h200", ranks, NULL, plain).seconds,
               after = simulated(NULL, "h200", ranks, NULL, head).seconds;
        double saved = (before - after) * ranks;
        if (!(saved > 2e-3 && saved < 9e-3))
            fail_msg("tp %s: %.2f ms saved of %.1f", tp[i], saved * 1e3, before * 1e3);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_rows_come_out),
        cmocka_unit_test(a_head_in_fp8_takes_less_time),
        cmocka_unit_test(layouts_of_experts_come_out_in_order),
        cmocka_unit_test(a_name_decides_the_half),
        cmocka_unit_test(measured_runs_come_out),
        cmocka_unit_test(ring_attention_runs_at_the_kernels_rate),
        cmocka_unit_test(efficiency_falls_with_ranks),
        cmocka_unit_test_setup_teardown(upper_tiers_may_be_oversubscribed, folder_setup,
                                        folder_teardown),
        cmocka_unit_test(profiles_change_the_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
