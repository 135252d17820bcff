/* Codecs of pages. */
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "parquet/parquet_internal.h"

/* gzip members or a zlib stream, as writers differ. */
static const char *inflate_page(const void *from, size_t n, void *to, size_t size) {
    enum { DETECT_HEADER = 32 };
    z_stream z = { .next_in = (unsigned char *)from,
                   .avail_in = (uInt)n,
                   .next_out = to,
                   .avail_out = (uInt)size };
    BUG_IF(inflateInit2(&z, 15 + DETECT_HEADER) != Z_OK);
    int rc = inflate(&z, Z_FINISH);
    while (rc == Z_STREAM_END && z.avail_in > 0 && z.avail_out > 0 && inflateReset(&z) == Z_OK)
        rc = inflate(&z, Z_FINISH);
    inflateEnd(&z);
    return rc == Z_STREAM_END && z.avail_out == 0 ? NULL : "the gzip data is damaged";
}

static const char *zstd_decode(const void *from, size_t n, void *to, size_t size) {
    return ZSTD_decompress(to, size, from, n) == size ? NULL : "the zstd data is damaged";
}

static const char *copy_page(const void *from, size_t n, void *to, size_t size) {
    if (n != size) return "the page's length differs from its header";
    memcpy(to, from, n);
    return NULL;
}

typedef struct codec {
    const char *name;
    const char *(*decompress)(const void *from, size_t n, void *to,
                              size_t size); /* NULL: refused */
} codec;

static const codec of_parquet[] = {
    [CODEC_NONE] = { "UNCOMPRESSED", copy_page },
    [1] = { "SNAPPY", snappy_decompress },
    [2] = { "GZIP", inflate_page },
    [3] = { "LZO", NULL },
    [4] = { "BROTLI", NULL },
    [5] = { "LZ4", NULL }, /* of Hadoop: deprecated, since its writers differ */
    [6] = { "ZSTD", zstd_decode },
    [7] = { "LZ4_RAW", lz4_block_decompress },
};
static const codec of_arrow[] = { { "LZ4_FRAME", lz4_frame_decompress }, { "ZSTD", zstd_decode } };

static const struct {
    const codec *at;
    int32_t n;
} codecs[] = {
    [CODECS_PARQUET] = { of_parquet, COUNT_OF(of_parquet) },
    [CODECS_ARROW] = { of_arrow, COUNT_OF(of_arrow) },
};

const char *codec_name(codec_set set, int32_t number, bool *supported) {
    bool known = number >= 0 && number < codecs[set].n;
    *supported = known && codecs[set].at[number].decompress;
    return known ? codecs[set].at[number].name : "unknown";
}

void codec_names(codec_set set, str *out) {
    for (int32_t i = 0; i < codecs[set].n; i++)
        if (codecs[set].at[i].decompress)
            str_add(out, "%s%s", out->len ? ", " : "", codecs[set].at[i].name);
}

const char *codec_decompress(codec_set set, int32_t number, const void *from, size_t n, void *to,
                             size_t size) {
    bool supported;
    codec_name(set, number, &supported);
    if (!supported) return "the codec is not supported";
    return codecs[set].at[number].decompress(from, n, to, size);
}
