/* Shared by the CUDA ops: the context they run in, error checks, and functions that one file calls in
 * another. C and C++ both include it: kernels are in .cu files, GEMMs (cuBLASLt), attention (cuDNN) and
 * everything else that only talks to the host API in .c files. Depends on ops.
 *
 *     static void cuda_example(const op_call *c) {
 *         cuda_context *x = cuda_of(c);
 *         CUDA_OK(x, cudaMemsetAsync(c->out[0].data, 0, tensor_bytes(&c->out[0]), x->stream));
 *     }
 *
 * An op function takes an op_call whose tensors are in device memory, queues its work on the stream of
 * the call's queue and returns. It never waits and never allocates. The first CUDA error is kept in the device;
 * device_table.sync, get and take return it. */
#ifndef INGOT_OPS_CUDA_INTERNAL_H
#define INGOT_OPS_CUDA_INTERNAL_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "ops/op_attrs.h"

/* The context that the calls of one queue run in: the device, and the queue's stream. */
typedef struct cuda_context {
    struct cuda_device *device;
    cudaStream_t stream;
} cuda_context;

/* An open GPU: the context of op_backend and device_table. */
typedef struct cuda_device {
    int number;
    int sms;                            /* streaming multiprocessors */
    int capability;                     /* compute capability, its major number */
    int shared;                         /* bytes of shared memory that a block may use */
    cuda_context queue[QUEUE_COUNT];    /* queues.c */
    struct cuda_events *events;         /* queues.c: what queues wait for */
    struct cuda_gemm_cache *gemm_cache; /* gemm.c: cuBLASLt and its tuned GEMMs */
    struct cuda_attention *attention;   /* attention_cudnn.c: cuDNN and its engines; NULL without */
    bool overlaps;                      /* a kernel may begin before the one before has ended */
    bool deterministic;                 /* results are bit-exact from run to run; slower */
    bool tf32;                          /* fp32 linear layers multiply in tf32 */
    bool offers_own_gemms, own_gemms;   /* OPS_OFFER_OWN_GEMMS, OPS_OWN_GEMMS */
    struct cuda_staging *staging;       /* backend.c: memory for copies, and timing events */
    struct cuda_offload *offload;       /* offload.c; NULL until first used */
    err fault;                          /* the first error, until it is returned */
    err fault_before_capture;           /* `fault` as it was when the capture began */
} cuda_device;

static inline cuda_context *cuda_of(const op_call *c) {
    return &((cuda_device *)c->run->context)->queue[c->run->queue];
}
static inline cudaStream_t cuda_stream(const op_call *c) { return cuda_of(c)->stream; }

/* Most blocks that a sum over rows is split into, each of which leaves a partial sum: fixed, so that the
 * result does not depend on the number of SMs. */
enum { CUDA_PARTIALS = 396 };

/* Registers the kernel of an op, at the end of the file that has it: its id in ops.def, the function, its workspace, the
 * attributes that it honors. */
#define KERNEL(id, ...) OP_KERNEL(cuda_kernel_##id, __VA_ARGS__)

/* Keeps an error as the device's fault, unless it has one. @return true when the call succeeded. */
bool cuda_ok(cuda_context *x, cudaError_t status, const char *file, int line);
#define CUDA_OK(x, call) cuda_ok(x, call, __FILE__, __LINE__)

/* ---- GEMM: gemm.c and linear.c -----------------------------------------------------------------
 * As the CPU's gemm: C[M,N] (+)= op(A) op(B), row major; ta/tb: the operand is stored transposed. A and
 * B have one type, fp32, bf16 or fp16, and C has that type or fp32; or both are fp8 (e4m3 with e4m3 or
 * e5m2), C is bf16 or fp32, K is contiguous in both (ta false, tb true), and every size and stride is a
 * multiple of 16. */
