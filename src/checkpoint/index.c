/* The tensors of a checkpoint on disk: which parts of them lie where, and reading any part of any tensor
 * while verifying only the chunks that it touches. Whatever ranks wrote it, a reader asks for the part
 * that it holds itself (parts.c), so a checkpoint loads into any layout.
 *
 * Formats 1 and 2, whose two files hold whole tensors, are read through the same index: each tensor is
 * one slice of a mapped file. */
#include "checkpoint/checkpoint_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/io.h"

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

static int by_ckpt_name(const void *a, const void *b) {
    return strcmp(((const ckpt_tensor *)a)->name, ((const ckpt_tensor *)b)->name);
}

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

static err check_part_bounds(const char *name, const ckpt_tensor *t, const ckpt_part *p) {
    int64_t elements = 0;
    TRY(count_elements(name, t->name, t->ndim, p->dim, &elements));
    bool fits = p->from <= p->to && p->to <= elements;
    for (int d = 0; d < t->ndim; d++)
        fits = fits && p->dim[d] <= t->dim[d] && p->at[d] <= t->dim[d] - p->dim[d];
    return fits ? OK : ERR("%s: a slice of \"%s\" lies outside of it", name, t->name);
}

static err read_slice_part(const char *name, const json_t *entry, const ckpt_tensor *t,
                           ckpt_part *p) {
    *p = part_whole(t->ndim, t->dim);
    if (!json_object_get(entry, "range")) return OK;
    int64_t range[2];
    TRY(read_ints(entry, name, "at", t->ndim, p->at));
    TRY(read_ints(entry, name, "shape", t->ndim, p->dim));
    TRY(read_ints(entry, name, "range", 2, range));
    p->from = range[0];
    p->to = range[1];
    return check_part_bounds(name, t, p);
}

static int64_t chunk_count(const ckpt_index *x, int64_t bytes) {
    return (bytes + x->chunk - 1) / x->chunk;
}

static int64_t slice_bytes(const ckpt_index *x, const ckpt_slice *s) {
    return part_count(&s->part) * (int64_t)dt_size(x->tensor[s->tensor].dt);
}

static err read_hashes(ckpt_index *x, const char *name, const json_t *entry, ckpt_slice *s) {
    json_t *list;
    int64_t n = chunk_count(x, slice_bytes(x, s));
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
    TRY(read_slice_part(name, entry, t, &s->part));
    TRY(io_json_int(entry, name, "offset", &s->offset));
    int64_t bytes = slice_bytes(x, s), end = x->file[file].bytes;
    if (s->offset < x->file[file].header_bytes || bytes > end || s->offset > end - bytes)
        return ERR("%s: the slice of \"%s\" lies outside of %s", name, of, x->file[file].name);
    return read_hashes(x, name, entry, s);
}

