/* Disjoint sets of documents: see dedup_internal.h. */
#include "curate/dedup_internal.h"

err forest_new(forest *f, uint32_t n) {
    void *p = NULL;
    TRY(mem_map((size_t)n * sizeof *f->parent, &p));
    *f = (forest){ p, n };
    for (uint32_t i = 0; i < n; i++) f->parent[i] = i;
    return OK;
}

uint32_t forest_find(forest *f, uint32_t i) {
    uint32_t *parent = f->parent;
    while (parent[i] != i) {
        parent[i] = parent[parent[i]]; /* halves the path for the next who comes by */
        i = parent[i];
    }
    return i;
}

void forest_join(forest *f, uint32_t a, uint32_t b) {
    a = forest_find(f, a);
    b = forest_find(f, b);
    f->parent[MAX(a, b)] = MIN(a, b);
}

/* A parent is less than its child: in this order it is at the root already. */
void forest_flatten(forest *f) {
    for (uint32_t i = 0; i < f->n; i++) f->parent[i] = f->parent[f->parent[i]];
}

void forest_free(forest *f) {
    mem_unmap(f->parent, (size_t)f->n * sizeof *f->parent);
    *f = (forest){ 0 };
}
