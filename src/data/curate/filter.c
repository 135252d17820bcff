/* The filter: the tables of rules, settings and counters, building a filter from options, and
 * running a document through its steps. The rules themselves are in filter_*.c, one file per
 * rule set or kind. */
#include "curate/filter_internal.h"

#include <stdlib.h>
#include <string.h>

#define RULE_ROW(id, name, limit, direction, what, of) { name, limit, FILTER_##direction, of },
const filter_rule filter_rules[FILTER_RULE_COUNT] = { FILTER_RULES(RULE_ROW) };
#define RULE_NAME(id, name, ...) name,
static const char *const rule_names[] = { FILTER_RULES(RULE_NAME) };
#define COUNTER_NAME(id, name) name,
static const char *const counter_names[] = { FILTER_COUNTERS(COUNTER_NAME) };
#define SETTING_ROW(id, name, value, help, of) { name, value, FILTER_MOST, of },
static const filter_rule settings[] = { FILTER_SETTINGS(SETTING_ROW) };
#define PII_NAME(id, name, mask) name,
static const char *const pii_names[] = { PII_KINDS(PII_NAME) };
#define PII_MASK(id, name, mask) mask,
static const char *const pii_masks[] = { PII_KINDS(PII_MASK) };

static const struct {
    const char *name;
    filter_step step;
    filter_step datatrove; /* but for --words space; NULL: the same, or the step itself asks */
} sets[] = {
    { "gopher-repetition", filter_gopher_repetition, datatrove_gopher_repetition },
    { "gopher-quality", filter_gopher_quality, datatrove_gopher_quality },
    { "c4", filter_c4, NULL },
    { "c4-no-punct", filter_c4_no_punct, NULL },
    { "c4-paper", filter_c4_paper, NULL },
    { "fineweb", filter_fineweb, datatrove_fineweb },
    { "basic", filter_basic, NULL },
};

filter_options filter_defaults(void) {
    filter_options o = { 0 };
    for (int i = 0; i < FILTER_RULE_COUNT; i++) o.limit[i] = filter_rules[i].limit;
    for (int i = 0; i < FILTER_SETTING_COUNT; i++) o.setting[i] = settings[i].limit;
    memcpy(o.mask, pii_masks, sizeof o.mask);
    return o;
}

/* ---- lists of names in options --------------------------------------------------------------- */

/* Calls take() for each name in a comma-separated list. */
static err for_names(const char *list, err (*take)(filter *f, const char *name), filter *f) {
    arena *a = arena_new();
    err e = OK;
    char *copy = arena_strdup(a, list), *rest = NULL;
    for (char *name = strtok_r(copy, ", ", &rest); name && !e; name = strtok_r(NULL, ", ", &rest))
        e = take(f, name);
    arena_free(a);
    return e;
}

static err hint_near(err e, const char *near, const char *all) {
    if (near) return err_hint(e, "did you mean %s?", near);
    return err_hint(e, "%s", all);
}

static bool is_listed(const char *list, const char *name, size_t n) {
    for (const char *at = list; at && *at; at += strcspn(at, ", "), at += strspn(at, ", "))
        if (strcspn(at, ", ") == n && strncmp(at, name, n) == 0) return true;
    return false;
}

bool filter_splits_words(const filter_options *o) {
    const char *names = o->sets ? o->sets : FILTER_DEFAULT_SETS;
    for (size_t i = 0; i < COUNT_OF(sets); i++)
        if (sets[i].step != filter_basic && is_listed(names, sets[i].name, strlen(sets[i].name)))
            return true;
    return false;
}

static bool has_step(const filter *f, filter_step step) {
    for (int i = 0; i < f->n_steps; i++)
        if (f->steps[i] == step) return true;
    return false;
}

