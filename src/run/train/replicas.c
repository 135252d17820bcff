/* Silent corruption: ranks that hold the same elements must hold bit-identical values. Every
 * training.weight_check_interval steps, and before each full checkpoint, ranks exchange a hash of what they hold; one
 * that differs from its replicas has faulty memory, or computes wrongly, and the run ends before that is
 * saved. Where nothing is replicated (data-parallel ranks that shard everything) there is nothing to compare. */
#include "train_internal.h"

#include <stdlib.h>

#include "util/fault.h"

/* Several ranks hold everything alike. */
static bool has_replicas(const trainer *t) {
    bool whole = model_lay(t->m)->zero == 0 && mesh_size(&t->mesh, AX_DP_SHARD) > 1;
    return mesh_size(&t->mesh, AX_DP_REPLICATE) > 1 || whole;
}

/* How many ranks hold the same parts as rank r, and of these how many bit-identically. */
static void count_peers(const replica *all, int n, int r, int *peers, int *equal) {
    *peers = *equal = 0;
    for (int i = 0; i < n; i++) {
        bool same = all[i].parts == all[r].parts;
        *peers += same;
        *equal += same && all[i].bytes == all[r].bytes;
    }
}

int replicas_judge(const replica *all, int n, bool *bad) {
    int found = 0;
    for (int r = 0; r < n; r++) {
        int peers, equal;
        count_peers(all, n, r, &peers, &equal);
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

/* A bit of the first weight, where a test asks for it. */
static err flip_weight(trainer *t) {
    dtype dt;
    uint32_t word = 0;
    if (!fault_flips(FAULT_WEIGHTS, t->mesh.rank)) return OK;
    void *at = (void *)(uintptr_t)model_weights_data(t->m, t->p, 0, &dt);
    TRY(plan_get(t->p, &word, at, dt_size(dt)));
    word ^= 1;
    plan_put(t->p, at, &word, dt_size(dt));
    return OK;
}

err replicas_check(trainer *t, bool saves) {
    int64_t every = t->cfg->training.weight_check_interval;
    TRY(flip_weight(t));
    if (!every || !has_replicas(t) || !(saves || t->state.step % every == 0)) return OK;
    replica mine;
    int n = mesh_world(&t->mesh);
    TRY(ckpt_hash_held(t->m, &t->x, t->o, &mine.parts, &mine.bytes));
    replica *all = mem_alloc((size_t)n * sizeof *all);
    bool *bad = mem_alloc((size_t)n);
    err e = comm_collect(t->x.comm, &mine, sizeof mine, all);
    if (!e && replicas_judge(all, n, bad)) e = name_bad(t, bad, n);
    free(all);
    free(bad);
    return e;
}
