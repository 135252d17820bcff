/* Tasks shared by the ranks of a job: see text.h.
 *
 * Every rank comes to the same first assignment from the same sizes. While ranks work, the only communication is
 * that of a thread in each of them, the heartbeat, which five times a second collects a few numbers of all ranks:
 *
 *     bytes read       rank 0 shows the sum as progress
 *     working, failed  none works: the heartbeat ends, and with it text_tasks_run on every rank. One has failed:
 *                      every rank stops at its next block of input
 *     begun, limit     a rank has begun `begun` tasks of its queue, and begins no more than `limit` before
 *                      the next beat
 *
 * Tasks beyond a rank's limit may be given to another one. Each rank computes from these numbers who takes what, so
 * that all have the same queues after a beat, and no task is begun twice:
 *
 *     queue of rank 1   [ 3  7  9 | 12  15  20 ]         begun 2, limit 3: 12, 15 and 20 may be taken
 *     queue of rank 0   [ 0  1  4 ] idle                 takes 20, the last one, and so on until rank 1 has none to spare
 *
 * A rank reserves what it is likely to begin before the next beat, by what it has begun since the last one; while
 * a task takes long, nothing. So that a slow rank keeps just the task that it is at. Until the first beat all is
 * reserved: short work is done without waiting for one.
 *
 * A rank that has nothing to do does not sleep between beats, so that the last one to finish does not wait for it. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "comm/comm.h"
#include "text/inputs_internal.h"
#include "text/transform_report_internal.h"
#include "util/fault.h"

/* ---- who runs what --------------------------------------------------------------------------- */
typedef struct task_size {
    int64_t bytes;
    int task;
} task_size;

SORT_ORDER(by_size, task_size, FALLING(bytes) RISING(task));

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

/* ---- queues ----------------------------------------------------------------------------------- */
typedef struct task_queue {
    int *tasks; /* [n] in the order they are begun in */
    int n, cap;
    int limit;    /* at the last beat: what is from here on may be taken */
    int64_t left; /* bytes of the tasks that are left */
} task_queue;

static void queue_push(task_queue *q, int task) { LIST_ADD(q->tasks, q->n, q->cap) = task; }

static task_queue *queues_new(const text_tasks *t) {
    int *owner = mem_alloc((size_t)t->n * sizeof *owner + 1);
    task_queue *q = mem_alloc((size_t)comm_world(t->comm) * sizeof *q);
    text_tasks_assign(t, owner);
    for (int i = 0; i < t->n; i++)
        if (owner[i] != TEXT_DONE) queue_push(&q[owner[i]], i);
    free(owner);
    return q;
}

static void queues_free(task_queue *q, int ranks) {
    for (int r = 0; r < ranks; r++) free(q[r].tasks);
    free(q);
}

/* A rank sends this at a beat. */
typedef enum { WORKING, WAITING, FINISHED, FAILED } work_state;
typedef struct rank_beat {
    int64_t bytes, state, begun, limit;
} rank_beat;

/* Takes the last task of the rank that has the most to spare. @return false: none has any. */
static bool take_task(const text_tasks *t, task_queue *q, int ranks, int to) {
    int from = -1;
    for (int r = 0; r < ranks; r++)
        if (q[r].n > q[r].limit && (from < 0 || q[r].left > q[from].left)) from = r;
    if (from < 0) return false;
    int task = q[from].tasks[--q[from].n];
    q[from].left -= t->bytes[task] + 1;
    queue_push(&q[to], task);
    q[to].limit = q[to].n;
    return true;
}

/* Gives tasks to ranks that have none left, an equal share to each. The same on all ranks. @return how many. */
static int share_tasks(const text_tasks *t, task_queue *q, const rank_beat *all, int ranks) {
    int taken = 0, spare = 0, idle = 0;
    for (int r = 0; r < ranks; r++) {
        q[r].limit = (int)MIN(all[r].limit, (int64_t)q[r].n);
        q[r].left = 0;
        for (int i = q[r].limit; i < q[r].n; i++) q[r].left += t->bytes[q[r].tasks[i]] + 1;
        spare += q[r].n - q[r].limit;
        idle += all[r].state == FINISHED;
    }
    int share = MAX(spare / (idle + 1), 1);
    for (int k = 0; k < share; k++)
        for (int r = 0; r < ranks; r++)
            if (all[r].state == FINISHED) taken += take_task(t, q, ranks, r);
    return taken;
}