static err take_set(filter *f, const char *name) {
    const char *near = NULL;
    size_t i = 0;
    for (; i < COUNT_OF(sets) && strcmp(sets[i].name, name) != 0; i++)
        near = str_nearer(name, sets[i].name, near);
    if (i == COUNT_OF(sets))
        return hint_near(ERR_USAGE("--rules: unknown rule set \"%s\"", name), near,
                         "the rule sets are " FILTER_ALL_SETS);
    filter_step step = f->datatrove && sets[i].datatrove ? sets[i].datatrove : sets[i].step;
    if (has_step(f, step)) return ERR_USAGE("--rules: %s is listed twice", name);
    f->steps[f->n_steps++] = step;
    if (has_step(f, filter_c4) + has_step(f, filter_c4_no_punct) + has_step(f, filter_c4_paper) > 1)
        return ERR_USAGE("--rules: only one of c4, c4-no-punct and c4-paper can be used");
    return OK;
}

static err take_pii(filter *f, const char *name) {
    const char *near = NULL;
    for (int i = 0; i < PII_KIND_COUNT; i++) {
        if (strcmp(pii_names[i], name) == 0) return f->pii[i] = true, OK;
        near = str_nearer(name, pii_names[i], near);
    }
    return hint_near(ERR_USAGE("--pii: unknown kind of personal data \"%s\"", name), near,
                     "the kinds are " PII_ALL_KINDS);
}

/* Adds the index of a label to a list. */
static err take_label(const char *option, const language_model *m, const char *name, int **list,
                      int *n) {
    const char *near = NULL;
    for (int i = 0; i < language_count(m); i++) {
        near = str_nearer(name, language_name(m, i), near);
        if (strcmp(language_name(m, i), name) != 0) continue;
        *list = mem_grow(*list, (size_t)(*n + 1) * sizeof **list);
        (*list)[(*n)++] = i;
        return OK;
    }
    return hint_near(ERR_USAGE("--%s: the model has no label \"%s\"", option, name), near,
                     "labels are written as in the model, without __label__");
}

static err take_language(filter *f, const char *name) {
    return take_label("language", f->model, name, &f->languages, &f->n_languages);
}
/* A label is kept by every classifier that has it. */
static err take_kept(filter *f, const char *name) {
    int found = 0;
    for (int k = 0; k < f->n_quality; k++) {
        classifier *c = &f->quality[k];
        bool only = f->n_quality == 1;
        err e = take_label("keep", c->model, name, &c->kept, &c->n_kept);
        if (e && only) return e;
        found += !e;
        err_free(e);
    }
    return found ? OK : ERR_USAGE("--keep: no model of --quality has a label \"%s\"", name);
}

/* FILE, or NAME=FILE. */
static err take_classifier(filter *f, const char *given) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    size_t n = strspn(given, letters);
    bool named = n > 0 && given[n] == '=';
    classifier *c = &f->quality[f->n_quality];
    if (f->n_quality == CLASSIFIERS_MOST)
        return ERR_USAGE("--quality: more than %d models", CLASSIFIERS_MOST);
    if (named && n >= sizeof c->name)
        return ERR_USAGE("--quality: %.*s is too long a name", (int)n, given);
    snprintf(c->name, sizeof c->name, "%.*s", named ? (int)n : 7, named ? given : "quality");
    for (int i = 0; i < f->n_quality; i++)
        if (strcmp(f->quality[i].name, c->name) == 0)
            return err_hint(ERR_USAGE("--quality: two models are called %s", c->name),
                            "name them: --quality educational=a.bin,toxic=b.bin");
    TRY(language_open(named ? given + n + 1 : given, &c->model));
    f->n_quality++;
    uint64_t hash = language_hash(c->model) ^ hash_str(c->name);
    f->hash = hash_bytes(&hash, sizeof hash, f->hash);
    return OK;
}

/* ---- construction ---------------------------------------------------------------------------- */

