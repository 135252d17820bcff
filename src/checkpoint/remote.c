/* The checkpoints of a run in an object store: what is there, copying one there and back, and which stay. The
 * layout is in checkpoint.h. Nothing in a store can be renamed, so what makes a folder a checkpoint is its
 * manifest alone:
 *
 *     upload      delete an old manifest -> files -> config, tokenizer -> manifest
 *     remove      manifest -> files
 *     supersede   manifest copied to another name -> manifest
 *
 * Whoever is killed on the way leaves files without a manifest, which the next upload of that step
 * overwrites.
 *
 * A run that goes back to an earlier step leaves RUN/checkpoints/.gone-back-to with that step before it renames
 * anything, and removes it when later steps are superseded in the store. No upload begins, and no process resumes
 * from the store, while it is there: the store never offers a branch that its run has left. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint_internal.h"
#include "io/io.h"
#include "store/store.h"
#include "util/fault.h"

enum { MOST_MANIFEST = 1 << 30 };

static char *remote_root(const char *url, ckpt_kind kind) {
    return store_join(url, ckpt_root_names[kind]);
}

static char *remote_step(const char *url, ckpt_kind kind, int64_t step) {
    char *root = remote_root(url, kind), *path = step_path(root, "", step, "");
    free(root);
    return path;
}

/* ---- listing ------------------------------------------------------------------------------------------------- */
/* Steps that have a manifest. */
static err list_remote_steps(store *s, const char *url, ckpt_kind kind, int64_t **steps, int *n) {
    store_list l;
    char *root = remote_root(url, kind);
    err e = store_list_folder(s, root, &l);
    *steps = NULL;
    *n = 0;
    if (!e) *steps = mem_alloc((size_t)(l.n + 1) * sizeof **steps);
    for (int i = 0; !e && i < l.n; i++) {
        char *name = strdup(l.at[i].url + strlen(root) + 1), *slash = strchr(name, '/');
        if (slash) *slash = '\0';
        int64_t step = slash && !strcmp(slash + 1, CKPT_MANIFEST_FILE) ? step_of_name(name) : -1;
        if (step >= 0) (*steps)[(*n)++] = step;
        free(name);
    }
    if (!e) {
        qsort(*steps, (size_t)*n, sizeof **steps, compare_int64);
        store_list_free(&l);
    }
    free(root);
    return e;
}

err ckpt_remote_list(const char *url, int64_t **steps, int *n) {
    store *s = NULL;
    TRY(store_open(&s));
    err e = list_remote_steps(s, url, CKPT_FULL, steps, n);
    store_close(s);
    return e;
}

/* ---- uploading ------------------------------------------------------------------------------------------------ */
/* Whether the store has exactly this manifest: then it has all files of it. */
static err is_there(store *s, const char *manifest_url, const char *manifest, bool *there) {
    char *mine = NULL, *theirs = NULL;
    size_t n = 0, m = 0;
    store_object o;
    bool found;
    *there = false;
    TRY(store_head(s, manifest_url, &found, &o));
    if (!found) return OK;
    err e = io_read(manifest, MOST_MANIFEST, &mine, &n);
    if (!e && (int64_t)n == o.bytes) {
        e = store_read(s, manifest_url, MOST_MANIFEST, &theirs, &m);
        *there = !e && n == m && !memcmp(mine, theirs, n);
    }
    free(mine);
    free(theirs);
    if (!e && !*there) e = store_delete(s, manifest_url); /* its files are about to change */
    return e;
}

static err upload_file(store *s, const char *folder, const char *url, const char *name,
                       int64_t *bytes) {
    char *from = io_join(folder, name), *to = store_join(url, name);
    int64_t size = 0;
    err e = io_size(from, &size);
    if (!e) e = store_put_file(s, to, from);
    *bytes += size;
    free(from);
    free(to);
    return e;
}

static err check_wanted(const _Atomic bool *cancelled) {
    return atomic_load(cancelled) ? ERR("the run went back: this upload is not wanted any more")
                                  : OK;
}