static err read_file_entry(ckpt_index *x, const char *folder, const char *name, const char *key,
                           const json_t *entry, int capacity) {
    json_t *slices;
    int file = x->files++;
    ckpt_file_info *f = &x->file[file];
    *f = (ckpt_file_info){ .fd = -1, .name = arena_strdup(x->mem, key) };
    if (strchr(key, '/')) return ERR("%s: the file \"%s\" lies in another folder", name, key);
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

static int compare_slices(const void *a, const void *b) {
    const ckpt_slice *x = a, *y = b;
    if (x->tensor != y->tensor) return x->tensor < y->tensor ? -1 : 1;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Every element of every tensor is there once: counted, since slices that overlap would leave a hole. */
static err check_coverage(ckpt_index *x, const char *name) {
    sort_array(x->slice, (size_t)x->slices, sizeof *x->slice, compare_slices);
    int at = 0;
    for (int i = 0; i < x->tensors; i++) {
        ckpt_tensor *t = &x->tensor[i];
        int64_t covered = 0;
        t->first_slice = at;
        for (; at < x->slices && x->slice[at].tensor == i; at++)
            covered += part_count(&x->slice[at].part);
        t->n_slices = at - t->first_slice;
        if (covered != t->count)
            return ERR("%s: slices of \"%s\" have %lld elements; expected %lld", name, t->name,
                       (long long)covered, (long long)t->count);
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
    x->buffer = mem_alloc((size_t)x->chunk);
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
    x->slice[x->slices++] = (ckpt_slice){
        .tensor = x->tensors++, .file = file, .part = part_whole(s->ndim, s->dim), .bytes = s->data
    };
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
    char *name = io_join(folder, CKPT_MANIFEST_FILE);
    err e = format == CKPT_FORMAT ? read_manifest_index(folder, doc, name, x)
                                  : open_whole_files(folder, doc, x);
    free(name);
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
    free(x->whole);
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
    int64_t n = part_whole(ndim, dim).to;
    *out = index_find(x, name);
    if (!*out) return ERR("%s has no tensor \"%s\"", folder, name);
    bool same = (*out)->ndim == ndim && !memcmp((*out)->dim, dim, (size_t)ndim * sizeof *dim);
    bool flat = x->format < CKPT_FORMAT && (*out)->ndim == 1 && (*out)->count == n;
    if (same || flat) return OK;
    return ERR("%s: tensor \"%s\" has %lld elements in %d dims; expected %lld in %d", folder, name,
               (long long)(*out)->count, (*out)->ndim, (long long)n, ndim);
}

/* ---- reading --------------------------------------------------------------------------------- */
static err damaged_chunk_error(const ckpt_file_info *f, int64_t from, int64_t bytes, uint64_t got,
                               uint64_t want) {
    return err_hint(ERR("%s is damaged: bytes %lld to %lld have checksum %016llx; the manifest "
                        "lists %016llx",
                        f->path, (long long)from, (long long)(from + bytes),
                        (unsigned long long)got, (unsigned long long)want),
                    "restore it from a copy, or use another checkpoint");
}

static err open_shard_file(ckpt_file_info *f) {
    int64_t bytes;
    if (f->fd >= 0) return OK;
    TRY(io_size(f->path, &bytes));
    if (bytes != f->bytes)
        return err_hint(ERR("%s is damaged: it has %lld bytes; the manifest lists %lld", f->path,
                            (long long)bytes, (long long)f->bytes),
                        "restore it from a copy, or use another checkpoint");
    f->fd = open(f->path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0) return ERR("cannot read %s: %s", f->path, strerror(errno));
    return OK;
}

static err read_file_bytes(const ckpt_file_info *f, int64_t from, int64_t n, uint8_t *to) {
    while (n > 0) {
        ssize_t got = pread(f->fd, to, (size_t)n, (off_t)from);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return ERR("cannot read %s: %s", f->path, strerror(errno));
        if (got == 0) return ERR("%s ends at byte %lld", f->path, (long long)from);
        from += got;
        to += got;
        n -= got;
    }
    return OK;
}

/* Reads and verifies a chunk of a slice whose file is open. */
static err load_chunk(const ckpt_index *x, int slice, int64_t chunk, uint8_t *to) {
    const ckpt_slice *s = &x->slice[slice];
    const ckpt_file_info *f = &x->file[s->file];
    int64_t from = chunk * x->chunk, n = MIN(x->chunk, slice_bytes(x, s) - from);
    TRY(read_file_bytes(f, s->offset + from, n, to));
    uint64_t got = hash_bytes(to, (size_t)n, 0);
    return got == s->hash[chunk] ? OK
                                 : damaged_chunk_error(f, s->offset + from, n, got, s->hash[chunk]);
}

static err begin_chunk(ckpt_index *x, int slice, int64_t chunk) {
    const ckpt_slice *s = &x->slice[slice];
    ckpt_file_info *f = &x->file[s->file];
    TRY(open_shard_file(f));
    x->bytes_read += MIN(x->chunk, slice_bytes(x, s) - chunk * x->chunk);
    return OK;
}

/* Reads a chunk of a slice into the buffer and verifies it, unless it is there already. */
static err read_chunk_verified(ckpt_index *x, int slice, int64_t chunk) {
    if (x->held_slice == slice && x->held_chunk == chunk) return OK;
    x->held_slice = -1;
    TRY(begin_chunk(x, slice, chunk));
    TRY(load_chunk(x, slice, chunk, x->buffer));
    x->held_slice = slice;
    x->held_chunk = chunk;
    return OK;
}

/* ---- chunks that are wanted whole, as they are: threads read them to where they belong ---------
 * They are collected over many tensors and read in the order of the files, so that the system reads ahead, and
 * some threads verify what they have while others read. */
typedef struct whole_chunk {
    int slice, file;
    int64_t chunk, offset; /* offset: in the file */
    uint8_t *to;
    err error;
} whole_chunk;

static err add_whole_chunk(ckpt_index *x, int slice, int64_t chunk, float *to) {
    TRY(begin_chunk(x, slice, chunk));
    mem_reserve((void **)&x->whole, &x->whole_cap, x->n_whole, sizeof *x->whole);
    x->whole[x->n_whole++] = (whole_chunk){ .slice = slice,
                                            .chunk = chunk,
                                            .file = x->slice[slice].file,
                                            .offset = x->slice[slice].offset + chunk * x->chunk,
                                            .to = (uint8_t *)to };
    return OK;
}

static int compare_whole_chunks(const void *a, const void *b) {
    const whole_chunk *x = a, *y = b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static void read_whole_chunk(void *ctx, int64_t i, int worker) {
    ckpt_index *x = ctx;
    whole_chunk *w = &x->whole[i];
    w->error = load_chunk(x, w->slice, w->chunk, w->to);
}

err index_read_queued(ckpt_index *x) {
    err e = OK;
    sort_array(x->whole, (size_t)x->n_whole, sizeof *x->whole, compare_whole_chunks);
    pool_run(x->threads, x->n_whole, read_whole_chunk, x);
    for (int i = 0; i < x->n_whole; i++) {
        if (!e)
            e = x->whole[i].error;
        else
            err_free(x->whole[i].error);
    }
    x->n_whole = 0;
    return e;
}

typedef struct slice_copy {
    ckpt_index *x;
    int slice;
    dtype dt;
    float *to;
    int64_t copied;
} slice_copy;

/* Mapped tensors may be unaligned: through a buffer. */
static void convert_to_f32(dtype dt, const uint8_t *from, float *to, int64_t n) {
    float aligned[1024];
    size_t size = dt_size(dt);
    int64_t most = (int64_t)(sizeof aligned / size);
    if (dt == DT_F32) {
        memcpy(to, from, (size_t)n * size);
        return;
    }
    for (int64_t i = 0; i < n; i += most) {
        int64_t m = MIN(most, n - i);
        memcpy(aligned, from + (size_t)i * size, (size_t)m * size);
        dt_to_f32(dt, aligned, to + i, m);
    }
}

/* n elements from `at` of the slice on, to `to` of what is wanted on. */
static err copy_slice_run(void *ctx, int64_t at, int64_t to, int64_t n) {
    slice_copy *j = ctx;
    const ckpt_slice *s = &j->x->slice[j->slice];
    int64_t size = (int64_t)dt_size(j->dt), chunk = j->x->chunk / size;
    j->copied += n;
    if (s->bytes) {
        convert_to_f32(j->dt, s->bytes + at * size, j->to + to, n);
        return OK;
    }
    while (n > 0) {
        int64_t which = at / chunk, m = MIN(n, (which + 1) * chunk - at);
        int64_t whole = MIN(chunk, part_count(&s->part) - which * chunk);
        if (m == whole && j->dt == DT_F32) {
            TRY(add_whole_chunk(j->x, j->slice, which, j->to + to));
        } else {
            TRY(read_chunk_verified(j->x, j->slice, which));
            convert_to_f32(j->dt, j->x->buffer + (at - which * chunk) * size, j->to + to, m);
        }
        at += m;
        to += m;
        n -= m;
    }
    return OK;
}

err index_queue(ckpt_index *x, const ckpt_tensor *t, int ndim, const int64_t *dim,
                const ckpt_part *want, float *to) {
    slice_copy j = { .x = x, .dt = t->dt, .to = to };
    for (int i = 0; i < t->n_slices; i++) {
        j.slice = t->first_slice + i;
        ckpt_part have = x->slice[j.slice].part;
        if (x->format < CKPT_FORMAT) have = part_whole(ndim, dim); /* of whatever shape */
        TRY(parts_intersect(ndim, dim, &have, want, copy_slice_run, &j));
    }
    if (j.copied != part_count(want))
        return ERR("\"%s\": the checkpoint has %lld of the %lld elements that are read", t->name,
                   (long long)j.copied, (long long)part_count(want));
    return OK;
}

err index_read(ckpt_index *x, const ckpt_tensor *t, int ndim, const int64_t *dim,
               const ckpt_part *want, float *to) {
    BUG_IF(x->n_whole); /* what was queued belongs to others */
    err e = index_queue(x, t, ndim, dim, want, to);
    if (!e) return index_read_queued(x);
    x->n_whole = 0;
    return e;
}

/* ---- verifying ------------------------------------------------------------------------------- */
static err verify_header(ckpt_index *x, ckpt_file_info *f) {
    uint8_t *bytes = mem_alloc((size_t)f->header_bytes + 1);
    err e = open_shard_file(f);
    if (!e) e = read_file_bytes(f, 0, f->header_bytes, bytes);
    x->bytes_read += f->header_bytes;
    uint64_t got = e ? 0 : hash_bytes(bytes, (size_t)f->header_bytes, 0);
    if (!e && got != f->header_hash)
        e = damaged_chunk_error(f, 0, f->header_bytes, got, f->header_hash);
    free(bytes);
    return e;
}

err index_verify(ckpt_index *x, int part, int parts) {
    int64_t number = 0;
    BUG_IF(x->format != CKPT_FORMAT);
    for (int i = 0; i < x->files; i++)
        if (number++ % parts == part) TRY(verify_header(x, &x->file[i]));
    for (int i = 0; i < x->slices; i++)
        for (int64_t k = 0, n = chunk_count(x, slice_bytes(x, &x->slice[i])); k < n; k++)
            if (number++ % parts == part) TRY(read_chunk_verified(x, i, k));
    return OK;
}
