/* A trie of tokens by their characters, as a double array: one load for each character, where a trie of bytes has
 * three for those of East Asian scripts.
 *
 * Characters that occur in tokens are numbered, the most frequent ones first in most vocabularies: these numbers are
 * the symbols. From a node, symbol s leads to entry base + s, if the entry's `parent` is that node. Nodes of one
 * character are entries of a table by code point instead, with numbers of their own (CHAR_TRIE_FIRST). */
#include <math.h>
#include <stdlib.h>

#include "tokenizer/char_trie_internal.h"

/* ---- characters -------------------------------------------------------------------------------------- */

static uint32_t decode_at(text_span s, size_t at, size_t *len) {
    uint32_t cp;
    *len = (size_t)utf8_decode(s.at + at, &cp);
    return cp;
}

static size_t rare_index(const char_trie *t, uint32_t cp) {
    size_t low = 0, high = t->n_rare;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (t->rare_cp[middle] < cp)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

char_entry char_trie_find_rare(const char_trie *t, uint32_t cp) {
    size_t i = rare_index(t, cp);
    return i < t->n_rare && t->rare_cp[i] == cp ? t->chars[CHAR_TRIE_TABLE + i] : t->unknown;
}

static char_entry *own_entry(const char_trie *t, uint32_t cp) {
    return cp < CHAR_TRIE_TABLE ? &t->chars[cp] : &t->chars[CHAR_TRIE_TABLE + rare_index(t, cp)];
}

static int compare_code_points(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void find_rare_chars(char_trie *t, const trie_key *keys, int32_t n) {
    int cap = 0, count = 0;
    for (int32_t i = 0; i < n; i++)
        for (size_t at = 0, len; at < keys[i].text.len; at += len) {
            uint32_t cp = decode_at(keys[i].text, at, &len);
            if (cp < CHAR_TRIE_TABLE) continue;
            LIST_ADD(t->rare_cp, count, cap) = cp;
        }
    if (count) sort_array(t->rare_cp, (size_t)count, sizeof *t->rare_cp, compare_code_points);
    for (int i = 0; i < count; i++)
        if (i == 0 || t->rare_cp[i] != t->rare_cp[i - 1]) t->rare_cp[t->n_rare++] = t->rare_cp[i];
}

/* Numbers the characters in the order of ids, which in most vocabularies is by how frequent tokens are. */
static void number_chars(char_trie *t, const trie_key *keys, int32_t n) {
    int32_t last = 0;
    for (int32_t i = 0; i < n; i++) last = MAX(last, keys[i].id);
    const trie_key **by_id = mem_alloc(((size_t)last + 1) * sizeof *by_id);
    for (int32_t i = 0; i < n; i++) by_id[keys[i].id] = &keys[i];
    for (int32_t i = 0; i <= last; i++)
        for (size_t at = 0, len; by_id[i] && at < by_id[i]->text.len; at += len) {
            char_entry *e = own_entry(t, decode_at(by_id[i]->text, at, &len));
            if (e->symbol == CHAR_TRIE_NO_SYMBOL) e->symbol = ++t->n_symbols;
        }
    free(by_id);
}

/* ---- nodes ------------------------------------------------------------------------------------------- */

/* A node whose children are still to be added: keys[low, high) agree in their first `depth` bytes. */
typedef struct char_task {
    uint32_t node;
    int32_t low, high;
    size_t depth;
} char_task;
typedef struct char_child {
    uint32_t symbol, cp;
    int32_t high; /* of its keys */
    size_t depth;
} char_child;
typedef struct char_builder {
    char_trie *t;
    const trie_key *keys;
    const float *score;
    char_task *tasks;
    char_child *children; /* of the node at hand */
    int n, cap, n_children, children_cap;
    uint32_t from,
        end; /* where the search for free entries begins, and from where on all are free */
} char_builder;

static void push_char_task(char_builder *b, char_task task) {
    LIST_ADD(b->tasks, b->n, b->cap) = task;
}

static void push_child(char_builder *b, char_child c) {
    LIST_ADD(b->children, b->n_children, b->children_cap) = c;
}

/* Makes every entry that is less than n_symbols beyond `base` readable. */
static void reserve_nodes(char_trie *t, uint32_t base) {
    uint64_t n = (uint64_t)base + t->n_symbols + 1;
    BUG_IF(n >= CHAR_TRIE_FIRST);
    if (n <= t->n) return;
    uint32_t grown = (uint32_t)MAX(n, MIN(2 * (uint64_t)t->n, CHAR_TRIE_FIRST - 1));
    t->at = mem_grow(t->at, grown * sizeof *t->at);
    for (uint32_t i = t->n; i < grown; i++)
        t->at[i] = (char_node){ CHAR_TRIE_FREE, 0, -1, -INFINITY };
    t->n = grown;
}

static bool has_free_entries(const char_builder *b, uint32_t base) {
    for (int i = 0; i < b->n_children; i++)
        if (b->t->at[base + b->children[i].symbol].parent != CHAR_TRIE_FREE) return false;
    return true;
}

/* @return a base at which the entries of all children are free: the first that is found in a number of tries, else beyond
 * all that are taken. The next search then begins where this one gave up: children far apart, as of a vocabulary of
 * random pairs, hardly fit between others, and all searches together would take time that grows with its square. */
static uint32_t find_char_base(char_builder *b) {
    enum {
        TRIES = 1024,
        CROWDED = 64 /* entries passed in vain, after which the next search begins there */
    };
    uint32_t least = UINT32_MAX, passed = 0;
    for (int i = 0; i < b->n_children; i++) least = MIN(least, b->children[i].symbol);
    uint32_t at = MAX(b->from, least + 1);
    for (int tries = 0; tries < TRIES && at < b->end; at++, passed++) {
        if (b->t->at[at].parent == CHAR_TRIE_FREE && ++tries) {
            reserve_nodes(b->t, at - least);
            if (has_free_entries(b, at - least)) return at - least;
        }
        if (passed == CROWDED && tries < CROWDED / 2) b->from = MAX(b->from, at);
    }
    if (at < b->end) b->from = at, at = b->end;
    reserve_nodes(b->t, at - least);
    return at - least;
}

/* Groups the keys of a task by their next character, after those that end here: of equals, the last one counts.
 * @return its id; -1: none. */
static int32_t find_children(char_builder *b, char_task task) {
    int32_t id = -1, i = task.low;
    b->n_children = 0;
    for (; i < task.high && b->keys[i].text.len == task.depth; i++) id = b->keys[i].id;
    while (i < task.high) {
        size_t len, other;
        uint32_t cp = decode_at(b->keys[i].text, task.depth, &len);
        while (i < task.high && decode_at(b->keys[i].text, task.depth, &other) == cp) i++;
        push_child(b, (char_child){ own_entry(b->t, cp)->symbol, cp, i, task.depth + len });
    }
    return id;
}

static void expand_node(char_builder *b, char_task task) {
    int32_t id = find_children(b, task), low = task.low;
    uint32_t base = b->n_children ? find_char_base(b) : 0;
    float score = id < 0 ? -INFINITY : b->score[id];
    while (low < task.high && b->keys[low].text.len == task.depth) low++;
    if (task.node & CHAR_TRIE_FIRST) {
        size_t len;
        char_entry *e = own_entry(b->t, decode_at(b->keys[task.low].text, 0, &len));
        e->base = base;
        if (id >= 0) e->id = id, e->score = score;
    } else {
        char_node *n = &b->t->at[task.node];
        *n = (char_node){ n->parent, base, id, score };
    }
    for (int i = 0; i < b->n_children; i++) {
        const char_child *c = &b->children[i];
        uint32_t node = base + c->symbol;
        b->t->at[node].parent = task.node;
        b->end = MAX(b->end, node + 1);
        push_char_task(b, (char_task){ node, low, c->high, c->depth });
        low = c->high;
    }
}

void char_trie_build(char_trie *t, const trie_key *keys, int32_t n, const float *score,
                     int32_t unknown, float unknown_score) {
    char_builder b = { .t = t, .keys = keys, .score = score, .from = 1, .end = 1 };
    t->unknown = (char_entry){ CHAR_TRIE_NO_SYMBOL, 0, unknown, unknown_score };
    find_rare_chars(t, keys, n);
    t->chars = mem_alloc((CHAR_TRIE_TABLE + (size_t)t->n_rare) * sizeof *t->chars);
    for (uint32_t i = 0; i < CHAR_TRIE_TABLE + t->n_rare; i++) t->chars[i] = t->unknown;
    number_chars(t, keys, n);
    reserve_nodes(t, 1);
    find_children(&b, (char_task){ 0, 0, n, 0 });
    for (int32_t i = 0, low = 0; i < b.n_children; low = b.children[i++].high)
        push_char_task(&b, (char_task){ CHAR_TRIE_FIRST | b.children[i].symbol, low,
                                        b.children[i].high, b.children[i].depth });
    while (b.n) expand_node(&b, b.tasks[--b.n]);
    free(b.tasks);
    free(b.children);
}

void char_trie_free(char_trie *t) {
    free(t->at);
    free(t->chars);
    free(t->rare_cp);
    *t = (char_trie){ 0 };
}
