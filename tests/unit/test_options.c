/* Every option has an effect or is refused. Each is set alone, to values drawn from what it may be, on one small
 * run. Either the run is refused because of it, or something that the run leaves behind differs: the recorded
 * programs, the figures of its steps, its events, its files. The few options whose effect no healthy run of one rank
 * on a CPU shows are listed with the reason; a listed one that does show is a fault of the list. */
#include "support/train.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "config/config_internal.h"
#include "io/io.h"

static const struct {
    const char *name, *why;
} unseen[] = {
    { "run.dir", "where the run is looked for" },
    { "training.step_timeout", "a limit that a healthy run keeps" },
    { "training.weight_check_interval", "copies on several ranks" },
    { "training.threads", "results do not depend on it" },
    { "device.index", "a GPU" },
    { "parallelism.zero_stage", "several ranks" },
    { "parallelism.bucket_cap_mb", "parameters larger than a bucket" },
    { "parallelism.reduce_dtype", "several ranks" },
    { "comm.timeout_seconds", "a limit that a healthy run keeps" },
    { "comm.shared_memory", "several processes" },
    { "precision.tf32", "a GPU" },
    { "data.epoch_offset", "a second epoch" },
    { "data.prefetch", "results do not depend on it" },
    { "data.workers", "results do not depend on it" },
    { "data.guard_few_ids", "repetitive text" },
    { "data.guard_malformed", "malformed text" },
    { "metrics.log_every", "the terminal" },
    { "metrics.serve", "a port" },
    { "monitor.preset", "what alerts" },
    { "monitor.thresholds", "what alerts" },
    { "alerts.policy", "what alerts" },
    { "alerts.command", "what alerts" },
    { "checkpoint.async", "results do not depend on it" },
    { "checkpoint.allow_changes", "a resumed run" },
    { "debug.deterministic", "a GPU" },
    { "debug.check_finite", "values that are not finite" },
};

/* Texts that say nothing about their values by themselves. */
static const struct {
    const char *name, *value;
} texts[] = {
    { "model.preset", "moe-tiny" },
    { "model.rope_short_factor", "[1, 1.5]" },
    { "model.rope_long_factor", "[1, 4]" },
    { "training.batch_schedule", "[{batch: 4, until: 2}]" },
    { "parallelism.axis_order", "tp,pp" },
    { "parallelism.pipeline_parallel_split", "[1, 1]" },
    { "optimizer.groups", "[{match: vectors, lr: 0.1}]" },
    { "precision.modules", "mlp=bf16" },
    { "precision.fp8_skip", "attn" },
    { "data.train", "/nowhere" },
    { "data.validation", "/nowhere" },
    { "data.tokenizer", "/nowhere" },
    { "data.skip", "0-4" },
    { "monitor.thresholds", "loss_spike=5" },
    { "alerts.policy", "loss_spike=skip" },
    { "metrics.serve", "0" },
    { "checkpoint.upload", "s3://bucket/none" },
    { "checkpoint.initial_load_path", "/nowhere" },
    { "checkpoint.branch_path", "/nowhere" },
    { "checkpoint.allow_changes", "model" },
    { "debug.isa", "nowhere" },
};

enum { MOST_VALUES = 8 };
typedef char option_values[MOST_VALUES][48];

static bool is_default(const option *o, const char *value) {
    str text = { 0 };
    option_print(o, &config_defaults, &text);
    bool same = strcmp(text.text, value) == 0;
    str_free(&text);
    return same;
}

/* Legal values other than the default, in an order that the seed decides. */
static int draw_values(const option *o, uint64_t seed, option_values out) {
    option_values all;
    int n = 0;
    double at = (double)(seed % 97) / 97;
#define ADD(...) snprintf(all[n++], sizeof all[0], __VA_ARGS__)
    switch (o->type) {
    case OPT_BOOL:
    case OPT_TRISTATE: ADD("true"), ADD("false"); break;
    case OPT_CHOICE:
        for (int i = 0; i < o->n_choices && n < MOST_VALUES; i++) ADD("%s", o->choices[i].text);
        break;
    case OPT_INT:
        for (int64_t v = 1; v <= 64 && n < MOST_VALUES; v *= 2)
            if (v >= o->int_min && v <= o->int_max) ADD("%lld", (long long)v);
        ADD("%lld", (long long)MAX(o->int_min, 0));
        break;
    case OPT_REAL:
        ADD("%g", o->real_min + (MIN(o->real_max, 1) - o->real_min) * at);
        ADD("%g", o->real_min + (MIN(o->real_max, 100) - o->real_min) * 0.3);
        ADD("%g", o->real_min);
        break;
    case OPT_AMOUNT: ADD("%d", 2 + (int)(seed % 2)), ADD("1"), ADD("0"); break;
    case OPT_SECRET: ADD("text"); break;
    case OPT_LIST:
    case OPT_TEXT:
        for (size_t i = 0; i < COUNT_OF(texts); i++)
            if (!strcmp(texts[i].name, o->name)) ADD("%s", texts[i].value);
        if (!n) ADD("text");
        break;
    }
    int kept = 0;
    for (int i = 0; i < n; i++) {
        const char *value = all[(i + (int)(seed % (uint64_t)n)) % n];
        if (!is_default(o, value)) snprintf(out[kept++], sizeof out[0], "%s", value);
    }
    return kept;
}