/* ---- heartbeat ------------------------------------------------------------------------------- */
typedef struct heartbeat {
    const text_tasks *t;
    comm *c;
    text_progress *progress;
    pthread_t thread;
    pthread_mutex_t lock;           /* guards what follows */
    pthread_cond_t changed, shared; /* the state; the queues, or `ended` */
    work_state state;
    task_queue *queues; /* [ranks] */
    int begun, limit;   /* of this rank's queue */
    int begun_before;   /* at the last beat */
    int idle_beats;     /* since one at which a task was begun */
    int taken;          /* tasks given from rank to rank, of all ranks */
    bool ended;         /* the last beat is over */
    rank_beat *all;     /* [ranks] of the thread */
    err error;          /* the communication failed; read after the thread has ended */
} heartbeat;

/* Waits for the next beat. @return what this rank sends. */
static rank_beat wait_for_beat(heartbeat *h) {
    enum { INTERVAL = 200000000, SECOND = 1000000000, LONG = 5 }; /* nanoseconds, beats */
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += INTERVAL;
    until.tv_sec += until.tv_nsec / SECOND;
    until.tv_nsec %= SECOND;
    pthread_mutex_lock(&h->lock);
    int rc = 0;
    while (h->state == WORKING && rc == 0)
        rc = pthread_cond_timedwait(&h->changed, &h->lock, &until);
    int lately = h->begun - h->begun_before;
    h->idle_beats = lately ? 0 : h->idle_beats + 1;
    h->begun_before = h->begun;
    /* A rank that waits needs one, and every rank keeps its first; a task that takes long makes it give back what it
     * has reserved. */
    bool wants = h->state == WAITING || h->begun == 0 || h->idle_beats < LONG;
    int reserve = wants ? MAX(2 * lately, 1) : 0;
    h->limit = MIN(h->begun + reserve, h->queues[comm_rank(h->c)].n);
    rank_beat mine = { atomic_load(&h->progress->done), h->state, h->begun, h->limit };
    pthread_mutex_unlock(&h->lock);
    return mine;
}

/* Takes up what all ranks have said. @return whether some work and none has failed. */
static bool take_up_beat(heartbeat *h) {
    int ranks = comm_world(h->c), finished = 0, failed = 0, rank = comm_rank(h->c);
    int64_t bytes = 0;
    for (int r = 0; r < ranks; r++) {
        bytes += h->all[r].bytes;
        finished += h->all[r].state >= FINISHED;
        failed += h->all[r].state == FAILED;
    }
    if (failed) return false;
    text_progress_show(h->progress, bytes);
    pthread_mutex_lock(&h->lock);
    h->taken += share_tasks(h->t, h->queues, h->all, ranks);
    h->limit = MAX(h->limit, h->queues[rank].limit);
    if (h->state == WAITING || (h->state == FINISHED && h->begun < h->queues[rank].n))
        h->state = WORKING;
    pthread_cond_signal(&h->shared);
    pthread_mutex_unlock(&h->lock);
    return finished < ranks;
}

