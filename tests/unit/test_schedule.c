/* Numbers that follow a run: learning rates, clipping, loss scale, noise scale. */
#include "support/test.h"

#include <math.h>

#include "optim/optim.h"

/* ---- schedules ------------------------------------------------------------------------------- */
static void expect_lr(const schedule *s, int64_t step, double want) {
    double got = schedule_lr(s, step, 1);
    if (fabs(got - want) > 1e-15)
        fail_msg("step %lld: %.17g, expected %.17g", (long long)step, got, want);
}

static void schedules_give_the_documented_rates(void **state) {
    schedule s = { .kind = SCHED_CONSTANT, .lr = 2e-3, .min_factor = 0.1, .warmup = 9, .end = 109 };
    expect_lr(&s, 0, 2e-4);
    expect_lr(&s, 4, 1e-3);
    expect_lr(&s, 9, 2e-3);
    expect_lr(&s, 1000, 2e-3);
    s.kind = SCHED_LINEAR;
    expect_lr(&s, 4, 1e-3);
    expect_lr(&s, 9, 2e-3);
    expect_lr(&s, 59, 1.1e-3);
    expect_lr(&s, 109, 2e-4);
    expect_lr(&s, 500, 2e-4);
    s.kind = SCHED_COSINE;
    expect_lr(&s, 9, 2e-3);
    expect_lr(&s, 59, 1.1e-3);
    expect_lr(&s, 34, 2e-4 + 1.8e-3 * (2 + sqrt(2)) / 4); /* a quarter of the way */
    expect_lr(&s, 109, 2e-4);
    s.kind = SCHED_WSD;
    s.decay_length = 16;
    static const struct {
        decay_kind kind;
        double quarter, half; /* of lr, with min_factor 0.1 */
    } wsd[] = {
        { DECAY_LINEAR, 0.775, 0.55 },
        { DECAY_COSINE, 0.86819805153394638, 0.55 },
        { DECAY_SQRT, 0.55, 0.36360389693210722 },
        { DECAY_EXPONENTIAL, 0.56234132519034908, 0.31622776601683793 },
    };
    for (size_t i = 0; i < COUNT_OF(wsd); i++) {
        s.decay = wsd[i].kind;
        s.min_factor = 0.1;
        expect_lr(&s, 9, 2e-3);
        expect_lr(&s, 93, 2e-3);
        expect_lr(&s, 97, 2e-3 * wsd[i].quarter);
        expect_lr(&s, 101, 2e-3 * wsd[i].half);
        expect_lr(&s, 109, 2e-4);
        s.min_factor = 0;
        expect_lr(&s, 109, wsd[i].kind == DECAY_EXPONENTIAL ? 2e-5 : 0);
    }
    s.decay = DECAY_LINEAR; /* longer than what warm-up leaves: the whole of that */
    s.decay_length = 1000;
    expect_lr(&s, 8, 1.8e-3);
    expect_lr(&s, 59, 1e-3);
    s.decay_length = 0;
    expect_lr(&s, 500, 2e-3);
    s.warmup = 0;
    expect_lr(&s, 0, 2e-3);
}

/* A schedule that ends before the run is that of a run of its length; weight decay changes over the run. */
static void a_schedule_may_end_before_the_run(void **state) {
    const momentum_schedule m = { .end = 0.9 };
    for (int kind = 0; kind < sched_kind_count; kind++) {
        schedule s = { .kind = (sched_kind)kind,
                       .lr = 1,
                       .min_factor = 0.1,
                       .warmup = 10,
                       .end = 60,
                       .decay_length = 20,
                       .total = 100 };
        schedule whole = s;
        whole.total = 60;
        for (int64_t at = 0; at <= 120; at++) {
            double lr = schedule_lr(&s, at, 1);
            expect_lr(&whole, at, lr);
            if (at >= 60) expect_lr(&s, at, kind == SCHED_CONSTANT ? 1 : 0.1);
            optim_factors f = schedule_factors(&s, &m, at, lr);
            assert_true(fabs(f.decay[WD_LINEAR] - (1 - MIN((double)at / 100, 1.0))) < 1e-15);
            if (at >= 60) assert_true(f.momentum.weight == (kind == SCHED_CONSTANT ? 0 : 1));
        }
    }
}

