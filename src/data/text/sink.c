/* Where documents are written: standard output, one file, or a folder of parts. Each block is
 * compressed on its own by the worker that produced it, so compression is parallel and its bytes
 * do not depend on the number of threads. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "text/output_internal.h"
#include "text/parser_internal.h"

enum { ZSTD_LEVEL = 3, GZIP_LEVEL = 6 };

/* ---- compression ----------------------------------------------------------------------------- */
struct compressor {
    text_compression compression;
    z_stream gzip;
    ZSTD_CCtx *zstd;
    str compressed;
};

compressor *compressor_new(text_compression compression) {
    compressor *p = mem_alloc(sizeof *p);
    p->compression = compression;
    if (compression == COMPRESSION_GZIP)
        BUG_IF(deflateInit2(&p->gzip, GZIP_LEVEL, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY));
    if (compression == COMPRESSION_ZSTD) {
        p->zstd = ZSTD_createCCtx();
        ZSTD_CCtx_setParameter(p->zstd, ZSTD_c_compressionLevel, ZSTD_LEVEL);
        ZSTD_CCtx_setParameter(p->zstd, ZSTD_c_checksumFlag, 1);
    }
    return p;
}

void compressor_free(compressor *p) {
    if (!p) return;
    if (p->compression == COMPRESSION_GZIP) deflateEnd(&p->gzip);
    ZSTD_freeCCtx(p->zstd);
    str_free(&p->compressed);
    free(p);
}

/* zlib counts its buffers in 32 bits, so long texts go through in pieces. */
static size_t compress_gzip(compressor *p, const str *text) {
    enum { PIECE = 1 << 30 };
    z_stream *z = &p->gzip;
    size_t left = text->len, n = 0;
    str_reserve(&p->compressed, deflateBound(z, text->len));
    deflateReset(z);
    z->next_in = (unsigned char *)text->text;
    z->avail_in = 0;
    for (int rc = Z_OK; rc != Z_STREAM_END;) {
        uInt more = (uInt)MIN(left, (size_t)PIECE - z->avail_in),
             space = (uInt)MIN(p->compressed.cap - n, (size_t)PIECE);
        z->avail_in += more;
        left -= more;
        z->next_out = (unsigned char *)p->compressed.text + n;
        z->avail_out = space;
        rc = deflate(z, left ? Z_NO_FLUSH : Z_FINISH);
        BUG_IF(rc != Z_OK && rc != Z_STREAM_END);
        n += space - z->avail_out;
    }
    return n;
}

static size_t compress_zstd(compressor *p, const str *text) {
    str_reserve(&p->compressed, ZSTD_compressBound(text->len));
    size_t n =
        ZSTD_compress2(p->zstd, p->compressed.text, p->compressed.cap, text->text, text->len);
    BUG_IF(ZSTD_isError(n));
    return n;
}

void compressor_run(compressor *p, str *text) {
    if (p->compression == COMPRESSION_NONE || p->compression == COMPRESSION_PARQUET) return;
    p->compressed.len =
        p->compression == COMPRESSION_GZIP ? compress_gzip(p, text) : compress_zstd(p, text);
    str plain = *text;
    *text = (str){ 0 };
    str_add_bytes(text, p->compressed.text, p->compressed.len);
    str_free(&plain);
}

/* ---- sinks ----------------------------------------------------------------------------------- */
static const struct {
    const char *ending, *compress;
    text_compression compression;
} compressions[] = {
    { ".jsonl", "none", COMPRESSION_NONE },
    { ".jsonl.gz", "gz", COMPRESSION_GZIP },
    { ".jsonl.zst", "zst", COMPRESSION_ZSTD },
    { ".parquet", "parquet", COMPRESSION_PARQUET },
};

