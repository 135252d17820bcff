/* Words of a text in normalized form, for comparing texts: see dedup_internal.h. One lookup per
 * character: a table of the basic plane is built once with utf8proc; other characters are
 * decomposed each time. */
#include "curate/dedup_internal.h"

#include <stdlib.h>
#include <utf8proc.h>

enum { PLANE = 0x10000, MAX_PIECES = 8 };
/* A character maps to a code point, or to one of the values below. */
#define PART    0u          /* between words */
#define NOTHING 0xFFFFFFFFu /* a mark */
#define SEVERAL 0xFFFFFFFEu /* more than one code point */
#define ALONE   0x80000000u /* bit: a word of its own */

struct normalizer {
    uint32_t map[PLANE];
    normalization rules;
};

/* Scripts written without spaces between words. */
static const uint32_t unspaced[][2] = {
    { 0x0E00, 0x0EFF },                                           /* Thai, Lao */
    { 0x1000, 0x109F },                                           /* Myanmar */
    { 0x1780, 0x17FF },                                           /* Khmer */
    { 0x3005, 0x3007 }, { 0x3040, 0x30FF }, { 0x31F0, 0x31FF },   /* kana */
    { 0x3400, 0x9FFF }, { 0xF900, 0xFAFF }, { 0x20000, 0x3FFFF }, /* Chinese characters */
};

static bool is_unspaced(uint32_t cp) {
    for (size_t i = 0; i < COUNT_OF(unspaced); i++)
        if (cp >= unspaced[i][0] && cp <= unspaced[i][1]) return true;
    return false;
}

/* Maps one code point of a decomposition. */
static uint32_t map_piece(const normalizer *t, uint32_t cp) {
    uint8_t class = unicode_class(cp);
    if (class & CLASS_MARK) return t->rules.keep_accents ? cp : NOTHING;
    if ((class & (CLASS_PUNCTUATION | CLASS_SYMBOL)) && t->rules.keep_punctuation)
        return cp | ALONE;
    if (!(class & (CLASS_LETTER | CLASS_NUMBER))) return PART;
    if (t->rules.zero_digits && utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_ND)
        return '0';
    uint32_t low = t->rules.keep_case ? cp : (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
    return is_unspaced(low) ? low | ALONE : low;
}

/* @param out [MAX_PIECES] what the character maps to: letters, or one PART. @return how many; 0
 * for a mark. */
static int decompose_char(const normalizer *t, uint32_t cp, uint32_t *out) {
    utf8proc_int32_t piece[MAX_PIECES];
    int bounds = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)cp, piece, MAX_PIECES,
                                                 UTF8PROC_DECOMPOSE, &bounds);
    if (n < 0 || n > MAX_PIECES) return out[0] = PART, 1;
    int kept = 0;
    for (int i = 0; i < n; i++) {
        uint32_t to = map_piece(t, (uint32_t)piece[i]);
        if (to == PART) return out[0] = PART, 1;
        if (to != NOTHING) out[kept++] = to;
    }
    for (int i = 0; kept > 1 && i < kept; i++) out[i] &= ~ALONE;
    return kept;
}

normalizer *normalizer_new(normalization rules) {
    normalizer *t = mem_alloc(sizeof *t);
    t->rules = rules;
    for (uint32_t cp = 0; cp < PLANE; cp++) {
        uint32_t to[MAX_PIECES];
        int n = decompose_char(t, cp, to);
        t->map[cp] = n == 0 ? NOTHING : n == 1 ? to[0] : SEVERAL;
    }
    return t;
}

void normalizer_free(normalizer *t) { free(t); }

/* ---- hashing of words: FNV-1a over code points, mixed at the end ----------------------------- */

#define WORD_START 0xCBF29CE484222325u
#define WORD_PRIME 0x00000100000001B3u

typedef struct word_scan {
    uint64_t hash; /* WORD_START: between words */
    normalized_word *out;
    size_t n;
    uint32_t begin;
} word_scan;

static inline void end_word(word_scan *s, size_t at) {
    if (s->hash == WORD_START) return;
    s->out[s->n++] = (normalized_word){ hash_mix(s->hash), s->begin, (uint32_t)at };
    s->hash = WORD_START;
}

static inline void add_letter(word_scan *s, uint32_t cp, size_t at) {
    if (s->hash == WORD_START) s->begin = (uint32_t)at;
    s->hash = (s->hash ^ cp) * WORD_PRIME;
}

/* Adds a non-ASCII character of `bytes` bytes. It can end two words: the one before it, and
 * itself. */
static void add_char(const normalizer *t, word_scan *s, uint32_t cp, size_t at, int bytes) {
    uint32_t to[MAX_PIECES] = { PART };
    int n = 1;
    if (cp < PLANE && t->map[cp] != SEVERAL)
        to[0] = t->map[cp];
    else
        n = decompose_char(t, cp, to);
    if (n == 0 || to[0] == NOTHING) return;
    if (to[0] == PART || to[0] & ALONE) end_word(s, at);
    if (to[0] == PART) return;
    for (int i = 0; i < n; i++) add_letter(s, to[i] & ~ALONE, at);
    if (to[0] & ALONE) end_word(s, at + (size_t)bytes);
}

rolling_ngram rolling_ngram_new(int n) {
    rolling_ngram g = { .leaving = 1, .n = n };
    for (int i = 0; i < n; i++) g.leaving *= NGRAM_BASE;
    return g;
}

size_t normalizer_next_words(const normalizer *t, text_span text, size_t *at, normalized_word *out,
                             size_t capacity) {
    word_scan s = { WORD_START, out, 0, 0 };
    size_t i = *at;
    while (i < text.len && s.n + 2 <= capacity) {
        unsigned char c = (unsigned char)text.at[i];
        if (c < 0x80) {
            uint32_t to = t->map[c];
            if (to != PART && to < ALONE)
                add_letter(&s, to, i);
            else if (to == PART)
                end_word(&s, i);
            else
                add_char(t, &s, c, i, 1);
            i++;
            continue;
        }
        uint32_t cp;
        int bytes = utf8_decode(text.at + i, &cp);
        add_char(t, &s, cp, i, bytes);
        i += (size_t)bytes;
    }
    if (i >= text.len) end_word(&s, text.len);
    *at = i;
    return s.n;
}
