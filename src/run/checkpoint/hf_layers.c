/* Rotary positions and kinds of layers in config.json.
 *
 * Rotary positions have two forms: keys at the top level with an object "rope_scaling", and, from transformers 5 on,
 * one object "rope_parameters", which holds one object per kind of layer where these differ. Both are read, and must
 * agree where a file has both; the older one is written, which every version reads.
 *
 * Which layers have a window is "layer_types"; a family has a rule for files without it. */
#include <math.h>
#include <string.h>

#include "checkpoint/hf_internal.h"

#define WINDOW_TYPE "sliding_attention"
#define FULL_TYPE   "full_attention"
#define CHUNK_TYPE  "chunked_attention"
#define DELTA_TYPE  "linear_attention"

/* Whether the layers that are not of full attention are gated DeltaNet. */
static bool has_delta(const hf_family *f) { return f->kinds && strchr(f->kinds, '5'); }

/* @return the name of layers with a window, or of the kind that the family has instead. */
static const char *window_type(const hf_family *f) {
    return has_delta(f) ? DELTA_TYPE : f->chunks ? CHUNK_TYPE : WINDOW_TYPE;
}

/* ---- rotary positions, import -------------------------------------------------------------- */

/* Reads a number that a file may hold in several places, which must agree. */
static err read_place(const hf_reader *r, const json_t *object, const char *key, const char *fact,
                      bool *found, double *value) {
    const model_fact *f = model_fact_find(fact);
    json_t *v = json_object_get(object, key);
    char expects[256];
    if (!v || json_is_null(v)) return OK;
    double got = hf_json_number(f, v);
    if (isnan(got) || !model_fact_legal(f, got))
        return err_hint(hf_wrong_value(r, key, v, model_fact_expects(f, expects, sizeof expects)),
                        "check that the file is complete and its values are those of a model");
    if (*found && got != *value)
        return err_hint(
            ERR("%s: \"%s\" is %g, but another key gives %g", r->path, key, got, *value),
            "remove the one that does not fit the weights");
    *found = true;
    *value = got;
    return OK;
}

/* A number from the object `rope` or from the family's own key `outside`. Models of a family with a
 * key of its own do not read the common one at the top level, which must agree all the same. */
static err read_rope_number(const hf_reader *r, const json_t *rope, const char *inside,
                            const char *outside, const char *fact, double absent, double *out) {
    bool found = false;
    *out = absent;
    TRY(read_place(r, rope, inside, fact, &found, out));
    TRY(read_place(r, r->doc, outside ? outside : inside, fact, &found, out));
    found = true;
    return read_place(r, r->doc, inside, fact, &found, out);
}

/* Whether the members that a and b share are equal. */
static bool agrees(json_t *a, json_t *b) {
    const char *key;
    json_t *v;
    json_object_foreach(a, key, v) {
        json_t *other = json_object_get(b, key);
        if (other && !json_equal(v, other)) return false;
    }
    return true;
}

/* The objects that describe rotary positions, NULL where there is none. `local` is of layers with a window. */
static err find_rope(const hf_reader *r, json_t **out, json_t **local) {
    json_t *now = json_object_get(r->doc, "rope_parameters");
    json_t *older = json_object_get(r->doc, "rope_scaling");
    *out = *local = NULL;
    json_t *full = json_object_get(now, FULL_TYPE), *windowed = json_object_get(now, WINDOW_TYPE);
    bool by_kind = r->family->local_theta > 0 && (full || windowed);
    if (r->family->local_theta > 0 && !by_kind &&
        json_object_size(now)) /* transformers ignores it */
        return err_hint(hf_wrong_value(r, "rope_parameters", now,
                                       "objects \"" FULL_TYPE "\" and \"" WINDOW_TYPE "\""),
                        "correct the file");
    if (by_kind) {
        *local = windowed;
        now = full;
    }
    for (int i = 0; i < 2; i++) {
        json_t *v = i ? older : now;
        if (!v || json_is_null(v) || (json_is_object(v) && !json_object_size(v))) continue;
        if (!json_is_object(v))
            return err_hint(
                hf_wrong_value(r, i ? "rope_scaling" : "rope_parameters", v, "an object"),
                "correct the file");
        if (*out && !(by_kind ? agrees(*out, v) : json_equal(*out, v)))
            return err_hint(ERR("%s: \"rope_parameters\" and \"rope_scaling\" differ", r->path),
                            "remove the one that does not fit the weights");
        if (!*out) *out = v;
    }
    return OK;
}

