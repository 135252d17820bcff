/* Byte pair encoding without joining: from left to right, the longest token that can follow the one before it.
 *
 * Two tokens "stay apart" if the joins of a piece that consists of just these two end with these two. Tokens are
 * the encoding of a piece if and only if each two neighbors stay apart. (Up to the first join across a boundary
 * both sides evolve as they would alone, so that join would also happen in a piece of only these two.) So a prefix
 * has one encoding, and a search finds that of the piece: at each position it tries the longest token, then
 * shorter ones; a position from which none leads on is dead, whatever comes before it, and the search goes back
 * one token. It rarely does.
 *
 *     piece      今 日 は 天 気              longest token at 0: 今日は; does it stay apart from 天気? yes: done
 *
 * stay_apart undoes the joins that made the two tokens, the last one first, down to single bytes. What is then at
 * the boundary are two symbols that were neighbors before that join: if they could be joined, earlier than it, they
 * were, and the tokens were never made.
 *
 *     a join of rank k comes before another of rank m if k < m, or if k == m and it is further left
 *
 * This needs every token to be made by one pair, of a higher rank than those that made its two halves. Merges in
 * the order they were learned satisfy this; for others, and for models of characters, there is no walk, and bpe.c joins. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/bpe_internal.h"

enum { NOT_MADE = WALK_NOT_MADE, A_BYTE = -1, NO_TOKEN = -1 };

/* ---- whether two tokens stay apart ------------------------------------------------------------------ */

/* @param limit joins of this or a higher `made` (find_merge) come too late. */
static inline bool spines_stay_apart(const bpe *b, int32_t left, int32_t right, uint64_t limit) {
    const walk_token *tokens = b->walk->tokens;
    for (;;) {
        if (find_merge(b, left, right) < limit) return false;
        const walk_token *l = &tokens[left], *r = &tokens[right];
        if (l->rank > r->rank) {
            limit = (uint64_t)l->rank << 32;
            left = l->right;
        } else if (r->rank == A_BYTE) {
            return true;
        } else {
            limit = (uint64_t)(r->rank + 1) << 32;
            right = r->left;
        }
    }
}

/* The same for two tokens that can be joined themselves: whether this is the only join across the boundary. */
static bool only_join_each_other(const bpe *b, int32_t left, int32_t right) {
    const walk_token *l = &b->walk->tokens[left], *r = &b->walk->tokens[right];
    if (l->rank == A_BYTE && r->rank == A_BYTE) return true;
    if (l->rank > r->rank) return spines_stay_apart(b, l->right, right, (uint64_t)l->rank << 32);
    return spines_stay_apart(b, left, r->left, (uint64_t)(r->rank + 1) << 32);
}

/* ---- building ------------------------------------------------------------------------------------------ */

/* Pairs in order of rank. @return owned, [*n]. */
static const pair_slot **sort_pairs(const bpe *b, int64_t *n) {
    uint32_t *first = mem_alloc(((size_t)TOKEN_MAX_ID + 2) * sizeof *first);
    const pair_slot **sorted = mem_alloc(((size_t)b->n_pairs + 1) * sizeof *sorted);
    uint32_t highest = 0, before = 0;
    for (uint64_t i = 0; i <= b->pairs_mask; i++) {
        if (b->pairs[i].pair == PAIR_NONE) continue;
        uint32_t rank = (uint32_t)(b->pairs[i].made >> 32);
        BUG_IF(rank > TOKEN_MAX_ID);
        first[rank]++;
        highest = MAX(highest, rank);
    }
    for (uint32_t k = 0; k <= highest; k++) {
        uint32_t count = first[k];
        first[k] = before;
        before += count;
    }
    *n = before;
    for (uint64_t i = 0; i <= b->pairs_mask; i++)
        if (b->pairs[i].pair != PAIR_NONE) sorted[first[b->pairs[i].made >> 32]++] = &b->pairs[i];
    free(first);
    return sorted;
}

static bool begin_with_bytes(const bpe *b) {
    for (int64_t i = 0; i < b->n; i++)
        b->walk->tokens[i] = (walk_token){ .rank = NOT_MADE, .shorter = NO_TOKEN };
    for (int c = 0; c < 256; c++) {
        int32_t id = b->byte_id[c];
        if (id < 0 || b->tokens[id].len != 1 || (uint8_t)b->tokens[id].at[0] != c) return false;
        b->walk->tokens[id].rank = A_BYTE;
    }
    return true;
}

/* Finds the pair that makes each token, if one does. @return false: the order of ranks does not allow a walk. */
static bool find_halves(const bpe *b) {
    walk_token *tokens = b->walk->tokens;
    int64_t n;
    bool ordered = true;
    const pair_slot **sorted = sort_pairs(b, &n);
    for (int64_t i = 0; i < n; i++) {
        int32_t left = (int32_t)(sorted[i]->pair >> 32), right = (int32_t)(uint32_t)sorted[i]->pair,
                made = (int32_t)(uint32_t)sorted[i]->made, rank = (int32_t)(sorted[i]->made >> 32);
        bool known = tokens[left].rank != NOT_MADE && tokens[right].rank != NOT_MADE;
        ordered &= b->tokens[made].len == b->tokens[left].len + b->tokens[right].len;
        if (!known || tokens[made].rank != NOT_MADE || !only_join_each_other(b, left, right))
            continue;
        tokens[made] = (walk_token){ left, right, rank, NO_TOKEN };
    }
    for (int64_t i = 0; i < n; i++) { /* also of halves that were made later */
        int32_t left = (int32_t)(sorted[i]->pair >> 32), right = (int32_t)(uint32_t)sorted[i]->pair,
                rank = (int32_t)(sorted[i]->made >> 32);
        ordered &= tokens[left].rank < rank && tokens[right].rank < rank;
    }
    free(sorted);
    return ordered;
}

