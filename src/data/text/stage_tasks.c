/* Tasks shared by the ranks of a job: see text.h.
 *
 * Who runs which task is computed, not negotiated: every rank comes to the same assignment from the same
 * sizes. While ranks work, the only communication is that of a thread in each of them, the heartbeat, which
 * adds up a few numbers over all ranks twice a second:
 *
 *     bytes read              rank 0 shows the sum as progress
 *     ranks that have ended   all of them: the heartbeat ends, and with it text_tasks_run on every rank
 *     ranks that have failed  any: every rank stops at its next block of input
 *
 * A rank that is through does not sleep between beats, so that the last one to finish waits for nobody. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "comm/comm.h"
#include "text/inputs_internal.h"
#include "text/stage_report_internal.h"
#include "util/fault.h"

/* ---- who runs what --------------------------------------------------------------------------- */
typedef struct task_size {
    int64_t bytes;
    int task;
} task_size;

static int by_size(const void *a, const void *b) {
    const task_size *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x->task < y->task ? -1 : 1;
}

/* The largest first, each to the rank that has the least so far. */
void text_tasks_assign(const text_tasks *t, int *owner) {
    int ranks = comm_world(t->comm), n = 0;
    task_size *order = mem_alloc((size_t)t->n * sizeof *order + 1);
    int64_t *load = mem_alloc((size_t)ranks * sizeof *load);
    for (int i = 0; i < t->n; i++) {
        owner[i] = TEXT_DONE;
        if (!t->done || !t->done[i]) order[n++] = (task_size){ t->bytes[i], i };
    }
    sort_array(order, (size_t)n, sizeof *order, by_size);
    for (int i = 0; i < n; i++) {
        int least = 0;
        for (int r = 1; r < ranks; r++)
            if (load[r] < load[least]) least = r;
        owner[order[i].task] = least;
        load[least] += order[i].bytes + 1; /* empty ones are work too */
    }
    free(order);
    free(load);
}

/* ---- heartbeat ------------------------------------------------------------------------------- */
typedef enum { WORKING, FINISHED, FAILED } work_state;
typedef struct heartbeat {
    comm *c;
    text_progress *progress;
    pthread_t thread;
    pthread_mutex_t lock; /* guards `state` */
    pthread_cond_t changed;
    work_state state;
    err error; /* the communication failed; read after the thread has ended */
} heartbeat;

/* Waits for the next beat. @return the state of this rank's work. */
static work_state wait_for_beat(heartbeat *h) {
    enum { INTERVAL = 500000000, SECOND = 1000000000 }; /* nanoseconds */
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += INTERVAL;
    until.tv_sec += until.tv_nsec / SECOND;
    until.tv_nsec %= SECOND;
    pthread_mutex_lock(&h->lock);
    int rc = 0;
    while (h->state == WORKING && rc == 0)
        rc = pthread_cond_timedwait(&h->changed, &h->lock, &until);
    work_state state = h->state;
    pthread_mutex_unlock(&h->lock);
    return state;
}

/* @return whether others still work and none has failed. */
static bool send_heartbeat(heartbeat *h, work_state state) {
    double sum[] = { (double)atomic_load(&h->progress->done), state != WORKING, state == FAILED };
    h->error = comm_total(h->c, sum, (int)COUNT_OF(sum));
    if (h->error || sum[2] > 0) {
        atomic_store(&h->progress->stop, true);
        return false;
    }
    text_progress_show(h->progress, (int64_t)sum[0]);
    return sum[1] < comm_world(h->c);
}

static void *run_heartbeat(void *arg) {
    heartbeat *h = arg;
    while (send_heartbeat(h, wait_for_beat(h))) {
    }
    return NULL;
}

static err heartbeat_start(heartbeat *h, comm *c, text_progress *p) {
    *h = (heartbeat){ .c = c, .progress = p };
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->changed, NULL);
    int rc = pthread_create(&h->thread, NULL, run_heartbeat, h);
    return rc == 0 ? OK : ERR("rank %d cannot start a thread", comm_rank(c));
}

/* Waits for all ranks. @param e this rank's error. @return it, or one that says that another rank failed. */
static err heartbeat_end(heartbeat *h, err e) {
    pthread_mutex_lock(&h->lock);
    h->state = e && !err_is_echo(e) ? FAILED : FINISHED;
    pthread_cond_signal(&h->changed);
    pthread_mutex_unlock(&h->lock);
    pthread_join(h->thread, NULL);
    pthread_mutex_destroy(&h->lock);
    pthread_cond_destroy(&h->changed);
    if (h->error && (!e || err_is_echo(e))) {
        err_free(e);
        return h->error;
    }
    err_free(h->error);
    if (!e && atomic_load(&h->progress->stop)) e = text_other_rank_failed(h->c);
    return e;
}

err text_other_rank_failed(const comm *c) {
    return err_echo(ERR("rank %d ends because another rank failed", comm_rank(c)));
}

/* ---- running --------------------------------------------------------------------------------- */
static err run_counted_task(const text_tasks *t, int task, text_progress *p) {
    int64_t until = atomic_load(&p->done) + t->bytes[task];
    TRY(t->run(t->ctx, task, p));
    return t->bytes[task] > 0 ? text_progress_add(p, until - atomic_load(&p->done)) : OK;
}

static err run_own_tasks(const text_tasks *t, text_progress *p) {
    int *owner = mem_alloc((size_t)t->n * sizeof *owner + 1);
    err e = OK;
    text_tasks_assign(t, owner);
    for (int i = 0; i < t->n && !e; i++)
        if (owner[i] == comm_rank(t->comm)) {
            e = run_counted_task(t, i, p);
            fault_point(FAULT_TASK, comm_rank(t->comm));
        }
    free(owner);
    return e;
}

err text_tasks_run(const text_tasks *t) {
    text_progress p;
    heartbeat h;
    int64_t total = 0, skipped = 0;
    bool first = comm_rank(t->comm) == 0, several = comm_world(t->comm) > 1;
    for (int i = 0; i < t->n; i++) {
        total += t->bytes[i];
        if (t->done && t->done[i]) skipped += t->bytes[i];
    }
    text_progress_init(&p, first ? t->name : NULL, total);
    p.skipped = skipped;
    p.comm = t->comm;
    atomic_store(&p.done, first ? skipped : 0);
    if (several) {
        TRY(heartbeat_start(&h, t->comm, &p));
        log_mute_thread(false); /* what ranks say of their own inputs, no other says */
    }
    err e = run_own_tasks(t, &p);
    if (several) {
        log_mute_thread(!first);
        e = heartbeat_end(&h, e);
    }
    text_progress_end(&p);
    return e;
}

err text_tasks_run_segments(text_tasks t, const text_inputs *in) {
    int64_t *bytes = mem_alloc((size_t)text_segments(in) * sizeof *bytes + 1);
    t.n = text_segments(in);
    t.bytes = bytes;
    for (int i = 0; i < t.n; i++) bytes[i] = text_segment_bytes(in, i);
    err e = text_tasks_run(&t);
    free(bytes);
    return e;
}
