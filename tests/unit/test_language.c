/* fastText models: the probabilities of fastText itself (fixtures/language/make.py), and files that
 * are cut off or damaged. */
#include "support/test.h"

#include <jansson.h>
#include <math.h>
#include <unistd.h>

#include "curate/curate.h"
#include "io/io.h"

static const char *const files[] = { "softmax.bin", "tree.bin", "onevsall.bin", "pruned.ftz",
                                     "quantised.ftz" };
static const char *const names[] = { "de", "en", "es", "fr", "ru", "zh" };
enum { NAMES = COUNT_OF(names), TEXTS = 10 };

static char *fixture(const char *name) { return io_join(FIXTURES "/language", name); }

static language_model *open_model(const char *name) {
    char *path = fixture(name);
    language_model *m = NULL;
    err e = language_open(path, &m);
    if (e) fail_msg("%s", err_message(e));
    free(path);
    return m;
}

/* The texts, one a line, with \n and \t written so. @return [TEXTS], owned. */
static char **read_texts(void) {
    char *path = fixture("texts.txt"), *all = NULL, *rest = NULL;
    assert_null(io_read(path, 1 << 20, &all, NULL));
    char **texts = mem_alloc(TEXTS * sizeof *texts);
    char *line = strtok_r(all, "\n", &rest);
    for (int i = 0; i < TEXTS; i++, line = strtok_r(NULL, "\n", &rest)) {
        assert_non_null(line);
        str s = { 0 };
        for (const char *p = line; *p; p++) {
            bool escaped = p[0] == '\\' && (p[1] == 'n' || p[1] == 't');
            if (escaped) p++;
            char c = !escaped ? *p : *p == 'n' ? '\n' : '\t';
            str_add_bytes(&s, &c, 1);
        }
        texts[i] = s.text;
    }
    free(all);
    free(path);
    return texts;
}

static int index_of(const language_model *m, const char *name) {
    for (int i = 0; i < language_count(m); i++)
        if (strcmp(language_name(m, i), name) == 0) return i;
    fail_msg("no label %s", name);
    return -1;
}

static void test_probabilities(void **state) {
    char **texts = read_texts(), *path = fixture("expected.txt"), *all = NULL;
    assert_null(io_read(path, 1 << 20, &all, NULL));
    const char *p = all;
    for (size_t f = 0; f < COUNT_OF(files); f++) {
        language_model *m = open_model(files[f]);
        assert_int_equal(language_count(m), NAMES);
        language_scratch *scratch = language_scratch_new(m);
        for (int t = 0; t < TEXTS; t++) {
            char name[32];
            int number, used;
            assert_int_equal(sscanf(p, "%31s %d%n", name, &number, &used), 2);
            assert_string_equal(name, files[f]);
            assert_int_equal(number, t);
            p += used;
            const float *got =
                language_predict(m, scratch, (text_span){ texts[t], strlen(texts[t]) });
            for (int k = 0; k < NAMES; k++) {
                double want = strtod(p, (char **)&p), have = got[index_of(m, names[k])];
                if (fabs(have - want) > 1e-4)
                    fail_msg("%s, text %d, %s: %.6f, fastText says %.6f", name, t, names[k], have,
                             want);
            }
        }
        language_scratch_free(scratch);
        language_close(m);
    }
    for (int i = 0; i < TEXTS; i++) free(texts[i]);
    free(texts), free(all), free(path);
}

static void expect_filtered(const char *languages, const char *text, bool kept) {
    char *path = fixture("softmax.bin");
    filter_options o = filter_defaults();
    o.sets = "none";
    o.language_model = path;
    o.languages = languages;
    filter *f = NULL;
    assert_null(filter_new(&o, 1, &f));
    int64_t count[FILTER_COUNTER_COUNT] = { 0 };
    text_doc d = { .text = { text, strlen(text) } };
    text_verdict v = { .rule = TEXT_KEEP, .text = d.text, .count = count };
    assert_null(filter_judge(f, 0, 0, &d, &v));
    assert_int_equal(v.rule, kept ? TEXT_KEEP : FILTER_language);
    filter_free(f);
    free(path);
}

static void test_filter_by_language(void **state) {
    static const char english[] = "the dogs walk near the river", unsure[] = "   ";
    expect_filtered("en", english, true);
    expect_filtered("de,en", english, true);
    expect_filtered("de", english, false);
    expect_filtered(NULL, english, true);
    expect_filtered(NULL, unsure, false); /* no label above 0.65 */
    char *path = fixture("softmax.bin");
    filter_options o = filter_defaults();
    o.language_model = path;
    o.languages = "xx";
    filter *f = NULL;
    err e = filter_new(&o, 1, &f);
    assert_non_null(e);
    assert_string_equal(err_message(e), "--language: the model has no label \"xx\"");
    err_free(e);
    free(path);
}

