/* Shared by `ingot data filter`, `dedup`, `decontaminate` and `tokenize`: which documents
 * are read and how, where the output goes, threads, memory. A command embeds `data_common` as the
 * first member of its arguments and begins its table with DATA_COMMON_ARGS:
 *
 *     typedef struct filter_args { data_common common; ... } filter_args;
 *     static const cli_arg args[] = { DATA_COMMON_ARGS, { "rules", ARG_TEXT, ... } };
 *
 * A command that writes no documents uses DATA_READ_ARGS, the options about reading.
 *
 *     TRY(cli_parse_many(&self->spec, argc, argv, &a, &n));
 *     TRY(data_common_check(&a.common));
 *     TRY(data_common_fit(&a.common, fixed, per_byte, &threads));
 *     TRY(data_common_open(&a.common, argv, n, &in));
 *     text_transform_options o = data_common_transform(&a.common, threads);
 *
 * All of this runs on every rank of a job (data_run_on_ranks), and alone in a process outside a job. */
#ifndef INGOT_CLI_DATA_COMMON_H
#define INGOT_CLI_DATA_COMMON_H

#include <jansson.h>

#include "cli/cli.h"
#include "curate/curate.h"

typedef struct data_common {
    text_input_options in; /* filled in by data_common_check */
    const char *out, *dropped, *compress, *invalid;
    const char *work; /* of commands with DATA_WORK_ARGS; NULL: beside `out` */
    bool keep_work;
    int64_t threads, memory,
        longest;  /* 0: one per core; no limit; derived from the memory limit, at most 64 MiB */
    int64_t part; /* 0: 256 MiB */
    bool fresh, quiet, json;
    struct comm *comm;   /* the ranks that share the work; NULL: alone */
    const json_t *given; /* the options as they were given, without those that change no result */
} data_common;

#define DATA_IN(member) offsetof(data_common, in.member)
#define DATA_AT(member) offsetof(data_common, member)
/* clang-format off */
/* Rows that several commands have. */
#define DATA_THREADS_ARG                                                                            \
    { "threads", ARG_COUNT, DATA_AT(threads), "N", "number of threads, which does not change the result (default: one per core)" }
#define DATA_LONGEST_ARG                                                                            \
    { "longest", ARG_COUNT, DATA_AT(longest), "BYTES", "skip and count records that are longer (default: 64Mi, at most 1/256 of --memory)" }
#define DATA_TEXT_ARGS                                                                              \
    { "format", ARG_TEXT, DATA_IN(format), "NAME", TEXT_FORMATS " (default: detected from name and content)" }, \
    { "text-field", ARG_TEXT, DATA_IN(text_field), "NAME", "JSON member that holds the text, or a path such as doc.text (default text)" }, \
    { "text-column", ARG_TEXT, DATA_IN(text_field), "NAME", "the same: the column of a Parquet or Arrow file" }
#define DATA_INVALID_ARG                                                                            \
    { "invalid", ARG_TEXT, DATA_AT(invalid), "repair|refuse", "replace invalid UTF-8 by U+FFFD, or drop the document (default repair)" }
#define DATA_STRICT_ARG                                                                             \
    { "strict", ARG_FLAG, DATA_IN(strict), "", "fail on a record that cannot be read (default: skip and count it)" }
#define DATA_READ_ARGS                                                                              \
    DATA_THREADS_ARG,                                                                               \
    { "memory", ARG_COUNT, DATA_AT(memory), "BYTES", "memory limit of the process, such as 1Gi (default: none)" }, \
    DATA_LONGEST_ARG,                                                                               \
    DATA_TEXT_ARGS,                                                                                 \
    { "id-field", ARG_TEXT, DATA_IN(id_field), "NAME", "... that holds the identifier (default id)" },     \
    { "url-field", ARG_TEXT, DATA_IN(url_field), "NAME", "... that holds the URL (default url)" },         \
    { "source-field", ARG_TEXT, DATA_IN(source_field), "NAME", "... that holds the source (default source)" }, \
    { "license-field", ARG_TEXT, DATA_IN(license_field), "NAME", "... that holds the license (default license or licence)" }, \
    { "sources", ARG_TEXT, DATA_IN(sources), "A,B", "keep only documents from these sources" },             \
    { "not-sources", ARG_TEXT, DATA_IN(not_sources), "A,B", "drop documents from these sources" },                       \
    { "licenses", ARG_TEXT, DATA_IN(licenses), "A,B", "keep only documents under these licenses" },       \
    { "not-licenses", ARG_TEXT, DATA_IN(not_licenses), "A,B", "drop documents under these licenses" },                     \
    DATA_INVALID_ARG,                                                                               \
    DATA_STRICT_ARG,                                                                                \
    { "quiet", ARG_FLAG, DATA_AT(quiet), "", "do not show progress" },                                        \
    { "json", ARG_FLAG, DATA_AT(json), "", "print the report as JSON" }
