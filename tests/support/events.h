/* A reader of TensorBoard event files, written from the format's description and not from our writer.
 *
 *     event_list l = events_read("runs/a/tb");
 *     double v = events_value(&l, "train/loss", 0);
 *     events_free(&l);
 */
#ifndef INGOT_TESTS_EVENTS_H
#define INGOT_TESTS_EVENTS_H

#include "support/folder.h"

#include <dirent.h>

typedef struct tb_value {
    char tag[96];
    long long step;
    float simple;
    bool has_simple;
    char *text;              /* of a text; owned */
    double num, sum, bucket; /* of a histogram: its count, sum, and sum of its buckets */
} tb_value;
typedef struct event_list {
    tb_value *value;
    int n, capacity;
    int files, starts,
        damaged; /* starts: SessionLog START; damaged: files that end in half a record */
} event_list;

typedef struct proto {
    const uint8_t *at, *end;
    int field, type;
    uint64_t number; /* of a varint or fixed field */
    const uint8_t *bytes;
    size_t n;
} proto;

static inline uint64_t proto_varint(proto *p) {
    uint64_t v = 0;
    for (int shift = 0; p->at < p->end && shift < 64; shift += 7) {
        uint8_t b = *p->at++;
        v |= (uint64_t)(b & 127) << shift;
        if (b < 128) return v;
    }
    fail_msg("a varint has no end");
    return 0;
}
static inline bool proto_next(proto *p) {
    if (p->at == p->end) return false;
    uint64_t tag = proto_varint(p);
    p->field = (int)(tag >> 3);
    p->type = (int)(tag & 7);
    if (p->type == 0) {
        p->number = proto_varint(p);
        return true;
    }
    assert_true(p->type == 1 || p->type == 2 || p->type == 5);
    p->n = p->type == 2 ? (size_t)proto_varint(p) : p->type == 1 ? 8 : 4;
    assert_true(p->n <= (size_t)(p->end - p->at));
    p->bytes = p->at;
    p->at += p->n;
    return true;
}
static inline proto proto_sub(const proto *p) {
    return (proto){ .at = p->bytes, .end = p->bytes + p->n };
}
static inline double proto_double(const uint8_t *p) {
    double v;
    memcpy(&v, p, 8);
    return v;
}

static inline void events_histogram(proto h, tb_value *v) {
    while (proto_next(&h)) {
        if (h.field == 3) v->num = proto_double(h.bytes);
        if (h.field == 4) v->sum = proto_double(h.bytes);
        for (size_t i = 0; h.field == 7 && i < h.n; i += 8) v->bucket += proto_double(h.bytes + i);
    }
}
static inline void events_value_of(event_list *l, proto p, long long step) {
    l->value = mem_reserve(l->value, &l->capacity, l->n, sizeof *l->value);
    tb_value *v = &l->value[l->n++];
    *v = (tb_value){ .step = step };
    while (proto_next(&p)) {
        if (p.field == 1) snprintf(v->tag, sizeof v->tag, "%.*s", (int)p.n, (const char *)p.bytes);
        if (p.field == 2) memcpy(&v->simple, p.bytes, 4), v->has_simple = true;
        if (p.field == 5) events_histogram(proto_sub(&p), v);
        if (p.field != 8) continue;
        for (proto t = proto_sub(&p); proto_next(&t);)
            if (t.field == 8) v->text = strndup((const char *)t.bytes, t.n);
    }
}
static inline void events_event(event_list *l, const uint8_t *bytes, size_t n) {
    long long step = 0;
    for (proto p = { .at = bytes, .end = bytes + n }; proto_next(&p);) {
        if (p.field == 2) step = (long long)p.number;
        if (p.field == 7) l->starts++;
        if (p.field != 5) continue;
        for (proto s = proto_sub(&p); proto_next(&s);)
            if (s.field == 1) events_value_of(l, proto_sub(&s), step);
    }
}

/* Bit by bit, from the polynomial. */
static inline uint32_t events_crc(const uint8_t *p, size_t n) {
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}
static inline void events_file(event_list *l, const char *path) {
    char *text;
    size_t size;
    assert_ok(io_read(path, 1 << 28, &text, &size));
    const uint8_t *p = (const uint8_t *)text;
    size_t at = 0;
    while (at < size) {
        uint64_t n = 0;
        uint32_t crc = 0;
        if (size - at >= 12) memcpy(&n, p + at, 8), memcpy(&crc, p + at + 8, 4);
        if (size - at < 16 || n > size - at - 16) {
            l->damaged++;
            break;
        }
        assert_int_equal(crc, events_crc(p + at, 8));
        memcpy(&crc, p + at + 12 + n, 4);
        assert_int_equal(crc, events_crc(p + at + 12, (size_t)n));
        events_event(l, p + at + 12, (size_t)n);
        at += 16 + (size_t)n;
    }
    free(text);
}
static inline event_list events_read(const char *folder) {
    event_list l = { 0 };
    char **names;
    assert_ok(io_list(folder, &names, &l.files));
    for (int i = 0; i < l.files; i++) {
        char *path = io_join(folder, names[i]);
        events_file(&l, path);
        free(path);
    }
    io_list_free(names, l.files);
    return l;
}
/* @return the i-th value of a tag. */
static inline const tb_value *events_find(const event_list *l, const char *tag, int i) {
    for (int k = 0; k < l->n; k++)
        if (!strcmp(l->value[k].tag, tag) && i-- == 0) return &l->value[k];
    return NULL;
}
static inline void events_free(event_list *l) {
    for (int i = 0; i < l->n; i++) free(l->value[i].text);
    free(l->value);
}

#endif
