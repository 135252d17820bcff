/* The tensors of a run as this rank holds them. Which axes of the mesh divide a parameter, and how, comes
 * from the parameter table and from its bucket (model_param_copies, model_param.first): nothing here
 * knows an axis by name.
 *
 * Where several ranks hold the same elements, each writes a share of them, so that a save takes all
 * the bandwidth there is; what is too small to share is written by one rank, another for each tensor. */
#include "checkpoint/checkpoint_internal.h"

enum { SHARED_FROM = 65536 }; /* elements */

/* Returns the elements that rank `index` writes, of those that `copies` ranks hold. */
static ckpt_extent share_of(const ckpt_extent *of, int copies, int index, int number) {
    ckpt_extent w = *of;
    int64_t n = extent_count(of);
    if (n < SHARED_FROM) {
        if (index != number % copies) w.to = w.from;
        return w;
    }
    w.from = of->from + n * index / copies;
    w.to = of->from + n * (index + 1) / copies;
    return w;
}

/* Adds a tensor with the elements of the parameter: its weights, and most states. */
static void hold_elements(const model *m, int param, holding *h) {
    const model_param *q = model_param_at(m, param);
    param_range r = model_weights_range(m, param);
    h->ndim = q->ndim;
    h->dim[0] = q->dim[0];
    h->dim[1] = q->dim[1];
    h->extent = (ckpt_extent){ .at = { q->first[0], q->first[1] },
                               .dim = { q->local[0], q->local[1] },
                               .from = r.from,
                               .to = r.to };
    h->write =
        share_of(&h->extent, model_param_copies(m, param), model_param_copy_index(m, param), param);
}

/* A tensor with an element for each row or column of the whole matrix: all of it, on the ranks that have it. */
static void hold_lines(const model *m, const optimizer *o, int param, int state, int dim,
                       holding *h) {
    const mesh *me = &model_lay(m)->mesh;
    axis_set same = model_param_same(m, param), axes = optim_state_same(o, param, state);
    int span = mesh_span(me, axes), of_stage = mesh_span(me, same);
    int stages = model_param_copies(m, param) / of_stage;
    int stage = model_param_copy_index(m, param) / of_stage;
    h->ndim = 1;
    h->dim[0] = model_param_at(m, param)->dim[dim];
    h->extent = extent_whole(1, h->dim);
    h->extent.to = optim_state_count(o, param, state);
    h->write = share_of(&h->extent, stages * span, stage * span + mesh_index(me, axes), param);
}

static void hold_state(const model *m, const optimizer *o, int param, int state, holding *h) {
    *h = (holding){ .param = param, .state = state };
    snprintf(h->name, sizeof h->name, "%s/%s", model_param_at(m, param)->name,
             optim_state_name(o, param, state));
    switch (optim_state_kind(o, param, state)) {
    case STATE_OF_ELEMENTS: hold_elements(m, param, h); return;
    case STATE_OF_ROWS: hold_lines(m, o, param, state, 0, h); return;
    case STATE_OF_COLS: hold_lines(m, o, param, state, 1, h); return;
    }
    BUG("unknown kind of state");
}

/* The scales of fp8 belong to the training, as the optimizer's states do. Every rank has the same. */
static bool hold_fp8_rows(const model *m, const plan *p, holding *h) {
    int64_t n;
    if (!model_fp8_rows(m, p, &n)) return false;
    *h = (holding){ .param = -1, .state = 0, .name = CKPT_FP8_ROWS, .ndim = 1, .dim = { n } };
    h->extent = h->write = extent_whole(1, h->dim);
    if (model_lay(m)->mesh.rank > 0) h->write.to = 0;
    return true;
}

const void *holding_data(const model *m, const plan *p, const optimizer *o, const holding *h,
                         dtype *dt) {
    int64_t n;
    *dt = DT_F32;
    if (h->param < 0) return model_fp8_rows(m, p, &n);
    return h->state < 0 ? model_weights_data(m, p, h->param, dt)
                        : optim_state_data(o, h->param, h->state);
}

int holdings_list(const model *m, const plan *p, const optimizer *o, holding **out) {
    int most = model_params(m) + 1, n = 0;
    for (int i = 0; o && i < model_params(m); i++) most += optim_states(o, i);
    holding *h = *out = mem_alloc((size_t)most * sizeof *h);
    for (int i = 0; i < model_params(m); i++) {
        h[n] = (holding){ .param = i, .state = -1 };
        snprintf(h[n].name, sizeof h[n].name, "%s", model_param_at(m, i)->name);
        hold_elements(m, i, &h[n++]);
    }
    for (int i = 0; o && i < model_params(m); i++)
        for (int k = 0; k < optim_states(o, i); k++) hold_state(m, o, i, k, &h[n++]);
    if (o) n += hold_fp8_rows(m, p, &h[n]);
    return n;
}
