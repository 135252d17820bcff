/* config.json of Hugging Face models, read and written by the tables of hf_families.c. A key that
 * changes what a model computes is either used or refused; one that we do not know is reported.
 *
 * Rotary positions have two forms: keys at the top level with an object "rope_scaling", and, from
 * transformers 5 on, one object "rope_parameters". Both are read, and must agree where a file has
 * both; the older one is written, which every version reads. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/hf_internal.h"
#include "io/io.h"

/* Names of the activations; the first of a kind is the one we write. */
static const struct {
    const char *theirs;
    bool gated;
    mlp_kind ours;
} activations[] = {
    { "silu", true, MLP_SWIGLU },           { "swish", true, MLP_SWIGLU },
    { "gelu_new", false, MLP_GELU_TANH },   { "gelu_pytorch_tanh", false, MLP_GELU_TANH },
    { "gelu_fast", false, MLP_GELU_TANH },  { "gelu_accurate", false, MLP_GELU_TANH },
    { "gelu", false, MLP_GELU_ERF },        { "gelu_python", false, MLP_GELU_ERF },
    { "relu2", false, MLP_RELU2 },          { "gelu_pytorch_tanh", true, MLP_GEGLU },
    { "gelu_new", true, MLP_GEGLU },        { "gelu_fast", true, MLP_GEGLU },
    { "gelu_accurate", true, MLP_GEGLU },   { "gelu", true, MLP_GEGLU_ERF },
    { "gelu_python", true, MLP_GEGLU_ERF },
};

static const model_fact *fact_of(const hf_key *k) {
    for (int i = 0; i < model_facts(); i++)
        if (model_fact_at(i)->at == k->at) return model_fact_at(i);
    BUG("a key of a family is not a fact");
}

static double default_value(const model_config *c, const hf_key *k, hf_default what) {
    switch (what) {
    case HF_REFUSED: BUG("there is no default");
    case HF_VALUE: break;
    case HF_ZERO: return 0;
    case HF_HEADS: return c->heads;
    case HF_HEAD_DIM: return (double)(c->dim / MAX(c->heads, 1));
    case HF_4_DIM: return 4 * (double)c->dim;
    case HF_SQRT_DIM: return sqrt((double)c->dim);
    case HF_MAX_SEQ: return (double)c->max_seq;
    case HF_LONGER: return fmax(1, (double)c->max_seq / (double)MAX(c->rope_original, 1));
    case HF_SAME: return model_fact_get(fact_of(k), c);
    }
    return k->value;
}

/* ---- import ------------------------------------------------------------------------------ */

err hf_wrong_value(const hf_reader *r, const char *name, const json_t *got, const char *expected) {
    char *text = json_dumps(got, JSON_ENCODE_ANY | JSON_COMPACT);
    err e =
        ERR("%s: \"%s\": expected %s; got %s", r->path, name, expected, text ? text : "nothing");
    free(text);
    return e;
}

const char hf_other_model[] = "import a model without it: ours have no counterpart";

json_t *hf_member(const json_t *object, const char *name) {
    const char *dot = strchr(name, '.');
    char outer[64];
    if (!dot) return json_object_get(object, name);
    snprintf(outer, sizeof outer, "%.*s", (int)(dot - name), name);
    return json_object_get(json_object_get(object, outer), dot + 1);
}

void hf_set_member(json_t *object, const char *name, json_t *value) {
    const char *dot = strchr(name, '.');
    char outer[64];
    if (dot) {
        snprintf(outer, sizeof outer, "%.*s", (int)(dot - name), name);
        if (!json_object_get(object, outer)) json_object_set_new(object, outer, json_object());
        object = json_object_get(object, outer);
    }
    json_object_set_new(object, dot ? dot + 1 : name, value);
}

