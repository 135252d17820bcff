/* config.json of Hugging Face models: which key is which of our settings, one table a family.
 * Written is the older form of the rope keys, which every version of transformers reads; read are
 * both. */
#include "checkpoint/checkpoint.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"

/* ---- tables ------------------------------------------------------------------------------ */

/* The C type of a field. */
typedef enum { AS_INT, AS_INT64, AS_REAL, AS_BOOL, AS_ENUM } kind;

/* The value where config.json has none. */
typedef enum {
    REQUIRED,       /* it must have one */
    IS,             /* `value` */
    IS_HEADS,       /* as many as query heads */
    IS_DIM_BY_HEAD, /* dim / heads */
    IS_4_DIM,       /* 4 dim */
} absent;

/* A key and the field it stands for. Without a key the family implies the value, and `fact` says
 * so in words. A null in the file means the same as no key where the value follows from others,
 * and 0 elsewhere. */
typedef struct key {
    const char *theirs; /* NULL: implied */
    size_t at;          /* of the field in a model_config */
    kind as;
    absent absent;
    double value;
    const char *fact;
} key;

/* A key that is always written with one value, in JSON. Read, it must have that value, which is
 * also what its absence means; or, with `any`, it does not matter to the weights. */
typedef struct demand {
    const char *theirs, *json;
    bool any;
} demand;

typedef struct settings {
    const char *model_type, *architecture;
    const key *keys;
    int n_keys;
    const demand *demands;
    int n_demands;
    /* A feed-forward layer without gate: the key that names its activation, and what it names
     * where it is absent. NULL: the activation is implied. */
    const char *act_key, *act_absent;
    /* Rotary positions: NULL for none, and no fraction_key where heads rotate whole. */
    const char *theta_key, *fraction_key;
    double fraction_absent;
} settings;

/* clang-format off */
#define AT(field)                               offsetof(model_config, field)
#define KEY(theirs, field, as, absent, value)   { theirs, AT(field), as, absent, value, NULL }
#define IMPLIED(field, as, absent, value, fact) { NULL, AT(field), as, absent, value, fact }

#define ROTARY      IMPLIED(pos,      AS_ENUM,  IS, POS_ROPE,    "rotary positions")
#define LAYER_NORMS IMPLIED(norm,     AS_ENUM,  IS, NORM_LAYER,  "layer norms")
#define NORM_BIASES IMPLIED(norm_bias, AS_BOOL,  IS, 1,          "biases in their layer norms")
#define RMS_NORMS   IMPLIED(norm,     AS_ENUM,  IS, NORM_RMS,    "RMS norms")
#define NORMS_FIRST IMPLIED(norm_position, AS_ENUM, IS, NORM_PRE,           "norms before each branch")
#define IN_SERIES   IMPLIED(parallel, AS_BOOL,  IS, 0,           "one branch after the other")
#define BIASES      IMPLIED(bias,     AS_BOOL,  IS, 1,           "biases everywhere")
#define NO_BIASES   IMPLIED(bias,     AS_BOOL,  IS, 0,           "no biases outside q, k and v")
#define NO_QKV_BIAS IMPLIED(qkv_bias, AS_BOOL,  IS, 0,           "no biases of q, k and v")
#define NO_QK_NORM  IMPLIED(qknorm,   AS_ENUM,  IS, QKNORM_NONE, "no norms of q and k")
#define NO_WINDOW   IMPLIED(window,   AS_INT64, IS, 0,           "no sliding window")
#define NO_MUP      IMPLIED(mup,      AS_BOOL,  IS, 0,           "no muP scales")
#define ALL_KV      IMPLIED(kv_heads, AS_INT,   IS_HEADS, 0,     "as many kv heads as heads")
#define PLAIN_HEADS IMPLIED(head_dim, AS_INT64, IS_DIM_BY_HEAD, 0, "heads of dim / heads")

