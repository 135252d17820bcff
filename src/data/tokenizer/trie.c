/* A trie of tokens by their bytes, as a double array: from a node, byte b leads to entry base + b, if `check`
 * there names the node. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/trie_internal.h"

enum { FREE = -1, NO_TOKEN = -1 };

static int compare_keys(const void *a, const void *b) {
    const trie_key *x = a, *y = b;
    int order = memcmp(x->text.at, y->text.at, MIN(x->text.len, y->text.len));
    if (order) return order;
    if (x->text.len != y->text.len) return x->text.len < y->text.len ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static void trie_reserve(token_trie *t, int64_t n) {
    if (n <= t->n) return;
    int64_t grown = MAX(n, 2 * (int64_t)t->n);
    t->at = mem_grow(t->at, (size_t)grown * sizeof *t->at);
    for (int64_t i = t->n; i < grown; i++) t->at[i] = (trie_node){ 0, FREE, NO_TOKEN };
    t->n = (int32_t)grown;
}

/* A node that has still to get its children: keys[low, high) agree in their first `depth` bytes. */
typedef struct trie_task {
    int32_t node;
    int32_t low, high;
    size_t depth;
} trie_task;
typedef struct trie_builder {
    token_trie *t;
    const trie_key *keys;
    trie_task *tasks;
    int n, cap;
    int64_t from; /* where the search for free entries begins */
} trie_builder;

static void push_task(trie_builder *b, trie_task task) { LIST_ADD(b->tasks, b->n, b->cap) = task; }

/* @return the lowest base, from b->from on, at which all these bytes are free. */
static int64_t find_base(trie_builder *b, const uint8_t *bytes, int n) {
    /* Bases tried in vain, and taken entries passed, after which the search begins later next time. */
    enum { CROWDED = 16, TAKEN = 1024 };
    int64_t base = MAX(b->from - bytes[0], 1), tried = 0, taken = 0;
    for (;; base++) {
        trie_reserve(b->t, base + 256);
        if (b->t->at[base + bytes[0]].check != FREE) {
            if (base + bytes[0] == b->from) b->from++;
            if (++taken % TAKEN == 0) b->from = MAX(b->from, base + bytes[0] - 256);
            continue;
        }
        int i = 1;
        while (i < n && b->t->at[base + bytes[i]].check == FREE) i++;
        if (i == n) break;
        if (++tried % CROWDED == 0) b->from = MAX(b->from, base + bytes[0] - 256);
    }
    return base;
}

static void trie_expand(trie_builder *b, trie_task task) {
    uint8_t bytes[256];
    int32_t ends[256];
    int n = 0;
    int32_t i = task.low;
    /* Keys that end here come first; of equals, the last one counts. */
    for (; i < task.high && b->keys[i].text.len == task.depth; i++)
        b->t->at[task.node].token = b->keys[i].id;
    while (i < task.high) {
        uint8_t byte = (uint8_t)b->keys[i].text.at[task.depth];
        while (i < task.high && (uint8_t)b->keys[i].text.at[task.depth] == byte) i++;
        bytes[n] = byte;
        ends[n++] = i;
    }
    if (n == 0) return;
    int64_t base = find_base(b, bytes, n);
    BUG_IF(base > INT32_MAX - 256);
    b->t->at[task.node].base = (int32_t)base;
    int32_t low = task.low;
    while (b->keys[low].text.len == task.depth) low++;
    for (int k = 0; k < n; k++) b->t->at[base + bytes[k]].check = task.node;
    for (int k = 0; k < n; low = ends[k++])
        push_task(b, (trie_task){ (int32_t)base + bytes[k], low, ends[k], task.depth + 1 });
}

void token_trie_build(token_trie *t, trie_key *keys, int32_t n) {
    trie_builder b = { .t = t, .keys = keys, .from = 1 };
    sort_array(keys, (size_t)n, sizeof *keys, compare_keys);
    trie_reserve(t, 512);
    t->at[0].check = 0;
    push_task(&b, (trie_task){ 0, 0, n, 0 });
    while (b.n) {
        trie_task task = b.tasks[--b.n];
        trie_expand(&b, task);
    }
    free(b.tasks);
}

void token_trie_free(token_trie *t) {
    free(t->at);
    *t = (token_trie){ 0 };
}
