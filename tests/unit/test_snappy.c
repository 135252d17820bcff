/* Snappy data made by hand: random sequences of all kinds of elements, and damage. Files by pyarrow, DuckDB and
 * Polars are read by test_parquet. */
#include "support/test.h"

#include "parquet/parquet_internal.h"

typedef struct snappy_data {
    str elements, text; /* the elements, without the length that precedes them; what they yield */
    rng_key key;
    uint64_t drawn;
} snappy_data;

static size_t draw_below(snappy_data *d, size_t n) { return rng_u32(d->key, d->drawn++) % n; }

static void add_bytes_of(str *s, size_t v, int bytes) {
    for (int i = 0; i < bytes; i++) str_add_bytes(s, &(char){ (char)(v >> 8 * i) }, 1);
}

/* @param length_bytes 0: the length is in the tag */
static void add_literal(snappy_data *d, size_t n, int length_bytes) {
    add_bytes_of(&d->elements, (length_bytes ? 59 + (size_t)length_bytes : n - 1) << 2, 1);
    add_bytes_of(&d->elements, n - 1, length_bytes);
    for (size_t i = 0; i < n; i++) {
        char c = (char)draw_below(d, 256);
        str_add_bytes(&d->elements, &c, 1);
        str_add_bytes(&d->text, &c, 1);
    }
}

/* @param kind 1 to 3, by the bytes of the distance: 1, 2, 4 */
static void add_copy(snappy_data *d, size_t kind, size_t back, size_t n) {
    size_t tag = kind == 1 ? back >> 8 << 5 | (n - 4) << 2 : (n - 1) << 2;
    add_bytes_of(&d->elements, tag | kind, 1);
    add_bytes_of(&d->elements, kind == 1 ? back & 255 : back, kind == 3 ? 4 : (int)kind);
    for (size_t i = 0; i < n && back - 1 < d->text.len; i++)
        str_add_bytes(&d->text, &(char){ d->text.text[d->text.len - back] }, 1);
}

/* Mostly short elements, as in text; half of the distances are short, so that many copies overlap. */
static void add_random_element(snappy_data *d) {
    size_t kind = d->text.len ? draw_below(d, 20) : 0;
    if (kind < 5) {
        bool is_long = draw_below(d, 20) == 0;
        size_t n = 1 + draw_below(d, is_long ? 300 : draw_below(d, 4) ? 10 : 60);
        add_literal(d, n, is_long ? 2 + (int)draw_below(d, 2) : 0);
        return;
    }
    kind = kind == 5 ? 3 : 1 + kind % 2;
    size_t most = MIN(d->text.len, (size_t)(kind == 1 ? 2047 : 65535));
    size_t back = 1 + draw_below(d, draw_below(d, 2) ? most : MIN(most, (size_t)40));
    add_copy(d, kind, back, kind == 1 ? 4 + draw_below(d, 8) : 1 + draw_below(d, 64));
}

static void snappy_data_free(snappy_data *d) {
    str_free(&d->elements);
    str_free(&d->text);
}

static void add_snappy_length(str *s, size_t n) {
    for (; n > 127; n >>= 7) add_bytes_of(s, n | 128, 1);
    add_bytes_of(s, n, 1);
}

/* Decodes copies of exactly the right sizes, so that the sanitizer sees accesses past their end. *same: whether the
 * result is d->text. */
static const char *decode_elements(const snappy_data *d, size_t n, size_t size, bool *same) {
    str head = { 0 };
    add_snappy_length(&head, size);
    char *in = mem_grow(NULL, head.len + n), *out = mem_grow(NULL, size + !size);
    memcpy(in, head.text, head.len);
    if (n) memcpy(in + head.len, d->elements.text, n);
    const char *wrong = snappy_decompress(in, head.len + n, out, size);
    *same = !wrong && size == d->text.len && (!size || !memcmp(out, d->text.text, size));
    free(in);
    free(out);
    str_free(&head);
    return wrong;
}

static void all_kinds_of_elements_are_decoded(void **state) {
    for (int i = 0; i < 300; i++) {
        snappy_data d = { .key = rng_key_of(7, (uint64_t)i) };
        bool same;
        for (int k = 0; k < i; k++) add_random_element(&d);
        assert_null(decode_elements(&d, d.elements.len, d.text.len, &same));
        assert_true(same);
        snappy_data_free(&d);
    }
}

/* The text is made of at most 20 elements, or of so many that most are decoded by the fast loop. */
static void truncated_snappy_data_is_refused(void **state) {
    for (int i = 0; i < 2; i++) {
        snappy_data d = { .key = rng_key_of(8, (uint64_t)i) };
        bool same;
        for (int k = 0; k < (i ? 200 : 20); k++) add_random_element(&d);
        for (size_t n = 0; n < d.elements.len; n++)
            assert_non_null(decode_elements(&d, n, d.text.len, &same));
        assert_non_null(decode_elements(&d, d.elements.len, d.text.len - 1, &same));
        assert_non_null(decode_elements(&d, d.elements.len, d.text.len + 1, &same));
        snappy_data_free(&d);
    }
}

/* A copy from before the beginning, or from where it goes, near the beginning and in the fast loop. */
static void impossible_distances_are_refused(void **state) {
    static const size_t before[] = { 1, 60, 64, 100, 500 };
    for (size_t i = 0; i < COUNT_OF(before); i++)
        for (size_t kind = 1; kind <= 3; kind++)
            for (size_t extra = 0; extra < 2; extra++) {
                snappy_data d = { .key = rng_key_of(9, i) };
                bool same;
                add_literal(&d, before[i], 2);
                add_copy(&d, kind, extra ? before[i] + 1 : 0, 8);
                d.text.len = before[i] + 8;
                for (size_t n = 0; n < 8; n++) add_literal(&d, 20, 0); /* slack for the loop */
                assert_string_equal(decode_elements(&d, d.elements.len, before[i] + 8 + 160, &same),
                                    "the Snappy data is damaged");
                snappy_data_free(&d);
            }
}

static void any_byte_of_snappy_data_may_be_wrong(void **state) {
    snappy_data d = { .key = rng_key_of(10, 0) };
    bool same;
    for (int k = 0; k < 200; k++) add_random_element(&d);
    for (size_t i = 0; i < d.elements.len; i++) {
        char was = d.elements.text[i];
        d.elements.text[i] = (char)draw_below(&d, 256);
        (void)decode_elements(&d, d.elements.len, d.text.len, &same); /* the sanitizer judges */
        d.elements.text[i] = was;
    }
    assert_null(decode_elements(&d, d.elements.len, d.text.len, &same));
    assert_true(same);
    snappy_data_free(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_kinds_of_elements_are_decoded),
        cmocka_unit_test(truncated_snappy_data_is_refused),
        cmocka_unit_test(impossible_distances_are_refused),
        cmocka_unit_test(any_byte_of_snappy_data_may_be_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