/* Of commands with spill files. */
#define DATA_WORK_ARGS                                                                              \
    { "work", ARG_TEXT, DATA_AT(work), "DIR", "folder for spill files, from which a rerun resumes (default: PATH.work beside --out; in the current folder if that is a URL)" }, \
    { "keep-work", ARG_FLAG, DATA_AT(keep_work), "", "keep the spill files at the end" }
#define DATA_PART_ARG                                                                               \
    { "part", ARG_COUNT, DATA_AT(part), "BYTES", "split plain files into parts of this size, which ranks share and a rerun resumes (default 256Mi)" }
#define DATA_COMMON_ARGS                                                                            \
    { "out", ARG_TEXT, DATA_AT(out), "PATH", "a .jsonl, .jsonl.gz, .jsonl.zst or .parquet file, or a folder of parts that a rerun resumes; also below a URL, s3://BUCKET/KEY (default: standard output)", 'o' }, \
    { "dropped", ARG_TEXT, DATA_AT(dropped), "PATH", "write dropped documents here, each with the rule and its value (default: discard them)" }, \
    { "compress", ARG_TEXT, DATA_AT(compress), "zst|gz|none|parquet", "parts of a folder: JSON lines, compressed or not, or Parquet (default zst)" }, \
    { "fresh", ARG_FLAG, DATA_AT(fresh), "", "discard earlier output in the folder and start over" },  \
    DATA_PART_ARG,                                                                                    \
    DATA_READ_ARGS
/* clang-format on */

/* Validates what the parser cannot, and fills in `in`. */
err data_common_check(data_common *c) MUST_USE;
/* An error if --held-out leaves nothing to train on. */
err data_common_check_held_out(double fraction) MUST_USE;
/* An error if --dropped is given to a command that drops nothing. */
err data_common_refuse_dropped(const data_common *c, const char *command) MUST_USE;
/* Runs a command on every rank of the job that this process was started in: by mpirun, srun, or with torchrun's
 * environment. Started alone, run_rank gets no ranks. A rank that fails ends all, with its error, rank and host. */
typedef struct data_job {
    struct comm *comm;   /* NULL: alone */
    const json_t *given; /* as in data_common */
} data_job;
err data_run_on_ranks(const cli_subcommand *self, int argc, char **argv) MUST_USE;
/* Lists the inputs, which must be the same on all ranks. *out is set only on success. */
err data_common_open(const data_common *c, char **paths, int n, text_inputs **out) MUST_USE;
/* @return whether this rank prints the report. */
bool data_common_prints(const data_common *c);
/* Computes how many threads --threads and --memory allow. What a thread holds while reading and
 * writing is accounted for here: a few records of the longest length.
 * @param fixed bytes the transform needs for any number of threads.
 * @param per_byte bytes a thread needs at worst per byte of the longest record.
 * @return an error if not even one thread fits. */
err data_common_fit(const data_common *c, size_t fixed, size_t per_byte, int *threads) MUST_USE;
text_transform_options data_common_transform(const data_common *c, int threads);
/* Sets how the input is read the first time, but for threads and memory. The folder of spill files is owned (free). */
void data_common_pass(const data_common *c, pass_options *o);
/* @return where the report is printed: stderr if the documents go to standard output. */
FILE *data_common_to(const data_common *c);
/* Prints the report, as a table or one JSON object.
 * @param found results of the transform to add as last member; ownership is taken. NULL: none. */
void data_common_print(const data_common *c, const text_transform *s,
                       const text_transform_report *r, json_t *found);

#endif
