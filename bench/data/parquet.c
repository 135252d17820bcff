/* How fast the column `text` of a Parquet file is read, in megabytes of text per second of CPU time on
 * one thread.
 *
 *     bench_data_parquet FILE.parquet
 *
 * Prints one line of JSON: mb_s, the column alone, with every value found; documents_mb_s, the same as
 * documents, checked to be UTF-8, as commands read it. bench/peers/read_pyarrow.py is pyarrow's figure. */
#include "bench.h"

#include <fcntl.h>
#include <unistd.h>

#include "io/io.h"
#include "parquet/parquet.h"
#include "text/text.h"

enum { REPEATS = 5, BLOCK = 1 << 20 };

static err read_at(void *ctx, int64_t offset, void *to, size_t n) {
    int fd = *(int *)ctx;
    return pread(fd, to, n, (off_t)offset) == (ssize_t)n ? OK : ERR("cannot read the file");
}

static err read_group(const parquet_file *f, int group, int column, parquet_pages *pages,
                      int64_t *bytes) {
    parquet_cursor *c = NULL;
    bool more = true;
    TRY(parquet_cursor_open(f, group, column, &c));
    err e = OK;
    while (more && !e) {
        e = parquet_cursor_next(c, BLOCK, pages, &more);
        if (!e && more) e = parquet_decode(pages);
        for (int64_t i = 0; i < pages->rows && more && !e; i++)
            *bytes += pages->values[i].at ? (int64_t)pages->values[i].length : 0;
    }
    parquet_cursor_close(c);
    return e;
}

static err read_column(const char *path, int64_t *bytes) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    parquet_source s = { .name = path, .ctx = &fd, .read = read_at };
    parquet_file *f = NULL;
    parquet_pages pages = { 0 };
    *bytes = 0;
    err e = io_size(path, &s.size);
    if (!e) e = parquet_open(&s, &(parquet_limits){ 0 }, NULL, &f);
    int text = e ? -1 : parquet_find_column(f, "text");
    if (!e && text < 0) e = ERR("%s: no column \"text\"", path);
    for (int g = 0; !e && g < parquet_groups(f); g++) e = read_group(f, g, text, &pages, bytes);
    parquet_pages_free(&pages);
    parquet_close(f);
    close(fd);
    return e;
}

static err pass_block(void *ctx, int worker, const text_block *b, void *result) { return OK; }
static err count_block(void *ctx, const text_block *b, void *result) {
    for (int i = 0; i < b->n; i++) *(int64_t *)ctx += (int64_t)b->docs[i].text.len;
    return OK;
}

static err read_documents(const char *path, int64_t *bytes) {
    text_inputs *in = NULL;
    text_pipeline flow = { bytes, 1, pass_block, count_block, NULL };
    text_counts counts = { 0 };
    *bytes = 0;
    TRY(text_inputs_open(&path, 1, &(text_input_options){ 0 }, &in));
    err e = OK;
    for (int i = 0; i < text_segments(in) && !e; i++)
        e = text_pipeline_run(in, i, &flow, 1, &counts);
    text_inputs_close(in);
    return e;
}

/* The best of a few passes, in MB/s. */
static err measure(err (*pass)(const char *, int64_t *), const char *path, double *rate) {
    for (int i = 0; i < REPEATS; i++) {
        int64_t bytes;
        double start = time_cpu();
        TRY(pass(path, &bytes));
        *rate = MAX(*rate, (double)bytes / (time_cpu() - start) / 1e6);
    }
    return OK;
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: bench_data_parquet FILE.parquet\n");
        return 2;
    }
    double column = 0, documents = 0;
    err e = measure(read_column, argv[1], &column);
    if (!e) e = measure(read_documents, argv[1], &documents);
    if (e) {
        err_print(stderr, e, false);
        return 1;
    }
    printf("{\"mb_s\": %.1f, \"documents_mb_s\": %.1f}\n", column, documents);
    return 0;
}
