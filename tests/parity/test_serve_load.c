/* A run that serves its page to many clients at once: each of 5,000 requests is answered, right, wrong and slow
 * ones; nothing is left open; and the run computes what it computes without them. */
#include "support/train.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

enum { CLIENTS = 8, REQUESTS = (SANITIZED ? 1600 : 5000) / CLIENTS, SILENT = 4, COMPARED = 20 };

static const struct {
    const char *text;
    int status, or_status; /* what it is answered with; 0: nothing, since its end never comes */
    int pieces;            /* in which it is sent */
} requests[] = {
    { "GET /api/runs HTTP/1.1\r\nHost: localhost\r\n\r\n", 200, 200, 1 },
    { "GET /api/series?run=0&key=loss&points=5 HTTP/1.1\r\nHost: localhost\r\n\r\n", 200, 404, 1 },
    { "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 200, 200, 1 },
    { "GET /api/events?run=0 HTTP/1.1\r\nHost: localhost\r\n\r\n", 200, 200, 5 },
    { "HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n", 200, 200, 1 },
    { "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 200, 200, 1 },
    { "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nbody", 405, 405, 1 },
    { "GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", 404, 404, 1 },
    { "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403, 403, 1 },
    { "\x80\xff\x01 garbage \x7f\r\n\r\n", 405, 400, 2 },
    { "GET / HT", 0, 0, 1 },
};

typedef struct client {
    pthread_t thread;
    int port, number;
    int answered, dropped, wrong;
    char what[160]; /* the first that was answered otherwise */
} client;

static int open_connection(int port) {
    struct sockaddr_in at = { .sin_family = AF_INET,
                              .sin_port = htons((uint16_t)port),
                              .sin_addr = { htonl(INADDR_LOOPBACK) } };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) == 0) return fd;
    close(fd);
    return -1;
}

/* Reads to the end of the answer. @return its status; -1 where a part of it is missing. */
static int read_answer(int fd, bool head) {
    static _Thread_local char text[1 << 17];
    size_t n = 0;
    for (ssize_t got; (got = recv(fd, text + n, sizeof text - 1 - n, 0)) > 0;) n += (size_t)got;
    text[n] = '\0';
    const char *length = strstr(text, "Content-Length: "), *body = strstr(text, "\r\n\r\n");
    if (!str_starts(text, "HTTP/1.1 ") || !length || !body) return -1;
    size_t expected = head ? 0 : (size_t)atol(length + strlen("Content-Length: "));
    return text + n - (body + 4) == (ptrdiff_t)expected ? atoi(text + strlen("HTTP/1.1 ")) : -1;
}

static bool send_in_pieces(int fd, const char *text, int pieces) {
    size_t n = strlen(text), each = n / (size_t)pieces + 1;
    for (size_t at = 0; at < n; at += each) {
        if (at) usleep(200);
        if (send(fd, text + at, MIN(each, n - at), MSG_NOSIGNAL) < 0) return false;
    }
    return true;
}

static void ask_once(client *c, size_t which) {
    int fd = open_connection(c->port), status = -1;
    if (fd >= 0 && send_in_pieces(fd, requests[which].text, requests[which].pieces) &&
        requests[which].status)
        status = read_answer(fd, str_starts(requests[which].text, "HEAD"));
    if (fd >= 0) close(fd);
    if (fd >= 0 && !requests[which].status) {
        c->dropped++;
        return;
    }
    c->answered++;
    if (status == requests[which].status || status == requests[which].or_status) return;
    if (!c->wrong++)
        snprintf(c->what, sizeof c->what, "answered with %d: %.100s", status, requests[which].text);
}

static void *run_client(void *ctx) {
    client *c = ctx;
    int silent[SILENT]; /* they hold a place and never ask */
    for (int i = 0; i < SILENT; i++) silent[i] = open_connection(c->port);
    for (int i = 0; i < REQUESTS; i++) ask_once(c, (size_t)(i + c->number) % COUNT_OF(requests));
    for (int i = 0; i < SILENT; i++) close(silent[i]);
    return NULL;
}

/* ---- a run that they look at ------------------------------------------------------------------- */
typedef struct visit {
    int port;
    volatile sig_atomic_t stop; /* ends the run */
    client all[CLIENTS];
} visit;

static void *run_visit(void *ctx) {
    visit *v = ctx;
    int fd = -1;
    for (int i = 0; i < 600 && fd < 0; i++) { /* until the run listens */
        fd = open_connection(v->port);
        if (fd < 0) usleep(50000);
    }
    if (fd >= 0) close(fd);
    for (int i = 0; i < CLIENTS; i++) {
        v->all[i] = (client){ .port = v->port, .number = i };
        if (pthread_create(&v->all[i].thread, NULL, run_client, &v->all[i])) abort();
    }
    for (int i = 0; i < CLIENTS; i++) pthread_join(v->all[i].thread, NULL);
    v->stop = SIGINT;
    return NULL;
}

static int free_port(void) {
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t n = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &n), 0);
    close(fd);
    return ntohs(at.sin_port);
}

static int open_files(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* Trains until it is stopped, or for a few steps. */
static void train_watched(test_folder *f, const char *name, visit *v) {
    settings common = { SETTINGS_OF_ONE("1"), "monitor.preset", "off", "training.steps",
                        "1000000" };
    char address[32], steps[16];
    train_options o = { .quiet = true, .ranks = 1, .stop = v ? &v->stop : NULL };
    snprintf(address, sizeof address, "127.0.0.1:%d", v ? v->port : 0);
    snprintf(steps, sizeof steps, "%d", COMPARED);
    settings visited = { "metrics.serve", address }, alone = { "training.stop", steps };
    assert_ok(run_with_options(f, name, common, v ? visited : alone, &o));
}

static void thousands_of_requests_change_nothing(void **state) {
    test_folder *f = *state;
    train_watched(f, "alone", NULL);
    int before = open_files(), answered = 0, dropped = 0;
    static visit v;
    pthread_t visitor;
    v.port = free_port();
    assert_int_equal(pthread_create(&visitor, NULL, run_visit, &v), 0);
    train_watched(f, "visited", &v);
    pthread_join(visitor, NULL);
    for (int i = 0; i < CLIENTS; i++) {
        if (v.all[i].wrong) fail_msg("client %d: %d %s", i, v.all[i].wrong, v.all[i].what);
        answered += v.all[i].answered;
        dropped += v.all[i].dropped;
    }
    assert_int_equal(answered + dropped, CLIENTS * REQUESTS);
    assert_true(dropped < CLIENTS * REQUESTS / 10);
    assert_int_equal(open_files(), before);
    json_t *alone = logged_steps(f, "alone"), *visited = logged_steps(f, "visited");
    assert_true(json_array_size(visited) >= COMPARED);
    for (size_t i = 0; i < COMPARED; i++) {
        assert_true(logged_number(alone, i, "loss") == logged_number(visited, i, "loss"));
        assert_true(logged_number(alone, i, "grad_norm") == logged_number(visited, i, "grad_norm"));
    }
    json_decref(alone);
    json_decref(visited);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(thousands_of_requests_change_nothing, folder_setup,
                                        folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
