/* ingot data export: tokens as the files that other systems train on. */
#include "cli/data_look.h"

#include <stdio.h>

typedef struct export_args {
    const char *input, *to, *out, *dtype;
    int64_t shard;
    bool held_out;
} export_args;

static err run_export(const cli_subcommand *self, int argc, char **argv) {
    export_args a = { 0 };
    data_source *s = NULL;
    TRY(cli_parse(&self->spec, argc, argv, &a, &a.input));
    if (!a.to || !a.out)
        return err_hint(ERR_USAGE("--%s: nothing is given", a.to ? "out" : "to"), "ingot %s %s",
                        self->spec.command, self->spec.usage);
    TRY(look_open(a.input, a.dtype, a.held_out, &s));
    const data_export_options o = { .format = a.to, .out = a.out, .shard_tokens = a.shard };
    err e = data_export(s, &o);
    const data_info *info = data_source_info(s);
    if (!e)
        printf("%s: %lld tokens of %lld documents, for %s\n", a.out, (long long)info->tokens,
               (long long)info->documents, a.to);
    data_close(s);
    return e;
}

#define AT(member) offsetof(export_args, member)
/* clang-format off */
static const cli_arg args[] = {
    { "to", ARG_TEXT, AT(to), "FORMAT", DATA_EXPORT_FORMATS },
    { "out", ARG_TEXT, AT(out), "PATH", "megatron: PATH.bin and PATH.idx; llm.c: PATH_000000.bin ...; nanogpt: a .bin file; arrow: a folder", 'o' },
    { "held-out", ARG_FLAG, AT(held_out), "", "export the part of a folder that is held out for validation" },
    { "shard", ARG_COUNT, AT(shard), "TOKENS", "of llm.c and arrow: begin a new file after this many tokens (default 100M)" },
    { "dtype", ARG_TEXT, AT(dtype), "TYPE", "id type of a raw .bin file that is read: uint16, uint32 or int64 (default: guessed from the values)" },
};
/* clang-format on */

const cli_subcommand data_export_command = {
    .summary = "write tokens as files of Megatron, llm.c, nanoGPT or Hugging Face datasets",
    .run = run_export,
    .spec = { "data export", "SOURCE --to FORMAT --out PATH [options]", CLI_ARGS(args), 1, false },
    .help =
        "SOURCE is a folder of shards or any token file that ingot reads. Documents are not cut.\n"
        "\n"
        "Examples\n"
        "  ingot data export tokens --to megatron --out web\n"
        "  ingot data export tokens --to nanogpt --out train.bin\n"
        "  ingot data export tokens --to nanogpt --held-out --out val.bin\n",
};
