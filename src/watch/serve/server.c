/* The server: one thread, one poll loop, a fixed number of connections.
 *
 *     accept -> READING --whole request--> WRITING --all sent--> CLOSING --peer closed--> closed
 *                  |                          |                     |
 *                  +--- too large, too slow --+--- too slow --------+--- too slow ----> closed
 *
 * Every answer closes its connection. While all slots are taken, the kernel's backlog holds new
 * connections, and a request that is slow to arrive gives up its slot first: whoever opens connections
 * and sends nothing delays others by CROWDED seconds at most. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "serve_internal.h"

enum { SLOTS = 64, BACKLOG = 512 };
/* Of a run, in memory: some 5 MB where steps have 40 values; at most 130 MB where they have thousands, as of ranks. */
enum { MOST_ROWS = 1 << 13, MOST_VALUES = 8 << 20 };
/* Seconds: for a request to arrive; the same when all slots are taken; without progress of an answer; for
 * a whole answer; for the peer to close. */
enum { ARRIVE = 10, CROWDED = 1, PROGRESS = 10, WHOLE = 120, LINGER = 1 };
/* Requests for /api/end that may wait at a time; seconds that pages have to read the last state when it ends. */
enum { MOST_HELD = SLOTS / 4, FAREWELL = 5 };

/* HELD: the request is answered when the server ends. STREAMING: another thread makes the answer. */
typedef enum { FREE, READING, BODY, HELD, STREAMING, WRITING, CLOSING } connection_state;
typedef struct http_connection {
    connection_state state;
    int fd;
    double since, deadline; /* since: when its state began */
    char in[REQUEST_BYTES];
    size_t got;
    str body;                 /* of a POST, as far as it came */
    size_t length;            /* that it will have */
    const serve_route *route; /* that it is for */
    serve_stream *stream;     /* of STREAMING */
    csv_parts *parts;         /* of WRITING: what follows `out` */
    str out;
    size_t sent;
} http_connection;

struct serve {
    int listener, wake[2]; /* wake: a byte ends the thread */
    bool loopback;
    char address[96], *token;
    served_site what;
    http_connection *slots;
    pthread_t thread;
    bool running;
    int leaving; /* pages that were notified of the end and have not sent /api/bye */
};

/* ---- access ---------------------------------------------------------------------------------- */
/* Takes the same time wherever the texts differ. */
static bool same_text(const char *a, const char *b) {
    size_t n = strlen(a), m = strlen(b);
    unsigned differ = n != m;
    for (size_t i = 0; i < m; i++)
        differ |= (unsigned char)(n ? a[i % n] : 0) ^ (unsigned char)b[i];
    return !differ;
}

/* A page of another site may make a browser ask for a name of its own that leads to this machine. Such a
 * request has that name as its host. */
static bool is_local_host(const char *host) {
    char name[256];
    snprintf(name, sizeof name, "%s", host);
    if (name[0] == '[') {
        char *end = strchr(name, ']');
        if (!end) return false;
        *end = '\0';
        return !strcmp(name + 1, "::1");
    }
    char *colon = strchr(name, ':');
    if (colon) *colon = '\0';
    struct in_addr v4;
    if (!strcmp(name, "localhost")) return true;
    return inet_pton(AF_INET, name, &v4) == 1 && ntohl(v4.s_addr) >> 24 == 127;
}

/* ---- answers --------------------------------------------------------------------------------- */
static const char *reason_of(int status) {
    static const struct {
        int status;
        const char *reason;
    } reasons[] = { { 200, "OK" },
                    { 400, "Bad Request" },
                    { 401, "Unauthorized" },
                    { 403, "Forbidden" },
                    { 404, "Not Found" },
                    { 405, "Method Not Allowed" },
                    { 411, "Length Required" },
                    { 413, "Content Too Large" },
                    { 415, "Unsupported Media Type" },
                    { 429, "Too Many Requests" },
                    { 414, "URI Too Long" },
                    { 431, "Request Header Fields Too Large" },
                    { 500, "Internal Server Error" } };
    for (size_t i = 0; i < COUNT_OF(reasons); i++)
        if (reasons[i].status == status) return reasons[i].reason;
    BUG("a status without a reason");
}

