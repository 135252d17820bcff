/* The Mersenne Twister MT19937 as CPython seeds and reads it. */
#include "eval/py_random.h"

#include <math.h>
#include <stdlib.h>

enum { N = 624, M = 397 };

/* By an array of one or two words, the lower first. */
void py_random_seed(py_random *r, uint64_t seed) {
    const uint32_t key[] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
    uint32_t n = key[1] ? 2 : 1, i = 1, j = 0;
    uint32_t *w = r->word;
    w[0] = 19650218u;
    for (uint32_t k = 1; k < N; k++) w[k] = 1812433253u * (w[k - 1] ^ (w[k - 1] >> 30)) + k;
    r->at = N;
    for (int k = N; k; k--) {
        w[i] = (w[i] ^ ((w[i - 1] ^ (w[i - 1] >> 30)) * 1664525u)) + key[j] + j;
        if (++i >= N) w[0] = w[N - 1], i = 1;
        if (++j >= n) j = 0;
    }
    for (int k = N - 1; k; k--) {
        w[i] = (w[i] ^ ((w[i - 1] ^ (w[i - 1] >> 30)) * 1566083941u)) - i;
        if (++i >= N) w[0] = w[N - 1], i = 1;
    }
    w[0] = 0x80000000u;
}

static void refill(py_random *r) {
    uint32_t *w = r->word;
    for (int i = 0; i < N; i++) {
        uint32_t y = (w[i] & 0x80000000u) | (w[(i + 1) % N] & 0x7fffffffu);
        w[i] = w[(i + M) % N] ^ (y >> 1) ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    r->at = 0;
}

static uint32_t next_mt_word(py_random *r) {
    if (r->at >= N) refill(r);
    uint32_t y = r->word[r->at++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

uint64_t py_random_below(py_random *r, uint64_t n) {
    int bits = 64 - __builtin_clzll(n);
    for (;;) {
        uint64_t v = bits <= 32 ? next_mt_word(r) >> (32 - bits) : next_mt_word(r);
        if (bits > 32) v |= (uint64_t)(next_mt_word(r) >> (64 - bits)) << 32;
        if (v < n) return v;
    }
}

void py_random_sample(py_random *r, int64_t n, int64_t k, int64_t *out) {
    double set = 21;
    if (k > 5) set += pow(4, ceil(log((double)(k * 3)) / log(4)));
    if ((double)n <= set) { /* from a list that shrinks */
        int64_t *left = mem_alloc((size_t)MAX(n, 1) * sizeof *left);
        for (int64_t i = 0; i < n; i++) left[i] = i;
        for (int64_t i = 0; i < k; i++) {
            uint64_t j = py_random_below(r, (uint64_t)(n - i));
            out[i] = left[j];
            left[j] = left[n - i - 1];
        }
        free(left);
        return;
    }
    for (int64_t i = 0; i < k; i++) { /* again where it was drawn before */
        bool seen = true;
        while (seen) {
            out[i] = (int64_t)py_random_below(r, (uint64_t)n);
            seen = false;
            for (int64_t j = 0; j < i; j++) seen |= out[j] == out[i];
        }
    }
}

void py_random_shuffle(py_random *r, int64_t *list, int64_t n) {
    for (int64_t i = n - 1; i > 0; i--) {
        uint64_t j = py_random_below(r, (uint64_t)i + 1);
        int64_t t = list[i];
        list[i] = list[j];
        list[j] = t;
    }
}
