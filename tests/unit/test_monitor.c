/* The monitor's core: each alert fires at its step and at no other, healthy numbers raise none, what is saved
 * continues exactly, and the lists of a config are read strictly. */
#include "support/folder.h"

#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <sys/stat.h>

#include "monitor/monitor.h"

/* ---- runs of numbers ------------------------------------------------------------------------------ */
typedef struct watch {
    monitor *m;
    monitor_alert found[MONITOR_ALERTS];
    int n;
    int64_t step;
} watch;

static watch watch_new(monitor_preset preset, const char *thresholds, const char *policies) {
    monitor_settings s;
    assert_ok(monitor_settings_read(preset, thresholds, policies, &s));
    return (watch){ .m = monitor_new(&s) };
}

/* A loss that falls, with the noise of small batches, and a steady norm. */
static monitor_step healthy(int64_t step) {
    monitor_step s = monitor_step_none();
    rng_key key = rng_key_of(7, 1);
    s.step = step;
    s.loss = 2.5 + 3 * exp(-(double)step / 200) + 0.08 * (double)rng_normal(key, (uint64_t)step);
    s.grad_norm = 0.8 + 0.1 * (double)rng_normal(key, (uint64_t)step + 100000);
    s.max_norm = 1;
    return s;
}

static void add(watch *w, const monitor_step *s) {
    w->n = monitor_add(w->m, s, w->found);
    w->step = s->step;
}

static const monitor_alert *find(const watch *w, monitor_id id) {
    for (int i = 0; i < w->n; i++)
        if (w->found[i].id == id) return &w->found[i];
    return NULL;
}

/* Takes healthy steps [from, to): no alert may fire. Notes may. */
static void add_healthy(watch *w, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++) {
        monitor_step s = healthy(i);
        add(w, &s);
        for (int k = 0; k < w->n; k++)
            if (monitor_table[w->found[k].id].level == MONITOR_ALERT)
                fail_msg("step %d: %s, %g against %g", (int)i, monitor_table[w->found[k].id].name,
                         w->found[k].value, w->found[k].limit);
    }
}

/* A run of seconds, most of which is a save, is not judged; later, the waits since the last judgment are. */
static void waits_for_saves_are_judged_by_the_minute(void **state) {
    monitor_saves s = { .from = 1000 };
    assert_true(isnan(monitor_save_share(&s, 1003, 2.5)));
    assert_true(isnan(monitor_save_share(&s, 1059, 3)));
    assert_float_equal(monitor_save_share(&s, 1100, 4.5), 0.1, 1e-12);
    assert_true(isnan(monitor_save_share(&s, 1120, 19)));
    assert_float_equal(monitor_save_share(&s, 1300, 1), 0.1, 1e-12);
    assert_float_equal(monitor_save_share(&s, 4900, 36), 0.01, 1e-12);
}

static void healthy_numbers_raise_nothing(void **state) {
    for (int preset = 0; preset < monitor_preset_count; preset++) {
        watch w = watch_new((monitor_preset)preset, "", "");
        add_healthy(&w, 1, 3000);
        assert_int_equal(monitor_spikes(w.m), 0);
        monitor_free(w.m);
    }
}

/* ---- the loss --------------------------------------------------------------------------------------- */
static void a_spike_fires_once_and_again_after_a_while(void **state) {
    watch w = watch_new(MONITOR_NORMAL, "", "loss_spike=rollback");
    add_healthy(&w, 1, 100);
    for (int i = 0; i < 3; i++) { /* three steps in a row are one alert, and three spikes */
        monitor_step s = healthy(100 + i);
        s.loss = 9;
        assert_true(monitor_would_spike(w.m, s.loss));
        add(&w, &s);
        const monitor_alert *a = find(&w, MONITOR_loss_spike);
        assert_true((a != NULL) == (i == 0));
        if (!a) continue;
        assert_int_equal(a->policy, MONITOR_ROLLBACK);
        assert_true(a->value == 9 && a->limit < 9 && a->mean > 3 && a->mean < 6);
        assert_int_equal(a->step, 100);
    }
    assert_int_equal(monitor_spikes(w.m), 3);
    assert_true(monitor_is_spike(w.m) == 1);
    add_healthy(&w, 103, 113);
    assert_true(monitor_is_spike(w.m) == 0);
    monitor_step s = healthy(113);
    s.loss = 9;
    add(&w, &s);
    assert_non_null(find(&w, MONITOR_loss_spike));
    monitor_free(w.m);
}

