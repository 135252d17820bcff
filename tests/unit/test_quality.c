/* Learned quality: training from labelled documents, AUC, keeping by label, annotations and conditions on them. */
#include "support/filter.h"
#include "support/folder.h"

#include <jansson.h>
#include <math.h>

/* ---- a corpus of two kinds of text, which share most of their words ---- */

static const char *const GOOD[] = { "theorem", "proof", "lemma", "therefore", "evidence" };
static const char *const BAD[] = { "click", "cheap", "casino", "winner", "subscribe" };
static const char *const COMMON[] = { "the", "and", "of", "to", "it", "was", "that", "with" };

static void write_corpus(void *folder, int n) {
    str s = { 0 };
    rng_key key = rng_key_of(3, 0);
    for (int i = 0; i < n; i++) {
        bool good = rng_below(key, (uint64_t)i * 100, 2);
        str_add(&s, "{\"label\": \"%s\", \"id\": \"%d\", \"text\": \"", good ? "good" : "bad", i);
        for (int w = 0; w < 30; w++) {
            uint64_t at = (uint64_t)i * 100 + 1 + (uint64_t)w;
            bool own = rng_below(key, at, 5) == 0;
            const char *const *words = !own ? COMMON : good ? GOOD : BAD;
            str_add(&s, "%s ", words[rng_below(key, at + 50, own ? 5 : 8)]);
        }
        str_add(&s, "\"}\n");
    }
    folder_write_bytes(folder, "labelled.jsonl", s.text, s.len);
    str_free(&s);
}

static text_inputs *open_corpus(void *folder) {
    const char *path = in_folder(folder, "labelled.jsonl");
    text_inputs *in = NULL;
    assert_ok(text_inputs_open(&path, 1, &(text_input_options){ .source_field = "label" }, &in));
    return in;
}

static const char *train_model(void *folder, quality_report *r) {
    quality_options o = quality_defaults();
    o.quiet = true;
    o.buckets = 1000;
    o.held_out = 0.25;
    write_corpus(folder, 400);
    text_inputs *in = open_corpus(folder);
    const char *path = in_folder(folder, "quality.bin");
    assert_ok(quality_train(&(quality_input){ .in = in }, 1, &o, path, r));
    text_inputs_close(in);
    return path;
}

/* ---- tests ---- */

static void auc_is_the_area(void **state) {
    const float scores[] = { 0.1f, 0.4f, 0.35f, 0.8f };
    const bool positive[] = { false, false, true, true };
    assert_true(fabs(quality_auc(scores, positive, 4) - 0.75) < 1e-12);
    const float equal[] = { 1, 1, 1, 1 };
    assert_true(fabs(quality_auc(equal, positive, 4) - 0.5) < 1e-12);
    assert_true(isnan(quality_auc(scores, positive, 2)));
}

static void labels_are_learned(void **state) {
    quality_report r;
    const char *path = train_model(*state, &r);
    assert_int_equal(r.documents, 400);
    assert_int_equal(r.labels, 2);
    assert_true(r.held_out > 50 && r.held_out < 150);
    assert_true(r.label[0].auc > 0.97 && r.label[1].auc > 0.97);
    language_model *m = NULL;
    assert_ok(language_open(path, &m));
    assert_int_equal(language_count(m), 2);
    language_scratch *s = language_scratch_new(m);
    const float *p = language_predict(m, s, span_of("the proof of the lemma and the theorem"));
    int good = strcmp(language_name(m, 0), "good") == 0 ? 0 : 1;
    assert_true(p[good] > 0.9f);
    p = language_predict(m, s, span_of("subscribe to the casino and click it winner"));
    assert_true(p[good] < 0.1f);
    language_scratch_free(s);
    language_close(m);
    /* The same documents give the same model. */
    size_t a_len, b_len;
    char *a = NULL, *b = NULL;
    assert_ok(io_read(path, 1 << 24, &a, &a_len));
    path = train_model(*state, &r);
    assert_ok(io_read(path, 1 << 24, &b, &b_len));
    assert_int_equal(a_len, b_len);
    assert_memory_equal(a, b, a_len);
    free(a);
    free(b);
}

