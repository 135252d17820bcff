/* A fork-join pool. A thread that waits, for the next loop or for the end of one, spins briefly before it sleeps:
 * within a training step loops follow one another in microseconds, and a futex wake-up costs more than many of
 * them. It spins for as long as a wake-up takes at worst, since what it waits for may need this core. */
#include "util/util.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SPIN_SECONDS 1e-4

typedef void (*pool_fn)(void *ctx, int64_t i, int worker);
typedef struct pool_worker {
    pool *owner;
    int index;
    pthread_t thread;
} pool_worker;

struct pool {
    int size;
    pool_worker *workers; /* [size - 1] */
    pool_fn fn;
    void *ctx;
    int64_t n;
    _Atomic int64_t next;
    _Atomic uint32_t round; /* a new loop, or the end when `quit` */
    _Atomic int busy;
    _Atomic bool asleep; /* pool_run waits for `done` */
    bool quit, oversubscribed;
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
};

/* Hints to the core that this thread only waits. */
#if defined(__aarch64__)
static inline void relax_core(void) { __asm__ volatile("yield"); }
#elif defined(__x86_64__)
static inline void relax_core(void) { __builtin_ia32_pause(); }
#else
static inline void relax_core(void) {}
#endif

static void take_tasks(pool *p, int who) {
    for (int64_t i; (i = atomic_fetch_add(&p->next, 1)) < p->n;) p->fn(p->ctx, i, who);
}

/* How long a thread has spun. By the clock: a core's hint takes between 1 and 140 cycles. */
typedef struct spinning {
    int n;
    double until;
} spinning;
static bool may_spin(spinning *s, const pool *p) {
    enum { UNTIMED = 32 };
    if (p->oversubscribed) return false;
    relax_core();
    if (++s->n % UNTIMED) return true;
    double now = time_now();
    if (s->n == UNTIMED) s->until = now + SPIN_SECONDS;
    return now < s->until;
}

static void wait_for_round(pool *p, uint32_t seen) {
    for (spinning s = { 0 }; may_spin(&s, p);)
        if (atomic_load(&p->round) != seen) return;
    pthread_mutex_lock(&p->lock);
    while (atomic_load(&p->round) == seen) pthread_cond_wait(&p->wake, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

/* The last worker wakes pool_run. It reads `asleep` after it has changed `busy`, pool_run the other way round: one
 * of them sees what the other wrote. */
static void finish_round(pool *p) {
    if (atomic_fetch_sub(&p->busy, 1) > 1 || !atomic_load(&p->asleep)) return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_signal(&p->done);
    pthread_mutex_unlock(&p->lock);
}

static void wait_for_workers(pool *p) {
    for (spinning s = { 0 }; may_spin(&s, p);)
        if (atomic_load(&p->busy) == 0) return;
    if (atomic_load(&p->busy) == 0) return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->asleep, true);
    while (atomic_load(&p->busy) > 0) pthread_cond_wait(&p->done, &p->lock);
    atomic_store(&p->asleep, false);
    pthread_mutex_unlock(&p->lock);
}

static void *pool_worker_main(void *arg) {
    pool_worker *w = arg;
    pool *p = w->owner;
    for (uint32_t seen = 0;;) {
        wait_for_round(p, seen);
        seen = atomic_load(&p->round);
        if (p->quit) return NULL;
        take_tasks(p, w->index);
        finish_round(p);
    }
}

static void wake_workers(pool *p) {
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->round, 1);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

/* Rounded down: a thread more would use up the group's time, and the others would wait for it. */
static size_t cores_of_share(size_t share, size_t period) {
    return share == SIZE_MAX || period == SIZE_MAX || !period ? SIZE_MAX : MAX(share / period, 1);
}
static size_t cores_of_group(const char *folder) {
    return MIN(cores_of_share(control_group_number(folder, "cpu.max", 0),
                              control_group_number(folder, "cpu.max", 1)),
               cores_of_share(control_group_number(folder, "cpu.cfs_quota_us", 0),
                              control_group_number(folder, "cpu.cfs_period_us", 0)));
}

int thread_cores(void) {
    cpu_set_t set;
    long cores = sysconf(_SC_NPROCESSORS_ONLN); /* may be more than a cpu_set_t holds */
    if (sched_getaffinity(0, sizeof set, &set) == 0) cores = CPU_COUNT(&set);
    return (int)MIN((size_t)MAX(cores, 1), control_group_least("cpu", cores_of_group));
}

pool *pool_new(int threads) {
    int cores = thread_cores();
    if (threads <= 0) threads = cores;
    pool *p = mem_alloc(sizeof *p);
    p->size = threads;
    p->oversubscribed = threads > cores;
    p->workers = mem_alloc((size_t)threads * sizeof *p->workers);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    for (int i = 0; i < threads - 1; i++) {
        p->workers[i] = (pool_worker){ .owner = p, .index = i + 1 };
        int code = pthread_create(&p->workers[i].thread, NULL, pool_worker_main, &p->workers[i]);
        if (!code) continue;
        log_warn("only %d of %d threads start: %s; ask for fewer (training.threads), or raise the "
                 "limits of processes and memory (ulimit -u, -v)",
                 i + 1, threads, strerror(code));
        p->size = i + 1; /* the result does not depend on how many there are */
        break;
    }
    return p;
}

int pool_size(const pool *p) { return p ? p->size : 1; }

void pool_run(pool *p, int64_t n, pool_fn fn, void *ctx) {
    if (!p || p->size == 1 || n <= 1) {
        for (int64_t i = 0; i < n; i++) fn(ctx, i, 0);
        return;
    }
    p->fn = fn;
    p->ctx = ctx;
    p->n = n;
    atomic_store(&p->next, 0);
    atomic_store(&p->busy, p->size - 1);
    wake_workers(p);
    take_tasks(p, 0);
    wait_for_workers(p);
}

void pool_free(pool *p) {
    if (!p) return;
    p->quit = true;
    wake_workers(p);
    for (int i = 0; i < p->size - 1; i++) pthread_join(p->workers[i].thread, NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
    pthread_cond_destroy(&p->done);
    free(p->workers);
    free(p);
}
