/* metrics.jsonl and events.jsonl: lines of JSON, each appended with one write, so that a reader never
 * sees half a line. A run that resumes removes the metrics of the steps that it will repeat. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "io/io.h"
#include "observe/status.h"
#include "observe_internal.h"

/* A file of lines. */
typedef struct line_log {
    char *path; /* owned */
    int fd;
    str kept; /* lines that could not be written yet */
} line_log;

struct observe {
    line_log metrics, events;
    err failed; /* the last failure to write, until it is taken; owned */
    char *dir;  /* owned */
    struct {
        dev_t device;
        ino_t inode;
    } folder;                                /* where dir led to when it was the run's */
    tb_writer *tb;                           /* NULL: no event files */
    nvml *gpu;                               /* NULL: not read */
    char *sys;                               /* owned; NULL: /sys */
    double links_began, links_now, links_at; /* link_errors; the time_now of the last look */
    run_status status;                       /* DIR/status.json */
    double status_at;                        /* the time_now when it was written */
};

/* ---- one step as JSON ---------------------------------------------------------------------- */
static void add_metric(str *out, const metric *m, const observe_step *s) {
    double v = metric_value(m, s);
    if (m->kind == METRIC_EACH || (m->presence == METRIC_EXTRA && isnan(v))) return;
    str_add(out, "%s\"%s\":", out->text[out->len - 1] == '{' ? "" : ",", m->key);
    if (m->kind == METRIC_COUNT)
        str_add(out, "%.0f", v);
    else
        str_add_json_number(out, v);
}

static void add_quoted_key(str *out, const char *before, const char *name) {
    str_add(out, "%s", before);
    io_json_quote(out, name);
    str_add(out, ":");
}

static void add_parts(str *out, const observe_step *s) {
    for (int i = 0; i < s->n_sources; i++) {
        const observe_source *p = &s->sources[i];
        add_quoted_key(out, i ? "," : ",\"sources\":{", p->name);
        str_add(out, "{\"tokens\":%lld", (long long)p->tokens);
        if (!isnan(p->loss)) {
            str_add(out, ",\"loss\":");
            str_add_json_number(out, p->loss);
        }
        str_add(out, i + 1 < s->n_sources ? "}" : "}}");
    }
    for (int i = 0; i < s->n_validation; i++) {
        add_quoted_key(out, i ? "," : ",\"validation\":{", s->validation[i].name);
        str_add_json_number(out, s->validation[i].loss);
        if (i + 1 == s->n_validation) str_add(out, "}");
    }
}

static void add_array(str *out, const char *before, const double *v, int n) {
    str_add(out, "%s", before);
    for (int i = 0; i < n; i++) {
        if (i) str_add(out, ",");
        str_add_json_number(out, v[i]);
    }
    str_add(out, "]");
}

/* "name": {"first": a, "second": b} as member i of n of the object `of`. */
static void add_two_figures(str *out, const char *of, int i, int n, const char *name,
                            const char *first, double a, const char *second, double b) {
    char open[32];
    snprintf(open, sizeof open, ",\"%s\":{", of);
    add_quoted_key(out, i ? "," : open, name);
    str_add(out, "{\"%s\":", first);
    str_add_json_number(out, a);
    str_add(out, ",\"%s\":", second);
    str_add_json_number(out, b);
    str_add(out, i + 1 < n ? "}" : "}}");
}

static void add_blocks(str *out, const observe_detail *d) {
    add_array(out, ",\"blocks\":{\"grad_norm\":[", d->grad_norm, d->blocks + 1);
    add_array(out, ",\"param_norm\":[", d->param_norm, d->blocks + 1);
    if (d->activation_rms) add_array(out, ",\"activation_rms\":[", d->activation_rms, d->blocks);
    if (d->fp8_amax) add_array(out, ",\"fp8_amax\":[", d->fp8_amax, d->blocks);
    if (d->fp8_saturated) add_array(out, ",\"fp8_saturated\":[", d->fp8_saturated, d->blocks);
    str_add(out, "}");
}

static void step_as_json(const observe_step *s, str *out) {
    str_add(out, "{");
    for (int i = 0; i < METRICS; i++) add_metric(out, &metric_table[i], s);
    add_parts(out, s);
    for (int i = 0; i < s->n_tasks; i++)
        add_two_figures(out, "tasks", i, s->n_tasks, s->tasks[i].name, "acc", s->tasks[i].acc,
                        "acc_norm", s->tasks[i].acc_norm);
    if (s->detail) add_blocks(out, s->detail);
    if (s->ranks) {
        add_array(out, ",\"ranks\":{\"busy_s\":[", s->ranks->busy_s, s->ranks->n);
        add_array(out, ",\"wait_s\":[", s->ranks->wait_s, s->ranks->n);
        add_array(out, ",\"ratio\":[", s->ranks->ratio, s->ranks->n);
        str_add(out, "}");
    }
    for (int i = 0; i < s->n_comm; i++)
        add_two_figures(out, "comm", i, s->n_comm, s->comm[i].name, "s", s->comm[i].seconds,
                        "bytes", s->comm[i].bytes);
    str_add(out, "}\n");
}

