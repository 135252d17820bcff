/* The lock of a folder that a job writes to: see text.h. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "comm/comm.h"
#include "io/io.h"
#include "store/store.h"
#include "store/vfs.h"
#include "util/wait.h"
#include "text/text.h"

enum { SIGNATURE = 256 };

struct text_lock {
    char *folder, *path;
    io_lock *lock; /* of rank 0; NULL: another rank, or a folder below a URL */
    bool object;   /* on rank 0: the lock is an object, to be removed */
};

/* An object does not end with the process that wrote it, so that one that is there may be of a killed job. Two jobs with
 * the same inputs and options write the same bytes, and those of others are refused by the state of the folder. */
static err sign_object(text_lock *l, char signature[SIGNATURE]) {
    char host[128] = "", date[64] = "", *before = NULL;
    time_t now = time(NULL);
    vfs_info there;
    TRY(vfs_stat(NULL, l->path, &there));
    if (there.found) TRY(vfs_read(NULL, l->path, SIGNATURE, &before, NULL));
    if (before)
        log_info("%s is there: process %s was killed, or is writing to this folder", l->path,
                 before);
    free(before);
    gethostname(host, sizeof host - 1);
    strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S", localtime(&now));
    snprintf(signature, SIGNATURE, "%ld on %s since %s", (long)getpid(), host, date);
    TRY(vfs_write(NULL, l->path, signature, strlen(signature)));
    l->object = true;
    return OK;
}

static err take_lock(text_lock *l, char signature[SIGNATURE]) {
    if (store_is_url(l->folder)) return sign_object(l, signature);
    TRY(io_make_dirs(l->folder));
    TRY(io_lock_take(l->path, l->folder, &l->lock));
    TRY(io_lock_sign(l->lock));
    snprintf(signature, SIGNATURE, "%s", io_lock_signature(l->lock));
    return OK;
}

static bool sees_signature(const char *path, const char *signature) {
    char *text = NULL;
    size_t n = 0;
    err e = vfs_read(NULL, path, SIGNATURE, &text, &n);
    bool same = !e && n == strlen(signature) && memcmp(text, signature, n) == 0;
    err_free(e);
    free(text);
    return same;
}

/* A network file system shows new files with a delay. */
static err check_shared(const text_lock *l, const char *signature) {
    enum { PATIENCE_S = 20 };
    wait_state w;
    wait_begin(&w, PATIENCE_S, "%s to be the folder that rank 0 writes to", l->folder);
    do
        if (sees_signature(l->path, signature)) return OK;
    while (wait_nap(&w));
    return err_hint(
        ERR("%s is not the folder that rank 0 writes to", l->folder),
        store_is_url(l->folder)
            ? "all hosts must reach the same store: compare AWS_ENDPOINT_URL on them"
            : "the output must be on a file system that all hosts share, under the same path");
}

err text_lock_folder(comm *c, const char *folder, text_lock **out) {
    char signature[SIGNATURE] = "";
    text_lock *l = mem_alloc(sizeof *l);
    *l = (text_lock){ .folder = strdup(folder), .path = io_join(folder, ".lock") };
    bool first = comm_rank(c) == 0;
    err e = comm_agree(c, first ? take_lock(l, signature) : OK);
    if (!e) e = comm_merge(c, signature, sizeof signature);
    if (!e) e = comm_agree(c, first ? OK : check_shared(l, signature));
    if (e) {
        text_unlock_folder(l);
        return e;
    }
    *out = l;
    return OK;
}

void text_unlock_folder(text_lock *l) {
    if (!l) return;
    if (l->lock)
        err_free(io_remove_tree(l->folder, l->path)); /* one that a killed process left, too */
    if (l->object) err_free(vfs_remove(NULL, l->path));
    io_lock_free(l->lock);
    free(l->folder);
    free(l->path);
    free(l);
}
