/* Filters: Gopher quality, C4, FineWeb and basic, each rule with a text on its limit and one just
 * beyond; what is counted in text that is not ASCII; how the steps follow one another. */
#include "support/filter.h"

#include <unistd.h>

/* ---- Gopher quality -------------------------------------------------------------------------- */

static const char gopher[] = "gopher-quality";

/* The stop words that are asked for, and `n` words more. */
static str with_words(int n, const char *word) {
    str s = { 0 };
    str_add(&s, "The of, ");
    add_times(&s, n, word, " ");
    return s;
}

static void test_gopher_words(void **state) {
    str kept = with_words(48, "word"), dropped = with_words(47, "word");
    add_times(&dropped, 20, "-- * ***", " "); /* words without a letter or digit do not count */
    expect_kept(gopher, &kept);
    expect_dropped(gopher, &dropped, FILTER_gopher_min_words, 49);
    str most = with_words(100000 - 2, "word"), too_many = with_words(100000 - 1, "word");
    expect_kept(gopher, &most);
    expect_dropped(gopher, &too_many, FILTER_gopher_max_words, 100001);
}

static void test_gopher_word_length(void **state) {
    str three = { 0 }, less = { 0 };
    add_times(&three, 25, "the and", " ");
    expect_kept(gopher, &three);
    add_times(&less, 24, "the and", " ");
    str_add(&less, "the of");
    expect_dropped(gopher, &less, FILTER_gopher_min_length, 149.0 / 50);
    str characters = { 0 }; /* two of them in four bytes are too few */
    add_times(&characters, 50, "\xC3\xA9\xC3\xA9", " ");
    expect_dropped(gopher, &characters, FILTER_gopher_min_length, 2);
    for (int longer = 0; longer < 2; longer++) { /* (2×3 + 46×10 + 17 + 17 or 18) / 50 */
        str s = { 0 };
        str_add(&s, "the and aaaaaaaaaaaaaaaaa aaaaaaaaaaaaaaaaa%s ", longer ? "a" : "");
        add_times(&s, 46, "aaaaaaaaaa", " ");
        if (longer)
            expect_dropped(gopher, &s, FILTER_gopher_max_length, 501.0 / 50);
        else
            expect_kept(gopher, &s);
    }
}

static void test_gopher_symbols(void **state) {
    static const struct {
        const char *symbol;
        int rule;
    } of[] = { { "word#", FILTER_gopher_hashes },
               { "word...", FILTER_gopher_ellipses },
               { "word\xE2\x80\xA6", FILTER_gopher_ellipses } };
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        str kept = with_words(52, "words"), dropped = with_words(51, "words");
        add_times(&kept, 6, of[i].symbol, " ");
        add_times(&dropped, 7, of[i].symbol, " ");
        str_add(&kept, "\n\n\n\n"); /* the line is one of five */
        expect_kept(gopher, &kept);
        expect_dropped(gopher, &dropped, of[i].rule, 7.0 / 60);
    }
}

static void test_gopher_ellipses_do_not_overlap(void **state) {
    str kept = with_words(55, "words");
    add_times(&kept, 3, "words......", " ");
    str_add(&kept, "\n\n\n\n");
    expect_kept(gopher, &kept);
}

/* Ten lines, n of them with something at the beginning and end. */
static str with_lines(int n, const char *before, const char *after) {
    str s = { 0 };
    for (int i = 0; i < 10; i++)
        str_add(&s, "  %sthe line of a very plain text it is%s \n", i < n ? before : "",
                i < n ? after : "");
    return s;
}

static void test_gopher_lines(void **state) {
    static const char *const bullets[] = { "- ", "\xE2\x80\xA2" };
    for (size_t i = 0; i < COUNT_OF(bullets); i++) {
        str kept = with_lines(9, bullets[i], ""), dropped = with_lines(10, bullets[i], "");
        expect_kept(gopher, &kept);
        expect_dropped(gopher, &dropped, FILTER_gopher_bullets, 1);
    }
    static const char *const ends[] = { "...", "\xE2\x80\xA6" };
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        str kept = with_lines(3, "", ends[i]), dropped = with_lines(4, "", ends[i]);
        expect_kept(gopher, &kept);
        expect_dropped(gopher, &dropped, FILTER_gopher_line_ellipses, 0.4);
    }
}

