/* The attributes of ops: which members of op_attr there are, and sets of them, as the rows of ops.def and kernels
 * name them. */
#ifndef INGOT_OP_ATTRS_H
#define INGOT_OP_ATTRS_H

#include "ops/ops.h"

/* The members of op_attr, one row each:
 *     id, member of op_attr, how it prints                                                       */
#define OP_ATTRIBUTES(X)                                                                           \
    X(EPS, eps, FLOAT)                                                                             \
    X(ACT, act, ACT)                                                                               \
    X(HEADS_Q, heads.q, INT)                                                                       \
    X(HEADS_KV, heads.kv, INT)                                                                     \
    X(HEAD_DIM, heads.dim, INT)                                                                    \
    X(ROT, heads.rot, INT)                                                                         \
    X(WINDOW, heads.window, INT)                                                                   \
    X(SEQ, heads.seq, INT)                                                                         \
    X(DOCUMENTS, heads.documents, BOOL)                                                            \
    X(SCORE_SCALE, heads.scale, FLOAT)                                                             \
    X(SCORE_CAP, heads.cap, FLOAT)                                                                 \
    X(CHUNK, heads.chunk, INT)                                                                     \
    X(TEMPER, heads.temper, FLOAT)                                                                 \
    X(TEMPER_FLOOR, heads.temper_floor, FLOAT)                                                     \
    X(SINKS, heads.sinks, BOOL)                                                                    \
    X(SINK_FIRST, heads.sink_first, INT)                                                           \
    X(HEADS_FIRST, heads.first, INT)                                                               \
    X(NORM_FULL, heads.norm_full, BOOL)                                                            \
    X(DROPOUT_P, dropout.p, FLOAT)                                                                 \
    X(DROPOUT_SITE, dropout.site, INT)                                                             \
    X(PARTS, reorder.parts, INT)                                                                   \
    X(SWAP_OUTER, reorder.outer, INT)                                                              \
    X(SWAP_INNER, reorder.inner, INT)                                                              \
    X(SCALE_BY, scale.by, FLOAT)                                                                   \
    X(LOGIT_SCALE, ce.logit_scale, FLOAT)                                                          \
    X(LOGIT_CAP, ce.cap, FLOAT)                                                                    \
    X(SMOOTHING, ce.smoothing, FLOAT)                                                              \
    X(Z_LOSS, ce.z_loss, FLOAT)                                                                    \
    X(LOSS_FP8, ce.fp8, BOOL)                                                                      \
    X(VOCAB_FIRST, vocab.first, LONG)                                                              \
    X(VOCAB_SIZE, vocab.size, LONG)                                                                \
    X(LR_MUL, update.lr_mul, FLOAT)                                                                \
    X(DECAY, update.decay, FLOAT)                                                                  \
    X(BETA1, update.beta1, FLOAT)                                                                  \
    X(BETA2, update.beta2, FLOAT)                                                                  \
    X(UPDATE_EPS, update.eps, FLOAT)                                                               \
    X(MOMENTUM, update.momentum, FLOAT)                                                            \
    X(L2, update.l2, BOOL)                                                                         \
    X(NESTEROV, update.nesterov, BOOL)                                                             \
    X(DECAY_BY, update.decay_by, INT)                                                              \
    X(CAUTIOUS, update.cautious, BOOL)                                                             \
    X(EQUILIBRATE, update.equilibrate, BOOL)                                                       \
    X(POLAR, update.polar, INT)                                                                    \
    X(ROUND_SITE, update.site, INT)                                                                \
    X(PART_FIRST, update.first, LONG)                                                              \
    X(PART_BASE, update.base, LONG)                                                                \
    X(PART_COLS, update.cols, LONG)                                                                \
    X(PART_STRIDE, update.stride, LONG)                                                            \
    X(HOST_STATE, update.host_state, BOOL)                                                         \
    X(HOST_PARAMS, update.host_params, BOOL)                                                       \
    X(AGC_FACTOR, agc.factor, FLOAT)                                                               \
    X(AGC_EPS, agc.eps, FLOAT)                                                                     \
    X(GROWTH_INTERVAL, clip.growth_interval, LONG)                                                 \
    X(ALIBI_HEADS, alibi.heads, INT)                                                               \
    X(ALIBI_MAX, alibi.max, FLOAT)                                                                 \
    X(CLAMP_LIMIT, clamp.limit, FLOAT)                                                             \
    X(CLAMP_ALPHA, clamp.alpha, FLOAT)                                                             \
    X(EXPERTS, experts, INT)                                                                       \
    X(ROUTE_SIGMOID, route.sigmoid, BOOL)                                                          \
    X(ROUTE_NORMALIZE, route.normalize, BOOL)                                                      \
    X(ROUTE_PADDED, route.padded, BOOL)                                                            \
    X(ROUTE_SCALE, route.scale, FLOAT)                                                             \
    X(ROUTE_SEQ, route.seq, INT)                                                                   \
    X(ROUTE_CAPACITY, route.capacity, INT)                                                         \
    X(ROUTE_K, route.k, INT)                                                                       \
    X(ROUTE_CHUNKS, route.chunks, INT)                                                             \
    X(ROUTE_RANK, route.rank, INT)                                                                 \
    X(ROUTE_GROUPS, route.groups, INT)                                                             \
    X(ROUTE_GROUP_LIMIT, route.group_limit, INT)                                                   \
    X(ROUTE_GROUP_BEST, route.group_best, BOOL)                                                    \
    X(ROUTE_BALANCE, route.balance, FLOAT)                                                         \
    X(ROUTE_Z, route.z, FLOAT)                                                                     \
    X(FP8_RECIPE, fp8.recipe, INT)                                                                 \
    X(FP8_GIVEN, fp8.given, BOOL)                                                                  \
    X(FP8_MEASURE, fp8.measure, BOOL)                                                              \
    X(FP8_MEASURED, fp8.measured, BOOL)                                                            \
    X(FP8_SITE, fp8.site, INT)

