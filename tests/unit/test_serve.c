/* The server: what it answers, and that nothing that is sent to it does harm. */
#include "support/folder.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "serve/serve_internal.h"

typedef struct site {
    test_folder *folder;
    serve *s;
    int port;
} site;

static void write_run(test_folder *f, const char *name, int steps) {
    str text = { 0 };
    char path[96];
    for (int i = 1; i <= steps; i++)
        str_add(
            &text,
            "{\"step\":%d,\"tokens\":%d,\"loss\":%g,\"spike_count\":0,\"sources\":{\"a\\\"b\":{"
            "\"loss\":2}},\"validation\":{\"web\":1},\"blocks\":{\"grad_norm\":[3,4]},\"time\":%d%s}\n",
            i, 10 * i, 5.0 / i, 1000 + i,
            i % 10 ? ""
                   : ",\"ranks\":{\"busy_s\":[1,1.5],\"wait_s\":[0.5,0],\"ratio\":[1,1.5]},"
                     "\"comm\":{\"tp:all-reduce\":{\"s\":0.25,\"bytes\":64}}");
    assert_ok(io_make_dirs(in_folder(f, name)));
    snprintf(path, sizeof path, "%s/metrics.jsonl", name);
    folder_write(f, path, text.text);
    str_free(&text);
    snprintf(path, sizeof path, "%s/events.jsonl", name);
    folder_write(f, path,
                 "{\"event\":\"sample\",\"step\":3,\"text\":\"hello\"}\njunk\n{\"event\":\"sav");
    snprintf(path, sizeof path, "%s/launch.jsonl", name);
    folder_write(f, path,
                 "{\"attempt\":0,\"time\":1,\"status\":137,\"checkpoint\":4,\"rank\":1}\n"
                 "{\"attempt\":1,\"time\":2,\"status\":0,\"checkpoint\":9,\"rank\":-1}\n");
    snprintf(path, sizeof path, "%s/timetable.json", name);
    folder_write(f, path, steps > 9 ? "{\"stages\": 2,\n\"tasks\": []}\n" : "{\"stages\": 2,");
    snprintf(path, sizeof path, "%s/config.yaml", name);
    folder_write(
        f, path,
        "metrics:\n  serve: \"0\"\n  serve_token: \"secret\"\nalerts:\n  webhook: \"https://secret\"\n");
    folder_write(f, "outside.txt", "not to be served");
}

static site open_site(void **state, const char *token) {
    site t = { .folder = *state };
    write_run(t.folder, "a", 100);
    write_run(t.folder, "b/a", 3);
    const char *runs[] = { in_folder(t.folder, "a"), in_folder(t.folder, "b/a") };
    assert_ok(serve_start(
        &(serve_options){ .address = "0", .token = token, .runs = runs, .n_runs = 2 }, &t.s));
    assert_true(str_starts(serve_address(t.s), "127.0.0.1:"));
    t.port = atoi(serve_address(t.s) + strlen("127.0.0.1:"));
    return t;
}

