/* The file of a sweep: the options of all runs, and of each: a grid, random draws, a list. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/sweep.h"
#include "config/config.h"
#include "io/io.h"
#include "planning/planning.h"

extern const embedded_file sweep_files[]; /* configs/sweeps/ */

/* ---- the file ---------------------------------------------------------------------------------- */
void sweep_free(sweep *s) {
    for (int i = 0; i < s->n; i++) {
        free(s->run[i].name);
        json_decref(s->run[i].options);
        json_decref(s->run[i].first);
    }
    free(s->run);
    free(s->name);
    free(s->config);
    json_decref(s->common);
    json_decref(s->doc);
}

void sweep_option_text(str *out, const json_t *v) {
    if (json_is_string(v)) {
        str_add(out, "%s", json_string_value(v));
        return;
    }
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    str_add(out, "%s", text ? text : "");
    free(text);
}

/* Whether an option's value is a list, as that of optimizer.groups. */
static bool takes_list(const char *name) {
    for (int i = 0; i < config_option_count(); i++)
        if (!strcmp(config_option_name(i), name)) return config_option_describe(i).is_list;
    return false;
}

/* Every option exists, and takes its value. */
err sweep_check_options(const sweep *s, const json_t *options) {
    const char *key;
    json_t *v;
    config c;
    err e = OK;
    config_init(&c);
    json_object_foreach((json_t *)(uintptr_t)options, key, v) {
        str text = { 0 };
        if (json_is_object(v) || (json_is_array(v) && !takes_list(key)))
            e = err_hint(ERR("%s: %s: expected one value", s->name, key),
                         "write options as training.steps: 100; lists belong under grid");
        sweep_option_text(&text, v);
        if (!e) e = config_set(&c, key, text.text);
        str_free(&text);
        if (e) break;
    }
    config_free(&c);
    return e;
}

/* "lr=0.001 seed=2": the last words of the names of options, as a folder's name. */
static char *name_of_options(const json_t *options) {
    const char *key;
    json_t *v;
    str name = { 0 };
    json_object_foreach((json_t *)(uintptr_t)options, key, v) {
        const char *dot = strrchr(key, '.');
        str_add(&name, "%s%s=", name.len ? "," : "", dot ? dot + 1 : key);
        sweep_option_text(&name, v);
    }
    if (!name.len) str_add(&name, "run");
    for (char *at = name.text; *at; at++)
        if (*at == '/' || *at == ' ') *at = '_';
    return name.text;
}

static err add_sweep_run(sweep *s, const char *name, json_t *options, json_t *first) {
    sweep_run *r = &LIST_ADD(s->run, s->n, s->cap);
    *r = (sweep_run){ name ? strdup(name) : name_of_options(options), options, first };
    if (strchr(r->name, '/') || r->name[0] == '.' || !*r->name)
        return err_hint(ERR("%s: \"%s\" cannot be the name of a folder", s->name, r->name),
                        "give the run a name without slashes");
    for (int i = 0; i < s->n - 1; i++)
        if (!strcmp(s->run[i].name, r->name))
            return err_hint(ERR("%s: two runs are called \"%s\"", s->name, r->name),
                            "give one of them another name");
    TRY(sweep_check_options(s, options));
    return first ? sweep_check_options(s, first) : OK;
}

/* All combinations: the last option varies fastest. */
static err add_grid(sweep *s, const json_t *grid) {
    enum { MOST_RUNS = 1000 };
    size_t total = 1;
    const char *key;
    json_t *values;
    json_object_foreach((json_t *)(uintptr_t)grid, key, values) {
        size_t n = json_array_size(values);
        if (!n || n > MOST_RUNS || (total *= n) > MOST_RUNS)
            return err_hint(
                ERR("%s: grid: %s: expected a list of values, and at most %d runs in all", s->name,
                    key, MOST_RUNS),
                "grid: { optimizer.lr: [1e-3, 3e-3] }");
    }
    for (size_t i = 0; i < total; i++) {
        json_t *options = json_object();
        size_t left = i, each = total;
        json_object_foreach((json_t *)(uintptr_t)grid, key, values) {
            each /= json_array_size(values);
            json_object_set(options, key, json_array_get(values, left / each));
            left %= each;
        }
        TRY(add_sweep_run(s, NULL, options, NULL));
    }
    return OK;
}

