/* The tensors of a checkpoint on disk: which extents of them are stored where. index_read.c reads them. Whatever ranks
 * wrote it, a reader asks for the extent that it holds itself (extents.c), so a checkpoint loads into any layout.
 *
 * Formats 1 and 2, whose two files hold whole tensors, are read through the same index: each tensor is
 * one slice of a mapped file. */
#include "checkpoint/checkpoint_internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- format 3: from the manifest ---------------------------------------------------------- */
static err read_ints(const json_t *object, const char *name, const char *key, int n, int64_t *out) {
    json_t *list;
    TRY(io_json_array(object, name, key, &list));
    if ((int)json_array_size(list) != n)
        return ERR("%s: \"%s\": expected %d numbers, got %zu", name, key, n, json_array_size(list));
    for (int i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, (size_t)i);
        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return ERR("%s: \"%s\": expected whole numbers from 0 on", name, key);
        out[i] = json_integer_value(v);
    }
    return OK;
}

static err count_elements(const char *name, const char *what, int ndim, const int64_t *dim,
                          int64_t *out) {
    size_t n = 1;
    for (int d = 0; d < ndim; d++)
        if (!mul_size(n, (size_t)dim[d], &n) || n > INT64_MAX / 8)
            return ERR("%s: \"%s\" has too many elements", name, what);
    *out = (int64_t)n;
    return OK;
}

static err read_tensor(const char *name, const char *key, const json_t *entry, ckpt_tensor *t) {
    const char *type;
    json_t *shape;
    if (!json_is_object(entry)) return ERR("%s: \"%s\": expected an object", name, key);
    TRY(io_json_text(entry, name, "dtype", &type));
    t->dt = dt_from_safetensors(type);
    if (!dt_is_float(t->dt))
        return ERR("%s: \"%s\" is %s, expected a floating-point type", name, key, type);
    TRY(io_json_array(entry, name, "shape", &shape));
    t->ndim = (int)MIN(json_array_size(shape), (size_t)ST_MAX_DIM + 1);
    if (t->ndim > ST_MAX_DIM) return ERR("%s: \"%s\" has too many dims", name, key);
    TRY(read_ints(entry, name, "shape", t->ndim, t->dim));
    return count_elements(name, key, t->ndim, t->dim, &t->count);
}

SORT_ORDER(by_ckpt_name, ckpt_tensor, RISING_TEXT(name));

static err read_tensors(const json_t *doc, const char *name, ckpt_index *x) {
    json_t *tensors, *entry;
    const char *key;
    TRY(io_json_object(doc, name, "tensors", &tensors));
    x->tensor = arena_alloc(x->mem, (json_object_size(tensors) + 1) * sizeof *x->tensor);
    json_object_foreach(tensors, key, entry) {
        ckpt_tensor *t = &x->tensor[x->tensors++];
        t->name = arena_strdup(x->mem, key);
        TRY(read_tensor(name, key, entry, t));
    }
    sort_array(x->tensor, (size_t)x->tensors, sizeof *x->tensor, by_ckpt_name);
    return OK;
}

static err check_extent_bounds(const char *name, const ckpt_tensor *t, const ckpt_extent *p) {
    int64_t elements = 0;
    TRY(count_elements(name, t->name, t->ndim, p->dim, &elements));
    bool fits = p->from <= p->to && p->to <= elements;
    for (int d = 0; d < t->ndim; d++)
        fits = fits && p->dim[d] <= t->dim[d] && p->at[d] <= t->dim[d] - p->dim[d];
    return fits ? OK : ERR("%s: a slice of \"%s\" is outside the tensor", name, t->name);
}

static err read_slice_extent(const char *name, const json_t *entry, const ckpt_tensor *t,
                             ckpt_extent *p) {
    *p = extent_whole(t->ndim, t->dim);
    if (!json_object_get(entry, "range")) return OK;
    int64_t range[2];
    TRY(read_ints(entry, name, "at", t->ndim, p->at));
    TRY(read_ints(entry, name, "shape", t->ndim, p->dim));
    TRY(read_ints(entry, name, "range", 2, range));
    p->from = range[0];
    p->to = range[1];
    return check_extent_bounds(name, t, p);
}

int64_t slice_bytes(const ckpt_index *x, const ckpt_slice *s) {
    return extent_count(&s->extent) * (int64_t)dt_size(x->tensor[s->tensor].dt);
}

int64_t slice_chunks(const ckpt_index *x, const ckpt_slice *s) {
    return (slice_bytes(x, s) + x->chunk - 1) / x->chunk;
}

