/* The runs of a sweep, as processes: one that fails or runs out of memory does not end the sweep. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/sweep.h"
#include "io/io.h"
#include "ops/ops.h"
#include "util/wait.h"

#define STOPPED_AT "stopped at step" /* in NAME.json: it has not ended */

/* ---- one run ------------------------------------------------------------------------------------ */
typedef struct word_list {
    char **word; /* owned */
    int n, cap;
} word_list;

static void add_word(word_list *w, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void add_word(word_list *w, const char *fmt, ...) {
    char *text = NULL;
    va_list list;
    va_start(list, fmt);
    if (vasprintf(&text, fmt, list) < 0) abort();
    va_end(list);
    w->word = mem_reserve(w->word, &w->cap, w->n + 1, sizeof *w->word);
    w->word[w->n++] = text;
    w->word[w->n] = NULL;
}

static void free_words(word_list *w) {
    for (int i = 0; i < w->n; i++) free(w->word[i]);
    free(w->word);
}

static void add_option_words(word_list *w, const json_t *options) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)options, key, v) {
        str text = { 0 };
        sweep_option_text(&text, v);
        add_word(w, "--%s=%s", key, text.text);
        str_free(&text);
    }
}

/* A run, or what precedes and follows the change of its options. */
typedef struct run_segment {
    bool first;   /* with the options of its first segment */
    bool fresh;   /* begins from nothing */
    int64_t stop; /* ends after this many steps; 0: does not */
} run_segment;

/* Runs at the same time have a GPU each, in turn, where there are several, and divide the cores. */
static void add_share(word_list *w, const sweep *s, const sweep_args *a, int slot) {
    if (a->parallel <= 1) return;
    const char *kind = json_string_value(json_object_get(s->common, "device.kind"));
    int gpus = kind && !strcmp(kind, "cpu") ? 0 : ops_cuda_count();
    if (gpus > 1) add_word(w, "--device.index=%d", slot % gpus);
    if (!json_object_get(s->common, "training.threads"))
        add_word(w, "--training.threads=%d", (int)MAX(1, thread_cores() / a->parallel));
}

static word_list command_of(const sweep *s, const sweep_run *r, const sweep_args *a,
                            run_segment segment, int slot) {
    const char *dir = a->dir;
    word_list w = { 0 };
    add_word(&w, "ingot");
    add_word(&w, "train");
    if (s->config) add_word(&w, "%s", s->config);
    add_option_words(&w, s->common);
    add_option_words(&w, r->options);
    if (segment.first) add_option_words(&w, r->first);
    if (segment.stop) add_word(&w, "--training.stop=%lld", (long long)segment.stop);
    add_share(&w, s, a, slot);
    add_word(&w, "--run.dir=%s/%s", dir, r->name);
    if (segment.fresh) add_word(&w, "--fresh");
    return w;
}

static void print_run_command(const word_list *w) {
    for (int i = 0; i < w->n; i++) {
        bool plain = strcspn(w->word[i], " '\"$&;()<>|*?\\") == strlen(w->word[i]);
        printf(plain ? "%s%s" : "%s'%s'", i ? " " : "", w->word[i]);
    }
    printf("\n");
}

/* Never returns. */
static void become_run(char **words, int log) {
    int null = open("/dev/null", O_RDONLY);
    if (null >= 0) dup2(null, STDIN_FILENO);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    execv("/proc/self/exe", words);
    fprintf(stderr, "error: cannot start a run: %s\n", strerror(errno));
    _exit(EXIT_USAGE);
}

/* ---- what has been run --------------------------------------------------------------------------- */
static json_t *all_options(const sweep *s, const sweep_run *r) {
    json_t *all = json_copy(s->common);
    json_object_update(all, r->options);
    if (r->first) json_object_set(all, "first", r->first);
    return all;
}

char *sweep_path(const char *dir, const sweep_run *r, const char *ending) {
    str path = { 0 };
    str_add(&path, "%s/%s%s", dir, r->name, ending);
    return path.text;
}

static err mark_done(const sweep *s, const sweep_run *r, const char *dir, int64_t stop) {
    json_t *all = all_options(s, r);
    if (stop) json_object_set_new(all, STOPPED_AT, json_integer(stop));
    char *text = json_dumps(all, JSON_INDENT(2) | JSON_SORT_KEYS),
         *path = sweep_path(dir, r, ".json");
    err e = io_write(path, text, strlen(text));
    free(text);
    free(path);
    json_decref(all);
    return e;
}

/* Whether it has ended, or got to `stop`, before. An error when that was with other options. */
static err is_run_done(const sweep *s, const sweep_run *r, const char *dir, int64_t stop,
                       bool *done) {
    char *path = sweep_path(dir, r, ".json"), *text = NULL;
    size_t n;
    *done = io_exists(path);
    err e = *done ? io_read(path, 1 << 20, &text, &n) : OK;
    if (!e && *done) {
        json_t *now = all_options(s, r), *then = json_loadb(text, n, 0, NULL);
        json_int_t at = json_integer_value(json_object_get(then, STOPPED_AT));
        if (at) *done = stop && at >= stop;
        json_object_del(then, STOPPED_AT);
        char *a = json_dumps(now, JSON_SORT_KEYS), *b = json_dumps(then, JSON_SORT_KEYS);
        if (!b || strcmp(a, b) != 0)
            e = err_hint(ERR("%s/%s was run with other options", dir, r->name),
                         "use --fresh to start over, or --dir for another folder");
        free(a);
        free(b);
        json_decref(now);
        json_decref(then);
    }
    free(text);
    free(path);
    return e;
}

