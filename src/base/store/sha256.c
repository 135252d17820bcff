/* SHA-256 (FIPS 180-4) of a request's body, which its signature covers. */
#include <math.h>
#include <string.h>

#include "store/store_internal.h"

/* The first 32 bits of the fractional parts of roots of the first primes: square roots begin the state, cube
 * roots are the rounds' constants. Both are exact in a double's 53 bits. */
typedef struct sha_constants {
    uint32_t begin[8], round[64];
} sha_constants;

static uint32_t fraction_bits(double x) { return (uint32_t)((x - floor(x)) * 4294967296.0); }

static sha_constants make_constants(void) {
    sha_constants c;
    for (int prime = 2, n = 0; n < 64; prime++) {
        bool is_prime = true;
        for (int d = 2; d * d <= prime && is_prime; d++) is_prime = prime % d != 0;
        if (!is_prime) continue;
        if (n < 8) c.begin[n] = fraction_bits(sqrt(prime));
        c.round[n++] = fraction_bits(cbrt(prime));
    }
    return c;
}

static uint32_t rotate_right(uint32_t x, int by) { return x >> by | x << (32 - by); }

static void add_block(uint32_t s[8], const sha_constants *c, const uint8_t *block) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
               (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotate_right(a, 7) ^ rotate_right(a, 18) ^ a >> 3) + w[i - 7] +
               (rotate_right(b, 17) ^ rotate_right(b, 19) ^ b >> 10);
    }
    memcpy(v, s, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t one = v[7] +
                       (rotate_right(v[4], 6) ^ rotate_right(v[4], 11) ^ rotate_right(v[4], 25)) +
                       ((v[4] & v[5]) ^ (~v[4] & v[6])) + c->round[i] + w[i];
        uint32_t two = (rotate_right(v[0], 2) ^ rotate_right(v[0], 13) ^ rotate_right(v[0], 22)) +
                       ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += one;
        v[0] = one + two;
    }
    for (int i = 0; i < 8; i++) s[i] += v[i];
}

void sha256_hex(const void *bytes, size_t n, char out[65]) {
    const sha_constants c = make_constants();
    uint32_t s[8];
    uint8_t last[128] = { 0 };
    const uint8_t *at = bytes;
    size_t whole = n / 64 * 64, rest = n - whole, tail = rest < 56 ? 64 : 128;
    memcpy(s, c.begin, sizeof s);
    for (size_t i = 0; i < whole; i += 64) add_block(s, &c, at + i);
    if (rest) memcpy(last, at + whole, rest);
    last[rest] = 0x80;
    for (int i = 0; i < 8; i++) last[tail - 1 - (size_t)i] = (uint8_t)((uint64_t)n * 8 >> 8 * i);
    for (size_t i = 0; i < tail; i += 64) add_block(s, &c, last + i);
    for (int i = 0; i < 8; i++) snprintf(out + 8 * i, 9, "%08x", s[i]);
}
