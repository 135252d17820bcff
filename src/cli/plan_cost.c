/* ingot plan --gpu: time and cost of a number of operations; ingot plan hardware: the catalogue. */
#include "cli/plan_common.h"

#include <math.h>
#include <string.h>

/* ---- time and cost ---------------------------------------------------------------------------- */
machine_query plan_machine_query(const plan_args *a) {
    return (machine_query){ a->gpu, a->gpus, a->dtype, a->mfu, a->provider, a->pue, a->usd_kwh };
}

/* Returns the power of the nodes at full load, with the data center's overhead. */
static void print_energy(const plan_machine *m, double gpu_hours) {
    const energy_use *u = hardware_find_energy(&m->catalogue, m->gpu);
    if (!u) return;
    run_energy e = energy_of(gpu_hours, u->watts, m->pue, m->usd_kwh);
    printf("  energy   %s MWh at %.0f W per accelerator and a PUE of %g: $%s at $%g per kWh\n",
           show_rounded(e.mwh), u->watts, m->pue, show_rounded(e.usd), m->usd_kwh);
}

static void print_cost(const plan_machine *m, double flops) {
    run_cost c = cost_of_flops(flops, m->gpus, m->peak, m->mfu, 0);
    double days = c.seconds / 86400;
    printf("\n%s x %s at %.0f %% of %s %s TFLOP/s: %s hours (%.*f days), %s GPU-hours\n",
           show_whole(m->gpus), m->gpu->title, 100 * m->mfu,
           m->peak < 1e13 ? show_rounded(m->peak / 1e12) : show_whole(floor(m->peak / 1e12)),
           m->dtype,
           c.seconds < 360000 ? show_rounded(c.seconds / 3600) : show_whole(c.seconds / 3600),
           days < 10 ? 2 : 0, days,
           c.gpu_hours < 1000 ? show_rounded(c.gpu_hours) : show_whole(c.gpu_hours));
    for (int i = 0; i < m->catalogue.n_prices; i++) {
        const hardware_price *p = &m->catalogue.prices[i];
        if (!plan_machine_rents(m, p)) continue;
        c = cost_of_flops(flops, m->gpus, m->peak, m->mfu, p->usd);
        char small[24];
        snprintf(small, sizeof small, "%.2f", c.usd);
        printf("  %-8s $%11s at $%.2f per GPU-hour (%s, %s)\n", p->provider,
               c.usd < 1000 ? small : show_whole(c.usd), p->usd, p->instance, p->date);
    }
    print_energy(m, c.gpu_hours);
}

/* ---- states by ZeRO stage --------------------------------------------------------------------- */
static void print_states(double params, double gpus) {
    printf("\nStates per GPU, mixed-precision Adam at 16 bytes per parameter over %s data-parallel "
           "GPUs:\n  replicated %.1f GB, ZeRO-1 %.1f GB, ZeRO-2 %.1f GB, ZeRO-3 %.*f GB\n",
           show_whole(gpus), zero_state_bytes(params, gpus, 0) / 1e9,
           zero_state_bytes(params, gpus, 1) / 1e9, zero_state_bytes(params, gpus, 2) / 1e9,
           zero_state_bytes(params, gpus, 3) < 1e10 ? 2 : 1,
           zero_state_bytes(params, gpus, 3) / 1e9);
}

void plan_report_cost(const plan_machine *m, const scaling_point *p, json_t *doc) {
    if (!doc && m->gpu) print_cost(m, p->compute);
    bool states_asked = m->gpus_given && !isnan(p->params);
    if (!doc && states_asked) print_states(p->params, m->gpus);
    if (doc && m->gpu) json_object_set_new(doc, "time", plan_cost_json(m, p->compute));
    if (!doc || !states_asked) return;
    json_t *states = json_array();
    for (int stage = 0; stage <= 3; stage++)
        json_array_append_new(states, io_json_number(zero_state_bytes(p->params, m->gpus, stage)));
    json_object_set_new(doc, "state_bytes_by_zero_stage", states);
}

/* ---- the catalogue ---------------------------------------------------------------------------- */
typedef struct hardware_args {
    const char *catalogue;
    bool json;
} hardware_args;
static const cli_arg args[] = {
    { "catalogue", ARG_TEXT, offsetof(hardware_args, catalogue), "FILE",
      "YAML file read over the built-in catalogue" },
    { "json", ARG_FLAG, offsetof(hardware_args, json), "", "print JSON" },
};

