/* Compressions of inputs: one row each (decompress.c), with a decoder that turns some bytes into some others. A file is a
 * sequence of frames (gzip and xz: members, streams), each of which ends by itself and has its own checksum. */
#ifndef INGOT_TEXT_DECOMPRESS_H
#define INGOT_TEXT_DECOMPRESS_H

#include "text/byte_reader_internal.h"

/* One call of a decoder: it consumes and produces what it can, and advances both. */
typedef struct codec_step {
    const char *in;
    size_t in_left;
    char *out;
    size_t out_left;
    bool begins; /* the input is at the beginning of a frame */
    bool ended;  /* set by the decoder: the frame is complete, and its checksum is right */
} codec_step;
static inline void codec_advance(codec_step *s, size_t in, size_t out) {
    s->in += in, s->in_left -= in;
    s->out += out, s->out_left -= out;
}

typedef struct decoder {
    void *(*open)(void);
    const char *(*run)(void *state,
                       codec_step *s); /* @return what is wrong with the data; NULL: nothing */
    void (*close)(void *state);
    uint64_t (*frame_bytes)(
        const char *p, size_t n); /* of the frame at p, decompressed, by its header; 0: unknown */
    const char *package;          /* the build lacks this package, and `open` is NULL */
} decoder;
extern const decoder decode_bzip2, decode_xz, decode_lz4, decode_brotli;

typedef struct text_codec {
    const char *name;
    const char *endings[2];
    const char *magic; /* NULL: only the name of a file shows the compression */
    size_t magic_bytes, magic_at;
    const decoder *decode;
    bool padded; /* zeros may follow a frame */
} text_codec;
const text_codec *text_codec_of(text_compression compression);

#endif
