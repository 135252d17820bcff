/* Training a Unigram model: the rounds of EM and pruning, and the tokenizer.json of what is learned. */
#include <stdlib.h>
#include <string.h>

#include "io/io.h"
#include "tokenizer/train_unigram.h"

enum {
    SEEDS = 1000000, /* pieces to begin with */
    ROUNDS = 2,      /* of EM between prunings */
};
#define SPACE_MARK "\xE2\x96\x81" /* U+2581 */

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

/* ---- the document -------------------------------------------------------------------------------------- */

static json_t *added_special(const tokenizer_options *o) {
    json_t *all = json_array();
    for (int i = 0; i < o->n_special; i++)
        json_array_append_new(all, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", i,
                                             "content", o->special[i], "single_word", 0, "lstrip",
                                             0, "rstrip", 0, "normalized", 0, "special", 1));
    return all;
}

const char *metaspace_name(metaspace_prepend p) {
    static const char *const names[] = { [METASPACE_OFF] = "off",
                                         [METASPACE_ALWAYS] = "always",
                                         [METASPACE_FIRST] = "first",
                                         [METASPACE_NEVER] = "never" };
    return names[p];
}

static json_t *metaspace_step(metaspace_prepend prepend) {
    return json_pack("{s:s, s:s, s:s, s:b}", "type", "Metaspace", "replacement", SPACE_MARK,
                     "prepend_scheme", metaspace_name(prepend), "split", 1);
}

/* Metaspace's own decoder does not join bytes to characters. */
static json_t *metaspace_decoder(const tokenizer_options *o) {
    if (!o->byte_fallback) return metaspace_step(o->metaspace);
    json_t *steps =
        json_pack("[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}]", "type", "Replace", "pattern", "String",
                  SPACE_MARK, "content", " ", "type", "ByteFallback", "type", "Fuse");
    if (o->metaspace != METASPACE_NEVER)
        json_array_append_new(steps, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content",
                                               " ", "start", 1, "stop", 0));
    return json_pack("{s:s, s:o}", "type", "Sequence", "decoders", steps);
}

static void add_scored(json_t *vocab, const char *text, double score) {
    json_array_append_new(vocab, json_pack("[s, f]", text, score));
}

/* Whether text that was learned has the name of a special token or a byte, which have ids of their own. */
static bool is_reserved(const tokenizer_options *o, const str *text) {
    for (int i = 0; i < o->n_special; i++)
        if (strlen(o->special[i]) == text->len && memcmp(o->special[i], text->text, text->len) == 0)
            return true;
    return o->byte_fallback && text->len == 6 && memcmp(text->text, "<0x", 3) == 0 &&
           text->text[5] == '>';
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
        if (is_reserved(o, &text)) continue;
        json_array_append_new(
            vocab, json_pack("[o, f]", json_stringn(text.text, text.len), chosen[i].piece->score));
    }
    free(chosen);
    str_free(&text);
    return vocab;
}

static err make_tokenizer(const unigram_lattice *l, const tokenizer_options *o, uint32_t wanted,
                          tokenizer **out) {
    norm_step norms[MAX_STEPS] = { 0 };
    int n_norms = 0;
    TRY(norms_parse(o->normalize, norms, &n_norms));
    json_t *doc = json_pack(
        "{s:s, s:n, s:n, s:o, s:o, s:o, s:n, s:o, s:{s:s, s:i, s:o, s:b}}", "version", "1.0",
        "truncation", "padding", "added_tokens", added_special(o), "normalizer",
        norms_json(norms, n_norms), "pre_tokenizer", metaspace_step(o->metaspace), "post_processor",
        "decoder", metaspace_decoder(o), "model", "type", "Unigram", "unk_id", 0, "vocab",
        scored_vocabulary(l, o, wanted), "byte_fallback", o->byte_fallback);
    BUG_IF(!doc);
    char *source = json_dumps(doc, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17));
    BUG_IF(!source);
    err e = tokenizer_from_json(doc, "what was learned", source, strlen(source), out);
    json_decref(doc);
    return e;
}

static void report_pieces(const unigram_words *w, const tokenizer *t, const tokenizer_options *o,
                          double seconds) {
    char time[32];
    if (!o->quiet)
        log_info("learned %lld tokens: %s", (long long)tokenizer_vocab(t),
                 str_duration(time, sizeof time, seconds));
    if (!o->quiet && w->uncovered)
        log_info("%lld rare characters have no token of their own: %s", (long long)w->uncovered,
                 o->byte_fallback ? "they become bytes" : "they become the unknown token");
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
        e = err_hint(
            ERR("a vocabulary of %lld ids is too small: the text has %u characters to "
                "begin with",
                (long long)o->vocab, chars_of(&l)),
            "raise --vocab, or lower --coverage, the share of the text whose characters get "
            "tokens");
        goto cleanup;
    }
    learn_pieces(&l, wanted, threads, progress);
    train_progress_end(progress);
    TRY_CLEAN(make_tokenizer(&l, o, wanted, out));
    report_pieces(&w, *out, o, time_now() - begin);
cleanup:
    pool_free(threads);
    unigram_lattice_free(&l);
    unigram_words_free(&w);
    return e;
}
