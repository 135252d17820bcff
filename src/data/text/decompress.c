/* The table of compressions that inputs may have, and the decoders of those that every build has. The decoders of
 * optional libraries are in decompress_NAME.c, each with a twin, decompress_NAME_none.c, that only names the package. */
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "text/decompress.h"

/* ---- gzip ------------------------------------------------------------------------------------ */
static void *open_gzip(void) {
    z_stream *z = mem_alloc(sizeof *z);
    BUG_IF(inflateInit2(z, 15 + 16) != Z_OK);
    return z;
}

static const char *run_gzip(void *state, codec_step *s) {
    enum { PIECE = 1 << 30 }; /* zlib counts in 32 bits */
    z_stream *z = state;
    if (s->begins) inflateReset(z);
    uInt in = (uInt)MIN(s->in_left, (size_t)PIECE), out = (uInt)MIN(s->out_left, (size_t)PIECE);
    z->next_in = (unsigned char *)(uintptr_t)s->in;
    z->avail_in = in;
    z->next_out = (unsigned char *)s->out;
    z->avail_out = out;
    int rc = inflate(z, Z_NO_FLUSH);
    codec_advance(s, in - z->avail_in, out - z->avail_out);
    s->ended = rc == Z_STREAM_END;
    if (s->ended || rc == Z_OK || rc == Z_BUF_ERROR) return NULL;
    return z->msg ? z->msg : "not gzip data";
}

static void close_gzip(void *state) {
    inflateEnd(state);
    free(state);
}

static const decoder decode_gzip = { .open = open_gzip, .run = run_gzip, .close = close_gzip };

/* ---- zstd ------------------------------------------------------------------------------------ */
static void *open_zstd(void) { return ZSTD_createDStream(); }

static const char *run_zstd(void *state, codec_step *s) {
    ZSTD_inBuffer in = { s->in, s->in_left, 0 };
    ZSTD_outBuffer out = { s->out, s->out_left, 0 };
    size_t rc = ZSTD_decompressStream(state, &out, &in);
    codec_advance(s, in.pos, out.pos);
    s->ended = rc == 0;
    return ZSTD_isError(rc) ? ZSTD_getErrorName(rc) : NULL;
}

static void close_zstd(void *state) { ZSTD_freeDStream(state); }

static uint64_t zstd_frame_bytes(const char *p, size_t n) {
    unsigned long long size = ZSTD_getFrameContentSize(p, n);
    bool known = size != ZSTD_CONTENTSIZE_UNKNOWN && size != ZSTD_CONTENTSIZE_ERROR;
    return known ? size : 0;
}

static const decoder decode_zstd = {
    .open = open_zstd, .run = run_zstd, .close = close_zstd, .frame_bytes = zstd_frame_bytes
};

/* ---- the table ------------------------------------------------------------------------------- */
static const text_codec codecs[] = {
    [COMPRESSION_GZIP] = { "gzip", { ".gz" }, "\x1f\x8b", 2, 0, &decode_gzip, true },
    [COMPRESSION_ZSTD] = { "zstd",
                           { ".zst", ".zstd" },
                           "\x28\xb5\x2f\xfd",
                           4,
                           0,
                           &decode_zstd,
                           false },
    [COMPRESSION_BZIP2] = { "bzip2", { ".bz2" }, "1AY&SY", 6, 4, &decode_bzip2, false },
    [COMPRESSION_XZ] = { "xz", { ".xz" }, "\xFD\x37zXZ", 6, 0, &decode_xz, true },
    [COMPRESSION_LZ4] = { "LZ4", { ".lz4" }, "\x04\x22\x4D\x18", 4, 0, &decode_lz4, false },
    [COMPRESSION_BROTLI] = { "Brotli", { ".br" }, NULL, 0, 0, &decode_brotli, false },
};

const text_codec *text_codec_of(text_compression compression) {
    BUG_IF((size_t)compression >= COUNT_OF(codecs) || !codecs[compression].name);
    return &codecs[compression];
}

text_compression compression_of_bytes(const char *head, size_t n) {
    for (size_t i = 0; i < COUNT_OF(codecs); i++) {
        const text_codec *c = &codecs[i];
        if (c->magic && n >= c->magic_at + c->magic_bytes &&
            memcmp(head + c->magic_at, c->magic, c->magic_bytes) == 0)
            return (text_compression)i;
    }
    /* A zstd file may begin with a skippable frame: 0x184D2A50 to 5F. */
    bool skips = n >= 4 && (head[0] & 0xF0) == 0x50 && memcmp(head + 1, "\x2a\x4d\x18", 3) == 0;
    return skips ? COMPRESSION_ZSTD : COMPRESSION_NONE;
}

text_compression compression_of_name(const char *name, size_t *bare) {
    *bare = strlen(name);
    for (size_t i = 0; i < COUNT_OF(codecs); i++)
        for (size_t k = 0; k < COUNT_OF(codecs[i].endings) && codecs[i].endings[k]; k++)
            if (str_ends(name, codecs[i].endings[k]))
                return *bare -= strlen(codecs[i].endings[k]), (text_compression)i;
    return COMPRESSION_NONE;
}
