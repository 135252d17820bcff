/* The metadata at the end of a file: what the columns are and where their bytes are.
 *
 *     "PAR1"  column chunks  metadata (thrift)  length of the metadata (u32)  "PAR1"
 *
 * The schema is a tree in depth-first order. Its leaves are the columns; a row group has one chunk
 * for each of them, in the same order. */
#include <stdlib.h>
#include <string.h>

#include "parquet/parquet_internal.h"

static const size_t PAGE_BYTES = (size_t)1 << 30, METADATA_BYTES = (size_t)256 << 20,
                    METADATA_MEMORY = (size_t)1 << 30;
enum { TAIL_BYTES = 8, MOST_DEPTH = 64, REQUIRED = 0, OPTIONAL = 1, REPEATED = 2 };
#define REWRITE                                                                                    \
    "rewrite the file, for instance with DuckDB: COPY (FROM 'IN.parquet') TO 'OUT.parquet' "       \
    "(COMPRESSION zstd)"

/* ---- layouts --------------------------------------------------------------------------------- */
typedef struct time_unit {
    bool millis, micros, nanos;
} time_unit;
static const thrift_member unit_members[] = {
    { 1, THRIFT_IS_SET, offsetof(time_unit, millis), NULL },
    { 2, THRIFT_IS_SET, offsetof(time_unit, micros), NULL },
    { 3, THRIFT_IS_SET, offsetof(time_unit, nanos), NULL },
};
static const thrift_layout unit_layout = { sizeof(time_unit), unit_members,
                                           COUNT_OF(unit_members) };
static const thrift_member timestamp_members[] = { { 2, THRIFT_STRUCT, 0, &unit_layout } };
static const thrift_layout timestamp_layout = { sizeof(time_unit), timestamp_members, 1 };
typedef struct integer_type {
    bool has_width, is_signed;
} integer_type;
static const thrift_member integer_members[] = {
    { 1, THRIFT_IS_SET, offsetof(integer_type, has_width), NULL },
    { 2, THRIFT_BOOL, offsetof(integer_type, is_signed), NULL },
};
static const thrift_layout integer_layout = { sizeof(integer_type), integer_members,
                                              COUNT_OF(integer_members) };

/* The logical type of a column; at most one member is set. */
typedef struct logical_type {
    bool string, enumeration, decimal, date, time, json, bson, uuid, float16;
    integer_type integer;
    time_unit timestamp;
} logical_type;
#define AT(member) offsetof(logical_type, member)
static const thrift_member logical_members[] = {
    { 1, THRIFT_IS_SET, AT(string), NULL },
    { 4, THRIFT_IS_SET, AT(enumeration), NULL },
    { 5, THRIFT_IS_SET, AT(decimal), NULL },
    { 6, THRIFT_IS_SET, AT(date), NULL },
    { 7, THRIFT_IS_SET, AT(time), NULL },
    { 8, THRIFT_STRUCT, AT(timestamp), &timestamp_layout },
    { 10, THRIFT_STRUCT, AT(integer), &integer_layout },
    { 12, THRIFT_IS_SET, AT(json), NULL },
    { 13, THRIFT_IS_SET, AT(bson), NULL },
    { 14, THRIFT_IS_SET, AT(uuid), NULL },
    { 15, THRIFT_IS_SET, AT(float16), NULL },
};
#undef AT
static const thrift_layout logical_layout = { sizeof(logical_type), logical_members,
                                              COUNT_OF(logical_members) };

typedef struct schema_element {
    thrift_number type, converted;
    int32_t repetition, n_children;
    const char *name;
    logical_type logical;
} schema_element;
#define AT(member) offsetof(schema_element, member)
static const thrift_member schema_members[] = {
    { 1, THRIFT_NUMBER, AT(type), NULL },      { 3, THRIFT_I32, AT(repetition), NULL },
    { 4, THRIFT_TEXT, AT(name), NULL },        { 5, THRIFT_I32, AT(n_children), NULL },
    { 6, THRIFT_NUMBER, AT(converted), NULL }, { 10, THRIFT_STRUCT, AT(logical), &logical_layout },
};
#undef AT
static const thrift_layout schema_layout = { sizeof(schema_element), schema_members,
                                             COUNT_OF(schema_members) };

