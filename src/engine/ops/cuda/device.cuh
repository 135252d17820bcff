/* Shared by kernels: access to eight elements at a time, in fp32 whatever their type; sums over a warp
 * and over a block; launches.
 *
 *     template <class A> static __global__ void negate(A x, A y, int64_t n) {
 *         int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * EIGHT;
 *         if (i >= n) return;
 *         float v[8];
 *         x.load(i, n, v);
 *         for (int k = 0; k < 8; k++) v[k] = -v[k];
 *         y.store(i, n, v);
 *     }
 *     WITH_TYPE(common_type(n, all, 2),
 *               LAUNCH(ctx, { blocks_for(n, 256 * EIGHT), 256 }, negate<A>, A(x), A(y), n));
 */
#ifndef INGOT_OPS_CUDA_DEVICE_CUH
#define INGOT_OPS_CUDA_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "cuda_internal.h"

#ifdef __CUDACC__
#include "machine.cuh"
#else
#include <machine_emulated.h>
#endif

typedef __nv_bfloat16 bf16;

enum { EIGHT = 8, WARP = 32 };

/* ---- eight elements -------------------------------------------------------------------------- */
struct alignas(16) pack16 {
    uint32_t w[4];
};

__device__ __forceinline__ void read8(const float *p, float v[8]) {
    float4 a = ((const float4 *)p)[0], b = ((const float4 *)p)[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
__device__ __forceinline__ void read8(const bf16 *p, float v[8]) {
    pack16 a = *(const pack16 *)p;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[2 * i] = __uint_as_float(a.w[i] << 16);
        v[2 * i + 1] = __uint_as_float(a.w[i] & 0xffff0000u);
    }
}
__device__ __forceinline__ void read8(const half *p, float v[8]) {
    pack16 a = *(const pack16 *)p;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 f = __half22float2(*(const half2 *)&a.w[i]);
        v[2 * i] = f.x, v[2 * i + 1] = f.y;
    }
}
__device__ __forceinline__ void write8(float *p, const float v[8]) {
    ((float4 *)p)[0] = make_float4(v[0], v[1], v[2], v[3]);
    ((float4 *)p)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

/* Two elements of the type of the first argument, in one word. */
__device__ __forceinline__ uint32_t pack_two(bf16, float x, float y) {
    __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
    return *(const uint32_t *)&v;
}
__device__ __forceinline__ uint32_t pack_two(half, float x, float y) {
    half2 v = __floats2half2_rn(x, y);
    return *(const uint32_t *)&v;
}
template <class T> __device__ __forceinline__ void write8(T *p, const float v[8]) {
    pack16 a;
#pragma unroll
    for (int i = 0; i < 4; i++) a.w[i] = pack_two(T(), v[2 * i], v[2 * i + 1]);
    *(pack16 *)p = a;
}

__device__ __forceinline__ float read1(const void *p, int dt, int64_t i) {
    switch (dt) {
    case DT_BF16: return __bfloat162float(((const bf16 *)p)[i]);
    case DT_F16: return __half2float(((const half *)p)[i]);
    default: return ((const float *)p)[i];
    }
}
__device__ __forceinline__ void write1(void *p, int dt, int64_t i, float v) {
    switch (dt) {
    case DT_BF16: ((bf16 *)p)[i] = __float2bfloat16_rn(v); break;
    case DT_F16: ((half *)p)[i] = __float2half_rn(v); break;
    default: ((float *)p)[i] = v;
    }
}

/* A tensor's memory whose type is known at compile time, and whose rows are multiples of eight ... */
template <typename T> struct typed {
    struct raw { /* eight elements as they are in memory: the destination of a load in flight */
        pack16 w[sizeof(T) / 2];
    };
    using fp32 = typed<float>; /* the accessor of fp32 tensors used together with it */
    /* rows are multiples of eight elements; elements of 16 bits */
    enum { WHOLE = 1, NARROW = sizeof(T) == 2 };
    T *p;
    __host__ typed(const tensor &t, int64_t width = 0) : p((T *)t.data) {}
    __device__ bool present() const { return p != nullptr; }
    /* Elements [i, i + 8), i < end. `mixed` treats those from `end` on as absent. */
    __device__ __forceinline__ void load(int64_t i, int64_t end, float v[8]) const {
        read8(p + i, v);
    }
    __device__ __forceinline__ raw fetch(int64_t i, int64_t end) const {
        return *(const raw *)(p + i);
    }
    static __device__ __forceinline__ void widen(const raw &r, float v[8]) {
        read8((const T *)r.w, v);
    }
    /* Queues a copy of them into shared memory (copies_commit, copies_wait). */
    __device__ __forceinline__ void load_async(raw *to, int64_t i, int64_t end) const {
#pragma unroll
        for (int k = 0; k < (int)(sizeof(T) / 2); k++)
            copy_async(&to->w[k], (const pack16 *)(p + i) + k);
    }
    __device__ __forceinline__ void store(int64_t i, int64_t end, const float v[8]) const {
        write8(p + i, v);
    }
    __device__ __forceinline__ float round(float v) const {
        if (sizeof(T) == 4) return v;
        return (float)(T)v;
    }
};
/* ... or at run time: tensors of different types, and rows that are not multiples of eight. */
struct mixed {
    struct raw {
        float v[8];
    };
    using fp32 = mixed;
    enum { WHOLE = 0, NARROW = 0 };
    void *p;
    int dt;
    bool eights; /* all accesses are full and aligned */
    __host__ __device__ mixed() : p(nullptr), dt(0), eights(false) {}
    /* @param width elements between the starts of accesses to a row; 0: the last dim. */
    __host__ mixed(const tensor &t, int64_t width = 0) : p(t.data), dt(t.dt) {
        if (width == 0 && t.ndim > 0) width = t.dim[t.ndim - 1];
        eights = width % 8 == 0 && (uintptr_t)t.data % 16 == 0;
    }
    __device__ bool present() const { return p != nullptr; }
    __device__ __forceinline__ void load(int64_t i, int64_t end, float v[8]) const {
        if (eights) {
            if (dt == DT_BF16)
                read8((const bf16 *)p + i, v);
            else if (dt == DT_F16)
                read8((const half *)p + i, v);
            else
                read8((const float *)p + i, v);
            return;
        }
        for (int k = 0; k < 8; k++) v[k] = i + k < end ? read1(p, dt, i + k) : 0.0f;
    }
    __device__ __forceinline__ raw fetch(int64_t i, int64_t end) const {
        raw r;
        load(i, end, r.v);
        return r;
    }
    static __device__ __forceinline__ void widen(const raw &r, float v[8]) {
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = r.v[k];
    }
    __device__ __forceinline__ void load_async(raw *to, int64_t i, int64_t end) const {
        *to = fetch(i, end);
    }
    __device__ __forceinline__ void store(int64_t i, int64_t end, const float v[8]) const {
        if (eights) {
            if (dt == DT_BF16)
                write8((bf16 *)p + i, v);
            else if (dt == DT_F16)
                write8((half *)p + i, v);
            else
                write8((float *)p + i, v);
            return;
        }
        for (int k = 0; k < 8; k++)
            if (i + k < end) write1(p, dt, i + k, v[k]);
    }
    __device__ __forceinline__ float round(float v) const {
        if (dt == DT_BF16) return __bfloat162float(__float2bfloat16_rn(v));
        if (dt == DT_F16) return __half2float(__float2half_rn(v));
        return v;
    }
};

/* @return the type that all present tensors have, if rows of `width` can be read eight at a time; else
 * DT_NONE. */
static inline dtype common_type(int64_t width, const tensor *const *t, int n) {
    dtype dt = DT_NONE;
    for (int i = 0; i < n; i++) {
        if (!t[i]->data) continue;
        if (dt != DT_NONE && t[i]->dt != dt) return DT_NONE;
        if ((uintptr_t)t[i]->data % 16) return DT_NONE;
        dt = t[i]->dt;
    }
    return width % 8 ? DT_NONE : dt;
}
/* WITH_TYPE(dt, statement): runs the statement with A as typed<...> of this type, or as mixed. */
#define AS_TYPE(label, type, ...)                                                                  \
    label : {                                                                                      \
        using A = type;                                                                            \
        __VA_ARGS__;                                                                               \
    } break
#define AS_ONE_TYPE(...)                                                                           \
    AS_TYPE(case DT_BF16, typed<bf16>, __VA_ARGS__);                                               \
    AS_TYPE(case DT_F16, typed<half>, __VA_ARGS__);                                                \
    AS_TYPE(case DT_F32, typed<float>, __VA_ARGS__)
#define WITH_TYPE(dt, ...)                                                                         \
    do switch (dt) {                                                                               \
            AS_ONE_TYPE(__VA_ARGS__);                                                              \
            AS_TYPE(default, mixed, __VA_ARGS__);                                                  \
        }                                                                                          \
    while (0)
/* The same for tensors that always have one type and are aligned. */
#define WITH_ONE_TYPE(dt, ...)                                                                     \
    do switch (dt) {                                                                               \
            AS_ONE_TYPE(__VA_ARGS__);                                                              \
            AS_TYPE(default, void, BUG("tensors of mixed or unsupported types"));                  \
        }                                                                                          \
    while (0)

__device__ __forceinline__ float sigmoid(float x) {
    return rcp_approx(1 + exp2_approx(-1.44269504f * x));
}

/* ---- sums ------------------------------------------------------------------------------------ */
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int o = WARP / 2; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
    return v;
}
/* Sums each of N values over a warp; a lane keeps half of its values at each exchange, with the lane APART from it. @param v a power
 * of two of them, at most WARP. @return the sum of value N * lane / WARP */
