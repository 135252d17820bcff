/* text: every format, packed and not, in pieces of any size, on any number of threads. */
#include "support/text.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

static const text_input_options plain = { 0 };

/* ---- plain text ------------------------------------------------------------------------------- */
static void text_is_split_at_separators(void **state) {
    test_folder *p = *state;
    const char *path =
        write_input(p, "a.txt",
                    "one\ntwo\n<|endoftext|>\nthree\n <|endoftext|>\n<|endoftext|>x\n"
                    "<|endoftext|>\n<|endoftext|>\nlast\n");
    str expected = { 0 };
    str_add(&expected,
            "[0|one\ntwo|%s||%s|][1|three\n <|endoftext|>\n<|endoftext|>x|%s:22||%s|]"
            "[2|last\n|%s:86||%s|]",
            path, path, path, path, path, path);
    seen s;
    assert_ok(read_one(path, &plain, 1, &s));
    assert_string_equal(s.all.text, expected.text);
    assert_int_equal(s.counts.documents, 3);
    assert_int_equal(s.counts.empty, 1);
    assert_int_equal(s.counts.bytes, 7 + 35 + 5);
    seen_free(&s);
    str_free(&expected);
}

static void assert_text(test_folder *p, const char *content, size_t n, const char *texts) {
    const char *path = write_input_bytes(p, "t.txt", content, n);
    seen s;
    str got = { 0 };
    assert_ok(read_one(path, &plain, 1, &s));
    for (char *at = s.all.text; (at = strchr(at, '[')) && (at = strchr(at, '|'));) {
        size_t len = strcspn(at + 1, "|");
        str_add_bytes(&got, at, len + 1);
        at += len + 1;
    }
    assert_string_equal(got.text ? got.text : "", texts);
    str_free(&got);
    seen_free(&s);
}

static void text_at_its_edges(void **state) {
    test_folder *p = *state;
#define CASE(content, texts) assert_text(p, content, sizeof content - 1, texts)
    CASE("", "");
    CASE("\n", "");
    CASE("x", "|x");
    CASE("\xEF\xBB\xBFx\r\ny\rz\r\n", "|x\ny\rz\n");
    CASE("\xEF\xBB\xBF", "");
    CASE("a\r\n<|endoftext|>\r\nb", "|a|b");
    CASE("a\n<|endoftext|>", "|a");
    CASE("a\r\n<|endoftext|>", "|a");
    CASE("<|endoftext|>", "");
    CASE("<|endoftext|>\na", "|a");
    CASE("a<|endoftext|>", "|a<"); /* not a line of its own; cut here at its own bar */
#undef CASE
}

/* ---- JSON lines --------------------------------------------------------------------------------- */
static void json_members_are_found(void **state) {
    test_folder *p = *state;
    const char *path = write_input(
        p, "a.jsonl",
        "\xEF\xBB\xBF{\"id\": 7, \"text\": \"a\\nb\", \"url\": \"http:\\/\\/x\", \"source\": \"s\", "
        "\"license\": \"CC0\"}\r\n"
        "\n   \n"
        "{\"x\":{\"text\":\"no\"},\"text\":\"old\",\"y\":[1,[{}],\"\\\"\"],\"te\\u0078t\":\"new\"}\n"
        "{\"text\": \"\\ud83d\\ude00\\u00e9\\t\", \"id\": null, \"licence\": \"MIT\"}");
    assert_sees(path, &plain, "[0|a\nb|7|http://x|s|CC0][1|new||||][2|😀é\t||||MIT]");
}

static void json_paths_reach_inside(void **state) {
    test_folder *p = *state;
    const char *path =
        write_input(p, "a.jsonl",
                    "{\"doc\":{\"body\":\"a\",\"text\":\"b\"},\"meta.url\":\"u\",\"text\":\"c\"}\n"
                    "{\"doc\":{\"body\":{\"\":\"x\"}},\"doc\":{\"body\":\"z\"}}\n");
    text_input_options o = { .text_field = "doc.body",
                             .url_field = "meta.url",
                             .id_field = "text" };
    assert_sees(path, &o, "[0|a|c|u||][1|z||||]");
}

