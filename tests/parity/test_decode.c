/* Generation sees what training sees: the loss of every token of a long sequence, once through the
 * training attention and once through the cache, in pieces and token by token. */
#include "support/model.h"

#include "eval/eval.h"

enum { LONG = 300 };

typedef struct decoded {
    double loss[LONG];
} decoded;

static double loss_of(const float *logits, int64_t vocab, int32_t target) {
    double max = logits[0], sum = 0;
    for (int64_t v = 1; v < vocab; v++)
        if (logits[v] > max) max = logits[v];
    for (int64_t v = 0; v < vocab; v++) sum += exp(logits[v] - max);
    return log(sum) + max - logits[target];
}

static void feed(exec *x, model *m, const generator *g, const int32_t *tok, const int32_t *pos,
                 int64_t from, int64_t n, const int32_t *target, decoded *out) {
    int which = n == 1 ? g->one_id : g->many_id;
    int32_t t[PREFILL], p[PREFILL];
    for (int64_t i = 0; i < (n == 1 ? 1 : PREFILL); i++) {
        t[i] = tok[from + MIN(i, n - 1)];
        p[i] = pos[from + MIN(i, n - 1)];
    }
    model_set_batch(m, x->plan, &(model_batch){ .tokens = t, .pos = p, .n = n == 1 ? 1 : PREFILL });
    assert_ok(exec_chain(x, which, 0, 1));
    const float *logits = exec_result(x, which).data;
    int64_t vocab = model_conf(m)->vocab;
    for (int64_t i = 0; i < n; i++)
        out->loss[from + i] = loss_of(logits + i * vocab, vocab, target[from + i]);
}

static void compare(const char *name, model_config c, int threads) {
    c.max_seq = 512;
    model *m;
    chain e;
    generator g;
    model_layout l = { .dt = DT_F32 };
    assert_ok(model_new(&c, &l, &m));
    exec x = { .comm = comm_self(), .pool = threads > 1 ? pool_new(threads) : NULL };
    x.plan = plan_new(&l.mesh, ops_cpu(OPS_ISA_BEST), threads);
    model_reserve(m, x.plan, false);
    assert_ok(model_record(m, PROG_EVAL, LONG, LONG, &e));
    int eval;
    assert_ok(plan_chain(x.plan, &e, model_bucket_regions, m, &eval));
    assert_ok(generator_plan(m, x.plan, 512, &g));
    assert_ok(plan_commit(x.plan));
    model_init(m, x.plan, 3);
    stir_vectors(m, &x);
    int32_t tok[LONG], target[LONG], pos[LONG], start[LONG];
    int64_t ids[LONG];
    rng_key key = rng_key_of(1, 1);
    for (int i = 0; i < LONG; i++) {
        tok[i] = (int32_t)rng_below(key, (uint64_t)i, (uint64_t)c.vocab);
        target[i] = (int32_t)rng_below(key, (uint64_t)i + LONG, (uint64_t)c.vocab);
        pos[i] = i;
        start[i] = 0;
        ids[i] = i;
    }
    model_set_batch(m, x.plan, &(model_batch){ tok, target, pos, start, ids, LONG });
    assert_ok(exec_chain(&x, eval, 0, 1));
    double want[LONG];
    for (int i = 0; i < LONG; i++) want[i] = ((float *)exec_result(&x, eval).data)[i];
    static const int pieces[] = { PREFILL, 1, 50 };
    for (size_t k = 0; k < COUNT_OF(pieces); k++) {
        decoded d;
        for (int64_t at = 0; at < LONG; at += pieces[k])
            feed(&x, m, &g, tok, pos, at, MIN(pieces[k], LONG - at), target, &d);
        for (int i = 0; i < LONG; i++)
            if (!(fabs(d.loss[i] - want[i]) < 1e-4))
                fail_msg("%s, %d at a time: token %d has loss %g, training's is %g", name,
                         pieces[k], i, d.loss[i], want[i]);
    }
    pool_free(x.pool);
    comm_free(x.comm);
    plan_free(x.plan);
    model_free(m);
}

static void llama_decodes_as_it_trains(void **state) {
    model_config c = small_llama();
    compare("llama", c, 1);
    compare("llama, two threads", c, 2);
}
static void a_sliding_window_decodes_as_it_trains(void **state) {
    model_config c = small_llama();
    c.window = 70;
    c.qknorm = QKNORM_HEAD;
    compare("sliding window", c, 2);
}
static void gpt2_decodes_as_it_trains(void **state) {
    model_config c = small_gpt2();
    compare("gpt2", c, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(llama_decodes_as_it_trains),
                                        cmocka_unit_test(a_sliding_window_decodes_as_it_trains),
                                        cmocka_unit_test(gpt2_decodes_as_it_trains) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
