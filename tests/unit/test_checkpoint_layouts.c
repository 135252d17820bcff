/* A checkpoint that any layout of ranks wrote loads into any other, to the bit, and each rank reads what it
 * needs of it. */
#include "support/folder.h"
#include "support/model.h"

#include "checkpoint/checkpoint.h"

static const layout layouts[] = {
    { .name = "one" },
    { .name = "dp2", .replicas = 2 },
    { .name = "zero1 over 3", .dp = 3, .zero = 1 },
    { .name = "zero2 over 4", .dp = 4, .zero = 2 },
    { .name = "zero3 over 8", .dp = 8, .zero = 3 },
    { .name = "tp2", .tp = 2 },
    { .name = "tp4, which share key/value heads", .tp = 4 },
    { .name = "tp2 x zero3 over 2 x 2 replicas", .replicas = 2, .dp = 2, .tp = 2, .zero = 3 },
    { .name = "pp2", .pp = 2 },
    { .name = "pp2 x tp2", .pp = 2, .tp = 2 },
    { .name = "pp2 x zero1 over 2", .pp = 2, .dp = 2, .zero = 1 },
    { .name = "cp2 x zero3", .cp = 2, .zero = 3 },
};
enum { LAYOUTS = COUNT_OF(layouts) };

/* ---- a model whose every value says where it belongs ------------------------------------------- */
typedef struct rank_of {
    const layout *l;
    const model_config *c;
    optim_kind kind;
    comm *end;
    const char *dir; /* to save to, or to load from */
    bool saves, big;
    int wrong; /* elements that are not what they should be */
    err error;
} rank_of;

/* A value per element of each tensor. Millions are compared, so that they are cheap to compute: the upper bits of a
 * multiplicative hash, as many as a float holds. @param seed hash_str of its name. */
static float value_at(uint64_t seed, int64_t index) {
    uint64_t bits = (seed + (uint64_t)index) * 0x9e3779b97f4a7c15;
    return (float)(bits >> 40) * 0x1p-24f + 0.25f;
}

/* The elements of a tensor that follows a parameter's own: set, or compared. */
static void visit_elements(const model *m, int param, const char *name, float *values, bool set,
                           int *wrong) {
    param_range r = model_weights_range(m, param);
    uint64_t seed = hash_str(name);
    for (int64_t e = r.from; e < r.to; e++) {
        float want = value_at(seed, model_global_index(m, param, e));
        if (set) values[e - r.from] = want;
        *wrong += values[e - r.from] != want;
    }
}

static err visit_weights(model *m, plan *p, bool set, int *wrong) {
    for (int i = 0; i < model_params(m); i++) {
        const model_param *q = model_param_at(m, i);
        float *values = mem_alloc((size_t)(q->local[0] * q->local[1]) * sizeof *values);
        err e = set ? OK : model_weights_get(m, p, i, values);
        visit_elements(m, i, q->name, values, set, wrong);
        if (set) model_weights_set(m, p, i, values);
        free(values);
        TRY(e);
    }
    return OK;
}

static err visit_states(model *m, optimizer *o, bool set, int *wrong) {
    for (int i = 0; i < model_params(m); i++)
        for (int k = 0; k < optim_states(o, i); k++) {
            char name[96];
            int64_t n = optim_state_count(o, i, k);
            float *values = mem_alloc((size_t)(n + 1) * sizeof *values);
            snprintf(name, sizeof name, "%s/%s", model_param_at(m, i)->name,
                     optim_state_name(o, i, k));
            err e = set ? OK : optim_state_get(o, i, k, values);
            if (optim_state_kind(o, i, k) == STATE_OF_ELEMENTS) {
                visit_elements(m, i, name, values, set, wrong);
            } else {
                for (int64_t at = 0; at < n; at++) { /* whole lines on every rank that has them */
                    if (set) values[at] = value_at(hash_str(name), at);
                    *wrong += values[at] != value_at(hash_str(name), at);
                }
            }
            if (set) optim_state_set(o, i, k, values);
            free(values);
            TRY(e);
        }
    return OK;
}

static err use_checkpoint(rank_of *r, model *m, exec *x, optimizer *o) {
    if (r->saves) {
        ckpt_state s = { .step = 1, .loss = 1 };
        TRY(visit_weights(m, x->plan, true, &r->wrong));
        TRY(visit_states(m, o, true, &r->wrong));
        return ckpt_save(r->dir, m, x, o, &s, NULL, NULL);
    }
    char *path;
    TRY(ckpt_newest_whole(r->dir, CKPT_FULL, x->comm, &path));
    err e = ckpt_load(path, m, x, o);
    free(path);
    TRY(e);
    TRY(visit_weights(m, x->plan, false, &r->wrong));
    return visit_states(m, o, false, &r->wrong);
}

