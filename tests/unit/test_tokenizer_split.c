/* Splitting: what our scanners find is what PCRE2 finds with the pattern they stand for, on any
 * text; and what a pattern may hold. */
#include "support/tokenizer.h"

/* ---- characters that both sides know ---------------------------------------------------------------- */

typedef struct alphabet {
    uint32_t *at;
    int n, cap;
} alphabet;

static const struct {
    const char *pattern;
    uint8_t bits, value;
} classes[] = {
    { "\\p{L}", CLASS_LETTER, CLASS_LETTER }, { "\\p{N}", CLASS_NUMBER, CLASS_NUMBER },
    { "\\p{M}", CLASS_MARK, CLASS_MARK },     { "[\\p{Lu}\\p{Lt}]", CLASS_UPPER, CLASS_UPPER },
    { "\\p{Ll}", CLASS_LOWER, CLASS_LOWER },  { "\\s", CLASS_SPACE, CLASS_SPACE },
};

/* Where classes change: the last of one and the first of the next. utf8proc and PCRE2 may know
 * different versions of Unicode; characters they do not agree on are left out. */
static alphabet boundaries(void) {
    regex *re[COUNT_OF(classes)];
    regex_work *w = regex_work_new(true);
    alphabet a = { 0 };
    int apart = 0;
    for (size_t k = 0; k < COUNT_OF(classes); k++)
        assert_ok(regex_new(classes[k].pattern, REGEX_ONIGURUMA, &re[k]));
    for (uint32_t cp = 1; cp < 0x110000; cp++) {
        if (cp >> 11 == 0xD800 >> 11) continue;
        bool edge = unicode_class(cp) != unicode_class(cp - 1) ||
                    (cp + 1 < 0x110000 && unicode_class(cp) != unicode_class(cp + 1));
        if (!edge) continue;
        char code[4];
        size_t n = (size_t)utf8_encode(cp, code), start, end;
        bool agreed = true;
        for (size_t k = 0; k < COUNT_OF(classes); k++)
            agreed &= regex_find(re[k], w, code, n, 0, &start, &end) ==
                      ((unicode_class(cp) & classes[k].bits) == classes[k].value);
        apart += !agreed;
        if (!agreed) continue;
        a.at = mem_reserve(a.at, &a.cap, a.n, sizeof *a.at);
        a.at[a.n++] = cp;
    }
    for (size_t k = 0; k < COUNT_OF(classes); k++) regex_free(re[k]);
    regex_work_free(w);
    print_message("%d edges of classes, %d more where PCRE2 and utf8proc differ\n", a.n, apart);
    assert_true(a.n > 1000);
    return a;
}

/* ---- text, twice: with broken bytes, and with U+FFFD in their place ----------------------------------- */

typedef struct pair_of_texts {
    char raw[4096], clean[4096];
    size_t n_raw, n_clean;
    size_t raw_at[4097]; /* of each byte of `clean` that begins a character */
} pair_of_texts;

static void add_unit(pair_of_texts *p, const char *raw, size_t n_raw, const char *clean, size_t n) {
    p->raw_at[p->n_clean] = p->n_raw;
    memcpy(p->raw + p->n_raw, raw, n_raw);
    memcpy(p->clean + p->n_clean, clean, n);
    p->n_raw += n_raw;
    p->n_clean += n;
}

static void add_text(pair_of_texts *p, const char *s) {
    for (; *s; s++) add_unit(p, s, 1, s, 1);
}

static void make_text(chance *c, const alphabet *a, bool broken, pair_of_texts *p) {
    static const char *const words[] = {
        "'s",  "'S", "'t", "'RE", "'re", "'ve",     "'Ve",  "'m",         "'ll", "'lL",  "'d",
        "'D",  "''", "'l", "'r",  "'x",  "the",     "Word", "HTTPServer", "  ",  "\r\n", "\n\n",
        " \n", "\t", "/",  "\n/", "123", "4567890", "...",  "!\n",        " ?"
    };
    static const char likely[] = "'''  \n\r\tasStTmdDlLrReEvVxX019.,/-_\"\x0b\x0c\x1c\x7f";
    static const uint32_t odd[] = { 0x17F,    0x212A,   0x130,  0xA0,    0x85,    0x3000,
                                    0x2028,   0x180E,   0x200B, 0x1C5,   0x2B0,   0x301,
                                    0x4E2D,   0x663,    0xBD,   0x2167,  0x1F680, 0xFFFD,
                                    0x10FFFF, 0x10FF41, 0xFEFF, 0x1F3FD, 0xE9,    0xC9 };
    static const uint8_t bad[] = { 0xFF, 0xFE, 0xC0, 0xC1, 0x80, 0xBF, 0xF5 };
    size_t want = below(c, 3) ? below(c, 40) : below(c, 700);
    *p = (pair_of_texts){ .n_raw = 0 };
    while (p->n_clean < want) {
        uint64_t kind = below(c, 100);
        char code[4];
        if (kind < 35) {
            add_text(p, words[below(c, COUNT_OF(words))]);
        } else if (kind < 65) {
            code[0] = likely[below(c, sizeof likely - 1)];
            add_unit(p, code, 1, code, 1);
        } else if (broken && kind < 75) {
            add_unit(p, (const char *)&bad[below(c, sizeof bad)], 1, "\xEF\xBF\xBD", 3);
        } else {
            bool edge = kind < 90;
            uint32_t cp = edge ? a->at[below(c, (uint64_t)a->n)] : odd[below(c, COUNT_OF(odd))];
            size_t n = (size_t)utf8_encode(cp, code);
            add_unit(p, code, n, code, n);
        }
    }
    p->raw_at[p->n_clean] = p->n_raw;
}

