/* Delivery of alerts: a thread with a short queue.
 *
 *     monitor_send --(queue of MOST_QUEUED texts)--> thread: the command, then the webhook
 *
 * The command is a process group of its own, so that all of it ends when its time is over. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "webhook_internal.h"
#include "util/wait.h"

enum { MOST_QUEUED = 16 };

struct monitor_sender {
    char *command, *webhook; /* owned; NULL: none */
    double seconds;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    char *queue[MOST_QUEUED]; /* owned texts */
    int first, n;
    bool ends;
};

/* ---- the command ---------------------------------------------------------------------------------- */
static int spawn_shell(const char *command, int input, pid_t *pid) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, defaults;
    extern char **environ;
    char *const argv[] = { "sh", "-c", (char *)(uintptr_t)command, NULL };
    sigemptyset(&none);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, input, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &defaults);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                        POSIX_SPAWN_SETPGROUP);
    int code = posix_spawn(pid, "/bin/sh", &files, &attr, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    return code;
}

/* @return the process's status; -1: it was ended. */
static int wait_bounded(pid_t pid, double seconds) {
    wait_state w;
    int status = 0;
    wait_begin(&w, seconds, "alerts.command");
    w.ignored = INT_MAX; /* a run that is asked to stop still reports it */
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (wait_nap(&w)) continue;
        kill(-pid, SIGKILL);
        waitpid(pid, &status, 0);
        return -1;
    }
    return status;
}

/* A text that fits a pipe is written whole; a command need not read it. */
static void run_command(const monitor_sender *s, const char *text) {
    int ends[2];
    pid_t pid;
    if (pipe2(ends, O_CLOEXEC) != 0) {
        log_warn("alerts.command: no pipe: %s", strerror(errno));
        return;
    }
    fcntl(ends[1], F_SETFL, O_NONBLOCK);
    int code = spawn_shell(s->command, ends[0], &pid);
    close(ends[0]);
    ssize_t wrote = code ? 0 : write(ends[1], text, strlen(text));
    close(ends[1]);
    if (code) {
        log_warn("alerts.command: cannot start sh: %s", strerror(code));
        return;
    }
    int status = wait_bounded(pid, s->seconds);
    if (status == -1)
        log_warn("alerts.command: ended after %g seconds; alerts.seconds bounds it", s->seconds);
    else if (status != 0)
        log_warn("alerts.command: %s %d", WIFEXITED(status) ? "exit code" : "ended by signal",
                 WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    else if (wrote < 0 && errno != EPIPE)
        log_warn("alerts.command: did not get its input: %s", strerror(errno));
}

/* ---- the thread -------------------------------------------------------------------------------------- */
static void *sender_main(void *arg) {
    monitor_sender *s = arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->n && !s->ends) pthread_cond_wait(&s->changed, &s->lock);
        if (!s->n) break;
        char *text = s->queue[s->first];
        s->first = (s->first + 1) % MOST_QUEUED;
        s->n--;
        pthread_mutex_unlock(&s->lock);
        if (s->command) run_command(s, text);
        err e = s->webhook ? webhook_post(s->webhook, text, s->seconds) : OK;
        if (e) log_warn("alerts.webhook: %s", err_message(e));
        err_free(e);
        free(text);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static int start_thread(monitor_sender *s) {
    sigset_t all, before;
    sigfillset(&all); /* the main thread handles signals */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&s->thread, NULL, sender_main, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

err monitor_sender_new(const monitor_sender_options *o, monitor_sender **out) {
    *out = NULL;
    if (!*o->command && !*o->webhook) return OK;
    if (*o->webhook) TRY(webhook_check(o->webhook));
    monitor_sender *s = mem_alloc(sizeof *s);
    *s = (monitor_sender){ .command = *o->command ? strdup(o->command) : NULL,
                           .webhook = *o->webhook ? strdup(o->webhook) : NULL,
                           .seconds = o->seconds };
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    int code = start_thread(s);
    if (!code) {
        *out = s;
        return OK;
    }
    free(s->command);
    free(s->webhook);
    free(s);
    return err_hint(ERR("the thread that delivers alerts does not start: %s", strerror(code)),
                    "raise the limit of threads, or leave alerts.command and alerts.webhook out");
}

void monitor_send(monitor_sender *s, const json_t *alert) {
    if (!s) return;
    char *text = json_dumps(alert, JSON_COMPACT | JSON_PRESERVE_ORDER);
    BUG_IF(!text);
    pthread_mutex_lock(&s->lock);
    bool full = s->n == MOST_QUEUED;
    if (!full) s->queue[(s->first + s->n++) % MOST_QUEUED] = text;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (!full) return;
    free(text);
    log_warn("an alert is not delivered: %d others wait; it is in events.jsonl", MOST_QUEUED);
}

void monitor_sender_free(monitor_sender *s) {
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->ends = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s->command);
    free(s->webhook);
    free(s);
}
