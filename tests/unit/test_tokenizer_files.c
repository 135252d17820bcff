/* Files of tokenizers: each kind is read as the same tokenizer, what is saved is read back, what is
 * not known is refused by name, and damage is an error, never a crash. */
#include "support/tokenizer.h"

static const char sample[] = "The old river's window wasn't open: 12345 kettles, na\xC3\xAFve "
                             "lanternfish \xF0\x9F\x9A\x80!\n\n  They'LL see.<|endoftext|>x";

static char *path_in(const char *folder, const char *name) { return io_join(folder, name); }

/* ---- kinds -------------------------------------------------------------------------------------- */

static void write_text(const char *folder, const char *name, const str *text) {
    char *path = path_in(folder, name);
    write_bytes(path, text->text, text->len);
    free(path);
}

static void add_base64(const char *s, size_t n, str *out) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t bits = 0;
        for (size_t k = 0; k < 3; k++) bits = bits << 8 | (i + k < n ? (uint8_t)s[i + k] : 0);
        for (size_t k = 0; k < 4; k++)
            str_add(out, "%c", i + k <= n ? digits[bits >> (18 - 6 * k) & 63] : '=');
    }
}

/* A tokenizer of trained merges as a .tiktoken file: the special token, id 0, is not in it. */
static char *write_tiktoken(const char *folder, const tokenizer *t) {
    str text = { 0 };
    for (int64_t i = 1; i < t->bpe.n; i++) {
        add_base64(t->bpe.tokens[i].at, t->bpe.tokens[i].len, &text);
        str_add(&text, " %lld\n", (long long)i - 1);
    }
    write_text(folder, "small.tiktoken", &text);
    str_free(&text);
    return path_in(folder, "small.tiktoken");
}

static void test_tiktoken(void **state) {
    tokenizer *t = open_tokenizer(FIXTURE("gpt2"), NULL);
    char *path = write_tiktoken(*state, t);
    tokenizer *same = open_tokenizer(path, "r50k");
    token_ids a = ids_of(t, sample, strlen(sample), false);
    token_ids b = ids_of(same, sample, strlen(sample), true); /* it knows no special tokens */
    for (size_t i = 0; i < a.n; i++) a.at[i]--;
    assert_same_ids(&a, &b);
    assert_int_equal(tokenizer_vocab(same), 599);
    assert_int_equal(tokenizer_eos(same), -1);
    token_ids_free(&a);
    token_ids_free(&b);
    tokenizer_free(t);
    tokenizer_free(same);
    t = NULL;
    assert_error(tokenizer_open(path, NULL, &t), "pattern");
    assert_error(tokenizer_open(FIXTURE("gpt2"), "gpt2", &t), "--pattern");
    free(path);
}

/* Two tokens that join in more than one way: by rank, not by what comes first. */
static void test_tiktoken_ranks(void **state) {
    static const char text[] = "YQ== 0\nYg== 1\nYw== 2\nYmM= 3\nYWI= 4\nYWJj 5\nYWJjYg== 7\n";
    char *path = path_in(*state, "ranks.tiktoken");
    write_bytes(path, text, strlen(text));
    tokenizer *t = open_tokenizer(path, "[a-z]+");
    token_ids ids = ids_of(t, "abc ab abcb bcab", 16, false);
    /* The space is not a token and is left out; "abcb" is found whole. */
    static const int32_t want[] = { 5, 4, 7, 3, 4 };
    assert_int_equal(ids.n, COUNT_OF(want));
    assert_memory_equal(ids.at, want, sizeof want);
    str out = { 0 };
    tokenizer_decode(t, (int32_t[]){ 7, 6 }, 2, true, &out);
    assert_string_equal(out.text, "abcb\xEF\xBF\xBD"); /* rank 6 is nobody's */
    str_free(&out);
    token_ids_free(&ids);
    tokenizer_free(t);
    free(path);
}

static void test_gpt2_folder(void **state) {
    json_t *doc = NULL, *merge;
    size_t i;
    str merges = { 0 };
    assert_ok(io_json_read(FIXTURE("gpt2"), &doc));
    const json_t *model = json_object_get(doc, "model");
    char *vocab = path_in(*state, "vocab.json");
    assert_ok(io_json_write(vocab, json_object_get(model, "vocab")));
    str_add(&merges, "#version: 0.2\n");
    json_array_foreach(json_object_get(model, "merges"), i, merge)
        str_add(&merges, "%s %s\n", json_string_value(json_array_get(merge, 0)),
                json_string_value(json_array_get(merge, 1)));
    write_text(*state, "merges.txt", &merges);
    tokenizer *a = open_tokenizer(FIXTURE("gpt2"), NULL), *b = open_tokenizer(*state, NULL);
    for (int special = 0; special < 2; special++) {
        token_ids x = ids_of(a, sample, strlen(sample), special);
        token_ids y = ids_of(b, sample, strlen(sample), special);
        assert_same_ids(&x, &y);
        token_ids_free(&x);
        token_ids_free(&y);
    }
    assert_int_equal(tokenizer_hash(a), tokenizer_hash(b));
    tokenizer_free(a);
    tokenizer_free(b);
    str_free(&merges);
    json_decref(doc);
    free(vocab);
}

