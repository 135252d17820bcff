/* One step: microbatches, the update, and what is read of them afterwards. Nothing here waits for a
 * device before the next step's first microbatch is queued. */
#include "step_internal.h"
#include "trainer_internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "prog/trace.h"

/* ---- microbatches ------------------------------------------------------------------------ */
static err read_pending_losses(trainer *t) {
    pending_losses *f = &t->pending;
    if (!f->open) return OK;
    f->open = false;
    /* of its sequences' tokens a rank may have computed a part */
    int64_t all = t->len.rows * t->len.seq, own = exec_result(&t->x, t->train_id).dim[0];
    placement pl = exec_result_placement(&t->x, t->train_id);
    float *mine = t->losses + all;
    memset(t->losses, 0, (size_t)all * sizeof *t->losses);
    TRY(plan_take(t->p, &f->losses, mine));
    for (int64_t i = 0; i < own; i++) t->losses[model_token_index(t->m, pl, all, i)] = mine[i];
    /* sums by sequence, in the order in which the step's were consumed */
    double *sum =
        t->alerts.row_loss + f->micro * trainer_micro_rows(t) + ranks_rows_index(t) * t->len.rows;
    for (int64_t row = 0; row < t->len.rows; row++) {
        sum[row] = 0;
        for (int64_t i = 0; i < t->len.seq; i++) sum[row] += t->losses[row * t->len.seq + i];
    }
    t->last.loss_sum += datasets_add_losses(t, f, t->losses);
    return OK;
}

static void fetch_losses(trainer *t, int micro) {
    pending_losses *f = &t->pending;
    f->micro = micro;
    size_t rows = (size_t)t->len.rows, from = (size_t)micro * rows;
    f->source = mem_grow(f->source, rows * sizeof *f->source);
    f->row_valid = mem_grow(f->row_valid, rows * sizeof *f->row_valid);
    memcpy(f->source, t->rows_of.source + from, rows * sizeof *f->source);
    memcpy(f->row_valid, t->rows_of.row_valid + from, rows * sizeof *f->row_valid);
    tensor result = exec_result(&t->x, t->train_id);
    plan_fetch(t->p, QUEUE_COMPUTE, &f->losses, result.data, tensor_bytes(&result));
    f->open = true;
}

static void keep_rows(trainer *t, int micro, const data_batch *b) {
    size_t rows = (size_t)t->len.rows, n = (size_t)b->microbatches * rows;
    step_rows *k = &t->rows_of;
    if (micro == 0) {
        k->source = mem_grow(k->source, n * sizeof *k->source);
        k->row_valid = mem_grow(k->row_valid, n * sizeof *k->row_valid);
    }
    memcpy(k->source + (size_t)micro * rows, b->source, rows * sizeof *k->source);
    memcpy(k->row_valid + (size_t)micro * rows, b->row_valid, rows * sizeof *k->row_valid);
}

/* The norm of the gradient of the first half of the step's sequences, against that of all of them, gives the noise
 * scale. Which sequences these are does not depend on the layout: microbatches consume them in order. */
static err half_batch_norm(trainer *t, double targets, queued_step *q) {
    double norm;
    TRY(optim_half_norm(t->o, &t->x, &norm));
    TRY(ranks_sum_targets(t, &targets));
    norm *= (double)q->valid / MAX(targets, 1.0); /* as a mean over its own targets */
    q->small_sq = norm * norm;
    q->small = targets;
    return OK;
}

/* ---- a step ------------------------------------------------------------------------------ */
/* A step while it is being queued. */
typedef struct queueing {
    trainer *t;
    err (*finish)(trainer *t); /* of the step before */
    int64_t step, before;      /* steps and tokens before it */
    queued_step q;
    data_batch b;   /* the last one read */
    double targets; /* of this rank's rows in the first half of the step */
    double began, waited,
        before_data; /* when its microbatches began, and waits and data until then */
    double decided;  /* when its update began */
    int span;
} queueing;

/* A step without any target, because the guard rejected all of it, is passed over: there is no
 * gradient in it. A whole epoch of such steps is an error. */
