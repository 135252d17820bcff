/* Philox 4x32 (util/rng.c) on LANES counters side by side: one after another it would cost more
 * than the memory it decides over.
 *
 *     philox_prefix p = philox_prepare(key, (uint32_t[]){ site, id, 0 });
 *     philox_words(&p, 0, word);
 *
 * Counters { head, n } share their first three words, so that part of the first three of the
 * rounds is the same for all of them, and done once. philox_lanes takes any LANES counters, word w of
 * counter l as x[w][l], and replaces them with their words. */
#ifndef INGOT_OPS_CPU_PHILOX_H
#define INGOT_OPS_CPU_PHILOX_H

#include "cpu_internal.h"
#include "vec.h"

enum { LANES = 16, PHILOX_WORDS = 4 * LANES };
static const uint32_t PHILOX_M0 = 0xD2511F53u, PHILOX_M1 = 0xCD9E8D57u; /* multipliers of a round */
static const uint32_t PHILOX_K0 = 0x9E3779B9u,
                      PHILOX_K1 = 0xBB67AE85u; /* added to the key per round */

static inline uint32_t philox_low(uint32_t m, uint32_t x) { return m * x; }
static inline uint32_t philox_high(uint32_t m, uint32_t x) {
    return (uint32_t)((uint64_t)m * x >> 32);
}

#if defined(__ARM_NEON)
typedef struct philox_prefix {
    uint32x4_t key[PHILOX_ROUNDS][2];
    uint32_t c2, c0;     /* after rounds 0 and 1, before they are combined with what varies */
    uint32_t r0, r1, r2; /* of round 2: words 0, 1 and 2 */
} philox_prefix;

/* A round is   c0 = high(M1 c2) ^ c1 ^ k0   c1 = low(M1 c2)
 *              c2 = high(M0 c0) ^ c3 ^ k1   c3 = low(M0 c0)
 * and only c3 varies at first, then c2, then c0 and c1, then all but c1. */
static inline philox_prefix philox_prepare(rng_key key, const uint32_t head[3]) {
    philox_prefix p;
    uint32_t k[PHILOX_ROUNDS][2];
    for (uint32_t i = 0; i < PHILOX_ROUNDS; i++) {
        k[i][0] = key.k[0] + i * PHILOX_K0;
        k[i][1] = key.k[1] + i * PHILOX_K1;
        p.key[i][0] = vdupq_n_u32(k[i][0]);
        p.key[i][1] = vdupq_n_u32(k[i][1]);
    }
    uint32_t c0 = philox_high(PHILOX_M1, head[2]) ^ head[1] ^ k[0][0];
    uint32_t c3 = philox_low(PHILOX_M0, head[0]);
    p.c2 = philox_high(PHILOX_M0, head[0]) ^ k[0][1];
    p.c0 = philox_low(PHILOX_M1, head[2]) ^ k[1][0];
    uint32_t c2 = philox_high(PHILOX_M0, c0) ^ c3 ^ k[1][1];
    p.r0 = philox_high(PHILOX_M1, c2) ^ k[2][0];
    p.r1 = philox_low(PHILOX_M1, c2);
    p.r2 = philox_low(PHILOX_M0, c0) ^ k[2][1];
    return p;
}

typedef struct philox_four { /* of four counters */
    uint32x4_t c0, c1, c2, c3;
} philox_four;
typedef struct philox_halves {
    uint32x4_t low, high;
} philox_halves;

VEC_INLINE philox_halves philox_multiply(uint32x4_t x, uint32_t m) {
    uint32x4_t a = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(x), vdup_n_u32(m)));
    uint32x4_t b = vreinterpretq_u32_u64(vmull_high_u32(x, vdupq_n_u32(m)));
    return (philox_halves){ vuzp1q_u32(a, b), vuzp2q_u32(a, b) };
}
/* The first three rounds. */
VEC_INLINE philox_four philox_begin(const philox_prefix *p, uint32_t first) {
    uint32x4_t counter = vaddq_u32(vdupq_n_u32(first), (uint32x4_t){ 0, 1, 2, 3 });
    philox_halves one = philox_multiply(veorq_u32(counter, vdupq_n_u32(p->c2)), PHILOX_M1);
    philox_halves two = philox_multiply(veorq_u32(one.high, vdupq_n_u32(p->c0)), PHILOX_M0);
    return (philox_four){ veorq_u32(one.low, vdupq_n_u32(p->r0)), vdupq_n_u32(p->r1),
                          veorq_u32(two.high, vdupq_n_u32(p->r2)), two.low };
}
VEC_INLINE philox_four philox_round(philox_four x, const uint32x4_t key[2]) {
    philox_halves a = philox_multiply(x.c0, PHILOX_M0), b = philox_multiply(x.c2, PHILOX_M1);
    return (philox_four){ veorq_u32(b.high, veorq_u32(x.c1, key[0])), b.low,
                          veorq_u32(a.high, veorq_u32(x.c3, key[1])), a.low };
}
/* The words of one counter after those of another. */
VEC_INLINE void philox_store(philox_four x, uint32_t *out) {
    uint32x4_t a = vzip1q_u32(x.c0, x.c2), b = vzip1q_u32(x.c1, x.c3);
    uint32x4_t c = vzip2q_u32(x.c0, x.c2), d = vzip2q_u32(x.c1, x.c3);
    vst1q_u32(out, vzip1q_u32(a, b));
    vst1q_u32(out + 4, vzip2q_u32(a, b));
    vst1q_u32(out + 8, vzip1q_u32(c, d));
    vst1q_u32(out + 12, vzip2q_u32(c, d));
}

