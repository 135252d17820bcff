/* The planning page of `ingot serve`, and its answers:
 *
 *     /plan                     the page
 *     /api/plan/choices         laws, accelerators, configs, settings: what its inputs offer
 *     /api/plan/scaling?compute&params&tokens&loss&unique-tokens&law&gpu&gpus&dtype&mfu&provider
 *                               one or two quantities, completed; time and cost
 *     /api/plan/layout?config&gpu&gpus&dtype&micros&tp&pp&...
 *                               memory by stage, a simulated step, its timetable
 *
 * Queries have the names and the grammar of `ingot plan`, and the figures are of the same functions. Whatever it
 * refuses, they refuse: status 400 and {"error": ..., "remedy": ...}. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"
#include "page_internal.h"

extern const embedded_file plan_page_files[]; /* plan_page.html */

/* ---- queries ------------------------------------------------------------------------------------ */
err page_check_names(const serve_request *r, const char *const *names, bool settings) {
    const char *known[40] = { "token" }, *name;
    int n = 1;
    for (int i = 0; names[i]; i++) known[n++] = names[i];
    for (int i = 0; settings && i < page_setting_count; i++) known[n++] = page_settings[i].query;
    for (int i = 0; (name = serve_query_name(r, i)); i++) {
        const char *near = NULL;
        int k = 0;
        for (; k < n && strcmp(known[k], name) != 0; k++) near = str_nearer(name, known[k], near);
        if (k == n)
            return err_hint(ERR("\"%.20s\" is not a query of this address", name), "%s=...",
                            near ? near : known[1]);
    }
    return OK;
}

err page_choose_machine(planning_page *p, const serve_request *r) {
    return plan_machine_choose(&p->machine,
                               &(machine_query){ serve_query(r, "gpu"), serve_query(r, "gpus"),
                                                 serve_query(r, "dtype"), serve_query(r, "mfu"),
                                                 serve_query(r, "provider") });
}

/* Messages name options as `ingot plan` has them. */
static json_t *message_json(const char *text) {
    if (str_starts(text, "--")) text += 2;
    return io_json_string(text, strlen(text));
}

static void put_doc(serve_answer *out, json_t *doc) {
    out->type = "application/json";
    io_json_add(&out->body, doc, JSON_COMPACT | JSON_REAL_PRECISION(12));
}

/* Answers with an error and frees it. */
static void put_error(serve_answer *out, err e) {
    out->status = 400;
    out->body.len = 0;
    put_doc(out, json_pack("{s:o, s:o}", "error", message_json(err_message(e)), "remedy",
                           message_json(err_remedy(e))));
    err_free(e);
}

/* ---- scaling laws --------------------------------------------------------------------------------- */
static err read_scaling_query(const planning_page *p, const serve_request *r, scaling_query *q,
                              const scaling_law **law) {
    double unique;
    const char *name = serve_query(r, "law");
    bool own = p->law.name && (!name || !strcmp(name, p->law.name));
    *law = own ? &p->law : law_default();
    TRY(plan_quantity("compute", serve_query(r, "compute"), &q->compute));
    TRY(plan_quantity("params", serve_query(r, "params"), &q->params));
    TRY(plan_quantity("tokens", serve_query(r, "tokens"), &q->tokens));
    TRY(plan_quantity("loss", serve_query(r, "loss"), &q->loss));
    TRY(plan_quantity("unique-tokens", serve_query(r, "unique-tokens"), &unique));
    q->unique = isnan(unique) ? INFINITY : unique;
    return name && !own ? law_find(name, law) : OK;
}

/* Losses of smaller and larger models on the same compute, for a chart. */
static json_t *budget_curve(const scaling_law *l, const scaling_point *p, double unique) {
    enum { EACH_SIDE = 24, PER_DECADE = 16 };
    json_t *list = json_array();
    for (int i = -EACH_SIDE; i <= EACH_SIDE; i++) {
        scaling_query q = { p->compute, p->params * pow(10, (double)i / PER_DECADE), NAN, NAN,
                            unique };
        scaling_point at;
        err e = law_solve(l, &q, &at);
        if (!e && at.tokens >= 1)
            json_array_append_new(
                list, json_pack("[o, o]", io_json_number(at.params), io_json_number(at.loss)));
        err_free(e);
    }
    return list;
}

static err describe_scaling(planning_page *p, const serve_request *r, json_t **out) {
    static const char *const names[] = { "compute",       "params", "tokens",   "loss",
                                         "unique-tokens", "law",    "gpu",      "gpus",
                                         "dtype",         "mfu",    "provider", NULL };
    scaling_query q = { 0 };
    scaling_point point, best;
    const scaling_law *law;
    TRY(page_check_names(r, names, false));
    TRY(read_scaling_query(p, r, &q, &law));
    TRY(page_choose_machine(p, r));
    TRY(law_solve(law, &q, &point));
    TRY(law_solve(law, &(scaling_query){ point.compute, NAN, NAN, NAN, q.unique }, &best));
    *out = json_pack("{s:o, s:o, s:o}", "point", law_point_json(law, &point), "optimum",
                     law_point_json(law, &best), "curve", budget_curve(law, &best, q.unique));
    if (p->machine.gpu)
        json_object_set_new(*out, "time", plan_cost_json(&p->machine, point.compute));
    return OK;
}

static void answer_scaling(void *ctx, const serve_request *r, serve_answer *out) {
    json_t *doc = NULL;
    err e = describe_scaling(ctx, r, &doc);
    if (e)
        put_error(out, e);
    else
        put_doc(out, doc);
}

/* ---- what the inputs offer ------------------------------------------------------------------------- */
static json_t *law_json(const scaling_law *l) {
    return json_pack("{s:s, s:s, s:s}", "name", l->name, "title", l->title, "source", l->source);
}