static void broken_lines_are_counted(void **state) {
    test_folder *p = *state;
    const char *bad[] = {
        "{\"text\": \"a\"",          "{\"text\": \"a}",     "{\"text\": 3}",
        "{\"txt\": \"a\"}",          "[\"text\", \"a\"]",   "{\"text\": \"a\"} x",
        "{\"text\" \"a\"}",          "{\"text\": \"\\x\"}", "{\"text\": \"a\",}",
        "{\"text\": \"\\u12\"}",     "{\"text\": tru}",     "{\"text\":\"a\",\"n\":01}",
        "{\"text\":\"a\"\"b\"}",     "{\"text\":\"a\tb\"}", "text",
        "{\"text\":\"a\",\"n\":.5}",
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        str lines = { 0 };
        str_add(&lines, "{\"text\":\"before\"}\n%s\n{\"text\":\"after\"}\n", bad[i]);
        const char *path = write_input(p, "b.jsonl", lines.text);
        seen s;
        assert_ok(read_one(path, &plain, 1, &s));
        if (s.counts.unreadable != 1) fail_msg("taken: %s", bad[i]);
        assert_string_equal(s.all.text, "[0|before||||][1|after||||]");
        seen_free(&s);
        assert_error(read_one(path, &(text_input_options){ .strict = true }, 1, &s), "byte 18");
        seen_free(&s);
        str_free(&lines);
    }
}

static void invalid_bytes_are_repaired_or_refused(void **state) {
    test_folder *p = *state;
    const char *path =
        write_input(p, "a.jsonl",
                    "{\"text\":\"a\xFF"
                    "b\"}\n{\"text\":\"fine\"}\n"
                    "{\"text\":\"x\\ud800y\\u0000\"}\n{\"text\":\"c\",\"other\":\"\\udc00\"}\n");
    seen s;
    assert_ok(read_one(path, &plain, 1, &s));
    assert_string_equal(s.all.text, "[0|a\uFFFDb||||][1|fine||||][2|x\uFFFDy\uFFFD||||][3|c||||]");
    assert_int_equal(s.counts.repaired, 3);
    assert_int_equal(s.counts.invalid, 0);
    seen_free(&s);
    assert_ok(read_one(path, &(text_input_options){ .invalid = TEXT_REFUSE }, 1, &s));
    assert_string_equal(s.all.text, "[0|fine||||]");
    assert_int_equal(s.counts.invalid, 3);
    seen_free(&s);
    path = write_input(p, "a.txt", "x\xC3\n");
    text_input_options o = { .invalid = TEXT_REFUSE };
    assert_sees(path, &o, "");
}

static void sources_and_licenses_are_chosen(void **state) {
    test_folder *p = *state;
    const char *path = write_input(p, "a.jsonl",
                                   "{\"text\":\"1\",\"source\":\"a\",\"license\":\"x\"}\n"
                                   "{\"text\":\"2\",\"source\":\"b\",\"license\":\"y\"}\n"
                                   "{\"text\":\"3\",\"source\":\"c\"}\n{\"text\":\"4\"}\n");
    text_input_options o = { .sources = "a, c" };
    assert_sees(path, &o, "[0|1|||a|x][1|3|||c|]");
    o = (text_input_options){ .not_sources = "a,c" };
    assert_sees(path, &o, "[0|2|||b|y][1|4||||]");
    o = (text_input_options){ .licenses = "y" };
    assert_sees(path, &o, "[0|2|||b|y]");
    o = (text_input_options){ .not_licenses = "y", .not_sources = "c" };
    seen s;
    assert_ok(read_one(path, &o, 1, &s));
    assert_string_equal(s.all.text, "[0|1|||a|x][1|4||||]");
    assert_int_equal(s.counts.excluded, 2);
    seen_free(&s);
}

static void member_names_have_a_limit(void **state) {
    test_folder *p = *state;
    char name[300];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = 0;
    seen s;
    const char *path = write_input(p, "a.jsonl", "{}");
    assert_error(read_one(path, &(text_input_options){ .text_field = name }, 1, &s), "at most 200");
    seen_free(&s);
}

/* ---- writing ------------------------------------------------------------------------------------- */
static err write_back(void *ctx, int worker, const text_block *b, void *result) {
    for (int i = 0; i < b->n; i++) {
        text_doc_write(&b->docs[i], b->docs[i].text, ctx);
        text_doc_write(&b->docs[i], (text_span){ "q\"\n", 3 }, ctx);
    }
    return OK;
}

