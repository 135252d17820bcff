/* ingot: finds the command and runs it. The only place that exits. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/launch.h"
#include "config/config.h"
#include "io/io.h"
#include "ops/ops.h"

const cli_command cli_commands[] = {
    { .name = "train",
      .usage = "[CONFIG.yaml] [--section.key=value ...] [--ranks N] [--fresh]",
      .summary = "train a model or resume a run",
      .run = cmd_train,
      .spec = &cmd_train_spec,
      .options = true,
      .help =
          "Repeating the command resumes the run from its last checkpoint; --fresh starts over.\n"
          "Ctrl-C finishes the current step, saves a checkpoint and stops, with exit code 130. SIGTERM and\n"
          "SIGUSR1 do the same and exit with code 75, which means: run the command again to continue.\n"
          "A GPU is used if the build supports it and the machine has one, unless --device=cpu is given;\n"
          "--device=cuda makes it mandatory. The loss does not depend on the layout of the ranks, and a run\n"
          "may continue on a different one.\n"
          "\"ingot watch RUN\" shows it on a whole terminal; --metrics.serve=8080 in a browser.\n"
          "\n"
          "Examples\n"
          "  ingot train configs/tiny.yaml                          a small run on built-in text\n"
          "  ingot train configs/tiny.yaml --data.train=book.txt    on your own text\n"
          "  ingot train --model.preset=gpt2-124m --data.train=shards --training.steps=\"2e9 tokens\"\n"
          "  ingot train configs/tiny.yaml --device=cpu             even if there is a GPU\n"
          "  ingot train configs/tiny.yaml --ranks 4 --parallelism.tensor_parallel_degree=2\n"
          "\n" },
    { .name = "launch",
      .usage = "-n N [--hosts a:8,b:8] [options] -- train|data ...",
      .summary = "train, or prepare data, on several processes or hosts",
      .run = cmd_launch,
      .spec = &cmd_launch_spec,
      .help =
          "Starts N ranks, processes that train together: with srun inside a Slurm allocation, else with\n"
          "mpirun. What follows -- is the command of each rank; the parallelism section lays the ranks\n"
          "out, and a layout that cannot work is refused before anything starts. If a rank fails, all end,\n"
          "and the job restarts from the last checkpoint after a delay that doubles with each failure. An\n"
          "error that a restart cannot fix (a mistake in the command line, the same error twice) ends the\n"
          "job, with a table of all attempts. SIGTERM and SIGUSR1 make all ranks save and end.\n"
          "All hosts need the program, the data and the folders under the same paths. mpirun ... ingot\n"
          "train, srun ingot train, and torchrun's environment (RANK, WORLD_SIZE, MASTER_ADDR,\n"
          "MASTER_PORT) work too.\n"
          "data filter, dedup, decontaminate, sample, shuffle, split, merge and tokenize share their input\n"
          "among the ranks, and write the same files as one process. Ranks that are through take over files\n"
          "of slower ones. If a rank is lost, the command restarts, unless it has --fresh, and continues\n"
          "where it was; an error that it reports ends it.\n"
          "\n"
          "Examples\n"
          "  ingot launch -n 4 -- train configs/tiny.yaml --parallelism.tensor_parallel_degree=2\n"
          "  ingot launch --hosts a:8,b:8 --spares c:8 -- train run.yaml\n"
          "  ingot launch --hosts a:1,b:1 -- data dedup /shared/clean --out /shared/unique\n"
          "  ingot launch -n 64 --per-host 8 --emit slurm -- train run.yaml > run.sbatch\n"
          "  ingot launch -n 16 --per-host 8 --emit k8s --image ingot:1 -- train run.yaml > job.yaml\n"
          "\n" },
    { .name = "sample",
      .usage = "RUN [--prompt TEXT] [options]",
      .summary = "generate text with a trained model",
      .run = cmd_sample,
      .spec = &cmd_sample_spec,
      .help = "RUN is a run folder or a checkpoint inside one.\n"
              "\n"
              "Examples\n"
              "  ingot sample runs/tiny --prompt \"Once upon a time\"\n"
              "  ingot sample runs/tiny --tokens 500 --temperature 0.6 --seed 7\n"
              "  ingot sample runs/tiny --samples 4 --stop \"\\n\\n\" --repetition-penalty 1.2\n"
              "  ingot sample runs/tiny --prompts questions.jsonl --json\n"
              "  ingot sample runs/tiny --device cpu\n"
              "\n" },
    { .name = "chat",
      .usage = "MODEL [options]",
      .summary = "talk with a model that has a chat template",
      .run = cmd_chat,
      .spec = &cmd_chat_spec,
      .help =
          "MODEL is a run folder, a checkpoint inside one, or a Hugging Face folder. Its template is\n"
          "chat_template.jinja or the one in tokenizer_config.json, which import keeps.\n"
          "A line is a message. Where the input is not a terminal, each of its lines is answered.\n"
          "\n"
          "Examples\n"
          "  ingot chat runs/tuned\n"
          "  ingot chat qwen-folder --system \"Answer in one sentence.\" --temperature 0\n"
          "  echo \"What is 2 + 2?\" | ingot chat runs/tuned\n"
          "\n" },
    { .name = "eval",
      .usage = "MODEL [--data FILE,...] [--tasks [NAME=]FILE,...] [options]",
      .summary = "measure a model: loss on texts, answers to questions",
      .run = cmd_eval,
      .spec = &cmd_eval_spec,
      .help =
          "MODEL is a run folder, a checkpoint inside one, or a Hugging Face folder. For each text it\n"
          "prints loss, perplexity and bits per byte; for each file of questions, the share answered\n"
          "correctly by likelihood (acc) and by likelihood per character (acc_norm), as\n"
          "EleutherAI's lm-evaluation-harness computes them. docs/evaluation.md shows both side by side.\n"
          "\n"
          "Examples\n"
          "  ingot eval runs/tiny --data held-out.txt\n"
          "  ingot eval runs/tiny --tasks hellaswag_val.jsonl,ARC-Easy-Test.jsonl --limit 500\n"
          "  ingot eval runs/tiny --tasks mmlu_test.jsonl --shots 5 --shots-from mmlu_dev.jsonl\n"
          "  ingot eval gpt2-folder --tasks piqa.jsonl --json\n"
          "  ingot eval runs/tiny                                   loss on its own held-out data\n"
          "  ingot eval runs/tiny --tasks lambada=lambada_test.jsonl,gsm8k=gsm8k_test.jsonl\n"
          "  ingot eval runs/tiny --core eval_bundle                DCLM's CORE\n"
          "  ingot eval runs/tiny --data wikitext.jsonl --rolling   perplexity per word and byte\n"
          "  ingot eval runs/tiny --data held-out.txt --watch       each checkpoint as it appears\n"
          "\n" },
    { .name = "plan",
      .usage =
          "[CONFIG.yaml] [--section.key=value ...] [options] | fit RUN... | hardware | recipe [NAME]",
      .summary = "plan a run: scaling laws, memory, time and cost",
      .overrides = true,
      .run = cmd_plan,
      .spec = &cmd_plan_spec,
      .family = &plan_family,
      .help =
          "Give one or two of compute, parameters, tokens and loss: the others follow. One alone is\n"
          "completed along each law's compute-optimal frontier. For a config, the programs that\n"
          "`ingot train` would run are recorded and laid out, without reserving their memory.\n"
          "docs/planning.md explains the output.\n"
          "\n"
          "Examples\n"
          "  ingot plan --compute 6.3e23                       the best model for a budget\n"
          "  ingot plan --params 70B --tokens 1.5T             what a model costs and reaches\n"
          "  ingot plan --loss 2.0 --inference-tokens 1T       the cheapest model over its life\n"
          "  ingot plan --params 7B --tokens 1T --unique-tokens 100B    with ten epochs\n"
          "  ingot plan --params 7B --tokens 2T --gpu a100 --gpus 256 --provider lambda\n"
          "  ingot plan --params 70B --tokens 2T --gpu h100 --gpus 2048 --goodput\n"
          "  ingot plan configs/tiny.yaml                      memory, time and cost of a run\n"
          "  ingot plan --model=llama3-8b --training.seq_len=8192 --gpu h100 --check\n"
          "  ingot plan recipe llama3-8b > run.yaml            a published run as a config\n"
          "  ingot plan fit runs/*                             a scaling law of your own\n"
          "\n" },
    { .name = "report",
      .usage = "RUN... [options]",
      .summary = "analyze how a run went, and compare runs",
      .run = cmd_report,
      .spec = &cmd_report_spec,
      .help =
          "Prints the loss curve with its phases and spikes, throughput, where the time went, stalls\n"
          "and advice; with several runs also a comparison. RUN may still be training.\n"
          "\n"
          "Examples\n"
          "  ingot report runs/tiny\n"
          "  ingot report runs/a runs/b --html report.html\n"
          "  ingot report runs/before runs/after --assert-equal-loss 1e-5    for regression tests\n"
          "\n" },
    { .name = "sweep",
      .usage = "NAME|FILE.yaml [--section.key=value ...] [options]",
      .summary = "train a config with several sets of options, and compare",
      .overrides = true,
      .run = cmd_sweep,
      .spec = &cmd_sweep_spec,
      .help =
          "Without a name, lists the sweeps that come with ingot. A file has the options of all runs, and\n"
          "those that differ: a grid, whose every combination is trained, random draws, or a list of runs:\n"
          "\n"
          "  config: run.yaml                       # optional, relative to the file\n"
          "  options: { training.steps: 500 }\n"
          "  grid: { optimizer.lr: [1e-3, 3e-3], training.seed: [1, 2] }\n"
          "  random: { runs: 16, seed: 1, optimizer.lr: { min: 1e-4, max: 1e-2, scale: log } }\n"
          "  runs: [ { name: big, model.layers: 8 } ]\n"
          "  halving: { steps: [100, 200], keep: 0.5 }   # after 100 steps the better half continues, ...\n"
          "\n"
          "Each run has a folder of its own; --parallel N trains N of them at a time. Repeating the command\n"
          "skips those that have ended and continues those that were stopped. The best is the run with the\n"
          "lowest held-out loss at equal tokens.\n"
          "\n"
          "Examples\n"
          "  ingot sweep\n"
          "  ingot sweep batch-size\n"
          "  ingot sweep lr.yaml --training.steps=2000 --dir runs/lr\n"
          "\n" },
    { .name = "watch",
      .usage = "RUN [--seconds S]",
      .summary = "show a run on the terminal as it trains",
      .run = cmd_watch,
      .spec = &cmd_watch_spec,
      .help =
          "Loss and gradient norm, where a step's time goes, ranks and alerts, on the whole terminal; q\n"
          "quits. Without a terminal it prints one screen as text. Works over ssh, and on any machine that\n"
          "sees the folder.\n"
          "\n"
          "Examples\n"
          "  ingot watch runs/tiny\n"
          "  ingot watch runs/tiny | cat\n"
          "\n" },
    { .name = "serve",
      .usage = "[RUN...] [CONFIG.yaml...] [options]",
      .summary = "serve a live page of runs, Prometheus metrics, and a page that plans runs",
      .run = cmd_serve,
      .spec = &cmd_serve_spec,
      .help =
          "The page needs nothing but a browser: curves of several runs, zoom, spikes, samples, config.\n"
          "/metrics is for Prometheus. By default only this machine can reach it.\n"
          "A run can also serve itself: ingot train --metrics.serve=127.0.0.1:8080.\n"
          "/plan has sliders for parameters, tokens and compute, and draws the memory and the pipeline\n"
          "timetable of a layout, of the configs given and of published recipes: ingot plan in a browser.\n"
          "\n"
          "Examples\n"
          "  ingot serve runs/tiny\n"
          "  ingot serve runs/* --address 8081\n"
          "  ingot serve                               to plan a run that does not exist yet\n"
          "  ingot serve my-run.yaml                   the same, beginning with a config\n"
          "  ingot serve runs/big --address 0.0.0.0:8080 --token SECRET\n"
          "  ingot serve runs/tiny --generate          for clients of OpenAI's API: base_url http://127.0.0.1:8080/v1\n"
          "\n" },
    { .name = "data",
      .usage = "SUBCOMMAND ...",
      .summary = "generate, filter, deduplicate, tokenize and inspect training data",
      .run = cmd_data,
      .family = &data_family,
      .help = "" },
    { .name = "tokenizer",
      .usage = "SUBCOMMAND ...",
      .summary = "train a tokenizer; encode and decode text",
      .run = cmd_tokenizer,
      .family = &tokenizer_family,
      .help = "" },
    { .name = "import",
      .usage = "HF_FOLDER RUN",
      .summary = "import a Hugging Face model as a run",
      .run = cmd_import,
      .help =
          "Reads config.json, the safetensors (one file or several) and the tokenizer of a model,\n"
          "and writes a checkpoint to RUN. docs/exchange.md lists the families, and so does the\n"
          "error for another one. A model that computes something else is refused; keys of\n"
          "config.json that ingot does not know are listed. To train it further, start a new run\n"
          "with --checkpoint.initial_load_path=RUN.\n"
          "\n"
          "Example\n"
          "  ingot import ~/models/Qwen3-0.6B runs/qwen3\n" },
    { .name = "export",
      .usage = "RUN HF_FOLDER [options]",
      .summary = "export a model as a Hugging Face folder",
      .run = cmd_export,
      .spec = &cmd_export_spec,
      .help =
          "Writes config.json, generation_config.json, model.safetensors and the tokenizer, which\n"
          "transformers loads. HF_FOLDER appears when it is complete; an earlier export in its\n"
          "place is replaced. A model that the family cannot express is refused.\n"
          "\n"
          "Example\n"
          "  ingot export runs/tiny tiny-hf --dtype bf16\n"
          "\n" },
    { .name = "ckpt",
      .usage = "ls | verify | reshard | diff | upload",
      .summary = "list, verify, rewrite and compare checkpoints",
      .run = cmd_ckpt,
      .family = &ckpt_family,
      .help = "Checkpoints load into any number of ranks and any parallelism as they are.\n"
              "\n"
              "Examples\n"
              "  ingot ckpt ls runs/tiny\n"
              "  ingot ckpt verify runs/tiny\n"
              "  ingot ckpt diff runs/a runs/b\n"
              "  ingot ckpt reshard runs/tiny whole --weights-only\n"
              "\n" },
    { .name = "doctor",
      .usage = "[--json | --calibrate | --cluster]",
      .summary = "report what this build and this machine support, and how fast they are",
      .run = cmd_doctor,
      .spec = &cmd_doctor_spec,
      .help =
          "Measures copy bandwidth and GEMM speed for a few seconds; writes no files. If no GPU can\n"
          "be used, the reason and a remedy are printed. --calibrate also times every op in training\n"
          "steps of small models, for some ten seconds, and prints what was measured as a catalogue:\n"
          "`ingot doctor --calibrate > here.yaml`, then `ingot plan run.yaml --catalogue here.yaml\n"
          "--gpu this-cpu`. With --cluster, under `ingot launch`, every rank runs computations\n"
          "with known results, and those that get wrong ones are named:\n"
          "  ingot launch --hosts a:8,b:8 -- doctor --cluster\n"
          "\n" },
    { .name = "config",
      .usage =
          "[CONFIG.yaml] [--section.key=value ...] [--docs | --models | --metrics | --alerts | --findings] | convert FILE",
      .summary = "check a config and print it with all defaults filled in",
      .run = cmd_config,
      .spec = &cmd_config_spec,
      .family = &config_family,
      .options = true,
      .help =
          "The output is itself a valid config.\n"
          "\n"
          "Examples\n"
          "  ingot config convert 20B.yml > run.yaml  another system's config as one of ours\n"
          "  ingot config > run.yaml                  a complete config to start from\n"
          "  ingot config run.yaml                    check a config and show its resolved values\n"
          "  ingot config run.yaml --precision bf16   the same, with one option overridden\n"
          "\n" },
    { .name = "manual",
      .usage = "[COMMAND [SUBCOMMAND]] [--completions SHELL | --out FOLDER]",
      .summary = "print a man page, or the completions of a shell",
      .run = cmd_manual,
      .spec = &cmd_manual_spec,
      .help =
          "Pages and completions are generated from the tables that parse the arguments. An installed\n"
          "ingot has them in place: man ingot-train.\n"
          "\n"
          "Examples\n"
          "  ingot manual train | man -l -\n"
          "  ingot manual --completions bash > ~/.local/share/bash-completion/completions/ingot\n"
          "  ingot manual --out ~/.local/share          all pages, and the completions of all shells\n"
          "\n" },
};
const int cli_command_count = (int)COUNT_OF(cli_commands);

static const cli_command *find_command(const char *name) {
    for (int i = 0; i < cli_command_count; i++)
        if (strcmp(cli_commands[i].name, name) == 0) return &cli_commands[i];
    return NULL;
}

static void print_overview(FILE *to) {
    fprintf(to, "ingot trains language models, from raw text to a model that generates text.\n\n"
                "usage: ingot COMMAND [arguments]\n\n");
    for (int i = 0; i < cli_command_count; i++)
        fprintf(to, "  %-12s %s\n", cli_commands[i].name, cli_commands[i].summary);
    fprintf(
        to,
        "\nRun \"ingot COMMAND --help\" for details on a command. --version prints the version;\n"
        "--log-level=debug|info|warning|error sets the least severe message that is printed (info);\n"
        "--debug adds source locations to error messages.\n");
}

static void print_help(const cli_command *c) {
    printf("ingot %s: %s\n\nusage: ingot %s %s\n\n%s", c->name, c->summary, c->name, c->usage,
           c->help);
    if (c->spec) cli_print_args(c->spec);
    if (c->spec && c->family) printf("\n");
    if (c->family) cli_print_family(c->family);
    if (!c->options) return;
    str text = { 0 };
    config_help(&text);
    printf("\n%s", text.text);
    str_free(&text);
}

static err unknown_command(const char *name) {
    err e = ERR_USAGE("unknown command \"%s\"", name);
    const char *near = NULL;
    for (int i = 0; i < cli_command_count; i++) near = str_nearer(name, cli_commands[i].name, near);
    if (near) return err_hint(e, "\"ingot %s\"; \"ingot --help\" lists them all", near);
    return err_hint(e, "\"ingot --help\" lists them all");
}

static bool is_help(const char *arg) {
    return strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0;
}

static void print_version(void) {
    const char *revision = build_revision();
    printf("ingot %s%s%s%s\n", INGOT_VERSION, *revision ? " (" : "", revision,
           *revision ? ")" : "");
    for (int present = 1; present >= 0; present--) {
        const char *features = build_features(present);
        if (*features) printf("%-9s%s\n", present ? "with" : "without", features);
    }
    printf("%-9s", "CPU"); /* the kernels that this machine runs, weakest first */
    for (int i = 0; ops_cpu_isa(i); i++) printf("%s%s", i ? ", " : "", ops_cpu_isa(i));
    printf("\n");
}

