/* Safetensors files, read: the rules are numbered in checkpoint.h. Nothing in a file is believed
 * before it is checked, and nothing is copied: tensors point into the mapped file. */
#include "checkpoint/checkpoint.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/io.h"

typedef struct st_shard {
    const char *path;
    io_mapping file;
    st_tensor *tensors; /* in order of names */
    int n;
} st_shard;

struct st_file {
    arena *mem; /* strings and tables of all shards */
    const char *path;
    st_shard *shards;
    int n_shards, cap_shards;
    st_tensor *tensors; /* in order of names */
    int n;
    st_meta *meta;
    int n_meta;
};

/* Every element type of the format. */
static const struct {
    const char *name;
    int bits;
} st_types[] = {
    { "BOOL", 8 },    { "U8", 8 },   { "I8", 8 },   { "F8_E5M2", 8 }, { "F8_E4M3", 8 },
    { "F8_E8M0", 8 }, { "U16", 16 }, { "I16", 16 }, { "F16", 16 },    { "BF16", 16 },
    { "U32", 32 },    { "I32", 32 }, { "F32", 32 }, { "U64", 64 },    { "I64", 64 },
    { "F64", 64 },    { "C64", 64 }, { "F4", 4 },   { "F6_E2M3", 6 }, { "F6_E3M2", 6 },
};

/* Formats that people pass instead of a safetensors file. */
static const struct {
    const char *begins, *is, *remedy;
} foreign_files[] = {
    { "PK\x03\x04", "a zip archive, perhaps a PyTorch .bin or .pt file",
      "save the model with safe_serialization=True, or convert it with the safetensors package" },
    { "version https://git-lfs", "a Git LFS pointer, not the file itself",
      "run `git lfs pull` in the folder it came from" },
    { "GGUF", "a GGUF file", "use the safetensors files the GGUF was made from" },
    { "<!DOCTYPE", "an HTML page", "the download gave a web page: fetch the file again" },
    { "\x80\x02", "a Python pickle", "convert it with the safetensors package" },
    { "\x80\x04\x95", "a Python pickle", "convert it with the safetensors package" },
};

/* ---- one file ---------------------------------------------------------------------------- */

static uint64_t load_le64(const uint8_t *p) {
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--) v = v << 8 | p[i];
    return v;
}

static err check_foreign(const st_shard *s) {
    for (size_t i = 0; i < COUNT_OF(foreign_files); i++) {
        size_t n = strlen(foreign_files[i].begins);
        if (s->file.size >= n && memcmp(s->file.data, foreign_files[i].begins, n) == 0)
            return err_hint(ERR("%s is %s", s->path, foreign_files[i].is), "%s",
                            foreign_files[i].remedy);
    }
    return OK;
}

/* Rules 1 and 2, as far as JSON goes. @param header owned by the caller. */
static err parse_header(const st_shard *s, json_t **header, size_t *data_at) {
    if (s->file.size < 8)
        return ERR("%s: a safetensors file has at least 8 bytes, got %zu", s->path, s->file.size);
    const char *text = (const char *)s->file.data + 8;
    uint64_t n = load_le64(s->file.data);
    /* Any first bytes may be a header's length: those of other formats mean something only where no header follows. */
    if (n > ST_MAX_HEADER || n == 0 || n > s->file.size - 8 || text[0] != '{')
        TRY(check_foreign(s));
    if (n > ST_MAX_HEADER)
        return err_hint(ERR("%s: the header claims %llu bytes, at most %d are allowed", s->path,
                            (unsigned long long)n, ST_MAX_HEADER),
                        "give a safetensors file: this is probably not one");
    if (n > s->file.size - 8)
        return err_hint(ERR("%s is truncated: the header needs %llu bytes, the file has %zu",
                            s->path, (unsigned long long)n + 8, s->file.size),
                        "fetch the file again");
    if (n == 0 || text[0] != '{')
        return err_hint(ERR("%s: the header does not begin with '{'", s->path),
                        "give a safetensors file: this is probably not one");
    json_error_t at;
    *header = json_loadb(text, n, JSON_REJECT_DUPLICATES, &at);
    if (!*header) return ERR("%s: the header is not valid JSON: %s", s->path, at.text);
    if (!json_is_object(*header)) {
        json_decref(*header);
        return ERR("%s: the header is not a JSON object", s->path);
    }
    *data_at = 8 + n;
    return OK;
}

