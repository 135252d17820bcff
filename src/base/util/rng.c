/* Philox 4x32 (Salmon et al., 2011) and what is drawn from it; xxHash for stable hashes. */
#include "util/util.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

void philox4x32(rng_key key, const uint32_t ctr[4], int rounds, uint32_t out[4]) {
    uint32_t c0 = ctr[0], c1 = ctr[1], c2 = ctr[2], c3 = ctr[3], k0 = key.k[0], k1 = key.k[1];
    for (int round = 0; round < rounds; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

rng_key rng_key_of(uint64_t seed, uint64_t stream) {
    uint64_t pair[2] = { seed, stream };
    uint64_t h = XXH64(pair, sizeof pair, 0x696e676f74);
    return (rng_key){ { (uint32_t)h, (uint32_t)(h >> 32) } };
}

static void draw_block(rng_key key, uint64_t block, uint32_t out[4]) {
    uint32_t ctr[4] = { (uint32_t)block, (uint32_t)(block >> 32), 0, 0 };
    philox4x32(key, ctr, PHILOX_ROUNDS, out);
}

uint32_t rng_u32(rng_key key, uint64_t index) {
    uint32_t out[4];
    draw_block(key, index / 4, out);
    return out[index % 4];
}

float rng_uniform(rng_key key, uint64_t index) {
    return (float)(rng_u32(key, index) >> 8) * 0x1p-24f;
}

/* Box-Muller: elements 2j and 2j+1 of a block share two uniforms, the first the cosine. */
typedef struct polar {
    double r, angle;
} polar;
static polar polar_of(const uint32_t pair[2]) {
    double u = ((double)pair[0] + 1) * 0x1p-32, v = (double)pair[1] * 0x1p-32; /* (0, 1], [0, 1) */
    return (polar){ sqrt(-2 * log(u)), 6.283185307179586 * v };
}

float rng_normal(rng_key key, uint64_t index) {
    uint32_t out[4];
    draw_block(key, index / 4, out);
    polar p = polar_of(out + (index % 4 & 2));
    return (float)(p.r * (index & 1 ? sin(p.angle) : cos(p.angle)));
}

void rng_normals(rng_key key, uint64_t first, int64_t n, float *to) {
    int64_t i = 0;
    for (; i < n && (first + (uint64_t)i) % 4; i++) to[i] = rng_normal(key, first + (uint64_t)i);
    for (; i + 4 <= n; i += 4) {
        uint32_t out[4];
        draw_block(key, (first + (uint64_t)i) / 4, out);
        for (int k = 0; k < 4; k += 2) {
            polar p = polar_of(out + k);
            to[i + k] = (float)(p.r * cos(p.angle));
            to[i + k + 1] = (float)(p.r * sin(p.angle));
        }
    }
    for (; i < n; i++) to[i] = rng_normal(key, first + (uint64_t)i);
}

uint64_t rng_below(rng_key key, uint64_t index, uint64_t n) {
    BUG_IF(n == 0);
    for (uint32_t attempt = 0;; attempt++) { /* rejection keeps every value equally likely */
        uint32_t ctr[4] = { (uint32_t)index, (uint32_t)(index >> 32), attempt, 1 }, out[4];
        philox4x32(key, ctr, PHILOX_ROUNDS, out);
        uint64_t x = (uint64_t)out[1] << 32 | out[0], limit = UINT64_MAX - UINT64_MAX % n;
        if (x < limit) return x % n;
    }
}

uint64_t hash_bytes(const void *p, size_t n, uint64_t seed) { return XXH64(p, n, seed); }
uint64_t hash_str(const char *s) { return XXH64(s, strlen(s), 0); }
