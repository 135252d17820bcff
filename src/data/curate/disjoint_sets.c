/* Disjoint sets of documents (union-find): see dedup_internal.h. */
#include "comm/comm.h"
#include "curate/dedup_internal.h"

err disjoint_sets_init(disjoint_sets *f, uint32_t n) {
    void *p = NULL;
    TRY(mem_map((size_t)n * sizeof *f->parent, &p));
    *f = (disjoint_sets){ p, n };
    for (uint32_t i = 0; i < n; i++) f->parent[i] = i;
    return OK;
}

static uint32_t disjoint_sets_find(disjoint_sets *f, uint32_t i) {
    uint32_t *parent = f->parent;
    while (parent[i] != i) {
        parent[i] = parent[parent[i]]; /* path halving */
        i = parent[i];
    }
    return i;
}

void disjoint_sets_join(disjoint_sets *f, uint32_t a, uint32_t b) {
    a = disjoint_sets_find(f, a);
    b = disjoint_sets_find(f, b);
    f->parent[MAX(a, b)] = MIN(a, b);
}

/* A parent is smaller than its child, so in increasing order the parent already points to the
 * root. */
void disjoint_sets_flatten(disjoint_sets *f) {
    for (uint32_t i = 0; i < f->n; i++) f->parent[i] = f->parent[f->parent[i]];
}

/* A shift by `distance`: temporary[i] becomes the parent of i on another rank. */
static err receive_parents(const disjoint_sets *f, uint32_t *temporary, comm *c, int distance) {
    enum { CHUNK = 1 << 20 };
    comm_move shift = {
        .axes = mesh_axes(comm_mesh(c)), .kind = MOVE_SHIFT, .peer = distance, .name = "clusters"
    };
    for (int64_t at = 0; at < f->n; at += CHUNK) {
        int64_t n = MIN((int64_t)CHUNK, f->n - at);
        tensor in = tensor_of(f->parent + at, DT_I32, 1, &n);
        tensor out = tensor_of(temporary + at, DT_I32, 1, &n);
        comm_ticket t;
        TRY(comm_start(c, &shift, &in, &out, &t));
        TRY(comm_wait(c, &t));
    }
    return OK;
}

/* As comm_merge: after the shift by d a rank has joined what the 2 d ranks up to it had. Joins of one shift
 * begin when all of it has arrived, since they change what is being sent. */
err disjoint_sets_merge(disjoint_sets *f, uint32_t *temporary, comm *c) {
    for (int distance = 1; distance < comm_world(c); distance *= 2) {
        TRY(receive_parents(f, temporary, c, distance));
        for (uint32_t i = 0; i < f->n; i++)
            if (temporary[i] != i) disjoint_sets_join(f, i, temporary[i]);
    }
    return OK;
}

void disjoint_sets_free(disjoint_sets *f) {
    mem_unmap(f->parent, (size_t)f->n * sizeof *f->parent);
    *f = (disjoint_sets){ 0 };
}
