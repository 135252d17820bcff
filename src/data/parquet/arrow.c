/* Arrow files (Feather version 2) and Arrow streams: schema and record batches. A record batch serves as a
 * row group, and each of its columns as one page, or as several if it can be read in parts.
 *
 *     stream   messages: the schema, then dictionaries and record batches, then an end mark
 *     file     "ARROW1" 0 0, a stream, a footer, the length of the footer (u32), "ARROW1"
 *     message  0xFFFFFFFF, length of the metadata (u32), metadata (FlatBuffers), body
 *
 * The footer repeats the schema, and lists the offsets of dictionaries and record batches. The bytes between them
 * are not read: Polars writes a schema there that is not a message. A body holds the buffers of all columns. Which ones belong to a column follows from the
 * types in front of it, so every type has a row in the table of types, and those not read too. */
#include <stdlib.h>
#include <string.h>

#include "parquet/parquet_internal.h"

static const char FILE_MAGIC[] = "ARROW1", STREAM_MAGIC[] = "\xFF\xFF\xFF\xFF";
static const size_t METADATA_BYTES = (size_t)1 << 30, NAMES_BYTES = (size_t)64 << 20;
enum { MAGIC_BYTES = 6, START_BYTES = 8, TAIL_BYTES = 10, MOST_DEPTH = 64, MOST_FIELDS = 1 << 17 };
enum { VERSION_4 = 3, VERSION_5 = 4 };

/* The members of the tables that are read, by their ids. */
enum { MESSAGE_VERSION, MESSAGE_HEADER_TYPE, MESSAGE_HEADER, MESSAGE_BODY_BYTES };
enum { HEADER_SCHEMA = 1, HEADER_DICTIONARY, HEADER_BATCH };
enum { FOOTER_VERSION, FOOTER_SCHEMA, FOOTER_DICTIONARIES, FOOTER_BATCHES, BLOCK_BYTES = 24 };
enum { SCHEMA_ENDIANNESS, SCHEMA_FIELDS };
enum { FIELD_NAME, FIELD_NULLABLE, FIELD_TYPE, FIELD_TYPE_TABLE, FIELD_DICTIONARY, FIELD_CHILDREN };
enum { INT_WIDTH, INT_SIGNED };
enum { ENCODING_ID, ENCODING_INDEX };
enum { DICTIONARY_ID, DICTIONARY_DATA, DICTIONARY_DELTA };
enum { BATCH_ROWS, BATCH_NODES, BATCH_BUFFERS, BATCH_COMPRESSION, BATCH_VARIADIC };

/* ---- types ----------------------------------------------------------------------------------- */
enum { TYPE_INT = 2, TYPE_FLOAT = 3, TYPE_DATE = 8, TYPE_TIMESTAMP = 10, TYPE_UNION = 14 };
/* Kinds of a type's children. */
typedef enum { CHILDREN_NONE, CHILDREN_MEMBERS, CHILDREN_ITEMS, CHILDREN_HIDDEN } children_role;
static const struct arrow_type {
    int buffers;
    parquet_kind kind;
    arrow_layout layout;
    int width;
    children_role children;
} types[] = {
    [1] = { 0 }, /* Null */
    [TYPE_INT] = { 2, PARQUET_INTEGER, LAYOUT_FIXED },
    [TYPE_FLOAT] = { 2, PARQUET_FLOAT, LAYOUT_FIXED },
    [4] = { 3, PARQUET_BYTES, LAYOUT_BYTES, 32 },  /* Binary */
    [5] = { 3, PARQUET_STRING, LAYOUT_BYTES, 32 }, /* Utf8 */
    [6] = { 2, PARQUET_BOOL, LAYOUT_FIXED, 1 },
    [7] = { 2 }, /* Decimal */
    [TYPE_DATE] = { 2, PARQUET_DATE, LAYOUT_FIXED },
    [9] = { 2 }, /* Time */
    [TYPE_TIMESTAMP] = { 2, PARQUET_MILLIS, LAYOUT_FIXED, 64 },
    [11] = { 2 },                               /* Interval */
    [12] = { 2, .children = CHILDREN_ITEMS },   /* List */
    [13] = { 1, .children = CHILDREN_MEMBERS }, /* Struct */
    [TYPE_UNION] = { 1, .children = CHILDREN_HIDDEN },
    [15] = { 2 },                                    /* FixedSizeBinary */
    [16] = { 1, .children = CHILDREN_ITEMS },        /* FixedSizeList */
    [17] = { 2, .children = CHILDREN_ITEMS },        /* Map */
    [18] = { 2 },                                    /* Duration */
    [19] = { 3, PARQUET_BYTES, LAYOUT_BYTES, 64 },   /* LargeBinary */
    [20] = { 3, PARQUET_STRING, LAYOUT_BYTES, 64 },  /* LargeUtf8 */
    [21] = { 2, .children = CHILDREN_ITEMS },        /* LargeList */
    [22] = { 0, .children = CHILDREN_HIDDEN },       /* RunEndEncoded */
    [23] = { 2, PARQUET_BYTES, LAYOUT_VIEWS, 128 },  /* BinaryView */
    [24] = { 2, PARQUET_STRING, LAYOUT_VIEWS, 128 }, /* Utf8View */
    [25] = { 3, .children = CHILDREN_ITEMS },        /* ListView */
    [26] = { 3, .children = CHILDREN_ITEMS },        /* LargeListView */
};

