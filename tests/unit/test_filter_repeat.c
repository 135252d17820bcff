/* Gopher's repetition rules: each with a text on its limit and one just beyond. */
#include "support/filter.h"

static const char set[] = "gopher-repetition";

/* Ten paragraphs or lines, `copies` of them repeats of a short one. */
static str with_copies(int copies, const char *between) {
    str s = { 0 };
    for (int i = 0; i < 10 - copies - 1; i++) {
        for (int w = 0; w < 12; w++) add_unique(&s, i * 12 + w, 5), str_add(&s, " ");
        str_add(&s, "end%s", between);
    }
    add_times(&s, copies + 1, "no", between);
    s.text[--s.len] = 0;
    return s;
}

static void test_paragraphs(void **state) {
    str kept = with_copies(3, "\n\n"), dropped = with_copies(4, "\n\n");
    expect_kept(set, &kept);
    expect_dropped(set, &dropped, FILTER_repeat_paragraphs, 0.4);
}

static void test_lines(void **state) {
    str kept = with_copies(3, "\n"), dropped = with_copies(4, "\n");
    expect_kept(set, &kept);
    expect_dropped(set, &dropped, FILTER_repeat_lines, 0.4);
}

/* A piece of 20 characters twice, in a text of `length`. */
static str with_piece(const char *between, size_t length) {
    str s = { 0 };
    str_add(&s, "twenty characters it%stwenty characters it%s", between, between);
    size_t begin = s.len;
    str_add(&s, "one%stwo%sthree%s", between, between, between);
    str_add(&s, "%s", "four ");
    fill_to(&s, length);
    assert_true(s.len == length && begin < length);
    return s;
}

static void test_characters_in_copies(void **state) {
    static const struct {
        const char *between;
        int rule;
    } of[] = { { "\n\n", FILTER_repeat_paragraph_chars }, { "\n", FILTER_repeat_line_chars } };
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        filter_options o = filter_defaults();
        o.sets = set;
        for (int rule = FILTER_top_2gram; rule <= FILTER_repeat_10gram; rule++) o.limit[rule] = 9;
        str kept = with_piece(of[i].between, 100), dropped = with_piece(of[i].between, 99);
        verdict a = judge(&o, kept.text, ""), b = judge(&o, dropped.text, "");
        assert_int_equal(a.rule, TEXT_KEEP);
        assert_int_equal(b.rule, of[i].rule);
        assert_true(b.value == 20.0 / 99);
        free(a.text), free(b.text);
        str_free(&kept), str_free(&dropped);
    }
}

/* Lines are alike whatever white space is around them; blank ones do not count as lines. */
static void test_white_space_around_lines(void **state) {
    filter_options o = filter_defaults();
    o.sets = set;
    for (int rule = FILTER_repeat_paragraphs; rule < FILTER_gopher_min_words; rule++)
        o.limit[rule] = 9;
    o.limit[FILTER_repeat_lines] = 0.49;
    verdict got = judge(&o, "same line\r\n \t \n\n  same line \nother\nthird one\n\n", "");
    assert_int_equal(got.rule, TEXT_KEEP);
    free(got.text);
    o.limit[FILTER_repeat_lines] = 0.2;
    got = judge(&o, "same line\r\n \t \n\n  same line \nother\nthird one\n\n", "");
    assert_int_equal(got.rule, FILTER_repeat_lines);
    assert_true(got.value == 0.25);
    free(got.text);
}

/* A run of words `times` over, each time between words that occur once. */
static str with_run(const char *run, int times, size_t length) {
    str s = { 0 };
    for (int i = 0; i < times; i++) {
        str_add(&s, "%s x", run);
        add_unique(&s, i, 4);
        str_add(&s, " ");
    }
    fill_to(&s, length);
    assert_int_equal(s.len, length);
    return s;
}

