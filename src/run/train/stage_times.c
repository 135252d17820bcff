/* RUN/timetable.json: which stage of a pipeline works on which microbatch when, for the live page. When a run
 * begins it is what the schedule plans, in units of time; then what the stages measured, in seconds, in the second
 * step of a process and at metrics.detail_every.
 *
 *     {"step": 50, "measured": true, "schedule": "1F1B", "stages": 2, "chunks": 1, "microbatches": 4,
 *      "length": 0.12, "idle": 0.21, "planned_idle": 0.2,
 *      "tasks": [[["forward", chunk, microbatch, begin, end], ... of stage 0], ...]}
 *
 * Ranks of one stage work alike: of each stage the first is measured. Ranks of one host have one clock. Those of
 * others count from where all met before the step, to within the time that a message takes; what remains is
 * corrected by what cannot be: that a stage begins with a microbatch before its neighbor has passed it on. */
#include "trainer_internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/io.h"

static const pipeline *pipe_of(const trainer *t) { return &model_lay(t->m)->pipe; }
static bool has_stages(const trainer *t) { return pipe_of(t)->ranks > 1; }

/* ---- the file ---------------------------------------------------------------------------------- */
static void add_stage_tasks(str *out, const timetable *s, const float *at) {
    static const char *const names[] = {
        [TASK_FORWARD] = "forward", [TASK_BACKWARD] = "backward", [TASK_WEIGHTS] = "weights"
    };
    for (int r = 0; r < s->p.ranks; r++) {
        str_add(out, r ? "],\n[" : "[");
        for (int i = 0; i < s->tasks; i++) {
            const pipeline_task *k = &s->of[r][i];
            const float *own = &at[2 * (r * s->tasks + i)];
            str_add(out, "%s[\"%s\",%d,%d,%.7g,%.7g]", i ? "," : "", names[k->kind], k->chunk,
                    k->micro, (double)own[0], (double)own[1]);
        }
    }
    str_add(out, "]");
}

/* @param at [stages][tasks][2], from 0 on. */
static void describe_tasks(const timetable *s, const float *at, int64_t step, bool measured,
                           str *out) {
    double busy = 0, length = 0;
    for (int i = 0; i < s->p.ranks * s->tasks; i++) {
        busy += (double)at[2 * i + 1] - (double)at[2 * i];
        length = MAX(length, (double)at[2 * i + 1]);
    }
    str_add(out,
            "{\"step\":%lld,\"measured\":%s,\"schedule\":\"%s\",\"stages\":%d,\"chunks\":%d,"
            "\"microbatches\":%d,\"length\":%.7g,\"idle\":%.4f,\"planned_idle\":%.4f,\n\"tasks\":[",
            (long long)step, measured ? "true" : "false",
            config_choice("parallelism.pipeline_parallel_schedule", (int)s->p.kind), s->p.ranks,
            s->p.chunks, s->micros, length, length > 0 ? 1 - busy / (length * s->p.ranks) : 0,
            timetable_bubble(s));
    add_stage_tasks(out, s, at);
    str_add(out, "]}\n");
}

/* A page without a timetable does not end a run. */
static void write_tasks(const trainer *t, const str *text) {
    const char *path = PATH_IN(t->dir, OBSERVE_TIMETABLE);
    err e = t->folder.state == FOLDER_THERE ? io_write(path, text->text, text->len) : OK;
    if (e) log_warn("%s is not up to date: %s", path, err_message(e));
    err_free(e);
}

void stage_times_open(trainer *t) {
    timetable s;
    if (!has_stages(t)) { /* the folder may have been a pipeline's */
        const char *path = PATH_IN(t->dir, OBSERVE_TIMETABLE);
        if (unlink(path) && errno != ENOENT)
            log_warn("cannot remove %s: %s", path, strerror(errno));
        return;
    }
    err e = timetable_make(pipe_of(t), (int)t->len.micros, &s);
    BUG_IF(e); /* the plan has made it */
    float *at = mem_alloc((size_t)(2 * s.p.ranks * s.tasks) * sizeof *at);
    for (int r = 0; r < s.p.ranks; r++)
        for (int i = 0; i < s.tasks; i++) {
            at[2 * (r * s.tasks + i)] = (float)s.of[r][i].begin;
            at[2 * (r * s.tasks + i) + 1] = (float)s.of[r][i].end;
        }
    str text = { 0 };
    describe_tasks(&s, at, 0, false, &text);
    write_tasks(t, &text);
    str_free(&text);
    free(at);
    timetable_free(&s);
}

