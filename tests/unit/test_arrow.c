/* Arrow files and streams as inputs: every document of files by pyarrow and Polars (fixtures/arrow.py), what is
 * refused, and damage. */
#include "support/documents.h"

#include "parquet/parquet.h"

#define FILES FIXTURES "/arrow/"

/* ---- whole files ------------------------------------------------------------------------------- */
static void arrow_documents_of_every_writer_are_read(void **state) {
    expect_same_documents(*state, FILES, FIXTURES "/parquet/docs.jsonl", 15);
}

static void rows_without_text_are_left_out(void **state) {
    const text_input_options plain = { 0 }, member = { .text_field = "m.k", .id_field = "text" };
    static const char *const files[] = { FILES "small.arrow", FILES "small-zstd.arrow",
                                         FILES "small-lz4.arrow" };
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        assert_sees(files[i], &plain, "[0|one|x|||][1|three|z|||]");
        assert_sees(files[i], &member, "[0|v|one|||]");
    }
    assert_sees(FILES "empty.arrow", &plain, "");
}

static void arrow_columns_are_found_or_refused(void **state) {
    static const struct {
        const char *file, *column, *what[2];
    } refused[] = {
        { FILES "ambiguous.arrow", NULL, { "no column is called \"text\"", "title, body" } },
        { FILES "ambiguous.arrow", "tags", { "the column \"tags\"", "a list" } },
        { FILES "small.arrow", "m", { "the column \"m\"", "a struct" } },
        { FILES "docs-pyarrow-large.arrow", "n", { "\"n\" is integer, not a string" } },
        { FILES "docs-pyarrow-large.arrow", "s_number", { "\"s_number\" is other" } },
        { FILES "docs-pyarrow-large.arrow", "s_decimal", { "\"s_decimal\" is other" } },
        { FILES "delta.arrow", NULL, { "the dictionary of column \"text\"", "several parts" } },
    };
    seen s;
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        const text_input_options o = { .text_field = refused[i].column };
        assert_error(read_one(refused[i].file, &o, 1, &s), refused[i].what[0],
                     refused[i].what[1] ? refused[i].what[1] : refused[i].what[0]);
        seen_free(&s);
    }
    assert_sees(FILES "ambiguous.arrow", &(text_input_options){ .text_field = "body" },
                "[0|b||||]");
}

/* More than a megabyte in one frame of linked blocks, with long runs and long literals. */
static void long_lz4_frames_are_read(void **state) {
    seen s;
    str want = { 0 };
    for (int i = 0; i < 120; i++) {
        str_add(&want, "[%d|", i);
        for (int k = 0; k < 9999; k++) str_add(&want, "%d", i % 7);
        for (int k = 0; k < i; k++) str_add(&want, "row %d ", i);
        str_add(&want, "||||]");
    }
    assert_ok(read_one(FILES "long-lz4.arrow", &(text_input_options){ 0 }, 1, &s));
    assert_string_equal(s.all.text, want.text);
    seen_free(&s);
    str_free(&want);
}

static void batches_are_split_into_segments(void **state) {
    const char *path = FILES "docs-pyarrow-stream.arrow"; /* 40 rows in batches of 7 */
    expect_segments(path, 0, 1);
    expect_segments(path, 1, 6);
}

static void a_batch_beyond_the_memory_limit_is_refused(void **state) {
    static const char *const files[] = { FILES "docs-pyarrow-stream-zstd.arrow",
                                         FILES "docs-polars.arrow" };
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        seen s;
        err e = read_one(files[i], &(text_input_options){ .page_bytes = 1000 }, 1, &s);
        assert_non_null(e);
        assert_non_null(strstr(err_remedy(e), "--memory"));
        assert_error(e, "at most 1000 B");
        seen_free(&s);
    }
    /* one that is not compressed is read in parts */
    seen s;
    assert_ok(
        read_one(FILES "docs-pyarrow.arrow", &(text_input_options){ .page_bytes = 3000 }, 1, &s));
    assert_int_equal(s.counts.documents, 33); /* of 40 rows, 7 have no text */
    seen_free(&s);
}

