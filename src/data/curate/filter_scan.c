/* The single pass over a document's text that finds words and lines and counts everything the
 * rule sets need. ASCII is processed eight bytes at a time. */
#include "curate/filter_internal.h"
#include "curate/word_hash.h"

#include <stdlib.h>
#include <string.h>

/* Flags beside the CLASS_ bits of a word: what has to be counted once the word is complete. */
enum { HAS_HASH = 256, HAS_DOT = 512 };

static bool is_ascii_space(unsigned char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* ---- eight bytes at a time -------------------------------------------------------------------
 * Sets of bytes in a 64-bit word, each marked by its highest bit. Results after the first byte
 * that is not ASCII are undefined. */

static uint64_t bytes_between(uint64_t eight, unsigned char low, unsigned char high) {
    return (eight + EACH_BYTE(0x80 - low)) & ~(eight + EACH_BYTE(0x7F - high)) & HIGHS;
}

static int count_set(uint64_t highs) { return (int)((highs >> 7) * EACH_BYTE(1) >> 56); }

/* ---- one word -------------------------------------------------------------------------------- */

static bool is_ascii_letter(char c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }

/* @return the bit of a stop word, in any case and surrounded by any ASCII punctuation; else 0. */
static unsigned stop_word_bit(const char *p, size_t n) {
    while (n > 2 && !is_ascii_letter(p[n - 1])) n--;
    while (n > 2 && !is_ascii_letter(p[0])) p++, n--;
    if (n < 2 || n > 4) return 0;
    return stop_bit(load_short(p, n) | (EACH_BYTE(0x20) & ((UINT64_C(1) << n * 8) - 1)));
}

/* Counts "..." without overlaps, and U+2026. */
static int64_t count_ellipses(const char *p, size_t n) {
    int64_t count = 0;
    for (size_t i = 0; i + 3 <= n; i++) {
        bool dots = p[i] == '.' && p[i + 1] == '.' && p[i + 2] == '.';
        if (!dots && memcmp(p + i, "\xE2\x80\xA6", 3) != 0) continue;
        count++;
        i += 2;
    }
    return count;
}

static int64_t count_byte(const char *p, size_t n, char c) {
    int64_t count = 0;
    for (size_t i = 0; i < n; i++) count += p[i] == c;
    return count;
}

/* ---- the pass -------------------------------------------------------------------------------- */

typedef struct walk {
    scan *s;
    const char *p, *end;
    int64_t extra;      /* continuation bytes before p */
    scan_line *line;    /* the current line; NULL: no word in it yet */
    int64_t line_extra; /* `extra` where it begins */
    bool blank;         /* preceded by a blank line, or by nothing */
} walk;

static void reserve_words(scan *s) {
    if (s->words + 2 <= s->words_capacity) return;
    s->words_capacity = MAX(1024, s->words_capacity * 2);
    s->hash = mem_grow(s->hash, (size_t)s->words_capacity * sizeof *s->hash);
    s->word_chars = mem_grow(s->word_chars, (size_t)s->words_capacity * sizeof *s->word_chars);
}

static void reserve_lines(scan *s) {
    if (s->n_lines + 1 <= s->lines_capacity) return;
    s->lines_capacity = MAX(256, s->lines_capacity * 2);
    s->lines = mem_grow(s->lines, (size_t)s->lines_capacity * sizeof *s->lines);
}

/* Skips the ASCII characters of a word, while eight bytes can be read. */
static unsigned walk_ascii(walk *k) {
    unsigned classes = 0;
    while (k->end - k->p >= 8) {
        uint64_t eight;
        memcpy(&eight, k->p, 8);
        uint64_t stop = word_end_bytes(eight), in_word = HIGHS;
        if (stop) in_word &= (stop & -stop) - 1;
        uint64_t letters = letters_in(eight) & in_word;
        if (letters) classes |= CLASS_LETTER;
        if (bytes_between(eight, '0', '9') & in_word) classes |= CLASS_NUMBER;
        if (bytes_between(eight, '#', '#') & in_word) classes |= HAS_HASH;
        if (bytes_between(eight, '.', '.') & in_word) classes |= HAS_DOT;
        k->s->letters += count_set(letters);
        k->p += stop ? __builtin_ctzll(stop) / 8 : 8;
        if (stop) break;
    }
    return classes;
}

/* Moves to the end of the word at p. @return its classes. */
static unsigned walk_word(walk *k) {
    unsigned classes = walk_ascii(k);
    while (k->p < k->end && !is_ascii_space((unsigned char)*k->p)) {
        uint32_t cp;
        int n = utf8_decode(k->p, &cp);
        unsigned class = unicode_class(cp);
        if (class & CLASS_SPACE) break;
        k->s->letters += (class & (CLASS_LETTER | CLASS_MARK)) != 0;
        if (cp == '#') class |= HAS_HASH;
        if (cp == '.' || cp == 0x2026) class |= HAS_DOT;
        classes |= class;
        k->extra += n - 1;
        k->p += n;
    }
    return classes;
}

static void begin_line(walk *k) {
    scan *s = k->s;
    reserve_lines(s);
    k->line = &s->lines[s->n_lines++];
    *k->line = (scan_line){ .at = (uint32_t)(k->p - s->text.at), .paragraph = k->blank };
    k->line_extra = k->extra;
    k->blank = false;
}

static void scan_word(walk *k) {
    scan *s = k->s;
    reserve_words(s);
    if (!k->line) begin_line(k);
    const char *at = k->p;
    int64_t extra = k->extra;
    unsigned classes = walk_word(k);
    size_t n = (size_t)(k->p - at);
    uint32_t chars = (uint32_t)((int64_t)n - (k->extra - extra));
    s->hash[s->words] = word_hash(at, n);
    s->word_chars[s->words + 1] = s->word_chars[s->words] + chars;
    s->words++;
    if (classes & CLASS_LETTER) s->letter_words++;
    if (classes & (CLASS_LETTER | CLASS_NUMBER | CLASS_MARK))
        s->solid_words++, s->solid_word_chars += chars;
    if (classes & HAS_HASH) s->hashes += count_byte(at, n, '#');
    if (classes & HAS_DOT) s->ellipses += count_ellipses(at, n);
    if (n <= 8 && s->stop_words != ALL_STOP_WORDS) s->stop_words |= stop_word_bit(at, n);
    scan_line *line = k->line;
    line->words++;
    line->longest_word = MAX(line->longest_word, chars);
    line->bytes = (uint32_t)(k->p - s->text.at) - line->at;
    line->chars = (uint32_t)((int64_t)line->bytes - (k->extra - k->line_extra));
}

static void end_line(walk *k) {
    k->s->newlines++;
    if (!k->line) k->blank = true;
    k->line = NULL;
}

/* Skips white space. */
static void walk_space(walk *k) {
    while (k->p < k->end) {
        unsigned char c = (unsigned char)*k->p;
        int n = 1;
        if (c >= 128) {
            uint32_t cp;
            n = utf8_decode(k->p, &cp);
            if (!(unicode_class(cp) & CLASS_SPACE)) return;
        } else if (!is_ascii_space(c)) {
            return;
        }
        if (c == '\n') end_line(k);
        k->extra += n - 1;
        k->p += n;
    }
}

void scan_text(scan *s, text_span text) {
    scan fresh = { .text = text,
                   .hash = s->hash,
                   .word_chars = s->word_chars,
                   .lines = s->lines,
                   .words_capacity = s->words_capacity,
                   .lines_capacity = s->lines_capacity };
    *s = fresh;
    reserve_words(s);
    s->word_chars[0] = 0;
    walk k = { .s = s, .p = text.at, .end = text.at + text.len, .blank = true };
    for (walk_space(&k); k.p < k.end; walk_space(&k)) scan_word(&k);
    s->chars = (int64_t)text.len - k.extra;
    s->all_lines = s->newlines + (text.len > 0 && text.at[text.len - 1] != '\n');
}

void scan_free(scan *s) {
    free(s->hash);
    free(s->word_chars);
    free(s->lines);
}
