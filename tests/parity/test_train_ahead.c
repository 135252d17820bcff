/* A trainer that runs a step ahead of what it knows does, logs and saves what one does that waits for
 * every call: with everything that may come between steps, stopped anywhere, after an error anywhere. */
#include "support/folder.h"

#include <signal.h>

#include "late_device.h"
#include "train/train.h"

enum { MOST_SETTINGS = 16 };
typedef const char *settings[MOST_SETTINGS]; /* name, value, ... */

static int setup(void **state) {
    memset(&late, 0, sizeof late);
    return folder_setup(state);
}

/* A run of a few small steps of three microbatches, on the CPU or the late device. */
static err run(const char *root, const char *name, bool on_device, settings own) {
    static const char *const common[][2] = {
        { "model.preset", "tiny" },      { "model.layers", "3" },
        { "model.dim", "32" },           { "model.heads", "2" },
        { "model.kv_heads", "2" },       { "model.head_dim", "16" },
        { "model.ffn_dim", "64" },       { "training.steps", "8" },
        { "training.seq_len", "32" },    { "training.threads", "1" },
        { "training.seed", "3" },        { "data.synth_documents", "300" },
        { "optimizer.lr", "0.01" },      { "training.local_batch_size", "2" },
        { "metrics.log_every", "0" },    { "training.global_batch_size", "6" },
        { "validation.every", "3" },     { "validation.batches", "2" },
        { "sample.tokens", "4" },        { "precision", "fp32" },
        { "metrics.detail_every", "2" },
    };
    config c;
    char *dir = io_join(root, name);
    late.clips_queued = late.clips_run = late.takes = 0;
    late.ahead = late.beside = late.records = late.replays = late.stopped = 0;
    late.tape = NULL;
    config_init(&c);
    for (size_t i = 0; i < COUNT_OF(common); i++)
        assert_ok(config_set(&c, common[i][0], common[i][1]));
    config_begin_overrides(&c); /* what a test has no use for is not its fault */
    memset(c.idle_in_file, 0, (size_t)config_option_count() * sizeof *c.idle_in_file);
    for (int i = 0; i + 1 < MOST_SETTINGS && own[i]; i += 2)
        assert_ok(config_set(&c, own[i], own[i + 1]));
    assert_ok(config_set(&c, "run.dir", dir));
    assert_ok(config_set(&c, "device.kind", on_device ? "cuda" : "cpu"));
    err e = train_run(&c, &(train_options){ .quiet = true, .stop = &late.stopped });
    config_free(&c);
    free(dir);
    return e;
}

/* ---- what a run leaves --------------------------------------------------------------------------- */
static char *text_of(const char *root, const char *name, const char *file, size_t *n) {
    char path[256], *text = NULL;
    snprintf(path, sizeof path, "%s/%s/%s", root, name, file);
    assert_ok(io_read(path, 1 << 26, &text, n));
    return text;
}

/* Of the clock or of the machine, such as the power that a GPU draws, and so of no two runs the same. */
static bool varies_between_runs(const metric *m) {
    return str_starts(m->sink, "throughput/") || str_starts(m->sink, "time/") ||
           str_starts(m->sink, "memory/") || str_starts(m->sink, "gpu/") || !strcmp(m->key, "time");
}

/* The steps a run logged, without the metrics that vary; owned. */
static json_t *steps_of(const char *root, const char *name) {
    char *text = text_of(root, name, "metrics.jsonl", NULL), *next = NULL;
    json_t *list = json_array();
    for (char *line = strtok_r(text, "\n", &next); line; line = strtok_r(NULL, "\n", &next)) {
        json_t *o = json_loads(line, 0, NULL);
        assert_non_null(o);
        for (int i = 0; i < METRICS; i++)
            if (varies_between_runs(&metric_table[i])) json_object_del(o, metric_table[i].key);
        json_array_append_new(list, o);
    }
    free(text);
    return list;
}

static void check_same_steps(const char *root, const char *a, const char *b) {
    json_t *x = steps_of(root, a), *y = steps_of(root, b);
    assert_int_equal(json_array_size(x), json_array_size(y));
    for (size_t i = 0; i < json_array_size(x); i++) {
        char *s = json_dumps(json_array_get(x, i), 0), *t = json_dumps(json_array_get(y, i), 0);
        if (strcmp(s, t)) fail_msg("%s: %s\n%s: %s", a, s, b, t);
        free(s);
        free(t);
    }
    json_decref(x);
    json_decref(y);
}

