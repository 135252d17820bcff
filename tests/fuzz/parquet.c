/* Any bytes as a Parquet file: every column of every row group is read, and every byte of every value
 * touched. tests/fuzz/run builds and runs it. */
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "parquet/parquet.h"

typedef struct bytes {
    const uint8_t *at;
    size_t n;
} bytes;

static err read_bytes(void *ctx, int64_t offset, void *to, size_t n) {
    const bytes *b = ctx;
    BUG_IF(offset < 0 || (uint64_t)offset > b->n || n > b->n - (uint64_t)offset);
    memcpy(to, b->at + offset, n);
    return OK;
}

static volatile uint64_t sum;

static void touch_values(const parquet_pages *p, parquet_kind kind) {
    for (int64_t i = 0; i < p->rows; i++) {
        const parquet_value *v = &p->values[i];
        if (!v->at) continue;
        if (kind < PARQUET_STRING)
            sum += (uint64_t)v->integer;
        else
            sum += hash_bytes(v->at, v->length, 0);
    }
}

static void read_column(const parquet_file *f, int group, int column) {
    parquet_cursor *c = NULL;
    parquet_pages pages = { 0 };
    bool more = true;
    err e = parquet_cursor_open(f, group, column, &c);
    while (!e && more) {
        e = parquet_cursor_next(c, 1000, &pages, &more);
        if (e || !more) break;
        err_free(parquet_decode(&pages));
        touch_values(&pages, parquet_column_at(f, column)->kind);
    }
    err_free(e);
    parquet_pages_free(&pages);
    parquet_cursor_close(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    enum { MOST_READS = 64 }; /* a footer may name the same pages any number of times */
    bytes b = { data, n };
    parquet_source s = { "fuzz", (int64_t)n, &b, read_bytes };
    parquet_file *f = NULL;
    int reads = 0;
    err e = parquet_open(&s, &(parquet_limits){ .page_bytes = 1 << 20 }, NULL, &f);
    if (e) {
        err_free(e);
        return 0;
    }
    for (int g = 0; g < parquet_groups(f); g++)
        for (int i = 0; i < parquet_columns(f) && reads < MOST_READS; i++) {
            e = parquet_check_column(f, i);
            if (!e) read_column(f, g, i), reads++;
            err_free(e);
        }
    parquet_close(f);
    return 0;
}
