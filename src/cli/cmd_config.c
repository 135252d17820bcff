/* ingot config: checks options and prints them all, or the reference page. */
#include "cli/cli.h"
#include "config/config.h"

err cmd_config(int argc, char **argv) {
    bool docs = false;
    const config_flag flags[] = { { "--docs", &docs, NULL } };
    config c;
    str out = { 0 };
    config_init(&c);
    err e = config_from_args(&c, argc, argv, flags, (int)COUNT_OF(flags));
    if (!e) {
        if (docs)
            config_docs(&out);
        else
            config_print(&c, &out);
        if (fwrite(out.text, 1, out.len, stdout) != out.len || fflush(stdout) != 0)
            e = ERR("cannot write to standard output");
    }
    str_free(&out);
    config_free(&c);
    return e;
}
