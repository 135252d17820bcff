/* HTTP requests. Nothing in them is trusted: every part is bounded, and what is not understood is refused. */
#include <string.h>
#include <strings.h>

#include "serve_internal.h"

/* Decodes %XX and + into `to`. @return false when it does not fit, is malformed or holds a NUL. */
static bool decode_percent(const char *from, size_t n, char *to, size_t capacity) {
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        int c = (unsigned char)from[i];
        if (c == '+') c = ' ';
        if (c == '%') {
            int high = i + 2 < n ? hex_digit(from[i + 1]) : -1;
            int low = i + 2 < n ? hex_digit(from[i + 2]) : -1;
            if (high < 0 || low < 0) return false;
            c = high * 16 + low;
            i += 2;
        }
        if (c == 0 || at + 1 >= capacity) return false;
        to[at++] = (char)c;
    }
    to[at] = '\0';
    return true;
}

static bool parse_query(const char *at, const char *end, serve_request *out) {
    while (at < end) {
        const char *stop = memchr(at, '&', (size_t)(end - at));
        if (!stop) stop = end;
        const char *equals = memchr(at, '=', (size_t)(stop - at));
        if (stop > at) {
            if (out->n_query == QUERY_MOST || !equals) return false;
            char *name = out->query[out->n_query].name, *value = out->query[out->n_query].value;
            if (!decode_percent(at, (size_t)(equals - at), name, sizeof out->query[0].name))
                return false;
            if (!decode_percent(equals + 1, (size_t)(stop - equals - 1), value,
                                sizeof out->query[0].value))
                return false;
            out->n_query++;
        }
        at = stop + 1;
    }
    return true;
}

const char *serve_query(const serve_request *r, const char *name) {
    for (int i = 0; i < r->n_query; i++)
        if (!strcmp(r->query[i].name, name)) return r->query[i].value;
    return NULL;
}

const char *serve_query_name(const serve_request *r, int i) {
    return i < r->n_query ? r->query[i].name : NULL;
}

/* A length is digits alone: a sign or a second number may mean another length to another program. */
static bool parse_body_length(const char *text, int64_t *out) {
    for (const char *at = text; *at; at++)
        if (*at < '0' || *at > '9') return false;
    return *text && strlen(text) < 16 && number_parse_int(text, out);
}

/* "GET /path?query HTTP/1.1" */
static int parse_line(const char *at, const char *end, serve_request *out) {
    size_t n = (size_t)(end - at);
    size_t method = n > 4 && !memcmp(at, "GET ", 4) ? 4 : n > 5 && !memcmp(at, "HEAD ", 5) ? 5 : 0;
    out->head = method == 5;
    out->post = n > 5 && !memcmp(at, "POST ", 5);
    if (out->post) method = 5;
    if (!method) return memchr(at, ' ', n) ? 405 : 400;
    at += method;
    const char *space = memchr(at, ' ', (size_t)(end - at));
    if (!space || end - space != 9 || memcmp(space, " HTTP/1.", 8) || *at != '/') return 400;
    const char *query = memchr(at, '?', (size_t)(space - at));
    const char *stop = query ? query : space;
    if ((size_t)(stop - at) >= sizeof out->path) return 414;
    if (!decode_percent(at, (size_t)(stop - at), out->path, sizeof out->path)) return 400;
    return query && !parse_query(query + 1, space, out) ? 400 : 0;
}

static bool copy_header(const char *at, const char *end, const char *name, char *to,
                        size_t capacity) {
    size_t n = strlen(name);
    if ((size_t)(end - at) <= n || strncasecmp(at, name, n)) return false;
    at += n;
    while (at < end && *at == ' ') at++;
    while (end > at && end[-1] == ' ') end--;
    if ((size_t)(end - at) >= capacity) return false;
    memcpy(to, at, (size_t)(end - at));
    to[end - at] = '\0';
    return true;
}

/* Reads what a header declares about the body. @return 0 or a status */
static int parse_body_header(const char *at, const char *end, serve_request *out) {
    char text[128];
    if (copy_header(at, end, "content-length:", text, sizeof text)) {
        if (out->length >= 0 || !parse_body_length(text, &out->length)) return 400;
    } else if (!strncasecmp(at, "content-length:", 15) ||
               !strncasecmp(at, "transfer-encoding:", 18)) {
        return 400; /* its end would not be known */
    } else if (copy_header(at, end, "content-type:", text, sizeof text)) {
        out->json = !strncasecmp(text, "application/json", 16) && strchr(" ;", text[16]);
    } else if (copy_header(at, end, "expect:", text, sizeof text)) {
        out->expects = !strcasecmp(text, "100-continue");
    }
    return 0;
}

int request_parse(const char *text, size_t n, serve_request *out) {
    const char *end = text + n;
    *out = (serve_request){ .length = -1 };
    bool first = true;
    int hosts = 0;
    for (const char *at = text; at < end;) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        if (!newline) return 400;
        const char *stop = newline > at && newline[-1] == '\r' ? newline - 1 : newline;
        if (memchr(at, '\0', (size_t)(stop - at))) return 400;
        int status = first ? parse_line(at, stop, out) : 0;
        if (status) return status;
        if (!first && at == stop) break;
        if (!strncasecmp(at, "host:", 5)) { /* a second one may be meant for another server */
            if (hosts++ || !copy_header(at, stop, "host:", out->host, sizeof out->host)) return 400;
        }
        copy_header(at, stop, "authorization: bearer ", out->token, sizeof out->token);
        status = first ? 0 : parse_body_header(at, stop, out);
        if (status) return status;
        first = false;
        at = newline + 1;
    }
    const char *token = serve_query(out, "token");
    if (!*out->token && token) snprintf(out->token, sizeof out->token, "%s", token);
    return 0;
}