/* Not io_write, and a new file each time: thousands of them need not reach the disk. */
static void write_bytes(const char *path, const char *bytes, size_t n) {
    unlink(path);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* Opens a file of these bytes and, if that works, predicts with it. @return whether it did. */
static bool try_bytes(const char *path, const char *bytes, size_t n) {
    write_bytes(path, bytes, n);
    language_model *m = NULL;
    err e = language_open(path, &m);
    assert_true((e != OK) == (m == NULL));
    if (e) return err_free(e), false;
    language_scratch *scratch = language_scratch_new(m);
    language_predict(m, scratch, (text_span){ "some text, \xD1\x82\xD0\xB5\xD1\x81\xD1\x82", 19 });
    language_scratch_free(scratch);
    language_close(m);
    return true;
}

static void test_damaged_files(void **state) {
    char path[] = "/tmp/ingot_language_XXXXXX";
    close(mkstemp(path));
    for (size_t f = 0; f < COUNT_OF(files); f++) {
        char *from = fixture(files[f]), *bytes = NULL;
        size_t n;
        assert_null(io_read(from, 1 << 20, &bytes, &n));
        assert_true(try_bytes(path, bytes, n));
        for (size_t cut = 0; cut < n; cut += 1 + cut / 16)
            if (try_bytes(path, bytes, cut)) fail_msg("%s cut at %zu was read", files[f], cut);
        rng_key key = rng_key_of(1, f);
        for (uint64_t i = 0; i < 400; i++) { /* most of them where the sizes are */
            size_t at = (size_t)rng_below(key, 2 * i, i % 4 ? 200 : n);
            char was = bytes[at];
            bytes[at] = (char)(was ^ (char)(1u << rng_below(key, 2 * i + 1, 8)));
            try_bytes(path, bytes, n);
            bytes[at] = was;
        }
        free(bytes), free(from);
    }
    unlink(path);
}

static void test_not_a_model(void **state) {
    char path[] = "/tmp/ingot_language_XXXXXX";
    close(mkstemp(path));
    assert_false(try_bytes(path, "", 0));
    assert_false(try_bytes(path, "hello, this is text and no model at all", 39));
    unlink(path);
    language_model *m = NULL;
    err e = language_open("/nowhere/model.bin", &m);
    assert_non_null(e);
    err_free(e);
}

/* ---- the model that is compiled in ------------------------------------------------------------ */

typedef struct judged {
    int n, correct, sure, sure_correct; /* sure: with a probability above 0.9 */
    double probability;                 /* of the likeliest language, summed */
} judged;

/* Predicts the language of each text of a fixture, {"text", "label"} per line. */
static judged judge_fixture(const char *name) {
    language_model *m = NULL;
    assert_ok(language_builtin(&m));
    assert_true(language_count(m) >= 120);
    language_scratch *s = language_scratch_new(m);
    char *path = fixture(name), *line = NULL;
    FILE *f = fopen(path, "r");
    size_t cap = 0;
    judged j = { 0 };
    assert_non_null(f);
    for (ssize_t len; (len = getline(&line, &cap, f)) > 0; j.n++) {
        json_t *row = json_loadb(line, (size_t)len, 0, NULL);
        const json_t *text = json_object_get(row, "text");
        int label = index_of(m, json_string_value(json_object_get(row, "label"))), best = 0;
        const float *p = language_predict(
            m, s, (text_span){ json_string_value(text), json_string_length(text) });
        for (int i = 1; i < language_count(m); i++)
            if (p[i] > p[best]) best = i;
        j.correct += best == label;
        j.probability += (double)p[best];
        j.sure += p[best] > 0.9f;
        j.sure_correct += p[best] > 0.9f && best == label;
        json_decref(row);
    }
    free(line);
    free(path);
    fclose(f);
    language_scratch_free(s);
    language_close(m);
    return j;
}

/* Texts of the Universal Declaration that it was not trained on, two per language. */
static void test_builtin_model(void **state) {
    judged j = judge_fixture("declaration.jsonl");
    assert_int_equal(j.n, 244);
    assert_true(j.correct >= 234); /* 240 when it was trained */
}

/* Sentences of up to eight words in 30 languages: most are recognized, and where they are not, the model does not claim
 * to be sure. */
static void test_builtin_model_on_short_texts(void **state) {
    judged j = judge_fixture("short.jsonl");
    assert_int_equal(j.n, 80);
    if (j.correct < 74 || j.sure_correct < j.sure || j.probability > j.correct + 2)
        fail_msg("%d of %d are right, %d of %d above 0.9, sum of probabilities %.1f", j.correct,
                 j.n, j.sure_correct, j.sure, j.probability);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_builtin_model),
        cmocka_unit_test(test_probabilities),
        cmocka_unit_test(test_builtin_model_on_short_texts),
        cmocka_unit_test(test_filter_by_language),
        cmocka_unit_test(test_damaged_files),
        cmocka_unit_test(test_not_a_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
