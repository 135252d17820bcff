/* The interface of a GEMM kernel, and the memory layout of its operands.
 *
 * gemm.c splits C into tiles of mr x nr and copies A and B into panels: mr rows of A (nr columns of B) over
 * a range of K, with the elements in exactly the order in which the kernel reads them. Within a panel `ga`
 * (`gb`) consecutive elements of K are adjacent, because the instruction reads them so:
 *
 *     panel[k / g][row][k % g]         rows and K beyond the matrix are zero
 *
 *     g = 1   fp32 multiply-add                 one element of K at a time
 *     g = 2   AVX-512 vdpbf16ps, AMX's B        pairs
 *     g = 4   Arm bfmmla                        2 rows x 4 of K are one register
 *     g = 32  AMX's A                           16 rows x 32 of K are one tile register
 */
#ifndef INGOT_OPS_CPU_KERNEL_INTERNAL_H
#define INGOT_OPS_CPU_KERNEL_INTERNAL_H

#include "ops/cpu/cpu_internal.h"

/* Sanitizers check every vector that an inner loop reads, in a call or a branch of its own. One check of a whole panel
 * finds the same faults: kernels are UNCHECKED and state what they read and write instead. */
#if defined(__SANITIZE_THREAD__)
#define UNCHECKED __attribute__((no_sanitize("thread")))
void __tsan_read_range(void *at, unsigned long bytes);
void __tsan_write_range(void *at, unsigned long bytes);
static inline void tile_reads(const void *at, size_t bytes) {
    __tsan_read_range((void *)at, bytes);
}
static inline void row_writes(float *at, size_t bytes) { __tsan_write_range(at, bytes); }
#elif defined(__SANITIZE_ADDRESS__)
#define UNCHECKED __attribute__((no_sanitize("address"), no_sanitize("undefined")))
void *__asan_region_is_poisoned(void *at, size_t bytes);
void __asan_report_load_n(void *at, size_t bytes);
void __asan_report_store_n(void *at, size_t bytes);
static inline void tile_reads(const void *at, size_t bytes) {
    void *bad = __asan_region_is_poisoned((void *)at, bytes);
    if (bad) __asan_report_load_n(bad, 1);
}
static inline void row_writes(float *at, size_t bytes) {
    void *bad = __asan_region_is_poisoned(at, bytes);
    if (bad) __asan_report_store_n(bad, 1);
}
#else
#define UNCHECKED
static inline void tile_reads(const void *at, size_t bytes) {}
static inline void row_writes(float *at, size_t bytes) {}
#endif
static inline void tile_writes(float *c, int64_t ldc, int rows, int cols) {
    for (int i = 0; i < rows; i++) row_writes(c + i * ldc, (size_t)cols * sizeof *c);
}

enum { GEMM_MAX_NR = 32, GEMM_MAX_TILE = 32 * GEMM_MAX_NR };

typedef struct gemm_kernel {
    dtype dt;             /* of the panels: DT_F32 or DT_BF16 */
    int mr, nr;           /* multiples of 4 */
    int ga, gb;           /* 1, 2, 4 or 32 */
    int ku;               /* panels are padded to a multiple of it in K; a multiple of ga and gb */
    int kc;               /* longest piece of K: a panel of B and one of A fit L1 together */
    int block_m, block_n; /* of C for one task: their panels fit L2 */
    /* c[mr, nr] = (add ? c : 0) + a b over k, a multiple of ku. */
    void (*tile)(int64_t k, const void *a, const void *b, float *c, int64_t ldc, bool add);
    /* The same with A not packed: K contiguous, its mr rows lda elements apart. NULL: unsupported. */
    void (*tile_rows)(int64_t k, const void *a, int64_t lda, const void *b, float *c, int64_t ldc,
                      bool add);
    int rows_m; /* with tile_rows: rows of C of a task that packs its own panel of B */
    /* Longest piece of K where A is transposed and tasks pack their own panels of both operands, which fit
     * L2 with the block of C; 0: panels are shared. */
    int own_k;
    /* Around the tiles of one task, on the thread that runs them; NULL: nothing to do. */
    void (*enter)(void);
    void (*leave)(void);
    /* Multiply-adds on registers only, to measure the peak. @return floating-point operations. */
    double (*burn)(int64_t rounds);
} gemm_kernel;

extern const gemm_kernel CPU(gemm_f32_kernel);
/* For bf16 operands; its panels are fp32 where the processor cannot multiply bf16. */
extern const gemm_kernel *const CPU(gemm_bf16_kernel);

/* ---- gemm_pack.c -------------------------------------------------------------------------- */
/* One operand, as rows (of A, or columns of B) by K. */
typedef struct gemm_side {
    const void *data;
    dtype dt;
    int64_t ld;
    bool k_major; /* element (r, k) at [k * ld + r], else at [r * ld + k] */
} gemm_side;

/* The panels it is packed into. */
typedef struct gemm_panels {
    dtype dt;
    int height, g;  /* rows of a panel, group of K */
    int64_t length; /* of a panel, in K */
    int64_t k_pad;  /* how much of it to fill, from `out` on: zeros beyond the operand */
    void *out;      /* [panels][length / g][height][g] */
    float *convert; /* gemm_convert_bytes() of scratch, used when the types differ */
} gemm_panels;

/* Packs rows [r0, r0 + rows) x K [k0, k0 + kn). */
void CPU(gemm_pack)(const gemm_side *s, const gemm_panels *p, int64_t r0, int64_t rows, int64_t k0,
                    int64_t kn);
size_t CPU(gemm_convert_bytes)(int64_t rows, int64_t kn, int height);

/* ---- gemm_store.c ------------------------------------------------------------------------- */
/* Finishes one tile: t[mr, nr] fp32, the upper left rows x cols of it valid, goes to C at
 * (row, col) with scale, bias, GELU and rounding as g asks. Overwrites t. */
typedef struct gemm_tile {
    float *t;
    int mr, nr;
    int64_t row, col, rows, cols;
    bool add;  /* to what C holds */
    bool bias; /* apply g->bias */
} gemm_tile;
void CPU(gemm_store)(const gemm *g, const gemm_tile *tile);

/* ---- gemm_row.c   ------------------------------------------------------------------------- */
bool CPU(gemm_is_row)(const gemm *g);
size_t CPU(gemm_row_workspace)(const gemm *g, int threads);
void CPU(gemm_row_run)(const gemm *g, pool *p, void *workspace);

#endif