static int connect_to(const site *t) {
    struct sockaddr_in at = { .sin_family = AF_INET,
                              .sin_port = htons((uint16_t)t->port),
                              .sin_addr = { htonl(INADDR_LOOPBACK) } };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

/* Sends n bytes and returns all that comes back, owned. */
static char *exchange(const site *t, const char *bytes, size_t n) {
    int fd = connect_to(t);
    str got = { 0 };
    str_add(&got, "%s", "");
    while (n > 0) {
        ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
        if (sent <= 0) break; /* it has answered already */
        bytes += sent;
        n -= (size_t)sent;
    }
    shutdown(fd, SHUT_WR);
    for (;;) {
        char piece[4096];
        ssize_t came = recv(fd, piece, sizeof piece, 0);
        if (came <= 0) break;
        str_add_bytes(&got, piece, (size_t)came);
    }
    close(fd);
    return got.text;
}

static char *ask(const site *t, const char *path) {
    str text = { 0 };
    str_add(&text, "GET %s HTTP/1.1\r\nHost: localhost:%d\r\n\r\n", path, t->port);
    char *got = exchange(t, text.text, text.len);
    str_free(&text);
    return got;
}

static void expect(const site *t, const char *path, int status, const char *words) {
    char *got = ask(t, path), line[32];
    snprintf(line, sizeof line, "HTTP/1.1 %d ", status);
    if (!str_starts(got, line)) fail_msg("%s: expected %d, got %.60s", path, status, got);
    if (!strstr(got, words)) fail_msg("%s: no \"%s\" in %s", path, words, got);
    free(got);
}

static void runs_are_served(void **state) {
    site t = open_site(state, NULL);
    expect(&t, "/", 200, "<!doctype html>");
    expect(&t, "/", 200, "Content-Security-Policy: default-src 'none'");
    expect(&t, "/api/runs", 200, "\"name\":\"a\",\"rows\":100,\"step\":100.0");
    expect(&t, "/api/runs", 200, "\"name\":\"a (1)\",\"rows\":3");
    expect(&t, "/api/series?run=0&key=loss&points=2&from=1&to=4", 200,
           "{\"step\":[2,4],\"mean\":[3.75,1.458335],\"low\":[2.5,1.25],\"high\":[5,1.66667]}");
    expect(&t, "/api/series?run=0&key=sources.a%5C%22b.loss&points=1", 200, "\"mean\":[2]");
    expect(&t, "/api/csv?run=1&key=loss", 200, "step,\"loss\"\n1,5\n2,2.5\n3,1.66667\n");
    expect(&t, "/api/csv?run=1&key=sources.a%5C%22b.loss", 200,
           "step,\"sources.a\\\"\"b.loss\"\n1,2\n");
    expect(&t, "/api/events?run=0", 200, "[{\"event\":\"sample\",\"step\":3,\"text\":\"hello\"},{");
    expect(&t, "/api/events?run=0", 200,
           "\"rank\":1,\"event\":\"failed attempt\",\"step\":4}]"); /* 0 is not a failure */
    expect(&t, "/api/ranks?run=0&windows=2", 200,
           "{\"ranks\":2,\"step\":[90,100],\"busy\":[[1,1.5],[1,1.5]],\"wait\":[[0.5,0],[0.5,0]],"
           "\"ratio\":[[1,1.5],[1,1.5]]}");
    expect(&t, "/api/ranks?run=1", 200, "{\"ranks\":0,\"step\":[]}");
    expect(&t, "/api/ranks?run=9", 404, "the run does not exist");
    expect(&t, "/api/timetable?run=0", 200, "{\"stages\":2,\"tasks\":[]}");
    expect(&t, "/api/timetable?run=1", 200, "\r\n\r\nnull"); /* damaged */
    expect(&t, "/api/timetable?run=9", 404, "the run does not exist");
    expect(&t, "/api/runs", 200, "\"time\":1100.0,\"status\":{\"state\":\"unknown\",\"step\":100,");
    expect(&t, "/api/config?run=0", 200, "serve: \"0\"");
    char *config = ask(&t, "/api/config?run=0");
    assert_null(strstr(config, "secret"));
    free(config);
    expect(&t, "/api/runs?run=7", 200, "");
    expect(&t, "/api/series?run=7&key=loss", 404, "the run does not exist");
    expect(&t, "/api/series?run=0&key=nothing", 404, "no such metric");
    expect(&t, "/nothing", 404, "not found");
    serve_stop(t.s);
}

static void prometheus_reads_metrics(void **state) {
    site t = open_site(state, NULL);
    expect(&t, "/metrics", 200, "\ningot_train_loss{run=\"a\"} 0.05");
    expect(&t, "/metrics", 200, "# TYPE ingot_train_loss gauge\n");
    expect(&t, "/metrics", 200, "ingot_step{run=\"a (1)\"} 3\n");
    expect(&t, "/metrics", 200, "ingot_train_spikes{run=\"a\"} 0\n");
    expect(&t, "/metrics", 200, "ingot_eval_loss{run=\"a\",set=\"web\"} 1\n");
    expect(&t, "/metrics", 200, "ingot_eval_ppl{run=\"a\",set=\"web\"} 2.7182");
    expect(&t, "/metrics", 200, "ingot_train_loss_by_source{run=\"a\",source=\"a\\\\\\\"b\"} 2\n");
    expect(&t, "/metrics", 200, "ingot_time_ratio_by_rank{run=\"a\",rank=\"1\"} 1.5\n");
    expect(&t, "/metrics", 200,
           "ingot_communication_bytes_by{run=\"a\",collective=\"tp:all-reduce\"} 64\n");
    expect(&t, "/metrics", 200, "ingot_train_grad_norm_by_block{run=\"a\",block=\"0\"} 3\n");
    expect(&t, "/metrics", 200, "ingot_train_grad_norm_by_block{run=\"a\",block=\"other\"} 4\n");
    serve_stop(t.s);
}

static bool is_served_name(const char *name, size_t n) {
    str served = { 0 };
    char label[16];
    bool found = false;
    for (int i = 0; i < METRICS && !found; i++) {
        prometheus_name(&metric_table[i], &served, label);
        found = served.len == n && !memcmp(served.text, name, n);
    }
    str_free(&served);
    return found;
}

/* Every metric that the dashboard asks for is one that is served. */
static void the_state_of_runs_is_served(void **state) {
    test_folder *f = *state;
    run_status s = status_none();
    status_begin(f->path, 3, 200, 5000, &s);
    s.restarts = 2;
    s.checkpoint = 90;
    assert_ok(io_make_dirs(in_folder(f, "a")));
    assert_ok(status_write(in_folder(f, "a"), &s));
    site t = open_site(state, NULL);
    expect(&t, "/api/runs", 200, "\"status\":{\"state\":\"running\",\"step\":100,\"steps\":200,");
    expect(&t, "/metrics", 200, "ingot_run_state{run=\"a\",state=\"running\"} 1\n");
    expect(&t, "/metrics", 200, "ingot_run_state{run=\"a\",state=\"died\"} 0\n");
    expect(&t, "/metrics", 200, "ingot_run_steps{run=\"a\"} 200\n");
    expect(&t, "/metrics", 200, "ingot_run_restarts{run=\"a\"} 2\n");
    expect(&t, "/metrics", 200, "ingot_run_checkpoint_step{run=\"a\"} 90\n");
    expect(&t, "/metrics", 200, "ingot_run_last_step_time_seconds{run=\"a\"} ");
    serve_stop(t.s);
}

/* A page that waits for the end: told of the last state, and then served until it has read the rest. */
typedef struct last_reader {
    const site *t;
    char *end, *after;
} last_reader;
static void *read_the_end(void *ctx) {
    last_reader *r = ctx;
    str text = { 0 };
    str_add(&text, "GET /api/end HTTP/1.1\r\nHost: localhost\r\n\r\n");
    int fd = connect_to(r->t);
    str got = { 0 };
    char piece[4096];
    ssize_t n = send(fd, text.text, text.len, MSG_NOSIGNAL);
    while (n > 0 && (n = recv(fd, piece, sizeof piece, 0)) > 0)
        str_add_bytes(&got, piece, (size_t)n);
    close(fd);
    r->end = got.text;
    r->after = ask(r->t, "/api/series?run=0&key=loss&points=1");
    free(ask(r->t, "/api/bye"));
    str_free(&text);
    return NULL;
}

static void pages_see_the_end(void **state) {
    site t = open_site(state, NULL);
    last_reader r[2] = { { &t }, { &t } };
    pthread_t thread[2];
    for (int i = 0; i < 2; i++) pthread_create(&thread[i], NULL, read_the_end, &r[i]);
    for (int held = 0; held < 2; usleep(1000)) /* until both requests wait */
        held = serve_held(t.s);
    run_status s;
    status_begin(in_folder(t.folder, "a"), 100, 100, NAN, &s);
    s.state = RUN_FINISHED;
    assert_ok(status_write(in_folder(t.folder, "a"), &s));
    serve_stop(t.s);
    for (int i = 0; i < 2; i++) {
        pthread_join(thread[i], NULL);
        assert_non_null(strstr(r[i].end, "\"state\":\"finished\",\"step\":100,\"steps\":100"));
        assert_true(str_starts(r[i].after, "HTTP/1.1 200"));
        free(r[i].end);
        free(r[i].after);
    }
}

static void the_dashboard_names_metrics(void **state) {
    char *text, *at;
    int names = 0;
    site t = open_site(state, NULL);
    char *served = ask(&t, "/metrics"), help[128];
    assert_ok(io_read(FIXTURES "/../../docs/grafana/ingot.json", 1 << 20, &text, NULL));
    for (at = text; (at = strstr(at, "\"ingot_")); names++) {
        size_t n = strcspn(++at, "{,\"");
        snprintf(help, sizeof help, "# HELP %.*s ", (int)n,
                 at); /* the state of runs is not in the table */
        if (!is_served_name(at, n) && !strstr(served, help))
            fail_msg("%.*s is not served", (int)n, at);
    }
    assert_true(names > 35);
    free(text);
    free(served);
    serve_stop(t.s);
}

static void new_steps_are_seen(void **state) {
    site t = open_site(state, NULL);
    expect(&t, "/api/runs", 200, "\"rows\":3,");
    write_run(t.folder, "b/a", 7);
    for (int i = 0; i < 200; i++) { /* it looks twice per second */
        char *got = ask(&t, "/api/runs");
        bool seen = strstr(got, "\"rows\":7,") != NULL;
        free(got);
        if (seen) {
            serve_stop(t.s);
            return;
        }
        usleep(50000);
    }
    fail_msg("the new steps are not served");
}

/* The body of a chunked answer, owned. */
static str join_chunks(const char *answer) {
    str out = { 0 };
    str_add(&out, "%s", "");
    const char *at = strstr(answer, "\r\n\r\n");
    assert_non_null(at);
    for (at += 4;;) {
        char *end;
        size_t n = strtoul(at, &end, 16);
        assert_true(str_starts(end, "\r\n"));
        if (!n) break;
        str_add_bytes(&out, end + 2, n);
        at = end + 2 + n + 2;
    }
    return out;
}

/* A download of any length takes the memory of one part, reads the file once, and has every step with all digits. */
static void a_long_csv_comes_in_parts(void **state) {
    enum { STEPS = 30000, PART = 1 << 20 };
    test_folder *f = *state;
    str lines = { 0 }, expected = { 0 }, got = { 0 };
    str_add(&expected, "step,\"sources.a b.tokens\"\n");
    for (long long i = 1; i <= STEPS; i++) {
        str_add(&lines,
                "{\"step\":%lld,\"loss\":%.9g,\"text\":\"%080d\",\"sources\":{\"a\":{\"tokens\":1}",
                i, 5.0 / (double)i, 0);
        if (i % 3) str_add(&lines, ",\"a b\":{\"loss\":0.1,\"tokens\":%lld}", 12345678901LL * i);
        if (i % 3) str_add(&expected, "%lld,%lld\n", i, 12345678901LL * i);
        str_add(&lines, "}}\n");
    }
    assert_ok(io_make_dirs(in_folder(f, "long")));
    folder_write(f, "long/metrics.jsonl", lines.text);
    csv_parts *c = csv_open(in_folder(f, "long"), "sources.a b.tokens", &got);
    bool more = true;
    size_t parts = 0, before = 0;
    for (; more; parts++) {
        assert_ok(csv_next(c, &got, &more));
        assert_true(got.len - before < PART);
        before = got.len;
    }
    csv_free(c);
    assert_int_equal(parts, (lines.len + PART - 1) / PART + 1); /* the last one finds the end */
    assert_string_equal(got.text, expected.text);

    const char *run = in_folder(f, "long");
    site t = { .folder = f };
    assert_ok(serve_start(&(serve_options){ .address = "0", .runs = &run, .n_runs = 1 }, &t.s));
    t.port = atoi(serve_address(t.s) + strlen("127.0.0.1:"));
    char *answer = ask(&t, "/api/csv?run=0&key=sources.a+b.tokens");
    str body = join_chunks(answer);
    assert_string_equal(body.text, expected.text);
    expect(&t, "/api/csv?run=0&key=nothing", 404, "no such metric");
    serve_stop(t.s);
    free(answer);
    str_free(&body);
    str_free(&lines);
    str_free(&expected);
    str_free(&got);
}

static void a_token_is_needed(void **state) {
    site t = open_site(state, "s3cret");
    expect(&t, "/", 401, "WWW-Authenticate: Bearer");
    expect(&t, "/metrics?token=wrong", 401, "");
    expect(&t, "/api/runs?token=s3cre", 401, "");
    expect(&t, "/api/runs?token=s3crets3cret", 401, "");
    expect(&t, "/api/runs?token=s3cret", 200, "\"runs\"");
    const char bearer[] =
        "GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer s3cret\r\n\r\n";
    char *got = exchange(&t, bearer, strlen(bearer));
    assert_true(str_starts(got, "HTTP/1.1 200 "));
    free(got);
    serve_stop(t.s);
}

/* A token of 600 characters is one like any other; one that no request can carry is refused, as is none where other
 * machines reach the page. */
static void tokens_of_any_length(void **state) {
    char token[601], path[700], longest[2000];
    memset(token, 'k', sizeof token - 1);
    token[600] = '\0';
    site t = open_site(state, token);
    snprintf(path, sizeof path, "/api/runs?token=%s", token);
    expect(&t, path, 200, "\"runs\"");
    path[strlen(path) - 1] = 'x';
    expect(&t, path, 401, "");
    str bearer = { 0 };
    str_add(&bearer,
            "GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n\r\n", token);
    char *got = exchange(&t, bearer.text, bearer.len);
    assert_true(str_starts(got, "HTTP/1.1 200 "));
    free(got);
    str_free(&bearer);
    serve_stop(t.s);
    memset(longest, 'k', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    serve *s = NULL;
    assert_error(serve_start(&(serve_options){ .address = "0", .token = longest }, &s),
                 "1999 characters");
    assert_error(serve_start(&(serve_options){ .address = "0.0.0.0:0", .token = "" }, &s),
                 "no token is set");
    assert_ok(serve_start(&(serve_options){ .address = "0.0.0.0:0", .token = "some" }, &s));
    serve_stop(s);
}

static void a_second_host_is_refused(void **state) {
    site t = open_site(state, NULL);
    const char twice[] = "GET /api/runs HTTP/1.1\r\nHost: evil.example\r\nHost: 127.0.0.1\r\n\r\n";
    char *got = exchange(&t, twice, strlen(twice));
    assert_true(str_starts(got, "HTTP/1.1 400 "));
    free(got);
    serve_stop(t.s);
}

/* No path leads to a file, however it is written. */
static void paths_reach_nothing(void **state) {
    static const char *const paths[] = { "/../outside.txt",
                                         "/%2e%2e/outside.txt",
                                         "/..%2foutside.txt",
                                         "//etc/passwd",
                                         "/a/metrics.jsonl",
                                         "/metrics.jsonl",
                                         "/api/config?run=../../etc/passwd",
                                         "/api/config?run=-1",
                                         "/api/config?run=1e99",
                                         "/api/events?run=%2fetc%2fpasswd",
                                         "/api/series?run=0&key=../../outside.txt" };
    site t = open_site(state, NULL);
    for (size_t i = 0; i < COUNT_OF(paths); i++) {
        char *got = ask(&t, paths[i]);
        if (!str_starts(got, "HTTP/1.1 404 ")) fail_msg("%s: %.60s", paths[i], got);
        assert_null(strstr(got, "not to be served"));
        assert_null(strstr(got, "root:"));
        free(got);
    }
    serve_stop(t.s);
}

static void expect_raw(const site *t, const char *bytes, size_t n, const char *status) {
    char *got = exchange(t, bytes, n);
    if (!str_starts(got, status)) fail_msg("%.40s: %.60s, not %s", bytes, got, status);
    free(got);
}

static void hostile_requests_get_clean_errors(void **state) {
    static const struct {
        const char *text, *status;
    } cases[] = {
        { "POST / HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 405 " },
        { "DELETE /api/runs HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 405 " },
        { "GET\r\n\r\n", "HTTP/1.1 400 " },
        { "\r\n\r\n", "HTTP/1.1 400 " },
        { "GET / HTTP/2\r\n\r\n", "HTTP/1.1 400 " },
        { "GET http://evil/ HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 400 " },
        { "GET /%zz HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 400 " },
        { "GET /% HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 400 " },
        { "GET /%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 400 " },
        { "GET /?a=1&b=2&c=3&d=4&e=5&f=6&g=7&h=8&i=9&a=1&b=2&c=3&d=4&e=5&f=6&g=7&h=8&i=9&a=1&b=2&c=3&d=4&e=5&f=6&g=7 HTTP/1.1\r\nHost: localhost\r\n\r\n",
          "HTTP/1.1 400 " },
        { "GET /?muchtoolonganame=1 HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 400 " },
        { "GET /?novalue HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 400 " },
        { "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", "HTTP/1.1 403 " }, /* DNS rebinding */
        { "GET / HTTP/1.1\r\nHost: 127.0.0.1.evil.example\r\n\r\n", "HTTP/1.1 403 " },
        { "GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", "HTTP/1.1 403 " },
        { "GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 403 " },
        { "GET / HTTP/1.1\nHost: [::1]:80\n\n", "HTTP/1.1 200 " },
        { "HEAD / HTTP/1.1\r\nHost: 127.1.2.3\r\n\r\n", "HTTP/1.1 200 " },
        { "GET /api/series?run=0&key=loss&points=1e30&from=nan&to=-1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
          "HTTP/1.1 200 " },
    };
    site t = open_site(state, NULL);
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        expect_raw(&t, cases[i].text, strlen(cases[i].text), cases[i].status);
    str big = { 0 };
    str_add(&big, "GET / HTTP/1.1\r\nHost: localhost\r\n");
    for (int i = 0; i < 1000; i++) str_add(&big, "X-%d: %0100d\r\n", i, i);
    expect_raw(&t, big.text, big.len, "HTTP/1.1 431 ");
    big.len = 0;
    str_add(&big, "GET /%0300d HTTP/1.1\r\nHost: localhost\r\n\r\n", 7);
    expect_raw(&t, big.text, big.len, "HTTP/1.1 414 ");
    big.len = 0;
    str_add(&big, "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n%0*d", 20000,
            0);
    expect_raw(&t, big.text, big.len, "HTTP/1.1 200 "); /* a body is not read */
    str_free(&big);
    static const char nul[] = "GET / HTTP/1.1\r\nHo\0st: localhost\r\n\r\n";
    expect_raw(&t, nul, sizeof nul - 1, "HTTP/1.1 400 ");
    serve_stop(t.s);
}

/* Any bytes at all, and requests with one byte changed: it answers the next one as if nothing was. */
static void random_bytes_do_no_harm(void **state) {
    site t = open_site(state, NULL);
    rng_key key = rng_key_of(7, 7);
    const char model[] =
        "GET /api/series?run=0&key=loss&points=9 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (uint64_t i = 0; i < 400; i++) {
        char bytes[sizeof model];
        memcpy(bytes, model, sizeof model);
        size_t at = (size_t)rng_below(key, 2 * i, sizeof model - 1);
        bytes[at] = (char)rng_below(key, 2 * i + 1, 256);
        if (i % 4 == 0)
            for (size_t k = 0; k < at; k++) bytes[k] = (char)rng_below(key, 1000 * i + k, 256);
        free(exchange(&t, bytes, sizeof model - 1));
    }
    expect(&t, "/api/runs", 200, "\"rows\":100");
    serve_stop(t.s);
}

/* Connections that say nothing, more than there are slots: others are still served. */
/* ---- POST ------------------------------------------------------------------------------------- */
/* Echoes the body in pieces of three bytes from a thread of its own; a body that begins with '!' is an error. */
typedef struct echo_job {
    char *body;
    size_t n;
    serve_stream *to;
} echo_job;
static atomic_int echoes; /* threads that have not ended their stream */
static void *echo_body(void *ctx) {
    echo_job *j = ctx;
    if (j->n && j->body[0] == '!') {
        serve_answer a = { .status = 429, .type = "text/plain" };
        str_add(&a.body, "busy");
        serve_stream_answer(j->to, &a);
    } else {
        serve_stream_begin(j->to, "text/event-stream");
        for (size_t at = 0; at < j->n; at += 3)
            serve_stream_write(j->to, j->body + at, MIN(j->n - at, (size_t)3));
        serve_stream_end(j->to);
    }
    free(j->body);
    free(j);
    atomic_fetch_sub(&echoes, 1);
    return NULL;
}
static void post_echo(void *ctx, const char *body, size_t n, serve_stream *to) {
    echo_job *j = mem_alloc(sizeof *j);
    *j = (echo_job){ mem_alloc(n + 1), n, to };
    memcpy(j->body, body, n);
    atomic_fetch_add(&echoes, 1);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, echo_body, j), 0);
    pthread_detach(thread);
}