static void nothing_is_judged_before_ten_losses(void **state) {
    watch w = watch_new(MONITOR_STRICT, "", "");
    for (int i = 1; i <= 10; i++) {
        monitor_step s = healthy(i);
        if (i == 9) s.loss = s.grad_norm = 1000;
        add(&w, &s);
        assert_int_equal(w.n, 0);
        assert_true(isnan(monitor_is_spike(w.m)));
    }
    add_healthy(&w, 11, 12);
    assert_true(monitor_is_spike(w.m) == 0);
    monitor_free(w.m);
}

/* 1.8 times the mean is a spike for strict alone; a deviation near nothing does not make one of noise. */
static void presets_and_deviations(void **state) {
    static const bool spikes[] = { [MONITOR_STRICT] = true, [MONITOR_OFF] = false };
    for (int preset = 0; preset < monitor_preset_count; preset++) {
        watch w = watch_new((monitor_preset)preset, "", "");
        for (int i = 0; i < 200; i++) {
            monitor_step s = monitor_step_none();
            s.loss = i % 2 ? 1 : 3; /* a deviation of 1: 6 of them are not reached */
            if (i == 150) s.loss = 3.6;
            add(&w, &s);
            assert_true((find(&w, MONITOR_loss_spike) != NULL) == (i == 150 && spikes[preset]));
        }
        monitor_free(w.m);
    }
    watch w = watch_new(MONITOR_NORMAL, "", "");
    for (int i = 0; i < 100; i++) {
        monitor_step s = monitor_step_none();
        s.loss = i == 60 ? 2.08 : i == 90 ? 2.3 : 2;
        add(&w, &s);
        assert_true((find(&w, MONITOR_loss_spike) != NULL) == (i == 90));
    }
    monitor_free(w.m);
}

/* A level that stays becomes the new normal. */
static void a_new_level_is_one_alert(void **state) {
    watch w = watch_new(MONITOR_NORMAL, "", "");
    int fired = 0;
    for (int i = 0; i < 400; i++) {
        monitor_step s = monitor_step_none();
        s.loss = i < 100 ? 2 : 5;
        add(&w, &s);
        fired += find(&w, MONITOR_loss_spike) != NULL;
    }
    assert_int_equal(fired, 1);
    assert_true(monitor_is_spike(w.m) == 0);
    monitor_free(w.m);
}

static void a_plateau_is_noted(void **state) {
    watch w = watch_new(MONITOR_NORMAL, "", "");
    for (int i = 1; i <= 500; i++) {
        monitor_step s = monitor_step_none();
        s.loss = i <= 300 ? 6 - 0.01 * i
                          : 3; /* flat from 300 on: seen when 100 such steps are compared */
        add(&w, &s);
        assert_true((find(&w, MONITOR_plateau) != NULL) == (i == 500));
    }
    monitor_free(w.m);
}

static void what_is_not_finite(void **state) {
    const double bad[] = { NAN, copysign(NAN, -1), INFINITY };
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        for (int in_norm = 0; in_norm < 2; in_norm++) {
            watch w = watch_new(MONITOR_NORMAL, "", "");
            monitor_step s = healthy(1); /* in the very first step, too */
            *(in_norm ? &s.grad_norm : &s.loss) = bad[i];
            add(&w, &s);
            const monitor_alert *a = find(&w, MONITOR_nonfinite);
            assert_non_null(a);
            assert_int_equal(a->policy, MONITOR_STOP);
            str text = { 0 };
            monitor_describe(monitor_settings_of(w.m), a, &text);
            assert_non_null(strstr(text.text, isnan(bad[i]) ? "skipped: NaN" : "skipped: inf"));
            str_free(&text);
            monitor_free(w.m);
        }
}

/* fp16 looks for its scale by overflowing; a scale of 1 has nothing left to give, and a loss does not depend on
 * the scale. */
