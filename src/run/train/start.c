/* Chooses how a run begins: from its own last checkpoint, the weights of another run, a Hugging Face model, or
 * nothing at all.
 *
 *     RUN has a checkpoint                    resume: its model, optimizer state and position
 *     checkpoint.initial_load_path is
 *         a run, or a checkpoint              a new run with that model and its weights
 *         a Hugging Face folder               the same, imported on the fly
 *     neither                                 a new run with the config's model and random weights
 *
 * Weights bring their model and their tokenizer along. What the config states beside them is compared,
 * never ignored: a run that is continued by the command that began it states the same again. */
#include "resume_internal.h"
#include "start_internal.h"
#include "trainer_internal.h"

#include <stdlib.h>
#include <string.h>

#include "io/io.h"
#include "store/store.h"

/* ---- out of a store -----------------------------------------------------------------------
 * With checkpoint.upload, the newest checkpoint of folder and store together is continued from. A run or a
 * checkpoint in a store that another run begins with is downloaded into RUN/.download, which is removed
 * once it is loaded. */
#define DOWNLOAD ".download"

/* Rank 0 downloads. @param step that it downloaded, on every rank; -1: none. */
static err download_shared(trainer *t, const char *url, const char *folder, int64_t after,
                           int64_t *step) {
    err e = OK;
    *step = -1;
    if (is_first_rank(t)) {
        e = folder_make_locked(&t->folder);
        if (!e) e = ckpt_download(url, folder, after, step);
    }
    TRY(comm_agree(t->x.comm, e));
    double found = is_first_rank(t) ? (double)*step : 0;
    TRY(comm_total(t->x.comm, &found, 1));
    *step = (int64_t)found;
    return OK;
}

/* Replaces a URL by the folder that holds what was downloaded. @param from owned. */
static err download_given(trainer *t, const char *option, char **from) {
    int64_t step;
    if (!store_is_url(*from)) return OK;
    char *folder = io_join(t->dir, DOWNLOAD);
    err e = download_shared(t, *from, folder, -1, &step);
    if (!e && step < 0)
        e = err_hint(ERR("%s: %s holds no checkpoint", option, *from),
                     "give the URL of a run, or of a checkpoint inside one");
    free(*from);
    *from = folder;
    return e;
}

err start_drop_download(trainer *t) { return io_remove_tree(t->dir, PATH_IN(t->dir, DOWNLOAD)); }

/* A new run would overwrite the earlier one's checkpoints step by step, and a resume would find both. */
static err refuse_used_store(trainer *t) {
    int64_t *steps = NULL;
    int n = 0;
    const char *url = t->cfg->checkpoint.upload;
    if (!*url) return OK;
    err e = is_first_rank(t) ? ckpt_remote_list(url, &steps, &n) : OK;
    if (!e && n)
        e = err_hint(ERR_USAGE("--fresh: %s holds checkpoints of an earlier run, up to step %lld",
                               url, (long long)steps[n - 1]),
                     "choose another checkpoint.upload, or remove them");
    free(steps);
    return comm_agree(t->x.comm, e);
}

static int64_t step_of_path(const char *path) {
    ckpt_info info;
    err e = path ? ckpt_describe(path, &info) : OK;
    int64_t step = path && !e ? info.step : -1;
    err_free(e);
    return step;
}

/* Finds the newest complete checkpoint of the run, in its folder or in the store it is copied to. */
static err find_own(trainer *t, char **path) {
    const char *url = t->cfg->checkpoint.upload;
    int64_t step;
    err e = ckpt_newest_whole(t->dir, CKPT_FULL, t->x.comm, path);
    if (!*url) return e;
    if (e) log_warn("%s; looking in %s", err_message(e), url);
    err_free(e);
    TRY(download_shared(t, url, t->dir, step_of_path(*path), &step));
    if (step < 0) return OK;
    free(*path);
    *path = ckpt_path(t->dir, CKPT_FULL, step);
    return OK;
}