static err read_hashes(ckpt_index *x, const char *name, const json_t *entry, ckpt_slice *s) {
    json_t *list;
    int64_t n = slice_chunks(x, s);
    TRY(io_json_array(entry, name, "xxh64", &list));
    if ((int64_t)json_array_size(list) != n)
        return ERR("%s: \"%s\": expected %lld checksums, got %zu", name, x->tensor[s->tensor].name,
                   (long long)n, json_array_size(list));
    s->hash = arena_alloc(x->mem, (size_t)(n + 1) * sizeof *s->hash);
    for (int64_t i = 0; i < n; i++) {
        const char *text = json_string_value(json_array_get(list, (size_t)i));
        char *end = NULL;
        if (text) s->hash[i] = strtoull(text, &end, 16);
        if (!text || end != text + 16 || *end)
            return ERR("%s: \"%s\": a checksum is not sixteen hexadecimal digits", name,
                       x->tensor[s->tensor].name);
    }
    return OK;
}

static err read_slice(ckpt_index *x, const char *name, const json_t *entry, int file,
                      ckpt_slice *s) {
    const char *of;
    TRY(io_json_text(entry, name, "tensor", &of));
    const ckpt_tensor *t = index_find(x, of);
    if (!t) return ERR("%s: a slice of \"%s\", which is not a tensor of it", name, of);
    s->tensor = (int)(t - x->tensor);
    s->file = file;
    TRY(read_slice_extent(name, entry, t, &s->extent));
    TRY(io_json_int(entry, name, "offset", &s->offset));
    int64_t bytes = slice_bytes(x, s), end = x->file[file].bytes;
    if (s->offset < x->file[file].header_bytes || bytes > end || s->offset > end - bytes)
        return ERR("%s: the slice of \"%s\" is outside %s", name, of, x->file[file].name);
    return read_hashes(x, name, entry, s);
}

static err read_file_entry(ckpt_index *x, const char *folder, const char *name, const char *key,
                           const json_t *entry, int capacity) {
    json_t *slices;
    int file = x->files++;
    ckpt_file_info *f = &x->file[file];
    *f = (ckpt_file_info){ .fd = -1, .name = arena_strdup(x->mem, key) };
    if (strchr(key, '/')) return ERR("%s: the file \"%s\" is in another folder", name, key);
    f->path = io_join(folder, key);
    TRY(io_json_int(entry, name, "bytes", &f->bytes));
    TRY(io_json_int(entry, name, "header_bytes", &f->header_bytes));
    TRY(hash_read(entry, name, "header_xxh64", &f->header_hash));
    if (f->header_bytes < 0 || f->bytes < f->header_bytes)
        return ERR("%s: the sizes of %s are wrong", name, key);
    TRY(io_json_array(entry, name, "slices", &slices));
    for (size_t i = 0; i < json_array_size(slices); i++) {
        BUG_IF(x->slices >= capacity);
        TRY(read_slice(x, name, json_array_get(slices, i), file, &x->slice[x->slices++]));
    }
    return OK;
}

SORT_ORDER(compare_slices, ckpt_slice, RISING(tensor) RISING(file) RISING(offset));

/* Every element of every tensor is there once: counted, since slices that overlap would leave a hole. */
static err check_coverage(ckpt_index *x, const char *name) {
    sort_array(x->slice, (size_t)x->slices, sizeof *x->slice, compare_slices);
    int at = 0;
    for (int i = 0; i < x->tensors; i++) {
        ckpt_tensor *t = &x->tensor[i];
        int64_t covered = 0;
        t->first_slice = at;
        for (; at < x->slices && x->slice[at].tensor == i; at++)
            covered += extent_count(&x->slice[at].extent);
        t->n_slices = at - t->first_slice;
        if (covered != t->count)
            return err_lasting(ERR("%s: slices of \"%s\" have %lld elements; expected %lld", name,
                                   t->name, (long long)covered, (long long)t->count));
    }
    return OK;
}

static err read_manifest_index(const char *folder, const json_t *doc, const char *name,
                               ckpt_index *x) {
    json_t *files, *entry;
    const char *key;
    size_t most = 0;
    TRY(io_json_int(doc, name, "chunk_bytes", &x->chunk));
    if (x->chunk <= 0 || x->chunk % 8 || x->chunk > 1 << 30)
        return ERR("%s: \"chunk_bytes\" is %lld", name, (long long)x->chunk);
    TRY(read_tensors(doc, name, x));
    TRY(io_json_object(doc, name, "files", &files));
    json_object_foreach(files, key, entry) most +=
        json_array_size(json_object_get(entry, "slices"));
    x->file = arena_alloc(x->mem, (json_object_size(files) + 1) * sizeof *x->file);
    x->slice = arena_alloc(x->mem, (most + 1) * sizeof *x->slice);
    json_object_foreach(files, key, entry) {
        TRY(read_file_entry(x, folder, name, key, entry, (int)most));
    }
    TRY(check_coverage(x, name));
    return OK;
}

