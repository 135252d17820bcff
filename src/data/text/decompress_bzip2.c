/* bzip2, by libbz2. */
#include <bzlib.h>
#include <stdlib.h>

#include "text/decompress.h"

typedef struct bzip2_state {
    bz_stream z;
    bool open;
} bzip2_state;

static void *open_bzip2(void) { return mem_alloc(sizeof(bzip2_state)); }

static void restart_bzip2(bzip2_state *b) {
    if (b->open) BZ2_bzDecompressEnd(&b->z);
    b->z = (bz_stream){ 0 };
    BUG_IF(BZ2_bzDecompressInit(&b->z, 0, 0) != BZ_OK);
    b->open = true;
}

static const char *run_bzip2(void *state, codec_step *s) {
    enum { PIECE = 1 << 30 }; /* libbz2 counts in 32 bits */
    bzip2_state *b = state;
    if (s->begins) restart_bzip2(b);
    unsigned in = (unsigned)MIN(s->in_left, (size_t)PIECE),
             out = (unsigned)MIN(s->out_left, (size_t)PIECE);
    b->z.next_in = (char *)(uintptr_t)s->in;
    b->z.avail_in = in;
    b->z.next_out = s->out;
    b->z.avail_out = out;
    int rc = BZ2_bzDecompress(&b->z);
    codec_advance(s, in - b->z.avail_in, out - b->z.avail_out);
    s->ended = rc == BZ_STREAM_END;
    if (s->ended || rc == BZ_OK) return NULL;
    return rc == BZ_DATA_ERROR_MAGIC ? "not bzip2 data" : "the bzip2 data is damaged";
}

static void close_bzip2(void *state) {
    bzip2_state *b = state;
    if (b->open) BZ2_bzDecompressEnd(&b->z);
    free(b);
}

const decoder decode_bzip2 = { .open = open_bzip2, .run = run_bzip2, .close = close_bzip2 };
