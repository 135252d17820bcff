/* Reports: what is planted in a run's metrics is found, and nothing else. */
#include "support/folder.h"

#include <math.h>

#include "report/report.h"

typedef struct planted {
    int spike, stall;       /* steps; 0: none */
    int flat_from, up_from; /* the loss stops falling; it rises */
    bool nan_at_end;
} planted;

/* A loss that falls with a little noise that is the same every time. */
static double loss_at(const planted *p, int i) {
    int falling = p->flat_from ? MIN(i, p->flat_from) : i;
    double v = 3 + 3 * exp(-falling / 150.0) + 0.01 * sin(i * 1.7);
    if (p->up_from && i > p->up_from) v += 0.02 * (i - p->up_from);
    return i == p->spike ? v + 2 : v;
}

static run_report *report_of(test_folder *f, const char *name, planted p, int n) {
    str text = { 0 };
    char path[64];
    for (int i = 1; i <= n; i++) {
        str_add(&text, "{\"step\":%d,\"tokens\":%d,\"windows\":%d,\"loss\":", i, 100 * i, 8 * i);
        str_add(&text, p.nan_at_end && i == n ? "null" : "%.6f", loss_at(&p, i));
        str_add(
            &text,
            ",\"is_spike\":%d,\"grad_norm\":%g,\"lr\":0.1,\"tok_s\":1000,\"step_s\":%g,\"data_s\":%g,"
            "\"sources\":{\"a\":{\"loss\":3},\"b\":{\"loss\":%g}}}\n",
            i == p.spike, i == p.spike ? 9.0 : 1.0, i == p.stall ? 1.0 : 0.1,
            i == p.stall ? 0.9 : 0.001, i == p.spike ? 6.0 : 3.0);
    }
    snprintf(path, sizeof path, "%s", name);
    assert_ok(io_make_dirs(in_folder(f, path)));
    snprintf(path, sizeof path, "%s/metrics.jsonl", name);
    folder_write(f, path, text.text);
    str_free(&text);
    run_report *r = NULL;
    assert_ok(report_read(in_folder(f, name), &r));
    return r;
}

static bool finds(const run_report *r, const char *words) {
    for (int i = 0; i < r->findings; i++)
        if (!strcmp(r->finding[i].name, words) || strstr(r->finding[i].evidence, words))
            return true;
    return false;
}

static void a_good_run_has_no_findings(void **state) {
    run_report *r = report_of(*state, "a", (planted){ 0 }, 300);
    assert_int_equal(r->rows, 300);
    assert_int_equal(r->windows, 15);
    assert_int_equal(r->spikes, 0);
    assert_int_equal(r->stalls, 0);
    assert_int_equal(r->findings, 0);
    assert_false(r->diverged);
    assert_int_equal(r->phase[0].kind, PHASE_FAST);
    assert_true(r->tokens == 30000 && r->tok_s == 1000);
    report_free(r);
}

static void spikes_are_found_with_data_and_cause(void **state) {
    run_report *r = report_of(*state, "a", (planted){ .spike = 220 }, 400);
    assert_int_equal(r->spikes, 1);
    const loss_spike *s = &r->spike[0];
    assert_true(s->step == 220 && s->from_sequence == 8 * 219 && s->to_sequence == 8 * 220);
    assert_true(s->loss > s->mean + 3 * s->deviation);
    assert_string_equal(s->cause, "source b at 2.0x its loss; gradient norm 9.0x its median");
    report_free(r);
}

/* The alerts of a run name the documents of a spike, and those of several spikes are compared. */
static void spikes_are_found_with_documents(void **state) {
    static const struct {
        const char *events, *cause, *evidence;
    } cases[] = {
        { "{\"event\":\"alert\",\"alert\":\"loss_spike\",\"step\":220,\"documents\":[{\"sequence\":1755,\"source\":\"b\","
          "\"document\":17,\"loss\":9.25},{\"sequence\":1756,\"source\":\"a\",\"document\":3}]}\n"
          "{\"event\":\"alert\",\"alert\":\"grad_explosion\",\"step\":220,\"documents\":[{\"source\":\"a\"}]}\n",
          "gradient norm 9.0x its median; worst sequence: document 17 of b, loss 9.25",
          "document 17 of b" },
        { "{\"event\":\"alert\",\"alert\":\"loss_spike\",\"step\":220,\"documents\":[{\"source\":\"b\"}]}\n",
          "median; worst sequence: b", "worst sequence: b" },
        { "{\"event\":\"alert\",\"alert\":\"loss_spike\",\"step\":221,\"documents\":[{\"source\":\"b\"}]}\n",
          "its median", "its median" },
        { "{\"event\":\"alert\",\"step\":220,\"documents\":[]}\n{\"event\":\"alert\",\"step\":220,\"documents\":7}\n",
          "its median", "its median" },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        test_folder *f = *state;
        assert_ok(io_make_dirs(in_folder(f, "d")));
        folder_write(f, "d/events.jsonl", cases[i].events);
        run_report *r = report_of(f, "d", (planted){ .spike = 220 }, 400);
        assert_int_equal(r->spikes, 1);
        if (!str_ends(r->spike[0].cause, cases[i].cause)) fail_msg("%s", r->spike[0].cause);
        assert_true(finds(r, cases[i].evidence));
        report_free(r);
    }
}

