/* Every fact of a model, in every Hugging Face family: one that a family's table holds goes out and comes back, one that
 * it does not hold is refused, and none is lost. The models and the expectations are derived from the tables. */
#include "support/facts.h"
#include "support/hf.h"

#include "checkpoint/hf_internal.h"

#include <math.h>

/* Sizes that files must state, such that every family's defaults go with them. */
static const struct {
    size_t at;
    int value;
} sizes[] = {
    { offsetof(model_config, vocab), 80 },    { offsetof(model_config, max_seq), 64 },
    { offsetof(model_config, dim), 256 },     { offsetof(model_config, layers), 12 },
    { offsetof(model_config, heads), 32 },    { offsetof(model_config, ffn), 36 },
    { offsetof(model_config, kv_latent), 6 }, { offsetof(model_config, rope_head_dim), 8 },
    { offsetof(model_config, head_dim), 4 }, /* of latent attention: those that do not rotate */
    { offsetof(model_config, groups), 8 },    { offsetof(model_config, group_limit), 3 },
};

/* A model of the family in which everything that a file may leave out has its default. */
static model_config least_model(test_folder *dir, const hf_family *family) {
    json_t *doc = json_pack("{s:s}", "model_type", family->model_type);
    for (int i = 0; i < family->n_keys; i++) {
        const hf_key *k = &family->keys[i];
        if (!k->theirs || k->absent != HF_REFUSED) continue;
        size_t s = 0;
        while (s < COUNT_OF(sizes) && sizes[s].at != k->at) s++;
        if (s == COUNT_OF(sizes)) fail_msg("%s: no size for %s", family->model_type, k->theirs);
        json_object_set_new(doc, k->theirs, json_integer(sizes[s].value));
    }
    for (int i = 0; i < family->n_demands; i++) /* one may tell the row from others of its type */
        if (!family->demands[i].any)
            json_object_set_new(doc, family->demands[i].theirs,
                                json_loads(family->demands[i].json, JSON_DECODE_ANY, NULL));
    for (int i = 0; i < family->n_when; i++)
        json_object_set_new(doc, family->when[i].theirs,
                            json_loads(family->when[i].json, JSON_DECODE_ANY, NULL));
    if (family->dense_key) json_object_set_new(doc, family->dense_key, json_integer(12));
    if (family->states_rope)
        json_object_set_new(doc, "rope_scaling", json_pack("{s:s}", "rope_type", "default"));
    char *text = json_dumps(doc, 0);
    folder_write(dir, "config.json", text);
    free(text);
    json_decref(doc);
    model_config c;
    const hf_family *found;
    assert_ok(hf_import_config(dir->path, &c, &found, NULL));
    assert_ptr_equal(found, family);
    return c;
}

static const hf_key *key_of(const hf_family *family, const model_fact *f) {
    for (int i = 0; i < family->n_keys; i++)
        if (family->keys[i].at == f->at) return &family->keys[i];
    return NULL;
}

/* Facts whose expression is not a key of the table: positions, kinds of layers and the activation. */
static bool is_apart(const model_fact *f) {
    return (f->flags & FACT_OF_ANY_ROPE) || f->at == offsetof(model_config, layer_pattern) ||
           f->at == offsetof(model_config, mlp);
}

/* Sets a fact, and those that one key of config.json holds with it. */
static void set_with_key(const hf_family *family, const model_fact *f, model_config *c, double v) {
    const hf_key *k = key_of(family, f);
    if (f->type == FACT_LIST) {
        set_other_value(f, c);
        return;
    }
    model_fact_set(f, c, v);
    if (f->at == offsetof(model_config, rope_scaling)) fill_rope_lists(c);
    for (int i = 0; k && k->theirs && k->use == HF_USED && i < family->n_keys; i++) {
        const hf_key *other = &family->keys[i];
        for (int j = 0; j < model_facts(); j++)
            if (other->theirs && !strcmp(other->theirs, k->theirs) &&
                model_fact_at(j)->at == other->at)
                model_fact_set(model_fact_at(j), c, v);
    }
}

/* Sizes that follow from others in every model of the family. */
static void follow_sizes(const hf_family *family, model_config *c) {
    for (int i = 0; i < family->n_keys; i++) {
        const hf_key *k = &family->keys[i];
        if (k->use != HF_IMPLIED) continue;
        if (k->absent == HF_HEADS) c->kv_heads = c->heads;
        if (k->absent == HF_4_DIM) c->ffn = 4 * c->dim;
        if (k->absent == HF_HEAD_DIM) c->head_dim = c->dim / c->heads;
        if (k->absent == HF_SQRT_DIM) c->embedding_scale = sqrt((double)c->dim);
    }
    if (c->kv_latent) c->kv_heads = c->heads; /* other numbers contradict it */
}

/* Other values of a fact. @return how many */
enum { MOST_VALUES = 16 };
static int other_values(const model_fact *f, double v, double out[MOST_VALUES]) {
    int n = 0;
    if (f->type == FACT_BOOL) out[n++] = !v;
    if (f->type == FACT_LIST) out[n++] = v; /* other numbers, as many */
    for (int i = 0; f->type == FACT_CHOICE && i <= (int)f->max; i++)
        if (i != (int)v) out[n++] = i;
    if (f->type == FACT_INT || f->type == FACT_REAL) {
        const double tried[] = { v / 2, 2 * v, v + 1, 0, 1, 2, 4, 5, 12, 24, 14, 34, f->max / 8 };
        for (size_t i = 0; i < COUNT_OF(tried); i++)
            if (tried[i] != v && model_fact_legal(f, tried[i])) out[n++] = tried[i];
    }
    BUG_IF(n > MOST_VALUES);
    return n;
}

