/* ingot sweep: one config, trained several times with different options, one run after another, and how the runs
 * compare.
 *
 *     DIR/NAME          the run folder of each
 *     DIR/NAME.log      what it printed
 *     DIR/NAME.json     its options, once it has ended: such a run is not started again
 *     DIR/report.html   all of them side by side
 *
 * Runs are processes, so that one that fails or runs out of memory does not end the sweep. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"
#include "config/config.h"
#include "io/io.h"
#include "planning/planning.h"
#include "report/report.h"
#include "util/wait.h"

extern const embedded_file sweep_files[]; /* configs/sweeps/ */

typedef struct sweep_args {
    const char *dir;
    bool fresh, dry;
} sweep_args;

#define AT(member) offsetof(sweep_args, member)
static const cli_arg args[] = {
    { "dir", ARG_TEXT, AT(dir), "FOLDER", "where the runs go (default runs/sweep-NAME)" },
    { "fresh", ARG_FLAG, AT(fresh), "", "start over, instead of skipping what has been run" },
    { "dry-run", ARG_FLAG, AT(dry), "", "print the commands instead of running them" },
};
const cli_spec cmd_sweep_spec = { "sweep", "NAME|FILE.yaml [--section.key=value ...] [options]",
                                  args,    (int)COUNT_OF(args),
                                  0,       true };

/* ---- the file ---------------------------------------------------------------------------------- */
typedef struct sweep_run {
    char *name;      /* owned */
    json_t *options; /* of this run, owned */
    json_t *
        first; /* options of a first part, after which it is resumed without them; NULL: none; owned */
} sweep_run;
typedef struct sweep {
    char *name, *config; /* owned; config NULL: the defaults */
    json_t *doc;         /* owned */
    json_t *common;      /* options of all runs, owned */
    double
        equal_loss; /* all runs must log the same losses, to within this part; NaN: they need not */
    sweep_run *run;
    int n, cap;
} sweep;

static void sweep_free(sweep *s) {
    for (int i = 0; i < s->n; i++) {
        free(s->run[i].name);
        json_decref(s->run[i].options);
        json_decref(s->run[i].first);
    }
    free(s->run);
    free(s->name);
    free(s->config);
    json_decref(s->common);
    json_decref(s->doc);
}

static void add_option_text(str *out, const json_t *v) {
    if (json_is_string(v)) {
        str_add(out, "%s", json_string_value(v));
        return;
    }
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    str_add(out, "%s", text ? text : "");
    free(text);
}

/* Whether an option's value is a list, as that of optimizer.groups. */
static bool takes_list(const char *name) {
    for (int i = 0; i < config_option_count(); i++)
        if (!strcmp(config_option_name(i), name)) return config_option_describe(i).is_list;
    return false;
}

/* Every option exists, and takes its value. */
static err check_sweep_options(const sweep *s, const json_t *options) {
    const char *key;
    json_t *v;
    config c;
    err e = OK;
    config_init(&c);
    json_object_foreach((json_t *)(uintptr_t)options, key, v) {
        str text = { 0 };
        if (json_is_object(v) || (json_is_array(v) && !takes_list(key)))
            e = err_hint(ERR("%s: %s: expected one value", s->name, key),
                         "write options as training.steps: 100; lists belong under grid");
        add_option_text(&text, v);
        if (!e) e = config_set(&c, key, text.text);
        str_free(&text);
        if (e) break;
    }
    config_free(&c);
    return e;
}

/* "lr=0.001 seed=2": the last words of the names of options, as a folder's name. */
static char *name_of_options(const json_t *options) {
    const char *key;
    json_t *v;
    str name = { 0 };
    json_object_foreach((json_t *)(uintptr_t)options, key, v) {
        const char *dot = strrchr(key, '.');
        str_add(&name, "%s%s=", name.len ? "," : "", dot ? dot + 1 : key);
        add_option_text(&name, v);
    }
    if (!name.len) str_add(&name, "run");
    for (char *at = name.text; *at; at++)
        if (*at == '/' || *at == ' ') *at = '_';
    return name.text;
}

static err add_sweep_run(sweep *s, const char *name, json_t *options, json_t *first) {
    mem_reserve((void **)&s->run, &s->cap, s->n, sizeof *s->run);
    sweep_run *r = &s->run[s->n++];
    *r = (sweep_run){ name ? strdup(name) : name_of_options(options), options, first };
    if (strchr(r->name, '/') || r->name[0] == '.' || !*r->name)
        return err_hint(ERR("%s: \"%s\" cannot be the name of a folder", s->name, r->name),
                        "give the run a name without slashes");
    for (int i = 0; i < s->n - 1; i++)
        if (!strcmp(s->run[i].name, r->name))
            return err_hint(ERR("%s: two runs are called \"%s\"", s->name, r->name),
                            "give one of them another name");
    TRY(check_sweep_options(s, options));
    return first ? check_sweep_options(s, first) : OK;
}

