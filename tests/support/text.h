/* The tests of text/ share these: compressed inputs in a temporary folder, and a flow that notes
 * every document it sees. */
#ifndef INGOT_TESTS_TEXT_H
#define INGOT_TESTS_TEXT_H

#include "support/folder.h"

#include <zlib.h>
#include <zstd.h>

#include "text/html.h"
#include "text/text.h"

/* A folder; damage is warned about, and these tests make much of it. */
static inline int text_setup(void **state) {
    int failed = folder_setup(state);
    log_set_level(LOG_ERROR);
    return failed;
}

/* A build without libxml2 counts every page as unreadable. */
static inline bool reads_html(void) {
    str out = { 0 };
    err e = html_text("", 0, NULL, &out);
    bool reads = e == OK;
    err_free(e);
    str_free(&out);
    return reads;
}

/* ---- files ---------------------------------------------------------------------------------- */
static inline void add_gzip(const char *bytes, size_t n, str *out) {
    z_stream z = { 0 };
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    size_t bound = deflateBound(&z, n);
    str_reserve(out, bound);
    z.next_in = (unsigned char *)(uintptr_t)bytes;
    z.avail_in = (uInt)n;
    z.next_out = (unsigned char *)out->text + out->len;
    z.avail_out = (uInt)bound;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    out->len += z.total_out;
    deflateEnd(&z);
}

static inline void add_zstd(const char *bytes, size_t n, str *out) {
    str_reserve(out, ZSTD_compressBound(n));
    size_t made = ZSTD_compress(out->text + out->len, out->cap - out->len, bytes, n, 3);
    assert_false(ZSTD_isError(made));
    out->len += made;
}

/* Writes bytes, compressed as the ending of the name asks, in three members or frames. @return the
 * path, valid until the end of the test. */
static inline const char *write_input_bytes(test_folder *f, const char *name, const char *bytes,
                                            size_t n) {
    const char *path = in_folder(f, name);
    bool gzip = str_ends(name, ".gz"), zstd = str_ends(name, ".zst");
    str packed = { 0 };
    for (size_t k = 0; k < 3; k++) {
        const char *from = bytes + n * k / 3;
        size_t len = n * (k + 1) / 3 - n * k / 3;
        if (gzip)
            add_gzip(from, len, &packed);
        else if (zstd)
            add_zstd(from, len, &packed);
        else
            str_add_bytes(&packed, from, len);
    }
    write_bytes(path, packed.text, packed.len);
    str_free(&packed);
    return path;
}

static inline const char *write_input(test_folder *f, const char *name, const char *text) {
    return write_input_bytes(f, name, text, strlen(text));
}

/* ---- reading everything ------------------------------------------------------------------------ */
/* Every document as "[number|text|id|url|source|license]". */
typedef struct seen {
    str all;
    text_counts counts;
    int64_t next; /* number */
} seen;

static inline err note_work(void *ctx, int worker, const text_block *b, void *result) {
    str *out = result;
    for (int i = 0; i < b->n; i++) {
        const text_doc *d = &b->docs[i];
        const text_span spans[] = { d->text, d->id, d->url, d->source, d->license };
        str_add(out, "[%lld", (long long)d->number);
        for (size_t k = 0; k < COUNT_OF(spans); k++) {
            str_add_bytes(out, "|", 1);
            str_add_bytes(out, spans[k].at, spans[k].len);
            assert_int_equal(utf8_valid(spans[k].at, spans[k].len), spans[k].len);
        }
        str_add_bytes(out, "]", 1);
    }
    return OK;
}

static inline err note_merge(void *ctx, const text_block *b, void *result) {
    seen *s = ctx;
    str *out = result;
    for (int i = 0; i < b->n; i++) assert_int_equal(b->docs[i].number, s->next++);
    str_add_bytes(&s->all, out->text, out->len);
    str_free(out);
    return OK;
}

static inline void note_drop(void *result) { str_free(result); }

static inline err read_all(const char *const *paths, int n, const text_input_options *o,
                           int threads, seen *s) {
    text_inputs *inputs = NULL;
    const text_pipeline flow = { s, sizeof(str), note_work, note_merge, note_drop };
    *s = (seen){ 0 };
    str_add(&s->all, "%s", "");
    err e = text_inputs_open(paths, n, o, &inputs);
    for (int i = 0; !e && i < text_segments(inputs); i++) {
        s->next = 0;
        e = text_pipeline_run(inputs, i, &flow, threads, &s->counts);
    }
    text_inputs_close(inputs);
    return e;
}

static inline err read_one(const char *path, const text_input_options *o, int threads, seen *s) {
    return read_all(&path, 1, o, threads, s);
}

static inline void seen_free(seen *s) { str_free(&s->all); }

/* Reads one input with the options and compares what is seen. */
static inline void assert_sees(const char *path, const text_input_options *o,
                               const char *expected) {
    seen s;
    assert_ok(read_one(path, o, 2, &s));
    assert_string_equal(s.all.text, expected);
    seen_free(&s);
}

#endif
