/* model: architectures. One table holds every fact (config/model_facts.def), one every parameter
 * (params.c), and one block function records every family. Depends on prog and config.
 *
 * Given `model_layout layout`, a batch of `int64_t tokens` in sequences of `int64_t seq`, and `uint64_t
 * seed`:
 *
 *     model_config c;
 *     int id;
 *     TRY(model_preset("llama3-8b", &c));
 *     model *m;
 *     TRY(model_new(&c, &layout, &m));
 *     plan *p = plan_new(&layout.mesh, ops_cpu(OPS_ISA_BEST), 2);
 *     model_reserve(m, p, true);                               // parameters and gradients
 *     chain train;
 *     TRY(model_record(m, PROG_TRAIN, tokens, seq, &train));
 *     TRY(plan_chain(p, &train, model_bucket_regions, m, &id));
 *     TRY(plan_commit(p));
 *     model_init(m, p, seed);
 *
 * A new architecture is: rows of the fact table for what is new about it, rows of params.c that
 * these turn on, a branch in blocks.c, a preset, and a family in checkpoint/hf_families.c.
 */
#ifndef INGOT_MODEL_H
#define INGOT_MODEL_H

#include "config/config.h"
#include "prog/execute.h"

/* A fact that is a list of numbers. */
enum { FACT_MOST = CFG_MAX_NUMBERS };
typedef struct fact_list {
    int n;
    double of[FACT_MOST];
} fact_list;

/* Describes a model, whatever it runs on. The members are those of config/model_facts.def. */
typedef struct model_config {
    char name[48];
#define MODEL_INT(key, member, type, ...)    type member;
#define MODEL_REAL(key, member, ...)         double member;
#define MODEL_BOOL(key, member, ...)         bool member;
#define MODEL_CHOICE(key, member, type, ...) type member;
#define MODEL_LIST(key, member, ...)         fact_list member;
#include "config/model_facts.def"
} model_config;

/* ---- facts --------------------------------------------------------------------------------
 * The members as data, in the order of the table, for what treats all of them alike: options,
 * checkpoints, comparison, exchange. Every legal value is exact in a double, but that of a list, of which the double is
 * the length. */
typedef enum { FACT_INT, FACT_REAL, FACT_BOOL, FACT_CHOICE, FACT_LIST } fact_type;
/* When a fact matters to a model c: FACT_OF_NAME in the fact's row, the condition (facts.c evaluates it; `scaling` is that of
 * rotary positions), and its words. */
// clang-format off
#define FACT_ROPE_CONDITIONS(X) \
    X(ROPE, c->pos == POS_ROPE, "model.positions=rope") \
    X(SCALED_ROPE, scaling != ROPE_PLAIN, "model.rope_scaling other than none") \
    X(ROPE_CONTEXT, scaling == ROPE_LLAMA3 || scaling == ROPE_YARN || scaling == ROPE_LONG, "model.rope_scaling=llama3, yarn or longrope") \
    X(LLAMA3, scaling == ROPE_LLAMA3, "model.rope_scaling=llama3") \
    X(YARN, scaling == ROPE_YARN, "model.rope_scaling=yarn") \
    X(LONG_ROPE, scaling == ROPE_LONG, "model.rope_scaling=longrope") \
    X(ROPE_ATTENTION, scaling == ROPE_YARN || scaling == ROPE_LONG, "model.rope_scaling=yarn or longrope")
#define FACT_CONDITIONS(X) FACT_ROPE_CONDITIONS(X) \
    X(ALIBI, c->pos == POS_ALIBI, "model.positions=alibi") \
    X(PARALLEL, c->parallel, "model.parallel_branches=true") \
    X(MUP, c->mup, "model.mup=true") \
    X(LAYER_NORM, c->norm == NORM_LAYER, "model.norm=layer") \
    X(NO_BIAS, !c->bias, "model.bias=false") \
    X(EXPERTS, c->experts > 0, "model.experts above 0") \
    X(NOPE, has_unrotated(c), "layers without positions (model.layer_pattern)") \
    X(TEMPERATURE, c->temperature > 0, "model.attention_temperature above 0") \
    X(SHARED, c->experts > 0 && c->shared_experts > 0, "model.shared_experts above 0") \
    X(GROUPS, c->experts > 0 && c->groups > 1, "model.expert_groups above 1") \
    X(CLAMPED, c->mlp == MLP_SWIGLU_CLAMPED, "model.activation=swiglu_clamped") \
    X(QK_NORM, c->qknorm != QKNORM_NONE, "model.qk_norm other than none") \
    X(WINDOW, c->window > 0, "model.sliding_window above 0") \
    X(LATENT, c->kv_latent > 0, "model.kv_latent_dim above 0") \
    X(DELTA, model_has_delta(c), "gated DeltaNet layers (model.layer_pattern)") \
    X(INIT_STD, c->init != INIT_SMALL, "model.init other than small") \
    X(UNTIED, !c->tied, "model.tie_embeddings=false") \
    X(ROUTER_BIAS, c->experts > 0 && c->router_bias, "model.router_bias=true")
