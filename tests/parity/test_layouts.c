/* A model recorded once gives the same loss and gradients on every layout. */
#include "support/model.h"

static const layout layouts[] = {
    { .name = "tp2", .dp = 1, .tp = 2 },
    { .name = "tp2+sp", .dp = 1, .tp = 2, .sp = true },
    { .name = "tp2 in chunks", .tp = 2, .tp_chunks = 2 },
    { .name = "tp2+sp in chunks", .tp = 2, .sp = true, .tp_chunks = 4 },
    { .name = "tp4+sp in chunks, selective",
      .tp = 4,
      .sp = true,
      .tp_chunks = 2,
      .selective = true },
    { .name = "zero3 over 2 x tp2+sp in chunks, full recompute",
      .dp = 2,
      .tp = 2,
      .sp = true,
      .tp_chunks = 2,
      .zero = 3,
      .keep_every = 1 },
    { .name = "pp2 x tp2+sp in chunks, ZeroBubble",
      .pp = 2,
      .tp = 2,
      .sp = true,
      .tp_chunks = 2,
      .schedule = PIPE_ZERO_BUBBLE },
    { .name = "dp2", .dp = 2, .tp = 1 },
    { .name = "dp2, all replicas", .replicas = 2 },
    { .name = "zero1 over 2", .dp = 2, .zero = 1 },
    { .name = "zero2 over 2", .dp = 2, .zero = 2 },
    { .name = "zero1 over 2 x tp2+sp", .dp = 2, .tp = 2, .sp = true, .zero = 1 },
    { .name = "zero2 over 4", .dp = 4, .zero = 2 },
    { .name = "hsdp 2 x zero1 over 2", .replicas = 2, .dp = 2, .zero = 1 },
    { .name = "hsdp 2 x zero2 over 2", .replicas = 2, .dp = 2, .zero = 2 },
    { .name = "hsdp 2 x zero3 over 2", .replicas = 2, .dp = 2, .zero = 3 },
    { .name = "hsdp 2 x zero3 over 2 x tp2+sp",
      .replicas = 2,
      .dp = 2,
      .tp = 2,
      .sp = true,
      .zero = 3 },
    { .name = "zero3 over 2", .dp = 2, .tp = 1, .zero = 3 },
    { .name = "dp2 x tp2", .dp = 2, .tp = 2 },
    { .name = "dp2 x tp2+sp", .dp = 2, .tp = 2, .sp = true },
    { .name = "zero3 over 2 x tp2+sp", .dp = 2, .tp = 2, .sp = true, .zero = 3 },
    { .name = "zero3 over 4", .dp = 4, .tp = 1, .zero = 3 },
    { .name = "dp2 x tp2+sp, full recompute", .dp = 2, .tp = 2, .sp = true, .keep_every = 1 },
    { .name = "ring of 2", .cp = 2, .context = CONTEXT_RING },
    { .name = "ring of 4", .cp = 4, .context = CONTEXT_RING },
    { .name = "ring of 8, zero1", .cp = 8, .context = CONTEXT_RING, .zero = 1 },
    { .name = "ring of 2 x tp2", .cp = 2, .tp = 2, .context = CONTEXT_RING },
    { .name = "ring of 2 x tp2+sp, zero3, full recompute",
      .cp = 2,
      .tp = 2,
      .sp = true,
      .zero = 3,
      .keep_every = 1,
      .context = CONTEXT_RING },
    { .name = "ring of 2 x zero2 over 2 x tp2+sp",
      .dp = 2,
      .cp = 2,
      .tp = 2,
      .sp = true,
      .zero = 2,
      .context = CONTEXT_RING },
    { .name = "ring of 2 x pp2, tp2+sp",
      .cp = 2,
      .pp = 2,
      .tp = 2,
      .sp = true,
      .context = CONTEXT_RING },
    { .name = "ring of 2, selective", .cp = 2, .selective = true, .context = CONTEXT_RING },
    { .name = "all-to-all over 2", .cp = 2 },
    { .name = "all-to-all over 2, zero1", .cp = 2, .zero = 1 },
    { .name = "all-to-all over 2, zero2, full recompute", .cp = 2, .zero = 2, .keep_every = 1 },
    { .name = "all-to-all over 2 x zero3 over 2", .dp = 2, .cp = 2, .zero = 3 },
    { .name = "all-to-all over 2, selective", .cp = 2, .selective = true },
    { .name = "zero3 over 2, selective", .dp = 2, .tp = 1, .zero = 3, .selective = true },
};

#ifdef __SANITIZE_THREAD__
enum { THREAD_CHECK = true };
#else
enum { THREAD_CHECK = false };
#endif

