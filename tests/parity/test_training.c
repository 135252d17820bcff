/* A run follows its config, as its log shows: lengths and batches, the loss of a step, dropout. */
#include "support/train.h"

#include <math.h>

/* ---- lengths and batches ------------------------------------------------------------------- */
#define RAMP "training.global_batch_size", "16", "training.batch_ramp_start", "4"

/* Trains that many tokens and checks the rate and the batch of every step. */
static void check_run_in_tokens(test_folder *f, int64_t total) {
    char length[32], name[32];
    snprintf(length, sizeof length, "%lld tokens", (long long)total);
    snprintf(name, sizeof name, "run-%lld", (long long)total);
    train_small(f, name,
                (settings){ RAMP, "training.steps", length, "training.batch_ramp", "25%",
                            "lr_scheduler", "linear", "lr_scheduler.warmup", "4096 tokens",
                            "lr_scheduler.min_lr_factor", "0.1" });
    json_t *steps = logged_steps(f, name);
    size_t n = json_array_size(steps);
    double before = 0, batch = 0;
    for (size_t i = 0; i < n; i++) {
        double tokens = logged_number(steps, i, "tokens"), size = tokens - before;
        double rate = before < 4096 ? (before + size) / (4096 + size)
                                    : 1 - 0.9 * (before - 4096) / ((double)total - 4096);
        assert_true(fabs(logged_number(steps, i, "lr") / (0.01 * rate) - 1) < 1e-6);
        if (i + 1 < n) assert_true(logged_number(steps, i, "batch") >= batch);
        if (before >= 0.25 * (double)total && i + 1 < n)
            assert_true(logged_number(steps, i, "batch") == 16);
        batch = logged_number(steps, i, "batch");
        before = tokens;
    }
    assert_true(before == (double)total);
    assert_true(logged_number(steps, 0, "batch") == 4);
    json_decref(steps);
}

/* Lengths in tokens count tokens, also while the batch grows; the last step takes what is left. */
static void tokens_are_counted_along_the_ramp(void **state) {
    for (int64_t more = 0; more < (SANITIZED ? 1 : 4); more++)
        check_run_in_tokens(*state, 40960 + more * 4 * 64);
}

/* A ramp given in steps lasts that many, and so does the run. */
static void steps_are_counted_along_the_ramp(void **state) {
    train_small(*state, "run",
                (settings){ RAMP, "training.steps", "24", "training.batch_ramp", "12",
                            "lr_scheduler.warmup", "2048 tokens" });
    json_t *steps = logged_steps(*state, "run");
    assert_int_equal(json_array_size(steps), 24);
    assert_true(logged_number(steps, 11, "batch") < 16);
    assert_true(logged_number(steps, 12, "batch") == 16);
    size_t peak = 0;
    while (logged_number(steps, peak, "lr") < 0.01 * (1 - 1e-9)) peak++;
    assert_true(logged_number(steps, peak - 1, "tokens") >= 2048); /* the warm-up is behind it */
    assert_true(logged_number(steps, peak - 2, "tokens") < 2048);
    json_decref(steps);
}

static void events_in_tokens_follow_the_tokens(void **state) {
    train_small(*state, "run",
                (settings){ RAMP, "training.steps", "20480 tokens", "training.batch_ramp", "50%",
                            "validation.every", "2048 tokens", "validation.batches", "1" });
    json_t *steps = logged_steps(*state, "run");
    double before = 0, seen = 0;
    for (size_t i = 0; i < json_array_size(steps); i++) {
        double tokens = logged_number(steps, i, "tokens");
        bool due = floor(tokens / 2048) > floor(before / 2048);
        bool validated = json_object_get(json_array_get(steps, i), "val_loss") != NULL;
        assert_int_equal(validated, due);
        before = tokens;
        seen += validated;
    }
    assert_true(seen == 10);
    json_decref(steps);
}

static void a_run_in_tokens_resumes_and_grows(void **state) {
    settings own = { RAMP, "training.steps", "20480 tokens", "training.stop", "9000 tokens" };
    train_small(*state, "run", own);
    json_t *steps = logged_steps(*state, "run");
    double tokens = logged_number(steps, json_array_size(steps) - 1, "tokens");
    assert_true(tokens >= 9000 && tokens < 9000 + 16 * 64);
    json_decref(steps);
    own[7] = "0";
    train_small(*state, "run", own);
    own[5] = "23040 tokens";
    train_small(*state, "run", own);
    steps = logged_steps(*state, "run");
    assert_true(logged_number(steps, json_array_size(steps) - 1, "tokens") == 23040);
    json_decref(steps);
}

