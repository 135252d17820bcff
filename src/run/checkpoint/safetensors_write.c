/* Writing safetensors: one file, or a folder of several with an index. */
#include "checkpoint/checkpoint.h"

#include <stdlib.h>
#include <string.h>

#include "io/io.h"

struct st_sink {
    io_writer *to;
    size_t left; /* bytes the tensor being written still lacks */
};

/* The contents of one file: `order` lists indices into specs, in the order of the data. */
typedef struct file_layout {
    const st_spec *specs;
    int *order;
    int n;
} file_layout;

static size_t spec_bytes(const st_spec *s) {
    size_t bytes = dt_size(s->dt);
    BUG_IF(bytes == 0 || s->ndim < 0 || s->ndim > ST_MAX_DIM);
    for (int i = 0; i < s->ndim; i++)
        BUG_IF(s->dim[i] < 0 || !mul_size(bytes, (size_t)s->dim[i], &bytes));
    return bytes;
}

/* Widest element first, stable: with the header padded to 8 bytes every tensor is aligned. */
static void order_by_width(file_layout *p) {
    static const size_t widths[] = { 8, 4, 2, 1 };
    int *sorted = mem_alloc((size_t)(p->n + 1) * sizeof *sorted), n = 0;
    for (size_t w = 0; w < COUNT_OF(widths); w++)
        for (int i = 0; i < p->n; i++)
            if (dt_size(p->specs[p->order[i]].dt) == widths[w]) sorted[n++] = p->order[i];
    BUG_IF(n != p->n);
    memcpy(p->order, sorted, (size_t)n * sizeof *sorted);
    free(sorted);
}

/* ---- header ------------------------------------------------------------------------------ */

