/* ingot ckpt verify: compares every byte of checkpoints with its checksum. */
#include <string.h>

#include "cli/ckpt_common.h"

/* Checkpoints in a store are downloaded one at a time. */
static err verify_entry(const ckpt_entry *entry, ckpt_size *size) {
    ckpt_found found = { 0 };
    if (entry->url) TRY(ckpt_found_open(entry->url, &found));
    err e = ckpt_verify(entry->url ? found.path : entry->path, 0, 1, size);
    ckpt_found_close(&found);
    return e;
}

/* @return whether it is whole. */
static bool verify_one(const ckpt_entry *entry, bool json, json_t *list) {
    const char *path = entry->url ? entry->url : entry->path;
    ckpt_size size = { 0 };
    char bytes[32];
    err e = verify_entry(entry, &size);
    bool whole = !e;
    if (json && whole)
        json_array_append_new(list, json_pack("{s:o, s:b, s:I, s:i, s:i}", "path",
                                              io_json_string(path, strlen(path)), "whole", 1,
                                              "bytes", (json_int_t)size.bytes, "files", size.files,
                                              "tensors", size.tensors));
    else if (json)
        json_array_append_new(
            list, json_pack("{s:o, s:b, s:o}", "path", io_json_string(path, strlen(path)), "whole",
                            0, "error", io_json_string(err_message(e), strlen(err_message(e)))));
    else if (whole)
        printf("%s: whole, %d tensors in %d files, %s\n", path, size.tensors, size.files,
               str_bytes(bytes, sizeof bytes, (double)size.bytes));
    else
        printf("%s: damaged: %s\n", path, err_message(e));
    err_free(e);
    return whole;
}

static err run_verify(const cli_subcommand *self, int argc, char **argv) {
    ckpt_flags a = { 0 };
    const char *path;
    ckpt_entries list;
    int damaged = 0;
    TRY(cli_parse(&self->spec, argc, argv, &a, &path));
    TRY(ckpt_entries_list(path, &list));
    json_t *lines = json_array();
    for (int i = 0; i < list.n; i++) damaged += !verify_one(&list.at[i], a.json, lines);
    if (a.json) io_json_print(stdout, json_incref(lines), JSON_INDENT(2));
    err e = damaged ? err_hint(ERR("%d of %d checkpoints are damaged", damaged, list.n),
                               "restore them from a copy; training and sampling use the newest "
                               "one that is whole")
                    : OK;
    json_decref(lines);
    ckpt_entries_free(&list);
    return e;
}

const cli_subcommand ckpt_verify_all = {
    .summary = "compare every byte of checkpoints with its checksum",
    .run = run_verify,
    .spec = { "ckpt verify", "RUN [--json]", CLI_ARGS(ckpt_flag_args), 1 },
    .help =
        "RUN is a run folder, all of whose checkpoints are verified, or a checkpoint inside one, or the\n"
        "URL of either in an object store (s3://bucket/run), whose checkpoints are downloaded to TMPDIR\n"
        "one after the other.\n"
        "Exits with 1 when one is damaged.\n"
        "\n"
        "Examples\n"
        "  ingot ckpt verify runs/tiny\n"
        "  ingot ckpt verify runs/tiny/checkpoints/step-00001000 --json\n",
};
