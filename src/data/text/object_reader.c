/* The bytes of an object in a store, by ranges that grow: the head of a file costs little, and a whole one few
 * requests. */
#include <stdlib.h>
#include <string.h>

#include "store/store.h"
#include "text/byte_reader_internal.h"

enum { FIRST_BYTES = 64 << 10, MOST_BYTES = 8 << 20 };

struct object_reader {
    const char *url;
    store *s;
    int64_t at, end; /* next byte to fetch, and where to stop */
    char *buffer;
    size_t used, len, next_bytes; /* buffer[used, len) is not read yet; size of the next request */
};

err object_reader_open(const char *url, int64_t from, int64_t to, object_reader **out) {
    store_object o;
    bool found = false;
    object_reader *r = mem_alloc(sizeof *r);
    r->url = url;
    err e = store_open(&r->s);
    if (!e) e = store_head(r->s, url, &found, &o);
    if (!e && !found) e = err_hint(ERR("%s: the object does not exist", url), "check the path");
    if (e) {
        object_reader_close(r);
        return e;
    }
    r->at = MIN(from, o.bytes);
    r->end = to < 0 ? o.bytes : MIN(to, o.bytes);
    r->next_bytes = FIRST_BYTES;
    *out = r;
    return OK;
}

static err fetch_more(object_reader *r) {
    size_t n = (size_t)MIN((int64_t)r->next_bytes, r->end - r->at);
    r->buffer = mem_grow(r->buffer, n);
    TRY(store_get(r->s, r->url, r->at, n, r->buffer));
    r->at += (int64_t)n;
    r->used = 0;
    r->len = n;
    r->next_bytes = MIN(r->next_bytes * 2, (size_t)MOST_BYTES);
    return OK;
}

err object_reader_read(object_reader *r, char *to, size_t n, size_t *got) {
    *got = 0;
    while (n > 0) {
        if (r->used == r->len && r->at >= r->end) return OK;
        if (r->used == r->len) TRY(fetch_more(r));
        size_t now = MIN(n, r->len - r->used);
        memcpy(to, r->buffer + r->used, now);
        r->used += now;
        to += now, n -= now, *got += now;
    }
    return OK;
}

err object_reader_read_at(object_reader *r, int64_t offset, void *to, size_t n) {
    return store_get(r->s, r->url, offset, n, to);
}

void object_reader_close(object_reader *r) {
    if (!r) return;
    store_close(r->s);
    free(r->buffer);
    free(r);
}
