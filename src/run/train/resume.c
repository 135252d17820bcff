/* Checks which options a continued run may change. A checkpoint keeps the options, the data and the tokenizer it was
 * trained with; the next process compares its own. options.def classes every option:
 *
 *     free     not compared
 *     noted    the change takes effect and is reported, as is a change of the data
 *     fixed    an error, unless checkpoint.allow_changes names the option or its section
 *     content  fixed too; what is compared is what the option stands for: the model, the seed that is
 *              in use, the tokenizer
 *
 * In the manifest:
 *
 *     "run": { "options": { "optimizer.lr": "0.001", ... },          noted and fixed, as used
 *              "sources": [ { "name", "tokens", "hash", "weight", "epochs", "phases" }, ... ],
 *              "phases": [ tokens, ... ],                             of the training data
 *              "sets": [ as sources, ... ] }                          of the validation data, if the run validates
 *
 * The weights, the limits on epochs and the phases are those of the mix file.
 */
#include "resume_internal.h"
#include "setup_internal.h"
#include "trainer_internal.h"

#include <string.h>

#include "io/io.h"

/* ---- what is kept ------------------------------------------------------------------------ */
/* Whether an option is compared by its text. */
static bool is_compared(int option) {
    cfg_resume on_resume = config_option_resume(option);
    return on_resume == CFG_RESUME_NOTED || on_resume == CFG_RESUME_FIXED;
}

static json_t *doubles_json(const double *v, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(list, json_real(v[i]));
    return list;
}

static json_t *sources_json(const run_source *list, int n, int n_phases) {
    json_t *out = json_array();
    for (int i = 0; i < n; i++) {
        const run_source *s = &list[i];
        char hash[17];
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)data_hash(s->data));
        json_t *o = json_pack(
            "{s:o, s:I, s:s, s:f, s:f, s:o}", "name", io_json_string(s->name, strlen(s->name)),
            "tokens", (json_int_t)data_source_info(s->data)->tokens, "hash", hash, "weight",
            s->weight, "epochs", s->epochs, "phases", doubles_json(s->phase_weights, n_phases));
        BUG_IF(!o);
        json_array_append_new(out, o);
    }
    return out;
}

json_t *resume_snapshot(const trainer *t) {
    json_t *options = json_object();
    config used;
    str text = { 0 };
    trainer_used_config(t, &used);
    for (int i = 0; i < config_option_count(); i++) {
        if (!is_compared(i)) continue;
        text.len = 0;
        config_option_text(&used, i, &text);
        json_object_set_new(options, config_option_name(i), json_string(text.text));
    }
    config_free(&used);
    str_free(&text);
    const run_data *d = &t->data;
    json_t *run = json_pack("{s:o, s:o, s:o}", "options", options, "sources",
                            sources_json(d->sources, d->n_sources, d->n_phases), "phases",
                            doubles_json(d->phases, d->n_phases));
    BUG_IF(!run);
    if (t->len.every.validate.length > 0)
        json_object_set_new(run, "sets", sources_json(d->sets, d->n_sets, 0));
    return run;
}

/* ---- comparing --------------------------------------------------------------------------- */
static void note_change(trainer *t, const char *name, const char *was, const char *now) {
    str_add(&t->changes, "%s%s: %s -> %s", t->changes.len ? "\n" : "", name, *was ? was : "(empty)",
            *now ? now : "(empty)");
}

/* Whether the state that was saved is that of other rules: where groups keep theirs, new rates are only noted, and where
 * Muon has second moments their decay is. */
static bool changes_rules(const char *name, const char *was, const char *now) {
    if (!strcmp(name, "optimizer.groups")) return !config_groups_same_rules(was, now);
    if (!strcmp(name, "optimizer.muon_beta2")) return !strcmp(was, "0") != !strcmp(now, "0");
    return !strcmp(name, "optimizer.name");
}

/* A new run that branches has no checkpoint that another folder or --fresh would leave behind.
 * @param loads whether the checkpoint can be continued with the change. */
static err refuse_change(const trainer *t, const char *name, const char *was, const char *now,
                         bool loads) {
    bool branch = t->start.branch;
    const char *anew = branch ? "leave checkpoint.branch_path out"
                              : "choose another run.dir or pass --fresh to start over";
    err e = ERR("%s was trained with %s = %s, but the config has %s",
                branch ? t->cfg->checkpoint.branch_path : t->dir, name, was, now);
    if (loads)
        return err_hint(e,
                        "restore that setting, %s, or allow the change with "
                        "--checkpoint.allow_changes=%s",
                        anew, name);
    return err_hint(e,
                    "restore that setting, or %s; the change cannot be allowed, since the "
                    "checkpoint lacks tensors of this model or has them in other shapes",
                    anew);
}

