/* Products through cuBLASLt. A plan is made once for each shape. cuBLASLt is column major, so that
 * the row-major C = op(A) op(B) is asked of it as C^T = op(B)^T op(A)^T: the operands change places,
 * nothing moves. */
#include "products_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const cudaDataType_t types[DT_COUNT] = {
    [DT_F32] = CUDA_R_32F,      [DT_BF16] = CUDA_R_16BF,    [DT_F16] = CUDA_R_16F,
    [DT_E4M3] = CUDA_R_8F_E4M3, [DT_E5M2] = CUDA_R_8F_E5M2,
};

static bool blas_ok(cuda_context *x, cublasStatus_t status, const char *what) {
    if (status == CUBLAS_STATUS_SUCCESS) return true;
    if (!x->fault) x->fault = ERR("cuBLASLt: %s: %s", what, cublasLtGetStatusString(status));
    return false;
}

err cuda_products_new(const cuda_context *x, struct cuda_products **out) {
    struct cuda_products *p = mem_alloc(sizeof *p);
    cublasStatus_t status = cublasLtCreate(&p->blas);
    if (status != CUBLAS_STATUS_SUCCESS) {
        free(p);
        return ERR("cuBLASLt does not start: %s", cublasLtGetStatusString(status));
    }
    if (!x->deterministic) p->file = plan_file_open(x->device);
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
    plan_file_close(p->file);
    cublasLtDestroy(p->blas);
    free(p);
}

/* ---- plans ------------------------------------------------------------------------------------- */

static bool is_fp8(dtype dt) { return dt == DT_E4M3 || dt == DT_E5M2; }

/* What cuBLASLt may assume of the addresses: their lowest set bit, 256 at most. */
static int64_t alignment(const cuda_gemm *g) {
    uintptr_t all = (uintptr_t)g->a | (uintptr_t)g->b | (uintptr_t)g->c | 256;
    if (g->bias) all |= (uintptr_t)g->bias;
    if (g->gelu || g->dgelu) all |= (uintptr_t)g->pre;
    return (int64_t)(all & -all);
}

static plan_key key_of(const cuda_gemm *g) {
    return (plan_key){ .m = g->m,
                       .n = g->n,
                       .k = g->k,
                       .lda = g->lda,
                       .ldb = g->ldb,
                       .ldc = g->ldc,
                       .at = g->at,
                       .bt = g->bt,
                       .ct = g->ct,
                       .ta = g->ta,
                       .tb = g->tb,
                       .accumulate = g->accumulate,
                       .exact = g->exact,
                       .fast = g->fast,
                       .bias = g->bias ? g->bias_t : DT_NONE,
                       .gelu = g->gelu,
                       .dgelu = g->dgelu,
                       .align = alignment(g) };
}

static void set(plan *p, cublasLtMatmulDescAttributes_t name, const void *value, size_t bytes) {
    cublasLtMatmulDescSetAttribute(p->op, name, value, bytes);
}

static cublasLtEpilogue_t epilogue_of(const plan_key *k) {
    if (k->dgelu) return CUBLASLT_EPILOGUE_DGELU;
    if (k->gelu) return k->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    return k->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

static void describe_epilogue(plan *p) {
    const plan_key *k = &p->key;
    cublasLtEpilogue_t epilogue = epilogue_of(k);
    set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (k->bias)
        set(p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &types[k->bias], sizeof(cudaDataType_t));
    if (k->gelu || k->dgelu) {
        set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &k->ldc, sizeof k->ldc);
        set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, &types[k->ct], sizeof(cudaDataType_t));
    }
}

