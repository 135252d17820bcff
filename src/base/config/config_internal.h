/* config, inside: the option table as data. */
#ifndef INGOT_CONFIG_INTERNAL_H
#define INGOT_CONFIG_INTERNAL_H

#include "config/config.h"

typedef enum {
    OPT_INT,
    OPT_REAL,
    OPT_BOOL,
    OPT_TRISTATE,
    OPT_TEXT,
    OPT_SECRET,
    OPT_LIST,
    OPT_CHOICE,
    OPT_AMOUNT
} option_type;

/* One value of an option of choices: choices.h. */
typedef struct choice_row {
    const char *text, *help;
} choice_row;

typedef struct option {
    const char *section, *key, *name; /* name is "section.key" */
    option_type type;
    size_t offset;             /* of the value in a config */
    const choice_row *choices; /* OPT_CHOICE */
    int n_choices;
    int64_t int_min, int_max;  /* OPT_INT */
    double real_min, real_max; /* OPT_REAL */
    int units;                 /* OPT_AMOUNT: set of cfg_unit */
    const char *holder;        /* OPT_TEXT, OPT_LIST: what --help calls the value */
    err (*normalize)(const char *text, const char *label,
                     str *out); /* OPT_LIST: checks and rewrites it */
    bool has_auto;
    cfg_resume resume;
    const char *help;
} option;

typedef struct section {
    const char *name, *main_key, *help; /* main_key: "" when there is none */
} section;

extern const option option_table[];
extern const int option_count;
extern const section section_table[];
extern const int section_count;
extern const config config_defaults;

/* @return NULL when there is none. Aliases are followed. */
const section *section_find(const char *name);
const option *option_find(const char *section_name, const char *key);
/* By "section.key", or by "section" alone for its main key. */
const option *option_find_name(const char *name);
int option_index(const option *o);

/* Adds the remedy for a name that is not an option: the nearest one. `section_name` may be NULL. */
err option_suggest(err e, const char *section_name, const char *key) MUST_USE;

/* Parses `text` into the member of `c` that holds the option. Errors start with `label`, the option as the user
 * wrote it ("run.yaml:3: training.steps", "--training.steps"). `origin` is kept for
 * config_where; it is borrowed and must live as long as `c`. */
err option_set(config *c, const option *o, const char *text, const char *label,
               const char *origin) MUST_USE;
/* Likewise, for a value outside of a config; not of text. @return false when `text` is not a legal value. */
bool option_parse(const option *o, const char *text, void *at);
/* A value that is not given: CFG_AUTO, or NaN. */
void option_unset(const option *o, void *at);
bool option_is_unset(const option *o, const void *at);
/* Appends the value at `at`, as option_print does. */
void option_print_value(const option *o, const void *at, str *out);
/* optimizer.groups: checks a text and appends it with its keys in order. */
err groups_normalize(const char *text, const char *label, str *out) MUST_USE;
/* An error for a key of a group that its optimizer does not read. */
err groups_check_effects(const config *c) MUST_USE;
/* Checks a text that is a list of counts, and appends it as "[1, 2]". */
err counts_normalize(const char *text, const char *label, str *out) MUST_USE;
err numbers_normalize(const char *text, const char *label, str *out) MUST_USE;
/* training.batch_schedule: checks a text and appends it as "[{batch: 32, until: 20%}]". */
err phases_normalize(const char *text, const char *label, str *out) MUST_USE;
/* "a whole number from 1 to 1024, or auto" */
void option_expects(const option *o, str *out);
/* @return what the option needs to have an effect (a NEEDS row); NULL: nothing. */
const char *option_needs(const option *o);
/* Sets the option to its default. */
void option_reset(config *c, const option *o);

/* Where config_where says that an option was set by an argument. */
#define COMMAND_LINE "command line"

/* Appends the value as YAML that option_set reads back to the same value. */
void option_print(const option *o, const config *c, str *out);
/* @return what may be shown of a secret: what refers to it. */
const char *secret_shown(const char *given);
/* Appends s in double quotes, control characters escaped. */
void quote_text(str *out, const char *s);
/* Appends the shortest text that reads back as v. */
void print_real(str *out, double v);

#endif