/* Everything but the device, which is an option of the run, and the count of saves: a run that
 * stops has more. */
static json_t *manifest_of(const char *root, const char *name, int step) {
    char file[64];
    snprintf(file, sizeof file, "checkpoints/step-%08d/manifest.json", step);
    char *text = text_of(root, name, file, NULL);
    json_t *doc = json_loads(text, 0, NULL);
    assert_non_null(doc);
    json_object_del(doc, "checksum");
    json_object_del(json_object_get(doc, "state"), "saves");
    json_t *options = json_object_get(json_object_get(doc, "run"), "options");
    assert_int_equal(json_object_del(options, "device.kind"), 0);
    free(text);
    return doc;
}

static void check_same_manifests(const char *root, const char *a, const char *b, int step) {
    json_t *x = manifest_of(root, a, step), *y = manifest_of(root, b, step);
    if (!json_equal(x, y)) fail_msg("manifests of step %d of %s and %s differ", step, a, b);
    json_decref(x);
    json_decref(y);
}

static void check_same_state(const char *root, const char *a, const char *b, int step) {
    static const char *const files[] = { "model.safetensors", "optim.safetensors" };
    check_same_manifests(root, a, b, step);
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        char file[64];
        size_t n, m;
        snprintf(file, sizeof file, "checkpoints/step-%08d/%s", step, files[i]);
        char *x = text_of(root, a, file, &n), *y = text_of(root, b, file, &m);
        if (n != m || memcmp(x, y, n)) fail_msg("%s of %s and %s differ", file, a, b);
        free(x);
        free(y);
    }
}

static size_t logged(const char *root, const char *name) {
    json_t *list = steps_of(root, name);
    size_t n = json_array_size(list);
    json_decref(list);
    return n;
}

static bool saved(const char *root, const char *name, int step) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s/checkpoints/step-%08d", root, name, step);
    return io_exists(path);
}

/* ---- the same as waiting ------------------------------------------------------------------------- */
static settings kinds[] = {
    { "sample.every", "5" },
    { "training.local_batch_size", "6", "validation.every", "0" }, /* one microbatch a step */
    { "validation.every", "1", "sample.every", "1", "checkpoint.every", "1" },
    { "training.stop", "6", "checkpoint.every", "2", "training.max_norm", "0" },
    { "model.dropout", "0.2", "training.noise_scale", "true", "training.local_batch_size", "1",
      "training.batch_ramp_start", "2", "training.batch_ramp", "5", "training.seq_curriculum_start",
      "8", "training.seq_curriculum", "4" },
    { "precision", "fp16", "precision.loss_scale", "8388608",
      "precision.loss_scale_growth_interval", "3" },
    { "precision", "bf16", "precision.fp8", "delayed", "model.dropout", "0.1" },
    { "optimizer.offload", "0.4", "validation.every", "4" },
    { "precision", "bf16", "optimizer.master", "bf16", "optimizer.offload", "0.6" },
    { "optimizer.name", "adam8bit", "optimizer.offload", "1", "sample.every", "3" },
    { "optimizer.name", "muon", "optimizer.offload", "1", "training.agc", "0.01" },
    { "optimizer.name", "muon", "optimizer.offload", "1", "optimizer.muon_beta2", "0.9",
      "optimizer.momentum_warmup", "4", "optimizer.weight_decay_schedule", "linear",
      "optimizer.groups",
      "[{match: embed, name: adam8bit}, {match: \"l1.*\", name: lion, lr: 1e-3}]" },
    { "training.offload_params", "true", "sample.every", "3" },
    { "training.offload_params", "true", "precision", "bf16", "optimizer.offload", "0.5",
      "activation_checkpoint.mode", "full" },
    { "training.offload_params", "true", "optimizer.name", "muon", "training.agc", "0.01" },
    { "training.offload_params", "true", "metrics.detail_every", "2", "training.noise_scale",
      "true", "training.local_batch_size", "1" },
    { "optimizer.offload", "1", "metrics.detail_every", "2", "activation_checkpoint.mode", "full" },
};

/* Whether updates run beside the next step. */
static bool has_updates_beside(const settings own) {
    for (int i = 0; i + 1 < MOST_SETTINGS && own[i]; i += 2)
        if (strstr(own[i], "offload")) return true;
    return false;
}

static int last_of(const settings own) {
    for (int i = 0; i + 1 < MOST_SETTINGS && own[i]; i += 2)
        if (!strcmp(own[i], "training.stop")) return atoi(own[i + 1]);
    return 8;
}