static void describe(plan *p) {
    const plan_key *k = &p->key;
    bool tf32 = k->at == DT_F32 && !k->exact;
    cublasComputeType_t compute = tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublasLtMatmulDescCreate(&p->op, compute, CUDA_R_32F);
    cublasOperation_t first = k->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = k->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    int8_t fast = k->fast;
    set(p, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
    set(p, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
    if (is_fp8((dtype)k->at)) set(p, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
    describe_epilogue(p);
    uint64_t bk = (uint64_t)k->k, bn = (uint64_t)k->n, am = (uint64_t)k->m;
    cublasLtMatrixLayoutCreate(&p->a, types[k->bt], k->tb ? bk : bn, k->tb ? bn : bk, k->ldb);
    cublasLtMatrixLayoutCreate(&p->b, types[k->at], k->ta ? am : bk, k->ta ? bk : am, k->lda);
    cublasLtMatrixLayoutCreate(&p->c, types[k->ct], bn, am, k->ldc);
}

/* The addresses of all but the three matrices are part of the descriptor. */
static void point(plan *p, const cuda_gemm *g) {
    if (g->bias) set(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias, sizeof g->bias);
    if (g->gelu || g->dgelu)
        set(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &g->pre, sizeof g->pre);
    if (is_fp8(g->at)) {
        set(p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &g->scale_b, sizeof g->scale_b);
        set(p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &g->scale_a, sizeof g->scale_a);
    }
}

cublasStatus_t plan_run(cuda_context *x, const plan *p, const cublasLtMatmulAlgo_t *algo,
                        const cuda_gemm *g, float alpha, plan_memory m) {
    float beta = g->accumulate ? 1 : 0;
    return cublasLtMatmul(x->products->blas, p->op, &alpha, g->b, p->a, g->a, p->b, &beta, g->c,
                          p->c, g->c, p->c, algo, m.workspace, m.bytes, x->stream);
}

static plan *plan_for(cuda_context *x, const cuda_gemm *g, plan_memory m) {
    struct cuda_products *all = x->products;
    plan_key key = key_of(g);
    for (int i = 0; i < all->n; i++)
        if (memcmp(&all->plan[i]->key, &key, sizeof key) == 0) return all->plan[i];
    plan *p = mem_alloc(sizeof *p);
    p->key = key;
    describe(p);
    point(p, g);
    plan_choose(x, p, g, m);
    mem_reserve((void **)&all->plan, &all->cap, all->n, sizeof *all->plan);
    all->plan[all->n++] = p;
    return p;
}

/* Only these layouts have fp8 kernels. */
static bool takes_fp8(const cuda_gemm *g) {
    int64_t sixteens = g->m | g->n | g->k | g->lda | g->ldb | g->ldc;
    return !g->ta && g->tb && sixteens % 16 == 0 && (g->ct == DT_BF16 || g->ct == DT_F32) &&
           !(g->at == DT_E5M2 && g->bt == DT_E5M2);
}

bool cuda_multiply(cuda_context *x, const cuda_gemm *g, void *workspace, size_t bytes) {
    bool fp8 = is_fp8(g->at) && is_fp8(g->bt);
    BUG_IF(g->at != g->bt && !fp8);
    if (fp8 && !takes_fp8(g)) return false;
    plan_memory m = { workspace, bytes };
    plan *p = plan_for(x, g, m);
    if (!p->usable) {
        if (!fp8 && epilogue_of(&p->key) == CUBLASLT_EPILOGUE_DEFAULT)
            blas_ok(x, CUBLAS_STATUS_NOT_SUPPORTED, "no algorithm for a product");
        return false;
    }
    point(p, g);
    return blas_ok(x, plan_run(x, p, &p->algo, g, g->alpha == 0 ? 1 : g->alpha, m), "product");
}

/* ---- the peak ------------------------------------------------------------------------------------ */

/* Random bits with exponents near that of 1: a product of zeros would run faster than data does. */
static void fill(void *host, size_t bytes, dtype dt) {
    rng_key key = rng_key_of(1, 2);
    size_t block = MIN(bytes, 0x10000 * dt_size(dt));
    for (size_t i = 0; i < block / dt_size(dt); i++) {
        float v = rng_uniform(key, i) - 0.5f;
        dt_from_f32(dt, &v, (char *)host + i * dt_size(dt), 1);
    }
    for (size_t at = block; at < bytes; at += block)
        memcpy((char *)host + at, host, MIN(block, bytes - at));
}

double cuda_peak(cuda_context *x, dtype dt) {
    enum { SIDE = 8192, ROUNDS = 10 };
    dtype result = is_fp8(dt) ? DT_BF16 : dt;
    size_t bytes = (size_t)SIDE * SIDE * dt_size(dt), result_bytes = (size_t)SIDE * SIDE * 4;
    char *room = NULL, *host = mem_alloc(bytes);
    double best = NAN;
    if (cudaMalloc((void **)&room, 2 * bytes + result_bytes + CUDA_GEMM_WORKSPACE) != cudaSuccess) {
        cudaGetLastError();
        free(host);
        return NAN;
    }
    fill(host, bytes, dt);
    cudaMemcpy(room, host, bytes, cudaMemcpyHostToDevice);
    cudaMemcpy(room + bytes, host, bytes, cudaMemcpyHostToDevice);
    char *workspace = room + 2 * bytes + result_bytes;
    cuda_gemm g = { .m = SIDE, .n = SIDE, .k = SIDE, .lda = SIDE, .ldb = SIDE, .ldc = SIDE };
    g.a = room, g.b = room + bytes, g.c = room + 2 * bytes;
    g.at = g.bt = dt, g.ct = result;
    g.tb = g.fast = true, g.exact = !x->tf32;
    for (int i = 0; i < ROUNDS; i++) {
        cudaStreamSynchronize(x->stream);
        double from = time_now();
        if (!cuda_multiply(x, &g, workspace, CUDA_GEMM_WORKSPACE)) break;
        if (cudaStreamSynchronize(x->stream) != cudaSuccess) break;
        double rate = 2.0 * SIDE * SIDE * SIDE / (time_now() - from);
        if (!(rate < best)) best = rate;
    }
    cudaFree(room);
    free(host);
    return best;
}