/* Readers prefer long texts, and words alone do not tell: the length is learned too. */
static void lengths_are_learned(void **state) {
    quality_options o = quality_defaults();
    quality_report r;
    str s = { 0 };
    rng_key key = rng_key_of(5, 0);
    o.quiet = true;
    o.buckets = 1000;
    o.held_out = 0.25;
    for (uint64_t i = 0; i < 400; i++) {
        bool good = rng_below(key, i * 1000, 2);
        uint64_t words = (good ? 300 : 150) + rng_below(key, i * 1000 + 1, 60);
        str_add(&s, "{\"label\": \"%s\", \"text\": \"%d", good ? "good" : "bad", (int)i);
        for (uint64_t w = 0; w < words; w++)
            str_add(&s, " %s", COMMON[rng_below(key, i * 1000 + 2 + w, 8)]);
        str_add(&s, "\"}\n");
    }
    folder_write_bytes(*state, "labelled.jsonl", s.text, s.len);
    str_free(&s);
    double auc[2];
    for (int k = 0; k < 2; k++) {
        text_inputs *in = open_corpus(*state);
        if (k == 1) o.length_rate = 0;
        assert_ok(
            quality_train(&(quality_input){ .in = in }, 1, &o, in_folder(*state, "q.bin"), &r));
        text_inputs_close(in);
        auc[k] = r.label[0].auc;
    }
    if (auc[0] < 0.75 || auc[0] < auc[1] + 0.1) fail_msg("AUC %f, %f without", auc[0], auc[1]);
}

/* n-grams of characters, quantized: the file is small, the labels stay, and the bytes are the same every time. */
static void quantized_models_keep_labels(void **state) {
    quality_options o = language_train_defaults();
    char *bytes[2] = { 0 };
    size_t n[2];
    o.quiet = true;
    o.buckets = 3000;
    o.held_out = 0.25;
    write_corpus(*state, 400);
    for (int i = 0; i < 2; i++) {
        quality_report r;
        text_inputs *in = open_corpus(*state);
        const char *path = in_folder(*state, "language.ftz");
        assert_ok(quality_train(&(quality_input){ .in = in }, 1, &o, path, &r));
        text_inputs_close(in);
        assert_true(r.correct > 0.95 * (double)r.held_out);
        assert_int_equal(r.label[0].correct + r.label[1].correct, r.correct);
        assert_ok(io_read(path, 1 << 24, &bytes[i], &n[i]));
        language_model *m = NULL;
        assert_ok(language_open(path, &m));
        language_scratch *s = language_scratch_new(m);
        int good = strcmp(language_name(m, 0), "good") == 0 ? 0 : 1;
        assert_true(language_predict(m, s, span_of("theorems and proofs of lemmas"))[good] > 0.7f);
        assert_true(language_predict(m, s, span_of("casinos, winners, clicks"))[good] < 0.3f);
        language_scratch_free(s);
        language_close(m);
    }
    assert_true(n[0] < 3000 * 16 * 4 / 3);
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(bytes[0], bytes[1], n[0]);
    free(bytes[0]);
    free(bytes[1]);
}

/* @return the probability of "good" for a text. */
static float good_of(const char *path, const char *text) {
    language_model *m = NULL;
    assert_ok(language_open(path, &m));
    language_scratch *s = language_scratch_new(m);
    int good = strcmp(language_name(m, 0), "good") == 0 ? 0 : 1;
    float p = language_predict(m, s, span_of(text))[good];
    language_scratch_free(s);
    language_close(m);
    return p;
}

static const char *train_language(void *folder, const quality_options *o) {
    quality_report r;
    text_inputs *in = open_corpus(folder);
    const char *path = in_folder(folder, "language.ftz");
    assert_ok(quality_train(&(quality_input){ .in = in }, 1, o, path, &r));
    text_inputs_close(in);
    return path;
}

static double log_odds(float p) { return log((double)p / (1 - (double)p)); }

