/* Profiles: --profile steps=A-B and --memory-timeline.
 *
 * In the steps A to B the executor records a trace (prog/trace.h). Each rank writes its events to a file of its
 * own, and rank 0 joins these into RUN/profile/steps-A-B.json, which Perfetto and chrome://tracing open: a process
 * per rank, on one clock that starts when all ranks have met before step A. A table of the ops that took longest,
 * against what the machine can do, goes to steps-A-B.txt and is printed. A step that is profiled is complete before
 * the next one is queued, and validation, samples and saves after it are not part of the trace. Without --profile nothing here costs anything. */
#include "profile_internal.h"
#include "trainer_internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "io/io.h"
#include "prog/timeline.h"
#include "prog/trace.h"

/* ---- a file of all ranks' events ------------------------------------------------------------------- */
/* Yields a path in the run's folder of profiles, which lasts until the end of the block. */
#define PROFILE_IN(t, ...) profile_path((char[IO_PATH_BYTES]){ 0 }, t, __VA_ARGS__)
static char *profile_path(char to[IO_PATH_BYTES], const trainer *t, const char *fmt, ...)
    PRINTF_LIKE(3, 4);
static char *profile_path(char to[IO_PATH_BYTES], const trainer *t, const char *fmt, ...) {
    char name[96];
    va_list args;
    va_start(args, fmt);
    vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    return io_join_into(to, PATH_IN(t->dir, "profile"), name);
}

/* Appends what a rank wrote, and removes it. A host that does not share the folder keeps its part. */
static void take_part(const trainer *t, int rank, str *all) {
    enum { MOST_BYTES = 1 << 30 };
    const char *path = PROFILE_IN(t, ".rank-%d", rank);
    char *text = NULL, name[128];
    size_t n;
    err e = io_read(path, MOST_BYTES, &text, &n);
    if (e)
        log_warn("the events of %s are not in the profile: %s",
                 comm_rank_name(t->x.comm, rank, name, sizeof name), err_message(e));
    else
        str_add_bytes(all, text, n);
    if (!e) unlink(path);
    err_free(e);
    free(text);
}

