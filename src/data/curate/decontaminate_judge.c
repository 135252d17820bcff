/* Which hits of a document are evidence. An n-gram in many documents may be boilerplate: an instruction that precedes
 * every question, a phrase of the law. It may also be part of a question that was copied many times. What tells them
 * apart is how much of the reference is there: an n-gram counts, however common it is, if the document has at least
 * half of the n-grams of a reference text with it. Texts that are searched for as sentences are too short for this rule:
 * "He went home." is a whole one. */
#include "curate/decontaminate_internal.h"

#include <stdlib.h>

enum { MOST_TEXTS = 64 }; /* of one n-gram that are looked at */

static void reserve_hits(const decontaminate *d, int n, hit_judge *j) {
    if (!j->counts) j->counts = mem_alloc(((size_t)d->refs->n_texts + 1) * sizeof *j->counts);
    if (n <= j->cap) return;
    j->cap = n * 2;
    j->ignored = mem_grow(j->ignored, (size_t)j->cap * sizeof *j->ignored);
    j->grams = mem_grow(j->grams, (size_t)j->cap * sizeof *j->grams);
}

/* Adds to the count of each text that has the n-gram. */
static void count_texts(const refs *r, uint32_t gram, hit_judge *j, bool clear) {
    uint32_t at = gram + 1;
    for (int i = 0; i < MOST_TEXTS && at; i++, at = r->grams[at - 1].next) {
        uint32_t *count = &j->counts[r->grams[at - 1].text];
        *count = clear ? 0 : *count + 1;
    }
}

static bool is_half_there(const refs *r, uint32_t gram, const hit_judge *j) {
    uint32_t at = gram + 1;
    for (int i = 0; i < MOST_TEXTS && at; i++, at = r->grams[at - 1].next) {
        uint32_t text = r->grams[at - 1].text;
        const ref_text *t = &r->texts[text];
        if (!t->sentence && 2 * (uint64_t)j->counts[text] >= t->grams) return true;
    }
    return false;
}

void decontaminate_judge_hits(const decontaminate *d, const ref_hits *hits, hit_judge *j) {
    bool any = false;
    int different = 0;
    reserve_hits(d, hits->n, j);
    for (int i = 0; i < hits->n; i++) {
        j->grams[i] = hits->at[i].gram;
        j->ignored[i] = ngram_is_common(d, hits->at[i].gram);
        any |= j->ignored[i];
    }
    if (!any) return;
    sort_array(j->grams, (size_t)hits->n, sizeof *j->grams, compare_uint32);
    for (int i = 0; i < hits->n; i++)
        if (i == 0 || j->grams[i] != j->grams[different - 1]) j->grams[different++] = j->grams[i];
    for (int i = 0; i < different; i++) count_texts(d->refs, j->grams[i], j, false);
    for (int i = 0; i < hits->n; i++)
        j->ignored[i] = j->ignored[i] && !is_half_there(d->refs, hits->at[i].gram, j);
    for (int i = 0; i < different; i++) count_texts(d->refs, j->grams[i], j, true);
}

void hit_judge_free(hit_judge *j) {
    free(j->ignored);
    free(j->grams);
    free(j->counts);
}
