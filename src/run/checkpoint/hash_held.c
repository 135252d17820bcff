/* A hash of what a rank holds, to compare with its replicas. */
#include "checkpoint/checkpoint_internal.h"

#include <stdlib.h>
#include <string.h>

enum { HASH_CHUNK = 4 << 20 };

/* Of memory in the plan, which a device may have. @param buffer [HASH_CHUNK]. */
static err hash_memory(const plan *p, const char *at, size_t bytes, void *buffer, uint64_t *hash) {
    if (!plan_has_device(p)) {
        *hash = hash_bytes(at, bytes, *hash);
        return OK;
    }
    for (size_t from = 0; from < bytes; from += HASH_CHUNK) {
        size_t n = MIN(bytes - from, (size_t)HASH_CHUNK);
        TRY(plan_get(p, buffer, at + from, n));
        *hash = hash_bytes(buffer, n, *hash);
    }
    return OK;
}

err ckpt_hash_held(const model *m, exec *x, const optimizer *o, axis_set same, uint64_t *held,
                   uint64_t *bytes) {
    holding *hold;
    int n = holdings_list(m, x->plan, o, &hold);
    void *buffer = plan_has_device(x->plan) ? mem_alloc(HASH_CHUNK) : NULL;
    err e = OK;
    *held = *bytes = 0;
    for (int i = 0; i < n && !e; i++) {
        const holding *h = &hold[i];
        dtype dt;
        const void *at = h->param >= 0 ? holding_data(m, x->plan, o, h, &dt) : NULL;
        if (!at || !extent_count(&h->extent)) continue; /* fp8's scales are a rank's own */
        if (model_param_same(m, h->param) != same) continue;
        *held = hash_bytes(h->name, strlen(h->name), *held);
        *held = hash_bytes(&h->extent, sizeof h->extent, *held);
        e = hash_memory(x->plan, at, (size_t)extent_count(&h->extent) * dt_size(dt), buffer, bytes);
    }
    free(buffer);
    free(hold);
    return e;
}
