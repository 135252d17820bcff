/* The parameter table: every parameter of every family, once. A row states its shape, how tensor
 * parallelism shards it, its initial value and its role. Initialization, optimizers, ZeRO,
 * checkpoints, the plan and Hugging Face exchange all derive from it.
 *
 * A row is one part, as checkpoints name it ("attn.q"). Adjacent rows that one GEMM reads are fused
 * into one parameter for the programs ("attn.qkv"), and parameters lie in buckets, which is what
 * memory, gradients and communication are counted in. */
#include "model_internal.h"

#include <stdlib.h>
#include <string.h>

/* The sizes of a dim, by name. */
/* clang-format off */
typedef enum { NONE, D, Q, KV, F, V, P, HD, E, X, B, H, G, O, HQ, QL, KVL, KVA, KVB, DK, DV, DH, DD, DC, SG } size_name;
/* clang-format on */
/* Channels of a token that the gate of its values reads. */
enum { VALUE_GATE = 12 };
/* Channels of a token that the gate of the previous token's embedding reads. */
enum { SMEAR_GATE = 24 };
/* Properties of a model that a row needs: all of `when` must hold. */
enum {
    LEARNED = 1,       /* learned positions */
    LNORM = 2,         /* layer norms with weights and biases */
    MLPB = 4,          /* biases in the feed-forward layers */
    QKVB = 8,          /* biases on q, k, v */
    QKN = 16,          /* QK-norm per head */
    GATED = 32,        /* gate and up */
    UNTIED = 64,       /* an output layer of its own */
    MLP = 128,         /* a feed-forward layer that every token goes through */
    MOE = 256,         /* routed experts */
    NORMW = 512,       /* norms have weights */
    VALUES = 1024,     /* a table of values */
    OB = 2048,         /* a bias in the attention's output projection */
    NORM2 = 4096,      /* the second branch has a norm of its own */
    BOTH = 8192,       /* norms on the branches' outputs beside those on their inputs */
    SHGATE = 1 << 20,  /* a gate of the shared experts */
    ROUTERB = 1 << 21, /* a learned bias of the router */
    SINKS = 1 << 22,   /* attention sinks */
    SCALARS = 1 << 19, /* factors of the residual and of the embedding */
    BACKOUT = 1 << 18, /* a factor of the residual in the middle */
    SMEAR = 1 << 17,   /* a gate of the previous token's embedding */
};
/* ... of how heads are projected and normalized. */
enum {
    QKFULL = 1 << 24,   /* QK-norm over all heads */
    QDIRECT = 1 << 25,  /* queries are projected from the residual */
    KVDIRECT = 1 << 26, /* keys and values are */
    QLATENT = 1 << 27,  /* queries are projected from a latent vector */
    KVLATENT = 1 << 28, /* keys and values are */
    ATTENTION = 1 << 29,
    OGATE = 1 << 23, /* a gate of the attention's output */
    DELTA = 1 << 30, /* gated DeltaNet in place of attention */
};

typedef struct param_row {
    const char *name;
    const char *fused; /* the parameter that programs see; its parts are adjacent rows */
    const char *module;
    bucket_kind where;
    size_name dim[2];
    place tp;
    init_kind init;
    param_role role;
    int when;
    bool per_expert;
} param_row;

#define S0                                                                                         \
    { PL_S, 0 }
#define S1                                                                                         \
    { PL_S, 1 }
#define I_                                                                                         \
    { PL_I, 0 }
