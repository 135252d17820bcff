/* Sampling, shuffling, dividing and merging: what comes out is what went in, chosen and ordered at random, the same on
 * any number of threads and after kills. */
#include "support/text.h"

#include <signal.h>
#include <sys/wait.h>

#include "curate/curate.h"
#include "tokenizer/tokenizer.h"

enum { DOCUMENTS = 2000 };

/* Documents of three sources in different numbers: 1 of 2, 1 of 3 and the rest, or all but a few. */
static const char *source_of(int i) { return i % 2 ? "web" : i % 3 ? "books" : "rare"; }

static void put_documents(test_folder *f) {
    str all = { 0 };
    for (int i = 0; i < DOCUMENTS; i++)
        str_add(&all,
                "{\"n\": %d, \"text\": \"document %d of length %d %.*s\", \"source\": \"%s\"}\n", i,
                i, i % 37, i % 37, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", source_of(i));
    folder_write(f, "in.jsonl", all.text);
    str_free(&all);
}

static text_inputs *open_documents(test_folder *f) {
    text_inputs *in = NULL;
    const char *path = in_folder(f, "in.jsonl");
    const text_input_options o = { .segment_bytes = 20000, .block_bytes = 3000 };
    assert_ok(text_inputs_open(&path, 1, &o, &in));
    assert_true(text_segments(in) > 5);
    return in;
}

/* Reads the numbers of the documents in a file or folder, in order. @return how many there are. */
static int read_ids(const char *path, int *ids) {
    seen s;
    int n = 0;
    assert_ok(read_one(path, &(text_input_options){ .id_field = "n" }, 1, &s));
    for (const char *at = s.all.text; (at = strstr(at, "|document ")); at++) {
        assert_true(n < DOCUMENTS);
        ids[n++] = atoi(at + strlen("|document "));
    }
    seen_free(&s);
    return n;
}

static int compare_ids(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

/* ---- samples ----------------------------------------------------------------------------------- */
static err run_sampling(test_folder *f, sampling_options o, const char *to, int threads) {
    text_inputs *in = open_documents(f);
    sample *s = NULL;
    text_transform_report r = { 0 };
    text_transform_options so = { .out = to, .threads = threads, .quiet = true };
    o.pass.threads = threads;
    o.pass.quiet = true;
    o.pass.work = arena_printf(f->names, "%s.work", to);
    o.pass.to = &so;
    err e = sample_new(&o, in, &s);
    if (!e) {
        text_transform transform = sample_transform(s);
        e = text_transform_run(&transform, in, &so, &r);
    }
    if (!e) e = sample_finish(s);
    text_transform_report_free(&r);
    sample_free(s);
    text_inputs_close(in);
    return e;
}

static int sample_ids(test_folder *f, sampling_options o, int *ids) {
    const char *to = in_folder(f, "sample.jsonl");
    assert_ok(run_sampling(f, o, to, 2));
    assert_false(io_exists(in_folder(f, "sample.jsonl.work")));
    return read_ids(to, ids);
}

static void a_sample_has_the_number_that_was_asked_for(void **state) {
    int ids[DOCUMENTS], other[DOCUMENTS];
    put_documents(*state);
    static const int counts[] = { 1, 7, 500, DOCUMENTS - 1, DOCUMENTS, DOCUMENTS + 100 };
    for (size_t i = 0; i < COUNT_OF(counts); i++) {
        int n = sample_ids(*state, (sampling_options){ .count = counts[i] }, ids);
        assert_int_equal(n, MIN(counts[i], DOCUMENTS));
        for (int k = 1; k < n; k++)
            assert_true(ids[k] > ids[k - 1]); /* in their order, none twice */
    }
    int n = sample_ids(*state, (sampling_options){ .count = 500 }, ids);
    /* From everywhere: a quarter of the documents is expected in each quarter of the input. */
    for (int quarter = 0; quarter < 4; quarter++) {
        int there = 0;
        for (int i = 0; i < n; i++) there += ids[i] / (DOCUMENTS / 4) == quarter;
        assert_in_range(there, 85, 165);
    }
    assert_int_equal(sample_ids(*state, (sampling_options){ .count = 500, .seed = 1 }, other), 500);
    assert_memory_not_equal(ids, other, 500 * sizeof *ids);
}

static void a_sample_per_source_has_each(void **state) {
    int ids[DOCUMENTS], all[3] = { 0 }, got[3] = { 0 };
    static const char *const names[] = { "web", "books", "rare" };
    put_documents(*state);
    for (int i = 0; i < DOCUMENTS; i++)
        for (int k = 0; k < 3; k++) all[k] += strcmp(source_of(i), names[k]) == 0;
    assert_true(all[2] < 400 && all[1] > 400);
    int n = sample_ids(*state, (sampling_options){ .count = 400, .per = "source" }, ids);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < 3; k++) got[k] += strcmp(source_of(ids[i]), names[k]) == 0;
    for (int k = 0; k < 3; k++) assert_int_equal(got[k], MIN(all[k], 400));
    /* Any member, and documents without it are a group too. */
    n = sample_ids(*state, (sampling_options){ .count = 3, .per = "no such member" }, ids);
    assert_int_equal(n, 3);
    n = sample_ids(*state, (sampling_options){ .count = 1, .per = "n" }, ids);
    assert_int_equal(n, DOCUMENTS);
}

static void bytes_and_tokens_are_counted(void **state) {
    int ids[DOCUMENTS];
    tokenizer *t = NULL;
    put_documents(*state);
    assert_ok(tokenizer_open("bytes", NULL, &t));
    for (int tokens = 0; tokens < 2; tokens++) {
        sampling_options o = { .bytes = tokens ? 0 : 20000,
                               .tokens = tokens ? 20000 : 0,
                               .tokenizer = t };
        int n = sample_ids(*state, o, ids), sum = 0;
        for (int i = 0; i < n; i++) {
            char text[100];
            sum += snprintf(text, sizeof text, "document %d of length %d %.*s", ids[i], ids[i] % 37,
                            ids[i] % 37, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx") +
                   tokens;
        }
        assert_in_range(sum, 20000 - 100, 20000);
    }
    tokenizer_free(t);
}

static void a_share_is_chosen_by_the_text(void **state) {
    int ids[DOCUMENTS], smaller[DOCUMENTS];
    put_documents(*state);
    int n = sample_ids(*state, (sampling_options){ .share = 0.3 }, ids);
    assert_in_range(n, 500, 700);
    int m = sample_ids(*state, (sampling_options){ .share = 0.1 }, smaller);
    assert_in_range(m, 140, 260);
    for (int i = 0; i < m; i++)
        assert_non_null(bsearch(&smaller[i], ids, (size_t)n, sizeof *ids, compare_ids));
    assert_int_equal(sample_ids(*state, (sampling_options){ .share = 1 }, ids), DOCUMENTS);
}

/* ---- the order --------------------------------------------------------------------------------- */
static err run_shuffling(test_folder *f, shuffle_options o, const char *to, int threads) {
    text_inputs *in = open_documents(f);
    shuffle *s = NULL;
    text_transform_report r = { 0 };
    text_transform_options so = { .out = to, .threads = threads, .quiet = true };
    o.pass.threads = threads;
    o.pass.quiet = true;
    if (!o.pass.memory) o.pass.memory = 1 << 30;
    o.pass.work = arena_printf(f->names, "%s.work", to);
    o.pass.to = &so;
    err e = shuffle_new(&o, in, &s);
    if (!e) {
        text_transform transform = shuffle_transform(s);
        e = text_transform_run(&transform, in, &so, &r);
    }
    if (!e && r.kept != DOCUMENTS) e = ERR("%lld documents are kept", (long long)r.kept);
    if (!e) e = shuffle_finish(s);
    text_transform_report_free(&r);
    shuffle_free(s);
    text_inputs_close(in);
    return e;
}

/* Of all parts together, and within each quarter, documents come from everywhere. */
static void expect_shuffled(const int *ids) {
    int sorted[DOCUMENTS];
    memcpy(sorted, ids, sizeof sorted);
    sort_array(sorted, DOCUMENTS, sizeof *sorted, compare_ids);
    for (int i = 0; i < DOCUMENTS; i++) assert_int_equal(sorted[i], i); /* each once */
    for (int quarter = 0; quarter < 4; quarter++) {
        double sum = 0;
        for (int i = 0; i < DOCUMENTS / 4; i++) sum += ids[quarter * DOCUMENTS / 4 + i];
        /* The mean of 500 of 0..1999 has a deviation of 22. */
        assert_true(sum > 500 * (1000.0 - 130) && sum < 500 * (1000.0 + 130));
    }
    int rising = 0;
    for (int i = 1; i < DOCUMENTS; i++) rising += ids[i] > ids[i - 1];
    assert_in_range(rising, DOCUMENTS / 2 - 150, DOCUMENTS / 2 + 150);
}

static void a_shuffle_keeps_every_document(void **state) {
    test_folder *f = *state;
    int ids[DOCUMENTS], first[DOCUMENTS];
    put_documents(f);
    static const char *const names[] = { "all.jsonl", "all.jsonl.gz", "all.parquet" };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        assert_ok(run_shuffling(f, (shuffle_options){ 0 }, in_folder(f, names[i]), 2));
        assert_int_equal(read_ids(in_folder(f, names[i]), ids), DOCUMENTS);
        expect_shuffled(ids);
        if (i == 0) memcpy(first, ids, sizeof ids);
        assert_memory_equal(first, ids, sizeof ids);
    }
    assert_ok(run_shuffling(f, (shuffle_options){ .seed = 5 }, in_folder(f, "b.jsonl"), 2));
    assert_int_equal(read_ids(in_folder(f, "b.jsonl"), ids), DOCUMENTS);
    expect_shuffled(ids);
    assert_memory_not_equal(first, ids, sizeof ids);
}

/* However little fits a part, down to pieces of the smallest sections of spill files. */
static void the_order_does_not_depend_on_parts(void **state) {
    test_folder *f = *state;
    int ids[DOCUMENTS], first[DOCUMENTS];
    put_documents(f);
    assert_ok(run_shuffling(f, (shuffle_options){ 0 }, in_folder(f, "all.jsonl"), 1));
    assert_int_equal(read_ids(in_folder(f, "all.jsonl"), first), DOCUMENTS);
    static const int64_t sizes[] = { 100000, 5000, 300 };
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        const char *to = in_folder(f, arena_printf(f->names, "parts-%zu", i));
        assert_ok(run_shuffling(f, (shuffle_options){ .part_bytes = sizes[i] }, to, 3));
        assert_int_equal(read_ids(to, ids), DOCUMENTS);
        assert_memory_equal(first, ids, sizeof ids);
    }
    assert_ok(
        run_shuffling(f, (shuffle_options){ .pass.memory = 20000 }, in_folder(f, "small"), 2));
    assert_int_equal(read_ids(in_folder(f, "small"), ids), DOCUMENTS);
    assert_memory_equal(first, ids, sizeof ids);
}