static void test_nothing_there(void **state) {
    tokenizer *t = NULL;
    assert_error(tokenizer_open(*state, NULL, &t), "no tokenizer");
    assert_error(tokenizer_open("/no/such/tokenizer.json", NULL, &t), "/no/such");
    assert_error(tokenizer_open("words", NULL, &t), "words");
}

/* ---- saving --------------------------------------------------------------------------------------- */

static void check_saved(const char *folder, const tokenizer *t) {
    char *path = path_in(folder, "saved.json");
    assert_ok(tokenizer_save(t, path));
    tokenizer *again = open_tokenizer(path, NULL);
    assert_int_equal(tokenizer_hash(t), tokenizer_hash(again));
    assert_int_equal(tokenizer_vocab(t), tokenizer_vocab(again));
    assert_int_equal(tokenizer_eos(t), tokenizer_eos(again));
    for (int special = 0; special < 2; special++) {
        token_ids a = ids_of(t, sample, strlen(sample), special);
        token_ids b = ids_of(again, sample, strlen(sample), special);
        assert_same_ids(&a, &b);
        token_ids_free(&a);
        token_ids_free(&b);
    }
    tokenizer_free(again);
    free(path);
}

static void test_save(void **state) {
    tokenizer *bytes = open_tokenizer("bytes", NULL), *t = open_tokenizer(FIXTURE("gpt2"), NULL);
    check_saved(*state, bytes);
    check_saved(*state, t);
    char *path = write_tiktoken(*state, t);
    static const char *const patterns[] = { "gpt2", "cl100k", "o200k" };
    for (size_t i = 0; i < COUNT_OF(patterns); i++) {
        tokenizer *from = open_tokenizer(path, patterns[i]);
        check_saved(*state, from);
        tokenizer_free(from);
    }
    tokenizer_free(bytes);
    tokenizer_free(t);
    free(path);
}

/* Holds what a trainer hands over. */
static void test_from_parts(void **state) {
    static const char *const texts[] = { "<|end|>", "a", "b", "ab", " ", " ab", "aba" };
    text_span tokens[COUNT_OF(texts)];
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        tokens[i] = (text_span){ texts[i], strlen(texts[i]) };
    bpe_pair merges[] = { { 1, 2 }, { 4, 3 }, { 3, 1 } };
    bpe_parts p = { .pattern = "gpt2", .tokens = tokens, .n_tokens = COUNT_OF(texts) };
    p.merges = merges;
    p.n_merges = COUNT_OF(merges);
    p.special = (int32_t[]){ 0 };
    p.n_special = 1;
    tokenizer *t = NULL;
    assert_ok(tokenizer_from_bpe(&p, &t));
    token_ids ids = ids_of(t, "ab ab abab<|end|>", 17, true);
    static const int32_t want[] = { 3, 5, 5, 3, 0 };
    assert_int_equal(ids.n, COUNT_OF(want));
    assert_memory_equal(ids.at, want, sizeof want);
    token_ids_free(&ids);
    check_saved(*state, t);
    tokenizer_free(t);
    merges[2] = (bpe_pair){ 2, 1 }; /* "ba" is not a token */
    assert_error(tokenizer_from_bpe(&p, &t), "not a token");
    merges[2] = (bpe_pair){ 2, 99 };
    assert_error(tokenizer_from_bpe(&p, &t), "99");
    p.n_merges = 2;
    p.pattern = "(";
    assert_error(tokenizer_from_bpe(&p, &t), "pattern");
}

/* ---- what is refused ------------------------------------------------------------------------------ */

