/* The planning page's answer for a layout: the memory of every pipeline stage, a simulated step and its
 * timetable, as `ingot plan CONFIG --gpu` has them.
 *
 * A query costs what laying out and simulating costs, which grows with microbatches x (layers + stages). It is
 * bounded before anything is recorded, since one thread answers everybody. */
#include <stdlib.h>
#include <string.h>

#include "io/io.h"
#include "page_internal.h"
#include "planning_internal.h"

const page_setting page_settings[] = {
    { "tp", "parallelism.tensor_parallel_degree", "tensor parallel (tp)" },
    { "pp", "parallelism.pipeline_parallel_degree", "pipeline stages (pp)" },
    { "dp", "parallelism.data_parallel_shard_degree", "data parallel (dp)" },
    { "replicas", "parallelism.data_parallel_replicate_degree", "replicas (HSDP)" },
    { "cp", "parallelism.context_parallel_degree", "context parallel (cp)" },
    { "ep", "parallelism.expert_parallel_degree", "expert parallel (ep)" },
    { "zero", "parallelism.zero_stage", "ZeRO stage" },
    { "schedule", "parallelism.pipeline_parallel_schedule", "pipeline schedule" },
    { "chunks", "parallelism.pipeline_parallel_chunks", "chunks of layers per stage" },
    { "sequences", "training.local_batch_size", "sequences per microbatch" },
    { "seq", "training.seq_len", "tokens per sequence" },
    { "recompute", "activation_checkpoint.mode", "recompute" },
};
const int page_setting_count = (int)COUNT_OF(page_settings);

/* Microbatches x (layers + stages x chunks) that are laid out and simulated: half a second of one core. */
enum { MOST_PIPELINE_WORK = 1 << 16, MOST_MICROS = 1 << 16, MOST_CONFIG_BYTES = 1 << 20 };

/* A layout that the page asks for, and its simulated step. */
typedef struct page_layout {
    config c;
    run_target on;
    double limit;
    step_batch batch;
    int chunks;
    str options; /* that the queries set, as `ingot plan` takes them */
    json_t *stages;
    double of_all_ranks;
    capacity cap; /* of the stage that needs most */
    stage_tasks *tasks;
    step_time step;
} page_layout;

/* ---- the config ---------------------------------------------------------------------------------- */
static const char *offered_name(const planning_page *p, int i) {
    return i < p->n_configs ? p->configs[i].name : recipe_name(i - p->n_configs);
}

/* @param text owned */
static err read_offered_config(const planning_page *p, const char *name, char **text, size_t *n) {
    int of_all = p->n_configs + recipe_count(), i = 0;
    if (!name)
        return err_hint(ERR("config: which one is not given"), "config=%s", offered_name(p, 0));
    const char *near = NULL;
    for (; i < of_all && strcmp(offered_name(p, i), name) != 0; i++)
        near = str_nearer(name, offered_name(p, i), near);
    if (i == of_all)
        return err_hint(ERR("config: \"%.60s\" is not on this page", name), "config=%s",
                        near ? near : offered_name(p, 0));
    if (i < p->n_configs) return io_read(p->configs[i].path, MOST_CONFIG_BYTES, text, n);
    *text = strdup(recipe_text(i - p->n_configs));
    *n = strlen(*text);
    return OK;
}

static err set_option(page_layout *l, const char *option, const char *value) {
    TRY(config_set(&l->c, option, value));
    bool spaces = strchr(value, ' ');
    str_add(&l->options, spaces ? " --%s=\"%s\"" : " --%s=%s", option, value);
    return OK;
}

/* The value that the config has for a setting. */
static void add_setting_text(const config *c, const page_setting *s, str *out) {
    for (int k = 0; k < config_option_count(); k++)
        if (!strcmp(config_option_name(k), s->option)) config_option_text(c, k, out);
}

/* A config error states what was expected; the remedy is the value that was there. */
static err apply_setting(page_layout *l, const page_setting *s, const char *value) {
    str before = { 0 };
    add_setting_text(&l->c, s, &before);
    err e = set_option(l, s->option, value);
    if (e && !*err_remedy(e)) e = err_hint(e, "%s=%s", s->query, before.text);
    str_free(&before);
    return e;
}

/* The step's microbatches, whatever batch the config has. */
static err set_micros(page_layout *l, const char *text) {
    int64_t micros;
    char batch[32];
    if (!text) return OK;
    if (!number_parse_int(text, &micros) || micros < 1 || micros > MOST_MICROS)
        return err_hint(
            ERR("micros: expected 1 to %d microbatches per step; got \"%.40s\"", MOST_MICROS, text),
            "micros=16");
    TRY(set_option(l, "training.global_batch_size", "auto"));
    TRY(set_option(l, "training.batch_ramp_start", "0"));
    TRY(set_option(l, "training.batch_schedule", "[]"));
    TRY(train_batch(&l->c, l->on.ranks, &l->batch));
    snprintf(batch, sizeof batch, "%lld",
             (long long)(l->batch.rows * l->batch.data_ranks * micros));
    return set_option(l, "training.global_batch_size", batch);
}

