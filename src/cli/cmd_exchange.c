/* ingot import, ingot export: models from and to Hugging Face folders. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/weights.h"
#include "io/io.h"

typedef struct exchange_args {
    const char *family, *dtype;
    int64_t shard;
} exchange_args;

#define AT(member) offsetof(exchange_args, member)
static const cli_arg export_args[] = {
    { "dtype", ARG_TEXT, AT(dtype), "TYPE", "fp32, bf16 or fp16 (default fp32)" },
    { "family", ARG_TEXT, AT(family), "NAME", "model_type to write; default: the first that fits" },
    { "max-file-bytes", ARG_COUNT, AT(shard), "N",
      "cut the weights into files of at most N bytes" },
};
static const cli_spec import_spec = { "import", "HF_FOLDER RUN", NULL, 0, 2 };
const cli_spec cmd_export_spec = { "export", "RUN HF_FOLDER [options]", export_args,
                                   (int)COUNT_OF(export_args), 2 };

static int64_t count_of(const weights *w, int i) {
    const model_param *q = model_param_at(w->m, i);
    return q->dim[0] * q->dim[1];
}

static err get(void *ctx, int i, float *values) {
    const weights *w = ctx;
    return plan_get(w->p, values, model_param_data(w->m, w->p, 0, i, PARAM_MASTER, NULL),
                    (size_t)count_of(w, i) * sizeof *values);
}

static void say(const char *verb, const weights *w, const hf_family *f, const char *to) {
    char n[32];
    printf("%s a %s model of %s parameters to %s\n", verb, hf_family_type(f),
           str_count(n, sizeof n, (double)model_count(model_conf(w->m))), to);
}

/* A tokenizer goes where its model goes. */
static err copy_tokenizer(const char *from, const char *folder) {
    if (!from || !io_exists(from)) return OK;
    char *to = io_join(folder, "tokenizer.json");
    err e = io_copy(from, to);
    free(to);
    return e;
}

err cmd_import(int argc, char **argv) {
    const char *path[2];
    char *there = NULL, *words = NULL;
    model_config c;
    const hf_family *family;
    weights w = { 0 };
    err e = OK;
    TRY(cli_parse(&import_spec, argc - 1, argv + 1, NULL, path));
    TRY(ckpt_latest(path[1], &there));
    if (there) {
        free(there);
        return err_hint(ERR("%s already holds a run", path[1]), "choose a new folder");
    }
    TRY(hf_import_config(path[0], &c, &family));
    TRY_CLEAN(weights_new(&c, WEIGHTS_ON_CPU, NULL, 0, &w));
    TRY_CLEAN(hf_load(family, path[0], w.m, w.p));
    TRY_CLEAN(ckpt_save(path[1], w.m, w.p, NULL, &w.state, NULL, 0));
    words = io_join(path[0], "tokenizer.json");
    TRY_CLEAN(copy_tokenizer(words, path[1]));
    say("imported", &w, family, path[1]);
cleanup:
    free(words);
    weights_free(&w);
    return e;
}

err cmd_export(int argc, char **argv) {
    const char *path[2];
    exchange_args a = { .dtype = "fp32" };
    weights w = { 0 };
    const hf_family *family;
    char *words = NULL;
    err e = OK;
    TRY(cli_parse(&cmd_export_spec, argc - 1, argv + 1, &a, path));
    dtype dt = dt_from_name(a.dtype);
    if (dt != DT_F32 && dt != DT_BF16 && dt != DT_F16)
        return err_hint(ERR("--dtype: \"%s\" is no type of weights", a.dtype),
                        "choose fp32, bf16 or fp16");
    TRY_CLEAN(weights_open(path[0], WEIGHTS_ON_CPU, NULL, 0, &w));
    TRY_CLEAN(hf_family_for(model_conf(w.m), a.family, &family));
    TRY_CLEAN(io_make_dirs(path[1]));
    TRY_CLEAN(hf_export_config(path[1], family, model_conf(w.m), dt));
    TRY_CLEAN(hf_export_params(family, path[1], w.m, dt, (size_t)a.shard, get, &w));
    words = ckpt_tokenizer_path(w.path);
    TRY_CLEAN(copy_tokenizer(words, path[1]));
    say("exported", &w, family, path[1]);
cleanup:
    free(words);
    weights_free(&w);
    return e;
}