static const key gpt2_keys[] = {
    KEY("vocab_size",          vocab,    AS_INT64, REQUIRED, 0),
    KEY("n_positions",         max_seq,  AS_INT64, REQUIRED, 0),
    KEY("n_embd",              dim,      AS_INT64, REQUIRED, 0),
    KEY("n_layer",             layers,   AS_INT,   REQUIRED, 0),
    KEY("n_head",              heads,    AS_INT,   REQUIRED, 0),
    KEY("n_inner",             ffn,      AS_INT64, IS_4_DIM, 0),
    KEY("layer_norm_epsilon",  norm_eps, AS_REAL,  IS, 1e-5),
    KEY("initializer_range",   init_std, AS_REAL,  IS, 0.02),
    KEY("tie_word_embeddings", tied,     AS_BOOL,  IS, 1),
    IMPLIED(pos, AS_ENUM, IS, POS_LEARNED, "learned positions"),
    ALL_KV, PLAIN_HEADS, LAYER_NORMS, NORM_BIASES, NORMS_FIRST, IN_SERIES, BIASES, NO_QK_NORM, NO_WINDOW,
    NO_MUP,
};

static const key gpt_neox_keys[] = {
    KEY("vocab_size",              vocab,    AS_INT64, REQUIRED, 0),
    KEY("max_position_embeddings", max_seq,  AS_INT64, REQUIRED, 0),
    KEY("hidden_size",             dim,      AS_INT64, REQUIRED, 0),
    KEY("num_hidden_layers",       layers,   AS_INT,   REQUIRED, 0),
    KEY("num_attention_heads",     heads,    AS_INT,   REQUIRED, 0),
    KEY("intermediate_size",       ffn,      AS_INT64, REQUIRED, 0),
    KEY("layer_norm_eps",          norm_eps, AS_REAL,  IS, 1e-5),
    KEY("initializer_range",       init_std, AS_REAL,  IS, 0.02),
    KEY("tie_word_embeddings",     tied,     AS_BOOL,  IS, 0),
    KEY("use_parallel_residual",   parallel, AS_BOOL,  IS, 1),
    ALL_KV, PLAIN_HEADS, ROTARY, LAYER_NORMS, NORM_BIASES, NORMS_FIRST, BIASES, NO_QK_NORM, NO_WINDOW,
    NO_MUP,
};

/* What Llama and the families after it share; the rest is in each one's own rows. */
#define LLAMA_KEYS(EPS)                                                                          \
    KEY("vocab_size",              vocab,    AS_INT64, REQUIRED, 0),                             \
    KEY("max_position_embeddings", max_seq,  AS_INT64, REQUIRED, 0),                             \
    KEY("hidden_size",             dim,      AS_INT64, REQUIRED, 0),                             \
    KEY("num_hidden_layers",       layers,   AS_INT,   REQUIRED, 0),                             \
    KEY("num_attention_heads",     heads,    AS_INT,   REQUIRED, 0),                             \
    KEY("num_key_value_heads",     kv_heads, AS_INT,   IS_HEADS, 0),                             \
    KEY("intermediate_size",       ffn,      AS_INT64, REQUIRED, 0),                             \
    KEY("rms_norm_eps",            norm_eps, AS_REAL,  IS, EPS),                                 \
    KEY("initializer_range",       init_std, AS_REAL,  IS, 0.02),                                \
    KEY("tie_word_embeddings",     tied,     AS_BOOL,  IS, 0),                                   \
    IMPLIED(mlp, AS_ENUM, IS, MLP_SWIGLU, "SwiGLU feed-forward layers"),                         \
    IMPLIED(rope_fraction, AS_REAL, IS, 1, "heads that rotate whole"),                           \
    ROTARY, RMS_NORMS, IN_SERIES, NO_BIASES, NO_MUP

static const key llama_keys[] = {
    LLAMA_KEYS(1e-6),
    KEY("head_dim", head_dim, AS_INT64, IS_DIM_BY_HEAD, 0),
    NORMS_FIRST, NO_QKV_BIAS, NO_QK_NORM, NO_WINDOW,
};

static const key mistral_keys[] = {
    LLAMA_KEYS(1e-6),
    KEY("head_dim", head_dim, AS_INT64, IS_DIM_BY_HEAD, 0),
    KEY("sliding_window", window, AS_INT64, IS, 4096),
    NORMS_FIRST, NO_QKV_BIAS, NO_QK_NORM,
};

static const key qwen2_keys[] = {
    LLAMA_KEYS(1e-6),
    IMPLIED(qkv_bias, AS_BOOL, IS, 1, "biases of q, k and v"),
    PLAIN_HEADS, NORMS_FIRST, NO_QK_NORM, NO_WINDOW,
};

