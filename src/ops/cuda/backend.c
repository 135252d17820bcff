/* The CUDA backend: the device, its queue, its memory, the table of kernels. */
#include "cuda_internal.h"

#include <stdlib.h>

bool cuda_ok(cuda_context *x, cudaError_t status, const char *file, int line) {
    if (status == cudaSuccess) return true;
    if (!x->fault) x->fault = err_make(file, line, "CUDA: %s", cudaGetErrorString(status));
    return false;
}

/* ---- memory and the queue ---------------------------------------------------------------------- */

static err take_fault(cuda_context *x) {
    err e = x->fault;
    x->fault = OK;
    return e;
}

static err map(void *context, size_t bytes, void **out) {
    cuda_context *x = context;
    size_t free_bytes = 0, all = 0;
    cudaMemGetInfo(&free_bytes, &all);
    if (cudaMalloc(out, bytes) != cudaSuccess) {
        char need[32], have[32];
        cudaGetLastError(); /* out of memory is no lasting fault */
        return err_hint(ERR("the GPU cannot hold %s: %s are free",
                            str_bytes(need, sizeof need, (double)bytes),
                            str_bytes(have, sizeof have, (double)free_bytes)),
                        "use a smaller batch, activation_checkpoint.mode=full, or a smaller model");
    }
    CUDA_OK(x, cudaMemsetAsync(*out, 0, bytes, x->stream));
    return OK;
}

static void unmap(void *context, void *p, size_t bytes) { cudaFree(p); }

static void put(void *context, void *to, const void *from, size_t bytes) {
    cuda_context *x = context;
    CUDA_OK(x, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, x->stream));
}

static err sync(void *context) {
    cuda_context *x = context;
    CUDA_OK(x, cudaStreamSynchronize(x->stream));
    return take_fault(x);
}

static err get(void *context, void *to, const void *from, size_t bytes) {
    cuda_context *x = context;
    CUDA_OK(x, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, x->stream));
    return sync(context);
}

static double peak(void *context, dtype dt) {
    cuda_context *x = context;
    double flops = cuda_peak(x, dt);
    err_free(take_fault(x));
    return flops;
}

static const op_device device = { map, unmap, put, get, sync, peak };

/* ---- kernels ------------------------------------------------------------------------------------- */

static void attention(const op_call *c) {
    if (!cuda_attention_cudnn(c)) cuda_attention_tiles(c);
}
static void attention_bwd(const op_call *c) {
    if (!cuda_attention_cudnn(c)) cuda_attention_tiles_bwd(c);
}

static size_t workspace(const op_backend *b, const op_call *c, int threads) {
    switch (c->op) {
    case OP_LINEAR:
    case OP_LINEAR_GELU:
    case OP_LINEAR_BWD_X:
    case OP_LINEAR_BWD_W: return cuda_linear_workspace(c);
    case OP_LINEAR_CE: return cuda_linear_ce_workspace(c);
    case OP_EMBED_BWD: return cuda_embed_workspace(c);
    case OP_RMSNORM_BWD:
    case OP_LAYERNORM_BWD:
    case OP_QKNORM_BWD: return cuda_norm_workspace(c);
    case OP_ATTENTION:
    case OP_ATTENTION_BWD:
        return MAX(cuda_attention_tiles_bytes(c), cuda_attention_cudnn_bytes(b->context, c));
    case OP_SQNORM: return cuda_reduce_workspace(c);
    case OP_UPDATE_ADAFACTOR:
    case OP_UPDATE_MUON: return cuda_update_workspace(c);
    default: return 0;
    }
}