static void compare_all(const char *model_name, const model_config *c) {
    outcome one;
    double limit = 1e-5;
    run_layout(c, &(layout){ .name = "one", .dp = 1, .tp = 1 }, &one);
    if (c->layer_scalars || c->backout) limit = fmax(limit, 4 * rounding_of(c, &one, RUN_MICROS));
    assert_true(limit < 1e-3);
    for (size_t i = 0; i < COUNT_OF(layouts); i++) {
        outcome o;
        char what[128];
        snprintf(what, sizeof what, "%s on %s", model_name, layouts[i].name);
        run_layout(c, &layouts[i], &o);
        assert_true(o.replicas_agree);
        same_within(what, &o, &one, limit);
        outcome_free(&o);
    }
    outcome_free(&one);
}

static void llama_agrees_on_every_layout(void **state) {
    model_config c = small_llama();
    compare_all("llama", &c);
}

static void tied_llama_with_dropout_agrees_on_every_layout(void **state) {
    model_config c = small_llama();
    c.tied = true;
    c.dropout = 0.2;
    c.embed_dropout = 0.1;
    c.attn_dropout = 0.2;
    c.qknorm = QKNORM_HEAD;
    c.qkv_bias = true;
    compare_all("llama, tied, qk-norm, dropout", &c);
}

static void gpt2_agrees_on_every_layout(void **state) {
    model_config c = small_gpt2();
    c.kv_heads = c.heads;
    compare_all("gpt2", &c);
}

static void neox_agrees_on_every_layout(void **state) {
    model_config c = small_neox();
    c.rope_fraction = 0.25;
    compare_all("neox", &c);
}

static void biased_swiglu_agrees_on_every_layout(void **state) {
    model_config c = small_llama();
    c.bias = true;
    compare_all("llama with biases", &c);
}

static void fast_learner_agrees_on_every_layout(void **state) {
    model_config c = small_fast();
    c.kv_heads = c.heads; /* values are sharded by whole heads */
    compare_all("fast", &c);
}

/* Layers that read the embedding and the residual after the middle one, in each order of norms and branches. */
static void carried_values_agree_on_every_layout(void **state) {
    model_config c = small_carrying();
    c.kv_heads = c.heads;
    compare_all("fast, carrying", &c);
    c = small_gpt2(); /* the embedding is a sum */
    c.kv_heads = c.heads;
    c.layers = 3;
    c.layer_scalars = c.smear = true;
    compare_all("gpt2, carrying", &c);
    c = small_neox();
    c.layer_scalars = c.backout = true;
    c.dropout = 0.2;
    compare_all("neox, carrying", &c);
    c = small_llama();
    c.norm_position = NORM_POST;
    c.backout = true;
    c.layers = 2; /* the last is the middle one */
    compare_all("norm on the output, carrying", &c);
}

static void post_norm_agrees_on_every_layout(void **state) {
    model_config c = small_llama();
    c.norm_position = NORM_POST;
    compare_all("norm on the output", &c);
}

/* Each on tp with fewer key/value heads than ranks, a pipeline with stages of unequal length, both kinds of context
 * parallelism, ZeRO and recompute. */
static void newer_families_agree_on_every_layout(void **state) {
    static const layout some[] = {
        { .name = "tp2+sp", .tp = 2, .sp = true },
        { .name = "tp4 in chunks, selective", .tp = 4, .tp_chunks = 2, .selective = true },
        { .name = "zero3 over 2 x tp2+sp, full recompute",
          .dp = 2,
          .tp = 2,
          .sp = true,
          .zero = 3,
          .keep_every = 1 },
        { .name = "hsdp 2 x zero2 over 2", .replicas = 2, .dp = 2, .zero = 2 },
        { .name = "ring of 2 x tp2+sp", .cp = 2, .tp = 2, .sp = true, .context = CONTEXT_RING },
        { .name = "ring of 4, zero1", .cp = 4, .zero = 1, .context = CONTEXT_RING },
        { .name = "pp2 x ring of 2", .pp = 2, .cp = 2, .context = CONTEXT_RING },
        { .name = "pp2 x tp2+sp, ZeroBubble",
          .pp = 2,
          .tp = 2,
          .sp = true,
          .schedule = PIPE_ZERO_BUBBLE },
        { .name = "all-to-all over 2 x zero3 over 2", .cp = 2, .dp = 2, .zero = 3 },
    };
    for (size_t k = 0; k < COUNT_OF(new_models); k++) {
        model_config c = new_models[k].make();
        outcome one;
        c.layers++; /* which two stages do not divide */
        run_layout(&c, &(layout){ .name = "one" }, &one);
        for (size_t i = 0; i < COUNT_OF(some); i++) {
            outcome o;
            char what[128];
            bool exchanges = some[i].cp > 1 && some[i].context == CONTEXT_ULYSSES;
            if (exchanges && c.kv_heads < some[i].cp) continue; /* refused: heads do not divide */
            snprintf(what, sizeof what, "%s on %s", new_models[k].name, some[i].name);
            run_layout(&c, &some[i], &o);
            assert_true(o.replicas_agree);
            same_within(what, &o, &one, 1e-5);
            outcome_free(&o);
        }
        outcome_free(&one);
    }
}

