/* The ranks of a run: how the parallelism section lays them out, and how they agree.
 *
 * Every rank runs the same trainer on its share of the work. Rank 0 is the one that prints, owns the run
 * folder and writes to it. What a rank decides by itself (a signal, the clock, the folder) is decided
 * for all of them by one exchange per step, so that they take the same path. */
#include "ranks_internal.h"
#include "trainer_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- the layout ---------------------------------------------------------------------------- */
/* The option of each axis. */
static const char *const degree_names[AX_COUNT] = {
    [AX_PP] = "pipeline_parallel_degree",
    [AX_DP_REPLICATE] = "data_parallel_replicate_degree",
    [AX_DP_SHARD] = "data_parallel_shard_degree",
    [AX_CP] = "context_parallel_degree",
    [AX_EP] = "expert_parallel_degree",
    [AX_TP] = "tensor_parallel_degree",
};

/* "context_parallel_degree 2 x tensor_parallel_degree 2": those above 1. @return buf. */
static char *degrees_text(char *buf, size_t n, const mesh *m) {
    size_t len = 0;
    buf[0] = '\0';
    for (int a = 0; a < AX_COUNT && len < n; a++)
        if (mesh_size(m, (mesh_axis)a) > 1)
            len += (size_t)snprintf(buf + len, n - len, "%s%s %d", len ? " x " : "",
                                    degree_names[a], mesh_size(m, (mesh_axis)a));
    return buf;
}

static int find_axis(const char *name, size_t n) {
    for (int a = 0; a < AX_COUNT; a++)
        if (strlen(mesh_axis_name[a]) == n && !strncmp(mesh_axis_name[a], name, n)) return a;
    return -1;
}

/* parallelism.axis_order: those it names are last, in its order. */
static err read_axis_order(const char *text, mesh *m) {
    axis_set named = 0;
    int order[AX_COUNT], n = 0, at = 0;
    while (*text) {
        size_t len = strcspn(text, ",");
        int a = find_axis(text, len);
        if (a < 0 || named & AXIS(a))
            return err_hint(ERR("parallelism.axis_order: \"%.*s\" is %s", (int)len, text,
                                a < 0 ? "not an axis" : "named twice"),
                            "name each of pp, dp_replicate, dp_shard, cp, ep and tp at most once");
        named |= AXIS(a);
        order[n++] = a;
        text += len + (text[len] == ',');
    }
    for (int a = 0; a < AX_COUNT && n; a++)
        if (!(named & AXIS(a))) m->order[at++] = (uint8_t)(a + 1);
    for (int i = 0; i < n; i++) m->order[at++] = (uint8_t)(order[i] + 1);
    return OK;
}

err ranks_mesh(const config *c, int ranks, mesh *out) {
    char text[256];
    mesh m = { .size = { [AX_PP] = (int)c->parallelism.pipeline_parallel_degree,
                         [AX_DP_REPLICATE] = (int)c->parallelism.data_parallel_replicate_degree,
                         [AX_CP] = (int)c->parallelism.context_parallel_degree,
                         [AX_TP] = (int)c->parallelism.tensor_parallel_degree } };
    int shards = (int)c->parallelism.data_parallel_shard_degree, fixed = mesh_world(&m);
    if (shards == 0)
        return err_hint(ERR("parallelism.data_parallel_shard_degree is 0"),
                        "use 1, or -1 for all ranks that are left");
    if (shards < 0 && ranks % fixed)
        return err_hint(ERR("%d ranks do not divide into groups of %d (%s)", ranks, fixed,
                            degrees_text(text, sizeof text, &m)),
                        "use a multiple of %d: --ranks %d (of plan: --gpus %d)", fixed,
                        (ranks / fixed + 1) * fixed, (ranks / fixed + 1) * fixed);
    if (shards < 0) shards = ranks ? ranks / fixed : 1;
    int experts = (int)c->parallelism.expert_parallel_degree;
    if (shards % experts)
        return err_hint(
            ERR("parallelism.expert_parallel_degree (%d) does not divide the %d ranks of a "
                "data-parallel group",
                experts, shards),
            "use a degree that divides data_parallel_shard_degree");
    m.size[AX_DP_SHARD] = shards / experts;
    m.size[AX_EP] = experts;
    TRY(read_axis_order(c->parallelism.axis_order, &m));
    if (ranks && mesh_world(&m) != ranks)
        return err_hint(ERR("%d ranks, but the parallelism section asks for %d (%s)", ranks,
                            mesh_world(&m), degrees_text(text, sizeof text, &m)),
                        "use --ranks %d (of plan: --gpus %d), or data_parallel_shard_degree=-1",
                        mesh_world(&m), mesh_world(&m));
    *out = m;
    model_config mc;
    TRY(model_from_config(c, &mc));
    return model_split_tp(&mc, out);
}

