/* Finds a trained model: the checkpoint of a run folder, and the tokenizer beside it. */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"
#include "io/io.h"

static int64_t newest_step(const char *run, ckpt_kind kind) {
    int64_t *steps, newest = -1;
    int n;
    err e = ckpt_list(run, kind, &steps, &n);
    if (!e && n) newest = steps[n - 1];
    if (!e) free(steps);
    err_free(e);
    return newest;
}

/* Weights alone where they are newer, and whole. */
static err newest_of_any_kind(const char *run, char **path) {
    if (newest_step(run, CKPT_WEIGHTS) > newest_step(run, CKPT_FULL)) {
        err e = ckpt_newest_whole(run, CKPT_WEIGHTS, NULL, path);
        if (!e && *path) return OK;
        if (e) log_warn("%s", err_message(e));
        err_free(e);
    }
    return ckpt_newest_whole(run, CKPT_FULL, NULL, path);
}

err ckpt_missing(const char *run_dir, const char *remedy) {
    if (!io_is_dir(PATH_IN(run_dir, CKPT_PREVIOUS)))
        return err_hint(ERR("%s holds no checkpoint", run_dir), "%s", remedy);
    return err_hint(
        ERR("%s holds no checkpoint: its run was to be replaced, is kept in %s/%s, and the new "
            "one has not taken a step",
            run_dir, run_dir, CKPT_PREVIOUS),
        "give that folder; if the new run was killed, the next `ingot train` there "
        "restores the earlier one");
}

err ckpt_find(const char *run, char **path) {
    *path = NULL;
    if (!io_is_dir(run))
        return err_hint(ERR("%s is not a folder", run),
                        "give a run folder, such as runs/demo, or a checkpoint inside one");
    if (io_has(run, "manifest.json")) {
        *path = strdup(run);
        return OK;
    }
    TRY(newest_of_any_kind(run, path));
    if (!*path)
        return ckpt_missing(run,
                            "train it first (ingot train), or ingot import a Hugging Face folder");
    return OK;
}

char *ckpt_file(const char *checkpoint, const char *name) {
    static const char *const folders[] = { ".", "..", "../.." };
    for (size_t i = 0; i < COUNT_OF(folders); i++) {
        char *path = io_join(PATH_IN(checkpoint, folders[i]), name);
        if (io_exists(path)) return path;
        free(path);
    }
    return NULL;
}

char *ckpt_tokenizer_path(const char *checkpoint) {
    return ckpt_file(checkpoint, "tokenizer.json");
}
