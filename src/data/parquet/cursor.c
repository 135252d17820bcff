/* Reads the pages of one column of one row group, in order, through a window on the file. */
#include <stdlib.h>
#include <string.h>

#include "parquet/parquet_internal.h"

enum {
    WINDOW_BYTES = 256 << 10,
    HEADER_BYTES = 4096,       /* few headers are longer */
    LONGEST_HEADER = 16 << 20, /* it may hold the least and the largest value */
};

struct parquet_cursor {
    const parquet_file *f;
    int group, column;
    int64_t offset, end; /* in the file, of the window's first byte that is not consumed */
    str window;          /* [at, len) is not consumed */
    size_t at;
    size_t fill_bytes; /* read into the window at once */
    int64_t row, rows;
    parquet_dictionary *dictionary;
    arrow_cursor *arrow; /* NULL: it is a Parquet file */
};

static err cursor_error(const parquet_cursor *c, const char *why) {
    return column_error(c->f, c->group, c->column, c->offset, why);
}

/* Makes the window hold at least n bytes, or all that are left. */
static err fill_window(parquet_cursor *c, size_t n) {
    size_t have = c->window.len - c->at;
    int64_t left = c->end - c->offset - (int64_t)have;
    if (have >= n || left == 0) return OK;
    if (have) memmove(c->window.text, c->window.text + c->at, have);
    c->window.len = have;
    c->at = 0;
    size_t more = (size_t)MIN((int64_t)MAX(n - have, c->fill_bytes), left);
    str_reserve(&c->window, more);
    const parquet_source *s = &c->f->source;
    TRY(s->read(s->ctx, c->offset + (int64_t)have, c->window.text + have, more));
    c->window.len += more;
    return OK;
}

static void consume_bytes(parquet_cursor *c, size_t n) {
    c->at += n;
    c->offset += (int64_t)n;
}

static const char *check_page_header(const parquet_cursor *c, const parquet_page *h) {
    size_t most = c->f->limits.page_bytes;
    if (h->plain_bytes < 0 || h->raw_bytes < 0 || h->n_values < 0 || h->definition_bytes < 0 ||
        h->repetition_bytes < 0)
        return "its header has a negative number";
    if (h->raw_bytes > c->end - c->offset) return "the page ends after its column does";
    if ((int64_t)h->definition_bytes + h->repetition_bytes > h->plain_bytes)
        return "its levels are longer than the page";
    if (h->type == PAGE_DATA || h->type == PAGE_DATA_V2) {
        if (h->n_values > c->rows - c->row) return "the column has more values than rows";
        if ((size_t)h->n_values > most / sizeof(parquet_value)) return "the page has too many rows";
    }
    return NULL;
}

bool parquet_is_too_large(const parquet_file *f, size_t bytes, char *why, size_t n) {
    char size[32], limit[32];
    size_t most = f->limits.page_bytes;
    snprintf(why, n, "it has %s; at most %s fit in memory",
             str_bytes(size, sizeof size, (double)bytes),
             str_bytes(limit, sizeof limit, (double)most));
    return bytes > most;
}

/* Reads the header at the cursor and consumes it. */
static err read_page_header(parquet_cursor *c, parquet_page *h) {
    size_t want = HEADER_BYTES;
    for (;;) {
        TRY(fill_window(c, want));
        size_t have = c->window.len - c->at;
        const uint8_t *from = (const uint8_t *)c->window.text + c->at;
        thrift_reader t = { .p = from, .end = from + have };
        *h = (parquet_page){ .type = -1, .compressed = true, .offset = c->offset };
        if (thrift_read(&t, &page_layout, h)) {
            consume_bytes(c, (size_t)(t.p - from));
            break;
        }
        if (!t.truncated || have < want) return cursor_error(c, t.wrong);
        if (want >= LONGEST_HEADER) return cursor_error(c, "the page's header is too long");
        want *= 4;
    }
    const char *wrong = check_page_header(c, h);
    if (wrong) return cursor_error(c, wrong);
    char why[128];
    size_t bytes = (size_t)MAX(h->plain_bytes, h->raw_bytes);
    if (!parquet_is_too_large(c->f, bytes, why, sizeof why)) return OK;
    return err_hint(cursor_error(c, why), PARQUET_TOO_LARGE "pages");
}

/* Reads the n bytes of a page and consumes them: what the window has, and the rest from the file. After a
 * page larger than the window, the next one is expected to be so too, and only its header is read ahead:
 * the window's bytes are copied once more than others. */
