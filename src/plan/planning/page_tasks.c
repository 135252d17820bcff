/* Tasks of a timetable from the simulator's events. An event is a block of layers; a task is a microbatch in a
 * chunk of a stage, forward or backward. What backward recomputes is part of it. */
#include <stdlib.h>

#include "page_internal.h"

typedef struct stage_row {
    str text;     /* tasks that have ended */
    sim_event at; /* the task that has not; begin < 0: there is none */
    int *layer;   /* [chunks * micros] 1 + the last layer that ran forward */
} stage_row;
struct stage_tasks {
    int stages, chunks, micros;
    double length;
    stage_row *of; /* [stages] */
};

stage_tasks *stage_tasks_new(int stages, int chunks, int micros) {
    stage_tasks *t = mem_alloc(sizeof *t);
    *t = (stage_tasks){ stages, chunks, micros, 0, mem_alloc((size_t)stages * sizeof *t->of) };
    for (int i = 0; i < stages; i++) {
        t->of[i].at.begin = -1;
        t->of[i].layer = mem_alloc((size_t)chunks * (size_t)micros * sizeof *t->of[i].layer);
    }
    return t;
}

void stage_tasks_free(stage_tasks *t) {
    if (!t) return;
    for (int i = 0; i < t->stages; i++) {
        str_free(&t->of[i].text);
        free(t->of[i].layer);
    }
    free(t->of);
    free(t);
}

static void end_task(stage_tasks *t, stage_row *row) {
    static const char *const names[] = {
        [SIM_FORWARD] = "forward", [SIM_BACKWARD] = "backward", [SIM_WEIGHTS] = "weights"
    };
    const sim_event *e = &row->at;
    if (e->begin < 0) return;
    str_add(&row->text, "%s[\"%s\",%d,%d,%.6g,%.6g]", row->text.len ? "," : "", names[e->task],
            e->chunk, e->micro, e->begin, e->end);
    t->length = MAX(t->length, e->end);
    row->at.begin = -1;
}

/* A layer that runs forward again does so for backward. */
static sim_task task_of(stage_row *row, const stage_tasks *t, const sim_event *e) {
    if (e->task != SIM_FORWARD || e->layer < 0) return e->task;
    int *last = &row->layer[e->chunk * t->micros + e->micro];
    if (e->layer < *last) return SIM_BACKWARD;
    *last = e->layer + 1;
    return SIM_FORWARD;
}

void stage_tasks_event(void *ctx, const sim_event *e) {
    stage_tasks *t = ctx;
    if (e->task == SIM_FEED || e->task == SIM_LOSS) return;
    BUG_IF(e->rank >= t->stages || e->chunk >= t->chunks || e->micro >= t->micros);
    stage_row *row = &t->of[e->rank];
    sim_task task = task_of(row, t, e);
    if (row->at.begin >= 0 && row->at.task == task && row->at.chunk == e->chunk &&
        row->at.micro == e->micro) {
        row->at.end = e->end;
        return;
    }
    end_task(t, row);
    row->at = *e;
    row->at.task = task;
}

double stage_tasks_end(stage_tasks *t) {
    for (int i = 0; i < t->stages; i++) end_task(t, &t->of[i]);
    return t->length;
}

void stage_tasks_json(const stage_tasks *t, str *out) {
    str_add(out, "[");
    for (int i = 0; i < t->stages; i++)
        str_add(out, "%s[%s]", i ? ",\n" : "", t->of[i].text.text ? t->of[i].text.text : "");
    str_add(out, "]");
}
