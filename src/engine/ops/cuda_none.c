/* Replaces ops/cuda in a build without CUDA: every call is an error that says so. */
#include "ops/ops.h"

int ops_cuda_count(void) { return 0; }

err ops_cuda_check(int number) {
    return err_hint(ERR("this ingot was built without CUDA"),
                    "build it with \"cmake --preset cuda\", or use the CPU: --device cpu");
}

err ops_cuda_open(int number, int flags, op_backend **out) { return ops_cuda_check(number); }
err ops_cuda_describe(int number, ops_gpu_info *out) { return ops_cuda_check(number); }
err ops_cuda_measure(const op_backend *b, ops_gpu_speed *out) { return ops_cuda_check(0); }

void ops_cuda_close(op_backend *b) {}
