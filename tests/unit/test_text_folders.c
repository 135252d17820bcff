/* A transform checks these before it reads and before it deletes: the folder that an earlier transform wrote,
 * inputs that have changed, output in the way of input, and input that yields nothing. */
#include "support/text.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <zstd.h>

enum { SEGMENT = 4000 };

static err keep_all(void *ctx, int worker, int segment, const text_doc *d, text_verdict *v) {
    return OK;
}

static const text_transform keep = { .name = "keep", .judge = keep_all };
static const text_input_options segments = { .segment_bytes = SEGMENT };

static err run_transform(const char *path, const text_transform_options *o,
                         text_transform_report *r) {
    text_inputs *in = NULL;
    TRY(text_inputs_open(&path, 1, &segments, &in));
    err e = text_transform_run(&keep, in, o, r);
    text_inputs_close(in);
    return e;
}

static err try_transform(const char *path, const text_transform_options *o) {
    text_transform_report r;
    TRY(run_transform(path, o, &r));
    text_transform_report_free(&r);
    return OK;
}

static err try_open(const char *path) {
    text_inputs *in = NULL;
    TRY(text_inputs_open(&path, 1, &segments, &in));
    text_inputs_close(in);
    return OK;
}

/* Three segments, so three parts. */
static const char *write_three(test_folder *f, const char *name) {
    str all = { 0 };
    for (int i = 0; i < 3 * SEGMENT / 60; i++)
        str_add(&all, "{\"text\":\"the document with number %014d\"}\n", i);
    const char *path = folder_write(f, name, all.text);
    str_free(&all);
    return path;
}

/* ---- what the transform before has recorded --------------------------------------------------------- */

static void every_part_of_a_folder_must_be_there(void **state) {
    test_folder *f = *state;
    const char *path = write_three(f, "a.jsonl"), *out = in_folder(f, "out");
    const char *second = in_folder(f, "out/part-000001.jsonl");
    text_transform_options o = { .out = out, .compress = "none", .quiet = true };
    assert_ok(try_transform(path, &o));
    assert_ok(try_open(out));
    char *whole = folder_read(f, "out/part-000001.jsonl");
    assert_int_equal(unlink(second), 0);
    assert_error(try_open(out), "part-000001.jsonl is missing", "state.json");
    folder_write_bytes(f, "out/part-000001.jsonl", whole, strlen(whole) / 2);
    assert_error(try_open(out), "part-000001.jsonl has", "bytes");
    text_transform_report r;
    assert_ok(run_transform(path, &o, &r)); /* the transform writes what is damaged again */
    assert_int_equal(r.resumed_parts, 2);
    text_transform_report_free(&r);
    assert_ok(try_open(out));
    char *again = folder_read(f, "out/part-000001.jsonl");
    assert_string_equal(again, whole);
    folder_write(f, "out/part-000003.jsonl", whole);
    assert_error(try_open(out), "has 4 parts", "lists 3");
    free(again);
    free(whole);
}

/* ---- before anything is deleted --------------------------------------------------------------- */

static void fresh_deletes_nothing_that_is_then_refused(void **state) {
    test_folder *f = *state;
    const char *path = write_three(f, "a.jsonl"), *out = in_folder(f, "out");
    text_transform_options o = { .out = out, .compress = "none", .fresh = true, .quiet = true };
    assert_ok(try_transform(path, &o));
    folder_write(f, "out/notes.txt", "mine");
    assert_error(try_transform(path, &o), "other texts");
    assert_true(io_exists(in_folder(f, "out/part-000000.jsonl")));
    assert_true(io_exists(in_folder(f, "out/state.json")));
    /* Transforms that read twice check before: that deletes nothing either. */
    unlink(in_folder(f, "out/notes.txt"));
    text_inputs *in = NULL;
    assert_ok(text_inputs_open(&path, 1, &segments, &in));
    assert_ok(text_transform_check(&keep, in, &o));
    text_inputs_close(in);
    assert_true(io_exists(in_folder(f, "out/part-000000.jsonl")));
    assert_ok(try_transform(path, &o));
}

static void output_inside_an_input_folder_is_refused(void **state) {
    test_folder *f = *state;
    assert_ok(io_make_dirs(in_folder(f, "in")));
    write_three(f, "in/a.jsonl");
    const char *in = in_folder(f, "in");
    static const char *const inside[] = { "in/out", "in/out/", "in/b.jsonl", "in/new/deep/out",
                                          "in" };
    for (size_t i = 0; i < COUNT_OF(inside); i++) {
        text_transform_options o = { .out = in_folder(f, inside[i]), .quiet = true };
        assert_error(try_transform(in, &o), "cannot write to");
        text_transform_options d = { .out = in_folder(f, "beside.jsonl"),
                                     .dropped = in_folder(f, "in/dropped.jsonl"),
                                     .quiet = true };
        assert_error(try_transform(in, &d), "inside the input folder");
    }
    assert_false(io_exists(in_folder(f, "in/out")));
    assert_false(io_exists(in_folder(f, "in/new")));
    text_transform_options beside = { .out = in_folder(f, "in-clean"), .quiet = true };
    assert_ok(try_transform(in, &beside)); /* a name that only begins alike */
}

/* ---- inputs that change ------------------------------------------------------------------------ */

/* Overwrites a byte in the middle of the file's text, a second from now: file systems count time in ticks
 * of some milliseconds, and this test is faster. */
