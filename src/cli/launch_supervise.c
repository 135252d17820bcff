/* The supervisor of a launch: runs the command that starts the ranks, and after a failure runs it again, when
 * the last checkpoint continues the run.
 *
 *              start                   ends, code 0, or a code that a restart does not help
 *     WAITING --------> RUNNING --------------------------------------------------------> done
 *        ^                 |
 *        |  back-off       |  a fault: read from what was printed, the host that had it replaced by a spare
 *        +-----------------+
 *
 * With --doctor all ranks are tested before the first attempt and after every second failure in a row; a host whose
 * rank gets wrong results is replaced by a spare, or the job ends. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "cli/launch.h"
#include "io/io.h"
#include "util/wait.h"

/* ---- checkpoints: whether an attempt left a new one ------------------------------------------------ */
typedef struct newest_checkpoint {
    bool exists;
    int64_t step;
    uint64_t inode;
    struct timespec written;
} newest_checkpoint;

static newest_checkpoint find_newest(const char *run_dir) {
    newest_checkpoint c = { .exists = false };
    int64_t *steps = NULL;
    int n = 0;
    struct stat s;
    if (!run_dir) return c;
    err e = ckpt_list(run_dir, CKPT_FULL, &steps, &n);
    if (!e && n) {
        char *path = ckpt_path(run_dir, CKPT_FULL, steps[n - 1]);
        c.exists = stat(path, &s) == 0;
        c.step = steps[n - 1];
        if (c.exists) c.inode = (uint64_t)s.st_ino, c.written = s.st_mtim;
        free(path);
    }
    free(steps);
    err_free(e);
    return c;
}

/* A run that starts over moves the old run's checkpoints away: those are never new. */
static bool is_new(const newest_checkpoint *now, const newest_checkpoint *before) {
    if (!now->exists) return false;
    return !before->exists || now->step != before->step || now->inode != before->inode ||
           now->written.tv_sec != before->written.tv_sec ||
           now->written.tv_nsec != before->written.tv_nsec;
}

/* ---- what happened ---------------------------------------------------------------------------------- */
typedef struct attempt_record {
    launch_outcome outcome;
    double seconds;
    int64_t step; /* of the newest checkpoint; -1: none */
} attempt_record;
typedef struct records {
    attempt_record *at;
    int n, cap;
} records;

static void describe_status(int status, char *to, size_t n) {
    const exit_row *row = exit_find(status);
    if (status > 128 && status <= 128 + SIGRTMAX)
        snprintf(to, n, "signal %d", status - 128);
    else
        snprintf(to, n, "%d%s%s", status, row ? " " : "", row ? row->name : "");
}

/* RUN/launch.jsonl: a line for each attempt. What cannot be written there is still printed. */
static void append_record(const launch_job *j, int number, const attempt_record *r) {
    const launch_fault *f = &r->outcome.fault;
    if (!j->run_dir || !io_is_dir(j->run_dir)) return;
    const char *path = PATH_IN(j->run_dir, "launch.jsonl");
    json_t *line =
        json_pack("{s:i, s:I, s:i, s:f, s:b, s:I, s:i, s:o, s:o}", "attempt", number, "time",
                  (json_int_t)time(NULL), "status", r->outcome.status, "seconds", r->seconds,
                  "progress", (int)r->outcome.progress, "checkpoint", (json_int_t)r->step, "rank",
                  f->rank, "host", io_json_string(f->host, strlen(f->host)), "cause",
                  io_json_string(f->cause, strlen(f->cause)));
    char *text = json_dumps(line, JSON_COMPACT);
    str whole = { 0 };
    int fd = -1;
    str_add(&whole, "%s\n", text);
    err e = io_append_open(path, &fd);
    if (!e) e = io_append(fd, path, whole.text, whole.len);
    if (fd >= 0) close(fd);
    if (e) log_warn("%s", err_message(e));
    err_free(e);
    str_free(&whole);
    free(text);
    json_decref(line);
}

