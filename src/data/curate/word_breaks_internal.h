/* Properties of code points for Unicode's word breaks: word_break_table.c, which a script writes, has them. */
#ifndef INGOT_WORD_BREAKS_INTERNAL_H
#define INGOT_WORD_BREAKS_INTERNAL_H

#include "util/util.h"

/* Values of Word_Break, by their names in the standard. */
typedef enum {
    WB_OTHER,
    WB_NEWLINE,
    WB_CR,
    WB_LF,
    WB_EXTEND,
    WB_ZWJ,
    WB_FORMAT,
    WB_REGIONAL_INDICATOR,
    WB_KATAKANA,
    WB_HEBREW_LETTER,
    WB_ALETTER,
    WB_SINGLE_QUOTE,
    WB_DOUBLE_QUOTE,
    WB_MIDNUMLET,
    WB_MIDLETTER,
    WB_MIDNUM,
    WB_NUMERIC,
    WB_EXTENDNUMLET,
} word_break_class;

typedef struct word_break_range {
    uint32_t first, last;
    word_break_class class;
} word_break_range;

/* Ascending: the classes, pictographs, and the scripts that are written without spaces. */
extern const word_break_range word_break_classes[];
extern const uint32_t word_break_pictographs[][2], word_break_dictionary[][2];
extern const size_t word_break_class_count, word_break_pictographs_count,
    word_break_dictionary_count;

#endif