static err check_work(page_layout *l) {
    model_config mc;
    TRY(train_batch(&l->c, l->on.ranks, &l->batch));
    TRY(model_from_config(&l->c, &mc));
    int64_t stages = mesh_size(&l->batch.layout, AX_PP);
    bool interleaved =
        pipeline_schedule_traits[l->c.parallelism.pipeline_parallel_schedule] & PIPE_TAKES_CHUNKS;
    l->chunks = (int)l->c.parallelism.pipeline_parallel_chunks;
    if (l->chunks < 1) l->chunks = interleaved ? 2 : 1;
    if (stages == 1) return OK; /* four microbatches are played, whatever their number */
    int64_t each = mc.layers + stages * l->chunks, most = MAX(1, MOST_PIPELINE_WORK / each);
    if (l->batch.micros <= most) return OK;
    return err_hint(ERR("%lld microbatches through %d layers on %lld pipeline stages take too long "
                        "for a page; it plans up to %lld",
                        (long long)l->batch.micros, mc.layers, (long long)stages, (long long)most),
                    "micros=%lld, or ask \"ingot plan\" on the command line", (long long)most);
}

/* @param name of the config, @param text its YAML */
static err read_layout_query(const planning_page *p, const serve_request *r, const char *text,
                             size_t n, page_layout *l) {
    TRY(config_parse(&l->c, text, n, serve_query(r, "config")));
    for (int i = 0; i < page_setting_count; i++) {
        const char *value = serve_query(r, page_settings[i].query);
        if (value) TRY(apply_setting(l, &page_settings[i], value));
    }
    TRY(plan_target_accelerator(p->machine.gpu, &l->c, &l->on, &l->limit));
    if (p->machine.gpus_given) l->on.ranks = (int)p->machine.gpus;
    TRY(set_micros(l, serve_query(r, "micros")));
    return check_work(l);
}

/* ---- laying out and simulating ------------------------------------------------------------------- */
/* capacity_of, with every stage kept. */
static err lay_out_stages(page_layout *l) {
    int stages = mesh_size(&l->batch.layout, AX_PP);
    l->stages = json_array();
    for (int i = 0; i < stages; i++) {
        capacity c;
        TRY(capacity_of_stage(&l->c, &l->on, i, &c));
        json_array_append_new(l->stages,
                              json_pack("{s:i, s:o, s:o}", "layers", c.layers_of_stage, "total",
                                        io_json_number(c.total), "memory", memory_json(&c)));
        l->of_all_ranks += c.total * (mesh_world(&c.layout) / stages);
        if (i == 0 || c.total > l->cap.total) l->cap = c;
    }
    l->cap.of_all_ranks = l->of_all_ranks;
    return OK;
}

/* ---- the answer ------------------------------------------------------------------------------------ */
static json_t *mesh_json(const mesh *m) {
    json_t *axes = json_object();
    for (int a = AX_COUNT - 1; a >= 0; a--)
        json_object_set_new(axes, mesh_axis_name[a], json_integer(mesh_size(m, (mesh_axis)a)));
    return json_pack("{s:i, s:o}", "ranks", mesh_world(m), "axes", axes);
}

/* Values that the inputs of the page show, whoever set them. */
static json_t *settings_json(const page_layout *l) {
    json_t *all = json_object();
    str text = { 0 };
    for (int i = 0; i < page_setting_count; i++) {
        text.len = 0;
        add_setting_text(&l->c, &page_settings[i], &text);
        json_object_set_new(all, page_settings[i].query, io_json_string(text.text, text.len));
    }
    str_free(&text);
    json_object_set_new(all, "micros", json_integer(l->batch.micros));
    return all;
}

static err advice_json(const page_layout *l, json_t **out) {
    advice *list = NULL;
    int n = 0;
    TRY(plan_advise(&l->c, &l->cap, &list, &n));
    *out = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(*out,
                              json_pack("{s:b, s:s}", "warning", list[i].kind == ADVICE_WARNING,
                                        "text", list[i].text));
    advice_free(list, n);
    return OK;
}

/* Appends the command that prints the same on a terminal. */
static void describe_command(const planning_page *p, const char *name, const page_layout *l,
                             str *out) {
    const char *path = NULL;
    for (int i = 0; i < p->n_configs && !path; i++)
        if (!strcmp(p->configs[i].name, name)) path = p->configs[i].path;
    if (!path) str_add(out, "ingot plan recipe %s > %s.yaml\n", name, name);
    str_add(out, "ingot plan %s%s", path ? path : name, path ? "" : ".yaml");
    str_add(out, " --gpu %s --gpus %d%s", p->machine.gpu->name, mesh_world(&l->batch.layout),
            l->options.text ? l->options.text : "");
}

