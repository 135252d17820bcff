/* Parquet and Arrow as inputs: a row is a document. src/data/parquet reads columns; here they become documents.
 * Comments about row groups apply to the record batches of Arrow, too.
 *
 *     under the read lock     pages of the text, as they are in the file; pages of other columns, decoded
 *     in the worker           pages of the text decoded, documents put together
 *
 * A block is the rows of some pages of the text column, a megabyte or so. The other columns are small,
 * and one of their pages usually covers many blocks; so each is decoded once, by whichever worker reads
 * it, and shared by reference count. The columns' pages do not begin at the same rows:
 *
 *     text   |-- page --|-- page --|-- page --|-- page --|
 *              block 0    block 1    block 2    block 3
 *     id     |-------- page ---------|------- page ------|    blocks 0 to 2; blocks 2 and 3
 *
 * A segment is a run of row groups. A damaged page of the text loses its rows; one whose header is
 * damaged, or one of another column, the rest of its row group. Lost rows are counted as records that
 * could not be read. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "parquet/parquet.h"
#include "store/store.h"
#include "text/block_reader_internal.h"
#include "text/inputs_internal.h"

/* ---- the file and its columns ---------------------------------------------------------------- */
typedef struct side_column {
    int column;
    int field;        /* FIELD_ID...; FIELDS: any other, written as JSON */
    text_span member; /* `, "name": ` for these; arena */
} side_column;

typedef struct parquet_input {
    arena *memory;
    parquet_source source;
    parquet_file *file;
    int fd;                /* -1: it is an object */
    object_reader *object; /* NULL: it is a file */
    int text;              /* column */
    side_column *side;     /* [n_side] */
    int n_side;
    bool damaged; /* opening it failed because it is truncated or changed */
} parquet_input;

static err parquet_read_at(void *ctx, int64_t offset, void *to, size_t n) {
    const parquet_input *p = ctx;
    if (p->object) return object_reader_read_at(p->object, offset, to, n);
    for (char *at = to; n > 0;) {
        ssize_t got = pread(p->fd, at, n, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0)
            return err_hint(ERR("cannot read %s at byte %lld: %s", p->source.name,
                                (long long)offset, got < 0 ? strerror(errno) : "it became shorter"),
                            "check the file and the disk it is on");
        at += got;
        offset += got;
        n -= (size_t)got;
    }
    return OK;
}

/* @return the columns that could be the text, separated by commas; owned. *n of them. */
static char *list_string_columns(const parquet_file *f, int *n, int *last) {
    str list = { 0 };
    *n = 0;
    str_add(&list, "%s", "");
    for (int i = 0; i < parquet_columns(f); i++) {
        const parquet_column *c = parquet_column_at(f, i);
        if (c->repeated || c->kind != PARQUET_STRING) continue;
        str_add(&list, "%s%s", list.len ? ", " : "", c->name);
        ++*n;
        *last = i;
    }
    return list.text;
}

/* A list or a struct is not a column, but has columns whose names begin with its own. */
static err refuse_nested(const parquet_file *f, const char *path, const char *name) {
    size_t n = strlen(name);
    for (int i = 0; i < parquet_columns(f); i++) {
        const parquet_column *c = parquet_column_at(f, i);
        if (strncmp(c->name, name, n) != 0 || c->name[n] != '.') continue;
        return err_hint(ERR("%s: the column \"%s\" is %s, not a string", path, name,
                            c->repeated ? "a list" : "a struct"),
                        c->repeated ? "name a column with one text per row: --text-column NAME"
                                    : "name the member with the text: --text-column %s",
                        c->name);
    }
    return OK;
}

