/* MinHash signatures: Broder's minimum over permutations, with h(x) = a x + b mod 2^32, a odd,
 * in place of a permutation. The inputs x are mixed hashes, so each function orders them as if
 * at random; the tests compare the match rate with theory. 32 bits allow four to sixteen lanes
 * per vector. */
#include "curate/dedup_internal.h"

#include <math.h>
#include <stdlib.h>

/* Compiled for several vector widths and chosen at load time. Sanitizers are not yet initialized
 * when that choice is made. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) &&                            \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define VECTOR_CLONES
#endif

enum {
    PAD = 16
}; /* grams are padded to whole vectors with copies, which do not change a minimum */

static size_t padded_count(int n) { return align_up((size_t)n, MINHASH_LANES); }

minhash *minhash_new(int ngram, int bands, int rows, normalization words) {
    BUG_IF(ngram < 1 || ngram > NGRAM_MAX || bands < 1 || rows < 1);
    BUG_IF(bands > MINHASH_MAX || rows > MINHASH_MAX || bands * rows > MINHASH_MAX);
    minhash *m = mem_alloc(sizeof *m);
    *m = (minhash){ .ngram = ngram, .bands = bands, .rows = rows, .n = bands * rows };
    m->a = mem_alloc(padded_count(m->n) * sizeof *m->a);
    m->b = mem_alloc(padded_count(m->n) * sizeof *m->b);
    rng_key key = rng_key_of(0, hash_str("minhash"));
    for (size_t i = 0; i < padded_count(m->n); i++) {
        m->a[i] = rng_u32(key, 2 * i) | 1;
        m->b[i] = rng_u32(key, 2 * i + 1);
    }
    m->words = normalizer_new(words);
    return m;
}

void minhash_free(minhash *m) {
    if (!m) return;
    free(m->a);
    free(m->b);
    normalizer_free(m->words);
    free(m);
}

static inline uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* Lowers the minima of eight functions in one pass over the grams, keeping them in registers.
 * @param count a multiple of PAD. */
VECTOR_CLONES
static void lower_minima(const uint32_t *restrict a, const uint32_t *restrict b,
                         uint32_t *restrict to, const uint32_t *restrict grams, int count) {
    uint32_t m0 = to[0], m1 = to[1], m2 = to[2], m3 = to[3];
    uint32_t m4 = to[4], m5 = to[5], m6 = to[6], m7 = to[7];
    for (int i = 0; i < count; i++) {
        uint32_t x = grams[i];
        m0 = min_u32(m0, a[0] * x + b[0]);
        m1 = min_u32(m1, a[1] * x + b[1]);
        m2 = min_u32(m2, a[2] * x + b[2]);
        m3 = min_u32(m3, a[3] * x + b[3]);
        m4 = min_u32(m4, a[4] * x + b[4]);
        m5 = min_u32(m5, a[5] * x + b[5]);
        m6 = min_u32(m6, a[6] * x + b[6]);
        m7 = min_u32(m7, a[7] * x + b[7]);
    }
    to[0] = m0, to[1] = m1, to[2] = m2, to[3] = m3;
    to[4] = m4, to[5] = m5, to[6] = m6, to[7] = m7;
}

static void lower_all_minima(const minhash *m, minhash_scratch *s, int count) {
    if (count == 0) return;
    int whole = (int)align_up((size_t)count, PAD);
    for (int i = count; i < whole; i++) s->grams[i] = s->grams[count - 1];
    for (size_t i = 0; i < padded_count(m->n); i += MINHASH_LANES)
        lower_minima(m->a + i, m->b + i, s->least + i, s->grams, whole);
}

void minhash_sign(const minhash *m, text_span text, minhash_scratch *s) {
    memset(s->least, 0xFF, padded_count(m->n) * sizeof *s->least);
    normalized_word *chunk =
        s->words + m->ngram; /* preceded by the last words of the previous chunk */
    rolling_ngram g = rolling_ngram_new(m->ngram);
    size_t at = 0, got;
    while ((got = normalizer_next_words(m->words, text, &at, chunk, MINHASH_CHUNK)) > 0) {
        int count = 0;
        for (size_t i = 0; i < got; i++) {
            rolling_ngram_push(&g, chunk[i].hash, (chunk - m->ngram)[i].hash);
            if (g.have == g.n) s->grams[count++] = (uint32_t)(hash_mix(g.sum) >> 32);
        }
        lower_all_minima(m, s, count);
        memmove(s->words, s->words + got, (size_t)m->ngram * sizeof *chunk);
    }
    if (g.have == g.n) return;
    uint64_t whole = g.have ? hash_mix(g.sum) : hash_bytes(text.at, text.len, 0);
    s->grams[0] = (uint32_t)(whole >> 32);
    lower_all_minima(m, s, 1);
}

void minhash_keys(const minhash *m, const minhash_scratch *s, uint64_t *keys) {
    for (int i = 0; i < m->bands; i++)
        keys[i] =
            hash_bytes(s->least + i * m->rows, (size_t)m->rows * sizeof *s->least, (uint64_t)i);
}

/* ---- the curve ------------------------------------------------------------------------------- */

double minhash_match_probability(int bands, int rows, double similarity) {
    return 1 - pow(1 - pow(similarity, rows), bands);
}

/* @return the error of the curve: the area above it where it should be 1, plus that below it
 * where it should be 0. */
static double curve_error(int bands, int rows, double threshold) {
    enum { STEPS = 200 };
    double below = 0, above = 0;
    for (int i = 0; i < STEPS; i++) {
        double part = (i + 0.5) / STEPS;
        below += minhash_match_probability(bands, rows, threshold * part);
        above += 1 - minhash_match_probability(bands, rows, threshold + (1 - threshold) * part);
    }
    return (below * threshold + above * (1 - threshold)) / STEPS;
}

void minhash_choose_bands(int hashes, double threshold, int *bands, int *rows) {
    double best = INFINITY;
    for (int r = 1; r <= hashes; r++) {
        for (int b = 1; b * r <= hashes; b++) {
            double wrong = curve_error(b, r, threshold);
            if (wrong >= best) continue;
            best = wrong;
            *bands = b;
            *rows = r;
        }
    }
}
