/* Shared by the GEMM files: a GEMM whose algorithm has been chosen, and the key it is found by.
 *
 *     gemm.c             looks a GEMM up by its key and runs it
 *     gemm_autotune.c    chooses its algorithm by timing those that cuBLASLt offers, and our own kernel
 *     gemm_cache_file.c  keeps the choices from one run to the next
 *     gemm_hopper.cu     our own kernel
 */
#ifndef INGOT_OPS_CUDA_GEMM_INTERNAL_H
#define INGOT_OPS_CUDA_GEMM_INTERNAL_H

#include <cublasLt.h>

#include "cuda_internal.h"

/* Key by which the algorithm of a GEMM is chosen. All fields have one type, so that keys can be compared
 * as bytes and written as a row of numbers.
 *   own    whether our own kernel is offered
 *   align  a power of two that divides all addresses, in bytes; at most 256 */
/* clang-format off */
#define GEMM_KEY(X)                                                                                \
    X(m) X(n) X(k) X(lda) X(ldb) X(ldc) X(at) X(bt) X(ct) X(ta) X(tb) X(accumulate) X(exact)       \
    X(fast) X(bias) X(gelu) X(dgelu) X(own) X(align)
/* clang-format on */
#define GEMM_KEY_FIELD(name) int64_t name;
typedef struct gemm_key {
    GEMM_KEY(GEMM_KEY_FIELD)
} gemm_key;
#undef GEMM_KEY_FIELD
enum { GEMM_KEY_FIELDS = sizeof(gemm_key) / sizeof(int64_t) };

/* An algorithm of cuBLASLt, or our own kernel. */
typedef struct gemm_algo {
    bool own;
    cublasLtMatmulAlgo_t blas;
} gemm_algo;

/* A GEMM as cuBLASLt knows it, with its algorithm. Owned by the cache. */
typedef struct tuned_gemm {
    gemm_key key;
    bool usable; /* false: there is no algorithm for it */
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c;
    gemm_algo algo;
} tuned_gemm;

struct cuda_gemm_cache {
    cublasLtHandle_t blas;
    tuned_gemm **gemm;
    int n, cap;
    struct gemm_cache_file *file; /* NULL: nothing is read from disk or written to it */
};

/* ---- gemm.c ---------------------------------------------------------------------------------- */
typedef struct gemm_workspace {
    void *memory;
    size_t bytes;
} gemm_workspace;
/* Queues C = alpha AB + beta C with this algorithm, as t->op describes it. */
cublasStatus_t tuned_gemm_run(cuda_context *x, const tuned_gemm *t, const gemm_algo *algo,
                              const cuda_gemm *g, gemm_workspace w);

/* ---- gemm_autotune.c ------------------------------------------------------------------------- */
/* Sets t->algo and t->usable. Afterwards C of g holds what it held before, or values that the GEMM
 * itself will overwrite. */
void tuned_gemm_choose(cuda_context *x, tuned_gemm *t, const cuda_gemm *g, gemm_workspace w);

/* ---- gemm_cache_file.c ----------------------------------------------------------------------- */
/* @return owned; NULL without a folder to keep it in, which the functions below accept. */
struct gemm_cache_file *gemm_cache_file_open(int device);
void gemm_cache_file_close(struct gemm_cache_file *f);
/* @return which of these n algorithms the file names as the fastest; -1: none. */
int gemm_cache_file_pick(const struct gemm_cache_file *f, const gemm_key *key,
                         const gemm_algo *offer, int n);
void gemm_cache_file_save(struct gemm_cache_file *f, const gemm_key *key, const gemm_algo *algo);

#endif