static void set_integer(arrow_field *f, const flat_table *type) {
    int64_t width = flat_number(type, INT_WIDTH, 4, 0);
    f->is_unsigned = !flat_number(type, INT_SIGNED, 1, 0);
    f->kind = f->is_unsigned ? PARQUET_UNSIGNED : PARQUET_INTEGER;
    f->width = width == 8 || width == 16 || width == 32 || width == 64 ? (int)width : 0;
}

static void set_unit(arrow_field *f, int64_t type, const flat_table *t) {
    static const parquet_kind reals[] = { PARQUET_OTHER, PARQUET_FLOAT, PARQUET_DOUBLE },
                              times[] = { PARQUET_MILLIS, PARQUET_MILLIS, PARQUET_MICROS,
                                          PARQUET_NANOS };
    int64_t unit = flat_number(t, 0, 2, type == TYPE_DATE);
    if (type == TYPE_FLOAT) {
        f->kind = unit >= 0 && unit < (int64_t)COUNT_OF(reals) ? reals[unit] : PARQUET_OTHER;
        f->width = f->kind == PARQUET_DOUBLE ? 64 : 32;
    } else if (type == TYPE_DATE) { /* in days, or in milliseconds */
        f->width = unit ? 64 : 32;
        f->divide = unit ? 86400000 : 0;
    } else if (type == TYPE_TIMESTAMP) {
        f->kind = unit >= 0 && unit < (int64_t)COUNT_OF(times) ? times[unit] : PARQUET_OTHER;
        f->multiply = unit ? 0 : 1000; /* of seconds */
    }
}

/* The batches hold indices; the values are in the dictionary. Only strings are read. */
static void set_dictionary(arrow_field *f, const flat_table *encoding) {
    flat_table index = flat_child(encoding, ENCODING_INDEX);
    parquet_kind kind = f->kind >= PARQUET_STRING ? f->kind : PARQUET_OTHER;
    f->has_dictionary = true;
    f->dictionary = flat_number(encoding, ENCODING_ID, 8, 0);
    f->value_layout = f->layout;
    f->value_width = f->width;
    f->layout = LAYOUT_FIXED;
    if (index.at)
        set_integer(f, &index);
    else
        f->width = 32;
    f->kind = kind;
}

/* ---- the schema ------------------------------------------------------------------------------ */
typedef struct field_walk {
    parquet_file *f;
    int capacity;
    size_t path_bytes;
    const char *wrong;
} field_walk;

static int64_t field_buffers(const arrow_file *a, int64_t type, const flat_table *t) {
    bool dense = type == TYPE_UNION && flat_number(t, 0, 2, 0);
    bool validity = type == TYPE_UNION && a->version < VERSION_5;
    return types[type].buffers + dense + validity;
}

