/* Weights under the names and in the layouts of Hugging Face models, by the tables of
 * hf_families.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/hf_internal.h"
#include "io/io.h"

/* Buffers that older versions of transformers saved with the weights: masks and frequencies, which
 * config.json implies. */
static const char *const buffers[] = {
    ".attn.bias",           ".attn.masked_bias", ".attention.bias", ".attention.masked_bias",
    ".rotary_emb.inv_freq",
};

/* ---- names ------------------------------------------------------------------------------- */

/* Numbers for the "%d" of a name: the layer, then the expert. */
typedef struct name_numbers {
    int at[2];
} name_numbers;

/* Matches "l12.attn.q" with "l%d.attn.q". @param n set where the pattern has numbers. */
static bool match_name(const char *pattern, const char *name, name_numbers *n) {
    *n = (name_numbers){ { -1, -1 } };
    for (int i = 0;; i++) {
        const char *hole = strstr(pattern, "%d");
        if (!hole) return strcmp(pattern, name) == 0;
        size_t before = (size_t)(hole - pattern);
        BUG_IF(i == (int)COUNT_OF(n->at));
        if (strncmp(pattern, name, before) != 0) return false;
        if (name[before] < '0' || name[before] > '9') return false;
        char *after;
        long number = strtol(name + before, &after, 10);
        n->at[i] = number > INT32_MAX ? INT32_MAX : (int)number;
        pattern = hole + 2;
        name = after;
    }
}

/* @param c of the model whose parameter it is */
static const hf_param *find_param_row(const hf_param *rows, int count, const model_config *c,
                                      const char *ours, name_numbers *n) {
    for (int i = 0; i < count; i++)
        if (match_name(rows[i].ours, ours, n) &&
            (!(rows[i].how & HF_SHARED) || model_has_experts(c, n->at[0])))
            return &rows[i];
    return NULL;
}

static const hf_param *param_named(const hf_family *family, const model_config *c, const char *ours,
                                   name_numbers *n) {
    return find_param_row(family->params, family->n_params, c, ours, n);
}

/* Puts the numbers into a pattern. @return text of the arena. */
static char *fill_numbers(arena *mem, const char *pattern, name_numbers n) {
    char *text = arena_strdup(mem, pattern);
    for (size_t i = 0; i < COUNT_OF(n.at); i++) {
        const char *hole = strstr(text, "%d");
        if (!hole) break;
        text = arena_printf(mem, "%.*s%d%s", (int)(hole - text), text, n.at[i], hole + 2);
    }
    return text;
}

static err no_such_param(const char *type, const char *ours) {
    return err_hint(ERR("models of type %s have no parameter \"%s\"", type, ours),
                    "choose another family with --family");
}

/* ---- layouts ----------------------------------------------------------------------------- */

/* A parameter, 1 or 2 dims, as a matrix of ours and as the tensor that holds it. */
typedef struct layout {
    int64_t rows, cols; /* ours */
    int64_t their_rows; /* in our orientation: those of the fused q, k and v for a part of it */
    int64_t first;      /* row of theirs that our matrix begins at: of an expert among all */
    int64_t step;       /* between our rows in theirs */
    int64_t base;       /* element of theirs that the matrix of a transposed expert begins at */
    int64_t their_dim[3];
    int ndim, how, head_dim, rotated;
    int group; /* query heads of a key/value head */
    /* Rows in groups: each of ours has `of_group` rows, at row `in_group` of the `per_group` rows of theirs; 0: none. */
    int64_t of_group, in_group, per_group;
} layout;

/* Rows that alternate by head, and those of gated DeltaNet. */
static void place_groups(layout *l, const model_config *c) {
    int64_t keys = c->delta_keys * c->delta_key_dim, values = c->delta_values * c->delta_value_dim;
    int how = l->how, groups = how & HF_BY_KEY ? c->delta_keys : c->heads;
    bool half = how & (HF_GATE | HF_UP);
    int64_t first = how & HF_Z ? 2 * keys + values : how & HF_V ? 2 * keys : how & HF_K ? keys : 0;
    if (how & HF_DELTA) {
        l->their_rows = 2 * keys + values;
        l->first = first;
    } else if (how & HF_BY_KEY || (how & HF_BY_HEAD && half)) {
        if (half) first = how & HF_UP ? l->rows : 0;
        l->their_rows = half ? 2 * l->rows : 2 * (keys + values);
        l->of_group = l->rows / groups;
        l->in_group = first / groups;
        l->per_group = l->their_rows / groups;
    }
}