static void test_most_frequent_runs(void **state) {
    static const struct {
        const char *run;
        size_t length;
        int rule;
    } of[] = {
        { "ab cd", 100, FILTER_top_2gram },        /* 5 × 4 / 100 = 0.20 */
        { "abc de fg", 200, FILTER_top_3gram },    /* 9 × 4 / 200 = 0.18 */
        { "abc de fg hi", 300, FILTER_top_4gram }, /* 12 × 4 / 300 = 0.16 */
    };
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        str kept = with_run(of[i].run, 4, of[i].length);
        expect_kept(set, &kept);
        str dropped = with_run(of[i].run, 4, of[i].length - 1);
        double part = (double)strlen(of[i].run) * 4 / (double)(of[i].length - 1);
        expect_dropped(set, &dropped, of[i].rule, part);
    }
}

/* Eight runs of n words with three letters, each there twice. */
static str with_runs(int n, size_t length) {
    str s = { 0 };
    for (int i = 0; i < 16; i++) {
        for (int w = 0; w < n; w++) add_unique(&s, 100 + (i / 2) * n + w, 3), str_add(&s, " ");
        str_add(&s, "x");
        add_unique(&s, i, 4);
        str_add(&s, " ");
    }
    fill_to(&s, length);
    assert_int_equal(s.len, length);
    return s;
}

static void test_repeated_runs(void **state) {
    for (int n = 5; n <= 10; n++) {
        int rule = FILTER_repeat_5gram + n - 5;
        double chars = 8 * 3 * n, limit = filter_rules[rule].limit;
        size_t length = (size_t)(chars / limit);
        while (chars / (double)length > limit) length++;
        str kept = with_runs(n, length);
        expect_kept(set, &kept);
        str dropped = with_runs(n, length - 1);
        expect_dropped(set, &dropped, rule, chars / (double)(length - 1));
    }
}

/* The plain way to count characters in repeated runs, on words of one letter. */
static int64_t plain_repeats(const char *words, int count, int n) {
    bool seen[1024] = { 0 };
    int64_t chars = 0;
    for (int i = 0; i + n <= count;) {
        bool before = false;
        for (int k = 0; k < i; k++)
            before |= seen[k] && memcmp(words + k, words + i, (size_t)n) == 0;
        seen[i] = !before;
        chars += before ? n : 0;
        i += before ? n : 1;
    }
    return chars;
}

/* Runs are looked at again only where they may repeat; that must not change what is counted. */
static void test_repeated_runs_plainly(void **state) {
    for (uint64_t seed = 0; seed < 60; seed++) {
        rng_key key = rng_key_of(7, seed);
        char words[200], text[400];
        int count = 60 + (int)seed * 2, letters = 2 + (int)seed % 5;
        for (int i = 0; i < count; i++) {
            words[i] = (char)('a' + rng_below(key, (uint64_t)i, (uint64_t)letters));
            text[2 * i] = words[i], text[2 * i + 1] = ' ';
        }
        text[2 * count - 1] = 0;
        for (int n = 5; n <= 10; n++) {
            filter_options o = filter_defaults();
            o.sets = set;
            for (int r = 0; r < FILTER_RULE_COUNT; r++) o.limit[r] = 9;
            o.limit[FILTER_repeat_5gram + n - 5] = 0;
            double want = (double)plain_repeats(words, count, n) / (double)(2 * count - 1);
            verdict got = judge(&o, text, "");
            assert_int_equal(got.rule, want > 0 ? FILTER_repeat_5gram + n - 5 : TEXT_KEEP);
            if (want > 0) assert_true(got.value == want);
            free(got.text);
        }
    }
}

/* Words of a text, for the plain way to measure datatrove's n-grams. */
enum { MOST_WORDS = 400 };
typedef struct plain_words {
    char word[MOST_WORDS][8];
    int n;
} plain_words;

static void join_gram(const plain_words *w, int at, int n, const char *between, char out[128]) {
    out[0] = 0;
    for (int i = 0; i < n; i++) {
        if (i) strcat(out, between);
        strcat(out, w->word[at + i]);
    }
}

