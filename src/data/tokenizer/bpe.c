/* Byte pair encoding of one piece: begin with its bytes or characters, then join the pair of the
 * lowest rank, the leftmost of equals, until no pair is known. Short pieces, nearly all, are
 * searched from end to end for every join; long ones keep their pairs in a heap, n log n. Where
 * bpe_walk.c applies, it gives the ids of long and non-ASCII pieces faster, and bpe_units.c those of most of
 * these faster still. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/bpe_internal.h"
#include "tokenizer/chars_internal.h"

enum { SHORT_PIECE = 48 }; /* symbols, from which on the heap is faster */

/* ---- tables ------------------------------------------------------------------------------------- */

static uint64_t hash_slots_for(int64_t n) {
    uint64_t slots = 16;
    while (slots < (uint64_t)n * 2) slots *= 2;
    return slots;
}

static int32_t find_text_slot(const bpe *b, const char *text, size_t n, uint64_t *slot) {
    *slot = hash_bytes(text, n, 0) & b->index_mask;
    for (; b->index[*slot]; *slot = (*slot + 1) & b->index_mask) {
        const text_span *t = &b->tokens[b->index[*slot] - 1];
        if (t->len == n && memcmp(t->at, text, n) == 0) return (int32_t)b->index[*slot] - 1;
    }
    return -1;
}

int32_t bpe_find(const bpe *b, const char *text, size_t n) {
    uint64_t slot;
    return n && b->index ? find_text_slot(b, text, n, &slot) : -1;
}

text_span *spans_copy(const text_span *from, int64_t n, char **bytes) {
    size_t total = 0, at = 0;
    for (int64_t i = 0; i < n; i++) total += from[i].len;
    text_span *to = mem_alloc(((size_t)n + 1) * sizeof *to);
    *bytes = mem_alloc(total + 1);
    for (int64_t i = 0; i < n; i++) {
        to[i] = (text_span){ *bytes + at, from[i].len };
        if (from[i].len) memcpy(*bytes + at, from[i].at, from[i].len);
        at += from[i].len;
    }
    return to;
}

void bpe_set_tokens(bpe *b, const text_span *tokens, int64_t n, const bool *indexed) {
    b->tokens = spans_copy(tokens, n, &b->bytes);
    b->n = n;
    uint64_t slots = hash_slots_for(n), slot;
    b->index = mem_alloc(slots * sizeof *b->index);
    b->index_mask = slots - 1;
    for (int64_t i = 0; i < n; i++) {
        const text_span *t = &b->tokens[i];
        if (t->len && (!indexed || indexed[i]) && find_text_slot(b, t->at, t->len, &slot) < 0)
            b->index[slot] = (uint32_t)i + 1;
    }
}

void bpe_reserve_pairs(bpe *b, int64_t n) {
    uint64_t slots = hash_slots_for(n), bits = slots * 8;
    b->pairs = mem_alloc(slots * sizeof *b->pairs);
    b->pairs_mask = slots - 1;
    for (uint64_t i = 0; i < slots; i++) b->pairs[i] = (pair_slot){ PAIR_NONE, PAIR_NONE };
    b->filter = mem_alloc(bits / 8);
    b->filter_mask = bits - 1;
}

void bpe_add_pair(bpe *b, bpe_pair pair, uint32_t rank, int32_t made) {
    uint64_t key = (uint64_t)(uint32_t)pair.left << 32 | (uint32_t)pair.right;
    uint64_t hash = pair_hash(key);
    b->n_pairs++;
    *filter_word(b, hash) |= (uint64_t)1 << (hash & 63);
    *pair_at(b, key, hash) = (pair_slot){ key, (uint64_t)rank << 32 | (uint32_t)made };
}

void bpe_free(bpe *b) {
    free(b->tokens);
    free(b->bytes);
    free(b->index);
    free(b->pairs);
    free(b->filter);
    bpe_walk_free(b);
    bpe_units_free(b);
    *b = (bpe){ 0 };
}

/* ---- what a piece begins as ------------------------------------------------------------------------ */

typedef struct symbols {
    int32_t *ids;
    size_t n;
    bool pending; /* something unknown came last */
} symbols;

static void end_unknown(const bpe *b, symbols *s) {
    if (s->pending) s->ids[s->n++] = b->unknown;
    s->pending = false;
}

static void add_unknown(const bpe *b, symbols *s) {
    if (b->unknown < 0) return;
    if (!b->fuse_unknown) end_unknown(b, s);
    s->pending = true;
}

static bool fall_back(const bpe *b, const char *p, int len, symbols *s) {
    for (int k = 0; k < len; k++)
        if (b->byte_id[(uint8_t)p[k]] < 0) return false;
    for (int k = 0; k < len; k++) s->ids[s->n++] = b->byte_id[(uint8_t)p[k]];
    return true;
}

static size_t begin_chars(const bpe *b, const char *piece, size_t n, int32_t *ids) {
    symbols s = { ids, 0, false };
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int len = char_decode(piece + i, n - i, &cp);
        int32_t id = bpe_find(b, piece + i, (size_t)len);
        if (id >= 0) {
            end_unknown(b, &s);
            ids[s.n++] = id;
        } else if (!fall_back(b, piece + i, len, &s)) {
            add_unknown(b, &s);
        }
        i += (size_t)len;
    }
    end_unknown(b, &s);
    return s.n;
}

static size_t begin_bytes(const bpe *b, const char *piece, size_t n, int32_t *ids) {
    symbols s = { ids, 0, false };
    for (size_t i = 0; i < n; i++) {
        int32_t id = b->byte_id[(uint8_t)piece[i]];
        if (id >= 0) {
            end_unknown(b, &s);
            ids[s.n++] = id;
        } else {
            add_unknown(b, &s);
        }
    }
    end_unknown(b, &s);
    return s.n;
}

