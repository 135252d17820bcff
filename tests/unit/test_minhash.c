/* Words, MinHash signatures and bands: against brute force, and against the theory. */
#include "support/test.h"

#include <math.h>

#include "curate/dedup_internal.h"
#include "io/io.h"

static text_span span(const char *s) { return (text_span){ s, strlen(s) }; }

/* ---- words --------------------------------------------------------------------------------- */

static size_t words_by(normalization rules, const char *text, normalized_word *out,
                       size_t capacity) {
    normalizer *t = normalizer_new(rules);
    size_t at = 0, n = normalizer_next_words(t, span(text), &at, out, capacity);
    normalizer_free(t);
    return n;
}

static const normalization zero_digits = { .zero_digits = true };
static size_t words_of(const char *text, normalized_word *out, size_t capacity) {
    return words_by(zero_digits, text, out, capacity);
}

static bool same_words(normalization rules, const char *a, const char *b) {
    normalized_word x[32], y[32];
    size_t n = words_by(rules, a, x, 32), m = words_by(rules, b, y, 32);
    for (size_t i = 0; n == m && i < n; i++)
        if (x[i].hash != y[i].hash) return false;
    return n == m;
}

static void assert_same_words(const char *a, const char *b) {
    if (!same_words(zero_digits, a, b)) fail_msg("\"%s\" and \"%s\" differ", a, b);
}

/* Pairs that only one of the rules tells apart. */
static void each_normalization_has_a_switch(void **state) {
    static const struct {
        const char *a, *b;
        normalization apart;
    } pairs[] = {
        { "Polish sausage", "polish sausage", { .keep_case = true } },
        { "a resum\xC3\xA9", "a resume", { .keep_accents = true } },
        { "f(x, y)", "f x y", { .keep_punctuation = true } },
        { "a+b", "a-b", { .keep_punctuation = true } },
    };
    for (size_t i = 0; i < COUNT_OF(pairs); i++) {
        assert_true(same_words((normalization){ 0 }, pairs[i].a, pairs[i].b));
        assert_false(same_words(pairs[i].apart, pairs[i].a, pairs[i].b));
    }
    assert_false(same_words((normalization){ 0 }, "rows 12 of 1984", "rows 13 of 2001"));
    assert_true(same_words(zero_digits, "rows 12 of 1984", "rows 13 of 2001"));
    /* composed and decomposed letters stay the same, and marks stay in their word */
    normalization accents = { .keep_accents = true };
    assert_true(same_words(accents, "caf\xC3\xA9 x", "cafe\xCC\x81 x"));
    normalized_word w[8];
    assert_int_equal(words_by(accents, "cafe\xCC\x81s x", w, 8), 2);
    assert_int_equal(words_by((normalization){ .keep_punctuation = true }, "f(x, y);", w, 8), 7);
    assert_int_equal(w[1].begin, 1);
    assert_int_equal(w[1].end, 2);
}

static void words_are_normalized(void **state) {
    assert_same_words("Hello, World!", "hello world");
    assert_same_words("in 1984 or 2001", "in 0000 or 0000");
    assert_same_words("  don't--stop_now  ", "don t stop now");
    assert_same_words("\xC3\x89t\xC3\xA9 \xC3\x85ngstr\xC3\xB6m", "ete angstrom"); /* composed */
    assert_same_words("e\xCC\x81t\xC3\xA9", "ete"); /* a loose mark */
    assert_same_words("\xE2\x80\x9Cquoted\xE2\x80\x9D\xE2\x80\x94yes",
                      "quoted yes");                                            /* quotes, dash */
    assert_same_words("\xEA\xB0\x80 b", "\xE1\x84\x80\xE1\x85\xA1 b");          /* Hangul */
    assert_same_words("\xE4\xB8\xAD\xE6\x96\x87", "\xE4\xB8\xAD \xE6\x96\x87"); /* Chinese */
    assert_same_words("\xD9\xA3 x", "0 x");                                     /* Arabic digit */
    assert_same_words("...!?", "");
}

