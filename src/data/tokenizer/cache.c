/* The slow half of the cache: adding entries, and pieces too long to be their own key. */
#include "tokenizer/cache.h"

void cache_init(cache *c) {
    void *sets = NULL, *spill = NULL;
    BUG_IF(mem_map(sizeof *c->sets * CACHE_SETS, &sets) != OK);
    BUG_IF(mem_map(sizeof *c->spill * CACHE_SPILL, &spill) != OK);
    *c = (cache){ sets, spill, 0 };
}

void cache_free(cache *c) {
    if (c->sets) mem_unmap(c->sets, sizeof *c->sets * CACHE_SETS);
    if (c->spill) mem_unmap(c->spill, sizeof *c->spill * CACHE_SPILL);
    *c = (cache){ 0 };
}

cache_key cache_key_long(const char *piece, size_t len) {
    return (cache_key){ hash_bytes(piece, len, 0), (uint64_t)0xFF << 56 | len };
}

void cache_add(cache *c, cache_key key, const char *piece, size_t len, const int32_t *ids,
               size_t n) {
    bool is_long = len > CACHE_SHORT;
    cache_entry e = { .key = key, .n = (uint32_t)n };
    if (is_long || n > CACHE_INLINE) {
        size_t need = n + (is_long ? (len + 3) / 4 : 0);
        if (need > CACHE_SPILL) return;
        if (c->spilled + need > CACHE_SPILL) {
            memset(c->sets, 0, sizeof *c->sets * CACHE_SETS);
            c->spilled = 0;
        }
        e.id[0] = (int32_t)c->spilled;
        if (n) memcpy(c->spill + c->spilled, ids, n * sizeof *ids);
        if (is_long) memcpy(c->spill + c->spilled + n, piece, len);
        c->spilled += need;
    } else if (n) {
        memcpy(e.id, ids, n * sizeof *ids);
    }
    cache_entry *set = cache_set(c, key);
    int way = 0;
    while (way < CACHE_WAYS - 1 && set[way].key.high) way++;
    set[way] = e;
}

const int32_t *cache_find_long(cache *c, cache_key key, const char *piece, size_t len, size_t *n) {
    const cache_entry *e = cache_find(cache_set(c, key), key);
    if (!e || memcmp(c->spill + e->id[0] + e->n, piece, len) != 0) return NULL;
    *n = e->n;
    return c->spill + e->id[0];
}