/* All combinations: the last option varies fastest. */
static err add_grid(sweep *s, const json_t *grid) {
    enum { MOST_RUNS = 1000 };
    size_t total = 1;
    const char *key;
    json_t *values;
    json_object_foreach((json_t *)(uintptr_t)grid, key, values) {
        size_t n = json_array_size(values);
        if (!n || n > MOST_RUNS || (total *= n) > MOST_RUNS)
            return err_hint(
                ERR("%s: grid: %s: expected a list of values, and at most %d runs in all", s->name,
                    key, MOST_RUNS),
                "grid: { optimizer.lr: [1e-3, 3e-3] }");
    }
    for (size_t i = 0; i < total; i++) {
        json_t *options = json_object();
        size_t left = i, each = total;
        json_object_foreach((json_t *)(uintptr_t)grid, key, values) {
            each /= json_array_size(values);
            json_object_set(options, key, json_array_get(values, left / each));
            left %= each;
        }
        TRY(add_sweep_run(s, NULL, options, NULL));
    }
    return OK;
}

static err add_listed_runs(sweep *s, const json_t *list) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *o = json_array_get(list, i);
        json_t *options = json_is_object(o) ? json_copy((json_t *)(uintptr_t)o) : json_object();
        json_t *first = json_incref(json_object_get(options, "first"));
        char *name = json_is_string(json_object_get(options, "name"))
                         ? strdup(json_string_value(json_object_get(options, "name")))
                         : NULL;
        json_object_del(options, "name");
        json_object_del(options, "first");
        err e = add_sweep_run(s, name, options, first);
        free(name);
        TRY(e);
    }
    return OK;
}

static err check_keys(const sweep *s) {
    static const char *const known[] = {
        "about", "config", "options", "grid", "runs", "equal_loss"
    };
    const char *key;
    json_t *v;
    json_object_foreach(s->doc, key, v) {
        size_t i = 0;
        while (i < COUNT_OF(known) && strcmp(known[i], key) != 0) i++;
        if (i == COUNT_OF(known))
            return err_hint(ERR("%s: unknown key \"%s\"", s->name, key),
                            "a sweep has about, config, options, grid, runs and equal_loss");
    }
    return OK;
}

static err read_sweep(const char *text, size_t len, const char *folder, sweep *s) {
    TRY(yaml_to_json(text, len, s->name, &s->doc));
    TRY(check_keys(s));
    const char *base = json_string_value(json_object_get(s->doc, "config"));
    if (base) s->config = base[0] == '/' ? strdup(base) : io_join(folder, base);
    const json_t *equal = json_object_get(s->doc, "equal_loss");
    s->equal_loss = json_is_number(equal) ? json_number_value(equal) : NAN;
    s->common = json_is_object(json_object_get(s->doc, "options"))
                    ? json_copy(json_object_get(s->doc, "options"))
                    : json_object();
    TRY(check_sweep_options(s, s->common));
    if (json_object_get(s->doc, "grid")) TRY(add_grid(s, json_object_get(s->doc, "grid")));
    TRY(add_listed_runs(s, json_object_get(s->doc, "runs")));
    if (s->n) return OK;
    return err_hint(ERR("%s: no runs", s->name),
                    "give a grid: { optimizer.lr: [1e-3, 3e-3] }, or runs: a list of options");
}

static const char *sweep_name_at(const void *ctx, int i) { return sweep_files[i].name; }

static err no_such_sweep(const char *name) {
    int n = 0;
    while (sweep_files[n].name) n++;
    const char *near = str_nearest(name, sweep_name_at, NULL, n);
    err e = ERR_USAGE("no sweep is called \"%.60s\", and there is no such file", name);
    if (near) return err_hint(e, "\"%s\"; \"ingot sweep\" lists them all", near);
    return err_hint(e, "\"ingot sweep\" lists them all");
}

static err open_sweep(const char *what, sweep *s) {
    enum { MOST_BYTES = 1 << 20 };
    for (const embedded_file *f = sweep_files; f->name; f++)
        if (!strcmp(f->name, what)) {
            s->name = strdup(what);
            return read_sweep(f->text, strlen(f->text), ".", s);
        }
    if (!io_exists(what)) return no_such_sweep(what);
    char *text = NULL, *folder = strdup(what), *slash = strrchr(folder, '/');
    size_t len;
    const char *base = slash ? what + (slash - folder) + 1 : what;
    s->name = strndup(base, strcspn(base, "."));
    if (slash) *slash = '\0';
    err e = io_read(what, MOST_BYTES, &text, &len);
    if (!e) e = read_sweep(text, len, slash ? folder : ".", s);
    free(text);
    free(folder);
    return e;
}

