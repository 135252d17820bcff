/* Words, sentences and the verdicts of each rule set are those of datatrove (fixtures/datatrove), document by document:
 * by the rules that are compiled in, which is the default, and with --words FILE. The file of the fixture has a few rules
 * of our own, and its documents are those on which they agree with spaCy's. */
#include "support/filter.h"
#include "support/folder.h"

#include <jansson.h>

#include "curate/filter_internal.h"

#define RULES FIXTURES "/datatrove/rules.json"

/* Calls check for each document of the fixture. @return how many there are. */
static int each_document(void (*check)(const json_t *row, void *ctx), void *ctx) {
    FILE *f = fopen(FIXTURES "/datatrove/documents.jsonl", "r");
    char *line = NULL;
    size_t cap = 0;
    int n = 0;
    assert_non_null(f);
    for (ssize_t len; (len = getline(&line, &cap, f)) > 0; n++) {
        json_t *row = json_loadb(line, (size_t)len, JSON_ALLOW_NUL, NULL);
        assert_non_null(row);
        check(row, ctx);
        json_decref(row);
    }
    free(line);
    fclose(f);
    return n;
}

/* ---- words ------------------------------------------------------------------------------------ */

typedef struct splitting {
    word_rules *w;
    word_scratch *s;
} splitting;

static bool is_space_at(const char *p, int *n) {
    uint32_t cp;
    *n = utf8_decode(p, &cp);
    return (unicode_class(cp) & CLASS_SPACE) || (cp >= 0x1C && cp <= 0x1F);
}

static void add_words(splitting *c, const char *text, str *out) {
    for (int n; *text;) {
        const char *end = text;
        while (*end && !is_space_at(end, &n)) end += n;
        size_t words = 0;
        const uint32_t *bytes =
            end > text ? word_rules_split(c->w, c->s, text, (size_t)(end - text), &words) : NULL;
        for (size_t i = 0; i < words; text += bytes[i++])
            str_add(out, "%s%.*s", out->len ? " " : "", (int)bytes[i], text);
        assert_ptr_equal(text, end);
        for (; *text && is_space_at(text, &n); text += n) continue;
    }
}

static void check_words(const json_t *row, void *ctx) {
    const char *text = json_string_value(json_object_get(row, "text"));
    const char *want = json_string_value(json_object_get(row, "words"));
    str got = { 0 };
    str_add(&got, "%s", "");
    add_words(ctx, text, &got);
    assert_string_equal(got.text, want);
    str_free(&got);
}

static void words_are_those_of_datatrove(void **state) {
    splitting c = { .s = word_scratch_new() };
    assert_ok(word_rules_read(RULES, &c.w));
    for (int pass = 0; pass < 2; pass++) /* the second from what is remembered */
        assert_true(each_document(check_words, &c) > 200);
    word_scratch_free(c.s);
    word_rules_free(c.w);
}

/* Chunks of any length take time in proportion to it, and all of their bytes are in words. */
static void long_chunks_are_split(void **state) {
    enum { N = 1 << 20 };
    static const char *const units[] = { ")",    ".",       "a",  "a-",
                                         "1,",   "http://", "a@", "\xE2\x80\x94",
                                         "(a.b/" };
    splitting c = { .s = word_scratch_new() };
    char *text = mem_alloc(N + 16);
    assert_ok(word_rules_read(RULES, &c.w));
    for (size_t k = 0; k < COUNT_OF(units); k++) {
        size_t len = strlen(units[k]), n = N / len * len, words, sum = 0;
        for (size_t i = 0; i < n; i += len) memcpy(text + i, units[k], len);
        const uint32_t *bytes = word_rules_split(c.w, c.s, text, n, &words);
        for (size_t i = 0; i < words; i++) sum += bytes[i];
        assert_int_equal(sum, n);
    }
    free(text);
    word_scratch_free(c.s);
    word_rules_free(c.w);
}

/* ---- rules ------------------------------------------------------------------------------------- */

/* Writes the rules of the fixture with another value of a member; NULL: without it. @return the path. */
static const char *rules_with(test_folder *f, const char *member, const char *value) {
    json_t *rules = NULL, *v = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    assert_true(!value || v);
    assert_ok(io_json_read(RULES, &rules));
    if (v)
        json_object_set_new(rules, member, v);
    else
        json_object_del(rules, member);
    char *text = json_dumps(rules, 0);
    const char *path = folder_write_bytes(f, "rules.json", text, strlen(text));
    json_decref(rules);
    free(text);
    return path;
}

