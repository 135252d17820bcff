/* choices: what options of a few values can be set to, each value in one row. Depends on nothing.
 *
 *     ROW(symbol, text, traits, help)
 *
 * A row yields the enum value, the text that YAML and the command line take, and its part of --help
 * and docs/config.md ("": the text explains itself). What a value stands for is given where it is
 * implemented, by a table or a function per row that is built from the same list:
 *
 *     #define FALL(symbol, text, traits, help) [symbol] = fall_##symbol,
 *     ... falls[] = { DECAY_KINDS(FALL) }
 *
 * so that a row without its fall_ does not compile. Where a switch decides it has no default: the
 * compiler names the missing case. Where a comparison decides, CHOICE_DECIDED beside it fails to
 * compile once there is another row. `traits` are facts about a value that conditions of options
 * (options.def) read, as type_traits[value]. The order of rows is free: files hold texts. */
#ifndef INGOT_CHOICES_H
#define INGOT_CHOICES_H

/* clang-format off */
#define NORM_KINDS(ROW)                                                                            \
    ROW(NORM_RMS, "rms", 0, "")                                                                    \
    ROW(NORM_LAYER, "layer", 0, "")
#define NORM_POSITIONS(ROW)                                                                        \
    ROW(NORM_PRE, "pre", 0, "each branch's input")                                                 \
    ROW(NORM_POST, "post", 0, "its output")                                                        \
    ROW(NORM_BOTH, "both", 0, "each branch's input and its output")
/* Traits of an activation. */
enum { MLP_GATED = 1 };
#define MLP_KINDS(ROW)                                                                             \
    ROW(MLP_SWIGLU, "swiglu", MLP_GATED, "")                                                               \
    ROW(MLP_GELU_TANH, "gelu", 0, "the tanh approximation")                                        \
    ROW(MLP_GELU_ERF, "gelu_erf", 0, "exact")                                                      \
    ROW(MLP_RELU2, "relu2", 0, "max(0, x)^2")                                                      \
    ROW(MLP_GEGLU, "geglu", MLP_GATED, "GELU of the gate, the tanh approximation")                 \
    ROW(MLP_GEGLU_ERF, "geglu_erf", MLP_GATED, "exact GELU of the gate")                           \
    ROW(MLP_SWIGLU_CLAMPED, "swiglu_clamped", MLP_GATED,                                           \
        "(up + 1) gate sigmoid(swiglu_alpha gate), of values within swiglu_limit")
#define QKNORM_KINDS(ROW)                                                                          \
    ROW(QKNORM_NONE, "none", 0, "")                                                                \
    ROW(QKNORM_HEAD, "head", 0, "per head")                                                        \
    ROW(QKNORM_FULL, "full", 0, "over all heads")
#define INIT_SCHEMES(ROW)                                                                          \
    ROW(INIT_BY_STD, "normal", 0, "of the standard deviation model.init_std")                      \
    ROW(INIT_BY_FAN_IN, "uniform", 0, "of the standard deviation 1/sqrt(inputs)")                  \
    ROW(INIT_FLAT, "flat", 0, "as normal, and the last matrix of each branch is not divided by sqrt(2 layers)") \
    ROW(INIT_SMALL, "small", 0, "normal of the standard deviation sqrt(2/(5 dim)), tables too; of the last matrix of each branch 2/(layers sqrt(dim))")
#define POS_KINDS(ROW)                                                                             \
    ROW(POS_ROPE, "rope", 0, "")                                                                   \
    ROW(POS_LEARNED, "learned", 0, "")                                                             \
    ROW(POS_NONE, "none", 0, "")                                                                   \
    ROW(POS_ALIBI, "alibi", 0, "scores fall linearly with the distance")
#define ROPE_SCALING_KINDS(ROW)                                                                    \
    ROW(ROPE_PLAIN, "none", 0, "")                                                                 \
    ROW(ROPE_LLAMA3, "llama3", 0, "")                                                              \
    ROW(ROPE_LINEAR, "linear", 0, "all by one factor")                                             \
    ROW(ROPE_DYNAMIC, "dynamic", 0,                                                                \
        "none up to model.max_seq_len; programs that go beyond it stretch by the factor")          \
    ROW(ROPE_YARN, "yarn", 0, "")                                                                  \
    ROW(ROPE_LONG, "longrope", 0,                                                                  \
        "each by a factor of its own, of two lists: for sequences up to and beyond the original context")
