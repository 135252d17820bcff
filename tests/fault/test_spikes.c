/* Trouble planted at known steps: each alert fires at its step and names the data, each policy does what it
 * says, a run that rolled back ends as one that never met the poison, and healthy runs raise nothing.
 *
 * Documents are lines of a corpus with little entropy; poison is a long run of random bytes in one place.
 * Windows are read in order, so that the step that meets it is known. */
#include "support/train.h"

#include <math.h>
#include <signal.h>
#include <sys/stat.h>

enum { SEQ = 32, ROWS = 4, STEPS = 120, POISONED = 95, STEP_BYTES = SEQ * ROWS };

/* ---- corpora ------------------------------------------------------------------------------------------- */
static void add_text(str *s, size_t bytes, uint64_t seed) {
    static const char *const words[] = {
        "the ", "cat ", "sat ", "on ", "a ", "mat ", "and ", "ran "
    };
    size_t end = s->len + bytes;
    if (!bytes) return;
    rng_key key = rng_key_of(seed, 1);
    for (uint64_t i = 0; s->len < end; i++)
        str_add(s, "%s", words[rng_below(key, i, COUNT_OF(words))]);
    s->len = end;
    s->text[end] = '\0';
}

/* Printable, so that the file is one document of text. */
static void add_noise(str *s, size_t bytes) {
    rng_key key = rng_key_of(99, 2);
    for (size_t i = 0; i < bytes; i++) {
        char c = (char)(33 + rng_below(key, i, 94));
        str_add_bytes(s, &c, 1);
    }
}

/* A corpus of `steps` steps; the data of step `poisoned` (0: of none) and of the next ones is noise. */
static const char *write_corpus(test_folder *f, const char *name, int steps, int poisoned,
                                int length) {
    str s = { 0 };
    if (!poisoned) length = 0;
    add_text(&s, (size_t)(poisoned ? poisoned - 1 : 0) * STEP_BYTES, 5);
    add_noise(&s, (size_t)length * STEP_BYTES);
    add_text(&s, (size_t)(steps - (poisoned ? poisoned - 1 : 0) - length + 1) * STEP_BYTES, 6);
    folder_write(f, name, s.text);
    str_free(&s);
    return in_folder(f, name);
}

/* ---- runs ------------------------------------------------------------------------------------------------ */
static err try_run_on(test_folder *f, const char *name, const char *data, int ranks, settings own) {
    settings common = { "model.preset",
                        "tiny",
                        "model.layers",
                        "2",
                        "model.dim",
                        "32",
                        "model.heads",
                        "2",
                        "model.kv_heads",
                        "2",
                        "model.head_dim",
                        "16",
                        "model.ffn_dim",
                        "64",
                        "precision",
                        "fp32",
                        "device.kind",
                        "cpu",
                        "training.steps",
                        "120",
                        "training.seq_len",
                        "32",
                        "training.threads",
                        "1",
                        "training.seed",
                        "3",
                        "training.local_batch_size",
                        ranks == 2 ? "2" : "4",
                        "training.global_batch_size",
                        "4",
                        "data.shuffle",
                        "false",
                        "data.guard",
                        "false",
                        "data.validation_fraction",
                        "0",
                        "optimizer.lr",
                        "0.003",
                        "lr_scheduler.warmup",
                        "0",
                        "metrics.log_every",
                        "0",
                        "metrics.tensorboard_every",
                        "0",
                        "validation.every",
                        "0",
                        "checkpoint.every",
                        "10",
                        "checkpoint.weights_every",
                        "0",
                        "data.train",
                        data };
    log_set_level(LOG_ERROR);
    err e = run_on_ranks(f, name, common, own, ranks);
    log_set_level(LOG_WARN);
    return e;
}
static err try_run(test_folder *f, const char *name, const char *data, settings own) {
    return try_run_on(f, name, data, 1, own);
}
#define run(f, name, data, ...) assert_ok(try_run(f, name, data, (settings)__VA_ARGS__))

/* ---- events ------------------------------------------------------------------------------------------------ */
static json_t *events_of(test_folder *f, const char *run) {
    char path[64], *next = NULL;
    snprintf(path, sizeof path, "%s/events.jsonl", run);
    char *text = folder_read(f, path);
    json_t *list = json_array();
    for (char *line = strtok_r(text, "\n", &next); line; line = strtok_r(NULL, "\n", &next))
        json_array_append_new(list, json_loads(line, 0, NULL));
    free(text);
    return list;
}

