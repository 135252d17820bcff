/* Unicode's word breaks (UAX #29, "Word Boundary Rules"), for languages that have no rules of their own. A boundary is
 * between any two characters that no rule joins:
 *
 *     WB3c      zero-width joiner × pictograph
 *     WB4       marks and format characters belong to what they follow, and are not seen by the rules below
 *     WB5       letter × letter
 *     WB6, 7    letter × (mid-letter, mid-number-letter, ') × letter
 *     WB7a-c    Hebrew letter × ', and Hebrew letter × " × Hebrew letter
 *     WB8-10    digits and letters × digits and letters
 *     WB11, 12  digit × (mid-number, mid-number-letter, ') × digit
 *     WB13      Katakana × Katakana; a-b: letters, digits, Katakana, _ × _ and back
 *     WB15, 16  regional indicators in pairs
 *
 * Runs of Chinese, Japanese, Thai, Lao, Khmer and Burmese are split by a dictionary where ICU has one. Without it, the
 * same rules hold: each Chinese character and each letter of the others is a word, with the marks on it.
 *
 * Korean has spaces, but datatrove counts its morphemes (Kiwi), of 1.6 syllables in the mean, where what spaces separate has
 * three or more: by that, rules about the length of words decide. So in Korean, Hangul is cut into pairs of syllables, and from letters and
 * digits around it. The number of words then differs by 1% from that of the morphemes; which words they are does not
 * matter to the rules, as long as the same text is cut in the same way. */
#include "curate/word_breaks_internal.h"
#include "curate/word_rules_internal.h"
#include "text/text.h"

#include <stdlib.h>

typedef struct break_point {
    uint32_t at; /* offset of the character */
    uint8_t class;
    bool pictograph, dictionary, hangul;
} break_point;

struct word_breaks {
    dictionary_breaks *dictionary; /* NULL: none */
    break_point *points;
    size_t cap;
};

word_breaks *word_breaks_new(void) {
    word_breaks *b = mem_alloc(sizeof *b);
    b->dictionary = dictionary_breaks_new();
    return b;
}

void word_breaks_free(word_breaks *b) {
    if (!b) return;
    dictionary_breaks_free(b->dictionary);
    free(b->points);
    free(b);
}

/* ---- properties ----------------------------------------------------------------------------------------- */