/* ---- dividing and merging ---------------------------------------------------------------------- */
static err run_dividing(test_folder *f, divide_options o, const char *to, int threads) {
    text_inputs *in = open_documents(f);
    divide *d = NULL;
    text_transform_report r = { 0 };
    o.threads = threads;
    err e = divide_new(&o, &d);
    if (!e) {
        text_transform transform = divide_transform(d);
        e = text_transform_run(
            &transform, in,
            &(text_transform_options){ .out = to, .threads = threads, .quiet = true }, &r);
    }
    text_transform_report_free(&r);
    divide_free(d);
    text_inputs_close(in);
    return e;
}

static void shares_divide_all_documents(void **state) {
    test_folder *f = *state;
    int ids[3 * DOCUMENTS], n[3];
    static const char *const names[] = { "divided/train", "divided/valid", "divided/test" };
    put_documents(f);
    const divide_options o = { .into = "train=0.8,valid=0.15,test=0.05" };
    assert_ok(run_dividing(f, o, in_folder(f, "divided"), 2));
    int sum = 0;
    for (int i = 0; i < 3; i++) sum += n[i] = read_ids(in_folder(f, names[i]), ids + sum);
    assert_int_equal(sum, DOCUMENTS);
    assert_in_range(n[0], 1500, 1700);
    assert_in_range(n[1], 220, 380);
    assert_in_range(n[2], 50, 150);
    sort_array(ids, DOCUMENTS, sizeof *ids, compare_ids);
    for (int i = 0; i < DOCUMENTS; i++) assert_int_equal(ids[i], i);
    /* The whole folder is an input too, and again complete. */
    assert_int_equal(read_ids(in_folder(f, "divided"), ids), DOCUMENTS);
    assert_error(
        run_dividing(f, (divide_options){ .into = "train=0.9" }, in_folder(f, "divided"), 2),
        "other options");
    /* A document that is in no output is dropped. */
    assert_ok(run_dividing(f, (divide_options){ .into = "a=0.5" }, in_folder(f, "half"), 2));
    assert_in_range(read_ids(in_folder(f, "half"), ids), 850, 1150);
}

