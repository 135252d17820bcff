/* FlatBuffers, the wire format of Arrow's metadata: tables whose members are found through a vtable.
 *
 *     table    i32: the distance back to its vtable; then its members
 *     vtable   u16: its bytes; u16: the table's bytes; per member a u16: its offset in the table, or 0
 *     member   a number; or a u32: the distance ahead to a table, a string or a vector
 *     vector   u32: its items; then the items
 *
 * Members point forward only, past the beginning of their table, so they cannot form cycles; but tables can be
 * shared, so whoever walks a tree of them limits the number of its nodes. */
#include <string.h>

#include "parquet/parquet_internal.h"

/* @return whether n bytes at an offset are inside the buffer; notes the damage if they are not. */
static bool flat_holds(flatbuffer *b, size_t at, size_t n) {
    if (at <= b->n && n <= b->n - at) return true;
    b->damaged = true;
    return false;
}

static flat_table flat_open(flatbuffer *b, size_t at) {
    flat_table none = { .in = b };
    if (!flat_holds(b, at, 4)) return none;
    int64_t vtable = (int64_t)at - (int32_t)load_u32(b->bytes + at);
    if (vtable < 0 || !flat_holds(b, (size_t)vtable, 4)) {
        b->damaged = true;
        return none;
    }
    const uint8_t *v = b->bytes + vtable;
    size_t size = v[0] | (size_t)v[1] << 8;
    if (size < 4 || !flat_holds(b, (size_t)vtable, size)) {
        b->damaged = true;
        return none;
    }
    return (flat_table){ b, at, v + 4, size / 2 - 2 };
}

flat_table flat_root(flatbuffer *b) {
    if (!flat_holds(b, 0, 4)) return (flat_table){ .in = b };
    return flat_open(b, load_u32(b->bytes));
}

/* @return the offset of a member of n bytes; 0: it is not there. */
static size_t flat_member(const flat_table *t, size_t id, size_t n) {
    if (id >= t->slots) return 0;
    size_t offset = t->vtable[2 * id] | (size_t)t->vtable[2 * id + 1] << 8;
    return offset && flat_holds(t->in, t->at + offset, n) ? t->at + offset : 0;
}

int64_t flat_number(const flat_table *t, int id, size_t bytes, int64_t otherwise) {
    size_t at = flat_member(t, (size_t)id, bytes);
    return at ? load_signed(t->in->bytes + at, bytes) : otherwise;
}

/* @return where what a member points to begins; 0: it is not there. */
static size_t flat_target(const flat_table *t, int id) {
    size_t at = flat_member(t, (size_t)id, 4);
    return at ? at + load_u32(t->in->bytes + at) : 0;
}

flat_table flat_child(const flat_table *t, int id) {
    size_t at = flat_target(t, id);
    return at ? flat_open(t->in, at) : (flat_table){ .in = t->in };
}

flat_vector flat_items(const flat_table *t, int id, size_t item_bytes) {
    size_t at = flat_target(t, id), bytes;
    flat_vector none = { .in = t->in };
    if (!at || !flat_holds(t->in, at, 4)) return none;
    size_t n = load_u32(t->in->bytes + at);
    if (!mul_size(n, item_bytes, &bytes) || !flat_holds(t->in, at + 4, bytes)) return none;
    return (flat_vector){ t->in, at + 4, n };
}

flat_table flat_item(const flat_vector *v, size_t i) {
    size_t at = v->at + 4 * i;
    return flat_open(v->in, at + load_u32(v->in->bytes + at));
}

const char *flat_text(const flat_table *t, int id, arena *memory) {
    flat_vector v = flat_items(t, id, 1);
    char *text = arena_alloc(memory, v.n + 1);
    if (v.n) memcpy(text, v.in->bytes + v.at, v.n);
    return text;
}
