/* Rule sets that only compare counts of the scan with limits: Gopher quality, FineWeb, basic.
 * Also the table of sentence terminals. */
#include "curate/filter_internal.h"

#include <string.h>

/* Unicode 16's Sentence_Terminal, in order. */
/* clang-format off */
static const uint32_t terminal[][2] = {
    { 0x21, 0x21 }, { 0x2E, 0x2E }, { 0x3F, 0x3F }, { 0x589, 0x589 }, { 0x61D, 0x61F },
    { 0x6D4, 0x6D4 }, { 0x700, 0x702 }, { 0x7F9, 0x7F9 }, { 0x837, 0x837 }, { 0x839, 0x839 },
    { 0x83D, 0x83E }, { 0x964, 0x965 }, { 0x104A, 0x104B }, { 0x1362, 0x1362 },
    { 0x1367, 0x1368 }, { 0x166E, 0x166E }, { 0x1735, 0x1736 }, { 0x17D4, 0x17D5 },
    { 0x1803, 0x1803 }, { 0x1809, 0x1809 }, { 0x1944, 0x1945 }, { 0x1AA8, 0x1AAB },
    { 0x1B4E, 0x1B4F }, { 0x1B5A, 0x1B5B }, { 0x1B5E, 0x1B5F }, { 0x1B7D, 0x1B7F },
    { 0x1C3B, 0x1C3C }, { 0x1C7E, 0x1C7F }, { 0x2024, 0x2024 }, { 0x203C, 0x203D },
    { 0x2047, 0x2049 }, { 0x2CF9, 0x2CFB }, { 0x2E2E, 0x2E2E }, { 0x2E3C, 0x2E3C },
    { 0x2E53, 0x2E54 }, { 0x3002, 0x3002 }, { 0xA4FF, 0xA4FF }, { 0xA60E, 0xA60F },
    { 0xA6F3, 0xA6F3 }, { 0xA6F7, 0xA6F7 }, { 0xA876, 0xA877 }, { 0xA8CE, 0xA8CF },
    { 0xA92F, 0xA92F }, { 0xA9C8, 0xA9C9 }, { 0xAA5D, 0xAA5F }, { 0xAAF0, 0xAAF1 },
    { 0xABEB, 0xABEB }, { 0xFE12, 0xFE12 }, { 0xFE15, 0xFE16 }, { 0xFE52, 0xFE52 },
    { 0xFE56, 0xFE57 }, { 0xFF01, 0xFF01 }, { 0xFF0E, 0xFF0E }, { 0xFF1F, 0xFF1F },
    { 0xFF61, 0xFF61 }, { 0x10A56, 0x10A57 }, { 0x10F55, 0x10F59 }, { 0x10F86, 0x10F89 },
    { 0x11047, 0x11048 }, { 0x110BE, 0x110C1 }, { 0x11141, 0x11143 }, { 0x111C5, 0x111C6 },
    { 0x111CD, 0x111CD }, { 0x111DE, 0x111DF }, { 0x11238, 0x11239 }, { 0x1123B, 0x1123C },
    { 0x112A9, 0x112A9 }, { 0x113D4, 0x113D5 }, { 0x1144B, 0x1144C }, { 0x115C2, 0x115C3 },
    { 0x115C9, 0x115D7 }, { 0x11641, 0x11642 }, { 0x1173C, 0x1173E }, { 0x11944, 0x11944 },
    { 0x11946, 0x11946 }, { 0x11A42, 0x11A43 }, { 0x11A9B, 0x11A9C }, { 0x11C41, 0x11C42 },
    { 0x11EF7, 0x11EF8 }, { 0x11F43, 0x11F44 }, { 0x16A6E, 0x16A6F }, { 0x16AF5, 0x16AF5 },
    { 0x16B37, 0x16B38 }, { 0x16B44, 0x16B44 }, { 0x16D6E, 0x16D6F }, { 0x16E98, 0x16E98 },
    { 0x1BC9F, 0x1BC9F }, { 0x1DA88, 0x1DA88 },
};
/* clang-format on */