#define ROUTER_KINDS(ROW)                                                                          \
    ROW(ROUTER_SOFTMAX, "softmax", 0, "")                                                          \
    ROW(ROUTER_SIGMOID, "sigmoid", 0, "")
#define CFG_DTYPES(ROW)                                                                            \
    ROW(CFG_FP32, "fp32", 0, "")                                                                   \
    ROW(CFG_BF16, "bf16", 0, "")                                                                   \
    ROW(CFG_FP16, "fp16", 0, "")                                                                   \
    ROW(CFG_FASTEST, "fastest", 0, "bf16 where the device supports it in hardware, else fp32")
/* Traits of a recipe. */
enum { FP8_KEEPS_HISTORY = 1 };
#define FP8_RECIPES(ROW)                                                                           \
    ROW(FP8_OFF, "off", 0, "")                                                                     \
    ROW(FP8_CURRENT, "current", 0, "scale by the tensor's own maximum")                            \
    ROW(FP8_DELAYED, "delayed", FP8_KEEPS_HISTORY, "by the maximum of the last 16 steps, which is faster")
#define OPS_KINDS(ROW)                                                                             \
    ROW(OPS_AUTO, "auto", 0, "a GPU where the build and the machine have one, else the CPU")       \
    ROW(OPS_CPU, "cpu", 0, "")                                                                     \
    ROW(OPS_CUDA, "cuda", 0, "")
#define OPS_GEMM_KINDS(ROW)                                                                        \
    ROW(OPS_GEMMS_CUBLASLT, "cublaslt", 0, "cuBLASLt's")                                           \
    ROW(OPS_GEMMS_FASTEST, "fastest", 0,                                                           \
        "for each shape the faster of cuBLASLt's and, on Hopper in 16 bits, ingot's own")          \
    ROW(OPS_GEMMS_OWN, "own", 0, "ingot's own wherever it fits")
/* Traits of an optimizer: the settings that its rules read beside optimizer.lr and weight_decay. */
enum { OPTIM_READS_BETAS = 1, OPTIM_READS_EPS = 2, OPTIM_READS_MOMENTUM = 4, OPTIM_READS_POLAR = 8 };
#define OPTIM_KINDS(ROW)                                                                           \
    ROW(OPTIM_SGD, "sgd", 0, "")                                                                   \
    ROW(OPTIM_MOMENTUM, "momentum", OPTIM_READS_MOMENTUM, "SGD with momentum")                     \
    ROW(OPTIM_ADAM, "adam", OPTIM_READS_BETAS | OPTIM_READS_EPS,                                   \
        "weight decay is added to the gradient")                                                   \
    ROW(OPTIM_ADAMW, "adamw", OPTIM_READS_BETAS | OPTIM_READS_EPS,                                 \
        "weights decay by themselves")                                                             \
    ROW(OPTIM_ADAFACTOR, "adafactor", 0, "second moments by row and column")                       \
    ROW(OPTIM_LION, "lion", OPTIM_READS_BETAS, "the sign of a first moment")                       \
    ROW(OPTIM_ADAM8BIT, "adam8bit", OPTIM_READS_BETAS | OPTIM_READS_EPS,                           \
        "AdamW with moments of 8 bits")                                                            \
    ROW(OPTIM_MUON, "muon",                                                                        \
        OPTIM_READS_MOMENTUM | OPTIM_READS_BETAS | OPTIM_READS_EPS | OPTIM_READS_POLAR,            \
        "orthogonalized momentum for the blocks' matrices, AdamW for the rest")
#define CFG_RECIPES(ROW)                                                                           \
    ROW(CFG_RECIPE_AUTO, "auto", 0,                                                                \
        "fast for a new run with random weights of less than 4e9 parameters, if nothing else of "  \
        "this section but master and offload and nothing of lr_scheduler is given; else none")     \
    ROW(CFG_RECIPE_FAST, "fast", 0,                                                                \
        "Muon, AdamW for tables, head and vectors, and rates that follow width and batch")         \
    ROW(CFG_RECIPE_NONE, "none", 0, "the default that each option has")
#define CFG_MASTERS(ROW)                                                                           \
    ROW(CFG_MASTER_FP32, "fp32", 0, "")                                                            \
    ROW(CFG_MASTER_BF16, "bf16", 0, "needs precision bf16 and uses stochastic rounding")
#define CFG_LR_SCALINGS(ROW)                                                                       \
    ROW(CFG_LR_PLAIN, "none", 0, "")                                                               \
    ROW(CFG_LR_LINEAR, "linear", 0, "")                                                            \
    ROW(CFG_LR_SQRT, "sqrt", 0, "with its square root")
