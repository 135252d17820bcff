/* A rank sends in a step what the closed form predicts, for each axis and stage. */
#include "support/model.h"

enum { MICROS = 2, LAYERS = 4, DIM = 32, FP32 = 4 };

static double sent(const outcome *o, axis_set axes, move_kind kind) {
    double sum = 0;
    for (int i = 0; i < o->counters; i++)
        if (o->sent[i].axes == axes && o->sent[i].kind == kind) sum += o->sent[i].bytes;
    return sum;
}

static double all_sent(const outcome *o) {
    double sum = 0;
    for (int i = 0; i < o->counters; i++) sum += o->sent[i].bytes;
    return sum;
}

/* Runs a step on a layout; the caller frees. */
static outcome step_on(layout l) {
    model_config c = small_llama();
    outcome o;
    c.layers = LAYERS;
    c.kv_heads = 4;
    l.micros = MICROS;
    run_layout(&c, &l, &o);
    return o;
}

static void same_bytes(const char *what, double got, double want) {
    if (!(fabs(got - want) < 0.5)) fail_msg("%s: %.0f bytes, not %.0f", what, got, want);
}

/* A rank's tokens between blocks, of one microbatch. */
static double residual_bytes(int share) {
    return (double)(RUN_ROWS * RUN_SEQ / share) * DIM * FP32;
}

static void data_parallel_reduces_each_gradient_once(void **state) {
    for (int n = 2; n <= 4; n *= 2) {
        outcome o = step_on((layout){ .dp = n });
        double grads = FP32 * (o.outer + o.blocks);
        same_bytes("all-reduce", sent(&o, AXIS(AX_DP_SHARD), MOVE_ALL_REDUCE),
                   2.0 * (n - 1) / n * grads);
        same_bytes("all", all_sent(&o), 2.0 * (n - 1) / n * grads);
        outcome_free(&o);
    }
}

static void zero_sends_slices_of_each_gradient(void **state) {
    for (int zero = 1; zero <= 3; zero++) {
        int n = 4, times = zero == 1 ? 1 : MICROS;
        outcome o = step_on((layout){ .dp = n, .zero = zero });
        double each = (double)(n - 1) / n * FP32, grads = o.outer + o.blocks;
        same_bytes("reduce-scatter", sent(&o, AXIS(AX_DP_SHARD), MOVE_REDUCE_SCATTER),
                   times * each * grads);
        /* Updated parameters are gathered once. At stage 3 what is outside blocks is gathered with every
         * microbatch, blocks forward and backward, but for two: backward of the last ones finds them in the
         * slots, as does forward of the first ones, but for that of a step's first microbatch. */
        double times_blocks = MICROS * (2 - 2.0 / LAYERS) - (MICROS - 1) * 2.0 / LAYERS;
        double gathered =
            zero == 3 ? each * (MICROS * o.outer + times_blocks * o.blocks) : each * grads;
        same_bytes("all-gather", sent(&o, AXIS(AX_DP_SHARD), MOVE_ALL_GATHER), gathered);
        same_bytes("all", all_sent(&o), times * each * grads + gathered);
        outcome_free(&o);
    }
}

static void gathered_parameters_that_are_kept_are_gathered_once(void **state) {
    int n = 4;
    outcome o = step_on((layout){ .dp = n, .zero = 3, .keep_gathered = true });
    same_bytes("all-gather", sent(&o, AXIS(AX_DP_SHARD), MOVE_ALL_GATHER),
               (double)(n - 1) / n * FP32 * (o.outer + o.blocks));
    outcome_free(&o);
}

/* Slots hold what the last blocks read: as many as are prefetched, and the one that runs. */
static void slots_spare_gathers_between_passes(void **state) {
    for (int prefetch = -1; prefetch < LAYERS; prefetch++) {
        int n = 2, slots = prefetch < 0 ? 1 : prefetch == 0 ? 2 : prefetch + 1;
        outcome o = step_on((layout){ .dp = n, .zero = 3, .prefetch = prefetch });
        double share = (double)slots / LAYERS, blocks = MICROS * (2 - share) - (MICROS - 1) * share;
        same_bytes("all-gather", sent(&o, AXIS(AX_DP_SHARD), MOVE_ALL_GATHER),
                   (double)(n - 1) / n * FP32 * (MICROS * o.outer + blocks * o.blocks));
        outcome_free(&o);
    }
}

