/* Best-fit packing. Documents form groups that fill about GROUP_WINDOWS windows. In a group the
 * pieces of documents, longest first, each go into the window with the least space that is still
 * enough. Only the number of windows before each group is stored: a window is reached by packing its
 * group again, from the document index alone:
 *
 *     documents  | group 0        | group 1     | group 2 ...
 *     windows    | 0 ... 65       | 66 ... 129  | 130 ...
 *
 * A document longer than a window is split into whole windows and a remainder. */
#include "data/data_internal.h"

#include <stdlib.h>
#include <string.h>

enum { GROUP_WINDOWS = 64, GROUP_DOCUMENTS = 1 << 14 };

typedef struct window_group {
    int64_t document, window; /* the first of each */
} window_group;

struct packing {
    const data_source *source;
    data_range range; /* of tokens; documents are clipped to it */
    int64_t seq_len;
    window_group *groups; /* [n + 1], the last is the end */
    int n, capacity;
};

/* ---- one group --------------------------------------------------------------------------------- */

static data_range clip_document(const packing *p, int64_t document) {
    data_range d = data_document(p->source, document);
    return (data_range){ MAX(d.from, p->range.from), MIN(d.to, p->range.to) };
}

static void reserve_items(packed *h, int n) {
    if (n <= h->items_cap) return;
    h->items_cap = MAX(n, 2 * h->items_cap);
    h->items = mem_grow(h->items, (size_t)h->items_cap * sizeof *h->items);
    h->pieces = mem_grow(h->pieces, (size_t)h->items_cap * sizeof *h->pieces);
    h->order = mem_grow(h->order, (size_t)h->items_cap * sizeof *h->order);
    h->where = mem_grow(h->where, (size_t)h->items_cap * sizeof *h->where);
    h->space = mem_grow(h->space, (size_t)h->items_cap * sizeof *h->space);
    h->bin = mem_grow(h->bin, (size_t)(h->items_cap + 1) * sizeof *h->bin);
}

/* Splits documents [from, to) into pieces. @return how many. */
static int split_pieces(const packing *p, int64_t from, int64_t to, packed *h) {
    int n = 0;
    for (int64_t d = from; d < to; d++) {
        data_range r = clip_document(p, d);
        while (r.from < r.to) {
            int64_t take = MIN(r.to - r.from, p->seq_len);
            reserve_items(h, n + 1);
            h->items[n++] = (packed_piece){ r.from, (int32_t)take, r.from + take < r.to };
            r.from += take;
        }
    }
    return n;
}

/* Longest first; those of one length as they lie in the source. */
static void sort_by_length(packed *h, int n, int64_t longest) {
    int *first = h->length;
    memset(first, 0, (size_t)(longest + 1) * sizeof *first);
    for (int i = 0; i < n; i++) first[h->items[i].n]++;
    int sum = 0;
    for (int64_t length = longest; length >= 0; length--) {
        int many = first[length];
        first[length] = sum;
        sum += many;
    }
    for (int i = 0; i < n; i++) h->order[first[h->items[i].n]++] = i;
}

/* @return the fullest bin with space for n, the first of equals; `bins` when there is none. Two
 * passes, for each is a loop the compiler turns into vectors. */
static int best_bin(const uint32_t *space, int bins, uint32_t n) {
    uint32_t best =
        UINT32_MAX; /* space left over; what does not fit wraps around to a large number */
    for (int i = 0; i < bins; i++) best = MIN(best, space[i] - n);
    if (best > INT32_MAX) return bins;
    int i = 0;
    while (space[i] - n != best) i++;
    return i;
}

/* Pieces in the order of their bins, and in a bin as they went in. */
static void sort_by_bin(packed *h, int n) {
    memset(h->bin, 0, (size_t)(h->bins + 1) * sizeof *h->bin);
    for (int i = 0; i < n; i++) h->bin[h->where[i] + 1]++;
    for (int b = 0; b < h->bins; b++) h->bin[b + 1] += h->bin[b];
    for (int i = 0; i < n; i++) h->pieces[h->bin[h->where[i]]++] = h->items[h->order[i]];
    for (int b = h->bins; b > 0; b--) h->bin[b] = h->bin[b - 1];
    h->bin[0] = 0;
}

static void pack_documents(const packing *p, int64_t from, int64_t to, packed *h) {
    int n = split_pieces(p, from, to, h), full = 0, open = 0;
    if (!h->length || h->of != p)
        h->length = mem_grow(h->length, (size_t)(p->seq_len + 1) * sizeof *h->length);
    sort_by_length(h, n, p->seq_len);
    while (full < n && h->items[h->order[full]].n == p->seq_len) { /* nothing goes beside these */
        h->where[full] = full;
        full++;
    }
    for (int i = full; i < n; i++) {
        uint32_t length = (uint32_t)h->items[h->order[i]].n;
        int b = best_bin(h->space, open, length);
        if (b == open) h->space[open++] = (uint32_t)p->seq_len;
        h->space[b] -= length;
        h->where[i] = full + b;
    }
    h->bins = full + open;
    if (n > 0) sort_by_bin(h, n);
}

/* ---- all groups -------------------------------------------------------------------------------- */

static void add_group(packing *p, window_group g) {
    void *groups = p->groups;
    mem_reserve(&groups, &p->capacity, p->n, sizeof *p->groups);
    p->groups = groups;
    p->groups[p->n++] = g;
}

packing *packing_new(const data_source *s, data_range range, int64_t seq_len) {
    BUG_IF(!s->indexed);
    packing *p = mem_alloc(sizeof *p);
    *p = (packing){ .source = s, .range = range, .seq_len = seq_len };
    packed h = { 0 };
    int64_t document = data_document_of(s, range.from), window = 0, tokens = 0, begin = document;
    int64_t last = data_document_of(s, range.to - 1);
    for (; document <= last; document++) {
        data_range r = clip_document(p, document);
        tokens += r.to - r.from;
        bool full = tokens >= GROUP_WINDOWS * seq_len || document + 1 - begin == GROUP_DOCUMENTS;
        if (!full && document < last) continue;
        pack_documents(p, begin, document + 1, &h);
        add_group(p, (window_group){ begin, window });
        window += h.bins;
        begin = document + 1;
        tokens = 0;
    }
    add_group(p, (window_group){ begin, window });
    p->n--;
    packed_free(&h);
    return p;
}

int64_t packing_windows(const packing *p) { return p->groups[p->n].window; }

static int window_group_of(const packing *p, int64_t w) {
    int low = 0, high = p->n - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (p->groups[middle].window <= w)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

const packed_piece *packing_window(const packing *p, int64_t w, packed *held, int *n) {
    BUG_IF(w < 0 || w >= packing_windows(p));
    int g = window_group_of(p, w);
    if (held->of != p || held->group != g) {
        pack_documents(p, p->groups[g].document, p->groups[g + 1].document, held);
        held->of = p;
        held->group = g;
    }
    int64_t b = w - p->groups[g].window;
    *n = held->bin[b + 1] - held->bin[b];
    return held->pieces + held->bin[b];
}

void packing_free(packing *p) {
    if (!p) return;
    free(p->groups);
    free(p);
}

void packed_free(packed *h) {
    free(h->items);
    free(h->order);
    free(h->length);
    free(h->pieces);
    free(h->where);
    free(h->space);
    free(h->bin);
    *h = (packed){ 0 };
}
