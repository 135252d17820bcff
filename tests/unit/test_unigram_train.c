/* Unigram training: seeds against a plain count of substrings, a round of EM against all ways to write a word, the same
 * file from any number of threads and on every machine, and text that comes back. */
#include <math.h>

#include "support/tokenizer.h"

#include "shards/data.h"
#include "tokenizer/train_unigram.h"

#define MARK "\xE2\x96\x81"

typedef struct sample_word {
    const char *text;
    uint64_t count;
} sample_word;
static const sample_word WORDS[] = { { "banana", 3 },  { "bandana", 2 }, { "ananas", 1 },
                                     { "nab", 5 },     { "once", 1 },    { "caf\xC3\xA9", 4 },
                                     { "bananas", 2 }, { "a", 9 } };

static unigram_words words_of(const sample_word *list, size_t n, double coverage) {
    word_counts *c = word_counts_new(1 << 20, 1);
    unigram_words w;
    for (size_t i = 0; i < n; i++)
        assert_ok(word_counts_add(c, 0, list[i].text, strlen(list[i].text), list[i].count));
    assert_ok(word_counts_seal(c));
    assert_ok(unigram_words_fill(&w, c, coverage, 1 << 26));
    word_counts_free(c);
    return w;
}

static void text_of(const unigram_words *w, uint32_t at, uint32_t chars, str *out) {
    out->len = 0;
    for (uint32_t i = 0; i < chars; i++) {
        char bytes[4];
        int n = utf8_encode(w->text[at + i] - 1, bytes);
        str_add_bytes(out, bytes, (size_t)n);
    }
}

/* How often a text occurs in the words. */
static uint64_t occurrences(const char *text) {
    uint64_t n = 0;
    for (size_t i = 0; i < COUNT_OF(WORDS); i++)
        for (const char *p = WORDS[i].text; (p = strstr(p, text)); p++) n += WORDS[i].count;
    return n;
}

static void seeds_are_the_repeated_substrings(void **state) {
    unigram_words w = words_of(WORDS, COUNT_OF(WORDS), 1);
    unigram_lattice l;
    str text = { 0 };
    unigram_seed(&w, 1000, NULL, &l);
    uint64_t *seen = calloc(l.n, sizeof *seen);
    for (uint32_t at = 0; at < w.n; at++)
        for (uint32_t k = l.first[at]; k < l.first[at + 1]; k++) {
            uint32_t m = l.matches[k];
            assert_int_equal(match_chars(m), l.pieces[match_piece(m)].chars);
            assert_true(k == l.first[at] || match_chars(m) > match_chars(l.matches[k - 1]));
            seen[match_piece(m)] += w.count[w.word[at]];
        }
    static const char *const wanted[] = { "an", "ana", "banana", "nab", "caf\xC3\xA9", "ban" };
    bool found[COUNT_OF(wanted)] = { 0 };
    for (uint32_t i = 0; i < l.n; i++) {
        text_of(&w, l.pieces[i].at, l.pieces[i].chars, &text);
        assert_int_equal(seen[i], occurrences(text.text));
        assert_true(l.pieces[i].chars == 1 || seen[i] >= 2);
        for (size_t k = 0; k < COUNT_OF(wanted); k++) found[k] |= strcmp(text.text, wanted[k]) == 0;
        /* "once" was seen once, and "cafe" is always the whole word */
        assert_true(strcmp(text.text, "once") != 0 && strcmp(text.text, "caf") != 0);
    }
    for (size_t k = 0; k < COUNT_OF(wanted); k++) assert_true(found[k]);
    free(seen);
    str_free(&text);
    unigram_lattice_free(&l);
    unigram_words_free(&w);
}

/* Sums over all ways to write a word from position `at`. @return their probability. */
static double all_paths(const unigram_lattice *l, uint32_t at, uint32_t end, double before,
                        double weight, double *expected) {
    if (at == end) return 1;
    double sum = 0;
    for (uint32_t k = l->first[at]; k < l->first[at + 1]; k++) {
        uint32_t m = l->matches[k];
        double p = l->pieces[match_piece(m)].share;
        double rest = p * all_paths(l, at + match_chars(m), end, before * p, weight, expected);
        expected[match_piece(m)] += weight * before * rest;
        sum += rest;
    }
    return sum;
}

