/* metrics.jsonl read back: as it grows, across a resume, and when it is damaged. */
#include "support/folder.h"

#include <math.h>

#include "observe/observe.h"
#include "observe/series.h"

static void append(test_folder *f, const char *text) {
    int fd;
    const char *path = in_folder(f, "metrics.jsonl");
    assert_ok(io_append_open(path, &fd));
    assert_ok(io_append(fd, path, text, strlen(text)));
    close(fd);
}

static double value_at(const series *s, const char *name, int64_t row) {
    const series_column *c = series_find(s, name);
    if (!c) fail_msg("no column %s", name);
    return series_in_row(c, row);
}

static void lines_become_columns(void **state) {
    test_folder *f = *state;
    series *s = series_new(f->path);
    assert_ok(series_update(s)); /* nothing there yet */
    assert_int_equal(series_rows(s), 0);
    append(f, "{\"step\":1,\"tokens\":123456789012,\"loss\":5.5}\n{\"step\":2,\"loss\":null,");
    assert_ok(series_update(s));
    assert_int_equal(series_rows(s), 1);
    append(f, "\"val_loss\":4,\"sources\":{\"a b\":{\"tokens\":3}},\"blocks\":{\"n\":[1,2.5]}}\n");
    assert_ok(series_update(s));
    assert_int_equal(series_rows(s), 2);
    assert_true(value_at(s, "tokens", 0) == 123456789012.0);
    assert_true(isnan(value_at(s, "tokens", 1)) && isnan(value_at(s, "loss", 1)));
    assert_true(isnan(value_at(s, "val_loss", 0)) && value_at(s, "val_loss", 1) == 4);
    assert_true(value_at(s, "sources.a b.tokens", 1) == 3 && value_at(s, "blocks.n.1", 1) == 2.5);
    assert_true(series_step(s, series_find(s, "val_loss"), 0) == 2);
    assert_null(series_find(s, "nothing"));
    series_free(s);
}

static void a_resume_is_followed(void **state) {
    test_folder *f = *state;
    series *s = series_new(f->path);
    append(f, "{\"step\":1,\"loss\":1}\n{\"step\":2,\"loss\":2}\n{\"step\":3,\"loss\":3}\n");
    assert_ok(series_update(s));
    observe *o = NULL;
    assert_ok(observe_open(&(observe_options){ .dir = f->path, .first_step = 3 }, &o));
    observe_close(o);
    append(f, "{\"step\":3,\"loss\":30}\n{\"step\":4,\"loss\":40}\n");
    assert_ok(series_update(s));
    assert_int_equal(series_rows(s), 4);
    assert_true(value_at(s, "loss", 2) == 30);
    series_free(s);
}

enum { STEPS = 120000, MOST_ROWS = 1024, SPIKE = 777, EVERY = 2000, RECENT = 256, PART = 10000 };
static double planted_loss(int step) {
    if (step % 5003 == 0) return NAN;
    return step % SPIKE == 0 ? 90.0 + step / (double)SPIKE : 3 + sin(step) + 100.0 / step;
}

/* Compares each point with the steps that it covers: those after `first` and after the point before, up to its own. */
static void check_points(const series_point *p, int n, int first, int last) {
    int step = first;
    for (int i = 0; i < n; i++) {
        double low = INFINITY, high = -INFINITY, sum = 0;
        int64_t count = 0;
        for (; step <= last && step <= (int)p[i].step; step++) {
            double v = planted_loss(step);
            if (!isfinite(v)) continue;
            low = fmin(low, v);
            high = fmax(high, v);
            sum += v;
            count++;
        }
        assert_int_equal(p[i].n, count);
        if (!count) continue;
        /* the file has six digits of each */
        assert_true(fabs(p[i].low - low) < 1e-3 && fabs(p[i].high - high) < 1e-3);
        assert_true(fabs(p[i].mean - sum / (double)count) < 1e-3);
    }
    assert_int_equal(step, last + 1);
}

static void check_held_out(const series *s, int steps) {
    const series_column *held_out = series_find(s, "val_loss");
    assert_int_equal(held_out->n, steps / EVERY);
    for (int64_t i = 0; i < held_out->n; i++)
        assert_true(series_value(held_out, i) == (double)(i + 1) &&
                    series_step(s, held_out, i) == (double)(EVERY * (i + 1)));
}

/* A run of many steps in little memory: its past is coarser, but every point has the mean and the extremes of just the steps that
 * it covers, held-out losses keep their steps, and recent steps are complete. */
