/* Reports are judged by runs whose truth is known: each run is healthy but for what is planted in it, and exactly that
 * must be found. Every row of findings.def is planted by some run; several lengths, noises and seeds each.
 *
 * INGOT_TEST_SEED: the first seed (1); INGOT_TEST_SEEDS: how many (3, under sanitizers 1). */
#include "support/folder.h"

#include <math.h>

#include "report/report.h"

enum { RANKS = 4, BLOCKS = 6 };
static int seeds = SANITIZED ? 1 : 3, first_seed = 1;

/* A line of metrics.jsonl. NaN: the key is left out, but for the loss, which is null then. */
typedef struct line {
    double loss, val_loss, is_spike, grad_norm, lr, clipped, update_ratio, tokens, windows, batch,
        seq_len, tok_s, step_s, data_s, eval_s, ckpt_s, comm_s, comm_hidden, bubble, host_mem,
        gpu_mem, gpu_util, gpu_throttled, gpu_ecc, gpu_xid, epoch, rejected, skipped, loss_scale,
        noise_scale, expert_load, expert_drop;
    double ratio[RANKS], block_grad[BLOCKS], activation[BLOCKS], saturated[BLOCKS], source[2];
} line;

/* Describes a run: its length, its noise, and what changes a line. */
typedef struct run {
    const char *name,
        *expected; /* names of findings, blank between them, in the order of findings.def */
    int rows;
    void (*plant)(line *l, int i, int n);
    const char *events, *launches; /* more lines of these files */
    double noise;                  /* of a loss; 0: 0.02 */
    const char *status;            /* what status.json holds */
} run;

/* Step i of n of a healthy run on four ranks, validated twenty times. */
static line healthy_line(const run *r, rng_key key, int i) {
    int n = r->rows;
    double t = (double)i / n, noise = r->noise > 0 ? r->noise : 0.02;
    uint64_t at = 64 * (uint64_t)i;
    double smooth = 2 + 5 * pow(1 + 400.0 * i / n, -0.3);
    line l = { .loss = smooth + noise * rng_normal(key, at),
               .val_loss =
                   i % MAX(n / 20, 1) ? NAN : 1.01 * smooth + 0.3 * noise * rng_normal(key, at + 1),
               .is_spike = 0,
               .grad_norm = 0.5 * exp(0.2 * rng_normal(key, at + 2)),
               .lr = 1e-3 * (t < 0.05 ? t / 0.05 : 0.55 + 0.45 * cos(3.14159 * t)),
               .update_ratio = i % 50 ? NAN : 1e-3,
               .tokens = 1000.0 * (i + 1),
               .windows = 8.0 * (i + 1),
               .batch = 8,
               .seq_len = NAN,
               .eval_s = NAN,
               .ckpt_s = i % MAX(n / 5, 1) ? NAN : 0.01,
               .comm_s = 0.02,
               .comm_hidden = 0.7,
               .bubble = NAN,
               .host_mem = 4e9 * (1 + 0.05 * fmin(t / 0.05, 1)),
               .gpu_mem = 6e10,
               .gpu_util = 97 + rng_normal(key, at + 3),
               .gpu_throttled = 0,
               .gpu_ecc = 0,
               .gpu_xid = NAN,
               .epoch = 0.9 * t,
               .rejected = NAN,
               .skipped = NAN,
               .loss_scale = NAN,
               .noise_scale = NAN,
               .expert_load = NAN,
               .expert_drop = NAN };
    l.clipped = fmin(1, 1 / l.grad_norm);
    l.step_s = 0.1 * exp(0.03 * rng_normal(key, at + 4));
    l.tok_s = 1000 / l.step_s;
    l.data_s = 0.0005;
    for (int k = 0; k < RANKS; k++)
        l.ratio[k] = i % 10 ? NAN : 1 + 0.03 * rng_normal(key, at + 8 + (uint64_t)k);
    for (int k = 0; k < BLOCKS; k++) {
        l.block_grad[k] = i % 50 ? NAN : 0.2 * exp(0.3 * rng_normal(key, at + 16 + (uint64_t)k));
        l.activation[k] = i % 50 ? NAN : 1 + 0.3 * k + t;
        l.saturated[k] = NAN;
    }
    for (int k = 0; k < 2; k++)
        l.source[k] = smooth + 2 * noise * rng_normal(key, at + 24 + (uint64_t)k);
    return l;
}

