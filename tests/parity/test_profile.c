/* Profiles: the trace is valid JSON in Chrome's format, of every rank, and says what ran; the memory timeline fits
 * into the plan; and neither changes what is trained. */
#include "support/train.h"

#include <math.h>

static void profile(test_folder *f, const char *name, int ranks, bool memory, settings own) {
    settings common = { SETTINGS_OF_ONE("2"),
                        "training.steps",
                        "6",
                        "training.local_batch_size",
                        "1",
                        "training.global_batch_size",
                        "4",
                        "data.synth_documents",
                        "100" };
    train_options o = { .quiet = true, .ranks = ranks, .memory_timeline = memory };
    if (memory) o.profile_from = 3, o.profile_to = 4;
    assert_ok(run_with_options(f, name, common, own, &o));
}

static json_t *read_events(test_folder *f, const char *path) {
    char *text = folder_read(f, path);
    json_error_t why;
    json_t *doc = json_loads(text, 0, &why), *events = json_object_get(doc, "traceEvents");
    if (!doc) fail_msg("%s: %s", path, why.text);
    assert_true(json_is_array(events));
    json_incref(events);
    json_decref(doc);
    free(text);
    return events;
}

static const char *text_of(const json_t *o, const char *key) {
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}
static double number_of(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_number(v)) fail_msg("an event without \"%s\"", key);
    return json_number_value(v);
}

/* ---- the trace ----------------------------------------------------------------------------------- */
typedef struct seen_events {
    int ops, linears, collectives, open, instructions, steps, updates;
    double first, last;
} seen_events;

static void check_call(const json_t *e, seen_events *s) {
    const json_t *args = json_object_get(e, "args");
    s->ops++;
    assert_true(strstr(text_of(args, "shapes"), " -> ") != NULL);
    assert_true(number_of(args, "bytes") > 0);
    if (str_starts(text_of(e, "name"), "update_")) s->updates++;
    if (strcmp(text_of(e, "name"), "linear") != 0) return;
    s->linears++;
    assert_true(number_of(args, "flops") > 0);
    assert_true(strstr(text_of(args, "source"), "blocks.c:") != NULL);
    assert_true(strstr(text_of(args, "shapes"), "x fp32[") != NULL);
}

static void check_event(const json_t *e, seen_events *s) {
    const char *ph = text_of(e, "ph"), *cat = text_of(e, "cat");
    if (!strcmp(ph, "M")) return;
    double ts = number_of(e, "ts");
    assert_true(ts >= 0);
    s->last = MAX(s->last, ts);
    if (!strcmp(ph, "b")) s->collectives++, s->open++;
    if (!strcmp(ph, "e")) s->open--;
    if (strcmp(ph, "X") != 0) return;
    assert_true(number_of(e, "dur") >= 0);
    if (!strcmp(cat, "op")) check_call(e, s);
    if (!strcmp(cat, "instruction")) s->instructions++;
    if (str_starts(text_of(e, "name"), "step ")) s->steps++;
}

static seen_events check_rank(const json_t *events, int rank) {
    seen_events s = { 0 };
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i);
        if (number_of(e, "pid") == rank) check_event(e, &s);
    }
    assert_int_equal(s.open, 0);
    assert_int_equal(s.steps, 2);
    return s;
}

/* Calls begin and end within the instruction that they are a part of, so that viewers nest them. */
static void check_nesting(const json_t *events, int rank) {
    double from = 0, to = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i);
        if (number_of(e, "pid") != rank || strcmp(text_of(e, "ph"), "X") != 0) continue;
        double ts = number_of(e, "ts"), end = ts + number_of(e, "dur");
        if (!strcmp(text_of(e, "cat"), "instruction")) from = ts, to = end;
        if (strcmp(text_of(e, "cat"), "op") != 0 ||
            !json_object_get(json_object_get(e, "args"), "source"))
            continue;
        assert_true(ts >= from - 0.01 && end <= to + 0.01);
    }
}

static void assert_same_losses(test_folder *f, const char *a, const char *b) {
    json_t *x = logged_steps(f, a), *y = logged_steps(f, b);
    for (size_t i = 0; i < 6; i++)
        assert_true(logged_number(x, i, "loss") == logged_number(y, i, "loss"));
    json_decref(x);
    json_decref(y);
}

static void one_rank_is_traced(void **state) {
    test_folder *f = *state;
    profile(f, "plain", 1, false, (settings){ NULL });
    profile(f, "traced", 1, true, (settings){ NULL });
    assert_same_losses(f, "plain", "traced");
    assert_false(io_exists(in_folder(f, "plain/profile")));
    json_t *events = read_events(f, "traced/profile/steps-3-4.json");
    seen_events s = check_rank(events, 0);
    /* 4 linear layers in each of 2 blocks, 4 microbatches, 2 steps */
    assert_int_equal(s.linears, 4 * 2 * 4 * 2);
    assert_int_equal(s.collectives, 0);
    assert_true(s.updates > 0 && s.instructions > 0);
    check_nesting(events, 0);
    json_decref(events);
    char *table = folder_read(f, "traced/profile/steps-3-4.txt");
    assert_non_null(strstr(table, "linear"));
    assert_non_null(strstr(table, "blocks.c:"));
    assert_non_null(strstr(table, "GFLOP/s"));
    free(table);
}

