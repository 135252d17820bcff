/* One attempt of a launch: the starter (mpirun, srun), its output, signals, and whether the ranks are alive.
 *
 * Its standard error passes through here line by line: that is where ranks, mpirun and srun name who failed, and where
 * rank 0 gives a sign of life every second (launch_beat.c).
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
 * GPU, or the lock of the run folder, when the next attempt begins.
 *
 * A starter whose host, or way to a host, is frozen never ends, and neither do its ranks. It is ended here:
 *
 *     rank 0 gave a sign of life, and then none for the grace period      frozen, or out of reach
 *     there has been none for three grace periods since the start          it never came up
 *     none for a quarter of the grace period after the first signal       it will not save
 *     a rank has failed, a grace period ago                               the starter cannot end the others
 */
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

#include "cli/cli.h"
#include "cli/launch.h"
#include "io/io.h"
#include "util/wait.h"

const int launch_caught[LAUNCH_CAUGHT] = { SIGINT, SIGTERM, SIGHUP, SIGUSR1 };

/* ---- the process ---------------------------------------------------------------------------------------- */
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
    for (size_t i = 0; i < LAUNCH_CAUGHT; i++) signal(launch_caught[i], SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    snprintf(text, sizeof text, "%d", number);
    setenv("INGOT_ATTEMPT", text, 1);
    setenv(LAUNCH_SUPERVISED, "1", 1);
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

err launch_attempt_start(char **argv, int number, bool saves, attempt *a) {
    int in[2] = { -1, -1 }, errors[2] = { -1, -1 };
    err e = OK;
    *a = (attempt){ .fault = LAUNCH_FAULT_NONE, .input = -1, .errors = -1, .began = time_now() };
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

/* Takes signs of life out of a text, in place. @return the bytes that are left. */
static size_t take_beats(attempt *a, char *text, size_t n) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        bool beat = text[i] == LAUNCH_BEAT, its_end = a->beaten && text[i] == '\n';
        if (beat) a->heard = time_now();
        if (!beat && !its_end) text[kept++] = text[i];
        a->beaten = beat;
    }
    return kept;
}

static void scan_output(attempt *a, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (text[i] != '\n') {
            if (a->line.len < 4096) str_add_bytes(&a->line, &text[i], 1);
            continue;
        }
        if (a->line.len) launch_fault_read(&a->fault, a->line.text);
        if (a->fault.rank >= 0 && !a->failed) a->failed = time_now();
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
        size_t kept = take_beats(a, text, (size_t)n);
        scan_output(a, text, kept);
        fwrite(text, 1, kept, stderr);
    }
    fflush(stderr);
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

/* Reads the output up to the end of the last process. A daemon that outlives it does not delay the launcher. */
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

/* Ends the starter, which ends the ranks; and if it does not, the starter alone: what it leaves is adopted here. */
static void end_starter(attempt *a) {
    enum { PATIENCE_S = 10 };
    if (!a->ended) {
        a->ended = time_now();
        kill(a->pid, SIGTERM);
        kill(a->pid, SIGCONT); /* one that is stopped takes no other signal */
    } else if (time_now() - a->ended > PATIENCE_S)
        kill(a->pid, SIGKILL);
}

static void pass_signals(attempt *a) {
    for (; a->sent < wait_signal_count(); a->sent++) {
        if (!a->asked) a->asked = time_now();
        if (a->sent == 0 && a->input >= 0)
            ask_to_save_and_end(a);
        else if (a->sent <= 1)
            end_starter(a);
        else
            kill(a->pid, SIGKILL);
    }
}

/* Ends what the starter left behind: orphans, which this process has adopted. Ending one may yield others; one that the
 * kernel does not let go of is left. */