void put_headers(str *out, int status, const char *type, int64_t length) {
    str_add(out, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\n", status, reason_of(status), type);
    if (length >= 0)
        str_add(out, "Content-Length: %lld\r\n", (long long)length);
    else
        str_add(out, "Transfer-Encoding: chunked\r\n");
    str_add(out,
            "Connection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
            "Referrer-Policy: no-referrer\r\nX-Frame-Options: DENY\r\n"
            "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; "
            "script-src 'unsafe-inline'; connect-src 'self'; img-src data:\r\n");
    if (status == 401) str_add(out, "WWW-Authenticate: Bearer\r\n");
    if (status == 405) str_add(out, "Allow: GET, HEAD\r\n");
}

/* Makes a chunk of what `out` has from `from` on. */
static void frame_chunk(str *out, size_t from, bool last) {
    char size[24];
    size_t n = out->len - from, digits = (size_t)snprintf(size, sizeof size, "%zx\r\n", n);
    if (n) { /* an empty chunk would be the end */
        str_reserve(out, digits + 2);
        memmove(out->text + from + digits, out->text + from, n);
        memcpy(out->text + from, size, digits);
        out->len += digits;
        str_add(out, "\r\n");
    }
    if (last) str_add(out, "0\r\n\r\n");
}

static void put_answer(http_connection *s, serve_answer *a, bool head) {
    bool whole = !a->parts;
    s->out.len = 0;
    put_headers(&s->out, a->status, a->type, whole ? (int64_t)a->body.len : -1);
    if (a->file) str_add(&s->out, "Content-Disposition: attachment; filename=\"%s\"\r\n", a->file);
    str_add(&s->out, "\r\n");
    size_t from = s->out.len;
    if (!head && a->body.len) str_add_bytes(&s->out, a->body.text, a->body.len);
    if (!head && !whole) {
        frame_chunk(&s->out, from, false);
        s->parts = a->parts;
    } else {
        csv_free(a->parts);
    }
    a->parts = NULL;
    s->state = WRITING;
    s->sent = 0;
    s->since = time_now();
    s->deadline = s->since + PROGRESS;
}

static void put_refusal(http_connection *s, int status, const char *why) {
    serve_answer a = { .status = status, .type = "text/plain; charset=utf-8" };
    str_add(&a.body, "%s\n", why);
    put_answer(s, &a, false);
    str_free(&a.body);
}

static int count_state(const serve *v, connection_state state) {
    int n = 0;
    for (int i = 0; i < SLOTS; i++) n += v->slots[i].state == state;
    return n;
}

/* The whole body is there. */
static void take_body(serve *v, http_connection *s) {
    if (!s->body.text) str_add(&s->body, "%s", "");
    s->state = STREAMING;
    s->deadline = INFINITY;
    s->out.len = s->sent = 0;
    s->stream = stream_new(v->wake[1]);
    s->route->post(v->what.routes_ctx, s->body.text, s->body.len, s->stream);
    str_free(&s->body);
}

static bool has_route(const served_site *site, const char *path) {
    for (int i = 0; i < site->n_routes; i++)
        if (!strcmp(site->routes[i].path, path)) return true;
    return false;
}

/* A POST whose headers are `n` bytes of what has come; the rest is its body. */
static void begin_post(serve *v, http_connection *s, const serve_request *r, size_t n) {
    s->route = find_post(&v->what, r->path);
    if (!s->route && v->what.routes_only && !has_route(&v->what, r->path)) {
        put_refusal(s, 404, "the path does not exist");
    } else if (!s->route) {
        put_refusal(s, 405, "nothing is posted here");
    } else if (!r->json) { /* a page of another site cannot send it unasked */
        put_refusal(s, 415, "a body of Content-Type application/json is expected");
    } else if (r->length < 0) {
        put_refusal(s, 411, "a Content-Length is needed");
    } else if (r->length > BODY_BYTES) {
        put_refusal(s, 413, "the body is too large");
    } else {
        static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
        s->length = (size_t)r->length;
        s->state = BODY;
        s->deadline = time_now() + WHOLE;
        str_add_bytes(&s->body, s->in + n, MIN(s->got - n, s->length));
        if (s->body.len >= s->length)
            take_body(v, s);
        else if (r->expects && send(s->fd, go_on, sizeof go_on - 1, MSG_NOSIGNAL) < 0)
            s->deadline = 0;
    }
}

static void take_request(serve *v, http_connection *s, size_t n) {
    serve_request r;
    int status = request_parse(s->in, n, &r);
    if (status) {
        put_refusal(s, status, "this is not a request that is understood here");
    } else if (v->loopback && !is_local_host(r.host)) {
        put_refusal(s, 403, "the request is for a different host");
    } else if (v->token && !same_text(r.token, v->token)) {
        put_refusal(
            s, 401,
            "a token is needed: append ?token=... to the address, or send Authorization: Bearer ...");
    } else if (r.post) {
        begin_post(v, s, &r, n);
    } else if (!v->what.routes_only && !strcmp(r.path, "/api/end") &&
               count_state(v, HELD) < MOST_HELD) {
        s->state = HELD;
        s->deadline = INFINITY;
    } else {
        serve_answer a = { 0 };
        if (!strcmp(r.path, "/api/bye")) v->leaving--;
        answer_request(&v->what, &r, &a);
        put_answer(s, &a, r.head);
        str_free(&a.body);
    }
}

/* Shows the last state to the pages that wait for it. */
static void answer_held(serve *v) {
    serve_request r = { .path = "/api/runs" };
    for (int i = 0; i < SLOTS; i++) {
        if (v->slots[i].state != HELD) continue;
        serve_answer a = { 0 };
        answer_request(&v->what, &r, &a);
        put_answer(&v->slots[i], &a, false);
        str_free(&a.body);
        v->leaving++;
    }
}

/* ---- connections ------------------------------------------------------------------------------ */
static void close_slot(http_connection *s) {
    if (s->stream) stream_leave(s->stream);
    csv_free(s->parts);
    close(s->fd);
    str_free(&s->out);
    str_free(&s->body);
    *s = (http_connection){ .fd = -1 };
}

/* Closes a connection whose peer has gone. @param n result of recv or send @return whether bytes were moved */
static bool has_moved(http_connection *s, ssize_t n) {
    bool later = n < 0 && (errno == EAGAIN || errno == EINTR);
    if (n <= 0 && !later) close_slot(s);
    return n > 0;
}

static void read_request(serve *v, http_connection *s) {
    ssize_t n = recv(s->fd, s->in + s->got, sizeof s->in - s->got, 0);
    if (!has_moved(s, n)) return;
    s->got += (size_t)n;
    for (size_t i = 0; i < s->got; i++) {
        if (s->in[i] != '\n') continue;
        size_t next = i + 1 + (i + 1 < s->got && s->in[i + 1] == '\r');
        if (next < s->got && s->in[next] == '\n') {
            take_request(v, s, next + 1);
            return;
        }
    }
    if (s->got == sizeof s->in) put_refusal(s, 431, "the request is too large");
}

static void read_body(serve *v, http_connection *s) {
    char piece[16384];
    ssize_t n = recv(s->fd, piece, MIN(sizeof piece, s->length - s->body.len), 0);
    if (!has_moved(s, n)) return;
    str_add_bytes(&s->body, piece, (size_t)n);
    if (s->body.len >= s->length) take_body(v, s);
}

/* Sends what a stream has by now. The peer must take it within PROGRESS seconds; it may wait for it any time. */
static void feed_stream(http_connection *s) {
    bool more = stream_take(s->stream, &s->out);
    while (s->sent < s->out.len) {
        ssize_t n = send(s->fd, s->out.text + s->sent, s->out.len - s->sent, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) break;
        if (n <= 0) {
            close_slot(s);
            return;
        }
        s->sent += (size_t)n;
        s->deadline = time_now() + PROGRESS;
    }
    bool behind = s->sent < s->out.len;
    if (!behind) {
        s->out.len = s->sent = 0;
        s->deadline = INFINITY;
    } else if (isinf(s->deadline)) {
        s->deadline = time_now() + PROGRESS;
    }
    if (behind || more) return;
    stream_leave(s->stream);
    s->stream = NULL;
    shutdown(s->fd, SHUT_WR);
    s->state = CLOSING;
    s->deadline = time_now() + LINGER;
}

/* Replaces what was sent by the next part. A part that cannot be read closes the connection, so that the peer sees that its
 * answer is not whole. */
static void put_next_part(http_connection *s) {
    bool more;
    s->out.len = s->sent = 0;
    err e = csv_next(s->parts, &s->out, &more);
    frame_chunk(&s->out, 0, !more);
    s->since = time_now();
    s->deadline = s->since + PROGRESS;
    if (!more && !e) {
        csv_free(s->parts);
        s->parts = NULL;
    }
    if (e) close_slot(s);
    err_free(e);
}

static void write_answer(http_connection *s) {
    ssize_t n = send(s->fd, s->out.text + s->sent, s->out.len - s->sent, MSG_NOSIGNAL);
    if (!has_moved(s, n)) return;
    s->sent += (size_t)n;
    double now = time_now();
    s->deadline = fmin(now + PROGRESS, s->since + WHOLE);
    if (s->sent < s->out.len) return;
    if (s->parts) {
        put_next_part(s);
        return;
    }
    shutdown(s->fd, SHUT_WR); /* closing at once could lose what the peer has not read yet */
    s->state = CLOSING;
    s->deadline = now + LINGER;
}

static void accept_one(serve *v) {
    http_connection *free_slot = NULL;
    for (int i = 0; i < SLOTS && !free_slot; i++)
        if (v->slots[i].state == FREE) free_slot = &v->slots[i];
    if (!free_slot) return;
    int fd = accept4(v->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    double now = time_now();
    *free_slot =
        (http_connection){ .state = READING, .fd = fd, .since = now, .deadline = now + ARRIVE };
}

/* Ends connections that are too slow. @return milliseconds until the next may be. */
static int expire_connections(serve *v, bool crowded) {
    double now = time_now(), next = now + 3600;
    for (int i = 0; i < SLOTS; i++) {
        http_connection *s = &v->slots[i];
        if (s->state == FREE) continue;
        double deadline = s->deadline;
        if (crowded && s->state == READING) deadline = fmin(deadline, s->since + CROWDED);
        if (deadline <= now)
            close_slot(s);
        else
            next = fmin(next, deadline);
    }
    return (int)ceil(1000 * (next - now));
}

static void serve_slot(serve *v, http_connection *s, short events) {
    char rest[4096]; /* of no interest */
    if (events & (POLLERR | POLLNVAL))
        close_slot(s);
    else if (s->state == READING)
        read_request(v, s);
    else if (s->state == BODY)
        read_body(v, s);
    else if (s->state == STREAMING && events & POLLOUT)
        feed_stream(s);
    else if (s->state == WRITING && events & (POLLOUT | POLLHUP))
        write_answer(s);
    else if (s->state == CLOSING || s->state == HELD || s->state == STREAMING)
        has_moved(s, recv(s->fd, rest, sizeof rest, 0));
}

/* Reads the pipe: streams that have something to send, or the end. */
static bool asked_to_end(serve *v) {
    char bytes[256];
    bool end = false;
    for (ssize_t n; (n = read(v->wake[0], bytes, sizeof bytes)) > 0;)
        end = end || memchr(bytes, 'x', (size_t)n);
    for (int i = 0; i < SLOTS; i++)
        if (v->slots[i].state == STREAMING) feed_stream(&v->slots[i]);
    return end;
}

static void *run_server(void *ctx) {
    serve *v = ctx;
    struct pollfd polled[SLOTS + 2];
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), 19); /* training comes first */
    double end = INFINITY;                                    /* set when it is to end */
    for (;;) {
        int left = count_state(v, FREE), wait = expire_connections(v, !left);
        if (isfinite(end)) wait = MIN(wait, (int)ceil(1000 * fmax(0, end - time_now())));
        for (int i = 0; i < SLOTS; i++) {
            const http_connection *s = &v->slots[i];
            bool behind = s->state == STREAMING && s->sent < s->out.len;
            polled[i] = (struct pollfd){ s->state == FREE ? -1 : s->fd,
                                         s->state == WRITING ? POLLOUT
                                         : behind            ? POLLIN | POLLOUT
                                                             : POLLIN,
                                         0 };
        }
        bool has_free = count_state(v, FREE) > 0, ends = isfinite(end);
        polled[SLOTS] = (struct pollfd){ has_free ? v->listener : -1, POLLIN, 0 };
        polled[SLOTS + 1] = (struct pollfd){ ends ? -1 : v->wake[0], POLLIN, 0 };
        if (poll(polled, SLOTS + 2, wait) < 0 && errno != EINTR) return NULL;
        if (polled[SLOTS + 1].revents && asked_to_end(v)) {
            answer_held(v);
            end = time_now() + FAREWELL;
        }
        if (isfinite(end) && (v->leaving <= 0 || time_now() >= end)) return NULL;
        for (int i = 0; i < SLOTS; i++)
            if (polled[i].revents && v->slots[i].state != FREE)
                serve_slot(v, &v->slots[i], polled[i].revents);
        if (polled[SLOTS].revents) accept_one(v);
    }
}

