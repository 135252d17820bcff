/* store: objects in S3 and what speaks its protocol (MinIO, Ceph, R2, ...). Depends on io, util and libcurl;
 * built without libcurl, store_open is an error with the remedy.
 *
 * Given `const char *bytes` and `size_t n`:
 *
 *     store *s = NULL;
 *     TRY(store_open(&s));                                  // endpoint and keys from the environment
 *     err e = store_put(s, "s3://bucket/run/a.json", bytes, n);
 *     if (!e) e = store_get_file(s, "s3://bucket/run/model.safetensors", "/tmp/model.safetensors");
 *     store_close(s);
 *
 * The environment is that of other tools: AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, AWS_REGION or
 * AWS_DEFAULT_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_MAX_ATTEMPTS, and
 * ~/.aws/credentials and ~/.aws/config (AWS_PROFILE, AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE).
 *
 * Requests that are dropped, time out, or are answered with 5xx, 429 or SlowDown are repeated after a random
 * part of 0.1, 0.2, 0.4, ... at most 20 seconds, for 15 minutes at most. Keys that have expired are read again from
 * where they came, before each attempt. What is sent is signed with its SHA-256, which the
 * store checks; of what comes back the length is checked, and the MD5 where the store gives it.
 *
 * A store is used by one thread at a time; each thread opens its own. */
#ifndef INGOT_STORE_H
#define INGOT_STORE_H

#include "util/util.h"

/* @return whether a path names objects: "s3://bucket" or "s3://bucket/key". */
bool store_is_url(const char *path);
/* URL_IN yields "url/name" until the end of the block, store_join an owned one (free). Stores refuse what does not fit: keys have 1024 bytes. */
enum { STORE_URL_BYTES = 2048 };
#define URL_IN(url, name) store_join_into((char[STORE_URL_BYTES]){ 0 }, url, name)
char *store_join_into(char to[STORE_URL_BYTES], const char *url, const char *name);
char *store_join(const char *url, const char *name);

typedef struct store store;
err store_open(store **out) MUST_USE;
void store_close(store *s); /* takes NULL */
/* While the flag is set, which another thread may do at any time, requests end within about a second and none is repeated.
 * Without a flag, a signal has that effect (util/wait.h). @param cancelled borrowed. */
void store_cancel_by(store *s, const _Atomic bool *cancelled);

/* ---- objects --------------------------------------------------------------------------------- */
typedef struct store_object {
    char *url;        /* owned, by the list */
    const char *name; /* of one that was listed: inside its URL, after the folder's slash */
    int64_t bytes;
    int64_t modified;   /* seconds since 1970; 0: not known */
    uint64_t etag_hash; /* changes with the content; 0: not known */
} store_object;
/* @param found false when the object does not exist, which is not an error. `out->url` stays NULL. */
err store_head(store *s, const char *url, bool *found, store_object *out) MUST_USE;

typedef struct store_list {
    store_object *at; /* in byte order of their keys */
    int n, capacity;
} store_list;
/* All objects whose URL begins with `url`, which is taken as a folder: "s3://b/run" lists what is below
 * "s3://b/run/". @param out owned: store_list_free. */
err store_list_folder(store *s, const char *url, store_list *out) MUST_USE;
void store_list_free(store_list *l);

/* Reads a whole object. @param max bytes; a larger one is an error. @param bytes owned (free), with a NUL
 * after the last. @param n may be NULL. */
err store_read(store *s, const char *url, size_t max, char **bytes, size_t *n) MUST_USE;
/* Reads exactly n bytes from `from` on. */
err store_get(store *s, const char *url, int64_t from, size_t n, void *to) MUST_USE;
/* Downloads an object, its parts side by side; the file appears complete or not at all. */
err store_get_file(store *s, const char *url, const char *path) MUST_USE;

err store_put(store *s, const char *url, const void *bytes, size_t n) MUST_USE;
/* Uploads a file, a large one as a multipart upload, which is aborted when it fails: the object appears
 * complete or not at all. */
err store_put_file(store *s, const char *url, const char *path) MUST_USE;
/* The same from its first byte on, of a file that may have no name. @param fd stays open. */
err store_put_open_file(store *s, const char *url, int fd) MUST_USE;
enum { STORE_UPLOAD_BYTES = 128 << 20 }; /* memory that an upload takes at most */
/* An object that is not there is fine. */
err store_delete(store *s, const char *url) MUST_USE;

#endif
