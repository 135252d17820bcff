/* Selects the blocks of a page that are its text. Each block is first rated by itself: sentences
 * are good, links are bad. Blocks too short to rate are decided by the blocks near them. */
#include <stdlib.h>

#include "text/html.h"

enum {
    LONG = 80,        /* a sentence of this many characters is certainly text */
    SHORT = 25,       /* shorter blocks cannot be rated by themselves */
    REACH = 3,        /* short blocks allowed between a block and a kept one ... */
    REACH_ITEMS = 40, /* ... and list items and table rows */
};
static const double MANY = 0.4, MOST = 0.6,
                    NEARLY_ALL = 0.9; /* fractions of characters inside links */

typedef enum { BAD, UNSURE, FAIR, GOOD } merit;

static bool is_item(const html_block *b) { return b->kind == BLOCK_ITEM || b->kind == BLOCK_ROW; }

/* Prose may be full of links, as in an encyclopedia, but then has words of its own between them. */
static merit rate_block(const html_block *b) {
    double linked = b->characters ? (double)b->linked / b->characters : 1;
    bool prose = b->sentence && b->characters - b->linked >= SHORT && linked <= NEARLY_ALL;
    if (b->kind == BLOCK_HEADING) return UNSURE;
    if (prose) return b->characters >= LONG ? GOOD : FAIR;
    if (linked > MOST) return BAD;
    if (b->kind == BLOCK_CODE) return FAIR;
    if (linked > MANY) return b->characters < SHORT ? BAD : UNSURE;
    return b->characters >= 3 * LONG ? GOOD : UNSURE;
}

/* Marks the blocks that have a kept one near them on the given side. */
enum { ABOVE = 1, BELOW = 2 };
static void mark_neighbors(const html_block *b, int n, int side, uint8_t *neighbors) {
    int others = REACH + 1, items = 0;
    for (int k = 0; k < n; k++) {
        int i = side == ABOVE ? k : n - 1 - k;
        if (others <= REACH && items <= REACH_ITEMS) neighbors[i] |= (uint8_t)side;
        if (b[i].keep)
            others = items = 0;
        else if (is_item(&b[i]))
            items++;
        else
            others++;
    }
}

typedef bool (*admits)(const html_block *b, merit m, int neighbors);

static bool admits_fair(const html_block *b, merit m, int neighbors) {
    return m == FAIR && neighbors;
}

/* A list belongs to the text above it; any other block needs kept text on both sides. */
static bool admits_unsure(const html_block *b, merit m, int neighbors) {
    if (m < UNSURE || b->kind == BLOCK_HEADING) return false;
    return neighbors == (ABOVE | BELOW) || (is_item(b) && (neighbors & ABOVE));
}

static void keep_more(html_block *b, const merit *merits, int n, admits rule) {
    uint8_t *neighbors = mem_alloc((size_t)n);
    mark_neighbors(b, n, ABOVE, neighbors);
    mark_neighbors(b, n, BELOW, neighbors);
    for (int i = 0; i < n; i++)
        if (rule(&b[i], merits[i], neighbors[i])) b[i].keep = true;
    free(neighbors);
}

/* Headings are kept with the text that follows them. */
static void keep_headings(html_block *b, int n) {
    int since = REACH + 1;
    for (int i = n - 1; i >= 0; i--, since++) {
        if (b[i].kind == BLOCK_HEADING)
            b[i].keep = since <= REACH;
        else if (b[i].keep)
            since = 0;
    }
}

/* If the page marks its main part and that contains sentences, everything outside it is
 * rejected. */
static merit rate_blocks(const html_block *b, int n, merit *merits) {
    merit best = BAD, best_main = BAD;
    for (int i = 0; i < n; i++) {
        merits[i] = rate_block(&b[i]);
        best = MAX(best, merits[i]);
        if (b[i].main) best_main = MAX(best_main, merits[i]);
    }
    if (best_main < FAIR || best_main < best) return best;
    for (int i = 0; i < n; i++)
        if (!b[i].main) merits[i] = BAD;
    return best_main;
}

void html_choose(html_block *b, int n) {
    merit *merits = mem_alloc((size_t)n * sizeof *merits);
    merit best = rate_blocks(b, n, merits);
    for (int i = 0; i < n; i++) b[i].keep = best >= FAIR && merits[i] == best;
    keep_more(b, merits, n, admits_fair);
    keep_more(b, merits, n, admits_unsure);
    keep_headings(b, n);
    free(merits);
}