static layout layout_of(const model_param *p, int how, const model_config *c) {
    BUG_IF(p->ndim < 1 || p->ndim > 2);
    BUG_IF((how & HF_TRANSPOSED) && (how & (HF_BY_HEAD | HF_REFLECTED)));
    layout l = { .rows = p->dim[0], .cols = p->ndim == 2 ? p->dim[1] : 1, .ndim = p->ndim };
    l.step = 1;
    int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    l.how = how;
    l.head_dim = (int)(how & HF_ONE_HEAD ? l.rows : c->head_dim);
    l.rotated = (int)rope_dims(c);
    l.group = c->heads / c->kv_heads;
    if (how & HF_SHORT) l.rows--;
    l.their_rows = how & HF_THIRD ? q + 2 * kv : how & (HF_GATE | HF_UP) ? 2 * l.rows : l.rows;
    l.first = how & HF_V ? q + kv : how & HF_K ? q : how & HF_UP ? l.rows : 0;
    place_groups(&l, c);
    l.their_dim[0] = how & HF_TRANSPOSED ? l.cols : l.their_rows;
    l.their_dim[1] = how & HF_TRANSPOSED ? l.their_rows : l.cols;
    if (how & HF_CONV) {
        l.ndim = 3;
        l.their_dim[1] = 1;
        l.their_dim[2] = l.cols;
    }
    if (how & (HF_KEYS | HF_VALUES)) {
        l.ndim = 3;
        l.per_group = l.rows / c->heads;
        l.of_group = how & HF_KEYS ? l.per_group - c->value_head_dim : c->value_head_dim;
        l.in_group = how & HF_KEYS ? 0 : l.per_group - l.of_group;
        l.their_dim[0] = c->heads;
        l.their_dim[1] = how & HF_KEYS ? l.cols : l.of_group;
        l.their_dim[2] = how & HF_KEYS ? l.of_group : l.cols;
    }
    return l;
}

/* Likewise, for matrix `expert` in a tensor of all experts of a layer. */
static layout stacked_layout(const model_param *p, int how, int expert, const model_config *c) {
    layout l = layout_of(p, how, c);
    bool half = how & (HF_GATE | HF_UP), turned = how & HF_TRANSPOSED;
    int64_t rows = half ? 2 * l.rows : l.rows; /* of one expert */
    BUG_IF(expert < 0 || expert >= c->experts);
    l.ndim = p->ndim + 1;
    l.step = how & HF_INTERLEAVED ? 2 : 1;
    l.first = !(how & HF_UP) ? 0 : how & HF_INTERLEAVED ? 1 : l.rows;
    if (turned)
        l.base = expert * rows * l.cols;
    else
        l.first += expert * rows;
    l.their_dim[0] = c->experts;
    l.their_dim[1] = turned ? l.cols : rows;
    l.their_dim[2] = turned ? rows : l.cols;
    return l;
}

/* @return the row of theirs (in our orientation) that is row r of ours. */
static int64_t their_row(const layout *l, int64_t r) {
    int64_t at = r % l->head_dim, head = r / l->head_dim, half = l->rotated / 2;
    if (l->of_group) return r / l->of_group * l->per_group + l->in_group + r % l->of_group;
    if (l->how & HF_ROTATED_LAST) r += at < 2 * half ? l->head_dim - 2 * half : -2 * half;
    if ((l->how & HF_PAIRED) && at < 2 * half) r += at % half * 2 + at / half - at;
    if (!(l->how & HF_BY_HEAD)) return l->first + r * l->step;
    bool q = l->how & HF_Q;
    int64_t group = q ? head / l->group : head;
    int64_t member = q ? head % l->group : l->group + (l->how & HF_V ? 1 : 0);
    return (group * (l->group + 2) + member) * l->head_dim + at;
}

/* @return what row r is multiplied by, in either direction. */
static float sign_of_row(const layout *l, int64_t r) {
    return l->how & HF_REFLECTED && r % l->head_dim >= l->head_dim / 2 ? -1.0f : 1.0f;
}

/* Columns of a transposed matrix that are read together: one of them at a time would write a float per cache line. */
enum { READ_COLUMNS = 16 };

