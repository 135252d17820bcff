/* ingot data shuffle: all documents in random order. */
#include "cli/data_common.h"

#include <stdlib.h>

typedef struct shuffle_args {
    data_common common;
    int64_t seed, size;
} shuffle_args;

enum { SHUFFLE_SPILL = 8 << 20, SHUFFLE_PER_BYTE = 4 };
static const size_t SHUFFLE_MEMORY = (size_t)1 << 30;

static err run_shuffle_transform(const shuffle_args *a, shuffle_options *o, text_inputs *in) {
    text_transform_options so = data_common_transform(&a->common, o->pass.threads);
    text_transform_report report = { 0 };
    shuffle *s = NULL;
    err e = OK;
    o->pass.to = &so;
    TRY_CLEAN(shuffle_new(o, in, &s));
    text_transform transform = shuffle_transform(s);
    TRY_CLEAN(text_transform_run(&transform, in, &so, &report));
    TRY_CLEAN(shuffle_finish(s));
    data_common_print(&a->common, &transform, &report, NULL);
cleanup:
    text_transform_report_free(&report);
    shuffle_free(s);
    return e;
}

static err run_shuffle_rank(const cli_subcommand *self, int argc, char **argv,
                            const data_job *job) {
    shuffle_args a = { .common = { .comm = job->comm, .given = job->given } };
    text_inputs *in = NULL;
    int n = 0;
    err e = OK;
    TRY(cli_parse_many(&self->spec, argc, argv, &a, &n));
    TRY(data_common_check(&a.common));
    TRY(data_common_refuse_dropped(&a.common, "shuffle"));
    shuffle_options o = { .seed = (uint64_t)a.seed, .part_bytes = a.size };
    data_common_pass(&a.common, &o.pass);
    o.pass.memory = a.common.memory ? (size_t)a.common.memory / 2 : SHUFFLE_MEMORY;
    size_t fixed = o.pass.memory + SHUFFLE_SPILL;
    TRY_CLEAN(data_common_fit(&a.common, fixed, SHUFFLE_PER_BYTE, &o.pass.threads));
    TRY_CLEAN(data_common_open(&a.common, argv, n, &in));
    TRY_CLEAN(run_shuffle_transform(&a, &o, in));
cleanup:
    text_inputs_close(in);
    free((char *)o.pass.work);
    return e;
}

#define AT(member) offsetof(shuffle_args, member)
/* clang-format off */
static const cli_arg args[] = {
    DATA_COMMON_ARGS,
    { "size", ARG_COUNT, AT(size), "BYTES", "text of a part of the output, about (default 256Mi, at most 1/8 of --memory)" },
    { "seed", ARG_COUNT, AT(seed), "N", "a different seed gives a different order (default 0)" },
    DATA_WORK_ARGS,
};
/* clang-format on */

const cli_subcommand data_shuffle = {
    .summary = "put all documents into random order",
    .run_rank = run_shuffle_rank,
    .spec = { "data shuffle", "INPUT... --out FOLDER [options]", CLI_ARGS(args), 1, true },
    .help =
        "Over all inputs, in bounded memory: documents are first written to spill files by random keys,\n"
        "which need as much disk space as the text, and then sorted one part at a time.\n"
        "\n"
        "Example\n"
        "  ingot data shuffle web/ books/ --seed 1 --out mixed\n",
};
