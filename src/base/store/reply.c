/* Parses the replies of S3 that we need. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "store/store_internal.h"

static err malformed_error(const char *what, const char *wrong) {
    return err_hint(ERR("the store's reply to %s is malformed: %s", what, wrong),
                    "check that AWS_ENDPOINT_URL names a server that speaks S3");
}

/* ---- ListObjectsV2 ------------------------------------------------------------------------------------ */
typedef struct list_state {
    store_list *out;
    const char *bucket_url, *prefix;
    bool encoded, truncated, root;
    char *next;
    str key;
    store_object object;
} list_state;

/* Decodes %XX in place. @return false where one is malformed or NUL. */
static bool decode_key(str *key) {
    size_t to = 0;
    for (size_t i = 0; i < key->len; i++) {
        int c = (unsigned char)key->text[i];
        if (c == '+') c = ' ';
        if (c == '%') {
            int high = i + 2 < key->len ? hex_digit(key->text[i + 1]) : -1;
            int low = i + 2 < key->len ? hex_digit(key->text[i + 2]) : -1;
            c = high * 16 + low;
            if (high < 0 || low < 0 || c == 0) return false;
            i += 2;
        }
        key->text[to++] = (char)c;
    }
    key->text[to] = '\0';
    key->len = to;
    return true;
}

/* "2024-05-01T10:20:30.000Z" */
static int64_t parse_time(const char *text) {
    struct tm tm = { 0 };
    const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
    return rest ? MAX((int64_t)timegm(&tm), 0) : 0;
}

static bool add_listed_object(list_state *s) {
    if (!s->key.len || (s->encoded && !decode_key(&s->key))) return false;
    if (memchr(s->key.text, '\0', s->key.len) || !str_starts(s->key.text, s->prefix)) return false;
    s->out->at = mem_reserve(s->out->at, &s->out->capacity, s->out->n, sizeof *s->out->at);
    str url = { 0 };
    str_add(&url, "%s/%s", s->bucket_url, s->key.text);
    s->object.url = url.text;
    s->object.name = url.text + strlen(s->bucket_url) + 1 + strlen(s->prefix);
    s->out->at[s->out->n++] = s->object;
    s->object = (store_object){ 0 };
    s->key.len = 0;
    return true;
}

static bool list_element(void *ctx, const char *path, const char *text, size_t n) {
    static const char root[] = "ListBucketResult";
    list_state *s = ctx;
    int64_t bytes;
    if (strncmp(path, root, sizeof root - 1) != 0) return false;
    path += sizeof root - 1;
    if (!*path) s->root = true;
    if (!strcmp(path, "/EncodingType")) s->encoded = text && !strcmp(text, "url");
    if (!strcmp(path, "/IsTruncated")) s->truncated = text && !strcmp(text, "true");
    if (!strcmp(path, "/NextContinuationToken") && text && n) {
        free(s->next);
        s->next = strdup(text);
    }
    if (!strcmp(path, "/Contents/Key") && text) {
        s->key.len = 0;
        str_add_bytes(&s->key, text, n);
    }
    if (!strcmp(path, "/Contents/Size")) {
        if (!text || !number_parse_int(text, &bytes) || bytes < 0) return false;
        s->object.bytes = bytes;
    }
    if (!strcmp(path, "/Contents/LastModified") && text) s->object.modified = parse_time(text);
    if (!strcmp(path, "/Contents/ETag") && text) s->object.etag_hash = hash_bytes(text, n, 0);
    return strcmp(path, "/Contents") != 0 || add_listed_object(s);
}

err reply_list(const char *text, size_t n, const char *bucket_url, const char *prefix,
               store_list *out, char **next) {
    list_state s = { .out = out, .bucket_url = bucket_url, .prefix = prefix };
    const char *wrong = xml_parse(text, n, &(xml_visitor){ list_element, &s });
    *next = NULL;
    if (!wrong && !s.root) wrong = "it is not a ListBucketResult";
    if (!wrong && s.truncated && !s.next) wrong = "it is one page of several, without a token";
    if (!wrong && s.truncated) *next = s.next;
    if (!*next) free(s.next);
    str_free(&s.key);
    return wrong ? malformed_error("a list of objects", wrong) : OK;
}

/* ---- multipart uploads, errors ---------------------------------------------------------------------------- */
static bool upload_element(void *ctx, const char *path, const char *text, size_t n) {
    char **id = ctx;
    if (!strcmp(path, "InitiateMultipartUploadResult/UploadId") && text && n && !*id)
        *id = strdup(text);
    return true;
}

err reply_upload_id(const char *text, size_t n, char **id) {
    *id = NULL;
    const char *wrong = xml_parse(text, n, &(xml_visitor){ upload_element, id });
    if (!wrong && !*id) wrong = "it has no UploadId";
    if (!wrong) return OK;
    free(*id);
    *id = NULL;
    return malformed_error("the begin of an upload", wrong);
}

static bool complete_element(void *ctx, const char *path, const char *text, size_t n) {
    if (!strcmp(path, "CompleteMultipartUploadResult")) *(bool *)ctx = true;
    return true;
}

bool reply_is_complete(const char *text, size_t n) {
    bool complete = false;
    return !xml_parse(text, n, &(xml_visitor){ complete_element, &complete }) && complete;
}

static bool error_element(void *ctx, const char *path, const char *text, size_t n) {
    reply_fault *f = ctx;
    if (text && !strcmp(path, "Error/Code")) snprintf(f->code, sizeof f->code, "%s", text);
    if (text && !strcmp(path, "Error/Message")) snprintf(f->message, sizeof f->message, "%s", text);
    return true;
}

void reply_error(const char *text, size_t n, reply_fault *out) {
    *out = (reply_fault){ 0 };
    if (n && xml_parse(text, n, &(xml_visitor){ error_element, out })) *out = (reply_fault){ 0 };
}
