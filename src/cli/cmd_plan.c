/* ingot plan: what a run needs, before it runs. */
#include "cli/plan_common.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const cli_arg args[] = {
    { "compute", ARG_TEXT, offsetof(plan_args, compute), "FLOPS",
      "training compute in floating point operations, such as 6.3e23" },
    { "params", ARG_TEXT, offsetof(plan_args, params), "N",
      "parameters, such as 70B; of a config: the size to expect" },
    { "tokens", ARG_TEXT, offsetof(plan_args, tokens), "N",
      "training tokens, such as 1.5T; of a config: its length" },
    { "loss", ARG_TEXT, offsetof(plan_args, loss), "NATS", "the loss to reach, per token" },
    { "unique-tokens", ARG_TEXT, offsetof(plan_args, unique_tokens), "N",
      "tokens available; training on more repeats them, and repeats count less (default: no limit)" },
    { "inference-tokens", ARG_TEXT, offsetof(plan_args, inference_tokens), "N",
      "tokens the model will process once trained: finds the cheapest model over its life" },
    { "law", ARG_TEXT, offsetof(plan_args, law), "NAME",
      "scaling law, or a file of ingot plan fit (default: all in the table; refit where one is needed)" },
    { "gpu", ARG_TEXT, offsetof(plan_args, gpu), "NAME",
      "accelerator of the catalogue: adds time and cost" },
    { "gpus", ARG_TEXT, offsetof(plan_args, gpus), "N",
      "how many of them, and ranks of a config (default: as its parallelism section asks for)" },
    { "dtype", ARG_TEXT, offsetof(plan_args, dtype), "NAME",
      "dtype whose peak counts: bf16, fp8, ... (default bf16; fp16 or fp32 if the chip has no bf16)" },
    { "mfu", ARG_TEXT, offsetof(plan_args, mfu), "FRACTION",
      "share of the peak that is reached (default 0.45; of a config: simulated)" },
    { "provider", ARG_TEXT, offsetof(plan_args, provider), "NAME",
      "aws, gcp, azure or lambda (default: all)" },
    { "pue", ARG_TEXT, offsetof(plan_args, pue), "FACTOR",
      "what the data center draws per watt of its nodes (default 1.2)" },
    { "usd-kwh", ARG_TEXT, offsetof(plan_args, usd_kwh), "USD",
      "price of a kilowatt-hour (default 0.10)" },
    { "catalogue", ARG_TEXT, offsetof(plan_args, catalogue), "FILE",
      "YAML file read over the built-in catalogue" },
    { "goodput", ARG_FLAG, offsetof(plan_args, goodput), "",
      "add failures, checkpoints and restarts: expected finish and cost" },
    { "failures", ARG_TEXT, offsetof(plan_args, failures), "FRACTION",
      "of nodes that fail per day (default 0.01)" },
    { "restart", ARG_TEXT, offsetof(plan_args, restart), "SECONDS",
      "from a failure to the next step (default 600)" },
    { "repair", ARG_TEXT, offsetof(plan_args, repair), "SECONDS",
      "until a broken node is back (default 86400)" },
    { "spares", ARG_TEXT, offsetof(plan_args, spares), "N",
      "nodes in reserve for failures (default: somewhat more than are in repair at a time)" },
    { "checkpoint-time", ARG_TEXT, offsetof(plan_args, checkpoint_time), "SECONDS",
      "that a save stops the run (default: its size over the nodes' disks, at least 5)" },
    { "interval", ARG_TEXT, offsetof(plan_args, interval), "SECONDS",
      "between checkpoints (default: Daly's)" },
    { "start", ARG_TEXT, offsetof(plan_args, start), "YYYY-MM-DD", "adds the finish date" },
    { "seed", ARG_COUNT, offsetof(plan_args, seed), "N", "seed of the simulation (default 0)" },
    { "check", ARG_FLAG, offsetof(plan_args, check), "",
      "of a config: exit with 1 unless it fits, and show the cheapest change that makes it fit" },
    { "as", ARG_TEXT, offsetof(plan_args, as), "SYSTEM",
      "of a config: simulate the step and the memory of another system, such as megatron-2024 or torchtitan" },
    { "what-if", ARG_FLAG, offsetof(plan_args, what_if), "",
      "of a config: memory, time and cost with other recompute, ZeRO stage, attention, packing, experts, all-reduces, network or failures" },
    { "search", ARG_FLAG, offsetof(plan_args, search), "",
      "of a config: the best layout on --gpus of --gpu, and what it would do" },
    { "for", ARG_TEXT, offsetof(plan_args, search_for), "WHAT",
      "--search for throughput or for cost: tokens per second, or per accelerator (default throughput)" },
    { "fewer", ARG_FLAG, offsetof(plan_args, fewer), "",
      "--search: also layouts that leave some of --gpus idle (default: only where none can use all)" },
    { "cap", ARG_TEXT, offsetof(plan_args, cap), "GB",
      "--search: memory that a rank may use (default: the accelerator's)" },
    { "write", ARG_TEXT, offsetof(plan_args, write), "FILE",
      "--search: write the config with the best layout, for ingot train" },
    { "json", ARG_FLAG, offsetof(plan_args, json), "", "print JSON" },
};
const cli_spec cmd_plan_spec = { "plan", "[CONFIG.yaml] [--section.key=value ...] [options]",
                                 CLI_ARGS(args), 0 };

