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
#include "store/store.h"
#include "util/fault.h"

enum { MOST_MANIFEST = 1 << 30 };

#define REMOTE_ROOT(url, kind) URL_IN(url, ckpt_root_names[kind])

/* The folder of a checkpoint: "step-00000012", or "step-00000012.1" and so on where that step was uploaded before. */
typedef struct remote_folder {
    int64_t step, copy;
} remote_folder;

/* Yields its URL, which lasts until the end of the block. */
#define FOLDER_IN(root, folder) folder_join_into((char[IO_PATH_BYTES]){ 0 }, root, folder)
static char *folder_join_into(char to[IO_PATH_BYTES], const char *root, remote_folder f) {
    char copy[32] = "";
    if (f.copy > 0) snprintf(copy, sizeof copy, ".%lld", (long long)f.copy);
    return step_path_into(to, root, "", f.step, copy);
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
    *steps = NULL;
    *n = 0;
    err e = store_open(&s);
    if (!e) e = list_remote_folders(s, REMOTE_ROOT(url, CKPT_FULL), &l);
    drop_replaced(&l);
    if (!e) *steps = mem_alloc((size_t)(l.n + 1) * sizeof **steps);
    for (int i = 0; i < l.n; i++) (*steps)[(*n)++] = l.at[i].step;
    free(l.at);
    store_close(s);
    return e;
}

/* ---- uploading ------------------------------------------------------------------------------------------------ */
/* Whether a folder of the store has exactly this manifest: then it has all files of it. */
static err has_manifest(store *s, const char *folder, const char *manifest, bool *there) {
    char *mine = NULL, *theirs = NULL;
    size_t n = 0, m = 0;
    err e = io_read(manifest, MOST_MANIFEST, &mine, &n);
    if (!e) e = store_read(s, URL_IN(folder, CKPT_MANIFEST_FILE), MOST_MANIFEST, &theirs, &m);
    *there = !e && n == m && !memcmp(mine, theirs, n);
    free(mine);
    free(theirs);
    return e;
}

/* Chooses the folder to upload a step to, never one that has a manifest. @param there whether its last copy is this
 * one already. */
static err choose_remote_folder(store *s, const char *root, int64_t step, const char *manifest,
                                bool *there, char out[IO_PATH_BYTES]) {
    remote_folders l;
    remote_folder f = { .step = step };
    *there = false;
    TRY(list_remote_folders(s, root, &l));
    err e = OK;
    for (int i = 0; i < l.n && !e; i++) {
        if (l.at[i].step != step) continue;
        f.copy = l.at[i].copy + 1;
        if (is_replaced(&l, i)) continue;
        e = has_manifest(s, FOLDER_IN(root, l.at[i]), manifest, there);
    }
    free(l.at);
    if (!e) folder_join_into(out, root, f);
    return e;
}

static err upload_file(store *s, const char *folder, const char *url, const char *name,
                       int64_t *bytes) {
    const char *from = PATH_IN(folder, name);
    int64_t size = 0;
    TRY(io_size(from, &size));
    *bytes += size;
    return store_put_file(s, URL_IN(url, name), from);
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
    const char *folder = STEP_IN(ROOT_IN(j->run_dir, kind), "", step, "");
    const char *manifest = PATH_IN(folder, CKPT_MANIFEST_FILE);
    char to[IO_PATH_BYTES];
    bool there;
    *bytes = 0;
    TRY(choose_remote_folder(j->s, REMOTE_ROOT(j->url, kind), step, manifest, &there, to));
    if (there) return OK;
    TRY(upload_files(j, folder, to, bytes));
    TRY(upload_run_files(j->s, j->run_dir, j->url, bytes));
    fault_point(FAULT_UPLOAD_MANIFEST, 0);
    TRY(check_wanted(j->cancelled));
    TRY(upload_file(j->s, folder, to, CKPT_MANIFEST_FILE, bytes));
    fault_point(FAULT_UPLOAD_DONE, 0);
    return OK;
}

/* ---- which stay ------------------------------------------------------------------------------------------------ */
static err read_remote_manifest(store *s, const char *folder, json_t **doc) {
    const char *path = URL_IN(folder, CKPT_MANIFEST_FILE);
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
    return e;
}