static err choose_text(const text_inputs *in, parquet_input *p, const char *path, bool tell) {
    int n = 0, last = -1;
    p->text = parquet_find_column(p->file, in->o.text_field);
    if (p->text >= 0) {
        const parquet_column *c = parquet_column_at(p->file, p->text);
        if (!c->repeated && c->kind >= PARQUET_STRING) return OK;
        return err_hint(ERR("%s: the column \"%s\" is %s, not a string", path, c->name,
                            c->repeated ? "a list" : parquet_kind_name(c->kind)),
                        "name the column with the text: --text-column NAME");
    }
    TRY(refuse_nested(p->file, path, in->o.text_field));
    char *list = list_string_columns(p->file, &n, &last);
    err e = OK;
    if (n == 1 && !in->text_named) {
        p->text = last;
        if (tell)
            log_info("%s: no column is called \"%s\"; reading the only column of strings, \"%s\"",
                     path, in->o.text_field, list);
    } else if (n == 0) {
        e = ERR("%s: no column is called \"%s\", and no other one has strings", path,
                in->o.text_field);
    } else {
        e = err_hint(ERR("%s: no column is called \"%s\"; the columns of strings are: %s", path,
                         in->o.text_field, list),
                     "name the column with the text: --text-column NAME");
    }
    free(list);
    return e;
}

/* @return the field that a column is; FIELDS: none. */
static int parquet_field(const text_inputs *in, const char *name) {
    for (int i = 0; i < in->n_wants; i++)
        if (in->wants[i].result != FIELD_TEXT && strcmp(in->wants[i].path, name) == 0)
            return in->wants[i].result;
    return FIELDS;
}

static text_span member_name(arena *memory, const char *name) {
    str s = { 0 };
    str_add(&s, ", ");
    text_json_string(name, strlen(name), &s);
    str_add(&s, ": ");
    text_span made = { arena_strdup(memory, s.text), s.len };
    str_free(&s);
    return made;
}

static void choose_side_columns(const text_inputs *in, parquet_input *p) {
    p->side = arena_alloc(p->memory, (size_t)parquet_columns(p->file) * sizeof *p->side);
    for (int i = 0; i < parquet_columns(p->file); i++) {
        const parquet_column *c = parquet_column_at(p->file, i);
        int field = parquet_field(in, c->name);
        bool valid = is_clean_utf8(c->name, strlen(c->name));
        if (i == p->text || c->repeated || c->kind == PARQUET_OTHER) continue;
        if (field == FIELDS &&
            (!in->all_members || !valid || doc_has_member(text_span_of(c->name))))
            continue;
        if (field == FIELDS && c->kind == PARQUET_BYTES) continue;
        p->side[p->n_side++] = (side_column){ i, field, member_name(p->memory, c->name) };
    }
}

static void input_close(parquet_input *p) {
    if (!p) return;
    parquet_close(p->file);
    object_reader_close(p->object);
    if (p->fd >= 0) close(p->fd);
    arena_free(p->memory);
    free(p);
}

static err open_columns(const text_inputs *in, const input_file *f, bool tell, parquet_input *p) {
    if (store_is_url(f->path))
        TRY(object_reader_open(f->path, 0, -1, &p->object));
    else
        p->fd = open(f->path, O_RDONLY | O_CLOEXEC);
    if (p->fd < 0 && !p->object)
        return err_hint(ERR("cannot open %s: %s", f->path, strerror(errno)),
                        "check the path and its permissions");
    p->source = (parquet_source){ f->path, f->size, p, parquet_read_at };
    TRY(parquet_open(&p->source, &(parquet_limits){ in->o.page_bytes }, &p->damaged, &p->file));
    TRY(choose_text(in, p, f->path, tell));
    choose_side_columns(in, p);
    TRY(parquet_check_column(p->file, p->text));
    for (int i = 0; i < p->n_side; i++) TRY(parquet_check_column(p->file, p->side[i].column));
    return OK;
}

/* @param damaged set if it fails because the file is damaged. */
static err input_open(const text_inputs *in, const input_file *f, bool tell, bool *damaged,
                      parquet_input **out) {
    parquet_input *p = mem_alloc(sizeof *p);
    p->memory = arena_new();
    p->fd = -1;
    err e = open_columns(in, f, tell, p);
    *damaged = p->damaged;
    if (e) {
        input_close(p);
        return e;
    }
    *out = p;
    return OK;
}

