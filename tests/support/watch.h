/* A CPU backend whose every kernel is one function of the test's, which looks at the call and passes it
 * on (or not):
 *
 *     static watched_kernels kernels;
 *     op_backend b = backend_watched(&kernels, count_call);
 */
#ifndef INGOT_TESTS_WATCH_H
#define INGOT_TESTS_WATCH_H

#include "ops/op_table.h"

typedef struct watched_kernels {
    op_impl own[OP_COUNT];
    const op_impl *of[OP_COUNT];
} watched_kernels;

/* @return the CPU's best backend with kernels that `k`, which outlives it, may change. */
static inline op_backend backend_copied(watched_kernels *k) {
    op_backend b = *ops_cpu(OPS_ISA_BEST);
    for (int i = OP_NONE + 1; i < OP_COUNT; i++) {
        k->own[i] = *b.impl[i];
        k->of[i] = &k->own[i];
    }
    b.impl = k->of;
    return b;
}

static inline op_backend backend_watched(watched_kernels *k, op_kernel call) {
    op_backend b = backend_copied(k);
    for (int i = OP_NONE + 1; i < OP_COUNT; i++)
        if (k->own[i].run) k->own[i].run = call;
    return b;
}

static inline void call_on_cpu(const op_call *c) { ops_cpu(OPS_ISA_BEST)->impl[c->op]->run(c); }

#endif
