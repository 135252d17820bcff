/* ingot plan --compute, --params, --tokens, --loss: what the scaling laws make of it. */
#include "cli/plan_common.h"

#include <math.h>

typedef struct law_query {
    scaling_query q;
    double inference;
    scaling_law own;           /* of a file */
    const scaling_law *chosen; /* of --law, else the default */
    bool all;                  /* no --law: every law has a row */
} law_query;

/* @param out its law is law_free's */
static err read_query(const plan_args *a, law_query *out) {
    law_query l = { .q.unique = INFINITY, .chosen = law_default(), .all = !a->law };
    TRY(plan_quantity("compute", a->compute, &l.q.compute));
    TRY(plan_quantity("params", a->params, &l.q.params));
    TRY(plan_quantity("tokens", a->tokens, &l.q.tokens));
    TRY(plan_quantity("loss", a->loss, &l.q.loss));
    TRY(plan_quantity("inference-tokens", a->inference_tokens, &l.inference));
    if (a->unique_tokens) TRY(plan_quantity("unique-tokens", a->unique_tokens, &l.q.unique));
    *out = l;
    return a->law ? law_choose(a->law, &out->own, &out->chosen) : OK;
}

/* A law that cannot reach the loss has no row. */
static void report_law_rows(const law_query *l, json_t *list) {
    if (!list)
        printf("  %-13s %10s %10s %10s %12s %8s %8s %10s\n", "law", "parameters", "tokens",
               "per param", "FLOPs", "PF-days", "loss", "of optimum");
    for (int i = 0; i < (l->all ? law_count() : 1); i++) {
        const scaling_law *law = l->all ? law_at(i) : l->chosen;
        scaling_point p;
        err e = law_solve(law, &l->q, &p);
        if (e) {
            if (!list) printf("  %-13s %s\n", law->name, err_message(e));
            err_free(e);
            continue;
        }
        if (list)
            json_array_append_new(list, law_point_json(law, &p));
        else
            printf("%c %-13s %10s %10s %10.1f %12s %8s %8.3f %9.2fx\n",
                   law == l->chosen ? '*' : ' ', law->name, show_count(p.params),
                   show_count(p.tokens), p.tokens / p.params, show_flops(p.compute),
                   show_rounded(p.compute / PF_DAY), p.loss, law_times_optimal(law, &p));
    }
}

static err report_lifetime(const law_query *l, const scaling_point *trained, json_t *doc) {
    scaling_point p;
    TRY(law_solve_lifetime(l->chosen, trained->loss, l->q.unique, l->inference, &p));
    double first = trained->compute + 2 * trained->params * l->inference;
    double best = p.compute + 2 * p.params * l->inference;
    if (doc) {
        json_t *o = law_point_json(l->chosen, &p);
        json_object_set_new(o, "inference_tokens", io_json_number(l->inference));
        json_object_set_new(o, "lifetime_compute", io_json_number(best));
        json_object_set_new(doc, "lifetime", o);
        return OK;
    }
    printf("\nWith %s tokens of inference at 2 N operations each, the same loss costs\n"
           "  %12s over the life of the model above\n"
           "  %12s with %s parameters trained on %s tokens (%.0f per parameter)\n",
           show_count(l->inference), show_flops(first), show_flops(best), show_count(p.params),
           show_count(p.tokens), p.tokens / p.params);
    return OK;
}

static err report_query(const plan_args *a, const law_query *l) {
    scaling_point chosen;
    plan_machine m;
    TRY(law_solve(l->chosen, &l->q, &chosen));
    machine_query machine = plan_machine_query(a);
    TRY(plan_machine_open(a->catalogue, &machine, &m));
    json_t *list = NULL, *doc = NULL;
    plan_failures f;
    err e = plan_failures_open(a, &m, &chosen, NAN, &f);
    if (e) {
        plan_machine_close(&m);
        return e;
    }
    if (a->json) list = json_array();
    report_law_rows(l, list);
    if (list) doc = json_pack("{s:s, s:o}", "chosen", l->chosen->name, "laws", list);
    if (!a->json && chosen.tokens > l->q.unique)
        printf("\n%.1f epochs over %s unique tokens are worth %s fresh ones (Muennighoff et al. "
               "2023).\n",
               chosen.tokens / l->q.unique, show_count(l->q.unique),
               show_count(chosen.effective_tokens));
    if (!e && !isnan(l->inference)) e = report_lifetime(l, &chosen, doc);
    if (!e) plan_report_cost(&m, &chosen, doc);
    if (!e) plan_report_failures(&f, &m, doc);
    if (!e && !a->json) printf("\n* %s: %s.\n", l->chosen->title, l->chosen->source);
    if (e || !a->json)
        json_decref(doc);
    else
        plan_print_json(doc);
    plan_machine_close(&m);
    return e;
}

err plan_report_laws(const plan_args *a) {
    law_query l = { 0 };
    err e = read_query(a, &l);
    if (!e) e = report_query(a, &l);
    law_free(&l.own);
    return e;
}