/* clang-format off */
static const param_row table[] = {
    /* name           fused into     module   bucket        shape       tp  initial value      role         when */
    { "embed.tokens",    "embed.tokens",    "embed", BUCKET_FIRST, { V, D },    S0, INIT_NORMAL,       ROLE_INPUT,  0 },
    { "embed.positions", "embed.positions", "embed", BUCKET_FIRST, { P, D },    I_, INIT_NORMAL,       ROLE_INPUT,  LEARNED },
    { "smear.gate",   "smear.gate",  "mix",  BUCKET_FIRST, { SG, NONE }, I_, INIT_SMALL_UNIFORM, ROLE_VECTOR, SMEAR },
    { "smear.factor", "smear.factor", "mix", BUCKET_FIRST, { NONE, NONE }, I_, INIT_ZEROS,     ROLE_VECTOR, SMEAR },
    { "attn.q",       "attn.qkv",    "attn", BUCKET_BLOCK, { Q, D },    S0, INIT_NORMAL,       ROLE_HIDDEN, QDIRECT },
    { "attn.k",       "attn.qkv",    "attn", BUCKET_BLOCK, { KV, D },   S0, INIT_NORMAL,       ROLE_HIDDEN, KVDIRECT },
    { "attn.v",       "attn.qkv",    "attn", BUCKET_BLOCK, { KV, D },   S0, INIT_NORMAL,       ROLE_HIDDEN, KVDIRECT },
    { "attn.q_a",     "attn.a",      "attn", BUCKET_BLOCK, { QL, D },   I_, INIT_NORMAL,       ROLE_HIDDEN, QLATENT },
    { "attn.kv_a",    "attn.a",      "attn", BUCKET_BLOCK, { KVA, D },  I_, INIT_NORMAL,       ROLE_HIDDEN, KVLATENT },
    { "attn.q_b",     "attn.q_b",    "attn", BUCKET_BLOCK, { Q, QL },   S0, INIT_NORMAL,       ROLE_HIDDEN, QLATENT },
    { "attn.kv_b",    "attn.kv_b",   "attn", BUCKET_BLOCK, { KVB, KVL },S0, INIT_NORMAL,       ROLE_HIDDEN, KVLATENT },
    { "attn.o",       "attn.o",      "attn", BUCKET_BLOCK, { D, O },    S1, INIT_NORMAL_DEPTH, ROLE_HIDDEN, ATTENTION },
    { "attn.gate",    "attn.gate",   "attn", BUCKET_BLOCK, { Q, D },    S0, INIT_NORMAL,       ROLE_HIDDEN, OGATE },
    { "delta.q",      "delta.qkv",   "attn", BUCKET_BLOCK, { DK, D },   S0, INIT_NORMAL,       ROLE_HIDDEN, DELTA },
    { "delta.k",      "delta.qkv",   "attn", BUCKET_BLOCK, { DK, D },   S0, INIT_NORMAL,       ROLE_HIDDEN, DELTA },
    { "delta.v",      "delta.qkv",   "attn", BUCKET_BLOCK, { DV, D },   S0, INIT_NORMAL,       ROLE_HIDDEN, DELTA },
    { "delta.z",      "delta.z",     "attn", BUCKET_BLOCK, { DV, D },   S0, INIT_NORMAL,       ROLE_HIDDEN, DELTA },
    { "delta.b",      "delta.ba",    "attn", BUCKET_BLOCK, { DH, D },   S0, INIT_NORMAL,       ROLE_HIDDEN, DELTA },
    { "delta.a",      "delta.ba",    "attn", BUCKET_BLOCK, { DH, D },   S0, INIT_NORMAL,       ROLE_HIDDEN, DELTA },
    { "delta.q.conv", "delta.conv",  "attn", BUCKET_BLOCK, { DK, DC },  S0, INIT_NORMAL,       ROLE_VECTOR, DELTA },
    { "delta.k.conv", "delta.conv",  "attn", BUCKET_BLOCK, { DK, DC },  S0, INIT_NORMAL,       ROLE_VECTOR, DELTA },
    { "delta.v.conv", "delta.conv",  "attn", BUCKET_BLOCK, { DV, DC },  S0, INIT_NORMAL,       ROLE_VECTOR, DELTA },
    { "delta.o",      "delta.o",     "attn", BUCKET_BLOCK, { D, DV },   S1, INIT_NORMAL_DEPTH, ROLE_HIDDEN, DELTA },
    { "attn.values",  "attn.values", "attn", BUCKET_BLOCK, { V, KV },   S1, INIT_NORMAL,       ROLE_INPUT,  VALUES },
    { "attn.values.gate", "attn.values.gate", "attn", BUCKET_BLOCK, { H, G }, S0, INIT_ZEROS,  ROLE_HIDDEN, VALUES },
    { "mlp.gate",     "mlp.up",      "mlp",  BUCKET_BLOCK, { F, D },    S0, INIT_NORMAL,       ROLE_HIDDEN, MLP | GATED },
    { "mlp.up",       "mlp.up",      "mlp",  BUCKET_BLOCK, { F, D },    S0, INIT_NORMAL,       ROLE_HIDDEN, MLP },
    { "mlp.down",     "mlp.down",    "mlp",  BUCKET_BLOCK, { D, F },    S1, INIT_NORMAL_DEPTH, ROLE_HIDDEN, MLP },
    { "moe.router",   "moe.router",  "mlp",  BUCKET_BLOCK, { E, D },    I_, INIT_NORMAL,       ROLE_HIDDEN, MOE },
    { "expert.gate",  "expert.up",   "mlp",  BUCKET_EXPERTS, { X, D },  S0, INIT_NORMAL,       ROLE_HIDDEN, MOE, true },
    { "expert.up",    "expert.up",   "mlp",  BUCKET_EXPERTS, { X, D },  S0, INIT_NORMAL,       ROLE_HIDDEN, MOE, true },
    { "expert.down",  "expert.down", "mlp",  BUCKET_EXPERTS, { D, X },  S1, INIT_NORMAL_DEPTH, ROLE_HIDDEN, MOE, true },
    { "moe.gate",     "moe.gate",    "mlp",  BUCKET_BLOCK, { NONE, D }, I_, INIT_NORMAL,       ROLE_HIDDEN, MOE | SHGATE },
    { "moe.router.b", "moe.router.b", "mlp", BUCKET_BLOCK, { E, NONE }, I_, INIT_ZEROS,        ROLE_VECTOR, MOE | ROUTERB },
    { "expert.gate.b", "expert.up.b", "mlp", BUCKET_EXPERTS, { X, NONE }, S0, INIT_ZEROS,      ROLE_VECTOR, MOE | MLPB, true },
    { "expert.up.b",  "expert.up.b", "mlp",  BUCKET_EXPERTS, { X, NONE }, S0, INIT_ZEROS,      ROLE_VECTOR, MOE | MLPB, true },
    { "expert.down.b", "expert.down.b", "mlp", BUCKET_EXPERTS, { D, NONE }, I_, INIT_ZEROS,    ROLE_VECTOR, MOE | MLPB, true },
    { "attn.sinks",   "attn.sinks",  "attn", BUCKET_BLOCK, { HQ, NONE }, S0, INIT_ZEROS,       ROLE_VECTOR, SINKS },
    { "attn.q.b",     "attn.qkv.b",  "attn", BUCKET_BLOCK, { Q, NONE }, S0, INIT_ZEROS,        ROLE_VECTOR, QKVB | KVDIRECT },
    { "attn.k.b",     "attn.qkv.b",  "attn", BUCKET_BLOCK, { KV, NONE },S0, INIT_ZEROS,        ROLE_VECTOR, QKVB | KVDIRECT },
    { "attn.v.b",     "attn.qkv.b",  "attn", BUCKET_BLOCK, { KV, NONE },S0, INIT_ZEROS,        ROLE_VECTOR, QKVB | KVDIRECT },
    { "attn.gate.b",  "attn.gate.b", "attn", BUCKET_BLOCK, { Q, NONE }, S0, INIT_ZEROS,        ROLE_VECTOR, QKVB | OGATE },
    { "delta.rate",   "delta.rate",  "attn", BUCKET_BLOCK, { DH, NONE },S0, INIT_LOG_UNIFORM,  ROLE_VECTOR, DELTA },
    { "delta.shift",  "delta.shift", "attn", BUCKET_BLOCK, { DH, NONE },S0, INIT_ONES,         ROLE_VECTOR, DELTA },
    { "attn.q_a.b",   "attn.a.b",    "attn", BUCKET_BLOCK, { QL, NONE },I_, INIT_ZEROS,        ROLE_VECTOR, QKVB | QLATENT },
    { "attn.kv_a.b",  "attn.a.b",    "attn", BUCKET_BLOCK, { KVA, NONE },I_, INIT_ZEROS,       ROLE_VECTOR, QKVB | KVLATENT },
    { "mlp.gate.b",   "mlp.up.b",    "mlp",  BUCKET_BLOCK, { F, NONE }, S0, INIT_ZEROS,        ROLE_VECTOR, MLP | MLPB | GATED },
    { "mlp.up.b",     "mlp.up.b",    "mlp",  BUCKET_BLOCK, { F, NONE }, S0, INIT_ZEROS,        ROLE_VECTOR, MLP | MLPB },
    { "attn.o.b",     "attn.o.b",    "attn", BUCKET_BLOCK, { D, NONE }, I_, INIT_ZEROS,        ROLE_VECTOR, OB },
    { "mlp.down.b",   "mlp.down.b",  "mlp",  BUCKET_BLOCK, { D, NONE }, I_, INIT_ZEROS,        ROLE_VECTOR, MLP | MLPB },
    { "norm1.w",      "norm1.w",     "norm", BUCKET_BLOCK, { D, NONE }, I_, INIT_ONES,         ROLE_VECTOR, NORMW },
    { "norm1.b",      "norm1.b",     "norm", BUCKET_BLOCK, { D, NONE }, I_, INIT_ZEROS,        ROLE_VECTOR, LNORM },
    { "norm2.w",      "norm2.w",     "norm", BUCKET_BLOCK, { D, NONE }, I_, INIT_ONES,         ROLE_VECTOR, NORMW | NORM2 },
    { "norm2.b",      "norm2.b",     "norm", BUCKET_BLOCK, { D, NONE }, I_, INIT_ZEROS,        ROLE_VECTOR, LNORM | NORM2 },
    { "attn.norm.w",  "attn.norm.w", "norm", BUCKET_BLOCK, { D, NONE }, I_, INIT_ONES,         ROLE_VECTOR, NORMW | BOTH },
    { "attn.norm.b",  "attn.norm.b", "norm", BUCKET_BLOCK, { D, NONE }, I_, INIT_ZEROS,        ROLE_VECTOR, LNORM | BOTH },
    { "mlp.norm.w",   "mlp.norm.w",  "norm", BUCKET_BLOCK, { D, NONE }, I_, INIT_ONES,         ROLE_VECTOR, NORMW | BOTH },
    { "mlp.norm.b",   "mlp.norm.b",  "norm", BUCKET_BLOCK, { D, NONE }, I_, INIT_ZEROS,        ROLE_VECTOR, LNORM | BOTH },
    { "attn.qnorm",   "attn.qnorm",  "norm", BUCKET_BLOCK, { HD, NONE },I_, INIT_ONES,         ROLE_VECTOR, QKN },
    { "attn.qnorm",   "attn.qnorm",  "norm", BUCKET_BLOCK, { Q, NONE }, S0, INIT_ONES,         ROLE_VECTOR, QKFULL },
    { "attn.knorm",   "attn.knorm",  "norm", BUCKET_BLOCK, { HD, NONE },I_, INIT_ONES,         ROLE_VECTOR, QKN },
    { "attn.knorm",   "attn.knorm",  "norm", BUCKET_BLOCK, { KV, NONE },S0, INIT_ONES,         ROLE_VECTOR, QKFULL },
    { "attn.q_a.norm",  "attn.q_a.norm",  "norm", BUCKET_BLOCK, { QL, NONE },  I_, INIT_ONES,  ROLE_VECTOR, NORMW | QLATENT },
    { "attn.kv_a.norm", "attn.kv_a.norm", "norm", BUCKET_BLOCK, { KVL, NONE }, I_, INIT_ONES,  ROLE_VECTOR, NORMW | KVLATENT },
    { "delta.norm",   "delta.norm",  "norm", BUCKET_BLOCK, { DD, NONE },I_, INIT_ONES,         ROLE_VECTOR, NORMW | DELTA },
    { "mix.residual", "mix.residual", "mix", BUCKET_BLOCK, { NONE, NONE }, I_, INIT_RESIDUAL_FACTOR, ROLE_VECTOR, SCALARS },
    { "mix.embed",    "mix.embed",   "mix",  BUCKET_BLOCK, { NONE, NONE }, I_, INIT_EMBED_FACTOR, ROLE_VECTOR, SCALARS },
    { "mix.middle",   "mix.middle",  "mix",  BUCKET_LAST,  { NONE, NONE }, I_, INIT_MIDDLE_FACTOR, ROLE_VECTOR, BACKOUT },
    { "norm.w",       "norm.w",      "norm", BUCKET_LAST,  { D, NONE }, I_, INIT_ONES,         ROLE_VECTOR, NORMW },
    { "norm.b",       "norm.b",      "norm", BUCKET_LAST,  { D, NONE }, I_, INIT_ZEROS,        ROLE_VECTOR, LNORM },
    { "head",         "head",        "head", BUCKET_LAST,  { V, D },    S0, INIT_NORMAL,       ROLE_OUTPUT, UNTIED },
    { "moe.bias",     "moe.bias",    "mlp",  BUCKET_STATE, { B, NONE }, I_, INIT_ZEROS,        ROLE_STATE,  MOE },
};
/* clang-format on */
#undef S0
#undef S1
#undef I_