/* ---- what is planted ------------------------------------------------------------------------------- */
#define PLANT(name) static void plant_##name(line *l, int i, int n)
static double after(int i, int n, double from) {
    return fmax(0, ((double)i / n - from) / (1 - from));
}

PLANT(plateau) {
    if (3 * i > n) l->loss += 5 * (pow(1 + 133.3, -0.3) - pow(1 + 400.0 * i / n, -0.3));
}
PLANT(slow_rank) { l->ratio[2] *= 1.5; }
PLANT(slow_rank_at_times) { l->ratio[1] *= i % 100 < 40 ? 2 : 1; }
PLANT(uneven_ranks) {
    for (int k = 0; k < RANKS; k++) l->ratio[k] *= (i / 10 + k) % 5 < 2 ? 1.6 : 1;
}
PLANT(slow_rank_late) { l->ratio[3] *= 3 * i > n ? 1.3 : 1; }
PLANT(halved) {
    if (2 * i > n) l->step_s *= 2, l->tok_s /= 2;
}
PLANT(slower_and_slower) { l->step_s *= 1 + after(i, n, 0.2), l->tok_s /= 1 + after(i, n, 0.2); }
PLANT(clipped) { l->grad_norm *= 8, l->clipped = 1 / l->grad_norm; }
PLANT(spike_with_alert) {
    if (i == n * 2 / 3) l->loss += 2, l->is_spike = 1, l->source[1] += 4;
}
PLANT(spike_without_alert) {
    if (i == n * 2 / 3) l->loss += 2;
}
PLANT(spike_that_lasts) {
    int k = i - n / 2;
    if (k >= 0 && k < 30) l->loss += k < 3 ? k + 1 : 3 * exp(-(k - 3) / 6.0);
}
PLANT(spikes) {
    if (i % (n / 12) == n / 24 && i > n / 6) l->loss += 1.5, l->is_spike = 1;
}
PLANT(divergence) {
    l->loss += 3 * after(i, n, 0.7);
    l->val_loss += 3 * after(i, n, 0.7);
}
PLANT(fast_divergence) {
    if (i > n - n / 10) l->loss += 4, l->val_loss += 4;
}
PLANT(nan_at_end) {
    if (i > n - 4) l->loss = NAN;
}
PLANT(nan_within) {
    if (i == n / 2) l->loss = NAN;
}
PLANT(data_stall) { l->data_s = 0.2 * l->step_s; }
PLANT(memory_leak) { l->host_mem *= 1 + (double)i / n; }
PLANT(late_memory_leak) { l->host_mem *= 1 + 1.5 * fmax(0, (double)i / n - 0.5); }
PLANT(gpu_memory_leak) { l->gpu_mem *= 1 + 0.5 * i / n; }
PLANT(overfitting) { l->val_loss *= 1 + 0.4 * after(i, n, 0.5); }
PLANT(mild_overfitting) { l->val_loss += 0.3 * after(i, n, 0.4) + 0.6 * (double)i / n - 0.24; }
PLANT(low_rate) { l->update_ratio *= 1e-2; }
PLANT(high_rate) { l->update_ratio *= 200; }
PLANT(zero_rate) {
    if (4 * i > 3 * n) l->lr = 0;
}
PLANT(rising_gradient) {
    l->grad_norm *= 1 + 15 * after(i, n, 0.4);
    l->clipped = 1;
}
PLANT(dead_gradient) {
    if (2 * i > n) l->grad_norm *= 1e-5;
}
PLANT(wild_block) { l->block_grad[3] *= 40; }
PLANT(growing_activations) { l->activation[5] *= 1 + 100 * (double)i / n; }
PLANT(skipped) { l->skipped = i % 20 == 7; }
PLANT(loss_scale) { l->loss_scale = fmax(1, 65536 * pow(0.5, floor(30.0 * i / n))); }
PLANT(fp8) { l->saturated[1] = i % 50 ? NAN : 0.4; }
PLANT(collapsed_experts) {
    l->expert_load = 1.5 + 5 * (double)i / n;
    l->expert_drop = 0.01;
}
PLANT(dropping_experts) {
    l->expert_load = 2;
    l->expert_drop = 0.3;
}
PLANT(rejected) { l->rejected = i % 4 == 0; }
PLANT(small_batch) { l->noise_scale = 50000; }
PLANT(large_batch) { l->noise_scale = 20; }
PLANT(stalls) {
    if (i % (n / 8) == n / 16) l->step_s *= 60, l->tok_s /= 60;
}
PLANT(checkpoints) { l->ckpt_s = i % 10 ? NAN : 0.2; }
PLANT(validations) { l->eval_s = i % 10 ? NAN : 0.3; }
PLANT(communication) { l->comm_s = 0.08, l->comm_hidden = 0.2; }
PLANT(bubble) { l->bubble = 0.45; }
PLANT(throttled) { l->gpu_throttled = i % 2; }
PLANT(idle_gpu) { l->gpu_util = 55; }
PLANT(ecc) { l->gpu_ecc = 3 * i > n ? 2 : 0; }
PLANT(xid) {
    if (2 * i > n) l->gpu_xid = 79;
}
PLANT(epochs) { l->epoch = 9.0 * i / n; }
PLANT(two) {
    plant_slow_rank(l, i, n);
    plant_data_stall(l, i, n);
}
PLANT(rollback) {}

