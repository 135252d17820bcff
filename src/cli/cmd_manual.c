/* ingot manual: man pages and completions, generated from the tables of commands and options, so that neither
 * can differ from what the program accepts. */
#include <string.h>

#include "cli/manual.h"
#include "config/config.h"
#include "io/io.h"

typedef struct manual_args {
    const char *completions, *out;
} manual_args;
static const cli_arg args[] = {
    { "completions", ARG_TEXT, offsetof(manual_args, completions), "SHELL",
      "print the completions of bash, zsh or fish" },
    { "out", ARG_TEXT, offsetof(manual_args, out), "FOLDER",
      "write all pages and completions, laid out as below /usr/share" },
};
const cli_spec cmd_manual_spec = { "manual", "[COMMAND [SUBCOMMAND]] [options]", CLI_ARGS(args), 0,
                                   true };

int manual_entries(manual_entry *out) {
    int n = 0;
    for (int i = 0; i < cli_command_count; i++) {
        const cli_command *c = &cli_commands[i];
        BUG_IF(n + 1 + (c->family ? c->family->n : 0) > MANUAL_MOST);
        out[n++] = (manual_entry){ c->name, c->summary, c->usage,   c->help,
                                   c->spec, c->family,  c->options, c->options || c->overrides };
        for (int j = 0; c->family && j < c->family->n; j++) {
            const cli_subcommand *s = c->family->members[j];
            out[n++] = (manual_entry){ .words = s->spec.command,
                                       .summary = s->summary,
                                       .usage = s->spec.usage,
                                       .help = s->help,
                                       .spec = &s->spec };
        }
    }
    return n;
}

/* ---- roff ---------------------------------------------------------------------------------------- */
/* Appends n bytes of text that roff prints as they are. At the beginning of a line a dot or an apostrophe
 * would start a request. */
static void roff_bytes(str *out, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bool starts = out->len == 0 || out->text[out->len - 1] == '\n';
        if (starts && (text[i] == '.' || text[i] == '\'')) str_add(out, "\\&");
        if (text[i] == '\\')
            str_add(out, "\\e");
        else if (text[i] == '-')
            str_add(out, "\\-");
        else
            str_add_bytes(out, text + i, 1);
    }
}

static void roff_text(str *out, const char *text) { roff_bytes(out, text, strlen(text)); }

/* Appends the paragraphs of a help text: indented lines keep their breaks, and a line "Examples" is a heading. */
static void add_paragraphs(const char *help, str *out) {
    bool verbatim = false, ended = true; /* ended: what follows is a paragraph of its own */
    for (const char *line = help; line && *line;) {
        size_t n = strcspn(line, "\n");
        bool indented = n > 0 && line[0] == ' ';
        bool heading = (n == 8 && strncmp(line, "Examples", n) == 0) ||
                       (n == 7 && strncmp(line, "Example", n) == 0);
        if (n > 0 && verbatim && !indented) str_add(out, ".fi\n");
        if (heading)
            str_add(out, ".SH EXAMPLES\n");
        else if (n > 0 && !str_ends(out->text, ".SH EXAMPLES\n") && (ended || verbatim != indented))
            str_add(out, ".PP\n");
        if (n > 0 && indented && !verbatim) str_add(out, ".nf\n");
        if (n > 0 && !heading) {
            roff_bytes(out, line, n);
            str_add(out, "\n");
        }
        if (n > 0) verbatim = indented;
        ended = n == 0;
        line += n + (line[n] == '\n');
    }
    if (verbatim) str_add(out, ".fi\n");
}

static void add_option(const char *name, char letter, const char *holder, str *out) {
    str_add(out, ".TP\n");
    if (letter) str_add(out, "\\fB\\-%c\\fR, ", letter);
    str_add(out, "\\fB\\-\\-");
    roff_text(out, name);
    str_add(out, "\\fR");
    if (holder && *holder) {
        str_add(out, " \\fI");
        roff_text(out, holder);
        str_add(out, "\\fR");
    }
    str_add(out, "\n");
}

static void add_own_options(const cli_spec *s, str *out) {
    str_add(out, ".SH OPTIONS\n");
    for (int i = 0; i < s->n_args; i++) {
        const cli_arg *o = &s->args[i];
        add_option(o->name, o->letter, o->holder, out);
        roff_text(out, o->help);
        str_add(out, "\n");
    }
}

