/* Measures what calls cost on the CPU of this machine, for its entry in the catalogue (`ingot doctor --calibrate`).
 *
 * Small models of several families and widths take a few training steps, with the optimizer that a run of them would have,
 * while the executor times each call. The calls of an op, one for each shape, are then fitted as
 *
 *     seconds = call + flop x operations of its GEMMs + byte x bytes + exp x exponentials of its softmax
 *
 * with coefficients that are not negative: the work of starting threads, the rate of the inner kernel, packing and
 * traffic, and what scores cost beside the GEMMs of attention and loss. The catalogue has these terms and the calls, since
 * calls are priced by the measured ones that are most like them (call_costs.c). */
#include "planning_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/op_table.h"

/* Widths, vocabularies and batches on both sides of what fits in a core's caches, 256 to 4096 tokens; heads of 32, 64 and
 * 128. */
typedef struct calibration_model {
    const char *preset;
    int layers, dim, heads, ffn, vocab, rows, seq;
} calibration_model;
static const calibration_model calibration_models[] = {
    { "gpt-small", 3, 128, 4, 512, 512, 16, 64 },   { "gpt-small", 2, 256, 4, 1024, 2048, 8, 256 },
    { "gpt-small", 1, 512, 4, 2048, 4096, 4, 512 }, { "gpt-small", 1, 768, 12, 3072, 8192, 2, 128 },
    { "gpt-small", 2, 192, 6, 256, 32768, 2, 128 }, { "tiny", 4, 96, 3, 256, 300, 16, 256 },
    { "tiny", 2, 320, 10, 896, 2048, 4, 256 },      { "tiny", 1, 640, 10, 1792, 1024, 2, 512 },
    { "moe-tiny", 3, 128, 4, 256, 257, 8, 256 },    { "moe-tiny", 2, 256, 4, 512, 257, 4, 256 },
};

/* ---- a model that trains ---------------------------------------------------------------------------- */
typedef struct calibration_run {
    config asked, c;
    model_config mc;
    model *m;
    plan *p;
    optimizer *o;
    exec x;
    chain train;
    int train_id;
    int64_t n;
} calibration_run;

/* Sets what a run of this model would have, its optimizer included. */
static err set_calibration_config(const calibration_model *k, dtype dt, calibration_run *r) {
    config *c = &r->asked;
    const struct {
        const char *option;
        int value;
    } numbers[] = { { "model.layers", k->layers },    { "model.dim", k->dim },
                    { "model.heads", k->heads },      { "model.ffn_dim", k->ffn },
                    { "model.vocab_size", k->vocab }, { "model.head_dim", k->dim / k->heads },
                    { "training.seq_len", k->seq },   { "training.local_batch_size", k->rows } };
    TRY(config_set(c, "model.preset", k->preset));
    TRY(config_set(c, "precision.dtype", dt_name(dt)));
    TRY(config_set(c, "device", "cpu"));
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", numbers[i].value);
        TRY(config_set(c, numbers[i].option, text));
    }
    TRY(model_from_config(c, &r->mc));
    return train_settle(c, &r->mc, &r->c);
}

static err open_calibration(const calibration_model *k, const op_backend *ops, dtype dt,
                            pool *threads, calibration_run *r) {
    TRY(set_calibration_config(k, dt, r));
    model_layout l = train_layout(&r->c, ops, k->seq);
    r->n = (int64_t)k->rows * k->seq;
    r->x.pool = threads;
    r->x.comm = comm_self();
    r->p = r->x.plan = plan_new(&l.mesh, ops, pool_size(threads));
    TRY(model_new(&r->mc, &l, &r->m));
    model_reserve(r->m, r->p, true);
    optim_settings s = train_optim(&r->c, ops, &l);
    TRY(optim_new(&s, r->m, r->p, &r->o));
    TRY(model_record(r->m, PROG_TRAIN, r->n, k->seq, &r->train));
    TRY(plan_chain(r->p, &r->train, model_bucket_regions, r->m, &r->train_id));
    TRY(plan_commit(r->p));
    model_init(r->m, r->p, 1);
    return OK;
}

