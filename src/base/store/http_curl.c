/* HTTP by libcurl, whose SigV4 signs each request.
 *
 * The SHA-256 of the body is a header that libcurl signs, so that a byte that changes on the way is refused
 * by the store. URLs are passed in canonical form (s3.c encodes them and
 * sorts queries): versions of libcurl differ in what they normalize before they sign. */
#include <curl/curl.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "store/store_internal.h"

enum {
    CONNECT_S = 10,
    SLOW_S = 30,          /* without a byte, in either direction */
    SLOWEST = 64 << 10,   /* bytes per second, below which a request takes too long as a whole */
    MOST_ERROR = 64 << 10 /* bytes of an error's text, however short the object is */
};

struct http {
    CURL *curl;
    char sigv4[96];
    struct curl_slist *token; /* header of a session; NULL: none */
    char error[CURL_ERROR_SIZE];
};

static void init_curl(void) { curl_global_init(CURL_GLOBAL_DEFAULT); }

err http_open(const store_settings *s, http **out) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_curl);
    http *h = mem_alloc(sizeof *h);
    h->curl = curl_easy_init();
    if (!h->curl) {
        free(h);
        return ERR("libcurl does not start");
    }
    snprintf(h->sigv4, sizeof h->sigv4, "aws:amz:%s:s3", s->region);
    if (s->token) {
        str line = { 0 };
        str_add(&line, "x-amz-security-token: %s", s->token);
        h->token = curl_slist_append(NULL, line.text);
        str_free(&line);
    }
    const struct {
        CURLoption option;
        const char *text;
    } texts[] = { { CURLOPT_AWS_SIGV4, h->sigv4 },
                  { CURLOPT_USERNAME, s->key },
                  { CURLOPT_PASSWORD, s->secret },
                  { CURLOPT_USERAGENT, "ingot/" INGOT_VERSION } };
    CURLcode rc = CURLE_OK;
    for (size_t i = 0; i < COUNT_OF(texts) && rc == CURLE_OK; i++)
        rc = curl_easy_setopt(h->curl, texts[i].option, texts[i].text);
    if (rc != CURLE_OK) {
        http_close(h);
        return err_hint(ERR("libcurl %s cannot sign requests to S3: %s",
                            curl_version_info(CURLVERSION_NOW)->version, curl_easy_strerror(rc)),
                        "use libcurl 7.88 or later, built with OpenSSL or GnuTLS");
    }
    *out = h;
    return OK;
}

void http_close(http *h) {
    if (!h) return;
    curl_easy_cleanup(h->curl);
    curl_slist_free_all(h->token);
    free(h);
}

/* ---- what comes back ------------------------------------------------------------------------------ */
static size_t receive_body(char *bytes, size_t size, size_t n, void *ctx) {
    http_reply *r = ctx;
    n *= size;
    if (n > MAX(r->most, (size_t)MOST_ERROR) - r->body.len) return 0; /* ends the transfer */
    str_add_bytes(&r->body, bytes, n);
    return n;
}

static bool header_is(const char *line, size_t n, const char *name, char *value, size_t capacity) {
    size_t k = strlen(name);
    if (n <= k || strncasecmp(line, name, k) != 0) return false;
    line += k, n -= k;
    while (n && (*line == ' ' || *line == '\t')) line++, n--;
    while (n && strchr(" \t\r\n", line[n - 1])) n--;
    if (n >= capacity) return false;
    memcpy(value, line, n);
    value[n] = '\0';
    return true;
}

static size_t receive_header(char *line, size_t size, size_t n, void *ctx) {
    http_reply *r = ctx;
    char text[128];
    n *= size;
    if (header_is(line, n, "etag:", text, sizeof text)) memcpy(r->etag, text, sizeof text);
    if (header_is(line, n, "x-amz-bucket-region:", text, sizeof text))
        snprintf(r->region, sizeof r->region, "%.31s", text);
    if (header_is(line, n, "last-modified:", text, sizeof text))
        r->modified = MAX((int64_t)curl_getdate(text, NULL), 0);
    if (header_is(line, n, "x-amz-server-side-encryption:", text, sizeof text))
        r->encrypted_kms = strcmp(text, "AES256") != 0;
    return n;
}

