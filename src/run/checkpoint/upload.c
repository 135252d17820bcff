/* The thread that uploads completed saves.
 *
 *     add -----> waiting ----> under way ----> completed, reported by poll
 *                   ^              |
 *                   +-- after a ---+  failed, reported by poll
 *                       delay
 *
 * At most one step is under way and one of each kind waits, full checkpoints first. A newer one takes the place
 * of the one that waits; one that failed waits again unless a newer one does. When the run goes back to an
 * earlier step, what waits is dropped, what is under way ends after its part, and before anything else is uploaded the
 * store gets that step, if it lacks it, and supersedes later ones. The local checkpoint is never touched, so whatever fails here loses
 * nothing that was saved. */
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/checkpoint_internal.h"
#include "store/store.h"
#include "util/wait.h"

enum { NONE = -1, FIRST_DELAY_S = 10, MOST_DELAY_S = 600, MOST_WAIT_S = 30 };
static const double MOST_UPLOAD_S =
    86400; /* of a checkpoint; its requests have deadlines of their own */

struct ckpt_uploader {
    char *run_dir, *url;
    store *s; /* the thread's */
    pthread_t thread;
    _Atomic bool cancelled; /* what is under way is not wanted any more */

    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t changed;
    int64_t waiting[CKPT_KINDS]; /* steps; NONE */
    ckpt_keep keep[CKPT_KINDS];
    bool goes_back;  /* the store does not know yet that the run went back */
    int64_t back_to; /* the step of the mark that this process wrote last; NONE */
    bool busy;
    int failures; /* in a row */
    bool stop, hurry;
    bool ends;      /* the run is over: what fails now is not tried again */
    bool given_up;  /* ... and something has failed */
    rng_key jitter; /* of delays */
    bool completed;
    ckpt_upload last; /* completed */
    err failed;       /* since the last poll; owned */
};

/* ---- the thread -------------------------------------------------------------------------------------------- */
/* Waits after a failure, or until there is something newer to do. The lock is held. */
static void wait_after_failure(ckpt_uploader *u) {
    wait_state w;
    int64_t most = MIN((int64_t)FIRST_DELAY_S << MIN(u->failures - 1, 10), (int64_t)MOST_DELAY_S);
    double part = 0.5 + 0.5 * (double)rng_uniform(u->jitter, (uint64_t)u->failures);
    wait_begin(&w, part * (double)most, "the next attempt");
    w.ignored = INT_MAX;    /* the run handles signals */
    w.report_at = INFINITY; /* the failure was reported */
    while (!u->stop && !u->hurry && wait_for_change(&w, &u->changed, &u->lock)) {
    }
}

static bool has_work(const ckpt_uploader *u) {
    return u->goes_back || u->waiting[CKPT_FULL] != NONE || u->waiting[CKPT_WEIGHTS] != NONE;
}

/* The checkpoint may have been removed by retention meanwhile: then a newer one waits. Where its root is not
 * there either, the disk is out of reach. */
static bool is_gone(const ckpt_uploader *u, ckpt_kind kind, int64_t step) {
    const char *root = ROOT_IN(u->run_dir, kind);
    return io_is_dir(root) && !io_has(STEP_IN(root, "", step, ""), CKPT_MANIFEST_FILE);
}

static err upload_step(ckpt_uploader *u, const ckpt_keep *keep, ckpt_upload *done) {
    double from = time_now();
    remote_job j = { u->s, u->run_dir, u->url, &u->cancelled };
    TRY(remote_upload(&j, done->kind, done->step, &done->bytes));
    done->seconds = time_now() - from;
    /* The upload is complete whatever becomes of this. */
    err e = remote_remove_old(u->s, u->url, done->kind, keep, done->step);
    if (e) log_warn("old checkpoints stay in %s: %s", u->url, err_message(e));
    err_free(e);
    return OK;
}

static void note_outcome(ckpt_uploader *u, err e) {
    u->failures = e ? u->failures + 1 : 0;
    u->given_up = e && u->ends;
    if (!e) return;
    err_free(u->failed);
    u->failed = e;
}

/* An upload that the run itself cancelled is not a failure; one that a signal cut short at the end of a run is. */
static bool is_unwanted(const ckpt_uploader *u) { return atomic_load(&u->cancelled) && !u->ends; }

