/* ingot config: checks options and prints them all, or the reference page; converts others' configs. */
#include <stdlib.h>

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
    const char *from, *allow;
    int64_t ranks;
} convert_args;
static const cli_arg convert_table[] = {
    { "from", ARG_TEXT, offsetof(convert_args, from), "FORMAT",
      "megatron, deepspeed, neox, torchtitan, olmo or hf (default: recognized by its keys)" },
    { "ranks", ARG_COUNT, offsetof(convert_args, ranks), "N",
      "ranks that the source runs on, where its batch size depends on them (default: as it states)" },
    { "allow", ARG_TEXT, offsetof(convert_args, allow), "KEY,...",
      "keys to leave out although they change the result" },
};

static err convert_file(const cli_subcommand *self, int argc, char **argv) {
    enum { MOST_BYTES = 1 << 24 };
    enum { NOT_GIVEN = -1 };
    convert_args a = { .ranks = NOT_GIVEN };
    const char *path = NULL;
    char *text = NULL;
    size_t len;
    str out = { 0 }, notes = { 0 };
    TRY(cli_parse(&self->spec, argc, argv, &a, &path));
    if (a.ranks == 0)
        return err_hint(ERR_USAGE("--ranks: expected a whole number from 1; got 0"),
                        "leave it out where the source states them");
    TRY(io_read(path, MOST_BYTES, &text, &len));
    convert_options o = { .format = a.from, .allow = a.allow, .ranks = MAX(0, a.ranks) };
    err e = convert_config(text, len, path, &o, &out, &notes);
    if (!e && (fputs(out.text, stdout) < 0 || fflush(stdout) != 0))
        e = ERR("cannot write to standard output");
    if (!e) fputs(notes.text, stderr);
    str_free(&out);
    str_free(&notes);
    free(text);
    return e;
}

static const cli_subcommand config_convert = {
    .summary = "read another system's config and print it as one of ours",
    .run = convert_file,
    .spec = { "config convert", "FILE [options]", convert_table, (int)COUNT_OF(convert_table), 1 },
    .help =
        "Reads a config of Megatron-LM (its arguments), DeepSpeed (JSON), GPT-NeoX (YAML), torchtitan\n"
        "(TOML), OLMo (YAML) or Hugging Face's TrainingArguments (JSON). What it means is kept, its system's\n"
        "defaults included. A key that would change the result and has no counterpart is an error, unless --allow\n"
        "names it; keys without an effect on the result are listed on standard error.\n"
        "\n"
        "Example\n"
        "  ingot config convert 20B.yml --ranks 96 > run.yaml\n",
};
static const cli_subcommand *const members[] = { &config_convert };
const cli_family config_family = { "config", members, (int)COUNT_OF(members) };

/* ---- ingot config --------------------------------------------------------------------------------- */
typedef struct config_args {
    bool docs, models, metrics, alerts, findings;
} config_args;
static const cli_arg args[] = {
    { "docs", ARG_FLAG, offsetof(config_args, docs), "",
      "print the reference page of all options instead" },
    { "models", ARG_FLAG, offsetof(config_args, models), "", "the model presets and their sizes" },
    { "metrics", ARG_FLAG, offsetof(config_args, metrics), "", "the table of metrics" },
    { "alerts", ARG_FLAG, offsetof(config_args, alerts), "",
      "the tables of alerts and exit codes" },
    { "findings", ARG_FLAG, offsetof(config_args, findings), "", "what a report looks for" },
};
const cli_spec cmd_config_spec = { "config", "[CONFIG.yaml] [--section.key=value ...] [options]",
                                   CLI_ARGS(args), 0 };

/* Checks options without an effect on this model; one that is loaded from elsewhere is known when the run begins. */
static err check_model(const config *c) {
    model_config m;
    if (*c->checkpoint.initial_load_path || *c->checkpoint.branch_path) return OK;
    err e = model_from_config(c, &m);
    if (!e) return model_check_idle(c, &m, true);
    err_free(e); /* whoever uses the model reports what is wrong with it */
    return OK;
}

err cmd_config(int argc, char **argv) {
    if (argc > 1 && cli_find_subcommand(&config_family, argv[1]))
        return cli_run_family(&config_family, argc, argv);
    config_args a = { 0 };
    config c;
    str out = { 0 };
    config_init(&c);
    err e = cli_parse_config(&cmd_config_spec, argc, argv, &c, &a);
    if (!e) {
        if (a.docs)
            config_docs(&out);
        else if (a.metrics)
            metric_docs(&out);
        else if (a.alerts)
            list_alerts(&out);
        else if (a.findings)
            report_docs(&out);
        else if (a.models)
            e = list_models(&out);
        else
            e = check_model(&c);
        if (!e && !out.len) config_print(&c, &out);
        if (!e && (fwrite(out.text, 1, out.len, stdout) != out.len || fflush(stdout) != 0))
            e = ERR("cannot write to standard output");
    }
    str_free(&out);
    config_free(&c);
    return e;
}
