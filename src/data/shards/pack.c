/* Windows that are made of whole documents where possible, in one of two ways.
 *
 * Best fit. Documents form groups that fill about GROUP_WINDOWS windows. In a group the
 * pieces of documents, longest first, each go into the window with the least space that is still
 * enough. A document longer than a window is split into whole windows, which come first in the group,
 * and a remainder.
 *
 *     documents  | group 0        | group 1     | group 2 ...
 *     windows    | 0 ... 65       | 66 ... 129  | 130 ...
 *
 * Stored are the number of windows before each group and, in two bytes per document, the window of its
 * remainder: the pieces of a window are found by a search among the documents of its group.
 *
 * Aligned. Documents follow one another as in the source; the one that a window's end interrupts is cropped there, and the
 * next window begins with the next document. A group is GROUP_WINDOWS windows, whose documents are walked to find one. */
#include "shards/data_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { GROUP_WINDOWS = 64, GROUP_DOCUMENTS = 1 << 14 };
static const uint16_t NO_BIN = UINT16_MAX; /* no remainder */
static_assert(GROUP_DOCUMENTS < UINT16_MAX, "a bin's number fits in two bytes");

typedef struct window_group {
    int64_t document, window; /* the first of each */
    int64_t whole;            /* windows that a single document fills */
} window_group;

struct packing {
    data_packing kind;
    const data_source *source;
    data_range range; /* of tokens; documents are clipped to it */
    int64_t seq_len;
    int64_t first; /* document */
    uint16_t *
        bin; /* best fit: [documents of the range] of the remainder, after the group's whole windows */
    window_group *groups; /* [n + 1], the last is the end */
    int n, capacity;
};

/* ---- one group --------------------------------------------------------------------------------- */

/* Scratch for the documents of one group. */
typedef struct group_packer {
    int32_t rest[GROUP_DOCUMENTS]; /* tokens of each beyond whole windows */
    int order[GROUP_DOCUMENTS];    /* of those that have some, the longest first */
    uint32_t space[GROUP_DOCUMENTS];
    int *first; /* [seq_len + 1] by length, in `order` */
} group_packer;

static data_range clip_document(const packing *p, int64_t document) {
    data_range d = data_document(p->source, document);
    return (data_range){ MAX(d.from, p->range.from), MIN(d.to, p->range.to) };
}