static void all_ranks_are_in_one_trace(void **state) {
    test_folder *f = *state;
    settings own = { "parallelism.tensor_parallel_degree", "2",
                     "parallelism.data_parallel_shard_degree", "2" };
    profile(f, "plain", 4, false, own);
    profile(f, "traced", 4, true, own);
    assert_same_losses(f, "plain", "traced");
    json_t *events = read_events(f, "traced/profile/steps-3-4.json");
    int names = 0;
    for (int r = 0; r < 4; r++) {
        seen_events s = check_rank(events, r);
        assert_true(s.collectives > 0 && s.ops > 0);
        check_nesting(events, r);
    }
    for (size_t i = 0; i < json_array_size(events); i++)
        names += !strcmp(text_of(json_array_get(events, i), "name"), "process_name");
    assert_int_equal(names, 4);
    json_decref(events);
    assert_false(io_exists(in_folder(f, "traced/profile/.rank-1")));
}

/* ---- memory -------------------------------------------------------------------------------------- */
/* Live bytes never exceed the planned ones, and nothing saved is live before the first op of a step.
 * @return the most bytes that are live between programs */
static double check_memory(test_folder *f, const char *name, int ranks) {
    char path[64];
    snprintf(path, sizeof path, "%s/profile/memory.json", name);
    json_t *events = read_events(f, path), *steps = logged_steps(f, name);
    double planned = logged_number(steps, 0, "plan_mem"), most = 0, saved = 0, passed = 0;
    int moments = 0, seen_ranks = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i), *args = json_object_get(e, "args");
        double sum = 0;
        const char *key;
        json_t *v;
        seen_ranks = MAX(seen_ranks, 1 + (int)number_of(e, "pid"));
        if (strcmp(text_of(e, "ph"), "C") != 0 || number_of(e, "pid") != 0) continue;
        json_object_foreach((json_t *)(uintptr_t)args, key, v) sum += json_number_value(v);
        if (moments++ == 0) assert_true(number_of(args, "saved for backward") < planned / 4);
        saved = MAX(saved, number_of(args, "saved for backward"));
        passed = MAX(passed, number_of(args, "residual"));
        most = MAX(most, sum);
    }
    assert_true(moments > 20 && saved > 0);
    assert_true(most <= planned && most > planned / 4);
    assert_int_equal(seen_ranks, ranks);
    json_decref(events);
    json_decref(steps);
    return passed;
}

/* @return the bytes of the plan that the log's line on memory has in none of its groups */
static double unlisted_bytes(test_folder *f, const char *name) {
    char path[64], unit;
    double bytes = 0, value;
    int n = 0;
    snprintf(path, sizeof path, "%s/train.log", name);
    char *text = folder_read(f, path);
    size_t at = 0;
    while (text[at] && !str_starts(text + at, "  memory ")) at++;
    for (; text[at] && text[at] != '\n'; at++) {
        if (sscanf(text + at, " %lf %ciB", &value, &unit) != 2) continue;
        bytes += (n++ ? -value : value) * (unit == 'K' ? 1 << 10 : 1 << 20);
        at += strcspn(text + at, "B,;:");
    }
    assert_int_equal(n, 6);
    free(text);
    return bytes;
}

/* Values that programs carry are live between them, and listed with the activations. */
static void carried_values_are_counted(void **state) {
    test_folder *f = *state;
    profile(f, "plain", 1, true,
            (settings){ "training.local_batch_size", "4", "training.seq_len", "128" });
    profile(f, "carrying", 1, true,
            (settings){ "training.local_batch_size", "4", "training.seq_len", "128",
                        "model.layer_scalars", "true", "model.backout", "true" });
    assert_true(check_memory(f, "carrying", 1) > check_memory(f, "plain", 1));
    double more = unlisted_bytes(f, "carrying") - unlisted_bytes(f, "plain");
    if (!(fabs(more) < 64 << 10)) fail_msg("%.0f bytes more are not listed", more);
}

static void memory_fits_into_the_plan(void **state) {
    test_folder *f = *state;
    profile(f, "plain", 1, true, (settings){ NULL });
    check_memory(f, "plain", 1);
    profile(f, "full", 1, true, (settings){ "activation_checkpoint", "full" });
    check_memory(f, "full", 1);
    profile(f, "stages", 2, true, (settings){ "parallelism.pipeline_parallel_degree", "2" });
    check_memory(f, "stages", 2);
    profile(
        f, "shards", 2, true,
        (settings){ "parallelism.data_parallel_shard_degree", "2", "parallelism.zero_stage", "3" });
    check_memory(f, "shards", 2);
    char *table = folder_read(f, "plain/profile/memory.txt");
    assert_non_null(strstr(table, "the largest values then:"));
    free(table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_rank_is_traced, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(all_ranks_are_in_one_trace, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(memory_fits_into_the_plan, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(carried_values_are_counted, folder_setup, folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