bool model_has_experts(const model_config *c, int layer) {
    return c->experts && layer >= c->first_dense && (layer + 1) % c->moe_step == 0;
}

/* The digit of the pattern for a layer. */
static int pattern_digit(int64_t pattern, int layer) {
    int digits = 0;
    for (int64_t rest = pattern; rest; rest /= 10) digits++;
    for (int skip = digits - 1 - layer % digits; skip > 0; skip--) pattern /= 10;
    return (int)(pattern % 10);
}

/* The model as if all its layers were like this one. */
static model_config model_like_layer(const model_config *c, int layer) {
    model_config like = *c;
    bool last = layer == c->layers - 1;
    if (c->layer_pattern) {
        int kind = pattern_digit(c->layer_pattern, layer);
        if (kind % 2 == 0 || kind == 5) like.window = 0;
        if (kind > 2 && kind < 5 && c->pos == POS_ROPE) like.pos = POS_NONE;
        if (kind != 5) like.delta_keys = 0;
    } else {
        like.delta_keys = 0;
    }
    if (c->pos == POS_ROPE && like.window && c->rope_local != 0) {
        like.rope_theta = c->rope_local;
        like.rope_scaling = ROPE_PLAIN;
    }
    if (like.pos == POS_NONE && c->qk_rope_only) like.qknorm = QKNORM_NONE;
    if (like.pos != POS_NONE) like.temperature = 0;
    if (!model_has_experts(c, layer)) like.experts = like.shared_experts = 0;
    if (c->full_step && (last || (layer + 1) % c->full_step == 0)) like.window = 0;
    if (c->value_step && (c->layers - 1 - layer) % c->value_step) like.value_step = 0;
    if (layer != c->layers / 2) like.backout = false; /* the block that leaves its residual */
    return like;
}