/* Traits of a schedule. */
enum { SCHED_FALLS = 1, SCHED_FALLS_AT_END = 2 };
#define SCHED_KINDS(ROW)                                                                           \
    ROW(SCHED_CONSTANT, "constant", 0, "")                                                         \
    ROW(SCHED_COSINE, "cosine", SCHED_FALLS, "")                                                   \
    ROW(SCHED_LINEAR, "linear", SCHED_FALLS, "")                                                   \
    ROW(SCHED_WSD, "wsd", SCHED_FALLS | SCHED_FALLS_AT_END, "constant, then a final decay")
#define DECAY_KINDS(ROW)                                                                           \
    ROW(DECAY_COSINE, "cosine", 0, "")                                                             \
    ROW(DECAY_LINEAR, "linear", 0, "")                                                             \
    ROW(DECAY_EXPONENTIAL, "exponential", 0, "")                                                   \
    ROW(DECAY_SQRT, "sqrt", 0, "")
#define WD_SCHEDULES(ROW)                                                                          \
    ROW(WD_CONSTANT, "constant", 0, "")                                                            \
    ROW(WD_LINEAR, "linear", 0, "to 0 at the end of the run")                                      \
    ROW(WD_COSINE, "cosine", 0, "likewise, as a cosine")                                           \
    ROW(WD_LR, "lr", 0, "in proportion to the learning rate")
#define RAW_DTYPES(ROW)                                                                            \
    ROW(RAW_GUESS, "auto", 0, "inferred from the values")                                          \
    ROW(RAW_UINT16, "uint16", 0, "")                                                               \
    ROW(RAW_UINT32, "uint32", 0, "")                                                               \
    ROW(RAW_INT64, "int64", 0, "")
/* Traits of packing: which windows are made of pieces of indexed documents. */
enum { PACK_BY_DOCUMENT = 1 };
#define DATA_PACKINGS(ROW)                                                                         \
    ROW(PACK_CONCAT, "concat", 0, "back to back, a sequence every seq_len tokens")                 \
    ROW(PACK_BEST_FIT, "best_fit", PACK_BY_DOCUMENT,                                               \
        "packed by best fit, which truncates fewer of them")                                       \
    ROW(PACK_ALIGNED, "aligned", PACK_BY_DOCUMENT,                                                 \
        "every sequence begins with a document, and what does not fit of its last one is not read")
/* Traits of recompute. */
enum { AC_OF_BLOCKS = 1 };
#define CFG_RECOMPUTES(ROW)                                                                        \
    ROW(CFG_AC_NONE, "none", 0, "")                                                                \
    ROW(CFG_AC_FULL, "full", AC_OF_BLOCKS, "recompute every block")                                \
    ROW(CFG_AC_EVERY, "every", AC_OF_BLOCKS, "store the input of every N-th block")                \
    ROW(CFG_AC_SQRT, "sqrt", AC_OF_BLOCKS, "store about sqrt(layers) block inputs")                \
    ROW(CFG_AC_SELECTIVE, "selective", 0, "recompute cheap ops only")
/* Traits of a pipeline schedule; without any it is 1F1B. */
enum { PIPE_ALL_FORWARD_FIRST = 1, PIPE_TAKES_CHUNKS = 2, PIPE_SPLITS_BACKWARD = 4 };
#define PIPELINE_SCHEDULES(ROW)                                                                    \
    ROW(PIPE_1F1B, "1F1B", 0, "forward and backward alternate")                                    \
    ROW(PIPE_GPIPE, "GPipe", PIPE_ALL_FORWARD_FIRST, "all forward, then all backward")                                  \
    ROW(PIPE_INTERLEAVED, "Interleaved1F1B", PIPE_TAKES_CHUNKS,                                                    \
        "several chunks of layers per rank, for less idle time")                                   \
    ROW(PIPE_ZERO_BUBBLE, "ZeroBubble", PIPE_SPLITS_BACKWARD, "weight gradients fill the idle time")
#define CFG_RESHARDS(ROW)                                                                          \
    ROW(CFG_RESHARD_DEFAULT, "default", 0,                                                         \
        "never with a pipeline, whose microbatches would each gather them, unless parameters are " \
        "offloaded; else always")                                                                  \
    ROW(CFG_RESHARD_ALWAYS, "always", 0, "")                                                       \
    ROW(CFG_RESHARD_NEVER, "never", 0,                                                             \
        "gathered once per step, so that every rank holds all of them")
