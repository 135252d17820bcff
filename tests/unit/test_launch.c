/* ingot launch without processes: hosts and spares, what the output of a failing job shows, and when a job is
 * started again. */
#include "support/test.h"

#include <signal.h>
#include <string.h>

#include "cli/launch.h"

static launch_fault read_lines(const char *const *lines, int n) {
    launch_fault f = LAUNCH_FAULT_NONE;
    for (int i = 0; i < n; i++) launch_fault_read(&f, lines[i]);
    return f;
}
#define READ(...)                                                                                  \
    read_lines((const char *const[]){ __VA_ARGS__ },                                               \
               (int)COUNT_OF(((const char *const[]){ __VA_ARGS__ })))

static void assert_fault(launch_fault f, int rank, const char *host, const char *cause) {
    assert_int_equal(f.rank, rank);
    assert_string_equal(f.host, host);
    assert_string_equal(f.cause, cause);
}

static void rank_errors_name_rank_host_and_cause(void **state) {
    assert_fault(READ("step 3/10  loss 2", "error: rank 3 (host-b): no space left on device"), 3,
                 "host-b", "no space left on device");
    assert_fault(READ("\x1b[1;31merror:\x1b[0m rank 3 (b): x"), -1, "",
                 ""); /* colors: a terminal's */
    assert_fault(READ("error: rank x (host-b): nothing"), -1, "", "");
    assert_fault(READ("nothing at all"), -1, "", "");
    assert_fault(READ("error: 2 of 4 ranks computed, stored or sent wrong values: rank 2 (host-b): "
                      "memory is wrong; rank 3 (host-c): GEMM is wrong"),
                 2, "host-b", "memory is wrong");
    /* One that ends because of another is not the one to name, in whatever order they print. */
    const char *echo = "error: rank 1 (b): rank 1 ends because another rank failed",
               *own = "error: rank 0 (a): --out: 2 ranks need a folder";
    assert_fault(READ(echo, own), 0, "a", "--out: 2 ranks need a folder");
    assert_fault(READ(own, echo), 0, "a", "--out: 2 ranks need a folder");
}

static void who_is_awaited_is_the_culprit(void **state) {
    const char *hang =
        "error: rank 0 (host-a): rank 0 has waited 2 s in all-gather over dp_shard for "
        "rank 5 (host-c), which has not started it";
    assert_fault(READ(hang), 5, "host-c", hang + strlen("error: rank 0 (host-a): "));
    const char *gone =
        "error: rank 1 (host-a): rank 1 ends in sum over tp: rank 2 (host-b) has ended";
    assert_fault(READ(gone), 2, "host-b", gone + strlen("error: rank 1 (host-a): "));
    const char *other =
        "error: rank 0 (a): step 8: rank 2 (b) holds other weights or optimizer state";
    assert_int_equal(READ(other).rank, 2);
    /* Several: nobody in particular. */
    const char *many =
        "error: rank 0 (a): rank 0 has waited 2 s in sum over dp_shard for rank 1 (a), "
        "rank 3 (b), which have not started it";
    assert_int_equal(READ(many).rank, 0);
    /* ... unless one of them waits for nobody. */
    const char *deep =
        "error: rank 0 (a): rank 0 has waited 2 s in sum over dp_shard for rank 1 (a), "
        "which has not started it; it hangs in rank 3 (b), which waits for nobody";
    assert_int_equal(READ(deep).rank, 3);
    assert_string_equal(READ(deep).host, "b");
}

static void starters_report_signals_and_hosts(void **state) {
    assert_fault(READ("mpirun noticed that process rank 2 with PID 17 on node host-b exited on "
                      "signal 9 (Killed)."),
                 2, "host-b", "ended by signal 9 (Killed)");
    assert_fault(READ("srun: error: host-b: task 3: Killed"), 3, "host-b", "Killed");
    assert_fault(READ("ssh: connect to host host-d port 22: Connection refused"), -1, "host-d",
                 "the host cannot be reached");
    assert_fault(READ("  Remote node:   10.77.13.9"), -1, "10.77.13.9",
                 "the host cannot be reached");
    launch_fault f = READ("ORTE was unable to reliably start one or more daemons.");
    assert_fault(f, -1, "", "a host cannot be reached");
    assert_true(f.unreachable);
}

static void better_lines_replace_worse_ones(void **state) {
    assert_fault(READ("error: the data is missing", "error: rank 1 (a): the data is missing there",
                      "error: rank 2 (a): another"),
                 1, "a", "the data is missing there");
    assert_fault(READ("srun: error: host-b: task 3: Exited with exit code 1",
                      "error: rank 3 (host-b): the disk is gone"),
                 3, "host-b", "the disk is gone");
    assert_fault(READ("error: the data is missing"), -1, "", "the data is missing");
}