// clang-format on
enum {
#define X(name, holds, needs) FACT_CONDITION_##name,
    FACT_CONDITIONS(X)
#undef X
        FACT_CONDITION_COUNT
};
_Static_assert(FACT_CONDITION_COUNT <= 28, "the flags of a fact are an int");
typedef enum fact_flag {
    FACT_REQUIRED = 1, /* no default: every preset and every checkpoint states it */
    FACT_TRAINING = 2, /* changes how a model is trained, not what trained weights compute */
#define X(name, holds, needs) FACT_OF_##name = 4 << FACT_CONDITION_##name,
    FACT_CONDITIONS(X)
#undef X
#define X(name, holds, needs) | FACT_OF_##name
        FACT_OF_ANY_ROPE = 0 FACT_ROPE_CONDITIONS(X),
#undef X
} fact_flag;
typedef struct model_fact {
    const char *key;  /* in checkpoints: "qk_norm" */
    const char *name; /* of the option: "model.qk_norm" */
    fact_type type;
    int flags;        /* fact_flag, ored */
    double fallback;  /* the default; 0 where FACT_REQUIRED */
    double min, max;  /* legal values, both ends included */
    size_t at, size;  /* of the member in a model_config */
    size_t option_at; /* of the option in a config */
} model_fact;
int model_facts(void);
const model_fact *model_fact_at(int i);
const model_fact *model_fact_find(const char *key); /* NULL: none */
double model_fact_get(const model_fact *f, const model_config *c);
void model_fact_set(const model_fact *f, model_config *c, double value);      /* a list: 0 alone */
const fact_list *model_fact_list(const model_fact *f, const model_config *c); /* of FACT_LIST */
void model_fact_set_list(const model_fact *f, model_config *c, const fact_list *list);
void model_fact_copy(const model_fact *f, const model_config *from, model_config *to);
bool model_fact_same(const model_fact *f, const model_config *a, const model_config *b);
/* Sets the fact to the option's value, unless that is left to the preset. */
void model_fact_take_option(const model_fact *f, const config *cfg, model_config *c);
/* @return whether the fact matters to this model: rope_theta does not where positions are learned. */
bool model_fact_applies(const model_fact *f, const model_config *c);
/* Refuses options of the model section that were set and do not matter to this model, as
 * config_refuse_idle does. */
err model_check_idle(const config *cfg, const model_config *c, bool log) MUST_USE;
bool model_fact_legal(const model_fact *f, double value); /* of a list, a number of it */
bool model_fact_legal_in(const model_fact *f, const model_config *c); /* the model's own value */
/* Writes a value as its option takes it, that of a model, or what values are legal, into buf, which is returned. A list that is
 * too long for buf is cut. */
char *model_fact_text(const model_fact *f, double value, char *buf, size_t n);
char *model_fact_shown(const model_fact *f, const model_config *c, char *buf, size_t n);
char *model_fact_expects(const model_fact *f, char *buf, size_t n);
/* @return the first fact from number `from` on that matters to a or b and in which they differ, -1
 * when there is none. */
int model_config_diff(const model_config *a, const model_config *b, int from);
/* Sets every fact to its default, and the name to "". */
void model_config_init(model_config *c);
/* Sets the facts that do not matter to this model to their defaults, and a base of the layers with a window that is
 * that of all layers to 0. */
void model_config_normalize(model_config *c);
/* Describes what the trained weights of a muP model compute without muP: by factors of scores and logits. */
void model_config_without_mup(model_config *c);

/* Fills c from a preset; an unknown name is an error that lists near ones. MODEL_CUSTOM is one without
 * sizes, for models that the other options describe. */