/* ---- listening --------------------------------------------------------------------------------- */
/* Splits "127.0.0.1:8080", "[::1]:8080", "localhost:8080" or "8080". */
static err split_address(const char *text, char *host, size_t capacity, char *port) {
    const char *colon = strrchr(text, ':');
    const char *number = colon ? colon + 1 : text;
    size_t n = colon ? (size_t)(colon - text) : 0;
    int64_t value = -1;
    bool fine = number_parse_int(number, &value) && value >= 0 && value <= 65535;
    if (n > 1 && text[0] == '[' && text[n - 1] == ']') text++, n -= 2;
    if (!fine || n >= capacity || (n && memchr(text, ' ', n)))
        return err_hint(ERR("\"%.100s\" is not an address to listen on", text),
                        "write 127.0.0.1:8080, [::1]:8080, or a port alone for this machine only");
    snprintf(host, capacity, "%.*s", (int)n, text);
    if (n == 0 || !strcmp(host, "localhost")) snprintf(host, capacity, "127.0.0.1");
    snprintf(port, 8, "%lld", (long long)value);
    return OK;
}

static bool listens_locally(const struct sockaddr_storage *a) {
    if (a->ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static int open_listener(const struct addrinfo *to) {
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int yes = 1;
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(fd, to->ai_addr, to->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) return fd;
    int code = errno;
    close(fd);
    errno = code;
    return -1;
}

static err serve_listen(serve *v, const char *address) {
    char host[64], port[8], name[64];
    TRY(split_address(address, host, sizeof host, port));
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_PASSIVE };
    struct addrinfo *to = NULL;
    if (getaddrinfo(host, port, &hints, &to) != 0)
        return err_hint(ERR("\"%s\" is not an address to listen on", host),
                        "give a number such as 127.0.0.1, or 0.0.0.0 for all of this machine's");
    v->listener = open_listener(to);
    int code = errno;
    freeaddrinfo(to);
    if (v->listener < 0)
        return err_hint(ERR("cannot listen on %s: %s", address, strerror(code)),
                        "choose another port, or 0 for any that is free");
    struct sockaddr_storage at;
    socklen_t n = sizeof at;
    if (getsockname(v->listener, (struct sockaddr *)&at, &n) != 0 ||
        getnameinfo((struct sockaddr *)&at, n, name, sizeof name, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        return ERR("cannot find out where %s listens: %s", address, strerror(errno));
    bool v6 = strchr(name, ':') != NULL;
    snprintf(v->address, sizeof v->address, v6 ? "[%s]:%s" : "%s:%s", name, port);
    v->loopback = listens_locally(&at);
    if (v->loopback || v->token) return OK;
    return err_hint(ERR("%s can be reached from other machines, and no token is set", v->address),
                    "set a token (--token, metrics.serve_token), or listen on 127.0.0.1");
}

/* ---- starting and stopping ---------------------------------------------------------------------- */
/* The last part of a path, by which people distinguish runs; two alike get a number. */
static char *name_run(const serve *v, int i, const char *dir) {
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    size_t from = n;
    while (from > 0 && dir[from - 1] != '/') from--;
    str name = { 0 };
    str_add(&name, "%.*s", (int)(n - from), dir + from);
    for (int k = 0; k < i; k++)
        if (!strcmp(v->what.runs[k].name, name.text)) {
            str_add(&name, " (%d)", i);
            break;
        }
    return name.text;
}

err serve_start(const serve_options *o, serve **out) {
    serve *v = mem_alloc(sizeof *v);
    err e = OK;
    v->listener = v->wake[0] = v->wake[1] = -1;
    v->token = o->token && *o->token ? strdup(o->token) : NULL;
    if (v->token && strlen(v->token) >= SECRET_MOST)
        e = err_hint(ERR("the token has %zu characters; a request carries at most %d",
                         strlen(v->token), SECRET_MOST - 1),
                     "use a shorter one");
    v->slots = mem_alloc(SLOTS * sizeof *v->slots);
    v->what = (served_site){ .runs = mem_alloc((size_t)MAX(o->n_runs, 1) * sizeof *v->what.runs),
                             .routes = o->routes,
                             .n_routes = o->n_routes,
                             .routes_ctx = o->routes_ctx,
                             .routes_only = o->routes_only,
                             .plan_path = o->plan_path };
    for (; v->what.n_runs < o->n_runs; v->what.n_runs++) {
        const char *dir = o->runs[v->what.n_runs];
        v->what.runs[v->what.n_runs] = (served_run){ strdup(dir), name_run(v, v->what.n_runs, dir),
                                                     series_new(dir), -INFINITY };
        series_set_most(v->what.runs[v->what.n_runs].all, MOST_ROWS, MOST_VALUES);
    }
    if (e) goto cleanup;
    TRY_CLEAN(serve_listen(v, o->address));
    if (pipe2(v->wake, O_CLOEXEC | O_NONBLOCK) != 0) {
        e = ERR("cannot make a pipe: %s", strerror(errno));
        goto cleanup;
    }
    v->running = pthread_create(&v->thread, NULL, run_server, v) == 0;
    if (!v->running) e = ERR("cannot start a thread to serve %s", v->address);
cleanup:
    if (e) serve_stop(v);
    if (!e) *out = v;
    return e;
}

int serve_held(const serve *s) { return count_state(s, HELD); }

const char *serve_address(const serve *s) { return s->address; }

void serve_stop(serve *v) {
    if (!v) return;
    if (v->running) {
        struct pollfd pipe = { .fd = v->wake[1], .events = POLLOUT };
        while (write(v->wake[1], "x", 1) != 1 && errno == EAGAIN) poll(&pipe, 1, 100);
        pthread_join(v->thread, NULL);
    }
    for (int i = 0; i < SLOTS; i++)
        if (v->slots[i].state != FREE) close_slot(&v->slots[i]);
    const int fds[] = { v->listener, v->wake[0], v->wake[1] };
    for (size_t i = 0; i < COUNT_OF(fds); i++)
        if (fds[i] >= 0) close(fds[i]);
    for (int i = 0; i < v->what.n_runs; i++) {
        free(v->what.runs[i].dir);
        free(v->what.runs[i].name);
        series_free(v->what.runs[i].all);
    }
    free(v->what.runs);
    free(v->slots);
    free(v->token);
    free(v);
}
