/* Computes what one rank of a run holds, by laying out its real programs, and suggests what would make it fit. */
#include "planning_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ------------------------------------------------------------------------------------ */
/* The plan's regions as people name them. Weights that GEMMs read are "copies" where there are any, and
 * then "params" are the master weights. A region that is in no row is "other". */
static const struct {
    const char *region;
    memory_kind kind;
} region_kinds[] = {
    { "params", MEMORY_MASTER },          { "copies", MEMORY_WEIGHTS },
    { "grads", MEMORY_GRADIENTS },        { "optimizer", MEMORY_MOMENTS },
    { "saved", MEMORY_ACTIVATIONS },      { "block inputs", MEMORY_ACTIVATIONS },
    { "residual", MEMORY_ACTIVATIONS },   { "carried", MEMORY_ACTIVATIONS },
    { "result", MEMORY_ACTIVATIONS },     { "top1", MEMORY_ACTIVATIONS },
    { "temp", MEMORY_WORKSPACE },         { "work", MEMORY_WORKSPACE },
    { "gathered", MEMORY_COMMUNICATION }, { "whole grads", MEMORY_COMMUNICATION },
    { "pipeline", MEMORY_COMMUNICATION },
};

static const char *const memory_names[MEMORY_KINDS] = {
    [MEMORY_WEIGHTS] = "weights",
    [MEMORY_GRADIENTS] = "gradients",
    [MEMORY_MASTER] = "master weights",
    [MEMORY_MOMENTS] = "moments",
    [MEMORY_ACTIVATIONS] = "activations",
    [MEMORY_COMMUNICATION] = "communication",
    [MEMORY_WORKSPACE] = "workspace",
    [MEMORY_INPUTS] = "inputs",
    [MEMORY_OTHER] = "other",
};
const char *memory_name(memory_kind k) { return memory_names[k]; }

static memory_kind kind_of_region(const char *name) {
    if (name[0] == '.') return MEMORY_INPUTS;
    for (size_t i = 0; i < COUNT_OF(region_kinds); i++)
        if (!strcmp(region_kinds[i].region, name)) return region_kinds[i].kind;
    return MEMORY_OTHER;
}

/* On the machine itself what is offloaded is in the arena; on an accelerator it is in the host. */
void capacity_add_memory(const plan *p, bool device, capacity *c) {
    double counted = 0; /* of what is offloaded: in the plan's arena, there being no device here */
    for (int i = 0; i < plan_region_count(p); i++) {
        size_t bytes, away = device ? plan_region_offloaded(p, i) : 0;
        const char *name = plan_region_info(p, i, &bytes);
        c->memory[kind_of_region(name)] += (double)(away ? 0 : bytes);
        c->offloaded += (double)away;
        counted += away ? (double)bytes : 0;
    }
    /* slots are shared by all chains, and added by plan_commit, as temp and work are */
    c->memory[MEMORY_COMMUNICATION] +=
        (double)(plan_bytes(p, "gathered") + plan_bytes(p, "whole grads"));
    double listed = 0;
    for (int k = 0; k < MEMORY_KINDS; k++) listed += c->memory[k];
    c->total = (double)plan_bytes(p, NULL) - counted;
    c->memory[MEMORY_WORKSPACE] += c->total - listed;
    if (c->memory[MEMORY_WEIGHTS] == 0) { /* GEMMs read the stored weights themselves */
        c->memory[MEMORY_WEIGHTS] = c->memory[MEMORY_MASTER];
        c->memory[MEMORY_MASTER] = 0;
    }
}

/* Checkpoints hold weights and states by parameter, of all ranks, as fp32 whatever their type in memory is. */
static double checkpoint_bytes(const train_outline *o) {
    double floats = 0;
    for (int i = 0; i < model_params(o->m); i++) {
        const model_param *q = model_param_at(o->m, i);
        double rows = (double)q->dim[0], cols = (double)(q->ndim > 1 ? q->dim[1] : 1);
        floats += rows * cols;
        for (int k = 0; k < optim_states(o->o, i); k++) {
            state_kind kind = optim_state_kind(o->o, i, k);
            floats += kind == STATE_OF_ROWS ? rows : kind == STATE_OF_COLS ? cols : rows * cols;
        }
    }
    return 4 * floats;
}

