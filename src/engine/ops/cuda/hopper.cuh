/* Shared by the kernels on Hopper's tensor cores (compute capability 9.0): the PTX of copies (TMA), of their barriers, of
 * clusters and of products (wgmma), and tensor maps. tests/emulate replaces this file (hopper_emulated.h). */
#ifndef INGOT_OPS_CUDA_HOPPER_CUH
#define INGOT_OPS_CUDA_HOPPER_CUH

#include <cuda.h>

#include "device.cuh"

enum {
    GROUP_THREADS = 128,         /* a warp group */
    LINE_BYTES = 128,            /* the width of a swizzled line */
    BOX_BYTES = 64 * LINE_BYTES, /* 64 lines */
    ALIGN = 1024,                /* of swizzled shared memory */
    SUMS = 128,                  /* of a thread: 64 x 256 in a warp group */
};

/* ---- PTX ------------------------------------------------------------------------------------------- */
static __device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}
static __device__ __forceinline__ void barrier_init(uint64_t *b, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals));
}
static __device__ __forceinline__ void barrier_expect(uint64_t *b, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)),
                 "r"(bytes)
                 : "memory");
}
/* The same without arriving. */
static __device__ __forceinline__ void barrier_expect_more(uint64_t *b, int bytes) {
    asm volatile(
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)),
        "r"(bytes)
        : "memory");
}
static __device__ __forceinline__ void barrier_wait(uint64_t *b, int phase) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra end;\n"
                 "bra again;\n"
                 "end:\n"
                 "}" ::"r"(shared_address(b)),
                 "r"(phase)
                 : "memory");
}
/* Arrives at a barrier of this block. */
static __device__ __forceinline__ void barrier_arrive(uint64_t *b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}

/* Makes barrier_init visible to TMA and to the other threads, after the block's next barrier. */
static __device__ __forceinline__ void barriers_ready() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/* Arrives at this barrier in block `of` of the cluster. */
static __device__ __forceinline__ void barrier_arrive_at(uint64_t *b, int of) {
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}" ::"r"(shared_address(b)),
                 "r"(of)
                 : "memory");
}
/* Stores a value in block `of` of the cluster, then arrives there. */
static __device__ __forceinline__ void send_to(int *to, int value, uint64_t *b, int of) {
    asm volatile("{\n"
                 ".reg .b32 there, bar;\n"
                 "mapa.shared::cluster.u32 there, %0, %3;\n"
                 "mapa.shared::cluster.u32 bar, %2, %3;\n"
                 "st.shared::cluster.u32 [there], %1;\n"
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [bar];\n"
                 "}" ::"r"(shared_address(to)),
                 "r"(value), "r"(shared_address(b)), "r"(of)
                 : "memory");
}
/* Waits for a value that a block of the cluster sent. */
static __device__ __forceinline__ int receive(int *from, uint64_t *b, int phase) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra end;\n"
                 "bra again;\n"
                 "end:\n"
                 "}" ::"r"(shared_address(b)),
                 "r"(phase)
                 : "memory");
    return *(volatile int *)from;
}
static __device__ __forceinline__ int cluster_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
static __device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
/* Copies a box of the tensor to shared memory; its bytes count towards the barrier. */
static __device__ __forceinline__ void copy_box_async(char *to, const CUtensorMap *map, int x,
                                                      int y, int z, uint64_t *full) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(full))
                 : "memory");
}

/* To the same place in both blocks of the cluster, towards the same barrier in each. */
static __device__ __forceinline__ void copy_box_to_both(char *to, const CUtensorMap *map, int x,
                                                        int y, int z, uint64_t *full) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(full)), "h"((uint16_t)3)
        : "memory");
}

