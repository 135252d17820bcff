/* html: what of a page is its text, and in which characters. */
#include "support/test.h"

#include "text/html.h"
#include "text/text.h"

static void assert_decoded(const char *page, size_t n, const char *charset, const char *expected) {
    str out = { 0 };
    html_decode(page, n, charset, &out);
    assert_string_equal(out.text, expected);
    str_free(&out);
}
#define DECODED(page, charset, expected) assert_decoded(page, sizeof page - 1, charset, expected)

static void pages_are_decoded(void **state) {
    DECODED("caf\xC3\xA9", "iso-8859-1", "café"); /* valid UTF-8 is UTF-8, whatever is said */
    DECODED("caf\xE9", "ISO-8859-1", "café");
    DECODED("\x93quoted\x94", "latin1", "“quoted”");
    DECODED("caf\xE9", NULL, "café");
    DECODED("<meta charset=\"koi8-r\">\xC4\xC1", NULL, "<meta charset=\"koi8-r\">да");
    DECODED("<meta content='text/html; charset=shift_jis'>\x93\xFA", NULL,
            "<meta content='text/html; charset=shift_jis'>日");
    DECODED("bad \xFF utf", "utf-8", "bad \uFFFD utf");
    DECODED("caf\xE9", "no-such-charset", "caf\uFFFD");
    DECODED("\xFF\xFE"
            "a\0b\0",
            NULL,
            "\uFEFF"
            "ab");
    DECODED("a\0b", NULL, "a b");
    DECODED("\x93\xFA\x93", "shift_jis", "日\uFFFD"); /* breaks off */
}

/* ---- pages ---------------------------------------------------------------------------------------- */
#define SENTENCE                                                                                   \
    "This is a sentence of the article itself, and it is long enough to be told from a label."
#define OTHER                                                                                      \
    "Here is another sentence of the article, which follows the first one and ends with a stop."

static void assert_text(const char *page, const char *expected) {
    str out = { 0 };
    err e = html_text(page, strlen(page), NULL, &out);
    if (e) { /* a build without libxml2 says so, and reads WET */
        assert_non_null(strstr(err_message(e), "libxml2"));
        err_free(e);
    } else {
        assert_string_equal(out.text, expected);
    }
    str_free(&out);
}

static void menus_and_footers_are_left_out(void **state) {
    assert_text(
        "<html><head><title>T</title><style>p{}</style></head><body>"
        "<nav><a href=/>Home</a> <a href=/a>About</a></nav>"
        "<div class='site-header'><ul><li><a href=/x>One</a></li><li><a href=/y>Two</a></ul></div>"
        "<h1>Title</h1><p>" SENTENCE "</p><script>var x = 'no text.';</script><p>" OTHER "</p>"
        "<div id='navBottom'>" SENTENCE "</div>"
        "<footer>© 2024 Somebody. All rights reserved, and more of it to be long enough.</footer>"
        "</body></html>",
        "Title\n" SENTENCE "\n" OTHER "\n");
}

static void hidden_parts_are_left_out(void **state) {
    assert_text("<p>" SENTENCE "</p><p hidden>" OTHER "</p><p style='color:red;display:none'>" OTHER
                "</p><div aria-hidden=true>" OTHER "</div><div role=navigation>" OTHER "</div>",
                SENTENCE "\n");
}

/* Short lines count when text surrounds them. */
static void short_blocks_follow_their_company(void **state) {
    assert_text("<p>Login</p><p>Search</p><p>Basket</p><p>Stores</p><p>Help</p><p>" SENTENCE "</p>"
                "<p>Really?</p><p>" OTHER "</p><p>Share</p><p>Print</p>",
                SENTENCE "\nReally?\n" OTHER "\n");
}

static void lists_and_headings_stay_with_text(void **state) {
    assert_text("<h2>Alone</h2><ul><li><a href=1>Link</a><li><a href=2>Link</a></ul>"
                "<h3>a</h3><h3>b</h3><h2>What you need</h2><p>" SENTENCE "</p>"
                "<ul><li>flour<li>water and <a href=x>salt</a></ul><h2>End</h2>",
                "a\nb\nWhat you need\n" SENTENCE "\n- flour\n- water and salt\n");
}

static void code_keeps_its_lines(void **state) {
    assert_text("<p>" SENTENCE "</p><pre>if (x)\n    y();\n\nz();</pre><p>" OTHER "</p>",
                SENTENCE "\nif (x)\n    y();\n\nz();\n" OTHER "\n");
}

static void spaces_and_breaks_are_tidied(void **state) {
    assert_text(
        "<p>  This\n is&nbsp;<b>a </b> <i>sentence</i> of\tthe arti&shy;cle itself, and it is long "
        "enough to be told<br>from a\xE2\x80\x8B label.<br><br>" OTHER "</p>",
        "This is a sentence of the article itself, and it is long enough to be told\n"
        "from a label.\n" OTHER "\n");
}

/* Prose may be full of links; a row of links is not prose. */
static void links_are_distinguished_from_prose(void **state) {
    assert_text(
        "<p><a>Escopete</a> is a small <a>municipality</a> in the <a>province of Guadalajara</a>, "
        "in the <a>autonomous community</a> of <a>Castile</a>, <a>Spain</a>, and it is old.</p>"
        "<p><a>The first of the links here</a> <a>The second of the links here</a> <a>A third "
        "link, and that is all of them.</a></p><p>" OTHER "</p>",
        "Escopete is a small municipality in the province of Guadalajara, in the autonomous "
        "community of Castile, Spain, and it is old.\n" OTHER "\n");
}

static void what_is_called_main_is(void **state) {
    assert_text("<div><p>" OTHER "</p></div><main><header><h1>Title</h1></header><p>" SENTENCE
                "</p></main><header>" OTHER "</header>",
                "Title\n" SENTENCE "\n");
}

