/* Saving and loading a run: its tensors, the folder of each step, and which of them are kept. The format
 * is described in checkpoint.h; manifest.c has the manifest. */
#include "checkpoint/checkpoint_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"

#define CHECKPOINTS "checkpoints"
#define TEMPORARY   ".tmp"     /* being written */
#define REPLACED    ".old"     /* while the same step is saved once more */
#define DAMAGED     "damaged-" /* passed over by a run that continued from an older one */
#define FP8_ROWS    "fp8"      /* in the optimizer's file */

/* ---- tensors ----------------------------------------------------------------------------- */
typedef struct writer {
    const model *m;
    exec *x;
    const optimizer *o;
    st_spec *spec;
    /* Of each spec: parameter (-1: the rows of fp8) and state (-1: the weights). */
    int (*source)[2];
    int n, next; /* next: the tensor that ranks gather next */
    arena *names;
} writer;

static void add_spec(writer *w, int param, int state) {
    const model_param *q = model_param_at(w->m, param);
    st_spec *s = &w->spec[w->n];
    *s = (st_spec){ .dt = DT_F32, .ndim = q->ndim, .dim = { q->dim[0], q->dim[1] } };
    s->name = arena_strdup(w->names, q->name);
    if (state >= 0) {
        s->name = arena_printf(w->names, "%s/%s", q->name, optim_state_name(w->o, param, state));
        s->ndim = 1;
        s->dim[0] = shard_state_count(w->m, w->o, param, state);
    }
    w->source[w->n][0] = param;
    w->source[w->n++][1] = state;
}

/* The scales of fp8 belong to the training, as the optimizer's states do. */
static void add_fp8_rows(writer *w) {
    int64_t n;
    if (!model_fp8_rows(w->m, w->x->plan, &n)) return;
    w->spec[w->n] = (st_spec){ .name = FP8_ROWS, .dt = DT_F32, .ndim = 1, .dim = { n } };
    w->source[w->n++][0] = -1;
}

/* The whole tensor, from all ranks. */
static err gather_tensor(writer *w, int i, float *values) {
    int param = w->source[i][0], state = w->source[i][1];
    BUG_IF(i != w->next);
    w->next++;
    if (param < 0) {
        int64_t n;
        const float *rows = model_fp8_rows(w->m, w->x->plan, &n);
        return plan_get(w->x->plan, values, rows, (size_t)n * sizeof *rows);
    }
    return state < 0 ? shard_get_weights(w->m, w->x, param, values)
                     : shard_get_state(w->m, w->x, w->o, param, state, values);
}

static size_t spec_bytes(const st_spec *s) {
    return (size_t)(s->dim[0] * (s->ndim > 1 ? s->dim[1] : 1)) * sizeof(float);
}

static err emit_tensor(void *ctx, int i, st_sink *sink) {
    writer *w = ctx;
    size_t bytes = spec_bytes(&w->spec[i]);
    float *values = mem_alloc(bytes);
    err e = gather_tensor(w, i, values);
    if (!e) e = st_emit(sink, values, bytes);
    free(values);
    return e;
}

/* What is left for the other ranks to gather; for this one, too, after an error. */
static err gather_rest(writer *w) {
    err e = OK;
    while (w->next < w->n && !e) {
        float *values = mem_alloc(spec_bytes(&w->spec[w->next]));
        e = gather_tensor(w, w->next, values);
        free(values);
    }
    return e;
}

/* Rank 0 writes; the others bring what they hold. */
static err write_tensors(const char *path, const model *m, exec *x, const optimizer *o) {
    int most = 0;
    for (int i = 0; i < model_params(m); i++) most += o ? optim_states(o, i) : 1;
    writer w = { .m = m, .x = x, .o = o, .names = arena_new() };
    w.spec = mem_alloc((size_t)(most + 1) * sizeof *w.spec);
    w.source = mem_alloc((size_t)(most + 1) * sizeof *w.source);
    for (int i = 0; i < model_params(m); i++) {
        if (!o) add_spec(&w, i, -1);
        for (int k = 0; o && k < optim_states(o, i); k++) add_spec(&w, i, k);
    }
    if (o) add_fp8_rows(&w);
    err e = OK, rest;
    if (comm_rank(x->comm) == 0)
        e = st_write(path, w.spec, w.n, NULL, 0, (st_source){ emit_tensor, &w });
    rest = gather_rest(&w);
    if (e)
        err_free(rest);
    else
        e = rest;
    free(w.spec);
    free(w.source);
    arena_free(w.names);
    return e;
}

