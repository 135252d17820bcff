/* SentencePiece's compiled normalization: a table of texts and what replaces them.
 *
 *     u32 n | n bytes: a double array of u32 units (Darts) | replacements, each ends in a NUL
 *
 * A unit of the double array has a label (the byte that leads to it), a flag for a value, and the
 * distance to its children. Bytes come from a file: every index is checked against the array.
 *
 * SentencePiece replaces the longest text of the table at each position. Hugging Face's library goes by
 * graphemes: it replaces a whole grapheme of up to 5 bytes by what the shortest prefix of it in the
 * table gives, else each character by itself. The two differ in rare texts, and so both are here. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "tokenizer/charsmap_internal.h"

enum { BMP = 0x10000 }; /* characters of up to three bytes */

struct charsmap {
    uint32_t *units; /* [n_units] */
    size_t n_units;
    char *replacements; /* [n_replacements], and a NUL */
    size_t n_replacements;
    bool plain[128];        /* ASCII that stays as it is when ASCII follows */
    bool plain_text;        /* all characters from ' ' to '~' do */
    bool before_three[128]; /* ASCII that stays as it is when a character of three bytes follows */
    uint8_t kinds[BMP];     /* of each character of three bytes, the sum of CHAR_* */
    uint32_t shorter[BMP];  /* of CHAR_SHORTER: its bytes, at most three, and their number << 24 */
};

enum {
    CHAR_CHANGES = 1, /* it is in the table or must be looked up for another reason */
    CHAR_BEGINS = 2,  /* it begins longer texts there */
    CHAR_FOLLOWS = 4, /* it is the second character of one */
    CHAR_SHORTER =
        8, /* nothing longer in the table begins with it, and what replaces it is not longer */
};
enum { GRAPHEME_BYTES = 6 }; /* longer ones are replaced by character */

/* ---- the double array ------------------------------------------------------------------------- */

static uint32_t unit_at(const charsmap *m, size_t i) { return i < m->n_units ? m->units[i] : 0; }
static size_t unit_offset(uint32_t unit) {
    return (size_t)(unit >> 10) << ((unit & (UINT32_C(1) << 9)) >> 6);
}
static bool unit_has_value(uint32_t unit) { return unit >> 8 & 1; }
static uint32_t unit_label(uint32_t unit) { return unit & (UINT32_C(1) << 31 | 0xFF); }

/* Finds a prefix of the text in the table. @param longest the longest one, else the shortest.
 * @param value where its replacement begins. @return bytes of the prefix; 0: none. */
static size_t find_prefix(const charsmap *m, const char *text, size_t n, bool longest,
                          size_t *value) {
    size_t at = unit_offset(unit_at(m, 0)), found = 0;
    for (size_t i = 0; i < n; i++) {
        uint8_t byte = (uint8_t)text[i];
        at ^= byte;
        if (at >= m->n_units) break;
        uint32_t unit = m->units[at];
        if (unit_label(unit) != byte) break;
        at ^= unit_offset(unit);
        if (!unit_has_value(unit)) continue;
        *value = unit_at(m, at) & ((UINT32_C(1) << 31) - 1);
        found = i + 1;
        if (!longest) break;
    }
    return found;
}

static void add_replacement(const charsmap *m, size_t value, str *out) {
    if (value < m->n_replacements)
        str_add_bytes(out, m->replacements + value, strlen(m->replacements + value));
}

/* ---- opening ------------------------------------------------------------------------------------- */

/* A key of one ASCII character, or of two, keeps the first from being copied unseen. */
static bool is_plain_ascii(const charsmap *m, int c) {
    size_t value;
    for (int next = 0; next < 128; next++)
        if (find_prefix(m, (char[]){ (char)c, (char)next }, 2, true, &value)) return false;
    size_t at = unit_offset(unit_at(m, 0)) ^ (size_t)c;
    uint32_t unit = unit_at(m, at);
    if (at >= m->n_units || unit_label(unit) != (uint32_t)c) return true;
    at ^= unit_offset(unit);
    for (size_t next = 1; next < 128; next++) /* a longer key may go on in ASCII */
        if ((at ^ next) < m->n_units && unit_label(m->units[at ^ next]) == next) return false;
    return true;
}

static uint32_t three_bytes_cp(const uint8_t *s) {
    return (s[0] & 15u) << 12 | (s[1] & 63u) << 6 | (s[2] & 63u);
}

/* Moves from the children of a node, which `at` leads to, to those of the one that byte leads to. */
static bool step_unit(const charsmap *m, size_t *at, uint8_t byte, bool *has_value) {
    size_t next = *at ^ byte;
    if (next >= m->n_units || unit_label(m->units[next]) != byte) return false;
    *has_value = unit_has_value(m->units[next]);
    *at = next ^ unit_offset(m->units[next]);
    return true;
}

