/* Silent corruption: ranks that hold the same elements must hold bit-identical values. Every
 * training.weight_check_interval steps, and before each full checkpoint, ranks exchange hashes of what they hold; one
 * that differs from its replicas has faulty memory, or computes wrongly, and the run ends before that is
 * saved. The parameter table states along which axes ranks hold copies of a parameter; parameters with
 * the same axes have one hash. What no other rank holds cannot be compared. */
#include "trainer_internal.h"

#include <stdlib.h>

#include "util/fault.h"

/* The elements that a rank holds copies of, by the axes along which the other copies are. */
enum { MOST_SETS = 16 };
typedef struct held_sets {
    axis_set axes[MOST_SETS]; /* 0: none */
    replica of[MOST_SETS];
} held_sets;

/* Sets of axes along which this rank has replicas of something. */
static void find_sets(const trainer *t, held_sets *out) {
    int n = 0;
    for (int i = 0; i < model_params(t->m); i++) {
        axis_set same = model_param_same(t->m, i);
        int k = 0;
        while (k < n && out->axes[k] != same) k++;
        if (k < n || mesh_span(&t->mesh, same) == 1) continue;
        BUG_IF(n == MOST_SETS);
        out->axes[n++] = same;
    }
}

int replicas_judge(const replica *all, int n, bool *bad) {
    int found = 0;
    for (int r = 0; r < n; r++) {
        int peers = 0, equal = 0; /* that hold the same elements; with bit-identical values */
        for (int i = 0; i < n; i++) {
            bool same = all[i].held == all[r].held;
            peers += same;
            equal += same && all[i].bytes == all[r].bytes;
        }
        bad[r] = equal < peers && 2 * equal <= peers;
        found += bad[r];
    }
    return found;
}

static err name_bad(const trainer *t, const bool *bad, int n) {
    char name[128];
    str ranks = { 0 };
    for (int r = 0, k = 0; r < n; r++)
        if (bad[r])
            str_add(&ranks, "%s%s", k++ ? " or " : "",
                    comm_rank_name(t->x.comm, r, name, sizeof name));
    err e =
        ERR("step %lld: %s holds other weights or optimizer state than its replicas: its memory is "
            "faulty, or it computes wrongly",
            (long long)t->state.step, ranks.text);
    str_free(&ranks);
    e = err_hint(e,
                 "the last checkpoint is from before that; leave the host out, and test it: ingot "
                 "launch ... -- doctor --cluster");
    return err_exit(e, EXIT_CORRUPT);
}

/* Flips a bit of the first weight that another rank holds too, where a test asks for it. */
static err flip_weight(trainer *t) {
    dtype dt;
    uint32_t word = 0;
    int param = 0;
    if (!fault_flips(FAULT_WEIGHTS, t->mesh.rank)) return OK;
    while (param + 1 < model_params(t->m) &&
           (mesh_span(&t->mesh, model_param_same(t->m, param)) == 1 ||
            !model_weights_data(t->m, t->p, param, &dt)))
        param++;
    void *at = (void *)(uintptr_t)model_weights_data(t->m, t->p, param, &dt);
    TRY(plan_get(t->p, &word, at, dt_size(dt)));
    word ^= 1;
    plan_put(t->p, at, &word, dt_size(dt));
    return OK;
}

/* Compares what the ranks hold of each set that one of them has: all ranks come to the same result. @param bad [n] */
static int compare_sets(const held_sets *all, int n, bool *bad) {
    replica *of = mem_alloc((size_t)n * sizeof *of);
    bool *found = mem_alloc((size_t)n);
    int sum = 0;
    axis_set seen[MOST_SETS] = { 0 };
    for (int i = 0; i < n * MOST_SETS; i++) {
        axis_set axes = all[i / MOST_SETS].axes[i % MOST_SETS];
        int k = 0;
        while (k < MOST_SETS && seen[k] && seen[k] != axes) k++;
        BUG_IF(k == MOST_SETS);
        if (!axes || seen[k] == axes) continue;
        seen[k] = axes;
        for (int r = 0; r < n; r++) {
            of[r] = (replica){ 0, 0 }; /* ranks that have nothing of the set are all alike */
            for (k = 0; k < MOST_SETS; k++)
                if (all[r].axes[k] == axes) of[r] = all[r].of[k];
        }
        sum += replicas_judge(of, n, found);
        for (int r = 0; r < n; r++) bad[r] |= found[r];
    }
    free(of);
    free(found);
    return sum;
}

err replicas_check(trainer *t, bool saves) {
    int64_t every = t->cfg->training.weight_check_interval;
    held_sets mine = { 0 };
    TRY(flip_weight(t));
    if (!every || !(saves || t->state.step % every == 0) || mesh_world(&t->mesh) == 1) return OK;
    find_sets(t, &mine);
    for (int k = 0; k < MOST_SETS && mine.axes[k]; k++)
        TRY(ckpt_hash_held(t->m, &t->x, t->o, mine.axes[k], &mine.of[k].held, &mine.of[k].bytes));
    int n = mesh_world(&t->mesh);
    held_sets *all = mem_alloc((size_t)n * sizeof *all);
    bool *bad = mem_alloc((size_t)n);
    err e = comm_collect(t->x.comm, &mine, sizeof mine, all);
    if (!e && compare_sets(all, n, bad)) e = name_bad(t, bad, n);
    free(all);
    free(bad);
    return e;
}
