/* The screen of a run: it fits whatever size the terminal has, and shows what matters. */
#include "support/folder.h"

#include "report/report.h"

static series *write_run(test_folder *f, int steps, bool ranks) {
    str text = { 0 };
    for (int i = 1; i <= steps; i++)
        str_add(
            &text,
            "{\"step\":%d,\"tokens\":%d,\"time\":%d,\"loss\":%g,\"grad_norm\":1,\"lr\":0.001,\"tok_s\":"
            "2000,\"mfu\":0.4,\"step_s\":0.5,\"data_s\":0.05,\"compute_s\":0.3,\"optim_s\":0.1%s}\n",
            i, i * 10, 1000 + i, 5.0 / i,
            ranks && i % 10 == 0 ? ",\"ranks\":{\"busy_s\":[0.2,0.4,0.2],\"wait_s\":[0.2,0,0.2],"
                                   "\"ratio\":[1,2,1]}"
                                 : "");
    folder_write(f, "metrics.jsonl", text.len ? text.text : "");
    str_free(&text);
    series *s = series_new(f->path);
    assert_ok(series_update(s));
    return s;
}

/* Columns of a line; escapes take none. */
static int columns_of(const char *line, size_t n) {
    int columns = 0;
    for (size_t i = 0; i < n; i++) {
        if (line[i] == '\033') {
            while (i < n && line[i] != 'm') i++;
            continue;
        }
        columns += ((unsigned char)line[i] & 0xc0) != 0x80;
    }
    return columns;
}

static void assert_fits(const run_screen *s, const str *text) {
    int lines = 0;
    for (const char *at = text->text; *at; lines++) {
        size_t n = strcspn(at, "\n");
        int columns = columns_of(at, n);
        if (columns > s->width) fail_msg("%d columns, not %d: %.*s", columns, s->width, (int)n, at);
        at += n + 1;
    }
    assert_int_equal(lines, s->height);
}

static str draw_screen(run_screen s) {
    str text = { 0 };
    report_draw_screen(&s, &text);
    assert_fits(&s, &text);
    return text;
}

static void every_size_fits(void **state) {
    series *all = write_run(*state, 200, true);
    json_t *events = json_pack("[{s:s, s:i, s:s, s:s}]", "event", "alert", "step", 90, "alert",
                               "loss_spike", "message",
                               "the loss is \xc3\xbc"
                               "ber \x1b[2J all");
    run_status status = status_none();
    static const int sizes[][2] = { { 1, 1 },   { 10, 3 },   { 40, 5 },   { 80, 8 },
                                    { 80, 24 }, { 132, 50 }, { 400, 100 } };
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        for (int style = 0; style < 4; style++) {
            run_screen s = { "runs/a",    all,         events,    &status,  5000,
                             sizes[i][0], sizes[i][1], style & 1, style & 2 };
            str text = draw_screen(s);
            if (!(style & 1)) assert_null(strchr(text.text, '\033'));
            assert_null(strstr(text.text, "\x1b[2J")); /* of a message */
            str_free(&text);
        }
    json_decref(events);
    series_free(all);
}

static void what_matters_is_shown(void **state) {
    series *all = write_run(*state, 200, true);
    json_t *events = json_pack("[{s:s, s:i, s:s, s:s}]", "event", "alert", "step", 90, "alert",
                               "loss_spike", "message", "the loss is 9");
    run_status status = status_none();
    status = (run_status){ .state = RUN_RUNNING,
                           .step = 200,
                           .steps = 800,
                           .tokens = 2000,
                           .total_tokens = 8000,
                           .eta_s = 300,
                           .checkpoint = 150,
                           .alerts = 1 };
    run_screen s = { "runs/a", all, events, &status, 1230, 100, 30, false, false };
    str text = draw_screen(s);
    static const char *const parts[] = {
        "runs/a  running: step 200 of 800 (25 %), 2.00 k of 8.00 k tokens, 5m 00s left",
        "loss 0.0250",
        "MFU 40.0 %",
        "data 10.0 %",
        "waits 40.0 %",
        "compute 20.0 %",
        "ranks             0 .#.",
        "slowest: rank 1, 2.00 of the median",
        "step 90: loss_spike: the loss is 9",
        "*"
    };
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        if (!strstr(text.text, parts[i])) fail_msg("no \"%s\" in\n%s", parts[i], text.text);
    str_free(&text);
    json_decref(events);
    series_free(all);
}

