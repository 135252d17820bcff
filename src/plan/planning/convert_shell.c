/* Shell scripts that run Megatron-LM, read without running them.
 *
 * Statements are read in order. Assignments of words, strings and arrays, also with +=, are kept with their values
 * expanded; a command is kept as words. Then the command that starts the training is chosen: the one that runs a
 * pretrain_*.py, or else has --num-layers. What a script gets only when it runs (its arguments, the environment, the
 * output of commands) stays as "$NAME" in values, and so does a variable that is set under a condition: whoever needs
 * such a value refuses it by name. */
#include "convert_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- variables -------------------------------------------------------------------------------------- */
typedef struct shell_variable {
    char *name, *value;
    bool conditional; /* set inside of if, for, while or case */
} shell_variable;
typedef struct shell {
    const char *at; /* the rest of the script */
    shell_variable *vars;
    int n_vars;
    int depth;    /* of if, for, while, case */
    str commands; /* one per line */
    str options;  /* values of variables that hold options, in order: a script without a command */
    str maybe;    /* options that are appended to a variable under a condition */
    size_t expanded; /* bytes of values that replaced names */
} shell;

static char *shell_copy(const char *from, size_t n) {
    char *to = mem_alloc(n + 1);
    memcpy(to, from, n);
    to[n] = '\0';
    return to;
}

static shell_variable *find_variable(const shell *sh, const char *name, size_t n) {
    for (int i = 0; i < sh->n_vars; i++)
        if (strlen(sh->vars[i].name) == n && !strncmp(sh->vars[i].name, name, n))
            return &sh->vars[i];
    return NULL;
}

static void set_variable(shell *sh, const char *name, size_t n, const char *value, bool append) {
    shell_variable *v = find_variable(sh, name, n);
    str joined = { 0 };
    if (append && v && sh->depth > 0 && strstr(value, "--")) {
        str_add(&sh->maybe, " %s", value);
        return;
    }
    str_add(&joined, "%s%s%s", v && append ? v->value : "", v && append ? " " : "", value);
    if (!v) {
        sh->vars = mem_grow(sh->vars, sizeof *sh->vars * (size_t)(sh->n_vars + 1));
        v = &sh->vars[sh->n_vars++];
        *v = (shell_variable){ .name = shell_copy(name, n) };
    }
    bool same = v->value && !strcmp(v->value, joined.text);
    v->conditional = sh->depth > 0 ? !same || v->conditional : false;
    free(v->value);
    v->value = joined.text;
}

/* ---- expansion --------------------------------------------------------------------------------------- */
static size_t name_length(const char *s) {
    size_t n = 0;
    if (isdigit((unsigned char)*s)) return 1; /* $1 */
    while (s[n] == '_' || isalnum((unsigned char)s[n])) n++;
    return n;
}

/* @return the length of the text up to the bracket that closes the one at *s, without the bracket */
static size_t bracket_length(const char *s, char open, char close) {
    int depth = 1;
    size_t n = 0;
    for (; s[n]; n++) {
        depth += s[n] == open;
        depth -= s[n] == close;
        if (depth == 0) break;
    }
    return n;
}

static void expand(shell *sh, const char *text, size_t len, int nested, str *out);

/* A whole number, a sum or a product: "$((8 * NNODES / 4))". */
typedef struct arithmetic {
    const shell *sh;
    const char *at;
    bool known; /* every name in it has a number */
    int nested;
} arithmetic;
static double arithmetic_sum(arithmetic *a);

static double arithmetic_factor(arithmetic *a) {
    a->at += strspn(a->at, " \t");
    if (++a->nested > 64) a->known = false;
    if (*a->at == '(' && a->known) {
        a->at++;
        double v = arithmetic_sum(a);
        a->at += strspn(a->at, " \t");
        if (*a->at == ')') a->at++;
        return v;
    }
    if (isdigit((unsigned char)*a->at)) {
        char *end;
        double v = strtod(a->at, &end);
        a->at = end;
        return v;
    }
    a->at += *a->at == '$';
    bool braces = *a->at == '{';
    a->at += braces;
    size_t n = name_length(a->at);
    const shell_variable *v = n ? find_variable(a->sh, a->at, n) : NULL;
    double value = 0;
    if (!v || v->conditional || !number_parse_real(v->value, &value)) a->known = false;
    a->at += n + (braces && a->at[n] == '}');
    return value;
}

