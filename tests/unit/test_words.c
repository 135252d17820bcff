/* The word rules of languages (word_tables.c) and Unicode's word breaks (word_breaks.c): the words are those of the
 * tokenizers that datatrove uses, and of another implementation of UAX #29 (fixtures/datatrove). */
#include "support/test.h"

#include <jansson.h>

#include "curate/word_rules.h"
#include "text/text.h"

typedef struct words_fixture {
    word_tables *tables;
    word_scratch *scratch;
} words_fixture;

static int open_words(void **state) {
    words_fixture *f = mem_alloc(sizeof *f);
    f->tables = word_tables_new();
    f->scratch = word_scratch_new();
    *state = f;
    return 0;
}
static int close_words(void **state) {
    words_fixture *f = *state;
    word_scratch_free(f->scratch);
    word_tables_free(f->tables);
    free(f);
    return 0;
}

static const word_rules *rules_of(const words_fixture *f, const char *language) {
    int rules = word_tables_find(f->tables, language);
    if (rules < 0) fail_msg("%s has no rules", language);
    return word_tables_get(f->tables, rules);
}

/* Appends the words of a text, whose only white space is the space. */
static void add_text_words(const words_fixture *f, const word_rules *w, const char *text,
                           str *out) {
    str_add(out, "%s", "");
    while (*text) {
        size_t n = strcspn(text, " "), words = 0;
        const uint32_t *bytes = n ? word_rules_split(w, f->scratch, text, n, &words) : NULL;
        for (size_t i = 0; i < words; text += bytes[i++])
            str_add(out, "%s%.*s", out->len ? " " : "", (int)bytes[i], text);
        text += strspn(text, " ");
    }
}

static void check_text(const words_fixture *f, const char *language, const char *text,
                       const char *want) {
    str got = { 0 };
    add_text_words(f, rules_of(f, language), text, &got);
    if (strcmp(got.text, want) != 0)
        fail_msg("%s: \"%s\": expected \"%s\", got \"%s\"", language, text, want, got.text);
    str_free(&got);
}

/* Calls check with each line of a fixture. @return how many there are. */
static int each_row(const char *path, words_fixture *f,
                    void (*check)(words_fixture *f, const json_t *row)) {
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t cap = 0;
    int n = 0;
    assert_non_null(file);
    for (ssize_t len; (len = getline(&line, &cap, file)) > 0; n++) {
        json_t *row = json_loadb(line, (size_t)len, 0, NULL);
        assert_non_null(row);
        check(f, row);
        json_decref(row);
    }
    free(line);
    fclose(file);
    return n;
}

static const char *member_text(const json_t *row, const char *name) {
    return json_string_value(json_object_get(row, name));
}

static void check_language_row(words_fixture *f, const json_t *row) {
    check_text(f, member_text(row, "language"), member_text(row, "text"),
               member_text(row, "words"));
}

static void words_of_languages_are_those_of_datatrove(void **state) {
    for (int pass = 0; pass < 2; pass++) /* the second from what is remembered, mixed by language */
        assert_true(each_row(FIXTURES "/datatrove/languages.jsonl", *state, check_language_row) >
                    450);
}

/* Belarusian has no rules of its own. */
static void check_break_row(words_fixture *f, const json_t *row) {
    str want = { 0 };
    size_t i;
    json_t *word;
    json_array_foreach(json_object_get(row, "words"), i, word)
        str_add(&want, "%s%s", i ? " " : "", json_string_value(word));
    check_text(f, "be", member_text(row, "text"), want.text);
    str_free(&want);
}

static void word_breaks_are_those_of_the_standard(void **state) {
    assert_true(each_row(FIXTURES "/datatrove/breaks.jsonl", *state, check_break_row) == 800);
}

/* Korean is cut into pairs of syllables, which are about as many as its morphemes. With ICU's dictionaries words of several characters are found; without them each character is one. Punctuation and
 * numbers are words of their own either way. */
