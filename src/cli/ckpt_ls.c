/* ingot ckpt ls: the checkpoints of a run. */
#include <math.h>
#include <string.h>

#include "cli/ckpt_common.h"

static void print_number(const char *format, double value) {
    if (isfinite(value) && value > 0)
        printf(format, value);
    else
        printf("%9s", "-");
}

static void print_checkpoint(const char *path, const ckpt_info *i, const ckpt_state *s) {
    char size[32], tokens[32];
    printf("%10lld  %-8s %10s %8s ", (long long)s->step, i->has_states ? "full" : "weights",
           str_count(tokens, sizeof tokens, (double)s->tokens),
           str_bytes(size, sizeof size, (double)i->bytes));
    print_number("%9.4f", s->loss);
    printf(" ");
    print_number("%9.4f", s->held_out_loss);
    printf(" %5d  %6lld  %s\n", i->files, (long long)i->format, path);
}

static json_t *loss_json(double value) { return io_json_number(value > 0 ? value : NAN); }

static json_t *line_json(const char *path, const ckpt_info *i, const ckpt_state *s) {
    return json_pack("{s:I, s:s, s:I, s:I, s:o, s:o, s:i, s:I, s:o, s:o, s:o}", "step",
                     (json_int_t)s->step, "kind", i->has_states ? "full" : "weights", "tokens",
                     (json_int_t)s->tokens, "bytes", (json_int_t)i->bytes, "loss",
                     loss_json(s->loss), "held_out_loss", loss_json(s->held_out_loss), "files",
                     i->files, "format", (json_int_t)i->format, "ingot",
                     io_json_string(i->version, strlen(i->version)), "revision",
                     io_json_string(i->revision, strlen(i->revision)), "path",
                     io_json_string(path, strlen(path)));
}

/* One that cannot be read is listed with the reason. */
static void list_one(const ckpt_entry *entry, bool json, json_t *list) {
    ckpt_info i;
    ckpt_state s;
    model_config c;
    const char *shown = entry->url ? entry->url : entry->path;
    err e = ckpt_describe(entry->path, &i);
    if (!e) e = ckpt_read_manifest(entry->path, &c, &s, NULL);
    if (!e && json)
        json_array_append_new(list, line_json(shown, &i, &s));
    else if (!e)
        print_checkpoint(shown, &i, &s);
    else if (json)
        json_array_append_new(
            list, json_pack("{s:o, s:o}", "path", io_json_string(shown, strlen(shown)), "error",
                            io_json_string(err_message(e), strlen(err_message(e)))));
    else
        printf("%10lld  unreadable: %s\n", (long long)entry->step, err_message(e));
    err_free(e);
}

static err run_ls(const cli_subcommand *self, int argc, char **argv) {
    ckpt_flags a = { 0 };
    const char *path;
    ckpt_entries list;
    TRY(cli_parse(&self->spec, argc, argv, &a, &path));
    TRY(ckpt_entries_list(path, &list));
    json_t *lines = json_array();
    if (!a.json)
        printf("%10s  %-8s %10s %8s %9s %9s %5s  %6s  %s\n", "step", "kind", "tokens", "size",
               "loss", "held-out", "files", "format", "path");
    for (int i = 0; i < list.n; i++) list_one(&list.at[i], a.json, lines);
    if (a.json) io_json_print(stdout, json_incref(lines), JSON_INDENT(2));
    json_decref(lines);
    ckpt_entries_free(&list);
    return OK;
}

const cli_subcommand ckpt_ls = {
    .summary = "list the checkpoints of a run",
    .run = run_ls,
    .spec = { "ckpt ls", "RUN [--json]", CLI_ARGS(ckpt_flag_args), 1 },
    .help =
        "RUN is a run folder or a checkpoint inside one, or the URL of either in an object store\n"
        "(s3://bucket/run). Manifests are read, tensors are not:\n"
        "`ingot ckpt verify` reads everything.\n"
        "\n"
        "Examples\n"
        "  ingot ckpt ls runs/tiny\n"
        "  ingot ckpt ls runs/tiny --json\n"
        "  ingot ckpt ls s3://bucket/runs/tiny\n",
};
