#include "comm/comm.h"

int mesh_size(const mesh *m, mesh_axis a) { return m->size[a] > 0 ? m->size[a] : 1; }

int mesh_world(const mesh *m) { return mesh_span(m, AXES_ALL); }

/* @return the ranks along the part of tp that AXES_TP_REP names; all of tp includes it. */
static int rep_size(const mesh *m, axis_set axes) {
    bool part = (axes & AXES_TP_REP) && !(axes & AXIS(AX_TP));
    return part && m->tp_rep > 0 ? m->tp_rep : 1;
}

int mesh_span(const mesh *m, axis_set axes) {
    int n = rep_size(m, axes);
    for (int a = 0; a < AX_COUNT; a++)
        if (axes & AXIS(a)) n *= mesh_size(m, (mesh_axis)a);
    return n;
}

axis_set mesh_axes(const mesh *m) {
    axis_set axes = 0;
    for (int a = 0; a < AX_COUNT; a++)
        if (mesh_size(m, (mesh_axis)a) > 1) axes |= AXIS(a);
    return axes;
}

static mesh_axis axis_at(const mesh *m, int i) {
    return (mesh_axis)(m->order[0] ? m->order[i] - 1 : i);
}

int mesh_stride(const mesh *m, mesh_axis axis) {
    int s = 1;
    for (int i = AX_COUNT - 1; axis_at(m, i) != axis; i--) s *= mesh_size(m, axis_at(m, i));
    return s;
}

int mesh_coord(const mesh *m, mesh_axis a) { return m->rank / mesh_stride(m, a) % mesh_size(m, a); }

int mesh_index(const mesh *m, axis_set axes) {
    int index = 0;
    for (int a = 0; a < AX_COUNT; a++)
        if (axes & AXIS(a))
            index = index * mesh_size(m, (mesh_axis)a) + mesh_coord(m, (mesh_axis)a);
    int rep = rep_size(m, axes);
    return index * rep + mesh_coord(m, AX_TP) % rep;
}

int mesh_group_id(const mesh *m, axis_set axes) {
    int rank = m->rank;
    for (int a = 0; a < AX_COUNT; a++)
        if (axes & AXIS(a)) rank -= mesh_coord(m, (mesh_axis)a) * mesh_stride(m, (mesh_axis)a);
    rank -= mesh_coord(m, AX_TP) % rep_size(m, axes) * mesh_stride(m, AX_TP);
    return rank; /* its first member */
}

int mesh_stages(const mesh *m) { return mesh_size(m, AX_PP); }
int mesh_stage(const mesh *m) { return mesh_coord(m, AX_PP); }
int mesh_first_of_stage(const mesh *m, int stage) { return stage * mesh_stride(m, AX_PP); }

mesh mesh_as(const mesh *m, int rank) {
    mesh other = *m;
    other.rank = rank;
    return other;
}

mesh mesh_reduced(const mesh *m) {
    mesh small = *m;
    small.rank = 0;
    for (int a = 0; a < AX_COUNT; a++) {
        int size = mesh_size(m, (mesh_axis)a), least = 2;
        if (size == 1 || (a == AX_TP && m->tp_rep > 1))
            continue; /* heads are shared by all of them */
        while (size % least) least++;
        small.size[a] = least;
    }
    return small;
}

int mesh_group(const mesh *m, axis_set axes, int *members) {
    int id = mesh_group_id(m, axes);
    for (int r = 0; r < mesh_world(m); r++) {
        mesh other = mesh_as(m, r);
        if (mesh_group_id(&other, axes) == id) members[mesh_index(&other, axes)] = r;
    }
    return mesh_index(m, axes);
}

static const struct {
    const char *name;
} moves[] = {
    [MOVE_NONE] = { "none" },
    [MOVE_SLICE] = { "slice" },
    [MOVE_ALL_REDUCE] = { "all-reduce" },
    [MOVE_ALL_GATHER] = { "all-gather" },
    [MOVE_REDUCE_SCATTER] = { "reduce-scatter" },
    [MOVE_ALL_TO_ALL] = { "all-to-all" },
    [MOVE_ALL_MAX] = { "all-max" },
    [MOVE_ROWS] = { "all-to-all of rows" },
    [MOVE_SHIFT] = { "shift" },
    [MOVE_SEND] = { "send" },
    [MOVE_RECV] = { "receive" },
    [MOVE_ILLEGAL] = { "illegal" },
};
const char *move_name(move_kind k) { return moves[k].name; }

move_kind move_of(place from, place to) {
    static const uint8_t by_kind[4][4] = {
        /*            to I              to R             to S                 to P          */
        [PL_I] = { MOVE_NONE, MOVE_NONE, MOVE_SLICE, MOVE_ILLEGAL },
        [PL_R] = { MOVE_NONE, MOVE_NONE, MOVE_ILLEGAL, MOVE_ILLEGAL },
        [PL_S] = { MOVE_ALL_GATHER, MOVE_ALL_GATHER, MOVE_ALL_TO_ALL, MOVE_ILLEGAL },
        [PL_P] = { MOVE_ALL_REDUCE, MOVE_ALL_REDUCE, MOVE_REDUCE_SCATTER, MOVE_NONE },
    };
    if (place_same(from, to)) return MOVE_NONE;
    return (move_kind)by_kind[from.kind][to.kind];
}

move_kind comm_kind(const comm_move *m) {
    return m->kind != MOVE_NONE ? m->kind : move_of(m->from, m->to);
}
