/* vfs: one set of calls for files and for objects of a store, for what writes a folder on a disk or below a URL alike.
 * A path is a file's, or "s3://bucket/key". Depends on io and store.
 *
 * Given `const char *path`, which may be "s3://bucket/clean/state.json", and `const json_t *doc`:
 *
 *     vfs *v = vfs_new();
 *     err e = vfs_json_write(v, path, doc);
 *     vfs_info there;
 *     if (!e) e = vfs_stat(v, path, &there);
 *     vfs_free(v);
 *     return e;
 *
 * A vfs keeps the connections of its store; like a store it is used by one thread at a time. NULL in its place opens a
 * store for that one call. */
#ifndef INGOT_STORE_VFS_H
#define INGOT_STORE_VFS_H

#include <jansson.h>

#include "util/util.h"

typedef struct vfs vfs;
vfs *vfs_new(void);
void vfs_free(vfs *v); /* takes NULL */

typedef struct vfs_info {
    bool found;       /* false: there is neither a file nor an object of that name */
    int64_t bytes;    /* 0 of a folder */
    int64_t modified; /* seconds since 1970 */
} vfs_info;
err vfs_stat(vfs *v, const char *path, vfs_info *out) MUST_USE;
/* As io_read, store_read. */
err vfs_read(vfs *v, const char *path, size_t max, char **text, size_t *len) MUST_USE;
err vfs_json_read(vfs *v, const char *path, json_t **out) MUST_USE;
/* The file or object is at all times the old one or the whole new one. */
err vfs_write(vfs *v, const char *path, const void *bytes, size_t n) MUST_USE;
err vfs_json_write(vfs *v, const char *path, const json_t *doc) MUST_USE; /* as io_json_write */
/* One that is not there is fine. */
err vfs_remove(vfs *v, const char *path) MUST_USE;
/* Makes a folder and its parents; a store has none. */
err vfs_make_folder(const char *path) MUST_USE;

/* ---- listing ----------------------------------------------------------------------------------- */
typedef struct vfs_entry {
    char *name;    /* owned, by the listing */
    int64_t bytes; /* -1: a folder */
} vfs_entry;
typedef struct vfs_listing {
    vfs_entry *at; /* by name, in byte order */
    int n, capacity;
} vfs_listing;
/* Lists what is directly in a folder; a folder of a store that has no objects is empty. @param out owned: vfs_listing_free. */
err vfs_list(vfs *v, const char *folder, vfs_listing *out) MUST_USE;
/* @return NULL: the entry does not exist. Borrowed. */
const vfs_entry *vfs_find(const vfs_listing *l, const char *name);
void vfs_listing_free(vfs_listing *l);

/* ---- writing -------------------------------------------------------------------------------------
 * As io_writer. An object is first written to a file without a name in $TMPDIR, or else /var/tmp, and uploaded when it
 * is complete: so it needs local disk space for one object, which is free again when the process ends, however it does. */
typedef struct vfs_writer vfs_writer;
err vfs_writer_open(const char *path, vfs_writer **out) MUST_USE;
/* After an error the writer is good only for abort. */
err vfs_writer_write(vfs_writer *w, const void *bytes, size_t n) MUST_USE;
/* Frees the writer, on an error too, when the target is left as it was. */
err vfs_writer_commit(vfs_writer *w) MUST_USE;
void vfs_writer_abort(vfs_writer *w); /* takes NULL */

#endif
