/* The walk by bytes (bpe_walk.c) and by units (bpe_units.c) against joining bytes (bpe.c): equal ids for random
 * merges, most of whose tokens overlap in many ways, and for merges out of order, where there is no walk. */
#include "support/test.h"

#include "tokenizer/bpe_internal.h"
#include "tokenizer/tokenizer_internal.h"

enum { MERGES = 120, TOKENS = 256 + MERGES, LONGEST = 200 };

typedef struct random_merges {
    char bytes[TOKENS][64];
    text_span tokens[TOKENS];
    bpe_pair merges[2 * MERGES];
    int n_tokens, n_merges;
} random_merges;

static uint64_t draw(uint64_t *state, uint64_t below) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 33) % below;
}

static int find_token(const random_merges *m, const char *text, size_t n) {
    for (int i = 0; i < m->n_tokens; i++)
        if (m->tokens[i].len == n && memcmp(m->tokens[i].at, text, n) == 0) return i;
    return -1;
}

static bool has_merge(const random_merges *m, bpe_pair p) {
    for (int i = 0; i < m->n_merges; i++)
        if (m->merges[i].left == p.left && m->merges[i].right == p.right) return true;
    return false;
}

/* Pairs of tokens at random. @param letters of the alphabet; few: much overlaps. */
static void make_merges(random_merges *m, uint64_t *state, const char *alphabet, int letters) {
    *m = (random_merges){ .n_tokens = 256 };
    for (int i = 0; i < 256; i++) {
        m->bytes[i][0] = (char)i;
        m->tokens[i] = (text_span){ m->bytes[i], 1 };
    }
    while (m->n_tokens < TOKENS && m->n_merges < 2 * MERGES) {
        int known = letters + m->n_tokens - 256, pick[2];
        for (int k = 0; k < 2; k++) {
            int i = (int)draw(state, (uint64_t)known);
            pick[k] = i < letters ? (uint8_t)alphabet[i] : 256 + i - letters;
        }
        text_span l = m->tokens[pick[0]], r = m->tokens[pick[1]];
        bpe_pair pair = { pick[0], pick[1] };
        if (l.len + r.len > 40 || has_merge(m, pair)) continue;
        char joint[64];
        memcpy(joint, l.at, l.len);
        memcpy(joint + l.len, r.at, r.len);
        m->merges[m->n_merges++] = pair;
        if (find_token(m, joint, l.len + r.len) >= 0) continue; /* another way to a known token */
        memcpy(m->bytes[m->n_tokens], joint, sizeof joint);
        m->tokens[m->n_tokens] = (text_span){ m->bytes[m->n_tokens], l.len + r.len };
        m->n_tokens++;
    }
}

static tokenizer *make_tokenizer(const random_merges *m) {
    tokenizer *t = NULL;
    const bpe_parts parts = {
        .tokens = m->tokens, .n_tokens = m->n_tokens, .merges = m->merges, .n_merges = m->n_merges
    };
    assert_ok(tokenizer_from_bpe(&parts, &t));
    return t;
}

/* Compares n pieces. @return of how many tokens they were. */
static size_t compare_pieces(const tokenizer *t, uint64_t *state, int letters, int n) {
    bpe joins = t->bpe;
    bpe_work a = { 0 }, b = { 0 };
    size_t total = 0;
    joins.walk = NULL;
    for (int i = 0; i < n; i++) {
        char piece[LONGEST];
        size_t len = 1 + draw(state, LONGEST), n_walked, n_joined;
        for (size_t k = 0; k < len; k++) piece[k] = (char)('a' + draw(state, (uint64_t)letters));
        const int32_t *joined = bpe_piece(&joins, &b, piece, len, &n_joined);
        bpe_piece(&t->bpe, &a, piece, len, &n_walked); /* reserves memory */
        n_walked = bpe_walk_piece(&t->bpe, &a, piece, len);
        assert_int_equal(n_walked, n_joined);
        assert_memory_equal(a.ids, joined, n_joined * sizeof *joined);
        total += n_joined;
    }
    bpe_work_free(&a);
    bpe_work_free(&b);
    return total;
}

