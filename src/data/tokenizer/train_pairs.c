/* Pairs of neighbors: their counts, their positions, and which of them comes next. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/train_internal.h"

/* ---- the table --------------------------------------------------------------------------------- */

static uint32_t key_hash(uint64_t key) {
    key *= 0x9E3779B97F4A7C15u;
    return (uint32_t)((key ^ key >> 29) * 0xBF58476D1CE4E5B9u >> 32);
}

/* @return the pair's slot, or the free one where it would go. */
static uint64_t *find_pair_slot(const bpe_pairs *p, uint64_t key, uint32_t hash) {
    for (size_t i = hash & (p->n_slots - 1);; i = (i + 1) & (p->n_slots - 1)) {
        uint64_t slot = p->slots[i];
        if (slot == 0) return &p->slots[i];
        if (slot >> 32 == hash && p->entries[(uint32_t)slot - 1].key == key) return &p->slots[i];
    }
}

static pair_entry *find_pair(const bpe_pairs *p, uint64_t key) {
    uint64_t slot = *find_pair_slot(p, key, key_hash(key));
    return slot ? &p->entries[(uint32_t)slot - 1] : NULL;
}

static void enter_pair(bpe_pairs *p, uint32_t index) {
    uint64_t key = p->entries[index].key;
    uint32_t hash = key_hash(key);
    *find_pair_slot(p, key, hash) = (uint64_t)hash << 32 | (index + 1);
}

/* Builds the slots anew, for the entries there are and half as many more. */
static void rebuild_slots(bpe_pairs *p) {
    size_t n_slots = 1024;
    while (n_slots < (size_t)p->cap + p->cap / 2) n_slots *= 2;
    if (n_slots != p->n_slots) {
        free(p->slots);
        p->slots = mem_alloc(n_slots * sizeof *p->slots);
        p->n_slots = n_slots;
    } else {
        memset(p->slots, 0, n_slots * sizeof *p->slots);
    }
    for (uint32_t i = 0; i < p->n; i++) enter_pair(p, i);
}

/* ---- positions ------------------------------------------------------------------------------------- */

static bool still_there(const bpe_pairs *p, uint64_t key, uint32_t at) {
    uint32_t left = (uint32_t)(key >> 32);
    const uint32_t *cell = p->cells->at + at;
    return cell[0] == left && cell[p->length[left]] == (uint32_t)key;
}

/* Takes out dead pairs and stale positions. Entries are in the order of their positions, so everything
 * moves down where it is. */
static void sweep_stale(bpe_pairs *p) {
    uint32_t kept = 0, to = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        pair_entry e = p->entries[i];
        if (e.count < p->floor) continue;
        uint32_t first = to;
        for (uint32_t k = e.first; k < e.first + e.n; k++)
            if (still_there(p, e.key, p->positions[k])) p->positions[to++] = p->positions[k];
        p->entries[kept++] = (pair_entry){ e.key, e.count, first, to - first };
    }
    p->n = kept;
    p->n_positions = to;
}

void bpe_pairs_reserve(bpe_pairs *p, size_t n) {
    if (p->n_positions + n <= p->cap_positions) return;
    sweep_stale(p);
    rebuild_slots(p);
    BUG_IF(p->n_positions + n > p->cap_positions); /* live positions are fewer than cells */
}

/* ---- which comes next ------------------------------------------------------------------------------ */

static bool ranks_before(pair_rank a, pair_rank b) {
    return a.count != b.count ? a.count > b.count : a.key < b.key;
}

static void pair_heap_push(bpe_pairs *p, pair_rank r) {
    if (r.count < p->ranked) return;
    if (p->n_heap == p->cap_heap) {
        p->cap_heap = MAX(1024, p->cap_heap * 2);
        p->heap = mem_grow(p->heap, p->cap_heap * sizeof *p->heap);
    }
    size_t i = p->n_heap++;
    for (; i > 0 && ranks_before(r, p->heap[(i - 1) / 2]); i = (i - 1) / 2)
        p->heap[i] = p->heap[(i - 1) / 2];
    p->heap[i] = r;
}

static pair_rank pair_heap_pop(bpe_pairs *p) {
    pair_rank top = p->heap[0], r = p->heap[--p->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < p->n_heap; i = child) {
        if (child + 1 < p->n_heap && ranks_before(p->heap[child + 1], p->heap[child])) child++;
        if (!ranks_before(p->heap[child], r)) break;
        p->heap[i] = p->heap[child];
    }
    p->heap[i] = r;
    return top;
}

/* Most pairs are rare and are never merged. So only those within a factor of the highest count are
 * ranked, and when none of them is left, the next. */
