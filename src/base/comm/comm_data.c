/* Divides a collective into tasks on the tensors of its group, that may run in any order and at the same
 * time, on whichever rank has time for them. In place is allowed (comm.h), so a task writes only what no
 * other task reads: a block of a sum is read from all inputs before it is stored to all outputs. */
#include "comm_internal.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 1 << 14, BLOCK = COMM_BLOCK }; /* elements of a task; of a step in it */

/* ---- values ------------------------------------------------------------------------------ */
bool comm_rounds(dtype dt, dtype wire) { return wire != DT_NONE && wire != dt; }

static void round_through(dtype wire, float *v, int64_t n) {
    uint32_t raw[BLOCK];
    dt_from_f32(wire, v, raw, n);
    dt_to_f32(wire, raw, v, n);
}

void comm_copy_values(dtype dt, dtype wire, const void *src, void *dst, int64_t n) {
    size_t size = dt_size(dt);
    if (!comm_rounds(dt, wire)) {
        if (src != dst) memcpy(dst, src, (size_t)n * size);
        return;
    }
    float v[BLOCK];
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t len = MIN((int64_t)BLOCK, n - at);
        dt_to_f32(dt, (const char *)src + (size_t)at * size, v, len);
        round_through(wire, v, len);
        dt_from_f32(dt, v, (char *)dst + (size_t)at * size, len);
    }
}

/* ---- reductions -------------------------------------------------------------------------- */
/* @return n values of a member in the wire's type: its own memory where nothing is converted. */
static const float *member_values(const meeting *m, int member, int64_t at, int64_t n, float *buf) {
    const tensor *t = &m->in[member];
    const char *src = (const char *)t->data + (size_t)at * dt_size(t->dt);
    if (t->dt == DT_F32 && !comm_rounds(DT_F32, m->move.wire)) return (const float *)src;
    dt_to_f32(t->dt, src, buf, n);
    if (comm_rounds(t->dt, m->move.wire)) round_through(m->move.wire, buf, n);
    return buf;
}

static void sum_values(const float *a, const float *b, float *out, int64_t n) {
    for (int64_t j = 0; j < n; j++) out[j] = a[j] + b[j];
}
static void max_values(const float *a, const float *b, float *out, int64_t n) {
    for (int64_t j = 0; j < n; j++) out[j] = a[j] >= b[j] || isnan(a[j]) ? a[j] : b[j];
}

void meeting_reduce(const meeting *m, int64_t at, int64_t n, float *out) {
    float first[BLOCK], next[BLOCK];
    bool maximum = comm_kind(&m->move) == MOVE_ALL_MAX;
    const float *sum = member_values(m, 0, at, n, first);
    for (int i = 1; i < m->n; i++) {
        const float *v = member_values(m, i, at, n, next);
        (maximum ? max_values : sum_values)(sum, v, out, n);
        sum = out;
    }
}

/* Reduces elements [from, to) of all inputs, and stores them to all outputs. */
static void all_reduce_range(const meeting *m, int64_t from, int64_t to) {
    float sum[BLOCK];
    dtype dt = m->in[0].dt;
    for (int64_t at = from; at < to; at += BLOCK) {
        int64_t n = MIN((int64_t)BLOCK, to - at);
        meeting_reduce(m, at, n, sum);
        if (comm_rounds(dt, m->move.wire)) round_through(m->move.wire, sum, n);
        for (int i = 0; i < m->n; i++)
            dt_from_f32(dt, sum, (char *)m->out[i].data + (size_t)at * dt_size(dt), n);
    }
}

/* Computes elements [from, to) of one member's output. Along the dim that is scattered, an output holds runs of
 * the input, `run` elements each. */
static void scatter_range(const meeting *m, int member, int64_t from, int64_t to) {
    float sum[BLOCK];
    const tensor *out = &m->out[member];
    int64_t run = 1;
    for (int i = m->move.to.dim; i < out->ndim; i++) run *= out->dim[i];
    for (int64_t at = from; at < to;) {
        int64_t n = MIN(MIN((int64_t)BLOCK, to - at), run - at % run);
        meeting_reduce(m, (at / run * m->n + member) * run + at % run, n, sum);
        dt_from_f32(out->dt, sum, (char *)out->data + (size_t)at * dt_size(out->dt), n);
        at += n;
    }
}

/* ---- copies ------------------------------------------------------------------------------ */
/* Copies a box of `size` from `src_at` in one tensor to `dst_at` in the other. */
typedef struct box {
    int64_t size[TENSOR_MAX_DIM], src_at[TENSOR_MAX_DIM], dst_at[TENSOR_MAX_DIM];
} box;

static int64_t dim_or_1(const tensor *t, int i) { return i < t->ndim ? t->dim[i] : 1; }

