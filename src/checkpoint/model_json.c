/* A model's settings as JSON: one table, read both ways. */
#include "checkpoint/checkpoint.h"

#include <string.h>

#include "io/io.h"

typedef enum { F_INT, F_LONG, F_REAL, F_BOOL, F_ENUM } field_type;
typedef struct field {
    const char *name;
    field_type type;
    size_t at;
    const char *const *names; /* F_ENUM */
    bool added;               /* older checkpoints lack it, which means 0 */
} field;

static const char *const norms[] = { "rms", "layer", NULL };
static const char *const mlps[] = { "swiglu", "gelu", "gelu_erf", NULL };
static const char *const qknorms[] = { "none", "head", "full", NULL };
static const char *const positions[] = { "rope", "learned", NULL };

#define AT(member) offsetof(model_config, member)
static const field fields[] = {
    { "layers", F_INT, AT(layers), NULL },
    { "dim", F_LONG, AT(dim), NULL },
    { "heads", F_INT, AT(heads), NULL },
    { "kv_heads", F_INT, AT(kv_heads), NULL },
    { "head_dim", F_LONG, AT(head_dim), NULL },
    { "ffn_dim", F_LONG, AT(ffn), NULL },
    { "vocab_size", F_LONG, AT(vocab), NULL },
    { "max_seq_len", F_LONG, AT(max_seq), NULL },
    { "tie_embeddings", F_BOOL, AT(tied), NULL },
    { "norm", F_ENUM, AT(norm), norms },
    { "norm_post", F_BOOL, AT(norm_post), NULL },
    { "parallel_branches", F_BOOL, AT(parallel), NULL },
    { "activation", F_ENUM, AT(mlp), mlps },
    { "bias", F_BOOL, AT(bias), NULL },
    { "qkv_bias", F_BOOL, AT(qkv_bias), NULL },
    { "norm_no_bias", F_BOOL, AT(norm_no_bias), NULL, .added = true },
    { "qk_norm", F_ENUM, AT(qknorm), qknorms },
    { "positions", F_ENUM, AT(pos), positions },
    { "rope_theta", F_REAL, AT(rope_theta), NULL },
    { "rope_fraction", F_REAL, AT(rope_fraction), NULL },
    { "rope_scaling", F_BOOL, AT(scaling.on), NULL },
    { "rope_scaling_factor", F_REAL, AT(scaling.factor), NULL },
    { "rope_low_freq_factor", F_REAL, AT(scaling.low), NULL },
    { "rope_high_freq_factor", F_REAL, AT(scaling.high), NULL },
    { "rope_original_max_seq_len", F_LONG, AT(scaling.original), NULL },
    { "sliding_window", F_LONG, AT(window), NULL },
    { "norm_eps", F_REAL, AT(norm_eps), NULL },
    { "init_std", F_REAL, AT(init_std), NULL },
    { "dropout", F_REAL, AT(dropout), NULL },
    { "embedding_dropout", F_REAL, AT(embed_dropout), NULL },
    { "mup", F_BOOL, AT(mup), NULL },
    { "mup_base_dim", F_LONG, AT(mup_base), NULL },
};

json_t *model_to_json(const model_config *c) {
    json_t *o = json_object();
    json_object_set_new(o, "name", json_string(c->name));
    for (size_t i = 0; i < COUNT_OF(fields); i++) {
        const char *at = (const char *)c + fields[i].at;
        json_t *v = NULL;
        switch (fields[i].type) {
        case F_INT: v = json_integer(*(const int *)at); break;
        case F_LONG: v = json_integer(*(const int64_t *)at); break;
        case F_REAL: v = json_real(*(const double *)at); break;
        case F_BOOL: v = json_boolean(*(const bool *)at); break;
        case F_ENUM: v = json_string(fields[i].names[*(const int *)at]); break;
        }
        json_object_set_new(o, fields[i].name, v);
    }
    return o;
}

static err read_enum(const json_t *o, const char *doc, const field *f, int *to) {
    const char *text;
    TRY(io_json_text(o, doc, f->name, &text));
    for (int k = 0; f->names[k]; k++)
        if (!strcmp(f->names[k], text)) {
            *to = k;
            return OK;
        }
    return err_hint(
        ERR("%s: \"%s\" is \"%s\", which this version does not know", doc, f->name, text),
        "use the version of ingot that wrote it");
}

err model_from_json(const json_t *o, const char *doc, model_config *c) {
    const char *name;
    *c = (model_config){ 0 };
    TRY(io_json_text(o, doc, "name", &name));
    snprintf(c->name, sizeof c->name, "%s", name);
    for (size_t i = 0; i < COUNT_OF(fields); i++) {
        const field *f = &fields[i];
        char *at = (char *)c + f->at;
        int64_t n;
        if (f->added && !json_object_get(o, f->name)) continue;
        switch (f->type) {
        case F_INT:
            TRY(io_json_int(o, doc, f->name, &n));
            if (n < 0 || n > INT32_MAX)
                return ERR("%s: \"%s\" is %lld, out of range", doc, f->name, (long long)n);
            *(int *)at = (int)n;
            break;
        case F_LONG: TRY(io_json_int(o, doc, f->name, (int64_t *)at)); break;
        case F_REAL: TRY(io_json_real(o, doc, f->name, (double *)at)); break;
        case F_BOOL: TRY(io_json_bool(o, doc, f->name, (bool *)at)); break;
        case F_ENUM: TRY(read_enum(o, doc, f, (int *)at)); break;
        }
    }
    return model_check(c);
}