/* Reads our values from their tensor. @param column holds 2 * READ_COLUMNS * l->rows values. */
static err read_layout(const layout *l, const st_tensor *t, float *column, float *out) {
    if (!(l->how & HF_TRANSPOSED)) {
        for (int64_t r = 0; r < l->rows; r++) {
            TRY(st_read_f32(t, their_row(l, r) * l->cols, l->cols, out + r * l->cols));
            float sign = sign_of_row(l, r);
            for (int64_t c = 0; sign < 0 && c < l->cols; c++) out[r * l->cols + c] *= sign;
        }
        for (int64_t i = 0; (l->how & HF_LESS_ONE) && i < l->rows * l->cols; i++) out[i] += 1;
        return OK;
    }
    int64_t n = (l->rows - 1) * l->step + 1;
    for (int64_t c = 0; c < l->cols; c += READ_COLUMNS) {
        int64_t many = MIN(READ_COLUMNS, l->cols - c);
        for (int64_t k = 0; k < many; k++)
            TRY(st_read_f32(t, l->base + (c + k) * l->their_rows + their_row(l, 0), n,
                            column + k * n));
        for (int64_t r = 0; r < l->rows; r++)
            for (int64_t k = 0; k < many; k++)
                out[r * l->cols + c + k] = column[k * n + r * l->step];
    }
    return OK;
}

/* Rows of keys or of values of each head of latent attention. */
static void write_latent(const layout *l, const float *ours, float *theirs) {
    int64_t rows = l->of_group, cols = l->cols;
    for (int64_t h = 0; h < l->their_dim[0]; h++)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++)
                theirs[h * rows * cols + (l->how & HF_KEYS ? c * rows + r : r * cols + c)] =
                    ours[(h * l->per_group + l->in_group + r) * cols + c];
}

/* Writes our values into their tensor. @param gradients which have no offset */
static void write_layout(const layout *l, bool gradients, const float *ours, float *theirs) {
    if (l->how & (HF_KEYS | HF_VALUES)) {
        write_latent(l, ours, theirs);
        return;
    }
    BUG_IF(l->how & HF_RATE && gradients);
    float offset = (l->how & HF_LESS_ONE) && !gradients ? 1 : 0;
    for (int64_t r = 0; r < l->rows; r++) {
        int64_t to = their_row(l, r);
        for (int64_t c = 0; c < l->cols; c++) {
            float v = ours[r * l->cols + c] * sign_of_row(l, r) - offset;
            theirs[l->how & HF_TRANSPOSED ? l->base + c * l->their_rows + to : to * l->cols + c] =
                l->how & HF_RATE ? -expf(v) : v;
        }
    }
}

/* ---- import ------------------------------------------------------------------------------ */

err hf_open_weights(const char *folder, st_file **out) {
    bool safe = io_has(folder, ST_SINGLE_FILE) || io_has(folder, ST_INDEX_FILE);
    bool pickled =
        io_has(folder, "pytorch_model.bin") || io_has(folder, "pytorch_model.bin.index.json");
    if (safe || !pickled) return st_open(folder, out);
    return err_hint(ERR("%s holds pytorch_model.bin, a pickle of Python objects, and no %s", folder,
                        ST_SINGLE_FILE),
                    "convert it: python3 -c \"from transformers import AutoModelForCausalLM as M; "
                    "M.from_pretrained('%s').save_pretrained('%s-safetensors')\"",
                    folder, folder);
}

/* @return their name as this file has it: with the prefix or without. */
static const char *present_name(arena *mem, const hf_family *family, const st_file *f,
                                const char *pattern, name_numbers n) {
    const char *name = fill_numbers(mem, pattern, n);
    if (st_find(f, name) || !str_starts(name, family->prefix)) return name;
    const char *bare = name + strlen(family->prefix);
    return st_find(f, bare) ? bare : name;
}