typedef enum {
#define ATTR_ENUM(id, member, kind) ATTR_##id,
    OP_ATTRIBUTES(ATTR_ENUM)
#undef ATTR_ENUM
        ATTR_COUNT
} attr_id;
/* Sets of attributes, as rows and kernels name them. */
#define ATTR(id)     ((attr_set)1 << ATTR_##id)
#define ATTRS_HEADS  (ATTR(HEADS_Q) | ATTR(HEADS_KV) | ATTR(HEAD_DIM))
#define ATTRS_LOGITS (ATTR(LOGIT_SCALE) | ATTR(LOGIT_CAP))
#define ATTRS_LOSS   (ATTRS_LOGITS | ATTR(SMOOTHING) | ATTR(Z_LOSS))
#define ATTRS_VOCAB  (ATTR(VOCAB_FIRST) | ATTR(VOCAB_SIZE))
#define ATTRS_FP8                                                                                  \
    (ATTR(FP8_RECIPE) | ATTR(FP8_GIVEN) | ATTR(FP8_MEASURE) | ATTR(FP8_MEASURED) | ATTR(FP8_SITE))
/* Which elements of a parameter a call has. */
#define ATTRS_PART (ATTR(PART_FIRST) | ATTR(PART_BASE) | ATTR(PART_COLS) | ATTR(PART_STRIDE))
#define ATTRS_UPDATE                                                                               \
    (ATTR(LR_MUL) | ATTR(DECAY) | ATTR(BETA1) | ATTR(BETA2) | ATTR(UPDATE_EPS) | ATTR(MOMENTUM) |  \
     ATTR(L2) | ATTR(NESTEROV) | ATTR(DECAY_BY) | ATTR(ROUND_SITE) | ATTRS_PART |                  \
     ATTR(HOST_STATE) | ATTR(HOST_PARAMS))
#define ATTRS_UPDATE_DECOUPLED                                                                     \
    (ATTRS_UPDATE & ~ATTR(L2)) /* of kernels without decay through the gradient */
#define ATTRS_CLAMP        (ATTR(CLAMP_LIMIT) | ATTR(CLAMP_ALPHA))
#define ATTRS_ROUTE_GROUPS (ATTR(ROUTE_GROUPS) | ATTR(ROUTE_GROUP_LIMIT) | ATTR(ROUTE_GROUP_BEST))
#define ATTRS_ROUTE                                                                                \
    (ATTR(ROUTE_SIGMOID) | ATTR(ROUTE_NORMALIZE) | ATTR(ROUTE_PADDED) | ATTR(ROUTE_SCALE) |        \
     ATTR(ROUTE_SEQ) | ATTR(ROUTE_CAPACITY) | ATTR(ROUTE_BALANCE) | ATTR(ROUTE_Z) |                \
     ATTR(ROUTE_CHUNKS) | ATTR(ROUTE_RANK) | ATTRS_ROUTE_GROUPS)
#define ATTRS_ROUTE_COUNT                                                                          \
    (ATTR(ROUTE_SIGMOID) | ATTR(ROUTE_SEQ) | ATTR(ROUTE_K) | ATTR(ROUTE_CHUNKS) |                  \
     ATTRS_ROUTE_GROUPS)
#define ATTRS_SCORES            (ATTR(SCORE_SCALE) | ATTR(SCORE_CAP) | ATTR(SINKS) | ATTR(SINK_FIRST))
#define ATTRS_ATTENTION         (ATTR(WINDOW) | ATTR(SEQ) | ATTR(DOCUMENTS) | ATTRS_SCORES)
#define ATTRS_ATTENTION_DROPOUT (ATTR(DROPOUT_P) | ATTR(DROPOUT_SITE) | ATTR(HEADS_FIRST))
#define ATTRS_ALIBI                                                                                \
    (ATTRS_HEADS | ATTR(HEADS_FIRST) | ATTR(SCORE_SCALE) | ATTR(ALIBI_HEADS) | ATTR(ALIBI_MAX))
#define ATTRS_TEMPER (ATTR(TEMPER) | ATTR(TEMPER_FLOOR))
#define ATTRS_SWAP   (ATTR(SWAP_OUTER) | ATTR(SWAP_INNER))

/* ---- attributes of a call ------------------------------------------------------------------------ */
/* The attributes that are set, not zero or false. */
attr_set op_attrs_set(const op_attr *a);
/* "eps=1e-05 window=256": those the op reads and that are set. */
void op_attrs_print(op_code op, const op_attr *a, str *out);
const char *attr_name(attr_id id); /* "heads.window" */

#endif