/* ---- resuming ------------------------------------------------------------------------------ */
/* @return whether the line is a whole object of a step before `first`. */
static bool is_kept(const char *line, size_t len, int64_t first) {
    json_t *object = json_loadb(line, len, 0, NULL);
    const json_t *step = json_object_get(object, "step");
    bool keep = json_is_integer(step) && json_integer_value(step) < first;
    json_decref(object);
    return keep;
}

/* Splits [p, end) at line ends and copies the lines to keep. @return how many are dropped. */
static int64_t copy_kept_lines(const char *p, const char *end, int64_t first, str *kept) {
    int64_t dropped = 0;
    while (p < end) {
        const char *newline = memchr(p, '\n', (size_t)(end - p));
        size_t len = newline ? (size_t)(newline - p) : (size_t)(end - p);
        if (newline && is_kept(p, len, first))
            str_add_bytes(kept, p, len + 1);
        else
            dropped++;
        p += len + 1;
    }
    return dropped;
}

static err drop_later_metrics(observe *o, int64_t first) {
    const char *path = o->metrics.path;
    if (!io_exists(path)) return OK;
    io_mapping m;
    TRY(io_map(path, &m));
    str kept = { 0 };
    const char *text = (const char *)m.data;
    int64_t dropped = text ? copy_kept_lines(text, text + m.size, first, &kept) : 0;
    io_unmap(&m);
    err e = OK;
    if (dropped) {
        e = io_write(path, kept.text ? kept.text : "", kept.len);
        if (!e && first > 0)
            log_info("%s: removed %lld lines of steps from %lld on, which run again", path,
                     (long long)dropped, (long long)first);
    }
    str_free(&kept);
    return e;
}

/* Ends the last line of the events where a power failure left none of its end: the next event would run into it. Half
 * a line is dropped, a whole event stays. */
static err end_last_event(const char *path) {
    if (!io_exists(path)) return OK;
    io_mapping m;
    TRY(io_map(path, &m));
    const char *text = (const char *)m.data, *newline = text ? memrchr(text, '\n', m.size) : NULL;
    size_t ended = newline ? (size_t)(newline - text) + 1 : 0, rest = m.size - ended;
    str kept = { 0 };
    if (rest) str_add_bytes(&kept, text, ended);
    json_t *event = rest ? json_loadb(text + ended, rest, 0, NULL) : NULL;
    if (event) {
        str_add_bytes(&kept, text + ended, rest);
        str_add(&kept, "\n");
    }
    json_decref(event);
    io_unmap(&m);
    err e = rest ? io_write(path, kept.text ? kept.text : "", kept.len) : OK;
    str_free(&kept);
    return e;
}

/* ---- the logs ------------------------------------------------------------------------------ */
/* The mount point of a disk that was unmounted is another folder. */
static bool is_own_folder(const observe *o) {
    struct stat st;
    return stat(o->dir, &st) == 0 && st.st_dev == o->folder.device && st.st_ino == o->folder.inode;
}

static void note_failure(observe *o, err e) {
    if (!e) return;
    err_free(o->failed);
    o->failed = e;
}

static void write_status(observe *o) {
    o->status_at = time_now();
    o->status.updated = (double)time(NULL);
    err e = is_own_folder(o) ? status_write(o->dir, &o->status) : OK;
    if (o->failed) /* the lines matter more, and what keeps them from the disk is the same */
        err_free(e);
    else
        o->failed = e;
}

err observe_open(const observe_options *options, observe **out) {
    observe *o = mem_alloc(sizeof *o);
    *o = (observe){ .metrics = { io_join(options->dir, "metrics.jsonl"), -1 },
                    .events = { io_join(options->dir, "events.jsonl"), -1 } };
    err e = OK;
    o->dir = strdup(options->dir);
    observe_take_folder(o);
    TRY_CLEAN(drop_later_metrics(o, options->first_step));
    TRY_CLEAN(io_append_open(o->metrics.path, &o->metrics.fd));
    TRY_CLEAN(end_last_event(o->events.path));
    TRY_CLEAN(io_append_open(o->events.path, &o->events.fd));
    if (options->tensorboard) TRY_CLEAN(tb_open(options, &o->tb));
    if (options->gpu) o->gpu = nvml_open(options->nvml, options->gpu_index);
    if (options->sys) o->sys = strdup(options->sys);
    o->links_began = o->links_now = link_errors(o->sys);
    status_begin(o->dir, MAX(0, options->first_step - 1), options->steps, options->total_tokens,
                 &o->status);
    o->status.flops_per_token = options->flops_per_token > 0 ? options->flops_per_token : NAN;
    write_status(o);
    *out = o;
    return OK;
cleanup:
    observe_close(o);
    return e;
}

/* A log that was removed or moved away is begun anew: lines would go to a file without a name. When that
 * fails, the folder itself is gone, which the run notices after its next step. */
