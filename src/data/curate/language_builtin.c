/* The language model that is compiled in: tables/language.ftz, made by `ingot data language train` from the text that
 * tests/fixtures/language/corpus.py collects. The assembler includes the file as it is. */
#include "curate/language_internal.h"

__asm__(".section .rodata\n"
        ".balign 16\n"
        ".global language_builtin_begin\n"
        "language_builtin_begin:\n"
        ".incbin \"" LANGUAGE_FILE "\"\n"
        ".global language_builtin_end\n"
        "language_builtin_end:\n"
        ".byte 0\n"
        ".previous\n");
extern const uint8_t language_builtin_begin[], language_builtin_end[];

err language_builtin(language_model **out) {
    size_t n = (size_t)(language_builtin_end - language_builtin_begin);
    return language_read("the model that is compiled in", language_builtin_begin, n, out);
}
