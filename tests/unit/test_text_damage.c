/* text: what is broken. Truncated files and flipped bits, random lines, WARC records that lie:
 * an error or a counted skip, never a crash and never silence. */
#include "support/text.h"

#include "text/decompress.h"
#include "text/json_scan_internal.h"

static const text_input_options plain = { 0 };

static uint64_t draw(uint64_t *at, uint64_t below) {
    return rng_below(rng_key_of(11, 7), (*at)++, below);
}

/* ---- files ------------------------------------------------------------------------------------- */
static void make_lines(str *out, int n) {
    for (int i = 0; i < n; i++)
        str_add(out, "{\"id\":%d,\"text\":\"line %d of a file\\nwith \\u00e9\\ud83d\\ude00 %d\"}\n",
                i, i, i * i);
}

static void make_texts(str *out, int n) {
    for (int i = 0; i < n; i++) str_add(out, "text %d\nin two lines é\n<|endoftext|>\n", i);
}

static void add_record(str *out, const char *type, const char *media, const char *content) {
    str_add(
        out,
        "WARC/1.0\r\nWARC-Type: %s\r\nWARC-Target-URI: http://a/%zu\r\n"
        "WARC-Record-ID: <urn:uuid:%zu>\r\nContent-Type: %s\r\nContent-Length: %zu\r\n\r\n%s\r\n\r\n",
        type, out->len, out->len, media, strlen(content), content);
}

static const char *const page =
    "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nServer: x\r\n\r\n"
    "<html><body><ul><li><a href=/>Home</a></ul><p>This is a paragraph of the page that is long "
    "enough to be seen as its text, with a full stop.</p></body></html>";

static void make_warc(str *out, int n) {
    add_record(out, "warcinfo", "application/warc-fields", "software: x\r\n");
    for (int i = 0; i < n; i++) {
        add_record(out, "request", "application/http; msgtype=request", "GET / HTTP/1.1\r\n\r\n");
        if (reads_html()) add_record(out, "response", "application/http; msgtype=response", page);
        add_record(out, "conversion", "text/plain", "Text that\nsomebody else has made of it.\n");
    }
}

/* Reads damaged bytes; an error must be one that says where, and what is skipped is counted. */
static void read_damaged(test_folder *p, const char *name, const str *bytes, int64_t whole,
                         bool sure) {
    const char *path = in_folder(p, name);
    write_bytes(path, bytes->text, bytes->len);
    text_input_options o = { .block_bytes = 4096 };
    seen s;
    assert_ok(read_one(path, &o, 2, &s));
    int64_t lost = s.counts.unreadable + s.counts.invalid + s.counts.empty;
    if (sure && s.counts.documents < whole && !lost) fail_msg("%s: lost in silence", name);
    assert_true(s.counts.documents <= whole + 3);
    seen_free(&s);
    o.strict = true;
    err e = read_one(path, &o, 2, &s);
    if (sure) assert_true(e != OK || (s.counts.documents == whole && !lost));
    if (e && !strstr(err_message(e), "byte")) fail_msg("no place in: %s", err_message(e));
    err_free(e);
    seen_free(&s);
}

typedef struct kind {
    const char *name;
    void (*make)(str *out, int n);
    bool packed; /* and checked: damage cannot hide */
} kind;
static const kind kinds[] = {
    { "a.jsonl", make_lines, false },    { "a.jsonl.gz", make_lines, true },
    { "a.jsonl.zst", make_lines, true }, { "a.txt", make_texts, false },
    { "a.txt.gz", make_texts, true },    { "a.warc", make_warc, false },
    { "a.warc.gz", make_warc, true },    { "a.wet.zst", make_warc, true },
};