static void show(const char *pattern, const pair_of_texts *p, size_t want, size_t got) {
    fprintf(stderr, "%s: text", pattern);
    for (size_t i = 0; i < p->n_raw; i++) fprintf(stderr, " %02x", (uint8_t)p->raw[i]);
    fail_msg("a piece ends at %zu by PCRE2, at %zu by ours", want, got);
}

static void compare(const char *name, const regex *re, regex_work *w, const pair_of_texts *p) {
    enum { MOST = 4096 };
    static size_t ends[MOST];
    scan_fn scan = scanner_of(name);
    int n = p->n_raw ? scan(p->raw, p->n_raw, 0, ends, MOST) : 0, k = 0;
    for (size_t from = 0, start, end; from < p->n_clean; from = end) {
        assert_true(regex_find(re, w, p->clean, p->n_clean, from, &start, &end));
        assert_int_equal(start, from);
        if (k == n && k > 0) { /* a scanner may stop before `ends` is full */
            n = scan(p->raw, p->n_raw, ends[k - 1], ends, MOST);
            k = 0;
        }
        if (k >= n || ends[k] != p->raw_at[end]) show(name, p, p->raw_at[end], k < n ? ends[k] : 0);
        k++;
    }
    assert_int_equal(k, n);
}

static void fuzz(const char *name, uint64_t seed) {
    alphabet a = boundaries();
    regex *re = NULL;
    regex_work *w = regex_work_new(true);
    chance c = { rng_key_of(seed, 0), 0 };
    static pair_of_texts p;
    assert_non_null(scanner_of(name));
    assert_ok(regex_new(splitter_pattern(name), REGEX_ONIGURUMA, &re));
    for (int i = 0; i < 30000; i++) {
        make_text(&c, &a, i % 2, &p);
        compare(name, re, w, &p);
    }
    regex_free(re);
    regex_work_free(w);
    free(a.at);
}

static void test_gpt2(void **state) { fuzz("gpt2", 1); }
static void test_cl100k(void **state) { fuzz("cl100k", 2); }
static void test_qwen2(void **state) { fuzz("qwen2", 3); }
static void test_o200k(void **state) { fuzz("o200k", 4); }

/* Where a character is truncated by the end, or by another: its bytes stand for themselves. */
static void test_truncated_characters(void **state) {
    enum { CAPACITY = 80 };
    size_t ends[CAPACITY];
    assert_int_equal(scan_gpt2("a\xE2\x82", 3, 0, ends, CAPACITY), 2);
    assert_int_equal(ends[0], 1);
    assert_int_equal(scan_gpt2("a\xE2\x82z", 4, 0, ends, CAPACITY), 3);
    assert_int_equal(ends[1], 3);
    assert_int_equal(scan_cl100k("\xF0\x9F\x9A"
                                 "b",
                                 4, 0, ends, CAPACITY),
                     2);
    assert_int_equal(ends[0], 3); /* no two lead a word: the three are punctuation */
}

/* ---- splitter_next --------------------------------------------------------------------------------- */

static void check_pieces(const char *pattern, const char *text, const char *want) {
    splitter *s = NULL;
    str got = { 0 };
    assert_ok(splitter_new(pattern, &s));
    for (size_t from = 0, end; from < strlen(text); from = end) {
        end = splitter_next(s, text, strlen(text), from);
        assert_true(end > from);
        str_add(&got, "%s%.*s", from ? "|" : "", (int)(end - from), text + from);
    }
    assert_string_equal(got.text, want);
    str_free(&got);
    splitter_free(s);
}

static void test_pieces(void **state) {
    check_pieces("gpt2", "I'm  here, 42!\n", "I|'m| | here|,| 42|!|\n");
    check_pieces("r50k", " 'tis", " '|tis");
    check_pieces("cl100k", "I'M \n\n x12345", "I|'M| \n\n| x|123|45");
    check_pieces("qwen2", "x123", "x|1|2|3");
    check_pieces("o200k", "HTTPServer's aB/\n", "HTTPServer's| a|B|/\n");
    check_pieces("[0-9]+", "ab12cd3", "ab|12|cd|3");
    check_pieces("z*", "abzzc", "a|b|zz|c"); /* an empty match ends a piece */
    check_pieces("\\s",
                 "a\xE1\xA0\x8E"
                 "b c",
                 "a\xE1\xA0\x8E"
                 "b| |c"); /* U+180E is not a space */
    check_pieces("[\\s.]+|\\S", "a. b", "a|. |b");
}

