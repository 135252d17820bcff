/* Opens the backend that a configuration selects. */
#include "ops/ops.h"

static err open_cpu(const char *isa, const op_backend **out) {
    *out = ops_cpu(isa);
    if (*out) return OK;
    str have = { 0 };
    for (int i = 0; ops_cpu_isa(i); i++) str_add(&have, "%s%s", i ? ", " : "", ops_cpu_isa(i));
    err e = err_hint(ERR("debug.isa: this CPU has no \"%s\"", isa), "it has %s", have.text);
    str_free(&have);
    return e;
}

static int gemm_flags(ops_gemms g) {
    switch (g) {
    case OPS_GEMMS_CUBLASLT: break;
    case OPS_GEMMS_FASTEST: return OPS_OFFER_OWN_GEMMS;
    case OPS_GEMMS_OWN: return OPS_OWN_GEMMS;
    }
    return 0;
}

err ops_open(const ops_choice *c, const op_backend **out) {
    CHOICE_DECIDED(ops_kind, 3);
    bool gpu = c->kind == OPS_CUDA || (c->kind == OPS_AUTO && ops_cuda_count() > c->index);
    if (!gpu) return open_cpu(c->isa, out);
    op_backend *b = NULL;
    int flags = (c->deterministic ? OPS_DETERMINISTIC : 0) | (c->tf32 ? OPS_TF32 : 0) |
                gemm_flags(c->gemms);
    TRY(ops_cuda_open(c->index, flags, &b));
    *out = b;
    return OK;
}

void ops_close(const op_backend *b) {
    if (b && b->device) ops_cuda_close((op_backend *)b); /* ops_open allocated it */
}