static void words_that_differ(void **state) {
    static const char *const pairs[][2] = {
        { "to day", "today" }, { "ab", "ba" }, { "12", "123" }, { "resume s", "resumes" }
    };
    for (size_t i = 0; i < COUNT_OF(pairs); i++) {
        normalized_word x[8], y[8];
        size_t n = words_of(pairs[i][0], x, 8), m = words_of(pairs[i][1], y, 8);
        assert_true(n != m || x[0].hash != y[0].hash);
    }
    normalizer *digits = normalizer_new((normalization){ 0 });
    normalized_word x[4];
    size_t at = 0;
    assert_int_equal(normalizer_next_words(digits, span("12 13"), &at, x, 4), 2);
    assert_true(x[0].hash != x[1].hash);
    normalizer_free(digits);
}

static void words_know_their_place(void **state) {
    normalized_word w[8];
    assert_int_equal(words_of("-- Caf\xC3\xA9, \xE4\xB8\xAD\xE6\x96\x87x", w, 8), 4);
    static const uint32_t place[][2] = { { 3, 8 }, { 10, 13 }, { 13, 16 }, { 16, 17 } };
    for (int i = 0; i < 4; i++) {
        assert_int_equal(w[i].begin, place[i][0]);
        assert_int_equal(w[i].end, place[i][1]);
    }
}

static void words_in_pieces_are_the_same(void **state) {
    const char *text =
        "one two \xE4\xB8\xAD\xE6\x96\x87 three4 \xC3\xA9t\xC3\xA9 five\xE4\xB8\xAD six";
    normalized_word whole[32], piece[32];
    size_t n = words_of(text, whole, 32);
    normalizer *t = normalizer_new(zero_digits);
    for (size_t capacity = 2; capacity < 8; capacity++) {
        size_t at = 0, m = 0, got;
        while ((got = normalizer_next_words(t, span(text), &at, piece + m, capacity)) > 0) m += got;
        assert_int_equal(m, n);
        for (size_t i = 0; i < n; i++) assert_memory_equal(&piece[i], &whole[i], sizeof *whole);
    }
    normalizer_free(t);
}

/* ---- signatures ---------------------------------------------------------------------------- */

static uint64_t direct_sum(const normalized_word *w, int n) {
    uint64_t sum = 0;
    for (int i = 0; i < n; i++) sum = sum * NGRAM_BASE + w[i].hash;
    return sum;
}

/* Text of n words: word i is numbered by f(i). */
static char *numbered(unsigned n, unsigned (*f)(unsigned i, unsigned seed), unsigned seed) {
    str s = { 0 };
    for (unsigned i = 0; i < n; i++) {
        char word[16];
        int k = 0;
        for (uint64_t v = (uint64_t)f(i, seed) + 1; v; v /= 26) word[k++] = (char)('a' + v % 26);
        str_add(&s, "%.*s ", k, word);
    }
    return s.text;
}

static unsigned own_words(unsigned i, unsigned seed) { return i * 7919 + seed * 1000003; }

/* Longer than a chunk, so that what a chunk hands to the next is checked too. */
static void signature_is_the_least_of_all_grams(void **state) {
    enum { WORDS = 2 * MINHASH_CHUNK + 37 };
    minhash *m = minhash_new(5, 7, 3, (normalization){ 0 });
    minhash_scratch *s = mem_alloc(sizeof *s);
    normalized_word *w = mem_alloc((WORDS + 2) * sizeof *w);
    char *text = numbered(WORDS, own_words, 1);
    size_t at = 0;
    assert_int_equal(normalizer_next_words(m->words, span(text), &at, w, WORDS + 2), WORDS);
    minhash_sign(m, span(text), s);
    for (int f = 0; f < m->n; f++) {
        uint32_t least = UINT32_MAX;
        for (int i = 0; i + 5 <= WORDS; i++) {
            uint32_t x = (uint32_t)(hash_mix(direct_sum(w + i, 5)) >> 32);
            least = MIN(least, m->a[f] * x + m->b[f]);
        }
        assert_int_equal(s->least[f], least);
    }
    free(text);
    free(w);
    free(s);
    minhash_free(m);
}

static bool same_signature(const char *a, const char *b) {
    minhash *m = minhash_new(5, 14, 8, (normalization){ 0 });
    minhash_scratch *s = mem_alloc(sizeof *s);
    uint32_t first[14 * 8];
    minhash_sign(m, span(a), s);
    memcpy(first, s->least, sizeof first);
    minhash_sign(m, span(b), s);
    bool same = memcmp(first, s->least, sizeof first) == 0;
    free(s);
    minhash_free(m);
    return same;
}