/* and of healthy runs, what they may do */
PLANT(lightly_clipped) { l->grad_norm *= 3, l->clipped = fmin(1, 1 / l->grad_norm); }
PLANT(memory_by_steps) { l->host_mem *= 4 * i > 3 * n ? 2 : 5 * i > 2 * n ? 1.5 : 1; }
PLANT(nothing) {}
PLANT(ramp) { l->batch = 4 * i < n ? 2 : 8, l->tok_s *= 4 * i < n ? 1.6 : 1; }
PLANT(curriculum) { l->seq_len = 3 * i < n ? 64 : 256, l->tok_s *= 3 * i < n ? 2 : 1; }
PLANT(early_overflow) {
    if (i < n / 40) l->skipped = 1;
    l->loss_scale = 4096;
}
PLANT(balanced_experts) { l->expert_load = 1.7, l->expert_drop = 0.02; }
PLANT(noise_scale) { l->noise_scale = 3000; }
PLANT(minimal) {
    line bare = { .loss = l->loss,
                  .grad_norm = l->grad_norm,
                  .lr = l->lr,
                  .tokens = l->tokens,
                  .step_s = l->step_s,
                  .tok_s = l->tok_s };
    double *rest = &bare.val_loss;
    for (double *v = rest; v < &bare.source[0]; v++) *v = NAN;
    bare.grad_norm = l->grad_norm, bare.lr = l->lr, bare.tokens = l->tokens,
    bare.step_s = l->step_s, bare.tok_s = l->tok_s;
    *l = bare;
}
PLANT(few_stalls) {
    if (i == n / 2) l->step_s *= 5, l->tok_s /= 5;
}

#define DIED                                                                                       \
    "{\"event\":\"failure\",\"step\":900,\"time\":1,\"message\":\"step 900: nonfinite again, after 3 rollbacks\"}\n"
#define ROLLBACK                                                                                   \
    "{\"event\":\"rollback\",\"step\":700,\"time\":1,\"alert\":\"loss_spike\",\"from_step\":740,\"attempt\":1}\n"
#define SPIKE_AT(step)                                                                             \
    "{\"event\":\"alert\",\"alert\":\"loss_spike\",\"step\":" #step                                \
    ",\"documents\":[{\"source\":\"web\",\"document\":41,\"loss\":9}]}\n"
#define RESUME  "{\"event\":\"resume\",\"step\":500,\"time\":1}\n"
#define ATTEMPT "{\"attempt\":1,\"time\":1,\"status\":79,\"rank\":3,\"cause\":\"lost rank 3\"}\n"
#define ENDED   "{\"attempt\":2,\"time\":2,\"status\":0,\"rank\":-1,\"cause\":\"\"}\n"

/* Of a process on a machine that has been silent for long. */
#define STATUS(state)                                                                              \
    "{\"state\":\"" state                                                                          \
    "\",\"step\":1000,\"steps\":2000,\"checkpoint\":900,\"updated\":1000,\"step_s\":0.1,"          \
    "\"pid\":7,\"pid_began\":7,\"host\":\"node7\",\"machine\":\"another\"}"

