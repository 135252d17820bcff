/* The BPE trainer: Hugging Face's merges, any number of threads, any cap on memory. */
#include "support/tokenizer.h"

#include "tokenizer/train_internal.h"

#define CASES FIXTURES "/bpe_train/"

/* ---- cases made by tests/fixtures/bpe_train/make.py ---------------------------------------------- */

typedef struct fixture {
    json_t *cases, *expected; /* one case is borrowed from the list */
    const char *name;
    const char *special[8];
    tokenizer_options o;
    char path[512];
} fixture;

static int fixture_count(void) {
    json_t *cases = NULL;
    assert_ok(io_json_read(CASES "cases.json", &cases));
    int n = (int)json_array_size(cases);
    json_decref(cases);
    assert_true(n > 10);
    return n;
}

static metaspace_prepend metaspace_of(const char *name) {
    metaspace_prepend p = METASPACE_OFF;
    while (name && p < METASPACE_NEVER && strcmp(metaspace_name(p), name) != 0) p++;
    return p;
}

static fixture fixture_open(int index) {
    fixture f = { 0 };
    assert_ok(io_json_read(CASES "cases.json", &f.cases));
    const json_t *c = json_array_get(f.cases, (size_t)index);
    const json_t *special = json_object_get(c, "special");
    f.name = json_string_value(json_object_get(c, "name"));
    f.o.vocab = json_integer_value(json_object_get(c, "vocab"));
    f.o.min_frequency = json_integer_value(json_object_get(c, "min_frequency"));
    f.o.pattern = json_string_value(json_object_get(c, "pattern"));
    f.o.normalize = json_string_value(json_object_get(c, "normalize"));
    f.o.metaspace = metaspace_of(json_string_value(json_object_get(c, "metaspace")));
    f.o.byte_fallback = json_is_true(json_object_get(c, "byte_fallback"));
    f.o.coverage = 1;
    f.o.n_special = (int)json_array_size(special);
    assert_in_range(f.o.n_special, 1, COUNT_OF(f.special));
    for (int i = 0; i < f.o.n_special; i++)
        f.special[i] = json_string_value(json_array_get(special, (size_t)i));
    f.o.quiet = true;
    snprintf(f.path, sizeof f.path, CASES "%s.expected.json", f.name);
    assert_ok(io_json_read(f.path, &f.expected));
    snprintf(f.path, sizeof f.path, CASES "%s.jsonl", f.name);
    return f;
}

static void fixture_close(fixture *f) {
    json_decref(f->cases);
    json_decref(f->expected);
}

static text_inputs *inputs_of(const char *path, size_t block_bytes) {
    text_inputs *in = NULL;
    text_input_options o = { .block_bytes = block_bytes };
    assert_ok(text_inputs_open(&path, 1, &o, &in));
    return in;
}

static bool is_special(const bpe_learned *l, int64_t id) {
    for (int i = 0; i < l->n_special; i++)
        if (l->special[i] == id) return true;
    return false;
}

static void assert_learned(const bpe_learned *got, const fixture *f) {
    const json_t *expected = f->expected;
    const char *name = f->name;
    const json_t *tokens = json_object_get(expected, "tokens");
    const json_t *merges = json_object_get(expected, "merges");
    for (int64_t i = 0; i < got->n_merges && i < (int64_t)json_array_size(merges); i++) {
        const json_t *pair = json_array_get(merges, (size_t)i);
        int64_t left = json_integer_value(json_array_get(pair, 0));
        int64_t right = json_integer_value(json_array_get(pair, 1));
        if (got->merges[i].left != left || got->merges[i].right != right)
            fail_msg("%s: merge %lld is (%d, %d), not (%lld, %lld)", name, (long long)i,
                     got->merges[i].left, got->merges[i].right, (long long)left, (long long)right);
    }
    assert_int_equal(got->n_merges, json_array_size(merges));
    assert_int_equal(got->n_tokens, json_array_size(tokens));
    for (int64_t i = 0; i < got->n_tokens; i++) {
        str text = { 0 };
        if (f->o.metaspace || is_special(got, i))
            str_add_bytes(&text, got->tokens[i].at, got->tokens[i].len);
        else
            alphabet_from_bytes(got->tokens[i].at, got->tokens[i].len, &text);
        assert_string_equal(text.text, json_string_value(json_array_get(tokens, (size_t)i)));
        str_free(&text);
    }
}

