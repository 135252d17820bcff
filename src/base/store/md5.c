/* MD5 (RFC 1321), which S3 gives as the ETag of an object that was put whole. It guards against damage on
 * the way, not against an adversary. */
#include <math.h>
#include <string.h>

#include "store/store_internal.h"

typedef struct md5_state {
    uint32_t a, b, c, d;
} md5_state;

static uint32_t rotate_left(uint32_t x, int by) { return x << by | x >> (32 - by); }

static void md5_block(md5_state *s, const uint32_t *sine, const uint8_t *block) {
    static const uint8_t shift[4][4] = {
        { 7, 12, 17, 22 }, { 5, 9, 14, 20 }, { 4, 11, 16, 23 }, { 6, 10, 15, 21 }
    };
    uint32_t w[16], a = s->a, b = s->b, c = s->c, d = s->d;
    memcpy(w, block, sizeof w);
    for (uint32_t i = 0; i < 64; i++) {
        uint32_t f, k, round = i / 16;
        if (round == 0)
            f = (b & c) | (~b & d), k = i;
        else if (round == 1)
            f = (d & b) | (~d & c), k = (5 * i + 1) % 16;
        else if (round == 2)
            f = b ^ c ^ d, k = (3 * i + 5) % 16;
        else
            f = c ^ (b | ~d), k = 7 * i % 16;
        uint32_t next = b + rotate_left(a + f + sine[i] + w[k], shift[round][i % 4]);
        a = d, d = c, c = b, b = next;
    }
    s->a += a, s->b += b, s->c += c, s->d += d;
}

void md5_hex(const void *bytes, size_t n, char out[33]) {
    md5_state s = { 0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476 };
    const uint8_t *at = bytes;
    uint8_t last[128] = { 0 };
    uint32_t sine[64];
    for (int i = 0; i < 64; i++)
        sine[i] = (uint32_t)(int64_t)floor(fabs(sin((double)i + 1)) * 4294967296.0);
    size_t whole = n / 64 * 64, rest = n - whole, tail = rest < 56 ? 64 : 128;
    for (size_t i = 0; i < whole; i += 64) md5_block(&s, sine, at + i);
    if (rest) memcpy(last, at + whole, rest);
    last[rest] = 0x80;
    uint64_t bits = (uint64_t)n * 8;
    memcpy(last + tail - 8, &bits, sizeof bits);
    for (size_t i = 0; i < tail; i += 64) md5_block(&s, sine, last + i);
    uint8_t digest[16];
    memcpy(digest, &s, sizeof digest);
    for (int i = 0; i < 16; i++) snprintf(out + 2 * i, 3, "%02x", digest[i]);
}
