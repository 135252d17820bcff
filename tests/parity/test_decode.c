/* Generation sees what training sees: the loss of every token of a long sequence, once through the
 * training attention and once through the cache, in pieces and token by token. */
#include "support/sampled.h"

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
    const decode_chains *c = generator_chains(g, LONG); /* of the whole text, as in training */
    int which = n == 1 ? c->step_id[0] : c->many_id;
    int32_t t[PREFILL], p[PREFILL], start[PREFILL] = { 0 }, previous[PREFILL];
    for (int64_t i = 0; i < (n == 1 ? 1 : PREFILL); i++) {
        t[i] = tok[from + MIN(i, n - 1)];
        p[i] = pos[from + MIN(i, n - 1)];
        previous[i] = tok[MAX(from + MIN(i, n - 1) - 1, 0)];
    }
    model_set_batch(m, x->plan,
                    &(model_batch){ .tokens = t,
                                    .pos = p,
                                    .start = start,
                                    .n = n == 1 ? 1 : PREFILL,
                                    .previous = previous });
    assert_ok(exec_chain(x, which, 0, 1));
    const float *logits = exec_result(x, which).data;
    int64_t vocab = model_conf(m)->vocab;
    for (int64_t i = 0; i < n; i++)
        out->loss[from + i] = loss_of(logits + i * vocab, vocab, target[from + i]);
}

/* The most by which a loss changes where weights change by as much as rounding changes them: norms of short vectors and of
 * small results, those of gated DeltaNet above all, amplify what a different order of sums does. */
