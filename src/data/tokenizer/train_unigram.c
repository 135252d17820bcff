/* Training a Unigram model: the rounds of EM and pruning, and the vocabulary of what is learned. */
#include <stdlib.h>

#include "tokenizer/train_unigram.h"

enum {
    SEEDS = 1000000, /* pieces to begin with */
    ROUNDS = 2,      /* of EM between prunings */
};

/* ---- learning ---------------------------------------------------------------------------------------- */

static void learn_pieces(unigram_lattice *l, uint32_t wanted, pool *threads,
                         train_progress *progress) {
    uint32_t enough = (uint32_t)((uint64_t)wanted * 11 / 10); /* the last choice is by score */
    for (;;) {
        for (int i = 0; i < ROUNDS; i++) unigram_improve(l, threads);
        train_progress_show(progress, "learning: %u pieces, %u wanted", l->n, wanted);
        if (l->n <= enough) break;
        uint32_t before = l->n;
        unigram_prune(l, enough, threads);
        if (l->n == before) break; /* characters alone are more */
    }
}

static uint32_t chars_of(const unigram_lattice *l) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n; i++) n += l->pieces[i].chars == 1;
    return n;
}

static void piece_text(const unigram_lattice *l, const learned_piece *p, str *out) {
    out->len = 0;
    for (uint32_t i = 0; i < p->chars; i++) {
        char bytes[4];
        int n = utf8_encode(l->words->text[p->at + i] - 1, bytes);
        str_add_bytes(out, bytes, (size_t)n);
    }
}

/* Characters first, then by score; of equals the one that was better as a seed, which is the order they are in. */
typedef struct ranked_piece {
    const learned_piece *piece;
    uint32_t order;
} ranked_piece;

static int compare_ranked(const void *a, const void *b) {
    const ranked_piece *x = a, *y = b;
    if (x->piece->score != y->piece->score) return x->piece->score > y->piece->score ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

/* The pieces of the vocabulary, in order of their scores. @return owned. */
static ranked_piece *choose_pieces(const unigram_lattice *l, uint32_t wanted, uint32_t *n) {
    ranked_piece *all = mem_alloc(((size_t)l->n + 1) * sizeof *all);
    uint32_t chars = chars_of(l), longer = 0;
    *n = 0;
    for (uint32_t i = 0; i < l->n; i++) all[i] = (ranked_piece){ &l->pieces[i], i };
    sort_array(all, l->n, sizeof *all, compare_ranked);
    for (uint32_t i = 0; i < l->n; i++) {
        bool single = all[i].piece->chars == 1;
        if (!single && longer >= wanted - MIN(wanted, chars)) continue;
        longer += !single;
        all[(*n)++] = all[i];
    }
    return all;
}

/* ---- the vocabulary ------------------------------------------------------------------------------------ */

static void add_scored(json_t *vocab, const char *text, double score) {
    json_array_append_new(vocab, json_pack("[s, f]", text, score));
}

static json_t *scored_vocabulary(const unigram_lattice *l, const tokenizer_options *o,
                                 uint32_t wanted) {
    json_t *vocab = json_array();
    str text = { 0 };
    uint32_t n;
    ranked_piece *chosen = choose_pieces(l, wanted, &n);
    for (int i = 0; i < o->n_special; i++) add_scored(vocab, o->special[i], 0);
    for (int i = 0; o->byte_fallback && i < 256; i++) {
        text.len = 0;
        str_add(&text, "<0x%02X>", i);
        add_scored(vocab, text.text, 0);
    }
    for (uint32_t i = 0; i < n; i++) {
        piece_text(l, chosen[i].piece, &text);
        if (is_reserved_text(o, text.text, text.len)) continue;
        json_array_append_new(
            vocab, json_pack("[o, f]", json_stringn(text.text, text.len), chosen[i].piece->score));
    }
    free(chosen);
    str_free(&text);
    return vocab;
}

static void report_pieces(const unigram_words *w, const tokenizer *t, const tokenizer_options *o,
                          double seconds) {
    char time[32];
    if (!o->quiet)
        log_info("learned %lld tokens: %s", (long long)tokenizer_vocab(t),
                 str_duration(time, sizeof time, seconds));
    if (!o->quiet) report_uncovered(w->uncovered, o);
    if (w->left_out)
        log_warn("%lld rare words were left out, to stay inside the memory cap",
                 (long long)w->left_out);
    if (tokenizer_vocab(t) < o->vocab)
        log_warn("the text has no more pieces that help: %lld ids were made, not %lld",
                 (long long)tokenizer_vocab(t), (long long)o->vocab);
}

err unigram_learn(word_counts *counts, const tokenizer_options *o, train_progress *progress,
                  tokenizer **out) {
    unigram_words w;
    unigram_lattice l = { 0 };
    double begin = time_now();
    pool *threads = NULL;
    uint32_t wanted = (uint32_t)(o->vocab - o->n_special - (o->byte_fallback ? 256 : 0));
    err e = OK;
    TRY_CLEAN(unigram_words_fill(&w, counts, o->coverage, o->memory));
    threads = pool_new(o->threads);
    if (w.n_words == 0) {
        e = err_hint(ERR("no words to learn from fit in the memory cap"),
                     "raise --memory, or check that the text has spaces");
        goto cleanup;
    }
    unigram_seed(&w, SEEDS, threads, &l);
    if (chars_of(&l) > wanted) {
        e = too_many_chars(o, chars_of(&l));
        goto cleanup;
    }
    learn_pieces(&l, wanted, threads, progress);
    train_progress_end(progress);
    TRY_CLEAN(metaspace_tokenizer(json_pack("{s:s, s:i, s:o, s:b}", "type", "Unigram", "unk_id", 0,
                                            "vocab", scored_vocabulary(&l, o, wanted),
                                            "byte_fallback", o->byte_fallback),
                                  o, out));
    report_pieces(&w, *out, o, time_now() - begin);
cleanup:
    pool_free(threads);
    unigram_lattice_free(&l);
    unigram_words_free(&w);
    return e;
}
