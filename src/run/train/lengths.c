/* The batch, and every length of a config: what it is in steps, tokens and windows.
 *
 * A length given in steps counts steps, one given in tokens or epochs counts tokens, and a percentage
 * counts what the run's own length is given in. While the batch grows the two differ: a run of n
 * tokens ends when n tokens were trained on, and its learning rate follows the tokens. What must be
 * known in the other unit is converted along the ramp (batch_ramp), never at the full batch. */
#include "lengths_internal.h"
#include "trainer_internal.h"

#include <assert.h>
#include <math.h>

/* ---- the batch --------------------------------------------------------------------------- */
/* Sequences in a batch size; tokens may leave a fraction. */
static double sequences_of(const trainer *t, cfg_amount a) {
    return a.unit == CFG_TOKENS ? a.value / (double)t->len.seq : a.value;
}

static err check_batch(const char *name, double sequences, const trainer *t) {
    static const double most = 16777216;
    if (sequences >= 1 && sequences <= most) return OK;
    return err_hint(ERR("%s is %g sequences of %lld tokens; expected 1 to %.0f", name, sequences,
                        (long long)t->len.seq, most),
                    "give a number of sequences, or of tokens such as \"512K tokens\"");
}

/* Sequences given as such are a whole number of microbatches; tokens are rounded to the nearest. */
static err whole_microbatches(const trainer *t, const char *name, cfg_amount a, int64_t *out) {
    double sequences = sequences_of(t, a), micros = sequences / (double)trainer_micro_rows(t);
    TRY(check_batch(name, sequences, t));
    if (a.unit == CFG_SEQUENCES && micros != floor(micros))
        return err_hint(
            ERR("%s (%.0f) is not a multiple of training.local_batch_size (%lld) x %d data-parallel "
                "ranks",
                name, sequences, (long long)t->len.rows, ranks_with_rows(t)),
            "choose a multiple, or give the batch size in tokens, which are rounded");
    *out = MAX(1, (int64_t)llround(micros)) * trainer_micro_rows(t);
    return OK;
}

int64_t trainer_micro_rows(const trainer *t) { return t->len.rows * ranks_with_rows(t); }

/* The noise scale compares the first half of a step's sequences with all of them: a layout divides both. */
static err check_halves(const trainer *t, const char *name, int64_t sequences) {
    int64_t unit = trainer_micro_rows(t);
    if (!t->cfg->training.noise_scale || sequences / unit % 2 == 0) return OK;
    return err_hint(
        ERR("training.noise_scale compares the first half of a step's sequences with all of "
            "them; %s is %lld sequences, an odd number of microbatches of %lld",
            name, (long long)sequences, (long long)unit),
        "use %lld, or a smaller training.local_batch_size",
        (long long)(ceil_div(sequences, 2 * unit) * 2 * unit));
}

/* A size of the ramp in whole sequences, which does not depend on the layout: the layout must divide it. */
static err ramp_amount(const trainer *t, const char *name, cfg_amount a, int64_t *out) {
    double sequences = sequences_of(t, a);
    int64_t unit = trainer_micro_rows(t), n = *out = llround(sequences);
    if (sequences > 0 && n == 0) *out = n = 1;
    if (n % unit == 0) return check_halves(t, name, n);
    return err_hint(ERR("%s is %lld sequences, which training.local_batch_size (%lld) x %d "
                        "data-parallel ranks do not divide",
                        name, (long long)n, (long long)t->len.rows, ranks_with_rows(t)),
                    "use %lld, or a smaller training.local_batch_size or data-parallel degree: "
                    "the ramp is the same on every layout",
                    (long long)(ceil_div(n, unit) * unit));
}

/* Sizes of training.batch_schedule; set_phase_ends has where they end. */
static err set_phase_sizes(trainer *t) {
    static_assert((int)CFG_MAX_BATCH_PHASES == (int)BATCH_MAX_PHASES,
                  "a phase of the option is one of the ramp");
    cfg_batch_phase given[CFG_MAX_BATCH_PHASES];
    batch_ramp *r = &t->len.ramp;
    r->n_phases = config_batch_phases(t->cfg->training.batch_schedule, given);
    for (int i = 0; i < r->n_phases; i++) {
        char name[64];
        snprintf(name, sizeof name, "the batch of phase %d of training.batch_schedule", i + 1);
        TRY(ramp_amount(t, name, given[i].batch, &r->phases[i].size));
        if (r->phases[i].size > r->full)
            return err_hint(ERR("%s is %lld sequences, more than the %lld of a full batch", name,
                                (long long)r->phases[i].size, (long long)r->full),
                            "set training.global_batch_size to the largest batch");
    }
    return OK;
}

