/* The decompressed bytes of one input: plain, gzip with any number of members, or zstd with any
 * number of frames. Damaged data ends the input with an explanation instead of an error, so that
 * what precedes it can be used. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "store/store.h"
#include "text/text_internal.h"

enum { INPUT_BYTES = 256 << 10 };

struct byte_reader {
    const char *path;
    int fd;                /* -1: it is an object */
    object_reader *object; /* NULL: it is a file */
    text_compression compression;
    int64_t from, left; /* start offset, and bytes of the file that may still be read; < 0: all */
    int64_t pulled;     /* bytes read from the file */
    size_t at, len;     /* of `input` not yet decompressed: [at, len) */
    bool at_end;        /* of the file */
    bool inside,
        began; /* inside: a member or frame has begun and not ended; began: any has begun */
    z_stream gzip;
    ZSTD_DStream *zstd;
    uint64_t
        frame_left; /* bytes that the zstd frame being read still has, by its header; 0: unknown */
    str damage;
    char *input; /* [INPUT_BYTES], owned; NULL: not needed yet, as in an uncompressed file */
};

text_compression compression_of_bytes(const char *head, size_t n) {
    static const struct {
        const char *magic;
        size_t n;
        text_compression compression;
    } known[] = { { "\x1f\x8b", 2, COMPRESSION_GZIP },
                  { "\x28\xb5\x2f\xfd", 4, COMPRESSION_ZSTD } };
    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (n >= known[i].n && memcmp(head, known[i].magic, known[i].n) == 0)
            return known[i].compression;
    /* A zstd file may begin with a skippable frame: 0x184D2A50 to 5F. */
    bool skips = n >= 4 && (head[0] & 0xF0) == 0x50 && memcmp(head + 1, "\x2a\x4d\x18", 3) == 0;
    return skips ? COMPRESSION_ZSTD : COMPRESSION_NONE;
}

/* ---- the file -------------------------------------------------------------------------------- */
static err read_input_file(byte_reader *s, char *to, size_t n, size_t *got) {
    *got = 0;
    if (s->object) {
        TRY(object_reader_read(s->object, to, n, got));
        s->at_end = *got < n;
        s->pulled += (int64_t)*got;
        return OK;
    }
    if (s->left >= 0) n = MIN(n, (size_t)s->left);
    while (n > 0 && !s->at_end) {
        ssize_t now = read(s->fd, to, n);
        if (now < 0 && errno == EINTR) continue;
        if (now < 0)
            return err_hint(ERR("cannot read %s at byte %lld: %s", s->path,
                                (long long)(s->from + s->pulled), strerror(errno)),
                            "check the file and the disk it is on");
        s->at_end = now == 0;
        to += now;
        n -= (size_t)now;
        *got += (size_t)now;
        s->pulled += now;
        if (s->left >= 0) s->left -= now;
    }
    return OK;
}

/* Reads more input once all of it is consumed. */
static err refill_input(byte_reader *s) {
    if (s->at < s->len) return OK;
    s->at = 0;
    if (!s->input) s->input = mem_grow(NULL, INPUT_BYTES);
    return read_input_file(s, s->input, INPUT_BYTES, &s->len);
}

int64_t byte_reader_consumed(const byte_reader *s) { return s->pulled - (int64_t)(s->len - s->at); }

static void note_damage(byte_reader *s, const char *what) {
    str_add(&s->damage, "%s at byte %lld", what, (long long)byte_reader_consumed(s));
}

/* ---- decompressors: each fills as much of [to, to + n) as it can ----------------------------- */
static err copy_uncompressed(byte_reader *s, char *to, size_t n, size_t *got) {
    size_t held = MIN(n, s->len - s->at), more = 0;
    if (held) memcpy(to, s->input + s->at, held);
    s->at += held;
    err e = held < n ? read_input_file(s, to + held, n - held, &more) : OK;
    *got = held + more;
    return e;
}

/* Zero padding after the last member is common on tapes and harmless. */
static void skip_padding(byte_reader *s) {
    while (s->began && s->at < s->len && s->input[s->at] == 0) s->at++;
}

static void inflate_some(byte_reader *s, char *to, size_t n, size_t *made) {
    if (!s->inside) inflateReset(&s->gzip);
    s->inside = s->began = true;
    s->gzip.next_in = (unsigned char *)s->input + s->at;
    s->gzip.avail_in = (uInt)(s->len - s->at);
    s->gzip.next_out = (unsigned char *)to;
    s->gzip.avail_out = (uInt)n;
    int rc = inflate(&s->gzip, Z_NO_FLUSH);
    s->at = s->len - s->gzip.avail_in;
    *made = n - s->gzip.avail_out;
    if (rc == Z_STREAM_END)
        s->inside = false;
    else if (rc != Z_OK && rc != Z_BUF_ERROR)
        note_damage(s, s->gzip.msg ? s->gzip.msg : "not gzip data");
}