/* Called at least every second, whether or not bytes move. @return nonzero to end the transfer. */
static int look_whether_to_end(void *ctx, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
    const http_request *q = ctx;
    return q->ends(q->ends_ctx);
}

/* ---- sending ---------------------------------------------------------------------------------------- */
/* TLS libraries may write to a connection that is gone, which would end a process that does not ignore
 * SIGPIPE. */
static CURLcode perform_without_sigpipe(CURL *curl) {
    sigset_t pipe, before, pending;
    const struct timespec now = { 0 };
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigpending(&pending);
    bool was_pending = sigismember(&pending, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &before);
    CURLcode rc = curl_easy_perform(curl);
    if (!was_pending)
        while (sigtimedwait(&pipe, NULL, &now) < 0 && errno == EINTR) {
        }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

static struct curl_slist *make_headers(const http *h, const http_request *q) {
    struct curl_slist *list = NULL;
    str line = { 0 };
    char digest[65];
    if (q->body) list = curl_slist_append(list, "Content-Type: application/octet-stream");
    if (h->token) list = curl_slist_append(list, h->token->data);
    sha256_hex(q->body ? q->body : "", q->body ? q->body_bytes : 0, digest);
    str_add(&line, "x-amz-content-sha256: %s", digest);
    list = curl_slist_append(list, line.text);
    line.len = 0;
    if (q->if_match) {
        str_add(&line, "If-Match: %s", q->if_match);
        list = curl_slist_append(list, line.text);
    }
    str_free(&line);
    return list;
}

static void set_request_options(http *h, const http_request *q, http_reply *r) {
    CURL *c = h->curl;
    bool head = !strcmp(q->method, "HEAD");
    curl_easy_setopt(c, CURLOPT_URL, q->url);
    curl_easy_setopt(c, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, h->error);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)SLOW_S);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, receive_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, r);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, receive_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, r);
    curl_easy_setopt(c, CURLOPT_NOBODY, 0L);
    curl_easy_setopt(c, CURLOPT_HTTPGET, 1L); /* undoes what the last request set */
    if (head) curl_easy_setopt(c, CURLOPT_NOBODY, 1L);
    if (q->body) {
        curl_easy_setopt(c, CURLOPT_POST, 1L);
        curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)q->body_bytes);
        curl_easy_setopt(c, CURLOPT_POSTFIELDS, q->body);
    }
    curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, head ? NULL : q->method);
    curl_easy_setopt(c, CURLOPT_RANGE, q->range);
    curl_easy_setopt(c, CURLOPT_TIMEOUT,
                     (long)(2 * SLOW_S + MAX(q->body_bytes, r->most) / SLOWEST));
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, q->ends ? 0L : 1L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, look_whether_to_end);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, q);
}

void http_send(http *h, const http_request *q, http_reply *r) {
    *r = (http_reply){ .body = { r->body.text, 0, r->body.cap }, .most = r->most, .length = -1 };
    h->error[0] = '\0';
    struct curl_slist *headers = make_headers(h, q);
    set_request_options(h, q, r);
    curl_easy_setopt(h->curl, CURLOPT_HTTPHEADER, headers);
    CURLcode rc = perform_without_sigpipe(h->curl);
    long status = 0;
    curl_off_t length = -1;
    curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(h->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    r->too_long = rc == CURLE_WRITE_ERROR || (status / 100 == 2 && r->body.len > r->most);
    r->status = rc == CURLE_OK && !r->too_long ? (int)status : 0;
    r->length = (int64_t)length;
    if (r->too_long)
        snprintf(r->failure, sizeof r->failure, "the reply is longer than %zu bytes", r->most);
    else if (rc != CURLE_OK)
        snprintf(r->failure, sizeof r->failure, "%.200s",
                 h->error[0] ? h->error : curl_easy_strerror(rc));
    curl_slist_free_all(headers);
}
