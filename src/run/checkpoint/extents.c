/* Intersects the extents of a tensor that two ranks hold. See checkpoint_internal.h for the form. */
#include "checkpoint/checkpoint_internal.h"

#include <string.h>

static int64_t dim_product(const int64_t *dim, int from, int to) {
    int64_t n = 1;
    for (int d = from; d < to; d++) n *= dim[d];
    return n;
}

ckpt_extent extent_whole(int ndim, const int64_t *dim) {
    ckpt_extent p = { .to = dim_product(dim, 0, ndim) };
    memcpy(p.dim, dim, (size_t)ndim * sizeof *dim);
    return p;
}

bool extent_is_whole(int ndim, const int64_t *dim, const ckpt_extent *p) {
    return p->from == 0 && p->to == dim_product(dim, 0, ndim) &&
           memcmp(p->dim, dim, (size_t)ndim * sizeof *dim) == 0;
}

/* Dims that both extents hold in full need no loop: they are merged into the one before. */
static int merge_full_dims(int ndim, int64_t *dim, ckpt_extent *a, ckpt_extent *b) {
    while (ndim > 1 && a->dim[ndim - 1] == dim[ndim - 1] && b->dim[ndim - 1] == dim[ndim - 1]) {
        int64_t width = dim[--ndim];
        dim[ndim - 1] *= width;
        a->at[ndim - 1] *= width, a->dim[ndim - 1] *= width;
        b->at[ndim - 1] *= width, b->dim[ndim - 1] *= width;
    }
    return ndim;
}

/* The index in `a` of the row of `b` that has this index, both counted over all dims but the last.
 * @return false when a does not have it. */
static bool find_row(int ndim, const ckpt_extent *a, const ckpt_extent *b, int64_t row,
                     int64_t *out) {
    int64_t found = 0, step = 1;
    for (int d = ndim - 2; d >= 0; d--) {
        int64_t at = b->at[d] + row % b->dim[d] - a->at[d];
        row /= b->dim[d];
        if (at < 0 || at >= a->dim[d]) return false;
        found += at * step;
        step *= a->dim[d];
    }
    *out = found;
    return true;
}

/* Rows of b outside these have nothing of a. */
static void bound_rows(int ndim, const ckpt_extent *a, const ckpt_extent *b, int64_t *low,
                       int64_t *high) {
    int64_t width = b->dim[ndim - 1];
    *low = b->from / width;
    *high = (b->to + width - 1) / width;
    if (ndim < 2) return;
    int64_t below = dim_product(b->dim, 1, ndim - 1), plane = dim_product(a->dim, 1, ndim);
    int64_t first = a->at[0] + a->from / plane, last = a->at[0] + (a->to - 1) / plane;
    *low = MAX(*low, (first - b->at[0]) * below);
    *high = MIN(*high, (last + 1 - b->at[0]) * below);
}

err extents_intersect(int ndim, const int64_t *whole, const ckpt_extent *pa, const ckpt_extent *pb,
                      extent_run run, void *ctx) {
    ckpt_extent a = *pa, b = *pb;
    int64_t dim[ST_MAX_DIM], low, high;
    if (a.from >= a.to || b.from >= b.to) return OK;
    if (ndim == 0) return run(ctx, 0, 0, 1);
    memcpy(dim, whole, (size_t)ndim * sizeof *dim);
    ndim = merge_full_dims(ndim, dim, &a, &b);
    int last = ndim - 1;
    bound_rows(ndim, &a, &b, &low, &high);
    for (int64_t row = low; row < high; row++) {
        int64_t row_a, begin = row * b.dim[last];
        if (!find_row(ndim, &a, &b, row, &row_a)) continue;
        /* columns of the tensor: those of b's range in this row, then those of a */
        int64_t from = b.at[last] + MAX(b.from - begin, 0);
        int64_t to = b.at[last] + MIN(b.to - begin, b.dim[last]);
        from = MAX(from, a.at[last]);
        to = MIN(to, a.at[last] + a.dim[last]);
        int64_t to_a = row_a * a.dim[last] - a.at[last]; /* from a column to an element of a */
        from = MAX(from, a.from - to_a);
        to = MIN(to, a.to - to_a);
        if (from >= to) continue;
        TRY(run(ctx, from + to_a - a.from, from - b.at[last] + begin - b.from, to - from));
    }
    return OK;
}