static void test_like_hugging_face(void **state) {
    static const int threads[] = { 1, 2, 7 };
    (void)state;
    for (int i = 0; i < fixture_count(); i++) {
        for (size_t k = SANITIZED ? 2 : 0; k < COUNT_OF(threads); k++) {
            fixture f = fixture_open(i);
            f.o.special = f.special;
            f.o.threads = threads[k];
            text_inputs *in = inputs_of(f.path, k ? 256 : 0);
            bpe_learned l;
            assert_ok(bpe_learn_documents(in, &f.o, &l));
            assert_learned(&l, &f);
            bpe_learned_free(&l);
            text_inputs_close(in);
            fixture_close(&f);
        }
    }
}

/* ---- words of our own ------------------------------------------------------------------------------ */

typedef struct word {
    const char *text;
    uint64_t count;
} word;

static word_counts *counts_of(const word *words, int n, size_t memory) {
    word_counts *c = word_counts_new(memory, 1);
    for (int i = 0; i < n; i++)
        assert_ok(word_counts_add(c, 0, words[i].text, strlen(words[i].text), words[i].count));
    assert_ok(word_counts_seal(c));
    return c;
}

static const size_t PLENTY = (size_t)64 << 20;

static bpe_learned learn(word_counts *c, int64_t merges, int64_t min_frequency, size_t memory) {
    tokenizer_options o = {
        .vocab = 256 + merges, .min_frequency = min_frequency, .memory = memory, .quiet = true
    };
    bpe_learned l;
    assert_ok(bpe_learn(c, &o, NULL, &l));
    word_counts_free(c);
    return l;
}

static void assert_token(const bpe_learned *l, int64_t id, const char *text) {
    assert_true(id < l->n_tokens);
    assert_int_equal(l->tokens[id].len, strlen(text));
    assert_memory_equal(l->tokens[id].at, text, strlen(text));
}

static void test_counts_beyond_32_bits(void **state) {
    const uint64_t two32 = (uint64_t)1 << 32;
    const word words[] = {
        { "ab", two32 + 1 }, { "cd", two32 - 1 },    { "ef", two32 / 2 + 1 },
        { "efg", two32 },    { "hi", two32 * 1000 }, { "j", two32 * two32 / 4 },
    };
    (void)state;
    bpe_learned l = learn(counts_of(words, (int)COUNT_OF(words), PLENTY), 10, 1, PLENTY);
    static const char *const made[] = { "hi", "ef", "ab", "efg", "cd" };
    assert_int_equal(l.n_merges, COUNT_OF(made));
    for (size_t i = 0; i < COUNT_OF(made); i++) assert_token(&l, 256 + (int64_t)i, made[i]);
    bpe_learned_free(&l);
}

static void test_minimum_frequency(void **state) {
    const word words[] = { { "abc", 4 }, { "ab", 3 }, { "xy", 5 } };
    (void)state;
    bpe_learned l = learn(counts_of(words, 3, PLENTY), 100, 5, PLENTY);
    assert_int_equal(l.n_merges, 2); /* ab 7, xy 5; not abc 4 */
    bpe_learned_free(&l);
    l = learn(counts_of(words, 3, PLENTY), 100, 0, PLENTY); /* any */
    assert_int_equal(l.n_merges, 3);
    bpe_learned_free(&l);
}

static void test_words_of_one_byte(void **state) {
    const word words[] = { { "a", 4 }, { "b", 3 } };
    (void)state;
    bpe_learned l = learn(counts_of(words, 2, PLENTY), 100, 1, PLENTY);
    assert_int_equal(l.n_merges, 0);
    assert_int_equal(l.n_tokens, 256);
    bpe_learned_free(&l);
}

/* ---- a plain trainer to compare with ----------------------------------------------------------------- */

enum { PLAIN_WORDS = 120, PLAIN_LENGTH = 24 };
typedef struct plain {
    uint32_t ids[PLAIN_WORDS][PLAIN_LENGTH];
    int len[PLAIN_WORDS];
    int64_t count[PLAIN_WORDS];
} plain;

static int64_t plain_count(const plain *p, uint32_t a, uint32_t b) {
    int64_t n = 0;
    for (int w = 0; w < PLAIN_WORDS; w++)
        for (int i = 0; i + 1 < p->len[w]; i++)
            if (p->ids[w][i] == a && p->ids[w][i + 1] == b) n += p->count[w];
    return n;
}