static err remove_remote_folder(store *s, const char *folder) {
    store_list l = { 0 };
    err e = store_delete(s, URL_IN(folder, CKPT_MANIFEST_FILE));
    if (!e) e = store_list_folder(s, folder, &l);
    for (int i = 0; i < l.n && !e; i++) e = store_delete(s, l.at[i].url);
    store_list_free(&l);
    return e;
}

static err supersede_remote_folder(store *s, const char *folder) {
    const char *from = URL_IN(folder, CKPT_MANIFEST_FILE);
    char *text = NULL;
    size_t n;
    err e = store_read(s, from, MOST_MANIFEST, &text, &n);
    if (!e) e = store_put(s, URL_IN(folder, CKPT_SUPERSEDED_MANIFEST), text, n);
    if (!e) e = store_delete(s, from);
    free(text);
    return e;
}

/* A manifest that cannot be read now does not justify a removal. @param l one copy of each step. */
static err remove_old_steps(store *s, const char *root, const ckpt_keep *keep,
                            const remote_folders *l) {
    kept_step *k = mem_alloc((size_t)(l->n + 1) * sizeof *k);
    err e = OK;
    for (int i = 0; i < l->n && !e; i++) {
        json_t *doc;
        e = read_remote_manifest(s, FOLDER_IN(root, l->at[i]), &doc);
        if (!e) k[i] = kept_step_of(l->at[i].step, doc);
        json_decref(doc);
    }
    if (!e) choose_kept(k, l->n, keep);
    for (int i = 0; i < l->n && !e; i++)
        if (!k[i].kept) e = remove_remote_folder(s, FOLDER_IN(root, l->at[i]));
    free(k);
    return e;
}

err remote_remove_old(store *s, const char *url, ckpt_kind kind, const ckpt_keep *keep,
                      int64_t newest) {
    const char *root = REMOTE_ROOT(url, kind);
    remote_folders l = { 0 };
    err e = list_remote_folders(s, root, &l);
    for (int i = l.n - 1; i >= 0 && !e; i--) {
        const char *folder = FOLDER_IN(root, l.at[i]);
        if (l.at[i].step > newest)
            e = supersede_remote_folder(s, folder);
        else if (is_replaced(&l, i))
            e = remove_remote_folder(s, folder);
    }
    while (l.n > 0 && l.at[l.n - 1].step > newest) l.n--;
    drop_replaced(&l);
    if (!e && keep->latest > 0 && l.n > keep->latest) e = remove_old_steps(s, root, keep, &l);
    free(l.at);
    return e;
}

/* ---- going back ------------------------------------------------------------------------------------------------- */
#define GONE_BACK_IN(run_dir) PATH_IN(ROOT_IN(run_dir, CKPT_FULL), ".gone-back-to")

err remote_mark_gone_back(const char *run_dir, int64_t step) {
    char text[32];
    int n = snprintf(text, sizeof text, "%lld\n", (long long)step);
    return io_write(GONE_BACK_IN(run_dir), text, (size_t)n);
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
    TRY(read_gone_back(GONE_BACK_IN(j->run_dir), step));
    if (*step < 0) return OK;
    if (io_has(STEP_IN(ROOT_IN(j->run_dir, CKPT_FULL), "", *step, ""), CKPT_MANIFEST_FILE))
        TRY(remote_upload(j, CKPT_FULL, *step, &bytes));
    for (int kind = 0; kind < CKPT_KINDS; kind++)
        TRY(remote_remove_old(j->s, j->url, (ckpt_kind)kind, &all, *step));
    return OK;
}

