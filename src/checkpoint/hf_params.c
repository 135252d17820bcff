/* Parameters under the names and in the layouts of Hugging Face models: one table a family, and
 * the two functions that walk it. */
#include "checkpoint/checkpoint.h"

#include <stdlib.h>
#include <string.h>

/* How our [rows, cols] lies in their tensor:
 *   0           the same
 *   TRANSPOSED  [cols, rows]: GPT-2 keeps its products as x W instead of x W^T
 *   Q, K, V     a third of a tensor with three times the rows, the thirds one after the other
 *   BY_HEAD     with Q, K or V: the thirds alternate by head, q0 k0 v0 q1 k1 v1 ...          */
enum { TRANSPOSED = 1, Q = 2, K = 4, V = 8, BY_HEAD = 16, THIRD = Q | K | V };

typedef struct row {
    const char *ours, *theirs; /* %d: the layer */
    int how;
} row;

struct hf_family {
    const char *model_type;
    const char *prefix; /* files of the bare model, without head, leave it out */
    const row *rows;
    int n;
};

/* clang-format off */
static const row gpt2_rows[] = {
    { "embed.tokens",    "transformer.wte.weight",                  0 },
    { "embed.positions", "transformer.wpe.weight",                  0 },
    { "l%d.norm1.w",     "transformer.h.%d.ln_1.weight",            0 },
    { "l%d.norm1.b",     "transformer.h.%d.ln_1.bias",              0 },
    { "l%d.attn.q",      "transformer.h.%d.attn.c_attn.weight",     Q | TRANSPOSED },
    { "l%d.attn.k",      "transformer.h.%d.attn.c_attn.weight",     K | TRANSPOSED },
    { "l%d.attn.v",      "transformer.h.%d.attn.c_attn.weight",     V | TRANSPOSED },
    { "l%d.attn.q.b",    "transformer.h.%d.attn.c_attn.bias",       Q },
    { "l%d.attn.k.b",    "transformer.h.%d.attn.c_attn.bias",       K },
    { "l%d.attn.v.b",    "transformer.h.%d.attn.c_attn.bias",       V },
    { "l%d.attn.o",      "transformer.h.%d.attn.c_proj.weight",     TRANSPOSED },
    { "l%d.attn.o.b",    "transformer.h.%d.attn.c_proj.bias",       0 },
    { "l%d.norm2.w",     "transformer.h.%d.ln_2.weight",            0 },
    { "l%d.norm2.b",     "transformer.h.%d.ln_2.bias",              0 },
    { "l%d.mlp.up",      "transformer.h.%d.mlp.c_fc.weight",        TRANSPOSED },
    { "l%d.mlp.up.b",    "transformer.h.%d.mlp.c_fc.bias",          0 },
    { "l%d.mlp.down",    "transformer.h.%d.mlp.c_proj.weight",      TRANSPOSED },
    { "l%d.mlp.down.b",  "transformer.h.%d.mlp.c_proj.bias",        0 },
    { "norm.w",          "transformer.ln_f.weight",                 0 },
    { "norm.b",          "transformer.ln_f.bias",                   0 },
    { "head",            "lm_head.weight",                          0 },
};

