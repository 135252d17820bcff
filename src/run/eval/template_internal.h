#ifndef INGOT_TEMPLATE_INTERNAL_H
#define INGOT_TEMPLATE_INTERNAL_H

#include "eval/template.h"

enum { TEMPLATE_DEPTH = 64, TEMPLATE_OUTPUT = 16 << 20, TEMPLATE_STEPS = 4 << 20 };

/* Names and their values; a name is looked up outwards. */
typedef struct template_scope {
    json_t *vars; /* owned object */
    struct template_scope *outer;
} template_scope;

typedef struct template_run {
    const struct template_node *node; /* [n] */
    int n;
    template_scope *scope;
    str *out;
    int depth;     /* of nested expressions, loops and macros */
    int64_t steps; /* values computed so far */
    err e;         /* the first error; nothing is done after it */
    bool
        skipping; /* inside a branch of an expression that is not taken: it is parsed and nothing is computed */
} template_run;

void template_fail(template_run *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Counts one step. @return false after an error, or when there are too many. */
bool template_step(template_run *r);

/* ---- expressions: template_expr.c. A value is a new reference; NULL is undefined. ---------------- */
typedef struct template_text {
    const char *at, *end;
} template_text;
json_t *template_value(template_run *r, template_text *t); /* parses and computes one expression */
/* The same without "x if y else z": of a loop, where an "if" has another meaning. */
json_t *template_plain_value(template_run *r, template_text *t);
bool template_is_true(const json_t *v);
void template_print(template_run *r, const json_t *v, str *out); /* as str() */
/* @return whether the next word is this one, which is then consumed. */
bool template_take(template_text *t, const char *word);
/* Reads a name into out [64]. @return false: there is none. */
bool template_take_name(template_text *t, char *out);
bool template_at_end(template_text *t);

/* ---- what can be called: template_calls.c ------------------------------------------------------------ */
typedef struct template_args {
    json_t *list, *named; /* an array and an object, owned; NULL: none */
} template_args;
json_t *template_function(template_run *r, const char *name, const template_args *a);
json_t *template_method(template_run *r, json_t *v, const char *name, const template_args *a);
/* @param v owned. @return owned */
json_t *template_filter(template_run *r, json_t *v, const char *name, const template_args *a);
bool template_test(template_run *r, const json_t *v, const char *name, const template_args *a);
json_t *template_string(const str *s);
bool template_same(const json_t *a, const json_t *b); /* 1 and 1.0 are the same */
/* @return whether it is a number; a truth value counts as 0 or 1. */
bool template_number(const json_t *v, double *out);
bool template_contains(template_run *r, const json_t *item, const json_t *in);

/* ---- template.c: lists and macros -------------------------------------------------------------------------- */
/* @return the members of a list, the keys of a mapping, the characters of a text: a new reference */
json_t *template_list(template_run *r, json_t *v);
/* Calls a macro of this name. @return false: there is none. @param args an array, @param named an object */
bool template_call_macro(template_run *r, const char *name, json_t *args, json_t *named,
                         json_t **out);

#endif
