/* ingot data reweigh: the weights of a mix from the losses of two small runs, as DoReMi (Xie et al. 2023).
 *
 * The reference was trained with the mix as it is, the proxy is another run whose losses are compared with it, usually a
 * smaller model or an earlier part. Per step that both logged, a source's excess loss is how far the proxy is above the
 * reference, at least 0. Weights grow by exp(rate x excess), are mixed with a little of equal shares so that none vanishes,
 * and the result is their mean over the steps. Everything follows from the two metrics.jsonl alone. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "io/io.h"
#include "observe/series.h"
#include "shards/data.h"

typedef struct reweigh_args {
    const char *run, *reference, *out;
    double rate, smoothing;
    bool json;
} reweigh_args;

typedef struct reweighing {
    mix_file mix;
    series *proxy, *reference;
    double *before, *weight,
        *mean;      /* [sources] shares: of the mix, of the current step, their mean */
    double *excess; /* [sources] mean over the steps */
    int64_t steps;
} reweighing;

static const series_column *loss_column(const series *s, const char *source) {
    str name = { 0 };
    str_add(&name, "sources.%s.loss", source);
    const series_column *c = series_find(s, name.text);
    str_free(&name);
    return c;
}

static err open_run(const char *option, const char *path, const mix_file *m, series **out) {
    *out = series_new(path);
    TRY(series_update(*out));
    if (series_rows(*out) == 0)
        return err_hint(ERR_USAGE("--%s: %s has no metrics.jsonl with steps", option, path),
                        "name the folder of a run that was trained on the mix");
    for (int i = 0; i < m->n; i++)
        if (!loss_column(*out, m->entries[i].name))
            return err_hint(
                ERR_USAGE("--%s: %s has no losses of the source \"%s\"", option, path,
                          m->entries[i].name),
                "both runs must be trained on the sources of the mix, under these names");
    return OK;
}

/* Multiplies the weights by exp(rate x excess) and puts a little of equal shares to them. */
static void update_weights(reweighing *w, const double *excess, const reweigh_args *a) {
    double sum = 0, most = 0;
    int n = w->mix.n;
    for (int i = 0; i < n; i++) most = MAX(most, excess[i]);
    for (int i = 0; i < n; i++) sum += w->weight[i] *= exp(a->rate * (excess[i] - most));
    for (int i = 0; i < n; i++) {
        w->weight[i] = (1 - a->smoothing) * w->weight[i] / sum + a->smoothing / n;
        w->mean[i] += w->weight[i];
        w->excess[i] += excess[i];
    }
    w->steps++;
}

static err reweigh_all(reweighing *w, const reweigh_args *a) {
    double *excess = mem_alloc((size_t)w->mix.n * sizeof *excess);
    const series_column *steps = series_find(w->proxy, "step"),
                        *others = series_find(w->reference, "step");
    for (int64_t row = 0, other = 0; row < series_rows(w->proxy); row++) {
        double step = series_in_row(steps, row);
        bool all = true;
        while (other < series_rows(w->reference) && series_in_row(others, other) < step) other++;
        if (other == series_rows(w->reference)) break;
        if (series_in_row(others, other) != step) continue;
        for (int i = 0; i < w->mix.n && all; i++) {
            const char *name = w->mix.entries[i].name;
            double loss = series_in_row(loss_column(w->proxy, name), row);
            double base = series_in_row(loss_column(w->reference, name), other);
            all = isfinite(loss) && isfinite(base); /* a small batch may lack a source */
            excess[i] = MAX(0, loss - base);
        }
        if (all) update_weights(w, excess, a);
    }
    free(excess);
    if (!w->steps)
        return err_hint(ERR("no step has a loss of every source in both runs"),
                        "runs of the same length, with batches that have every source, are needed");
    for (int i = 0; i < w->mix.n; i++) {
        w->mean[i] /= (double)w->steps;
        w->excess[i] /= (double)w->steps;
    }
    return OK;
}

/* The shares that the reference was trained with: by its tokens, whatever rule made them. */
static err shares_before(reweighing *w) {
    double sum = 0;
    for (int i = 0; i < w->mix.n; i++) {
        str name = { 0 };
        str_add(&name, "sources.%s.tokens", w->mix.entries[i].name);
        const series_column *c = series_find(w->reference, name.text);
        str_free(&name);
        w->before[i] = c ? series_in_row(c, series_rows(w->reference) - 1) : NAN;
        if (!(w->before[i] > 0))
            return ERR("the reference has trained on no tokens of the source \"%s\"",
                       w->mix.entries[i].name);
        sum += w->before[i];
    }
    for (int i = 0; i < w->mix.n; i++) w->weight[i] = w->before[i] /= sum;
    return OK;
}