static void close_calibration(calibration_run *r) {
    optim_free(r->o);
    plan_free(r->p);
    comm_free(r->x.comm);
    model_free(r->m);
    config_free(&r->c);
    config_free(&r->asked);
}

static void set_random_batch(calibration_run *r, int64_t seq, int step) {
    size_t n = (size_t)r->n;
    int32_t *tokens = mem_alloc(n * sizeof *tokens), *targets = mem_alloc(n * sizeof *targets);
    int32_t *pos = mem_alloc(n * sizeof *pos), *start = mem_alloc(n * sizeof *start);
    int64_t *ids = mem_alloc(n * sizeof *ids);
    rng_key key = rng_key_of(7, (uint64_t)step);
    for (int64_t i = 0; i < r->n; i++) {
        tokens[i] = (int32_t)rng_below(key, (uint64_t)i, (uint64_t)r->mc.vocab);
        targets[i] = (int32_t)rng_below(key, (uint64_t)(i + r->n), (uint64_t)r->mc.vocab);
        pos[i] = (int32_t)(i % seq);
        start[i] = (int32_t)(i - i % seq);
        ids[i] = i;
    }
    model_set_batch(r->m, r->p, &(model_batch){ tokens, targets, pos, start, ids, r->n });
    free(tokens);
    free(targets);
    free(pos);
    free(start);
    free(ids);
}

/* ---- calls as they are timed ---------------------------------------------------------------------------- */
typedef struct logged_call {
    op_code op;
    measured_call of;
} logged_call;
typedef struct call_log {
    logged_call *call; /* [n] owned */
    int n, cap;
} call_log;

static void log_call(void *ctx, const op_call *c, double seconds) {
    call_log *t = ctx;
    LIST_ADD(t->call, t->n, t->cap) = (logged_call){ c->op, { call_shape_of(c), seconds } };
}

/* By op and shape; calls of one shape by their time. */
static int by_op_and_shape(const void *a, const void *b) {
    const logged_call *x = a, *y = b;
    if (x->op != y->op) return x->op < y->op ? -1 : 1;
    int d = memcmp(&x->of.shape, &y->of.shape, sizeof x->of.shape);
    if (d) return d;
    return (x->of.seconds > y->of.seconds) - (x->of.seconds < y->of.seconds);
}

static bool calls_alike(const logged_call *a, const logged_call *b) {
    return a->op == b->op && !memcmp(&a->of.shape, &b->of.shape, sizeof a->of.shape);
}

/* The mean of the middle third of calls of one shape, which are sorted: calls of a step differ, since some find their operands
 * in a cache, and what else runs on the machine delays a few. */
static double middle_mean(const logged_call *c, int n) {
    int from = n / 3, to = n - n / 3;
    double sum = 0;
    for (int i = from; i < to; i++) sum += c[i].of.seconds;
    return sum / (to - from);
}

/* Replaces the calls by one for each shape, sorted by op. */
static void merge_calls(call_log *t) {
    int kept = 0;
    sort_array(t->call, (size_t)t->n, sizeof *t->call, by_op_and_shape);
    for (int i = 0, end; i < t->n; i = end) {
        for (end = i + 1; end < t->n && calls_alike(&t->call[end], &t->call[i]);) end++;
        double seconds = middle_mean(&t->call[i], end - i);
        t->call[kept] = t->call[i];
        t->call[kept++].of.seconds = seconds;
    }
    t->n = kept;
}

/* Takes steps of all models in turn, `rounds` times, so that a machine whose speed drifts does not slow one model's calls alone. The
 * first of each model's steps in a round is not timed: it finds the other models' data in the caches. */
