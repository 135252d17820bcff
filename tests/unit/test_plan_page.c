/* The planning page: its figures are those of planning, and no query does harm. */
#include "support/folder.h"

#include <math.h>

#include "planning/page_internal.h"
#include "serve/serve_internal.h"

typedef struct plan_site {
    planning_page *p;
    serve_options o;
} plan_site;

static plan_site open_plan(void) {
    plan_site t = { 0 };
    assert_ok(planning_page_open(NULL, &t.p));
    planning_page_serve(t.p, &t.o);
    return t;
}

/* @return the body, owned */
static char *ask_text(const plan_site *t, const char *path, int *status) {
    str text = { 0 };
    serve_request r;
    serve_answer a = { 0 };
    str_add(&text, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
    assert_int_equal(request_parse(text.text, text.len, &r), 0);
    str_free(&text);
    answer_request(&(served_site){ .routes = t->o.routes,
                                   .n_routes = t->o.n_routes,
                                   .routes_ctx = t->o.routes_ctx },
                   &r, &a);
    *status = a.status;
    return a.body.text;
}

static json_t *ask(const plan_site *t, const char *path, int expected) {
    int status;
    json_error_t why;
    char *text = ask_text(t, path, &status);
    json_t *doc = json_loads(text, JSON_REJECT_DUPLICATES, &why);
    if (!doc) fail_msg("%s: not JSON: %s", path, why.text);
    if (status != expected) fail_msg("%s: status %d, not %d: %.200s", path, status, expected, text);
    free(text);
    return doc;
}

/* A number by the names that lead to it, with dots. */
static double number_at(const json_t *doc, const char *path) {
    char names[128], *next = NULL;
    snprintf(names, sizeof names, "%s", path);
    for (char *name = strtok_r(names, ".", &next); name; name = strtok_r(NULL, ".", &next))
        doc = json_object_get(doc, name);
    if (!json_is_number(doc)) fail_msg("%s is not there", path);
    return json_number_value(doc);
}

static void expect_near(const json_t *doc, const char *path, double expected) {
    double got = number_at(doc, path);
    if (fabs(got - expected) > 1e-9 * fabs(expected))
        fail_msg("%s: %.12g, not %.12g", path, got, expected);
}

/* ---- scaling laws ------------------------------------------------------------------------------- */
static void figures_are_those_of_the_laws(void **state) {
    static const struct {
        const char *query, *law;
        scaling_query q;
    } cases[] = {
        { "params=7B&tokens=1T", "refit", { NAN, 7e9, 1e12, NAN, INFINITY } },
        { "compute=6.3e23", "refit", { 6.3e23, NAN, NAN, NAN, INFINITY } },
        { "compute=6.3e23&params=70e9&law=kaplan", "kaplan", { 6.3e23, 70e9, NAN, NAN, INFINITY } },
        { "compute=1e22&unique-tokens=20e9", "refit", { 1e22, NAN, NAN, NAN, 20e9 } },
        { "loss=2.0&law=chinchilla-3", "chinchilla-3", { NAN, NAN, NAN, 2.0, INFINITY } },
    };
    plan_site t = open_plan();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const scaling_law *law;
        scaling_point p, best;
        char path[160];
        snprintf(path, sizeof path, "/api/plan/scaling?gpu=a100-80gb&gpus=512&mfu=0.4&%s",
                 cases[i].query);
        json_t *doc = ask(&t, path, 200);
        assert_ok(law_find(cases[i].law, &law));
        assert_ok(law_solve(law, &cases[i].q, &p));
        scaling_query budget = { p.compute, NAN, NAN, NAN, cases[i].q.unique };
        assert_ok(law_solve(law, &budget, &best));
        expect_near(doc, "point.compute", p.compute);
        expect_near(doc, "point.params", p.params);
        expect_near(doc, "point.tokens", p.tokens);
        expect_near(doc, "point.loss", p.loss);
        expect_near(doc, "point.effective_tokens", p.effective_tokens);
        expect_near(doc, "optimum.params", best.params);
        expect_near(doc, "optimum.loss", best.loss);
        run_cost c = cost_of_flops(p.compute, 512, 312e12, 0.4, 0);
        expect_near(doc, "time.seconds", c.seconds);
        expect_near(doc, "time.gpu_hours", c.gpu_hours);
        const json_t *costs = json_object_get(json_object_get(doc, "time"), "costs"), *cost;
        size_t k;
        assert_int_equal(json_array_size(costs), 4);
        json_array_foreach(costs, k, cost) {
            double usd = number_at(cost, "usd_per_gpu_hour");
            expect_near(cost, "usd", cost_of_flops(p.compute, 512, 312e12, 0.4, usd).usd);
        }
        json_decref(doc);
    }
    planning_page_free(t.p);
}