static const struct {
    const char *from, *to; /* in the text of gpt2.json */
    const char *says;
} refused[] = {
    { "\"type\":\"BPE\"", "\"type\":\"WordLevel\"", "WordLevel" },
    { "\"dropout\":null", "\"dropout\":0.1", "dropout" },
    { "\"continuing_subword_prefix\":null", "\"continuing_subword_prefix\":\"##\"",
      "continuing_subword_prefix" },
    { "\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"</w>\"", "end_of_word_suffix" },
    { "\"normalizer\":null", "\"normalizer\":{\"type\":\"BertNormalizer\"}", "BertNormalizer" },
    { "\"normalizer\":null", "\"normalizer\":{\"type\":\"NFC\",\"why\":1}", "why" },
    { "\"pre_tokenizer\":{\"type\":\"ByteLevel\"", "\"pre_tokenizer\":{\"type\":\"Whitespace\"",
      "Whitespace" },
    { "\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"WordPiece\"", "WordPiece" },
    { "\"version\"", "\"colour\"", "colour" },
    { "\"version\"", "\"\"", "\"\"" },
    { "\"version\"", "\"model version\"", "\"model version\"" },
    { "\"pre_tokenizer\":{", "\"pre_tokenizer\":{\"\":1,", "\"\"" },
    { "\"single_word\":false", "\"single\":false", "single" },
    { "\"merges\":[[", "\"merges\":[[\"zz\",\"q\"],[", "zz" },
    { "\"merges\":[[", "\"merges\":[7,[", "merge 0" },
    { "\"unk_token\":null", "\"unk_token\":\"<none>\"", "<none>" },
    { "\"<|endoftext|>\":0", "\"<|endoftext|>\":1", "two tokens" },
    { "\"<|endoftext|>\":0", "\"<|endoftext|>\":999999999999", "no id" },
    { "\"<|endoftext|>\":0", "\"<|endoftext|>\":-1", "no id" },
};

static void test_refused(void **state) {
    char *text = NULL;
    assert_ok(io_read(FIXTURE("gpt2"), 1 << 20, &text, NULL));
    char *path = path_in(*state, "tokenizer.json");
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        char *at = strstr(text, refused[i].from);
        if (!at) fail_msg("no %s in the fixture", refused[i].from);
        str changed = { 0 };
        tokenizer *t = NULL;
        str_add(&changed, "%.*s%s%s", (int)(at - text), text, refused[i].to,
                at + strlen(refused[i].from));
        write_bytes(path, changed.text, changed.len);
        assert_error(tokenizer_open(path, NULL, &t), refused[i].says);
        assert_null(t);
        str_free(&changed);
    }
    free(path);
    free(text);
}

/* Llama 3's tokenizer.model is a .tiktoken file of 128000 tokens, known by its content and size. Here all texts
 * of one and two bytes, and the first of three. */
static void test_llama3(void **state) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    enum { TOKENS = 128000, PAIRS = 256, TRIPLES = PAIRS + 65536 };
    str text = { 0 };
    for (uint32_t i = 0; i < TOKENS; i++) {
        int n = i < PAIRS ? 1 : i < TRIPLES ? 2 : 3;
        uint32_t bits = i < PAIRS     ? i << 16
                        : i < TRIPLES ? (i - PAIRS) << 8
                                      : i - TRIPLES + 0x303030;
        str_add(&text, "%c%c%c%c %u\n", digits[bits >> 18], digits[bits >> 12 & 63],
                n > 1 ? digits[bits >> 6 & 63] : '=', n > 2 ? digits[bits & 63] : '=', i);
    }
    write_text(*state, "tokenizer.model", &text);
    char *path = path_in(*state, "tokenizer.model");
    tokenizer *t = open_tokenizer(path, NULL), *folder = open_tokenizer(*state, NULL);
    assert_int_equal(tokenizer_vocab(t), 128256);
    assert_int_equal(tokenizer_find(t, "<|begin_of_text|>", 17), 128000);
    assert_int_equal(tokenizer_find(t, "<|eot_id|>", 10), 128009);
    assert_int_equal(tokenizer_find(t, "<|reserved_special_token_250|>", 30), 128255);
    assert_int_equal(tokenizer_eos(t), 128001);
    assert_int_equal(tokenizer_hash(t), tokenizer_hash(folder));
    /* Digits by three, as cl100k splits them. */
    token_ids ids = ids_of(t, "0000<|end_of_text|>", 19, true);
    assert_int_equal(ids.n, 3);
    assert_int_equal(ids.at[0], TRIPLES);
    assert_int_equal(ids.at[1], '0');
    assert_int_equal(ids.at[2], 128001);
    token_ids_free(&ids);
    tokenizer_free(t);
    tokenizer_free(folder);
    free(path);
    str_free(&text);
}