static double arithmetic_product(arithmetic *a) {
    double v = arithmetic_factor(a);
    for (;;) {
        a->at += strspn(a->at, " \t");
        char op = *a->at;
        if (!a->known || (op != '*' && op != '/' && op != '%')) return v;
        a->at++;
        double by = arithmetic_factor(a);
        int64_t x = (int64_t)v, y = (int64_t)by;
        if (op != '*' && y == 0) a->known = false;
        v = op == '*' ? v * by : !a->known ? 0 : (double)(op == '/' ? x / y : x % y);
    }
}

static double arithmetic_sum(arithmetic *a) {
    double v = arithmetic_product(a);
    for (;;) {
        a->at += strspn(a->at, " \t");
        char op = *a->at;
        if (!a->known || (op != '+' && op != '-')) return v;
        a->at++;
        double by = arithmetic_product(a);
        v = op == '+' ? v + by : v - by;
    }
}

static void expand_arithmetic(const shell *sh, const char *text, size_t len, str *out) {
    char *copy = shell_copy(text, len);
    arithmetic a = { .sh = sh, .at = copy, .known = true };
    double v = arithmetic_sum(&a);
    if (a.known)
        str_add(out, "%.17g", v);
    else
        str_add(out, "$COMPUTED");
    free(copy);
}

/* Appends a variable's value. Its name stays where the value is not known, and once the values add up to more than
 * any real script has: one that doubles a variable in each line would fill the memory. */
static void add_shell_value(shell *sh, const shell_variable *v, const char *name, size_t n,
                            str *out) {
    enum { MOST_EXPANDED = 1 << 20 };
    size_t more = v && !v->conditional ? strlen(v->value) : SIZE_MAX;
    if (more > MOST_EXPANDED - sh->expanded) {
        str_add(out, "$%.*s", (int)n, name);
        return;
    }
    sh->expanded += more;
    str_add(out, "%s", v->value);
}

/* "${NAME}", "${NAME[@]}", "${NAME:-default}". The script's own arguments, "${@:2}", are none. */
static void expand_braces(shell *sh, const char *inner, size_t len, int nested, str *out) {
    size_t n = MIN(name_length(inner), len);
    if (!n) return;
    const shell_variable *v = find_variable(sh, inner, n);
    const char *rest = inner + n;
    size_t rest_len = len - n;
    bool array = rest_len >= 3 && (!strncmp(rest, "[@]", 3) || !strncmp(rest, "[*]", 3));
    if (array) rest += 3, rest_len -= 3;
    if (v && !v->conditional && (!rest_len || strchr(":-=", *rest)))
        add_shell_value(sh, v, inner, n, out);
    else if (!v && rest_len && strchr(":-=", *rest)) { /* its default */
        size_t skip = 1 + (*rest == ':' && rest_len > 1);
        expand(sh, rest + skip, rest_len - skip, nested + 1, out);
    } else
        str_add(out, "$%.*s", (int)n, inner);
}