/* Enters the characters of three bytes that follow another one in texts of the table.
 * @return false: others do too, so that the first one must always be looked up. */
static bool find_followers(charsmap *m, size_t children) {
    bool value;
    for (unsigned a = 1; a < 256; a++) {
        size_t at = children;
        if (!step_unit(m, &at, (uint8_t)a, &value)) continue;
        if ((a & 0xF0) != 0xE0 || value) return false;
        for (unsigned bc = 0; bc < 1 << 12; bc++) {
            const uint8_t next[3] = { (uint8_t)a, (uint8_t)(0x80 | bc >> 6),
                                      (uint8_t)(0x80 | (bc & 63)) };
            size_t third = at;
            if (step_unit(m, &third, next[1], &value) && step_unit(m, &third, next[2], &value))
                m->kinds[three_bytes_cp(next)] |= CHAR_FOLLOWS;
        }
    }
    return true;
}

/* Whether no text of the table begins with an ASCII character, alone or before one of three bytes. */
static bool is_plain_before_three(const charsmap *m, int c) {
    bool value = false, follow;
    size_t at = unit_offset(unit_at(m, 0));
    if (!step_unit(m, &at, (uint8_t)c, &value)) return true;
    for (unsigned lead = 0xE0; lead < 0xF0; lead++) {
        size_t next = at;
        if (step_unit(m, &next, (uint8_t)lead, &follow)) return false;
    }
    return !value;
}

/* Enters what replaces a character, if that is short and nothing longer begins with it. */
static void find_shorter(charsmap *m, uint32_t cp, const uint8_t *bytes, size_t children) {
    size_t value;
    bool has_value;
    for (unsigned c = 1; c < 256; c++) {
        size_t next = children;
        if (step_unit(m, &next, (uint8_t)c, &has_value)) return;
    }
    if (find_prefix(m, (const char *)bytes, 3, true, &value) != 3 || value >= m->n_replacements)
        return;
    size_t len = strlen(m->replacements + value);
    if (len > 3) return;
    memcpy(&m->shorter[cp], m->replacements + value, len);
    m->shorter[cp] |= (uint32_t)len << 24;
    m->kinds[cp] |= CHAR_SHORTER;
}

static void classify_char(charsmap *m, uint32_t cp) {
    const uint8_t bytes[3] = { (uint8_t)(0xE0 | cp >> 12), (uint8_t)(0x80 | (cp >> 6 & 63)),
                               (uint8_t)(0x80 | (cp & 63)) };
    size_t at = unit_offset(unit_at(m, 0));
    bool value = false, any = false, whole = true;
    for (int i = 0; i < 3 && whole; i++) {
        whole = step_unit(m, &at, bytes[i], &value);
        any |= whole && value; /* only a damaged table has a value for a part of a character */
    }
    if (any || (whole && !find_followers(m, at)))
        m->kinds[cp] |= CHAR_CHANGES;
    else if (whole)
        m->kinds[cp] |= CHAR_BEGINS;
    if (whole && value) find_shorter(m, cp, bytes, at);
}

err charsmap_new(const char *bytes, size_t n, charsmap **out) {
    uint32_t size = 0;
    *out = NULL;
    if (n >= sizeof size) memcpy(&size, bytes, sizeof size);
    if (n < sizeof size || size > n - sizeof size || size % sizeof(uint32_t) || size == 0)
        return ERR("the normalization table is damaged: %zu bytes, of which %u for its index", n,
                   size);
    charsmap *m = mem_alloc(sizeof *m);
    m->n_units = size / sizeof *m->units;
    m->units = mem_alloc(size);
    memcpy(m->units, bytes + sizeof size, size);
    m->n_replacements = n - sizeof size - size;
    m->replacements = mem_alloc(m->n_replacements + 1);
    memcpy(m->replacements, bytes + sizeof size + size, m->n_replacements);
    if (utf8_valid(m->replacements, m->n_replacements) < m->n_replacements) {
        charsmap_free(m);
        return ERR("the normalization table is damaged: its texts are not UTF-8");
    }
    for (int c = 1; c < 128; c++) m->plain[c] = is_plain_ascii(m, c);
    for (int c = 1; c < 128; c++) m->before_three[c] = is_plain_before_three(m, c);
    m->plain_text = true;
    for (int c = ' '; c <= '~'; c++) m->plain_text &= m->plain[c];
    for (uint32_t cp = 0x800; cp < BMP; cp++) classify_char(m, cp);
    *out = m;
    return OK;
}

void charsmap_free(charsmap *m) {
    if (!m) return;
    free(m->units);
    free(m->replacements);
    free(m);
}

uint64_t charsmap_hash(const charsmap *m) {
    uint64_t h = hash_bytes(m->units, m->n_units * sizeof *m->units, 0);
    return hash_bytes(m->replacements, m->n_replacements, h);
}

