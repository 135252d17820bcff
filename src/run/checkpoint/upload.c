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
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "checkpoint/checkpoint_internal.h"
#include "io/io.h"
#include "store/store.h"

enum { NONE = -1, FIRST_DELAY_S = 10, MOST_DELAY_S = 600, MOST_WAIT_S = 30 };

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
    bool completed;
    ckpt_upload last; /* completed */
    err failed;       /* since the last poll; owned */
};

/* ---- the thread -------------------------------------------------------------------------------------------- */
/* Waits after a failure, or until there is something newer to do. The lock is held. */
static void wait_after_failure(ckpt_uploader *u) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += MIN((int64_t)FIRST_DELAY_S << MIN(u->failures - 1, 10), (int64_t)MOST_DELAY_S);
    int rc = 0;
    while (!u->stop && !u->hurry && rc == 0)
        rc = pthread_cond_timedwait(&u->changed, &u->lock, &until);
}

static bool has_work(const ckpt_uploader *u) {
    return u->goes_back || u->waiting[CKPT_FULL] != NONE || u->waiting[CKPT_WEIGHTS] != NONE;
}

/* The checkpoint may have been removed by retention meanwhile: then a newer one waits. Where its root is not
 * there either, the disk is out of reach. */
static bool is_gone(const ckpt_uploader *u, ckpt_kind kind, int64_t step) {
    char *path = ckpt_path(u->run_dir, kind, step), *manifest;
    char *root = ckpt_root(u->run_dir, kind);
    manifest = io_join(path, CKPT_MANIFEST_FILE);
    bool gone = io_is_dir(root) && !io_exists(manifest);
    free(root);
    free(manifest);
    free(path);
    return gone;
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
    if (!e) return;
    err_free(u->failed);
    u->failed = e;
}

/* These two work without the lock, which is held on entry and exit. */
static void go_back(ckpt_uploader *u) {
    int64_t step;
    remote_job j = { u->s, u->run_dir, u->url, &u->cancelled };
    atomic_store(&u->cancelled, false);
    pthread_mutex_unlock(&u->lock);
    err e = remote_go_back(&j, &step);
    pthread_mutex_lock(&u->lock);
    if (e && atomic_load(&u->cancelled)) {
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
    if (e && atomic_load(&u->cancelled)) {
        err_free(e);
        return;
    }
    if (e && u->waiting[kind] == NONE && !gone) u->waiting[kind] = done.step;
    if (!e) u->last = done, u->completed = true;
    note_outcome(u, e);
}

static void *uploader_main(void *arg) {
    ckpt_uploader *u = arg;
    pthread_mutex_lock(&u->lock);
    while (!u->stop) {
        if (!has_work(u)) {
            pthread_cond_wait(&u->changed, &u->lock);
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
    pthread_mutex_init(&u->lock, NULL);
    pthread_cond_init(&u->changed, NULL);
    sigfillset(&all); /* signals are the training's business */
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
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += MOST_WAIT_S;
    int rc = 0;
    while (u->goes_back && u->failures <= failures && rc == 0)
        rc = pthread_cond_timedwait(&u->changed, &u->lock, &until);
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

err ckpt_uploader_finish(ckpt_uploader *u) {
    err e = OK;
    pthread_mutex_lock(&u->lock);
    u->hurry = true; /* no delay any more: the next failure is the last */
    pthread_cond_broadcast(&u->changed);
    int failures = u->failures;
    while (u->busy || (has_work(u) && u->failures <= failures))
        pthread_cond_wait(&u->changed, &u->lock);
    if (has_work(u)) {
        int64_t step = MAX(u->waiting[CKPT_FULL], u->waiting[CKPT_WEIGHTS]);
        e = err_hint(ERR("step %lld is saved in %s, and is not in %s: %s", (long long)step,
                         u->run_dir, u->url, u->failed ? err_message(u->failed) : "it failed"),
                     "the same command uploads it; the local checkpoint is complete");
        u->waiting[CKPT_FULL] = u->waiting[CKPT_WEIGHTS] = NONE;
    }
    u->hurry = false;
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
