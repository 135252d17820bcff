/* Traces: see trace.h.
 *
 * An event of a device has two marks in its queue instead of times, which trace_end reads when all is done:
 *
 *     queue   | mark 2k | kernels of the call | mark 2k+1 |        the first is where the trace began
 *
 * A communication is drawn from its start to the end of the wait for it. On a device both are places in the
 * compute queue, which the kernels of the communication wait for and which waits for them. */
#include "prog/trace.h"

#include <stdlib.h>
#include <string.h>

#include "exec_internal.h"
#include "plan_internal.h"

typedef enum { EVENT_CALL, EVENT_COMM, EVENT_WAIT, EVENT_INSTR, EVENT_SPAN } event_kind;
static const char *const kind_names[] = { [EVENT_CALL] = "op",
                                          [EVENT_COMM] = "communication",
                                          [EVENT_WAIT] = "wait",
                                          [EVENT_INSTR] = "instruction",
                                          [EVENT_SPAN] = "span" };

typedef struct trace_event {
    event_kind kind;
    device_queue queue;
    double from, to; /* seconds since the trace began */
    int mark[2];     /* of a device, until trace_end */
    op_code op;      /* EVENT_CALL */
    int calls;       /* that ran together */
    const prog *p;   /* NULL: outside programs */
    const prog_op *o;
    int layer, micro;
    op_work work;
    move_kind move; /* EVENT_COMM, EVENT_WAIT */
    axis_set axes;
    tensor in, out;
    char *text;              /* owned: a span's name, or the shapes of a call outside programs */
    const comm_ticket *open; /* EVENT_COMM: while it is in flight */
} trace_event;

struct exec_trace {
    exec *x;
    const op_backend *b;
    double base;
    trace_event *event;
    int n, cap;
    int marks; /* the next */
    comm_watcher watcher;
    bool ended;
};

/* ---- time --------------------------------------------------------------------------------------- */
static void set_time(exec_trace *t, trace_event *e, int end) {
    if (t->b->device) {
        e->mark[end] = t->marks;
        t->b->device->mark(t->b->context, e->queue, t->marks++);
    } else {
        *(end ? &e->to : &e->from) = time_now() - t->base;
    }
}

static int begin_trace_event(exec_trace *t, event_kind kind, device_queue queue) {
    trace_event *e = &LIST_ADD(t->event, t->n, t->cap);
    *e = (trace_event){ .kind = kind, .queue = queue, .layer = -1, .micro = -1 };
    set_time(t, e, 0);
    return t->n - 1;
}

/* ---- calls and instructions ------------------------------------------------------------------------ */
static void add_tensor_shape(str *out, const char *name, const tensor *x, bool *any) {
    if (!x->ndim) return;
    str_add(out, "%s%s %s[", *any ? ", " : "", name, dt_name(x->dt));
    for (int i = 0; i < x->ndim; i++) str_add(out, i ? ",%lld" : "%lld", (long long)x->dim[i]);
    str_add(out, "]");
    *any = true;
}

static void add_call_shapes(str *out, const op_call *c) {
    op_signature sig = op_signature_of(c->op);
    bool any = false;
    for (int i = 0; i < sig.ins; i++) add_tensor_shape(out, sig.in[i].name, &c->in[i], &any);
    str_add(out, " -> ");
    any = false;
    for (int i = 0; i < sig.outs; i++) add_tensor_shape(out, sig.out[i].name, &c->out[i], &any);
}

int trace_call_begin(exec_trace *t, const op_call *c) {
    return begin_trace_event(t, EVENT_CALL, c->run ? c->run->queue : QUEUE_COMPUTE);
}

void trace_call_end(exec_trace *t, int at, const op_call *c, int n, const instance *in,
                    const prog_op *o, int micro) {
    trace_event *e = &t->event[at];
    set_time(t, e, 1);
    e->op = c->op;
    e->calls = n;
    for (int i = 0; i < n; i++) {
        op_work w = ops_work(&c[i]);
        e->work.flops += w.flops, e->work.bytes += w.bytes, e->work.exps += w.exps;
    }
    if (o) {
        e->p = in->p;
        e->o = o;
        e->layer = in->layer;
        e->micro = micro;
        return;
    }
    str shapes = { 0 };
    add_call_shapes(&shapes, c);
    e->text = shapes.text;
}