double hf_json_number(const model_fact *f, const json_t *v) {
    switch (f->type) {
    case FACT_INT: return json_is_integer(v) ? (double)json_integer_value(v) : NAN;
    case FACT_REAL: return json_is_number(v) ? json_number_value(v) : NAN;
    case FACT_BOOL: return json_is_boolean(v) ? json_is_true(v) : NAN;
    case FACT_CHOICE:
    case FACT_LIST: break;
    }
    BUG("a choice or a list is never read as a number");
}

/* Reads n from a list of layers 0 to n - 1. */
static err read_first_n(const hf_reader *r, const char *name, const json_t *v, double *out) {
    bool first = json_is_array(v);
    for (size_t i = 0; first && i < json_array_size(v); i++) {
        const json_t *layer = json_array_get(v, i);
        first = json_is_integer(layer) && json_integer_value(layer) == (json_int_t)i;
    }
    *out = (double)json_array_size(v);
    if (first) return OK;
    return err_hint(hf_wrong_value(r, name, v, "the first layers in order, such as [0, 1]"), "%s",
                    hf_other_model);
}

/* Reads n from a list of every n-th layer. */
static err read_nth(const hf_reader *r, const char *name, const json_t *v, double *out) {
    json_int_t n = json_integer_value(json_array_get(v, 0)) + 1;
    size_t most = n > 0 ? (size_t)(r->c->layers / n) : 0;
    bool regular = json_is_array(v) && most && json_array_size(v) == most;
    for (size_t i = 0; regular && i < most; i++)
        regular = json_integer_value(json_array_get(v, i)) == (json_int_t)(i + 1) * n - 1;
    *out = (double)n;
    if (regular) return OK;
    return err_hint(hf_wrong_value(r, name, v, "every n-th layer in order, such as [1, 3]"), "%s",
                    hf_other_model);
}

static err read_hf_value(const hf_reader *r, const char *name, const json_t *v, const hf_key *k,
                         double *out) {
    const model_fact *f = fact_of(k);
    char expects[256];
    if (k->use == HF_FIRST_N)
        TRY(read_first_n(r, name, v, out));
    else if (k->use == HF_NTH)
        TRY(read_nth(r, name, v, out));
    else if (k->use == HF_ENABLES)
        *out = json_is_boolean(v) ? json_is_true(v) * model_fact_get(f, r->c) : NAN;
    else if (k->use == HF_SWITCH)
        *out = json_is_boolean(v) ? json_is_true(v) * k->value : NAN;
    else
        *out = hf_json_number(f, v);
    if (k->use == HF_INVERSE) *out = 1 / *out;
    if (k->use == HF_INVERSE_SQUARE) *out = 1 / sqrt(*out);
    if (k->use == HF_UNROTATED) *out += (double)r->c->rope_head_dim;
    if (!isnan(*out) && model_fact_legal(f, *out)) return OK;
    return err_hint(hf_wrong_value(r, name, v, model_fact_expects(f, expects, sizeof expects)),
                    "check that the file is complete and its values are those of a model");
}

/* A key may have two names; both must agree where both are there. */
static err find_hf_key(const hf_reader *r, const json_t *object, const hf_key *k, const char **name,
                       json_t **out) {
    json_t *first = hf_member(object, k->theirs);
    json_t *second = k->alias ? json_object_get(object, k->alias) : NULL;
    if (first && second && !json_equal(first, second))
        return err_hint(ERR("%s: \"%s\" and \"%s\", two names of one key, differ", r->path,
                            k->theirs, k->alias),
                        "remove the one that does not fit the weights");
    *name = first || !second ? k->theirs : k->alias;
    *out = first ? first : second;
    return OK;
}

static err read_fact_list(const hf_reader *r, const char *name, const json_t *v,
                          const model_fact *f) {
    fact_list list;
    char expects[256];
    if (!model_list_from_json(f, v, &list))
        return err_hint(hf_wrong_value(r, name, v, model_fact_expects(f, expects, sizeof expects)),
                        "check that the file is complete and its values are those of a model");
    model_fact_set_list(f, r->c, &list);
    return OK;
}

