/* Tar archives as inputs: WebDataset samples, archives of the three formats that programs write, damage. */
#include "support/text.h"

#define ARCHIVE(name) FIXTURES "/webdataset/" name ".tar"

static void expect_samples(const char *path, text_input_options o) {
    static const size_t blocks[] = { 1, 512, 600, 2000, 0 };
    for (size_t i = 0; i < COUNT_OF(blocks); i++)
        for (int threads = 1; threads <= 3; threads += 2) {
            seen s;
            o.block_bytes = blocks[i];
            assert_ok(read_one(path, &o, threads, &s));
            assert_int_equal(s.counts.documents, 6);
            assert_int_equal(s.counts.unreadable, 1); /* the image without a text */
            assert_non_null(
                strstr(s.all.text, "[0|A caption with é.\nSecond line.|000001|http://a/1|"));
            assert_non_null(strstr(s.all.text, "[1|only json|j2|||]"));
            assert_non_null(strstr(s.all.text, "[2|under a long name|"));
            assert_non_null(strstr(s.all.text, "nnnnnnnnnn||"));
            assert_non_null(strstr(s.all.text, "[3|first line||||][4|second line|s|||]"));
            assert_non_null(strstr(s.all.text, "[5|# the last|000004||"));
            seen_free(&s);
        }
}

static void samples_are_read_from_archives_of_every_format(void **state) {
    static const char *const archives[] = { ARCHIVE("pax"), ARCHIVE("gnu"), ARCHIVE("ustar") };
    static const char *const names[] = { "a.tar", "a.tar.gz", "a.tar.zst", "a.tgz", "noname" };
    for (size_t i = 0; i < COUNT_OF(archives); i++) {
        char *bytes = NULL;
        size_t n;
        assert_ok(io_read(archives[i], 1 << 20, &bytes, &n));
        for (size_t k = 0; k < COUNT_OF(names); k++) {
            str packed = { 0 };
            if (strcmp(names[k], "a.tgz") == 0)
                add_gzip(bytes, n, &packed);
            else
                str_add_bytes(&packed, bytes, n);
            const char *path = strcmp(names[k], "a.tgz") == 0
                                   ? folder_write_bytes(*state, names[k], packed.text, packed.len)
                                   : write_input_bytes(*state, names[k], packed.text, packed.len);
            expect_samples(path, (text_input_options){ 0 });
            str_free(&packed);
        }
        free(bytes);
    }
}

static void put_octal(char *to, int digits, size_t value) {
    for (int i = digits - 1; i >= 0; i--, value >>= 3) to[i] = (char)('0' + (value & 7));
}

/* Appends an entry: 'x' is a pax header, '0' a file. */
static void add_entry(str *tar, char type, const char *name, const char *content) {
    char head[512] = { 0 };
    unsigned sum = 8 * ' ';
    size_t n = strlen(content);
    snprintf(head, 100, "%s", name);
    put_octal(head + 124, 11, n);
    head[156] = type;
    memcpy(head + 257, "ustar\00000", 8);
    for (size_t i = 0; i < sizeof head; i++) sum += (unsigned char)head[i];
    put_octal(head + 148, 6, sum);
    str_add_bytes(tar, head, sizeof head);
    str_add_bytes(tar, content, n);
    str_add_bytes(tar, (char[512]){ 0 }, -n % 512);
}

/* Names of many folders are whole, so that they keep their endings. What macOS adds before each file is no document. */
static void long_names_are_whole_and_hidden_files_passed_over(void **state) {
    str tar = { 0 }, name = { 0 }, path = { 0 };
    while (name.len < 3000) str_add(&name, "a-folder/");
    for (int i = 0; i < 2; i++) {
        path.len = 0;
        str_add(&path, "path=%s%d.txt\n", name.text, i);
        str line = { 0 };
        str_add(&line, "%zu %s", path.len + 5, path.text);
        add_entry(&tar, 'x', "pax", line.text);
        add_entry(&tar, '0', "cut", i ? "second" : "first");
        str_free(&line);
    }
    add_entry(&tar, '0', "d/._e.txt", "not a text");
    add_entry(&tar, '0', "d/e.txt", "third");
    add_entry(&tar, '0', "d/._e.json", "{\"text\": \"not a document\"}");
    add_entry(&tar, '0', "d/e.json", "{\"url\": \"u\"}");
    static const size_t blocks[] = { 1, 700, 0 };
    for (size_t i = 0; i < COUNT_OF(blocks); i++) {
        seen s;
        assert_ok(read_one(folder_write_bytes(*state, "l.tar", tar.text, tar.len),
                           &(text_input_options){ .block_bytes = blocks[i] }, 1, &s));
        assert_int_equal(s.counts.documents, 3);
        assert_int_equal(s.counts.unreadable, 0);
        assert_non_null(strstr(s.all.text, "[0|first|a-folder/"));
        assert_non_null(strstr(s.all.text, "[1|second|a-folder/"));
        assert_non_null(strstr(s.all.text, "[2|third|d/e|u|"));
        seen_free(&s);
    }
    str_free(&tar);
    str_free(&name);
    str_free(&path);
}