/* ---- segments -------------------------------------------------------------------------------- */
/* Remembers which columns are not carried over into what transforms write, of the first file that has any. */
static void note_left_out(text_inputs *in, const parquet_input *p) {
    static const char *const names[] = { "lists: ", "binary: ",
                                         "decimals, times of day or other types: " };
    str list = { 0 };
    for (int kind = 0; kind < (int)COUNT_OF(names) && !in->left_out; kind++) {
        const char *before = names[kind];
        for (int i = 0; i < parquet_columns(p->file); i++) {
            const parquet_column *c = parquet_column_at(p->file, i);
            bool other = c->kind == PARQUET_OTHER, bytes = c->kind == PARQUET_BYTES;
            if (i == p->text || parquet_field(in, c->name) != FIELDS) continue;
            if (!(c->repeated ? kind == 0 : bytes ? kind == 1 : other && kind == 2)) continue;
            const char *nested =
                strstr(c->name, ".list."); /* the list itself has the name before it */
            int n = nested ? (int)(nested - c->name) : (int)strlen(c->name);
            str_add(&list, "%s%s%.*s", list.len && before == names[kind] ? "; " : "", before, n,
                    c->name);
            before = ", ";
        }
    }
    if (list.len) {
        in->left_out = arena_strdup(in->memory, list.text);
        in->left_out_from = p->source.name;
    }
    str_free(&list);
}

/* A file that is damaged as a whole is skipped and counted, as the damaged parts of others are. */
static err skip_damaged(text_inputs *in, const input_file *f, err e) {
    const char *why = err_message(e);
    if (str_starts(why, f->path)) why += strlen(f->path) + 1;
    if (str_starts(why, "is ")) why += 3;
    err refused = inputs_skip_file(in, why);
    err_free(e);
    if (!refused) inputs_add_segment(in, 0, -1, f->size);
    return refused;
}

/* Row groups go into a segment until it is large enough. */
static err add_row_groups(text_inputs *in, const input_file *f) {
    parquet_input *p = NULL;
    bool damaged = false;
    if (f->compression != COMPRESSION_NONE)
        return err_hint(ERR("%s is a compressed Parquet file or Arrow file", f->path),
                        "decompress it first; both formats can be compressed inside");
    err e = input_open(in, f, true, &damaged, &p);
    if (e) return damaged ? skip_damaged(in, f, e) : e;
    note_left_out(in, p);
    int n = parquet_groups(p->file), first = 0;
    int64_t bytes = 0;
    for (int g = 0; g < n; g++) {
        int64_t more = parquet_group_bytes(p->file, g);
        if (g > first && bytes + more > (int64_t)in->o.segment_bytes) {
            inputs_add_segment(in, first, g, bytes);
            first = g;
            bytes = 0;
        }
        bytes += more;
    }
    inputs_add_segment(in, first, n, bytes);
    input_close(p);
    return OK;
}

/* ---- blocks ---------------------------------------------------------------------------------- */
/* A decoded page of a side column, shared by the blocks whose rows it covers. */
typedef struct side_page {
    atomic_int refs;
    parquet_pages pages;
} side_page;

static void side_page_release(side_page *s) {
    if (!s || atomic_fetch_sub(&s->refs, 1) > 1) return;
    parquet_pages_free(&s->pages);
    free(s);
}

typedef struct row_side {
    int side;
    side_page *page;
} row_side;
struct row_block {
    const parquet_input *input; /* borrowed from the reader */
    parquet_pages text;
    row_side *sides; /* by column, then by row */
    int n_sides, sides_capacity;
};

static void release_sides(row_block *b) {
    for (int i = 0; i < b->n_sides; i++) side_page_release(b->sides[i].page);
    b->n_sides = 0;
}

void row_block_free(row_block *b) {
    if (!b) return;
    release_sides(b);
    free(b->sides);
    parquet_pages_free(&b->text);
    free(b);
}

typedef struct side_cursor {
    parquet_cursor *cursor;
    side_page *last; /* the page read last */
} side_cursor;
struct row_reader {
    parquet_input *input;
    int group, end;       /* the row group being read, and the first beyond the segment */
    parquet_cursor *text; /* NULL: between row groups */
    side_cursor *side;    /* [n_side] */
};