static void wrong_rules_are_refused(void **state) {
    static const struct {
        const char *member, *value, *expected;
    } of[] = {
        { "url", NULL, "expected a string; got nothing" },
        { "prefix", "7", "expected a string; got an integer" },
        { "infix", "\"\"", "the pattern is empty" },
        { "suffix", "\"a(b\"", "does not compile: missing closing parenthesis, at byte 3" },
        { "infix", "\"\\\\C\"", "does not compile" }, /* would split a character */
        { "exceptions", NULL, "expected an object" },
        { "exceptions", "{\"\": [1]}", "a text of 1 to 255 bytes" },
        { "exceptions", "{\"don't\": 5}", "an array of 1 to 4 lengths" },
        { "exceptions", "{\"don't\": []}", "an array of 1 to 4 lengths" },
        { "exceptions", "{\"don't\": [1, 1, 1, 1, 1]}", "an array of 1 to 4 lengths" },
        { "exceptions", "{\"don't\": [2, 2]}", "lengths that sum to the bytes of the text" },
        { "exceptions", "{\"don't\": [2, 4]}", "lengths that sum to the bytes of the text" },
        { "exceptions", "{\"don't\": [6, -1]}", "lengths that sum to the bytes of the text" },
        { "exceptions", "{\"don't\": [5, 0]}", "lengths that sum to the bytes of the text" },
        { "exceptions", "{\"don't\": [\"do\", \"n't\"]}", "lengths that sum to" },
        { "exceptions", "{\"caf\u00e9\": [4, 1]}", "tokens of whole characters" },
        { "punctuation", "{}", "expected an array; got an object" },
        { "punctuation", "[[33, 47], [40, 50]]", "[1]: expected [from, to]" },
        { "sentence_ends", "[[47, 33]]", "[0]: expected [from, to]" },
        { "sentence_ends", "[[33]]", "[0]: expected [from, to]" },
        { "sentence_ends", "[33]", "[0]: expected [from, to]" },
        { "sentence_ends", "[[33, 1114112]]", "[0]: expected [from, to]" },
    };
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        word_rules *w = NULL;
        const char *path = rules_with(*state, of[i].member, of[i].value);
        assert_error(word_rules_read(path, &w), "rules.json", of[i].member, of[i].expected);
        assert_null(w);
    }
}

/* An exception of the greatest length, and more of them than any table has by default. */
static void exceptions_of_any_number_are_found(void **state) {
    enum { N = 5000 };
    word_rules *w = NULL;
    word_scratch *s = word_scratch_new();
    str value = { 0 };
    size_t words;
    char text[256];
    str_add(&value, "{\"%0255d\": [254, 1]", 0);
    for (int i = 0; i < N; i++) str_add(&value, ", \"%05da\": [5, 1]", i);
    str_add(&value, "}");
    assert_ok(word_rules_read(rules_with(*state, "exceptions", value.text), &w));
    for (int i = 0; i < N; i++) {
        snprintf(text, sizeof text, "%05da", i);
        const uint32_t *bytes = word_rules_split(w, s, text, 6, &words);
        assert_true(words == 2 && bytes[0] == 5 && bytes[1] == 1);
    }
    memset(text, '0', 255);
    const uint32_t *bytes = word_rules_split(w, s, text, 255, &words);
    assert_true(words == 2 && bytes[0] == 254 && bytes[1] == 1);
    str_free(&value);
    word_scratch_free(s);
    word_rules_free(w);
}

/* Patterns that match nothing between characters, or that move where a match begins, lose no bytes and split
 * no character. */
static void odd_patterns_split_between_characters(void **state) {
    static const char text[] = "\xC3\xA9\xE2\x82\xAC-\xF0\x9F\x91\x8D\xC3\xA9";
    static const char *const members[] = { "prefix", "suffix", "infix" };
    static const char *const patterns[] = { "\"x*\"",    "\".\\\\K\"", "\".\\\\K.\"",
                                            "\"(?=.)\"", "\"\\\\b\"",  "\"(?<=.)\"" };
    for (size_t i = 0; i < COUNT_OF(members) * COUNT_OF(patterns); i++) {
        word_rules *w = NULL;
        word_scratch *s = word_scratch_new();
        size_t words, at = 0;
        assert_ok(word_rules_read(
            rules_with(*state, members[i % COUNT_OF(members)], patterns[i / COUNT_OF(members)]),
            &w));
        const uint32_t *bytes = word_rules_split(w, s, text, strlen(text), &words);
        for (size_t k = 0; k < words; at += bytes[k++])
            assert_true(bytes[k] > 0 && ((unsigned char)text[at] & 0xC0) != 0x80);
        assert_int_equal(at, strlen(text));
        word_scratch_free(s);
        word_rules_free(w);
    }
}

