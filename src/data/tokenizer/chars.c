/* Characters of text that may be broken, GPT-2's alphabet of bytes, and base64. */
#include "tokenizer/chars_internal.h"

/* ---- broken text ------------------------------------------------------------------------------ */

/* The smallest code point that needs this many bytes. */
static const uint32_t least[5] = { 0, 0, 0x80, 0x800, 0x10000 };
enum { ESCAPED = 0x10FF00, REPLACEMENT = 0xFFFD };

int char_decode_any(const char *p, size_t n, uint32_t *cp) {
    const uint8_t *s = (const uint8_t *)p;
    *cp = s[0];
    if (s[0] < 0x80) return 1;
    int len = s[0] < 0xC2 ? 1 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : s[0] < 0xF5 ? 4 : 1;
    *cp = REPLACEMENT;
    if (len == 1 || (size_t)len > n) return 1;
    for (int i = 1; i < len; i++)
        if ((s[i] & 0xC0) != 0x80) return 1;
    uint32_t found;
    utf8_decode(p, &found);
    if (found < least[len] || found > 0x10FFFF || (found >> 11) == 0xD800 >> 11) return 1;
    *cp = found;
    return len;
}

int char_back(const char *p, size_t n, uint32_t *cp) {
    for (int len = 1; len <= 4 && (size_t)len <= n; len++)
        if (char_decode(p + n - len, (size_t)len, cp) == len && (len > 1 || *cp < 0x80)) return len;
    *cp = REPLACEMENT;
    return 1;
}

static void add_escaped(const char *bytes, int n, str *out) {
    for (int i = 0; i < n; i++) {
        char code[4];
        utf8_encode(ESCAPED + (uint8_t)bytes[i], code);
        str_add_bytes(out, code, 4);
    }
}

void chars_escape(const char *text, size_t n, str *out) {
    for (size_t i = 0; i < n;) {
        size_t valid = utf8_valid(text + i, n - i), end = i + valid;
        while (i < end) {
            uint32_t cp;
            int len = utf8_decode(text + i, &cp);
            if (cp >= ESCAPED)
                add_escaped(text + i, len, out);
            else
                str_add_bytes(out, text + i, (size_t)len);
            i += (size_t)len;
        }
        if (i < n) add_escaped(text + i++, 1, out);
    }
}

void chars_unescape(const char *text, size_t n, str *out) {
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int len = utf8_decode(text + i, &cp);
        char byte = (char)(cp & 0xFF);
        if (cp >= ESCAPED)
            str_add_bytes(out, &byte, 1);
        else
            str_add_bytes(out, text + i, (size_t)len);
        i += (size_t)len;
    }
}

/* ---- the alphabet of bytes --------------------------------------------------------------------- */

/* Printable characters of Latin-1 stand for themselves; the 68 others count up from U+0100. */
static bool is_itself(uint32_t c) {
    return (c >= '!' && c <= '~') || (c >= 0xA1 && c <= 0xAC) || (c >= 0xAE && c <= 0xFF);
}

uint32_t byte_to_char(uint8_t byte) {
    if (is_itself(byte)) return byte;
    uint32_t others = 0;
    for (uint32_t c = 0; c < byte; c++) others += !is_itself(c);
    return 0x100 + others;
}

static int char_to_byte(uint32_t c) {
    if (c < 0x100) return is_itself(c) ? (int)c : -1;
    for (uint32_t b = 0, others = 0; b < 0x100; b++)
        if (!is_itself(b) && c == 0x100 + others++) return (int)b;
    return -1;
}

bool alphabet_to_bytes(const char *text, size_t n, str *out) {
    size_t before = out->len;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += (size_t)char_decode(text + i, n - i, &cp);
        int byte = char_to_byte(cp);
        if (byte < 0) {
            out->len = before;
            return false;
        }
        char c = (char)byte;
        str_add_bytes(out, &c, 1);
    }
    return true;
}

void alphabet_from_bytes(const char *bytes, size_t n, str *out) {
    for (size_t i = 0; i < n; i++) {
        char code[4];
        str_add_bytes(out, code, (size_t)utf8_encode(byte_to_char((uint8_t)bytes[i]), code));
    }
}

/* ---- base64 ------------------------------------------------------------------------------ */

static int base64_digit(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool base64_to_bytes(const char *s, size_t n, str *out) {
    uint32_t bits = 0;
    int have = 0;
    if (n % 4 != 0) return false;
    for (int pad = 0; n > 0 && s[n - 1] == '=' && pad < 2; pad++) n--;
    for (size_t i = 0; i < n; i++) {
        int digit = base64_digit(s[i]);
        if (digit < 0) return false;
        bits = bits << 6 | (uint32_t)digit;
        have += 6;
        if (have < 8) continue;
        have -= 8;
        char byte = (char)(bits >> have & 0xFF);
        str_add_bytes(out, &byte, 1);
    }
    return true;
}

void base64_from_bytes(const char *bytes, size_t n, str *out) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        size_t have = MIN(n - i, 3);
        uint32_t bits = 0;
        for (size_t k = 0; k < 3; k++) bits = bits << 8 | (k < have ? (uint8_t)bytes[i + k] : 0);
        for (size_t k = 0; k < 4; k++)
            str_add_bytes(out, k <= have ? &digits[bits >> (18 - 6 * k) & 63] : "=", 1);
    }
}