/* Yarn states the factor of queries and keys as such or by two others. */
static err read_mscale(const hf_reader *r, json_t *rope) {
    json_t *a = json_object_get(rope, "mscale"), *b = json_object_get(rope, "mscale_all_dim");
    if (r->c->rope_scaling != ROPE_YARN || r->c->rope_attention != 0) return OK;
    double over = json_number_value(a), under = json_number_value(b), f = r->c->rope_factor;
    if (!(over > 0) || !(under > 0)) return OK;
    r->c->rope_attention = f > 1 ? (0.1 * over * log(f) + 1) / (0.1 * under * log(f) + 1) : 1;
    return OK;
}

#define CONTEXT_KEY "original_max_position_embeddings"

static err read_scaling(const hf_reader *r, json_t *rope, const hf_rope_type *type) {
    if (r->family->long_rope_context && !json_object_get(r->doc, CONTEXT_KEY))
        json_object_set_new(r->doc, CONTEXT_KEY, json_integer(r->family->long_rope_context));
    for (int i = 0; i < type->n_keys; i++) {
        const hf_key *k = &type->keys[i];
        bool outside = k->at == offsetof(model_config, rope_original);
        json_t *inner = json_object_get(rope, k->theirs);
        json_t *outer = outside ? json_object_get(r->doc, k->theirs) : NULL;
        if (inner && outer && !json_equal(inner, outer))
            return err_hint(ERR("%s: two values of \"%s\"", r->path, k->theirs),
                            "remove the one that does not fit the weights");
        TRY(hf_read_key(r, !inner && outer ? r->doc : rope, k));
    }
    r->c->rope_scaling = type->ours;
    bool found = false;
    if (r->family->scaled_scores)
        TRY(read_place(r, rope, "mscale_all_dim", "rope_score_mscale", &found, &r->c->rope_mscale));
    return read_mscale(r, rope);
}

static err check_rope_keys(const hf_reader *r, json_t *rope, const hf_rope_type *type) {
    const char *key;
    json_t *v;
    static const char *const known[] = { "rope_type",      "type",
                                         "rope_theta",     "partial_rotary_factor",
                                         "mscale_all_dim", "mscale" };
    json_object_foreach(rope, key, v) {
        bool is_known = false;
        for (size_t i = 0; i < COUNT_OF(known); i++) is_known |= !strcmp(known[i], key);
        for (int i = 0; type && i < type->n_keys; i++)
            is_known |= !strcmp(type->keys[i].theirs, key);
        if (json_is_object(v))
            return err_hint(
                ERR("%s: rotary positions that differ between layers (\"%s\")", r->path, key), "%s",
                hf_other_model);
        if (!is_known && !hf_key_is_harmless(key)) hf_note_unknown(r, "rope_parameters", key);
    }
    return OK;
}

