#include "cli/weights.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"

err weights_device(const char *kind, int64_t index, ops_choice *out) {
    *out = (ops_choice){ .index = (int)MIN(index, (int64_t)INT_MAX) };
    if (!kind) return OK;
    for (int k = 0; k < ops_kind_count; k++)
        if (strcmp(config_choice("device.kind", k), kind) == 0) {
            out->kind = k;
            return OK;
        }
    return err_hint(
        ERR_USAGE("--device: expected auto, cpu or cuda; got \"%s\"", kind),
        "use cuda for an NVIDIA GPU, or auto for one where there is one and the CPU elsewhere");
}

err weights_dtype(const char *name, dtype *out) {
    *out = name ? dt_from_name(name) : DT_F32;
    if (*out == DT_F32 || *out == DT_BF16) return OK;
    return err_hint(ERR_USAGE("--dtype: expected fp32 or bf16; got \"%s\"", name),
                    "choose one of the two");
}

static err check_positions(const model_config *c, const char *option, int64_t asked) {
    if (asked <= c->max_seq) return OK;
    return err_hint(ERR_USAGE("%s: %lld tokens of context, but the model's positions end at %lld",
                              option, (long long)asked, (long long)c->max_seq),
                    "use at most %lld", (long long)c->max_seq);
}

/* Makes a model of these facts, without values. */
static err weights_new(const model_config *c, const ops_choice *on, weights *w) {
    enum { EVAL_CONTEXT = 1024 };
    int64_t positions = w->generate.positions;
    TRY(check_positions(c, "--context", positions));
    if (w->generate.g && positions == 1)
        return err_hint(
            ERR_USAGE("--context: at least 2, a token of the prompt and a generated one"),
            "0 is the model's maximum");
    TRY(check_positions(c, "--seq-len", w->eval.on.seq));
    model_layout l = { .dt = w->dt ? w->dt : DT_F32 };
    TRY(ops_open(on, &w->ops));
    TRY(model_new(c, &l, &w->m));
    w->x.pool = pool_new(0);
    w->x.comm = comm_self();
    w->p = w->x.plan = plan_new(&l.mesh, w->ops, pool_size(w->x.pool));
    model_reserve(w->m, w->p, false);
    if (w->generate.g)
        TRY(generator_plan(w->m, w->p, positions ? positions : c->max_seq, w->generate.slots,
                           w->generate.g));
    if (w->eval.on.rows > 0) {
        if (w->eval.on.seq == 0) w->eval.on.seq = MIN((int64_t)EVAL_CONTEXT, c->max_seq);
        TRY(score_plan(w->m, w->p, w->eval.shares, &w->eval.on));
    }
    return plan_commit(w->p);
}

static err open_hf(const char *folder, const ops_choice *on, weights *w) {
    model_config c;
    const hf_family *family;
    TRY(hf_import_config(folder, &c, &family, NULL));
    w->path = strdup(folder);
    w->state.prefixed = true; /* as its tokenizer does it */
    TRY(weights_new(&c, on, w));
    return hf_load(family, folder, w->m, &w->x);
}

err weights_open(const char *run, const ops_choice *on, weights *w) {
    model_config c;
    if (io_has(run, "config.json")) return open_hf(run, on, w);
    TRY(ckpt_find(run, &w->path));
    TRY(ckpt_read_manifest(w->path, &c, &w->state, NULL));
    TRY(weights_new(&c, on, w));
    return ckpt_load(w->path, w->m, &w->x, NULL);
}

err weights_describe(const char *run, weights *w) {
    model_config c;
    TRY(ckpt_find(run, &w->path));
    TRY(ckpt_read_manifest(w->path, &c, &w->state, NULL));
    return model_new(&c, &(model_layout){ .dt = DT_F32 }, &w->m);
}

err weights_tokenizer(const weights *w, tokenizer **out) {
    *out = NULL;
    if (w->state.bytes) return tokenizer_open("bytes", NULL, out);
    char *path = ckpt_tokenizer_path(w->path);
    err e = path ? ckpt_open_tokenizer(&w->state, path, out) : OK;
    if (!e && *out && tokenizer_vocab(*out) > model_conf(w->m)->vocab)
        e = err_hint(ERR("%s has %lld ids, the model %lld", path, (long long)tokenizer_vocab(*out),
                         (long long)model_conf(w->m)->vocab),
                     "replace it by the model's own tokenizer, or remove it and use --ids");
    free(path);
    return e;
}

void weights_free(weights *w) {
    plan_free(w->p);
    ops_close(w->ops);
    model_free(w->m);
    comm_free(w->x.comm);
    pool_free(w->x.pool);
    free(w->path);
}

void weights_check_prompt(const generator *g, int64_t n) {
    int64_t unread = n - (g->positions - 1); /* one position is for what follows */
    if (unread > 0)
        log_warn("the prompt has %lld tokens, the context %lld: the first %lld are not read",
                 (long long)n, (long long)g->positions, (long long)unread);
}