/* The best pair by trying each. @return its count. */
static int64_t plain_best(const plain *p, bpe_pair *best) {
    int64_t most = 0;
    for (int w = 0; w < PLAIN_WORDS; w++) {
        for (int i = 0; i + 1 < p->len[w]; i++) {
            uint32_t a = p->ids[w][i], b = p->ids[w][i + 1];
            int64_t n = plain_count(p, a, b);
            bool first = a < (uint32_t)best->left ||
                         (a == (uint32_t)best->left && b < (uint32_t)best->right);
            if (n < most || (n == most && !first)) continue;
            most = n;
            *best = (bpe_pair){ (int32_t)a, (int32_t)b };
        }
    }
    return most;
}

static void plain_merge(plain *p, bpe_pair pair, uint32_t id) {
    for (int w = 0; w < PLAIN_WORDS; w++) {
        int to = 0;
        for (int i = 0; i < p->len[w]; to++) {
            uint32_t *ids = p->ids[w];
            bool here = i + 1 < p->len[w] && ids[i] == (uint32_t)pair.left &&
                        ids[i + 1] == (uint32_t)pair.right;
            ids[to] = here ? id : ids[i];
            i += here ? 2 : 1;
        }
        p->len[w] = to;
    }
}

static void test_random_words_like_plain(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 12; seed++) {
        rng_key key = rng_key_of(seed, 9);
        uint64_t k = 0, letters = 1 + seed % 4;
        plain *p = calloc(1, sizeof *p);
        word_counts *c = word_counts_new(PLENTY, 1);
        for (int w = 0; w < PLAIN_WORDS; w++) {
            char text[PLAIN_LENGTH];
            p->len[w] = 1 + (int)rng_below(key, k++, PLAIN_LENGTH);
            p->count[w] = 1 + (int64_t)rng_below(key, k++, 5);
            for (int i = 0; i < p->len[w]; i++) {
                text[i] = (char)('!' + rng_below(key, k++, letters)); /* its id is 0 */
                p->ids[w][i] = (uint32_t)(text[i] - '!');
            }
            assert_ok(word_counts_add(c, 0, text, (size_t)p->len[w], (uint64_t)p->count[w]));
        }
        assert_ok(word_counts_seal(c));
        bpe_learned l = learn(c, 100000, 2, PLENTY);
        for (int64_t i = 0;; i++) {
            bpe_pair best = { INT32_MAX, INT32_MAX };
            if (plain_best(p, &best) < 2) {
                assert_int_equal(l.n_merges, i);
                break;
            }
            assert_true(i < l.n_merges);
            assert_int_equal(l.merges[i].left, best.left);
            assert_int_equal(l.merges[i].right, best.right);
            plain_merge(p, best, (uint32_t)(256 + i));
        }
        bpe_learned_free(&l);
        free(p);
    }
}

/* A word of a million bytes takes as long as a million short ones: no scan of it for each merge. */
static void test_long_word(void **state) {
    enum { N = 1 << 20 };
    (void)state;
    char *text = malloc(N);
    rng_key key = rng_key_of(5, 5);
    for (int i = 0; i < N; i++) text[i] = (char)('a' + rng_below(key, (uint64_t)i, 20));
    word_counts *c = word_counts_new(PLENTY, 1);
    assert_ok(word_counts_add(c, 0, text, N, 1));
    assert_ok(word_counts_seal(c));
    bpe_learned l = learn(c, 20000, 1, PLENTY);
    assert_int_equal(l.n_merges, 20000);
    bpe_learned_free(&l);
    memset(text, 'a', N);
    c = word_counts_new(PLENTY, 1);
    assert_ok(word_counts_add(c, 0, text, N, 1));
    assert_ok(word_counts_seal(c));
    l = learn(c, 1000, 1, PLENTY);
    assert_int_equal(l.n_merges, 20); /* 2, 4, 8 ... */
    assert_int_equal(l.tokens[256 + 19].len, N);
    bpe_learned_free(&l);
    free(text);
}

/* ---- memory ------------------------------------------------------------------------------------------- */

typedef struct listing {
    int64_t words, bytes;
    uint64_t count, mixed; /* a sum that does not depend on the order */
} listing;

