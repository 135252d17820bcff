/* Errors: a message, a remedy, and the places it passed through. */
#include "util/util.h"

#include <stdlib.h>
#include <string.h>

struct err_object {
    str message, remedy;
    str trail; /* "file:line\n" for each place, innermost first */
    bool echo, lasting;
    exit_code exit; /* EXIT_DONE: not set */
};

err err_make(const char *file, int line, const char *fmt, ...) {
    err e = mem_alloc(sizeof *e);
    char text[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    str_add(&e->message, "%s", text);
    return err_trail(e, file, line);
}

err err_hint(err e, const char *fmt, ...) {
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    str_add(&e->remedy, "%s%s", e->remedy.len ? "\n" : "", text);
    return e;
}

err err_trail(err e, const char *file, int line) {
    str_add(&e->trail, "%s:%d\n", file, line);
    return e;
}

err err_exit(err e, exit_code code) {
    e->exit = code;
    return e;
}
exit_code err_exit_code(err e) { return e->exit ? e->exit : EXIT_ERROR; }
err err_echo(err e) {
    e->echo = true;
    return e;
}
bool err_is_echo(err e) { return e->echo; }
err err_lasting(err e) {
    e->lasting = true;
    return e;
}
bool err_is_lasting(err e) { return e->lasting; }

const char *err_message(err e) { return e->message.text; }
const char *err_remedy(err e) { return e->remedy.text ? e->remedy.text : ""; }

/* Adds `text` after its label, its further lines indented, so that a block reads as one. */
static void add_labeled(str *to, const char *label, const char *text) {
    str_add(to, "%s", label);
    for (const char *line = text; *line;) {
        size_t len = strcspn(line, "\n");
        str_add(to, "%s%.*s\n", line == text ? "" : "       ", (int)len, line);
        line += len + (line[len] == '\n');
    }
    if (!*text) str_add(to, "\n");
}

/* One write of all, so that lines stay whole among those of other ranks. */
void err_print(FILE *to, err e, bool trail) {
    bool color = term_has_color(to);
    str all = { 0 };
    add_labeled(&all, color ? "\033[1;31merror:\033[0m " : "error: ", e->message.text);
    if (e->remedy.len)
        add_labeled(&all, color ? "\033[1m  try:\033[0m " : "  try: ", e->remedy.text);
    if (trail) add_labeled(&all, "   at: ", e->trail.text);
    fwrite(all.text, 1, all.len, to);
    str_free(&all);
}

void err_free(err e) {
    if (!e) return;
    str_free(&e->message);
    str_free(&e->remedy);
    str_free(&e->trail);
    free(e);
}

/* ---- exit codes -------------------------------------------------------------------------- */
static const exit_row exit_rows[] = {
#define EXIT_ROW(name, code, restart, meaning) { #name, code, restart, meaning },
#include "util/exits.def"
};

const exit_row *exit_find(int code) {
    for (size_t i = 0; i < COUNT_OF(exit_rows); i++)
        if (exit_rows[i].code == (exit_code)code) return &exit_rows[i];
    return NULL;
}

void exit_docs(str *out) {
    static const char *const restarts[] = {
        [RESTART_NEVER] = "no", [RESTART_NOW] = "at once", [RESTART_BACKOFF] = "after a pause"
    };
    str_add(out, "| exit code | meaning | restart |\n|---|---|---|\n");
    for (size_t i = 0; i < COUNT_OF(exit_rows); i++)
        str_add(out, "| %d | %s | %s |\n", (int)exit_rows[i].code, exit_rows[i].meaning,
                restarts[exit_rows[i].restart]);
}

void bug_at(const char *file, int line, const char *what) {
    fprintf(stderr, "ingot: BUG at %s:%d: %s\nThis is a fault of ingot's, not of your input.\n",
            file, line, what);
    abort();
}
