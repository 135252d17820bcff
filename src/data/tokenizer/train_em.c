/* Expectation maximization and pruning of a Unigram vocabulary.
 *
 * The ways to write a word as pieces are the paths through its positions. With p the probability of a piece,
 *
 *     forward[j]  = sum over pieces from i to j of forward[i] p          all ways to reach j
 *     backward[i] = sum over pieces from i to j of p backward[j]         all ways from i to the end
 *     expected[piece] += count of the word * forward[i] p backward[j] / forward[end]
 *
 * A step then sets log p = digamma(expected) - digamma(sum of expected): the variational Bayes of the SentencePiece
 * paper, which takes from rare pieces. Pruning removes those whose text costs little when it is written with other
 * pieces, in the best other way. Characters always stay.
 *
 * Probabilities of long words underflow: values carry an exponent of 2^256 beside them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/train_unigram.h"

enum { WORDS_PER_TASK = 1024, PIECES_PER_TASK = 1024 };
static const double FIXED_ONE = 0x1p20; /* expectations as integers */
static const double TINY = 0x1p-256, HUGE_SCALE = 0x1p256;

/* ---- logarithms ---------------------------------------------------------------------------------------- */

static const double LN_2 = 0.693147180559945309417232121458;

double exact_log(double x) {
    int exponent;
    double m = frexp(x, &exponent), sum = 0;
    if (m < 0.70710678118654752440) m *= 2, exponent--;
    double s = (m - 1) / (m + 1), square = s * s;
    for (int k = 21; k > 0; k -= 2) sum = sum * square + 1.0 / k; /* atanh(s) / s */
    return 2 * s * sum + exponent * LN_2;
}

double exact_exp(double x) {
    double k = floor(x / LN_2 + 0.5), r = x - k * LN_2, sum = 1;
    if (k < -1000) return 0;
    for (int i = 16; i > 0; i--) sum = sum * r / i + 1;
    return ldexp(sum, (int)k);
}

/* The derivative of the logarithm of gamma; x > 0. */
static double digamma(double x) {
    double sum = 0;
    for (; x < 10; x++) sum -= 1 / x;
    double square = 1 / (x * x);
    double series =
        square * (1.0 / 12 - square * (1.0 / 120 - square * (1.0 / 252 - square / 240)));
    return sum + exact_log(x) - 0.5 / x - series;
}

/* ---- forward and backward ------------------------------------------------------------------------------ */

typedef struct scaled {
    double value;
    int exponent; /* of HUGE_SCALE; value * 2^(256 exponent) */
} scaled;

static scaled rescaled(scaled x) {
    while (x.value > 0 && x.value < TINY) x.value *= HUGE_SCALE, x.exponent--;
    return x;
}

static void scaled_add(scaled *to, double value, int exponent) {
    if (to->value == 0) {
        *to = (scaled){ value, exponent };
        return;
    }
    while (exponent < to->exponent && value > 0) value *= TINY, exponent++;
    while (exponent > to->exponent && to->value > 0) to->value *= TINY, to->exponent++;
    to->value += value;
}

typedef struct em_worker {
    scaled *forward, *backward; /* [longest + 1] */
    int64_t *expected;          /* [pieces] in units of 1 / FIXED_ONE */
    double *best;               /* [longest + 1] of a path */
    uint32_t *from;             /* [longest + 1] its last match */
} em_worker;

typedef struct em_job {
    unigram_lattice *l;
    em_worker *workers;
    int threads;
    int64_t *freq;   /* [pieces] in the best paths of all words */
    uint8_t *chosen; /* [pieces] */
    struct em_loss {
        double loss;
        uint32_t piece;
    } * loss; /* [pieces] */
    double sum, log_sum;
} em_job;

static void sum_forward(const unigram_lattice *l, uint32_t begin, uint32_t n, scaled *f) {
    memset(f, 0, (n + 1) * sizeof *f);
    f[0].value = 1;
    for (uint32_t i = 0; i < n; i++) {
        f[i] = rescaled(f[i]);
        for (uint32_t k = l->first[begin + i]; k < l->first[begin + i + 1]; k++) {
            uint32_t m = l->matches[k];
            scaled_add(&f[i + match_chars(m)], f[i].value * l->pieces[match_piece(m)].share,
                       f[i].exponent);
        }
    }
}

static void sum_backward(const unigram_lattice *l, uint32_t begin, uint32_t n, scaled *b) {
    b[n] = (scaled){ 1, 0 };
    for (uint32_t i = n; i-- > 0;) {
        b[i] = (scaled){ 0 };
        for (uint32_t k = l->first[begin + i]; k < l->first[begin + i + 1]; k++) {
            uint32_t m = l->matches[k];
            const scaled *next = &b[i + match_chars(m)];
            scaled_add(&b[i], next->value * l->pieces[match_piece(m)].share, next->exponent);
        }
        b[i] = rescaled(b[i]);
    }
}