static const run runs[] = {
    /* healthy: nothing is found */
    { "healthy at 60 steps", "", 60, plant_nothing },
    { "healthy at 200 steps", "", 200, plant_nothing },
    { "healthy at 2,000 steps", "", 2000, plant_nothing },
    { "healthy at 20,000 steps", "", 20000, plant_minimal },
    { "healthy at 200,000 steps", "", 200000, plant_minimal },
    { "noisy small batch", "", 1000, plant_nothing, .noise = 0.3 },
    { "noisy small batch, long", "", 10000, plant_minimal, .noise = 0.5 },
    { "lightly clipped", "", 1000, plant_lightly_clipped },
    { "batch ramp", "", 1000, plant_ramp },
    { "sequence curriculum", "", 1000, plant_curriculum },
    { "overflows at the start", "", 1000, plant_early_overflow },
    { "balanced experts", "", 1000, plant_balanced_experts },
    { "noise scale near the batch", "", 1000, plant_noise_scale },
    { "resumed twice", "", 1000, plant_nothing, RESUME RESUME, ENDED },
    { "one long step", "", 1000, plant_few_stalls },
    { "restarted once", "", 1000, plant_nothing, RESUME, ATTEMPT ENDED },
    { "failed, then continued", "", 1000, plant_nothing, DIED RESUME },
    { "memory of longer sequences", "", 1000, plant_memory_by_steps },
    { "ranks that are slow in turns", "", 1000, plant_uneven_ranks },
    { "finished", "", 1000, plant_nothing, .status = STATUS("finished") },
    /* planted */
    { "died", "died", 1000, plant_nothing, DIED },
    { "killed", "died", 1000, plant_nothing, .status = STATUS("running") },
    { "died after rollbacks", "died rollbacks", 1000, plant_rollback,
      ROLLBACK ROLLBACK ROLLBACK DIED },
    { "restarts", "restarts", 1000, plant_nothing, RESUME, ATTEMPT ATTEMPT ATTEMPT ENDED },
    { "rollback", "rollbacks", 1000, plant_rollback, ROLLBACK },
    { "NaN at the end", "not_finite", 500, plant_nan_at_end },
    { "NaN within", "not_finite", 500, plant_nan_within },
    { "divergence", "diverged", 1000, plant_divergence },
    { "divergence in the last tenth", "diverged", 1000, plant_fast_divergence },
    { "spike with an alert", "spikes", 1000, plant_spike_with_alert },
    { "spike without alerts", "spikes", 1000, plant_spike_without_alert },
    { "spike that lasts, without alerts", "spikes", 2000, plant_spike_that_lasts },
    { "many spikes", "spikes", 2400, plant_spikes },
    { "spikes of one document", "spikes", 2400, plant_spikes,
      SPIKE_AT(501) SPIKE_AT(701) SPIKE_AT(901) SPIKE_AT(1101) SPIKE_AT(1301) SPIKE_AT(1501)
          SPIKE_AT(1701) SPIKE_AT(1901) SPIKE_AT(2101) SPIKE_AT(2301) },
    { "plateau of 1,800 steps", "plateau", 2700, plant_plateau },
    { "plateau of a long run", "plateau", 30000, plant_plateau },
    { "plateau of a noisy run", "plateau", 9000, plant_plateau, .noise = 0.12 },
    { "overfitting", "overfits", 1000, plant_overfitting },
    { "mild overfitting", "overfits", 1000, plant_mild_overfitting },
    { "nine epochs", "repeated_data", 1000, plant_epochs },
    { "too low a rate", "rate_too_low", 1000, plant_low_rate },
    { "too high a rate", "rate_too_high", 1000, plant_high_rate },
    { "a rate of 0", "rate_is_zero", 1000, plant_zero_rate },
    { "every step clipped", "always_clipped", 1000, plant_clipped },
    { "rising gradient", "gradient_rises", 1000, plant_rising_gradient },
    { "vanished gradient", "gradient_vanished", 1000, plant_dead_gradient },
    { "one wild block", "uneven_blocks", 1000, plant_wild_block },
    { "growing activations", "activations_grow", 1000, plant_growing_activations },
    { "skipped updates", "skipped_updates", 1000, plant_skipped },
    { "collapsed loss scale", "loss_scale_fell", 1000, plant_loss_scale },
    { "saturated fp8", "fp8_saturated", 1000, plant_fp8 },
    { "collapsed experts", "experts_unbalanced", 1000, plant_collapsed_experts },
    { "dropping experts", "experts_drop", 1000, plant_dropping_experts },
    { "rejected sequences", "rejected_sequences", 1000, plant_rejected },
    { "too small a batch", "batch_too_small", 1000, plant_small_batch },
    { "too large a batch", "batch_too_large", 1000, plant_large_batch },
    { "slow rank", "slow_rank", 1000, plant_slow_rank },
    { "slow rank since a third", "slow_rank", 1000, plant_slow_rank_late },
    { "slow rank at times", "slow_rank", 1000, plant_slow_rank_at_times },
    { "halved throughput", "throughput_fell", 1000, plant_halved },
    { "slower and slower", "throughput_fell", 1000, plant_slower_and_slower },
    { "data stall", "data_stall", 1000, plant_data_stall },
    { "stalls", "stalls", 1000, plant_stalls },
    { "slow checkpoints", "checkpoint_time", 1000, plant_checkpoints },
    { "long validations", "evaluation_time", 1000, plant_validations },
    { "communication", "communication", 1000, plant_communication },
    { "pipeline bubble", "pipeline_bubble", 1000, plant_bubble },
    { "memory growth", "memory_grows", 1000, plant_memory_leak },
    { "memory growth since half", "memory_grows", 1000, plant_late_memory_leak },
    { "GPU memory growth", "memory_grows", 1000, plant_gpu_memory_leak },
    { "throttled GPU", "gpu_throttled", 1000, plant_throttled },
    { "idle GPU", "gpu_idle", 1000, plant_idle_gpu },
    { "ECC errors", "gpu_errors", 1000, plant_ecc },
    { "Xid error", "gpu_errors", 1000, plant_xid },
    { "slow rank and data stall", "slow_rank data_stall", 1000, plant_two },
};

