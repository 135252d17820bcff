/* Ranks measure themselves. Every few steps they exchange how long they compute, how long they wait for
 * others, and what their collectives moved: one exchange of a few hundred bytes per rank. The one that computes
 * longer than those with the same work is named (observe/stragglers.c judges), and all of it becomes metrics.
 *
 * On a GPU the time that a collective waits inside a kernel is not known to the host, so only what delays the host
 * of a rank is seen there. */
#include "trainer_internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "util/fault.h"

/* A collective over a set of axes. Of more than MOST_MOVED the others are one entry, without axes. */
enum { MOST_MOVED = 12 };
typedef struct rank_moved {
    uint32_t axes, kind;
    float seconds, bytes;
} rank_moved;
/* The message of a rank to all others. */
typedef struct rank_figures {
    double busy_s, wait_s; /* per step */
    rank_moved moved[MOST_MOVED];
} rank_figures;

struct straggler_watch {
    straggler *rank;                /* [ranks] */
    double steps[STRAGGLER_WINDOW]; /* seconds of computing in each */
    int n;
    double began, waited; /* of the step under way */
    double seconds;       /* of computing in it so far */
    double wait_s;        /* of the window */
    comm_counter before[64];
    int n_before;          /* counters when the window began */
    double *values;        /* [3][ranks], for metrics */
    observe_ranks figures; /* of them */
    observe_comm *comm;
    int n_comm, comm_cap;
};

static straggler_watch *watch_of(trainer *t) {
    if (t->stragglers) return t->stragglers;
    straggler_watch *w = t->stragglers = mem_alloc(sizeof *w);
    int n = mesh_world(&t->mesh);
    w->rank = mem_alloc((size_t)n * sizeof *w->rank);
    w->values = mem_alloc(3 * (size_t)n * sizeof *w->values);
    w->figures = (observe_ranks){ n, w->values, w->values + n, w->values + 2 * n };
    int counters = comm_counters(t->x.comm, w->before, COUNT_OF(w->before));
    w->n_before = MIN(counters, (int)COUNT_OF(w->before));
    return w;
}

void straggler_free(trainer *t) {
    if (t->stragglers) {
        free(t->stragglers->rank);
        free(t->stragglers->values);
        free(t->stragglers->comm);
    }
    free(t->stragglers);
    t->stragglers = NULL;
}

void straggler_begin(trainer *t) {
    straggler_watch *w = watch_of(t);
    w->began = time_now();
    w->waited = comm_wait_seconds(t->x.comm);
}

void straggler_end(trainer *t) {
    straggler_watch *w = watch_of(t);
    double seconds = time_now() - w->began - (comm_wait_seconds(t->x.comm) - w->waited);
    double more = seconds * fault_slows(FAULT_STEP, t->mesh.rank);
    if (more > 0) {
        nanosleep(&(struct timespec){ (time_t)more, (long)((more - (time_t)more) * 1e9) }, NULL);
        seconds += more;
    }
    w->seconds += seconds;
}

static err report_rank(trainer *t, int r) {
    const straggler *s = &t->stragglers->rank[r];
    char name[128];
    comm_rank_name(t->x.comm, r, name, sizeof name);
    if (s->cleared) {
        log_info("step %lld: %s is as fast as the others again", (long long)t->state.step, name);
        return OK;
    }
    char text[320];
    snprintf(
        text, sizeof text,
        "%s is a straggler: it computes %.2f times as long as the median, %.3f s per step instead "
        "of %.3f; look for throttling, other programs and failing memory there",
        name, s->ratio, s->ratio * s->median, s->median);
    log_warn("step %lld: %s", (long long)t->state.step, text);
    return observe_event(t->log, "alert", t->state.step,
                         json_pack("{s:s, s:s, s:i, s:f}", "alert", "straggler", "message", text,
                                   "rank", r, "ratio", s->ratio));
}

/* ---- what collectives moved ------------------------------------------------------------------ */
static void add_moved(rank_moved *list, const comm_counter *k, double seconds, double bytes) {
    int at = 0;
    while (at < MOST_MOVED - 1 && list[at].bytes > 0) at++;
    bool other = at == MOST_MOVED - 1;
    list[at].axes = other ? 0 : (uint32_t)k->axes;
    list[at].kind = other ? MOVE_NONE : (uint32_t)k->kind;
    list[at].seconds += (float)seconds;
    list[at].bytes += (float)bytes;
}

