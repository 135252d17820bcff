/* ingot train: a run from a config. */
#include <unistd.h>

#include "cli/cli.h"
#include "planning/planning.h"
#include "train/train.h"

/* The first signal that asks the run to save and stop; the second ends the process as usual. */
static volatile sig_atomic_t stop_signal;

static void ask_stop(int signal_number) {
    stop_signal = signal_number;
    signal(signal_number, SIG_DFL);
}

static void catch_stop_signals(void) {
    signal(SIGINT, ask_stop);
    signal(SIGTERM, ask_stop); /* these two: the machine is wanted back */
    signal(SIGUSR1, ask_stop);
    if (signal(SIGHUP, ask_stop) == SIG_IGN) signal(SIGHUP, SIG_IGN); /* nohup */
    signal(SIGPIPE, SIG_IGN); /* `| head` ends the progress, not the run */
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

err cli_read_train(int argc, char **argv, config *c, train_options *o, train_prints *print) {
    const char *scale = NULL, *ranks = NULL;
    const config_flag flags[] = { { "--fresh", &o->fresh, NULL },
                                  { "--quiet", &o->quiet, NULL },
                                  { "--print-config", &print->config, NULL },
                                  { "--dump-schedule", &print->schedule, NULL },
                                  { "--scale", NULL, &scale },
                                  { "--ranks", NULL, &ranks } };
    TRY(config_from_args(c, argc, argv, flags, (int)COUNT_OF(flags)));
    if (ranks) TRY(read_ranks(ranks, &o->ranks));
    return scale ? config_scale(c, scale) : OK;
}

static void exit_stalled(void) { _exit(EXIT_HUNG); }

err cmd_train(int argc, char **argv) {
    train_prints print = { 0 };
    bool preempted = false;
    train_options o = { .stop = &stop_signal, .stalled = exit_stalled, .preempted = &preempted };
    config c;
    config_init(&c);
    err e = cli_read_train(argc, argv, &c, &o, &print);
    if (!e && (print.config || print.schedule)) {
        str text = { 0 };
        if (print.config)
            config_print(&c, &text);
        else
            e = train_timetable(&c, o.ranks, &text);
        if (!e) fputs(text.text, stdout);
        str_free(&text);
    } else if (!e) {
        catch_stop_signals();
        e = train_run(&c, &o);
        if (!e && preempted) e = err_exit(ERR("saved, and stopped by a signal"), EXIT_PREEMPTED);
    }
    config_free(&c);
    return e;
}
