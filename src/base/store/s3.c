/* Requests to S3: URLs, retries, and the calls that are one request each. transfer.c has those of files.
 *
 * A request is repeated as long as its failure may pass: no reply, 5xx, 408, 429, or one of the codes that ask
 * for it. Every call here may be repeated: a PUT or DELETE that was carried out although its reply got lost
 * has the same result the second time. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "store/s3_internal.h"
#include "util/wait.h"

enum { MOST_REPLY = 16 << 20, MOST_KEY = 1024, MOST_OBJECTS = 10 * 1000 * 1000, MOST_EMPTY = 100 };
static const double FIRST_DELAY_S = 0.1, MOST_DELAY_S = 20, MOST_REQUEST_S = 900;

/* ---- URLs ------------------------------------------------------------------------------------------------- */
bool store_is_url(const char *path) { return path && str_starts(path, "s3://"); }

char *store_join_into(char to[STORE_URL_BYTES], const char *url, const char *name) {
    int n = (int)strlen(url);
    while (n > 5 && url[n - 1] == '/') n--;
    snprintf(to, STORE_URL_BYTES, "%.*s/%s", n, url, name);
    return to;
}

char *store_join(const char *url, const char *name) { return strdup(URL_IN(url, name)); }

static bool is_bucket(const char *s, size_t n) {
    bool good = n >= 3 && n <= 63;
    for (size_t i = 0; i < n && good; i++)
        good = (s[i] >= 'a' && s[i] <= 'z') || (s[i] >= '0' && s[i] <= '9') || s[i] == '.' ||
               s[i] == '-' || s[i] == '_';
    return good;
}

static err s3_address(const char *url, s3_object *out) {
    BUG_IF(!store_is_url(url));
    const char *bucket = url + 5, *slash = strchr(bucket, '/');
    size_t n = slash ? (size_t)(slash - bucket) : strlen(bucket);
    const char *key = slash ? slash + 1 : "";
    while (*key == '/') key++;
    if (!is_bucket(bucket, n))
        return err_hint(
            ERR("%s: \"%.*s\" is not the name of a bucket", url, (int)MIN(n, 80), bucket),
            "write s3://bucket/key");
    if (strlen(key) > MOST_KEY)
        return ERR("%s: a key has at most %d bytes, this one has %zu", url, MOST_KEY, strlen(key));
    memcpy(out->bucket, bucket, n);
    out->bucket[n] = '\0';
    out->key = key;
    return OK;
}

/* Appends text with all but unreserved characters encoded, as the signature has it. */
static void add_encoded(str *s, const char *text, const char *kept) {
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     strchr("-._~", c) || strchr(kept, c);
        if (plain)
            str_add_bytes(s, text, 1);
        else
            str_add(s, "%%%02X", c);
    }
}

void s3_add_query(str *query, const char *name, const char *value) {
    str_add(query, "%s%s=", query->len ? "&" : "", name);
    add_encoded(query, value, "");
}

/* A server of one's own is addressed by path, AWS by the bucket's host, unless its certificate does not
 * cover the bucket's name. */
static void add_address(const store *s, const s3_object *o, const char *query, str *out) {
    if (s->settings.endpoint)
        str_add(out, "%s/%s/", s->settings.endpoint, o->bucket);
    else if (strpbrk(o->bucket, "._"))
        str_add(out, "https://s3.%s.amazonaws.com/%s/", s->settings.region, o->bucket);
    else
        str_add(out, "https://%s.s3.%s.amazonaws.com/", o->bucket, s->settings.region);
    add_encoded(out, o->key, "/");
    if (query && *query) str_add(out, "?%s", query);
}

/* ---- sending, and sending again ---------------------------------------------------------------------------- */
/* How to proceed after a failure. A session's keys are often renewed by another process, a moment late: the request
 * is repeated until they are. Keys that are wrong may have been replaced since they were read. */
typedef enum { FAIL, REPEAT, RENEW_AND_REPEAT, REPEAT_IF_RENEWED } failure_kind;