/* Zero rows count in the mean beside the rows of a text. Without the end of the file, as fastText reads it, they do not. */
static void zero_rows_lower_probabilities_of_short_texts(void **state) {
    quality_options o = language_train_defaults();
    char *bytes = NULL;
    size_t n;
    o.quiet = true;
    o.buckets = 3000;
    o.pieces = 0;
    o.zero_rows = 100;
    write_corpus(*state, 400);
    const char *path = train_language(*state, &o);
    assert_ok(io_read(path, 1 << 24, &bytes, &n));
    folder_write_bytes(*state, "cut.ftz", bytes, n - 8);
    const char *cut = in_folder(*state, "cut.ftz");
    /* "</s>", and 3, 4, 3 and 2 n-grams of <the>; < and > alone are not n-grams. */
    double rows = 1 + 12, ratio = log_odds(good_of(cut, "the")) / log_odds(good_of(path, "the"));
    assert_true(fabs(ratio / ((rows + 100) / rows) - 1) < 0.01);
    memset(bytes + n - 4, 0xFF, 4); /* -1 zero rows */
    folder_write_bytes(*state, "cut.ftz", bytes, n);
    language_model *m = NULL;
    assert_error(language_open(cut, &m), "zero rows", "out of range");
    free(bytes);
}

/* Documents in which only one word of thirty is known by its label: a model of whole documents alone does not know that word
 * well enough, one of pieces does. */
static void pieces_teach_short_texts(void **state) {
    quality_options o = language_train_defaults();
    float without, with;
    o.quiet = true;
    o.buckets = 3000;
    o.zero_rows = 0;
    o.pieces = 0;
    write_corpus(*state, 400);
    without = good_of(train_language(*state, &o), "it was the");
    o.pieces = 4;
    with = good_of(train_language(*state, &o), "it was the");
    /* These words are in documents of both labels. */
    assert_true(fabsf(with - 0.5f) < fabsf(without - 0.5f));
    assert_true(good_of(in_folder(*state, "language.ftz"), "lemma") > 0.9f);
}

/* Two files without labels, each with the label of its argument, give what labelled documents give. */
static void inputs_have_labels(void **state) {
    quality_options o = quality_defaults();
    quality_report r;
    quality_input inputs[2] = { { .label = "good" }, { .label = "bad" } };
    o.quiet = true;
    o.buckets = 1000;
    o.held_out = 0.25;
    for (int i = 0; i < 2; i++) {
        str s = { 0 };
        rng_key key = rng_key_of(9, (uint64_t)i);
        for (uint64_t k = 0; k < 200 * 12; k++)
            str_add(&s, "%s%s%s", k % 12 ? " " : "{\"text\": \"",
                    k % 3 ? COMMON[rng_below(key, k, 8)] : (i ? BAD : GOOD)[rng_below(key, k, 5)],
                    k % 12 == 11 ? "\"}\n" : "");
        const char *path = in_folder(*state, i ? "bad.jsonl" : "good.jsonl");
        folder_write_bytes(*state, i ? "bad.jsonl" : "good.jsonl", s.text, s.len);
        str_free(&s);
        assert_ok(text_inputs_open(&path, 1, &(text_input_options){ 0 }, &inputs[i].in));
    }
    assert_ok(quality_train(inputs, 2, &o, in_folder(*state, "q.bin"), &r));
    assert_int_equal(r.documents, 400);
    assert_int_equal(r.unlabelled, 0);
    assert_int_equal(r.labels, 2);
    assert_string_equal(r.label[0].name, "good");
    assert_string_equal(r.label[1].name, "bad");
    assert_true(r.label[0].auc > 0.97 && r.label[1].auc > 0.97);
    for (int i = 0; i < 2; i++) text_inputs_close(inputs[i].in);
}

static void labels_are_needed(void **state) {
    quality_options o = quality_defaults();
    quality_report r;
    folder_write_bytes(*state, "labelled.jsonl",
                       "{\"label\": \"a\", \"text\": \"b\"}\n{\"text\": \"c\"}\n", 42);
    text_inputs *in = open_corpus(*state);
    assert_error(quality_train(&(quality_input){ .in = in }, 1, &o, in_folder(*state, "q.bin"), &r),
                 "label", "there must be two");
    text_inputs_close(in);
}

