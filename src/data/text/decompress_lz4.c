/* LZ4 frames, by liblz4. */
#include <lz4frame.h>

#include "text/decompress.h"

static void *open_lz4(void) {
    LZ4F_dctx *z = NULL;
    BUG_IF(LZ4F_isError(LZ4F_createDecompressionContext(&z, LZ4F_VERSION)));
    return z;
}

static const char *run_lz4(void *state, codec_step *s) {
    size_t in = s->in_left, out = s->out_left;
    if (s->begins) LZ4F_resetDecompressionContext(state);
    size_t rc = LZ4F_decompress(state, s->out, &out, s->in, &in, NULL);
    if (LZ4F_isError(rc)) return "the LZ4 data is damaged";
    codec_advance(s, in, out);
    s->ended = rc == 0;
    return NULL;
}

static void close_lz4(void *state) { LZ4F_freeDecompressionContext(state); }

const decoder decode_lz4 = { .open = open_lz4, .run = run_lz4, .close = close_lz4 };