/* ---- finding it -------------------------------------------------------------------------- */
static err find_tokenizer(run_start *s, const ckpt_state *there) {
    if (s->bytes) return tokenizer_open("bytes", NULL, &s->tokenizer);
    s->tokenizer_path = ckpt_tokenizer_path(s->path);
    if (!s->tokenizer_path && s->hf && io_has(s->path, "vocab.json"))
        s->tokenizer_path = strdup(s->path); /* GPT-2's two files */
    if (!s->tokenizer_path) return OK;
    return ckpt_open_tokenizer(there, s->tokenizer_path, &s->tokenizer);
}

static err find_weights(const char *from, comm *c, run_start *s) {
    TRY(ckpt_newest_whole(from, CKPT_FULL, c, &s->path)); /* a run */
    if (s->path) return OK;
    s->path = strdup(from);
    if (io_has(from, "manifest.json")) return OK;
    if (io_has(from, "config.json")) return hf_import_config(from, &s->saved, &s->hf, NULL);
    return err_hint(
        ERR("checkpoint.initial_load_path: %s holds no run, no checkpoint and no Hugging "
            "Face model",
            from),
        "give a run folder, a checkpoint inside one, or a folder with config.json and "
        "safetensors files");
}

/* Finds a checkpoint with optimizer state: of a run, or the one that is named. */
static err find_branch(const char *from, comm *c, run_start *s) {
    ckpt_info info;
    if (io_has(from, "manifest.json"))
        s->path = strdup(from);
    else
        TRY(ckpt_newest_whole(from, CKPT_FULL, c, &s->path));
    if (!s->path)
        return err_hint(ERR("checkpoint.branch_path: %s holds no checkpoint", from),
                        "give a run folder, or a checkpoint inside one");
    TRY(ckpt_describe(s->path, &info));
    if (!info.has_states && info.step > 0)
        return err_hint(ERR("checkpoint.branch_path: %s has weights alone", s->path),
                        "give a full checkpoint, or start a new run from it with "
                        "checkpoint.initial_load_path");
    s->resume = s->branch = true;
    return OK;
}

static err find_given(trainer *t, const char *option, const char *path,
                      err (*find)(const char *from, comm *c, run_start *s)) {
    char *from = strdup(path);
    err e = download_given(t, option, &from);
    if (!e) e = find(from, t->x.comm, &t->start);
    free(from);
    return e;
}

err start_find(trainer *t) {
    run_start *s = &t->start;
    const char *from = t->cfg->checkpoint.initial_load_path;
    ckpt_state there = { 0 };
    TRY(t->opt->fresh ? refuse_used_store(t) : find_own(t, &s->path));
    s->resume = s->path != NULL;
    const char *branch = t->cfg->checkpoint.branch_path;
    if (*branch && *from)
        return err_hint(ERR("both checkpoint.branch_path and checkpoint.initial_load_path are set"),
                        "branch_path continues with optimizer state and step, initial_load_path "
                        "takes weights alone: leave one of them out");
    if (!s->path && *branch) TRY(find_given(t, "checkpoint.branch_path", branch, find_branch));
    if (!s->path && *from) TRY(find_given(t, "checkpoint.initial_load_path", from, find_weights));
    if (s->path && !s->hf) TRY(ckpt_read_manifest(s->path, &s->saved, &there, &s->run));
    t->state = s->resume
                   ? there
                   : (ckpt_state){ .seed = (uint64_t)t->cfg->training.seed,
                                   .epoch_offset = t->cfg->data.epoch_offset,
                                   .scaler = { t->cfg->precision.loss_scale, 0,
                                               t->cfg->precision.loss_scale_growth_interval } };
    s->bytes = there.bytes;
    if (s->hf) there.prefixed = true; /* as its tokenizer does it */
    s->no_prefix = s->path && !there.prefixed;
    return s->path ? find_tokenizer(s, &there) : OK;
}

/* ---- its model --------------------------------------------------------------------------- */
/* Returns the model that the config describes. Facts that it leaves open are those of the
 * weights: everything, unless
 * it names a preset. */
