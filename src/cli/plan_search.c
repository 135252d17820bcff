/* ingot plan CONFIG --search: the best layout of a model on a number of accelerators. */
#include "cli/plan_common.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "io/io.h"

/* One line on a terminal, over itself; what is printed next overwrites it. */
static void show_layouts_tried(void *ctx, long estimated, int simulated) {
    fprintf(stderr, "\r%s layouts estimated, %d simulated \r", show_whole((double)estimated),
            simulated);
}

static err read_search_options(const plan_args *a, const plan_machine *m, double limit,
                               search_options *out) {
    double cap;
    if (!m->gpu || !m->gpus_given)
        return err_hint(ERR_USAGE("--search: needs --gpu and --gpus"), "--gpu h100 --gpus 1024");
    TRY(plan_quantity("cap", a->cap, &cap));
    if (!isnan(cap) && !(cap > 0 && cap * 1e9 <= m->gpu->memory))
        return err_hint(ERR_USAGE("--cap: expected GB, above 0 and up to %g; got %g",
                                  m->gpu->memory / 1e9, cap),
                        "--cap %g", floor(limit / 1e9));
    if (a->search_for && strcmp(a->search_for, "cost") && strcmp(a->search_for, "throughput"))
        return err_hint(
            ERR_USAGE("--for: expected throughput or cost; got \"%.40s\"", a->search_for),
            "--for cost");
    if (m->gpus > 1e6)
        return err_hint(ERR_USAGE("--gpus: expected at most 1000000 for a search; got %g", m->gpus),
                        "--gpus 100000");
    *out = (search_options){ .gpu = m->gpu,
                             .gpus = (int)m->gpus,
                             .fewer = a->fewer,
                             .progress = isatty(STDERR_FILENO) ? show_layouts_tried : NULL,
                             .limit = isnan(cap) ? limit : cap * 1e9,
                             .for_cost = a->search_for && !strcmp(a->search_for, "cost") };
    return OK;
}

static const char *schedule_name(const layout_choice *k) {
    if (k->pp == 1) return "-";
    return config_choice("parallelism.pipeline_parallel_schedule", (int)k->schedule);
}

static double choice_mfu(const plan_machine *m, const layout_choice *k) {
    return k->time.flops_full / m->peak;
}

static void print_choice(const plan_machine *m, const layout_choice *k, int number) {
    char order[32], memory[24];
    bool small = k->cap.total < 1e9;
    snprintf(memory, sizeof memory, small ? "%.1f MB" : "%.1f GB",
             k->cap.total / (small ? 1e6 : 1e9));
    char chunks[16] = "";
    if (k->chunks > 1) snprintf(chunks, sizeof chunks, " x%d", k->chunks);
    snprintf(order, sizeof order, "%s%s%s", schedule_name(k), chunks, k->ends_counted ? "+" : "");
    printf("%2d%c %3d %3d %5d %3d %3d  %-19s %3lld x %-4lld %4d %5d  %-9s %-7s %6d %9s %6.1f %% "
           "%8.3f s %8s %5.1f %%\n",
           number, k->stages_near ? '*' : ' ', k->tp, k->pp, k->dp, k->cp, k->ep, order,
           (long long)k->micros, (long long)k->rows, k->zero, k->dp / k->replicas,
           recompute_name(k->recompute), offload_name(k->offload), k->cap.layers_of_stage, memory,
           100 * step_bubble(&k->time), k->time.seconds, show_count(k->time.tokens_per_second),
           100 * choice_mfu(m, k));
}

static json_t *choice_json(const plan_machine *m, const layout_choice *k) {
    return json_pack(
        "{s:b, s:i, s:s, s:b, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:i, s:i, s:s, s:I, s:I, s:i, s:o, s:o, "
        "s:o, s:o, s:o}",
        "ends_counted", k->ends_counted, "replicas", k->replicas, "offload",
        offload_name(k->offload), "stages_near", k->stages_near, "tp", k->tp, "pp", k->pp, "dp",
        k->dp, "cp", k->cp, "ep", k->ep, "ranks", choice_ranks(k), "schedule", schedule_name(k),
        "chunks", k->chunks, "zero", k->zero, "recompute", recompute_name(k->recompute),
        "microbatch_sequences", (json_int_t)k->rows, "microbatches", (json_int_t)k->micros,
        "layers_per_stage", k->cap.layers_of_stage, "bytes", io_json_number(k->cap.total), "bubble",
        io_json_number(step_bubble(&k->time)), "step_seconds", io_json_number(k->time.seconds),
        "tokens_per_second", io_json_number(k->time.tokens_per_second), "mfu",
        io_json_number(choice_mfu(m, k)));
}