static const char *text_of(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}
static int64_t number_of(const json_t *o, const char *key) {
    return json_integer_value(json_object_get(o, key));
}

/* @return the i-th event of this kind and alert ("": any), NULL: there are fewer. */
static const json_t *find_event(const json_t *events, const char *kind, const char *alert,
                                int nth) {
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i);
        if (strcmp(text_of(e, "event"), kind) || (*alert && strcmp(text_of(e, "alert"), alert)))
            continue;
        if (nth-- == 0) return e;
    }
    return NULL;
}

static void assert_no_alert(test_folder *f, const char *run) {
    json_t *events = events_of(f, run);
    const json_t *e = find_event(events, "alert", "", 0);
    if (e)
        fail_msg("%s: step %d: %s: %s", run, (int)number_of(e, "step"), text_of(e, "alert"),
                 text_of(e, "message"));
    json_decref(events);
}

static void assert_same_weights(test_folder *f, const char *a, const char *b, int step) {
    char path[128], *x, *y;
    size_t n, m;
    static const char *const files[] = { "model.safetensors", "optim.safetensors" };
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        snprintf(path, sizeof path, "%s/checkpoints/step-%08d/%s", a, step, files[i]);
        assert_ok(io_read(in_folder(f, path), 1 << 28, &x, &n));
        snprintf(path, sizeof path, "%s/checkpoints/step-%08d/%s", b, step, files[i]);
        assert_ok(io_read(in_folder(f, path), 1 << 28, &y, &m));
        if (n != m || memcmp(x, y, n)) fail_msg("%s of %s and %s differ", files[i], a, b);
        free(x);
        free(y);
    }
}

/* ---- the alert ------------------------------------------------------------------------------------------------ */
static void a_poisoned_step_is_named(void **state) {
    test_folder *f = *state;
    const char *data = write_corpus(f, "bad.txt", STEPS, POISONED, 1);
    char command[200];
    snprintf(command, sizeof command, "cat >> %s", in_folder(f, "sent"));
    run(f, "a", data, { "alerts.command", command });
    json_t *events = events_of(f, "a");
    const json_t *e = find_event(events, "alert", "loss_spike", 0);
    assert_non_null(e);
    assert_int_equal(number_of(e, "step"), POISONED);
    assert_int_equal(number_of(e, "from_sequence"), (POISONED - 1) * ROWS);
    assert_int_equal(number_of(e, "to_sequence"), POISONED * ROWS);
    const json_t *documents = json_object_get(e, "documents");
    assert_int_equal(json_array_size(documents), ROWS);
    const json_t *first = json_array_get(documents, 0);
    assert_int_equal(number_of(first, "token") / STEP_BYTES, POISONED - 1);
    assert_string_equal(text_of(first, "source"), data);
    assert_true(strlen(text_of(first, "text")) == 32 && strlen(text_of(e, "remedy")) > 20);
    assert_string_equal(text_of(e, "policy"), "log");
    assert_null(find_event(events, "alert", "loss_spike", 1));
    json_t *steps = logged_steps(f, "a");
    for (int i = 1; i <= STEPS; i++) {
        const json_t *spike = json_object_get(json_array_get(steps, (size_t)i - 1), "is_spike");
        if (i <= 10) assert_null(spike);
        if (i > 10 && i <= POISONED) assert_true(json_number_value(spike) == (i == POISONED));
    }
    char *sent = folder_read(f, "sent"); /* by the end of the run */
    json_t *delivered = json_loads(sent, JSON_DISABLE_EOF_CHECK, NULL);
    assert_string_equal(text_of(delivered, "alert"), "loss_spike");
    assert_string_equal(text_of(delivered, "run"), in_folder(f, "a"));
    json_decref(delivered);
    free(sent);
    json_decref(steps);
    json_decref(events);
}

