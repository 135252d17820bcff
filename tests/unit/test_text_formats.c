/* JSON arrays, CSV and HTML as inputs. */
#include "support/text.h"

/* Reads an input in blocks of every small size on several threads, and compares. */
static void expect_everywhere(const char *path, text_input_options o, const char *expected) {
    static const size_t blocks[] = { 1, 2, 3, 7, 20, 0 };
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        o.block_bytes = blocks[i];
        assert_sees(path, &o, expected);
    }
}

/* ---- JSON arrays ------------------------------------------------------------------------------- */
static const char array_text[] =
    "\xEF\xBB\xBF \n[\n  {\"text\": \"one, [two] {three} \\\" \\\\\", \"id\": 1},\r\n"
    "  {\n    \"id\": \"b\",\n    \"deep\": [{\"text\": \"no\"}, [1, 2]],\n    \"text\": \"second\"\n  }\n"
    ",{\"text\":\"third\"} ]\n";
#define ARRAY_SEEN "[0|one, [two] {three} \" \\|1|||][1|second|b|||][2|third||||]"

static void arrays_of_objects_are_read(void **state) {
    test_folder *f = *state;
    static const char *const names[] = { "a.json", "a.jsonl", "a", "a.json.gz", "a.json.zst" };
    for (size_t i = 0; i < COUNT_OF(names); i++)
        expect_everywhere(write_input(f, names[i], array_text), (text_input_options){ 0 },
                          ARRAY_SEEN);
    expect_everywhere(write_input(f, "b.json", " [ ] "), (text_input_options){ 0 }, "");
    expect_everywhere(write_input(f, "c.json", "{\"text\":\"a line\"}\n"),
                      (text_input_options){ 0 }, "[0|a line||||]");
    expect_everywhere(write_input(f, "d.txt", "[{\"text\":\"plain text\"}]"),
                      (text_input_options){ .source_field = "x" },
                      arena_printf(f->names, "[0|[{\"text\":\"plain text\"}]|%s/d.txt||%s/d.txt|]",
                                   f->path, f->path));
}