static void print_records(const records *r) {
    fprintf(stderr, "%7s  %8s  %-11s %4s  %-20s %10s  %s\n", "attempt", "seconds", "exit", "rank",
            "host", "checkpoint", "cause");
    for (int i = 0; i < r->n; i++) {
        const attempt_record *a = &r->at[i];
        const launch_fault *f = &a->outcome.fault;
        char status[32], rank[16] = "-", step[24] = "-";
        describe_status(a->outcome.status, status, sizeof status);
        if (f->rank >= 0) snprintf(rank, sizeof rank, "%d", f->rank);
        if (a->step >= 0) snprintf(step, sizeof step, "%lld", (long long)a->step);
        fprintf(stderr, "%7d  %8.1f  %-11s %4s  %-20s %10s  %s\n", i + 1, a->seconds, status, rank,
                *f->host ? f->host : "-", step, *f->cause ? f->cause : "not known");
    }
}

/* mpirun does not name the host it cannot reach: each is tried alone. */
static void find_unreachable(const launch_job *j, launch_fault *f) {
    if (!f->unreachable || *f->host || !j->probe) return;
    for (int i = 0; i < j->hosts->n && !*f->host && !wait_signal_count(); i++) {
        char **argv = NULL;
        err e = j->probe(j->ctx, &j->hosts->at[i], &argv);
        if (!e && !launch_command_succeeds(argv)) {
            snprintf(f->host, sizeof f->host, "%s", j->hosts->at[i].name);
            snprintf(f->cause, sizeof f->cause, "the host cannot be reached");
        }
        err_free(e);
        j->command_free(argv);
    }
}

/* Puts a spare in place of the host that had the fault. @return whether there was one. */
static bool leave_out_host(const launch_job *j, const launch_fault *f) {
    /* By name first: srun gives ranks to hosts in an order of its own. */
    int index = *f->host ? launch_hosts_find_name(j->hosts, f->host) : -1;
    if (index < 0) index = launch_hosts_find_rank(j->hosts, f->rank);
    if (index < 0 || !j->spares->n) return false;
    char name[LAUNCH_HOST];
    memcpy(name, j->hosts->at[index].name, sizeof name);
    bool replaced = launch_hosts_replace(j->hosts, index, j->spares);
    if (replaced)
        log_warn("launch: %s is left out; %s takes its place", name, j->hosts->at[index].name);
    else
        log_warn("launch: no spare has the %d slots of %s", j->hosts->at[index].slots, name);
    return replaced;
}

/* A lost rank, a hang and corrupt weights may be the host's; an error that the program reports is not, unless
 * the host cannot be reached. */
static bool blames_host(const launch_outcome *o) {
    return o->status != EXIT_ERROR || o->fault.unreachable;
}

static err give_up(const launch_job *j, const records *r, const char *why) {
    const attempt_record *last = &r->at[r->n - 1];
    const launch_fault *f = &last->outcome.fault;
    char status[32], where[96] = "";
    describe_status(last->outcome.status, status, sizeof status);
    if (f->rank >= 0)
        snprintf(where, sizeof where, ", rank %d%s%s", f->rank, *f->host ? " on " : "", f->host);
    int code = exit_find(last->outcome.status) ? last->outcome.status : EXIT_ERROR;
    if (r->n > 1) print_records(r);
    err e = ERR("the job ended with %s%s%s%s; not started again: %s", status, where,
                *f->cause ? ": " : "", f->cause, why);
    if (!j->run_dir)
        e = err_hint(e, blames_host(&last->outcome) && last->outcome.status != EXIT_USAGE
                            ? "`ingot launch ... -- doctor --cluster` tests the hosts"
                            : "the rank's own error is above, with what to try");
    else
        e = err_hint(
            e,
            last->step >= 0
                ? "the same command continues from step %lld; `ingot launch ... -- doctor "
                  "--cluster` tests the hosts"
                : "no checkpoint has been saved yet; `ingot launch ... -- doctor --cluster` tests "
                  "the hosts",
            (long long)last->step);
    return err_exit(e, (exit_code)code);
}

/* ---- the job ------------------------------------------------------------------------------------------ */
static err run_attempt(const launch_job *j, int number, bool fresh, attempt_record *out) {
    char **argv = NULL;
    attempt a;
    double began = time_now();
    newest_checkpoint before = find_newest(j->run_dir);
    TRY(j->command(j->ctx, j->hosts, fresh, &argv));
    err e = launch_attempt_start(argv, number, j->run_dir != NULL, &a);
    if (!e) {
        a.run_dir = j->run_dir;
        int status = launch_attempt_await(&a, j->grace_s);
        newest_checkpoint now = find_newest(j->run_dir);
        find_unreachable(j, &a.fault);
        *out = (attempt_record){ { status, is_new(&now, &before), a.fault },
                                 time_now() - began,
                                 now.exists ? now.step : -1 };
        append_record(j, number, out);
    }
    j->command_free(argv);
    return e;
}

