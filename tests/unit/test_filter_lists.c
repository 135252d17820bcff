/* Lists of bad words, domains and words in URLs; personal data. */
#include "support/filter.h"

#include <unistd.h>

#include "io/io.h"

/* ---- lists ----------------------------------------------------------------------------------- */

static char list_path[] = "/tmp/ingot_list_XXXXXX";

static int make_file(void **state) {
    int fd = mkstemp(list_path);
    return fd < 0 || close(fd);
}
static int remove_file(void **state) { return unlink(list_path); }

static phrase_list *list_of(const char *text) {
    assert_null(io_write(list_path, text, strlen(text)));
    phrase_list *l = NULL;
    err e = phrase_list_read(list_path, &l);
    if (e) fail_msg("%s", err_message(e));
    return l;
}

static void expect_count(const phrase_list *l, const char *text, int64_t count) {
    int64_t got = phrase_list_count(l, span_of(text));
    if (got != count)
        fail_msg("\"%s\": %lld, expected %lld", text, (long long)got, (long long)count);
}

static void test_phrases(void **state) {
    phrase_list *l =
        list_of("\xEF\xBB\xBF# a comment\r\nbad\r\n\nBad Word\n  two girls \nbad\ns&m\n"
                "\xC3\x89T\xC3\x89\n\xE6\x80\xA7\xE4\xBA\xA4\n\xF0\x9F\x96\x95\n");
    assert_int_equal(phrase_list_size(l), 7); /* one is there twice */
    expect_count(l, "", 0);
    expect_count(l, "nothing here", 0);
    expect_count(l, "BAD", 1);
    expect_count(l, "(bad), \"Bad\"; bad", 3);
    expect_count(l, "badly abad bad_ bad2 2bad not_bad", 0);
    expect_count(l, "a bad word", 2);
    expect_count(l, "a bad words", 1);
    expect_count(l, "two girls, two  girls, two-girls", 1);
    expect_count(l, "S&M or s m or it's my", 1);
    expect_count(l, "\xC3\xA9t\xC3\xA9 \xC3\x89T\xC3\x89 \xC3\xA9t\xC3\xA9s", 2);
    expect_count(l, "x\xE6\x80\xA7\xE4\xBA\xA4\xE7\x9A\x84", 1); /* Han: inside a run */
    expect_count(l, "so\xF0\x9F\x96\x95so", 1);                  /* no letter: anywhere */
    phrase_list_free(l);
}

/* Many words, and each is found: the table holds. */
static void test_many_phrases(void **state) {
    str file = { 0 };
    for (int i = 0; i < 5000; i++) str_add(&file, "w%d\nw%d more%d\n", i, i, i);
    phrase_list *l = list_of(file.text);
    assert_int_equal(phrase_list_size(l), 10000);
    for (int i = 0; i < 5000; i++) {
        char text[64];
        snprintf(text, sizeof text, "a w%d more%d b", i, i);
        expect_count(l, text, 2);
        snprintf(text, sizeof text, "a w%d more%d b", i, i + 1);
        expect_count(l, text, 1);
    }
    expect_count(l, "w5000 w-1", 0);
    phrase_list_free(l);
    str_free(&file);
}

static void expect_refused(const char *bytes, size_t n, const char *says) {
    assert_null(io_write(list_path, bytes, n));
    phrase_list *l = NULL;
    err e = phrase_list_read(list_path, &l);
    assert_non_null(e);
    assert_null(l);
    if (!strstr(err_message(e), says)) fail_msg("%s", err_message(e));
    err_free(e);
}

static void test_wrong_lists(void **state) {
    expect_refused("", 0, "the list is empty");
    expect_refused("# only\n\n  \n", 11, "the list is empty");
    expect_refused("good\nb\xFF"
                   "d\n",
                   9, ":2: the line is not UTF-8");
    char line[5000];
    memset(line, 'a', sizeof line);
    expect_refused(line, sizeof line, ":1: the line has 5000 bytes");
}

static void test_bad_words(void **state) {
    phrase_list_free(list_of("bad\n"));
    filter_options o = filter_defaults();
    o.sets = "none";
    o.bad_words = list_path;
    verdict got = judge(&o, "a bad and a Bad one", "");
    assert_int_equal(got.rule, FILTER_bad_words);
    assert_true(got.value == 2);
    free(got.text);
    o.limit[FILTER_bad_words] = 2;
    got = judge(&o, "a bad and a Bad one", "");
    assert_int_equal(got.rule, TEXT_KEEP);
    free(got.text);
}

/* ---- URLs ------------------------------------------------------------------------------------ */

typedef struct url_case {
    const char *url;
    bool dropped;
} url_case;