/* Whether help is asked for here: a command with subcommands shows their help itself. */
static bool asks_help(const cli_command *c, int argc, char **argv) {
    int last = argc;
    if (c->family && (!c->spec || (argc > 1 && cli_find_subcommand(c->family, argv[1]))))
        last = MIN(argc, 2);
    for (int i = 1; i < last && strcmp(argv[i], "--") != 0; i++)
        if (is_help(argv[i])) return true;
    return false;
}

/* argv[0] is the command's name. */
static err dispatch_command(int argc, char **argv) {
    bool help = strcmp(argv[0], "help") == 0;
    if (is_help(argv[0]) || (help && argc == 1)) {
        print_overview(stdout);
        return OK;
    }
    if (strcmp(argv[0], "--version") == 0) {
        print_version();
        return OK;
    }
    const cli_command *c = find_command(argv[help]);
    if (!c) return unknown_command(argv[help]);
    if (!help && !asks_help(c, argc, argv)) return c->run(argc, argv);
    print_help(c);
    return OK;
}

static err set_log_level(const char *text) {
    static const char *const names[] = { "debug", "info", "warning", "error" }; /* as log_level */
    for (int i = 0; i < (int)COUNT_OF(names); i++) {
        if (!text || strcmp(text, names[i]) != 0) continue;
        log_set_level((log_level)i);
        return OK;
    }
    return ERR_USAGE("--log-level: expected debug, info, warning or error; got %s%s%s",
                     text ? "\"" : "", text ? text : "the end of the command line",
                     text ? "\"" : "");
}

