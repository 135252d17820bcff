/* What plain C++ has no words for: launches, shared memory whose size is known when run, PTX. Kernels
 * reach the machine through these names alone, so that another file can give them another machine:
 * tests/emulate runs kernels on a CPU. */
#ifndef INGOT_OPS_CUDA_MACHINE_CUH
#define INGOT_OPS_CUDA_MACHINE_CUH

/* Followed by the kernel's arguments: START(kernel, blocks, threads, shared bytes, stream)(...). */
#define START(kernel, ...) kernel<<<__VA_ARGS__>>>

/* Declares the shared memory that the launch asked for. */
#define LAUNCHED_SHARED(type, name) extern __shared__ type name[]

/* Waits for `threads` threads of the block, whole warps; `which` of the block's 16 barriers. */
static __device__ __forceinline__ void sync_some(int which, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(which), "r"(threads) : "memory");
}

/* ---- copies into shared memory that a thread queues and waits for itself ------------------------- */
/* 16 bytes, aligned to as many. */
static __device__ __forceinline__ void copy_async(void *to, const void *from) {
    unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
static __device__ __forceinline__ void copies_end() { /* of a set of copies */
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* For all but the last AFTER sets. */
template <int AFTER> static __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(AFTER) : "memory");
}

/* ---- fast functions, good to a few last places ---------------------------------------------------- */
static __device__ __forceinline__ float power2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
static __device__ __forceinline__ float inverse(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* To two units in the last place: no step of a weight shows them, and the exact form needs calls. */
static __device__ __forceinline__ float root(float x) {
    float y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