static err set_ramp_sizes(trainer *t) {
    batch_ramp *r = &t->len.ramp;
    const char *start = "training.batch_ramp_start", *by = "training.batch_ramp_increment";
    TRY(ramp_amount(t, start, t->cfg->training.batch_ramp_start, &r->start));
    TRY(ramp_amount(t, by, t->cfg->training.batch_ramp_increment, &r->increment));
    if (r->start > r->full)
        return err_hint(ERR("%s is %lld sequences, more than the %lld of a full batch", start,
                            (long long)r->start, (long long)r->full),
                        "set training.global_batch_size to the batch at the end of the ramp");
    if (r->start && r->increment && (r->full - r->start) % r->increment)
        return err_hint(ERR("%s is %lld sequences, which do not divide the %lld from %s (%lld) to "
                            "the full batch (%lld)",
                            by, (long long)r->increment, (long long)(r->full - r->start), start,
                            (long long)r->start, (long long)r->full),
                        "choose a divisor, or leave it out: the batch then grows by %s", start);
    return OK;
}

/* The global batch of the run that is continued, in sequences; 0: there is none. */
static int64_t batch_before(const trainer *t) {
    const json_t *options = json_object_get(t->start.run, "options");
    const char *text = json_string_value(json_object_get(options, "training.global_batch_size"));
    double sequences = 0;
    config saved;
    config_init(&saved);
    err e = text ? config_set(&saved, "training.global_batch_size", text) : OK;
    if (text && !e) sequences = sequences_of(t, saved.training.global_batch_size);
    err_free(e);
    config_free(&saved);
    return t->start.resume && sequences >= 1 ? llround(sequences) : 0;
}

/* `auto` is one microbatch per rank in a new run. One that is continued keeps its batch, on however many ranks. */
static err set_full_batch(trainer *t) {
    cfg_amount given = t->cfg->training.global_batch_size;
    int64_t before = batch_before(t), unit = trainer_micro_rows(t), local = t->len.rows;
    if (!isnan(given.value))
        return whole_microbatches(t, "training.global_batch_size", given, &t->len.ramp.full);
    if (!before) return OK;
    t->len.ramp.full = before;
    if (before % unit == 0) return OK;
    while (local > 1 && before % (local * ranks_with_rows(t))) local--;
    err e = ERR("the run has %lld sequences per step, which training.local_batch_size (%lld) x %d "
                "data-parallel ranks do not divide",
                (long long)before, (long long)t->len.rows, ranks_with_rows(t));
    if (before % (local * ranks_with_rows(t)) == 0)
        e = err_hint(e, "use training.local_batch_size=%lld", (long long)local);
    return err_hint(e, "training.global_batch_size=%lld continues with another batch",
                    (long long)(ceil_div(before, unit) * unit));
}

err trainer_set_batch(trainer *t) {
    const config *c = t->cfg;
    t->len.seq = c->training.seq_len;
    double local = sequences_of(t, c->training.local_batch_size);
    TRY(check_batch("training.local_batch_size", local, t));
    t->len.rows = (int64_t)local;
    t->len.ramp = (batch_ramp){ .unit = trainer_micro_rows(t), .full = trainer_micro_rows(t) };
    if (pipeline_schedule_traits[c->parallelism.pipeline_parallel_schedule] & PIPE_TAKES_CHUNKS)
        t->len.ramp.unit *= mesh_stages(&t->mesh); /* a step has microbatches in such groups */
    TRY(set_full_batch(t));
    t->len.micros = t->len.ramp.full / trainer_micro_rows(t);
    TRY(set_ramp_sizes(t));
    TRY(set_phase_sizes(t));
    return check_halves(t, "training.global_batch_size", t->len.ramp.full);
}

/* ---- conversions ------------------------------------------------------------------------- */
static int64_t steps_to_tokens(const trainer *t, int64_t steps) {
    int64_t windows = batch_ramp_windows(&t->len.ramp, steps);
    return windows > INT64_MAX / t->len.seq ? INT64_MAX : windows * t->len.seq;
}

