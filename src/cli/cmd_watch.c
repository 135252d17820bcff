/* ingot watch: a run on the whole terminal, as it trains.
 *
 * The terminal is changed (no echo, another screen, no cursor) and restored whatever ends the program: q, a signal,
 * an error, or a fault of ours. Ctrl-Z restores it while the program is stopped. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"
#include "io/io.h"
#include "report/report.h"

typedef struct watch_args {
    double seconds;
} watch_args;
static const cli_arg args[] = {
    { "seconds", ARG_REAL, offsetof(watch_args, seconds), "S",
      "time between two looks (default 1)" },
};
const cli_spec cmd_watch_spec = { "watch", "RUN [--seconds S]", CLI_ARGS(args), 1 };

/* ---- the terminal ------------------------------------------------------------------------------------ */
static struct termios before; /* as it was */
static volatile sig_atomic_t is_changed, asked_to_end, was_resized;
static const char enter[] = "\033[?1049h\033[?25l", leave[] = "\033[?25h\033[?1049l";

/* Safe inside signal handlers. */
static void restore_terminal(void) {
    if (!is_changed) return;
    is_changed = 0;
    ssize_t n = write(STDOUT_FILENO, leave, sizeof leave - 1);
    (void)n;
    tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

static void change_terminal(void) {
    struct termios raw = before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    is_changed = 1;
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    ssize_t n = write(STDOUT_FILENO, enter, sizeof enter - 1);
    (void)n;
}

static void on_end(int number) { asked_to_end = number; }
static void on_resize(int number) { was_resized = 1; }
static void on_fault(int number) {
    restore_terminal();
    signal(number, SIG_DFL);
    raise(number);
}
static void on_stop(int number) {
    int kept = errno;
    restore_terminal();
    signal(number, SIG_DFL);
    raise(number); /* stops once this handler returns */
    errno = kept;
}
static void on_continue(int number) {
    signal(SIGTSTP, on_stop);
    change_terminal();
    was_resized = 1;
}

static void catch_terminal_signals(void) {
    static const struct {
        int number;
        void (*handler)(int number);
    } all[] = { { SIGINT, on_end },    { SIGTERM, on_end },   { SIGHUP, on_end },
                { SIGQUIT, on_end },   { SIGPIPE, on_end },   { SIGWINCH, on_resize },
                { SIGSEGV, on_fault }, { SIGABRT, on_fault }, { SIGBUS, on_fault },
                { SIGFPE, on_fault },  { SIGTSTP, on_stop },  { SIGCONT, on_continue } };
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        struct sigaction action = { .sa_handler = all[i].handler }; /* poll returns */
        sigaction(all[i].number, &action, NULL);
    }
}

/* ---- the run ------------------------------------------------------------------------------------------ */
static bool is_utf8_locale(void) {
    static const char *const names[] = { "LC_ALL", "LC_CTYPE", "LANG" };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const char *v = getenv(names[i]);
        if (v && *v) return strstr(v, "UTF-8") || strstr(v, "utf8") || strstr(v, "utf-8");
    }
    return false;
}

static void draw(const char *run, const series *all, bool live, int width, int height, str *out) {
    enum { TAIL = 1 << 16 };
    json_t *events = status_tail(run, "events.jsonl", TAIL);
    run_status status;
    status_read(run, all, &status);
    run_screen s = { .name = run,
                     .all = all,
                     .events = events,
                     .status = &status,
                     .now = (double)time(NULL),
                     .width = width,
                     .height = height,
                     .color = live && !getenv("NO_COLOR"),
                     .utf8 = is_utf8_locale() };
    report_draw_screen(&s, out);
    json_decref(events);
}

/* One frame: lines from the top, each cleared to its end, none that would scroll. */
static void show_frame(const char *run, const series *all) {
    struct winsize size = { .ws_row = 0 };
    str frame = { 0 }, text = { 0 };
    ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    int width = size.ws_col ? size.ws_col : 80, height = size.ws_row ? size.ws_row : 24;
    draw(run, all, true, width, MAX(1, height - 1), &frame);
    str_add(&text, "\033[H");
    for (const char *at = frame.text; *at;) {
        size_t n = strcspn(at, "\n");
        str_add(&text, "%.*s\033[K\r\n", (int)n, at);
        at += n + (at[n] == '\n');
    }
    str_add(&text, "\033[2mq quits\033[0m\033[K\033[J");
    for (size_t done = 0; done < text.len;) {
        ssize_t n = write(STDOUT_FILENO, text.text + done, text.len - done);
        if (n <= 0 && errno != EINTR) break;
        if (n > 0) done += (size_t)n;
    }
    str_free(&frame);
    str_free(&text);
}

/* @return whether a key asks to end; waits for one at most so long. */
static bool wait_for_key(double seconds) {
    struct pollfd in = { .fd = STDIN_FILENO, .events = POLLIN };
    char key;
    if (poll(&in, 1, (int)(1e3 * seconds)) <= 0) return false;
    ssize_t n = read(STDIN_FILENO, &key, 1);
    if (n == 1 && key == 3) asked_to_end = SIGINT; /* Ctrl-C, which raises no signal here */
    return n == 0 || (n == 1 && (key == 'q' || key == 'Q' || key == 3 || key == 4));
}

static err watch_live(const char *run, series *all, double seconds) {
    err e = OK;
    if (tcgetattr(STDIN_FILENO, &before) != 0)
        return ERR("cannot read the terminal's settings: %s", strerror(errno));
    atexit(restore_terminal);
    catch_terminal_signals();
    change_terminal();
    while (!e && !asked_to_end) {
        was_resized = 0;
        e = series_update(all);
        if (!e) show_frame(run, all);
        if (!e && !was_resized && wait_for_key(seconds)) break;
    }
    restore_terminal();
    if (!e && asked_to_end == SIGINT) e = err_exit(ERR("stopped by Ctrl-C"), EXIT_INTERRUPTED);
    return e;
}

err cmd_watch(int argc, char **argv) {
    enum { PLAIN_HEIGHT = 24, PLAIN_WIDTH = 100 };
    watch_args a = { .seconds = 1 };
    const char *run;
    TRY(cli_parse(&cmd_watch_spec, argc - 1, argv + 1, &a, &run));
    if (!(a.seconds >= 0.05 && a.seconds <= 3600))
        return ERR_USAGE("--seconds: expected 0.05 to 3600, got %g", a.seconds);
    if (!io_is_dir(run))
        return err_hint(ERR("%s is not a folder", run),
                        "give the folder of a run, such as runs/tiny");
    series *all = series_new(run);
    err e = series_update(all);
    bool live = isatty(STDIN_FILENO) && term_can_rewrite(stdout);
    if (!e && live) e = watch_live(run, all, a.seconds);
    if (!e && !live) {
        str text = { 0 };
        draw(run, all, false, PLAIN_WIDTH, PLAIN_HEIGHT, &text);
        while (text.len && text.text[text.len - 1] == '\n') text.text[--text.len] = '\0';
        puts(text.text ? text.text : "");
        str_free(&text);
    }
    series_free(all);
    return e;
}