static err open_lists(filter *f) {
    const filter_options *o = &f->o;
    const struct {
        const char *path;
        phrase_list **to;
    } lists[] = { { o->bad_words, &f->bad_words },
                  { o->url_domains, &f->url_domains },
                  { o->url_words, &f->url_words },
                  { o->url_parts, &f->url_parts } };
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        if (!lists[i].path) continue;
        TRY(phrase_list_read(lists[i].path, lists[i].to));
        uint64_t hash = phrase_list_hash(*lists[i].to) + i;
        f->hash = hash_bytes(&hash, sizeof hash, f->hash);
    }
    return OK;
}

/* The model decides which documents are kept if one or a language is given, and by which rules documents are split into
 * words, if --words leaves that to it. */
static err open_language(filter *f) {
    const filter_options *o = &f->o;
    bool words = filter_splits_words(o) && (!o->words || strcmp(o->words, "auto") == 0);
    f->by_language = o->languages || o->language_model;
    if (!f->by_language && !words && !(o->annotate && !o->quality)) return OK;
    if (o->language_model)
        TRY(language_open(o->language_model, &f->model));
    else
        TRY(language_builtin(&f->model));
    uint64_t hash = language_hash(f->model);
    f->hash = hash_bytes(&hash, sizeof hash, f->hash);
    if (o->languages) TRY(for_names(o->languages, take_language, f));
    return OK;
}

static err open_quality(filter *f) {
    const filter_options *o = &f->o;
    if (o->keep && !o->quality)
        return err_hint(ERR_USAGE("--keep: needs --quality"),
                        "give a fastText model, such as one of `ingot data quality train`");
    if (!o->quality) return OK;
    if (!o->keep && !o->annotate)
        return err_hint(ERR_USAGE("--quality: needs --keep or --annotate"),
                        "--keep names the labels of documents to keep");
    if (strchr(o->quality, '='))
        TRY(for_names(o->quality, take_classifier, f));
    else
        TRY(take_classifier(f, o->quality)); /* a path may have spaces */
    return o->keep ? for_names(o->keep, take_kept, f) : OK;
}

static void hash_options(filter *f) {
    const filter_options *o = &f->o;
    f->hash = hash_bytes(o->limit, sizeof o->limit, 1);
    f->hash = hash_bytes(o->setting, sizeof o->setting, f->hash + o->annotate);
    const char *texts[] = { o->sets, o->languages, o->pii, o->keep, o->where };
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        if (texts[i]) f->hash = hash_bytes(texts[i], strlen(texts[i]), f->hash + i);
    for (int i = 0; i < PII_KIND_COUNT; i++)
        if (o->mask[i]) f->hash = hash_bytes(o->mask[i], strlen(o->mask[i]), f->hash + (uint64_t)i);
}

/* ---- options without an effect --------------------------------------------------------------- */
static bool is_used(const filter_options *o, const char *by) {
    const struct {
        const char *name, *given;
    } options[] = {
        { "--url-domains", o->url_domains },
        { "--url-words", o->url_words },
        { "--url-parts", o->url_parts },
        { "--language", o->languages },
        { "--where", o->where },
        { "--language-model", o->language_model },
        { "--keep", o->keep },
        { "--bad-words", o->bad_words },
    };
    const char *names = o->sets ? o->sets : FILTER_DEFAULT_SETS;
    for (size_t n; *by; by += n, by += strspn(by, ", ")) {
        n = strcspn(by, ", ");
        for (size_t i = 0; i < COUNT_OF(options); i++)
            if (options[i].given && is_listed(options[i].name, by, n)) return true;
        if (is_listed(names, by, n)) return true;
    }
    return false;
}

/* Refuses a number that is not the default and that nothing compares with. */
static err refuse_unused(const filter_options *o, const filter_rule *r, double value) {
    if (value == r->limit || is_used(o, r->of)) return OK;
    return err_hint(ERR_USAGE("--%s has no effect: it is a number of %s", r->name, r->of),
                    *r->of == '-' ? "give that option too, or leave this one out"
                                  : "name the rule set in --rules, or leave the option out");
}

