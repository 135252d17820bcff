/* comm: the mesh of ranks and the one communication verb. Depends on tensor.
 *
 * A rank holds one `comm` endpoint. A communication changes how a tensor lies on the ranks of a
 * set of mesh axes: comm_start(from -> to), later comm_wait. Which collective that is follows
 * from the two placements:
 *
 *     P -> I, R      all-reduce             S(d) -> I, R   all-gather
 *     P -> S(d)      reduce-scatter         S(d) -> S(e)   all-to-all
 *     I -> S(d)      take a slice (local)   I <-> R        nothing: only the meaning changes
 *
 * In the thread of rank r, given `comm *ends[4]` from comm_threads, `int r`, and the tensors `tensor x`,
 * a partial sum on each rank of AX_TP, and `tensor y`:
 *
 *     comm_move sum = { .axes = AXIS(AX_TP), .from = PLACE_P, .to = PLACE_R };
 *     comm_ticket ticket;
 *     TRY(comm_start(ends[r], &sum, &x, &y, &ticket));     // what comes between overlaps it
 *     TRY(comm_wait(ends[r], &ticket));                    // y is the same on every rank
 */
#ifndef INGOT_COMM_H
#define INGOT_COMM_H

#include "tensor/tensor.h"

/* ---- mesh: ranks as a box, the last axis varies fastest; as one of them sees it ------------- */
typedef struct mesh {
    int size[AX_COUNT]; /* 0 is read as 1 */
    int rank;           /* this one */
} mesh;
int mesh_size(const mesh *m, mesh_axis a);
int mesh_world(const mesh *m);
int mesh_coord(const mesh *m, mesh_axis a);
int mesh_span(const mesh *m, axis_set axes);  /* ranks in a group along these axes */
int mesh_index(const mesh *m, axis_set axes); /* of this rank in its group */
axis_set mesh_axes(const mesh *m);            /* those with more than one rank */
/* Fills the ranks of this one's group along `axes`, in order. @return its index in it. */
int mesh_group(const mesh *m, axis_set axes, int *members);
/* Names the group: equal for ranks of one group, different for others along the same axes. */
int mesh_group_id(const mesh *m, axis_set axes);
mesh mesh_as(const mesh *m, int rank); /* as another rank sees it */

/* ---- the verb ---------------------------------------------------------------------------- */
typedef enum {
    MOVE_NONE, /* the bytes stay as they are */
    MOVE_SLICE,
    MOVE_ALL_REDUCE,
    MOVE_ALL_GATHER,
    MOVE_REDUCE_SCATTER,
    MOVE_ALL_TO_ALL,
    MOVE_ILLEGAL
} move_kind;
move_kind move_of(place from, place to);
const char *move_name(move_kind k);

typedef struct comm_move {
    axis_set axes;
    place from, to;
} comm_move;

/* A communication in flight. Its tensors must stay in place and unaliased until comm_wait, with one
 * exception: what is reduced may be reduced in place, and the smaller of the two tensors of a gather or
 * a scatter along dim 0 may be this rank's part of the larger one. */
typedef struct comm_ticket {
    comm_move move;
    tensor in, out;
    uint64_t sequence;
} comm_ticket;

typedef struct comm comm;
int comm_rank(const comm *c);
const mesh *comm_mesh(const comm *c);
/* Sums run in rank order in fp32, so that every rank gets bit-identical results in every run. */
err comm_start(comm *c, const comm_move *move, const tensor *in, const tensor *out,
               comm_ticket *ticket) MUST_USE;
err comm_wait(comm *c, comm_ticket *ticket) MUST_USE;
/* This rank gives up: collectives that wait for it, and all after them, fail on every rank. */
void comm_abort(comm *c);
void comm_free(comm *c); /* takes NULL */

/* For the host, on all ranks together: sums n values over these axes in place, each rank getting the same
 * bits. */
err comm_sum(comm *c, axis_set axes, float *values, int64_t n) MUST_USE;
/* The same of doubles over all ranks, added in rank order in fp64. */
err comm_total(comm *c, double *values, int n) MUST_USE;
/* Whether everyone is well: @return `mine` where it is an error, else an error when another rank's is
 * one. All ranks call it at the same point. */
err comm_agree(comm *c, err mine) MUST_USE;

/* ---- backends ---------------------------------------------------------------------------- */
/* One rank: every move is local. */
comm *comm_self(void);
/* mesh_world(m) ranks in this process, one thread each; fills ends[world]. A rank that waits
 * longer than `patience` seconds for a peer returns an error that names the collective and the
 * missing ranks (0: 60 s). */
err comm_threads(mesh m, double patience, comm **ends) MUST_USE;

#endif
