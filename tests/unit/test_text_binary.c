/* Inputs that are not text are refused by their content, whatever their name, and NUL is an invalid
 * byte in every format. */
#include "support/text.h"

#include <iconv.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define UTF8_BAD "\xEF\xBF\xBD"

static void expect_refused(const char *path, const char *why) {
    seen s;
    text_input_options strict = { .strict = true };
    if (!strstr(why, "Parquet file") &&
        !strstr(why, "Arrow file")) { /* those are damaged: skipped and counted */
        assert_error(read_one(path, &(text_input_options){ 0 }, 2, &s), why);
        seen_free(&s);
    }
    assert_error(read_one(path, &strict, 1, &s), why);
    seen_free(&s);
}

static const struct {
    const char *bytes;
    size_t n, offset;
    const char *kind;
} known[] = {
    { "PAR1\x15\x04\x15\x10", 8, 0, "Parquet file" },
    { "ARROW1\0\0\xFF\xFF", 10, 0, "Arrow file" },
    { "\xFF\xFF\xFF\xFF\xF8\0\0\0\x10", 9, 0, "Arrow file" },
    { "FEA1\0\0\0\0", 8, 0, "a Feather file of version 1" },
    { "%PDF-1.7\n1 0 obj\n<< /Type /Catalog >>\n", 38, 0, "a PDF file" },
    { "\x89PNG\r\n\x1A\n\0\0\0\rIHDR", 16, 0, "a PNG image" },
    { "PK\x03\x04\x14\0", 6, 0, "a zip archive" },
    { "\x02\x21\x4C\x18", 4, 0, "LZ4 data of the legacy format" },
    { "SQLite format 3\0", 16, 0, "an SQLite database" },
    { "INGOTTOK\x02\0\0\0", 12, 0, "a token shard" },
    { "\xFF\xFEt\0e\0x\0t\0", 10, 0, "UTF-16" },
    { "\xFE\xFF\0t\0e\0x\0t", 10, 0, "UTF-16" },
};

static void known_formats_are_refused_by_content(void **state) {
    test_folder *f = *state;
    static const char *const names[] = { "a.txt", "a.jsonl",  "a.json",     "a.warc",
                                         "a",     "a.txt.gz", "a.jsonl.zst" };
    for (size_t i = 0; i < COUNT_OF(known); i++)
        for (size_t k = 0; k < COUNT_OF(names); k++) {
            char bytes[1024];
            memset(bytes, 'x', sizeof bytes);
            memcpy(bytes + known[i].offset, known[i].bytes, known[i].n);
            expect_refused(write_input_bytes(f, names[k], bytes, sizeof bytes), known[i].kind);
        }
}

static void add_random(str *out, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char byte = (char)rng_u32(rng_key_of(7, 7), i);
        str_add_bytes(out, &byte, 1);
    }
}

static void unknown_binary_data_is_refused(void **state) {
    test_folder *f = *state;
    str bytes = { 0 };
    str_add_bytes(&bytes, "Q", 1);
    add_random(&bytes, 9000);
    expect_refused(write_input_bytes(f, "a.jsonl", bytes.text, bytes.len), "is not text");
    expect_refused(write_input_bytes(f, "a.txt.gz", bytes.text, bytes.len), "is not text");
    bytes.len = 400;
    expect_refused(write_input_bytes(f, "a", bytes.text, bytes.len), "is not text");
    str_free(&bytes);
    /* UTF-16 without a byte order mark */
    expect_refused(write_input_bytes(f, "a.txt", "p\0l\0a\0i\0n\0\n\0", 12), "is not text");
}

/* Text in the encoding of `name`, converted with iconv. */
static void write_encoded(test_folder *f, const char *file, const char *name, const char *utf8) {
    iconv_t to = iconv_open(name, "UTF-8");
    assert_true(to != (iconv_t)-1);
    char bytes[4096], *in = (char *)(uintptr_t)utf8, *out = bytes;
    size_t left = strlen(utf8), space = sizeof bytes;
    assert_true(iconv(to, &in, &left, &out, &space) != (size_t)-1);
    iconv_close(to);
    write_input_bytes(f, file, bytes, sizeof bytes - space);
}