static err rank_work(rank_of *r) {
    const layout *l = r->l;
    model_layout lay = {
        .mesh = *comm_mesh(r->end), .dt = DT_F32, .zero = l->zero, .seq = RUN_SEQ
    };
    /* Muon with second moments of rows or columns, which one rank of those with slices holds */
    optim_settings s = {
        .kind = r->kind, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .muon_beta2 = 0.9
    };
    model *m = NULL;
    optimizer *o = NULL;
    plan *p = plan_new(&lay.mesh, ops_cpu(OPS_ISA_BEST), 1);
    exec x = { .plan = p, .comm = r->end };
    err e = model_new(r->c, &lay, &m);
    if (!e) model_reserve(m, p, true);
    if (!e) e = optim_new(&s, m, p, &o);
    if (!e) e = plan_commit(p);
    if (!e) e = use_checkpoint(r, m, &x, o);
    optim_free(o);
    plan_free(p);
    model_free(m);
    return e;
}

static void *rank_thread_main(void *arg) {
    rank_of *r = arg;
    r->error = rank_work(r);
    if (r->error) comm_abort(r->end, err_message(r->error));
    return NULL;
}

/* All ranks of a layout save to, or load from, `dir`. @return elements that are wrong. */
static int run_ranks_with(const layout *l, int ep, const model_config *c, optim_kind kind,
                          const char *dir, bool saves) {
    mesh me = { .size = { [AX_PP] = l->pp,
                          [AX_DP_REPLICATE] = l->replicas,
                          [AX_DP_SHARD] = l->dp,
                          [AX_CP] = l->cp,
                          [AX_EP] = ep,
                          [AX_TP] = l->tp } };
    assert_ok(model_split_tp(c, &me));
    int n = mesh_world(&me), wrong = 0;
    comm *ends[RUN_MAX_RANKS];
    rank_of r[RUN_MAX_RANKS];
    pthread_t thread[RUN_MAX_RANKS];
    assert_true(n <= RUN_MAX_RANKS);
    if (n == 1)
        ends[0] = comm_self();
    else
        assert_ok(comm_threads(me, 60, ends));
    for (int i = 0; i < n; i++) {
        r[i] =
            (rank_of){ .l = l, .c = c, .kind = kind, .end = ends[i], .dir = dir, .saves = saves };
        assert_int_equal(pthread_create(&thread[i], NULL, rank_thread_main, &r[i]), 0);
    }
    for (int i = 0; i < n; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < n; i++) {
        assert_ok(r[i].error);
        wrong += r[i].wrong;
        comm_free(ends[i]);
    }
    return wrong;
}

static int run_ranks(const layout *l, const model_config *c, optim_kind kind, const char *dir,
                     bool saves) {
    return run_ranks_with(l, 1, c, kind, dir, saves);
}

static model_config pair_model(void) {
    model_config c = small_gpt2(); /* a tied table and vectors of every kind */
    c.layers = 2;
    c.vocab =
        2201; /* times 32: so large that replicas share it; odd: ranks of tp have tables of two sizes */
    return c;
}

static void every_layout_loads_what_every_other_saved(void **state) {
    test_folder *f = *state;
    model_config c = pair_model();
    int pairs = 0;
    for (int from = 0; from < LAYOUTS; from++) {
        const char *dir = in_folder(f, layouts[from].name);
        assert_int_equal(run_ranks(&layouts[from], &c, OPTIM_ADAMW, dir, true), 0);
        for (int to = 0; to < LAYOUTS; to++) {
            if (SANITIZED && (from + to) % 4) continue;
            pairs++;
            int wrong = run_ranks(&layouts[to], &c, OPTIM_ADAMW, dir, false);
            if (wrong)
                fail_msg("%s to %s: %d elements are wrong", layouts[from].name, layouts[to].name,
                         wrong);
        }
    }
    assert_true(pairs >= 30);
}

/* Each expert is on one rank of ep; everything else is divided as by dp. */
static void experts_load_anywhere(void **state) {
    test_folder *f = *state;
    model_config c = small_moe();
    const layout dp = { .dp = 1, .zero = 1 }, zero3 = { .dp = 2, .zero = 3 };
    const struct {
        const char *name;
        const layout *l;
        int ep;
    } some[] = {
        { "one", &dp, 1 }, { "ep4", &dp, 4 }, { "ep2", &dp, 2 }, { "ep2 x zero3", &zero3, 2 }
    };
    for (size_t i = 0; i < COUNT_OF(some); i++) {
        const char *dir = in_folder(f, some[i].name);
        assert_int_equal(run_ranks_with(some[i].l, some[i].ep, &c, OPTIM_ADAMW, dir, true), 0);
        for (size_t k = 0; k < COUNT_OF(some); k++) {
            int wrong = run_ranks_with(some[k].l, some[k].ep, &c, OPTIM_ADAMW, dir, false);
            if (wrong)
                fail_msg("%s to %s: %d elements are wrong", some[i].name, some[k].name, wrong);
        }
    }
}

