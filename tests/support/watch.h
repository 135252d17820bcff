/* A CPU backend whose every kernel is one function of the test's, which looks at the call and passes it
 * on (or not):
 *
 *     static op_impl impls[OP_COUNT];
 *     op_backend b = backend_watched(impls, count_call);
 */
#ifndef INGOT_TESTS_WATCH_H
#define INGOT_TESTS_WATCH_H

#include "ops/op_table.h"

static inline op_backend backend_watched(op_impl impls[OP_COUNT], op_kernel call) {
    op_backend b = *ops_cpu(OPS_ISA_BEST);
    for (int i = 0; i < OP_COUNT; i++) {
        impls[i] = b.impl[i];
        if (impls[i].run) impls[i].run = call;
    }
    b.impl = impls;
    return b;
}

static inline void call_on_cpu(const op_call *c) { ops_cpu(OPS_ISA_BEST)->impl[c->op].run(c); }

#endif
