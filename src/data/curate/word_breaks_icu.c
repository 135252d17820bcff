/* Words of scripts that are written without spaces, by the dictionaries of ICU. */
#include "curate/word_rules_internal.h"

#include <stdlib.h>
#include <unicode/ubrk.h>
#include <unicode/utext.h>

struct dictionary_breaks {
    UBreakIterator *breaks;
    UText *text; /* of the run being split */
};

dictionary_breaks *dictionary_breaks_new(void) {
    UErrorCode code = U_ZERO_ERROR;
    UBreakIterator *breaks = ubrk_open(UBRK_WORD, "root", NULL, 0, &code);
    if (U_FAILURE(code)) return NULL; /* without its data */
    dictionary_breaks *d = mem_alloc(sizeof *d);
    d->breaks = breaks;
    return d;
}

void dictionary_breaks_free(dictionary_breaks *d) {
    if (!d) return;
    ubrk_close(d->breaks);
    if (d->text) utext_close(d->text);
    free(d);
}

size_t dictionary_breaks_split(dictionary_breaks *d, const char *run, size_t n, uint32_t *bytes) {
    UErrorCode code = U_ZERO_ERROR;
    d->text = utext_openUTF8(d->text, run, (int64_t)n, &code);
    ubrk_setUText(d->breaks, d->text, &code);
    size_t words = 0;
    int32_t from = 0;
    for (int32_t to; U_SUCCESS(code) && (to = ubrk_next(d->breaks)) != UBRK_DONE; from = to)
        if (to > from) bytes[words++] = (uint32_t)(to - from);
    if ((size_t)from < n) bytes[words++] = (uint32_t)(n - (size_t)from);
    return words;
}