/* ---- normalizing ---------------------------------------------------------------------------------- */

/* Copies ASCII that no rule can touch. @return where it ends. */
static size_t copy_plain(const charsmap *m, const char *text, size_t n, size_t from, str *out) {
    size_t i = from;
    while (i + 1 < n && (text[i] & 0x80) == 0 && (text[i + 1] & 0x80) == 0 &&
           m->plain[(int)text[i]])
        i++;
    str_add_bytes(out, text + from, i - from);
    return i;
}

/* Whether eight bytes are from ' ' to '~', and the one after them is ASCII. */
static bool is_ascii_text(const char *p) {
    const uint64_t high = 0x8080808080808080u;
    uint64_t x;
    memcpy(&x, p, sizeof x);
    uint64_t from_space = x + 0x6060606060606060u, beyond = x + 0x0101010101010101u;
    return (((from_space & high) ^ high) | ((x | beyond) & high) | (p[8] & 0x80u)) == 0;
}

/* Passes over what no rule can touch. @return where it ends. */
static size_t skip_plain(const charsmap *m, const char *text, size_t n, size_t i) {
    const uint8_t *s = (const uint8_t *)text;
    for (size_t begun = n + 1; i != begun;) {
        begun = i;
        while (m->plain_text && i + 9 <= n && is_ascii_text(text + i)) i += 8;
        while (i + 1 < n && (s[i] & 0x80) == 0 && (s[i + 1] & 0x80) == 0 && m->plain[s[i]]) i++;
        if (i + 1 < n && (s[i] & 0x80) == 0 && (s[i + 1] & 0xF0) == 0xE0)
            i += m->before_three[s[i]];
        unsigned before = 0;
        for (; i + 3 <= n && (s[i] & 0xF0) == 0xE0; i += 3) {
            unsigned kind = m->kinds[three_bytes_cp(s + i)];
            if (before & CHAR_BEGINS && kind & CHAR_FOLLOWS) return i - 3;
            if (kind & CHAR_CHANGES) return i;
            before = kind;
        }
    }
    return i;
}

static void normalize_longest(const charsmap *m, const char *text, size_t n, str *out) {
    size_t done = 0;
    str_reserve(out, n); /* for what is shorter; add_replacement makes more */
    for (size_t i = 0, value; (i = skip_plain(m, text, n, i)) < n;) {
        bool three = i + 3 <= n && ((uint8_t)text[i] & 0xF0) == 0xE0;
        uint32_t cp = three ? three_bytes_cp((const uint8_t *)text + i) : 0;
        if (three && m->kinds[cp] & CHAR_SHORTER) {
            uint32_t with = m->shorter[cp];
            memcpy(out->text + out->len, text + done, i - done);
            memcpy(out->text + out->len + (i - done), &with, 3);
            out->len += i - done + (with >> 24);
            done = i += 3;
            continue;
        }
        size_t len = find_prefix(m, text + i, n - i, true, &value);
        if (len) {
            str_add_bytes(out, text + done, i - done);
            add_replacement(m, value, out);
            done = i += len;
            str_reserve(out, n - i);
            continue;
        }
        i += (size_t)utf8_decode(text + i, &cp);
    }
    str_add_bytes(out, text + done, n - done);
}

/* Bytes of the extended grapheme cluster that text begins with. */
static size_t grapheme_length(const char *text, size_t n) {
    uint32_t last, cp;
    utf8proc_int32_t state = 0;
    size_t len = (size_t)utf8_decode(text, &last);
    while (len < n) {
        size_t more = (size_t)utf8_decode(text + len, &cp);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)last, (utf8proc_int32_t)cp, &state))
            break;
        last = cp;
        len += more;
    }
    return len;
}

static bool replace_whole(const charsmap *m, const char *text, size_t n, str *out) {
    size_t value;
    if (!find_prefix(m, text, n, false, &value)) return false;
    add_replacement(m, value, out);
    return true;
}

static void normalize_graphemes(const charsmap *m, const char *text, size_t n, str *out) {
    for (size_t i = 0, len; i < n; i += len) {
        i = copy_plain(m, text, n, i, out);
        len = grapheme_length(text + i, n - i);
        if (len < GRAPHEME_BYTES && replace_whole(m, text + i, len, out)) continue;
        for (size_t k = 0, bytes; k < len; k += bytes) {
            uint32_t cp;
            bytes = (size_t)utf8_decode(text + i + k, &cp);
            if (!replace_whole(m, text + i + k, bytes, out))
                str_add_bytes(out, text + i + k, bytes);
        }
    }
}

void charsmap_normalize(const charsmap *m, bool longest, const char *text, size_t n, str *out) {
    (longest ? normalize_longest : normalize_graphemes)(m, text, n, out);
}