static const cli_subcommand *const members[] = { &plan_fit, &plan_hardware, &plan_recipe };
const cli_family plan_family = { "plan", members, (int)COUNT_OF(members) };

/* ---- values ---------------------------------------------------------------------------------- */
static char *next_buffer(void) {
    enum { SLOTS = 8, BYTES = 40 };
    static _Thread_local char slot[SLOTS][BYTES];
    static _Thread_local int next;
    return slot[next++ % SLOTS];
}

const char *show_count(double v) {
    static const char *const units[] = { "", "k", "M", "B", "T" };
    char *out = next_buffer();
    int u = 0;
    while (u < 4 && fabs(v) >= 999.5) {
        v /= 1000;
        u++;
    }
    if (fabs(v) >= 99999)
        snprintf(out, 40, "%.3g%s", v, units[u]);
    else
        snprintf(out, 40, "%.*f%s", fabs(v) < 10 ? 2 : fabs(v) < 100, v, units[u]);
    return out;
}

const char *show_flops(double v) {
    char *out = next_buffer(), *e;
    snprintf(out, 40, "%.2e", v);
    if ((e = strchr(out, 'e')) && e[1] == '+') memmove(e + 1, e + 2, strlen(e + 2) + 1);
    return out;
}

const char *show_whole(double v) {
    char digits[40], *out = next_buffer();
    snprintf(digits, sizeof digits, "%.0f", v);
    size_t n = strlen(digits), at = 0;
    for (size_t i = 0; i < n && at < 38; i++) {
        if (i && (n - i) % 3 == 0 && digits[i - 1] != '-') out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
    return out;
}

const char *show_rounded(double v) {
    double unit = pow(10, floor(log10(fabs(v))) - 2);
    if (v != 0 && isfinite(v) && fabs(v) >= 100) return show_whole(round(v / unit) * unit);
    char *out = next_buffer();
    snprintf(out, 40, "%.3g", v);
    return out;
}

void plan_print_json(json_t *doc) {
    io_json_print(stdout, doc, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
}

/* ---- the command ----------------------------------------------------------------------------- */
static const cli_arg *find_plan_arg(const char *name, size_t n) {
    for (size_t i = 0; i < COUNT_OF(args); i++)
        if (strlen(args[i].name) == n && strncmp(args[i].name, name, n) == 0) return &args[i];
    return NULL;
}

static bool is_config_name(const char *name, size_t n) {
    for (int i = 0; i < config_option_count(); i++) {
        const char *option = config_option_name(i);
        if (strncmp(option, name, n) == 0 && (option[n] == '.' || !option[n])) return true;
    }
    return memchr(name, '.', n) != NULL;
}

/* Splits the arguments into those of plan and those of a config, which keep their order: own come first.
 * An option that neither knows counts as plan's, which then suggests. @return how many are plan's. */
static int split_args(int argc, char **argv) {
    char **rest = mem_alloc(sizeof *rest * (size_t)(argc + 1));
    int own = 0, n = 0;
    for (int i = 0; i < argc; i++) {
        const char *name = argv[i] + 2;
        bool option = strncmp(argv[i], "--", 2) == 0 && argv[i][2];
        size_t len = option ? strcspn(name, "=") : 0;
        const cli_arg *a = option ? find_plan_arg(name, len) : NULL;
        if (!a && !(option && !is_config_name(name, len))) {
            rest[n++] = argv[i];
            continue;
        }
        argv[own++] = argv[i];
        if (a && a->type != ARG_FLAG && !name[len] && i + 1 < argc) argv[own++] = argv[++i];
    }
    memcpy(argv + own, rest, sizeof *rest * (size_t)n);
    free(rest);
    return own;
}

static err refuse_quantities(const plan_args *a) {
    const char *given[][2] = { { "compute", a->compute },
                               { "loss", a->loss },
                               { "inference-tokens", a->inference_tokens } };
    for (size_t i = 0; i < COUNT_OF(given); i++)
        if (given[i][1])
            return err_hint(ERR_USAGE("--%s: the config determines it", given[i][0]),
                            "leave it out, or change the config: --tokens 1T");
    return OK;
}

err cmd_plan(int argc, char **argv) {
    for (int i = 0; argc > 1 && i < plan_family.n; i++)
        if (strcmp(plan_family.members[i]->spec.command + strlen("plan "), argv[1]) == 0)
            return cli_run_family(&plan_family, argc, argv);
    plan_args a = { 0 };
    int own = split_args(argc - 1, argv + 1), of_config = argc - 1 - own;
    TRY(cli_parse(&cmd_plan_spec, own, argv + 1, &a, NULL));
    const char *of_run = a.check     ? "check"
                         : a.what_if ? "what-if"
                         : a.search  ? "search"
                         : a.as      ? "as"
                                     : NULL;
    if (!of_config && of_run)
        return err_hint(ERR_USAGE("--%s: needs a config", of_run), "ingot plan run.yaml --%s",
                        of_run);
    const char *of_search = a.search_for ? "for" : a.cap ? "cap" : a.write ? "write" : NULL;
    if (of_search && !a.search)
        return err_hint(ERR_USAGE("--%s: means nothing without --search", of_search),
                        "ingot plan run.yaml --gpu h100 --gpus 1024 --search --%s ...", of_search);
    if (!of_config) return plan_report_laws(&a);
    TRY(refuse_quantities(&a));
    argv[own] = argv[0]; /* the command's name again, before the rest */
    return plan_report_config(&a, of_config + 1, argv + own);
}