#define INSTR_NAME(id, name, letter) [DO_##id] = name,
static const char *const instr_names[] = { INSTR_KINDS(INSTR_NAME) };

int trace_instr_begin(exec_trace *t) { return begin_trace_event(t, EVENT_INSTR, QUEUE_COMPUTE); }

void trace_instr_end(exec_trace *t, int at, const instr *i, const instance *in, int micro) {
    trace_event *e = &t->event[at];
    set_time(t, e, 1);
    str name = { 0 };
    str_add(&name, "%s", instr_names[i->kind]);
    if (in && in->p) {
        str_add(&name, " %s", in->p->name);
        if (in->layer >= 0) str_add(&name, " %d", in->layer);
    }
    e->text = name.text;
    e->micro = micro;
    if (in) e->layer = in->layer;
}

int trace_span_begin(exec_trace *t, const char *name) {
    if (!t || t->ended) return -1;
    int at = begin_trace_event(t, EVENT_SPAN, QUEUE_COMPUTE);
    t->event[at].text = strdup(name);
    return at;
}

void trace_span_end(exec_trace *t, int span) {
    if (t && !t->ended && span >= 0) set_time(t, &t->event[span], 1);
}

/* ---- communication ---------------------------------------------------------------------------------- */
static void describe_ticket(trace_event *e, const comm_ticket *k) {
    e->move = comm_kind(&k->move);
    e->axes = k->move.axes;
    e->in = k->in;
    e->out = k->out;
    e->layer = k->move.layer - 1;
    e->text = k->move.name ? strdup(k->move.name) : NULL;
    const tensor *larger = tensor_bytes(&k->in) > tensor_bytes(&k->out) ? &k->in : &k->out;
    e->work.bytes = (double)tensor_bytes(larger);
}

static void comm_started(void *ctx, const comm_ticket *k) {
    exec_trace *t = ctx;
    int at = begin_trace_event(t, EVENT_COMM, QUEUE_COMPUTE);
    trace_event *e = &t->event[at];
    describe_ticket(e, k);
    e->open = k;
}

static void comm_waits(void *ctx, const comm_ticket *k) {
    exec_trace *t = ctx;
    int at = begin_trace_event(t, EVENT_WAIT, QUEUE_COMPUTE);
    describe_ticket(&t->event[at], k);
}

/* Ends the wait, which is the last event, and what it waited for; that is among the last ones, unless it was
 * started before the trace began. */
static void comm_ended(void *ctx, const comm_ticket *k) {
    exec_trace *t = ctx;
    set_time(t, &t->event[t->n - 1], 1);
    for (int i = t->n - 2; i >= 0; i--)
        if (t->event[i].open == k) {
            set_time(t, &t->event[i], 1);
            t->event[i].open = NULL;
            return;
        }
}

/* ---- the beginning and the end ---------------------------------------------------------------------- */
exec_trace *trace_begin(exec *x) {
    exec_trace *t = mem_alloc(sizeof *t);
    *t = (exec_trace){ .x = x, .b = x->plan->backend, .base = time_now(), .marks = MARKS_OF_STEPS };
    t->watcher = (comm_watcher){ comm_started, comm_waits, comm_ended, t };
    if (t->b->device) t->b->device->mark(t->b->context, QUEUE_COMPUTE, t->marks++);
    trace_resume(t);
    return t;
}

void trace_resume(exec_trace *t) {
    if (!t || t->ended) return;
    t->x->probe.trace = t;
    if (t->x->comm) comm_watch(t->x->comm, &t->watcher);
}

void trace_pause(exec_trace *t) {
    if (!t || t->ended) return;
    t->x->probe.trace = NULL;
    if (t->x->comm) comm_watch(t->x->comm, NULL);
}

