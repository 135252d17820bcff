/* The elements of a matrix that one call of an update has, on CPU and GPU: a range of the elements of the rank's local
 * matrix, as its rows. Local row i is row row0 + i of the whole matrix, whose column col0 is the first local one. */
#ifndef INGOT_OPS_MATRIX_SLICE_H
#define INGOT_OPS_MATRIX_SLICE_H

#include "ops/ops.h"

typedef struct matrix_slice {
    int64_t first, n, cols; /* local elements [first, first + n), in rows of cols */
    int64_t begin, end;     /* the local rows that have some */
    int64_t row0, col0;
} matrix_slice;

static inline matrix_slice matrix_slice_of(const op_call *c, int64_t n) {
    int64_t first = c->attr.update.first, cols = c->attr.update.cols;
    int64_t base = c->attr.update.base, stride = c->attr.update.stride;
    BUG_IF(cols < 1 || stride < cols);
    matrix_slice m = {
        first, n, cols, first / cols, ceil_div(first + n, cols), base / stride, base % stride
    };
    return m;
}

#endif