static site open_echo(const char *token) {
    static const serve_route routes[] = { { .path = "/echo", .post = post_echo } };
    site t = { 0 };
    assert_ok(serve_start(
        &(serve_options){
            .address = "0", .token = token, .routes = routes, .n_routes = 1, .routes_only = true },
        &t.s));
    t.port = atoi(serve_address(t.s) + strlen("127.0.0.1:"));
    return t;
}

/* Sends without closing its side, as clients do, in `pieces`. @return all that comes back, owned */
static char *send_and_wait(const site *t, const char *bytes, size_t n, size_t piece) {
    int fd = connect_to(t);
    str got = { 0 };
    str_add(&got, "%s", "");
    char buffer[4096];
    for (size_t at = 0; at < n; at += piece)
        if (send(fd, bytes + at, MIN(piece, n - at), MSG_NOSIGNAL) <= 0) break;
    for (ssize_t came; (came = recv(fd, buffer, sizeof buffer, 0)) > 0;)
        str_add_bytes(&got, buffer, (size_t)came);
    close(fd);
    return got.text;
}

static char *post(const site *t, const char *headers, const char *body, size_t n, size_t piece) {
    str text = { 0 };
    str_add(&text, "POST /echo HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %zu\r\n\r\n",
            headers, n);
    str_add_bytes(&text, body, n);
    char *got = send_and_wait(t, text.text, text.len, piece);
    str_free(&text);
    return got;
}