static err next_batch(queueing *u) {
    trainer *t = u->t;
    data_batch *b = &u->b;
    int64_t passed = 0, most = loader_windows(t->data.batches);
    double from = time_now();
    int span = trace_span_begin(t->x.probe.trace, "data");
    do {
        if (passed > most)
            return err_hint(ERR("none of the last %lld sequences has a token to learn from: the "
                                "guard rejected them, or their documents are single tokens",
                                (long long)passed),
                            "`ingot data inspect` shows what the data is like; data.guard=false "
                            "trains on it as it is");
        TRY(loader_next(t->data.batches, b));
        TRY(datasets_log_rejected(t, b, u->step + 1, &u->q.rejected));
        passed += trainer_micro_rows(t);
        if (b->microbatch > 0) continue;
        double targets = (double)b->valid; /* of this rank's rows */
        TRY(ranks_sum_targets(t, &targets));
        u->q.valid = (int64_t)targets;
    } while (u->q.valid == 0);
    u->q.data_s += time_now() - from;
    trace_span_end(t->x.probe.trace, span);
    return OK;
}

static err feed_microbatch(void *ctx, int micro, int slot) {
    queueing *u = ctx;
    trainer *t = u->t;
    if (micro > 0) TRY(next_batch(u));
    const data_batch *b = &u->b;
    int64_t n = t->len.rows * t->len.seq;
    if (micro < u->q.micros / 2) u->targets += (double)b->valid_here;
    if (t->cfg->training.seq_curriculum_start > 0)
        for (int64_t i = 0; i < n; i++) u->q.longest = MAX(u->q.longest, b->pos[i] + 1);
    model_batch batch = { b->tokens, b->targets, b->pos, b->start, b->id, n, slot };
    keep_rows(t, micro, b);
    model_set_batch(t->m, t->p, &batch);
    return OK;
}

/* A queued step is read when the next one is queued, so that the device is never idle. */
static err begin_losses(queueing *u, int micro) {
    trainer *t = u->t;
    TRY(read_pending_losses(t)); /* of the previous microbatch */
    if (micro > 0) return OK;
    if (t->last.open) TRY(u->finish(t));
    datasets_step_begin(t);
    t->last.loss_sum = 0;
    size_t windows = (size_t)(u->b.microbatches * trainer_micro_rows(t));
    t->alerts.row_loss = mem_grow(t->alerts.row_loss, windows * sizeof *t->alerts.row_loss);
    memset(t->alerts.row_loss, 0, windows * sizeof *t->alerts.row_loss);
    return OK;
}

static err take_losses(void *ctx, int micro) {
    queueing *u = ctx;
    trainer *t = u->t;
    TRY(begin_losses(u, micro));
    if (t->alerts.interrupts) return ERR("the step is dropped: the one before it comes first");
    fetch_losses(t, micro);
    return OK;
}

int64_t trainer_step_tokens(const trainer *t) {
    return t->last.micros * trainer_micro_rows(t) * t->len.seq;
}

/* Decides the work that is due in the step, once the number of its microbatches is known. */
static err set_due(queueing *u) {
    trainer *t = u->t;
    queued_step *q = &u->q;
    int64_t tokens = q->micros * trainer_micro_rows(t) * t->len.seq;
    double now = time_now();
    TRY(ranks_agree_clock(t, &now));
    q->at = (double)(t->len.in_tokens ? u->before : u->step);
    q->advance = (double)(t->len.in_tokens ? tokens : 1);
    TRY(trainer_clock_next(t, u->step, q));
    q->due = cadences_due(&t->len.every, u->step + 1, u->before + tokens, tokens, now);
    t->x.probe.activation = q->due.detail ? t->alerts.sampled : NULL;
    for (int l = 0; l < t->mc.layers; l++) t->alerts.sampled[l].n = 0;
    return stage_times_step_begin(t, q->due.detail);
}

/* On a device a step has three marks: where its microbatches begin, and where they and its update end. Of two steps
 * in flight each has its own. */
