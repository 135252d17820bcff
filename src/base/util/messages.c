/* Messages to standard error, clocks, and what a terminal can show. */
#include "util/util.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The process-wide settings of this folder: the least level that is printed, and where messages are kept. */
static log_level least_level = LOG_INFO;
static struct {
    pthread_mutex_t lock;
    FILE *file; /* borrowed; NULL: nowhere */
} kept = { PTHREAD_MUTEX_INITIALIZER, NULL };

static _Thread_local bool muted;

void log_mute_thread(bool mute) { muted = mute; }
void log_set_level(log_level least) { least_level = least; }

void log_keep(FILE *f) {
    pthread_mutex_lock(&kept.lock);
    kept.file = f;
    pthread_mutex_unlock(&kept.lock);
}

void log_line(const char *text) {
    pthread_mutex_lock(&kept.lock);
    if (kept.file) {
        char when[32];
        time_t now = time(NULL);
        struct tm parts;
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &parts));
        fprintf(kept.file, "%s  %s\n", when, text);
        fflush(kept.file); /* a full disk loses lines of this file and nothing else */
    }
    pthread_mutex_unlock(&kept.lock);
}

void log_at(log_level level, const char *fmt, ...) {
    static const char *const prefix[] = { "debug: ", "", "warning: ", "error: " };
    if (level < least_level || muted) return;
    char text[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    fprintf(stderr, "%s%s\n", prefix[level], text); /* one call, so that lines stay whole */
    char line[sizeof text + 16];
    snprintf(line, sizeof line, "%s%s", prefix[level], text);
    log_line(line);
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
