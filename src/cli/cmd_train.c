/* ingot train: a run from a config. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "planning/planning.h"
#include "train/train.h"
#include "util/wait.h"

/* The first signal that asks the run to save and stop; the second ends the process as usual. SIGUSR1 may be
 * repeated: batch systems and launchers send it in several ways. */
static volatile sig_atomic_t stop_signal;

static void ask_stop(int signal_number) {
    stop_signal = signal_number;
    wait_note_signal(signal_number);
    if (signal_number != SIGUSR1) signal(signal_number, SIG_DFL);
}

/* ---- --stop-on-stdin: how a launcher reaches a rank on another host --------------------------------- */
/* Reads without the C library's buffers: a process that exits would wait for the lock of the stream. */
static void *await_stop_line(void *unused) {
    static const char wanted[] = TRAIN_STOP_LINE;
    const size_t length = sizeof wanted - 1;
    size_t n =
        0; /* characters of the line so far that are those wanted; more than all: it is another line */
    char c;
    ssize_t got;
    (void)unused;
    while ((got = read(STDIN_FILENO, &c, 1)) == 1 || (got < 0 && errno == EINTR)) {
        if (got < 0) continue;
        if (c == '\n' && n == length) kill(getpid(), SIGUSR1);
        if (c == '\n')
            n = 0;
        else
            n = n < length && c == wanted[n] ? n + 1 : length + 1;
    }
    return NULL;
}

/* The thread ends with the process, or with its standard input. */
static err watch_stdin(void) {
    pthread_t thread;
    sigset_t before;
    thread_block_signals(&before);
    int rc = pthread_create(&thread, NULL, await_stop_line, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc)
        return err_hint(
            ERR("the thread that reads standard input does not start: %s", strerror(rc)),
            "raise the limit of threads");
    pthread_detach(thread);
    return OK;
}

static err read_ranks(const char *text, int *out) {
    int64_t n = 0;
    enum { MOST = 64 };
    if (number_parse_int(text, &n) && n >= 1 && n <= MOST) {
        *out = (int)n;
        return OK;
    }
    return err_hint(ERR_USAGE("--ranks: expected a number from 1 to %d, got \"%s\"", MOST, text),
                    "ranks are threads of this process that train together: --ranks 2");
}

/* "steps=10-12", or "steps=10". */
static err read_profiled_steps(const char *text, train_options *o) {
    char first[32] = "";
    const char *steps = str_starts(text, "steps=") ? text + strlen("steps=") : "";
    size_t n = strcspn(steps, "-");
    const char *last = steps[n] ? steps + n + 1 : first;
    snprintf(first, sizeof first, "%.*s", (int)MIN(n, sizeof first - 1), steps);
    if (number_parse_int(first, &o->profile_from) && number_parse_int(last, &o->profile_to) &&
        o->profile_from >= 1 && o->profile_to >= o->profile_from)
        return OK;
    return err_hint(ERR_USAGE("--profile: expected steps=FIRST-LAST, got \"%s\"", text),
                    "steps count from 1: --profile steps=10-12");
}

typedef struct train_own_args {
    bool fresh, quiet, print_config, dump_schedule, stop_on_stdin, memory_timeline;
    const char *scale, *ranks, *profile;
} train_own_args;
#define AT(member) offsetof(train_own_args, member)
static const cli_arg args[] = {
    { "fresh", ARG_FLAG, AT(fresh), "", "start over instead of resuming the run" },
    { "ranks", ARG_TEXT, AT(ranks), "N",
      "train on N ranks, threads of this process, laid out by the parallelism section" },
    { "quiet", ARG_FLAG, AT(quiet), "", "omit the summary" },
    { "print-config", ARG_FLAG, AT(print_config), "", "print the resulting config and exit" },
    { "scale", ARG_TEXT, AT(scale), "tiny",
      "shrink any config to a run of seconds on a CPU, keeping the proportions of its model" },
    { "dump-schedule", ARG_FLAG, AT(dump_schedule), "",
      "print which rank does what when (pipeline, ZeRO gathers and reductions), and exit" },
    { "profile", ARG_TEXT, AT(profile), "steps=A-B",
      "write a trace of every op and collective of these steps to RUN/profile, for Perfetto" },
    { "memory-timeline", ARG_FLAG, AT(memory_timeline), "",
      "write what is in memory during each op of a step to RUN/profile" },
    { TRAIN_STOP_ON_STDIN, ARG_FLAG, AT(stop_on_stdin), "",
      "treat the line \"stop\" on standard input as a SIGUSR1; launchers use it" },
};
const cli_spec cmd_train_spec = { "train", "[CONFIG.yaml] [--section.key=value ...] [options]",
                                  CLI_ARGS(args), 0 };

err cli_read_train(int argc, char **argv, config *c, train_options *o, train_flags *f) {
    train_own_args a = { 0 };
    TRY(cli_parse_config(&cmd_train_spec, argc, argv, c, &a));
    o->fresh = a.fresh;
    o->quiet = a.quiet;
    o->memory_timeline = a.memory_timeline;
    *f = (train_flags){ a.print_config, a.dump_schedule, a.stop_on_stdin };
    if (a.ranks) TRY(read_ranks(a.ranks, &o->ranks));
    if (a.profile) TRY(read_profiled_steps(a.profile, o));
    return a.scale ? config_scale(c, a.scale) : OK;
}

static err print_instead(const config *c, const train_options *o, const train_flags *f) {
    str text = { 0 };
    err e = OK;
    if (f->print_config)
        config_print(c, &text);
    else
        e = train_timetable(c, o->ranks, &text);
    if (!e) fputs(text.text, stdout);
    str_free(&text);
    return e;
}

err cmd_train(int argc, char **argv) {
    train_flags f = { 0 };
    int stopped_by = 0;
    train_options o = { .stop = &stop_signal,
                        .stalled = cli_exit_stalled,
                        .stopped_by = &stopped_by };
    config c;
    config_init(&c);
    err e = cli_read_train(argc, argv, &c, &o, &f);
    if (!e && (f.print_config || f.dump_schedule)) {
        e = print_instead(&c, &o, &f);
    } else if (!e) {
        signal(SIGINT, ask_stop);
        signal(SIGTERM, ask_stop); /* these two: the machine is wanted back */
        signal(SIGUSR1, ask_stop);
        if (signal(SIGHUP, ask_stop) == SIG_IGN) signal(SIGHUP, SIG_IGN); /* nohup */
        signal(SIGPIPE, SIG_IGN); /* `| head` ends the progress, not the run */
        if (f.stop_on_stdin) e = watch_stdin();
        if (!e) e = train_run(&c, &o);
        if (!e && stopped_by)
            e = err_exit(ERR("saved, and stopped by a signal"),
                         stopped_by == SIGINT ? EXIT_INTERRUPTED : EXIT_PREEMPTED);
    }
    config_free(&c);
    return e;
}