/* ---- saving ------------------------------------------------------------------------------ */
static err write_all(const char *folder, const model *m, exec *x, const optimizer *o,
                     const ckpt_state *s, const json_t *run) {
    static const char *const names[] = { CKPT_MODEL_FILE, CKPT_OPTIM_FILE };
    err e = OK;
    char *weights = io_join(folder, CKPT_MODEL_FILE), *states = io_join(folder, CKPT_OPTIM_FILE);
    TRY_CLEAN(comm_agree(x->comm, write_tensors(weights, m, x, NULL)));
    if (o) TRY_CLEAN(comm_agree(x->comm, write_tensors(states, m, x, o)));
    if (comm_rank(x->comm) == 0)
        TRY_CLEAN(manifest_write(folder, model_conf(m), s, run, names, o ? 2 : 1));
cleanup:
    free(weights);
    free(states);
    return e;
}

/* Steps of the complete checkpoints of a run, ascending. */
static err list_steps(const char *root, int64_t **steps, int *n) {
    char **names;
    int count;
    *steps = NULL;
    *n = 0;
    if (!io_is_dir(root)) return OK;
    TRY(io_list(root, &names, &count));
    *steps = mem_alloc((size_t)(count + 1) * sizeof **steps);
    for (int i = 0; i < count; i++) {
        char *end;
        if (!str_starts(names[i], "step-")) continue;
        long long step = strtoll(names[i] + 5, &end, 10);
        char *folder = io_join(root, names[i]), *manifest = io_join(folder, CKPT_MANIFEST_FILE);
        if (!*end && end != names[i] + 5 && io_exists(manifest)) (*steps)[(*n)++] = step;
        free(folder);
        free(manifest);
    }
    io_list_free(names, count);
    for (int i = 1; i < *n; i++) /* insertion: names may lack leading zeros */
        for (int k = i; k > 0 && (*steps)[k - 1] > (*steps)[k]; k--) {
            int64_t t = (*steps)[k];
            (*steps)[k] = (*steps)[k - 1];
            (*steps)[k - 1] = t;
        }
    return OK;
}

/* @return "ROOT/PREFIXstep-00000012SUFFIX", owned (free). */
static char *step_path(const char *root, const char *prefix, int64_t step, const char *suffix) {
    char name[64];
    snprintf(name, sizeof name, "%sstep-%08lld%s", prefix, (long long)step, suffix);
    return io_join(root, name);
}

/* @return false also when the manifest cannot be read. */
static bool step_is_good(const char *root, int64_t step) {
    char *path = step_path(root, "", step, "");
    json_t *doc = NULL;
    err e = manifest_read(path, &doc);
    bool good = !e && manifest_loss_is_finite(doc);
    err_free(e);
    json_decref(doc);
    free(path);
    return good;
}

/* Removes the oldest beyond `keep`, but never the last one that was saved after a finite loss: of a
 * run that diverges it is the only one worth going back to. */
static err remove_old(const char *root, int64_t keep) {
    int64_t *steps;
    int n;
    err e = OK;
    if (keep <= 0) return OK;
    TRY(list_steps(root, &steps, &n));
    int good = n - 1, oldest_kept = n - (int)MIN(keep, (int64_t)n);
    if (oldest_kept > 0)
        while (good >= 0 && !step_is_good(root, steps[good])) good--;
    for (int i = 0; i < oldest_kept && !e; i++) {
        if (i == good) continue;
        char *path = step_path(root, "", steps[i], "");
        e = io_remove_tree(root, path);
        free(path);
    }
    free(steps);
    return e;
}

static err make_folder(const char *root, const char *temp) {
    TRY(io_make_dirs(root));
    TRY(io_remove_tree(root, temp));
    return io_make_dirs(temp);
}

