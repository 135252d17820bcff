/* GEMMs through cuBLASLt, or through our own kernel (gemm_hopper.cu) where it is offered and faster.
 *
 * Choosing an algorithm takes trials; running a GEMM takes one call. So each GEMM is described to
 * cuBLASLt and tuned once, when its key (shape, strides, types, epilogue, alignment: GEMM_KEY) is
 * first seen, and kept in the context's cache:
 *
 *     cuda_gemm_run --> find the key in the cache --> set bias, auxiliary and scale addresses --> run
 *                           | not found
 *                           v
 *                       describe --> gemm_autotune.c chooses an algorithm --> keep
 *
 * A model has some tens of keys, which a linear search finds fast enough. The first pass over a
 * program meets all of them call by call, before any call is captured in a CUDA graph: tuning waits
 * for the stream, and a stream under capture cannot be waited for.
 *
 * cuBLASLt is column major. The row-major C = op(A) op(B) is requested as C^T = op(B)^T op(A)^T: the
 * operands are exchanged and no byte moves. In the descriptors below "a" is therefore our B. */
#include "gemm_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const cudaDataType_t types[DT_COUNT] = {
    [DT_F32] = CUDA_R_32F,      [DT_BF16] = CUDA_R_16BF,    [DT_F16] = CUDA_R_16F,
    [DT_E4M3] = CUDA_R_8F_E4M3, [DT_E5M2] = CUDA_R_8F_E5M2,
};

static bool blas_ok(cuda_context *x, cublasStatus_t status, const char *what) {
    if (status == CUBLAS_STATUS_SUCCESS) return true;
    if (!x->device->fault)
        x->device->fault = ERR("cuBLASLt: %s: %s", what, cublasLtGetStatusString(status));
    return false;
}

err cuda_gemm_cache_new(const cuda_device *d, struct cuda_gemm_cache **out) {
    struct cuda_gemm_cache *cache = mem_alloc(sizeof *cache);
    cublasStatus_t status = cublasLtCreate(&cache->blas);
    if (status != CUBLAS_STATUS_SUCCESS) {
        free(cache);
        return ERR("cuBLASLt does not start: %s", cublasLtGetStatusString(status));
    }
    if (!d->deterministic && !d->own_gemms) cache->file = gemm_cache_file_open(d->number);
    *out = cache;
    return OK;
}

size_t cuda_gemm_version(void) { return cublasLtGetVersion(); }

void cuda_gemm_cache_free(struct cuda_gemm_cache *cache) {
    if (!cache) return;
    for (int i = 0; i < cache->n; i++) {
        tuned_gemm *t = cache->gemm[i];
        if (t->a) cublasLtMatrixLayoutDestroy(t->a);
        if (t->b) cublasLtMatrixLayoutDestroy(t->b);
        if (t->c) cublasLtMatrixLayoutDestroy(t->c);
        if (t->op) cublasLtMatmulDescDestroy(t->op);
        free(t);
    }
    free(cache->gemm);
    gemm_cache_file_close(cache->file);
    cublasLtDestroy(cache->blas);
    free(cache);
}

/* ---- keys and descriptors ---------------------------------------------------------------------- */

/* Returns the alignment that cuBLASLt may assume of the addresses: their lowest set bit, 256 at most. */
static int64_t alignment_of(const cuda_gemm *g) {
    uintptr_t all = (uintptr_t)g->a | (uintptr_t)g->b | (uintptr_t)g->c | 256;
    if (g->bias) all |= (uintptr_t)g->bias;
    if (g->gelu || g->dgelu) all |= (uintptr_t)g->pre;
    return (int64_t)(all & -all);
}

static gemm_key gemm_key_of(const cuda_context *x, const cuda_gemm *g) {
    return (gemm_key){ .m = g->m,
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
                       .own = x->device->offers_own_gemms,
                       .align = alignment_of(g) };
}