/* ---- several at a time ------------------------------------------------------------------------- */
enum { MOST_PARALLEL = 256 };
typedef struct sweep_process {
    pid_t pid; /* 0: the slot is free */
    int run;   /* in s->run */
    bool first;
    double from;
} sweep_process;

typedef struct run_queue {
    const sweep *s;
    const sweep_args *a;
    int64_t stop;
    sweep_process slot[MOST_PARALLEL];
    int active, signals; /* signals that were passed on */
} run_queue;

/* Starts a segment of a run, its output appended to its log. */
static err start_part(run_queue *q, int slot, bool first, bool begins) {
    sweep_process *p = &q->slot[slot];
    const sweep_run *r = &q->s->run[p->run];
    char *log_path = sweep_path(q->a->dir, r, ".log");
    if (begins && q->a->fresh) unlink(log_path);
    int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    err e = log < 0 ? ERR("cannot write %s: %s", log_path, strerror(errno)) : OK;
    free(log_path);
    TRY(e);
    run_segment segment = { first, begins && q->a->fresh, q->stop };
    word_list w = command_of(q->s, r, q->a, segment, slot);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) become_run(w.word, log);
    close(log);
    free_words(&w);
    if (pid < 0) return ERR("cannot start a process: %s", strerror(errno));
    p->pid = pid;
    p->first = first;
    return OK;
}

static err start_run(run_queue *q, int run) {
    int slot = 0;
    while (q->slot[slot].pid) slot++;
    q->slot[slot] = (sweep_process){ .run = run, .from = time_now() };
    TRY(start_part(q, slot, q->s->run[run].first != NULL, true));
    q->active++;
    return OK;
}

/* Waits for a process that ends. A signal is passed on, at which runs save and end; the second ends one that does not answer the
 * first. */
static err wait_for_part(run_queue *q, int *slot, int *status) {
    int got = 0;
    pid_t pid;
    while ((pid = waitpid(-1, &got, 0)) < 0) {
        if (errno != EINTR) return ERR("cannot wait for a run: %s", strerror(errno));
        for (; q->signals < wait_signal_count(); q->signals++)
            for (int i = 0; i < q->a->parallel; i++)
                if (q->slot[i].pid) kill(q->slot[i].pid, wait_first_signal());
    }
    *slot = -1;
    for (int i = 0; i < q->a->parallel; i++)
        if (q->slot[i].pid == pid) *slot = i;
    *status = WIFEXITED(got) ? WEXITSTATUS(got) : 128 + WTERMSIG(got);
    return OK;
}

static err end_part(run_queue *q, int slot, int status, int *failed, int *out) {
    sweep_process *p = &q->slot[slot];
    const sweep_run *r = &q->s->run[p->run];
    char took[32];
    *out = -1;
    if (p->first && !status && !wait_first_signal()) return start_part(q, slot, false, false);
    p->pid = 0;
    q->active--;
    *out = p->run;
    printf("%3d of %d  %-32s ", p->run + 1, q->s->n, r->name);
    if (wait_first_signal()) {
        printf("stopped\n");
        return OK;
    }
    if (status) {
        (*failed)++;
        *out = -2 - p->run;
        printf("FAILED with code %d: see %s/%s.log\n", status, q->a->dir, r->name);
        return OK;
    }
    printf("%s", str_duration(took, sizeof took, time_now() - p->from));
    if (q->stop) printf(", to step %lld", (long long)q->stop);
    printf("\n");
    fflush(stdout);
    return mark_done(q->s, r, q->a->dir, q->stop);
}

/* Starts runs until all slots are in use. @param next of which[], the first that has not been started */
static err fill_slots(run_queue *q, const int *which, int n, int *next) {
    while (*next < n && q->active < q->a->parallel && !wait_first_signal()) {
        const sweep_run *r = &q->s->run[which[*next]];
        bool done = false;
        if (!q->a->fresh) TRY(is_run_done(q->s, r, q->a->dir, q->stop, &done));
        if (done)
            printf("%3d of %d  %-32s has been run\n", which[*next] + 1, q->s->n, r->name);
        else
            TRY(start_run(q, which[*next]));
        (*next)++;
    }
    return OK;
}

err sweep_train(const sweep *s, const sweep_args *a, int *which, int *n, int64_t stop,
                int *failed) {
    run_queue *q = mem_alloc(sizeof *q);
    int next = 0, *all = mem_alloc((size_t)MAX(1, *n) * sizeof *all), total = *n;
    *q = (run_queue){ .s = s, .a = a, .stop = stop };
    memcpy(all, which, (size_t)total * sizeof *all);
    err e = fill_slots(q, all, total, &next);
    while (q->active && !e) {
        int slot = -1, status = 0, ended = -1;
        e = wait_for_part(q, &slot, &status);
        if (e || slot < 0) continue;
        e = end_part(q, slot, status, failed, &ended);
        int kept = 0; /* of which[], without a run that is to be removed */
        for (int i = 0; i < *n && !e; i++)
            if (ended > -2 || which[i] != -2 - ended) which[kept++] = which[i];
        if (!e) *n = kept;
        if (!e) e = fill_slots(q, all, total, &next);
    }
    free(all);
    free(q);
    return e;
}

void sweep_print_commands(const sweep *s, const sweep_args *a) {
    for (int i = 0; i < s->n; i++)
        for (int segment = s->run[i].first ? 0 : 1; segment < 2; segment++) {
            bool begins = segment == (s->run[i].first ? 0 : 1);
            word_list w =
                command_of(s, &s->run[i], a, (run_segment){ !segment, a->fresh && begins, 0 },
                           i % (int)a->parallel);
            print_run_command(&w);
            free_words(&w);
        }
}
