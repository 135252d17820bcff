/* The watchdog of a rank: a thread that looks at how many instructions and steps the rank has begun. Where
 * that does not change for training.step_timeout it prints a backtrace of every thread and ends the
 * process, with a code at which the supervisor starts the run again. Time that a rank waits for others is not
 * counted: comm.timeout_seconds ends that, and names the others. */
#include "trainer_internal.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct watchdog {
    const trainer *t;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool quit;
    _Atomic bool stalled;
    _Atomic int64_t step; /* that the rank has finished last */
};

/* Changes as long as the rank is at work. */
static uint64_t read_progress(watchdog *d) {
    return exec_progress(&d->t->x) + (uint64_t)atomic_load(&d->step) * 1000003u;
}

void watchdog_note_step(trainer *t) {
    if (t->dog) atomic_store(&t->dog->step, t->state.step);
}

static void report_stall(watchdog *d, double seconds) {
    const trainer *t = d->t;
    char host[64] = "unknown";
    gethostname(host, sizeof host - 1);
    fprintf(stderr,
            "error: rank %d (%s): nothing has moved for %g s after step %lld "
            "(training.step_timeout)\n",
            t->mesh.rank, host, seconds, (long long)atomic_load(&d->step));
    backtrace_write(STDERR_FILENO);
    atomic_store(&d->stalled, true);
    comm_abort(t->x.comm, "a rank has stalled");
    if (t->opt->stalled) t->opt->stalled();
}

/* Sleeps, looks, and sleeps again: ten looks in the time that is allowed. */
static void *watch_steps(void *arg) {
    watchdog *d = arg;
    double allowed = d->t->cfg->training.step_timeout, since = time_now();
    uint64_t seen = read_progress(d);
    pthread_mutex_lock(&d->lock);
    while (!d->quit) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        double nap = MIN(allowed / 10, 10.0);
        int64_t at = (int64_t)until.tv_nsec + (int64_t)(nap * 1e9);
        until.tv_sec += (time_t)(at / 1000000000);
        until.tv_nsec = (long)(at % 1000000000);
        pthread_cond_timedwait(&d->ended, &d->lock, &until);
        uint64_t now = read_progress(d);
        if (now != seen || comm_is_waiting(d->t->x.comm)) since = time_now();
        seen = now;
        if (d->quit || time_now() - since < allowed) continue;
        pthread_mutex_unlock(&d->lock);
        report_stall(d, allowed);
        return NULL;
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

void watchdog_start(trainer *t) {
    if (!(t->cfg->training.step_timeout > 0)) return;
    sigset_t before;
    watchdog *d = t->dog = mem_alloc(sizeof *d);
    d->t = t;
    d->step = t->state.step;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->ended, NULL);
    backtrace_prepare();
    thread_block_signals(&before);
    bool started = pthread_create(&d->thread, NULL, watch_steps, d) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started) return;
    log_warn("no thread for training.step_timeout: a step that stalls will not be noticed");
    free(d);
    t->dog = NULL;
}

void watchdog_stop(trainer *t) {
    watchdog *d = t->dog;
    if (!d) return;
    pthread_mutex_lock(&d->lock);
    d->quit = true;
    pthread_cond_signal(&d->ended);
    pthread_mutex_unlock(&d->lock);
    pthread_join(d->thread, NULL);
    pthread_cond_destroy(&d->ended);
    pthread_mutex_destroy(&d->lock);
    free(d);
    t->dog = NULL;
}

err watchdog_check(const trainer *t) {
    if (!t->dog || !atomic_load(&t->dog->stalled)) return OK;
    return err_exit(err_hint(ERR("step %lld took longer than training.step_timeout (%g s)",
                                 (long long)t->state.step + 1, t->cfg->training.step_timeout),
                             "raise it if steps may take as long"),
                    EXIT_HUNG);
}