/* States widths of experts that 0 stands for, as files do. */
static void resolve_widths(model_config *c) {
    if (!c->experts) return;
    c->expert_dim = model_expert_dim(c);
    if (c->shared_experts && !c->shared_dim) c->shared_dim = c->shared_experts * c->expert_dim;
}

/* Two patterns may mean the same layers: that of the first is then that of the second, too. A window that no layer has is
 * left out. */
static void same_pattern(model_config *a, const model_config *b) {
    bool same = a->layers == b->layers, windows = false;
    for (int l = 0; l < a->layers; l++) windows |= model_layer_kind(a, l) % 2;
    if (!windows) a->window = 0;
    for (int l = 0; same && l < a->layers; l++)
        same = model_layer_kind(a, l) == model_layer_kind(b, l);
    if (same) a->layer_pattern = b->layer_pattern;
}

typedef struct tally {
    int exported, refused;
    bool seen[256]; /* the facts that some model had another value of */
} tally;

static bool is_legal(const model_config *c) {
    err e = model_check(c);
    err_free(e);
    return !e;
}

/* Exports a model whose value of f differs from `from`. @return whether it was written */
static bool try_export(test_folder *dir, const hf_family *family, const model_fact *f,
                       const model_config *from, const model_config *c, tally *t) {
    model_config want = *c, back;
    const hf_family *found;
    char value[64];
    const hf_key *k = key_of(family, f);
    bool free_key = k && k->use != HF_IMPLIED, training = f->flags & FACT_TRAINING;
    /* written as the factors that it stands for */
    bool mup = f->at == offsetof(model_config, mup) || (f->flags & FACT_OF_MUP);
    t->seen[f - model_fact_at(0)] = true;
    model_fact_shown(f, c, value, sizeof value);
    err e = hf_export_config(dir->path, family, c, DT_F32, NO_TOKENS);
    if (e) {
        assert_error(e, "model.");
        if (training) fail_msg("%s: %s=%s is refused", family->model_type, f->name, value);
        t->refused++;
        return false;
    }
    if (!free_key && !training && !is_apart(f) && !mup)
        fail_msg("%s: %s=%s is written, but no key holds it", family->model_type, f->name, value);
    assert_ok(hf_import_config(dir->path, &back, &found, NULL));
    assert_ptr_equal(found, family);
    if (training && !free_key) model_fact_copy(f, from, &want);
    hf_add_biases(family, &want);
    model_config_without_mup(&want);
    if (want.attention_scale == 1 / sqrt((double)want.head_dim)) want.attention_scale = 0;
    same_pattern(&want, &back);
    model_config_normalize(&want);
    resolve_widths(&want);
    resolve_widths(&back);
    int d = model_config_diff(&back, &want, 0);
    if (d >= 0)
        fail_msg("%s: %s changed when %s=%s was exported", family->model_type,
                 model_fact_at(d)->name, f->name, value);
    t->exported++;
    return true;
}

/* Changes every fact of a model that matters to it and, but to `known`, did not matter before. A change that goes out
 * may let other facts matter: these are changed next. */
static void change_facts(test_folder *dir, const hf_family *family, const model_config *from,
                         const model_config *known, tally *t) {
    for (int i = 0; i < model_facts(); i++) {
        const model_fact *f = model_fact_at(i);
        const hf_key *k = key_of(family, f);
        double value[MOST_VALUES];
        int tried = 0, out = 0;
        if (!model_fact_applies(f, from) || (known && model_fact_applies(f, known))) continue;
        int n = other_values(f, model_fact_get(f, from), value);
        for (int j = 0; j < n; j++) {
            model_config c = *from;
            set_with_key(family, f, &c, value[j]);
            if (key_of(family, f) && key_of(family, f)->use != HF_IMPLIED) follow_sizes(family, &c);
            if (model_fact_same(f, &c, from)) continue;
            if (!is_legal(&c)) continue;
            tried++;
            if (!try_export(dir, family, f, from, &c, t)) continue;
            out++;
            if (!known && !(f->flags & FACT_TRAINING)) {
                model_config_normalize(&c);
                change_facts(dir, family, &c, from, t);
            }
        }
        if (tried && !out && k && k->use != HF_IMPLIED)
            fail_msg("%s: no other value of %s is written, but \"%s\" holds it", family->model_type,
                     f->name, k->theirs);
    }
}

static void every_fact_is_exported_or_refused(void **state) {
    test_folder *dir = *state;
    tally t = { 0 };
    assert_true((size_t)model_facts() <= COUNT_OF(t.seen));
    for (int i = 0; hf_family_at(i); i++) {
        const hf_family *family = hf_family_at(i);
        model_config c = least_model(dir, family);
        model_config_normalize(&c);
        change_facts(dir, family, &c, NULL, &t);
    }
    for (int i = 0; i < model_facts(); i++)
        if (!t.seen[i]) fail_msg("no family was asked for %s", model_fact_at(i)->name);
    print_message("%d exported, %d refused\n", t.exported, t.refused);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_fact_is_exported_or_refused, folder_setup,
                                        folder_teardown),
    };
    return cmocka_run_group_tests_name("hf_facts", tests, NULL, NULL);
}
