/* A build without cuDNN: attention.cu does all of it. */
#include "cuda_internal.h"

err cuda_attention_new(struct cuda_attention **out) {
    *out = NULL;
    return OK;
}
void cuda_attention_free(struct cuda_attention *a) {}
size_t cuda_attention_cudnn_bytes(const cuda_device *d, const op_call *c) { return 0; }
bool cuda_attention_cudnn(const op_call *c) { return false; }
size_t cuda_attention_version(void) { return 0; }