static err upload_files(const remote_job *j, const char *folder, const char *url, int64_t *bytes) {
    char **names;
    int n;
    TRY(io_list(folder, &names, &n));
    err e = OK;
    for (int i = 0; i < n && !e; i++) {
        if (!strcmp(names[i], CKPT_MANIFEST_FILE)) continue;
        e = check_wanted(j->cancelled);
        if (!e) e = upload_file(j->s, folder, url, names[i], bytes);
        fault_point(FAULT_UPLOAD_FILE, 0);
    }
    io_list_free(names, n);
    return e;
}

/* What resuming on another machine needs besides the checkpoint. */
static err upload_run_files(store *s, const char *run_dir, const char *url, int64_t *bytes) {
    static const char *const names[] = { "config.yaml", "tokenizer.json" };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char *path = io_join(run_dir, names[i]);
        err e = io_exists(path) ? upload_file(s, run_dir, url, names[i], bytes) : OK;
        free(path);
        TRY(e);
    }
    return OK;
}

err remote_upload(const remote_job *j, ckpt_kind kind, int64_t step, int64_t *bytes) {
    char *folder = ckpt_path(j->run_dir, kind, step), *to = remote_step(j->url, kind, step);
    char *manifest = io_join(folder, CKPT_MANIFEST_FILE);
    char *manifest_url = store_join(to, CKPT_MANIFEST_FILE);
    bool there;
    err e = OK;
    *bytes = 0;
    TRY_CLEAN(is_there(j->s, manifest_url, manifest, &there));
    if (there) goto cleanup;
    TRY_CLEAN(upload_files(j, folder, to, bytes));
    TRY_CLEAN(upload_run_files(j->s, j->run_dir, j->url, bytes));
    fault_point(FAULT_UPLOAD_MANIFEST, 0);
    TRY_CLEAN(check_wanted(j->cancelled));
    TRY_CLEAN(upload_file(j->s, folder, to, CKPT_MANIFEST_FILE, bytes));
    fault_point(FAULT_UPLOAD_DONE, 0);
cleanup:
    free(folder);
    free(to);
    free(manifest);
    free(manifest_url);
    return e;
}

/* ---- which stay ------------------------------------------------------------------------------------------------ */
static err read_remote_manifest(store *s, const char *url, ckpt_kind kind, int64_t step,
                                json_t **doc) {
    char *folder = remote_step(url, kind, step), *path = store_join(folder, CKPT_MANIFEST_FILE);
    char *text = NULL;
    size_t n;
    *doc = NULL;
    err e = store_read(s, path, MOST_MANIFEST, &text, &n);
    if (!e) e = io_json_parse(text, n, path, doc);
    if (!e) e = manifest_check(*doc, path, NULL);
    if (e) {
        json_decref(*doc);
        *doc = NULL;
    }
    free(text);
    free(path);
    free(folder);
    return e;
}

static err remove_step(store *s, const char *url, ckpt_kind kind, int64_t step) {
    char *folder = remote_step(url, kind, step), *manifest = store_join(folder, CKPT_MANIFEST_FILE);
    store_list l = { 0 };
    err e = store_delete(s, manifest);
    if (!e) e = store_list_folder(s, folder, &l);
    for (int i = 0; i < l.n && !e; i++) e = store_delete(s, l.at[i].url);
    store_list_free(&l);
    free(manifest);
    free(folder);
    return e;
}

static err supersede_step(store *s, const char *url, ckpt_kind kind, int64_t step) {
    char *folder = remote_step(url, kind, step), *text = NULL;
    char *from = store_join(folder, CKPT_MANIFEST_FILE);
    char *to = store_join(folder, CKPT_SUPERSEDED_MANIFEST);
    size_t n;
    err e = store_read(s, from, MOST_MANIFEST, &text, &n);
    if (!e) e = store_put(s, to, text, n);
    if (!e) e = store_delete(s, from);
    free(text);
    free(from);
    free(to);
    free(folder);
    return e;
}

/* A manifest that cannot be read now is no reason to remove anything. */
static err remove_old_steps(store *s, const char *url, ckpt_kind kind, const ckpt_keep *keep,
                            const int64_t *steps, int n) {
    kept_step *k = mem_alloc((size_t)(n + 1) * sizeof *k);
    err e = OK;
    for (int i = 0; i < n && !e; i++) {
        json_t *doc;
        e = read_remote_manifest(s, url, kind, steps[i], &doc);
        if (!e) k[i] = kept_step_of(steps[i], doc);
        json_decref(doc);
    }
    if (!e) choose_kept(k, n, keep);
    for (int i = 0; i < n && !e; i++)
        if (!k[i].kept) e = remove_step(s, url, kind, steps[i]);
    free(k);
    return e;
}

