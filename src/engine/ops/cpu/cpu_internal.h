/* Shared by the CPU ops. Every file of this folder but ops_cpu.c is compiled once for each
 * instruction set, with CPU_ISA naming it and the compiler's flags allowing it; CPU(f) gives each
 * copy its own symbol. Only ops_cpu.c looks at the processor at run time, and chooses a copy.
 */
#ifndef INGOT_OPS_CPU_INTERNAL_H
#define INGOT_OPS_CPU_INTERNAL_H

#include "ops/op_attrs.h"

#ifndef CPU_ISA
#define CPU_ISA portable /* for editors; the build always sets it */
#endif
#define CPU_PASTE2(a, b) a##_##b
#define CPU_PASTE(a, b)  CPU_PASTE2(a, b)
#define CPU(name)        CPU_PASTE(name, CPU_ISA)

/* Registers the kernel of an op, at the end of the file that has it: its id in ops.def, the function, its workspace, the
 * attributes that it honors. */
#define KERNEL(id, ...) OP_KERNEL(CPU(kernel_##id), __VA_ARGS__)

enum { CPU_MAX_THREADS = 256 };

/* ---- rows ---------------------------------------------------------------------------------
 * The common pattern of an op: get a row as fp32 (in place when it is fp32 already, else converted into
 * `tmp`), compute, put it back in the tensor's type. */
const float *CPU(row_get)(const tensor *t, int64_t row, int64_t cols, float *tmp);
/* @return where to compute the row: the tensor itself when fp32, else `tmp`; then call row_put. */
float *CPU(row_at)(const tensor *t, int64_t row, int64_t cols, float *tmp);
void CPU(row_put)(const tensor *t, int64_t row, int64_t cols, const float *from);
/* Converters of n elements; vectorized for the instruction set. */
void CPU(to_f32)(dtype dt, const void *src, float *dst, int64_t n);
void CPU(from_f32)(dtype dt, const float *src, void *dst, int64_t n);

/* ---- GEMM ---------------------------------------------------------------------------------
 * C[M,N] (+)= A[M,K] B[K,N], row major with row strides in elements; ta/tb: the operand is stored
 * transposed (A as [K,M], B as [N,K]). Operands of one call may differ in type: bf16 x bf16 uses the
 * processor's bf16 instructions, if it has any; everything else, fp8 too, is converted to fp32 as it is
 * packed. C may be fp32, bf16 or fp16; sums are fp32. `bias` [N] and `gelu` (with `pre`, the value before
 * it) are applied as a tile is stored. */
typedef struct gemm {
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    dtype at, bt, ct;
    int64_t lda, ldb, ldc;
    bool ta, tb;
    bool accumulate; /* C += */
    float alpha;     /* 0 means 1 */
    const void *bias;
    dtype bias_t;
    bool gelu;
    act_kind act;
    void *pre; /* [M, N], type ct, stride ldc */
} gemm;
/* @return the GEMM of contiguous matrices, c = op(a) op(b), where op transposes if ta or tb is set. */
gemm CPU(gemm_of)(const tensor *a, bool ta, const tensor *b, bool tb, const tensor *c);
void CPU(gemm_run)(const gemm *g, pool *p, void *workspace, size_t workspace_bytes);
size_t CPU(gemm_workspace)(const gemm *g, int threads);
/* For this GEMM and every one with a smaller m. */
size_t CPU(gemm_workspace_rows)(const gemm *g, int threads);
/* For this GEMM and every one with a smaller m or k. */
size_t CPU(gemm_workspace_most)(const gemm *g, int threads);

/* GELU of n values of type t, fp32 or bf16, in place or not: the one that GEMMs fuse and the one that
 * recompute runs are the same code, so that they agree to the bit. */
void CPU(gelu_values)(act_kind act, dtype t, const void *x, void *y, int64_t n);

/* out[cols] (+)= the sum of t's rows. @param workspace sum_columns_bytes. */
void CPU(sum_columns)(const tensor *t, const tensor *out, bool add, pool *p, void *workspace);
size_t CPU(sum_columns_bytes)(int64_t rows, int64_t cols);

/* The kernels, one op per line. */
void CPU(gelu)(const op_call *c);
void CPU(gelu_bwd)(const op_call *c);
void CPU(swiglu)(const op_call *c);
void CPU(swiglu_bwd)(const op_call *c);
void CPU(quantize)(const op_call *c);

size_t CPU(norm_workspace)(const op_backend *b, const op_call *c, int threads);
size_t CPU(attention_workspace)(const op_backend *b, const op_call *c, int threads);

#endif
