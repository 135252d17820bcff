/* TensorBoard event files: what they hold, and that each step is in them once, whatever ended the process
 * that wrote them. */
#include "support/events.h"

#include <signal.h>
#include <sys/wait.h>

#include "observe/observe_internal.h"

static observe *open_at(const char *dir, int64_t first, int64_t rotate) {
    observe *o = NULL;
    json_t *hparams = json_pack("{s:s, s:s}", "optimizer.lr", "0.001", "model.preset", "\"tiny\"");
    assert_ok(observe_open(&(observe_options){ .dir = dir,
                                               .first_step = first,
                                               .tensorboard = true,
                                               .rotate_bytes = rotate,
                                               .hparams = hparams },
                           &o));
    json_decref(hparams);
    return o;
}

static void log_step(observe *o, int i) {
    observe_step s = OBSERVE_STEP_NONE;
    s.step = i;
    s.tokens = 10 * i;
    s.loss = 5 + 1.0 / i;
    s.lr = 0.001;
    s.grad_norm = 1;
    s.tensorboard = true;
    assert_ok(observe_log(o, &s));
}

/* Steps 1 to n, each once and in order. */
static void assert_steps(const char *dir, int n) {
    char *folder = io_join(dir, "tb");
    event_list l = events_read(folder);
    free(folder);
    assert_int_equal(l.damaged, 0);
    for (int i = 0; i < n; i++) {
        const tb_value *v = events_find(&l, "train/loss", i);
        if (!v || v->step != i + 1)
            fail_msg("after step %d comes %lld of %d", i, v ? v->step : -1, n);
        assert_true(v->simple == (float)(5 + 1.0 / (i + 1)));
    }
    assert_null(events_find(&l, "train/loss", n));
    events_free(&l);
}

static void steps_texts_and_histograms_are_read_back(void **state) {
    const char *dir = *state;
    const float weights[] = { -1, 0, 0.5, 0.5, 2, NAN };
    double norms[] = { 1, 2, 3 };
    observe_detail detail = { .blocks = 2, .grad_norm = norms, .param_norm = norms };
    for (int i = 0; i < 3; i++) detail.sample[i] = (observe_sample){ "weights", weights, 6 };
    observe *o = open_at(dir, 0, 0);
    log_step(o, 1);
    observe_step s = OBSERVE_STEP_NONE;
    s.step = 2;
    s.loss = INFINITY; /* has no place in a chart */
    s.lr = 0.5;
    s.detail = &detail;
    s.tensorboard = true;
    assert_ok(observe_log(o, &s));
    assert_ok(observe_text(o, 2, "a\xff!", 3));
    observe_close(o);
    char *folder = io_join(dir, "tb");
    event_list l = events_read(folder);
    assert_true(events_find(&l, "train/learning_rate", 1)->simple == 0.5f);
    assert_null(events_find(&l, "train/loss", 1));
    assert_true(events_find(&l, "progress/total_tokens", 0)->simple == 10);
    assert_true(events_find(&l, "train/grad_norm_by_block/1", 0)->simple == 2);
    assert_true(events_find(&l, "train/param_norm_by_block/other", 0)->simple == 3);
    const tb_value *h = events_find(&l, "train/weights", 0);
    assert_true(h->num == 5 && h->sum == 2 && h->bucket == 5);
    assert_string_equal(events_find(&l, "sample", 0)->text, "a\xef\xbf\xbd!");
    assert_int_equal(events_find(&l, "sample", 0)->step, 2);
    assert_non_null(events_find(&l, "_hparams_/session_start_info", 0));
    events_free(&l);
    free(folder);
}

static void checksums_are_castagnoli(void **state) {
    assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283u);
    assert_int_equal(crc32c(crc32c(0, "1234", 4), "56789", 5), 0xe3069283u);
}