err hf_read_key(const hf_reader *r, const json_t *object, const hf_key *k) {
    const char *name = NULL;
    json_t *v = NULL;
    double value;
    if (k->theirs) TRY(find_hf_key(r, object, k, &name, &v));
    hf_default what = v ? k->null : k->absent;
    if (!v && what == HF_REFUSED)
        return err_hint(ERR("%s: \"%s\" is missing", r->path, k->theirs),
                        "add it: every model of type %s has it", r->family->model_type);
    if (fact_of(k)->type == FACT_LIST) return read_fact_list(r, name, v, fact_of(k));
    if (v && (!json_is_null(v) || what == HF_REFUSED))
        TRY(read_hf_value(r, name, v, k, &value));
    else
        value = default_value(r->c, k, what);
    bool fixed = k->use == HF_IMPLIED || k->use == HF_ZEROS;
    if (v && fixed && value != default_value(r->c, k, k->absent)) {
        char want[64];
        model_fact_text(fact_of(k), default_value(r->c, k, k->absent), want, sizeof want);
        return err_hint(hf_wrong_value(r, name, v, want), "%s", hf_other_model);
    }
    model_fact_set(fact_of(k), r->c, value);
    return OK;
}

/* Whether a key states that weights are in 4 bits, which are read as numbers. */
static bool is_mxfp4(const char *key, const json_t *v) {
    const char *method = json_string_value(json_object_get(v, "quant_method"));
    return !strcmp(key, "quantization_config") && method && !strcmp(method, "mxfp4");
}

static err read_demands(const hf_reader *r, const hf_demand *demands, int n) {
    for (int i = 0; i < n; i++) {
        const hf_demand *d = &demands[i];
        json_t *got = hf_member(r->doc, d->theirs);
        if (r->family->mxfp4 && is_mxfp4(d->theirs, got)) continue;
        json_t *want = json_loads(d->json, JSON_DECODE_ANY, NULL);
        bool same = !got || json_is_null(got) || d->any || json_equal(got, want);
        json_decref(want);
        if (!same)
            return err_hint(hf_wrong_value(r, d->theirs, got, d->json), "%s", hf_other_model);
    }
    return OK;
}

static err read_activation(const hf_reader *r) {
    if (!r->family->act_key) return OK;
    json_t *v = json_object_get(r->doc, r->family->act_key);
    const char *name = v ? json_string_value(v) : r->family->act_absent;
    str known = { 0 };
    for (size_t i = 0; i < COUNT_OF(activations); i++) {
        if (activations[i].gated != r->family->gated) continue;
        str_add(&known, "%s%s", known.len ? ", " : "", activations[i].theirs);
        if (!name || strcmp(activations[i].theirs, name)) continue;
        r->c->mlp = activations[i].ours;
        str_free(&known);
        return OK;
    }
    err e = err_hint(hf_wrong_value(r, r->family->act_key, v, known.text), "%s", hf_other_model);
    str_free(&known);
    return e;
}

/* ---- the whole file */

void hf_note_unknown(const hf_reader *r, const char *object, const char *key) {
    str_add(r->unknown, "%s%s%s%s", r->unknown->len ? ", " : "", object ? object : "",
            object ? "." : "", key);
}

/* Whether a row's name is this key, or a member of it. */
static bool names_key(const char *name, const char *key) {
    size_t n = strlen(key);
    return !strncmp(name, key, n) && (name[n] == 0 || name[n] == '.');
}

static bool demand_names(const hf_demand *d, int n, const char *key) {
    for (int i = 0; i < n; i++)
        if (names_key(d[i].theirs, key)) return true;
    return false;
}