#define MODEL_CUSTOM "custom"
err model_preset(const char *name, model_config *c) MUST_USE;
const char *model_preset_name(int i); /* NULL past the end */
/* The preset named in the config, changed by the section's other options. */
err model_from_config(const config *cfg, model_config *c) MUST_USE;
/* The reverse: sets every option of the section that matters to this model, the others to auto. */
void model_to_config(const model_config *c, config *cfg);
/* An error when facts contradict one another: heads and width, rope and head size, ... */
err model_check(const model_config *c) MUST_USE;

/* The dimensions of a head that rotate, two by two, and the angle by which pair j turns per position.
 * @param length of the sequences, which longrope reads; 0: without the model's rope_scaling */
int64_t rope_dims(const model_config *c);
double rope_factor_of(
    const model_config *c); /* of rotated queries and keys, where scaling has one */
double rope_frequency(const model_config *c, int64_t j, int64_t length);
/* Sequences of more tokens have rotary frequencies of their own (longrope); INT64_MAX: none have. */
int64_t rope_switch(const model_config *c);

/* ---- the parameter table ----------------------------------------------------------------- */
typedef enum {
    INIT_NORMAL,
    INIT_NORMAL_DEPTH,
    INIT_ONES,
    INIT_ZEROS,
    INIT_RESIDUAL_FACTOR, /* factors of model.layer_scalars, by layer, and of model.backout */
    INIT_EMBED_FACTOR,
    INIT_MIDDLE_FACTOR,
    INIT_LOG_UNIFORM,   /* logarithms of uniform numbers from 0.01 to 16: rates of decay */
    INIT_SMALL_UNIFORM, /* uniform numbers from 0 to 0.02: gates that start slightly open */
} init_kind;
/* The roles of matrices in µP, and everything that is not a matrix. */
/* STATE is not a weight: what a step leaves for the next, such as a router's bias. Its gradient is what the
 * update derives it from, and is not part of any norm. */
typedef enum { ROLE_INPUT, ROLE_HIDDEN, ROLE_OUTPUT, ROLE_VECTOR, ROLE_STATE } param_role;

/* A parameter as checkpoints, optimizers and Hugging Face see it: one part, one layer. */
typedef struct model_param {
    char name[64]; /* "l3.attn.q" */
    char base[32]; /* "attn.q" */
    int layer;     /* -1: outside the blocks */
    int ndim;
    int64_t dim[2];    /* of the whole model */
    int64_t local[2];  /* of this tp rank; of a token table, a rank may have none */
    int64_t first[2];  /* where its elements begin in the whole one */
    placement pl;      /* I, or S over tp */
    axis_set apart;    /* along these, ranks hold other experts: local is 0 where this one is not */
    axis_set repeated; /* ranks along these hold the same elements of a sharded one */
    init_kind init;
    param_role role;
    int64_t fan_in;
    bool decay;         /* matrices only */
    const char *module; /* "embed", "attn", "mlp", "norm", "head" */
    int bucket;
    int64_t offset; /* of its first local element in the bucket */
} model_param;

/* ---- a model laid out on ranks ----------------------------------------------------------- */
typedef struct model_layout {
    mesh mesh;
    dtype dt;       /* of GEMMs and activations */
    dtype residual; /* the residual between blocks; DT_NONE: dt */
    dtype master;   /* of the weights of modules that compute in bf16: DT_F32 (or DT_NONE) beside a
                     * copy in bf16, or DT_BF16 without one */
    const char *modules; /* "head=fp32,mlp=bf16": overrides; NULL: none */
    bool sequence_parallel;
    int tp_chunks; /* most chunks of rows whose communication over tp overlaps; 0 reads as 1 */
    int64_t tp_chunk_rows; /* least rows of a chunk, on a rank */
    context_mode context;  /* where cp has several ranks; these need seq */
    pipeline pipe;         /* how ranks along pp share the blocks; its ranks are the mesh's */
    int zero;              /* ZeRO's stage, over dp_shard, cp and ep (prog/record.h) */
    int prefetch;          /* as in chain (prog/plan.h), with keep_gathered */
    bool keep_gathered;
    bool offload_params; /* parameters are in host memory, and fetched when programs use them */
    int64_t
        whole_below; /* ZeRO-3, offload_params: parameters of fewer elements stay whole on the device */
    int64_t bucket_bytes; /* most of a bucket, as fp32, but for a single parameter; 0: no limit */
    dtype gather_wire, reduce_wire; /* as in prog_bucket; of gathers while programs run */
    bool keeps_half_grad; /* that of the first half of a step is measured (model_half_tied) */
    bool selective;       /* recompute cheap ops */
    fp8_recipe fp8;       /* of the blocks' linear layers; FP8_OFF: none is in fp8 */
    const char *fp8_skip; /* layers left out of fp8, by name or module: "attn.o,mlp"; NULL: none */
    bool fp8_head;        /* the output layer is trained in fp8, beside the blocks' */
    int64_t seq;          /* tokens in a row of a training batch; 0: not known */
    bool documents;       /* a row may hold several documents */
    int64_t logit_bytes;  /* as in prog_options */
    float label_smoothing, z_loss; /* of the training loss, as in op_attr */
} model_layout;