static const row gpt_neox_rows[] = {
    { "embed.tokens",    "gpt_neox.embed_in.weight",                                 0 },
    { "l%d.norm1.w",     "gpt_neox.layers.%d.input_layernorm.weight",                0 },
    { "l%d.norm1.b",     "gpt_neox.layers.%d.input_layernorm.bias",                  0 },
    { "l%d.attn.q",      "gpt_neox.layers.%d.attention.query_key_value.weight",      Q | BY_HEAD },
    { "l%d.attn.k",      "gpt_neox.layers.%d.attention.query_key_value.weight",      K | BY_HEAD },
    { "l%d.attn.v",      "gpt_neox.layers.%d.attention.query_key_value.weight",      V | BY_HEAD },
    { "l%d.attn.q.b",    "gpt_neox.layers.%d.attention.query_key_value.bias",        Q | BY_HEAD },
    { "l%d.attn.k.b",    "gpt_neox.layers.%d.attention.query_key_value.bias",        K | BY_HEAD },
    { "l%d.attn.v.b",    "gpt_neox.layers.%d.attention.query_key_value.bias",        V | BY_HEAD },
    { "l%d.attn.o",      "gpt_neox.layers.%d.attention.dense.weight",                0 },
    { "l%d.attn.o.b",    "gpt_neox.layers.%d.attention.dense.bias",                  0 },
    { "l%d.norm2.w",     "gpt_neox.layers.%d.post_attention_layernorm.weight",       0 },
    { "l%d.norm2.b",     "gpt_neox.layers.%d.post_attention_layernorm.bias",         0 },
    { "l%d.mlp.up",      "gpt_neox.layers.%d.mlp.dense_h_to_4h.weight",              0 },
    { "l%d.mlp.up.b",    "gpt_neox.layers.%d.mlp.dense_h_to_4h.bias",                0 },
    { "l%d.mlp.down",    "gpt_neox.layers.%d.mlp.dense_4h_to_h.weight",              0 },
    { "l%d.mlp.down.b",  "gpt_neox.layers.%d.mlp.dense_4h_to_h.bias",                0 },
    { "norm.w",          "gpt_neox.final_layer_norm.weight",                         0 },
    { "norm.b",          "gpt_neox.final_layer_norm.bias",                           0 },
    { "head",            "embed_out.weight",                                         0 },
};

/* Llama's names are those of Mistral, Qwen2 (with q, k, v biases) and Qwen3 (with q and k norms)
 * too. OLMo-2 norms what a sublayer gives instead of what it takes. */
#define LLAMA_ROWS(NORM1, NORM2)                                                                 \
    { "embed.tokens",    "model.embed_tokens.weight",                     0 },                   \
    { "l%d.norm1.w",     "model.layers.%d." NORM1 ".weight",              0 },                   \
    { "l%d.attn.q",      "model.layers.%d.self_attn.q_proj.weight",       0 },                   \
    { "l%d.attn.k",      "model.layers.%d.self_attn.k_proj.weight",       0 },                   \
    { "l%d.attn.v",      "model.layers.%d.self_attn.v_proj.weight",       0 },                   \
    { "l%d.attn.q.b",    "model.layers.%d.self_attn.q_proj.bias",         0 },                   \
    { "l%d.attn.k.b",    "model.layers.%d.self_attn.k_proj.bias",         0 },                   \
    { "l%d.attn.v.b",    "model.layers.%d.self_attn.v_proj.bias",         0 },                   \
    { "l%d.attn.qnorm",  "model.layers.%d.self_attn.q_norm.weight",       0 },                   \
    { "l%d.attn.knorm",  "model.layers.%d.self_attn.k_norm.weight",       0 },                   \
    { "l%d.attn.o",      "model.layers.%d.self_attn.o_proj.weight",       0 },                   \
    { "l%d.norm2.w",     "model.layers.%d." NORM2 ".weight",              0 },                   \
    { "l%d.mlp.gate",    "model.layers.%d.mlp.gate_proj.weight",          0 },                   \
    { "l%d.mlp.up",      "model.layers.%d.mlp.up_proj.weight",            0 },                   \
    { "l%d.mlp.down",    "model.layers.%d.mlp.down_proj.weight",          0 },                   \
    { "norm.w",          "model.norm.weight",                             0 },                   \
    { "head",            "lm_head.weight",                                0 },
/* clang-format on */
static const row llama_rows[] = { LLAMA_ROWS("input_layernorm", "post_attention_layernorm") };
static const row olmo2_rows[] = { LLAMA_ROWS("post_attention_layernorm",
                                             "post_feedforward_layernorm") };

#define ROWS(table) table, (int)COUNT_OF(table)
static const hf_family families[] = {
    { "gpt2", "transformer.", ROWS(gpt2_rows) }, { "gpt_neox", "gpt_neox.", ROWS(gpt_neox_rows) },
    { "llama", "model.", ROWS(llama_rows) },     { "mistral", "model.", ROWS(llama_rows) },
    { "qwen2", "model.", ROWS(llama_rows) },     { "qwen3", "model.", ROWS(llama_rows) },
    { "olmo2", "model.", ROWS(olmo2_rows) },
};

