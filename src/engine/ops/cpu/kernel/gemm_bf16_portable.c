/* bf16 GEMM where the processor cannot multiply bf16: the panels are converted to fp32 as they are packed,
 * which is exact, and the fp32 kernel multiplies them. */
#include "kernel_internal.h"

const gemm_kernel *const CPU(gemm_bf16_kernel) = &CPU(gemm_f32_kernel);
