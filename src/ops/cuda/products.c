/* Products through cuBLASLt. A plan is made once for each shape: the library's candidates are run
 * on scratch memory and the fastest kept. cuBLASLt is column major, so that the row-major
 * C = op(A) op(B) is asked of it as C^T = op(B)^T op(A)^T: the operands change places, nothing
 * moves. */
#include "cuda_internal.h"

#include <cublasLt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CANDIDATES = 8, REPEATS = 3, MOST_TRIAL_BYTES = 1 << 30 };

/* What a plan depends on. Compared as bytes: no padding, every byte set. */
typedef struct plan_key {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t in, out, bias; /* dtypes; bias DT_NONE: none */
    int32_t ta, tb, accumulate, gelu, exact;
} plan_key;

typedef struct plan {
    plan_key key;
    bool usable;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
} plan;

struct cuda_products {
    cublasLtHandle_t blas;
    plan **plan;
    int n, cap;
};

static const cudaDataType_t types[DT_COUNT] = {
    [DT_F32] = CUDA_R_32F,
    [DT_BF16] = CUDA_R_16BF,
    [DT_F16] = CUDA_R_16F,
};

static bool blas_ok(cuda_context *x, cublasStatus_t status, const char *what) {
    if (status == CUBLAS_STATUS_SUCCESS) return true;
    if (!x->fault) x->fault = ERR("cuBLASLt: %s: %s", what, cublasLtGetStatusString(status));
    return false;
}

err cuda_products_new(struct cuda_products **out) {
    struct cuda_products *p = mem_alloc(sizeof *p);
    cublasStatus_t status = cublasLtCreate(&p->blas);
    if (status != CUBLAS_STATUS_SUCCESS) {
        free(p);
        return ERR("cuBLASLt does not start: %s", cublasLtGetStatusString(status));
    }
    *out = p;
    return OK;
}

size_t cuda_products_version(void) { return cublasLtGetVersion(); }

static void plan_free(plan *p) {
    if (p->a) cublasLtMatrixLayoutDestroy(p->a);
    if (p->b) cublasLtMatrixLayoutDestroy(p->b);
    if (p->c) cublasLtMatrixLayoutDestroy(p->c);
    if (p->op) cublasLtMatmulDescDestroy(p->op);
    free(p);
}

void cuda_products_free(struct cuda_products *p) {
    if (!p) return;
    for (int i = 0; i < p->n; i++) plan_free(p->plan[i]);
    free(p->plan);
    cublasLtDestroy(p->blas);
    free(p);
}

/* ---- plans ------------------------------------------------------------------------------------- */

static plan_key key_of(const cuda_gemm *g) {
    plan_key k;
    memset(&k, 0, sizeof k);
    k.m = g->m, k.n = g->n, k.k = g->k;
    k.lda = g->lda, k.ldb = g->ldb, k.ldc = g->ldc;
    k.in = (int32_t)g->at, k.out = (int32_t)g->ct;
    k.bias = g->bias ? (int32_t)g->bias_t : DT_NONE;
    k.ta = g->ta, k.tb = g->tb, k.accumulate = g->accumulate, k.gelu = g->gelu, k.exact = g->exact;
    return k;
}

static void set(plan *p, cublasLtMatmulDescAttributes_t name, const void *value, size_t bytes) {
    cublasLtMatmulDescSetAttribute(p->op, name, value, bytes);
}

static void describe(plan *p) {
    const plan_key *k = &p->key;
    bool tf32 = k->in == DT_F32 && !k->exact;
    cublasComputeType_t compute = tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublasLtMatmulDescCreate(&p->op, compute, CUDA_R_32F);
    cublasOperation_t first = k->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = k->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    set(p, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
    set(p, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    if (k->bias) epilogue = CUBLASLT_EPILOGUE_BIAS;
    if (k->gelu) epilogue = k->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (k->bias)
        set(p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &types[k->bias], sizeof(cudaDataType_t));
    if (k->gelu) {
        set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &k->ldc, sizeof k->ldc);
        set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, &types[k->out], sizeof(cudaDataType_t));
    }
    uint64_t bk = (uint64_t)k->k, bn = (uint64_t)k->n, am = (uint64_t)k->m;
    cublasLtMatrixLayoutCreate(&p->a, types[k->in], k->tb ? bk : bn, k->tb ? bn : bk, k->ldb);
    cublasLtMatrixLayoutCreate(&p->b, types[k->in], k->ta ? am : bk, k->ta ? bk : am, k->lda);
    cublasLtMatrixLayoutCreate(&p->c, types[k->out], bn, am, k->ldc);
}

/* The addresses an epilogue reads and writes are part of the descriptor. */
static void point(plan *p, const cuda_gemm *g) {
    if (g->bias) set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias, sizeof g->bias);
    if (g->gelu) set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &g->pre, sizeof g->pre);
}

static cublasStatus_t run(cuda_context *x, plan *p, const cublasLtMatmulAlgo_t *algo,
                          const cuda_gemm *g, void *c, void *workspace, size_t bytes) {
    float alpha = g->alpha == 0 ? 1 : g->alpha, beta = g->accumulate ? 1 : 0;
    return cublasLtMatmul(x->products->blas, p->op, &alpha, g->b, p->a, g->a, p->b, &beta, c, p->c,
                          c, p->c, algo, workspace, bytes, x->stream);
}