static void wrong_elements_of_arrays_are_counted(void **state) {
    test_folder *f = *state;
    static const struct {
        const char *text;
        int documents, unreadable;
    } cases[] = {
        { "[{\"text\":\"a\"}, 17, {\"text\":\"b\"}]", 2, 1 },
        { "[{\"text\":\"a\"}, {\"text\":17}, {\"text\":\"b\"}]", 2, 1 },
        { "[{\"text\":\"a\"}, {\"text\":\"trunc", 1, 1 },
        { "[{\"text\":\"a\"}, {\"text\":tru}]", 1, 1 },
        { "[{\"text\":\"a\"}, {\"a\":1}]", 1, 1 },
        { "[{\"text\":\"a\"}, 5, null, \"s\", [\"t\", {}], {\"text\":\"b\"}]", 2, 4 },
        { "[{\"text\":\"a\"}, \"} {\\\" {\", {\"text\":\"b\"}]", 2, 1 },
        { "[{\"text\":\"a\"} {\"text\":\"b\"}]", 2, 1 },
        { "[{\"text\":\"a\"} [{\"text\":\"b\"}]]", 1, 1 },
        { "[{\"text\":\"a\"},{\"text\":\"b\"}", 2, 1 },
        { "[{\"text\":\"a\"},", 1, 1 },
        { "[{\"text\":\"a\"}, 17", 1, 1 },
        { "[{\"text\":\"a\"}] [{\"text\":\"b\"}]\n", 2, 0 },
        { "[{\"text\":\"a\"}] {\"text\":\"b\"}", 2, 1 },
        { "[{", 0, 1 },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        for (size_t block = 1; block < 40; block += 6) {
            seen s;
            const char *path = write_input(f, "a.json", cases[i].text);
            assert_ok(read_one(path, &(text_input_options){ .block_bytes = block }, 2, &s));
            assert_int_equal(s.counts.documents, cases[i].documents);
            assert_int_equal(s.counts.unreadable, cases[i].unreadable);
            seen_free(&s);
        }
}

/* ---- CSV --------------------------------------------------------------------------------------- */
#define CSV                                                                                        \
    "\xEF\xBB\xBFid,text,url,extra\r\n"                                                            \
    "1,plain,http://a,x\r\n"                                                                       \
    "2,\"quotes \"\"inside\"\", commas, and\nline\r\nbreaks\",,\n"                                 \
    "\n"                                                                                           \
    "\"3\",5\" pipe,http://c,\"\"\n"                                                               \
    "4,,,y\n"                                                                                      \
    "5,the last,http://e,z"
#define CSV_SEEN                                                                                   \
    "[0|plain|1|http://a||][1|quotes \"inside\", commas, and\nline\nbreaks|2|||]"                  \
    "[2|5\" pipe|3|http://c||][3|the last|5|http://e||]"

static void rows_of_csv_are_read(void **state) {
    test_folder *f = *state;
    static const char *const names[] = { "a.csv", "a.csv.gz", "a.csv.zst" };
    for (size_t i = 0; i < COUNT_OF(names); i++)
        expect_everywhere(write_input(f, names[i], CSV), (text_input_options){ 0 }, CSV_SEEN);
    expect_everywhere(write_input(f, "b.tsv", "url\ttext\nu\ta,b\n\t\"tab\there\"\n"),
                      (text_input_options){ 0 }, "[0|a,b||u||][1|tab\there||||]");
    expect_everywhere(write_input(f, "c.csv", "body,n\nhello,1\n"),
                      (text_input_options){ .text_field = "body", .id_field = "n" },
                      "[0|hello|1|||]");
    expect_everywhere(write_input(f, "d.csv", "only\na\nb\n"), (text_input_options){ 0 },
                      "[0|a||||][1|b||||]");
    expect_everywhere(write_input(f, "e.csv", "text\n"), (text_input_options){ 0 }, "");
    expect_everywhere(write_input(f, "f.csv", "text"), (text_input_options){ 0 }, "");
}

static void rows_that_do_not_fit_the_header_are_counted(void **state) {
    test_folder *f = *state;
    seen s;
    const char *path = write_input(f, "a.csv", "id,text\n1,a\n2\n3,b,c\n4,d\n");
    assert_ok(read_one(path, &(text_input_options){ 0 }, 2, &s));
    assert_string_equal(s.all.text, "[0|a|1|||][1|d|4|||]");
    assert_int_equal(s.counts.unreadable, 2);
    seen_free(&s);
    const text_input_options strict = { .strict = true };
    assert_error(read_one(path, &strict, 1, &s), "1 fields", "the header has 2");
    seen_free(&s);
    const text_input_options narrow = { .document_bytes = 20, .block_bytes = 8 };
    path = write_input(f, "c.csv", "a_name_that_is_longer_than_twenty_bytes,text\na,b\nc,d\n");
    assert_ok(read_one(path, &narrow, 1, &s));
    assert_int_equal(s.counts.documents, 0);
    assert_true(s.counts.unreadable > 1);
    seen_free(&s);
    path = write_input(f, "b.csv", "title,body\na,b\n");
    assert_error(read_one(path, &strict, 1, &s), "no column \"text\"");
    seen_free(&s);
}

/* Rows whose text is the last column, half of them in quotes and of two lines; row `open` lacks the quote that
 * closes its text. */
static void add_rows(str *out, int n, int open, rng_key key) {
    str_add(out, "id,text\n");
    for (int i = 0; i < n; i++) {
        bool quoted = i == open || rng_below(key, (uint64_t)i, 2);
        str_add(out, quoted ? "%d,\"row %d, of\ntwo lines%s\n" : "%d,row %d in one line%s\n", i, i,
                quoted && i != open ? "\"" : "");
    }
}

/* A quote without an end costs its own row, wherever it is and whatever follows. */
static void a_quote_that_is_not_closed_swallows_nothing(void **state) {
    enum { ROWS = 40 };
    for (uint64_t trial = 0; trial < 60; trial++) {
        rng_key key = rng_key_of(33, trial);
        int open = (int)rng_below(key, 1000, ROWS);
        str csv = { 0 };
        add_rows(&csv, ROWS, open, key);
        const char *path = write_input_bytes(*state, "a.csv", csv.text, csv.len);
        static const size_t blocks[] = { 1, 50, 300, 0 };
        for (size_t b = 0; b < COUNT_OF(blocks); b++) {
            seen s;
            assert_ok(read_one(path, &(text_input_options){ .block_bytes = blocks[b] }, 2, &s));
            assert_int_equal(s.counts.documents, ROWS - 1);
            assert_true(s.counts.unreadable >= 1 && s.counts.unreadable <= 2);
            for (int i = 0; i < ROWS; i++) {
                char row[32];
                snprintf(row, sizeof row, "|%d|||]", i);
                if (i != open) assert_non_null(strstr(s.all.text, row));
            }
            seen_free(&s);
            assert_error(read_one(path, &(text_input_options){ .strict = true }, 2, &s),
                         "a quoted field does not end", "byte");
            seen_free(&s);
        }
        str_free(&csv);
    }
}

/* A row that is longer than allowed because of a quote costs its first line. */
static void a_long_quote_swallows_nothing(void **state) {
    str csv = { 0 };
    str_add(&csv, "id,text\n1,\"open\n");
    for (int i = 2; i < 200; i++) str_add(&csv, "%d,line %d\n", i, i);
    const char *path = write_input_bytes(*state, "a.csv", csv.text, csv.len);
    seen s;
    assert_ok(
        read_one(path, &(text_input_options){ .block_bytes = 64, .document_bytes = 500 }, 2, &s));
    assert_int_equal(s.counts.documents, 198);
    assert_int_equal(s.counts.unreadable, 1);
    seen_free(&s);
    str_free(&csv);
}

/* Spreadsheets of many countries separate by semicolons. */
static void other_separators_are_recognized(void **state) {
    test_folder *f = *state;
    static const char *const seps[] = { ",", ";", "\t", "|" };
    static const char *const names[] = { "a.csv", "a.tsv", "a.csv.gz" };
    for (size_t i = 0; i < COUNT_OF(seps); i++)
        for (size_t k = 0; k < COUNT_OF(names); k++) {
            const char *c = seps[i];
            str csv = { 0 };
            str_add(&csv, "id%s\"text\"%sn\n1%s\"one, two; three\"%s4\n2%s\"a%sb\"%s5\n", c, c, c,
                    c, c, c, c);
            char expected[64];
            snprintf(expected, sizeof expected, "[0|one, two; three|1|||][1|a%sb|2|||]", c);
            expect_everywhere(write_input_bytes(f, names[k], csv.text, csv.len),
                              (text_input_options){ 0 }, expected);
            str_free(&csv);
        }
    expect_everywhere(write_input(f, "b.csv", "body;n, m\nhello;1\n"),
                      (text_input_options){ .text_field = "body" }, "[0|hello||||]");
    expect_everywhere(write_input(f, "c.csv", "text\na;b\n"), (text_input_options){ 0 },
                      "[0|a;b||||]");
}

/* ---- what transforms write ------------------------------------------------------------------------- */
static err keep_document(void *ctx, int worker, int segment, const text_doc *d, text_verdict *v) {
    return OK;
}

static void stages_keep_other_members(void **state) {
    test_folder *f = *state;
    static const text_transform keep_all = { .name = "keep", .judge = keep_document };
    static const struct {
        const char *name, *text, *lines;
    } cases[] = {
        { "a.csv", "id,text,a \"b\"\n1,one,x\n",
          "{\"id\": \"1\", \"a \\\"b\\\"\": \"x\", \"text\": \"one\"}\n" },
        { "b.json", "[{\"k\":\n[1,\n2],\"text\":\"t\"}]", "{\"k\": [1, 2],\"text\":\"t\"}\n" },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const char *path = write_input(f, cases[i].name, cases[i].text);
        const char *out = in_folder(f, "out.jsonl");
        text_inputs *in = NULL;
        text_transform_report report;
        char *lines = NULL;
        assert_ok(text_inputs_open(&path, 1, &(text_input_options){ 0 }, &in));
        assert_ok(text_transform_run(
            &keep_all, in, &(text_transform_options){ .out = out, .quiet = true }, &report));
        text_transform_report_free(&report);
        text_inputs_close(in);
        assert_ok(io_read(out, 1 << 20, &lines, NULL));
        assert_string_equal(lines, cases[i].lines);
        free(lines);
    }
}

/* ---- HTML -------------------------------------------------------------------------------------- */
static void a_page_is_a_document(void **state) {
    test_folder *f = *state;
    static const char page[] =
        "<!DOCTYPE html><html><head><title>T</title><script>no()</script></head><body>"
        "<nav><a href='/'>Home</a></nav><p>This is the first paragraph of the page, and it is long "
        "enough to count as running text.</p></body></html>";
    static const char *const names[] = { "a.html", "a.htm", "a", "a.html.gz" };
    for (size_t i = 0; i < COUNT_OF(names); i++)
        for (size_t block = 1; block < 2000; block *= 9) {
            seen s;
            const char *path = write_input(f, names[i], page);
            assert_ok(read_one(path, &(text_input_options){ .block_bytes = block }, 2, &s));
            assert_int_equal(s.counts.documents, reads_html() ? 1 : 0);
            assert_int_equal(s.counts.unreadable, reads_html() ? 0 : 1);
            if (reads_html()) {
                assert_non_null(strstr(s.all.text, "[0|This is the first paragraph of the page"));
                assert_null(strstr(s.all.text, "no()"));
            }
            seen_free(&s);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(arrays_of_objects_are_read, text_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(wrong_elements_of_arrays_are_counted, text_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(rows_of_csv_are_read, text_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(rows_that_do_not_fit_the_header_are_counted, text_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(a_quote_that_is_not_closed_swallows_nothing, text_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(a_long_quote_swallows_nothing, text_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(other_separators_are_recognized, text_setup,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(stages_keep_other_members, text_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(a_page_is_a_document, text_setup, folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