/* Rows and columns of a matrix are states of other shapes. Muon's are held by the ranks that orthogonalize it. */
static void states_of_rows_and_columns_load_anywhere(void **state) {
    test_folder *f = *state;
    static const optim_kind kinds[] = { OPTIM_ADAFACTOR, OPTIM_MUON };
    model_config dense = small_llama(), moe = small_moe();
    const struct {
        layout l;
        int ep;
    } some[] = { { { .name = "one" }, 1 },
                 { { .name = "dp2", .replicas = 2 }, 1 },
                 { { .name = "tp2 x zero1 over 2", .dp = 2, .tp = 2, .zero = 1 }, 1 },
                 { { .name = "zero2 over 3", .dp = 3, .zero = 2 }, 1 },
                 { { .name = "2 x zero3 over 2", .replicas = 2, .dp = 2, .zero = 3 }, 1 },
                 { { .name = "pp2", .pp = 2 }, 1 },
                 { { .name = "ep2 x zero1", .dp = 2, .zero = 1 }, 2 } };
    for (size_t q = 0; q < COUNT_OF(kinds); q++)
        for (size_t i = 0; i < COUNT_OF(some); i++) {
            char name[64];
            snprintf(name, sizeof name, "%zu %s", q, some[i].l.name);
            const char *dir = in_folder(f, name);
            const model_config *c = some[i].ep > 1 || i == 0 ? &moe : &dense;
            assert_int_equal(run_ranks_with(&some[i].l, some[i].ep, c, kinds[q], dir, true), 0);
            for (size_t k = 0; k < COUNT_OF(some); k++) {
                if (some[k].ep > 1 && c == &dense) continue;
                int wrong = run_ranks_with(&some[k].l, some[k].ep, c, kinds[q], dir, false);
                if (wrong) fail_msg("%s to %s: %d elements are wrong", name, some[k].l.name, wrong);
            }
        }
}

/* ---- what is written and read -------------------------------------------------------------------- */
static int64_t data_bytes(const char *path) {
    json_t *doc, *entry;
    const char *name;
    int64_t sum = 0;
    char *manifest = io_join(path, "manifest.json");
    assert_ok(io_json_read(manifest, &doc));
    json_object_foreach(json_object_get(doc, "files"), name, entry) {
        sum += json_integer_value(json_object_get(entry, "bytes")) -
               json_integer_value(json_object_get(entry, "header_bytes"));
    }
    json_decref(doc);
    free(manifest);
    return sum;
}

static void replicas_write_each_byte_once(void **state) {
    test_folder *f = *state;
    model_config c = pair_model();
    for (int i = 0; i < LAYOUTS; i++) {
        const char *dir = in_folder(f, layouts[i].name);
        char *path;
        run_ranks(&layouts[i], &c, OPTIM_ADAMW, dir, true);
        assert_ok(ckpt_latest(dir, &path));
        assert_int_equal(data_bytes(path), 3 * 4 * model_count(&c));
        free(path);
    }
    /* and each of them writes */
    assert_true(
        io_exists(in_folder(f, "dp2/checkpoints/step-00000001/model-00002-of-00002.safetensors")));
}

static void a_part_is_read_without_the_rest(void **state) {
    test_folder *f = *state;
    model_config c = small_llama();
    ckpt_reader *r;
    char *path;
    c.vocab = 100000; /* 12.8 MB: four chunks */
    run_ranks(&layouts[0], &c, OPTIM_SGD, f->path, true);
    assert_ok(ckpt_latest(f->path, &path));
    assert_ok(ckpt_open(path, &r));
    int i = ckpt_find_tensor(r, "embed.tokens");
    assert_true(i >= 0);
    float got[64];
    int64_t first = 2000000;
    assert_ok(ckpt_read(r, i, first, 64, got));
    for (int k = 0; k < 64; k++)
        assert_true(got[k] == value_at(hash_str("embed.tokens"), first + k));
    assert_int_equal(ckpt_bytes_read(r), 4 << 20);
    ckpt_close(r);
    free(path);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_setup, folder_teardown)
    const struct CMUnitTest tests[] = {
        TEST(every_layout_loads_what_every_other_saved), TEST(experts_load_anywhere),
        TEST(states_of_rows_and_columns_load_anywhere),  TEST(replicas_write_each_byte_once),
        TEST(a_part_is_read_without_the_rest),
    };
    if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 0); /* without fsync */
    return cmocka_run_group_tests_name("checkpoint layouts", tests, NULL, NULL);
}
