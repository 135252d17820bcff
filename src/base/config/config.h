/* config: the options of a run. One table (options.def) yields this struct, its defaults, the
 * YAML reader, command-line overrides, validation, --help, the reference page and --print-config.
 * Values of options of a few choices are rows of choices.h. Depends on util and libyaml. The environment is not read.
 *
 * Given `int argc` and `char **argv`:
 *
 *     config c;
 *     config_init(&c);                                         // defaults
 *     TRY(config_from_args(&c, argc, argv, NULL, 0));          // run.yaml --training.steps=100
 *     printf("%lld\n", (long long)c.training.seq_len);
 *     config_free(&c);
 *
 * Checks here concern one option at a time. What ties options together (heads divide dim) is
 * checked where it is used; config_where() gives the line to name in such an error.
 */
#ifndef INGOT_CONFIG_H
#define INGOT_CONFIG_H

#include <math.h>

#include "config/choices.h"
#include "util/util.h"

/* ---- values ------------------------------------------------------------------------------ */
/* An option left to its preset: CFG_AUTO in ints, choices and tristates, NaN in reals. */
enum { CFG_AUTO = -1 };
#define CFG_AUTO_REAL ((double)NAN)

/* A length, the time between two events, or a batch size. `training.steps: 2e9 tokens` is
 * { 2e9, CFG_TOKENS }. Zero is "off". */
typedef enum {
    CFG_STEPS = 1,
    CFG_TOKENS = 2,
    CFG_EPOCHS = 4,
    CFG_PERCENT = 8, /* of the length of the run */
    CFG_SEQUENCES = 16,
    CFG_SECONDS = 32, /* of wall-clock time: of intervals, from the start of the process */
} cfg_unit;
enum {
    CFG_LENGTH = CFG_STEPS | CFG_TOKENS | CFG_EPOCHS,
    CFG_RUN = CFG_LENGTH | CFG_SECONDS,
    CFG_ANY = CFG_LENGTH | CFG_PERCENT,
    CFG_INTERVAL = CFG_ANY | CFG_SECONDS,
    CFG_BATCH = CFG_SEQUENCES | CFG_TOKENS
};
typedef struct cfg_amount {
    double value; /* NaN: auto */
    cfg_unit unit;
} cfg_amount;

/* Totals that a length in percent or epochs refers to; a value of 0: not known. */
typedef struct cfg_scale {
    cfg_amount run; /* what 100% is: steps or tokens */
    double tokens_per_epoch;
} cfg_scale;
/* A length in whole steps or whole tokens, rounded up: steps stay steps, tokens and epochs become
 * tokens, and a percentage takes the unit of the run. Seconds stay as they are. @return an error when what it is measured by is
 * not known, or when the result exceeds 1e18. `name` is the option, for the message. */
err cfg_amount_resolve(cfg_amount a, const cfg_scale *scale, const char *name,
                       cfg_amount *out) MUST_USE;

/* ---- the options ------------------------------------------------------------------------- */
typedef struct config {
#define SECTION(section, main, help)                             struct {
#define INT(section, key, resume, def, min, max, help)           int64_t key;
#define REAL(section, key, resume, def, min, max, help)          double key;
#define BOOL(section, key, resume, def, help)                    bool key;
#define TRISTATE(section, key, resume, help)                     int key;
#define TEXT(section, key, resume, def, holder, help)            const char *key;
#define SECRET(section, key, resume, holder, help)               const char *key;
#define LIST(section, key, resume, normalize, holder, help)      const char *key;
#define CHOICE(section, key, resume, type, def, help)            int key;
#define AMOUNT(section, key, resume, value_, unit_, units, help) cfg_amount key;
#define END_SECTION(section)                                                                       \
    }                                                                                              \
    section;
#include "config/options.def"
    arena *memory;       /* owned: the texts above and the origins below */
    const char **origin; /* per option, where it was set; NULL: default */
    bool *idle_in_file;  /* per option, whether it had no effect in the file alone; NULL: no file */
} config;

/* Fills in the defaults. @param c freed by config_free. */
void config_init(config *c);
void config_free(config *c); /* takes NULL */
/* @param to freed by config_free; shares nothing with `from`. */
void config_copy(config *to, const config *from);