static void stagnation_and_divergence_are_found(void **state) {
    run_report *r = report_of(*state, "flat", (planted){ .flat_from = 300 }, 800);
    assert_int_equal(r->phase[r->phases - 1].kind, PHASE_STAGNANT);
    assert_true(r->phase[r->phases - 1].from > 300 && r->phase[r->phases - 1].from <= 401);
    assert_true(finds(r, "plateau"));
    assert_false(r->diverged);
    report_free(r);
    r = report_of(*state, "up", (planted){ .up_from = 400 }, 800);
    assert_true(r->diverged);
    assert_int_equal(r->phase[r->phases - 1].kind, PHASE_RISING);
    assert_true(finds(r, "diverged"));
    report_free(r);
    r = report_of(*state, "nan", (planted){ .nan_at_end = true }, 50);
    assert_true(r->diverged && r->not_finite == 1);
    assert_true(finds(r, "not_finite"));
    report_free(r);
}

static void stalls_are_found(void **state) {
    run_report *r = report_of(*state, "a", (planted){ .stall = 77 }, 300);
    assert_int_equal(r->stalls, 1);
    assert_true(r->stall[0].step == 77 && r->stall[0].seconds == 1);
    assert_true(fabs(r->stalled_s - 0.9) < 1e-6);
    assert_true(finds(r, "1 steps took over 3x"));
    report_free(r);
}

static void runs_are_compared(void **state) {
    run_report *a = report_of(*state, "a", (planted){ 0 }, 100);
    run_report *b = report_of(*state, "b", (planted){ 0 }, 100);
    run_report *other = report_of(*state, "other", (planted){ .spike = 60 }, 100);
    run_report *short_one = report_of(*state, "short", (planted){ 0 }, 99);
    assert_ok(report_same_loss((const run_report *const[]){ a, b }, 2, 0));
    assert_error(report_same_loss((const run_report *const[]){ a, b, other }, 3, 1e-5),
                 "step 60: ");
    assert_error(report_same_loss((const run_report *const[]){ a, short_one }, 2, 1), "99");
    run_report *all[] = { a, b, other, short_one };
    for (size_t i = 0; i < COUNT_OF(all); i++) report_free(all[i]);
}

/* A folder may have any name; none gets into the page as markup, nor moves a cursor. */
/* 720 W for 100 steps of 5 seconds are 0.1 kWh. */
static void energy_is_integrated(void **state) {
    str text = { 0 };
    for (int i = 1; i <= 100; i++)
        str_add(
            &text,
            "{\"step\":%d,\"tokens\":%d,\"loss\":2,\"tok_s\":9,\"step_s\":5,\"gpu_power\":720}\n",
            i, i);
    folder_write(*state, "metrics.jsonl", text.text);
    str_free(&text);
    run_report *r = NULL;
    assert_ok(report_read(((test_folder *)*state)->path, &r));
    assert_true(fabs(r->energy_kwh - 0.1) < 1e-9);
    str out = { 0 };
    report_write((const run_report *const[]){ r }, 1, REPORT_TEXT, 80, &out);
    assert_non_null(strstr(out.text, "energy of the GPU of rank 0: 0.1 kWh"));
    str_free(&out);
    report_free(r);
}

static void names_are_escaped(void **state) {
    run_report *r = report_of(*state, "<script>|\033[2J&", (planted){ .spike = 50 }, 200);
    const report_format formats[] = { REPORT_TEXT, REPORT_MARKDOWN, REPORT_HTML };
    for (size_t i = 0; i < COUNT_OF(formats); i++) {
        str text = { 0 };
        report_write((const run_report *const[]){ r, r }, 2, formats[i], 80, &text);
        assert_null(strchr(text.text, '\033'));
        if (formats[i] == REPORT_HTML) assert_null(strstr(text.text, "<script"));
        if (formats[i] == REPORT_MARKDOWN) assert_non_null(strstr(text.text, "\\<script>\\|"));
        str_free(&text);
    }
    report_free(r);
}

static void damaged_and_empty_files_are_errors_or_left_out(void **state) {
    test_folder *f = *state;
    run_report *r = NULL;
    assert_error(report_read(in_folder(f, "none"), &r), "no metrics.jsonl");
    assert_ok(io_make_dirs(in_folder(f, "d")));
    folder_write(f, "d/metrics.jsonl", "junk\n{\"step\":1}\n");
    assert_error(report_read(in_folder(f, "d"), &r), "no metrics.jsonl");
    folder_write(f, "d/metrics.jsonl", "junk\n{\"step\":1,\"loss\":null}\n");
    assert_ok(report_read(in_folder(f, "d"), &r));
    str text = { 0 };
    report_write((const run_report *const[]){ r }, 1, REPORT_TEXT, 80, &text);
    assert_non_null(strstr(text.text, "1 lines of metrics.jsonl are damaged"));
    str_free(&text);
    report_free(r);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_setup, folder_teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_good_run_has_no_findings),
        IN_FOLDER(spikes_are_found_with_data_and_cause),
        IN_FOLDER(spikes_are_found_with_documents),
        IN_FOLDER(stagnation_and_divergence_are_found),
        IN_FOLDER(stalls_are_found),
        IN_FOLDER(energy_is_integrated),
        IN_FOLDER(runs_are_compared),
        IN_FOLDER(names_are_escaped),
        IN_FOLDER(damaged_and_empty_files_are_errors_or_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
