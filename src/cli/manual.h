/* The man pages and completions, for cmd_manual.c: both walk the same list of commands and subcommands. */
#ifndef INGOT_CLI_MANUAL_H
#define INGOT_CLI_MANUAL_H

#include "cli/cli.h"

/* A command or a subcommand, as a page and the completions show it. All members are borrowed. */
typedef struct manual_entry {
    const char *words;                  /* "data filter" */
    const char *summary, *usage, *help; /* help may be NULL */
    const cli_spec *spec;               /* NULL: no options of its own */
    const cli_family *family;           /* NULL: no subcommands */
    bool lists_options;                 /* its page lists the options of config/ */
    bool takes_options;                 /* it takes them */
} manual_entry;

enum { MANUAL_MOST = 96 };
/* Fills `out` [MANUAL_MOST] with all commands, each followed by its subcommands. @return how many. */
int manual_entries(manual_entry *out);

/* Appends the completions for bash, zsh or fish. @return an error for any other shell. */
err manual_completions(const char *shell, str *out) MUST_USE;

#endif