static void damaged(test_folder *p, const kind *k, bool flip, uint64_t *at) {
    str plain_bytes = { 0 }, damaged_bytes = { 0 };
    seen s;
    k->make(&plain_bytes, 300);
    const char *path = write_input_bytes(p, k->name, plain_bytes.text, plain_bytes.len);
    assert_ok(read_one(path, &(text_input_options){ .strict = true }, 1, &s));
    int64_t whole = s.counts.documents;
    assert_true(whole >= 300);
    seen_free(&s);
    char *bytes = NULL;
    size_t n;
    assert_ok(io_read(path, 1 << 24, &bytes, &n));
    for (int i = 0; i < (SANITIZED ? 12 : 60); i++) {
        damaged_bytes.len = 0;
        str_add_bytes(&damaged_bytes, bytes, flip ? n : (size_t)draw(at, n));
        for (uint64_t f = flip ? 1 + draw(at, 3) : 0; f > 0; f--) {
            uint64_t byte = draw(at, n);
            damaged_bytes.text[byte] ^= (char)(1u << draw(at, 8));
        }
        read_damaged(p, k->name, &damaged_bytes, whole, k->packed && !flip);
    }
    free(bytes);
    str_free(&plain_bytes);
    str_free(&damaged_bytes);
}

static void truncated_files(void **state) {
    uint64_t at = 0;
    for (size_t i = 0; i < COUNT_OF(kinds); i++) damaged(*state, &kinds[i], false, &at);
}

static void files_with_flipped_bits(void **state) {
    uint64_t at = 1 << 20;
    for (size_t i = 0; i < COUNT_OF(kinds); i++) damaged(*state, &kinds[i], true, &at);
}

/* Documents before the damage are used, and both the file and the place are named. */
static void what_is_readable_is_used(void **state) {
    test_folder *p = *state;
    str lines = { 0 }, packed = { 0 };
    make_lines(&lines, 1000);
    add_gzip(lines.text, lines.len, &packed);
    size_t first = packed.len;
    add_gzip(lines.text, lines.len, &packed);
    packed.text[first] = 'x';
    const char *path = in_folder(p, "a.jsonl.gz");
    assert_ok(io_write(path, packed.text, packed.len));
    seen s;
    assert_ok(read_one(path, &plain, 1, &s));
    assert_int_equal(s.counts.documents, 1000);
    assert_int_equal(s.counts.unreadable, 1);
    seen_free(&s);
    assert_error(read_one(path, &(text_input_options){ .strict = true }, 1, &s), "a.jsonl.gz");
    seen_free(&s);
    packed.len = first + 1;
    packed.text[first] = 0; /* padding is not damage */
    assert_ok(io_write(path, packed.text, packed.len));
    assert_ok(read_one(path, &(text_input_options){ .strict = true }, 1, &s));
    seen_free(&s);
    assert_ok(io_write(path, "", 0));
    assert_error(read_one(path, &(text_input_options){ .strict = true }, 1, &s), "is truncated");
    seen_free(&s);
    str_free(&lines);
    str_free(&packed);
}

/* ---- WARC ------------------------------------------------------------------------------------------ */
static void assert_warc(test_folder *p, const char *bytes, size_t n, int documents,
                        int unreadable) {
    for (size_t block = 64; block <= 1 << 20; block *= 128) {
        text_input_options o = { .block_bytes = block, .document_bytes = 1000 };
        const char *path = write_input_bytes(p, "a.warc", bytes, n);
        seen s;
        assert_ok(read_one(path, &o, 2, &s));
        assert_int_equal(s.counts.documents, documents);
        assert_int_equal(s.counts.unreadable, unreadable);
        seen_free(&s);
    }
}

static void warc_records_are_read(void **state) {
    test_folder *p = *state;
    if (!reads_html()) skip();
    str w = { 0 };
    make_warc(&w, 2);
    const char *path = write_input_bytes(p, "a.warc.gz", w.text, w.len);
    seen s;
    assert_ok(read_one(path, &plain, 1, &s));
    assert_int_equal(s.counts.documents, 4);
    const char *text =
        "[0|This is a paragraph of the page that is long enough to be seen as its text, "
        "with a full stop.\n|urn:uuid:";
    if (!str_starts(s.all.text, text)) fail_msg("%s", s.all.text);
    assert_non_null(strstr(s.all.text, "[1|Text that\nsomebody else has made of it.\n|urn:uuid:"));
    assert_non_null(strstr(s.all.text, "|http://a/"));
    seen_free(&s);
    str_free(&w);
}

