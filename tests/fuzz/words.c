/* Any bytes as text, split into words by the rules of one language after another: all bytes are in words, and no
 * character is split. */
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "curate/word_rules.h"
#include "text/text.h"

static void split_chunk(const word_rules *w, word_scratch *s, const char *chunk, size_t n) {
    size_t words, at = 0;
    const uint32_t *bytes = word_rules_split(w, s, chunk, n, &words);
    for (size_t i = 0; i < words; at += bytes[i++])
        if (!bytes[i] || ((unsigned char)chunk[at] & 0xC0) == 0x80) abort();
    if (at != n) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const char *const languages[] = { "en", "fr", "de", "hu", "tr", "id", "hi", "ur",
                                             "be", "zh", "th", "el", "ro", "ka", "sv", "pl" };
    static word_tables *tables; /* compiled once for all inputs */
    static word_scratch *scratch;
    if (!tables) tables = word_tables_new(), scratch = word_scratch_new();
    if (n < 2) return 0;
    const word_rules *w = word_tables_get(
        tables,
        word_tables_find(tables, languages[data[0] % (sizeof languages / sizeof *languages)]));
    char *text = malloc(n);
    memcpy(text, data + 1, n - 1);
    text[n - 1] = 0;
    for (size_t at = 0; at < n - 1;) {
        size_t end = at, valid = utf8_valid(text + at, n - 1 - at);
        while (end < at + valid && !strchr(" \t\n\v\f\r", text[end])) end++;
        if (end > at) split_chunk(w, scratch, text + at, end - at);
        if (word_rules_have_sentences(w)) word_rules_sentences(w, scratch, text + at, valid);
        at = end + 1;
    }
    free(text);
    return 0;
}
