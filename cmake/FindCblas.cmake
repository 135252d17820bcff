# A CBLAS as Cblas::Cblas, BLIS before OpenBLAS: it measured faster on both architectures we build
# for. We call it from our own threads, one product block each, so a serial build is what we want.
set(CBLAS_NAMES)
if(INGOT_BLAS STREQUAL "" OR INGOT_BLAS STREQUAL "blis")
    list(APPEND CBLAS_NAMES blis)
endif()
if(INGOT_BLAS STREQUAL "" OR INGOT_BLAS STREQUAL "openblas")
    list(APPEND CBLAS_NAMES openblas)
endif()
# Debian keeps the variants in folders of their own.
file(GLOB CBLAS_HINTS /usr/lib/*/blis-openmp /usr/lib/*/blis-pthread /usr/lib/*/blis-serial
     /usr/lib/*/openblas-pthread /usr/lib/*/openblas-serial)
find_library(CBLAS_LIBRARY NAMES ${CBLAS_NAMES} HINTS ${CBLAS_HINTS} REQUIRED)
get_filename_component(CBLAS_NAME ${CBLAS_LIBRARY} NAME_WE)
string(REGEX REPLACE "^lib" "" CBLAS_NAME ${CBLAS_NAME})
add_library(Cblas::Cblas INTERFACE IMPORTED)
set_target_properties(Cblas::Cblas PROPERTIES INTERFACE_LINK_LIBRARIES ${CBLAS_LIBRARY})
set(INGOT_BLAS_FOUND ${CBLAS_NAME})
message(STATUS "CBLAS: ${CBLAS_LIBRARY}")