/* ---- a sharded vocabulary ----------------------------------------------------------------------
 * A table of `vocab` rows over tp ranks: 41 leaves the last rank with less, 5 one with nothing, and from 64
 * rows per rank on they are padded to a multiple of that, here to 128; the last rank uses 2. */
static const layout vocab_layouts[] = {
    { .name = "tp2", .tp = 2 },
    { .name = "tp2+sp, logits in chunks", .tp = 2, .sp = true, .logit_bytes = 1 },
    { .name = "zero1 over 2 x tp2", .dp = 2, .tp = 2, .zero = 1 },
    { .name = "zero2 over 2 x tp2, logits in chunks",
      .dp = 2,
      .tp = 2,
      .zero = 2,
      .logit_bytes = 1 },
    { .name = "zero3 over 2 x tp2+sp", .dp = 2, .tp = 2, .sp = true, .zero = 3 },
    { .name = "tp4", .tp = 4 },
    { .name = "tp4+sp, full recompute", .tp = 4, .sp = true, .keep_every = 1 },
    { .name = "all-to-all over 2 x tp2+sp", .cp = 2, .tp = 2, .sp = true },
    { .name = "pp2 x tp2+sp", .pp = 2, .tp = 2, .sp = true },
};

static void compare_losses(const char *model_name, model_config c, bool loss_terms) {
    static const int64_t vocabs[] = { 41, 5, 130 };
    c.heads = c.kv_heads = 4;
    for (size_t k = 0; k < (THREAD_CHECK ? 1 : COUNT_OF(vocabs)); k++) {
        c.vocab = vocabs[k];
        outcome one;
        run_layout(&c, &(layout){ .name = "one", .loss_terms = loss_terms }, &one);
        for (size_t i = 0; i < COUNT_OF(vocab_layouts); i++) {
            outcome o;
            char what[128];
            snprintf(what, sizeof what, "%s, vocabulary %lld, on %s", model_name,
                     (long long)c.vocab, vocab_layouts[i].name);
            layout l = vocab_layouts[i];
            l.loss_terms = loss_terms;
            run_layout(&c, &l, &o);
            assert_true(o.replicas_agree);
            same_within(what, &o, &one, 1e-5);
            outcome_free(&o);
        }
        outcome_free(&one);
    }
}

static void compare_vocabularies(const char *model_name, model_config c) {
    compare_losses(model_name, c, false);
}

/* Label smoothing reads the sum of all ranks' logits, the z-loss the logarithm of the sum of their powers. */
static void loss_terms_agree_on_every_layout(void **state) {
    compare_losses("smoothed llama", small_llama(), true);
    if (THREAD_CHECK) return;
    compare_losses("smoothed, capped", small_fast(), true);
    outcome plain, terms;
    model_config c = small_llama();
    run_layout(&c, &(layout){ .name = "plain" }, &plain);
    run_layout(&c, &(layout){ .name = "terms", .loss_terms = true }, &terms);
    assert_true(terms.loss >
                plain.loss + 0.01); /* the logarithm of a sum over 40 tokens, squared */
    outcome_free(&plain);
    outcome_free(&terms);
}

static void any_vocabulary_agrees_on_every_layout(void **state) {
    compare_vocabularies("llama", small_llama());
    if (THREAD_CHECK) return;
    compare_vocabularies("gpt2", small_gpt2()); /* tied, learned positions */
    compare_vocabularies("fast", small_fast()); /* capped logits */
    model_config mup = small_llama();
    mup.mup = true; /* logits are scaled */
    mup.mup_base = 16;
    compare_vocabularies("llama with muP", mup);
}

/* In a 16-bit type each share of a gradient is rounded. */
static void a_sharded_vocabulary_in_16_bits_stays_close(void **state) {
    static const dtype types[] = { DT_BF16, DT_F16 };
    model_config c = small_llama();
    c.vocab = 41;
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        outcome one, two;
        run_layout(&c, &(layout){ .dt = types[i] }, &one);
        run_layout(&c, &(layout){ .tp = 2, .sp = true, .dt = types[i], .logit_bytes = 1 }, &two);
        same_within(dt_name(types[i]), &two, &one, types[i] == DT_BF16 ? 3e-2 : 4e-3);
        outcome_free(&one);
        outcome_free(&two);
    }
}