static void short_texts_have_signatures(void **state) {
    assert_true(same_signature("One, two.", "one TWO"));
    assert_false(same_signature("one two", "two one"));
    assert_false(same_signature("one two", "one two three"));
    assert_false(same_signature("one", ""));
    assert_true(same_signature("...", "..."));
    assert_false(same_signature("...", "!!!"));
    assert_true(same_signature("a b c d e", "A, b; c d (e)"));
}

/* ---- the curve ----------------------------------------------------------------------------- */

static void curve_has_published_values(void **state) {
    assert_true(fabs(minhash_match_probability(14, 8, 0.7) - 0.56) < 0.01);
    assert_true(fabs(minhash_match_probability(14, 8, 0.8) - 0.92) < 0.01);
    assert_true(fabs(minhash_match_probability(14, 8, 0.9) - 0.9996) < 0.0001);
    assert_true(minhash_match_probability(14, 8, 1) == 1 &&
                minhash_match_probability(14, 8, 0) == 0);
}

static double area_wrong(int b, int r, double threshold) {
    double sum = 0;
    for (int i = 0; i < 4000; i++) {
        double s = (i + 0.5) / 4000, p = minhash_match_probability(b, r, s);
        sum += (s < threshold ? p : 1 - p) / 4000;
    }
    return sum;
}

static void threshold_picks_the_best_bands(void **state) {
    static const double thresholds[] = { 0.3, 0.5, 0.8, 0.9 };
    for (size_t i = 0; i < COUNT_OF(thresholds); i++) {
        int b = 0, r = 0;
        minhash_choose_bands(64, thresholds[i], &b, &r);
        assert_true(b >= 1 && r >= 1 && b * r <= 64);
        double best = area_wrong(b, r, thresholds[i]);
        for (int rows = 1; rows <= 64; rows++)
            for (int bands = 1; bands * rows <= 64; bands++)
                assert_true(area_wrong(bands, rows, thresholds[i]) > best - 1e-3);
    }
}

/* ---- against the theory -------------------------------------------------------------------- */

enum { ROWS = 8, BANDS = 14, GROUPS = MINHASH_MAX / (ROWS * BANDS) }; /* 36 families at once */

/* Bands that two texts share, for each of the families. */
static void shared_bands(const uint64_t *x, const uint64_t *y, int *out) {
    for (int g = 0; g < GROUPS; g++) {
        out[g] = 0;
        for (int b = 0; b < BANDS; b++) out[g] += x[g * BANDS + b] == y[g * BANDS + b];
    }
}

typedef struct signer {
    minhash *m;
    minhash_scratch *s;
} signer;
static signer signer_new(void) {
    return (signer){ minhash_new(5, GROUPS * BANDS, ROWS, (normalization){ 0 }),
                     mem_alloc(sizeof(minhash_scratch)) };
}
static void signer_free(signer *s) {
    minhash_free(s->m);
    free(s->s);
}
static uint64_t *sign_keys(signer *s, text_span text) {
    uint64_t *keys = mem_alloc(GROUPS * BANDS * sizeof *keys);
    minhash_sign(s->m, text, s->s);
    minhash_keys(s->m, s->s, keys);
    return keys;
}

/* A pair that shares its first words: (shared - 4) grams are in both, `own` in each alone. */
static unsigned pair_word(unsigned i, unsigned seed) {
    unsigned shared = seed % 1000;
    return i < shared ? own_words(i, seed / 2000) : own_words(i, 500000 + seed / 1000);
}

/* Families differ only in a and b: their spread shows how certain the mean is. */
static void assert_recall(const char *what, const double *found, double expected) {
    double mean = 0, spread = 0;
    for (int g = 0; g < GROUPS; g++) mean += found[g] / GROUPS;
    for (int g = 0; g < GROUPS; g++) spread += (found[g] - mean) * (found[g] - mean);
    double error = sqrt(spread / (GROUPS - 1) / GROUPS) + 1e-3;
    if (fabs(mean - expected) > 4.5 * error)
        fail_msg("%s: found %.4f of pairs, the curve says %.4f, error %.4f", what, mean, expected,
                 error);
}