static word_break_class break_class(uint32_t cp) {
    size_t low = 0, high = word_break_class_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (cp > word_break_classes[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    bool in = low < word_break_class_count && cp >= word_break_classes[low].first;
    return in ? word_break_classes[low].class : WB_OTHER;
}

static bool is_in_list(const uint32_t (*list)[2], size_t n, uint32_t cp) {
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (cp > list[middle][1])
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && cp >= list[low][0];
}

static size_t read_points(word_breaks *b, const char *chunk, size_t n) {
    size_t points = 0;
    if (n > b->cap) {
        b->cap = MAX(n, 2 * b->cap);
        b->points = mem_grow(b->points, b->cap * sizeof *b->points);
    }
    for (size_t at = 0; at < n; points++) {
        uint32_t cp;
        int len = utf8_decode(chunk + at, &cp);
        b->points[points] = (break_point){
            .at = (uint32_t)at,
            .class = (uint8_t)break_class(cp),
            .pictograph = is_in_list(word_break_pictographs, word_break_pictographs_count, cp),
            .dictionary = is_in_list(word_break_dictionary, word_break_dictionary_count, cp),
            .hangul = cp >= 0xAC00 && cp <= 0xD7A3,
        };
        at += (size_t)len;
    }
    return points;
}

/* ---- rules ------------------------------------------------------------------------------------------------ */

static bool is_skipped(int c) { return c == WB_EXTEND || c == WB_ZWJ || c == WB_FORMAT; }
static bool is_letter(int c) { return c == WB_ALETTER || c == WB_HEBREW_LETTER; }
static bool is_line_end(int c) { return c == WB_NEWLINE || c == WB_CR || c == WB_LF; }
static bool is_mid_letter(int c) {
    return c == WB_MIDLETTER || c == WB_MIDNUMLET || c == WB_SINGLE_QUOTE;
}
static bool is_mid_number(int c) {
    return c == WB_MIDNUM || c == WB_MIDNUMLET || c == WB_SINGLE_QUOTE;
}

/* The classes around a place, without those that WB4 hides from the rules. -1: the text ends. */
typedef struct break_context {
    int before, last, next, after;
    size_t indicators; /* regional indicators in a row up to `last` */
} break_context;

/* @return whether one of WB5 to WB16 joins `last` and `next`. */
static bool are_joined(const break_context *c) {
    int last = c->last, next = c->next;
    bool word = is_letter(last) || last == WB_NUMERIC;
    if (word && (is_letter(next) || next == WB_NUMERIC)) return true;
    if (is_letter(last) && is_mid_letter(next) && is_letter(c->after)) return true;
    if (is_letter(c->before) && is_mid_letter(last) && is_letter(next)) return true;
    if (last == WB_HEBREW_LETTER && next == WB_SINGLE_QUOTE) return true;
    if (last == WB_HEBREW_LETTER && next == WB_DOUBLE_QUOTE && c->after == WB_HEBREW_LETTER)
        return true;
    if (c->before == WB_HEBREW_LETTER && last == WB_DOUBLE_QUOTE && next == WB_HEBREW_LETTER)
        return true;
    if (c->before == WB_NUMERIC && is_mid_number(last) && next == WB_NUMERIC) return true;
    if (last == WB_NUMERIC && is_mid_number(next) && c->after == WB_NUMERIC) return true;
    bool joinable = word || last == WB_KATAKANA;
    if (last == WB_KATAKANA && next == WB_KATAKANA) return true;
    if ((joinable || last == WB_EXTENDNUMLET) && next == WB_EXTENDNUMLET) return true;
    if (last == WB_EXTENDNUMLET && (is_letter(next) || next == WB_NUMERIC || next == WB_KATAKANA))
        return true;
    return last == WB_REGIONAL_INDICATOR && next == WB_REGIONAL_INDICATOR && c->indicators % 2 == 1;
}

static int next_visible(const break_point *p, size_t n, size_t from) {
    while (from < n && is_skipped(p[from].class)) from++;
    return from < n ? p[from].class : -1;
}

/* Marks each character that begins a word by the rules. */
static bool begins_word(const break_point *p, size_t n, size_t i, break_context *c) {
    int last = p[i - 1].class, next = p[i].class;
    if (last == WB_CR && next == WB_LF) return false;
    if (is_line_end(last) || is_line_end(next)) return true;
    if (last == WB_ZWJ && p[i].pictograph) return false;
    if (is_skipped(next)) return false;
    c->next = next;
    c->after = next_visible(p, n, i + 1);
    return !are_joined(c);
}

static void see_character(break_context *c, const break_point *p) {
    if (is_skipped(p->class) && c->last >= 0 && !is_line_end(c->last)) return;
    c->before = c->last;
    c->last = p->class;
    c->indicators = p->class == WB_REGIONAL_INDICATOR ? c->indicators + 1 : 0;
}

/* Marks where Hangul is cut although the rules join it. @param syllables of Hangul in the word so far. */
static bool cuts_hangul(const break_point *p, size_t i, size_t syllables) {
    if (is_skipped(p[i].class)) return false;
    return p[i].hangul ? syllables == 2 || !p[i - 1].hangul : p[i - 1].hangul;
}

size_t word_breaks_split(word_breaks *b, const char *chunk, size_t n, bool pairs, uint32_t *bytes) {
    size_t points = read_points(b, chunk, n), words = 0, syllables = 0;
    const break_point *p = b->points;
    break_context c = { .before = -1, .last = -1 };
    uint32_t begin = 0;
    for (size_t i = 0; i < points;) {
        if (i > 0 && p[i].at > begin &&
            (begins_word(p, points, i, &c) || (pairs && cuts_hangul(p, i, syllables)))) {
            bytes[words++] = p[i].at - begin;
            begin = p[i].at;
            syllables = 0;
        }
        syllables += p[i].hangul;
        if (b->dictionary && p[i].dictionary) {
            if (p[i].at > begin) bytes[words++] = p[i].at - begin;
            size_t end = i; /* of the characters of dictionary scripts, with their marks */
            while (end < points && (p[end].dictionary || is_skipped(p[end].class))) end++;
            uint32_t to = end < points ? p[end].at : (uint32_t)n;
            words += dictionary_breaks_split(b->dictionary, chunk + p[i].at, to - p[i].at,
                                             bytes + words);
            c = (break_context){ .before = -1, .last = WB_OTHER };
            begin = to;
            i = end;
            continue;
        }
        see_character(&c, &p[i++]);
    }
    if (begin < n) bytes[words++] = (uint32_t)n - begin;
    return words;
}
