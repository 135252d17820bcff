/* What the CUDA ops share: the device they run on, checks, launch shapes. C and C++ both include it;
 * kernels are in .cu files, products and attention through libraries in .c files.
 *
 * A kernel function takes an op_call whose tensors lie in device memory, queues its work on the
 * context's stream and returns. It never waits and never allocates. Faults of the device are kept
 * in the context and come out of cuda_sync. */
#ifndef INGOT_OPS_CUDA_INTERNAL_H
#define INGOT_OPS_CUDA_INTERNAL_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "ops/ops.h"

typedef struct cuda_context {
    int device;
    int sms; /* multiprocessors */
    cudaStream_t stream;
    struct cuda_products *products;   /* products.c: cuBLASLt and its plans */
    struct cuda_attention *attention; /* attention_cudnn.c: cuDNN and its plans; NULL without it */
    bool deterministic;               /* the same bits in every run, at its cost */
    bool tf32;                        /* linear layers of fp32 multiply in tf32 */
    struct cuda_queue *queue;         /* backend.c: staging memory, marks */
    struct cuda_side *side;           /* aside.c: the second queue; NULL until there was one */
    struct cuda_ferry *ferry;         /* ferry.c: queues over the bus; NULL until there were any */
    err fault;                        /* the first */
    err before;                       /* the fault from before what is being recorded */
} cuda_context;

static inline cuda_context *cuda_of(const op_call *c) { return (cuda_context *)c->run->context; }
static inline cudaStream_t cuda_stream(const op_call *c) { return cuda_of(c)->stream; }

/* Blocks that a sum over rows is cut into at most, each leaving a partial sum: fixed, so that the
 * result does not depend on the device. */
enum { CUDA_PARTIALS = 396 };

/* Keeps a failed call as the context's fault. @return true when it succeeded. */
bool cuda_ok(cuda_context *x, cudaError_t status, const char *file, int line);
#define CUDA_OK(x, call) cuda_ok(x, call, __FILE__, __LINE__)

/* ---- products: products.c and linear.c ----------------------------------------------------------------------
 * As the CPU's gemm: C[M,N] (+)= op(A) op(B), row major, ta/tb when stored transposed. A and B are
 * of one type, fp32, bf16 or fp16, and C of that type or fp32; or both are fp8 (e4m3 with e4m3 or
 * e5m2), C is bf16 or fp32, K runs along the rows of both (ta false, tb true), and every size and
 * stride is a multiple of 16. */
typedef struct cuda_gemm {
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    dtype at, bt, ct;
    int64_t lda, ldb, ldc;
    bool ta, tb, accumulate;
    float alpha;                    /* 0 means 1 */
    const float *scale_a, *scale_b; /* fp8: what turns stored values into real ones; NULL: 1 */
    bool fast;                      /* fp8: sums are kept shorter within a product */
    bool exact;                     /* fp32 operands: full precision, not tf32 */
    /* What cuBLASLt may do beside the product. */
    const void *bias; /* [N] of bias_t */
    dtype bias_t;
    bool gelu;  /* C = gelu(pre), tanh form, with pre = AB + bias, stored */
    bool dgelu; /* C = gelu'(pre) AB, tanh form, pre read */
    void *pre;  /* [M, N] of type ct, stride ldc */
} cuda_gemm;
err cuda_products_new(const cuda_context *x, struct cuda_products **out) MUST_USE;
void cuda_products_free(struct cuda_products *p);
size_t cuda_products_version(void);
/* @return false when an fp8 product or what goes beside a product is not to be had, and nothing was
 * done; other failures are the context's fault. */
bool cuda_multiply(cuda_context *x, const cuda_gemm *g, void *workspace, size_t bytes);
enum { CUDA_GEMM_WORKSPACE = 32 << 20 };
/* Operations a second of a large product of this type; NaN when it cannot be tried. */
double cuda_peak(cuda_context *x, dtype dt);

void cuda_linear(const op_call *c); /* also LINEAR_GELU */
void cuda_linear_bwd_x(const op_call *c);
void cuda_linear_bwd_x_gelu(const op_call *c);
void cuda_linear_bwd_w(const op_call *c);
void cuda_linear_ce(const op_call *c);
size_t cuda_linear_workspace(const op_backend *b, const op_call *c, int threads);
size_t cuda_linear_ce_workspace(const op_backend *b, const op_call *c, int threads);

/* ---- the host's memory and the second queue: aside.c, as op_device has them -------------------- */
err cuda_map_host(void *context, size_t bytes, void **out) MUST_USE;
void cuda_unmap_host(void *context, void *p, size_t bytes);
void cuda_side_begin(void *context);
void cuda_side_end(void *context, int leg);
void cuda_join(void *context, int leg);
/* Where the queue aside began; NULL when not aside. */
cudaEvent_t cuda_forked(const cuda_context *x);
void cuda_side_free(struct cuda_side *s); /* takes NULL */

/* ---- updates whose state lies on the host: ferry.c ---------------------------------------------- */
/* Makes the update by calls of `kernel` on pieces, whose state is on the device. */
void cuda_update_far(const op_call *c, op_kernel kernel);
size_t cuda_far_workspace(const op_backend *b, const op_call *c, int threads);
/* The context's stream waits for what is on its way back to the host. */
void cuda_ferry_join(cuda_context *x);
void cuda_ferry_free(struct cuda_ferry *f); /* takes NULL */

