/* The memory of the optimizer's calls and state: parameters that share a call, state that comes
 * back to the bit, weights in bf16, state in the host's memory. */
#include "support/optim.h"
#include "ops/op_table.h"
#include "prog/simulate.h"

/* ---- side by side ---------------------------------------------------------------------------- */
/* With a bucket for matrices and one for vectors, each is one update, and the norm one call. */
static void a_bucket_is_one_update(void **state) {
    static const struct {
        optim_kind kind;
        op_code op;
        dtype dt;
    } cases[] = { { OPTIM_SGD, OP_UPDATE_SGD, DT_BF16 },
                  { OPTIM_ADAMW, OP_UPDATE_ADAM, DT_BF16 },
                  { OPTIM_LION, OP_UPDATE_LION, DT_BF16 },
                  { OPTIM_ADAM8BIT, OP_UPDATE_ADAM8, DT_BF16 } };
    for (size_t k = 0; k < COUNT_OF(cases); k++) {
        model_config c = small_llama();
        optim_settings s = settings_of(cases[k].kind);
        comm *end = comm_self();
        optim_fixture r;
        assert_ok(fixture_make(&r, &c, &(model_layout){ .dt = cases[k].dt }, &s, end));
        fill_gradients(&r, 0);
        memset(calls_made, 0, sizeof calls_made);
        assert_ok(optim_step(r.o, &r.x, 0.01, 1));
        assert_int_equal(calls_made[cases[k].op], model_buckets(r.m));
        assert_int_equal(calls_made[OP_SQNORM], 1);
        assert_int_equal(calls_made[OP_CLIP], 1);
        fixture_free(&r);
        comm_free(end);
    }
}

/* A parameter alone, updated by its rule. */
typedef struct alone {
    float *p, *g;
    void *state[2];
    int64_t n;
} alone;
static void alone_step(alone *a, const model_param *q, op_code op, bool bytes,
                       const optim_fixture *r, const optim_settings *s) {
    op_run run = { .step = &r->x.step };
    op_call c = { .op = op, .run = &run };
    int64_t size = (int64_t)block8_bytes(a->n);
    c.attr.update.lr_mul = 1, c.attr.update.decay = q->ndim == 2 ? (float)s->weight_decay : 0;
    c.attr.update.beta1 = (float)s->beta1, c.attr.update.beta2 = (float)s->beta2;
    c.attr.update.eps = (float)s->eps;
    c.in[0] = tensor_of(a->g, DT_F32, 1, &a->n);
    c.out[0] = tensor_of(a->p, DT_F32, 1, &a->n);
    for (int k = 0; k < 2; k++)
        c.out[1 + k] = tensor_of(a->state[k], bytes ? DT_U8 : DT_F32, 1, bytes ? &size : &a->n);
    for (int64_t i = 0; i < a->n; i++)
        a->g[i] = gradient_of(q, i, (uint64_t)r->x.step.now.count - 1);
    ops_run(ops_cpu(OPS_ISA_BEST), &c);
}

static void check_alone(optim_fixture *r, alone *all, op_code op, bool bytes,
                        const optim_settings *s) {
    for (int k = 0; k < model_params(r->m); k++) {
        alone *a = &all[k];
        const model_param *q = model_param_at(r->m, k);
        alone_step(a, q, op, bytes, r, s);
        const float *p = model_param_data(r->m, r->p, k, PARAM_MASTER, NULL);
        if (memcmp(p, a->p, (size_t)a->n * sizeof *p))
            fail_msg("%s differs from what it is alone", q->name);
        for (int j = 0; j < 2; j++) {
            float *v = mem_alloc((size_t)a->n * sizeof *v), block[BLOCK8];
            assert_ok(optim_state_get(r->o, k, j, v));
            for (int64_t b = 0; bytes && b < block8_count(a->n); b++) {
                block8_unpack((uint8_t *)a->state[j] + b * BLOCK8, j == 0,
                              block8_scales(a->state[j], a->n)[b], block);
                int64_t n = MIN(BLOCK8, a->n - b * BLOCK8);
                assert_memory_equal(block, v + b * BLOCK8, (size_t)n * sizeof *v);
            }
            if (!bytes) assert_memory_equal(v, a->state[j], (size_t)a->n * sizeof *v);
            free(v);
        }
    }
}