/* A type of half the size on the wire: half the bytes, and a gradient that is close. */
static void types_on_the_wire_halve_the_bytes(void **state) {
    for (int zero = 0; zero <= 3; zero++) {
        layout wide = { .dp = 2, .zero = zero }, narrow = wide;
        narrow.reduce_wire = DT_BF16;
        narrow.gather_wire = DT_F16;
        outcome a = step_on(wide), b = step_on(narrow);
        double exact = zero == 1 || zero == 2 /* where the optimizer keeps them */
                           ? sent(&a, AXIS(AX_DP_SHARD), MOVE_ALL_GATHER)
                           : 0;
        same_bytes("all", all_sent(&b) - exact, (all_sent(&a) - exact) / 2);
        same_within("narrow wires", &b, &a, 0.02);
        assert_true(b.replicas_agree);
        outcome_free(&a);
        outcome_free(&b);
    }
}

/* Parameters that stay whole are gathered once per step, after the update. Norms take 512 elements of a block's
 * bucket, or as many alone; that of the last program fills what would be padding, and is 512 alone. */
static void small_parameters_are_not_gathered(void **state) {
    int n = 2;
    outcome all = step_on((layout){ .dp = n, .zero = 3 });
    outcome few = step_on((layout){ .dp = n, .zero = 3, .whole_below = 2 * DIM });
    double each = (double)(n - 1) / n * FP32;
    double times = MICROS * (2 * LAYERS - 2) - (MICROS - 1) * 2,
           norms = 512.0 * (times - LAYERS - 1);
    same_bytes("all-gather",
               sent(&all, AXIS(AX_DP_SHARD), MOVE_ALL_GATHER) -
                   sent(&few, AXIS(AX_DP_SHARD), MOVE_ALL_GATHER),
               each * norms);
    outcome_free(&all);
    outcome_free(&few);
}

static void replicas_reduce_what_a_group_has_scattered(void **state) {
    outcome o = step_on((layout){ .replicas = 2, .dp = 2, .zero = 1 });
    double grads = FP32 * (o.outer + o.blocks) / 4 * 2; /* buckets counted over both axes */
    same_bytes("reduce-scatter", sent(&o, AXIS(AX_DP_SHARD), MOVE_REDUCE_SCATTER), grads / 2);
    same_bytes("all-reduce", sent(&o, AXIS(AX_DP_REPLICATE), MOVE_ALL_REDUCE), grads / 2);
    outcome_free(&o);
}

/* Per block two all-reduces forward and two backward; around the blocks one of the embedding, one of the
 * gradient of the head's input, and four numbers per token for the loss. */
static void tensor_parallel_reduces_four_times_per_block(void **state) {
    int n = 2;
    outcome o = step_on((layout){ .tp = n });
    double all_reduces = (4 * LAYERS + 2) * 2.0 * (n - 1) / n * residual_bytes(1);
    same_bytes("all-reduce", sent(&o, AXIS(AX_TP), MOVE_ALL_REDUCE), MICROS * all_reduces);
    double losses = (n - 1) * RUN_ROWS * RUN_SEQ * 4.0 * FP32;
    same_bytes("all-gather", sent(&o, AXIS(AX_TP), MOVE_ALL_GATHER), MICROS * losses);
    outcome_free(&o);
}

/* The same bytes as two halves; norms' weights, which see a share of the tokens, are summed once. */
static void sequence_parallel_sends_as_much_in_halves(void **state) {
    int n = 2;
    outcome o = step_on((layout){ .tp = n, .sp = true });
    double half = (double)(n - 1) / n * residual_bytes(1);
    same_bytes("reduce-scatter", sent(&o, AXIS(AX_TP), MOVE_REDUCE_SCATTER),
               MICROS * (4 * LAYERS + 2) * half);
    outcome_free(&o);
}

/* Rank 0 sends activations on and receives gradients. */
static void a_stage_sends_the_residual_once(void **state) {
    outcome o = step_on((layout){ .pp = 2 });
    same_bytes("send", sent(&o, AXIS(AX_PP), MOVE_SEND), MICROS * residual_bytes(1));
    same_bytes("all", all_sent(&o), MICROS * residual_bytes(1));
    outcome_free(&o);
}

/* Beside it, the embedding at every boundary, and the residual after the middle block, of layer 2, at those behind it. */
static void a_stage_sends_what_later_ones_read(void **state) {
    static const struct {
        bool scalars, backout;
        int split[4], values; /* of rank 0's message */
    } cases[] = {
        { true, false, { 2, 2 }, 2 }, { false, true, { 2, 2 }, 1 }, { false, true, { 3, 1 }, 2 },
        { true, true, { 3, 1 }, 3 },  { true, true, { 0, 4 }, 2 },  { true, true, { 4, 0 }, 2 },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        model_config c = small_llama();
        layout l = { .pp = 2, .micros = MICROS };
        outcome o;
        c.layers = LAYERS;
        c.layer_scalars = cases[i].scalars;
        c.backout = cases[i].backout;
        memcpy(l.split, cases[i].split, sizeof cases[i].split);
        run_layout(&c, &l, &o);
        same_bytes("send", sent(&o, AXIS(AX_PP), MOVE_SEND),
                   cases[i].values * MICROS * residual_bytes(1));
        outcome_free(&o);
    }
}

