/* Splits the decompressed bytes of a segment into blocks of whole records.
 *
 *     |........block........|carry|  <- read so far; the next block begins with the carry
 *      rec rec rec ... rec   re...
 *
 * A block is about block_bytes long and grows for a longer record. A record longer than the limit
 * is split (text) or skipped piece by piece, so memory is bounded for any input. */
#include <stdlib.h>
#include <string.h>

#include "text/block_reader_internal.h"
#include "text/inputs_internal.h"

enum { PIECE_BYTES = 64 << 10 };

/* ---- where a segment begins and ends --------------------------------------------------------- */
/* Looks for a record that begins at offset `at` or later, in bytes of the file starting at
 * offset `from`. @return whether there is one; *begin is its offset. */
static bool find_record_start(const text_format *f, const char *bytes, size_t n, int64_t from,
                              int64_t at, int64_t *begin) {
    bool line_start = from == 0;
    for (size_t end = 0, more; (more = f->first_record_end(bytes + end, n - end, line_start));) {
        end += more;
        line_start = true;
        *begin = from + (int64_t)end;
        if (*begin >= at) return true;
    }
    return false;
}

/* *begin: offset of the first record that begins at `at` or later; the file size if there is
 * none. */
static err next_record(const input_file *f, int64_t at, int64_t *begin) {
    size_t n = 0, got = 1, keep = f->format->look_back;
    int64_t from = MAX(0, at - (int64_t)keep);
    char *bytes = mem_grow(NULL, PIECE_BYTES);
    byte_reader *s = NULL;
    err e = OK;
    TRY_CLEAN(byte_reader_open(f->path, COMPRESSION_NONE, from, f->size, &s));
    while (got > 0) {
        TRY_CLEAN(byte_reader_read(s, bytes + n, PIECE_BYTES - n, &got));
        n += got;
        if (find_record_start(f->format, bytes, n, from, at, begin)) goto cleanup;
        size_t held = MIN(keep, n);
        memmove(bytes, bytes + n - held, held);
        from += (int64_t)(n - held);
        n = held;
    }
    *begin = f->size;
cleanup:
    byte_reader_close(s);
    free(bytes);
    return e;
}

/* The byte range of a segment of a plain file: records that begin in it. */
static err segment_range(const text_inputs *in, int segment, int64_t *from, int64_t *to) {
    const input_segment *s = &in->segments[segment];
    const input_file *f = &in->files[s->file];
    *from = s->from, *to = s->to;
    if (s->from > 0) TRY(next_record(f, s->from, from));
    if (s->to < 0) return OK;
    if (*from >= s->to)
        *to = *from; /* a single record spans the whole range */
    else
        TRY(next_record(f, s->to, to));
    return OK;
}

/* ---- blocks ---------------------------------------------------------------------------------- */
err block_reader_open(block_reader *r, const text_inputs *in, int segment) {
    const input_file *f = &in->files[in->segments[segment].file];
    int64_t from = 0, to = -1;
    *r =
        (block_reader){ .in = in, .format = f->format, .file_bytes = f->size, .damage = f->damage };
    if (f->damage) return OK;
    if (f->format && f->format->reader && !f->pipe)
        return f->format->reader->open(r, f, &in->segments[segment]);
    if (!f->pipe) TRY(segment_range(in, segment, &from, &to));
    r->offset = from;
    TRY(byte_reader_open(f->path, f->compression, from, to, &r->from));
    byte_reader_check_frames(r->from, !f->pipe);
    if (!f->pipe) return OK; /* inspected when it was listed */
    size_t got;
    str_reserve(&r->carry, PIECE_BYTES);
    TRY(byte_reader_read(r->from, r->carry.text, PIECE_BYTES, &got));
    r->carry.len = got;
    r->offset += (int64_t)got;
    const char *name = strcmp(f->path, "-") == 0 ? "standard input" : f->path;
    if (format_of_content(r->carry.text, got)->reader || (r->format && r->format->reader))
        return err_hint(ERR("%s: a Parquet or Arrow file cannot be read from a pipe", name),
                        "save it to a file, and pass that");
    if (r->format != &format_tar) TRY(refuse_binary(name, r->carry.text, got));
    bool forced = r->format;
    r->format = r->format ? format_refine(r->format, r->carry.text, got, in->o.text_field)
                          : format_of_content(r->carry.text, got);
    bool decodes = r->format->decodes || forced;
    return decodes ? OK : refuse_other_encoding(name, r->carry.text, got);
}

void block_reader_close(block_reader *r) {
    if (r->format && r->format->reader && !r->damage) r->format->reader->close(r);
    byte_reader_close(r->from);
    str_free(&r->carry);
    str_free(&r->head);
    *r = (block_reader){ 0 };
}

/* Reads until the block has `want` bytes, or fewer at the end. */
static err fill_block(block_reader *r, raw_block *b, size_t want) {
    size_t have = b->bytes.len, got = 0;
    if (have >= want) return OK;
    str_reserve(&b->bytes, want - have);
    TRY(byte_reader_read(r->from, b->bytes.text + have, want - have, &got));
    b->bytes.len += got;
    r->offset += (int64_t)got;
    r->at_end = got < want - have;
    return OK;
}

