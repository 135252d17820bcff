/* The weights of a Hugging Face folder: into a model's plan, or, one tensor at a time, into a checkpoint. */
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "checkpoint/checkpoint_internal.h"
#include "checkpoint/hf_internal.h"

typedef struct target {
    model *m;
    exec *x;
    holding *hold; /* by parameter */
} target;

typedef struct extent_copy {
    const float *from;
    float *to;
} extent_copy;

static err copy_extent_run(void *ctx, int64_t from, int64_t to, int64_t n) {
    const extent_copy *c = ctx;
    memcpy(c->to + to, c->from + from, (size_t)n * sizeof *c->to);
    return OK;
}

/* Stores this rank's part of a whole parameter. */
static void put_own_extent(const target *to, int i, const float *values) {
    const holding *h = &to->hold[i];
    ckpt_extent whole = extent_whole(h->ndim, h->dim);
    if (extent_is_whole(h->ndim, h->dim, &h->extent)) {
        model_weights_set(to->m, to->x->plan, i, values);
        return;
    }
    extent_copy c = { values, mem_alloc((size_t)(extent_count(&h->extent) + 1) * sizeof *c.to) };
    err e = extents_intersect(h->ndim, h->dim, &whole, &h->extent, copy_extent_run, &c);
    BUG_IF(e);
    model_weights_set(to->m, to->x->plan, i, c.to);
    free(c.to);
}

static err put_weights(void *ctx, int i, const float *values) {
    put_own_extent(ctx, i, values);
    return OK;
}

err hf_load(const hf_family *family, const char *folder, model *m, exec *x) {
    st_file *f;
    target to = { m, x, NULL };
    TRY(hf_open_weights(folder, &f));
    holdings_list(m, x->plan, NULL, &to.hold);
    err e = hf_import_params(family, f, m, put_weights, &to);
    free(to.hold);
    st_close(f);
    TRY(e);
    TRY(model_publish(m, x));
    model_fill_constants(m, x->plan);
    return OK;
}

/* ---- straight to a checkpoint -------------------------------------------------------------------- */
typedef struct stream {
    hf_source from;
    int held; /* the parameter whose values are at hand; -1: none */
    const float *values;
} stream;

static err get_streamed(void *ctx, int i, int64_t first, int64_t n, float *to) {
    stream *s = ctx;
    if (s->held != i) TRY(hf_source_read(&s->from, i, &s->values));
    s->held = i;
    memcpy(to, s->values + first, (size_t)n * sizeof *to);
    return OK;
}

static err write_streamed(const char *folder, stream *s, const ckpt_state *state) {
    const model *m = s->from.m;
    int n = model_params(m);
    json_t *tensors = json_object(), *files = json_object();
    shard_piece *piece = mem_alloc((size_t)(n + 1) * sizeof *piece);
    for (int i = 0; i < n; i++) {
        const model_param *p = model_param_at(m, i);
        piece[i] =
            (shard_piece){ .name = p->name, .ndim = p->ndim, .dim = { p->dim[0], p->dim[1] } };
        piece[i].extent = extent_whole(p->ndim, p->dim);
    }
    err e = shard_write(folder, CKPT_MODEL_FILE, piece, n, (shard_source){ get_streamed, s },
                        CKPT_CHUNK, tensors, files);
    if (!e) e = hf_source_end(&s->from);
    if (!e) e = manifest_write(folder, model_conf(m), state, NULL, tensors, files, CKPT_CHUNK);
    free(piece);
    json_decref(tensors);
    json_decref(files);
    return e;
}

err hf_import_run(const hf_family *family, const char *folder, const model *m,
                  const ckpt_state *state, const char *run_dir) {
    const char *root = ROOT_IN(run_dir, CKPT_FULL), *final = STEP_IN(root, "", state->step, "");
    const char *temp = STEP_IN(root, ".", state->step, STEP_TEMPORARY);
    const char *replaced = STEP_IN(root, ".", state->step, STEP_REPLACED);
    stream s = { .held = -1 };
    st_file *f = NULL;
    err e = OK;
    TRY_CLEAN(hf_open_weights(folder, &f));
    TRY_CLEAN(hf_source_open(family, f, m, &s.from));
    TRY_CLEAN(io_make_dirs(root));
    TRY_CLEAN(io_remove_tree(root, temp)); /* of an import that was killed */
    TRY_CLEAN(io_make_dirs(temp));
    TRY_CLEAN(write_streamed(temp, &s, state));
    TRY_CLEAN(io_replace_tree(root, temp, final, replaced));
cleanup:
    if (e && io_exists(temp)) err_free(io_remove_tree(root, temp));
    if (e) rmdir(root); /* where it holds nothing */
    hf_source_close(&s.from);
    st_close(f);
    return e;
}
