/* ingot tokenizer count: how many tokens is a corpus? */
#include "cli/data_common.h"
#include "cli/tokenizer_common.h"

#include <stdlib.h>

typedef struct count_args {
    data_common common;
    const char *tokenizer, *pattern;
    bool special, bare;
} count_args;

typedef struct count_job {
    const tokenizer *t;
    encoder **encoders; /* [threads] */
    token_ids *ids;     /* [threads] */
    bool special, bare;
    int64_t tokens;
} count_job;

static err count_block_tokens(void *ctx, int worker, const text_block *b, void *result) {
    count_job *c = ctx;
    int64_t *tokens = result;
    token_ids *ids = &c->ids[worker];
    if (!c->encoders[worker]) c->encoders[worker] = encoder_new(c->t);
    for (int i = 0; i < b->n; i++) {
        ids->n = 0;
        cli_encode(c->encoders[worker], b->docs[i].text.at, b->docs[i].text.len, c->special,
                   c->bare, ids);
        *tokens += (int64_t)ids->n;
    }
    return OK;
}

static err sum_block(void *ctx, const text_block *b, void *result) {
    ((count_job *)ctx)->tokens += *(int64_t *)result;
    return OK;
}

static void print_counts(const count_args *a, const text_counts *c, int64_t tokens,
                         double seconds) {
    double each = tokens ? (double)c->bytes / (double)tokens : 0;
    if (a->common.json) {
        printf(
            "{\"documents\": %lld, \"bytes\": %lld, \"tokens\": %lld, \"bytes_per_token\": %.4f, "
            "\"seconds\": %.3f}\n",
            (long long)c->documents, (long long)c->bytes, (long long)tokens, each, seconds);
        return;
    }
    printf("documents    %15lld\nbytes        %15lld\ntokens       %15lld\nbytes/token  %15.3f\n",
           (long long)c->documents, (long long)c->bytes, (long long)tokens, each);
}

static err count_tokens(const count_args *a, const tokenizer *t, text_inputs *in, int threads) {
    count_job c = { .t = t, .special = a->special, .bare = a->bare };
    text_counts counts = { 0 };
    text_pipeline pipeline = { &c, sizeof(int64_t), count_block_tokens, sum_block, NULL };
    double begin = time_now();
    err e = OK;
    c.encoders = mem_alloc((size_t)threads * sizeof *c.encoders);
    c.ids = mem_alloc((size_t)threads * sizeof *c.ids);
    for (int i = 0; i < text_segments(in) && !e; i++)
        e = text_pipeline_run(in, i, &pipeline, threads, &counts);
    for (int i = 0; i < threads; i++) {
        encoder_free(c.encoders[i]);
        token_ids_free(&c.ids[i]);
    }
    free(c.encoders);
    free(c.ids);
    if (!e) e = text_counts_check(&counts, "tokenizer count");
    if (!e) print_counts(a, &counts, c.tokens, time_now() - begin);
    return e;
}

static err run(const cli_subcommand *self, int argc, char **argv) {
    count_args a = { 0 };
    tokenizer *t = NULL;
    text_inputs *in = NULL;
    int n = 0, threads = 1;
    err e = OK;
    TRY(cli_parse_many(&self->spec, argc, argv, &a, &n));
    TRY(data_common_check(&a.common));
    TRY(data_common_fit(&a.common, 0, 0, &threads));
    TRY(cli_open_tokenizer(a.tokenizer, a.pattern, &t));
    TRY_CLEAN(text_inputs_open((const char *const *)argv, n, &a.common.in, &in));
    TRY_CLEAN(count_tokens(&a, t, in, threads));
cleanup:
    text_inputs_close(in);
    tokenizer_free(t);
    return e;
}

/* clang-format off */
static const cli_arg args[] = {
    TOKENIZER_ARG(count_args),
    SPECIAL_ARG(count_args),
    BARE_ARG(count_args),
    PATTERN_ARG(count_args),
    DATA_THREADS_ARG,
    DATA_TEXT_ARGS,
    DATA_INVALID_ARG,
    { "longest", ARG_COUNT, DATA_AT(longest), "BYTES", "skip and count longer records (default 64Mi)" },
    DATA_STRICT_ARG,
    { "json", ARG_FLAG, DATA_AT(json), "", "print the counts as JSON" },
};
/* clang-format on */

const cli_subcommand tokenizer_count = {
    .summary = "count the tokens of a corpus",
    .run = run,
    .spec = { "tokenizer count", "INPUT... -t FILE [options]", CLI_ARGS(args), 1, true },
    .help =
        "Inputs are files, folders, globs or - : text, JSON lines, WARC, WET, plain or compressed.\n"
        "Tokens that the tokenizer puts around every document count; the end-of-document token that\n"
        "`data tokenize` adds does not.\n"
        "\n"
        "Example\n"
        "  ingot tokenizer count clean/ -t tokenizer.json\n",
};
