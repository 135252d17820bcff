/* Where documents go: standard output, one file, or a folder of parts. Blocks are packed each on its
 * own, by the worker that made them, so that packing is parallel and its bytes are always the same. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "io/io.h"
#include "text/text_internal.h"

enum { ZSTD_LEVEL = 3, GZIP_LEVEL = 6 };

/* ---- packing ---------------------------------------------------------------------------------- */
struct packer {
    text_packing packing;
    z_stream gzip;
    ZSTD_CCtx *zstd;
    str packed;
};

packer *packer_new(text_packing packing) {
    packer *p = mem_alloc(sizeof *p);
    p->packing = packing;
    if (packing == PACK_GZIP)
        BUG_IF(deflateInit2(&p->gzip, GZIP_LEVEL, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY));
    if (packing == PACK_ZSTD) {
        p->zstd = ZSTD_createCCtx();
        ZSTD_CCtx_setParameter(p->zstd, ZSTD_c_compressionLevel, ZSTD_LEVEL);
        ZSTD_CCtx_setParameter(p->zstd, ZSTD_c_checksumFlag, 1);
    }
    return p;
}

void packer_free(packer *p) {
    if (!p) return;
    if (p->packing == PACK_GZIP) deflateEnd(&p->gzip);
    ZSTD_freeCCtx(p->zstd);
    str_free(&p->packed);
    free(p);
}

/* zlib counts its buffers in 32 bits. */
static size_t pack_gzip(packer *p, const str *text) {
    enum { PIECE = 1 << 30 };
    z_stream *z = &p->gzip;
    size_t left = text->len, n = 0;
    str_reserve(&p->packed, deflateBound(z, text->len));
    deflateReset(z);
    z->next_in = (unsigned char *)text->text;
    z->avail_in = 0;
    for (int rc = Z_OK; rc != Z_STREAM_END;) {
        uInt more = (uInt)MIN(left, (size_t)PIECE - z->avail_in),
             room = (uInt)MIN(p->packed.cap - n, (size_t)PIECE);
        z->avail_in += more;
        left -= more;
        z->next_out = (unsigned char *)p->packed.text + n;
        z->avail_out = room;
        rc = deflate(z, left ? Z_NO_FLUSH : Z_FINISH);
        BUG_IF(rc != Z_OK && rc != Z_STREAM_END);
        n += room - z->avail_out;
    }
    return n;
}

static size_t pack_zstd(packer *p, const str *text) {
    str_reserve(&p->packed, ZSTD_compressBound(text->len));
    size_t n = ZSTD_compress2(p->zstd, p->packed.text, p->packed.cap, text->text, text->len);
    BUG_IF(ZSTD_isError(n));
    return n;
}

void packer_run(packer *p, str *text) {
    if (p->packing == PACK_NONE) return;
    p->packed.len = p->packing == PACK_GZIP ? pack_gzip(p, text) : pack_zstd(p, text);
    str plain = *text;
    *text = (str){ 0 };
    str_add_bytes(text, p->packed.text, p->packed.len);
    str_free(&plain);
}

/* ---- sinks --------------------------------------------------------------------------------------- */
static const struct {
    const char *ending, *compress;
    text_packing packing;
} packings[] = {
    { ".jsonl", "none", PACK_NONE },
    { ".jsonl.gz", "gz", PACK_GZIP },
    { ".jsonl.zst", "zst", PACK_ZSTD },
};

/* A folder called out.txt would be a misunderstanding. */
static err refuse_name(const char *path) {
    text_packing packing;
    if (!format_of_name(path, &packing) && packing == PACK_NONE) return OK;
    return err_hint(ERR("%s: documents are written as JSON lines", path),
                    "give a name that ends in .jsonl, .jsonl.gz or .jsonl.zst, or a folder");
}

err sink_init(sink *s, const char *path, const char *compress) {
    *s = (sink){ .path = path };
    if (!path) return OK;
    s->kind = strcmp(path, "-") == 0 ? SINK_STDOUT : SINK_FOLDER;
    if (s->kind == SINK_STDOUT) return OK;
    if (!compress) compress = "zst";
    bool known = false;
    for (size_t i = 0; i < COUNT_OF(packings); i++) {
        if (strcmp(packings[i].compress, compress) == 0)
            known = true, s->packing = packings[i].packing;
    }
    for (size_t i = 0; i < COUNT_OF(packings); i++)
        if (str_ends(path, packings[i].ending))
            s->kind = SINK_FILE, s->packing = packings[i].packing;
    if (!known)
        return err_hint(ERR("no way to compress is called \"%s\"", compress),
                        "known are zst, gz and none");
    return s->kind == SINK_FOLDER ? refuse_name(path) : OK;
}

char *sink_part_path(const sink *s, int segment) {
    str name = { 0 };
    const char *ending = "";
    for (size_t i = 0; i < COUNT_OF(packings); i++)
        if (packings[i].packing == s->packing) ending = packings[i].ending;
    str_add(&name, "%s/part-%06d%s", s->path, segment, ending);
    return name.text;
}

err sink_begin(sink *s, int segment) {
    if (s->kind == SINK_FILE && !s->writer) return io_writer_open(s->path, &s->writer);
    if (s->kind != SINK_FOLDER) return OK;
    char *path = sink_part_path(s, segment);
    s->wrote = false;
    err e = io_writer_open(path, &s->writer);
    free(path);
    return e;
}

err sink_write(sink *s, const void *bytes, size_t n) {
    if (n == 0 || s->kind == SINK_NOWHERE) return OK;
    s->wrote = true;
    if (s->kind != SINK_STDOUT) return io_writer_write(s->writer, bytes, n);
    if (fwrite(bytes, 1, n, stdout) == n) return OK;
    return ERR("cannot write to standard output: %s", strerror(errno));
}

/* A packed file of nothing is not empty. */
static err write_nothing(sink *s) {
    packer *p = packer_new(s->packing);
    str nothing = { 0 };
    str_add_bytes(&nothing, "", 0);
    packer_run(p, &nothing);
    err e = sink_write(s, nothing.text, nothing.len);
    str_free(&nothing);
    packer_free(p);
    return e;
}

static err commit(sink *s) {
    if (!s->wrote) TRY(write_nothing(s));
    io_writer *w = s->writer;
    s->writer = NULL; /* commit frees it */
    return io_writer_commit(w);
}

err sink_end(sink *s) { return s->kind == SINK_FOLDER ? commit(s) : OK; }

err sink_finish(sink *s) {
    if (s->kind == SINK_FILE) return commit(s);
    if (s->kind == SINK_STDOUT && fflush(stdout) != 0)
        return ERR("cannot write to standard output: %s", strerror(errno));
    return OK;
}

void sink_abort(sink *s) {
    io_writer_abort(s->writer);
    s->writer = NULL;
}
