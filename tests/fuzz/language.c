/* Any bytes as a fastText model. What is accepted predicts from some texts. */
#include "fuzz/fuzz.h"

#include <string.h>

#include "curate/curate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const char *const texts[] = { "", "the river and a small house",
                                         "__label__en </s> \xC3\xA9" };
    language_model *m = NULL;
    err e = language_open(fuzz_write("model.bin", data, n), &m);
    if (!e) {
        language_scratch *s = language_scratch_new(m);
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
            const float *p = language_predict(m, s, (text_span){ texts[i], strlen(texts[i]) });
            for (int k = 0; k < language_count(m); k++) (void)p[k];
        }
        language_scratch_free(s);
    }
    err_free(e);
    language_close(m);
    return 0;
}