/* An event that is still open has no end yet: it ends where it began. */
static void close_event(const exec_trace *t, trace_event *e) {
    const device_table *d = t->b->device;
    e->open = NULL;
    if (d) {
        e->from = d->seconds_between(t->b->context, MARKS_OF_STEPS, e->mark[0]);
        if (e->mark[1]) e->to = d->seconds_between(t->b->context, MARKS_OF_STEPS, e->mark[1]);
    }
    e->to = MAX(e->to, e->from);
}

err trace_end(exec_trace *t) {
    if (t->ended) return OK;
    trace_pause(t);
    t->ended = true;
    if (t->b->device) TRY(t->b->device->sync(t->b->context));
    for (int i = 0; i < t->n; i++) close_event(t, &t->event[i]);
    return OK;
}

void trace_free(exec_trace *t) {
    if (!t) return;
    err_free(trace_end(t));
    for (int i = 0; i < t->n; i++) free(t->event[i].text);
    free(t->event);
    free(t);
}

/* @return the name of a source file without its folder, which depends on where it was compiled. */
static const char *source_name(const char *file) {
    const char *slash = strrchr(file, '/');
    return slash ? slash + 1 : file;
}

/* ---- Chrome's trace format ----------------------------------------------------------------------------- */
enum { COMM_THREAD = 100 }; /* queues are 0, 1, ... */

static void add_json_text(str *out, const char *text) {
    str_add(out, "\"");
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') str_add(out, "\\");
        str_add_bytes(out, (unsigned char)*text < ' ' ? "?" : text, 1);
    }
    str_add(out, "\"");
}

static void add_name(str *out, const trace_event *e) {
    str name = { 0 };
    if (e->kind == EVENT_CALL) {
        str_add(&name, "%s", op_name(e->op));
    } else if (e->kind == EVENT_COMM || e->kind == EVENT_WAIT) {
        char axes[64];
        str_add(&name, "%s%s over %s", e->kind == EVENT_WAIT ? "wait: " : "", move_name(e->move),
                axes_str(axes, sizeof axes, e->axes));
    } else {
        str_add(&name, "%s", e->text ? e->text : "");
    }
    add_json_text(out, name.text);
    str_free(&name);
}

static void add_shapes(str *out, const trace_event *e) {
    str shapes = { 0 };
    bool any = false;
    if (e->kind == EVENT_CALL && e->o) {
        op_call c = call_of(e->p, e->o, NULL);
        add_call_shapes(&shapes, &c);
    } else if (e->kind == EVENT_CALL) {
        str_add(&shapes, "%s", e->text);
    } else {
        add_tensor_shape(&shapes, "in", &e->in, &any);
        add_tensor_shape(&shapes, "out", &e->out, &any);
    }
    if (shapes.len) {
        str_add(out, ",\"shapes\":");
        add_json_text(out, shapes.text);
    }
    str_free(&shapes);
}

/* Adds the details that a viewer shows of the event: where it comes from, its work, and the rate at which it was done. */
static void add_args(str *out, const trace_event *e) {
    double seconds = e->to - e->from;
    str_add(out, "\"args\":{\"kind\":\"%s\"", kind_names[e->kind]);
    if (e->layer >= 0) str_add(out, ",\"layer\":%d", e->layer);
    if (e->micro >= 0) str_add(out, ",\"microbatch\":%d", e->micro);
    if (e->p) str_add(out, ",\"program\":\"%s\"", e->p->name);
    if (e->kind != EVENT_INSTR && e->kind != EVENT_SPAN) add_shapes(out, e);
    if (e->o)
        str_add(out, ",\"source\":\"%s:%d %s\"", source_name(e->o->site.file), e->o->site.line,
                e->o->site.function);
    if (e->work.bytes > 0) str_add(out, ",\"bytes\":%.0f", e->work.bytes);
    if (e->work.flops > 0) str_add(out, ",\"flops\":%.0f", e->work.flops);
    if (e->work.flops > 0 && seconds > 0)
        str_add(out, ",\"GFLOP/s\":%.4g", e->work.flops / seconds * 1e-9);
    if (e->work.bytes > 0 && seconds > 0)
        str_add(out, ",\"GB/s\":%.4g", e->work.bytes / seconds * 1e-9);
    if (e->kind == EVENT_COMM && e->text) {
        str_add(out, ",\"by\":");
        add_json_text(out, e->text);
    }
    str_add(out, "}");
}