/* Chooses the name under which the file has the parameter, and the layout that belongs to it. */
static err locate_param(hf_source *s, const model_param *p, layout *l, const char **name) {
    const hf_family *family = s->family;
    name_numbers n, other;
    const model_config *c = model_conf(s->m);
    const hf_param *r = param_named(family, c, p->name, &n);
    if (!r) return no_such_param(family->model_type, p->name);
    *name = present_name(s->mem, family, s->f, r->theirs, n);
    const hf_param *o = find_param_row(family->others, family->n_others, c, p->name, &other);
    if (o && !st_find(s->f, *name)) {
        const char *second = present_name(s->mem, family, s->f, o->theirs, other);
        const char *packed = arena_printf(s->mem, "%s_blocks", second);
        if (st_find(s->f, o->how & HF_MXFP4 ? packed : second)) {
            *name = second;
            r = o;
        }
    }
    *l = r->how & HF_EXPERT ? stacked_layout(p, r->how, n.at[1], c) : layout_of(p, r->how, c);
    return OK;
}

static bool is_buffer(const char *name) {
    for (size_t i = 0; i < COUNT_OF(buffers); i++)
        if (str_ends(name, buffers[i])) return true;
    return false;
}

/* Whether a tensor belongs to a layer that config.json does not count. */
static bool is_beyond_last(const char *name, int layers) {
    static const char prefix[] = "model.layers.";
    if (str_starts(name, "mtp.")) return true;
    return str_starts(name, prefix) && strtol(name + strlen(prefix), NULL, 10) >= layers;
}

/* A tied model may store its table a second time, as the head. */
static err check_tied_head(arena *mem, const hf_family *family, const model_config *c,
                           const st_file *f, const st_tensor *head) {
    name_numbers n;
    const hf_param *p = param_named(family, c, "embed.tokens", &n);
    const st_tensor *table = st_find(f, present_name(mem, family, f, p->theirs, n));
    if (table && table->dt == head->dt && table->bytes == head->bytes &&
        memcmp(table->data, head->data, head->bytes) == 0)
        return OK;
    return err_hint(ERR("%s: \"%s\" differs from \"%s\", but config.json ties the two "
                        "(\"tie_word_embeddings\")",
                        head->where, head->name, p->theirs),
                    "set \"tie_word_embeddings\" to false in config.json to import both tables");
}

/* Weights left over mean that config.json does not describe the file's model. */
static err check_all_used(arena *mem, const hf_family *family, const st_file *f,
                          const model_config *c, const uint8_t *used) {
    name_numbers n;
    const hf_param *head = param_named(family, c, "head", &n);
    bool ignored = false;
    for (int i = 0; i < st_count(f); i++) {
        const st_tensor *t = st_at(f, i);
        if (used[i] || is_buffer(t->name)) continue;
        if (c->tied && head && strcmp(head->theirs, t->name) == 0) {
            TRY(check_tied_head(mem, family, c, f, t));
            continue;
        }
        if (family->more_layers && is_beyond_last(t->name, c->layers)) {
            ignored = true;
            continue;
        }
        return err_hint(ERR("%s: a %s model of these sizes has no tensor \"%s\"", t->where,
                            family->model_type, t->name),
                        "check that config.json belongs to these weights");
    }
    if (ignored)
        log_warn("layers from %d on, which predict further tokens, are left out", c->layers);
    return OK;
}

static int64_t largest_param(const model *m) {
    int64_t most = 1;
    for (int i = 0; i < model_params(m); i++) {
        layout l = layout_of(model_param_at(m, i), 0, model_conf(m));
        most = MAX(most, l.rows * l.cols);
    }
    return most;
}

err hf_source_open(const hf_family *family, const st_file *f, const model *m, hf_source *out) {
    *out = (hf_source){ .family = family, .f = f, .m = m, .mem = arena_new() };
    out->used = arena_alloc(out->mem, (size_t)st_count(f) + 1);
    out->value_bytes = (size_t)largest_param(m) * sizeof(float);
    int64_t rows = 1;
    for (int i = 0; i < model_params(m); i++) rows = MAX(rows, model_param_at(m, i)->dim[0]);
    out->column_bytes = 2 * READ_COLUMNS * (size_t)rows * sizeof(float);
    TRY(mem_map(out->value_bytes, &out->values));
    return mem_map(out->column_bytes, &out->column);
}

/* Whether files of the family have this state; else it begins as zeros. */
static bool holds_state(const hf_family *family, const model *m, const model_param *p) {
    name_numbers n;
    return param_named(family, model_conf(m), p->name, &n) != NULL;
}

