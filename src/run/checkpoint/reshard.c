/* A checkpoint rewritten as another number of files, one tensor at a time: for tools that expect whole
 * tensors in one file, for file systems that dislike many or large files, or to leave optimizer state
 * behind. Loading never needs it. */
#include "checkpoint/checkpoint_internal.h"

#include <stdlib.h>
#include <string.h>

enum { DIVIDED_FROM = 65536 }; /* elements: smaller tensors are in one file */

typedef struct reshard_job {
    ckpt_index *from;
    int *which; /* [pieces] tensors */
    const shard_piece *piece;
} reshard_job;

static err get_resharded(void *ctx, int i, int64_t first, int64_t n, float *to) {
    const reshard_job *j = ctx;
    const ckpt_tensor *t = &j->from->tensor[j->which[i]];
    ckpt_extent want = extent_whole(t->ndim, t->dim);
    want.from = j->piece[i].extent.from + first;
    want.to = want.from + n;
    return index_read(j->from, t, t->ndim, t->dim, &want, to);
}

/* Returns the part of a tensor that file k of n holds. */
static ckpt_extent extent_in_file(const ckpt_tensor *t, int number, int k, int n) {
    ckpt_extent p = extent_whole(t->ndim, t->dim);
    if (t->count < DIVIDED_FROM) {
        if (number % n != k) p.to = 0;
        return p;
    }
    p.from = t->count * k / n;
    p.to = t->count * (k + 1) / n;
    return p;
}

static err write_resharded_file(const char *folder, ckpt_index *from, bool weights, int k, int n,
                                json_t *tensors, json_t *files) {
    char name[64];
    int pieces = 0;
    shard_piece *piece = mem_alloc((size_t)(from->tensors + 1) * sizeof *piece);
    reshard_job j = { from, mem_alloc((size_t)(from->tensors + 1) * sizeof *j.which), piece };
    for (int i = 0; i < from->tensors; i++) {
        const ckpt_tensor *t = &from->tensor[i];
        ckpt_extent p = extent_in_file(t, i, k, n);
        if (tensor_is_weights(t->name) != weights || extent_count(&p) == 0) continue;
        piece[pieces] = (shard_piece){ .name = t->name, .ndim = t->ndim, .extent = p };
        memcpy(piece[pieces].dim, t->dim, sizeof t->dim);
        j.which[pieces++] = i;
    }
    shard_name(name, sizeof name, weights ? "model" : "optim", k, n);
    err e = pieces ? shard_write(folder, name, piece, pieces, (shard_source){ get_resharded, &j },
                                 CKPT_CHUNK, tensors, files)
                   : OK;
    free(j.which);
    free(piece);
    return e;
}

static err write_resharded(const char *folder, const char *path, const json_t *doc, int64_t format,
                           int files, bool weights_only) {
    model_config c;
    ckpt_state s;
    ckpt_index *from = NULL;
    err e = OK;
    json_t *run = NULL, *tensors = json_object(), *list = json_object();
    TRY_CLEAN(ckpt_read_manifest(path, &c, &s, &run));
    TRY_CLEAN(index_open(path, doc, format, &from));
    for (int k = 0; k < files; k++) {
        TRY_CLEAN(write_resharded_file(folder, from, true, k, files, tensors, list));
        if (!weights_only)
            TRY_CLEAN(write_resharded_file(folder, from, false, k, files, tensors, list));
    }
    TRY_CLEAN(manifest_write(folder, &c, &s, run, tensors, list, CKPT_CHUNK));
cleanup:
    index_close(from);
    json_decref(run);
    json_decref(tensors);
    json_decref(list);
    return e;
}

/* The folder that contains a path, and the path without slashes at its end; both owned (free). */
static void split_path(const char *path, char **parent, char **clean) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    *clean = strndup(path, n);
    const char *slash = strrchr(*clean, '/');
    *parent = slash ? strndup(*clean, MAX((size_t)(slash - *clean), 1)) : strdup(".");
}

err ckpt_reshard(const char *path, const char *to, int files, bool weights_only) {
    json_t *doc = NULL;
    int64_t format;
    err e = OK;
    str temp = { 0 }, aside = { 0 };
    char *parent, *final;
    split_path(to, &parent, &final);
    str_add(&temp, "%s.tmp", final);
    str_add(&aside, "%s.old", final);
    if (io_exists(final)) {
        e = err_hint(ERR("%s is there already", final), "give the path of a new folder");
        goto cleanup;
    }
    TRY_CLEAN(ckpt_verify(path, 0, 1, NULL));
    TRY_CLEAN(manifest_read(path, &doc, &format));
    TRY_CLEAN(io_make_dirs(temp.text));
    TRY_CLEAN(write_resharded(temp.text, path, doc, format, files, weights_only));
    TRY_CLEAN(io_replace_tree(parent, temp.text, final, aside.text));
cleanup:
    if (e && temp.text) err_free(io_remove_tree(parent, temp.text));
    json_decref(doc);
    str_free(&temp);
    str_free(&aside);
    free(parent);
    free(final);
    return e;
}