/* ---- formats 1 and 2: from the files ------------------------------------------------------- */
static void add_whole_tensor(ckpt_index *x, const st_tensor *s, int file) {
    ckpt_tensor *t = &x->tensor[x->tensors];
    *t = (ckpt_tensor){ .name = s->name,
                        .dt = s->dt,
                        .ndim = s->ndim,
                        .count = s->count,
                        .first_slice = x->slices,
                        .n_slices = 1 };
    memcpy(t->dim, s->dim, sizeof t->dim);
    x->slice[x->slices++] = (ckpt_slice){ .tensor = x->tensors++,
                                          .file = file,
                                          .extent = extent_whole(s->ndim, s->dim),
                                          .bytes = s->data };
}

/* Slices follow their tensors when these are put in order. */
static void sort_whole_tensors(ckpt_index *x) {
    sort_array(x->tensor, (size_t)x->tensors, sizeof *x->tensor, by_ckpt_name);
    for (int i = 0; i < x->tensors; i++) x->slice[x->tensor[i].first_slice].tensor = i;
    sort_array(x->slice, (size_t)x->slices, sizeof *x->slice, compare_slices);
    for (int i = 0; i < x->tensors; i++) x->tensor[i].first_slice = i;
}

static err open_whole_files(const char *folder, const json_t *doc, ckpt_index *x) {
    static const char *const names[] = { CKPT_MODEL_FILE, CKPT_OPTIM_FILE };
    const json_t *files = json_object_get(doc, "files");
    size_t most = 0;
    x->chunk = CKPT_CHUNK;
    x->file = arena_alloc(x->mem, COUNT_OF(names) * sizeof *x->file);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (i > 0 && !json_object_get(files, names[i])) continue;
        ckpt_file_info *f = &x->file[x->files];
        *f = (ckpt_file_info){ .fd = -1, .name = names[i], .path = io_join(folder, names[i]) };
        TRY(st_open(f->path, &x->st[x->files++]));
        most += (size_t)st_count(x->st[x->files - 1]);
        TRY(io_size(f->path, &f->bytes));
    }
    x->tensor = arena_alloc(x->mem, (most + 1) * sizeof *x->tensor);
    x->slice = arena_alloc(x->mem, (most + 1) * sizeof *x->slice);
    for (int i = 0; i < x->files; i++)
        for (int k = 0; k < st_count(x->st[i]); k++) add_whole_tensor(x, st_at(x->st[i], k), i);
    sort_whole_tensors(x);
    return OK;
}

/* ---- opening ------------------------------------------------------------------------------- */
err index_open(const char *folder, const json_t *doc, int64_t format, ckpt_index **out) {
    ckpt_index *x = *out = mem_alloc(sizeof *x);
    x->format = format;
    x->mem = arena_new();
    x->held_slice = -1;
    const char *name = PATH_IN(folder, CKPT_MANIFEST_FILE);
    err e = format == CKPT_FORMAT ? read_manifest_index(folder, doc, name, x)
                                  : open_whole_files(folder, doc, x);
    if (!e) return OK;
    index_close(x);
    *out = NULL;
    return err_trail(e, __FILE__, __LINE__);
}

void index_close(ckpt_index *x) {
    if (!x) return;
    for (int i = 0; i < x->files; i++) {
        if (x->file[i].fd >= 0) close(x->file[i].fd);
        free(x->file[i].path);
    }
    for (size_t i = 0; i < COUNT_OF(x->st); i++) st_close(x->st[i]);
    pool_free(x->readers);
    free(x->queued);
    free(x->runs);
    free(x->staging);
    free(x->buffer);
    arena_free(x->mem);
    free(x);
}

const ckpt_tensor *index_find(const ckpt_index *x, const char *name) {
    ckpt_tensor key = { .name = name };
    return bsearch(&key, x->tensor, (size_t)x->tensors, sizeof key, by_ckpt_name);
}

err index_need(const ckpt_index *x, const char *folder, const char *name, int ndim,
               const int64_t *dim, const ckpt_tensor **out) {
    int64_t n = extent_whole(ndim, dim).to;
    *out = index_find(x, name);
    if (!*out) return ERR("%s has no tensor \"%s\"", folder, name);
    bool same = (*out)->ndim == ndim && !memcmp((*out)->dim, dim, (size_t)ndim * sizeof *dim);
    bool flat = x->format < CKPT_FORMAT && (*out)->ndim == 1 && (*out)->count == n;
    if (same || flat) return OK;
    return ERR("%s: tensor \"%s\" has %lld elements in %d dims; expected %lld in %d", folder, name,
               (long long)(*out)->count, (*out)->ndim, (long long)n, ndim);
}