/* Sequences of 64 tokens, each of which begins with a document: 12 steps of 4, then of 8 until 8192 tokens, then of 16; the
 * same where the run is resumed in the middle of a stage, to the bit. */
static void a_staged_batch_resumes(void **state) {
    static const char stages[] = "[{batch: 4, until: 12}, {batch: 512 tokens, until: 8192 tokens}]";
    settings own = { "training.global_batch_size",
                     "16",
                     "training.batch_schedule",
                     stages,
                     "training.steps",
                     "30",
                     "training.stop",
                     "0",
                     "data.packing",
                     "aligned",
                     "data.documents",
                     "true" };
    train_small(*state, "whole", own);
    json_t *whole = logged_steps(*state, "whole");
    double before = 0;
    for (size_t i = 0; i < 30; i++) {
        double want = i < 12 ? 4 : before < 8192 ? 8 : 16;
        assert_true(logged_number(whole, i, "batch") == want);
        before = logged_number(whole, i, "tokens");
    }
    static const char *const stops[] = { "5", "15", "0" };
    for (size_t i = 0; i < COUNT_OF(stops); i++) {
        own[7] = stops[i];
        train_small(*state, "parts", own);
    }
    json_t *parts = logged_steps(*state, "parts");
    assert_int_equal(json_array_size(parts), 30);
    for (size_t i = 0; i < 30; i++)
        assert_true(logged_number(whole, i, "loss") == logged_number(parts, i, "loss"));
    json_decref(whole);
    json_decref(parts);
}

