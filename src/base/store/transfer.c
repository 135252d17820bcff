/* Files to objects and back, in parts that travel side by side.
 *
 * An upload of several parts is begun, its parts are put, and it is completed by a list of their ETags; only
 * then is there an object. One that fails is aborted, so that the store does not keep its parts. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/s3_internal.h"

enum { PART_BYTES = STORE_UPLOAD_BYTES / S3_CONNECTIONS, MOST_PARTS = 10000, MOST_REPLY = 1 << 20 };

typedef struct transfer {
    store *s;
    const char *url, *path;
    int fd;
    int64_t bytes, part_bytes, parts;
    const char *etag; /* of the object that is read */
    char *upload_id;
    char (*part_etags)[128]; /* [parts] */
    err *errors;             /* [S3_CONNECTIONS] the first of each worker */
} transfer;

static size_t part_size(const transfer *t, int64_t i) {
    return (size_t)MIN(t->part_bytes, t->bytes - i * t->part_bytes);
}

/* Runs a task for each part. @return the first error of any. */
static err run_parts(transfer *t, void (*task)(void *ctx, int64_t i, int worker)) {
    err errors[S3_CONNECTIONS] = { OK }, first = OK;
    t->errors = errors;
    if (!t->s->workers) t->s->workers = pool_new(S3_CONNECTIONS);
    pool_run(t->s->workers, t->parts, task, t);
    for (int i = 0; i < S3_CONNECTIONS; i++)
        if (!first)
            first = errors[i];
        else
            err_free(errors[i]);
    t->errors = NULL;
    return first;
}

static err system_error(const char *verb, const char *path) {
    return err_hint(ERR("cannot %s %s: %s", verb, path, strerror(errno)),
                    "check the file and the disk it is on");
}

/* ---- upload ------------------------------------------------------------------------------------------------ */
static err read_file_part(const transfer *t, int64_t i, char *to) {
    size_t n = part_size(t, i);
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(t->fd, to + done, n - done, (off_t)(i * t->part_bytes) + (off_t)done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return system_error("read", t->path);
        if (got == 0) return ERR("%s became shorter while it was uploaded", t->path);
        done += (size_t)got;
    }
    return OK;
}

static bool check_uploaded_part(void *ctx, const http_reply *r) {
    const http_request *q = ctx;
    return *r->etag && s3_etag_agrees(r, q->body, q->body_bytes);
}

static err put_part(transfer *t, int64_t i, int worker) {
    char number[24];
    str query = { 0 };
    http_reply r = { .most = MOST_REPLY };
    char *bytes = mem_grow(NULL, part_size(t, i) + 1);
    s3_request q = { { "PUT", .body = bytes, .body_bytes = part_size(t, i) },
                     t->url,
                     .check = check_uploaded_part };
    q.check_ctx = &q.http;
    snprintf(number, sizeof number, "%lld", (long long)i + 1);
    s3_add_query(&query, "partNumber", number);
    s3_add_query(&query, "uploadId", t->upload_id);
    q.query = query.text;
    err e = read_file_part(t, i, bytes);
    if (!e) e = s3_call(t->s, worker, &q, &r);
    if (!e) memcpy(t->part_etags[i], r.etag, sizeof r.etag);
    str_free(&query);
    str_free(&r.body);
    free(bytes);
    return e;
}

static void put_part_task(void *ctx, int64_t i, int worker) {
    transfer *t = ctx;
    if (!t->errors[worker])
        t->errors[worker] = s3_is_cancelled(t->s) ? ERR("%s: the upload was cancelled", t->url)
                                                  : put_part(t, i, worker);
}

static err begin_upload(transfer *t) {
    http_reply r = { .most = MOST_REPLY };
    err e = s3_call(
        t->s, 0,
        &(s3_request){ { "POST", .body = "", .body_bytes = 0 }, t->url, .query = "uploads=" }, &r);
    if (!e) e = reply_upload_id(r.body.text, r.body.len, &t->upload_id);
    str_free(&r.body);
    return e;
}

static bool check_completed_upload(void *ctx, const http_reply *r) {
    return reply_is_complete(r->body.text, r->body.len);
}

/* A completion that was carried out although its reply got lost is answered with 404 the second time: the
 * object is then there, with the file's size. */
static err complete_upload(transfer *t) {
    str body = { 0 }, query = { 0 };
    http_reply r = { .most = MOST_REPLY };
    store_object there;
    bool found = false;
    str_add(&body, "<CompleteMultipartUpload>");
    for (int64_t i = 0; i < t->parts; i++)
        str_add(&body, "<Part><PartNumber>%lld</PartNumber><ETag>%s</ETag></Part>",
                (long long)i + 1, t->part_etags[i]);
    str_add(&body, "</CompleteMultipartUpload>");
    s3_add_query(&query, "uploadId", t->upload_id);
    s3_request q = { { "POST", .body = body.text, .body_bytes = body.len },
                     t->url,
                     .query = query.text,
                     .missing_is_fine = true,
                     .check = check_completed_upload };
    err e = s3_call(t->s, 0, &q, &r);
    if (!e && r.status == 404) {
        e = store_head(t->s, t->url, &found, &there);
        if (!e && (!found || there.bytes != t->bytes)) e = s3_failed("POST", t->url, &r, 1);
    }
    str_free(&body);
    str_free(&query);
    str_free(&r.body);
    return e;
}

