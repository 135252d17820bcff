/* State by parameter, for checkpoints. A range holds the state of its parameters in their order,
 * and each of them begins a block where moments are in bytes (ops/block8.h). */
#include "optim_internal.h"

#include <stdlib.h>
#include <string.h>

#include "ops/block8.h"

int optim_states(const optimizer *o, int param) { return o->param[param].states.n; }

const char *optim_state_name(const optimizer *o, int param, int k) {
    return o->param[param].states.state[k].name;
}

state_kind optim_state_kind(const optimizer *o, int param, int k) {
    state_shape shape = o->param[param].states.state[k].shape;
    return shape == AS_ROWS ? STATE_OF_ROWS : shape == AS_COLS ? STATE_OF_COLS : STATE_OF_ELEMENTS;
}

axis_set optim_state_same(const optimizer *o, int param, int k) {
    axis_set same = model_param_same(o->m, param), divided = model_param_divided(o->m, param);
    if (o->param[param].r->kind == BY_ORTHOGONAL) return same | (divided & ~dealt_over(o, param));
    /* all of it is on every rank of the stage, those that hold other experts too: sums are taken over them */
    return same | divided | (mesh_axes(&o->mesh) & model_param_at(o->m, param)->apart);
}

static bool is_by_element(const optimizer *o, int param, int k) {
    return optim_state_kind(o, param, k) == STATE_OF_ELEMENTS;
}

int64_t optim_state_count(const optimizer *o, int param, int k) {
    const param_update *t = &o->param[param];
    const model_param *q = model_param_at(o->m, param);
    if (!is_by_element(o, param, k)) {
        return t->whole[k] < 0 ? 0 : q->dim[t->states.state[k].shape == AS_COLS];
    }
    return t->range < 0 ? 0 : t->count;
}

/* Locates a parameter's state: where it begins. */
typedef struct state_view {
    char *at;
    float *scale; /* of its first block, in bytes */
    bool bytes, sign;
} state_view;

static state_view view_state(const optimizer *o, int param, int k) {
    const param_update *t = &o->param[param];
    if (!is_by_element(o, param, k)) return (state_view){ .at = plan_data(o->p, t->whole[k]) };
    const update_range *s = &o->range[t->range];
    char *base = plan_data(o->p, s->state[k]);
    const struct rule_state *of = &t->states.state[k];
    state_view f = { .bytes = state_in_bytes(of), .sign = of->shape == AS_SIGNED_BYTES };
    f.at = base + (size_t)t->at * (f.bytes ? 1 : sizeof(float));
    if (f.bytes) f.scale = block8_scales(base, s->count) + t->at / BLOCK8;
    return f;
}

const float *optim_state_data(const optimizer *o, int param, int k) {
    if (!optim_state_count(o, param, k)) return NULL;
    state_view f = view_state(o, param, k);
    return f.bytes ? NULL : (const float *)(const void *)f.at;
}

err optim_state_get(const optimizer *o, int param, int k, float *to) {
    int64_t n = optim_state_count(o, param, k), blocks = block8_count(n);
    if (!n) return OK;
    state_view f = view_state(o, param, k);
    if (!f.bytes) return plan_get(o->p, to, f.at, (size_t)n * sizeof *to);
    uint8_t *codes = mem_alloc((size_t)(blocks * BLOCK8));
    float *scales = mem_alloc((size_t)blocks * sizeof *scales), block[BLOCK8];
    err e = plan_get(o->p, codes, f.at, (size_t)(blocks * BLOCK8));
    if (!e) e = plan_get(o->p, scales, f.scale, (size_t)blocks * sizeof *scales);
    for (int64_t b = 0; !e && b < blocks; b++) {
        block8_unpack(codes + b * BLOCK8, f.sign, scales[b], block);
        memcpy(to + b * BLOCK8, block, (size_t)MIN(BLOCK8, n - b * BLOCK8) * sizeof *to);
    }
    free(codes);
    free(scales);
    return e;
}

void optim_state_set(optimizer *o, int param, int k, const float *from) {
    int64_t n = optim_state_count(o, param, k), blocks = block8_count(n);
    if (!n) return;
    state_view f = view_state(o, param, k);
    if (!f.bytes) {
        plan_put(o->p, f.at, from, (size_t)n * sizeof *from);
        return;
    }
    uint8_t *codes = mem_alloc((size_t)(blocks * BLOCK8));
    float *scales = mem_alloc((size_t)blocks * sizeof *scales);
    for (int64_t b = 0; b < blocks; b++) {
        float block[BLOCK8] = { 0 };
        memcpy(block, from + b * BLOCK8, (size_t)MIN(BLOCK8, n - b * BLOCK8) * sizeof *from);
        block8_pack(block, f.sign, codes + b * BLOCK8, &scales[b]);
    }
    plan_put(o->p, f.at, codes, (size_t)(blocks * BLOCK8));
    plan_put(o->p, f.scale, scales, (size_t)blocks * sizeof *scales);
    free(codes);
    free(scales);
}