/* Runs each candidate on the operands as they are, into scratch memory. @return the fastest. */
static int fastest(cuda_context *x, plan *p, const cublasLtMatmulHeuristicResult_t *found, int n,
                   const cuda_gemm *g, void *workspace, size_t bytes) {
    size_t size = (size_t)(g->m * g->ldc) * dt_size(g->ct);
    void *scratch = NULL;
    cudaEvent_t from, to;
    int best = 0;
    float least = 0;
    if (n < 2 || size > MOST_TRIAL_BYTES || cudaMalloc(&scratch, size) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    cudaMemsetAsync(scratch, 0, size, x->stream);
    cudaEventCreate(&from);
    cudaEventCreate(&to);
    for (int i = 0; i < n; i++) {
        float ms = 0;
        bool good = run(x, p, &found[i].algo, g, scratch, workspace, bytes) == 0;
        cudaEventRecord(from, x->stream);
        for (int r = 0; good && r < REPEATS; r++)
            good = run(x, p, &found[i].algo, g, scratch, workspace, bytes) == 0;
        cudaEventRecord(to, x->stream);
        if (!good || cudaEventSynchronize(to) != cudaSuccess) continue;
        cudaEventElapsedTime(&ms, from, to);
        if (least == 0 || ms < least) least = ms, best = i;
    }
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    cudaFree(scratch);
    return best;
}

static void choose(cuda_context *x, plan *p, const cuda_gemm *g, void *workspace, size_t bytes) {
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int n = 0;
    cublasLtMatmulPreferenceCreate(&preference);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &bytes, sizeof bytes);
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        x->products->blas, p->op, p->a, p->b, p->c, p->c, preference, CANDIDATES, found, &n);
    cublasLtMatmulPreferenceDestroy(preference);
    if (status != CUBLAS_STATUS_SUCCESS || n == 0) return;
    p->algo = found[fastest(x, p, found, n, g, workspace, bytes)].algo;
    p->usable = true;
}

static plan *plan_for(cuda_context *x, const cuda_gemm *g, void *workspace, size_t bytes) {
    struct cuda_products *all = x->products;
    plan_key key = key_of(g);
    for (int i = 0; i < all->n; i++)
        if (memcmp(&all->plan[i]->key, &key, sizeof key) == 0) return all->plan[i];
    plan *p = mem_alloc(sizeof *p);
    p->key = key;
    describe(p);
    point(p, g);
    choose(x, p, g, workspace, bytes);
    mem_reserve((void **)&all->plan, &all->cap, all->n, sizeof *all->plan);
    all->plan[all->n++] = p;
    return p;
}

bool cuda_multiply(cuda_context *x, const cuda_gemm *g, void *workspace, size_t bytes) {
    BUG_IF(g->at != g->bt);
    plan *p = plan_for(x, g, workspace, bytes);
    if (!p->usable) {
        if (!g->bias && !g->gelu)
            blas_ok(x, CUBLAS_STATUS_NOT_SUPPORTED, "no algorithm for a product");
        return false;
    }
    point(p, g);
    return blas_ok(x, run(x, p, &p->algo, g, g->c, workspace, bytes), "product");
}

/* ---- the peak ------------------------------------------------------------------------------------ */

/* Random bits with exponents near that of 1: a product of zeros would run faster than data does. */
static void fill(void *host, size_t bytes, dtype dt) {
    rng_key key = rng_key_of(1, 2);
    for (size_t i = 0; i < bytes / dt_size(dt); i++) {
        float v = rng_uniform(key, i & 0xffff) - 0.5f;
        dt_from_f32(dt, &v, (char *)host + i * dt_size(dt), 1);
    }
}

double cuda_peak(cuda_context *x, dtype dt) {
    enum { SIDE = 8192, ROUNDS = 10 };
    size_t bytes = (size_t)SIDE * SIDE * dt_size(dt);
    char *room = NULL, *host = mem_alloc(bytes);
    double best = NAN;
    if (cudaMalloc((void **)&room, 3 * bytes + CUDA_GEMM_WORKSPACE) != cudaSuccess) {
        cudaGetLastError();
        free(host);
        return NAN;
    }
    fill(host, bytes, dt);
    cudaMemcpy(room, host, bytes, cudaMemcpyHostToDevice);
    cudaMemcpy(room + bytes, host, bytes, cudaMemcpyHostToDevice);
    cuda_gemm g = { .m = SIDE, .n = SIDE, .k = SIDE, .lda = SIDE, .ldb = SIDE, .ldc = SIDE };
    g.a = room, g.b = room + bytes, g.c = room + 2 * bytes;
    g.at = g.bt = g.ct = dt;
    g.tb = g.exact = true;
    for (int i = 0; i < ROUNDS; i++) {
        cudaStreamSynchronize(x->stream);
        double from = time_now();
        if (!cuda_multiply(x, &g, room + 3 * bytes, CUDA_GEMM_WORKSPACE)) break;
        if (cudaStreamSynchronize(x->stream) != cudaSuccess) break;
        double rate = 2.0 * SIDE * SIDE * SIDE / (time_now() - from);
        if (!(rate < best)) best = rate;
    }
    cudaFree(room);
    free(host);
    return best;
}
