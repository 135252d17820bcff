/* The tests of filters share these: judging one text by one rule set, and texts of exact measures. */
#ifndef INGOT_TESTS_FILTER_H
#define INGOT_TESTS_FILTER_H

#include "support/test.h"

#include "curate/curate.h"

static inline text_span span_of(const char *text) { return (text_span){ text, strlen(text) }; }

/* A verdict, with the text in memory of its own. */
typedef struct verdict {
    int rule;
    double value;
    char *text;
    int64_t count[FILTER_COUNTER_COUNT];
} verdict;

/* Judges with words at white space, unless the options name others: test_datatrove.c is about those. */
static inline verdict judge(const filter_options *o, const char *text, const char *url) {
    filter *f = NULL;
    filter_options with = *o;
    if (!with.words) with.words = "space";
    err e = filter_new(&with, 1, &f);
    if (e) fail_msg("%s", err_message(e));
    verdict got = { .rule = TEXT_KEEP };
    text_doc d = { .text = span_of(text), .url = span_of(url) };
    text_verdict v = { .rule = TEXT_KEEP, .text = d.text, .count = got.count };
    assert_null(filter_judge(f, 0, 0, &d, &v));
    got.rule = v.rule;
    got.value = v.value;
    got.text = mem_alloc(v.text.len + 1);
    memcpy(got.text, v.text.at, v.text.len);
    filter_free(f);
    return got;
}

/* Judges by one rule set with its own limits. @param rule that drops it, or TEXT_KEEP. */
static inline void expect_verdict(const char *set, const char *text, int rule, double value) {
    filter_options o = filter_defaults();
    o.sets = set;
    verdict got = judge(&o, text, "");
    if (got.rule != rule ||
        (rule != TEXT_KEEP && (got.value < value - 1e-9 || got.value > value + 1e-9)))
        fail_msg("%s: expected %s (%g), got %s (%g) for: %.60s...", set,
                 rule < 0 ? "kept" : filter_rules[rule].name, value,
                 got.rule < 0 ? "kept" : filter_rules[got.rule].name, got.value, text);
    free(got.text);
}

static inline void expect_kept(const char *set, str *text) {
    expect_verdict(set, text->text, TEXT_KEEP, 0);
    str_free(text);
}
static inline void expect_dropped(const char *set, str *text, int rule, double value) {
    expect_verdict(set, text->text, rule, value);
    str_free(text);
}

/* Appends `word` n times, each with `end`. */
static inline void add_times(str *s, int n, const char *word, const char *end) {
    for (int i = 0; i < n; i++) str_add(s, "%s%s", word, end);
}

/* Appends a word of n letters that is like no other of the same series. */
static inline void add_unique(str *s, int number, int n) {
    char word[64];
    for (int i = 0; i < n; i++, number /= 7) word[i] = (char)('a' + number % 7);
    str_add_bytes(s, word, (size_t)n);
}

/* Appends words that occur once, of five letters or a few more at the end, up to `length` bytes. */
static inline void fill_to(str *s, size_t length) {
    for (int i = 0; s->len < length; i++) {
        if (s->len && s->text[s->len - 1] != ' ' && s->text[s->len - 1] != '\n') str_add(s, " ");
        size_t left = length - s->len;
        add_unique(s, i, left < 12 ? (int)left : 5);
    }
}

#endif