/* Stores a box of shared memory to the tensor, or adds it. */
static __device__ __forceinline__ void store_box_async(const CUtensorMap *map, const char *from,
                                                       int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(
            map),
        "r"(x), "r"(y), "r"(z), "r"(shared_address(from))
        : "memory");
}
static __device__ __forceinline__ void add_box_async(const CUtensorMap *map, const char *from,
                                                     int x, int y, int z) {
    asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group "
                 "[%0, {%1, %2, %3}], [%4];" ::"l"(map),
                 "r"(x), "r"(y), "r"(z), "r"(shared_address(from))
                 : "memory");
}
static __device__ __forceinline__ void stores_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* Until all but the last AFTER groups of this thread's stores have read their memory. */
template <int AFTER> static __device__ __forceinline__ void stores_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(AFTER) : "memory");
}
static __device__ __forceinline__ void stores_wait() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
/* Makes the threads' writes to shared memory visible to TMA and wgmma. */
static __device__ __forceinline__ void fence_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* Stores four matrices of 8 x 8, transposed; lane i gives the address of line i % 8 of matrix i / 8. */
static __device__ __forceinline__ void store_transposed(char *line, const uint32_t (&v)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     shared_address(line)),
                 "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
}
/* The same as they are. */
static __device__ __forceinline__ void store_matrices(char *line, const uint32_t (&v)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     shared_address(line)),
                 "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                 : "memory");
}

/* Describes an operand in shared memory, swizzled by 128 bytes, to wgmma.
 * @param wide bytes from 64 elements of M or N to the next 64, where M or N is contiguous */
static __device__ __forceinline__ uint64_t smem_descriptor(const char *p, int wide) {
    uint64_t at = (shared_address(p) & 0x3ffff) >> 4;
    return at | (uint64_t)(wide >> 4) << 16 | (uint64_t)(ALIGN >> 4) << 32 | 1ull << 62;
}
static __device__ __forceinline__ void multiply_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void multiply_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int AFTER> static __device__ __forceinline__ void multiply_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(AFTER) : "memory");
}

#define REGS1    "%0, %1, %2, %3, %4, %5, %6, %7"
#define REGS2    "%8, %9, %10, %11, %12, %13, %14, %15"
#define REGS3    "%16, %17, %18, %19, %20, %21, %22, %23"
#define REGS4    "%24, %25, %26, %27, %28, %29, %30, %31"
#define REGS5    "%32, %33, %34, %35, %36, %37, %38, %39"
#define REGS6    "%40, %41, %42, %43, %44, %45, %46, %47"
#define REGS7    "%48, %49, %50, %51, %52, %53, %54, %55"
#define REGS8    "%56, %57, %58, %59, %60, %61, %62, %63"
#define REGS9    "%64, %65, %66, %67, %68, %69, %70, %71"
#define REGS10   "%72, %73, %74, %75, %76, %77, %78, %79"
#define REGS11   "%80, %81, %82, %83, %84, %85, %86, %87"
#define REGS12   "%88, %89, %90, %91, %92, %93, %94, %95"
#define REGS13   "%96, %97, %98, %99, %100, %101, %102, %103"
#define REGS14   "%104, %105, %106, %107, %108, %109, %110, %111"
#define REGS15   "%112, %113, %114, %115, %116, %117, %118, %119"
#define REGS16   "%120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS1    REGS1
#define SUMS2    SUMS1 ", " REGS2
#define SUMS3    SUMS2 ", " REGS3
#define SUMS4    SUMS3 ", " REGS4
#define SUMS5    SUMS4 ", " REGS5
#define SUMS6    SUMS5 ", " REGS6
#define SUMS7    SUMS6 ", " REGS7
#define SUMS8    SUMS7 ", " REGS8
#define SUMS9    SUMS8 ", " REGS9
#define SUMS10   SUMS9 ", " REGS10
#define SUMS11   SUMS10 ", " REGS11
#define SUMS12   SUMS11 ", " REGS12
#define SUMS13   SUMS12 ", " REGS13
#define SUMS14   SUMS13 ", " REGS14
#define SUMS15   SUMS14 ", " REGS15
#define SUMS16   SUMS15 ", " REGS16
#define SUM4(i)  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SUM16(i) SUM4(i), SUM4(i + 4), SUM4(i + 8), SUM4(i + 12)
#define SUM128                                                                                     \
    SUM16(0), SUM16(16), SUM16(32), SUM16(48), SUM16(64), SUM16(80), SUM16(96), SUM16(112)