#define AT(member) offsetof(column_chunk, member)
static const thrift_member column_members[] = {
    { 1, THRIFT_I32, AT(type), NULL },
    { 2, THRIFT_NUMBERS, AT(encodings), NULL },
    { 4, THRIFT_I32, AT(codec), NULL },
    { 5, THRIFT_I64, AT(n_values), NULL },
    { 7, THRIFT_I64, AT(bytes), NULL },
    { 9, THRIFT_I64, AT(data_offset), NULL },
    { 11, THRIFT_I64, AT(dictionary_offset), NULL },
};
static const thrift_layout column_layout = { 0, column_members, COUNT_OF(column_members) };
static const thrift_member chunk_members[] = {
    { 1, THRIFT_TEXT, AT(file_path), NULL },
    { 3, THRIFT_STRUCT, 0, &column_layout }, /* its members are the chunk's own */
    { 8, THRIFT_IS_SET, AT(encrypted), NULL },
    { 9, THRIFT_IS_SET, AT(encrypted), NULL },
};
#undef AT
static const thrift_layout chunk_layout = { sizeof(column_chunk), chunk_members,
                                            COUNT_OF(chunk_members) };
static const thrift_member group_members[] = {
    { 1, THRIFT_LIST, offsetof(row_group, chunks), &chunk_layout },
    { 3, THRIFT_I64, offsetof(row_group, n_rows), NULL },
};
static const thrift_layout group_layout = { sizeof(row_group), group_members,
                                            COUNT_OF(group_members) };
typedef struct file_metadata {
    thrift_list schema, groups;
    int64_t n_rows;
    bool encrypted;
} file_metadata;
#define AT(member) offsetof(file_metadata, member)
static const thrift_member file_members[] = {
    { 2, THRIFT_LIST, AT(schema), &schema_layout },
    { 3, THRIFT_I64, AT(n_rows), NULL },
    { 4, THRIFT_LIST, AT(groups), &group_layout },
    { 8, THRIFT_IS_SET, AT(encrypted), NULL },
};
#undef AT
static const thrift_layout file_layout = { sizeof(file_metadata), file_members,
                                           COUNT_OF(file_members) };

/* ---- kinds ----------------------------------------------------------------------------------- */
const char *parquet_kind_name(parquet_kind k) {
    static const char *const names[] = {
        [PARQUET_OTHER] = "other",      [PARQUET_BOOL] = "bool",     [PARQUET_INTEGER] = "integer",
        [PARQUET_UNSIGNED] = "integer", [PARQUET_FLOAT] = "float",   [PARQUET_DOUBLE] = "double",
        [PARQUET_DATE] = "date",        [PARQUET_MILLIS] = "time",   [PARQUET_MICROS] = "time",
        [PARQUET_NANOS] = "time",       [PARQUET_STRING] = "string", [PARQUET_BYTES] = "bytes",
        [PARQUET_JSON] = "JSON",
    };
    return names[k];
}

/* Reads the older form, which states by number what a type means. */
static parquet_kind converted_kind(int32_t converted) {
    static const parquet_kind kinds[] = {
        [0] = PARQUET_STRING,    [4] = PARQUET_STRING,    [6] = PARQUET_DATE,
        [9] = PARQUET_MILLIS,    [10] = PARQUET_MICROS,   [11] = PARQUET_UNSIGNED,
        [12] = PARQUET_UNSIGNED, [13] = PARQUET_UNSIGNED, [14] = PARQUET_UNSIGNED,
        [15] = PARQUET_INTEGER,  [16] = PARQUET_INTEGER,  [17] = PARQUET_INTEGER,
        [18] = PARQUET_INTEGER,  [19] = PARQUET_JSON,     [21] = PARQUET_OTHER,
    };
    bool known = converted >= 0 && converted < (int32_t)COUNT_OF(kinds);
    return known ? kinds[converted] : PARQUET_OTHER;
}

static parquet_kind plain_kind(physical_type t) {
    static const parquet_kind kinds[PHYSICAL_TYPES] = {
        [PHYSICAL_BOOL] = PARQUET_BOOL,     [PHYSICAL_INT32] = PARQUET_INTEGER,
        [PHYSICAL_INT64] = PARQUET_INTEGER, [PHYSICAL_FLOAT] = PARQUET_FLOAT,
        [PHYSICAL_DOUBLE] = PARQUET_DOUBLE, [PHYSICAL_BYTES] = PARQUET_BYTES,
    };
    return kinds[t];
}

