/* The collectives of the thread backend against what they mean, on meshes of several axes. */
#include "support/test.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

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
static int run_ranks(mesh m, double patience, err (*run)(rank *), const void *what, rank *ranks) {
    comm *ends[MOST];
    pthread_t thread[MOST];
    int n = mesh_world(&m);
    assert_ok(comm_threads(m, patience, ends));
    for (int i = 0; i < n; i++) {
        ranks[i] = (rank){ ends[i], run, what, OK };
        pthread_create(&thread[i], NULL, rank_main, &ranks[i]);
    }
    for (int i = 0; i < n; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < n; i++) comm_free(ends[i]);
    return n;
}

static void assert_ranks(mesh m, err (*run)(rank *), const void *what) {
    rank ranks[MOST];
    int n = run_ranks(m, 20, run, what, ranks);
    for (int i = 0; i < n; i++) assert_ok(ranks[i].error);
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

static err run_move(rank *r) {
    const move_case *w = r->what;
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

static void collectives_yield_what_their_placements_say(void **state) {
    static const struct {
        place from, to;
    } moves[] = {
        { { PL_P, 0 }, { PL_I, 0 } }, { { PL_P, 0 }, { PL_R, 0 } }, { { PL_S, 0 }, { PL_I, 0 } },
        { { PL_S, 1 }, { PL_R, 0 } }, { { PL_P, 0 }, { PL_S, 0 } }, { { PL_P, 0 }, { PL_S, 1 } },
        { { PL_S, 0 }, { PL_S, 1 } }, { { PL_S, 1 }, { PL_S, 0 } }, { { PL_I, 0 }, { PL_S, 0 } },
        { { PL_I, 0 }, { PL_S, 1 } },
    };
    static const dtype types[] = { DT_F32, DT_BF16, DT_F16 };
    for (size_t m = 0; m < COUNT_OF(meshes); m++)
        for (size_t k = 0; k < COUNT_OF(moves); k++)
            for (size_t t = 0; t < COUNT_OF(types); t++)
                for (axis_set axes = 1; axes <= AXES_ALL; axes++) {
                    if (axes & ~mesh_axes(&meshes[m])) continue;
                    move_case w = { axes, moves[k].from, moves[k].to, types[t], false };
                    assert_ranks(meshes[m], run_move, &w);
                }
}

static void reductions_gathers_and_scatters_work_in_place(void **state) {
    static const place ways[][2] = { { { PL_P, 0 }, { PL_I, 0 } },
                                     { { PL_P, 0 }, { PL_S, 0 } },
                                     { { PL_S, 0 }, { PL_I, 0 } } };
    for (size_t m = 0; m < COUNT_OF(meshes); m++)
        for (size_t k = 0; k < COUNT_OF(ways); k++) {
            move_case w = { mesh_axes(&meshes[m]), ways[k][0], ways[k][1], DT_F32, true };
            assert_ranks(meshes[m], run_move, &w);
        }
}

/* ---- the order of sums ---------------------------------------------------------------------------- */
/* Every rank gets the same bits, however the values round; and adding -0 changes no bit. */
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

/* ---- several at once ---------------------------------------------------------------------------------- */
static err run_many(rank *r) {
    enum { N = 20 };
    float v[N];
    comm_ticket ticket[N];
    int64_t one = 1;
    comm_move sum = { AXIS(AX_TP), PLACE_P, PLACE_I };
    for (int i = 0; i < N; i++) {
        v[i] = (float)(i + comm_rank(r->c));
        tensor t = tensor_of(&v[i], DT_F32, 1, &one);
        TRY(comm_start(r->c, &sum, &t, &t, &ticket[i]));
    }
    for (int i = 0; i < N; i++) TRY(comm_wait(r->c, &ticket[i]));
    for (int i = 0; i < N; i++)
        if (v[i] != (float)(2 * i + 1)) return ERR("sum %d is %g", i, (double)v[i]);
    return OK;
}
static void collectives_in_flight_end_in_order(void **state) {
    assert_ranks(meshes[0], run_many, NULL);
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

static err run_missing(rank *r) { return comm_rank(r->c) ? OK : sum_of(r, 1); }
static void a_missing_rank_is_named(void **state) {
    rank ranks[MOST];
    run_ranks(meshes[0], 0.2, run_missing, NULL, ranks);
    assert_error(ranks[0].error, "rank 0 waits in all-reduce", "rank 1");
}

/* Waits as long as it takes, unless the other gives up. */
static err run_abort(rank *r) {
    if (comm_rank(r->c) == 0) return sum_of(r, 1);
    comm_abort(r->c);
    return ERR("the disk is full");
}
static void a_rank_that_gives_up_ends_the_others(void **state) {
    rank ranks[MOST];
    run_ranks(meshes[0], 1e6, run_abort, NULL, ranks);
    assert_non_null(ranks[0].error);
    err_free(ranks[0].error);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_yield_what_their_placements_say),
        cmocka_unit_test(reductions_gathers_and_scatters_work_in_place),
        cmocka_unit_test(sums_have_one_order),
        cmocka_unit_test(collectives_in_flight_end_in_order),
        cmocka_unit_test(partners_that_disagree_are_named),
        cmocka_unit_test(a_missing_rank_is_named),
        cmocka_unit_test(a_rank_that_gives_up_ends_the_others),
        cmocka_unit_test(all_learn_of_one_error),
        cmocka_unit_test(groups_cover_the_mesh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