static failure_kind kind_of_failure(const http_request *q, const http_reply *r) {
    static const struct {
        const char *code;
        failure_kind kind;
    } codes[] = {
        { "RequestTimeout", REPEAT },
        { "SlowDown", REPEAT },
        { "InternalError", REPEAT },
        { "OperationAborted", REPEAT },
        { "ThrottlingException", REPEAT },
        { "ExpiredToken", RENEW_AND_REPEAT },
        { "ExpiredTokenException", RENEW_AND_REPEAT },
        { "TokenRefreshRequired", RENEW_AND_REPEAT },
        { "RequestExpired", RENEW_AND_REPEAT },
        { "InvalidToken", REPEAT_IF_RENEWED },
        { "InvalidAccessKeyId", REPEAT_IF_RENEWED },
        { "SignatureDoesNotMatch", REPEAT_IF_RENEWED },
    };
    reply_fault f;
    if (r->too_long) return FAIL;
    if (r->status == 0 || r->status >= 500 || r->status == 408 || r->status == 429) return REPEAT;
    if (r->status < 400) return FAIL;
    reply_error(r->body.text, r->body.len, &f);
    for (size_t i = 0; i < COUNT_OF(codes); i++)
        if (!strcmp(f.code, codes[i].code)) return codes[i].kind;
    bool headless = !strcmp(q->method, "HEAD"); /* its reply has no code */
    return headless && (r->status == 400 || r->status == 403) ? REPEAT_IF_RENEWED : FAIL;
}

/* @return whether the keys were read again, and are others now. */
static bool s3_renew_keys(store *s) {
    bool changed = false;
    pthread_mutex_lock(&s->lock);
    err e = settings_renew(&s->settings, &changed);
    if (changed) s->keys++;
    pthread_mutex_unlock(&s->lock);
    if (e) log_warn("the credentials of the store cannot be read again: %s", err_message(e));
    err_free(e);
    if (changed) log_info("the credentials of the store were read again");
    return changed;
}

static err s3_connection(store *s, int worker, http **out) {
    BUG_IF(worker < 0 || worker >= S3_CONNECTIONS);
    http **h = &s->connection[worker];
    err e = OK;
    pthread_mutex_lock(&s->lock);
    if (*h && s->keys_of[worker] != s->keys) {
        http_close(*h);
        *h = NULL;
    }
    s->keys_of[worker] = s->keys;
    if (!*h) e = http_open(&s->settings, h);
    pthread_mutex_unlock(&s->lock);
    *out = *h;
    return e;
}

static bool ends_request(const void *ctx) { return s3_is_cancelled(ctx); }

static const char *remedy_of(const http_reply *r, const reply_fault *f) {
    static const struct {
        const char *code, *remedy;
    } known[] = {
        { "NoSuchBucket", "create the bucket, or check its name and AWS_ENDPOINT_URL" },
        { "AccessDenied", "check that the key may use this bucket" },
        { "InvalidAccessKeyId", "check AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL" },
        { "SignatureDoesNotMatch", "check AWS_SECRET_ACCESS_KEY and AWS_REGION" },
        { "AuthorizationHeaderMalformed", "check AWS_REGION" },
        { "RequestTimeTooSkewed", "set this machine's clock" },
        { "ExpiredToken", "renew the session, whose token has expired" },
        { "PermanentRedirect", "check AWS_REGION" },
        { "NoSuchKey", "check the path" },
        { "NoSuchUpload", "the upload was aborted by another process: try again" },
    };
    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (!strcmp(f->code, known[i].code)) return known[i].remedy;
    if (r->status == 404) return "check the path";
    if (r->status == 403) return "check the credentials, and what they may do";
    if (r->status == 301 || r->status == 307) return "check AWS_REGION";
    return r->status ? "see the store's own log" : "check AWS_ENDPOINT_URL and the network";
}

err s3_failed(const char *method, const char *url, const http_reply *r, int attempts) {
    reply_fault f;
    char times[32] = "";
    reply_error(r->body.text, r->body.len, &f);
    if (attempts > 1) snprintf(times, sizeof times, " (%d attempts)", attempts);
    if (r->status == 0)
        return err_hint(ERR("%s %s: %s%s", method, url, r->failure, times), "%s", remedy_of(r, &f));
    err e = ERR("%s %s: the store answers %d%s%s%s%s%s", method, url, r->status, *f.code ? " " : "",
                f.code, *f.message ? ": " : "", f.message, times);
    if (*r->region && (r->status == 301 || r->status == 400))
        return err_hint(e, "the bucket is in region %s: set AWS_REGION", r->region);
    return err_hint(e, "%s", remedy_of(r, &f));
}

/* One attempt. @return what to do next. */
static err send_once(store *s, int worker, const s3_request *q, const http_request *request,
                     http_reply *r, bool *again) {
    http *h = NULL;
    TRY(s3_connection(s, worker, &h));
    http_send(h, request, r);
    failure_kind kind = kind_of_failure(request, r);
    if (q->check && r->status / 100 == 2 && !q->check(q->check_ctx, r)) kind = REPEAT;
    bool renewed = kind >= RENEW_AND_REPEAT && s3_renew_keys(s);
    *again = kind == REPEAT || kind == RENEW_AND_REPEAT || renewed;
    return OK;
}

