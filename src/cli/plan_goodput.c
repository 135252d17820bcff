/* ingot plan --goodput: finish and cost of a run whose nodes fail. */
#include "cli/plan_common.h"

#include <math.h>
#include <time.h>

enum { TRIALS = 1000 };

static err read_or(const char *name, const char *text, double otherwise, double *out) {
    TRY(plan_quantity(name, text, out));
    if (isnan(*out)) *out = otherwise;
    return OK;
}

static err read_run(const plan_args *a, const plan_machine *m, const scaling_point *p,
                    double checkpoint, goodput_run *r) {
    if (isnan(checkpoint)) checkpoint = 12 * p->params; /* fp32 weights and two moments */
    r->nodes = ceil(m->gpus / m->gpu->per_node);
    r->work = cost_of_flops(p->compute, m->gpus, m->peak, m->mfu, 0).seconds;
    TRY(read_or("failures", a->failures, 0.01, &r->failures_per_node_day));
    TRY(read_or("restart", a->restart, 600, &r->restart_s));
    TRY(read_or("repair", a->repair, 86400, &r->repair_s));
    /* Spares are enough for the nodes that are in repair at a time, and three deviations more. */
    double broken = r->nodes * r->failures_per_node_day * r->repair_s / 86400;
    TRY(read_or("spares", a->spares, fmax(1, round(broken + 3 * sqrt(broken))), &r->spares));
    return read_or("checkpoint-time", a->checkpoint_time,
                   fmax(5, checkpoint / (r->nodes * m->gpu->disk)), &r->checkpoint_s);
}

static err read_start(const char *text, time_t *out) {
    struct tm t = { 0 };
    const char *end = strptime(text, "%Y-%m-%d", &t);
    if (!end || *end)
        return err_hint(ERR_USAGE("--start: \"%.40s\" is not a date", text), "--start 2027-01-15");
    struct tm day = t;
    *out = timegm(&day);
    if (day.tm_mday != t.tm_mday) /* 30 February became a day of March */
        return err_hint(ERR_USAGE("--start: \"%.40s\" is not a day of its month", text),
                        "--start %04d-%02d-%02d", day.tm_year + 1900, day.tm_mon + 1, day.tm_mday);
    return OK;
}

/* "27.3 days, finished by 2027-02-11, $330,722" for one quantile. */
static void print_quantile(const char *label, const plan_machine *m, const plan_failures *f,
                           double seconds) {
    const goodput_run *r = &f->run;
    const hardware_price *price = NULL;
    char date[32] = "", usd[64] = "";
    time_t end = f->start + (time_t)seconds;
    struct tm t;
    if (f->dated && gmtime_r(&end, &t)) strftime(date, sizeof date, ", done by %Y-%m-%d", &t);
    err e = hardware_find_price(&m->catalogue, m->gpu, m->provider, &price);
    if (!e)
        snprintf(
            usd, sizeof usd, ", $%s at %s",
            show_whole(seconds / 3600 * (r->nodes + r->spares) * m->gpu->per_node * price->usd),
            price->provider);
    err_free(e);
    printf("  %-10s %.4g days%s%s\n", label, seconds / 86400, date, usd);
}

static void print_goodput(const plan_machine *m, const plan_failures *f) {
    const goodput_run *r = &f->run;
    const goodput *g = &f->result;
    printf("\nWith %.2g %% of nodes failing per day, %s nodes and %s spares:\n",
           100 * r->failures_per_node_day, show_whole(r->nodes), show_whole(r->spares));
    printf("  a failure every %.3g hours, %.3g in all; %.3g s to save, %.3g s to restart\n",
           g->mtbf / 3600, g->failures, r->checkpoint_s, r->restart_s);
    printf("  checkpoint every %.4g s (Young %.4g s, Daly %.4g s, best simulated %.4g s)\n",
           g->interval, g->young, g->daly, g->simulated);
    printf("  goodput %.1f %%: %.4g days of work in %.4g\n", 100 * g->goodput, r->work / 86400,
           g->mean / 86400);
    print_quantile("10 %", m, f, g->p10);
    print_quantile("median", m, f, g->p50);
    print_quantile("90 %", m, f, g->p90);
}