static void what_is_not_finite_in_fp16(void **state) {
    static const struct {
        double loss, norm, scale;
        bool fires;
    } cases[] = { { 3, INFINITY, 1024, false }, { 3, NAN, 2, false },
                  { 3, INFINITY, 1, true },     { 3, NAN, 1, true },
                  { NAN, 1, 1024, true },       { INFINITY, 1, 65536, true },
                  { NAN, NAN, 1024, true },     { 3, 1, 1024, false } };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        watch w = watch_new(MONITOR_NORMAL, "loss_scale=off", "");
        monitor_step s = healthy(1);
        s.loss = cases[i].loss;
        s.grad_norm = cases[i].norm;
        s.loss_scale = cases[i].scale;
        add(&w, &s);
        assert_int_equal(find(&w, MONITOR_nonfinite) != NULL, cases[i].fires);
        monitor_free(w.m);
    }
}

/* ---- the gradient -------------------------------------------------------------------------------------- */
static void gradients_that_explode(void **state) {
    watch w = watch_new(MONITOR_NORMAL, "", "grad_explosion=skip");
    add_healthy(&w, 1, 100);
    double limit = monitor_skip_norm(w.m, 1);
    assert_true(limit > 2.99 && limit < 3.01);
    monitor_step s = healthy(100);
    s.grad_norm = 2.9;
    add(&w, &s);
    assert_null(find(&w, MONITOR_grad_explosion));
    s = healthy(101);
    s.grad_norm = 3.1;
    double said = monitor_skip_norm(w.m, 1);
    add(&w, &s);
    const monitor_alert *a = find(&w, MONITOR_grad_explosion);
    assert_non_null(a);
    assert_true(a->limit == said); /* what the device compared with is what the alert names */
    s = healthy(102);
    s.grad_norm = 101;
    add(&w, &s);
    assert_non_null(find(&w, MONITOR_grad_alarm));
    assert_non_null(find(&w, MONITOR_grad_large));
    assert_null(find(&w, MONITOR_grad_explosion)); /* still the same one */
    s = healthy(103);
    s.grad_norm = 0.005;
    add(&w, &s);
    assert_non_null(find(&w, MONITOR_grad_small));
    monitor_free(w.m);
    w = watch_new(MONITOR_NORMAL, "", "");
    add_healthy(&w, 1, 100);
    assert_true(monitor_skip_norm(w.m, 1) == 0); /* not its policy */
    monitor_free(w.m);
}

/* Gradients that stand out in batches of few tokens, as in runs that nothing ails (bench/fault/healthy), and planted
 * explosions among them: the loss tells them apart. */
static void gradients_that_only_stand_out(void **state) {
    for (uint64_t seed = 0; seed < 100; seed++) {
        watch w = watch_new(MONITOR_NORMAL, "grad_large=off", "");
        rng_key key = rng_key_of(seed, 3);
        int planted = 60 + (int)rng_below(key, 0, 100), fired = 0;
        for (int i = 1; i < 170; i++) {
            monitor_step s = healthy(i);
            bool outlier = i > 10 && rng_below(key, (uint64_t)i, 25) == 0;
            if (outlier) s.grad_norm *= 4 + 20 * (double)rng_uniform(key, (uint64_t)i + 1000);
            if (i == planted) {
                s.grad_norm = 6 + 30 * (double)rng_uniform(key, (uint64_t)i + 2000);
                s.loss *= 1.2;
            }
            add(&w, &s);
            if (!find(&w, MONITOR_grad_explosion)) continue;
            fired++;
            if (i != planted) fail_msg("seed %d: a false alarm at step %d", (int)seed, i);
        }
        if (fired != 1) fail_msg("seed %d: %d alarms", (int)seed, fired);
        monitor_free(w.m);
    }
}

static void a_sustained_rise(void **state) {
    watch w = watch_new(MONITOR_NORMAL, "", "");
    int fired_at = 0;
    for (int i = 1; i <= 300; i++) {
        monitor_step s = healthy(i);
        s.grad_norm = i <= 150 ? 0.8 : 0.8 * pow(1.02, i - 150);
        add(&w, &s);
        if (find(&w, MONITOR_grad_rise) && !fired_at) fired_at = i;
    }
    assert_int_equal(fired_at, 225); /* the end of the third span that rises */
    monitor_free(w.m);
    w = watch_new(MONITOR_NORMAL, "",
                  ""); /* one that rises to about the clip, as small models may */
    for (int i = 1; i <= 300; i++) {
        monitor_step s = healthy(i);
        s.grad_norm = i <= 150 ? 0.35 : MIN(1.2, 0.35 * pow(1.02, i - 150));
        add(&w, &s);
        assert_null(find(&w, MONITOR_grad_rise));
    }
    monitor_free(w.m);
}

