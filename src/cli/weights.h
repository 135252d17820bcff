/* A trained model opened for use: what sample, eval, export and import share. */
#ifndef INGOT_CLI_WEIGHTS_H
#define INGOT_CLI_WEIGHTS_H

#include "eval/eval.h"

typedef struct weights {
    const op_backend *ops; /* from ops_open */
    model *m;
    plan *p;
    exec x;
    ckpt_state state;
    char *path; /* of the checkpoint, owned */
    /* Given before opening: with g, generation is recorded too. */
    struct {
        generator *g;
        int64_t positions; /* 0: as many as the model has */
        int slots;         /* sequences at a time */
    } generate;
    dtype dt; /* given before opening: of activations and weights in GEMMs; DT_NONE: fp32 */
    /* Given before opening: with rows > 0 a chain for the loss of rows of seq tokens is recorded too. */
    struct {
        score_chains on; /* seq 0: the default, at most 1024 */
        bool shares;     /* sequences share beginnings, where the model can */
    } eval;
} weights;

/* The tokenizer a run was trained with: "bytes" for plain text, else the tokenizer.json beside its
 * checkpoints. NULL when there is none. */
err weights_tokenizer(const weights *w, tokenizer **out) MUST_USE;
/* Opens the device that --device and --device.index choose. @param kind NULL: auto. */
err weights_device(const char *kind, int64_t index, ops_choice *out) MUST_USE;
/* Reads the type that --dtype chooses: fp32 or bf16. @param name NULL: fp32. */
err weights_dtype(const char *name, dtype *out) MUST_USE;
/* Opens a run's newest checkpoint, or a Hugging Face folder. */
err weights_open(const char *run, const ops_choice *on, weights *w) MUST_USE;
/* The same without memory for the weights: w->m has their names and shapes. */
err weights_describe(const char *run, weights *w) MUST_USE;
void weights_free(weights *w); /* takes a zeroed one */
/* Warns of a prompt that is longer than the context, since its beginning is not read. @param n its tokens */
void weights_check_prompt(const generator *g, int64_t n);

#endif