/* The curve has the optimum as its lowest point. */
static void the_curve_ends_above_the_optimum(void **state) {
    plan_site t = open_plan();
    json_t *doc = ask(&t, "/api/plan/scaling?compute=1e23", 200);
    const json_t *curve = json_object_get(doc, "curve"), *at;
    double lowest = INFINITY;
    size_t i;
    assert_true(json_array_size(curve) > 20);
    json_array_foreach(curve, i, at) lowest =
        fmin(lowest, json_number_value(json_array_get(at, 1)));
    expect_near(doc, "optimum.loss", lowest);
    assert_null(json_object_get(doc, "time")); /* no GPU was named */
    json_decref(doc);
    planning_page_free(t.p);
}

/* ---- layouts ------------------------------------------------------------------------------------- */
typedef struct layout_case {
    const char *query, *options[16];
    int ranks, tasks; /* tasks: per microbatch and stage */
} layout_case;

/* Tasks of a stage follow each other, each microbatch forward before backward. */
/* @return the share of the time in which stages work. */
static double check_timetable(const json_t *d, int tasks) {
    int micros = (int)number_at(d, "microbatches"), chunks = (int)number_at(d, "chunks");
    double length = number_at(d, "length"), busy = 0;
    const json_t *stage, *task, *stages = json_object_get(d, "tasks");
    size_t i, k;
    assert_int_equal(json_array_size(stages), (size_t)number_at(d, "stages"));
    json_array_foreach(stages, i, stage) {
        double before = 0;
        int forward = 0;
        if (tasks) assert_int_equal(json_array_size(stage), tasks * MIN(micros, 4096) * chunks);
        json_array_foreach(stage, k, task) {
            double begin = json_number_value(json_array_get(task, 3));
            double end = json_number_value(json_array_get(task, 4));
            const char *kind = json_string_value(json_array_get(task, 0));
            forward += !strcmp(kind, "forward") - !strcmp(kind, "backward");
            assert_true(forward >= 0);
            assert_true(begin >= before - 1e-5 * length && end > begin && end <= length);
            before = end;
            busy += end - begin;
        }
        assert_int_equal(forward, 0);
    }
    return busy / length / number_at(d, "stages");
}

static void check_layout(const plan_site *t, const layout_case *k) {
    config c;
    run_target on = { .ranks = k->ranks };
    plan_machine m;
    capacity cap;
    step_time step;
    double limit;
    int recipe;
    char path[300], name[64];
    snprintf(path, sizeof path, "/api/plan/layout?config=llama2-7b&gpu=a100&gpus=%d&%s", k->ranks,
             k->query);
    json_t *doc = ask(t, path, 200);
    config_init(&c);
    assert_ok(recipe_find("llama2-7b", &recipe));
    assert_ok(config_parse(&c, recipe_text(recipe), strlen(recipe_text(recipe)), "recipe"));
    for (int i = 0; k->options[i]; i += 2)
        assert_ok(config_set(&c, k->options[i], k->options[i + 1]));
    assert_ok(plan_machine_open(NULL, &(machine_query){ .gpu = "a100" }, &m));
    assert_ok(plan_target_accelerator(m.gpu, &c, &on, &limit));
    assert_ok(capacity_of(&c, &on, &cap));
    assert_ok(step_simulate(&c, &on, m.gpu, NULL, &step));
    const json_t *stages = json_object_get(doc, "stages");
    const json_t *most = json_array_get(stages, (size_t)cap.stage);
    assert_int_equal(json_array_size(stages), mesh_size(&cap.layout, AX_PP));
    expect_near(doc, "capacity.memory_total", cap.total);
    expect_near(most, "total", cap.total);
    for (int i = 0; i < MEMORY_KINDS; i++) {
        snprintf(name, sizeof name, "memory.%s", memory_name((memory_kind)i));
        expect_near(most, name, cap.memory[i]);
    }
    expect_near(doc, "needed", capacity_needed(&on, &cap));
    assert_int_equal(json_is_true(json_object_get(doc, "fits")),
                     cap.total <= plan_limit_of_gpu(on.gpu->memory));
    expect_near(doc, "limit", plan_limit_of_gpu(on.gpu->memory));
    expect_near(doc, "step.seconds", step.seconds);
    expect_near(doc, "step.bubble", step_bubble(&step));
    expect_near(doc, "time.mfu", step.flops_full / 312e12);
    expect_near(
        doc, "time.seconds",
        cost_of_flops(cap.tokens * cap.flops_full, k->ranks, step.flops_full, 1, 0).seconds);
    double busy = check_timetable(json_object_get(doc, "timetable"), k->tasks);
    if (json_array_size(stages) > 1) assert_true(fabs(1 - busy - step.run.bubble) < 0.06);
    plan_machine_close(&m);
    config_free(&c);
    json_decref(doc);
}

