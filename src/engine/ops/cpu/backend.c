/* The backend of one instruction set: its table of kernels. */
#include "kernel/kernel_internal.h"
#include "ops/op_table.h"

/* The kernel of every op: an op without one does not link, and the linker names it. */
#define OP(id, ...) extern const op_impl CPU(kernel_##id);
#define OP_EXTERN(id, ...)
#include "ops/ops.def"
static const op_impl *const kernels[OP_COUNT] = {
#define OP(id, ...)        [OP_##id] = &CPU(kernel_##id),
#define OP_EXTERN(id, ...) [OP_##id] = &(const op_impl){ 0 },
#include "ops/ops.def"
};

static double burn_flops(dtype dt, int64_t rounds) {
    const gemm_kernel *k = dt == DT_BF16 ? CPU(gemm_bf16_kernel) : &CPU(gemm_f32_kernel);
    if (k->enter) k->enter();
    double done = k->burn(rounds);
    if (k->leave) k->leave();
    return done;
}

#define CPU_STRING2(x) #x
#define CPU_STRING(x)  CPU_STRING2(x)

extern const op_backend CPU(backend);
const op_backend CPU(backend) = {
    .name = CPU_STRING(CPU_ISA),
    .bf16_gemm = CPU_BF16_GEMM,
    /* also where GEMMs in bf16 run as fp32: a plan for a GPU prices what is recorded */
    .polar = DT_BF16,
    .impl = kernels,
    .burn = burn_flops,
};
