/* observe: the logs across a resume, and the progress line. */
#include "support/folder.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "observe/observe.h"

static void assert_holds(const char *dir, const char *name, const char *expected) {
    char path[128], *text = NULL;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_ok(io_read(path, 1 << 20, &text, NULL));
    assert_string_equal(text, expected);
    free(text);
}

static void log_steps(observe *o, int first, int last) {
    for (int i = first; i <= last; i++) {
        observe_step s = OBSERVE_STEP_NONE;
        s.step = i;
        s.tokens = 10 * i;
        s.loss = i + 0.5;
        s.lr = 0.001;
        s.grad_norm = i == 2 ? INFINITY : 1;
        if (i == 3) s.val_loss = 7;
        assert_ok(observe_log(o, &s));
    }
}

#define LINE(n, loss, rest)                                                                        \
    "{\"step\":" n ",\"tokens\":" n "0,\"loss\":" loss ",\"grad_norm\":" rest "}\n"
#define LINE1 LINE("1", "1.5", "1,\"lr\":0.001,\"perplexity\":4.48168907")
#define LINE2 LINE("2", "2.5", "null,\"lr\":0.001,\"perplexity\":12.182494")
#define LINE3                                                                                      \
    LINE("3", "3.5",                                                                               \
         "1,\"lr\":0.001,\"perplexity\":33.115452,\"val_loss\":7,"                                 \
         "\"val_ppl\":1096.63316")

static void steps_are_lines(void **state) {
    observe *o = NULL;
    assert_ok(observe_open(&(observe_options){ .dir = *state, .first_step = 0 }, &o));
    log_steps(o, 1, 3);
    assert_holds(*state, "metrics.jsonl", LINE1 LINE2 LINE3); /* at once, before closing */
    observe_close(o);
}

/* metrics.jsonl alone, removed or moved away in a run: the next step begins it anew. */
static void a_log_that_is_removed_begins_anew(void **state) {
    observe *o = NULL;
    char *path = io_join(*state, "metrics.jsonl"), *away = io_join(*state, "away");
    assert_ok(observe_open(&(observe_options){ .dir = *state, .first_step = 0 }, &o));
    log_steps(o, 1, 1);
    assert_int_equal(unlink(path), 0);
    log_steps(o, 2, 2);
    assert_holds(*state, "metrics.jsonl", LINE2);
    assert_int_equal(rename(path, away), 0);
    log_steps(o, 3, 3);
    assert_holds(*state, "metrics.jsonl", LINE3);
    assert_holds(*state, "away", LINE2);
    observe_close(o);
    free(path);
    free(away);
}

static void resume_takes_out_later_steps(void **state) {
    observe *o = NULL;
    char path[128];
    assert_ok(observe_open(&(observe_options){ .dir = *state, .first_step = 0 }, &o));
    log_steps(o, 1, 3);
    observe_close(o);
    snprintf(path, sizeof path, "%s/metrics.jsonl", (char *)*state);
    int fd;
    assert_ok(io_append_open(path, &fd));
    assert_ok(io_append(fd, path, "{\"step\":1,\"lo", 13)); /* truncated by a crash */
    fclose(fdopen(fd, "a"));
    assert_ok(observe_open(&(observe_options){ .dir = *state, .first_step = 4 }, &o));
    observe_close(o);
    assert_holds(*state, "metrics.jsonl", LINE1 LINE2 LINE3);
    assert_ok(observe_open(&(observe_options){ .dir = *state, .first_step = 2 }, &o));
    assert_holds(*state, "metrics.jsonl", LINE1);
    log_steps(o, 2, 3);
    observe_close(o);
    assert_holds(*state, "metrics.jsonl", LINE1 LINE2 LINE3);
    assert_ok(observe_open(&(observe_options){ .dir = *state, .first_step = 0 }, &o));
    observe_close(o);
    assert_holds(*state, "metrics.jsonl", "");
}

