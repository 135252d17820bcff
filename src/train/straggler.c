/* Straggler detection: every few steps all ranks exchange how long they compute, without the time they wait
 * for others, and the one that takes longer than those with the same work is named. (observe/stragglers.c
 * judges.)
 *
 * On a GPU the time that a collective waits inside a kernel is not known to the host, so only what delays the host
 * of a rank is seen there. */
#include "train_internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "util/fault.h"

struct straggler_watch {
    straggler *rank;                /* [ranks] */
    double steps[STRAGGLER_WINDOW]; /* seconds of computing in each */
    int n;
    double began, waited; /* of the step under way */
    double seconds;       /* of computing in it so far */
};

static straggler_watch *watch_of(trainer *t) {
    if (!t->stragglers) {
        t->stragglers = mem_alloc(sizeof *t->stragglers);
        t->stragglers->rank = mem_alloc((size_t)mesh_world(&t->mesh) * sizeof *t->stragglers->rank);
    }
    return t->stragglers;
}

void straggler_free(trainer *t) {
    if (t->stragglers) free(t->stragglers->rank);
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

/* Ranks with the same work: those of one stage of a pipeline. */
static void list_groups(const trainer *t, int *group) {
    for (int r = 0; r < mesh_world(&t->mesh); r++) {
        mesh as = mesh_as(&t->mesh, r);
        group[r] = mesh_coord(&as, AX_PP);
    }
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

err straggler_step(trainer *t, observe_step *out) {
    straggler_watch *w = watch_of(t);
    int n = mesh_world(&t->mesh);
    w->steps[w->n++] = w->seconds;
    w->seconds = 0;
    if (w->n < STRAGGLER_WINDOW || n == 1) {
        w->n %= STRAGGLER_WINDOW;
        return OK;
    }
    double mine = straggler_typical(w->steps, w->n), *all = mem_alloc((size_t)n * sizeof *all);
    int *group = mem_alloc((size_t)n * sizeof *group);
    err e = comm_collect(t->x.comm, &mine, sizeof mine, all);
    w->n = 0;
    if (!e && is_first_rank(t)) {
        list_groups(t, group);
        straggler_judge(w->rank, all, group, n);
        out->slowest = 1;
        for (int r = 0; r < n && !e; r++) {
            out->slowest = MAX(out->slowest, w->rank[r].ratio);
            if (w->rank[r].raised || w->rank[r].cleared) e = report_rank(t, r);
        }
    }
    free(group);
    free(all);
    return e;
}