static json_t *goodput_json(const plan_machine *m, const goodput_run *r, const goodput *g) {
    const struct {
        const char *name;
        double value;
    } figures[] = { { "nodes", r->nodes },
                    { "spares", r->spares },
                    { "failures_per_node_day", r->failures_per_node_day },
                    { "checkpoint_s", r->checkpoint_s },
                    { "restart_s", r->restart_s },
                    { "repair_s", r->repair_s },
                    { "work_s", r->work },
                    { "mtbf_s", g->mtbf },
                    { "young_s", g->young },
                    { "daly_s", g->daly },
                    { "simulated_s", g->simulated },
                    { "interval_s", g->interval },
                    { "expected_s", g->expected },
                    { "mean_s", g->mean },
                    { "p10_s", g->p10 },
                    { "p50_s", g->p50 },
                    { "p90_s", g->p90 },
                    { "failures", g->failures },
                    { "goodput", g->goodput },
                    { "gpus_rented", (r->nodes + r->spares) * m->gpu->per_node } };
    json_t *o = json_object();
    for (size_t i = 0; i < COUNT_OF(figures); i++)
        json_object_set_new(o, figures[i].name, io_json_number(figures[i].value));
    return o;
}

err plan_failures_open(const plan_args *a, const plan_machine *m, const scaling_point *p,
                       double checkpoint, plan_failures *out) {
    plan_failures f = { .asked = a->goodput || a->failures || a->restart || a->repair ||
                                 a->spares || a->checkpoint_time || a->interval || a->start };
    double interval;
    *out = f;
    if (!f.asked) return OK;
    if (!m->gpu)
        return err_hint(ERR_USAGE("--goodput: needs --gpu and --gpus"), "--gpu h100 --gpus 1024");
    if (isnan(p->compute))
        return err_hint(ERR("the length of the run is not known: it is in epochs"),
                        "--training.steps=\"1e12 tokens\"");
    TRY(read_run(a, m, p, checkpoint, &f.run));
    TRY(plan_quantity("interval", a->interval, &interval));
    if (!isnan(interval) && !(interval > 0))
        return err_hint(ERR_USAGE("--interval: expected more than 0 seconds; got %g", interval),
                        "--interval %.0f", goodput_daly(&f.run));
    if (a->start) TRY(read_start(a->start, &f.start));
    TRY(goodput_simulate(&f.run, interval, TRIALS, (uint64_t)a->seed, &f.result));
    f.dated = a->start;
    *out = f;
    return OK;
}

void plan_report_failures(const plan_failures *f, const plan_machine *m, json_t *doc) {
    if (!f->asked) return;
    if (doc)
        json_object_set_new(doc, "goodput", goodput_json(m, &f->run, &f->result));
    else
        print_goodput(m, f);
}

err plan_compare_failures(const plan_args *a, const plan_machine *m, const scaling_point *p,
                          double checkpoint, json_t *doc) {
    static const double factors[] = { 0.25, 0.5, 1, 2, 4 };
    double rate;
    TRY(read_or("failures", a->failures, 0.01, &rate));
    json_t *list = doc ? json_array() : NULL;
    if (doc) json_object_set_new(doc, "failure_rates", list);
    if (!doc) printf("\nOther failure rates, with failures, checkpoints and restarts\n");
    for (size_t i = 0; i < COUNT_OF(factors); i++) {
        plan_args changed = *a;
        plan_failures f;
        char text[32], label[64];
        snprintf(text, sizeof text, "%.9g", fmin(rate * factors[i], 1));
        changed.failures = text;
        TRY(plan_failures_open(&changed, m, p, checkpoint, &f));
        snprintf(label, sizeof label, "%.3g %% of nodes per day: goodput %.1f %%",
                 100 * f.run.failures_per_node_day, 100 * f.result.goodput);
        if (doc)
            json_array_append_new(list, goodput_json(m, &f.run, &f.result));
        else
            printf("  %-58s %9.3g days\n", label, f.result.p50 / 86400);
    }
    return OK;
}
