/* cli: the commands. Each is one file, cmd_NAME.c, with one function, and one row of the table in
 * main.c. Commands return errors; only main exits.
 *
 *     err cmd_config(int argc, char **argv);      // argv[0] is "config"
 *
 * Exit codes: 0 done, 1 an error, 2 the command line is wrong. An error counts as the latter when
 * its message starts with "usage:" or with the option it complains about ("--steps: ...").
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
} cli_arg;
typedef struct cli_spec {
    const char *command; /* "data synth" */
    const char *usage;   /* what follows it */
    const cli_arg *args;
    int n_args;
    int inputs; /* words that are no options: how many must be given */
} cli_spec;
/* Reads argv (without the command's name) into the struct at `into`, and the words that are no
 * options into `input` [spec.inputs], borrowed. */
err cli_parse(const cli_spec *s, int argc, char **argv, void *into, const char **input);
/* The table as help text. */
void cli_print_args(const cli_spec *s);

/* ---- commands ----------------------------------------------------------------------------- */
typedef struct cli_command {
    const char *name;
    const char *usage;   /* what follows "ingot NAME" */
    const char *summary; /* one line */
    err (*run)(int argc, char **argv);
    const char *help;     /* paragraphs and examples, ending in a newline */
    bool options;         /* takes the options of config/, which --help lists */
    const cli_spec *spec; /* its own options, which --help lists; NULL: none */
    bool subcommands;     /* `ingot NAME SUB --help` is the command's own affair */
} cli_command;

err cmd_config(int argc, char **argv);
err cmd_data(int argc, char **argv);
err cmd_export(int argc, char **argv);
err cmd_import(int argc, char **argv);
err cmd_sample(int argc, char **argv);
err cmd_train(int argc, char **argv);
extern const cli_spec cmd_export_spec, cmd_sample_spec;

#endif
