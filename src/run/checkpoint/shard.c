/* One file of a checkpoint: a safetensors file of what one rank writes, with a checksum of every chunk.
 * A tensor that it holds whole has its own shape in the file, so that a run of one rank leaves files
 * that any reader of safetensors understands; a part of a tensor is a vector. */
#include "checkpoint/checkpoint_internal.h"

#include <stdlib.h>
#include <string.h>

void shard_name(char *buf, size_t n, const char *kind, int rank, int ranks) {
    if (ranks == 1)
        snprintf(buf, n, "%s.safetensors", kind);
    else
        snprintf(buf, n, "%s-%05d-of-%05d.safetensors", kind, rank + 1, ranks);
}

typedef struct shard_writer {
    const shard_piece *piece;
    shard_source from;
    int64_t chunk;   /* elements */
    json_t **hashes; /* of each piece: an array */
    float *buffer;
} shard_writer;

static err emit_piece(void *ctx, int i, st_sink *sink) {
    shard_writer *w = ctx;
    int64_t count = extent_count(&w->piece[i].extent);
    for (int64_t first = 0; first < count; first += w->chunk) {
        int64_t n = MIN(w->chunk, count - first);
        size_t bytes = (size_t)n * sizeof *w->buffer;
        hash_text hash;
        TRY(w->from.get(w->from.ctx, i, first, n, w->buffer));
        hash_print(hash_bytes(w->buffer, bytes, 0), hash);
        json_array_append_new(w->hashes[i], json_string(hash));
        TRY(st_emit(sink, w->buffer, bytes));
    }
    return OK;
}

static st_spec spec_of(const shard_piece *p) {
    st_spec s = { .name = p->name, .dt = DT_F32, .ndim = 1, .dim = { extent_count(&p->extent) } };
    if (extent_is_whole(p->ndim, p->dim, &p->extent)) {
        s.ndim = p->ndim;
        memcpy(s.dim, p->dim, (size_t)p->ndim * sizeof *p->dim);
    }
    return s;
}

static json_t *ints_json(const int64_t *values, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(list, json_integer(values[i]));
    return list;
}

static json_t *slice_json(const shard_piece *p, int64_t offset, json_t *hashes) {
    json_t *slice = json_pack("{s:s, s:I, s:O}", "tensor", p->name, "offset", (json_int_t)offset,
                              "xxh64", hashes);
    if (extent_is_whole(p->ndim, p->dim, &p->extent)) return slice;
    json_object_set_new(slice, "at", ints_json(p->extent.at, p->ndim));
    json_object_set_new(slice, "shape", ints_json(p->extent.dim, p->ndim));
    json_object_set_new(slice, "range", ints_json((int64_t[]){ p->extent.from, p->extent.to }, 2));
    return slice;
}

static void list_shard(const char *name, const shard_piece *piece, int n, json_t **hashes,
                       const st_positions *at, json_t *tensors, json_t *files) {
    hash_text header;
    json_t *slices = json_array();
    for (int i = 0; i < n; i++) {
        const shard_piece *p = &piece[i];
        json_array_append_new(slices, slice_json(p, at->offset[i], hashes[i]));
        json_object_set_new(tensors, p->name,
                            json_pack("{s:s, s:o}", "dtype", dt_safetensors(DT_F32), "shape",
                                      ints_json(p->dim, p->ndim)));
    }
    hash_print(at->header_hash, header);
    json_object_set_new(files, name,
                        json_pack("{s:I, s:I, s:s, s:o}", "bytes", (json_int_t)at->bytes,
                                  "header_bytes", (json_int_t)at->header_bytes, "header_xxh64",
                                  header, "slices", slices));
}

err shard_write(const char *folder, const char *name, const shard_piece *piece, int n,
                shard_source from, int64_t chunk, json_t *tensors, json_t *files) {
    size_t many = (size_t)n + 1;
    BUG_IF(chunk <= 0 || chunk % 4);
    shard_writer w = { .piece = piece, .from = from, .chunk = chunk / 4 };
    st_spec *spec = mem_alloc(many * sizeof *spec);
    st_positions at = { .offset = mem_alloc(many * sizeof *at.offset) };
    const char *path = PATH_IN(folder, name);
    w.hashes = mem_alloc(many * sizeof *w.hashes);
    int64_t longest = 1;
    for (int i = 0; i < n; i++) {
        spec[i] = spec_of(&piece[i]);
        w.hashes[i] = json_array();
        longest = MAX(longest, MIN(w.chunk, extent_count(&piece[i].extent)));
    }
    w.buffer = mem_grow(NULL, (size_t)longest * sizeof *w.buffer);
    err e = st_write_at(path, spec, n, NULL, 0, (st_source){ emit_piece, &w }, &at);
    if (!e) list_shard(name, piece, n, w.hashes, &at, tensors, files);
    for (int i = 0; i < n; i++) json_decref(w.hashes[i]);
    free(w.hashes);
    free(w.buffer);
    free(at.offset);
    free(spec);
    return e;
}