static void *run_heartbeat(void *arg) {
    heartbeat *h = arg;
    bool more = true;
    while (more) {
        rank_beat mine = wait_for_beat(h);
        h->error = comm_collect(h->c, &mine, sizeof mine, h->all);
        more = !h->error && take_up_beat(h);
    }
    bool failed = h->error != OK;
    for (int r = 0; r < comm_world(h->c); r++) failed |= h->all[r].state == FAILED;
    if (failed) atomic_store(&h->progress->stop, true);
    pthread_mutex_lock(&h->lock);
    h->ended = true;
    pthread_cond_signal(&h->shared);
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

/* @return the next task of this rank, once one is there; -1: there is none for any rank. */
static int next_task(heartbeat *h) {
    int task = -1, rank = comm_rank(h->c);
    pthread_mutex_lock(&h->lock);
    while (!h->ended && h->begun >= h->limit) {
        h->state = h->begun < h->queues[rank].n ? WAITING : FINISHED;
        pthread_cond_signal(&h->changed);
        pthread_cond_wait(&h->shared, &h->lock);
    }
    if (!h->ended) task = h->queues[rank].tasks[h->begun++];
    pthread_mutex_unlock(&h->lock);
    return task;
}

static err heartbeat_start(heartbeat *h, const text_tasks *t, text_progress *p) {
    comm *c = t->comm;
    *h = (heartbeat){ .t = t, .c = c, .progress = p, .queues = queues_new(t) };
    h->all = mem_alloc((size_t)comm_world(c) * sizeof *h->all);
    h->limit = h->queues[comm_rank(c)].n;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->changed, NULL);
    pthread_cond_init(&h->shared, NULL);
    int rc = pthread_create(&h->thread, NULL, run_heartbeat, h);
    if (rc == 0) return OK;
    queues_free(h->queues, comm_world(c));
    free(h->all);
    return ERR("rank %d cannot start a thread", comm_rank(c));
}

/* Waits for all ranks. @param e this rank's error. @return it, or one that states that another rank failed. */
static err heartbeat_end(heartbeat *h, err e) {
    pthread_mutex_lock(&h->lock);
    h->state = e && !err_is_echo(e) ? FAILED : FINISHED;
    h->begun = h->limit =
        h->queues[comm_rank(h->c)].n; /* nothing of it is begun or given away any more */
    pthread_cond_signal(&h->changed);
    pthread_mutex_unlock(&h->lock);
    pthread_join(h->thread, NULL);
    pthread_mutex_destroy(&h->lock);
    pthread_cond_destroy(&h->changed);
    pthread_cond_destroy(&h->shared);
    queues_free(h->queues, comm_world(h->c));
    free(h->all);
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
static err run_task(const text_tasks *t, int task, text_progress *p) {
    double began = time_now(), slow = fault_slows(FAULT_TASK, comm_rank(t->comm));
    int64_t until = atomic_load(&p->done) + t->bytes[task];
    TRY(t->run(t->ctx, task, p));
    if (t->bytes[task] > 0) TRY(text_progress_add(p, until - atomic_load(&p->done)));
    if (slow > 0) {
        double more = (time_now() - began) * slow;
        nanosleep(&(struct timespec){ (time_t)more, (long)((more - (double)(time_t)more) * 1e9) },
                  NULL);
    }
    fault_point(FAULT_TASK, comm_rank(t->comm));
    return OK;
}

static err run_tasks_alone(const text_tasks *t, text_progress *p) {
    for (int i = 0; i < t->n; i++)
        if (!t->done || !t->done[i]) TRY(run_task(t, i, p));
    return OK;
}

static err run_tasks_shared(const text_tasks *t, text_progress *p) {
    heartbeat h;
    err e = OK;
    TRY(heartbeat_start(&h, t, p));
    log_mute_thread(false); /* only this rank can log about its own inputs */
    for (int task; !e && (task = next_task(&h)) >= 0;) e = run_task(t, task, p);
    log_mute_thread(comm_rank(t->comm) != 0);
    e = heartbeat_end(&h, e);
    if (!e && p->drawn && h.taken) /* only after work that took a while */
        log_info("%s: %d of %d tasks were taken over from ranks that were slower", t->name, h.taken,
                 t->n);
    return e;
}

err text_tasks_run(const text_tasks *t) {
    text_progress p;
    int64_t total = 0, skipped = 0;
    bool first = comm_rank(t->comm) == 0;
    for (int i = 0; i < t->n; i++) {
        total += t->bytes[i];
        if (t->done && t->done[i]) skipped += t->bytes[i];
    }
    text_progress_init(&p, first ? t->name : NULL, total);
    p.skipped = skipped;
    p.comm = t->comm;
    atomic_store(&p.done, first ? skipped : 0);
    err e = (comm_world(t->comm) > 1 ? run_tasks_shared : run_tasks_alone)(t, &p);
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
