/* Hugging Face families as data (hf_families.c), read by what exchanges config.json (hf_config.c) and
 * weights (hf_params.c). */
#ifndef INGOT_HF_INTERNAL_H
#define INGOT_HF_INTERNAL_H

#include "checkpoint/checkpoint.h"

/* ---- kept files, hf_files.c ------------------------------------------------------------------ */
#define HF_TOKENS_MAP      "special_tokens_map.json"
#define HF_CHAT_TEMPLATE   "chat_template.jinja"
#define HF_IMPORTED_CONFIG "hf_config.json" /* config.json of the folder that was imported */
/* @param out owned; NULL: there is no such file */
err hf_read_if_there(const char *path, json_t **out) MUST_USE;
/* The id of the token that a member names. @return -1: none. @param tok may be NULL */
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
} hf_default;

typedef enum {
    HF_USED,    /* the key holds the fact */
    HF_IMPLIED, /* models of the family have this value; a key, where named, must agree */
    HF_ZEROS,   /* the same, of biases: a model without them is written with zeros */
    HF_FIRST_N, /* the key lists layers; only the first n, 0 to n - 1, have a counterpart, n */
} hf_use;

/* A fact of a model as a family expresses it. */
typedef struct hf_key {
    const char *theirs; /* in config.json; NULL: none */
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
/* How our [rows, cols] lies in their tensor:
 *   0           the same
 *   TRANSPOSED  [cols, rows]: GPT-2 computes x W instead of x W^T
 *   Q, K, V     a third of a tensor with three times the rows, the thirds contiguous
 *   BY_HEAD     with Q, K or V: the thirds alternate by head, q0 k0 v0 q1 k1 v1 ...
 *   EXPERT      matrix e of [experts, rows, cols], where e is the parameter's second number
 *   GATE, UP    with EXPERT: the first and the second half of such a matrix's rows
 *   PAIRED      rows of a head that rotate together are adjacent, where ours are half a head apart */
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
    HF_THIRD = HF_Q | HF_K | HF_V
};
typedef struct hf_param {
    const char *ours, *theirs; /* %d: the layer */
    int how;
} hf_param;

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

/* Demands of every family: models that are not decoders, or whose weights are not plain numbers. */
extern const hf_demand hf_common_demands[];
extern const int hf_n_common_demands;
/* Members of an object that describes rotary positions, a llama3 scaling among them. */
extern const hf_key hf_scaling_keys[];
extern const int hf_n_scaling_keys;
/* @return whether the key is known to change nothing in what a model computes. */
bool hf_key_is_harmless(const char *key);

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
} hf_source;
err hf_source_open(const hf_family *family, const st_file *f, const model *m,
                   hf_source *out) MUST_USE;
/* @param values all elements of parameter i, until the next call */
err hf_source_read(hf_source *s, int i, const float **values) MUST_USE;
/* Refuses a file that holds more than the model; once every parameter has been read. */
err hf_source_end(hf_source *s) MUST_USE;
void hf_source_close(hf_source *s); /* takes a zeroed one */

#endif
