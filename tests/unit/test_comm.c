/* Collectives and messages against what they mean, on meshes of several axes: ranks as threads, as processes that
 * share memory, as processes that exchange messages, and over NCCL, for which threads stand in. */
#include "support/test.h"

#include <math.h>
#include <nccl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "util/wait.h"

#include "comm/comm.h"

enum { MOST = 8, ROWS = 24, COLS = 24 };

/* ---- ranks as threads ------------------------------------------------------------------------ */
typedef struct rank {
    comm *c;
    err (*run)(struct rank *r);
    const void *what;
    err error;
} rank;

static void *rank_main(void *arg) {
    rank *r = arg;
    r->error = r->run(r);
    return NULL;
}

/* Runs on all ranks of the mesh. @param ranks filled; the caller asserts their errors. */
static int run_ranks(mesh m, double timeout, err (*run)(rank *), const void *what, rank *ranks) {
    comm *ends[MOST];
    pthread_t thread[MOST];
    int n = mesh_world(&m);
    assert_ok(comm_threads(m, timeout, ends));
    for (int i = 0; i < n; i++) {
        ranks[i] = (rank){ ends[i], run, what, OK };
        pthread_create(&thread[i], NULL, rank_main, &ranks[i]);
    }
    for (int i = 0; i < n; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < n; i++) comm_free(ends[i]);
    return n;
}