/* ---- writing a run ----------------------------------------------------------------------------------- */
static void add_number(str *s, const char *key, double v) {
    if (isfinite(v)) str_add(s, ",\"%s\":%.7g", key, v);
}
static void add_group(str *s, const char *outer, const char *inner, const double *v, int n) {
    if (!isfinite(v[0]) && !isfinite(v[n - 1]) && !isfinite(v[1])) return;
    str_add(s, ",\"%s\":{\"%s\":{", outer, inner);
    const char *comma = "";
    for (int k = 0; k < n; k++)
        if (isfinite(v[k])) str_add(s, "%s\"%d\":%.6g", comma, k, v[k]), comma = ",";
    str_add(s, "}}");
}
static void add_blocks(str *s, const line *l) {
    const struct {
        const char *name;
        const double *v;
    } groups[] = { { "grad_norm", l->block_grad },
                   { "activation_rms", l->activation },
                   { "fp8_saturated", l->saturated } };
    const char *comma = "";
    str_add(s, ",\"blocks\":{");
    for (size_t g = 0; g < COUNT_OF(groups); g++) {
        bool any = false;
        for (int k = 0; k < BLOCKS; k++) {
            if (!isfinite(groups[g].v[k])) continue;
            str_add(s, any ? "," : "%s\"%s\":{", comma, groups[g].name);
            str_add(s, "\"%d\":%.6g", k, groups[g].v[k]);
            any = true, comma = ",";
        }
        if (any) str_add(s, "}");
    }
    str_add(s, "}");
}

static void add_line(str *s, const line *l, int i) {
    str_add(s, "{\"step\":%d,\"tokens\":%.0f,\"loss\":", i + 1, l->tokens);
    str_add(s, isfinite(l->loss) ? "%.6f" : "null", l->loss);
    const struct {
        const char *key;
        double value;
    } numbers[] = {
#define NUMBER(key) { #key, l->key }
        NUMBER(val_loss),      NUMBER(is_spike),     NUMBER(grad_norm),  NUMBER(lr),
        NUMBER(clipped),       NUMBER(update_ratio), NUMBER(windows),    NUMBER(batch),
        NUMBER(seq_len),       NUMBER(tok_s),        NUMBER(step_s),     NUMBER(data_s),
        NUMBER(eval_s),        NUMBER(ckpt_s),       NUMBER(comm_s),     NUMBER(comm_hidden),
        NUMBER(bubble),        NUMBER(host_mem),     NUMBER(gpu_mem),    NUMBER(gpu_util),
        NUMBER(gpu_throttled), NUMBER(gpu_ecc),      NUMBER(gpu_xid),    NUMBER(epoch),
        NUMBER(rejected),      NUMBER(skipped),      NUMBER(loss_scale), NUMBER(noise_scale),
        NUMBER(expert_load),   NUMBER(expert_drop)
#undef NUMBER
    };
    for (size_t k = 0; k < COUNT_OF(numbers); k++) add_number(s, numbers[k].key, numbers[k].value);
    add_group(s, "ranks", "ratio", l->ratio, RANKS);
    add_blocks(s, l);
    if (isfinite(l->source[0]) && l->source[0] != 0)
        str_add(s, ",\"sources\":{\"a\":{\"loss\":%.5f},\"b\":{\"loss\":%.5f}}", l->source[0],
                l->source[1]);
    str_add(s, "}\n");
}