/* Whether values of this type can be of this kind. */
static bool kind_fits(physical_type t, parquet_kind k) {
    if (t == PHYSICAL_BYTES) return k == PARQUET_STRING || k == PARQUET_JSON;
    if (t == PHYSICAL_INT32)
        return k == PARQUET_DATE || k == PARQUET_INTEGER || k == PARQUET_UNSIGNED;
    return t == PHYSICAL_INT64 && k != PARQUET_DATE && k < PARQUET_STRING;
}

static parquet_kind column_kind(const schema_element *s) {
    const logical_type *l = &s->logical;
    physical_type t = (physical_type)s->type.value;
    parquet_kind k = PARQUET_OTHER;
    if (s->converted.is_set)
        k = converted_kind(s->converted.value);
    else if (l->json)
        k = PARQUET_JSON;
    else if (l->string || l->enumeration)
        k = PARQUET_STRING;
    else if (l->date)
        k = PARQUET_DATE;
    else if (l->timestamp.millis || l->timestamp.micros || l->timestamp.nanos)
        k = l->timestamp.millis   ? PARQUET_MILLIS
            : l->timestamp.micros ? PARQUET_MICROS
                                  : PARQUET_NANOS;
    else if (l->integer.has_width)
        k = l->integer.is_signed ? PARQUET_INTEGER : PARQUET_UNSIGNED;
    else if (!(l->decimal || l->time || l->bson || l->uuid || l->float16))
        return plain_kind(t);
    return kind_fits(t, k) ? k : PARQUET_OTHER;
}

/* ---- the schema ------------------------------------------------------------------------------ */
typedef struct schema_walk {
    parquet_file *f;
    const schema_element *elements;
    int64_t n, at;
    size_t path_bytes; /* of all paths so far */
    const char *wrong;
} schema_walk;
/* The position of the walk: the path to a node, and the nodes on it. */
typedef struct schema_node {
    const char *path; /* NULL: the root */
    int32_t definition;
    bool repeated;
    int depth;
} schema_node;

static void add_leaf(schema_walk *w, const schema_element *s, const schema_node *n) {
    if (!s->type.is_set || s->type.value < 0 || s->type.value >= PHYSICAL_TYPES) {
        w->wrong = "a column has an unknown type";
        return;
    }
    w->f->leaves[w->f->n_leaves++] = (leaf){ { n->path, column_kind(s), n->repeated },
                                             (physical_type)s->type.value,
                                             n->definition };
}

static void walk_schema(schema_walk *w, const schema_node *above) {
    if (w->at == w->n || above->depth == MOST_DEPTH) {
        w->wrong = w->at == w->n ? "the schema is truncated" : "the schema is nested too deeply";
        return;
    }
    const schema_element *s = &w->elements[w->at++];
    schema_node here = *above;
    here.depth++;
    if (!s->name || s->n_children < 0 || s->n_children > w->n - w->at) {
        w->wrong = "the schema is damaged";
        return;
    }
    w->path_bytes += (above->path ? strlen(above->path) : 0) + strlen(s->name);
    if (w->path_bytes > METADATA_BYTES) {
        w->wrong = "the names of the columns are too long";
        return;
    }
    if (above->depth > 0) {
        here.path =
            above->path ? arena_printf(w->f->memory, "%s.%s", above->path, s->name) : s->name;
        here.definition += s->repetition != REQUIRED;
        here.repeated |= s->repetition == REPEATED;
    }
    if (s->n_children == 0 && above->depth > 0) {
        add_leaf(w, s, &here);
        return;
    }
    for (int32_t i = 0; i < s->n_children && !w->wrong; i++) walk_schema(w, &here);
}

/* ---- row groups ------------------------------------------------------------------------------ */
static const char *check_group(const parquet_file *f, row_group *g) {
    const column_chunk *k = g->chunks.items;
    if (g->n_rows < 0) return "a row group has a negative number of rows";
    if (g->chunks.n != f->n_leaves)
        return "a row group and the schema differ in their number of columns";
    for (int i = 0; i < f->n_leaves; i++) {
        const leaf *l = &f->leaves[i];
        if (!k[i].encrypted && k[i].type != (int32_t)l->type)
            return "a column's type differs from the schema";
        if (!k[i].encrypted && !l->public.repeated && k[i].n_values != g->n_rows)
            return "a column's number of values differs from its row group's number of rows";
        if (k[i].bytes > 0 && k[i].bytes <= f->source.size) g->bytes += k[i].bytes;
    }
    return NULL;
}