/* ---- skip --------------------------------------------------------------------------------------------------- */
/* The weights after the poisoned step are those before it, and the optimizer's count does not rise. */
static void a_skipped_update_changes_nothing(void **state) {
    test_folder *f = *state;
    const char *data = write_corpus(f, "bad.txt", STEPS, POISONED, 1);
    static const char *const policies[] = { "loss_spike=skip", "grad_explosion=skip" };
    static const char *const limits[] = { "", "grad_explosion=1.3" };
    run(f, "plain", data,
        { "checkpoint.every", "94", "checkpoint.keep_latest_k", "0" }); /* before POISONED */
    for (int k = 0; k < (SANITIZED ? 1 : 2); k++) {
        char name[8];
        snprintf(name, sizeof name, "b%d", k);
        run(f, name, data,
            { "alerts.policy", policies[k], "monitor.thresholds", limits[k], "checkpoint.every",
              "1", "checkpoint.keep_latest_k", "0", "training.max_norm", k ? "0" : "1" });
        if (k == 0) assert_same_weights(f, "plain", name, POISONED - 1);
        json_t *steps = logged_steps(f, name);
        int skipped = 0;
        for (int i = 1; i <= STEPS; i++) {
            const json_t *v = json_object_get(json_array_get(steps, (size_t)i - 1), "skipped");
            if (!(json_number_value(v) > 0)) continue;
            skipped++;
            char a[96], b[96], *x, *y;
            size_t n, m;
            snprintf(a, sizeof a, "%s/checkpoints/step-%08d/model.safetensors", name, i - 1);
            snprintf(b, sizeof b, "%s/checkpoints/step-%08d/model.safetensors", name, i);
            assert_ok(io_read(in_folder(f, a), 1 << 28, &x, &n));
            assert_ok(io_read(in_folder(f, b), 1 << 28, &y, &m));
            assert_true(n == m && !memcmp(x, y, n));
            free(x);
            free(y);
        }
        if (k == 0) assert_int_equal(skipped, 1);
        assert_true(skipped >= 1);
        json_decref(steps);
    }
}

/* ---- cool down ------------------------------------------------------------------------------------------------ */
static void a_cool_down_lowers_the_rate_and_returns(void **state) {
    test_folder *f = *state;
    const char *data = write_corpus(f, "bad.txt", STEPS, 80, 1);
    settings own = { "alerts.policy",          "loss_spike=cool_down",
                     "alerts.cool_down_steps", "8",
                     "lr_scheduler",           "constant" };
    assert_ok(try_run(f, "c", data, own));
    json_t *steps = logged_steps(f, "c");
    for (int i = 1; i <= STEPS; i++) {
        double lr = logged_number(steps, (size_t)i - 1, "lr") / 0.003;
        double want = i <= 80 || i > 96 ? 1 : i <= 88 ? 0.1 : 0.1 + 0.9 * (i - 88) / 8;
        if (fabs(lr - want) > 1e-6) fail_msg("step %d: %g, expected %g", i, lr, want);
    }
    json_decref(steps);
    /* stopped in the middle of it, the run continues as it would have */
    settings half = { "alerts.policy",          "loss_spike=cool_down",
                      "alerts.cool_down_steps", "8",
                      "lr_scheduler",           "constant",
                      "training.stop",          "85" };
    assert_ok(try_run(f, "d", data, half));
    assert_ok(try_run(f, "d", data, own));
    assert_same_weights(f, "c", "d", STEPS);
}

/* ---- rollback --------------------------------------------------------------------------------------------------- */
/* With one step's data skipped, the run ends bit for bit as one on a corpus that lacks that data. */
static void a_rollback_ends_as_if_the_poison_had_not_been(void **state) {
    test_folder *f = *state;
    const char *bad = write_corpus(f, "bad.txt", STEPS + 4, POISONED, 1);
    settings own = { "alerts.policy", "loss_spike=rollback", "alerts.skip_steps", "1" };
    assert_ok(try_run(f, "healed", bad, own));
    json_t *events = events_of(f, "healed");
    const json_t *e = find_event(events, "rollback", "loss_spike", 0);
    assert_non_null(e);
    assert_int_equal(number_of(e, "step"), 90);
    assert_int_equal(number_of(e, "from_step"), POISONED);
    assert_null(find_event(events, "alert", "loss_spike", 1));
    json_decref(events);
    json_t *steps = logged_steps(f, "healed"); /* each step once */
    assert_int_equal(json_array_size(steps), STEPS);
    assert_true(logged_number(steps, STEPS - 1, "spike_count") == 0);
    json_decref(steps);
    char skip[64];
    snprintf(skip, sizeof skip, "%d-%d", (POISONED - 1) * ROWS, POISONED * ROWS);
    run(f, "never", bad, { "data.skip", skip });
    assert_same_weights(f, "healed", "never", STEPS);
    assert_ok(try_run(f, "later", bad,
                      (settings){ "alerts.policy", "loss_spike=rollback", "alerts.skip_steps", "1",
                                  "training.stop", "105" }));
    assert_ok(try_run(f, "later", bad, own)); /* resumed after it */
    assert_same_weights(f, "healed", "later", STEPS);
}