/* These two work without the lock, which is held on entry and exit. */
static void go_back(ckpt_uploader *u) {
    int64_t step;
    remote_job j = { u->s, u->run_dir, u->url, &u->cancelled };
    atomic_store(&u->cancelled, false);
    pthread_mutex_unlock(&u->lock);
    err e = remote_go_back(&j, &step);
    pthread_mutex_lock(&u->lock);
    if (e && is_unwanted(u)) {
        err_free(e);
        return;
    }
    bool newer = !e && u->back_to != step; /* the run went back once more meanwhile */
    if (!e && !newer && step >= 0) e = remote_forget_gone_back(u->run_dir);
    if (!e && !newer) u->goes_back = false;
    note_outcome(u, e);
}

static void upload_waiting(ckpt_uploader *u) {
    ckpt_kind kind = u->waiting[CKPT_FULL] != NONE ? CKPT_FULL : CKPT_WEIGHTS;
    ckpt_upload done = { .kind = kind, .step = u->waiting[kind] };
    ckpt_keep keep = u->keep[kind];
    u->waiting[kind] = NONE;
    atomic_store(&u->cancelled, false);
    pthread_mutex_unlock(&u->lock);
    err e = upload_step(u, &keep, &done);
    bool gone = e && is_gone(u, kind, done.step);
    pthread_mutex_lock(&u->lock);
    if (e && (is_unwanted(u) || gone)) { /* where it is gone, a newer one waits */
        err_free(e);
        return;
    }
    if (e && u->waiting[kind] == NONE) u->waiting[kind] = done.step;
    if (!e) u->last = done, u->completed = true;
    note_outcome(u, e);
}

static void *uploader_main(void *arg) {
    ckpt_uploader *u = arg;
    pthread_mutex_lock(&u->lock);
    while (!u->stop) {
        if (!has_work(u) || u->given_up) {
            pthread_cond_wait(&u->changed, &u->lock); /* until there is work, or it is freed */
            continue;
        }
        if (u->failures) wait_after_failure(u);
        if (u->stop || !has_work(u)) continue;
        u->busy = true;
        u->goes_back ? go_back(u) : upload_waiting(u);
        u->busy = false;
        pthread_cond_broadcast(&u->changed);
    }
    pthread_mutex_unlock(&u->lock);
    return NULL;
}

/* ---- its users ---------------------------------------------------------------------------------------------- */
err ckpt_uploader_open(const char *run_dir, const char *url, ckpt_uploader **out) {
    sigset_t all, before;
    int64_t *steps = NULL;
    int n;
    if (!store_is_url(url))
        return err_hint(ERR("checkpoint.upload: expected s3://bucket/prefix, got \"%s\"", url),
                        "write --checkpoint.upload=s3://bucket/runs/a");
    TRY(ckpt_remote_list(url, &steps, &n)); /* a wrong key is noticed now, not after an hour */
    free(steps);
    ckpt_uploader *u = mem_alloc(sizeof *u);
    err e = store_open(&u->s);
    if (e) {
        free(u);
        return e;
    }
    u->run_dir = strdup(run_dir);
    u->url = strdup(url);
    u->waiting[CKPT_FULL] = u->waiting[CKPT_WEIGHTS] = u->back_to = NONE;
    store_cancel_by(u->s, &u->cancelled);
    u->jitter = rng_key_of((uint64_t)(time_now() * 1e9), (uint64_t)getpid());
    pthread_mutex_init(&u->lock, NULL);
    pthread_cond_init(&u->changed, NULL);
    sigfillset(&all); /* the training thread handles signals */
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&u->thread, NULL, uploader_main, u);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) {
        u->stop = true; /* there is nothing to join */
        ckpt_uploader_free(u);
        return err_hint(ERR("the thread that uploads checkpoints does not start: %s", strerror(rc)),
                        "raise the limit of threads");
    }
    *out = u;
    return OK;
}

void ckpt_uploader_add(ckpt_uploader *u, ckpt_kind kind, int64_t step, const ckpt_keep *keep) {
    pthread_mutex_lock(&u->lock);
    u->waiting[kind] = step;
    u->keep[kind] = *keep;
    pthread_cond_broadcast(&u->changed);
    pthread_mutex_unlock(&u->lock);
}