int model_layer_kind(const model_config *c, int layer) {
    model_config like = model_like_layer(c, layer);
    if (like.delta_keys) return 5;
    return (like.window ? 1 : 2) + (like.pos == POS_NONE ? 2 : 0);
}

int64_t model_value_dim(const model_config *c) {
    return c->kv_latent ? c->value_head_dim : c->head_dim;
}

int64_t model_expert_dim(const model_config *c) { return c->expert_dim ? c->expert_dim : c->ffn; }

static int64_t size_of(const model_config *c, size_name s) {
    switch (s) {
    case NONE: return 1;
    case H: return c->kv_heads;
    case HQ: return c->heads;
    case G: return MIN(VALUE_GATE, c->dim);
    case SG: return MIN(SMEAR_GATE, c->dim);
    case D: return c->dim;
    case Q: return c->heads * c->head_dim;
    case KV: return c->kv_heads * c->head_dim;
    case F:
        if (!c->experts) return c->ffn;
        return c->shared_dim ? c->shared_dim : c->shared_experts * model_expert_dim(c);
    case E: return c->experts;
    case X: return model_expert_dim(c);
    case B: return c->experts + 1; /* and a place whose gradient counts dropped tokens */
    case V: return c->vocab;
    case P: return c->max_seq;
    case HD: return c->head_dim;
    case O: return c->heads * model_value_dim(c);
    case QL: return c->q_latent;
    case KVL: return c->kv_latent;
    case KVA: return c->kv_latent + c->rope_head_dim; /* the key that heads share comes first */
    case DK: return c->delta_keys * c->delta_key_dim;
    case DV: return c->delta_values * c->delta_value_dim;
    case DH: return c->delta_values;
    case DD: return c->delta_value_dim;
    case DC: return c->delta_conv;
    case KVB: return c->heads * (c->head_dim - c->rope_head_dim + c->value_head_dim);
    }
    return 0;
}

static int model_properties(const model_config *c) {
    /* Properties of layers whose mixer is attention. */
    const int attention = QKVB | OB | QKN | QKFULL | SINKS | VALUES | QDIRECT | KVDIRECT | QLATENT |
                          KVLATENT | ATTENTION | OGATE;
    int all = (c->pos == POS_LEARNED ? LEARNED : 0) |
              (c->norm == NORM_LAYER && c->norm_bias && !c->weightless_norms ? LNORM : 0) |
              (c->bias || c->mlp_bias ? MLPB : 0) | (c->bias || c->qkv_bias ? QKVB : 0) |
              (c->bias || c->o_bias ? OB : 0) | (c->parallel && c->shared_norm ? 0 : NORM2) |
              (c->norm_position == NORM_BOTH ? BOTH : 0) |
              (c->qknorm == QKNORM_HEAD && !c->weightless_norms && c->qk_weights ? QKN : 0) |
              (c->qknorm == QKNORM_FULL && !c->weightless_norms && c->qk_weights ? QKFULL : 0) |
              (mlp_kind_traits[c->mlp] & MLP_GATED ? GATED : 0) | (c->tied ? 0 : UNTIED) |
              (!c->experts || c->shared_experts ? MLP : 0) | (c->experts ? MOE : 0) |
              (c->experts && c->shared_experts && c->shared_gate ? SHGATE : 0) |
              (c->router_logit_bias ? ROUTERB : 0) | (c->sinks ? SINKS : 0) |
              (c->weightless_norms ? 0 : NORMW) | (c->value_step ? VALUES : 0) |
              (c->layer_scalars ? SCALARS : 0) | (c->backout ? BACKOUT : 0) |
              (c->smear ? SMEAR : 0) | (c->kv_latent && c->q_latent ? QLATENT : QDIRECT) |
              (c->kv_latent ? KVLATENT : KVDIRECT) | ATTENTION | (c->attention_gate ? OGATE : 0);
    return c->delta_keys ? (all & ~attention) | DELTA : all;
}

static bool row_applies(const model_config *c, const param_row *r) {
    return (model_properties(c) & r->when) == r->when;
}

/* Elements of a row in the whole model. @param experts how many count of those a row has */
static int64_t row_count(const model_config *c, const param_row *r, int experts) {
    int64_t n = 0;
    for (int l = 0; l < (bucket_per_layer(r->where) ? c->layers : 1); l++) {
        model_config like = bucket_per_layer(r->where) ? model_like_layer(c, l) : *c;
        if (!row_applies(&like, r) || r->role == ROLE_STATE) continue;
        n += size_of(&like, r->dim[0]) * size_of(&like, r->dim[1]) * (r->per_expert ? experts : 1);
    }
    return n;
}

static int64_t count_with(const model_config *c, int experts) {
    int64_t n = 0;
    for (size_t i = 0; i < COUNT_OF(table); i++) n += row_count(c, &table[i], experts);
    return n;
}

int64_t model_count(const model_config *c) { return count_with(c, c->experts); }
int64_t model_count_active(const model_config *c) { return count_with(c, c->experts_per_token); }

int64_t model_count_role(const model_config *c, param_role role) {
    int64_t n = 0;
    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (table[i].role == role) n += row_count(c, &table[i], c->experts);
    return n;
}