/* Buffers that older versions of transformers saved with the weights: masks and frequencies, which
 * config.json implies. */
static const char *const buffers[] = {
    ".attn.bias",           ".attn.masked_bias", ".attention.bias", ".attention.masked_bias",
    ".rotary_emb.inv_freq",
};

const hf_family *hf_family_of(const char *model_type) {
    for (size_t i = 0; i < COUNT_OF(families); i++)
        if (strcmp(families[i].model_type, model_type) == 0) return &families[i];
    return NULL;
}

const hf_family *hf_family_at(int i) { return i < (int)COUNT_OF(families) ? &families[i] : NULL; }

const char *hf_family_type(const hf_family *family) { return family->model_type; }

/* ---- names ------------------------------------------------------------------------------- */

/* Fits "l12.attn.q" to "l%d.attn.q". @param layer set where the pattern has one, else -1. */
static bool fits(const char *pattern, const char *name, int *layer) {
    const char *hole = strstr(pattern, "%d");
    *layer = -1;
    if (!hole) return strcmp(pattern, name) == 0;
    size_t before = (size_t)(hole - pattern);
    if (strncmp(pattern, name, before) != 0) return false;
    if (name[before] < '0' || name[before] > '9') return false;
    char *after;
    long n = strtol(name + before, &after, 10);
    *layer = n > INT32_MAX ? INT32_MAX : (int)n;
    return strcmp(after, hole + 2) == 0;
}

static const row *row_of(const hf_family *family, const char *ours, int *layer) {
    for (int i = 0; i < family->n; i++)
        if (fits(family->rows[i].ours, ours, layer)) return &family->rows[i];
    return NULL;
}

/* Puts the layer into a pattern. @return text of the arena. */
static char *name_for(arena *mem, const char *pattern, int layer) {
    const char *hole = strstr(pattern, "%d");
    if (!hole) return arena_strdup(mem, pattern);
    return arena_printf(mem, "%.*s%d%s", (int)(hole - pattern), pattern, layer, hole + 2);
}

static err no_row(const hf_family *family, const char *ours) {
    return err_hint(
        ERR("models of the family %s have no parameter \"%s\"", family->model_type, ours),
        "choose settings that this family has, or another family");
}

static int head_dim_of(const model *m) { return (int)model_conf(m)->head_dim; }

/* ---- layouts ----------------------------------------------------------------------------- */

/* A parameter, 1 or 2 dims, as a matrix of ours and as the tensor that holds it. */
typedef struct layout {
    int64_t rows, cols; /* ours */
    int64_t their_rows; /* in our orientation: thrice ours for a third */
    int64_t their_dim[2];
    int ndim, how, head_dim;
} layout;

static layout layout_of(const model_param *p, int how, int head_dim) {
    BUG_IF(p->ndim < 1 || p->ndim > 2);
    BUG_IF((how & TRANSPOSED) && (how & BY_HEAD));
    layout l = { .rows = p->dim[0], .cols = p->ndim == 2 ? p->dim[1] : 1, .ndim = p->ndim };
    l.how = how;
    l.head_dim = head_dim;
    l.their_rows = l.rows * (how & THIRD ? 3 : 1);
    l.their_dim[0] = how & TRANSPOSED ? l.cols : l.their_rows;
    l.their_dim[1] = how & TRANSPOSED ? l.their_rows : l.cols;
    return l;
}

/* @return the row of theirs (in our orientation) that is row r of ours. */
static int64_t their_row(const layout *l, int64_t r) {
    int64_t third = l->how & V ? 2 : l->how & K ? 1 : 0;
    if (l->how & BY_HEAD) return (r / l->head_dim * 3 + third) * l->head_dim + r % l->head_dim;
    return third * l->rows + r;
}

