/* Hugging Face families as data (hf_families.c), read by what exchanges config.json (hf_config.c) and
 * weights (hf_params.c). */
#ifndef INGOT_HF_INTERNAL_H
#define INGOT_HF_INTERNAL_H

#include "checkpoint/checkpoint.h"

/* ---- kept files, hf_files.c ------------------------------------------------------------------ */
#define HF_TOKENS_MAP      "special_tokens_map.json"
#define HF_CHAT_TEMPLATE   "chat_template.jinja"
#define HF_IMPORTED_CONFIG "hf_config.json" /* config.json of the folder that was imported */
/* @param out owned; NULL: the file does not exist */
err hf_read_if_there(const char *path, json_t **out) MUST_USE;
/* @return the id of the token that a member names; -1: none. @param tok may be NULL */
int64_t hf_token_id(const tokenizer *tok, const json_t *doc, const char *key);
/* Sets a member to the token's text; -1 removes it. */
void hf_set_token(const tokenizer *tok, json_t *doc, const char *key, int64_t id);
/* @return whether a member of config.json, an id or a list, names the id. */
bool hf_lists_id(const json_t *v, int64_t id);

/* ---- config.json --------------------------------------------------------------------------- */
/* Values that a missing or null key stands for. */
typedef enum {
    HF_REFUSED,
    HF_VALUE,    /* `value` */
    HF_ZERO,     /* off */
    HF_HEADS,    /* as many as query heads */
    HF_HEAD_DIM, /* dim / heads */
    HF_4_DIM,    /* 4 dim */
    HF_SQRT_DIM, /* the square root of dim */
    HF_MAX_SEQ,  /* the longest sequence */
    HF_LONGER,   /* the longest sequence over the original context, or 1 */
    HF_SAME,     /* as another key has it */
} hf_default;

typedef enum {
    HF_USED,    /* the key holds the fact */
    HF_IMPLIED, /* models of the family have this value; a key, where named, must agree */
    HF_ZEROS,   /* the same, of biases: a model without them is written with zeros */
    HF_FIRST_N, /* the key lists layers; only the first n, 0 to n - 1, have a counterpart, n */
    HF_INVERSE, /* the key holds 1 / the fact */
    HF_INVERSE_SQUARE, /* the key holds 1 / the fact^2, which must be a whole number */
    HF_UNROTATED, /* the key holds the fact less the dims of a head that rotate, which are read before it */
    HF_SWITCH,  /* the key is true where the fact has `value`, false where it is 0 */
    HF_ENABLES, /* the key is false where the fact, which another key holds, is 0 */
    HF_NTH,     /* the key lists every n-th layer: n - 1, 2n - 1, ... */
} hf_use;

/* A fact of a model as a family expresses it. A key may hold two facts, which then have the same value. */
typedef struct hf_key {
    const char *theirs; /* in config.json; "a.b": member b of its object a; NULL: none */
    const char *alias;  /* another name of the key; NULL: none */
    size_t at;          /* of the member in a model_config */
    hf_use use;
    hf_default absent, null; /* what the key's absence, and null in its place, stand for */
    double value;
} hf_key;

/* A key that is written with one value, in JSON. Read, it must have that value, which is also what
 * its absence stands for; with `any`, it does not change what trained weights compute. */
typedef struct hf_demand {
    const char *theirs, *json;
    bool any;
} hf_demand;

/* ---- weights ------------------------------------------------------------------------------- */
/* How our [rows, cols] is stored in their tensor:
 *   0           the same
 *   TRANSPOSED  [cols, rows]: GPT-2 computes x W instead of x W^T
 *   Q, K, V     a part of a tensor with the rows of q, k and v, each contiguous
 *   BY_HEAD     with Q, K or V: key/value heads alternate with their query heads, q0 q1 k0 v0 q2 q3 k1 v1 ...
 *               with GATE or UP: the two alternate head by head
 *   BY_KEY      likewise for gated DeltaNet: rows of each head of keys follow one another, q k v v z z ... with Q, K, V or Z,
 *               b b a a ... with GATE or UP
 *   DELTA       with Q, K or V: rows of gated DeltaNet's q, k and v, each contiguous; with CONV, of [rows, 1, cols]
 *   RATE        theirs is -exp(ours); written alone
 *   EXPERT      matrix e of [experts, rows, cols], where e is the parameter's second number; with TRANSPOSED, of
 *               [experts, cols, rows]; of vectors [experts, rows]
 *   GATE, UP    the first and the second half of a matrix's rows; with EXPERT, of one expert's
 *   PAIRED      rows of a head that rotate together are adjacent, where ours are half the rotated dims apart
 *   ROTATED_LAST  the rotated rows of a head are its last, where ours are the first
 *   ONE_HEAD    all rows are one head
 *   LESS_ONE    theirs is ours - 1: norms whose weights are 1 + w
 *   INTERLEAVED with GATE or UP: every second row, from the first or the second on
 *   MXFP4       in 4 bits, as two tensors of the name with _blocks and _scales (hf_mxfp4.c); read alone
 *   SHARED      of layers with experts alone: their shared ones
 *   SHORT       theirs lacks the last element, which is 0 at first
 *   KEYS, VALUES  rows of latent attention's kv_b: of each head those of keys, as [heads, cols, rows], and those of values, as
 *               [heads, rows, cols]; with KEYS the next row of the table has the VALUES of the same parameter
 *   REFLECTED   the second half of each head has the other sign: theirs rotate the other way, and a reflection before
 *               and after that is our rotation */
