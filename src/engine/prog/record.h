/* record: programs. A model's forward pass is called once, at start-up, and *records* a list of ops
 * with static shapes; the backward list is derived from it, and everything else is a pass over those
 * lists. Plans (plan.h) give programs memory, execution (execute.h) runs them. Depends on ops and comm.
 *
 * Given `mesh m` and `param_set params`:
 *
 *     prog *p = prog_new("block", PROG_TRAIN, &m, &params, &(prog_options){ 0 });
 *     prog_compute_in(p, DT_BF16);
 *     residual_state s = prog_residual_in(p, 64, 32, DT_F32, DT_BF16, (placement){ 0 });
 *     norm_out n = rec_norm(p, s, (norm_spec){ .rms = true, .w = prog_use(p, "norm1.w", s.residual),
 *                                              .b = VAL_NONE, .eps = 1e-5f });
 *     val h = rec_comm(p, n.y, AXIS(AX_TP), PLACE_R);
 *     val d = rec_linear(p, h, prog_use(p, "attn.o", h), VAL_NONE);
 *     prog_residual_out(p, (residual_state){ n.r, rec_comm(p, d, AXIS(AX_TP), PLACE_I) });
 *     TRY(prog_finish(p));     // derives backward; a missing collective is an error that names its line
 *
 * Values are in single-assignment form: an op never overwrites what another computed, and only the
 * memory pass (memory.c) lets two values share bytes. So a gradient that two inputs share, as at a
 * residual sum, is one value with two readers.
 */
#ifndef INGOT_RECORD_H
#define INGOT_RECORD_H

#include "comm/comm.h"
#include "ops/ops.h"

typedef struct prog prog;
typedef int val;
#define VAL_NONE (-1)

/* PROG_UPDATE: a list without backward, which changes memory of the plan in place (rec_update.c). */
typedef enum { PROG_TRAIN, PROG_EVAL, PROG_DECODE, PROG_UPDATE } prog_mode;

/* ---- parameters as programs see them -----------------------------------------------------
 * Parameters live in buckets: flat buffers of one element type, laid out by bucket_layout. A bucket
 * divides into equal slices, aligned to 256 elements, one for each rank along the axes that ZeRO shards
 * it over:
 *
 *     bucket  |<- sharded over tp ->|<-- identical on all tp ranks -->| padding |
 *               qkv | o | gate_up...   norm1 | norm2 | biases
 *     slices    |--------- 0 ---------|--------- 1 ---------|
 *
 *     stage 0   every rank holds and updates everything; gradients are all-reduced
 *           1   a rank holds the optimizer state of its slice and updates that: gradients are
 *               reduce-scattered with a step's last microbatch, updated parameters gathered
 *           2   it accumulates gradients of its slice only: they are reduce-scattered each microbatch
 *           3   it stores parameters of its slice only: programs gather them when they use them
 *
 * Parameters in host memory are fetched when programs use them, and then gathered. From stage 1 on a rank
 * stores those of its slice only, since what is fetched each time need not be whole beforehand.
 */
enum { PARAM_ALIGN = 256, PARAM_NAME = 48 };

typedef struct prog_param {
    char name[PARAM_NAME]; /* within the program: "attn.qkv" */
    int ndim;
    int64_t dim[2];    /* of this tp rank, with padding where tp does not divide it */
    int64_t rep_rows;  /* last rows, which ranks along rep_axes share: their gradient is a sum */
    axis_set rep_axes; /* AXES_TP_REP where there are any */
    int64_t first,
        whole;    /* sharded over tp: its first row in the whole parameter, and rows of that */
    int segments; /* parts fused along dim 0 (q|k|v, gate|up), each sharded on its own; 0 reads as 1 */
    placement pl;   /* I, or S(0) or S(1) over tp */
    int block_kind; /* 1 + the kind of blocks that it belongs to; 0: it is outside of blocks */
    int bucket;     /* index into param_set.bucket */
    int64_t offset; /* in elements, set by bucket_layout */
} prog_param;

