/* The loop. */
#include "train_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"

static bool due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

/* ---- one step ---------------------------------------------------------------------------- */
typedef struct step_result {
    double loss, norm, data_s;
    int64_t valid, epoch, micros, windows, rejected;
    double noise; /* gradient noise scale, NaN: not measured */
} step_result;

static err microbatch(trainer *t, const data_batch *b, double *sum) {
    int64_t n = t->rows * t->seq;
    model_batch batch = { b->tokens, b->targets, b->pos, b->start, b->id, n };
    model_set_batch(t->m, t->p, 0, &batch);
    TRY(exec_chain(&t->x, t->train_id, (int)b->microbatch, (int)b->microbatches));
    TRY(plan_get(t->p, t->losses, exec_value(&t->x, t->train_id, t->train.last->loss),
                 (size_t)n * sizeof *t->losses));
    *sum += datasets_add_losses(t, b, t->losses);
    return OK;
}

/* The gradient of the first microbatch alone stands in its accumulator before the second adds to
 * it: its norm against the whole step's tells the noise. */
static err small_batch_norm(trainer *t, const data_batch *b, double scale, double *sq,
                            double *tokens) {
    double norm;
    TRY(optim_grad_norm(t->o, &t->x, 1 / scale, &norm));
    norm *= (double)b->valid / (double)MAX(b->valid_here, 1); /* as a mean over its own targets */
    *sq = norm * norm;
    *tokens = (double)b->valid_here;
    return OK;
}

static err run_step(trainer *t, step_result *r) {
    bool fp16 = model_lay(t->m)->dt == DT_F16;
    double scale = fp16 ? t->state.scaler.scale : 1, sum = 0, small_sq = NAN, small = 0;
    *r = (step_result){ .noise = NAN };
    t->x.step.dropout = rng_key_of(t->state.seed, hash_str("dropout") + (uint64_t)t->state.step);
    datasets_step_begin(t);
    data_batch b;
    do {
        double t0 = time_now();
        TRY(loader_next(t->batches, &b));
        r->data_s += time_now() - t0;
        TRY(datasets_log_rejected(t, &b, &r->rejected));
        t->x.step.loss_grad = (float)(scale / (double)MAX(b.valid, 1));
        TRY(microbatch(t, &b, &sum));
        if (t->cfg->training.noise_scale && b.microbatch == 0 && b.microbatches > 1)
            TRY(small_batch_norm(t, &b, scale, &small_sq, &small));
    } while (b.microbatch + 1 < b.microbatches);
    TRY(optim_grad_norm(t->o, &t->x, 1 / scale, &r->norm));
    r->loss = sum / (double)MAX(b.valid, 1);
    r->valid = b.valid;
    r->epoch = b.epoch;
    r->micros = b.microbatches;
    r->windows = b.consumed;
    if (small > 0 && isfinite(r->norm) && isfinite(small_sq))
        r->noise =
            noise_scale_add(&t->state.noise, small_sq, small, r->norm * r->norm, (double)b.valid);
    return OK;
}

/* @return an error when the loss is not finite and no loss scale can mend it. */
static err update(trainer *t, const step_result *r, observe_step *s) {
    bool fp16 = model_lay(t->m)->dt == DT_F16, finite = isfinite(r->norm);
    double scale = fp16 ? t->state.scaler.scale : 1;
    s->lr = schedule_lr(&t->sched, t->state.step);
    if (fp16) {
        s->loss_scale = scale;
        s->skipped = loss_scale_update(&t->state.scaler, finite) ? 0 : 1;
        if (s->skipped) return OK;
    } else if (!finite || !isfinite(r->loss)) {
        return err_hint(ERR("step %lld: the loss is %g and the gradient norm %g",
                            (long long)t->state.step + 1, r->loss, r->norm),
                        "lower optimizer.lr or lengthen lr_scheduler.warmup; debug.check_finite="
                        "true names the first op that went wrong. The last checkpoint is intact");
    }
    double clip = optim_clip(r->norm, t->cfg->training.max_norm);
    if (t->cfg->training.max_norm > 0) s->clipped = clip;
    TRY(optim_step(t->o, &t->x, s->lr, clip / scale));
    t->state.updates = optim_updates(t->o);
    return OK;
}

/* ---- now and then ------------------------------------------------------------------------ */
static err validate(trainer *t, observe_step *s) {
    TRY(datasets_validate(t, &t->val_loss));
    s->val_loss = t->val_loss;
    progress_note(t->show, "step %lld: held-out loss %.4f (perplexity %.2f)",
                  (long long)t->state.step, t->val_loss, exp(t->val_loss));
    json_t *details = json_pack("{s:f}", "loss", isfinite(t->val_loss) ? t->val_loss : -1.0);
    json_t *sets = t->n_sets > 1 ? json_object() : NULL;
    for (int i = 0; i < t->n_sets && sets; i++) {
        const run_source *set = &t->sets[i];
        progress_note(t->show, "    %-20s %.4f", set->name, set->loss);
        json_object_set_new(sets, set->name, json_real(isfinite(set->loss) ? set->loss : -1.0));
    }
    if (sets) json_object_set_new(details, "sets", sets);
    return observe_event(t->log, "validation", t->state.step, details);
}