static void test_refused_tiktoken(void **state) {
    static const char *const bad[] = { "",          "YQ==\n", "YQ== x\n",         "Y!== 0\n",
                                       "YQ== -1\n", " 0\n",   "YQ== 0\nYg== 0\n", "YQ== 99999999\n",
                                       "YQ 0\n" };
    char *path = path_in(*state, "bad.tiktoken");
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        tokenizer *t = NULL;
        write_bytes(path, bad[i], strlen(bad[i]));
        assert_error(tokenizer_open(path, "gpt2", &t), "bad.tiktoken");
    }
    free(path);
}

/* ---- what a model says ------------------------------------------------------------------------------- */

static void check_edited(const char *folder, const char *text, const char *input,
                         const int32_t *want, size_t n) {
    char *path = path_in(folder, "edited.json");
    write_bytes(path, text, strlen(text));
    tokenizer *t = open_tokenizer(path, NULL);
    token_ids ids = ids_of(t, input, strlen(input), false);
    assert_int_equal(ids.n, n);
    assert_memory_equal(ids.at, want, n * sizeof *want);
    token_ids_free(&ids);
    tokenizer_free(t);
    free(path);
}

#define SMALL_MODEL(settings, merges)                                                              \
    "{\"model\":{\"type\":\"BPE\"," settings                                                       \
    "\"vocab\":{\"<unk>\":0,\"a\":1,\"b\":2,\"\u2581\":3,\"\u2581b\":4,\"a\u2581\":5},"            \
    "\"merges\":[" merges                                                                          \
    "]},\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"                      \
    "\"content\":\"\u2581\"}}"

static void test_models(void **state) {
    /* Words are cut apart only where no merge reaches across. */
    check_edited(*state, SMALL_MODEL("", "\"\u2581 b\""), "a b", (int32_t[]){ 1, 4 }, 2);
    check_edited(*state, SMALL_MODEL("", "\"a \u2581\",\"\u2581 b\""), "a b", (int32_t[]){ 5, 2 },
                 2);
    /* An unknown character is left out, is one token each, or one for a run. */
    check_edited(*state, SMALL_MODEL("", ""), "xyaz", (int32_t[]){ 1 }, 1);
    check_edited(*state, SMALL_MODEL("\"unk_token\":\"<unk>\",", ""), "xyaz",
                 (int32_t[]){ 0, 0, 1, 0 }, 4);
    check_edited(*state, SMALL_MODEL("\"unk_token\":\"<unk>\",\"fuse_unk\":true,", ""), "xyaz",
                 (int32_t[]){ 0, 1, 0 }, 3);
    /* Of a merge that is there twice the last rank counts. */
    check_edited(*state, SMALL_MODEL("", "\"a \u2581\",\"\u2581 b\",[\"a\",\"\u2581\"]"), "a b",
                 (int32_t[]){ 1, 4 }, 2);
}

/* Every piece is a token, so ids tell where the splits are. */
#define CUT_MODEL                                                                                   \
    "{\"model\":{\"ignore_merges\":true,\"merges\":[],\"vocab\":{\"a\":0,\"b\":1,\".\":2,\"..\":3," \
    "\"a.\":4,\"b.\":5,\".b\":6,\"a..\":7,\"..b\":8,\"a..b.\":9}},\"pre_tokenizer\":{"              \
    "\"type\":\"Split\",\"pattern\":{\"String\":\".\"},\"behavior\":\"%s\",\"invert\":%s}}"

static void test_splits(void **state) {
    static const struct {
        const char *behavior, *invert;
        int32_t want[6];
        size_t n;
    } cases[] = {
        { "Isolated", "false", { 0, 2, 2, 1, 2 }, 5 },
        { "Removed", "false", { 0, 1 }, 2 },
        { "Removed", "true", { 2, 2, 2 }, 3 },
        { "MergedWithPrevious", "false", { 4, 2, 5 }, 3 },
        { "MergedWithPrevious", "true", { 0, 2, 6, 2 }, 4 },
        { "MergedWithNext", "false", { 0, 2, 6, 2 }, 4 },
        { "MergedWithNext", "true", { 4, 2, 5 }, 3 },
        { "Contiguous", "false", { 0, 3, 1, 2 }, 4 },
        { "Contiguous", "true", { 0, 3, 1, 2 }, 4 },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        str text = { 0 };
        str_add(&text, CUT_MODEL, cases[i].behavior, cases[i].invert);
        check_edited(*state, text.text, "a..b.", cases[i].want, cases[i].n);
        str_free(&text);
    }
}

#define ADDED_MODEL                                                                                \
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"added_tokens\":[{"          \
    "\"id\":1,\"content\":\"%s\",\"lstrip\":%s,\"rstrip\":%s,\"single_word\":%s,"                  \
    "\"normalized\":false,\"special\":false}]}"

