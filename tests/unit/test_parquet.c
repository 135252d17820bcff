/* Parquet files as inputs: every document of files by pyarrow, DuckDB and Polars (fixtures/parquet.py),
 * damaged files, and columns that have to be chosen. */
#include "support/documents.h"

#include "shards/data.h"
#include "parquet/parquet.h"

#define FILES FIXTURES "/parquet/"

/* ---- whole files ------------------------------------------------------------------------------- */
static void documents_of_every_writer_are_read(void **state) {
    expect_same_documents(*state, FILES, FILES "docs.jsonl", 51);
}

static void other_types_become_members(void **state) {
    expect_lines(*state, FILES "types.parquet", FILES "types.jsonl");
}

static void long_texts_are_read(void **state) {
    str want = { 0 };
    for (int i = 0; i < 4; i++) {
        str_add(&want, "[%d|", i);
        for (int k = 0; k < 120000 && i < 3; k++) str_add(&want, "long %d ", i);
        str_add(&want, "%s|%d|||]", i < 3 ? "" : "short", i);
    }
    assert_sees(FILES "long.parquet", &(text_input_options){ 0 }, want.text);
    str_free(&want);
    /* a longer one than allowed is skipped and counted */
    seen s;
    assert_ok(
        read_one(FILES "long.parquet", &(text_input_options){ .document_bytes = 999 }, 2, &s));
    assert_int_equal(s.counts.documents, 1);
    assert_int_equal(s.counts.unreadable, 3);
    seen_free(&s);
}

static void empty_files_have_no_documents(void **state) {
    assert_sees(FILES "empty.parquet", &(text_input_options){ .text_field = "content" }, "");
}

/* ---- columns ----------------------------------------------------------------------------------- */
static void the_text_column_is_found_or_named(void **state) {
    const text_input_options plain = { 0 }, body = { .text_field = "body", .id_field = "title" },
                             wrong = { .text_field = "nosuch" }, n = { .text_field = "n" },
                             in_struct = { .text_field = "meta.lang", .id_field = "meta.rank" };
    assert_sees(FILES "content.parquet", &plain, "[0|only one||||][1|column of strings||||]");
    assert_sees(FILES "ambiguous.parquet", &body, "[0|b|a|||]");
    seen s;
    assert_ok(read_one(FILES "docs-arrow-defaults.parquet", &in_struct, 2, &s));
    assert_non_null(strstr(s.all.text, "[0|en|2|https://example.org/1||]"));
    seen_free(&s);
    static const struct {
        const char *file, *what[2];
    } refused[] = {
        { FILES "ambiguous.parquet", { "no column is called \"text\"", "title, body" } },
        { FILES "numbers.parquet", { "no column is called \"text\"", "no other one has strings" } },
        { FILES "list.parquet", { "the column \"text\"", "a list" } },
    };
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        assert_error(read_one(refused[i].file, &plain, 1, &s), refused[i].what[0],
                     refused[i].what[1]);
        seen_free(&s);
    }
    assert_error(read_one(FILES "content.parquet", &wrong, 1, &s), "no column is called \"nosuch\"",
                 "content");
    seen_free(&s);
    assert_error(read_one(FILES "content.parquet", &n, 1, &s), "\"n\" is integer, not a string");
    seen_free(&s);
}

static void unsupported_codecs_are_refused(void **state) {
    const text_input_options plain = { .text_field = "content" };
    seen s;
    assert_error(read_one(FILES "brotli.parquet", &plain, 1, &s), "brotli.parquet", "\"content\"",
                 "BROTLI");
    seen_free(&s);
}

/* ---- damage ------------------------------------------------------------------------------------ */
/* Reads what it can of a file with these bytes, without strict. */
static void read_damaged(const char *path, seen *s) {
    assert_ok(read_one(path, &(text_input_options){ 0 }, 2, s));
}

