/* CUDA C++ for a plain C++ compiler: what nvcc defines by itself, as far as our kernels use it, and the
 * functions of ops/cuda/machine.cuh. emulate.cpp runs the threads. */
#ifndef INGOT_EMULATE_MACHINE_H
#define INGOT_EMULATE_MACHINE_H

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <functional>

using std::max;
using std::min;

/* ---- the language -------------------------------------------------------------------------------- */
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
/* Kernels are compiled with little optimization; what each thread calls at every turn is inlined anyway. */
#define EMULATED_INLINE static inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__       static /* blocks run one at a time */

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static inline float2 make_float2(float x, float y) { return { x, y }; }
static inline float4 make_float4(float x, float y, float z, float w) { return { x, y, z, w }; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return { x, y }; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return { x, y, z, w };
}

/* ---- emulate.cpp --------------------------------------------------------------------------------- */
extern dim3 threadIdx, blockIdx, blockDim, gridDim; /* of the thread that is running */

/* Runs a kernel; `thread` is the body that each of its threads executes. @param cluster blocks of a cluster, along x */
void emulate_run(dim3 blocks, dim3 threads, size_t shared, unsigned cluster,
                 const std::function<void()> &thread);
/* Queues work on a stream: queues.cpp. */
void emulate_queue(cudaStream_t s, std::function<void()> work);
/* Aborts the program: a kernel did something that a GPU does not allow. */
[[noreturn]] void emulate_fault(const char *what);
uint32_t emulate_draw(); /* pseudorandom, the same sequence in every run */
void *emulate_shared();
int emulate_block(); /* which of its cluster */
void *emulate_peer(
    void *p, int block); /* the place in another block's shared memory that is p in this one's */
void emulate_cluster_sync();
/* Waits at barrier `which` for `threads` threads of the block; 0: all of them. */
void emulate_sync(int which, int threads);
/* @return the values that the 32 lanes of the warp passed; valid until the second next such call. */
const uint32_t *emulate_warp(uint32_t value);
/* The same for up to EMULATED_WORDS words of each lane, which are contiguous. */
enum { EMULATED_WORDS = 6 };
const uint32_t (*emulate_warp_words(const uint32_t *value, int n))[EMULATED_WORDS];
/* @return the value of another lane of the warp; _up: this lane's own where there is none. */
uint32_t emulate_shuffle(uint32_t value, int lane);
uint32_t emulate_shuffle_xor(uint32_t value, int by);
uint32_t emulate_shuffle_up(uint32_t value, int by);
void emulate_copy(void *to, const void *from);
void emulate_copies_commit();
void emulate_copies_wait(int after);
/* Waits until some thread calls emulate_event; one that calls for it has looked before whether it must. */
void emulate_await_event();
void emulate_event();

/* ---- machine.cuh --------------------------------------------------------------------------------- */
template <typename... T>
static std::function<void(T...)> emulated(void (*kernel)(T...), dim3 blocks, dim3 threads,
                                          size_t shared, cudaStream_t stream) {
    return [=](T... arguments) {
        emulate_queue(stream, [=] {
            emulate_run(blocks, threads, shared, 1, [=] { kernel(arguments...); });
        });
    };
}
#define KERNEL_LAUNCH emulated

