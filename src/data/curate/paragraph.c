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

/* Adds a word to the n-grams. As in Dolma, n-grams begin at the first two words, and then `stride` words apart. */
static void push_gram_word(paragraph_grams *g, uint64_t word, size_t number, uint64_list *out) {
    uint64_t *slot = &g->last[number % (size_t)g->roll.n];
    rolling_ngram_push(&g->roll, word, *slot);
    *slot = word;
    if (g->roll.have < g->roll.n) return;
    size_t begin = number + 1 - (size_t)g->roll.n;
    if (g->begin && begin - g->begin < (size_t)g->stride) return;
    g->begin = begin;
    g->n++;
    uint64_list_add(out, hash_mix(g->roll.sum));
}

paragraph_items paragraph_keys(const normalizer *t, text_span text, const paragraph_rule *rule,
                               uint64_list *out) {
    enum { WHOLE_SALT = 0x5D }; /* a whole paragraph is not equal to an n-gram of the same words */
    normalized_word words[256];
    size_t at = 0, got, count = 0;
    uint64_t sum = 0;
    int first = out->n;
    paragraph_grams g = { .stride = rule->stride };
    if (rule->ngram) g.roll = rolling_ngram_new(rule->ngram);
    while ((got = normalizer_next_words(t, text, &at, words, COUNT_OF(words))) > 0)
        for (size_t i = 0; i < got; i++, count++) {
            sum = sum * NGRAM_BASE + words[i].hash;
            if (rule->ngram) push_gram_word(&g, words[i].hash, count, out);
        }
    if (count < (size_t)rule->least) {
        out->n = first;
        return (paragraph_items){ 0 };
    }
    if (g.n < 2) uint64_list_add(out, hash_mix(sum) ^ (rule->ngram ? WHOLE_SALT : 0));
    return (paragraph_items){ .n = out->n - first, .whole = g.n < 2 };
}