/* Reads a matrix of values in 4 bits. */
static err read_packed(hf_source *s, const layout *l, const char *name, float *out) {
    const st_tensor *part[2]; /* blocks, scales */
    int64_t dim[4] = { l->their_dim[0], l->their_dim[1], l->their_dim[2] / HF_MXFP4_GROUP,
                       HF_MXFP4_GROUP / 2 };
    if (l->cols % HF_MXFP4_GROUP)
        return err_hint(ERR("%s: rows of %lld values, which are not groups of %d", name,
                            (long long)l->cols, HF_MXFP4_GROUP),
                        "check that config.json belongs to these weights");
    for (int k = 0; k < 2; k++) {
        const char *full = arena_printf(s->mem, "%s_%s", name, k ? "scales" : "blocks");
        TRY(st_need(s->f, full, k ? 3 : 4, dim, &part[k]));
        if (part[k]->dt != DT_U8)
            return err_hint(
                ERR("%s: \"%s\": expected bytes; got %s", part[k]->where, full, part[k]->type),
                "check that the file is complete");
        s->used[part[k] - st_at(s->f, 0)] = 1;
    }
    for (int64_t r = 0; r < l->rows; r++)
        hf_mxfp4_row(part[0], part[1], their_row(l, r), l->cols, out + r * l->cols);
    for (int k = 0; k < 2; k++) st_release(part[k]);
    return OK;
}

/* Whether the tensor holds a parameter's n values as they are: then they are read where the file is mapped. */
static bool is_stored_alike(const layout *l, const st_tensor *t, int64_t n) {
    bool alike = t->dt == DT_F32 && (uintptr_t)t->data % sizeof(float) == 0 &&
                 l->rows * l->cols == n && !(l->how & (HF_TRANSPOSED | HF_LESS_ONE | HF_RATE));
    for (int64_t r = 0; alike && r < l->rows; r++)
        alike = their_row(l, r) == their_row(l, 0) + r && sign_of_row(l, r) > 0;
    return alike;
}

/* @return the index of the first value that is infinite or NaN; n: none is. Blocks are added up without a branch, which compilers
 * vectorize. */
static int64_t first_not_finite(const float *v, int64_t n) {
    enum { BLOCK = 4096 };
    for (int64_t from = 0; from < n; from += BLOCK) {
        int64_t end = MIN(from + BLOCK, n);
        int bad = 0;
        for (int64_t k = from; k < end; k++) bad += !isfinite(v[k]);
        for (int64_t k = from; bad && k < end; k++)
            if (!isfinite(v[k])) return k;
    }
    return n;
}

err hf_source_read(hf_source *s, int i, const float **values) {
    const model_param *p = model_param_at(s->m, i);
    float *v = s->values;
    int64_t n = p->dim[0] * p->dim[1];
    const st_tensor *t;
    const char *name = NULL;
    layout l;
    if (s->mapped) st_release(s->mapped);
    s->mapped = NULL;
    *values = v;
    if (p->role == ROLE_STATE && !holds_state(s->family, s->m, p)) {
        memset(v, 0, (size_t)n * sizeof *v);
        return OK;
    }
    TRY(locate_param(s, p, &l, &name));
    int64_t theirs = l.rows * l.cols; /* a table may be a row shorter there */
    memset(v + theirs, 0, (size_t)(n - theirs) * sizeof *v);
    if (l.how & HF_MXFP4) {
        TRY(read_packed(s, &l, name, v));
    } else {
        TRY(st_need(s->f, name, l.ndim, l.their_dim, &t));
        s->used[t - st_at(s->f, 0)] = 1;
        s->mapped = t;
        if (is_stored_alike(&l, t, n))
            *values = (const float *)(const void *)t->data + their_row(&l, 0) * l.cols;
        else
            TRY(read_layout(&l, t, s->column, v));
    }
    int64_t k = first_not_finite(*values, n);
    if (k == n) return OK;
    return err_hint(ERR("%s: element %lld is %g", p->name, (long long)k, (double)(*values)[k]),
                    "use another file: this one is damaged, or its training had diverged");
}

err hf_source_end(hf_source *s) {
    return check_all_used(s->mem, s->family, s->f, model_conf(s->m), s->used);
}

void hf_source_close(hf_source *s) {
    if (s->column) mem_unmap(s->column, s->column_bytes);
    if (s->values) mem_unmap(s->values, s->value_bytes);
    if (s->mem) arena_free(s->mem);
}