/* ---- damage ------------------------------------------------------------------------------------ */
static err read_copy(void *ctx, int64_t offset, void *to, size_t n) {
    const file_bytes *b = ctx;
    assert_true(offset >= 0 && (size_t)offset <= b->n && n <= b->n - (size_t)offset);
    memcpy(to, b->bytes + offset, n);
    return OK;
}

static volatile uint64_t touched;

/* Reads a column of a batch, in parts, and every byte of its values. @return the rows read. */
static int64_t read_batch(const parquet_file *f, int group, int column) {
    parquet_cursor *c = NULL;
    parquet_pages p = { 0 };
    int64_t rows = 0;
    bool more = true, text = parquet_column_at(f, column)->kind >= PARQUET_STRING;
    err e = parquet_cursor_open(f, group, column, &c);
    while (!e && more) {
        e = parquet_cursor_next(c, 1, &p, &more);
        if (e || !more) break;
        err wrong = parquet_decode(&p);
        for (int64_t i = 0; i < p.rows; i++)
            if (p.values[i].at && text)
                touched += hash_bytes(p.values[i].at, p.values[i].length, 0);
        if (!wrong) rows += p.rows;
        err_free(wrong);
    }
    err_free(e);
    parquet_pages_free(&p);
    parquet_cursor_close(c);
    return rows;
}

/* @return the values of all columns that can be read; -1 if the file is refused. */
static int64_t read_values(file_bytes *b) {
    parquet_source s = { "memory", (int64_t)b->n, b, read_copy };
    parquet_file *f = NULL;
    int64_t values = 0;
    err e = parquet_open(&s, &(parquet_limits){ .page_bytes = 1 << 20 }, NULL, &f);
    err_free(e);
    if (e) return -1;
    for (int i = 0; i < parquet_columns(f); i++) {
        e = parquet_check_column(f, i);
        for (int g = 0; g < parquet_groups(f) && !e; g++) values += read_batch(f, g, i);
        err_free(e);
    }
    parquet_close(f);
    return values;
}

static const char *const small_files[] = { FILES "small.arrow", FILES "small-zstd.arrow",
                                           FILES "small-lz4.arrow", FILES "small-views.arrow" };

/* Values are counted against those of the whole file: 3 rows of id, text and m.k. */
static void any_byte_of_an_arrow_file_may_be_wrong(void **state) {
    static const unsigned char flips[] = { 1, 0x80, 0xFF };
    int64_t odd = 0;
    for (size_t k = 0; k < COUNT_OF(small_files); k++) {
        file_bytes b = read_fixture(small_files[k]);
        assert_int_equal(read_values(&b), 9);
        for (size_t i = 0; i < b.n * COUNT_OF(flips); i++) {
            unsigned char flip = flips[i % COUNT_OF(flips)];
            b.bytes[i / COUNT_OF(flips)] ^= (char)flip;
            odd += read_values(&b) != 9;
            b.bytes[i / COUNT_OF(flips)] ^= (char)flip;
        }
        assert_int_equal(read_values(&b), 9);
        free(b.bytes);
    }
    assert_true(odd > 1000); /* most of these files is metadata */
}

static void any_length_of_an_arrow_file_may_be_left(void **state) {
    for (size_t k = 0; k < COUNT_OF(small_files); k++) {
        file_bytes b = read_fixture(small_files[k]);
        bool file = memcmp(b.bytes, "ARROW1", 6) == 0;
        size_t whole = b.n;
        for (size_t n = 0; n < whole; n++) {
            /* a copy of its own, so that the sanitizer sees reads past its end */
            file_bytes left = { mem_grow(NULL, n + !n), n };
            memcpy(left.bytes, b.bytes, n);
            int64_t values = read_values(&left);
            if (file)
                assert_int_equal(values, -1);
            else
                assert_true(values <= 9);
            free(left.bytes);
        }
        free(b.bytes);
    }
}