static void abort_upload(transfer *t) {
    str query = { 0 };
    http_reply r = { .most = MOST_REPLY };
    s3_add_query(&query, "uploadId", t->upload_id);
    err_free(s3_call(
        t->s, 0,
        &(s3_request){
            { "DELETE" }, t->url, .query = query.text, .missing_is_fine = true, .cleans_up = true },
        &r)); /* the upload's error counts */
    str_free(&query);
    str_free(&r.body);
}

static err put_parts(transfer *t) {
    TRY(begin_upload(t));
    t->part_etags = mem_alloc((size_t)t->parts * sizeof *t->part_etags);
    err e = run_parts(t, put_part_task);
    if (!e) e = complete_upload(t);
    if (e) abort_upload(t);
    free(t->part_etags);
    free(t->upload_id);
    return e;
}

static err put_whole(transfer *t) {
    char *bytes = mem_grow(NULL, (size_t)t->bytes + 1);
    err e = read_file_part(t, 0, bytes);
    if (!e) e = store_put(t->s, t->url, bytes, (size_t)t->bytes);
    free(bytes);
    return e;
}

/* @param path for messages. */
static err put_descriptor(store *s, const char *url, const char *path, int fd) {
    struct stat st;
    transfer t = { .s = s, .url = url, .path = path, .fd = fd };
    if (fstat(fd, &st)) return system_error("inspect", path);
    t.bytes = (int64_t)st.st_size;
    t.part_bytes = MAX((int64_t)PART_BYTES, (t.bytes + MOST_PARTS - 1) / MOST_PARTS);
    t.parts = (t.bytes + t.part_bytes - 1) / t.part_bytes;
    return t.parts > 1 ? put_parts(&t) : put_whole(&t);
}

err store_put_file(store *s, const char *url, const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return system_error("open", path);
    err e = put_descriptor(s, url, path, fd);
    close(fd);
    return e;
}

err store_put_open_file(store *s, const char *url, int fd) {
    return put_descriptor(s, url, "a temporary file", fd);
}

/* ---- download ------------------------------------------------------------------------------------------------ */
static err get_part(transfer *t, int64_t i, int worker) {
    size_t n = part_size(t, i);
    char *bytes = mem_grow(NULL, n + 1);
    err e = s3_get_range(t->s, worker, t->url, t->etag, i * t->part_bytes, n, bytes);
    for (size_t done = 0; done < n && !e;) {
        ssize_t now =
            pwrite(t->fd, bytes + done, n - done, (off_t)(i * t->part_bytes) + (off_t)done);
        if (now < 0 && errno == EINTR) continue;
        if (now < 0) e = system_error("write", t->path);
        if (now > 0) done += (size_t)now;
    }
    free(bytes);
    return e;
}

static void get_part_task(void *ctx, int64_t i, int worker) {
    transfer *t = ctx;
    if (!t->errors[worker]) t->errors[worker] = get_part(t, i, worker);
}

/* Asks for size and ETag: all parts must be of the one object. */
static err look_up_object(transfer *t, http_reply *r) {
    TRY(s3_call(t->s, 0, &(s3_request){ { "HEAD" }, t->url }, r));
    if (r->length < 0) return ERR("HEAD %s: the store does not give a length", t->url);
    t->bytes = r->length;
    t->parts = (t->bytes + t->part_bytes - 1) / t->part_bytes;
    t->etag = *r->etag ? r->etag : NULL;
    return OK;
}

err store_get_file(store *s, const char *url, const char *path) {
    http_reply r = { .most = MOST_REPLY };
    str temporary = { 0 };
    transfer t = { .s = s, .url = url, .path = path, .fd = -1, .part_bytes = PART_BYTES };
    err e = OK;
    str_add(&temporary, "%s.%d.tmp", path, (int)getpid());
    TRY_CLEAN(look_up_object(&t, &r));
    t.fd = open(temporary.text, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (t.fd < 0) TRY_CLEAN(system_error("write", temporary.text));
    TRY_CLEAN(run_parts(&t, get_part_task));
    if (fsync(t.fd) != 0) TRY_CLEAN(system_error("write", temporary.text));
    TRY_CLEAN(io_rename(temporary.text, path));
cleanup:
    if (t.fd >= 0) close(t.fd);
    if (e && t.fd >= 0) unlink(temporary.text);
    str_free(&temporary);
    str_free(&r.body);
    return e;
}