static bool key_is_read(const hf_family *f, const char *key) {
    static const char *const rope[] = { "rope_theta", "partial_rotary_factor", "rope_parameters",
                                        "rope_scaling" };
    for (int i = 0; i < f->n_keys; i++) {
        const hf_key *k = &f->keys[i];
        if (k->theirs && names_key(k->theirs, key)) return true;
        if (k->alias && !strcmp(k->alias, key)) return true;
    }
    for (size_t i = 0; f->theta_key && i < COUNT_OF(rope); i++)
        if (!strcmp(rope[i], key)) return true;
    const char *const own[] = { f->act_key,   f->theta_key, f->fraction_key,    "layer_types",
                                f->rope_list, f->step_key,  f->local_theta_key, f->dense_key };
    for (size_t i = 0; i < COUNT_OF(own); i++)
        if (own[i] && !strcmp(own[i], key)) return true;
    return demand_names(f->demands, f->n_demands, key) ||
           demand_names(hf_common_demands, hf_n_common_demands, key) ||
           demand_names(f->when, f->n_when, key);
}

/* Notes members of an object that no row names. */
static void note_unknown_members(const hf_reader *r, const char *object, json_t *members) {
    const hf_family *f = r->family;
    char path[128];
    const char *key;
    json_t *v;
    bool some = false;
    snprintf(path, sizeof path, "%s.", object);
    for (int i = 0; i < f->n_demands; i++)
        some |= !strncmp(f->demands[i].theirs, path, strlen(path));
    json_object_foreach(members, key, v) {
        snprintf(path, sizeof path, "%s.%s", object, key);
        if (some && !key_is_read(f, path) && !key_is_read(f, key) && !hf_key_is_harmless(key))
            hf_note_unknown(r, object, key);
    }
}

/* Whether a file has the keys of this row of its model_type; the last row takes what the others leave. */
static bool is_variant(const hf_family *f, const json_t *doc) {
    bool same = true;
    if (f->dense_key)
        same = json_integer_value(json_object_get(doc, f->dense_key)) >=
               json_integer_value(json_object_get(doc, "num_hidden_layers"));
    for (int i = 0; i < f->n_when; i++) {
        json_t *want = json_loads(f->when[i].json, JSON_DECODE_ANY, NULL);
        json_t *got = json_object_get(doc, f->when[i].theirs);
        same &= got ? json_equal(got, want) : f->when[i].any;
        json_decref(want);
    }
    return same;
}

static void list_families(str *out) {
    for (int i = 0; hf_family_at(i); i++)
        if (hf_family_at(i) == hf_family_of(hf_family_at(i)->model_type))
            str_add(out, "%s%s", i ? ", " : "", hf_family_at(i)->model_type);
}

static err find_family(hf_reader *r) {
    const char *type = json_string_value(json_object_get(r->doc, "model_type"));
    if (!type)
        return err_hint(ERR("%s: no \"model_type\"", r->path),
                        "give the folder of a Hugging Face model");
    for (int i = 0; hf_family_at(i) && !r->family; i++)
        if (!strcmp(hf_family_at(i)->model_type, type) && is_variant(hf_family_at(i), r->doc))
            r->family = hf_family_at(i);
    if (r->family) return OK;
    str known = { 0 };
    list_families(&known);
    err e = err_hint(ERR("%s: models of type \"%s\" are not supported", r->path, type),
                     "import a model of type %s", known.text);
    str_free(&known);
    return e;
}

static err read_config(hf_reader *r) {
    const char *key;
    json_t *v;
    TRY(find_family(r));
    TRY(read_demands(r, hf_common_demands, hf_n_common_demands));
    TRY(read_demands(r, r->family->demands, r->family->n_demands));
    for (int i = 0; i < r->family->n_keys; i++) TRY(hf_read_key(r, r->doc, &r->family->keys[i]));
    TRY(read_activation(r));
    TRY(hf_read_layers(r));
    TRY(hf_read_rope(r));
    if (r->family->norm_after_rope && r->c->qknorm && rope_factor_of(r->c) != 1)
        return err_hint(
            ERR("%s: \"rope_type\": its scaling multiplies queries and keys by %g before they are "
                "normalized (\"use_qk_norm\")",
                r->path, rope_factor_of(r->c)),
            "%s", hf_other_model);
    double usual = 1 / sqrt((double)MAX(r->c->head_dim, 1));
    if (fabs(r->c->attention_scale - usual) < 1e-12 * usual) r->c->attention_scale = 0;
    json_object_foreach(r->doc, key, v) {
        if (!key_is_read(r->family, key) && !hf_key_is_harmless(key)) hf_note_unknown(r, NULL, key);
        note_unknown_members(r, key, v);
    }
    model_config_normalize(r->c);
    snprintf(r->c->name, sizeof r->c->name, "%s", r->family->model_type);
    return model_check(r->c);
}

