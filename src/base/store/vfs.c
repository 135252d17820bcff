/* Files and objects by the same calls: see vfs.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/io.h"
#include "store/store.h"
#include "store/vfs.h"

enum { MOST_JSON = 1 << 30 };

struct vfs {
    store *s; /* opened when first used */
};

vfs *vfs_new(void) { return mem_alloc(sizeof(vfs)); }

void vfs_free(vfs *v) {
    if (!v) return;
    store_close(v->s);
    free(v);
}

/* @param own opened if `v` is NULL, and then to be closed after the call. */
static err store_of(vfs *v, store **own, store **out) {
    *own = NULL;
    if (!v) {
        TRY(store_open(own));
        *out = *own;
        return OK;
    }
    if (!v->s) TRY(store_open(&v->s));
    *out = v->s;
    return OK;
}

/* ---- one file or object ---------------------------------------------------------------------------- */
err vfs_stat(vfs *v, const char *path, vfs_info *out) {
    struct stat st;
    store *s = NULL, *own = NULL;
    store_object o = { 0 };
    *out = (vfs_info){ 0 };
    if (!store_is_url(path)) {
        out->found = stat(path, &st) == 0;
        if (!out->found && errno != ENOENT && errno != ENOTDIR)
            return err_hint(ERR("cannot inspect %s: %s", path, strerror(errno)), "check the path");
        out->bytes = out->found && S_ISREG(st.st_mode) ? (int64_t)st.st_size : 0;
        out->modified = out->found ? (int64_t)st.st_mtime : 0;
        return OK;
    }
    TRY(store_of(v, &own, &s));
    err e = store_head(s, path, &out->found, &o);
    out->bytes = o.bytes;
    out->modified = o.modified;
    store_close(own);
    return e;
}

err vfs_read(vfs *v, const char *path, size_t max, char **text, size_t *len) {
    store *s = NULL, *own = NULL;
    if (!store_is_url(path)) return io_read(path, max, text, len);
    TRY(store_of(v, &own, &s));
    err e = store_read(s, path, max, text, len);
    store_close(own);
    return e;
}

err vfs_json_read(vfs *v, const char *path, json_t **out) {
    char *text = NULL;
    size_t n = 0;
    if (!store_is_url(path)) return io_json_read(path, out);
    TRY(vfs_read(v, path, MOST_JSON, &text, &n));
    err e = io_json_parse(text, n, path, out);
    free(text);
    return e;
}

err vfs_write(vfs *v, const char *path, const void *bytes, size_t n) {
    store *s = NULL, *own = NULL;
    if (!store_is_url(path)) return io_write(path, bytes, n);
    TRY(store_of(v, &own, &s));
    err e = store_put(s, path, bytes, n);
    store_close(own);
    return e;
}

err vfs_json_write(vfs *v, const char *path, const json_t *doc) {
    str text = { 0 };
    err e = io_json_format(path, doc, &text);
    if (!e) e = vfs_write(v, path, text.text, text.len);
    str_free(&text);
    return e;
}

err vfs_remove(vfs *v, const char *path) {
    store *s = NULL, *own = NULL;
    if (!store_is_url(path)) {
        if (unlink(path) == 0 || errno == ENOENT) return OK;
        return err_hint(ERR("cannot remove %s: %s", path, strerror(errno)),
                        "check that its folder is writable");
    }
    TRY(store_of(v, &own, &s));
    err e = store_delete(s, path);
    store_close(own);
    return e;
}

err vfs_make_folder(const char *path) { return store_is_url(path) ? OK : io_make_dirs(path); }

/* ---- listing ----------------------------------------------------------------------------------------- */
static void add_listed_entry(vfs_listing *l, const char *name, size_t len, int64_t bytes) {
    LIST_ADD(l->at, l->n, l->capacity) = (vfs_entry){ strndup(name, len), bytes };
}

/* A file that another program removes meanwhile is left out. */
static err list_files_in(const char *folder, vfs_listing *out) {
    char **names = NULL;
    int n = 0;
    TRY(io_list(folder, &names, &n));
    for (int i = 0; i < n; i++) {
        struct stat st;
        const char *path = PATH_IN(folder, names[i]);
        if (lstat(path, &st) == 0)
            add_listed_entry(out, names[i], strlen(names[i]),
                             S_ISDIR(st.st_mode) || stat(path, &st) != 0 ? -1
                                                                         : (int64_t)st.st_size);
    }
    io_list_free(names, n);
    return OK;
}