static void test_gopher_letters(void **state) {
    str kept = with_words(78, "word"), dropped = with_words(77, "word");
    add_times(&kept, 20, "2024", " ");
    add_times(&dropped, 21, "2024", " ");
    expect_kept(gopher, &kept);
    expect_dropped(gopher, &dropped, FILTER_gopher_letters, 0.79);
}

static void test_gopher_stop_words(void **state) {
    static const char *const pairs[] = { "the be", "TO \"of\"", "(and) that,", "Have with.",
                                         "be be the" };
    for (size_t i = 0; i < COUNT_OF(pairs); i++) {
        str kept = { 0 };
        str_add(&kept, "%s ", pairs[i]);
        add_times(&kept, 60, "word", " ");
        expect_kept(gopher, &kept);
    }
    str one = { 0 };
    add_times(&one, 30, "the them", " ");
    expect_dropped(gopher, &one, FILTER_gopher_stop_words, 1);
}

/* ---- FineWeb --------------------------------------------------------------------------------- */

static const char fineweb[] = "fineweb";

/* Lines of five words that are all different. */
static void add_lines(str *s, int n, int first, int word, const char *end) {
    for (int i = 0; i < n; i++) {
        for (int w = 0; w < 5; w++) {
            add_unique(s, (first + i) * 5 + w, word);
            if (w < 4) str_add(s, " ");
        }
        str_add(s, "%s\n", end);
    }
}

static void test_fineweb_line_ends(void **state) {
    static const char *const ends[] = { ".", "!", "?", "\xE3\x80\x82", "\xE0\xA5\xA4", ".  " };
    for (size_t i = 0; i < COUNT_OF(ends); i++) {
        str kept = { 0 }, dropped = { 0 };
        add_lines(&kept, 3, 0, 8, ends[i]), add_lines(&kept, 22, 3, 8, "");
        str_add(&kept, " \n\n\n"); /* blank ones are not counted */
        add_lines(&dropped, 2, 0, 8, ends[i]), add_lines(&dropped, 23, 2, 8, ",");
        expect_kept(fineweb, &kept);
        expect_dropped(fineweb, &dropped, FILTER_fineweb_ends, 0.08);
    }
}

static void test_fineweb_short_lines(void **state) {
    str kept = { 0 }, dropped = { 0 }; /* 5 × 5 + 4 + 1 = 30 characters, or 5 × 6 + 5 */
    add_lines(&kept, 67, 0, 5, "."), add_lines(&kept, 33, 67, 6, ".");
    add_lines(&dropped, 68, 0, 5, "."), add_lines(&dropped, 32, 68, 6, ".");
    expect_kept(fineweb, &kept);
    expect_dropped(fineweb, &dropped, FILTER_fineweb_short, 0.68);
}

static void test_fineweb_repeats(void **state) {
    for (int less = 0; less < 2; less++) { /* 10 of 1000 or 999 characters, line ends not counted */
        str s = { 0 };
        str_add(&s, "ten chars.\nten chars.\n");
        add_lines(&s, 10, 0, 15, ".");
        fill_to(&s, (size_t)(1000 + 12 - less));
        if (less)
            expect_dropped(fineweb, &s, FILTER_fineweb_repeats, 10.0 / 999);
        else
            expect_kept(fineweb, &s);
    }
}

static void test_fineweb_newlines(void **state) {
    for (int more = 0; more < 2; more++) { /* 30 or 31 for 100 words */
        str s = { 0 };
        for (int i = 0; i < 100; i++) {
            add_unique(&s, i, 16);
            bool end = i % 3 == 2 && i / 3 < 30 + more;
            str_add(&s, "%s", end ? ".\n" : " ");
        }
        if (more)
            expect_dropped(fineweb, &s, FILTER_fineweb_newlines, 0.31);
        else
            expect_kept(fineweb, &s);
    }
    expect_verdict(fineweb, " \n ", FILTER_fineweb_ends, 0);
}