static void memory_is_bounded(void **state) {
    test_folder *f = *state;
    series_point p[300];
    series *s = series_new(f->path);
    series_set_most(s, MOST_ROWS, 1 << 20);
    for (int part = 0; part < STEPS; part += PART) {
        str text = { 0 };
        for (int i = part + 1; i <= part + PART; i++) {
            str_add(&text, "{\"step\":%d,\"tokens\":%d,\"loss\":", i, 10 * i);
            str_add(&text, isnan(planted_loss(i)) ? "null" : "%.6g", planted_loss(i));
            if (i % EVERY == 0) str_add(&text, ",\"val_loss\":%d", i / EVERY);
            str_add(&text, "}\n");
        }
        append(f, text.text);
        str_free(&text);
        assert_ok(series_update(s));
        assert_true(series_rows(s) < MOST_ROWS && series_rows(s) > MOST_ROWS / 4);
        for (int i = 0; i < series_columns(s); i++)
            assert_true(series_at(s, i)->capacity <= MOST_ROWS);
        check_points(p, series_points(s, series_find(s, "loss"), 0, 1e9, 300, p), 1, part + PART);
        check_held_out(s, part + PART);
    }
    const series_column *step = series_find(s, "step"), *loss = series_find(s, "loss");
    for (int64_t i = 0; i < loss->n; i++) {
        double at = series_step(s, loss, i);
        assert_true(series_in_row(series_find(s, "tokens"), series_row(loss, i)) == 10 * at);
        assert_true(i == 0 || at > series_step(s, loss, i - 1));
    }
    for (int64_t i = 0; i < RECENT; i++)
        assert_true(series_value(step, step->n - 1 - i) == (double)(STEPS - i));
    int zoomed = series_points(s, loss, STEPS - RECENT + 1, STEPS, 300, p);
    assert_int_equal(zoomed, RECENT); /* a point per step */
    check_points(p, zoomed, STEPS - RECENT + 1, STEPS);
    series_free(s);
}

/* A column by itself has all steps. */
static void one_column_is_read_alone(void **state) {
    test_folder *f = *state;
    append(
        f,
        "{\"step\":1,\"loss\":1,\"a\":{\"loss\":5}}\n{\"step\":2,\"lr\":1}\n{\"step\":3,\"loss\":3}\n");
    series *s = series_new(f->path);
    series_set_only(s, "loss");
    assert_ok(series_update(s));
    assert_int_equal(series_columns(s), 2);
    assert_int_equal(series_rows(s), 3);
    assert_true(value_at(s, "loss", 0) == 1 && isnan(value_at(s, "loss", 1)) &&
                value_at(s, "loss", 2) == 3);
    series_free(s);
}

/* Parts follow one another through the file; after a resume replaced it, there is no next one. */
static void parts_replace_one_another(void **state) {
    test_folder *f = *state;
    str text = { 0 };
    for (int i = 1; i <= STEPS; i++) str_add(&text, "{\"step\":%d,\"a\":%d,\"b\":1}\n", i, 2 * i);
    append(f, text.text);
    series *s = series_new(f->path);
    series_set_only(s, "a");
    int64_t rows = 0, most = 0;
    for (bool more = true; more;) {
        assert_ok(series_next_part(s, &more));
        for (int64_t i = 0; i < series_rows(s); i++)
            assert_true(value_at(s, "step", i) == (double)(rows + i + 1) &&
                        value_at(s, "a", i) == 2 * (double)(rows + i + 1));
        rows += series_rows(s);
        most = MAX(most, series_rows(s));
    }
    assert_int_equal(rows, STEPS);
    assert_true(most < STEPS * 3 / 4);
    series_free(s);

    s = series_new(f->path);
    bool more;
    assert_ok(series_next_part(s, &more));
    assert_true(more && series_rows(s) > 0);
    folder_write(f, "metrics.jsonl.new", "{\"step\":1,\"a\":7}\n");
    char *from = strdup(in_folder(f, "metrics.jsonl.new"));
    assert_int_equal(rename(from, in_folder(f, "metrics.jsonl")), 0);
    free(from);
    assert_ok(series_next_part(s, &more));
    assert_true(!more && series_rows(s) == 0);
    series_free(s);
    str_free(&text);
}

static void damage_is_left_out(void **state) {
    static const char *const bad[] = { "[1]",
                                       "{\"step\":9",
                                       "{\"step\":9}x",
                                       "{\"step\":\"9\"}",
                                       "{\"loss\":1}",
                                       "{\"step\":1}", /* does not rise */
                                       "{\"step\":9,,}",
                                       "{\"step\":9,\"a\":nan}",
                                       "{\"step\":0x9}",
                                       "{\"step\":9,\"a\":1e}",
                                       "{\"step\":9,\"a\":1e+}",
                                       "{\"step\":9,\"a\":-inf}",
                                       "{\"step\":9,\"a\":{\"b\":{\"c\":{\"d\":{\"e\":1}}}}}",
                                       "{\"step\":9,\"a\\",
                                       "\"\\",
                                       "\x01\xff" };
    test_folder *f = *state;
    series *s = series_new(f->path);
    append(f, "{\"step\":1,\"loss\":1}\n");
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        append(f, bad[i]);
        append(f, "\n");
    }
    append(f, "\n{ \"step\" : 2 , \"x\" : [ ] , \"t\" : true , \"s\" : \"}\" , \"loss\" : 2 }\r\n");
    assert_ok(series_update(s));
    assert_int_equal(series_skipped(s), COUNT_OF(bad));
    assert_int_equal(series_rows(s), 2);
    assert_true(value_at(s, "loss", 1) == 2);
    assert_null(series_find(s, "a")); /* of lines that were left out alone */
    series_free(s);
}