static void a_staged_batch_that_cannot_be_is_refused(void **state) {
    static const struct {
        const char *text, *words;
    } cases[] = {
        { "[{batch: 6, until: 12}]",
          "the batch of phase 1 of training.batch_schedule is 6 sequences, which" },
        { "[{batch: 32, until: 12}]", "more than the 16 of a full batch" },
        { "[{batch: 4, until: 12}, {batch: 8, until: 9}]",
          "phase 2 of training.batch_schedule ends after" },
    };
    static const struct {
        const char *text, *words;
    } unread[] = {
        { "[{batch: 4}]", "phase 1: until is missing" },
        { "[{until: 10%}]", "phase 1: batch is missing" },
        { "[{batch: 4, until: 10%, lr: 3}]", "unknown key \"lr\"" },
        { "[{batch: many, until: 10%}]", "phase 1: batch: expected" },
        { "[4, 8]", "phase 1: expected keys and values" },
        { "4", "expected a list of phases" },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        assert_error(try_train(*state, "no",
                               (settings){ "training.global_batch_size", "16",
                                           "training.batch_schedule", cases[i].text }),
                     cases[i].words);
    config c;
    config_init(&c);
    for (size_t i = 0; i < COUNT_OF(unread); i++)
        assert_error(config_set(&c, "training.batch_schedule", unread[i].text), unread[i].words);
    config_free(&c);
    assert_error(try_train(*state, "no",
                           (settings){ RAMP, "training.batch_schedule", "[{batch: 4, until: 5}]" }),
                 "training.batch_schedule", "it needs training.batch_ramp_start=0");
}

/* The rate keeps its final value from the end of the schedule to that of the run. */
static void a_schedule_may_end_before_the_run(void **state) {
    settings own = { "training.steps",
                     "20",
                     "lr_scheduler",
                     "linear",
                     "lr_scheduler.length",
                     "60%",
                     "lr_scheduler.warmup",
                     "2",
                     "lr_scheduler.min_lr_factor",
                     "0.1" };
    train_small(*state, "run", own);
    json_t *steps = logged_steps(*state, "run");
    for (int i = 2; i < 20; i++) {
        double rate = i < 12 ? 1 - 0.9 * (i - 2) / 10.0 : 0.1;
        assert_true(fabs(logged_number(steps, (size_t)i, "lr") / (0.01 * rate) - 1) < 1e-6);
    }
    json_decref(steps);
    own[5] = "21";
    assert_error(try_train(*state, "no", own),
                 "lr_scheduler.length is 21 steps, longer than the run of 20");
    own[5] = "2", own[7] = "3";
    assert_error(try_train(*state, "no", own), "lr_scheduler.warmup",
                 "a schedule longer than the warm-up of 3");
}

static void batch_sizes_may_be_tokens(void **state) {
    train_small(*state, "run",
                (settings){ "training.local_batch_size", "300 tokens", /* 4 sequences of 64 */
                            "training.global_batch_size", "1000 tokens",
                            "training.batch_ramp_start", "256 tokens", "training.batch_ramp",
                            "4" });
    json_t *steps = logged_steps(*state, "run");
    assert_true(logged_number(steps, 0, "batch") == 4);
    assert_true(logged_number(steps, 7, "batch") == 16);
    json_decref(steps);
    assert_error(
        try_train(*state, "no",
                  (settings){ "training.noise_scale", "true", "training.global_batch_size", "12" }),
        "first half of a step");
    assert_error(try_train(*state, "no", (settings){ "training.local_batch_size", "63 tokens" }),
                 "training.local_batch_size", "64 tokens");
    assert_error(try_train(*state, "no", (settings){ "training.global_batch_size", "6" }),
                 "global_batch_size", "multiple");
    assert_error(try_train(*state, "no", (settings){ "training.batch_ramp_start", "8" }),
                 "batch_ramp_start");
    assert_error(try_train(*state, "no", (settings){ "training.steps", "0" }), "training.steps");
}

/* ---- the loss of a step -------------------------------------------------------------------- */
/* Text whose windows have very different numbers of targets: long documents first, then such of one
 * letter, whose last token has none. */
static const char *write_uneven(test_folder *f) {
    str text = { 0 };
    for (int i = 0; i < 60; i++)
        str_add(&text, "%d is the number of this long document, %d, and again %d.\n<|endoftext|>\n",
                i, i, i);
    for (int i = 0; i < 2000; i++) str_add(&text, "%c\n<|endoftext|>\n", 'a' + i % 26);
    const char *path = folder_write(f, "uneven.txt", text.text);
    str_free(&text);
    return path;
}

/* A step's loss and gradient are means over its targets, however they fall into microbatches. */
static void microbatches_count_by_their_targets(void **state) {
    const char *path = write_uneven(*state);
    settings own = { "data.train",
                     path,
                     "data.guard",
                     "false",
                     "training.steps",
                     "4",
                     "training.seq_len",
                     "32",
                     "optimizer.name",
                     "sgd",
                     "training.max_norm",
                     "0",
                     "data.validation_fraction",
                     "0",
                     "training.local_batch_size",
                     "8",
                     "training.global_batch_size",
                     "8" };
    train_small(*state, "one", own);
    own[15] = "1";
    train_small(*state, "eight", own);
    json_t *one = logged_steps(*state, "one"), *eight = logged_steps(*state, "eight");
    for (size_t i = 0; i < 4; i++) {
        static const char *const same[] = { "loss", "grad_norm" };
        for (size_t k = 0; k < COUNT_OF(same); k++) {
            double a = logged_number(one, i, same[k]), b = logged_number(eight, i, same[k]);
            if (fabs(a / b - 1) > 1e-4)
                fail_msg("step %zu: %s is %.9g in one microbatch, %.9g in eight", i + 1, same[k], a,
                         b);
        }
    }
    json_decref(one);
    json_decref(eight);
}

/* An untrained model knows nothing of any target: what is logged is the mean over targets, not over tokens;
 * a fifth of the tokens have no target here. */
static void the_logged_loss_is_a_mean_over_targets(void **state) {
    train_small(*state, "run",
                (settings){ "data.train", write_uneven(*state), "data.guard", "false",
                            "training.steps", "1", "data.validation_fraction", "0",
                            "training.local_batch_size", "16" });
    json_t *steps = logged_steps(*state, "run");
    assert_true(fabs(logged_number(steps, 0, "loss") - log(256)) < 0.2);
    json_decref(steps);
}

/* ---- the first microbatch beside the whole batch ------------------------------------------- */
static double first_grad_norm(test_folder *f, const char *name, const char *path, const char *batch,
                              double *noise) {
    train_small(f, name,
                (settings){ "data.train", path, "data.shuffle", "false", "training.steps", "1",
                            "training.max_norm", "0", "data.validation_fraction", "0",
                            "training.global_batch_size", batch, "training.noise_scale",
                            noise ? "true" : "false" });
    json_t *steps = logged_steps(f, name);
    double norm = logged_number(steps, 0, "grad_norm");
    if (noise) *noise = logged_number(steps, 0, "noise_scale");
    json_decref(steps);
    return norm;
}

/* E|g_B|^2 = |G|^2 + noise / B for both batches, each gradient a mean over its own targets. */
static void the_noise_scale_compares_means_over_targets(void **state) {
    str text = { 0 };
    for (int i = 0; text.len < 64 * 32; i++) str_add(&text, "%d and %d, ", 7 * i % 101, i);
    const char *path = folder_write(*state, "text.txt", text.text);
    double got, b = 4 * 64, small = first_grad_norm(*state, "small", path, "4", NULL);
    double large = first_grad_norm(*state, "large", path, "8", &got);
    double g2 = 2 * large * large - small * small;
    double noise = (small * small - large * large) / (1 / b - 1 / (2 * b));
    assert_true(g2 > 0 && noise > 0);
    assert_true(fabs(got / (noise / g2) - 1) < 1e-2);
    str_free(&text);
}

/* ---- options that scale, end and refuse ---------------------------------------------------- */
static void the_learning_rate_scales_with_the_whole_batch(void **state) {
    static const struct {
        const char *scaling, *base;
    } cases[] = { { "linear", "8" }, { "sqrt", "4" } };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        train_small(*state, cases[i].scaling,
                    (settings){ "optimizer.lr_scaling", cases[i].scaling,
                                "optimizer.lr_scaling_base_batch", cases[i].base,
                                "training.global_batch_size", "16", "lr_scheduler", "constant",
                                "lr_scheduler.warmup", "0", "training.steps", "2" });
        json_t *steps = logged_steps(*state, cases[i].scaling);
        assert_true(fabs(logged_number(steps, 1, "lr") / 0.02 - 1) < 1e-6);
        json_decref(steps);
    }
}

