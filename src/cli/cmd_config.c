/* ingot config: checks options and prints them all, or the reference page. */
#include "cli/cli.h"
#include "config/config.h"
#include "model/model.h"
#include "observe/observe.h"

static err list_models(str *out) {
    str_add(out, "%-16s %10s  %s\n", "preset", "parameters", "shape");
    for (int i = 0; model_preset_name(i); i++) {
        model_config c;
        char count[32];
        TRY(model_preset(model_preset_name(i), &c));
        str_add(out,
                "%-16s %10s  %d layers, width %lld, %d heads, %d key/value, ffn %lld, "
                "vocabulary %lld, %lld positions\n",
                c.name, str_count(count, sizeof count, (double)model_count(&c)), c.layers,
                (long long)c.dim, c.heads, c.kv_heads, (long long)c.ffn, (long long)c.vocab,
                (long long)c.max_seq);
    }
    return OK;
}

err cmd_config(int argc, char **argv) {
    bool docs = false, models = false, metrics = false;
    const config_flag flags[] = { { "--docs", &docs, NULL },
                                  { "--models", &models, NULL },
                                  { "--metrics", &metrics, NULL } };
    config c;
    str out = { 0 };
    config_init(&c);
    err e = config_from_args(&c, argc, argv, flags, (int)COUNT_OF(flags));
    if (!e) {
        if (docs)
            config_docs(&out);
        else if (metrics)
            metric_docs(&out);
        else if (models)
            e = list_models(&out);
        else
            config_print(&c, &out);
        if (!e && (fwrite(out.text, 1, out.len, stdout) != out.len || fflush(stdout) != 0))
            e = ERR("cannot write to standard output");
    }
    str_free(&out);
    config_free(&c);
    return e;
}