typedef struct prog_bucket {
    const char *name;
    dtype dt;         /* of the copy that programs read */
    bool tied;        /* two programs write its gradient */
    axis_set reduced; /* ranks along these have data of their own: gradients are sums over them */
    axis_set slices;  /* those of them that ZeRO shards over */
    int zero;         /* its stage, 0 to 3 */
    bool host;        /* its parameters are in host memory, and sharded from stage 1 on */
    dtype gather_wire,
        reduce_wire; /* types of its communication over `reduced`; DT_NONE: its own */
    int64_t count;   /* elements, padded; of one tp rank, all slices */
    int64_t
        replicated; /* from here on parameters are not sharded: identical on ranks that shard others */
} prog_bucket;

typedef struct param_set {
    const prog_param *param;
    int params;
    const prog_bucket *bucket;
    int buckets;
} param_set;

/* Assigns offsets and sizes: sharded parameters first, each aligned, the end padded to equal
 * aligned slices. */
void bucket_layout(prog_param *param, int params, prog_bucket *bucket, int buckets, const mesh *m);
/* Buffers of a bucket; the number is ZeRO's stage from which on a rank holds a slice of it. */
typedef enum { HOLDS_STATE = 1, HOLDS_GRADS, HOLDS_PARAMS } bucket_buffer;
typedef struct bucket_range {
    int64_t first, count; /* elements of the bucket */
} bucket_range;
bucket_range bucket_holds(const prog_bucket *b, const mesh *m, bucket_buffer which);
bool bucket_is_sliced(const prog_bucket *b, const mesh *m, bucket_buffer which);

/* ---- a program ----------------------------------------------------------------------------- */
enum { LOGIT_BYTES = 128 << 20 };
typedef struct prog_options {
    bool selective;      /* backward recomputes cheap ops instead of saving their results */
    bool split_weights;  /* weight gradients are a list of their own, which may run later */
    int block_kind;      /* 1 + the kind of block that this is: whose parameters it uses; 0: none */
    int fp8_sites;       /* linear layers that prog_fp8 may mark, numbered from 0; 0: none */
    int64_t logit_bytes; /* most logits of a sharded vocabulary at a time; 0: LOGIT_BYTES */
    int sequence_runs; /* adjacent runs of a sequence that a rank has, where ranks share its tokens */
    axis_set chunk_axes; /* those over which a layer's weights are sharded */
    int row_chunks; /* most chunks of rows whose communication over them overlaps; 0 reads as 1 */
    int64_t chunk_rows; /* least rows of a chunk, on a rank */
} prog_options;

/* @param name borrowed. */
prog *prog_new(const char *name, prog_mode mode, const mesh *m, const param_set *set,
               const prog_options *o);
void prog_free(prog *p); /* takes NULL */
/* Sets the type that modules recorded from here on compute in; fp32 at first. */
void prog_compute_in(prog *p, dtype dt);
/* Declares that an earlier program of the backward order writes this parameter's gradient (a tied
 * table), so that this one must add to it. */
void prog_param_shared(prog *p, const char *name);
/* Derives backward (TRAIN), applies recompute, splits communication, lays out memory. @return the
 * first error of recording, with the file and line of the op. */
err prog_finish(prog *p) MUST_USE;
/* @return the axes, among those that shard other parameters, over which the program's gradient of this one is a
 * partial sum. */
axis_set prog_grad_partial(const prog *p, int param);
/* Appends the lists as text, one op per line. */
void prog_dump(const prog *p, str *out);

/* ---- inputs and outputs -------------------------------------------------------------------- */
/* A block passes two values to the next: the residual and a delta not yet added to it, so that the addition
 * fuses with the norm that comes first in the next block. */
typedef struct residual_state {
    val residual, delta; /* delta: VAL_NONE when it is added already */
} residual_state;

residual_state prog_residual_in(prog *p, int64_t n, int64_t d, dtype residual, dtype delta,
                                placement pl);