static void test_as_waiting(void **state) {
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        char a[32], b[32];
        snprintf(a, sizeof a, "cpu-%zu", i);
        assert_ok(run(*state, a, false, kinds[i]));
        for (int graphs = 0; graphs < 2; graphs++) {
            if (SANITIZED && graphs != (int)i % 2) continue;
            snprintf(b, sizeof b, "gpu-%zu-%d", i, graphs);
            late.no_graphs = !graphs;
            assert_ok(run(*state, b, true, kinds[i]));
            assert_true(late.records > 0 && (late.replays > 0) == (graphs > 0));
            assert_int_equal(late.ahead > 0, i != 2);
            assert_int_equal(late.beside > 0, has_updates_beside(kinds[i]));
            check_same_steps(*state, a, b);
            check_same_state(*state, a, b, last_of(kinds[i]));
        }
    }
}

/* The loss of a step is that of all its microbatches, however many there are. */
static void test_microbatches_add_up(void **state) {
    assert_ok(run(*state, "three", true, (settings){ NULL }));
    assert_ok(run(*state, "one", true, (settings){ "training.local_batch_size", "6" }));
    json_t *x = steps_of(*state, "three"), *y = steps_of(*state, "one");
    for (size_t i = 0; i < 3; i++) {
        double a = json_number_value(json_object_get(json_array_get(x, i), "loss"));
        double b = json_number_value(json_object_get(json_array_get(y, i), "loss"));
        assert_true(a > 1 && fabs(a - b) < 1e-3 * b);
    }
    json_decref(x);
    json_decref(y);
}

/* ---- stopped and continued ----------------------------------------------------------------------- */
static void test_stopped_anywhere(void **state) {
    static const size_t some[] = { 0, 5, 6, 8 };
    for (size_t k = 0; k < COUNT_OF(some); k++) {
        char whole[32];
        snprintf(whole, sizeof whole, "whole-%zu", k);
        assert_ok(run(*state, whole, true, kinds[some[k]]));
        for (int at = 1; at < 8; at += SANITIZED ? 4 : 2) {
            char name[32];
            snprintf(name, sizeof name, "cut-%zu-%d", k, at);
            late.stop_at = at;
            assert_ok(run(*state, name, true, kinds[some[k]]));
            assert_int_equal(logged(*state, name), (size_t)at);
            assert_true(saved(*state, name, at) && !saved(*state, name, at + 1));
            late.stop_at = 0;
            assert_ok(run(*state, name, true, kinds[some[k]]));
            check_same_steps(*state, whole, name);
            check_same_state(*state, whole, name, 8);
        }
    }
}

/* ---- errors -------------------------------------------------------------------------------------- */
static void check_fails(err e, const char *with) {
    assert_non_null(e);
    if (!strstr(err_message(e), with))
        fail_msg("\"%s\" says nothing of \"%s\"", err_message(e), with);
    err_free(e);
}

/* The step that went wrong is named, those before it are logged, nothing of it is saved. */
static void test_not_finite(void **state) {
    settings every = { "checkpoint.every", "2" };
    for (int at = SANITIZED ? 2 : 1; at <= 8; at += SANITIZED ? 2 : 1) {
        char name[32], says[32];
        snprintf(name, sizeof name, "nan-%d", at);
        snprintf(says, sizeof says, "step %d:", at);
        late.poison = at;
        check_fails(run(*state, name, true, every), says);
        assert_int_equal(logged(*state, name), (size_t)at - 1);
        for (int step = 1; step <= 8; step++)
            assert_int_equal(saved(*state, name, step), step % 2 == 0 && step < at);
        late.poison = 0;
    }
    assert_ok(run(*state, "fine", true, every));
    assert_ok(run(*state, "nan-6", true, every)); /* continues after step 4 */
    check_same_steps(*state, "fine", "nan-6");
    check_same_state(*state, "fine", "nan-6", 8);
}

/* debug.check_finite waits for each op, and names the one. */
static void test_op_not_finite(void **state) {
    settings wild = { "debug.check_finite",  "true", "optimizer.name",    "sgd",
                      "optimizer.lr",        "1000", "training.max_norm", "0",
                      "lr_scheduler.warmup", "0" };
    err e = run(*state, "cpu", false, wild);
    assert_non_null(e);
    assert_non_null(strstr(err_message(e), "first non-finite value at"));
    check_fails(run(*state, "gpu", true, wild), err_message(e));
    err_free(e);
    assert_int_equal(late.records, 0);
    check_same_steps(*state, "cpu", "gpu");
}