/* The same in processes, which meet as torchrun's do and exchange data through shared memory or messages. */
static err run_process(mesh m, int r, int port, bool share, err (*run)(rank *), const void *what) {
    char text[16];
    comm_job *j;
    comm *c;
    snprintf(text, sizeof text, "%d", r);
    setenv("RANK", text, 1);
    snprintf(text, sizeof text, "%d", mesh_world(&m));
    setenv("WORLD_SIZE", text, 1);
    snprintf(text, sizeof text, "%d", port);
    setenv("MASTER_PORT", text, 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    TRY(comm_job_open(20, abort, &j));
    TRY(comm_processes(j, &m, 20, share, &c));
    TRY(run(&(rank){ .c = c, .what = what }));
    comm_free(c);
    comm_job_close(j, false);
    return OK;
}

static void assert_processes(mesh m, bool share, err (*run)(rank *), const void *what) {
    static int worlds;
    int n = mesh_world(&m), port = 20000 + (int)(getpid() * 53 + worlds++) % 12000, failed = 0;
    pid_t child[MOST];
    fflush(NULL);
    for (int r = 0; r < n; r++) {
        child[r] = fork();
        if (child[r]) continue;
        err e = run_process(m, r, port, share, run, what);
        if (e) err_print(stderr, e, true);
        _exit(e ? 1 : 0);
    }
    for (int r = 0; r < n; r++) {
        int status = -1;
        waitpid(child[r], &status, 0);
        failed += status != 0;
    }
    assert_int_equal(failed, 0);
}

static void assert_ranks(mesh m, err (*run)(rank *), const void *what) {
    rank ranks[MOST];
    int n = run_ranks(m, 20, run, what, ranks);
    for (int i = 0; i < n; i++) assert_ok(ranks[i].error);
    assert_processes(m, true, run, what);
    assert_processes(m, false, run, what);
}

/* ---- ranks over NCCL, which threads of this process stand in for (tests/nccl) ------------------------- */
static void add_here(void *context, void *stream, const tensor *a, const tensor *b,
                     const tensor *out) {
    int64_t n = tensor_count(out);
    float *x = mem_alloc(2 * (size_t)(n + 1) * sizeof *x), *y = x + n;
    dt_to_f32(a->dt, a->data, x, n);
    if (b->data) dt_to_f32(b->dt, b->data, y, n);
    for (int64_t i = 0; i < n && b->data; i++) x[i] += y[i];
    dt_from_f32(out->dt, x, out->data, n);
    free(x);
}

/* An end waits for the thread that watches over it. */
static void *free_end(void *arg) {
    comm_free(arg);
    return NULL;
}

static void assert_nccl(mesh m, err (*run)(rank *), const void *what) {
    comm *ends[MOST];
    rank ranks[MOST];
    pthread_t thread[MOST];
    int n = mesh_world(&m), stream;
    assert_ok(comm_threads(m, 20, ends));
    for (int i = 0; i < n; i++) {
        ranks[i] = (rank){ NULL, run, what, OK };
        assert_ok(comm_nccl(ends[i], &(comm_gpu){ 0, &stream, add_here, NULL }, &ranks[i].c));
    }
    for (int i = 0; i < n; i++) pthread_create(&thread[i], NULL, rank_main, &ranks[i]);
    for (int i = 0; i < n; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < n; i++) pthread_create(&thread[i], NULL, free_end, ranks[i].c);
    for (int i = 0; i < n; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < n; i++) assert_ok(ranks[i].error);
}

static err run_one(comm *c, const comm_move *m, const tensor *in, const tensor *out) {
    comm_ticket ticket;
    TRY(comm_start(c, m, in, out, &ticket));
    return comm_wait(c, &ticket);
}

static const mesh meshes[] = {
    { .size = { [AX_TP] = 2 } },
    { .size = { [AX_DP_SHARD] = 3 } },
    { .size = { [AX_DP_SHARD] = 2, [AX_TP] = 2 } },
    { .size = { [AX_DP_REPLICATE] = 2, [AX_DP_SHARD] = 2, [AX_TP] = 2 } },
};

/* ---- what a collective means ------------------------------------------------------------------- */
/* Element (i, j) of the whole tensor of a group; of a partial sum, the share of its k-th member. Small
 * whole numbers, which every type sums exactly. */
static float element(int group, int k, int64_t i, int64_t j) {
    return (float)((group * 5 + k * 3 + i * 7 + j) % 11 - 5);
}

typedef struct move_case {
    axis_set axes;
    place from, to;
    dtype dt;
    bool in_place;
} move_case;

typedef struct matrix {
    int64_t rows, cols, row0, col0; /* what a rank holds of [ROWS, COLS] */
} matrix;

static matrix part_of(place p, int index, int parts) {
    matrix m = { ROWS, COLS, 0, 0 };
    if (p.kind == PL_S && p.dim == 0) m.rows /= parts, m.row0 = index * m.rows;
    if (p.kind == PL_S && p.dim == 1) m.cols /= parts, m.col0 = index * m.cols;
    return m;
}

static void fill(const move_case *w, matrix m, int group, int k, float *v) {
    int share = w->from.kind == PL_P ? k : 0;
    for (int64_t i = 0; i < m.rows; i++)
        for (int64_t j = 0; j < m.cols; j++)
            v[i * m.cols + j] = element(group, share, m.row0 + i, m.col0 + j);
}

static float expected(const move_case *w, int group, int parts, int64_t i, int64_t j) {
    float sum = element(group, 0, i, j);
    for (int k = 1; k < parts && w->from.kind == PL_P; k++) sum += element(group, k, i, j);
    return sum;
}

static err run_move(rank *r, const move_case *w) {
    const mesh *m = comm_mesh(r->c);
    int parts = mesh_span(m, w->axes), me = mesh_index(m, w->axes);
    int group = mesh_group_id(m, w->axes);
    matrix a = part_of(w->from, me, parts), b = part_of(w->to, me, parts);
    float value[ROWS * COLS];
    uint64_t memory[2][ROWS * COLS / 2 + 1] = { 0 };
    size_t size = dt_size(w->dt);
    char *in = (char *)memory[0], *out = (char *)memory[1];
    if (w->in_place) { /* the smaller tensor is this rank's part of the larger one */
        out = in;
        if (a.rows > b.rows) out = in + (size_t)(b.row0 * COLS) * size;
        if (b.rows > a.rows) in = out + (size_t)(a.row0 * COLS) * size;
    }
    fill(w, a, group, me, value);
    dt_from_f32(w->dt, value, in, a.rows * a.cols);
    tensor x = tensor_of(in, w->dt, 2, (int64_t[]){ a.rows, a.cols });
    tensor y = tensor_of(out, w->dt, 2, (int64_t[]){ b.rows, b.cols });
    comm_ticket ticket;
    TRY(comm_start(r->c, &(comm_move){ w->axes, w->from, w->to }, &x, &y, &ticket));
    TRY(comm_wait(r->c, &ticket));
    dt_to_f32(w->dt, out, value, b.rows * b.cols);
    for (int64_t i = 0; i < b.rows; i++)
        for (int64_t j = 0; j < b.cols; j++)
            if (value[i * b.cols + j] != expected(w, group, parts, b.row0 + i, b.col0 + j))
                return ERR("rank %d: element %lld, %lld is %g", comm_rank(r->c), (long long)i,
                           (long long)j, (double)value[i * b.cols + j]);
    return OK;
}

static err run_all_moves(rank *r) {
    static const struct {
        place from, to;
    } moves[] = {
        { { PL_P, 0 }, { PL_I, 0 } }, { { PL_P, 0 }, { PL_R, 0 } }, { { PL_S, 0 }, { PL_I, 0 } },
        { { PL_S, 1 }, { PL_R, 0 } }, { { PL_P, 0 }, { PL_S, 0 } }, { { PL_P, 0 }, { PL_S, 1 } },
        { { PL_S, 0 }, { PL_S, 1 } }, { { PL_S, 1 }, { PL_S, 0 } }, { { PL_I, 0 }, { PL_S, 0 } },
        { { PL_I, 0 }, { PL_S, 1 } },
    };
    static const dtype types[] = { DT_F32, DT_BF16, DT_F16 };
    for (size_t k = 0; k < COUNT_OF(moves); k++)
        for (size_t t = 0; t < COUNT_OF(types); t++)
            for (axis_set axes = 1; axes <= AXES_ALL; axes++) {
                move_case w = { axes, moves[k].from, moves[k].to, types[t], false };
                if (!(axes & ~mesh_axes(comm_mesh(r->c)))) TRY(run_move(r, &w));
            }
    return OK;
}
static void collectives_yield_what_their_placements_state(void **state) {
    for (size_t m = 0; m < COUNT_OF(meshes); m++) assert_ranks(meshes[m], run_all_moves, NULL);
    assert_nccl(meshes[2], run_all_moves, NULL);
}

static err run_in_place(rank *r) {
    static const place ways[][2] = { { { PL_P, 0 }, { PL_I, 0 } },
                                     { { PL_P, 0 }, { PL_S, 0 } },
                                     { { PL_S, 0 }, { PL_I, 0 } } };
    for (size_t k = 0; k < COUNT_OF(ways); k++) {
        move_case w = { mesh_axes(comm_mesh(r->c)), ways[k][0], ways[k][1], DT_F32, true };
        TRY(run_move(r, &w));
    }
    return OK;
}
static void reductions_gathers_and_scatters_work_in_place(void **state) {
    for (size_t m = 0; m < COUNT_OF(meshes); m++) assert_ranks(meshes[m], run_in_place, NULL);
    assert_nccl(meshes[2], run_in_place, NULL);
}

/* Megabytes, in memory that other processes reach and in memory that they do not, at odd places. */
static err run_large(rank *r) {
    enum { N = SANITIZED ? 300007 : 1000003 };
    void *mapped, *other;
    int world = mesh_world(comm_mesh(r->c));
    TRY(comm_map(r->c, N * sizeof(float) + 64, &mapped));
    TRY(mem_map(N * sizeof(float), &other));
    for (int k = 0; k < 2; k++) {
        float *v = k ? other : (float *)mapped + 3;
        int64_t n = N;
        for (int i = 0; i < N; i++) v[i] = (float)(i % 1000 + comm_rank(r->c));
        TRY(comm_sum(r->c, AXES_ALL, v, n));
        for (int i = 0; i < N; i++)
            if (v[i] != (float)(i % 1000 * world + world * (world - 1) / 2))
                return ERR("memory %d: element %d is %g", k, i, (double)v[i]);
    }
    mem_unmap(other, N * sizeof(float));
    comm_unmap(r->c, mapped, N * sizeof(float) + 64);
    float after = 1; /* a segment that is gone is not in the way */
    return comm_sum(r->c, AXES_ALL, &after, 1);
}
static void large_tensors_anywhere(void **state) { assert_ranks(meshes[2], run_large, NULL); }

/* ---- the order of sums ---------------------------------------------------------------------------- */
/* Every rank gets bit-identical sums, however the values round; and adding -0 changes no bit. */
static err run_rounding(rank *r) {
    float sum[3];
    for (int i = 0; i < 3; i++) sum[i] = 0.1f * (float)(comm_rank(r->c) + 1) + (float)i / 3;
    TRY(comm_sum(r->c, AXES_ALL, sum, 3));
    float want[3];
    for (int i = 0; i < 3; i++) {
        want[i] = 0.1f + (float)i / 3;
        for (int k = 1; k < mesh_world(comm_mesh(r->c)); k++)
            want[i] += 0.1f * (float)(k + 1) + (float)i / 3;
    }
    if (memcmp(sum, want, sizeof sum) != 0) return ERR("sums are not those of rank order");
    float zero = -0.0f;
    TRY(comm_sum(r->c, AXES_ALL, &zero, 1));
    if (!signbit(zero)) return ERR("-0 was lost");
    double total[] = { 1e17 * comm_rank(r->c), 1 };
    int n = mesh_world(comm_mesh(r->c));
    TRY(comm_total(r->c, total, 2));
    if (total[0] != 1e17 * n * (n - 1) / 2 || total[1] != n) return ERR("totals are not fp64");
    return OK;
}
static void sums_have_one_order(void **state) {
    for (size_t m = 0; m < COUNT_OF(meshes); m++) assert_ranks(meshes[m], run_rounding, NULL);
}

/* Each rank has a part, and then all of them have the whole: more bytes than are moved at a time. */
static uint8_t whole[(1 << 20) + 77];
static err run_merge(rank *r) {
    int n = comm_world(r->c), me = comm_rank(r->c);
    uint8_t *bytes = mem_alloc(sizeof whole);
    for (size_t i = (size_t)me; i < sizeof whole; i += (size_t)n) bytes[i] = whole[i];
    err e = comm_merge(r->c, bytes, sizeof whole);
    if (!e && memcmp(bytes, whole, sizeof whole)) {
        size_t at = 0;
        while (bytes[at] == whole[at]) at++;
        e = ERR("byte %zu is %d", at, bytes[at]);
    }
    free(bytes);
    TRY(e);
    int64_t largest = me == n / 2 ? 7 : me - n;
    TRY(comm_largest(r->c, &largest));
    return largest == 7 ? OK : ERR("the largest is %lld", (long long)largest);
}
static void ranks_merge_what_each_has(void **state) {
    for (size_t i = 0; i < sizeof whole; i++) whole[i] = (uint8_t)(i % 251 + 1);
    /* under sanitizers, which watch every byte, two and four ranks */
    for (size_t m = 0; m < COUNT_OF(meshes); m += SANITIZED ? 2 : 1)
        assert_ranks(meshes[m], run_merge, NULL);
    uint8_t alone = 5;
    assert_ok(comm_merge(NULL, &alone, 1));
    assert_int_equal(alone, 5);
}

/* ---- several at once ---------------------------------------------------------------------------------- */
/* Two sets of axes, more of each than are open at a time; every rank waits for them in an order of its
 * own, and rank 0 in the opposite one. */
static err run_many(rank *r) {
    enum { OPEN = 20, ROUNDS = 9 };
    const axis_set sets[] = { AXIS(AX_TP), AXIS(AX_DP_SHARD) | AXIS(AX_TP) };
    float v[2][OPEN];
    comm_ticket ticket[2][OPEN];
    int64_t one = 1;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < OPEN; i++)
            for (int k = 0; k < 2; k++) {
                comm_move sum = { sets[k], PLACE_P, PLACE_I };
                v[k][i] = (float)(i * round + mesh_index(comm_mesh(r->c), sets[k]));
                tensor t = tensor_of(&v[k][i], DT_F32, 1, &one);
                TRY(comm_start(r->c, &sum, &t, &t, &ticket[k][i]));
            }
        for (int i = 0; i < 2 * OPEN; i++) {
            int at = comm_rank(r->c) ? (i * 7 + comm_rank(r->c)) % (2 * OPEN) : 2 * OPEN - 1 - i;
            TRY(comm_wait(r->c, &ticket[at / OPEN][at % OPEN]));
        }
        for (int i = 0; i < 2 * OPEN; i++)
            if (v[i / OPEN][i % OPEN] !=
                (float)(i < OPEN ? 2 * i * round + 1 : 4 * (i - OPEN) * round + 6))
                return ERR("sum %d is %g", i, (double)v[i / OPEN][i % OPEN]);
    }
    return OK;
}
static void collectives_in_flight_end_in_any_order(void **state) {
    assert_ranks(meshes[2], run_many, NULL);
}

