/* Times whole training steps (forward, backward, clipping, update). bench/cpu/run and bench/gpu/run
 * alternate it with PyTorch and llm.c.
 *
 *     bench_train PRESET ROWS SEQ fp32|bf16|fp16 STEPS [flags] [options of a run]
 *
 *     --cuda              on the GPU
 *     --vocab=N           another vocabulary than the preset's
 *     --fp8=RECIPE        as --precision.fp8
 *     --documents         rows hold several documents
 *     --micros=N          microbatches per step, all of the same tokens
 *     --tokens=FILE       times the steps once more, on the tokens of a file, row after row
 *     --queued            waits for a step after the next one is queued, as a run does; otherwise
 *                         before
 *     --losses            prints the loss and the gradient's norm of every step; no warm-up
 *     --profile           prints the time of each op and the rate it reaches
 *     --memory            prints the planned bytes and by how much the process grew
 *     --json              the result as a line of JSON
 *
 * On one thread of a CPU, seconds are CPU time, so that other processes count less.
 *
 * Options of a run are those of model, precision, optimizer, activation_checkpoint and debug:
 * --optimizer=adam8bit, --activation_checkpoint=full, --debug.deterministic. */
#include "bench.h"

#include <unistd.h>

#include "train/train.h"
#include "ops/op_table.h"

typedef struct flags {
    bool cuda, queued, losses, profile, memory, json;
    const char *vocab, *fp8, *tokens, *micros;
} flags;

/* Time and work of one op, summed over its calls. */
typedef struct op_profile {
    double seconds;
    op_work work;
} op_profile;

typedef struct run {
    flags f;
    config c;
    const op_backend *ops;
    model_config mc;
    model *m;
    plan *p;
    optimizer *o;
    exec x;
    op_profile profile[OP_COUNT];
    chain train;
    int train_id;
    int64_t n, seq; /* n: tokens of a microbatch */
    int micros;
    data_source *file; /* NULL: random tokens */
    int32_t *row;      /* [seq + 1] */
    int32_t *tokens, *targets, *pos, *start;
    int64_t *ids;
    device_ticket state[2]; /* of this step and the previous one */
} run;

typedef struct speed {
    double median, best, mean; /* seconds per step */
} speed;