/* Refuses a partial sum: the next program would read a rank's share as the whole. */
void prog_residual_out(prog *p, residual_state s);
/* Values that one program leaves for any later ones of its microbatch, beside the residual and placed as it is. A chain
 * holds each until the backward pass of the program that left it; its readers add to one gradient (BWD_MIX). */
enum { CARRIES = 2 };
/* A program that has a residual reads value `which`. */
val prog_carry_in(prog *p, int which);
/* Leaves v, which is a result of an op of this program, as value `which`. v may leave as the residual too. */
void prog_carry_out(prog *p, int which, val v);
/* @return an input that is bound by name: tokens, positions. A second call returns the same value. */
val prog_input(prog *p, const char *name, dtype dt, int ndim, const int64_t *dim, placement pl);
/* An input in fp32 that all microbatches share: a table. */
val prog_input_shared(prog *p, const char *name, const int64_t dim[2]);
/* An input with memory of its own in every layer: a cache. */
val prog_input_per_layer(prog *p, const char *name, dtype dt, const int64_t dim[2], placement pl);
/* Reads the input's shape in this program. @return false when it has no such input. */
bool prog_input_shape(const prog *p, const char *name, tensor *shape);
/* Sets the chain's result where it is not the loss: logits. */
void prog_set_result(prog *p, val v);

/* Each call below notes the line it is made from. After an error they return VAL_NONE and do nothing,
 * so that model code needs no checks of its own. */
prog *prog_here(prog *p, const char *file, int line, const char *function);
#define HERE(p) prog_here(p, __FILE__, __LINE__, __func__)

/* @return the parameter, ready for use beside x: gathered if stored in slices, R where x differs between
 * ranks that hold the same weights (so that its gradient is a sum over them). */
val prog_use_(prog *p, const char *name, val x);
/* Likewise, but invariant where the columns of x are sharded: a bias added once to a partial sum. */
val prog_use_once_(prog *p, const char *name, val x);
#define prog_use(p, ...)      prog_use_(HERE(p), __VA_ARGS__)
#define prog_use_once(p, ...) prog_use_once_(HERE(p), __VA_ARGS__)

/* ---- ops ----------------------------------------------------------------------------------- */
/* Sizes of a signature's letters, 0: not known; and the segments of the dims they stand for. */
typedef struct letter_sizes {
    int64_t of[128];
    uint16_t segments[128];
} letter_sizes;
/* An op, and what its row does not determine. */
typedef struct rec_request {
    op_code op;
    val in[OP_MAX_IN]; /* all operands of the signature, VAL_NONE where one is absent */
    op_attr attr;
    uint32_t want;      /* optional results to have, by bit */
    letter_sizes sizes; /* letters that no operand has */
} rec_request;
/* Records any op of op_table.h whose sizes and attributes the caller has: rec(p, OP_SCALE, { x }, { .scale.by = 2 }). The calls below
 * are for ops that need more than that. @return its first result */
val rec_first(prog *p, rec_request r);
#define rec(p, ...) rec_first(HERE(p), (rec_request){ __VA_ARGS__ })

typedef struct norm_spec {
    bool rms; /* else layer norm */
    val w, b; /* b: VAL_NONE for none */
    float eps;
} norm_spec;
typedef struct norm_out {
    val r, y; /* r: the sum that was normalized */
} norm_out;
typedef struct head_shape {
    int q, kv, dim, rot, window; /* of the whole model; ranks divide the heads */
    int chunk;                   /* in place of a window: as in op_attr */
    float temper, temper_floor;  /* of rec_scale_queries */
    int seq;                     /* tokens in a row, which no document crosses; 0: unknown */
    bool documents;              /* rows may hold several documents */
    float scale, cap;            /* of scores, as in op_attr */
    bool norm_full;
    struct {
        float p;
        uint32_t site; /* as in rec_dropout */
    } dropout;         /* of the probabilities, in PROG_TRAIN */
} head_shape;
typedef struct loss_spec {
    val h, w, target; /* w sharded over tp by rows: h is R, target is I */
    float logit_scale;
    float cap;               /* of the logits; 0: none */
    float smoothing, z_loss; /* as in op_attr, in PROG_TRAIN alone */
    bool fp8;                /* GEMMs in fp8, in PROG_TRAIN alone */
} loss_spec;