/* Takes the options of all commands out of the arguments, up to a "--". @param debug set where --debug is among them */
static err take_common_options(int *argc, char **argv, bool *debug) {
    static const char level[] = "--log-level";
    const size_t length = sizeof level - 1;
    int kept = 0, i = 0;
    for (; i < *argc && strcmp(argv[i], "--") != 0; i++) {
        char *a = argv[i];
        if (strcmp(a, "--debug") == 0)
            *debug = true;
        else if (strcmp(a, level) == 0)
            TRY(set_log_level(++i < *argc ? argv[i] : NULL));
        else if (strncmp(a, level, length) == 0 && a[length] == '=')
            TRY(set_log_level(a + length + 1));
        else
            argv[kept++] = a;
    }
    for (; i < *argc; i++) argv[kept++] = argv[i];
    argv[kept] = NULL;
    *argc = kept;
    return OK;
}

/* A descriptor that the caller closed would be given to the next file that is opened, and what is
 * printed would go into it. */
static void open_standard_files(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0) {
            int null = open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
            BUG_IF(null >= 0 && null != fd); /* the lowest that is free */
        }
}

/* A file that is mapped and gets shorter raises SIGBUS where it is read. Nothing can be repaired
 * from here, but it can be named. */
static void name_truncated_file(int signal_number, siginfo_t *info, void *context) {
    const char *path = io_mapped_path(info->si_addr);
    const char *parts[] = { "error: ", path ? path : "a file",
                            " became shorter while it was being read\n"
                            "  try: make or copy it again, and repeat the command\n" };
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        if (write(STDERR_FILENO, parts[i], strlen(parts[i])) < 0) break;
    _exit(EXIT_ERROR);
}

