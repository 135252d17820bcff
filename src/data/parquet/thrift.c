/* Thrift's compact protocol, as far as Parquet's metadata needs it. Structs are read by tables: a
 * thrift_layout lists the fields that are wanted and where they go; every other field is skipped. So
 * the metadata of a newer writer is read like that of an older one. */
#include <string.h>

#include "parquet/parquet_internal.h"

enum { MOST_DEPTH = 32 };
enum {
    WIRE_STOP,
    WIRE_TRUE,
    WIRE_FALSE,
    WIRE_BYTE,
    WIRE_I16,
    WIRE_I32,
    WIRE_I64,
    WIRE_DOUBLE,
    WIRE_BINARY,
    WIRE_LIST,
    WIRE_SET,
    WIRE_MAP,
    WIRE_STRUCT,
    WIRE_UUID,
};

static bool thrift_fault(thrift_reader *t, const char *what) {
    if (!t->wrong) t->wrong = what;
    return false;
}

static bool report_end(thrift_reader *t) {
    if (!t->wrong) t->truncated = true;
    return thrift_fault(t, "the metadata is truncated");
}

static size_t bytes_left(const thrift_reader *t) { return (size_t)(t->end - t->p); }

static bool thrift_skip_bytes(thrift_reader *t, uint64_t n) {
    if (n > bytes_left(t)) return report_end(t);
    t->p += n;
    return true;
}

static bool thrift_read_varint(thrift_reader *t, uint64_t *out) {
    *out = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (t->p == t->end) return report_end(t);
        uint8_t b = *t->p++;
        *out |= (uint64_t)(b & 127) << shift;
        if (b < 128) return true;
    }
    return thrift_fault(t, "a number has more than 64 bits");
}

static bool thrift_read_zigzag(thrift_reader *t, int64_t *out) {
    uint64_t u;
    if (!thrift_read_varint(t, &u)) return false;
    *out = (int64_t)(u >> 1) ^ -(int64_t)(u & 1);
    return true;
}

/* *id: of the previous field, becomes this one's. @return false at the end of the struct. */
static bool next_thrift_field(thrift_reader *t, int64_t *id, int *wire) {
    if (t->wrong) return false;
    if (t->p == t->end) return report_end(t);
    uint8_t b = *t->p++;
    *wire = b & 15;
    if (*wire == WIRE_STOP) return false;
    if (b >> 4)
        *id += b >> 4;
    else if (!thrift_read_zigzag(t, id))
        return false;
    return true;
}

/* Every element takes at least a byte, which bounds the number by what is left. */
static bool read_list_head(thrift_reader *t, uint64_t *n, int *wire) {
    if (t->p == t->end) return report_end(t);
    uint8_t b = *t->p++;
    *wire = b & 15;
    *n = b >> 4;
    if (*n == 15 && !thrift_read_varint(t, n)) return false;
    return *n <= bytes_left(t) ? true : report_end(t);
}

static bool skip_field(thrift_reader *t, int wire, bool element);

static bool skip_elements(thrift_reader *t) {
    uint64_t n;
    int wire;
    if (!read_list_head(t, &n, &wire)) return false;
    for (uint64_t i = 0; i < n; i++)
        if (!skip_field(t, wire, true)) return false;
    return true;
}

static bool skip_map(thrift_reader *t) {
    uint64_t n;
    if (!thrift_read_varint(t, &n)) return false;
    if (n == 0) return true;
    if (t->p == t->end || n > bytes_left(t)) return report_end(t);
    uint8_t kinds = *t->p++;
    for (uint64_t i = 0; i < n; i++)
        if (!skip_field(t, kinds >> 4, true) || !skip_field(t, kinds & 15, true)) return false;
    return true;
}

static bool skip_struct(thrift_reader *t) {
    int64_t id = 0;
    for (int wire; next_thrift_field(t, &id, &wire);)
        if (!skip_field(t, wire, false)) return false;
    return !t->wrong;
}

static bool skip_nested(thrift_reader *t, bool (*skip)(thrift_reader *)) {
    if (t->depth == MOST_DEPTH) return thrift_fault(t, "the metadata is nested too deeply");
    t->depth++;
    bool fine = skip(t);
    t->depth--;
    return fine;
}

/* @param element of a list, where a bool takes a byte; as a field it is its own type. */
static bool skip_field(thrift_reader *t, int wire, bool element) {
    uint64_t n;
    switch (wire) {
    case WIRE_TRUE:
    case WIRE_FALSE: return element ? thrift_skip_bytes(t, 1) : true;
    case WIRE_BYTE: return thrift_skip_bytes(t, 1);
    case WIRE_I16:
    case WIRE_I32:
    case WIRE_I64: return thrift_read_varint(t, &n);
    case WIRE_DOUBLE: return thrift_skip_bytes(t, 8);
    case WIRE_UUID: return thrift_skip_bytes(t, 16);
    case WIRE_BINARY: return thrift_read_varint(t, &n) && thrift_skip_bytes(t, n);
    case WIRE_LIST:
    case WIRE_SET: return skip_nested(t, skip_elements);
    case WIRE_MAP: return skip_nested(t, skip_map);
    case WIRE_STRUCT: return skip_nested(t, skip_struct);
    default: return thrift_fault(t, "an unknown type of field");
    }
}

