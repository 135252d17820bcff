/* What plain C++ cannot express: kernel launches, dynamic shared memory, PTX. Kernels use these only
 * through the names below, so that tests/emulate can define the same names for a CPU
 * (machine_emulated.h) and run the kernels there. */
#ifndef INGOT_OPS_CUDA_MACHINE_CUH
#define INGOT_OPS_CUDA_MACHINE_CUH

/* Launches a kernel: KERNEL_LAUNCH(kernel, blocks, threads, shared bytes, stream)(arguments...). */
#define KERNEL_LAUNCH(kernel, ...) kernel<<<__VA_ARGS__>>>

/* Declares the dynamic shared memory of the launch as an array. */
#define DYNAMIC_SHARED(type, name) extern __shared__ type name[]

/* Waits at barrier `which`, one of the block's 16, for `threads` threads: full warps only. */
static __device__ __forceinline__ void barrier_sync(int which, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(which), "r"(threads) : "memory");
}

/* ---- cp.async: copies into shared memory that a thread queues and itself waits for ---------------- */
/* Queues a copy of 16 bytes; both addresses are multiples of 16. */
static __device__ __forceinline__ void copy_async(void *to, const void *from) {
    unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}
static __device__ __forceinline__ void copies_commit() { /* ends a group of copies */
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits until at most the last AFTER groups are incomplete. */
template <int AFTER> static __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(AFTER) : "memory");
}

/* ---- approximate functions, correct to a few units in the last place ------------------------------ */
static __device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
static __device__ __forceinline__ float rcp_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* Correct to two units in the last place, which no weight update shows; the exact form is a call. */
static __device__ __forceinline__ float sqrt_approx(float x) {
    float y;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