static void check_padding(const optim_fixture *r) {
    for (int i = 0; i < model_buckets(r->m); i++) {
        bucket_view b = model_bucket(r->m, i);
        uint8_t *used = mem_alloc((size_t)b.count);
        for (int k = 0; k < model_params(r->m); k++) {
            param_range z;
            if (model_param_range(r->m, k, &b, &z)) memset(used + z.at, 1, (size_t)(z.to - z.from));
        }
        const float *p = plan_data(r->p, b.master.region);
        const uint16_t *copy = b.copy.region >= 0 ? plan_data(r->p, b.copy.region) : NULL;
        for (int64_t e = 0; e < b.count; e++)
            if (!used[e] && (p[e] != 0 || (copy && copy[e])))
                fail_msg("%s: the padding between parameters is not zero", b.name);
        free(used);
    }
}

/* Parameters that share a call, and those that cannot (parts that would share a block of bytes), get
 * the bits they get alone; and the padding between them stays zero. */
static void parameters_that_share_a_call_match_separate_calls(void **state) {
    for (int bytes = 0; bytes < 2; bytes++) {
        model_config c = small_llama();
        c.dim = 36, c.head_dim = 9, c.rope_fraction = 8.0 / 9;
        optim_settings s = settings_of(bytes ? OPTIM_ADAM8BIT : OPTIM_ADAMW);
        comm *end = comm_self();
        optim_fixture r;
        assert_ok(fixture_make(&r, &c, &(model_layout){ .dt = DT_BF16 }, &s, end));
        alone *all = mem_alloc((size_t)model_params(r.m) * sizeof *all);
        for (int k = 0; k < model_params(r.m); k++) {
            const model_param *q = model_param_at(r.m, k);
            int64_t n = q->dim[0] * q->dim[1];
            size_t size = (size_t)n * sizeof(float), one = bytes ? block8_bytes(n) : size;
            all[k] = (alone){ .n = n, .p = mem_alloc(size), .g = mem_alloc(size) };
            for (int j = 0; j < 2; j++) all[k].state[j] = mem_alloc(one);
            memcpy(all[k].p, model_param_data(r.m, r.p, k, PARAM_MASTER, NULL), size);
        }
        for (uint64_t step = 0; step < 3; step++) {
            fill_gradients(&r, step);
            assert_ok(optim_step(r.o, &r.x, 0.01, 0.5));
            check_alone(&r, all, bytes ? OP_UPDATE_ADAM8 : OP_UPDATE_ADAM, bytes, &s);
        }
        check_padding(&r);
        for (int k = 0; k < model_params(r.m); k++) {
            free(all[k].p), free(all[k].g), free(all[k].state[0]), free(all[k].state[1]);
        }
        free(all);
        fixture_free(&r);
        comm_free(end);
    }
}

/* ---- state ----------------------------------------------------------------------------------- */
static void hand_over_state(optim_fixture *from, optim_fixture *to) {
    for (int k = 0; k < model_params(from->m); k++)
        for (int j = 0; j < optim_states(from->o, k); j++) {
            int64_t n = optim_state_count(from->o, k, j);
            assert_int_equal(n, optim_state_count(to->o, k, j));
            assert_string_equal(optim_state_name(from->o, k, j), optim_state_name(to->o, k, j));
            float *v = mem_alloc((size_t)n * sizeof *v);
            assert_null(optim_state_get(from->o, k, j, v));
            optim_state_set(to->o, k, j, v);
            free(v);
        }
    step_state now;
    assert_ok(exec_state_get(&from->x, &now));
    exec_state_set(&to->x, &now);
}

/* A run that stops after three steps and continues elsewhere from its weights, state and count is
 * bit-exact with one that never stopped. */
static void hand_over(optim_fixture *from, optim_fixture *to) {
    for (int i = 0; i < model_buckets(from->m); i++) {
        bucket_view a = model_bucket(from->m, i), b = model_bucket(to->m, i);
        memcpy(plan_data(to->p, b.master.region), plan_data(from->p, a.master.region),
               (size_t)a.count * sizeof(float));
    }
    hand_over_state(from, to);
}

