/* From a config to a trainer that can take its first step. */
#include "resume_internal.h"
#include "setup_internal.h"
#include "trainer_internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"

/* ---- where it starts --------------------------------------------------------------------- */
char *train_run_dir(const config *c) {
    return *c->run.dir ? strdup(c->run.dir) : io_join("runs", c->run.name);
}

static err open_run_folder(trainer *t) {
    char *dir = train_run_dir(t->cfg);
    err e = OK;
    if (is_first_rank(t))
        e = folder_open(&t->folder, dir);
    else
        t->folder.path = strdup(dir);
    t->dir = t->folder.path;
    free(dir);
    return e;
}

/* ---- model, memory, programs ------------------------------------------------------------- */
static err check_samples(const trainer *t) {
    if (t->len.every.sample.length == 0) return OK;
    if (!t->data.tokenizer)
        return err_hint(
            ERR("sample.every: %s has no tokenizer to decode samples with",
                t->data.sources[0].name),
            "train on plain text or on shards of `ingot data tokenize`, or set sample.every=0");
    const char *prompt = t->cfg->sample.prompt;
    token_ids ids = { 0 };
    err e = prompt_encode(t->data.tokenizer, prompt, strlen(prompt), &ids);
    token_ids_free(&ids);
    return e;
}

err trainer_check_decay(const trainer *t) {
    int n;
    const optim_group *g = optim_groups(t->o, &n);
    for (int i = 0; i < n; i++) {
        double per_step = g[i].lr_factor * t->len.sched.lr * g[i].weight_decay;
        if (g[i].params && g[i].decays && g[i].scaled_decay && per_step >= 1)
            return err_hint(ERR("optimizer.weight_decay_base_tokens makes the weight decay of this "
                                "run %.4g, which at a rate of %.4g takes away %.3g of a weight per "
                                "step",
                                g[i].weight_decay, g[i].lr_factor * t->len.sched.lr, per_step),
                            "the run is too short for these settings: train on more tokens, or "
                            "lower optimizer.weight_decay or its base");
    }
    return OK;
}

err trainer_lay_out(trainer *t, const op_backend *ops, int threads) {
    const config *c = t->cfg;
    model_layout l = train_layout(c, ops, t->len.seq);
    l.mesh = t->mesh;
    TRY(model_new(&t->mc, &l, &t->m));
    t->p = plan_new(&l.mesh, ops, threads);
    model_reserve(t->m, t->p, true);
    optim_settings s = train_optim(c, ops, &l);
    s.decay_per_token = trainer_decay_per_token(t);
    TRY(optim_new(&s, t->m, t->p, &t->o));
    TRY(trainer_check_decay(t));
    TRY(model_record(t->m, PROG_TRAIN, t->len.rows * t->len.seq, t->len.seq, &t->train));
    train_recompute(c, &t->train);
    t->train.micros = (int)t->len.micros;
    t->train.end_list = optim_ends(t->o, &t->train.ends);
    if (l.keeps_half_grad) TRY(optim_record_half(t->o, &t->train));
    TRY(plan_chain(t->p, &t->train, model_bucket_regions, t->m, &t->train_id));
    if ((t->data.n_sets && t->len.every.validate.length > 0) || questions_are_asked(c)) {
        int64_t rows = ranks_eval_rows(t, t->len.rows, t->len.seq);
        TRY(model_record(t->m, PROG_EVAL, rows * t->len.seq, t->len.seq, &t->eval));
        TRY(plan_chain(t->p, &t->eval, model_bucket_regions, t->m, &t->eval_id));
    }
    TRY(questions_plan(t));
    return t->len.every.sample.length ? generator_plan(t->m, t->p, t->len.seq, 1, &t->gen) : OK;
}

/* Opens the communication between GPUs, which tensors use from here on. */
static err join_gpus(trainer *t) {
    int local = comm_local_rank(t->x.comm), gpu = train_gpu(t->cfg, local);
    if (local < 0)
        return err_hint(ERR("%d ranks on %s: ranks of one process compute on the CPU",
                            mesh_world(&t->mesh), t->ops->name),
                        "start a process for each GPU: mpirun -n %d ingot train ...; or use "
                        "--device=cpu",
                        mesh_world(&t->mesh));
    const device_table *d = t->ops->device;
    comm_gpu at = { gpu, d->native_queue(t->ops->context, QUEUE_COMPUTE), d->add, t->ops->context,
                    t->cfg->comm.nccl_algorithm };
    return comm_nccl(t->x.comm, &at, &t->x.comm);
}

static err build_programs(trainer *t) {
    const config *c = t->cfg;
    TRY(train_device(c, comm_local_rank(t->x.comm), &t->ops));
    TRY(check_samples(t));
    if (t->ops->device && mesh_world(&t->mesh) > 1) TRY(join_gpus(t));
    int threads = c->training.threads ? (int)c->training.threads : thread_cores();
    t->x.pool = pool_new(MAX(1, threads / comm_core_sharers(t->x.comm)));
    TRY(trainer_lay_out(t, t->ops, pool_size(t->x.pool)));
    int played;
    if (is_first_rank(t) && mesh_world(&t->mesh) > 1) TRY(trainer_check_lists(t, &played));
    plan_share(t->p, t->x.comm);
    TRY(plan_commit(t->p));
    t->losses = mem_alloc((size_t)(2 * t->len.rows * t->len.seq) * sizeof *t->losses);
    t->x.plan = t->p;
    t->x.probe.check_finite = c->debug.check_finite;
    return OK;
}