static void expand(shell *sh, const char *text, size_t len, int nested, str *out) {
    for (size_t i = 0; i < len && nested < 16;) {
        const char *s = text + i;
        if (*s == '`') { /* what a command prints */
            const char *end = memchr(s + 1, '`', len - i - 1);
            str_add(out, "$COMMAND");
            i = end ? (size_t)(end - text) + 1 : len;
        } else if (*s != '$' || i + 1 == len) {
            str_add_bytes(out, s, 1);
            i++;
        } else if (len - i > 2 && s[1] == '(' && s[2] == '(') {
            size_t n = MIN(bracket_length(s + 3, '(', ')'), len - i - 3);
            expand_arithmetic(sh, s + 3, n, out);
            i = MIN(i + 3 + n + 2, len);
        } else if (s[1] == '(') {
            str_add(out, "$COMMAND");
            i = MIN(i + 2 + bracket_length(s + 2, '(', ')') + 1, len);
        } else if (s[1] == '{') {
            size_t n = MIN(bracket_length(s + 2, '{', '}'), len - i - 2);
            expand_braces(sh, s + 2, n, nested, out);
            i = MIN(i + 2 + n + 1, len);
        } else {
            size_t n = MIN(name_length(s + 1), len - i - 1);
            if (n) add_shell_value(sh, find_variable(sh, s + 1, n), s + 1, n, out);
            i += 1 + MAX(n, (size_t)(s[1] == '@' || s[1] == '*'));
        }
    }
}

/* ---- statements --------------------------------------------------------------------------------------- */
/* Blanks comments and joins continued lines. */
static void clean_script(char *text) {
    char quote = 0;
    for (char *c = text; *c; c++) {
        if (*c == '\\' && c[1] == '\n') c[0] = c[1] = ' ';
        if (*c == '\\' && c[1] == '\r' && c[2] == '\n') c[0] = c[1] = c[2] = ' ';
        if (quote) {
            if (*c == quote) quote = 0;
        } else if (*c == '"' || *c == '\'') {
            quote = *c;
        } else if (*c == '#' && (c == text || strchr(" \t\n(", c[-1]))) {
            memset(c, ' ', strcspn(c, "\n"));
        }
    }
}

/* Appends a word with its quotes removed and, outside of '...', its variables expanded. Stops at a blank, a newline or
 * one of `ends` outside of quotes and brackets. */
static void read_shell_word(shell *sh, const char *ends, str *out) {
    const char *s = sh->at;
    while (*s && !isspace((unsigned char)*s) && !strchr(ends, *s)) {
        if (*s == '\'') {
            const char *end = strchr(s + 1, '\'');
            size_t n = end ? (size_t)(end - s - 1) : strlen(s + 1);
            str_add_bytes(out, s + 1, n);
            s += 1 + n + (end != NULL);
        } else if (*s == '"') {
            size_t n = 1;
            while (s[n] && s[n] != '"') n += 1 + (s[n] == '\\' && s[n + 1]);
            expand(sh, s + 1, n - 1, 0, out);
            s += n + (s[n] == '"');
        } else {
            size_t n = 1;
            if (*s == '$' && s[1] == '(') n = 2 + bracket_length(s + 2, '(', ')');
            if (*s == '$' && s[1] == '{') n = 2 + bracket_length(s + 2, '{', '}');
            if (*s == '`') n = 1 + strcspn(s + 1, "`");
            if (*s == '$' && n == 1) n = 1 + name_length(s + 1);
            if (n > 1 && s[n] && strchr(")}`", s[n])) n++;
            if (*s == '$' && s[1] == '(' && s[2] == '(' && s[n] == ')') n++;
            n = MIN(n, strlen(s));
            expand(sh, s, n, 0, out);
            s += n;
        }
    }
    sh->at = s;
}

/* "NAME=value", "NAME+=value", "NAME=( ... )". */
static bool read_assignment(shell *sh) {
    const char *name = sh->at;
    size_t n = name_length(name);
    bool append = n && name[n] == '+' && name[n + 1] == '=';
    if (!n || isdigit((unsigned char)*name) || (name[n] != '=' && !append)) return false;
    str value = { 0 };
    str_add(&value, "%s", "");
    sh->at = name + n + 1 + append;
    if (*sh->at == '(') {
        for (sh->at++; *sh->at && *sh->at != ')';) {
            if (isspace((unsigned char)*sh->at)) {
                sh->at++;
                continue;
            }
            if (value.len) str_add(&value, " ");
            const char *before = sh->at;
            read_shell_word(sh, ")", &value);
            if (sh->at == before) sh->at++;
        }
        sh->at += *sh->at == ')';
    } else {
        read_shell_word(sh, ";&|", &value);
    }
    set_variable(sh, name, n, value.text, append);
    if (strstr(value.text, "--")) str_add(&sh->options, " %s", value.text);
    str_free(&value);
    return true;
}