static err decompress_gzip(byte_reader *s, char *to, size_t n, size_t *got) {
    while (*got < n && !s->damage.len) {
        TRY(refill_input(s));
        if (!s->inside) skip_padding(s);
        if (s->at == s->len && s->at_end) {
            if (s->inside || !s->began) note_damage(s, "the gzip data is truncated");
            return OK;
        }
        if (s->at == s->len) continue;
        size_t made = 0;
        inflate_some(s, to + *got, MIN(n - *got, (size_t)1 << 30), &made);
        *got += made;
    }
    return OK;
}

/* Reads the size of the frame that begins at the input's current position, if its header states it. */
static void read_frame_size(byte_reader *s) {
    unsigned long long size = ZSTD_getFrameContentSize(s->input + s->at, s->len - s->at);
    bool known = size != ZSTD_CONTENTSIZE_UNKNOWN && size != ZSTD_CONTENTSIZE_ERROR;
    s->frame_left = known ? size : 0;
}

static err decompress_zstd(byte_reader *s, char *to, size_t n, size_t *got) {
    while (*got < n && !s->damage.len) {
        TRY(refill_input(s));
        bool dry = s->at == s->len;
        if (dry && !s->inside) {
            if (!s->began) note_damage(s, "the zstd data is truncated");
            return OK;
        }
        if (!s->inside) read_frame_size(s);
        ZSTD_inBuffer in = { s->input + s->at, s->len - s->at, 0 };
        ZSTD_outBuffer out = { to + *got, n - *got, 0 };
        size_t rc = ZSTD_decompressStream(s->zstd, &out, &in);
        s->at += in.pos;
        *got += out.pos;
        s->frame_left -= MIN(s->frame_left, out.pos);
        s->began = true;
        s->inside = rc != 0;
        if (ZSTD_isError(rc))
            note_damage(s, ZSTD_getErrorName(rc));
        else if (dry && s->inside && out.pos == 0)
            note_damage(s, "the zstd data is truncated");
    }
    return OK;
}

err byte_reader_read(byte_reader *s, char *to, size_t n, size_t *got) {
    static err (*const decompress[])(byte_reader *, char *, size_t, size_t *) = { copy_uncompressed,
                                                                                  decompress_gzip,
                                                                                  decompress_zstd };
    *got = 0;
    return n ? decompress[s->compression](s, to, n, got) : OK;
}

const char *byte_reader_damage(const byte_reader *s) { return s->damage.text; }
int64_t byte_reader_frame_left(const byte_reader *s) {
    return (int64_t)MIN(s->frame_left, (uint64_t)INT64_MAX / 2);
}

/* ---- opening --------------------------------------------------------------------------------- */
static err open_descriptor(byte_reader *s, int64_t to) {
    if (store_is_url(s->path)) return object_reader_open(s->path, s->from, to, &s->object);
    bool standard = strcmp(s->path, "-") == 0;
    s->fd = standard ? STDIN_FILENO : open(s->path, O_RDONLY | O_CLOEXEC);
    if (s->fd < 0)
        return err_hint(ERR("cannot open %s: %s", s->path, strerror(errno)),
                        "check the path and its permissions");
    if (s->from > 0 && lseek(s->fd, (off_t)s->from, SEEK_SET) < 0)
        return ERR("cannot read %s at byte %lld: %s", s->path, (long long)s->from, strerror(errno));
    s->left = to < 0 ? -1 : MAX(to - s->from, 0);
    return OK;
}

static err open_input(byte_reader *s, int64_t to) {
    TRY(open_descriptor(s, to));
    if (s->compression == COMPRESSION_DETECT) {
        TRY(refill_input(s));
        s->compression = compression_of_bytes(s->input, s->len);
    }
    if (s->compression == COMPRESSION_GZIP) BUG_IF(inflateInit2(&s->gzip, 15 + 16) != Z_OK);
    if (s->compression == COMPRESSION_ZSTD) s->zstd = ZSTD_createDStream();
    return OK;
}

err byte_reader_open(const char *path, text_compression compression, int64_t from, int64_t to,
                     byte_reader **out) {
    byte_reader *s = mem_alloc(sizeof *s);
    s->path = path;
    s->compression = compression;
    s->from = from;
    s->fd = -1;
    err e = open_input(s, to);
    if (e) {
        byte_reader_close(s);
        return e;
    }
    *out = s;
    return OK;
}

void byte_reader_close(byte_reader *s) {
    if (!s) return;
    if (s->compression == COMPRESSION_GZIP) inflateEnd(&s->gzip);
    ZSTD_freeDStream(s->zstd);
    object_reader_close(s->object);
    if (s->fd >= 0 && strcmp(s->path, "-") != 0) close(s->fd);
    str_free(&s->damage);
    free(s->input);
    free(s);
}