static void close_row_group(row_reader *r) {
    parquet_cursor_close(r->text);
    r->text = NULL;
    for (int i = 0; i < r->input->n_side; i++) {
        parquet_cursor_close(r->side[i].cursor);
        side_page_release(r->side[i].last);
        r->side[i] = (side_cursor){ 0 };
    }
    r->group++;
}

static void add_side(row_block *b, int side, side_page *page) {
    atomic_fetch_add(&page->refs, 1);
    LIST_ADD(b->sides, b->n_sides, b->sides_capacity) = (row_side){ side, page };
}

static int64_t side_page_end(const side_page *s) {
    return s ? s->pages.first_row + s->pages.rows : 0;
}

static err read_side_page(side_cursor *c) {
    enum { SIDE_BYTES = 64 << 10 };
    side_page *page = mem_alloc(sizeof *page);
    bool more = false;
    atomic_store(&page->refs, 1);
    err e = parquet_cursor_next(c->cursor, SIDE_BYTES, &page->pages, &more);
    BUG_IF(!e && !more); /* it has as many rows as the text */
    if (!e) e = parquet_decode(&page->pages);
    if (e) {
        side_page_release(page);
        return e;
    }
    side_page_release(c->last);
    c->last = page;
    return OK;
}

/* Adds the pages of a side column that cover the rows of the block's text. */
static err cover_rows(row_reader *r, int side, row_block *b) {
    side_cursor *c = &r->side[side];
    int64_t end = b->text.first_row + b->text.rows;
    if (side_page_end(c->last) > b->text.first_row) add_side(b, side, c->last);
    while (side_page_end(c->last) < end) {
        TRY(read_side_page(c));
        add_side(b, side, c->last);
    }
    return OK;
}

static err read_rows(row_reader *r, size_t bytes, row_block *b, bool *more) {
    const parquet_input *p = r->input;
    release_sides(b);
    *more = true;
    if (!r->text) {
        TRY(parquet_cursor_open(p->file, r->group, p->text, &r->text));
        for (int i = 0; i < p->n_side; i++)
            TRY(parquet_cursor_open(p->file, r->group, p->side[i].column, &r->side[i].cursor));
    }
    TRY(parquet_cursor_next(r->text, bytes, &b->text, more));
    for (int i = 0; i < p->n_side && *more; i++) TRY(cover_rows(r, i, b));
    return OK;
}

/* The warning names the file already. */
static void note_lost_rows(bad_records *bad, const row_block *b, err e) {
    const char *why = err_message(e), *name = b->input->source.name;
    if (str_starts(why, name)) why += strlen(name) + 2;
    bad_records_add(bad, b->text.offset, "%s", why);
}

/* The rest of the row group is lost. */
static void lose_group(row_reader *r, row_block *b, err e, bad_records *bad) {
    int64_t rows = parquet_group_rows(r->input->file, r->group);
    int64_t left = rows - (r->text ? b->text.first_row : 0);
    note_lost_rows(bad, b, e);
    bad->n += MAX(left, (int64_t)1) - 1;
    err_free(e);
    release_sides(b);
    parquet_pages_clear(&b->text);
    close_row_group(r);
}

static err next_row_block(block_reader *from, raw_block *raw, bool *more) {
    row_reader *r = from->rows;
    if (!raw->rows) raw->rows = mem_alloc(sizeof *raw->rows);
    row_block *b = raw->rows;
    b->input = r->input;
    raw->bad = (bad_records){ 0 };
    raw->raw_bytes = 0;
    const parquet_file *f = r->input->file;
    for (*more = false; r->group < r->end && !*more;) {
        bool rows = false;
        b->text.first_row = 0;
        err e = read_rows(r, from->in->o.block_bytes, b, &rows);
        if (e && *err_remedy(e)) return e; /* of the system, or a limit: not damage */
        if (e) {
            lose_group(r, b, e, &raw->bad);
            *more = true; /* a block without rows carries the message */
        } else if (rows) {
            double share = (double)b->text.rows / (double)parquet_group_rows(f, r->group);
            raw->raw_bytes = (int64_t)(share * (double)parquet_group_bytes(f, r->group));
            raw->offset = b->text.offset;
            *more = true;
        } else {
            close_row_group(r);
        }
    }
    return OK;
}

