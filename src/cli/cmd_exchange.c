/* ingot import, ingot export: models from and to Hugging Face folders, and to files of llama.cpp. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/weights.h"
#include "io/io.h"

typedef struct exchange_args {
    const char *family, *dtype, *format;
    int64_t shard;
} exchange_args;

#define AT(member) offsetof(exchange_args, member)
static const cli_arg export_args[] = {
    { "dtype", ARG_TEXT, AT(dtype), "TYPE",
      "fp32, bf16 or fp16, of gguf also q8_0 (default fp32, of gguf fp16)" },
    { "family", ARG_TEXT, AT(family), "NAME",
      "model_type to write (default: the first that fits)" },
    { "format", ARG_TEXT, AT(format), "NAME",
      "hf, a folder for transformers, or gguf, a file for llama.cpp (default: gguf where the name "
      "ends in .gguf)" },
    { "max-file-bytes", ARG_COUNT, AT(shard), "N",
      "split the weights into files of at most N bytes" },
};
static const cli_spec import_spec = { "import", "HF_FOLDER RUN", NULL, 0, 2 };
const cli_spec cmd_export_spec = { "export", "RUN FOLDER|FILE.gguf [options]",
                                   CLI_ARGS(export_args), 2 };

static void report_written(const char *verb, const model *m, const hf_family *f, const char *to) {
    char n[32];
    printf("%s %s parameters to %s (model_type %s)\n", verb,
           str_count(n, sizeof n, (double)model_count(model_conf(m))), to, hf_family_type(f));
}

/* ---- import ------------------------------------------------------------------------------- */
/* Whether a tokenizer is the built-in one, whose ids are bytes: what exports of byte models hold. One
 * that cannot be opened is not, and is reported by what needs it. */
static bool is_bytes(const char *path) {
    tokenizer *tok = NULL, *bytes = NULL;
    err e = tokenizer_open(path, NULL, &tok);
    if (!e) e = tokenizer_open("bytes", NULL, &bytes);
    bool same = !e && tokenizer_hash(tok) == tokenizer_hash(bytes);
    tokenizer_free(tok);
    tokenizer_free(bytes);
    err_free(e);
    return same;
}

/* The tokenizer comes with its model. */
static err import_tokenizer(const char *from, const char *run, ckpt_state *s) {
    s->bytes = io_has(from, "tokenizer.json") && is_bytes(PATH_IN(from, "tokenizer.json"));
    s->prefixed = true; /* as its tokenizer does it */
    TRY(io_make_dirs(run));
    if (!s->bytes && io_has(from, "tokenizer.json"))
        TRY(io_copy(PATH_IN(from, "tokenizer.json"), PATH_IN(run, "tokenizer.json")));
    return hf_keep_files(from, run);
}

static err check_new_run(const char *run) {
    char *found = NULL;
    TRY(ckpt_latest(run, &found));
    if (!found) return OK;
    free(found);
    return err_hint(ERR("%s already holds a run", run), "choose a new folder");
}

err cmd_import(int argc, char **argv) {
    const char *path[2];
    model_config c;
    const hf_family *family;
    model *m = NULL;
    ckpt_state state = { 0 };
    err e = OK;
    TRY(cli_parse(&import_spec, argc - 1, argv + 1, NULL, path));
    TRY(check_new_run(path[1]));
    TRY(hf_import_config(path[0], &c, &family, NULL));
    TRY_CLEAN(model_new(&c, &(model_layout){ .dt = DT_F32 }, &m));
    TRY_CLEAN(import_tokenizer(path[0], path[1], &state));
    TRY_CLEAN(hf_import_run(family, path[0], m, &state, path[1]));
    report_written("imported", m, family, path[1]);
cleanup:
    model_free(m);
    return e;
}

/* ---- export ------------------------------------------------------------------------------- */
/* One parameter at a time is in memory, whatever the size of the model and the ranks that saved it. */
typedef struct export_source {
    const model *m;
    ckpt_reader *from;
} export_source;

static err get_param(void *ctx, int i, float *values) {
    const export_source *s = ctx;
    const model_param *q = model_param_at(s->m, i);
    int at = ckpt_find_tensor(s->from, q->name);
    int64_t n = q->dim[0] * q->dim[1];
    if (at < 0 || ckpt_tensor_at(s->from, at).count != n)
        return ERR("the checkpoint has no tensor \"%s\" of %lld elements", q->name, (long long)n);
    return ckpt_read(s->from, at, 0, n, values);
}

/* The format of an export. */
typedef struct export_form {
    bool gguf;
    gguf_type type;
} export_form;

static err choose_export(const exchange_args *a, const char *to, hf_export *x, export_form *out) {
    const char *format = a->format ? a->format : str_ends(to, ".gguf") ? "gguf" : "hf";
    out->gguf = !strcmp(format, "gguf");
    const char *type = a->dtype ? a->dtype : out->gguf ? "fp16" : "fp32";
    if (!out->gguf && strcmp(format, "hf"))
        return err_hint(ERR_USAGE("--format: expected hf or gguf; got \"%s\"", format),
                        "choose one of the two");
    if (out->gguf && a->shard)
        return err_hint(ERR_USAGE("--max-file-bytes: a gguf file is one file"), "leave it out");
    if (out->gguf && !gguf_type_from_name(type, &out->type))
        return err_hint(ERR_USAGE("--dtype: expected fp32, bf16, fp16 or q8_0; got \"%s\"", type),
                        "choose one of the four");
    if (out->gguf) return OK;
    x->dt = dt_from_name(type);
    if (x->dt == DT_F32 || x->dt == DT_BF16 || x->dt == DT_F16) return OK;
    return err_hint(ERR_USAGE("--dtype: expected fp32, bf16 or fp16; got \"%s\"", type),
                    "choose one of the three, or --format=gguf for q8_0");
}

err cmd_export(int argc, char **argv) {
    const char *path[2];
    exchange_args a = { 0 };
    export_form form = { 0 };
    weights w = { 0 };
    export_source from = { 0 };
    hf_export x = { .get = get_param, .ctx = &from };
    tokenizer *tok = NULL;
    err e = OK;
    TRY(cli_parse(&cmd_export_spec, argc - 1, argv + 1, &a, path));
    x.max_file_bytes = (size_t)a.shard;
    TRY(choose_export(&a, path[1], &x, &form));
    TRY_CLEAN(weights_describe(path[0], &w));
    TRY_CLEAN(ckpt_open(w.path, &from.from));
    from.m = w.m;
    TRY_CLEAN((form.gguf ? gguf_family_for : hf_family_for)(model_conf(w.m), a.family, &x.family));
    TRY_CLEAN(weights_tokenizer(&w, &tok));
    x.m = w.m;
    x.tok = tok;
    x.from = w.path;
    if (form.gguf)
        TRY_CLEAN(gguf_export_file(path[1], &x, form.type));
    else
        TRY_CLEAN(hf_export_folder(path[1], &x));
    report_written("exported", w.m, x.family, path[1]);
cleanup:
    ckpt_close(from.from);
    tokenizer_free(tok);
    weights_free(&w);
    return e;
}
