/* Options that this run leaves without an effect, for reasons that the option table cannot know: the model of the
 * preset or the checkpoint, the length of the run in steps or tokens, the number of ranks. */
#include "setup_internal.h"
#include "trainer_internal.h"

#include <stdio.h>

/* A decay that is longer than what the warm-up leaves is cut. Percentages of a few steps are rounded, so that one step
 * more is not an error; a warm-up that leaves nothing is one of its own. */
static err check_decay(const trainer *t, const char *unit, bool log) {
    const schedule *s = &t->len.sched;
    const int64_t step = t->len.in_tokens ? t->len.ramp.full * t->len.seq : 1;
    const int64_t needed = s->warmup + s->decay_length;
    static const char option[] = "lr_scheduler.decay";
    bool falls_at_end = sched_kind_traits[s->kind] & SCHED_FALLS_AT_END;
    char needs[128];
    if (!falls_at_end || needed <= s->end + step || s->warmup > s->end) return OK;
    if (recipe_decides(t, option)) return OK;
    snprintf(needs, sizeof needs,
             "a schedule of at least %lld %s, for the warm-up and the decay; it has %lld",
             (long long)needed, unit, (long long)s->end);
    return config_refuse_idle(t->cfg, option, "training.steps", log, needs);
}

static err check_schedule(const trainer *t, bool log) {
    const config *c = t->cfg;
    char needs[128];
    const char *unit = t->len.in_tokens ? "tokens" : "steps";
    const bool timed = t->len.clock.budget > 0;
    if (t->len.sched.warmup > t->len.sched.end && !timed) {
        snprintf(needs, sizeof needs, "a %s longer than the warm-up of %lld %s; it has %lld",
                 t->len.sched.end < t->len.sched.total ? "schedule" : "run",
                 (long long)t->len.sched.warmup, unit, (long long)t->len.sched.end);
        TRY(config_refuse_idle(c, "lr_scheduler.warmup", "training.steps", log, needs));
    }
    if (!timed) TRY(check_decay(t, unit, log));
    int64_t batch = t->len.ramp.full * t->len.seq;
    if (t->len.in_tokens && t->len.sched.total < batch) {
        snprintf(needs, sizeof needs, "a run of at least one batch, %lld tokens; it has %lld",
                 (long long)batch, (long long)t->len.sched.total);
        TRY(config_refuse_idle(c, "training.global_batch_size", "training.steps", log, needs));
    }
    return OK;
}

static err check_growth(const trainer *t, bool log) {
    const config *c = t->cfg;
    if (t->len.ramp.start == t->len.ramp.full)
        TRY(config_refuse_idle(c, "training.batch_ramp_start", "training", log,
                               "a training.global_batch_size above it"));
    if (c->training.seq_curriculum_start >= t->len.seq)
        TRY(config_refuse_idle(c, "training.seq_curriculum_start", "training", log,
                               "a training.seq_len above it"));
    return OK;
}

/* A config serves any number of ranks, so a single one only notes what it cannot shard; several ranks of
 * which none shards anything are a mistake in the layout. */
static err check_ranks(const trainer *t, bool log) {
    static const char needs[] = "ranks to shard over: a parallelism.data_parallel_shard_degree, "
                                "context_parallel_degree or expert_parallel_degree above 1";
    const config *c = t->cfg;
    bool alone = mesh_world(&t->mesh) == 1;
    int64_t group = mesh_world(&t->mesh) / (c->parallelism.pipeline_parallel_degree *
                                            c->parallelism.data_parallel_replicate_degree *
                                            c->parallelism.tensor_parallel_degree);
    if (group > 1 || c->parallelism.zero_stage < 2) return OK;
    if (c->training.offload_params) return OK;
    if (!alone) return config_refuse_idle(c, "parallelism.zero_stage", "parallelism", log, needs);
    if (log && config_is_set(c, "parallelism.zero_stage"))
        log_info("parallelism.zero_stage is ignored: there is one rank");
    return OK;
}

/* A run that is restarted by the same command may have passed the steps to profile. */
static err check_profile(const trainer *t, bool log) {
    const train_options *o = t->opt;
    if (o->profile_from > t->len.stop && !(t->len.clock.budget > 0))
        return err_hint(ERR_USAGE("--profile: the run ends after step %lld, before step %lld",
                                  (long long)t->len.stop, (long long)o->profile_from),
                        "give steps from 1 to %lld", (long long)t->len.stop);
    if (log && o->profile_from && o->profile_to <= t->state.step)
        log_warn("--profile: the run continues after step %lld: none of the steps %lld-%lld runs",
                 (long long)t->state.step, (long long)o->profile_from, (long long)o->profile_to);
    return OK;
}

err trainer_check_idle(const trainer *t) {
    bool log = is_first_rank(t);
    TRY(check_profile(t, log));
    TRY(model_check_idle(t->cfg, &t->mc, log));
    TRY(check_schedule(t, log));
    TRY(check_growth(t, log));
    return check_ranks(t, log);
}
