/* Waits that end: see wait.h. */
#include "util/wait.h"

#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- signals ----------------------------------------------------------------------------------------- */
static volatile sig_atomic_t first_signal, signal_count;

void wait_note_signal(int number) {
    if (!signal_count) first_signal = number;
    signal_count++;
}
int wait_first_signal(void) { return first_signal; }
int wait_signal_count(void) { return signal_count; }
void wait_forget_signals(void) { first_signal = signal_count = 0; }

/* ---- one wait ------------------------------------------------------------------------------------------ */
static const double FIRST_REPORT_S = 3, LOOK_S = 0.1;

void wait_begin(wait_state *w, double seconds, const char *fmt, ...) {
    va_list args;
    *w = (wait_state){ .began = time_now() };
    w->deadline = w->began + seconds;
    w->report_at = w->began + FIRST_REPORT_S;
    w->jitter =
        rng_key_of((uint64_t)(w->began * 1e9) ^ (uint64_t)getpid() << 32, (uint64_t)(uintptr_t)w);
    wait_set_back_off(w, 0.02, 0.5);
    va_start(args, fmt);
    vsnprintf(w->name, sizeof w->name, fmt, args);
    va_end(args);
}

void wait_set_back_off(wait_state *w, double first, double most) {
    w->delay = first;
    w->most = most;
}

bool wait_is_interrupted(const wait_state *w) {
    return w->cut ? atomic_load(w->cut) : signal_count > w->ignored;
}

bool wait_is_over(wait_state *w) {
    enum { MOST_BETWEEN_S = 600 };
    double now = time_now(), lasted = now - w->began;
    if (wait_is_interrupted(w) || now >= w->deadline) return true;
    if (now < w->report_at) return false;
    /* after 3 seconds, and then when it has lasted three times as long, but at least every 10 minutes */
    log_info("waiting for %s%s%s: %.0f s so far, at most %.0f", w->name, *w->detail ? "; " : "",
             w->detail, lasted, w->deadline - w->began);
    w->report_at = now + MIN(2 * lasted, (double)MOST_BETWEEN_S);
    return false;
}

bool wait_nap(wait_state *w) {
    double part = 0.5 + 0.5 * (double)rng_uniform(w->jitter, w->naps++);
    double until = MIN(time_now() + w->delay * part, w->deadline);
    for (double left; !wait_is_over(w) && (left = until - time_now()) > 0;) {
        /* threads that block signals notice them, too */
        double nap = MIN(left, LOOK_S), whole = floor(nap);
        nanosleep(&(struct timespec){ (time_t)whole, (long)((nap - whole) * 1e9) }, NULL);
    }
    w->delay = MIN(2 * w->delay, w->most);
    return !wait_is_over(w);
}

bool wait_for_change(wait_state *w, pthread_cond_t *changed, pthread_mutex_t *lock) {
    struct timespec until;
    if (wait_is_over(w)) return false;
    clock_gettime(CLOCK_REALTIME, &until);
    int64_t at = (int64_t)until.tv_nsec + (int64_t)(LOOK_S * 1e9);
    until.tv_sec += (time_t)(at / 1000000000);
    until.tv_nsec = (long)(at % 1000000000);
    pthread_cond_timedwait(changed, lock, &until);
    return !wait_is_over(w);
}

err wait_failed(const wait_state *w) {
    double lasted = time_now() - w->began;
    const char *sep = *w->detail ? "; " : "";
    if (!wait_is_interrupted(w))
        return ERR("waited %.0f s for %s%s%s", lasted, w->name, sep, w->detail);
    int number = w->cut ? 0 : (int)first_signal;
    err e = number ? ERR("stopped by signal %d (%s) while waiting for %s%s%s", number,
                         strsignal(number), w->name, sep, w->detail)
                   : ERR("the wait for %s was cut short%s%s", w->name, sep, w->detail);
    if (!number) return e;
    log_warn("%s", err_message(e)); /* with these codes, no error is printed at the end */
    return err_exit(e, number == SIGINT ? EXIT_INTERRUPTED : EXIT_PREEMPTED);
}

err wait_next(wait_state *w) { return wait_nap(w) ? OK : wait_failed(w); }

void wait_seconds(double seconds) {
    wait_state w;
    wait_begin(&w, seconds, "a pause to end");
    w.ignored = wait_signal_count();
    w.report_at = INFINITY;
    wait_set_back_off(&w, LOOK_S, LOOK_S);
    while (wait_nap(&w)) {
    }
}

/* ---- guards ----------------------------------------------------------------------------------------------- */
struct wait_guard {
    wait_state w;
    void (*expired)(void);
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool ended, watched;
    struct sigaction before[4];
};
static const int guarded[] = { SIGINT, SIGTERM, SIGHUP, SIGUSR1 };

static void *watch_call(void *arg) {
    wait_guard *g = arg;
    pthread_mutex_lock(&g->lock);
    while (!g->ended && wait_for_change(&g->w, &g->changed, &g->lock)) {
    }
    bool late = !g->ended;
    pthread_mutex_unlock(&g->lock);
    if (!late) return NULL;
    err e = wait_failed(&g->w);
    fprintf(stderr, "error: %s\n", err_message(e));
    err_free(e);
    g->expired();
    return NULL;
}

/* Nothing is lost before a run has begun: the default action ends a process that cannot look. */
static void take_signals(wait_guard *g, bool back) {
    const struct sigaction ends = { .sa_handler = SIG_DFL };
    for (size_t i = 0; i < COUNT_OF(guarded); i++)
        if (back) {
            sigaction(guarded[i], &g->before[i], NULL);
        } else {
            sigaction(guarded[i], NULL, &g->before[i]);
            if (g->before[i].sa_handler != SIG_IGN) sigaction(guarded[i], &ends, NULL);
        }
}

wait_guard *wait_guard_begin(double seconds, void (*expired)(void), bool reports,
                             const char *what) {
    wait_guard *g = mem_alloc(sizeof *g);
    sigset_t before;
    wait_begin(&g->w, seconds, "%s", what);
    g->w.ignored = INT_MAX; /* a signal ends the process itself */
    if (!reports) g->w.report_at = INFINITY;
    g->expired = expired;
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
    thread_block_signals(&before);
    g->watched = pthread_create(&g->thread, NULL, watch_call, g) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!g->watched) log_warn("no thread watches the wait for %s", what);
    take_signals(g, false);
    return g;
}

void wait_guard_end(wait_guard *g) {
    if (!g) return;
    take_signals(g, true);
    pthread_mutex_lock(&g->lock);
    g->ended = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    if (g->watched) pthread_join(g->thread, NULL);
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    free(g);
}