/* Steps over a word that only structures the script. @return whether there was one */
static bool read_keyword(shell *sh) {
    static const struct {
        const char *word;
        int depth;      /* what it adds */
        bool condition; /* the rest of the statement is not a command */
    } keywords[] = {
        { "if", 1, true },        { "elif", 0, true },     { "then", 0, false },
        { "else", 0, false },     { "fi", -1, false },     { "for", 1, true },
        { "while", 1, true },     { "until", 1, true },    { "do", 0, false },
        { "done", -1, true },     { "case", 1, true },     { "esac", -1, false },
        { "export", 0, false },   { "local", 0, false },   { "declare", 0, false },
        { "readonly", 0, false }, { "function", 0, true },
    };
    size_t n = strcspn(sh->at, " \t\r\n;&|()");
    for (size_t i = 0; i < COUNT_OF(keywords); i++) {
        if (strlen(keywords[i].word) != n || strncmp(keywords[i].word, sh->at, n) != 0) continue;
        sh->depth = MAX(0, sh->depth + keywords[i].depth);
        sh->at += n;
        if (keywords[i].condition) sh->at += strcspn(sh->at, ";\n");
        return true;
    }
    return false;
}

static void read_command(shell *sh) {
    bool options = str_starts(sh->at, "--"); /* a line of arguments continues those before */
    if (!options || !sh->commands.len) str_add(&sh->commands, "\n");
    while (*sh->at && !strchr("\n;&|", *sh->at)) {
        if (isspace((unsigned char)*sh->at) || strchr("(){}<>", *sh->at)) {
            sh->at++;
            continue;
        }
        size_t from = sh->commands.len;
        str_add(&sh->commands, " ");
        const char *before = sh->at;
        read_shell_word(sh, ";&|<>()", &sh->commands);
        for (size_t i = from; i < sh->commands.len; i++)
            if (sh->commands.text[i] == '\n') sh->commands.text[i] = ' ';
        if (sh->at == before) sh->at++;
    }
}

/* ---- the command -------------------------------------------------------------------------------------- */
static bool runs_script(const char *line) {
    const char *py = strstr(line, ".py");
    return py && strstr(line, "pretrain") && strstr(line, "pretrain") < py;
}

/* @return the command that trains, owned; NULL: the script has none */
static char *find_training_command(const shell *sh) {
    char *best = NULL;
    for (const char *at = sh->commands.text ? sh->commands.text : ""; *at;) {
        size_t n = strcspn(at, "\n");
        char *line = shell_copy(at, n);
        at += n + (at[n] == '\n');
        bool better = strstr(line, "--num-layers")
                          ? !best || !strstr(best, "--num-layers")
                          : !best && (runs_script(line) || strstr(line, "--"));
        if (!best ? better : better || (runs_script(line) && !runs_script(best))) {
            free(best);
            best = line;
        } else
            free(line);
    }
    const char *options = sh->options.text ? sh->options.text : "";
    bool whole = best && (strstr(best, "--num-layers") || runs_script(best));
    if (whole || !*options) return best;
    str all = { 0 }; /* a script that only states variables */
    str_add(&all, "%s %s", options, best ? best : "");
    free(best);
    return all.text;
}

/* "--name value ...", "--name=value", "--flag". Other words are an option's values. */
static void add_arguments(convert_source *s, char *words) {
    char *next = NULL;
    str key = { 0 }, value = { 0 };
    for (char *w = strtok_r(words, " \t\r\n", &next);; w = strtok_r(NULL, " \t\r\n", &next)) {
        bool name = w && str_starts(w, "--") && w[2];
        if ((!w || name) && key.len) convert_add_pair(s, key.text, value.len ? value.text : "true");
        if (!w) break;
        if (!name) {
            if (key.len) str_add(&value, "%s%s", value.len ? " " : "", w);
            continue;
        }
        str_free(&key);
        str_free(&value);
        char *equals = strchr(w, '=');
        str_add(&key, "%.*s", (int)(equals ? (size_t)(equals - w) - 2 : strlen(w) - 2), w + 2);
        if (equals) str_add(&value, "%s", equals + 1);
    }
    str_free(&key);
    str_free(&value);
}

