/* Prints what people read: the resolved config, --help, and the reference page. */
#include <string.h>

#include "config/config_internal.h"

static bool in_section(const option *o, const section *s) {
    return strcmp(o->section, s->name) == 0;
}

/* Appends what the option is for, and what its choices stand for. */
static void option_describe(const option *o, str *out) {
    const char *before = ". ";
    str_add(out, "%s", o->help);
    for (int i = 0; i < o->n_choices; i++) {
        if (!o->choices[i].help[0]) continue;
        str_add(out, "%s%s: %s", before, o->choices[i].text, o->choices[i].help);
        before = "; ";
    }
    if (option_needs(o)) str_add(out, "; needs %s", option_needs(o));
}

static void pad_to(str *out, size_t start, size_t column) {
    while (out->len - start < column) str_add(out, " ");
}

static void print_yaml(const config *c, bool with_auto, str *out) {
    for (int i = 0; i < section_count; i++) {
        const section *s = &section_table[i];
        str_add(out, "%s%s: # %s\n", i ? "\n" : "", s->name, s->help);
        for (int j = 0; j < option_count; j++) {
            const option *o = &option_table[j];
            if (!in_section(o, s)) continue;
            if (!with_auto && !config_has_effect(c, j)) continue;
            size_t start = out->len;
            str_add(out, "  %s: ", o->key);
            size_t value = out->len;
            /* what was set without an effect would be refused when it is read */
            option_print(o, config_has_effect(c, j) ? c : &config_defaults, out);
            bool open = strcmp(out->text + value, o->type == OPT_LIST ? "[]" : "auto") == 0;
            if (!with_auto && open) {
                out->text[out->len = start] = '\0';
                continue;
            }
            pad_to(out, start, 35);
            str_add(out, " # ");
            option_describe(o, out);
            str_add(out, "\n");
        }
    }
}

void config_print(const config *c, str *out) { print_yaml(c, true, out); }
void config_print_used(const config *c, str *out) { print_yaml(c, false, out); }

/* ---- --help ------------------------------------------------------------------------------- */
enum { HELP_COLUMN = 46, HELP_WIDTH = 100 };

/* Appends `text`, broken between words, every line after the first indented to HELP_COLUMN.
 * `line` is where the current line began. */
static void wrap_text(str *out, size_t line, const char *text) {
    for (const char *word = text; *word;) {
        size_t n = strcspn(word, " ");
        if (out->len - line + 1 + n > HELP_WIDTH) {
            str_add(out, "\n");
            line = out->len;
            pad_to(out, line, HELP_COLUMN - 1);
        }
        str_add(out, " %.*s", (int)n, word);
        word += n;
        while (*word == ' ') word++;
    }
    str_add(out, "\n");
}

static const char *holder_of(const option *o) {
    static const char *const names[] = {
        [OPT_INT] = "N",         [OPT_REAL] = "X",      [OPT_BOOL] = "BOOL",
        [OPT_TRISTATE] = "BOOL", [OPT_CHOICE] = "NAME", [OPT_AMOUNT] = "LENGTH",
    };
    if (o->type == OPT_AMOUNT && o->units == CFG_BATCH) return "BATCH";
    return o->holder ? o->holder : names[o->type];
}

config_option_info config_option_describe(int i) {
    const option *o = &option_table[i];
    const section *s = section_find(o->section);
    return (config_option_info){
        .section = s->name,
        .section_help = s->help,
        .name = o->name,
        .short_name = strcmp(s->main_key, o->key) == 0 ? s->name : NULL,
        .holder = holder_of(o),
        .help = o->help,
        .is_switch = o->type == OPT_BOOL || o->type == OPT_TRISTATE,
        .is_list = o->type == OPT_LIST,
    };
}

void config_option_help(int i, str *out) { option_describe(&option_table[i], out); }

static void help_row(const option *o, str *out) {
    size_t start = out->len;
    str_add(out, "  --%s %s", o->name, holder_of(o));
    if (out->len - start >= HELP_COLUMN) {
        str_add(out, "\n");
        start = out->len;
    }
    pad_to(out, start, HELP_COLUMN - 1);
    str text = { 0 };
    option_describe(o, &text);
    str_add(&text, " [");
    option_print(o, &config_defaults, &text);
    str_add(&text, "]");
    if (o->type == OPT_CHOICE) {
        str_add(&text, "; ");
        option_expects(o, &text);
    }
    wrap_text(out, start, text.text);
    str_free(&text);
}

