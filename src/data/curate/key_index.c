/* The keys of a corpus, as Bloom filters in a file: see curate.h.
 *
 *     | header | bits | header | bits | ...
 *
 * A file holds one filter or several: deduplication against an index writes the filters that it was given and one of
 * its own keys, and `cat` joins indexes. A key is in the index if it is in any of its filters. Numbers are
 * little-endian. The file is mapped. */
#include "curate/dedup_internal.h"

#include <math.h>
#include <stdlib.h>

#define INDEX_MAGIC 0x5845444E49474E49u /* "INGINDEX" */
enum { INDEX_VERSION = 1, INDEX_HASHES_MAX = 64, INDEX_FILTERS_MAX = 4096 };

typedef struct filter_header {
    uint64_t magic;
    uint32_t version, hashes; /* hashes: bits of a key */
    uint64_t settings;        /* hash of the options that make keys */
    uint64_t words;           /* 64 bits each */
    uint64_t keys;            /* that were added */
    uint64_t bits_hash;
    uint64_t header_hash; /* of all before */
    uint64_t reserved;
} filter_header;
_Static_assert(sizeof(filter_header) == 64, "the header is written as it is in memory");

struct key_index {
    io_mapping file;
    const filter_header *filters[INDEX_FILTERS_MAX];
    int n;
};

struct key_filter {
    filter_header head;
    uint64_t *words;
};

static uint64_t header_hash(const filter_header *h) {
    return hash_bytes(h, offsetof(filter_header, header_hash), 0);
}

/* The bit of a key for one of the hashes: `step` is odd, so that all differ. */
static uint64_t bit_number(uint64_t key, uint32_t i, uint64_t words) {
    uint64_t step = hash_mix(key) | 1, h = hash_mix(key + i * step);
    return (uint64_t)((unsigned __int128)h * (words * 64) >> 64);
}

/* ---- reading --------------------------------------------------------------------------------- */
static err index_error(const char *path, const char *what) {
    return err_hint(ERR("%s: %s", path, what),
                    "write it again with `ingot data dedup ... --save-index FILE`");
}

/* Checks the filter at `at` and moves past it. */
static err add_index_filter(key_index *x, const char *path, uint64_t settings, size_t *at) {
    const filter_header *h = (const void *)((const char *)x->file.data + *at);
    size_t left = x->file.size - *at;
    if (left < sizeof *h || h->magic != INDEX_MAGIC)
        return index_error(path, "expected the header of an index of keys");
    if (h->version != INDEX_VERSION)
        return ERR("%s: version %u of an index; expected %d", path, h->version, INDEX_VERSION);
    if (h->header_hash != header_hash(h) || h->words == 0 || h->hashes == 0 ||
        h->hashes > INDEX_HASHES_MAX || h->words > (left - sizeof *h) / 8)
        return index_error(path, "the index is damaged or truncated");
    if (hash_bytes(h + 1, h->words * 8, 0) != h->bits_hash)
        return index_error(path, "the index is damaged: its checksum does not match");
    if (h->settings != settings)
        return err_hint(ERR("%s was made with other options of data dedup", path),
                        "--method, its sizes and the rules for words must be those of the index");
    if (x->n == INDEX_FILTERS_MAX)
        return ERR("%s has more than %d filters", path, INDEX_FILTERS_MAX);
    x->filters[x->n++] = h;
    *at += sizeof *h + h->words * 8;
    return OK;
}

err key_index_open(const char *path, uint64_t settings, key_index **out) {
    key_index *x = mem_alloc(sizeof *x);
    size_t at = 0;
    *out = NULL;
    err e = io_map(path, &x->file);
    if (!e && x->file.size == 0) e = index_error(path, "the file is empty");
    while (!e && at < x->file.size) e = add_index_filter(x, path, settings, &at);
    if (e)
        key_index_close(x);
    else
        *out = x;
    return e;
}

void key_index_close(key_index *x) {
    if (!x) return;
    io_unmap(&x->file);
    free(x);
}

uint64_t key_index_hash(const key_index *x) {
    uint64_t hash = 0;
    for (int i = 0; i < x->n; i++)
        hash = hash_bytes(&x->filters[i]->header_hash, sizeof(uint64_t), hash);
    return hash;
}

bool key_index_has(const key_index *x, uint64_t key) {
    for (int k = 0; k < x->n; k++) {
        const filter_header *h = x->filters[k];
        const uint64_t *words = (const uint64_t *)(h + 1);
        uint32_t i = 0;
        for (; i < h->hashes; i++) {
            uint64_t bit = bit_number(key, i, h->words);
            if (!(words[bit / 64] >> bit % 64 & 1)) break;
        }
        if (i == h->hashes) return true;
    }
    return false;
}

/* ---- writing --------------------------------------------------------------------------------- */
/* The least bits for which a key that was not added is found with this probability: -ln p / ln^2 2 per key. */
static uint64_t filter_words(uint64_t keys, double error) {
    double bits = -log(error) / (M_LN2 * M_LN2) * (double)MAX(keys, (uint64_t)1);
    return (uint64_t)(bits / 64) + 1;
}

size_t key_filter_bytes(uint64_t keys, double error) {
    return (size_t)filter_words(keys, error) * 8;
}

err key_filter_new(uint64_t keys, double error, uint64_t settings, key_filter **out) {
    key_filter *f = mem_alloc(sizeof *f);
    void *map = NULL;
    *out = NULL;
    f->head = (filter_header){ .magic = INDEX_MAGIC,
                               .version = INDEX_VERSION,
                               .hashes = (uint32_t)MAX(lround(-log2(error)), 1L),
                               .settings = settings,
                               .words = filter_words(keys, error),
                               .keys = keys };
    err e = mem_map((size_t)f->head.words * 8, &map);
    if (e) return free(f), e;
    f->words = map;
    *out = f;
    return OK;
}

void key_filter_add(key_filter *f, uint64_t key) {
    for (uint32_t i = 0; i < f->head.hashes; i++) {
        uint64_t bit = bit_number(key, i, f->head.words);
        f->words[bit / 64] |= (uint64_t)1 << bit % 64;
    }
}

void *key_filter_bits(key_filter *f, size_t *bytes) {
    *bytes = (size_t)f->head.words * 8;
    return f->words;
}

static err write_filters(io_writer *w, const key_index *before, const key_filter *f) {
    if (before) TRY(io_writer_write(w, before->file.data, before->file.size));
    TRY(io_writer_write(w, &f->head, sizeof f->head));
    return io_writer_write(w, f->words, (size_t)f->head.words * 8);
}

err key_filter_write(key_filter *f, const key_index *before, const char *path) {
    io_writer *w = NULL;
    f->head.bits_hash = hash_bytes(f->words, (size_t)f->head.words * 8, 0);
    f->head.header_hash = header_hash(&f->head);
    TRY(io_writer_open(path, &w));
    err e = write_filters(w, before, f);
    if (!e) return io_writer_commit(w);
    io_writer_abort(w);
    return e;
}

void key_filter_free(key_filter *f) {
    if (!f) return;
    mem_unmap(f->words, (size_t)f->head.words * 8);
    free(f);
}