/* ---- fewer key/value heads than tp ranks ---------------------------------------------------------- */
static const layout head_layouts[] = {
    { .name = "tp2", .tp = 2 },
    { .name = "tp4", .tp = 4 },
    { .name = "tp8+sp", .tp = 8, .sp = true },
    { .name = "tp4+sp, full recompute", .tp = 4, .sp = true, .keep_every = 1 },
    { .name = "dp2 x tp4, selective", .dp = 2, .tp = 4, .selective = true },
    { .name = "zero1 over 2 x tp4", .dp = 2, .tp = 4, .zero = 1 },
    { .name = "zero2 over 2 x tp4+sp", .dp = 2, .tp = 4, .sp = true, .zero = 2 },
    { .name = "zero3 over 2 x tp4+sp", .dp = 2, .tp = 4, .sp = true, .zero = 3 },
    { .name = "pp2 x tp4, ZeroBubble", .pp = 2, .tp = 4, .schedule = PIPE_ZERO_BUBBLE },
};

static void shared_key_value_heads_agree_on_every_layout(void **state) {
    model_config c = small_llama();
    c.heads = 8;
    c.qkv_bias = true;
    c.qknorm = QKNORM_HEAD;
    c.attn_dropout = 0.2;
    for (c.kv_heads = 1; c.kv_heads <= (THREAD_CHECK ? 1 : 4); c.kv_heads *= 2) {
        outcome one;
        run_layout(&c, &(layout){ .name = "one" }, &one);
        for (size_t i = 0; i < COUNT_OF(head_layouts); i++) {
            outcome o;
            char what[128];
            snprintf(what, sizeof what, "%d key/value heads on %s", c.kv_heads,
                     head_layouts[i].name);
            run_layout(&c, &head_layouts[i], &o);
            assert_true(o.replicas_agree);
            same_within(what, &o, &one, 1e-5);
            outcome_free(&o);
        }
        outcome_free(&one);
    }
}

/* A rank stores the key/value heads that its query heads read, and no others. */
static void shared_heads_are_stored_by_those_who_read_them(void **state) {
    model_config c = small_llama();
    c.heads = 8;
    c.kv_heads = 2;
    model_layout l = { .mesh = { .size = { [AX_TP] = 4 } } };
    assert_ok(model_split_tp(&c, &l.mesh));
    assert_int_equal(l.mesh.tp_rep, 2);
    for (int r = 0; r < 4; r++) {
        model *m;
        l.mesh.rank = r;
        assert_ok(model_new(&c, &l, &m));
        int k = model_find_param(m, "l1.attn.k"), q = model_find_param(m, "l1.attn.q");
        assert_int_equal(model_param_at(m, k)->local[0], c.head_dim);
        assert_int_equal(model_param_at(m, k)->first[0], r / 2 * c.head_dim);
        assert_int_equal(model_param_copies(m, k), 2);
        assert_int_equal(model_param_copies(m, q), 1);
        assert_int_equal(model_param_copy_index(m, k) == 0, r % 2 == 0);
        model_free(m);
    }
}

/* Neither the table nor the logits exist as a whole on any rank. */
static void the_logits_never_exist_as_a_whole(void **state) {
    model_config c = small_llama();
    c.vocab = 100000;
    c.kv_heads = c.heads;
    enum { TOKENS = 4096, TP = 4 };
    size_t logits = (size_t)TOKENS * (size_t)c.vocab / TP * sizeof(float);
    model_layout l = { .mesh = { .size = { [AX_TP] = TP } } };
    model *m;
    chain ch;
    assert_ok(model_new(&c, &l, &m));
    assert_ok(model_record(m, PROG_TRAIN, TOKENS, 64, &ch));
    plan *p = plan_new(&l.mesh, ops_cpu(OPS_ISA_BEST), 1);
    int id;
    model_reserve(m, p, true);
    assert_ok(plan_chain(p, &ch, model_bucket_regions, m, &id));
    assert_true(logits > 3 * (size_t)LOGIT_BYTES);
    assert_in_range(plan_bytes(p, "temp"), LOGIT_BYTES / 2, LOGIT_BYTES + (32 << 20));
    size_t tables = 2 * (size_t)(c.vocab * c.dim) / TP * sizeof(float);
    assert_in_range(plan_bytes(p, "params"), tables, tables + (1 << 20));
    plan_free(p);
    model_free(m);
}

