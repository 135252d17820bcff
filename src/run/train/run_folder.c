/* The run folder: one process at a time, and nothing lost by starting over.
 *
 * --fresh replaces a run. The earlier one stays until the new one has taken a step, so that a typing
 * error in a config, missing data or a full GPU cost nothing:
 *
 *     earlier run --begin--> RUN/.previous --first step done--> RUN/.removed --> gone
 *          ^                      |
 *          +--- error before, or found here by the next process (which was killed)
 *
 * Each arrow is a rename, so that a crash leaves one of these states; folder_open continues from any
 * of them.
 *
 * A folder that no run began in may hold files of its user under the names that a run writes: a config.yaml,
 * another tokenizer. Such a folder is refused before anything in it changes, with or without --fresh. */
#include "run_folder_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "io/io.h"
#include "observe/observe.h"
#include "observe/status.h"

#define REMOVED ".removed"
#define LOCK    ".lock"

/* Files and folders that a run writes into its folder. */
typedef struct run_entry {
    const char *name; /* NULL: past the end */
    bool of_run; /* one that no run wrote is refused; others are folders, or are only appended to */
} run_entry;
static const run_entry entries[] = {
    { "checkpoints", false },    { "weights", false },       { "tb", false },
    { "programs", false },       { "profile", false },       { "train.log", false },
    { "config.yaml", true },     { "metrics.jsonl", true },  { "events.jsonl", true },
    { OBSERVE_TIMETABLE, true }, { "tokenizer.json", true }, { STATUS_FILE, true },
};

/* Those, and the files of an imported model. */
static run_entry run_entry_at(int i) {
    const int n = (int)COUNT_OF(entries);
    const hf_kept_file *k = i < n ? NULL : hf_kept_file_at(i - n);
    return i < n ? entries[i] : (run_entry){ k ? k->ours : NULL, true };
}

/* Moves an entry of the folder `from` to the folder `to`, over what is there. */
static err move_entry(const run_folder *f, const char *from, const char *to, const char *name) {
    if (!io_has(from, name)) return OK;
    TRY(io_remove_tree(f->path, PATH_IN(to, name)));
    return io_rename(PATH_IN(from, name), PATH_IN(to, name));
}

static err keep_previous_run(run_folder *f) {
    const char *previous = PATH_IN(f->path, CKPT_PREVIOUS);
    TRY(io_make_dirs(previous));
    f->has_previous = true;
    for (int i = 0; run_entry_at(i).name; i++)
        TRY(move_entry(f, f->path, previous, run_entry_at(i).name));
    return OK;
}

/* Removes everything that the new run wrote, whether or not the earlier one had such a file. */
static err restore_previous(run_folder *f) {
    const char *previous = PATH_IN(f->path, CKPT_PREVIOUS);
    for (int i = 0; run_entry_at(i).name; i++)
        TRY(move_entry(f, previous, f->path, run_entry_at(i).name));
    TRY(io_remove_tree(f->path, previous));
    f->has_previous = false;
    return OK;
}

static err remove_removed(const run_folder *f) {
    return io_remove_tree(f->path, PATH_IN(f->path, REMOVED));
}

static err lock_folder(run_folder *f) {
    return io_lock_take(PATH_IN(f->path, LOCK), f->path, &f->lock);
}

/* ---- whose files these are ---------------------------------------------------------------------- */
static bool is_empty(const char *path) {
    int64_t bytes = 0;
    err e = io_size(path, &bytes);
    bool empty = !e && bytes == 0;
    err_free(e);
    return empty;
}

/* Lists the files that a run would change and may not be those of one. A folder prepared for the run is not refused:
 * with a folder for the checkpoints, or with a scheduler's log. */
static void list_changed(const char *path, str *out) {
    run_entry k;
    for (int i = 0; (k = run_entry_at(i)).name; i++) {
        if (!k.of_run || !io_has(path, k.name) || is_empty(PATH_IN(path, k.name))) continue;
        str_add(out, "%s%s", out->len ? ", " : "", k.name);
    }
}

/* A run signs the lock before it writes anything else. Copies of a run's folder may be without that file. */
static err find_run(const char *path, bool *found) {
    char *latest = NULL;
    *found = (io_has(path, LOCK) && !is_empty(PATH_IN(path, LOCK))) || io_has(path, STATUS_FILE) ||
             io_is_dir(PATH_IN(path, CKPT_PREVIOUS));
    if (*found) return OK;
    TRY(ckpt_latest(path, &latest));
    *found = latest != NULL;
    free(latest);
    return OK;
}

static err refuse_files_of_user(const char *path) {
    bool is_run = false;
    str names = { 0 };
    list_changed(path,
                 &names); /* before the lock is read: a run that begins meanwhile has signed it */
    err e = names.len ? find_run(path, &is_run) : OK;
    if (!e && names.len && !is_run)
        e = err_hint(ERR("%s is not the folder of a run, and a run would change files in it: %s",
                         path, names.text),
                     "choose another run.dir, or move these files elsewhere");
    str_free(&names);
    return e;
}

