/* The guard: rejects windows that teach nothing. Nearly every window is sound, so each test first
 * looks at a sample of tokens, in about the time of a few cache misses, and only where that looks bad
 * at all of them. Verdicts depend on the ids alone, never on how they are stored: targets are counted
 * from the file's tokens before a batch is made from a copy.
 *
 *     test          sample                       then, of the whole window
 *     few ids       64 ids fall in few buckets   count the different ids
 *     repeated      one id is seen often         count it
 *     looped        64 runs of 4 ids collide     find the period, count what it explains
 *     malformed     64 ids' bytes are suspect    decode, count characters (guard_text.c)
 */
#include "shards/data_internal.h"

enum { SAMPLES = 64, BUCKETS = 256, SUSPECTS = 4 };

static const char *const NAMES[] = {
    [GUARD_FINE] = "fine",
    [GUARD_VOCABULARY] = "ids outside the vocabulary",
    [GUARD_REPEATED] = "one id repeated",
    [GUARD_FEW_IDS] = "few different ids",
    [GUARD_LOOPED] = "a phrase repeated",
    [GUARD_MALFORMED] = "malformed text",
};

const char *guard_verdict_name(guard_verdict v) {
    BUG_IF((int)v < 0 || v >= GUARD_VERDICTS);
    return NAMES[v];
}

static unsigned bucket_of(int32_t id) { return (uint32_t)id * 2654435769u >> 24; }

/* Positions spread evenly, and along no period of the text: multiples of the golden ratio. */
static int64_t sample_position(int k, int64_t n) {
    uint32_t spread = (uint32_t)(k + 1) * 2654435769u;
    return (int64_t)((uint64_t)spread * (uint64_t)n >> 32);
}

/* ---- ids --------------------------------------------------------------------------------------- */

/* @return whether fewer than `least` ids differ. Ends as soon as enough were seen. */
static bool has_few_ids(const token_view *v, int64_t least) {
    enum { MOST = 256 };
    int32_t seen[MOST];
    int found = 0;
    least = MIN(least, MOST);
    for (int64_t i = 0; i < v->n && found < least; i++) {
        int32_t id = view_token(v, i);
        int k = 0;
        while (k < found && seen[k] != id) k++;
        if (k == found) seen[found++] = id;
    }
    return found < least;
}

/* @return how many buckets the sample fell into: no more than the ids that differ. */
static int sample_window_ids(const token_view *v, int32_t seen[SAMPLES]) {
    uint8_t hit[BUCKETS] = { 0 };
    int different = 0;
    for (int k = 0; k < SAMPLES; k++) seen[k] = view_token(v, sample_position(k, v->n));
    for (int k = 0; k < SAMPLES; k++) hit[bucket_of(seen[k])] = 1;
    for (int b = 0; b < BUCKETS; b++) different += hit[b];
    return different;
}

/* @return whether one id is more than `share` of the window. Such an id is seen at half its share,
 * but for less than one window in a million. */
static bool is_repeated(const token_view *v, const int32_t seen[SAMPLES], double share) {
    uint8_t count[BUCKETS] = { 0 };
    for (int k = 0; k < SAMPLES; k++) count[bucket_of(seen[k])]++;
    for (int k = 0, suspects = 0; k < SAMPLES && suspects < SUSPECTS; k++) {
        if (count[bucket_of(seen[k])] < 0.5 * share * SAMPLES) continue;
        if (k > 0 && seen[k] == seen[k - 1]) continue;
        suspects++;
        if ((double)view_count(v, 0, v->n, seen[k]) > share * (double)v->n) return true;
    }
    return false;
}

/* ---- loops ------------------------------------------------------------------------------------- */

enum { GRAM = 4, GRAMS = 64, GRAM_BUCKETS = 512, LONG_GRAM = 8, ANCHORS = 4 };