static const key qwen3_keys[] = {
    LLAMA_KEYS(1e-6),
    KEY("head_dim", head_dim, AS_INT64, IS, 128),
    IMPLIED(qknorm, AS_ENUM, IS, QKNORM_HEAD, "norms of each q and k head"),
    NORMS_FIRST, NO_QKV_BIAS, NO_WINDOW,
};

static const key olmo2_keys[] = {
    LLAMA_KEYS(1e-5),
    IMPLIED(qknorm, AS_ENUM, IS, QKNORM_FULL, "norms over all q and k heads together"),
    IMPLIED(norm_position, AS_ENUM, IS, NORM_POST, "norms after each branch"),
    PLAIN_HEADS, NO_QKV_BIAS, NO_WINDOW,
};

static const demand gpt2_demands[] = {
    { "scale_attn_weights",              "true",  false },
    { "scale_attn_by_inverse_layer_idx", "false", false },
    { "add_cross_attention",             "false", false },
    { "attn_pdrop",                      "0.0",   true },
    { "embd_pdrop",                      "0.0",   true },
    { "resid_pdrop",                     "0.0",   true },
};
#define SILU                  { "hidden_act",         "\"silu\"", false }
#define ATTENTION_BIAS(value) { "attention_bias",     value,      false }
#define NO_MLP_BIAS           { "mlp_bias",           "false",    false }
#define ALL_ATTENTION         { "use_sliding_window", "false",    false }
static const demand gpt_neox_demands[] = { ATTENTION_BIAS("true") };
static const demand llama_demands[]    = { SILU, ATTENTION_BIAS("false"), NO_MLP_BIAS };
static const demand mistral_demands[]  = { SILU };
static const demand qwen2_demands[]    = { SILU, ALL_ATTENTION };
static const demand qwen3_demands[]    = { SILU, ATTENTION_BIAS("false"), ALL_ATTENTION };
static const demand olmo2_demands[]    = { SILU, ATTENTION_BIAS("false") };

#define TABLES(family) family##_keys,    (int)COUNT_OF(family##_keys), \
                       family##_demands, (int)COUNT_OF(family##_demands)
#define ROPE           "rope_theta", NULL, 1.0
static const settings families[] = {
    { "gpt2",     "GPT2LMHeadModel",    TABLES(gpt2), "activation_function", "gelu_new",
                                        NULL, NULL, 0 },
    { "gpt_neox", "GPTNeoXForCausalLM", TABLES(gpt_neox), "hidden_act", "gelu",
                                        "rotary_emb_base", "rotary_pct", 0.25 },
    { "llama",    "LlamaForCausalLM",   TABLES(llama),   NULL, NULL, ROPE },
    { "mistral",  "MistralForCausalLM", TABLES(mistral), NULL, NULL, ROPE },
    { "qwen2",    "Qwen2ForCausalLM",   TABLES(qwen2),   NULL, NULL, ROPE },
    { "qwen3",    "Qwen3ForCausalLM",   TABLES(qwen3),   NULL, NULL, ROPE },
    { "olmo2",    "Olmo2ForCausalLM",   TABLES(olmo2),   NULL, NULL, ROPE },
};

/* Names of the activations, the first of a kind being the one we write. */
static const struct {
    const char *theirs;
    mlp_kind ours;
} activations[] = {
    { "gelu_new",          MLP_GELU_TANH },
    { "gelu_pytorch_tanh", MLP_GELU_TANH },
    { "gelu_fast",         MLP_GELU_TANH },
    { "gelu",              MLP_GELU_ERF },
};

/* Of the object that holds a llama3 scaling. */
static const key scaling_keys[] = {
    KEY("factor",                           rope_factor,   AS_REAL,  REQUIRED, 0),
    KEY("low_freq_factor",                  rope_low,      AS_REAL,  REQUIRED, 0),
    KEY("high_freq_factor",                 rope_high,     AS_REAL,  REQUIRED, 0),
    KEY("original_max_position_embeddings", rope_original, AS_INT64, REQUIRED, 0),
};
/* clang-format on */