/* How tokens are routed to experts: ROUTE in ops.def. */
typedef struct route_spec {
    bool sigmoid, normalize;
    int groups, group_limit; /* as in op_attr */
    bool group_best;
    float scale;
    int64_t k, seq, capacity; /* seq, capacity: of whole sequences, whichever ranks share them */
    float balance, z;
} route_spec;
typedef struct routing {
    val weight, row, source, offset;
    bool padded;
} routing;
/* Rows on the ranks that have their experts. */
typedef struct expert_rows {
    val rows, offset; /* offset: as of the routing; VAL_NONE: each expert has as many */
    val sent,
        came; /* counts by expert, and by rank: what the way back needs; VAL_NONE: equal parts */
    int64_t home[2]; /* their shape before */
    int experts;     /* whose rows they are: those of this rank; in generation all */
} expert_rows;

val rec_cast_(prog *p, val x, dtype dt);
val rec_comm_(prog *p, val x, axis_set axes, place to);
val rec_embed_(prog *p, val tok, val table); /* of a table sharded by rows: a partial sum */
val rec_linear_(prog *p, val x, val w, val b);
val rec_linear_gelu_(prog *p, val x, val w, val b, act_kind act);
norm_out rec_norm_(prog *p, residual_state s, norm_spec n);
val rec_sum_(prog *p, residual_state s); /* residual + delta, where no norm comes first */
/* a (residual + delta) + b past, with learned factors. */
typedef struct mix_spec {
    val past, a, b; /* past: VAL_NONE for none, the sum alone; a: VAL_NONE for 1 */
} mix_spec;
val rec_mix_(prog *p, residual_state s, mix_spec m);
/* Normalizes that, as one op where possible. */
norm_out rec_mix_norm_(prog *p, residual_state s, mix_spec m, norm_spec n);
val rec_qknorm_(prog *p, val qkv, val wq, val wk, head_shape h, float eps);
val rec_rope_(prog *p, val qkv, val pos, val table, head_shape h);
/* Norms and rotates, as one op where possible. */
typedef struct qk_norms {
    val wq, wk; /* VAL_NONE: without weights */
    float eps;
} qk_norms;
val rec_qknorm_rope_(prog *p, val qkv, qk_norms n, val pos, val table, head_shape h);
val rec_scale_queries_(prog *p, val qkv, val pos, head_shape h);
/* @return queries and keys whose scores fall linearly with the distance. @param h of qkv; its dim becomes that of the result */
val rec_alibi_(prog *p, val qkv, val pos, float max, head_shape *h);
/* @param id of the tokens, for dropout; VAL_NONE: there is none @param sink as in ATTENTION, or VAL_NONE */
val rec_attention_(prog *p, val qkv, val start, val id, val sink, head_shape h);
/* Between shards of the tokens and shards of the heads (Ulysses): qkv, S(0) over the axes, becomes S(1),
 * with all tokens in the order of the batch; the result of attention becomes S(0) again. */
val rec_tokens_to_heads_(prog *p, val qkv, axis_set axes, head_shape h);
val rec_heads_to_tokens_(prog *p, val o, axis_set axes, head_shape h);
/* Attention where ranks along the axes have tokens of their own of every sequence: keys and values go
 * around the ring of ranks, and each rank attends to one block of them after the other. A composite.
 * @param range [ranks, 2, N] of queries over the keys of the rank s before this one, s = 0, 1, ..., as
 * ATTENTION_BLOCK takes it @param id, key_id of the tokens and of those ranks' [ranks, N], for dropout;
 * VAL_NONE: there is none */
