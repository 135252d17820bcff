/* The instructions of a rank as text: what --dump-schedule shows of programs, and of parameters and gradients that are
 * kept in slices. */
#include "step_list_internal.h"

/* Appends "first", "last", or the number of a block in the model. */
static void add_block_name(str *out, const chain *c, const model_chunk *k, const instr *i) {
    int at = i->instance, restart = at - (k->layers + 2);
    if (i->kind == DO_HALF) return; /* it follows the list that it measures */
    if (at == 0)
        str_add(out, "first");
    else if (at == k->layers + 1)
        str_add(out, "last");
    else
        str_add(out, "%d", k->from + (restart < 0 ? at - 1 : restart * c->keep_every));
}

/* The timetable shows what passes between ranks. */
#define INSTR_LETTER(id, name, letter) [DO_##id] = letter,
static const char *const instr_letters[] = { INSTR_KINDS(INSTR_LETTER) };

err chain_print_steps(const chain *of, int rank, int micros, str *out) {
    enum { WIDTH = 110 };
    chain c = chain_normal(of);
    step_list l;
    TRY(step_list_make(&c, rank, micros, &l));
    size_t line = out->len;
    str_add(out, "rank %d ", rank);
    step_cursor at = { &l };
    bool ended = false;
    for (instr i; step_next(&at, &i);) {
        bool named = i.end && !(i.end >= c.half && i.end < c.half + c.halves);
        const char *kind = named ? NULL : instr_letters[i.kind];
        bool opens = l.repeats && at.at == l.repeat_from + 1;
        if (opens || (kind && out->len - line > WIDTH)) {
            line = out->len + 1;
            str_add(out, "\n       ");
        }
        if (opens) str_add(out, " %d x (", l.repeats);
        model_chunk k = chain_chunk(&c, rank, i.chunk);
        if (kind) str_add(out, " %s", kind);
        if (kind) add_block_name(out, &c, &k, &i);
        if (named && i.end->p) {
            str_add(out, "%s%s", ended ? ", " : "\n        then ", i.end->p->name);
            if (i.end->kind == END_BESIDE && i.end->layer >= 0) str_add(out, " %d", i.end->layer);
            ended = true;
        }
        if (!l.repeats || at.at != l.repeat_to) continue;
        str_add(out, " )");
        if (l.half > 1) str_add(out, " with H at the end of repeat %d", l.half);
        str_add(out, "\n       ");
        line = out->len;
        at.again = l.repeats - 1;
    }
    str_add(out, "\n");
    step_list_free(&l);
    return OK;
}