enum { MARK_BEGIN, MARK_COMPUTED, MARK_UPDATED, STEP_MARKS };
static_assert(2 * STEP_MARKS <= MARKS_OF_STEPS, "two steps are in flight");

static void mark_step(const queueing *u, int which) {
    const op_backend *b = u->t->ops;
    if (b->device) b->device->mark(b->context, QUEUE_COMPUTE, u->q.marks + which);
}

/* Whether the update is to be left out, or above which norm; the step before is known by now. A loss has to
 * be waited for, so that is done only where its policy asks for it. */
static err set_skip(queueing *u) {
    trainer *t = u->t;
    const monitor *m = t->alerts.m;
    t->x.step.update.skip_norm = (float)monitor_skip_norm(m, t->cfg->training.max_norm);
    if (monitor_settings_of(m)->policy[MONITOR_loss_spike] != MONITOR_SKIP) return OK;
    TRY(read_pending_losses(t));
    double sum = t->last.loss_sum;
    TRY(ranks_sum_rows(t, &sum, 1));
    if (monitor_would_spike(m, sum / (double)MAX(u->q.valid, 1))) t->x.step.update.skip_norm = -1;
    return OK;
}

static rng_key dropout_key(const trainer *t, int64_t step) {
    return rng_key_of(t->state.seed, hash_str("dropout") + (uint64_t)step);
}

/* The gradients are complete: measures the microbatches, and sets what the update reads. */
static err decide_update(void *ctx) {
    queueing *u = ctx;
    trainer *t = u->t;
    queued_step *q = &u->q;
    t->x.probe.activation = NULL;
    t->x.probe.times = NULL;
    if (t->cfg->training.noise_scale && q->micros % 2 == 0) TRY(half_batch_norm(t, u->targets, q));
    mark_step(u, MARK_COMPUTED);
    q->compute_s = time_now() - u->began - (q->data_s - u->before_data);
    q->pipeline_wait_s = ranks_pipeline_wait(t) - u->waited;
    q->lr = schedule_lr(&t->len.sched, q->at, q->advance);
    q->lr *= healing_rate(t, u->step + 1);
    if (q->due.detail) TRY(detail_before_update(t));
    u->decided = time_now();
    if (t->saves.saver) ckpt_saver_before_update(t->saves.saver);
    TRY(set_skip(u));
    u->span = trace_span_begin(t->x.probe.trace, "update");
    optim_factors f = schedule_factors(&t->len.sched, &t->len.momentum, q->at,
                                       t->len.sched.lr > 0 ? q->lr / t->len.sched.lr : 1);
    optim_set_factors(t->o, &f);
    return optim_begin(t->o, &t->x, q->lr, t->cfg->training.max_norm);
}

/* @param updates the step's update follows its microbatches */
static err queue_instructions(queueing *u, bool updates) {
    trainer *t = u->t;
    TRY(next_batch(u));
    t->x.step.loss_grad = (float)(1 / (double)MAX(u->q.valid, 1));
    u->q.micros = u->b.microbatches;
    if (u->finish) TRY(set_due(u));
    u->began = time_now();
    u->before_data = u->q.data_s;
    u->waited = ranks_pipeline_wait(t);
    mark_step(u, MARK_BEGIN);
    exec_hooks hooks = { feed_microbatch, take_losses, updates ? decide_update : NULL, u };
    err e = exec_microbatches(&t->x, t->train_id, (int)u->q.micros, &hooks);
    t->x.probe.activation = NULL;
    t->x.probe.times = NULL;
    TRY(e);
    if (!updates) return OK;
    trace_span_end(t->x.probe.trace, u->span);
    mark_step(u, MARK_UPDATED);
    u->q.optim_s = time_now() - u->decided;
    return OK;
}

