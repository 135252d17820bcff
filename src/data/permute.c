/* The order of windows: a Feistel network over the smallest square power of two that holds n,
 * walked until it lands below n. A walk stays on one cycle of a bijection, so the result is a
 * bijection of [0, n) too. */
#include "data/data.h"

enum { ROUNDS = 6 };
/* Keeps the keys of this generator apart from other users of the same seed. */
static const uint64_t STREAM_ORDER = (uint64_t)0x6f72646572 << 20; /* "order" */

static uint64_t feistel(rng_key key, int half_bits, uint64_t x) {
    uint64_t mask = ((uint64_t)1 << half_bits) - 1;
    uint64_t left = x >> half_bits, right = x & mask;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t ctr[4] = { (uint32_t)right, (uint32_t)(right >> 32), round, 0 }, f[4];
        philox4x32(key, ctr, f);
        uint64_t next = left ^ (((uint64_t)f[1] << 32 | f[0]) & mask);
        left = right;
        right = next;
    }
    return left << half_bits | right;
}

int64_t data_permute(uint64_t seed, int64_t epoch, int64_t n, int64_t i) {
    BUG_IF(i < 0 || i >= n || n > (int64_t)1 << 60);
    int half_bits = 1;
    while ((uint64_t)n > (uint64_t)1 << (2 * half_bits)) half_bits++;
    rng_key key = rng_key_of(seed, STREAM_ORDER + (uint64_t)epoch);
    uint64_t x = (uint64_t)i;
    do x = feistel(key, half_bits, x);
    while (x >= (uint64_t)n);
    return (int64_t)x;
}