err hf_import_config(const char *folder, model_config *c, const hf_family **family, str *unknown) {
    err e = OK;
    str path = { 0 }, own = { 0 };
    model_config_init(c);
    str_add(&path, "%s/config.json", folder);
    hf_reader r = { .path = path.text, .c = c, .unknown = unknown ? unknown : &own };
    TRY_CLEAN(io_json_read(path.text, &r.doc));
    TRY_CLEAN(read_config(&r));
    *family = r.family;
    if (own.len) log_warn("%s: unknown keys, taken to change nothing: %s", path.text, own.text);
cleanup:
    json_decref(r.doc);
    str_free(&own);
    str_free(&path);
    return e;
}

/* ---- export ------------------------------------------------------------------------------ */

static const hf_key *hf_key_of(const hf_family *family, const model_fact *f) {
    for (int i = 0; i < family->n_keys; i++)
        if (family->keys[i].at == f->at) return &family->keys[i];
    return NULL;
}

/* Whether models of the family may have any value of this fact, which config.json then holds. */
static bool is_free(const hf_family *family, const model_fact *f) {
    const hf_key *k = hf_key_of(family, f);
    if (k) return k->use != HF_IMPLIED;
    if (f->at == offsetof(model_config, rope_mscale)) return family->scaled_scores;
    if (f->at == offsetof(model_config, rope_fraction)) return family->fraction_key != NULL;
    if (f->at == offsetof(model_config, rope_local)) return family->local_theta > 0;
    if (f->at == offsetof(model_config, rope_scaling) && family->plain_rope) return false;
    if (f->at == offsetof(model_config, layer_pattern)) return family->kinds != NULL;
    return (f->flags & FACT_OF_ANY_ROPE) && family->theta_key;
}

/* @return the family's name of an activation; NULL: it has none. */
static const char *activation_name(const hf_family *family, mlp_kind mlp) {
    for (size_t i = 0; family->act_key && i < COUNT_OF(activations); i++)
        if (activations[i].gated == family->gated && activations[i].ours == mlp)
            return activations[i].theirs;
    return NULL;
}

/* Resolves the value of a fact: an expert_dim of 0 is the width of the dense layers, an attention_scale of 0 that of
 * the head's width. */
static double resolve_value(const model_config *c, const model_fact *f, double v) {
    if (f->at == offsetof(model_config, expert_dim) && v == 0) return (double)c->ffn;
    if (f->at == offsetof(model_config, shared_dim) && v == 0)
        return (double)(c->shared_experts * model_expert_dim(c));
    if (f->at == offsetof(model_config, attention_scale) && v == 0)
        return 1 / sqrt((double)c->head_dim);
    return v;
}

/* @return the value that a key can hold in place of a fact's: whole numbers, and of two facts in one key the first's. */
static double nearest_value(const hf_family *family, const model_config *c, const hf_key *k) {
    const model_fact *f = fact_of(k);
    double v = resolve_value(c, f, model_fact_get(f, c));
    for (const hf_key *first = family->keys; k->theirs && first < k; first++)
        if (first->theirs && !strcmp(first->theirs, k->theirs) &&
            model_fact_applies(fact_of(first), c))
            return model_fact_get(fact_of(first), c);
    if (k->use == HF_SWITCH && v != 0) return k->value;
    double whole = round(1 / (v * v));
    bool fits = k->use != HF_INVERSE_SQUARE || fabs(1 / sqrt(whole) - v) <= 1e-12 * v;
    return fits ? v : 1 / sqrt(whole);
}