/* @param out NULL: no scaling */
static err find_rope_type(const hf_reader *r, const json_t *rope, bool plain,
                          const hf_rope_type **out) {
    json_t *type = json_object_get(rope, "rope_type"), *older = json_object_get(rope, "type");
    str known = { 0 };
    *out = NULL;
    if (type && older && !json_equal(type, older))
        return err_hint(ERR("%s: \"rope_type\" and \"type\" differ", r->path),
                        "remove the one that does not fit the weights");
    if (!type) type = older;
    const char *name = type ? json_string_value(type) : "default";
    bool only_long = r->family->long_rope_context > 0;
    if (only_long && name && (!strcmp(name, "su") || !strcmp(name, "yarn")))
        name = "longrope"; /* as transformers reads older files of these models */
    str_add(&known, "\"default\"");
    for (int i = 0; !plain && hf_rope_type_at(i); i++) {
        if (only_long && hf_rope_type_at(i)->ours != ROPE_LONG) continue;
        if (name && !strcmp(name, hf_rope_type_at(i)->theirs)) *out = hf_rope_type_at(i);
        str_add(&known, ", \"%s\"", hf_rope_type_at(i)->theirs);
    }
    err e = OK;
    if (!*out && (!name || strcmp(name, "default")))
        e = err_hint(hf_wrong_value(r, "rope_type", type, known.text), "%s", hf_other_model);
    str_free(&known);
    return e;
}

/* Reads the base of layers with a window. */
static err read_local_rope(const hf_reader *r, json_t *rope) {
    const hf_family *f = r->family;
    const hf_rope_type *type;
    bool found = false;
    double base = f->local_theta;
    if (f->local_theta == 0) return OK;
    TRY(find_rope_type(r, rope, true, &type));
    TRY(check_rope_keys(r, rope, NULL));
    TRY(read_place(r, rope, "rope_theta", "rope_local_theta", &found, &base));
    if (f->local_theta_key)
        TRY(read_place(r, r->doc, f->local_theta_key, "rope_local_theta", &found, &base));
    r->c->rope_local = base;
    return OK;
}

err hf_read_rope(const hf_reader *r) {
    const hf_family *f = r->family;
    const hf_rope_type *type;
    json_t *rope, *local;
    if (!f->theta_key) return OK;
    TRY(find_rope(r, &rope, &local));
    if (!rope && f->states_rope)
        return err_hint(ERR("%s: \"rope_parameters\" is missing", r->path),
                        "add it, or \"rope_scaling\": every model of type %s has it",
                        f->model_type);
    TRY(find_rope_type(r, rope, f->plain_rope, &type));
    TRY(check_rope_keys(r, rope, type));
    TRY(read_rope_number(r, rope, "rope_theta", f->theta_key, "rope_theta", f->theta_absent,
                         &r->c->rope_theta));
    TRY(read_rope_number(r, rope, "partial_rotary_factor", f->fraction_key, "rope_fraction",
                         f->fraction_absent, &r->c->rope_fraction));
    if (!f->fraction_key && r->c->rope_fraction != 1)
        return err_hint(
            ERR("%s: \"partial_rotary_factor\": expected 1; got %g", r->path, r->c->rope_fraction),
            "%s", hf_other_model);
    if (type) TRY(read_scaling(r, rope, type));
    return read_local_rope(r, local);
}

/* ---- rotary positions, export -------------------------------------------------------------- */

void hf_write_rope(json_t *doc, const hf_family *family, const model_config *c) {
    if (!family->theta_key) return;
    json_object_set_new(doc, family->theta_key, json_real(c->rope_theta));
    if (family->fraction_key)
        json_object_set_new(doc, family->fraction_key, json_real(c->rope_fraction));
    json_t *scaling = NULL;
    for (int i = 0; hf_rope_type_at(i); i++) {
        const hf_rope_type *type = hf_rope_type_at(i);
        if (c->rope_scaling != type->ours) continue;
        scaling = json_pack("{s:s}", "rope_type", type->theirs);
        hf_write_keys(scaling, c, type->keys, type->n_keys);
        if (family->scaled_scores && c->rope_mscale != 0)
            json_object_set_new(scaling, "mscale_all_dim", json_real(c->rope_mscale));
        json_object_set_new(doc, "rope_scaling", scaling);
        if (family->long_rope_context)
            json_object_set_new(doc, CONTEXT_KEY, json_integer(c->rope_original));
    }
    if (!scaling && family->states_rope)
        json_object_set_new(doc, "rope_scaling", json_pack("{s:s}", "rope_type", "default"));
    if (family->local_theta == 0) return;
    double base = c->rope_local != 0 ? c->rope_local : c->rope_theta;
    if (family->local_theta_key) {
        json_object_set_new(doc, family->local_theta_key, json_real(base));
        return;
    }
    /* without a key for the base the newer form states it */
    json_t *full = scaling ? json_copy(scaling) : json_pack("{s:s}", "rope_type", "default");
    json_object_set_new(full, "rope_theta", json_real(c->rope_theta));
    json_object_set_new(doc, "rope_parameters",
                        json_pack("{s:o, s:{s:s, s:f}}", FULL_TYPE, full, WINDOW_TYPE, "rope_type",
                                  "default", "rope_theta", base));
}