typedef struct cuda_gemm {
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    dtype at, bt, ct;
    int64_t lda, ldb, ldc;
    bool ta, tb, accumulate;
    float alpha;                    /* 0 means 1 */
    const float *scale_a, *scale_b; /* fp8: multiply stored values into real ones; NULL: 1 */
    bool fast;                      /* fp8: accumulate in fewer bits than fp32 has */
    bool exact;                     /* fp32 operands: full precision, not tf32 */
    /* The epilogue, which cuBLASLt may fuse. */
    const void *bias; /* [N] of bias_t */
    dtype bias_t;
    bool gelu;  /* C = gelu(pre), tanh form, with pre = AB + bias, stored */
    bool dgelu; /* C = gelu'(pre) AB, tanh form, pre read */
    void *pre;  /* [M, N] of type ct, stride ldc */
} cuda_gemm;
err cuda_gemm_cache_new(const cuda_device *d, struct cuda_gemm_cache **out) MUST_USE;
void cuda_gemm_cache_free(struct cuda_gemm_cache *cache); /* takes NULL */
size_t cuda_gemm_version(void);                           /* of cuBLASLt */
/* Queues a GEMM; the first of its shape also chooses an algorithm, which waits for the stream.
 * @return false when this fp8 GEMM or this epilogue is not supported, and nothing was done; other
 * failures become the device's fault. */
bool cuda_gemm_run(cuda_context *x, const cuda_gemm *g, void *workspace, size_t bytes) MUST_USE;
#ifndef GEMM_WORKSPACE_BYTES
#define GEMM_WORKSPACE_BYTES (32 << 20)
#endif
enum { CUDA_GEMM_WORKSPACE = GEMM_WORKSPACE_BYTES };
/* linear.c: runs a GEMM that has no fallback. That it is not supported becomes the device's fault.
 * @param workspace of CUDA_GEMM_WORKSPACE bytes */
void cuda_gemm_require(cuda_context *x, const cuda_gemm *g, void *workspace);
/* gemm_hopper.cu: the same by a kernel of our own. @return false where it does not fit the GEMM or the GPU, and nothing was
 * done; cuda_gemm_hopper_fits: whether it does. */
bool cuda_gemm_hopper(cuda_context *x, const cuda_gemm *g);
bool cuda_gemm_hopper_fits(cuda_context *x, const cuda_gemm *g);
/* @return floating-point operations per second of a large GEMM of this type, the best of some runs;
 * NaN when it cannot run. */
double cuda_measure_gemm_rate(cuda_context *x, dtype dt);

/* linear_few.cu: LINEAR and LINEAR_GELU of few rows. @return false where it does not fit the call, and nothing was done. */
bool cuda_linear_few(const op_call *c);
/* linear_few.cu: @return for which compute capability, in tenths, the kernels were compiled that run on this GPU; 0: none runs. */
int cuda_compiled_for(void);

/* ---- host memory and queues: queues.c, members of device_table ---------------------------------- */
err cuda_map_host(void *context, size_t bytes, void **out) MUST_USE;
void cuda_unmap_host(void *context, void *p, size_t bytes);
void cuda_join(void *context, device_queue q, device_queue other);
void cuda_signal(void *context, device_queue q, int event);
void cuda_await(void *context, device_queue q, device_queue of, int event);
void *cuda_native_queue(void *context, device_queue q);
err cuda_queues_open(cuda_device *d) MUST_USE;
void cuda_queues_close(cuda_device *d); /* also after a cuda_queues_open that failed */

/* ---- state and parameters in host memory: offload.c --------------------------------------------- */
/* Runs the update piece by piece: `kernel` is called with what is in host memory copied to the device. The
 * copies run on QUEUE_COPY_IN and QUEUE_COPY_OUT. Whoever queues a call on another queue than
 * QUEUE_COMPUTE orders those two himself: see offload.c. */
void cuda_update_offloaded(const op_call *c, op_kernel kernel);
size_t cuda_offload_workspace(const op_backend *b, const op_call *c, int threads);
void cuda_offload_free(struct cuda_offload *f); /* takes NULL */

/* ---- kernels, by file ------------------------------------------------------------------------ */
/* Whether attention_hopper.cuh has kernels for this GPU, type and width of heads. */
static inline bool cuda_attention_on_hopper(const cuda_device *d, dtype dt, int64_t dim) {
    return d->capability == 9 && dt == DT_BF16 &&
           (dim == 64 || dim == 96 || dim == 128 || dim == 192 || dim == 256);
}
void cuda_attention_tiles(const op_call *c); /* attention.cu */
void cuda_attention_tiles_bwd(const op_call *c);
size_t cuda_attention_tiles_bytes(const cuda_device *d, const op_call *c);
size_t cuda_attention_remainder_bytes(const op_call *c); /* of cuda_attention_remainder alone */
/* attention_cudnn.c: @return false when cuDNN does not support the call, and nothing was done. */
bool cuda_attention_cudnn(const op_call *c);
size_t cuda_attention_cudnn_bytes(const cuda_device *d, const op_call *c);
err cuda_attention_new(struct cuda_attention **out) MUST_USE;
void cuda_attention_free(struct cuda_attention *a); /* takes NULL */
size_t cuda_attention_version(void);                /* 0 without cuDNN */
void cuda_gelu_bwd(const op_call *c);
void cuda_add_on_stream(void *context, void *stream, const tensor *a, const tensor *b,
                        const tensor *out); /* of device_table */