static void add_timetable(const page_layout *l, str *body) {
    bool staged = mesh_size(&l->batch.layout, AX_PP) > 1;
    double length = stage_tasks_end(l->tasks);
    str_add(body,
            ",\"timetable\":{\"simulated\":true,\"schedule\":\"%s\",\"stages\":%d,\"chunks\":%d,"
            "\"microbatches\":%lld,\"length\":%.6g,\"idle\":%.9g,\"tasks\":",
            staged ? config_choice("parallelism.pipeline_parallel_schedule",
                                   (int)l->c.parallelism.pipeline_parallel_schedule)
                   : "no pipeline",
            mesh_size(&l->batch.layout, AX_PP), l->chunks, (long long)l->batch.micros, length,
            step_bubble(&l->step));
    stage_tasks_json(l->tasks, body);
    str_add(body, "}");
}

static err describe_layout(planning_page *p, const char *name, page_layout *l, str *body) {
    json_t *advised = NULL;
    str command = { 0 };
    TRY(advice_json(l, &advised));
    plan_machine m = p->machine;
    m.gpus = mesh_world(&l->batch.layout);
    m.mfu = l->step.flops_full / m.peak;
    double needed = capacity_needed(&l->on, &l->cap);
    describe_command(p, name, l, &command);
    json_t *doc = json_pack(
        "{s:o, s:o, s:o, s:o, s:i, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "capacity",
        capacity_json(&l->cap), "layout", mesh_json(&l->batch.layout), "settings", settings_json(l),
        "stages", json_incref(l->stages), "fullest", l->cap.stage, "fits", needed <= l->limit,
        "needed", io_json_number(needed), "limit", io_json_number(l->limit), "gpu_memory",
        io_json_number(l->on.gpu->memory), "step", step_time_json(&l->step), "time",
        plan_cost_json(&m, l->cap.tokens * l->cap.flops_full), "advice", advised, "command",
        io_json_string(command.text, command.len));
    io_json_add(body, doc, JSON_COMPACT | JSON_REAL_PRECISION(12));
    body->len--; /* the timetable goes before the last brace */
    add_timetable(l, body);
    str_add(body, "}");
    str_free(&command);
    return OK;
}

static err compute_layout(planning_page *p, const serve_request *r, const char *text, size_t n,
                          str *body) {
    page_layout l = { 0 };
    config_init(&l.c);
    err e = read_layout_query(p, r, text, n, &l);
    if (!e) e = lay_out_stages(&l);
    if (!e) {
        l.tasks = stage_tasks_new(mesh_size(&l.batch.layout, AX_PP), l.chunks,
                                  (int)MIN(l.batch.micros, MOST_MICROS));
        sim_watch watch = { stage_tasks_event, l.tasks };
        e = step_simulate(&l.c, &l.on, l.on.gpu, &watch, &l.step);
    }
    if (!e) e = describe_layout(p, serve_query(r, "config"), &l, body);
    stage_tasks_free(l.tasks);
    json_decref(l.stages);
    str_free(&l.options);
    config_free(&l.c);
    return e;
}

/* ---- the cache --------------------------------------------------------------------------------------- */
static const char *const layout_names[] = { "config", "gpu", "gpus", "dtype", "micros", NULL };

/* Everything that the answer depends on. */
static void write_key(const serve_request *r, const char *text, str *key) {
    for (int i = 0; layout_names[i]; i++) {
        const char *value = serve_query(r, layout_names[i]);
        if (value) str_add(key, "%s=%s&", layout_names[i], value);
    }
    for (int i = 0; i < page_setting_count; i++) {
        const char *value = serve_query(r, page_settings[i].query);
        if (value) str_add(key, "%s=%s&", page_settings[i].query, value);
    }
    str_add(key, "\n%s", text);
}

err page_answer_layout(planning_page *p, const serve_request *r, str *body) {
    char *text = NULL;
    size_t n = 0;
    str key = { 0 };
    TRY(page_check_names(r, layout_names, true));
    TRY(page_choose_machine(p, r));
    if (!p->machine.gpu)
        return err_hint(ERR("gpu: which one is not given"),
                        "gpu=h100; /api/plan/choices lists them");
    TRY(read_offered_config(p, serve_query(r, "config"), &text, &n));
    write_key(r, text, &key);
    err e = OK;
    int i = 0;
    while (i < PAGE_CACHED && (!p->cache[i].key || strcmp(p->cache[i].key, key.text))) i++;
    if (i < PAGE_CACHED) {
        str_add(body, "%s", p->cache[i].body);
    } else {
        p->computed++;
        e = compute_layout(p, r, text, n, body);
        page_cached *slot = &p->cache[p->next % PAGE_CACHED];
        if (!e) {
            p->next++;
            free(slot->key);
            free(slot->body);
            *slot = (page_cached){ strdup(key.text), strdup(body->text) };
        }
    }
    str_free(&key);
    free(text);
    return e;
}