static void a_wrong_checksum_loses_the_page(void **state) {
    test_folder *f = *state;
    file_bytes b = read_fixture(FILES "docs-arrow-plain-none-v1.parquet");
    char *hit = memmem(b.bytes, b.n, "Document 5:", 11);
    assert_non_null(hit);
    hit[3] ^= 1;
    const char *path = write_input_bytes(f, "damaged.parquet", b.bytes, b.n);
    seen s;
    read_damaged(path, &s);
    assert_null(strstr(s.all.text, "Document 5:"));
    assert_non_null(strstr(s.all.text, "Document 0:"));
    assert_non_null(strstr(s.all.text, "Document 9:"));
    assert_int_equal(s.counts.unreadable, 8); /* a page has 8 rows here */
    seen_free(&s);
    const text_input_options strict = { .strict = true };
    assert_error(read_one(path, &strict, 2, &s), "damaged.parquet", "\"text\"", "checksum");
    seen_free(&s);
    free(b.bytes);
}

/* One file of many that was truncated anywhere, is empty or full of zeros is skipped and counted, and an error with
 * `strict`; the others are read. */
static void a_truncated_file_is_skipped(void **state) {
    test_folder *f = *state;
    file_bytes b = read_fixture(FILES "docs-arrow-defaults.parquet");
    char zeros[64] = { 0 };
    seen s;
    assert_ok(read_one(FILES "docs-arrow-defaults.parquet", &(text_input_options){ 0 }, 1, &s));
    int64_t whole = s.counts.documents;
    seen_free(&s);
    for (size_t n = 0; n < b.n + 97; n += 97) {
        bool zero = n >= b.n;
        const char *paths[] = { zero ? folder_write_bytes(f, "short.parquet", zeros, sizeof zeros)
                                     : folder_write_bytes(f, "short.parquet", b.bytes, n),
                                FILES "docs-arrow-defaults.parquet" };
        assert_ok(read_all(paths, 2, &(text_input_options){ 0 }, 2, &s));
        assert_int_equal(s.counts.documents, whole);
        assert_int_equal(s.counts.unreadable, 1);
        assert_int_equal(s.counts.lost_bytes, zero ? sizeof zeros : n);
        seen_free(&s);
        assert_error(read_all(paths, 2, &(text_input_options){ .strict = true }, 2, &s),
                     "short.parquet", "damaged");
        seen_free(&s);
    }
    memcpy(b.bytes + b.n - 4, "PARE", 4);
    const char *path = write_input_bytes(f, "locked.parquet", b.bytes, b.n);
    assert_error(read_one(path, &(text_input_options){ 0 }, 1, &s), "locked.parquet", "encrypted");
    seen_free(&s);
    free(b.bytes);
}

/* A reader of one thread has no races: under ThreadSanitizer few of the bytes are enough. */
#ifdef __SANITIZE_THREAD__
enum { DAMAGE_EVERY = 101 };
#else
enum { DAMAGE_EVERY = 3 };
#endif

/* Any byte may be anything: an error or fewer documents, never more, and never a fault. */
static void any_byte_may_be_wrong(void **state) {
    test_folder *f = *state;
    static const char *const files[] = { FILES "docs-arrow-delta-none-v2.parquet",
                                         FILES "docs-arrow-dictionary-snappy-v1.parquet",
                                         FILES "docs-polars-zstd.parquet" };
    for (size_t k = 0; k < COUNT_OF(files); k++) {
        file_bytes b = read_fixture(files[k]);
        for (size_t i = 4; i < b.n; i += DAMAGE_EVERY) {
            char was = b.bytes[i];
            seen s;
            b.bytes[i] = (char)rng_u32(rng_key_of(3, k), i);
            const char *path = write_input_bytes(f, "odd.parquet", b.bytes, b.n);
            err e = read_one(path, &(text_input_options){ .page_bytes = 1 << 20 }, 1, &s);
            err_free(e);
            assert_true(s.counts.documents <= 40);
            seen_free(&s);
            b.bytes[i] = was;
        }
        free(b.bytes);
    }
}