/* Communications overlap one another: each is an asynchronous pair of events. */
static void write_event(const trace_event *e, int process, int number, str *out) {
    bool in_flight = e->kind == EVENT_COMM;
    int thread = in_flight ? COMM_THREAD : (int)e->queue;
    str_add(out, "{\"name\":");
    add_name(out, e);
    str_add(out, ",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,", kind_names[e->kind], process,
            thread, 1e6 * e->from);
    if (in_flight)
        str_add(out, "\"ph\":\"b\",\"id\":%d,", number);
    else
        str_add(out, "\"ph\":\"X\",\"dur\":%.3f,", 1e6 * (e->to - e->from));
    add_args(out, e);
    str_add(out, "},\n");
    if (!in_flight) return;
    str_add(out, "{\"name\":");
    add_name(out, e);
    str_add(out, ",\"cat\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"ph\":\"e\",\"id\":%d},\n",
            kind_names[e->kind], process, thread, 1e6 * e->to, number);
}

static void name_thread(str *out, int process, int thread, const char *name) {
    str_add(
        out,
        "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}},\n",
        process, thread, name);
}

void trace_write(const exec_trace *t, int process, str *out) {
    bool seen[QUEUE_COUNT] = { false }, comm_seen = false;
    for (int i = 0; i < t->n; i++) {
        if (t->event[i].kind == EVENT_COMM)
            comm_seen = true;
        else
            seen[t->event[i].queue] = true;
        write_event(&t->event[i], process, i, out);
    }
    for (int q = 0; q < QUEUE_COUNT; q++)
        if (seen[q])
            name_thread(out, process, q, q == QUEUE_COMPUTE ? "compute" : "update and copies");
    if (comm_seen) name_thread(out, process, COMM_THREAD, "in flight between ranks");
}

/* ---- sums ----------------------------------------------------------------------------------------------- */
SORT_ORDER(by_seconds, trace_row, FALLING(seconds) RISING_TEXT(op));

static bool is_row_of(const trace_row *r, const trace_event *e) {
    if (strcmp(r->op, op_name(e->op)) != 0 || (r->file == NULL) != (e->o == NULL)) return false;
    return !e->o || (r->line == e->o->site.line && !strcmp(r->file, source_name(e->o->site.file)));
}

int trace_rows(const exec_trace *t, trace_row **out) {
    trace_row *rows = NULL;
    int n = 0, cap = 0;
    for (int i = 0; i < t->n; i++) {
        const trace_event *e = &t->event[i];
        int at = 0;
        if (e->kind != EVENT_CALL) continue;
        while (at < n && !is_row_of(&rows[at], e)) at++;
        if (at == n) {
            rows = mem_reserve(rows, &cap, n++, sizeof *rows);
            rows[at] = (trace_row){ .op = op_name(e->op) };
            if (e->o)
                rows[at].file = source_name(e->o->site.file),
                rows[at].function = e->o->site.function, rows[at].line = e->o->site.line;
        }
        rows[at].calls += e->calls;
        rows[at].seconds += e->to - e->from;
        rows[at].work.flops += e->work.flops;
        rows[at].work.bytes += e->work.bytes;
    }
    sort_array(rows, (size_t)n, sizeof *rows, by_seconds);
    *out = rows;
    return n;
}

static double sum_seconds(const exec_trace *t, event_kind kind) {
    double sum = 0;
    for (int i = 0; i < t->n; i++)
        if (t->event[i].kind == kind) sum += t->event[i].to - t->event[i].from;
    return sum;
}

double trace_busy_seconds(const exec_trace *t) { return sum_seconds(t, EVENT_CALL); }
double trace_wait_seconds(const exec_trace *t) { return sum_seconds(t, EVENT_WAIT); }