/* ---- what placements do not express --------------------------------------------------------------------- */
static err run_maximum(rank *r) {
    float me = (float)comm_rank(r->c), n = (float)mesh_world(comm_mesh(r->c));
    float v[] = { -5 - me, me, comm_rank(r->c) == 1 ? NAN : 0, -INFINITY };
    tensor t = tensor_of(v, DT_F32, 1, (int64_t[]){ 4 });
    comm_move max = { .axes = mesh_axes(comm_mesh(r->c)), .kind = MOVE_ALL_MAX };
    TRY(run_one(r->c, &max, &t, &t));
    if (v[0] != -5 || v[1] != n - 1 || !isnan(v[2]) || v[3] != -INFINITY)
        return ERR("maxima are %g %g %g %g", (double)v[0], (double)v[1], (double)v[2],
                   (double)v[3]);
    return OK;
}
static void a_maximum_is_of_all_ranks(void **state) {
    for (size_t m = 0; m < COUNT_OF(meshes); m++) assert_ranks(meshes[m], run_maximum, NULL);
    assert_nccl(meshes[2], run_maximum, NULL);
}

static err run_shift(rank *r) {
    const mesh *m = comm_mesh(r->c);
    axis_set axes = mesh_axes(m);
    int n = mesh_span(m, axes), me = mesh_index(m, axes);
    for (int far = -1; far <= n; far++) {
        uint16_t in[3] = { (uint16_t)me, 7, (uint16_t)(me * me) }, out[3] = { 0 };
        tensor x = tensor_of(in, DT_U16, 1, (int64_t[]){ 3 });
        tensor y = tensor_of(out, DT_U16, 1, (int64_t[]){ 3 });
        TRY(run_one(r->c, &(comm_move){ .axes = axes, .kind = MOVE_SHIFT, .peer = far }, &x, &y));
        int from = (me - far + n) % n;
        if (out[0] != from || out[1] != 7 || out[2] != from * from)
            return ERR("rank %d got the values of %d, not of %d", me, out[0], from);
    }
    return OK;
}
static void a_shift_goes_around_the_group(void **state) {
    for (size_t m = 0; m < COUNT_OF(meshes); m++) assert_ranks(meshes[m], run_shift, NULL);
    assert_nccl(meshes[2], run_shift, NULL);
}

