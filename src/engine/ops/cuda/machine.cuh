/* Wraps what plain C++ cannot express: kernel launches, dynamic shared memory, PTX. Kernels use these only
 * through the names below, so that tests/emulate can define the same names for a CPU
 * (machine_emulated.h) and run the kernels there. */
#ifndef INGOT_OPS_CUDA_MACHINE_CUH
#define INGOT_OPS_CUDA_MACHINE_CUH

/* Launches a kernel: KERNEL_LAUNCH(kernel, blocks, threads, shared bytes, stream)(arguments...). */
#define KERNEL_LAUNCH(kernel, ...) kernel<<<__VA_ARGS__>>>

/* ---- kernels that overlap ------------------------------------------------------------------------ */
/* Lets the next kernel begin, if it is launched early, and waits for those before this one to end. Every thread of a kernel that
 * is launched early calls it once, before it reads what earlier kernels write and before it writes anything. Other kernels have
 * nothing to wait for. Before compute capability 9.0 kernels do not overlap, and it does nothing. */
static __device__ __forceinline__ void await_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n"
                 "griddepcontrol.wait;" ::
                     : "memory");
#endif
}
/* Begins to read memory into L2: a hint, which may come before await_previous. Address and size: multiples of 16. */
static __device__ __forceinline__ void move_to_l2(const void *p, size_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"((unsigned)bytes));
#endif
}

/* KERNEL_LAUNCH of a kernel that may begin once all blocks of the one before have called await_previous or have ended. */
#define KERNEL_LAUNCH_EARLY(kernel, ...) special_launch{ __VA_ARGS__ }.of(kernel)
/* KERNEL_LAUNCH of a kernel whose blocks are in clusters, of as many along x as the last argument says. */
#define KERNEL_LAUNCH_CLUSTERS KERNEL_LAUNCH_EARLY
struct special_launch {
    dim3 blocks, threads;
    size_t shared;
    cudaStream_t stream;
    unsigned cluster = 0; /* 0: begins early */
    template <typename... T> auto of(void (*kernel)(T...)) const {
        return [*this, kernel](T... arguments) {
            cudaLaunchAttribute special = {};
            if (cluster) {
                special.id = cudaLaunchAttributeClusterDimension;
                special.val.clusterDim = { cluster, 1, 1 };
            } else {
                special.id = cudaLaunchAttributeProgrammaticStreamSerialization;
                special.val.programmaticStreamSerializationAllowed = 1;
            }
            cudaLaunchConfig_t config = { blocks, threads, shared, stream, &special, 1 };
            cudaLaunchKernelEx(&config, kernel, arguments...);
        };
    }
};
/* @return for which compute capability, in tenths, the code was compiled that a kernel has on this GPU; 0: it has none. */
static inline int compiled_for(const void *kernel) {
    cudaFuncAttributes a = {};
    if (cudaFuncGetAttributes(&a, kernel) == cudaSuccess) return a.ptxVersion;
    cudaGetLastError(); /* clears it: it is not an error of a later call */
    return 0;
}

/* Adds to four floats, at a multiple of 16 bytes. */
static __device__ __forceinline__ void atomic_add_four(float *to, float4 v) {
#if __CUDA_ARCH__ >= 900
    atomicAdd((float4 *)to, v);
#else
    atomicAdd(to, v.x), atomicAdd(to + 1, v.y), atomicAdd(to + 2, v.z), atomicAdd(to + 3, v.w);
#endif
}

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

/* ---- tensor cores: products of a warp ------------------------------------------------------------- */
/* Loads four matrices of 8 x 8 16-bit elements from shared memory; lane i gives the address of line i % 8 of matrix
 * i / 8, and gets elements lane % 4 * 2 and the next of line lane / 4 of each. */
static __device__ __forceinline__ void load_matrices(uint32_t (&v)[4], const void *line) {
    unsigned at = (unsigned)__cvta_generic_to_shared(line);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(at)
                 : "memory");
}
/* The same, transposed. */
static __device__ __forceinline__ void load_matrices_transposed(uint32_t (&v)[4],
                                                                const void *line) {
    unsigned at = (unsigned)__cvta_generic_to_shared(line);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(at)
                 : "memory");
}
/* d += A B, 16 x 8 with a depth of 16. d[2 h + i]: row lane / 4 + 8 h, column lane % 4 * 2 + i. a[2 k + h]: row
 * lane / 4 + 8 h, depths 8 k + lane % 4 * 2 and the next. b0, b1: column lane / 4, the same depths. */
#define MULTIPLY_16X8X16(type, name)                                                               \
    static __device__ __forceinline__ void multiply_16x8x16(                                       \
        type, float(&d)[4], const uint32_t(&a)[4], uint32_t b0, uint32_t b1) {                     \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name                        \
                     ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"        \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                              \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));              \
    }
MULTIPLY_16X8X16(__nv_bfloat16, "bf16")
MULTIPLY_16X8X16(__half, "f16")

/* ---- approximate functions, correct to a few units in the last place ------------------------------ */
#define APPROXIMATION(name, instruction)                                                           \
    static __device__ __forceinline__ float name(float x) {                                        \
        float y;                                                                                   \
        asm(instruction ".f32 %0, %1;" : "=f"(y) : "f"(x));                                        \
        return y;                                                                                  \
    }
APPROXIMATION(exp2_approx, "ex2.approx.ftz")
APPROXIMATION(rcp_approx, "rcp.approx.ftz")
APPROXIMATION(tanh_approx, "tanh.approx") /* correct to 11 bits */
/* Correct to two units in the last place, which no weight update shows; the exact form is a call. */
APPROXIMATION(sqrt_approx, "sqrt.approx")

#endif