#define JSON_TYPE "Content-Type: application/json\r\n"
static void bodies_arrive_and_answers_stream(void **state) {
    site t = open_echo(NULL);
    static const size_t sizes[] = { 0, 1, 2, 7, 100, 9000, 300000 };
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        for (int slow = 0; slow < 2; slow++) {
            str body = { 0 };
            str_add(&body, "%s", "");
            for (size_t k = 0; k < sizes[i]; k++) str_add(&body, "%c", 'a' + (int)(k % 26));
            if (sizes[i] > 1000 && slow) {
                str_free(&body);
                continue;
            }
            char *got = post(&t, JSON_TYPE, body.text, body.len, slow ? 11 : 1 << 20);
            assert_true(str_starts(got, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream"));
            str back = join_chunks(got);
            assert_int_equal(back.len, body.len);
            assert_memory_equal(back.text, body.text, body.len);
            str_free(&back);
            str_free(&body);
            free(got);
        }
    char *busy = post(&t, JSON_TYPE, "!", 1, 1000);
    assert_true(str_starts(busy, "HTTP/1.1 429 Too Many Requests") &&
                str_ends(busy, "\r\n\r\nbusy"));
    free(busy);
    char *asked = post(&t, JSON_TYPE "Expect: 100-continue\r\n", "abc", 3, 130);
    assert_true(strstr(asked, "200 OK") != NULL);
    free(asked);
    serve_stop(t.s);
}

static void bad_posts_are_refused(void **state) {
    static const struct {
        const char *text, *status;
    } cases[] = {
        { "POST /other HTTP/1.1\r\nHost: localhost\r\n" JSON_TYPE "Content-Length: 0\r\n\r\n",
          "HTTP/1.1 404 " },
        { "POST /echo HTTP/1.1\r\nHost: localhost\r\n" JSON_TYPE "\r\n", "HTTP/1.1 411 " },
        { "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx", "HTTP/1.1 415 " },
        { "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 1\r\n\r\nx",
          "HTTP/1.1 415 " },
        { "POST /echo HTTP/1.1\r\nHost: localhost\r\n" JSON_TYPE "Content-Length: 99999999\r\n\r\n",
          "HTTP/1.1 413 " },
        { "POST /echo HTTP/1.1\r\nHost: localhost\r\n" JSON_TYPE "Content-Length: -1\r\n\r\n",
          "HTTP/1.1 400 " },
        { "POST /echo HTTP/1.1\r\nHost: localhost\r\n" JSON_TYPE "Content-Length: +1\r\n\r\n",
          "HTTP/1.1 400 " },
        { "POST /echo HTTP/1.1\r\nHost: localhost\r\n" JSON_TYPE "Content-Length: 1, 2\r\n\r\n",
          "HTTP/1.1 400 " },
        { "POST /echo HTTP/1.1\r\nHost: localhost\r\n" JSON_TYPE
          "Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
          "HTTP/1.1 400 " },
        { "POST /echo HTTP/1.1\r\nHost: localhost\r\n" JSON_TYPE
          "Transfer-Encoding: chunked\r\n\r\n",
          "HTTP/1.1 400 " },
        { "POST /echo HTTP/1.1\r\nHost: evil.example\r\n" JSON_TYPE "Content-Length: 1\r\n\r\nx",
          "HTTP/1.1 403 " },
        { "GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 404 " },
        { "GET /api/runs HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP/1.1 404 " }, /* routes alone */
    };
    site t = open_echo(NULL);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char *got = send_and_wait(&t, cases[i].text, strlen(cases[i].text), 1 << 20);
        if (!str_starts(got, cases[i].status)) fail_msg("%s: %.80s", cases[i].text, got);
        free(got);
    }
    serve_stop(t.s);
    t = open_echo("secret");
    char *got = post(&t, JSON_TYPE, "x", 1, 100);
    assert_true(str_starts(got, "HTTP/1.1 401 "));
    free(got);
    got = post(&t, JSON_TYPE "Authorization: Bearer secret\r\n", "x", 1, 100);
    assert_true(str_starts(got, "HTTP/1.1 200 "));
    free(got);
    serve_stop(t.s);
}

/* Headers in any order with any damage, bodies of other lengths than announced, peers that leave early. */
static void random_posts_do_no_harm(void **state) {
    static const char *const lines[] = { "Host: localhost\r\n",      JSON_TYPE,
                                         "Content-Length: 5\r\n",    "Content-Length: 0\r\n",
                                         "Expect: 100-continue\r\n", "X: \xff\r\n",
                                         "Content-Type:\r\n",        "\n" };
    site t = open_echo(NULL);
    rng_key key = rng_key_of(9, 0);
    uint64_t at = 0;
    for (int i = 0; i < 400; i++) {
        str text = { 0 };
        str_add(&text, "POST /echo HTTP/1.1\r\n");
        for (uint64_t n = rng_below(key, at++, 6); n; n--)
            str_add(&text, "%s", lines[rng_below(key, at++, COUNT_OF(lines))]);
        str_add(&text, "\r\n");
        for (uint64_t n = rng_below(key, at++, 9); n; n--) str_add(&text, "b");
        uint64_t where = rng_below(key, at++, text.len), change = 1 + rng_below(key, at++, 255);
        if (i % 3 == 0) text.text[where] ^= (char)change;
        int fd = connect_to(&t);
        ssize_t sent = send(fd, text.text, text.len, MSG_NOSIGNAL);
        assert_true(sent != 0);
        close(fd);
        str_free(&text);
    }
    char *got = post(&t, JSON_TYPE, "alive", 5, 100);
    assert_true(str_starts(got, "HTTP/1.1 200 "));
    free(got);
    while (atomic_load(&echoes)) usleep(1000); /* to peers that left */
    serve_stop(t.s);
}

static void silent_connections_do_not_block(void **state) {
    site t = open_site(state, NULL);
    int silent[200];
    for (size_t i = 0; i < COUNT_OF(silent); i++) {
        silent[i] = connect_to(&t);
        if (i % 2) assert_int_equal(send(silent[i], "GET /", 5, MSG_NOSIGNAL), 5);
    }
    expect(&t, "/api/runs", 200, "\"rows\":100");
    for (size_t i = 0; i < COUNT_OF(silent); i++) close(silent[i]);
    serve_stop(t.s);
}

static void addresses_are_checked(void **state) {
    static const char *const bad[] = { "",
                                       "x",
                                       "127.0.0.1",
                                       "1.2.3.4.5:80",
                                       "host.example:80",
                                       "127.0.0.1:99999",
                                       "127.0.0.1:-1",
                                       "[::1:80" };
    serve *s = NULL;
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_error(serve_start(&(serve_options){ .address = bad[i] }, &s), "to listen on");
    assert_ok(serve_start(&(serve_options){ .address = "localhost:0" }, &s));
    serve *second = NULL;
    assert_error(serve_start(&(serve_options){ .address = serve_address(s) }, &second),
                 "cannot listen on");
    serve_stop(s);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_setup, folder_teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(runs_are_served),
        IN_FOLDER(prometheus_reads_metrics),
        IN_FOLDER(the_state_of_runs_is_served),
        IN_FOLDER(pages_see_the_end),
        IN_FOLDER(the_dashboard_names_metrics),
        IN_FOLDER(new_steps_are_seen),
        IN_FOLDER(a_long_csv_comes_in_parts),
        IN_FOLDER(a_token_is_needed),
        IN_FOLDER(tokens_of_any_length),
        IN_FOLDER(a_second_host_is_refused),
        IN_FOLDER(paths_reach_nothing),
        IN_FOLDER(hostile_requests_get_clean_errors),
        IN_FOLDER(random_bytes_do_no_harm),
        IN_FOLDER(silent_connections_do_not_block),
        cmocka_unit_test(bodies_arrive_and_answers_stream),
        cmocka_unit_test(bad_posts_are_refused),
        cmocka_unit_test(random_posts_do_no_harm),
        cmocka_unit_test(addresses_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