static void describe_failure(const http_reply *r, char *to, size_t n) {
    reply_fault f;
    reply_error(r->body.text, r->body.len, &f);
    if (r->status == 0)
        snprintf(to, n, "%.150s", r->failure);
    else
        snprintf(to, n, "it answers %d%s%s", r->status, *f.code ? " " : "", f.code);
}

err s3_call(store *s, int worker, const s3_request *q, http_reply *r) {
    s3_object o;
    str address = { 0 };
    wait_state w;
    TRY(s3_address(q->url, &o));
    add_address(s, &o, q->query, &address);
    http_request request = q->http;
    request.url = address.text;
    if (!q->cleans_up) request.ends = ends_request;
    request.ends_ctx = s;
    wait_begin(&w, MOST_REQUEST_S, "the store: %s %s", q->http.method, q->url);
    wait_set_back_off(&w, FIRST_DELAY_S, MOST_DELAY_S);
    w.cut = s->cancelled;
    int attempt = 0;
    err e = OK;
    for (bool again = true; again && !e; attempt++) {
        e = send_once(s, worker, q, &request, r, &again);
        if (e || !again) continue;
        describe_failure(r, w.detail, sizeof w.detail);
        again = attempt + 1 < s->settings.attempts && wait_nap(&w);
    }
    str_free(&address);
    TRY(e);
    attempt--; /* the last one's index */
    bool fine = r->status / 100 == 2 || (q->missing_is_fine && r->status == 404);
    if (!fine && wait_is_interrupted(&w) && !s->cancelled) return wait_failed(&w);
    if (!fine && s3_is_cancelled(s))
        return ERR("%s %s: cancelled%s%s", q->http.method, q->url, *w.detail ? "; " : "", w.detail);
    if (fine && r->status != 404 && q->check && !q->check(q->check_ctx, r))
        return err_hint(ERR("%s %s: what arrives is damaged, in each of %d attempts",
                            q->http.method, q->url, attempt + 1),
                        "check the network and the store");
    return fine ? OK : s3_failed(q->http.method, q->url, r, attempt + 1);
}

/* ---- a store ------------------------------------------------------------------------------------------------ */
err store_open(store **out) {
    store *s = mem_alloc(sizeof *s);
    http *first = NULL;
    err e = settings_read(&s->settings);
    pthread_mutex_init(&s->lock, NULL);
    if (!e) e = s3_connection(s, 0, &first);
    if (e) {
        store_close(s);
        return e;
    }
    *out = s;
    return OK;
}