/* Bodies that a crawler has decoded, or that it has not, with the same headers. */
static void bodies_are_decoded_unless_they_are(void **state) {
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n";
    str w = { 0 }, message = { 0 };
    add_record(&w, "response", "application/http",
               "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: gzip\r\n\r\nab");
    add_record(
        &w, "response", "application/http",
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\nfine");
    add_record(&w, "response", "application/http",
               "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: br\r\n\r\n<x>");
    int documents = 3;
    if (text_codec_of(COMPRESSION_BROTLI)->decode->open) {
        str_add(&message, "%sContent-Encoding: br\r\n\r\n", head);
        str_add_bytes(&message, "\x0b\x02\x80hello\x03", 9);
        str_add(
            &w,
            "WARC/1.0\r\nWARC-Type: response\r\nContent-Type: application/http\r\nContent-Length: %zu\r\n\r\n",
            message.len);
        str_add_bytes(&w, message.text, message.len);
        str_add(&w, "\r\n\r\n");
        documents++;
    }
    assert_warc(*state, w.text, w.len, documents, 0);
    str_free(&message);
    str_free(&w);
}

static void warc_records_that_lie(void **state) {
    test_folder *p = *state;
    str w = { 0 };
    str_add(&w, "garbage\r\nmore of it\r\n\r\n");
    add_record(&w, "conversion", "text/plain", "one");
    str_add(&w, "WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: x\r\n\r\nno length\r\n\r\n");
    add_record(&w, "conversion", "text/plain", "two");
    str_add(&w, "WARC/1.0\r\nWARC-Type: conversion\r\nContent-Type: text/plain\r\n"
                "Content-Length: 20\r\n\r\nshort\r\n\r\n");
    add_record(&w, "conversion", "text/plain", "swallowed by the one before");
    add_record(&w, "conversion", "text/plain", "three");
    add_record(&w, "response", "application/http", "not HTTP at all");
    add_record(&w, "response", "application/http",
               "HTTP/1.1 404 no\r\nContent-Type: text/html\r\n\r\nx");
    add_record(&w, "response", "application/http",
               "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: br\r\n\r\nx");
    add_record(&w, "response", "application/http",
               "HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\nx");
    add_record(&w, "response", "application/http",
               "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
               "3\r\nfou\r\n1;x=y\r\nr\r\n0\r\n\r\n");
    assert_warc(p, w.text, w.len, 5, 5); /* the short one takes a piece of the next */
    str_add(&w, "WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: 100\r\n\r\nis truncated");
    assert_warc(p, w.text, w.len, 5, 6);
    str_free(&w);
}

static void long_warc_records_are_skipped(void **state) {
    test_folder *p = *state;
    enum { LONG = 1 << 20 };
    str w = { 0 };
    char *content = mem_alloc(LONG + 1);
    memset(content, 'x', LONG);
    add_record(&w, "conversion", "text/plain", "one");
    add_record(&w, "conversion", "text/plain", content);
    add_record(&w, "conversion", "text/plain", "two");
    str_add_bytes(&w, content, LONG); /* no record, and long */
    str_add(&w, "\r\n");
    add_record(&w, "conversion", "text/plain", "three");
    assert_warc(p, w.text, w.len, 3, 2);
    free(content);
    str_free(&w);
}

/* ---- JSON against jansson ------------------------------------------------------------------------------ */
static const json_want wants[] = { { "text", 0 }, { "a.b", 1 }, { "id", 2 } };

static const json_t *at_path(const json_t *object, const char *path) {
    if (json_object_get(object, path)) return json_object_get(object, path);
    const char *dot = strchr(path, '.');
    if (!dot) return NULL;
    char name[16];
    snprintf(name, sizeof name, "%.*s", (int)(dot - path), path);
    const json_t *below = json_object_get(object, name);
    return json_is_object(below) ? at_path(below, dot + 1) : NULL;
}

/* One line, by us and by jansson. */
static void compare(const char *line, size_t n) {
    json_member m[3] = { 0 };
    bool odd = false;
    if (utf8_valid(line, n) != n) return; /* checked before the scan */
    char *copy = malloc(n ? n : 1);       /* so that reading past its end is seen */
    memcpy(copy, line, n);
    const char *wrong = json_scan(copy, n, wants, 3, m, &odd);
    json_error_t problem;
    json_t *doc = json_loadb(line, n, JSON_ALLOW_NUL, &problem);
    bool huge = strstr(problem.text, "too big") || strstr(problem.text, "real number overflow");
    if (doc && !json_is_object(doc)) assert_non_null(wrong);
    if (json_is_object(doc) && wrong) fail_msg("refused (%s): %.*s", wrong, (int)n, line);
    if (!doc && !wrong && !odd && !huge) fail_msg("taken (%s): %.*s", problem.text, (int)n, line);
    for (int i = 0; i < 3 && json_is_object(doc) && !wrong; i++) {
        const json_t *v = at_path(doc, wants[i].path);
        bool text = m[i].kind == JSON_PLAIN || m[i].kind == JSON_ESCAPED;
        if (text != json_is_string(v)) fail_msg("\"%s\" in %.*s", wants[i].path, (int)n, line);
        assert_int_equal(m[i].kind == JSON_SCALAR, json_is_number(v));
        if (!text) continue;
        char *got = malloc(m[i].end - m[i].at + 8);
        size_t len = json_unescape(copy + m[i].at + 1, m[i].end - m[i].at - 2, got);
        if (!odd) {
            assert_int_equal(len, json_string_length(v));
            assert_memory_equal(got, json_string_value(v), len);
        }
        assert_int_equal(utf8_valid(got, len), len);
        free(got);
    }
    json_decref(doc);
    free(copy);
}

/* Unicode's table of well-formed byte sequences: first bytes, second bytes, bytes in all. */
static size_t well_formed_length(const char *text, size_t n) {
    static const uint8_t table[][5] = {
        { 0x00, 0x7F, 0x00, 0xFF, 1 }, { 0xC2, 0xDF, 0x80, 0xBF, 2 }, { 0xE0, 0xE0, 0xA0, 0xBF, 3 },
        { 0xE1, 0xEC, 0x80, 0xBF, 3 }, { 0xED, 0xED, 0x80, 0x9F, 3 }, { 0xEE, 0xEF, 0x80, 0xBF, 3 },
        { 0xF0, 0xF0, 0x90, 0xBF, 4 }, { 0xF1, 0xF3, 0x80, 0xBF, 4 }, { 0xF4, 0xF4, 0x80, 0x8F, 4 },
    };
    const uint8_t *p = (const uint8_t *)text;
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        const uint8_t *t = table[i];
        if (p[0] < t[0] || p[0] > t[1]) continue;
        if (t[4] > n || (t[4] > 1 && (p[1] < t[2] || p[1] > t[3]))) return 0;
        for (size_t k = 2; k < t[4]; k++)
            if ((p[k] & 0xC0) != 0x80) return 0;
        return t[4];
    }
    return 0;
}

