/* UTF-8: encoding, validating, repairing and counting code points. */
#include "text/text.h"

#include <string.h>

int utf8_encode(uint32_t cp, char out[4]) {
    if (cp < 0x80) return out[0] = (char)cp, 1;
    if (cp < 0x800) return out[0] = (char)(0xC0 | cp >> 6), out[1] = (char)(0x80 | (cp & 63)), 2;
    int n = cp < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, cp >>= 6) out[i] = (char)(0x80 | (cp & 63));
    out[0] = (char)((n == 3 ? 0xE0 : 0xF0) | cp);
    return n;
}

/* @return bytes of a character with this lead byte; *low, *high: range of its second byte. */
static int lead_byte_length(unsigned char c, unsigned char *low, unsigned char *high) {
    *low = 0x80, *high = 0xBF;
    if (c < 0x80) return 1;
    if (c < 0xC2) return 0;
    if (c < 0xE0) return 2;
    if (c < 0xF0) {
        if (c == 0xE0) *low = 0xA0;
        if (c == 0xED) *high = 0x9F; /* surrogates */
        return 3;
    }
    if (c == 0xF0) *low = 0x90;
    if (c == 0xF4) *high = 0x8F;
    return c < 0xF5 ? 4 : 0;
}

/* @return bytes of the character at p, or minus the bytes of the invalid sequence there. */
static int character_length(const unsigned char *p, size_t n) {
    unsigned char low, high;
    int need = lead_byte_length(p[0], &low, &high);
    if (need <= 1) return need ? 1 : -1;
    for (int i = 1; i < need; i++, low = 0x80, high = 0xBF)
        if ((size_t)i >= n || p[i] < low || p[i] > high) return -i;
    return need;
}

/* Sixteen bytes at a time, compared without branches: text that mixes scripts has no pattern to predict. */
typedef uint8_t byte_block __attribute__((vector_size(16)));
enum { BLOCK = sizeof(byte_block) };

static inline byte_block load_block(const unsigned char *p) {
    byte_block b;
    memcpy(&b, p, sizeof b);
    return b;
}

static inline bool is_zero_block(byte_block b) {
    uint64_t half[2];
    memcpy(half, &b, sizeof half);
    return (half[0] | half[1]) == 0;
}

/* Whether each byte of a block is one that may follow the three before it, which are valid or the beginning of a
 * character: it continues a character where a lead byte wants it to, and nowhere else, and the second bytes of
 * characters that could be written shorter, of surrogates and of those beyond U+10FFFF are refused. */
static inline bool is_valid_block(const unsigned char *p) {
    byte_block b = load_block(p);
    if (is_zero_block(b & 0x80)) return p[-1] < 0xC0 && p[-2] < 0xE0 && p[-3] < 0xF0;
    byte_block one = load_block(p - 1), two = load_block(p - 2), three = load_block(p - 3);
    byte_block follows = (byte_block)((b & 0xC0) == 0x80);
    byte_block wanted =
        (byte_block)(one >= 0xC0) | (byte_block)(two >= 0xE0) | (byte_block)(three >= 0xF0);
    byte_block bad = (follows ^ wanted) | (byte_block)((b & 0xFE) == 0xC0) | (byte_block)(b > 0xF4);
    bad |= (byte_block)(one == 0xE0) & (byte_block)(b < 0xA0);
    bad |= (byte_block)(one == 0xED) & (byte_block)(b > 0x9F);
    bad |= (byte_block)(one == 0xF0) & (byte_block)(b < 0x90);
    bad |= (byte_block)(one == 0xF4) & (byte_block)(b > 0x8F);
    return is_zero_block(bad);
}

/* @return where the last character of a run of valid blocks begins. @param from bytes that are valid, at least three. */
static size_t valid_blocks(const unsigned char *p, size_t n, size_t from) {
    size_t i = from;
    while (i + BLOCK <= n && is_valid_block(p + i)) i += BLOCK;
    while (i > from && (p[i - 1] & 0xC0) == 0x80) i--;
    return i > from ? i - 1 : i;
}

size_t utf8_valid(const char *text, size_t n) {
    const unsigned char *p = (const unsigned char *)text;
    size_t i = 0;
    for (size_t blocks_from = 3; i < n;) {
        if (i >= blocks_from && n - i > BLOCK) {
            i = valid_blocks(p, n, i);
            blocks_from = i + BLOCK; /* a block that is refused is decoded by character */
        }
        int got = character_length(p + i, n - i);
        if (got < 0) return i;
        i += (size_t)got;
    }
    return n;
}

int64_t utf8_repair(const char *text, size_t n, str *out) {
    int64_t bad = 0;
    while (n > 0) {
        size_t good = utf8_valid(text, n);
        if (good) str_add_bytes(out, text, good);
        text += good, n -= good;
        if (n == 0) break;
        size_t piece = (size_t)-character_length((const unsigned char *)text, n);
        str_add_bytes(out, "\xEF\xBF\xBD", 3);
        bad++;
        text += piece, n -= piece;
    }
    return bad;
}

size_t utf8_unfinished(const char *text, size_t n) {
    const unsigned char *end = (const unsigned char *)text + n;
    unsigned char low, high;
    for (size_t k = 1; k <= MIN(n, 3); k++)
        if (lead_byte_length(end[-(ptrdiff_t)k], &low, &high) > (int)k)
            return character_length(end - k, k) == -(int)k ? k : 0;
    return 0;
}

int64_t utf8_length(const char *text, size_t n) {
    int64_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)text[i] & 0xC0) != 0x80;
    return count;
}