/* Gradients for weights that are not fp32. */
static void fill_narrow(optim_fixture *r, uint64_t step) {
    for (int i = 0; i < model_buckets(r->m); i++) {
        bucket_view b = model_bucket(r->m, i);
        float *g = (float *)plan_data(r->p, b.grad.region) + b.grad.at;
        for (int k = 0; k < model_params(r->m); k++) {
            param_range z;
            if (!model_param_range(r->m, k, &b, &z)) continue;
            for (int64_t e = z.from; e < z.to; e++)
                g[z.at + e - z.from] =
                    gradient_of(model_param_at(r->m, k), model_global_index(r->m, k, e), step);
        }
    }
}

static void state_survives_a_restart(void **state) {
    for (optim_kind kind = OPTIM_SGD; kind <= OPTIM_MUON; kind++) {
        model_config c = small_llama();
        c.dim = 36, c.head_dim = 9, c.rope_fraction = 8.0 / 9; /* parts of no whole blocks */
        optim_settings s = settings_of(kind);
        comm *end = comm_self();
        optim_fixture a, b;
        assert_ok(fixture_make(&a, &c, &(model_layout){ .dt = DT_BF16 }, &s, end));
        assert_ok(fixture_make(&b, &c, &(model_layout){ .dt = DT_BF16 }, &s, end));
        for (uint64_t step = 0; step < 6; step++) {
            if (step == 3) hand_over(&a, &b);
            fill_gradients(&a, step);
            fill_gradients(&b, step);
            assert_ok(optim_step(a.o, &a.x, 0.01, 0));
            if (step >= 3) assert_ok(optim_step(b.o, &b.x, 0.01, 0));
        }
        for (int i = 0; i < model_buckets(a.m); i++) {
            bucket_view v = model_bucket(a.m, i), w = model_bucket(b.m, i);
            if (memcmp(plan_data(a.p, v.master.region), plan_data(b.p, w.master.region),
                       (size_t)v.count * sizeof(float)))
                fail_msg("kind %d: resumed, bucket %s differs", kind, v.name);
        }
        fixture_free(&a);
        fixture_free(&b);
        comm_free(end);
    }
}

/* ---- weights in bf16 ------------------------------------------------------------------------- */
static void check_same_bits(const optim_fixture *a, const optim_fixture *b, const char *what) {
    for (int k = 0; k < model_params(a->m); k++) {
        const model_param *q = model_param_at(a->m, k);
        size_t bytes = (size_t)(q->dim[0] * q->dim[1]) * sizeof(float);
        float *v = mem_alloc(bytes), *w = mem_alloc(bytes);
        assert_ok(model_weights_get(a->m, a->p, k, v));
        assert_ok(model_weights_get(b->m, b->p, k, w));
        if (memcmp(v, w, bytes)) fail_msg("%s: %s differs", what, q->name);
        free(v);
        free(w);
    }
}

/* No fp32 weights beside those that GEMMs read; vectors stay fp32. */
static void bf16_weights_need_no_copy(void **state) {
    model_config c = small_llama();
    optim_settings s = settings_of(OPTIM_ADAMW);
    comm *end = comm_self();
    model_layout lay = { .dt = DT_BF16, .master = DT_BF16 };
    optim_fixture r, again;
    assert_ok(fixture_make(&r, &c, &lay, &s, end));
    assert_ok(fixture_make(&again, &c, &lay, &s, end));
    assert_int_equal(plan_bytes(r.p, "copies"), 0);
    for (int i = 0; i < model_buckets(r.m); i++) {
        bucket_view b = model_bucket(r.m, i);
        assert_int_equal(b.master_dt, b.dt);
        assert_int_equal(b.copy.region, -1);
        assert_int_equal(model_bucket_regions(r.m, b.bucket, b.layer).param, b.master.region);
    }
    int w = model_find_param(r.m, "l1.mlp.down"); /* first values, rounded to the nearest */
    model_layout wide = { .dt = DT_F32 };
    optim_fixture exact;
    assert_ok(fixture_make(&exact, &c, &wide, &s, end));
    const float *want = model_param_data(exact.m, exact.p, w, PARAM_MASTER, NULL);
    const model_param *q = model_param_at(r.m, w);
    int64_t n = q->dim[0] * q->dim[1];
    float *got = mem_alloc((size_t)n * sizeof *got);
    assert_ok(model_weights_get(r.m, r.p, w, got));
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        float v;
        dt_from_f32(DT_BF16, &want[i], &h, 1);
        dt_to_f32(DT_BF16, &h, &v, 1);
        assert_true(v == got[i]);
    }
    free(got);
    /* steps come back to the bit, through fp32 as a checkpoint takes them */
    for (uint64_t step = 0; step < 6; step++) {
        if (step == 3) {
            for (int k = 0; k < model_params(r.m); k++) {
                const model_param *z = model_param_at(r.m, k);
                float *v = mem_alloc((size_t)(z->dim[0] * z->dim[1]) * sizeof *v);
                assert_ok(model_weights_get(r.m, r.p, k, v));
                model_weights_set(again.m, again.p, k, v);
                free(v);
            }
            hand_over_state(&r, &again);
        }
        fill_narrow(&r, step);
        fill_narrow(&again, step);
        assert_ok(optim_step(r.o, &r.x, 0.01, 0));
        if (step >= 3) assert_ok(optim_step(again.o, &again.x, 0.01, 0));
    }
    check_same_bits(&r, &again, "resumed");
    fixture_free(&r);
    fixture_free(&again);
    fixture_free(&exact);
    comm_free(end);
}

