/* The grammar of command lines and of numbers. */
#include "support/test.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

/* ---- numbers ------------------------------------------------------------------------------- */
/* JSON has the nine digits of printf, whichever way they are made. */
static void json_numbers_are_those_of_printf(void **state) {
    static const double odd[] = { 0,           -0.0,        1,         -1,
                                  9.999999995, 0.1,         1e-5,      9.99999999e-5,
                                  1e-4,        999999999.5, 123456789, 1234567890,
                                  1e22,        1e-13,       5e-324,    DBL_MAX,
                                  999999999,   1e9,         0.5,       1.000000005,
                                  2.5e-10,     99999999.95, 1e8,       0.0001000005,
                                  -12345.6789 };
    enum { DRAWS = 200000 };
    rng_key key = rng_key_of(7, 0);
    for (uint64_t i = 0; i < COUNT_OF(odd) + DRAWS; i++) {
        char expected[64];
        str got = { 0 };
        double v = (double)rng_u32(key, 3 * i) / 4294967296.0 + rng_uniform(key, 3 * i + 1) * 1e-9;
        v *= pow(10, (double)rng_below(key, 3 * i + 2, 48) - 20) * (i % 2 ? 1 : -1);
        if (i % 5 == 0) v = floor(v * 16) / 16; /* values between two decimals are among them */
        if (i < COUNT_OF(odd)) v = odd[i];
        snprintf(expected, sizeof expected, "%.9g", v);
        str_add(&got, "[");
        str_add_json_number(&got, v);
        if (strcmp(got.text + 1, expected)) fail_msg("%.17g: %s, not %s", v, got.text, expected);
        assert_int_equal(got.len, strlen(got.text));
        str_free(&got);
    }
}

static void whole_numbers_may_have_suffixes(void **state) {
    static const struct {
        const char *text;
        int64_t value;
    } good[] = { { "0", 0 },
                 { "4_096", 4096 },
                 { "1e6", 1000000 },
                 { "2.5M", 2500000 },
                 { "64Ki", 65536 },
                 { "10k", 10000 },
                 { "2G", 2000000000 },
                 { "1.5B", 1500000000 },
                 { "-3", -3 },
                 { "3T", 3000000000000 },
                 { "9223372036854775807", INT64_MAX } };
    static const char *const bad[] = { "",
                                       "x",
                                       "1.5",
                                       "1 k",
                                       "0x10",
                                       "1e400",
                                       "nan",
                                       "inf",
                                       "_1",
                                       "1__0",
                                       "5m",
                                       "2e",
                                       "9223372036854775808",
                                       "1Kib",
                                       "10 k",
                                       "--1" };
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        int64_t got = 7;
        assert_true(number_parse_int(good[i].text, &got));
        assert_int_equal(got, good[i].value);
    }
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        int64_t got = 7;
        if (number_parse_int(bad[i], &got)) fail_msg("\"%s\" became %lld", bad[i], (long long)got);
        assert_int_equal(got, 7);
    }
    double real;
    assert_true(number_parse_real("1.5K", &real) && real == 1500);
    assert_false(number_parse_real("1.5 K", &real));
}

/* ---- command lines ------------------------------------------------------------------------- */
typedef struct seen {
    str text; /* what was set, one after the other */
} seen;

static bool find(void *ctx, const char *name, args_option *out) {
    if (strcmp(name, "steps") == 0 || strcmp(name, "s") == 0)
        *out = (args_option){ ARGS_VALUE, "steps", "100" };
    else if (strcmp(name, "quiet") == 0)
        *out = (args_option){ ARGS_FLAG, "quiet", "" };
    else if (strcmp(name, "shuffle") == 0)
        *out = (args_option){ ARGS_SWITCH, "shuffle", "yes" };
    else
        return false;
    return true;
}
static err set(void *ctx, const args_option *o, const char *label, const char *value) {
    seen *s = ctx;
    if (value && strcmp(value, "bad") == 0) return ERR("%s: bad", label);
    str_add(&s->text, "%s=%s;", (const char *)o->option, value ? value : "");
    return OK;
}
static err take_word(void *ctx, char *word) {
    seen *s = ctx;
    str_add(&s->text, "%s;", word);
    return OK;
}
static err suggest(void *ctx, err e, const char *name) { return err_hint(e, "not %s", name); }

static err parse(char **argv, seen *s) {
    int argc = 0;
    while (argv[argc]) argc++;
    return args_parse(&(args_grammar){ find, set, take_word, suggest, s }, argc, argv);
}
#define ARGS(...) ((char *[]){ __VA_ARGS__, NULL })

static void check_seen(char **argv, const char *want) {
    seen s = { 0 };
    assert_ok(parse(argv, &s));
    assert_string_equal(s.text.text, want);
    str_free(&s.text);
}

static void options_flags_switches_and_words(void **state) {
    check_seen(ARGS("--steps=5", "--steps", "6", "-s", "7"), "steps=5;steps=6;steps=7;");
    check_seen(ARGS("a", "--quiet", "-", "b"), "a;quiet=;-;b;");
    check_seen(ARGS("--shuffle", "--shuffle", "no", "--shuffle", "a"),
               "shuffle=true;shuffle=no;shuffle=true;a;");
    check_seen(ARGS("--steps", "--quiet"), "steps=--quiet;");
    check_seen(ARGS("--quiet", "--", "--steps", "-x"), "quiet=;--steps;-x;");
}

static void mistakes_are_usage_errors(void **state) {
    char *const *const wrong[] = { ARGS("--stepz=1"),  ARGS("--steps"),     ARGS("--quiet=1"),
                                   ARGS("-q"),         ARGS("-steps", "1"), ARGS("--s", "1"),
                                   ARGS("--steps=bad") };
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        seen s = { 0 };
        err e = parse((char **)wrong[i], &s);
        if (!e) fail_msg("%s was accepted", wrong[i][0]);
        assert_true(err_is_usage(e));
        err_free(e);
        str_free(&s.text);
    }
}

/* The mark, not the message, makes a usage error. */
static void a_message_with_dashes_is_not_a_usage_error(void **state) {
    err e = ERR("--strange-file is not a folder");
    assert_false(err_is_usage(e));
    err_free(e);
    e = ERR_USAGE("expected one file");
    assert_true(err_is_usage(e));
    err_free(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_numbers_are_those_of_printf),
        cmocka_unit_test(whole_numbers_may_have_suffixes),
        cmocka_unit_test(options_flags_switches_and_words),
        cmocka_unit_test(mistakes_are_usage_errors),
        cmocka_unit_test(a_message_with_dashes_is_not_a_usage_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