/* Adds the facts that the family does not express to `out`, as options. @return how many */
static int list_misfits(const hf_family *family, const model_config *c, str *out) {
    int n = 0;
    for (int i = 0; i < model_facts(); i++) {
        const model_fact *f = model_fact_at(i);
        const hf_key *k = hf_key_of(family, f);
        char has[64], wants[64];
        if ((f->flags & FACT_TRAINING) || !model_fact_applies(f, c)) continue;
        bool given = is_free(family, f);
        if (given && (!k || k->use == HF_ZEROS)) continue;
        double got = model_fact_get(f, c);
        double want = given ? nearest_value(family, c, k)
                      : k   ? default_value(c, k, k->absent)
                            : f->fallback;
        bool activation = f->at == offsetof(model_config, mlp);
        if (activation && activation_name(family, c->mlp)) continue;
        if (activation && family->act_key) want = family->gated ? MLP_SWIGLU : MLP_GELU_TANH;
        if (resolve_value(c, f, got) == resolve_value(c, f, want)) continue;
        str_add(out, "%s%s=%s; this one has %s", n++ ? ", and " : "", f->name,
                model_fact_text(f, want, wants, sizeof wants),
                model_fact_text(f, got, has, sizeof has));
    }
    const char *layers = hf_layer_misfit(family, c);
    if (layers) str_add(out, "%s%s", n++ ? ", and " : "", layers);
    return n;
}

/* An error names every fact that the family does not express. */
static err check_fits(const hf_family *family, const model_config *c) {
    str why = { 0 };
    err e = OK;
    if (list_misfits(family, c, &why))
        e = err_hint(ERR("models of type %s have %s", family->model_type, why.text),
                     "choose another family with --family, or train with those options");
    str_free(&why);
    return e;
}

bool hf_expresses(const hf_family *family, const model_config *trained) {
    str why = { 0 };
    model_config c = *trained;
    model_config_without_mup(&c);
    int n = list_misfits(family, &c, &why);
    str_free(&why);
    return n == 0;
}

/* The family with the fewest facts that it does not express: none where it fits. */
static const hf_family *nearest_family(const model_config *c, const char *type, str *why) {
    const hf_family *best = NULL;
    for (int i = 0, least = INT_MAX; hf_family_at(i); i++) {
        str misfits = { 0 };
        if (type && strcmp(hf_family_at(i)->model_type, type)) continue;
        int n = list_misfits(hf_family_at(i), c, &misfits);
        if (n < least) {
            least = n;
            best = hf_family_at(i);
            str_free(why);
            *why = misfits;
        } else {
            str_free(&misfits);
        }
    }
    return best;
}

err hf_family_for(const model_config *trained, const char *wanted, const hf_family **family) {
    str why = { 0 };
    err e = OK;
    model_config plain = *trained, *c = &plain;
    model_config_without_mup(c);
    if (wanted) {
        *family = nearest_family(c, wanted, &why);
        str_free(&why);
        if (*family) return check_fits(*family, c);
        list_families(&why);
        e = err_hint(ERR_USAGE("--family: \"%s\" is not a family that we write", wanted),
                     "use one of %s", why.text);
        str_free(&why);
        return e;
    }
    *family = nearest_family(c, NULL, &why);
    if (why.len)
        e = err_hint(ERR("no Hugging Face family has models like this one: the nearest, %s, has %s",
                         (*family)->model_type, why.text),
                     "train with the options of that family, or pass --family=NAME to see what "
                     "another one lacks");
    str_free(&why);
    return e;
}