err trainer_queue_step(trainer *t, err (*finish)(trainer *t)) {
    int64_t step = t->state.step + t->last.open;
    int64_t before = t->state.tokens + (t->last.open ? trainer_step_tokens(t) : 0);
    cadences every = t->len.every;
    queueing u = { .t = t, .finish = finish, .step = step, .before = before, .q.small_sq = NAN };
    queued_step *q = &u.q;
    step_overlap was = ranks_overlap(t);
    q->marks = step % 2 ? STEP_MARKS : 0;
    t->x.step.dropout = dropout_key(t, step);
    err e = queue_instructions(&u, true);
    if (t->alerts.interrupts) { /* nothing is in flight any more */
        t->len.every = every;
        err_free(e);
        return OK;
    }
    if (e) { /* a step still in flight is finished first: nothing else would do it, and its error came first */
        err earlier = t->last.open ? finish(t) : OK;
        if (earlier) err_free(e);
        e = earlier ? earlier : err_trail(e, __FILE__, __LINE__);
    }
    if (t->alerts.interrupts) err_free(e), e = OK; /* the alert came first */
    if (t->alerts.interrupts || e) return e;
    q->overlap = ranks_overlap(t);
    for (int i = 0; i < OVERLAPS; i++) {
        q->overlap.moving[i] -= was.moving[i];
        q->overlap.hidden[i] -= was.hidden[i];
    }
    q->windows = u.b.consumed;
    q->loss_sum = t->last.loss_sum;
    q->state = t->last.state;
    q->load = t->last.load;
    q->open = true;
    plan_fetch(t->p, QUEUE_COMPUTE, &q->state, exec_state(&t->x), sizeof(step_state));
    expert_load_fetch(t, q);
    t->last = *q;
    return OK;
}

err trainer_repeat_step(trainer *t, str *finding) {
    exec_finding found = { 0 };
    bool checked = t->x.probe.check_finite;
    queueing u = { .t = t, .step = t->state.step - 1 };
    loader_seek(t->data.batches, t->alerts.from);
    t->x.step.dropout = dropout_key(t, u.step);
    t->x.probe.check_finite = true;
    t->x.probe.finding = &found;
    err e = queue_instructions(&u, false);
    if (!e) e = read_pending_losses(t);
    t->x.probe.check_finite = checked;
    t->x.probe.finding = NULL;
    if (!e) e = ranks_share_finding(t, &found);
    if (!e && found.at) str_add(finding, "%s", found.text);
    return e;
}

static void measure_step_speed(trainer *t, double tokens, observe_step *s) {
    const queued_step *q = &t->last;
    double full = model_flops(&t->mc, t->len.seq, false),
           causal = model_flops(&t->mc, t->len.seq, true);
    s->data_s = q->data_s;
    s->compute_s = q->compute_s;
    s->optim_s = q->optim_s;
    const device_table *d = t->ops->device;
    if (d) { /* work queued before the step's result is complete by now: nothing is waited for */
        int computed = q->marks + MARK_COMPUTED;
        s->compute_s = d->seconds_between(t->ops->context, q->marks, computed);
        s->optim_s = d->seconds_between(t->ops->context, computed, q->marks + MARK_UPDATED);
    }
    s->tok_s = tokens / s->step_s;
    s->samples_s = s->tok_s / (double)t->len.seq;
    double per_rank = s->tok_s / mesh_world(&t->mesh);
    if (mesh_world(&t->mesh) > 1) {
        s->tok_s_rank = per_rank;
        s->samples_s_rank = per_rank / (double)t->len.seq;
    }
    trainer_raise_peak(t, per_rank * causal);
    double peak = trainer_mfu_peak(t);
    s->mfu = per_rank * full / peak;
    s->mfu_causal = per_rank * causal / peak;
    s->mfu_6n = per_rank * model_flops(&t->mc, 0, false) / peak;
    if (mesh_stages(&t->mesh) > 1)
        s->bubble = q->pipeline_wait_s / (s->step_s * mesh_world(&t->mesh));
    if (mesh_world(&t->mesh) > 1) {
        const step_overlap *o = &q->overlap;
        s->comm_s = o->moving[OVERLAP_ALL] / mesh_world(&t->mesh);
        s->comm_hidden = o->hidden[OVERLAP_ALL] / o->moving[OVERLAP_ALL]; /* NaN: none moved */
        s->comm_hidden_dp = o->hidden[OVERLAP_DP] / o->moving[OVERLAP_DP];
        s->comm_hidden_tp = o->hidden[OVERLAP_TP] / o->moving[OVERLAP_TP];
    }
    s->peak_share = per_rank * causal / t->peak.flops;
    s->host_mem = (double)mem_peak();
    s->plan_mem = (double)(plan_bytes(t->p, NULL) + plan_host_bytes(t->p));
}

