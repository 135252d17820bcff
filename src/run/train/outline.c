/* A run in outline: the programs and the memory that train_run would have, without data and without
 * mapping anything. What it reports about memory is therefore what training will reserve, whatever changes
 * in models, passes or optimizers. */
#include "setup_internal.h"
#include "trainer_internal.h"

#include <math.h>
#include <stdlib.h>

/* Lengths in epochs need the data, and those in time need the machine. */
static err set_lengths(trainer *t, train_outline *out) {
    const config *c = t->cfg;
    out->steps = out->tokens = NAN;
    if (c->training.steps.unit == CFG_EPOCHS || c->training.steps.unit == CFG_SECONDS) {
        t->len.every.validate.length = c->validation.every.value > 0;
        t->len.every.sample.length = c->sample.every.value > 0;
        return OK;
    }
    TRY(trainer_set_lengths(t));
    out->steps = (double)t->len.steps;
    out->tokens = (double)batch_ramp_windows(&t->len.ramp, t->len.steps) * (double)t->len.seq;
    return OK;
}

err train_batch(const config *c, int ranks, step_batch *out) {
    trainer *t = mem_alloc(sizeof *t);
    t->cfg = c;
    err e = ranks_mesh(c, ranks, &t->mesh);
    if (!e) e = trainer_set_batch(t);
    if (!e)
        *out = (step_batch){ t->mesh, t->len.rows, t->len.micros,
                             (int)(trainer_micro_rows(t) / t->len.rows) };
    free(t);
    return e;
}

err train_outline_open(const config *c, const outline_options *o, train_outline *out) {
    trainer *t = mem_alloc(sizeof *t);
    *out = (train_outline){ .owner = t };
    t->cfg = c;
    TRY(ranks_mesh(c, o->ranks, &t->mesh));
    t->mesh.rank = mesh_first_of_stage(&t->mesh, o->stage);
    TRY(model_from_config(c, &t->mc));
    TRY(trainer_set_batch(t));
    TRY(recipe_choose(t));
    TRY(set_lengths(t, out));
    t->data.n_sets = *c->data.validation || *c->data.train || c->data.validation_fraction > 0;
    int threads = o->threads;
    if (threads <= 0) { /* ranks of this machine share its cores */
        threads = c->training.threads ? (int)c->training.threads : thread_cores();
        threads = MAX(1, threads / mesh_world(&t->mesh));
    }
    TRY(trainer_lay_out(t, o->ops, threads));
    out->m = t->m;
    out->p = t->p;
    out->o = t->o;
    out->train = &t->train;
    out->rows = t->len.rows;
    out->micros = t->len.micros;
    out->seq = t->len.seq;
    out->step_tokens = t->len.ramp.full * t->len.seq;
    return OK;
}

void train_outline_free(train_outline *o) {
    if (o->owner) {
        o->owner->data.n_sets = 0; /* counted, never opened */
        trainer_free(o->owner);
    }
    free(o->owner);
    *o = (train_outline){ 0 };
}

static err print_timetable(const pipeline *p, int micros, str *out) {
    timetable table;
    TRY(timetable_make(p, micros, &table));
    double idle = p->ranks - 1;
    str_add(out, "%d ranks, %d microbatches, %s: %.1f%% idle", p->ranks, micros,
            config_choice("parallelism.pipeline_parallel_schedule", (int)p->kind),
            100 * timetable_bubble(&table));
    str_add(out, "; (p-1)/(m+p-1) is %.1f%%\n\n", 100 * idle / ((double)micros + idle));
    timetable_print(&table, out);
    bool split = pipeline_splits_backward(p);
    str_add(out, "\n3 is microbatch 3 forward, `3 its backward%s%s.\n",
            split ? " for the input, .3 for the weights, each one unit of time"
                  : ", two units of time",
            p->chunks > 1 ? "; 3a in the rank's first chunk of layers, 3b in its second" : "");
    timetable_free(&table);
    return OK;
}

static err print_schedule(const train_outline *o, str *out) {
    pipeline p = o->train->pipe;
    p.ranks = MAX(1, p.ranks);
    if (p.ranks > 1) TRY(print_timetable(&p, (int)o->micros, out));
    if (p.ranks > 1 && model_lay(o->m)->zero == 0) return OK; /* the timetable shows all of it */
    if (p.ranks > 1) str_add(out, "\n");
    /* what each rank runs, gathers and reduces, in order */
    for (int r = 0; r < p.ranks; r++) TRY(chain_print_steps(o->train, r, (int)o->micros, out));
    str_add(
        out,
        "\nF3 is the forward pass of block 3, B3 its backward pass%s. U3 starts to gather what the "
        "last update\nleft of it in slices, u3 waits for that; G3 and g3 do so for parameters that "
        "are stored in slices,\nR3 and r3 for gradients that are reduced to slices. N x ( ... ) "
        "repeats microbatches.\n",
        pipeline_splits_backward(&p) ? ", W3 its weights" : "");
    return OK;
}

err train_timetable(const config *c, int ranks, str *out) {
    train_outline o;
    err e = train_outline_open(
        c, &(outline_options){ .ops = ops_cpu(OPS_ISA_BEST), .threads = 1, .ranks = ranks }, &o);
    if (!e) e = print_schedule(&o, out);
    train_outline_free(&o);
    return e;
}

err train_check_lists(const config *c, int ranks, int *played) {
    train_outline o;
    err e = train_outline_open(
        c, &(outline_options){ .ops = ops_cpu(OPS_ISA_BEST), .threads = 1, .ranks = ranks }, &o);
    if (!e) e = trainer_check_lists(o.owner, played);
    train_outline_free(&o);
    return e;
}