/* Arrays of words and lines grow in the middle of a line; nothing may be lost. */
static void test_many_lines(void **state) {
    for (int repeated = 0; repeated < 2; repeated++) {
        str s = { 0 };
        add_lines(&s, 5000, 0, 8, ".");
        str_add(&s, "a line of its own.\n");
        add_lines(&s, repeated * 200, 0, 8, ".");
        if (repeated) /* 200 of 5200 lines with 45 characters, and 18 more */
            expect_dropped(fineweb, &s, FILTER_fineweb_repeats, 200.0 * 45 / (5200 * 45 + 18));
        else
            expect_kept(fineweb, &s);
    }
}

/* ---- basic ----------------------------------------------------------------------------------- */

static const char basic[] = "basic";

static void test_basic(void **state) {
    str kept = { 0 }, few = { 0 }, most = { 0 }, many = { 0 }, less = { 0 };
    add_times(&kept, 50, "word", " "), add_times(&few, 49, "word", " ");
    expect_kept(basic, &kept);
    expect_dropped(basic, &few, FILTER_basic_min_words, 49);
    add_times(&most, 100000, "word", " "), add_times(&many, 100001, "word", " ");
    expect_kept(basic, &most);
    expect_dropped(basic, &many, FILTER_basic_max_words, 100001);
    add_times(&kept, 50, "abc", " ");
    expect_kept(basic, &kept);
    add_times(&less, 49, "abc", " "), str_add(&less, "ab");
    expect_dropped(basic, &less, FILTER_basic_length, 149.0 / 50);
}

static void test_basic_symbols_and_letters(void **state) {
    str kept = { 0 }, dropped = { 0 };
    add_times(&kept, 56, "words", " "), add_times(&kept, 2, "words# words...", " ");
    expect_kept(basic, &kept);
    add_times(&kept, 54, "words", " "), add_times(&kept, 3, "words# words...", " ");
    expect_kept(basic, &kept);
    add_times(&dropped, 53, "words", " "), add_times(&dropped, 3, "words# words...", " ");
    str_add(&dropped, "words...");
    expect_dropped(basic, &dropped, FILTER_basic_symbols, 7.0 / 60);
    /* 7 letters of 10 characters, the space among them; with one digit more, 6.99 */
    add_times(&kept, 100, "abcdefg12", " ");
    expect_kept(basic, &kept);
    add_times(&dropped, 100, "abcdefg12", " "), str_add(&dropped, "3");
    expect_dropped(basic, &dropped, FILTER_basic_letters, 700.0 / 1001);
}

/* ---- C4 -------------------------------------------------------------------------------------- */

/* Returns what C4 leaves of a text, with enough sentences before it. */
static void expect_c4(const char *set, const char *text, const char *left, int counter,
                      int64_t count) {
    static const char before[] = "It is one. It is two. It is three. It is four. It is five.";
    str s = { 0 }, want = { 0 };
    str_add(&s, "%s\n%s", before, text);
    str_add(&want, "%s%s%s", before, *left ? "\n" : "", left);
    filter_options o = filter_defaults();
    o.sets = set;
    verdict got = judge(&o, s.text, "");
    assert_int_equal(got.rule, TEXT_KEEP);
    assert_string_equal(got.text, want.text);
    if (counter >= 0) assert_int_equal(got.count[counter], count);
    free(got.text);
    str_free(&s), str_free(&want);
}

