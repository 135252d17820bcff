/* Timetables by playing the pipeline: at each unit of time every idle rank takes the task that its
 * schedule prefers among those whose inputs are there. */
#include "prog/timetable.h"

#include <stdlib.h>

/* Counts the tasks that one rank has been given so far. */
typedef struct player {
    int done[3]; /* tasks begun, by kind; each kind is taken in a fixed order */
    int limit;   /* microbatches that may be held at once, counted by chunk */
    int free_at; /* when its current task ends */
    int tasks;
} player;

typedef struct game {
    const pipeline *p;
    timetable *s;
    player *rank;
    int stages;   /* virtual */
    int *ends[3]; /* [stages][micros] when a task ends; 0: it has not begun */
} game;

CHOICE_DECIDED(pipeline_schedule, 4); /* by their traits */
static bool has_trait(const pipeline *p, int trait) {
    return pipeline_schedule_traits[p->kind] & trait;
}

bool pipeline_splits_backward(const pipeline *p) {
    return has_trait(p, PIPE_SPLITS_BACKWARD) && p->ranks > 1 && !p->forward_only;
}

/* @return the first block of a virtual stage; past the last stage, the number of blocks. */
static int first_block(const pipeline *p, int layers, int stage) {
    int stages = p->ranks * p->chunks, all = layers + p->first_less + p->last_less;
    if (p->split_stages) return p->split_from[stage];
    int from = (int)((int64_t)all * stage / stages) - p->first_less;
    return MAX(0, MIN(layers, from));
}

void pipeline_blocks(const pipeline *p, int layers, int rank, int chunk, int *from, int *to) {
    int stage = chunk * p->ranks + rank;
    *from = first_block(p, layers, stage);
    *to = first_block(p, layers, stage + 1);
}

/* ---- the order of one kind of task on a rank ------------------------------------------------ */
/* Microbatches go around in groups, one for each rank: all of a group through a chunk, then through the
 * next; backward through the chunks from last to first. */
static pipeline_task task_at(const game *g, task_kind kind, int i) {
    int chunks = g->p->chunks, micros = g->s->micros, group = g->p->ranks;
    if (has_trait(g->p, PIPE_ALL_FORWARD_FIRST) || g->p->forward_only) group = micros;
    int first = i / (group * chunks) * group, size = MIN(group, micros - first);
    int within = i - first * chunks, chunk = within / size;
    if (kind != TASK_FORWARD) chunk = chunks - 1 - chunk;
    return (pipeline_task){ .kind = kind, .chunk = chunk, .micro = first + within % size };
}

static bool task_ended(const game *g, task_kind kind, int stage, int micro, int now) {
    int end = g->ends[kind][stage * g->s->micros + micro];
    return end && end <= now;
}

/* Whether what the task reads is there at time `now`. */
static bool is_ready(const game *g, const pipeline_task *t, int rank, int now) {
    int stage = t->chunk * g->p->ranks + rank;
    switch (t->kind) {
    case TASK_FORWARD: return stage == 0 || task_ended(g, TASK_FORWARD, stage - 1, t->micro, now);
    case TASK_BACKWARD:
        return task_ended(g, TASK_FORWARD, stage, t->micro, now) &&
               (stage == g->stages - 1 || task_ended(g, TASK_BACKWARD, stage + 1, t->micro, now));
    case TASK_WEIGHTS: return task_ended(g, TASK_BACKWARD, stage, t->micro, now);
    }
    return false;
}

/* ---- playing ---------------------------------------------------------------------------------- */
static int per_kind(const game *g) { return g->s->micros * g->p->chunks; }

static bool takes_task(const game *g, int rank, task_kind kind, int now, pipeline_task *out) {
    const player *me = &g->rank[rank];
    if (me->done[kind] == per_kind(g) || (kind != TASK_FORWARD && g->p->forward_only)) return false;
    *out = task_at(g, kind, me->done[kind]);
    return is_ready(g, out, rank, now);
}

/* A rank goes forward until it holds as many microbatches as its schedule allows, then backward and
 * forward in turn. Weight tasks that are deferred fill what time is left, and come first when as many
 * microbatches wait for them as 1F1B holds at most. */
static bool choose_next_task(const game *g, int rank, int now, pipeline_task *out) {
    const player *me = &g->rank[rank];
    const int *done = me->done;
    bool split = pipeline_splits_backward(g->p);
    bool forward =
        done[TASK_FORWARD] < per_kind(g) && done[TASK_FORWARD] - done[TASK_BACKWARD] < me->limit;
    if (split && forward && done[TASK_FORWARD] - done[TASK_WEIGHTS] == g->p->ranks)
        return takes_task(g, rank, TASK_WEIGHTS, now, out) ||
               takes_task(g, rank, TASK_BACKWARD, now, out);
    if (takes_task(g, rank, forward ? TASK_FORWARD : TASK_BACKWARD, now, out)) return true;
    return split && takes_task(g, rank, TASK_WEIGHTS, now, out);
}