/* Found by tests/fuzz: faults that the sanitizers saw. */
static void files_of_the_fuzzer_are_read(void **state) {
    static const char *const files[] = { FILES "odd-no-rows.parquet",
                                         FILES "odd-encoding.parquet" };
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        seen s;
        err_free(read_one(files[i], &(text_input_options){ .page_bytes = 1 << 20 }, 1, &s));
        assert_true(s.counts.documents <= 40);
        seen_free(&s);
    }
}

static void a_page_beyond_the_memory_limit_is_refused(void **state) {
    seen s;
    err e = read_one(FILES "long.parquet", &(text_input_options){ .page_bytes = 1000 }, 1, &s);
    assert_non_null(e);
    assert_non_null(strstr(err_remedy(e), "--memory"));
    assert_error(e, "long.parquet", "at most 1000 B");
    seen_free(&s);
}

/* ---- segments ---------------------------------------------------------------------------------- */
static void row_groups_are_split_into_segments(void **state) {
    const char *path = FILES "docs-arrow-groups.parquet"; /* 14 row groups */
    expect_segments(path, 0, 1);
    expect_segments(path, 1, 14);
    expect_segments(path, 3000, 6);
}

/* ---- writing ----------------------------------------------------------------------------------- */
/* Runs a transform over one input into `out`. */
static void run_transform(const text_transform *transform, const char *path, const char *out,
                          const char *dropped, int threads) {
    text_inputs *in = NULL;
    text_transform_report report;
    text_transform_options o = {
        .out = out, .dropped = dropped, .compress = "parquet", .threads = threads, .quiet = true
    };
    assert_ok(text_inputs_open(&path, 1, &(text_input_options){ .block_bytes = 700 }, &in));
    assert_ok(text_transform_run(transform, in, &o, &report));
    text_transform_report_free(&report);
    text_inputs_close(in);
}

static void documents_survive_parquet(void **state) {
    test_folder *f = *state;
    static const char *const inputs[] = { FILES "docs.jsonl", FILES "docs-arrow-defaults.parquet" };
    const char *one = in_folder(f, "one.parquet"), *again = in_folder(f, "again.parquet"),
               *parts = in_folder(f, "parts");
    for (size_t i = 0; i < COUNT_OF(inputs); i++) {
        run_transform(&keep_all, inputs[i], one, NULL, 3);
        expect_lines(f, one, FILES "docs.jsonl");
        run_transform(&keep_all, one, again, NULL, 1);
        expect_lines(f, again, FILES "docs.jsonl");
    }
    run_transform(&keep_all, inputs[0], parts, NULL, 2);
    expect_lines(f, parts, FILES "docs.jsonl");
    assert_true(io_exists(in_folder(f, "parts/part-000000.parquet")));
}

static err drop_third(void *ctx, int worker, int segment, const text_doc *d, text_verdict *v) {
    if (d->number % 3 == 0) v->rule = 0, v->value = 0.5;
    return OK;
}

static void bytes_do_not_depend_on_threads(void **state) {
    test_folder *f = *state;
    static const char *const rules[] = { "third" };
    static const text_transform some = {
        .name = "some", .rules = rules, .n_rules = 1, .judge = drop_third
    };
    file_bytes b[4];
    for (int i = 0; i < 2; i++) {
        const char *out = in_folder(f, i ? "a.parquet" : "b.parquet");
        const char *dropped = in_folder(f, i ? "c.parquet" : "d.parquet");
        run_transform(&some, FILES "docs.jsonl", out, dropped, i ? 4 : 1);
        b[i] = read_fixture(out);
        b[2 + i] = read_fixture(dropped);
    }
    for (int i = 0; i < 4; i += 2) {
        assert_int_equal(b[i].n, b[i + 1].n);
        assert_memory_equal(b[i].bytes, b[i + 1].bytes, b[i].n);
    }
    for (int i = 0; i < 4; i++) free(b[i].bytes);
    char *lines = convert(f, in_folder(f, "d.parquet"), &(text_input_options){ 0 }, 1);
    assert_non_null(strstr(lines, "\"dropped_by\": \"third\", \"value\": \"0.5\""));
    free(lines);
}