static const settings *settings_of(const char *model_type) {
    for (size_t i = 0; i < COUNT_OF(families); i++)
        if (strcmp(families[i].model_type, model_type) == 0) return &families[i];
    return NULL;
}

/* ---- fields ------------------------------------------------------------------------------ */

/* Enums are read and written as this. */
static_assert(sizeof(norm_kind) == sizeof(unsigned) && sizeof(mlp_kind) == sizeof(unsigned) &&
                  sizeof(qknorm_kind) == sizeof(unsigned) && sizeof(pos_kind) == sizeof(unsigned),
              "an enum is not of the size of unsigned");

static double field_get(const model_config *c, const key *k) {
    const void *at = (const char *)c + k->at;
    switch (k->as) {
    case AS_INT: return *(const int *)at;
    case AS_INT64: return (double)*(const int64_t *)at;
    case AS_REAL: return *(const double *)at;
    case AS_BOOL: return *(const bool *)at;
    case AS_ENUM: break;
    }
    return (double)*(const unsigned *)at;
}

static void field_set(model_config *c, const key *k, double value) {
    void *at = (char *)c + k->at;
    switch (k->as) {
    case AS_INT: *(int *)at = (int)value; break;
    case AS_INT64: *(int64_t *)at = (int64_t)value; break;
    case AS_REAL: *(double *)at = value; break;
    case AS_BOOL: *(bool *)at = value != 0; break;
    case AS_ENUM: *(unsigned *)at = (unsigned)value; break;
    }
}

/* What a key means where the file has none. */
static double value_absent(const model_config *c, const key *k) {
    switch (k->absent) {
    case REQUIRED:
    case IS: break;
    case IS_HEADS: return c->heads;
    case IS_DIM_BY_HEAD: return (double)(c->dim / MAX(c->heads, 1));
    case IS_4_DIM: return 4 * (double)c->dim;
    }
    return k->value;
}

/* ---- import ------------------------------------------------------------------------------ */

typedef struct reader {
    const char *path;
    const settings *family;
    json_t *doc;
    model_config *c;
} reader;

static err wrong_value(const reader *r, const char *name, const json_t *got, const char *expected) {
    char *text = json_dumps(got, JSON_ENCODE_ANY | JSON_COMPACT);
    err e =
        ERR("%s: \"%s\": expected %s, got %s", r->path, name, expected, text ? text : "nothing");
    free(text);
    return e;
}

/* What a key may hold, by the type of its field. @return NULL where v is that. */
static const char *expected_instead(const key *k, const json_t *v) {
    double n = json_number_value(v);
    switch (k->as) {
    case AS_INT:
    case AS_INT64:
        return json_is_integer(v) && n >= 1 && n <= INT32_MAX ? NULL : "a positive integer";
    case AS_REAL: return json_is_number(v) && n >= 0 ? NULL : "a number of at least 0";
    case AS_BOOL: return json_is_boolean(v) ? NULL : "true or false";
    case AS_ENUM: break; /* implied, never read */
    }
    BUG_IF(true);
    return NULL;
}

static err read_key(const reader *r, const json_t *object, const key *k) {
    const json_t *v = k->theirs ? json_object_get(object, k->theirs) : NULL;
    bool is_null = json_is_null(v), follows = k->absent != REQUIRED && k->absent != IS;
    if (!v && k->absent == REQUIRED)
        return err_hint(ERR("%s: \"%s\" is missing", r->path, k->theirs),
                        "models of type %s need it", r->family->model_type);
    if (!v || is_null) {
        field_set(r->c, k, is_null && !follows ? 0 : value_absent(r->c, k));
        return OK;
    }
    const char *expected = expected_instead(k, v);
    if (expected) return wrong_value(r, k->theirs, v, expected);
    field_set(r->c, k, json_is_boolean(v) ? json_is_true(v) : json_number_value(v));
    return OK;
}

static err read_demands(const reader *r) {
    for (int i = 0; i < r->family->n_demands; i++) {
        const demand *d = &r->family->demands[i];
        json_t *got = json_object_get(r->doc, d->theirs);
        json_t *want = json_loads(d->json, JSON_DECODE_ANY, NULL);
        bool same = !got || d->any || json_equal(got, want);
        json_decref(want);
        if (!same)
            return err_hint(wrong_value(r, d->theirs, got, d->json),
                            "our models have no other form of this");
    }
    json_t *quantised = json_object_get(r->doc, "quantization_config");
    if (quantised && !json_is_null(quantised))
        return err_hint(ERR("%s: the weights are quantised", r->path),
                        "import the model they were made from");
    return OK;
}