static void bands_match_as_often_as_the_curve_predicts(void **state) {
    enum { PAIRS = 150, WORDS = 104 };
    static const int own[] = { 45, 25, 15, 10, 5 }; /* of 100 grams: Jaccard 0.38 to 0.90 */
    signer sign = signer_new();
    for (size_t k = 0; k < COUNT_OF(own); k++) {
        double found[GROUPS] = { 0 }, j = (100.0 - own[k]) / (100.0 + own[k]);
        for (int p = 0; p < PAIRS; p++) {
            unsigned seed = (unsigned)(p * 2000 + WORDS - own[k]);
            int hits[GROUPS];
            char *a = numbered(WORDS, pair_word, seed),
                 *b = numbered(WORDS, pair_word, seed + 1000);
            uint64_t *x = sign_keys(&sign, span(a)), *y = sign_keys(&sign, span(b));
            shared_bands(x, y, hits);
            for (int g = 0; g < GROUPS; g++) found[g] += (double)(hits[g] > 0) / PAIRS;
            free(a);
            free(b);
            free(x);
            free(y);
        }
        char what[32];
        snprintf(what, sizeof what, "similarity %.2f", j);
        assert_recall(what, found, minhash_match_probability(BANDS, ROWS, j));
    }
    signer_free(&sign);
}

/* The rows of a signature must err independently: as many agree, and as unevenly from pair to pair,
 * as coins of probability j would. */
static void rows_are_independent(void **state) {
    enum { PAIRS = 400, WORDS = 104, OWN = 20, N = 112 };
    minhash *m = minhash_new(5, BANDS, ROWS, (normalization){ 0 });
    minhash_scratch *s = mem_alloc(sizeof *s);
    double j = (100.0 - OWN) / (100.0 + OWN), sum = 0, squares = 0;
    for (int p = 0; p < PAIRS; p++) {
        unsigned seed = (unsigned)(p * 2000 + WORDS - OWN);
        int agree = 0;
        char *a = numbered(WORDS, pair_word, seed), *b = numbered(WORDS, pair_word, seed + 1000);
        uint32_t first[N];
        minhash_sign(m, span(a), s);
        memcpy(first, s->least, sizeof first);
        minhash_sign(m, span(b), s);
        for (int i = 0; i < N; i++) agree += first[i] == s->least[i];
        sum += agree;
        squares += (agree - N * j) * (agree - N * j);
        free(a);
        free(b);
    }
    double mean = sum / PAIRS / N, error = sqrt(j * (1 - j) / PAIRS / N);
    if (fabs(mean - j) > 4.5 * error) fail_msg("rows agree in %.4f, expected %.4f", mean, j);
    double spread = squares / PAIRS / (N * j * (1 - j)); /* 1, with error sqrt(2 / PAIRS) */
    if (fabs(spread - 1) > 4.5 * sqrt(2.0 / PAIRS)) fail_msg("spread %.3f, expected 1", spread);
    free(s);
    minhash_free(m);
}

/* Equal rows in two bands do not match: a text that has them here and another that has them there
 * share nothing. */
static void bands_have_keys_of_their_own(void **state) {
    minhash *m = minhash_new(5, BANDS, ROWS, (normalization){ 0 });
    minhash_scratch *s = mem_alloc(sizeof *s);
    uint64_t keys[BANDS];
    for (int i = 0; i < BANDS * ROWS; i++) s->least[i] = (uint32_t)(i % ROWS);
    minhash_keys(m, s, keys);
    for (int i = 0; i < BANDS; i++)
        for (int k = 0; k < i; k++) assert_true(keys[i] != keys[k]);
    free(s);
    minhash_free(m);
}

/* ---- license texts, whose similarities are known ------------------------------------------- */

typedef struct licenses {
    signer sign;
    char *name[1024];
    uint64_t *keys[1024];
    int n;
} licenses;

static err sign_block(void *ctx, int worker, const text_block *b, void *result) { return OK; }
static err keep_block(void *ctx, const text_block *b, void *result) {
    licenses *l = ctx;
    for (int i = 0; i < b->n; i++) {
        const text_doc *d = &b->docs[i];
        const char *slash = memrchr(d->id.at, '/', d->id.len);
        size_t skip = slash ? (size_t)(slash + 1 - d->id.at) : 0;
        assert_true(l->n < 1024);
        l->name[l->n] = strndup(d->id.at + skip, d->id.len - skip);
        l->keys[l->n++] = sign_keys(&l->sign, d->text);
    }
    return OK;
}