/* Member i has (i + 2 j) % 3 rows for member j; a row is (i, j, number). */
static int rows_for(int i, int j) { return (i + 2 * j) % 3; }
static err run_rows(rank *r) {
    enum { CAP = 32 };
    const mesh *m = comm_mesh(r->c);
    axis_set axes = mesh_axes(m);
    int n = mesh_span(m, axes), me = mesh_index(m, axes), at = 0;
    float in[CAP][3] = { { 0 } }, out[CAP][3] = { { 0 } };
    int32_t to[MOST], got[MOST];
    for (int j = 0; j < n; j++) {
        to[j] = rows_for(me, j);
        for (int k = 0; k < to[j]; k++, at++)
            in[at][0] = (float)me, in[at][1] = (float)j, in[at][2] = (float)k;
    }
    tensor x = tensor_of(in, DT_F32, 2, (int64_t[]){ CAP, 3 });
    tensor y = tensor_of(out, DT_F32, 2, (int64_t[]){ CAP, 3 });
    comm_move rows = { .axes = axes, .kind = MOVE_ROWS, .send_rows = to, .recv_rows = got };
    TRY(run_one(r->c, &rows, &x, &y));
    at = 0;
    for (int i = 0; i < n; i++) {
        if (got[i] != rows_for(i, me)) return ERR("%d rows from %d", got[i], i);
        for (int k = 0; k < got[i]; k++, at++)
            if (out[at][0] != (float)i || out[at][1] != (float)me || out[at][2] != (float)k)
                return ERR("row %d is not the one from %d", at, i);
    }
    return out[at][0] == 0 ? OK : ERR("a row too many");
}
static void rows_go_where_their_counts_direct(void **state) {
    for (size_t m = 0; m < COUNT_OF(meshes); m++) assert_ranks(meshes[m], run_rows, NULL);
    assert_nccl(meshes[2], run_rows, NULL);
}

/* Both ranks send on two channels, receive in the opposite order, and have a sum of the same axes open
 * meanwhile; rank 1 waits for its sends first, which rank 0 has not begun to receive. */
static err run_messages(rank *r) {
    enum { EACH = 8, N = 2 * EACH };
    int me = comm_rank(r->c);
    int64_t one = 1;
    float out[N], in[N], sum = (float)me;
    comm_ticket sends[N], gets[N], summing;
    tensor s = tensor_of(&sum, DT_F32, 1, &one);
    TRY(comm_start(r->c, &(comm_move){ AXIS(AX_TP), PLACE_P, PLACE_I }, &s, &s, &summing));
    comm_move move = { .axes = AXIS(AX_TP), .peer = !me };
    for (int i = 0; i < N; i++) {
        out[i] = (float)(100 * me + i);
        tensor t = tensor_of(&out[i], DT_F32, 1, &one);
        move.kind = MOVE_SEND, move.channel = i / EACH;
        TRY(comm_start(r->c, &move, &t, NULL, &sends[i]));
    }
    for (int k = 0; k < N; k++) {
        int i = (k + EACH) % N; /* the second channel first */
        tensor t = tensor_of(&in[i], DT_F32, 1, &one);
        move.kind = MOVE_RECV, move.channel = i / EACH;
        TRY(comm_start(r->c, &move, NULL, &t, &gets[i]));
    }
    for (int i = 0; i < N; i++) TRY(comm_wait(r->c, me ? &sends[i] : &gets[N - 1 - i]));
    for (int i = 0; i < N; i++) TRY(comm_wait(r->c, me ? &gets[i] : &sends[i]));
    TRY(comm_wait(r->c, &summing));
    for (int i = 0; i < N; i++)
        if (in[i] != (float)(100 * !me + i)) return ERR("message %d is %g", i, (double)in[i]);
    return sum == 1 ? OK : ERR("the sum is %g", (double)sum);
}
static void messages_keep_the_order_of_their_channel(void **state) {
    for (int i = 0; i < 3; i++) assert_ranks(meshes[0], run_messages, NULL);
    assert_nccl(meshes[0], run_messages, NULL);
}