static uint64_t gram_hash(const token_view *v, int64_t i) {
    static const uint64_t odd[GRAM] = { 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F,
                                        0xE7037ED1A0B428DB };
    uint64_t sum = 0;
    if (v->width == 2) {
        const uint16_t *t = (const uint16_t *)v->at + i;
        for (int k = 0; k < GRAM; k++) sum += t[k] * odd[k];
    } else {
        const uint32_t *t = (const uint32_t *)v->at + i;
        for (int k = 0; k < GRAM; k++) sum += t[k] * odd[k];
    }
    return sum;
}

/* A loop of period p has only p different runs of ids: 64 at random positions of a loop of 100 are
 * about 47, and fall into fewer buckets. Those of text nearly all differ, and fill 60. The positions
 * must be random: evenly spread ones would meet each phase of a loop once. */
static bool grams_collide(const token_view *v) {
    uint64_t hit[GRAM_BUCKETS / 64] = { 0 };
    int different = 0;
    uint64_t n = (uint64_t)(v->n - GRAM);
    for (uint64_t k = 0; k < GRAMS; k++) {
        uint64_t random = (k + 1) * 0x9E3779B97F4A7C15u;
        random = (random ^ random >> 32) * 0xD6E8FEB86659FD93u >> 32;
        uint64_t b = gram_hash(v, (int64_t)(random * n >> 32)) >> 55;
        hit[b / 64] |= (uint64_t)1 << b % 64;
    }
    for (int w = 0; w < GRAM_BUCKETS / 64; w++) different += __builtin_popcountll(hit[w]);
    return different < GRAMS - GRAMS / 8;
}

static bool grams_equal(const token_view *v, int64_t i, int64_t j) {
    int k = 0;
    while (k < LONG_GRAM && view_token(v, i + k) == view_token(v, j + k)) k++;
    return k == LONG_GRAM;
}

/* @return the distance from the run of ids at `i` to the next that equals it; 0: more than `most`. */
static int64_t find_period(const token_view *v, int64_t i, int64_t most) {
    for (int64_t p = 1; p <= most && i + p + LONG_GRAM <= v->n; p++)
        if (grams_equal(v, i, i + p)) return p;
    return 0;
}

/* @return whether more than `share` of the window is the token that stood one period before it. */
static bool is_looped(const token_view *v, double share) {
    if (v->n < 4 * LONG_GRAM || !grams_collide(v)) return false;
    int64_t most = (int64_t)((1 - share) * (double)v->n);
    for (int k = 0; k < ANCHORS; k++) {
        int64_t p = find_period(v, sample_position(k, v->n - most), most), same = 0;
        if (p == 0) continue;
        for (int64_t i = p; i < v->n; i++) same += view_token(v, i) == view_token(v, i - p);
        if ((double)same > share * (double)v->n) return true;
    }
    return false;
}

/* ---- the verdict ------------------------------------------------------------------------------- */

guard_verdict guard_judge(const guard_options *g, const guard_text *text, const token_view *v,
                          guard_buffer *buffer) {
    int32_t seen[SAMPLES];
    if (v->n < 2) return GUARD_FINE;
    int different = sample_window_ids(v, seen);
    int64_t least = MIN(g->few_ids, v->n / 4); /* a short window has few by nature */
    if (different < least && has_few_ids(v, least)) return GUARD_FEW_IDS;
    /* With that many different ids in the sample none can be frequent. */
    bool varied = different > SAMPLES - 0.5 * g->repeated * SAMPLES + 1;
    if (g->repeated > 0 && !varied && is_repeated(v, seen, g->repeated)) return GUARD_REPEATED;
    /* Nor for a short phrase: a sample of its ids repeats many. */
    varied = different > SAMPLES - SAMPLES / 5;
    if (g->repeated > 0 && !varied && is_looped(v, g->repeated)) return GUARD_LOOPED;
    if (g->malformed > 0 && text && guard_text_suspects(text, seen, SAMPLES, g->malformed) &&
        guard_text_is_malformed(text, v, g->malformed, buffer))
        return GUARD_MALFORMED;
    return GUARD_FINE;
}