err sink_init(sink *s, const char *path, const char *compress) {
    *s = (sink){ .path = path, .target = { .columns = doc_columns, .n_columns = DOC_COLUMNS } };
    if (!path) return OK;
    s->kind = strcmp(path, "-") == 0 ? SINK_STDOUT : SINK_FOLDER;
    if (s->kind == SINK_STDOUT) return OK;
    if (!compress) compress = "zst";
    bool known = false;
    for (size_t i = 0; i < COUNT_OF(compressions); i++) {
        if (strcmp(compressions[i].compress, compress) == 0)
            known = true, s->compression = compressions[i].compression;
    }
    for (size_t i = 0; i < COUNT_OF(compressions); i++)
        if (str_ends(path, compressions[i].ending))
            s->kind = SINK_FILE, s->compression = compressions[i].compression;
    if (!known)
        return err_hint(ERR("unknown compression \"%s\"", compress),
                        "use zst, gz, none or parquet");
    text_compression ending;
    if (s->kind != SINK_FOLDER || (!format_of_path(path, &ending) && ending == COMPRESSION_NONE))
        return OK;
    /* A folder called, for instance, out.txt is certainly a misunderstanding. */
    return err_hint(
        ERR("%s: documents are written as JSON lines or Parquet", path),
        "give a name that ends in .jsonl, .jsonl.gz, .jsonl.zst or .parquet, or a folder");
}

char *sink_part_path(char to[IO_PATH_BYTES], const sink *s, int segment) {
    const char *ending = "";
    for (size_t i = 0; i < COUNT_OF(compressions); i++)
        if (compressions[i].compression == s->compression) ending = compressions[i].ending;
    snprintf(to, IO_PATH_BYTES, "%s/part-%06d%s", s->path, segment, ending);
    return to;
}

static err write_table(void *ctx, const void *bytes, size_t n) {
    return vfs_writer_write(((sink *)ctx)->writer, bytes, n);
}

static err open_writer(sink *s, const char *path) {
    TRY(vfs_writer_open(path, &s->writer));
    if (s->compression != COMPRESSION_PARQUET) return OK;
    s->target.ctx = s;
    s->target.write = write_table;
    return parquet_writer_open(&s->target, &s->table);
}

err sink_begin_part(sink *s, int segment) {
    if (s->kind == SINK_FILE && !s->writer) return open_writer(s, s->path);
    if (s->kind != SINK_FOLDER) return OK;
    s->wrote = false;
    return open_writer(s, PART_IN(s, segment));
}

err sink_write(sink *s, const void *bytes, size_t n) {
    if (n == 0 || s->kind == SINK_NOWHERE) return OK;
    s->wrote = true;
    if (s->table) return parquet_writer_add(s->table, bytes, n);
    if (s->kind != SINK_STDOUT) return vfs_writer_write(s->writer, bytes, n);
    if (fwrite(bytes, 1, n, stdout) == n) return OK;
    return ERR("cannot write to standard output: %s", strerror(errno));
}

/* Even an empty compressed file has a header. */
static err write_nothing(sink *s) {
    compressor *p = compressor_new(s->compression);
    str nothing = { 0 };
    str_add_bytes(&nothing, "", 0);
    compressor_run(p, &nothing);
    err e = sink_write(s, nothing.text, nothing.len);
    str_free(&nothing);
    compressor_free(p);
    return e;
}

static err commit_writer(sink *s) {
    if (s->table) {
        TRY(parquet_writer_finish(s->table));
        parquet_writer_free(s->table);
        s->table = NULL;
    } else if (!s->wrote) {
        TRY(write_nothing(s));
    }
    vfs_writer *w = s->writer;
    s->writer = NULL; /* commit frees it */
    return vfs_writer_commit(w);
}

err sink_end_part(sink *s) { return s->kind == SINK_FOLDER ? commit_writer(s) : OK; }

err sink_finish(sink *s) {
    if (s->kind == SINK_FILE) return commit_writer(s);
    if (s->kind == SINK_STDOUT && fflush(stdout) != 0)
        return ERR("cannot write to standard output: %s", strerror(errno));
    return OK;
}

void sink_abort(sink *s) {
    parquet_writer_free(s->table);
    s->table = NULL;
    vfs_writer_abort(s->writer);
    s->writer = NULL;
}