double model_flops(const model_config *c, int64_t seq, bool causal) {
    double weights = 0; /* that multiply every token */
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        const param_row *r = &table[i];
        bool head = c->tied && r->where == BUCKET_FIRST && r->dim[0] == V;
        bool is_gemm = r->dim[1] != NONE && (r->role != ROLE_INPUT || head);
        if (is_gemm) weights += (double)row_count(c, r, c->experts_per_token);
    }
    double keys = 0, states = 0; /* of all layers; elements of their states */
    for (int l = 0; l < c->layers; l++) {
        model_config like = model_like_layer(c, l);
        if (like.delta_keys)
            states += (double)(c->delta_values * c->delta_key_dim * c->delta_value_dim);
        else
            keys += like.window ? MIN((double)seq, (double)like.window) : (double)seq;
    }
    double attention = (double)(c->heads * (c->head_dim + model_value_dim(c))) * keys;
    /* a token reads its state twice and writes it once, forward */
    return 6 * weights + 6 * attention * (causal ? 0.5 : 1) + 18 * states;
}

/* ---- element types of modules -------------------------------------------------------------------- */
static const char *const modules[] = { "embed", "attn", "mlp", "head" };

err module_dtype(const model_layout *l, const char *module, dtype *out) {
    *out = strcmp(module, "norm") ? l->dt : DT_F32; /* norms are always fp32 */
    const char *at = l->modules ? l->modules : "";
    while (*at) {
        size_t n = strcspn(at, ",");
        const char *eq = memchr(at, '=', n);
        char name[16] = "", type[16] = "";
        if (eq) {
            snprintf(name, sizeof name, "%.*s", (int)MIN(eq - at, 15), at);
            snprintf(type, sizeof type, "%.*s", (int)MIN(at + n - eq - 1, 15), eq + 1);
        }
        dtype dt = dt_from_name(type);
        bool known = false;
        for (size_t i = 0; i < COUNT_OF(modules); i++) known |= !strcmp(name, modules[i]);
        if (!known || (dt != DT_F32 && dt != DT_BF16 && dt != DT_F16))
            return err_hint(
                ERR("precision.modules: '%.*s' is not MODULE=DTYPE", (int)n, at),
                "use a module of embed, attn, mlp and head, and a type of fp32, bf16 and fp16");
        if (!strcmp(name, module)) *out = dt;
        at += n + (at[n] == ',');
    }
    return OK;
}

/* ---- fp8 ---------------------------------------------------------------------------------- */
const char *const block_linear_name[BLOCK_LINEARS] = { "attn.qkv", "attn.o", "mlp.up", "mlp.down",
                                                       "attn.gate" };
int block_linears(const model_config *c) {
    return c->attention_gate || model_has_delta(c) ? BLOCK_LINEARS : LINEAR_GATE;
}

/* Whether n bytes of text name this linear layer, or the module it belongs to. */
static bool names_linear(const char *text, size_t n, const char *name) {
    size_t module = strcspn(name, ".");
    return (n == strlen(name) || n == module) && !strncmp(text, name, n);
}

fp8_recipe linear_recipe(const model_layout *l, block_linear which) {
    const char *at = l->fp8_skip ? l->fp8_skip : "";
    while (*at) {
        size_t n = strcspn(at, ",");
        if (names_linear(at, n, block_linear_name[which])) return FP8_OFF;
        at += n + (at[n] == ',');
    }
    return l->fp8;
}

/* An error when the layout asks for fp8 together with what fp8 cannot be combined with. */
static err fp8_check(const model_layout *l) {
    if (l->fp8 == FP8_OFF) return OK;
    if (l->dt != DT_BF16)
        return err_hint(
            ERR("precision.fp8 with precision.dtype=%s", dt_name(l->dt)),
            "set precision.dtype=bf16, in which everything but the fp8 GEMMs is computed");
    const char *at = l->fp8_skip ? l->fp8_skip : "";
    while (*at) {
        size_t n = strcspn(at, ",");
        bool known = false;
        for (int i = 0; i < BLOCK_LINEARS; i++) known |= names_linear(at, n, block_linear_name[i]);
        if (!known)
            return err_hint(
                ERR("precision.fp8_skip: '%.*s' is not a linear layer", (int)n, at),
                "use attn.qkv, attn.o, attn.gate, mlp.up or mlp.down, or the modules attn and mlp");
        at += n + (at[n] == ',');
    }
    return OK;
}

float *model_fp8_rows(const model *m, const plan *p, int64_t *count) {
    *count = (int64_t)m->c.layers * block_linears(&m->c) * FP8_OPERANDS * FP8_ROW;
    return fp8_keeps_history(m->l.fp8) ? plan_input(p, "fp8", 0) : NULL;
}

/* ---- buckets and parts --------------------------------------------------------------------- */
static placement row_placement(const param_row *r) { return placement_on(AXIS(AX_TP), r->tp); }

/* The same of one kind of layer alone. */
static const char *width_obstacle(const model_config *c, int tp, int64_t *size) {
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        const param_row *r = &table[i];
        size_name dim = r->dim[r->tp.dim];
        bool sharded = r->tp.kind == PL_S && row_applies(c, r);
        if (!sharded || dim == Q || dim == KV || dim == V) continue;
        *size = size_of(c, dim);
        if (*size % tp) return "columns of a feed-forward layer";
    }
    return NULL;
}

/* @return NULL when tp ranks can share the model, else why not: what they do not divide. */
static const char *tp_obstacle(const model_config *c, int tp, int64_t *size) {
    bool repeats = c->kv_heads < tp && tp % c->kv_heads == 0 && !c->value_step;
    *size = c->heads;
    if (c->heads % tp) return "query heads";
    *size = c->kv_heads;
    if (c->kv_heads % tp && !repeats)
        return c->value_step
                   ? "key/value heads, whose values have tables (model.value_embedding_step)"
                   : "key/value heads, nor do these divide them";
    *size = c->delta_keys; /* these divide the heads of values */
    if (model_has_delta(c) && c->delta_keys % tp) return "heads of keys in gated DeltaNet layers";
    for (int l = 0; l < c->layers; l++) {
        model_config like = model_like_layer(c, l);
        const char *what = width_obstacle(&like, tp, size);
        if (what) return what;
    }
    *size = c->vocab;
    return c->vocab < tp ? "tokens of the vocabulary" : NULL;
}