static void expect_urls(const filter_options *o, int rule, const url_case *of, size_t n) {
    for (size_t i = 0; i < n; i++) {
        verdict got = judge(o, "text", of[i].url);
        if (got.rule != (of[i].dropped ? rule : TEXT_KEEP))
            fail_msg("%s: %s", of[i].url, got.rule < 0 ? "kept" : "dropped");
        assert_int_equal(got.count[COUNTER_no_url], of[i].url[0] == 0);
        free(got.text);
    }
}

static void test_domains(void **state) {
    phrase_list_free(list_of("Bad.example\nsub.other.example\n10.0.0.1\n"));
    filter_options o = filter_defaults();
    o.sets = "none";
    o.url_domains = list_path;
    static const url_case of[] = {
        { "http://bad.example", true },
        { "https://www.BAD.example:8080/page?x=1", true },
        { "https://a.b.bad.example./", true },
        { "bad.example/page", true },
        { "http://user:secret@bad.example/", true },
        { "http://10.0.0.1/", true },
        { "http://sub.other.example#top", true },
        { "http://other.example/", false },
        { "http://notbad.example/", false },
        { "http://bad.example.org/", false },
        { "http://good.example/http://bad.example", false },
        { "http://good.example/?u=@bad.example", false },
        { "http://", false },
        { "", false },
    };
    expect_urls(&o, FILTER_url_domains, of, COUNT_OF(of));
}

static void test_url_words(void **state) {
    phrase_list_free(list_of("casino\nfree-money\n"));
    filter_options o = filter_defaults();
    o.sets = "none";
    o.url_words = list_path;
    static const url_case words[] = {
        { "http://x.example/Casino/", true },         { "http://my-casino.example/", true },
        { "http://x.example/free-money.html", true }, { "http://x.example/casinos/", false },
        { "http://mycasino.example/", false },        { "http://x.example/free/money", false },
    };
    expect_urls(&o, FILTER_url_words, words, COUNT_OF(words));
    o.url_words = NULL;
    o.url_parts = list_path;
    static const url_case parts[] = {
        { "http://mycasinos.example/", true },
        { "http://x.example/CASINO", true },
        { "http://x.example/casin/o", false },
    };
    expect_urls(&o, FILTER_url_words, parts, COUNT_OF(parts));
}

/* ---- personal data --------------------------------------------------------------------------- */

typedef struct pii_case {
    const char *text, *masked; /* NULL: as it is */
} pii_case;

static void expect_masked(int kind, const pii_case *of, size_t n) {
    const char *masks[PII_KIND_COUNT] = { "E", "I", "P", "C", "B", "S" };
    for (size_t i = 0; i < n; i++) {
        str out = { 0 };
        int64_t count[PII_KIND_COUNT] = { 0 };
        bool changed = pii_mask(span_of(of[i].text), masks, &out, count);
        const char *got = changed ? out.text : of[i].text;
        const char *want = of[i].masked ? of[i].masked : of[i].text;
        if (strcmp(got, want) != 0) fail_msg("\"%s\" became \"%s\"", of[i].text, got);
        assert_true(changed == (of[i].masked != NULL));
        for (int k = 0; k < PII_KIND_COUNT; k++)
            assert_true((count[k] > 0) == (changed && k == kind));
        str_free(&out);
    }
}

static void test_email(void **state) {
    static const pii_case of[] = {
        { "write to ann@mail.example.org.", "write to E." },
        { "<Ann.O'Neil+list@a-b.co.uk>, bob_2@x.io", "<E>, E" },
        { "mailto:ann@example.com?subject=x", "mailto:E?subject=x" },
        { "ann@example.com", "E" },
        { "(x@y.museum)", "(E)" },
        { "@handle and a@b and @@ and me @ home.com", NULL },
        { "user@host.1 x@.com x@-a.com .@a.com", NULL },
        { "at ann@example.com.1 and bob@a.b.c.co-op.", "at E.1 and E." },
        /* internationalized ones, and Latin ones in scripts that do not separate words */
        { "café@example.com, jörg.müller@bücher.de.", "E, E." },
        { "Пишите на почта@пример.рф, или ann@пример.com.", "Пишите на E, или E." },
        { "请写信给ann@example.com谢谢。", "请写信给E谢谢。" },
        { "联系：用户@例子.公司，或用户@例え.jp。", "联系：E，E。" },
        { "संपर्क@डाटामेल.भारत कृपया", "E कृपया" },
        { "слово@слово и ann@пример.примерно и a@b.schön", NULL },
        { "“ann@example.com”", "“E”" },
    };
    expect_masked(PII_email, of, COUNT_OF(of));
    str long_one = {
        0
    }; /* any length takes linear time, and only 64 characters before the @ count */
    add_times(&long_one, 100000, "a@", "");
    const char *masks[PII_KIND_COUNT] = { "E", "I", "P", "C", "B", "S" };
    int64_t count[PII_KIND_COUNT] = { 0 };
    str out = { 0 };
    assert_false(pii_mask((text_span){ long_one.text, long_one.len }, masks, &out, count));
    str_free(&long_one), str_free(&out);
}