static void end_orphans(void) {
    wait_state w;
    wait_begin(&w, 10, "processes that the starter left behind to end");
    w.ignored = wait_signal_count();
    for (bool found = true; found;) {
        DIR *all = opendir("/proc");
        const struct dirent *entry;
        bool ended = false;
        found = false;
        while (all && (entry = readdir(all))) {
            if (!isdigit((unsigned char)entry->d_name[0])) continue;
            if (parent_of(entry->d_name) != getpid()) continue;
            pid_t pid = (pid_t)atol(entry->d_name);
            kill(pid, SIGKILL);
            found = true;
            ended |= waitpid(pid, NULL, WNOHANG) == pid;
        }
        if (all) closedir(all);
        if (found && !ended && !wait_nap(&w)) break;
    }
}

/* ---- whether the ranks are alive ------------------------------------------------------------------------ */
/* Output of ranks may be diverted, and signs of life with it: a run that writes to its folder is alive. */
static bool has_written(const attempt *a) {
    char *path = a->run_dir ? io_join(a->run_dir, "metrics.jsonl") : NULL;
    struct stat s;
    bool written =
        path && stat(path, &s) == 0 && (double)(time(NULL) - s.st_mtime) < time_now() - a->began;
    free(path);
    return written;
}

/* @param why written where the answer is yes. */
static bool is_stuck(const attempt *a, double grace, char *why, size_t n) {
    enum { STARTING = 3, ASKED = 4 };
    double now = time_now(), last = MAX(a->heard, a->began);
    double allowed = a->heard > 0 ? grace : STARTING * grace;
    if (a->asked > 0) allowed = grace / ASKED, last = MAX(last, a->asked);
    if (!(grace > 0) || a->ended > 0) return false;
    if (a->failed > 0 && now - a->failed > grace) {
        snprintf(why, n, "a rank failed %.0f s ago, and the others have not been ended",
                 now - a->failed);
        return true;
    }
    if (now - last <= allowed || (!a->heard && has_written(a))) return false;
    snprintf(why, n, "rank 0 has given no sign of life for %.0f s%s", now - last,
             a->heard > 0 ? "" : ", and none before");
    return true;
}

/* @param stuck set when it was. */
static void end_if_stuck(attempt *a, double grace, bool *stuck) {
    char why[160];
    if (a->ended > 0) end_starter(a); /* again, and harder */
    if (!is_stuck(a, grace, why, sizeof why)) return;
    log_warn("launch: %s; ending what started the ranks (--grace)", why);
    *stuck = true;
    if (a->fault.rank < 0 && !*a->fault.host) {
        a->fault.unreachable = true; /* the host that does not answer is looked for */
        snprintf(a->fault.cause, sizeof a->fault.cause, "%s", why);
    }
    end_starter(a);
}

int launch_attempt_await(attempt *a, double grace) {
    enum { LOOK_MS = 100 };
    int status = 0;
    pid_t ended = 0;
    bool stuck = false;
    while (ended == 0 || (ended < 0 && errno == EINTR)) {
        struct pollfd output = { .fd = a->errors, .events = POLLIN };
        pass_signals(a);
        int ready = poll(&output, 1, LOOK_MS);
        if (a->errors >= 0 && !relay_output(a)) {
            close(a->errors);
            a->errors = -1;
        }
        if (ready == 0) end_if_stuck(a, grace, &stuck); /* all that was printed has been read */
        ended = waitpid(a->pid, &status, WNOHANG);
    }
    end_orphans();
    relay_remaining_output(a);
    close_attempt(a);
    if (stuck) return EXIT_HUNG;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- a command that only shows whether a host answers ---------------------------------------------------- */
bool launch_command_succeeds(char **argv) {
    enum { PATIENCE_S = 30 };
    pid_t pid = fork(), ended = 0;
    int status = 1, null;
    if (pid == 0) {
        null = open("/dev/null", O_RDWR);
        for (int fd = STDIN_FILENO; fd <= STDERR_FILENO && null >= 0; fd++) dup2(null, fd);
        execvp(argv[0], argv);
        _exit(EXIT_ERROR);
    }
    wait_state w;
    wait_begin(&w, PATIENCE_S, "%s to answer", argv[0]);
    while (pid > 0 && !ended) {
        if (!wait_nap(&w)) kill(pid, SIGKILL);
        ended = waitpid(pid, &status, WNOHANG);
    }
    end_orphans();
    return pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
