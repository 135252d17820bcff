/* Times whole training steps (forward, backward, clip, AdamW) on random tokens, as bench/cpu and
 * bench/gpu run them beside PyTorch and llm.c.
 *
 *     bench_train PRESET ROWS SEQ fp32|bf16|fp16 STEPS [--cuda] [--vocab=N] [--profile] [--memory]
 *                 [--losses] [--documents] [--recompute=N]
 *
 * Prints median and best tokens/s; with --profile the time of each op; with --memory what the plan
 * said and what the process grew by; with --losses the loss of each step. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "optim/optim.h"

typedef struct flags {
    bool cuda, profile, memory, losses, documents;
    int64_t vocab;
    int keep_every;
} flags;

typedef struct run {
    flags f;
    op_backend *gpu;
    model *m;
    plan *p;
    optimizer *o;
    exec x;
    chain train;
    int train_id;
    int64_t n, seq, vocab;
    int32_t *tokens, *targets, *pos, *start;
    int64_t *ids;
} run;

static void die(err e) {
    if (!e) return;
    err_print(stderr, e, true);
    exit(1);
}

static double resident(void) {
    FILE *f = fopen("/proc/self/statm", "r");
    long total = 0, pages = 0;
    if (!f || fscanf(f, "%ld %ld", &total, &pages) != 2) pages = 0;
    if (f) fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static void setup(run *r, const char *preset, int64_t rows, int64_t seq, dtype dt) {
    model_config c;
    die(model_preset(preset, &c));
    if (r->f.vocab) c.vocab = r->f.vocab;
    if (r->f.cuda) die(ops_cuda_open(0, false, &r->gpu));
    const op_backend *ops = r->gpu ? r->gpu : ops_cpu(OPS_ISA_BEST);
    r->seq = seq;
    r->n = rows * seq;
    r->vocab = c.vocab;
    model_layout l = { .dt = dt, .seq = seq, .documents = r->f.documents };
    die(model_new(&c, &l, &r->m));
    r->x.pool = pool_new(0);
    r->x.comm = comm_self();
    r->p = r->x.plan = plan_new(&l.mesh, ops, pool_size(r->x.pool));
    model_reserve(r->m, r->p, true);
    optim_settings s = { .kind = OPTIM_ADAMW,
                         .beta1 = 0.9,
                         .beta2 = 0.95,
                         .eps = 1e-8,
                         .weight_decay = 0.1,
                         .backend = ops };
    die(optim_new(&s, r->m, r->p, 0, &r->o));
    die(model_record(r->m, PROG_TRAIN, r->n, seq, &r->train));
    r->train.keep_every = r->f.keep_every;
    r->train_id = plan_chain(r->p, &r->train, model_bucket_home, r->m);
    die(plan_commit(r->p));
    model_init(r->m, r->p, 0, 1);
    r->tokens = mem_alloc((size_t)r->n * 4);
    r->targets = mem_alloc((size_t)r->n * 4);
    r->pos = mem_alloc((size_t)r->n * 4);
    r->start = mem_alloc((size_t)r->n * 4);
    r->ids = mem_alloc((size_t)r->n * 8);
}

static void print_loss(run *r, int step, double norm) {
    float *loss = mem_alloc((size_t)r->n * sizeof *loss);
    double sum = 0;
    die(plan_get(r->p, loss, exec_value(&r->x, r->train_id, r->train.last->loss),
                 (size_t)r->n * sizeof *loss));
    for (int64_t i = 0; i < r->n; i++) sum += loss[i];
    printf("step %d loss %.6f norm %.6f\n", step, sum / (double)r->n, norm);
    free(loss);
}

static void wait_for(run *r) {
    if (r->gpu) die(r->gpu->device->sync(r->gpu->context));
}

static double one_step(run *r, int step) {
    rng_key key = rng_key_of(3, (uint64_t)step);
    for (int64_t i = 0; i < r->n; i++) {
        r->tokens[i] = (int32_t)rng_below(key, (uint64_t)i, (uint64_t)r->vocab);
        r->targets[i] = (int32_t)rng_below(key, (uint64_t)(i + r->n), (uint64_t)r->vocab);
        r->pos[i] = (int32_t)(i % r->seq);
        bool fresh = i % r->seq == 0 ||
                     (r->f.documents && rng_below(key, (uint64_t)(i + 2 * r->n), 500) == 0);
        r->start[i] = fresh ? (int32_t)i : r->start[i - 1];
        r->ids[i] = i;
    }
    wait_for(r);
    double t0 = time_now(), norm;
    model_set_batch(r->m, r->p, 0,
                    &(model_batch){ r->tokens, r->targets, r->pos, r->start, r->ids, r->n });
    r->x.step.loss_grad = 1.0f / (float)r->n;
    die(exec_chain(&r->x, r->train_id, 0, 1));
    die(optim_grad_norm(r->o, &r->x, 1, &norm));
    if (r->f.losses) print_loss(r, step, norm);
    die(optim_step(r->o, &r->x, 3e-4, optim_clip(norm, 1)));
    wait_for(r);
    return time_now() - t0;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void print_profile(const run *r, int steps, double total) {
    double named = 0;
    printf("%-18s %9s %6s\n", "op", "ms/step", "%");
    for (int op = 0; op < OP_COUNT; op++) {
        double s = r->x.op_seconds[op] / steps;
        named += s;
        if (s > 0) printf("%-18s %9.2f %6.1f\n", op_name((op_code)op), 1e3 * s, 100 * s / total);
    }
    printf("%-18s %9.2f %6.1f\n", "rest", 1e3 * (total - named), 100 * (total - named) / total);
}

static void read_flag(flags *f, const char *word) {
    const struct {
        const char *name;
        bool *on;
    } known[] = { { "--cuda", &f->cuda },
                  { "--profile", &f->profile },
                  { "--memory", &f->memory },
                  { "--losses", &f->losses },
                  { "--documents", &f->documents } };
    for (size_t i = 0; i < COUNT_OF(known); i++)
        if (strcmp(known[i].name, word) == 0) {
            *known[i].on = true;
            return;
        }
    if (str_starts(word, "--vocab="))
        f->vocab = atoll(word + strlen("--vocab="));
    else if (str_starts(word, "--recompute="))
        f->keep_every = atoi(word + strlen("--recompute="));
    else
        die(ERR("unknown option %s", word));
}

int main(int argc, char **argv) {
    if (argc < 6) {
        fprintf(stderr, "usage: bench_train PRESET ROWS SEQ DTYPE STEPS [--profile] [--memory]\n");
        return 2;
    }
    run r = { 0 };
    int steps = atoi(argv[5]);
    for (int i = 6; i < argc; i++) read_flag(&r.f, argv[i]);
    double before = resident();
    setup(&r, argv[1], atoll(argv[2]), atoll(argv[3]), dt_from_name(argv[4]));
    for (int i = 0; i < 2; i++) one_step(&r, i);
    r.x.profile = r.f.profile;
    double *t = mem_alloc((size_t)steps * sizeof *t), sum = 0;
    for (int i = 0; i < steps; i++) sum += t[i] = one_step(&r, i + 2);
    double grown = resident() - before, planned = (double)plan_bytes(r.p, NULL);
    qsort(t, (size_t)steps, sizeof *t, ascending);
    printf("%s %s %sx%s: median %.0f best %.0f tok/s\n", argv[1], argv[4], argv[2], argv[3],
           (double)r.n / t[steps / 2], (double)r.n / t[0]);
    if (r.f.profile) print_profile(&r, steps, sum / steps);
    if (r.f.memory)
        printf("memory: planned %.1f MiB, grew %.1f MiB, ratio %.3f\n", planned / 1048576,
               grown / 1048576, grown / planned);
    return 0;
}
