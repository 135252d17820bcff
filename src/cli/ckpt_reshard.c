/* ingot ckpt reshard: a checkpoint as another number of files. */

#include "cli/ckpt_common.h"

typedef struct reshard_args {
    int64_t files;
    bool weights;
} reshard_args;
static const cli_arg args[] = {
    { "files", ARG_COUNT, offsetof(reshard_args, files), "N",
      "number of files for the weights, and for the optimizer state (default 1)" },
    { "weights-only", ARG_FLAG, offsetof(reshard_args, weights), NULL, "omit the optimizer state" },
};

static err run_reshard(const cli_subcommand *self, int argc, char **argv) {
    enum { MOST_FILES = 99999 };
    reshard_args a = { .files = 1 };
    const char *path[2];
    char bytes[32];
    ckpt_found from;
    ckpt_info info;
    TRY(cli_parse(&self->spec, argc, argv, &a, path));
    if (a.files < 1 || a.files > MOST_FILES)
        return err_hint(
            ERR_USAGE("--files: expected 1 to %d; got %lld", MOST_FILES, (long long)a.files),
            "1 makes files of whole tensors");
    TRY(ckpt_found_open(path[0], &from));
    err e = ckpt_reshard(from.path, path[1], (int)a.files, a.weights);
    if (!e) e = ckpt_describe(path[1], &info);
    if (!e)
        printf("%s: step %lld of %s, %s in %d files\n", path[1], (long long)info.step,
               from.downloaded ? path[0] : from.path,
               str_bytes(bytes, sizeof bytes, (double)info.bytes), info.files);
    ckpt_found_close(&from);
    return e;
}

const cli_subcommand ckpt_reshard_one = {
    .summary = "rewrite a checkpoint as another number of files",
    .run = run_reshard,
    .spec = { "ckpt reshard", "RUN FOLDER [options]", CLI_ARGS(args), 2 },
    .help =
        "RUN is a run folder, whose newest complete checkpoint is used, or a checkpoint inside\n"
        "one, or the URL of either in an object store (s3://bucket/run), which is downloaded to TMPDIR.\n"
        "One tensor at a time is in memory. Training does not need this: a checkpoint loads\n"
        "into any number of ranks as it is. With one file, tensors are whole and any reader of\n"
        "safetensors understands them.\n"
        "\n"
        "Examples\n"
        "  ingot ckpt reshard runs/tiny whole\n"
        "  ingot ckpt reshard runs/tiny/checkpoints/step-00001000 parts --files 8\n"
        "  ingot ckpt reshard runs/tiny small --weights-only\n",
};