static void values_divide_documents(void **state) {
    test_folder *f = *state;
    int ids[DOCUMENTS];
    put_documents(f);
    assert_ok(run_dividing(f, (divide_options){ .into = "web,rest", .by = "source" },
                           in_folder(f, "by"), 2));
    int n = read_ids(in_folder(f, "by/web"), ids);
    for (int i = 0; i < n; i++) assert_string_equal(source_of(ids[i]), "web");
    int m = read_ids(in_folder(f, "by/rest"), ids);
    for (int i = 0; i < m; i++) assert_string_not_equal(source_of(ids[i]), "web");
    assert_int_equal(n + m, DOCUMENTS);
    static const struct {
        const char *into, *by, *says;
    } wrong[] = {
        { "a", NULL, "not a name and a share" },
        { "a=0.5,a=0.5", NULL, "twice" },
        { "a=0.7,b=0.7", NULL, "more than 1" },
        { "a=2", NULL, "not a name and a share" },
        { "a=0.5", "source", "not shares" },
        { "../a=0.5", NULL, "name of a folder" },
        { ",", NULL, "no output" },
    };
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        const divide_options o = { .into = wrong[i].into, .by = wrong[i].by };
        assert_error(run_dividing(f, o, in_folder(f, "wrong"), 1), wrong[i].says);
    }
}

