/* Loading a checkpoint into a model on any layout: each rank reads what it holds, and verifies the chunks
 * that it reads. */
#include "checkpoint/checkpoint_internal.h"

#include <stdlib.h>
#include <string.h>

/* Holds an open checkpoint. */
struct ckpt_reader {
    char *path;
    json_t *doc;
    ckpt_index *index;
};

/* Files of formats 1 and 2 have one checksum each: they are verified before anything is read of them. */
static err verify_whole_files(const char *path, const json_t *doc) {
    json_t *files, *entry;
    const char *name;
    TRY(io_json_object(doc, PATH_IN(path, CKPT_MANIFEST_FILE), "files", &files));
    json_object_foreach(files, name, entry) { TRY(manifest_verify_file(path, doc, name)); }
    return OK;
}

err ckpt_open(const char *path, ckpt_reader **out) {
    int64_t format;
    ckpt_reader *r = mem_alloc(sizeof *r);
    r->path = strdup(path);
    err e = manifest_read(path, &r->doc, &format);
    if (!e && format < CKPT_FORMAT) e = verify_whole_files(path, r->doc);
    if (!e) e = index_open(path, r->doc, format, &r->index);
    if (e) {
        ckpt_close(r);
        return err_trail(e, __FILE__, __LINE__);
    }
    *out = r;
    return OK;
}

void ckpt_close(ckpt_reader *r) {
    if (!r) return;
    index_close(r->index);
    json_decref(r->doc);
    free(r->path);
    free(r);
}

int ckpt_tensors(const ckpt_reader *r) { return r->index->tensors; }

ckpt_tensor_info ckpt_tensor_at(const ckpt_reader *r, int i) {
    const ckpt_tensor *t = &r->index->tensor[i];
    ckpt_tensor_info info = { t->name, t->dt, t->ndim, .count = t->count };
    memcpy(info.dim, t->dim, sizeof info.dim);
    return info;
}

int ckpt_find_tensor(const ckpt_reader *r, const char *name) {
    const ckpt_tensor *t = index_find(r->index, name);
    return t ? (int)(t - r->index->tensor) : -1;
}

err ckpt_read(ckpt_reader *r, int i, int64_t first, int64_t n, float *to) {
    const ckpt_tensor *t = &r->index->tensor[i];
    ckpt_extent want = extent_whole(t->ndim, t->dim);
    BUG_IF(first < 0 || n < 0 || first + n > want.to);
    want.from = first;
    want.to = first + n;
    return index_read(r->index, t, t->ndim, t->dim, &want, to);
}

int64_t ckpt_bytes_read(const ckpt_reader *r) { return r->index->bytes_read; }

err ckpt_verify(const char *path, int share, int shares, ckpt_size *size) {
    int64_t format;
    json_t *doc = NULL;
    ckpt_index *x = NULL;
    err e = manifest_read(path, &doc, &format);
    if (!e && format < CKPT_FORMAT && share == 0) e = verify_whole_files(path, doc);
    if (!e && (format == CKPT_FORMAT || share == 0)) e = index_open(path, doc, format, &x);
    if (!e && format == CKPT_FORMAT) e = index_verify(x, share, shares);
    if (!e && size && x) {
        *size = (ckpt_size){ .files = x->files, .tensors = x->tensors };
        for (int i = 0; i < x->files; i++) size->bytes += x->file[i].bytes;
    }
    index_close(x);
    json_decref(doc);
    return e;
}

bool tensor_is_weights(const char *name) {
    return !strchr(name, '/') && strcmp(name, CKPT_FP8_ROWS) != 0;
}

err ckpt_describe(const char *path, ckpt_info *out) {
    json_t *doc = NULL, *tensors, *entry;
    const char *name;
    err e = manifest_read(path, &doc, &out->format);
    int64_t format = out->format;
    *out = (ckpt_info){ .format = format };
    if (e) goto cleanup;
    const char *version = json_string_value(json_object_get(doc, "ingot"));
    const char *revision = json_string_value(json_object_get(doc, "revision"));
    snprintf(out->version, sizeof out->version, "%s", version ? version : "");
    snprintf(out->revision, sizeof out->revision, "%s", revision ? revision : "");
    out->step = json_integer_value(json_object_get(json_object_get(doc, "state"), "step"));
    tensors = json_object_get(doc, "tensors");
    out->tensors = (int)json_object_size(tensors);
    json_object_foreach(tensors, name, entry) out->has_states |= !tensor_is_weights(name);
    json_object_foreach(json_object_get(doc, "files"), name, entry) {
        out->bytes += json_integer_value(json_object_get(entry, "bytes"));
        out->has_states |= !strcmp(name, CKPT_OPTIM_FILE);
        out->files++;
    }
cleanup:
    json_decref(doc);
    return e;
}

