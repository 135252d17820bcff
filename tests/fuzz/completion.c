/* Any bytes as the body of a request for completions. */
#include "fuzz/fuzz.h"

#include "cli/openai.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    for (int chat = 0; chat < 2; chat++) {
        completion_request r;
        completion_error why;
        str out = { 0 };
        if (completion_parse(chat, (const char *)data, n, 1000, &r, &why))
            completion_free(&r);
        else
            completion_error_json(&why, "invalid_request_error", &out);
        str_free(&out);
    }
    return 0;
}