static void a_walk_gives_the_ids_of_joining(void **state) {
    uint64_t seed = 1;
    int walks = 0;
    random_merges *m = mem_alloc(sizeof *m);
    for (int i = 0; i < 60; i++) {
        int letters = 1 + i % 4;
        make_merges(m, &seed, "abcd", letters);
        tokenizer *t = make_tokenizer(m);
        walks += t->bpe.walk != NULL;
        if (t->bpe.walk) assert_true(compare_pieces(t, &seed, letters, 100) > 100);
        tokenizer_free(t);
    }
    assert_true(walks > 40); /* a second pair may make a token later than what needs it */
    free(m);
}

/* Characters of three bytes, and others between them, some of them broken. */
static size_t draw_chars(uint64_t *state, char *piece, size_t most) {
    static const char *const others[] = { "\x81", "a", "\xE3\x81", "é", "\xF0\x9F\x81\x82" };
    size_t n = 0, want = 1 + draw(state, most - 4);
    while (n < want) {
        char one[8] = { (char)(0xE3 + draw(state, 2)), (char)(0x81 + draw(state, 2)),
                        (char)(0x81 + draw(state, 2)) };
        if (draw(state, 40) == 0) strcpy(one, others[draw(state, COUNT_OF(others))]);
        memcpy(piece + n, one, strlen(one));
        n += strlen(one);
    }
    return n;
}

/* Tokens begin and end inside characters, at ranks before and after those of the characters: some pieces have no encoding
 * by units. Several at a time. */
static void units_give_the_ids_of_joining(void **state) {
    enum { PIECES = 20, BYTES = 80 };
    uint64_t seed = 2;
    int64_t joins = 0, encoded = 0, left = 0;
    random_merges *m = mem_alloc(sizeof *m);
    for (int i = 0; i < 200; i++) {
        make_merges(m, &seed, "\xE3\xE4\x81\x82", 4);
        tokenizer *t = make_tokenizer(m);
        bpe bytes = t->bpe;
        bpe_work a = { 0 };
        bytes.walk = NULL;
        for (int k = 0; k < 5 && t->bpe.units; k++) {
            char text[PIECES][BYTES];
            int32_t ids[PIECES][BYTES];
            bpe_job jobs[PIECES];
            for (int p = 0; p < PIECES; p++)
                jobs[p] = (bpe_job){ text[p], draw_chars(&seed, text[p], BYTES), 0, ids[p] };
            bpe_units_pieces(&t->bpe, jobs, PIECES);
            for (int p = 0; p < PIECES; p++) {
                size_t n_joined, len = jobs[p].len;
                const int32_t *joined = bpe_piece(&bytes, &a, text[p], len, &n_joined);
                left += jobs[p].n == 0;
                if (jobs[p].n == 0) continue;
                assert_int_equal(jobs[p].n, n_joined);
                assert_memory_equal(ids[p], joined, n_joined * sizeof *joined);
                joins += (int64_t)(len - n_joined);
                encoded++;
            }
        }
        bpe_work_free(&a);
        tokenizer_free(t);
    }
    assert_true(joins > 10000 && encoded > 1000 && left > 10);
    free(m);
}

/* A token made at rank 1 of halves that are made at rank 2: joins do not come in order of rank. */
static void merges_out_of_order_are_joined(void **state) {
    random_merges *m = mem_alloc(sizeof *m);
    static const char *const texts[] = { "ab", "abc" };
    *m = (random_merges){ .n_tokens = 258, .n_merges = 2 };
    for (int i = 0; i < 258; i++) {
        m->bytes[i][0] = (char)i;
        if (i >= 256) strcpy(m->bytes[i], texts[i - 256]);
        m->tokens[i] = (text_span){ m->bytes[i], i < 256 ? 1 : strlen(texts[i - 256]) };
    }
    m->merges[0] = (bpe_pair){ 256, 'c' };
    m->merges[1] = (bpe_pair){ 'a', 'b' };
    tokenizer *t = make_tokenizer(m);
    assert_null(t->bpe.walk);
    tokenizer_free(t);
    m->merges[0] = (bpe_pair){ 'a', 'b' };
    m->merges[1] = (bpe_pair){ 256, 'c' };
    t = make_tokenizer(m);
    assert_non_null(t->bpe.walk);
    tokenizer_free(t);
    free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_walk_gives_the_ids_of_joining),
        cmocka_unit_test(units_give_the_ids_of_joining),
        cmocka_unit_test(merges_out_of_order_are_joined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