/* The last seven rounds, of 16 counters in four groups. */
typedef struct philox_groups {
    philox_four of[LANES / 4];
} philox_groups;
VEC_INLINE philox_groups philox_compute(const philox_prefix *p, uint32_t first) {
    philox_groups g = { { philox_begin(p, first), philox_begin(p, first + 4),
                          philox_begin(p, first + 8), philox_begin(p, first + 12) } };
    VEC_UNROLL for (int i = 3; i < PHILOX_ROUNDS; i++) {
        VEC_UNROLL for (int k = 0; k < LANES / 4; k++) g.of[k] = philox_round(g.of[k], p->key[i]);
    }
    return g;
}

/* Word w of counter { head, first + l } is out[4 * l + w]. */
static inline void philox_words(const philox_prefix *p, uint32_t first,
                                uint32_t out[PHILOX_WORDS]) {
    philox_groups g = philox_compute(p, first);
    VEC_UNROLL for (int k = 0; k < LANES / 4; k++) philox_store(g.of[k], out + 16 * k);
}
/* Lane l of mask i is all ones where word 8 * i + l is at least `below`. Comparing before sorting halves
 * what must be sorted. */
VEC_INLINE void philox_masks(const philox_prefix *p, uint32_t first, uint32_t below,
                             uint16x8_t mask[PHILOX_WORDS / 8]) {
    const uint32x4_t least = vdupq_n_u32(below);
    philox_groups g = philox_compute(p, first);
    VEC_UNROLL for (int k = 0; k < LANES / 4; k++) {
        uint16x8_t c0 = vreinterpretq_u16_u32(vcgeq_u32(g.of[k].c0, least));
        uint16x8_t c1 = vreinterpretq_u16_u32(vcgeq_u32(g.of[k].c1, least));
        uint16x8_t c2 = vreinterpretq_u16_u32(vcgeq_u32(g.of[k].c2, least));
        uint16x8_t c3 = vreinterpretq_u16_u32(vcgeq_u32(g.of[k].c3, least));
        uint32x4_t first_two = vreinterpretq_u32_u16(vtrn1q_u16(c0, c1));
        uint32x4_t last_two = vreinterpretq_u32_u16(vtrn1q_u16(c2, c3));
        mask[2 * k] = vreinterpretq_u16_u32(vzip1q_u32(first_two, last_two));
        mask[2 * k + 1] = vreinterpretq_u16_u32(vzip2q_u32(first_two, last_two));
    }
}

VEC_INLINE philox_four philox_load(const uint32_t x[4][LANES], int l) {
    return (philox_four){ vld1q_u32(x[0] + l), vld1q_u32(x[1] + l), vld1q_u32(x[2] + l),
                          vld1q_u32(x[3] + l) };
}
VEC_INLINE void philox_save(philox_four c, uint32_t x[4][LANES], int l) {
    vst1q_u32(x[0] + l, c.c0);
    vst1q_u32(x[1] + l, c.c1);
    vst1q_u32(x[2] + l, c.c2);
    vst1q_u32(x[3] + l, c.c3);
}
static inline void philox_lanes(rng_key key, int rounds, uint32_t x[4][LANES]) {
    philox_four a = philox_load(x, 0), b = philox_load(x, 4), c = philox_load(x, 8),
                d = philox_load(x, 12);
    uint32x4_t k[2] = { vdupq_n_u32(key.k[0]), vdupq_n_u32(key.k[1]) };
    VEC_UNROLL for (int i = 0; i < rounds; i++) {
        a = philox_round(a, k);
        b = philox_round(b, k);
        c = philox_round(c, k);
        d = philox_round(d, k);
        k[0] = vaddq_u32(k[0], vdupq_n_u32(PHILOX_K0));
        k[1] = vaddq_u32(k[1], vdupq_n_u32(PHILOX_K1));
    }
    philox_save(a, x, 0);
    philox_save(b, x, 4);
    philox_save(c, x, 8);
    philox_save(d, x, 12);
}
#else
typedef struct philox_prefix {
    rng_key key;
    uint32_t head[3];
} philox_prefix;

static inline philox_prefix philox_prepare(rng_key key, const uint32_t head[3]) {
    return (philox_prefix){ key, { head[0], head[1], head[2] } };
}

static inline void philox_lanes(rng_key key, int rounds, uint32_t x[4][LANES]) {
    uint32_t k0 = key.k[0], k1 = key.k[1];
    for (int i = 0; i < rounds; i++, k0 += PHILOX_K0, k1 += PHILOX_K1) {
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            uint64_t p0 = (uint64_t)PHILOX_M0 * x[0][l], p1 = (uint64_t)PHILOX_M1 * x[2][l];
            uint32_t c1 = x[1][l], c3 = x[3][l];
            x[0][l] = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
            x[1][l] = (uint32_t)p1;
            x[2][l] = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
            x[3][l] = (uint32_t)p0;
        }
    }
}

/* Word w of counter { head, first + l } is out[4 * l + w]. */
static inline void philox_words(const philox_prefix *p, uint32_t first,
                                uint32_t out[PHILOX_WORDS]) {
    uint32_t x[4][LANES];
    for (uint32_t l = 0; l < LANES; l++) {
        x[0][l] = p->head[0];
        x[1][l] = p->head[1];
        x[2][l] = p->head[2];
        x[3][l] = first + l;
    }
    philox_lanes(p->key, PHILOX_ROUNDS, x);
    for (int l = 0; l < LANES; l++)
        for (int w = 0; w < 4; w++) out[4 * l + w] = x[w][l];
}
#endif

#endif