/* ---- into a model ---------------------------------------------------------------------------- */
/* Tensors are queued, and read together: those of the host's fp32 to where they belong, others to a buffer from which
 * they are put there. */
enum { STAGED_BYTES = 64 << 20 };
typedef struct staged_tensor {
    const holding *h;
    size_t at; /* in the buffer, in elements */
} staged_tensor;
typedef struct loader_job {
    ckpt_reader *from;
    model *m;
    exec *x;
    optimizer *o;
    float *buffer;                   /* [capacity]; owned */
    size_t capacity, used, to_stage; /* to_stage: elements of all tensors that are */
    staged_tensor *staged;           /* owned */
    int n_staged, staged_cap;
} loader_job;

static void put_holding(loader_job *j, const holding *h, const float *values) {
    if (h->param < 0) {
        int64_t n;
        float *rows = model_fp8_rows(j->m, j->x->plan, &n);
        plan_put(j->x->plan, rows, values, (size_t)n * sizeof *rows);
    } else if (h->state < 0) {
        model_weights_set(j->m, j->x->plan, h->param, values);
    } else {
        optim_state_set(j->o, h->param, h->state, values);
    }
}

/* Reads what is queued. */
static err flush_queue(loader_job *j) {
    TRY(index_read_queued(j->from->index));
    for (int i = 0; i < j->n_staged; i++)
        put_holding(j, j->staged[i].h, j->buffer + j->staged[i].at);
    j->n_staged = 0;
    j->used = 0;
    return OK;
}

/* @param out a place for n elements of a tensor that flush_queue puts where it belongs. */
static err stage_tensor(loader_job *j, const holding *h, size_t n, float **out) {
    if (j->used + n > j->capacity) {
        TRY(flush_queue(j));
        size_t want = MAX(n, MIN(j->to_stage, (size_t)STAGED_BYTES / sizeof *j->buffer));
        if (want > j->capacity) {
            free(j->buffer);
            j->buffer = mem_grow(NULL, (j->capacity = want) * sizeof *j->buffer);
        }
    }
    LIST_ADD(j->staged, j->n_staged, j->staged_cap) = (staged_tensor){ h, j->used };
    *out = j->buffer + j->used;
    j->used += n;
    return OK;
}

/* @return an address to which the host can read the file's values as they are; NULL: none. */
static float *holding_in_place(const loader_job *j, const holding *h) {
    dtype dt;
    if (plan_has_device(j->x->plan)) return NULL;
    const void *at = holding_data(j->m, j->x->plan, j->o, h, &dt);
    return dt == DT_F32 ? (float *)at : NULL;
}

static err queue_tensor(loader_job *j, const holding *h) {
    const ckpt_tensor *t;
    ckpt_index *x = j->from->index;
    err e = index_need(x, j->from->path, h->name, h->ndim, h->dim, &t);
    if (e && h->param < 0) { /* as from a run in bf16: scales start from zero */
        err_free(e);
        return OK;
    }
    if (e && h->state >= 0)
        return err_hint(e, "the run was saved with another optimizer: keep optimizer.name, or "
                           "start a new run from it with checkpoint.initial_load_path");
    TRY(e);
    size_t n = (size_t)extent_count(&h->extent);
    if (!n) return OK;
    float *to = holding_in_place(j, h);
    if (!to) TRY(stage_tensor(j, h, n, &to));
    return index_queue(x, t, h->ndim, h->dim, &h->extent, to);
}

/* @return whether it has more than weights. */
static bool has_states(const ckpt_reader *r) {
    for (int i = 0; i < r->index->tensors; i++)
        if (!tensor_is_weights(r->index->tensor[i].name)) return true;
    return false;
}

err ckpt_load(const char *path, model *m, exec *x, optimizer *o) {
    loader_job j = { .m = m, .x = x, .o = o };
    holding *h = NULL;
    err e = OK;
    TRY(ckpt_open(path, &j.from));
    int n = holdings_list(m, x->plan, o && has_states(j.from) ? o : NULL, &h);
    for (int i = 0; i < n; i++)
        if (!holding_in_place(&j, &h[i])) j.to_stage += (size_t)extent_count(&h[i].extent);
    for (int i = 0; i < n; i++) TRY_CLEAN(queue_tensor(&j, &h[i]));
    TRY_CLEAN(flush_queue(&j));
    TRY_CLEAN(model_publish(m, x));
    model_fill_constants(m, x->plan);
cleanup:
    free(h);
    free(j.staged);
    free(j.buffer);
    ckpt_close(j.from);
    return e;
}
