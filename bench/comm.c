/* How fast ranks of one host reduce and gather: threads by default, processes under mpirun.
 *
 *     bench_comm [MEGABYTES]                          two threads, and a plain loop over the same memory
 *     mpirun -n 2 --bind-to none bench_comm [MEGABYTES]
 *
 * GB/s is the size of the tensor over the time of one all-reduce, the best of several. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"

enum { REPEATS = 8, THREADS = 2 };

typedef struct bench_rank {
    comm *c;
    int64_t count;
    float *memory;
    const char *what;
    bool wire;
    double best;
    err error;
} bench_rank;

static err reduce(bench_rank *r) {
    tensor t = tensor_of(r->memory, DT_F32, 1, &r->count);
    comm_move sum = { .axes = mesh_axes(comm_mesh(r->c)),
                      .from = PLACE_P,
                      .to = PLACE_I,
                      .wire = r->wire ? DT_BF16 : DT_NONE,
                      .name = "bench" };
    r->best = 1e9;
    for (int i = 0; i < REPEATS; i++) {
        float zero = 0;
        memset(r->memory, 0, (size_t)r->count * sizeof *r->memory);
        TRY(comm_sum(r->c, AXES_ALL, &zero, 1)); /* begin together */
        double from = time_now();
        comm_ticket ticket;
        TRY(comm_start(r->c, &sum, &t, &t, &ticket));
        TRY(comm_wait(r->c, &ticket));
        r->best = MIN(r->best, time_now() - from);
    }
    return OK;
}

static void report(const char *what, int64_t count, double seconds) {
    printf("%-28s %8.2f GB/s\n", what, (double)count * 4e-9 / seconds);
}

static void *run_reduce(void *arg) {
    bench_rank *r = arg;
    r->error = reduce(r);
    return NULL;
}

/* ---- a plain loop: each thread sums its half of both arrays and stores it to both ------------------- */
typedef struct loop_rank {
    float *const *memory;
    int64_t from, to;
    pthread_barrier_t *barrier;
    double best;
} loop_rank;

static void *run_loop(void *arg) {
    loop_rank *r = arg;
    r->best = 1e9;
    for (int i = 0; i < REPEATS; i++) {
        pthread_barrier_wait(r->barrier);
        double from = time_now();
        float *a = r->memory[0], *b = r->memory[1];
        for (int64_t j = r->from; j < r->to; j++) a[j] = b[j] = a[j] + b[j];
        pthread_barrier_wait(r->barrier);
        r->best = MIN(r->best, time_now() - from);
    }
    return NULL;
}

static void loop(float *const *memory, int64_t count) {
    pthread_barrier_t barrier;
    pthread_t thread;
    pthread_barrier_init(&barrier, NULL, THREADS);
    loop_rank r[] = { { memory, 0, count / 2, &barrier, 0 },
                      { memory, count / 2, count, &barrier, 0 } };
    pthread_create(&thread, NULL, run_loop, &r[1]);
    run_loop(&r[0]);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&barrier);
    report("plain loop, 2 threads", count, r[0].best);
}

static err bench_threads(int64_t count) {
    comm *ends[THREADS];
    bench_rank r[THREADS];
    float *memory[THREADS];
    pthread_t thread;
    TRY(comm_threads((mesh){ .size = { [AX_DP_SHARD] = THREADS } }, 60, ends));
    for (int i = 0; i < THREADS; i++) {
        void *p;
        TRY(mem_map((size_t)count * 4, &p));
        memory[i] = p;
        r[i] = (bench_rank){ .c = ends[i], .count = count, .memory = p };
    }
    for (int wire = 0; wire < 2; wire++) {
        r[0].wire = r[1].wire = wire;
        pthread_create(&thread, NULL, run_reduce, &r[1]);
        run_reduce(&r[0]);
        pthread_join(thread, NULL);
        if (r[0].error || r[1].error) return r[0].error ? r[0].error : r[1].error;
        report(wire ? "2 threads, bf16 on the wire" : "2 threads", count, r[0].best);
    }
    loop(memory, count);
    for (int i = 0; i < THREADS; i++) {
        mem_unmap(memory[i], (size_t)count * 4);
        comm_free(ends[i]);
    }
    return OK;
}

/* ---- processes ------------------------------------------------------------------------------------------ */
static err bench_processes(comm_job *j, int64_t count) {
    int n = comm_job_ranks(j);
    static const struct {
        const char *what;
        bool shared, mapped;
    } ways[] = { { "processes, mapped memory", true, true },
                 { "processes, other memory", true, false },
                 { "processes, messages", false, false } };
    for (size_t i = 0; i < COUNT_OF(ways); i++) {
        comm *c;
        void *p;
        TRY(comm_processes(j, &(mesh){ .size = { [AX_DP_SHARD] = n } }, 60, ways[i].shared, &c));
        TRY(ways[i].mapped ? comm_map(c, (size_t)count * 4, &p) : mem_map((size_t)count * 4, &p));
        bench_rank r = { .c = c, .count = count, .memory = p };
        TRY(reduce(&r));
        char what[64];
        snprintf(what, sizeof what, "%d %s", n, ways[i].what);
        if (!comm_job_rank(j)) report(what, count, r.best);
        if (ways[i].mapped)
            comm_unmap(c, p, (size_t)count * 4);
        else
            mem_unmap(p, (size_t)count * 4);
        comm_free(c);
    }
    return OK;
}

int main(int argc, char **argv) {
    int64_t megabytes = argc > 1 ? atoll(argv[1]) : 256, count = MAX(megabytes, 1) * 250000;
    comm_job *j = NULL;
    err e = comm_job_open(60, abort, &j);
    if (!e) e = j ? bench_processes(j, count) : bench_threads(count);
    if (e) err_print(stderr, e, true);
    if (!e) comm_job_close(j, false);
    return e ? 1 : 0;
}