/* Damage is found at its very byte, wherever it is in a block of bytes that are checked at once. */
static void bytes_are_valid_up_to_the_first_bad_character(void **state) {
    static const uint32_t first[] = {
        0x20, 0x80, 0x800, 0x4E00, 0xD000, 0xE000, 0x10000, 0x100000
    };
    static const uint32_t count[] = { 95, 0x780, 0x800, 0x5000, 0x800, 0x2000, 0x1000, 0x10000 };
    uint64_t at = 0;
    int valid = 0;
    for (int round = 0; round < 100000; round++) {
        str s = { 0 };
        for (uint64_t chars = draw(&at, 40); chars > 0; chars--) {
            char code[4];
            uint64_t range = draw(&at, 3) ? draw(&at, COUNT_OF(first)) : 0;
            uint32_t cp = first[range] + (uint32_t)draw(&at, count[range]);
            str_add_bytes(&s, code, (size_t)utf8_encode(cp, code));
        }
        if (s.len && draw(&at, 2)) s.text[draw(&at, s.len)] = (char)draw(&at, 256);
        size_t n = s.len - (s.len && draw(&at, 4) == 0), expected = 0, len;
        char *copy = malloc(n ? n : 1); /* so that reading past its end is seen */
        if (n) memcpy(copy, s.text, n);
        while (expected < n && (len = well_formed_length(copy + expected, n - expected)) > 0)
            expected += len;
        assert_int_equal(utf8_valid(copy, n), expected);
        valid += expected == n;
        free(copy);
        str_free(&s);
    }
    assert_in_range(valid, 30000, 80000);
}

