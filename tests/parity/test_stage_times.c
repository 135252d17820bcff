/* RUN/timetable.json: what a pipeline's stages measured, task by task in the order of the schedule. */
#include "support/train.h"

#include "prog/timetable.h"

typedef struct pipe_case {
    const char *schedule;
    pipeline p;
    const char *layers;
    int ranks; /* with others beside the stages */
    settings own;
} pipe_case;

static const pipe_case cases[] = {
    { "1F1B", { 2, 1, PIPE_1F1B, false }, "2", 4, { "parallelism.zero_stage", "3" } },
    { "GPipe", { 2, 1, PIPE_GPIPE, false }, "2", 2, { "activation_checkpoint.mode", "full" } },
    { "Interleaved1F1B",
      { 2, 2, PIPE_INTERLEAVED, false },
      "4",
      2,
      { "parallelism.pipeline_parallel_chunks", "2" } },
    { "ZeroBubble", { 2, 1, PIPE_ZERO_BUBBLE, false }, "2", 2, { NULL } },
    /* the last stage has the head alone, whose backward task computes nothing */
    { "ZeroBubble",
      { 2, 1, PIPE_ZERO_BUBBLE, false },
      "2",
      2,
      { "parallelism.pipeline_parallel_split", "[2, 0]" } },
    { "1F1B",
      { 2, 1, PIPE_1F1B, false },
      "2",
      2,
      { "parallelism.pipeline_parallel_split", "[0, 2]" } },
};

static json_t *read_timetable(test_folder *f, const char *name) {
    char path[96];
    snprintf(path, sizeof path, "%s/timetable.json", name);
    char *text = folder_read(f, path);
    json_t *doc = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    if (!doc) fail_msg("%s is not JSON: %s", path, text);
    free(text);
    return doc;
}

static double member(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_number(v)) fail_msg("no \"%s\"", key);
    return json_number_value(v);
}

static double field(const json_t *task, size_t i) {
    return json_number_value(json_array_get(task, i));
}

/* When the stage before had the microbatch of a task done, forward; of the one after, backward. */
static double passed_at(const timetable *s, const json_t *stages, int stage,
                        const pipeline_task *k) {
    int from = stage + (k->kind == TASK_FORWARD ? -1 : 1);
    if (k->kind == TASK_WEIGHTS || from < 0 || from >= s->p.ranks) return 0;
    for (int i = 0; i < s->tasks; i++) {
        const pipeline_task *other = &s->of[from][i];
        if (other->kind == k->kind && other->chunk == k->chunk && other->micro == k->micro)
            return field(json_array_get(json_array_get(stages, (size_t)from), (size_t)i), 4);
    }
    fail_msg("nobody passes microbatch %d to stage %d", k->micro, stage);
    return 0;
}

static void check_tasks(const json_t *doc, const timetable *s) {
    static const char *const names[] = { "forward", "backward", "weights" };
    const json_t *stages = json_object_get(doc, "tasks");
    assert_int_equal(json_array_size(stages), s->p.ranks);
    for (int r = 0; r < s->p.ranks; r++) {
        const json_t *list = json_array_get(stages, (size_t)r);
        double before = 0;
        assert_int_equal(json_array_size(list), s->tasks);
        for (int i = 0; i < s->tasks; i++) {
            const json_t *task = json_array_get(list, (size_t)i);
            const pipeline_task *k = &s->of[r][i];
            assert_string_equal(json_string_value(json_array_get(task, 0)), names[k->kind]);
            assert_int_equal(field(task, 1), k->chunk);
            assert_int_equal(field(task, 2), k->micro);
            assert_true(field(task, 3) >= before && field(task, 4) >= field(task, 3));
            assert_true(field(task, 3) + 1e-6 >= passed_at(s, stages, r, k));
            before = field(task, 4);
        }
        assert_true(before <= member(doc, "length"));
    }
}

static void every_schedule_is_measured(void **state) {
    test_folder *f = *state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const pipe_case *c = &cases[i];
        settings common = { SETTINGS_FOR_RANKS(c->layers),
                            "training.local_batch_size",
                            "1",
                            "validation.every",
                            "0",
                            "parallelism.pipeline_parallel_degree",
                            "2",
                            "parallelism.pipeline_parallel_schedule",
                            c->schedule,
                            "metrics.detail_every",
                            "4" };
        settings own;
        char name[16];
        timetable s;
        memcpy(own, c->own, sizeof own);
        snprintf(name, sizeof name, "run%zu", i);
        assert_ok(run_on_ranks(f, name, common, own, c->ranks));
        assert_ok(timetable_make(&c->p, 8 * 2 / c->ranks, &s));
        json_t *doc = read_timetable(f, name);
        assert_true(json_is_true(json_object_get(doc, "measured")));
        assert_int_equal(member(doc, "step"), 4);
        assert_int_equal(member(doc, "microbatches"), s.micros);
        assert_string_equal(json_string_value(json_object_get(doc, "schedule")), c->schedule);
        assert_true(member(doc, "idle") > 0 && member(doc, "idle") < 1);
        assert_float_equal(member(doc, "planned_idle"), timetable_bubble(&s), 1e-3);
        check_tasks(doc, &s);
        json_decref(doc);
        timetable_free(&s);
    }
}

/* Before anything is measured the schedule itself is shown, and a run that is not a pipeline any more has none. */
static void the_schedule_is_shown_until_then(void **state) {
    test_folder *f = *state;
    settings common = { SETTINGS_FOR_RANKS("2"), "training.local_batch_size", "1",
                        "metrics.detail_every", "0" };
    settings piped = { "parallelism.pipeline_parallel_degree", "2", "training.stop", "1" };
    timetable s;
    assert_ok(run_on_ranks(f, "run", common, piped, 2));
    json_t *doc = read_timetable(f, "run");
    assert_ok(timetable_make(&(pipeline){ 2, 1, PIPE_1F1B, false }, 8, &s));
    assert_true(json_is_false(json_object_get(doc, "measured")));
    assert_float_equal(member(doc, "idle"), timetable_bubble(&s), 1e-3);
    assert_int_equal(member(doc, "length"), s.length);
    check_tasks(doc, &s);
    timetable_free(&s);
    json_decref(doc);
    assert_ok(run_on_ranks(f, "run", common, (settings){ "training.stop", "2" }, 1));
    assert_false(io_exists(in_folder(f, "run/timetable.json")));
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, folder_setup, folder_teardown)
    const struct CMUnitTest tests[] = {
        T(every_schedule_is_measured),
        T(the_schedule_is_shown_until_then),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