static void list_sweeps(void) {
    for (const embedded_file *f = sweep_files; f->name; f++) {
        json_t *doc = NULL;
        err e = yaml_to_json(f->text, strlen(f->text), f->name, &doc);
        const char *about = json_string_value(json_object_get(doc, "about"));
        printf("%-12s %s\n", f->name, about ? about : "");
        err_free(e);
        json_decref(doc);
    }
}

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
    mem_reserve((void **)&w->word, &w->cap, w->n + 1, sizeof *w->word);
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
        add_option_text(&text, v);
        add_word(w, "--%s=%s", key, text.text);
        str_free(&text);
    }
}

/* The command of a run. @param first options of its first part; NULL: the whole */
static word_list command_of(const sweep *s, const sweep_run *r, const char *dir,
                            const json_t *first, bool fresh) {
    word_list w = { 0 };
    add_word(&w, "ingot");
    add_word(&w, "train");
    if (s->config) add_word(&w, "%s", s->config);
    add_option_words(&w, s->common);
    add_option_words(&w, r->options);
    if (first) add_option_words(&w, first);
    add_word(&w, "--run.dir=%s/%s", dir, r->name);
    if (fresh) add_word(&w, "--fresh");
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

/* Runs a command, its output appended to a log. A signal is passed on, at which the run saves and ends. */
static err run_words(const word_list *w, const char *log_path, int *status) {
    int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (log < 0) return ERR("cannot write %s: %s", log_path, strerror(errno));
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) become_run(w->word, log);
    close(log);
    if (pid < 0) return ERR("cannot start a process: %s", strerror(errno));
    int got = 0, passed = 0; /* signals: the second ends a run that does not answer the first */
    while (waitpid(pid, &got, 0) < 0) {
        if (errno != EINTR) return ERR("cannot wait for a run: %s", strerror(errno));
        for (; passed < wait_signal_count(); passed++) kill(pid, wait_first_signal());
    }
    *status = WIFEXITED(got) ? WEXITSTATUS(got) : 128 + WTERMSIG(got);
    return OK;
}

/* ---- what has been run --------------------------------------------------------------------------- */
static json_t *all_options(const sweep *s, const sweep_run *r) {
    json_t *all = json_copy(s->common);
    json_object_update(all, r->options);
    if (r->first) json_object_set(all, "first", r->first);
    return all;
}

static char *run_path(const char *dir, const sweep_run *r, const char *ending) {
    str path = { 0 };
    str_add(&path, "%s/%s%s", dir, r->name, ending);
    return path.text;
}

static err mark_done(const sweep *s, const sweep_run *r, const char *dir) {
    json_t *all = all_options(s, r);
    char *text = json_dumps(all, JSON_INDENT(2) | JSON_SORT_KEYS),
         *path = run_path(dir, r, ".json");
    err e = io_write(path, text, strlen(text));
    free(text);
    free(path);
    json_decref(all);
    return e;
}

