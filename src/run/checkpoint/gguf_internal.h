/* GGUF, the file format of llama.cpp: metadata as pairs of key and value, then tensors. Written only. */
#ifndef INGOT_GGUF_INTERNAL_H
#define INGOT_GGUF_INTERNAL_H

#include "checkpoint/hf_internal.h"

/* ---- metadata, gguf_meta.c ------------------------------------------------------------------- */
typedef struct gguf_meta {
    str bytes;
    uint64_t pairs;
} gguf_meta;
void gguf_add_integer(gguf_meta *m, const char *key, int64_t value); /* unsigned, 32 bits */
void gguf_add_real(gguf_meta *m, const char *key, double value);
void gguf_add_bool(gguf_meta *m, const char *key, bool value);
void gguf_add_text(gguf_meta *m, const char *key, const char *value);
/* Arrays of n members. */
void gguf_add_integers(gguf_meta *m, const char *key, const int32_t *value, size_t n);
void gguf_add_reals(gguf_meta *m, const char *key, const float *value, size_t n);
void gguf_add_texts(gguf_meta *m, const char *key, const char *const *value, size_t n);
/* Numbers in the file's order of bytes, and texts behind their lengths. */
void gguf_put(str *to, uint64_t value, int bytes);
void gguf_put_text(str *to, const char *text);

/* ---- architectures, gguf_models.c ------------------------------------------------------------ */
#define GGUF_CONV "ssm_conv1d.weight" /* a tensor that is fp32 in every file, behind its layer */
/* A family of ours as llama.cpp calls it. */
typedef struct gguf_model {
    const char *family, *name;
    const hf_param *params;
    int n_params;
    bool own_head;     /* it reads no model whose head is the embedding */
    bool shares;       /* experts' weights are not divided by their sum, where else they must be */
    bool even_heads;   /* all heads together are as wide as the model */
    bool all_kv;       /* no grouped queries */
    int64_t pattern;   /* model.layer_pattern, which it has built in */
    bool windows;      /* it reads the window, which others lack */
    bool routes;       /* it reads how experts are weighted, and how many first layers are dense */
    bool groups;       /* it reads groups of experts */
    bool interleaved;  /* it reads which layers have experts */
    bool biased;       /* it reads no attention without the biases that its models have */
    bool yarn;         /* it reads stretched frequencies of this kind */
    bool long_rope;    /* it reads the two lists of longrope */
    bool local;        /* layers with a window have a base of their own, and are not stretched */
    bool tied;         /* it reads no head */
    bool own_scale;    /* it computes the factor of scores itself, as Gemma's models have it */
    bool caps;         /* it bounds scores and logits */
    bool delta;        /* it reads how often a layer is attention instead of gated DeltaNet */
    bool chunks;       /* its windows are chunks, of Llama 4's sizes */
    mlp_kind mlp;      /* the activation of its models that have a gate */
    const char *norms; /* of a block, where a family has several: "one" or "two" */
} gguf_model;
/* @return the row for a model of this family; NULL: llama.cpp has none */
const gguf_model *gguf_model_of(const hf_family *family, const model_config *c);
/* Refuses what llama.cpp would compute otherwise. */
err gguf_check_model(const gguf_model *g, const model_config *c) MUST_USE;
void gguf_add_model(gguf_meta *m, const gguf_model *g, const model_config *c);

/* ---- the tokenizer, gguf_tokenizer.c --------------------------------------------------------- */
/* @param vocab ids of the model; those beyond the tokenizer's are called unused */
err gguf_add_tokenizer(gguf_meta *m, const tokenizer *t, hf_tokens tokens, int64_t vocab) MUST_USE;

#endif