/* @return the field's children; none of a field with a dictionary, whose children are in it. */
static flat_vector add_field(field_walk *w, const flat_table *t, arrow_field *out,
                             children_role *role) {
    arrow_file *a = w->f->arrow;
    int64_t type = flat_number(t, FIELD_TYPE, 1, 0);
    flat_table detail = flat_child(t, FIELD_TYPE_TABLE), code = flat_child(t, FIELD_DICTIONARY);
    if (type <= 0 || type >= (int64_t)COUNT_OF(types)) {
        w->wrong = "a column has an unknown type";
        return (flat_vector){ 0 };
    }
    if (!out->hidden) {
        out->kind = types[type].kind;
        out->layout = types[type].layout;
    }
    out->width = types[type].width;
    out->first_buffer = a->n_buffers;
    out->views_before = a->n_views;
    if (type == TYPE_INT) set_integer(out, &detail);
    set_unit(out, type, &detail);
    *role = code.at ? CHILDREN_NONE : types[type].children;
    if (code.at)
        set_dictionary(out, &code);
    else
        a->n_views += types[type].layout == LAYOUT_VIEWS;
    a->n_buffers += code.at ? 2 : (int)field_buffers(a, type, &detail);
    if (out->width == 0 || out->hidden) out->kind = PARQUET_OTHER;
    return code.at ? (flat_vector){ 0 } : flat_items(t, FIELD_CHILDREN, 4);
}

static void walk_fields(field_walk *w, const flat_table *t, const arrow_field *above, int parent,
                        int depth) {
    arrow_file *a = w->f->arrow;
    if (depth == MOST_DEPTH || a->n_fields == MOST_FIELDS) {
        w->wrong = depth == MOST_DEPTH ? "the schema is nested too deeply" : "too many columns";
        return;
    }
    const char *name = flat_text(t, FIELD_NAME, w->f->memory);
    w->path_bytes += (above->path ? strlen(above->path) + 1 : 0) + strlen(name);
    if (w->path_bytes > NAMES_BYTES) {
        w->wrong = "the names of the columns are too long";
        return;
    }
    a->fields = mem_reserve(a->fields, &w->capacity, a->n_fields, sizeof *a->fields);
    children_role role = CHILDREN_NONE;
    arrow_field here = { .parent = parent, .repeated = above->repeated, .hidden = above->hidden };
    here.path = above->path ? arena_printf(w->f->memory, "%s.%s", above->path, name) : name;
    flat_vector children = add_field(w, t, &here, &role);
    here.is_leaf = children.n == 0;
    int index = a->n_fields;
    a->fields[a->n_fields++] = here;
    here.repeated |= role == CHILDREN_ITEMS;
    here.hidden |= role == CHILDREN_HIDDEN || role == CHILDREN_NONE;
    for (size_t i = 0; i < children.n && !w->wrong && !children.in->damaged; i++) {
        flat_table child = flat_item(&children, i);
        walk_fields(w, &child, &here, index, depth + 1);
    }
}

/* The columns are the leaves of the schema. */
static void list_leaves(parquet_file *f) {
    arrow_file *a = f->arrow;
    f->leaves = arena_alloc(f->memory, ((size_t)a->n_fields + 1) * sizeof *f->leaves);
    a->field_of_leaf = arena_alloc(f->memory, ((size_t)a->n_fields + 1) * sizeof *a->field_of_leaf);
    for (int i = 0; i < a->n_fields; i++) {
        const arrow_field *field = &a->fields[i];
        if (!field->is_leaf) continue;
        a->field_of_leaf[f->n_leaves] = i;
        f->leaves[f->n_leaves++] =
            (leaf){ .public = { field->path, field->kind, field->repeated } };
    }
}

static const char *take_arrow_schema(parquet_file *f, int64_t version, const flat_table *schema) {
    field_walk w = { .f = f };
    flat_vector fields = flat_items(schema, SCHEMA_FIELDS, 4);
    if (f->leaves) return "it has a second schema";
    if (version < VERSION_4 || version > VERSION_5)
        return "its metadata has a version other than 4 and 5";
    if (flat_number(schema, SCHEMA_ENDIANNESS, 2, 0) != 0) return "it is big-endian";
    f->arrow->version = (int)version;
    for (size_t i = 0; i < fields.n && !w.wrong && !schema->in->damaged; i++) {
        flat_table field = flat_item(&fields, i);
        walk_fields(&w, &field, &(arrow_field){ 0 }, -1, 0);
    }
    list_leaves(f);
    return w.wrong || !schema->in->damaged ? w.wrong : "the schema is damaged";
}