static void list_word(void *ctx, const char *text, size_t len, uint64_t count) {
    listing *l = ctx;
    l->words++;
    l->bytes += (int64_t)len;
    l->count += count;
    l->mixed += hash_bytes(text, len, count);
}

/* Many words, again and again, of all lengths up to some that do not fit in a shard. */
static listing list_many(size_t memory, int workers, int64_t *spilled) {
    word_counts *c = word_counts_new(memory, workers);
    rng_key key = rng_key_of(8, 8);
    char *text = malloc(100000);
    memset(text, 'x', 100000);
    for (uint64_t i = 0; i < 60000; i++) {
        uint64_t which = rng_below(key, i, 20000);
        size_t len = which % 1000 == 999 ? 100000 : 8 + which % 13;
        memcpy(text, &which, sizeof which);
        assert_ok(word_counts_add(c, (int)(i % (uint64_t)workers), text, len, 1 + i % 3));
    }
    free(text);
    assert_ok(word_counts_seal(c));
    *spilled = word_counts_spilled(c);
    listing l = { 0 }, again = { 0 };
    assert_ok(word_counts_each(c, false, list_word, &l));
    assert_ok(word_counts_each(c, true, list_word, &again)); /* can be visited twice */
    assert_memory_equal(&l, &again, sizeof l);
    word_counts_free(c);
    return l;
}

static void test_spilled_counts_are_the_same(void **state) {
    int64_t spilled;
    (void)state;
    listing all = list_many(PLENTY, 1, &spilled);
    assert_int_equal(spilled, 0);
    assert_int_equal(all.count, 120000);
    assert_true(all.words > 15000 && all.words <= 20000);
    static const size_t caps[] = { 1 << 20, 3 << 20 };
    for (size_t i = 0; i < COUNT_OF(caps); i++) {
        for (int workers = 1; workers <= 3; workers += 2) {
            listing l = list_many(caps[i], workers, &spilled);
            assert_true(spilled > 0);
            assert_memory_equal(&l, &all, sizeof l);
        }
    }
}

/* A table that was spilled is empty again: what fits is counted there, not written each time. */
static void test_spilling_frees_the_table(void **state) {
    enum { LENGTH = 1100, MANY = 8000, FEW = 100, TIMES = 200 };
    (void)state;
    word_counts *c = word_counts_new(5 << 20, 1);
    char text[LENGTH];
    memset(text, 'x', LENGTH);
    for (int i = 0; i < MANY; i++) {
        memcpy(text, &i, sizeof i);
        assert_ok(word_counts_add(c, 0, text, LENGTH, 1));
    }
    int64_t before = word_counts_spilled(c);
    assert_true(before > MANY * LENGTH / 4);
    for (int i = 0; i < FEW * TIMES; i++) {
        int which = i % FEW;
        memcpy(text, &which, sizeof which);
        assert_ok(word_counts_add(c, 0, text, LENGTH, 1));
    }
    assert_true(word_counts_spilled(c) - before < (5 << 20));
    assert_ok(word_counts_seal(c));
    listing l = { 0 };
    assert_ok(word_counts_each(c, true, list_word, &l));
    assert_int_equal(l.words, MANY);
    assert_int_equal(l.count, MANY + FEW * TIMES);
    word_counts_free(c);
}

static word_counts *counts_of_fixture(const fixture *f, size_t memory) {
    json_t *line = NULL;
    char *text = NULL, *rest = NULL;
    splitter *s = NULL;
    word_counts *c = word_counts_new(memory, 1);
    assert_ok(splitter_new(f->o.pattern, &s));
    assert_ok(io_read(f->path, 1 << 20, &text, NULL));
    for (char *at = strtok_r(text, "\n", &rest); at; at = strtok_r(NULL, "\n", &rest)) {
        assert_ok(io_json_parse(at, strlen(at), f->path, &line));
        const char *doc = json_string_value(json_object_get(line, "text"));
        size_t n = strlen(doc);
        for (size_t from = 0, to; from < n; from = to) {
            to = splitter_next(s, doc, n, from);
            assert_ok(word_counts_add(c, 0, doc + from, to - from, 1));
        }
        json_decref(line);
    }
    free(text);
    splitter_free(s);
    assert_ok(word_counts_seal(c));
    return c;
}