static void scripts_without_spaces_are_split(void **state) {
    static const struct {
        const char *language, *text, *with, *without;
    } of[] = {
        { "zh", "我喜欢吃苹果。1949年", "我 喜欢 吃 苹果 。 1949 年",
          "我 喜 欢 吃 苹 果 。 1949 年" },
        { "th", "สวัสดีครับ", "สวัสดี ครับ", "ส วั ส ดี ค รั บ" },
        { "ko", "쿠버네티스는 vSphere용 3개", "쿠버 네티 스는 vSphere 용 3 개",
          "쿠버 네티 스는 vSphere 용 3 개" },
        { "ja", "東京は、カタカナ。", "東京 は 、 カタカナ 。", "東 京 は 、 カタカナ 。" },
    };
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        str got = { 0 };
        add_text_words(*state, rules_of(*state, of[i].language), of[i].text, &got);
        if (strcmp(got.text, of[i].with) != 0) assert_string_equal(got.text, of[i].without);
        str_free(&got);
    }
}

/* Keys of datatrove and labels of fastText's models lead to rules; what is neither to none. */
static void languages_have_rules(void **state) {
    static const char *const same[][2] = { { "en", "eng_Latn" }, { "en", "eng" },
                                           { "de", "deu_Latn" }, { "no", "nb" },
                                           { "zh", "cmn_Hani" }, { "sr", "bs" } };
    const words_fixture *f = *state;
    for (size_t i = 0; i < COUNT_OF(same); i++) {
        assert_true(word_tables_find(f->tables, same[i][0]) >= 0);
        assert_int_equal(word_tables_find(f->tables, same[i][0]),
                         word_tables_find(f->tables, same[i][1]));
    }
    assert_true(word_tables_find(f->tables, "en") != word_tables_find(f->tables, "de"));
    assert_int_equal(word_tables_find(f->tables, "english"), -1);
    assert_int_equal(word_tables_find(f->tables, ""), -1);
    assert_true(word_tables_any(f->tables) >= 0);
}

/* No byte is lost and no character split, in chunks of random characters, by the rules of every language. */
static void all_bytes_are_in_words(void **state) {
    static const char *const parts[] = { "a",
                                         "Z",
                                         "9",
                                         ".",
                                         ",",
                                         "-",
                                         "'",
                                         "\xC3\xA9",
                                         "\xE4\xB8\xAD",
                                         "\xD7\x90",
                                         "(",
                                         ")",
                                         ":",
                                         "/",
                                         "$",
                                         "\xE2\x80\xA6",
                                         "\xF0\x9F\x91\x8D",
                                         "\xCC\x81",
                                         "\xE0\xB8\x81",
                                         "km",
                                         "http://",
                                         "@" };
    static const char *const languages[] = { "en", "de", "fr", "hu", "tr", "id",
                                             "ro", "hi", "ur", "th", "xx", "el" };
    words_fixture *f = *state;
    uint64_t seed = 5;
    for (int i = 0; i < 3000; i++) {
        str text = { 0 };
        int n = 1 + (int)(hash_bytes(&i, sizeof i, seed) % 40);
        for (int k = 0; k < n; k++) {
            int at[2] = { i, k };
            str_add(&text, "%s", parts[hash_bytes(at, sizeof at, seed + 1) % COUNT_OF(parts)]);
        }
        const char *language = languages[i % (int)COUNT_OF(languages)];
        const word_rules *w = strcmp(language, "xx") == 0
                                  ? word_tables_get(f->tables, word_tables_any(f->tables))
                                  : rules_of(f, language);
        size_t words = 0, at = 0;
        const uint32_t *bytes = word_rules_split(w, f->scratch, text.text, text.len, &words);
        for (size_t k = 0; k < words; at += bytes[k++])
            assert_true(bytes[k] > 0 && ((unsigned char)text.text[at] & 0xC0) != 0x80);
        assert_int_equal(at, text.len);
        str_free(&text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_of_languages_are_those_of_datatrove),
        cmocka_unit_test(word_breaks_are_those_of_the_standard),
        cmocka_unit_test(scripts_without_spaces_are_split),
        cmocka_unit_test(languages_have_rules),
        cmocka_unit_test(all_bytes_are_in_words),
    };
    return cmocka_run_group_tests(tests, open_words, close_words);
}
