/* The machine that a run would have to itself: accelerators of the catalogue, how many, and how well they are used. Read
 * from texts, as options of `ingot plan` and queries of the planning page give them. */
#include <math.h>
#include <string.h>

#include "io/io.h"
#include "planning_internal.h"

/* Beside the plan on a GPU: 1.2 GB of context and libraries, as bench/plan/memory --gpu measured, and buffers of NCCL. */
static const double driver_bytes = 2.5e9;

err plan_quantity(const char *name, const char *text, double *out) {
    *out = NAN;
    if (!text || number_parse_real(text, out)) return OK;
    return err_hint(ERR_USAGE("--%s: \"%.60s\" is not a number", name, text),
                    "write it like 7B, 1.5T, 2500000 or 6.3e23");
}

static err check_real_range(const char *name, double v, double low, double high) {
    if (v >= low && v <= high) return OK;
    bool percent = high == 1 && v > 1 && v <= 100; /* 45 for 0.45 */
    double nearest = percent ? v / 100 : v < low ? low : high;
    return err_hint(ERR_USAGE("--%s: expected %g to %g; got %g", name, low, high, v), "--%s %g",
                    name, nearest);
}

static err read_machine_numbers(const machine_query *q, plan_machine *m) {
    double gpus, mfu;
    TRY(plan_quantity("gpus", q->gpus, &gpus));
    TRY(plan_quantity("mfu", q->mfu, &mfu));
    TRY(plan_quantity("pue", q->pue, &m->pue));
    TRY(plan_quantity("usd-kwh", q->usd_kwh, &m->usd_kwh));
    if (isnan(m->pue)) m->pue = PUE_DEFAULT;
    if (isnan(m->usd_kwh)) m->usd_kwh = USD_KWH_DEFAULT;
    TRY(check_real_range("pue", m->pue, 1, 5));
    TRY(check_real_range("usd-kwh", m->usd_kwh, 0, 10));
    m->gpus = isnan(gpus) ? 1 : gpus;
    m->mfu = isnan(mfu) ? MFU_DEFAULT : mfu;
    TRY(check_real_range("gpus", m->gpus, 1, 1e7));
    if (m->gpus != floor(m->gpus))
        return err_hint(ERR_USAGE("--gpus: expected a whole number; got %g", m->gpus),
                        "--gpus %.0f", ceil(m->gpus));
    return check_real_range("mfu", m->mfu, 0.01, 1);
}

err plan_machine_choose(plan_machine *m, const machine_query *q) {
    const char *lonely = q->mfu        ? "mfu"
                         : q->provider ? "provider"
                         : q->dtype    ? "dtype"
                         : q->pue      ? "pue"
                         : q->usd_kwh  ? "usd-kwh"
                                       : NULL;
    if (!q->gpu && lonely)
        return err_hint(ERR_USAGE("--%s: means nothing without --gpu", lonely),
                        "--gpu h100; \"ingot plan hardware\" lists them");
    m->gpu = NULL;
    m->gpus_given = q->gpus;
    m->mfu_given = q->mfu;
    TRY(read_machine_numbers(q, m));
    if (q->gpu) TRY(hardware_find(&m->catalogue, q->gpu, &m->gpu));
    m->dtype = q->dtype ? q->dtype : m->gpu ? hardware_fastest_type(m->gpu) : "bf16";
    if (m->gpu) TRY(hardware_find_peak(m->gpu, m->dtype, &m->peak));
    const hardware_price *price;
    if (m->gpu && q->provider) TRY(hardware_find_price(&m->catalogue, m->gpu, q->provider, &price));
    m->provider = q->provider;
    return OK;
}

err plan_machine_open(const char *catalogue, const machine_query *q, plan_machine *out) {
    *out = (plan_machine){ 0 };
    TRY(hardware_open(catalogue, &out->catalogue));
    err e = plan_machine_choose(out, q);
    if (e) plan_machine_close(out);
    return e;
}

void plan_machine_close(plan_machine *m) {
    hardware_free(&m->catalogue);
    m->catalogue = (hardware){ 0 };
}

bool plan_machine_rents(const plan_machine *m, const hardware_price *p) {
    return !strcmp(p->accelerator, m->gpu->name) &&
           (!m->provider || !strcmp(p->provider, m->provider));
}

err plan_target_accelerator(const accelerator *gpu, config *c, run_target *on, double *limit) {
    on->device = !gpu->shared;
    on->gpu = gpu;
    on->ops = ops_cpu(OPS_ISA_BEST);
    *limit = on->device ? plan_limit_of_gpu(gpu->memory) : gpu->memory;
    if (on->device && !c->parallelism.tensor_parallel_chunks) /* whatever lays the programs out */
        TRY(config_set(c, "parallelism.tensor_parallel_chunks", "1"));
    if (!on->device && c->device.kind == OPS_AUTO) TRY(config_set(c, "device.kind", "cpu"));
    if (c->precision.dtype != CFG_FASTEST) return OK;
    return config_set(c, "precision.dtype", hardware_fastest_type(gpu));
}