err remote_forget_gone_back(const char *run_dir) {
    return io_remove_tree(run_dir, GONE_BACK_IN(run_dir));
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
static err download_files(store *s, const char *url, const char *folder) {
    store_list l;
    TRY(store_list_folder(s, url, &l));
    err e = l.n ? OK
                : err_hint(ERR("%s holds no checkpoint", url),
                           "`ingot ckpt ls` lists those of a run in the store");
    for (int i = 0; i < l.n && !e; i++) {
        const char *name = l.at[i].name;
        if (!*name || name[0] == '.' || strchr(name, '/')) continue; /* not inside the folder */
        e = store_get_file(s, l.at[i].url, PATH_IN(folder, name));
    }
    store_list_free(&l);
    return e;
}

/* Downloads a checkpoint beside the others, verifies it, and gives it its name. */
static err download_step(store *s, const char *from, const char *run_dir, int64_t step) {
    const char *root = ROOT_IN(run_dir, CKPT_FULL),
               *temp = STEP_IN(root, ".", step, STEP_TEMPORARY),
               *final = STEP_IN(root, "", step, ""), *old = STEP_IN(root, ".", step, STEP_REPLACED);
    err e = OK;
    TRY_CLEAN(io_make_dirs(root));
    TRY_CLEAN(io_remove_tree(root, temp));
    TRY_CLEAN(io_make_dirs(temp));
    TRY_CLEAN(download_files(s, from, temp));
    TRY_CLEAN(ckpt_verify(temp, 0, 1, NULL));
    TRY_CLEAN(io_replace_tree(root, temp, final, old));
cleanup:
    if (e) err_free(io_remove_tree(root, temp)); /* frees the space; e counts */
    return e;
}

static err download_run_file(store *s, const char *url, const char *run_dir, const char *name) {
    const char *from = URL_IN(url, name);
    store_object o;
    bool found = false;
    if (!io_has(run_dir, name)) TRY(store_head(s, from, &found, &o));
    return found ? store_get_file(s, from, PATH_IN(run_dir, name)) : OK;
}

/* Tries checkpoints from the newest on, with all copies of each step. @return the newest one's error when all are damaged. */
static err download_newest(store *s, const char *root, const char *run_dir, int64_t after,
                           const remote_folders *l, int64_t *step) {
    err first = OK;
    for (int i = l->n - 1; i >= 0 && l->at[i].step > after && *step < 0; i--) {
        const char *from = FOLDER_IN(root, l->at[i]);
        log_info("downloading %s", from);
        err e = download_step(s, from, run_dir, l->at[i].step);
        if (!e) *step = l->at[i].step;
        if (e && !first)
            first = e;
        else
            err_free(e);
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
    const char *root = REMOTE_ROOT(url, CKPT_FULL);
    remote_folders l = { 0 };
    err e = finish_going_back(s, url, run_dir);
    if (!e) e = list_remote_folders(s, root, &l);
    if (!e) e = download_newest(s, root, run_dir, after, &l, step);
    if (!e && *step >= 0) e = download_run_file(s, url, run_dir, "tokenizer.json");
    for (int i = 0; !e && *step >= 0 && hf_kept_file_at(i); i++)
        e = download_run_file(s, url, run_dir, hf_kept_file_at(i)->ours);
    free(l.at);
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
        if (!e) *folder = strdup(FOLDER_IN(root, *f));
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
    TRY(io_make_dirs(folder));
    return store_get_file(s, URL_IN(from, CKPT_MANIFEST_FILE), PATH_IN(folder, CKPT_MANIFEST_FILE));
}

static err download_manifests(store *s, const char *url, const char *run_dir, ckpt_kind kind) {
    const char *root = REMOTE_ROOT(url, kind), *to = ROOT_IN(run_dir, kind);
    remote_folders l = { 0 };
    err e = list_remote_folders(s, root, &l);
    drop_replaced(&l);
    for (int i = 0; i < l.n && !e; i++)
        e = download_manifest(s, FOLDER_IN(root, l.at[i]), STEP_IN(to, "", l.at[i].step, ""));
    free(l.at);
    return e;
}

err ckpt_download_manifests(const char *url, const char *run_dir) {
    store *s = NULL;
    remote_folder f;
    char *folder = NULL;
    TRY(store_open(&s));
    err e = find_remote_folder(s, url, &f, &folder);
    if (!e && folder)
        e = download_manifest(s, folder, STEP_IN(ROOT_IN(run_dir, CKPT_FULL), "", f.step, ""));
    for (int kind = 0; kind < CKPT_KINDS && !folder && !e; kind++)
        e = download_manifests(s, url, run_dir, (ckpt_kind)kind);
    free(folder);
    store_close(s);
    return e;
}
