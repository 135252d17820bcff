#include "ops/ops.h"

#include <math.h>
#include <stdlib.h>

static const struct {
    const char *name;
    int flags;
} op_info[OP_COUNT] = {
#define OP_ROW(id, name, flags) [OP_##id] = { name, flags },
    OP_TABLE(OP_ROW)
#undef OP_ROW
};

const char *op_name(op_code op) { return op_info[op].name; }
int op_flags(op_code op) { return op_info[op].flags; }

void ops_run(const op_backend *b, const op_call *c) {
    BUG_IF(!b->kernel[c->op]);
    BUG_IF(c->run->workspace_bytes < ops_workspace(b, c, pool_size(c->run->pool)));
    b->kernel[c->op](c);
}

size_t ops_workspace(const op_backend *b, const op_call *c, int threads) {
    return b->workspace ? b->workspace(b, c, threads) : 0;
}

/* ---- what a call costs ------------------------------------------------------------------------- */

static double count_of(const tensor *t) { return t->dt == DT_NONE ? 0 : (double)tensor_count(t); }

/* Of a product a[m,k] b[k,n] = c[m,n], however the three lie: m k n is the root of their counts. */
static double product_flops(double a, double b, double c) { return 2 * sqrt(a * b * c); }

static double flops_of(const op_call *c) {
    const tensor *in = c->in, *out = c->out;
    double keys = c->attr.heads.seq ? c->attr.heads.seq : (double)in[0].dim[0];
    double scores = (double)in[0].dim[0] * keys * c->attr.heads.q * c->attr.heads.dim;
    switch (c->op) {
    case OP_LINEAR:
    case OP_LINEAR_GELU:
    case OP_LINEAR_BWD_X:
    case OP_LINEAR_BWD_X_GELU:
    case OP_LINEAR_BWD_W:
        return product_flops(count_of(&in[0]), count_of(&in[1]), count_of(&out[0]));
    case OP_LINEAR_CE: {
        double n = (double)in[0].dim[0] * (double)in[1].dim[0] * (double)in[0].dim[1];
        return 2 * n * (1 + (out[1].dt != DT_NONE) + (out[2].dt != DT_NONE));
    }
    case OP_ATTENTION: return 2 * scores; /* two products over half the keys */
    case OP_ATTENTION_BWD: return 5 * scores;
    default: return 0;
    }
}

static double bytes_of(const op_call *c) {
    double bytes = 0;
    if (c->op == OP_EMBED) /* reads as many rows as it writes */
        return count_of(&c->out[0]) * (double)(dt_size(c->in[1].dt) + dt_size(c->out[0].dt));
    for (int i = 0; i < OP_MAX_IN; i++)
        if (c->in[i].dt != DT_NONE) bytes += (double)tensor_bytes(&c->in[i]);
    bool update = c->op >= OP_UPDATE_SGD; /* outputs are inputs too, but for the copy */
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (c->out[i].dt == DT_NONE) continue;
        bool also_read = update ? i == 0 || c->out[i].dt == DT_F32 || c->out[i].dt == DT_U8
                                : (c->accumulate >> i & 1) && c->out[i].dt == DT_F32;
        bytes += (double)tensor_bytes(&c->out[i]) * (also_read ? 2 : 1);
    }
    return bytes;
}

op_work ops_work(const op_call *c) { return (op_work){ flops_of(c), bytes_of(c) }; }

/* ---- peak ---------------------------------------------------------------------------------------- */

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
    if (b->device) return b->device->peak(b->context, dt);
    int threads = pool_size(p);
    burn_run r = { b, dt, 20000, mem_alloc((size_t)threads * sizeof(double)) };
    double best = 0;
    for (int rep = 0; rep < 6; rep++) { /* the best: other processes only ever slow it down */
        double start = time_now(), done = 0;
        pool_run(p, threads, burn_task, &r);
        double seconds = time_now() - start;
        for (int i = 0; i < threads; i++) done += r.done[i];
        if (seconds > 1e-3) best = MAX(best, done / seconds);
        if (seconds < 5e-3) r.rounds *= 4;
    }
    free(r.done);
    return best;
}