/* After a rollback the run has consumed fewer sequences than it has passed: alerts, documents and the next rollback
 * name the same ones, by their place in the data. */
static void alerts_after_a_rollback_name_the_data_that_is_skipped(void **state) {
    test_folder *f = *state;
    enum { SECOND = 170 };
    str s = { 0 };
    add_text(&s, (POISONED - 1) * STEP_BYTES, 5);
    add_noise(&s, STEP_BYTES);
    add_text(&s, (SECOND - POISONED - 1) * STEP_BYTES, 6);
    add_noise(&s, STEP_BYTES);
    add_text(&s, 20 * STEP_BYTES, 7);
    folder_write(f, "twice.txt", s.text);
    str_free(&s);
    run(f, "twice", in_folder(f, "twice.txt"),
        { "alerts.policy", "loss_spike=rollback", "alerts.skip_steps", "1", "training.steps",
          "175" });
    json_t *events = events_of(f, "twice");
    static const int places[] = { POISONED, SECOND };
    for (int i = 0; i < 2; i++) {
        const json_t *alert = find_event(events, "alert", "loss_spike", i);
        const json_t *back = find_event(events, "rollback", "loss_spike", i);
        assert_non_null(alert);
        assert_non_null(back);
        int from = (places[i] - 1) * ROWS;
        const json_t *range = json_object_get(back, "sequences");
        assert_int_equal(number_of(alert, "step"), places[i] - i);
        assert_int_equal(number_of(alert, "from_sequence"), from);
        assert_int_equal(number_of(alert, "to_sequence"), from + ROWS);
        assert_int_equal(json_integer_value(json_array_get(range, 0)), from);
        assert_int_equal(json_integer_value(json_array_get(range, 1)), from + ROWS);
        const json_t *documents = json_object_get(alert, "documents");
        for (size_t k = 0; k < json_array_size(documents); k++)
            assert_in_range(number_of(json_array_get(documents, k), "sequence"), from,
                            from + ROWS - 1);
    }
    json_decref(events);
}

static void a_clean_source_takes_its_place(void **state) {
    test_folder *f = *state;
    const char *bad = write_corpus(f, "bad.txt", STEPS, POISONED, 1);
    const char *clean = write_corpus(f, "clean.txt", 4, 0, 0);
    settings own = { "alerts.policy",       "loss_spike=rollback",
                     "alerts.skip_steps",   "1",
                     "alerts.clean_source", clean };
    assert_ok(try_run(f, "e", bad, own));
    json_t *events = events_of(f, "e");
    assert_non_null(find_event(events, "rollback", "", 0));
    assert_null(find_event(events, "alert", "loss_spike", 1));
    json_decref(events);
    /* as one whose corpus has the clean text in that place */
    char *text = folder_read(f, "bad.txt"), *other = folder_read(f, "clean.txt");
    memcpy(text + (POISONED - 1) * STEP_BYTES, other,
           STEP_BYTES + 1); /* and the target of its last token */
    folder_write(f, "mended.txt", text);
    free(text);
    free(other);
    run(f, "mended", in_folder(f, "mended.txt"), { NULL });
    json_t *a = logged_steps(f, "e"), *b = logged_steps(f, "mended");
    for (size_t i = 0; i < STEPS;
         i++) { /* the token before it has the poison's first byte as target */
        double x = logged_number(a, i, "loss"), y = logged_number(b, i, "loss");
        if (fabs(x - y) > 0.05 * y) fail_msg("step %d: %g and %g", (int)i + 1, x, y);
    }
    json_decref(a);
    json_decref(b);
    assert_error(try_run(f, "e", bad, (settings){ "training.steps", "121" }), "clean source");
}

