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

/* @return bytes before the first group of eight with a byte that is not ASCII. */
static size_t ascii_run(const unsigned char *p, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t eight;
        memcpy(&eight, p + i, 8);
        if (eight & 0x8080808080808080u) break;
    }
    return i;
}

size_t utf8_valid(const char *text, size_t n) {
    const unsigned char *p = (const unsigned char *)text;
    size_t i = 0;
    while (i < n) {
        if (p[i] < 0x80) {
            size_t run = ascii_run(p + i, n - i);
            i += run ? run : 1;
            continue;
        }
        if (p[i] > 0xE0 && p[i] < 0xED && n - i > 2 && (p[i + 1] & 0xC0) == 0x80 &&
            (p[i + 2] & 0xC0) == 0x80) {
            i += 3; /* most characters of East Asian scripts */
            continue;
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