/* The options that people set, in the order of their COMMON rows. A row that names none does not compile. */
static const struct {
    size_t offset; /* in a config, which finds the option */
} common_options[] = {
#define COMMON(section, key) { offsetof(config, section.key) },
#include "config/options.def"
};

static const option *common_option(size_t i) {
    for (int j = 0; j < option_count; j++)
        if (option_table[j].offset == common_options[i].offset) return &option_table[j];
    BUG("no option has the offset of a COMMON row");
}

void config_help(str *out) {
    str_add(out, "Options that people set, in a YAML file or on the command line; [default]\n");
    for (size_t i = 0; i < COUNT_OF(common_options); i++) help_row(common_option(i), out);
    str_add(out, "\nAll options, by section:");
    for (int i = 0; i < section_count; i++)
        str_add(out, "%s%s", i % 10 ? " " : "\n  ", section_table[i].name);
    str_add(out, "\n");
    for (int i = 0; i < section_count; i++) {
        const section *s = &section_table[i];
        str_add(out, "\n%s: %s\n", s->name, s->help);
        if (s->main_key[0])
            str_add(out, "  --%s VALUE is short for --%s.%s\n", s->name, s->name, s->main_key);
        for (int j = 0; j < option_count; j++)
            if (in_section(&option_table[j], s)) help_row(&option_table[j], out);
    }
    str_add(out,
            "\nLENGTH is a number of steps, or a number with a unit: \"2e9 tokens\", "
            "\"1.5 epochs\", \"10%%\" of the\nrun. BATCH is a number of sequences, or of tokens: "
            "\"4M tokens\". Numbers may be written 4096,\n4_096, 1e6, 2.5M or 64Ki.\n");
}

/* ---- docs/config.md -------------------------------------------------------------------------- */
/* Appends `text` for a table cell. */
static void add_markdown_cell(str *out, const char *text) {
    for (; *text; text++) str_add(out, *text == '|' ? "\\|" : "%c", *text);
}

static const char *const resume_names[] = {
    [CFG_RESUME_FREE] = "free",
    [CFG_RESUME_NOTED] = "noted",
    [CFG_RESUME_FIXED] = "fixed",
    [CFG_RESUME_CONTENT] = "fixed",
};

static void docs_row(const option *o, str *out) {
    str expects = { 0 }, help = { 0 };
    option_expects(o, &expects);
    option_describe(o, &help);
    str_add(out, "| `%s` | `", o->key);
    option_print(o, &config_defaults, out);
    str_add(out, "` | ");
    const char *length = o->units == CFG_BATCH ? o->has_auto ? "batch size or auto" : "batch size"
                         : o->units == CFG_INTERVAL ? "interval"
                         : o->units == CFG_ANY      ? "length or percentage"
                                                    : "length";
    add_markdown_cell(out, o->type == OPT_AMOUNT   ? length
                           : o->type == OPT_TEXT   ? "text"
                           : o->type == OPT_SECRET ? "secret"
                           : o->type == OPT_LIST   ? "list"
                                                   : expects.text);
    str_add(out, " | %s | ", resume_names[o->resume]);
    add_markdown_cell(out, help.text);
    str_add(out, " |\n");
    str_free(&expects);
    str_free(&help);
}

static const char docs_intro[] =
    "# Configuration\n"
    "\n"
    "Generated from the option table by `ingot config --docs`. To change it, edit\n"
    "`src/base/config/options.def`.\n"
    "\n"
    "A config is a YAML file of sections and keys. Every key can also be set on the command line,\n"
    "as `--section.key=value` or `--section.key value`, which overrides the file. Unset keys have\n"
    "the defaults below. Unknown keys, values of the wrong type and values out of range are errors.\n"
    "`ingot config FILE` checks a file and prints it with all defaults filled in; the output is\n"
    "itself a valid config.\n";