err ckpt_save(const char *run_dir, const model *m, exec *x, const optimizer *o, const ckpt_state *s,
              const json_t *run, int64_t keep) {
    bool writes = comm_rank(x->comm) == 0;
    err e = OK;
    char *root = io_join(run_dir, CHECKPOINTS);
    char *final = step_path(root, "", s->step, ""),
         *temp = step_path(root, ".", s->step, TEMPORARY);
    char *aside = step_path(root, ".", s->step, REPLACED);
    TRY_CLEAN(comm_agree(x->comm, writes ? make_folder(root, temp) : OK));
    e = comm_agree(x->comm, write_all(temp, m, x, o, s, run));
    if (e) {
        if (writes)
            err_free(io_remove_tree(root, temp)); /* free the space; the first error counts */
        e = err_trail(e, __FILE__, __LINE__);
        goto cleanup;
    }
    if (writes) e = io_replace_tree(root, temp, final, aside);
    if (writes && !e) e = remove_old(root, keep);
    e = comm_agree(x->comm, e);
cleanup:
    free(root);
    free(final);
    free(temp);
    free(aside);
    return e;
}

/* A save that was killed while it replaced a checkpoint left the old one under another name. */
static err recover_entry(const char *root, const char *name) {
    if (!str_starts(name, ".step-")) return OK;
    err e = OK;
    char *path = io_join(root, name);
    if (str_ends(name, TEMPORARY)) e = io_remove_tree(root, path);
    if (str_ends(name, REPLACED)) {
        char *step = strndup(name + 1, strlen(name) - 1 - strlen(REPLACED));
        char *final = io_join(root, step);
        if (io_exists(final))
            e = io_remove_tree(root, path);
        else if (rename(path, final) != 0)
            e = ERR("cannot rename %s to %s: %s", path, final, strerror(errno));
        free(final);
        free(step);
    }
    free(path);
    return e;
}

err ckpt_recover(const char *run_dir) {
    char **names = NULL, *root = io_join(run_dir, CHECKPOINTS);
    int n = 0;
    err e = io_is_dir(root) ? io_list(root, &names, &n) : OK;
    for (int i = 0; i < n && !e; i++) e = recover_entry(root, names[i]);
    io_list_free(names, n);
    free(root);
    return e;
}

err ckpt_latest(const char *run_dir, char **path) {
    int64_t *steps;
    int n;
    *path = NULL;
    char *root = io_join(run_dir, CHECKPOINTS);
    err e = list_steps(root, &steps, &n);
    if (!e && n) *path = step_path(root, "", steps[n - 1], "");
    if (!e) free(steps);
    free(root);
    return e;
}

/* ---- damage ------------------------------------------------------------------------------ */
static err verify_files(const char *path, bool states) {
    json_t *doc = NULL;
    err e = manifest_read(path, &doc);
    if (!e) e = manifest_verify_file(path, doc, CKPT_MODEL_FILE);
    if (!e && states && manifest_lists(doc, CKPT_OPTIM_FILE))
        e = manifest_verify_file(path, doc, CKPT_OPTIM_FILE);
    json_decref(doc);
    return e;
}

/* Tries them from the newest on. @param found the one that is whole, -1 when none is: the error is that
 * of the newest. One of a later version is not damaged, and not passed over. */
static err find_whole(const char *root, const int64_t *steps, int n, int *found) {
    err first = OK;
    *found = -1;
    for (int i = n - 1; i >= 0 && *found < 0; i--) {
        char *path = step_path(root, "", steps[i], "");
        err e = verify_files(path, true);
        bool stop = e && manifest_is_of_later_version(path);
        if (!e) *found = i;
        free(path);
        if (!first)
            first = e;
        else
            err_free(e);
        if (stop) break;
    }
    return first;
}

err ckpt_newest_whole(const char *run_dir, char **path) {
    int64_t *steps;
    int n, found = -1;
    *path = NULL;
    char *root = io_join(run_dir, CHECKPOINTS);
    err e = list_steps(root, &steps, &n);
    if (!e) {
        e = find_whole(root, steps, n, &found);
        if (found >= 0) *path = step_path(root, "", steps[found], "");
        if (e && *path) {
            log_warn("%s; continuing with %s", err_message(e), *path);
            err_free(e);
            e = OK;
        }
        free(steps);
    }
    free(root);
    return e;
}

