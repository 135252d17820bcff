/* The rows of ops.def, and how their signatures and attributes read. */
#include "ops/op_table.h"

#include <assert.h>
#include <ctype.h>
#include <string.h>

static_assert(ATTR_COUNT <= 8 * sizeof(attr_set), "a set of attributes has a bit for each");

/* Placements that several rows accept. */
#define PLACE_ROWS       "I I > I; S0 R > S0" /* row by row, with a weight along the row */
#define PLACE_LOCAL      "I > I; R > R; S0 > S0; S1 > S1"
#define PLACE_LOCAL2     "I I > I; R R > R; S0 S0 > S0; S1 S1 > S1"
#define PLACE_LINEAR     "I I I > I; S0 R R > S0; R S0 S0 > S1; R R R > R"
#define PLACE_LINEAR_SUM "; S1 S1 I > P" /* the summed dim is sharded */

static const op_row rows[OP_COUNT] = {
#define OP(id, op_name, sig, ...) [OP_##id] = { .name = op_name, .signature = sig, __VA_ARGS__ },
#include "ops/ops.def"
};

const op_row *op_row_of(op_code op) {
    BUG_IF(op <= OP_NONE || op >= OP_COUNT);
    return &rows[op];
}
const char *op_name(op_code op) { return op_row_of(op)->name; }

/* ---- signatures ---------------------------------------------------------------------------------- */
int op_find(const op_operand *list, int n, const char *name) {
    for (int i = 0; i < n; i++)
        if (name[0] && !strcmp(list[i].name, name)) return i;
    return -1;
}

static operand_type type_by_letter(char letter) {
    switch (letter) {
    case 'w': return KIND_WEIGHT;
    case 'f': return KIND_F32;
    case 'i': return KIND_I32;
    case 'l': return KIND_I64;
    case 'u':
    case 's': return KIND_U8;
    default: BUG("a type letter in ops.def"); return KIND_FLOAT;
    }
}

/* Reads a name of letters, digits and underscores. @return what follows it. */
static const char *parse_name(const char *s, char name[OPERAND_NAME]) {
    int n = 0;
    for (; isalnum((unsigned char)*s) || *s == '_'; s++) {
        BUG_IF(n == OPERAND_NAME - 1);
        name[n++] = *s;
    }
    name[n] = '\0';
    return s;
}

static const char *parse_dims(const char *s, op_operand *o) {
    if (!strncmp(s, "...", 3)) {
        o->ndim = ANY_SHAPE;
        return s + 3;
    }
    while (*s != ']') {
        BUG_IF(o->ndim == TENSOR_MAX_DIM);
        int times = 0;
        for (; isdigit((unsigned char)*s); s++) times = 10 * times + (*s - '0');
        o->dim[o->ndim].times = times ? times : 1;
        if (isalpha((unsigned char)*s)) o->dim[o->ndim].symbol = *s++;
        o->ndim++;
        if (*s == ',') s++;
    }
    return s;
}

/* @param type_of the name whose type it takes, "" for none */
static const char *parse_operand(const char *s, op_operand *o, char type_of[OPERAND_NAME]) {
    *o = (op_operand){ .type_of = -1 };
    type_of[0] = '\0';
    if (*s == '+') o->accumulates = true, s++;
    if (*s == '*') o->state = true, s++;
    if (*s == '-') /* a slot that another op of the family uses */
        s++;
    else
        s = parse_name(s, o->name);
    if (*s == ':') {
        o->type = type_by_letter(s[1]);
        o->sign = s[1] == 's';
        s += 2;
    } else if (*s == '~' || *s == '=') {
        s = parse_name(s + 1, type_of);
    }
    BUG_IF(*s != '[');
    s = parse_dims(s + 1, o);
    BUG_IF(*s != ']');
    s++;
    if (*s == '?') o->optional = true, s++;
    return s;
}

op_signature op_signature_of(op_code op) {
    op_signature sig = { 0 };
    char like_in[OP_MAX_IN][OPERAND_NAME], like_out[OP_MAX_OUT][OPERAND_NAME];
    const char *s = op_row_of(op)->signature;
    for (; *s && *s != '>'; s += strspn(s, " ")) {
        if (s[0] == '-' && s[1] == '>') {
            s++;
            break;
        }
        BUG_IF(sig.ins == OP_MAX_IN);
        s = parse_operand(s, &sig.in[sig.ins], like_in[sig.ins]);
        sig.ins++;
    }
    BUG_IF(*s != '>');
    for (s++, s += strspn(s, " "); *s; s += strspn(s, " ")) {
        BUG_IF(sig.outs == OP_MAX_OUT);
        s = parse_operand(s, &sig.out[sig.outs], like_out[sig.outs]);
        sig.outs++;
    }
    for (int i = 0; i < sig.ins; i++) sig.in[i].type_of = op_find(sig.in, sig.ins, like_in[i]);
    for (int i = 0; i < sig.outs; i++) sig.out[i].type_of = op_find(sig.in, sig.ins, like_out[i]);
    return sig;
}

int op_states(op_code op) {
    op_signature sig = op_signature_of(op);
    int n = 0;
    for (int i = 0; i < sig.outs; i++) n += sig.out[i].state;
    return n;
}

/* ---- attributes ------------------------------------------------------------------------------------ */
static const char *const attr_names[ATTR_COUNT] = {
#define ATTR_NAME(id, member, kind) #member,
    OP_ATTRIBUTES(ATTR_NAME)
#undef ATTR_NAME
};

const char *attr_name(attr_id id) { return attr_names[id]; }

attr_set op_attrs_set(const op_attr *a) {
    attr_set set = 0;
#define ATTR_SET(id, member, kind)                                                                 \
    if (a->member != 0) set |= ATTR(id);
    OP_ATTRIBUTES(ATTR_SET)
#undef ATTR_SET
    return set;
}

static void print_FLOAT(str *out, const char *name, double v) { str_add(out, " %s=%g", name, v); }
static void print_INT(str *out, const char *name, int64_t v) {
    str_add(out, " %s=%lld", name, (long long)v);
}
#define print_LONG print_INT
static void print_BOOL(str *out, const char *name, bool v) { str_add(out, " %s", name); }
static void print_ACT(str *out, const char *name, act_kind v) {
    static const char *const names[] = {
        [ACT_GELU_TANH] = "tanh", [ACT_GELU_ERF] = "erf", [ACT_RELU2] = "relu2"
    };
    str_add(out, " %s=%s", name, names[v]);
}

void op_attrs_print(op_code op, const op_attr *a, str *out) {
    attr_set shown = op_row_of(op)->attrs & (op_attrs_set(a) | ATTR(ACT));
#define ATTR_PRINT(id, member, kind)                                                               \
    if (shown & ATTR(id)) print_##kind(out, #member, a->member);
    OP_ATTRIBUTES(ATTR_PRINT)
#undef ATTR_PRINT
}