/* Reads a YAML file over what `c` holds. After an error `c` is good only for config_free. */
err config_load(config *c, const char *path) MUST_USE;
/* Likewise, from memory; `name` stands for the file in messages. */
err config_parse(config *c, const char *text, size_t len, const char *name) MUST_USE;
/* An error when YAML is nested deeper than any file of ours: to be asked before libyaml loads a
 * document. Text that is not YAML passes. */
err config_check_yaml_depth(const char *text, size_t len, const char *name) MUST_USE;
/* Sets one option from text, as --name=value does. @param name "training.steps" */
err config_set(config *c, const char *name, const char *value) MUST_USE;

/* Sets one option on the program's behalf, if it is not set. @param by where it comes from, as config_where gives it;
 * borrowed */
err config_choose(config *c, const char *name, const char *value, const char *by) MUST_USE;

/* A command's own flag beside the options. */
typedef struct config_flag {
    const char *name;   /* "--print-config" */
    bool *set;          /* becomes true; may be NULL */
    const char **value; /* borrowed from argv; NULL: the flag takes no value */
} config_flag;
/* Reads `[FILE.yaml] [--section.key=value | --section.key value | flag]...`, options over the
 * file wherever they stand. argv[0] is the command's name and is skipped. Options that are set and have no
 * effect are refused, or noted: effects.c. */
err config_from_args(config *c, int argc, char **argv, const config_flag *flags,
                     int n_flags) MUST_USE;

/* @return whether an option has a value other than its default, given by a file or an argument. */
bool config_is_set(const config *c, const char *name);
/* Marks the options set so far as a file's, so that later ones override them. Reading a file ends with this call. */
void config_begin_overrides(config *c);
/* An option that was set and turns out to have no effect, for a reason that only its user knows (the
 * length of the run): an error "has no effect: it needs ..."; or a note and OK, where it comes from a
 * file and the command line sets one of the options or sections in `causes`, or where it comes from a
 * run's config.yaml. OK too where it was not set. */
err config_refuse_idle(const config *c, const char *name, const char *causes, bool log,
                       const char *needs) MUST_USE;
/* The same for every option whose NEEDS row (options.def) does not hold; config_from_args does it.
 * @param log notes are logged. */
err config_check_effects(const config *c, bool log) MUST_USE;
/* @return "run.yaml:12", "command line" or "default". Borrowed from `c`. */
const char *config_where(const config *c, const char *name);
/* @return the text of a choice, such as config_choice("precision.dtype", CFG_BF16) = "bf16". */
const char *config_choice(const char *name, int value);
/* @return how many choices an option has, counted from 0; 0: it is not one of choices. */
int config_choices(const char *name);

/* ---- optimizer.groups ---------------------------------------------------------------------
 * Parameters whose settings differ from the section's. A key of a group is the option of that name, and what the
 * optimizer must read (choices.h) for it to have an effect. */
#define CFG_GROUP_KEYS(KEY)                                                                        \
    KEY(name, 0)                                                                                   \
    KEY(lr, 0)                                                                                     \
    KEY(beta1, OPTIM_READS_BETAS)                                                                  \
    KEY(beta2, OPTIM_READS_BETAS)                                                                  \
    KEY(eps, OPTIM_READS_EPS)                                                                      \
    KEY(weight_decay, 0)                                                                           \
    KEY(weight_decay_schedule, 0)                                                                  \
    KEY(weight_decay_base_tokens, 0)                                                               \
    KEY(momentum, OPTIM_READS_MOMENTUM)                                                            \
    KEY(lr_base_width, 0)
enum { CFG_MAX_GROUPS = 32 };
/* A value that a group leaves to the section is CFG_AUTO in ints and choices, and NaN in reals. */
typedef struct cfg_group {
    char match[64];
    int name; /* optim_kind */
    double lr, beta1, beta2, eps, weight_decay, momentum;
    int weight_decay_schedule; /* wd_schedule */
    int64_t weight_decay_base_tokens, lr_base_width;
} cfg_group;
/* Reads the option (c->optimizer.groups). @return the number of groups. */
int config_groups(const char *text, cfg_group out[CFG_MAX_GROUPS]);
/* @return whether the section's optimizer or that of a group has one of these traits (choices.h). */
bool config_optim_reads(const config *c, int traits);
/* @return whether two texts of the option have the same groups, each with the same optimizer. */
bool config_groups_same_rules(const char *a, const char *b);