static bool tp_works(const model_config *c, int tp) {
    int64_t size;
    return tp > 0 && !tp_obstacle(c, tp, &size);
}

int model_tp_below(const model_config *c, int tp) {
    tp = MIN(tp, c->heads);
    while (tp > 0 && !tp_works(c, tp)) tp--;
    return tp;
}

err model_split_tp(const model_config *c, mesh *m) {
    int tp = mesh_size(m, AX_TP), below = model_tp_below(c, tp), above = tp + 1;
    while (above <= c->heads && !tp_works(c, above)) above++;
    int64_t size;
    const char *what = tp_obstacle(c, tp, &size);
    char other[32] = "";
    if (above <= c->heads) snprintf(other, sizeof other, " or %d", above);
    if (what)
        return err_hint(ERR("%d tensor-parallel ranks do not divide the model's %lld %s", tp,
                            (long long)size, what),
                        "use tensor_parallel_degree %d%s", below, other);
    m->tp_rep = c->kv_heads < tp ? tp / c->kv_heads : 1;
    return OK;
}

/* The shard of a part that a tp rank has, per dim. */
typedef struct tp_shard {
    int64_t seen[2];  /* elements that programs see */
    int64_t own[2];   /* those of them that are the part's; the rest is padding */
    int64_t first[2]; /* of the own ones in the whole part */
    bool repeated;    /* key/value heads that mesh.tp_rep ranks hold */
} tp_shard;

/* Rows of a token table per tp rank. Ranks have the same number, so that the last ones may have some that no
 * token uses; they stay zero, and no loss sees them. GEMMs are fastest over multiples of VOCAB_UNIT. */
static int64_t vocab_rows(int64_t vocab, int tp) {
    enum { VOCAB_UNIT = 64 };
    int64_t each = (vocab + tp - 1) / tp;
    return each < VOCAB_UNIT || tp == 1 ? each : (int64_t)align_up((size_t)each, VOCAB_UNIT);
}

static tp_shard shard_part(const model *m, const param_row *r, int kind) {
    int tp = mesh_size(&m->l.mesh, AX_TP), at = mesh_coord(&m->l.mesh, AX_TP);
    int rep = mesh_span(&m->l.mesh, AXES_TP_REP);
    tp_shard shard = { .repeated = r->dim[0] == KV && rep > 1 }, *s = &shard;
    if (shard.repeated) tp /= rep, at /= rep;
    for (int i = 0; i < 2; i++) {
        int64_t n = size_of(&m->of[kind], r->dim[i]);
        s->seen[i] = s->own[i] = n;
        s->first[i] = 0;
        if (r->tp.kind != PL_S || r->tp.dim != i) continue;
        BUG_IF(n % tp && r->dim[i] != V); /* model_split_tp has checked it */
        s->seen[i] = r->dim[i] == V ? vocab_rows(n, tp) : n / tp;
        s->first[i] = MIN(at * s->seen[i], n);
        s->own[i] = MIN(s->seen[i], n - s->first[i]);
    }
    return shard;
}

axis_set model_slice_axes(const mesh *m) {
    return AXES_DATA & ~AXIS(AX_DP_REPLICATE) & mesh_axes(m);
}

/* The bucket for a parameter of n elements (here; of `whole` in the model), as far as it has space for it. */
static int find_bucket(model *m, bucket_kind where, dtype dt, int kind, int64_t n, int64_t whole) {
    static const char *const names[] = { "first", "tied", "block", "experts", "last", "state" };
    int zero = where == BUCKET_STATE ? 0 : m->l.zero;
    bool host = where != BUCKET_STATE && m->l.offload_params && whole >= m->l.whole_below;
    if (zero == 3 && whole < m->l.whole_below) zero = 2;
    int64_t most = m->l.bucket_bytes / (int64_t)sizeof(float);
    for (int b = 0; b < m->buckets; b++) {
        bucket_info *k = &m->info[b];
        if (k->where != where || k->kind != kind || m->bucket[b].dt != dt) continue;
        if (m->bucket[b].zero != zero || m->bucket[b].host != host) continue;
        if (most && k->elements + n > most) continue;
        k->elements += n;
        return b;
    }
    BUG_IF(m->buckets == MAX_BUCKETS);
    axis_set data = AXES_DATA & mesh_axes(&m->l.mesh);
    if (where == BUCKET_EXPERTS) data &= ~AXIS(AX_EP);
    m->bucket[m->buckets] = (prog_bucket){ .name = names[where],
                                           .dt = dt,
                                           .tied = where == BUCKET_TIED && m->l.pipe.ranks == 1,
                                           .reduced = data,
                                           .slices = zero ? data & model_slice_axes(&m->l.mesh) : 0,
                                           .zero = zero,
                                           .host = host,
                                           .gather_wire = m->l.gather_wire,
                                           .reduce_wire = m->l.reduce_wire };
    m->info[m->buckets] = (bucket_info){ .where = where, .kind = kind, .elements = n };
    return m->buckets++;
}

/* Experts lie one after another; vectors stay fp32. A tied table that embedding and head read in different types is kept
 * in fp32: each of them casts what it reads, and neither sees the other's rounding. */
static err choose_bucket(model *m, prog_param *q) {
    const param_row *r = table;
    while (strcmp(r->fused, q->name)) r++;
    int kind = MAX(0, q->block_kind - 1);
    bool tied = m->c.tied && !strcmp(r->name, "embed.tokens");
    dtype dt = DT_F32, head;
    if (q->ndim == 2) TRY(module_dtype(&m->l, r->module, &dt));
    if (tied) TRY(module_dtype(&m->l, "head", &head));
    if (tied && head != dt) dt = DT_F32;
    if (r->where == BUCKET_EXPERTS) {
        q->dim[0] *= m->experts;
        if (m->experts < m->c.experts) q->pl.on[AX_EP] = PLACE_S(0);
        q->segments *= m->experts;
    }
    int64_t n = q->dim[0] * (q->ndim == 2 ? q->dim[1] : 1);
    int64_t whole = n * mesh_span(&m->l.mesh, placement_axes(q->pl, PL_S));
    q->bucket = find_bucket(m, tied ? BUCKET_TIED : r->where, dt, kind, n, whole);
    return OK;
}