static void test_c4_lines(void **state) {
    expect_c4("c4", "Three words here.", "Three words here.", -1, 0);
    expect_c4("c4", "Two words.\n\nOne.", "", COUNTER_line_words, 2);
    expect_c4("c4", "No end of it", "", COUNTER_line_end, 1);
    expect_c4("c4", "It ends in dots...", "", COUNTER_line_end, 1);
    expect_c4("c4", "It ends in an ellipsis\xE2\x80\xA6", "", COUNTER_line_end, 1);
    expect_c4("c4", "She said \"so it is\"", "She said \"so it is\"", COUNTER_line_end, 0);
    expect_c4("c4", "He said 'so it is'", "He said 'so it is'", COUNTER_line_end, 0);
    expect_c4("c4", "He said \xE2\x80\x9Cso it is\xE2\x80\x9D", "", COUNTER_line_end, 1);
    expect_c4("c4", "It is so\xE3\x80\x82 or so\xE3\x80\x82",
              "It is so\xE3\x80\x82 or so\xE3\x80\x82", COUNTER_line_end, 0);
    expect_c4("c4-paper", "Only four words here.\nBut here are five words.",
              "But here are five words.", COUNTER_line_words, 1);
    expect_c4("c4", "Is it so?\n\n  It is so!  \n", "Is it so?\nIt is so!", COUNTER_line_end, 0);
    expect_c4("c4-no-punct", "No end of it\nor right here...", "No end of it\nor right here...", -1,
              0);
    expect_c4("c4", "Enable JavaScript to go on.", "", COUNTER_line_javascript, 1);
    expect_c4("c4", "We take java scripts as they are.", "We take java scripts as they are.", -1,
              0);
}

static void test_c4_policies(void **state) {
    static const char *const phrases[] = { "terms of use", "Privacy Policy", "cookie policy",
                                           "Uses cookies", "use of cookies", "USE COOKIES" };
    for (size_t i = 0; i < COUNT_OF(phrases); i++) {
        str s = { 0 };
        str_add(&s, "This site and its %s are here.", phrases[i]);
        expect_c4("c4", s.text, "", COUNTER_line_policy, 1);
        str_free(&s);
    }
    expect_c4("c4", "We bake cookies with a policy.", "We bake cookies with a policy.", -1, 0);
}

static void test_c4_long_words(void **state) {
    for (int longer = 0; longer < 2; longer++) {
        str s = { 0 };
        str_add(&s, "A long one: ");
        add_times(&s, 999 + longer, "\xC3\xA9", ""); /* characters, not bytes */
        str_add(&s, ".");
        expect_c4("c4", s.text, longer ? "" : s.text, COUNTER_line_length, longer);
        str_free(&s);
    }
}

static void test_c4_citations(void **state) {
    expect_c4("c4", "A fact.[12] And[3] more[edit] of it.[citation needed]",
              "A fact. And more of it.", COUNTER_citations, 4);
    expect_c4("c4", "[1] It is so. [22]", "It is so.", COUNTER_citations, 2);
    expect_c4("c4", "See [a], [12, and x[i] + [1x].", "See [a], [12, and x[i] + [1x].",
              COUNTER_citations, 0);
}

static void test_c4_documents(void **state) {
    static const char four[] = "It is one. It is two. It is three. It is four.\n";
    str kept = { 0 }, dropped = { 0 };
    str_add(&kept, "%sIt is five.", four), str_add(&dropped, "%sIt {is five.", four);
    expect_kept("c4", &kept);
    expect_dropped("c4", &dropped, FILTER_c4_braces, 1);
    str_add(&dropped, "%sLorem Ipsum dolor sit. And more.", four);
    expect_dropped("c4", &dropped, FILTER_c4_lorem_ipsum, 1);
    str_add(&kept, "%sLorem and ipsum dolor sit. And more.", four);
    expect_kept("c4", &kept);
    str_add(&dropped, "%sfive.", four); /* too few words: the line goes, and with it the sentence */
    expect_dropped("c4", &dropped, FILTER_c4_sentences, 4);
    str_add(&kept, "%sIt {is five.\nIt is six with javascript {.", four);
    filter_options o = filter_defaults();
    o.sets = "c4";
    o.limit[FILTER_c4_braces] = 1; /* the second is on a line that is removed before */
    verdict got = judge(&o, kept.text, "");
    assert_int_equal(got.rule, TEXT_KEEP);
    free(got.text);
    str_free(&kept);
}