static json_t *json_of(const model_config *c, const hf_key *k) {
    const model_fact *f = fact_of(k);
    if (f->type == FACT_LIST) return model_list_to_json(model_fact_list(f, c));
    double v = resolve_value(c, f, model_fact_get(f, c));
    if (k->use == HF_FIRST_N) {
        json_t *list = json_array();
        for (int i = 0; i < (int)v; i++) json_array_append_new(list, json_integer(i));
        return list;
    }
    if (k->use == HF_NTH) {
        json_t *list = json_array();
        for (int i = (int)v - 1; i < c->layers; i += (int)v)
            json_array_append_new(list, json_integer(i));
        return list;
    }
    if (k->use == HF_SWITCH || k->use == HF_ENABLES) return json_boolean(v != 0);
    if (k->use == HF_INVERSE_SQUARE) return json_integer((json_int_t)round(1 / (v * v)));
    if (k->use == HF_UNROTATED) return json_integer((json_int_t)(v - (double)c->rope_head_dim));
    if (f->type == FACT_REAL && v == 0 && k->null == HF_ZERO) return json_null();
    if (f->type == FACT_REAL) return json_real(k->use == HF_INVERSE ? 1 / v : v);
    if (f->type == FACT_BOOL) return json_boolean(v != 0);
    return v == 0 && k->null == HF_ZERO ? json_null() : json_integer((json_int_t)v);
}

void hf_write_keys(json_t *object, const model_config *c, const hf_key *keys, int n) {
    for (int i = 0; i < n; i++) {
        if (keys[i].use == HF_IMPLIED || keys[i].use == HF_ZEROS) continue;
        /* it may have the value of another fact, while this one does not matter to the model */
        if (!hf_member(object, keys[i].theirs) || model_fact_applies(fact_of(&keys[i]), c))
            hf_set_member(object, keys[i].theirs, json_of(c, &keys[i]));
    }
}

static const char *torch_dtype(dtype dt) {
    static const char *const names[DT_COUNT] = {
        [DT_F32] = "float32", [DT_BF16] = "bfloat16", [DT_F16] = "float16"
    };
    BUG_IF(!names[dt]);
    return names[dt];
}

static json_t *token_json(int64_t id) { return id < 0 ? json_null() : json_integer(id); }

err hf_export_config(const char *folder, const hf_family *family, const model_config *trained,
                     dtype dt, hf_tokens tokens) {
    model_config plain = *trained, *c = &plain;
    model_config_without_mup(c);
    TRY(check_fits(family, c));
    json_t *doc =
        json_pack("{s:[s], s:s, s:s, s:o, s:o, s:n}", "architectures", family->architecture,
                  "model_type", family->model_type, "torch_dtype", torch_dtype(dt), "bos_token_id",
                  token_json(tokens.bos), "eos_token_id", token_json(tokens.eos),
                  "pad_token_id"); /* absent, it is a number that the vocabulary may not have */
    hf_write_keys(doc, c, family->keys, family->n_keys);
    for (int i = 0; i < family->n_demands; i++)
        hf_set_member(doc, family->demands[i].theirs,
                      json_loads(family->demands[i].json, JSON_DECODE_ANY, NULL));
    for (int i = 0; i < family->n_when; i++)
        json_object_set_new(doc, family->when[i].theirs,
                            json_loads(family->when[i].json, JSON_DECODE_ANY, NULL));
    if (family->dense_key) json_object_set_new(doc, family->dense_key, json_integer(c->layers));
    const char *activation = activation_name(family, c->mlp);
    if (activation) json_object_set_new(doc, family->act_key, json_string(activation));
    hf_write_rope(doc, family, c);
    hf_write_layers(doc, family, c);
    if (tokens.others) json_object_update(doc, (json_t *)(uintptr_t)tokens.others);
    str path = { 0 };
    str_add(&path, "%s/config.json", folder);
    err e = io_json_write(path.text, doc);
    str_free(&path);
    json_decref(doc);
    return e;
}
