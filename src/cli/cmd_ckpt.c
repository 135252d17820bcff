/* ingot ckpt: the checkpoints of a run on disk. Each subcommand is a file of its own, ckpt_NAME.c, and a row
 * here. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ckpt_common.h"
#include "io/io.h"
#include "store/store.h"

const cli_arg ckpt_flag_args[] = {
    { "json", ARG_FLAG, offsetof(ckpt_flags, json), NULL, "print JSON" },
};

static const cli_subcommand *const members[] = { &ckpt_ls, &ckpt_verify_all, &ckpt_reshard_one,
                                                 &ckpt_diff, &ckpt_upload_one };

const cli_family ckpt_family = { "ckpt", members, (int)COUNT_OF(members) };

err cmd_ckpt(int argc, char **argv) { return cli_run_family(&ckpt_family, argc, argv); }

SORT_ORDER(compare_entries, ckpt_entry, RISING(step) RISING(kind));

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

static err list_folder(const char *path, ckpt_entries *out) {
    if (io_has(path, "manifest.json")) {
        out->at = mem_alloc(sizeof *out->at);
        out->at[out->n++] = (ckpt_entry){ strdup(path), .kind = CKPT_FULL, .step = -1 };
        return OK;
    }
    for (int kind = 0; kind < CKPT_KINDS; kind++) TRY(add_checkpoints(path, (ckpt_kind)kind, out));
    sort_array(out->at, (size_t)out->n, sizeof *out->at, compare_entries);
    if (out->n) return OK;
    ckpt_entries_free(out);
    return ckpt_missing(path, "give a run folder, such as runs/tiny, or a checkpoint inside one");
}

/* ---- in an object store --------------------------------------------------------------------------- */
/* A new folder for what is downloaded. @param out owned (free). */
static err make_scratch(char **out) {
    const char *root = getenv("TMPDIR");
    str folder = { 0 };
    str_add(&folder, "%s/ingot-ckpt-XXXXXX", root && *root ? root : "/tmp");
    if (!mkdtemp(folder.text)) {
        err e = err_hint(ERR("cannot make the folder %s: %s", folder.text, strerror(errno)),
                         "let TMPDIR name a folder that can be written");
        str_free(&folder);
        return e;
    }
    *out = folder.text;
    return OK;
}

static void remove_scratch(char *folder) {
    char *root = folder ? io_join(folder, "..") : NULL;
    err e = folder ? io_remove_tree(root, folder) : OK;
    if (e) log_warn("%s", err_message(e));
    err_free(e);
    free(root);
    free(folder);
}

static err list_store(const char *url, ckpt_entries *out) {
    TRY(make_scratch(&out->downloaded));
    err e = ckpt_download_manifests(url, out->downloaded);
    for (int kind = 0; kind < CKPT_KINDS && !e; kind++)
        e = add_checkpoints(out->downloaded, (ckpt_kind)kind, out);
    bool one = strstr(url, "/step-");
    for (int i = 0; i < out->n && !e; i++)
        out->at[i].url =
            one ? strdup(url) : store_join(url, out->at[i].path + strlen(out->downloaded) + 1);
    sort_array(out->at, (size_t)out->n, sizeof *out->at, compare_entries);
    if (!e && !out->n)
        e = err_hint(ERR("%s holds no checkpoint", url),
                     "give the URL of a run, as checkpoint.upload has it");
    if (e) ckpt_entries_free(out);
    return e;
}

static err download_found(const char *url, ckpt_found *out) {
    int64_t step;
    TRY(make_scratch(&out->downloaded));
    TRY(ckpt_download(url, out->downloaded, -1, &step));
    if (step < 0)
        return err_hint(ERR("%s holds no checkpoint", url),
                        "give the URL of a run, as checkpoint.upload has it, or of a checkpoint");
    out->path = ckpt_path(out->downloaded, CKPT_FULL, step);
    return OK;
}

err ckpt_found_open(const char *word, ckpt_found *out) {
    *out = (ckpt_found){ 0 };
    if (!store_is_url(word)) return ckpt_find(word, &out->path);
    err e = download_found(word, out);
    if (e) ckpt_found_close(out);
    return e;
}

void ckpt_found_close(ckpt_found *f) {
    remove_scratch(f->downloaded);
    free(f->path);
    *f = (ckpt_found){ 0 };
}

err ckpt_entries_list(const char *path, ckpt_entries *out) {
    *out = (ckpt_entries){ 0 };
    return store_is_url(path) ? list_store(path, out) : list_folder(path, out);
}

void ckpt_entries_free(ckpt_entries *e) {
    remove_scratch(e->downloaded);
    for (int i = 0; i < e->n; i++) free(e->at[i].path), free(e->at[i].url);
    free(e->at);
    *e = (ckpt_entries){ 0 };
}