/* A crash may have cut off the newline alone: the next line would run on from that one. */
static void resume_after_a_missing_newline(void **state) {
    observe *o = NULL;
    char path[128];
    snprintf(path, sizeof path, "%s/metrics.jsonl", (char *)*state);
    assert_ok(io_write(path, LINE1 "{\"step\":2}", strlen(LINE1) + 10));
    assert_ok(observe_open(&(observe_options){ .dir = *state, .first_step = 3 }, &o));
    log_steps(o, 3, 3);
    observe_close(o);
    assert_holds(*state, "metrics.jsonl", LINE1 LINE3);
}

static void events_stay(void **state) {
    observe *o = NULL;
    char path[128], *text = NULL;
    assert_ok(observe_open(&(observe_options){ .dir = *state, .first_step = 0 }, &o));
    assert_ok(observe_event(o, "saved", 5, json_pack("{s:s}", "path", "x")));
    observe_close(o);
    assert_ok(observe_open(&(observe_options){ .dir = *state, .first_step = 1 }, &o));
    assert_ok(observe_event(o, "resumed", 1, NULL));
    observe_close(o);
    snprintf(path, sizeof path, "%s/events.jsonl", (char *)*state);
    assert_ok(io_read(path, 4096, &text, NULL));
    assert_true(str_starts(text, "{\"event\":\"saved\",\"step\":5,\"time\":"));
    assert_non_null(strstr(text, ",\"path\":\"x\"}\n{\"event\":\"resumed\",\"step\":1,\"time\":"));
    free(text);
}

/* A power failure cut off the end of the last event, or its newline alone. */
static void events_after_a_cut_begin_a_line(void **state) {
    static const char whole[] = "{\"event\":\"a\"}\n{\"event\":\"b\"}";
    char path[128], *text = NULL;
    snprintf(path, sizeof path, "%s/events.jsonl", (char *)*state);
    for (size_t cut = 0; cut < 5; cut += 4) {
        observe *o = NULL;
        assert_ok(io_write(path, whole, strlen(whole) - cut));
        assert_ok(observe_open(&(observe_options){ .dir = *state, .first_step = 1 }, &o));
        assert_ok(observe_event(o, "resume", 1, NULL));
        observe_close(o);
        assert_ok(io_read(path, 4096, &text, NULL));
        assert_true(str_starts(text, "{\"event\":\"a\"}\n{\"event\":\""));
        assert_non_null(strstr(text, "}\n{\"event\":\"resume\","));
        assert_int_equal(!cut, strstr(text, "\"b\"") != NULL);
        free(text);
    }
}

static void missing_folder_is_an_error(void **state) {
    observe *o = NULL;
    err e = observe_open(&(observe_options){ .dir = "/nonexistent/run" }, &o);
    assert_non_null(e);
    assert_non_null(strstr(err_message(e), "/nonexistent/run/metrics.jsonl"));
    err_free(e);
    assert_null(o);
}

static observe_step full_step(void) {
    observe_step s = OBSERVE_STEP_NONE;
    s.step = 120;
    s.total_steps = 1000;
    s.loss = 3.21543;
    s.lr = 3e-4;
    s.grad_norm = 1.0204;
    s.tok_s = 52100;
    s.mfu = 0.4123;
    s.eta_s = 200;
    return s;
}

static void assert_line(const observe_step *s, int width, bool color, const char *expected) {
    str line = { 0 };
    progress_format(&line, s, width, color);
    assert_string_equal(line.text, expected);
    str_free(&line);
}

