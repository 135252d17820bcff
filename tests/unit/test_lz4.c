/* LZ4 blocks and frames made by hand: every flag of a frame, checksums, copies across blocks, and damage. Files by
 * pyarrow, Polars and DuckDB are read by test_arrow and test_parquet. */
#include "support/test.h"

#include <xxhash.h>

#include "parquet/parquet_internal.h"

/* 5 literals, 20 bytes that repeat the last 5, and 3 literals. */
static const char block[] = "\x5F"
                            "abcde"
                            "\x05\x00"
                            "\x01"
                            "\x30"
                            "xyz";
static const char text[] = "abcdeabcdeabcdeabcdeabcdexyz";
enum { BLOCK = sizeof block - 1, TEXT = sizeof text - 1 };

static void add_number(str *s, uint64_t v, int bytes) {
    for (int i = 0; i < bytes; i++) str_add_bytes(s, &(char){ (char)(v >> 8 * i) }, 1);
}

static void add_frame_block(str *s, const char *bytes, size_t n, bool plain, bool sum) {
    add_number(s, n | (plain ? (uint64_t)1 << 31 : 0), 4);
    str_add_bytes(s, bytes, n);
    if (sum) add_number(s, XXH32(bytes, n, 0), 4);
}

enum { LINKED = 1, BLOCK_SUMS = 2, LENGTH = 4, CONTENT_SUM = 8, ALL_FLAGS = 16 };

/* The text as a block, and once more as a plain one. */
static void make_frame(str *s, int flags) {
    s->len = 0;
    add_number(s, 0x184D2204, 4);
    add_number(s,
               (uint64_t)(1 << 6 | !(flags & LINKED) << 5 | !!(flags & BLOCK_SUMS) << 4 |
                          !!(flags & LENGTH) << 3 | !!(flags & CONTENT_SUM) << 2),
               1);
    add_number(s, 4 << 4, 1);
    if (flags & LENGTH) add_number(s, 2 * TEXT, 8);
    add_number(s, XXH32(s->text + 4, s->len - 4, 0) >> 8 & 255, 1);
    add_frame_block(s, block, BLOCK, false, flags & BLOCK_SUMS);
    add_frame_block(s, text, TEXT, true, flags & BLOCK_SUMS);
    add_number(s, 0, 4);
    str twice = { 0 };
    str_add(&twice, "%s%s", text, text);
    if (flags & CONTENT_SUM) add_number(s, XXH32(twice.text, twice.len, 0), 4);
    str_free(&twice);
}

/* Copies of exactly the right sizes let the sanitizer see accesses past their end. */
static const char *decompress(bool frame, const char *from, size_t n, char *to, size_t size) {
    char *in = mem_grow(NULL, n + !n), *out = mem_grow(NULL, size + !size);
    memcpy(in, from, n);
    const char *wrong =
        frame ? lz4_frame_decompress(in, n, out, size) : lz4_block_decompress(in, n, out, size);
    if (!wrong) memcpy(to, out, size);
    free(in);
    free(out);
    return wrong;
}

static void frames_with_all_flags_are_read(void **state) {
    str s = { 0 };
    for (int flags = 0; flags < ALL_FLAGS; flags++) {
        char out[2 * TEXT];
        make_frame(&s, flags);
        assert_null(decompress(true, s.text, s.len, out, sizeof out));
        assert_memory_equal(out, text, TEXT);
        assert_memory_equal(out + TEXT, text, TEXT);
        for (size_t n = 0; n < s.len; n++)
            assert_non_null(decompress(true, s.text, n, out, sizeof out));
        assert_non_null(decompress(true, s.text, s.len, out, sizeof out - 1));
        str_add_bytes(&s, "", 1);
        assert_non_null(decompress(true, s.text, s.len, out, sizeof out));
    }
    str_free(&s);
}

static void checksums_of_frames_are_verified(void **state) {
    static const struct {
        int flags;
        size_t from, to; /* bytes that cannot change unnoticed, from either end */
    } cases[] = { { 0, 0, 7 }, { LENGTH, 0, 15 }, { BLOCK_SUMS, 11, 11 + BLOCK } };
    str s = { 0 };
    char out[2 * TEXT];
    for (size_t k = 0; k < COUNT_OF(cases); k++)
        for (size_t i = cases[k].from; i < cases[k].to; i++) {
            make_frame(&s, cases[k].flags);
            s.text[i] ^= 1;
            assert_non_null(decompress(true, s.text, s.len, out, sizeof out));
        }
    make_frame(&s, CONTENT_SUM);
    s.text[s.len - 10] ^= 1; /* in the plain block */
    assert_string_equal(decompress(true, s.text, s.len, out, sizeof out),
                        "the LZ4 data is damaged");
    str_free(&s);
}

static void a_copy_reaches_into_the_block_before_if_they_are_linked(void **state) {
    static const char back[] = "\x0F"
                               "\x1C\x00"
                               "\x09"
                               "\x00"; /* 28 bytes, 28 bytes back */
    for (int linked = 0; linked < 2; linked++) {
        str s = { 0 };
        char out[2 * TEXT];
        add_number(&s, 0x184D2204, 4);
        add_number(&s, (uint64_t)(1 << 6 | !linked << 5), 1);
        add_number(&s, 4 << 4, 1);
        add_number(&s, XXH32(s.text + 4, 2, 0) >> 8 & 255, 1);
        add_frame_block(&s, text, TEXT, true, false);
        add_frame_block(&s, back, sizeof back - 1, false, false);
        add_number(&s, 0, 4);
        const char *wrong = decompress(true, s.text, s.len, out, sizeof out);
        if (linked) {
            assert_null(wrong);
            assert_memory_equal(out + TEXT, text, TEXT);
        } else {
            assert_string_equal(wrong, "the LZ4 data is damaged");
        }
        str_free(&s);
    }
}

static void damaged_blocks_are_refused(void **state) {
    static const struct {
        const char *bytes;
        size_t n, size;
    } damaged[] = {
        { "", 0, 0 },                /* not even a token */
        { "\xF0\xFF\xFF", 3, 1000 }, /* a length without end */
        { "\x50"
          "abc",
          4, 5 }, /* literals beyond the input */
        { "\x50"
          "abcde",
          6, 4 }, /* and beyond the output */
        { "\x10"
          "a"
          "\x00\x00"
          "\x00",
          5, 5 }, /* a copy from where it goes */
        { "\x10"
          "a"
          "\x02\x00"
          "\x00",
          5, 5 }, /* from before the beginning */
        { "\x10"
          "a"
          "\x01\x00"
          "\x00",
          5, 4 }, /* beyond the output */
        { "\x10"
          "a"
          "\x01",
          3, 5 }, /* half a distance */
        { "\x10"
          "a"
          "\x01\x00",
          4, 5 }, /* no literals at the end */
        { "\x10"
          "a"
          "\x01\x00"
          "\x00",
          5, 6 }, /* less than was promised */
    };
    char out[1000];
    for (size_t i = 0; i < COUNT_OF(damaged); i++)
        assert_non_null(decompress(false, damaged[i].bytes, damaged[i].n, out, damaged[i].size));
    assert_null(decompress(false,
                           "\x10"
                           "a"
                           "\x01\x00"
                           "\x00",
                           5, out, 5));
    assert_memory_equal(out, "aaaaa", 5);
    assert_null(decompress(false, "", 1, out, 0)); /* a token of nothing */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_with_all_flags_are_read),
        cmocka_unit_test(checksums_of_frames_are_verified),
        cmocka_unit_test(a_copy_reaches_into_the_block_before_if_they_are_linked),
        cmocka_unit_test(damaged_blocks_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