/* Skips `left` bytes. */
static err skip_record_bytes(block_reader *r, str *piece, uint64_t left) {
    while (left > 0 && !r->at_end) {
        size_t want = MIN(left, (uint64_t)PIECE_BYTES), got;
        str_reserve(piece, want);
        TRY(byte_reader_read(r->from, piece->text, want, &got));
        r->offset += (int64_t)got;
        r->at_end = got < want;
        left -= got;
    }
    return OK;
}

/* Skips bytes up to the end of a record. Bytes after it in the last piece read remain in
 * `piece`; its first bytes may be the end of what was skipped before. */
static err skip_to_end(block_reader *r, str *piece) {
    for (size_t end = 0; !end && !r->at_end;) {
        size_t held = MIN(r->format->overhead, piece->len), got;
        memmove(piece->text, piece->text + piece->len - held, held);
        piece->len = held;
        str_reserve(piece, PIECE_BYTES);
        TRY(byte_reader_read(r->from, piece->text + held, PIECE_BYTES, &got));
        piece->len = held + got;
        r->offset += (int64_t)got;
        r->at_end = got < PIECE_BYTES;
        end = r->format->first_record_end(piece->text, piece->len, false);
        if (!end) continue;
        piece->len -= end;
        memmove(piece->text, piece->text + end, piece->len);
        return OK;
    }
    piece->len = 0;
    return OK;
}

/* Skips the record at the beginning of the block, which is too long. */
static err skip_record(block_reader *r, raw_block *b) {
    uint64_t length = r->format->length ? r->format->length(b->bytes.text, b->bytes.len) : 0;
    bad_records_add(&b->bad, b->offset, "longer than %zu bytes", r->in->o.document_bytes);
    if (length > b->bytes.len) {
        TRY(skip_record_bytes(r, &b->bytes, length - b->bytes.len));
        b->bytes.len = 0;
    } else if (length) {
        b->bytes.len -= (size_t)length;
        memmove(b->bytes.text, b->bytes.text + length, b->bytes.len);
    } else {
        TRY(skip_to_end(r, &b->bytes));
    }
    b->offset = r->offset - (int64_t)b->bytes.len;
    return OK;
}

/* Grows the block until it contains the end of a record; *end is where. */
static err find_end(block_reader *r, raw_block *b, size_t *end) {
    size_t longest = format_longest_record(r->format, r->in), want = r->in->o.block_bytes;
    for (*end = 0;;) {
        TRY(fill_block(r, b, want));
        *end = r->format->last_record_end(b->bytes.text, b->bytes.len);
        if (*end || r->at_end) return OK;
        if (b->bytes.len > longest && r->format->split_at) {
            *end = r->format->split_at(b->bytes.text, longest);
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

void raw_block_free(raw_block *b) {
    free(b->damage);
    str_free(&b->bytes);
    row_block_free(b->rows);
    *b = (raw_block){ 0 };
}

static void start_block(block_reader *r, raw_block *b) {
    free(b->damage);
    b->damage = NULL;
    b->bad = (bad_records){ 0 };
    b->bytes.len = 0;
    if (b->bytes.cap > 4 * r->in->o.block_bytes)
        str_free(&b->bytes); /* shrink after a long record */
    b->offset = r->offset - (int64_t)r->carry.len;
    str_add_bytes(&b->bytes, r->carry.text, r->carry.len);
    r->carry.len = 0;
}

/* Remembers the header, which is in the first block. */
static void take_head(block_reader *r, raw_block *b, size_t end) {
    if (b->offset == 0 && end > 0) {
        size_t n = r->format->head_length(b->bytes.text, end);
        str_add_bytes(&r->head, b->bytes.text, n ? n : end);
    }
    b->head = (text_span){ r->head.text, r->head.len };
}

err block_reader_next(block_reader *r, raw_block *b, bool *more) {
    *more = !r->done;
    if (r->done) return OK;
    if (r->damage) { /* the only block of a file that cannot be read: it has no records */
        b->damage = strdup(r->damage);
        b->lost_bytes = b->raw_bytes = r->file_bytes;
        r->done = true;
        return OK;
    }
    if (r->format->reader) {
        err e = r->format->reader->next(r, b, more);
        r->done = e || !*more;
        *more |= e != OK;
        return e;
    }
    int64_t before = byte_reader_consumed(r->from);
    size_t end;
    start_block(r, b);
    TRY(find_end(r, b, &end));
    const char *damage = r->at_end ? byte_reader_damage(r->from) : NULL;
    if (damage) b->damage = strdup(damage);
    if (r->at_end && (!damage || r->format->keeps_tail)) end = b->bytes.len;
    if (r->format->head_length) take_head(r, b, end);
    if (damage)
        b->lost_bytes = byte_reader_lost(r->from, r->file_bytes) + (int64_t)(b->bytes.len - end);
    if (!r->at_end) str_add_bytes(&r->carry, b->bytes.text + end, b->bytes.len - end);
    b->bytes.len = end;
    b->raw_bytes = byte_reader_consumed(r->from) - before;
    b->last = r->at_end && !damage;
    r->done = r->at_end;
    return OK;
}
