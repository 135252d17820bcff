/* ingot data split: documents divided among several folders. */
#include "cli/data_common.h"

typedef struct divide_args {
    data_common common;
    const char *into, *by;
    int64_t seed;
} divide_args;

enum { SPLIT_PER_BYTE = 4 };

static err refuse_nothing_kept_by_split(const divide_args *a, const text_transform_report *r) {
    if (r->kept || !r->read.documents) return OK;
    err e = ERR("split: nothing is kept: all %lld documents are in no output",
                (long long)r->read.documents);
    return a->by ? err_hint(e, "--into lists values of the member \"%s\", and \"rest\" for others",
                            a->by)
                 : err_hint(e, "raise the shares of --into");
}

static err run_split_transform(const divide_args *a, char **paths, int n) {
    divide_options o = { .into = a->into, .by = a->by, .seed = (uint64_t)a->seed };
    text_transform_report report = { 0 };
    text_inputs *in = NULL;
    divide *d = NULL;
    err e = OK;
    TRY_CLEAN(data_common_fit(&a->common, 0, SPLIT_PER_BYTE, &o.threads));
    TRY_CLEAN(divide_new(&o, &d));
    TRY_CLEAN(data_common_open(&a->common, paths, n, &in));
    text_transform transform = divide_transform(d);
    text_transform_options so = data_common_transform(&a->common, o.threads);
    TRY_CLEAN(text_transform_run(&transform, in, &so, &report));
    data_common_print(&a->common, &transform, &report, NULL);
    e = refuse_nothing_kept_by_split(a, &report);
cleanup:
    text_transform_report_free(&report);
    text_inputs_close(in);
    divide_free(d);
    return e;
}

static err run_split_rank(const cli_subcommand *self, int argc, char **argv, const data_job *job) {
    divide_args a = { .common = { .comm = job->comm, .given = job->given } };
    int n = 0;
    TRY(cli_parse_many(&self->spec, argc, argv, &a, &n));
    TRY(data_common_check(&a.common));
    if (!a.into)
        return err_hint(ERR_USAGE("--into: no output is named"),
                        "write it like --into train=0.98,validation=0.01,test=0.01");
    if (a.by && a.seed)
        return err_hint(ERR_USAGE("--seed has no effect with --by"), "leave it out");
    return run_split_transform(&a, argv, n);
}

#define AT(member) offsetof(divide_args, member)
/* clang-format off */
static const cli_arg args[] = {
    DATA_COMMON_ARGS,
    { "into", ARG_TEXT, AT(into), "A=F,B=F", "folders in the output and their shares of the documents; with --by: values of the member, and \"rest\" for all others" },
    { "by", ARG_TEXT, AT(by), "NAME", "divide by the value of this member, such as source or language (default: by a hash of the text)" },
    { "seed", ARG_COUNT, AT(seed), "N", "a different seed gives a different division (default 0)" },
};
/* clang-format on */

const cli_subcommand data_split_command = {
    .summary = "divide documents among several folders",
    .run_rank = run_split_rank,
    .spec = { "data split", "INPUT... --into A=F,B=F --out FOLDER [options]", CLI_ARGS(args), 1,
              true },
    .help =
        "Every output is a folder in --out. By shares, the text alone decides, so copies of a text are\n"
        "on the same side. Documents that belong to no output are dropped and counted.\n"
        "\n"
        "Examples\n"
        "  ingot data split clean/ --into train=0.98,validation=0.01,test=0.01 --out parts\n"
        "  ingot data split clean/ --by language --into en,de,rest --out languages\n",
};
