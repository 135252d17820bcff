/* --words datatrove: words, sentences and the verdicts of each rule set are those of datatrove
 * (fixtures/datatrove), document by document. */
#include "support/filter.h"

#include <jansson.h>

#include "curate/filter_internal.h"

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
    english_words *w;
    english_scratch *s;
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
            end > text ? english_words_split(c->w, c->s, text, (size_t)(end - text), &words) : NULL;
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
    splitting c = { .s = english_scratch_new() };
    assert_ok(english_words_new(&c.w));
    for (int pass = 0; pass < 2; pass++) /* the second from what is remembered */
        assert_true(each_document(check_words, &c) > 200);
    english_scratch_free(c.s);
    english_words_free(c.w);
}

/* Chunks of any length take time in proportion to it, and all of their bytes are in words. */
static void long_chunks_are_split(void **state) {
    enum { N = 1 << 20 };
    static const char *const units[] = { ")",    ".",       "a",  "a-",
                                         "1,",   "http://", "a@", "\xE2\x80\x94",
                                         "(a.b/" };
    splitting c = { .s = english_scratch_new() };
    char *text = mem_alloc(N + 16);
    assert_ok(english_words_new(&c.w));
    for (size_t k = 0; k < COUNT_OF(units); k++) {
        size_t len = strlen(units[k]), n = N / len * len, words, sum = 0;
        for (size_t i = 0; i < n; i += len) memcpy(text + i, units[k], len);
        const uint32_t *bytes = english_words_split(c.w, c.s, text, n, &words);
        for (size_t i = 0; i < words; i++) sum += bytes[i];
        assert_int_equal(sum, n);
    }
    free(text);
    english_scratch_free(c.s);
    english_words_free(c.w);
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
    for (size_t i = 0; i < COUNT_OF(sets); i++) {
        filter_options o = filter_defaults();
        verdict_check c = { .set = sets[i] };
        o.sets = sets[i];
        o.words = "datatrove";
        o.limit[FILTER_gopher_min_words] = 20; /* as make.py has it */
        o.limit[FILTER_fineweb_repeats] = 0.1;
        if (strcmp(sets[i], "c4") == 0) o.limit[FILTER_c4_sentences] = 3;
        assert_ok(filter_new(&o, 1, &c.f));
        each_document(check_verdict, &c);
        filter_free(c.f);
        assert_true(c.kept > 10 && c.dropped > 10);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_those_of_datatrove),
        cmocka_unit_test(long_chunks_are_split),
        cmocka_unit_test(verdicts_are_those_of_datatrove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