static err merge_nothing(void *ctx, const text_block *b, void *result) { return OK; }

static void assert_written(const char *path, const char *expected) {
    text_inputs *inputs = NULL;
    str out = { 0 };
    const text_pipeline flow = { &out, 1, write_back, merge_nothing };
    text_counts counts = { 0 };
    assert_ok(text_inputs_open(&path, 1, &plain, &inputs));
    assert_ok(text_pipeline_run(inputs, 0, &flow, 1, &counts));
    assert_string_equal(out.text, expected);
    str_free(&out);
    text_inputs_close(inputs);
}

static void lines_are_written_as_they_were(void **state) {
    test_folder *p = *state;
    const char *path = write_input(p, "a.jsonl",
                                   "  { \"id\":1,\"text\" : \"a\\u0062c\" , \"x\":[1.50] } \r\n"
                                   "{\"text\":\"\\ud800\"}\n");
    assert_written(path, "{ \"id\":1,\"text\" : \"a\\u0062c\" , \"x\":[1.50] }\n"
                         "{ \"id\":1,\"text\" : \"q\\\"\\n\" , \"x\":[1.50] }\n"
                         "{\"text\":\"\\ufffd\"}\n{\"text\":\"q\\\"\\n\"}\n");
    path = write_input(p, "a.txt", "tab\t\"\\\x01\n");
    str expected = { 0 };
    str_add(&expected,
            "{\"id\": \"%s\", \"source\": \"%s\", \"text\": \"tab\\t\\\"\\\\\\u0001\\n\"}\n"
            "{\"id\": \"%s\", \"source\": \"%s\", \"text\": \"q\\\"\\n\"}\n",
            path, path, path, path);
    assert_written(path, expected.text);
    str_free(&expected);
}

/* ---- inputs --------------------------------------------------------------------------------------- */
static void inputs_are_found(void **state) {
    test_folder *p = *state;
    const char *line = "{\"text\":\"%s\"}\n";
    const char *names[] = { "d/b.jsonl",       "d/a/z.json.gz", "d/c.ndjson.zst",
                            "d/.hidden.jsonl", "d/readme.pdf",  "d/_temporary/x.jsonl" };
    assert_ok(io_make_dirs(in_folder(p, "d/a")));
    assert_ok(io_make_dirs(in_folder(p, "d/_temporary")));
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char text[100];
        snprintf(text, sizeof text, line, names[i]);
        write_input(p, names[i], text);
    }
    assert_int_equal(symlink(in_folder(p, "d"), in_folder(p, "d/a/loop")), 0);
    const char *all = "[0|d/a/z.json.gz||||][0|d/b.jsonl||||][0|d/c.ndjson.zst||||]";
    assert_sees(in_folder(p, "d"), &plain, all);
    const char *glob = in_folder(p, "d/*.*son*");
    assert_sees(glob, &plain, "[0|d/b.jsonl||||][0|d/c.ndjson.zst||||]");
    seen s;
    assert_error(read_one(in_folder(p, "d/*.nothing"), &plain, 1, &s), "no file matches");
    seen_free(&s);
    assert_error(read_one(in_folder(p, "missing"), &plain, 1, &s), "No such file");
    seen_free(&s);
    assert_error(read_one(in_folder(p, "d/_temporary/nothing"), &plain, 1, &s), "No such file");
    seen_free(&s);
    assert_ok(io_make_dirs(in_folder(p, "empty")));
    assert_error(read_one(in_folder(p, "empty"), &plain, 1, &s), "no file with a known extension");
    seen_free(&s);
    assert_error(read_all(NULL, 0, &plain, 1, &s), "no input");
    seen_free(&s);
    assert_error(read_one(in_folder(p, "d"), &(text_input_options){ .format = "xml" }, 1, &s),
                 "unknown format");
    seen_free(&s);
}

