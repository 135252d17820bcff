/* Arrow messages are flatbuffers: tables of offsets. They are written front to back: a table, and behind it what it
 * refers to, whose offset is then filled in.
 *
 *     table    i32 distance back to its vtable, then the fields
 *     vtable   u16 its bytes, u16 bytes of the table, u16 offset of each field in the table; 0: it is not there
 *     offset   u32 distance from itself to what it refers to
 *     message  FF FF FF FF, i32 bytes of the metadata, metadata padded to 8 bytes, body
 *
 *     Message { version:i16 header_type:u8 header body_length:i64 }
 *     Schema { endianness:i16 fields:[Field] }
 *     Field { name nullable:u8 type_type:u8 type dictionary children:[Field] }    List {}, Int { bits:i32 signed:u8 }
 *     RecordBatch { length:i64 nodes:[{ length:i64 nulls:i64 }] buffers:[{ offset:i64 length:i64 }] } */
#include "shards/arrow_out.h"

#include <string.h>

enum { MAX_FIELDS = 8 };
enum { VERSION_5 = 4, HEADER_SCHEMA = 1, HEADER_BATCH = 3, TYPE_INT = 2, TYPE_LIST = 12 };

/* A field of a table; size 0: absent. An offset has size 4 and is filled in later. */
typedef struct flat_value {
    int size;
    int64_t value;
} flat_value;

static void align_flat(str *s, size_t base, size_t to) {
    while ((s->len - base) % to) str_add_bytes(s, "", 1);
}

/* Appends a table. @param at [n] where each field is. @return where the table is. */
static size_t add_table(str *s, size_t base, const flat_value *fields, int n, size_t *at) {
    uint16_t vtable[2 + MAX_FIELDS] = { (uint16_t)(4 + 2 * n) };
    size_t size = 4;
    for (int i = 0; i < n; i++) {
        if (!fields[i].size) continue;
        size =
            (size + (size_t)fields[i].size - 1) / (size_t)fields[i].size * (size_t)fields[i].size;
        vtable[2 + i] = (uint16_t)size;
        size += (size_t)fields[i].size;
    }
    vtable[1] = (uint16_t)size;
    align_flat(s, base, 2);
    size_t vtable_at = s->len;
    str_add_bytes(s, vtable, vtable[0]);
    align_flat(s, base, 8);
    size_t table = s->len;
    int32_t back = (int32_t)(table - vtable_at);
    char bytes[64] = { 0 };
    memcpy(bytes, &back, sizeof back);
    for (int i = 0; i < n; i++) {
        if (fields[i].size) memcpy(bytes + vtable[2 + i], &fields[i].value, (size_t)fields[i].size);
        at[i] = table + vtable[2 + i];
    }
    str_add_bytes(s, bytes, size);
    return table;
}

/* Makes the offset at `at` refer to `target`. */
static void refer_to(str *s, size_t at, size_t target) {
    uint32_t distance = (uint32_t)(target - at);
    memcpy(s->text + at, &distance, sizeof distance);
}

static void add_u32(str *s, uint32_t value) { str_add_bytes(s, &value, sizeof value); }

static size_t add_flat_string(str *s, size_t base, const char *text) {
    align_flat(s, base, 4);
    size_t at = s->len;
    add_u32(s, (uint32_t)strlen(text));
    str_add_bytes(s, text, strlen(text) + 1);
    return at;
}

/* A vector of one table, whose offset is at *element, or of none. */
static size_t add_vector(str *s, size_t base, uint32_t n, size_t *element) {
    align_flat(s, base, 4);
    size_t at = s->len;
    add_u32(s, n);
    *element = s->len;
    if (n) add_u32(s, 0);
    return at;
}

/* Appends a vector of pairs of int64. */
static size_t add_pairs(str *s, size_t base, const int64_t (*pairs)[2], uint32_t n) {
    align_flat(s, base, 8);
    add_u32(s, 0); /* so that what follows the count is aligned */
    size_t at = s->len;
    add_u32(s, n);
    str_add_bytes(s, pairs, n * sizeof *pairs);
    return at;
}

/* ---- messages -------------------------------------------------------------------------------- */
/* Begins a message. @return where its metadata begins; *header: the offset to be filled in. */
static size_t begin_arrow_message(str *s, int type, int64_t body, size_t *header) {
    const flat_value fields[] = { { 2, VERSION_5 }, { 1, type }, { 4, 0 }, { 8, body } };
    size_t at[MAX_FIELDS];
    str_add_bytes(s, "\xFF\xFF\xFF\xFF\0\0\0\0", 8);
    size_t base = s->len;
    add_u32(s, 0);
    refer_to(s, base, add_table(s, base, fields, 4, at));
    *header = at[2];
    return base;
}

static void end_arrow_message(str *s, size_t base) {
    align_flat(s, base, 8);
    int32_t n = (int32_t)(s->len - base);
    memcpy(s->text + base - 4, &n, sizeof n);
}

/* Fields: 0 name, 1 nullable, 2 type_type, 3 type, 4 dictionary, 5 children. */
static size_t add_schema_field(str *s, size_t base, const char *name, int type, size_t *at) {
    const flat_value fields[] = { { 4, 0 }, { 1, 1 }, { 1, type }, { 4, 0 }, { 0, 0 }, { 4, 0 } };
    size_t table = add_table(s, base, fields, 6, at);
    refer_to(s, at[0], add_flat_string(s, base, name));
    return table;
}

void arrow_list_schema(const char *column, str *out) {
    const flat_value schema[] = { { 2, 0 }, { 4, 0 } }, integer[] = { { 4, 32 }, { 1, 1 } };
    size_t header, element, at[MAX_FIELDS], list[MAX_FIELDS], item[MAX_FIELDS], unused[MAX_FIELDS];
    size_t base = begin_arrow_message(out, HEADER_SCHEMA, 0, &header);
    refer_to(out, header, add_table(out, base, schema, 2, at));
    refer_to(out, at[1], add_vector(out, base, 1, &element));
    refer_to(out, element, add_schema_field(out, base, column, TYPE_LIST, list));
    refer_to(out, list[3], add_table(out, base, NULL, 0, unused));
    refer_to(out, list[5], add_vector(out, base, 1, &element));
    refer_to(out, element, add_schema_field(out, base, "item", TYPE_INT, item));
    refer_to(out, item[3], add_table(out, base, integer, 2, unused));
    refer_to(out, item[5], add_vector(out, base, 0, &element));
    end_arrow_message(out, base);
}

size_t arrow_batch_head(int64_t rows, int64_t values, str *out) {
    int64_t ends = (rows + 1) * 4, padding = -ends & 7, ids = values * 4;
    const int64_t nodes[][2] = { { rows, 0 }, { values, 0 } };
    const int64_t buffers[][2] = {
        { 0, 0 }, { 0, ends }, { ends + padding, 0 }, { ends + padding, ids }
    };
    const flat_value batch[] = { { 8, rows }, { 4, 0 }, { 4, 0 } };
    size_t header, at[MAX_FIELDS];
    size_t base =
        begin_arrow_message(out, HEADER_BATCH, ends + padding + ids + (-ids & 7), &header);
    refer_to(out, header, add_table(out, base, batch, 3, at));
    refer_to(out, at[1], add_pairs(out, base, nodes, 2));
    refer_to(out, at[2], add_pairs(out, base, buffers, 4));
    end_arrow_message(out, base);
    return (size_t)padding;
}
