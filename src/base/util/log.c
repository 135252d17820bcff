/* Messages to standard error, clocks, and what a terminal can show. */
#include "util/util.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The one process-wide setting of this folder: the least level that is printed. */
static log_level least_level = LOG_INFO;

static _Thread_local bool muted;

void log_mute_thread(bool mute) { muted = mute; }
void log_set_level(log_level least) { least_level = least; }

void log_at(log_level level, const char *fmt, ...) {
    static const char *const prefix[] = { "debug: ", "", "warning: ", "error: " };
    if (level < least_level || muted) return;
    char text[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    fprintf(stderr, "%s%s\n", prefix[level], text); /* one call, so that lines stay whole */
}

bool term_can_rewrite(FILE *f) {
    const char *kind = getenv("TERM");
    return isatty(fileno(f)) && kind && strcmp(kind, "dumb") != 0;
}

bool term_has_color(FILE *f) {
    const char *no = getenv("NO_COLOR");
    return term_can_rewrite(f) && !(no && *no);
}

double time_cpu(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double time_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
