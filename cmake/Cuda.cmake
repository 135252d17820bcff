# The CUDA ops, src/ops/cuda/*.cu, when INGOT_CUDA asks for them. Without one the program is the
# CPU's alone, and says so here.
set(CUDA_SOURCES)
if(INGOT_CUDA)
    enable_language(CUDA)
    set(CMAKE_CUDA_STANDARD 17)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    file(GLOB CUDA_SOURCES CONFIGURE_DEPENDS src/ops/cuda/*.cu)
    if(NOT CUDA_SOURCES)
        message(STATUS "CUDA: no sources in src/ops/cuda; building the CPU program")
    endif()
endif()