err filter_check(const filter_options *o) {
    if (o->words && !filter_splits_words(o))
        return err_hint(ERR_USAGE("--words has no effect: no rule set splits text into words"),
                        "name a rule set other than basic in --rules, or leave the option out");
    for (int i = 0; i < FILTER_RULE_COUNT; i++)
        TRY(refuse_unused(o, &filter_rules[i], o->limit[i]));
    for (int i = 0; i < FILTER_SETTING_COUNT; i++)
        TRY(refuse_unused(o, &settings[i], o->setting[i]));
    for (int i = 0; i < PII_KIND_COUNT; i++)
        if (strcmp(o->mask[i], pii_masks[i]) != 0 &&
            !is_listed(o->pii, pii_names[i], strlen(pii_names[i])))
            return err_hint(
                ERR_USAGE("--mask-%s has no effect: %s is not masked", pii_names[i], pii_names[i]),
                "add --pii %s, or leave the option out", pii_names[i]);
    return OK;
}

static err choose_steps(filter *f) {
    const filter_options *o = &f->o;
    if (o->where) TRY(for_names(o->where, filter_take_condition, f));
    if (o->where) f->steps[f->n_steps++] = filter_where;
    if (f->url_domains || f->url_words || f->url_parts) f->steps[f->n_steps++] = filter_url;
    if (f->by_language || (o->annotate && f->model)) f->steps[f->n_steps++] = filter_language;
    const char *names = o->sets ? o->sets : FILTER_DEFAULT_SETS;
    if (!*names)
        return err_hint(ERR_USAGE("--rules: no rule set is named"), "--rules none uses none");
    if (strcmp(names, "none") != 0) TRY(for_names(names, take_set, f));
    if (f->bad_words) f->steps[f->n_steps++] = filter_bad_words;
    if (f->n_quality) f->steps[f->n_steps++] = filter_quality;
    if (o->pii) TRY(for_names(o->pii, take_pii, f));
    if (o->pii) f->steps[f->n_steps++] = filter_pii;
    return OK;
}

err filter_new(const filter_options *o, int workers, filter **out) {
    filter *f = mem_alloc(sizeof *f);
    f->o = *o;
    err e = OK;
    hash_options(f);
    TRY_CLEAN(open_lists(f));
    TRY_CLEAN(open_language(f));
    TRY_CLEAN(filter_open_words(f));
    TRY_CLEAN(open_quality(f));
    TRY_CLEAN(choose_steps(f));
    f->n_workers = workers;
    f->workers = mem_alloc((size_t)workers * sizeof *f->workers);
    for (int i = 0; i < workers && f->model; i++)
        f->workers[i].language = language_scratch_new(f->model);
    for (int i = 0; i < workers; i++)
        for (int k = 0; k < f->n_quality; k++)
            f->workers[i].quality[k] = language_scratch_new(f->quality[k].model);
    *out = f;
    return OK;
cleanup:
    filter_free(f);
    *out = NULL;
    return e;
}

static void worker_free(filter_worker *w) {
    scan_free(&w->scan);
    seen_free(&w->seen);
    free(w->runs);
    str_free(&w->edited);
    str_free(&w->masked);
    str_free(&w->folded);
    str_free(&w->members);
    language_scratch_free(w->language);
    for (int k = 0; k < CLASSIFIERS_MOST; k++) language_scratch_free(w->quality[k]);
    datatrove_words_free(w->datatrove);
}

void filter_free(filter *f) {
    if (!f) return;
    for (int i = 0; i < f->n_workers; i++) worker_free(&f->workers[i]);
    free(f->workers);
    free(f->languages);
    phrase_list_free(f->bad_words);
    phrase_list_free(f->url_domains);
    phrase_list_free(f->url_words);
    phrase_list_free(f->url_parts);
    language_close(f->model);
    for (int k = 0; k < f->n_quality; k++) {
        language_close(f->quality[k].model);
        free(f->quality[k].kept);
    }
    filter_conditions_free(f);
    filter_words_free(f);
    free(f);
}

static size_t quality_bytes(const filter *f) {
    size_t sum = 0;
    for (int k = 0; k < f->n_quality; k++) sum += language_bytes(f->quality[k].model);
    return sum;
}