static void line_fits_the_width(void **state) {
    observe_step s = full_step();
    assert_line(
        &s, 0, false,
        "step 120/1000  loss 3.2154  lr 3.00e-04  norm 1.020  52.1 k tok/s  MFU 41.2%  ETA 3m 20s");
    assert_line(&s, 79, false,
                "step 120/1000  loss 3.2154  norm 1.020  52.1 k tok/s  MFU 41.2%  ETA 3m 20s");
    assert_line(&s, 40, false, "step 120/1000  loss 3.2154  ETA 3m 20s");
    assert_line(&s, 26, false, "step 120/1000  loss 3.2154");
    assert_line(&s, 20, false, "step 120/1000  loss ");
    assert_line(&s, 26, true, "step 120/1000  \033[1mloss 3.2154\033[0m");
    s = OBSERVE_STEP_NONE;
    s.step = 3;
    assert_line(&s, 0, true, "step 3  \033[31mloss nan\033[0m");
    for (int width = 1; width < 100; width++) {
        str line = { 0 };
        s = full_step();
        progress_format(&line, &s, width, false);
        assert_true(line.len <= (size_t)width);
        str_free(&line);
    }
}

static void plain_lines_where_no_terminal(void **state) {
    char *text = NULL;
    size_t size = 0;
    char path[128];
    snprintf(path, sizeof path, "%s/out", (char *)*state);
    FILE *f = fopen(path, "w");
    progress *p = progress_new(f);
    assert_false(progress_is_live(p));
    observe_step s = OBSERVE_STEP_NONE;
    s.step = 1;
    s.loss = 2;
    progress_show(p, &s);
    progress_note(p, "saved %d", 1);
    s.step = 2;
    progress_show(p, &s);
    progress_free(p);
    fclose(f);
    assert_ok(io_read(path, 4096, &text, &size));
    assert_string_equal(text, "step 1  loss 2.0000\nsaved 1\nstep 2  loss 2.0000\n");
    free(text);
}

/* A terminal counts as one only if TERM names one that understands escape codes. */
static void plain_lines_on_a_dumb_terminal(void **state) {
    static const struct {
        const char *kind; /* NULL: not set */
        bool live;
    } terminals[] = { { "xterm", true }, { "dumb", false }, { NULL, false } };
    const char *set = getenv("TERM");
    char *before = set ? strdup(set) : NULL;
    int control = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(control >= 0 && grantpt(control) == 0 && unlockpt(control) == 0);
    int terminal = open(ptsname(control), O_RDWR | O_NOCTTY);
    FILE *f = fdopen(terminal, "w");
    assert_non_null(f);
    for (size_t i = 0; i < COUNT_OF(terminals); i++) {
        if (terminals[i].kind)
            setenv("TERM", terminals[i].kind, 1);
        else
            unsetenv("TERM");
        progress *p = progress_new(f);
        assert_true(progress_is_live(p) == terminals[i].live);
        assert_true(terminals[i].live || !term_has_color(f));
        progress_free(p);
    }
    if (before)
        setenv("TERM", before, 1);
    else
        unsetenv("TERM");
    free(before);
    fclose(f);
    close(control);
}

/* A disk that takes no more: lines are kept, none is ever seen in half, and all come later, in order. */
static void a_full_disk_delays_lines(void **state) {
    observe *o = NULL;
    struct rlimit before, small;
    assert_ok(observe_open(&(observe_options){ .dir = *state, .first_step = 0 }, &o));
    log_steps(o, 1, 1);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = strlen(LINE1) + 20; /* bytes: the next line is cut off in its middle */
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    log_steps(o, 2, 2);
    assert_error(observe_take_failure(o), "metrics.jsonl");
    assert_holds(*state, "metrics.jsonl", LINE1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    log_steps(o, 3, 3);
    assert_ok(observe_take_failure(o));
    assert_holds(*state, "metrics.jsonl", LINE1 LINE2 LINE3);
    observe_close(o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, folder_setup, folder_teardown)
        T(steps_are_lines),
        T(a_log_that_is_removed_begins_anew),
        T(resume_takes_out_later_steps),
        T(resume_after_a_missing_newline),
        T(events_stay),
        T(events_after_a_cut_begin_a_line),
        T(a_full_disk_delays_lines),
        T(missing_folder_is_an_error),
        T(line_fits_the_width),
        T(plain_lines_where_no_terminal),
        T(plain_lines_on_a_dumb_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
