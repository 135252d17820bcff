/* Documents that are formatted now and written later, by transforms that change their order: a JSON line or, for Parquet,
 * a row. */
#include <stdlib.h>

#include "text/transform.h"

struct text_packer {
    const text_inputs *in;
    parquet_rows *rows; /* NULL: JSON lines */
    str scratch;
};

err text_packer_new(text_inputs *in, const text_transform_options *o, text_packer **out) {
    sink to;
    TRY(sink_init(&to, o->out ? o->out : "-", o->compress));
    text_packer *p = mem_alloc(sizeof *p);
    in->all_members = true;
    p->in = in;
    if (to.compression == COMPRESSION_PARQUET) p->rows = parquet_rows_new(DOC_COLUMNS);
    *out = p;
    return OK;
}

err text_packer_add(text_packer *p, const text_doc *d, str *out) {
    if (!p->rows) return text_doc_write(d, d->text, out), OK;
    doc_add_row(p->in, d, d->text, NULL, 0, &p->scratch, p->rows);
    return parquet_rows_pack(p->rows, out);
}

void text_packer_free(text_packer *p) {
    if (!p) return;
    parquet_rows_free(p->rows);
    str_free(&p->scratch);
    free(p);
}

/* ---- writing them ---------------------------------------------------------------------------- */
/* Lines are compressed in chunks of about a block, on all threads. */
typedef struct packed_chunk {
    size_t first, n; /* of the documents */
    str bytes;
} packed_chunk;
typedef struct chunk_job {
    transform_run *run;
    const text_span *docs;
    packed_chunk *chunks;
} chunk_job;

static void compress_chunk(void *ctx, int64_t i, int worker) {
    chunk_job *j = ctx;
    packed_chunk *c = &j->chunks[i];
    for (size_t k = 0; k < c->n; k++)
        str_add_bytes(&c->bytes, j->docs[c->first + k].at, j->docs[c->first + k].len);
    compressor_run(j->run->workers[worker].kept, &c->bytes);
}

static err write_packed_lines(transform_run *run, const text_span *docs, size_t n) {
    enum { CHUNKS_PER_THREAD = 4 };
    int most = run->threads * CHUNKS_PER_THREAD;
    chunk_job j = { run, docs, mem_alloc((size_t)most * sizeof *j.chunks) };
    pool *p = run->threads == 1 ? NULL : pool_new(run->threads);
    err e = OK;
    for (size_t at = 0; at < n && !e;) {
        int chunks = 0;
        for (; chunks < most && at < n; chunks++) {
            size_t first = at, bytes = 0;
            while (at < n && bytes < run->in->o.block_bytes) bytes += docs[at++].len;
            j.chunks[chunks] = (packed_chunk){ .first = first, .n = at - first };
        }
        pool_run(p, chunks, compress_chunk, &j);
        for (int i = 0; i < chunks; i++) {
            if (!e) e = sink_write(run->out, j.chunks[i].bytes.text, j.chunks[i].bytes.len);
            str_free(&j.chunks[i].bytes);
        }
    }
    pool_free(p);
    free(j.chunks);
    return e;
}

err text_part_write(text_part *to, const text_span *packed, size_t n) {
    to->report->kept += (int64_t)n;
    if (to->run->out->compression != COMPRESSION_PARQUET)
        return write_packed_lines(to->run, packed, n);
    for (size_t i = 0; i < n; i++) TRY(sink_write(to->run->out, packed[i].at, packed[i].len));
    return OK;
}