static void formats_show_in_the_content(void **state) {
    test_folder *p = *state;
    str packed = { 0 };
    const char *line = "{\"text\":\"a\"}\n";
    assert_sees(write_input(p, "noname", line), &plain, "[0|a||||]");
    add_gzip(line, strlen(line), &packed);
    const char *path = write_input_bytes(p, "gzipped", packed.text, packed.len);
    assert_sees(path, &plain, "[0|a||||]");
    path = write_input_bytes(p, "misnamed.jsonl", packed.text, packed.len);
    assert_sees(path, &plain, "[0|a||||]");
    str_free(&packed);
    seen s;
    text_input_options o = { .format = "text" };
    path = write_input(p, "b.jsonl", "{}");
    assert_ok(read_one(path, &o, 1, &s));
    assert_non_null(strstr(s.all.text, "[0|{}|"));
    seen_free(&s);
}

/* Standard input, a pipe: what another program writes. */
static void assert_pipe(const char *bytes, size_t n, const char *expected) {
    int ends[2], kept = dup(STDIN_FILENO);
    assert_int_equal(pipe(ends), 0);
    pid_t writer = fork();
    if (writer == 0) {
        close(ends[0]);
        for (size_t i = 0; i < n; i += 7) /* in small pieces, as pipes do */
            if (write(ends[1], bytes + i, MIN(n - i, 7)) < 0) _exit(1);
        _exit(0);
    }
    close(ends[1]);
    dup2(ends[0], STDIN_FILENO);
    close(ends[0]);
    assert_sees("-", &plain, expected);
    dup2(kept, STDIN_FILENO);
    close(kept);
    waitpid(writer, NULL, 0);
}

static void standard_input_is_sniffed(void **state) {
    const char *line = "{\"text\":\"one\"}\n{\"text\":\"two\"}\n";
    str packed = { 0 };
    assert_pipe(line, strlen(line), "[0|one||||][1|two||||]");
    add_zstd(line, strlen(line), &packed);
    assert_pipe(packed.text, packed.len, "[0|one||||][1|two||||]");
    assert_pipe("plain\n", 6, "[0|plain\n|-||stdin|]");
    assert_pipe("", 0, "");
    str_free(&packed);
}

static void pipes_are_read_once(void **state) {
    test_folder *p = *state;
    const char *path = in_folder(p, "fifo");
    assert_int_equal(mkfifo(path, 0666), 0);
    pid_t writer = fork();
    if (writer == 0) {
        write_bytes(path, "{\"text\":\"a\"}\n", 13);
        _exit(0);
    }
    text_inputs *inputs = NULL;
    seen s = { 0 };
    const text_pipeline flow = { &s, sizeof(str), note_work, note_merge, note_drop };
    assert_ok(text_inputs_open(&path, 1, &plain, &inputs));
    assert_ok(text_pipeline_run(inputs, 0, &flow, 1, &s.counts));
    assert_string_equal(s.all.text, "[0|a||||]");
    assert_error(text_pipeline_run(inputs, 0, &flow, 1, &s.counts), "only once");
    text_inputs_close(inputs);
    seen_free(&s);
    waitpid(writer, NULL, 0);
}

/* ---- pieces ----------------------------------------------------------------------------------------- */
/* Lines of all lengths, some of them broken. */
static void many_lines(str *out, int n) {
    rng_key key = rng_key_of(5, 1);
    for (int i = 0; i < n; i++) {
        int words = (int)rng_below(key, (uint64_t)i * 2, i % 50 == 0 ? 2000 : 30);
        str_add(out, "{\"id\":\"%d\",\"text\":\"", i);
        for (int w = 0; w < words; w++)
            str_add(out, "w%u%s", rng_u32(key, (uint64_t)i << 20 | (uint64_t)w) % 1000,
                    w % 9 == 8 ? "\\n" : " ");
        str_add(out, i % 23 == 5 ? "broken\n" : "\"}\n");
    }
}

static void many_texts(str *out, int n) {
    rng_key key = rng_key_of(6, 1);
    for (int i = 0; i < n; i++) {
        int words = (int)rng_below(key, (uint64_t)i * 2, i % 50 == 0 ? 2000 : 30);
        for (int w = 0; w < words; w++)
            str_add(out, "w%u%s", rng_u32(key, (uint64_t)i << 20 | (uint64_t)w) % 1000,
                    w % 9 == 8 ? "\r\n" : " ");
        str_add(out, "%d\n<|endoftext|>%s\n", i, i % 3 ? "" : "\r");
    }
}

