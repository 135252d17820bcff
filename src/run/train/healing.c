/* Acts on alerts.
 *
 *     log         nothing more
 *     skip        the update is left out, by the kernel that clips (ops/clip.h): decided before it runs, from
 *                 the norm on the device, or from the loss, which the host then waits for
 *     cool_down   from the next step on the learning rate is a tenth; after 100 steps it rises for as many,
 *                 linearly, back to the schedule
 *     rollback    weights, optimizer state and everything else of the last checkpoint before the alert; the data
 *                 of the step is skipped, or replaced by a clean source's. Where the alert comes back near the
 *                 same place, twice as much data is skipped, later from an older checkpoint, a few times; then
 *                 the run stops
 *     stop        the run saves and ends with EXIT_ALERT
 *
 * A step that is not finite is computed again, with a check of every op, to name the first that went wrong. That,
 * rollback and stop wait until nothing is in flight: a step that was being queued is dropped and queued again. */
#include "setup_internal.h"
#include "trainer_internal.h"

#include <math.h>
#include <stdlib.h>

#include "util/fault.h"

/* ---- deciding ---------------------------------------------------------------------------------------- */
static bool of_machine(const monitor_alert *a) {
    return monitor_table[a->id].scope == MONITOR_MACHINE;
}

bool healing_waits(const monitor_alert *a) {
    return a->id == MONITOR_nonfinite || (!of_machine(a) && a->policy >= MONITOR_ROLLBACK);
}

void healing_decide(trainer *t, const monitor_alert *a) {
    run_alerts *r = &t->alerts;
    if (a->policy == MONITOR_COOL_DOWN) r->cool_from = a->step + 1;
    if (of_machine(a) && a->policy == MONITOR_STOP) r->stops = true;
    if (!healing_waits(a)) return;
    r->act[r->n_act++] = *a;
    r->interrupts = true;
}

double healing_rate(const trainer *t, int64_t step) {
    int64_t length = t->cfg->alerts.cool_down_steps, at = step - t->alerts.cool_from;
    double low = t->cfg->alerts.cool_down_factor;
    if (t->alerts.cool_from == 0 || at < 0 || at >= 2 * length) return 1;
    return at < length ? low : low + (1 - low) * (double)(at - length + 1) / (double)length;
}

/* ---- stopping ---------------------------------------------------------------------------------------- */
err healing_stop(const trainer *t) {
    return err_exit(
        err_hint(ERR("stopped after step %lld by an alert whose policy is to stop, and saved",
                     (long long)t->state.step),
                 "events.jsonl in %s has it; the same command continues, with another "
                 "alerts.policy it does not stop",
                 t->dir),
        EXIT_ALERT);
}

/* Weights are those before the step; where they come from is the last save. */
static err stop_not_finite(const trainer *t, const monitor_alert *a) {
    const run_alerts *r = &t->alerts;
    return err_exit(
        err_hint(ERR("step %lld: the %s is %s%s%s", (long long)a->step,
                     isfinite(t->state.loss) ? "gradient norm" : "loss",
                     isnan(a->value) ? "NaN" : "infinite", r->op.len ? "; " : "",
                     r->op.len ? r->op.text : ""),
                 "lower optimizer.lr or lengthen lr_scheduler.warmup; alerts.policy=nonfinite=skip "
                 "leaves such steps out, =rollback goes back"),
        EXIT_ALERT);
}

/* ---- rolling back -------------------------------------------------------------------------------------- */
/* Later checkpoints belong to a branch that the run leaves, on disk and in the store. */
static err supersede_later(trainer *t, int64_t step) {
    ckpt_uploader *u = t->saves.uploader;
    if (u) TRY(ckpt_uploader_mark_back(u, step));
    TRY(ckpt_supersede_newer(t->dir, step, CKPT_SUPERSEDED));
    fault_point(FAULT_ROLLBACK, 0);
    if (u) ckpt_uploader_go_back(u);
    if (u) saving_upload(t, CKPT_FULL, step); /* the newest from here on, also there */
    return OK;
}

/* The checkpoint to go back to, of those before `step`: the newest; after two attempts, older ones. Rank 0
 * looks; -1: there is none. */
static err choose_checkpoint(trainer *t, int64_t step, int64_t *out) {
    double chosen = -1;
    err e = OK;
    if (is_first_rank(t)) {
        int64_t *steps = NULL;
        int n = 0;
        e = ckpt_list(t->dir, CKPT_FULL, &steps, &n);
        while (n > 0 && steps[n - 1] >= step) n--;
        if (n > 0) chosen = (double)steps[MAX(0, n - 1 - (int)(t->alerts.attempts - 1) / 2)];
        free(steps);
        if (!e && chosen >= 0) e = supersede_later(t, (int64_t)chosen);
    } else {
        chosen = 0;
    }
    TRY(comm_agree(t->x.comm, e));
    TRY(comm_total(t->x.comm, &chosen, 1));
    *out = (int64_t)chosen;
    return OK;
}