err folder_open(run_folder *f, const char *path) {
    f->path = strdup(path);
    if (!io_is_dir(path)) return OK; /* made, and locked, when the run begins */
    TRY(refuse_files_of_user(path));
    TRY(lock_folder(f));
    if (io_is_dir(PATH_IN(path, CKPT_PREVIOUS))) {
        log_warn("%s: the run that was to replace this one had not taken a step; this one is back",
                 path);
        TRY(restore_previous(f));
    }
    return remove_removed(f);
}

static bool stat_folder(const char *path, folder_id *id) {
    struct stat st;
    if (stat(path, &st) != 0) return false;
    *id = (folder_id){ (uint64_t)st.st_dev, (uint64_t)st.st_ino };
    return true;
}

/* A folder that was not there when the config was read may hold another's run by now. */
static err lock_new_folder(run_folder *f) {
    char *theirs = NULL;
    TRY(lock_folder(f));
    TRY(ckpt_latest(f->path, &theirs));
    err e = theirs ? err_hint(ERR("another process began a run in %s meanwhile", f->path),
                              "choose another run.dir")
                   : OK;
    free(theirs);
    return e;
}

err folder_make_locked(run_folder *f) {
    TRY(io_make_dirs(f->path));
    return f->lock ? OK : lock_new_folder(f);
}

err folder_begin(run_folder *f, bool fresh) {
    bool replaces = false;
    TRY(folder_make_locked(f));
    if (fresh) TRY(find_run(f->path, &replaces));
    TRY(io_lock_sign(f->lock));
    TRY(ckpt_recover(f->path));
    if (replaces) TRY(keep_previous_run(f));
    f->handle = open(f->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (f->handle >= 0 && stat_folder(f->path, &f->id)) return OK;
    f->handle = MAX(f->handle, 0);
    return ERR("%s is gone already: %s", f->path, strerror(errno));
}

err folder_drop_previous(run_folder *f) {
    if (!f->has_previous) return OK;
    err e = io_rename(PATH_IN(f->path, CKPT_PREVIOUS), PATH_IN(f->path, REMOVED));
    TRY(e);
    f->has_previous = false;
    return remove_removed(f);
}

/* ---- where it is now ----------------------------------------------------------------------------
 *
 *     the path leads to                                  our folder, by its handle    state
 *     our folder, with config.yaml                                                    THERE
 *     our folder, without: it is being removed                                        REMOVED
 *     a folder that has our signature in .lock           (of a device that was lost)  THERE, taken over
 *     another run                                                                     REPLACED
 *     nothing, or a folder that is not a run             has no name any more         REMOVED, REPLACED
 *     nothing, or a folder that is not a run             still has a name             AWAY
 *
 * The last is a disk that was unmounted, whose mount point is empty or is not there, or a folder that was
 * renamed: training continues without it, and saves when it is back. */
/* Whether .lock at the path names this process as the holder. Reading our own lock file would drop the lock:
 * only asked of another file. */
static bool has_our_signature(const run_folder *f) {
    const char *path = PATH_IN(f->path, LOCK), *ours = io_lock_signature(f->lock);
    char *text = NULL;
    err e = io_exists(path) ? io_read(path, 1 << 10, &text, NULL) : OK;
    bool same = !e && text && *ours && strcmp(text, ours) == 0;
    err_free(e);
    free(text);
    return same;
}

/* The folder is back, on another device: its disk has been attached again. */
static bool take_over_again(run_folder *f) {
    io_lock *ours = f->lock;
    int handle = open(f->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    f->lock = NULL;
    err e = lock_folder(f);
    if (!e) e = io_lock_sign(f->lock);
    bool taken = !e && handle >= 0 && stat_folder(f->path, &f->id);
    err_free(e);
    if (!taken) {
        io_lock_free(f->lock);
        f->lock = ours;
        if (handle >= 0) close(handle);
        return false;
    }
    io_lock_free(ours);
    close(f->handle);
    f->handle = handle;
    return true;
}

folder_state folder_look(run_folder *f) {
    folder_id now;
    struct stat own, used_config;
    bool found = stat_folder(f->path, &now);
    bool has_config = stat(PATH_IN(f->path, "config.yaml"), &used_config) == 0;
    bool emptied = !has_config && errno == ENOENT;
    if (found && now.device == f->id.device && now.inode == f->id.inode)
        return emptied ? FOLDER_REMOVED : FOLDER_THERE;
    if (has_config)
        return has_our_signature(f) && take_over_again(f) ? FOLDER_THERE : FOLDER_REPLACED;
    bool removed = fstat(f->handle, &own) == 0 && own.st_nlink == 0;
    if (!removed) return FOLDER_AWAY;
    return found ? FOLDER_REPLACED : FOLDER_REMOVED;
}

void folder_close(run_folder *f) {
    if (f->handle) close(f->handle);
    err e = f->has_previous ? restore_previous(f) : OK;
    if (e) log_warn("%s: the earlier run is in %s: %s", f->path, CKPT_PREVIOUS, err_message(e));
    err_free(e);
    io_lock_free(f->lock);
    free(f->path);
}