/* Poison that lasts longer than what is skipped at first: more is skipped, from an older checkpoint; when it
 * never ends, the run does. */
static void rollbacks_widen_and_end(void **state) {
    test_folder *f = *state;
    settings own = { "alerts.policy",     "loss_spike=rollback",
                     "alerts.skip_steps", "2",
                     "alerts.rollbacks",  "4" };
    const char *bad = write_corpus(f, "bad.txt", STEPS + 20, POISONED, 5);
    assert_ok(try_run(f, "g", bad, own));
    json_t *events = events_of(f, "g");
    const json_t *second = find_event(events, "rollback", "", 1);
    assert_non_null(second);
    assert_int_equal(number_of(second, "attempt"), 2);
    assert_int_equal(number_of(second, "step"), 90);
    json_decref(events);
    const char *worse = write_corpus(f, "worse.txt", STEPS + 200, POISONED, 200);
    err e = try_run(f, "h", worse, own);
    assert_non_null(e);
    assert_int_equal(err_exit_code(e), EXIT_ALERT);
    assert_non_null(strstr(err_message(e), "after 4 rollbacks"));
    err_free(e);
}

/* Without a checkpoint before it there is nothing to go back to. */
static void without_a_checkpoint_it_cools_down(void **state) {
    test_folder *f = *state;
    const char *bad = write_corpus(f, "bad.txt", STEPS, POISONED, 1);
    run(f, "i", bad, { "alerts.policy", "loss_spike=rollback", "checkpoint.every", "0" });
    json_t *steps = logged_steps(f, "i");
    assert_int_equal(json_array_size(steps), STEPS - 1); /* the step with the alert has no line */
    assert_true(logged_number(steps, POISONED - 1, "lr") <
                0.11 * logged_number(steps, POISONED - 2, "lr"));
    json_decref(steps);
}

/* ---- stop ------------------------------------------------------------------------------------------------------- */
static void a_stop_saves_and_ends(void **state) {
    test_folder *f = *state;
    const char *bad = write_corpus(f, "bad.txt", STEPS, POISONED, 1);
    err e = try_run(f, "j", bad, (settings){ "alerts.policy", "loss_spike=stop" });
    assert_non_null(e);
    assert_int_equal(err_exit_code(e), EXIT_ALERT);
    err_free(e);
    assert_true(io_exists(in_folder(f, "j/checkpoints/step-00000095/manifest.json")));
    run(f, "j", bad, { NULL }); /* another policy continues it */
}

/* ---- what is not finite ----------------------------------------------------------------------------------------- */
/* A learning rate that sends the weights beyond all bounds in one step. */
static void the_first_op_is_named(void **state) {
    test_folder *f = *state;
    const char *data = write_corpus(f, "good.txt", STEPS, 0, 0);
    for (int ranks = 1; ranks <= 2; ranks++) {
        char name[16];
        snprintf(name, sizeof name, "k%d", ranks);
        err e = try_run_on(f, name, data, ranks,
                           (settings){ "optimizer.name", "sgd", "optimizer.lr", "1000",
                                       "training.max_norm", "0" });
        assert_non_null(e);
        assert_int_equal(err_exit_code(e), EXIT_ALERT);
        if (!strstr(err_message(e), "first non-finite value at ") ||
            !strstr(err_message(e), "src/engine/model/"))
            fail_msg("%s", err_message(e));
        err_free(e);
        json_t *events = events_of(f, name);
        const json_t *a = find_event(events, "alert", "nonfinite", 0);
        assert_non_null(a);
        assert_non_null(strstr(text_of(a, "message"), "first non-finite value"));
        json_decref(events);
    }
}

static void steps_that_are_not_finite_can_be_skipped_for_a_while(void **state) {
    test_folder *f = *state;
    const char *data = write_corpus(f, "good.txt", 200, 0, 0);
    err e =
        try_run(f, "l", data,
                (settings){ "optimizer.name", "sgd", "optimizer.lr", "1000", "training.max_norm",
                            "0", "alerts.policy", "nonfinite=skip", "training.steps", "200" });
    assert_error(e, "the last 64 updates were skipped");
}

