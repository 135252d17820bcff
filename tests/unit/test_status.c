/* The state of a run: what the run writes is read back, and how it ended is known also where it could not write it. */
#include "support/folder.h"

#include <math.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "observe/observe.h"
#include "observe/status.h"

static observe *open_log(const char *dir, int64_t first) {
    observe *o = NULL;
    assert_ok(observe_open(
        &(observe_options){ .dir = dir, .first_step = first, .steps = 40, .total_tokens = 4000 },
        &o));
    return o;
}

static void log_steps(observe *o, int from, int to) {
    for (int i = from; i <= to; i++) {
        observe_step s = OBSERVE_STEP_NONE;
        s.step = i;
        s.tokens = 100 * i;
        s.loss = 5.0 / i;
        s.time = (int64_t)time(NULL);
        s.eta_s = 40 - i;
        assert_ok(observe_log(o, &s));
    }
}

static run_status read_run(const char *dir) {
    run_status s;
    series *all = series_new(dir);
    assert_ok(series_update(all));
    status_read(dir, all, &s);
    series_free(all);
    return s;
}

static json_t *alert_of(const char *name) {
    return json_pack("{s:s, s:s, s:s}", "alert", name, "message", "the loss is 9", "remedy",
                     "look at the data");
}

static void a_run_is_followed_to_its_end(void **state) {
    const char *dir = *state;
    observe *o = open_log(dir, 0);
    run_status s = read_run(dir);
    assert_int_equal(s.state, RUN_RUNNING);
    assert_int_equal(s.steps, 40);
    log_steps(o, 1, 10);
    assert_ok(observe_event(o, "save", 8, NULL));
    for (int i = 0; i < 5; i++) {
        char name[16];
        snprintf(name, sizeof name, "alert_%d", i);
        assert_ok(observe_event(o, "alert", i, alert_of(name)));
    }
    s = read_run(dir);
    assert_int_equal(s.state, RUN_RUNNING);
    assert_int_equal(s.step, 10);
    assert_int_equal(s.checkpoint, 8);
    assert_int_equal(s.alerts, 5);
    assert_int_equal(s.n_last, STATUS_ALERTS);
    assert_string_equal(s.last[0].name, "alert_4");
    assert_string_equal(s.last[2].name, "alert_2");
    assert_string_equal(s.last[0].remedy, "look at the data");
    assert_true(s.tokens == 1000 && s.total_tokens == 4000 && s.eta_s == 30);
    str line = { 0 };
    status_line(&s, &line);
    assert_string_equal(line.text, "running: step 10 of 40 (25 %), 1.00 k of 4.00 k tokens, 30s "
                                   "left, last checkpoint: step 8, 5 alerts");
    str_free(&line);
    log_steps(o, 11, 40);
    assert_ok(observe_event(o, "finish", 40, NULL));
    observe_close(o);
    s = read_run(dir);
    assert_int_equal(s.state, RUN_FINISHED);
    assert_int_equal(s.step, 40);
    assert_true(isnan(s.eta_s));
}

static void ends_have_causes(void **state) {
    const char *dir = *state;
    static const struct {
        const char *event;
        run_state state;
    } ends[] = { { "stop", RUN_STOPPED }, { "failure", RUN_DIED } };
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        observe *o = open_log(dir, i ? 6 : 0);
        log_steps(o, i ? 6 : 1, i ? 9 : 5);
        assert_ok(observe_event(
            o, ends[i].event, i ? 9 : 5,
            json_pack("{s:s, s:s}", "message", "why it ended", "remedy", "what to do")));
        observe_close(o);
        run_status s = read_run(dir);
        assert_int_equal(s.state, ends[i].state);
        assert_string_equal(s.cause, "why it ended");
        assert_string_equal(s.remedy, "what to do");
        assert_int_equal(s.restarts, 0); /* of the same process: it rolls back */
    }
}

