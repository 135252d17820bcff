/* Alerts of whole runs on several ranks: each fires in a run that provokes it, on every layout as on one rank, and
 * reaches whoever alerts.command and alerts.webhook name. */
#include "support/train.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- runs ------------------------------------------------------------------------------------------------- */
static settings small = { SETTINGS_FOR_RANKS("4"),
                          "training.steps",
                          "20",
                          "training.local_batch_size",
                          "2",
                          "optimizer.lr",
                          "3e-4",
                          "metrics.tensorboard_every",
                          "0",
                          "metrics.detail_every",
                          "2",
                          "validation.every",
                          "0",
                          "checkpoint.every",
                          "0",
                          "checkpoint.weights_every",
                          "0" };

typedef struct layout_case {
    const char *name;
    int ranks;
    settings layout;
} layout_case;
static const layout_case layouts[] = {
    { "one", 1, { NULL } },
    { "zero3", 2, { "parallelism.zero_stage", "3" } },
    { "tensor", 2, { "parallelism.tensor_parallel_degree", "2" } },
    { "pipeline", 2, { "parallelism.pipeline_parallel_degree", "2" } },
    { "pipeline-zero",
      4,
      { "parallelism.pipeline_parallel_degree", "2", "parallelism.zero_stage", "1" } },
    { "experts", 2, { "parallelism.expert_parallel_degree", "2" } },
};
enum { ONE, ZERO3, TENSOR, PIPELINE, PIPELINE_ZERO, EXPERT_PARALLEL };
/* Under sanitizers an alert is provoked on one rank and on one layout, each alert on another one. */
static bool is_left_out(size_t layout, size_t watched) {
    return SANITIZED && layout != ONE && layout != watched;
}

static void run_on_layout(test_folder *f, const layout_case *l, const char *const *own) {
    settings all = { NULL };
    int n = 0;
    for (int i = 0; own[i]; i++) all[n++] = own[i];
    for (int i = 0; l->layout[i]; i++) all[n++] = l->layout[i];
    log_set_level(LOG_ERROR);
    err e = run_on_ranks(f, l->name, small, all, l->ranks);
    log_set_level(LOG_WARN);
    assert_ok(e);
}

/* @return the first event of an alert, owned; NULL: it did not fire. */
static json_t *find_alert(test_folder *f, const char *run, const char *alert) {
    char path[64], *next = NULL;
    json_t *found = NULL;
    snprintf(path, sizeof path, "%s/events.jsonl", run);
    char *text = folder_read(f, path);
    for (char *line = strtok_r(text, "\n", &next); line && !found;
         line = strtok_r(NULL, "\n", &next)) {
        json_t *o = json_loads(line, 0, NULL);
        const char *name = json_string_value(json_object_get(o, "alert"));
        if (name && !strcmp(name, alert))
            found = o;
        else
            json_decref(o);
    }
    free(text);
    return found;
}

static int64_t number_of(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return v ? json_integer_value(v) : -1;
}

/* Every layout raises `alert`. @param watched the layout that runs under sanitizers. @param exactly at the step, and of the block, at which one rank does: where sums of
 * another order do not matter. */
static void fires_everywhere(test_folder *f, const char *alert, size_t watched, bool exactly,
                             settings own) {
    bool experts = strstr(alert, "expert") != NULL;
    int64_t step = -1, block = -1;
    for (size_t i = 0; i < (experts ? COUNT_OF(layouts) : EXPERT_PARALLEL); i++) {
        if (is_left_out(i, watched)) continue;
        run_on_layout(f, &layouts[i], own);
        json_t *o = find_alert(f, layouts[i].name, alert);
        if (!o) fail_msg("%s: no %s", layouts[i].name, alert);
        if (i == 0) {
            step = number_of(o, "step");
            block = number_of(o, "block");
        } else if (exactly && (number_of(o, "step") != step || number_of(o, "block") != block)) {
            fail_msg("%s: %s in step %d, block %d; on one rank in step %d, block %d",
                     layouts[i].name, alert, (int)number_of(o, "step"), (int)number_of(o, "block"),
                     (int)step, (int)block);
        }
        json_decref(o);
    }
}

