/* cli: the commands. Each is one file, cmd_NAME.c, with one function, and one row of the table in
 * main.c. Commands return errors; only main exits.
 *
 *     err cmd_config(int argc, char **argv);      // argv[0] is "config"
 *
 * Exit codes: util/exits.def.
 */
#ifndef INGOT_CLI_H
#define INGOT_CLI_H

#include "util/util.h"

/* ---- arguments of a command: one table parses, checks and documents them ------------------ */
typedef enum { ARG_COUNT, ARG_FRACTION, ARG_REAL, ARG_TEXT, ARG_FLAG } cli_arg_type;
typedef struct cli_arg {
    const char *name; /* without the dashes */
    cli_arg_type type;
    size_t offset; /* of an int64_t, double, double, const char * or bool in the command's struct */
    const char *holder, *help;
    char letter; /* "-t" for short; 0: none */
} cli_arg;
typedef struct cli_spec {
    const char *command; /* "data synth" */
    const char *usage;   /* what follows it */
    const cli_arg *args;
    int n_args;
    int inputs; /* arguments that are not options: how many must be given */
    bool many;  /* ... and more may be */
} cli_spec;
#define CLI_ARGS(table) (table), (int)COUNT_OF(table) /* the members args and n_args */
/* Reads argv (without the command's name) into the struct at `into`, and the arguments that are not
 * options into `input` [spec.inputs], borrowed. "-" alone is a word: standard input. */
err cli_parse(const cli_spec *s, int argc, char **argv, void *into, const char **input) MUST_USE;
/* The same for a spec with `many`: the words end up first in argv. @param n how many. */
err cli_parse_many(const cli_spec *s, int argc, char **argv, void *into, int *n) MUST_USE;
/* Reads argv, whose first word is the command's name, into the config, and the command's own flags (ARG_FLAG
 * and ARG_TEXT) into the struct at `into`. */
struct config;
err cli_parse_config(const cli_spec *s, int argc, char **argv, struct config *c,
                     void *into) MUST_USE;
/* Prints the table as help text. */
void cli_print_args(const cli_spec *s);

/* @return the columns of standard output, at most 160; `otherwise` where it is not a terminal, or narrower than `least`. */
int cli_width(int least, int otherwise);

/* Ends a process that hangs where nothing can be unwound. */
void cli_exit_stalled(void);

/* ---- Ctrl-C --------------------------------------------------------------------------------- */
/* Ends the program with EXIT_INTERRUPTED, until a command that has something to save catches the signal itself. */
void cli_catch_interrupt(void);
/* Sets what is printed then: static text, without a newline. */
void cli_on_interrupt(const char *text);

/* ---- commands ----------------------------------------------------------------------------- */
typedef struct cli_command {
    const char *name;
    const char *usage;   /* what follows "ingot NAME" */
    const char *summary; /* one line */
    err (*run)(int argc, char **argv);
    const char *help;                /* paragraphs and examples, ending in a newline */
    bool options;                    /* takes the options of config/, which --help lists */
    bool overrides;                  /* takes them too, and does not list them */
    const cli_spec *spec;            /* its own options, which --help lists; NULL: none */
    const struct cli_family *family; /* its subcommands, which --help lists; NULL: none */
} cli_command;

extern const cli_command cli_commands[]; /* main.c */
extern const int cli_command_count;

struct data_job; /* data_common.h */

/* `ingot data filter`: one file of its own, data_filter.c, and one row in the family's table. */
typedef struct cli_subcommand {
    const char *summary;
    err (*run)(const struct cli_subcommand *self, int argc, char **argv); /* words after the name */
    /* In its place: several processes may run it together, which `ingot launch` starts (data_run_on_ranks). */
    err (*run_rank)(const struct cli_subcommand *self, int argc, char **argv,
                    const struct data_job *job);
    cli_spec spec;    /* spec.command is "data filter" */
    const char *help; /* more paragraphs and examples, ending in a newline; NULL: none */
} cli_subcommand;
typedef struct cli_family {
    const char *command; /* "data" */
    const cli_subcommand *const *members;
    int n;
} cli_family;
/* Finds the subcommand argv[1] and runs it, or prints its help. argv[0] is the family's command. */
err cli_run_family(const cli_family *f, int argc, char **argv) MUST_USE;
void cli_print_family(const cli_family *f);
/* @return the i-th subcommand's name without the family's: "filter" of "data filter". */
const char *cli_subcommand_name(const cli_family *f, int i);
/* @return the subcommand of this name; NULL: there is none. */
const cli_subcommand *cli_find_subcommand(const cli_family *f, const char *name);

err cmd_chat(int argc, char **argv) MUST_USE;
err cmd_ckpt(int argc, char **argv) MUST_USE;
err cmd_config(int argc, char **argv) MUST_USE;
err cmd_data(int argc, char **argv) MUST_USE;
err cmd_doctor(int argc, char **argv) MUST_USE;
err cmd_eval(int argc, char **argv) MUST_USE;
err cmd_export(int argc, char **argv) MUST_USE;
err cmd_import(int argc, char **argv) MUST_USE;
err cmd_launch(int argc, char **argv) MUST_USE;
err cmd_manual(int argc, char **argv) MUST_USE;
err cmd_plan(int argc, char **argv) MUST_USE;
err cmd_report(int argc, char **argv) MUST_USE;
err cmd_sample(int argc, char **argv) MUST_USE;
err cmd_serve(int argc, char **argv) MUST_USE;
err cmd_sweep(int argc, char **argv) MUST_USE;
err cmd_tokenizer(int argc, char **argv) MUST_USE;
err cmd_train(int argc, char **argv) MUST_USE;
err cmd_watch(int argc, char **argv) MUST_USE;
struct train_options;
/* Flags of train that are not the training's. */
typedef struct train_flags {
    bool print_config, dump_schedule; /* instead of training */
    bool stop_on_stdin;               /* the line TRAIN_STOP_LINE there is a SIGUSR1 */
} train_flags;
#define TRAIN_STOP_ON_STDIN "stop-on-stdin"
#define TRAIN_STOP_LINE     "stop"
/* Reads the arguments of train. @param c initialized. */
err cli_read_train(int argc, char **argv, struct config *c, struct train_options *o,
                   train_flags *flags) MUST_USE;
extern const cli_spec cmd_chat_spec, cmd_config_spec, cmd_doctor_spec, cmd_eval_spec,
    cmd_export_spec, cmd_launch_spec, cmd_manual_spec, cmd_plan_spec, cmd_report_spec,
    cmd_sample_spec, cmd_serve_spec, cmd_sweep_spec, cmd_train_spec, cmd_watch_spec;
extern const cli_family ckpt_family, config_family, data_family, plan_family, tokenizer_family;
extern const cli_subcommand ckpt_ls, ckpt_verify_all, ckpt_reshard_one, ckpt_diff, ckpt_upload_one;
extern const cli_subcommand tokenizer_train, tokenizer_encode, tokenizer_decode_ids,
    tokenizer_count;
extern const cli_subcommand data_dedup, data_decontaminate;
extern const cli_subcommand data_filter, data_quality, data_language;
extern const cli_subcommand data_sample, data_shuffle, data_split_command, data_merge,
    data_export_command;
extern const cli_subcommand data_synth, data_tokenize, data_inspect, data_stats, data_explain,
    data_reweigh;

#endif