static void build_trie(const bpe *b) {
    bpe_walk *w = b->walk;
    trie_key *keys = mem_alloc(((size_t)b->n + 1) * sizeof *keys);
    int32_t n = 0;
    for (int64_t i = 0; i < b->n; i++)
        if (w->tokens[i].rank != NOT_MADE) keys[n++] = (trie_key){ b->tokens[i], (int32_t)i };
    token_trie_build(&w->trie, keys, n);
    for (int32_t i = 0; i < n; i++) {
        int32_t node = 0, shorter = NO_TOKEN;
        text_span s = keys[i].text;
        for (size_t k = 0; k + 1 < s.len; k++) {
            BUG_IF(!token_trie_step(&w->trie, &node, s.at[k]));
            if (w->trie.at[node].token >= 0) shorter = w->trie.at[node].token;
        }
        w->tokens[keys[i].id].shorter = shorter;
    }
    free(keys);
}

/* Most of the time of a walk is spent waiting for the trie's memory: characters of three bytes, which East Asian
 * scripts have, take one load instead of three. */
static void build_chars(bpe_walk *w) {
    enum { END = 0x10000 }; /* those below 0x800 are broken text that looks like three bytes */
    w->chars = mem_alloc(END * sizeof *w->chars);
    for (uint32_t cp = 0; cp < END; cp++) {
        const uint8_t bytes[3] = { (uint8_t)(0xE0 | cp >> 12), (uint8_t)(0x80 | (cp >> 6 & 63)),
                                   (uint8_t)(0x80 | (cp & 63)) };
        walk_char c = { 0, NO_TOKEN, 0 };
        for (int i = 0; i < 3 && c.node >= 0; i++) {
            if (!token_trie_step(&w->trie, &c.node, (char)bytes[i]))
                c.node = -1;
            else if (w->trie.at[c.node].token >= 0)
                c.token = w->trie.at[c.node].token, c.len = i + 1;
        }
        if (c.node >= 0 && w->trie.at[c.node].base == 0) c.node = -1; /* without children */
        w->chars[cp] = c;
    }
}

void bpe_walk_build(bpe *b) {
    bpe_walk_free(b);
    if (b->n_pairs == 0 || b->chars) return;
    b->walk = mem_alloc(sizeof *b->walk);
    b->walk->tokens = mem_alloc(((size_t)b->n + 1) * sizeof *b->walk->tokens);
    if (!begin_with_bytes(b) || !find_halves(b)) {
        bpe_walk_free(b);
        return;
    }
    build_trie(b);
    build_chars(b->walk);
}

void bpe_walk_free(bpe *b) {
    if (!b->walk) return;
    token_trie_free(&b->walk->trie);
    free(b->walk->chars);
    free(b->walk->tokens);
    free(b->walk);
    b->walk = NULL;
}

/* ---- encoding ------------------------------------------------------------------------------------------ */

static inline int32_t longest_token(const bpe *b, const char *piece, size_t n, size_t *len) {
    const token_trie *t = &b->walk->trie;
    const uint8_t *s = (const uint8_t *)piece;
    int32_t node = 0, found = NO_TOKEN;
    size_t i = 0;
    if (n >= 3 && (s[0] & 0xF0) == 0xE0 && (s[1] & 0xC0) == 0x80 && (s[2] & 0xC0) == 0x80) {
        uint32_t cp = (s[0] & 15u) << 12 | (s[1] & 63u) << 6 | (s[2] & 63u);
        walk_char c = b->walk->chars[cp];
        *len = (size_t)c.len;
        if (c.node < 0) return c.token;
        node = c.node, found = c.token, i = 3;
    }
    for (; i < n && token_trie_step(t, &node, piece[i]); i++) {
        if (t->at[node].token < 0) continue;
        found = t->at[node].token;
        *len = i + 1;
    }
    return found;
}

/* A bit for each position that is dead. */
static uint64_t *clear_dead(bpe_work *w, size_t n) {
    size_t words = n / 64 + 1;
    if (words > w->dead_words) {
        w->dead_words = MAX(words, 2 * w->dead_words);
        w->dead = mem_grow(w->dead, w->dead_words * sizeof *w->dead);
    }
    memset(w->dead, 0, words * sizeof *w->dead);
    return w->dead;
}

size_t bpe_walk_piece(const bpe *b, bpe_work *w, const char *piece, size_t n) {
    const bpe_walk *walk = b->walk;
    uint64_t *dead = clear_dead(w, n);
    int32_t *ids = w->ids;
    size_t at = 0, count = 0, len = 0;
    int32_t id = longest_token(b, piece, n, &len);
    for (;;) {
        size_t end = at + len;
        bool is_dead = dead[end / 64] >> end % 64 & 1;
        if (!is_dead && (count == 0 || spines_stay_apart(b, ids[count - 1], id, UINT64_MAX))) {
            ids[count++] = id;
            at = end;
            if (at == n) return count;
            id = longest_token(b, piece + at, n - at, &len);
            continue;
        }
        id = walk->tokens[id].shorter;
        if (id == NO_TOKEN) {
            BUG_IF(count == 0); /* bytes alone are always one way */
            dead[at / 64] |= (uint64_t)1 << at % 64;
            id = ids[--count];
            at -= b->tokens[id].len;
        }
        len = b->tokens[id].len;
    }
}
