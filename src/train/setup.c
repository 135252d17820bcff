/* From a config to a trainer that can take its first step. */
#include "train_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"

/* ---- the run folder ---------------------------------------------------------------------- */
static err open_folder(trainer *t) {
    const config *c = t->cfg;
    str dir = { 0 };
    str_add(&dir, *c->run.dir ? "%s" : "runs/%s", *c->run.dir ? c->run.dir : c->run.name);
    t->dir = dir.text;
    TRY(io_make_dirs(t->dir));
    if (t->opt->fresh) {
        static const char *const ours[] = { "checkpoints", "programs", "config.yaml",
                                            "metrics.jsonl", "events.jsonl" };
        for (size_t i = 0; i < COUNT_OF(ours); i++) {
            char *path = io_join(t->dir, ours[i]);
            err e = io_remove_tree(t->dir, path);
            free(path);
            if (e) return err_trail(e, __FILE__, __LINE__);
        }
    }
    return OK;
}

/* The checkpoint to begin from: the run's own, or the one a new run starts with. */
static err find_start(trainer *t, char **path, bool *resume) {
    TRY(ckpt_latest(t->dir, path));
    *resume = *path != NULL;
    const char *from = t->cfg->checkpoint.initial_load_path;
    if (*path || !*from) return OK;
    TRY(ckpt_latest(from, path)); /* a run */
    if (!*path) *path = io_join(from, ".");
    return OK;
}

static err same_model(const model_config *now, const model_config *saved, const char *path) {
    int i = model_config_diff(now, saved, 0);
    if (i < 0) return OK;
    const model_fact *f = model_fact_at(i);
    char got[64], was[64];
    return err_hint(ERR("%s was saved with %s = %s, but the config says %s", path, f->name,
                        model_fact_text(f, model_fact_get(f, saved), was, sizeof was),
                        model_fact_text(f, model_fact_get(f, now), got, sizeof got)),
                    "restore that setting, choose another run.dir, or pass --fresh to start over");
}

/* ---- model, memory, programs ------------------------------------------------------------- */
static err plan_samples(trainer *t) {
    if (t->every.sample.length == 0) return OK;
    if (!t->words)
        return err_hint(
            ERR("sample.every: %s has no tokenizer to write text with", t->sources[0].name),
            "train on plain text or on shards of `ingot data tokenize`, or set sample.every=0");
    if (!*t->cfg->sample.prompt)
        return err_hint(ERR("sample.prompt is empty"), "give the first words, such as \"The \"");
    return generator_plan(t->m, t->p, t->seq, &t->gen);
}

static err build(trainer *t) {
    const config *c = t->cfg;
    TRY(train_device(c, &t->ops));
    model_layout l = train_layout(c, t->ops, t->seq);
    TRY(model_new(&t->mc, &l, &t->m));
    t->x.pool = pool_new((int)c->training.threads);
    t->p = plan_new(&l.mesh, t->ops, pool_size(t->x.pool));
    model_reserve(t->m, t->p, true);
    optim_settings s = train_optim(c, t->ops, &l);
    TRY(optim_new(&s, t->m, t->p, 0, &t->o));
    TRY(model_record(t->m, PROG_TRAIN, t->rows * t->seq, t->seq, &t->train));
    TRY(train_recompute(c, &t->train));
    t->train_id = plan_chain(t->p, &t->train, model_bucket_home, t->m);
    if (t->n_sets) {
        TRY(model_record(t->m, PROG_EVAL, t->rows * t->seq, t->seq, &t->eval));
        t->eval_id = plan_chain(t->p, &t->eval, model_bucket_home, t->m);
    }
    TRY(plan_samples(t));
    TRY(plan_commit(t->p));
    t->losses = mem_alloc((size_t)(t->rows * t->seq) * sizeof *t->losses);
    t->x.plan = t->p;
    t->x.comm = comm_self();
    t->x.check_finite = c->debug.check_finite;
    return OK;
}

static err begin(trainer *t, const char *from, bool resume) {
    uint64_t seed = (uint64_t)t->cfg->training.seed;
    t->state.bytes = datasets_are_bytes(t);
    if (from)
        TRY(ckpt_load(from, t->m, t->p, resume ? t->o : NULL));
    else
        model_init(t->m, t->p, 0, seed);
    if (resume && t->state.seed != seed)
        return err_hint(ERR("%s was trained with training.seed=%llu, the config says %llu", t->dir,
                            (unsigned long long)t->state.seed, (unsigned long long)seed),
                        "restore the seed, or pass --fresh to start over");
    bool fp16 = model_lay(t->m)->dt == DT_F16;
    exec_state_set(&t->x, &(step_state){ .loss_scale = fp16 ? (float)t->state.scaler.scale : 0,
                                         .count = t->state.updates,
                                         .good = t->state.scaler.good_steps });
    return datasets_begin(t);
}

static err write_config(const trainer *t) {
    str text = { 0 };
    config_print(t->cfg, &text);
    char *path = io_join(t->dir, "config.yaml");
    err e = io_write(path, text.text, text.len);
    free(path);
    str_free(&text);
    return e;
}

err trainer_setup(trainer *t) {
    char *from = NULL;
    bool resume = false;
    model_config saved;
    err e = OK;
    t->val_loss = NAN;
    TRY(open_folder(t));
    TRY_CLEAN(find_start(t, &from, &resume));
    if (from) TRY_CLEAN(ckpt_read_manifest(from, &saved, &t->state, NULL));
    if (!resume)
        t->state = (ckpt_state){ .seed = (uint64_t)t->cfg->training.seed,
                                 .epoch_offset = t->cfg->data.epoch_offset,
                                 .scaler = { t->cfg->precision.loss_scale, 0,
                                             t->cfg->precision.loss_scale_growth_interval } };
    if (from && !resume) /* a new run takes the other's model as it is */
        t->mc = saved;
    else
        TRY_CLEAN(model_from_config(t->cfg, &t->mc));
    t->grow_vocab = !from && t->cfg->model.vocab_size == CFG_AUTO;
    if (resume && t->cfg->model.vocab_size == CFG_AUTO) t->mc.vocab = saved.vocab;
    if (resume) TRY_CLEAN(same_model(&t->mc, &saved, from));
    TRY_CLEAN(trainer_set_batch(t));
    TRY_CLEAN(datasets_open(t));
    TRY_CLEAN(datasets_words(t));
    TRY_CLEAN(trainer_set_lengths(t));
    TRY_CLEAN(datasets_load(t));
    TRY_CLEAN(build(t));
    TRY_CLEAN(begin(t, from, resume));
    TRY_CLEAN(write_config(t));
    TRY_CLEAN(observe_open(t->dir, t->state.step ? t->state.step + 1 : 0, &t->log));
    if (resume) TRY_CLEAN(observe_event(t->log, "resume", t->state.step, NULL));
cleanup:
    free(from);
    return e;
}

void trainer_free(trainer *t) {
    observe_close(t->log);
    progress_free(t->show);
    datasets_free(t);
    tokenizer_free(t->words);
    optim_free(t->o);
    if (t->p) {
        plan_drop(t->p, &t->flight.losses);
        plan_drop(t->p, &t->last.state);
    }
    plan_free(t->p);
    ops_close(t->ops);
    model_free(t->m);
    free(t->losses);
    free(t->flight.part);
    free(t->flight.row_valid);
    comm_free(t->x.comm);
    pool_free(t->x.pool);
    free(t->dir);
}
