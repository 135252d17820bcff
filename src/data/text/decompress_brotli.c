/* Brotli, by libbrotlidec. A file is one frame, without a checksum. */
#include <brotli/decode.h>

#include "text/decompress.h"

static void *open_brotli(void) {
    BrotliDecoderState *z = BrotliDecoderCreateInstance(NULL, NULL, NULL);
    BUG_IF(!z);
    return z;
}

static const char *run_brotli(void *state, codec_step *s) {
    if (BrotliDecoderIsFinished(state)) return "data after the end of the Brotli stream";
    size_t in = s->in_left, out = s->out_left;
    const uint8_t *from = (const uint8_t *)s->in;
    uint8_t *to = (uint8_t *)s->out;
    BrotliDecoderResult rc = BrotliDecoderDecompressStream(state, &in, &from, &out, &to, NULL);
    codec_advance(s, s->in_left - in, s->out_left - out);
    s->ended = rc == BROTLI_DECODER_RESULT_SUCCESS;
    return rc == BROTLI_DECODER_RESULT_ERROR ? "the Brotli data is damaged" : NULL;
}

static void close_brotli(void *state) { BrotliDecoderDestroyInstance(state); }

const decoder decode_brotli = { .open = open_brotli, .run = run_brotli, .close = close_brotli };