err ckpt_set_newer_aside(const char *run_dir, int64_t step) {
    int64_t *steps;
    int n;
    char *root = io_join(run_dir, CHECKPOINTS);
    err e = list_steps(root, &steps, &n);
    for (int i = 0; !e && i < n; i++) {
        if (steps[i] <= step) continue;
        char *from = step_path(root, "", steps[i], ""),
             *to = step_path(root, DAMAGED, steps[i], "");
        e = io_remove_tree(root, to);
        if (!e && rename(from, to) != 0)
            e = ERR("cannot rename %s to %s: %s", from, to, strerror(errno));
        free(from);
        free(to);
    }
    free(steps);
    free(root);
    return e;
}

/* ---- loading ----------------------------------------------------------------------------- */
static err load_weights(const char *path, model *m, exec *x) {
    st_file *f;
    err e = OK;
    float *values = NULL;
    TRY(st_open(path, &f));
    for (int i = 0; i < model_params(m); i++) {
        const model_param *q = model_param_at(m, i);
        const st_tensor *t;
        TRY_CLEAN(st_need(f, q->name, q->ndim, q->dim, &t));
        size_t bytes = (size_t)t->count * sizeof *values;
        values = mem_grow(values, bytes);
        TRY_CLEAN(st_read_f32(t, 0, t->count, values));
        shard_put_weights(m, x, i, values);
    }
cleanup:
    free(values);
    st_close(f);
    return e;
}

/* Without them, as from a run in bf16, scales start from zero. */
static err load_fp8_rows(const st_file *f, const model *m, const plan *p) {
    int64_t n;
    float *rows = model_fp8_rows(m, p, &n);
    const st_tensor *t = rows ? st_find(f, FP8_ROWS) : NULL;
    if (!t || t->count != n) return OK;
    float *values = mem_alloc((size_t)n * sizeof *values);
    err e = st_read_f32(t, 0, n, values);
    if (!e) plan_put(p, rows, values, (size_t)n * sizeof *values);
    free(values);
    return e;
}

static err load_optimizer(const char *path, model *m, plan *p, optimizer *o) {
    st_file *f;
    err e = OK;
    float *values = NULL;
    TRY(st_open(path, &f));
    for (int i = 0; i < model_params(m); i++)
        for (int k = 0; k < optim_states(o, i); k++) {
            char name[128];
            const st_tensor *t;
            int64_t n = shard_state_count(m, o, i, k);
            snprintf(name, sizeof name, "%s/%s", model_param_at(m, i)->name,
                     optim_state_name(o, i, k));
            e = st_need(f, name, 1, &n, &t);
            if (e) {
                e = err_hint(e, "the run was saved with another optimizer: keep optimizer.name, or "
                                "start a new run from it with checkpoint.initial_load_path");
                goto cleanup;
            }
            values = mem_grow(values, (size_t)n * sizeof *values);
            TRY_CLEAN(st_read_f32(t, 0, n, values));
            shard_put_state(m, o, i, k, values);
        }
    TRY_CLEAN(load_fp8_rows(f, m, p));
cleanup:
    free(values);
    st_close(f);
    return e;
}

err ckpt_load_verified(const char *path, model *m, exec *x, optimizer *o) {
    err e = OK;
    json_t *doc = NULL;
    char *weights = io_join(path, CKPT_MODEL_FILE), *states = io_join(path, CKPT_OPTIM_FILE);
    TRY_CLEAN(manifest_read(path, &doc));
    TRY_CLEAN(load_weights(weights, m, x));
    if (o && manifest_lists(doc, CKPT_OPTIM_FILE)) TRY_CLEAN(load_optimizer(states, m, x->plan, o));
    TRY_CLEAN(model_publish(m, x));
    model_fill_constants(m, x->plan);
cleanup:
    json_decref(doc);
    free(weights);
    free(states);
    return e;
}

err ckpt_load(const char *path, model *m, exec *x, optimizer *o) {
    TRY(verify_files(path, o != NULL));
    return ckpt_load_verified(path, m, x, o);
}