/* ---- kernels, by file ------------------------------------------------------------------------ */
void cuda_embed(const op_call *c); /* embed.cu */
void cuda_embed_bwd(const op_call *c);
size_t cuda_embed_workspace(const op_backend *b, const op_call *c, int threads);
void cuda_norm(const op_call *c); /* norm.cu: RMSNORM and LAYERNORM */
void cuda_norm_bwd(const op_call *c);
void cuda_qknorm(const op_call *c);
void cuda_qknorm_bwd(const op_call *c);
size_t cuda_norm_workspace(const op_backend *b, const op_call *c, int threads);
void cuda_rope(const op_call *c);            /* rope.cu: also ROPE_BWD */
void cuda_attention_tiles(const op_call *c); /* attention.cu */
void cuda_attention_tiles_bwd(const op_call *c);
size_t cuda_attention_tiles_bytes(const op_call *c);
void cuda_attention_cached(const op_call *c);
/* attention_cudnn.c: @return false when it leaves the call to the tiles, having done nothing. */
bool cuda_attention_cudnn(const op_call *c);
size_t cuda_attention_cudnn_bytes(const cuda_context *x, const op_call *c);
err cuda_attention_new(cudaStream_t stream, struct cuda_attention **out) MUST_USE;
void cuda_attention_free(struct cuda_attention *a); /* takes NULL */
size_t cuda_attention_version(void);                /* 0 without cuDNN */
void cuda_gelu(const op_call *c);                   /* act.cu */
void cuda_gelu_bwd(const op_call *c);
void cuda_swiglu(const op_call *c);
void cuda_swiglu_bwd(const op_call *c);
void cuda_add(const op_call *c); /* elementwise.cu: also CAST */
void cuda_dropout(const op_call *c);
void cuda_scale(const op_call *c);
void cuda_zero(const op_call *c);
void cuda_quantize(const op_call *c); /* quantize.cu */
void cuda_quantize_activation(const op_call *c);
void cuda_quantize_activation_bwd(const op_call *c);
size_t cuda_quantize_workspace(const op_backend *b, const op_call *c, int threads);
void cuda_fp8_commit(const op_call *c);
void cuda_sqnorm(const op_call *c); /* reduce.cu */
size_t cuda_reduce_workspace(const op_backend *b, const op_call *c, int threads);
void cuda_update(const op_call *c); /* update.cu: SGD, momentum, Adam, Lion */
void cuda_update_adam8(const op_call *c);
void cuda_update_adafactor(const op_call *c);
void cuda_update_muon(const op_call *c);
void cuda_clip(const op_call *c);
void cuda_agc(const op_call *c);
size_t cuda_update_workspace(const op_backend *b, const op_call *c, int threads);

/* ---- pieces that host code launches ----------------------------------------------------------- */
/* Sums columns of x[rows, cols] into out[cols] fp32, in an order fixed by the shape.
 * @param partial cuda_columns_bytes of workspace. */
void cuda_sum_columns(cuda_context *x, const tensor *t, float *out, bool accumulate, void *partial);
size_t cuda_columns_bytes(int64_t cols);
/* Adds partial sums [rows, outputs x wide], wide >= d, to one or two outputs [d], in order. */
typedef struct cuda_sums {
    float *out[2]; /* NULL: not wanted */
    bool add[2];   /* to what is there */
    int d, wide;
} cuda_sums;
void cuda_add_partials(cuda_context *x, const float *partial, int rows, int outputs,
                       const cuda_sums *o);
/* z[N,M] += bias[M] where there is one, in place; then y = gelu(z) unless act is negative. */
void cuda_bias_gelu(cuda_context *x, const tensor *z, const tensor *bias, int act, const tensor *y);
/* Losses of a chunk of logits z[count, v] and, in place, their gradients. loss.cu. */
typedef struct cuda_softmax {
    const op_call *call;
    void *z;
    dtype zt;
    int64_t from, count, v, stride;
    bool grad;
} cuda_softmax;
void cuda_softmax_rows(const cuda_softmax *s);
/* The first key each of n queries sees, as an index in its row of `seq` tokens. */
void cuda_row_starts(const op_call *c, const int32_t *start, int64_t n, int64_t seq,
                     int32_t *first);
/* Where documents lie, for cuDNN: document i has `length` tokens (0 past the last) and begins at
 * at[w][i] elements of the w-th tensor. rest: the first token of documents that have no slot. */
enum { CUDA_MOST_SLOTS = 1024 };
typedef struct cuda_places {
    int32_t length[CUDA_MOST_SLOTS];
    int64_t at[3][CUDA_MOST_SLOTS + 2];
    int32_t rest;
} cuda_places;
/* @param width elements of a token in each of the three tensors. */
void cuda_cut_documents(const op_call *c, const int32_t *start, int64_t n, int slots,
                        const int64_t width[3], cuda_places *out);
/* Attention of the tokens from *from on, with lse as [N, H]; forward or backward. */
void cuda_attention_rest(const op_call *c, const int32_t *from, void *workspace);
/* Converts n elements between float types. */
void cuda_convert(cuda_context *x, const tensor *from, const tensor *to);

#ifdef __cplusplus
}
#endif
#endif