static void a_round_is_that_of_all_paths(void **state) {
    unigram_words w = words_of(WORDS, COUNT_OF(WORDS), 1);
    unigram_lattice l;
    unigram_seed(&w, 1000, NULL, &l);
    double *expected = calloc(l.n, sizeof *expected), *ignored = calloc(l.n, sizeof *ignored);
    for (uint32_t i = 0; i < w.n_words; i++) {
        uint32_t begin = w.first[i], end = w.first[i + 1] - 1;
        double all = all_paths(&l, begin, end, 1, 0, ignored);
        all_paths(&l, begin, end, 1, (double)w.count[i] / all, expected);
    }
    uint32_t n = 0, first = UINT32_MAX;
    for (uint32_t i = 0; i < l.n; i++) {
        if (expected[i] < 0.5 && l.pieces[i].chars > 1) continue;
        if (first == UINT32_MAX) first = i;
        expected[n++] = MAX(expected[i], 0.5);
    }
    unigram_improve(&l, NULL);
    assert_int_equal(l.n, n);
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += expected[i];
    for (uint32_t i = 0; i < n; i++) {
        /* digamma, as a difference of lgamma */
        double h = 1e-5, x = expected[i], psi = (lgamma(x + h) - lgamma(x - h)) / (2 * h);
        double all = (lgamma(sum + h) - lgamma(sum - h)) / (2 * h);
        assert_true(fabs(l.pieces[i].score - (psi - all)) < 1e-4);
        assert_true(fabs(exp(l.pieces[i].score) - l.pieces[i].share) < 1e-12);
    }
    free(expected);
    free(ignored);
    unigram_lattice_free(&l);
    unigram_words_free(&w);
}

static void logarithms_are_right(void **state) {
    for (double x = 1e-300; x < 1e300; x *= 1.7) {
        assert_true(fabs(exact_log(x) - log(x)) <= 1e-13 * MAX(1, fabs(log(x))));
        assert_true(fabs(exact_exp(log(x)) / x - 1) < 1e-11);
    }
}

/* Pruning takes a quarter away, never a character, and what costs nothing goes first. */
static void pruning_keeps_what_matters(void **state) {
    unigram_words w = words_of(WORDS, COUNT_OF(WORDS), 1);
    unigram_lattice l;
    unigram_seed(&w, 1000, NULL, &l);
    for (int i = 0; i < 2; i++) unigram_improve(&l, NULL);
    while (l.n > 12) {
        uint32_t before = l.n;
        unigram_prune(&l, 12, NULL);
        assert_true(l.n < before && l.n >= MIN(12, before * 3 / 4 - 1));
    }
    int chars = 0;
    for (uint32_t i = 0; i < l.n; i++) chars += l.pieces[i].chars == 1;
    assert_int_equal(chars, 10); /* a b c d e n o s f é: all that occur */
    unigram_lattice_free(&l);
    unigram_words_free(&w);
}

/* A word as long as a book has probabilities far below what a double holds. */
static void long_words_do_not_underflow(void **state) {
    str text = { 0 };
    for (int i = 0; i < 20000; i++) str_add(&text, "%c", 'a' + (i * i + i / 7) % 23);
    sample_word one = { text.text, 2 };
    unigram_words w = words_of(&one, 1, 1);
    unigram_lattice l;
    unigram_seed(&w, 1000, NULL, &l);
    for (int i = 0; i < 3; i++) unigram_improve(&l, NULL);
    double sum = 0;
    for (uint32_t i = 0; i < l.n; i++) {
        assert_true(isfinite(l.pieces[i].score));
        sum += l.pieces[i].share;
    }
    assert_true(sum > 0.5 && sum <= 1); /* rare pieces get less than their share */
    unigram_lattice_free(&l);
    unigram_words_free(&w);
    str_free(&text);
}

/* Characters beyond the coverage part words, and have no piece. */
static void rare_characters_have_no_piece(void **state) {
    unigram_words w = words_of(WORDS, COUNT_OF(WORDS), 0.9);
    assert_true(w.uncovered > 0);
    for (uint32_t i = 0; i < w.n; i++) assert_int_not_equal(w.text[i], 'o' + 1);
    unigram_words_free(&w);
}

/* ---- whole tokenizers ------------------------------------------------------------------------------- */

static const char *corpus_in(test_folder *f) {
    str all = { 0 };
    for (int i = 0; i < 60; i++) {
        str_add(&all, "%s", i ? "\n" TEXT_SEPARATOR "\n" : "");
        data_synth_document(3, i, NULL, &all);
    }
    const char *path = folder_write(f, "corpus.txt", all.text);
    str_free(&all);
    return path;
}