err hf_import_params(const hf_family *family, const st_file *f, const model *m,
                     err (*put)(void *ctx, int i, const float *values), void *ctx) {
    hf_source s;
    err e = hf_source_open(family, f, m, &s);
    for (int i = 0; i < model_params(m) && !e; i++) {
        const float *values;
        const model_param *p = model_param_at(m, i);
        if (p->role == ROLE_STATE && !holds_state(family, m, p)) continue;
        e = hf_source_read(&s, i, &values);
        if (!e) e = put(ctx, i, values);
    }
    if (!e) e = hf_source_end(&s);
    hf_source_close(&s);
    return e;
}

/* ---- export ------------------------------------------------------------------------------ */

/* Describes a file of another format: its tensors, each of one or several parameters of ours. */
struct hf_tensors {
    arena *mem;
    const model *m; /* borrowed: that is written */
    model *full;    /* the same with every bias that the family's models have */
    hf_tensor *t;
    int *first_part; /* of each tensor; -1: none */
    struct tensor_part {
        int param; /* of `full` */
        int next;  /* part of the same tensor; -1: none */
        layout l;
    } * part;
    int n, parts;
    void *ours, *theirs;
    size_t our_bytes, their_bytes;
    hf_getter get;
};

err hf_tensors_read(hf_tensors *x, int i, const float **values) {
    for (int k = x->first_part[i]; k >= 0; k = x->part[k].next) {
        const model_param *p = model_param_at(x->full, x->part[k].param);
        int own = model_find_param(x->m, p->name);
        if (own >= 0) {
            TRY(x->get.get(x->get.ctx, own, x->ours));
        } else {
            /* the family's config has refused all other differences */
            BUG_IF(!str_ends(p->name, ".b"));
            memset(x->ours, 0, (size_t)(p->dim[0] * p->dim[1]) * sizeof(float));
        }
        write_layout(&x->part[k].l, x->get.gradients, x->ours, x->theirs);
    }
    *values = x->theirs;
    return OK;
}

int hf_tensors_count(const hf_tensors *x) { return x->n; }
const hf_tensor *hf_tensors_at(const hf_tensors *x, int i) { return &x->t[i]; }

/* @return the tensor of that name, new where there was none. Parts of one follow each other closely. */
static int tensor_named(hf_tensors *x, const char *name, const layout *l) {
    for (int i = x->n - 1; i >= 0; i--)
        if (strcmp(x->t[i].name, name) == 0) return i;
    hf_tensor *t = &x->t[x->n];
    *t = (hf_tensor){ .name = name, .ndim = l->ndim, .count = 1 };
    for (int k = 0; k < l->ndim; k++) t->count *= t->dim[k] = l->their_dim[k];
    x->first_part[x->n] = -1;
    return x->n++;
}

/* Adds a parameter to the tensor that a row names. */
static void add_tensor_part(hf_tensors *x, const hf_param *row, int param, name_numbers numbers) {
    const model_param *p = model_param_at(x->full, param);
    const model_config *c = model_conf(x->full);
    struct tensor_part *part = &x->part[x->parts];
    part->param = param;
    part->l = row->how & HF_EXPERT ? stacked_layout(p, row->how, numbers.at[1], c)
                                   : layout_of(p, row->how, c);
    int at = tensor_named(x, fill_numbers(x->mem, row->theirs, numbers), &part->l);
    part->next = x->first_part[at];
    x->first_part[at] = x->parts++;
    x->their_bytes = MAX(x->their_bytes, (size_t)x->t[at].count * sizeof(float));
}

static err list_tensors(hf_tensors *x, const char *type, const hf_param *rows, int n_rows) {
    size_t n = 2 * (size_t)model_params(x->full) + 1;
    x->t = arena_alloc(x->mem, n * sizeof *x->t);
    x->first_part = arena_alloc(x->mem, n * sizeof *x->first_part);
    x->part = arena_alloc(x->mem, n * sizeof *x->part);
    for (int i = 0; i < model_params(x->full); i++) {
        const model_param *p = model_param_at(x->full, i);
        name_numbers numbers;
        const hf_param *q = find_param_row(rows, n_rows, model_conf(x->full), p->name, &numbers);
        if (p->role == ROLE_STATE && (!q || x->get.gradients)) continue;
        if (!q) return no_such_param(type, p->name);
        add_tensor_part(x, q, i, numbers);
        if (q->how & HF_KEYS) add_tensor_part(x, q + 1, i, numbers);
    }
    return OK;
}

