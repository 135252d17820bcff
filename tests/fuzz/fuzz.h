/* What a fuzz target defines: see libFuzzer, or fuzz/standalone.c where the compiler has none. */
#ifndef INGOT_TESTS_FUZZ_H
#define INGOT_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n); /* @return 0 */

#endif
