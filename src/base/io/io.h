/* io: files, as safely as they can be written. Reading whole or mapped, writing atomically,
 * folders, JSON documents. Depends on util and jansson.
 *
 * Given `const void *bytes` and `size_t n`:
 *
 *     io_writer *w = NULL;
 *     TRY(io_writer_open("runs/a/model.bin", &w));
 *     err e = io_writer_write(w, bytes, n);
 *     if (e) { io_writer_abort(w); return e; }       // the previous model.bin is as it was
 *     TRY(io_writer_commit(w));                      // now, and only now, it is the new one
 *
 * Every error names the path, what the system said and a remedy.
 */
#ifndef INGOT_IO_H
#define INGOT_IO_H

#include <jansson.h>

#include "util/util.h"

/* ---- reading ----------------------------------------------------------------------------- */
/* Reads a whole file. @param max bytes; a larger file is an error. @param text owned (free),
 * with a NUL after its last byte. @param len may be NULL. */
err io_read(const char *path, size_t max, char **text, size_t *len) MUST_USE;

/* A file mapped read-only. The file must not be shortened while it is mapped. */
typedef struct io_mapping {
    const uint8_t *data; /* NULL for an empty file */
    size_t size;
} io_mapping;
err io_map(const char *path, io_mapping *out) MUST_USE;
void io_unmap(io_mapping *m); /* takes a zeroed or already unmapped one */
/* @return the path of the mapped file that an address belongs to, NULL when none is known. For a handler
 * of SIGBUS, which a file raises that was shortened: safe to call there. */
const char *io_mapped_path(const void *address);

/* ---- writing -----------------------------------------------------------------------------
 *
 *     open -> temporary file beside the target -> write ... -> commit: fsync, rename, fsync folder
 *                                                        \---> abort:  remove the temporary
 *
 * Whatever fails or dies on the way, the target is the old file or the whole new one. */
typedef struct io_writer io_writer;
err io_writer_open(const char *path, io_writer **out) MUST_USE;
/* After an error the writer is good only for abort. */
err io_writer_write(io_writer *w, const void *bytes, size_t n) MUST_USE;
/* Frees the writer, on an error too, when the target is left as it was. */
err io_writer_commit(io_writer *w) MUST_USE;
void io_writer_abort(io_writer *w); /* takes NULL */
/* Opens, writes and commits in one call. */
err io_write(const char *path, const void *bytes, size_t n) MUST_USE;
/* Replaces a file at once without waiting for the disk: for a file that shows how things are now. Readers see the old one
 * or the new one; after a power failure it may be any earlier one, or empty. */
err io_publish(const char *path, const void *bytes, size_t n) MUST_USE;
/* Copies a file; the copy appears complete or not at all. */
err io_copy(const char *from, const char *to) MUST_USE;

/* ---- append-only logs ---------------------------------------------------------------------- */
/* Opens a file for appending, which is created if missing. */
err io_append_open(const char *path, int *fd) MUST_USE;
/* Appends all n bytes with one write where the system lets it. `path` is for messages. */
err io_append(int fd, const char *path, const void *bytes, size_t n) MUST_USE;

/* ---- folders ----------------------------------------------------------------------------- */
/* @return an error for s3://bucket/x and the like, which would become a folder called "s3:". All that makes files or
 * folders by a path refuses them. */
err io_refuse_url(const char *path) MUST_USE;
char *io_join(const char *folder, const char *name); /* "folder/name", owned (free) */
/* PATH_IN yields "folder/name" until the end of the block. A path that is cut to the buffer is still too long for the system. */
enum { IO_PATH_BYTES = 4096 + 64 };
#define PATH_IN(folder, name) io_join_into((char[IO_PATH_BYTES]){ 0 }, folder, name)
char *io_join_into(char to[IO_PATH_BYTES], const char *folder, const char *name);
err io_make_dirs(const char *path) MUST_USE; /* and its parents; one that exists is fine */
/* @return ~/.cache/ingot or its place in $XDG_CACHE_HOME, created if missing, owned; NULL: there is none. */
char *io_cache_folder(void);
bool io_exists(const char *path);
bool io_has(const char *folder, const char *name); /* whether the folder has this entry */
bool io_is_dir(const char *path);
err io_size(const char *path, int64_t *bytes) MUST_USE;
/* Names in a folder, without . and .., in byte order. @param names owned: io_list_free. */
err io_list(const char *path, char ***names, int *n) MUST_USE;
void io_list_free(char **names, int n); /* takes NULL */
/* Removes `path` and all below it, which must be inside `root`. Links are removed, not followed.
 * A path that does not exist is fine. */
