/* The decompressed bytes of one input: plain, or any number of compressed frames (decompress.h). Damaged data ends the
 * input with an explanation instead of an error, so that what precedes it can be used.
 *
 * A checksum comes at the end of a frame, after the bytes that it is about. A reader that checks frames passes nothing
 * on before that: it holds the bytes of a frame back, and where these become too many, it first decompresses the
 * frame once more to its end, from another handle. Frames of a few megabytes, as in WARC files and in what transforms
 * write, cost nothing; a long single frame costs a second decompression. A frame that ends early is not wrong: what
 * it has is passed on. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/store.h"
#include "text/decompress.h"

enum { INPUT_BYTES = 256 << 10, HELD_BYTES = 4 << 20 };

struct byte_reader {
    const char *path;
    int fd;                /* -1: it is an object */
    object_reader *object; /* NULL: it is a file */
    text_compression compression;
    int64_t from, left; /* start offset, and bytes of the file that may still be read; < 0: all */
    int64_t pulled;     /* bytes read from the file */
    size_t at, len;     /* of `input` not yet decompressed: [at, len) */
    bool at_end;        /* of the file */
    const text_codec *codec; /* NULL: plain */
    void *decoder;
    bool inside, began; /* inside: a frame has begun and not ended; began: any has begun */
    int64_t frame_at;   /* offset in the file of the frame being read */
    uint64_t frame_bytes, frame_left; /* of it by its header, and still to come; 0: unknown */
    str damage;
    bool truncated; /* the damage is that the file ends early */
    char *input;    /* [INPUT_BYTES], owned; NULL: not needed yet, as in an uncompressed file */
    /* Of a reader that checks frames: */
    bool checks, again; /* again: the file can be opened a second time */
    bool trusted;       /* the frame being read was checked, or cannot be */
    bool discarded;     /* the damaged frame was not passed on */
    str held;           /* a frame, or its beginning: [held_at, held.len) is to be passed on */
    size_t held_at;
};

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
    str_add(&s->damage, "%s at byte %lld", what, (long long)(s->from + byte_reader_consumed(s)));
}

static void note_truncation(byte_reader *s) {
    char what[64];
    snprintf(what, sizeof what, "the %s data is truncated", s->codec->name);
    s->truncated = true;
    note_damage(s, what);
}

/* ---- decompression --------------------------------------------------------------------------- */
static err copy_uncompressed(byte_reader *s, char *to, size_t n, size_t *got) {
    size_t held = MIN(n, s->len - s->at), more = 0;
    if (held) memcpy(to, s->input + s->at, held);
    s->at += held;
    err e = held < n ? read_input_file(s, to + held, n - held, &more) : OK;
    *got = held + more;
    return e;
}

/* Decompresses up to n bytes of one frame. *ended: it is complete. Both are 0 at the end of the file. */
static err decompress_frame(byte_reader *s, char *to, size_t n, size_t *got, bool *ended) {
    *got = 0;
    *ended = false;
    while (*got < n && !*ended && !s->damage.len) {
        TRY(refill_input(s));
        /* Zero padding after the last frame is common on tapes and harmless. */
        while (s->codec->padded && !s->inside && s->began && s->at < s->len && !s->input[s->at])
            s->at++;
        bool dry = s->at == s->len;
        if (dry && !s->at_end) continue;
        if (dry && !s->inside) {
            if (!s->began) note_truncation(s);
            return OK;
        }
        if (!s->inside) {
            const decoder *d = s->codec->decode;
            s->frame_at = s->from + byte_reader_consumed(s);
            s->frame_bytes = d->frame_bytes ? d->frame_bytes(s->input + s->at, s->len - s->at) : 0;
            s->frame_left = s->frame_bytes;
        }
        codec_step step = {
            s->input + s->at, s->len - s->at, to + *got, n - *got, !s->inside, false
        };
        const char *wrong = s->codec->decode->run(s->decoder, &step);
        size_t used = s->len - s->at - step.in_left, made = n - *got - step.out_left;
        s->at += used;
        *got += made;
        s->frame_left -= MIN(s->frame_left, made);
        s->began = true;
        *ended = step.ended;
        s->inside = !step.ended;
        if (wrong)
            note_damage(s, wrong);
        else if (dry && s->inside && made == 0)
            note_truncation(s);
        else if (!dry && s->inside && used == 0 && made == 0)
            note_damage(s, "the data cannot be decompressed");
    }
    return OK;
}