static void test_patterns(void **state) {
    splitter *s = NULL;
    assert_null(splitter_pattern("no such"));
    assert_non_null(splitter_pattern("cl100k"));
    assert_error(splitter_new("(unclosed", &s), "(unclosed");
    assert_error(splitter_new("[a[b]]", &s), "set inside a set");
    assert_error(splitter_new("[\\W]", &s), "\\W");
    assert_error(splitter_new("\\p{N}{1,3}+", &s), "}+");
    assert_error(splitter_new("\xFF", &s), "UTF-8");
    assert_error(splitter_new("a{2}?", &s), "{2}?");
    assert_error(splitter_new("a(?i)b|c", &s), "(?i) inside an alternative");
    assert_error(splitter_new("(?s).", &s), "options s");
    assert_error(splitter_new("\\Qa.\\E", &s), "\\Q");
    assert_error(splitter_new("\\pL+", &s), "\\p");
    assert_error(splitter_new("(*SKIP)a", &s), "(*");
}

/* What Oniguruma and PCRE2 read differently, with the pieces that Hugging Face's tokenizers find. */
static void test_oniguruma(void **state) {
    check_pieces("\\h+", "g12afx \tb", "g|12af|x \t|b");
    check_pieces("[\\hx]+", "g12afx \tb", "g|12afx| \t|b");
    check_pieces("\\H+", "12-x3", "12|-x|3");
    check_pieces("[\\H]+", "12-x3", "12|-x|3");
    check_pieces("(?m)a.", "ba\nc", "b|a\n|c");
    check_pieces("(?m:a.)|b.", "a\nb\n", "a\n|b\n");
    check_pieces("(?i-m)a.", "A\nab", "A\n|ab");
    check_pieces("x|(?i)a", "XA", "X|A");
    check_pieces("a{,2}b", "aaab", "a|aab");
    check_pieces("\\v", "a\nb\x0b", "a\nb|\x0b");
    check_pieces("\\w+", "1\u00b2 \u00bd", "1\u00b2| |\u00bd");
    check_pieces("[\\w]+", "1\u00b2", "1|\u00b2");
    check_pieces("\\W+", "a \u00b2-\U0001F130", "a| |\u00b2|-|\U0001F130");
    check_pieces("\\ba", "aa \u0301a a", "a|a \u0301a |a");
    check_pieces("\\Ba", "a\u0301ab", "a\u0301|a|b");
    check_pieces("\\p{Han}+", "\u4e2d\u3001\u3005", "\u4e2d|\u3001|\u3005");
    check_pieces("\\p{^Han}+", "\u4e2d\u3001\u4e2d", "\u4e2d|\u3001|\u4e2d");
}

/* ---- limits ---------------------------------------------------------------------------------------- */

/* A match of any length is found, also where it needs more than the stack of compiled code. */
static void test_long_matches(void **state) {
    enum { N = 300000 };
    char *text = mem_alloc(N);
    for (size_t i = 0; i < N; i++) text[i] = "abc"[i % 3];
    for (int lasting = 0; lasting < 2; lasting++) {
        regex *re = NULL;
        regex_work *w = regex_work_new(lasting);
        size_t start, end;
        assert_ok(regex_new("(?:a|bc)+", REGEX_ONIGURUMA, &re));
        assert_true(regex_find(re, w, text, N, 1, &start, &end));
        assert_int_equal(start, 1);
        assert_int_equal(end, N);
        regex_free(re);
        regex_work_free(w);
    }
    free(text);
}

/* A pattern that tries every division of a text into words is given up, and one warning says so. */
static void test_given_up(void **state) {
    static const char text[] =
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!";
    char *lines = NULL;
    size_t n_lines = 0, start, end;
    FILE *kept = open_memstream(&lines, &n_lines);
    regex *re = NULL;
    regex_work *w = regex_work_new(true);
    assert_ok(regex_new("(?:a+)+[bc]", REGEX_ONIGURUMA, &re));
    log_keep(kept);
    for (int i = 0; i < 2; i++)
        assert_false(regex_find(re, w, text, strlen(text), 0, &start, &end));
    log_keep(NULL);
    fclose(kept);
    assert_non_null(strstr(lines, "(?:a+)+[bc] was given up"));
    assert_ptr_equal(strchr(lines, '\n'), lines + n_lines - 1); /* one line */
    free(lines);
    regex_free(re);
    regex_work_free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_cl100k),
        cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_o200k),
        cmocka_unit_test(test_truncated_characters),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_oniguruma),
        cmocka_unit_test(test_long_matches),
        cmocka_unit_test(test_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
