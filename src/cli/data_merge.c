/* ingot data merge: many small files as few large parts. */
#include "cli/data_common.h"

typedef struct merge_args {
    data_common common;
    int64_t size;
} merge_args;

enum { MERGE_PER_BYTE = 2 };

static err run_merge_rank(const cli_subcommand *self, int argc, char **argv, const data_job *job) {
    merge_args a = { .common = { .comm = job->comm, .given = job->given },
                     .size = (int64_t)256 << 20 };
    text_transform_report report = { 0 };
    text_inputs *in = NULL;
    int n = 0, threads = 1;
    err e = OK;
    TRY(cli_parse_many(&self->spec, argc, argv, &a, &n));
    TRY(data_common_check(&a.common));
    TRY(data_common_refuse_dropped(&a.common, "merge"));
    TRY(data_common_fit(&a.common, 0, MERGE_PER_BYTE, &threads));
    TRY_CLEAN(data_common_open(&a.common, argv, n, &in));
    text_transform transform = merge_transform(a.size);
    text_transform_options so = data_common_transform(&a.common, threads);
    so.merge_bytes = a.size;
    TRY_CLEAN(text_transform_run(&transform, in, &so, &report));
    data_common_print(&a.common, &transform, &report, NULL);
cleanup:
    text_transform_report_free(&report);
    text_inputs_close(in);
    return e;
}

#define AT(member) offsetof(merge_args, member)
/* clang-format off */
static const cli_arg args[] = {
    DATA_COMMON_ARGS,
    { "size", ARG_COUNT, AT(size), "BYTES", "a part is made from files of up to this size together (default 256Mi)" },
};
/* clang-format on */

const cli_subcommand data_merge = {
    .summary = "put many small files together, in few parts",
    .run_rank = run_merge_rank,
    .spec = { "data merge", "INPUT... --out FOLDER [options]", CLI_ARGS(args), 1, true },
    .help =
        "All documents, in the order of the inputs. The size counts what is on the disk, compressed or\n"
        "not. A file that is larger is a part of its own; a plain one is split first (--part).\n"
        "\n"
        "Example\n"
        "  ingot data merge web/ books.parquet 'notes/*.txt' --size 1Gi --out all\n",
};
