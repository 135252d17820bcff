/* ingot ckpt: what lies on disk of a run. Each subcommand is a file of its own, ckpt_NAME.c, and a row
 * here. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ckpt_common.h"
#include "io/io.h"
#include "store/store.h"

static const cli_subcommand *const members[] = { &ckpt_ls, &ckpt_verify_all, &ckpt_reshard_one,
                                                 &ckpt_diff };

const cli_family ckpt_family = { "ckpt", members, (int)COUNT_OF(members) };

err cmd_ckpt(int argc, char **argv) { return cli_run_family(&ckpt_family, argc, argv); }

static int compare_entries(const void *a, const void *b) {
    const ckpt_entry *x = a, *y = b;
    if (x->step != y->step) return x->step < y->step ? -1 : 1;
    return (int)x->kind - (int)y->kind;
}

static err add_checkpoints(const char *run, ckpt_kind kind, ckpt_entries *out) {
    int64_t *steps;
    int n;
    TRY(ckpt_list(run, kind, &steps, &n));
    out->at = mem_grow(out->at, (size_t)(out->n + n + 1) * sizeof *out->at);
    for (int i = 0; i < n; i++)
        out->at[out->n++] =
            (ckpt_entry){ ckpt_path(run, kind, steps[i]), .kind = kind, .step = steps[i] };
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
        out->at[out->n++] = (ckpt_entry){ strdup(path), .kind = CKPT_FULL, .step = -1 };
        return OK;
    }
    for (int kind = 0; kind < CKPT_KINDS; kind++) TRY(add_checkpoints(path, (ckpt_kind)kind, out));
    qsort(out->at, (size_t)out->n, sizeof *out->at, compare_entries);
    if (out->n) return OK;
    ckpt_entries_free(out);
    if (store_is_url(path))
        return err_hint(ERR("%s is in an object store", path),
                        "`ingot ckpt ls` reads it there; copy it to a folder for the rest");
    return err_hint(ERR("%s holds no checkpoint", path),
                    "give a run folder, such as runs/tiny, or a checkpoint inside one");
}

static err list_store(const char *url, ckpt_entries *out) {
    const char *root = getenv("TMPDIR");
    str folder = { 0 };
    str_add(&folder, "%s/ingot-ckpt-XXXXXX", root && *root ? root : "/tmp");
    if (!mkdtemp(folder.text)) {
        err e = ERR("cannot make the folder %s: %s", folder.text, strerror(errno));
        str_free(&folder);
        return e;
    }
    err e = ckpt_download_manifests(url, folder.text);
    if (!e) e = add_checkpoints(folder.text, CKPT_FULL, out);
    out->downloaded = folder.text;
    bool one = strstr(url, "/step-");
    for (int i = 0; i < out->n && !e; i++)
        out->at[i].url =
            one ? strdup(url) : store_join(url, out->at[i].path + strlen(folder.text) + 1);
    if (!e && !out->n)
        e = err_hint(ERR("%s holds no checkpoint", url),
                     "give the URL of a run, as checkpoint.upload has it");
    if (e) ckpt_entries_free(out);
    return e;
}

err ckpt_entries_list_any(const char *path, ckpt_entries *out) {
    if (!store_is_url(path)) return ckpt_entries_list(path, out);
    *out = (ckpt_entries){ 0 };
    return list_store(path, out);
}

void ckpt_entries_free(ckpt_entries *e) {
    if (e->downloaded) err_free(io_remove_tree(e->downloaded, e->downloaded));
    free(e->downloaded);
    for (int i = 0; i < e->n; i++) free(e->at[i].path), free(e->at[i].url);
    free(e->at);
    *e = (ckpt_entries){ 0 };
}
