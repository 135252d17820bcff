/* ingot data sample: some of the documents, chosen at random. */
#include "cli/data_common.h"
#include "cli/tokenizer_common.h"

#include <stdlib.h>

typedef struct sampling_args {
    data_common common;
    const char *tokenizer, *pattern, *per;
    double share;
    int64_t count, bytes, tokens, seed;
} sampling_args;

enum { SAMPLE_FIXED = 8 << 20, SAMPLE_TOKENIZER = 64 << 20, SAMPLE_PER_BYTE = 8 };

static err check_sample_args(const sampling_args *a) {
    int given = (a->share > 0) + (a->count > 0) + (a->bytes > 0) + (a->tokens > 0);
    if (given != 1)
        return err_hint(ERR_USAGE("%s of --share, --count, --bytes and --tokens is above 0",
                                  given ? "more than one" : "none"),
                        "say how much is wanted, as in --share 0.1 or --count 100000");
    if (a->share > 0 && a->per)
        return err_hint(
            ERR_USAGE("--per has no effect with --share: a share of all documents is that "
                      "share of every %s",
                      a->per),
            "leave --per out, or give --count, --bytes or --tokens");
    if (a->tokens > 0 && !a->tokenizer)
        return err_hint(ERR_USAGE("--tokens needs a tokenizer that counts them"),
                        "name it with -t");
    if (a->tokenizer && !a->tokens)
        return err_hint(ERR_USAGE("--tokenizer has no effect without --tokens"), "leave it out");
    return OK;
}

static void print_sample_summary(const sampling_args *a, const sample_summary *s, FILE *to) {
    if (a->share > 0 || !data_common_prints(&a->common) || a->common.json) return;
    if (a->per)
        fprintf(to, "%lld values of \"%s\"; of %lld of them all documents are taken\n",
                (long long)s->groups, a->per, (long long)s->all_taken);
    else if (s->all_taken)
        fprintf(to, "the input has no more than that: all %lld documents are taken\n",
                (long long)s->documents);
}

static err run_sample_transform(const sampling_args *a, sampling_options *o, text_inputs *in) {
    text_transform_options so = data_common_transform(&a->common, o->pass.threads);
    text_transform_report report = { 0 };
    sample *s = NULL;
    err e = OK;
    o->pass.to = &so;
    TRY_CLEAN(sample_new(o, in, &s));
    text_transform transform = sample_transform(s);
    TRY_CLEAN(text_transform_run(&transform, in, &so, &report));
    TRY_CLEAN(sample_finish(s));
    print_sample_summary(a, sample_get_summary(s), data_common_to(&a->common));
    data_common_print(&a->common, &transform, &report, NULL);
cleanup:
    text_transform_report_free(&report);
    sample_free(s);
    return e;
}

static err run_sample_rank(const cli_subcommand *self, int argc, char **argv, const data_job *job) {
    sampling_args a = { .common = { .comm = job->comm, .given = job->given } };
    tokenizer *t = NULL;
    text_inputs *in = NULL;
    int n = 0;
    err e = OK;
    TRY(cli_parse_many(&self->spec, argc, argv, &a, &n));
    TRY(data_common_check(&a.common));
    TRY(check_sample_args(&a));
    sampling_options o = { .share = a.share,
                           .count = a.count,
                           .bytes = a.bytes,
                           .tokens = a.tokens,
                           .per = a.per,
                           .seed = (uint64_t)a.seed };
    data_common_pass(&a.common, &o.pass);
    TRY_CLEAN(data_common_fit(&a.common, a.tokens ? SAMPLE_TOKENIZER : SAMPLE_FIXED,
                              SAMPLE_PER_BYTE, &o.pass.threads));
    if (a.tokens) TRY_CLEAN(tokenizer_open(a.tokenizer, a.pattern, &t));
    o.tokenizer = t;
    TRY_CLEAN(data_common_open(&a.common, argv, n, &in));
    TRY_CLEAN(run_sample_transform(&a, &o, in));
cleanup:
    text_inputs_close(in);
    tokenizer_free(t);
    free((char *)o.pass.work);
    return e;
}

#define AT(member) offsetof(sampling_args, member)
/* clang-format off */
static const cli_arg args[] = {
    DATA_COMMON_ARGS,
    { "share", ARG_FRACTION, AT(share), "F", "keep this fraction of the documents, chosen by a hash of their texts" },
    { "count", ARG_COUNT, AT(count), "N", "keep N documents" },
    { "bytes", ARG_COUNT, AT(bytes), "N", "keep documents with up to N bytes of text in all" },
    { "tokens", ARG_COUNT, AT(tokens), "N", "keep documents with up to N tokens in all, as --tokenizer counts them" },
    { "per", ARG_TEXT, AT(per), "NAME", "take that many of each value of this member, such as source or language" },
    { "seed", ARG_COUNT, AT(seed), "N", "a different seed gives a different sample (default 0)" },
    TOKENIZER_ARG(sampling_args),
    PATTERN_ARG(sampling_args),
    DATA_WORK_ARGS,
};
/* clang-format on */

const cli_subcommand data_sample = {
    .summary = "keep a random sample of documents",
    .run_rank = run_sample_rank,
    .spec = { "data sample", "INPUT... --share F|--count N|--bytes N|--tokens N [options]",
              CLI_ARGS(args), 1, true },
    .help =
        "Documents stay in their order. A share is chosen by the texts alone, in one pass: the same\n"
        "text is in every sample or in none. The others read the input twice, and take documents at\n"
        "random until the next one would be too many.\n"
        "\n"
        "Examples\n"
        "  ingot data sample clean/ --share 0.01 --out small\n"
        "  ingot data sample clean/ --tokens 1B -t tokenizer.json --per language --out balanced\n",
};