/* Found by tests/fuzz: offsets whose difference overflows. */
static void files_of_the_arrow_fuzzer_are_read(void **state) {
    file_bytes b = read_fixture(FILES "odd-offsets.arrow");
    assert_true(read_values(&b) >= 0);
    free(b.bytes);
}

static void a_damaged_batch_loses_its_rows(void **state) {
    test_folder *f = *state;
    file_bytes b = read_fixture(FILES "docs-feather-zstd.feather"); /* two batches of 20 rows */
    char *hit = memmem(b.bytes, b.n, "\x28\xB5\x2F\xFD", 4), *last = NULL;
    assert_non_null(hit);
    for (; hit; hit = memmem(hit + 1, b.n - (size_t)(hit + 1 - b.bytes), "\x28\xB5\x2F\xFD", 4))
        last = hit; /* the bytes of the column text, which is the last one */
    *last = 0;
    const char *path = write_input_bytes(f, "damaged.feather", b.bytes, b.n);
    seen s;
    assert_ok(read_one(path, &(text_input_options){ 0 }, 2, &s));
    assert_int_equal(s.counts.documents, 16); /* of 20 rows, 4 have no text */
    assert_int_equal(s.counts.unreadable, 20);
    seen_free(&s);
    assert_error(read_one(path, &(text_input_options){ .strict = true }, 2, &s), "damaged.feather",
                 "column \"text\" of record batch 1", "zstd data is damaged");
    seen_free(&s);
    const char *half = write_input_bytes(f, "half.arrow", b.bytes, b.n / 2);
    assert_error(read_one(half, &(text_input_options){ .strict = true }, 1, &s), "half.arrow",
                 "not a whole Arrow file", "truncated");
    seen_free(&s);
    assert_ok(read_one(half, &(text_input_options){ 0 }, 1, &s));
    assert_int_equal(s.counts.documents, 0);
    assert_int_equal(s.counts.unreadable, 1);
    seen_free(&s);
    free(b.bytes);
}

static void a_batch_that_claims_no_rows_is_damaged(void **state) {
    static const char seven[8] = { 7 };
    test_folder *f = *state;
    file_bytes b = read_fixture(FILES "docs-pyarrow-stream.arrow"); /* batches of 7 rows */
    char *rows = memmem(b.bytes, b.n, seven, sizeof seven);
    assert_non_null(rows);
    memset(rows, 0, sizeof seven);
    const char *path = write_input_bytes(f, "claims.arrow", b.bytes, b.n);
    seen s;
    assert_ok(read_one(path, &(text_input_options){ 0 }, 2, &s));
    assert_int_equal(s.counts.unreadable, 1); /* how many rows it has is not known */
    assert_true(s.counts.documents >= 26);    /* of the 33 in 40 rows */
    seen_free(&s);
    assert_error(read_one(path, &(text_input_options){ .strict = true }, 2, &s), "claims.arrow",
                 "column \"text\" of record batch 0", "number of rows");
    seen_free(&s);
    free(b.bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(arrow_documents_of_every_writer_are_read, text_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(rows_without_text_are_left_out, text_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(arrow_columns_are_found_or_refused, text_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(long_lz4_frames_are_read, text_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(batches_are_split_into_segments, text_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(a_batch_beyond_the_memory_limit_is_refused, text_setup,
                                        folder_teardown),
        cmocka_unit_test(any_byte_of_an_arrow_file_may_be_wrong),
        cmocka_unit_test(any_length_of_an_arrow_file_may_be_left),
        cmocka_unit_test(files_of_the_arrow_fuzzer_are_read),
        cmocka_unit_test_setup_teardown(a_batch_that_claims_no_rows_is_damaged, text_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(a_damaged_batch_loses_its_rows, text_setup,
                                        folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