static void set_attribute(tuned_gemm *t, cublasLtMatmulDescAttributes_t name, const void *value,
                          size_t bytes) {
    cublasLtMatmulDescSetAttribute(t->op, name, value, bytes);
}

static cublasLtEpilogue_t epilogue_of(const gemm_key *k) {
    if (k->dgelu) return CUBLASLT_EPILOGUE_DGELU;
    if (k->gelu) return k->bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    return k->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

static void describe_epilogue(tuned_gemm *t) {
    const gemm_key *k = &t->key;
    cublasLtEpilogue_t epilogue = epilogue_of(k);
    set_attribute(t, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (k->bias)
        set_attribute(t, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &types[k->bias],
                      sizeof(cudaDataType_t));
    if (k->gelu || k->dgelu) {
        set_attribute(t, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &k->ldc, sizeof k->ldc);
        set_attribute(t, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, &types[k->ct],
                      sizeof(cudaDataType_t));
    }
}

static void describe_gemm(tuned_gemm *t) {
    const gemm_key *k = &t->key;
    bool tf32 = k->at == DT_F32 && !k->exact;
    cublasComputeType_t compute = tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublasLtMatmulDescCreate(&t->op, compute, CUDA_R_32F);
    cublasOperation_t first = k->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = k->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    int8_t fast = k->fast;
    set_attribute(t, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
    set_attribute(t, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
    if (dt_is_fp8((dtype)k->at))
        set_attribute(t, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
    describe_epilogue(t);
    uint64_t bk = (uint64_t)k->k, bn = (uint64_t)k->n, am = (uint64_t)k->m;
    cublasLtMatrixLayoutCreate(&t->a, types[k->bt], k->tb ? bk : bn, k->tb ? bn : bk, k->ldb);
    cublasLtMatrixLayoutCreate(&t->b, types[k->at], k->ta ? am : bk, k->ta ? bk : am, k->lda);
    cublasLtMatrixLayoutCreate(&t->c, types[k->ct], bn, am, k->ldc);
}

/* Sets the addresses that cuBLASLt keeps in the descriptor: all but those of the three matrices. */
static void set_addresses(tuned_gemm *t, const cuda_gemm *g) {
    if (g->bias) set_attribute(t, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g->bias, sizeof g->bias);
    if (g->gelu || g->dgelu)
        set_attribute(t, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &g->pre, sizeof g->pre);
    if (dt_is_fp8(g->at)) {
        set_attribute(t, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &g->scale_b, sizeof g->scale_b);
        set_attribute(t, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &g->scale_a, sizeof g->scale_a);
    }
}

/* ---- running ----------------------------------------------------------------------------------- */

cublasStatus_t tuned_gemm_run(cuda_context *x, const tuned_gemm *t, const gemm_algo *algo,
                              const cuda_gemm *g, gemm_workspace w) {
    float alpha = g->alpha == 0 ? 1 : g->alpha, beta = g->accumulate ? 1 : 0;
    if (algo->own)
        return cuda_gemm_hopper(x, g) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
    return cublasLtMatmul(x->device->gemm_cache->blas, t->op, &alpha, g->b, t->a, g->a, t->b, &beta,
                          g->c, t->c, g->c, t->c, &algo->blas, w.memory, w.bytes, x->stream);
}

/* @return the cached entry for this GEMM, described and tuned if it is new. */
static tuned_gemm *find_or_tune(cuda_context *x, const cuda_gemm *g, gemm_workspace w) {
    struct cuda_gemm_cache *cache = x->device->gemm_cache;
    gemm_key key = gemm_key_of(x, g);
    for (int i = 0; i < cache->n; i++)
        if (memcmp(&cache->gemm[i]->key, &key, sizeof key) == 0) return cache->gemm[i];
    tuned_gemm *t = mem_alloc(sizeof *t);
    t->key = key;
    describe_gemm(t);
    set_addresses(t, g);
    tuned_gemm_choose(x, t, g, w);
    LIST_ADD(cache->gemm, cache->n, cache->cap) = t;
    return t;
}

/* cuBLASLt has fp8 kernels for these layouts only. */
static bool supports_fp8(const cuda_gemm *g) {
    int64_t sixteens = g->m | g->n | g->k | g->lda | g->ldb | g->ldc;
    return !g->ta && g->tb && sixteens % 16 == 0 && (g->ct == DT_BF16 || g->ct == DT_F32) &&
           !(g->at == DT_E5M2 && g->bt == DT_E5M2);
}

bool cuda_gemm_run(cuda_context *x, const cuda_gemm *g, void *workspace, size_t bytes) {
    bool fp8 = dt_is_fp8(g->at) && dt_is_fp8(g->bt);
    BUG_IF(g->at != g->bt && !fp8);
    if (fp8 && !supports_fp8(g)) return false;
    gemm_workspace w = { workspace, bytes };
    tuned_gemm *t = find_or_tune(x, g, w);
    if (!t->usable) {
        if (!fp8 && epilogue_of(&t->key) == CUBLASLT_EPILOGUE_DEFAULT)
            blas_ok(x, CUBLAS_STATUS_NOT_SUPPORTED, "no algorithm for a GEMM");
        return false;
    }
    set_addresses(t, g);
    return blas_ok(x, tuned_gemm_run(x, t, &t->algo, g, w), "GEMM");
}

/* ---- the peak rate ----------------------------------------------------------------------------- */

/* Random values in [-0.5, 0.5): a GEMM of zeros draws less power and would run faster than data does. */
static void fill_random(void *host, size_t bytes, dtype dt) {
    rng_key key = rng_key_of(1, 2);
    size_t block = MIN(bytes, 0x10000 * dt_size(dt));
    for (size_t i = 0; i < block / dt_size(dt); i++) {
        float v = rng_uniform(key, i) - 0.5f;
        dt_from_f32(dt, &v, (char *)host + i * dt_size(dt), 1);
    }
    for (size_t at = block; at < bytes; at += block)
        memcpy((char *)host + at, host, MIN(block, bytes - at));
}

double cuda_measure_gemm_rate(cuda_context *x, dtype dt) {
    enum { SIDE = 8192, ROUNDS = 10 };
    dtype result = dt_is_fp8(dt) ? DT_BF16 : dt;
    size_t bytes = (size_t)SIDE * SIDE * dt_size(dt), result_bytes = (size_t)SIDE * SIDE * 4;
    char *operands = NULL, *host = mem_alloc(bytes);
    double best = NAN;
    if (cudaMalloc((void **)&operands, 2 * bytes + result_bytes + CUDA_GEMM_WORKSPACE) !=
        cudaSuccess) {
        cudaGetLastError();
        free(host);
        return NAN;
    }
    fill_random(host, bytes, dt);
    cudaMemcpy(operands, host, bytes, cudaMemcpyHostToDevice);
    cudaMemcpy(operands + bytes, host, bytes, cudaMemcpyHostToDevice);
    char *workspace = operands + 2 * bytes + result_bytes;
    cuda_gemm g = { .m = SIDE, .n = SIDE, .k = SIDE, .lda = SIDE, .ldb = SIDE, .ldc = SIDE };
    g.a = operands, g.b = operands + bytes, g.c = operands + 2 * bytes;
    g.at = g.bt = dt, g.ct = result;
    g.tb = g.fast = true, g.exact = !x->device->tf32;
    for (int i = 0; i < ROUNDS; i++) {
        cudaStreamSynchronize(x->stream);
        double from = time_now();
        if (!cuda_gemm_run(x, &g, workspace, CUDA_GEMM_WORKSPACE)) break;
        if (cudaStreamSynchronize(x->stream) != cudaSuccess) break;
        double rate = 2.0 * SIDE * SIDE * SIDE / (time_now() - from);
        if (!(rate < best)) best = rate;
    }
    cudaFree(operands);
    free(host);
    return best;
}
