/* What the product files share: a plan and what it depends on.
 *
 *     products.c        finds the plan of a product and runs it
 *     products_tune.c   chooses a plan's algorithm by trying those cuBLASLt offers
 *     products_file.c   keeps the choices from one run to the next
 */
#ifndef INGOT_OPS_CUDA_PRODUCTS_INTERNAL_H
#define INGOT_OPS_CUDA_PRODUCTS_INTERNAL_H

#include <cublasLt.h>

#include "cuda_internal.h"

/* What a plan depends on. All of one type, so that keys can be compared as bytes and written as a
 * row of numbers.
 *   align  what all addresses divide by, in bytes, 256 at most */
/* clang-format off */
#define PLAN_KEY(X)                                                                                \
    X(m) X(n) X(k) X(lda) X(ldb) X(ldc) X(at) X(bt) X(ct) X(ta) X(tb) X(accumulate) X(exact)       \
    X(fast) X(bias) X(gelu) X(dgelu) X(align)
/* clang-format on */
#define PLAN_KEY_FIELD(name) int64_t name;
typedef struct plan_key {
    PLAN_KEY(PLAN_KEY_FIELD)
} plan_key;
#undef PLAN_KEY_FIELD
enum { PLAN_KEY_FIELDS = sizeof(plan_key) / sizeof(int64_t) };

typedef struct plan {
    plan_key key;
    bool usable; /* false: cuBLASLt has nothing for it */
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
} plan;

struct cuda_products {
    cublasLtHandle_t blas;
    plan **plan;
    int n, cap;
    struct plan_file *file; /* products_file.c; NULL: nothing is kept */
};

/* ---- products.c ------------------------------------------------------------------------------ */
typedef struct plan_memory {
    void *workspace;
    size_t bytes;
} plan_memory;
/* C = alpha AB + (beta) C by this algorithm, as p->op says. */
cublasStatus_t plan_run(cuda_context *x, const plan *p, const cublasLtMatmulAlgo_t *algo,
                        const cuda_gemm *g, float alpha, plan_memory m);

/* ---- products_tune.c ------------------------------------------------------------------------- */
/* Sets p->algo and p->usable. C of g holds afterwards what it held, or what the product will
 * overwrite. */
void plan_choose(cuda_context *x, plan *p, const cuda_gemm *g, plan_memory m);

/* ---- products_file.c ------------------------------------------------------------------------- */
struct plan_file *plan_file_open(int device); /* NULL: nothing can be kept; the others take it */
void plan_file_close(struct plan_file *f);
/* @return which of these n algorithms was kept as the fastest, -1: none. */
int plan_file_pick(const struct plan_file *f, const plan_key *key,
                   const cublasLtMatmulHeuristicResult_t *offer, int n);
void plan_file_keep(struct plan_file *f, const plan_key *key, const cublasLtMatmulAlgo_t *algo);

#endif