/* Whether it has ended before. An error when that was with other options. */
static err is_run_done(const sweep *s, const sweep_run *r, const char *dir, bool *done) {
    char *path = run_path(dir, r, ".json"), *text = NULL;
    size_t n;
    *done = io_exists(path);
    err e = *done ? io_read(path, 1 << 20, &text, &n) : OK;
    if (!e && *done) {
        json_t *now = all_options(s, r), *then = json_loadb(text, n, 0, NULL);
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

static err run_sweep_parts(const sweep *s, const sweep_run *r, const char *dir, bool fresh,
                           int *status) {
    char *log_path = run_path(dir, r, ".log");
    if (fresh) unlink(log_path);
    err e = OK;
    for (int part = r->first ? 0 : 1; part < 2 && !e && !*status && !wait_first_signal(); part++) {
        bool starts = fresh && part == (r->first ? 0 : 1);
        word_list w = command_of(s, r, dir, part ? NULL : r->first, starts);
        e = run_words(&w, log_path, status);
        free_words(&w);
    }
    free(log_path);
    return e;
}

static err run_sweep_run(const sweep *s, const sweep_args *a, int i, int *failed) {
    const sweep_run *r = &s->run[i];
    int status = 0;
    bool done = false;
    char took[32];
    if (!a->fresh) TRY(is_run_done(s, r, a->dir, &done));
    printf("%3d of %d  %-32s ", i + 1, s->n, r->name);
    fflush(stdout);
    if (done) {
        printf("has been run\n");
        return OK;
    }
    double from = time_now();
    TRY(run_sweep_parts(s, r, a->dir, a->fresh, &status));
    if (wait_first_signal()) {
        printf("stopped\n");
        return OK;
    }
    if (status) {
        (*failed)++;
        printf("FAILED with code %d: see %s/%s.log\n", status, a->dir, r->name);
        return OK;
    }
    printf("%s\n", str_duration(took, sizeof took, time_now() - from));
    return mark_done(s, r, a->dir);
}

/* ---- the comparison -------------------------------------------------------------------------------- */
static int comparison_width(void) {
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 60) return 100;
    return MIN(size.ws_col, 160);
}

static err print_comparison(const sweep *s, const char *dir, run_report *const *runs, int n) {
    const run_report *const *list = (const run_report *const *)runs;
    str text = { 0 }, page = { 0 };
    report_compare(list, n, REPORT_TEXT, comparison_width(), &text);
    fputs(text.text, stdout);
    report_write(list, n, REPORT_HTML, 100, &page);
    char *path = io_join(dir, "report.html");
    err e = io_write(path, page.text, page.len);
    if (!e) printf("%s has all of it\n", path);
    free(path);
    str_free(&text);
    str_free(&page);
    if (e || isnan(s->equal_loss)) return e;
    TRY(report_same_loss(list, n, s->equal_loss));
    printf("%d runs: every loss is equal to within %g\n", n, s->equal_loss);
    return OK;
}

static err compare_runs(const sweep *s, const char *dir) {
    run_report **runs = mem_alloc((size_t)s->n * sizeof *runs);
    int n = 0;
    err e = OK;
    for (int i = 0; i < s->n && !e; i++) {
        char *path = run_path(dir, &s->run[i], ""), *metrics = io_join(path, "metrics.jsonl");
        if (io_exists(metrics)) e = report_read(path, &runs[n]);
        if (!e && runs[n]) n++;
        free(metrics);
        free(path);
    }
    if (!e && n) e = print_comparison(s, dir, runs, n);
    for (int i = 0; i < n; i++) report_free(runs[i]);
    free(runs);
    return e;
}

/* ---- the command ------------------------------------------------------------------------------------ */
/* Takes --section.key=value out of argv, into the options of all runs. @return how many words are left. */
static err take_overrides(int argc, char **argv, json_t *into, int *left) {
    *left = 0;
    for (int i = 0; i < argc; i++) {
        char *equals = strchr(argv[i], '='), *dot = strchr(argv[i], '.');
        if (!str_starts(argv[i], "--") || !equals || !dot || dot > equals) {
            argv[(*left)++] = argv[i];
            continue;
        }
        char *key = strndup(argv[i] + 2, (size_t)(equals - argv[i]) - 2);
        json_object_set_new(into, key, json_string(equals + 1));
        free(key);
    }
    return OK;
}

static err run_sweep(const sweep *s, const sweep_args *a) {
    int failed = 0;
    if (a->dry) {
        for (int i = 0; i < s->n; i++)
            for (int part = s->run[i].first ? 0 : 1; part < 2; part++) {
                word_list w = command_of(s, &s->run[i], a->dir, part ? NULL : s->run[i].first,
                                         a->fresh && part == (s->run[i].first ? 0 : 1));
                print_run_command(&w);
                free_words(&w);
            }
        return OK;
    }
    TRY(io_make_dirs(a->dir));
    struct sigaction action = { .sa_handler = wait_note_signal }; /* waitpid returns */
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    for (int i = 0; i < s->n && !wait_first_signal(); i++) TRY(run_sweep_run(s, a, i, &failed));
    if (wait_first_signal())
        return err_exit(ERR("stopped by a signal; the same command continues"),
                        wait_first_signal() == SIGINT ? EXIT_INTERRUPTED : EXIT_PREEMPTED);
    TRY(compare_runs(s, a->dir));
    if (!failed) return OK;
    return err_hint(ERR("%d of %d runs failed", failed, s->n),
                    "their logs are in %s; the same command tries them again", a->dir);
}

err cmd_sweep(int argc, char **argv) {
    sweep_args a = { .dir = NULL };
    sweep s = { .equal_loss = NAN };
    json_t *overrides = json_object();
    str dir = { 0 };
    int left, n = 0;
    err e = OK;
    TRY_CLEAN(take_overrides(argc - 1, argv + 1, overrides, &left));
    TRY_CLEAN(cli_parse_many(&cmd_sweep_spec, left, argv + 1, &a, &n));
    if (n == 0) {
        list_sweeps();
        goto cleanup;
    }
    if (n > 1) {
        e = err_hint(ERR_USAGE("expected one sweep; got %d", n), "ingot sweep %s", argv[1]);
        goto cleanup;
    }
    TRY_CLEAN(open_sweep(argv[1], &s));
    TRY_CLEAN(check_sweep_options(&s, overrides));
    json_object_update(s.common, overrides);
    str_add(&dir, "runs/sweep-%s", s.name);
    if (!a.dir) a.dir = dir.text;
    e = run_sweep(&s, &a);
cleanup:
    sweep_free(&s);
    json_decref(overrides);
    str_free(&dir);
    return e;
}
