/* A build without CUDA has no GPU backend. */
#include "ops/ops.h"

int ops_cuda_count(void) { return 0; }

err ops_cuda_open(int number, bool deterministic, op_backend **out) {
    return err_hint(ERR("this ingot was built without CUDA"),
                    "build it with \"cmake --preset cuda\", or train with device=cpu");
}

err ops_cuda_describe(int number, ops_gpu_info *out) {
    return ERR("this ingot was built without CUDA");
}

void ops_cuda_close(op_backend *b) {}