static void expect_word(const unigram_lattice *l, uint32_t word, em_worker *w) {
    uint32_t begin = l->words->first[word], n = l->words->first[word + 1] - 1 - begin;
    sum_forward(l, begin, n, w->forward);
    sum_backward(l, begin, n, w->backward);
    scaled all = w->forward[n];
    double weight = (double)l->words->count[word] * FIXED_ONE / all.value;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = l->first[begin + i]; k < l->first[begin + i + 1]; k++) {
            uint32_t m = l->matches[k], piece = match_piece(m);
            scaled f = w->forward[i], b = w->backward[i + match_chars(m)];
            double x = f.value * l->pieces[piece].share * b.value;
            for (int e = f.exponent + b.exponent; e < all.exponent && x > 0; e++) x *= TINY;
            for (int e = f.exponent + b.exponent; e > all.exponent; e--) x *= HUGE_SCALE;
            w->expected[piece] += (int64_t)(x * weight + 0.5);
        }
}

static void expect_words(void *ctx, int64_t task, int worker) {
    const em_job *j = ctx;
    uint32_t from = (uint32_t)task * WORDS_PER_TASK;
    uint32_t to = MIN(from + WORDS_PER_TASK, j->l->words->n_words);
    for (uint32_t i = from; i < to; i++) expect_word(j->l, i, &j->workers[worker]);
}

/* ---- the job ------------------------------------------------------------------------------------------- */

static em_job job_new(unigram_lattice *l, pool *threads) {
    em_job j = { .l = l, .threads = pool_size(threads) };
    size_t n = (size_t)l->words->longest + PIECE_MAX_CHARS + 2;
    j.workers = mem_alloc((size_t)j.threads * sizeof *j.workers);
    for (int i = 0; i < j.threads; i++)
        j.workers[i] = (em_worker){ .forward = mem_alloc(n * sizeof(scaled)),
                                    .backward = mem_alloc(n * sizeof(scaled)),
                                    .expected = mem_alloc(((size_t)l->n + 1) * sizeof(int64_t)),
                                    .best = mem_alloc(n * sizeof(double)),
                                    .from = mem_alloc(n * sizeof(uint32_t)) };
    return j;
}

static void em_job_free(em_job *j) {
    for (int i = 0; i < j->threads; i++) {
        free(j->workers[i].forward);
        free(j->workers[i].backward);
        free(j->workers[i].expected);
        free(j->workers[i].best);
        free(j->workers[i].from);
    }
    free(j->workers);
    free(j->freq);
    free(j->chosen);
    free(j->loss);
}

/* Sums of integers: the same whichever worker had which word. @return owned. */
static int64_t *sum_expected(const em_job *j) {
    int64_t *sum = mem_alloc(((size_t)j->l->n + 1) * sizeof *sum);
    for (int i = 0; i < j->threads; i++)
        for (uint32_t k = 0; k < j->l->n; k++) sum[k] += j->workers[i].expected[k];
    return sum;
}

static int64_t words_tasks(const unigram_lattice *l) {
    return (l->words->n_words + WORDS_PER_TASK - 1) / WORDS_PER_TASK;
}

/* Keeps the pieces that are chosen, in their order, and their matches. */
static void keep_chosen(unigram_lattice *l, const uint8_t *chosen) {
    uint32_t *to = mem_alloc(((size_t)l->n + 1) * sizeof *to), n = 0, end = 0, begin = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        to[i] = n;
        if (chosen[i]) l->pieces[n++] = l->pieces[i];
    }
    for (uint32_t i = 0; i < l->words->n; i++) {
        uint32_t stop = l->first[i + 1];
        l->first[i] = end;
        for (uint32_t k = begin; k < stop; k++) {
            uint32_t m = l->matches[k];
            if (!chosen[match_piece(m)]) continue;
            l->matches[end++] = match_chars(m) << PIECE_ID_BITS | to[match_piece(m)];
        }
        begin = stop;
    }
    l->first[l->words->n] = end;
    l->n = n;
    free(to);
}

void unigram_improve(unigram_lattice *l, pool *threads) {
    static const double LEAST = 0.5;
    em_job j = job_new(l, threads);
    pool_run(threads, words_tasks(l), expect_words, &j);
    int64_t *expected = sum_expected(&j), all = 0;
    j.chosen = mem_alloc((size_t)l->n + 1);
    for (uint32_t i = 0; i < l->n; i++) {
        bool rare = (double)expected[i] < LEAST * FIXED_ONE;
        if (rare && l->pieces[i].chars == 1) expected[i] = (int64_t)(LEAST * FIXED_ONE);
        j.chosen[i] = !rare || l->pieces[i].chars == 1;
        if (j.chosen[i]) all += expected[i];
    }
    double log_all = digamma((double)all / FIXED_ONE);
    for (uint32_t i = 0; i < l->n; i++) {
        if (!j.chosen[i]) continue;
        l->pieces[i].score = digamma((double)expected[i] / FIXED_ONE) - log_all;
        l->pieces[i].share = exact_exp(l->pieces[i].score);
    }
    keep_chosen(l, j.chosen);
    free(expected);
    em_job_free(&j);
}