/* q, k and v to heads and the result back, and their gradients the other way. */
static void context_parallel_exchanges_heads_for_tokens(void **state) {
    int n = 2;
    outcome o = step_on((layout){ .cp = n });
    double width = 3 + 1, each = (double)(n - 1) / n * residual_bytes(n) * width;
    same_bytes("all-to-all", sent(&o, AXIS(AX_CP), MOVE_ALL_TO_ALL), MICROS * LAYERS * 2 * each);
    outcome_free(&o);
}

/* ---- experts ------------------------------------------------------------------------------------- */
static outcome moe_step_on(layout l, double capacity) {
    model_config c = small_moe();
    outcome o;
    c.layers = LAYERS;
    c.capacity_factor = capacity;
    if (!capacity) c.experts_per_token = c.experts; /* so that it is known what each rank sends */
    l.micros = MICROS;
    run_layout(&c, &l, &o);
    return o;
}

/* Rows go to their experts and back, and their gradients: four exchanges of as many rows as the capacity
 * provides for. Weights of experts are not reduced over ep, all others are. */
static void expert_parallel_exchanges_rows_four_times(void **state) {
    int n = 2, experts = 4, k = 2, share = RUN_ROWS / n;
    outcome o = moe_step_on((layout){ .ep = n }, 1.25);
    double capacity = ceil(1.25 * RUN_SEQ * k / experts), rows = experts * share * capacity;
    same_bytes("all-to-all", sent(&o, AXIS(AX_EP), MOVE_ALL_TO_ALL),
               MICROS * LAYERS * 4 * (double)(n - 1) / n * rows * DIM * FP32);
    assert_true(sent(&o, AXIS(AX_EP), MOVE_ROWS) == 0);
    outcome_free(&o);
}

/* Without a capacity the rows alone, here one for each token and expert, and one count per expert. */
static void rows_by_count_are_all_that_is_sent(void **state) {
    int n = 2, experts = 4;
    outcome o = moe_step_on((layout){ .ep = n }, 0);
    double rows = RUN_ROWS / n * RUN_SEQ * experts, other = (double)(n - 1) / n;
    same_bytes("rows", sent(&o, AXIS(AX_EP), MOVE_ROWS),
               MICROS * LAYERS * 4 * other * rows * DIM * FP32);
    same_bytes("counts", sent(&o, AXIS(AX_EP), MOVE_ALL_TO_ALL),
               MICROS * LAYERS * other * experts * FP32);
    outcome_free(&o);
}

/* Holds the choices of each chunk of a sequence. */
static void shared_sequences_exchange_counts(void **state) {
    int n = 2, experts = 4, chunks = 2;
    outcome o = moe_step_on((layout){ .cp = n, .context = CONTEXT_RING }, 1.25);
    same_bytes("all-gather", sent(&o, AXIS(AX_CP), MOVE_ALL_GATHER),
               MICROS * LAYERS * (n - 1.0) * RUN_ROWS * chunks * experts * FP32);
    outcome_free(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_parallel_reduces_each_gradient_once),
        cmocka_unit_test(zero_sends_slices_of_each_gradient),
        cmocka_unit_test(gathered_parameters_that_are_kept_are_gathered_once),
        cmocka_unit_test(slots_spare_gathers_between_passes),
        cmocka_unit_test(types_on_the_wire_halve_the_bytes),
        cmocka_unit_test(small_parameters_are_not_gathered),
        cmocka_unit_test(replicas_reduce_what_a_group_has_scattered),
        cmocka_unit_test(tensor_parallel_reduces_four_times_per_block),
        cmocka_unit_test(sequence_parallel_sends_as_much_in_halves),
        cmocka_unit_test(a_stage_sends_the_residual_once),
        cmocka_unit_test(a_stage_sends_what_later_ones_read),
        cmocka_unit_test(context_parallel_exchanges_heads_for_tokens),
        cmocka_unit_test(expert_parallel_exchanges_rows_four_times),
        cmocka_unit_test(rows_by_count_are_all_that_is_sent),
        cmocka_unit_test(shared_sequences_exchange_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
