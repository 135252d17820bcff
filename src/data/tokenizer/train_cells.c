/* Words laid out for learning. */
#include <stdlib.h>

#include "tokenizer/train_internal.h"

enum {
    SMALL = 1024, /* counts below have a bin of their own in the histogram */
    BYTES_PER_CELL =
        20, /* that learning takes: 4 for the cell, 6 for positions, the rest for pairs */
};
static const size_t MOST_CELLS = (size_t)1 << 31; /* so that numbers of positions have 32 bits */

/* ---- how many cells the words of each count need ---------------------------------------------- */

typedef struct cell_tally {
    int64_t weight;
    uint64_t cells, words;
} cell_tally;

typedef struct histogram {
    const bpe_symbols *symbols;
    cell_tally small[SMALL];
    cell_tally *large; /* [n]; a weight may be there more than once until they are combined */
    size_t n, cap;
} histogram;

static int by_falling_weight(const void *a, const void *b) {
    int64_t x = ((const cell_tally *)a)->weight, y = ((const cell_tally *)b)->weight;
    return (x < y) - (x > y);
}

static void combine_runs(histogram *h) {
    if (h->n == 0) return;
    sort_array(h->large, h->n, sizeof *h->large, by_falling_weight);
    size_t last = 0;
    for (size_t i = 1; i < h->n; i++) {
        if (h->large[i].weight != h->large[last].weight) {
            h->large[++last] = h->large[i];
            continue;
        }
        h->large[last].cells += h->large[i].cells;
        h->large[last].words += h->large[i].words;
    }
    h->n = last + 1;
}

static void add_large(histogram *h, cell_tally t) {
    if (h->n == h->cap) combine_runs(h);
    if (h->n * 2 >= h->cap) {
        h->cap = MAX(4096, h->cap * 2);
        h->large = mem_grow(h->large, h->cap * sizeof *h->large);
    }
    h->large[h->n++] = t;
}

static size_t count_symbols(const bpe_symbols *s, const char *word, size_t len) {
    if (!s->chars) return len;
    size_t n = 0;
    uint32_t cp;
    for (size_t i = 0; i < len; n++) i += (size_t)char_decode(word + i, len - i, &cp);
    return n;
}

static void count_cells(void *ctx, const char *word, size_t len, uint64_t count) {
    histogram *h = ctx;
    size_t n = count_symbols(h->symbols, word, len);
    if (n < 2) return;
    cell_tally one = { (int64_t)count, n + 1, 1 };
    if (count >= SMALL) {
        add_large(h, one);
        return;
    }
    h->small[count].weight = one.weight;
    h->small[count].cells += one.cells;
    h->small[count].words++;
}

/* All tallies by falling weight, in `large`. */
static void histogram_finish(histogram *h) {
    for (int i = SMALL - 1; i > 0; i--)
        if (h->small[i].words) add_large(h, h->small[i]);
    combine_runs(h);
}

/* ---- the layout ---------------------------------------------------------------------------------- */

static err nothing_fits(size_t memory, size_t wanted) {
    char cap[32], need[32];
    return err_hint(ERR("a memory cap of %s is too little to learn from any word of this text",
                        str_bytes(cap, sizeof cap, (double)memory)),
                    "%s would hold all of them", str_bytes(need, sizeof need, (double)wanted));
}

/* Makes a run of each tally, from the most frequent words down, as far as memory goes. */
static err make_runs(bpe_cells *c, const histogram *h, size_t memory, size_t others) {
    size_t most = memory > others ? (memory - others) / BYTES_PER_CELL : 0;
    uint64_t all = 1;
    bool full = false;
    most = MIN(most, MOST_CELLS);
    c->n = 1;
    c->runs = mem_alloc((h->n + 1) * sizeof *c->runs);
    for (size_t i = 0; i < h->n; i++) {
        const cell_tally *t = &h->large[i];
        all += t->cells;
        c->words += (int64_t)t->words;
        full |= c->n + t->cells > most;
        if (full) {
            c->left_out += (int64_t)t->words;
            continue;
        }
        c->runs[c->n_runs++] = (cell_run){ (uint32_t)c->n, t->weight };
        c->least = t->weight;
        c->n += t->cells;
    }
    c->runs[c->n_runs].first = (uint32_t)c->n;
    c->wanted = all * BYTES_PER_CELL + others;
    return h->n && c->n_runs == 0 ? nothing_fits(memory, c->wanted) : OK;
}

typedef struct placing {
    const bpe_symbols *symbols;
    bpe_cells *cells;
    uint32_t *next; /* [n_runs] where the next word goes */
} placing;

static int run_of_weight(const bpe_cells *c, int64_t weight) {
    int low = 0, high = c->n_runs - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (c->runs[middle].weight <= weight)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* @return one past the last cell written. */
static uint32_t *write_symbols(const bpe_symbols *s, const char *word, size_t len, uint32_t *to) {
    uint32_t symbol;
    for (size_t i = 0; i < len;) {
        if (s->chars)
            i += (size_t)char_decode(word + i, len - i, &symbol);
        else
            symbol = (uint8_t)word[i++];
        *to++ = s->ids[symbol];
    }
    *to++ = CELL_NONE;
    return to;
}

static void place_word(void *ctx, const char *word, size_t len, uint64_t count) {
    placing *p = ctx;
    if ((int64_t)count < p->cells->least || count_symbols(p->symbols, word, len) < 2) return;
    uint32_t *next = &p->next[run_of_weight(p->cells, (int64_t)count)];
    uint32_t *end = write_symbols(p->symbols, word, len, p->cells->at + *next);
    *next = (uint32_t)(end - p->cells->at);
}

err bpe_cells_fill(bpe_cells *c, const bpe_symbols *symbols, word_counts *from, size_t memory,
                   size_t others) {
    histogram *h = mem_alloc(sizeof *h);
    placing p = { symbols, c, NULL };
    void *cells = NULL;
    err e = OK;
    *c = (bpe_cells){ 0 };
    h->symbols = symbols;
    TRY_CLEAN(word_counts_each(from, false, count_cells, h));
    histogram_finish(h);
    TRY_CLEAN(make_runs(c, h, memory, others));
    TRY_CLEAN(mem_map(c->n * sizeof *c->at, &cells));
    c->at = cells;
    c->at[0] = CELL_NONE;
    p.next = mem_alloc((size_t)c->n_runs * sizeof *p.next);
    for (int i = 0; i < c->n_runs; i++) p.next[i] = c->runs[i].first;
    TRY_CLEAN(word_counts_each(from, true, place_word, &p));
cleanup:
    free(p.next);
    free(h->large);
    free(h);
    return e;
}

void bpe_cells_free(bpe_cells *c) {
    mem_unmap(c->at, c->n * sizeof *c->at);
    free(c->runs);
    *c = (bpe_cells){ 0 };
}
