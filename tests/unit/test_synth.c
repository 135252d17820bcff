/* The synthetic corpus: reproducible, independent of ranges, planted as asked, readable. */
#include "support/test.h"

#include <ctype.h>

#include "shards/data.h"

static str document(uint64_t seed, int64_t index, const synth_options *o, synth_info *info) {
    str text = { 0 };
    synth_info got = data_synth_document(seed, index, o, &text);
    if (info) *info = got;
    assert_non_null(text.text);
    assert_int_equal(strlen(text.text), text.len);
    return text;
}

static bool same(str a, str b) {
    bool equal = a.len == b.len && memcmp(a.text, b.text, a.len) == 0;
    str_free(&a);
    str_free(&b);
    return equal;
}

static void same_seed_and_index_give_the_same_text(void **state) {
    for (int64_t i = 40; i >= 0; i--) /* backwards: the order of making must not matter */
        assert_true(same(document(7, i, NULL, NULL), document(7, i, NULL, NULL)));
    assert_false(same(document(7, 3, NULL, NULL), document(8, 3, NULL, NULL)));
    assert_false(same(document(7, 3, NULL, NULL), document(7, 4, NULL, NULL)));
    assert_false(same(document(7, 3, NULL, NULL), document(7, 3 + ((int64_t)1 << 40), NULL, NULL)));
}

/* Pinned, so that a run's data does not change under it unnoticed, and is the same bytes whatever
 * the machine and the compiler. */
static void assert_pinned(const synth_options *o, uint64_t pinned) {
    str all = { 0 };
    for (int64_t i = 0; i < 50; i++) data_synth_document(1, i, o, &all);
    uint64_t hash = hash_bytes(all.text, all.len, 0);
    str_free(&all);
    if (hash != pinned) print_message("the text hashes to 0x%llx\n", (unsigned long long)hash);
    assert_true(hash == pinned);
}

static void text_is_pinned(void **state) { assert_pinned(NULL, 0xd7e9a752b84ec87f); }

static void planted_text_is_pinned(void **state) {
    static const uint64_t pinned[PLANT_COUNT] = {
        [PLANT_DUPLICATE] = 0x59a2083948ca62bf,   [PLANT_NEAR_DUPLICATE] = 0x4bad92bb1da5707f,
        [PLANT_BOILERPLATE] = 0x7031ad3732b65605, [PLANT_MARKUP] = 0xa3b3ef0b3e4daa76,
        [PLANT_GARBAGE] = 0x92c97796fdfc76da,
    };
    for (int k = PLANT_NONE + 1; k < PLANT_COUNT; k++) {
        synth_options o = { 0 };
        o.plant[k] = 0.6;
        assert_pinned(&o, pinned[k]);
    }
}

static void appends_and_leaves_what_was_there(void **state) {
    str text = { 0 }, alone = document(1, 1, NULL, NULL);
    str_add(&text, "before");
    data_synth_document(1, 1, NULL, &text);
    assert_int_equal(text.len, 6 + alone.len);
    assert_memory_equal(text.text, "before", 6);
    assert_string_equal(text.text + 6, alone.text);
    str_free(&text);
    str_free(&alone);
}

/* ---- how it reads ---------------------------------------------------------------------------- */

static void check_sentence_marks(const str *t) {
    char last = t->text[t->len - 1];
    assert_true(strchr(".!?\"", last) != NULL);
    int quotes = 0;
    for (size_t i = 0; i < t->len; i++) {
        char c = t->text[i], next = t->text[i + 1];
        assert_true(c == '\n' || (c >= ' ' && c < 127));
        assert_null(strchr("[]{}`|", c)); /* notation that was not expanded */
        assert_false(c == ' ' && (next == ' ' || next == '.' || next == ',' || next == 0));
        if ((c == '.' || c == '?' || c == '!') && next == ' ' && t->text[i + 2] != '"')
            assert_false(islower((unsigned char)t->text[i + 2]));
        if (c == '"' && ++quotes % 2) assert_false(islower((unsigned char)next));
        if (c == '\n') assert_int_equal(quotes % 2, 0); /* none stays open over a paragraph */
    }
    assert_int_equal(quotes % 2, 0);
}

static void check_articles(const char *text) {
    for (const char *p = text; (p = strstr(p, " a ")); p++)
        assert_true(!strchr("aeio", p[3]) || strncmp(p + 3, "one", 3) == 0);
    for (const char *p = text; (p = strstr(p, " an ")); p++) {
        bool right = strchr("aeiou", p[4]) || strncmp(p + 4, "hour", 4) == 0;
        if (!right) print_message("%.40s\n", p);
        assert_true(right);
    }
}

static void every_document_is_clean_text(void **state) {
    for (int64_t i = 0; i < 3000; i++) {
        str t = document(5, i, NULL, NULL);
        assert_in_range(t.len, 300, 4000);
        check_sentence_marks(&t);
        check_articles(t.text);
        str_free(&t);
    }
}