/* ---- pruning ------------------------------------------------------------------------------------------- */

/* The best path through n characters. @param without a piece it must not use; UINT32_MAX: none. @return its score. */
static double find_path(const unigram_lattice *l, uint32_t begin, uint32_t n, uint32_t without,
                        em_worker *w) {
    for (uint32_t i = 1; i <= n; i++) w->best[i] = -INFINITY;
    w->best[0] = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = l->first[begin + i]; k < l->first[begin + i + 1]; k++) {
            uint32_t m = l->matches[k], to = i + match_chars(m);
            double score = w->best[i] + l->pieces[match_piece(m)].score;
            if (to > n) break; /* the next ones are longer */
            if (match_piece(m) == without || score <= w->best[to]) continue;
            w->best[to] = score;
            w->from[to] = m;
        }
    return w->best[n];
}

static void count_best(void *ctx, int64_t task, int worker) {
    const em_job *j = ctx;
    const unigram_words *words = j->l->words;
    em_worker *w = &j->workers[worker];
    uint32_t from = (uint32_t)task * WORDS_PER_TASK;
    for (uint32_t i = from; i < MIN(from + WORDS_PER_TASK, words->n_words); i++) {
        uint32_t begin = words->first[i], n = words->first[i + 1] - 1 - begin;
        find_path(j->l, begin, n, UINT32_MAX, w);
        for (uint32_t at = n; at > 0; at -= match_chars(w->from[at]))
            w->expected[match_piece(w->from[at])] += (int64_t)words->count[i];
    }
}

/* Returns how much likelihood the text loses without the piece, whose text is then written in the best other way. */
static double piece_loss(const em_job *j, uint32_t i, em_worker *w) {
    const learned_piece *p = &j->l->pieces[i];
    double freq = (double)j->freq[i];
    double other = find_path(j->l, p->at, p->chars, i, w);
    if (other > p->score)
        return j->freq[i] ? 0 : -INFINITY; /* its text is better written otherwise */
    if (j->freq[i] == 0) return 0;
    int parts = 0;
    double log_other = 0;
    for (uint32_t at = p->chars; at > 0; at -= match_chars(w->from[at]), parts++)
        log_other += exact_log((double)j->freq[match_piece(w->from[at])] + freq);
    log_other -= parts * exact_log(j->sum + freq * (parts - 1));
    return freq * (exact_log(freq) - j->log_sum - log_other);
}

static void find_losses(void *ctx, int64_t task, int worker) {
    em_job *j = ctx;
    uint32_t from = (uint32_t)task * PIECES_PER_TASK;
    for (uint32_t i = from; i < MIN(from + PIECES_PER_TASK, j->l->n); i++) {
        bool single = j->l->pieces[i].chars == 1;
        j->loss[i].piece = i;
        j->loss[i].loss = single ? INFINITY : piece_loss(j, i, &j->workers[worker]);
    }
}

static int compare_losses(const void *a, const void *b) {
    const struct em_loss *x = a, *y = b;
    if (x->loss != y->loss) return x->loss > y->loss ? -1 : 1;
    return (x->piece > y->piece) - (x->piece < y->piece);
}

void unigram_prune(unigram_lattice *l, uint32_t least, pool *threads) {
    uint32_t target = MAX(least, (uint32_t)((uint64_t)l->n * 3 / 4));
    em_job j = job_new(l, threads);
    pool_run(threads, words_tasks(l), count_best, &j);
    j.freq = sum_expected(&j);
    int64_t all = 0;
    for (uint32_t i = 0; i < l->n; i++) all += j.freq[i];
    j.sum = (double)all;
    j.log_sum = exact_log(j.sum);
    j.loss = mem_alloc(((size_t)l->n + 1) * sizeof *j.loss);
    j.chosen = mem_alloc((size_t)l->n + 1);
    pool_run(threads, (l->n + PIECES_PER_TASK - 1) / PIECES_PER_TASK, find_losses, &j);
    sort_array(j.loss, l->n, sizeof *j.loss, compare_losses);
    for (uint32_t i = 0; i < l->n; i++)
        j.chosen[j.loss[i].piece] =
            j.loss[i].loss == INFINITY || (i < target && j.loss[i].loss > -INFINITY);
    keep_chosen(l, j.chosen);
    em_job_free(&j);
}
