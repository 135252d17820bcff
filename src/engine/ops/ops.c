/* Calls of ops: whether a backend supports one, its workspace, its cost; and the measured peak rate. */
#include "ops/op_table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

err ops_check(const op_backend *b, const op_call *c) {
    const op_impl *impl = b->impl[c->op];
    attr_set missing = op_row_of(c->op)->attrs & op_attrs_set(&c->attr) & ~impl->attrs;
    for (int i = 0; i < ATTR_COUNT; i++)
        if (missing >> i & 1)
            return err_hint(ERR("the %s kernel of %s does not support %s",
                                b->device ? "CUDA" : "CPU", op_name(c->op), attr_name((attr_id)i)),
                            "%sadd it to the KERNEL line of the op in src/engine/ops/%s",
                            b->device ? "use --device=cpu, or " : "", b->device ? "cuda" : "cpu");
    return OK;
}

void ops_run(const op_backend *b, const op_call *c) {
    BUG_IF(!b->impl[c->op]->run);
    BUG_IF(c->run->workspace_bytes < ops_workspace(b, c, pool_size(c->run->pool)));
    b->impl[c->op]->run(c);
}

size_t ops_workspace(const op_backend *b, const op_call *c, int threads) {
    const op_impl *impl = b->impl[c->op];
    return impl->workspace ? impl->workspace(b, c, threads) : 0;
}

int ops_group_limit(const op_backend *b, const op_call *c, size_t workspace_bytes) {
    size_t each = align_up(ops_workspace(b, c, 1), 256);
    if (!b->impl[c->op]->run_group) return 1;
    return each ? (int)MIN(MAX(workspace_bytes / each, 1), OPS_GROUP) : OPS_GROUP;
}

void ops_run_group(const op_backend *b, const op_call *c, int n) {
    if (n == 1) return ops_run(b, c);
    for (int i = 0; i < n; i++)
        BUG_IF(c[i].op != c->op || ops_group_limit(b, &c[i], c->run->workspace_bytes) < n);
    b->impl[c->op]->run_group(c, n);
}

/* ---- the cost of a call ------------------------------------------------------------------------ */

static double count_of(const tensor *t) { return t->dt == DT_NONE ? 0 : (double)tensor_count(t); }

/* FLOPs of a GEMM a[m,k] b[k,n] = c[m,n] from element counts, whichever are transposed: m k n is the
 * square root of the product of the three counts. */
static double gemm_flops(double a, double b, double c) { return 2 * sqrt(a * b * c); }

/* Of a block of keys; under the causal mask a query sees half of the blocks. */
static double block_scores(const op_call *c) {
    return (double)c->in[1].dim[0] * (double)c->in[2].dim[0] * c->attr.heads.q * c->attr.heads.dim;
}

/* Twice what a causal mask leaves, and a window of what that does. */
static double attention_scores(const op_call *c) {
    double keys = c->attr.heads.seq ? c->attr.heads.seq : (double)c->in[0].dim[0];
    double window = c->attr.heads.window;
    if (window > 0 && window < keys) keys = 2 * window - window * window / keys;
    return (double)c->in[0].dim[0] * keys * c->attr.heads.q * c->attr.heads.dim;
}

/* Five iterations on a matrix with a side of S = min(R, C): the Gram matrix of x, its square, and their sum
 * times x. */
static double orthogonalize_flops(const tensor *u) {
    enum { ITERATIONS = 5 };
    double side = (double)MIN(u->dim[u->ndim - 2], u->dim[u->ndim - 1]);
    double each = (double)(u->dim[u->ndim - 2] * u->dim[u->ndim - 1]);
    return ITERATIONS * (count_of(u) / each) * (4 * side * each + 2 * side * side * side);
}

/* Per token and head of values: three GEMMs with the state [K,V], and half of four within a chunk.
 * @param o the result, or its gradient */
static double delta_flops(const op_call *c, const tensor *qkv, const tensor *gate,
                          const tensor *o) {
    enum { DELTA_CHUNK = 64 };
    double heads = (double)gate->dim[1] / 2, v = (double)o->dim[1] / heads;
    double k = (double)(qkv->dim[1] - o->dim[1]) / (2.0 * c->attr.heads.q);
    return (double)qkv->dim[0] * heads * (6 * k * v + 2 * DELTA_CHUNK * (k + v));
}

static double call_flops(const op_call *c, op_cost cost) {
    const tensor *in = c->in, *out = c->out;
    switch (cost) {
    case COST_GEMM: return gemm_flops(count_of(&in[0]), count_of(&in[1]), count_of(&out[0]));
    case COST_GROUPED: { /* of x[M,K] and y[M,F]: w's gradient reads both, else one is the result */
        bool of_w = op_flags(c->op) & OPF_WEIGHT_GRAD;
        return 2 * count_of(&in[0]) * count_of(of_w ? &in[1] : &out[0]) / (double)in[0].dim[0];
    }
    case COST_LOSS: {
        double n = (double)in[0].dim[0] * (double)in[1].dim[0] * (double)in[0].dim[1];
        return 2 * n * (1 + (out[1].dt != DT_NONE) + (out[2].dt != DT_NONE));
    }
    case COST_ATTENTION: return 2 * attention_scores(c);
    case COST_ATTENTION_BWD: return 5 * attention_scores(c);
    case COST_ATTENTION_BLOCK: return 2 * block_scores(c);
    case COST_ATTENTION_BLOCK_BWD: return 5 * block_scores(c);
    case COST_DELTA: return delta_flops(c, &in[0], &in[1], &out[0]);
    case COST_DELTA_BWD: return 3 * delta_flops(c, &in[1], &in[2], &in[0]);
    case COST_ORTHOGONALIZE: return orthogonalize_flops(&out[0]);
    default: return 0;
    }
}