typedef struct ring_inputs {
    val range, id, key_id, sink;
} ring_inputs;
val rec_ring_attention_(prog *p, val qkv, axis_set axes, ring_inputs in, head_shape h);
/* Attention to several ranges of the tokens' own keys, for evaluation: ranges is int32[ranges, 2, N], first key and end of each
 * query's; neither decreases with the query, and of the first range every query sees a key. */
val rec_ranges_attention_(prog *p, val qkv, val ranges, val sink, head_shape h);
val rec_attention_cached_(prog *p, val qkv, val cache, val pos, val start, val sink, head_shape h);
/* Latent attention (rec_latent.c). Rotates the first h.rot dims of `heads` heads. */
val rec_rope_heads_(prog *p, val x, val pos, val table, int heads, head_shape h);
/* @return q|k|v of all heads, of width h.dim each, from q, the projections of the latent vectors, and the shared keys. */
val rec_latent_qkv_(prog *p, val q, val kv, val rot, head_shape h);
/* @return the first `value` columns of each head. */
val rec_head_values_(prog *p, val o, int64_t value, head_shape h);
/* Two parts of the columns of a value, the first `left` wide. */
typedef struct val_pair {
    val left, right;
} val_pair;
val_pair rec_split_columns_(prog *p, val x, int64_t left);
typedef struct latent_tokens {
    val q, c, rot, w; /* queries, latent vectors, shared keys; what expands the latent vectors */
} latent_tokens;
val rec_latent_cached_(prog *p, latent_tokens t, val cache, val pos, val start, int64_t value,
                       head_shape h);
/* Gated DeltaNet (rec_delta.c): the rule, and the norm of its result with the gate z. */
typedef struct delta_spec {
    int keys, values;  /* heads of the whole model; ranks divide them */
    int64_t value_dim; /* of a head */
    int seq; /* tokens in a row, which no document crosses, or of a sequence's cache; 0: unknown */
} delta_spec;
val rec_delta_rule_(prog *p, val qkv, val gate, val start, delta_spec h);
val rec_delta_cached_(prog *p, val qkv, val gate, val state, val pos, val start, delta_spec h);
val rec_gated_norm_(prog *p, val x, val z, val w, delta_spec h, float eps);
/* @param bias added to scores when experts are chosen; VAL_NONE: none */
routing rec_route_(prog *p, val logits, val bias, route_spec s);
/* Over ep (rec_experts.c): rows of this rank's sequences to the ranks of their experts, and back. In generation, where
 * every rank has the same few, they stay, and the weights of all experts come to them. @param experts of this rank */
expert_rows rec_to_experts_(prog *p, val x, routing to, int experts);
val rec_from_experts_(prog *p, val x, const expert_rows *from);
/* @param x rows at their experts @param w the matrices of this rank's experts, one after another */
/* @param b a vector for each expert; VAL_NONE: none */
val rec_expert_linear_(prog *p, val x, val w, val b, const expert_rows *at);
val rec_add_(prog *p, val a, val b);
val rec_scale_(prog *p, val x, float by);
/* @param ve the tokens' values, x what qkv was computed from, w the gates' weights */
val rec_add_values_(prog *p, val qkv, val ve, val x, val w, head_shape h);
/* @return logits as the loss reads them, for generation. @param cap 0: none */
val rec_cap_logits_(prog *p, val x, float scale, float cap);
val rec_dropout_(prog *p, val x, val id, float rate, uint32_t site);
/* Records the loss per token, which is terminal. In TRAIN it yields the gradients of h and w too. */
void rec_linear_ce_(prog *p, loss_spec l);
/* Records the beginning of a step: scales for all layers, from the magnitudes of earlier steps (FP8_DELAYED). */
void rec_fp8_commit_(prog *p, int layers);
/* Records the end of a step: ranks share the largest magnitude of each tensor. */
void rec_fp8_share_(prog *p, int layers);
/* Marks the linear layer that computed y to run in fp8 (fp8.c). Does nothing where its types are not
 * bf16 or its sizes are not multiples of 16. */