int64_t trainer_tokens_at_end(const trainer *t) {
    int64_t left = steps_to_tokens(t, t->len.stop) - steps_to_tokens(t, t->state.step);
    return t->state.tokens + left;
}

/* @return the windows consumed when `tokens` were trained on, from where the run stands: what came
 * before may have had other batches and sequences. */
static int64_t window_at_tokens(const trainer *t, int64_t tokens) {
    if (tokens <= t->state.tokens) return 0;
    return t->state.windows + ceil_div(tokens - t->state.tokens, t->len.seq);
}

/* @return the steps after which `tokens` were trained on. */
static int64_t tokens_to_steps(const trainer *t, int64_t tokens) {
    if (tokens <= t->state.tokens)
        return MIN(t->state.step, batch_ramp_steps(&t->len.ramp, 0, ceil_div(tokens, t->len.seq)));
    return t->state.step +
           batch_ramp_steps(&t->len.ramp, t->state.windows, window_at_tokens(t, tokens));
}

/* @return a resolved length in the unit of the schedule. */
static int64_t in_schedule_unit(const trainer *t, cfg_amount a) {
    int64_t n = (int64_t)a.value;
    if (t->len.in_tokens) return a.unit == CFG_TOKENS ? n : steps_to_tokens(t, n);
    return a.unit == CFG_TOKENS ? batch_ramp_steps(&t->len.ramp, 0, ceil_div(n, t->len.seq)) : n;
}

/* ---- the ramp ---------------------------------------------------------------------------- */
/* @return the windows over which a ramp of `steps` steps grows: the fewest that last so long. */
static int64_t ramp_windows_for(const trainer *t, int64_t steps) {
    batch_ramp r = t->len.ramp;
    int64_t low = 0, high = steps > INT64_MAX / r.full ? INT64_MAX : steps * r.full;
    while (low < high) {
        r.windows = low + (high - low) / 2;
        if (batch_ramp_steps(&r, 0, r.windows) >= steps)
            high = r.windows;
        else
            low = r.windows + 1;
    }
    return low;
}

/* Where the phases of training.batch_schedule end, in windows. One given in steps ends with the last of them, counted
 * along the phases before it. */
static err set_phase_ends(trainer *t, const cfg_scale *s) {
    cfg_batch_phase given[CFG_MAX_BATCH_PHASES];
    batch_ramp *r = &t->len.ramp;
    int n = config_batch_phases(t->cfg->training.batch_schedule, given);
    for (int i = 0; i < n; i++) {
        cfg_amount a;
        TRY(cfg_amount_resolve(given[i].until, s, "training.batch_schedule", &a));
        r->n_phases = i + 1;
        r->phases[i].until = INT64_MAX; /* as long as it takes to count its steps */
        int64_t steps = (int64_t)a.value, before = i ? r->phases[i - 1].until : 0;
        int64_t ends =
            a.unit == CFG_TOKENS ? ceil_div(steps, t->len.seq) : batch_ramp_windows(r, steps);
        if (ends <= before)
            return err_hint(
                ERR("phase %d of training.batch_schedule ends after %lld sequences, where the one before it "
                    "ends after %lld",
                    i + 1, (long long)ends, (long long)before),
                "lengths count from the beginning of the run: each is longer than the one before");
        r->phases[i].until = ends;
    }
    return OK;
}

static err set_ramp(trainer *t, const cfg_scale *s) {
    cfg_amount a;
    TRY(set_phase_ends(t, s));
    TRY(cfg_amount_resolve(t->cfg->training.batch_ramp, s, "training.batch_ramp", &a));
    int64_t n = (int64_t)a.value;
    if (t->len.ramp.start > 0)
        t->len.ramp.windows =
            a.unit == CFG_TOKENS ? ceil_div(n, t->len.seq) : ramp_windows_for(t, n);
    TRY(cfg_amount_resolve(t->cfg->training.seq_curriculum, s, "training.seq_curriculum", &a));
    n = (int64_t)a.value;
    t->len.curriculum =
        a.unit == CFG_TOKENS ? ceil_div(n, t->len.seq) : batch_ramp_windows(&t->len.ramp, n);
    return OK;
}

static double tokens_in(const trainer *t, int64_t steps) {
    return (double)batch_ramp_windows(&t->len.ramp, steps) * (double)t->len.seq;
}

