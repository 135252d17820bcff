/* Any bytes as the config.json of a Hugging Face model. */
#include "fuzz/fuzz.h"

#include "checkpoint/checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    model_config c;
    const hf_family *family = NULL;
    str unknown = { 0 };
    log_set_level(LOG_ERROR);
    fuzz_write("config.json", data, n);
    err_free(hf_import_config(fuzz_folder(), &c, &family, &unknown));
    str_free(&unknown);
    return 0;
}
