/* AdamW with 8-bit moments (block8.h): a block is decoded, updated in fp32 and encoded again while it is in
 * the cache. Weights are updated with the moments before those are rounded. Bytes per element: 16, plus the
 * copy's. */
#include "ops/block8.h"
#include "update.h"

enum { TASK_BLOCKS = TASK_ELEMENTS / BLOCK8 };

typedef struct adam8_job {
    const op_call *c;
    update_factors f;
    int64_t n;
} adam8_job;

static void adam8_task(void *ctx, int64_t i, int worker) {
    const adam8_job *j = ctx;
    const op_call *c = j->c;
    const float *g = c->in[0].data;
    float m[BLOCK8], v[BLOCK8], tmp[BLOCK8];
    uint8_t *mc = c->out[1].data, *vc = c->out[2].data;
    float *ms = block8_scales(mc, j->n), *vs = block8_scales(vc, j->n);
    span blocks = span_of(i, TASK_BLOCKS, block8_count(j->n));
    for (int64_t b = blocks.lo; b < blocks.hi; b++) {
        int64_t at = b * BLOCK8, n = MIN(BLOCK8, j->n - at);
        block8_unpack(mc + at, true, ms[b], m);
        block8_unpack(vc + at, false, vs[b], v);
        float *p = update_get(&c->out[0], at, n, tmp);
        sweep_elements(adam_lane, &j->f, (elements){ .g = g + at, .p = p, .m = m, .v = v, .n = n });
        block8_pack(m, true, mc + at, &ms[b]);
        block8_pack(v, false, vc + at, &vs[b]);
        update_put(c, &c->out[3], p, at, n);
    }
}

static void CPU(update_adam8)(const op_call *c) {
    adam8_job j = { c, update_factors_of(c), tensor_count(&c->in[0]) };
    bool due = update_due(c, 0, 3);
    for (int i = 1; i <= 2; i++)
        BUG_IF(c->out[i].dt != DT_U8 || tensor_bytes(&c->out[i]) != block8_bytes(j.n));
    if (due) pool_run(c->run->pool, ceil_div(block8_count(j.n), TASK_BLOCKS), adam8_task, &j);
}

KERNEL(UPDATE_ADAM8, CPU(update_adam8), NULL, ATTRS_UPDATE_DECOUPLED);