/* ---- agreement ------------------------------------------------------------------------------ */
bool is_first_rank(const trainer *t) { return t->mesh.rank == 0; }
static int world_size(const trainer *t) { return mesh_world(&t->mesh); }

/* Whether this rank speaks for those along these axes, which know the same; of a pipeline the last, which
 * has the losses. */
static bool speaks_for(const trainer *t, axis_set axes) {
    bool last = mesh_coord(&t->mesh, AX_PP) == mesh_size(&t->mesh, AX_PP) - 1;
    return last && mesh_index(&t->mesh, axes & AXES_ALL & ~AXIS(AX_PP)) == 0;
}

int ranks_with_rows(const trainer *t) { return mesh_span(&t->mesh, AXES_ROWS); }

int64_t ranks_eval_rows(const trainer *t, int64_t rows, int64_t seq) {
    const model_config *c = &t->mc;
    int64_t ep = mesh_size(&t->mesh, AX_EP), tp = mesh_size(&t->mesh, AX_TP);
    if (!c->experts || ep == 1 || c->capacity_factor == 0) return rows;
    /* a rank of the group receives at most this many rows per token, in training the capacity */
    double most = (double)ep * MIN((double)c->experts_per_token, (double)c->experts / (double)ep);
    double trained = c->capacity_factor * c->experts_per_token * (double)rows;
    int64_t some = rows;
    while (some > 1 && (rows % some || (double)some * most > trained)) some--;
    while (rows % some || some * seq % tp)
        some++; /* which tensor parallelism divides; rows at last */
    return some;
}
int ranks_rows_index(const trainer *t) { return mesh_index(&t->mesh, AXES_ROWS); }

err ranks_share_clock(const trainer *t, double *now) {
    if (!is_first_rank(t)) *now = 0;
    return comm_total(t->x.comm, now, 1);
}

err ranks_begin(trainer *t) {
    t->began = time_now();
    return ranks_share_clock(t, &t->began);
}

err ranks_agree_clock(const trainer *t, double *now) {
    const cadences *e = &t->len.every;
    const cadence *all[] = { &e->log,   &e->tensorboard, &e->detail, &e->validate,
                             &e->tasks, &e->sample,      &e->save,   &e->weights };
    bool by_clock = false;
    for (size_t i = 0; i < COUNT_OF(all); i++) by_clock |= all[i]->unit == CFG_SECONDS;
    return by_clock ? ranks_share_clock(t, now) : OK;
}

bool is_preemption(int signal_number) {
    return signal_number == SIGTERM || signal_number == SIGUSR1;
}

err ranks_agree(trainer *t, folder_state *folder) {
    int got = t->opt->stop ? *t->opt->stop : 0;
    double decided = (double)t->alerts.decided;
    double seen[] = { got != 0, is_preemption(got), is_first_rank(t) ? (double)*folder : 0,
                      t->alerts.stops, decided };
    TRY(comm_total(t->x.comm, seen, COUNT_OF(seen)));
    if (seen[4] != decided * world_size(t))
        return err_hint(ERR("step %lld: ranks disagree about its alerts", (long long)t->state.step),
                        "their losses or norms differ: one of them computes wrongly");
    t->alerts.stops = seen[3] > 0;
    t->stop_signal = seen[1] > 0 ? SIGTERM : seen[0] > 0 ? SIGINT : 0;
    *folder = (folder_state)seen[2];
    return OK;
}

/* Sums of a step over the ranks: of losses, where ranks hold those of different tokens, and of counts,
 * where they read different sequences. Of lengths the greatest counts: each rank has a place of its own in the sums. */
err ranks_sum_losses(trainer *t) {
    if (world_size(t) == 1) return OK;
    queued_step *q = &t->last;
    enum { OVERLAP = 3, OTHERS = OVERLAP + 2 * OVERLAPS };
    int lengths = OTHERS + 2 * t->data.n_sources;
    int n = lengths + (t->cfg->training.seq_curriculum_start > 0 ? world_size(t) : 0);
    double *sums = mem_alloc((size_t)n * sizeof *sums);
    axis_set losses = placement_axes(exec_result_placement(&t->x, t->train_id), PL_S);
    bool has_losses = speaks_for(t, ~losses), has_rows = speaks_for(t, ~AXES_ROWS);
    sums[0] = has_losses ? q->loss_sum : 0;
    sums[1] = has_rows ? (double)q->rejected : 0;
    sums[2] = q->pipeline_wait_s;
    memcpy(&sums[OVERLAP], &q->overlap, sizeof q->overlap);
    for (int i = 0; i < t->data.n_sources; i++) {
        sums[OTHERS + 2 * i] = has_losses ? t->data.sources[i].sum : 0;
        sums[OTHERS + 1 + 2 * i] = has_rows ? (double)t->data.sources[i].valid : 0;
    }
    if (n > lengths) sums[lengths + t->mesh.rank] = (double)q->longest;
    err e = comm_total(t->x.comm, sums, n);
    for (int i = lengths; i < n; i++) q->longest = MAX(q->longest, (int64_t)sums[i]);
    q->loss_sum = sums[0];
    q->rejected = (int64_t)sums[1];
    q->pipeline_wait_s = sums[2];
    memcpy(&q->overlap, &sums[OVERLAP], sizeof q->overlap);
    for (int i = 0; i < t->data.n_sources; i++) {
        t->data.sources[i].sum = sums[OTHERS + 2 * i];
        t->data.sources[i].valid = (int64_t)sums[OTHERS + 1 + 2 * i];
    }
    free(sums);
    return e;
}

