/* When the tasks of a pipeline run, for the live page's timetable: two times per task instead of the two per call
 * that a trace has. On a device they are marks in the compute queue, which task_times_read turns into seconds:
 *
 *     compute queue   | first mark ... | mark | lists of task 0 | mark | ... | mark | lists of task 1 | mark | */
#include "exec_internal.h"
#include "plan_internal.h"

static int mark_number(int task, bool ends) { return MARKS_OF_STEPS + 1 + 2 * task + ends; }

void task_times_begin(exec *x, task_times *t) {
    const op_backend *b = x->plan->backend;
    t->n = 0;
    if (x->probe.trace) return; /* its marks have the same numbers */
    t->zero = time_now();
    if (b->device) b->device->mark(b->context, QUEUE_COMPUTE, MARKS_OF_STEPS);
    x->probe.times = t;
}

void task_times_note(exec *x, const instr *i, bool ends) {
    task_times *t = x->probe.times;
    /* gathers and reductions run beside tasks, and may belong to another than the one around them */
    if (!instr_computes(i->kind)) return;
    const task_time *last = t->n ? &t->of[t->n - 1] : NULL;
    bool same = last && last->kind == i->task && last->chunk == i->chunk && last->micro == i->micro;
    if (same && !ends) return;
    if (!same) {
        LIST_ADD(t->of, t->n, t->cap) =
            (task_time){ .kind = i->task, .chunk = i->chunk, .micro = i->micro };
    }
    const op_backend *b = x->plan->backend;
    if (b->device)
        b->device->mark(b->context, QUEUE_COMPUTE, mark_number(t->n - 1, ends));
    else
        t->of[t->n - 1].at[ends] = time_now() - t->zero;
}

void task_times_read(const exec *x, task_times *t) {
    const op_backend *b = x->plan->backend;
    for (int i = 0; i < t->n && b->device; i++)
        for (int ends = 0; ends < 2; ends++)
            t->of[i].at[ends] =
                b->device->seconds_between(b->context, MARKS_OF_STEPS, mark_number(i, ends));
}