#define OPTION_PP      "parallelism.pipeline_parallel_degree"
#define OPTION_BATCH   "training.global_batch_size"
#define OPTION_LOCAL   "training.local_batch_size"
#define OPTION_NO_RAMP "training.batch_ramp_start", "0"
static void figures_are_those_of_the_plan(void **state) {
    static const layout_case cases[] = {
        { "pp=4&tp=2&sequences=1&micros=8",
          { OPTION_PP, "4", "parallelism.tensor_parallel_degree", "2", OPTION_LOCAL, "1",
            OPTION_BATCH, "16", OPTION_NO_RAMP },
          16,
          2 },
        { "pp=8&sequences=1&micros=8&recompute=full",
          { OPTION_PP, "8", OPTION_LOCAL, "1", OPTION_BATCH, "8", OPTION_NO_RAMP,
            "activation_checkpoint.mode", "full" },
          8,
          2 },
        { "pp=2&sequences=1&micros=4&recompute=sqrt",
          { OPTION_PP, "2", OPTION_LOCAL, "1", OPTION_BATCH, "4", OPTION_NO_RAMP,
            "activation_checkpoint.mode", "sqrt" },
          2,
          2 },
        { "pp=4&sequences=1&micros=8&schedule=ZeroBubble&zero=0",
          { OPTION_PP, "4", OPTION_LOCAL, "1", OPTION_BATCH, "8",
            "parallelism.pipeline_parallel_schedule", "ZeroBubble", "parallelism.zero_stage", "0",
            OPTION_NO_RAMP },
          4,
          3 },
        { "pp=2&sequences=1&micros=4&schedule=Interleaved1F1B",
          { OPTION_PP, "2", OPTION_LOCAL, "1", OPTION_BATCH, "4",
            "parallelism.pipeline_parallel_schedule", "Interleaved1F1B", OPTION_NO_RAMP },
          2,
          2 },
        { "zero=3&sequences=2&micros=1",
          { "parallelism.zero_stage", "3", OPTION_LOCAL, "2", OPTION_BATCH, "128", OPTION_NO_RAMP },
          64,
          2 },
    };
    plan_site t = open_plan();
    for (size_t i = 0; i < COUNT_OF(cases); i++) check_layout(&t, &cases[i]);
    planning_page_free(t.p);
}

static void answers_are_kept(void **state) {
    plan_site t = open_plan();
    int status;
    const char *path = "/api/plan/layout?config=pythia-6.9b&gpu=h100&gpus=8&zero=3&micros=1";
    char *first = ask_text(&t, path, &status), *second = ask_text(&t, path, &status);
    assert_int_equal(status, 200);
    assert_string_equal(first, second);
    assert_int_equal(t.p->computed, 1);
    free(ask_text(&t, "/api/plan/layout?config=pythia-6.9b&gpu=h200&gpus=8&zero=3&micros=1",
                  &status));
    assert_int_equal(t.p->computed, 2);
    free(first);
    free(second);
    planning_page_free(t.p);
}

/* A config of the user's is offered first, as it is, and read again when it changes. */
static void configs_are_offered(void **state) {
    static const char text[] = "model: gpt-small\ntraining:\n  seq_len: %d\n  steps: 10\n"
                               "parallelism:\n  pipeline_parallel_degree: 2\n";
    test_folder *f = *state;
    plan_site t = open_plan();
    char body[200];
    for (int seq = 64; seq <= 128; seq *= 2) {
        snprintf(body, sizeof body, text, seq);
        folder_write(f, "own.yaml", body);
        if (seq == 64) assert_ok(planning_page_add(t.p, "own.yaml", in_folder(f, "own.yaml")));
        json_t *doc = ask(&t, "/api/plan/layout?config=own.yaml&gpu=t4&micros=2", 200);
        expect_near(doc, "capacity.seq_len", seq);
        expect_near(doc, "layout.ranks", 2);
        json_decref(doc);
    }
    json_t *doc = ask(&t, "/api/plan/choices", 200);
    assert_string_equal(json_string_value(json_object_get(json_object_get(doc, "start"), "config")),
                        "own.yaml");
    assert_int_equal(json_array_size(json_object_get(doc, "configs")), 1 + recipe_count());
    json_decref(doc);
    plan_site odd = open_plan(); /* a name that is not UTF-8 */
    assert_ok(planning_page_add(odd.p, "own\xff", in_folder(f, "own.yaml")));
    doc = ask(&odd, "/api/plan/choices", 200);
    assert_string_equal(json_string_value(json_object_get(json_object_get(doc, "start"), "config")),
                        "own\xef\xbf\xbd");
    assert_int_equal(json_array_size(json_object_get(doc, "configs")), 1 + recipe_count());
    json_decref(doc);
    planning_page_free(odd.p);
    folder_write(f, "bad.yaml", "trainin:\n  steps: 5\n");
    assert_error(planning_page_add(t.p, "bad.yaml", in_folder(f, "bad.yaml")), "trainin");
    planning_page_free(t.p);
}