static void rank_more(bpe_pairs *p) {
    enum { FACTOR = 4 };
    int64_t highest = 0;
    for (uint32_t i = 0; i < p->n; i++) highest = MAX(highest, p->entries[i].count);
    p->ranked = MAX(highest / FACTOR, p->floor);
    for (uint32_t i = 0; i < p->n; i++)
        pair_heap_push(p, (pair_rank){ p->entries[i].count, p->entries[i].key });
}

bool bpe_pairs_pop(bpe_pairs *p, pair_entry *out, const uint32_t **at) {
    for (;;) {
        if (p->n_heap == 0) rank_more(p);
        if (p->n_heap == 0) return false;
        pair_rank top = pair_heap_pop(p);
        pair_entry *e = find_pair(p, top.key);
        if (!e) continue; /* fell below the floor and was swept out */
        if (e->count != top.count) {
            pair_heap_push(p, (pair_rank){ e->count, e->key });
            continue;
        }
        *out = *e;
        *at = p->positions + e->first;
        e->count = 0;
        return true;
    }
}

/* ---- changes -------------------------------------------------------------------------------------- */

void bpe_pairs_subtract(bpe_pairs *p, uint32_t left, uint32_t right, int64_t weight) {
    pair_entry *e = find_pair(p, pair_key(left, right));
    if (e) e->count -= weight;
}

static pair_entry *append_pair(bpe_pairs *p, pair_entry e) {
    if (p->n == p->cap) {
        p->cap = MAX(1024, p->cap + p->cap / 2);
        p->entries = mem_grow(p->entries, p->cap * sizeof *p->entries);
        if (p->cap > p->n_slots / 4 * 3) rebuild_slots(p);
    }
    p->entries[p->n] = e;
    enter_pair(p, p->n);
    return &p->entries[p->n++];
}

uint32_t *bpe_pairs_add(bpe_pairs *p, uint32_t left, uint32_t right, int64_t count, uint32_t n) {
    if (count < p->floor) return NULL;
    uint32_t *positions = p->positions + p->n_positions;
    append_pair(p, (pair_entry){ pair_key(left, right), count, (uint32_t)p->n_positions, n });
    p->n_positions += n;
    pair_heap_push(p, (pair_rank){ count, pair_key(left, right) });
    return positions;
}

/* ---- the first pairs -------------------------------------------------------------------------------- */

static bool starts_pair(const bpe_cells *c, uint32_t i) {
    return c->at[i] != CELL_NONE && c->at[i + 1] != CELL_NONE;
}

static void count_first(bpe_pairs *p) {
    const bpe_cells *c = p->cells;
    for (int run = 0; run < c->n_runs; run++) {
        for (uint32_t i = c->runs[run].first; i + 1 < c->runs[run + 1].first; i++) {
            if (!starts_pair(c, i)) continue;
            uint64_t key = pair_key(c->at[i], c->at[i + 1]);
            pair_entry *e = find_pair(p, key);
            if (!e) e = append_pair(p, (pair_entry){ .key = key });
            e->count += c->runs[run].weight;
            e->n++;
        }
    }
}

/* Removes the pairs that are too rare, and gives the others their share of the positions. */
static void keep_frequent(bpe_pairs *p) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        pair_entry e = p->entries[i];
        if (e.count < p->floor) continue;
        p->entries[kept++] = (pair_entry){ e.key, e.count, (uint32_t)p->n_positions, 0 };
        p->n_positions += e.n;
    }
    p->n = kept;
    rebuild_slots(p);
}

static void place_first(bpe_pairs *p) {
    const bpe_cells *c = p->cells;
    for (uint32_t i = 0; i + 1 < c->n; i++) {
        pair_entry *e = starts_pair(c, i) ? find_pair(p, pair_key(c->at[i], c->at[i + 1])) : NULL;
        if (e) p->positions[e->first + e->n++] = i;
    }
}

err bpe_pairs_init(bpe_pairs *p, const bpe_cells *cells, const uint32_t *length, int64_t floor) {
    *p = (bpe_pairs){ .cells = cells, .length = length, .floor = MAX(floor, 1) };
    p->ranked = INT64_MAX;
    void *positions = NULL;
    size_t n =
        cells->n + cells->n / 2; /* live positions are fewer than cells; the rest: fewer sweeps */
    TRY(mem_map(n * sizeof *p->positions, &positions));
    p->positions = positions;
    p->cap_positions = n;
    rebuild_slots(p);
    count_first(p);
    keep_frequent(p);
    place_first(p);
    return OK;
}

void bpe_pairs_free(bpe_pairs *p) {
    mem_unmap(p->positions, p->cap_positions * sizeof *p->positions);
    free(p->entries);
    free(p->slots);
    free(p->heap);
    *p = (bpe_pairs){ 0 };
}