/* ---- what provokes them --------------------------------------------------------------------------------------- */
/* A learning rate at which weights grow by their own size with each step. */
static void activations_that_grow(void **state) {
    fires_everywhere(*state, "activation_large", TENSOR, true,
                     (settings){ "optimizer.lr", "20", "lr_scheduler.warmup", "0" });
}

/* The second stage of a pipeline has the block that differs. */
static void a_block_unlike_the_others(void **state) {
    fires_everywhere(*state, "param_norm", PIPELINE_ZERO, true,
                     (settings){ "optimizer.lr", "0.05", "lr_scheduler.warmup", "0",
                                 "monitor.thresholds", "param_norm=1.01" });
}

static const char *const unbalanced[] = { "model.experts",
                                          "8",
                                          "model.experts_per_token",
                                          "1",
                                          "model.expert_dim",
                                          "8",
                                          "model.first_dense_layers",
                                          "1",
                                          "model.balance_loss",
                                          "0",
                                          "optimizer.lr",
                                          "0.3",
                                          "lr_scheduler.warmup",
                                          "0",
                                          "training.steps",
                                          "60",
                                          "metrics.detail_every",
                                          "0",
                                          NULL };
/* Nothing balances the experts, and the rate is too high: tokens go to a few of them. */
static void experts_that_die(void **state) {
    settings own = { NULL };
    memcpy(own, unbalanced, sizeof unbalanced);
    fires_everywhere(*state, "expert_dead", EXPERT_PARALLEL, false, own);
    json_t *o = NULL;
    for (size_t i = 0; i < COUNT_OF(layouts); i++) { /* the same runs */
        if (is_left_out(i, EXPERT_PARALLEL)) continue;
        o = find_alert(*state, layouts[i].name, "expert_saturated");
        if (!o) fail_msg("%s: no expert_saturated", layouts[i].name);
        assert_true(number_of(o, "block") >= 1); /* the first is dense */
        json_decref(o);
    }
}

/* Values beyond what fp16 holds in every step: the scale is halved until nothing is left of it. */
static void a_loss_scale_that_collapses(void **state) {
    fires_everywhere(*state, "loss_scale", ZERO3, false,
                     (settings){ "precision", "fp16", "precision.loss_scale", "64", "optimizer.lr",
                                 "1000", "lr_scheduler.warmup", "0", "training.steps", "14",
                                 "metrics.detail_every", "0", "alerts.policy", "nonfinite=log" });
}

/* Scales come from earlier steps, and values outgrow them. */
static void fp8_scales_that_are_outgrown(void **state) {
    fires_everywhere(*state, "fp8_saturation", PIPELINE, false,
                     (settings){ "precision", "bf16", "precision.fp8", "delayed", "model.dim", "64",
                                 "model.head_dim", "16", "model.ffn_dim", "64", "optimizer.lr", "1",
                                 "lr_scheduler.warmup", "0" });
}

/* ---- delivery --------------------------------------------------------------------------------------------------- */
enum { MOST_POSTS = 8, MOST_BYTES = 64 << 10 };
/* An HTTP server on the loopback: keeps what is posted, answers each with `status`. */
typedef struct hook {
    int fd, port;
    const char *status;
    pthread_t thread;
    char *post[MOST_POSTS]; /* owned: headers and body */
    int n;
} hook;

static size_t body_length(const char *text) {
    const char *at = strcasestr(text, "\r\nContent-Length:");
    return at ? (size_t)strtoul(at + 17, NULL, 10) : 0;
}

static char *read_request(int fd) {
    char *text = mem_alloc(MOST_BYTES), *end = NULL;
    size_t n = 0;
    ssize_t got = 1;
    while (n + 1 < MOST_BYTES && got > 0) {
        end = strstr(text, "\r\n\r\n");
        if (end && n >= (size_t)(end + 4 - text) + body_length(text)) break;
        got = read(fd, text + n, MOST_BYTES - 1 - n);
        if (got > 0) n += (size_t)got;
        text[n] = '\0';
    }
    return text;
}

static void *serve_hook(void *arg) {
    hook *h = arg;
    for (int fd; (fd = accept(h->fd, NULL, NULL)) >= 0;) { /* shutdown ends it */
        char *text = read_request(fd);
        dprintf(fd, "HTTP/1.1 %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", h->status);
        close(fd);
        if (h->n < MOST_POSTS)
            h->post[h->n++] = text;
        else
            free(text);
    }
    return NULL;
}

