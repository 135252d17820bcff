/* Which lines of a page are its text. A block is judged by itself first: sentences are good, links
 * are bad, and what is too short to tell is judged by the company it keeps. */
#include <stdlib.h>

#include "text/html.h"

enum {
    LONG = 80,        /* characters from which a sentence is surely text */
    SHORT = 25,       /* below, nothing can be told */
    REACH = 3,        /* short blocks between one and its company, at most ... */
    REACH_ITEMS = 40, /* ... and items of lists and tables */
};
static const double MANY = 0.4, MOST = 0.6, NEARLY_ALL = 0.9; /* of the characters are linked */

typedef enum { BAD, UNSURE, FAIR, GOOD } merit;

static bool is_item(const html_block *b) { return b->kind == BLOCK_ITEM || b->kind == BLOCK_ROW; }

/* Prose may be full of links, as in an encyclopedia: then words of its own stand between them. */
static merit judge(const html_block *b) {
    double linked = b->characters ? (double)b->linked / b->characters : 1;
    bool prose = b->sentence && b->characters - b->linked >= SHORT && linked <= NEARLY_ALL;
    if (b->kind == BLOCK_HEADING) return UNSURE;
    if (prose) return b->characters >= LONG ? GOOD : FAIR;
    if (linked > MOST) return BAD;
    if (b->kind == BLOCK_CODE) return FAIR;
    if (linked > MANY) return b->characters < SHORT ? BAD : UNSURE;
    return b->characters >= 3 * LONG ? GOOD : UNSURE;
}

/* Marks the blocks that have a kept one near them on one side. */
enum { ABOVE = 1, BELOW = 2 };
static void look(const html_block *b, int n, int side, uint8_t *company) {
    int others = REACH + 1, items = 0;
    for (int k = 0; k < n; k++) {
        int i = side == ABOVE ? k : n - 1 - k;
        if (others <= REACH && items <= REACH_ITEMS) company[i] |= (uint8_t)side;
        if (b[i].keep)
            others = items = 0;
        else if (is_item(&b[i]))
            items++;
        else
            others++;
    }
}

typedef bool (*admits)(const html_block *b, merit m, int company);

static bool admits_fair(const html_block *b, merit m, int company) { return m == FAIR && company; }

/* A list goes with what is above it; anything else must be amid the text. */
static bool admits_unsure(const html_block *b, merit m, int company) {
    if (m < UNSURE || b->kind == BLOCK_HEADING) return false;
    return company == (ABOVE | BELOW) || (is_item(b) && (company & ABOVE));
}

static void keep_more(html_block *b, const merit *merits, int n, admits rule) {
    uint8_t *company = mem_alloc((size_t)n);
    look(b, n, ABOVE, company);
    look(b, n, BELOW, company);
    for (int i = 0; i < n; i++)
        if (rule(&b[i], merits[i], company[i])) b[i].keep = true;
    free(company);
}

/* Headings go with the text that follows them. */
static void keep_headings(html_block *b, int n) {
    int since = REACH + 1;
    for (int i = n - 1; i >= 0; i--, since++) {
        if (b[i].kind == BLOCK_HEADING)
            b[i].keep = since <= REACH;
        else if (b[i].keep)
            since = 0;
    }
}

/* Where a page says what its main part is, and there are sentences in it, the rest is not text. */
static merit judge_all(const html_block *b, int n, merit *merits) {
    merit best = BAD, best_main = BAD;
    for (int i = 0; i < n; i++) {
        merits[i] = judge(&b[i]);
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
    merit best = judge_all(b, n, merits);
    for (int i = 0; i < n; i++) b[i].keep = best >= FAIR && merits[i] == best;
    keep_more(b, merits, n, admits_fair);
    keep_more(b, merits, n, admits_unsure);
    keep_headings(b, n);
    free(merits);
}