/* Appends the options of config/, by section, each with its default and its choices. */
static void add_config_options(str *out) {
    const char *section = "";
    config defaults;
    config_init(&defaults);
    str_add(
        out,
        ".SH CONFIGURATION\n"
        "In a YAML file as keys of a section, or on the command line, which overrides the file.\n");
    for (int i = 0; i < config_option_count(); i++) {
        config_option_info o = config_option_describe(i);
        if (strcmp(section, o.section) != 0) {
            str_add(out, ".SS %s: %s\n", o.section, o.section_help);
            section = o.section;
        }
        add_option(o.name, 0, o.holder, out);
        str value = { 0 }, help = { 0 };
        config_option_help(i, &help);
        roff_text(out, help.text);
        for (int k = 0; k < config_choices(o.name); k++) {
            str_add(out, k ? ", " : ". One of ");
            roff_text(out, config_choice(o.name, k));
        }
        config_option_text(&defaults, i, &value);
        str_add(out, ". Default: ");
        roff_text(out, value.len ? value.text : "none");
        str_add(out, "\n");
        str_free(&value);
        str_free(&help);
    }
    config_free(&defaults);
}

/* "ingot-data-filter" of "data filter". */
static void add_page_name(const char *words, str *out) {
    str_add(out, "ingot%s", *words ? "-" : "");
    for (; *words; words++) str_add(out, "%c", *words == ' ' ? '-' : *words);
}

static void roff_reference(const char *words, str *out) {
    str name = { 0 };
    add_page_name(words, &name);
    str_add(out, ".BR ");
    roff_text(out, name.text);
    str_add(out, " (1)\n");
    str_free(&name);
}

static void roff_listed(const char *words, const char *summary, str *out) {
    str_add(out, ".TP\n");
    roff_reference(words, out);
    roff_text(out, summary);
    str_add(out, "\n");
}

static void add_exit_codes(str *out) {
    str_add(out, ".SH EXIT STATUS\n");
#define EXIT_ROW(NAME, code, restart, meaning)                                                     \
    str_add(out, ".TP\n%d\n", code);                                                               \
    roff_text(out, meaning);                                                                       \
    str_add(out, "\n");
#include "util/exits.def"
}

/* Appends the man page of e, in roff; NULL: that of the program. */
static void manual_page(const manual_entry *e, str *out) {
    const char *words = e ? e->words : "";
    str name = { 0 };
    add_page_name(words, &name);
    str_add(out, ".\\\" Generated by \"ingot manual\".\n.TH ");
    for (const char *p = name.text; *p; p++)
        str_add(out, "%c", *p >= 'a' && *p <= 'z' ? *p - 'a' + 'A' : *p);
    str_add(out, " 1 \"\" \"ingot %s\" \"ingot manual\"\n.nh\n.SH NAME\n", INGOT_VERSION);
    roff_text(out, name.text);
    str_add(out, " \\- %s\n.SH SYNOPSIS\n.B ingot ",
            e ? e->summary : "train language models, from raw text to a model that generates text");
    str_free(&name);
    if (!e) {
        manual_entry all[MANUAL_MOST];
        int n = manual_entries(all);
        str_add(out, "\n.I COMMAND\n[arguments]\n.SH COMMANDS\n");
        for (int i = 0; i < n; i++) roff_listed(all[i].words, all[i].summary, out);
        str_add(out, ".SH OPTIONS\n");
        add_option("help", 0, NULL, out);
        str_add(out, "list the commands; after a command, describe it\n");
        add_option("version", 0, NULL, out);
        str_add(out, "print the version, the revision and the features of this build\n");
        add_option("log-level", 0, "debug|info|warning|error", out);
        str_add(out, "print messages of this severity and above; info is the default\n");
        add_option("debug", 0, NULL, out);
        str_add(out, "add source locations to error messages\n");
        add_exit_codes(out);
        return;
    }
    roff_text(out, words);
    str_add(out, "\n");
    roff_text(out, e->usage);
    str_add(out, "\n.SH DESCRIPTION\n%c%s.\n", e->summary[0] - 'a' + 'A', e->summary + 1);
    add_paragraphs(e->help, out);
    if (e->spec && e->spec->n_args) add_own_options(e->spec, out);
    if (e->family) str_add(out, ".SH SUBCOMMANDS\n");
    for (int i = 0; e->family && i < e->family->n; i++)
        roff_listed(e->family->members[i]->spec.command, e->family->members[i]->summary, out);
    if (e->lists_options) add_config_options(out);
    str_add(out, ".SH SEE ALSO\nExit codes are listed in\n");
    roff_reference("", out);
    if (e->takes_options && !e->lists_options) str_add(out, "and the options of a config in\n");
    if (e->takes_options && !e->lists_options) roff_reference("train", out);
}