static void test_sentences(void **state) {
    static const struct {
        const char *line;
        int64_t sentences;
    } of[] = {
        { "", 0 },
        { "   ", 0 },
        { "no end", 1 },
        { "One. Two! Three?", 3 },
        { "One. Two", 2 },
        { "He said \"yes.\" She left.", 2 },
        { "By J. R. Smith in 1.5 days.", 1 },
        { "At 3 p.m. today. Then more.", 2 },
        { "What?! No...", 2 },
        { "\xE4\xB8\x80\xE3\x80\x82\xE4\xBA\x8C\xE3\x80\x82", 2 }, /* two Han sentences, no space */
        { "... and so on.", 1 },
    };
    for (size_t i = 0; i < COUNT_OF(of); i++)
        if (filter_sentences(span_of(of[i].line)) != of[i].sentences)
            fail_msg("\"%s\": %lld sentences, expected %lld", of[i].line,
                     (long long)filter_sentences(span_of(of[i].line)), (long long)of[i].sentences);
}

/* ---- Unicode --------------------------------------------------------------------------------- */

/* The rules of basic measure the mean length of words and the part of letters. */
static void expect_measure(int rule, const char *text, double value) {
    filter_options o = filter_defaults();
    o.sets = basic;
    for (int i = 0; i < FILTER_RULE_COUNT; i++)
        o.limit[i] = filter_rules[i].direction == FILTER_LEAST ? 0 : 1e300;
    o.limit[rule] = filter_rules[rule].direction == FILTER_LEAST ? 1e300 : 0;
    verdict got = judge(&o, text, "");
    assert_int_equal(got.rule, rule);
    if (got.value != value) fail_msg("%s: %g, expected %g", text, got.value, value);
    free(got.text);
}

static void test_unicode(void **state) {
    /* three Han characters, an ideographic space, two more */
    static const char han[] =
        "\xE4\xB8\xAD\xE6\x96\x87\xE5\xAD\x97\xE3\x80\x80\xE4\xB8\xAD\xE6\x96\x87";
    expect_measure(FILTER_basic_min_words, han, 2);
    expect_measure(FILTER_basic_length, han, 2.5);
    expect_measure(FILTER_basic_letters, han, 5.0 / 6);
    /* e and a combining acute are two characters, and both letters; U+00A0 parts words */
    static const char marks[] = "e\xCC\x81t\xC3\xA9\xC2\xA0ok 12";
    expect_measure(FILTER_basic_min_words, marks, 3);
    expect_measure(FILTER_basic_length, marks, 8.0 / 3);
    expect_measure(FILTER_basic_letters, marks, 0.6);
    /* an emoji outside the first plane is one character and no letter; U+200B parts nothing */
    expect_measure(FILTER_basic_length,
                   "a\xF0\x9F\x98\x80 b\xE2\x80\x8B"
                   "c",
                   2.5);
    expect_measure(FILTER_basic_letters, "a\xF0\x9F\x98\x80 b", 0.5);
}

