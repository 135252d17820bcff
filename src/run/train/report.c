/* The summary printed before the first step, and RUN/programs. */
#include "setup_internal.h"
#include "trainer_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"

/* Prints a line, unless the run is quiet, and keeps it in the log. */
static void print_field(const trainer *t, const char *label, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
static void print_field(const trainer *t, const char *label, const char *fmt, ...) {
    str line = { 0 };
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    str_add(&line, "  %-10s%s", label, text);
    if (!t->opt->quiet) puts(line.text);
    log_line(line.text);
    str_free(&line);
}

/* Prints the plan's regions, grouped as users know them. */
static void memory_line(const trainer *t) {
    const plan *p = t->p;
    static const struct {
        const char *label, *regions[7]; /* a NULL follows the last */
    } groups[] = {
        { "weights", { "params", "copies" } },
        { "gradients", { "grads" } },
        { "optimizer", { "optimizer" } },
        { "activations", { "saved", "block inputs", "residual", "carried", "result", "top1" } },
        { "workspace", { "temp", "work", "gathered", "whole grads", "pipeline" } },
    };
    char size[32];
    str text = { 0 };
    str_add(&text, "%s", str_bytes(size, sizeof size, (double)plan_bytes(p, NULL)));
    for (size_t g = 0; g < COUNT_OF(groups); g++) {
        size_t sum = 0;
        for (int k = 0; groups[g].regions[k]; k++) sum += plan_bytes(p, groups[g].regions[k]);
        str_add(&text, "%s %s %s", g ? "," : ":", groups[g].label,
                str_bytes(size, sizeof size, (double)sum));
    }
    if (plan_host_bytes(p))
        str_add(&text, "; in the host's memory %s",
                str_bytes(size, sizeof size, (double)plan_host_bytes(p)));
    print_field(t, "memory", "%s", text.text);
    str_free(&text);
}

/* One source in a line; of a mixture, each with the share it has of every batch. */
static void data_lines(const trainer *t) {
    char a[32], b[32];
    int64_t tokens = datasets_tokens(t->data.sources, t->data.n_sources);
    str_count(a, sizeof a, (double)tokens);
    str_count(b, sizeof b, (double)datasets_tokens(t->data.sets, t->data.n_sets));
    if (t->data.n_sources == 1)
        print_field(t, "data", "%s (%s), %s tokens, %s held out", t->data.sources[0].name,
                    data_source_info(t->data.sources[0].data)->format, a, b);
    else
        print_field(t, "data", "%d sources, %s tokens, %s held out", t->data.n_sources, a, b);
    for (int i = 0; i < t->data.n_sources && t->data.n_sources > 1; i++) {
        const run_source *s = &t->data.sources[i];
        loader_source p = loader_source_at(t->data.batches, i);
        double windows = (double)loader_source_consumed(
            t->data.batches, i, batch_ramp_windows(&t->len.ramp, t->len.steps));
        double epochs = windows / (double)p.windows;
        char limit[48] = "";
        if (s->epochs > 0) snprintf(limit, sizeof limit, " of at most %g", s->epochs);
        print_field(t, "", "%5.2f%%  %-20s %s tokens, %.2f epochs%s", 100 * p.share, s->name,
                    str_count(a, sizeof a, (double)(s->range.to - s->range.from)), epochs, limit);
    }
    for (int k = 0; k < t->data.n_phases; k++) {
        str mix = { 0 };
        int64_t at = (int64_t)(t->data.phases[k] / (double)t->len.seq);
        for (int i = 0; i < t->data.n_sources; i++) {
            double share = loader_source_share(t->data.batches, i, at);
            if (share > 0)
                str_add(&mix, "%s%.2f%% %s", mix.len ? ", " : "", 100 * share,
                        t->data.sources[i].name);
        }
        print_field(t, "", "from %s tokens on: %s", str_count(a, sizeof a, t->data.phases[k]),
                    mix.len ? mix.text : "nothing");
        str_free(&mix);
    }
    if (t->state.skips.n)
        print_field(
            t, "skipped", "%d ranges of sequences, %lld in all", t->state.skips.n,
            (long long)(data_skips_position(&t->state.skips, INT64_MAX / 2) - INT64_MAX / 2));
}

static void batch_lines(const trainer *t) {
    char a[32];
    double seq = (double)t->len.seq,
           tokens = (double)batch_ramp_windows(&t->len.ramp, t->len.steps) * seq;
    print_field(t, "batch", "%lld x %lld sequences of %lld tokens = %s tokens per step",
                (long long)t->len.micros, (long long)trainer_micro_rows(t), (long long)t->len.seq,
                str_count(a, sizeof a, (double)t->len.ramp.full * seq));
    for (int i = 0; i < t->len.ramp.n_phases; i++)
        print_field(t, i ? "" : "stages", "%lld sequences per step, until %s tokens",
                    (long long)t->len.ramp.phases[i].size,
                    str_count(a, sizeof a, (double)t->len.ramp.phases[i].until * seq));
    if (t->len.ramp.start)
        print_field(t, "ramp", "from %lld sequences per step, over the first %s tokens",
                    (long long)batch_ramp_size(&t->len.ramp, 0),
                    str_count(a, sizeof a, (double)t->len.ramp.windows * seq));
    if (trainer_clock_is_open(t)) {
        print_field(t, "length", "%s of training; how many steps that is follows from the first",
                    str_duration(a, sizeof a, t->len.clock.budget));
        return;
    }
    print_field(t, "length", "%lld steps, %s tokens, %.2f epochs", (long long)t->len.steps,
                str_count(a, sizeof a, tokens),
                tokens / (double)MAX(datasets_tokens(t->data.sources, t->data.n_sources), 1));
}

static void ranks_line(const trainer *t) {
    const mesh *m = &t->mesh;
    str text = { 0 };
    int replicas = mesh_size(m, AX_DP_REPLICATE), ep = mesh_size(m, AX_EP);
    int shards = mesh_size(m, AX_DP_SHARD) * ep;
    int cp = mesh_size(m, AX_CP), tp = mesh_size(m, AX_TP), zero = model_lay(t->m)->zero;
    if (mesh_world(m) == 1) return;
    const pipeline *pipe = &model_lay(t->m)->pipe;
    if (pipe->ranks > 1) {
        timetable table;
        err e = timetable_make(pipe, (int)t->len.micros, &table);
        BUG_IF(e); /* the plan has made it */
        str_add(&text, ", pipeline over %d (%s, %.1f%% idle)", pipe->ranks,
                config_choice("parallelism.pipeline_parallel_schedule", (int)pipe->kind),
                100 * timetable_bubble(&table));
        timetable_free(&table);
    }
    if (replicas > 1) str_add(&text, ", %d data-parallel replicas", replicas);
    if (shards > 1) str_add(&text, ", data parallel over %d (ZeRO %d)", shards, zero);
    if (ep > 1) str_add(&text, ", experts over %d", ep);
    if (cp > 1)
        str_add(&text, ", context parallel over %d (%s)", cp,
                model_lay(t->m)->context == CONTEXT_RING ? "ring" : "all-to-all");
    if (tp > 1)
        str_add(&text, ", tensor parallel over %d%s", tp,
                model_lay(t->m)->sequence_parallel ? " with sequence parallelism" : "");
    print_field(t, "ranks", "%d%s", mesh_world(m), text.text);
    str_free(&text);
}

void trainer_describe_groups(const trainer *t) {
    int n;
    const optim_group *g = optim_groups(t->o, &n);
    if (n < 2) return;
    print_field(t, "groups", "%-16s %-13s %-9s %-12s %-7s %-8s %-7s %s", "match", "rule", "rate",
                "betas", "eps", "momentum", "decay", "parameters");
    for (int i = 0; i < n; i++) {
        char betas[32], eps[16], momentum[16], count[32];
        int reads = g[i].reads;
        if (!g[i].params) continue;
        snprintf(betas, sizeof betas, reads & OPTIM_READS_BETAS ? "%g %g" : "-", g[i].beta1,
                 g[i].beta2);
        snprintf(eps, sizeof eps, reads & OPTIM_READS_EPS ? "%g" : "-", g[i].eps);
        snprintf(momentum, sizeof momentum, reads & OPTIM_READS_MOMENTUM ? "%g" : "-",
                 g[i].momentum);
        print_field(t, "", "%-16s %-13s %-9.4g %-12s %-7s %-8s %-7.4g %s in %d",
                    *g[i].match ? g[i].match : "(others)", g[i].rules,
                    g[i].lr_factor * t->len.sched.lr, betas, eps, momentum,
                    g[i].decays ? g[i].weight_decay : 0,
                    str_count(count, sizeof count, (double)g[i].elements), g[i].params);
    }
}

void trainer_describe(const trainer *t) {
    char a[32], b[32], active[64] = "";
    str recipe = { 0 };
    if (!t->opt->quiet) puts(t->dir);
    log_line(t->dir);
    if (t->mc.experts)
        snprintf(active, sizeof active, ", %s active per token",
                 str_count(b, sizeof b, (double)model_count_active(&t->mc)));
    print_field(t, "model", "%s, %s parameters%s: %d layers, width %lld, %d heads, vocabulary %lld",
                t->mc.name, str_count(a, sizeof a, (double)model_count(&t->mc)), active,
                t->mc.layers, (long long)t->mc.dim, t->mc.heads, (long long)t->mc.vocab);
    data_lines(t);
    batch_lines(t);
    ranks_line(t);
    recipe_describe(t, &recipe);
    if (recipe.len) print_field(t, "recipe", "%s", recipe.text);
    str_free(&recipe);
    if (!trainer_clock_is_open(t)) trainer_describe_groups(t); /* their rates follow the length */
    print_field(t, "compute", "%s, %s, %d threads%s", dt_name(model_lay(t->m)->dt), t->ops->name,
                pool_size(t->x.pool), mesh_world(&t->mesh) > 1 ? " per rank" : "");
    print_field(t, "MFU", "100%% is %.4g TFLOP/s, %s", trainer_mfu_peak(t) / 1e12,
                isnan(t->peak.published) ? "measured: no peak is published for this device"
                                         : "the published peak of this device");
    memory_line(t);
    if (t->page) print_field(t, "live page", "http://%s/", serve_address(t->page));
    if (t->state.epoch_offset != t->cfg->data.epoch_offset) /* else epochs repeat and omit tokens */
        print_field(t, "epochs", "data.epoch_offset stays %s, as in the checkpoint",
                    t->state.epoch_offset ? "true" : "false");
    if (t->state.step) print_field(t, "resume", "at step %lld", (long long)t->state.step);
    fflush(stdout);
}

void trainer_report_changes(const trainer *t) {
    for (const char *at = t->changes.text; at && *at;) {
        size_t n = strcspn(at, "\n");
        printf("changed since step %lld: %.*s\n", (long long)t->state.step, (int)n, at);
        at += n + (at[n] != '\0');
    }
    fflush(stdout);
}

static err write_program_text(const char *folder, const char *name, const str *text) {
    return io_write(PATH_IN(folder, name), text->text, text->len);
}

err trainer_write_programs(const trainer *t) {
    const struct {
        const char *name;
        const chain *c;
    } all[] = { { "train.txt", &t->train },
                { "eval.txt", &t->eval },
                { "decode.txt", &t->gen.by_length[0].step[0] } };
    const char *folder = PATH_IN(t->dir, "programs");
    err e = io_make_dirs(folder);
    for (size_t i = 0; i < COUNT_OF(all) && !e; i++) {
        if (!all[i].c->first) continue;
        str text = { 0 };
        if (all[i].c->begin) prog_dump(all[i].c->begin, &text);
        prog_dump(all[i].c->first, &text);
        for (int k = 0; k < CHAIN_KINDS; k++)
            if (all[i].c->block[k]) prog_dump(all[i].c->block[k], &text);
        prog_dump(all[i].c->last, &text);
        if (all[i].c->end) prog_dump(all[i].c->end, &text);
        e = write_program_text(folder, all[i].name, &text);
        str_free(&text);
    }
    const prog *update;
    str text = { 0 };
    for (int i = 0; (update = optim_next_program(t->o, &i)) != NULL;) prog_dump(update, &text);
    if (!e) e = write_program_text(folder, "update.txt", &text);
    str_free(&text);
    return e;
}
