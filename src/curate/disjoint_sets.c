/* Disjoint sets of documents (union-find): see dedup_internal.h. */
#include "curate/dedup_internal.h"

err disjoint_sets_init(disjoint_sets *f, uint32_t n) {
    void *p = NULL;
    TRY(mem_map((size_t)n * sizeof *f->parent, &p));
    *f = (disjoint_sets){ p, n };
    for (uint32_t i = 0; i < n; i++) f->parent[i] = i;
    return OK;
}

uint32_t disjoint_sets_find(disjoint_sets *f, uint32_t i) {
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

void disjoint_sets_free(disjoint_sets *f) {
    mem_unmap(f->parent, (size_t)f->n * sizeof *f->parent);
    *f = (disjoint_sets){ 0 };
}