static void edit_byte(const char *path, off_t at) {
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "#", 1, at), 1);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    now.tv_sec++;
    assert_int_equal(futimens(fd, (struct timespec[]){ now, now }), 0);
    close(fd);
}

static void an_edit_of_the_same_size_is_noticed(void **state) {
    test_folder *f = *state;
    const char *path = write_three(f, "a.jsonl");
    text_transform_options o = { .out = in_folder(f, "out"), .quiet = true };
    assert_ok(try_transform(path, &o));
    assert_ok(try_transform(path, &o));
    edit_byte(path, 5025);
    assert_error(try_transform(path, &o), "other inputs");
    /* Only samples of a long file are hashed: its time shows the change. */
    str all = { 0 };
    for (int i = 0; i < 20000; i++) str_add(&all, "{\"text\":\"number %014d\"}\n", i);
    path = folder_write(f, "long.jsonl", all.text);
    str_free(&all);
    o.out = in_folder(f, "long");
    text_inputs *in = NULL;
    assert_ok(text_inputs_open(&path, 1, &(text_input_options){ 0 }, &in));
    text_transform_report r;
    assert_ok(text_transform_run(&keep, in, &o, &r));
    text_transform_report_free(&r);
    const char *newer = path;
    assert_ok(text_inputs_newer(in, in_folder(f, "long/state.json"), &newer));
    assert_null(newer);
    text_inputs_close(in);
    edit_byte(path, 160025);
    assert_ok(text_inputs_open(&path, 1, &(text_input_options){ 0 }, &in));
    assert_error(text_transform_run(&keep, in, &o, &r), "made before", "long.jsonl");
    text_inputs_close(in);
}

/* ---- nothing to read --------------------------------------------------------------------------- */

static void reading_nothing_is_an_error(void **state) {
    test_folder *f = *state;
    text_transform_options o = { .out = in_folder(f, "out.jsonl"), .quiet = true };
    const char *path = write_input(f, "bad.jsonl", "not json\n[1, 2]\n");
    assert_error(try_transform(path, &o), "nothing could be read", "2 unreadable");
    assert_false(io_exists(o.out));
    o.out = in_folder(f, "out");
    assert_error(try_transform(path, &o), "nothing could be read");
    assert_error(try_open(o.out), "has not finished"); /* what follows does not go on with it */
    o.out = in_folder(f, "out.jsonl");
    assert_ok(try_transform(write_input(f, "empty.jsonl", ""), &o)); /* nothing was there to read */
    assert_ok(try_transform(write_input(f, "some.jsonl", "x\n{\"text\":\"a\"}\n"), &o));
}

static void bytes_lost_to_damage_are_counted(void **state) {
    test_folder *f = *state;
    static const char *const names[] = { "a.jsonl.gz", "a.jsonl.zst" };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        str all = { 0 };
        for (uint64_t k = 0; k < 3000; k++)
            str_add(&all, "{\"text\":\"%016llx\"}\n", (unsigned long long)hash_bytes(&k, 8, i));
        const char *path = write_input_bytes(f, names[i], all.text, all.len);
        str_free(&all);
        char *bytes = NULL;
        size_t n = 0;
        assert_ok(io_read(path, 1 << 20, &bytes, &n));
        char *second = memmem(bytes + 4, n - 4, bytes, 4); /* a third of the way: a member begins */
        assert_non_null(second);
        memset(second, 0xA5, 4);
        write_bytes(path, bytes, n);
        free(bytes);
        text_transform_options o = { .out = in_folder(f, "out.jsonl"), .quiet = true };
        text_transform_report r;
        assert_ok(run_transform(path, &o, &r));
        assert_true(r.read.documents > 500);
        assert_true(r.read.lost_bytes > (int64_t)n / 2 && r.read.lost_bytes < (int64_t)n);
        text_transform_report_free(&r);
    }
}

/* A zstd frame states its size, so what is missing of a truncated one is known exactly. */
static void bytes_missing_of_a_zstd_frame_are_counted(void **state) {
    test_folder *f = *state;
    str all = { 0 };
    for (uint64_t k = 0; k < 30000; k++)
        str_add(&all, "{\"text\":\"%016llx\"}\n", (unsigned long long)hash_bytes(&k, 8, 0));
    size_t capacity = ZSTD_compressBound(all.len);
    char *bytes = mem_alloc(capacity);
    size_t n = ZSTD_compress(bytes, capacity, all.text, all.len, 1);
    assert_false(ZSTD_isError(n));
    const char *path = in_folder(f, "a.jsonl.zst");
    write_bytes(path, bytes, n / 2);
    text_transform_options o = { .out = in_folder(f, "out.jsonl"), .quiet = true };
    text_transform_report r;
    assert_ok(run_transform(path, &o, &r));
    assert_true(r.read.documents > 1000 && r.read.documents < 29000);
    int64_t line = (int64_t)all.len / 30000;
    assert_int_equal(r.read.lost_bytes, (int64_t)all.len - line * r.read.documents);
    text_transform_report_free(&r);
    free(bytes);
    str_free(&all);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, text_setup, folder_teardown)
    const struct CMUnitTest tests[] = {
        TEST(every_part_of_a_folder_must_be_there),
        TEST(fresh_deletes_nothing_that_is_then_refused),
        TEST(output_inside_an_input_folder_is_refused),
        TEST(an_edit_of_the_same_size_is_noticed),
        TEST(reading_nothing_is_an_error),
        TEST(bytes_lost_to_damage_are_counted),
        TEST(bytes_missing_of_a_zstd_frame_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