static err learn(test_folder *f, tokenizer_options o, tokenizer **out) {
    static const char *const special[] = { "<unk>", "<s>", "</s>" };
    const char *path = corpus_in(f);
    text_inputs *in = NULL;
    o.model = TRAIN_UNIGRAM;
    o.special = special;
    o.n_special = 3;
    o.quiet = true;
    if (!o.metaspace) o.metaspace = METASPACE_ALWAYS;
    assert_ok(text_inputs_open(&path, 1, &(text_input_options){ 0 }, &in));
    err e = tokenizer_learn(in, &o, out);
    text_inputs_close(in);
    return e;
}

/* The hash is of texts, scores and rules: another machine or compiler must not change it. */
static void nothing_depends_on_threads_or_machine(void **state) {
    static const char *const names[] = { "1.json", "2.json", "3.json" };
    for (int threads = 1; threads <= 3; threads++) {
        tokenizer *t = NULL;
        assert_ok(learn(*state, (tokenizer_options){ .vocab = 500, .threads = threads }, &t));
        assert_int_equal(tokenizer_vocab(t), 500);
        assert_string_equal(tokenizer_kind(t), "Unigram");
        assert_int_equal(tokenizer_eos(t), 2);
        assert_ok(tokenizer_save(t, in_folder(*state, names[threads - 1])));
        if (tokenizer_hash(t) != UINT64_C(0x73751d3c2c8dba9d))
            fail_msg("its hash is %016llx", (unsigned long long)tokenizer_hash(t));
        tokenizer_free(t);
    }
    assert_same_files(*state, names[0], names[1]);
    assert_same_files(*state, names[0], names[2]);
}

static void text_comes_back(void **state) {
    static const char text[] =
        "the little boat, \xE4\xB8\x96\xE7\x95\x8C \xF0\x9F\x9A\x80 x\n\n  y";
    for (metaspace_prepend p = METASPACE_ALWAYS; p <= METASPACE_NEVER; p++) {
        tokenizer *t = NULL;
        str back = { 0 };
        assert_ok(learn(*state,
                        (tokenizer_options){
                            .vocab = 600, .byte_fallback = true, .metaspace = p, .threads = 1 },
                        &t));
        assert_int_equal(tokenizer_vocab(t), 600);
        token_ids ids = ids_of(t, text, strlen(text), false);
        assert_true(ids.n < strlen(text));
        tokenizer_decode(t, ids.at, ids.n, true, &back);
        assert_string_equal(back.text, text);
        token_ids mark = ids_of(t, "the", 3, false);
        str first = { 0 };
        str_add_bytes(&first, t->bpe.tokens[mark.at[0]].at, t->bpe.tokens[mark.at[0]].len);
        assert_int_equal(str_starts(first.text, MARK), p != METASPACE_NEVER);
        str_free(&first);
        str_free(&back);
        token_ids_free(&ids);
        token_ids_free(&mark);
        tokenizer_free(t);
    }
}

static void normalizers_come_before_learning(void **state) {
    tokenizer *t = NULL;
    assert_ok(learn(
        *state, (tokenizer_options){ .vocab = 300, .normalize = "lowercase", .threads = 1 }, &t));
    token_ids a = ids_of(t, "The Boat", 8, false), b = ids_of(t, "the boat", 8, false);
    assert_same_ids(&a, &b);
    for (int64_t i = 3; i < t->bpe.n; i++)
        for (size_t k = 0; k < t->bpe.tokens[i].len; k++)
            assert_false(t->bpe.tokens[i].at[k] >= 'A' && t->bpe.tokens[i].at[k] <= 'Z');
    token_ids_free(&a);
    token_ids_free(&b);
    tokenizer_free(t);
}

static void too_small_a_vocabulary_is_refused(void **state) {
    tokenizer *t = NULL;
    assert_error(learn(*state, (tokenizer_options){ .vocab = 20, .threads = 1 }, &t), "characters");
    assert_error(
        learn(*state, (tokenizer_options){ .vocab = 200, .byte_fallback = true, .threads = 1 }, &t),
        "256 bytes");
    assert_null(t);
}

#define IN_FOLDER(f) cmocka_unit_test_setup_teardown(f, folder_setup, folder_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logarithms_are_right),
        cmocka_unit_test(seeds_are_the_repeated_substrings),
        cmocka_unit_test(a_round_is_that_of_all_paths),
        cmocka_unit_test(pruning_keeps_what_matters),
        cmocka_unit_test(long_words_do_not_underflow),
        cmocka_unit_test(rare_characters_have_no_piece),
        IN_FOLDER(nothing_depends_on_threads_or_machine),
        IN_FOLDER(text_comes_back),
        IN_FOLDER(normalizers_come_before_learning),
        IN_FOLDER(too_small_a_vocabulary_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
