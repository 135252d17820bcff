/* Measures what calls cost on the CPU of this machine, for its entry in the catalogue (`ingot doctor --calibrate`).
 *
 * Small models of several families and widths take a few training steps while the executor times each op. What a
 * call of an op takes is then fitted over these models as
 *
 *     seconds = call + flop x operations of its GEMMs + byte x bytes + exp x exponentials of its softmax
 *
 * with coefficients that are not negative: the work of starting threads, the rate of the inner kernel, packing and
 * traffic, and what scores cost beside the GEMMs of attention and loss. Each term adds up over calls, so sums over a
 * step are enough to fit it. They are those of a model's median step, as a run's speed is: ops' own medians would add
 * up to less than a step wherever other processes disturb some of them in every step. */
#include "planning_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops/op_table.h"

enum { WARM_UP_STEPS = 1 };

/* Widths and vocabularies on both sides of what fits in a core's caches; heads of 32, 64 and 128. */
typedef struct calibration_model {
    const char *preset;
    int dim, heads, ffn, vocab, rows, seq;
} calibration_model;
static const calibration_model calibration_models[] = {
    { "gpt-small", 128, 4, 512, 512, 8, 64 },    { "gpt-small", 256, 4, 1024, 2048, 4, 256 },
    { "gpt-small", 512, 4, 2048, 4096, 1, 512 }, { "gpt-small", 768, 12, 3072, 8192, 2, 128 },
    { "gpt-small", 128, 4, 256, 32768, 2, 128 }, { "tiny", 128, 4, 384, 257, 8, 256 },
    { "tiny", 320, 10, 896, 2048, 2, 256 },      { "tiny", 640, 10, 1792, 1024, 1, 512 },
    { "moe-tiny", 128, 4, 384, 257, 4, 128 },    { "moe-tiny", 256, 4, 512, 257, 2, 256 },
};

/* ---- a model that trains ---------------------------------------------------------------------------- */
typedef struct calibration_run {
    config c;
    model_config mc;
    model *m;
    plan *p;
    optimizer *o;
    exec x;
    chain train;
    int train_id;
    int64_t n;
    op_profile profile[OP_COUNT];
    struct timed_step {
        double seconds;
        calibration_point op[OP_COUNT];
    } step[CALIBRATION_STEPS];
} calibration_run;
typedef struct timed_step timed_step;

static err set_calibration_config(const calibration_model *k, dtype dt, config *c) {
    const struct {
        const char *option;
        int value;
    } numbers[] = { { "model.layers", 2 },
                    { "model.dim", k->dim },
                    { "model.heads", k->heads },
                    { "model.ffn_dim", k->ffn },
                    { "model.vocab_size", k->vocab },
                    { "model.head_dim", k->dim / k->heads },
                    { "training.seq_len", k->seq },
                    { "training.local_batch_size", k->rows } };
    TRY(config_set(c, "model.preset", k->preset));
    TRY(config_set(c, "precision.dtype", dt_name(dt)));
    TRY(config_set(c, "device", "cpu"));
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", numbers[i].value);
        TRY(config_set(c, numbers[i].option, text));
    }
    return OK;
}

