#include "comm_internal.h"

#include <stdlib.h>
#include <string.h>

int comm_rank(const comm *c) { return c->m.rank; }
const mesh *comm_mesh(const comm *c) { return &c->m; }

err comm_start(comm *c, const comm_move *move, const tensor *in, const tensor *out,
               comm_ticket *ticket) {
    BUG_IF(move_of(move->from, move->to) == MOVE_ILLEGAL);
    BUG_IF(in->dt != out->dt);
    *ticket = (comm_ticket){ .move = *move, .in = *in, .out = *out };
    return c->backend->start(c, ticket);
}

err comm_wait(comm *c, comm_ticket *ticket) { return c->backend->wait(c, ticket); }

void comm_abort(comm *c) {
    if (c->backend->abort) c->backend->abort(c);
}

void comm_free(comm *c) {
    if (!c) return;
    if (c->backend->free) c->backend->free(c);
    free(c);
}

err comm_sum(comm *c, axis_set axes, float *values, int64_t n) {
    comm_move sum = { axes & mesh_axes(&c->m), PLACE_P, PLACE_I };
    if (!sum.axes || !n) return OK;
    tensor t = tensor_of(values, DT_F32, 1, &n);
    comm_ticket ticket;
    TRY(comm_start(c, &sum, &t, &t, &ticket));
    return comm_wait(c, &ticket);
}

err comm_total(comm *c, double *values, int n) {
    int world = mesh_world(&c->m);
    int64_t own = (int64_t)n * (int64_t)sizeof *values, all = own * world;
    if (world == 1) return OK;
    double *each = mem_alloc((size_t)all);
    tensor in = tensor_of(values, DT_U8, 1, &own), out = tensor_of(each, DT_U8, 1, &all);
    comm_move gather = { mesh_axes(&c->m), PLACE_S(0), PLACE_I };
    comm_ticket ticket;
    err e = comm_start(c, &gather, &in, &out, &ticket);
    if (!e) e = comm_wait(c, &ticket);
    for (int i = 0; i < n && !e; i++) {
        values[i] = each[i];
        for (int r = 1; r < world; r++) values[i] += each[(int64_t)r * n + i];
    }
    free(each);
    return e;
}

err comm_agree(comm *c, err mine) {
    float failed = mine ? 1 : 0;
    err e = comm_sum(c, AXES_ALL, &failed, 1);
    if (mine) {
        err_free(e);
        return mine;
    }
    TRY(e);
    return failed > 0 ? ERR("rank %d ends because another rank failed", c->m.rank) : OK;
}

dim_split split_at(const tensor *t, int dim) {
    dim_split c = { 1, t->dim[dim], 1 };
    for (int i = 0; i < dim; i++) c.outer *= t->dim[i];
    for (int i = dim + 1; i < t->ndim; i++) c.inner *= t->dim[i];
    return c;
}

void comm_take_slice(const tensor *in, const tensor *out, int dim, int index, int parts) {
    dim_split c = split_at(in, dim);
    size_t size = dt_size(in->dt), row = (size_t)(c.dim * c.inner) * size,
           part = row / (size_t)parts;
    for (int64_t o = 0; o < c.outer; o++)
        memcpy((char *)out->data + (size_t)o * part,
               (const char *)in->data + (size_t)o * row + (size_t)index * part, part);
}

/* ---- self: a world of one ---------------------------------------------------------------- */
static err self_start(comm *c, comm_ticket *t) { return OK; }

static err self_wait(comm *c, comm_ticket *t) {
    if (t->in.data != t->out.data) memmove(t->out.data, t->in.data, tensor_bytes(&t->in));
    return OK;
}

comm *comm_self(void) {
    static const comm_backend self = { .name = "self", .start = self_start, .wait = self_wait };
    comm *c = mem_alloc(sizeof *c);
    c->backend = &self;
    return c;
}