/* ---- random search ----------------------------------------------------------------------------- */
/* A value for one option: one of a list, or a number between min and max, on a linear or a logarithmic scale, to three digits.
 * @param u uniform in [0, 1) @return owned; NULL: it is not described so */
static json_t *draw_value(const json_t *from, double u) {
    if (json_is_array(from) && json_array_size(from))
        return json_deep_copy(json_array_get(from, (size_t)(u * (double)json_array_size(from))));
    const json_t *lo = json_object_get(from, "min"), *hi = json_object_get(from, "max");
    const char *scale = json_string_value(json_object_get(from, "scale"));
    double a = json_number_value(lo), b = json_number_value(hi);
    bool is_log = scale && !strcmp(scale, "log");
    bool known = is_log || !scale || !strcmp(scale, "linear");
    if (!json_is_number(lo) || !json_is_number(hi) || !(a < b) || !known || (is_log && a <= 0))
        return NULL;
    if (json_is_integer(lo) && json_is_integer(hi) && !is_log)
        return json_integer((json_int_t)floor(a + u * (b - a + 1)));
    char text[32];
    snprintf(text, sizeof text, "%.3g", is_log ? a * pow(b / a, u) : a + u * (b - a));
    double v = strtod(text, NULL);
    return json_is_integer(lo) && json_is_integer(hi) ? json_integer((json_int_t)llround(v))
                                                      : json_real(v);
}

/* random: { runs: 16, seed: 1, optimizer.lr: { min: 1e-4, max: 1e-2, scale: log }, model.layers: [2, 4] }. Every option has random
 * numbers of its own, so that another option or another number of runs leaves the first values as they were. */
static err add_random(sweep *s, const json_t *random) {
    enum { MOST_RUNS = 1000 };
    json_int_t runs = json_integer_value(json_object_get(random, "runs"));
    uint64_t seed = (uint64_t)json_integer_value(json_object_get(random, "seed"));
    if (runs < 1 || runs > MOST_RUNS)
        return err_hint(ERR("%s: random: expected runs, from 1 to %d", s->name, MOST_RUNS),
                        "random: { runs: 16, optimizer.lr: { min: 1e-4, max: 1e-2, scale: log } }");
    for (json_int_t i = 0; i < runs; i++) {
        json_t *options = json_object(), *from;
        const char *key;
        str name = { 0 };
        json_object_foreach((json_t *)(uintptr_t)random, key, from) {
            if (!strcmp(key, "runs") || !strcmp(key, "seed")) continue;
            double u = (double)rng_uniform(rng_key_of(seed, hash_str(key)), (uint64_t)i);
            json_t *v = draw_value(from, u);
            if (!v) {
                json_decref(options);
                return err_hint(
                    ERR("%s: random: %s: expected a list, or min and max with min < max", s->name,
                        key),
                    "write [2, 4, 8], or { min: 1e-4, max: 1e-2, scale: log }; scale is linear or log");
            }
            json_object_set_new(options, key, v);
        }
        char *drawn = name_of_options(options);
        str_add(&name, "%02d,%s", (int)i + 1, drawn);
        err e = add_sweep_run(s, name.text, options, NULL);
        free(drawn);
        str_free(&name);
        TRY(e);
    }
    return OK;
}

/* halving: { steps: [100, 200, 400], keep: 0.5 } */
static err read_halving(sweep *s, const json_t *halving) {
    const json_t *steps = json_object_get(halving, "steps"),
                 *keep = json_object_get(halving, "keep");
    size_t n = json_array_size(steps);
    s->keep = json_is_number(keep) ? json_number_value(keep) : 0.5;
    bool fine = n > 0 && n <= SWEEP_RUNGS && s->keep > 0 && s->keep < 1;
    for (size_t i = 0; i < n && fine; i++) {
        s->rung[i] = json_integer_value(json_array_get(steps, i));
        fine = s->rung[i] > (i ? s->rung[i - 1] : 0);
    }
    s->rungs = (int)n;
    if (fine) return OK;
    return err_hint(
        ERR("%s: halving: expected steps, a list of rising numbers, and keep, between 0 and 1",
            s->name),
        "halving: { steps: [100, 200, 400], keep: 0.5 }");
}

