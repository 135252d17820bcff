/* store, inside: credentials, HTTP by libcurl, and the XML of replies. */
#ifndef INGOT_STORE_INTERNAL_H
#define INGOT_STORE_INTERNAL_H

#include "io/io.h"
#include "store/store.h"

/* ---- credentials.c ----------------------------------------------------------------------------- */
typedef struct store_settings {
    char *endpoint; /* "http://host:port", without a slash at its end; NULL: AWS's own */
    char *region, *key, *secret;
    char *token;  /* of a session; NULL: none */
    int attempts; /* of a request */
} store_settings;
err settings_read(store_settings *out) MUST_USE;
/* Reads key, secret and token again, where they came from. @param changed whether they are others now. */
err settings_renew(store_settings *s, bool *changed) MUST_USE;
void settings_free(store_settings *s);

/* ---- http_curl.c, http_none.c: one request, one reply --------------------------------------------- */
typedef struct http http; /* a connection that is kept */
typedef struct http_request {
    const char *method, *url;
    const void *body; /* borrowed; NULL: none */
    size_t body_bytes;
    const char *range;             /* "0-99"; NULL: all */
    const char *if_match;          /* an ETag; NULL: any */
    bool (*ends)(const void *ctx); /* looked at every second: whether to give up; NULL: never */
    const void *ends_ctx;
} http_request;
typedef struct http_reply {
    int status;        /* 0: no reply was received, `failure` has the reason */
    char failure[256]; /* of the transport; "": none */
    str body;          /* at most `most` bytes, which the caller sets */
    size_t most;       /* a longer body is a failure, for which `too_long` is set */
    bool too_long;
    int64_t length;     /* Content-Length; -1: not given */
    char etag[128];     /* with its quotes; "": none */
    char region[32];    /* of the bucket; "": not given */
    int64_t modified;   /* seconds since 1970; 0: not given */
    bool encrypted_kms; /* the ETag is then not an MD5 */
} http_reply;
err http_open(const store_settings *s, http **out) MUST_USE;
void http_close(http *h); /* takes NULL */
/* Sends a request, signed. Any outcome is in `r`; its body's buffer is reused. */
void http_send(http *h, const http_request *q, http_reply *r);

/* ---- xml.c: the XML that S3 writes ------------------------------------------------------------------
 * Elements, text, the five entities and characters by number; attributes are skipped. Comments, CDATA and
 * document types, which S3 never writes, are refused, and so is anything not well-formed. */
typedef struct xml_visitor {
    /* Called at the end of every element. @param path "Root/Child/Leaf". @param text of an element without
     * children, decoded, with a NUL after n bytes; NULL for one with children. @return false to stop. */
    bool (*element)(void *ctx, const char *path, const char *text, size_t n);
    void *ctx;
} xml_visitor;
/* @return NULL, or what is wrong; static. */
const char *xml_parse(const char *text, size_t n, const xml_visitor *v);

/* ---- reply.c: replies ----------------------------------------------------------------------------- */
/* Adds the objects of a reply to ListObjectsV2. @param bucket_url "s3://bucket": of the objects' URLs.
 * @param prefix that was asked for: a key without it is malformed. @param next the token of the next page, owned
 * (free); NULL after the last. */
err reply_list(const char *text, size_t n, const char *bucket_url, const char *prefix,
               store_list *out, char **next) MUST_USE;
/* @param id owned (free). */
err reply_upload_id(const char *text, size_t n, char **id) MUST_USE;
/* CompleteMultipartUpload may report an error under status 200. */
bool reply_is_complete(const char *text, size_t n);
typedef struct reply_fault {
    char code[64], message[256]; /* "": not given */
} reply_fault;
void reply_error(const char *text, size_t n, reply_fault *out);

/* ---- md5.c, sha256.c ------------------------------------------------------------------------------------------ */
void md5_hex(const void *bytes, size_t n, char out[33]);
void sha256_hex(const void *bytes, size_t n, char out[65]);

#endif