/* The documents seen must not depend on threads, nor on how large blocks are. */
static void same_for_any_threads_and_blocks(void **state) {
    test_folder *p = *state;
    str lines = { 0 }, texts = { 0 };
    many_lines(&lines, 2000);
    many_texts(&texts, 2000);
    const char *paths[] = {
        write_input_bytes(p, "a.jsonl", lines.text, lines.len),
        write_input_bytes(p, "b.jsonl.gz", lines.text, lines.len),
        write_input_bytes(p, "c.jsonl.zst", lines.text, lines.len),
        write_input_bytes(p, "d.txt", texts.text, texts.len),
        write_input_bytes(p, "e.txt.zst", texts.text, texts.len),
    };
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        seen first;
        assert_ok(read_one(paths[i], &plain, 1, &first));
        assert_true(first.counts.documents > 1700);
        for (size_t t = 0; t < 12; t++) {
            const size_t blocks[] = { 0, 1, 100, 5000 };
            text_input_options o = { .block_bytes = blocks[t % 4] };
            seen again;
            assert_ok(read_one(paths[i], &o, (int[]){ 2, 3, 8 }[t / 4], &again));
            assert_string_equal(again.all.text, first.all.text);
            assert_memory_equal(&again.counts, &first.counts, sizeof first.counts);
            seen_free(&again);
        }
        seen_free(&first);
    }
    str_free(&lines);
    str_free(&texts);
}

/* Takes the numbers out: they start anew with each segment. */
static void without_numbers(str *s) {
    char *to = s->text;
    for (char *at = s->text; *at;) {
        *to++ = *at++;
        if (to[-1] == '[') at += strspn(at, "0123456789");
    }
    *to = 0;
}

static void segments_cover_a_file_once(void **state) {
    test_folder *p = *state;
    str lines = { 0 }, texts = { 0 };
    many_lines(&lines, 60);
    many_texts(&texts, 60);
    const char *paths[] = { write_input_bytes(p, "a.jsonl", lines.text, lines.len),
                            write_input_bytes(p, "d.txt", texts.text, texts.len) };
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        seen whole;
        assert_ok(read_one(paths[i], &plain, 1, &whole));
        without_numbers(&whole.all);
        for (size_t size = 1; size < 40000; size = size * 3 / 2 + 1) {
            if (size < 12 && i == 1) continue; /* a segment each few bytes takes its time */
            text_input_options o = { .segment_bytes = size, .block_bytes = 700 };
            seen cut;
            assert_ok(read_one(paths[i], &o, 1, &cut));
            without_numbers(&cut.all);
            assert_string_equal(cut.all.text, whole.all.text);
            assert_memory_equal(&cut.counts, &whole.counts, sizeof cut.counts);
            seen_free(&cut);
        }
        seen_free(&whole);
    }
    str_free(&lines);
    str_free(&texts);
}

static void segments_are_counted(void **state) {
    test_folder *p = *state;
    const char *paths[] = { write_input(p, "a.jsonl", "{\"text\":\"0123456789\"}\n"),
                            write_input(p, "b.jsonl.gz", "{\"text\":\"0123456789\"}\n") };
    text_inputs *a = NULL, *b = NULL;
    assert_ok(text_inputs_open(paths, 2, &(text_input_options){ .segment_bytes = 10 }, &a));
    assert_int_equal(text_segments(a), 4);
    assert_string_equal(text_segment_path(a, 2), paths[0]);
    assert_string_equal(text_segment_path(a, 3), paths[1]);
    assert_true(text_inputs_bytes(a) > 22);
    assert_ok(text_inputs_open(paths, 2, &plain, &b));
    assert_int_equal(text_segments(b), 2);
    assert_true(text_inputs_hash(a) != text_inputs_hash(b));
    text_inputs_close(a);
    text_inputs_close(b);
}

