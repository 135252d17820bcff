/* What `ingot data filter`, `dedup`, `decontaminate` and `tokenize` have in common: which documents
 * are read and how, where the result goes, threads, memory. A command embeds `data_common` as the
 * first member of its arguments and begins its table with DATA_COMMON_ARGS:
 *
 *     typedef struct filter_args { data_common common; ... } filter_args;
 *     static const cli_arg args[] = { DATA_COMMON_ARGS, { "rules", ARG_TEXT, ... } };
 *
 * One that writes no documents takes DATA_READ_ARGS, what concerns reading alone.
 *
 *     TRY(cli_parse_many(&self->spec, argc, argv, &a, &n));
 *     TRY(data_common_check(&a.common));
 *     TRY(data_common_fit(&a.common, fixed, per_thread, &threads));
 *     TRY(text_inputs_open((const char *const *)argv, n, &a.common.in, &in));
 *     text_stage_options o = data_common_stage(&a.common, threads);
 */
#ifndef INGOT_CLI_DATA_COMMON_H
#define INGOT_CLI_DATA_COMMON_H

#include <jansson.h>

#include "cli/cli.h"
#include "text/text.h"

typedef struct data_common {
    text_input_options in; /* complete after data_common_check */
    const char *out, *dropped, *compress, *invalid;
    int64_t threads, memory, longest; /* 0: one per core; no cap; by the cap, at most 64 MiB */
    bool fresh, quiet, json;
} data_common;

#define DATA_IN(member) offsetof(data_common, in.member)
#define DATA_AT(member) offsetof(data_common, member)
/* clang-format off */
#define DATA_READ_ARGS                                                                              \
    { "threads", ARG_COUNT, DATA_AT(threads), "N", "default: one per core; the result is the same for any number" }, \
    { "memory", ARG_COUNT, DATA_AT(memory), "BYTES", "never use more, such as 1Gi (default: no cap)" }, \
    { "longest", ARG_COUNT, DATA_AT(longest), "BYTES", "skip and count longer records (default: 64Mi, at most 1/256 of --memory)" }, \
    { "format", ARG_TEXT, DATA_IN(format), "NAME", "text, jsonl, warc or wet (default: by name and content)" }, \
    { "text-field", ARG_TEXT, DATA_IN(text_field), "NAME", "JSON member with the text, or a path such as doc.text (default text)" }, \
    { "id-field", ARG_TEXT, DATA_IN(id_field), "NAME", "... with the identifier (default id)" },     \
    { "url-field", ARG_TEXT, DATA_IN(url_field), "NAME", "... with the URL (default url)" },         \
    { "source-field", ARG_TEXT, DATA_IN(source_field), "NAME", "... with the source (default source)" }, \
    { "licence-field", ARG_TEXT, DATA_IN(licence_field), "NAME", "... with the licence (default license or licence)" }, \
    { "sources", ARG_TEXT, DATA_IN(sources), "A,B", "only documents of these sources" },             \
    { "not-sources", ARG_TEXT, DATA_IN(not_sources), "A,B", "all but these" },                       \
    { "licences", ARG_TEXT, DATA_IN(licences), "A,B", "only documents under these licences" },       \
    { "not-licences", ARG_TEXT, DATA_IN(not_licences), "A,B", "all but these" },                     \
    { "invalid", ARG_TEXT, DATA_AT(invalid), "repair|refuse", "bytes that are no UTF-8 become U+FFFD, or cost the document (default repair)" }, \
    { "strict", ARG_FLAG, DATA_IN(strict), "", "a record that cannot be read is an error, not a counted skip" }, \
    { "quiet", ARG_FLAG, DATA_AT(quiet), "", "no progress" },                                        \
    { "json", ARG_FLAG, DATA_AT(json), "", "the report as JSON" }
#define DATA_COMMON_ARGS                                                                            \
    { "out", ARG_TEXT, DATA_AT(out), "PATH", "a .jsonl, .jsonl.gz or .jsonl.zst file, or a folder of parts that a rerun continues (default: standard output)", 'o' }, \
    { "dropped", ARG_TEXT, DATA_AT(dropped), "PATH", "where dropped documents go, each with the rule and the value (default: nowhere)" }, \
    { "compress", ARG_TEXT, DATA_AT(compress), "zst|gz|none", "of the parts in a folder (default zst)" }, \
    { "fresh", ARG_FLAG, DATA_AT(fresh), "", "start over: do not continue what is in the folder" },  \
    DATA_READ_ARGS
/* clang-format on */

/* Checks what the parser cannot and completes `in`. */
err data_common_check(data_common *c) MUST_USE;
/* How many threads --threads and --memory allow. What a thread holds while it reads and writes is
 * counted here: at most a few records of the longest length.
 * @param fixed bytes the stage holds whatever the number of threads.
 * @param per_byte bytes of its own a thread holds at worst for each byte of the longest record.
 * @return an error when one thread does not fit. */
err data_common_fit(const data_common *c, size_t fixed, size_t per_byte, int *threads) MUST_USE;
text_stage_options data_common_stage(const data_common *c, int threads);
/* Where a report goes: to stderr when the documents go to standard output. */
FILE *data_common_to(const data_common *c);
/* The report, as a table or one JSON object.
 * @param found what a stage found out beside, the object's last member; taken. NULL: nothing. */
void data_common_print(const data_common *c, const text_stage *s, const text_stage_report *r,
                       json_t *found);

#endif