static void how_it_ended_is_shown(void **state) {
    series *all = write_run(*state, 20, false);
    json_t *none = json_array();
    run_status status = status_none();
    status.state = RUN_DIED;
    status.checkpoint = 15;
    snprintf(status.cause, sizeof status.cause, "rank 3 ran out of memory");
    snprintf(status.remedy, sizeof status.remedy, "halve the batch");
    str text = draw_screen((run_screen){ "runs/a", all, none, &status, 9e9, 100, 24, false, true });
    assert_non_null(strstr(text.text, "died: step 0, last checkpoint: step 15"));
    assert_non_null(strstr(text.text, "rank 3 ran out of memory; halve the batch"));
    assert_null(strstr(text.text, " ago")); /* it is over, not late */
    str_free(&text);
    /* what is longer than the screen is wide continues below */
    status = (run_status){ .state = RUN_DIED,
                           .step = 200,
                           .steps = 800,
                           .tokens = 2000,
                           .total_tokens = 8000,
                           .checkpoint = 150,
                           .restarts = 2,
                           .alerts = 3 };
    snprintf(status.cause, sizeof status.cause,
             "process 1234 was killed or ended without a message");
    snprintf(status.remedy, sizeof status.remedy,
             "train.log has its last lines; the same command continues from the last checkpoint");
    text = draw_screen((run_screen){ "runs/a", all, none, &status, 9e9, 80, 24, false, true });
    static const char *const parts[] = {
        "\n               last checkpoint: step 150, 2 restarts, 3 alerts\n",
        "continues from the\n               last checkpoint\n"
    };
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        if (!strstr(text.text, parts[i])) fail_msg("no \"%s\" in\n%s", parts[i], text.text);
    str_free(&text);
    json_decref(none);
    series_free(all);
}

/* Waits and the rest are measured over different steps: their sum may exceed a step. */
static void shares_of_a_step_add_up(void **state) {
    rng_key key = rng_key_of(7, 0);
    uint64_t drawn = 0;
    json_t *none = json_array();
    run_status status = status_none();
    for (int round = 0; round < 50; round++) {
        str line = { 0 };
        for (int i = 1; i <= 10; i++)
            str_add(&line,
                    "{\"step\":%d,\"loss\":1,\"step_s\":%g,\"data_s\":%g,\"compute_s\":%g,"
                    "\"optim_s\":%g,\"ranks\":{\"wait_s\":[%g]}}\n",
                    i, (double)rng_uniform(key, drawn), (double)rng_uniform(key, drawn + 1),
                    (double)rng_uniform(key, drawn + 2), (double)rng_uniform(key, drawn + 3),
                    (double)rng_uniform(key, drawn + 4)),
                drawn += 5;
        folder_write(*state, "metrics.jsonl", line.text);
        str_free(&line);
        series *all = series_new(((test_folder *)*state)->path);
        assert_ok(series_update(all));
        str text =
            draw_screen((run_screen){ "runs/a", all, none, &status, 0, 120, 24, false, false });
        double sum = 0;
        const char *at = strstr(text.text, " s:");
        size_t n = at ? strcspn(at, "\n") : 0;
        for (const char *p = at; p && p < at + n; p++)
            if (!strncmp(p, " %", 2)) {
                const char *from = p;
                while (from[-1] != ' ') from--;
                sum += strtod(from, NULL);
            }
        if (!(sum > 99.99 && sum < 100.01)) fail_msg("the shares sum to %g:\n%s", sum, text.text);
        str_free(&text);
        series_free(all);
    }
    json_decref(none);
}

static void a_run_without_steps_is_shown(void **state) {
    series *all = write_run(*state, 0, false);
    json_t *none = json_array();
    run_status status = status_none();
    str text = draw_screen((run_screen){ "runs/a", all, none, &status, 0, 60, 12, false, true });
    assert_non_null(strstr(text.text, "no steps yet"));
    assert_non_null(strstr(text.text, "none"));
    str_free(&text);
    json_decref(none);
    series_free(all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_size_fits, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(what_matters_is_shown, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(how_it_ended_is_shown, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(shares_of_a_step_add_up, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(a_run_without_steps_is_shown, folder_setup,
                                        folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