void capacity_of_outline(const train_outline *o, const run_target *on, int stage, capacity *out) {
    capacity c = { .stage = stage };
    const model_layout *lay = model_lay(o->m);
    c.mc = *model_conf(o->m);
    c.layout = lay->mesh;
    for (int i = 0; i < lay->pipe.chunks; i++) {
        int from, to;
        pipeline_blocks(&lay->pipe, c.mc.layers, stage, i, &from, &to);
        c.layers_of_stage += to - from;
    }
    c.dt = lay->dt;
    c.params = (double)model_count(&c.mc);
    c.flops_full = model_flops(&c.mc, o->seq, false);
    c.flops_causal = model_flops(&c.mc, o->seq, true);
    c.rows = o->rows;
    c.micros = o->micros;
    c.seq = o->seq;
    c.step_tokens = (double)o->step_tokens;
    c.steps = o->steps;
    c.tokens = o->tokens;
    c.token_bytes = bytes_per_token(c.mc.vocab);
    c.checkpoint = checkpoint_bytes(o);
    capacity_add_memory(o->p, on->device, &c);
    if (on->as) other_system_memory(on->as, o, stage, &c);
    *out = c;
}

err capacity_of_stage(const config *cfg, const run_target *on, int stage, capacity *out) {
    train_outline o;
    outline_options how = { on->ops, on->device ? 1 : 0, on->ranks, stage };
    *out = (capacity){ .stage = stage };
    err e = train_outline_open(cfg, &how, &o);
    if (!e) capacity_of_outline(&o, on, stage, out);
    train_outline_free(&o);
    return e;
}

err capacity_of(const config *cfg, const run_target *on, capacity *out) {
    TRY(capacity_of_stage(cfg, on, 0, out));
    int stages = mesh_stages(&out->layout);
    double sum = out->total;
    for (int stage = 1; stage < stages; stage++) {
        capacity c;
        TRY(capacity_of_stage(cfg, on, stage, &c));
        sum += c.total;
        if (c.total > out->total) *out = c;
    }
    out->of_all_ranks = sum * (mesh_world(&out->layout) / stages);
    return OK;
}

double capacity_needed(const run_target *on, const capacity *c) {
    static const double program = 15e6; /* code, libraries, stacks of threads, the loader */
    /* A process that trains on the CPU has all ranks as its threads. */
    return on->device ? c->total : c->of_all_ranks + program;
}

/* ---- what makes it fit ------------------------------------------------------------------------- */
/* Each row changes one thing. `slower` is the share by which a step gets longer; `risk` ranks a change of
 * what is computed behind any that only takes time. */
typedef struct fit_step {
    const char *settings[2][2]; /* option, value */
    const char *what;
    double slower, risk;
} fit_step;

static const fit_step recomputes[] = {
    { { { 0 } }, "", 0, 0 },
    { { { "activation_checkpoint.mode", "selective" } }, "recompute cheap ops", 0.01, 0 },
    { { { "activation_checkpoint.mode", "full" }, { "activation_checkpoint.part", "0.25" } },
      "recompute a quarter of the blocks",
      0.083,
      0 },
    { { { "activation_checkpoint.mode", "full" }, { "activation_checkpoint.part", "0.5" } },
      "recompute half of the blocks",
      0.167,
      0 },
    { { { "activation_checkpoint.mode", "full" }, { "activation_checkpoint.part", "1" } },
      "recompute every block",
      0.333,
      0 },
};
static const fit_step optimizers[] = {
    { { { 0 } }, "", 0, 0 },
    { { { "optimizer.name", "adam8bit" } }, "moments in 8 bits", 0, 0.05 },
    { { { "optimizer.offload", "0.5" } }, "half of the moments in host memory", 0.05, 0 },
    { { { "optimizer.offload", "1" } }, "moments in host memory", 0.1, 0 },
    { { { "optimizer.offload", "1" }, { "training.offload_params", "true" } },
      "moments and weights in host memory",
      0.3,
      0 },
    { { { "optimizer.master", "bf16" } }, "weights in bf16 without a master copy", 0, 0.1 },
    { { { "optimizer.name", "adam8bit" }, { "optimizer.master", "bf16" } },
      "moments in 8 bits, weights in bf16 without a master copy",
      0,
      0.15 },
};

/* State that the ranks of a data-parallel group may shard beside optimizer state. Stage 2 reduces gradients with every
 * microbatch, stage 3 gathers parameters too. */
static const fit_step shardings[] = {
    { { { 0 } }, "", 0, 0 },
    { { { "parallelism.zero_stage", "1" } }, "shard optimizer state (ZeRO-1)", 0.01, 0 },
    { { { "parallelism.zero_stage", "2" } }, "shard gradients too (ZeRO-2)", 0.04, 0 },
    { { { "parallelism.zero_stage", "3" } }, "shard parameters too (ZeRO-3)", 0.06, 0 },
};

static err apply_fit_step(config *c, const fit_step *s) {
    for (int i = 0; i < 2 && s->settings[i][0]; i++)
        TRY(config_set(c, s->settings[i][0], s->settings[i][1]));
    return OK;
}