/* ---- queries that are refused ---------------------------------------------------------------------- */
#define ON_H100 "/api/plan/layout?config=llama2-7b&gpu=h100"
static void bad_queries_get_clean_errors(void **state) {
    static const struct {
        const char *path, *what;
    } cases[] = {
        { "/api/plan/scaling", "expected one or two of" },
        { "/api/plan/scaling?params=-7B", "params: expected 1000 to 1e+18" },
        { "/api/plan/scaling?params=nan", "params: \"nan\" is not a number" },
        { "/api/plan/scaling?tokens=inf", "is not a number" },
        { "/api/plan/scaling?tokens=0x10", "is not a number" },
        { "/api/plan/scaling?compute=1e99", "compute: expected" },
        { "/api/plan/scaling?params=1e18&tokens=1e18", "compute: expected" },
        { "/api/plan/scaling?params=", "is not a number" },
        { "/api/plan/scaling?params=7B&tokens=1T&compute=1e22", "got three" },
        { "/api/plan/scaling?loss=0.6", "cannot be reached" },
        { "/api/plan/scaling?params=7B&law=moore", "no scaling law is called \"moore\"" },
        { "/api/plan/scaling?params=7B&gpu=h1000", "\"h1000\" is not in the catalogue" },
        { "/api/plan/scaling?params=7B&gpu=h100&gpus=0", "gpus: expected 1 to" },
        { "/api/plan/scaling?params=7B&gpu=h100&gpus=1.5", "gpus: expected a whole number" },
        { "/api/plan/scaling?params=7B&gpu=h100&mfu=2", "mfu: expected" },
        { "/api/plan/scaling?params=7B&gpu=t4&dtype=fp8", "fp8" },
        { "/api/plan/scaling?params=7B&gpu=h100&provider=nobody", "nobody" },
        { "/api/plan/scaling?params=7B&mfu=0.3", "means nothing without" },
        { "/api/plan/scaling?parms=7B", "\"parms\" is not a query" },
        { "/api/plan/layout", "gpu: which one is not given" },
        { "/api/plan/layout?gpu=h100", "config: which one is not given" },
        { "/api/plan/layout?gpu=h100&config=../../etc/passwd", "is not on this page" },
        { "/api/plan/layout?gpu=h100&config=%ff%fe", "is not on this page" },
        { "/api/plan/layout?gpu=h999&config=llama2-7b", "is not in the catalogue" },
        { ON_H100 "&gpus=64&tp=3", "64 ranks do not divide into groups of 3" },
        { ON_H100 "&gpus=64&tp=0", "tensor_parallel_degree" },
        { ON_H100 "&gpus=64&tp=-2", "tensor_parallel_degree" },
        { ON_H100 "&gpus=64&tp=nan", "tensor_parallel_degree" },
        { ON_H100 "&gpus=64&tp=1e30", "tensor_parallel_degree" },
        { ON_H100 "&gpus=64&dp=7", "" },
        { ON_H100 "&gpus=64&pp=64&micros=64", "" }, /* more stages than layers */
        { ON_H100 "&gpus=64&micros=0", "micros: expected 1 to" },
        { ON_H100 "&gpus=64&micros=1e12", "micros: expected 1 to" },
        { ON_H100 "&gpus=8&pp=8&micros=60000", "take too long for a page" },
        { ON_H100 "&gpus=64&sequences=1e15&micros=1", "" },
        { ON_H100 "&gpus=64&sequences=-1", "local_batch_size" },
        { ON_H100 "&gpus=64&seq=1e18", "seq_len" },
        { ON_H100 "&gpus=64&zero=4", "zero_stage" },
        { ON_H100 "&gpus=64&ep=2", "" },
        { ON_H100 "&gpus=64&schedule=rush", "pipeline_parallel_schedule" },
        { ON_H100 "&gpus=64&recompute=some", "activation_checkpoint.mode" },
        { ON_H100 "&gpus=64&model=x", "is not a query" },
    };
    plan_site t = open_plan();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        json_t *doc = ask(&t, cases[i].path, 400);
        const char *error = json_string_value(json_object_get(doc, "error"));
        const char *remedy = json_string_value(json_object_get(doc, "remedy"));
        if (!error || !*error || !strstr(error, cases[i].what))
            fail_msg("%s: \"%s\" lacks \"%s\"", cases[i].path, error, cases[i].what);
        if (!remedy || !*remedy) fail_msg("%s: no remedy: %s", cases[i].path, error);
        json_decref(doc);
    }
    planning_page_free(t.p);
}