/* Output is written when its buffer is flushed, so a full disk may show only now. A reader
 * that has gone away, as `head` does, has what it wants. */
static err check_output(void) {
    bool failed = ferror(stdout);
    int code = fflush(stdout) == 0 ? 0 : errno;
    struct pollfd reader = { .fd = STDOUT_FILENO };
    bool gone = code == EPIPE || (poll(&reader, 1, 0) > 0 && reader.revents & POLLERR);
    if (!(failed || code) || gone) return OK;
    return err_hint(
        ERR("cannot write to standard output%s%s", code ? ": " : "", code ? strerror(code) : ""),
        "is the disk full?");
}

int main(int argc, char **argv) {
    open_standard_files();
    struct sigaction bus = { .sa_sigaction = name_truncated_file, .sa_flags = SA_SIGINFO };
    sigaction(SIGBUS, &bus, NULL);
    /* A file beyond the size limit is then an error of the write, not the end of the process. */
    signal(SIGXFSZ, SIG_IGN);
    cli_catch_interrupt();
    bool debug = false;
    err e = take_common_options(&argc, argv, &debug);
    if (!e && argc < 2) {
        print_overview(stderr);
        return EXIT_USAGE;
    }
    launch_beat_start();
    if (!e) e = dispatch_command(argc - 1, argv + 1);
    if (!e) e = check_output();
    if (!e) return EXIT_DONE;
    int code = err_exit_code(e);
    bool told = code == EXIT_PREEMPTED || code == EXIT_INTERRUPTED; /* by the run itself */
    if (!told) err_print(stderr, e, debug);
    err_free(e);
    return code;
}