template <int N, int APART = WARP / 2> static __device__ __forceinline__ float warp_sums(float *v) {
    bool upper = threadIdx.x & APART;
    if (N == 1) v[0] += __shfl_xor_sync(~0u, v[0], APART);
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        float sent = upper ? v[i] : v[i + N / 2], kept = upper ? v[i + N / 2] : v[i];
        v[i] = kept + __shfl_xor_sync(~0u, sent, APART);
    }
    enum { LEFT = N == 1 ? 1 : N / 2 };
    if constexpr (APART > 1) return warp_sums<LEFT, APART / 2>(v);
    return v[0];
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int o = WARP / 2; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, o));
    return v;
}
/* @return the sum over the block's THREADS_ threads in fp64, to each of them. @param smem [THREADS_] */
template <int THREADS_> static __device__ double block_sum_f64(double v, double *smem) {
    smem[threadIdx.x] = v;
    __syncthreads();
    for (int o = THREADS_ / 2; o; o >>= 1) {
        if (threadIdx.x < o) smem[threadIdx.x] += smem[threadIdx.x + o];
        __syncthreads();
    }
    return smem[0];
}
/* @return the sum over all threads of the block, to each of them. `smem` holds a float per warp and may
 * be reused by the next call. */
__device__ __forceinline__ float block_sum(float v, float *smem) {
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP,
        warps = (blockDim.x + WARP - 1) / WARP;
    v = warp_sum(v);
    __syncthreads();
    if (lane == 0) smem[warp] = v;
    __syncthreads();
    v = 0;
    for (int i = 0; i < warps; i++) v += smem[i];
    return v;
}