/* Any values at all: a figure or an error, never a crash. */
static void hostile_queries_do_no_harm(void **state) {
    static const char *const values[] = {
        "1",    "2",     "3",     "4",          "8",          "16",         "0",
        "-1",   "65536", "65537", "1e6",        "2147483647", "1e9",        "9223372036854775807",
        "auto", "NaN",   "1e-9",  "none",       "full",       "ZeroBubble", "%00x",
        "%ff",  "4Ki",   "1_0",   "%22%3Cb%3E", "every",      "GPipe",      "",
    };
    static const char *const names[] = { "tp",        "pp",     "dp",        "cp",       "ep",
                                         "zero",      "seq",    "chunks",    "schedule", "gpus",
                                         "recompute", "micros", "sequences", "replicas" };
    test_folder *f = *state;
    plan_site t = open_plan();
    rng_key key = rng_key_of(11, 3);
    uint64_t n = 0;
    int fine = 0;
    folder_write(f, "s.yaml",
                 "model:\n  layers: 8\n  dim: 64\n  heads: 8\n  kv_heads: 4\n"
                 "training:\n  seq_len: 64\n  local_batch_size: 1\n  steps: 5\n");
    assert_ok(planning_page_add(t.p, "s", in_folder(f, "s.yaml")));
    for (int i = 0; i < 600; i++) {
        str path = { 0 };
        int status;
        str_add(&path, "/api/plan/layout?config=s&gpu=h100");
        for (uint64_t k = 1 + rng_below(key, n++, 4); k; k--) {
            const char *name = names[rng_below(key, n++, COUNT_OF(names))];
            size_t few = i % 2 ? COUNT_OF(values) : 6;
            const char *value = values[rng_below(key, n++, few)];
            if (!strcmp(value, "%00x")) continue; /* not a request at all: test_serve */
            str_add(&path, "&%s=%s", name, value);
        }
        char *text = ask_text(&t, path.text, &status);
        json_t *doc = json_loads(text, 0, NULL);
        if (!doc || (status != 200 && status != 400)) fail_msg("%s: %s", path.text, text);
        if (status == 200) check_timetable(json_object_get(doc, "timetable"), 0);
        fine += status == 200;
        json_decref(doc);
        free(text);
        str_free(&path);
    }
    assert_true(fine > 50);
    planning_page_free(t.p);
}

/* ---- the page -------------------------------------------------------------------------------------- */
static void the_page_needs_nothing_else(void **state) {
    plan_site t = open_plan();
    int status;
    char *text = ask_text(&t, "/plan", &status);
    assert_int_equal(status, 200);
    assert_non_null(strstr(text, "<title>ingot plan</title>"));
    assert_non_null(strstr(text, "class Timetable"));
    assert_null(strstr(text, "http://"));
    assert_null(strstr(text, "https://"));
    assert_null(strstr(text, "<!-- common -->"));
    free(text);
    plan_site run = { 0 }; /* a run that serves itself */
    text = ask_text(&run, "/plan", &status);
    assert_int_equal(status, 404);
    free(text);
    planning_page_free(t.p);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_setup, folder_teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_are_those_of_the_laws),
        cmocka_unit_test(the_curve_ends_above_the_optimum),
        cmocka_unit_test(figures_are_those_of_the_plan),
        cmocka_unit_test(answers_are_kept),
        IN_FOLDER(configs_are_offered),
        cmocka_unit_test(bad_queries_get_clean_errors),
        IN_FOLDER(hostile_queries_do_no_harm),
        cmocka_unit_test(the_page_needs_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
