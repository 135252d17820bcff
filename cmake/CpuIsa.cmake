# Compiles src/engine/ops/cpu/*.c once for each instruction set of this architecture, weakest first, or for some of them
# (INGOT_CPU_ISAS). The weakest one is among them, so that the program runs on any CPU, except with "best".
# A set is: name | compiler flags | the GEMM kernels it uses (src/engine/ops/cpu/kernel/*.c).
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
    set(CPU_ISAS
        "neon|-march=armv8-a|gemm_f32_neon gemm_bf16_portable"
        "neon_bf16|-march=armv8.2-a+bf16+fp16|gemm_f32_neon gemm_bf16_neon")
    set(CPU_FEATURES src/engine/ops/cpu_features_arm64.c)
    set(CPU_INTRINSICS <arm_neon.h>)
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
    set(CPU_FEATURES src/engine/ops/cpu_features_x86.c)
    set(CPU_INTRINSICS <immintrin.h>)
else()
    set(CPU_ISAS "portable||gemm_f32_vector gemm_bf16_portable")
    set(CPU_FEATURES src/engine/ops/cpu_features_other.c)
    set(CPU_INTRINSICS)
endif()

# ---- which of them -----------------------------------------------------------------------------
set(INGOT_CPU_ISAS all CACHE STRING
    "Instruction sets that the CPU ops are compiled for: all, weakest, native (those that this machine runs), best (the last of those alone), or names")
set(names)
foreach(row ${CPU_ISAS})
    string(REGEX MATCH "^[^|]*" name "${row}")
    list(APPEND names ${name})
endforeach()
# Sets `result` to those that the building machine can run.
function(native_isas result)
    if(CMAKE_CROSSCOMPILING)
        message(FATAL_ERROR "INGOT_CPU_ISAS: native and best are for a build on the machine that runs it")
    endif()
    set(program ${CMAKE_BINARY_DIR}/native_isas)
    execute_process(COMMAND ${CMAKE_C_COMPILER} -D_GNU_SOURCE -I${CMAKE_SOURCE_DIR}/src/base -I${CMAKE_SOURCE_DIR}/src/engine
        ${CMAKE_SOURCE_DIR}/tools/native_isas.c ${CMAKE_SOURCE_DIR}/${CPU_FEATURES} -o ${program}
        COMMAND_ERROR_IS_FATAL ANY)
    execute_process(COMMAND ${program} ${names} OUTPUT_VARIABLE found COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCHALL "[^\n]+" found "${found}")
    set(${result} ${found} PARENT_SCOPE)
endfunction()

list(GET names 0 weakest)
set(chosen)
if(NOT INGOT_CPU_ISAS STREQUAL "best")
    set(chosen ${weakest})
endif()
foreach(name ${INGOT_CPU_ISAS})
    if(name STREQUAL "all")
        list(APPEND chosen ${names})
    elseif(name STREQUAL "native")
        native_isas(native)
        list(APPEND chosen ${native})
    elseif(name STREQUAL "best")
        native_isas(native)
        list(GET native -1 best)
        list(APPEND chosen ${best})
    elseif(name IN_LIST names)
        list(APPEND chosen ${name})
    elseif(NOT name STREQUAL "weakest")
        list(JOIN names ", " known)
        message(FATAL_ERROR "INGOT_CPU_ISAS: there is no instruction set \"${name}\"; there are all, weakest, native, best, and the names ${known}")
    endif()
endforeach()

# ---- compile them --------------------------------------------------------------------------------
file(GLOB CPU_SOURCES CONFIGURE_DEPENDS src/engine/ops/cpu/*.c)
list(REMOVE_ITEM CPU_SOURCES ${CMAKE_SOURCE_DIR}/src/engine/ops/cpu/ops_cpu.c)
# With the checks of a sanitizer, -O3 takes gcc twice as long and makes the ops no faster.
set(optimize -O3)
if(CMAKE_C_FLAGS MATCHES "-fsanitize=")
    set(optimize -O2)
endif()
set(CPU_ISA_OBJECTS)
set(CPU_ISA_TABLE)
foreach(row ${CPU_ISAS})
    string(REPLACE "|" ";" row "${row}")
    list(GET row 0 isa)
    list(GET row 1 flags)
    list(GET row 2 kernels)
    if(NOT isa IN_LIST chosen)
        continue()
    endif()
    separate_arguments(flags)
    separate_arguments(kernels)
    list(TRANSFORM kernels REPLACE "(.+)" "src/engine/ops/cpu/kernel/\\1.c")
    add_library(ops_${isa} OBJECT ${CPU_SOURCES} ${kernels})
    target_link_libraries(ops_${isa} PRIVATE ingot_ops_headers)
    if("${kernels}" MATCHES "gemm_bf16_portable")
        set(bf16 0)
    else()
        set(bf16 1)
    endif()
    target_compile_definitions(ops_${isa} PRIVATE CPU_ISA=${isa} CPU_BF16_GEMM=${bf16})
    # Sums may be reordered for vector lanes, but identically in every run; NaN and infinity are kept.
    target_compile_options(ops_${isa} PRIVATE ${flags} ${optimize} -ffp-contract=fast -fno-math-errno
        -fno-trapping-math -fno-signed-zeros -fassociative-math -fopenmp-simd)
    # The intrinsics are most of what a compiler reads in a file of ops.
    target_precompile_headers(ops_${isa} PRIVATE ${CPU_INTRINSICS})
    list(APPEND CPU_ISA_OBJECTS $<TARGET_OBJECTS:ops_${isa}>)
    string(APPEND CPU_ISA_TABLE "X(${isa})")
endforeach()