/* d = A B^T (+ d where `add`): 64 x N x 16. TA, TB: M or N is contiguous instead of the depth. */
template <class T, int N> struct multiplier;
#define MULTIPLIER(T, type, width, sums)                                                           \
    template <> struct multiplier<T, width> {                                                      \
        template <int TA, int TB>                                                                  \
        static __device__ __forceinline__ void multiply16(float (&d)[SUMS], uint64_t a,            \
                                                          uint64_t b, int add) {                   \
            asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"                         \
                         "wgmma.mma_async.sync.aligned.m64n" #width "k16.f32." type "." type       \
                         " {" sums "}, %128, %129, add, 1, 1, %131, %132;\n}"                      \
                         : SUM128                                                                  \
                         : "l"(a), "l"(b), "r"(add), "n"(TA), "n"(TB));                            \
        }                                                                                          \
    };
#define FOR_EACH_WIDTH(X)                                                                          \
    X(16, SUMS1)                                                                                   \
    X(32, SUMS2)                                                                                   \
    X(48, SUMS3)                                                                                   \
    X(64, SUMS4)                                                                                   \
    X(80, SUMS5)                                                                                   \
    X(96, SUMS6)                                                                                   \
    X(112, SUMS7)                                                                                  \
    X(128, SUMS8)                                                                                  \
    X(144, SUMS9)                                                                                  \
    X(160, SUMS10)                                                                                 \
    X(176, SUMS11) X(192, SUMS12) X(208, SUMS13) X(224, SUMS14) X(240, SUMS15) X(256, SUMS16)
#define BOTH_TYPES(width, sums)                                                                    \
    MULTIPLIER(bf16, "bf16", width, sums) MULTIPLIER(half, "f16", width, sums)
FOR_EACH_WIDTH(BOTH_TYPES)

#define SUM32 SUM16(0), SUM16(16)
#define SUM48 SUM32, SUM16(32)
#define SUM64 SUM48, SUM16(48)
#define SUM96 SUM64, SUM16(64), SUM16(80)

/* d = A B^T (+ d where `add`), 64 x N x 16: both operands in shared memory. TA, TB: M or N is contiguous instead of the
 * depth. */
template <class T, int N> struct shared_product;
#define SHARED_PRODUCT(T, type, n, sums, list, a_, b_, add_, ta_, tb_)                             \
    template <> struct shared_product<T, n> {                                                      \
        template <int TA, int TB>                                                                  \
        static __device__ __forceinline__ void multiply(float (&d)[n / 2], uint64_t a, uint64_t b, \
                                                        int add) {                                 \
            asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " add_ ", 0;\n"                     \
                         "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" sums \
                         "}, " a_ ", " b_ ", add, 1, 1, " ta_ ", " tb_ ";\n}"                      \
                         : list                                                                    \
                         : "l"(a), "l"(b), "r"(add), "n"(TA), "n"(TB));                            \
        }                                                                                          \
    };
#define SHARED_PRODUCTS(T, type)                                                                   \
    SHARED_PRODUCT(T, type, 32, SUMS2, SUM16(0), "%16", "%17", "%18", "%19", "%20")                \
    SHARED_PRODUCT(T, type, 64, SUMS4, SUM32, "%32", "%33", "%34", "%35", "%36")                   \
    SHARED_PRODUCT(T, type, 128, SUMS8, SUM64, "%64", "%65", "%66", "%67", "%68")
SHARED_PRODUCTS(bf16, "bf16")

/* d += A B, 64 x N x 16: A in registers, B in shared memory with N contiguous. */
template <class T, int N> struct sum_product;
#define SUM_PRODUCT(T, type, n, sums, list, a_, b_)                                                \
    template <> struct sum_product<T, n> {                                                         \
        static __device__ __forceinline__ void add(float (&d)[n / 2], const uint32_t *a,           \
                                                   uint64_t b) {                                   \
            asm volatile("{\n.reg .pred add;\nsetp.eq.b32 add, 0, 0;\n"                            \
                         "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" sums \
                         "}, {" a_ "}, " b_ ", add, 1, 1, 1;\n}"                                   \
                         : list                                                                    \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                    \
        }                                                                                          \
    };
#define SUM_PRODUCTS(T, type)                                                                      \
    SUM_PRODUCT(T, type, 64, SUMS4, SUM32, "%32, %33, %34, %35", "%36")                            \
    SUM_PRODUCT(T, type, 96, SUMS6, SUM48, "%48, %49, %50, %51", "%52")                            \
    SUM_PRODUCT(T, type, 128, SUMS8, SUM64, "%64, %65, %66, %67", "%68")                           \
    SUM_PRODUCT(T, type, 192, SUMS12, SUM96, "%96, %97, %98, %99", "%100")                         \
    SUM_PRODUCT(T, type, 256, SUMS16, SUM128, "%128, %129, %130, %131", "%132")
SUM_PRODUCTS(bf16, "bf16")

/* One warp group needs few registers and leaves the others to those that need many: N of each thread from here on. */
template <int N> static __device__ __forceinline__ void registers_keep() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> static __device__ __forceinline__ void registers_take() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- writing --------------------------------------------------------------------------------------- */
/* @return the address of the 16 bytes `piece` of a line, as TMA swizzles lines of 128 bytes. */
static __device__ __forceinline__ char *swizzled(char *chunk, int line, int piece) {
    return chunk + line * LINE_BYTES + ((piece ^ line) & 7) * 16;
}

/* ---- tensor maps ----------------------------------------------------------------------------------- */
typedef decltype(&cuTensorMapEncodeTiled) map_encoder;

/* The driver's function, found at run time: nothing else of the program needs libcuda. */
static map_encoder find_encoder() {
    void *f = NULL;
    cudaDriverEntryPointQueryResult found;
    const char *name = "cuTensorMapEncodeTiled";
#if CUDART_VERSION >= 12050
    cudaError_t status =
        cudaGetDriverEntryPointByVersion(name, &f, 12000, cudaEnableDefault, &found);
#else
    cudaError_t status = cudaGetDriverEntryPoint(name, &f, cudaEnableDefault, &found);
#endif
    return status == cudaSuccess && found == cudaDriverEntryPointSuccess ? (map_encoder)f : NULL;
}

/* Describes t as [groups, rows, cols], read or written in boxes of lines of 128 bytes.
 * @param stride elements from a row to the next
 * @return whether the driver can */
static bool encode_strided(CUtensorMap *map, const tensor *t, int64_t stride, int64_t groups,
                           int lines) {
    static map_encoder encoder = find_encoder();
    CUtensorMapDataType type = t->dt == DT_BF16  ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                               : t->dt == DT_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    cuuint64_t cols = (cuuint64_t)t->dim[1], rows = (cuuint64_t)(t->dim[0] / groups),
               bytes = dt_size(t->dt);
    cuuint64_t dims[] = { cols, rows, (cuuint64_t)groups }, line = (cuuint64_t)stride * bytes,
               strides[] = { line, line * rows };
    cuuint32_t box[] = { (cuuint32_t)(LINE_BYTES / bytes), (cuuint32_t)lines, 1 },
               steps[] = { 1, 1, 1 };
    return encoder &&
           encoder(map, type, 3, t->data, dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                   CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* The same of rows without gaps. */
static bool encode_map(CUtensorMap *map, const tensor *t, int64_t groups, int lines) {
    return encode_strided(map, t, t->dim[1], groups, lines);
}

/* Rows are read in whole lines of 16 bytes. */
static bool is_aligned(const tensor *t) {
    return t->dim[1] % 8 == 0 && (uintptr_t)t->data % 16 == 0 && t->dim[0] <= INT32_MAX &&
           t->dim[1] <= INT32_MAX;
}

#endif