static err described_model(const trainer *t, model_config *c) {
    const model_config *saved = &t->start.saved;
    bool preset = strcmp(config_where(t->cfg, "model.preset"), "default") != 0;
    bool theirs = *t->cfg->checkpoint.initial_load_path && !preset;
    *c = *saved;
    if (!theirs) TRY(model_from_config(t->cfg, c));
    for (int i = 0; theirs && i < model_facts(); i++)
        model_fact_take_option(model_fact_at(i), t->cfg, c);
    if (t->cfg->model.vocab_size == CFG_AUTO) c->vocab = saved->vocab;
    if (t->cfg->model.norm_bias == CFG_AUTO && c->norm == NORM_LAYER)
        c->norm_bias = saved->norm_bias;
    return OK;
}

/* Refuses a model that is not the one of the weights a new run begins with. How they are trained
 * further (dropout) is an option of the run. */
static err same_model(const run_start *s, const model_config *c) {
    for (int i = model_config_diff(c, &s->saved, 0); i >= 0;
         i = model_config_diff(c, &s->saved, i + 1)) {
        const model_fact *f = model_fact_at(i);
        if (f->flags & FACT_TRAINING) continue;
        char got[64], was[64];
        return err_hint(ERR("%s was saved with %s = %s, but the config has %s", s->path, f->name,
                            model_fact_shown(f, &s->saved, was, sizeof was),
                            model_fact_shown(f, c, got, sizeof got)),
                        "leave the model section out: a run takes the model of "
                        "checkpoint.initial_load_path");
    }
    return OK;
}

err start_model(trainer *t) {
    t->grow_vocab = !t->start.path && t->cfg->model.vocab_size == CFG_AUTO;
    if (!t->start.path) return model_from_config(t->cfg, &t->mc);
    TRY(described_model(t, &t->mc));
    TRY(t->start.resume ? resume_compare_model(t) : same_model(&t->start, &t->mc));
    memcpy(t->mc.name, t->start.saved.name, sizeof t->mc.name);
    return OK;
}

/* ---- its tokenizer ----------------------------------------------------------------------- */
const char *start_tokenizer_name(const trainer *t) {
    const char *named = t->cfg->data.tokenizer;
    if (strcmp(named, "auto") != 0) return named;
    return t->start.tokenizer_path ? t->start.tokenizer_path : "bytes";
}

err start_check_tokenizer(const trainer *t, const data_info *data) {
    const run_start *s = &t->start;
    bool bytes = data->tokenizer == TOKENIZER_BYTES;
    if (!s->path || (!bytes && data->tokenizer_hash == 0)) return OK; /* ids of unknown origin */
    if (s->resume && t->state.tokenizer) return OK; /* resume_compare knows more */
    if (s->bytes && bytes) return OK;
    uint64_t theirs = s->tokenizer && !s->bytes ? tokenizer_hash(s->tokenizer) : 0;
    if (!s->bytes && !bytes && (!s->tokenizer || theirs == data->tokenizer_hash)) return OK;
    bool plausible = strcmp(t->cfg->data.tokenizer, "auto") != 0 || data->vocab == s->saved.vocab;
    if (!s->tokenizer && plausible) return OK;
    if (!s->tokenizer)
        return err_hint(ERR("%s has no tokenizer, and %s is text", s->path, data->path),
                        "set data.tokenizer to the one the model was trained with");
    return err_hint(ERR("%s was not tokenized with the tokenizer of %s", data->path, s->path),
                    "leave data.tokenizer out: text is tokenized as the model knows it; tokenize "
                    "shards with %s",
                    s->tokenizer_path ? s->tokenizer_path : "--tokenizer bytes");
}

/* ---- its weights ------------------------------------------------------------------------- */
err start_load(trainer *t) {
    const run_start *s = &t->start;
    if (!s->path) {
        model_init(t->m, t->p, t->state.seed);
        return OK;
    }
    if (s->hf) return hf_load(s->hf, s->path, t->m, &t->x);
    optimizer *o = s->resume && !t->new_optimizer ? t->o : NULL;
    return ckpt_load(s->path, t->m, &t->x, o);
}

void start_free(run_start *s) {
    tokenizer_free(s->tokenizer);
    free(s->tokenizer_path);
    json_decref(s->run);
    free(s->path);
}
