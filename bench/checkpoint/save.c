/* How fast a checkpoint is saved and loaded, beside what the disk does with plain writes and reads.
 *
 *     bench_checkpoint_save [--model=PRESET] [--dir=FOLDER] [--rounds=N] [--load=CHECKPOINT]
 *
 * One rank with AdamW state: weights and two moments in fp32. Each round saves a checkpoint, then reads its files and
 * loads it LOADS times in turns, and then writes as many bytes plainly: in pieces of 4 MiB with one fsync. Plain reads
 * are of the checkpoint's own files, by one thread. Before each read the page cache is asked to drop them. Medians of
 * all rounds count, and of the shares of loads those of neighboring pairs, so that a disk whose speed changes, as
 * virtual ones do, distorts them least. CPU seconds, of all threads, show whether loading is limited by the disk or by
 * the cores. With --load no round saves anything: two builds can be compared over the same files. Prints a line of
 * JSON. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "bench.h"
#include "checkpoint/checkpoint.h"
#include "io/io.h"

enum { PIECE = 4 << 20, LOADS = 5, MAX_SAMPLES = 1000 };

typedef struct samples {
    double v[MAX_SAMPLES];
    int n;
} samples;
typedef struct rates {
    samples write, read, save, load; /* seconds */
    samples save_share, load_share;  /* of the plain one's speed */
    samples read_cpu, load_cpu;      /* CPU seconds of all threads */
} rates;

static double add_sample(samples *s, double value) {
    BUG_IF(s->n == MAX_SAMPLES);
    return s->v[s->n++] = value;
}

static double median_of(samples *s) { return s->n ? bench_median(s->v, s->n) : 0; }