/* The batch and the run's length, relative to those that rates are stated for; and what they make of the learning rate. The
 * best rate falls with the length, by a power that was found to be near 1/3 (Bjorck et al., 2024). */
static double batch_ratio(const trainer *t) {
    return (double)t->len.ramp.full / (double)t->cfg->optimizer.lr_scaling_base_batch;
}
static double batch_scale(const trainer *t) {
    switch ((cfg_lr_scaling)t->cfg->optimizer.lr_scaling) {
    case CFG_LR_PLAIN: return 1;
    case CFG_LR_LINEAR: return batch_ratio(t);
    case CFG_LR_SQRT: return sqrt(batch_ratio(t));
    }
    BUG("not a scaling of the learning rate");
}
static double lr_scale(const trainer *t) {
    double base = (double)t->cfg->optimizer.lr_base_tokens, tokens = tokens_in(t, t->len.steps);
    return batch_scale(t) * (base > 0 && tokens > base ? cbrt(base / tokens) : 1);
}

/* ---- everything else --------------------------------------------------------------------- */
static err set_schedule(trainer *t, const cfg_scale *s) {
    const config *c = t->cfg;
    cfg_amount warmup, decay, momentum, length;
    TRY(cfg_amount_resolve(c->optimizer.momentum_warmup, s, "optimizer.momentum_warmup",
                           &momentum));
    TRY(cfg_amount_resolve(c->lr_scheduler.warmup, s, "lr_scheduler.warmup", &warmup));
    TRY(cfg_amount_resolve(c->lr_scheduler.decay, s, "lr_scheduler.decay", &decay));
    TRY(cfg_amount_resolve(c->lr_scheduler.length, s, "lr_scheduler.length", &length));
    t->len.sched = (schedule){ .kind = c->lr_scheduler.name,
                               .decay = c->lr_scheduler.decay_type,
                               .lr = c->optimizer.lr,
                               .min_factor = c->lr_scheduler.min_lr_factor,
                               .warmup = in_schedule_unit(t, warmup),
                               .end = in_schedule_unit(t, length),
                               .total = in_schedule_unit(t, s->run),
                               .decay_length = in_schedule_unit(t, decay) };
    const char *unit = t->len.in_tokens ? "tokens" : "steps";
    if (t->len.sched.end > t->len.sched.total)
        return err_hint(
            ERR("lr_scheduler.length is %lld %s, longer than the run of %lld",
                (long long)t->len.sched.end, unit, (long long)t->len.sched.total),
            "for a run that ends before its schedule make training.steps as long as the "
            "schedule, and set training.stop");
    t->len.momentum = (momentum_schedule){ .warmup = in_schedule_unit(t, momentum),
                                           .start = c->optimizer.momentum_start,
                                           .end = c->optimizer.momentum_end };
    t->len.sched.lr *= lr_scale(t);
    return OK;
}

/* Weights of a run of a few steps forget as those of one of LEAST_STEPS: else a step would take all of them away. */
double trainer_decay_per_token(const trainer *t) {
    enum { LEAST_STEPS = 20 };
    if (!t->len.steps) return 0;
    double tokens = tokens_in(t, MAX(t->len.steps, LEAST_STEPS));
    return tokens > 0 ? batch_ratio(t) / lr_scale(t) / tokens : 0;
}

static err set_cadence(const trainer *t, cfg_amount a, const cfg_scale *s, const char *name,
                       cadence *out) {
    TRY(cfg_amount_resolve(a, s, name, &a));
    *out = (cadence){ a.value, a.unit, t->began + a.value };
    return OK;
}

static err set_cadences(trainer *t, const cfg_scale *s) {
    const config *c = t->cfg;
    TRY(set_cadence(t, c->metrics.log_every, s, "metrics.log_every", &t->len.every.log));
    TRY(set_cadence(t, c->metrics.tensorboard_every, s, "metrics.tensorboard_every",
                    &t->len.every.tensorboard));
    TRY(set_cadence(t, c->metrics.detail_every, s, "metrics.detail_every", &t->len.every.detail));
    TRY(set_cadence(t, c->validation.every, s, "validation.every", &t->len.every.validate));
    TRY(set_cadence(t, c->validation.tasks_every, s, "validation.tasks_every",
                    &t->len.every.tasks));
    TRY(set_cadence(t, c->sample.every, s, "sample.every", &t->len.every.sample));
    TRY(set_cadence(t, c->checkpoint.weights_every, s, "checkpoint.weights_every",
                    &t->len.every.weights));
    return set_cadence(t, c->checkpoint.every, s, "checkpoint.every", &t->len.every.save);
}