static const char *take_groups(parquet_file *f, const file_metadata *m) {
    int64_t rows = 0;
    f->groups = m->groups.items;
    if (m->groups.n > INT32_MAX) return "too many row groups";
    f->n_groups = (int)m->groups.n;
    for (int i = 0; i < f->n_groups; i++) {
        const char *wrong = check_group(f, &f->groups[i]);
        if (wrong) return wrong;
        if (f->groups[i].n_rows > INT64_MAX / 2 - rows) return "too many rows";
        rows += f->groups[i].n_rows;
    }
    return rows == m->n_rows ? NULL : "its row groups do not have as many rows as the file";
}

/* ---- opening --------------------------------------------------------------------------------- */
static err refuse_encrypted(const parquet_file *f) {
    return err_hint(ERR("%s is encrypted, which is not supported", f->source.name),
                    "decrypt it first, with the program that wrote it");
}

static err refuse_damaged(const parquet_file *f, const char *why) {
    if (f->damaged) *f->damaged = true;
    return err_hint(ERR("%s is not a whole Parquet file: %s", f->source.name, why),
                    "get the file again");
}

/* Reads the last bytes of the file. *n: of the metadata before them. */
static err read_footer_tail(const parquet_file *f, size_t *n) {
    uint8_t tail[TAIL_BYTES];
    const parquet_source *s = &f->source;
    if (s->size < 4 + TAIL_BYTES) return refuse_damaged(f, "it is too short");
    TRY(s->read(s->ctx, s->size - TAIL_BYTES, tail, sizeof tail));
    if (memcmp(tail + 4, "PARE", 4) == 0) return refuse_encrypted(f);
    if (memcmp(tail + 4, "PAR1", 4) != 0)
        return refuse_damaged(f, "it does not end in PAR1, so it was truncated");
    *n = load_u32(tail);
    if ((int64_t)*n > s->size - 4 - TAIL_BYTES)
        return refuse_damaged(f, "its metadata is longer than the file");
    if (*n > METADATA_BYTES) return refuse_damaged(f, "its metadata is too long");
    return OK;
}

static err read_metadata(parquet_file *f) {
    size_t n = 0;
    file_metadata m = { 0 };
    TRY(read_footer_tail(f, &n));
    f->data_end = f->source.size - TAIL_BYTES - (int64_t)n;
    uint8_t *bytes = mem_grow(NULL, n + 1);
    err e = f->source.read(f->source.ctx, f->data_end, bytes, n);
    thrift_reader t = {
        .p = bytes, .end = bytes + n, .memory = f->memory, .budget = METADATA_MEMORY
    };
    if (!e && !thrift_read(&t, &file_layout, &m)) e = refuse_damaged(f, t.wrong);
    free(bytes);
    TRY(e);
    if (m.encrypted) return refuse_encrypted(f);
    schema_walk w = { .f = f, .elements = m.schema.items, .n = m.schema.n };
    f->leaves = arena_alloc(f->memory, ((size_t)m.schema.n + 1) * sizeof *f->leaves);
    walk_schema(&w, &(schema_node){ 0 });
    const char *wrong = w.wrong || w.at == w.n ? w.wrong : "the schema is damaged";
    if (!wrong) wrong = take_groups(f, &m);
    return wrong ? refuse_damaged(f, wrong) : OK;
}

bool parquet_has_magic(const void *head, size_t n) {
    bool is_stream;
    return (n >= 4 && memcmp(head, "PAR1", 4) == 0) || arrow_has_magic(head, n, &is_stream);
}

static err read_any_metadata(parquet_file *f) {
    const parquet_source *s = &f->source;
    char head[8];
    bool is_stream;
    size_t n = (size_t)MIN(s->size, (int64_t)sizeof head);
    TRY(s->read(s->ctx, 0, head, n));
    if (arrow_has_magic(head, n, &is_stream)) return arrow_read_metadata(f, is_stream);
    return read_metadata(f);
}

