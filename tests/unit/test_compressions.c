/* Compressed inputs: files of other programs, and damaged ones, whose damage may not reach a document. */
#include "support/text.h"

#include "text/decompress.h"

static const struct {
    const char *path;
    const decoder *decode;
    bool checked; /* it has checksums */
} files[] = {
    { FIXTURES "/compressed/lines.jsonl.bz2", &decode_bzip2, true },
    { FIXTURES "/compressed/lines.jsonl.xz", &decode_xz, true },
    { FIXTURES "/compressed/lines.jsonl.lz4", &decode_lz4, true },
    { FIXTURES "/compressed/lines.jsonl.br", &decode_brotli, false },
};

static void add_lines(str *out, int n) {
    for (int i = 0; i < n; i++)
        str_add(out, "{\"id\":%d,\"text\":\"line %lld of a file\"}\n", i, (long long)i * i);
}

static void files_of_other_programs_are_read(void **state) {
    str lines = { 0 };
    seen plain;
    add_lines(&lines, 300);
    const char *path = write_input_bytes(*state, "a.jsonl", lines.text, lines.len);
    assert_ok(read_one(path, &(text_input_options){ 0 }, 1, &plain));
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        seen s;
        const text_input_options strict = { .strict = true, .block_bytes = 1000 };
        err e = read_one(files[i].path, &strict, 2, &s);
        if (files[i].decode->package) {
            assert_error(e, files[i].path, "cannot decompress");
        } else {
            assert_ok(e);
            assert_string_equal(s.all.text, plain.all.text);
        }
        seen_free(&s);
    }
    seen_free(&plain);
    str_free(&lines);
}

/* The content shows the compression where the name does not, except Brotli's. */
static void compressions_show_in_the_content(void **state) {
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        char *bytes = NULL;
        size_t n;
        seen s;
        if (files[i].decode->package || !files[i].checked) continue;
        assert_ok(io_read(files[i].path, 1 << 20, &bytes, &n));
        assert_ok(read_one(folder_write_bytes(*state, "noname", bytes, n),
                           &(text_input_options){ 0 }, 1, &s));
        assert_int_equal(s.counts.documents, 300);
        seen_free(&s);
        free(bytes);
    }
}

/* ---- damage ------------------------------------------------------------------------------------ */
/* Reads damaged bytes. What is read must be a part of what the whole file has, from its beginning; anything less is
 * counted, and an error with `strict`. */
static void expect_no_damaged_document(test_folder *f, const char *name, const char *bytes,
                                       size_t n, const seen *whole) {
    const char *path = folder_write_bytes(f, name, bytes, n);
    seen s;
    assert_ok(read_one(path, &(text_input_options){ 0 }, 2, &s));
    const char *all = s.all.text ? s.all.text : "";
    if (strncmp(all, whole->all.text, strlen(all)) != 0)
        fail_msg("%s: a document was read that the file does not have", name);
    bool less = s.counts.documents < whole->counts.documents;
    if (less && (s.counts.unreadable == 0 || s.counts.lost_bytes < 20))
        fail_msg("%s: %lld documents lost in silence", name,
                 (long long)(whole->counts.documents - s.counts.documents));
    seen_free(&s);
    err e = read_one(path, &(text_input_options){ .strict = true }, 2, &s);
    if (less) assert_non_null(e);
    err_free(e);
    seen_free(&s);
}

static void flip_and_read(test_folder *f, const char *name, char *bytes, size_t n, int times,
                          uint64_t seed, const seen *whole) {
    for (uint64_t i = 0; i < (uint64_t)times; i++) {
        size_t at = rng_below(rng_key_of(39, seed), 2 * i, n);
        char was = bytes[at];
        bytes[at] ^= (char)(1 << rng_below(rng_key_of(39, seed), 2 * i + 1, 8));
        expect_no_damaged_document(f, name, bytes, n, whole);
        bytes[at] = was;
    }
}

static void damaged_files_of_other_programs(void **state) {
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        char *bytes = NULL;
        size_t n;
        seen whole;
        if (files[i].decode->package || !files[i].checked) continue;
        assert_ok(io_read(files[i].path, 1 << 20, &bytes, &n));
        assert_ok(read_one(files[i].path, &(text_input_options){ 0 }, 1, &whole));
        flip_and_read(*state, strrchr(files[i].path, '/') + 1, bytes, n, SANITIZED ? 20 : 100, i,
                      &whole);
        seen_free(&whole);
        free(bytes);
    }
}

/* As zstd's own program does, with a checksum. */
static void add_checked_zstd(const char *bytes, size_t n, str *out) {
    ZSTD_CCtx *z = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(z, ZSTD_c_checksumFlag, 1);
    str_reserve(out, ZSTD_compressBound(n));
    size_t made = ZSTD_compress2(z, out->text + out->len, out->cap - out->len, bytes, n);
    assert_false(ZSTD_isError(made));
    out->len += made;
    ZSTD_freeCCtx(z);
}

/* Frames that are held back, and one that is too long for that and is decompressed twice. */
static void damaged_frames_are_not_passed_on(void **state) {
    static const struct {
        const char *name;
        void (*add)(const char *, size_t, str *);
        int lines, frames, times;
    } cases[] = {
        { "a.jsonl.gz", add_gzip, 2000, 1, 40 },
        { "a.jsonl.gz", add_gzip, 2000, 5, 40 },
        { "a.jsonl.gz", add_gzip, 150000, 1, 6 },
        { "a.jsonl.zst", add_checked_zstd, 2000, 1, 40 },
        { "a.jsonl.zst", add_checked_zstd, 2000, 5, 40 },
        { "a.jsonl.zst", add_checked_zstd, 150000, 1, 6 },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        str lines = { 0 }, packed = { 0 };
        size_t at = 0;
        add_lines(&lines, cases[i].lines);
        for (int k = 0; k < cases[i].frames; k++) {
            size_t end = lines.len * (size_t)(k + 1) / (size_t)cases[i].frames;
            cases[i].add(lines.text + at, end - at, &packed);
            at = end;
        }
        seen whole;
        assert_ok(read_one(folder_write_bytes(*state, cases[i].name, packed.text, packed.len),
                           &(text_input_options){ .strict = true }, 2, &whole));
        assert_int_equal(whole.counts.documents, cases[i].lines);
        flip_and_read(*state, cases[i].name, packed.text, packed.len,
                      SANITIZED ? cases[i].times / 5 + 1 : cases[i].times, 100 + i, &whole);
        seen_free(&whole);
        str_free(&lines);
        str_free(&packed);
    }
}

/* A file that ends early is not wrong up to there: its documents are used, also those of a long frame. */
static void documents_before_the_end_are_used(void **state) {
    for (int n = 3000; n <= 300000; n *= 10) {
        str lines = { 0 }, packed = { 0 };
        seen s;
        add_lines(&lines, n);
        add_gzip(lines.text, lines.len, &packed);
        const char *path = folder_write_bytes(*state, "a.jsonl.gz", packed.text, packed.len / 2);
        assert_ok(read_one(path, &(text_input_options){ 0 }, 2, &s));
        assert_in_range(s.counts.documents, n / 3, n * 2 / 3);
        assert_int_equal(s.counts.unreadable, 1);
        seen_free(&s);
        str_free(&lines);
        str_free(&packed);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, text_setup, folder_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(files_of_other_programs_are_read),  TEST(compressions_show_in_the_content),
        TEST(damaged_files_of_other_programs),   TEST(damaged_frames_are_not_passed_on),
        TEST(documents_before_the_end_are_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
