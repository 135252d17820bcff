/* Without ICU, scripts that are written without spaces have no dictionary: word_breaks.c defines words then. */
#include "curate/word_rules_internal.h"

dictionary_breaks *dictionary_breaks_new(void) { return NULL; }
void dictionary_breaks_free(dictionary_breaks *d) {}
size_t dictionary_breaks_split(dictionary_breaks *d, const char *run, size_t n, uint32_t *bytes) {
    BUG_IF(true);
    return 0;
}
