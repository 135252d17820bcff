/* GPT-2's pattern, 64 bytes at a time. Where a piece begins follows from the classes of a few
 * neighbors alone:
 *
 *     a letter, number or other     when the class before differs and no ' ' is before, which would
 *                                   have taken it along
 *     white space                   when what is before or after it is none: a run is one piece, but
 *                                   for its last character, which what follows may take along
 *
 * so a block, which begins with a piece, is classified and compared as vectors, and the result is a
 * word with a bit for each beginning. Contractions are rare and corrected afterwards. What is left
 * at the end of a block begins the next one, unless it is long: then that block begins inside of it.
 */
#include <string.h>

#include "tokenizer/scan.h"
#include "tokenizer/splitter_internal.h"

enum {
    BLOCK = 64,
    SURE = 61, /* beginnings below are certain: a contraction looks 3 bytes ahead */
};
/* Classes as the block sees them: of no bit, others. */
enum { LETTERS = LETTER, NUMBERS = NUMBER, SPACES = SPACE, BLANK = 8, NOT_ASCII = 16 };

/* Loops run over whole blocks, which is what compilers make vectors of: the first and the last
 * byte have neighbors whose class does not matter. */
typedef struct class_block {
    uint8_t class[1 + BLOCK + 2]; /* of the character that byte i - 1 is of */
    uint8_t begins[BLOCK];        /* 1: here a piece begins; 2: here is an apostrophe */
} class_block;

static void classify_block(const uint8_t *restrict s, class_block *restrict b) {
    for (int i = 0; i < BLOCK; i++) {
        uint8_t c = s[i];
        uint8_t letter = (uint8_t)((c | 32) - 'a') < 26 ? LETTERS : 0;
        uint8_t number = (uint8_t)(c - '0') < 10 ? NUMBERS : 0;
        uint8_t line = (uint8_t)(c - '\t') < 5 ? SPACES : 0;
        uint8_t blank = c == ' ' ? SPACES | BLANK : 0;
        uint8_t high = c >= 0x80 ? NOT_ASCII : 0;
        b->class[1 + i] = letter | number | line | blank | high;
    }
}

/* Gives the bytes of each character that is not ASCII its class. @param high a bit for each byte of these.
 * @return false: one is white space, whose bytes the rules above would take apart. */
static bool classify_high(const char *s, size_t n, uint64_t high, class_block *b) {
    while (high) {
        size_t i = (size_t)__builtin_ctzll(high);
        int len;
        unsigned class = class_at(s, n, i, &len);
        if (class & SPACE) return false;
        uint8_t mine = class & (LETTERS | NUMBERS);
        if (len == 3) /* of a known length, a few stores */
            memset(&b->class[1 + i], mine, 3);
        else
            for (size_t end = MIN(i + (size_t)len, BLOCK), k = i; k < end; k++)
                b->class[1 + k] = mine;
        high &= (UINT64_MAX - 1) << i << (len - 1); /* a character has up to 4 bytes */
    }
    return true;
}

static void find_beginnings(const uint8_t *restrict s, class_block *restrict b) {
    for (int i = 0; i < BLOCK; i++) {
        uint8_t before = b->class[i], here = b->class[i + 1], after = b->class[i + 2];
        uint8_t lone = (before & after & SPACES) == 0;
        uint8_t changed = (here != before) & ((before & BLANK) == 0);
        uint8_t begins = here & SPACES ? lone : changed;
        b->begins[i] = (uint8_t)(begins | (s[i] == '\'' ? 2 : 0));
    }
}

/* The highest bits of 64 bytes as a word. */
static uint64_t gather_high(const uint8_t *bytes) {
    static const uint64_t ones = 0x0101010101010101u, gather = 0x0102040810204080u;
    uint64_t high = 0, eight;
    for (int i = 0; i < 8; i++) {
        memcpy(&eight, bytes + 8 * i, 8);
        high |= ((eight >> 7 & ones) * gather >> 56) << 8 * i;
    }
    return high;
}