static err read_page_bytes(parquet_cursor *c, size_t n, char *to) {
    const parquet_source *s = &c->f->source;
    size_t have = MIN(c->window.len - c->at, n);
    c->fill_bytes = n > WINDOW_BYTES ? HEADER_BYTES : WINDOW_BYTES;
    if (have) memcpy(to, c->window.text + c->at, have);
    consume_bytes(c, have);
    if (have == n) return OK;
    TRY(s->read(s->ctx, c->offset, to + have, n - have));
    c->offset += (int64_t)(n - have);
    return OK;
}

static err read_page_dictionary(parquet_cursor *c, const parquet_page *h) {
    char *raw = mem_alloc_large((size_t)h->raw_bytes + 1);
    err e = read_page_bytes(c, (size_t)h->raw_bytes, raw);
    if (e) {
        free(raw);
        return e;
    }
    const char *wrong = dictionary_decode(c->f, c->group, c->column, h, raw, &c->dictionary);
    return wrong ? column_error(c->f, c->group, c->column, h->offset, wrong) : OK;
}

/* Appends the page's bytes, which follow its header in the file. */
static err add_page(parquet_cursor *c, const parquet_page *h, parquet_pages *out) {
    size_t at = out->raw.len;
    buffer_reserve(&out->raw, (size_t)h->raw_bytes + 1);
    TRY(read_page_bytes(c, (size_t)h->raw_bytes, out->raw.text + at));
    out->raw.len += (size_t)h->raw_bytes;
    parquet_page *page = &LIST_ADD(out->page, out->n, out->capacity);
    *page = *h;
    page->at = at;
    out->rows += h->n_values;
    c->row += h->n_values;
    return OK;
}

static void start_pages(const parquet_cursor *c, parquet_pages *out) {
    parquet_pages_clear(out);
    str_reserve(&out->raw, 1); /* pages may be empty */
    out->first_row = c->row;
    out->offset = c->offset;
    out->file = c->f;
    out->group = c->group;
    out->column = c->column;
}

err parquet_cursor_next(parquet_cursor *c, size_t bytes, parquet_pages *out, bool *more) {
    start_pages(c, out);
    *more = c->arrow && c->row < c->rows;
    if (c->arrow) {
        if (*more) TRY(arrow_cursor_next(c->arrow, c->row, bytes, out));
        c->row += out->rows;
        return OK;
    }
    for (size_t have = 0; have < bytes && c->row < c->rows;) {
        if (c->offset >= c->end) return cursor_error(c, "the column has fewer values than rows");
        parquet_page h;
        TRY(read_page_header(c, &h));
        if (h.type == PAGE_DICTIONARY) {
            if (c->dictionary || c->row) return cursor_error(c, "a second dictionary");
            TRY(read_page_dictionary(c, &h));
        } else if (h.type == PAGE_DATA || h.type == PAGE_DATA_V2) {
            TRY(add_page(c, &h, out));
            have += MAX((size_t)h.plain_bytes, (size_t)1);
            *more = true;
        } else {
            TRY(fill_window(c, (size_t)h.raw_bytes)); /* an index: not needed */
            consume_bytes(c, (size_t)h.raw_bytes);
        }
    }
    out->dictionary = dictionary_hold(c->dictionary);
    return OK;
}

static err open_chunk(parquet_cursor *c) {
    const parquet_file *f = c->f;
    if (c->rows == 0) return OK; /* such a row group may be without pages */
    const column_chunk *k = file_chunk(f, c->group, c->column);
    int64_t from = k->data_offset, most = f->data_end;
    if (k->dictionary_offset > 0 && k->dictionary_offset < from) from = k->dictionary_offset;
    if (from < 4 || k->bytes < 0 || from > most || k->bytes > most - from)
        return column_error(f, c->group, c->column, -1, "is outside the file");
    c->offset = from;
    c->end = from + k->bytes;
    return OK;
}

err parquet_cursor_open(const parquet_file *f, int group, int column, parquet_cursor **out) {
    parquet_cursor *c = mem_alloc(sizeof *c);
    *c = (parquet_cursor){
        .f = f,
        .group = group,
        .column = column,
        .rows = parquet_group_rows(f, group),
        .fill_bytes = WINDOW_BYTES,
    };
    err e = f->arrow ? arrow_cursor_open(f, group, column, &c->arrow) : open_chunk(c);
    if (e) {
        parquet_cursor_close(c);
        return e;
    }
    *out = c;
    return OK;
}

void parquet_cursor_close(parquet_cursor *c) {
    if (!c) return;
    arrow_cursor_close(c->arrow);
    dictionary_release(c->dictionary);
    str_free(&c->window);
    free(c);
}
