/* ingot data tokenize: text to tokens. */
#include "cli/cli.h"
#include "data/data.h"

typedef struct tokenize_args {
    const char *out, *input;
} tokenize_args;

static err copy_tokens(const data_source *from, token_writer *to) {
    int32_t ids[4096];
    int64_t total = data_source_info(from)->tokens;
    for (int64_t at = 0; at < total; at += (int64_t)COUNT_OF(ids)) {
        int64_t n = MIN((int64_t)COUNT_OF(ids), total - at);
        data_read(from, at, n, ids);
        TRY(token_writer_add(to, ids, n));
    }
    return OK;
}

static err tokenize(const tokenize_args *a) {
    if (!a->out) return ERR("--out: needs a file to write the tokens to");
    data_source *source = NULL;
    token_writer *w = NULL;
    err e = OK;
    TRY_CLEAN(data_open(a->input, 0, &source));
    const data_info *info = data_source_info(source);
    if (info->vocab == 0) {
        e = err_hint(ERR("%s: %s do not say how large their vocabulary is", a->input, info->format),
                     "train on the file as it is");
        goto cleanup;
    }
    TRY_CLEAN(token_writer_open(a->out,
                                &(token_writer_options){ .vocab = info->vocab,
                                                         .eos = info->eos,
                                                         .tokenizer = info->tokenizer,
                                                         .tokenizer_hash = info->tokenizer_hash },
                                &w));
    TRY_CLEAN(copy_tokens(source, w));
    token_writer *done = w;
    w = NULL; /* close frees it */
    TRY_CLEAN(token_writer_close(done));
    fprintf(stderr, "%s: %lld documents, %lld tokens\n", a->out, (long long)info->documents,
            (long long)info->tokens);
cleanup:
    token_writer_abandon(w);
    data_close(source);
    return e;
}

static err run(const cli_subcommand *self, int argc, char **argv) {
    tokenize_args a = { 0 };
    TRY(cli_parse(&self->spec, argc, argv, &a, &a.input));
    return tokenize(&a);
}

static const cli_arg args[] = {
    { "out", ARG_TEXT, offsetof(tokenize_args, out), "FILE", "the token file to write", 0 },
};

const cli_subcommand data_tokenize = {
    .summary = "turn text or JSON lines into a token file",
    .run = run,
    .spec = { "data tokenize", "FILE --out FILE.tok", args, (int)COUNT_OF(args), 1, false },
};
