/* Before anything runs, the first rank proves that the communication of all ranks meets: it lays the run out as each
 * of them does, and plays their lists of training, evaluation and generation side by side, the update included. A
 * step that would hang is refused with both places. Ranks that differ in nothing but their coordinate run programs of
 * the same kind, so a mesh too large to play is played with fewer ranks along each axis. */
#include "setup_internal.h"
#include "trainer_internal.h"

#include <stddef.h>
#include <stdlib.h>

enum { MOST_PLAYED = 64 };

static err lay_out_rank(const trainer *t, const config *c, const mesh *m, int rank, trainer *out) {
    *out = (trainer){ .cfg = c,
                      .mesh = mesh_as(m, rank),
                      .mc = t->mc,
                      .len = t->len,
                      .data.n_sets = t->data.n_sets };
    err e = trainer_lay_out(out, t->ops ? t->ops : ops_cpu(OPS_ISA_BEST), 1);
    out->data.n_sets = 0; /* counted, never opened */
    return e;
}

static err play_chains(const mesh *m, const trainer *ranks, int n) {
    static const size_t chains[] = {
        offsetof(trainer, train),
        offsetof(trainer, eval),
        offsetof(trainer, gen.by_length[0].many),
        offsetof(trainer, gen.by_length[0].step),
        offsetof(trainer, gen.by_length[1].many),
        offsetof(trainer, gen.by_length[1].step),
    };
    chain *list = mem_alloc((size_t)n * sizeof *list);
    err e = OK;
    for (size_t k = 0; k < COUNT_OF(chains) && !e; k++) {
        for (int r = 0; r < n; r++)
            list[r] =
                plan_chain_as_run(ranks[r].p, (const void *)((const char *)&ranks[r] + chains[k]));
        if (list[0].first) e = plan_check_ranks(m, list, n);
    }
    free(list);
    return e;
}

err trainer_check_lists(const trainer *t, int *played) {
    bool reduced = mesh_world(&t->mesh) > MOST_PLAYED;
    mesh m = reduced ? mesh_reduced(&t->mesh) : t->mesh;
    int world = mesh_world(&m), n = 0;
    trainer *ranks = mem_alloc((size_t)world * sizeof *ranks);
    config c;
    config_copy(&c, t->cfg);
    /* fewer stages than the split states: they have equal shares */
    err e = reduced ? config_set(&c, "parallelism.pipeline_parallel_split", "[]") : OK;
    for (; n < world && !e; n++) e = lay_out_rank(t, &c, &m, n, &ranks[n]);
    if (!e) e = play_chains(&m, ranks, world);
    for (int r = 0; r < n; r++) trainer_free(&ranks[r]);
    free(ranks);
    config_free(&c);
    *played = world;
    return e;
}