static err open_rows(block_reader *from, const input_file *f, const input_segment *s) {
    row_reader *r = mem_alloc(sizeof *r);
    from->rows = r;
    bool damaged;
    TRY(input_open(from->in, f, false, &damaged, &r->input));
    r->group = (int)s->from;
    r->end = MIN((int)s->to, parquet_groups(r->input->file));
    r->side = mem_alloc((size_t)(r->input->n_side + 1) * sizeof *r->side);
    return OK;
}

static void close_rows(block_reader *from) {
    row_reader *r = from->rows;
    if (!r) return;
    if (r->input) close_row_group(r);
    input_close(r->input);
    free(r->side);
    free(r);
}

/* ---- values as text -------------------------------------------------------------------------- */
static int print_time(char *to, size_t n, int64_t count, int64_t per_second, int digits) {
    int64_t seconds = count / per_second, rest = count % per_second;
    if (rest < 0) rest += per_second, seconds--;
    time_t t = (time_t)seconds;
    struct tm tm;
    if (!gmtime_r(&t, &tm)) return 0;
    size_t used = strftime(to, n, "%Y-%m-%dT%H:%M:%S", &tm);
    if (rest) used += (size_t)snprintf(to + used, n - used, ".%0*lld", digits, (long long)rest);
    return (int)used + snprintf(to + used, n - used, "Z");
}

/* Writes a number, date or time as text. @return bytes; 0: it cannot be written. */
static int print_value(parquet_kind kind, const parquet_value *v, char *to, size_t n) {
    struct tm tm;
    time_t t;
    switch (kind) {
    case PARQUET_BOOL: return snprintf(to, n, "%s", v->integer ? "true" : "false");
    case PARQUET_INTEGER: return snprintf(to, n, "%lld", (long long)v->integer);
    case PARQUET_UNSIGNED: return snprintf(to, n, "%llu", (unsigned long long)v->integer);
    case PARQUET_FLOAT: return isfinite(v->real) ? snprintf(to, n, "%.9g", v->real) : 0;
    case PARQUET_DOUBLE: return isfinite(v->real) ? snprintf(to, n, "%.17g", v->real) : 0;
    case PARQUET_MILLIS: return print_time(to, n, v->integer, 1000, 3);
    case PARQUET_MICROS: return print_time(to, n, v->integer, 1000000, 6);
    case PARQUET_NANOS: return print_time(to, n, v->integer, 1000000000, 9);
    case PARQUET_DATE:
        t = (time_t)v->integer * 86400;
        return gmtime_r(&t, &tm) ? (int)strftime(to, n, "%Y-%m-%d", &tm) : 0;
    default: return 0;
    }
}

enum { LONGEST_NUMBER = 64 };

/* Reads the value as the text of a field. @return false if the document is refused. */
static bool field_text(parser *p, parquet_kind kind, const parquet_value *v, text_span *out,
                       bool *repaired) {
    if (!v->at) return true;
    if (kind >= PARQUET_STRING) {
        *out = (text_span){ v->at, v->length };
        return parser_check_utf8(p, out, repaired);
    }
    char *to = spool_reserve(&p->strings, LONGEST_NUMBER);
    *out = spool_commit(&p->strings, (size_t)print_value(kind, v, to, LONGEST_NUMBER));
    return true;
}

static bool is_metadata(const side_column *c) { return span_is(c->member, ", \"metadata\": "); }

/* Appends a JSON object as it is, or its members if it is the "metadata" that transforms write. @return false
 * if the text is not an object. */