double plan_limit_of_gpu(double memory) { return memory - driver_bytes; }

/* ---- as JSON ----------------------------------------------------------------------------------- */
double law_times_optimal(const scaling_law *l, const scaling_point *p) {
    scaling_point best;
    err e = law_solve(l, &(scaling_query){ NAN, p->params, NAN, NAN, INFINITY }, &best);
    double ratio = e ? NAN : p->tokens / best.tokens;
    err_free(e);
    return ratio;
}

json_t *law_point_json(const scaling_law *l, const scaling_point *p) {
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "law", l->name, "source",
                     l->source, "compute", io_json_number(p->compute), "pf_days",
                     io_json_number(p->compute / PF_DAY), "params", io_json_number(p->params),
                     "tokens", io_json_number(p->tokens), "effective_tokens",
                     io_json_number(p->effective_tokens), "tokens_per_param",
                     io_json_number(p->tokens / p->params), "loss", io_json_number(p->loss),
                     "times_optimal_tokens", io_json_number(law_times_optimal(l, p)));
}

json_t *plan_cost_json(const plan_machine *m, double flops) {
    json_t *list = json_array();
    run_cost c = cost_of_flops(flops, m->gpus, m->peak, m->mfu, 0);
    for (int i = 0; i < m->catalogue.n_prices; i++) {
        const hardware_price *p = &m->catalogue.prices[i];
        if (!plan_machine_rents(m, p)) continue;
        json_array_append_new(
            list,
            json_pack("{s:s, s:s, s:o, s:o, s:s, s:s}", "provider", p->provider, "instance",
                      p->instance, "usd_per_gpu_hour", io_json_number(p->usd), "usd",
                      io_json_number(cost_of_flops(flops, m->gpus, m->peak, m->mfu, p->usd).usd),
                      "date", p->date, "source", p->source));
    }
    const energy_use *u = hardware_find_energy(&m->catalogue, m->gpu);
    run_energy e = energy_of(c.gpu_hours, u ? u->watts : NAN, m->pue, m->usd_kwh);
    return json_pack("{s:s, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "gpu", m->gpu->name,
                     "gpus", io_json_number(m->gpus), "dtype", m->dtype, "peak_flops",
                     io_json_number(m->peak), "mfu", io_json_number(m->mfu), "seconds",
                     io_json_number(c.seconds), "gpu_hours", io_json_number(c.gpu_hours), "mwh",
                     io_json_number(e.mwh), "energy_usd", io_json_number(e.usd), "costs", list);
}

json_t *memory_json(const capacity *c) {
    json_t *memory = json_object();
    for (int k = 0; k < MEMORY_KINDS; k++)
        json_object_set_new(memory, memory_name((memory_kind)k), io_json_number(c->memory[k]));
    return memory;
}

json_t *capacity_json(const capacity *c) {
    return json_pack(
        "{s:s, s:o, s:o, s:o, s:I, s:I, s:I, s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:o}", "model",
        c->mc.name, "params", io_json_number(c->params), "flops_per_token",
        io_json_number(c->flops_full), "flops_per_token_causal", io_json_number(c->flops_causal),
        "microbatch_sequences", (json_int_t)c->rows, "microbatches", (json_int_t)c->micros,
        "seq_len", (json_int_t)c->seq, "steps", io_json_number(c->steps), "tokens",
        io_json_number(c->tokens), "flops", io_json_number(c->tokens * c->flops_full), "dtype",
        dt_name(c->dt), "memory", memory_json(c), "memory_total", io_json_number(c->total),
        "memory_offloaded", io_json_number(c->offloaded), "checkpoint_bytes",
        io_json_number(c->checkpoint), "data_bytes", io_json_number(c->tokens * c->token_bytes));
}

double step_bubble(const step_time *t) { return t->run.bubble * t->run.seconds / t->seconds; }

json_t *step_time_json(const step_time *t) {
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "seconds",
                     io_json_number(t->seconds), "tokens_per_second",
                     io_json_number(t->tokens_per_second), "compute",
                     io_json_number(t->run.compute), "exposed", io_json_number(t->run.exposed),
                     "hidden", io_json_number(t->run.hidden), "bubble",
                     io_json_number(step_bubble(t)), "update", io_json_number(t->update), "data",
                     io_json_number(t->data), "flops_per_gpu", io_json_number(t->flops_full));
}
