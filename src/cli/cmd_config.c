/* ingot config: checks options and prints them all, or the reference page; converts others' configs. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "config/config.h"
#include "model/model.h"
#include "monitor/monitor.h"
#include "io/io.h"
#include "observe/observe.h"
#include "planning/planning.h"
#include "report/report.h"

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

static void list_alerts(str *out) {
    monitor_docs(out);
    str_add(out, "\n");
    exit_docs(out);
}

/* ---- ingot config convert ----------------------------------------------------------------------- */
typedef struct convert_args {
    const char *from;
} convert_args;
static const cli_arg convert_options[] = {
    { "from", ARG_TEXT, offsetof(convert_args, from), "FORMAT",
      "megatron, deepspeed, neox, torchtitan, olmo or hf (default: recognized by its keys)" },
};
static const cli_spec convert_spec = { "config convert", "FILE [--from FORMAT]", convert_options,
                                       (int)COUNT_OF(convert_options), 1 };

static err convert_file(int argc, char **argv) {
    enum { MOST_BYTES = 1 << 24 };
    convert_args a = { 0 };
    const char *path = NULL;
    char *text = NULL;
    size_t len;
    str out = { 0 };
    TRY(cli_parse(&convert_spec, argc, argv, &a, &path));
    TRY(io_read(path, MOST_BYTES, &text, &len));
    err e = convert_config(text, len, path, a.from, &out);
    if (!e) fputs(out.text, stdout);
    str_free(&out);
    free(text);
    return e;
}

err cmd_config(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "convert") == 0) return convert_file(argc - 2, argv + 2);
    bool docs = false, models = false, metrics = false, alerts = false, findings = false;
    const config_flag flags[] = { { "--docs", &docs, NULL },
                                  { "--models", &models, NULL },
                                  { "--metrics", &metrics, NULL },
                                  { "--alerts", &alerts, NULL },
                                  { "--findings", &findings, NULL } };
    config c;
    str out = { 0 };
    config_init(&c);
    err e = config_from_args(&c, argc, argv, flags, (int)COUNT_OF(flags));
    if (!e) {
        if (docs)
            config_docs(&out);
        else if (metrics)
            metric_docs(&out);
        else if (alerts)
            list_alerts(&out);
        else if (findings)
            report_docs(&out);
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