static void spares_take_the_place_of_hosts(void **state) {
    launch_hosts *h = mem_alloc(sizeof *h), *spares = mem_alloc(sizeof *spares);
    str text = { 0 };
    assert_null(launch_hosts_read("--hosts", "a:2,b:4,c", h));
    assert_null(launch_hosts_read("--spares", "s:1,t:4,u:4", spares));
    assert_int_equal(launch_hosts_slots(h), 7);
    assert_int_equal(launch_hosts_most(h), 4);
    assert_int_equal(launch_hosts_find_rank(h, 1), 0);
    assert_int_equal(launch_hosts_find_rank(h, 2), 1);
    assert_int_equal(launch_hosts_find_rank(h, 6), 2);
    assert_int_equal(launch_hosts_find_rank(h, 7), -1);
    assert_int_equal(launch_hosts_find_rank(h, -1), -1);
    assert_true(launch_hosts_replace(h, 1, spares)); /* s has too few slots */
    assert_true(launch_hosts_replace(h, 0, spares));
    assert_false(launch_hosts_replace(h, 1, spares));
    launch_hosts_print(h, true, &text);
    assert_string_equal(text.text, "u:2,t:4,c:1");
    assert_int_equal(spares->n, 1);
    str_free(&text);
    free(h);
    free(spares);
}

static launch_outcome outcome(int status, bool progress, const char *cause) {
    launch_outcome o = { .status = status, .progress = progress, .fault = LAUNCH_FAULT_NONE };
    snprintf(o.fault.cause, sizeof o.fault.cause, "%s", cause);
    o.fault.rank = 1;
    return o;
}

static bool again(launch_history *h, launch_outcome o, double *delay) {
    launch_limits limits = { .restarts = 3, .delay_s = 1 };
    const char *why;
    bool yes = launch_may_restart(&limits, h, &o, &why, delay);
    assert_true(yes == !why);
    return yes;
}

static void restarts_are_counted_since_the_last_checkpoint(void **state) {
    launch_history h = { 0 };
    double delay;
    for (int i = 0; i < 3; i++) {
        assert_true(again(&h, outcome(137, false, "killed"), &delay));
        assert_true(delay == (double)(1 << i));
    }
    launch_history full = h;
    assert_false(again(&full, outcome(137, false, "killed"), &delay));
    assert_true(again(&h, outcome(137, true, "killed"), &delay)); /* progress: counted afresh */
    assert_true(delay == 1);
}

static void codes_decide_whether_a_restart_helps(void **state) {
    double delay;
    static const int never[] = { EXIT_USAGE, EXIT_ALERT, EXIT_PREEMPTED };
    for (size_t i = 0; i < COUNT_OF(never); i++) {
        launch_history h = { 0 };
        assert_false(again(&h, outcome(never[i], true, ""), &delay));
    }
    launch_history h = { 0 };
    assert_true(again(&h, outcome(EXIT_HUNG, false, "hung"), &delay));
    assert_true(again(&h, outcome(EXIT_HUNG, false, "hung"), &delay));
}

static void the_same_error_twice_ends_it(void **state) {
    launch_history h = { 0 };
    double delay;
    assert_true(again(&h, outcome(EXIT_ERROR, false, "no data"), &delay));
    assert_true(again(&h, outcome(EXIT_ERROR, false, "another"), &delay));
    assert_false(again(&h, outcome(EXIT_ERROR, false, "another"), &delay));
    launch_history moved = { 0 };
    assert_true(again(&moved, outcome(EXIT_ERROR, false, "no data"), &delay));
    assert_true(again(&moved, outcome(EXIT_ERROR, true, "no data"), &delay));
    /* A host that cannot be reached may be starting. */
    launch_history away = { 0 };
    launch_outcome o = outcome(EXIT_ERROR, false, "the host cannot be reached");
    o.fault.unreachable = true;
    assert_true(again(&away, o, &delay));
    assert_true(again(&away, o, &delay));
}

/* A crash comes again from the same state; a kill comes from outside. */
static void the_same_crash_twice_ends_it(void **state) {
    static const int crashes[] = { SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL };
    double delay;
    for (size_t i = 0; i < COUNT_OF(crashes); i++)
        for (int named = 0; named < 2; named++) {
            launch_history h = { 0 };
            launch_outcome o = outcome(128 + crashes[i], false, named ? "ended by a signal" : "");
            assert_true(again(&h, o, &delay));
            assert_false(again(&h, o, &delay));
            launch_history moved = { 0 };
            assert_true(again(&moved, o, &delay));
            o.progress = true;
            assert_true(again(&moved, o, &delay));
            assert_true(again(&moved, outcome(137, false, "killed"), &delay));
            assert_true(again(&moved, outcome(137, false, "killed"), &delay));
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rank_errors_name_rank_host_and_cause),
        cmocka_unit_test(who_is_awaited_is_the_culprit),
        cmocka_unit_test(starters_report_signals_and_hosts),
        cmocka_unit_test(better_lines_replace_worse_ones),
        cmocka_unit_test(spares_take_the_place_of_hosts),
        cmocka_unit_test(restarts_are_counted_since_the_last_checkpoint),
        cmocka_unit_test(codes_decide_whether_a_restart_helps),
        cmocka_unit_test(the_same_error_twice_ends_it),
        cmocka_unit_test(the_same_crash_twice_ends_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