bool filter_is_terminal(uint32_t cp) {
    if (cp < 0x80) return cp == '.' || cp == '!' || cp == '?';
    size_t low = 0, high = COUNT_OF(terminal);
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (cp > terminal[middle][1])
            low = middle + 1;
        else
            high = middle;
    }
    return low < COUNT_OF(terminal) && cp >= terminal[low][0];
}

bool filter_ends_in_ellipsis(text_span line) {
    if (line.len < 3) return false;
    const char *end = line.at + line.len - 3;
    return memcmp(end, "...", 3) == 0 || memcmp(end, "\xE2\x80\xA6", 3) == 0;
}

static bool begins_with_bullet(text_span line) {
    return line.at[0] == '-' || (line.len >= 3 && memcmp(line.at, "\xE2\x80\xA2", 3) == 0);
}

/* Counts of lines by how they begin and end. */
typedef struct line_counts {
    int64_t bullets, ellipses, terminal, few_chars;
} line_counts;

static line_counts count_lines(const scan *s, double few) {
    line_counts c = { 0 };
    for (int64_t i = 0; i < s->n_lines; i++) {
        text_span line = { s->text.at + s->lines[i].at, s->lines[i].bytes };
        c.bullets += begins_with_bullet(line);
        c.ellipses += filter_ends_in_ellipsis(line);
        c.terminal += filter_is_terminal(last_code_point(line));
        c.few_chars += s->lines[i].chars <= few;
    }
    return c;
}

bool filter_gopher_quality(judgment *j) {
    const scan *s = judgment_scan(j);
    double words = (double)s->words, solid = (double)s->solid_words;
    double length = safe_ratio((double)s->solid_word_chars, solid);
    if (judgment_fails(j, FILTER_gopher_min_words, solid) ||
        judgment_fails(j, FILTER_gopher_max_words, solid) ||
        judgment_fails(j, FILTER_gopher_min_length, length) ||
        judgment_fails(j, FILTER_gopher_max_length, length) ||
        judgment_fails(j, FILTER_gopher_hashes, safe_ratio((double)s->hashes, words)) ||
        judgment_fails(j, FILTER_gopher_ellipses, safe_ratio((double)s->ellipses, words)))
        return true;
    line_counts c = count_lines(s, 0);
    double lines = (double)s->all_lines;
    return judgment_fails(j, FILTER_gopher_bullets, safe_ratio((double)c.bullets, lines)) ||
           judgment_fails(j, FILTER_gopher_line_ellipses, safe_ratio((double)c.ellipses, lines)) ||
           judgment_fails(j, FILTER_gopher_letters, safe_ratio((double)s->letter_words, words)) ||
           judgment_fails(j, FILTER_gopher_stop_words, __builtin_popcount(s->stop_words));
}

bool filter_fineweb(judgment *j) {
    const scan *s = judgment_scan(j);
    line_counts c = count_lines(s, j->f->o.setting[SETTING_short_line]);
    double lines = (double)s->n_lines;
    if (judgment_fails(j, FILTER_fineweb_ends, safe_ratio((double)c.terminal, lines)) ||
        judgment_fails(j, FILTER_fineweb_short, safe_ratio((double)c.few_chars, lines)))
        return true;
    double repeated = (double)filter_repeated_lines(j->w, s).chars;
    return judgment_fails(j, FILTER_fineweb_repeats,
                          safe_ratio(repeated, (double)(s->chars - s->newlines))) ||
           judgment_fails(j, FILTER_fineweb_newlines,
                          safe_ratio((double)s->newlines, (double)s->words));
}

bool filter_basic(judgment *j) {
    const scan *s = judgment_scan(j);
    double words = (double)s->words;
    return judgment_fails(j, FILTER_basic_min_words, words) ||
           judgment_fails(j, FILTER_basic_max_words, words) ||
           judgment_fails(j, FILTER_basic_length,
                          safe_ratio((double)s->word_chars[s->words], words)) ||
           judgment_fails(j, FILTER_basic_symbols,
                          safe_ratio((double)(s->hashes + s->ellipses), words)) ||
           judgment_fails(j, FILTER_basic_letters,
                          safe_ratio((double)s->letters, (double)s->chars));
}