/* ---- record batches -------------------------------------------------------------------------- */
flat_table arrow_batch_table(const arrow_batch *b, flatbuffer *in) {
    *in = (flatbuffer){ .bytes = b->metadata, .n = b->metadata_bytes };
    flat_table message = flat_root(in), header = flat_child(&message, MESSAGE_HEADER);
    return b->is_dictionary ? flat_child(&header, DICTIONARY_DATA) : header;
}

const char *arrow_batch_parts(const flat_table *t, arrow_batch_layout *out) {
    *out = (arrow_batch_layout){ .nodes = flat_items(t, BATCH_NODES, 16),
                                 .buffers = flat_items(t, BATCH_BUFFERS, 16),
                                 .variadic = flat_items(t, BATCH_VARIADIC, 8) };
    flat_table compression = flat_child(t, BATCH_COMPRESSION);
    out->compressed = compression.at != 0;
    out->codec = (int)flat_number(&compression, 0, 1, 0);
    out->method = (int)flat_number(&compression, 1, 1, 0);
    return t->in->damaged ? "a record batch is damaged" : NULL;
}

/* The buffers of a batch must be those of the schema's fields, and any number for each of its views. */
static const char *check_batch_counts(const arrow_file *a, const flat_table *t) {
    arrow_batch_layout l;
    const char *wrong = arrow_batch_parts(t, &l);
    if (wrong) return wrong;
    if (l.nodes.n != (size_t)a->n_fields)
        return "a record batch and the schema differ in their number of columns";
    if (l.variadic.n != (size_t)a->n_views)
        return "a record batch and the schema differ in their number of columns with views";
    size_t n = (size_t)a->n_buffers;
    for (size_t i = 0; i < l.variadic.n; i++) {
        int64_t more = load_signed(t->in->bytes + l.variadic.at + 8 * i, 8);
        if (more < 0 || more > (int64_t)l.buffers.n) return "a record batch has too few buffers";
        n += (size_t)more;
    }
    return n == l.buffers.n ? NULL
                            : "a record batch and the schema differ in their number of buffers";
}

static void append_batch(arrow_batch **list, int *n, int *capacity, const arrow_batch *b) {
    LIST_ADD(*list, *n, *capacity) = *b;
}

static const char *take_batch(parquet_file *f, arrow_batch *b, const flat_table *header) {
    arrow_file *a = f->arrow;
    flatbuffer in;
    flat_table t = arrow_batch_table(b, &in);
    b->rows = flat_number(&t, BATCH_ROWS, 8, 0);
    b->dictionaries_before = a->n_dictionaries;
    if (b->rows < 0 || b->rows > INT64_MAX / 64) return "a record batch has no such number of rows";
    if (b->is_dictionary) {
        b->dictionary = flat_number(header, DICTIONARY_ID, 8, 0);
        b->is_delta = flat_number(header, DICTIONARY_DELTA, 1, 0);
        append_batch(&a->dictionaries, &a->n_dictionaries, &a->dictionaries_capacity, b);
        return NULL;
    }
    const char *wrong = check_batch_counts(a, &t);
    if (!wrong) append_batch(&a->batches, &a->n_batches, &a->batches_capacity, b);
    return wrong;
}

/* ---- messages -------------------------------------------------------------------------------- */
static err refuse_damaged_arrow(const parquet_file *f, int64_t at, const char *why) {
    if (f->damaged) *f->damaged = true;
    return err_hint(
        ERR("%s is not a whole Arrow file: at byte %lld: %s", f->source.name, (long long)at, why),
        "get the file again, or have pyarrow rewrite it");
}

