# Compiles src/ops/cpu/*.c once for each instruction set of this architecture, weakest first.
# A set is: name | compiler flags | the GEMM kernels it uses (src/ops/cpu/kernel/*.c).
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
    set(CPU_ISAS
        "neon|-march=armv8-a|gemm_f32_neon gemm_bf16_portable"
        "neon_bf16|-march=armv8.2-a+bf16+fp16|gemm_f32_neon gemm_bf16_neon")
    set(CPU_FEATURES src/ops/cpu_features_arm64.c)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(AVX2 "-mavx2 -mfma -mf16c")
    set(AVX512 "${AVX2} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512")
    # With AddressSanitizer, gcc aligns a local variable to 64 bytes in its own frame but not in the one that
    # detects use after return, which gcc 13 turned on: aligned stores there fault (GCC PR 110027).
    if(CMAKE_C_COMPILER_ID STREQUAL GNU)
        string(APPEND AVX512 " --param=asan-use-after-return=0")
    endif()
    set(CPU_ISAS
        "sse2|-msse2|gemm_f32_vector gemm_bf16_portable"
        "avx2|${AVX2}|gemm_f32_vector gemm_bf16_portable"
        "avx512|${AVX512}|gemm_f32_vector gemm_bf16_portable"
        "avx512_bf16|${AVX512} -mavx512bf16|gemm_f32_vector gemm_bf16_avx512"
        "amx|${AVX512} -mavx512bf16 -mamx-tile -mamx-bf16|gemm_f32_vector gemm_bf16_amx")
    set(CPU_FEATURES src/ops/cpu_features_x86.c)
else()
    set(CPU_ISAS "portable||gemm_f32_vector gemm_bf16_portable")
    set(CPU_FEATURES src/ops/cpu_features_other.c)
endif()

file(GLOB CPU_SOURCES CONFIGURE_DEPENDS src/ops/cpu/*.c)
list(REMOVE_ITEM CPU_SOURCES ${CMAKE_SOURCE_DIR}/src/ops/cpu/ops_cpu.c)
set(CPU_ISA_OBJECTS)
set(CPU_ISA_TABLE)
foreach(row ${CPU_ISAS})
    string(REPLACE "|" ";" row "${row}")
    list(GET row 0 isa)
    list(GET row 1 flags)
    list(GET row 2 kernels)
    separate_arguments(flags)
    separate_arguments(kernels)
    list(TRANSFORM kernels REPLACE "(.+)" "src/ops/cpu/kernel/\\1.c")
    add_library(ops_${isa} OBJECT ${CPU_SOURCES} ${kernels})
    target_link_libraries(ops_${isa} PRIVATE ingot_flags)
    if("${kernels}" MATCHES "gemm_bf16_portable")
        set(bf16 0)
    else()
        set(bf16 1)
    endif()
    target_compile_definitions(ops_${isa} PRIVATE CPU_ISA=${isa} CPU_BF16_GEMM=${bf16})
    # Sums may be reordered for vector lanes, but identically in every run; NaN and infinity are kept.
    target_compile_options(ops_${isa} PRIVATE ${flags} -O3 -ffp-contract=fast -fno-math-errno
        -fno-trapping-math -fno-signed-zeros -fassociative-math -fopenmp-simd)
    list(APPEND CPU_ISA_OBJECTS $<TARGET_OBJECTS:ops_${isa}>)
    string(APPEND CPU_ISA_TABLE "X(${isa})")
endforeach()