static json_t *laws_json(const planning_page *p) {
    json_t *list = json_array();
    if (p->law.name) json_array_append_new(list, law_json(&p->law));
    for (int i = 0; i < law_count(); i++) json_array_append_new(list, law_json(law_at(i)));
    return list;
}

static json_t *gpus_json(const hardware *h) {
    json_t *list = json_array();
    for (int i = 0; i < h->n_accelerators; i++) {
        const accelerator *a = &h->accelerators[i];
        json_t *types = json_array(), *providers = json_array();
        for (int k = 0; k < PEAKS; k++)
            if (!isnan(a->peak[k]))
                json_array_append_new(types, json_string(peak_name((peak_kind)k)));
        for (int k = 0; k < h->n_prices; k++)
            if (!strcmp(h->prices[k].accelerator, a->name))
                json_array_append_new(providers, json_string(h->prices[k].provider));
        json_array_append_new(list, json_pack("{s:s, s:s, s:o, s:o, s:o}", "name", a->name, "title",
                                              a->title, "memory", io_json_number(a->memory),
                                              "dtypes", types, "providers", providers));
    }
    return list;
}

static json_t *configs_json(const planning_page *p) {
    json_t *list = json_array();
    for (int i = 0; i < p->n_configs; i++) {
        const page_config *c = &p->configs[i];
        json_array_append_new(list, json_pack("{s:o, s:o}", "name",
                                              io_json_string(c->name, strlen(c->name)), "note",
                                              io_json_string(c->path, strlen(c->path))));
    }
    for (int i = 0; i < recipe_count(); i++) {
        str source = { 0 };
        recipe_note(i, "source", &source);
        json_array_append_new(list, json_pack("{s:s, s:o}", "name", recipe_name(i), "note",
                                              io_json_string(source.text, source.len)));
        str_free(&source);
    }
    return list;
}

static json_t *inputs_json(void) {
    json_t *list = json_array();
    for (int i = 0; i < page_setting_count; i++) {
        const page_setting *s = &page_settings[i];
        json_t *choices = json_array();
        for (int k = 0; k < config_choices(s->option); k++)
            json_array_append_new(choices, json_string(config_choice(s->option, k)));
        json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:o}", "query", s->query, "option",
                                              s->option, "label", s->label, "choices", choices));
    }
    return list;
}

/* Where the page begins: the first config that was given, as it is, or a layout worth looking at. */
static json_t *start_json(const planning_page *p) {
    if (p->n_configs) {
        const char *name = p->configs[0].name;
        return json_pack("{s:o}", "config", io_json_string(name, strlen(name)));
    }
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "config", "llama3-8b", "gpus",
                     "64", "tp", "2", "pp", "4", "micros", "16", "sequences", "1", "zero", "1",
                     "recompute", "selective");
}

static void answer_choices(void *ctx, const serve_request *r, serve_answer *out) {
    const planning_page *p = ctx;
    put_doc(out, json_pack("{s:o, s:o, s:o, s:o, s:o, s:b, s:f, s:{s:[f,f], s:[f,f], s:[f,f]}}",
                           "laws", laws_json(p), "gpus", gpus_json(&p->machine.catalogue),
                           "configs", configs_json(p), "inputs", inputs_json(), "start",
                           start_json(p), "runs", p->runs, "mfu", MFU_DEFAULT, "ranges", "params",
                           1e6, 1e13, "tokens", 1e8, 1e15, "compute", 1e16, 1e28));
}

/* ---- the page ------------------------------------------------------------------------------------- */
static void answer_layout(void *ctx, const serve_request *r, serve_answer *out) {
    err e = page_answer_layout(ctx, r, &out->body);
    out->type = "application/json";
    if (e) put_error(out, e);
}

static void answer_plan_page(void *ctx, const serve_request *r, serve_answer *out) {
    serve_put_page(out, plan_page_files[0].text);
}

static const serve_route plan_routes[] = {
    { "/plan", answer_plan_page },
    { "/api/plan/choices", answer_choices },
    { "/api/plan/scaling", answer_scaling },
    { "/api/plan/layout", answer_layout },
};

err planning_page_open(const char *catalogue, planning_page **out) {
    planning_page *p = mem_alloc(sizeof *p);
    err e = plan_machine_open(catalogue, &(machine_query){ 0 }, &p->machine);
    if (e) free(p);
    if (!e) *out = p;
    return e;
}

err planning_page_add(planning_page *p, const char *name, const char *path) {
    config c;
    config_init(&c);
    err e = config_load(&c, path);
    config_free(&c);
    if (e) return e;
    LIST_ADD(p->configs, p->n_configs, p->configs_cap) =
        (page_config){ strdup(name), strdup(path) };
    return OK;
}

err planning_page_add_law(planning_page *p, const char *path) {
    law_free(&p->law);
    return law_read(path, &p->law);
}

void planning_page_serve(planning_page *p, serve_options *o) {
    o->routes = plan_routes;
    o->n_routes = (int)COUNT_OF(plan_routes);
    o->routes_ctx = p;
    o->plan_path = plan_routes[0].path;
    p->runs = o->n_runs > 0;
}

void planning_page_free(planning_page *p) {
    if (!p) return;
    for (int i = 0; i < p->n_configs; i++) {
        free(p->configs[i].name);
        free(p->configs[i].path);
    }
    for (int i = 0; i < PAGE_CACHED; i++) {
        free(p->cache[i].key);
        free(p->cache[i].body);
    }
    free(p->configs);
    law_free(&p->law);
    plan_machine_close(&p->machine);
    free(p);
}