/* Kernels run one after another here, but one that is launched early must await those before it, in all of its threads. */
inline int64_t emulated_awaits;
EMULATED_INLINE void await_previous() { emulated_awaits++; }
template <typename... T>
static std::function<void(T...)> emulated_early(void (*kernel)(T...), dim3 blocks, dim3 threads,
                                                size_t shared, cudaStream_t stream) {
    return [=](T... arguments) {
        emulate_queue(stream, [=] {
            int64_t all =
                (int64_t)blocks.x * blocks.y * blocks.z * threads.x * threads.y * threads.z;
            emulated_awaits = 0;
            emulate_run(blocks, threads, shared, 1, [=] { kernel(arguments...); });
            if (emulated_awaits != all) emulate_fault("a thread did not call await_previous");
        });
    };
}
#define KERNEL_LAUNCH_EARLY emulated_early
template <typename... T>
static std::function<void(T...)> emulated_clusters(void (*kernel)(T...), dim3 blocks, dim3 threads,
                                                   size_t shared, cudaStream_t stream,
                                                   unsigned cluster) {
    return [=](T... arguments) {
        emulate_queue(stream, [=] {
            emulate_run(blocks, threads, shared, cluster, [=] { kernel(arguments...); });
        });
    };
}
#define KERNEL_LAUNCH_CLUSTERS emulated_clusters
static inline void move_to_l2(const void *p, size_t bytes) {
    if ((uintptr_t)p % 16 || bytes % 16) emulate_fault("a prefetch is not aligned");
    (void)((const volatile char *)p)[0], (void)((const volatile char *)p)[bytes - 1];
}
/* EMULATE_NO_KERNELS: like a GPU for which no kernel was compiled. */
static inline int compiled_for(const void *kernel) { return getenv("EMULATE_NO_KERNELS") ? 0 : 90; }

#define DYNAMIC_SHARED(type, name) type *name = (type *)emulate_shared()
static inline void barrier_sync(int which, int threads) { emulate_sync(which, threads); }
static inline void copy_async(void *to, const void *from) { emulate_copy(to, from); }
static inline void copies_commit() { emulate_copies_commit(); }
template <int AFTER> static void copies_wait() { emulate_copies_wait(AFTER); }
static inline float exp2_approx(float x) { return exp2f(x); }
static inline float tanh_approx(float x) { return tanhf(x); }
static inline float rcp_approx(float x) { return 1 / x; }
static inline float sqrt_approx(float x) { return sqrtf(x); }

/* ---- between threads ----------------------------------------------------------------------------- */
static inline void __syncthreads() { emulate_sync(0, 0); }

template <typename To, typename From> EMULATED_INLINE To emulated_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "a bit cast needs equal sizes");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}

/* Our kernels use full warps only. */
EMULATED_INLINE void emulated_whole(unsigned mask) {
    if (mask != ~0u) emulate_fault("a part of a warp");
}
/* @return the values of all lanes. */
template <typename T> EMULATED_INLINE const uint32_t *emulated_lanes(unsigned mask, T value) {
    emulated_whole(mask);
    return emulate_warp(emulated_bits<uint32_t>(value));
}
template <typename T> EMULATED_INLINE T __shfl_sync(unsigned mask, T value, int lane) {
    emulated_whole(mask);
    return emulated_bits<T>(emulate_shuffle(emulated_bits<uint32_t>(value), lane));
}
template <typename T> EMULATED_INLINE T __shfl_xor_sync(unsigned mask, T value, int by) {
    emulated_whole(mask);
    return emulated_bits<T>(emulate_shuffle_xor(emulated_bits<uint32_t>(value), by));
}
EMULATED_INLINE double __shfl_xor_sync(unsigned mask, double value, int by) { /* in two halves */
    uint64_t bits = emulated_bits<uint64_t>(value);
    uint64_t low = __shfl_xor_sync(mask, (uint32_t)bits, by);
    uint64_t high = __shfl_xor_sync(mask, (uint32_t)(bits >> 32), by);
    return emulated_bits<double>(high << 32 | low);
}
template <typename T> EMULATED_INLINE T __shfl_up_sync(unsigned mask, T value, int by) {
    emulated_whole(mask);
    return emulated_bits<T>(emulate_shuffle_up(emulated_bits<uint32_t>(value), by));
}
static inline void __syncwarp() { emulated_lanes(~0u, 0u); }
static inline unsigned __ballot_sync(unsigned mask, bool yes) {
    const uint32_t *all = emulated_lanes(mask, (uint32_t)yes);
    unsigned bits = 0;
    for (int i = 0; i < 32; i++) bits |= all[i] << i;
    return bits;
}
static inline bool __all_sync(unsigned mask, bool yes) { return __ballot_sync(mask, yes) == ~0u; }
static inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
    const uint32_t *all = emulated_lanes(mask, value);
    return *std::max_element(all, all + 32);
}