/* 128 tokens, where 16 are the base, have half of the rate; a run that is not longer than the base has all of it. */
static void the_learning_rate_falls_with_the_length_of_the_run(void **state) {
    static const struct {
        const char *base;
        double lr;
    } cases[] = { { "16", 0.005 }, { "128", 0.01 }, { "1e6", 0.01 }, { "0", 0.01 } };
    for (int i = 0; i < 4; i++) {
        char name[8];
        snprintf(name, sizeof name, "run%d", i);
        train_small(*state, name,
                    (settings){ "training.steps", "2", "training.seq_len", "16",
                                "training.global_batch_size", "4", "lr_scheduler", "constant",
                                "lr_scheduler.warmup", "0", "optimizer.lr_base_tokens",
                                cases[i].base });
        json_t *steps = logged_steps(*state, name);
        assert_true(fabs(logged_number(steps, 1, "lr") / cases[i].lr - 1) < 1e-6);
        json_decref(steps);
    }
}

/* Of 10240 tokens where 20480 are the base, in batches of four times the base, at twice the rate: four times the decay. */
static void weight_decay_scales_with_the_length_of_the_run(void **state) {
#define SCALED_RUN                                                                                 \
    "training.steps", "20", "training.seq_len", "32", "training.global_batch_size", "16",          \
        "optimizer.lr_scaling", "sqrt", "optimizer.lr_scaling_base_batch", "4"
    static const struct {
        const char *decay, *tokens, *groups;
    } cases[] = { { "0.05", "20480", "[]" },
                  { "0.2", "0", "[]" },
                  { "0.2", "0",
                    "[{match: embed, weight_decay: 0.05, weight_decay_base_tokens: 20480}]" },
                  { "0.05", "20480", "[{match: embed, weight_decay_base_tokens: 0}]" } };
    double loss[4];
    for (int i = 0; i < 4; i++) {
        char name[8];
        snprintf(name, sizeof name, "run%d", i);
        train_small(*state, name,
                    (settings){ SCALED_RUN, "optimizer.weight_decay", cases[i].decay,
                                "optimizer.weight_decay_base_tokens", cases[i].tokens,
                                "optimizer.groups", cases[i].groups });
        json_t *steps = logged_steps(*state, name);
        loss[i] = logged_number(steps, 19, "loss");
        json_decref(steps);
    }
    assert_true(loss[0] == loss[1] && loss[1] == loss[2]);
    assert_true(loss[3] != loss[0]);
    assert_error(try_train(*state, "long",
                           (settings){ SCALED_RUN, "optimizer.weight_decay_base_tokens", "1e9" }),
                 "takes away");
}