static err keep_sample(void *ctx, int worker, int segment, const text_doc *d, text_verdict *v) {
    return OK;
}

static void members_of_samples_are_written(void **state) {
    test_folder *f = *state;
    static const text_transform keep = { .name = "keep", .judge = keep_sample };
    const char *path = ARCHIVE("pax"), *out = in_folder(f, "out.jsonl");
    text_inputs *in = NULL;
    text_transform_report r;
    char *lines = NULL;
    assert_ok(text_inputs_open(&path, 1, &(text_input_options){ 0 }, &in));
    assert_ok(
        text_transform_run(&keep, in, &(text_transform_options){ .out = out, .quiet = true }, &r));
    text_transform_report_free(&r);
    text_inputs_close(in);
    assert_ok(io_read(out, 1 << 20, &lines, NULL));
    assert_non_null(strstr(lines, "\"width\": 640"));
    assert_non_null(strstr(lines, "{\"text\": \"only json\", \"id\": \"j2\", \"k\": 1}\n"));
    free(lines);
}

/* Cuts and flips anywhere: what is read is what the archive has, and what is missing is counted. */
static void damaged_archives_are_read_as_far_as_possible(void **state) {
    char *bytes = NULL;
    size_t n;
    assert_ok(io_read(ARCHIVE("gnu"), 1 << 20, &bytes, &n));
    rng_key key = rng_key_of(39, 4);
    for (uint64_t i = 0; i < (SANITIZED ? 60 : 400); i++) {
        char *copy = malloc(n);
        memcpy(copy, bytes, n);
        size_t at = rng_below(key, 2 * i, n), len = i % 2 ? at : n;
        if (i % 2 == 0) copy[at] ^= (char)(1 << rng_below(key, 2 * i + 1, 8));
        seen s;
        const text_input_options o = { .format = "tar", .block_bytes = 700 };
        assert_ok(read_one(folder_write_bytes(*state, "b.tar", copy, len), &o, 2, &s));
        assert_true(s.counts.documents <= 8);
        seen_free(&s);
        free(copy);
    }
    memset(bytes + 512, 'x', 512); /* the header of the image that begins the first sample */
    seen s;
    assert_ok(
        read_one(folder_write_bytes(*state, "c.tar", bytes, n), &(text_input_options){ 0 }, 2, &s));
    assert_int_equal(s.counts.documents, 6);
    assert_true(s.counts.unreadable >= 2);
    seen_free(&s);
    assert_error(
        read_one(in_folder(*state, "c.tar"), &(text_input_options){ .strict = true }, 1, &s),
        "not a tar header");
    seen_free(&s);
    free(bytes);
}

/* ---- the cache of the hub -------------------------------------------------------------------------- */
static void datasets_of_the_hub_are_folders(void **state) {
    test_folder *f = *state;
    seen s;
    assert_ok(io_make_dirs(in_folder(f, "hub/datasets--org--name/snapshots/old/data")));
    assert_ok(io_make_dirs(in_folder(f, "hub/datasets--org--name/snapshots/new/data")));
    assert_ok(io_make_dirs(in_folder(f, "hub/datasets--org--name/refs")));
    assert_ok(io_make_dirs(in_folder(f, "hub/datasets--org--name/blobs")));
    folder_write(f, "hub/datasets--org--name/blobs/1234", "{\"text\":\"new\"}\n");
    folder_write(f, "hub/datasets--org--name/snapshots/old/data/a.jsonl", "{\"text\":\"old\"}\n");
    folder_write(f, "hub/datasets--org--name/refs/main", "new");
    assert_int_equal(symlink("../../../blobs/1234",
                             in_folder(f, "hub/datasets--org--name/snapshots/new/data/a.jsonl")),
                     0);
    setenv("HF_HUB_CACHE", in_folder(f, "hub"), 1);
    static const struct {
        const char *url, *seen;
    } cases[] = {
        { "hf://datasets/org/name", "[0|new||||]" },
        { "hf://datasets/org/name/data", "[0|new||||]" },
        { "hf://datasets/org/name/data/a.jsonl", "[0|new||||]" },
        { "hf://datasets/org/name@main", "[0|new||||]" },
        { "hf://datasets/org/name@old/data/a.jsonl", "[0|old||||]" },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        assert_sees(cases[i].url, &(text_input_options){ 0 }, cases[i].seen);
    assert_sees(in_folder(f, "hub/datasets--org--name"), &(text_input_options){ 0 }, "[0|new||||]");
    static const char *const wrong[] = { "hf://datasets/org/other", "hf://datasets/org/name@gone",
                                         "hf://datasets/org/name/none.jsonl", "hf://datasets/org",
                                         "hf://org/name" };
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        assert_error(read_one(wrong[i], &(text_input_options){ 0 }, 1, &s), wrong[i]);
        seen_free(&s);
    }
    unsetenv("HF_HUB_CACHE");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, text_setup, folder_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(samples_are_read_from_archives_of_every_format),
        TEST(long_names_are_whole_and_hidden_files_passed_over),
        TEST(members_of_samples_are_written),
        TEST(damaged_archives_are_read_as_far_as_possible),
        TEST(datasets_of_the_hub_are_folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
