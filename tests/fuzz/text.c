/* Any bytes as documents: the first byte chooses the format, the second the size of blocks. */
#include "fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "text/text.h"

/* Documents are promised to be UTF-8 without NUL; writing one touches all of it. */
static err check_documents(void *ctx, int worker, const text_block *b, void *result) {
    str out = { 0 };
    for (int i = 0; i < b->n; i++) {
        const text_doc *d = &b->docs[i];
        BUG_IF(utf8_valid(d->text.at, d->text.len) != d->text.len);
        text_doc_write(d, d->text, &out);
    }
    str_free(&out);
    return OK;
}

static err count_block(void *ctx, const text_block *b, void *result) { return OK; }

static void read_file(const char *path, const text_input_options *o) {
    static const text_pipeline flow = { NULL, 1, check_documents, count_block, NULL };
    text_inputs *in = NULL;
    text_counts counts = { 0 };
    err e = text_inputs_open(&path, 1, o, &in);
    for (int i = 0; !e && i < text_segments(in); i++)
        e = text_pipeline_run(in, i, &flow, 1, &counts);
    err_free(e);
    text_inputs_close(in);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const char *const formats[] = { "json", "csv",  "tsv",     "jsonl", "warc",
                                           "html", "text", "parquet", "tar" };
    char path[64];
    if (n < 2) return 0;
    log_set_level(LOG_ERROR);
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data + 2, n - 2) != (ssize_t)(n - 2)) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    read_file(path, &(text_input_options){ .format = formats[data[0] % COUNT_OF(formats)],
                                           .block_bytes = data[1] + 1u,
                                           .document_bytes = 4096,
                                           .segment_bytes = 1000 });
    close(fd);
    return 0;
}