static const layout expert_layouts[] = {
    { .name = "ep2", .ep = 2 },
    { .name = "ep4", .ep = 4 },
    { .name = "ep2 x tp2+sp", .ep = 2, .tp = 2, .sp = true },
    { .name = "zero1 over 2, ep2", .dp = 2, .ep = 2, .zero = 1 },
    { .name = "zero2 over 2, ep2", .dp = 2, .ep = 2, .zero = 2 },
    { .name = "zero3 over 2, ep2", .dp = 2, .ep = 2, .zero = 3 },
    { .name = "zero3 over ep2 alone", .ep = 2, .zero = 3 },
    { .name = "hsdp 2 x zero3, ep2", .replicas = 2, .ep = 2, .zero = 3 },
    { .name = "ep2, full recompute", .ep = 2, .keep_every = 1 },
    { .name = "pp2 x ep2, selective", .pp = 2, .ep = 2, .selective = true },
    { .name = "ep2 x ring of 2", .ep = 2, .cp = 2, .context = CONTEXT_RING },
    { .name = "ep2 x all-to-all over 2, zero1", .ep = 2, .cp = 2, .zero = 1 },
    { .name = "ep2 x ring of 2 x tp2+sp, zero3",
      .ep = 2,
      .cp = 2,
      .tp = 2,
      .sp = true,
      .zero = 3,
      .context = CONTEXT_RING },
    { .name = "ep2 x ring of 4, zero2, full recompute",
      .ep = 2,
      .cp = 4,
      .zero = 2,
      .keep_every = 1,
      .context = CONTEXT_RING },
};

static void compare_expert_layouts(const model_config *c) {
    outcome one, o;
    run_layout(c, &(layout){ .name = "one" }, &one);
    for (size_t i = 0; i < COUNT_OF(expert_layouts); i++) {
        run_layout(c, &expert_layouts[i], &o);
        assert_true(o.replicas_agree);
        same_within(expert_layouts[i].name, &o, &one, 1e-5);
        outcome_free(&o);
    }
    outcome_free(&one);
}

static void experts_agree_on_every_layout(void **state) {
    model_config c = small_moe();
    c.shared_experts = 1;
    compare_all("experts", &c);
    compare_expert_layouts(&c);
}

static void newer_experts_agree_on_every_layout(void **state) {
    for (size_t k = 0; k < COUNT_OF(new_moes); k++) {
        model_config c = new_moes[k].make();
        if (!THREAD_CHECK) compare_all(new_moes[k].name, &c);
        compare_expert_layouts(&c);
    }
}

/* Gated DeltaNet, whose state runs through a sequence: every layout but those that divide sequences. */
static const layout delta_layouts[] = {
    { .name = "tp2", .tp = 2 },
    { .name = "tp4", .tp = 4 },
    { .name = "tp2+sp in chunks", .tp = 2, .sp = true, .tp_chunks = 2 },
    { .name = "zero1 over 2", .dp = 2, .zero = 1 },
    { .name = "zero2 over 2, every second block recomputed", .dp = 2, .zero = 2, .keep_every = 2 },
    { .name = "zero3 over 2 x tp2+sp, full recompute",
      .dp = 2,
      .tp = 2,
      .sp = true,
      .zero = 3,
      .keep_every = 1 },
    { .name = "zero3 over 2, selective", .dp = 2, .zero = 3, .selective = true },
    { .name = "pp2", .pp = 2 },
    { .name = "ep2", .ep = 2 },
    { .name = "ep2 x tp2+sp, zero2", .ep = 2, .tp = 2, .sp = true, .zero = 2 },
    { .name = "pp4, ZeroBubble", .pp = 4, .schedule = PIPE_ZERO_BUBBLE },
    { .name = "pp2 x tp2+sp, selective", .pp = 2, .tp = 2, .sp = true, .selective = true },
};

static void gated_delta_nets_agree_on_every_layout(void **state) {
    const model_config models[] = { small_delta(), small_delta_moe() };
    for (size_t k = 0; k < COUNT_OF(models); k++) {
        outcome one, o;
        run_layout(&models[k], &(layout){ .name = "one", .micros = 4 }, &one);
        /* short vectors of length 1 amplify what rounding changes, though by far not to what a fault does */
        double limit = fmax(1e-5, 4 * rounding_of(&models[k], &one, 4));
        assert_true(limit < 2e-3);
        for (size_t i = 0; i < COUNT_OF(delta_layouts); i++) {
            layout l = delta_layouts[i];
            if (l.ep > 1 && !models[k].experts) continue;
            l.micros = 4;
            run_layout(&models[k], &l, &o);
            assert_true(o.replicas_agree);
            same_within(l.name, &o, &one, limit);
            outcome_free(&o);
        }
        outcome_free(&one);
    }
}

/* Dense layers among those with experts: at the start, in between, and so that pipeline stages differ. */
static const layout mixed_layouts[] = {
    { .name = "tp2+sp, full recompute", .tp = 2, .sp = true, .keep_every = 1 },
    { .name = "zero3 over 2, every second block recomputed", .dp = 2, .zero = 3, .keep_every = 2 },
    { .name = "zero2 over 2, ep2, selective", .dp = 2, .ep = 2, .zero = 2, .selective = true },
    { .name = "pp2", .pp = 2 },
    { .name = "pp4, ZeroBubble", .pp = 4, .schedule = PIPE_ZERO_BUBBLE },
    { .name = "pp2 x ep2, Interleaved1F1B",
      .pp = 2,
      .ep = 2,
      .schedule = PIPE_INTERLEAVED,
      .chunks = 2 },
    { .name = "pp2 x zero3 over 2 x tp2+sp, recompute of 2 of 3",
      .pp = 2,
      .dp = 2,
      .tp = 2,
      .sp = true,
      .zero = 3,
      .keep_every = 2,
      .keep_last = 1 },
};