static err append_bytes(void *ctx, const void *bytes, size_t n) {
    str_add_bytes(ctx, bytes, n);
    return OK;
}
static err read_memory(void *ctx, int64_t offset, void *to, size_t n) {
    memcpy(to, ((str *)ctx)->text + offset, n);
    return OK;
}

static void row_groups_end_at_64_mib(void **state) {
    enum { ROWS = 140, LENGTH = 1 << 20 };
    static const parquet_column column = { "text", PARQUET_STRING, false };
    str file = { 0 }, packed = { 0 };
    parquet_target to = { &column, 1, &file, append_bytes };
    parquet_writer *w = NULL;
    parquet_rows *rows = parquet_rows_new(1);
    char *text = mem_alloc(LENGTH);
    memset(text, 'x', LENGTH);
    assert_ok(parquet_writer_open(&to, &w));
    for (int i = 0; i < ROWS; i++) {
        parquet_rows_add(rows, &(parquet_value){ .at = text, .length = LENGTH });
        packed.len = 0;
        assert_ok(parquet_rows_pack(rows, &packed));
        assert_ok(parquet_writer_add(w, packed.text, packed.len));
    }
    assert_ok(parquet_writer_finish(w));
    parquet_source s = { "memory", (int64_t)file.len, &file, read_memory };
    parquet_file *f = NULL;
    assert_ok(parquet_open(&s, &(parquet_limits){ 0 }, NULL, &f));
    assert_int_equal(parquet_groups(f), 3);
    assert_int_equal(parquet_group_rows(f, 0), 64);
    assert_int_equal(parquet_group_rows(f, 2), ROWS - 128);
    parquet_close(f);
    parquet_writer_free(w);
    parquet_rows_free(rows);
    free(text);
    str_free(&file);
    str_free(&packed);
}

/* ---- training ---------------------------------------------------------------------------------- */
static void a_file_or_folder_is_trained_on(void **state) {
    test_folder *f = *state;
    file_bytes b = read_fixture(FILES "docs-arrow-defaults.parquet");
    seen s;
    data_source *one = NULL, *two = NULL;
    const char *path = write_input_bytes(f, "a.parquet", b.bytes, b.n);
    assert_ok(read_one(path, &(text_input_options){ 0 }, 1, &s));
    assert_ok(data_open(path, 0, &one));
    assert_int_equal(data_source_info(one)->tokens, s.counts.bytes + s.counts.documents);
    write_input_bytes(f, "b.parquet", b.bytes, b.n);
    assert_ok(data_open(f->path, 0, &two));
    assert_int_equal(data_source_info(two)->tokens, 2 * data_source_info(one)->tokens);
    data_close(one);
    data_close(two);
    seen_free(&s);
    free(b.bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(documents_of_every_writer_are_read, text_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(other_types_become_members, text_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(long_texts_are_read, text_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(empty_files_have_no_documents, text_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(the_text_column_is_found_or_named, text_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(unsupported_codecs_are_refused, text_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(a_wrong_checksum_loses_the_page, text_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(a_truncated_file_is_skipped, text_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(any_byte_may_be_wrong, text_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(files_of_the_fuzzer_are_read, text_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(a_page_beyond_the_memory_limit_is_refused, text_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(row_groups_are_split_into_segments, text_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(documents_survive_parquet, text_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(bytes_do_not_depend_on_threads, text_setup,
                                        folder_teardown),
        cmocka_unit_test(row_groups_end_at_64_mib),
        cmocka_unit_test_setup_teardown(a_file_or_folder_is_trained_on, text_setup,
                                        folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
