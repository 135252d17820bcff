/* Windows of a text: the repeats of a window's length or more, in symbols (bytes, or token ids), that are removed are unions of windows.
 * Shared by substring.c, window_scan.c and their test. */
#ifndef INGOT_SUBSTRING_INTERNAL_H
#define INGOT_SUBSTRING_INTERNAL_H

#include "curate/dedup_internal.h"

typedef struct window_scan {
    size_t length, gram; /* symbols of a window, and of the k-grams that are its anchors */
    size_t grams;        /* k-grams in a window */
    const uint8_t *bytes;
    const int32_t *ids; /* NULL: the symbols are bytes */
    size_t n, at;
    uint64_t gram_sum, window_sum, leaving_gram, leaving_window;
    uint64_t *ring; /* [mask + 1] hashes of the last k-grams */
    size_t mask, anchor;
} window_scan;
typedef struct scanned_window {
    size_t begin;  /* of the window, in symbols */
    uint64_t hash; /* of its content */
    uint64_t anchor;
    bool is_new; /* the anchor differs from that of the window before */
    bool tied;   /* the anchor may serve two equal windows */
} scanned_window;
/* @param length of a window, at least 2. */
window_scan *window_scan_new(size_t length);
void window_scan_free(window_scan *s); /* takes NULL */
void window_scan_begin(window_scan *s, const uint8_t *bytes, const int32_t *ids, size_t n);
/* @return false after the last window. */
bool window_scan_next(window_scan *s, scanned_window *w);

#endif
