/* The checkpoints of a run in an object store: what is there, copying one there and back, and which stay. The
 * layout is in checkpoint.h. Nothing in a store can be renamed, so what makes a folder a checkpoint is its
 * manifest alone:
 *
 *     upload      files -> config, tokenizer -> manifest -> remove older copies of the step
 *     remove      manifest -> files
 *     supersede   manifest copied to another name -> manifest
 *
 * A folder with a manifest never changes. A step that is uploaded again with other content gets a folder of its
 * own: step-N, then step-N.1, step-N.2, ... Of several copies of a step the last one counts, so putting its manifest
 * replaces the one before it in one request. Whoever is killed on the way leaves files without a manifest, which
 * the next upload of that step overwrites, or two copies, and it removes the older.
 *
 * A run that goes back to an earlier step leaves RUN/checkpoints/.gone-back-to with that step before it renames
 * anything, and removes it when that step is in the store and later ones are superseded there, in this order: the
 * store is never without a checkpoint. No other upload begins, and no process resumes from the store, while the mark
 * is there: the store never offers a branch that its run has left to whoever has the run's folder. */
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

/* The folder of a checkpoint: "step-00000012", or "step-00000012.1" and so on where that step was uploaded before. */
typedef struct remote_folder {
    int64_t step, copy;
} remote_folder;

/* @return owned (free). */
static char *remote_folder_url(const char *root, remote_folder f) {
    char copy[32] = "";
    if (f.copy > 0) snprintf(copy, sizeof copy, ".%lld", (long long)f.copy);
    return step_path(root, "", f.step, copy);
}

/* @param name changed. @return whether it names a checkpoint. */
static bool parse_remote_folder(char *name, remote_folder *out) {
    char *dot = strchr(name, '.');
    *out = (remote_folder){ 0 };
    if (dot && (!number_parse_int(dot + 1, &out->copy) || out->copy < 1)) return false;
    if (dot) *dot = '\0';
    out->step = step_of_name(name);
    return out->step >= 0;
}

SORT_ORDER(compare_remote_folders, remote_folder, RISING(step) RISING(copy));

/* ---- listing ------------------------------------------------------------------------------------------------- */
typedef struct remote_folders {
    remote_folder *at; /* owned (free); by step, and by copy */
    int n;
} remote_folders;

/* Lists the folders that have a manifest. @param root "URL/checkpoints". */
static err list_remote_folders(store *s, const char *root, remote_folders *out) {
    store_list l;
    *out = (remote_folders){ 0 };
    TRY(store_list_folder(s, root, &l));
    out->at = mem_alloc((size_t)(l.n + 1) * sizeof *out->at);
    for (int i = 0; i < l.n; i++) {
        char *name = strdup(l.at[i].name), *slash = strchr(name, '/');
        if (slash) *slash = '\0';
        if (slash && !strcmp(slash + 1, CKPT_MANIFEST_FILE) &&
            parse_remote_folder(name, &out->at[out->n]))
            out->n++;
        free(name);
    }
    sort_array(out->at, (size_t)out->n, sizeof *out->at, compare_remote_folders);
    store_list_free(&l);
    return OK;
}

/* Whether a later folder has another copy of the same step. */
static bool is_replaced(const remote_folders *l, int i) {
    return i + 1 < l->n && l->at[i + 1].step == l->at[i].step;
}

/* Keeps the last copy of each step in the list. */
static void drop_replaced(remote_folders *l) {
    int n = 0;
    for (int i = 0; i < l->n; i++)
        if (!is_replaced(l, i)) l->at[n++] = l->at[i];
    l->n = n;
}

err ckpt_remote_list(const char *url, int64_t **steps, int *n) {
    store *s = NULL;
    remote_folders l = { 0 };
    char *root = remote_root(url, CKPT_FULL);
    *steps = NULL;
    *n = 0;
    err e = store_open(&s);
    if (!e) e = list_remote_folders(s, root, &l);
    drop_replaced(&l);
    if (!e) *steps = mem_alloc((size_t)(l.n + 1) * sizeof **steps);
    for (int i = 0; i < l.n; i++) (*steps)[(*n)++] = l.at[i].step;
    free(l.at);
    free(root);
    store_close(s);
    return e;
}

