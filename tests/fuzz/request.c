/* Any bytes as an HTTP request of `ingot serve`, parsed and answered. */
#include "fuzz/fuzz.h"

#include "serve/serve_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    serve_request r;
    serve_answer a = { 0 };
    if (n > REQUEST_BYTES) return 0;
    if (request_parse((const char *)data, n, &r) == 0) answer_request(&(served_site){ 0 }, &r, &a);
    str_free(&a.body);
    return 0;
}
