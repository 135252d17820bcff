/* Tokens by their characters (char_trie.c). */
#ifndef INGOT_TOKENIZER_CHAR_TRIE_INTERNAL_H
#define INGOT_TOKENIZER_CHAR_TRIE_INTERNAL_H

#include "text/text.h"
#include "tokenizer/chars_internal.h"
#include "tokenizer/trie_internal.h"

/* A node, and its token: a node that is not a token has a score of -INFINITY. */
typedef struct char_node {
    uint32_t parent; /* node that a character leads from; CHAR_TRIE_FREE: the entry is empty */
    uint32_t base;   /* the character with symbol s leads to entry base + s; 0: nothing follows */
    int32_t id;      /* -1: no token ends here */
    float score;
} char_node;
/* A character: how it continues a token, and the node that it leads to from the root. */
typedef struct char_entry {
    uint32_t symbol; /* CHAR_TRIE_NO_SYMBOL: no token has it */
    uint32_t base;
    int32_t id; /* of the character, or the unknown token's */
    float score;
} char_entry;
enum {
    CHAR_TRIE_TABLE = 0x10000, /* characters below have their entry by number */
    CHAR_TRIE_NO_SYMBOL = 0,
    CHAR_TRIE_BROKEN = 0x110000, /* stands for a byte that is not part of a character */
};
static const uint32_t CHAR_TRIE_FREE = UINT32_MAX, CHAR_TRIE_FIRST = UINT32_C(1) << 31;
typedef struct char_trie {
    char_node *at;     /* [n] entry 0 is empty; NULL: there is no trie */
    char_entry *chars; /* [CHAR_TRIE_TABLE + n_rare] by code point, then those of rare_cp */
    uint32_t *rare_cp; /* [n_rare] ascending: the others that tokens have */
    uint32_t n, n_rare, n_symbols;
    char_entry unknown; /* of characters that no token has */
} char_trie;

/* @param keys valid UTF-8, in the order that token_trie_build leaves them in. @param score [ids]
 * @param unknown what a character that is not a token has for its id, beside its score. */
void char_trie_build(char_trie *t, const trie_key *keys, int32_t n, const float *score,
                     int32_t unknown, float unknown_score);
void char_trie_free(char_trie *t);
/* Finds the entry of a character that is not in the table. */
char_entry char_trie_find_rare(const char_trie *t, uint32_t cp);

/* @return the entry of the character at p, which has n > 0 bytes. @param len its bytes. */
static inline char_entry char_trie_entry(const char_trie *t, const char *p, size_t n, size_t *len) {
    uint32_t cp;
    *len = (size_t)char_decode(p, n, &cp);
    if (*len == 1 && cp >= 0x80) cp = CHAR_TRIE_BROKEN;
    return cp < CHAR_TRIE_TABLE ? t->chars[cp] : char_trie_find_rare(t, cp);
}

/* Moves on along a character. @param node its number; that of a first character is CHAR_TRIE_FIRST | symbol.
 * @return the entry that it leads to, if its parent is this node. */
static inline uint32_t char_trie_next(uint32_t base, uint32_t symbol) {
    return base ? base + symbol : 0;
}

#endif