/* @return the number after a launcher's argument, "--nnodes 4" or "--nnodes=4"; 0: none */
static double launcher_number(const char *launcher, const char *name) {
    const char *at = strstr(launcher, name);
    double v = 0;
    if (!at || !strchr(" =", at[strlen(name)])) return 0;
    at += strlen(name) + 1;
    char word[32];
    snprintf(word, sizeof word, "%.*s", (int)MIN(strcspn(at, " "), sizeof word - 1), at);
    return number_parse_real(word, &v) && v >= 1 ? v : 0;
}

/* Options under a condition: none of them may change the result. */
static void add_maybe(convert_source *s, char *words) {
    int first = s->n;
    add_arguments(s, words);
    for (int i = first; i < s->n; i++) {
        const char *key = s->at[i].key, *neutral;
        foreign_kind kind = foreign_find(s->system->table, key, &neutral);
        s->at[i].empty = true;
        if (kind == FOREIGN_IDLE || !strcmp(key, "data_path"))
            convert_leave_out(s, key, s->at[i].value);
        else if (kind != FOREIGN_UNKNOWN)
            convert_refuse(s, key, s->at[i].value, "under a condition of the script");
    }
}

/* A variable that stands where options do may hold any of them. */
static err check_variables(const convert_source *s, const char *words) {
    for (const char *w = strstr(words, " $"); w; w = strstr(w + 1, " $")) {
        const char *before = w;
        while (before > words && before[-1] != ' ') before--;
        if (!str_starts(before, "--"))
            return err_hint(ERR("%s: $%.*s of the script is set when it runs, or under a condition",
                                s->name, (int)name_length(w + 2), w + 2),
                            "write the arguments that it stands for into the file");
    }
    return OK;
}

err convert_read_script(convert_source *s, const char *text) {
    shell sh = { 0 };
    char *copy = shell_copy(text, strlen(text));
    clean_script(copy);
    sh.at = copy;
    while (*sh.at) {
        if (isspace((unsigned char)*sh.at) || strchr(";&|(){}", *sh.at))
            sh.at++;
        else if (!read_keyword(&sh) && !read_assignment(&sh))
            read_command(&sh);
    }
    char *words = find_training_command(&sh), *from = words,
         *py = words ? strstr(words, ".py") : NULL;
    while (py && py[3] && py[3] != ' ') py = strstr(py + 1, ".py");
    if (py) {
        char after = py[3];
        py[3] = '\0'; /* the launcher's part alone */
        const char *program = strrchr(words, ' '), *slash;
        program = program ? program + 1 : words;
        if ((slash = strrchr(program, '/'))) program = slash + 1;
        if (!str_starts(program, "pretrain_gpt"))
            convert_refuse(s, program, "the program it runs",
                           "only pretrain_gpt.py trains a causal language model");
        double each = MAX(launcher_number(words, "--nproc_per_node"),
                          launcher_number(words, "--nproc-per-node"));
        double nodes = strstr(words, "--nnodes") ? launcher_number(words, "--nnodes") : 1;
        if (!s->ranks) s->ranks = (int64_t)(each * nodes);
        if (!s->ranks) s->ranks = (int64_t)launcher_number(words, " -np");
        py[3] = after;
        from = py + 3;
    }
    err e = from ? check_variables(s, from) : OK;
    if (!e && from) add_arguments(s, from);
    if (!e && sh.maybe.len) add_maybe(s, sh.maybe.text);
    for (int i = 0; i < sh.n_vars; i++) {
        free(sh.vars[i].name);
        free(sh.vars[i].value);
    }
    free(sh.vars);
    str_free(&sh.commands);
    str_free(&sh.options);
    str_free(&sh.maybe);
    free(words);
    free(copy);
    return e;
}