/* @param option index in the table. */
static err judge_change(trainer *t, int option, const char *was, const char *now) {
    const char *name = config_option_name(option);
    bool rules = changes_rules(name, was, now);
    bool allowed = (config_option_resume(option) == CFG_RESUME_NOTED && !rules) ||
                   config_list_names(t->cfg->checkpoint.allow_changes, option);
    if (!allowed) return refuse_change(t, name, was, now, true);
    note_change(t, name, was, now);
    if (rules) t->new_optimizer = true;
    return OK;
}

static int option_named(const char *name) {
    for (int i = 0; i < config_option_count(); i++)
        if (!strcmp(config_option_name(i), name)) return i;
    BUG("not an option");
}

/* Whether a checkpoint of `saved` holds every tensor of model c, which may leave some of them out. */
static bool holds_tensors_of(const model *saved, const model_config *c) {
    model *m;
    err e = model_new(c, &(model_layout){ .dt = DT_F32 }, &m);
    bool all = !e;
    for (int i = 0; all && i < model_params(m); i++) {
        const model_param *p = model_param_at(m, i);
        int j = model_find_param(saved, p->name);
        all = j >= 0 && !memcmp(p->dim, model_param_at(saved, j)->dim, sizeof p->dim);
    }
    err_free(e);
    model_free(m);
    return all;
}

/* Where the new model does not fit, a fact that does not fit alone either is refused, whatever may change. */
static err compare_facts(trainer *t, const model *from) {
    const model_config *saved = &t->start.saved;
    bool fits = holds_tensors_of(from, &t->mc);
    char was[64], now[64];
    for (int i = -1; (i = model_config_diff(&t->mc, saved, i + 1)) >= 0;) {
        const model_fact *f = model_fact_at(i);
        model_config alone = *saved;
        model_fact_copy(f, &t->mc, &alone);
        model_fact_shown(f, saved, was, sizeof was);
        model_fact_shown(f, &t->mc, now, sizeof now);
        if (!fits && !holds_tensors_of(from, &alone))
            return refuse_change(t, f->name, was, now, false);
        TRY(judge_change(t, option_named(f->name), was, now));
    }
    return OK;
}

static err compare_models(trainer *t) {
    model *from;
    if (model_config_diff(&t->mc, &t->start.saved, 0) < 0) return OK;
    TRY(model_new(&t->start.saved, &(model_layout){ .dt = DT_F32 }, &from));
    err e = compare_facts(t, from);
    model_free(from);
    return e;
}

static err compare_seeds(trainer *t) {
    char was[32], now[32];
    uint64_t seed = (uint64_t)t->cfg->training.seed;
    if (t->state.seed == seed) return OK;
    snprintf(was, sizeof was, "%llu", (unsigned long long)t->state.seed);
    snprintf(now, sizeof now, "%llu", (unsigned long long)seed);
    TRY(judge_change(t, option_named("training.seed"), was, now));
    t->state.seed = seed;
    return OK;
}

err resume_compare_model(trainer *t) {
    TRY(config_list_check(t->cfg->checkpoint.allow_changes, "checkpoint.allow_changes"));
    TRY(compare_models(t));
    return compare_seeds(t);
}

/* ---- options ----------------------------------------------------------------------------- */
/* The saved text is read as an option and printed again: versions may write one value differently. */
static err compare_option(trainer *t, config *saved, int i, const char *text, const char *now) {
    err unreadable = config_set(saved, config_option_name(i), text);
    str was = { 0 };
    if (unreadable) /* a value of another version: compared as it is written */
        str_add(&was, "%s", text);
    else
        config_option_text(saved, i, &was);
    err_free(unreadable);
    err e = strcmp(was.text, now) ? judge_change(t, i, was.text, now) : OK;
    str_free(&was);
    return e;
}

static err compare_options(trainer *t) {
    const json_t *was = json_object_get(t->start.run, "options");
    const json_t *now = json_object_get(t->run, "options");
    err e = OK;
    config saved;
    config_init(&saved);
    for (int i = 0; i < config_option_count() && !e; i++) {
        const char *name = config_option_name(i);
        const char *text = json_string_value(json_object_get(was, name));
        str before = { 0 };
        if (!text && is_compared(i) && config_is_set(t->cfg, name)) {
            /* an option that the version which saved the run did not have: the run had its default */
            config_option_text(&saved, i, &before);
            text = before.text;
        }
        if (text && is_compared(i) && config_has_effect(t->cfg, i))
            e = compare_option(t, &saved, i, text, json_string_value(json_object_get(now, name)));
        str_free(&before);
    }
    config_free(&saved);
    return e;
}