static void text_in_other_encodings_is_refused(void **state) {
    test_folder *f = *state;
    static const char chinese[] = "中文文本没有空格，也没有换行。中文文本没有空格，也没有换行。",
                      japanese[] = "日本語の文章には空白がありません。ひらがなとカタカナ。",
                      russian[] = "Все счастливые семьи похожи друг на друга";
    static const struct {
        const char *name, *text;
    } encoded[] = {
        { "UTF-16LE", chinese },   { "UTF-16BE", chinese },     { "GB18030", chinese },
        { "SHIFT_JIS", japanese }, { "UTF-16LE", japanese },    { "EUC-JP", japanese },
        { "KOI8-R", russian },     { "WINDOWS-1251", russian }, { "UTF-16BE", russian }
    };
    for (size_t i = 0; i < COUNT_OF(encoded); i++) {
        write_encoded(f, "a.txt", encoded[i].name, encoded[i].text);
        expect_refused(in_folder(f, "a.txt"), "is not ");
    }
    /* Pages state their encoding, and --format reads what it is told to. */
    write_encoded(f, "a.html", "KOI8-R",
                  "<meta charset=koi8-r><p>Все счастливые семьи похожи.</p>");
    write_encoded(f, "a.txt", "KOI8-R", russian);
    write_encoded(f, "b.txt", "UTF-8", japanese);
    static const char *const names[] = { "a.html", "a.txt", "b.txt" }, *const formats[] = { NULL,
                                                                                            "text",
                                                                                            NULL };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        seen s;
        assert_ok(
            read_one(in_folder(f, names[i]), &(text_input_options){ .format = formats[i] }, 1, &s));
        assert_int_equal(s.counts.repaired, i == 1);
        seen_free(&s);
    }
}

static void text_with_odd_bytes_is_read(void **state) {
    test_folder *f = *state;
    const text_input_options plain = { 0 };
    str warc = { 0 };
    str_add(&warc, "WARC/1.0\r\nWARC-Type: metadata\r\nContent-Length: 900\r\n\r\n");
    add_random(&warc, 900);
    str_add(&warc, "\r\n\r\nWARC/1.0\r\nWARC-Type: conversion\r\nContent-Type: text/plain\r\n"
                   "Content-Length: 2\r\n\r\nhi\r\n\r\n");
    seen s;
    assert_ok(read_one(write_input_bytes(f, "a.warc", warc.text, warc.len), &plain, 1, &s));
    assert_int_equal(s.counts.documents, 1);
    seen_free(&s);
    str_free(&warc);
    static const char *const texts[] = { "caf\xE9 \xE0 la cr\xE8me", "\x1B[1mbold\x1B[0m",
                                         "PARIS and GIFTS", "%PDF is a format", "BZhang" };
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        assert_ok(read_one(write_input(f, "a.txt", texts[i]), &plain, 1, &s));
        assert_int_equal(s.counts.documents, 1);
        seen_free(&s);
    }
}

static void a_pipe_is_checked_when_it_is_read(void **state) {
    test_folder *f = *state;
    const char *path = in_folder(f, "fifo");
    assert_int_equal(mkfifo(path, 0600), 0);
    static const text_input_options options[] = { { 0 }, { .format = "text" } };
    for (size_t i = 0; i < COUNT_OF(options); i++) {
        pid_t writer = fork();
        assert_true(writer >= 0);
        if (writer == 0) {
            write_bytes(path, "PAR1\x15\x04", 6);
            _exit(0);
        }
        seen s;
        assert_error(read_one(path, &options[i], 2, &s), "a Parquet or Arrow file");
        seen_free(&s);
        waitpid(writer, NULL, 0);
    }
}

/* The same document with a NUL as text, in a JSON string, and escaped. */
static void nul_is_an_invalid_byte_in_every_format(void **state) {
    test_folder *f = *state;
    static const struct {
        const char *name, *bytes;
        size_t n;
    } inputs[] = { { "a.txt", "one\0two", 7 },
                   { "a.jsonl", "{\"text\":\"one\0two\"}\n", 19 },
                   { "b.jsonl", "{\"text\":\"one\\u0000two\"}\n", 24 } };
    for (size_t i = 0; i < COUNT_OF(inputs); i++) {
        const char *path = write_input_bytes(f, inputs[i].name, inputs[i].bytes, inputs[i].n);
        seen s;
        assert_ok(read_one(path, &(text_input_options){ 0 }, 1, &s));
        assert_non_null(strstr(s.all.text, "[0|one" UTF8_BAD "two|"));
        assert_int_equal(s.counts.repaired, 1);
        assert_int_equal(s.counts.unreadable, 0);
        seen_free(&s);
        assert_ok(read_one(path, &(text_input_options){ .invalid = TEXT_REFUSE }, 1, &s));
        assert_int_equal(s.counts.documents, 0);
        assert_int_equal(s.counts.invalid, 1);
        seen_free(&s);
    }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, text_setup, folder_teardown)
    const struct CMUnitTest tests[] = {
        TEST(known_formats_are_refused_by_content), TEST(unknown_binary_data_is_refused),
        TEST(text_in_other_encodings_is_refused),   TEST(text_with_odd_bytes_is_read),
        TEST(a_pipe_is_checked_when_it_is_read),    TEST(nul_is_an_invalid_byte_in_every_format),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