static err time_models(calibration_run *runs, int n, int rounds, call_log *calls) {
    op_timer timer = { log_call, calls };
    for (int i = 0; i < rounds * n; i++) {
        calibration_run *r = &runs[i % n];
        for (int timed = 0; timed < 2; timed++) {
            r->x.probe.timer = timed ? &timer : NULL;
            set_random_batch(r, calibration_models[i % n].seq, i / n * 2 + timed);
            r->x.step.loss_grad = 1.0f / (float)r->n;
            TRY(exec_chain(&r->x, r->train_id, 0, 1));
            TRY(optim_step(r->o, &r->x, 1e-4, 1));
        }
    }
    return OK;
}

/* ---- the fit ------------------------------------------------------------------------------------------ */
/* Solves a x = b in place; a is symmetric, [n][n]. @return whether it is regular. */
static bool solve_symmetric(double a[CALL_TERMS][CALL_TERMS], double b[CALL_TERMS], int n) {
    for (int k = 0; k < n; k++) {
        if (!(a[k][k] > 1e-12)) return false;
        for (int i = k + 1; i < n; i++) {
            double f = a[i][k] / a[k][k];
            for (int j = k; j < n; j++) a[i][j] -= f * a[k][j];
            b[i] -= f * b[k];
        }
    }
    for (int k = n - 1; k >= 0; k--) {
        for (int j = k + 1; j < n; j++) b[k] -= a[k][j] * b[j];
        b[k] /= a[k][k];
    }
    return true;
}

/* Least squares of relative errors over the terms in `used`. @return the sum of squares; infinite where it has no
 * solution with positive coefficients. */
static double fit_terms(const measured_call *p, int n, int used, double out[CALL_TERMS]) {
    double a[CALL_TERMS][CALL_TERMS] = { { 0 } }, b[CALL_TERMS] = { 0 }, size[CALL_TERMS], sum = 0;
    int term[CALL_TERMS], terms = 0;
    for (int t = 0; t < CALL_TERMS; t++)
        if (used >> t & 1) term[terms++] = t;
    for (int t = 0; t < terms; t++) { /* in units in which the largest is 1 */
        size[t] = 0;
        for (int i = 0; i < n; i++) size[t] = MAX(size[t], p[i].shape.work[term[t]] / p[i].seconds);
        if (!(size[t] > 0)) return INFINITY;
    }
    for (int i = 0; i < n; i++)
        for (int s = 0; s < terms; s++) {
            double x = p[i].shape.work[term[s]] / p[i].seconds / size[s];
            b[s] += x;
            for (int t = 0; t < terms; t++)
                a[s][t] += x * p[i].shape.work[term[t]] / p[i].seconds / size[t];
        }
    if (!solve_symmetric(a, b, terms)) return INFINITY;
    memset(out, 0, CALL_TERMS * sizeof *out);
    for (int t = 0; t < terms; t++) {
        if (!(b[t] > 0)) return INFINITY;
        out[term[t]] = b[t] / size[t];
    }
    for (int i = 0; i < n; i++) {
        double got = 0;
        for (int t = 0; t < CALL_TERMS; t++) got += out[t] * p[i].shape.work[t];
        sum += (got / p[i].seconds - 1) * (got / p[i].seconds - 1);
    }
    return sum;
}

bool calibration_fit(const measured_call *p, int n, double out[CALL_TERMS]) {
    double least = INFINITY, trial[CALL_TERMS];
    for (int used = 1; used < 1 << CALL_TERMS; used++) {
        double sum = fit_terms(p, n, used, trial);
        if (!(sum < least)) continue;
        least = sum;
        memcpy(out, trial, sizeof trial);
    }
    return isfinite(least);
}