err hf_tensors_open(const hf_family *family, const char *type, const hf_param *rows, int n_rows,
                    const model *m, hf_getter get, hf_tensors **out) {
    err e = OK;
    hf_tensors *x = mem_alloc(sizeof *x);
    model_config c = *model_conf(m);
    *x = (hf_tensors){ .mem = arena_new(), .m = m, .get = get };
    x->our_bytes = (size_t)largest_param(m) * sizeof(float);
    hf_add_biases(family, &c);
    TRY_CLEAN(model_new(&c, &(model_layout){ .dt = DT_F32 }, &x->full));
    TRY_CLEAN(list_tensors(x, type, rows, n_rows));
    TRY_CLEAN(mem_map(x->our_bytes, &x->ours));
    TRY_CLEAN(mem_map(x->their_bytes, &x->theirs));
    *out = x;
    return OK;
cleanup:
    hf_tensors_close(x);
    return e;
}

void hf_tensors_close(hf_tensors *x) {
    if (!x) return;
    if (x->theirs) mem_unmap(x->theirs, x->their_bytes);
    if (x->ours) mem_unmap(x->ours, x->our_bytes);
    model_free(x->full);
    arena_free(x->mem);
    free(x);
}

err hf_check_narrow(const char *name, dtype dt, int64_t at, const float *from, const void *to,
                    int64_t n) {
    for (int64_t k = 0; k < n; k++) {
        float back;
        dt_to_f32(dt, (const char *)to + (size_t)k * dt_size(dt), &back, 1);
        if (isfinite(back)) continue;
        err e = ERR("%s: element %lld is %g, which %s cannot hold", name, (long long)(at + k),
                    (double)from[k], dt_name(dt));
        if (isfinite(from[k])) return err_hint(e, "export with --dtype=bf16 or --dtype=fp32");
        return err_hint(e, "export an earlier checkpoint: the training of this one has failed");
    }
    return OK;
}

typedef struct tensor_fill {
    hf_tensors *x;
    dtype dt;
} tensor_fill;

static err fill_tensor(void *ctx, int i, st_sink *sink) {
    const tensor_fill *f = ctx;
    const hf_tensor *t = hf_tensors_at(f->x, i);
    const float *values;
    uint8_t piece[4096];
    int64_t step = (int64_t)(sizeof piece / dt_size(f->dt));
    TRY(hf_tensors_read(f->x, i, &values));
    for (int64_t at = 0; at < t->count; at += step) {
        int64_t n = MIN(step, t->count - at);
        dt_from_f32(f->dt, values + at, piece, n);
        TRY(hf_check_narrow(t->name, f->dt, at, values + at, piece, n));
        TRY(st_emit(sink, piece, (size_t)n * dt_size(f->dt)));
    }
    return OK;
}

static err export_tensors(const hf_family *family, const char *folder, const model *m, dtype dt,
                          size_t max_file_bytes, hf_getter get) {
    hf_tensors *x;
    BUG_IF(!dt_is_float(dt));
    TRY(hf_tensors_open(family, family->model_type, family->params, family->n_params, m, get, &x));
    tensor_fill fill = { x, dt };
    st_spec *specs = mem_alloc((size_t)(x->n + 1) * sizeof *specs);
    for (int i = 0; i < x->n; i++) {
        specs[i] = (st_spec){ .name = x->t[i].name, .dt = dt, .ndim = x->t[i].ndim };
        for (int k = 0; k < x->t[i].ndim; k++) specs[i].dim[k] = x->t[i].dim[k];
    }
    err e = st_write_folder(folder, specs, x->n, max_file_bytes, (st_source){ fill_tensor, &fill });
    free(specs);
    hf_tensors_close(x);
    return e;
}

err hf_export_params(const hf_family *family, const char *folder, const model *m, dtype dt,
                     size_t max_file_bytes, err (*get)(void *ctx, int i, float *values),
                     void *ctx) {
    return export_tensors(family, folder, m, dt, max_file_bytes, (hf_getter){ get, ctx, false });
}

err hf_export_gradients(const hf_family *family, const char *folder, const model *m,
                        err (*get)(void *ctx, int i, float *values), void *ctx) {
    return export_tensors(family, folder, m, DT_F32, 0, (hf_getter){ get, ctx, true });
}