static const char docs_head[] =
    "\n## How values are written\n"
    "\n"
    "- **Numbers** can be written `4096`, `4_096`, `1e6`, `2.5M` (powers of 1000: K, M, G or B, T)\n"
    "  or `64Ki` (powers of 1024).\n"
    "- **Lengths** are in steps (`1000`), tokens (`2e9 tokens`), epochs (`1.5 epochs`) or, where the\n"
    "  table allows it, a percentage of the run (`10%`). Lengths in tokens and epochs count tokens,\n"
    "  also during a batch ramp: a run of `2e9 tokens` trains on that many, rounded up to a whole\n"
    "  microbatch (with Interleaved1F1B to one per stage), and its learning rate is a function of the\n"
    "  tokens seen. Intervals, where `0` means never, and `training.steps` may also be a time (`90s`,\n"
    "  `30m`, `1h`, `2d`).\n"
    "- **Batch sizes** are in sequences (`256`) or tokens (`4M tokens`).\n"
    "- **`auto`** leaves the choice to the preset or to the rest of the config. A run's own\n"
    "  `config.yaml` records what was chosen.\n"
    "- **Short forms**: a section with a main key accepts that key's value directly, so\n"
    "  `precision: bf16` and `--precision bf16` set `precision.dtype`.\n"
    "- **Secrets** are given as `env:NAME`, a variable of the environment, as `file:PATH`, whose\n"
    "  first line is read, or themselves. They are never printed, served or uploaded; `config.yaml`\n"
    "  keeps `env:` and `file:`, and states `withheld` for a secret given itself, which a resumed run\n"
    "  must be given again.\n"
    "- **needs** states what an option takes to have an effect. Setting it where that does not hold is\n"
    "  an error, unless the value is the default. A file whose option loses its effect by an override\n"
    "  on the command line gets a note instead. A run's own `config.yaml` states only options with\n"
    "  an effect.\n"
    "- **On resume** states what happens when a run is resumed with a different value. `free`: the\n"
    "  option does not affect the results. `noted`: the new value takes effect and the change is\n"
    "  reported. `fixed`: refused unless `checkpoint.allow_changes` names the option or its section,\n"
    "  and always for a model with tensors that the checkpoint lacks or has in other shapes.\n";

/* How presets start, and who states it. */
static const char initial_weights[] =
    "\nInitial weights of the presets' families, as their reports state them:\n\n"
    "| family | `init` | `init_std` | source |\n|---|---|---|---|\n"
    "| GPT-2, GPT-3 | `normal` | 0.02 | Radford et al. 2019: the last matrices of branches by 1/sqrt(2 layers) |\n"
    "| Pythia, GPT-NeoX | `small` | | Black et al. 2022: small_init and wang_init |\n"
    "| OLMo 2 and 3, OLMoE | `flat` | 0.02 | OLMo 2 (2025); OLMoE cuts values beyond three deviations, which these keep |\n"
    "| DeepSeek-V3, Moonlight, Kimi K2 | `flat` | 0.006, 0.02, 0.02 | DeepSeek-AI 2024; the others' are those of config.json |\n"
    "| nanochat | `uniform` | | its source: the last matrix of each branch is 0; the two tables have the deviations 0.8 and 0.001 |\n"
    "| the others | `normal` | 0.02 | none is published; config.json of the released models states 0.02 for most |\n";

static void docs_section(const section *s, str *out) {
    str_add(out, "\n## %s\n\n%c%s.", s->name, s->help[0] - 'a' + 'A', s->help + 1);
    if (s->main_key[0]) str_add(out, " Main key: `%s`.", s->main_key);
    str_add(out, "\n\n| key | default | values | on resume | |\n|---|---|---|---|---|\n");
    for (int j = 0; j < option_count; j++)
        if (in_section(&option_table[j], s)) docs_row(&option_table[j], out);
    if (!strcmp(s->name, "model")) str_add(out, "%s", initial_weights);
}

/* Appends the COMMON options, and the sections, each with a link. */
static void docs_overview(str *out) {
    str_add(out, "\n## The options people set\n\n| option | default | |\n|---|---|---|\n");
    for (size_t i = 0; i < COUNT_OF(common_options); i++) {
        const option *o = common_option(i);
        str help = { 0 };
        option_describe(o, &help);
        str_add(out, "| [`%s`](#%s) | `", o->name, o->section);
        option_print(o, &config_defaults, out);
        str_add(out, "` | ");
        add_markdown_cell(out, help.text);
        str_add(out, " |\n");
        str_free(&help);
    }
    str_add(out, "\nAll of them:");
    for (int i = 0; i < section_count; i++)
        str_add(out, "%s[%s](#%s)", i ? " · " : "\n", section_table[i].name, section_table[i].name);
    str_add(out, "\n");
}

void config_docs(str *out) {
    str_add(out, "%s", docs_intro);
    docs_overview(out);
    str_add(out, "%s", docs_head);
    for (int i = 0; i < section_count; i++) docs_section(&section_table[i], out);
    str_add(out, "\n## Other names\n\n| name | same as |\n|---|---|\n");
#define ALIAS(section, other, key)                                                                 \
    str_add(out, "| `%s` | `%s` |\n", #section "." #other, #section "." #key);
#include "config/options.def"
}
