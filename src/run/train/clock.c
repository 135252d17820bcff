/* Runs whose length is given in time: training.steps=25m.
 *
 * The number of steps follows from the pace of the first ones, the trial. That plan is kept in checkpoints:
 * percentages, ramps and weight decay refer to it. Speed changes afterwards, so the schedule does not
 * count steps: it has a position in planned steps, and every step moves it by
 *
 *     (planned steps - position) / steps that still fit into the time
 *
 * which is 1 while the pace is that of the trial. The rate is continuous, the schedule always reaches its end, and the
 * run ends with it, within a step of its time. The clock counts training steps: what precedes the first one,
 * validation, samples and waits for checkpoints are outside. Rank 0's clock decides for all. */
#include "clock_internal.h"
#include "setup_internal.h"
#include "trainer_internal.h"

#include <math.h>
#include <string.h>

/* ---- the pace ---------------------------------------------------------------------------- */
void clock_add(run_clock *c, double step_s) { c->step_s[c->n++ % CLOCK_STEPS] = step_s; }

double clock_pace(const run_clock *c) {
    double sorted[CLOCK_STEPS];
    int n = (int)MIN(c->n, CLOCK_STEPS);
    if (n == 0 || (c->earlier > 0 && n < CLOCK_TRIAL)) return c->earlier;
    int first = n > 1 && c->n <= CLOCK_STEPS; /* it tunes kernels, and is left out */
    n -= first;
    memcpy(sorted, c->step_s + first, (size_t)n * sizeof *sorted);
    sort_array(sorted, (size_t)n, sizeof *sorted, compare_doubles);
    return sorted[(n - 1) / 2];
}

int64_t clock_steps_left(const run_clock *c, double used, int64_t in_flight) {
    double pace = clock_pace(c), left = c->budget - used;
    if (!(pace > 0) || left <= 0) return 1;
    return MAX(1, llround(fmin(left / pace, 1e15)) - in_flight);
}

bool clock_is_tried(const run_clock *c, double used) {
    double share = used / c->budget; /* where steps are slow, few of them are a trial */
    return c->n >= CLOCK_TRIAL || (c->n > 2 && share >= 0.05) || (c->n > 0 && share >= 0.5);
}

int64_t clock_plan(const run_clock *c, int64_t step, double used) {
    if (c->n < 2 && !clock_is_tried(c, used)) return 0; /* the first tunes kernels */
    return step + clock_steps_left(c, used, 0);
}

/* ---- the plan ---------------------------------------------------------------------------- */
static bool is_by_clock(const trainer *t) { return t->len.clock.budget > 0; }

static bool has_plan(const trainer *t) { return t->state.planned_seconds == t->len.clock.budget; }

bool trainer_clock_is_open(const trainer *t) { return is_by_clock(t) && !has_plan(t); }

static void set_plan(trainer *t, int64_t steps, bool final) {
    t->state.planned_steps = steps;
    t->state.planned_seconds = final ? t->len.clock.budget : 0;
    t->state.position = (double)t->state.step;
}

int64_t trainer_clock_length(trainer *t) {
    /* Until the steps are planned: longer than a trial, and near enough to one that factors of it are exact. */
    enum { UNKNOWN_LENGTH = 10000 };
    run_clock *c = &t->len.clock;
    ckpt_state *s = &t->state;
    c->budget = t->cfg->training.steps.value;
    if (s->step > 0 && s->seconds > 0 && c->n == 0) c->earlier = s->seconds / (double)s->step;
    if (c->earlier > 0 && !has_plan(t)) /* of a trial, of another time, or not given in time */
        set_plan(t, s->step + (s->seconds < c->budget ? clock_steps_left(c, s->seconds, 0) : 0),
                 true);
    return s->planned_steps ? s->planned_steps : s->step + UNKNOWN_LENGTH;
}

static err report_plan(trainer *t) {
    char tokens[32], length[32];
    double all = (double)batch_ramp_windows(&t->len.ramp, t->len.steps) * (double)t->len.seq;
    progress_note(t->show, "step %lld: %.3g s per step, so that %lld steps fit into %s: %s tokens",
                  (long long)t->state.step, clock_pace(&t->len.clock), (long long)t->len.steps,
                  str_duration(length, sizeof length, t->len.clock.budget),
                  str_count(tokens, sizeof tokens, all));
    trainer_describe_groups(t);
    TRY(trainer_open_log(t)); /* which states the length */
    return observe_event(t->log, "plan", t->state.step,
                         json_pack("{s:I, s:f, s:f}", "steps", (json_int_t)t->len.steps, "seconds",
                                   t->len.clock.budget, "step_s", clock_pace(&t->len.clock)));
}

err trainer_clock_settle(trainer *t) {
    if (!trainer_clock_is_open(t)) return OK;
    double steps = (double)clock_plan(&t->len.clock, t->state.step, t->state.seconds);
    double final = clock_is_tried(&t->len.clock, t->state.seconds);
    TRY(ranks_share_clock(t, &steps));
    TRY(ranks_share_clock(t, &final));
    if (steps < 1) return OK;
    set_plan(t, (int64_t)steps, final > 0);
    TRY(trainer_set_lengths(t));
    optim_set_decay_per_token(t->o, trainer_decay_per_token(t));
    TRY(trainer_check_decay(t));
    TRY(datasets_replan(t));
    return is_first_rank(t) && final > 0 ? report_plan(t) : OK;
}

/* ---- a step ------------------------------------------------------------------------------ */
int64_t trainer_clock_end(const trainer *t, int64_t planned) {
    const ckpt_state *s = &t->state;
    static const double rounding = 1e-6; /* of a position that is a sum */
    if (!is_by_clock(t) || !has_plan(t)) return planned;
    if (s->position >= (1 - rounding) * (double)s->planned_steps) return s->step;
    return s->step + clock_steps_left(&t->len.clock, s->seconds, 0);
}

err trainer_clock_next(trainer *t, int64_t step, queued_step *q) {
    const ckpt_state *s = &t->state;
    if (!is_by_clock(t) || !has_plan(t)) return OK;
    double left = (double)clock_steps_left(&t->len.clock, s->seconds, t->last.open);
    TRY(ranks_share_clock(t, &left));
    q->at = s->position + (t->last.open ? t->last.advance : 0);
    q->advance = ((double)s->planned_steps - q->at) / left;
    t->len.stop = MIN(t->len.early, step + (int64_t)left);
    return OK;
}

void trainer_clock_finish_step(trainer *t, double step_s) {
    if (!is_by_clock(t))
        return; /* checkpoints of other runs have no times: they are the same in every run */
    t->state.seconds += step_s;
    clock_add(&t->len.clock, step_s);
    t->state.position += t->last.advance;
}