/* Tests all ranks, again where a host was replaced. @return an error when a bad one cannot be. */
static err test_ranks(const launch_job *j) {
    int status = EXIT_ERROR;
    for (int number = 1; status != EXIT_DONE && !wait_signal_count(); number++) {
        char **argv = NULL;
        attempt a = { .fault = LAUNCH_FAULT_NONE };
        err e = j->test(j->ctx, j->hosts, &argv);
        if (!e) e = launch_attempt_start(argv, number, false, &a);
        if (!e) status = launch_attempt_await(&a, j->grace_s);
        j->command_free(argv);
        TRY(e);
        find_unreachable(j, &a.fault);
        if (status != EXIT_DONE && !wait_signal_count() && !leave_out_host(j, &a.fault))
            return err_hint(ERR("doctor: rank %d, %s: %s; not started", a.fault.rank,
                                *a.fault.host ? a.fault.host : "host not known",
                                *a.fault.cause ? a.fault.cause : "cause not known"),
                            "leave this host out, or name others that may replace it: --spares");
    }
    return OK;
}

/* The run was asked to end. @return what it ended with. */
static err end_on_signal(const launch_job *j, const attempt_record *r) {
    /* a second signal ends ranks at once, with the same status as Ctrl-C has after a save */
    bool saved = r->outcome.status == EXIT_DONE || r->outcome.status == EXIT_PREEMPTED ||
                 (r->outcome.status == EXIT_INTERRUPTED && wait_signal_count() == 1);
    exit_code code = wait_first_signal() == SIGINT ? EXIT_INTERRUPTED : EXIT_PREEMPTED;
    if (!j->run_dir)
        return err_exit(
            err_hint(ERR("stopped by a signal"),
                     "the same command starts again; a data command keeps what is complete"),
            code);
    if (!saved)
        return err_hint(ERR("stopped by a signal before the run was saved"),
                        "the same command continues from its last checkpoint");
    return err_exit(ERR("saved, and stopped by a signal"), code);
}

enum { FAILURES_BETWEEN_TESTS = 2 };
err launch_supervise(const launch_job *j) {
    records all = { 0 };
    launch_history history = { 0 };
    bool fresh = j->fresh;
    err e = OK;
    struct sigaction action = { .sa_handler = wait_note_signal };
    for (size_t i = 0; i < LAUNCH_CAUGHT; i++) /* without SA_RESTART: poll returns */
        sigaction(launch_caught[i], &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (j->test) TRY(test_ranks(j));
    for (bool again = true; again && !e;) {
        attempt_record *r = &LIST_ADD(all.at, all.n, all.cap);
        const char *why = NULL;
        double delay = 0;
        again = false;
        e = run_attempt(j, all.n, fresh, r);
        if (e || (!wait_signal_count() && r->outcome.status == EXIT_DONE)) break;
        if (wait_signal_count()) {
            e = end_on_signal(j, r);
            break;
        }
        if (r->outcome.progress) fresh = false; /* from here on it continues what it began */
        launch_limits limits = j->limits;
        if (j->only_lost && !blames_host(&r->outcome)) limits.restarts = 0;
        again = launch_may_restart(&limits, &history, &r->outcome, &why, &delay);
        if (!again) {
            e = give_up(j, &all, why);
            break;
        }
        if (blames_host(&r->outcome)) leave_out_host(j, &r->outcome.fault);
        char status[32];
        describe_status(r->outcome.status, status, sizeof status);
        log_warn("launch: attempt %d ended with %s (rank %d, %s: %s); starting again in %.1f s",
                 all.n, status, r->outcome.fault.rank,
                 *r->outcome.fault.host ? r->outcome.fault.host : "host not known",
                 *r->outcome.fault.cause ? r->outcome.fault.cause : "cause not known", delay);
        wait_seconds(delay);
        if (wait_signal_count()) e = end_on_signal(j, r);
        if (!e && j->test && history.failures % FAILURES_BETWEEN_TESTS == 0) e = test_ranks(j);
        again = !wait_signal_count();
    }
    free(all.at);
    return e;
}