static void documents_are_kept_by_label(void **state) {
    quality_report r;
    filter_options o = filter_defaults();
    o.sets = "none";
    o.quality = train_model(*state, &r);
    o.keep = "good";
    verdict v = judge(&o, "the proof of the lemma and the theorem", "");
    assert_int_equal(v.rule, TEXT_KEEP);
    free(v.text);
    v = judge(&o, "subscribe to the casino and click it winner", "");
    assert_int_equal(v.rule, FILTER_quality);
    assert_true(v.value < 0.1);
    free(v.text);
    filter *f = NULL;
    o.keep = "god";
    assert_error(filter_new(&o, 1, &f), "--keep", "god");
    o.keep = NULL;
    assert_error(filter_new(&o, 1, &f), "--quality", "--keep or --annotate");
    o.quality = NULL;
    o.keep = "good";
    assert_error(filter_new(&o, 1, &f), "--keep", "needs --quality");
}

/* Runs a filter over the corpus's folder. @return the lines written, owned. */
static char *run_filter(void *folder, const filter_options *o, const char *from, const char *to) {
    filter *f = NULL;
    text_inputs *in = NULL;
    text_transform_report report;
    const char *path = in_folder(folder, from);
    char *text = NULL, *copy = strdup(path);
    assert_ok(filter_new(o, 1, &f));
    assert_ok(text_inputs_open((const char *const *)&copy, 1, &(text_input_options){ 0 }, &in));
    text_transform s = filter_transform(f);
    char *out = strdup(in_folder(folder, to));
    assert_ok(text_transform_run(
        &s, in, &(text_transform_options){ .out = out, .threads = 1, .quiet = true }, &report));
    text_transform_report_free(&report);
    assert_ok(io_read(out, 1 << 24, &text, NULL));
    text_inputs_close(in);
    filter_free(f);
    free(copy);
    free(out);
    return text;
}

static int count_lines(const char *s) {
    int n = 0;
    for (; *s; s++) n += *s == '\n';
    return n;
}

static void scores_are_written_and_filtered_on(void **state) {
    quality_report r;
    filter_options o = filter_defaults(), later = filter_defaults();
    o.sets = later.sets = "none";
    o.quality = train_model(*state, &r);
    o.annotate = true;
    char *quality = strdup(o.quality);
    o.quality = quality;
    char *once = run_filter(*state, &o, "labelled.jsonl", "once.jsonl");
    assert_int_equal(count_lines(once), 400); /* nothing is dropped */
    json_t *first = json_loads(once, JSON_DISABLE_EOF_CHECK, NULL);
    assert_string_equal(json_string_value(json_object_get(first, "id")), "0");
    assert_non_null(json_object_get(first, "quality"));
    assert_true(json_number_value(json_object_get(first, "quality_score")) > 0.5);
    json_decref(first);
    /* Again: members are replaced, not repeated. */
    char *twice = run_filter(*state, &o, "once.jsonl", "twice.jsonl");
    assert_string_equal(once, twice);
    later.where = "quality=good,quality_score>=0.6";
    char *good = run_filter(*state, &later, "twice.jsonl", "good.jsonl");
    later.where = "quality!=good";
    char *bad = run_filter(*state, &later, "twice.jsonl", "bad.jsonl");
    assert_null(strstr(good, "\"quality\": \"bad\""));
    assert_null(strstr(bad, "\"quality\": \"good\""));
    assert_true(count_lines(good) > 100 && count_lines(bad) > 100);
    assert_true(count_lines(good) + count_lines(bad) <= 400);
    free(once);
    free(twice);
    free(good);
    free(bad);
    free(quality);
    filter *f = NULL;
    later.where = "quality";
    assert_error(filter_new(&later, 1, &f), "--where", "condition");
    later.where = "quality>=x";
    assert_error(filter_new(&later, 1, &f), "--where", "number");
}

#define IN_FOLDER(f) cmocka_unit_test_setup_teardown(f, folder_setup, folder_teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(auc_is_the_area),
        IN_FOLDER(labels_are_learned),
        IN_FOLDER(lengths_are_learned),
        cmocka_unit_test_setup_teardown(quantized_models_keep_labels, folder_setup,
                                        folder_teardown),
        IN_FOLDER(zero_rows_lower_probabilities_of_short_texts),
        IN_FOLDER(pieces_teach_short_texts),
        IN_FOLDER(inputs_have_labels),
        IN_FOLDER(labels_are_needed),
        IN_FOLDER(documents_are_kept_by_label),
        IN_FOLDER(scores_are_written_and_filtered_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
