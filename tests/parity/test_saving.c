/* Checkpoints of whole runs: written beside the training as they would be while it waits, tried again when
 * the disk refuses them, weights alone between them, and what is kept. */
#include "support/train.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "train/saving_internal.h"

/* ---- files of checkpoints -------------------------------------------------------------------- */
static const char *file_of(test_folder *f, const char *run, const char *root, int step,
                           const char *name) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s/step-%08d/%s", run, root, step, name);
    return in_folder(f, path);
}

static bool has_step(test_folder *f, const char *run, const char *root, int step) {
    return io_exists(file_of(f, run, root, step, "manifest.json"));
}

static void assert_same_bytes(const char *a, const char *b) {
    char *x, *y;
    size_t n, m;
    assert_ok(io_read(a, 1 << 28, &x, &n));
    assert_ok(io_read(b, 1 << 28, &y, &m));
    if (n != m || memcmp(x, y, n)) fail_msg("%s and %s differ", a, b);
    free(x);
    free(y);
}

static void assert_same_checkpoint(test_folder *f, const char *a, const char *b, int step) {
    static const char *const files[] = { "model.safetensors", "optim.safetensors" };
    for (size_t i = 0; i < COUNT_OF(files); i++)
        assert_same_bytes(file_of(f, a, "checkpoints", step, files[i]),
                          file_of(f, b, "checkpoints", step, files[i]));
}

static int count_events(test_folder *f, const char *run, const char *event) {
    char path[64], text[64], *next = NULL;
    int n = 0;
    snprintf(path, sizeof path, "%s/events.jsonl", run);
    snprintf(text, sizeof text, "\"%s\"", event);
    char *events = folder_read(f, path);
    for (char *line = strtok_r(events, "\n", &next); line; line = strtok_r(NULL, "\n", &next))
        n += strstr(line, text) != NULL;
    free(events);
    return n;
}

/* ---- beside the training ----------------------------------------------------------------------- */
static void saved_beside_as_while_waiting(void **state) {
    test_folder *f = *state;
    static const char *const optimizers[] = { "adamw", "adam8bit", "muon" };
    for (size_t i = 0; i < COUNT_OF(optimizers); i++) {
        char a[32], b[32];
        snprintf(a, sizeof a, "beside-%zu", i);
        snprintf(b, sizeof b, "waiting-%zu", i);
        train_small(f, a,
                    (settings){ "optimizer.name", optimizers[i], "checkpoint.every", "1",
                                "checkpoint.keep_latest_k", "0" });
        train_small(f, b,
                    (settings){ "optimizer.name", optimizers[i], "checkpoint.every", "1",
                                "checkpoint.keep_latest_k", "0", "checkpoint.async", "false" });
        for (int step = 1; step <= 8; step++) assert_same_checkpoint(f, a, b, step);
        assert_int_equal(count_events(f, a, "save"), 8);
    }
}

/* ---- a disk that refuses ------------------------------------------------------------------------- */
typedef struct obstacle {
    const char *events, *in_the_way; /* paths */
    _Atomic bool seen;
} obstacle;

/* Frees the way once an alert was written. */
static void *remove_obstacle(void *arg) {
    obstacle *o = arg;
    for (int i = 0; i < 60000 && !atomic_load(&o->seen); i++) {
        char *text = NULL;
        err e = io_exists(o->events) ? io_read(o->events, 1 << 28, &text, NULL) : OK;
        if (!e && text && strstr(text, "save_failed")) {
            unlink(o->in_the_way);
            atomic_store(&o->seen, true);
        }
        err_free(e);
        free(text);
        nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    }
    return NULL;
}

/* A save that fails is an alert; training continues, and the save is tried again. */
static void a_failed_save_is_tried_again(void **state) {
    test_folder *f = *state;
    obstacle o = { in_folder(f, "run/events.jsonl"), in_folder(f, "run/checkpoints"), false };
    pthread_t thread;
    assert_ok(io_make_dirs(in_folder(f, "run")));
    folder_write(f, "run/checkpoints", "in the way of a folder");
    assert_int_equal(pthread_create(&thread, NULL, remove_obstacle, &o), 0);
    log_set_level(LOG_ERROR);
    err e = try_train(f, "run",
                      (settings){ "checkpoint.every", "2", "training.steps",
                                  SANITIZED ? "200" : "600", "checkpoint.keep_latest_k", "0" });
    atomic_store(&o.seen, true);
    pthread_join(thread, NULL);
    log_set_level(LOG_WARN);
    assert_ok(e);
    assert_true(count_events(f, "run", "save_failed") >= 1);
    assert_true(count_events(f, "run", "save") >= 2); /* some step's, and the last one's */
    assert_true(has_step(f, "run", "checkpoints", SANITIZED ? 200 : 600));
}