static void random_value(str *out, uint64_t *at, int depth);

static void random_string(str *out, uint64_t *at) {
    static const char *const pieces[] = {
        "a",       "text",          "id", "\\n",    "\\\"", "\\\\", "\\u0041", "\\ud83d\\ude00",
        "é",       "longer words ", "{",  "}",      "[",    ",",    ":",       "\\/",
        "\\u20AC", "\\t",           "b",  "\\u00ff"
    };
    str_add(out, "\"");
    for (uint64_t n = draw(at, 7); n > 0; n--)
        str_add(out, "%s", pieces[draw(at, COUNT_OF(pieces))]);
    str_add(out, "\"");
}

static void random_object(str *out, uint64_t *at, int depth) {
    static const char *const names[] = { "text", "a", "b", "id", "", "te\\u0078t", "other" };
    str_add(out, "{");
    for (uint64_t n = draw(at, 5), i = 0; i < n; i++) {
        str_add(out, "%s\"%s\"", i ? ", " : " ", names[draw(at, COUNT_OF(names))]);
        str_add(out, "%s:", draw(at, 3) ? "" : " ");
        random_value(out, at, depth - 1);
    }
    str_add(out, "%s}", draw(at, 2) ? " " : "");
}

static void random_value(str *out, uint64_t *at, int depth) {
    static const char *const scalars[] = { "0",    "-1",    "12.5e3", "1E-2",
                                           "true", "false", "null",   "-0.0" };
    switch (draw(at, depth > 0 ? 5 : 3)) {
    case 0: str_add(out, "%s", scalars[draw(at, COUNT_OF(scalars))]); break;
    case 1:
    case 2: random_string(out, at); break;
    case 3: random_object(out, at, depth); break;
    default:
        str_add(out, "[");
        for (uint64_t n = draw(at, 4), i = 0; i < n; i++) {
            if (i) str_add(out, ",");
            random_value(out, at, depth - 1);
        }
        str_add(out, "]");
    }
}

static void scanning_agrees_with_jansson(void **state) {
    uint64_t at = 1 << 24;
    static const char mutants[] = "\"\\{}[]:,.0-eu+ tf\x01n\x7f";
    for (int i = 0; i < (SANITIZED ? 2000 : 20000); i++) {
        str line = { 0 };
        random_object(&line, &at, 4);
        compare(line.text, line.len);
        for (int k = 0; k < 4; k++) {
            size_t where = draw(&at, line.len);
            char was = line.text[where];
            line.text[where] = mutants[draw(&at, sizeof mutants - 1)];
            compare(line.text, line.len);
            if (draw(&at, 2)) line.text[where] = was;
        }
        compare(line.text, draw(&at, line.len + 1));
        str_free(&line);
    }
}

static void deep_lines_are_refused(void **state) {
    str line = { 0 };
    for (int depth = 999; depth <= 100000; depth *= 100) {
        line.len = 0;
        str_add(&line, "{\"a\":");
        for (int i = 0; i < depth; i++) str_add(&line, "[");
        for (int i = 0; i < depth; i++) str_add(&line, "]");
        str_add(&line, "}");
        json_member m[3] = { 0 };
        bool odd;
        const char *wrong = json_scan(line.text, line.len, wants, 3, m, &odd);
        if (depth < 1000)
            assert_null(wrong);
        else
            assert_string_equal(wrong, "nested too deeply");
    }
    str_free(&line);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, text_setup, folder_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_valid_up_to_the_first_bad_character),
        TEST(truncated_files),
        TEST(files_with_flipped_bits),
        TEST(what_is_readable_is_used),
        TEST(warc_records_are_read),
        TEST(bodies_are_decoded_unless_they_are),
        TEST(warc_records_that_lie),
        TEST(long_warc_records_are_skipped),
        cmocka_unit_test(scanning_agrees_with_jansson),
        cmocka_unit_test(deep_lines_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
