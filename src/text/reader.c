/* Cuts the unpacked bytes of a segment into blocks of whole records.
 *
 *     |........block........|carry|  <- read so far, the next block begins with the carry
 *      rec rec rec ... rec   re...
 *
 * A block is about block_bytes and grows for a record that is longer. One longer than the longest
 * allowed is cut (text) or passed over in pieces: what is held has a bound whatever the input. */
#include <stdlib.h>
#include <string.h>

#include "text/text_internal.h"

enum { PIECE_BYTES = 64 << 10 };

/* ---- where a segment begins and ends ----------------------------------------------------------- */
/* Looks for a record that begins at or after `at` in bytes of the file from `from` on.
 * @return whether there is one; *begin says where. */
static bool begins_in(const text_format *f, const char *bytes, size_t n, int64_t from, int64_t at,
                      int64_t *begin) {
    bool line_start = from == 0;
    for (size_t end = 0, more; (more = f->first_end(bytes + end, n - end, line_start));) {
        end += more;
        line_start = true;
        *begin = from + (int64_t)end;
        if (*begin >= at) return true;
    }
    return false;
}

/* *begin: where the first record at or after `at` begins; the file's size when none does. */
static err next_record(const input_file *f, int64_t at, int64_t *begin) {
    size_t n = 0, got = 1, keep = f->format->look_back;
    int64_t from = MAX(0, at - (int64_t)keep);
    char *bytes = mem_grow(NULL, PIECE_BYTES);
    stream *s = NULL;
    err e = OK;
    TRY_CLEAN(stream_open(f->path, PACK_NONE, from, f->size, &s));
    while (got > 0) {
        TRY_CLEAN(stream_read(s, bytes + n, PIECE_BYTES - n, &got));
        n += got;
        if (begins_in(f->format, bytes, n, from, at, begin)) goto cleanup;
        size_t held = MIN(keep, n);
        memmove(bytes, bytes + n - held, held);
        from += (int64_t)(n - held);
        n = held;
    }
    *begin = f->size;
cleanup:
    stream_close(s);
    free(bytes);
    return e;
}

err segment_range(const text_inputs *in, int segment, int64_t *from, int64_t *to) {
    const input_segment *s = &in->segments[segment];
    const input_file *f = &in->files[s->file];
    *from = s->from, *to = s->to;
    if (s->from > 0) TRY(next_record(f, s->from, from));
    if (s->to < 0) return OK;
    if (*from >= s->to)
        *to = *from; /* one record covers it all */
    else
        TRY(next_record(f, s->to, to));
    return OK;
}

/* ---- blocks ------------------------------------------------------------------------------------- */
err reader_open(reader *r, const text_inputs *in, int segment) {
    const input_file *f = &in->files[in->segments[segment].file];
    int64_t from = 0, to = -1;
    *r = (reader){ .in = in, .format = f->format };
    if (!f->pipe) TRY(segment_range(in, segment, &from, &to));
    r->offset = from;
    TRY(stream_open(f->path, f->packing, from, to, &r->from));
    if (r->format) return OK;
    size_t got;
    str_reserve(&r->carry, PIECE_BYTES);
    TRY(stream_read(r->from, r->carry.text, PIECE_BYTES, &got));
    r->carry.len = got;
    r->offset += (int64_t)got;
    r->format = format_of_content(r->carry.text, got);
    return OK;
}

void reader_close(reader *r) {
    stream_close(r->from);
    str_free(&r->carry);
    *r = (reader){ 0 };
}

/* Fills the block up to `want` bytes, or less at the end. */
static err fill(reader *r, raw_block *b, size_t want) {
    size_t have = b->bytes.len, got = 0;
    if (have >= want) return OK;
    str_reserve(&b->bytes, want - have);
    TRY(stream_read(r->from, b->bytes.text + have, want - have, &got));
    b->bytes.len += got;
    r->offset += (int64_t)got;
    r->at_end = got < want - have;
    return OK;
}