static err add_listed_runs(sweep *s, const json_t *list) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *o = json_array_get(list, i);
        json_t *options = json_is_object(o) ? json_copy((json_t *)(uintptr_t)o) : json_object();
        json_t *first = json_incref(json_object_get(options, "first"));
        char *name = json_is_string(json_object_get(options, "name"))
                         ? strdup(json_string_value(json_object_get(options, "name")))
                         : NULL;
        json_object_del(options, "name");
        json_object_del(options, "first");
        err e = add_sweep_run(s, name, options, first);
        free(name);
        TRY(e);
    }
    return OK;
}

static err check_keys(const sweep *s) {
    static const char *const known[] = { "about",  "config",  "options", "grid",
                                         "random", "halving", "runs",    "equal_loss" };
    const char *key;
    json_t *v;
    json_object_foreach(s->doc, key, v) {
        size_t i = 0;
        while (i < COUNT_OF(known) && strcmp(known[i], key) != 0) i++;
        if (i == COUNT_OF(known))
            return err_hint(
                ERR("%s: unknown key \"%s\"", s->name, key),
                "a sweep has about, config, options, grid, random, halving, runs and equal_loss");
    }
    return OK;
}

static err read_sweep(const char *text, size_t len, const char *folder, sweep *s) {
    TRY(yaml_to_json(text, len, s->name, &s->doc));
    TRY(check_keys(s));
    const char *base = json_string_value(json_object_get(s->doc, "config"));
    if (base) s->config = base[0] == '/' ? strdup(base) : io_join(folder, base);
    const json_t *equal = json_object_get(s->doc, "equal_loss");
    s->equal_loss = json_is_number(equal) ? json_number_value(equal) : NAN;
    s->common = json_is_object(json_object_get(s->doc, "options"))
                    ? json_copy(json_object_get(s->doc, "options"))
                    : json_object();
    TRY(sweep_check_options(s, s->common));
    if (json_object_get(s->doc, "grid")) TRY(add_grid(s, json_object_get(s->doc, "grid")));
    if (json_object_get(s->doc, "random")) TRY(add_random(s, json_object_get(s->doc, "random")));
    if (json_object_get(s->doc, "halving"))
        TRY(read_halving(s, json_object_get(s->doc, "halving")));
    TRY(add_listed_runs(s, json_object_get(s->doc, "runs")));
    if (s->n) return OK;
    return err_hint(ERR("%s: no runs", s->name),
                    "give a grid: { optimizer.lr: [1e-3, 3e-3] }, or runs: a list of options");
}

static err no_such_sweep(const char *name) {
    const char *near = NULL;
    for (const embedded_file *f = sweep_files; f->name; f++) near = str_nearer(name, f->name, near);
    err e = ERR_USAGE("no sweep is called \"%.60s\", and a file of that name does not exist", name);
    if (near) return err_hint(e, "\"%s\"; \"ingot sweep\" lists them all", near);
    return err_hint(e, "\"ingot sweep\" lists them all");
}

err sweep_open(const char *what, sweep *s) {
    enum { MOST_BYTES = 1 << 20 };
    for (const embedded_file *f = sweep_files; f->name; f++)
        if (!strcmp(f->name, what)) {
            s->name = strdup(what);
            return read_sweep(f->text, strlen(f->text), ".", s);
        }
    if (!io_exists(what)) return no_such_sweep(what);
    char *text = NULL, *folder = strdup(what), *slash = strrchr(folder, '/');
    size_t len;
    const char *base = slash ? what + (slash - folder) + 1 : what;
    s->name = strndup(base, strcspn(base, "."));
    if (slash) *slash = '\0';
    err e = io_read(what, MOST_BYTES, &text, &len);
    if (!e) e = read_sweep(text, len, slash ? folder : ".", s);
    free(text);
    free(folder);
    return e;
}

void sweep_list(void) {
    for (const embedded_file *f = sweep_files; f->name; f++) {
        json_t *doc = NULL;
        err e = yaml_to_json(f->text, strlen(f->text), f->name, &doc);
        const char *about = json_string_value(json_object_get(doc, "about"));
        printf("%-12s %s\n", f->name, about ? about : "");
        err_free(e);
        json_decref(doc);
    }
}
