# `cmake --install` and `cpack` install: the program with its man pages and completions, and a library, one static
# archive of all wings but the commands, with its public headers and a pkg-config file. docs/library.md shows its use.
include(GNUInstallDirs)
# `cmake --install` after `cmake --build` of these targets, without the tests and benchmarks.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)

# ---- the library -----------------------------------------------------------------------------------
set(LIBRARY_WINGS base data engine watch run plan)
set(objects ${CPU_ISA_OBJECTS})
if(INGOT_CUDA)
    list(APPEND objects ${CUDA_SOURCES})
endif()
foreach(wing ${LIBRARY_WINGS})
    list(APPEND objects $<TARGET_OBJECTS:ingot_${wing}>)
endforeach()
add_library(libingot STATIC ${objects})
set_target_properties(libingot PROPERTIES OUTPUT_NAME ingot LINKER_LANGUAGE C)

# The public headers: the one named after its folder and those listed here, and what these include. They keep their
# short paths below include/ingot.
set(PUBLIC_HEADERS shards/data.h prog/record.h prog/plan.h prog/execute.h observe/series.h)
foreach(wing ${LIBRARY_WINGS})
    file(GLOB folders RELATIVE ${CMAKE_SOURCE_DIR}/src/${wing} CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${wing}/*)
    foreach(folder ${folders})
        if(EXISTS ${CMAKE_SOURCE_DIR}/src/${wing}/${folder}/${folder}.h)
            list(APPEND PUBLIC_HEADERS ${folder}/${folder}.h)
        endif()
    endforeach()
endforeach()
set(queue ${PUBLIC_HEADERS})
set(headers)
while(queue)
    list(POP_FRONT queue header)
    if(header IN_LIST headers)
        continue()
    endif()
    list(APPEND headers ${header})
    if(header MATCHES "_internal\\.h$")
        message(FATAL_ERROR "a public header includes ${header}, which is internal")
    endif()
    file(GLOB path ${CMAKE_SOURCE_DIR}/src/*/${header})
    if(NOT path)
        message(FATAL_ERROR "no public header is called ${header}")
    endif()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
    file(STRINGS ${path} includes REGEX "^#include \"")
    foreach(line ${includes})
        string(REGEX REPLACE "^#include \"([^\"]+)\".*" "\\1" included "${line}")
        list(APPEND queue ${included})
    endforeach()
    get_filename_component(folder ${header} DIRECTORY)
    install(FILES ${path} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ingot/${folder} COMPONENT dev)
endwhile()

# needs(WHERE pkg-config name, or flags of the linker; Debian's package; condition...): what the archive is linked with. It
# is static, so these are plain requirements, not private ones.
set(PC_REQUIRES)
set(PC_LIBS -lm -ldl -pthread)
set(DEV_PACKAGES)
macro(needs list what package)
    if(${ARGN})
        list(APPEND ${list} "${what}")
        list(APPEND DEV_PACKAGES "${package}")
    endif()
endmacro()
needs(PC_REQUIRES yaml-0.1 libyaml-dev YAML_FOUND)
needs(PC_REQUIRES "jansson >= 2.14" libjansson-dev JANSSON_FOUND)
needs(PC_REQUIRES libxxhash libxxhash-dev XXHASH_FOUND)
needs(PC_REQUIRES zlib zlib1g-dev ZLIB_FOUND)
needs(PC_REQUIRES libzstd libzstd-dev ZSTD_FOUND)
needs(PC_REQUIRES libpcre2-8 libpcre2-dev PCRE2_FOUND)
needs(PC_REQUIRES libutf8proc libutf8proc-dev UTF8PROC_FOUND)
needs(PC_REQUIRES libxml-2.0 libxml2-dev XML_FOUND)
needs(PC_REQUIRES liblzma liblzma-dev LZMA_FOUND)
needs(PC_REQUIRES liblz4 liblz4-dev LZ4_FOUND)
needs(PC_REQUIRES libbrotlidec libbrotli-dev BROTLI_FOUND)
needs(PC_REQUIRES icu-uc libicu-dev ICU_FOUND)
needs(PC_LIBS -lbz2 libbz2-dev BZIP2_FOUND) # no pkg-config file everywhere
needs(PC_REQUIRES "libcurl >= 7.88" "libcurl4-openssl-dev | libcurl4-gnutls-dev" CURL_FOUND)
needs(PC_REQUIRES "${MPI_MODULE_NAME}" libopenmpi-dev MPI_FOUND)
if(INGOT_CUDA)
    list(APPEND PC_LIBS -L${CUDAToolkit_LIBRARY_DIR} -lcudart -lcublasLt -lstdc++)
    foreach(library ${CUDNN_LIBRARY} ${NCCL_LIBRARY})
        if(library)
            list(APPEND PC_LIBS ${library})
        endif()
    endforeach()
