/* Waits: deadlines, back-off, signals, and what the log and the errors show. */
#include "support/test.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "util/wait.h"

static int forget(void **state) {
    wait_forget_signals();
    return 0;
}

static void a_wait_ends_at_its_deadline_and_is_named(void **state) {
    wait_state w;
    wait_begin(&w, 0.05, "rank %d", 3);
    snprintf(w.detail, sizeof w.detail, "connection refused");
    while (wait_nap(&w)) {
    }
    assert_false(wait_is_interrupted(&w));
    err e = wait_failed(&w);
    assert_int_equal(err_exit_code(e), EXIT_ERROR);
    assert_error(e, "waited 0 s for rank 3", "connection refused");
}

/* Looks become rarer: a wait of many naps has slept most of its time in the longest ones. */
static void naps_double_up_to_the_most(void **state) {
    wait_state w;
    wait_begin(&w, 1e6, "a file");
    wait_set_back_off(&w, 1e-6, 64e-6);
    double before = 0;
    for (int i = 0; i < 6; i++) {
        assert_true(w.delay > before);
        before = w.delay;
        assert_true(wait_nap(&w));
    }
    for (int i = 0; i < 4; i++) assert_true(wait_nap(&w));
    assert_true(w.delay == 64e-6);
}

static void signals_end_waits(void **state) {
    const struct {
        int number;
        exit_code code;
    } cases[] = { { SIGTERM, EXIT_PREEMPTED },
                  { SIGUSR1, EXIT_PREEMPTED },
                  { SIGINT, EXIT_INTERRUPTED } };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        wait_state before, after, late;
        wait_forget_signals();
        wait_begin(&before, 1e6, "rank 0");
        assert_false(wait_is_over(&before));
        wait_note_signal(cases[i].number);
        wait_begin(&after, 1e6, "rank 0");
        wait_begin(&late, 1e6, "the last upload");
        late.ignored = wait_signal_count();
        assert_true(wait_is_interrupted(&before));
        assert_false(wait_nap(&after));
        assert_false(wait_is_over(&late));
        err e = wait_failed(&after);
        assert_int_equal(err_exit_code(e), cases[i].code);
        assert_error(e, "stopped by signal", "while waiting for rank 0");
        wait_note_signal(SIGTERM);
        assert_int_equal(wait_first_signal(), cases[i].number);
        assert_true(wait_is_over(&late));
    }
}

static void a_flag_ends_a_wait_instead_of_a_signal(void **state) {
    _Atomic bool cut = false;
    wait_state w;
    wait_begin(&w, 1e6, "a request");
    w.cut = &cut;
    wait_note_signal(SIGTERM);
    assert_false(wait_is_over(&w));
    atomic_store(&cut, true);
    assert_error(wait_next(&w), "the wait for a request was cut short");
}

static void *note_soon(void *unused) {
    usleep(50000);
    wait_note_signal(SIGTERM);
    return NULL;
}

/* A nap of hours, and a condition that nobody signals. */
static void a_signal_ends_a_nap_in_progress(void **state) {
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
    for (int kind = 0; kind < 2; kind++) {
        pthread_t thread;
        wait_state w;
        wait_forget_signals();
        wait_begin(&w, 1e6, "a host");
        wait_set_back_off(&w, 1e5, 1e5);
        assert_int_equal(pthread_create(&thread, NULL, note_soon, NULL), 0);
        pthread_mutex_lock(&lock);
        while (kind == 0 ? wait_nap(&w) : wait_for_change(&w, &changed, &lock)) {
        }
        pthread_mutex_unlock(&lock);
        pthread_join(thread, NULL);
        assert_true(wait_is_interrupted(&w));
    }
}

static _Atomic int expirations;
static void count_expiration(void) { atomic_fetch_add(&expirations, 1); }

static void a_guard_expires_unless_it_is_ended(void **state) {
    wait_guard *g = wait_guard_begin(1e6, count_expiration, true, "MPI_Init");
    wait_guard_end(g);
    assert_int_equal(atomic_load(&expirations), 0);
    g = wait_guard_begin(0.01, count_expiration, true, "MPI_Init");
    while (!atomic_load(&expirations)) usleep(1000);
    wait_guard_end(g);
    assert_int_equal(atomic_load(&expirations), 1);
}

static void ignore(int number) {}

/* A call that cannot look is ended by the signal itself; afterwards the handlers are those from before. */
static void a_guard_lets_signals_end_the_process(void **state) {
    struct sigaction now;
    signal(SIGTERM, ignore);
    wait_guard *g = wait_guard_begin(1e6, count_expiration, true, "MPI_Init");
    sigaction(SIGTERM, NULL, &now);
    assert_true(now.sa_handler == SIG_DFL);
    wait_guard_end(g);
    sigaction(SIGTERM, NULL, &now);
    assert_true(now.sa_handler == ignore);
    signal(SIGTERM, SIG_DFL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_wait_ends_at_its_deadline_and_is_named, forget),
        cmocka_unit_test_teardown(naps_double_up_to_the_most, forget),
        cmocka_unit_test_teardown(signals_end_waits, forget),
        cmocka_unit_test_teardown(a_flag_ends_a_wait_instead_of_a_signal, forget),
        cmocka_unit_test_teardown(a_signal_ends_a_nap_in_progress, forget),
        cmocka_unit_test_teardown(a_guard_expires_unless_it_is_ended, forget),
        cmocka_unit_test_teardown(a_guard_lets_signals_end_the_process, forget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