/* ---- kinds of layers ----------------------------------------------------------------------- */

/* Layers of a family without kinds are all alike: with the window, or without. */
static err check_layer_types(const hf_reader *r) {
    json_t *list = json_object_get(r->doc, "layer_types"), *v;
    const char *want = r->c->window ? WINDOW_TYPE : FULL_TYPE;
    size_t i;
    if (!list || json_is_null(list)) return OK;
    if (!json_is_array(list))
        return err_hint(hf_wrong_value(r, "layer_types", list, "an array"), "correct the file");
    json_array_foreach(list, i, v) {
        const char *got = json_string_value(v);
        if (!got || strcmp(got, want))
            return err_hint(ERR("%s: \"layer_types\": expected \"%s\" for every layer; got \"%s\" "
                                "for layer %zu",
                                r->path, want, got ? got : "no text", i),
                            "%s", hf_other_model);
    }
    return OK;
}

/* @return a list with a member per layer; NULL: none. */
static err find_list(const hf_reader *r, const char *key, json_t **out) {
    *out = key ? json_object_get(r->doc, key) : NULL;
    if (json_is_null(*out)) *out = NULL;
    if (r->family->chunks && !json_array_size(*out)) *out = NULL;
    if (!*out || json_array_size(*out) >= (size_t)r->c->layers) return OK;
    return err_hint(hf_wrong_value(r, key, *out, "an array with a member for each layer"),
                    "correct the file");
}

static err read_full_step(const hf_reader *r, int *step) {
    json_t *v = r->family->step_key ? json_object_get(r->doc, r->family->step_key) : NULL;
    *step = r->family->full_step;
    if (!v || json_is_null(v)) return OK;
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > 1024)
        return err_hint(hf_wrong_value(r, r->family->step_key, v, "a whole number from 1 to 1024"),
                        "correct the file");
    *step = (int)json_integer_value(v);
    return OK;
}

/* Whether a layer has the window, and whether it rotates. */
static err read_layer(const hf_reader *r, const json_t *types, const json_t *ropes, int step, int l,
                      bool *window, bool *rope) {
    const char *type = json_string_value(json_array_get(types, (size_t)l));
    const hf_family *f = r->family;
    *window = f->rope_list || step == 0 ? r->c->window > 0 : (l + 1) % step != 0;
    *rope = f->rope_list ? (l + 1) % step != 0 : !*window && strchr(f->kinds, '4') ? false : true;
    if (types) {
        *window = type && !strcmp(type, window_type(f));
        if (!type || (!*window && strcmp(type, FULL_TYPE)))
            return err_hint(ERR("%s: \"layer_types\": expected \"%s\" or \"%s\"; got \"%s\" for "
                                "layer %d",
                                r->path, window_type(f), FULL_TYPE, type ? type : "no text", l),
                            "%s", hf_other_model);
        if (!f->rope_list) *rope = *window || !strchr(f->kinds, '4');
    }
    if (ropes) {
        json_t *v = json_array_get(ropes, (size_t)l);
        if (!json_is_integer(v) || (json_integer_value(v) != 0 && json_integer_value(v) != 1))
            return err_hint(hf_wrong_value(r, f->rope_list, ropes, "a list of 1 and 0"),
                            "correct the file");
        *rope = json_integer_value(v) == 1;
    }
    if (f->chunks && !types) *window = *rope && r->c->window > 0;
    if (*window && !r->c->window && !has_delta(f))
        return err_hint(ERR("%s: layer %d has a window (\"%s\"), but \"sliding_window\" is null",
                            r->path, l, WINDOW_TYPE),
                        "correct the file");
    return OK;
}

