/* ingot plan CONFIG: what a run holds, reads, writes and takes, from its recorded programs. */
#include "cli/plan_common.h"

#include <math.h>
#include <string.h>

typedef struct config_plan {
    config c;
    run_target on; /* what the programs are laid out for; ops NULL: none is open */
    double limit;  /* bytes the plan may have */
    const char *limit_of;
    plan_machine m;
    plan_source source;
    capacity cap;
    step_time step; /* simulated, with --gpu */
} config_plan;

/* ---- setting up -------------------------------------------------------------------------------- */
static err use_this_machine(config_plan *p) {
    TRY(train_device(&p->c, 0, &p->on.ops));
    p->on.device = p->on.ops->device != NULL;
    p->limit = (double)mem_free();
    p->limit_of = "this machine";
    if (p->on.device) {
        ops_gpu_info gpu;
        TRY(ops_cuda_describe((int)p->c.device.index, &gpu));
        p->limit = plan_limit_of_gpu(gpu.memory);
        p->limit_of = "this machine's GPU";
    }
    return OK;
}

/* ---- text -------------------------------------------------------------------------------------- */
static void print_plan_line(const char *label, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void print_plan_line(const char *label, const char *fmt, ...) {
    va_list list;
    printf("  %-12s ", label);
    va_start(list, fmt);
    vprintf(fmt, list);
    va_end(list);
    printf("\n");
}

/* "tp 8 x pp 4 x dp_shard 32 = 1,024 ranks" */
static void print_layout(const mesh *m) {
    str text = { 0 };
    for (int a = AX_COUNT - 1; a >= 0; a--)
        if (mesh_size(m, (mesh_axis)a) > 1)
            str_add(&text, "%s%s %d", text.len ? " x " : "", mesh_axis_name[a],
                    mesh_size(m, (mesh_axis)a));
    print_plan_line("layout", "%s = %s ranks", text.text, show_whole(mesh_world(m)));
    str_free(&text);
}

static void print_model(const capacity *c) {
    char active[64] = "";
    if (c->mc.experts)
        snprintf(active, sizeof active, ", %s active per token",
                 show_count((double)model_count_active(&c->mc)));
    printf("%s\n", c->mc.name);
    print_plan_line(
        "model",
        "%s parameters%s: %d layers, width %lld, %d heads (%d key/value), ffn %lld, vocabulary %lld",
        show_count(c->params), active, c->mc.layers, (long long)c->mc.dim, c->mc.heads,
        c->mc.kv_heads, (long long)c->mc.ffn, (long long)c->mc.vocab);
    print_plan_line("FLOPs", "%s per token with attention counted full, %s causal; 6 N is %s",
                    show_flops(c->flops_full), show_flops(c->flops_causal),
                    show_flops(6 * c->params));
    int rows = mesh_span(&c->layout, AXES_ROWS);
    char of_ranks[32] = "";
    if (mesh_world(&c->layout) > 1) print_layout(&c->layout);
    if (rows > 1) snprintf(of_ranks, sizeof of_ranks, "%d ranks x ", rows);
    print_plan_line("batch", "%s%lld x %lld sequences of %lld tokens = %s tokens per step",
                    of_ranks, (long long)c->micros, (long long)c->rows, (long long)c->seq,
                    show_count(c->step_tokens));
    if (isnan(c->tokens))
        print_plan_line("length", "in epochs of the data, or in time: --gpu shows how many steps");
    else
        print_plan_line("length", "%s steps, %s tokens (%.1f per parameter), %s FLOPs",
                        show_whole(c->steps), show_count(c->tokens), c->tokens / c->params,
                        show_flops(c->tokens * c->flops_full));
}

static void print_memory(const config_plan *p) {
    const capacity *c = &p->cap;
    char stage[64] = "";
    if (mesh_size(&c->layout, AX_PP) > 1)
        snprintf(stage, sizeof stage, " of pipeline stage %d (%d layers), which needs most,",
                 c->stage, c->layers_of_stage);
    print_plan_line("memory", "%.2f GB for one rank%s in %s:", c->total / 1e9, stage,
                    dt_name(c->dt));
    for (int k = 0; k < MEMORY_KINDS; k++)
        if (c->memory[k] > 0)
            printf("    %-14s %9.3f GB  %4.1f %%\n", memory_name((memory_kind)k),
                   c->memory[k] / 1e9, 100 * c->memory[k] / c->total);
    if (c->offloaded > 0) printf("    %-14s %9.3f GB\n", "in the host", c->offloaded / 1e9);
}

/* Of data and checkpoints: "96.4 GB", "60 TB". @return buf. */
static char *show_volume(char *buf, size_t n, double bytes) {
    bool tera = bytes >= 1e12;
    snprintf(buf, n, "%.3g %s", bytes / (tera ? 1e12 : 1e9), tera ? "TB" : "GB");
    return buf;
}

static void print_data(const config_plan *p) {
    const capacity *c = &p->cap;
    double disk = p->m.gpu ? p->m.gpu->disk : 2e9;
    char text[32];
    if (!isnan(c->tokens))
        print_plan_line("data", "%s tokens, %s at %.0f bytes each", show_count(c->tokens),
                        show_volume(text, sizeof text, c->tokens * c->token_bytes), c->token_bytes);
    if (p->m.gpu) {
        double rate = p->m.gpus * p->m.peak * p->m.mfu / c->flops_full;
        print_plan_line("reading", "%s tokens/s, %.3g MB/s", show_count(rate),
                        rate * c->token_bytes / 1e6);
    }
    double nodes = p->m.gpu ? ceil(mesh_world(&c->layout) / (double)p->m.gpu->per_node) : 1;
    char of_nodes[48] = "";
    if (nodes > 1) snprintf(of_nodes, sizeof of_nodes, " on each of %s nodes", show_whole(nodes));
    print_plan_line("checkpoint", "%s, %.3g s at %.3g GB/s%s",
                    show_volume(text, sizeof text, c->checkpoint), c->checkpoint / (disk * nodes),
                    disk / 1e9, of_nodes);
}

/* Data, and as many checkpoints as are kept; what leaves the provider is the last one. */
static double stored_bytes(const config_plan *p) {
    double data = isnan(p->cap.tokens) ? 0 : p->cap.tokens * p->cap.token_bytes;
    return data + (double)p->c.checkpoint.keep_latest_k * p->cap.checkpoint;
}

static void report_storage(const config_plan *p, json_t *doc) {
    json_t *list = doc ? json_array() : NULL;
    char text[32];
    for (int i = 0; p->m.gpu && i < p->m.catalogue.n_stores; i++) {
        const storage_price *s = &p->m.catalogue.stores[i];
        double month = stored_bytes(p) / 1e9 * s->usd_gb_month;
        double egress = p->cap.checkpoint / 1e9 * s->usd_gb_egress;
        if (p->m.provider && strcmp(p->m.provider, s->provider) != 0) continue;
        if (doc)
            json_array_append_new(list, json_pack("{s:s, s:o, s:o, s:o}", "provider", s->provider,
                                                  "bytes", io_json_number(stored_bytes(p)),
                                                  "usd_month", io_json_number(month), "usd_egress",
                                                  io_json_number(egress)));
        else
            print_plan_line(
                "storage",
                "%s for data and %lld checkpoints: $%.2f per month at %s; $%.2f to move a "
                "checkpoint out",
                show_volume(text, sizeof text, stored_bytes(p)),
                (long long)p->c.checkpoint.keep_latest_k, month, s->provider, egress);
    }
    if (doc) json_object_set_new(doc, "storage", list);
}

/* ---- the step ---------------------------------------------------------------------------------- */
/* Plays the step; its share of the peak counts from there on, unless --mfu gives another. */
static err simulate_config(config_plan *p) {
    if (!p->m.gpu) return OK;
    log_mute_thread(true); /* capacity_of has laid out the same run, and logged what it rounds */
    err e = step_simulate(&p->c, &p->on, p->m.gpu, NULL, &p->step);
    log_mute_thread(false);
    if (e) return e;
    if (!p->m.mfu_given) p->m.mfu = p->step.flops_full / p->m.peak;
    cfg_amount length = p->c.training.steps;
    if (length.unit != CFG_SECONDS) return OK;
    p->cap.steps = floor(length.value / p->step.seconds);
    p->cap.tokens = p->cap.steps * p->cap.step_tokens;
    return OK;
}

static void report_step(const config_plan *p, json_t *doc) {
    const step_time *t = &p->step;
    if (!p->m.gpu) return;
    if (doc) {
        json_object_set_new(doc, "step", step_time_json(t));
        return;
    }
    bool small = t->flops_full < 1e12; /* a CPU */
    double unit = small ? 1e9 : 1e12;
    print_plan_line(
        "step",
        "%.4g s simulated, %s tokens/s: %.0f %cFLOP/s per %s, %.1f %% of the peak (causal %.0f)",
        t->seconds, show_count(t->tokens_per_second), t->flops_full / unit, small ? 'G' : 'T',
        p->m.gpu->shared ? "rank" : "GPU", 100 * t->flops_full / p->m.peak, t->flops_causal / unit);
    print_plan_line(
        "",
        "%.1f %% computing, %.1f %% waiting for communication, %.1f %% idle, %.1f %% for stragglers, "
        "%.1f %% update",
        100 * t->run.compute / t->seconds, 100 * t->run.exposed / t->seconds, 100 * step_bubble(t),
        100 * t->stragglers / t->seconds, 100 * t->update / t->seconds);
    if (p->on.as)
        print_plan_line("as", "%s; %.0f %cFLOP/s as it counts them", p->on.as->about,
                        t->flops_counted / unit, small ? 'G' : 'T');
    if (t->data > 0)
        print_plan_line(
            "", "%.1f %% waiting for data, which %.3g GB/s of disk per node cannot deliver in time",
            100 * t->data / t->seconds, p->m.gpu->disk / 1e9);
}

/* ---- does it fit? ------------------------------------------------------------------------------ */
static void print_change(const config_plan *p, const fit_change *f) {
    if (!f->found) {
        print_plan_line(
            "remedy",
            "none of these changes: the least is %.2f GB; --search finds a layout on more ranks",
            f->least / 1e9);
        return;
    }
    print_plan_line("remedy", "%s: %.2f GB, a step takes about %.0f %% longer", f->what.text,
                    capacity_needed(&p->on, &f->after) / 1e9, 100 * f->slower);
    print_plan_line("", "%s", f->settings.text);
}

static json_t *change_json(const config_plan *p, const fit_change *f) {
    if (!f->found) return json_pack("{s:b, s:o}", "found", 0, "least", io_json_number(f->least));
    return json_pack("{s:b, s:s, s:s, s:o, s:o}", "found", 1, "change", f->what.text, "options",
                     f->settings.text, "slower", io_json_number(f->slower), "bytes",
                     io_json_number(capacity_needed(&p->on, &f->after)));
}

static err report_memory_fit(config_plan *p, json_t *doc, bool *fits) {
    double need = capacity_needed(&p->on, &p->cap), of_rank = p->cap.total / need;
    *fits = need <= p->limit;
    if (doc) {
        json_object_set_new(doc, "fits", json_boolean(*fits));
        json_object_set_new(doc, "needed", io_json_number(need));
        json_object_set_new(doc, "limit", io_json_number(p->limit));
    } else {
        print_plan_line("fits", "%s: %.2f GB needed, %.2f GB on %s", *fits ? "yes" : "no",
                        need / 1e9, p->limit / 1e9, p->limit_of);
    }
    if (*fits) return OK;
    fit_change f;
    err e = capacity_make_fit(&p->c, &p->on, p->limit * of_rank, &p->cap, &f);
    if (!e && doc) json_object_set_new(doc, "remedy", change_json(p, &f));
    if (!e && !doc) print_change(p, &f);
    fit_change_free(&f);
    return e;
}

/* ---- what if? ---------------------------------------------------------------------------------- */
/* Days and dollars of a variant; empty where nothing is known of the machine or of the length. */
static void show_variant_cost(const config_plan *p, const capacity_variant *v, char out[64]) {
    const hardware_price *price = NULL;
    out[0] = '\0';
    if (!p->m.gpu || isnan(p->cap.tokens)) return;
    err e = hardware_find_price(&p->m.catalogue, p->m.gpu, p->m.provider, &price);
    run_cost c = cost_of_flops(p->cap.tokens * p->cap.flops_full * (1 + v->slower), p->m.gpus,
                               p->m.peak, p->m.mfu, e ? NAN : price->usd);
    int n = snprintf(out, 64, "%9.3g days", c.seconds / 86400);
    if (!e) snprintf(out + n, 64 - (size_t)n, " $%s", show_whole(c.usd));
    err_free(e);
}

static void print_variant(const config_plan *p, const capacity_variant *v) {
    char cost[64];
    double need = capacity_needed(&p->on, &v->cap);
    show_variant_cost(p, v, cost);
    printf("  %-58s %9.2f GB %-4s %+4.0f %% %s", v->what.text, need / 1e9,
           need <= p->limit ? "fits" : "", 100 * v->slower, cost);
    if (v->other_run) printf("  %s parameters", show_count(v->cap.params));
    putchar('\n');
}

static err report_what_if(const config_plan *p, json_t *doc) {
    capacity_variant *list = NULL;
    int n = 0;
    err e = capacity_compare(&p->c, &p->on, &p->cap, &list, &n);
    json_t *out = doc ? json_array() : NULL;
    if (!e && !doc)
        printf("\nWhat if (memory on %s; time of a step, %s)\n", p->limit_of,
               p->on.gpu ? "simulated" : "by rules of thumb");
    for (int i = 0; i < n && !e; i++) {
        const capacity_variant *v = &list[i];
        if (!doc && v->other_run && !list[i - 1].other_run)
            printf("\nAnother model, or other sequences\n");
        if (doc)
            json_array_append_new(
                out, json_pack("{s:s, s:s, s:o, s:b, s:o, s:b, s:o}", "change", v->what.text,
                               "options", v->settings.text ? v->settings.text : "", "bytes",
                               io_json_number(capacity_needed(&p->on, &v->cap)), "fits",
                               capacity_needed(&p->on, &v->cap) <= p->limit, "slower",
                               io_json_number(v->slower), "other_run", v->other_run, "params",
                               io_json_number(v->cap.params)));
        else
            print_variant(p, v);
    }
    if (doc) json_object_set_new(doc, "what_if", out);
    capacity_variants_free(list, n);
    return e;
}

/* ---- advice ------------------------------------------------------------------------------------ */
static err report_advice(const config_plan *p, json_t *doc) {
    advice *list = NULL;
    int n = 0;
    json_t *out = doc ? json_array() : NULL;
    TRY(plan_advise(&p->c, &p->cap, &list, &n));
    for (int i = 0; i < n; i++) {
        const char *label = list[i].kind == ADVICE_WARNING ? "warning" : "published";
        if (doc)
            json_array_append_new(out,
                                  json_pack("{s:s, s:s}", "kind", label, "text", list[i].text));
        else
            print_plan_line(label, "%s", list[i].text);
    }
    if (doc) json_object_set_new(doc, "advice", out);
    advice_free(list, n);
    return OK;
}

/* Reports the loss that a scaling law expects of the run. */
static err report_loss(const plan_args *a, const config_plan *p, json_t *doc) {
    scaling_law own;
    const scaling_law *law;
    if (!a->law) return OK;
    err e = law_choose(a->law, &own, &law);
    if (!e && isnan(p->cap.tokens))
        e = err_hint(
            ERR("the length of the run is not known: it is in epochs, or in time without --gpu"),
            "--tokens 1T");
    double loss = e ? NAN : law_loss(law, p->cap.params, p->cap.tokens, INFINITY);
    if (!e && doc)
        json_object_set_new(
            doc, "expected_loss",
            json_pack("{s:s, s:o}", "law", law->name, "loss", io_json_number(loss)));
    else if (!e)
        print_plan_line("loss", "%.3f expected by the law %s (%s)", loss, law->name, law->source);
    law_free(&own);
    return e;
}

/* ---- the report -------------------------------------------------------------------------------- */
static err report_config(const plan_args *a, config_plan *p) {
    bool fits = true;
    json_t *doc = NULL;
    if (p->m.gpu) { /* our CPU lays the programs out, in the type the accelerator would run in */
        p->limit_of = p->m.gpu->title;
        TRY(plan_target_accelerator(p->m.gpu, &p->c, &p->on, &p->limit));
    } else {
        TRY(use_this_machine(p));
    }
    if (a->as && !p->m.gpu)
        return err_hint(ERR_USAGE("--as: nothing is simulated without --gpu"), "--gpu h100");
    if (a->as) TRY(other_system_find(a->as, &p->on.as));
    if (a->search) return plan_report_search(a, &p->m, &p->c, &p->on, p->limit);
    if (p->m.gpus_given) p->on.ranks = (int)p->m.gpus;
    TRY(plan_choose_layout(&p->m, &p->on, p->limit, &p->c, &p->source, &p->on.ranks));
    double asked = p->m.gpus;
    if (p->source.chosen_layout) p->m.gpus = p->on.ranks;
    TRY(capacity_of(&p->c, &p->on, &p->cap));
    if (!p->m.gpus_given) p->m.gpus = mesh_world(&p->cap.layout);
    TRY(simulate_config(p));
    scaling_point work = { .compute = p->cap.tokens * p->cap.flops_full, .params = p->cap.params };
    plan_failures f;
    TRY(plan_failures_open(a, &p->m, &work, p->cap.checkpoint, &f));
    if (a->json) doc = capacity_json(&p->cap);
    plan_report_source(&p->source, asked, doc);
    if (!doc) {
        print_model(&p->cap);
        print_memory(p);
        print_data(p);
    }
    report_storage(p, doc);
    report_step(p, doc);
    err e = report_loss(a, p, doc);
    if (!e && (a->check || p->m.gpu)) e = report_memory_fit(p, doc, &fits);
    if (!e) e = report_advice(p, doc);
    scaling_point cost = { .compute = work.compute, .params = NAN }; /* memory is the plan's */
    if (!e && !isnan(work.compute)) plan_report_cost(&p->m, &cost, doc);
    if (!e) plan_report_failures(&f, &p->m, doc);
    if (!e && a->what_if) e = report_what_if(p, doc);
    if (!e && a->what_if && p->m.gpu && !isnan(work.compute))
        e = plan_compare_failures(a, &p->m, &work, p->cap.checkpoint, doc);
    if (!e && a->json)
        plan_print_json(doc);
    else
        json_decref(doc);
    if (!e && a->check && !fits)
        e = err_hint(ERR("the run does not fit on %s", p->limit_of), "see the remedy above");
    return e;
}

err plan_report_config(const plan_args *a, int argc, char **config_args) {
    config_plan p = { 0 };
    machine_query machine = plan_machine_query(a);
    TRY(plan_machine_open(a->catalogue, &machine, &p.m));
    config_init(&p.c);
    err e = plan_read_config(a, argc, config_args, &p.c, &p.source);
    model_config m;
    if (!e) e = model_from_config(&p.c, &m);
    if (!e) e = model_check_idle(&p.c, &m, true);
    if (!e) e = report_config(a, &p);
    if (!p.m.gpu) ops_close(p.on.ops);
    config_free(&p.c);
    plan_machine_close(&p.m);
    return e;
}