err io_remove_tree(const char *root, const char *path) MUST_USE;
/* Renames the folder `from` to `to`, both inside `root`. A folder `to` that is there is exchanged for
 * the new one in one step and then removed, so that `to` is at no moment missing. Where the file
 * system cannot exchange names the old one is named `aside` meanwhile: a crash can leave it there,
 * with nothing under `to`. */
err io_replace_tree(const char *root, const char *from, const char *to, const char *aside) MUST_USE;
/* Makes renames inside a folder survive a power failure. */
err io_sync_folder(const char *path) MUST_USE;
/* Of the folder that has this entry. */
err io_sync_parent(const char *path) MUST_USE;
/* Renames a file or folder, and syncs the folders that had and have it. */
err io_rename(const char *from, const char *to) MUST_USE;

/* ---- locks -------------------------------------------------------------------------------
 * A file that at most one process has locked, on this machine and over NFS. The system drops the
 * lock when its holder ends, however that happens; the file itself may stay. */
typedef struct io_lock io_lock;
/* An error that names the holder when another process has it. @param what stands for what is locked
 * in that message. @param out owned: io_lock_free. */
err io_lock_take(const char *path, const char *what, io_lock **out) MUST_USE;
/* Writes who holds the lock into the file, for others' messages. */
err io_lock_sign(io_lock *l) MUST_USE;
/* @return what it wrote: "PID on HOST since DATE". Reading the file would drop the lock. */
const char *io_lock_signature(const io_lock *l);
/* Drops the lock, and removes the file when it was neither there before nor signed. Takes NULL. */
void io_lock_free(io_lock *l);

/* ---- JSON -------------------------------------------------------------------------------- */
/* Parses a document. Errors carry name:line:column. @param out owned: json_decref. */
err io_json_parse(const char *text, size_t len, const char *name, json_t **out) MUST_USE;
err io_json_read(const char *path, json_t **out) MUST_USE;
/* A JSON string of any n bytes: what is not UTF-8 becomes U+FFFD. @return owned. */
json_t *io_json_string(const char *bytes, size_t n);
json_t *io_json_number(double v); /* null unless finite: JSON has neither NaN nor infinity */
err io_json_write(const char *path, const json_t *doc) MUST_USE; /* atomically, indented */
/* Appends the text that io_json_write writes. @param path for messages. */
err io_json_format(const char *path, const json_t *doc, str *out) MUST_USE;
/* Appends a document or a single value as text; prints a document as a line. @param doc ownership is taken
 * @param flags of jansson @return false: errno has the reason, or a text is not UTF-8 */
void io_json_add(str *out, json_t *doc, size_t flags);
void io_json_quote(str *out, const char *text); /* as io_json_string */
bool io_json_print(FILE *to, json_t *doc, size_t flags);
/* A member of an object, with its type checked; `name` stands for the document in messages. What
 * they return is borrowed from `object`. */
err io_json_text(const json_t *object, const char *name, const char *key,
                 const char **out) MUST_USE;
err io_json_int(const json_t *object, const char *name, const char *key, int64_t *out) MUST_USE;
err io_json_real(const json_t *object, const char *name, const char *key, double *out) MUST_USE;
err io_json_bool(const json_t *object, const char *name, const char *key, bool *out) MUST_USE;
err io_json_array(const json_t *object, const char *name, const char *key, json_t **out) MUST_USE;
err io_json_object(const json_t *object, const char *name, const char *key, json_t **out) MUST_USE;

#endif
