/* Saving and loading a run. The format is described in checkpoint.h. */
#include "checkpoint/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/io.h"

enum { FORMAT = 1 };
#define MODEL_FILE "model.safetensors"
#define OPTIM_FILE "optim.safetensors"
#define FP8_ROWS   "fp8" /* in the optimizer's file */

/* ---- tensors ----------------------------------------------------------------------------- */
typedef struct writer {
    const model *m;
    const plan *p;
    const optimizer *o;
    st_spec *spec;
    int (*of)[2]; /* parameter and state of each spec; state -1: the weights; parameter -1: fp8 */
    int n;
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
        s->dim[0] = optim_state_count(w->o, param, state);
    }
    w->of[w->n][0] = param;
    w->of[w->n++][1] = state;
}

/* The scales of fp8 are of the training, as the optimizer's states are. */
static void add_fp8_rows(writer *w) {
    int64_t n;
    if (!model_fp8_rows(w->m, w->p, &n)) return;
    w->spec[w->n] = (st_spec){ .name = FP8_ROWS, .dt = DT_F32, .ndim = 1, .dim = { n } };
    w->of[w->n++][0] = -1;
}

static err fill_fp8_rows(const writer *w, st_sink *sink) {
    int64_t n;
    const float *rows = model_fp8_rows(w->m, w->p, &n);
    size_t bytes = (size_t)n * sizeof *rows;
    float *values = mem_alloc(bytes);
    err e = plan_get(w->p, values, rows, bytes);
    if (!e) e = st_emit(sink, values, bytes);
    free(values);
    return e;
}

static err fill(void *ctx, int i, st_sink *sink) {
    const writer *w = ctx;
    if (w->of[i][0] < 0) return fill_fp8_rows(w, sink);
    int param = w->of[i][0], state = w->of[i][1];
    const model_param *q = model_param_at(w->m, param);
    int64_t n = state < 0 ? q->dim[0] * q->dim[1] : optim_state_count(w->o, param, state);
    size_t bytes = (size_t)n * sizeof(float);
    float *values = mem_alloc(bytes);
    err e = state < 0 ? model_weights_get(w->m, w->p, 0, param, values)
                      : optim_state_get(w->o, param, state, values);
    if (!e) e = st_emit(sink, values, bytes);
    free(values);
    return e;
}

static err write_tensors(const char *path, const model *m, const plan *p, const optimizer *o) {
    int most = 0;
    for (int i = 0; i < model_params(m); i++) most += o ? optim_states(o, i) : 1;
    writer w = { .m = m, .p = p, .o = o, .names = arena_new() };
    w.spec = mem_alloc((size_t)(most + 1) * sizeof *w.spec);
    w.of = mem_alloc((size_t)(most + 1) * sizeof *w.of);
    for (int i = 0; i < model_params(m); i++) {
        if (!o) add_spec(&w, i, -1);
        for (int k = 0; o && k < optim_states(o, i); k++) add_spec(&w, i, k);
    }
    if (o) add_fp8_rows(&w);
    err e = st_write(path, w.spec, w.n, NULL, 0, (st_source){ fill, &w });
    free(w.spec);
    free(w.of);
    arena_free(w.names);
    return e;
}

/* ---- manifest ---------------------------------------------------------------------------- */
static err file_entry(const char *folder, const char *name, json_t *files) {
    char *path = io_join(folder, name);
    io_mapping map = { 0 };
    err e = io_map(path, &map);
    free(path);
    if (e) return err_trail(e, __FILE__, __LINE__);
    char hash[32];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)hash_bytes(map.data, map.size, 0));
    json_t *f = json_pack("{s:I, s:s}", "bytes", (json_int_t)map.size, "xxh64", hash);
    json_object_set_new(files, name, f);
    io_unmap(&map);
    return OK;
}

static json_t *skips_json(const data_skips *s) {
    json_t *list = json_array();
    for (int i = 0; i < s->n; i++)
        json_array_append_new(
            list, json_pack("[I, I]", (json_int_t)s->at[i].from, (json_int_t)s->at[i].to));
    return list;
}

/* Checkpoints of before windows could be skipped have no list. */
static err read_skips(const json_t *state, const char *name, data_skips *s) {
    *s = (data_skips){ 0 };
    json_t *list = json_object_get(state, "skipped");
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_int_t from, to;
        if (json_unpack(json_array_get(list, i), "[I, I!]", &from, &to) || from < 0 || from >= to)
            return ERR("%s: \"skipped\": expected pairs of numbers, the first the smaller", name);
        TRY(data_skips_add(s, (data_range){ from, to }, 0));
    }
    return OK;
}