static void merging_keeps_the_order(void **state) {
    test_folder *f = *state;
    int ids[DOCUMENTS];
    put_documents(f);
    text_inputs *in = open_documents(f);
    text_transform transform = merge_transform(50000);
    text_transform_report r = { 0 };
    const char *to = in_folder(f, "merged");
    assert_ok(text_transform_run(
        &transform, in, &(text_transform_options){ .out = to, .merge_bytes = 50000, .quiet = true },
        &r));
    text_transform_report_free(&r);
    int segments = text_segments(in), parts = 0;
    text_inputs_close(in);
    while (io_exists(in_folder(f, arena_printf(f->names, "merged/part-%06d.jsonl.zst", parts))))
        parts++;
    assert_int_equal(parts, (segments + 1) / 2);
    assert_int_equal(read_ids(to, ids), DOCUMENTS);
    for (int i = 0; i < DOCUMENTS; i++) assert_int_equal(ids[i], i);
}

/* ---- the same bytes ---------------------------------------------------------------------------- */
static err run_all_four(test_folder *f, const char *name, int threads) {
    const char *to = in_folder(f, name);
    TRY(io_make_dirs(to));
    TRY(run_sampling(f, (sampling_options){ .count = 300, .per = "source" },
                     arena_printf(f->names, "%s/sample", to), threads));
    TRY(run_shuffling(f, (shuffle_options){ .part_bytes = 9000 },
                      arena_printf(f->names, "%s/shuffle", to), threads));
    return run_dividing(f, (divide_options){ .into = "a=0.5,b=0.5" },
                        arena_printf(f->names, "%s/split", to), threads);
}

static void assert_same_folders(test_folder *f, const char *a, const char *b) {
    const char *command = arena_printf(f->names, "diff -r %s %s", in_folder(f, a), in_folder(f, b));
    assert_int_equal(system(command), 0);
}

static void threads_and_kills_change_nothing(void **state) {
    test_folder *f = *state;
    put_documents(f);
    assert_ok(run_all_four(f, "one", 1));
    assert_ok(run_all_four(f, "four", 4));
    assert_same_folders(f, "one", "four");
    for (int i = 0; i < 12; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            err e = run_all_four(f, "killed", 2);
            _exit(e ? 1 : 0);
        }
        usleep((useconds_t)rng_below(rng_key_of(2, 3), (uint64_t)i, 60000));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    assert_ok(run_all_four(f, "killed", 3));
    assert_same_folders(f, "one", "killed");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, text_setup, folder_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_sample_has_the_number_that_was_asked_for),
        TEST(a_sample_per_source_has_each),
        TEST(bytes_and_tokens_are_counted),
        TEST(a_share_is_chosen_by_the_text),
        TEST(a_shuffle_keeps_every_document),
        TEST(the_order_does_not_depend_on_parts),
        TEST(shares_divide_all_documents),
        TEST(values_divide_documents),
        TEST(merging_keeps_the_order),
        TEST(threads_and_kills_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