/* Eight bytes are looked at together; the plain way, one by one, must count the same. */
static void test_counts_plainly(void **state) {
    static const char *const pieces[] = {
        "a",
        "Zz",
        "5",
        "#",
        ".",
        "...",
        "-",
        " ",
        "  ",
        "\n",
        "\t",
        "@[`{",
        "/0:9;",
        "\x01",
        "\x1F",
        "\x7F",
        "\xC3\xA9",
        "\xE4\xB8\xAD",
        "e\xCC\x81",
        "\xC2\xA0",
        "\xE3\x80\x80",
        "\xE2\x80\xA6",
        "\xF0\x9F\x98\x80",
        "word",
    };
    for (uint64_t seed = 0; seed < 300; seed++) {
        rng_key key = rng_key_of(3, seed);
        str s = { 0 };
        str_add(&s, "x"); /* one word at least */
        for (uint64_t i = 0; i < seed % 60; i++)
            str_add(&s, "%s", pieces[rng_below(key, i, COUNT_OF(pieces))]);
        int64_t words = 0, chars = 0, word_chars = 0, letters = 0, symbols = 0;
        bool in_word = false;
        for (size_t i = 0; i < s.len; chars++) {
            uint32_t cp;
            const char *at = s.text + i;
            i += (size_t)utf8_decode(at, &cp);
            uint8_t class = unicode_class(cp);
            bool space = class & CLASS_SPACE;
            words += !space && !in_word;
            in_word = !space;
            word_chars += !space;
            letters += (class & (CLASS_LETTER | CLASS_MARK)) != 0;
            symbols += cp == '#' || cp == 0x2026;
        }
        for (const char *p = s.text; (p = strstr(p, "...")); p += 3) symbols++;
        expect_measure(FILTER_basic_min_words, s.text, (double)words);
        expect_measure(FILTER_basic_length, s.text, (double)word_chars / (double)words);
        expect_measure(FILTER_basic_letters, s.text, (double)letters / (double)chars);
        if (symbols) expect_measure(FILTER_basic_symbols, s.text, (double)symbols / (double)words);
        str_free(&s);
    }
}

/* ---- the steps together ---------------------------------------------------------------------- */

static void test_order(void **state) {
    filter_options o = filter_defaults();
    o.sets = "c4-no-punct,gopher-quality"; /* the text that C4 leaves is too short */
    str s = with_words(60, "word");
    str_add(&s,
            "\nIt is one. It is two. It is three. It is four. It is five.\njavascript here with ");
    add_times(&s, 60, "word", " ");
    char *half = strchr(s.text, '\n');
    verdict got = judge(&o, half, "");
    assert_int_equal(got.rule, FILTER_gopher_min_words);
    assert_true(got.value == 15);
    assert_string_equal(got.text, half); /* dropped as it was */
    assert_int_equal(got.count[COUNTER_line_javascript],
                     0); /* and what was done to it not counted */
    free(got.text);
    o.sets = "gopher-quality,c4-no-punct";
    got = judge(&o, s.text, "");
    assert_int_equal(got.rule, TEXT_KEEP);
    free(got.text);
    o.sets = "none";
    got = judge(&o, "x", "");
    assert_int_equal(got.rule, TEXT_KEEP);
    free(got.text);
    str_free(&s);
}

static void test_wrong_options(void **state) {
    static const struct {
        filter_options o;
        const char *says;
    } of[] = {
        { { .sets = "gopher" }, "--rules: unknown rule set \"gopher\"" },
        { { .sets = "c4,c4" }, "--rules: c4 is listed twice" },
        { { .sets = "c4,c4-no-punct" },
          "--rules: only one of c4, c4-no-punct and c4-paper can be used" },
        { { .words = "datatrove" },
          "--words: expected auto, space, a language such as en or deu_Latn, or a file of rules; got datatrove" },
        { { .languages = "english" }, "--language: the model has no label \"english\"" },
        { { .pii = "name" }, "--pii: unknown kind of personal data \"name\"" },
    };
    for (size_t i = 0; i < COUNT_OF(of); i++) {
        filter *f = NULL;
        err e = filter_new(&of[i].o, 1, &f);
        assert_non_null(e);
        assert_null(f);
        assert_string_equal(err_message(e), of[i].says);
        err_free(e);
    }
}

/* A row of FILTER_RULES that no step judges would be an option without an effect: with a limit that nothing meets,
 * each rule of the table drops a document that all others keep. Where no step judges it, its option is refused. */