/* @return the shortest run of digits that repeats, as a number; -1: too long. */
static int64_t shortest_pattern(const char *digits, int n) {
    enum { MOST = 15 };
    for (int period = 1; period <= MIN(n, MOST); period++) {
        bool repeats = true;
        int64_t value = 0;
        for (int l = 0; l < n; l++) repeats &= digits[l] == digits[l % period];
        for (int l = 0; l < period; l++) value = value * 10 + digits[l] - '0';
        if (repeats) return value;
    }
    return -1;
}

err hf_read_layers(const hf_reader *r) {
    char digits[1024];
    json_t *types, *ropes;
    int step, n = r->c->layers;
    if (!r->family->kinds) return check_layer_types(r);
    TRY(find_list(r, "layer_types", &types));
    TRY(find_list(r, r->family->rope_list, &ropes));
    TRY(read_full_step(r, &step));
    for (int l = 0; l < n; l++) {
        bool window, rope;
        TRY(read_layer(r, types, ropes, step, l, &window, &rope));
        digits[l] = (char)('0' + (window ? 1 : 2) + (rope ? 0 : 2));
        if (window && has_delta(r->family)) digits[l] = '5';
    }
    int64_t pattern = shortest_pattern(digits, n);
    if (pattern < 0)
        return err_hint(ERR("%s: the kinds of layers (\"layer_types\") do not repeat after 15 or "
                            "fewer layers",
                            r->path),
                        "%s", hf_other_model);
    bool windows = memchr(digits, '1', (size_t)n) || memchr(digits, '3', (size_t)n);
    if (!windows) r->c->window = 0;
    r->c->layer_pattern = pattern == 1 || pattern == 2 ? 0 : pattern;
    return OK;
}

const char *hf_layer_misfit(const hf_family *family, const model_config *c) {
    bool windows = false;
    for (int l = 0; family->kinds && l < c->layers; l++) {
        int kind = model_layer_kind(c, l);
        windows |= kind == 1 || kind == 3;
        if (!strchr(family->kinds, '0' + kind))
            return "other kinds of layers (model.layer_pattern, model.sliding_window)";
    }
    bool scaled = c->pos == POS_ROPE && c->rope_scaling != ROPE_PLAIN;
    if (family->long_rope_context && scaled && c->rope_scaling != ROPE_LONG)
        return "no model.rope_scaling but longrope";
    if (family->norm_after_rope && c->qknorm && c->pos == POS_ROPE && rope_factor_of(c) != 1)
        return "no factor of rotated queries and keys (model.rope_attention_factor=1)";
    if (family->local_theta > 0 && windows && c->rope_local == 0 && c->rope_scaling != ROPE_PLAIN)
        return "no model.rope_scaling in layers with a window (model.rope_local_theta)";
    return NULL;
}

void hf_write_layers(json_t *doc, const hf_family *family, const model_config *c) {
    if (!family->kinds) return;
    json_t *types = json_array(), *ropes = json_array();
    for (int l = 0; l < c->layers; l++) {
        int kind = model_layer_kind(c, l);
        json_array_append_new(types, json_string(kind % 2 ? window_type(family) : FULL_TYPE));
        json_array_append_new(ropes, json_integer(kind <= 2));
    }
    json_object_set_new(doc, "layer_types", types);
    if (family->rope_list) json_object_set(doc, family->rope_list, ropes);
    if (strchr(family->kinds, '1') && !c->window) /* transformers wants one, if for no layer */
        json_object_set_new(doc, family->chunks ? "attention_chunk_size" : "sliding_window",
                            json_integer(c->max_seq));
    json_decref(ropes);
}