/* ---- blocks, experts, numbers ------------------------------------------------------------------------------ */
static void blocks_are_named(void **state) {
    watch w = watch_new(MONITOR_NORMAL, "", "");
    double rms[] = { 1, 1, 120, 1 }, small[] = { 1, 0.005, 1, 1 }, norm[] = { 5, 6, 7, 80, 1000 };
    monitor_step s = healthy(1);
    s.blocks = 4;
    s.activation_rms = rms;
    s.block_param = s.block_grad = norm;
    add(&w, &s);
    assert_int_equal(find(&w, MONITOR_activation_large)->block, 2);
    assert_int_equal(find(&w, MONITOR_param_norm)->block,
                     3); /* of the last, "other", nothing is said */
    assert_non_null(find(&w, MONITOR_block_grad));
    s.activation_rms = small;
    add(&w, &s);
    assert_int_equal(find(&w, MONITOR_activation_small)->block, 1);
    monitor_free(w.m);
    w = watch_new(MONITOR_NORMAL, "", "");
    small[1] = 0.015; /* above the limit of 0.01, as 99 is below that of 100 */
    rms[2] = 99;
    add(&w, &s);
    assert_null(find(&w, MONITOR_activation_small));
    s.activation_rms = rms;
    add(&w, &s);
    assert_null(find(&w, MONITOR_activation_large));
    assert_null(find(&w, MONITOR_param_norm)); /* still */
    monitor_free(w.m);
}

static void experts_that_stay_dead_or_saturated(void **state) {
    watch w = watch_new(MONITOR_NORMAL, "", "");
    double least[] = { NAN, 0.5 }, most[] = { NAN, 2 };
    for (int i = 1; i <= 200; i++) {
        least[1] = i > 100 ? 0 : i % 2 ? 0 : 0.5; /* now and then is not dead */
        most[1] = i > 120 ? 5 : 2;
        monitor_step s = healthy(i);
        s.blocks = 2;
        s.expert_least = least;
        s.expert_most = most;
        add(&w, &s);
        const monitor_alert *dead = find(&w, MONITOR_expert_dead);
        assert_true((dead != NULL) == (i == 150));
        if (dead) assert_int_equal(dead->block, 1);
        assert_true((find(&w, MONITOR_expert_saturated) != NULL) == (i == 170));
    }
    monitor_free(w.m);
}

static void scales_of_fp16_and_fp8(void **state) {
    watch w = watch_new(MONITOR_NORMAL, "", "");
    for (int i = 1; i <= 20; i++) {
        monitor_step s = healthy(i);
        s.loss_scale = 65536 / pow(2, i);
        add(&w, &s);
        assert_true((find(&w, MONITOR_loss_scale) != NULL) == (i == 14));
    }
    monitor_step s = healthy(21);
    s.fp8_saturated = 0.2;
    add(&w, &s);
    assert_non_null(find(&w, MONITOR_fp8_saturation));
    monitor_free(w.m);
}

/* ---- time ---------------------------------------------------------------------------------------------------- */
static void bottlenecks_after_the_first_span(void **state) {
    watch w = watch_new(MONITOR_NORMAL, "", "");
    for (int i = 1; i <= 150; i++) {
        monitor_step s = healthy(i);
        s.mfu = i <= 50 ? 0.01 : 0.2;
        s.comm_share = i <= 50 ? 1 : 0.4;
        s.data_share = i <= 50 ? 1 : i == 70 ? 0.9 : 0.01; /* one slow read is not a stall */
        add(&w, &s);
        assert_true((find(&w, MONITOR_mfu_low) != NULL) == (i == 100));
        assert_true((find(&w, MONITOR_comm_slow) != NULL) == (i == 100));
        assert_null(find(&w, MONITOR_data_stall));
    }
    monitor_free(w.m);
}

static void what_is_raised_elsewhere(void **state) {
    watch w = watch_new(MONITOR_NORMAL, "", "save_failed=stop");
    monitor_alert a;
    assert_true(monitor_raise(w.m, MONITOR_save_failed, 3, 0, &a));
    assert_int_equal(a.policy, MONITOR_STOP);
    assert_false(monitor_raise(w.m, MONITOR_save_failed, 4, 0, &a));
    monitor_clear(w.m, MONITOR_save_failed);
    assert_true(monitor_raise(w.m, MONITOR_save_failed, 5, 0, &a));
    monitor_free(w.m);
}