/* ---- the data ---------------------------------------------------------------------------- */
static err compare_tokenizers(trainer *t) {
    uint64_t now = datasets_tokenizer_hash(t), was = t->state.tokenizer;
    char a[32], b[32];
    if (!was || !now || was == now) return OK;
    snprintf(a, sizeof a, "a tokenizer %016llx", (unsigned long long)was);
    snprintf(b, sizeof b, "%016llx", (unsigned long long)now);
    return judge_change(t, option_named("data.tokenizer"), a, b);
}

static void describe_numbers(const json_t *list, str *out) {
    size_t i;
    const json_t *v;
    json_array_foreach(list, i, v) str_add(out, "%s%.10g", i ? " " : "", json_number_value(v));
}

/* @param source NULL: there is none. */
static void describe_source(const json_t *source, str *out) {
    const char *name = json_string_value(json_object_get(source, "name"));
    const char *hash = json_string_value(json_object_get(source, "hash"));
    double weight = json_number_value(json_object_get(source, "weight"));
    double epochs = json_number_value(json_object_get(source, "epochs"));
    const json_t *phases = json_object_get(source, "phases");
    if (!source) {
        str_add(out, "nothing");
        return;
    }
    str_add(out, "%s (%lld tokens, %s", name ? name : "?",
            (long long)json_integer_value(json_object_get(source, "tokens")), hash ? hash : "?");
    if (weight > 0) str_add(out, ", weight %.10g", weight);
    if (epochs > 0) str_add(out, ", at most %.10g epochs", epochs);
    if (json_array_size(phases)) str_add(out, ", weights in later phases ");
    describe_numbers(phases, out);
    str_add(out, ")");
}

/* Names tell the sources of a mix apart; a single source has its path as name, which may move. Keys that earlier
 * versions did not save are not compared. */
static bool is_same_source(const json_t *a, const json_t *b, bool is_mix) {
    static const char *const keys[] = { "hash", "weight", "epochs", "phases" };
    if (!a || !b) return false;
    if (is_mix && !json_equal(json_object_get(a, "name"), json_object_get(b, "name"))) return false;
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        const json_t *was = json_object_get(a, keys[i]);
        if (was && !json_equal(was, json_object_get(b, keys[i]))) return false;
    }
    return true;
}

/* @return whether any source has changed. */
static bool compare_sources(trainer *t, const char *what, const json_t *was, const json_t *now) {
    size_t n = MAX(json_array_size(was), json_array_size(now));
    bool changed = false;
    for (size_t i = 0; i < n; i++) {
        const json_t *a = json_array_get(was, i), *b = json_array_get(now, i);
        if (is_same_source(a, b, n > 1)) continue;
        str x = { 0 }, y = { 0 };
        describe_source(a, &x);
        describe_source(b, &y);
        note_change(t, what, x.text, y.text);
        changed = true;
        str_free(&x);
        str_free(&y);
    }
    return changed;
}

/* @return whether the phases of the mix begin elsewhere. */
static bool compare_phases(trainer *t, const json_t *was, const json_t *now) {
    if (!was || json_equal(was, now)) return false;
    str x = { 0 }, y = { 0 };
    describe_numbers(was, &x);
    describe_numbers(now, &y);
    note_change(t, "tokens at which phases of the mix begin", x.len ? x.text : "",
                y.len ? y.text : "");
    str_free(&x);
    str_free(&y);
    return true;
}

static void compare_data(trainer *t, const json_t *was, const json_t *now) {
    bool sources = compare_sources(t, "training data", json_object_get(was, "sources"),
                                   json_object_get(now, "sources"));
    bool phases = compare_phases(t, json_object_get(was, "phases"), json_object_get(now, "phases"));
    if (sources || phases)
        str_add(&t->changes, "\nthe new data continues at sequence %lld, where the old data was",
                (long long)t->state.windows);
    /* Runs without validation, and earlier versions, keep no sets. */
    const json_t *sets_was = json_object_get(was, "sets"), *sets_now = json_object_get(now, "sets");
    if (sets_was && sets_now) compare_sources(t, "validation data", sets_was, sets_now);
}

err resume_compare(trainer *t) {
    TRY(compare_tokenizers(t));
    if (!t->start.run) {
        note_change(t, "options", "not kept by the version that saved this run", "not compared");
        return OK;
    }
    TRY(compare_options(t));
    compare_data(t, t->start.run, t->run);
    return OK;
}