/* A file may end anywhere: what is whole stays, and the steps after it are written again. */
static void files_truncated_anywhere_resume(void **state) {
    const char *dir = *state;
    observe *o = open_at(dir, 0, 0);
    for (int i = 1; i <= 3; i++) log_step(o, i);
    observe_close(o);
    char *folder = io_join(dir, "tb"), **names;
    int n;
    assert_ok(io_list(folder, &names, &n));
    assert_int_equal(n, 1);
    char *path = io_join(folder, names[0]), *text;
    io_list_free(names, n);
    size_t size;
    assert_ok(io_read(path, 1 << 20, &text, &size));
    for (size_t cut = 0; cut < size; cut += 7) {
        assert_ok(io_remove_tree(dir, folder));
        assert_ok(io_make_dirs(folder));
        assert_ok(io_write(path, text, cut));
        event_list l = events_read(folder);
        int whole = 0;
        while (events_find(&l, "train/loss", whole)) whole++;
        events_free(&l);
        o = open_at(dir, whole + 1, 0);
        for (int i = whole + 1; i <= 3; i++) log_step(o, i);
        observe_close(o);
        assert_steps(dir, 3);
    }
    free(text);
    free(path);
    free(folder);
}

static void files_rotate_and_resume(void **state) {
    const char *dir = *state;
    observe *o = open_at(dir, 0, 2000);
    for (int i = 1; i <= 200; i++) log_step(o, i);
    observe_close(o);
    char *folder = io_join(dir, "tb");
    event_list l = events_read(folder);
    assert_true(l.files > 5 && l.starts == 0);
    events_free(&l);
    assert_steps(dir, 200);
    o = open_at(dir, 61, 2000); /* most files are of later steps alone */
    assert_steps(dir, 60);
    for (int i = 61; i <= 90; i++) log_step(o, i);
    observe_close(o);
    assert_steps(dir, 90);
    l = events_read(folder);
    assert_int_equal(l.starts, 1);
    events_free(&l);
    observe_close(open_at(dir, 0, 0)); /* a new run */
    assert_steps(dir, 0);
    free(folder);
}

/* A process that is killed while it logs, again and again, each time continued from a step at which it
 * might have saved. */
static void kill_leaves_every_step_once(void **state) {
    const char *dir = *state;
    int done = 0;
    for (int round = 0; round < 12; round++) {
        int ready[2];
        char byte;
        assert_int_equal(pipe(ready), 0);
        pid_t child = fork();
        if (child == 0) {
            observe *o = open_at(dir, done ? done + 1 : 0, 3000);
            for (int i = done + 1; i <= 100000; i++) {
                log_step(o, i);
                if (i == done + 5 + round && write(ready[1], "x", 1) != 1) break;
            }
            _exit(0);
        }
        close(ready[1]);
        assert_int_equal(read(ready[0], &byte, 1), 1);
        usleep(1000 * (unsigned)(round % 4));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        close(ready[0]);
        done += 3 + round; /* the last checkpoint */
    }
    observe *o = open_at(dir, done + 1, 0);
    assert_steps(dir, done);
    log_step(o, done + 1);
    observe_close(o);
    assert_steps(dir, done + 1);
    char *path = io_join(dir, "metrics.jsonl"), *text, *next = NULL;
    assert_ok(io_read(path, 1 << 26, &text, NULL));
    int lines = 0;
    for (char *line = strtok_r(text, "\n", &next); line; line = strtok_r(NULL, "\n", &next)) {
        json_t *step = json_loads(line, 0, NULL);
        assert_int_equal(json_integer_value(json_object_get(step, "step")), ++lines);
        json_decref(step);
    }
    assert_int_equal(lines, done + 1);
    free(text);
    free(path);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_setup, folder_teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(steps_texts_and_histograms_are_read_back),
        cmocka_unit_test(checksums_are_castagnoli),
        IN_FOLDER(files_truncated_anywhere_resume),
        IN_FOLDER(files_rotate_and_resume),
        IN_FOLDER(kill_leaves_every_step_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