static err read_activation(const reader *r) {
    if (!r->family->act_key) return OK;
    json_t *v = json_object_get(r->doc, r->family->act_key);
    const char *name = v ? json_string_value(v) : r->family->act_absent;
    for (size_t i = 0; name && i < COUNT_OF(activations); i++) {
        if (strcmp(activations[i].theirs, name) != 0) continue;
        r->c->mlp = activations[i].ours;
        return OK;
    }
    return wrong_value(r, r->family->act_key, v, "gelu, gelu_new, gelu_fast or gelu_pytorch_tanh");
}

/* A number from `rope` (transformers 5) or from the top level (before). */
static err read_rope_number(const reader *r, const json_t *rope, const char *inside,
                            const char *outside, double *out) {
    json_t *v = json_object_get(rope, inside);
    if (!v) v = json_object_get(r->doc, inside);
    if (!v && outside) v = json_object_get(r->doc, outside);
    if (v && !json_is_number(v)) return wrong_value(r, inside, v, "a number");
    if (v) *out = json_number_value(v);
    return OK;
}

static err read_rope_base(const reader *r, const json_t *rope) {
    model_config *c = r->c;
    c->rope_theta = 10000;
    c->rope_fraction = r->family->fraction_absent;
    TRY(read_rope_number(r, rope, "rope_theta", r->family->theta_key, &c->rope_theta));
    TRY(read_rope_number(r, rope, "partial_rotary_factor", r->family->fraction_key,
                         &c->rope_fraction));
    if (!r->family->fraction_key && c->rope_fraction != 1)
        return ERR("%s: \"partial_rotary_factor\": expected 1, got %g", r->path, c->rope_fraction);
    return OK;
}

static err read_rope(const reader *r) {
    if (!r->family->theta_key) return OK;
    json_t *rope = json_object_get(r->doc, "rope_parameters");
    if (!json_is_object(rope)) rope = json_object_get(r->doc, "rope_scaling");
    TRY(read_rope_base(r, rope));
    json_t *type = json_object_get(rope, "rope_type");
    if (!type) type = json_object_get(rope, "type");
    const char *name = type ? json_string_value(type) : "default";
    if (name && strcmp(name, "default") == 0) return OK;
    if (!name || strcmp(name, "llama3") != 0)
        return err_hint(wrong_value(r, "rope_type", type, "\"default\" or \"llama3\""),
                        "other ways to stretch the context are not supported");
    for (size_t i = 0; i < COUNT_OF(scaling_keys); i++) TRY(read_key(r, rope, &scaling_keys[i]));
    r->c->rope_scaling = ROPE_LLAMA3;
    return OK;
}

static err find_settings(reader *r) {
    const char *type = json_string_value(json_object_get(r->doc, "model_type"));
    if (!type)
        return err_hint(ERR("%s: no \"model_type\"", r->path),
                        "this is not the config.json of a Hugging Face model");
    r->family = settings_of(type);
    if (r->family) return OK;
    str known = { 0 };
    for (size_t i = 0; i < COUNT_OF(families); i++)
        str_add(&known, "%s%s", i ? ", " : "", families[i].model_type);
    err e = err_hint(ERR("%s: models of type \"%s\" are not known", r->path, type), "known are: %s",
                     known.text);
    str_free(&known);
    return e;
}

static err read_config(reader *r) {
    TRY(find_settings(r));
    TRY(read_demands(r));
    for (int i = 0; i < r->family->n_keys; i++) TRY(read_key(r, r->doc, &r->family->keys[i]));
    TRY(read_activation(r));
    TRY(read_rope(r));
    snprintf(r->c->name, sizeof r->c->name, "%s", r->family->model_type);
    return model_check(r->c);
}