/* Sums over pipeline stages of what all other ranks of a stage have alike. */
err ranks_sum_stages(const trainer *t, double *values, int n) {
    if (mesh_size(&t->mesh, AX_PP) == 1) return OK;
    if (mesh_index(&t->mesh, AXES_ALL & ~AXIS(AX_PP)) != 0) /* one rank of each stage */
        for (int i = 0; i < n; i++) values[i] = 0;
    return comm_total(t->x.comm, values, n);
}

static double waited_over(const trainer *t, axis_set axes) {
    comm_counter all[64];
    double sum = 0;
    int n = MIN(comm_counters(t->x.comm, all, COUNT_OF(all)), (int)COUNT_OF(all));
    for (int i = 0; i < n; i++)
        if (all[i].axes & axes) sum += all[i].wait_seconds;
    return sum;
}

/* Gradients and parameters are exchanged over data-parallel axes, with cp where ZeRO shards over it too;
 * rings and exchanges of tokens are not counted there. */
static bool is_data_parallel(const comm_counter *k) {
    bool exchange = k->kind == MOVE_SHIFT || k->kind == MOVE_ALL_TO_ALL || k->kind == MOVE_ROWS;
    return (k->axes & AXES_DATA) && !(k->axes & ~AXES_DATA) && !exchange;
}

step_overlap ranks_overlap(const trainer *t) {
    comm_counter all[64];
    step_overlap o = { { 0 }, { 0 } };
    int n = MIN(comm_counters(t->x.comm, all, COUNT_OF(all)), (int)COUNT_OF(all));
    for (int i = 0; i < n; i++) {
        bool of[OVERLAPS] = { [OVERLAP_ALL] = true,
                              [OVERLAP_DP] = is_data_parallel(&all[i]),
                              [OVERLAP_TP] = all[i].axes == AXIS(AX_TP) };
        for (int k = 0; k < OVERLAPS; k++) {
            o.moving[k] += of[k] ? all[i].moving_seconds : 0;
            o.hidden[k] += of[k] ? all[i].hidden_seconds : 0;
        }
    }
    return o;
}

double ranks_pipeline_wait(const trainer *t) { return waited_over(t, AXIS(AX_PP)); }
double ranks_comm_wait(const trainer *t) { return waited_over(t, ~(axis_set)0); }

err ranks_sum_rows(trainer *t, double *row, int64_t n) {
    axis_set losses = placement_axes(exec_result_placement(&t->x, t->train_id), PL_S);
    bool has_losses = speaks_for(t, ~losses);
    for (int64_t i = 0; i < n && !has_losses; i++) row[i] = 0;
    return comm_total(t->x.comm, row, (int)n);
}

err ranks_share_finding(trainer *t, exec_finding *f) {
    int n = world_size(t), first = -1;
    double *at = mem_alloc((size_t)n * sizeof *at), text[sizeof f->text] = { 0 };
    at[t->mesh.rank] = (double)f->at;
    err e = comm_total(t->x.comm, at, n);
    for (int i = 0; i < n && !e; i++)
        if (at[i] > 0 && (first < 0 || at[i] < at[first])) first = i;
    free(at);
    if (e || first < 0) return e;
    for (size_t i = 0; i < sizeof f->text && t->mesh.rank == first; i++)
        text[i] = (unsigned char)f->text[i];
    TRY(comm_total(t->x.comm, text, (int)COUNT_OF(text)));
    for (size_t i = 0; i < sizeof f->text; i++) f->text[i] = (char)text[i];
    f->at = 1;
    return OK;
}

/* Targets of one microbatch over all ranks. */
err ranks_sum_targets(const trainer *t, double *targets) {
    if (!speaks_for(t, ~AXES_ROWS)) *targets = 0;
    return comm_total(t->x.comm, targets, 1);
}