void prog_fp8(prog *p, val y, fp8_recipe recipe, int site);

#define rec_cast(p, ...) rec_cast_(HERE(p), __VA_ARGS__)
/* An axis in place of a set does not compile. */
#define rec_comm(p, x, axes, to)     rec_comm_(HERE(p), x, _Generic((axes), axis_set : (axes)), to)
#define rec_embed(p, ...)            rec_embed_(HERE(p), __VA_ARGS__)
#define rec_linear(p, ...)           rec_linear_(HERE(p), __VA_ARGS__)
#define rec_linear_gelu(p, ...)      rec_linear_gelu_(HERE(p), __VA_ARGS__)
#define rec_norm(p, ...)             rec_norm_(HERE(p), __VA_ARGS__)
#define rec_sum(p, ...)              rec_sum_(HERE(p), __VA_ARGS__)
#define rec_mix(p, ...)              rec_mix_(HERE(p), __VA_ARGS__)
#define rec_mix_norm(p, ...)         rec_mix_norm_(HERE(p), __VA_ARGS__)
#define rec_rope_heads(p, ...)       rec_rope_heads_(HERE(p), __VA_ARGS__)
#define rec_latent_qkv(p, ...)       rec_latent_qkv_(HERE(p), __VA_ARGS__)
#define rec_head_values(p, ...)      rec_head_values_(HERE(p), __VA_ARGS__)
#define rec_split_columns(p, ...)    rec_split_columns_(HERE(p), __VA_ARGS__)
#define rec_latent_cached(p, ...)    rec_latent_cached_(HERE(p), __VA_ARGS__)
#define rec_delta_rule(p, ...)       rec_delta_rule_(HERE(p), __VA_ARGS__)
#define rec_delta_cached(p, ...)     rec_delta_cached_(HERE(p), __VA_ARGS__)
#define rec_gated_norm(p, ...)       rec_gated_norm_(HERE(p), __VA_ARGS__)
#define rec_qknorm(p, ...)           rec_qknorm_(HERE(p), __VA_ARGS__)
#define rec_alibi(p, ...)            rec_alibi_(HERE(p), __VA_ARGS__)
#define rec_scale_queries(p, ...)    rec_scale_queries_(HERE(p), __VA_ARGS__)
#define rec_rope(p, ...)             rec_rope_(HERE(p), __VA_ARGS__)
#define rec_qknorm_rope(p, ...)      rec_qknorm_rope_(HERE(p), __VA_ARGS__)
#define rec_attention(p, ...)        rec_attention_(HERE(p), __VA_ARGS__)
#define rec_tokens_to_heads(p, ...)  rec_tokens_to_heads_(HERE(p), __VA_ARGS__)
#define rec_heads_to_tokens(p, ...)  rec_heads_to_tokens_(HERE(p), __VA_ARGS__)
#define rec_ring_attention(p, ...)   rec_ring_attention_(HERE(p), __VA_ARGS__)
#define rec_ranges_attention(p, ...) rec_ranges_attention_(HERE(p), __VA_ARGS__)
#define rec_attention_cached(p, ...) rec_attention_cached_(HERE(p), __VA_ARGS__)
#define rec_route(p, ...)            rec_route_(HERE(p), __VA_ARGS__)
#define rec_to_experts(p, ...)       rec_to_experts_(HERE(p), __VA_ARGS__)
#define rec_from_experts(p, ...)     rec_from_experts_(HERE(p), __VA_ARGS__)
#define rec_expert_linear(p, ...)    rec_expert_linear_(HERE(p), __VA_ARGS__)
#define rec_add(p, ...)              rec_add_(HERE(p), __VA_ARGS__)
#define rec_scale(p, ...)            rec_scale_(HERE(p), __VA_ARGS__)
#define rec_add_values(p, ...)       rec_add_values_(HERE(p), __VA_ARGS__)
#define rec_cap_logits(p, ...)       rec_cap_logits_(HERE(p), __VA_ARGS__)
#define rec_dropout(p, ...)          rec_dropout_(HERE(p), __VA_ARGS__)
#define rec_linear_ce(p, ...)        rec_linear_ce_(HERE(p), __VA_ARGS__)
#define rec_fp8_commit(p, ...)       rec_fp8_commit_(HERE(p), __VA_ARGS__)
#define rec_fp8_share(p, ...)        rec_fp8_share_(HERE(p), __VA_ARGS__)