static int compare_hashes(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void documents_and_sentences_vary(void **state) {
    enum { N = 2000, SENTENCES = 200000 };
    static uint64_t documents[N], sentences[SENTENCES];
    int n = 0, distinct = 0;
    for (int64_t i = 0; i < N; i++) {
        str t = document(6, i, NULL, NULL);
        documents[i] = hash_bytes(t.text, t.len, 0);
        for (const char *p = t.text; *p;) {
            size_t len = strcspn(p, ".!?\n");
            len += strspn(p + len, ".!?\n\" ");
            assert_true(n < SENTENCES);
            sentences[n++] = hash_bytes(p, len, 0);
            p += len;
        }
        str_free(&t);
    }
    sort_array(documents, N, sizeof *documents, compare_hashes);
    for (int i = 1; i < N; i++) assert_true(documents[i] != documents[i - 1]);
    sort_array(sentences, (size_t)n, sizeof *sentences, compare_hashes);
    for (int i = 0; i < n; i++) distinct += i == 0 || sentences[i] != sentences[i - 1];
    assert_true(distinct > 5000);
}

/* ---- planting -------------------------------------------------------------------------------- */

static const synth_options PLANTS = { .plant = { [PLANT_DUPLICATE] = 0.1,
                                                 [PLANT_NEAR_DUPLICATE] = 0.05,
                                                 [PLANT_BOILERPLATE] = 0.03,
                                                 [PLANT_MARKUP] = 0.02,
                                                 [PLANT_GARBAGE] = 0.04 } };

static void planted_in_the_numbers_asked_for(void **state) {
    enum { N = 4000 };
    int count[PLANT_COUNT] = { 0 };
    for (int64_t i = 0; i < N; i++) {
        synth_info info;
        str t = document(11, i, &PLANTS, &info);
        count[info.planted]++;
        str_free(&t);
    }
    for (int k = PLANT_NONE + 1; k < PLANT_COUNT; k++) {
        int expected = (int)(PLANTS.plant[k] * N + 0.5);
        assert_in_range(count[k], expected - 8, expected + 8);
    }
}

static void copies_are_of_clean_earlier_documents(void **state) {
    for (int64_t i = 0; i < 2000; i++) {
        synth_info info, original;
        str t = document(11, i, &PLANTS, &info);
        bool copy = info.planted == PLANT_DUPLICATE || info.planted == PLANT_NEAR_DUPLICATE;
        if (copy) {
            assert_in_range(info.of, 0, i - 1);
            str o = document(11, info.of, &PLANTS, &original);
            assert_int_equal(original.planted, PLANT_NONE);
            bool equal = o.len == t.len && memcmp(o.text, t.text, o.len) == 0;
            assert_int_equal(equal, info.planted == PLANT_DUPLICATE);
            str_free(&o);
        } else {
            assert_int_equal(info.of, -1);
        }
        str_free(&t);
    }
}

/* Runs of five words, as a near-duplicate filter sees them. */
static int shingles(const str *t, uint64_t *out, int max) {
    const char *word[5] = { 0 };
    int n = 0, words = 0;
    for (const char *p = t->text; *p; words++) {
        size_t len = strcspn(p, " \n");
        memmove(word, word + 1, 4 * sizeof *word);
        word[4] = p;
        if (words >= 4 && n < max) out[n++] = hash_bytes(word[0], (size_t)(p + len - word[0]), 0);
        p += len + strspn(p + len, " \n");
    }
    return n;
}

static double jaccard(const str *a, const str *b) {
    enum { MAX_SHINGLES = 2000 };
    static uint64_t x[MAX_SHINGLES], y[MAX_SHINGLES];
    int n = shingles(a, x, MAX_SHINGLES), m = shingles(b, y, MAX_SHINGLES), both = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++)
            if (x[i] == y[j]) {
                both++;
                break;
            }
    return (double)both / (n + m - both);
}

static void near_duplicates_share_most_runs_of_words(void **state) {
    double sum = 0;
    int n = 0;
    for (int64_t i = 0; i < 3000; i++) {
        synth_info info;
        str t = document(11, i, &PLANTS, &info);
        if (info.planted == PLANT_NEAR_DUPLICATE) {
            str o = document(11, info.of, &PLANTS, NULL);
            double j = jaccard(&t, &o);
            assert_true(j > 0.6 && j < 1);
            sum += j;
            n++;
            str_free(&o);
        }
        str_free(&t);
    }
    assert_true(n > 100 && sum / n > 0.75);
}

static void spoiled_documents_show_it(void **state) {
    for (int64_t i = 0; i < 2000; i++) {
        synth_info info;
        str t = document(11, i, &PLANTS, &info);
        if (info.planted == PLANT_BOILERPLATE) assert_non_null(strstr(t.text, "Copyright"));
        if (info.planted == PLANT_MARKUP) assert_non_null(strstr(t.text, "<script>"));
        if (info.planted == PLANT_GARBAGE) assert_null(strstr(t.text, ". "));
        if (info.planted == PLANT_NONE) {
            str plain = document(11, i, NULL, NULL);
            assert_string_equal(plain.text, t.text);
            str_free(&plain);
        }
        str_free(&t);
    }
}

static void fractions_are_checked(void **state) {
    assert_null(synth_options_check(&PLANTS));
    synth_options bad = { .plant = { [PLANT_GARBAGE] = 1.5 } };
    err e = synth_options_check(&bad);
    assert_non_null(e);
    assert_non_null(strstr(err_message(e), "garbage"));
    err_free(e);
    bad = (synth_options){ .plant = { [PLANT_GARBAGE] = 0.6, [PLANT_MARKUP] = 0.6 } };
    e = synth_options_check(&bad);
    assert_non_null(e);
    err_free(e);
    bad = (synth_options){ .plant = { [PLANT_MARKUP] = -0.1 } };
    e = synth_options_check(&bad);
    assert_non_null(e);
    err_free(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_seed_and_index_give_the_same_text),
        cmocka_unit_test(text_is_pinned),
        cmocka_unit_test(planted_text_is_pinned),
        cmocka_unit_test(appends_and_leaves_what_was_there),
        cmocka_unit_test(every_document_is_clean_text),
        cmocka_unit_test(documents_and_sentences_vary),
        cmocka_unit_test(planted_in_the_numbers_asked_for),
        cmocka_unit_test(copies_are_of_clean_earlier_documents),
        cmocka_unit_test(near_duplicates_share_most_runs_of_words),
        cmocka_unit_test(spoiled_documents_show_it),
        cmocka_unit_test(fractions_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
