/* Tokens by their bytes (trie.c). */
#ifndef INGOT_TOKENIZER_TRIE_INTERNAL_H
#define INGOT_TOKENIZER_TRIE_INTERNAL_H

#include "text/text.h"

typedef struct trie_node {
    int32_t base, check; /* byte b leads to entry base + b, if its `check` is this node */
    int32_t token;       /* -1: none ends here */
} trie_node;
typedef struct token_trie {
    trie_node *at; /* [n] 0 is the root; 256 entries follow every base */
    int32_t n;
} token_trie;
typedef struct trie_key {
    text_span text; /* not empty */
    int32_t id;
} trie_key;
/* Of keys with equal text the one with the highest id counts. Sorts the keys. */
void token_trie_build(token_trie *t, trie_key *keys, int32_t n);
void token_trie_free(token_trie *t);

/* Moves on along a byte. @return false: nothing continues so. */
static inline bool token_trie_step(const token_trie *t, int32_t *node, char byte) {
    int32_t next = t->at[*node].base + (uint8_t)byte;
    if (t->at[next].check != *node) return false;
    *node = next;
    return true;
}

#endif
