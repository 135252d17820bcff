/* Runs whose length is given in time, on machines whose speed changes: sampled paces and a clock of the test's own. */
#include "support/test.h"

#include <math.h>
#include <stdlib.h>

#include "train/trainer_internal.h"

/* A machine of a seed: the first steps tune kernels, the pace drifts and may jump, single steps take far longer. */
typedef struct machine {
    rng_key key;
    double pace, drift, jump, noise, hiccups;
    double seconds; /* of the run */
} machine;

static double draw(const machine *m, uint64_t i, double low, double high) {
    return low + (high - low) * rng_uniform(m->key, i);
}

static machine machine_of(uint64_t seed) {
    machine m = { .key = rng_key_of(seed, 34) };
    m.pace = exp(draw(&m, 0, log(0.01), log(10)));
    m.seconds = m.pace * exp(draw(&m, 1, log(60), log(4000)));
    m.drift = seed % 3 ? draw(&m, 2, -0.4, 0.8) : 0;
    m.jump = seed % 4 == 1 ? draw(&m, 3, 0.5, 2) : 1;
    m.noise = seed % 2 ? draw(&m, 4, 0, 0.3) : 0;
    m.hiccups = seed % 5 == 2 ? 0.01 : 0;
    return m;
}

static double step_seconds(const machine *m, int64_t step, double used) {
    uint64_t at = 10 + 3 * (uint64_t)step;
    double s = m->pace * (1 + m->drift * used / m->seconds) * (1 + m->noise * draw(m, at, -1, 1));
    if (used > 0.6 * m->seconds) s *= m->jump;
    if (step == 0) s *= 5;
    return draw(m, at + 1, 0, 1) < m->hiccups ? 20 * s : s;
}

/* Finishes the step that is in flight, and plans as long as the trial lasts. */
static void finish_step(trainer *t, const machine *m) {
    double s = step_seconds(m, t->state.step, t->state.seconds);
    t->last.open = false;
    t->state.step++;
    trainer_clock_finish_step(t, s);
    int64_t steps = clock_plan(&t->len.clock, t->state.step, t->state.seconds);
    if (!trainer_clock_is_open(t) || !clock_is_tried(&t->len.clock, t->state.seconds)) return;
    t->state.planned_steps = steps;
    t->state.planned_seconds = m->seconds;
    t->state.position = (double)t->state.step;
    t->len.stop = trainer_clock_end(t, steps);
}

/* How a run went. */
typedef struct outcome {
    double used, position;
    double least, most; /* moves of the schedule */
    int64_t steps, planned;
} outcome;

/* Runs on that machine, as loop.c does. @param ahead a step is queued before the last is timed, as on a device.
 * @param stop_at a step after which the process ends and another one continues; -1: none */
static outcome simulate(const machine *m, bool ahead, int64_t stop_at) {
    trainer *t = mem_alloc(sizeof *t);
    outcome o = { .least = INFINITY };
    config c;
    config_init(&c);
    c.training.steps = (cfg_amount){ m->seconds, CFG_SECONDS };
    t->cfg = &c;
    t->x.comm = comm_self();
    t->len.early = INT64_MAX;
    t->len.stop = trainer_clock_length(t);
    while (t->state.step + t->last.open < t->len.stop) {
        queued_step q = { .open = true, .at = (double)t->state.step, .advance = 1 };
        if (t->state.step == stop_at && !t->last.open) {
            t->len.clock = (run_clock){ 0 };
            t->len.stop = trainer_clock_end(t, trainer_clock_length(t));
        }
        assert_ok(trainer_clock_next(t, t->state.step + t->last.open, &q));
        if (!trainer_clock_is_open(t)) {
            o.least = fmin(o.least, q.advance);
            o.most = fmax(o.most, q.advance);
        }
        if (t->last.open) finish_step(t, m);
        t->last = q;
        bool last = t->state.step + 1 >= t->len.stop;
        if (!ahead || last || trainer_clock_is_open(t)) finish_step(t, m);
    }
    assert_false(t->last.open);
    o.used = t->state.seconds;
    o.position = t->state.position;
    o.planned = t->state.planned_steps;
    o.steps = t->state.step;
    comm_free(t->x.comm);
    config_free(&c);
    free(t);
    return o;
}

static void check(uint64_t seed, const machine *m, const outcome *o) {
    /* A step more or less, and one that takes long at the very end, cannot be known before. */
    double step = m->pace * (1 + fabs(m->drift)) * (1 + m->noise) * fmax(1, m->jump);
    double allowed = 0.01 * m->seconds + (m->hiccups > 0 ? 22 : 2) * step;
    if (!(fabs(o->used - m->seconds) <= allowed))
        fail_msg("seed %llu: %g seconds, %lld steps; expected %g", (unsigned long long)seed,
                 o->used, (long long)o->steps, m->seconds);
    if (!(fabs(o->position - (double)o->planned) < 1e-6 * (double)o->planned))
        fail_msg("seed %llu: the schedule ends at %g of %lld", (unsigned long long)seed,
                 o->position, (long long)o->planned);
    assert_true(o->least > 0);
}

static void runs_end_with_their_time_and_schedules_with_them(void **state) {
    for (uint64_t seed = 0; seed < 400; seed++) {
        machine m = machine_of(seed);
        outcome here = simulate(&m, false, -1), ahead = simulate(&m, true, -1);
        check(seed, &m, &here);
        check(seed, &m, &ahead);
        outcome again = simulate(&m, seed % 2, here.steps / 3);
        check(seed, &m, &again);
    }
}

static void a_steady_machine_moves_the_schedule_by_steps(void **state) {
    for (uint64_t seed = 0; seed < 40; seed++) {
        machine m = machine_of(seed);
        m.drift = m.noise = m.hiccups = 0;
        m.jump = 1;
        outcome o = simulate(&m, seed % 2, -1);
        assert_in_range(o.steps, o.planned - 1, o.planned + 1);
        assert_true(o.least > 0.5 && o.most < 2); /* a step more or less, at the end */
    }
}

static void few_steps_are_a_run_too(void **state) {
    for (double steps = 0.3; steps < 12; steps += 0.37) {
        machine m = { .key = rng_key_of(1, 1), .pace = 2, .jump = 1, .seconds = 2 * steps };
        outcome o = simulate(&m, false, -1);
        assert_true(o.steps >= 2 && o.used <= fmax(5 * 2 + 2, m.seconds + 2));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_end_with_their_time_and_schedules_with_them),
        cmocka_unit_test(a_steady_machine_moves_the_schedule_by_steps),
        cmocka_unit_test(few_steps_are_a_run_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