err hf_import_config(const char *folder, model_config *c, const hf_family **family) {
    err e = OK;
    str path = { 0 };
    model_config_init(c);
    str_add(&path, "%s/config.json", folder);
    reader r = { .path = path.text, .c = c };
    TRY_CLEAN(io_json_read(path.text, &r.doc));
    TRY_CLEAN(read_config(&r));
    *family = hf_family_of(r.family->model_type);
    BUG_IF(!*family);
cleanup:
    json_decref(r.doc);
    str_free(&path);
    return e;
}

/* ---- export ------------------------------------------------------------------------------ */

/* An error says which property of the family these settings lack. */
static err check_fits(const settings *s, const model_config *c) {
    for (int i = 0; i < s->n_keys; i++) {
        const key *k = &s->keys[i];
        if (!k->theirs && field_get(c, k) != value_absent(c, k))
            return ERR("models of type %s have %s, this one has not", s->model_type, k->fact);
    }
    if (s->act_key && c->mlp == MLP_SWIGLU)
        return ERR("models of type %s have no gate, this one has SwiGLU", s->model_type);
    return OK;
}

err hf_family_for(const model_config *c, const char *wanted, const hf_family **family) {
    if (wanted && !settings_of(wanted)) return ERR("models of type \"%s\" are not known", wanted);
    for (size_t i = 0; i < COUNT_OF(families); i++) {
        if (wanted && strcmp(wanted, families[i].model_type) != 0) continue;
        err e = check_fits(&families[i], c);
        if (!e) {
            *family = hf_family_of(families[i].model_type);
            return OK;
        }
        if (wanted) return e;
        err_free(e);
    }
    return err_hint(ERR("no Hugging Face family that we write has models of these settings"),
                    "name one to learn which setting is in its way");
}

static json_t *json_of(const model_config *c, const key *k) {
    double v = field_get(c, k);
    if (k->as == AS_REAL) return json_real(v);
    if (k->as == AS_BOOL) return json_boolean(v != 0);
    return v == 0 ? json_null() : json_integer((json_int_t)v);
}

static void write_keys(json_t *object, const model_config *c, const key *keys, int n) {
    for (int i = 0; i < n; i++)
        if (keys[i].theirs) json_object_set_new(object, keys[i].theirs, json_of(c, &keys[i]));
}

static void write_activation(json_t *doc, const settings *s, const model_config *c) {
    for (size_t i = 0; s->act_key && i < COUNT_OF(activations); i++) {
        if (activations[i].ours != c->mlp) continue;
        json_object_set_new(doc, s->act_key, json_string(activations[i].theirs));
        return;
    }
}

static void write_rope(json_t *doc, const settings *s, const model_config *c) {
    if (!s->theta_key) return;
    json_object_set_new(doc, s->theta_key, json_real(c->rope_theta));
    if (s->fraction_key) json_object_set_new(doc, s->fraction_key, json_real(c->rope_fraction));
    if (c->rope_scaling != ROPE_LLAMA3) return;
    json_t *scaling = json_pack("{s:s}", "rope_type", "llama3");
    write_keys(scaling, c, scaling_keys, COUNT_OF(scaling_keys));
    json_object_set_new(doc, "rope_scaling", scaling);
}

static const char *torch_dtype(dtype dt) {
    static const char *const names[DT_COUNT] = {
        [DT_F32] = "float32", [DT_BF16] = "bfloat16", [DT_F16] = "float16"
    };
    BUG_IF(!names[dt]);
    return names[dt];
}

err hf_export_config(const char *folder, const hf_family *family, const model_config *c, dtype dt) {
    const settings *s = settings_of(hf_family_type(family));
    BUG_IF(!s);
    TRY(check_fits(s, c));
    json_t *doc =
        json_pack("{s:[s], s:s, s:s, s:n, s:n}", "architectures", s->architecture, "model_type",
                  s->model_type, "torch_dtype", torch_dtype(dt), "bos_token_id", "eos_token_id");
    write_keys(doc, c, s->keys, s->n_keys);
    for (int i = 0; i < s->n_demands; i++)
        json_object_set_new(doc, s->demands[i].theirs,
                            json_loads(s->demands[i].json, JSON_DECODE_ANY, NULL));
    write_activation(doc, s, c);
    write_rope(doc, s, c);
    str path = { 0 };
    str_add(&path, "%s/config.json", folder);
    err e = io_json_write(path.text, doc);
    str_free(&path);
    json_decref(doc);
    return e;
}