static void check_added(const char *folder, const char *content, bool single_word, bool strips,
                        const char *input, const int32_t *want, size_t n) {
    str text = { 0 };
    const char *strip = strips ? "true" : "false";
    str_add(&text, ADDED_MODEL, content, strip, strip, single_word ? "true" : "false");
    check_edited(folder, text.text, input, want, n);
    str_free(&text);
}

/* White space that one added token took is not another one. */
static void test_added_spaces(void **state) {
    static const struct {
        const char *content, *input;
        int32_t want[3];
        size_t n;
    } cases[] = {
        { "\\n", "a\n\na", { 0, 1, 0 }, 3 },
        { " ", "  ", { 1 }, 1 },
        { " ", "a \n a", { 0, 1, 0 }, 3 },
        { "x", " x  xa", { 1, 1, 0 }, 3 },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        check_added(*state, cases[i].content, false, true, cases[i].input, cases[i].want,
                    cases[i].n);
}

/* A token that is a word by itself is not found beside characters of words, framed letters included. */
static void test_single_words(void **state) {
    static const int32_t found[] = { 1 };
    static const char *const beside[] = { "\u24b6", "\U0001F130", "\U0001F150", "\U0001F189",
                                          "\u0301", "\u200d",     "_" };
    for (size_t i = 0; i < COUNT_OF(beside); i++) {
        str text = { 0 };
        str_add(&text, "x%s", beside[i]);
        check_added(*state, "x", true, false, text.text, found, 0);
        str_free(&text);
    }
    check_added(*state, "x", true, false, "x\u00b2", found, 1);
    check_added(*state, "x", true, false, "\U0001F16Ax", found, 1);
}

/* ---- damage ------------------------------------------------------------------------------------------ */

/* Opens and, where that works, uses it: neither may crash. @return whether it was refused. */
static bool survive(const char *path, const char *pattern) {
    tokenizer *t = NULL;
    err e = tokenizer_open(path, pattern, &t);
    bool was_refused = e != OK;
    if (e) {
        assert_true(err_message(e)[0]);
        err_free(e);
        return was_refused;
    }
    token_ids ids = ids_of(t, sample, strlen(sample), true);
    str out = { 0 };
    tokenizer_decode(t, ids.at, ids.n, true, &out);
    str_free(&out);
    token_ids_free(&ids);
    tokenizer_free(t);
    return was_refused;
}

static void damage(const char *folder, const char *from, const char *name, const char *pattern) {
    char *text = NULL, *path = path_in(folder, name);
    size_t n;
    int truncated_refused = 0, rounds = 150;
    chance c = { rng_key_of(5, 0), 0 };
    assert_ok(io_read(from, 1 << 20, &text, &n));
    for (int i = 0; i < rounds; i++) {
        write_bytes(path, text, below(&c, n - 2));
        truncated_refused += survive(path, pattern);
    }
    for (int i = 0; i < 2 * rounds; i++) {
        /* Half of the time where the rules are, not in the vocabulary. */
        size_t at = below(&c, i % 2 ? n : MIN(n, 1200));
        text[at] ^= (char)(1 << below(&c, 8));
        write_bytes(path, text, n);
        survive(path, pattern);
        if (i % 3) text[at] ^= (char)(1 << below(&c, 8)); /* now and then it stays, or gets worse */
    }
    if (!pattern) assert_int_equal(truncated_refused, rounds); /* half a JSON document is none */
    free(text);
    free(path);
}

static void test_damage(void **state) {
    damage(*state, FIXTURE("gpt2"), "a.json", NULL);
    damage(*state, FIXTURE("llama2"), "b.json", NULL);
    damage(*state, FIXTURE("normalized"), "c.json", NULL);
    damage(*state, FIXTURE("behaviours"), "d.json", NULL);
    damage(*state, FIXTURE("metaspace"), "e.json", NULL);
    tokenizer *t = open_tokenizer(FIXTURE("gpt2"), NULL);
    char *path = write_tiktoken(*state, t);
    damage(*state, path, "f.tiktoken", "cl100k");
    free(path);
    tokenizer_free(t);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_setup, folder_teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(test_tiktoken),     IN_FOLDER(test_tiktoken_ranks),
        IN_FOLDER(test_gpt2_folder),  IN_FOLDER(test_nothing_there),
        IN_FOLDER(test_save),         IN_FOLDER(test_from_parts),
        IN_FOLDER(test_refused),      IN_FOLDER(test_refused_tiktoken),
        IN_FOLDER(test_llama3),       IN_FOLDER(test_damage),
        IN_FOLDER(test_models),       IN_FOLDER(test_splits),
        IN_FOLDER(test_added_spaces), IN_FOLDER(test_single_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
