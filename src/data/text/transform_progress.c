/* Progress of a transform: one line that is rewritten on a terminal, a line every few seconds
 * elsewhere, nothing for transforms that finish at once. With several ranks, that of all of them. */
#include "comm/comm.h"
#include "text/transform_report_internal.h"

static const double QUIET_SECONDS = 2, LIVE_SECONDS = 0.5, PLAIN_SECONDS = 10;

void text_progress_init(text_progress *p, const char *name, int64_t total) {
    *p = (text_progress){ .name = name, .total = total, .live = term_can_rewrite(stderr) };
    p->began = p->shown = time_now();
}

static void draw_progress(text_progress *p, int64_t all, double now) {
    char done[32], total[32], rate[32], left[32];
    double seconds = now - p->began, made = (double)(all - p->skipped);
    double speed = seconds > 0 ? made / seconds : 0;
    str line = { 0 };
    str_add(&line, "%s: %s", p->name, str_bytes(done, sizeof done, (double)all));
    if (p->total > 0)
        str_add(&line, " of %s (%.0f%%)", str_bytes(total, sizeof total, (double)p->total),
                100.0 * (double)all / (double)p->total);
    str_add(&line, ", %s/s", str_bytes(rate, sizeof rate, speed));
    if (p->total > all && speed > 0)
        str_add(&line, ", %s left",
                str_duration(left, sizeof left, (double)(p->total - all) / speed));
    fprintf(stderr, p->live ? "\r%s\033[K" : "%s\n", line.text);
    str_free(&line);
    p->drawn = true;
    p->shown = now;
}

void text_progress_show(text_progress *p, int64_t done) {
    if (!p->name) return;
    double now = time_now(), every = p->live ? LIVE_SECONDS : PLAIN_SECONDS;
    if (now - p->began > QUIET_SECONDS && now - p->shown >= every) draw_progress(p, done, now);
}

err text_progress_add(text_progress *p, int64_t bytes) {
    int64_t done = atomic_fetch_add(&p->done, bytes) + bytes;
    if (comm_world(p->comm) == 1) text_progress_show(p, done);
    return atomic_load(&p->stop) ? text_other_rank_failed(p->comm) : OK;
}

void text_progress_end(text_progress *p) {
    if (p->live && p->drawn) fprintf(stderr, "\r\033[K");
}