/* ---- by tables ------------------------------------------------------------------------------- */
static void *take_memory(thrift_reader *t, size_t n) {
    if (n > t->budget) return thrift_fault(t, "the metadata is too large"), NULL;
    t->budget -= n;
    return arena_alloc(t->memory, n);
}

static bool read_integer(thrift_reader *t, int64_t least, int64_t most, int64_t *out) {
    if (!thrift_read_zigzag(t, out)) return false;
    return *out >= least && *out <= most ? true : thrift_fault(t, "a number is out of range");
}

static bool read_thrift_text(thrift_reader *t, void *to) {
    uint64_t n;
    if (!thrift_read_varint(t, &n)) return false;
    if (n > bytes_left(t)) return report_end(t);
    char *text = take_memory(t, n + 1);
    if (!text) return false;
    memcpy(text, t->p, n);
    t->p += n;
    *(const char **)to = text;
    return true;
}

static bool read_structs(thrift_reader *t, const thrift_layout *l, void *to) {
    uint64_t n;
    int wire;
    thrift_list *list = to;
    if (!read_list_head(t, &n, &wire)) return false;
    if (n > 0 && wire != WIRE_STRUCT) return thrift_fault(t, "a list has elements of another type");
    char *items = take_memory(t, (n ? n : 1) * l->size);
    if (!items) return false;
    *list = (thrift_list){ items, (int64_t)n };
    for (uint64_t i = 0; i < n; i++)
        if (!thrift_read(t, l, items + i * l->size)) return false;
    return true;
}

static bool read_number_set(thrift_reader *t, uint64_t *to) {
    uint64_t n;
    int wire;
    int64_t v;
    if (!read_list_head(t, &n, &wire)) return false;
    if (n > 0 && wire != WIRE_I32) return thrift_fault(t, "a list has elements of another type");
    for (uint64_t i = 0; i < n; i++) {
        if (!thrift_read_zigzag(t, &v)) return false;
        *to |= (uint64_t)1 << (v >= 0 && v < 63 ? v : 63);
    }
    return true;
}

static const int expected_wire[] = {
    [THRIFT_I32] = WIRE_I32,      [THRIFT_NUMBER] = WIRE_I32,    [THRIFT_I64] = WIRE_I64,
    [THRIFT_TEXT] = WIRE_BINARY,  [THRIFT_STRUCT] = WIRE_STRUCT, [THRIFT_LIST] = WIRE_LIST,
    [THRIFT_NUMBERS] = WIRE_LIST,
};

static bool read_thrift_member(thrift_reader *t, const thrift_member *m, int wire, char *to) {
    int64_t v = 0;
    if (m->kind == THRIFT_IS_SET) return *(bool *)to = true, skip_field(t, wire, false);
    if (m->kind == THRIFT_BOOL) {
        *(bool *)to = wire == WIRE_TRUE;
        return wire <= WIRE_FALSE ? true : thrift_fault(t, "a field has an unexpected type");
    }
    if (wire != expected_wire[m->kind]) return thrift_fault(t, "a field has an unexpected type");
    switch (m->kind) {
    case THRIFT_I32:
        if (!read_integer(t, INT32_MIN, INT32_MAX, &v)) return false;
        *(int32_t *)to = (int32_t)v;
        return true;
    case THRIFT_NUMBER:
        if (!read_integer(t, INT32_MIN, INT32_MAX, &v)) return false;
        *(thrift_number *)to = (thrift_number){ (int32_t)v, true };
        return true;
    case THRIFT_I64:
        if (!read_integer(t, INT64_MIN, INT64_MAX, &v)) return false;
        *(int64_t *)to = v;
        return true;
    case THRIFT_TEXT: return read_thrift_text(t, to);
    case THRIFT_STRUCT: return thrift_read(t, m->layout, to);
    case THRIFT_LIST: return read_structs(t, m->layout, to);
    case THRIFT_NUMBERS: return read_number_set(t, (uint64_t *)to);
    default: BUG("unknown kind of member");
    }
}

bool thrift_read(thrift_reader *t, const thrift_layout *l, void *out) {
    if (t->depth == MOST_DEPTH) return thrift_fault(t, "the metadata is nested too deeply");
    t->depth++;
    int64_t id = 0;
    bool fine = true;
    for (int wire; fine && next_thrift_field(t, &id, &wire);) {
        const thrift_member *m = l->members, *end = m + l->n;
        while (m < end && m->id != id) m++;
        fine = m < end ? read_thrift_member(t, m, wire, (char *)out + m->offset)
                       : skip_field(t, wire, false);
    }
    t->depth--;
    return fine && !t->wrong;
}