static void hook_start(hook *h, const char *status) {
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof at;
    *h = (hook){ .fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), .status = status };
    assert_int_equal(bind(h->fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(h->fd, 8), 0);
    assert_int_equal(getsockname(h->fd, (struct sockaddr *)&at, &n), 0);
    h->port = ntohs(at.sin_port);
    assert_int_equal(pthread_create(&h->thread, NULL, serve_hook, h), 0);
}

static void hook_stop(hook *h) {
    shutdown(h->fd, SHUT_RDWR);
    pthread_join(h->thread, NULL);
    close(h->fd);
}

static void hook_free(hook *h) {
    for (int i = 0; i < h->n; i++) free(h->post[i]);
}

static err run_with_hook(test_folder *f, const hook *h, const char *command) {
    char address[64];
    snprintf(address, sizeof address, "http://127.0.0.1:%d/hook", h->port);
    settings own = { "monitor.thresholds", "activation_small=50",
                     "alerts.webhook",     address,
                     "alerts.command",     command,
                     "training.steps",     "6" };
    log_set_level(LOG_ERROR);
    err e = run_on_ranks(f, "run", small, own, 2);
    log_set_level(LOG_WARN);
    return e;
}

static void assert_is_alert(test_folder *f, const char *text) {
    json_t *o = json_loads(text, 0, NULL);
    if (!o) fail_msg("not JSON: %s", text);
    assert_string_equal(json_string_value(json_object_get(o, "event")), "alert");
    assert_string_equal(json_string_value(json_object_get(o, "alert")), "activation_small");
    assert_string_equal(json_string_value(json_object_get(o, "run")), in_folder(f, "run"));
    assert_true(number_of(o, "step") >= 2 && number_of(o, "block") >= 0);
    assert_non_null(json_object_get(o, "remedy"));
    json_decref(o);
}

/* A run of two ranks: each alert is delivered once. */
static void an_alert_is_posted_and_given_to_a_command(void **state) {
    test_folder *f = *state;
    hook h;
    char command[256];
    setenv("no_proxy", "127.0.0.1", 1);
    snprintf(command, sizeof command, "cat >> %s", in_folder(f, "got"));
    hook_start(&h, "200 OK");
    err e = run_with_hook(f, &h, command);
    hook_stop(&h);
    if (e && strstr(err_message(e), "no libcurl")) {
        err_free(e);
        skip();
    }
    assert_ok(e);
    assert_int_equal(h.n, 1);
    assert_true(str_starts(h.post[0], "POST /hook HTTP/1.1\r\n"));
    assert_non_null(strcasestr(h.post[0], "\r\nContent-Type: application/json\r\n"));
    const char *body = strstr(h.post[0], "\r\n\r\n") + 4;
    char *got = folder_read(f, "got");
    assert_is_alert(f, body);
    assert_string_equal(got, body);
    free(got);
    hook_free(&h);
}

/* A server that refuses, or is not there, is a warning: the run does not wait and does not end. */
static void a_hook_that_fails_costs_nothing(void **state) {
    test_folder *f = *state;
    hook h;
    setenv("no_proxy", "127.0.0.1", 1);
    hook_start(&h, "500 Broken");
    err e = run_with_hook(f, &h, "exit 1");
    hook_stop(&h);
    if (e && strstr(err_message(e), "no libcurl")) {
        err_free(e);
        skip();
    }
    assert_ok(e);
    assert_int_equal(h.n, 1);
    hook_free(&h);
    h.n = 0;
    assert_ok(io_remove_tree(f->path, in_folder(f, "run")));
    assert_ok(run_with_hook(f, &h, "")); /* nobody listens any more */
    json_t *o = find_alert(f, "run", "activation_small");
    assert_non_null(o);
    json_decref(o);
}

#define T(name) cmocka_unit_test_setup_teardown(name, folder_setup, folder_teardown)
int main(void) {
    const struct CMUnitTest tests[] = {
        T(activations_that_grow),
        T(a_block_unlike_the_others),
        T(experts_that_die),
        T(a_loss_scale_that_collapses),
        T(fp8_scales_that_are_outgrown),
        T(an_alert_is_posted_and_given_to_a_command),
        T(a_hook_that_fails_costs_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