static double call_bytes(const op_call *c, op_cost cost) {
    double bytes = 0;
    int copy = -1;
    if (cost == COST_UPDATE) {
        op_signature sig = op_signature_of(c->op);
        copy = op_find(sig.out, sig.outs, "copy");
    }
    if (cost == COST_GATHER)
        return count_of(&c->out[0]) * (double)(dt_size(c->in[1].dt) + dt_size(c->out[0].dt));
    for (int i = 0; i < OP_MAX_IN; i++)
        if (c->in[i].dt != DT_NONE) bytes += (double)tensor_bytes(&c->in[i]);
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (c->out[i].dt == DT_NONE) continue;
        bool also_read =
            cost == COST_UPDATE ? i != copy : (c->accumulate >> i & 1) && c->out[i].dt == DT_F32;
        bytes += (double)tensor_bytes(&c->out[i]) * (also_read ? 2 : 1);
    }
    return bytes;
}

/* One for each score, or logit; a causal mask leaves half of the scores. */
static double call_exps(const op_call *c, op_cost cost) {
    switch (cost) {
    case COST_LOSS: return (double)c->in[0].dim[0] * (double)c->in[1].dim[0];
    case COST_ATTENTION:
    case COST_ATTENTION_BWD: return attention_scores(c) / c->attr.heads.dim / 2;
    case COST_ATTENTION_BLOCK:
    case COST_ATTENTION_BLOCK_BWD: return block_scores(c) / c->attr.heads.dim / 2;
    default: return 0;
    }
}

op_work ops_work(const op_call *c) {
    op_cost cost = op_row_of(c->op)->cost;
    return (op_work){ call_flops(c, cost), call_bytes(c, cost), call_exps(c, cost) };
}

/* ---- peak rate --------------------------------------------------------------------------------- */

typedef struct burn_run {
    const op_backend *b;
    dtype dt;
    int64_t rounds;
    double *done; /* [threads] */
} burn_run;

static void burn_task(void *ctx, int64_t i, int worker) {
    const burn_run *r = ctx;
    r->done[i] = r->b->burn(r->dt, r->rounds);
}

double ops_peak_flops(const op_backend *b, dtype dt, pool *p) {
    if (b->device) return b->device->peak_flops(b->context, dt);
    int threads = pool_size(p);
    burn_run r = { b, dt, 20000, mem_alloc((size_t)threads * sizeof(double)) };
    double best = 0;
    for (int rep = 0; rep < 5;) { /* the best of several: other processes only ever slow it down */
        double start = time_now(), done = 0;
        pool_run(p, threads, burn_task, &r);
        double seconds = time_now() - start;
        for (int i = 0; i < threads; i++) done += r.done[i];
        if (seconds < 1e-3) {
            r.rounds *= 4;
            continue;
        }
        best = MAX(best, done / seconds);
        rep++;
    }
    free(r.done);
    return best;
}

/* ---- bandwidth: a copy, split over all threads ------------------------------------------------- */
enum { COPY_ROUNDS = 4 };
typedef struct copy_job {
    char *from, *to;
    size_t each;
} copy_job;

static void copy_share(void *ctx, int64_t i, int worker) {
    const copy_job *j = ctx;
    memcpy(j->to + (size_t)i * j->each, j->from + (size_t)i * j->each, j->each);
}

double ops_copy_rate(const op_backend *b, pool *p, size_t bytes) {
    void *from = NULL, *to = NULL;
    double best = 0;
    if (b->device) {
        ops_gpu_speed speed = { .copy = NAN };
        err unmeasured = ops_cuda_measure(b, &speed);
        if (unmeasured) speed.copy = NAN;
        err_free(unmeasured);
        return speed.copy;
    }
    err e = mem_map(bytes, &from);
    if (!e) e = mem_map(bytes, &to);
    if (!e) {
        copy_job j = { from, to, bytes / (size_t)pool_size(p) / 64 * 64 };
        memset(from, 1, bytes);
        for (int r = 0; r < COPY_ROUNDS; r++) { /* the best: others only ever slow it down */
            double t0 = time_now();
            pool_run(p, pool_size(p), copy_share, &j);
            best = MAX(best, 2.0 * (double)j.each * pool_size(p) / (time_now() - t0));
        }
    }
    err_free(e);
    if (from) mem_unmap(from, bytes);
    if (to) mem_unmap(to, bytes);
    return best;
}
