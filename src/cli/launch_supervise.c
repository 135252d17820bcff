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
 * rank gets wrong results is replaced by a spare, or the job ends.
 *
 * Its standard error passes through here line by line: that is where ranks, mpirun and srun name who failed.
 *
 * The first signal asks the ranks to save and end. Starters differ in which signals they forward, and mpirun
 * answers SIGTERM by killing the ranks after a second, so the starter is not involved:
 *
 *     ranks on this host    SIGUSR1, sent to each: descendants of the starter that run this program
 *     ranks elsewhere       the line "stop" on rank 0's standard input (train --stop-on-stdin), which mpirun and
 *                           srun forward; it is kept for a rank that has not started to read yet
 *
 * One rank that knows is enough: all agree after each step. The second signal, and the first where the ranks do
 * not train, ends the starter and with it the ranks, without a save. Processes whose starter died are adopted by this one and ended, so that nothing holds a
 * GPU, or the lock of the run folder, when the next attempt begins. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "cli/cli.h"
#include "cli/launch.h"
#include "io/io.h"

/* ---- signals ----------------------------------------------------------------------------------- */
static volatile sig_atomic_t first_signal, signals;

static void count_signal(int number) {
    if (!signals) first_signal = number;
    signals++;
}

static const int caught[] = { SIGINT, SIGTERM, SIGHUP, SIGUSR1 };

