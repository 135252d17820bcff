/* The order of windows: a Feistel network over the smallest power of two that holds n, applied until
 * the result is below n. That stays on one cycle of a bijection, so the result is a bijection of
 * [0, n) too; it takes fewer than two applications on average. */
#include "shards/data.h"

enum { ROUNDS = 6 }; /* even, so that the halves end up as wide as they began */
/* Separates these draws from those of other users of the seed. */
static const uint64_t DRAWS_ORDER = (uint64_t)0x6f72646572 << 20; /* "order" */

static uint64_t mix_bits(uint64_t x) {
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93u;
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93u;
    return x ^ x >> 32;
}

/* The halves may differ by a bit; they change sides in every round. */
static uint64_t feistel(uint64_t key, int bits, uint64_t x) {
    int left_bits = bits / 2, right_bits = bits - left_bits;
    uint64_t left = x >> right_bits, right = x & (((uint64_t)1 << right_bits) - 1);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t mask = ((uint64_t)1 << (round % 2 ? right_bits : left_bits)) - 1;
        uint64_t next = left ^ (mix_bits(right + key + round * 0x9E3779B97F4A7C15u) & mask);
        left = right;
        right = next;
    }
    return left << right_bits | right;
}

int64_t data_permute(uint64_t seed, int64_t epoch, int64_t n, int64_t i) {
    BUG_IF(i < 0 || i >= n || n > (int64_t)1 << 60);
    int bits = 2;
    while ((uint64_t)n > (uint64_t)1 << bits) bits++;
    rng_key key = rng_key_of(seed, DRAWS_ORDER + (uint64_t)epoch);
    uint64_t k = (uint64_t)key.k[1] << 32 | key.k[0], x = (uint64_t)i;
    do x = feistel(k, bits, x);
    while (x >= (uint64_t)n);
    return (int64_t)x;
}
