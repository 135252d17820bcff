/* The registers of the Arm kernels: v8-v31 hold 24 vectors of sums. Their inner loops are assembly
 * because they need all 32 registers: compilers hoist the loads and spill sums, which halved the
 * speed with gcc 12. */
#ifndef INGOT_OPS_CPU_NEON_SUMS_H
#define INGOT_OPS_CPU_NEON_SUMS_H

/* clang-format off */
#define ZERO4(s0, s1, s2, s3)                                                                      \
    "movi v" #s0 ".4s, #0\n movi v" #s1 ".4s, #0\n movi v" #s2 ".4s, #0\n movi v" #s3 ".4s, #0\n"
#define ZERO_SUMS                                                                                  \
    ZERO4(8, 9, 10, 11) ZERO4(12, 13, 14, 15) ZERO4(16, 17, 18, 19)                                \
    ZERO4(20, 21, 22, 23) ZERO4(24, 25, 26, 27) ZERO4(28, 29, 30, 31)
#define STORE_SUMS                                                                                 \
    "stp q8, q9, [%[out]]\n stp q10, q11, [%[out], #32]\n"                                         \
    "stp q12, q13, [%[out], #64]\n stp q14, q15, [%[out], #96]\n"                                  \
    "stp q16, q17, [%[out], #128]\n stp q18, q19, [%[out], #160]\n"                                \
    "stp q20, q21, [%[out], #192]\n stp q22, q23, [%[out], #224]\n"                                \
    "stp q24, q25, [%[out], #256]\n stp q26, q27, [%[out], #288]\n"                                \
    "stp q28, q29, [%[out], #320]\n stp q30, q31, [%[out], #352]\n"
#define VECTOR_REGISTERS                                                                           \
    "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", \
    "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27",     \
    "v28", "v29", "v30", "v31"
/* clang-format on */

#endif