/* ---- long records --------------------------------------------------------------------------------- */
static void long_records_are_skipped(void **state) {
    test_folder *p = *state;
    str lines = { 0 };
    for (int i = 0; i < 40; i++) {
        str_add(&lines, "{\"text\":\"%d", i);
        for (int k = 0; k < (i % 10 == 3 ? 3000 : 50); k++) str_add(&lines, "x");
        str_add(&lines, "\"}\n");
    }
    const char *path = write_input_bytes(p, "a.jsonl", lines.text, lines.len);
    for (size_t block = 16; block < 10000; block *= 5) {
        text_input_options o = { .document_bytes = 200, .block_bytes = block };
        seen s;
        assert_ok(read_one(path, &o, 2, &s));
        assert_int_equal(s.counts.documents, 36);
        assert_int_equal(s.counts.unreadable, 4);
        assert_null(strstr(s.all.text, "|13x"));
        assert_non_null(strstr(s.all.text, "|14x"));
        seen_free(&s);
        o.strict = true;
        assert_error(read_one(path, &o, 2, &s), "longer than 200 bytes");
        seen_free(&s);
    }
    str_free(&lines);
}

/* Plain text is split at the end of a line, wherever blocks end; nothing is lost. */
static void long_texts_are_split(void **state) {
    test_folder *p = *state;
    str text = { 0 };
    for (int i = 0; i < 40; i++) {
        for (int k = 0; k < (i % 10 == 3 ? 300 : 5); k++) str_add(&text, "%d,%d line\n", i, k);
        str_add(&text, "end\n<|endoftext|>\n");
    }
    const char *path = write_input_bytes(p, "d.txt.gz", text.text, text.len);
    seen first = { 0 };
    for (size_t block = 16; block < 100000; block *= 5) {
        text_input_options o = { .document_bytes = 200, .block_bytes = block, .strict = true };
        seen s;
        assert_ok(read_one(path, &o, 2, &s));
        assert_int_equal(s.counts.bytes, text.len - 40 * strlen("\n<|endoftext|>\n"));
        assert_true(s.counts.documents > 40 + 4 * 300 * 10 / 200);
        if (block == 16) {
            first = s;
            continue;
        }
        assert_string_equal(s.all.text, first.all.text);
        seen_free(&s);
    }
    seen_free(&first);
    str_free(&text);
}

/* Long stretches are searched in pieces of 64 KiB; a separator may straddle two pieces. */
static void separators_may_lie_across_pieces(void **state) {
    test_folder *p = *state;
    enum { PIECE = 64 << 10, LIMIT = 200, SEGMENT = 70000 };
    str text = { 0 };
    for (int k = 0; k < 100; k++) {
        bool skip = k < 50; /* a record cut into pieces, or the search for a segment's end */
        int length = PIECE + k % 50 + (skip ? LIMIT - 10 : SEGMENT - 45);
        text.len = 0;
        for (int i = 0; i < length; i++) str_add_bytes(&text, "x", 1);
        str_add(&text, "\n<|endoftext|>\r\nlast");
        const char *path = write_input_bytes(p, "a.txt", text.text, text.len);
        text_input_options o = { .block_bytes = 100 };
        if (skip)
            o.document_bytes = LIMIT;
        else
            o.segment_bytes = SEGMENT;
        seen s;
        assert_ok(read_one(path, &o, 1, &s));
        assert_int_equal(s.counts.unreadable, 0);
        if (!skip) assert_non_null(strstr(s.all.text, "[0|last|")); /* first of its segment */
        assert_non_null(strstr(s.all.text, "|last|"));
        /* a cut before the separator keeps the line break that else belongs to it */
        assert_in_range(s.counts.bytes, length + 4, length + (skip ? 5 : 4));
        seen_free(&s);
    }
    str_free(&text);
}

