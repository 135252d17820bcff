/* xz, by liblzma. */
#include <lzma.h>
#include <stdlib.h>

#include "text/decompress.h"

/* `xz -9` needs 65 MiB. What a file asks for is allocated at once, so there must be a limit. */
static const uint64_t XZ_MEMORY = (uint64_t)256 << 20;

static void *open_xz(void) {
    lzma_stream *z = mem_alloc(sizeof *z);
    *z = (lzma_stream)LZMA_STREAM_INIT;
    return z;
}

static const char *run_xz(void *state, codec_step *s) {
    lzma_stream *z = state;
    if (s->begins) BUG_IF(lzma_stream_decoder(z, XZ_MEMORY, 0) != LZMA_OK);
    z->next_in = (const uint8_t *)s->in;
    z->avail_in = s->in_left;
    z->next_out = (uint8_t *)s->out;
    z->avail_out = s->out_left;
    lzma_ret rc = lzma_code(z, LZMA_RUN);
    codec_advance(s, s->in_left - z->avail_in, s->out_left - z->avail_out);
    s->ended = rc == LZMA_STREAM_END;
    if (s->ended || rc == LZMA_OK || rc == LZMA_BUF_ERROR) return NULL;
    if (rc == LZMA_FORMAT_ERROR) return "not xz data";
    return rc == LZMA_MEMLIMIT_ERROR ? "the xz data needs more than 256 MiB to decompress"
                                     : "the xz data is damaged";
}

static void close_xz(void *state) {
    lzma_end(state);
    free(state);
}

const decoder decode_xz = { .open = open_xz, .run = run_xz, .close = close_xz };