/* ---- launches ---------------------------------------------------------------------------------- */
typedef struct launch_shape {
    dim3 blocks, threads;
    size_t shared = 0; /* bytes of dynamic shared memory */
    bool early =
        false; /* the kernel may begin before the one before it has ended: await_previous */
    unsigned cluster = 1; /* blocks that share their memory, of those along x */
} launch_shape;

/* LAUNCH(context, { blocks, threads, shared }, kernel, arguments ...): queues it on the context's stream;
 * a failure becomes the device's fault. */
#define LAUNCH(...) launch_at(__FILE__, __LINE__, __VA_ARGS__)

/* common_type_t: arguments are converted to the types of the kernel's parameters. */
template <typename... T>
static void launch_at(const char *file, int line, cuda_context *x, const launch_shape &s,
                      void (*kernel)(T...), std::common_type_t<T>... arguments) {
    cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
    if (s.shared) /* more than 48 KiB must be requested */
        cuda_ok(x, cudaFuncSetAttribute((const void *)kernel, most, (int)s.shared), file, line);
    if (s.cluster > 1)
        KERNEL_LAUNCH_CLUSTERS(kernel, s.blocks, s.threads, s.shared, x->stream, s.cluster)
    (arguments...);
    else if (s.early && x->device->overlaps)
        KERNEL_LAUNCH_EARLY(kernel, s.blocks, s.threads, s.shared, x->stream)(arguments...);
    else KERNEL_LAUNCH(kernel, s.blocks, s.threads, s.shared, x->stream)(arguments...);
    cuda_ok(x, cudaGetLastError(), file, line);
}

/* The number of blocks for n items, `each` per block, with no loop in the kernel. For work of one pass
 * that is faster than few blocks that loop ... */
static inline unsigned blocks_for(int64_t n, int64_t each) {
    int64_t blocks = ceil_div(n, each);
    BUG_IF(blocks < 1 || blocks > INT32_MAX);
    return (unsigned)blocks;
}
/* ... or at most per_sm blocks per SM, in a kernel that loops over the grid. */
static inline int grid_for(const cuda_context *x, int64_t n, int64_t each, int per_sm) {
    int64_t blocks = ceil_div(n, each), most = (int64_t)x->device->sms * per_sm;
    return (int)(blocks < most ? (blocks > 0 ? blocks : 1) : most);
}

#endif
