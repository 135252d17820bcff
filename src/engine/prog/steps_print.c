/* The instructions of a rank as text, a line per microbatch of its order: what --dump-schedule shows of
 * parameters and gradients that are kept in slices. */
#include "plan_internal.h"

/* "first", "last", or the number of a block in the model. */
static void add_block_name(str *out, const chain *c, const model_chunk *k, const instr *i) {
    int at = i->instance, restart = at - (k->layers + 2);
    if (at == 0)
        str_add(out, "first");
    else if (at == k->layers + 1)
        str_add(out, "last");
    else
        str_add(out, "%d", k->from + (restart < 0 ? at - 1 : restart * c->keep_every));
}

/* @param repeats the list is run for every microbatch */
static const char *instr_text(const instr *i, bool repeats) {
    bool once = i->once && repeats;
    switch (i->kind) {
    case DO_FWD:
    case DO_FWD_SAVES: return "F";
    case DO_BWD: return "B";
    case DO_WEIGHTS: return "W";
    case DO_GATHER: return once ? "G!" : i->ahead ? "G>" : "G";
    case DO_GATHERED: return once ? "g!" : "g";
    case DO_REDUCE: return "R";
    case DO_REDUCED: return "r";
    default: return NULL; /* the timetable shows what passes between ranks */
    }
}

bool chain_has_slots(const chain *c) {
    const prog *all[] = { c->first, c->block[0], c->block[1], c->last };
    for (size_t i = 0; i < COUNT_OF(all); i++)
        if (all[i] && (all[i]->gather.n || all[i]->reduce.n)) return true;
    return false;
}

err chain_print_steps(const chain *of, int rank, int micros, str *out) {
    enum { WIDTH = 110 };
    chain c = chain_normal(of);
    step_list l;
    TRY(step_list_make(&c, rank, c.pipe.ranks > 1 ? micros : 1, &l));
    size_t line = out->len;
    str_add(out, "rank %d ", rank);
    for (int n = 0; n < l.n; n++) {
        const instr *i = &l.list[n];
        const char *kind = instr_text(i, c.pipe.ranks == 1);
        if (!kind) continue;
        model_chunk k = chain_chunk(&c, rank, i->chunk);
        if (out->len - line > WIDTH) {
            line = out->len + 1;
            str_add(out, "\n       ");
        }
        str_add(out, " %s", kind);
        add_block_name(out, &c, &k, i);
    }
    str_add(out, "\n");
    step_list_free(&l);
    return OK;
}