static double cpu_seconds(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
           1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

static err drop_cache(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return ERR("cannot read %s", path);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    return OK;
}

/* Calls visit(path) for every file of a folder. */
static err each_file(const char *folder, err (*visit)(const char *path)) {
    char **names;
    int n;
    err e = OK;
    TRY(io_list(folder, &names, &n));
    for (int i = 0; i < n && !e; i++) {
        char *path = io_join(folder, names[i]);
        e = visit(path);
        free(path);
    }
    io_list_free(names, n);
    return e;
}

/* ---- the disk --------------------------------------------------------------------------------- */
static err plain_write(const char *path, size_t bytes, double *seconds) {
    char *piece = mem_alloc(PIECE);
    for (size_t i = 0; i < PIECE; i++) piece[i] = (char)rng_u32(rng_key_of(1, 2), i);
    double from = time_now();
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool fine = fd >= 0;
    for (size_t at = 0; at < bytes && fine; at += PIECE)
        fine = write(fd, piece, MIN((size_t)PIECE, bytes - at)) > 0;
    fine = fine && fsync(fd) == 0;
    if (fd >= 0) close(fd);
    *seconds = time_now() - from;
    free(piece);
    return fine ? OK : ERR("cannot write %s", path);
}

static err plain_read(const char *path) {
    static char piece[PIECE];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return ERR("cannot read %s", path);
    while (read(fd, piece, PIECE) > 0) continue;
    close(fd);
    return OK;
}

/* ---- a checkpoint ------------------------------------------------------------------------------ */
typedef struct training {
    model *m;
    exec *x;
    optimizer *o;
} training;

/* Reads a checkpoint's files and loads it, in turns. */
static err read_and_load(const char *path, const training *t, rates *r) {
    for (int i = 0; i < LOADS; i++) {
        TRY(each_file(path, drop_cache));
        double from = time_now(), cpu = cpu_seconds();
        TRY(each_file(path, plain_read));
        double read = add_sample(&r->read, time_now() - from);
        add_sample(&r->read_cpu, cpu_seconds() - cpu);
        TRY(each_file(path, drop_cache));
        from = time_now();
        cpu = cpu_seconds();
        TRY(ckpt_load(path, t->m, t->x, t->o));
        double load = add_sample(&r->load, time_now() - from);
        add_sample(&r->load_cpu, cpu_seconds() - cpu);
        add_sample(&r->load_share, read / load);
    }
    return OK;
}

static err save_and_load(const char *dir, int step, const training *t, rates *r, ckpt_size *size) {
    ckpt_state s = { .step = step, .loss = 1 };
    char *path = NULL, *plain = io_join(dir, "plain");
    double from = time_now(), write = 0;
    err e = ckpt_save(dir, t->m, t->x, t->o, &s, NULL, NULL);
    double save = time_now() - from;
    if (!e) e = ckpt_latest(dir, &path);
    if (!e) e = read_and_load(path, t, r);
    if (!e) e = ckpt_verify(path, 0, 1, size);
    if (!e) e = io_remove_tree(dir, path); /* freeing its blocks is not the next save's work */
    if (!e) e = plain_write(plain, (size_t)size->bytes, &write);
    unlink(plain);
    add_sample(&r->save, save);
    add_sample(&r->write, write);
    add_sample(&r->save_share, write / save);
    free(plain);
    free(path);
    return e;
}

static err run_rounds(const char *dir, const char *path, const training *t, int rounds) {
    rates r = { 0 };
    ckpt_size size = { 0 };
    if (path) TRY(ckpt_verify(path, 0, 1, &size));
    if (!path) TRY(io_make_dirs(dir));
    for (int i = 0; i < rounds; i++)
        TRY(path ? read_and_load(path, t, &r) : save_and_load(dir, i + 1, t, &r, &size));
    double mb = (double)size.bytes / 1e6;
    printf("{\"bytes\": %lld, ", (long long)size.bytes);
    if (!path)
        printf("\"save_mb_s\": %.0f, \"write_mb_s\": %.0f, \"save_share\": %.3f, ",
               mb / median_of(&r.save), mb / median_of(&r.write), median_of(&r.save_share));
    printf("\"load_mb_s\": %.0f, \"read_mb_s\": %.0f, \"load_share\": %.3f, "
           "\"load_cpu_s\": %.3f, \"read_cpu_s\": %.3f}\n",
           mb / median_of(&r.load), mb / median_of(&r.read), median_of(&r.load_share),
           median_of(&r.load_cpu), median_of(&r.read_cpu));
    return OK;
}

static err run(const char *preset, const char *dir, const char *path, int rounds) {
    model_config c;
    model_layout l = { .dt = DT_F32 };
    optim_settings s = { .kind = OPTIM_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8 };
    model *m = NULL;
    optimizer *o = NULL;
    plan *p = NULL;
    exec x = { .comm = comm_self(), .pool = pool_new(0) };
    err e = OK;
    TRY(model_preset(preset, &c));
    TRY(model_new(&c, &l, &m));
    x.plan = p = plan_new(&l.mesh, ops_cpu(OPS_ISA_BEST), pool_size(x.pool));
    model_reserve(m, p, true);
    TRY_CLEAN(optim_new(&s, m, p, &o));
    TRY_CLEAN(plan_commit(p));
    model_init(m, p, 1);
    TRY_CLEAN(run_rounds(dir, path, &(training){ m, &x, o }, rounds));
cleanup:
    optim_free(o);
    plan_free(p);
    model_free(m);
    comm_free(x.comm);
    pool_free(x.pool);
    return e;
}

int main(int argc, char **argv) {
    const char *preset = "gpt2-124m", *dir = "bench-checkpoint", *path = NULL;
    int rounds = 3;
    for (int i = 1; i < argc; i++) {
        if (str_starts(argv[i], "--model=")) preset = argv[i] + 8;
        if (str_starts(argv[i], "--dir=")) dir = argv[i] + 6;
        if (str_starts(argv[i], "--rounds=")) rounds = atoi(argv[i] + 9);
        if (str_starts(argv[i], "--load=")) path = argv[i] + 7;
    }
    err e = run(preset, dir, path, rounds);
    if (e) err_print(stderr, e, true);
    err_free(e);
    return e ? 1 : 0;
}