/* Rank 0 looks for the receiver of its second message while rank 1 still wants the first, with a letter that it then uses again for
 * the second: what rank 0 has seen of the first use must not count for the second. */
static err run_reused(rank *r) {
    enum { ROUNDS = 4000 };
    int me = comm_rank(r->c);
    int64_t one = 1;
    comm_move move = { .axes = AXIS(AX_TP), .peer = !me, .kind = me ? MOVE_RECV : MOVE_SEND };
    for (int i = 0; i < ROUNDS; i++) {
        float v[2] = { me ? -1 : (float)i, me ? -1 : (float)-i };
        comm_ticket ticket[2];
        for (int k = 0; k < 2; k++) {
            tensor t = tensor_of(&v[k], DT_F32, 1, &one);
            move.channel = k;
            TRY(comm_start(r->c, &move, me ? NULL : &t, me ? &t : NULL, &ticket[k]));
            if (me) TRY(comm_wait(r->c, &ticket[k]));
        }
        for (int k = 1; k >= 0 && !me; k--) TRY(comm_wait(r->c, &ticket[k]));
        if (v[0] != (float)i || v[1] != (float)-i)
            return ERR("messages of round %d are %g and %g", i, (double)v[0], (double)v[1]);
    }
    return OK;
}
static void a_letter_that_is_used_again_is_another(void **state) {
    assert_ranks(meshes[0], run_reused, NULL);
}

/* 1 + 2^-9 is halfway between two bf16 numbers and rounds to 1, the even one; 3 x (1 + 2^-7) needs more
 * bits than bf16 has. */
static err run_wire(rank *r) {
    int me = comm_rank(r->c);
    float fine = 1 + 0x1p-9f, coarse = 1 + 0x1p-7f, v[3] = { fine, coarse, fine }, part, all[3];
    tensor x = tensor_of(v, DT_F32, 1, (int64_t[]){ 3 }), y = tensor_of(all, DT_F32, 1, x.dim);
    tensor p = tensor_of(&part, DT_F32, 1, (int64_t[]){ 1 });
    comm_move move = { .axes = AXIS(AX_DP_SHARD), .wire = DT_BF16, .from = PLACE_P };
    move.to = PLACE_S(0);
    TRY(run_one(r->c, &move, &x, &p));
    if (part != (me == 1 ? 3 * coarse : 3)) return ERR("scattered sum %.9g", (double)part);
    move.to = PLACE_I;
    TRY(run_one(r->c, &move, &x, &y));
    if (all[0] != 3 || all[1] != bf16_to_f32(f32_to_bf16(3 * coarse)) || all[1] == 3 * coarse)
        return ERR("sums %.9g %.9g", (double)all[0], (double)all[1]);
    part = fine;
    move.from = PLACE_S(0);
    TRY(run_one(r->c, &move, &p, &y));
    if (all[me] != 1) return ERR("gathered %.9g", (double)all[me]);
    return OK;
}
static void a_narrow_wire_rounds_what_crosses_it(void **state) {
    assert_ranks(meshes[1], run_wire, NULL);
    assert_nccl(meshes[1], run_wire, NULL);
}

/* ---- counters ----------------------------------------------------------------------------------------------- */
static err run_counters(rank *r) {
    enum { N = 12 };
    const double n = 3;
    axis_set axes = AXIS(AX_DP_SHARD);
    float in[N] = { 0 }, out[3 * N];
    int32_t rows[] = { 1, 2, 3 }, got[3];
    int me = comm_rank(r->c);
    struct {
        comm_move move;
        int64_t in, out;
        double bytes;
    } all[] = {
        { { axes, PLACE_P, PLACE_I }, N, N, 2 * (n - 1) / n * N * 4 },
        { { axes, PLACE_P, PLACE_S(0), .wire = DT_BF16 }, N, N / 3, (n - 1) / n * N * 2 },
        { { axes, PLACE_S(0), PLACE_R }, N, 3 * N, (n - 1) * N * 4 },
        { { axes, .kind = MOVE_ALL_MAX }, N, N, 2 * (n - 1) / n * N * 4 },
        { { axes, .kind = MOVE_SHIFT, .peer = 1 }, N, N, N * 4 },
        { { axes, .kind = MOVE_ROWS, .send_rows = rows, .recv_rows = got },
          N,
          3 * N,
          (5 - me) * 4 },
        { { axes, PLACE_I, PLACE_S(0) }, N, N / 3, 0 },
    };
    comm_counter k[16];
    for (int twice = 0; twice < 2; twice++)
        for (size_t i = 0; i < COUNT_OF(all); i++) {
            tensor x = tensor_of(in, DT_F32, 1, &all[i].in),
                   y = tensor_of(out, DT_F32, 1, &all[i].out);
            TRY(run_one(r->c, &all[i].move, &x, &y));
        }
    k[0].calls = k[1].calls = -1; /* what does not fit is counted, and not written */
    if (comm_counters(r->c, k, 1) != COUNT_OF(all) - 1 || k[0].calls != 2 || k[1].calls != -1)
        return ERR("a capacity of one counter is not kept");
    int found = comm_counters(r->c, k, 16);
    if (found != COUNT_OF(all) - 1) return ERR("%d counters", found); /* a slice is local */
    for (int i = 0; i < found; i++)
        for (size_t j = 0; j < COUNT_OF(all); j++)
            if (k[i].kind == comm_kind(&all[j].move) &&
                (k[i].calls != 2 || k[i].axes != axes ||
                 fabs(k[i].bytes - 2 * all[j].bytes) > 1e-9 ||
                 k[i].wait_seconds > k[i].open_seconds))
                return ERR("%s: %g bytes, not %g", move_name(k[i].kind), k[i].bytes, all[j].bytes);
    return OK;
}
/* Bytes that moved before a rank waited were hidden from it: of a collective that another rank completes all,
 * of one that it completes alone none. Messages (`what` is set) arrive when they do. */