static void copy_box(const tensor *src, const tensor *dst, const box *b, dtype wire) {
    _Static_assert(TENSOR_MAX_DIM == 3, "two loops and a run");
    int64_t s1 = dim_or_1(src, 1), s2 = dim_or_1(src, 2), d1 = dim_or_1(dst, 1),
            d2 = dim_or_1(dst, 2);
    int64_t rows = b->size[0], lines = b->size[1], run = b->size[2];
    if (run == s2 && run == d2) { /* whole lines are contiguous, and maybe whole rows */
        run *= lines, lines = 1;
        if (b->size[1] == s1 && b->size[1] == d1) run *= rows, rows = 1;
    }
    size_t size = dt_size(src->dt);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < lines; j++) {
            int64_t from = ((i + b->src_at[0]) * s1 + j + b->src_at[1]) * s2 + b->src_at[2];
            int64_t to = ((i + b->dst_at[0]) * d1 + j + b->dst_at[1]) * d2 + b->dst_at[2];
            comm_copy_values(src->dt, wire, (const char *)src->data + (size_t)from * size,
                             (char *)dst->data + (size_t)to * size, run);
        }
}

static box whole_of(const tensor *t) {
    box b = { { 0 }, { 0 }, { 0 } };
    for (int i = 0; i < TENSOR_MAX_DIM; i++) b.size[i] = dim_or_1(t, i);
    return b;
}

void meeting_gather(const meeting *m, int from, int to) {
    box b = whole_of(&m->in[from]);
    int d = m->move.from.dim;
    b.dst_at[d] = from * b.size[d];
    copy_box(&m->in[from], &m->out[to], &b, m->move.wire);
}

/* S(d) -> S(e): the slice along e of one member's input, as its part along d of another's output. */
static void exchange_slices(const meeting *m, int from, int to) {
    box b = whole_of(&m->in[from]);
    int d = m->move.from.dim, e = m->move.to.dim;
    b.size[e] /= m->n;
    b.src_at[e] = to * b.size[e];
    b.dst_at[d] = from * b.size[d];
    copy_box(&m->in[from], &m->out[to], &b, m->move.wire);
}

int64_t meeting_rows(const meeting *m, int from, int to, int64_t *begin) {
    *begin = 0;
    for (int i = 0; i < from; i++) *begin += m->rows[i][to];
    return m->rows[from][to];
}

static void meeting_exchange_rows(const meeting *m, int from, int to) {
    const tensor *in = &m->in[from], *out = &m->out[to];
    int64_t row = tensor_count(in) / MAX(in->dim[0], 1), at = 0, begin;
    int64_t rows = meeting_rows(m, from, to, &begin);
    for (int i = 0; i < to; i++) at += m->rows[from][i];
    size_t size = dt_size(in->dt);
    comm_copy_values(in->dt, m->move.wire, (const char *)in->data + (size_t)(at * row) * size,
                     (char *)out->data + (size_t)(begin * row) * size, rows * row);
}

void comm_take_slice(const tensor *in, const tensor *out, int dim, int index, int parts) {
    box b = whole_of(in);
    b.size[dim] /= parts;
    b.src_at[dim] = index * b.size[dim];
    copy_box(in, out, &b, DT_NONE);
}

/* ---- tasks ------------------------------------------------------------------------------- */
static int64_t reduce_chunks(const tensor *t) { return (tensor_count(t) + CHUNK - 1) / CHUNK; }

int64_t meeting_tasks(const meeting *m) {
    switch (comm_kind(&m->move)) {
    case MOVE_ALL_REDUCE:
    case MOVE_ALL_MAX: return reduce_chunks(&m->in[0]);
    case MOVE_REDUCE_SCATTER: return m->n * reduce_chunks(&m->out[0]);
    case MOVE_SHIFT: return m->n;
    default: return m->n * m->n;
    }
}

void meeting_run(const meeting *m, int64_t task) {
    int from = (int)(task / m->n), to = (int)(task % m->n);
    int64_t per = reduce_chunks(&m->out[0]), at;
    switch (comm_kind(&m->move)) {
    case MOVE_ALL_REDUCE:
    case MOVE_ALL_MAX:
        at = task * CHUNK;
        all_reduce_range(m, at, MIN(at + CHUNK, tensor_count(&m->in[0])));
        break;
    case MOVE_REDUCE_SCATTER:
        at = task % per * CHUNK;
        scatter_range(m, (int)(task / per), at, MIN(at + CHUNK, tensor_count(&m->out[0])));
        break;
    case MOVE_ALL_GATHER: meeting_gather(m, from, to); break;
    case MOVE_ALL_TO_ALL: exchange_slices(m, from, to); break;
    case MOVE_ROWS: meeting_exchange_rows(m, from, to); break;
    case MOVE_SHIFT:
        to = (((int)task + m->move.peer) % m->n + m->n) % m->n;
        comm_copy_values(m->in[task].dt, m->move.wire, m->in[task].data, m->out[to].data,
                         tensor_count(&m->in[task]));
        break;
    default: BUG("not a collective");
    }
}