SORT_ORDER(by_entry_name, vfs_entry, RISING_TEXT(name));

/* Objects deeper down stand for a folder, once: those that share its name follow one another. */
static err list_objects_in(store *s, const char *folder, vfs_listing *out) {
    store_list all;
    TRY(store_list_folder(s, folder, &all));
    for (int i = 0; i < all.n; i++) {
        const char *name = all.at[i].name, *slash = strchr(name, '/');
        size_t len = slash ? (size_t)(slash - name) : strlen(name);
        const vfs_entry *last = out->n ? &out->at[out->n - 1] : NULL;
        bool again = slash && last && last->bytes < 0 && strlen(last->name) == len &&
                     memcmp(last->name, name, len) == 0;
        if (len && !again) add_listed_entry(out, name, len, slash ? -1 : all.at[i].bytes);
    }
    store_list_free(&all);
    sort_array(out->at, (size_t)out->n, sizeof *out->at, by_entry_name); /* "a.b" is before "a/" */
    return OK;
}

err vfs_list(vfs *v, const char *folder, vfs_listing *out) {
    store *s = NULL, *own = NULL;
    *out = (vfs_listing){ 0 };
    if (!store_is_url(folder)) return list_files_in(folder, out);
    TRY(store_of(v, &own, &s));
    err e = list_objects_in(s, folder, out);
    store_close(own);
    return e;
}

const vfs_entry *vfs_find(const vfs_listing *l, const char *name) {
    int low = 0, high = l->n;
    while (low < high) {
        int middle = low + (high - low) / 2, order = strcmp(l->at[middle].name, name);
        if (order == 0) return &l->at[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

void vfs_listing_free(vfs_listing *l) {
    for (int i = 0; i < l->n; i++) free(l->at[i].name);
    free(l->at);
    *l = (vfs_listing){ 0 };
}

/* ---- writing ------------------------------------------------------------------------------------------- */
struct vfs_writer {
    io_writer *file; /* NULL: an object */
    char *url;
    FILE *local;
    store *s;
};

/* Not /tmp by default: it is often in memory, which a memory limit does not count. */
static const char *upload_folder(void) {
    const char *folder = getenv("TMPDIR");
    return folder && folder[0] ? folder : "/var/tmp";
}

static err local_error(const char *url) {
    int code = errno;
    return err_hint(ERR("cannot write %s: the file in %s from which it is uploaded: %s", url,
                        upload_folder(), strerror(code)),
                    "name a folder with more space in TMPDIR");
}

static err open_object(vfs_writer *w) {
    char *path = PATH_IN(upload_folder(), "ingot-upload-XXXXXX");
    int fd = mkstemp(path);
    if (fd >= 0) unlink(path);
    if (fd >= 0) w->local = fdopen(fd, "w+b");
    if (fd >= 0 && !w->local) close(fd);
    if (!w->local) return local_error(w->url);
    return store_open(&w->s); /* keys that are missing are noticed before the work is done */
}

err vfs_writer_open(const char *path, vfs_writer **out) {
    vfs_writer *w = mem_alloc(sizeof *w);
    err e = OK;
    if (store_is_url(path)) {
        w->url = strdup(path);
        e = open_object(w);
    } else {
        e = io_writer_open(path, &w->file);
    }
    if (e) {
        vfs_writer_abort(w);
        return e;
    }
    *out = w;
    return OK;
}

err vfs_writer_write(vfs_writer *w, const void *bytes, size_t n) {
    if (w->file) return io_writer_write(w->file, bytes, n);
    return fwrite(bytes, 1, n, w->local) == n ? OK : local_error(w->url);
}

err vfs_writer_commit(vfs_writer *w) {
    err e = OK;
    if (w->file) {
        io_writer *file = w->file;
        w->file = NULL; /* commit frees it */
        e = io_writer_commit(file);
    } else {
        if (fflush(w->local) != 0) e = local_error(w->url);
        if (!e) e = store_put_open_file(w->s, w->url, fileno(w->local));
    }
    vfs_writer_abort(w);
    return e;
}

void vfs_writer_abort(vfs_writer *w) {
    if (!w) return;
    io_writer_abort(w->file);
    if (w->local) fclose(w->local);
    store_close(w->s);
    free(w->url);
    free(w);
}
