/* ingot ckpt: what lies on disk of a run. Each subcommand is a file of its own, ckpt_NAME.c, and a row
 * here. */
#include <stdlib.h>
#include <string.h>

#include "cli/ckpt_common.h"
#include "io/io.h"

static const cli_subcommand *const members[] = { &ckpt_ls, &ckpt_verify_all, &ckpt_reshard_one,
                                                 &ckpt_diff };

const cli_family ckpt_family = { "ckpt", members, (int)COUNT_OF(members) };

err cmd_ckpt(int argc, char **argv) { return cli_run_family(&ckpt_family, argc, argv); }

static int compare_entries(const void *a, const void *b) {
    const ckpt_entry *x = a, *y = b;
    if (x->step != y->step) return x->step < y->step ? -1 : 1;
    return (int)x->kind - (int)y->kind;
}

static err add_run(const char *run, ckpt_kind kind, ckpt_entries *out) {
    int64_t *steps;
    int n;
    TRY(ckpt_list(run, kind, &steps, &n));
    out->at = mem_grow(out->at, (size_t)(out->n + n + 1) * sizeof *out->at);
    for (int i = 0; i < n; i++)
        out->at[out->n++] = (ckpt_entry){ ckpt_path(run, kind, steps[i]), kind, steps[i] };
    free(steps);
    return OK;
}

err ckpt_entries_list(const char *path, ckpt_entries *out) {
    *out = (ckpt_entries){ 0 };
    char *manifest = io_join(path, "manifest.json");
    bool one = io_exists(manifest);
    free(manifest);
    if (one) {
        out->at = mem_alloc(sizeof *out->at);
        out->at[out->n++] = (ckpt_entry){ strdup(path), CKPT_FULL, -1 };
        return OK;
    }
    for (int kind = 0; kind < CKPT_KINDS; kind++) TRY(add_run(path, (ckpt_kind)kind, out));
    qsort(out->at, (size_t)out->n, sizeof *out->at, compare_entries);
    if (out->n) return OK;
    ckpt_entries_free(out);
    return err_hint(ERR("%s holds no checkpoint", path),
                    "give a run folder, such as runs/tiny, or a checkpoint inside one");
}

void ckpt_entries_free(ckpt_entries *e) {
    for (int i = 0; i < e->n; i++) free(e->at[i].path);
    free(e->at);
    *e = (ckpt_entries){ 0 };
}