static json_t *header_entry(const st_spec *s, size_t from, size_t to) {
    json_t *shape = json_array();
    for (int i = 0; i < s->ndim; i++) json_array_append_new(shape, json_integer(s->dim[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dt_safetensors(s->dt), "shape", shape,
                     "data_offsets", (json_int_t)from, (json_int_t)to);
}

static err header_json(const char *path, const file_layout *p, const st_meta *meta, int n_meta,
                       json_t *header) {
    json_t *texts = json_pack("{s:s}", "format", "pt");
    for (int i = 0; i < n_meta; i++)
        json_object_set_new(texts, meta[i].key, json_string(meta[i].value));
    json_object_set_new(header, "__metadata__", texts);
    size_t at = 0;
    for (int i = 0; i < p->n; i++) {
        const st_spec *s = &p->specs[p->order[i]];
        BUG_IF(json_object_get(header, s->name) != NULL);
        size_t end = at + spec_bytes(s);
        if (json_object_set_new(header, s->name, header_entry(s, at, end)) != 0)
            return ERR("%s: a tensor's name is not valid UTF-8", path);
        at = end;
    }
    return OK;
}

static void find_positions(const file_layout *p, const str *header, st_positions *out) {
    int64_t at = (int64_t)header->len;
    out->header_bytes = at;
    out->header_hash = hash_bytes(header->text, header->len, 0);
    for (int i = 0; i < p->n; i++) {
        out->offset[p->order[i]] = at;
        at += (int64_t)spec_bytes(&p->specs[p->order[i]]);
    }
    out->bytes = at;
}

/* @param out may be NULL. */
static err write_header(io_writer *to, const char *path, const file_layout *p, const st_meta *meta,
                        int n_meta, st_positions *out) {
    err e = OK;
    str text = { 0 };
    char *dump = NULL;
    json_t *header = json_object();
    TRY_CLEAN(header_json(path, p, meta, n_meta, header));
    dump = json_dumps(header, JSON_COMPACT);
    BUG_IF(!dump);
    uint8_t length[8] = { 0 };
    str_add_bytes(&text, length, sizeof length);
    str_add(&text, "%s", dump);
    while (text.len % 8) str_add(&text, " ");
    for (int i = 0; i < 8; i++)
        text.text[i] = (char)((uint64_t)(text.len - sizeof length) >> (8 * i));
    TRY_CLEAN(io_writer_write(to, text.text, text.len));
    if (out) find_positions(p, &text, out);
cleanup:
    free(dump);
    str_free(&text);
    json_decref(header);
    return e;
}

/* ---- one file ---------------------------------------------------------------------------- */

err st_emit(st_sink *s, const void *bytes, size_t n) {
    BUG_IF(n > s->left); /* more than specs[i] states */
    TRY(io_writer_write(s->to, bytes, n));
    s->left -= n;
    return OK;
}

static err write_st_file(const char *path, const file_layout *p, const st_meta *meta, int n_meta,
                         st_source from, st_positions *out) {
    err e = OK;
    st_sink sink = { 0 };
    TRY(io_writer_open(path, &sink.to));
    TRY_CLEAN(write_header(sink.to, path, p, meta, n_meta, out));
    for (int i = 0; i < p->n; i++) {
        sink.left = spec_bytes(&p->specs[p->order[i]]);
        TRY_CLEAN(from.fill(from.ctx, p->order[i], &sink));
        BUG_IF(sink.left != 0); /* less than specs[i] states */
    }
    return io_writer_commit(sink.to);
cleanup:
    io_writer_abort(sink.to);
    return e;
}

err st_write_at(const char *path, const st_spec *specs, int n, const st_meta *meta, int n_meta,
                st_source from, st_positions *out) {
    file_layout p = { specs, mem_alloc((size_t)(n + 1) * sizeof *p.order), n };
    for (int i = 0; i < n; i++) p.order[i] = i;
    order_by_width(&p);
    err e = write_st_file(path, &p, meta, n_meta, from, out);
    free(p.order);
    return e;
}

err st_write(const char *path, const st_spec *specs, int n, const st_meta *meta, int n_meta,
             st_source from) {
    return st_write_at(path, specs, n, meta, n_meta, from, NULL);
}

/* ---- a folder ---------------------------------------------------------------------------- */

/* Splits the ordered tensors over files. @return how many; first[k] is where file k begins, and
 * first[files] the end. */
static int split_files(const file_layout *all, size_t max_bytes, int *first, size_t *total) {
    int files = 0;
    size_t in_file = 0;
    *total = 0;
    for (int i = 0; i < all->n; i++) {
        size_t bytes = spec_bytes(&all->specs[all->order[i]]);
        if (i == 0 || (max_bytes && in_file && bytes > max_bytes - MIN(in_file, max_bytes))) {
            first[files++] = i;
            in_file = 0;
        }
        in_file += bytes;
        *total += bytes;
    }
    first[files] = all->n;
    return files;
}

/* In a folder with both forms the reader would choose the model. */
static err refuse_other_form(const char *path) {
    if (!io_exists(path)) return OK;
    return err_hint(ERR("%s is there already: the folder would hold two models", path),
                    "write into an empty folder, or remove that file first");
}

static err write_shards(const char *folder, const file_layout *all, const int *first, int files,
                        st_source from, json_t *weight_map) {
    str path = { 0 };
    err e = OK;
    for (int k = 0; k < files; k++) {
        file_layout part = { all->specs, all->order + first[k], first[k + 1] - first[k] };
        path.len = 0;
        str_add(&path, "%s/", folder);
        size_t name_at = path.len;
        str_add(&path, "model-%05d-of-%05d.safetensors", k + 1, files);
        TRY_CLEAN(write_st_file(path.text, &part, NULL, 0, from, NULL));
        for (int i = 0; i < part.n; i++)
            json_object_set_new(weight_map, part.specs[part.order[i]].name,
                                json_string(path.text + name_at));
    }
cleanup:
    str_free(&path);
    return e;
}

/* One file, or several with an index. */
static err write_files(const char *folder, const file_layout *all, const int *first, int files,
                       size_t total, st_source from) {
    err e = OK;
    str single = { 0 }, index = { 0 };
    json_t *weight_map = json_object();
    json_t *doc = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)total,
                            "weight_map", weight_map);
    str_add(&single, "%s/%s", folder, ST_SINGLE_FILE);
    str_add(&index, "%s/%s", folder, ST_INDEX_FILE);
    TRY_CLEAN(refuse_other_form(files > 1 ? single.text : index.text));
    if (files > 1) {
        TRY_CLEAN(write_shards(folder, all, first, files, from, weight_map));
        TRY_CLEAN(io_json_write(index.text, doc)); /* last: a folder with it is a complete one */
    } else {
        TRY_CLEAN(write_st_file(single.text, all, NULL, 0, from, NULL));
    }
cleanup:
    json_decref(doc);
    json_decref(weight_map);
    str_free(&single);
    str_free(&index);
    return e;
}

err st_write_folder(const char *folder, const st_spec *specs, int n, size_t max_file_bytes,
                    st_source from) {
    file_layout all = { specs, mem_alloc((size_t)(n + 1) * sizeof *all.order), n };
    int *first = mem_alloc((size_t)(n + 1) * sizeof *first);
    size_t total;
    for (int i = 0; i < n; i++) all.order[i] = i;
    order_by_width(&all);
    int files = split_files(&all, max_file_bytes, first, &total);
    err e = write_files(folder, &all, first, files, total, from);
    free(first);
    free(all.order);
    return e;
}