static json_t *state_json(const ckpt_state *s) {
    return json_pack(
        "{s:I, s:I, s:I, s:I, s:o, s:b, s:I, s:b, s:{s:f, s:I, s:I}, s:{s:f, s:f, s:f, s:I}}",
        "step", (json_int_t)s->step, "updates", (json_int_t)s->updates, "tokens",
        (json_int_t)s->tokens, "windows", (json_int_t)s->windows, "skipped", skips_json(&s->skips),
        "epoch_offset", (int)s->epoch_offset, "seed", (json_int_t)s->seed, "bytes", (int)s->bytes,
        "loss_scale", "scale", s->scaler.scale, "good_steps", (json_int_t)s->scaler.good_steps,
        "interval", (json_int_t)s->scaler.interval, "noise_scale", "g2", s->noise.g2, "noise",
        s->noise.noise, "decay", s->noise.decay, "seen", (json_int_t)s->noise.seen);
}

static err read_state(const json_t *doc, const char *name, ckpt_state *s) {
    json_t *o, *scale, *noise;
    int64_t seed;
    TRY(io_json_object(doc, name, "state", &o));
    TRY(io_json_int(o, name, "step", &s->step));
    TRY(io_json_int(o, name, "updates", &s->updates));
    TRY(io_json_int(o, name, "tokens", &s->tokens));
    TRY(io_json_int(o, name, "windows", &s->windows));
    TRY(read_skips(o, name, &s->skips));
    s->epoch_offset = json_is_true(json_object_get(o, "epoch_offset"));
    TRY(io_json_int(o, name, "seed", &seed));
    s->seed = (uint64_t)seed;
    TRY(io_json_bool(o, name, "bytes", &s->bytes));
    TRY(io_json_object(o, name, "loss_scale", &scale));
    TRY(io_json_real(scale, name, "scale", &s->scaler.scale));
    TRY(io_json_int(scale, name, "good_steps", &s->scaler.good_steps));
    TRY(io_json_int(scale, name, "interval", &s->scaler.interval));
    TRY(io_json_object(o, name, "noise_scale", &noise));
    TRY(io_json_real(noise, name, "g2", &s->noise.g2));
    TRY(io_json_real(noise, name, "noise", &s->noise.noise));
    TRY(io_json_real(noise, name, "decay", &s->noise.decay));
    TRY(io_json_int(noise, name, "seen", &s->noise.seen));
    if (s->step < 0 || s->updates < 0 || s->tokens < 0 || s->windows < 0)
        return ERR("%s: a count is negative", name);
    return OK;
}

static err read_manifest(const char *path, json_t **doc) {
    char *file = io_join(path, "manifest.json");
    int64_t format = 0;
    err e = io_json_read(file, doc);
    if (!e) e = io_json_int(*doc, file, "format", &format);
    if (!e && format != FORMAT)
        e = err_hint(ERR("%s: format %lld, this version reads %d", file, (long long)format, FORMAT),
                     "use the version of ingot that wrote it");
    free(file);
    return e;
}

err ckpt_read_manifest(const char *path, model_config *c, ckpt_state *s) {
    json_t *doc = NULL, *mo;
    err e = OK;
    char *name = io_join(path, "manifest.json");
    TRY_CLEAN(read_manifest(path, &doc));
    TRY_CLEAN(io_json_object(doc, name, "model", &mo));
    TRY_CLEAN(model_from_json(mo, name, c));
    TRY_CLEAN(read_state(doc, name, s));
cleanup:
    json_decref(doc);
    free(name);
    return e;
}

/* ---- saving ------------------------------------------------------------------------------ */
static err write_all(const char *folder, const model *m, const plan *p, const optimizer *o,
                     const ckpt_state *s) {
    err e = OK;
    json_t *files = json_object(), *doc = NULL;
    char *weights = io_join(folder, MODEL_FILE), *states = io_join(folder, OPTIM_FILE);
    char *manifest = io_join(folder, "manifest.json");
    TRY_CLEAN(write_tensors(weights, m, p, NULL));
    TRY_CLEAN(file_entry(folder, MODEL_FILE, files));
    if (o) {
        TRY_CLEAN(write_tensors(states, m, p, o));
        TRY_CLEAN(file_entry(folder, OPTIM_FILE, files));
    }
    doc = json_pack("{s:i, s:s, s:o, s:o, s:O}", "format", FORMAT, "ingot", INGOT_VERSION, "state",
                    state_json(s), "model", model_to_json(model_conf(m)), "files", files);
    BUG_IF(!doc);
    TRY_CLEAN(io_json_write(manifest, doc));
cleanup:
    json_decref(doc);
    json_decref(files);
    free(weights);
    free(states);
    free(manifest);
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
        char *folder = io_join(root, names[i]), *manifest = io_join(folder, "manifest.json");
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

static err remove_old(const char *root, int64_t keep) {
    int64_t *steps;
    int n;
    err e = OK;
    if (keep <= 0) return OK;
    TRY(list_steps(root, &steps, &n));
    for (int i = 0; i + keep < n && !e; i++) {
        char name[64];
        snprintf(name, sizeof name, "step-%08lld", (long long)steps[i]);
        char *path = io_join(root, name);
        e = io_remove_tree(root, path);
        free(path);
    }
    free(steps);
    return e;
}

static err rename_folder(const char *root, const char *from, const char *to) {
    TRY(io_remove_tree(root, to)); /* the same step saved once more */
    if (rename(from, to))
        return err_hint(ERR("cannot rename %s to %s: %s", from, to, strerror(errno)),
                        "check that the run folder is writable");
    int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd); /* the name survives a crash; a file system without it is no worse off */
        close(fd);
    }
    return OK;
}

