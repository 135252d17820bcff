/* Measures the peak rate of the device: the 100% of MFU where the vendor publishes no figure, as for CPUs.
 *
 * A peak measured once, while another process had the cores, let MFU read 311%. So it is measured when nothing else runs, once per
 * machine, and kept in a file:
 *
 *     ~/.cache/ingot/cpu-peak.txt        HOST CPU INSTRUCTIONS THREADS TYPE: operations per second
 *
 * A machine that was never idle so far is measured again with validations; the best counts. In either case the peak is never less
 * than what a step achieved. */
#include "trainer_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/io.h"

/* ---- the file ---------------------------------------------------------------------------------- */
enum { MOST_PEAK_BYTES = 1 << 20 };

/* Calls each for every line. @param text overwritten @return whether the line of `key` was found, and its value */
static bool find_peak(char *text, const char *key, double *out) {
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n"));) {
        size_t n = strlen(key);
        if (strncmp(line, key, n) != 0 || strncmp(line + n, ": ", 2) != 0) continue;
        *out = strtod(line + n + 2, NULL);
        return *out > 0 && isfinite(*out);
    }
    return false;
}

double peak_read(const char *path, const char *key) {
    char *text = NULL;
    double v = NAN;
    err e = io_read(path, MOST_PEAK_BYTES, &text, NULL);
    if (e || !find_peak(text, key, &v)) v = NAN;
    err_free(e);
    free(text);
    return v;
}

void peak_write(const char *path, const char *key, double flops) {
    char *text = NULL, *rest;
    str out = { 0 };
    err e = io_read(path, MOST_PEAK_BYTES, &text, NULL);
    err_free(e);
    rest = text;
    for (char *line; (line = strsep(&rest, "\n"));)
        if (*line && !(str_starts(line, key) && line[strlen(key)] == ':'))
            str_add(&out, "%s\n", line);
    str_add(&out, "%s: %.6g\n", key, flops);
    err_free(
        io_write(path, out.text, out.len)); /* a cache: without it the peak is measured again */
    str_free(&out);
    free(text);
}

/* "model name : ..." of /proc/cpuinfo; arm64 has none. */
static void add_cpu_name(str *out) {
    char row[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && fgets(row, sizeof row, f)) {
        const char *value = strchr(row, ':');
        if (!str_starts(row, "model name") || !value) continue;
        str_add(out, " %.*s", (int)strcspn(value + 2, "\n"), value + 2);
        break;
    }
    if (f) fclose(f);
}

static char *peak_key(const trainer *t) {
    char host[128] = "";
    str key = { 0 };
    gethostname(host, sizeof host - 1);
    str_add(&key, "%s", host);
    add_cpu_name(&key);
    str_add(&key, " %s %d %s", t->ops->name, pool_size(t->x.pool), dt_name(model_lay(t->m)->dt));
    return key.text;
}

/* @return the file, owned; NULL: without a folder for it. */
static char *peak_path(void) {
    char *folder = io_cache_folder(), *path = folder ? io_join(folder, "cpu-peak.txt") : NULL;
    free(folder);
    return path;
}

/* Whether nothing else runs: "0.10 0.20 0.30 1/234 ..." of /proc/loadavg counts what is runnable now, which this thread is. */
bool peak_machine_is_idle(const char *loadavg) {
    const char *slash = strchr(loadavg, '/'), *at = slash;
    while (at && at > loadavg && at[-1] >= '0' && at[-1] <= '9') at--;
    return slash && at < slash && atoi(at) <= 1;
}

static bool machine_is_idle(void) {
    char text[128] = "";
    FILE *f = fopen("/proc/loadavg", "re");
    if (f && !fgets(text, sizeof text, f)) text[0] = '\0';
    if (f) fclose(f);
    return peak_machine_is_idle(text);
}

/* ---- measuring --------------------------------------------------------------------------------- */

static double measure_peak(void *ctx) {
    const trainer *t = ctx;
    return ops_peak_flops(t->ops, model_lay(t->m)->dt, t->x.pool);
}

double trainer_mfu_peak(const trainer *t) {
    return isnan(t->peak.published) ? t->peak.flops : t->peak.published;
}

bool peak_is_due(double measured_at, double now) {
    enum { SECONDS = 10 }; /* a measurement takes up to 20 ms */
    return !(now < measured_at + SECONDS);
}

void trainer_measure_peak(trainer *t) {
    double now = time_now();
    if (t->peak.is_known || (t->peak.flops > 0 && !peak_is_due(t->peak.measured_at, now))) return;
    char *path = t->ops->device ? NULL : peak_path(), *key = path ? peak_key(t) : NULL;
    double kept = path ? peak_read(path, key) : NAN;
    t->peak.is_known = kept > 0;
    if (t->peak.is_known) {
        t->peak.flops = MAX(t->peak.flops, kept);
    } else {
        bool idle = path && machine_is_idle();
        double peak = measure_peak(t);
        t->peak.flops = MAX(t->peak.flops, peak);
        t->peak.measured_at = now;
        t->peak.is_known = idle && machine_is_idle(); /* before and after */
        if (t->peak.is_known) peak_write(path, key, t->peak.flops);
    }
    free(path);
    free(key);
}

double peak_after(double peak, double achieved, double (*again)(void *ctx), void *ctx) {
    if (!(achieved > peak)) return peak;
    double now = again(ctx), most = MAX(now, peak);
    return MAX(most, achieved);
}

void trainer_raise_peak(trainer *t, double achieved) {
    t->peak.flops = peak_after(t->peak.flops, achieved, measure_peak, t);
}
