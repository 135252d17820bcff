# The one test of a build folder without tests: fails, and states the remedy.
message(FATAL_ERROR "this build folder has no tests: it was configured with INGOT_TESTS=OFF, which is the default where cmocka is not found.\n"
    "Remedy: tools/setup --test && cmake -DINGOT_TESTS=ON ${BUILD} && cmake --build ${BUILD}")
