/* How fast a checkpoint is saved and loaded, beside what the disk does with plain writes and reads.
 *
 *     bench_checkpoint_save [--model=PRESET] [--dir=FOLDER] [--rounds=N]
 *
 * One rank with AdamW state: weights and two moments in fp32. Plain writes are of the same number of bytes,
 * in pieces of 4 MiB with one fsync, and plain reads of the file just written; before each read the page cache
 * is asked to drop the files. The best of the rounds counts. Prints a line of JSON; CPU seconds, of all threads, show
 * whether loading is limited by the disk or by the cores. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "io/io.h"

enum { PIECE = 4 << 20 };

typedef struct rates {
    double write, read, save, load; /* seconds, the least */
    double read_cpu, load_cpu;      /* CPU seconds of all threads, the least */
} rates;

static void keep_least(double *best, double seconds) {
    if (*best == 0 || seconds < *best) *best = seconds;
}

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

static err drop_folder(const char *folder) {
    char **names;
    int n;
    err e = OK;
    TRY(io_list(folder, &names, &n));
    for (int i = 0; i < n && !e; i++) {
        char *path = io_join(folder, names[i]);
        e = drop_cache(path);
        free(path);
    }
    io_list_free(names, n);
    return e;
}

/* ---- the disk --------------------------------------------------------------------------------- */
static err plain_write(const char *path, size_t bytes, rates *r) {
    char *piece = mem_alloc(PIECE);
    for (size_t i = 0; i < PIECE; i++) piece[i] = (char)rng_u32(rng_key_of(1, 2), i);
    double from = time_now();
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    bool fine = fd >= 0;
    for (size_t at = 0; at < bytes && fine; at += PIECE)
        fine = write(fd, piece, MIN((size_t)PIECE, bytes - at)) > 0;
    fine = fine && fsync(fd) == 0;
    if (fd >= 0) close(fd);
    keep_least(&r->write, time_now() - from);
    free(piece);
    return fine ? OK : ERR("cannot write %s", path);
}

static err plain_read(const char *path, rates *r) {
    char *piece = mem_alloc(PIECE);
    TRY(drop_cache(path));
    double from = time_now(), cpu = cpu_seconds();
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && read(fd, piece, PIECE) > 0) continue;
    if (fd >= 0) close(fd);
    keep_least(&r->read, time_now() - from);
    keep_least(&r->read_cpu, cpu_seconds() - cpu);
    free(piece);
    return OK;
}

/* ---- a checkpoint ------------------------------------------------------------------------------ */
static err save_and_load(const char *dir, int step, model *m, exec *x, optimizer *o, rates *r,
                         ckpt_size *size) {
    ckpt_state s = { .step = step, .loss = 1 };
    char *path = NULL;
    double from = time_now();
    TRY(ckpt_save(dir, m, x, o, &s, NULL, NULL));
    keep_least(&r->save, time_now() - from);
    TRY(ckpt_latest(dir, &path));
    err e = drop_folder(path);
    from = time_now();
    double cpu = cpu_seconds();
    if (!e) e = ckpt_load(path, m, x, o);
    keep_least(&r->load, time_now() - from);
    keep_least(&r->load_cpu, cpu_seconds() - cpu);
    if (!e) e = ckpt_verify(path, 0, 1, size);
    if (!e) e = io_remove_tree(dir, path); /* freeing its blocks is not the next save's work */
    free(path);
    return e;
}

static err run_rounds(const char *dir, model *m, exec *x, optimizer *o, int rounds) {
    rates r = { 0 };
    ckpt_size size = { 0 };
    char *plain = io_join(dir, "plain");
    err e = io_make_dirs(dir);
    for (int i = 0; i < rounds && !e; i++) {
        e = save_and_load(dir, i + 1, m, x, o, &r, &size);
        if (!e) e = plain_write(plain, (size_t)size.bytes, &r);
        if (!e) e = plain_read(plain, &r);
        unlink(plain);
    }
    free(plain);
    TRY(e);
    double mb = (double)size.bytes / 1e6;
    printf("{\"bytes\": %lld, \"save_mb_s\": %.0f, \"write_mb_s\": %.0f, \"save_share\": %.3f, "
           "\"load_mb_s\": %.0f, \"read_mb_s\": %.0f, \"load_share\": %.3f, "
           "\"load_cpu_s\": %.3f, \"read_cpu_s\": %.3f}\n",
           (long long)size.bytes, mb / r.save, mb / r.write, r.write / r.save, mb / r.load,
           mb / r.read, r.read / r.load, r.load_cpu, r.read_cpu);
    return OK;
}

static err run(const char *preset, const char *dir, int rounds) {
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
    TRY_CLEAN(run_rounds(dir, m, &x, o, rounds));
cleanup:
    optim_free(o);
    plan_free(p);
    model_free(m);
    comm_free(x.comm);
    pool_free(x.pool);
    return e;
}

int main(int argc, char **argv) {
    const char *preset = "gpt2-124m", *dir = "bench-checkpoint";
    int rounds = 3;
    for (int i = 1; i < argc; i++) {
        if (str_starts(argv[i], "--model=")) preset = argv[i] + 8;
        if (str_starts(argv[i], "--dir=")) dir = argv[i] + 6;
        if (str_starts(argv[i], "--rounds=")) rounds = atoi(argv[i] + 9);
    }
    err e = run(preset, dir, rounds);
    if (e) err_print(stderr, e, true);
    err_free(e);
    return e ? 1 : 0;
}
