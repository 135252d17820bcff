/* The unpacked bytes of one input: plain, gzip of many members, zstd of many frames. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "text/text_internal.h"

enum { INPUT_BYTES = 256 << 10 };

struct stream {
    const char *path;
    int fd;
    text_packing packing;
    int64_t from, left; /* bytes of the file that may still be read; < 0: all */
    int64_t pulled;     /* from the file */
    size_t at, len;     /* of `input` not yet unpacked: [at, len) */
    bool at_end;        /* of the file */
    bool inside, began; /* a member or frame has begun and not ended; some has */
    z_stream gzip;
    ZSTD_DStream *zstd;
    str damage;
    char input[INPUT_BYTES];
};

text_packing packing_of(const char *head, size_t n) {
    static const struct {
        const char *magic;
        size_t n;
        text_packing packing;
    } known[] = { { "\x1f\x8b", 2, PACK_GZIP }, { "\x28\xb5\x2f\xfd", 4, PACK_ZSTD } };
    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (n >= known[i].n && memcmp(head, known[i].magic, known[i].n) == 0)
            return known[i].packing;
    /* A zstd file may begin with a frame to skip: 0x184D2A50 to 5F. */
    bool skips = n >= 4 && (head[0] & 0xF0) == 0x50 && memcmp(head + 1, "\x2a\x4d\x18", 3) == 0;
    return skips ? PACK_ZSTD : PACK_NONE;
}

/* ---- the file --------------------------------------------------------------------------------- */
static err read_file(stream *s, char *to, size_t n, size_t *got) {
    *got = 0;
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

/* Reads more input when all there was is used. */
static err refill(stream *s) {
    if (s->at < s->len) return OK;
    s->at = 0;
    return read_file(s, s->input, INPUT_BYTES, &s->len);
}

int64_t stream_taken(const stream *s) { return s->pulled - (int64_t)(s->len - s->at); }

static void damaged(stream *s, const char *what) {
    str_add(&s->damage, "%s at byte %lld", what, (long long)stream_taken(s));
}

/* ---- unpacking: each fills [to, to + n) as far as it can --------------------------------------- */
static err copy_plain(stream *s, char *to, size_t n, size_t *got) {
    size_t held = MIN(n, s->len - s->at), more = 0;
    memcpy(to, s->input + s->at, held);
    s->at += held;
    err e = held < n ? read_file(s, to + held, n - held, &more) : OK;
    *got = held + more;
    return e;
}

/* Padding of zeros after the last member is common on tapes and harmless. */
static void skip_padding(stream *s) {
    while (s->began && s->at < s->len && s->input[s->at] == 0) s->at++;
}

static void inflate_some(stream *s, char *to, size_t n, size_t *made) {
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
        damaged(s, s->gzip.msg ? s->gzip.msg : "not gzip data");
}

static err unpack_gzip(stream *s, char *to, size_t n, size_t *got) {
    while (*got < n && !s->damage.len) {
        TRY(refill(s));
        if (!s->inside) skip_padding(s);
        if (s->at == s->len && s->at_end) {
            if (s->inside || !s->began) damaged(s, "the gzip data breaks off");
            return OK;
        }
        if (s->at == s->len) continue;
        size_t made = 0;
        inflate_some(s, to + *got, MIN(n - *got, (size_t)1 << 30), &made);
        *got += made;
    }
    return OK;
}

static err unpack_zstd(stream *s, char *to, size_t n, size_t *got) {
    while (*got < n && !s->damage.len) {
        TRY(refill(s));
        bool dry = s->at == s->len;
        if (dry && !s->inside) {
            if (!s->began) damaged(s, "the zstd data breaks off");
            return OK;
        }
        ZSTD_inBuffer in = { s->input + s->at, s->len - s->at, 0 };
        ZSTD_outBuffer out = { to + *got, n - *got, 0 };
        size_t rc = ZSTD_decompressStream(s->zstd, &out, &in);
        s->at += in.pos;
        *got += out.pos;
        s->began = true;
        s->inside = rc != 0;
        if (ZSTD_isError(rc))
            damaged(s, ZSTD_getErrorName(rc));
        else if (dry && s->inside && out.pos == 0)
            damaged(s, "the zstd data breaks off");
    }
    return OK;
}

err stream_read(stream *s, char *to, size_t n, size_t *got) {
    static err (*const unpack[])(stream *, char *, size_t, size_t *) = { copy_plain, unpack_gzip,
                                                                         unpack_zstd };
    *got = 0;
    return n ? unpack[s->packing](s, to, n, got) : OK;
}

const char *stream_damage(const stream *s) { return s->damage.text; }

/* ---- opening ------------------------------------------------------------------------------------ */
static err start(stream *s, int64_t to) {
    bool standard = strcmp(s->path, "-") == 0;
    s->fd = standard ? STDIN_FILENO : open(s->path, O_RDONLY | O_CLOEXEC);
    if (s->fd < 0)
        return err_hint(ERR("cannot open %s: %s", s->path, strerror(errno)),
                        "check the path and its permissions");
    if (s->from > 0 && lseek(s->fd, (off_t)s->from, SEEK_SET) < 0)
        return ERR("cannot read %s at byte %lld: %s", s->path, (long long)s->from, strerror(errno));
    s->left = to < 0 ? -1 : MAX(to - s->from, 0);
    if (s->packing == PACK_SNIFF) {
        TRY(refill(s));
        s->packing = packing_of(s->input, s->len);
    }
    if (s->packing == PACK_GZIP) BUG_IF(inflateInit2(&s->gzip, 15 + 16) != Z_OK);
    if (s->packing == PACK_ZSTD) s->zstd = ZSTD_createDStream();
    return OK;
}

err stream_open(const char *path, text_packing packing, int64_t from, int64_t to, stream **out) {
    stream *s = mem_grow(NULL, sizeof *s);
    memset(s, 0, offsetof(stream, input));
    s->path = path;
    s->packing = packing;
    s->from = from;
    err e = start(s, to);
    if (e) {
        stream_close(s);
        return e;
    }
    *out = s;
    return OK;
}

void stream_close(stream *s) {
    if (!s) return;
    if (s->packing == PACK_GZIP) inflateEnd(&s->gzip);
    ZSTD_freeDStream(s->zstd);
    if (s->fd >= 0 && strcmp(s->path, "-") != 0) close(s->fd);
    str_free(&s->damage);
    free(s);
}
