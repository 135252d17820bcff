/* Pieces of scripts without spaces are split where no token can be: the ids are those of whole pieces, for
 * tokens that begin and end anywhere, also inside characters. */
#include "support/tokenizer.h"

/* Text in runs of few characters, which share bytes, with breaks, Latin letters and broken bytes between. */
static void add_text(chance *c, size_t bytes, int kinds, str *out) {
    static const char *const others[] = { " ",
                                          "\n",
                                          "a",
                                          "é",
                                          "\xF0\x9F\x98\x80",
                                          "\xE4\xB8",
                                          "\x81",
                                          "。",
                                          "1",
                                          "\xFF",
                                          "\xE0\xA0\x80",
                                          "\xEF\xBF\xBF",
                                          "\xE0\x80\x80",
                                          "の" };
    while (out->len < bytes) {
        char one[4];
        uint32_t cp = 0x4E00 + (uint32_t)below(c, (uint64_t)kinds) * 37 % 0x1000;
        if (below(c, 9) == 0)
            str_add(out, "%s", others[below(c, COUNT_OF(others))]);
        else
            str_add_bytes(out, one, (size_t)utf8_encode(cp, one));
    }
}

static tokenizer *train(test_folder *f, chance *c, int kinds, int64_t vocab, const char *pattern) {
    str text = { 0 };
    add_text(c, 30000, kinds, &text);
    const char *path = in_folder(f, "text.txt");
    assert_ok(io_write(path, text.text, text.len));
    str_free(&text);
    text_inputs *in = NULL;
    tokenizer *t = NULL;
    tokenizer_options o = {
        .vocab = vocab, .min_frequency = 2, .pattern = pattern, .threads = 1, .quiet = true
    };
    assert_ok(text_inputs_open(&path, 1, &(text_input_options){ .format = "text" }, &in));
    assert_ok(tokenizer_learn(in, &o, &t));
    text_inputs_close(in);
    return t;
}

/* Encodes with and without splitting. @return the boundaries at which `text` is split. */
static int64_t compare(tokenizer *t, const char *text, size_t n) {
    int64_t splits = 0;
    for (size_t from = 0; from < n;) {
        size_t end;
        BUG_IF(t->scan(text, n, from, &end, 1) != 1);
        for (size_t part; (part = adjacency_part_end(&t->adjacency, text, from, end)) < end;
             from = part)
            splits++;
        from = end;
    }
    token_ids parts = ids_of(t, text, n, false);
    adjacency kept = t->adjacency;
    t->adjacency = (adjacency){ 0 };
    token_ids whole = ids_of(t, text, n, false);
    t->adjacency = kept;
    assert_same_ids(&parts, &whole);
    token_ids_free(&parts);
    token_ids_free(&whole);
    return splits;
}

static void parts_have_the_ids_of_whole_pieces(void **state) {
    static const struct {
        int kinds;
        int64_t vocab;
    } cases[] = {
        { 300, 270 }, { 300, 400 }, { 40, 600 }, { 300, 1500 }, { 2000, 2000 }, { 8, 900 }
    };
    static const char *const patterns[] = { "gpt2", "cl100k", "o200k" };
    chance c = { .key = rng_key_of(5, 1) };
    int64_t splits = 0;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        tokenizer *t = train(*state, &c, cases[i].kinds, cases[i].vocab, patterns[i % 3]);
        str text = { 0 };
        add_text(&c, 40000, cases[i].kinds * 2, &text);
        splits += compare(t, text.text, text.len);
        str_reserve(&text, 3 * 2000);  /* the text is added to itself */
        for (int k = 0; k < 2000; k++) /* one piece longer than a batch */
            str_add_bytes(&text, text.text + 3 * (k % 50), 3);
        splits += compare(t, text.text, text.len);
        str_free(&text);
        tokenizer_free(t);
    }
    assert_true(splits > 10000);
}

/* Tokens that cover a boundary with one or two bytes on either side. */
static void tokens_may_begin_and_end_inside_characters(void **state) {
    static const char *const crossing[] = {
        "\xA4\xE4",         "\xA4\xE4\xB8",         "\xBA\xA4\xE4",
        "\xE4\xBA\xA4\xE4", "\xE4\xBA\xA4\xE4\xB8", "\xA4\xE4\xB8\xAD"
    };
    static const char text[] = "\xE4\xBA\xA4\xE4\xB8\xAD";
    for (size_t i = 0; i < COUNT_OF(crossing); i++) {
        text_span token = { crossing[i], strlen(crossing[i]) };
        bpe b = { .tokens = &token, .n = 1, .n_pairs = 1, .unknown = -1 };
        adjacency a = { 0 };
        adjacency_build(&b, &a);
        assert_int_equal(adjacency_part_end(&a, text, 0, 6), 6);
        assert_int_equal(adjacency_part_end(&a, "\xE4\xBA\xA5\xE4\xB8\xAD", 0, 6), 3);
        b.fuse_unknown = true, b.unknown = 0; /* unknown bytes on both sides would be one token */
        adjacency_build(&b, &a);
        assert_null(a.whole);
        adjacency_free(&a);
    }
}

/* Where a piece that is a token is that token, a part is not: 中国 is a token that no merge gives. */
static void parts_are_not_tokens_that_merges_do_not_give(void **state) {
    enum { BYTES = 256, WHOLE = BYTES, HALF, TOKENS };
    static const char *const texts[] = { "中国", "中国人", "人中国", "人中国人" };
    char bytes[BYTES];
    text_span tokens[TOKENS];
    for (int i = 0; i < BYTES; i++) {
        bytes[i] = (char)i;
        tokens[i] = (text_span){ &bytes[i], 1 };
    }
    tokens[WHOLE] = (text_span){ "中国", 6 };
    tokens[HALF] = (text_span){ "\xE4\xB8", 2 };
    const bpe_pair merge = { 0xE4, 0xB8 };
    const bpe_parts parts = { .pattern = "gpt2",
                              .tokens = tokens,
                              .n_tokens = TOKENS,
                              .merges = &merge,
                              .n_merges = 1,
                              .whole_first = true };
    tokenizer *t = NULL;
    assert_ok(tokenizer_from_bpe(&parts, &t));
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        compare(t, texts[i], strlen(texts[i]));
        token_ids ids = ids_of(t, texts[i], strlen(texts[i]), false);
        assert_int_equal(ids.at[0] == WHOLE, i == 0);
        token_ids_free(&ids);
    }
    tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(parts_have_the_ids_of_whole_pieces, folder_setup,
                                        folder_teardown),
        cmocka_unit_test(tokens_may_begin_and_end_inside_characters),
        cmocka_unit_test(parts_are_not_tokens_that_merges_do_not_give),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
