/* The folders of a run's steps: which are complete, which are whole, and which of them are kept.
 *
 *     RUN/checkpoints/step-N           full: what a run continues from
 *     RUN/checkpoints/damaged-step-N   passed over by a run that continued from an older one
 *     RUN/weights/step-N               weights alone, saved more often: to sample, evaluate, export
 *     RUN/weights/superseded-step-N    of steps that the run then took again from an older checkpoint
 */
#include "checkpoint/checkpoint_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DAMAGED    "damaged-"
#define SUPERSEDED "superseded-"

const char *const ckpt_root_names[CKPT_KINDS] = {
    [CKPT_FULL] = "checkpoints", [CKPT_WEIGHTS] = "weights"
};

char *ckpt_root(const char *run_dir, ckpt_kind kind) {
    return io_join(run_dir, ckpt_root_names[kind]);
}

char *step_path_into(char to[IO_PATH_BYTES], const char *root, const char *prefix, int64_t step,
                     const char *suffix) {
    char name[64];
    snprintf(name, sizeof name, "%sstep-%08lld%s", prefix, (long long)step, suffix);
    return io_join_into(to, root, name);
}

char *step_path(const char *root, const char *prefix, int64_t step, const char *suffix) {
    return strdup(STEP_IN(root, prefix, step, suffix));
}

int64_t step_of_name(const char *name) {
    char *end;
    if (!str_starts(name, "step-") || name[5] < '0' || name[5] > '9') return -1;
    long long step = strtoll(name + 5, &end, 10);
    return *end ? -1 : step;
}

/* Steps of the checkpoints in a folder, ascending. A save gets such a name when it is complete: one that lacks
 * its manifest is damaged, and must neither be passed over nor be overwritten. @param steps owned (free). */
static err list_local_steps(const char *root, int64_t **steps, int *n) {
    char **names;
    int count;
    *steps = NULL;
    *n = 0;
    if (!io_is_dir(root)) return OK;
    TRY(io_list(root, &names, &count));
    *steps = mem_alloc((size_t)(count + 1) * sizeof **steps);
    for (int i = 0; i < count; i++) {
        int64_t step = step_of_name(names[i]);
        if (step >= 0 && io_is_dir(PATH_IN(root, names[i]))) (*steps)[(*n)++] = step;
    }
    io_list_free(names, count);
    sort_array(*steps, (size_t)*n, sizeof **steps, compare_int64);
    return OK;
}

err ckpt_list(const char *run_dir, ckpt_kind kind, int64_t **steps, int *n) {
    return list_local_steps(ROOT_IN(run_dir, kind), steps, n);
}

char *ckpt_path(const char *run_dir, ckpt_kind kind, int64_t step) {
    return step_path(ROOT_IN(run_dir, kind), "", step, "");
}

/* ---- which are kept ------------------------------------------------------------------------ */
kept_step kept_step_of(int64_t step, const json_t *doc) {
    const json_t *state = doc ? json_object_get(doc, "state") : NULL;
    const json_t *loss = json_object_get(state, "held_out_loss");
    return (kept_step){ .step = step,
                        .finite = doc && manifest_loss_is_finite(doc),
                        .saves = json_integer_value(json_object_get(state, "saves")),
                        .held_out = json_is_number(loss) ? json_number_value(loss) : NAN };
}

static void keep_best(kept_step *k, int n, int64_t best) {
    for (; best > 0; best--) {
        int found = -1;
        for (int i = 0; i < n;
             i++) /* of equal ones the first: later ones only repeat its validation */
            if (!isnan(k[i].held_out) && (found < 0 || k[i].held_out < k[found].held_out))
                found = i;
        if (found < 0) return;
        k[found].kept = true;
        k[found].held_out = NAN; /* counted */
    }
}

/* The newest; each n-th; the best; and the last one that was saved after a finite loss: of a run that
 * diverges it is the only one worth going back to. */
void choose_kept(kept_step *k, int n, const ckpt_keep *keep) {
    int good = n - 1;
    for (int i = MAX(0, n - (int)MIN(keep->latest, (int64_t)n)); i < n; i++) k[i].kept = true;
    while (good >= 0 && !k[good].finite) good--;
    if (good >= 0) k[good].kept = true;
    for (int i = 0; i < n && keep->every > 0; i++)
        if (k[i].saves > 0 && k[i].saves % keep->every == 0) k[i].kept = true;
    keep_best(k, n, keep->best);
}

/* It loses its name first: a removal that is killed leaves something that ckpt_recover removes, not a checkpoint
 * without some of its files. */
static err remove_local_step(const char *root, int64_t step) {
    const char *temp = STEP_IN(root, ".", step, STEP_TEMPORARY);
    TRY(io_remove_tree(root, temp));
    TRY(io_rename(STEP_IN(root, "", step, ""), temp));
    return io_remove_tree(root, temp);
}