err parquet_open(const parquet_source *s, const parquet_limits *l, bool *damaged,
                 parquet_file **out) {
    parquet_file *f = mem_alloc(sizeof *f);
    f->source = *s;
    f->damaged = damaged;
    f->limits = *l;
    if (!f->limits.page_bytes) f->limits.page_bytes = PAGE_BYTES;
    f->memory = arena_new();
    err e = read_any_metadata(f);
    if (e) {
        parquet_close(f);
        return e;
    }
    *out = f;
    return OK;
}

void parquet_close(parquet_file *f) {
    if (!f) return;
    arrow_free(f->arrow);
    arena_free(f->memory);
    free(f);
}

int parquet_columns(const parquet_file *f) { return f->n_leaves; }

const parquet_column *parquet_column_at(const parquet_file *f, int column) {
    BUG_IF(column < 0 || column >= f->n_leaves);
    return &f->leaves[column].public;
}

int parquet_find_column(const parquet_file *f, const char *name) {
    for (int i = 0; i < f->n_leaves; i++)
        if (strcmp(f->leaves[i].public.name, name) == 0) return i;
    return -1;
}

int parquet_groups(const parquet_file *f) { return f->n_groups; }

int64_t parquet_group_rows(const parquet_file *f, int group) {
    BUG_IF(group < 0 || group >= f->n_groups);
    return f->groups[group].n_rows;
}

int64_t parquet_group_bytes(const parquet_file *f, int group) {
    BUG_IF(group < 0 || group >= f->n_groups);
    return f->groups[group].bytes;
}

const column_chunk *file_chunk(const parquet_file *f, int group, int column) {
    BUG_IF(group < 0 || group >= f->n_groups || column < 0 || column >= f->n_leaves);
    return (const column_chunk *)f->groups[group].chunks.items + column;
}

/* ---- what is refused ------------------------------------------------------------------------- */
err column_error(const parquet_file *f, int group, int column, int64_t offset, const char *why) {
    const char *name = f->leaves[column].public.name;
    const char *kind = f->arrow ? "record batch" : "row group", *part = f->arrow ? "body" : "page";
    if (offset < 0)
        return ERR("%s: column \"%s\" of %s %d: %s", f->source.name, name, kind, group, why);
    return ERR("%s: column \"%s\" of %s %d, the %s at byte %lld: %s", f->source.name, name, kind,
               group, part, (long long)offset, why);
}

static err refuse_codec(const parquet_file *f, const char *column, const char *codec,
                        int32_t number) {
    str names = { 0 };
    codec_names(CODECS_PARQUET, &names);
    err e = ERR("%s: column \"%s\" is compressed with %s (codec %d); supported are: %s",
                f->source.name, column, codec, number, names.text);
    str_free(&names);
    return err_hint(e, REWRITE);
}

static err check_chunk(const parquet_file *f, int group, int column) {
    const uint64_t levels_only = 1 << 3 | 1 << 4;
    const column_chunk *k = file_chunk(f, group, column);
    const char *name = f->leaves[column].public.name;
    bool supported;
    const char *codec = codec_name(CODECS_PARQUET, k->codec, &supported);
    if (k->encrypted) return refuse_encrypted(f);
    if (k->file_path)
        return err_hint(ERR("%s: column \"%s\" is in another file, %s, which is not supported",
                            f->source.name, name, k->file_path),
                        REWRITE);
    if (!supported) return refuse_codec(f, name, codec, k->codec);
    for (int i = 0; i < 64; i++)
        if ((k->encodings >> i & 1) && !encoding_known(i) && !(levels_only >> i & 1))
            return err_hint(ERR("%s: column \"%s\" has encoding %d, which is not supported",
                                f->source.name, name, i),
                            REWRITE);
    return OK;
}

err parquet_check_column(const parquet_file *f, int column) {
    const parquet_column *c = parquet_column_at(f, column);
    if (c->repeated)
        return err_hint(ERR("%s: column \"%s\" is a list, or in one", f->source.name, c->name),
                        "choose a column with one value per row");
    if (c->kind == PARQUET_OTHER)
        return err_hint(
            ERR("%s: column \"%s\" has a type that is not supported", f->source.name, c->name),
            "choose a column of strings or numbers");
    if (f->arrow) return arrow_check_column(f, column);
    for (int g = 0; g < f->n_groups; g++) TRY(check_chunk(f, g, column));
    return OK;
}
