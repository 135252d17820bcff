/* Any text as a chat template. */
#include "fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "eval/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    char *text = strndup((const char *)data, n);
    json_t *vars = json_pack("{s:[{s:s, s:s}, {s:s, s:s}], s:b, s:s}", "messages", "role", "user",
                             "content", "a b", "role", "assistant", "content", "c",
                             "add_generation_prompt", 1, "bos_token", "<s>");
    str out = { 0 };
    err_free(template_render(text, vars, &out));
    str_free(&out);
    json_decref(vars);
    free(text);
    return 0;
}