/* The last one ends the run: there is nothing left to try it in. */
static void the_last_save_must_succeed(void **state) {
    test_folder *f = *state;
    assert_ok(io_make_dirs(in_folder(f, "run")));
    folder_write(f, "run/checkpoints", "in the way of a folder");
    log_set_level(LOG_ERROR);
    err e = try_train(f, "run", (settings){ "checkpoint.every", "2" });
    log_set_level(LOG_WARN);
    assert_error(e, "checkpoints");
    assert_true(count_events(f, "run", "save_failed") >= 2);
}

/* Steps after the last save are lost at the next fault: a disk that is full over lunch is waited for, one that
 * no one watches is not. */
static void saves_that_keep_failing_end_the_run(void **state) {
    for (int64_t failures = 0; failures < 100; failures++)
        for (double hours = 0; hours < 10; hours++)
            assert_true(saving_gives_up(failures, hours * 3600) == (failures >= 10 && hours >= 2));
}

/* ---- weights alone ------------------------------------------------------------------------------ */
static void weights_alone_are_found_and_never_continued_from(void **state) {
    test_folder *f = *state;
    settings own = { "checkpoint.every", "4", "checkpoint.weights_every", "1",
                     "training.stop",    "7", "checkpoint.keep_weights",  "2" };
    char *path;
    train_small(f, "run", own);
    assert_true(has_step(f, "run", "checkpoints", 4) && has_step(f, "run", "checkpoints", 7));
    assert_true(!has_step(f, "run", "weights", 3)); /* the two before the last are kept */
    assert_true(has_step(f, "run", "weights", 5) && has_step(f, "run", "weights", 6));
    assert_true(!io_exists(file_of(f, "run", "weights", 6, "optim.safetensors")));
    assert_ok(ckpt_find(in_folder(f, "run"), &path)); /* of step 7 both could be taken */
    assert_non_null(strstr(path, "checkpoints/step-00000007"));
    free(path);
    /* as after a kill: weights are newer than what the run continues from */
    assert_ok(io_remove_tree(f->path, in_folder(f, "run/checkpoints/step-00000007")));
    assert_ok(ckpt_find(in_folder(f, "run"), &path));
    assert_non_null(strstr(path, "weights/step-00000006"));
    free(path);
    train_small(f, "run", (settings){ "checkpoint.weights_every", "0" });
    assert_true(io_is_dir(in_folder(f, "run/weights/superseded-step-00000006")));
    train_small(f, "whole", (settings){ "checkpoint.weights_every", "0" });
    assert_same_checkpoint(f, "run", "whole", 8);
}

/* ---- branches --------------------------------------------------------------------------------------- */
/* A WSD run that has ended continues from before its learning rate fell, as if it had been planned longer. */
static void a_run_is_extended_from_before_its_decay(void **state) {
    test_folder *f = *state;
#define WSD                                                                                        \
    "lr_scheduler.name", "wsd", "lr_scheduler.warmup", "2", "lr_scheduler.decay", "3",             \
        "checkpoint.every", "2", "checkpoint.keep_latest_k", "0"
    train_small(f, "short", (settings){ WSD });
    train_small(f, "long", (settings){ WSD, "training.steps", "12" });
    train_small(f, "branch",
                (settings){ WSD, "training.steps", "12", "checkpoint.branch_path",
                            in_folder(f, "short/checkpoints/step-00000004"), "training.stop",
                            "6" });
    assert_true(!has_step(f, "branch", "checkpoints", 4) &&
                has_step(f, "branch", "checkpoints", 6));
    assert_int_equal(count_events(f, "branch", "branch"), 1);
    /* the same command continues the new run */
    train_small(f, "branch",
                (settings){ WSD, "training.steps", "12", "checkpoint.branch_path",
                            in_folder(f, "short/checkpoints/step-00000004") });
    assert_same_checkpoint(f, "branch", "long", 12);
}

static void what_cannot_be_branched_from_is_refused(void **state) {
    test_folder *f = *state;
    train_small(f, "run", (settings){ "checkpoint.weights_every", "1" });
    const char *weights = in_folder(f, "run/weights/step-00000007");
    assert_error(try_train(f, "a", (settings){ "checkpoint.branch_path", weights }),
                 "weights alone");
    assert_error(try_train(f, "a", (settings){ "checkpoint.branch_path", f->path }),
                 "no checkpoint");
    assert_error(try_train(f, "a",
                           (settings){ "checkpoint.branch_path", in_folder(f, "run"),
                                       "checkpoint.initial_load_path", in_folder(f, "run") }),
                 "both");
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_setup, folder_teardown)
    const struct CMUnitTest tests[] = {
        TEST(saved_beside_as_while_waiting),
        TEST(a_failed_save_is_tried_again),
        TEST(the_last_save_must_succeed),
        TEST(saves_that_keep_failing_end_the_run),
        TEST(weights_alone_are_found_and_never_continued_from),
        TEST(a_run_is_extended_from_before_its_decay),
        TEST(what_cannot_be_branched_from_is_refused),
    };
    if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 0); /* without fsync */
    return cmocka_run_group_tests_name("saving", tests, NULL, NULL);
}