/* A transform that is resumed with another file, or with none, must notice it. */
static void rules_are_in_the_hash(void **state) {
    const char *files[] = { NULL, "space", RULES, RULES, rules_with(*state, "infix", "\"-\"") };
    uint64_t hash[COUNT_OF(files)];
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        filter_options o = filter_defaults();
        filter *f = NULL;
        o.words = files[i];
        assert_ok(filter_new(&o, 1, &f));
        hash[i] = filter_transform(f).hash;
        filter_free(f);
    }
    assert_true(hash[0] != hash[1] && hash[2] == hash[3]);
    assert_true(hash[0] != hash[2] && hash[2] != hash[4] && hash[0] != hash[4]);
}

/* ---- verdicts --------------------------------------------------------------------------------- */

static const struct {
    const char *reason;
    int rule;
} reasons[] = {
    { "dup_para_frac", FILTER_repeat_paragraphs },
    { "dup_para_char_frac", FILTER_repeat_paragraph_chars },
    { "dup_line_frac", FILTER_repeat_lines },
    { "dup_line_char_frac", FILTER_repeat_line_chars },
    { "top_2_gram", FILTER_top_2gram },
    { "top_3_gram", FILTER_top_3gram },
    { "top_4_gram", FILTER_top_4gram },
    { "duplicated_5_n_grams", FILTER_repeat_5gram },
    { "duplicated_6_n_grams", FILTER_repeat_6gram },
    { "duplicated_7_n_grams", FILTER_repeat_7gram },
    { "duplicated_8_n_grams", FILTER_repeat_8gram },
    { "duplicated_9_n_grams", FILTER_repeat_9gram },
    { "duplicated_10_n_grams", FILTER_repeat_10gram },
    { "gopher_short_doc", FILTER_gopher_min_words },
    { "gopher_long_doc", FILTER_gopher_max_words },
    { "gopher_below_avg_threshold", FILTER_gopher_min_length },
    { "gopher_above_avg_threshold", FILTER_gopher_max_length },
    { "gopher_too_many_hashes", FILTER_gopher_hashes },
    { "gopher_too_many_ellipsis", FILTER_gopher_ellipses },
    { "gopher_too_many_bullets", FILTER_gopher_bullets },
    { "gopher_too_many_end_ellipsis", FILTER_gopher_line_ellipses },
    { "gopher_below_alpha_threshold", FILTER_gopher_letters },
    { "gopher_enough_stop_words", FILTER_gopher_stop_words },
    { "lorem_ipsum", FILTER_c4_lorem_ipsum },
    { "curly_bracket", FILTER_c4_braces },
    { "too_few_sentences", FILTER_c4_sentences },
    { "line_punct_ratio", FILTER_fineweb_ends },
    { "short_line_ratio", FILTER_fineweb_short },
    { "char_dup_ratio", FILTER_fineweb_repeats },
    { "list_ratio", FILTER_fineweb_newlines },
    { "keep", TEXT_KEEP },
};

static int rule_of(const char *reason) {
    for (size_t i = 0; i < COUNT_OF(reasons); i++)
        if (strcmp(reasons[i].reason, reason) == 0) return reasons[i].rule;
    fail_msg("no rule is called %s", reason);
    return 0;
}

typedef struct verdict_check {
    const char *set;
    filter *f;
    int kept, dropped, edited;
} verdict_check;

static void check_verdict(const json_t *row, void *ctx) {
    verdict_check *c = ctx;
    const json_t *text = json_object_get(row, "text"), *want = json_object_get(row, c->set);
    const char *reason = json_string_value(json_array_get(want, 0));
    const char *edited = json_string_value(json_array_get(want, 1));
    /* datatrove divides by no words, and has a name of its own for no lines; we never see such documents. */
    if (strcmp(reason, "error") == 0 || strcmp(reason, "empty") == 0) return;
    int64_t count[FILTER_COUNTER_COUNT] = { 0 };
    text_doc d = { .text = { json_string_value(text), json_string_length(text) } };
    text_verdict v = { .rule = TEXT_KEEP, .text = d.text, .count = count };
    assert_ok(filter_judge(c->f, 0, 0, &d, &v));
    if (v.rule != rule_of(reason))
        fail_msg("%s: expected %s, got %s (%g) for \"%.300s\"", c->set, reason,
                 v.rule < 0 ? "kept" : filter_rules[v.rule].name, v.value, d.text.at);
    if (!edited) edited = d.text.at;
    if (v.rule == TEXT_KEEP) {
        assert_int_equal(v.text.len, strlen(edited));
        assert_memory_equal(v.text.at, edited, v.text.len);
    }
    c->kept += v.rule == TEXT_KEEP;
    c->dropped += v.rule != TEXT_KEEP;
    c->edited += v.text.at != d.text.at;
}