/* ---- the command --------------------------------------------------------------------------------- */
static err write_file(const char *folder, const char *below, const char *name, const str *text) {
    str path = { 0 };
    str_add(&path, "%s/%s", folder, below);
    err e = io_make_dirs(path.text);
    str_add(&path, "/%s", name);
    if (!e) e = io_write(path.text, text->text, text->len);
    str_free(&path);
    return e;
}

static err write_man_page(const char *folder, const manual_entry *entry) {
    str page = { 0 }, name = { 0 };
    manual_page(entry, &page);
    add_page_name(entry ? entry->words : "", &name);
    str_add(&name, ".1");
    err e = write_file(folder, "man/man1", name.text, &page);
    str_free(&name);
    str_free(&page);
    return e;
}

/* Where each shell looks for the completions of a program, below /usr/share. Debian's zsh reads only the first
 * of its two there; others, and a zsh that looks below /usr/local, the second. */
static const struct {
    const char *shell, *folder, *file;
} completion_files[] = {
    { "bash", "bash-completion/completions", "ingot" },
    { "zsh", "zsh/vendor-completions", "_ingot" },
    { "zsh", "zsh/site-functions", "_ingot" },
    { "fish", "fish/vendor_completions.d", "ingot.fish" },
};

static err write_all(const char *folder) {
    manual_entry all[MANUAL_MOST];
    int n = manual_entries(all);
    TRY(write_man_page(folder, NULL));
    for (int i = 0; i < n; i++) TRY(write_man_page(folder, &all[i]));
    for (size_t i = 0; i < COUNT_OF(completion_files); i++) {
        str text = { 0 };
        err e = manual_completions(completion_files[i].shell, &text);
        if (!e) e = write_file(folder, completion_files[i].folder, completion_files[i].file, &text);
        str_free(&text);
        if (e) return e;
    }
    return OK;
}

/* Prints the page of the command that argv names, of one or two words; that of the program for none. */
static err print_page(int argc, char **argv) {
    manual_entry all[MANUAL_MOST];
    const manual_entry *found = NULL;
    int n = manual_entries(all);
    str words = { 0 }, page = { 0 };
    err e = OK;
    for (int i = 0; i < argc; i++) str_add(&words, "%s%s", i ? " " : "", argv[i]);
    const char *near = NULL;
    for (int i = 0; argc && i < n; i++) {
        if (strcmp(all[i].words, words.text) == 0) found = &all[i];
        near = str_nearer(words.text, all[i].words, near);
    }
    if (argc && !found) {
        e = ERR_USAGE("no command is called \"%s\"", words.text);
        e = near ? err_hint(e, "\"ingot manual %s\"; \"ingot --help\" lists all commands", near)
                 : err_hint(e, "\"ingot --help\" lists all commands");
    } else {
        manual_page(found, &page);
        fputs(page.text, stdout);
    }
    str_free(&words);
    str_free(&page);
    return e;
}

err cmd_manual(int argc, char **argv) {
    manual_args a = { 0 };
    int n = 0;
    TRY(cli_parse_many(&cmd_manual_spec, argc - 1, argv + 1, &a, &n));
    if ((a.completions != NULL) + (a.out != NULL) + (n > 0) > 1)
        return err_hint(ERR_USAGE("a page, --completions and --out exclude one another"),
                        "run the command once for each");
    if (a.out) return write_all(a.out);
    if (!a.completions) return print_page(n, argv + 1);
    str text = { 0 };
    err e = manual_completions(a.completions, &text);
    if (!e) fputs(text.text, stdout);
    str_free(&text);
    return e;
}