err ckpt_save(const char *run_dir, const model *m, const plan *p, const optimizer *o,
              const ckpt_state *s, int64_t keep) {
    BUG_IF(mesh_world(&model_lay(m)->mesh) != 1);
    err e = OK;
    char name[64];
    char *root = io_join(run_dir, "checkpoints");
    snprintf(name, sizeof name, "step-%08lld", (long long)s->step);
    char *final = io_join(root, name);
    snprintf(name, sizeof name, ".step-%08lld.tmp", (long long)s->step);
    char *temp = io_join(root, name);
    TRY_CLEAN(io_make_dirs(root));
    TRY_CLEAN(io_remove_tree(root, temp));
    TRY_CLEAN(io_make_dirs(temp));
    e = write_all(temp, m, p, o, s);
    if (e) {
        err_free(io_remove_tree(root, temp)); /* give the space back; the first error counts */
        e = err_trail(e, __FILE__, __LINE__);
        goto cleanup;
    }
    TRY_CLEAN(rename_folder(root, temp, final));
    TRY_CLEAN(remove_old(root, keep));
cleanup:
    free(root);
    free(final);
    free(temp);
    return e;
}

err ckpt_latest(const char *run_dir, char **path) {
    int64_t *steps;
    int n;
    *path = NULL;
    char *root = io_join(run_dir, "checkpoints");
    err e = list_steps(root, &steps, &n);
    if (!e && n) {
        char name[64];
        snprintf(name, sizeof name, "step-%08lld", (long long)steps[n - 1]);
        *path = io_join(root, name);
    }
    if (!e) free(steps);
    free(root);
    return e;
}

/* ---- loading ----------------------------------------------------------------------------- */
static err verify_file(const char *folder, const json_t *doc, const char *name) {
    json_t *files, *entry;
    const char *want;
    int64_t bytes;
    err e = OK;
    io_mapping map = { 0 };
    char *manifest = io_join(folder, "manifest.json"), *path = io_join(folder, name);
    TRY_CLEAN(io_json_object(doc, manifest, "files", &files));
    TRY_CLEAN(io_json_object(files, manifest, name, &entry));
    TRY_CLEAN(io_json_text(entry, manifest, "xxh64", &want));
    TRY_CLEAN(io_json_int(entry, manifest, "bytes", &bytes));
    TRY_CLEAN(io_map(path, &map));
    char got[32];
    snprintf(got, sizeof got, "%016llx", (unsigned long long)hash_bytes(map.data, map.size, 0));
    if ((int64_t)map.size != bytes || strcmp(got, want)) {
        e = err_hint(ERR("%s is damaged: %zu bytes with checksum %s, the manifest says %lld and %s",
                         path, map.size, got, (long long)bytes, want),
                     "remove this checkpoint's folder to continue from the one before");
        goto cleanup;
    }
cleanup:
    io_unmap(&map);
    free(manifest);
    free(path);
    return e;
}

static err load_weights(const char *path, model *m, plan *p) {
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
        model_weights_set(m, p, 0, i, values);
    }
cleanup:
    free(values);
    st_close(f);
    return e;
}

/* Without them, as from a run in bf16, scales begin anew. */
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
            int64_t n = optim_state_count(o, i, k);
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
            optim_state_set(o, i, k, values);
        }
    TRY_CLEAN(load_fp8_rows(f, m, p));
cleanup:
    free(values);
    st_close(f);
    return e;
}

err ckpt_load(const char *path, model *m, plan *p, optimizer *o) {
    BUG_IF(mesh_world(&model_lay(m)->mesh) != 1);
    err e = OK;
    json_t *doc = NULL;
    char *weights = io_join(path, MODEL_FILE), *states = io_join(path, OPTIM_FILE);
    TRY_CLEAN(read_manifest(path, &doc));
    TRY_CLEAN(verify_file(path, doc, MODEL_FILE));
    TRY_CLEAN(load_weights(weights, m, p));
    if (o && json_object_get(json_object_get(doc, "files"), OPTIM_FILE)) {
        TRY_CLEAN(verify_file(path, doc, OPTIM_FILE));
        TRY_CLEAN(load_optimizer(states, m, p, o));
    }
    TRY_CLEAN(model_refresh_copies(m, p, 0));
    model_fill_constants(m, p);
cleanup:
    json_decref(doc);
    free(weights);
    free(states);
    return e;
}
