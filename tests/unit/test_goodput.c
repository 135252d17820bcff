/* Failures, checkpoints and restarts: closed forms, and a simulation that agrees with them. */
#include "support/test.h"

#include <math.h>

#include "planning/planning.h"

static void assert_near(double got, double expected, double tolerance) {
    if (!(fabs(got / expected - 1) <= tolerance))
        fail_msg("%.10g is not within %g of %.10g", got, tolerance, expected);
}

static const double day = 86400;
static const goodput_run base = { .work = 30 * 86400.0,
                                  .nodes = 128,
                                  .spares = 1000, /* no shortage: what the closed forms assume */
                                  .failures_per_node_day = 0.01,
                                  .checkpoint_s = 60,
                                  .restart_s = 600,
                                  .repair_s = 86400 };

static goodput simulate(goodput_run r, double interval) {
    goodput g;
    assert_ok(goodput_simulate(&r, interval, 1000, 1, &g));
    return g;
}

static void closed_forms(void **state) {
    assert_near(goodput_mtbf(&base), day / 1.28, 1e-12);
    assert_near(goodput_young(&base), sqrt(2 * 60 * day / 1.28), 1e-12);
    /* Daly's is a little less than Young's for short saves, and the lowest point of the expectation */
    double daly = goodput_daly(&base);
    assert_true(daly < goodput_young(&base) && daly > 0.9 * goodput_young(&base));
    for (double f = 0.25; f < 4; f *= 1.1)
        assert_true(goodput_expected(&base, daly) <=
                    goodput_expected(&base, daly * f) * (1 + 1e-4));
}

static void simulation_agrees(void **state) {
    static const double rates[] = { 0.001, 0.01, 0.05, 0.2 };
    for (size_t i = 0; i < COUNT_OF(rates); i += SANITIZED ? 2 : 1) {
        goodput_run r = base;
        r.failures_per_node_day = rates[i];
        goodput g = simulate(r, NAN);
        /* the closed form also saves after the last stretch */
        assert_near(g.mean, g.expected, 0.02);
        assert_near(g.failures, g.mean / g.mtbf, 0.05);
        assert_true(g.p10 <= g.p50 && g.p50 <= g.p90 && g.p10 < g.mean && g.mean < 1.05 * g.p90);
        /* Daly's interval is as good as the best that the simulation finds */
        goodput best = simulate(r, g.simulated);
        assert_true(g.mean < 1.01 * best.mean);
    }
}

static void invariants(void **state) {
    goodput_run r = base;
    goodput first = simulate(r, NAN), again = simulate(r, NAN);
    assert_memory_equal(&first, &again, sizeof first);
    r.failures_per_node_day = 0;
    assert_near(simulate(r, NAN).mean, r.work, 1e-12);
    assert_near(simulate(r, r.work / 10).mean, r.work + 9 * 60, 1e-12);
    double last = 0;
    for (double rate = 0.002; rate < 0.2; rate *= 2) {
        r.failures_per_node_day = rate;
        double mean = simulate(r, NAN).mean;
        assert_true(mean > last);
        last = mean;
    }
    r = base;
    last = INFINITY;
    for (int spares = 0; spares <= 8;
         spares += 2) { /* repairs take a day: about 1.3 nodes are out */
        r.spares = spares;
        double mean = simulate(r, NAN).mean;
        assert_true(mean <= last);
        last = mean;
    }
    assert_near(last, first.mean, 0.001);
    r.spares = 0;
    assert_true(simulate(r, NAN).mean > 1.8 * first.mean);
}

/* Llama 3 405B: 419 unexpected interruptions in 54 days on 16,384 GPUs, more than 90 % effective training
 * time (arXiv:2407.21783, section 3.3.4). */
static void llama3_in_54_days(void **state) {
    goodput_run r = { .work = 49 * day,
                      .nodes = 2048,
                      .spares = 64,
                      .failures_per_node_day = 419 / 54.0 / 2048,
                      .checkpoint_s = 10,
                      .restart_s = 600,
                      .repair_s = day };
    goodput g = simulate(r, NAN);
    assert_near(g.mtbf, 54 * day / 419, 1e-9);
    assert_true(g.goodput > 0.90 && g.goodput < 0.96);
}

static void refusals(void **state) {
    goodput g;
    goodput_run r = base;
    r.nodes = 100000;
    r.failures_per_node_day = 1;
    assert_error(goodput_simulate(&r, NAN, 10, 1, &g), "never ends", "every 1 s");
    r = base;
    r.failures_per_node_day = -1;
    assert_error(goodput_simulate(&r, NAN, 10, 1, &g), "--failures", "got -1");
    r = base;
    r.checkpoint_s = 0;
    assert_error(goodput_simulate(&r, NAN, 10, 1, &g), "--checkpoint-time");
    r = base;
    r.work = 1e19;
    assert_error(goodput_simulate(&r, NAN, 10, 1, &g), "too many to simulate", "years");
    r = base;
    assert_error(goodput_simulate(&r, 100 * day, 1 << 30, 1, &g), "the run never ends");
}

/* Simulating each of that many trials would take weeks. */
static void long_runs_need_fewer_trials(void **state) {
    goodput_run r = base;
    goodput g;
    r.work = 1e9;
    assert_ok(goodput_simulate(&r, NAN, 1 << 30, 1, &g));
    assert_near(g.mean, g.expected, 0.02);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_forms), cmocka_unit_test(simulation_agrees),
        cmocka_unit_test(invariants),   cmocka_unit_test(llama3_in_54_days),
        cmocka_unit_test(refusals),     cmocka_unit_test(long_runs_need_fewer_trials),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
