/* Errors: a message, a remedy, and the places it passed through. */
#include "util/util.h"

#include <stdlib.h>
#include <string.h>

struct err_object {
    str message, remedy;
    str trail; /* "file:line\n" for each place, innermost first */
    bool usage, echo;
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

err err_usage(err e) {
    e->usage = true;
    return e;
}
bool err_is_usage(err e) { return e->usage; }
err err_echo(err e) {
    e->echo = true;
    return e;
}
bool err_is_echo(err e) { return e->echo; }

const char *err_message(err e) { return e->message.text; }
const char *err_remedy(err e) { return e->remedy.text ? e->remedy.text : ""; }

/* Indents the lines of `text` after the first, so that a block reads as one. */
static void print_block(FILE *to, const char *label, const char *text) {
    fprintf(to, "%s", label);
    for (const char *p = text; *p; p++) {
        fputc(*p, to);
        if (*p == '\n' && p[1]) fprintf(to, "       ");
    }
    if (!*text || text[strlen(text) - 1] != '\n') fputc('\n', to);
}

void err_print(FILE *to, err e, bool trail) {
    bool color = term_has_color(to);
    print_block(to, color ? "\033[1;31merror:\033[0m " : "error: ", e->message.text);
    if (e->remedy.len) print_block(to, color ? "\033[1m  try:\033[0m " : "  try: ", e->remedy.text);
    if (trail) print_block(to, "   at: ", e->trail.text);
}

void err_free(err e) {
    if (!e) return;
    str_free(&e->message);
    str_free(&e->remedy);
    str_free(&e->trail);
    free(e);
}

void bug_at(const char *file, int line, const char *what) {
    fprintf(stderr, "ingot: BUG at %s:%d: %s\nThis is a fault of ingot's, not of your input.\n",
            file, line, what);
    abort();
}