static err parse_type(const st_shard *s, json_t *spec, st_tensor *t, int *bits) {
    const char *name = json_string_value(json_object_get(spec, "dtype"));
    if (!name) return ERR("%s: tensor \"%s\" has no dtype", s->path, t->name);
    for (size_t i = 0; i < COUNT_OF(st_types); i++) {
        if (strcmp(st_types[i].name, name) != 0) continue;
        t->type = st_types[i].name;
        t->dt = dt_from_safetensors(name);
        *bits = st_types[i].bits;
        return OK;
    }
    return ERR("%s: tensor \"%s\" has the unknown dtype \"%s\"", s->path, t->name, name);
}

static err parse_shape(const st_shard *s, json_t *spec, st_tensor *t) {
    json_t *shape = json_object_get(spec, "shape");
    if (!json_is_array(shape)) return ERR("%s: tensor \"%s\" has no shape", s->path, t->name);
    if (json_array_size(shape) > ST_MAX_DIM)
        return ERR("%s: tensor \"%s\" has %zu dimensions, at most %d are read", s->path, t->name,
                   json_array_size(shape), ST_MAX_DIM);
    size_t count = 1;
    for (size_t i = 0; i < json_array_size(shape); i++) {
        json_t *dim = json_array_get(shape, i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return ERR("%s: tensor \"%s\": a dimension is not a count", s->path, t->name);
        t->dim[t->ndim++] = json_integer_value(dim);
        if (!mul_size(count, (size_t)json_integer_value(dim), &count) || count > INT64_MAX)
            return ERR("%s: tensor \"%s\": its shape overflows", s->path, t->name);
    }
    t->count = (int64_t)count;
    return OK;
}

/* Checks rule 3. */
static err parse_range(const st_shard *s, json_t *spec, size_t data_at, int bits, st_tensor *t) {
    json_t *range = json_object_get(spec, "data_offsets");
    json_t *first = json_array_get(range, 0), *last = json_array_get(range, 1);
    if (json_array_size(range) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return ERR("%s: tensor \"%s\": data_offsets is not a pair of integers", s->path, t->name);
    json_int_t from = json_integer_value(first), to = json_integer_value(last);
    if (from < 0 || to < from)
        return ERR("%s: tensor \"%s\": data_offsets [%lld, %lld] is not a range", s->path, t->name,
                   (long long)from, (long long)to);
    size_t data_bytes = s->file.size - data_at, need_bits;
    if ((size_t)to > data_bytes)
        return err_hint(ERR("%s is truncated: tensor \"%s\" ends at byte %lld of the data, the "
                            "file has %zu",
                            s->path, t->name, (long long)to, data_bytes),
                        "fetch the file again");
    t->bytes = (size_t)(to - from);
    if (!mul_size((size_t)t->count, (size_t)bits, &need_bits) || need_bits % 8 ||
        need_bits / 8 != t->bytes)
        return ERR("%s: tensor \"%s\": %lld element_bytes of %s do not take the %zu bytes that "
                   "data_offsets give",
                   s->path, t->name, (long long)t->count, t->type, t->bytes);
    t->data = s->file.data + data_at + from;
    return OK;
}

static err parse_tensor(const st_shard *s, json_t *spec, size_t data_at, st_tensor *t) {
    int bits = 0;
    if (!json_is_object(spec))
        return ERR("%s: the entry of tensor \"%s\" is not an object", s->path, t->name);
    t->where = s->path;
    TRY(parse_type(s, spec, t, &bits));
    TRY(parse_shape(s, spec, t));
    return parse_range(s, spec, data_at, bits, t);
}

SORT_ORDER(by_place, st_tensor, RISING(data) RISING(bytes));

SORT_ORDER(by_tensor_name, st_tensor, RISING_TEXT(name));

/* Checks rule 4. Leaves the tensors in order of their offsets. */
static err check_cover(st_shard *s, size_t data_at) {
    sort_array(s->tensors, (size_t)s->n, sizeof *s->tensors, by_place);
    const uint8_t *at = s->file.data + data_at;
    for (int i = 0; i < s->n; i++) {
        const st_tensor *t = &s->tensors[i];
        const uint8_t *from = t->data;
        if (from != at)
            return ERR("%s: tensor \"%s\" begins at byte %zu of the data, %s: %s", s->path, t->name,
                       (size_t)(from - s->file.data) - data_at,
                       from < at ? "inside the one before" : "after bytes that belong to none",
                       "offsets must cover the data without overlap or hole");
        at += t->bytes;
    }
    size_t left = s->file.size - (size_t)(at - s->file.data);
    if (left) return ERR("%s: %zu bytes after the last tensor belong to none", s->path, left);
    return OK;
}

static err parse_metadata(st_file *f, const st_shard *s, json_t *meta) {
    if (!json_is_object(meta)) return ERR("%s: __metadata__ is not an object", s->path);
    if (f->meta) return OK; /* of several files the first one speaks */
    f->meta = arena_alloc(f->mem, (json_object_size(meta) + 1) * sizeof *f->meta);
    const char *key;
    json_t *value;
    json_object_foreach(meta, key, value) {
        if (!json_is_string(value)) return ERR("%s: __metadata__ \"%s\" is not text", s->path, key);
        f->meta[f->n_meta++] =
            (st_meta){ arena_strdup(f->mem, key), arena_strdup(f->mem, json_string_value(value)) };
    }
    return OK;
}

static err parse_shard(st_file *f, st_shard *s) {
    err e = OK;
    json_t *header = NULL, *spec;
    const char *name;
    size_t data_at;
    TRY(parse_header(s, &header, &data_at));
    s->tensors = arena_alloc(f->mem, (json_object_size(header) + 1) * sizeof *s->tensors);
    json_object_foreach(header, name, spec) {
        if (strcmp(name, "__metadata__") == 0) {
            TRY_CLEAN(parse_metadata(f, s, spec));
            continue;
        }
        st_tensor *t = &s->tensors[s->n++];
        t->name = arena_strdup(f->mem, name);
        TRY_CLEAN(parse_tensor(s, spec, data_at, t));
    }
    TRY_CLEAN(check_cover(s, data_at));
    sort_array(s->tensors, (size_t)s->n, sizeof *s->tensors, by_tensor_name);
cleanup:
    json_decref(header);
    return e;
}

/* @param out borrowed from f, good until the next call. */
static err add_shard(st_file *f, const char *path, const st_shard **out) {
    f->shards = mem_reserve(f->shards, &f->cap_shards, f->n_shards, sizeof *f->shards);
    st_shard *s = &f->shards[f->n_shards];
    *s = (st_shard){ .path = arena_strdup(f->mem, path) };
    TRY(io_map(s->path, &s->file));
    f->n_shards++; /* from here on st_close unmaps it */
    TRY(parse_shard(f, s));
    *out = s;
    return OK;
}

/* ---- a folder of several ----------------------------------------------------------------- */

static const st_tensor *find_in(const st_tensor *tensors, int n, const char *name) {
    st_tensor key = { .name = name };
    return n ? bsearch(&key, tensors, (size_t)n, sizeof *tensors, by_tensor_name) : NULL;
}

static err shard_named(st_file *f, const char *folder, const char *name, const st_shard **out) {
    if (strchr(name, '/') || name[0] == '.')
        return ERR("%s: \"%s\" is not the name of a file in the same folder", f->path, name);
    const char *path = arena_printf(f->mem, "%s/%s", folder, name);
    for (int i = 0; i < f->n_shards; i++) {
        *out = &f->shards[i];
        if (strcmp(f->shards[i].path, path) == 0) return OK;
    }
    return add_shard(f, path, out);
}

static err load_weight_map(st_file *f, const char *folder, json_t *map) {
    const char *name;
    json_t *file;
    if (!json_is_object(map))
        return ERR("%s: expected an object \"weight_map\" of tensor names to files", f->path);
    f->tensors = arena_alloc(f->mem, (json_object_size(map) + 1) * sizeof *f->tensors);
    json_object_foreach(map, name, file) {
        const st_shard *s;
        if (!json_is_string(file))
            return ERR("%s: weight_map \"%s\" is not a file name", f->path, name);
        TRY(shard_named(f, folder, json_string_value(file), &s));
        const st_tensor *t = find_in(s->tensors, s->n, name);
        if (!t)
            return err_hint(ERR("%s: tensor \"%s\" should be in %s, which has no such tensor",
                                f->path, name, s->path),
                            "fetch the index and the files again: they are not of one model");
        f->tensors[f->n++] = *t;
    }
    sort_array(f->tensors, (size_t)f->n, sizeof *f->tensors, by_tensor_name);
    return OK;
}

static err load_index(st_file *f) {
    json_t *index = NULL;
    TRY(io_json_read(f->path, &index));
    const char *slash = strrchr(f->path, '/');
    const char *folder =
        slash ? arena_printf(f->mem, "%.*s", (int)(slash - f->path), f->path) : ".";
    err e = load_weight_map(f, folder, json_object_get(index, "weight_map"));
    json_decref(index);
    return e;
}

/* ---- what the header offers -------------------------------------------------------------- */

static err find_file(st_file *f, const char *path) {
    f->path = arena_strdup(f->mem, path);
    if (!io_is_dir(path)) return OK;
    const char *const names[] = { ST_SINGLE_FILE, ST_INDEX_FILE };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        f->path = arena_printf(f->mem, "%s/%s", path, names[i]);
        if (io_exists(f->path)) return OK;
    }
    return err_hint(ERR("%s holds neither %s nor %s", path, ST_SINGLE_FILE, ST_INDEX_FILE),
                    "give the folder of a model, or a .safetensors file");
}

err st_open(const char *path, st_file **out) {
    err e = OK;
    st_file *f = mem_alloc(sizeof *f);
    const st_shard *s;
    f->mem = arena_new();
    TRY_CLEAN(find_file(f, path));
    if (str_ends(f->path, ".index.json")) {
        TRY_CLEAN(load_index(f));
    } else {
        TRY_CLEAN(add_shard(f, f->path, &s));
        f->tensors = s->tensors;
        f->n = s->n;
    }
    *out = f;
    return OK;
cleanup:
    st_close(f);
    return e;
}

void st_close(st_file *f) {
    if (!f) return;
    for (int i = 0; i < f->n_shards; i++) io_unmap(&f->shards[i].file);
    free(f->shards);
    arena_free(f->mem);
    free(f);
}

int st_count(const st_file *f) { return f->n; }

const st_tensor *st_at(const st_file *f, int i) {
    BUG_IF(i < 0 || i >= f->n);
    return &f->tensors[i];
}

const st_tensor *st_find(const st_file *f, const char *name) {
    return find_in(f->tensors, f->n, name);
}

static void add_shape(str *s, int ndim, const int64_t *dim) {
    str_add(s, "[");
    for (int i = 0; i < ndim; i++) str_add(s, "%s%lld", i ? ", " : "", (long long)dim[i]);
    str_add(s, "]");
}

err st_need(const st_file *f, const char *name, int ndim, const int64_t *dim,
            const st_tensor **out) {
    const st_tensor *t = st_find(f, name);
    if (!t) {
        const char *near = NULL;
        for (int i = 0; i < f->n; i++) near = str_nearer(name, f->tensors[i].name, near);
        err e = ERR("%s has no tensor \"%s\"", f->path, name);
        return near ? err_hint(e, "check the name: the file has \"%s\"", near) : e;
    }
    if (t->ndim != ndim || memcmp(t->dim, dim, (size_t)ndim * sizeof *dim) != 0) {
        str want = { 0 }, got = { 0 };
        add_shape(&want, ndim, dim);
        add_shape(&got, t->ndim, t->dim);
        err e = ERR("%s: tensor \"%s\": expected shape %s; got %s", t->where, name, want.text,
                    got.text);
        str_free(&want);
        str_free(&got);
        return e;
    }
    *out = t;
    return OK;
}

const char *st_metadata(const st_file *f, const char *key) {
    for (int i = 0; i < f->n_meta; i++)
        if (strcmp(f->meta[i].key, key) == 0) return f->meta[i].value;
    return NULL;
}

/* @return the bytes of n element_bytes from `first` on. */
static const uint8_t *element_bytes(const st_tensor *t, int64_t first, int64_t n, size_t *size) {
    BUG_IF(first < 0 || n < 0 || first > t->count - n);
    *size = t->count ? t->bytes / (size_t)t->count : 0;
    BUG_IF(*size * (size_t)t->count != t->bytes); /* a type of less than a byte */
    return (const uint8_t *)t->data + (size_t)first * *size;
}

void st_read(const st_tensor *t, int64_t first, int64_t n, void *dst) {
    size_t size;
    const uint8_t *src = element_bytes(t, first, n, &size);
    if (n) memcpy(dst, src, (size_t)n * size);
}

err st_read_f32(const st_tensor *t, int64_t first, int64_t n, float *dst) {
    if (!dt_is_float(t->dt))
        return ERR("%s: tensor \"%s\" is %s, expected a floating-point type of at most 32 bits",
                   t->where, t->name, t->type);
    size_t size;
    const uint8_t *src = element_bytes(t, first, n, &size);
    if (t->dt == DT_F32) {
        memcpy(dst, src, (size_t)n * size);
        return OK;
    }
    /* A header of odd length leaves the data unaligned: through a buffer, a piece at a time. */
    float aligned[256];
    int64_t piece = (int64_t)(sizeof aligned / MAX(size, 1));
    for (int64_t i = 0; i < n; i += piece) {
        int64_t m = MIN(piece, n - i);
        memcpy(aligned, src + (size_t)i * size, (size_t)m * size);
        dt_to_f32(t->dt, aligned, dst + i, m);
    }
    return OK;
}

void st_release(const st_tensor *t) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)t->data / page * page;
    if (t->bytes) madvise((void *)from, (uintptr_t)t->data + t->bytes - from, MADV_DONTNEED);
}