err ckpt_uploader_mark_back(ckpt_uploader *u, int64_t step) {
    pthread_mutex_lock(&u->lock); /* the thread removes no mark meanwhile */
    err e = remote_mark_gone_back(u->run_dir, step);
    if (!e) u->back_to = step;
    pthread_mutex_unlock(&u->lock);
    return e;
}

void ckpt_uploader_go_back(ckpt_uploader *u) {
    pthread_mutex_lock(&u->lock);
    int failures = u->failures;
    u->waiting[CKPT_FULL] = u->waiting[CKPT_WEIGHTS] = NONE; /* all are later than the step */
    u->goes_back = u->hurry = true;
    atomic_store(&u->cancelled, true);
    pthread_cond_broadcast(&u->changed);
    wait_state w;
    wait_begin(&w, MOST_WAIT_S, "%s to note that the run went back", u->url);
    while (u->goes_back && u->failures <= failures && wait_for_change(&w, &u->changed, &u->lock)) {
    }
    u->hurry = false;
    pthread_mutex_unlock(&u->lock);
}

bool ckpt_uploader_poll(ckpt_uploader *u, ckpt_upload *out, err *failed) {
    pthread_mutex_lock(&u->lock);
    bool completed = u->completed;
    *out = u->last;
    *failed = u->failed;
    u->completed = false;
    u->failed = OK;
    pthread_mutex_unlock(&u->lock);
    return completed;
}

/* Lists the steps that are not in the store. The lock is held. */
static err not_uploaded(ckpt_uploader *u, const char *why) {
    int64_t step = MAX(u->waiting[CKPT_FULL], u->waiting[CKPT_WEIGHTS]);
    if (u->goes_back) step = MAX(step, u->back_to);
    return err_hint(ERR("step %lld is saved in %s, and is not in %s: %s", (long long)step,
                        u->run_dir, u->url, why),
                    "`ingot ckpt upload %s %s` uploads it, and so does the same command; the local "
                    "checkpoint is complete",
                    u->run_dir, u->url);
}

static bool is_uploading(const ckpt_uploader *u) {
    return u->busy || (has_work(u) && !u->given_up);
}

/* Cancels the upload in flight: a request ends within about a second. Called with the lock held. */
static void cut_short(ckpt_uploader *u) {
    wait_state w;
    wait_begin(&w, MOST_WAIT_S, "a request to %s to end", u->url);
    w.ignored = INT_MAX;
    atomic_store(&u->cancelled, true);
    u->given_up = true;
    while (u->busy && wait_for_change(&w, &u->changed, &u->lock)) {
    }
}

err ckpt_uploader_finish(ckpt_uploader *u) {
    err e = OK;
    wait_state w;
    pthread_mutex_lock(&u->lock);
    wait_begin(&w, MOST_UPLOAD_S, "the upload of the last checkpoint to %s (a signal ends it)",
               u->url);
    w.ignored =
        wait_signal_count();   /* one that ended the run leaves time for its last checkpoint */
    u->hurry = u->ends = true; /* no delay any more: the next failure is the last */
    u->given_up = false;
    pthread_cond_broadcast(&u->changed);
    while (is_uploading(u) && wait_for_change(&w, &u->changed, &u->lock)) {
    }
    if (is_uploading(u)) cut_short(u);
    if (has_work(u))
        e = not_uploaded(u, wait_is_interrupted(&w) ? "stopped by a signal"
                            : u->failed             ? err_message(u->failed)
                                                    : "it failed");
    if (e) u->waiting[CKPT_FULL] = u->waiting[CKPT_WEIGHTS] = NONE;
    u->hurry = u->ends = u->given_up = false;
    pthread_mutex_unlock(&u->lock);
    return e;
}

void ckpt_uploader_free(ckpt_uploader *u) {
    if (!u) return;
    pthread_mutex_lock(&u->lock);
    bool started = !u->stop;
    u->stop = true;
    pthread_cond_broadcast(&u->changed);
    pthread_mutex_unlock(&u->lock);
    if (started) pthread_join(u->thread, NULL);
    pthread_cond_destroy(&u->changed);
    pthread_mutex_destroy(&u->lock);
    err_free(u->failed);
    store_close(u->s);
    free(u->run_dir);
    free(u->url);
    free(u);
}