/* ---- noise scale ----------------------------------------------------------------------------- */
/* Gradients of D elements: a fixed G with |G|^2 = 4, and for each example noise of variance 0.25
 * per element, so trace 0.25 D = 16 and a scale of 4. The mean over B examples is drawn at once. */
static double mean_gradient_square(rng_key key, int draw, int side, double b, double shift) {
    enum { D = 64 };
    double sum = 0;
    for (int i = 0; i < D; i++) {
        uint64_t at = ((uint64_t)draw * 2 + (uint64_t)side) * D + (uint64_t)i;
        sum += pow(shift + 0.5 / sqrt(b) * rng_normal(key, at), 2);
    }
    return sum;
}
static void the_noise_scale_is_estimated(void **state) {
    noise_scale n = { .decay = 0.999 };
    rng_key key = rng_key_of(99, 1);
    double got = 0, g = sqrt(4.0 / 64);
    for (int i = 0; i < 20000; i++)
        got = noise_scale_add(&n, mean_gradient_square(key, i, 0, 4, g), 4,
                              mean_gradient_square(key, i, 1, 32, g), 32);
    assert_true(fabs(got / 4 - 1) < 0.05);
    assert_true(fabs(n.g2 / 4 - 1) < 0.05);
    assert_int_equal(n.seen, 20000);
    /* all noise: |G|^2 comes out negative at first, and there is no estimate */
    noise_scale none = { 0 };
    assert_true(isnan(noise_scale_add(&none, 8, 1, 0.5, 8)));
    assert_true(none.decay == 0);
}

/* ---- clipping -------------------------------------------------------------------------------- */
static void only_gradients_above_the_limit_are_clipped(void **state) {
    assert_true(optim_clip(0.5, 1) == 1);
    assert_true(optim_clip(4, 1) == 0.25);
    assert_true(optim_clip(4, 0) == 1);
    assert_true(optim_clip(0, 1) == 1);
    assert_true(isnan(optim_clip(INFINITY, 1)));
    assert_true(isnan(optim_clip(NAN, 0)));
}

/* Momentum from 0.85 to its own value and to 0.9 while the rate falls; decay to 0, or with the rate. */
static void momentum_and_decay_follow_their_schedules(void **state) {
    const schedule s = { .kind = SCHED_WSD,
                         .decay = DECAY_LINEAR,
                         .lr = 0.5,
                         .min_factor = 0.05,
                         .warmup = 10,
                         .end = 200,
                         .total = 200,
                         .decay_length = 100 };
    const momentum_schedule m = { .warmup = 40, .start = 0.85, .end = 0.9 };
    const double own = 0.97, pi = 3.14159265358979323846;
    for (int64_t at = 0; at <= 220; at++) {
        optim_factors f = schedule_factors(&s, &m, at, schedule_lr(&s, at, 1) / s.lr);
        double got = own + f.momentum.weight * (f.momentum.toward - own);
        double up = MIN((double)at / 40, 1.0), x = MIN((double)at / 200, 1.0);
        double down = MIN(MAX((double)(at - 100) / 100, 0.0), 1.0);
        double want = at < 40 ? (1 - up) * 0.85 + up * own : (1 - down) * own + down * 0.9;
        assert_true(fabs(got - want) < 1e-15);
        assert_true(f.decay[WD_CONSTANT] == 1);
        assert_true(fabs(f.decay[WD_LINEAR] - (1 - x)) < 1e-15);
        assert_true(fabs(f.decay[WD_COSINE] - (1 + cos(pi * x)) / 2) < 1e-15);
        assert_true(fabs(f.decay[WD_LR] - schedule_lr(&s, at, 1) / 0.5) < 1e-15);
    }
    /* without them momentum stays */
    const momentum_schedule none = { .end = NAN };
    for (int64_t at = 0; at <= 220; at += 20)
        assert_true(schedule_factors(&s, &none, at, 1).momentum.weight == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(momentum_and_decay_follow_their_schedules),
        cmocka_unit_test(schedules_give_the_documented_rates),
        cmocka_unit_test(a_schedule_may_end_before_the_run),
        cmocka_unit_test(the_noise_scale_is_estimated),
        cmocka_unit_test(only_gradients_above_the_limit_are_clipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