/* Reads the metadata of the message at an offset, which is less than `end`. The end mark has none. */
static err read_message(const parquet_file *f, int64_t at, int64_t end, arrow_batch *out) {
    const parquet_source *s = &f->source;
    uint8_t head[8];
    size_t prefix = 4, have = (size_t)MIN(end - at, (int64_t)sizeof head);
    TRY(s->read(s->ctx, at, head, have));
    bool marked = have >= 4 && memcmp(head, STREAM_MAGIC, 4) == 0;
    if (marked) prefix = 8; /* not so before version 0.15 */
    if (have < prefix) return refuse_damaged_arrow(f, at, "a message is truncated");
    size_t n = load_u32(head + prefix - 4);
    if ((int64_t)n > end - at - (int64_t)prefix)
        return refuse_damaged_arrow(f, at, "a message ends after the file does");
    f->arrow->metadata_bytes += n;
    if (f->arrow->metadata_bytes > METADATA_BYTES)
        return refuse_damaged_arrow(f, at, "its metadata is too long");
    uint8_t *bytes = arena_alloc(f->memory, n + 1);
    *out = (arrow_batch){ .metadata = bytes,
                          .metadata_bytes = n,
                          .body = at + (int64_t)prefix + (int64_t)n };
    return n ? s->read(s->ctx, at + (int64_t)prefix, bytes, n) : OK;
}

static const char *take_message(parquet_file *f, arrow_batch *b, int64_t end) {
    flatbuffer in = { .bytes = b->metadata, .n = b->metadata_bytes };
    flat_table message = flat_root(&in), header = flat_child(&message, MESSAGE_HEADER);
    int64_t type = flat_number(&message, MESSAGE_HEADER_TYPE, 1, 0);
    b->body_bytes = flat_number(&message, MESSAGE_BODY_BYTES, 8, 0);
    b->is_dictionary = type == HEADER_DICTIONARY;
    if (in.damaged) return "a message is damaged";
    if (b->body_bytes < 0 || b->body_bytes > end - b->body)
        return "a message ends after the file does";
    if (type == HEADER_SCHEMA)
        return take_arrow_schema(f, flat_number(&message, MESSAGE_VERSION, 2, 0), &header);
    if (type != HEADER_DICTIONARY && type != HEADER_BATCH)
        return "a message is neither a schema, a dictionary nor a record batch";
    return f->leaves ? take_batch(f, b, &header) : "it does not begin with a schema";
}

static err read_messages(parquet_file *f) {
    int64_t end = f->source.size;
    arrow_batch b;
    for (int64_t at = 0; at < end; at = b.body + b.body_bytes) {
        TRY(read_message(f, at, end, &b));
        if (b.metadata_bytes == 0) break;
        const char *wrong = take_message(f, &b, end);
        if (wrong) return refuse_damaged_arrow(f, at, wrong);
    }
    return f->leaves ? OK : refuse_damaged_arrow(f, 0, "it has no schema");
}

/* ---- files ----------------------------------------------------------------------------------- */
/* Reads the messages that the footer lists: all dictionaries, or all record batches. */
static err read_blocks(parquet_file *f, const flat_vector *blocks, int64_t end) {
    for (size_t i = 0; i < blocks->n; i++) {
        int64_t at = load_signed(blocks->in->bytes + blocks->at + BLOCK_BYTES * i, 8);
        arrow_batch b;
        if (at < START_BYTES || at >= end)
            return refuse_damaged_arrow(f, end, "the footer lists a message outside of the file");
        TRY(read_message(f, at, end, &b));
        const char *wrong = take_message(f, &b, end);
        if (wrong) return refuse_damaged_arrow(f, at, wrong);
    }
    return OK;
}

