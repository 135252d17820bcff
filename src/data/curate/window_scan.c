/* The windows of a text and their anchors: see substring_internal.h.
 *
 * An anchor is the k-gram of the window with the least hash. While the window moves, the anchor is kept until it leaves
 * or a smaller hash enters, so one anchor serves about half a window of positions, also in runs of one symbol. Equal
 * windows have anchors of equal hashes, wherever they are: that is all that is needed of them. Where the least hash is
 * in a window twice, two equal windows may share one anchor; such an anchor is reported as tied. */
#include "curate/substring_internal.h"

#include <stdlib.h>

enum { GRAM_SHARE = 2 }; /* a k-gram has 1/2 of the symbols of a window */

window_scan *window_scan_new(size_t length) {
    window_scan *s = mem_alloc(sizeof *s);
    *s = (window_scan){ .length = length, .gram = MAX(length / GRAM_SHARE, (size_t)1) };
    s->grams = length - s->gram + 1;
    for (s->mask = 1; s->mask < s->grams;) s->mask *= 2;
    s->ring = mem_alloc(s->mask * sizeof *s->ring);
    s->mask--;
    s->leaving_gram = s->leaving_window = 1;
    for (size_t i = 0; i < s->gram; i++) s->leaving_gram *= NGRAM_BASE;
    for (size_t i = 0; i < length; i++) s->leaving_window *= NGRAM_BASE;
    return s;
}

void window_scan_free(window_scan *s) {
    if (!s) return;
    free(s->ring);
    free(s);
}

static uint64_t symbol_hash(uint32_t symbol) {
    return ((uint64_t)symbol + 1) * 0xC2B2AE3D27D4EB4Fu ^ 0x165667B19E3779F9u;
}

void window_scan_begin(window_scan *s, const uint8_t *bytes, const int32_t *ids, size_t n) {
    s->bytes = bytes;
    s->ids = ids;
    s->n = n;
    s->at = 0;
    s->gram_sum = s->window_sum = 0;
    s->anchor = SIZE_MAX;
}

static uint64_t symbol_at(const window_scan *s, size_t i) {
    return symbol_hash(s->ids ? (uint32_t)s->ids[i] : s->bytes[i]);
}

/* Adds one symbol to both rolling hashes; the hash of the k-gram that it ends goes to the ring. */
static void push_symbol(window_scan *s) {
    size_t i = s->at++;
    uint64_t in = symbol_at(s, i);
    s->gram_sum = s->gram_sum * NGRAM_BASE + in;
    s->window_sum = s->window_sum * NGRAM_BASE + in;
    if (i >= s->gram) s->gram_sum -= symbol_at(s, i - s->gram) * s->leaving_gram;
    if (i >= s->length) s->window_sum -= symbol_at(s, i - s->length) * s->leaving_window;
    if (i + 1 >= s->gram) s->ring[(i + 1 - s->gram) & s->mask] = hash_mix(s->gram_sum);
}

/* Chooses the last of the least k-grams of the window that begins at `first`. */
static void choose_anchor(window_scan *s, size_t first, scanned_window *w) {
    s->anchor = first;
    w->tied = false;
    for (size_t i = first + 1; i < first + s->grams; i++) {
        uint64_t hash = s->ring[i & s->mask], least = s->ring[s->anchor & s->mask];
        if (hash > least) continue;
        w->tied = hash == least;
        s->anchor = i;
    }
    w->is_new = true;
}

bool window_scan_next(window_scan *s, scanned_window *w) {
    if (s->n < s->length || s->at == s->n) return false;
    bool first = s->at == 0;
    do push_symbol(s);
    while (s->at < s->length);
    w->begin = s->at - s->length;
    w->is_new = w->tied = false;
    size_t last = w->begin + s->grams - 1;
    uint64_t entering = s->ring[last & s->mask];
    if (first || s->anchor < w->begin) {
        choose_anchor(s, w->begin, w);
    } else if (entering < s->ring[s->anchor & s->mask]) {
        s->anchor = last;
        w->is_new = true;
    } else {
        w->tied = entering == s->ring[s->anchor & s->mask] && last != s->anchor;
    }
    w->anchor = s->ring[s->anchor & s->mask];
    w->hash = hash_mix(s->window_sum ^ 0x9FB21C651E98DF25u);
    return true;
}