endif()
list(JOIN PC_REQUIRES ", " PC_REQUIRES)
list(JOIN PC_LIBS " " PC_LIBS)
file(RELATIVE_PATH PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /) # an installed tree may be moved
configure_file(cmake/ingot.pc.in ingot.pc @ONLY)

# ---- the program, its pages and completions, from its own tables ----------------------------------
set(pages ${CMAKE_BINARY_DIR}/share)
if(CMAKE_CROSSCOMPILING)
    message(STATUS "cross-compiling: man pages and completions are left out, since the program makes them")
    add_custom_target(manuals)
else()
    add_custom_command(OUTPUT ${pages}/stamp
        COMMAND ${CMAKE_COMMAND} -E rm -rf ${pages}
        COMMAND ingot manual --out ${pages}
        COMMAND ${CMAKE_COMMAND} -E touch ${pages}/stamp
        DEPENDS ingot VERBATIM)
    add_custom_target(manuals ALL DEPENDS ${pages}/stamp)
    install(DIRECTORY ${pages}/man ${pages}/bash-completion ${pages}/zsh ${pages}/fish
        DESTINATION ${CMAKE_INSTALL_DATADIR} COMPONENT program)
endif()
add_custom_target(installable DEPENDS ingot libingot manuals) # all that cmake --install needs

set_target_properties(ingot PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON) # CUDA, cuDNN and NCCL in folders of their own
install(TARGETS ingot RUNTIME COMPONENT program)
install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATADIR}/ingot COMPONENT program)
install(FILES README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright COMPONENT program) # Debian's name for it
install(TARGETS libingot ARCHIVE COMPONENT dev)
install(FILES ${CMAKE_BINARY_DIR}/ingot.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)

# ---- packages --------------------------------------------------------------------------------------
# `cpack` writes two: ingot, and libingot-dev. What the program links is found by dpkg-shlibdeps.
set(CPACK_GENERATOR DEB)
set(CPACK_COMPONENTS_ALL program dev)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_PACKAGE_NAME ingot)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DIRECTORY ${CMAKE_BINARY_DIR}/packages)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES OFF) # names of functions in backtraces
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "the ingot authors <ingot@localhost>")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME ingot)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
# NVIDIA's packages do not tell dpkg-shlibdeps which libraries they hold; dpkg knows who owns a file.
set(CUDA_PACKAGES)
foreach(library ${CUDA_LIBRARIES})
    if(TARGET ${library})
        get_target_property(library ${library} IMPORTED_LOCATION)
    endif()
    file(REAL_PATH "${library}" library)
    execute_process(COMMAND dpkg -S ${library} OUTPUT_VARIABLE owner ERROR_QUIET RESULT_VARIABLE unknown)
    if(unknown EQUAL 0)
        string(REGEX REPLACE ":.*" "" owner "${owner}")
        list(APPEND CUDA_PACKAGES ${owner})
    endif()
endforeach()
list(JOIN CUDA_PACKAGES ", " CPACK_DEBIAN_PROGRAM_PACKAGE_DEPENDS)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS "openmpi-bin, openssh-client")
set(CPACK_DEBIAN_PROGRAM_DESCRIPTION "train language models, from raw text to a model that generates text
One program filters, deduplicates and tokenizes text, trains GPT-2, Llama, Mixtral
and similar models on CPUs and NVIDIA GPUs, on one rank or many, and samples from
them.")
set(CPACK_DEBIAN_DEV_PACKAGE_NAME libingot-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
list(JOIN DEV_PACKAGES ", " CPACK_DEBIAN_DEV_PACKAGE_DEPENDS)
set(CPACK_DEBIAN_DEV_DESCRIPTION "train language models from a C program
The library that the program ingot is made of: a static archive, its headers and
a pkg-config file.")
include(CPack)