static void catch_signals(void) {
    struct sigaction action = { .sa_handler = count_signal }; /* without SA_RESTART: poll returns */
    for (size_t i = 0; i < COUNT_OF(caught); i++) sigaction(caught[i], &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

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

/* ---- one attempt --------------------------------------------------------------------------------- */
typedef struct attempt {
    pid_t pid;
    int input;  /* the writing end of its standard input; -1: it has none */
    int errors; /* the reading end of its standard error */
    str line;   /* begun, not ended */
    int sent;   /* signals passed on */
    launch_fault fault;
} attempt;

static void close_attempt(attempt *a) {
    if (a->input >= 0) close(a->input);
    if (a->errors >= 0) close(a->errors);
    str_free(&a->line);
    a->input = a->errors = -1;
}

/* Never returns. @param input, errors become its standard input and error. */
static void run_child(char **argv, int input, int errors, int number) {
    char text[24];
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* whatever becomes of the supervisor, no rank is left */
    setpgid(0, 0);                    /* a terminal's Ctrl-C reaches the supervisor alone */
    dup2(input, STDIN_FILENO);
    dup2(errors, STDERR_FILENO);
    for (size_t i = 0; i < COUNT_OF(caught); i++) signal(caught[i], SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    snprintf(text, sizeof text, "%d", number);
    setenv("INGOT_ATTEMPT", text, 1);
    /* what ranks print comes out here, though mpirun gives each a terminal */
    if (!term_can_rewrite(stdout)) setenv("TERM", "dumb", 1);
    execvp(argv[0], argv);
    dprintf(STDERR_FILENO, "error: cannot start %s: %s\n", argv[0], strerror(errno));
    _exit(EXIT_USAGE);
}

/* A pipe that other children do not inherit. @param end the one of its ends that never blocks. */
static err open_pipe(int ends[2], int end) {
    if (pipe2(ends, O_CLOEXEC) != 0) return ERR("cannot make a pipe: %s", strerror(errno));
    fcntl(ends[end], F_SETFL, O_NONBLOCK);
    return OK;
}

/* @param saves the ranks train, and can be asked to save; others have nothing on their standard input. */
static err start_attempt(char **argv, int number, bool saves, attempt *a) {
    int in[2] = { -1, -1 }, errors[2] = { -1, -1 };
    err e = OK;
    *a = (attempt){ .fault = LAUNCH_FAULT_NONE, .input = -1, .errors = -1 };
    if (saves)
        TRY(open_pipe(in, 1));
    else
        in[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    a->input = in[1];
    TRY_CLEAN(open_pipe(errors, 0));
    a->errors = errors[0];
    fflush(NULL);
    a->pid = fork();
    if (a->pid == 0) run_child(argv, in[0], errors[1], number);
    if (a->pid < 0) e = ERR("cannot start a process: %s", strerror(errno));
cleanup:
    if (in[0] >= 0) close(in[0]);
    if (errors[1] >= 0) close(errors[1]);
    if (e) close_attempt(a);
    return e;
}

static void scan_output(attempt *a, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (text[i] != '\n') {
            if (a->line.len < 4096) str_add_bytes(&a->line, &text[i], 1);
            continue;
        }
        if (a->line.len) launch_fault_read(&a->fault, a->line.text);
        a->line.len = 0;
        if (a->line.text) a->line.text[0] = '\0';
    }
}

/* Passes on what has been printed, at most so much that ranks which print without end do not keep the
 * supervisor from its other work. @return false at its end. */
static bool relay_output(attempt *a) {
    enum { MOST_READS = 16 };
    char text[4096];
    ssize_t n = 1;
    for (int i = 0; i < MOST_READS && (n = read(a->errors, text, sizeof text)) > 0; i++) {
        scan_output(a, text, (size_t)n);
        fwrite(text, 1, (size_t)n, stderr);
    }
    fflush(stderr);
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

/* What was printed before the last process ended; a daemon that outlives it does not hold us up. */
static void relay_remaining_output(attempt *a) {
    enum { MOST_BYTES = 64 << 20, BYTES_PER_CALL = 64 << 10 };
    struct pollfd output = { .fd = a->errors, .events = POLLIN };
    for (int i = 0; i < MOST_BYTES / BYTES_PER_CALL && a->errors >= 0; i++)
        if (poll(&output, 1, 0) <= 0 || !relay_output(a)) return;
}

/* @return the parent of a process; -1: it is gone. */
static pid_t parent_of(const char *pid) {
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f) return -1;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    const char *end = strrchr(text, ')'); /* the name before it may have any character */
    int parent = -1;
    return end && sscanf(end, ") %*c %d", &parent) == 1 ? parent : -1;
}

/* ---- asking the ranks to end ---------------------------------------------------------------------- */
static bool runs_this_program(const char *pid) {
    char path[64];
    struct stat own, its;
    snprintf(path, sizeof path, "/proc/%.20s/exe", pid);
    return stat("/proc/self/exe", &own) == 0 && stat(path, &its) == 0 && own.st_dev == its.st_dev &&
           own.st_ino == its.st_ino;
}

static bool descends_from(const char *pid, pid_t ancestor) {
    char text[24];
    pid_t parent = parent_of(pid);
    while (parent > 1 && parent != ancestor) {
        snprintf(text, sizeof text, "%d", (int)parent);
        parent = parent_of(text);
    }
    return parent == ancestor;
}

static void signal_local_ranks(const attempt *a, int number) {
    DIR *all = opendir("/proc");
    const struct dirent *entry;
    while (all && (entry = readdir(all)))
        if (isdigit((unsigned char)entry->d_name[0]) && runs_this_program(entry->d_name) &&
            descends_from(entry->d_name, a->pid))
            kill((pid_t)atol(entry->d_name), number);
    if (all) closedir(all);
}

static void ask_to_save_and_end(const attempt *a) {
    static const char line[] = TRAIN_STOP_LINE "\n";
    ssize_t n = write(a->input, line, strlen(line));
    if (n < 0) log_warn("launch: ranks on other hosts cannot be asked to end: %s", strerror(errno));
    signal_local_ranks(a, SIGUSR1);
}

static void pass_signals(attempt *a) {
    for (; a->sent < signals; a->sent++) {
        if (a->sent == 0 && a->input >= 0)
            ask_to_save_and_end(a);
        else
            kill(a->pid, a->sent <= 1 ? SIGTERM : SIGKILL);
    }
}

/* Ends what the starter left behind: orphans, which this process has adopted. Ending one may yield others. */
static void end_orphans(void) {
    for (bool found = true; found;) {
        DIR *all = opendir("/proc");
        const struct dirent *entry;
        found = false;
        while (all && (entry = readdir(all))) {
            if (!isdigit((unsigned char)entry->d_name[0])) continue;
            if (parent_of(entry->d_name) != getpid()) continue;
            pid_t pid = (pid_t)atol(entry->d_name);
            kill(pid, SIGKILL);
            found |= waitpid(pid, NULL, 0) == pid;
        }
        if (all) closedir(all);
    }
}

/* @return its exit code, or 128 + the signal that ended it. */
static int await_attempt(attempt *a) {
    enum { LOOK_MS = 100 };
    int status = 0;
    pid_t ended = 0;
    while (ended == 0 || (ended < 0 && errno == EINTR)) {
        struct pollfd output = { .fd = a->errors, .events = POLLIN };
        pass_signals(a);
        poll(&output, 1, LOOK_MS);
        if (a->errors >= 0 && !relay_output(a)) {
            close(a->errors);
            a->errors = -1;
        }
        ended = waitpid(a->pid, &status, WNOHANG);
    }
    end_orphans();
    relay_remaining_output(a);
    close_attempt(a);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
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

static bool is_signal(int status) { return status > 128 && status <= 128 + SIGRTMAX; }

static void describe_status(int status, char *to, size_t n) {
    const exit_row *row = exit_find(status);
    if (is_signal(status))
        snprintf(to, n, "signal %d", status - 128);
    else
        snprintf(to, n, "%d%s%s", status, row ? " " : "", row ? row->name : "");
}

/* RUN/launch.jsonl: a line for each attempt. What cannot be written there is still printed. */
static void append_record(const launch_job *j, int number, const attempt_record *r) {
    const launch_fault *f = &r->outcome.fault;
    if (!j->run_dir || !io_is_dir(j->run_dir)) return;
    char *path = io_join(j->run_dir, "launch.jsonl");
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
    free(path);
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

/* Whether a command ends well within half a minute. */
static bool command_succeeds(char **argv) {
    enum { PATIENCE_S = 30 };
    pid_t pid = fork(), ended = 0;
    int status = 1, null;
    if (pid == 0) {
        null = open("/dev/null", O_RDWR);
        for (int fd = STDIN_FILENO; fd <= STDERR_FILENO && null >= 0; fd++) dup2(null, fd);
        execvp(argv[0], argv);
        _exit(EXIT_ERROR);
    }
    double until = time_now() + PATIENCE_S;
    while (pid > 0 && !ended) {
        nanosleep(&(struct timespec){ 0, 20000000 }, NULL);
        if (time_now() > until || signals > 1) kill(pid, SIGKILL);
        ended = waitpid(pid, &status, WNOHANG);
    }
    end_orphans();
    return pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* mpirun does not say which host it cannot reach: each is tried alone. */
static void find_unreachable(const launch_job *j, launch_fault *f) {
    if (!f->unreachable || *f->host || !j->probe) return;
    for (int i = 0; i < j->hosts->n && !*f->host && !signals; i++) {
        char **argv = NULL;
        err e = j->probe(j->ctx, &j->hosts->at[i], &argv);
        if (!e && !command_succeeds(argv)) {
            snprintf(f->host, sizeof f->host, "%s", j->hosts->at[i].name);
            snprintf(f->cause, sizeof f->cause, "the host cannot be reached");
        }
        err_free(e);
        j->command_free(argv);
    }
}

/* Puts a spare in place of the host that had the fault. @return whether there was one. */
static bool leave_out_host(const launch_job *j, const launch_fault *f) {
    int index = launch_hosts_find_rank(j->hosts, f->rank);
    if (index < 0 && *f->host) index = launch_hosts_find_name(j->hosts, f->host);
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

static err give_up(const records *r, const char *why) {
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
    e = err_hint(e,
                 last->step >= 0
                     ? "the same command continues from step %lld; `ingot launch ... -- doctor "
                       "--cluster` tests the hosts"
                     : "there is no checkpoint yet; `ingot launch ... -- doctor --cluster` tests "
                       "the hosts",
                 (long long)last->step);
    return err_exit(e, (exit_code)code);
}

/* ---- the job ------------------------------------------------------------------------------------------ */
/* @return false when a signal came meanwhile. */
static bool pause_for(double seconds) {
    double until = time_now() + seconds;
    while (!signals && time_now() < until) nanosleep(&(struct timespec){ 0, 50000000 }, NULL);
    return !signals;
}

static err run_attempt(const launch_job *j, int number, bool fresh, attempt_record *out) {
    char **argv = NULL;
    attempt a;
    double began = time_now();
    newest_checkpoint before = find_newest(j->run_dir);
    TRY(j->command(j->ctx, j->hosts, fresh, &argv));
    err e = start_attempt(argv, number, j->run_dir != NULL, &a);
    if (!e) {
        int status = await_attempt(&a);
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
    for (int number = 1; status != EXIT_DONE && !signals; number++) {
        char **argv = NULL;
        attempt a = { .fault = LAUNCH_FAULT_NONE };
        err e = j->test(j->ctx, j->hosts, &argv);
        if (!e) e = start_attempt(argv, number, false, &a);
        if (!e) status = await_attempt(&a);
        j->command_free(argv);
        TRY(e);
        find_unreachable(j, &a.fault);
        if (status != EXIT_DONE && !signals && !leave_out_host(j, &a.fault))
            return err_hint(ERR("doctor: rank %d, %s: %s; not started", a.fault.rank,
                                *a.fault.host ? a.fault.host : "host not known",
                                *a.fault.cause ? a.fault.cause : "cause not known"),
                            "leave this host out, or name others that may replace it: --spares");
    }
    return OK;
}

/* The run was asked to end. @return what it ended with. */
static err end_on_signal(const attempt_record *r) {
    bool saved = r->outcome.status == EXIT_DONE || r->outcome.status == EXIT_PREEMPTED;
    if (!saved)
        return err_hint(ERR("stopped by a signal before the run was saved"),
                        "the same command continues from its last checkpoint");
    if (first_signal == SIGINT) return OK;
    return err_exit(ERR("saved, and stopped by a signal"), EXIT_PREEMPTED);
}

enum { FAILURES_BETWEEN_TESTS = 2 };
err launch_supervise(const launch_job *j) {
    records all = { 0 };
    launch_history history = { 0 };
    bool fresh = j->fresh;
    err e = OK;
    catch_signals();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (j->test) TRY(test_ranks(j));
    for (bool again = true; again && !e;) {
        mem_reserve((void **)&all.at, &all.cap, all.n, sizeof *all.at);
        attempt_record *r = &all.at[all.n++];
        const char *why = NULL;
        double delay = 0;
        again = false;
        e = run_attempt(j, all.n, fresh, r);
        if (e || (!signals && r->outcome.status == EXIT_DONE)) break;
        if (signals) {
            e = end_on_signal(r);
            break;
        }
        if (r->outcome.progress) fresh = false; /* from here on it continues what it began */
        again = launch_may_restart(&j->limits, &history, &r->outcome, &why, &delay);
        if (!again) {
            e = give_up(&all, why);
            break;
        }
        if (blames_host(&r->outcome)) leave_out_host(j, &r->outcome.fault);
        char status[32];
        describe_status(r->outcome.status, status, sizeof status);
        log_warn("launch: attempt %d ended with %s (rank %d, %s: %s); starting again in %.1f s",
                 all.n, status, r->outcome.fault.rank,
                 *r->outcome.fault.host ? r->outcome.fault.host : "host not known",
                 *r->outcome.fault.cause ? r->outcome.fault.cause : "cause not known", delay);
        if (!pause_for(delay)) e = end_on_signal(r);
        if (!e && j->test && history.failures % FAILURES_BETWEEN_TESTS == 0) e = test_ranks(j);
        again = !signals;
    }
    free(all.at);
    return e;
}
