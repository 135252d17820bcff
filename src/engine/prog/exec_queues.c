/* Calls to the device beside ops, for the executor and those around it: the step block, the order of its queues,
 * and tapes, which replay calls that are the same in every step. */
#include "exec_internal.h"
#include "plan_internal.h"

#include <stddef.h>

/* ---- the step block ---------------------------------------------------------------------- */
step_block *exec_step_at(exec *x) {
    return x->plan->backend->device ? plan_data(x->plan, x->plan->step) : &x->step;
}

step_block *exec_step(exec *x) {
    step_block *at = exec_step_at(x);
    if (at != &x->step) plan_put(x->plan, at, &x->step, offsetof(step_block, now));
    return at;
}

const step_state *exec_state(exec *x) { return &exec_step_at(x)->now; }

err exec_state_get(exec *x, step_state *out) {
    return plan_get(x->plan, out, exec_state(x), sizeof *out);
}

void exec_state_set(exec *x, const step_state *s) {
    plan_put(x->plan, &exec_step_at(x)->now, s, sizeof *s);
}

/* ---- queues ------------------------------------------------------------------------------- */
void exec_join(exec *x, device_queue q, device_queue other) {
    const op_backend *b = x->plan->backend;
    if (b->device) b->device->join(b->context, q, other);
}
void exec_signal(exec *x, device_queue q, int event) {
    const op_backend *b = x->plan->backend;
    if (b->device) b->device->signal(b->context, q, event);
}
void exec_await(exec *x, device_queue q, device_queue of, int event) {
    const op_backend *b = x->plan->backend;
    if (b->device) b->device->await(b->context, q, of, event);
}

/* ---- tapes ------------------------------------------------------------------------------- */
/* The first run may autotune and is queued call by call; the second is captured. */
enum { NOT_RECORDABLE = -1 };

static bool can_replay(const exec *x, const exec_tape *t) {
    const device_table *d = x->plan->backend->device;
    return d && d->record_begin && t->runs != NOT_RECORDABLE && !x->probe.timer &&
           !x->probe.trace && !x->probe.check_finite && !x->probe.activation &&
           mesh_world(&x->plan->m) == 1;
}

err exec_replay(exec *x, exec_tape *t, err (*calls)(void *ctx), void *ctx) {
    const op_backend *b = x->plan->backend;
    if (!can_replay(x, t)) return calls(ctx);
    if (t->runs == 0) {
        t->runs = 1;
        return calls(ctx);
    }
    if (!t->graph) {
        b->device->record_begin(b->context);
        err e = calls(ctx);
        t->graph = b->device->record_end(b->context);
        if (e) { /* what was recorded is not all of it */
            exec_tape_drop(x->plan, t);
            return err_trail(e, __FILE__, __LINE__);
        }
        if (!t->graph) {
            t->runs = NOT_RECORDABLE;
            return calls(ctx);
        }
    }
    b->device->replay(b->context, t->graph);
    return OK;
}

void exec_tape_drop(const plan *p, exec_tape *t) {
    const op_backend *b = p->backend;
    if (t->graph) b->device->graph_free(b->context, t->graph);
    *t = (exec_tape){ 0 };
}