/* A key that is there twice, and a byte that ends a C string within one. */
static void keys_are_one_text(void **state) {
    static const char zero[] = "{\"step\":2,\"loss\\\0.and.what.follows\":5}\n"
                               "{\"step\":3,\"loss\0.and.what.follows\":5}\n";
    test_folder *f = *state;
    series *s = series_new(f->path);
    append(f, "{\"step\":1,\"loss\":1,\"step\":9}\n");
    const char *path = in_folder(f, "metrics.jsonl");
    int fd;
    assert_ok(io_append_open(path, &fd));
    assert_ok(io_append(fd, path, zero, sizeof zero - 1));
    close(fd);
    append(f, "{\"step\":4,\"loss\":4}\n");
    assert_ok(series_update(s));
    assert_int_equal(series_rows(s), 2);
    assert_int_equal(series_skipped(s), 2);
    assert_int_equal(series_columns(s), 2);
    assert_true(value_at(s, "step", 0) == 1 && value_at(s, "step", 1) == 4);
    series_free(s);
}

/* Every number is the double nearest to what is written. */
static void numbers_are_exact(void **state) {
    static const char *const odd[] = {
        "0",           "-0.0",  "0.1",    "1e22",     "1e23",
        "5e-324",      "1e-22", "3e-23",  "1e309",    "9007199254740993",
        "0.000000001", "1E+05", "1e-005", "-2.5e-10", "123456789012345678901",
        "1e0000000001"
    };
    test_folder *f = *state;
    str text = { 0 };
    enum { RANDOM = 2000 };
    int n = (int)COUNT_OF(odd) + RANDOM;
    char(*written)[48] = mem_alloc((size_t)n * sizeof *written);
    for (int i = 0; i < n; i++) {
        uint64_t bits = ((uint64_t)i * 0x9e3779b97f4a7c15u) >> 2; /* below 2: no infinities */
        double x;
        memcpy(&x, &bits, sizeof x);
        int k = i - (int)COUNT_OF(odd);
        if (k < 0)
            snprintf(written[i], sizeof *written, "%s", odd[i]);
        else
            snprintf(written[i], sizeof *written, k % 2 ? "%.9g" : "%.17g", k % 3 ? x : sqrt(k));
        str_add(&text, "{\"step\":%d,\"loss\":%s}\n", i + 1, written[i]);
    }
    append(f, text.text);
    series *s = series_new(f->path);
    assert_ok(series_update(s));
    assert_int_equal(series_rows(s), n);
    for (int i = 0; i < n; i++) {
        double expected = strtod(written[i], NULL), got = value_at(s, "loss", i);
        if (memcmp(&expected, &got, sizeof got)) fail_msg("%s was read as %.17g", written[i], got);
    }
    series_free(s);
    str_free(&text);
    free(written);
}

/* Names that are too long or too many are not kept; the line is. */
static void columns_are_bounded(void **state) {
    test_folder *f = *state;
    str line = { 0 };
    str_add(&line, "{\"step\":1,\"%0300d\":1", 7);
    for (int i = 0; i < 20000; i++) str_add(&line, ",\"k%d\":%d", i, i);
    str_add(&line, "}\n{\"step\":2,\"k5\":7}\n");
    append(f, line.text);
    series *s = series_new(f->path);
    assert_ok(series_update(s));
    assert_int_equal(series_rows(s), 2);
    assert_int_equal(series_columns(s), 1 << 14);
    assert_true(value_at(s, "k5", 1) == 7);
    series_free(s);
    str_free(&line);
}

static void points_keep_extremes(void **state) {
    test_folder *f = *state;
    str text = { 0 };
    for (int i = 1; i <= 10000; i++)
        str_add(&text, "{\"step\":%d,\"loss\":%s}\n", i, i == 7777 ? "99" : i == 50 ? "null" : "1");
    append(f, text.text);
    series *s = series_new(f->path);
    series_point p[100];
    assert_ok(series_update(s));
    const series_column *loss = series_find(s, "loss");
    assert_int_equal(series_points(s, loss, 0, 1e9, 100, p), 100);
    assert_true(p[77].high == 99 && p[77].low == 1 && p[77].step == 7800);
    assert_int_equal(p[0].n, 99);
    assert_int_equal(series_points(s, loss, 7770, 7779, 100, p), 10);
    assert_true(p[7].high == 99 && p[7].step == 7777);
    assert_int_equal(series_points(s, loss, 20000, 30000, 100, p), 0);
    assert_int_equal(series_points(s, loss, 50, 50, 100, p), 1);
    assert_true(isnan(p[0].mean));
    series_free(s);
    str_free(&text);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_setup, folder_teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(lines_become_columns),      IN_FOLDER(a_resume_is_followed),
        IN_FOLDER(memory_is_bounded),         IN_FOLDER(damage_is_left_out),
        IN_FOLDER(numbers_are_exact),         IN_FOLDER(columns_are_bounded),
        IN_FOLDER(points_keep_extremes),      IN_FOLDER(one_column_is_read_alone),
        IN_FOLDER(parts_replace_one_another), IN_FOLDER(keys_are_one_text)
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