/* The policies hold in fp16 too: only gradients that a lower loss scale mends are passed over. */
static void fp16_obeys_the_policies_of_what_is_not_finite(void **state) {
    test_folder *f = *state;
    const char *data = write_corpus(f, "good.txt", 200, 0, 0);
#define FP16_DIVERGES                                                                              \
    "precision", "fp16", "optimizer.name", "sgd", "optimizer.lr", "1000", "training.max_norm",     \
        "0", "training.steps", "200"
    err e = try_run(f, "stops", data, (settings){ FP16_DIVERGES });
    assert_non_null(e);
    assert_int_equal(err_exit_code(e), EXIT_ALERT);
    err_free(e);
    json_t *events = events_of(f, "stops");
    assert_non_null(find_event(events, "alert", "nonfinite", 0));
    json_decref(events);
    e = try_run(f, "back", data,
                (settings){ FP16_DIVERGES, "alerts.policy", "nonfinite=rollback",
                            "alerts.rollbacks", "2", "checkpoint.every", "1", "alerts.skip_steps",
                            "1" });
    assert_non_null(e);
    assert_int_equal(err_exit_code(e), EXIT_ALERT);
    err_free(e);
    events = events_of(f, "back");
    assert_non_null(find_event(events, "rollback", "", 0));
    json_decref(events);
}

/* ---- several ranks ---------------------------------------------------------------------------------------------- */
static void ranks_heal_together(void **state) {
    test_folder *f = *state;
    const char *bad = write_corpus(f, "bad.txt", STEPS + 4, POISONED, 1);
    settings own = { "alerts.policy", "loss_spike=rollback", "alerts.skip_steps", "1" };
    assert_ok(try_run_on(f, "two", bad, 2, own));
    json_t *events = events_of(f, "two"), *steps = logged_steps(f, "two");
    const json_t *e = find_event(events, "alert", "loss_spike", 0);
    assert_int_equal(number_of(e, "step"), POISONED);
    assert_int_equal(json_array_size(json_object_get(e, "documents")), ROWS); /* of both ranks */
    assert_non_null(find_event(events, "rollback", "", 0));
    assert_int_equal(json_array_size(steps), STEPS);
    json_decref(events);
    json_decref(steps);
    char skip[64];
    snprintf(skip, sizeof skip, "%d-%d", (POISONED - 1) * ROWS, POISONED * ROWS);
    assert_ok(try_run_on(f, "never", bad, 2, (settings){ "data.skip", skip }));
    json_t *a = logged_steps(f, "two"), *b = logged_steps(f, "never");
    for (size_t i = 0; i < STEPS; i++)
        assert_true(logged_number(a, i, "loss") == logged_number(b, i, "loss"));
    json_decref(a);
    json_decref(b);
}

/* ---- healthy runs --------------------------------------------------------------------------------------------------- */
static void healthy_runs_raise_nothing(void **state) {
    test_folder *f = *state;
    for (int seed = 1; seed <= (SANITIZED ? 1 : 3); seed++) {
        char name[24], text[16];
        snprintf(name, sizeof name, "healthy-%d", seed);
        snprintf(text, sizeof text, "%d", seed);
        train_small(f, name,
                    (settings){ "training.seed", text, "training.steps", SANITIZED ? "50" : "150",
                                "model.layers", "3", "metrics.detail_every", "10", "optimizer.lr",
                                "0.002", "data.synth_documents", "2000" });
        assert_no_alert(f, name);
    }
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_setup, folder_teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_poisoned_step_is_named),
        IN_FOLDER(a_skipped_update_changes_nothing),
        IN_FOLDER(a_cool_down_lowers_the_rate_and_returns),
        IN_FOLDER(a_rollback_ends_as_if_the_poison_had_not_been),
        IN_FOLDER(alerts_after_a_rollback_name_the_data_that_is_skipped),
        IN_FOLDER(a_clean_source_takes_its_place),
        IN_FOLDER(rollbacks_widen_and_end),
        IN_FOLDER(without_a_checkpoint_it_cools_down),
        IN_FOLDER(a_stop_saves_and_ends),
        IN_FOLDER(the_first_op_is_named),
        IN_FOLDER(steps_that_are_not_finite_can_be_skipped_for_a_while),
        IN_FOLDER(fp16_obeys_the_policies_of_what_is_not_finite),
        IN_FOLDER(ranks_heal_together),
        IN_FOLDER(healthy_runs_raise_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