static void test_every_rule_is_judged(void **state) {
    static const char *const sets[] = { "gopher-repetition", "gopher-quality", "c4",
                                        "c4-paper",          "fineweb",        "basic" };
    char list[] = "/tmp/ingot_rules_XXXXXX", model[] = FIXTURES "/language/softmax.bin";
    int fd = mkstemp(list);
    assert_true(fd >= 0 && write(fd, "example.com\n", 12) == 12);
    close(fd);
    str text = { 0 };
    for (int i = 0; i < 40; i++) {
        add_unique(&text, i, 6);
        str_add(&text, " walks near the river with that dog.%s", i % 4 == 3 ? "\n\n" : "\n");
    }
    for (int rule = 0; rule < FILTER_RULE_COUNT; rule++) {
        bool judged = false;
        for (size_t k = 0; k < COUNT_OF(sets); k++) {
            filter_options o = filter_defaults();
            o.sets = sets[k];
            o.bad_words = o.url_domains = o.url_words = list;
            o.language_model = o.quality = model;
            o.keep = "en";
            o.where = "score>=0.5";
            o.limit[rule] += 1;
            err refused = filter_check(&o);
            for (int i = 0; i < FILTER_RULE_COUNT; i++)
                o.limit[i] =
                    (filter_rules[i].direction == FILTER_LEAST) == (i == rule) ? 1e300 : -1e300;
            verdict got = judge(&o, text.text, "http://example.org/");
            if ((got.rule == rule) != !refused)
                fail_msg("%s is %s with %s", filter_rules[rule].name,
                         refused ? "refused" : "accepted", sets[k]);
            err_free(refused);
            judged = judged || got.rule == rule;
            if (got.rule != rule && got.rule != TEXT_KEEP)
                fail_msg("%s drops what nothing but %s should", filter_rules[got.rule].name,
                         filter_rules[rule].name);
            free(got.text);
        }
        if (!judged) fail_msg("no rule set judges %s", filter_rules[rule].name);
    }
    unlink(list);
    str_free(&text);
}

/* One after the other through the same worker is as each alone. */
static void test_documents_in_a_row(void **state) {
    str a = with_words(50, "word"), b = { 0 };
    add_lines(&b, 40, 0, 6, ".");
    filter_options o = filter_defaults();
    filter *f = NULL;
    assert_null(filter_new(&o, 1, &f));
    int rule[6];
    for (int i = 0; i < 6; i++) {
        int64_t count[FILTER_COUNTER_COUNT] = { 0 };
        text_doc d = { .text = span_of(i % 2 ? b.text : a.text) };
        text_verdict v = { .rule = TEXT_KEEP, .text = d.text, .count = count };
        assert_null(filter_judge(f, 0, 0, &d, &v));
        rule[i] = v.rule;
    }
    filter_free(f);
    verdict alone = judge(&o, a.text, ""), other = judge(&o, b.text, "");
    for (int i = 0; i < 6; i++) assert_int_equal(rule[i], i % 2 ? other.rule : alone.rule);
    free(alone.text), free(other.text);
    str_free(&a), str_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gopher_words),
        cmocka_unit_test(test_gopher_word_length),
        cmocka_unit_test(test_gopher_symbols),
        cmocka_unit_test(test_gopher_ellipses_do_not_overlap),
        cmocka_unit_test(test_gopher_lines),
        cmocka_unit_test(test_gopher_letters),
        cmocka_unit_test(test_gopher_stop_words),
        cmocka_unit_test(test_fineweb_line_ends),
        cmocka_unit_test(test_fineweb_short_lines),
        cmocka_unit_test(test_fineweb_repeats),
        cmocka_unit_test(test_fineweb_newlines),
        cmocka_unit_test(test_many_lines),
        cmocka_unit_test(test_basic),
        cmocka_unit_test(test_basic_symbols_and_letters),
        cmocka_unit_test(test_c4_lines),
        cmocka_unit_test(test_c4_policies),
        cmocka_unit_test(test_c4_long_words),
        cmocka_unit_test(test_c4_citations),
        cmocka_unit_test(test_c4_documents),
        cmocka_unit_test(test_sentences),
        cmocka_unit_test(test_unicode),
        cmocka_unit_test(test_counts_plainly),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_wrong_options),
        cmocka_unit_test(test_every_rule_is_judged),
        cmocka_unit_test(test_documents_in_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