err folders_remove_old(const char *root, const ckpt_keep *keep) {
    int64_t *steps;
    int n;
    err e = OK;
    if (keep->latest <= 0) return OK;
    TRY(list_local_steps(root, &steps, &n));
    kept_step *k = mem_alloc((size_t)(n + 1) * sizeof *k);
    for (int i = 0; i < n && n > keep->latest; i++) {
        json_t *doc = NULL;
        err unread = manifest_read(STEP_IN(root, "", steps[i], ""), &doc, NULL);
        k[i] = kept_step_of(steps[i], unread ? NULL : doc);
        k[i].kept = unread != OK; /* a manifest that cannot be read now justifies no removal */
        err_free(unread);
        json_decref(doc);
    }
    if (n > keep->latest) choose_kept(k, n, keep);
    for (int i = 0; i < n && n > keep->latest && !e; i++)
        if (!k[i].kept) e = remove_local_step(root, steps[i]);
    free(k);
    free(steps);
    return e;
}

/* ---- what a killed save left ----------------------------------------------------------------- */
/* A save that was killed while it replaced a checkpoint left the old one under another name. */
static err recover_entry(const char *root, const char *name) {
    if (!str_starts(name, ".step-")) return OK;
    const char *path = PATH_IN(root, name);
    if (str_ends(name, STEP_TEMPORARY)) return io_remove_tree(root, path);
    if (!str_ends(name, STEP_REPLACED)) return OK;
    char *final = PATH_IN(root, name + 1);
    final[strlen(final) - strlen(STEP_REPLACED)] = '\0';
    return io_exists(final) ? io_remove_tree(root, path) : io_rename(path, final);
}

err ckpt_recover(const char *run_dir) {
    err e = OK;
    for (int kind = 0; kind < CKPT_KINDS && !e; kind++) {
        const char *root = ROOT_IN(run_dir, kind);
        char **names = NULL;
        int n = 0;
        if (io_is_dir(root)) e = io_list(root, &names, &n);
        for (int i = 0; i < n && !e; i++) e = recover_entry(root, names[i]);
        io_list_free(names, n);
    }
    return e;
}

/* ---- the newest ------------------------------------------------------------------------------- */
err ckpt_latest(const char *run_dir, char **path) {
    int64_t *steps;
    int n;
    *path = NULL;
    TRY(ckpt_list(run_dir, CKPT_FULL, &steps, &n));
    if (n) *path = ckpt_path(run_dir, CKPT_FULL, steps[n - 1]);
    free(steps);
    return OK;
}

/* Tries them from the newest on. @param found the one that is whole, -1 when none is: the error is that
 * of the newest. One of a later version, or under another step's name, is not damaged, and not passed over. */
static err find_undamaged(const char *run_dir, ckpt_kind kind, const int64_t *steps, int n, comm *c,
                          int *found) {
    err first = OK;
    *found = -1;
    for (int i = n - 1; i >= 0 && *found < 0; i--) {
        const char *path = STEP_IN(ROOT_IN(run_dir, kind), "", steps[i], "");
        err e = ckpt_verify(path, comm_rank(c), comm_world(c), NULL); /* each rank its share */
        if (c) e = comm_agree(c, e);
        bool stop = e && manifest_is_foreign(path);
        if (!e) *found = i;
        if (!first)
            first = e;
        else
            err_free(e);
        if (stop) break;
    }
    return first;
}

err ckpt_newest_whole(const char *run_dir, ckpt_kind kind, comm *c, char **path) {
    int64_t *steps;
    int n, found = -1;
    *path = NULL;
    TRY(ckpt_list(run_dir, kind, &steps, &n));
    err e = find_undamaged(run_dir, kind, steps, n, c, &found);
    if (found >= 0) *path = ckpt_path(run_dir, kind, steps[found]);
    if (e && *path) {
        log_warn("%s; continuing with %s", err_message(e), *path);
        err_free(e);
        e = OK;
    }
    free(steps);
    return e;
}

static err rename_newer(const char *run_dir, ckpt_kind kind, int64_t step, const char *prefix) {
    int64_t *steps;
    int n;
    const char *root = ROOT_IN(run_dir, kind);
    err e = list_local_steps(root, &steps, &n);
    for (int i = 0; !e && i < n; i++) {
        if (steps[i] <= step) continue;
        const char *to = STEP_IN(root, prefix, steps[i], "");
        e = io_remove_tree(root, to);
        if (!e) e = io_rename(STEP_IN(root, "", steps[i], ""), to);
    }
    free(steps);
    return e;
}

err ckpt_supersede_newer(const char *run_dir, int64_t step, ckpt_fault why) {
    TRY(rename_newer(run_dir, CKPT_FULL, step, why == CKPT_DAMAGED ? DAMAGED : SUPERSEDED));
    return rename_newer(run_dir, CKPT_WEIGHTS, step, SUPERSEDED);
}
