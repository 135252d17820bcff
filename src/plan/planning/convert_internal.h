/* Shared by convert.c and the files of single systems. */
#ifndef INGOT_PLANNING_CONVERT_INTERNAL_H
#define INGOT_PLANNING_CONVERT_INTERNAL_H

#include "config/foreign.h"
#include "planning/planning.h"

typedef struct source_pair {
    char *key, *value; /* owned */
    bool empty;        /* null, or a list or section without entries: as if it were not there */
    bool left_auto;    /* empty, since its value is "auto" */
    bool refused;      /* or allowed: not to be looked at again */
} source_pair;

typedef enum { SYNTAX_ARGUMENTS, SYNTAX_JSON, SYNTAX_YAML, SYNTAX_TOML } convert_syntax;
typedef struct convert_source convert_source;
typedef struct convert_system {
    const char *name, *title;
    convert_syntax syntax;
    const char *
        model; /* a key that the description of a model has; NULL: the system's configs have none */
    const foreign_table *table;
    bool leaves_auto;                 /* a value "auto" leaves the option to the program */
    err (*finish)(convert_source *s); /* converts what takes more than one key */
} convert_system;
extern const convert_system convert_systems[];
extern const int convert_system_count;

/* A source, flattened to keys and texts ("optimizer.params.lr": "0.0001", dashes as underscores). */
struct convert_source {
    source_pair *at;
    int n;
    config *c;
    const char *name;
    const convert_system *system;
    const convert_options *options;
    int64_t ranks;                         /* 0: not known */
    str unknown, lost;                     /* refused keys: "key, ..." of the hint, and */
    str unknown_text, lost_text;           /* their part of the error messages */
    str left_out, autos, allowed, differs; /* lines of the notes */
    int n_unknown, n_lost, n_left_out, n_autos, n_allowed, n_differs, n_converted;
};

void convert_add_pair(convert_source *s, const char *key, const char *value);

/* @return a key's value; NULL (NaN): it is not there. The key must be in the system's table. */
const char *convert_take(convert_source *s, const char *key);
double convert_take_number(convert_source *s, const char *key);
double convert_number_or(convert_source *s, const char *key,
                         double otherwise);                  /* where it is absent */
bool convert_has(const convert_source *s, const char *key);  /* whatever its kind */
bool convert_auto(const convert_source *s, const char *key); /* left to the program */
bool convert_is(convert_source *s, const char *key, const char *value);
bool convert_true(convert_source *s, const char *key); /* true or True */
err convert_set(convert_source *s, const char *key, const char *option, const char *value) MUST_USE;
/* NaN sets nothing. @param unit "tokens", "%" or "" */
err convert_set_number(convert_source *s, const char *key, const char *option,
                       double value) MUST_USE;
err convert_set_amount(convert_source *s, const char *key, const char *option, double value,
                       const char *unit) MUST_USE;
/* The same where no key has set the option: a default of the source. */
err convert_default(convert_source *s, const char *option, const char *value) MUST_USE;
/* Refuses a key whose value would change the result, unless --allow names it. @param why "" : no counterpart */
void convert_refuse(convert_source *s, const char *key, const char *value, const char *why);
/* Lists a key that has no effect on the result. */
void convert_leave_out(convert_source *s, const char *key, const char *value);
/* The same for those keys of a list that are there. */
void convert_leave_out_all(convert_source *s, const char *const *keys, size_t n);
void convert_leave_out_given(convert_source *s, const char *key); /* if it is */
/* Lists something that whoever converts should look at, such as a default of the source without a counterpart. */
void convert_note(convert_source *s, const char *text);
/* Translates a key by a map; a value that is not in it is refused. An absent key becomes `otherwise`, our value. */
err convert_choice(convert_source *s, const char *key, const char *option, const char *map,
                   const char *otherwise) MUST_USE;

/* ---- what several systems share (convert_systems.c) ------------------------------------------------ */
/* Sets both batch sizes and the data-parallel degree from what one rank takes at a time, how often, and what all take
 * together. */
typedef struct batch_keys {
    const char *micro, *times, *global; /* NULL: the system has no such key */
} batch_keys;
/* @param micro where the file states none; NaN: ours @param split ranks that work on the same sequences: tp x pp x cp */
err convert_batch(convert_source *s, const batch_keys *k, double micro, double split) MUST_USE;
/* Converts the floor of the learning rate, which some systems state as a rate. */
err convert_min_lr(convert_source *s, const char *key, double lr) MUST_USE;
/* One head's width and the feed-forward's, where they follow from the model's. */
err convert_widths(convert_source *s, double dim, double heads, double head_dim, double kv_heads,
                   double ffn) MUST_USE;
/* Converts a vocabulary that is padded to a multiple. */
err convert_vocab(convert_source *s, double vocab, double multiple) MUST_USE;
/* A schedule that is longer or shorter than the run. @param decay NaN: as long as the run */
err convert_length(convert_source *s, const char *key, double steps, double decay, double per_step,
                   const char *unit) MUST_USE;
/* @return the part of the run that its schedule takes, at most 1: percentages of a schedule are here of the run */
double convert_schedule_part(double steps, double decay);
/* Data: one path; several with weights are refused. */
err convert_data(convert_source *s, const char *key, const char *option) MUST_USE;
/* "969, 30, 1": the shares of training, validation and test data. */
err convert_split(convert_source *s, const char *otherwise) MUST_USE;
/* Weights that come from elsewhere: `load` is not `save`. */
void convert_load(convert_source *s);

err finish_megatron(convert_source *s) MUST_USE;  /* convert_megatron.c */
err finish_deepspeed(convert_source *s) MUST_USE; /* convert_deepspeed.c */
err finish_neox(convert_source *s) MUST_USE;

/* ---- scripts (convert_shell.c) ---------------------------------------------------------------------- */
/* Reads the command of a shell script that runs Megatron-LM, or plain arguments, into pairs: variables, arrays and
 * arithmetic are expanded. A variable that only the script's run gives a value stays as "$NAME". Sets `ranks` by the
 * launcher's arguments. */
err convert_read_script(convert_source *s, const char *text) MUST_USE;

#endif
