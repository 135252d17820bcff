/* Parts of a value's rows (chunk_rows.c). Splitting and joining are aliases: no op runs for them, and backward
 * (pass_rows_gradient) splits what was joined and joins what was split. */
#include "prog_internal.h"

#include <string.h>

val slice_rows(prog *p, val x, int64_t from, int64_t n) {
    prog_val v = p->val[x];
    int64_t dim[TENSOR_MAX_DIM];
    memcpy(dim, v.dim, sizeof dim);
    dim[0] = n;
    size_t row = val_bytes(&v) / (size_t)v.dim[0];
    val part = val_alias(p, x, (size_t)from * row, v.dt, v.ndim, dim, v.pl);
    memcpy(p->val[part].segments, v.segments, sizeof v.segments);
    return part;
}

void become_rows(prog *p, val v, val of, int64_t from) {
    prog_val whole = p->val[of];
    p->val[v].cls = VC_ALIAS;
    p->val[v].base = of;
    p->val[v].offset = (size_t)from * val_bytes(&whole) / (size_t)whole.dim[0];
}

static void note_division(prog *p, val whole, const row_parts *of) {
    row_division *g = &LIST_ADD(p->division, p->divisions, p->division_cap);
    g->whole = whole;
    g->parts = of->n;
    memcpy(g->part, of->part, sizeof g->part);
}

row_parts split_rows(prog *p, val x, int n) {
    row_parts out = { .n = n };
    BUG_IF(n < 1 || n > MAX_ROW_PARTS || p->val[x].dim[0] % n);
    int64_t rows = p->val[x].dim[0] / n;
    for (int i = 0; i < n; i++) {
        out.part[i] = slice_rows(p, x, i * rows, rows);
        p->val[out.part[i]].needs_grad = p->val[x].needs_grad;
    }
    note_division(p, x, &out);
    return out;
}

val join_rows(prog *p, const row_parts *of, val into) {
    prog_val v = p->val[of->part[0]];
    int64_t dim[TENSOR_MAX_DIM], rows = v.dim[0];
    memcpy(dim, v.dim, sizeof dim);
    dim[0] = rows * of->n;
    val whole = into == VAL_NONE ? val_new(p, VC_TEMP, v.dt, v.ndim, dim, v.pl) : into;
    memcpy(p->val[whole].segments, v.segments, sizeof v.segments);
    p->val[whole].needs_grad = v.needs_grad;
    p->val[whole].producer = -1;
    for (int i = 0; i < of->n; i++) {
        prog_val *x = &p->val[of->part[i]];
        BUG_IF(x->cls != VC_TEMP || x->dt != v.dt || !placement_same(x->pl, v.pl));
        p->val[whole].producer = MAX(p->val[whole].producer, x->producer);
        become_rows(p, of->part[i], whole, i * rows);
    }
    note_division(p, whole, of);
    return whole;
}