/* Of this rank, per step of the window. */
static void count_moved(const trainer *t, straggler_watch *w, rank_moved *list) {
    comm_counter now[COUNT_OF(w->before)];
    int n = MIN(comm_counters(t->x.comm, now, COUNT_OF(now)), (int)COUNT_OF(now));
    for (int i = 0; i < n; i++) {
        double seconds = now[i].moving_seconds, bytes = now[i].bytes;
        for (int k = 0; k < w->n_before; k++)
            if (w->before[k].axes == now[i].axes && w->before[k].kind == now[i].kind) {
                seconds -= w->before[k].moving_seconds;
                bytes -= w->before[k].bytes;
            }
        if (bytes > 0) add_moved(list, &now[i], seconds / w->n, bytes / w->n);
    }
    memcpy(w->before, now, (size_t)n * sizeof *now);
    w->n_before = n;
}

/* Adds what a rank moved to the means over all ranks. */
static void merge_moved(straggler_watch *w, const rank_moved *m, int ranks) {
    char name[sizeof w->comm->name] = "other", axes[64];
    int at = 0;
    if (!(m->bytes > 0)) return;
    if (m->axes)
        snprintf(name, sizeof name, "%s:%s", axes_str(axes, sizeof axes, m->axes),
                 move_name((move_kind)m->kind));
    while (at < w->n_comm && strcmp(w->comm[at].name, name) != 0) at++;
    if (at == w->n_comm) {
        w->comm = mem_reserve(w->comm, &w->comm_cap, w->n_comm++, sizeof *w->comm);
        w->comm[at] = (observe_comm){ .seconds = 0 };
        memcpy(w->comm[at].name, name, sizeof name);
    }
    w->comm[at].seconds += (double)m->seconds / ranks;
    w->comm[at].bytes += (double)m->bytes / ranks;
}

/* ---- a window -------------------------------------------------------------------------------- */
/* On rank 0: judges the ranks, and shows in the step what they measured. */
static err take_window(trainer *t, const rank_figures *all, observe_step *out) {
    straggler_watch *w = t->stragglers;
    int n = mesh_world(&t->mesh), *group = mem_alloc((size_t)n * sizeof *group);
    double *busy = w->values, *wait = busy + n, *ratio = wait + n;
    for (int r = 0; r < n; r++) { /* ranks of one stage of a pipeline have the same work */
        mesh as = mesh_as(&t->mesh, r);
        group[r] = mesh_stage(&as);
    }
    w->n_comm = 0;
    for (int r = 0; r < n; r++) {
        busy[r] = all[r].busy_s;
        wait[r] = all[r].wait_s;
        for (int i = 0; i < MOST_MOVED; i++) merge_moved(w, &all[r].moved[i], n);
    }
    straggler_judge(w->rank, busy, group, n);
    free(group);
    out->slowest = 1;
    for (int r = 0; r < n; r++) {
        ratio[r] = w->rank[r].ratio;
        out->slowest = MAX(out->slowest, ratio[r]);
        if (w->rank[r].raised || w->rank[r].cleared) TRY(report_rank(t, r));
    }
    out->ranks = &w->figures;
    out->comm = w->comm;
    out->n_comm = w->n_comm;
    return OK;
}

err straggler_step(trainer *t, observe_step *out) {
    straggler_watch *w = watch_of(t);
    int n = mesh_world(&t->mesh);
    w->steps[w->n++] = w->seconds;
    w->seconds = 0;
    w->wait_s += comm_wait_seconds(t->x.comm) - w->waited;
    if (w->n < STRAGGLER_WINDOW || n == 1) {
        w->n %= STRAGGLER_WINDOW;
        return OK;
    }
    rank_figures mine = { straggler_typical(w->steps, w->n), w->wait_s / w->n };
    rank_figures *all = mem_alloc((size_t)n * sizeof *all);
    count_moved(t, w, mine.moved);
    w->n = 0;
    w->wait_s = 0;
    err e = comm_collect(t->x.comm, &mine, sizeof mine, all);
    if (!e && is_first_rank(t)) e = take_window(t, all, out);
    free(all);
    return e;
}