/* ---- joining ----------------------------------------------------------------------------------------- */

static size_t join_short(const bpe *b, int32_t *ids, size_t n) {
    uint64_t made[SHORT_PIECE]; /* of ids[i] and ids[i + 1] */
    for (size_t i = 0; i + 1 < n; i++) made[i] = find_merge(b, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (made[i] < made[best]) best = i;
        if (made[best] == PAIR_NONE) break;
        ids[best] = (int32_t)(uint32_t)made[best];
        n--;
        memmove(&ids[best + 1], &ids[best + 2], (n - best - 1) * sizeof *ids);
        if (best + 1 < n) {
            memmove(&made[best + 1], &made[best + 2], (n - best - 2) * sizeof *made);
            made[best] = find_merge(b, ids[best], ids[best + 1]);
        }
        if (best > 0) made[best - 1] = find_merge(b, ids[best - 1], ids[best]);
    }
    return n;
}

/* Heap of rank << 40 | position: the lowest rank first, then the leftmost. */
typedef struct heap {
    uint64_t *at;
    size_t n;
} heap;
enum { PLACE_BITS = 40 };

static void heap_push(heap *h, uint64_t x) {
    size_t i = h->n++;
    for (; i > 0 && h->at[(i - 1) / 2] > x; i = (i - 1) / 2) h->at[i] = h->at[(i - 1) / 2];
    h->at[i] = x;
}

static uint64_t heap_pop(heap *h) {
    uint64_t top = h->at[0], x = h->at[--h->n];
    size_t i = 0;
    for (size_t child = 1; child < h->n; i = child, child = 2 * i + 1) {
        child += child + 1 < h->n && h->at[child + 1] < h->at[child];
        if (h->at[child] >= x) break;
        h->at[i] = h->at[child];
    }
    h->at[i] = x;
    return top;
}

static const uint32_t NOWHERE = UINT32_MAX;

static void push_pair(const bpe *b, const bpe_work *w, heap *h, uint32_t i) {
    if (w->next[i] == NOWHERE) return;
    uint64_t made = find_merge(b, w->ids[i], w->ids[w->next[i]]);
    if (made != PAIR_NONE) heap_push(h, made >> 32 << PLACE_BITS | i);
}

/* A pair in the heap may have been joined away since: it counts when what is there now has its
 * rank. */
static size_t join_long(const bpe *b, bpe_work *w, size_t n) {
    heap h = { w->heap, 0 };
    for (uint32_t i = 0; i < n; i++) {
        w->prev[i] = i ? i - 1 : NOWHERE;
        w->next[i] = i + 1 < n ? i + 1 : NOWHERE;
    }
    for (uint32_t i = 0; i < n; i++) push_pair(b, w, &h, i);
    while (h.n) {
        uint64_t top = heap_pop(&h);
        uint32_t i = (uint32_t)top, j;
        if (w->ids[i] < 0 || (j = w->next[i]) == NOWHERE) continue;
        uint64_t made = find_merge(b, w->ids[i], w->ids[j]);
        if (made == PAIR_NONE || made >> 32 != top >> PLACE_BITS) continue;
        w->ids[i] = (int32_t)(uint32_t)made;
        w->ids[j] = -1;
        w->next[i] = w->next[j];
        if (w->next[i] != NOWHERE) w->prev[w->next[i]] = i;
        push_pair(b, w, &h, i);
        if (w->prev[i] != NOWHERE) push_pair(b, w, &h, w->prev[i]);
    }
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (w->ids[i] >= 0) w->ids[kept++] = w->ids[i];
    return kept;
}

/* ---- pieces ------------------------------------------------------------------------------------------ */

static void reserve_work_ids(bpe_work *w, size_t n) {
    if (n <= w->cap) return;
    w->cap = MAX(n, 2 * w->cap);
    w->ids = mem_grow(w->ids, w->cap * sizeof *w->ids);
}

static void reserve_links(bpe_work *w, size_t n) {
    if (n <= w->links) return;
    w->links = MAX(n, 2 * w->links);
    w->prev = mem_grow(w->prev, w->links * sizeof *w->prev);
    w->next = mem_grow(w->next, w->links * sizeof *w->next);
    w->heap = mem_grow(w->heap, 3 * w->links * sizeof *w->heap); /* n - 1 pairs, 2 for a join */
}

const int32_t *bpe_piece(const bpe *b, bpe_work *w, const char *piece, size_t n, size_t *n_ids) {
    BUG_IF(n >= NOWHERE);
    reserve_work_ids(w, n);
    int32_t whole = b->whole_first ? bpe_find(b, piece, n) : -1;
    if (whole >= 0) {
        w->ids[0] = whole;
        *n_ids = 1;
        return w->ids;
    }
    /* Joins are as fast for short ASCII, and their tables are those that the cache keeps near. */
    bool is_ascii = (signed char)piece[n - 1] >= 0;
    if (b->walk && (!is_ascii || n > SHORT_PIECE)) {
        *n_ids = bpe_walk_piece(b, w, piece, n);
        return w->ids;
    }
    size_t begun = b->chars ? begin_chars(b, piece, n, w->ids) : begin_bytes(b, piece, n, w->ids);
    *n_ids = begun;
    if (b->n_pairs == 0) return w->ids;
    if (begun > SHORT_PIECE) reserve_links(w, begun);
    *n_ids = begun > SHORT_PIECE ? join_long(b, w, begun) : join_short(b, w->ids, begun);
    return w->ids;
}

void bpe_work_free(bpe_work *w) {
    free(w->ids);
    free(w->prev);
    free(w->next);
    free(w->heap);
    free(w->dead);
    *w = (bpe_work){ 0 };
}