size_t filter_bytes(const filter *f) {
    const phrase_list *lists[] = { f->bad_words, f->url_domains, f->url_words, f->url_parts };
    size_t bytes = sizeof *f + (f->model ? language_bytes(f->model) : 0) + quality_bytes(f);
    for (size_t i = 0; i < COUNT_OF(lists); i++)
        if (lists[i]) bytes += phrase_list_bytes(lists[i]);
    return bytes;
}

/* ---- judging --------------------------------------------------------------------------------- */

const scan *judgment_scan(judgment *j) {
    if (!j->w->scanned) scan_text(&j->w->scan, j->v->text);
    j->w->scanned = true;
    return &j->w->scan;
}

bool judgment_fails(judgment *j, int rule, double value) {
    double limit = j->f->o.limit[rule];
    bool fails = filter_rules[rule].direction == FILTER_LEAST ? value < limit : value > limit;
    if (!fails) return false;
    j->v->rule = rule;
    j->v->value = value;
    return true;
}

static void see_language(judgment *j, const float *p) {
    int best = filter_likeliest(p, language_count(j->f->model));
    j->language_known = true;
    j->label = p[best] >= 0.5f ? best : -1;
}

int judgment_label(judgment *j) {
    if (!j->language_known)
        see_language(j, language_predict(j->f->model, j->w->language, j->v->text));
    return j->label;
}

bool filter_language(judgment *j) {
    const filter *f = j->f;
    const float *p = language_predict(f->model, j->w->language, j->v->text);
    float best = 0;
    see_language(j, p);
    if (f->n_languages == 0)
        for (int i = 0; i < language_count(f->model); i++) best = MAX(best, p[i]);
    for (int i = 0; i < f->n_languages; i++) best = MAX(best, p[f->languages[i]]);
    filter_annotate(j, "language", f->model, p);
    return f->by_language && judgment_fails(j, FILTER_language, best);
}

bool filter_bad_words(judgment *j) {
    return judgment_fails(j, FILTER_bad_words,
                          (double)phrase_list_count(j->f->bad_words, j->v->text));
}

bool filter_pii(judgment *j) {
#define PII_COUNTER(id, ...) COUNTER_##id,
    static const int counters[] = { PII_KINDS(PII_COUNTER) };
    const char *masks[PII_KIND_COUNT] = { 0 };
    int64_t count[PII_KIND_COUNT] = { 0 };
    for (int i = 0; i < PII_KIND_COUNT; i++)
        if (j->f->pii[i]) masks[i] = j->f->o.mask[i];
    j->w->masked.len = 0;
    if (!pii_mask(j->v->text, masks, &j->w->masked, count)) return false;
    for (int i = 0; i < PII_KIND_COUNT; i++) j->count[counters[i]] += count[i];
    j->v->text = (text_span){ j->w->masked.text, j->w->masked.len };
    return false;
}

err filter_judge(void *ctx, int worker, int segment, const text_doc *d, text_verdict *v) {
    const filter *f = ctx;
    BUG_IF(worker < 0 || worker >= f->n_workers || d->text.len > UINT32_MAX);
    judgment j = { .f = f, .w = &f->workers[worker], .doc = d, .v = v };
    j.w->scanned = false;
    j.w->members.len = 0;
    for (int i = 0; i < f->n_steps; i++)
        if (f->steps[i](&j)) {
            v->text = d->text; /* dropped documents are written unedited */
            return OK;
        }
    for (int i = 0; i < FILTER_COUNTER_COUNT; i++) v->count[i] += j.count[i];
    return OK;
}

text_transform filter_transform(filter *f) {
    return (text_transform){ .name = "filter",
                             .rules = rule_names,
                             .n_rules = FILTER_RULE_COUNT,
                             .counters = counter_names,
                             .n_counters = FILTER_COUNTER_COUNT,
                             .hash = f->hash,
                             .ctx = f,
                             .judge = filter_judge };
}
