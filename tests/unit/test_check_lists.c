/* The check of all ranks' lists before a run: what a step ends with is a part of it, so are evaluation and generation,
 * and a mesh of any size is checked. */
#include "support/model.h"

#include "optim/optim.h"
#include "train/train.h"

/* ---- faults that are planted in one rank ------------------------------------------------------- */
typedef struct planted_rank {
    optim_settings s;
    bool no_end, no_tied, no_half;
} planted_rank;

static err check_planted(mesh me, const model_layout *l, const planted_rank *of) {
    model_config c = small_llama();
    c.tied = mesh_size(&me, AX_PP) > 1;
    model *m[2];
    plan *p[2];
    optimizer *o[2];
    chain ch[2];
    for (int i = 0; i < 2; i++) {
        model_layout lay = *l;
        lay.mesh = mesh_as(&me, i);
        assert_ok(model_new(&c, &lay, &m[i]));
        p[i] = plan_new(&lay.mesh, ops_cpu(OPS_ISA_BEST), 1);
        model_reserve(m[i], p[i], true);
        assert_ok(optim_new(&of[i].s, m[i], p[i], &o[i]));
        assert_ok(model_record(m[i], PROG_TRAIN, 32, 16, &ch[i]));
        ch[i].end_list = optim_ends(o[i], &ch[i].ends);
        if (of[i].no_end) ch[i].ends = 0;
        if (l->keeps_half_grad && !of[i].no_half) assert_ok(optim_record_half(o[i], &ch[i]));
        if (of[i].no_tied) ch[i].tied = NULL;
    }
    err e = plan_check_ranks(&me, ch, 2);
    for (int i = 0; i < 2; i++) {
        optim_free(o[i]);
        plan_free(p[i]);
        model_free(m[i]);
    }
    return e;
}

static void what_a_step_ends_with_is_checked(void **state) {
    const optim_settings adam = { .kind = OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8 };
    const optim_settings muon = { .kind = OPTIM_MUON, .momentum = 0.95 };
    const optim_settings factors = { .kind = OPTIM_ADAFACTOR };
    optim_settings clips = adam;
    clips.agc = 0.1;
    const mesh dp = { .size = { [AX_DP_SHARD] = 2 } }, pp = { .size = { [AX_PP] = 2 } },
               tp = { .size = { [AX_TP] = 2 } };
    const struct {
        mesh m;
        int zero;
        bool half;
        planted_rank of[2];
        const char *complaint; /* NULL: they agree */
    } cases[] = {
        { dp, 1, false, { { adam }, { adam } }, NULL },
        { dp, 1, false, { { adam }, { adam, .no_end = true } }, "all-reduce" },
        { dp, 1, false, { { clips }, { clips } }, NULL },
        { dp, 1, false, { { adam }, { clips } }, "all-reduce" },
        { dp, 1, false, { { muon }, { muon } }, NULL },
        { dp, 3, false, { { muon }, { muon } }, NULL },
        { dp, 1, false, { { muon }, { adam } }, "all-to-all" },
        { dp, 1, false, { { factors }, { factors } }, NULL },
        { dp, 2, false, { { factors }, { adam } }, "all-reduce" },
        { pp, 0, false, { { adam }, { adam } }, NULL },
        { pp, 0, false, { { adam }, { adam, .no_tied = true } }, "rank" },
        { dp, 0, true, { { adam }, { adam } }, NULL },
        { dp, 2, true, { { adam }, { adam } }, NULL },
        { dp, 0, true, { { adam }, { adam, .no_half = true } }, "all-reduce" },
        { pp, 0, true, { { adam }, { adam } }, NULL },
        { tp, 0, true, { { adam }, { adam, .no_half = true } }, "all-reduce" },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        model_layout l = { .zero = cases[i].zero,
                           .pipe.chunks = 1,
                           .keeps_half_grad = cases[i].half };
        err e = check_planted(cases[i].m, &l, cases[i].of);
        if (cases[i].complaint)
            assert_error(e, cases[i].complaint);
        else
            assert_ok(e);
    }
}

/* ---- large meshes -------------------------------------------------------------------------------- */
static void a_reduced_mesh_divides_what_the_mesh_divides(void **state) {
    for (uint64_t i = 0; i < 200; i++) {
        mesh m = { .tp_rep = 1 };
        for (int a = 0; a < AX_COUNT; a++)
            m.size[a] = 1 + (int)rng_below(rng_key_of(7, i), (uint64_t)a, 12);
        mesh small = mesh_reduced(&m);
        for (int a = 0; a < AX_COUNT; a++) {
            int size = m.size[a], few = small.size[a];
            assert_int_equal(size % few, 0);
            assert_int_equal(few == 1, size == 1);
            for (int d = 2; d < few; d++) assert_int_not_equal(size % d, 0);
        }
    }
    mesh shares = { .size = { [AX_TP] = 8 }, .tp_rep = 4 };
    assert_int_equal(mesh_world(&(mesh){ .size = { [AX_TP] = mesh_reduced(&shares).size[AX_TP] } }),
                     8);
}

static void every_large_run_is_checked(void **state) {
    static const struct {
        int ranks, played;
        const char *options[8][2];
    } runs[] = {
        { 4, 4, { { "parallelism.tensor_parallel_degree", "2" } } },
        { 256,
          8,
          { { "parallelism.tensor_parallel_degree", "4" },
            { "parallelism.pipeline_parallel_degree", "4" },
            { "parallelism.zero_stage", "1" },
            { "optimizer.name", "muon" },
            { "training.global_batch_size", "64" } } },
        { 1024,
          8,
          { { "parallelism.data_parallel_replicate_degree", "8" },
            { "parallelism.context_parallel_degree", "2" },
            { "parallelism.zero_stage", "3" },
            { "optimizer.name", "adafactor" },
            { "training.global_batch_size", "512" } } },
    };
    for (size_t i = 0; i < COUNT_OF(runs); i++) {
        config c;
        int played = 0;
        config_init(&c);
        const char *common[][2] = {
            { "model.preset", "llama-1b" }, { "model.layers", "8" },
            { "model.dim", "64" },          { "model.heads", "8" },
            { "model.kv_heads", "8" },      { "model.head_dim", "8" },
            { "model.ffn_dim", "128" },     { "model.vocab_size", "256" },
            { "training.seq_len", "32" },   { "training.local_batch_size", "1" },
            { "sample.every", "10" }
        };
        for (size_t k = 0; k < COUNT_OF(common); k++)
            assert_ok(config_set(&c, common[k][0], common[k][1]));
        for (int k = 0; k < 8 && runs[i].options[k][0]; k++)
            assert_ok(config_set(&c, runs[i].options[k][0], runs[i].options[k][1]));
        assert_ok(train_check_lists(&c, runs[i].ranks, &played));
        assert_int_equal(played, runs[i].played);
        config_free(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_step_ends_with_is_checked),
        cmocka_unit_test(a_reduced_mesh_divides_what_the_mesh_divides),
        cmocka_unit_test(every_large_run_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