/* Slices and shards are rounded as the whole is: by parameter and element. */
typedef struct narrow_rank {
    comm *end;
    int zero;
    float *weight[128];
    err error;
} narrow_rank;
static err narrow_run(narrow_rank *me) {
    model_config c = small_llama();
    optim_settings s = settings_of(OPTIM_LION);
    model_layout lay = {
        .mesh = *comm_mesh(me->end), .dt = DT_BF16, .master = DT_BF16, .zero = me->zero
    };
    optim_fixture r;
    TRY(fixture_make(&r, &c, &lay, &s, me->end));
    for (uint64_t step = 0; step < 3; step++) {
        fill_narrow(&r, step);
        TRY(optim_step(r.o, &r.x, 0.001, 0));
    }
    for (int i = 0; i < model_buckets(r.m); i++) {
        bucket_view b = model_bucket(r.m, i);
        for (int k = 0; k < model_params(r.m); k++) {
            param_range z;
            if (!model_param_range(r.m, k, &b, &z)) continue;
            const model_param *q = model_param_at(r.m, k);
            me->weight[k] = mem_alloc((size_t)(q->dim[0] * q->dim[1]) * sizeof(float));
            for (int64_t e = 0; e < q->dim[0] * q->dim[1]; e++) me->weight[k][e] = NAN;
            float *own = mem_alloc((size_t)(z.to - z.from) * sizeof *own);
            TRY(model_weights_get(r.m, r.p, k, own));
            for (int64_t e = z.from; e < z.to; e++)
                me->weight[k][model_global_index(r.m, k, e)] = own[e - z.from];
            free(own);
        }
    }
    fixture_free(&r);
    return OK;
}
static void *narrow_main(void *arg) {
    narrow_rank *me = arg;
    me->error = narrow_run(me);
    return NULL;
}
static void rounds_as_the_whole(const narrow_rank *one, mesh on, int zero) {
    narrow_rank two[2];
    comm *ends[2];
    pthread_t thread[2];
    assert_ok(comm_threads(on, 20, ends));
    for (int r = 0; r < 2; r++) {
        two[r] = (narrow_rank){ .end = ends[r], .zero = zero };
        pthread_create(&thread[r], NULL, narrow_main, &two[r]);
    }
    for (int r = 0; r < 2; r++) pthread_join(thread[r], NULL);
    model_config c = small_llama();
    model *m;
    assert_ok(model_new(&c, &(model_layout){ .dt = DT_BF16 }, &m));
    for (int r = 0; r < 2; r++) assert_ok(two[r].error);
    for (int k = 0; k < model_params(m); k++) {
        const model_param *q = model_param_at(m, k);
        for (int64_t e = 0; e < q->dim[0] * q->dim[1]; e++) {
            bool seen = false;
            for (int r = 0; r < 2; r++) {
                if (!two[r].weight[k] || isnan(two[r].weight[k][e])) continue;
                seen = true;
                if (two[r].weight[k][e] != one->weight[k][e])
                    fail_msg("rank %d, ZeRO %d: %s differs", r, zero, q->name);
            }
            assert_true(seen);
        }
        for (int r = 0; r < 2; r++) free(two[r].weight[k]);
    }
    for (int r = 0; r < 2; r++) comm_free(ends[r]);
    model_free(m);
}
static void slices_and_shards_round_as_the_whole(void **state) {
    narrow_rank one = { .end = comm_self() };
    assert_ok(narrow_run(&one));
    rounds_as_the_whole(&one, (mesh){ .size = { [AX_DP_SHARD] = 2 } }, 1);
    rounds_as_the_whole(&one, (mesh){ .size = { [AX_DP_SHARD] = 2 } }, 3);
    rounds_as_the_whole(&one, (mesh){ .size = { [AX_TP] = 2 } }, 0);
    for (int k = 0; k < 128; k++) free(one.weight[k]);
    comm_free(one.end);
}