err remote_remove_old(store *s, const char *url, ckpt_kind kind, const ckpt_keep *keep,
                      int64_t newest) {
    int64_t *steps;
    int n;
    TRY(list_remote_steps(s, url, kind, &steps, &n));
    err e = OK;
    for (; n > 0 && steps[n - 1] > newest && !e; n--)
        e = supersede_step(s, url, kind, steps[n - 1]);
    if (!e && keep->latest > 0 && n > keep->latest)
        e = remove_old_steps(s, url, kind, keep, steps, n);
    free(steps);
    return e;
}

/* ---- going back ------------------------------------------------------------------------------------------------- */
static char *gone_back_path(const char *run_dir) {
    char *root = ckpt_root(run_dir, CKPT_FULL), *path = io_join(root, ".gone-back-to");
    free(root);
    return path;
}

err ckpt_mark_gone_back(const char *run_dir, int64_t step) {
    char *path = gone_back_path(run_dir), text[32];
    int n = snprintf(text, sizeof text, "%lld\n", (long long)step);
    err e = io_write(path, text, (size_t)n);
    free(path);
    return e;
}

/* @param step -1: the run has not gone back, or the store knows. */
static err read_gone_back(const char *path, int64_t *step) {
    char *text = NULL;
    *step = -1;
    if (!io_exists(path)) return OK;
    TRY(io_read(path, 64, &text, NULL));
    text[strcspn(text, "\n")] = '\0';
    bool good = number_parse_int(text, step) && *step >= 0;
    free(text);
    return good ? OK
                : err_hint(ERR("%s: expected a step", path),
                           "remove the file; then remove the checkpoints that the run left from "
                           "the store, too");
}

err remote_go_back(store *s, const char *run_dir, const char *url) {
    const ckpt_keep all = { 0 };
    char *path = gone_back_path(run_dir);
    int64_t step;
    err e = read_gone_back(path, &step);
    for (int kind = 0; kind < CKPT_KINDS && !e && step >= 0; kind++)
        e = remote_remove_old(s, url, (ckpt_kind)kind, &all, step);
    if (!e && step >= 0) e = io_remove_tree(run_dir, path);
    free(path);
    return e;
}

/* ---- downloading ----------------------------------------------------------------------------------------------- */
/* A name from a store stays inside the folder. */
static bool is_file_name(const char *name) { return *name && name[0] != '.' && !strchr(name, '/'); }

static err download_files(store *s, const char *url, const char *folder) {
    store_list l;
    TRY(store_list_folder(s, url, &l));
    err e = l.n ? OK
                : err_hint(ERR("%s holds no checkpoint", url),
                           "`ingot ckpt ls` lists those of a run in the store");
    for (int i = 0; i < l.n && !e; i++) {
        const char *name = l.at[i].url + strlen(url) + 1;
        if (!is_file_name(name)) continue;
        char *path = io_join(folder, name);
        e = store_get_file(s, l.at[i].url, path);
        free(path);
    }
    store_list_free(&l);
    return e;
}

/* Downloads a checkpoint beside the others, verifies it, and gives it its name. */
static err download_step(store *s, const char *from, const char *run_dir, int64_t step) {
    char *root = ckpt_root(run_dir, CKPT_FULL), *temp = step_path(root, ".", step, STEP_TEMPORARY);
    char *final = step_path(root, "", step, ""), *old = step_path(root, ".", step, STEP_REPLACED);
    err e = OK;
    TRY_CLEAN(io_make_dirs(root));
    TRY_CLEAN(io_remove_tree(root, temp));
    TRY_CLEAN(io_make_dirs(temp));
    TRY_CLEAN(download_files(s, from, temp));
    TRY_CLEAN(ckpt_verify(temp, 0, 1, NULL));
    TRY_CLEAN(io_replace_tree(root, temp, final, old));
cleanup:
    if (e) err_free(io_remove_tree(root, temp)); /* frees the space; e counts */
    free(root);
    free(temp);
    free(final);
    free(old);
    return e;
}