/* A batch that divides badly leaves accelerators idle; and so does one for which fewer are as good. */
static void print_idle(const search_options *o, const layout_choice *k) {
    int used = choice_ranks(k), most = o->gpus / (used / k->dp); /* data-parallel ranks */
    int64_t batch = k->dp * k->rows * k->micros;
    int64_t even = MAX((batch + most / 2) / most, 1) * most; /* the nearest that all can share */
    if (most <= k->dp) return;
    printf("%d of %s are idle: ", o->gpus - used, show_whole(o->gpus));
    if (even == batch) {
        printf("more of them would not make %s.\n",
               o->for_cost ? "tokens cheaper" : "a step faster");
        return;
    }
    printf("%lld sequences per step divide among %d data-parallel ranks, not "
           "%d;\ntraining.global_batch_size=%lld would use %d of them.\n",
           (long long)batch, k->dp, most, (long long)even, (most - k->dp) * (used / k->dp));
}

static void print_layouts(const plan_machine *m, const search_options *o, const layout_result *r) {
    const layout_choice *best = &r->best[0];
    bool near = false, counted = false;
    printf("Layouts of %s on %s%s x %s, %.1f GB each, for %s\n\n", best->cap.mc.name,
           choice_ranks(best) < o->gpus ? "up to " : "", show_whole(o->gpus), o->gpu->title,
           o->limit / 1e9, o->for_cost ? "cost" : "throughput");
    printf("     tp  pp    dp  cp  ep  %-19s %-10s %4s %5s  %-9s %-7s %6s %9s %8s %10s %8s %7s\n",
           "schedule", "micro", "zero", "over", "recompute", "offload", "layers", "memory",
           "bubble", "step", "tokens/s", "MFU");
    for (int i = 0; i < r->n; i++) {
        print_choice(m, &r->best[i], i + 1);
        near |= r->best[i].stages_near;
        counted |= r->best[i].ends_counted;
    }
    printf(
        "\n%s combinations estimated, %d laid out and simulated. \"micro\" is microbatches per step x "
        "sequences;\n\"over\": dp ranks that ZeRO shards over; \"layers\" and memory are of the pipeline "
        "stage that needs most.\n",
        show_whole((double)r->considered), r->examined);
    if (counted)
        printf("+: the embedding and the head count as a layer each where layers are divided.\n");
    if (near) printf("*: pipeline stages, not data-parallel ranks, are neighbors on a host.\n");
    if (r->n > 1) {
        str why = { 0 };
        layout_explain(best, &r->best[1], o->for_cost, &why);
        printf("The second is %s.\n", why.text);
        str_free(&why);
    }
    print_idle(o, best);
}

static err write_choice(const config *c, const layout_choice *k, const char *path) {
    config changed;
    str text = { 0 };
    config_copy(&changed, c);
    err e = layout_apply(k, &changed);
    if (!e) config_print_used(&changed, &text);
    if (!e) e = io_write(path, text.text, text.len);
    str_free(&text);
    config_free(&changed);
    return e;
}

err plan_report_search(const plan_args *a, const plan_machine *m, const config *c,
                       const run_target *on, double limit) {
    search_options o;
    layout_result r;
    TRY(read_search_options(a, m, limit, &o));
    TRY(layout_find(c, on, &o, &r));
    if (!r.n)
        return err_hint(ERR("no layout on up to %d x %s fits %.3g GB (%ld combinations)", o.gpus,
                            o.gpu->title, o.limit / 1e9, r.considered),
                        "use more accelerators, or another training.global_batch_size");
    if (a->json) {
        json_t *list = json_array();
        str why = { 0 };
        for (int i = 0; i < r.n; i++) json_array_append_new(list, choice_json(m, &r.best[i]));
        if (r.n > 1) layout_explain(&r.best[0], &r.best[1], o.for_cost, &why);
        plan_print_json(json_pack("{s:I, s:i, s:o, s:s}", "considered", (json_int_t)r.considered,
                                  "examined", r.examined, "layouts", list, "second",
                                  why.text ? why.text : ""));
        str_free(&why);
    } else {
        print_layouts(m, &o, &r);
    }
    if (!a->write) return OK;
    TRY(write_choice(c, &r.best[0], a->write));
    if (!a->json) printf("The first is written to %s.\n", a->write);
    return OK;
}