/* Rows that one GEMM reads become one prog_param. Those of blocks once for each kind of block, those outside
 * with the first kind. */
static void fuse_kind(model *m, int kind) {
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        const param_row *r = &table[i];
        bool of_block = bucket_per_layer(r->where);
        if (!row_applies(of_block ? &m->of[kind] : &m->c, r) || (kind && !of_block)) continue;
        tp_shard shard = shard_part(m, r, kind);
        const int64_t *dim = shard.seen;
        prog_param *last = m->fuseds ? &m->fused[m->fuseds - 1] : NULL;
        if (last && !strcmp(last->name, r->fused) &&
            last->block_kind == (of_block ? 1 + kind : 0)) {
            BUG_IF(last->rep_rows && !shard.repeated); /* they are the last rows */
            last->dim[0] += dim[0];
            last->segments++;
            if (shard.repeated) last->rep_rows += dim[0], last->rep_axes = AXES_TP_REP;
            continue;
        }
        BUG_IF(m->fuseds == MODEL_MAX_PARAMS);
        prog_param *q = &m->fused[m->fuseds++];
        *q = (prog_param){ .ndim = r->dim[1] == NONE ? 1 : 2,
                           .dim = { dim[0], dim[1] },
                           .block_kind = of_block ? 1 + kind : 0,
                           .first = shard.first[0],
                           .whole = size_of(&m->of[kind], r->dim[0]),
                           .segments = 1,
                           .pl = row_placement(r) };
        if (shard.repeated) q->rep_rows = dim[0], q->rep_axes = AXES_TP_REP;
        snprintf(q->name, sizeof q->name, "%s", r->fused);
    }
}

static const prog_param *find_fused(const model *m, const char *name, int block_kind) {
    for (int i = 0; i < m->fuseds; i++)
        if (!strcmp(m->fused[i].name, name) && m->fused[i].block_kind == block_kind)
            return &m->fused[i];
    BUG("a fused parameter without a row of the table");
}

/* @param expert -1: not one's. @return the elements that it takes in the bucket. */
static int64_t add_param_part(model *m, const param_row *r, int layer, int expert, int64_t before) {
    int kind = layer < 0 ? 0 : m->kind[layer];
    tp_shard shard = shard_part(m, r, kind);
    const prog_param *q = find_fused(m, r->fused, layer < 0 ? 0 : 1 + kind);
    model_param *p = &m->param[m->params++];
    *p = (model_param){ .layer = layer,
                        .ndim = q->ndim,
                        .pl = row_placement(r),
                        .repeated = shard.repeated ? AXES_TP_REP : 0,
                        .init = r->init,
                        .role = r->role,
                        .decay = q->ndim == 2,
                        .module = r->module,
                        .bucket = q->bucket,
                        .offset = q->offset + before };
    for (int i = 0; i < 2; i++) {
        p->dim[i] = size_of(&m->of[kind], r->dim[i]);
        p->local[i] = shard.own[i];
        p->first[i] = shard.first[i];
    }
    bool elsewhere = expert >= 0 && expert / m->experts != mesh_coord(&m->l.mesh, AX_EP);
    if (elsewhere) p->local[0] = 0;
    if (expert >= 0) p->apart = AXIS(AX_EP);
    p->fan_in = p->dim[1];
    snprintf(p->base, sizeof p->base, "%s", r->name);
    if (expert >= 0)
        snprintf(p->name, sizeof p->name, "l%d.expert%d.%s", layer, expert,
                 strchr(r->name, '.') + 1);
    else if (layer >= 0)
        snprintf(p->name, sizeof p->name, "l%d.%s", layer, r->name);
    else
        snprintf(p->name, sizeof p->name, "%s", r->name);
    return elsewhere ? 0 : shard.seen[0] * shard.seen[1];
}

/* Adds the parts of one fused parameter, in memory order: rows from `first` on.
 * @return how many rows it has. */
static size_t list_fused(model *m, size_t first, int layer) {
    int experts = table[first].per_expert ? MAX(m->c.experts, 1) : 1;
    size_t rows = 0;
    int64_t before = 0;
    for (int e = 0; e < experts; e++) {
        rows = 0;
        for (size_t i = first; i < COUNT_OF(table) && !strcmp(table[i].fused, table[first].fused);
             i++, rows++) {
            if (!row_applies(layer < 0 ? &m->c : &m->of[m->kind[layer]], &table[i])) continue;
            before += add_param_part(m, &table[i], layer, table[i].per_expert ? e : -1, before);
        }
    }
    return rows;
}

static void list_param_parts(model *m) {
    size_t most = COUNT_OF(table) * (size_t)(m->c.layers + 1);
    most += 6 * (size_t)m->c.experts * (size_t)m->c.layers;
    m->param = mem_alloc(most * sizeof *m->param);
    for (int part = 0; part < 3; part++) /* before the blocks, the blocks, after them */
        for (int l = 0; l < (part == 1 ? m->c.layers : 1); l++)
            for (size_t i = 0; i < COUNT_OF(table);) {
                bucket_kind where = table[i].where;
                int own = bucket_per_layer(where) ? 1 : where == BUCKET_LAST ? 2 : 0;
                i += own == part ? list_fused(m, i, part == 1 ? l : -1) : 1;
            }
    BUG_IF((size_t)m->params > most);
}

/* Experts that this rank holds. */
static err divide_experts(model *m) {
    int ep = mesh_size(&m->l.mesh, AX_EP);
    if (m->c.experts % ep)
        return err_hint(ERR("%d experts do not divide over %d ranks", m->c.experts, ep),
                        "use an expert_parallel_degree that divides model.experts");
    if (ep > 1 && !m->c.experts)
        return err_hint(ERR("expert_parallel_degree is %d, but the model has no experts", ep),
                        "set it to 1, and data_parallel_shard_degree instead");
    m->experts = m->c.experts / ep;
    return OK;
}