static err download_tokenizer(store *s, const char *url, const char *run_dir) {
    char *from = store_join(url, "tokenizer.json"), *to = io_join(run_dir, "tokenizer.json");
    store_object o;
    bool found = false;
    err e = io_exists(to) ? OK : store_head(s, from, &found, &o);
    if (!e && found) e = store_get_file(s, from, to);
    free(from);
    free(to);
    return e;
}

/* From the newest on. @return the newest one's error when all are damaged. */
static err download_newest(store *s, const char *url, const char *run_dir, int64_t after,
                           const int64_t *steps, int n, int64_t *step) {
    err first = OK;
    for (int i = n - 1; i >= 0 && steps[i] > after && *step < 0; i--) {
        char *from = remote_step(url, CKPT_FULL, steps[i]);
        log_info("downloading %s", from);
        err e = download_step(s, from, run_dir, steps[i]);
        if (!e) *step = steps[i];
        if (e && !first)
            first = e;
        else
            err_free(e);
        free(from);
    }
    if (first && *step >= 0) {
        log_warn("%s; continuing with step %lld", err_message(first), (long long)*step);
        err_free(first);
        first = OK;
    }
    return first;
}

/* The newest whole checkpoint of a run after step `after`, and the run's tokenizer. */
static err download_run(store *s, const char *url, const char *run_dir, int64_t after,
                        int64_t *step) {
    int64_t *steps = NULL;
    int n = 0;
    err e = remote_go_back(s, run_dir, url);
    if (!e) e = list_remote_steps(s, url, CKPT_FULL, &steps, &n);
    if (!e) e = download_newest(s, url, run_dir, after, steps, n, step);
    if (!e && *step >= 0) e = download_tokenizer(s, url, run_dir);
    free(steps);
    return e;
}

/* @return the step that a URL names, "s3://.../step-00000012"; -1: it names a run. */
static int64_t step_of_url(const char *url) {
    str s = { 0 };
    str_add(&s, "%s", url);
    while (s.len && s.text[s.len - 1] == '/') s.text[--s.len] = '\0';
    int64_t step = step_of_name(strrchr(s.text, '/') + 1);
    str_free(&s);
    return step;
}

err ckpt_download(const char *url, const char *run_dir, int64_t after, int64_t *step) {
    store *s = NULL;
    int64_t one = step_of_url(url);
    *step = -1;
    err e = store_open(&s);
    if (!e && one >= 0) e = download_step(s, url, run_dir, one);
    if (!e && one >= 0) *step = one;
    if (!e && one < 0) e = download_run(s, url, run_dir, after, step);
    store_close(s);
    return e;
}

static err download_manifest(store *s, const char *from, const char *folder) {
    char *url = store_join(from, CKPT_MANIFEST_FILE), *path = io_join(folder, CKPT_MANIFEST_FILE);
    err e = io_make_dirs(folder);
    if (!e) e = store_get_file(s, url, path);
    free(url);
    free(path);
    return e;
}

static err download_manifests(store *s, const char *url, const char *run_dir, ckpt_kind kind) {
    int64_t *steps = NULL;
    int n = 0;
    err e = list_remote_steps(s, url, kind, &steps, &n);
    for (int i = 0; i < n && !e; i++) {
        char *from = remote_step(url, kind, steps[i]), *to = ckpt_path(run_dir, kind, steps[i]);
        e = download_manifest(s, from, to);
        free(from);
        free(to);
    }
    free(steps);
    return e;
}

err ckpt_download_manifests(const char *url, const char *run_dir) {
    store *s = NULL;
    int64_t one = step_of_url(url);
    TRY(store_open(&s));
    err e = OK;
    if (one >= 0) {
        char *to = ckpt_path(run_dir, CKPT_FULL, one);
        e = download_manifest(s, url, to);
        free(to);
    }
    for (int kind = 0; kind < CKPT_KINDS && one < 0 && !e; kind++)
        e = download_manifests(s, url, run_dir, (ckpt_kind)kind);
    store_close(s);
    return e;
}
