/* Tests with an S3 server: tests/store/server.py, started on loopback, ends with the test. */
#ifndef INGOT_TESTS_STORE_H
#define INGOT_TESTS_STORE_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/store.h"
#include "support/test.h"

typedef struct s3_server {
    pid_t pid;
    int input; /* its standard input: it ends when this closes */
    int port;
} s3_server;

static inline void s3_environment(int port) {
    char url[64];
    snprintf(url, sizeof url, "http://127.0.0.1:%d", port);
    setenv("AWS_ENDPOINT_URL", url, 1);
    setenv("AWS_ACCESS_KEY_ID", "test-key", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "test/secret+key", 1);
    setenv("AWS_REGION", "eu-test-1", 1);
    setenv("no_proxy", "127.0.0.1", 1);
    unsetenv("AWS_ENDPOINT_URL_S3");
    unsetenv("AWS_SESSION_TOKEN");
    unsetenv("AWS_MAX_ATTEMPTS");
}

/* Starts the server with one option; the environment names it. @return false, with the reason printed, where there is no
 * Python, or no libcurl. */
static inline bool s3_server_start(s3_server *s, const char *option, const char *value) {
    int to[2], from[2];
    char line[32] = "";
    *s = (s3_server){ .pid = -1, .input = -1 };
    assert_int_equal(pipe2(to, O_CLOEXEC), 0);
    assert_int_equal(pipe2(from, O_CLOEXEC), 0);
    s->pid = fork();
    if (s->pid == 0) {
        dup2(to[0], 0);
        dup2(from[1], 1);
        execlp("python3", "python3", STORE_SERVER, option, value, (char *)0);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    s->input = to[1];
    FILE *f = fdopen(from[0], "r");
    bool there = fgets(line, sizeof line, f) != NULL;
    fclose(f);
    s->port = atoi(line);
    s3_environment(s->port);
    store *probe = NULL;
    err e = there ? store_open(&probe) : ERR("there is no python3");
    store_close(probe);
    if (e) print_message("skipped: %s\n", err_message(e));
    bool fine = !e;
    err_free(e);
    return fine;
}

static inline void s3_server_stop(s3_server *s) {
    if (s->input >= 0) close(s->input);
    if (s->pid > 0) waitpid(s->pid, NULL, 0);
    *s = (s3_server){ .pid = -1, .input = -1 };
}

#endif
