/* The guard: windows that teach nothing, told by a glance at a few of their tokens and, where that
 * looks bad, by all of them. */
#include "data/data_internal.h"

enum { GLANCES = 64, BUCKETS = 256, SUSPECTS = 4 };

static const char *const NAMES[] = {
    [GUARD_FINE] = "fine",
    [GUARD_VOCABULARY] = "ids outside the vocabulary",
    [GUARD_REPEATED] = "one id repeated",
    [GUARD_FEW_IDS] = "few different ids",
};

const char *guard_verdict_name(guard_verdict v) {
    BUG_IF((int)v < 0 || v >= GUARD_VERDICTS);
    return NAMES[v];
}

static unsigned bucket_of(int32_t id) { return (uint32_t)id * 2654435769u >> 24; }

/* Places that follow no period of the text: multiples of the golden ratio. */
static int64_t glance_at(int k, int64_t n) {
    uint32_t spread = (uint32_t)(k + 1) * 2654435769u;
    return (int64_t)((uint64_t)spread * (uint64_t)n >> 32);
}

/* @return whether fewer than `least` ids differ. Ends as soon as enough were seen. */
static bool has_few(const token_view *v, int64_t least) {
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

/* Reads the glances. @return how many buckets they fell into: no more than the ids that differ. */
static int glance(const token_view *v, int32_t seen[GLANCES]) {
    uint8_t hit[BUCKETS] = { 0 };
    int different = 0;
    for (int k = 0; k < GLANCES; k++) seen[k] = view_token(v, glance_at(k, v->n));
    for (int k = 0; k < GLANCES; k++) hit[bucket_of(seen[k])] = 1;
    for (int b = 0; b < BUCKETS; b++) different += hit[b];
    return different;
}

/* @return whether one id is more than `share` of the window. Such an id is seen at half its share,
 * but for less than one window in a million. */
static bool is_repeated(const token_view *v, const int32_t seen[GLANCES], double share) {
    uint8_t count[BUCKETS] = { 0 };
    for (int k = 0; k < GLANCES; k++) count[bucket_of(seen[k])]++;
    for (int k = 0, suspects = 0; k < GLANCES && suspects < SUSPECTS; k++) {
        if (count[bucket_of(seen[k])] < 0.5 * share * GLANCES) continue;
        if (k > 0 && seen[k] == seen[k - 1]) continue;
        suspects++;
        if ((double)view_count(v, 0, v->n, seen[k]) > share * (double)v->n) return true;
    }
    return false;
}

guard_verdict guard_judge(const guard_options *g, const token_view *v) {
    int32_t seen[GLANCES];
    if (v->n < 2) return GUARD_FINE;
    int different = glance(v, seen);
    int64_t least = MIN(g->few_ids, v->n / 4); /* a short window has few by nature */
    if (different < least && has_few(v, least)) return GUARD_FEW_IDS;
    /* So many different ones leave no room for one that is seen often. */
    bool varied = different > GLANCES - 0.5 * g->repeated * GLANCES + 1;
    if (g->repeated > 0 && !varied && is_repeated(v, seen, g->repeated)) return GUARD_REPEATED;
    return GUARD_FINE;
}