/* Passes over `left` bytes. */
static err skip_bytes(reader *r, str *piece, uint64_t left) {
    while (left > 0 && !r->at_end) {
        size_t want = MIN(left, (uint64_t)PIECE_BYTES), got;
        str_reserve(piece, want);
        TRY(stream_read(r->from, piece->text, want, &got));
        r->offset += (int64_t)got;
        r->at_end = got < want;
        left -= got;
    }
    return OK;
}

/* Passes over bytes up to the end of a record; what follows it in the last piece is left in
 * `piece`, whose first bytes may be the end of what was passed before. */
static err skip_to_end(reader *r, str *piece) {
    for (size_t end = 0; !end && !r->at_end;) {
        size_t held = MIN(r->format->overhead, piece->len), got;
        memmove(piece->text, piece->text + piece->len - held, held);
        piece->len = held;
        str_reserve(piece, PIECE_BYTES);
        TRY(stream_read(r->from, piece->text + held, PIECE_BYTES, &got));
        piece->len = held + got;
        r->offset += (int64_t)got;
        r->at_end = got < PIECE_BYTES;
        end = r->format->first_end(piece->text, piece->len, false);
        if (!end) continue;
        piece->len -= end;
        memmove(piece->text, piece->text + end, piece->len);
        return OK;
    }
    piece->len = 0;
    return OK;
}

/* The record the block begins with is too long: passes over it. */
static err skip_record(reader *r, raw_block *b) {
    uint64_t length = r->format->length ? r->format->length(b->bytes.text, b->bytes.len) : 0;
    bad_add(&b->bad, b->offset, "longer than %zu bytes", r->in->o.document_bytes);
    if (length > b->bytes.len) {
        TRY(skip_bytes(r, &b->bytes, length - b->bytes.len));
        b->bytes.len = 0;
    } else {
        TRY(skip_to_end(r, &b->bytes));
    }
    b->offset = r->offset - (int64_t)b->bytes.len;
    return OK;
}

/* Grows the block until it ends with a record's end, and says where. */
static err find_end(reader *r, raw_block *b, size_t *end) {
    size_t longest = format_longest(r->format, r->in), want = r->in->o.block_bytes;
    for (*end = 0;;) {
        TRY(fill(r, b, want));
        *end = r->format->last_end(b->bytes.text, b->bytes.len);
        if (*end || r->at_end) return OK;
        if (b->bytes.len > longest && r->format->cut) {
            *end = r->format->cut(b->bytes.text, longest);
            return OK;
        }
        if (b->bytes.len > longest) {
            TRY(skip_record(r, b));
            want = r->in->o.block_bytes;
        } else {
            want = MIN(b->bytes.len * 2, longest + 1);
        }
    }
}

static void start_block(reader *r, raw_block *b) {
    free(b->damage);
    b->damage = NULL;
    b->bad = (bad_records){ 0 };
    b->bytes.len = 0;
    if (b->bytes.cap > 4 * r->in->o.block_bytes) str_free(&b->bytes); /* a long record has passed */
    b->offset = r->offset - (int64_t)r->carry.len;
    str_add_bytes(&b->bytes, r->carry.text, r->carry.len);
    r->carry.len = 0;
}

err reader_cut(reader *r, raw_block *b, bool *more) {
    *more = !r->done;
    if (r->done) return OK;
    int64_t before = stream_taken(r->from);
    size_t end;
    start_block(r, b);
    TRY(find_end(r, b, &end));
    const char *damage = stream_damage(r->from);
    if (damage) b->damage = strdup(damage);
    if (r->at_end && (!damage || r->format->tails)) end = b->bytes.len;
    if (!r->at_end) str_add_bytes(&r->carry, b->bytes.text + end, b->bytes.len - end);
    b->bytes.len = end;
    b->raw_bytes = stream_taken(r->from) - before;
    r->done = r->at_end;
    return OK;
}
