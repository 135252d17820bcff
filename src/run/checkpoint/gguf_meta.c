/* Metadata of a GGUF file: each value behind its key and its type. */
#include "checkpoint/gguf_internal.h"

#include <string.h>

enum { TYPE_U32 = 4, TYPE_I32 = 5, TYPE_F32 = 6, TYPE_BOOL = 7, TYPE_TEXT = 8, TYPE_ARRAY = 9 };

void gguf_put(str *to, uint64_t value, int bytes) {
    uint8_t b[8];
    for (int i = 0; i < bytes; i++) b[i] = (uint8_t)(value >> 8 * i);
    str_add_bytes(to, b, (size_t)bytes);
}

void gguf_put_text(str *to, const char *text) {
    size_t n = strlen(text);
    gguf_put(to, n, 8);
    str_add_bytes(to, text, n);
}

static void put_real(str *to, double value) {
    float x = (float)value;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    gguf_put(to, bits, 4);
}

static void begin_pair(gguf_meta *m, const char *key, int type) {
    gguf_put_text(&m->bytes, key);
    gguf_put(&m->bytes, (uint64_t)type, 4);
    m->pairs++;
}

static void begin_array(gguf_meta *m, const char *key, int type, size_t n) {
    begin_pair(m, key, TYPE_ARRAY);
    gguf_put(&m->bytes, (uint64_t)type, 4);
    gguf_put(&m->bytes, n, 8);
}

void gguf_add_integer(gguf_meta *m, const char *key, int64_t value) {
    BUG_IF(value < 0 || value > UINT32_MAX);
    begin_pair(m, key, TYPE_U32);
    gguf_put(&m->bytes, (uint64_t)value, 4);
}
void gguf_add_real(gguf_meta *m, const char *key, double value) {
    begin_pair(m, key, TYPE_F32);
    put_real(&m->bytes, value);
}
void gguf_add_bool(gguf_meta *m, const char *key, bool value) {
    begin_pair(m, key, TYPE_BOOL);
    gguf_put(&m->bytes, value, 1);
}
void gguf_add_text(gguf_meta *m, const char *key, const char *value) {
    begin_pair(m, key, TYPE_TEXT);
    gguf_put_text(&m->bytes, value);
}
void gguf_add_integers(gguf_meta *m, const char *key, const int32_t *value, size_t n) {
    begin_array(m, key, TYPE_I32, n);
    for (size_t i = 0; i < n; i++) gguf_put(&m->bytes, (uint32_t)value[i], 4);
}
void gguf_add_reals(gguf_meta *m, const char *key, const float *value, size_t n) {
    begin_array(m, key, TYPE_F32, n);
    for (size_t i = 0; i < n; i++) put_real(&m->bytes, value[i]);
}
void gguf_add_texts(gguf_meta *m, const char *key, const char *const *value, size_t n) {
    begin_array(m, key, TYPE_TEXT, n);
    for (size_t i = 0; i < n; i++) gguf_put_text(&m->bytes, value[i]);
}