/* ---- state in the host's memory -----------------------------------------------------------------
 * A device that is the CPU, notes what it is asked for, and makes calls on the update queue as late as
 * it may. */
enum { MOST_LATE = 64 };
static struct {
    bool forked;           /* the update queue is behind all that was queued on the compute queue */
    int far, wrong, joins; /* wrong: calls on a queue that is not theirs, or too early */
    size_t host;
    struct {
        op_call c;
        op_run run;
        int event; /* signaled behind it; -1: none yet */
    } late[MOST_LATE];
    int lates, most_lates;
} asked;

static void make_late_calls(int n) {
    for (int i = 0; i < n; i++) {
        asked.late[i].c.run = &asked.late[i].run;
        call_on_cpu(&asked.late[i].c);
    }
    asked.lates -= n;
    memmove(asked.late, asked.late + n, (size_t)asked.lates * sizeof *asked.late);
}
static err fake_map(void *context, size_t bytes, void **out) { return mem_map(bytes, out); }
static void fake_unmap(void *context, void *p, size_t bytes) { mem_unmap(p, bytes); }
static err fake_map_host(void *context, size_t bytes, void **out) {
    asked.host = bytes;
    return mem_map(bytes, out);
}
static void fake_put(void *context, void *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
}
static err fake_sync(void *context) {
    make_late_calls(asked.lates);
    return OK;
}
static err fake_get(void *context, void *to, const void *from, size_t bytes) {
    make_late_calls(asked.lates);
    memcpy(to, from, bytes);
    return OK;
}
static void fake_signal(void *context, device_queue q, int event) {
    if (q != QUEUE_UPDATE) asked.wrong++;
    for (int i = asked.lates - 1; i >= 0 && asked.late[i].event < 0; i--)
        asked.late[i].event = event;
}
static void fake_join(void *context, device_queue q, device_queue other) {
    if (q == QUEUE_UPDATE && other == QUEUE_COMPUTE) asked.forked = true;
    if (q != QUEUE_COMPUTE || other != QUEUE_UPDATE) return;
    asked.joins++;
    make_late_calls(asked.lates);
}
static void fake_await(void *context, device_queue q, device_queue of, int event) {
    int n = asked.lates;
    if (q != QUEUE_COMPUTE || of != QUEUE_UPDATE) asked.wrong++;
    while (n > 0 && asked.late[n - 1].event != event) n--;
    asked.joins++;
    make_late_calls(n);
}
static void watch_call(const op_call *c) {
    bool late = c->run->queue == QUEUE_UPDATE;
    bool own = ops_workspace(ops_cpu(OPS_ISA_BEST), c, 1) == 0; /* a workspace is shared */
    if (late && c->attr.update.host_state) asked.far++;
    if (late && !(c->attr.update.host_state && own && asked.forked)) asked.wrong++;
    if (!late) asked.forked = false;
    if (!late || asked.lates == MOST_LATE) {
        call_on_cpu(c);
        return;
    }
    asked.late[asked.lates].c = *c;
    asked.late[asked.lates].event = -1;
    asked.late[asked.lates++].run = *c->run;
    asked.most_lates = MAX(asked.most_lates, asked.lates);
}
static const device_table fake_device = { .map = fake_map,
                                          .unmap = fake_unmap,
                                          .map_host = fake_map_host,
                                          .unmap_host = fake_unmap,
                                          .put = fake_put,
                                          .get = fake_get,
                                          .sync = fake_sync,
                                          .signal = fake_signal,
                                          .await = fake_await,
                                          .join = fake_join };

