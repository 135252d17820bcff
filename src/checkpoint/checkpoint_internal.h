/* checkpoint, inside: the manifest of a saved state. */
#ifndef INGOT_CHECKPOINT_INTERNAL_H
#define INGOT_CHECKPOINT_INTERNAL_H

#include "checkpoint/checkpoint.h"

#define CKPT_MODEL_FILE    "model.safetensors"
#define CKPT_OPTIM_FILE    "optim.safetensors"
#define CKPT_MANIFEST_FILE "manifest.json"

/* Reads a checkpoint's manifest and checks format and checksum. @param doc owned: json_decref. */
err manifest_read(const char *folder, json_t **doc) MUST_USE;
/* @return whether the manifest has a format that this version does not know; false when it is unreadable. */
bool manifest_is_of_later_version(const char *folder);
/* Writes the manifest of a folder whose other files are complete: it lists and hashes `names`.
 * @param run borrowed; may be NULL. */
err manifest_write(const char *folder, const model_config *c, const ckpt_state *s,
                   const json_t *run, const char *const *names, int n) MUST_USE;
/* @return whether the manifest lists a file of this name. */
bool manifest_lists(const json_t *doc, const char *name);
/* Compares a file with the size and the checksum that the manifest gives for it. */
err manifest_verify_file(const char *folder, const json_t *doc, const char *name) MUST_USE;
/* @return whether the last step before the checkpoint had a finite loss, as far as is known. */
bool manifest_loss_is_finite(const json_t *doc);

/* ---- shard.c: tensors of the whole model, from and to what ranks hold of them -------------- */
/* Every rank gets the whole parameter. */
err shard_get_weights(const model *m, exec *x, int param, float *whole) MUST_USE;
void shard_put_weights(const model *m, exec *x, int param, const float *whole);
/* Elements of a state of the whole parameter. */
int64_t shard_state_count(const model *m, const optimizer *o, int param, int state);
err shard_get_state(const model *m, exec *x, const optimizer *o, int param, int state,
                    float *whole) MUST_USE;
void shard_put_state(const model *m, optimizer *o, int param, int state, const float *whole);

#endif