static void reopen_if_removed(line_log *l) {
    struct stat opened, named;
    bool same = fstat(l->fd, &opened) == 0 && stat(l->path, &named) == 0 &&
                opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
    int fresh;
    err e = same ? OK : io_append_open(l->path, &fresh);
    if (!same && !e) {
        log_warn("%s was removed while the run was writing to it; a new one begins here", l->path);
        close(l->fd);
        l->fd = fresh;
    }
    err_free(e);
}

/* Writes what is kept and then the line, all or nothing: half a line would be taken for damage. */
static err write_lines(line_log *l) {
    struct stat before;
    bool known = fstat(l->fd, &before) == 0;
    err e = io_append(l->fd, l->path, l->kept.text, l->kept.len);
    if (e && known && ftruncate(l->fd, before.st_size) != 0)
        log_warn("%s may end in half a line: %s", l->path, strerror(errno));
    return e;
}

/* Appends a line. A disk that is full, read-only or gone does not stop the run: lines are kept, at most
 * MOST_KEPT bytes of them, and written with the next that can be. */
static void append_line(observe *o, line_log *l, const str *line) {
    enum { MOST_KEPT = 4 << 20 };
    if (is_own_folder(o)) reopen_if_removed(l);
    str_add_bytes(&l->kept, line->text, line->len);
    err e = write_lines(l);
    if (!e) {
        l->kept.len = 0;
        return;
    }
    if (l->kept.len > MOST_KEPT) l->kept.len -= line->len; /* what came first stays */
    note_failure(o, e);
}

err observe_take_failure(observe *o) {
    err e = o ? o->failed : OK;
    if (o) o->failed = OK;
    return e;
}

void observe_take_folder(observe *o) {
    struct stat st;
    if (!o || stat(o->dir, &st) != 0) return;
    o->folder.device = st.st_dev;
    o->folder.inode = st.st_ino;
}

err observe_log(observe *o, observe_step *s) {
    enum { LINKS_EVERY_S = 10 };
    if (!o) return OK;
    str line = { 0 };
    s->perplexity = exp(s->loss);
    s->val_ppl = exp(s->val_loss);
    if (o->gpu) nvml_read(o->gpu, s);
    if (time_now() - o->links_at > LINKS_EVERY_S) {
        o->links_now = link_errors(o->sys);
        o->links_at = time_now();
    }
    if (o->links_now > o->links_began) s->link_errors = o->links_now - o->links_began;
    step_as_json(s, &line);
    append_line(o, &o->metrics, &line);
    /* Points of TensorBoard are not kept after a failure: metrics.jsonl has them too. */
    if (o->tb && s->tensorboard) note_failure(o, tb_step(o->tb, s));
    str_free(&line);
    bool first = isnan(o->status.eta_s);
    o->status.step = s->step;
    o->status.tokens = (double)s->tokens;
    if (s->total_steps > 0 && s->total_steps != o->status.steps) { /* it follows the clock */
        o->status.steps = s->total_steps;
        o->status.total_tokens = (double)s->tokens * (double)s->total_steps / (double)s->step;
    }
    o->status.eta_s = s->eta_s;
    o->status.step_s = s->step_s;
    if (first || time_now() - o->status_at >= 1) write_status(o);
    return OK;
}

err observe_event(observe *o, const char *kind, int64_t step, json_t *details) {
    if (!o) {
        json_decref(details);
        return OK;
    }
    json_t *event = json_pack("{s:s, s:I, s:I}", "event", kind, "step", (json_int_t)step, "time",
                              (json_int_t)time(NULL));
    BUG_IF(event == NULL);
    if (details) json_object_update(event, details);
    json_decref(details);
    char *text = json_dumps(event, JSON_COMPACT | JSON_PRESERVE_ORDER);
    bool changed = text && status_take_event(&o->status, event);
    json_decref(event);
    if (changed) write_status(o);
    if (!text) return ERR("event \"%s\": a text in it is not UTF-8", kind);
    str line = { 0 };
    str_add(&line, "%s\n", text);
    free(text);
    append_line(o, &o->events, &line);
    str_free(&line);
    return OK;
}

err observe_text(observe *o, int64_t step, const char *text, size_t n) {
    if (!o) return OK;
    json_t *clean = io_json_string(text, n);
    json_t *details = json_pack("{s:O}", "text", clean);
    err e = observe_event(o, "sample", step, details);
    if (!e && o->tb)
        note_failure(
            o, tb_text(o->tb, "sample", step, json_string_value(clean), json_string_length(clean)));
    json_decref(clean);
    return e;
}

static void close_log(line_log *l) {
    err e = l->kept.len && l->fd >= 0 ? write_lines(l) : OK;
    if (e) log_warn("%s: %s: its last lines are lost", l->path, err_message(e));
    err_free(e);
    if (l->fd >= 0) close(l->fd);
    str_free(&l->kept);
    free(l->path);
}

void observe_close(observe *o) {
    if (!o) return;
    close_log(&o->metrics);
    close_log(&o->events);
    err_free(o->failed);
    tb_close(o->tb);
    nvml_close(o->gpu);
    free(o->sys);
    free(o->dir);
    free(o);
}
