/* Shared by the subcommands of `ingot ckpt`. */
#ifndef INGOT_CLI_CKPT_COMMON_H
#define INGOT_CLI_CKPT_COMMON_H

#include "checkpoint/checkpoint.h"
#include "cli/cli.h"
#include "io/io.h"

/* The options of commands that have no others. */
typedef struct ckpt_flags {
    bool json;
} ckpt_flags;
extern const cli_arg ckpt_flag_args[1];

/* The checkpoints that a word of the command line names: a checkpoint's folder itself, or all of a run. */
typedef struct ckpt_entry {
    char *path; /* owned */
    char *url;  /* of an object store that it was downloaded from; owned, NULL: none */
    ckpt_kind kind;
    int64_t step; /* as the folder is called; -1: a folder of another name */
} ckpt_entry;
typedef struct ckpt_entries {
    ckpt_entry *at; /* by step */
    int n;
    char *
        downloaded; /* a folder of manifests without tensors, removed at the end; owned, NULL: none */
} ckpt_entries;
/* Of an object store (s3://bucket/run) manifests are downloaded. An error when there is none. */
err ckpt_entries_list(const char *path, ckpt_entries *out) MUST_USE;
void ckpt_entries_free(ckpt_entries *e);

/* The one checkpoint that a word of the command line names, as ckpt_find finds it. Of a URL it is downloaded and
 * verified: the newest full one of a run, or the checkpoint itself. */
typedef struct ckpt_found {
    char *path;       /* owned */
    char *downloaded; /* the folder it was downloaded to, removed at the end; owned, NULL: none */
} ckpt_found;
err ckpt_found_open(const char *word,
                    ckpt_found *out) MUST_USE; /* after an error there is nothing to close */
void ckpt_found_close(ckpt_found *f);

#endif
