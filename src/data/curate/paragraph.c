/* Paragraphs of a text and their keys, for deduplication by paragraph: see dedup_internal.h. */
#include "curate/dedup_internal.h"

/* @return the end of the blank that begins with the line end at `at`: after the last line end
 * within the white space. *breaks: its number of line ends. */
static size_t blank_end(text_span text, size_t at, int *breaks) {
    size_t end = at;
    *breaks = 0;
    for (; at < text.len; at++) {
        char c = text.at[at];
        if (c != ' ' && c != '\t' && c != '\r' && c != '\n') break;
        if (c != '\n') continue;
        end = at + 1;
        (*breaks)++;
    }
    return end;
}

bool paragraph_next(text_span text, bool lines, size_t *at, paragraph *out) {
    size_t begin = *at, from = begin;
    if (begin >= text.len) return false;
    for (;;) {
        const char *stop = memchr(text.at + from, '\n', text.len - from);
        if (!stop) {
            *at = text.len;
            *out = (paragraph){ { text.at + begin, text.len - begin }, text.len };
            return true;
        }
        int breaks;
        size_t end = (size_t)(stop - text.at), next = blank_end(text, end, &breaks);
        if (lines || breaks > 1 || next == text.len) {
            *at = next;
            *out = (paragraph){ { text.at + begin, end - begin }, next };
            return true;
        }
        from = next;
    }
}

bool paragraph_key(const normalizer *t, text_span text, int least, uint64_t *key) {
    normalized_word words[256];
    size_t at = 0, got, count = 0;
    uint64_t sum = 0;
    while ((got = normalizer_next_words(t, text, &at, words, COUNT_OF(words))) > 0) {
        for (size_t i = 0; i < got; i++) sum = sum * NGRAM_BASE + words[i].hash;
        count += got;
    }
    *key = hash_mix(sum);
    return count >= (size_t)least;
}