/* ---- memory ------------------------------------------------------------------------------ */
static double resident(void) {
    FILE *f = fopen("/proc/self/statm", "r");
    long total = 0, pages = 0;
    if (!f || fscanf(f, "%ld %ld", &total, &pages) != 2) pages = 0;
    if (f) fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

/* Bytes of the GPU's memory in use, by any process; on the CPU, resident bytes of this one. */
static double in_use(const run *r) {
    ops_gpu_info gpu;
    if (!r->f.cuda) return resident();
    bench_check(ops_cuda_describe(0, &gpu));
    return gpu.memory - gpu.free_memory;
}

/* ---- setting up -------------------------------------------------------------------------- */
static void read_options(run *r, int argc, char **argv) {
    const config_flag known[] = {
        { "--cuda", &r->f.cuda, NULL },     { "--queued", &r->f.queued, NULL },
        { "--losses", &r->f.losses, NULL }, { "--profile", &r->f.profile, NULL },
        { "--memory", &r->f.memory, NULL }, { "--json", &r->f.json, NULL },
        { "--tokens", NULL, &r->f.tokens }, { "--documents", &r->c.data.documents, NULL },
        { "--vocab", NULL, &r->f.vocab },   { "--fp8", NULL, &r->f.fp8 },
        { "--micros", NULL, &r->f.micros },
    };
    config_init(&r->c);
    r->c.data.documents = false;
    bench_check(config_set(&r->c, "model.preset", argv[1]));
    bench_check(config_set(&r->c, "precision.dtype", argv[4]));
    bench_check(config_from_args(&r->c, argc - 5, argv + 5, known, (int)COUNT_OF(known)));
    if (r->f.queued && r->f.losses) bench_check(ERR("--queued times steps, and reads no --losses"));
    r->micros = r->f.micros ? MAX(atoi(r->f.micros), 1) : 1;
    r->c.device.kind = r->f.cuda ? OPS_CUDA : OPS_CPU;
    if (r->f.vocab) bench_check(config_set(&r->c, "model.vocab_size", r->f.vocab));
    if (r->f.fp8) bench_check(config_set(&r->c, "precision.fp8", r->f.fp8));
    bench_check(model_from_config(&r->c, &r->mc));
}

static void build(run *r, int64_t rows, int64_t seq) {
    const config *c = &r->c;
    bench_check(train_device(c, 0, &r->ops));
    model_layout l = train_layout(c, r->ops, seq);
    r->mc.max_seq = MAX(r->mc.max_seq, seq);
    bench_check(model_new(&r->mc, &l, &r->m));
    r->x.pool = pool_new((int)c->training.threads);
    r->x.comm = comm_self();
    r->p = r->x.plan = plan_new(&l.mesh, r->ops, pool_size(r->x.pool));
    model_reserve(r->m, r->p, true);
    optim_settings s = train_optim(c, r->ops, &l);
    bench_check(optim_new(&s, r->m, r->p, &r->o));
    bench_check(model_record(r->m, PROG_TRAIN, rows * seq, seq, &r->train));
    train_recompute(c, &r->train);
    bench_check(plan_chain(r->p, &r->train, model_bucket_regions, r->m, &r->train_id));
    bench_check(plan_commit(r->p));
    model_init(r->m, r->p, 1);
    if (l.dt == DT_F16)
        exec_state_set(&r->x, &(step_state){ .loss_scale = (float)c->precision.loss_scale });
}

static void make_batch(run *r, int64_t rows, int64_t seq) {
    r->seq = seq;
    r->n = rows * seq;
    r->row = mem_alloc((size_t)(seq + 1) * sizeof *r->row);
    r->tokens = mem_alloc((size_t)r->n * sizeof *r->tokens);
    r->targets = mem_alloc((size_t)r->n * sizeof *r->targets);
    r->pos = mem_alloc((size_t)r->n * sizeof *r->pos);
    r->start = mem_alloc((size_t)r->n * sizeof *r->start);
    r->ids = mem_alloc((size_t)r->n * sizeof *r->ids);
}

/* ---- a step ------------------------------------------------------------------------------ */
/* The rows of a step, in the file's order, wrapping around at its end. */
static void file_tokens(run *r, int step) {
    int64_t rows = r->n / r->seq, windows = (data_source_info(r->file)->tokens - 1) / r->seq;
    if (windows < 1)
        bench_check(ERR("%s: less than %lld tokens", r->f.tokens, (long long)r->seq + 1));
    for (int64_t i = 0; i < rows; i++) {
        data_read(r->file, (step * rows + i) % windows * r->seq, r->seq + 1, r->row);
        memcpy(r->tokens + i * r->seq, r->row, (size_t)r->seq * sizeof *r->row);
        memcpy(r->targets + i * r->seq, r->row + 1, (size_t)r->seq * sizeof *r->row);
    }
}

static void random_tokens(run *r, rng_key key) {
    for (int64_t i = 0; i < r->n; i++) {
        r->tokens[i] = (int32_t)rng_below(key, (uint64_t)i, (uint64_t)r->mc.vocab);
        r->targets[i] = (int32_t)rng_below(key, (uint64_t)(i + r->n), (uint64_t)r->mc.vocab);
    }
}

/* Documents of 500 tokens on average, where rows may hold several. */
static void fill_positions(run *r, rng_key key) {
    for (int64_t i = 0; i < r->n; i++) {
        bool fresh = i % r->seq == 0 ||
                     (r->c.data.documents && rng_below(key, (uint64_t)(i + 2 * r->n), 500) == 0);
        r->pos[i] = (int32_t)(i % r->seq);
        r->start[i] = fresh ? (int32_t)i : r->start[i - 1];
        r->ids[i] = i;
    }
}

static void wait_for(const run *r) {
    if (r->ops->device) bench_check(r->ops->device->sync(r->ops->context));
}

static double mean_loss(run *r) {
    float *loss = mem_alloc((size_t)r->n * sizeof *loss);
    double sum = 0;
    bench_check(
        plan_get(r->p, loss, exec_result(&r->x, r->train_id).data, (size_t)r->n * sizeof *loss));
    for (int64_t i = 0; i < r->n; i++) sum += loss[i];
    free(loss);
    return sum / (double)r->n;
}

static void next_batch(run *r, int step) {
    rng_key key = rng_key_of(3, (uint64_t)step);
    if (r->file)
        file_tokens(r, step);
    else
        random_tokens(r, key);
    fill_positions(r, key);
}

static void queue_step(run *r) {
    static const double LR = 3e-4, MAX_NORM = 1;
    r->x.step.loss_grad = 1.0f / (float)(r->n * r->micros);
    for (int i = 0; i < r->micros; i++) {
        model_set_batch(r->m, r->p,
                        &(model_batch){ r->tokens, r->targets, r->pos, r->start, r->ids, r->n });
        bench_check(exec_chain(&r->x, r->train_id, i, r->micros));
    }
    bench_check(optim_step(r->o, &r->x, LR, MAX_NORM));
}

/* @return seconds, from a batch in host memory to updated weights. */
static double one_step(run *r, int step) {
    const pool *clock = r->ops->device ? NULL : r->x.pool;
    next_batch(r, step);
    wait_for(r);
    double from = bench_now(clock);
    queue_step(r);
    wait_for(r);
    double seconds = bench_now(clock) - from;
    if (r->f.losses) {
        step_state now;
        bench_check(exec_state_get(&r->x, &now));
        printf("step %d loss %.6f norm %.6f\n", step, mean_loss(r), (double)now.norm);
    }
    return seconds;
}

/* @return seconds from `*since` to when the gradient's norm of the previous step is known. */
static double one_queued_step(run *r, int step, double *since) {
    step_state now;
    next_batch(r, step);
    queue_step(r);
    plan_fetch(r->p, QUEUE_COMPUTE, &r->state[step % 2], exec_state(&r->x), sizeof now);
    if (step > 0) bench_check(plan_take(r->p, &r->state[(step + 1) % 2], &now));
    double from = *since;
    *since = time_now();
    return *since - from;
}

static void add_call(void *ctx, const op_call *c, double seconds) {
    op_profile *sum = &((op_profile *)ctx)[c->op];
    op_work w = ops_work(c);
    sum->seconds += seconds;
    sum->work.flops += w.flops;
    sum->work.bytes += w.bytes;
    sum->work.exps += w.exps;
}

/* Warm-up: a GPU's first steps autotune, are captured and bring it up to its clock. No more of them than are timed: steps of
 * long sequences take seconds. */
static speed time_steps(run *r, int steps) {
    int warm_up = r->f.losses ? 0 : MIN(r->f.cuda ? 5 : 2, steps);
    double *t = mem_alloc((size_t)steps * sizeof *t), sum = 0, since = time_now();
    op_timer timer = { add_call, r->profile };
    r->x.probe.timer = NULL;
    for (int i = 0; i < warm_up + steps; i++) {
        if (i == warm_up && r->f.profile) r->x.probe.timer = &timer;
        double own = r->f.queued ? one_queued_step(r, i, &since) : one_step(r, i);
        if (i >= warm_up) sum += t[i - warm_up] = own;
    }
    r->x.probe.timer = NULL;
    if (r->f.queued) wait_for(r);
    speed s = { .median = bench_median(t, steps), .mean = sum / steps };
    s.best = t[0];
    free(t);
    return s;
}

/* ---- printing ---------------------------------------------------------------------------- */
static void print_time(bench_table *t, const char *what, double seconds, double total) {
    bench_cell(t, "%s", what);
    bench_cell(t, "%.3f", 1e3 * seconds);
    bench_cell(t, "%.1f", 100 * seconds / total);
}

static void print_rate(bench_table *t, bool known, double rate) {
    if (known)
        bench_cell(t, "%.1f", rate);
    else
        bench_cell(t, "%s", "");
}

/* Ops with GEMMs are rated by their operations, others by their bytes. */
static void print_profile(const run *r, int steps, double total) {
    static const bench_column columns[] = { { "op", -18 },    { "ms/step", 9 }, { "%", 6 },
                                            { "TFLOP/s", 9 }, { "GB/s", 8 },    { "copy%", 8 } };
    ops_gpu_speed gpu = { .copy = NAN };
    double named = 0;
    if (r->f.cuda) bench_check(ops_cuda_measure(r->ops, &gpu));
    bench_table table = bench_table_start(columns, COUNT_OF(columns));
    for (int op = 1; op < OP_COUNT; op++) {
        double s = r->profile[op].seconds / steps;
        op_work w = r->profile[op].work;
        if (!(s > 0)) continue;
        named += s;
        double rate = (w.flops > 0 ? w.flops : w.bytes) / steps / s;
        print_time(&table, op_name((op_code)op), s, total);
        print_rate(&table, w.flops > 0, rate / 1e12);
        print_rate(&table, w.flops <= 0, rate / 1e9);
        print_rate(&table, w.flops <= 0 && r->f.cuda, 100 * rate / gpu.copy);
    }
    print_time(&table, "rest", total - named, total);
    for (int i = 0; i < 3; i++) print_rate(&table, false, 0);
}

static void print_json(run *r, char **argv, speed s, const speed *real) {
    double n = (double)r->n * r->micros;
    printf("{\"model\": \"%s\", \"rows\": %s, \"seq\": %s, \"dtype\": \"%s\", \"fp8\": \"%s\", "
           "\"parameters\": %lld, \"tok_s\": %.0f, \"best_tok_s\": %.0f, \"ms\": %.2f, ",
           argv[1], argv[2], argv[3], argv[4], config_choice("precision.fp8", r->c.precision.fp8),
           (long long)model_count(&r->mc), n / s.median, n / s.best, 1e3 * s.median);
    if (real) printf("\"real_tok_s\": %.0f, ", n / real->median);
    printf("\"planned\": %zu, \"device_used\": %.0f, \"loss\": %.4f}\n", plan_bytes(r->p, NULL),
           in_use(r), mean_loss(r));
}

int main(int argc, char **argv) {
    if (argc < 6) {
        fprintf(stderr, "usage: bench_train PRESET ROWS SEQ DTYPE STEPS [flags] [options]\n");
        return 2;
    }
    run r = { 0 };
    speed real = { 0 };
    int64_t rows = atoll(argv[2]), seq = atoll(argv[3]);
    int steps = MAX(atoi(argv[5]), 1);
    double before = resident();
    read_options(&r, argc, argv);
    data_source *file = NULL;
    if (r.f.tokens) bench_check(data_open(r.f.tokens, r.mc.vocab, &file));
    build(&r, rows, seq);
    make_batch(&r, rows, seq);
    speed s = time_steps(&r, steps);
    double grown = resident() - before, planned = (double)plan_bytes(r.p, NULL);
    if (r.f.profile) print_profile(&r, steps, s.mean);
    r.file = file;
    if (file) real = time_steps(&r, steps);
    if (r.f.json)
        print_json(&r, argv, s, file ? &real : NULL);
    else
        printf("%s %s %sx%s: median %.0f best %.0f tok/s\n", argv[1], argv[4], argv[2], argv[3],
               (double)r.n * r.micros / s.median, (double)r.n * r.micros / s.best);
    if (r.f.memory)
        printf("memory: planned %.1f MiB, grew %.1f MiB, ratio %.3f\n", planned / 1048576,
               grown / 1048576, grown / planned);
    return 0;
}