/* grouped_hopper.cu: @return false when it does not support the call, and nothing was done. */
bool cuda_grouped_hopper(const op_call *c);

/* orthogonalize_hopper.cu: GEMMs of matrices [batch, rows, cols] of one type.
 *   symmetric: to = alpha a b^T + beta add + diagonal I, which is known to be symmetric; add may be absent
 *   else:      to = a b
 * @return false when it does not support the call, and nothing was done. */
typedef struct cuda_batch_gemm {
    tensor a, b, add, to;
    float alpha, beta, diagonal;
    bool symmetric;
} cuda_batch_gemm;
bool cuda_batch_gemm_hopper(cuda_context *x, const cuda_batch_gemm *g);

/* ---- kernels that other files launch ------------------------------------------------------------ */
/* columns.cu: sums the rows of t[rows, cols] into out[cols] fp32, in an order fixed by the shape.
 * @param partial cuda_columns_bytes of workspace. */
void cuda_sum_columns(cuda_context *x, const tensor *t, float *out, bool accumulate, void *partial);
size_t cuda_columns_bytes(int64_t cols);
/* columns.cu: sums partial[rows, outputs x wide] over its rows, in order, into one or two outputs of d
 * columns, d <= wide. */
typedef struct cuda_sums {
    float *out[2]; /* NULL: not computed */
    bool add[2];   /* to what out holds */
    int d, wide;
} cuda_sums;
void cuda_add_partials(cuda_context *x, const float *partial, int rows, int outputs,
                       const cuda_sums *o);
/* act.cu: z[N,M] += bias[M] in place, if there is a bias; then y = gelu(z), unless act is negative. */
void cuda_bias_gelu(cuda_context *x, const tensor *z, const tensor *bias, int act, const tensor *y);
/* loss.cu: the losses of a chunk of logits z[count, v] and, in place, their gradients. */
typedef struct cuda_softmax {
    const op_call *call;
    void *z;
    dtype zt;
    int64_t from, count, v,
        stride; /* from: the chunk's first token; stride: of z's rows, elements */
    bool grad;
    uint8_t
        *dz8; /* not NULL: the gradients are stored here, [count, v] in e5m2, and not in place */
    float *dz_row; /* their scale row (ops/fp8.h) */
} cuda_softmax;
void cuda_softmax_rows(const cuda_softmax *s);
/* quantize.cu: the op; and the transpose of a matrix in fp8, whose dims are multiples of 16. */
void cuda_quantize(const op_call *c);
void cuda_transpose_fp8(cuda_context *x, const tensor *q, const tensor *qt);
/* attention.cu: the first key that each of n queries attends to, as an index in its row of `seq`
 * tokens. */
void cuda_find_first_keys(const op_call *c, const int32_t *start, int64_t n, int64_t seq,
                          int32_t *first);
/* The bounds of a batch's documents, in the form cuDNN reads: document i has length[i] tokens (0 past
 * the last document) and begins offset[w][i] elements into the w-th tensor. Documents that do not fit
 * into the slots begin at token `remainder`; the number of tokens when there are none. */
enum { CUDA_MAX_DOCUMENTS = 1024 };
typedef struct cuda_documents {
    int32_t length[CUDA_MAX_DOCUMENTS];
    int64_t offset[3][CUDA_MAX_DOCUMENTS + 2];
    int32_t remainder;
} cuda_documents;
/* attention.cu. @param width elements per token of each of the three tensors. */
void cuda_find_documents(const op_call *c, const int32_t *start, int64_t n, int slots,
                         const int64_t width[3], cuda_documents *out);
/* attention.cu: attention, forward or backward, of tokens *from to the last, with lse as [N, H]. `from`
 * is read on the device. */
void cuda_attention_remainder(const op_call *c, const int32_t *from, void *workspace);
/* elementwise.cu: converts between float types. */
void cuda_convert(cuda_context *x, const tensor *from, const tensor *to);

#ifdef __cplusplus
}
#endif
#endif