static void make_on_fake(optim_fixture *r, const model_config *c, optim_settings s, comm *end,
                         op_backend *b) {
    static watched_kernels kernels;
    *b = backend_watched(&kernels, watch_call);
    b->device = &fake_device;
    model_layout l = { .dt = DT_BF16 };
    s.backend = b;
    *r = (optim_fixture){ 0 };
    assert_ok(model_new(c, &l, &r->m));
    r->p = plan_new(&l.mesh, b, 1);
    model_reserve(r->m, r->p, true);
    assert_ok(optim_new(&s, r->m, r->p, &r->o));
    assert_ok(plan_commit(r->p));
    model_init(r->m, r->p, 42);
    r->x = (exec){ .plan = r->p, .comm = end };
}

/* Whole steps, with updates that end only when the next step joins them. */
static void train_on_fake(const model_config *c, double offload, float *losses, optim_fixture *r,
                          op_backend *b) {
    enum { ROWS = 2, SEQ = 16, N = ROWS * SEQ, STEPS = 5 };
    int32_t tokens[N], targets[N], pos[N], start[N];
    int64_t ids[N];
    chain train;
    optim_settings s = settings_of(OPTIM_ADAMW);
    model_layout l = { .dt = DT_BF16, .seq = SEQ };
    memset(&asked, 0, sizeof asked);
    static watched_kernels kernels;
    *b = backend_watched(&kernels, watch_call);
    b->device = &fake_device;
    s.backend = b;
    s.offload = offload;
    *r = (optim_fixture){ 0 };
    assert_ok(model_new(c, &l, &r->m));
    r->p = plan_new(&l.mesh, b, 1);
    model_reserve(r->m, r->p, true);
    assert_ok(optim_new(&s, r->m, r->p, &r->o));
    assert_ok(model_record(r->m, PROG_TRAIN, N, SEQ, &train));
    int id;
    assert_ok(plan_chain(r->p, &train, model_bucket_regions, r->m, &id));
    assert_ok(plan_commit(r->p));
    model_init(r->m, r->p, 42);
    r->x = (exec){ .plan = r->p, .comm = comm_self() };
    r->x.step.loss_grad = 1.0f / N;
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < N; i++) {
            tokens[i] = (step * 7 + i * 5) % (int)c->vocab;
            targets[i] = (tokens[i] + 5) % (int)c->vocab;
            pos[i] = i % SEQ;
            start[i] = i - i % SEQ;
            ids[i] = i;
        }
        model_set_batch(r->m, r->p, &(model_batch){ tokens, targets, pos, start, ids, N });
        assert_ok(exec_chain(&r->x, id, 0, 1));
        /* what a late read would see: no call that was put off is made for it */
        memcpy(losses + step * N, exec_result(&r->x, id).data, N * sizeof *losses);
        assert_ok(optim_step(r->o, &r->x, 0.01 / (step + 1), 1));
    }
}

static void offloading_does_not_wait(void **state) {
    enum { LOSSES = 5 * 32 };
    for (size_t i = 0; i < 3; i++) {
        model_config c = small_llama();
        op_backend backend[2];
        optim_fixture plain, off;
        float a[LOSSES], b[LOSSES];
        c.layers = 6;
        train_on_fake(&c, 0, a, &plain, &backend[0]);
        train_on_fake(&c, (const double[]){ 0.2, 0.6, 1 }[i], b, &off, &backend[1]);
        assert_true(asked.far > 0 && asked.most_lates > 0 && !asked.wrong);
        assert_memory_equal(a, b, sizeof a);
        assert_true(asked.lates > 0);
        double norms[2][7];
        /* this one first: a read makes the late calls */
        assert_ok(optim_block_norms(off.o, &off.x, PARAM_MASTER, norms[1]));
        assert_ok(optim_block_norms(plain.o, &plain.x, PARAM_MASTER, norms[0]));
        assert_memory_equal(norms[0], norms[1], sizeof norms[0]);
        check_same_bits(&plain, &off, "offload");
        comm_free(plain.x.comm);
        comm_free(off.x.comm);
        fixture_free(&plain);
        fixture_free(&off);
    }
}