static double rounding_of_losses(model *m, exec *x, int eval, const double *want) {
    double worst = 0;
    nudge_weights(m, x, 6e-8);
    assert_ok(exec_chain(x, eval, 0, 1));
    for (int i = 0; i < LONG; i++)
        worst = fmax(worst, fabs(((float *)exec_result(x, eval).data)[i] - want[i]));
    model_init(m, x->plan, 3);
    stir_vectors(m, x);
    return worst;
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
    assert_ok(generator_plan(m, x.plan, 512, 1, &g));
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
    double limit = fmax(1e-4, 8 * rounding_of_losses(m, &x, eval, want));
    assert_true(limit < 5e-3);
    static const int pieces[] = { PREFILL, 1, 50 };
    for (size_t k = 0; k < COUNT_OF(pieces); k++) {
        decoded d;
        for (int64_t at = 0; at < LONG; at += pieces[k])
            feed(&x, m, &g, tok, pos, at, MIN(pieces[k], LONG - at), target, &d);
        for (int i = 0; i < LONG; i++)
            if (!(fabs(d.loss[i] - want[i]) < limit))
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
static void fast_learner_decodes_as_it_trains(void **state) {
    compare("fast", small_fast(), 1);
    compare("fast, two threads", small_fast(), 2);
    compare("fast, carrying", small_carrying(), 2);
}

static void newer_families_decode_as_they_train(void **state) {
    for (size_t i = 0; i < COUNT_OF(new_models); i++)
        compare(new_models[i].name, new_models[i].make(), 1);
}
/* INGOT_TEST_SEED: the first model's seed (1); INGOT_TEST_MODELS: how many (24, under sanitizers 8). */
static void sampled_models_decode_as_they_train(void **state) {
    const char *seed = getenv("INGOT_TEST_SEED"), *models = getenv("INGOT_TEST_MODELS");
    uint64_t first = seed ? strtoull(seed, NULL, 10) : 1;
    uint64_t n = models ? strtoull(models, NULL, 10) : SANITIZED ? 8 : 24;
    for (uint64_t i = first; i < first + n; i++) {
        model_config c;
        char text[1024];
        uint64_t at = 0;
        draw_model(rng_key_of(i, hash_str("decoded")), &at, &c);
        size_t begin = (size_t)snprintf(text, sizeof text, "seed %llu:", (unsigned long long)i);
        describe(&c, text + begin, sizeof text - begin);
        print_message("%s\n", text);
        compare(text, c, 1);
    }
}
static void gated_delta_nets_decode_as_they_train(void **state) {
    compare("gated DeltaNet", small_delta(), 1);
    compare("gated DeltaNet with experts, two threads", small_delta_moe(), 2);
}

/* The losses of the tokens from `second` on, where a document begins there (or not), after a first one of this seed. */
static void losses_after(const model_config *c, uint64_t seed, int second, bool begins,
                         double *out) {
    model *m;
    chain e;
    int eval;
    model_layout l = { .dt = DT_F32 };
    assert_ok(model_new(c, &l, &m));
    exec x = { .comm = comm_self(), .plan = plan_new(&l.mesh, ops_cpu(OPS_ISA_BEST), 1) };
    model_reserve(m, x.plan, false);
    assert_ok(model_record(m, PROG_EVAL, LONG, LONG, &e));
    assert_ok(plan_chain(x.plan, &e, model_bucket_regions, m, &eval));
    assert_ok(plan_commit(x.plan));
    model_init(m, x.plan, 3);
    stir_vectors(m, &x);
    int32_t tok[LONG], pos[LONG], start[LONG];
    int64_t ids[LONG];
    for (int i = 0; i < LONG; i++) {
        rng_key key = rng_key_of(i < second ? seed : 0, 5);
        tok[i] = (int32_t)rng_below(key, (uint64_t)i, (uint64_t)c->vocab);
        start[i] = begins && i >= second ? second : 0;
        pos[i] = i - start[i];
        ids[i] = i;
    }
    model_set_batch(m, x.plan, &(model_batch){ tok, tok, pos, start, ids, LONG });
    assert_ok(exec_chain(&x, eval, 0, 1));
    const float *loss = exec_result(&x, eval).data;
    for (int i = second; i < LONG; i++) out[i] = loss[i];
    comm_free(x.comm);
    plan_free(x.plan);
    model_free(m);
}

/* Documents of a row do not depend on one another, wherever one begins within the chunks and taps of gated DeltaNet. */
static void documents_do_not_see_one_another(void **state) {
    static const int seconds[] = { 1, 2, 63, 64, 65, 130 };
    model_config c = small_delta();
    c.max_seq = 512;
    for (size_t k = 0; k < COUNT_OF(seconds); k++) {
        double a[LONG], b[LONG];
        int second = seconds[k];
        losses_after(&c, 1, second, true, a);
        losses_after(&c, 2, second, true, b);
        assert_memory_equal(a + second, b + second, (size_t)(LONG - second) * sizeof *a);
        losses_after(&c, 1, second, false, b);
        assert_memory_not_equal(a + second, b + second, (size_t)(LONG - second) * sizeof *a);
    }
}

static void gpt2_decodes_as_it_trains(void **state) {
    model_config c = small_gpt2();
    compare("gpt2", c, 2);
}

/* ---- a full cache --------------------------------------------------------------------------- */
enum { POSITIONS = 16, SAID = 60 };
typedef struct spoken {
    int32_t id[SAID];
    int n;
} spoken;
/* A model with the weights of a seed, and its generator. @return the model, freed by the caller. */
static model *open_generator_of(const model_config *c, int64_t positions, int slots, generator *g,
                                exec *x) {
    model *m;
    model_layout l = { .dt = DT_F32 };
    assert_ok(model_new(c, &l, &m));
    *x = (exec){ .comm = comm_self(), .plan = plan_new(&l.mesh, ops_cpu(OPS_ISA_BEST), 1) };
    model_reserve(m, x->plan, false);
    assert_ok(generator_plan(m, x->plan, positions, slots, g));
    assert_ok(plan_commit(x->plan));
    model_init(m, x->plan, 3);
    return m;
}

static model *open_generator(const model_config *c, generator *g, exec *x) {
    return open_generator_of(c, POSITIONS, 1, g, x);
}

static bool take_id(void *ctx, int32_t id) {
    spoken *s = ctx;
    s->id[s->n++] = id;
    return true;
}

/* Every token of a greedy text is the one that evaluation of that text finds likeliest, after prompts of one piece and of
 * several. */
static void evaluate_greedy_texts(const char *name, model_config c) {
    model *m;
    chain e;
    generator g;
    int eval;
    model_layout l = { .dt = DT_F32 };
    c.max_seq = LONG;
    assert_ok(model_new(&c, &l, &m));
    exec x = { .comm = comm_self(), .plan = plan_new(&l.mesh, ops_cpu(OPS_ISA_BEST), 1) };
    model_reserve(m, x.plan, false);
    assert_ok(model_record(m, PROG_EVAL, LONG, LONG, &e));
    assert_ok(plan_chain(x.plan, &e, model_bucket_regions, m, &eval));
    assert_ok(generator_plan(m, x.plan, LONG, 1, &g));
    assert_ok(plan_commit(x.plan));
    model_init(m, x.plan, 3);
    stir_vectors(m, &x);
    for (int prompt = 1; prompt < 200; prompt += 9) {
        int32_t text[LONG + 1] = { 0 }, pos[LONG], start[LONG] = { 0 };
        int64_t ids[LONG];
        rng_key key = rng_key_of(8, (uint64_t)prompt);
        for (int i = 0; i < LONG; i++) {
            if (i < prompt) text[i] = (int32_t)rng_below(key, (uint64_t)i, (uint64_t)c.vocab);
            pos[i] = i;
            ids[i] = i;
        }
        spoken said = { 0 };
        sample_options o = { .tokens = 12, .temperature = 0, .stop = -1 };
        generation *d = generation_new(&g, &x);
        assert_ok(generate(d, text, prompt, &o, take_id, &said, NULL));
        generation_free(d);
        memcpy(text + prompt, said.id, (size_t)said.n * sizeof *text);
        model_set_batch(m, x.plan, &(model_batch){ text, text + 1, pos, start, ids, LONG });
        assert_ok(exec_chain(&x, eval, 0, 1));
        const float *top1 = exec_top1(&x, eval);
        for (int i = 0; i < said.n; i++)
            if (top1[prompt - 1 + i] != 1)
                fail_msg("%s, %d tokens: evaluation prefers another token than the %d-th generated",
                         name, prompt, i);
    }
    comm_free(x.comm);
    plan_free(x.plan);
    model_free(m);
}
static void greedy_texts_are_those_that_evaluation_prefers(void **state) {
    model_config c = small_gpt2();
    c.smear = true; /* beside learned positions */
    evaluate_greedy_texts("gpt2", c);
    evaluate_greedy_texts("llama", small_llama());
    evaluate_greedy_texts("fast, carrying", small_carrying());
}

/* When the cache is full, generation continues as from a prompt of its later half and the new token. */
static void a_full_cache_continues_from_its_later_half(void **state) {
    model_config c = small_llama();
    generator g;
    exec x;
    model *m = open_generator(&c, &g, &x);
    stir_vectors(m, &x);
    spoken all = { 0 }, rest = { 0 };
    int32_t text[POSITIONS] = { 7 }, prompt[POSITIONS];
    sample_options o = { .tokens = SAID, .temperature = 0, .stop = -1 };
    generation *d = generation_new(&g, &x);
    assert_ok(generate(d, text, 1, &o, take_id, &all, NULL));
    assert_int_equal(all.n, SAID);
    memcpy(text + 1, all.id, (POSITIONS - 1) * sizeof *text);
    memcpy(prompt, text + POSITIONS / 2, POSITIONS / 2 * sizeof *prompt);
    prompt[POSITIONS / 2] = all.id[POSITIONS - 1];
    assert_true(memcmp(text, prompt, POSITIONS / 2 * sizeof *text) !=
                0);               /* or it would prove nothing */
    o.tokens = POSITIONS / 2 - 1; /* until it is full again */
    assert_ok(generate(d, prompt, POSITIONS / 2 + 1, &o, take_id, &rest, NULL));
    assert_memory_equal(rest.id, all.id + POSITIONS, (size_t)rest.n * sizeof *rest.id);
    generation_free(d);
    comm_free(x.comm);
    plan_free(x.plan);
    model_free(m);
}

/* A prompt that begins as the last one did continues from its cache: the same text, bit for bit, whatever came before. */
static void repeat_prompts(model_config c) {
    enum { ROUNDS = 24 };
    c.max_seq = LONG;
    generator g;
    exec x;
    model *m = open_generator_of(&c, LONG, 1, &g, &x);
    stir_vectors(m, &x);
    rng_key key = rng_key_of(4, 0);
    uint64_t at = 0;
    int32_t prompt[ROUNDS][LONG];
    int64_t n[ROUNDS];
    spoken said[2][ROUNDS] = { 0 };
    for (int i = 0; i < LONG; i++) prompt[0][i] = (int32_t)rng_below(key, at++, (uint64_t)c.vocab);
    for (int r = 0; r < ROUNDS;
         r++) { /* each differs from the last from some place on, or is the same */
        if (r) memcpy(prompt[r], prompt[r - 1], sizeof prompt[r]);
        n[r] = r % 4 == 3 ? n[r - 1] : 1 + (int64_t)rng_below(key, at++, LONG - 10);
        uint64_t where = rng_below(key, at++, LONG), id = rng_below(key, at++, (uint64_t)c.vocab);
        if (r % 3 == 0) prompt[r][where] = (int32_t)id;
    }
    generation *with = generation_new(&g, &x);
    for (int r = 0; r < ROUNDS; r++) {
        sample_options o = {
            .tokens = 1 + r % 9, .temperature = 1, .top_p = 1, .seed = (uint64_t)r, .stop = -1
        };
        assert_ok(generate(with, prompt[r], n[r], &o, take_id, &said[0][r], NULL));
    }
    generation_free(with);
    for (int r = 0; r < ROUNDS; r++) {
        sample_options o = {
            .tokens = 1 + r % 9, .temperature = 1, .top_p = 1, .seed = (uint64_t)r, .stop = -1
        };
        generation *without = generation_new(&g, &x);
        assert_ok(generate(without, prompt[r], n[r], &o, take_id, &said[1][r], NULL));
        generation_free(without);
    }
    assert_memory_equal(said[0], said[1], sizeof said[0]);
    comm_free(x.comm);
    plan_free(x.plan);
    model_free(m);
}

/* Texts of more than `context` tokens have other rotary frequencies. */
static model_config small_long(int64_t context) {
    model_config c = small_llama();
    c.rope_scaling = ROPE_LONG;
    c.rope_original = context;
    fill_rope_lists(&c);
    return c;
}

static void a_remembered_prompt_changes_nothing(void **state) {
    repeat_prompts(small_llama());
    repeat_prompts(small_long(150));
    repeat_prompts(small_delta()); /* whose state has moved on */
}

/* Layers of gated DeltaNet reserve no keys, and layers of attention no states. */
static void layers_reserve_what_they_read(void **state) {
    static const struct {
        int64_t pattern;
        size_t caches, states;
    } cases[] = { { 2, 4, 0 }, { 552, 1, 3 }, { 52, 2, 2 }, { 5, 0, 4 } };
    size_t cache = 0, states = 0;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        model_config c = small_delta();
        generator g;
        exec x;
        c.layer_pattern = cases[i].pattern;
        model *m = open_generator(&c, &g, &x);
        size_t got[] = { plan_bytes(x.plan, ".cache"), plan_bytes(x.plan, ".delta_state") };
        if (i == 0) cache = got[0] / cases[0].caches;
        if (i == 1) states = got[1] / cases[1].states;
        assert_true(cache > 0);
        assert_int_equal(got[0], cases[i].caches * cache);
        assert_int_equal(got[1], cases[i].states * states);
        comm_free(x.comm);
        plan_free(x.plan);
        model_free(m);
    }
}

/* ---- several sequences -------------------------------------------------------------------------- */
enum { TEXTS = 30, ROWS_EACH = 100 };
typedef struct batch_case {
    generation *d;
    int32_t prompt[TEXTS][ROWS_EACH];
    int64_t n[TEXTS];
    sample_options o[TEXTS];
    spoken together[TEXTS], alone[TEXTS];
    int most; /* sequences that were decoded at the same time */
} batch_case;

/* Prompts of all lengths, some of which begin alike or are the same; options of all kinds. */
static void draw_texts(batch_case *b, int64_t vocab) {
    rng_key key = rng_key_of(11, 0);
    uint64_t at = 0;
    for (int r = 0; r < TEXTS; r++) {
        for (int i = 0; i < ROWS_EACH; i++)
            b->prompt[r][i] = (int32_t)rng_below(key, at++, (uint64_t)vocab);
        b->n[r] = 1 + (int64_t)rng_below(key, at++, ROWS_EACH);
        int like = r ? (int)rng_below(key, at++, (uint64_t)r) : 0;
        int64_t same = (int64_t)rng_below(key, at++, 2 * ROWS_EACH);
        if (r % 3 == 1) memcpy(b->prompt[r], b->prompt[like], (size_t)MIN(same, ROWS_EACH) * 4);
        if (r % 3 == 1 && same > ROWS_EACH) b->n[r] = b->n[like];
        b->o[r] = (sample_options){ .tokens = (int64_t)rng_below(key, at++, SAID),
                                    .temperature = r % 4 ? 1 : 0,
                                    .top_k = r % 5 ? 0 : 20,
                                    .top_p = 1,
                                    .repetition_penalty = r % 7 ? 1 : 1.3,
                                    .seed = (uint64_t)(r % 6),
                                    .stop = r % 2 ? -1 : 5 };
    }
}

static err add_text(void *ctx, int64_t i) {
    batch_case *b = ctx;
    b->most = MAX(b->most, generation_busy(b->d) + 1);
    return generation_add(b->d, NULL, b->prompt[i], b->n[i], &b->o[i],
                          (decode_sink){ .emit = take_id, .ctx = &b->together[i] });
}

/* The tokens of a sequence do not depend on the others that are decoded in the same steps, nor on what its slot held before;
 * slots that are full start over one at a time. */
static void compare_together(const char *name, model_config c, int slots, int threads) {
    c.max_seq = ROWS_EACH;
    generator g;
    exec x;
    batch_case *b = mem_alloc(sizeof *b);
    model *m = open_generator_of(&c, ROWS_EACH, slots, &g, &x);
    x.pool = threads > 1 ? pool_new(threads) : NULL;
    stir_vectors(m, &x);
    draw_texts(b, c.vocab);
    b->d = generation_new(&g, &x);
    assert_ok(generation_run(b->d, TEXTS, add_text, b));
    generation_free(b->d);
    assert_int_equal(b->most, slots);
    for (int r = 0; r < TEXTS; r++) {
        generation *d = generation_new(&g, &x);
        assert_ok(generate(d, b->prompt[r], b->n[r], &b->o[r], take_id, &b->alone[r], NULL));
        generation_free(d);
        if (b->alone[r].n != b->together[r].n ||
            memcmp(b->alone[r].id, b->together[r].id, (size_t)b->alone[r].n * 4) != 0)
            fail_msg("%s, %d slots: text %d differs from the one decoded alone", name, slots, r);
    }
    free(b);
    pool_free(x.pool);
    comm_free(x.comm);
    plan_free(x.plan);
    model_free(m);
}

static void sequences_decoded_together_are_those_decoded_alone(void **state) {
    model_config window = small_llama();
    window.window = 30;
    static const int slots[] = { 2, 3, 8 };
    for (size_t i = 0; i < COUNT_OF(slots); i++) {
        compare_together("llama", small_llama(), slots[i], 1);
        compare_together("window", window, slots[i], 1);
        compare_together("longrope", small_long(40), slots[i], 1);
        compare_together("gpt2", small_gpt2(), slots[i], 1);
        compare_together("fast", small_fast(), slots[i], 1);
        compare_together("fast, carrying", small_carrying(), slots[i], 1);
        compare_together("experts", small_moe(), slots[i], 1);
        compare_together("gated DeltaNet", small_delta(), slots[i], 1);
        for (size_t k = 0; k < COUNT_OF(new_moes); k++)
            compare_together(new_moes[k].name, new_moes[k].make(), slots[i], 1);
    }
}

/* ---- the end of a document ------------------------------------------------------------------- */
static bool count_text(void *ctx, const char *text, size_t n) {
    *(size_t *)ctx += n;
    return true;
}

/* A model that says `letter` or ends, with equal chances: the last norm gives one vector, and the rows of
 * these two are along it. */
static void end_or_say(model *m, exec *x, int32_t eos, int32_t letter) {
    int64_t d = model_conf(m)->dim, v = model_conf(m)->vocab;
    float *w = mem_alloc((size_t)(v * d) * sizeof *w);
    for (int i = 0; i < model_params(m); i++) {
        const char *name = model_param_at(m, i)->name;
        bool scale = !strcmp(name, "norm.w"), shift = !strcmp(name, "norm.b");
        bool table = !strcmp(name, "embed.tokens");
        for (int64_t k = 0; k < v * d; k++)
            w[k] = shift || (table && (k / d == eos || k / d == letter));
        if (scale || shift || table) model_weights_set(m, x->plan, i, w);
    }
    assert_ok(model_publish(m, x));
    free(w);
}

static void generated_text_ends_with_its_document(void **state) {
    tokenizer *t;
    assert_ok(tokenizer_open(FIXTURES "/tokenizers/llama3.json", NULL, &t));
    model_config c = small_gpt2();
    c.vocab = tokenizer_vocab(t);
    c.norm_bias = true;
    assert_true(tokenizer_eos(t) > 0);
    generator g;
    exec x;
    model *m = open_generator(&c, &g, &x);
    int32_t letter = tokenizer_find(t, "a", 1);
    assert_true(letter >= 0);
    end_or_say(m, &x, tokenizer_eos(t), letter);
    size_t written = 0;
    for (uint64_t seed = 0; seed < 8; seed++) {
        sample_options o = { .tokens = 40, .temperature = 1, .top_p = 1, .seed = seed };
        generation *d = generation_new(&g, &x);
        assert_ok(generate_text(d, t, "The end", &o, count_text, &written, NULL));
        generation_free(d);
    }
    assert_in_range(written, 1, 8 * 5); /* one letter each is expected; to the end, 20 */
    comm_free(x.comm);
    plan_free(x.plan);
    model_free(m);
    tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_texts_are_those_that_evaluation_prefers),
        cmocka_unit_test(a_remembered_prompt_changes_nothing),
        cmocka_unit_test(layers_reserve_what_they_read),
        cmocka_unit_test(sequences_decoded_together_are_those_decoded_alone),
        cmocka_unit_test(generated_text_ends_with_its_document),
        cmocka_unit_test(a_full_cache_continues_from_its_later_half),
        cmocka_unit_test(llama_decodes_as_it_trains),
        cmocka_unit_test(fast_learner_decodes_as_it_trains),
        cmocka_unit_test(newer_families_decode_as_they_train),
        cmocka_unit_test(sampled_models_decode_as_they_train),
        cmocka_unit_test(a_sliding_window_decodes_as_it_trains),
        cmocka_unit_test(gated_delta_nets_decode_as_they_train),
        cmocka_unit_test(documents_do_not_see_one_another),
        cmocka_unit_test(gpt2_decodes_as_it_trains)
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
