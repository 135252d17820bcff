/* model, inside: a model on a layout, and what its files share. */
#ifndef INGOT_MODEL_INTERNAL_H
#define INGOT_MODEL_INTERNAL_H

#include "model/model.h"

/* Which program's bucket holds a parameter: that of the embedding (first), of each block, or of the
 * output layer and loss (last). A table that the first and the last share has a bucket of its own. */
typedef enum {
    BUCKET_FIRST,
    BUCKET_TIED,
    BUCKET_BLOCK,
    BUCKET_EXPERTS, /* apart: ranks along ep hold other experts */
    BUCKET_LAST,
    BUCKET_STATE, /* of blocks; whole on every rank */
    BUCKET_KINDS
} bucket_kind;
static inline bool bucket_per_layer(bucket_kind k) {
    return k == BUCKET_BLOCK || k == BUCKET_EXPERTS || k == BUCKET_STATE;
}

enum { MODEL_MAX_PARAMS = 640, MAX_BUCKETS = MODEL_MAX_PARAMS };

/* Kinds of blocks, each with a program, parameters and buckets of its own. A model whose layers are all alike has one;
 * layers may differ in whether they have experts, an attention window, positions, a table of values, or gated DeltaNet. */
enum { BLOCK_KINDS = CHAIN_KINDS };

typedef struct bucket_info {
    bucket_kind where;
    int kind;                  /* of the blocks that it is for; 0 outside of blocks */
    int64_t elements;          /* of its parameters, without padding */
    int *master, *copy, *grad; /* [layers or 1] plan regions, -1: none */
} bucket_info;

struct model {
    model_config c;
    model_layout l;
    int kinds;                          /* of blocks */
    model_config of[BLOCK_KINDS];       /* the model as if all its blocks were of this kind */
    uint8_t *kind;                      /* [layers] */
    prog_param fused[MODEL_MAX_PARAMS]; /* what programs see */
    int fuseds;
    int experts; /* of this rank */
    prog_bucket bucket[MAX_BUCKETS];
    bucket_info info[MAX_BUCKETS];
    int buckets;
    chain_end tied, half_tied; /* add up the gradients of a table that two stages hold */
    int tied_half;             /* the region of model_half_tied; -1: none */
    model_param *param;        /* every part of every layer */
    int *by_name;              /* [name_slots] index + 1 by a hash of the name, 0: empty */
    int name_slots;            /* a power of two */
    int params;
    prog **recorded; /* owned */
    int records, record_cap;
};

/* The linear layers of a block, by the parameter they multiply with. */
typedef enum {
    LINEAR_QKV,
    LINEAR_O,
    LINEAR_UP,
    LINEAR_DOWN,
    LINEAR_GATE, /* of attention's output, or of gated DeltaNet's */
    BLOCK_LINEARS
} block_linear;
/* How many of them a block of the model has. */
int block_linears(const model_config *c);
extern const char *const block_linear_name[BLOCK_LINEARS];
/* @return the fp8 recipe of this layer; FP8_OFF where it computes in the layout's type. */
fp8_recipe linear_recipe(const model_layout *l, block_linear which);

/* Facts that programs read about tokens: one input per fact and way to divide the tokens of a sequence. */
typedef enum {
    TOKEN_TOKENS,
    TOKEN_TARGETS,
    TOKEN_POS,
    TOKEN_IDS,
    TOKEN_START,
    TOKEN_CHUNK,    /* the first token of its chunk, or of its document */
    TOKEN_PREVIOUS, /* the token before it in its document, itself at position 0 */
    TOKEN_FACTS
} token_fact;
/* @param shared the axes over which tokens are sharded: of cp and tp */
const char *token_input_name(token_fact fact, axis_set shared);
/* The input with the keys that a ring's queries see: layers with a window have another than those without. */
const char *ring_range_name(int64_t window);
/* Runs of adjacent tokens of a sequence that a context-parallel rank has. */
int context_runs(const model_layout *l);
/* Refuses a batch of n tokens that cannot be divided over the context-parallel ranks. */
err context_check(const model_config *c, const model_layout *l, int64_t n) MUST_USE;

/* Key/value heads of a tp rank. */
static inline int local_kv_heads(const model_config *c, const mesh *m) {
    return c->kv_heads * mesh_span(m, AXES_TP_REP) / mesh_size(m, AX_TP);
}
/* The type in which a module computes: the layout's, or what its overrides state. */
err module_dtype(const model_layout *l, const char *module, dtype *out) MUST_USE;
param_set model_set(const model *m);
/* The input with the table of rotations: layers with a window may have one of their own, and long sequences. */
const char *rope_input_name(const model_config *c, int64_t length);

#endif