static err run_hidden(rank *r) {
    int64_t n = 100000, one = 1;
    float *x = mem_alloc((size_t)n * sizeof *x), flag = 0;
    tensor t = tensor_of(x, DT_F32, 1, &n), note = tensor_of(&flag, DT_F32, 1, &one), none = { 0 };
    comm_move sum = { .axes = AXIS(AX_TP), .from = PLACE_P, .to = PLACE_I };
    bool waits_first = mesh_coord(comm_mesh(r->c), AX_TP) == 0;
    comm_move message = { .axes = AXIS(AX_TP),
                          .kind = waits_first ? MOVE_SEND : MOVE_RECV,
                          .peer = waits_first };
    comm_ticket reduced, told;
    comm_counter k[4];
    TRY(comm_start(r->c, &sum, &t, &t, &reduced));
    if (waits_first) TRY(comm_wait(r->c, &reduced));
    TRY(comm_start(r->c, &message, waits_first ? &note : &none, waits_first ? &none : &note,
                   &told));
    TRY(comm_wait(r->c, &told));
    if (!waits_first) TRY(comm_wait(r->c, &reduced));
    free(x);
    int found = comm_counters(r->c, k, 4);
    for (int i = 0; i < found; i++) {
        if (k[i].kind != MOVE_ALL_REDUCE) continue;
        double want = waits_first ? 0 : k[i].moving_seconds;
        bool within = k[i].hidden_seconds >= 0 && k[i].hidden_seconds <= k[i].moving_seconds;
        if (k[i].moving_seconds > 0 && (r->what ? within : k[i].hidden_seconds == want)) return OK;
        return ERR("%g s moved, %g of them hidden, not %g", k[i].moving_seconds,
                   k[i].hidden_seconds, want);
    }
    return ERR("nothing was counted");
}
static void what_moves_before_a_wait_is_hidden(void **state) {
    mesh two = { .size = { [AX_TP] = 2 } };
    rank ranks[MOST];
    int n = run_ranks(two, 20, run_hidden, NULL, ranks);
    for (int i = 0; i < n; i++) assert_ok(ranks[i].error);
    assert_processes(two, true, run_hidden, NULL);
    assert_processes(two, false, run_hidden, "");
}

static void counters_have_the_closed_forms(void **state) {
    assert_ranks(meshes[1], run_counters, NULL);
}

/* ---- what goes wrong -------------------------------------------------------------------------------------- */
static err sum_of(rank *r, int64_t n) {
    float v[8] = { 0 };
    return comm_sum(r->c, AXES_ALL, v, n);
}
static err run_mismatch(rank *r) { return sum_of(r, comm_rank(r->c) ? 2 : 3); }
static void partners_that_disagree_are_named(void **state) {
    rank ranks[MOST];
    run_ranks(meshes[0], 20, run_mismatch, NULL, ranks);
    int named = 0;
    for (int i = 0; i < 2; i++) {
        named += ranks[i].error && strstr(err_message(ranks[i].error), "different collectives");
        err_free(ranks[i].error);
    }
    assert_true(named >= 1);
}

/* Ranks 1 and 3 never start what ranks 0 and 2 wait for. */
static err run_missing(rank *r) {
    float v = 0;
    int64_t one = 1;
    tensor t = tensor_of(&v, DT_F32, 1, &one);
    comm_move sum = { .axes = AXIS(AX_DP_SHARD) | AXIS(AX_TP),
                      .from = PLACE_P,
                      .to = PLACE_I,
                      .name = "block",
                      .layer = 4 };
    return comm_rank(r->c) % 2 ? OK : run_one(r->c, &sum, &t, &t);
}
/* A signal shortens how long ranks wait for one that may be frozen, where the caller says that none takes longer. The
 * timeout is an hour: the test would not end. */
static err run_missing_after_signal(rank *r) {
    comm_set_stop_patience(r->c, 0.2);
    if (comm_rank(r->c) == 0) wait_note_signal(SIGTERM);
    return run_missing(r);
}
static void a_signal_shortens_waits(void **state) {
    rank ranks[MOST];
    int n = run_ranks(meshes[2], 3600, run_missing_after_signal, NULL, ranks);
    wait_forget_signals();
    for (int i = 0; i < n; i += 2) err_free(ranks[i].error);
    assert_non_null(ranks[0].error);
}