/* The largest tensor_parallel_degree up to tp, and the smallest above it, that the model can be sharded over; 0:
 * there is none. */
int model_tp_below(const model_config *c, int tp);
/* Sets how many tp ranks hold the same key/value heads: mesh.tp_rep, which comm needs too. An error when tp
 * cannot shard the model. */
err model_split_tp(const model_config *c, mesh *m) MUST_USE;

typedef struct model model;
err model_new(const model_config *c, const model_layout *l, model **out) MUST_USE;
void model_free(model *m); /* takes NULL; frees the programs it recorded */
const model_config *model_conf(const model *m);
const model_layout *model_lay(const model *m);
int model_params(const model *m);
const model_param *model_param_at(const model *m, int i);
int model_find_param(const model *m, const char *name); /* -1: none */
int64_t model_count(const model_config *c);             /* parameters of the whole model */
int64_t model_count_active(
    const model_config *c); /* those that one token uses: of experts, its own */
int64_t model_count_role(const model_config *c, param_role role);
/* Whether this layer has experts; else its feed-forward layer is dense. */
bool model_has_experts(const model_config *c, int layer);
/* The digit of model.layer_pattern that describes a layer, whether or not the model has a pattern. */
int model_layer_kind(const model_config *c, int layer);
/* Whether some layers are gated DeltaNet: generation keeps a state that no position can be removed from. */
bool model_has_delta(const model_config *c);
/* The dimension of a head's values. */
int64_t model_value_dim(const model_config *c);
/* The experts' hidden dimension. */
int64_t model_expert_dim(const model_config *c);
/* Floating point operations per token, forward and backward. Attention counts all of `seq` keys, or
 * only the half that causal attention reads. */
double model_flops(const model_config *c, int64_t seq, bool causal);

/* Records a chain for n tokens (of this rank's sequences), positions below `positions`. */
err model_record(model *m, prog_mode mode, int64_t n, int64_t positions, chain *out) MUST_USE;
/* Records an EVAL chain whose tokens attend to up to MODEL_RANGES ranges (model_batch), so that sequences may share a beginning.
 * For one rank, and models without a window (model_can_share). */
enum { MODEL_RANGES = 3 };
bool model_can_share(const model *m);
err model_record_shared(model *m, int64_t n, int64_t positions, chain *out) MUST_USE;
/* Records a DECODE chain with a cache of several sequences, each of `positions` rows. @param beyond these are longer than
 * rope_switch */
err model_record_decode(model *m, int64_t n, int64_t positions, int64_t sequences, bool beyond,
                        chain *out) MUST_USE;
/* Reserves regions of the plan for parameters (the master weights and, where GEMMs read another
 * type, a copy) and, when training, for gradients. */
void model_reserve(model *m, plan *p, bool train);
bucket_regions model_bucket_regions(void *m, int bucket, int layer);

/* A run of elements in a plan region. */
typedef struct region_at {
    int region; /* -1: none */
    int64_t at; /* element of its beginning */
} region_at;
/* The elements of one bucket of one layer that this rank updates: optimizers and checkpoints iterate over these. */
typedef struct bucket_view {
    const char *name;
    int bucket, layer;
    dtype dt;
    int64_t count;                /* elements this rank updates: all, or with ZeRO its slice */
    int64_t first;                /* index of its first element in the whole bucket */
    region_at master, copy, grad; /* no copy where programs read the master weights themselves */
    dtype master_dt;              /* fp32, or bf16 as model_layout.master states */
    bool host;                    /* master and copy are in host memory */
} bucket_view;
int model_buckets(const model *m);
bucket_view model_bucket(const model *m, int i);
bucket_view model_bucket_grads(const model *m,
                               int i); /* all of it that this rank has gradients of */

/* The part of a parameter that is stored in a bucket view: elements [from, to) of the local parameter,
 * flattened, at offset `at` of the view. @return false when none does. */