/* ---- updates (PROG_UPDATE) --------------------------------------------------------------------
 * Programs of the optimizer: lists that change memory of the plan in place. Given `mesh m`, the plan's regions `int grads`
 * and `int params`, and `int64_t n`:
 *
 *     #include "ops/op_table.h"
 *     prog *p = prog_new("update", PROG_UPDATE, &m, &(param_set){ 0 }, &(prog_options){ 0 });
 *     change_request c = change_of(OP_UPDATE_SGD);
 *     c.in[0] = prog_region(p, "w", grads, 0, DT_F32, n, (placement){ 0 });
 *     c.out[0] = prog_region(p, "w", params, 0, DT_F32, n, (placement){ 0 });
 *     rec_change(p, c);
 *     TRY(prog_finish(p));
 */
/* @return n elements of a plan region, from element `at` on. They may reach into the regions after it, as plan_offset
 * lays them out. @param name borrowed */
val prog_region(prog *p, const char *name, int region, int64_t at, dtype dt, int64_t n,
                placement pl);
/* @return fp32 values that live within the list. */
val prog_scratch(prog *p, int ndim, const int64_t *dim, placement pl);
/* Likewise, of any type; and of the type, dims and placement of another value. */
val prog_scratch_of(prog *p, dtype dt, int ndim, const int64_t *dim, placement pl);
val prog_scratch_like(prog *p, val other);
/* @return elements of another value, from element `at` on, with its placement. */
val prog_elements(prog *p, val of, int64_t at, int ndim, const int64_t *dim);
/* Likewise, as a matrix with placement `pl`. */
val prog_shard(prog *p, val of, int64_t at, const int64_t dim[2], placement pl);
/* @return the step_state that kernels carry from step to step. */
val prog_step_state(prog *p);
/* An op that changes its results in place: operands and results in the order of the op's signature. */
typedef struct change_request {
    op_code op;
    val in[OP_MAX_IN], out[OP_MAX_OUT];
    op_attr attr;
    bool add; /* to the results that it would overwrite */
    device_queue queue;
} change_request;
change_request change_of(op_code op); /* without operands */
void rec_change_(prog *p, change_request c);
/* @return x after a collective over these axes: in place if it is summed, else in scratch memory; x itself where the
 * axes have one rank. */
val rec_moved_(prog *p, val x, axis_set axes, place to);
void rec_move_into_(prog *p, val x, axis_set axes, place to, val into);
/* Sums x over any set of axes, where it is, whatever its placement: gradients that are not reduced yet. */
void rec_sum_over_(prog *p, val x, axis_set axes);
/* Two ranks send each other as many elements. One of them sends first: a message may wait for its receiver. */
typedef struct exchange_spec {
    axis_set axes;
    int peer, channel; /* as in comm_move */
    bool sends_first;
} exchange_spec;
void rec_exchange_(prog *p, val mine, val theirs, exchange_spec e);
#define rec_exchange(p, ...)  rec_exchange_(HERE(p), __VA_ARGS__)
#define rec_change(p, ...)    rec_change_(HERE(p), __VA_ARGS__)
#define rec_moved(p, ...)     rec_moved_(HERE(p), __VA_ARGS__)
#define rec_move_into(p, ...) rec_move_into_(HERE(p), __VA_ARGS__)
#define rec_sum_over(p, ...)  rec_sum_over_(HERE(p), __VA_ARGS__)

#endif
