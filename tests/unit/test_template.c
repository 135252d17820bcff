/* Chat templates: the text that Jinja2 renders (tests/fixtures/chat.py), errors where it has errors, and no harm from any template. */
#include "support/test.h"

#include <jansson.h>

#include "eval/template.h"
#include "io/io.h"

static void templates_render_as_jinja_does(void **state) {
    char *text = NULL, *next = NULL;
    int n = 0, wrong = 0, errors = 0;
    assert_ok(io_read(FIXTURES "/chat/cases.jsonl", 1 << 24, &text, NULL));
    for (char *line = strtok_r(text, "\n", &next); line; line = strtok_r(NULL, "\n", &next), n++) {
        json_t *o = json_loads(line, 0, NULL);
        assert_non_null(o);
        const char *template = json_string_value(json_object_get(o, "template"));
        const char *want = json_string_value(json_object_get(o, "text"));
        str got = { 0 };
        str_add(&got, "%s", "");
        err e = template_render(template, json_object_get(o, "vars"), &got);
        errors += !want;
        /* Where Jinja has an error we may be more lenient, but what it renders is rendered alike. */
        if (want && (e || strcmp(got.text, want) != 0)) {
            if (wrong++ < 20)
                print_error("%s\n    expected \"%s\"\n    got      \"%s\"%s\n", template, want,
                            got.text, e ? err_message(e) : "");
        }
        err_free(e);
        str_free(&got);
        json_decref(o);
    }
    free(text);
    assert_int_equal(wrong, 0);
    assert_true(n == 700 && errors < n / 2);
}

static void mistakes_are_named(void **state) {
    static const struct {
        const char *template, *words;
    } cases[] = {
        { "{{ raise_exception('no system role') }}", "no system role" },
        { "{% for x in [1] %}", "\"for\" without \"endfor\"" },
        { "{% endif %}", "without what it ends" },
        { "{{ 'a' | reverse_words }}", "the filter \"reverse_words\"" },
        { "{{ open('/etc/passwd') }}", "\"open\" is not a function" },
        { "{% include 'x' %}", "\" include 'x' \" is not a statement" },
        { "{{ 1 / 0 }}", "a division by 0" },
        { "{{ ''.__class__() }}", "\"__class__\" is not a method" },
        { "{{ a", "is not closed" },
        { "{{ 1 2 }}", "is not understood" },
        { "{{ 'a' is bright }}", "the test \"bright\"" },
        { "{% for i in range(100000000) %}{% endfor %}", "does not end within" },
        { "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested deeper than" },
        { "{% set ns = namespace(t='xxxxxxxxxxxxxxxx') %}{% for i in range(64) %}{% set ns.t = ns.t + ns.t %}"
          "{% endfor %}",
          "more than" },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        str out = { 0 };
        json_t *vars = json_object();
        assert_error(template_render(cases[i].template, vars, &out), cases[i].words);
        json_decref(vars);
        str_free(&out);
    }
}

/* Pieces of templates in any order: an error or a text, never harm. */
static void random_templates_do_no_harm(void **state) {
    static const char *const pieces[] = {
        "{{",         "}}",
        "{%",         "%}",
        "{#",         "#}",
        "{%-",        "-%}",
        " if ",       " for x in l ",
        " else ",     " endif ",
        " endfor ",   " set x = ",
        " endset ",   " macro m(a) ",
        " endmacro ", "x",
        "l",          "[",
        "]",          "(",
        ")",          "'",
        "\"",         "|",
        "trim",       ".",
        "items()",    " is ",
        " not ",      " and ",
        "1",          "-",
        "*",          "%",
        "~",          "\n",
        " ",          ":",
        ",",          "=",
        "{",          "}",
        "m(1)",       "loop.index",
        "\\",         "range(9)",
        "split('')",  "é",
        " break ",    " elif x ",
    };
    rng_key key = rng_key_of(11, 0);
    uint64_t at = 0;
    json_t *vars = json_pack("{s:s, s:[i, s]}", "x", "t x t", "l", 1, "b");
    for (int i = 0; i < 20000; i++) {
        str text = { 0 }, out = { 0 };
        for (uint64_t n = 1 + rng_below(key, at++, 24); n; n--)
            str_add(&text, "%s", pieces[rng_below(key, at++, COUNT_OF(pieces))]);
        err_free(template_render(text.text, vars, &out));
        str_free(&text);
        str_free(&out);
    }
    json_decref(vars);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(templates_render_as_jinja_does),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(random_templates_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