static void verdicts_are_those_of_datatrove(void **state) {
    static const char *const sets[] = { "gopher-repetition", "gopher-quality", "c4", "c4-no-punct",
                                        "fineweb" };
    static const char *const words[] = { RULES, "en" };
    for (size_t k = 0; k < COUNT_OF(sets) * COUNT_OF(words); k++) {
        size_t i = k % COUNT_OF(sets);
        filter_options o = filter_defaults();
        verdict_check c = { .set = sets[i] };
        o.sets = sets[i];
        o.words = words[k / COUNT_OF(sets)];
        o.limit[FILTER_gopher_min_words] = 20; /* as make.py has it */
        o.limit[FILTER_fineweb_repeats] = 0.1;
        if (strcmp(sets[i], "c4") == 0) o.limit[FILTER_c4_sentences] = 3;
        assert_ok(filter_new(&o, 1, &c.f));
        each_document(check_verdict, &c);
        filter_free(c.f);
        assert_true(c.kept > 10 && c.dropped > 10);
    }
}

/* By default a document is measured by the rules of its language, and by English where none is likely. */
static double letter_words(const char *words, const char *text) {
    filter_options o = filter_defaults();
    o.sets = "gopher-quality";
    o.words = words;
    o.limit[FILTER_gopher_min_words] = o.limit[FILTER_gopher_min_length] = 0;
    o.limit[FILTER_gopher_letters] = 2; /* every document fails it */
    filter *f = NULL;
    int64_t count[FILTER_COUNTER_COUNT] = { 0 };
    text_doc d = { .text = span_of(text) };
    text_verdict v = { .rule = TEXT_KEEP, .text = d.text, .count = count };
    assert_ok(filter_new(&o, 1, &f));
    assert_ok(filter_judge(f, 0, 0, &d, &v));
    filter_free(f);
    assert_int_equal(v.rule, FILTER_gopher_letters);
    return v.value;
}

static void rules_follow_the_language(void **state) {
    static const char german[] =
        "Das Haus am Fluss ist alt, d.h. es wurde vor langer Zeit gebaut. Die Kinder spielen u.a. im "
        "Garten, z.T. auch im Wald, und die Eltern sehen ihnen z.B. vom Fenster aus zu.";
    static const char none[] = "12:30 d.h. 4,5 -- 77 z.B. ** 8/9 don't";
    assert_true(letter_words("de", german) != letter_words("en", german));
    assert_true(letter_words(NULL, german) == letter_words("de", german));
    assert_true(letter_words("auto", german) == letter_words("de", german));
    assert_true(letter_words("de", none) != letter_words("en", none));
    assert_true(letter_words(NULL, none) == letter_words("en", none));
}

/* The tokenizer of Indian languages splits at spaces and tabs: words on lines of their own are one, unless a mark is between. */
static void lines_of_indian_languages_do_not_end_words(void **state) {
    static const struct {
        const char *between;
        double words;
    } cases[] = { { " ", 40 },   { "\t", 40 },  { "\n", 1 },
                  { "।\n", 40 }, { "\n ", 40 }, { "\xC2\xA0", 1 } };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        str text = { 0 };
        filter_options o = filter_defaults();
        o.sets = "gopher-quality";
        o.words = "ben_Beng";
        add_times(&text, 40, "কথা", cases[i].between);
        verdict got = judge(&o, text.text, "");
        if (got.rule != FILTER_gopher_min_words || got.value != cases[i].words)
            fail_msg("case %zu: %g words, expected %g", i, got.value, cases[i].words);
        free(got.text);
        str_free(&text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_those_of_datatrove),
        cmocka_unit_test(long_chunks_are_split),
        cmocka_unit_test_setup_teardown(wrong_rules_are_refused, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(exceptions_of_any_number_are_found, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(odd_patterns_split_between_characters, folder_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(rules_are_in_the_hash, folder_setup, folder_teardown),
        cmocka_unit_test(verdicts_are_those_of_datatrove),
        cmocka_unit_test(rules_follow_the_language),
        cmocka_unit_test(lines_of_indian_languages_do_not_end_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