static void test_spilled_merges_are_the_same(void **state) {
    (void)state;
    for (int i = 0; i < fixture_count(); i++) {
        fixture f = fixture_open(i);
        f.o.special = f.special;
        f.o.memory = PLENTY;
        if (strcmp(f.name, "english") == 0 || strcmp(f.name, "repeats") == 0) {
            word_counts *c = counts_of_fixture(&f, 128 << 10);
            assert_true(word_counts_spilled(c) > 0);
            bpe_learned l;
            assert_ok(bpe_learn(c, &f.o, NULL, &l));
            assert_learned(&l, &f);
            bpe_learned_free(&l);
            word_counts_free(c);
        }
        fixture_close(&f);
    }
}

/* Under a cap that all words would break, the rarest are left out: as if they had not been there. */
static void test_rarest_words_left_out(void **state) {
    enum { RARE = 20000 };
    const word frequent[] = { { "abcd", 9 }, { "abce", 8 }, { "bcde", 7 } };
    (void)state;
    bpe_learned expected = learn(counts_of(frequent, 3, PLENTY), 50, 1, PLENTY);
    word_counts *c = word_counts_new(PLENTY, 1);
    for (int i = 0; i < RARE; i++) {
        char text[32];
        snprintf(text, sizeof text, "zz%dyy", i);
        assert_ok(word_counts_add(c, 0, text, strlen(text), 1));
    }
    for (int i = 0; i < 3; i++)
        assert_ok(word_counts_add(c, 0, frequent[i].text, 4, frequent[i].count));
    assert_ok(word_counts_seal(c));
    bpe_learned l = learn(c, 50, 1, (3 << 20) + (64 << 10));
    assert_int_equal(l.n_merges, expected.n_merges);
    assert_memory_equal(l.merges, expected.merges, (size_t)l.n_merges * sizeof *l.merges);
    bpe_learned_free(&l);
    bpe_learned_free(&expected);
}

static void test_memory_too_little(void **state) {
    const word words[] = { { "abcd", 9 } };
    tokenizer_options o = { .vocab = 300, .memory = 1000 };
    bpe_learned l;
    (void)state;
    word_counts *c = counts_of(words, 1, PLENTY);
    assert_error(bpe_learn(c, &o, NULL, &l), "too little to learn");
    bpe_learned_free(&l);
    word_counts_free(c);
}

static void test_no_space_for_temporary_files(void **state) {
    char before[512];
    const char *was = getenv("TMPDIR");
    (void)state;
    snprintf(before, sizeof before, "%s", was ? was : "");
    setenv("TMPDIR", "/nowhere/at/all", 1);
    word_counts *c = word_counts_new(1 << 10, 1);
    assert_ok(word_counts_add(c, 0, "abc", 3, 1));
    err e = word_counts_seal(c);
    if (was)
        setenv("TMPDIR", before, 1);
    else
        unsetenv("TMPDIR");
    assert_non_null(e);
    assert_non_null(strstr(err_remedy(e), "TMPDIR"));
    assert_error(e, "/nowhere/at/all");
    word_counts_free(c);
}

/* ---- from files to a tokenizer ------------------------------------------------------------------------- */

static err train(const char *path, tokenizer_options o, tokenizer **out) {
    text_inputs *in = inputs_of(path, 0);
    o.quiet = true;
    err e = tokenizer_learn(in, &o, out);
    text_inputs_close(in);
    return e;
}

static void test_tokenizer_from_text(void **state) {
    static const char *const special[] = { "<|endoftext|>" };
    static const char text[] = "the cat and the hat and the bat\n";
    const char *path = folder_write(*state, "text.txt", text);
    const char *out = in_folder(*state, "tokenizer.json");
    tokenizer *t = NULL, *again = NULL;
    tokenizer_options o = { .vocab = 262, .min_frequency = 2, .special = special, .n_special = 1 };
    assert_ok(train(path, o, &t));
    assert_int_equal(tokenizer_vocab(t), 262);
    assert_int_equal(tokenizer_eos(t), 0);
    assert_int_equal(tokenizer_find(t, "!", 1), 1); /* the first byte of the alphabet */
    assert_true(tokenizer_find(t, " the", 4) > 256);
    assert_ok(tokenizer_save(t, out));
    assert_ok(tokenizer_open(out, NULL, &again));
    assert_int_equal(tokenizer_hash(again), tokenizer_hash(t));
    encoder *e = encoder_new(again);
    token_ids ids = { 0 };
    encoder_add(e, text, sizeof text - 1, false, &ids);
    assert_true(ids.n < 20);
    str back = { 0 };
    tokenizer_decode(again, ids.at, ids.n, true, &back);
    assert_string_equal(back.text, text);
    str_free(&back);
    token_ids_free(&ids);
    encoder_free(e);
    tokenizer_free(t);
    tokenizer_free(again);
}