static void measure_step(trainer *t, const step_state *now, observe_step *s) {
    const queued_step *q = &t->last;
    double seconds = time_now() - t->since, tokens = (double)trainer_step_tokens(t);
    t->average_s = t->average_s > 0 ? 0.9 * t->average_s + 0.1 * seconds : seconds;
    s->step = t->state.step;
    s->tokens = t->state.tokens;
    s->windows = t->state.windows;
    s->time = (int64_t)time(NULL);
    s->loss = q->loss_sum / (double)MAX(q->valid, 1);
    s->grad_norm = now->norm;
    s->lr = q->lr;
    s->step_s = seconds;
    trainer_clock_finish_step(t, seconds);
    if (is_first_rank(t)) measure_step_speed(t, tokens, s);
    s->epoch = (double)t->state.windows / (double)MAX(loader_windows(t->data.batches), 1);
    s->batch = (double)(q->micros * trainer_micro_rows(t));
    if (q->longest) s->seq_len = (double)q->longest;
    if (t->cfg->data.guard) s->rejected = (double)q->rejected;
    s->total_steps = trainer_clock_is_open(t) ? 0 : t->len.stop;
    s->eta_s = trainer_clock_is_open(t) ? fmax(0, t->len.clock.budget - t->state.seconds)
                                        : t->average_s * (double)(t->len.stop - t->state.step);
    if (t->cfg->training.max_norm > 0 && !now->skip)
        s->clipped = optim_clip(now->norm, t->cfg->training.max_norm);
    if (q->small > 0 && isfinite(now->norm) && isfinite(q->small_sq))
        s->noise_scale = noise_scale_add(&t->state.noise, q->small_sq, q->small,
                                         (double)now->norm * (double)now->norm, (double)q->valid);
}

/* Halving the loss scale mends an overflow of the gradient within as many steps as the scale has
 * powers of two. What overflows longer is not the scale's fault. */
static err check_skipped(const trainer *t, double loss, double scale) {
    enum { MOST_SKIPPED = 64 };
    if (t->state.skipped_updates < MOST_SKIPPED) return OK;
    return err_hint(
        ERR("step %lld: the last %d updates were skipped; the loss is %g, the loss scale %g",
            (long long)t->state.step + 1, MOST_SKIPPED, loss, scale),
        "use precision=bf16, lower optimizer.lr or lengthen lr_scheduler.warmup. The last checkpoint "
        "with a finite loss is kept; remove those after it to continue from there");
}

err trainer_finish_step(trainer *t, observe_step *s) {
    bool fp16 = model_lay(t->m)->dt == DT_F16;
    queued_step *q = &t->last;
    step_state now;
    TRY(read_pending_losses(t));
    TRY(plan_take(t->p, &q->state, &now));
    TRY(ranks_sum_losses(t));
    q->open = false;
    double loss = q->loss_sum / (double)MAX(q->valid, 1);
    t->state.loss = loss;
    t->state.skipped_updates = now.skip ? t->state.skipped_updates + 1 : 0;
    TRY(check_skipped(t, loss, now.loss_scale));
    if (fp16) {
        s->loss_scale = t->state.scaler.scale;
        s->skipped = now.skip;
        t->state.scaler.scale = now.loss_scale;
        t->state.scaler.good_steps = now.good;
    }
    if (!fp16 && now.skip) s->skipped = 1;
    t->alerts.from = t->state.windows;
    t->state.step++;
    t->state.updates = now.count;
    t->state.windows = q->windows;
    t->state.tokens += trainer_step_tokens(t);
    measure_step(t, &now, s);
    return expert_load_measure(t, s);
}