static err decompress(byte_reader *s, char *to, size_t n, size_t *got) {
    size_t made = 1;
    bool ended = true;
    while (*got < n && (made || ended) && !s->damage.len) {
        TRY(decompress_frame(s, to + *got, n - *got, &made, &ended));
        *got += made;
    }
    return OK;
}

/* ---- frames that are checked before they are passed on ---------------------------------------- */
static void discard_frame(byte_reader *s) {
    s->held.len = s->held_at = 0;
    s->discarded = true;
}

/* Decompresses the frame at frame_at to its end with a reader of its own. Damage is noted here too. */
static err check_frame(byte_reader *s) {
    byte_reader *r = NULL;
    char *scratch = mem_grow(NULL, INPUT_BYTES);
    size_t made = 1;
    bool ended = false;
    err e = byte_reader_open(s->path, s->compression, s->frame_at, -1, &r);
    while (!e && made && !ended && !r->damage.len)
        e = decompress_frame(r, scratch, INPUT_BYTES, &made, &ended);
    if (!e && r->damage.len && !r->truncated) {
        str_add_bytes(&s->damage, r->damage.text, r->damage.len);
        discard_frame(s);
    }
    byte_reader_close(r);
    free(scratch);
    return e;
}

/* Reads a frame into `held`, or its beginning if it is long. */
static err hold_frame(byte_reader *s) {
    bool ended = false;
    s->held.len = s->held_at = 0;
    str_reserve(&s->held, HELD_BYTES);
    while (s->held.len == 0 && !s->damage.len) {
        TRY(decompress_frame(s, s->held.text, HELD_BYTES, &s->held.len, &ended));
        if (s->held.len == 0 && !ended) break; /* the end of the file */
    }
    if (s->damage.len && !s->truncated) discard_frame(s);
    if (s->damage.len || ended || s->held.len < HELD_BYTES) return OK;
    s->trusted = true;
    return s->again ? check_frame(s) : OK;
}

static err read_checked(byte_reader *s, char *to, size_t n, size_t *got) {
    while (*got < n) {
        size_t now = MIN(n - *got, s->held.len - s->held_at);
        bool ended = false;
        if (now) {
            memcpy(to + *got, s->held.text + s->held_at, now);
            s->held_at += now;
        } else if (s->damage.len) {
            break;
        } else if (s->trusted) {
            TRY(decompress_frame(s, to + *got, n - *got, &now, &ended));
            /* A pipe cannot be read twice, so bytes of a long frame are passed on before its checksum is known. */
            if (s->damage.len && !s->truncated && !s->again)
                return err_hint(
                    ERR("%s is damaged: %s; documents before that may be damaged too, and were "
                        "used",
                        strcmp(s->path, "-") == 0 ? "standard input" : s->path, s->damage.text),
                    "save it to a file, and pass that: damaged parts of files are skipped");
            s->trusted = !ended;
            if (!now && !ended) break;
        } else {
            TRY(hold_frame(s));
            if (s->held.len == 0) break;
        }
        *got += now;
    }
    return OK;
}

void byte_reader_check_frames(byte_reader *s, bool again) {
    s->checks = s->codec != NULL;
    s->again = again;
}

err byte_reader_read(byte_reader *s, char *to, size_t n, size_t *got) {
    *got = 0;
    if (!n) return OK;
    if (!s->codec) return copy_uncompressed(s, to, n, got);
    return s->checks ? read_checked(s, to, n, got) : decompress(s, to, n, got);
}

const char *byte_reader_damage(const byte_reader *s) { return s->damage.text; }

int64_t byte_reader_lost(const byte_reader *s, int64_t file_bytes) {
    if (!s->damage.len) return 0;
    int64_t from = s->discarded ? s->frame_at : s->from + byte_reader_consumed(s);
    uint64_t text = s->discarded ? s->frame_bytes : s->frame_left;
    return MAX(MAX(file_bytes - from, (int64_t)0), (int64_t)MIN(text, (uint64_t)INT64_MAX / 2));
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
    if (s->compression == COMPRESSION_NONE) return OK;
    const text_codec *c = text_codec_of(s->compression);
    if (!c->decode->open)
        return err_hint(ERR("%s is %s data, which this build cannot decompress", s->path, c->name),
                        "install %s and build ingot again, or recompress the file as .zst or .gz",
                        c->decode->package);
    s->decoder = c->decode->open();
    s->codec = c;
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
    if (s->codec) s->codec->decode->close(s->decoder);
    str_free(&s->held);
    object_reader_close(s->object);
    if (s->fd >= 0 && strcmp(s->path, "-") != 0) close(s->fd);
    str_free(&s->damage);
    free(s->input);
    free(s);
}