/* Longest first; those of one length in the order of the source. @return how many have any. */
static int sort_by_length(group_packer *h, int n, int64_t longest) {
    int *first = h->first, sum = 0;
    memset(first, 0, (size_t)(longest + 1) * sizeof *first);
    for (int i = 0; i < n; i++) first[h->rest[i]]++;
    for (int64_t length = longest; length > 0; length--) {
        int many = first[length];
        first[length] = sum;
        sum += many;
    }
    for (int i = 0; i < n; i++)
        if (h->rest[i]) h->order[first[h->rest[i]]++] = i;
    return sum;
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

/* Packs the documents from g->document to `to`. @return how many windows they fill. */
static int64_t pack_documents(packing *p, window_group *g, int64_t to, group_packer *h) {
    int n = (int)(to - g->document), open = 0;
    uint16_t *bin = p->bin + (g->document - p->first);
    for (int i = 0; i < n; i++) {
        data_range r = clip_document(p, g->document + i);
        g->whole += (r.to - r.from) / p->seq_len;
        h->rest[i] = (int32_t)((r.to - r.from) % p->seq_len);
        bin[i] = NO_BIN;
    }
    int pieces = sort_by_length(h, n, p->seq_len);
    for (int i = 0; i < pieces; i++) {
        uint32_t length = (uint32_t)h->rest[h->order[i]];
        int b = best_bin(h->space, open, length);
        if (b == open) h->space[open++] = (uint32_t)p->seq_len;
        h->space[b] -= length;
        bin[h->order[i]] = (uint16_t)b;
    }
    return g->whole + open;
}

/* ---- all groups -------------------------------------------------------------------------------- */

static void add_group(packing *p, window_group g) { LIST_ADD(p->groups, p->n, p->capacity) = g; }

/* @return the document with which the window after the one that begins with `document` begins. */
static int64_t next_aligned(const packing *p, int64_t document, int64_t last) {
    for (int64_t space = p->seq_len; space > 0 && document <= last; document++) {
        data_range r = clip_document(p, document);
        space -= MIN(r.to - r.from, space);
    }
    return document;
}

static void pack_aligned(packing *p, int64_t last) {
    int64_t document = p->first, window = 0;
    for (; document <= last; window++) {
        if (window % GROUP_WINDOWS == 0)
            add_group(p, (window_group){ .document = document, .window = window });
        document = next_aligned(p, document, last);
    }
    add_group(p, (window_group){ .document = document, .window = window });
}

static void pack_best_fit(packing *p, int64_t last) {
    int64_t document = p->first, window = 0, tokens = 0, begin = document;
    p->bin = mem_alloc((size_t)(last + 1 - document) * sizeof *p->bin);
    group_packer *h = mem_alloc(sizeof *h);
    h->first = mem_alloc((size_t)(p->seq_len + 1) * sizeof *h->first);
    for (; document <= last; document++) {
        data_range r = clip_document(p, document);
        tokens += r.to - r.from;
        bool full = tokens >= GROUP_WINDOWS * p->seq_len || document + 1 - begin == GROUP_DOCUMENTS;
        if (!full && document < last) continue;
        window_group g = { .document = begin, .window = window };
        window += pack_documents(p, &g, document + 1, h);
        add_group(p, g);
        begin = document + 1;
        tokens = 0;
    }
    add_group(p, (window_group){ .document = begin, .window = window });
    free(h->first);
    free(h);
}

packing *packing_new(data_packing kind, const data_source *s, data_range range, int64_t seq_len) {
    BUG_IF(!s->indexed);
    packing *p = mem_alloc(sizeof *p);
    *p = (packing){ .kind = kind,
                    .source = s,
                    .range = range,
                    .seq_len = seq_len,
                    .first = data_document_of(s, range.from) };
    int64_t last = data_document_of(s, range.to - 1);
    switch (kind) {
    case PACK_CONCAT: BUG("concatenated windows are not packed");
    case PACK_BEST_FIT: pack_best_fit(p, last); break;
    case PACK_ALIGNED: pack_aligned(p, last); break;
    }
    p->n--; /* the last one is the end */
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

static void add_packed(packed *h, int n, packed_piece piece) {
    if (n == h->capacity) {
        h->capacity = MAX(16, 2 * h->capacity);
        h->pieces = mem_grow(h->pieces, (size_t)h->capacity * sizeof *h->pieces);
    }
    h->pieces[n] = piece;
}

/* @return the k-th of the windows that single documents fill. */
static packed_piece whole_window(const packing *p, const window_group *g, int64_t k) {
    for (int64_t d = g->document;; d++) {
        data_range r = clip_document(p, d);
        int64_t whole = (r.to - r.from) / p->seq_len, from = r.from + k * p->seq_len;
        if (k < whole) return (packed_piece){ from, (int32_t)p->seq_len, from + p->seq_len < r.to };
        k -= whole;
    }
}

/* Inserts a piece where it went into its bin: after those that are at least as long. */
static void insert_piece(packed *h, int n, packed_piece piece) {
    add_packed(h, n, piece);
    for (; n > 0 && h->pieces[n - 1].n < piece.n; n--) h->pieces[n] = h->pieces[n - 1];
    h->pieces[n] = piece;
}

static const packed_piece *aligned_window(const packing *p, const window_group *g, int64_t w,
                                          packed *held, int *n) {
    int64_t last = p->groups[p->n].document - 1, document = g->document;
    for (int64_t i = g->window; i < w; i++) document = next_aligned(p, document, last);
    int64_t space = p->seq_len;
    for (*n = 0; space > 0 && document <= last; document++) {
        data_range r = clip_document(p, document);
        int64_t taken = MIN(r.to - r.from, space);
        add_packed(held, (*n)++, (packed_piece){ r.from, (int32_t)taken, taken < r.to - r.from });
        space -= taken;
    }
    return held->pieces;
}

const packed_piece *packing_window(const packing *p, int64_t w, packed *held, int *n) {
    enum { STRIDE = 64 };
    BUG_IF(w < 0 || w >= packing_windows(p));
    const window_group *g = &p->groups[window_group_of(p, w)];
    if (p->kind == PACK_ALIGNED) return aligned_window(p, g, w, held, n);
    int64_t b = w - g->window - g->whole;
    *n = 0;
    if (b < 0) {
        add_packed(held, (*n)++, whole_window(p, g, w - g->window));
        return held->pieces;
    }
    const uint16_t *bin = p->bin + (g->document - p->first);
    int documents = (int)(g[1].document - g->document);
    for (int i = 0; i < documents; i += STRIDE) {
        int to = MIN(documents, i + STRIDE), found = 0;
        for (int k = i; k < to; k++) found |= bin[k] == (uint16_t)b; /* without a branch */
        if (!found) continue;
        for (int k = i; k < to; k++) {
            if (bin[k] != b) continue;
            data_range r = clip_document(p, g->document + k);
            int32_t rest = (int32_t)((r.to - r.from) % p->seq_len);
            insert_piece(held, (*n)++, (packed_piece){ r.to - rest, rest, false });
        }
    }
    return held->pieces;
}

void packing_free(packing *p) {
    if (!p) return;
    free(p->bin);
    free(p->groups);
    free(p);
}

void packed_free(packed *h) {
    free(h->pieces);
    *h = (packed){ 0 };
}
