/* How the ranks of a run come to be: threads of this process, or the processes of a job that mpirun, srun or
 * torchrun started. */
#include "setup_internal.h"
#include "trainer_internal.h"
#include "util/wait.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

/* ---- ranks as threads ------------------------------------------------------------------------
 * A rank that fails ends all of them, with its error; the others' errors only report that it failed. Memory that
 * ranks read from one another is freed after all have ended. */
typedef struct rank_thread {
    trainer t;
    pthread_t thread;
    err error;
    _Atomic int *first_failed; /* shared: -1 while none has */
} rank_thread;

static void *rank_main(void *arg) {
    rank_thread *r = arg;
    int none = -1;
    log_mute_thread(r->t.mesh.rank > 0); /* all ranks log the same */
    r->error = train_rank(&r->t);
    if (r->error) {
        atomic_compare_exchange_strong(r->first_failed, &none, r->t.mesh.rank);
        comm_abort(r->t.x.comm, err_message(r->error));
    }
    return NULL;
}

/* Rank 0, which runs in the caller's thread, handles signals. */
static int start_ranks(rank_thread *r, int n) {
    sigset_t before;
    int started = 1;
    thread_block_signals(&before);
    while (started < n && !pthread_create(&r[started].thread, NULL, rank_main, &r[started]))
        started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static err run_threads(rank_thread *r, int n) {
    _Atomic int first_failed = -1;
    for (int i = 0; i < n; i++) r[i].first_failed = &first_failed;
    int started = start_ranks(r, n);
    if (started == n)
        rank_main(&r[0]);
    else
        comm_abort(r[0].t.x.comm, "a thread did not start");
    for (int i = 1; i < started; i++) pthread_join(r[i].thread, NULL);
    if (started < n)
        return err_hint(
            ERR("rank %d of %d does not start: the system refuses another thread", started, n),
            "use fewer --ranks, or raise the limit of threads");
    int failed = atomic_load(&first_failed);
    for (int i = 0; i < n && failed >= 0 && err_is_echo(r[failed].error); i++)
        if (r[i].error && !err_is_echo(r[i].error)) failed = i;
    err e = failed < 0 ? OK : r[failed].error;
    if (failed >= 0) r[failed].error = OK;
    return e;
}

static void report_signal(const trainer *t) {
    if (!t->opt || !t->opt->stopped_by || !t->stop_signal) return;
    *t->opt->stopped_by = is_preemption(t->stop_signal) ? SIGTERM : SIGINT;
}

static err train_threads(const config *c, const train_options *o) {
    mesh m;
    TRY(ranks_mesh(c, o->ranks, &m));
    int n = mesh_world(&m);
    comm **ends = mem_alloc((size_t)n * sizeof *ends);
    rank_thread *r = mem_alloc((size_t)n * sizeof *r);
    err e = OK;
    if (n == 1)
        ends[0] = comm_self();
    else
        e = comm_threads(m, c->comm.timeout_seconds, ends);
    for (int i = 0; i < n && !e; i++)
        r[i].t = (trainer){ .cfg = c, .opt = o, .mesh = mesh_as(&m, i), .x = { .comm = ends[i] } };
    if (!e) e = run_threads(r, n);
    report_signal(&r[0].t);
    for (int i = 0; i < n && ends[i]; i++) {
        trainer_free(&r[i].t);
        err_free(r[i].error);
        comm_free(ends[i]);
    }
    free(ends);
    free(r);
    return e;
}

/* ---- ranks as processes ----------------------------------------------------------------------
 * A rank that fails ends with its error, and whatever started the job then ends the others. Those whose error
 * only follows from it defer to the first, and report theirs if nothing ends them. */
static err train_process(comm_job *j, const config *c, const train_options *o, trainer *t) {
    mesh m;
    str text = { 0 };
    int n = comm_job_ranks(j);
    if (o->ranks && o->ranks != n)
        return err_hint(ERR_USAGE("--ranks %d, but this is one of %d processes that train together",
                                  o->ranks, n),
                        "leave --ranks out: each process is a rank");
    TRY(comm_job_compare_program(j));
    config_print(c, &text);
    err e = comm_job_compare(j, "config", text.text);
    str_free(&text);
    TRY(e);
    TRY(ranks_mesh(c, n, &m));
    *t = (trainer){ .cfg = c, .opt = o, .mesh = mesh_as(&m, comm_job_rank(j)) };
    TRY(comm_processes(j, &m, c->comm.timeout_seconds, c->comm.shared_memory, &t->x.comm));
    return train_rank(t);
}

/* A rank whose error follows from another's, or may be the same as rank 0's, waits to be ended. */
static void let_others_report(const comm_job *j, const comm *c, const train_options *o) {
    bool stopped = o->stop && *o->stop;
    wait_seconds(stopped ? 0.1 : comm_job_wait_seconds(j, c));
    if (!o->stop || !*o->stop) return;
    signal(SIGTERM, SIG_DFL);
    raise(SIGTERM);
}

static err run_process(comm_job *j, const config *c, const train_options *o) {
    trainer t = { 0 };
    log_mute_thread(comm_job_rank(j) > 0); /* all ranks log the same */
    err e = train_process(j, c, o, &t);
    if (!e) {
        report_signal(&t);
        trainer_free(&t);
        comm_free(t.x.comm);
        comm_job_close(j, false);
        return OK;
    }
    /* Memory that others may still be reading stays mapped until the process ends. */
    if (t.x.comm) comm_abort(t.x.comm, err_message(e));
    let_others_report(j, t.x.comm, o);
    e = comm_job_name_rank(j, e);
    comm_job_close(j, true);
    return e;
}

err train_check_ranks(const config *c, int ranks) {
    mesh m;
    return ranks_mesh(c, ranks, &m);
}

err train_run(const config *c, const train_options *o) {
    comm_job *j;
    TRY(comm_job_open(c->comm.timeout_seconds, o->stalled, &j));
    return j ? run_process(j, c, o) : train_threads(c, o);
}