static err open_calibration(const calibration_model *k, const op_backend *ops, dtype dt,
                            pool *threads, calibration_run *r) {
    TRY(set_calibration_config(k, dt, &r->c));
    TRY(model_from_config(&r->c, &r->mc));
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

static int by_step_seconds(const void *a, const void *b) {
    double x = ((const timed_step *)a)->seconds, y = ((const timed_step *)b)->seconds;
    return (x > y) - (x < y);
}

static err time_one_step(calibration_run *r, int64_t seq, int step) {
    memset(r->profile, 0, sizeof r->profile);
    set_random_batch(r, seq, step);
    r->x.step.loss_grad = 1.0f / (float)r->n;
    r->x.probe.profile = r->profile;
    double from = time_now();
    TRY(exec_chain(&r->x, r->train_id, 0, 1));
    TRY(optim_step(r->o, &r->x, 1e-4, 1));
    r->x.probe.profile = NULL;
    double to = time_now();
    if (step < WARM_UP_STEPS) return OK;
    timed_step *s = &r->step[step - WARM_UP_STEPS];
    s->seconds = to - from;
    for (int op = 1; op < OP_COUNT; op++) {
        const op_profile *f = &r->profile[op];
        s->op[op] =
            (calibration_point){ { (double)f->calls, f->work.flops, f->work.bytes, f->work.exps },
                                 f->seconds };
    }
    return OK;
}

static err time_model(const calibration_model *k, const op_backend *ops, dtype dt, pool *threads,
                      int steps, calibration_run *r) {
    config_init(&r->c);
    err e = open_calibration(k, ops, dt, threads, r);
    for (int i = 0; i < WARM_UP_STEPS + steps && !e; i++) e = time_one_step(r, k->seq, i);
    close_calibration(r);
    sort_array(r->step, (size_t)steps, sizeof *r->step, by_step_seconds);
    return e;
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
static double fit_terms(const calibration_point *p, int n, int used, double out[CALL_TERMS]) {
    double a[CALL_TERMS][CALL_TERMS] = { { 0 } }, b[CALL_TERMS] = { 0 }, size[CALL_TERMS], sum = 0;
    int term[CALL_TERMS], terms = 0;
    for (int t = 0; t < CALL_TERMS; t++)
        if (used >> t & 1) term[terms++] = t;
    for (int t = 0; t < terms; t++) { /* in units in which the largest is 1 */
        size[t] = 0;
        for (int i = 0; i < n; i++) size[t] = MAX(size[t], p[i].x[term[t]] / p[i].seconds);
        if (!(size[t] > 0)) return INFINITY;
    }
    for (int i = 0; i < n; i++)
        for (int s = 0; s < terms; s++) {
            double x = p[i].x[term[s]] / p[i].seconds / size[s];
            b[s] += x;
            for (int t = 0; t < terms; t++) a[s][t] += x * p[i].x[term[t]] / p[i].seconds / size[t];
        }
    if (!solve_symmetric(a, b, terms)) return INFINITY;
    memset(out, 0, CALL_TERMS * sizeof *out);
    for (int t = 0; t < terms; t++) {
        if (!(b[t] > 0)) return INFINITY;
        out[term[t]] = b[t] / size[t];
    }
    for (int i = 0; i < n; i++) {
        double got = 0;
        for (int t = 0; t < CALL_TERMS; t++) got += out[t] * p[i].x[t];
        sum += (got / p[i].seconds - 1) * (got / p[i].seconds - 1);
    }
    return sum;
}

bool calibration_fit(const calibration_point *p, int n, double out[CALL_TERMS]) {
    double least = INFINITY, trial[CALL_TERMS];
    for (int used = 1; used < 1 << CALL_TERMS; used++) {
        double sum = fit_terms(p, n, used, trial);
        if (!(sum < least)) continue;
        least = sum;
        memcpy(out, trial, sizeof trial);
    }
    return isfinite(least);
}

err calibrate_cpu(const op_backend *ops, dtype dt, int steps, accelerator *a) {
    BUG_IF(steps < 1 || steps > CALIBRATION_STEPS);
    enum { MODELS = COUNT_OF(calibration_models) };
    calibration_run *runs = mem_alloc(MODELS * sizeof *runs);
    pool *threads = pool_new(0);
    err e = OK;
    for (int i = 0; i < MODELS && !e; i++)
        e = time_model(&calibration_models[i], ops, dt, threads, steps, &runs[i]);
    for (int op = OP_NONE + 1; op < OP_COUNT && !e; op++) {
        calibration_point p[MODELS];
        double fitted[CALL_TERMS];
        int n = 0;
        for (int i = 0; i < MODELS; i++)
            if (runs[i].step[steps / 2].op[op].seconds > 0) p[n++] = runs[i].step[steps / 2].op[op];
        if (!n || a->n_calls == MOST_CALL_COSTS || !calibration_fit(p, n, fitted)) continue;
        a->calls[a->n_calls++] =
            (call_cost){ (op_code)op, dt, fitted[0], fitted[1], fitted[2], fitted[3] };
    }
    pool_free(threads);
    free(runs);
    return e;
}