#define CFG_WIRES(ROW)                                                                             \
    ROW(CFG_WIRE_SAME, "default", 0, "")                                                           \
    ROW(CFG_WIRE_BF16, "bf16", 0, "")                                                              \
    ROW(CFG_WIRE_FP16, "fp16", 0, "")
#define MONITOR_PRESET_ROWS(ROW)                                                                   \
    ROW(MONITOR_LOOSE, "loose", 0, "")                                                             \
    ROW(MONITOR_NORMAL, "normal", 0, "")                                                           \
    ROW(MONITOR_STRICT, "strict", 0, "")                                                           \
    ROW(MONITOR_OFF, "off", 0, "only values that are not finite, and saves and logs that fail")
#define CONTEXT_MODES(ROW)                                                                         \
    ROW(CONTEXT_ULYSSES, "ulysses", 0, "an all-to-all exchanges tokens for heads, and back")       \
    ROW(CONTEXT_RING, "ring", 0, "keys and values pass from rank to rank")
#define NCCL_ALGORITHMS(ROW)                                                                       \
    ROW(NCCL_BY_SIZE, "auto", 0, "NCCL chooses by size, or NCCL_ALGO does")                        \
    ROW(NCCL_BY_RING, "ring", 0, "the fewest bytes")                                               \
    ROW(NCCL_BY_TREE, "tree", 0, "the fewest steps")

/* Every list above with the type it yields. */
#define CHOICE_TYPES(TYPE)                                                                         \
    TYPE(norm_kind, NORM_KINDS)                                                                    \
    TYPE(norm_position_kind, NORM_POSITIONS)                                                       \
    TYPE(mlp_kind, MLP_KINDS)                                                                      \
    TYPE(qknorm_kind, QKNORM_KINDS)                                                                \
    TYPE(init_scheme, INIT_SCHEMES)                                                                \
    TYPE(pos_kind, POS_KINDS)                                                                      \
    TYPE(rope_scaling_kind, ROPE_SCALING_KINDS)                                                    \
    TYPE(router_kind, ROUTER_KINDS)                                                                \
    TYPE(cfg_dtype, CFG_DTYPES)                                                                    \
    TYPE(fp8_recipe, FP8_RECIPES)                                                                  \
    TYPE(ops_kind, OPS_KINDS)                                                                      \
    TYPE(ops_gemms, OPS_GEMM_KINDS)                                                                \
    TYPE(optim_kind, OPTIM_KINDS)                                                                  \
    TYPE(cfg_recipe, CFG_RECIPES)                                                                  \
    TYPE(cfg_master, CFG_MASTERS)                                                                  \
    TYPE(cfg_lr_scaling, CFG_LR_SCALINGS)                                                          \
    TYPE(sched_kind, SCHED_KINDS)                                                                  \
    TYPE(decay_kind, DECAY_KINDS)                                                                  \
    TYPE(wd_schedule, WD_SCHEDULES)                                                                \
    TYPE(raw_dtype, RAW_DTYPES)                                                                    \
    TYPE(data_packing, DATA_PACKINGS)                                                              \
    TYPE(cfg_recompute, CFG_RECOMPUTES)                                                            \
    TYPE(pipeline_schedule, PIPELINE_SCHEDULES)                                                    \
    TYPE(cfg_reshard, CFG_RESHARDS)                                                                \
    TYPE(cfg_wire, CFG_WIRES)                                                                      \
    TYPE(monitor_preset, MONITOR_PRESET_ROWS)                                                      \
    TYPE(context_mode, CONTEXT_MODES)                                                              \
    TYPE(nccl_algorithm, NCCL_ALGORITHMS)

/* The enums; type_count; type_traits. The count is not a value of the enum, so that a switch over all
 * values is complete without it. */
#define CHOICE_SYMBOL(symbol, text, traits, help) symbol,
#define CHOICE_ONE(symbol, text, traits, help)    +1
#define CHOICE_ENUM(type, ROWS)                                                                    \
    typedef enum { ROWS(CHOICE_SYMBOL) } type;                                                     \
    enum { type##_count = 0 ROWS(CHOICE_ONE) };                                                    \
    extern const int type##_traits[];
CHOICE_TYPES(CHOICE_ENUM)
#undef CHOICE_ENUM

/* States that the code at this place knows all n rows of the type. */
#define CHOICE_DECIDED(type, n)                                                                    \
    _Static_assert(type##_count == (n), #type " has a new row: decide here what it does")
/* clang-format on */

#endif