static void print_accelerator(const hardware *h, const accelerator *a) {
    printf("%-10s %-36s %4.0f GB %6.0f GB/s  link %5.0f  host %3.0f  network %4.1f GB/s\n", a->name,
           a->title, a->memory / 1e9, a->memory_bandwidth / 1e9, a->link / 1e9, a->host / 1e9,
           a->network / 1e9);
    printf("%-10s TFLOP/s:", "");
    for (int k = 0; k < PEAKS; k++)
        if (!isnan(a->peak[k])) printf(" %s %g", peak_name((peak_kind)k), a->peak[k] / 1e12);
    printf("  (%s)\n", a->source);
    for (int i = 0; i < h->n_prices; i++) {
        const hardware_price *p = &h->prices[i];
        if (strcmp(p->accelerator, a->name) != 0) continue;
        printf("%-10s $%.3f per hour at %s (%s, %s, %s)\n", "", p->usd, p->provider, p->instance,
               p->date, p->source);
    }
}

static json_t *accelerator_json(const accelerator *a) {
    json_t *peaks = json_object();
    for (int k = 0; k < PEAKS; k++)
        if (!isnan(a->peak[k]))
            json_object_set_new(peaks, peak_name((peak_kind)k), json_real(a->peak[k]));
    return json_pack("{s:s, s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:i, s:o}", "name",
                     a->name, "title", a->title, "chip", a->chip, "source", a->source, "memory",
                     a->memory, "memory_bandwidth", a->memory_bandwidth, "link", a->link, "host",
                     a->host, "network", a->network, "disk", a->disk, "per_node", a->per_node,
                     "peak_flops", peaks);
}

static json_t *catalogue_json(const hardware *h) {
    json_t *chips = json_array(), *prices = json_array(), *stores = json_array();
    for (int i = 0; i < h->n_accelerators; i++)
        json_array_append_new(chips, accelerator_json(&h->accelerators[i]));
    for (int i = 0; i < h->n_prices; i++) {
        const hardware_price *p = &h->prices[i];
        json_array_append_new(prices, json_pack("{s:s, s:s, s:s, s:f, s:s, s:s}", "provider",
                                                p->provider, "accelerator", p->accelerator,
                                                "instance", p->instance, "usd_per_gpu_hour", p->usd,
                                                "date", p->date, "source", p->source));
    }
    for (int i = 0; i < h->n_stores; i++) {
        const storage_price *s = &h->stores[i];
        json_array_append_new(stores, json_pack("{s:s, s:s, s:f, s:f, s:s, s:s}", "provider",
                                                s->provider, "name", s->name, "usd_gb_month",
                                                s->usd_gb_month, "usd_gb_egress", s->usd_gb_egress,
                                                "date", s->date, "source", s->source));
    }
    return json_pack("{s:o, s:o, s:o}", "accelerators", chips, "prices", prices, "storage", stores);
}

static err run(const cli_subcommand *self, int argc, char **argv) {
    hardware_args a = { 0 };
    hardware h;
    const accelerator *only = NULL;
    int n = 0;
    TRY(cli_parse_many(&self->spec, argc, argv, &a, &n));
    TRY(hardware_open(a.catalogue, &h));
    err e = OK;
    for (int i = 0; i < n && !e; i++) {
        e = hardware_find(&h, argv[i], &only);
        if (!e && a.json)
            plan_print_json(accelerator_json(only));
        else if (!e)
            print_accelerator(&h, only);
    }
    if (!n && a.json) plan_print_json(catalogue_json(&h));
    for (int i = 0; !n && !a.json && i < h.n_accelerators; i++)
        print_accelerator(&h, &h.accelerators[i]);
    for (int i = 0; !n && !a.json && i < h.n_stores; i++)
        printf("%-10s %s: $%.3f per GB and month, $%.3f per GB of egress (%s)\n",
               h.stores[i].provider, h.stores[i].name, h.stores[i].usd_gb_month,
               h.stores[i].usd_gb_egress, h.stores[i].date);
    hardware_free(&h);
    return e;
}

const cli_subcommand plan_hardware = {
    .summary = "show the catalogue of accelerators and prices",
    .run = run,
    .spec = { "plan hardware", "[NAME...] [options]", CLI_ARGS(args), 0, true },
    .help =
        "The catalogue is part of the program. A file of the same form as configs/hardware.yaml adds to\n"
        "it or replaces entries.\n"
        "\n"
        "Examples\n"
        "  ingot plan hardware h100\n"
        "  ingot plan hardware --catalogue our-cluster.yaml\n",
};
