#include "tensor/tensor.h"

tensor tensor_of(void *data, dtype dt, int ndim, const int64_t *dim) {
    BUG_IF(ndim < 1 || ndim > TENSOR_MAX_DIM);
    tensor t = { .data = data, .dt = dt, .ndim = ndim };
    for (int i = 0; i < ndim; i++) t.dim[i] = dim[i];
    return t;
}

int64_t tensor_count(const tensor *t) {
    int64_t n = t->ndim ? 1 : 0;
    for (int i = 0; i < t->ndim; i++) n *= t->dim[i];
    return n;
}

size_t tensor_bytes(const tensor *t) { return (size_t)tensor_count(t) * dt_size(t->dt); }

const char *const mesh_axis_name[AX_COUNT + 1] = { "pp", "dp_replicate", "dp_shard", "cp",
                                                   "ep", "tp",           "tp_rep" };

place place_dual(place p) {
    switch ((place_kind)p.kind) {
    case PL_R: return PLACE_P;
    case PL_P: return PLACE_R;
    case PL_I:
    case PL_S: break;
    }
    return p;
}

bool place_same(place a, place b) { return a.kind == b.kind && (a.kind != PL_S || a.dim == b.dim); }

placement placement_dual(placement p) {
    for (int a = 0; a < AX_COUNT; a++) p.on[a] = place_dual(p.on[a]);
    return p;
}

bool placement_same(placement a, placement b) {
    for (int x = 0; x < AX_COUNT; x++)
        if (!place_same(a.on[x], b.on[x])) return false;
    return true;
}

placement placement_on(axis_set axes, place on) {
    placement p = { 0 };
    for (int a = 0; a < AX_COUNT; a++)
        if (axes & AXIS(a)) p.on[a] = on;
    return p;
}

axis_set placement_axes(placement p, place_kind kind) {
    axis_set axes = 0;
    for (int a = 0; a < AX_COUNT; a++)
        if (p.on[a].kind == kind) axes |= AXIS(a);
    return axes;
}

char *axes_str(char *buf, size_t n, axis_set axes) {
    size_t len = 0;
    buf[0] = 0;
    for (int a = 0; a <= AX_COUNT && len < n; a++)
        if (axes & AXIS(a))
            len += (size_t)snprintf(buf + len, n - len, "%s%s", len ? "+" : "", mesh_axis_name[a]);
    return buf;
}

char *placement_str(char *buf, size_t n, placement p) {
    size_t len = 0;
    buf[0] = 0;
    for (int a = 0; a < AX_COUNT && len < n; a++) {
        if (p.on[a].kind == PL_I) continue;
        len += (size_t)snprintf(buf + len, n - len, "%s%s:%c", len ? " " : "", mesh_axis_name[a],
                                "IRSP"[p.on[a].kind]);
        if (p.on[a].kind == PL_S && len < n)
            len += (size_t)snprintf(buf + len, n - len, "%d", p.on[a].dim);
    }
    if (!len) snprintf(buf, n, "I");
    return buf;
}
