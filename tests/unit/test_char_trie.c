/* Tokens by their characters: every one is found, whatever the vocabulary. */
#include "support/test.h"

#include "tokenizer/char_trie_internal.h"

enum { FIRST_CHAR = 0x4E00, CHAR_BYTES = 3 };

static int32_t find_token(const char_trie *t, text_span s) {
    size_t len;
    char_entry first = char_trie_entry(t, s.at, s.len, &len);
    uint32_t node = CHAR_TRIE_FIRST | first.symbol, base = first.base;
    int32_t id = first.id;
    for (size_t at = len; at < s.len; at += len) {
        char_entry c = char_trie_entry(t, s.at + at, s.len - at, &len);
        uint32_t next = char_trie_next(base, c.symbol);
        if (t->at[next].parent != node) return -1;
        node = next;
        base = t->at[next].base;
        id = t->at[next].id;
    }
    return id;
}

/* Characters that follow one another at random are far apart in the numbers of characters, and hardly fit between others: a file
 * may have such a vocabulary. */
static void tokens_of_random_characters_are_found(void **state) {
    enum { CHARS = 8000, TOKENS = 250000 };
    char(*text)[2 * CHAR_BYTES] = mem_alloc(TOKENS * sizeof *text);
    trie_key *keys = mem_alloc(TOKENS * sizeof *keys);
    float *score = mem_alloc(TOKENS * sizeof *score);
    rng_key random = rng_key_of(3, 0);
    char_trie t = { 0 };
    token_trie bytes = { 0 };
    for (int32_t i = 0; i < TOKENS; i++) {
        int chars = i < CHARS ? 1 : 2;
        for (int k = 0; k < chars; k++) {
            uint64_t drawn = rng_below(random, (uint64_t)(2 * i + k), CHARS);
            uint32_t cp = FIRST_CHAR + (i < CHARS ? (uint32_t)i : (uint32_t)drawn);
            text[i][CHAR_BYTES * k] = (char)(0xE0 | cp >> 12);
            text[i][CHAR_BYTES * k + 1] = (char)(0x80 | (cp >> 6 & 63));
            text[i][CHAR_BYTES * k + 2] = (char)(0x80 | (cp & 63));
        }
        keys[i] = (trie_key){ { text[i], (size_t)(chars * CHAR_BYTES) }, i };
    }
    token_trie_build(&bytes, keys, TOKENS);
    char_trie_build(&t, keys, TOKENS, score, -1, -1);
    for (int32_t i = 0; i < TOKENS; i++) {
        bool again = i + 1 < TOKENS && keys[i].text.len == keys[i + 1].text.len &&
                     !memcmp(keys[i].text.at, keys[i + 1].text.at, keys[i].text.len);
        if (!again) assert_int_equal(find_token(&t, keys[i].text), keys[i].id);
    }
    assert_true(t.n < 32 * TOKENS);
    char_trie_free(&t);
    token_trie_free(&bytes);
    free(score);
    free(keys);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(tokens_of_random_characters_are_found) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
