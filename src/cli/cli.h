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

typedef struct cli_command {
    const char *name;
    const char *usage;   /* what follows "ingot NAME" */
    const char *summary; /* one line */
    err (*run)(int argc, char **argv);
    const char *help; /* paragraphs and examples, ending in a newline */
    bool options;     /* takes the options of config/, which --help lists */
    bool subcommands; /* `ingot NAME SUB --help` is the command's own affair */
} cli_command;

err cmd_config(int argc, char **argv);
err cmd_data(int argc, char **argv);
err cmd_export(int argc, char **argv);
err cmd_import(int argc, char **argv);
err cmd_sample(int argc, char **argv);
err cmd_train(int argc, char **argv);

#endif