typedef struct param_range {
    int64_t from, to, at;
} param_range;
bool model_param_range(const model *m, int param, const bucket_view *b, param_range *out);
/* The elements of a parameter that this rank updates, in its master weights (which must be fp32) or
 * their gradient; NULL when it updates none. This is an address in the plan, which plan_get and
 * plan_put read and write on every backend. @param range may be NULL. */
typedef enum { PARAM_MASTER, PARAM_GRAD } param_buffer;
float *model_param_data(const model *m, const plan *p, int param, param_buffer which,
                        param_range *range);
/* Reads and writes the same elements of the master weights as fp32, whatever their type is. After
 * writing, model_publish. */
err model_weights_get(const model *m, const plan *p, int param, float *to) MUST_USE;
void model_weights_set(const model *m, const plan *p, int param, const float *from);
/* The address of those elements in the plan, and their type; NULL when this rank updates none. */
const void *model_weights_data(const model *m, const plan *p, int param, dtype *dt);
/* The elements that this rank updates; empty when there are none. */
param_range model_weights_range(const model *m, int param);
/* The axes along which ranks update the same elements; how many ranks do, which may be of two pipeline
 * stages; which of them this one is. */
axis_set model_param_same(const model *m, int param);
axis_set model_param_divided(const model *m,
                             int param); /* ... along which they update others of it */
int model_param_copies(const model *m, int param);
int model_param_copy_index(const model *m, int param);
/* Axes along which ranks hold parts of the sum that is a parameter's gradient, before a step's last microbatch reduces
 * it: ranks that have other data, and then tensor-parallel ranks (these form a set of their own, AXES_TP_REP among
 * them). Once the training programs are recorded. */
typedef struct grad_axes {
    axis_set data, tensor;
} grad_axes;
grad_axes model_grad_axes(const model *m, int param);
/* The axes along which ranks have different sequences; those that ZeRO slices parameters over. */
axis_set model_row_axes(const model *m);
axis_set model_slice_axes(const mesh *m);
/* Whether this rank keeps a slice of some bucket only. */
bool model_keeps_slices(const model *m, bucket_buffer which);
/* @return the flat index of a local element in the whole parameter. */
int64_t model_global_index(const model *m, int param, int64_t local);

/* The fp8 scales that one step passes to the next (FP8_DELAYED), those of all layers, in the plan;
 * NULL when there are none. @param count of floats. */
float *model_fp8_rows(const model *m, const plan *p, int64_t *count);

/* After plan_commit. Initializes weights as a function of (seed, parameter, global element), so that
 * they are bit-equal on every layout; makes the copies; fills constants (the RoPE table). */
void model_init(model *m, plan *p, uint64_t seed);
void model_fill_constants(const model *m, plan *p);
/* Makes written master weights what programs read: converts them to the copies that GEMMs read, and
 * gathers what other ranks update (ZeRO 1 and 2). */
err model_publish(const model *m, exec *x) MUST_USE;
/* For the gradient of a table that both ends of a pipeline hold, of the first half of a step, with
 * model_layout.keeps_half_grad: the plan region that keeps what this stage has of it, as far as this rank updates it,
 * and the program that adds the other stage's. */
typedef struct half_tied {
    int region;
    chain_end sum;
} half_tied;
/* @return false: there is no such table here. */
bool model_half_tied(const model *m, half_tied *out);
/* Whether both ends of a pipeline hold the parameter. */
bool model_param_tied(const model *m, int param);

/* A microbatch of this rank's sequences, in loader order: n tokens. Ranks along cp and, with sequence
 * parallelism, tp have the same sequences and divide their tokens. */
typedef struct model_batch {
    const int32_t *tokens, *targets, *pos, *start;
    const int64_t *ids; /* targets and ids are NULL in generation */
    int64_t n;
    int slot;              /* of the inputs (plan_input) */
    const int32_t *ranges; /* [MODEL_RANGES, 2, n] of model_record_shared; NULL: start alone */
    /* [n] the token before each in its sequence, any at position 0, which model.smear reads; NULL: those before them in
     * `tokens` */
    const int32_t *previous;
} model_batch;
/* Copies it to the programs' inputs: of each the part that its recorded placement gives this rank. */
void model_set_batch(const model *m, plan *p, const model_batch *b);
/* @return which of the n tokens of a microbatch is this rank's token i of something placed like this. */
int64_t model_token_index(const model *m, placement pl, int64_t n, int64_t i);

#endif