/* Our values from their tensor. @param column room for l->rows values. */
static err read_layout(const layout *l, const st_tensor *t, float *column, float *out) {
    if (!(l->how & TRANSPOSED)) {
        for (int64_t r = 0; r < l->rows; r++)
            TRY(st_read_f32(t, their_row(l, r) * l->cols, l->cols, out + r * l->cols));
        return OK;
    }
    for (int64_t c = 0; c < l->cols; c++) {
        TRY(st_read_f32(t, c * l->their_rows + their_row(l, 0), l->rows, column));
        for (int64_t r = 0; r < l->rows; r++) out[r * l->cols + c] = column[r];
    }
    return OK;
}

/* Our values into their tensor. */
static void place_layout(const layout *l, const float *ours, float *theirs) {
    for (int64_t r = 0; r < l->rows; r++) {
        int64_t to = their_row(l, r);
        for (int64_t c = 0; c < l->cols; c++)
            theirs[l->how & TRANSPOSED ? c * l->their_rows + to : to * l->cols + c] =
                ours[r * l->cols + c];
    }
}

/* ---- import ------------------------------------------------------------------------------ */

/* @return their name as this file has it: with the prefix or without. */
static const char *present_name(arena *mem, const hf_family *family, const st_file *f,
                                const char *pattern, int layer) {
    const char *name = name_for(mem, pattern, layer);
    if (st_find(f, name) || !str_starts(name, family->prefix)) return name;
    const char *bare = name + strlen(family->prefix);
    return st_find(f, bare) ? bare : name;
}

static err import_one(arena *mem, const hf_family *family, const st_file *f, const model *m, int i,
                      float *column, float *values, uint8_t *used) {
    const model_param *p = model_param_at(m, i);
    int layer;
    const row *r = row_of(family, p->name, &layer);
    if (!r) return no_row(family, p->name);
    layout l = layout_of(p, r->how, head_dim_of(m));
    const st_tensor *t;
    const char *name = present_name(mem, family, f, r->theirs, layer);
    TRY(st_need(f, name, l.ndim, l.their_dim, &t));
    used[t - st_at(f, 0)] = 1;
    return read_layout(&l, t, column, values);
}

static bool is_buffer(const char *name) {
    for (size_t i = 0; i < COUNT_OF(buffers); i++)
        if (str_ends(name, buffers[i])) return true;
    return false;
}

/* Weights left over mean that this is another model than we think. */
static err check_all_used(const hf_family *family, const st_file *f, bool tied,
                          const uint8_t *used) {
    int layer;
    const row *head = row_of(family, "head", &layer);
    for (int i = 0; i < st_count(f); i++) {
        const st_tensor *t = st_at(f, i);
        if (used[i] || is_buffer(t->name)) continue;
        if (tied && head && strcmp(head->theirs, t->name) == 0) continue; /* a second copy */
        return err_hint(ERR("%s: tensor \"%s\" has no place in a %s model of these settings",
                            t->where, t->name, family->model_type),
                        "check that config.json belongs to these weights");
    }
    return OK;
}

static int64_t most_values(const model *m) {
    int64_t most = 1;
    for (int i = 0; i < model_params(m); i++) {
        layout l = layout_of(model_param_at(m, i), 0, head_dim_of(m));
        most = MAX(most, l.rows * l.cols);
    }
    return most;
}

err hf_import_params(const hf_family *family, const st_file *f, const model *m,
                     err (*put)(void *ctx, int i, const float *values), void *ctx) {
    err e = OK;
    arena *mem = arena_new();
    uint8_t *used = arena_alloc(mem, (size_t)st_count(f) + 1);
    size_t room = (size_t)most_values(m) * sizeof(float);
    void *values = NULL, *column = NULL;
    TRY_CLEAN(mem_map(room, &values));
    TRY_CLEAN(mem_map(room, &column));
    for (int i = 0; i < model_params(m); i++) {
        TRY_CLEAN(import_one(mem, family, f, m, i, column, values, used));
        TRY_CLEAN(put(ctx, i, values));
    }
    TRY_CLEAN(check_all_used(family, f, model_conf(m)->tied, used));
cleanup:
    if (column) mem_unmap(column, room);
    if (values) mem_unmap(values, room);
    arena_free(mem);
    return e;
}