static const op_backend table = {
    .name = "cuda",
    .bf16_products = true,
    .device = &device,
    .workspace = workspace,
    .kernel = {
        [OP_EMBED] = cuda_embed,
        [OP_EMBED_BWD] = cuda_embed_bwd,
        [OP_LINEAR] = cuda_linear,
        [OP_LINEAR_GELU] = cuda_linear,
        [OP_LINEAR_BWD_X] = cuda_linear_bwd_x,
        [OP_LINEAR_BWD_W] = cuda_linear_bwd_w,
        [OP_RMSNORM] = cuda_norm,
        [OP_RMSNORM_BWD] = cuda_norm_bwd,
        [OP_LAYERNORM] = cuda_norm,
        [OP_LAYERNORM_BWD] = cuda_norm_bwd,
        [OP_QKNORM] = cuda_qknorm,
        [OP_QKNORM_BWD] = cuda_qknorm_bwd,
        [OP_ROPE] = cuda_rope,
        [OP_ROPE_BWD] = cuda_rope,
        [OP_ATTENTION] = attention,
        [OP_ATTENTION_BWD] = attention_bwd,
        [OP_ATTENTION_CACHED] = cuda_attention_cached,
        [OP_GELU] = cuda_gelu,
        [OP_GELU_BWD] = cuda_gelu_bwd,
        [OP_SWIGLU] = cuda_swiglu,
        [OP_SWIGLU_BWD] = cuda_swiglu_bwd,
        [OP_ADD] = cuda_add,
        [OP_CAST] = cuda_add,
        [OP_DROPOUT] = cuda_dropout,
        [OP_SCALE] = cuda_scale,
        [OP_LINEAR_CE] = cuda_linear_ce,
        [OP_SQNORM] = cuda_sqnorm,
        [OP_ZERO] = cuda_zero,
        [OP_UPDATE_SGD] = cuda_update,
        [OP_UPDATE_MOMENTUM] = cuda_update,
        [OP_UPDATE_ADAM] = cuda_update,
        [OP_UPDATE_LION] = cuda_update,
        [OP_UPDATE_ADAM8] = cuda_update_adam8,
        [OP_UPDATE_ADAFACTOR] = cuda_update_adafactor,
        [OP_UPDATE_MUON] = cuda_update_muon,
        [OP_AGC] = cuda_agc,
    },
};

/* ---- life ---------------------------------------------------------------------------------------- */

int ops_cuda_count(void) {
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess) n = 0;
    cudaGetLastError(); /* no driver is no fault of a later call */
    return n;
}

err ops_cuda_describe(int number, ops_gpu_info *out) {
    struct cudaDeviceProp p;
    size_t free_bytes = 0, all = 0;
    *out = (ops_gpu_info){ .name = "" };
    cudaError_t status = cudaGetDeviceProperties(&p, number);
    if (status == cudaSuccess) status = cudaSetDevice(number);
    if (status == cudaSuccess) status = cudaMemGetInfo(&free_bytes, &all);
    if (status != cudaSuccess)
        return ERR("GPU %d does not answer: %s", number, cudaGetErrorString(status));
    snprintf(out->name, sizeof out->name, "%s", p.name);
    out->multiprocessors = p.multiProcessorCount;
    out->memory = (double)all;
    out->free_memory = (double)free_bytes;
    cudaDriverGetVersion(&out->driver);
    cudaRuntimeGetVersion(&out->runtime);
    snprintf(out->blas, sizeof out->blas, "%zu", cuda_products_version());
    snprintf(out->dnn, sizeof out->dnn, "%s", cuda_attention_version());
    return OK;
}

static err open_device(cuda_context *x, int number) {
    x->device = number;
    cudaError_t status = cudaSetDevice(number);
    if (status == cudaSuccess)
        status = cudaDeviceGetAttribute(&x->sms, cudaDevAttrMultiProcessorCount, number);
    if (status == cudaSuccess)
        status = cudaStreamCreateWithFlags(&x->stream, cudaStreamNonBlocking);
    if (status != cudaSuccess)
        return err_hint(ERR("GPU %d does not open: %s", number, cudaGetErrorString(status)),
                        "nvidia-smi shows what is there; device=cpu trains without one");
    TRY(cuda_products_new(&x->products));
    TRY(cuda_attention_new(x->stream, &x->attention));
    return OK;
}

err ops_cuda_open(int number, bool deterministic, op_backend **out) {
    if (ops_cuda_count() <= number)
        return err_hint(ERR("GPU %d was asked for, %d are there", number, ops_cuda_count()),
                        "nvidia-smi shows what is there; device=cpu trains without one");
    op_backend *b = mem_alloc(sizeof *b);
    cuda_context *x = mem_alloc(sizeof *x);
    *b = table;
    b->context = x;
    x->deterministic = deterministic;
    err e = open_device(x, number);
    if (e) {
        ops_cuda_close(b);
        return err_trail(e, __FILE__, __LINE__);
    }
    *out = b;
    return OK;
}

void ops_cuda_close(op_backend *b) {
    if (!b) return;
    cuda_context *x = b->context;
    cuda_attention_free(x->attention);
    cuda_products_free(x->products);
    if (x->stream) cudaStreamDestroy(x->stream);
    err_free(x->fault);
    free(x);
    free(b);
}