/* ---- uploading ------------------------------------------------------------------------------------------------ */
/* Whether a folder of the store has exactly this manifest: then it has all files of it. */
static err has_manifest(store *s, const char *folder, const char *manifest, bool *there) {
    char *url = store_join(folder, CKPT_MANIFEST_FILE), *mine = NULL, *theirs = NULL;
    size_t n = 0, m = 0;
    err e = io_read(manifest, MOST_MANIFEST, &mine, &n);
    if (!e) e = store_read(s, url, MOST_MANIFEST, &theirs, &m);
    *there = !e && n == m && !memcmp(mine, theirs, n);
    free(mine);
    free(theirs);
    free(url);
    return e;
}

/* Chooses the folder to upload a step to, never one that has a manifest. @param there whether its last copy is this
 * one already. @param out owned (free). */
static err choose_remote_folder(store *s, const char *root, int64_t step, const char *manifest,
                                bool *there, char **out) {
    remote_folders l;
    remote_folder f = { .step = step };
    *there = false;
    *out = NULL;
    TRY(list_remote_folders(s, root, &l));
    err e = OK;
    for (int i = 0; i < l.n && !e; i++) {
        if (l.at[i].step != step) continue;
        f.copy = l.at[i].copy + 1;
        if (is_replaced(&l, i)) continue;
        char *folder = remote_folder_url(root, l.at[i]);
        e = has_manifest(s, folder, manifest, there);
        free(folder);
    }
    free(l.at);
    if (!e) *out = remote_folder_url(root, f);
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
    return atomic_load(cancelled) ? ERR("the upload was cancelled") : OK;
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

/* Files that resuming on another machine needs besides the checkpoint. */
static err upload_run_files(store *s, const char *run_dir, const char *url, int64_t *bytes) {
    static const char *const names[] = { "config.yaml", "tokenizer.json" };
    for (int i = 0, n = (int)COUNT_OF(names); i < n || hf_kept_file_at(i - n); i++) {
        const char *name = i < n ? names[i] : hf_kept_file_at(i - n)->ours;
        if (io_has(run_dir, name)) TRY(upload_file(s, run_dir, url, name, bytes));
    }
    return OK;
}

err remote_upload(const remote_job *j, ckpt_kind kind, int64_t step, int64_t *bytes) {
    char *folder = ckpt_path(j->run_dir, kind, step), *root = remote_root(j->url, kind), *to = NULL;
    const char *manifest = PATH_IN(folder, CKPT_MANIFEST_FILE);
    bool there;
    err e = OK;
    *bytes = 0;
    TRY_CLEAN(choose_remote_folder(j->s, root, step, manifest, &there, &to));
    if (there) goto cleanup;
    TRY_CLEAN(upload_files(j, folder, to, bytes));
    TRY_CLEAN(upload_run_files(j->s, j->run_dir, j->url, bytes));
    fault_point(FAULT_UPLOAD_MANIFEST, 0);
    TRY_CLEAN(check_wanted(j->cancelled));
    TRY_CLEAN(upload_file(j->s, folder, to, CKPT_MANIFEST_FILE, bytes));
    fault_point(FAULT_UPLOAD_DONE, 0);
cleanup:
    free(folder);
    free(root);
    free(to);
    return e;
}

/* ---- which stay ------------------------------------------------------------------------------------------------ */
static err read_remote_manifest(store *s, const char *folder, json_t **doc) {
    char *path = store_join(folder, CKPT_MANIFEST_FILE), *text = NULL;
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
    return e;
}

static err remove_remote_folder(store *s, const char *folder) {
    char *manifest = store_join(folder, CKPT_MANIFEST_FILE);
    store_list l = { 0 };
    err e = store_delete(s, manifest);
    if (!e) e = store_list_folder(s, folder, &l);
    for (int i = 0; i < l.n && !e; i++) e = store_delete(s, l.at[i].url);
    store_list_free(&l);
    free(manifest);
    return e;
}

static err supersede_remote_folder(store *s, const char *folder) {
    char *from = store_join(folder, CKPT_MANIFEST_FILE), *text = NULL;
    char *to = store_join(folder, CKPT_SUPERSEDED_MANIFEST);
    size_t n;
    err e = store_read(s, from, MOST_MANIFEST, &text, &n);
    if (!e) e = store_put(s, to, text, n);
    if (!e) e = store_delete(s, from);
    free(text);
    free(from);
    free(to);
    return e;
}

/* A manifest that cannot be read now does not justify a removal. @param l one copy of each step. */
static err remove_old_steps(store *s, const char *root, const ckpt_keep *keep,
                            const remote_folders *l) {
    kept_step *k = mem_alloc((size_t)(l->n + 1) * sizeof *k);
    err e = OK;
    for (int i = 0; i < l->n && !e; i++) {
        char *folder = remote_folder_url(root, l->at[i]);
        json_t *doc;
        e = read_remote_manifest(s, folder, &doc);
        if (!e) k[i] = kept_step_of(l->at[i].step, doc);
        json_decref(doc);
        free(folder);
    }
    if (!e) choose_kept(k, l->n, keep);
    for (int i = 0; i < l->n && !e; i++) {
        if (k[i].kept) continue;
        char *folder = remote_folder_url(root, l->at[i]);
        e = remove_remote_folder(s, folder);
        free(folder);
    }
    free(k);
    return e;
}

err remote_remove_old(store *s, const char *url, ckpt_kind kind, const ckpt_keep *keep,
                      int64_t newest) {
    char *root = remote_root(url, kind);
    remote_folders l = { 0 };
    err e = list_remote_folders(s, root, &l);
    for (int i = l.n - 1; i >= 0 && !e; i--) {
        char *folder = remote_folder_url(root, l.at[i]);
        if (l.at[i].step > newest)
            e = supersede_remote_folder(s, folder);
        else if (is_replaced(&l, i))
            e = remove_remote_folder(s, folder);
        free(folder);
    }
    while (l.n > 0 && l.at[l.n - 1].step > newest) l.n--;
    drop_replaced(&l);
    if (!e && keep->latest > 0 && l.n > keep->latest) e = remove_old_steps(s, root, keep, &l);
    free(l.at);
    free(root);
    return e;
}

/* ---- going back ------------------------------------------------------------------------------------------------- */
static char *gone_back_path(const char *run_dir) {
    char *root = ckpt_root(run_dir, CKPT_FULL), *path = io_join(root, ".gone-back-to");
    free(root);
    return path;
}

err remote_mark_gone_back(const char *run_dir, int64_t step) {
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

err remote_go_back(const remote_job *j, int64_t *step) {
    const ckpt_keep all = { 0 };
    int64_t bytes;
    char *path = gone_back_path(j->run_dir);
    err e = read_gone_back(path, step);
    free(path);
    if (e || *step < 0) return e;
    char *folder = ckpt_path(j->run_dir, CKPT_FULL, *step);
    if (io_has(folder, CKPT_MANIFEST_FILE)) e = remote_upload(j, CKPT_FULL, *step, &bytes);
    for (int kind = 0; kind < CKPT_KINDS && !e; kind++)
        e = remote_remove_old(j->s, j->url, (ckpt_kind)kind, &all, *step);
    free(folder);
    return e;
}

err remote_forget_gone_back(const char *run_dir) {
    char *path = gone_back_path(run_dir);
    err e = io_remove_tree(run_dir, path);
    free(path);
    return e;
}

/* Lets the store know what an earlier process of this folder could not. */
static err finish_going_back(store *s, const char *url, const char *run_dir) {
    const _Atomic bool never = false;
    const remote_job j = { s, run_dir, url, &never };
    int64_t step;
    TRY(remote_go_back(&j, &step));
    return step >= 0 ? remote_forget_gone_back(run_dir) : OK;
}

/* ---- one upload, now --------------------------------------------------------------------------------------------- */
err ckpt_upload_newest(const char *run_dir, const char *url, ckpt_kind kind, ckpt_upload *out) {
    const _Atomic bool never = false;
    store *s = NULL;
    int64_t *steps = NULL;
    int n = 0;
    *out = (ckpt_upload){ .kind = kind, .step = -1 };
    TRY(ckpt_list(run_dir, kind, &steps, &n));
    if (n) out->step = steps[n - 1];
    free(steps);
    if (!n) return OK;
    TRY(store_open(&s));
    const remote_job j = { s, run_dir, url, &never };
    double from = time_now();
    err e = finish_going_back(s, url, run_dir);
    if (!e) e = remote_upload(&j, kind, out->step, &out->bytes);
    out->seconds = time_now() - from;
    store_close(s);
    return e;
}

/* ---- downloading ----------------------------------------------------------------------------------------------- */
/* Whether a name from a store is inside the folder. */
static bool is_file_name(const char *name) { return *name && name[0] != '.' && !strchr(name, '/'); }

static err download_files(store *s, const char *url, const char *folder) {
    store_list l;
    TRY(store_list_folder(s, url, &l));
    err e = l.n ? OK
                : err_hint(ERR("%s holds no checkpoint", url),
                           "`ingot ckpt ls` lists those of a run in the store");
    for (int i = 0; i < l.n && !e; i++) {
        const char *name = l.at[i].name;
        if (!is_file_name(name)) continue;
        e = store_get_file(s, l.at[i].url, PATH_IN(folder, name));
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

static err download_run_file(store *s, const char *url, const char *run_dir, const char *name) {
    char *from = store_join(url, name), *to = io_join(run_dir, name);
    store_object o;
    bool found = false;
    err e = io_exists(to) ? OK : store_head(s, from, &found, &o);
    if (!e && found) e = store_get_file(s, from, to);
    free(from);
    free(to);
    return e;
}

/* Tries checkpoints from the newest on, with all copies of each step. @return the newest one's error when all are damaged. */
static err download_newest(store *s, const char *root, const char *run_dir, int64_t after,
                           const remote_folders *l, int64_t *step) {
    err first = OK;
    for (int i = l->n - 1; i >= 0 && l->at[i].step > after && *step < 0; i--) {
        char *from = remote_folder_url(root, l->at[i]);
        log_info("downloading %s", from);
        err e = download_step(s, from, run_dir, l->at[i].step);
        if (!e) *step = l->at[i].step;
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

/* Downloads the newest complete checkpoint of a run after step `after`, and the run's tokenizer. */
static err download_run(store *s, const char *url, const char *run_dir, int64_t after,
                        int64_t *step) {
    char *root = remote_root(url, CKPT_FULL);
    remote_folders l = { 0 };
    err e = finish_going_back(s, url, run_dir);
    if (!e) e = list_remote_folders(s, root, &l);
    if (!e) e = download_newest(s, root, run_dir, after, &l, step);
    if (!e && *step >= 0) e = download_run_file(s, url, run_dir, "tokenizer.json");
    for (int i = 0; !e && *step >= 0 && hf_kept_file_at(i); i++)
        e = download_run_file(s, url, run_dir, hf_kept_file_at(i)->ours);
    free(l.at);
    free(root);
    return e;
}

/* The checkpoint that a URL names, "s3://.../checkpoints/step-00000012": its last copy, unless the URL has a number
 * of a copy. @param f step -1: it names a run. @param folder owned (free); NULL where it names a run. */
static err find_remote_folder(store *s, const char *url, remote_folder *f, char **folder) {
    char *root = strdup(url);
    size_t n = strlen(root);
    while (n && root[n - 1] == '/') root[--n] = '\0';
    char *slash = strrchr(root, '/');
    *slash = '\0'; /* after "s3:/" at least */
    *folder = NULL;
    err e = OK;
    if (!parse_remote_folder(slash + 1, f)) {
        f->step = -1;
    } else {
        remote_folders l = { 0 };
        if (!f->copy) e = list_remote_folders(s, root, &l);
        for (int i = 0; i < l.n; i++)
            if (l.at[i].step == f->step) f->copy = l.at[i].copy;
        free(l.at);
        if (!e) *folder = remote_folder_url(root, *f);
    }
    free(root);
    return e;
}

err ckpt_download(const char *url, const char *run_dir, int64_t after, int64_t *step) {
    store *s = NULL;
    remote_folder f;
    char *folder = NULL;
    *step = -1;
    TRY(store_open(&s));
    err e = find_remote_folder(s, url, &f, &folder);
    if (!e)
        e = folder ? download_step(s, folder, run_dir, f.step)
                   : download_run(s, url, run_dir, after, step);
    if (!e && folder) *step = f.step;
    free(folder);
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
    char *root = remote_root(url, kind);
    remote_folders l = { 0 };
    err e = list_remote_folders(s, root, &l);
    drop_replaced(&l);
    for (int i = 0; i < l.n && !e; i++) {
        char *from = remote_folder_url(root, l.at[i]);
        char *to = ckpt_path(run_dir, kind, l.at[i].step);
        e = download_manifest(s, from, to);
        free(from);
        free(to);
    }
    free(l.at);
    free(root);
    return e;
}

err ckpt_download_manifests(const char *url, const char *run_dir) {
    store *s = NULL;
    remote_folder f;
    char *folder = NULL;
    TRY(store_open(&s));
    err e = find_remote_folder(s, url, &f, &folder);
    if (!e && folder) {
        char *to = ckpt_path(run_dir, CKPT_FULL, f.step);
        e = download_manifest(s, folder, to);
        free(to);
    }
    for (int kind = 0; kind < CKPT_KINDS && !folder && !e; kind++)
        e = download_manifests(s, url, run_dir, (ckpt_kind)kind);
    free(folder);
    store_close(s);
    return e;
}