/* A run ends with its steps, whatever training.stop is beyond them. */
static void a_stop_beyond_the_steps_is_their_end(void **state) {
    train_small(*state, "run", (settings){ "training.steps", "3", "training.stop", "5" });
    json_t *steps = logged_steps(*state, "run");
    assert_int_equal(json_array_size(steps), 3);
    json_decref(steps);
}

/* Less than a sequence, which tokens can express, is one sequence, and not a ramp that is off. */
static void a_ramp_may_start_below_one_sequence(void **state) {
    train_small(*state, "run",
                (settings){ "training.global_batch_size", "16", "training.batch_ramp_start",
                            "32 tokens", "training.batch_ramp", "6", "training.local_batch_size",
                            "1" });
    json_t *steps = logged_steps(*state, "run");
    assert_true(logged_number(steps, 0, "batch") == 1);
    assert_true(logged_number(steps, 7, "batch") == 16);
    json_decref(steps);
}

static void the_last_step_is_validated_when_none_is_due(void **state) {
    train_small(
        *state, "run",
        (settings){ "validation.every", "100", "validation.batches", "1", "training.steps", "3" });
    json_t *steps = logged_steps(*state, "run");
    for (size_t i = 0; i < 3; i++) {
        bool validated = json_object_get(json_array_get(steps, i), "val_loss") != NULL;
        assert_int_equal(validated, i == 2);
    }
    json_decref(steps);
}

/* The held-out loss of a mix is the mean by the weights of its sources. */
static void held_out_losses_count_by_weight(void **state) {
    test_folder *f = *state;
    str a = { 0 }, b = { 0 }, mix = { 0 };
    for (int i = 0; i < 400; i++) {
        str_add(&a, "The %d quick foxes jump over lazy dogs %d.\n", i, i * 7);
        str_add(&b, "%c%c%c%c%c%c%c%c", 33 + i % 91, 33 + i * 7 % 89, 33 + i * 3 % 83, 33 + i % 79,
                33 + i * 5 % 73, 33 + i * 11 % 71, 33 + i % 67, 33 + i * 13 % 61);
    }
    str_add(&mix, "sources:\n  - { name: a, path: %s, weight: 3 }\n",
            folder_write(f, "a.txt", a.text));
    str_add(&mix, "  - { name: b, path: %s, weight: 1 }\n", folder_write(f, "b.txt", b.text));
    train_small(f, "run",
                (settings){ "data.train", folder_write(f, "mix.yaml", mix.text), "training.steps",
                            "16", "validation.every", "16", "data.guard", "false",
                            "data.validation_fraction", "0.3" });
    json_t *steps = logged_steps(f, "run");
    const json_t *sets = json_object_get(json_array_get(steps, 15), "validation");
    double x = json_number_value(json_object_get(sets, "a")),
           y = json_number_value(json_object_get(sets, "b"));
    assert_true(fabs(x - y) > 0.1); /* or it would prove nothing */
    assert_true(fabs(logged_number(steps, 15, "val_loss") - (3 * x + y) / 4) < 1e-5);
    json_decref(steps);
    str_free(&a);
    str_free(&b);
    str_free(&mix);
}

/* An untrained model's loss over one batch, and over all of the held-out part. */
static double held_out_loss(test_folder *f, const char *name, const char *batches) {
    train_small(f, name,
                (settings){ "optimizer.lr", "0", "training.steps", "1", "validation.every", "1",
                            "validation.batches", batches });
    json_t *steps = logged_steps(f, name);
    double loss = logged_number(steps, 0, "val_loss");
    json_decref(steps);
    return loss;
}
static void validation_takes_as_many_batches_as_it_is_given(void **state) {
    double one = held_out_loss(*state, "one", "1"), two = held_out_loss(*state, "two", "2");
    assert_true(one != two && two != held_out_loss(*state, "all", "0"));
    assert_true(fabs(one - two) < 0.1);
}

