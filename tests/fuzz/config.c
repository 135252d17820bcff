/* Any bytes as a config: what is accepted must print as YAML that is accepted again, with the same values. */
#include "fuzz/fuzz.h"

#include <string.h>

#include "config/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    config c, again;
    str first = { 0 }, second = { 0 };
    log_set_level(LOG_ERROR);
    config_init(&c);
    err e = config_parse(&c, (const char *)data, n, "fuzz");
    if (!e) {
        config_print(&c, &first);
        config_init(&again);
        err refused = config_parse(&again, first.text, first.len, "printed");
        if (refused) err_print(stderr, refused, false);
        BUG_IF(refused);
        config_print(&again, &second);
        BUG_IF(strcmp(first.text, second.text) != 0);
        config_free(&again);
    }
    err_free(e);
    str_free(&first);
    str_free(&second);
    config_free(&c);
    return 0;
}
