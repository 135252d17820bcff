/* Questions during training: on schedule, logged, and answered alike on every layout of ranks. */
#include "support/train.h"

#include <math.h>

#define FILES FIXTURES "/eval/hellaswag.jsonl," FIXTURES "/eval/piqa.jsonl"

static err ask(test_folder *f, const char *name, int ranks, settings own) {
    settings common = { SETTINGS_FOR_RANKS("2"),
                        "training.local_batch_size",
                        "2",
                        "validation.tasks",
                        FILES,
                        "validation.tasks_every",
                        "4",
                        "validation.tasks_limit",
                        "6" };
    return run_on_ranks(f, name, common, own, ranks);
}

/* @return the "tasks" of the events of a run, in order; owned. */
static json_t *logged_tasks(test_folder *f, const char *name) {
    char path[64], *next = NULL;
    snprintf(path, sizeof path, "%s/events.jsonl", name);
    char *text = folder_read(f, path);
    json_t *list = json_array();
    for (char *line = strtok_r(text, "\n", &next); line; line = strtok_r(NULL, "\n", &next)) {
        json_t *o = json_loads(line, 0, NULL);
        const char *event = json_string_value(json_object_get(o, "event"));
        if (event && !strcmp(event, "tasks")) json_array_append(list, json_object_get(o, "tasks"));
        json_decref(o);
    }
    free(text);
    return list;
}

static double figure_of(const json_t *tasks, size_t i, const char *file, const char *key) {
    const json_t *v = json_object_get(json_object_get(json_array_get(tasks, i), file), key);
    if (!json_is_number(v)) fail_msg("round %zu has no %s of %s", i, key, file);
    return json_number_value(v);
}

/* Every 4 steps, and after the last one. What is logged is what `ingot eval` would print. */
static void questions_are_asked_on_schedule(void **state) {
    test_folder *f = *state;
    assert_ok(ask(f, "one", 1, (settings){ NULL }));
    json_t *steps = logged_steps(f, "one"), *rounds = logged_tasks(f, "one");
    assert_int_equal(json_array_size(rounds), 2);
    for (size_t i = 0; i < 6; i++) {
        const json_t *tasks = json_object_get(json_array_get(steps, i), "tasks");
        assert_true((tasks != NULL) == (i == 3 || i == 5));
        if (!tasks) continue;
        size_t round = i == 5;
        double acc = json_number_value(json_object_get(json_object_get(tasks, "piqa"), "acc"));
        assert_true(acc >= 0 && acc <= 1 && acc == figure_of(rounds, round, "piqa", "acc"));
        assert_true(figure_of(rounds, round, "hellaswag", "questions") == 6);
    }
    /* training changes what the model makes of them */
    assert_true(figure_of(rounds, 0, "piqa", "likelihood") !=
                figure_of(rounds, 1, "piqa", "likelihood"));
    json_decref(steps);
    json_decref(rounds);
}

static void layouts_answer_alike(void **state) {
    static const struct {
        const char *name;
        int ranks;
        settings layout;
    } cases[] = {
        { "dp", 2, { "parallelism.zero_stage", "3" } },
        { "tp", 2, { "parallelism.tensor_parallel_degree", "2" } },
        { "cp", 2, { "parallelism.context_parallel_degree", "2" } },
        { "pp", 2, { "parallelism.pipeline_parallel_degree", "2" } },
        { "mixed",
          4,
          { "parallelism.tensor_parallel_degree", "2", "parallelism.zero_stage", "1" } },
    };
    static const char *const files[] = { "hellaswag", "piqa" };
    test_folder *f = *state;
    assert_ok(ask(f, "one", 1, (settings){ NULL }));
    json_t *one = logged_tasks(f, "one");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        settings own;
        memcpy(own, cases[i].layout, sizeof own);
        assert_ok(ask(f, cases[i].name, cases[i].ranks, own));
        json_t *many = logged_tasks(f, cases[i].name);
        assert_int_equal(json_array_size(many), 2);
        for (size_t k = 0; k < 2 * COUNT_OF(files); k++) {
            const char *file = files[k / 2];
            double a = figure_of(one, k % 2, file, "likelihood"),
                   b = figure_of(many, k % 2, file, "likelihood");
            if (!(fabs(a - b) <= 1e-5 * fabs(a)))
                fail_msg("%s: %s: a likelihood of %.9g, on one rank %.9g", cases[i].name, file, b,
                         a);
            assert_true(figure_of(one, k % 2, file, "acc") == figure_of(many, k % 2, file, "acc"));
            assert_true(figure_of(one, k % 2, file, "acc_norm") ==
                        figure_of(many, k % 2, file, "acc_norm"));
        }
        json_decref(many);
    }
    json_decref(one);
}

static void bad_questions_are_refused(void **state) {
    test_folder *f = *state;
    assert_error(ask(f, "run", 1, (settings){ "validation.tasks", "/nowhere.jsonl" }), "/nowhere");
    assert_error(ask(f, "run", 1,
                     (settings){ "validation.tasks", FIXTURES "/eval/piqa.jsonl," FIXTURES
                                                              "/eval/../eval/piqa.jsonl" }),
                 "two files are called piqa");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(questions_are_asked_on_schedule, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(layouts_answer_alike, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(bad_questions_are_refused, folder_setup, folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