static bool can_shard(const config *c, const capacity *now, int zero) {
    bool split =
        mesh_stages(&now->layout) > 1 &&
        pipeline_schedule_traits[c->parallelism.pipeline_parallel_schedule] & PIPE_SPLITS_BACKWARD;
    return zero > c->parallelism.zero_stage &&
           mesh_span(&now->layout, model_slice_axes(&now->layout)) > 1 && (zero < 2 || !split);
}

/* Whether the step changes anything and the run can take it. */
static bool step_applies(const fit_step *s, const config *c, const capacity *now, bool device) {
    bool adam = c->optimizer.name == OPTIM_ADAM || c->optimizer.name == OPTIM_ADAMW;
    for (int i = 0; i < 2 && s->settings[i][0]; i++) {
        const char *name = s->settings[i][0];
        if (!strcmp(name, "optimizer.name") && !adam) return false;
        bool offload =
            !strcmp(name, "optimizer.offload") || !strcmp(name, "training.offload_params");
        if (offload && !device) return false;
        if (!strcmp(name, "optimizer.master") &&
            (c->optimizer.master != CFG_MASTER_FP32 || now->dt != DT_BF16))
            return false;
        if (!strcmp(name, "activation_checkpoint.mode") &&
            c->activation_checkpoint.mode != CFG_AC_NONE)
            return false;
        if (!strcmp(name, "parallelism.zero_stage") && !can_shard(c, now, atoi(s->settings[i][1])))
            return false;
    }
    return true;
}

typedef struct fit_candidate {
    int recompute, optimizer, sharding;
    int64_t rows;
    double cost;
} fit_candidate;

static double candidate_slower(const fit_candidate *k, const capacity *now) {
    return recomputes[k->recompute].slower + optimizers[k->optimizer].slower +
           shardings[k->sharding].slower + 0.02 * log2((double)now->rows / (double)k->rows);
}

/* Of a step, all ranks together. */
static long long step_sequences(const capacity *c) {
    return llround(c->step_tokens / (double)c->seq);
}

SORT_ORDER(by_cost, fit_candidate, RISING(cost));

static err make_config(const config *from, const fit_candidate *k, const capacity *now,
                       config *to) {
    char text[32];
    config_copy(to, from);
    TRY(apply_fit_step(to, &recomputes[k->recompute]));
    TRY(apply_fit_step(to, &optimizers[k->optimizer]));
    TRY(apply_fit_step(to, &shardings[k->sharding]));
    if (k->rows == now->rows) return OK;
    snprintf(text, sizeof text, "%lld", (long long)k->rows);
    TRY(config_set(to, "training.local_batch_size", text));
    if (!isnan(from->training.global_batch_size.value)) return OK;
    snprintf(text, sizeof text, "%lld", step_sequences(now));
    return config_set(to, "training.global_batch_size", text); /* the step stays what it was */
}

static void describe_candidate(const fit_candidate *k, const capacity *now, str *what,
                               str *settings) {
    const fit_step *steps[] = { &shardings[k->sharding], &recomputes[k->recompute],
                                &optimizers[k->optimizer] };
    if (k->rows != now->rows) {
        str_add(what, "microbatches of %lld instead of %lld sequences", (long long)k->rows,
                (long long)now->rows);
        str_add(settings, "--training.local_batch_size=%lld --training.global_batch_size=%lld",
                (long long)k->rows, step_sequences(now));
    }
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        if (!*steps[i]->what) continue;
        str_add(what, "%s%s", what->len ? "; " : "", steps[i]->what);
        for (int n = 0; n < 2 && steps[i]->settings[n][0]; n++)
            str_add(settings, "%s--%s=%s", settings->len ? " " : "", steps[i]->settings[n][0],
                    steps[i]->settings[n][1]);
    }
}

enum { MOST_CANDIDATES = 4096 };
static int list_candidates(const config *c, const capacity *now, bool device, fit_candidate *all) {
    int n = 0;
    const int of_all = (int)(COUNT_OF(recomputes) * COUNT_OF(optimizers) * COUNT_OF(shardings));
    for (int i = 0; i < of_all; i++) {
        fit_candidate k = { .recompute = i % (int)COUNT_OF(recomputes),
                            .optimizer = i / (int)COUNT_OF(recomputes) % (int)COUNT_OF(optimizers),
                            .sharding = i / (int)(COUNT_OF(recomputes) * COUNT_OF(optimizers)) };
        if (!step_applies(&recomputes[k.recompute], c, now, device) ||
            !step_applies(&optimizers[k.optimizer], c, now, device) ||
            !step_applies(&shardings[k.sharding], c, now, device))
            continue;
        for (k.rows = now->rows; k.rows >= 1 && n < MOST_CANDIDATES; k.rows--) {
            if (now->rows % k.rows) continue;
            k.cost = candidate_slower(&k, now) + optimizers[k.optimizer].risk;
            all[n++] = k;
        }
    }
    sort_array(all, (size_t)n, sizeof *all, by_cost);
    return n;
}