/* Which kind each layer is of, in the order in which kinds appear. */
static void sort_layers(model *m) {
    m->kind = mem_alloc((size_t)m->c.layers);
    for (int l = 0; l < m->c.layers; l++) {
        model_config like = model_like_layer(&m->c, l);
        int k = 0;
        while (k < m->kinds && model_config_diff(&like, &m->of[k], 0) >= 0) k++;
        BUG_IF(k == BLOCK_KINDS);
        if (k == m->kinds) m->of[m->kinds++] = like;
        m->kind[l] = (uint8_t)k;
    }
}

/* Only the embedding and the head make up a stage without blocks. */
static err split_check(const model *m, int stages) {
    const pipeline *p = &m->l.pipe;
    if (p->split_stages && p->split_stages != stages)
        return err_hint(ERR("parallelism.pipeline_parallel_split has %d stages, but %d pipeline "
                            "ranks with %d chunks have %d",
                            p->split_stages, p->ranks, p->chunks, stages),
                        "give each chunk of each rank its number of layers");
    if (p->split_stages && p->split_from[stages] != m->c.layers)
        return err_hint(ERR("parallelism.pipeline_parallel_split has %d layers, the model %d",
                            p->split_from[stages], m->c.layers),
                        "change the counts so that they add up to %d", m->c.layers);
    if (!p->split_stages && m->c.layers + p->first_less + p->last_less < stages)
        return err_hint(
            ERR("%d blocks do not divide over %d pipeline stages (%d ranks with %d chunks)",
                m->c.layers, stages, p->ranks, p->chunks),
            "lower parallelism.pipeline_parallel_degree or pipeline_parallel_chunks");
    for (int stage = 1; stage < stages - 1; stage++) {
        int from, to;
        pipeline_blocks(p, m->c.layers, stage % p->ranks, stage / p->ranks, &from, &to);
        if (from == to)
            return err_hint(ERR("pipeline stage %d of %d has no layers", stage, stages),
                            "only the first stage, with the embedding, and the last one, with the "
                            "head, may have none");
    }
    return OK;
}

static err pipeline_check(const model *m) {
    const pipeline *p = &m->l.pipe;
    int stages = p->ranks * p->chunks;
    if (p->ranks == 1) return OK;
    TRY(split_check(m, stages));
    if (pipeline_splits_backward(p) && m->l.zero >= 2)
        return err_hint(ERR("the schedule ZeroBubble puts weight gradients off, and ZeRO stage %d "
                            "would keep a whole gradient for each of them",
                            m->l.zero),
                        "use parallelism.zero_stage=1, or the schedule 1F1B");
    return OK;
}

/* Indexes parameters by a hash of their names, with linear probing. */
static void index_names(model *m) {
    for (m->name_slots = 2; m->name_slots < 2 * m->params; m->name_slots *= 2) continue;
    m->by_name = mem_alloc((size_t)m->name_slots * sizeof *m->by_name);
    for (int i = 0; i < m->params; i++) {
        size_t at = hash_str(m->param[i].name) & (size_t)(m->name_slots - 1);
        while (m->by_name[at]) at = (at + 1) & (size_t)(m->name_slots - 1);
        m->by_name[at] = i + 1;
    }
}

err model_new(const model_config *c, const model_layout *l, model **out) {
    *out = NULL;
    TRY(model_check(c));
    model *m = mem_alloc(sizeof *m);
    m->c = *c;
    m->l = *l;
    mesh split = m->l.mesh;
    err e = model_split_tp(c, &split);
    BUG_IF(!e && mesh_span(&split, AXES_TP_REP) != mesh_span(&m->l.mesh, AXES_TP_REP));
    if (m->l.dt == DT_NONE) m->l.dt = DT_F32;
    if (m->l.residual == DT_NONE) m->l.residual = m->l.dt;
    m->l.pipe.ranks = mesh_size(&l->mesh, AX_PP);
    m->l.pipe.chunks = MAX(1, l->pipe.chunks);
    if (m->l.pipe.ranks == 1) /* nothing is divided */
        m->l.pipe.first_less = m->l.pipe.last_less = m->l.pipe.split_stages = 0;
    sort_layers(m);
    if (!e) e = fp8_check(&m->l);
    if (!e) e = pipeline_check(m);
    if (!e) e = divide_experts(m);
    for (int kind = 0; kind < m->kinds && !e; kind++) fuse_kind(m, kind);
    for (int i = 0; i < m->fuseds && !e; i++) e = choose_bucket(m, &m->fused[i]);
    if (e) {
        model_free(m);
        return err_trail(e, __FILE__, __LINE__);
    }
    bucket_layout(m->fused, m->fuseds, m->bucket, m->buckets, &m->l.mesh);
    list_param_parts(m);
    index_names(m);
    *out = m;
    return OK;
}

void model_free(model *m) {
    if (!m) return;
    for (int i = 0; i < m->records; i++) prog_free(m->recorded[i]);
    for (int b = 0; b < m->buckets; b++) {
        free(m->info[b].master);
        free(m->info[b].copy);
        free(m->info[b].grad);
    }
    free(m->recorded);
    free(m->param);
    free(m->by_name);
    free(m->kind);
    free(m);
}

const model_config *model_conf(const model *m) { return &m->c; }
const model_layout *model_lay(const model *m) { return &m->l; }
int model_params(const model *m) { return m->params; }
const model_param *model_param_at(const model *m, int i) { return &m->param[i]; }

int model_find_param(const model *m, const char *name) {
    size_t at = hash_str(name) & (size_t)(m->name_slots - 1);
    for (; m->by_name[at]; at = (at + 1) & (size_t)(m->name_slots - 1))
        if (!strcmp(m->param[m->by_name[at] - 1].name, name)) return m->by_name[at] - 1;
    return -1;
}

param_set model_set(const model *m) {
    return (param_set){ m->fused, m->fuseds, m->bucket, m->buckets };
}