static void test_ip(void **state) {
    static const pii_case of[] = {
        { "from 8.8.8.8, then 93.184.216.34:80.", "from I, then I:80." },
        { "1.1.1.1.", "I." },
        { "10.1.2.3 192.168.0.1 127.0.0.1 172.16.9.9 169.254.1.1 100.64.0.1 0.0.0.0", NULL },
        { "192.0.2.1 198.51.100.7 203.0.113.9 198.18.0.1 224.0.0.1 255.255.255.255", NULL },
        { "172.15.0.1 172.32.0.1 100.128.0.1", "I I I" },
        { "256.1.1.1 1.2.3 1.2.3.4.5 v8.8.8.8 8.8.8.8a 1..2.3.4", NULL },
        { "at 2606:4700:4700::1111.", "at I." },
        { "[2001:4860:4860:0:0:0:0:8888]:53", "[I]:53" },
        { "2001:db8::1 fe80::1 ::1 std::vector 12:30:45 2021:22 2001:1:2", NULL },
    };
    expect_masked(PII_ip, of, COUNT_OF(of));
}

static void test_phone(void **state) {
    static const pii_case of[] = {
        { "call (212) 555-0123 or 212-555-0123.", "call P or P." },
        { "212.555.0123, 1-800-555-0123, 1 800 555 0123, (212)555-0123", "P, P, P, P" },
        { "+49 30 1234567 and +1 (212) 555-0123; +442071234567, +1.2125550123", "P and P; P, P" },
        { "212 555 0123 is three numbers", NULL },
        { "112-555-0123 212-155-0123 212-555-01234 12-555-0123 9212-555-0123", NULL },
        { "in 2024-05-06 and 1999-2000, $212-555-0123, +5, +0 1234 5678 90", NULL },
        { "+1234567 +12345678901234567 c++ 11", NULL },
        { "978-0-306-40615-7 and 212-555-0123-4", NULL },
        { "212.555-0123, “(212) 555-0123”, Suite 200 212-555-0123 3 pm",
          "P, “P”, Suite 200 P 3 pm" },
    };
    expect_masked(PII_phone, of, COUNT_OF(of));
}

static void test_national_phones(void **state) {
    static const pii_case of[] = {
        /* GB */ { "020 7946 0958, (020) 7946 0958, 0161 496 0018.", "P, P, P." },
        { "01632 960983, 07700 900123 or 07700 900 123; 0800-123-4567", "P, P or P; P" },
        /* DE */ { "030/1234567, 030 1234567, (0221) 12 34 56, 0171-1234567", "P, P, P, P" },
        { "089 / 12 34 56 und 0221/123456", "P und P" },
        /* FR */ { "01 23 45 67 89, 06.12.34.56.78, 06-12-34-56-78", "P, P, P" },
        { "le 01\xC2\xA0"
          "23\xC2\xA0"
          "45\xC2\xA0"
          "67\xC2\xA0"
          "89.",
          "le P." },
        /* IN */ { "98765-43210, 011-23456789, 080 2345 6789, 098765 43210", "P, P, P, P" },
        /* CN */ { "138 0013 8000, 138-0013-8000, 010-12345678, (0755) 12345678", "P, P, P, P" },
        { "手机13800138000，座机021-87654321。", "手机P，座机P。" },
        /* JP */ { "03-1234-5678, (03) 1234-5678, 090-1234-5678, 0120-123-456", "P, P, P, P" },
        { "電話は06-6123-4567です", "電話はPです" },
        /* BR */ { "(11) 91234-5678, (21)2345-6789", "P, P" },
        /* after a label */
        { "Tel.: 9876543210, Phone 98765 43210; fax 212 555 0123", "Tel.: P, Phone P; fax P" },
        { "tel:8005550123 电话：01012345678 Tél. 0123456789", "tel:P 电话：P Tél. P" },
    };
    expect_masked(PII_phone, of, COUNT_OF(of));
}

