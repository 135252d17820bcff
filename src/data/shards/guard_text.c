/* The guard's view of the text behind the ids: whether a window's characters are malformed.
 *
 * Malformed are bytes that are not UTF-8, U+FFFD (what such bytes become when text is repaired),
 * control characters, and mojibake: UTF-8 that was decoded as Windows-1252, so that the characters,
 * taken as bytes again, are UTF-8 once more ("Ã©" for "é", "â€œ" for a quotation mark). Genuine text
 * has hardly any such pairs.
 *
 * A table of one byte per id marks those whose bytes could take part; windows with few of them are
 * not decoded. */
#include "shards/data_internal.h"

#include <stdlib.h>

#include "tokenizer/tokenizer.h"

struct guard_text {
    const tokenizer *t; /* NULL: ids are bytes */
    uint8_t *suspect;   /* [vocab] */
    int64_t vocab;
};

/* ---- characters -------------------------------------------------------------------------------- */

/* @return the byte that Windows-1252 decodes to this character, 0x80 and above; 0: none. */
static unsigned byte_of_1252(uint32_t cp) {
    static const uint16_t special[32] = {
        /* of bytes 0x80 ... 0x9F; 0: not assigned */
        0x20AC, 0,      0x201A, 0x0192, 0x201E, 0x2026, 0x2020, 0x2021, 0x02C6, 0x2030, 0x0160,
        0x2039, 0x0152, 0,      0x017D, 0,      0,      0x2018, 0x2019, 0x201C, 0x201D, 0x2022,
        0x2013, 0x2014, 0x02DC, 0x2122, 0x0161, 0x203A, 0x0153, 0,      0x017E, 0x0178
    };
    if (cp >= 0x80 && cp <= 0xFF) return cp;
    if (cp < 0x152 || cp > 0x2122) return 0;
    for (unsigned i = 0; i < COUNT_OF(special); i++)
        if (special[i] == cp) return 0x80 + i;
    return 0;
}

/* @return characters that follow this one if both are the bytes of one character of UTF-8; 0: it
 * begins none. */
static int mojibake_length(uint32_t cp) {
    if (cp < 0xC2 || cp > 0xF4) return 0;
    return cp < 0xE0 ? 1 : cp < 0xF0 ? 2 : 3;
}

static bool is_control(uint32_t cp) {
    bool blank = cp >= '\t' && cp <= '\r';
    return (cp < 0x20 && !blank) || (cp >= 0x7F && cp < 0xA0);
}

typedef struct char_counts {
    int64_t all, malformed;
} char_counts;

/* @param text valid UTF-8. */
static char_counts count_characters(const char *text, size_t n) {
    char_counts c = { 0 };
    int length = 0, seen = 0; /* of the mojibake that may be under way */
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += (size_t)utf8_decode(text + i, &cp);
        c.all++;
        unsigned byte = byte_of_1252(cp);
        if (length && byte >= 0x80 && byte < 0xC0) {
            if (++seen == length) {
                c.malformed += length + 1;
                length = 0;
            }
            continue;
        }
        length = mojibake_length(cp);
        seen = 0;
        c.malformed += cp == 0xFFFD || is_control(cp);
    }
    return c;
}

/* ---- ids --------------------------------------------------------------------------------------- */

/* Whether the bytes of one id could be, or be a part of, malformed text. */
static bool is_suspect(const char *bytes, size_t n) {
    if (utf8_valid(bytes, n) < n) return true;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += (size_t)utf8_decode(bytes + i, &cp);
        if (cp == 0xFFFD || is_control(cp) || mojibake_length(cp)) return true;
    }
    return false;
}

guard_text *guard_text_new(const data_info *info, const tokenizer *t) {
    bool bytes = info->tokenizer == TOKENIZER_BYTES;
    if (!bytes && (!t || tokenizer_hash(t) != info->tokenizer_hash)) return NULL;
    guard_text *g = mem_alloc(sizeof *g);
    g->t = bytes ? NULL : t;
    g->vocab = bytes ? BYTE_VOCAB : tokenizer_vocab(t);
    g->suspect = mem_alloc((size_t)g->vocab);
    str text = { 0 };
    for (int32_t id = 0; id < g->vocab; id++) {
        text.len = 0;
        if (!bytes)
            tokenizer_decode(t, &id, 1, false, &text);
        else if (id < BYTE_EOS)
            str_add_bytes(&text, &(char){ (char)id }, 1);
        g->suspect[id] = is_suspect(text.text, text.len);
    }
    str_free(&text);
    return g;
}

void guard_text_free(guard_text *g) {
    if (!g) return;
    free(g->suspect);
    free(g);
}

bool guard_text_suspects(const guard_text *g, const int32_t *ids, int n, double share) {
    int suspects = 0;
    for (int i = 0; i < n; i++) suspects += ids[i] >= 0 && ids[i] < g->vocab && g->suspect[ids[i]];
    return suspects >= MAX(1, 0.25 * share * n);
}

static void decode_window(const guard_text *g, const token_view *v, guard_buffer *b) {
    b->bytes.len = 0;
    if (!g->t) {
        for (int64_t i = 0; i < v->n; i++) {
            int32_t id = view_token(v, i);
            if (id >= 0 && id < BYTE_EOS) str_add_bytes(&b->bytes, &(char){ (char)id }, 1);
        }
        return;
    }
    if (v->n > b->capacity) {
        b->capacity = v->n;
        b->ids = mem_grow(b->ids, (size_t)b->capacity * sizeof *b->ids);
    }
    for (int64_t i = 0; i < v->n; i++) b->ids[i] = view_token(v, i);
    tokenizer_decode(g->t, b->ids, (size_t)v->n, false, &b->bytes);
}

void guard_buffer_free(guard_buffer *b) {
    free(b->ids);
    str_free(&b->bytes);
    str_free(&b->text);
}

bool guard_text_is_malformed(const guard_text *g, const token_view *v, double share,
                             guard_buffer *b) {
    enum { AT_THE_ENDS = 2 }; /* a window may begin and end inside a character */
    decode_window(g, v, b);
    b->text.len = 0;
    if (b->bytes.len == 0) return false;
    utf8_repair(b->bytes.text, b->bytes.len, &b->text);
    char_counts c = count_characters(b->text.text, b->text.len);
    return (double)(c.malformed - AT_THE_ENDS) > share * (double)c.all;
}