static bool take_text(void *ctx, const char *text, size_t n) {
    str_add_bytes(ctx, text, n);
    return true;
}

static err write_sample(trainer *t) {
    const config *c = t->cfg;
    str text = { 0 };
    sample_options o = { .tokens = c->sample.tokens,
                         .temperature = c->sample.temperature,
                         .top_k = c->sample.top_k,
                         .top_p = c->sample.top_p,
                         .seed = t->state.seed + (uint64_t)t->state.step };
    err e = generate_text(&t->gen, &t->x, t->words, c->sample.prompt, &o, take_text, &text);
    if (!e) {
        progress_note(t->show, "step %lld writes: %s%s", (long long)t->state.step, c->sample.prompt,
                      text.text ? text.text : "");
        e = observe_event(t->log, "sample", t->state.step,
                          json_pack("{s:o}", "text", io_json_string(text.text, text.len)));
    }
    str_free(&text);
    return e;
}

static err save(trainer *t) {
    double t0 = time_now();
    TRY(ckpt_save(t->dir, t->m, t->p, t->o, &t->state, t->cfg->checkpoint.keep_latest_k));
    return observe_event(t->log, "save", t->state.step,
                         json_pack("{s:f}", "seconds", time_now() - t0));
}

/* ---- the loop ---------------------------------------------------------------------------- */
static void measure_step(const trainer *t, const step_result *r, double seconds, double left_s,
                         observe_step *s) {
    double tokens = (double)(r->micros * t->rows * t->seq);
    s->step = t->state.step;
    s->tokens = t->state.tokens;
    s->loss = r->loss;
    s->grad_norm = r->norm;
    s->step_s = seconds;
    s->data_s = r->data_s;
    s->tok_s = tokens / seconds;
    s->mfu = s->tok_s * model_flops(&t->mc, t->seq, false) / t->peak_flops;
    s->mfu_causal = s->tok_s * model_flops(&t->mc, t->seq, true) / t->peak_flops;
    s->epoch = (double)t->state.windows / (double)MAX(loader_windows(t->batches), 1);
    s->batch = (double)(r->micros * t->rows);
    if (t->cfg->data.guard) s->rejected = (double)r->rejected;
    s->noise_scale = r->noise;
    s->total_steps = t->stop;
    s->eta_s = left_s;
}

static err one_step(trainer *t, double *average_s) {
    observe_step s = OBSERVE_STEP_NONE;
    step_result r;
    double t0 = time_now();
    TRY(run_step(t, &r));
    TRY(update(t, &r, &s));
    double seconds = time_now() - t0;
    *average_s = *average_s > 0 ? 0.9 * *average_s + 0.1 * seconds : seconds;
    t->state.step++;
    t->state.windows = r.windows;
    t->state.tokens += r.micros * t->rows * t->seq;
    measure_step(t, &r, seconds, *average_s * (double)(t->stop - t->state.step), &s);
    bool last = t->state.step == t->stop;
    if (t->n_sets && (due(t->state.step, t->every.validate) || (last && t->every.validate > 0)))
        TRY(validate(t, &s));
    datasets_measure(t, &s);
    TRY(observe_log(t->log, &s));
    if (progress_is_live(t->show) || due(t->state.step, t->every.log) || last || t->state.step == 1)
        progress_show(t->show, &s);
    if (t->every.sample && due(t->state.step, t->every.sample)) TRY(write_sample(t));
    if (due(t->state.step, t->every.save) && !last) TRY(save(t));
    return OK;
}

static bool stopped(const trainer *t) { return t->opt->stop && *t->opt->stop; }

static err loop(trainer *t) {
    double average_s = 0;
    while (t->state.step < t->stop && !stopped(t)) {
        err e = one_step(t, &average_s);
        if (e) {
            progress_end(t->show);
            return err_trail(e, __FILE__, __LINE__);
        }
    }
    progress_end(t->show);
    TRY(save(t));
    if (stopped(t))
        progress_note(t->show, "stopped after step %lld and saved; the same command continues",
                      (long long)t->state.step);
    else
        progress_note(t->show, "done: %lld steps in %s", (long long)t->state.step, t->dir);
    return OK;
}

err train_run(const config *c, const train_options *o) {
    trainer t = { .cfg = c, .opt = o, .peak_flops = NAN };
    err e = OK;
    TRY_CLEAN(trainer_setup(&t));
    t.show = progress_new(stdout);
    t.peak_flops = ops_peak_flops(t.ops, model_lay(t.m)->dt, t.x.pool);
    if (!o->quiet) trainer_describe(&t);
    if (c->debug.dump_programs) TRY_CLEAN(trainer_write_programs(&t));
    if (t.state.step >= t.stop) {
        printf(
            "already at step %lld of %lld: nothing to do. Raise training.steps to go on, or pass "
            "--fresh to start over.\n",
            (long long)t.state.step, (long long)t.stop);
        goto cleanup;
    }
    TRY_CLEAN(loop(&t));
cleanup:
    trainer_free(&t);
    return e;
}