/* Bits 0 and 1 of 64 bytes as two words. */
static uint64_t gather_bits(const uint8_t *bytes, uint64_t *second) {
    static const uint64_t ones = 0x0101010101010101u, gather = 0x0102040810204080u;
    uint64_t first = 0, eight, any = 0;
    for (int i = 0; i < 8; i++) {
        memcpy(&eight, bytes + 8 * i, 8);
        any |= eight;
        first |= ((eight & ones) * gather >> 56) << 8 * i;
    }
    *second = 0;
    for (int i = 0; i < 8 && any >> 1 & ones; i++) {
        memcpy(&eight, bytes + 8 * i, 8);
        *second |= ((eight >> 1 & ones) * gather >> 56) << 8 * i;
    }
    return first;
}

/* @return bytes of the contraction at s, which has 3 readable bytes after it; 0: none. */
static int contraction_length(const uint8_t *s) {
    if (s[1] == 's' || s[1] == 't' || s[1] == 'm' || s[1] == 'd') return 2;
    bool two = (s[2] == 'e' && (s[1] == 'r' || s[1] == 'v')) || (s[1] == 'l' && s[2] == 'l');
    return two ? 3 : 0;
}

/* @param inside whether a piece may go on into the block: b->class[0] is the class before it.
 * @param starts a bit for each byte where a piece begins, but the first unless `inside`.
 * @return false: the block alone does not determine it. */
static bool piece_starts(const char *text, size_t n, bool inside, class_block *b,
                         uint64_t *starts) {
    static const uint64_t sure = ((uint64_t)1 << SURE) - 1;
    const uint8_t *s = (const uint8_t *)text;
    uint64_t any = 0, apostrophes;
    classify_block(s, b);
    for (int i = 0; i < BLOCK; i += 8) {
        uint64_t eight;
        memcpy(&eight, s + i, 8);
        any |= eight;
    }
    if ((any & 0x8080808080808080u) && !classify_high(text, n, gather_high(s), b)) return false;
    find_beginnings(s, b);
    uint64_t begins = gather_bits(b->begins, &apostrophes) | !inside;
    for (uint64_t left = begins & apostrophes & sure; left; left &= left - 1) {
        int i = __builtin_ctzll(left), len = contraction_length(s + i);
        if (!len) continue;
        begins &= ~((uint64_t)2 << i); /* not where its letters begin, but where they end */
        begins |= (uint64_t)1 << (i + len);
    }
    *starts = begins & (sure - !inside);
    return true;
}

/* @return where the next block can begin inside the piece that begins at `last`, between two characters that are not
 * ASCII, so that what was found there need not be looked at again; 0: it begins with the piece. */
static size_t block_end(const char *s, size_t last) {
    enum { WORTH = 12 }; /* bytes that are not looked at again */
    size_t end = SURE;
    while (end > last && is_follow(s[end])) end--;
    bool between = (signed char)s[end] < 0 && (signed char)s[end - 1] < 0;
    return between && end >= last + WORTH ? end : 0;
}

int scan_gpt2(const char *text, size_t n, size_t from, size_t *ends, int max) {
    int k = 0;
    class_block b = { { 0 }, { 0 } };
    size_t at = from; /* of the block; beyond `from`: inside the piece that begins there */
    while (from < n && (k == 0 || k + BLOCK <= max)) {
        uint64_t starts = 0;
        bool known = BLOCK <= max && at + BLOCK <= n &&
                     piece_starts(text + at, n - at, at > from, &b, &starts);
        size_t last = starts ? 63 - (size_t)__builtin_clzll(starts) : 0;
        size_t end = known ? block_end(text + at, last) : 0;
        if (!starts && !end) ends[k++] = from = scan_gpt2_one(text, n, from);
        for (; starts; starts &= starts - 1)
            ends[k++] = from = at + (size_t)__builtin_ctzll(starts);
        if (end) b.class[0] = b.class[end];
        at = end ? at + end : from;
    }
    return k;
}