/* ---- export ------------------------------------------------------------------------------ */

/* One tensor of theirs and the parameters of ours it is made of. */
typedef struct made_of {
    int part[3], n;
} made_of;

typedef struct exporter {
    const model *m;
    dtype dt;
    st_spec *specs;
    made_of *parts;
    layout *layouts; /* of each parameter */
    int n;
    float *ours, *theirs;
    err (*get)(void *ctx, int i, float *values);
    void *ctx;
} exporter;

static err fill_tensor(void *ctx, int i, st_sink *sink) {
    exporter *x = ctx;
    const layout *l = NULL;
    for (int k = 0; k < x->parts[i].n; k++) {
        int p = x->parts[i].part[k];
        l = &x->layouts[p];
        TRY(x->get(x->ctx, p, x->ours));
        place_layout(l, x->ours, x->theirs);
    }
    uint8_t piece[4096];
    int64_t count = l->their_dim[0] * l->their_dim[1];
    int64_t step = (int64_t)(sizeof piece / dt_size(x->dt));
    for (int64_t at = 0; at < count; at += step) {
        int64_t n = MIN(step, count - at);
        dt_from_f32(x->dt, x->theirs + at, piece, n);
        TRY(st_emit(sink, piece, (size_t)n * dt_size(x->dt)));
    }
    return OK;
}

/* @return the tensor of that name, new where there was none. Thirds come in sequence. */
static int tensor_named(exporter *x, const char *name, const layout *l) {
    for (int i = x->n - 1; i >= 0; i--)
        if (strcmp(x->specs[i].name, name) == 0) return i;
    st_spec *s = &x->specs[x->n];
    *s = (st_spec){ .name = name, .dt = x->dt, .ndim = l->ndim };
    s->dim[0] = l->their_dim[0];
    if (l->ndim == 2) s->dim[1] = l->their_dim[1];
    return x->n++;
}

static err plan_tensors(arena *mem, const hf_family *family, exporter *x) {
    size_t n = (size_t)model_params(x->m) + 1;
    x->specs = arena_alloc(mem, n * sizeof *x->specs);
    x->parts = arena_alloc(mem, n * sizeof *x->parts);
    x->layouts = arena_alloc(mem, n * sizeof *x->layouts);
    for (int i = 0; i < model_params(x->m); i++) {
        const model_param *p = model_param_at(x->m, i);
        int layer;
        const row *r = row_of(family, p->name, &layer);
        if (!r) return no_row(family, p->name);
        x->layouts[i] = layout_of(p, r->how, head_dim_of(x->m));
        made_of *m = &x->parts[tensor_named(x, name_for(mem, r->theirs, layer), &x->layouts[i])];
        BUG_IF(m->n == 3);
        m->part[m->n++] = i;
    }
    for (int i = 0; i < x->n; i++)
        BUG_IF(x->parts[i].n != (x->layouts[x->parts[i].part[0]].how & THIRD ? 3 : 1));
    return OK;
}

err hf_export_params(const hf_family *family, const char *folder, const model *m, dtype dt,
                     size_t max_file_bytes, err (*get)(void *ctx, int i, float *values),
                     void *ctx) {
    err e = OK;
    arena *mem = arena_new();
    exporter x = { .m = m, .dt = dt, .get = get, .ctx = ctx };
    size_t room = (size_t)most_values(m) * sizeof(float);
    void *ours = NULL, *theirs = NULL;
    BUG_IF(!dt_is_float(dt));
    TRY_CLEAN(plan_tensors(mem, family, &x));
    TRY_CLEAN(mem_map(room, &ours));
    TRY_CLEAN(mem_map(3 * room, &theirs));
    x.ours = ours;
    x.theirs = theirs;
    TRY_CLEAN(
        st_write_folder(folder, x.specs, x.n, max_file_bytes, (st_source){ fill_tensor, &x }));
cleanup:
    if (theirs) mem_unmap(theirs, 3 * room);
    if (ours) mem_unmap(ours, room);
    arena_free(mem);
    return e;
}