static void load_licenses(licenses *l, const char *path) {
    text_inputs *in = NULL;
    text_counts counts = { 0 };
    text_pipeline flow = { l, 1, sign_block, keep_block, NULL };
    assert_null(text_inputs_open(&path, 1, &(text_input_options){ 0 }, &in));
    for (int s = 0; s < text_segments(in); s++)
        assert_null(text_pipeline_run(in, s, &flow, 1, &counts));
    text_inputs_close(in);
}

static const uint64_t *keys_named(const licenses *l, const char *name) {
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->name[i], name) == 0) return l->keys[i];
    fail_msg("no license %s", name);
    return NULL;
}

static void licenses_are_found_as_the_curve_predicts(void **state) {
    enum { BINS = 10 };
    const char *shared = getenv("INGOT_SHARED_DATA");
    if (!shared) skip();
    licenses *l = mem_alloc(sizeof *l);
    l->sign = signer_new();
    char *texts = io_join(shared, "near-dup/licenses.jsonl.zst"), *table = NULL;
    char *pairs = io_join(shared, "near-dup/pairs_jaccard_word5gram.tsv");
    load_licenses(l, texts);
    assert_null(io_read(pairs, 1 << 24, &table, NULL));
    double found[BINS][GROUPS] = { { 0 } }, expected[BINS] = { 0 };
    int count[BINS] = { 0 };
    char *rest = NULL;
    for (char *line = strtok_r(table, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        double j;
        char a[128], b[128];
        int hits[GROUPS], na, nb;
        if (sscanf(line, "%lf\t%127[^\t]\t%127[^\t]\t%d\t%d", &j, a, b, &na, &nb) != 5) continue;
        if (na < 5 || nb < 5) continue;
        int bin = MIN((int)(j * BINS), BINS - 1);
        shared_bands(keys_named(l, a), keys_named(l, b), hits);
        for (int g = 0; g < GROUPS; g++) found[bin][g] += hits[g] > 0;
        expected[bin] += minhash_match_probability(BANDS, ROWS, j);
        count[bin]++;
    }
    for (int i = 0; i < BINS; i++) {
        if (!count[i]) continue;
        char what[32];
        snprintf(what, sizeof what, "%d pairs near %.2f", count[i], (i + 0.5) / BINS);
        double mean = 0;
        for (int g = 0; g < GROUPS; g++) mean += (found[i][g] /= count[i]) / GROUPS;
        print_message("%-22s found %.4f, curve %.4f\n", what, mean, expected[i] / count[i]);
        assert_recall(what, found[i], expected[i] / count[i]);
    }
    for (int i = 0; i < l->n; i++) {
        free(l->name[i]);
        free(l->keys[i]);
    }
    signer_free(&l->sign);
    free(l);
    free(texts);
    free(pairs);
    free(table);
}

/* h(x) = a x + b permutes 2^32 values only where a is odd. */
static void every_hash_is_a_permutation(void **state) {
    minhash *m = minhash_new(5, 14, 8, zero_digits);
    for (int i = 0; i < m->n; i++) assert_int_equal(m->a[i] % 2, 1);
    minhash_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_hash_is_a_permutation),
        cmocka_unit_test(words_are_normalized),
        cmocka_unit_test(each_normalization_has_a_switch),
        cmocka_unit_test(words_that_differ),
        cmocka_unit_test(words_know_their_place),
        cmocka_unit_test(words_in_pieces_are_the_same),
        cmocka_unit_test(signature_is_the_least_of_all_grams),
        cmocka_unit_test(short_texts_have_signatures),
        cmocka_unit_test(curve_has_published_values),
        cmocka_unit_test(threshold_picks_the_best_bands),
        cmocka_unit_test(bands_match_as_often_as_the_curve_predicts),
        cmocka_unit_test(rows_are_independent),
        cmocka_unit_test(bands_have_keys_of_their_own),
        cmocka_unit_test(licenses_are_found_as_the_curve_predicts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
