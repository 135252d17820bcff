/* The tests of Parquet and Arrow inputs share these: the documents that a file becomes, compared with JSON lines. */
#ifndef INGOT_TESTS_DOCUMENTS_H
#define INGOT_TESTS_DOCUMENTS_H

#include "support/text.h"

static inline err keep_document(void *ctx, int worker, int segment, const text_doc *d,
                                text_verdict *v) {
    return OK;
}
static const text_transform keep_all = { .name = "keep", .judge = keep_document };

/* Runs a transform that keeps everything, and returns what it writes; owned. */
static inline char *convert(test_folder *f, const char *path, const text_input_options *o,
                            int threads) {
    const char *out = in_folder(f, "out.jsonl");
    text_inputs *in = NULL;
    text_transform_report report;
    char *text = NULL;
    text_transform_options to = { .out = out, .threads = threads, .quiet = true };
    assert_ok(text_inputs_open(&path, 1, o, &in));
    assert_ok(text_transform_run(&keep_all, in, &to, &report));
    text_transform_report_free(&report);
    text_inputs_close(in);
    assert_ok(io_read(out, (size_t)1 << 30, &text, NULL));
    return text;
}

static inline void expect_lines(test_folder *f, const char *path, const char *expected) {
    static const text_input_options options[] = { { 0 },
                                                  { .block_bytes = 1 },
                                                  { .block_bytes = 300, .segment_bytes = 2000 } };
    char *want = NULL;
    assert_ok(io_read(expected, 1 << 30, &want, NULL));
    for (size_t i = 0; i < COUNT_OF(options); i++)
        for (int threads = 1; threads <= 3; threads += 2) {
            char *got = convert(f, path, &options[i], threads);
            if (strcmp(got, want) != 0) fail_msg("%s: other documents than %s", path, expected);
            free(got);
        }
    free(want);
}

/* Each of the n files of a folder called docs-* becomes the same lines. */
static inline void expect_same_documents(test_folder *f, const char *folder, const char *expected,
                                         int n) {
    char **names = NULL;
    int n_names = 0, compared = 0;
    assert_ok(io_list(folder, &names, &n_names));
    for (int i = 0; i < n_names; i++) {
        if (!str_starts(names[i], "docs-")) continue;
        char *path = io_join(folder, names[i]);
        expect_lines(f, path, expected);
        free(path);
        compared++;
    }
    io_list_free(names, n_names);
    assert_int_equal(compared, n);
}

/* How many segments of some bytes a file becomes. */
static inline void expect_segments(const char *path, size_t bytes, int segments) {
    text_inputs *in = NULL;
    assert_ok(text_inputs_open(&path, 1, &(text_input_options){ .segment_bytes = bytes }, &in));
    assert_int_equal(text_segments(in), segments);
    text_inputs_close(in);
}

typedef struct file_bytes {
    char *bytes;
    size_t n;
} file_bytes;

static inline file_bytes read_fixture(const char *path) {
    file_bytes b = { 0 };
    assert_ok(io_read(path, 1 << 30, &b.bytes, &b.n));
    return b;
}

#endif