static err set_stop(trainer *t, const cfg_scale *s) {
    cfg_amount stop;
    TRY(cfg_amount_resolve(t->cfg->training.stop, s, "training.stop", &stop));
    int64_t n = (int64_t)stop.value;
    t->len.stop = stop.unit == CFG_TOKENS ? tokens_to_steps(t, n) : n;
    t->len.early = stop.value > 0 ? t->len.stop : INT64_MAX;
    t->len.stop = MIN(t->len.early, trainer_clock_end(t, t->len.steps));
    return OK;
}

/* Interleaved1F1B runs microbatches in groups of one per stage: steps of the ramp, and the last
 * one of a length in tokens, are rounded up to whole groups. Other schedules take smaller steps. */
static void note_rounded_steps(const trainer *t, int64_t length) {
    const batch_ramp *r = &t->len.ramp;
    int64_t micro = trainer_micro_rows(t), group = r->unit / micro;
    if (group == 1 || !is_first_rank(t)) return;
    bool ramps = r->start && (r->start % r->unit || r->increment % r->unit);
    for (int i = 0; i < r->n_phases; i++) ramps |= r->phases[i].size % r->unit != 0;
    bool ends = t->len.in_tokens && ceil_div(window_at_tokens(t, length), micro) % group;
    if (ramps || ends)
        log_info(
            "Interleaved1F1B takes microbatches in groups of %lld: %s rounded up to a multiple of "
            "%lld sequences",
            (long long)group,
            ramps && ends ? "the steps of smaller batches and the last step are"
            : ramps       ? "the steps of smaller batches are"
                          : "the last step is",
            (long long)r->unit);
}

err trainer_set_lengths(trainer *t) {
    cfg_scale s = { .tokens_per_epoch =
                        (double)datasets_tokens(t->data.sources, t->data.n_sources) };
    TRY(cfg_amount_resolve(t->cfg->training.steps, &s, "training.steps", &s.run));
    if (s.run.value <= 0)
        return err_hint(ERR("training.steps is 0: there is nothing to train"),
                        "give at least one step, such as 1000 or \"2e9 tokens\"");
    if (s.run.unit == CFG_SECONDS)
        s.run = (cfg_amount){ (double)trainer_clock_length(t), CFG_STEPS };
    t->len.in_tokens = s.run.unit == CFG_TOKENS;
    TRY(set_ramp(t, &s));
    int64_t n = (int64_t)s.run.value;
    if (t->len.in_tokens)
        t->len.ramp.end = ceil_div(window_at_tokens(t, n), t->len.ramp.unit) * t->len.ramp.unit;
    t->len.steps = t->len.in_tokens ? tokens_to_steps(t, n) : n;
    note_rounded_steps(t, n);
    TRY(set_stop(t, &s));
    TRY(set_schedule(t, &s));
    return set_cadences(t, &s);
}

static bool is_due(cadence *c, int64_t step, int64_t tokens, int64_t in_step, double now) {
    int64_t length = (int64_t)c->length;
    if (c->length <= 0) return false;
    if (c->unit == CFG_TOKENS) return tokens / length > (tokens - in_step) / length;
    if (c->unit != CFG_SECONDS) return step % length == 0;
    if (now < c->next) return false;
    c->next += c->length * (floor((now - c->next) / c->length) + 1);
    return true;
}

due_events cadences_due(cadences *every, int64_t step, int64_t tokens, int64_t in_step,
                        double now) {
    return (due_events){ .log = is_due(&every->log, step, tokens, in_step, now),
                         .tensorboard = is_due(&every->tensorboard, step, tokens, in_step, now),
                         .detail = is_due(&every->detail, step, tokens, in_step, now),
                         .validate = is_due(&every->validate, step, tokens, in_step, now),
                         .tasks = is_due(&every->tasks, step, tokens, in_step, now),
                         .sample = is_due(&every->sample, step, tokens, in_step, now),
                         .save = is_due(&every->save, step, tokens, in_step, now),
                         .weights = is_due(&every->weights, step, tokens, in_step, now) };
}