/* Loads the newest checkpoint there is, as a resumed run does. */
static err load_checkpoint(trainer *t) {
    char *path = NULL;
    json_t *run = NULL;
    ckpt_state state;
    model_config saved;
    step_state now;
    err e = OK;
    int64_t attempts = t->alerts.attempts, last_alert = t->alerts.last_alert;
    TRY_CLEAN(exec_state_get(&t->x, &now)); /* waits for all that is queued */
    TRY_CLEAN(ckpt_newest_whole(t->dir, CKPT_FULL, t->x.comm, &path));
    if (!path) {
        e = ERR("%s: the checkpoint to go back to is gone", t->dir);
        goto cleanup;
    }
    TRY_CLEAN(ckpt_read_manifest(path, &saved, &state, &run));
    TRY_CLEAN(ckpt_load(path, t->m, &t->x, t->o));
    state.saves = MAX(state.saves, t->state.saves);
    state.seconds = MAX(state.seconds, t->state.seconds); /* they have passed */
    t->state = state;
    t->x.scaled = false;
    TRY_CLEAN(alerts_load_state(t, run));
    t->alerts.attempts = attempts; /* the checkpoint precedes this rollback */
    t->alerts.last_alert = last_alert;
    trainer_restore_step_state(t);
cleanup:
    free(path);
    json_decref(run);
    return e;
}

/* Ranges that were to be skipped before the checkpoint was loaded are still skipped, and now this one too. */
static err skip_data(trainer *t, const ckpt_state *before, data_range bad) {
    int64_t now = data_skips_position(&t->state.skips, t->state.windows);
    bool clean = *t->cfg->alerts.clean_source != '\0';
    for (int i = 0; i < before->skips.n; i++)
        TRY(data_skips_add(&t->state.skips, before->skips.at[i], now));
    for (int i = 0; i < before->replaced.n; i++)
        TRY(data_skips_add(&t->state.replaced, before->replaced.at[i], now));
    TRY(data_skips_add(clean ? &t->state.replaced : &t->state.skips, bad, now));
    return datasets_begin(t);
}

/* The positions of the data that an alert is about: of its step and of those just before it; with each
 * attempt more of what follows, since the trouble then lasts. */
static data_range bad_range(const trainer *t) {
    const run_alerts *r = &t->alerts;
    int64_t rows = t->state.windows - r->from, steps = t->cfg->alerts.skip_steps;
    int64_t more = steps * (((int64_t)1 << MIN(r->attempts - 1, 20)) - 1);
    int64_t from = MAX(0, t->state.windows - steps * rows);
    return (data_range){ data_skips_position(&t->state.skips, from),
                         data_skips_position(&t->state.skips, t->state.windows - 1) + 1 +
                             more * rows };
}

static err log_rollback(trainer *t, const monitor_alert *a, data_range bad) {
    bool clean = *t->cfg->alerts.clean_source != '\0';
    progress_note(t->show, "back to step %lld; sequences %lld to %lld are %s",
                  (long long)t->state.step, (long long)bad.from, (long long)bad.to,
                  clean ? "replaced" : "skipped");
    TRY(trainer_open_log(t));
    return observe_event(
        t->log, "rollback", t->state.step,
        json_pack("{s:s, s:I, s:I, s:[I, I], s:b}", "alert", monitor_table[a->id].name, "from_step",
                  (json_int_t)a->step, "attempt", (json_int_t)t->alerts.attempts, "sequences",
                  (json_int_t)bad.from, (json_int_t)bad.to, "replaced", (int)clean));
}

static err roll_back(trainer *t, const monitor_alert *a) {
    run_alerts *r = &t->alerts;
    ckpt_state before = t->state;
    int64_t to = -1;
    /* Alerts within this many steps of one another are about the same trouble. */
    int64_t near = r->last_alert + 2 * t->cfg->alerts.skip_steps + 50;
    r->attempts = r->last_alert && a->step <= near ? r->attempts + 1 : 1;
    r->last_alert = a->step;
    if (r->attempts > t->cfg->alerts.rollbacks)
        return err_exit(
            err_hint(ERR("step %lld: %s again, after %lld rollbacks", (long long)a->step,
                         monitor_table[a->id].name, (long long)t->cfg->alerts.rollbacks),
                     "%s. The last checkpoint is from before it; alerts.rollbacks allows more",
                     monitor_table[a->id].remedy),
            EXIT_ALERT);
    TRY(saving_settle(t));
    TRY(choose_checkpoint(t, a->step, &to));
    if (to < 0) { /* nothing to go back to */
        r->cool_from = a->step + 1;
        log_warn(
            "step %lld: no checkpoint precedes it, so the run cannot go back: the learning rate is "
            "lowered instead",
            (long long)a->step);
        loader_seek(t->data.batches, t->state.windows);
        return OK;
    }
    data_range bad = bad_range(t);
    TRY(load_checkpoint(t));
    t->saves.saved = t->state.step;
    TRY(skip_data(t, &before, bad));
    return is_first_rank(t) ? log_rollback(t, a, bad) : OK;
}

/* ---- acting --------------------------------------------------------------------------------------------- */
static err name_op(trainer *t) {
    str *op = &t->alerts.op;
    op->len = 0;
    TRY(trainer_repeat_step(t, op));
    if (!op->len)
        str_add(op,
                "computed again, no op yields such a value: the norm overflows, or the fault does "
                "not repeat and the machine is to be checked (ingot doctor)");
    return OK;
}

err healing_act(trainer *t) {
    run_alerts *r = &t->alerts;
    const monitor_alert *worst = &r->act[0];
    r->interrupts = false;
    for (int i = 0; i < r->n_act; i++) {
        if (r->act[i].id == MONITOR_nonfinite) TRY(name_op(t));
        TRY(alerts_report(t, &r->act[i], NULL, NULL));
        if (r->act[i].policy > worst->policy) worst = &r->act[i];
    }
    if (worst->policy == MONITOR_ROLLBACK) return roll_back(t, worst);
    if (worst->policy < MONITOR_ROLLBACK) {
        loader_seek(t->data.batches, t->state.windows);
        return OK;
    }
    if (worst->id == MONITOR_nonfinite) return stop_not_finite(t, worst);
    TRY(saving_now(t));
    return healing_stop(t);
}
