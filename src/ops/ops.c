#include "ops/ops.h"

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
