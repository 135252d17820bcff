/* The random number generator against the vectors its authors published. */
#include "support/test.h"

/* tests/kat_vectors of Random123 (D. E. Shaw Research), the lines "philox4x32 10" and those of attention's dropout,
 * "philox4x32 7". */
static const struct {
    uint32_t counter[4], key[2], expected[4], after_seven[4];
} PUBLISHED[] = {
    { { 0, 0, 0, 0 },
      { 0, 0 },
      { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 },
      { 0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48 } },
    { { UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX },
      { UINT32_MAX, UINT32_MAX },
      { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd },
      { 0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662 } },
    { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
      { 0xa4093822, 0x299f31d0 },
      { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 },
      { 0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a } },
};

static void philox_gives_the_published_numbers(void **state) {
    for (size_t i = 0; i < COUNT_OF(PUBLISHED); i++) {
        uint32_t out[4];
        rng_key key = { { PUBLISHED[i].key[0], PUBLISHED[i].key[1] } };
        philox4x32(key, PUBLISHED[i].counter, PHILOX_ROUNDS, out);
        assert_memory_equal(out, PUBLISHED[i].expected, sizeof out);
        philox4x32(key, PUBLISHED[i].counter, 7, out);
        assert_memory_equal(out, PUBLISHED[i].after_seven, sizeof out);
    }
}

/* Element i of a stream is word i % 4 of block i / 4: the counter's low 64 bits. */
static void elements_are_the_words_of_the_blocks(void **state) {
    rng_key zero = { { 0, 0 } };
    for (uint64_t i = 0; i < 4; i++) assert_int_equal(rng_u32(zero, i), PUBLISHED[0].expected[i]);
    uint64_t far = ((uint64_t)5 << 34) + 2; /* block 5 * 2^32 */
    uint32_t counter[4] = { 0, 5, 0, 0 }, out[4];
    philox4x32(zero, counter, PHILOX_ROUNDS, out);
    assert_int_equal(rng_u32(zero, far), out[2]);
}

static void normals_at_once_are_normals_one_by_one(void **state) {
    enum { N = 23 };
    rng_key key = rng_key_of(3, 4);
    float many[N];
    for (uint64_t first = 0; first < 5; first++) {
        rng_normals(key, first, N, many);
        for (uint64_t i = 0; i < N; i++) assert_true(many[i] == rng_normal(key, first + i));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_numbers),
        cmocka_unit_test(elements_are_the_words_of_the_blocks),
        cmocka_unit_test(normals_at_once_are_normals_one_by_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
