#ifndef INGOT_MODEL_INTERNAL_H
#define INGOT_MODEL_INTERNAL_H

#include "model/model.h"

/* Where a parameter lives: the embedding and the loss end are programs of their own, and a table
 * that both use has a bucket of its own. */
typedef enum { ROOM_FIRST, ROOM_TIED, ROOM_BLOCK, ROOM_LAST, ROOM_COUNT } room;

enum { MAX_BUCKETS = ROOM_COUNT * 3, MODEL_MAX_PARAMS = 32 };

typedef struct bucket_info {
    room where;
    int first_region;          /* of layer 0, set by model_reserve */
    int *master, *copy, *grad; /* [layers or 1] plan regions, -1: none */
} bucket_info;

struct model {
    model_config c;
    model_layout l;
    prog_param fused[MODEL_MAX_PARAMS]; /* what programs see */
    int fuseds;
    prog_bucket bucket[MAX_BUCKETS];
    bucket_info info[MAX_BUCKETS];
    int buckets;
    model_param *param; /* every part of every layer */
    int params;
    prog **recorded; /* owned */
    int records, record_cap;
};

/* The linear layers of a block, by the parameter they multiply with. */
typedef enum { LINEAR_QKV, LINEAR_O, LINEAR_UP, LINEAR_DOWN, BLOCK_LINEARS } block_linear;
extern const char *const block_linear_name[BLOCK_LINEARS];
/* How this one multiplies. */
fp8_recipe linear_recipe(const model_layout *l, block_linear which);
/* Says what does not go together in a layout that asks for fp8. */
err fp8_check(const model_layout *l);

/* Products of this module compute in... */
err module_dtype(const model_layout *l, const char *module, dtype *out);
param_set model_set(const model *m);
/* The part of a head that rotary positions span, which sets the frequencies; and the dims that they
 * rotate, in pairs: one more where the width is odd, as in Hugging Face models. */
int64_t rope_width(const model_config *c);
int64_t rope_dims(const model_config *c);

#endif