/* @return the line of shared memory whose offset this lane passed. */
static inline const uint16_t *emulated_line(const uint32_t *lines, int lane) {
    return (const uint16_t *)((const char *)emulate_shared() + lines[lane]);
}
static inline const uint32_t *emulated_lines(const void *line) {
    if ((uintptr_t)line % 16) emulate_fault("a line of a matrix is not aligned");
    return emulate_warp((uint32_t)((const char *)line - (const char *)emulate_shared()));
}
static inline void load_matrices(uint32_t (&v)[4], const void *line) {
    const uint32_t *lines = emulated_lines(line);
    int lane = (int)threadIdx.x % 32;
    for (int m = 0; m < 4; m++) {
        const uint16_t *from = emulated_line(lines, 8 * m + lane / 4) + lane % 4 * 2;
        v[m] = from[0] | (uint32_t)from[1] << 16;
    }
}
static inline void load_matrices_transposed(uint32_t (&v)[4], const void *line) {
    const uint32_t *lines = emulated_lines(line);
    int lane = (int)threadIdx.x % 32;
    for (int m = 0; m < 4; m++) {
        int at = 8 * m + lane % 4 * 2;
        v[m] = emulated_line(lines, at)[lane / 4] | (uint32_t)emulated_line(lines, at + 1)[lane / 4]
                                                        << 16;
    }
}
template <typename T> static float emulated_half_word(uint32_t word, int high) {
    return emulated_bits<T>((uint16_t)(word >> 16 * high));
}
template <typename T>
static void multiply_16x8x16(T, float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    uint32_t own[EMULATED_WORDS] = { a[0], a[1], a[2], a[3], b0, b1 };
    const uint32_t(*all)[EMULATED_WORDS] = emulate_warp_words(own, EMULATED_WORDS);
    int lane = (int)threadIdx.x % 32;
    for (int e = 0; e < 4; e++) {
        int h = e / 2, column = lane % 4 * 2 + e % 2;
        float sum = 0;
        for (int k = 0; k < 16; k++)
            sum += emulated_half_word<T>(all[lane / 4 * 4 + k % 8 / 2][k / 8 * 2 + h], k % 2) *
                   emulated_half_word<T>(all[column * 4 + k % 8 / 2][4 + k / 8], k % 2);
        d[e] += sum;
    }
}

/* Plain operations: no other thread runs in between. */
template <typename T> static T atomicAdd(T *p, T more) {
    T before = *p;
    *p += more;
    return before;
}
static inline void atomic_add_four(float *to, float4 v) {
    if ((uintptr_t)to % 16) emulate_fault("four floats are not aligned");
    to[0] += v.x, to[1] += v.y, to[2] += v.z, to[3] += v.w;
}
template <typename T> static T atomicMax(T *p, T other) {
    T before = *p;
    *p = max(before, other);
    return before;
}

/* ---- within a thread ----------------------------------------------------------------------------- */
template <typename T> static T __ldcg(const T *p) { return *p; }
template <typename T> static T __ldcs(const T *p) { return *p; }
template <typename T> static void __stcs(T *p, T value) { *p = value; }

EMULATED_INLINE float __uint_as_float(unsigned x) { return emulated_bits<float>(x); }
EMULATED_INLINE unsigned __float_as_uint(float x) { return emulated_bits<unsigned>(x); }
EMULATED_INLINE int __float_as_int(float x) { return emulated_bits<int>(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((uint64_t)a * b >> 32);
}
/* Selects four bytes of y:x by the four hex digits of the selector. */
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    uint64_t both = (uint64_t)y << 32 | x;
    unsigned out = 0;
    if (selector & 0x8888) emulate_fault("__byte_perm with signs");
    for (int i = 0; i < 4; i++)
        out |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return out;
}
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
#define __expf expf /* a macro: the C library declares a function __expf */
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }

#endif