/* Returns the peak rate that the vendor publishes for the device; NaN for a CPU. */
static double published_peak(const trainer *t) {
    ops_gpu_info gpu;
    if (!t->ops->device) return NAN;
    err e = ops_cuda_describe((int)t->cfg->device.index, &gpu);
    dtype dt = model_lay(t->m)->dt;
    double peak =
        e ? NAN
          : chip_peak(gpu.name, dt == DT_F32 && t->cfg->precision.tf32 ? "tf32" : dt_name(dt));
    err_free(e);
    return peak;
}

void trainer_restore_step_state(trainer *t) {
    bool fp16 = model_lay(t->m)->dt == DT_F16;
    exec_state_set(&t->x, &(step_state){ .loss_scale = fp16 ? (float)t->state.scaler.scale : 0,
                                         .count = t->state.updates,
                                         .good = t->state.scaler.good_steps });
}

static err load_state(trainer *t) {
    t->peak.published = published_peak(t);
    t->state.bytes = datasets_are_bytes(t);
    t->state.tokenizer = datasets_tokenizer_hash(t);
    if (t->new_optimizer) t->state.updates = 0;
    TRY(start_load(t));
    trainer_restore_step_state(t);
    return datasets_begin(t);
}

err trainer_setup(trainer *t) {
    t->val_loss = NAN;
    TRY(config_check_effects(t->cfg, false)); /* notes were logged as the config was read */
    TRY(open_run_folder(t));
    TRY(ranks_begin(t));
    TRY(start_find(t));
    TRY(start_model(t));
    TRY(trainer_set_batch(t));
    TRY(recipe_choose(t));
    TRY(datasets_open(t));
    TRY(trainer_set_lengths(t));
    TRY(trainer_check_idle(t));
    TRY(datasets_load(t));
    TRY(questions_open(t));
    TRY(build_programs(t));
    TRY(alerts_open(t));
    t->run = resume_snapshot(t);
    if (t->start.resume) TRY(resume_compare(t));
    t->saves.saved = t->start.resume && !t->start.branch ? t->state.step : -1;
    return load_state(t);
}

static err start_serving(trainer *t) {
    if (!*t->cfg->metrics.serve) return OK;
    const char *runs[] = { t->dir }, *given = t->cfg->metrics.serve_token;
    char *token;
    TRY(config_secret("metrics.serve_token", given, &token));
    if (*given && !token) {
        log_warn("%s is not served without its token", t->cfg->metrics.serve);
        return OK;
    }
    err e = serve_start(
        &(serve_options){
            .address = t->cfg->metrics.serve, .token = token, .runs = runs, .n_runs = 1 },
        &t->page);
    free(token);
    return e;
}

err trainer_open_log(trainer *t) {
    observe_options o = { .dir = t->dir,
                          .first_step = t->state.step ? t->state.step + 1 : 0,
                          .steps = t->len.stop,
                          .total_tokens = (double)trainer_tokens_at_end(t),
                          .flops_per_token = model_flops(&t->mc, t->len.seq, false),
                          .tensorboard = t->len.every.tensorboard.length > 0,
                          .hparams = json_object_get(t->run, "options"),
                          .gpu = t->ops->device != NULL,
                          .gpu_index = (int)t->cfg->device.index };
    observe_close(t->log);
    t->log = NULL;
    return observe_open(&o, &t->log);
}

err trainer_begin(trainer *t) {
    TRY(folder_begin(&t->folder, t->opt->fresh));
    /* keeps what the run prints, also that of earlier processes: a terminal or a scheduler may not */
    const char *path = PATH_IN(t->dir, "train.log");
    t->text_log = fopen(path, "ae");
    if (!t->text_log) return ERR("cannot write %s: %s", path, strerror(errno));
    log_keep(t->text_log);
    if (t->start.resume) TRY(ckpt_supersede_newer(t->dir, t->state.step, CKPT_DAMAGED));
    TRY(datasets_save_tokenizer(t));
    TRY(trainer_write_config(t));
    TRY(trainer_open_log(t));
    stage_times_open(t);
    TRY(start_serving(t));
    TRY(saving_open(t));
    TRY(start_drop_download(t));
    if (!t->start.resume) return OK;
    json_t *details = json_object();
    if (t->changes.len)
        json_object_set_new(details, "changes", io_json_string(t->changes.text, t->changes.len));
    if (t->start.branch)
        json_object_set_new(details, "from", io_json_string(t->start.path, strlen(t->start.path)));
    return observe_event(t->log, t->start.branch ? "branch" : "resume", t->state.step, details);
}

void trainer_free(trainer *t) {
    if (t->text_log) {
        log_keep(NULL);
        fclose(t->text_log);
    }
    profile_free(t);
    questions_free(t);
    ckpt_saver_free(t->saves.saver);
    ckpt_uploader_free(t->saves.uploader);
    alerts_free(t);
    serve_stop(t->page);
    observe_close(t->log);
    progress_free(t->show);
    datasets_free(t);
    tokenizer_free(t->data.tokenizer);
    start_free(&t->start);
    optim_free(t->o);
    if (t->p) {
        plan_drop(t->p, &t->pending.losses);
        plan_drop(t->p, &t->last.state);
        expert_load_free(t);
    }
    plan_free(t->p);
    ops_close(t->ops);
    model_free(t->m);
    free(t->losses);
    free(t->pending.source);
    free(t->pending.row_valid);
    free(t->rows_of.source);
    free(t->rows_of.row_valid);
    pool_free(t->x.pool);
    straggler_free(t);
    detail_free(t);
    stage_times_free(t);
    json_decref(t->run);
    str_free(&t->changes);
    folder_close(&t->folder);
    config_free(&t->own);
}