/* Runs `body` in a process of its own, which does not end in order. */
static void in_killed_process(const char *dir, int64_t first, int last) {
    pid_t child = fork();
    if (!child) {
        observe *o = open_log(dir, first);
        log_steps(o, (int)MAX(first, 1), last);
        err_free(observe_event(o, "save", last, NULL));
        raise(SIGKILL);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
}

static void a_killed_process_is_found_dead(void **state) {
    const char *dir = *state;
    in_killed_process(dir, 0, 7);
    run_status s = read_run(dir);
    assert_int_equal(s.state, RUN_DIED);
    assert_int_equal(s.step, 7);
    assert_int_equal(s.checkpoint, 7);
    assert_non_null(strstr(s.cause, "was killed"));
    assert_non_null(strstr(s.remedy, "continues from the last checkpoint"));
    in_killed_process(dir, 8, 9);
    s = read_run(dir);
    assert_int_equal(s.restarts, 1);
    char line[200];
    snprintf(line, sizeof line,
             "{\"attempt\":1,\"time\":%lld,\"status\":137,\"rank\":3,\"host\":\"node7\",\"cause\":"
             "\"out of memory\"}\n",
             (long long)time(NULL) + 5);
    folder_write(*state, "launch.jsonl", line);
    s = read_run(dir);
    assert_string_equal(s.cause, "rank 3 on node7: out of memory");
}

/* Another machine's process ids mean nothing here: only a long silence does. */
static void other_machines_are_judged_by_silence(void **state) {
    const char *dir = *state;
    run_status s;
    for (int late = 0; late < 2; late++) {
        status_begin(dir, 3, 10, NAN, &s);
        snprintf(s.machine, sizeof s.machine, "elsewhere");
        s.pid = 999999999;
        s.updated = (double)time(NULL) - (late ? 100000 : 60);
        assert_ok(status_write(dir, &s));
        assert_int_equal(read_run(dir).state, late ? RUN_DIED : RUN_RUNNING);
    }
    s.step_s = 5000; /* of a very slow run */
    assert_ok(status_write(dir, &s));
    assert_int_equal(read_run(dir).state, RUN_RUNNING);
}

/* A pid that was given to another process since. */
static void a_reused_pid_is_not_the_run(void **state) {
    const char *dir = *state;
    run_status s;
    status_begin(dir, 3, 10, NAN, &s);
    assert_ok(status_write(dir, &s));
    assert_int_equal(read_run(dir).state, RUN_RUNNING);
    s.pid_began--;
    assert_ok(status_write(dir, &s));
    assert_int_equal(read_run(dir).state, RUN_DIED);
}

static void runs_without_a_status_are_derived(void **state) {
    const char *dir = *state;
    assert_int_equal(read_run(dir).state, RUN_UNKNOWN);
    folder_write(*state, "metrics.jsonl", "{\"step\":5,\"tokens\":50,\"loss\":1,\"time\":100}\n");
    folder_write(*state, "events.jsonl",
                 "{\"event\":\"save\",\"step\":4}\n{\"event\":\"resume\",\"step\":4}\n"
                 "{\"event\":\"failure\",\"step\":5,\"message\":\"out of memory\"}\n");
    run_status s = read_run(dir);
    assert_int_equal(s.state, RUN_DIED);
    assert_int_equal(s.step, 5);
    assert_int_equal(s.checkpoint, 4);
    assert_int_equal(s.restarts, 1);
    assert_string_equal(s.cause, "out of memory");
}

/* status.json may be anyone's: no text in it may be taken for more than it is. */
static void damaged_files_are_survived(void **state) {
    static const char *const texts[] = {
        "",
        "{",
        "[]",
        "null",
        "{\"state\": 3}",
        "{\"state\": \"running\", \"pid\": -1e300}",
        "{\"step\": 1e300, \"steps\": -5, \"last_alerts\": [1, {\"step\": \"x\"}, [], null, {}]}",
        "{\"state\": \"died\", \"cause\": {}, \"machine\": 7, \"last_alerts\": {}}"
    };
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        folder_write(*state, STATUS_FILE, texts[i]);
        run_status s = read_run(*state);
        assert_true(s.step >= 0 && s.n_last <= STATUS_ALERTS);
        json_t *o = status_json(&s);
        assert_true(json_is_object(o));
        json_decref(o);
    }
}

/* A text that is cut must not end in half a character. */
static void long_texts_are_cut_whole(void **state) {
    const char *dir = *state;
    for (int shift = 0; shift < 4; shift++) {
        str text = { 0 };
        for (int i = 0; i < shift; i++) str_add(&text, "x");
        for (int i = 0; i < 300; i++) str_add(&text, "\xe2\x82\xac");
        observe *o = open_log(dir, 0);
        assert_ok(observe_event(o, "failure", 1, json_pack("{s:s}", "message", text.text)));
        observe_close(o);
        run_status s = read_run(dir);
        assert_true(strlen(s.cause) > STATUS_TEXT - 5);
        json_t *clean = json_string(s.cause);
        assert_non_null(clean);
        json_decref(clean);
        str_free(&text);
    }
}

int main(void) {
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_setup, folder_teardown)
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_run_is_followed_to_its_end),   IN_FOLDER(ends_have_causes),
        IN_FOLDER(a_killed_process_is_found_dead), IN_FOLDER(other_machines_are_judged_by_silence),
        IN_FOLDER(a_reused_pid_is_not_the_run),    IN_FOLDER(runs_without_a_status_are_derived),
        IN_FOLDER(damaged_files_are_survived),     IN_FOLDER(long_texts_are_cut_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