/* Characters of the most frequent n-gram, the first of equals, times its count. */
static int64_t plain_top_gram(const plain_words *w, int n) {
    int most = 0;
    char first[128] = "", a[128], b[128];
    for (int i = 0; i + n <= w->n; i++) {
        int count = 0;
        join_gram(w, i, n, " ", a);
        for (int k = 0; k + n <= w->n; k++) {
            join_gram(w, k, n, " ", b);
            count += strcmp(a, b) == 0;
        }
        if (count > most) most = count, memcpy(first, a, sizeof a);
    }
    return (int64_t)strlen(first) * most;
}

/* Characters of n-grams whose text, their words joined without spaces, occurred before. */
static int64_t plain_joined_repeats(const plain_words *w, int n) {
    static char seen[MOST_WORDS][128];
    int n_seen = 0;
    int64_t chars = 0;
    for (int i = 0; i + n <= w->n;) {
        char a[128];
        bool before = false;
        join_gram(w, i, n, "", a);
        for (int k = 0; k < n_seen && !before; k++) before = strcmp(seen[k], a) == 0;
        if (!before) memcpy(seen[n_seen++], a, sizeof a);
        chars += before ? (int64_t)strlen(a) : 0;
        i += before ? n : 1;
    }
    return chars;
}

/* datatrove's n-grams, of words of 1 to 7 letters: texts that are joined from other words compare equal, and words whose
 * bytes are alike do not. */
static void test_datatrove_grams_plainly(void **state) {
    for (uint64_t seed = 0; seed < 24; seed++) {
        plain_words w = { .n = 40 + (int)seed * 15 };
        str text = { 0 };
        rng_key key = rng_key_of(11, seed);
        uint64_t letters = 1 + seed % 3, longest = 1 + seed % 7, copied = seed % 5;
        for (int i = 0; i < w.n; i++) {
            uint64_t at = (uint64_t)i * 16;
            int len = 1 + (int)rng_below(key, at, longest);
            for (int k = 0; k < len; k++)
                w.word[i][k] = "qrz"[rng_below(key, at + 1 + (uint64_t)k, letters)];
            if (i > 30 && rng_below(key, at + 9, 8) < copied)
                memcpy(w.word[i], w.word[i - 30], sizeof w.word[i]);
            str_add(&text, "%s%s", i ? " " : "", w.word[i]);
        }
        for (int n = 2; n <= 10; n++) {
            int rule = n < 5 ? FILTER_top_2gram + n - 2 : FILTER_repeat_5gram + n - 5;
            filter_options o = filter_defaults();
            o.sets = set;
            o.words = "en";
            for (int r = 0; r < FILTER_RULE_COUNT; r++) o.limit[r] = 999;
            o.limit[rule] = -1;
            double want = (double)(n < 5 ? plain_top_gram(&w, n) : plain_joined_repeats(&w, n));
            verdict got = judge(&o, text.text, "");
            assert_int_equal(got.rule, rule);
            if (got.value != want / (double)text.len)
                fail_msg("seed %d, %d-grams: expected %g characters, got %g", (int)seed, n, want,
                         got.value * (double)text.len);
            free(got.text);
        }
        str_free(&text);
    }
}

static void test_odd_texts(void **state) {
    static const char *const texts[] = { " ", "\n", "\n\n\n", "a", "a\n", "\xC3\xA9", "\t \r\n x" };
    for (size_t i = 0; i < COUNT_OF(texts); i++) expect_verdict(set, texts[i], TEXT_KEEP, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paragraphs),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_characters_in_copies),
        cmocka_unit_test(test_white_space_around_lines),
        cmocka_unit_test(test_most_frequent_runs),
        cmocka_unit_test(test_repeated_runs),
        cmocka_unit_test(test_repeated_runs_plainly),
        cmocka_unit_test(test_datatrove_grams_plainly),
        cmocka_unit_test(test_odd_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