/* A line of 300 MB, of a sparse file, costs no memory to speak of. */
static void memory_is_bounded(void **state) {
    test_folder *p = *state;
    enum { LINE = 300 << 20, MOST = 60 << 20 };
    const char *path = in_folder(p, "huge.jsonl");
    int fd = open(path, O_WRONLY | O_CREAT, 0666);
    const char *after = "\n{\"text\":\"after\"}\n";
    str before = { 0 }; /* long enough for the file to begin as text, not as zeros */
    str_add(&before, "{\"pad\":\"%05000d\",\"text\":\"before\"}\n{\"text\":\"", 0);
    assert_int_equal(write(fd, before.text, before.len), before.len);
    str_free(&before);
    assert_int_equal(ftruncate(fd, LINE), 0);
    assert_int_equal(lseek(fd, LINE, SEEK_SET), LINE);
    assert_int_equal(write(fd, after, strlen(after)), strlen(after));
    close(fd);
    pid_t reader = fork(); /* the peak of a process never falls */
    if (reader == 0) {
        text_input_options o = { .document_bytes = 1 << 20, .segment_bytes = (size_t)1 << 30 };
        seen s;
        size_t peak = mem_peak();
        err e = read_one(path, &o, 2, &s);
        bool fine = !e && strcmp(s.all.text, "[0|before||||][1|after||||]") == 0 &&
                    s.counts.unreadable == 1;
        _exit(!fine ? 1 : mem_peak() - peak > MOST ? 2 : 0);
    }
    int status;
    waitpid(reader, &status, 0);
    assert_int_equal(status, 0);
}

/* ---- errors of work --------------------------------------------------------------------------------- */
typedef struct failing {
    int fail_at, fail_merge_at; /* block numbers; -1: never */
    _Atomic int live;           /* results made and neither merged nor dropped */
    int merged;
} failing;
typedef struct failing_result {
    failing *of;
    int first;
} failing_result;

static err failing_work(void *ctx, int worker, const text_block *b, void *result) {
    failing *f = ctx;
    *(failing_result *)result = (failing_result){ f, atoi(b->docs[0].id.at) };
    f->live++;
    int at = ((failing_result *)result)->first;
    return f->fail_at >= 0 && at >= f->fail_at ? ERR("work failed at %d", at) : OK;
}

static err failing_merge(void *ctx, const text_block *b, void *result) {
    failing *f = ctx;
    f->live--;
    f->merged++;
    int at = ((failing_result *)result)->first;
    return f->fail_merge_at >= 0 && at >= f->fail_merge_at ? ERR("merge failed at %d", at) : OK;
}

static void failing_drop(void *result) {
    failing_result *r = result;
    if (r->of) r->of->live--;
}

static void the_first_error_is_reported(void **state) {
    test_folder *p = *state;
    str lines = { 0 };
    for (int i = 0; i < 1000; i++) str_add(&lines, "{\"id\":\"%d\",\"text\":\"x\"}\n", i);
    const char *path = write_input_bytes(p, "a.jsonl", lines.text, lines.len);
    text_inputs *inputs = NULL;
    assert_ok(text_inputs_open(&path, 1, &(text_input_options){ .block_bytes = 1 }, &inputs));
    for (int threads = 1; threads <= 8; threads++) {
        text_counts counts = { 0 };
        failing f = { .fail_at = 500, .fail_merge_at = 600 };
        text_pipeline flow = { &f, sizeof(failing_result), failing_work, failing_merge,
                               failing_drop };
        assert_error(text_pipeline_run(inputs, 0, &flow, threads, &counts), "work failed at 500");
        assert_int_equal(f.live, 0);
        assert_int_equal(f.merged, 500);
        assert_int_equal(counts.documents, 500);
        f = (failing){ .fail_at = 600, .fail_merge_at = 500 };
        assert_error(text_pipeline_run(inputs, 0, &flow, threads, &counts), "merge failed at 500");
        assert_int_equal(f.live, 0);
        assert_int_equal(f.merged, 501);
    }
    text_inputs_close(inputs);
    str_free(&lines);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, text_setup, folder_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(text_is_split_at_separators),
        TEST(text_at_its_edges),
        TEST(json_members_are_found),
        TEST(json_paths_reach_inside),
        TEST(broken_lines_are_counted),
        TEST(invalid_bytes_are_repaired_or_refused),
        TEST(sources_and_licenses_are_chosen),
        TEST(member_names_have_a_limit),
        TEST(lines_are_written_as_they_were),
        TEST(inputs_are_found),
        TEST(formats_show_in_the_content),
        TEST(standard_input_is_sniffed),
        TEST(pipes_are_read_once),
        TEST(same_for_any_threads_and_blocks),
        TEST(segments_cover_a_file_once),
        TEST(segments_are_counted),
        TEST(long_records_are_skipped),
        TEST(long_texts_are_split),
        TEST(separators_may_lie_across_pieces),
        TEST(memory_is_bounded),
        TEST(the_first_error_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