/* State moves to the host as it was asked for, the last layers' first; weights and state stay what
 * they are without. */
static void offloaded_state_matches_state_on_the_device(void **state) {
    static const double parts[] = { 0.3, 1 };
    for (optim_kind kind = OPTIM_MOMENTUM; kind <= OPTIM_MUON; kind++)
        for (size_t i = 0; i < COUNT_OF(parts); i++) {
            model_config c = small_llama();
            c.layers = 6;
            optim_settings s = settings_of(kind);
            comm *end = comm_self();
            op_backend backend[2];
            optim_fixture plain, off;
            make_on_fake(&plain, &c, s, end, &backend[0]);
            memset(&asked, 0, sizeof asked);
            s.offload = parts[i];
            make_on_fake(&off, &c, s, end, &backend[1]);
            size_t all = plan_bytes(plain.p, "optimizer"), there = plan_host_bytes(off.p);
            assert_int_equal(there + plan_bytes(off.p, "optimizer"), all);
            assert_true(fabs((double)there / (double)all - parts[i]) < 0.1);
            assert_true(asked.host >= there);
            for (uint64_t step = 0; step < 3; step++) {
                exec_join(&off.x, QUEUE_COMPUTE, QUEUE_UPDATE); /* before gradients are written */
                fill_gradients(&plain, step);
                fill_gradients(&off, step);
                assert_ok(optim_step(plain.o, &plain.x, 0.01, 1));
                assert_ok(optim_step(off.o, &off.x, 0.01, 1));
            }
            assert_true(asked.joins >= 3 && !asked.wrong);
            assert_true(asked.far > 0 || kind == OPTIM_ADAFACTOR || kind == OPTIM_MUON);
            check_same_bits(&plain, &off, "offload");
            for (int k = 0; k < model_params(off.m); k++)
                for (int j = 0; j < optim_states(off.o, k); j++) {
                    size_t bytes = (size_t)optim_state_count(off.o, k, j) * sizeof(float);
                    float *v = mem_alloc(bytes), *w = mem_alloc(bytes);
                    assert_ok(optim_state_get(plain.o, k, j, v));
                    optim_state_set(off.o, k, j, v);
                    assert_ok(optim_state_get(off.o, k, j, w));
                    assert_memory_equal(v, w, bytes);
                    free(v);
                    free(w);
                }
            fixture_free(&plain);
            fixture_free(&off);
            comm_free(end);
        }
}

/* ---- what the planner counts ---------------------------------------------------------------------- */
static double bytes_of_call(void *ctx, const char *program, const op_call *c) {
    return ops_work(c).bytes;
}
static double price_nothing(void *ctx, const mesh *m, const comm_move *move, double bytes) {
    return 0;
}

static double update_bytes(optim_settings s) {
    const sim_costs costs = { .call = bytes_of_call, .move = price_nothing };
    const mesh one = { 0 };
    model_config c = small_llama();
    comm *end = comm_self();
    op_backend backend;
    optim_fixture r;
    const prog *p;
    double sum = 0;
    make_on_fake(&r, &c, s, end, &backend);
    for (int i = 0; (p = optim_next_program(r.o, &i)) != NULL;) sum += sim_program(p, &one, &costs);
    fixture_free(&r);
    comm_free(end);
    return sum;
}

/* The bus limits updates of host memory: their bytes are counted apart. */
static void updates_of_host_memory_take_no_time_of_the_device(void **state) {
    for (optim_kind kind = OPTIM_MOMENTUM; kind < OPTIM_MUON; kind++) {
        optim_settings s = settings_of(kind);
        double here = update_bytes(s);
        s.offload = 1;
        if (kind != OPTIM_ADAFACTOR) assert_true(update_bytes(s) < 0.5 * here);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bucket_is_one_update),
        cmocka_unit_test(parameters_that_share_a_call_match_separate_calls),
        cmocka_unit_test(state_survives_a_restart),
        cmocka_unit_test(bf16_weights_need_no_copy),
        cmocka_unit_test(slices_and_shards_round_as_the_whole),
        cmocka_unit_test(offloaded_state_matches_state_on_the_device),
        cmocka_unit_test(offloading_does_not_wait),
        cmocka_unit_test(updates_of_host_memory_take_no_time_of_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