/* ---- output ---------------------------------------------------------------------------------- */
static err write_reweighed_mix(const reweighing *w, const reweigh_args *a) {
    str out = { 0 };
    str_add(&out, "# weights by `ingot data reweigh`, rate %g, smoothing %g, over %lld steps of ",
            a->rate, a->smoothing, (long long)w->steps);
    io_json_quote(&out, a->run);
    str_add(&out, " and ");
    io_json_quote(&out, a->reference);
    str_add(&out, "\nsources:\n");
    for (int i = 0; i < w->mix.n; i++) {
        const mix_entry *e = &w->mix.entries[i];
        str_add(&out, "  - name: ");
        io_json_quote(&out, e->name);
        str_add(&out, "\n    path: [");
        for (int k = 0; k < e->n_paths; k++) {
            str_add(&out, "%s", k ? ", " : "");
            io_json_quote(&out, e->paths[k]);
        }
        str_add(&out, "]\n    weight: %.6f\n", MAX(w->mean[i], 1e-6));
        if (e->epochs) str_add(&out, "    epochs: %.17g\n", e->epochs);
    }
    err e = io_write(a->out, out.text, out.len);
    str_free(&out);
    return e;
}

static void print_reweighed(const reweighing *w, const reweigh_args *a) {
    if (a->json) {
        json_t *all = json_object();
        for (int i = 0; i < w->mix.n; i++)
            json_object_set_new(all, w->mix.entries[i].name,
                                json_pack("{s:f, s:f, s:f}", "before", w->before[i], "excess_loss",
                                          w->excess[i], "weight", w->mean[i]));
        json_t *doc = json_pack("{s:I, s:o}", "steps", (json_int_t)w->steps, "sources", all);
        io_json_print(stdout, doc, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
        return;
    }
    printf("%lld steps\n  %-30s %9s %12s %9s\n", (long long)w->steps, "source", "before",
           "excess loss", "weight");
    for (int i = 0; i < w->mix.n; i++)
        printf("  %-30s %8.2f%% %12.4f %8.2f%%\n", w->mix.entries[i].name, 100 * w->before[i],
               w->excess[i], 100 * w->mean[i]);
}

static err reweigh(const reweigh_args *a, reweighing *w) {
    size_t bytes = (size_t)w->mix.n * sizeof *w->before;
    if (w->mix.n < 2) return ERR("a mix of one source has no weights to change");
    if (w->mix.n_phases)
        return err_hint(ERR("the mix has phases"), "reweigh one without, and add them again");
    TRY(open_run("run", a->run, &w->mix, &w->proxy));
    TRY(open_run("reference", a->reference, &w->mix, &w->reference));
    w->before = mem_alloc(bytes);
    w->weight = mem_alloc(bytes);
    w->mean = mem_alloc(bytes);
    w->excess = mem_alloc(bytes);
    TRY(shares_before(w));
    TRY(reweigh_all(w, a));
    if (a->out) TRY(write_reweighed_mix(w, a));
    print_reweighed(w, a);
    return OK;
}

static err run_reweigh(const cli_subcommand *self, int argc, char **argv) {
    reweigh_args a = { .rate = 1, .smoothing = 1e-3 };
    reweighing w = { 0 };
    const char *path = NULL;
    TRY(cli_parse(&self->spec, argc, argv, &a, &path));
    if (!a.run || !a.reference)
        return err_hint(ERR_USAGE("--run and --reference: two runs are compared"), "ingot %s %s",
                        self->spec.command, self->spec.usage);
    if (a.out && !mix_file_is(a.out)) return ERR_USAGE("--out: a mix file ends in .yaml");
    if (a.out && strcmp(a.out, path) == 0)
        return err_hint(ERR_USAGE("--out: %s is the mix that is read", path),
                        "give the new mix a name of its own");
    TRY(mix_file_read(path, &w.mix));
    err e = reweigh(&a, &w);
    series_free(w.proxy);
    series_free(w.reference);
    free(w.before);
    free(w.weight);
    free(w.mean);
    free(w.excess);
    mix_file_free(&w.mix);
    return e;
}

#define AT(member) offsetof(reweigh_args, member)
/* clang-format off */
static const cli_arg args[] = {
    { "run", ARG_TEXT, AT(run), "RUN", "the run whose losses are compared with the reference: DoReMi's proxy" },
    { "reference", ARG_TEXT, AT(reference), "RUN", "the run that was trained with the mix as it is" },
    { "out", ARG_TEXT, AT(out), "FILE.yaml", "write the mix with the new weights (default: only print them)", 'o' },
    { "rate", ARG_REAL, AT(rate), "X", "how fast weights follow the excess loss (default 1)" },
    { "smoothing", ARG_FRACTION, AT(smoothing), "X", "share of equal weights that is mixed in at every step (default 0.001)" },
    { "json", ARG_FLAG, AT(json), "", "print the weights as JSON" },
};
/* clang-format on */

const cli_subcommand data_reweigh = {
    .summary = "weights of a mix from the losses of two small runs (DoReMi)",
    .run = run_reweigh,
    .spec = { "data reweigh", "MIX.yaml --run RUN --reference RUN [options]", CLI_ARGS(args), 1,
              false },
    .help =
        "Sources on which the run is further above the reference get more weight: at every step that both\n"
        "logged, a weight is multiplied by exp(rate x excess loss); the result is the mean over the steps.\n"
        "The order of what is read does not depend on the weights of earlier runs: the new mix is a file\n"
        "like any other.\n"
        "\n"
        "Example\n"
        "  ingot data reweigh mix.yaml --run runs/proxy --reference runs/reference --out mix2.yaml\n",
};