/* Lays out the stage that needed most before, and the others only where that one fits. */
static err try_candidate(const config *changed, const run_target *on, double limit, int stage,
                         capacity *out) {
    if (stage > 0) {
        TRY(capacity_of_stage(changed, on, stage, out));
        if (out->total > limit) return OK;
    }
    return capacity_of(changed, on, out);
}

/* Sets *slower to what a change costs in simulated time. */
static err simulate_change(const config *cfg, const run_target *on, const fit_candidate *k,
                           const capacity *now, double *slower) {
    config changed;
    step_time before, after;
    TRY(step_simulate(cfg, on, on->gpu, NULL, &before));
    err e = make_config(cfg, k, now, &changed);
    if (!e) e = step_simulate(&changed, on, on->gpu, NULL, &after);
    if (!e) *slower = after.seconds / before.seconds - 1;
    config_free(&changed);
    return e;
}

err capacity_make_fit(const config *cfg, const run_target *on, double limit, const capacity *now,
                      fit_change *out) {
    fit_candidate *all = mem_alloc(sizeof *all * MOST_CANDIDATES);
    int n = list_candidates(cfg, now, on->device, all);
    err e = OK;
    *out = (fit_change){ .least = now->total };
    log_mute_thread(true); /* layouts that are only tried */
    for (int i = 0; i < n && !e && !out->found; i++) {
        config changed;
        capacity c;
        e = make_config(cfg, &all[i], now, &changed);
        if (!e) e = try_candidate(&changed, on, limit, now->stage, &c);
        config_free(&changed);
        if (e) break;
        out->least = fmin(out->least, c.total);
        if (c.total > limit) continue;
        out->found = true;
        out->after = c;
        out->slower = candidate_slower(&all[i], now);
        if (on->gpu) e = simulate_change(cfg, on, &all[i], now, &out->slower);
        describe_candidate(&all[i], now, &out->what, &out->settings);
    }
    log_mute_thread(false);
    free(all);
    return e;
}

void fit_change_free(fit_change *f) {
    str_free(&f->what);
    str_free(&f->settings);
}

/* ---- settings side by side --------------------------------------------------------------------- */
static err add_variant(const config *cfg, const run_target *on, const fit_candidate *k,
                       const capacity *now, capacity_variant **list, int *n) {
    capacity_variant v = { 0 };
    config changed;
    err e = make_config(cfg, k, now, &changed);
    if (!e) e = capacity_of(&changed, on, &v.cap);
    step_time t = { .seconds = NAN };
    if (!e && on->gpu) e = step_simulate(&changed, on, on->gpu, NULL, &t);
    v.seconds = t.seconds;
    config_free(&changed);
    if (e) return e;
    describe_candidate(k, now, &v.what, &v.settings);
    if (!v.what.len) str_add(&v.what, "as it is");
    v.slower = candidate_slower(k, now);
    if (on->gpu) v.slower = *n ? v.seconds / (*list)[0].seconds - 1 : 0;
    *list = mem_grow(*list, sizeof **list * (size_t)(*n + 1));
    (*list)[(*n)++] = v;
    return OK;
}

err capacity_compare(const config *cfg, const run_target *on, const capacity *now,
                     capacity_variant **list, int *n) {
    fit_candidate all[COUNT_OF(recomputes) + COUNT_OF(optimizers) + COUNT_OF(shardings) + 1];
    int count = 0;
    *list = NULL;
    *n = 0;
    for (size_t r = 0; r < COUNT_OF(recomputes); r++)
        if (step_applies(&recomputes[r], cfg, now, on->device))
            all[count++] = (fit_candidate){ .recompute = (int)r, .rows = now->rows };
    if (now->rows % 2 == 0) all[count++] = (fit_candidate){ .rows = now->rows / 2 };
    for (size_t o = 1; o < COUNT_OF(optimizers); o++)
        if (step_applies(&optimizers[o], cfg, now, on->device))
            all[count++] = (fit_candidate){ .optimizer = (int)o, .rows = now->rows };
    for (size_t z = 1; z < COUNT_OF(shardings); z++)
        if (step_applies(&shardings[z], cfg, now, on->device))
            all[count++] = (fit_candidate){ .sharding = (int)z, .rows = now->rows };
    for (int i = 0; i < count; i++) TRY(add_variant(cfg, on, &all[i], now, list, n));
    add_other_runs(cfg, on, now, list, n);
    return OK;
}

void capacity_variants_free(capacity_variant *list, int n) {
    for (int i = 0; i < n; i++) {
        str_free(&list[i].what);
        str_free(&list[i].settings);
    }
    free(list);
}