/* ---- saved and loaded ------------------------------------------------------------------------------------------ */
static monitor_step troubled(int64_t i) {
    monitor_step s = healthy(i);
    if (i % 97 == 60) s.loss *= 3;
    if (i % 61 == 40) s.grad_norm *= 8;
    if (i > 500) s.grad_norm *= pow(1.01, (double)i - 500);
    return s;
}

static void a_resumed_run_gets_the_same_alerts(void **state) {
    watch whole = watch_new(MONITOR_NORMAL, "", "grad_explosion=skip"), other = { 0 };
    for (int i = 1; i <= 700; i++) {
        if (i % 37 == 1) { /* through text, as in a manifest, and into another object */
            json_t *saved = monitor_save(whole.m);
            char *text = json_dumps(saved, 0);
            json_t *read = json_loads(text, 0, NULL);
            monitor_free(other.m);
            other = watch_new(MONITOR_NORMAL, "", "grad_explosion=skip");
            assert_ok(monitor_load(other.m, read, "test"));
            json_decref(saved);
            json_decref(read);
            free(text);
        }
        monitor_step s = troubled(i);
        add(&whole, &s);
        add(&other, &s);
        assert_int_equal(whole.n, other.n);
        for (int k = 0; k < whole.n; k++) {
            assert_int_equal(whole.found[k].id, other.found[k].id);
            assert_true(whole.found[k].limit == other.found[k].limit ||
                        isnan(whole.found[k].limit));
        }
        assert_true(monitor_skip_norm(whole.m, 1) == monitor_skip_norm(other.m, 1));
        assert_int_equal(monitor_spikes(whole.m), monitor_spikes(other.m));
    }
    assert_true(monitor_spikes(whole.m) >= 7);
    monitor_free(whole.m);
    monitor_free(other.m);
}

static void a_damaged_state_is_refused(void **state) {
    static const char *const bad[] = { "[]",
                                       "{\"losses\":5}",
                                       "{\"losses\":[1,\"x\"]}",
                                       "{\"rise_spans\":[1]}",
                                       "{\"spikes\":-1}",
                                       "{\"plateau\":[1,100]}",
                                       "{\"rise\":[null,1]}",
                                       "{\"active\":{\"loss_spike\":1.5}}" };
    watch w = watch_new(MONITOR_NORMAL, "", "");
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        json_t *o = json_loads(bad[i], 0, NULL);
        assert_non_null(o);
        assert_error(monitor_load(w.m, o, "manifest"), "manifest: the monitor's state");
        json_decref(o);
    }
    json_t *later = json_loads("{\"unknown\":1,\"active\":{\"of_another_version\":3}}", 0, NULL);
    assert_ok(monitor_load(w.m, later, "manifest"));
    json_decref(later);
    assert_ok(monitor_load(w.m, NULL, "manifest"));
    monitor_free(w.m);
}

/* ---- settings ---------------------------------------------------------------------------------------------------- */
static void lists_are_read_strictly(void **state) {
    static const char *const bad[][3] = {
        { "loss_spik=2", "", "did you mean" },
        { "loss_spike", "", "list of NAME=VALUE" },
        { "loss_spike=-1", "", "positive" },
        { "loss_spike=x", "", "positive" },
        { "nonfinite=3", "", "no threshold" },
        { "", "loss_spike=jump", "use one of log, skip" },
        { "", "plateau=skip", "use one of log, cool_down" },
        { "", "mfu_low=rollback", "log, stop" },
        { "", "=log", "no alert" },
    };
    monitor_settings s;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        err e = monitor_settings_read(MONITOR_NORMAL, bad[i][0], bad[i][1], &s);
        assert_non_null(e);
        if (!strstr(err_message(e), bad[i][2]) && !strstr(err_remedy(e), bad[i][2]))
            fail_msg("%s / %s", err_message(e), err_remedy(e));
        err_free(e);
    }
    assert_ok(monitor_settings_read(MONITOR_LOOSE, " loss_spike=2.5 ,plateau=off,",
                                    "loss_spike=stop, save_failed=stop", &s));
    assert_true(s.threshold[MONITOR_loss_spike] == 2.5 && s.off[MONITOR_plateau]);
    assert_int_equal(s.policy[MONITOR_loss_spike], MONITOR_STOP);
    assert_int_equal(s.window, 100);
    watch w = watch_new(MONITOR_NORMAL, "loss_spike=off", "");
    add_healthy(&w, 1, 100);
    monitor_step step = healthy(100);
    step.loss = 50;
    add(&w, &step);
    assert_null(find(&w, MONITOR_loss_spike));
    monitor_free(w.m);
}

