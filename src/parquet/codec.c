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
    if (n != size) return "the page has another length than its header states";
    memcpy(to, from, n);
    return NULL;
}

static const struct {
    const char *name;
    const char *(*decompress)(const void *from, size_t n, void *to, size_t size);
} codecs[] = {
    [CODEC_NONE] = { "UNCOMPRESSED", copy_page },
    [1] = { "SNAPPY", snappy_decompress },
    [2] = { "GZIP", inflate_page },
    [3] = { "LZO", NULL },
    [4] = { "BROTLI", NULL },
    [5] = { "LZ4", NULL },
    [6] = { "ZSTD", zstd_decode },
    [7] = { "LZ4_RAW", NULL },
};

const char *codec_name(int32_t codec, bool *supported) {
    bool known = codec >= 0 && codec < (int32_t)COUNT_OF(codecs);
    *supported = known && codecs[codec].decompress;
    return known ? codecs[codec].name : "unknown";
}

const char *codec_decompress(int32_t codec, const void *from, size_t n, void *to, size_t size) {
    bool supported;
    codec_name(codec, &supported);
    if (!supported) return "the codec is not supported";
    return codecs[codec].decompress(from, n, to, size);
}