static void dense_layers_and_experts_mix_on_every_layout(void **state) {
    static const struct { int first_dense, step; } mixes[] = { { 1, 1 }, { 0, 2 }, { 2, 3 } };
    for (size_t k = 0; k < (THREAD_CHECK ? 1 : COUNT_OF(mixes)); k++) {
        model_config c = small_moe();
        c.layers = 5;
        c.first_dense = mixes[k].first_dense;
        c.moe_step = mixes[k].step;
        c.shared_experts = (int)k % 2;
        outcome one, o;
        run_layout(&c, &(layout){ .name = "one", .micros = 4 }, &one);
        for (size_t i = 0; i < COUNT_OF(mixed_layouts); i++) {
            layout l = mixed_layouts[i];
            l.micros = 4;
            run_layout(&c, &l, &o);
            assert_true(o.replicas_agree);
            same_within(l.name, &o, &one, 1e-5);
            outcome_free(&o);
        }
        outcome_free(&one);
    }
}

/* A layer has the parameters of its kind, and the counts follow. */
static void layers_have_the_parameters_of_their_kind(void **state) {
    model_config c = small_moe(), dense = small_llama(), sparse = small_moe();
    c.layers = 3;
    dense.layers = sparse.layers = 1;
    c.first_dense = 1;
    model *m;
    assert_ok(model_new(&c, &(model_layout){ 0 }, &m));
    int gate = model_find_param(m, "l0.mlp.gate");
    assert_int_equal(model_param_at(m, gate)->dim[0], c.ffn);
    assert_int_equal(model_find_param(m, "l0.moe.router"), -1);
    assert_int_equal(model_find_param(m, "l1.mlp.gate"), -1);
    assert_int_not_equal(model_find_param(m, "l1.expert3.down"), -1);
    model_free(m);
    int64_t outside = c.dim + 2 * c.vocab * c.dim;
    assert_int_equal(model_count(&c) - outside,
                     model_count(&dense) - outside + 2 * (model_count(&sparse) - outside));
    assert_true(model_flops(&c, 16, true) > model_flops(&dense, 16, true));
    c.first_dense = 3;
    assert_error(model_new(&c, &(model_layout){ 0 }, &m), "no layer has experts");
}

static void dropless_sigmoid_experts_agree_on_every_layout(void **state) {
    model_config c = small_moe();
    c.capacity_factor = 0;
    c.router_score = ROUTER_SIGMOID;
    c.router_bias = true;
    c.shared_experts = 1;
    c.dropout = 0.2;
    compare_all("sigmoid experts without capacity, one shared", &c);
    compare_expert_layouts(&c);
}

/* Every token chooses all experts: as many rows come to each rank as memory is for. */
static void as_many_rows_may_come_as_there_can_be(void **state) {
    model_config c = small_moe();
    c.capacity_factor = 0;
    c.experts_per_token = c.experts;
    compare_expert_layouts(&c);
}

/* A window that spans ranks, and no documents that end it. */
static void a_sliding_window_agrees_on_every_layout(void **state) {
    model_config c = small_llama();
    c.window = 7;
    compare_all("llama with a window", &c);
}

/* ---- context parallelism ----------------------------------------------------------------- */
static void a_repeated_ring_is_bit_exact(void **state) {
    model_config c = small_llama();
    c.attn_dropout = 0.2;
    layout l = { .cp = 4, .zero = 2, .context = CONTEXT_RING };
    outcome a, b;
    run_layout(&c, &l, &a);
    run_layout(&c, &l, &b);
    same_bits("ring of 4", &a, &b);
    outcome_free(&a);
    outcome_free(&b);
}

/* Forward keys and values go to each other rank; backward they do again, and their gradients come home.
 * An all-to-all moves q, k and v, and o; backward the same. */
static void context_parallelism_sends_what_it_should(void **state) {
    enum { CP = 2 };
    model_config c = small_llama();
    outcome o;
    double tokens = RUN_ROWS * RUN_SEQ / CP, passes = c.layers * RUN_MICROS * sizeof(float);
    double kv = tokens * 2 * (double)(c.kv_heads * c.head_dim);
    double q = tokens * (double)(c.heads * c.head_dim);
    run_layout(&c, &(layout){ .cp = CP, .context = CONTEXT_RING }, &o);
    assert_true(o.cp_bytes[MOVE_SHIFT] == passes * kv * ((CP - 1) + (CP - 1) + CP));
    assert_true(o.cp_bytes[MOVE_ALL_TO_ALL] == 0);
    outcome_free(&o);
    run_layout(&c, &(layout){ .cp = CP, .context = CONTEXT_ULYSSES }, &o);
    assert_true(o.cp_bytes[MOVE_ALL_TO_ALL] == passes * 2 * (2 * q + kv) * (CP - 1) / CP);
    assert_true(o.cp_bytes[MOVE_SHIFT] == 0);
    outcome_free(&o);
}

