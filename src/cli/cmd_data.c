/* ingot data: make, clean, tokenize and look at training data. Each subcommand is a file of its
 * own, data_NAME.c, and a row here. */
#include "cli/cli.h"

static const cli_subcommand *const members[] = {
    &data_synth,         &data_quality,  &data_filter,         &data_dedup,
    &data_decontaminate, &data_sample,   &data_shuffle,        &data_split_command,
    &data_merge,         &data_tokenize, &data_export_command, &data_stats,
    &data_inspect,       &data_explain,  &data_reweigh,        &data_language
};

const cli_family data_family = { "data", members, (int)COUNT_OF(members) };

err cmd_data(int argc, char **argv) { return cli_run_family(&data_family, argc, argv); }
