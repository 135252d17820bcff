/* store, inside: what s3.c and transfer.c share. */
#ifndef INGOT_STORE_S3_INTERNAL_H
#define INGOT_STORE_S3_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "store/store_internal.h"

enum { S3_CONNECTIONS = 8 }; /* of one store: parts of a file travel side by side */
struct store {
    store_settings settings; /* its keys: under the lock */
    http *connection
        [S3_CONNECTIONS];        /* opened when first used, and again when the keys have changed */
    int keys_of[S3_CONNECTIONS]; /* `keys` when each was opened */
    pool *workers;               /* opened when first used */
    pthread_mutex_t lock;
    int keys;                      /* counts changes of the keys */
    const _Atomic bool *cancelled; /* NULL: a signal does */
};

bool s3_is_cancelled(const store *s);

typedef struct s3_object {
    char bucket[64];
    const char *key; /* inside the URL */
} s3_object;
/* Appends "name=value", encoded; names in their order. */
void s3_add_query(str *query, const char *name, const char *value);

typedef struct s3_request {
    http_request http;    /* its url is made from the next two */
    const char *url;      /* "s3://bucket/key" */
    const char *query;    /* NULL: none */
    bool missing_is_fine; /* 404 is not an error */
    bool cleans_up;       /* is sent once although the store was cancelled */
    /* Whether a reply of status 2xx is as it should be; if not, the request is sent again. NULL: it is. */
    bool (*check)(void *ctx, const http_reply *r);
    void *check_ctx;
} s3_request;
/* Sends a request until it succeeds, fails for good, or has failed too often. @param worker whose
 * connection. @param r as http_send takes it. */
err s3_call(store *s, int worker, const s3_request *q, http_reply *r) MUST_USE;
err s3_failed(const char *method, const char *url, const http_reply *r, int attempts) MUST_USE;
/* @param etag of the object that is meant; NULL: any. */
err s3_get_range(store *s, int worker, const char *url, const char *etag, int64_t from, size_t n,
                 void *to) MUST_USE;
bool s3_etag_agrees(const http_reply *r, const void *bytes, size_t n);

#endif