/* A ring saves nothing of other ranks: what is saved falls with the ranks. */
static void a_ring_saves_a_share_of_the_activations(void **state) {
    model_config c = small_llama();
    outcome one, four;
    run_layout(&c, &(layout){ .dp = 1 }, &one);
    run_layout(&c, &(layout){ .cp = 4, .context = CONTEXT_RING }, &four);
    assert_true(four.saved_bytes <= one.saved_bytes / 4 + 4096);
    outcome_free(&one);
    outcome_free(&four);
}

/* ---- fp8 ---------------------------------------------------------------------------------- */
/* Under sanitizers the two recipes share the layouts. */
static bool is_left_to_other_recipe(size_t i, fp8_recipe recipe) {
    return SANITIZED && i % 2 != (recipe == FP8_DELAYED);
}

static void check_scales(const char *name, const outcome *o, const outcome *one) {
    if (!o->replicas_agree) fail_msg("%s: ranks differ", name);
    assert_int_equal(o->scales, one->scales);
    for (int k = 0; k < o->scales; k++)
        if (!(o->scale[k] > 0) || o->scale[k] != one->scale[k])
            fail_msg("%s: scale %d is %g, of one rank %g", name, k, (double)o->scale[k],
                     (double)one->scale[k]);
}

/* Scales follow from whole tensors, whichever ranks hold their parts. Data parallelism then computes the
 * same; under tensor parallelism sums of another order, in bf16, move values near the middle of two codes
 * to the other one; e5m2 has four codes per octave. This is up to half of what fp8 itself changes. */
static void fp8_scales_are_those_of_one_rank(void **state) {
    static const layout on[] = {
        { .name = "tp2", .tp = 2 },
        { .name = "tp2+sp", .tp = 2, .sp = true },
        { .name = "dp2", .dp = 2 },
        { .name = "hsdp 2 x zero2 over 2", .replicas = 2, .dp = 2, .zero = 2 },
        { .name = "zero3 over 2 x tp2+sp", .dp = 2, .tp = 2, .sp = true, .zero = 3 },
        { .name = "dp2, full recompute", .dp = 2, .keep_every = 1 },
        { .name = "tp2+sp, selective", .tp = 2, .sp = true, .selective = true },
    };
    model_config c = small_llama();
    c.ffn = 64; /* so that shards are multiples of 16 */
    for (fp8_recipe recipe = FP8_CURRENT; recipe <= FP8_DELAYED; recipe++) {
        outcome one, o;
        run_layout(&c, &(layout){ .dt = DT_BF16, .fp8 = recipe }, &one);
        for (size_t i = 0; i < COUNT_OF(on); i++) {
            layout l = on[i];
            if (is_left_to_other_recipe(i, recipe)) continue;
            l.dt = DT_BF16;
            l.fp8 = recipe;
            run_layout(&c, &l, &o);
            check_scales(l.name, &o, &one);
            same_within(l.name, &o, &one, l.tp > 1 ? 0.2 : 1e-3);
            outcome_free(&o);
        }
        outcome_free(&one);
    }
}

/* Matrices that start at zero pass zeros back in the first step, which set no scale: the next one sets it, by whole tensors
 * still. */
static void fp8_scales_that_come_late_are_those_of_one_rank(void **state) {
    static const layout on[] = { { .name = "dp2", .dp = 2 },
                                 { .name = "dp4", .dp = 4 },
                                 { .name = "tp2", .tp = 2 },
                                 { .name = "pp2 x dp2", .pp = 2, .dp = 2 } };
    model_config c = small_llama();
    c.ffn = 64;
    c.init_zero_outputs = true;
    outcome one, o;
    run_layout(&c, &(layout){ .dt = DT_BF16, .fp8 = FP8_DELAYED, .zero_step = true }, &one);
    for (size_t i = 0; i < COUNT_OF(on); i++) {
        layout l = on[i];
        l.dt = DT_BF16, l.fp8 = FP8_DELAYED, l.zero_step = true;
        run_layout(&c, &l, &o);
        check_scales(l.name, &o, &one);
        outcome_free(&o);
    }
    outcome_free(&one);
}

static const layout fp8_pipelines[] = {
    { .name = "pp2", .pp = 2 },
    { .name = "pp2 x zero2 over 2, full recompute", .pp = 2, .dp = 2, .zero = 2, .keep_every = 1 },
    { .name = "pp2, ZeroBubble", .pp = 2, .schedule = PIPE_ZERO_BUBBLE },
    { .name = "pp2, two chunks", .pp = 2, .schedule = PIPE_INTERLEAVED, .chunks = 2 },
};

