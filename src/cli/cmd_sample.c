/* ingot sample: a trained model writes. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/weights.h"

typedef struct sample_args {
    const char *prompt, *ids, *device;
    int64_t tokens, seed, top_k, context, index;
    double temperature, top_p;
    bool greedy;
} sample_args;

#define AT(member) offsetof(sample_args, member)
static const cli_arg args[] = {
    { "prompt", ARG_TEXT, AT(prompt), "TEXT", "how the document begins (default \"The \")" },
    { "tokens", ARG_COUNT, AT(tokens), "N", "tokens to write at most (default 256)" },
    { "temperature", ARG_REAL, AT(temperature), "X", "spread of the choice (default 0.8)" },
    { "top-k", ARG_COUNT, AT(top_k), "N", "choose among the N likeliest; 0: all (default)" },
    { "top-p", ARG_FRACTION, AT(top_p), "X", "choose among the likeliest that hold X (default 1)" },
    { "greedy", ARG_FLAG, AT(greedy), "", "always the likeliest token: --temperature 0" },
    { "seed", ARG_COUNT, AT(seed), "N", "the same seed writes the same text (default 0)" },
    { "context", ARG_COUNT, AT(context), "N", "tokens remembered; 0: as many as the model can" },
    { "ids", ARG_TEXT, AT(ids), "\"1 2 3\"", "prompt as token ids, and ids out: any vocabulary" },
    { "device", ARG_TEXT, AT(device), "NAME", "auto, cpu or cuda (default auto: a GPU if any)" },
    { "device.index", ARG_COUNT, AT(index), "N", "which GPU, from 0" },
};
const cli_spec cmd_sample_spec = { "sample", "RUN [--prompt TEXT] [options]", args,
                                   (int)COUNT_OF(args), 1 };

/* ---- prompts ----------------------------------------------------------------------------- */
static err read_ids(const char *text, int64_t vocab, int32_t **ids, int64_t *n) {
    *ids = mem_alloc((strlen(text) / 2 + 2) * sizeof **ids);
    *n = 0;
    for (const char *at = text; *at;) {
        char *end;
        long long id = strtoll(at, &end, 10);
        if (end == at || id < 0 || id >= vocab) {
            return err_hint(ERR_USAGE("--ids: \"%.20s\" is no token id of a vocabulary of %lld", at,
                                      (long long)vocab),
                            "write ids separated by spaces");
        }
        (*ids)[(*n)++] = (int32_t)id;
        at = end + strspn(end, " ,\t\n");
    }
    if (!*n) return ERR_USAGE("--ids: holds no id");
    return OK;
}

/* ---- output, as it is made --------------------------------------------------------------- */
static bool print_text(void *ctx, const char *text, size_t n) {
    fwrite(text, 1, n, stdout);
    fflush(stdout);
    return !ferror(stdout);
}

static bool print_id(void *ctx, int32_t id) {
    printf(" %d", id);
    fflush(stdout);
    return !ferror(stdout);
}

static err sample_ids(const char *text, const sample_options *o, weights *w, const generator *g) {
    int32_t *prompt = NULL;
    int64_t n = 0;
    err e = OK;
    TRY_CLEAN(read_ids(text, model_conf(w->m)->vocab, &prompt, &n));
    printf("%s", text);
    TRY_CLEAN(generate(g, &w->x, prompt, n, o, print_id, NULL));
cleanup:
    free(prompt);
    return e;
}

/* A document begins with its first words: models never see what ended the one before. */
static err sample_text(const char *prompt, const sample_options *o, weights *w,
                       const generator *g) {
    tokenizer *t = NULL;
    if (!*prompt)
        return err_hint(ERR_USAGE("--prompt: is empty"), "give the first words of the text");
    TRY(weights_tokenizer(w, &t));
    if (!t)
        return err_hint(ERR("%s has no tokenizer: its tokens cannot be shown as text", w->path),
                        "put the tokenizer.json it was trained with into the run's folder, or give "
                        "the prompt as token ids: --ids \"1 2 3\"");
    printf("%s", prompt);
    err e = generate_text(g, &w->x, t, prompt, o, print_text, NULL);
    tokenizer_free(t);
    return e;
}

static err run(const sample_args *a, weights *w, const generator *g) {
    sample_options o = { .tokens = a->tokens,
                         .temperature = a->greedy ? 0 : a->temperature,
                         .top_k = a->top_k,
                         .top_p = a->top_p,
                         .seed = (uint64_t)a->seed,
                         .stop = -1 };
    TRY(a->ids ? sample_ids(a->ids, &o, w, g) : sample_text(a->prompt, &o, w, g));
    printf("\n");
    return OK;
}

err cmd_sample(int argc, char **argv) {
    sample_args a = { .tokens = 256, .temperature = 0.8, .top_p = 1 };
    const char *folder;
    weights w = { 0 };
    generator g;
    ops_choice on;
    TRY(cli_parse(&cmd_sample_spec, argc - 1, argv + 1, &a, &folder));
    if (a.prompt && a.ids) return ERR_USAGE("--ids: give a prompt as text or as ids, not both");
    if (!a.prompt) a.prompt = "The ";
    TRY(weights_device(a.device, a.index, &on));
    err e = weights_open(folder, &on, &g, a.context, &w);
    if (!e) e = run(&a, &w, &g);
    weights_free(&w);
    return e;
}