static void play_schedule(game *g) {
    int all = per_kind(g) * (g->p->forward_only ? 1 : pipeline_splits_backward(g->p) ? 3 : 2);
    int left = all * g->p->ranks;
    for (int now = 1; left > 0; now++) { /* from 1: an end of 0 marks a task that has not begun */
        BUG_IF(now > 4 * left + g->s->length + 4 * g->stages);
        for (int r = 0; r < g->p->ranks; r++) {
            player *me = &g->rank[r];
            pipeline_task t;
            if (me->free_at > now || !choose_next_task(g, r, now, &t)) continue;
            int units = t.kind == TASK_BACKWARD && !pipeline_splits_backward(g->p) ? 2 : 1;
            t.begin = now - 1;
            t.end = t.begin + units;
            me->free_at = now + units;
            me->done[t.kind]++;
            g->ends[t.kind][(t.chunk * g->p->ranks + r) * g->s->micros + t.micro] = now + units;
            g->s->of[r][me->tasks++] = t;
            g->s->length = MAX(g->s->length, t.end);
            left--;
        }
    }
    g->s->tasks = all;
}

static int limit_of(const pipeline *p, int rank, int micros) {
    int behind = p->ranks - rank - 1, all = micros * p->chunks;
    if (p->forward_only || has_trait(p, PIPE_ALL_FORWARD_FIRST)) return all;
    if (p->chunks == 1) return MIN(all, behind + 1);
    return MIN(all, 2 * behind + (p->chunks - 1) * p->ranks + 1);
}

static err check_pipeline(const pipeline *p, int micros) {
    if (p->chunks > 1 && !has_trait(p, PIPE_TAKES_CHUNKS))
        return err_hint(ERR("%d chunks per rank need the schedule Interleaved1F1B", p->chunks),
                        "set parallelism.pipeline_parallel_schedule=Interleaved1F1B, or one chunk");
    if (p->chunks > 1 && p->ranks > 1 && micros % p->ranks && !p->forward_only)
        return err_hint(ERR("Interleaved1F1B needs microbatches in multiples of the %d pipeline "
                            "ranks, and a step has %d",
                            p->ranks, micros),
                        "choose training.global_batch_size so that a step has %d microbatches, or "
                        "another schedule",
                        (micros / p->ranks + 1) * p->ranks);
    return OK;
}

err timetable_make(const pipeline *p, int micros, timetable *out) {
    *out = (timetable){ .p = *p, .micros = micros };
    TRY(check_pipeline(p, micros));
    game g = { .p = p, .s = out, .stages = p->ranks * p->chunks };
    g.rank = mem_alloc((size_t)p->ranks * sizeof *g.rank);
    out->of = mem_alloc((size_t)p->ranks * sizeof *out->of);
    for (int r = 0; r < p->ranks; r++) {
        g.rank[r].limit = limit_of(p, r, micros);
        out->of[r] = mem_alloc((size_t)(3 * micros * p->chunks) * sizeof **out->of);
    }
    for (int k = 0; k < 3; k++)
        g.ends[k] = mem_alloc((size_t)(g.stages * micros) * sizeof *g.ends[k]);
    play_schedule(&g);
    for (int k = 0; k < 3; k++) free(g.ends[k]);
    free(g.rank);
    return OK;
}

void timetable_free(timetable *s) {
    for (int r = 0; s->of && r < s->p.ranks; r++) free(s->of[r]);
    free(s->of);
    *s = (timetable){ 0 };
}

/* ---- what follows from it ----------------------------------------------------------------------- */
double timetable_bubble(const timetable *s) {
    double busy = 0;
    for (int r = 0; r < s->p.ranks; r++)
        for (int i = 0; i < s->tasks; i++) busy += s->of[r][i].end - s->of[r][i].begin;
    return s->length ? 1 - busy / ((double)s->length * s->p.ranks) : 0;
}

void timetable_print(const timetable *s, str *out) {
    static const char mark[] = {
        [TASK_FORWARD] = ' ', [TASK_BACKWARD] = '`', [TASK_WEIGHTS] = '.'
    };
    int last = s->micros - 1, digits = last >= 100 ? 3 : last >= 10 ? 2 : 1;
    for (int r = 0; r < s->p.ranks; r++) {
        int at = 0;
        str_add(out, "rank %-2d", r);
        for (int i = 0; i < s->tasks; i++) {
            const pipeline_task *t = &s->of[r][i];
            char cell[32];
            snprintf(cell, sizeof cell, "%c%d", mark[t->kind], t->micro);
            if (s->p.chunks > 1)
                snprintf(cell, sizeof cell, "%c%d%c", mark[t->kind], t->micro, 'a' + t->chunk);
            int wide = digits + 2 + (s->p.chunks > 1);
            str_add(out, "%*s%-*s", (t->begin - at) * wide, "", (t->end - t->begin) * wide, cell);
            at = t->end;
        }
        while (out->len && out->text[out->len - 1] == ' ') out->text[--out->len] = 0;
        str_add(out, "\n");
    }
}