/* A model that does not change generates something else at every step. */
static void samples_differ_from_step_to_step(void **state) {
    train_small(*state, "run",
                (settings){ "optimizer.lr", "0", "training.steps", "2", "sample.every", "1",
                            "sample.tokens", "40", "sample.temperature", "1" });
    char *events = folder_read(*state, "run/events.jsonl"), *next = NULL;
    const char *text[2] = { NULL };
    int n = 0;
    for (char *line = strtok_r(events, "\n", &next); line; line = strtok_r(NULL, "\n", &next))
        if (strstr(line, "\"event\":\"sample\"") && n < 2) text[n++] = strstr(line, "\"text\"");
    assert_int_equal(n, 2);
    assert_non_null(text[0]);
    assert_string_not_equal(text[0], text[1]);
    free(events);
}

/* Data that the guard rejects all of: the run ends after one epoch of it, not after several. */
static void a_run_on_junk_ends_after_one_epoch(void **state) {
    enum { WINDOWS = 40 };
    char text[64 * WINDOWS + 2];
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 0;
    settings own = { "data.train", folder_write(*state, "junk.txt", text),
                     "data.validation_fraction", "0" };
    err e = try_train(*state, "run", own);
    assert_non_null(e);
    const char *at = strstr(err_message(e), "none of the last ");
    assert_non_null(at);
    int64_t passed = strtoll(at + strlen("none of the last "), NULL, 10);
    assert_true(passed > WINDOWS && passed <= WINDOWS + 4);
    err_free(e);
}

/* ---- dropout ------------------------------------------------------------------------------- */
/* A run that learns nothing on the same sequences in every step; its loss varies by dropout alone. */
static json_t *steps_that_learn_nothing(test_folder *f, const char *name, const char *option) {
    str text = { 0 };
    while (text.len < 64 * 4 + 1) str_add(&text, "The number %zu. ", text.len);
    text.text[64 * 4] = 0;
    const char *path = folder_write(f, "text.txt", text.text);
    settings own = { "data.train",
                     path,
                     "data.validation",
                     path,
                     "optimizer.lr",
                     "0",
                     "data.shuffle",
                     "false",
                     "training.steps",
                     "4",
                     "validation.every",
                     "4",
                     "validation.batches",
                     "1",
                     option,
                     option ? "0.3" : NULL };
    train_small(f, name, own);
    str_free(&text);
    return logged_steps(f, name);
}

/* Every dropout draws another mask in every step, and none for the held-out loss. */
static void dropout_draws_another_mask_every_step(void **state) {
    static const char *const options[] = { "model.dropout", "model.attention_dropout",
                                           "model.embedding_dropout" };
    json_t *none = steps_that_learn_nothing(*state, "none", NULL);
    for (size_t k = 0; k < COUNT_OF(options); k++) {
        json_t *some = steps_that_learn_nothing(*state, options[k], options[k]);
        for (size_t i = 0; i + 1 < 4; i++) {
            assert_true(logged_number(none, i, "loss") == logged_number(none, i + 1, "loss"));
            assert_true(logged_number(some, i, "loss") != logged_number(some, i + 1, "loss"));
        }
        assert_true(logged_number(some, 3, "val_loss") == logged_number(none, 3, "val_loss"));
        json_decref(some);
    }
    json_decref(none);
}

#define T(name) cmocka_unit_test_setup_teardown(name, folder_setup, folder_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        T(tokens_are_counted_along_the_ramp),
        T(steps_are_counted_along_the_ramp),
        T(events_in_tokens_follow_the_tokens),
        T(a_run_in_tokens_resumes_and_grows),
        T(a_staged_batch_resumes),
        T(a_staged_batch_that_cannot_be_is_refused),
        T(a_schedule_may_end_before_the_run),
        T(batch_sizes_may_be_tokens),
        T(microbatches_count_by_their_targets),
        T(the_logged_loss_is_a_mean_over_targets),
        T(the_noise_scale_compares_means_over_targets),
        T(the_learning_rate_scales_with_the_whole_batch),
        T(the_learning_rate_falls_with_the_length_of_the_run),
        T(weight_decay_scales_with_the_length_of_the_run),
        T(a_stop_beyond_the_steps_is_their_end),
        T(a_ramp_may_start_below_one_sequence),
        T(the_last_step_is_validated_when_none_is_due),
        T(held_out_losses_count_by_weight),
        T(validation_takes_as_many_batches_as_it_is_given),
        T(samples_differ_from_step_to_step),
        T(a_run_on_junk_ends_after_one_epoch),
        T(dropout_draws_another_mask_every_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