enum {
    HF_TRANSPOSED = 1,
    HF_Q = 2,
    HF_K = 4,
    HF_V = 8,
    HF_BY_HEAD = 16,
    HF_EXPERT = 32,
    HF_GATE = 64,
    HF_UP = 128,
    HF_PAIRED = 256,
    HF_LESS_ONE = 512,
    HF_REFLECTED = 1024,
    HF_ROTATED_LAST = 1 << 20,
    HF_ONE_HEAD = 1 << 21,
    HF_SHARED = 1 << 16,
    HF_SHORT = 1 << 17,
    HF_INTERLEAVED = 1 << 18,
    HF_MXFP4 = 1 << 19,
    HF_Z = 1 << 22,
    HF_BY_KEY = 1 << 23,
    HF_CONV = 1 << 24,
    HF_KEYS = 1 << 25,
    HF_VALUES = 1 << 26,
    HF_DELTA = 1 << 27,
    HF_RATE = 1 << 28,
    HF_THIRD = HF_Q | HF_K | HF_V
};
typedef struct hf_param {
    const char *ours, *theirs; /* %d: the layer */
    int how;
} hf_param;
/* Rows of a weight and its bias, of a norm, and of q, k and v, or of their biases (".b", else ""), that are one
 * tensor. */
#define HF_BIASED(ours, theirs, how)                                                               \
    { ours, theirs ".weight", how }, { ours ".b", theirs ".bias", (how) & ~HF_TRANSPOSED }
#define HF_NORM(ours, theirs)                                                                      \
    { ours ".w", theirs ".weight", 0 }, { ours ".b", theirs ".bias", 0 }
/* clang-format off */
#define HF_QKV(bias, theirs, how)                                                                  \
    { "l%d.attn.q" bias, theirs, HF_Q | (how) }, { "l%d.attn.k" bias, theirs, HF_K | (how) },      \
    { "l%d.attn.v" bias, theirs, HF_V | (how) }
/* clang-format on */

/* ---- families ------------------------------------------------------------------------------ */
struct hf_family {
    const char *model_type, *architecture;
    const hf_key *keys;
    int n_keys;
    const hf_demand *demands;
    int n_demands;
    const char *act_key, *act_absent; /* the activation's key, and its name where it is missing */
    bool gated;                       /* the feed-forward layer is a gated one */
    /* Rotary positions: NULL for none, and no fraction_key where whole heads rotate. */
    const char *theta_key, *fraction_key;
    double fraction_absent, theta_absent;
    const char *prefix; /* of parameters; files of the bare model, without head, leave it out */
    const hf_param *params;
    int n_params;
    /* Other names of some parameters, which files may have instead; they are read and never written. */
    const hf_param *others;
    int n_others;
    /* Layers that differ: the digits of model.layer_pattern that config.json can express, in "layer_types" and, where
     * the family has such a key, in a list of 1 (rotary positions) and 0 (none). NULL: layers are alike. */
    const char *kinds, *rope_list;
    int full_step; /* without "layer_types" every n-th layer has no window; 0: all are like the window */
    const char *step_key; /* holds n */
    /* Layers with a window have rotary frequencies of their own: their base, and its key at the top level. */
    double local_theta;
    const char *local_theta_key;
    /* Windows are chunks ("chunked_attention"); without "layer_types", of layers with rotary positions. */
    bool chunks;
    bool norm_after_rope; /* of queries and keys, which no scaling may multiply then */
    bool mxfp4;           /* files may hold weights in 4 bits ("quantization_config") */
    /* Without an object for rotary positions transformers stretches them: it is written, and needed. */
    bool states_rope;
    bool plain_rope; /* no scaling of the rotary frequencies */
    /* No scaling but longrope, whose original context is a key at the top level. Without it that is this; 0: not so. */
    int64_t long_rope_context;
    /* Attention scores are scaled by what "mscale_all_dim", of the scaled frequencies, states. */
    bool scaled_scores;
    /* The number of first layers without experts: the row is of models in which these are all layers. NULL: of any. */
    const char *dense_key;
    bool
        more_layers; /* files may hold layers beyond the last, which predict further tokens: not read */
    /* Of several rows of one model_type, the one whose keys a file has; `any`: or lacks. */
    const hf_demand *when;
    int n_when;
};