static void missing_ranks_are_named(void **state) {
    rank ranks[MOST];
    run_ranks(meshes[2], 0.2, run_missing, NULL, ranks);
    int waited = 0;
    for (int i = 0; i < 4; i += 2) {
        const char *message = err_message(ranks[i].error);
        assert_non_null(strstr(message, "all-reduce over dp_shard+tp (block 3)"));
        waited +=
            strstr(message, "has waited 0.2 s") && strstr(message, "for rank 1, rank 3, which");
        err_free(ranks[i].error);
    }
    assert_true(waited >= 1); /* the other may have learned it from the first */
}

static err run_lonely(rank *r) {
    float v = 0;
    int64_t one = 1;
    tensor t = tensor_of(&v, DT_F32, 1, &one);
    comm_move get = { .axes = AXIS(AX_TP), .kind = MOVE_RECV, .peer = 1, .name = "stage" };
    return comm_rank(r->c) ? OK : run_one(r->c, &get, NULL, &t);
}
static void a_missing_sender_is_named(void **state) {
    rank ranks[MOST];
    run_ranks(meshes[0], 0.2, run_lonely, NULL, ranks);
    assert_error(ranks[0].error, "has waited 0.2 s in receive over tp (stage)", "rank 1");
}

static err run_unequal_messages(rank *r) {
    float v[2] = { 0 };
    int me = comm_rank(r->c);
    int64_t n = 1 + me;
    tensor t = tensor_of(v, DT_F32, 1, &n);
    comm_move move = { .axes = AXIS(AX_TP), .kind = me ? MOVE_RECV : MOVE_SEND, .peer = !me };
    return run_one(r->c, &move, &t, &t);
}
static void messages_of_unequal_size_are_refused(void **state) {
    rank ranks[MOST];
    run_ranks(meshes[0], 20, run_unequal_messages, NULL, ranks);
    for (int i = 0; i < 2; i++) assert_error(ranks[i].error, "disagree in", "elements of fp32");
}

static err run_overflow(rank *r) {
    float in[4 * 2] = { 0 }, out[3 * 2];
    int32_t to[] = { 0, 2 }, got[2];
    tensor x = tensor_of(in, DT_F32, 2, (int64_t[]){ 4, 2 });
    tensor y = tensor_of(out, DT_F32, 2, (int64_t[]){ 3, 2 });
    comm_move rows = { .axes = AXIS(AX_TP),
                       .kind = MOVE_ROWS,
                       .send_rows = to,
                       .recv_rows = got,
                       .name = "dispatch" };
    return run_one(r->c, &rows, &x, &y);
}
static void rows_beyond_the_capacity_are_refused(void **state) {
    rank ranks[MOST];
    run_ranks(meshes[0], 20, run_overflow, NULL, ranks);
    for (int i = 0; i < 2; i++)
        assert_error(ranks[i].error, "rank 1 gets 4 rows in dispatch, but has capacity for 3");
}

/* Waits as long as it takes, unless the other gives up. */
static err run_abort(rank *r) {
    if (comm_rank(r->c) == 0) return sum_of(r, 1);
    comm_abort(r->c, "the disk is full");
    return ERR("the disk is full");
}
static void a_rank_that_gives_up_ends_the_others(void **state) {
    rank ranks[MOST];
    run_ranks(meshes[0], 1e6, run_abort, NULL, ranks);
    assert_error(ranks[0].error, "because rank 1 failed: the disk is full");
    assert_error(ranks[1].error, "disk is full");
}

static err run_agree(rank *r) {
    err e = comm_agree(r->c, comm_rank(r->c) == 1 ? ERR("the disk is full") : OK);
    bool named = e && strstr(err_message(e), comm_rank(r->c) == 1 ? "disk" : "another rank");
    err_free(e);
    if (!named) return ERR("rank %d did not learn of it", comm_rank(r->c));
    return comm_agree(r->c, OK);
}
static void all_learn_of_one_error(void **state) {
    for (size_t m = 0; m < COUNT_OF(meshes); m++) assert_ranks(meshes[m], run_agree, NULL);
}

/* ---- mesh ------------------------------------------------------------------------------------------------------ */
static void groups_cover_the_mesh(void **state) {
    mesh m = { .size = { [AX_DP_REPLICATE] = 2, [AX_DP_SHARD] = 3, [AX_TP] = 2 } };
    assert_int_equal(mesh_world(&m), 12);
    for (axis_set axes = 0; axes <= AXES_ALL; axes++)
        for (int r = 0; r < 12; r++) {
            mesh me = mesh_as(&m, r);
            int members[12], n = mesh_span(&me, axes), index = mesh_group(&me, axes, members);
            assert_int_equal(members[index], r);
            assert_int_equal(index, mesh_index(&me, axes));
            for (int i = 0; i < n; i++) {
                mesh other = mesh_as(&m, members[i]);
                assert_int_equal(mesh_group_id(&other, axes), mesh_group_id(&me, axes));
                for (int a = 0; a < AX_COUNT; a++)
                    if (!(axes & AXIS(a)))
                        assert_int_equal(mesh_coord(&other, (mesh_axis)a),
                                         mesh_coord(&me, (mesh_axis)a));
            }
        }
    mesh last = mesh_as(&m, 11);
    assert_int_equal(mesh_coord(&last, AX_DP_REPLICATE), 1);
    assert_int_equal(mesh_coord(&last, AX_DP_SHARD), 2);
    assert_int_equal(mesh_coord(&last, AX_TP), 1);
}

