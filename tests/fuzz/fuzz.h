/* A fuzz target defines the first function here; targets share the others. See libFuzzer, or standalone.c where the compiler
 * has none. */
#ifndef INGOT_TESTS_FUZZ_H
#define INGOT_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n); /* @return 0 */

/* Writes n bytes as the file `name` of a folder in memory that this process has for itself.
 * @return its path, which holds until the next call. */
const char *fuzz_write(const char *name, const void *data, size_t n);
const char *fuzz_folder(void);

#endif