/* ---- delivery -------------------------------------------------------------------------------------------------- */
static void a_command_gets_the_alert(void **state) {
    test_folder *f = *state;
    char command[256];
    snprintf(command, sizeof command, "cat >> %s", in_folder(f, "got"));
    monitor_sender *s;
    assert_ok(monitor_sender_new(&(monitor_sender_options){ command, "", 30 }, &s));
    json_t *alert = json_pack("{s:s, s:i}", "alert", "loss_spike", "step", 12);
    monitor_send(s, alert);
    monitor_send(s, alert);
    json_decref(alert);
    monitor_sender_free(s); /* what is queued is still delivered */
    char *got = folder_read(f, "got");
    assert_string_equal(
        got, "{\"alert\":\"loss_spike\",\"step\":12}{\"alert\":\"loss_spike\",\"step\":12}");
    free(got);
}

/* One that hangs, with children of its own, is ended; one that fails or reads nothing is a warning. */
static void a_command_is_bounded(void **state) {
    test_folder *f = *state;
    char command[256];
    const char *pipe = in_folder(f, "pipe"); /* which all of them hold open while they live */
    assert_int_equal(mkfifo(pipe, 0600), 0);
    int fd = open(pipe, O_RDONLY | O_NONBLOCK);
    snprintf(command, sizeof command, "exec 3> %s; echo up >&3; sleep 1000 | sleep 1000", pipe);
    monitor_sender *s;
    log_set_level(LOG_ERROR);
    json_t *alert = json_pack("{s:s}", "alert", "x");
    assert_ok(monitor_sender_new(&(monitor_sender_options){ command, "", 2 }, &s));
    monitor_send(s, alert);
    monitor_sender_free(s);
    char said[8];
    assert_int_equal(read(fd, said, sizeof said), 3);
    struct pollfd left = { .fd = fd, .events = POLLIN };
    assert_int_equal(poll(&left, 1, 60000), 1);       /* the kernel ends them in its own time */
    assert_int_equal(read(fd, said, sizeof said), 0); /* nobody is left to write to it */
    close(fd);
    assert_ok(monitor_sender_new(&(monitor_sender_options){ "exit 3", "", 5 }, &s));
    for (int i = 0; i < 40; i++) monitor_send(s, alert); /* more than are kept: dropped */
    monitor_sender_free(s);
    json_decref(alert);
    log_set_level(LOG_WARN);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(healthy_numbers_raise_nothing),
        cmocka_unit_test(waits_for_saves_are_judged_by_the_minute),
        cmocka_unit_test(a_spike_fires_once_and_again_after_a_while),
        cmocka_unit_test(nothing_is_judged_before_ten_losses),
        cmocka_unit_test(presets_and_deviations),
        cmocka_unit_test(a_new_level_is_one_alert),
        cmocka_unit_test(a_plateau_is_noted),
        cmocka_unit_test(what_is_not_finite),
        cmocka_unit_test(what_is_not_finite_in_fp16),
        cmocka_unit_test(gradients_that_explode),
        cmocka_unit_test(gradients_that_only_stand_out),
        cmocka_unit_test(a_sustained_rise),
        cmocka_unit_test(blocks_are_named),
        cmocka_unit_test(experts_that_stay_dead_or_saturated),
        cmocka_unit_test(scales_of_fp16_and_fp8),
        cmocka_unit_test(bottlenecks_after_the_first_span),
        cmocka_unit_test(what_is_raised_elsewhere),
        cmocka_unit_test(a_resumed_run_gets_the_same_alerts),
        cmocka_unit_test(a_damaged_state_is_refused),
        cmocka_unit_test(lists_are_read_strictly),
        cmocka_unit_test_setup_teardown(a_command_gets_the_alert, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(a_command_is_bounded, folder_setup, folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