/* ---- lists of counts and of numbers (option_counts.c) ---------------------------------------- */
enum { CFG_MAX_COUNTS = 512, CFG_MOST_COUNT = 65535 };
typedef struct cfg_counts {
    int n;
    int of[CFG_MAX_COUNTS];
} cfg_counts;
/* Reads an option such as c->parallelism.pipeline_parallel_split. */
cfg_counts config_counts(const char *text);
enum { CFG_MAX_NUMBERS = 128 };
/* Reads an option such as c->model.rope_short_factor. @return how many; 0: it is not set */
int config_numbers(const char *text, double out[CFG_MAX_NUMBERS]);

/* ---- phases of the batch (option_phases.c) --------------------------------------------------- */
enum { CFG_MAX_BATCH_PHASES = 16 };
typedef struct cfg_batch_phase {
    cfg_amount batch; /* sequences or tokens */
    cfg_amount until; /* a length from the beginning of the run */
} cfg_batch_phase;
/* Reads the option (c->training.batch_schedule). @return the number of phases. */
int config_batch_phases(const char *text, cfg_batch_phase out[CFG_MAX_BATCH_PHASES]);

/* ---- secrets -------------------------------------------------------------------------------
 * A SECRET option holds env:NAME, file:PATH or the secret itself. What refers to it is printed and kept in
 * config.yaml; a secret itself never is: CONFIG_WITHHELD stands for it there. */
#define CONFIG_WITHHELD "withheld"
/* Reads what an option refers to: a variable of the environment, or the first line of a file. @param out owned (free);
 * NULL: there is none, or it was withheld, which is logged with what to do. @param name the option, for messages. */
err config_secret(const char *name, const char *given, char **out) MUST_USE;
/* @return whether a line of a config.yaml states a secret, whose text earlier versions kept. */
bool config_line_is_secret(const char *line);

/* ---- the options as a table, for comparing two configs ------------------------------------- */
/* How a continued run treats a changed value: see options.def. */
typedef enum { CFG_RESUME_FREE, CFG_RESUME_NOTED, CFG_RESUME_FIXED, CFG_RESUME_CONTENT } cfg_resume;
int config_option_count(void);
const char *config_option_name(int i); /* "training.steps"; static */
cfg_resume config_option_resume(int i);
/* @return whether what option i needs (a NEEDS row of options.def) holds. */
bool config_has_effect(const config *c, int i);
/* Sets every option without an effect to its default. */
void config_drop_idle(config *c);
/* Appends option i's value as text that config_set reads back to the same value. */
void config_option_text(const config *c, int i, str *out);
/* An option as --help, man pages and completions show it; all texts are static. */
typedef struct config_option_info {
    const char *section, *section_help, *name; /* "training.steps" */
    const char *short_name;    /* "precision" for "precision.dtype"; NULL: there is none */
    const char *holder, *help; /* what stands for the value: "N" */
    bool is_switch;            /* true or false, and may stand alone */
    bool is_list;
} config_option_info;
config_option_info config_option_describe(int i);
/* Appends option i's help, and those of its choices. */
void config_option_help(int i, str *out);
/* @return whether the comma-separated `list` names option i, by its name or its section's. */
bool config_list_names(const char *list, int i);
/* An error when an item of `list` is neither an option nor a section. @param name the option that
 * holds the list, for the message. */
err config_list_check(const char *list, const char *name) MUST_USE;

/* ---- output for users: each appends to `out` ------------------------------------------------ */
void config_print(const config *c, str *out); /* YAML, reloadable to the same values */
/* The same without options that are still auto or have no effect: they do not matter to what the config
 * describes. */
void config_print_used(const config *c, str *out);
void config_help(str *out); /* the options, for --help */
void config_docs(str *out); /* docs/config.md */

#endif