void store_close(store *s) {
    if (!s) return;
    for (int i = 0; i < S3_CONNECTIONS; i++) http_close(s->connection[i]);
    pool_free(s->workers);
    settings_free(&s->settings);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void store_cancel_by(store *s, const _Atomic bool *cancelled) { s->cancelled = cancelled; }

bool s3_is_cancelled(const store *s) {
    return s->cancelled ? atomic_load(s->cancelled) : wait_signal_count() > 0;
}

/* ---- objects -------------------------------------------------------------------------------------------------- */
/* An MD5 is 32 digits in quotes; that of a multipart upload, which is none of the content, has a dash. */
bool s3_etag_agrees(const http_reply *r, const void *bytes, size_t n) {
    char md5[33];
    if (r->encrypted_kms || strlen(r->etag) != 34 || r->etag[0] != '"') return true;
    if (strspn(r->etag + 1, "0123456789abcdef") != 32) return true;
    md5_hex(bytes, n, md5);
    return !strncmp(r->etag + 1, md5, 32);
}

static bool check_whole(void *ctx, const http_reply *r) {
    return s3_etag_agrees(r, r->body.text, r->body.len);
}

err store_head(store *s, const char *url, bool *found, store_object *out) {
    http_reply r = { .most = MOST_REPLY };
    *out = (store_object){ 0 };
    err e = s3_call(s, 0, &(s3_request){ { "HEAD" }, url, .missing_is_fine = true }, &r);
    *found = !e && r.status != 404;
    if (*found)
        *out = (store_object){ .bytes = r.length,
                               .modified = r.modified,
                               .etag_hash = hash_str(r.etag) };
    if (*found && r.length < 0) e = ERR("HEAD %s: the store does not give a length", url);
    str_free(&r.body);
    return e;
}

err store_read(store *s, const char *url, size_t max, char **bytes, size_t *n) {
    http_reply r = { .most = max };
    err e = s3_call(s, 0, &(s3_request){ { "GET" }, url, .check = check_whole }, &r);
    if (e) {
        str_free(&r.body);
        return e;
    }
    str_add(&r.body, "%s", ""); /* an empty object has no buffer yet */
    *bytes = r.body.text;
    if (n) *n = r.body.len;
    return OK;
}

err store_get(store *s, const char *url, int64_t from, size_t n, void *to) {
    return s3_get_range(s, 0, url, NULL, from, n, to);
}

static bool check_length(void *ctx, const http_reply *r) {
    return r->body.len == *(const size_t *)ctx;
}

err s3_get_range(store *s, int worker, const char *url, const char *etag, int64_t from, size_t n,
                 void *to) {
    char range[64];
    if (n == 0) return OK;
    snprintf(range, sizeof range, "%lld-%lld", (long long)from, (long long)(from + (int64_t)n - 1));
    http_reply r = { .most = n };
    s3_request q = {
        { "GET", .range = range, .if_match = etag }, url, .check = check_length, .check_ctx = &n
    };
    err e = s3_call(s, worker, &q, &r);
    if (!e) memcpy(to, r.body.text, n);
    str_free(&r.body);
    return e;
}

static bool check_stored(void *ctx, const http_reply *r) {
    const http_request *q = ctx;
    return s3_etag_agrees(r, q->body, q->body_bytes);
}

err store_put(store *s, const char *url, const void *bytes, size_t n) {
    http_reply r = { .most = MOST_REPLY };
    s3_request q = { { "PUT", .body = n ? bytes : "", .body_bytes = n },
                     url,
                     .check = check_stored };
    q.check_ctx = &q.http;
    err e = s3_call(s, 0, &q, &r);
    str_free(&r.body);
    return e;
}

err store_delete(store *s, const char *url) {
    http_reply r = { .most = MOST_REPLY };
    err e = s3_call(s, 0, &(s3_request){ { "DELETE" }, url, .missing_is_fine = true }, &r);
    str_free(&r.body);
    return e;
}

/* ---- listing ------------------------------------------------------------------------------------------------- */
/* One page. The names of a query stand in their order, as the signature needs them. */
static err list_page(store *s, const char *bucket_url, const char *prefix, const char *token,
                     store_list *out, char **next) {
    str query = { 0 };
    http_reply r = { .most = MOST_REPLY };
    if (token) s3_add_query(&query, "continuation-token", token);
    s3_add_query(&query, "encoding-type", "url");
    s3_add_query(&query, "list-type", "2");
    if (*prefix) s3_add_query(&query, "prefix", prefix);
    err e = s3_call(s, 0, &(s3_request){ { "GET" }, bucket_url, .query = query.text }, &r);
    if (!e) e = reply_list(r.body.text, r.body.len, bucket_url, prefix, out, next);
    str_free(&query);
    str_free(&r.body);
    return e;
}

err store_list_folder(store *s, const char *url, store_list *out) {
    s3_object o;
    char *token = NULL;
    str prefix = { 0 }, bucket = { 0 };
    *out = (store_list){ 0 };
    TRY(s3_address(url, &o));
    str_add(&bucket, "s3://%s", o.bucket);
    str_add(&prefix, "%s%s", o.key, *o.key && !str_ends(o.key, "/") ? "/" : "");
    err e = OK;
    int empty = 0; /* pages in a row: a store may skip what it has deleted, but not for ever */
    do {
        char *next = NULL;
        int before = out->n;
        e = list_page(s, bucket.text, prefix.text, token, out, &next);
        empty = out->n > before ? 0 : empty + 1;
        bool stuck = next && ((token && !strcmp(token, next)) || empty > MOST_EMPTY);
        free(token);
        token = next;
        if (!e && stuck)
            e = err_hint(
                ERR("%s: the store's list of objects does not end: page after page without "
                    "objects, or the same page again",
                    url),
                "check that AWS_ENDPOINT_URL names a server that speaks S3");
        if (!e && out->n > MOST_OBJECTS) e = ERR("%s: more than %d objects", url, MOST_OBJECTS);
    } while (!e && token);
    free(token);
    str_free(&prefix);
    str_free(&bucket);
    if (e) store_list_free(out);
    return e;
}

void store_list_free(store_list *l) {
    for (int i = 0; i < l->n; i++) free(l->at[i].url);
    free(l->at);
    *l = (store_list){ 0 };
}