static run_report *report_on(test_folder *f, const run *r, int seed) {
    rng_key key = rng_key_of((uint64_t)seed, hash_str(r->name));
    str text = { 0 };
    for (int i = 0; i < r->rows; i++) {
        line l = healthy_line(r, key, i);
        r->plant(&l, i, r->rows);
        add_line(&text, &l, i);
    }
    folder_write(f, "metrics.jsonl", text.text);
    folder_write(f, "events.jsonl", r->events ? r->events : "");
    folder_write(f, "launch.jsonl", r->launches ? r->launches : "");
    folder_write(f, "status.json", r->status ? r->status : "");
    str_free(&text);
    run_report *report = NULL;
    assert_ok(report_read(in_folder(f, "."), &report));
    return report;
}

/* ---- tests ------------------------------------------------------------------------------------------- */
static void what_is_planted_is_found_and_nothing_else(void **state) {
    int wrong = 0;
    for (size_t i = 0; i < COUNT_OF(runs); i++)
        for (int k = 0; k < (runs[i].rows > 10000 ? 1 : seeds); k++) {
            int seed = first_seed + k;
            run_report *r = report_on(*state, &runs[i], seed);
            str found = { 0 };
            str_add(&found, "%s", "");
            for (int j = 0; j < r->findings; j++)
                str_add(&found, j ? " %s" : "%s", r->finding[j].name);
            if (strcmp(found.text, runs[i].expected)) {
                print_message("%s, seed %d: found \"%s\", planted \"%s\"\n", runs[i].name, seed,
                              found.text, runs[i].expected);
                for (int j = 0; j < r->findings; j++)
                    print_message("    %s\n", r->finding[j].evidence);
                wrong++;
            }
            str_free(&found);
            report_free(r);
        }
    assert_int_equal(wrong, 0);
}

/* A finding that no run shows is not known to work. */
static void every_finding_is_planted(void **state) {
    static const char *const names[] = {
#define FINDING(name, remedy) #name,
#include "report/findings.def"
    };
    for (size_t k = 0; k < COUNT_OF(names); k++) {
        bool planted = false;
        for (size_t i = 0; i < COUNT_OF(runs); i++)
            planted |= strstr(runs[i].expected, names[k]) != NULL;
        if (!planted) fail_msg("no run of this test plants %s", names[k]);
    }
}

/* Evidence names the steps, ranks and sources that were planted. */
static void evidence_names_the_place(void **state) {
    static const struct {
        const char *name, *words;
    } cases[] = { { "plateau of 1,800 steps", "since step " },
                  { "slow rank", "rank 2 computes for 1.5" },
                  { "spike with an alert", "at step 667" },
                  { "spike with an alert", "source b" },
                  { "spikes of one document", "document 41 of web is the worst of 10 of them" },
                  { "one wild block", "block 3" },
                  { "halved throughput", "around step 501" },
                  { "died after rollbacks", "nonfinite again" },
                  { "killed", "no sign of life from node7" },
                  { "spike that lasts, without alerts", "at step 1003" },
                  { "slow rank at times", "a quarter of the steps" },
                  { "restarts", "lost rank 3" } };
    for (size_t c = 0; c < COUNT_OF(cases); c++)
        for (size_t i = 0; i < COUNT_OF(runs); i++) {
            if (strcmp(runs[i].name, cases[c].name)) continue;
            run_report *r = report_on(*state, &runs[i], 1);
            bool named = false;
            for (int k = 0; k < r->findings; k++)
                named |= strstr(r->finding[k].evidence, cases[c].words) != NULL;
            if (!named)
                fail_msg("%s: no evidence has \"%s\": %s", cases[c].name, cases[c].words,
                         r->findings ? r->finding[0].evidence : "nothing was found");
            report_free(r);
        }
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_setup, folder_teardown)
int main(void) {
    const char *first = getenv("INGOT_TEST_SEED"), *count = getenv("INGOT_TEST_SEEDS");
    if (first) first_seed = atoi(first);
    if (count) seeds = atoi(count);
    const struct CMUnitTest tests[] = {
        IN_FOLDER(what_is_planted_is_found_and_nothing_else),
        cmocka_unit_test(every_finding_is_planted),
        IN_FOLDER(evidence_names_the_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
