#include "ops/ops.h"

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
    return b->workspace ? b->workspace(c, threads) : 0;
}