/* Numbers that are not phone numbers, each close to one of the forms. */
static void test_not_phones(void **state) {
    static const pii_case of[] = {
        { "2024-05-06, 01-02-2003, 01.02.2003, 05/06/2007, 01/02/03, 20240506", NULL },
        { "06.12.34, 2019-01-02 03:04:05, 01 02 2003, 1612345678, 1612345678901", NULL },
        { "ISBN 0-306-40615-2, 0306406152, 978-3-16-148410-0, 9783161484100", NULL },
        { "ISSN 0028-0836, 0317-8471; doi:10.1038/0001-1234, OMB 0990-0379", NULL },
        { "arXiv:0704.0001, arXiv 1706.03762v7, arXiv:hep-th/9901001", NULL },
        { "version 01.02.03.04, 10.0.19041.1234, 2.0.0-0123-4567, v06.12.34.56.78", NULL },
        { "94103-1234, CA 02139-4307, 12345-67890, 00 01 02 03 04 05", NULL },
        { "01 02 03 04 05 06 07 08, 0x01 23 45 67 89 ab, 01 23 45 67 89 0a", NULL },
        { "98765 43210 and 65536 98304 131072, 138 0013 8000 1, 0.13800138000", NULL },
        { "3.14159265358, 0123456789, 13800138000138, 23800138000, #0171 1234567", NULL },
        { "hotel 123456789, iPhone 1234567890, mobile 2015-2016, tel 12345678", NULL },
        { "11 94103-1234, (11) 12-34, (2019) 1234-5678-9, 1/2/030/12345678", NULL },
        { "+ 12345678*x, dev0+11111111, +12345678*x, 1 + 1/(5764801), +2.66666666666667, +35236450.6, C++14 20.8.2.2.10",
          NULL },
        { "DFARS 252.227-7013, pages 259-264 1970, uids 60000-64999, 01 02 03 04 05", NULL },
        { "4*p - 16265625000*q, \"17179869184\", 15032385536", NULL },
        { "MD5 0161 496 0018a é0161 496 0018 x01632 960983", NULL },
    };
    expect_masked(PII_phone, of, COUNT_OF(of));
}

static void test_card(void **state) {
    static const pii_case of[] = {
        { "pay with 4111 1111 1111 1111.", "pay with C." },
        { "4111111111111111, 5500-0000-0000-0004; 3782 822463 10005", "C, C; C" },
        { "2223003122003222 (6011111111111117) 30569309025904", "C (C) C" },
        { "4111 1111 1111 1112 and 4111111111111112", NULL }, /* check digit */
        { "1234567812345670 8111111111111115", NULL },        /* no such prefix */
        { "4111-1111 1111-1111 x4111111111111111 41111111111111110", NULL },
        { "1700000000000 2024-05-06 978-0-306-40615-7", NULL },
    };
    expect_masked(PII_card, of, COUNT_OF(of));
}

static void test_iban(void **state) {
    static const pii_case of[] = {
        { "to GB82 WEST 1234 5698 7654 32, please", "to B, please" },
        { "DE89370400440532013000 BE68 5390 0754 7034 AND NO9386011117947.", "B B AND B." },
        { "GB82 WEST 1234 5698 7654 33 DE89370400440532013001", NULL }, /* check digits */
        { "xGB82WEST12345698765432 GB82WEST12345698765432x gb82west", NULL },
        { "AB12 and ISO9001 and A4 2024", NULL },
    };
    expect_masked(PII_iban, of, COUNT_OF(of));
}

static void test_ssn(void **state) {
    static const pii_case of[] = {
        { "SSN 123-45-6789.", "SSN S." },
        { "(078-05-1120)", "(S)" },
        { "000-45-6789 666-45-6789 900-45-6789 123-00-6789 123-45-0000", NULL },
        { "123-45-67890 1123-45-6789 123-45-6789-1 123 45 6789", NULL },
    };
    expect_masked(PII_ssn, of, COUNT_OF(of));
}

static void test_masks(void **state) {
    filter_options o = filter_defaults();
    o.sets = "none";
    static const char text[] = "ann@mail.com at 8.8.8.8, call 212-555-0123";
    verdict got = judge(&o, text, "");
    assert_string_equal(got.text, text); /* not asked for */
    free(got.text);
    o.pii = "ip,email";
    o.mask[PII_ip] = "<IP>";
    got = judge(&o, text, "");
    assert_string_equal(got.text, "email@example.com at <IP>, call 212-555-0123");
    assert_int_equal(got.count[COUNTER_email], 1);
    assert_int_equal(got.count[COUNTER_ip], 1);
    assert_int_equal(got.count[COUNTER_phone], 0);
    free(got.text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_phrases),     cmocka_unit_test(test_many_phrases),
        cmocka_unit_test(test_wrong_lists), cmocka_unit_test(test_bad_words),
        cmocka_unit_test(test_domains),     cmocka_unit_test(test_url_words),
        cmocka_unit_test(test_email),       cmocka_unit_test(test_ip),
        cmocka_unit_test(test_phone),       cmocka_unit_test(test_national_phones),
        cmocka_unit_test(test_not_phones),  cmocka_unit_test(test_card),
        cmocka_unit_test(test_iban),        cmocka_unit_test(test_ssn),
        cmocka_unit_test(test_masks),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