/* ---- a step that is measured --------------------------------------------------------------------- */
err stage_times_step_begin(trainer *t, bool detail) {
    run_stage_times *w = &t->stage_times;
    w->taken = false;
    if (!has_stages(t)) return OK;
    w->taken = detail || w->steps == 1; /* the first one is a warm-up */
    w->steps++;
    if (!w->taken) return OK;
    double now = time_now();
    TRY(ranks_share_clock(t, &now));
    task_times_begin(&t->x, &w->own);
    double ahead = w->own.zero - now;
    w->offset = ahead >= 0 && ahead < 1 ? ahead : 0; /* else it is another host's clock */
    w->taken = t->x.probe.times != NULL;
    return OK;
}

/* Lists when a stage finished each microbatch that it passes on, or began each that it received. */
static void list_passes(const timetable *s, const float *at, int stage, task_kind kind, bool ends,
                        float *out) {
    for (int i = 0; i < s->tasks; i++) {
        const pipeline_task *k = &s->of[stage][i];
        if (k->kind == kind)
            out[k->chunk * s->micros + k->micro] = at[2 * (stage * s->tasks + i) + ends];
    }
}

/* Shifts the times of a stage by the least that lets it come after the stage before it, forward, and before it,
 * backward. */
static void align_stage(const timetable *s, float *at, int stage) {
    int n = s->p.chunks * s->micros;
    float *passed = mem_alloc((size_t)(2 * n) * sizeof *passed), *begun = passed + n;
    float least = -INFINITY, most = INFINITY;
    list_passes(s, at, stage - 1, TASK_FORWARD, true, passed);
    list_passes(s, at, stage, TASK_FORWARD, false, begun);
    for (int i = 0; i < n; i++) least = MAX(least, passed[i] - begun[i]);
    list_passes(s, at, stage, TASK_BACKWARD, true, passed);
    list_passes(s, at, stage - 1, TASK_BACKWARD, false, begun);
    for (int i = 0; i < n; i++) most = MIN(most, begun[i] - passed[i]);
    float by = MAX(least, MIN(0, most));
    for (int i = 0; i < 2 * s->tasks; i++) at[2 * stage * s->tasks + i] += by;
    free(passed);
}

/* A task that computes nothing begins and ends where the one before it ended. */
static void place_own_times(const run_stage_times *w, const timetable *s, int stage, float *at) {
    double last = w->own.n ? w->own.of[0].at[0] : 0;
    int next = 0;
    for (int i = 0; i < s->tasks; i++) {
        const pipeline_task *task = &s->of[stage][i];
        const task_time *t = &w->own.of[next];
        bool ran = next < w->own.n && t->kind == task->kind && t->chunk == task->chunk &&
                   t->micro == task->micro;
        for (int k = 0; k < 2; k++) {
            if (ran) last = t->at[k];
            at[2 * i + k] = (float)(last + w->offset);
        }
        next += ran;
    }
    BUG_IF(next != w->own.n);
}

err stage_times_after_step(trainer *t) {
    run_stage_times *w = &t->stage_times;
    if (!w->taken) return OK;
    w->taken = false;
    timetable s;
    task_times_read(&t->x, &w->own);
    TRY(timetable_make(pipe_of(t), (int)t->last.micros, &s));
    int stage = mesh_stage(&t->mesh), n = 2 * s.p.ranks * s.tasks;
    float *at = mem_alloc((size_t)n * sizeof *at);
    if (mesh_index(&t->mesh, AXES_ALL & ~AXES_STAGES) == 0)
        place_own_times(w, &s, stage, at + 2 * stage * s.tasks);
    err e = comm_merge(t->x.comm, at, (size_t)n * sizeof *at);
    if (!e && is_first_rank(t)) {
        str text = { 0 };
        float first = INFINITY; /* of the tasks of all stages */
        for (int r = 1; r < s.p.ranks; r++) align_stage(&s, at, r);
        for (int i = 0; i < n; i++) first = MIN(first, at[i]);
        for (int i = 0; i < n; i++) at[i] -= first;
        describe_tasks(&s, at, t->state.step, true, &text);
        write_tasks(t, &text);
        str_free(&text);
    }
    free(at);
    timetable_free(&s);
    return e;
}

void stage_times_free(trainer *t) { free(t->stage_times.own.of); }