/* The axes of a mesh in another order: neighbors along the last of them are neighboring ranks. */
static void axes_may_have_another_order(void **state) {
    mesh m = { .size = { [AX_DP_SHARD] = 3, [AX_TP] = 2 },
               .order = { 1 + AX_PP, 1 + AX_TP, 1 + AX_DP_REPLICATE, 1 + AX_CP, 1 + AX_EP,
                          1 + AX_DP_SHARD } };
    for (int r = 0; r < 6; r++) {
        mesh me = mesh_as(&m, r);
        assert_int_equal(mesh_coord(&me, AX_TP), r / 3);
        assert_int_equal(mesh_coord(&me, AX_DP_SHARD), r % 3);
        for (axis_set axes = 0; axes <= AXES_ALL; axes++) {
            int members[6], index = mesh_group(&me, axes, members);
            assert_int_equal(members[index], r);
        }
    }
    assert_ranks(m, run_all_moves, NULL);
    assert_ranks(m, run_shift, NULL);
}

/* ---- how NCCL reduces ---------------------------------------------------------------------------------------- */
static err sum_over_all(rank *r) {
    float v = 1;
    int64_t one = 1;
    tensor t = tensor_of(&v, DT_F32, 1, &one);
    comm_move sum = { .axes = AXIS(AX_DP_SHARD), .from = PLACE_P, .to = PLACE_I, .name = "sum" };
    TRY(run_one(r->c, &sum, &t, &t));
    return v == 3 ? OK : ERR("a sum of 3 ones is %g", (double)v);
}

/* Runs a sum on all ends, and compares what NCCL was told when it made its communicator. */
static void assert_told(rank *ranks, int n, const char *told) {
    pthread_t thread[MOST];
    nccl_stand_in_algorithm[0] = '\0';
    for (int i = 0; i < n; i++) pthread_create(&thread[i], NULL, rank_main, &ranks[i]);
    for (int i = 0; i < n; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < n; i++) assert_ok(ranks[i].error);
    assert_string_equal(nccl_stand_in_algorithm, told);
}

static void all_reduces_run_by_the_algorithm_chosen(void **state) {
    static const struct {
        int version;
        nccl_algorithm algorithm;
        const char *own, *told; /* the user's NCCL_ALGO, and what NCCL reads */
    } cases[] = { { 22703, NCCL_BY_SIZE, NULL, "" },
                  { 22703, NCCL_BY_SIZE, "NVLS", "NVLS" },
                  { 22703, NCCL_BY_RING, "NVLS", "allreduce:ring" },
                  { 22703, NCCL_BY_TREE, NULL, "allreduce:tree" },
                  { 21805, NCCL_BY_RING, NULL, "Ring" },
                  { 21805, NCCL_BY_TREE, NULL, "Tree" } };
    for (size_t k = 0; k < COUNT_OF(cases); k++) {
        comm *ends[MOST];
        rank ranks[MOST];
        pthread_t thread[MOST];
        int n = mesh_world(&meshes[1]), stream;
        nccl_stand_in_version = cases[k].version;
        unsetenv("NCCL_ALGO");
        if (cases[k].own) setenv("NCCL_ALGO", cases[k].own, 1);
        assert_ok(comm_threads(meshes[1], 20, ends));
        for (int i = 0; i < n; i++) {
            comm_gpu gpu = { 0, &stream, add_here, NULL, cases[k].algorithm };
            ranks[i] = (rank){ NULL, sum_over_all, NULL, OK };
            assert_ok(comm_nccl(ends[i], &gpu, &ranks[i].c));
        }
        assert_told(ranks, n, cases[k].told);
        for (int i = 0; i < n; i++) comm_set_algorithm(ranks[i].c, NCCL_BY_RING);
        assert_told(ranks, n, cases[k].version < 22400 ? "Ring" : "allreduce:ring");
        for (int i = 0; i < n; i++) pthread_create(&thread[i], NULL, free_end, ranks[i].c);
        for (int i = 0; i < n; i++) pthread_join(thread[i], NULL);
    }
    unsetenv("NCCL_ALGO");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_yield_what_their_placements_state),
        cmocka_unit_test(reductions_gathers_and_scatters_work_in_place),
        cmocka_unit_test(large_tensors_anywhere),
        cmocka_unit_test(sums_have_one_order),
        cmocka_unit_test(ranks_merge_what_each_has),
        cmocka_unit_test(collectives_in_flight_end_in_any_order),
        cmocka_unit_test(a_maximum_is_of_all_ranks),
        cmocka_unit_test(a_shift_goes_around_the_group),
        cmocka_unit_test(rows_go_where_their_counts_direct),
        cmocka_unit_test(messages_keep_the_order_of_their_channel),
        cmocka_unit_test(a_letter_that_is_used_again_is_another),
        cmocka_unit_test(a_narrow_wire_rounds_what_crosses_it),
        cmocka_unit_test(counters_have_the_closed_forms),
        cmocka_unit_test(what_moves_before_a_wait_is_hidden),
        cmocka_unit_test(partners_that_disagree_are_named),
        cmocka_unit_test(missing_ranks_are_named),
        cmocka_unit_test(a_signal_shortens_waits),
        cmocka_unit_test(all_reduces_run_by_the_algorithm_chosen),
        cmocka_unit_test(a_missing_sender_is_named),
        cmocka_unit_test(messages_of_unequal_size_are_refused),
        cmocka_unit_test(rows_beyond_the_capacity_are_refused),
        cmocka_unit_test(a_rank_that_gives_up_ends_the_others),
        cmocka_unit_test(all_learn_of_one_error),
        cmocka_unit_test(groups_cover_the_mesh),
        cmocka_unit_test(axes_may_have_another_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