/* ---- what a run leaves behind -------------------------------------------------------------------- */
static void add_steps(test_folder *f, const char *run, str *out) {
    static const char *const kept[] = { "loss", "lr", "grad_norm", "tokens", "val_loss" };
    json_t *steps = logged_steps(f, run), *line;
    size_t i;
    json_array_foreach(steps, i, line) {
        const char *key;
        json_t *value;
        json_object_foreach(line, key, value) str_add(out, "%s ", key);
        for (size_t k = 0; k < COUNT_OF(kept); k++)
            str_add(out, "%.17g ", json_number_value(json_object_get(line, kept[k])));
        str_add(out, "\n");
    }
    json_decref(steps);
}

static int by_text(const void *a, const void *b) { return strcmp(a, b); }

/* Saves end when they do, so the order of events is free, and alerts may be about time. */
static void add_events(test_folder *f, const char *run, str *out) {
    enum { MOST = 64 };
    char path[128], lines[MOST][96], *next = NULL;
    int n = 0;
    snprintf(path, sizeof path, "%s/events.jsonl", run);
    char *text = folder_read(f, path);
    for (char *line = strtok_r(text, "\n", &next); line && n < MOST;
         line = strtok_r(NULL, "\n", &next)) {
        json_t *o = json_loads(line, JSON_ALLOW_NUL, NULL);
        assert_non_null(o);
        const char *event = json_string_value(json_object_get(o, "event"));
        const char *sample = json_string_value(json_object_get(o, "text"));
        if (strcmp(event, "alert") != 0)
            snprintf(lines[n++], sizeof lines[0], "%s %lld %s", event,
                     (long long)json_integer_value(json_object_get(o, "step")),
                     sample ? sample : "");
        json_decref(o);
    }
    sort_array(lines, (size_t)n, sizeof lines[0], by_text);
    for (int i = 0; i < n; i++) str_add(out, "%s\n", lines[i]);
    free(text);
}

static void add_files(const char *folder, bool contents, str *out) {
    struct dirent **list;
    int n = scandir(folder, &list, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        char *path = io_join(folder, list[i]->d_name);
        if (list[i]->d_name[0] != '.') {
            bool events =
                strstr(list[i]->d_name, "tfevents") != NULL; /* with the time in its name */
            str_add(out, "%s\n", events ? "tfevents" : list[i]->d_name);
            char *text = NULL;
            size_t len = 0;
            if (io_is_dir(path))
                add_files(path, contents || !strcmp(list[i]->d_name, "programs"), out);
            else if (contents && !io_read(path, 1 << 24, &text, &len))
                str_add_bytes(out, text, len);
            free(text);
        }
        free(path);
        free(list[i]);
    }
    if (n >= 0) free(list);
}

/* @return an error's text, or what the run left in the folder. */
static str run_once(test_folder *f, const char *run, settings own) {
    static settings base = { SETTINGS_OF_ONE("2"),
                             "training.steps",
                             "4",
                             "debug.dump_programs",
                             "true",
                             "validation.every",
                             "2",
                             "validation.batches",
                             "1",
                             "training.seq_len",
                             "32",
                             "training.global_batch_size",
                             "8",
                             "data.synth_documents",
                             "40",
                             "checkpoint.every",
                             "2",
                             "checkpoint.weights_every",
                             "1",
                             "checkpoint.keep_latest_k",
                             "1" };
    str out = { 0 };
    err e = run_with(f, run, base, own);
    if (e) {
        str_add(&out, "%s", err_message(e));
        err_free(e);
        return out;
    }
    add_steps(f, run, &out);
    add_events(f, run, &out);
    add_files(in_folder(f, run), false, &out);
    return out;
}

static const char *reason_unseen(const char *name) {
    for (size_t i = 0; i < COUNT_OF(unseen); i++)
        if (!strcmp(unseen[i].name, name)) return unseen[i].why;
    return NULL;
}

static void every_option_has_an_effect_or_is_refused(void **state) {
    test_folder *f = *state;
    str plain = run_once(f, "plain", (settings){ NULL }),
        again = run_once(f, "again", (settings){ NULL });
    assert_string_equal(plain.text, again.text); /* else any option would seem to have an effect */
    int refused = 0, seen = 0;
    str faults = { 0 };
    for (int i = 0; i < option_count; i++) {
        const option *o = &option_table[i];
        option_values values;
        int n = draw_values(o, hash_str(o->name), values);
        bool effect = false;
        if (!strcmp(o->name, "run.dir") || !strcmp(o->name, "debug.dump_programs")) continue;
        for (int k = 0; k < n && !effect; k++) {
            char run[32];
            snprintf(run, sizeof run, "r%d-%d", i, k);
            str got = run_once(f, run, (settings){ o->name, values[k] });
            effect = strcmp(got.text, plain.text) != 0;
            if (strstr(got.text, "has no effect") && !strstr(got.text, o->name))
                str_add(&faults, "%s=%s: %s\n", o->name, values[k], got.text);
            refused += strstr(got.text, "has no effect") != NULL;
            str_free(&got);
        }
        seen += effect;
        const char *why = reason_unseen(o->name);
        if (!effect && !why)
            str_add(
                &faults,
                "%s=%s changes nothing and is accepted: give it a NEEDS row in options.def, or state here "
                "what would show its effect\n",
                o->name, values[0]);
        if (effect && why)
            str_add(&faults, "%s is listed as unseen (%s), but has an effect\n", o->name, why);
    }
    if (faults.len) print_error("%s", faults.text); /* of any length */
    assert_int_equal(faults.len, 0);
    assert_true(refused > 40 && seen > 120); /* the sampler works */
    str_free(&plain);
    str_free(&again);
    str_free(&faults);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_option_has_an_effect_or_is_refused, folder_setup,
                                        folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