static void test_nothing_to_learn_from(void **state) {
    const char *path = folder_write(*state, "text.txt", "");
    tokenizer *t = NULL;
    assert_error(train(path, (tokenizer_options){ .vocab = 300 }, &t), "no text to learn from");
    assert_null(t);
}

static void test_wrong_options(void **state) {
    static const char *const special[] = { "<a>", "" };
    const char *path = folder_write(*state, "text.txt", "some text");
    tokenizer *t = NULL;
    tokenizer_options o = { .vocab = 256, .special = special, .n_special = 1 };
    assert_error(train(path, o, &t), "too small");
    o.vocab = 257;
    assert_ok(train(path, o, &t));
    tokenizer_free(t);
    o.n_special = 2;
    assert_error(train(path, o, &t), "empty");
    static const char *const twin[] = { "e" };
    o = (tokenizer_options){ .vocab = 300, .special = twin, .n_special = 1 };
    assert_error(train(path, o, &t), "one id cannot be both");
    o = (tokenizer_options){ .vocab = (int64_t)1 << 40 };
    assert_error(train(path, o, &t), "more than");
    o = (tokenizer_options){ .vocab = 300, .pattern = "a(" };
    assert_error(train(path, o, &t), "a(");
}

/* ---- Metaspace ------------------------------------------------------------------------------------------ */

static void assert_ids(const tokenizer *t, const json_t *text, const char *name) {
    const char *source = json_string_value(json_object_get(text, "text"));
    const json_t *ids = json_object_get(text, "ids");
    token_ids got = ids_of(t, source, strlen(source), true);
    bool same = got.n == json_array_size(ids);
    for (size_t i = 0; same && i < got.n; i++)
        same = got.at[i] == json_integer_value(json_array_get(ids, i));
    if (!same) fail_msg("%s: other ids for \"%s\"", name, source);
    token_ids_free(&got);
}

/* The file is the same for any number of threads, and encodes as Hugging Face's library does. */
static void test_metaspace_files(void **state) {
    static const int threads[] = { 1, 2, 5 };
    static const char *const files[] = { "1.json", "2.json", "5.json" };
    int tested = 0;
    for (int i = 0; i < fixture_count(); i++) {
        fixture f = fixture_open(i);
        f.o.special = f.special;
        for (size_t k = 0; f.o.metaspace && k < COUNT_OF(threads); k += SANITIZED ? 2 : 1) {
            tokenizer *t = NULL;
            f.o.threads = threads[k];
            assert_ok(train(f.path, f.o, &t));
            assert_ok(tokenizer_save(t, in_folder(*state, files[k])));
            assert_same_files(*state, files[0], files[k]);
            tokenizer_free(t);
        }
        if (f.o.metaspace) {
            const json_t *texts = json_object_get(f.expected, "texts"), *text;
            size_t k;
            tokenizer *t = open_tokenizer(in_folder(*state, files[0]), NULL);
            json_array_foreach(texts, k, text) assert_ids(t, text, f.name);
            tested += (int)k;
            tokenizer_free(t);
        }
        fixture_close(&f);
    }
    assert_true(tested >= 40);
}

static const char *const UNKNOWN[] = { "<unk>", "<s>", "</s>" };

static tokenizer_options over_chars(int64_t vocab) {
    return (tokenizer_options){ .vocab = vocab,
                                .metaspace = METASPACE_ALWAYS,
                                .coverage = 1,
                                .special = UNKNOWN,
                                .n_special = (int)COUNT_OF(UNKNOWN) };
}

static void assert_ids_and_text(const tokenizer *t, const char *text, size_t n, const char *back) {
    str decoded = { 0 };
    token_ids ids = ids_of(t, text, strlen(text), false);
    assert_int_equal(ids.n, n);
    tokenizer_decode(t, ids.at, ids.n, true, &decoded);
    assert_string_equal(decoded.text, back);
    token_ids_free(&ids);
    str_free(&decoded);
}