/* Stages quantize what one rank does: each microbatch by its own scales, or all by those of the step. After a
 * step all of them have the latter of all layers, which the next one begins with and checkpoints keep. */
static void fp8_stages_scale_as_one_rank_does(void **state) {
    model_config c = small_llama();
    c.layers = 4;
    c.ffn = 64;
    for (fp8_recipe recipe = FP8_CURRENT; recipe <= FP8_DELAYED; recipe++) {
        outcome one, o;
        run_layout(&c, &(layout){ .dt = DT_BF16, .fp8 = recipe, .micros = 4 }, &one);
        for (size_t i = 0; i < COUNT_OF(fp8_pipelines); i++) {
            layout l = fp8_pipelines[i];
            if (is_left_to_other_recipe(i, recipe)) continue;
            l.dt = DT_BF16;
            l.fp8 = recipe;
            l.micros = 4;
            run_layout(&c, &l, &o);
            assert_true(o.replicas_agree);
            same_within(l.name, &o, &one, 1e-3);
            if (recipe == FP8_DELAYED) check_scales(l.name, &o, &one);
            outcome_free(&o);
        }
        outcome_free(&one);
    }
}

/* ---- ZeRO-3 ------------------------------------------------------------------------------ */
/* Stored weights fall with the ranks, and what is gathered is one block at a time, not the model:
 * with many layers the peak is far below the whole. */
static void zero3_stores_a_share_of_the_weights(void **state) {
    model_config c = small_llama();
    c.layers = 8;
    outcome whole, half, quarter;
    run_layout(&c, &(layout){ .dp = 4, .tp = 1 }, &whole);
    run_layout(&c, &(layout){ .dp = 2, .tp = 1, .zero = 3 }, &half);
    run_layout(&c, &(layout){ .dp = 4, .tp = 1, .zero = 3 }, &quarter);
    assert_true(half.param_bytes <= whole.param_bytes / 2 + 65536);
    assert_true(quarter.param_bytes <= whole.param_bytes / 4 + 65536);
    /* gathered parameters and their gradients live in temp, once, whatever the layers */
    size_t block = (size_t)model_count(&c) * sizeof(float) / 8;
    assert_true(quarter.temp_bytes <= whole.temp_bytes + 3 * block);
    assert_true(quarter.saved_bytes <= whole.saved_bytes); /* no gathered weight is saved */
    outcome_free(&whole);
    outcome_free(&half);
    outcome_free(&quarter);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_agrees_on_every_layout),
        cmocka_unit_test(tied_llama_with_dropout_agrees_on_every_layout),
        cmocka_unit_test(gpt2_agrees_on_every_layout),
        cmocka_unit_test(neox_agrees_on_every_layout),
        cmocka_unit_test(biased_swiglu_agrees_on_every_layout),
        cmocka_unit_test(carried_values_agree_on_every_layout),
        cmocka_unit_test(post_norm_agrees_on_every_layout),
        cmocka_unit_test(fast_learner_agrees_on_every_layout),
        cmocka_unit_test(newer_families_agree_on_every_layout),
        cmocka_unit_test(any_vocabulary_agrees_on_every_layout),
        cmocka_unit_test(loss_terms_agree_on_every_layout),
        cmocka_unit_test(a_sharded_vocabulary_in_16_bits_stays_close),
        cmocka_unit_test(the_logits_never_exist_as_a_whole),
        cmocka_unit_test(experts_agree_on_every_layout),
        cmocka_unit_test(newer_experts_agree_on_every_layout),
        cmocka_unit_test(gated_delta_nets_agree_on_every_layout),
        cmocka_unit_test(dense_layers_and_experts_mix_on_every_layout),
        cmocka_unit_test(layers_have_the_parameters_of_their_kind),
        cmocka_unit_test(dropless_sigmoid_experts_agree_on_every_layout),
        cmocka_unit_test(as_many_rows_may_come_as_there_can_be),
        cmocka_unit_test(shared_key_value_heads_agree_on_every_layout),
        cmocka_unit_test(shared_heads_are_stored_by_those_who_read_them),
        cmocka_unit_test(a_sliding_window_agrees_on_every_layout),
        cmocka_unit_test(a_repeated_ring_is_bit_exact),
        cmocka_unit_test(context_parallelism_sends_what_it_should),
        cmocka_unit_test(a_ring_saves_a_share_of_the_activations),
        cmocka_unit_test(fp8_scales_are_those_of_one_rank),
        cmocka_unit_test(fp8_scales_that_come_late_are_those_of_one_rank),
        cmocka_unit_test(fp8_stages_scale_as_one_rank_does),
        cmocka_unit_test(zero3_stores_a_share_of_the_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