/* @param calls of one op, each of another shape */
static void add_call_cost(accelerator *a, op_code op, dtype dt, const logged_call *calls, int n) {
    measured_call *measured = mem_alloc((size_t)n * sizeof *measured);
    double term[CALL_TERMS];
    for (int i = 0; i < n; i++) measured[i] = calls[i].of;
    if (!calibration_fit(measured, n, term)) {
        free(measured);
        return;
    }
    call_cost *c = call_costs_add(a);
    *c = (call_cost){ .op = op, .type = dt, .measured = measured, .n = n };
    memcpy(c->term, term, sizeof term);
}

err calibrate_cpu(const op_backend *ops, dtype dt, int rounds, accelerator *a) {
    BUG_IF(rounds < 1 || rounds > CALIBRATION_ROUNDS);
    enum { MODELS = COUNT_OF(calibration_models) };
    call_log t = { 0 };
    calibration_run *runs = mem_alloc(MODELS * sizeof *runs);
    pool *threads = pool_new(0);
    int open = 0;
    err e = OK;
    while (open < MODELS && !e) {
        config_init(&runs[open].asked);
        e = open_calibration(&calibration_models[open], ops, dt, threads, &runs[open]);
        open++;
    }
    if (!e) e = time_models(runs, MODELS, rounds, &t);
    while (open > 0) close_calibration(&runs[--open]);
    merge_calls(&t);
    for (int i = 0, end; i < t.n && !e; i = end) {
        for (end = i + 1; end < t.n && t.call[end].op == t.call[i].op;) end++;
        add_call_cost(a, t.call[i].op, dt, &t.call[i], end - i);
    }
    pool_free(threads);
    free(runs);
    free(t.call);
    return e;
}

/* ---- ranks of one machine ------------------------------------------------------------------------------- */
enum { LINK_BYTES = 1 << 20, LINK_ROUNDS = 15 };
typedef struct link_probe {
    comm *end[2];
    char *data; /* [2 ranks][operand, result][LINK_BYTES] */
    double seconds[LINK_ROUNDS];
    err e[2];
} link_probe;

static void sum_over_link(void *ctx, int64_t rank, int worker) {
    link_probe *p = ctx;
    const comm_move sum = { .axes = AXES_ALL, .from = PLACE_P, .to = PLACE_I };
    int64_t n = LINK_BYTES / (int64_t)sizeof(float);
    char *at = p->data + rank * 2 * LINK_BYTES;
    tensor in = tensor_of(at, DT_F32, 1, &n), out = tensor_of(at + LINK_BYTES, DT_F32, 1, &n);
    for (int i = 0; i < LINK_ROUNDS && !p->e[rank]; i++) {
        comm_ticket ticket;
        double from = time_now();
        p->e[rank] = comm_start(p->end[rank], &sum, &in, &out, &ticket);
        if (!p->e[rank]) p->e[rank] = comm_wait(p->end[rank], &ticket);
        if (rank == 0) p->seconds[i] = time_now() - from;
    }
}

/* Finds the bandwidth with which network_links.c prices an all-reduce of two ranks as it was measured. */
err calibrate_link(double *out) {
    link_probe p = { 0 };
    pool *threads = pool_new(0);
    *out = NAN;
    if (pool_size(threads) < 2) {
        pool_free(threads);
        return OK;
    }
    /* Which axis it is changes nothing: ranks of one machine are threads. */
    err e = comm_threads((mesh){ .size = { [AX_COUNT - 1] = 2 } }, 60, p.end);
    if (!e) {
        p.data = mem_alloc(4 * (size_t)LINK_BYTES);
        pool_run(threads, 2, sum_over_link, &p);
        e = p.e[0] ? p.e[0] : p.e[1];
        if (p.e[0]) err_free(p.e[1]);
        double seconds = sorted_median(p.seconds, LINK_ROUNDS);
        double rate = LINK_BYTES / MAX(seconds - plan_constants.start, seconds / 2);
        *out = 2 * rate / plan_constants.link;
        for (int i = 0; i < 2; i++) comm_free(p.end[i]);
    }
    free(p.data);
    pool_free(threads);
    return e;
}