static bool add_json_column(parser *p, const side_column *c, text_span text) {
    bool odd = false;
    if (json_scan(text.at, text.len, NULL, 0, NULL, &odd) || odd) return false;
    if (memchr(text.at, '\n', text.len) || memchr(text.at, '\r', text.len)) return false;
    if (is_metadata(c)) {
        json_add_others(text.at, text.len, NULL, 0, &p->body);
    } else {
        str_add_bytes(&p->body, c->member.at, c->member.len);
        str_add_bytes(&p->body, text.at, text.len);
    }
    return true;
}

/* Appends a value as a JSON member. @return false if the document is refused. */
static bool add_column_member(parser *p, const side_column *c, parquet_kind kind,
                              const parquet_value *v, bool *repaired) {
    text_span text = { 0 };
    if (!field_text(p, kind, v, &text, repaired)) return false;
    if (v->at && kind == PARQUET_JSON && add_json_column(p, c, text)) return true;
    if (!v->at && kind == PARQUET_JSON && is_metadata(c)) return true;
    str_add_bytes(&p->body, c->member.at, c->member.len);
    if (!v->at || (kind < PARQUET_STRING && text.len == 0))
        str_add(&p->body, "null");
    else if (kind >= PARQUET_DATE)
        text_json_string(text.at, text.len, &p->body);
    else
        str_add_bytes(&p->body, text.at, text.len);
    return true;
}

/* ---- documents ------------------------------------------------------------------------------- */
/* Fills in fields and other members from the side columns. @param at where the worker is in the side pages of the block: for
 * each column, the page of the current row */
static bool add_sides(parser *p, const row_block *b, int *at, int64_t row, text_doc *d,
                      bool *repaired) {
    text_span *const field[FIELDS] = { [FIELD_ID] = &d->id,
                                       [FIELD_URL] = &d->url,
                                       [FIELD_SOURCE] = &d->source,
                                       [FIELD_LICENSE] = &d->license };
    p->body.len = 0;
    for (int i = 0; i < b->input->n_side; i++) {
        const side_column *c = &b->input->side[i];
        parquet_kind kind = parquet_column_at(b->input->file, c->column)->kind;
        while (row >= side_page_end(b->sides[at[i]].page)) at[i]++;
        const parquet_pages *page = &b->sides[at[i]].page->pages;
        const parquet_value *v = &page->values[row - page->first_row];
        if (!(c->field == FIELDS ? add_column_member(p, c, kind, v, repaired)
                                 : field_text(p, kind, v, field[c->field], repaired)))
            return false;
    }
    if (p->body.len) d->members = spool_copy(&p->strings, p->body.text, p->body.len);
    return true;
}

static void add_parquet_row(parser *p, const row_block *b, int *at, int64_t i) {
    const parquet_value *v = &b->text.values[i];
    text_doc d = { 0 };
    bool repaired = false;
    if (parquet_is_lost(v)) {
        p->bad.n++;
        return;
    }
    if (v->at && !parser_check_length(p, v->length, b->text.offset)) return;
    if (v->at) d.text = (text_span){ v->at, v->length };
    if (!parser_check_utf8(p, &d.text, &repaired)) return;
    if (add_sides(p, b, at, b->text.first_row + i, &d, &repaired))
        parser_add_document(p, &d, repaired);
}

static void parse_parquet_rows(parser *p, const raw_block *raw) {
    row_block *b = raw->rows;
    err e = parquet_decode(&b->text);
    if (e) {
        note_lost_rows(&p->bad, b, e);
        p->bad.n--; /* the rows count themselves */
        err_free(e);
    }
    int *at = mem_alloc((size_t)(b->input->n_side + 1) * sizeof *at);
    for (int i = b->n_sides; i-- > 0;) at[b->sides[i].side] = i;
    for (int64_t i = 0; i < b->text.rows; i++) add_parquet_row(p, b, at, i);
    free(at);
}

static const format_reader parquet_reader = { add_row_groups, open_rows, next_row_block,
                                              close_rows };
const text_format format_parquet = { .name = "parquet",
                                     .parse = parse_parquet_rows,
                                     .reader = &parquet_reader };