static void test_broken_device(void **state) {
    for (int at = 1; at < 20; at += SANITIZED ? 3 : 1) {
        char name[32];
        snprintf(name, sizeof name, "broken-%d", at);
        late.broken = at;
        check_fails(run(*state, name, true, (settings){ "validation.every", "0" }), "broken");
        assert_true(logged(*state, name) <= (size_t)at / 4 && !saved(*state, name, 8));
        late.broken = 0;
    }
}

/* ---- data ---------------------------------------------------------------------------------------- */
/* A text of this many lines, every so-many-th of them one that the guard rejects. */
static void write_text(const char *root, const char *name, int lines, int bad) {
    str text = { 0 };
    char path[256];
    for (int i = 0; i < lines; i++)
        if (bad && i % bad == 0)
            for (int k = 0; k < 96; k++) str_add(&text, "a");
        else
            str_add(&text, "Line %d of the text called %s, by nobody.\n", i, name);
    snprintf(path, sizeof path, "%s/%s", root, name);
    assert_ok(io_write(path, text.text, text.len));
    str_free(&text);
}
static void write_mix(const char *root, const char *text, char path[256]) {
    snprintf(path, 256, "%s/mix.yaml", root);
    assert_ok(io_write(path, text, strlen(text)));
}

/* Events of one kind, without the time; owned. */
static char *events_of(const char *root, const char *name, const char *kind) {
    char *text = text_of(root, name, "events.jsonl", NULL), *next = NULL;
    json_t *list = json_array();
    for (char *line = strtok_r(text, "\n", &next); line; line = strtok_r(NULL, "\n", &next)) {
        json_t *o = json_loads(line, 0, NULL);
        json_object_del(o, "time");
        if (!strcmp(json_string_value(json_object_get(o, "event")), kind))
            json_array_append(list, o);
        json_decref(o);
    }
    char *all = json_dumps(list, 0);
    json_decref(list);
    free(text);
    return all;
}

/* Losses and tokens of each source, and rejected windows, belong to their own step. */
static void test_sources(void **state) {
    const char *root = *state;
    char path[256];
    str mix = { 0 };
    write_text(root, "good.txt", 400, 0);
    write_text(root, "bad.txt", 400, 3);
    str_add(&mix, "sources:\n");
    str_add(&mix, "  - name: good\n    path: %s/good.txt\n    weight: 0.6\n", root);
    str_add(&mix, "  - name: bad\n    path: %s/bad.txt\n    weight: 0.4\n", root);
    write_mix(root, mix.text, path);
    str_free(&mix);
    settings own = { "data.train", path, "data.validation_fraction", "0" };
    assert_ok(run(root, "cpu", false, own));
    assert_ok(run(root, "gpu", true, own));
    check_same_steps(root, "cpu", "gpu");
    char *a = events_of(root, "cpu", "guard"), *b = events_of(root, "gpu", "guard");
    assert_non_null(strstr(a, "bad"));
    assert_string_equal(a, b);
    free(a);
    free(b);
}

/* Data that ends in the middle of the run: whatever was trained before is logged. */
static void test_data_ends(void **state) {
    const char *root = *state;
    char path[256];
    str mix = { 0 };
    write_text(root, "short.txt", 60, 0);
    str_add(&mix, "sources:\n  - name: short\n    path: %s/short.txt\n    epochs: 1\n", root);
    write_mix(root, mix.text, path);
    str_free(&mix);
    /* enough for the run, but for the windows that are skipped */
    settings own = { "data.train",     path, "data.skip",        "20-60",
                     "training.steps", "12", "validation.every", "0" };
    err e = run(root, "cpu", false, own);
    assert_non_null(e);
    check_fails(run(root, "gpu", true, own), err_message(e));
    err_free(e);
    assert_true(logged(root, "cpu") > 5);
    check_same_steps(root, "cpu", "gpu");
    /* what went wrong in the last step went wrong first */
    late.poison = (int)logged(root, "cpu");
    check_fails(run(root, "both", true, own), "the gradient norm is");
    late.poison = 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_as_waiting, setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_microbatches_add_up, setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_stopped_anywhere, setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_not_finite, setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_op_not_finite, setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_broken_device, setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_sources, setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_data_ends, setup, folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
