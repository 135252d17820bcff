/* The weights of a Hugging Face folder into a model's plan. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint_internal.h"

typedef struct target {
    model *m;
    exec *x;
    holding *hold; /* by parameter */
} target;

typedef struct part_copy {
    const float *from;
    float *to;
} part_copy;

static err copy_part_run(void *ctx, int64_t from, int64_t to, int64_t n) {
    const part_copy *c = ctx;
    memcpy(c->to + to, c->from + from, (size_t)n * sizeof *c->to);
    return OK;
}

/* Of a whole parameter, what this rank holds. */
static void put_own_part(const target *to, int i, const float *values) {
    const holding *h = &to->hold[i];
    ckpt_part whole = part_whole(h->ndim, h->dim);
    part_copy c = { values, mem_alloc((size_t)(part_count(&h->part) + 1) * sizeof *c.to) };
    err e = parts_intersect(h->ndim, h->dim, &whole, &h->part, copy_part_run, &c);
    BUG_IF(e);
    model_weights_set(to->m, to->x->plan, i, c.to);
    free(c.to);
}

static err put_weights(void *ctx, int i, const float *values) {
    target *to = ctx;
    const model_param *q = model_param_at(to->m, i);
    for (int64_t k = 0, n = q->dim[0] * q->dim[1]; k < n; k++)
        if (!isfinite(values[k]))
            return err_hint(ERR("%s: element %lld is %g", q->name, (long long)k, (double)values[k]),
                            "use another file: this one is damaged, or its training had diverged");
    put_own_part(to, i, values);
    return OK;
}

err hf_load(const hf_family *family, const char *folder, model *m, exec *x) {
    st_file *f;
    target to = { m, x, NULL };
    TRY(hf_open_weights(folder, &f));
    holdings_list(m, x->plan, NULL, &to.hold);
    err e = hf_import_params(family, f, m, put_weights, &to);
    free(to.hold);
    st_close(f);
    TRY(e);
    TRY(model_publish(m, x));
    model_fill_constants(m, x->plan);
    return OK;
}