static void add_process_name(const trainer *t, int rank, str *out) {
    char name[128];
    comm_rank_name(t->x.comm, rank, name, sizeof name);
    str_add(out, "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":", rank);
    io_json_quote(out, name);
    str_add(
        out,
        "}},\n{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"sort_index\":%d}},\n",
        rank, rank);
}

/* Joins the events of all ranks into one file. @param mine lines that end in ",\n". */
static err write_events(const trainer *t, const char *path, const str *mine) {
    int n = mesh_world(&t->mesh);
    err e = io_make_dirs(PATH_IN(t->dir, "profile"));
    if (n > 1) {
        const char *part = PROFILE_IN(t, ".rank-%d", t->mesh.rank);
        if (!e) e = io_write(part, mine->text ? mine->text : "", mine->len);
        TRY(comm_agree(t->x.comm, e));
        if (!is_first_rank(t)) return OK;
    }
    TRY(e);
    str all = { 0 };
    str_add(&all, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    for (int r = 0; r < n; r++) {
        add_process_name(t, r, &all);
        if (n > 1)
            take_part(t, r, &all);
        else
            str_add_bytes(&all, mine->text ? mine->text : "", mine->len);
    }
    all.len -= strlen(",\n"); /* there are names at least */
    str_add(&all, "\n]}\n");
    e = io_write(path, all.text, all.len);
    str_free(&all);
    return e;
}

/* Prints a text and leaves it beside the events. */
static err write_profile_text(const trainer *t, const char *path, const str *text) {
    progress_end(t->show);
    fputs(text->text, stdout);
    fflush(stdout);
    return io_write(path, text->text, text->len);
}

/* ---- ops against what the machine can do ------------------------------------------------------------ */
typedef struct roofline {
    double flops, bytes; /* per second */
    int steps;
} roofline;

static void add_row(str *out, const trace_row *r, const roofline *top, double total) {
    double by_flops = r->work.flops / top->flops, by_bytes = r->work.bytes / top->bytes;
    double least = MAX(by_flops, by_bytes), per_step = r->seconds / top->steps;
    char where[64] = "update", flops[16] = "", bytes[16];
    if (r->file) snprintf(where, sizeof where, "%s (%s:%d)", r->function, r->file, r->line);
    if (r->work.flops > 0) snprintf(flops, sizeof flops, "%.1f", r->work.flops / r->seconds * 1e-9);
    snprintf(bytes, sizeof bytes, "%.1f", r->work.bytes / r->seconds * 1e-9);
    str_add(out, "%-20s %-34s %7.0f %9.3f %5.1f%% %9s %8s  %-7s %5.1f%%\n", r->op, where,
            (double)r->calls / top->steps, 1e3 * per_step, 100 * r->seconds / total, flops, bytes,
            by_flops > by_bytes ? "compute" : "memory", 100 * least / r->seconds);
}

static void describe_ops(const trainer *t, const exec_trace *tr, const roofline *top, str *out) {
    enum { SHOWN = 20 };
    trace_row *rows;
    int n = trace_rows(tr, &rows);
    double total = trace_busy_seconds(tr), rest = 0;
    str_add(out,
            "%s: the ops of rank 0, against %.4g TFLOP/s and %.4g GB/s as measured here\n"
            "%-20s %-34s %7s %9s %6s %9s %8s  %-7s %s\n",
            t->dir, top->flops * 1e-12, top->bytes * 1e-9, "op", "source", "calls", "ms/step", "%",
            "GFLOP/s", "GB/s", "bound", "of it");
    for (int i = 0; i < n; i++) {
        if (i < SHOWN)
            add_row(out, &rows[i], top, total);
        else
            rest += rows[i].seconds;
    }
    if (rest > 0)
        str_add(out, "%-20s %-34s %7s %9.3f %5.1f%%\n", "others", "", "", 1e3 * rest / top->steps,
                100 * rest / total);
    free(rows);
}

typedef struct rank_profile {
    double busy, wait, step; /* seconds */
} rank_profile;

static void describe_ranks(const trainer *t, const rank_profile *all, int steps, str *out) {
    str_add(out, "%-24s %11s %11s %11s %11s\n", "rank", "ms/step", "ops", "waits", "other");
    for (int r = 0; r < mesh_world(&t->mesh); r++) {
        char name[128];
        double step = 1e3 * all[r].step / steps, busy = 1e3 * all[r].busy / steps,
               wait = 1e3 * all[r].wait / steps;
        str_add(out, "%-24s %11.3f %11.3f %11.3f %11.3f\n",
                comm_rank_name(t->x.comm, r, name, sizeof name), step, busy, wait,
                MAX(0, step - busy - wait));
    }
}

static err write_profile(trainer *t, const str *events, const rank_profile *mine) {
    run_profile *p = &t->profile;
    int steps = (int)(p->last - p->first + 1);
    long long first = p->first, last = p->last;
    const char *json = PROFILE_IN(t, "steps-%lld-%lld.json", first, last);
    const char *table = PROFILE_IN(t, "steps-%lld-%lld.txt", first, last);
    rank_profile *all = mem_alloc((size_t)mesh_world(&t->mesh) * sizeof *all);
    str text = { 0 };
    err e = comm_collect(t->x.comm, mine, sizeof *mine, all);
    if (!e) e = write_events(t, json, events);
    if (!e && is_first_rank(t)) {
        roofline top = { t->peak.flops, ops_copy_rate(t->ops, t->x.pool, OPS_COPY_BYTES), steps };
        describe_ops(t, p->trace, &top, &text);
        describe_ranks(t, all, steps, &text);
        str_add(&text, "%s opens in https://ui.perfetto.dev and chrome://tracing\n", json);
        e = write_profile_text(t, table, &text);
    }
    str_free(&text);
    free(all);
    return e;
}

/* ---- steps ------------------------------------------------------------------------------------------- */
static bool is_profiled(const trainer *t, int64_t step) {
    return step >= t->opt->profile_from && step <= t->opt->profile_to;
}

bool profile_is_near(const trainer *t) {
    return is_profiled(t, t->state.step + 1) || is_profiled(t, t->state.step + 2);
}

err profile_step_begin(trainer *t) {
    int64_t step = t->state.step + t->last.open + 1;
    run_profile *p = &t->profile;
    if (!is_profiled(t, step)) return OK;
    if (!p->trace) {
        double meet = 0; /* all ranks count from here */
        TRY(comm_total(t->x.comm, &meet, 1));
        p->trace = trace_begin(&t->x);
        p->first = step;
    }
    trace_resume(p->trace);
    p->began = time_now();
    char name[32];
    snprintf(name, sizeof name, "step %lld", (long long)step);
    p->span = trace_span_begin(p->trace, name);
    p->last = step;
    return OK;
}

void profile_step_end(trainer *t) {
    if (!t->profile.trace) return;
    trace_span_end(t->profile.trace, t->profile.span);
    trace_pause(t->profile.trace);
    t->profile.seconds += time_now() - t->profile.began;
}

err profile_after_step(trainer *t, bool ends) {
    run_profile *p = &t->profile;
    if (!p->trace || (!ends && is_profiled(t, t->state.step + 1))) return OK;
    err e = trace_end(p->trace);
    TRY(comm_agree(t->x.comm, e));
    str events = { 0 };
    rank_profile mine = { trace_busy_seconds(p->trace), trace_wait_seconds(p->trace), p->seconds };
    trace_write(p->trace, t->mesh.rank, &events);
    e = write_profile(t, &events, &mine);
    str_free(&events);
    profile_free(t);
    return e;
}

void profile_free(trainer *t) {
    trace_free(t->profile.trace);
    t->profile.trace = NULL;
}

/* ---- memory ------------------------------------------------------------------------------------------ */
static void add_memory_events(const timeline *l, int process, str *out) {
    for (int i = 0; i < l->n; i++) {
        const live_moment *m = &l->at[i];
        str_add(
            out,
            "{\"name\":\"live bytes\",\"ph\":\"C\",\"pid\":%d,\"ts\":%d,\"args\":{\"fixed\":%zu",
            process, i, l->fixed);
        for (int k = 0; k < LIVE_KINDS; k++)
            str_add(out, ",\"%s\":%zu", live_names[k], m->bytes[k]);
        str_add(
            out,
            "}},\n{\"name\":\"%s\",\"cat\":\"op\",\"ph\":\"X\",\"pid\":%d,\"tid\":0,\"ts\":%d,\"dur\":1,"
            "\"args\":{\"program\":\"%s\",\"list\":\"%s\",\"layer\":%d,\"microbatch\":%d,\"source\":"
            "\"%s:%d\",\"bytes\":%zu}},\n",
            m->op, process, i, m->program, m->list, m->layer, m->micro, m->file, m->line,
            l->fixed + timeline_bytes(m));
    }
}

static void add_layer(str *out, int layer) {
    if (layer >= 0) str_add(out, " %d", layer);
}

static void describe_memory(const trainer *t, const timeline *l, str *out) {
    enum { SHOWN = 12 };
    const live_moment *m = &l->at[l->peak];
    char a[32], b[32];
    str_add(out, "memory: %s planned; at most %s are live, in ",
            str_bytes(a, sizeof a, (double)plan_bytes(t->p, NULL)),
            str_bytes(b, sizeof b, (double)(l->fixed + timeline_bytes(m))));
    str_add(out, "%s", m->program);
    add_layer(out, m->layer);
    str_add(out, " %s, %s (%s:%d), op %d of %d\n", m->list, m->op, m->file, m->line, l->peak + 1,
            l->n);
    str_add(out, "  %-22s %s\n", "fixed", str_bytes(a, sizeof a, (double)l->fixed));
    for (int k = 0; k < LIVE_KINDS; k++)
        if (m->bytes[k])
            str_add(out, "  %-22s %s\n", live_names[k],
                    str_bytes(a, sizeof a, (double)m->bytes[k]));
    str_add(out, "the largest values then:\n");
    for (int i = 0, shown = 0; i < l->values && shown < SHOWN; i++) {
        const live_value *v = &l->value[i];
        if (l->peak < v->from || l->peak > v->to) continue;
        str_add(out, "  %10s  %-20s of %s (%s:%d) in %s", str_bytes(a, sizeof a, (double)v->bytes),
                live_names[v->kind], v->op, v->file, v->line, v->program);
        add_layer(out, v->layer);
        str_add(out, ", ops %d to %d\n", v->from + 1, v->to + 1);
        shown++;
    }
}

err profile_memory(trainer *t) {
    if (!t->opt->memory_timeline) return OK;
    timeline l;
    str events = { 0 }, text = { 0 };
    const char *json = PROFILE_IN(t, "memory.json"), *table = PROFILE_IN(t, "memory.txt");
    err e = timeline_make(t->p, t->train_id, (int)t->len.micros, &l);
    if (!e) add_memory_events(&l, t->mesh.rank, &events);
    e = comm_agree(t->x.comm, e);
    if (!e) e = write_events(t, json, &events);
    if (!e && is_first_rank(t)) {
        describe_memory(t, &l, &text);
        str_add(&text, "%s shows every op (one microsecond stands for one)\n", json);
        e = write_profile_text(t, table, &text);
    }
    timeline_free(&l);
    str_free(&events);
    str_free(&text);
    return e;
}