/* A hint on what holds most of the page says nothing. */
static void wrappers_are_not_dropped(void **state) {
    assert_text("<body class=nav-open><div class='page with-sidebar'><p>" SENTENCE "</p><p>" OTHER
                "</p></div></body>",
                SENTENCE "\n" OTHER "\n");
}

/* Themes put the text itself into boxes with the names of page furniture. */
static void text_in_boxes_of_furniture_is_found(void **state) {
    static const char *const boxes[] = { "section class='section--ads'", "div class='widget Blog'",
                                         "div class='field label-hidden'", "div class='tab-menu'" };
    for (size_t i = 0; i < COUNT_OF(boxes); i++) {
        str page = { 0 };
        int tag = (int)strcspn(boxes[i], " ");
        str_add(&page, "<body><ul>");
        for (int k = 0; k < 40; k++)
            str_add(&page, "<li><a href=/%d>Something else to read</a></li>", k);
        str_add(&page, "</ul>");
        for (int k = 0; k < 2; k++)
            str_add(&page, "<%s><p>%s</p></%.*s>", boxes[i], k ? OTHER : SENTENCE, tag, boxes[i]);
        str_add(&page, "<div class='comments'><p>" SENTENCE "</p></div></body>");
        assert_text(page.text, SENTENCE "\n" OTHER "\n");
        str_free(&page);
    }
    str page = { 0 };
    str_add(&page, "<body><header><div>");
    str_add(&page, "<p>" SENTENCE "</p><p>" OTHER "</p></div></header></body>");
    assert_text(page.text, SENTENCE "\n" OTHER "\n"); /* a header that was not closed */
    str_free(&page);
}

static void tables_become_lines(void **state) {
    assert_text("<p>" SENTENCE "</p><table><tr><th>Year<th>Name<tr><td>1901<td>Ann</table><p>" OTHER
                "</p>",
                SENTENCE "\nYear Name\n1901 Ann\n" OTHER "\n");
}

static void pages_without_text_are_empty(void **state) {
    assert_text("", "");
    assert_text("   ", "");
    assert_text("<html></html>", "");
    assert_text("<p>Login</p>", "");
    assert_text("<!DOCTYPE", "");
    assert_text("\xFF\xFE", "");
}

/* ---- pages that are meant ill ---------------------------------------------------------------------- */
static void assert_survives(const char *piece, int times) {
    str page = { 0 }, out = { 0 };
    for (int i = 0; i < times; i++) str_add(&page, "%s", piece);
    err_free(html_text(page.text, page.len, NULL, &out));
    if (out.text) assert_int_equal(utf8_valid(out.text, out.len), out.len);
    str_free(&page);
    str_free(&out);
}

static void hostile_pages_are_survived(void **state) {
    const char *pieces[] = { "<div>",          "<b><p>", "<table><tr><td>",
                             "<ul><li></p>",   "&",      "<",
                             "<!--",           "</div>", "<script",
                             "<style></style", "<p",     "<a href=\"" };
    for (size_t i = 0; i < COUNT_OF(pieces); i++) assert_survives(pieces[i], 30000);
    str page = { 0 }, out = { 0 };
    str_add(&page, "<p>" SENTENCE "</p><p ");
    for (int i = 0; i < 200000; i++) str_add(&page, "a%d=1 ", i); /* libxml2 alone: minutes */
    str_add(&page, ">" OTHER);
    err_free(html_text(page.text, page.len, NULL, &out));
    str_free(&page);
    str_free(&out);
}

static void random_pages_are_survived(void **state) {
    static const char *const pieces[] = { "<p>",
                                          "</p>",
                                          "<div class=nav>",
                                          "</div>",
                                          "<a>",
                                          "</a>",
                                          "<li>",
                                          "<tr><td>",
                                          "<pre>",
                                          "</pre>",
                                          "<br>",
                                          SENTENCE,
                                          " ",
                                          "\xFF",
                                          "&eacute;",
                                          "&#xD800;",
                                          "&#0;",
                                          "<main>",
                                          "</main>",
                                          "<h1>",
                                          "</h1>",
                                          "x",
                                          "\n",
                                          "<!-- -->",
                                          "<![CDATA[x]]>",
                                          "<?x?>" };
    rng_key key = rng_key_of(1, 9);
    uint64_t at = 0;
    for (int i = 0; i < 500; i++) {
        str page = { 0 }, out = { 0 };
        for (uint64_t n = rng_below(key, at++, 60); n > 0; n--)
            str_add(&page, "%s", pieces[rng_below(key, at++, COUNT_OF(pieces))]);
        str_add(&page, "%s", "");
        err_free(html_text(page.text, page.len, NULL, &out));
        if (out.text) assert_int_equal(utf8_valid(out.text, out.len), out.len);
        str_free(&page);
        str_free(&out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_are_decoded),
        cmocka_unit_test(menus_and_footers_are_left_out),
        cmocka_unit_test(hidden_parts_are_left_out),
        cmocka_unit_test(short_blocks_follow_their_company),
        cmocka_unit_test(lists_and_headings_stay_with_text),
        cmocka_unit_test(code_keeps_its_lines),
        cmocka_unit_test(spaces_and_breaks_are_tidied),
        cmocka_unit_test(links_are_distinguished_from_prose),
        cmocka_unit_test(what_is_called_main_is),
        cmocka_unit_test(wrappers_are_not_dropped),
        cmocka_unit_test(text_in_boxes_of_furniture_is_found),
        cmocka_unit_test(tables_become_lines),
        cmocka_unit_test(pages_without_text_are_empty),
        cmocka_unit_test(hostile_pages_are_survived),
        cmocka_unit_test(random_pages_are_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