/* The tensors that a model is written as, whatever the format of the file. */
typedef struct hf_tensor {
    const char *name;
    int ndim;
    int64_t dim[3], count;
} hf_tensor;
typedef struct hf_getter { /* gives parameter i, whole */
    err (*get)(void *ctx, int i, float *values);
    void *ctx;
    bool gradients; /* of the parameters: these have no offset (HF_LESS_ONE) */
} hf_getter;
typedef struct hf_tensors hf_tensors;
/* @param type of the models, for messages @param rows names and layouts */
err hf_tensors_open(const hf_family *family, const char *type, const hf_param *rows, int n_rows,
                    const model *m, hf_getter get, hf_tensors **out) MUST_USE;
void hf_tensors_close(hf_tensors *x); /* takes NULL */
int hf_tensors_count(const hf_tensors *x);
const hf_tensor *hf_tensors_at(const hf_tensors *x, int i);
/* @param values of tensor i, until the next call */
err hf_tensors_read(hf_tensors *x, int i, const float **values) MUST_USE;
/* Refuses values that became infinite in a narrower type. @param at of the first, for the message */
err hf_check_narrow(const char *name, dtype dt, int64_t at, const float *from, const void *to,
                    int64_t n) MUST_USE;

/* The tokens that begin and end documents, and the chat template of an imported model (empty: none). */
err hf_find_tokens(const hf_export *x, hf_tokens *out, str *chat_template) MUST_USE;

/* ---- weights in 4 bits, hf_mxfp4.c ---------------------------------------------------------- */
enum { HF_MXFP4_GROUP = 32 }; /* adjacent values of a row that share a factor */
/* Reads row `row` of the matrices that two tensors hold one after another. @param blocks [..., groups, 16] of two values
 * each @param scales [..., groups] */
void hf_mxfp4_row(const st_tensor *blocks, const st_tensor *scales, int64_t row, int64_t cols,
                  float *out);

/* Demands of every family: models that are not decoders, or whose weights are not plain numbers. */
extern const hf_demand hf_common_demands[];
extern const int hf_n_common_demands;
/* Kinds of rope scaling: their names, and their members of an object that describes rotary positions. */
typedef struct hf_rope_type {
    const char *theirs;
    rope_scaling_kind ours;
    const hf_key *keys;
    int n_keys;
} hf_rope_type;
const hf_rope_type *hf_rope_type_at(int i); /* NULL past the end */
/* @return whether the key is known to change nothing in what a model computes. */
bool hf_key_is_harmless(const char *key);

/* ---- reading and writing config.json: hf_config.c, and hf_layers.c for rotary positions and kinds of layers */
typedef struct hf_reader {
    const char *path;
    const hf_family *family;
    json_t *doc;
    model_config *c;
    str *unknown; /* keys that we do not know */
} hf_reader;
extern const char hf_other_model[]; /* remedy where ours have no counterpart */
err hf_wrong_value(const hf_reader *r, const char *name, const json_t *got,
                   const char *expected) MUST_USE;
double hf_json_number(const model_fact *f, const json_t *v); /* NaN: not of the fact's type */
/* @return a member by its name, "a.b": member b of the object a. */
json_t *hf_member(const json_t *object, const char *name);
void hf_set_member(json_t *object, const char *name, json_t *value); /* takes the value */
err hf_read_key(const hf_reader *r, const json_t *object, const hf_key *k) MUST_USE;
void hf_write_keys(json_t *object, const model_config *c, const hf_key *keys, int n);
void hf_note_unknown(const hf_reader *r, const char *object, const char *key);
err hf_read_rope(const hf_reader *r) MUST_USE;
err hf_read_layers(const hf_reader *r) MUST_USE;
void hf_write_rope(json_t *doc, const hf_family *family, const model_config *c);
void hf_write_layers(json_t *doc, const hf_family *family, const model_config *c);
/* @return what about the model's layers the family does not express, as a sentence's end; NULL: nothing */
const char *hf_layer_misfit(const hf_family *family, const model_config *c);
/* @return whether models of this row of the table have every fact of this one. */
bool hf_expresses(const hf_family *family, const model_config *trained);

/* Sets the biases that the family's models have and c may lack: those written as zeros. */
void hf_add_biases(const hf_family *family, model_config *c);

/* Reads the weights of a Hugging Face folder one parameter at a time: memory is that of the largest. */
typedef struct hf_source {
    const hf_family *family;
    const st_file *f; /* borrowed, as the model */
    const model *m;
    arena *mem;
    uint8_t *used; /* [tensors of f] */
    void *values, *column;
    size_t value_bytes, column_bytes;
    const st_tensor *mapped; /* read last, whose pages are released by the next call; NULL: none */
} hf_source;
err hf_source_open(const hf_family *family, const st_file *f, const model *m,
                   hf_source *out) MUST_USE;
/* @param values all elements of parameter i, until the next call */
err hf_source_read(hf_source *s, int i, const float **values) MUST_USE;
/* Refuses a file that holds more than the model; once every parameter has been read. */
err hf_source_end(hf_source *s) MUST_USE;
void hf_source_close(hf_source *s); /* takes a zeroed one */

#endif