/* A character beyond the coverage has no token, and nothing is learned across it. */
static void test_rare_characters(void **state) {
    str text = { 0 };
    for (int i = 0; i < 200; i++) str_add(&text, "abab ");
    str_add(&text, "b\xC3\xA9"
                   "b b\xC3\xA9"
                   "b b\xC3\xA9"
                   "b");
    const char *path = folder_write(*state, "text.txt", text.text);
    tokenizer_options o = over_chars(280);
    tokenizer *t = NULL;
    o.coverage = 0.99;
    assert_ok(train(path, o, &t));
    assert_int_equal(tokenizer_find(t, "\xC3\xA9", 2), -1);
    assert_int_equal(tokenizer_find(t, "bb", 2),
                     -1); /* would be a pair of Hugging Face's trainer */
    assert_ids_and_text(t, "abab", 1, "abab");
    assert_ids_and_text(t, "abab\xC3\xA9\xC3\xA9", 2, "abab<unk>");
    tokenizer_free(t);
    o.byte_fallback = true;
    assert_ok(train(path, o, &t));
    assert_ids_and_text(t, "abab\xC3\xA9 \xC3\xA9", 6, "abab\xC3\xA9 \xC3\xA9");
    tokenizer_free(t);
    o.coverage = 1;
    assert_ok(train(path, o, &t));
    assert_true(tokenizer_find(t, "b\xC3\xA9", 3) > 0);
    tokenizer_free(t);
    str_free(&text);
}

/* Text that spells the name of a byte or of a special token stays text. */
static void test_names_of_tokens_are_not_learned(void **state) {
    str text = { 0 };
    for (int i = 0; i < 50; i++)
        str_add(&text, "%c<0x41>%c %c</s>%c ", 'a' + i % 7, 'm' + i % 9, 'm' + i % 8, 'a' + i % 11);
    const char *path = folder_write(*state, "text.txt", text.text);
    tokenizer_options o = over_chars(1000);
    tokenizer *t = NULL;
    o.byte_fallback = true;
    assert_ok(train(path, o, &t));
    assert_int_equal(tokenizer_find(t, "<0x41>", 6), 3 + 0x41);
    token_ids ids = ids_of(t, "a<0x41>m b</s>c", 15, false);
    for (size_t i = 0; i < ids.n; i++) assert_true(ids.at[i] >= 3 + 256);
    token_ids_free(&ids);
    tokenizer_free(t);
    str_free(&text);
}

static void test_wrong_options_over_characters(void **state) {
    static const char *const twice[] = { "<unk>", "<s>", "<s>" }, *const letter[] = { "<unk>",
                                                                                      "e" };
    const char *path = folder_write(*state, "text.txt", "some text");
    tokenizer *t = NULL;
    assert_error(train(path, over_chars(6), &t), "7 characters to begin with");
    tokenizer_options o = over_chars(100);
    o.special = twice;
    assert_error(train(path, o, &t), "listed twice");
    o.special = letter;
    o.n_special = 2;
    assert_error(train(path, o, &t), "one id cannot be both");
    o = over_chars(258);
    o.byte_fallback = true;
    assert_error(train(path, o, &t), "256 bytes");
    assert_null(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_like_hugging_face),
        cmocka_unit_test(test_counts_beyond_32_bits),
        cmocka_unit_test(test_minimum_frequency),
        cmocka_unit_test(test_words_of_one_byte),
        cmocka_unit_test(test_random_words_like_plain),
        cmocka_unit_test(test_long_word),
        cmocka_unit_test(test_spilled_counts_are_the_same),
        cmocka_unit_test(test_spilling_frees_the_table),
        cmocka_unit_test(test_spilled_merges_are_the_same),
        cmocka_unit_test(test_rarest_words_left_out),
        cmocka_unit_test(test_memory_too_little),
        cmocka_unit_test(test_no_space_for_temporary_files),
        cmocka_unit_test_setup_teardown(test_tokenizer_from_text, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_nothing_to_learn_from, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_wrong_options, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_metaspace_files, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_rare_characters, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_names_of_tokens_are_not_learned, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(test_wrong_options_over_characters, folder_setup,
                                        folder_teardown),
    };
    log_set_level(LOG_ERROR); /* running out of pairs or memory is a warning, and meant here */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