static err read_footer(parquet_file *f) {
    const parquet_source *s = &f->source;
    uint8_t tail[TAIL_BYTES];
    if (s->size < START_BYTES + TAIL_BYTES) return refuse_damaged_arrow(f, 0, "it is too short");
    int64_t end = s->size - TAIL_BYTES;
    TRY(s->read(s->ctx, end, tail, sizeof tail));
    if (memcmp(tail + 4, FILE_MAGIC, MAGIC_BYTES) != 0)
        return refuse_damaged_arrow(f, s->size, "it does not end in ARROW1, so it was truncated");
    size_t n = load_u32(tail);
    if ((int64_t)n > end - START_BYTES || n > METADATA_BYTES)
        return refuse_damaged_arrow(f, end, "the footer is longer than the file");
    end -= (int64_t)n;
    uint8_t *bytes = arena_alloc(f->memory, n + 1);
    TRY(s->read(s->ctx, end, bytes, n));
    flatbuffer in = { .bytes = bytes, .n = n };
    flat_table footer = flat_root(&in), schema = flat_child(&footer, FOOTER_SCHEMA);
    flat_vector dictionaries = flat_items(&footer, FOOTER_DICTIONARIES, BLOCK_BYTES),
                batches = flat_items(&footer, FOOTER_BATCHES, BLOCK_BYTES);
    const char *wrong = in.damaged || !schema.at ? "the footer is damaged" : NULL;
    if (!wrong) wrong = take_arrow_schema(f, flat_number(&footer, FOOTER_VERSION, 2, 0), &schema);
    if (wrong) return refuse_damaged_arrow(f, end, wrong);
    TRY(read_blocks(f, &dictionaries, end));
    return read_blocks(f, &batches, end);
}

err arrow_read_metadata(parquet_file *f, bool is_stream) {
    f->arrow = mem_alloc(sizeof *f->arrow);
    TRY(is_stream ? read_messages(f) : read_footer(f));
    const arrow_file *a = f->arrow;
    f->groups = arena_alloc(f->memory, ((size_t)a->n_batches + 1) * sizeof *f->groups);
    f->n_groups = a->n_batches;
    for (int i = 0; i < a->n_batches; i++)
        f->groups[i] =
            (row_group){ .n_rows = a->batches[i].rows, .bytes = a->batches[i].body_bytes };
    return OK;
}

void arrow_free(arrow_file *a) {
    if (!a) return;
    free(a->fields);
    free(a->batches);
    free(a->dictionaries);
    free(a);
}

bool arrow_has_magic(const void *head, size_t n, bool *is_stream) {
    *is_stream = n >= 4 && memcmp(head, STREAM_MAGIC, 4) == 0;
    return *is_stream || (n >= MAGIC_BYTES && memcmp(head, FILE_MAGIC, MAGIC_BYTES) == 0);
}

/* ---- what is refused ------------------------------------------------------------------------- */
static err refuse_batch_codec(const parquet_file *f, const arrow_batch_layout *l,
                              const char *name) {
    str names = { 0 };
    codec_names(CODECS_ARROW, &names);
    err e = ERR("%s is compressed with %s (codec %d, method %d); supported are: %s", f->source.name,
                name, l->codec, l->method, names.text);
    str_free(&names);
    return err_hint(e, "rewrite it, for instance with pyarrow: "
                       "feather.write_feather(feather.read_table('IN'), 'OUT')");
}

static err check_codecs(const parquet_file *f, const arrow_batch *list, int n) {
    for (int i = 0; i < n; i++) {
        flatbuffer in;
        arrow_batch_layout l;
        bool supported;
        flat_table t = arrow_batch_table(&list[i], &in);
        const char *wrong = arrow_batch_parts(&t, &l);
        if (wrong) return refuse_damaged_arrow(f, list[i].body, wrong);
        const char *name = codec_name(CODECS_ARROW, l.codec, &supported);
        if (l.compressed && (!supported || l.method != 0)) return refuse_batch_codec(f, &l, name);
    }
    return OK;
}

err arrow_check_column(const parquet_file *f, int column) {
    const arrow_file *a = f->arrow;
    const arrow_field *field = &a->fields[a->field_of_leaf[column]];
    TRY(check_codecs(f, a->batches, a->n_batches));
    if (!field->has_dictionary) return OK;
    TRY(check_codecs(f, a->dictionaries, a->n_dictionaries));
    for (int i = 0; i < a->n_dictionaries; i++)
        if (a->dictionaries[i].dictionary == field->dictionary && a->dictionaries[i].is_delta)
            return err_hint(ERR("%s: the dictionary of column \"%s\" comes in several parts, which "
                                "is not supported",
                                f->source.name, field->path),
                            "rewrite the column as plain strings, or the file as Parquet");
    return OK;
}
