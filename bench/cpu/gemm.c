/* How close the GEMMs come to what the processor can do. Prints the peak measured on registers
 * alone with the kernels' own instructions, the copy bandwidth, and for the shapes of a
 * transformer's step over 1024 tokens the speed and its share of the peak:
 *
 *     bench_cpu_gemm [--isa NAME] [--dtype fp32|bf16] [--threads N] [--blas LIBRARY.so]
 *
 * With one thread, CPU time counts, so that other processes matter less. With --blas, the same fp32 GEMMs by that CBLAS
 * with its own threads, for comparison. */
#include "bench.h"

#include <dlfcn.h>

#include "ops/cpu/kernel/kernel_internal.h"
#include "ops/cpu_features.h"

#define X(isa)                                                                                     \
    void gemm_run_##isa(const gemm *g, pool *p, void *workspace, size_t bytes);                    \
    size_t gemm_workspace_##isa(const gemm *g, int threads);                                       \
    extern const gemm_kernel gemm_f32_kernel_##isa, *const gemm_bf16_kernel_##isa;
CPU_ISA_TABLE
#undef X

typedef struct isa {
    const char *name;
    void (*run)(const gemm *g, pool *p, void *workspace, size_t bytes);
    size_t (*workspace)(const gemm *g, int threads);
    const gemm_kernel *f32, *const *bf16;
} isa;
static const isa isas[] = {
#define X(isa)                                                                                     \
    { #isa, gemm_run_##isa, gemm_workspace_##isa, &gemm_f32_kernel_##isa, &gemm_bf16_kernel_##isa },
    CPU_ISA_TABLE
#undef X
};

enum { TOKENS = 1024, VOCAB = 50257, MOST_ROWS = VOCAB, MOST_COLS = 3072 };

typedef void (*sgemm_fn)(int order, int ta, int tb, int m, int n, int k, float alpha,
                         const float *a, int lda, const float *b, int ldb, float beta, float *c,
                         int ldc);

typedef struct bench {
    const isa *isa;
    pool *pool;
    int threads;
    void *a, *b, *c; /* owned; each holds the largest operand in fp32 */
    size_t bytes;    /* of each */
    double peak[2];  /* fp32, bf16, all threads, floating-point operations per second */
    sgemm_fn sgemm;  /* NULL: no comparison */
} bench;

/* ---- limits ----------------------------------------------------------------------------------- */
typedef struct burn_run {
    const gemm_kernel *kernel;
    int64_t rounds;
    double done[CPU_MAX_THREADS];
} burn_run;

static void burn_task(void *ctx, int64_t i, int worker) {
    burn_run *r = ctx;
    r->done[i] = r->kernel->burn(r->rounds);
}

static double peak_of(const bench *b, const gemm_kernel *kernel) {
    burn_run r = { .kernel = kernel, .rounds = 2000000 };
    double best = 0;
    for (int rep = 0; rep < 5; rep++) {
        double start = bench_now(b->pool), done = 0;
        pool_run(b->pool, b->threads, burn_task, &r);
        double seconds = bench_now(b->pool) - start;
        for (int i = 0; i < b->threads; i++) done += r.done[i];
        best = MAX(best, done / seconds);
    }
    return best;
}

static void copy_task(void *ctx, int64_t i, int worker) {
    const bench *b = ctx;
    size_t each = b->bytes / (size_t)b->threads;
    memcpy((char *)b->b + each * (size_t)i, (char *)b->a + each * (size_t)i, each);
}

static double copy_bandwidth(bench *b) {
    double best = 0;
    for (int rep = 0; rep < 4; rep++) {
        double start = bench_now(b->pool);
        pool_run(b->pool, b->threads, copy_task, b);
        best = MAX(best, 2 * (double)b->bytes / (bench_now(b->pool) - start));
    }
    return best;
}

/* ---- GEMMs ------------------------------------------------------------------------------------ */
typedef struct pass {
    const char *name;
    bool ta, tb, grad; /* grad: fp32 result, accumulated */
} pass;
static const pass passes[] = {
    { "y = x w^T", false, true, false },
    { "dx = dy w", false, false, false },
    { "dw += dy^T x", true, false, true },
};

/* The GEMM of a pass through a layer of `in` inputs and `out` outputs. */
static gemm gemm_of(const bench *b, const pass *p, int64_t in, int64_t out, dtype dt) {
    gemm g = { .a = b->a, .b = b->b, .c = b->c, .at = dt, .bt = dt, .ct = dt };
    g.m = p->ta ? out : TOKENS;
    g.n = p->tb ? out : in;
    g.k = p->ta ? TOKENS : p->tb ? in : out;
    g.ta = p->ta;
    g.tb = p->tb;
    g.lda = g.ta ? g.m : g.k;
    g.ldb = g.tb ? g.k : g.n;
    g.ldc = g.n;
    if (p->grad) g.ct = DT_F32;
    g.accumulate = p->grad;
    return g;
}

static void call_blas(const bench *b, const gemm *g) {
    enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };
    b->sgemm(ROW_MAJOR, g->ta ? TRANSPOSED : PLAIN, g->tb ? TRANSPOSED : PLAIN, (int)g->m,
             (int)g->n, (int)g->k, 1, g->a, (int)g->lda, g->b, (int)g->ldb, g->accumulate, g->c,
             (int)g->ldc);
}

/* The best of a few runs: others may use the machine too. */
static double speed_of(const bench *b, const gemm *g, bool blas) {
    size_t bytes = b->isa->workspace(g, b->threads);
    void *workspace = NULL;
    bench_check(mem_map(bytes, &workspace));
    double flops = 2.0 * (double)g->m * (double)g->n * (double)g->k, best = 0;
    int reps = flops > 2e10 ? 3 : 12;
    for (int rep = 0; rep <= reps; rep++) {
        double start = bench_now(b->pool);
        if (blas)
            call_blas(b, g);
        else
            b->isa->run(g, b->pool, workspace, bytes);
        double seconds = bench_now(b->pool) - start;
        if (rep) best = MAX(best, flops / seconds); /* the first one warms up */
    }
    mem_unmap(workspace, bytes);
    return best;
}

static void print_table(bench *b, dtype dt, double peak, bool blas) {
    static const int64_t layer[][2] = { { 384, 384 },  { 384, 1536 }, { 768, 768 },  { 768, 2304 },
                                        { 768, 3072 }, { 3072, 768 }, { 768, VOCAB } };
    printf("\n%s%s, %d tokens, GFLOP/s (share of peak)\n%16s", dt_name(dt),
           blas ? " by the CBLAS" : "", TOKENS, "layer");
    for (size_t p = 0; p < COUNT_OF(passes); p++) printf("%18s", passes[p].name);
    printf("\n");
    for (size_t i = 0; i < COUNT_OF(layer); i++) {
        printf("%7lld -> %5lld", (long long)layer[i][0], (long long)layer[i][1]);
        for (size_t p = 0; p < COUNT_OF(passes); p++) {
            gemm g = gemm_of(b, &passes[p], layer[i][0], layer[i][1], dt);
            double speed = speed_of(b, &g, blas);
            printf("%11.1f (%3.0f%%)", speed * 1e-9, 100 * speed / peak);
            fflush(stdout);
        }
        printf("\n");
    }
}

/* ---- set-up ----------------------------------------------------------------------------------- */
/* Small bf16 values; pairs of them read as fp32 are finite too. */
static void fill(const bench *b) {
    enum { DISTINCT = 1 << 16 };
    rng_key key = rng_key_of(1, 1);
    uint16_t *first = b->a, *other = b->b;
    for (size_t i = 0; i < DISTINCT; i++) first[i] = f32_to_bf16(rng_uniform(key, i) - 0.5f);
    for (size_t i = DISTINCT; i < b->bytes / 2; i++) first[i] = first[i % DISTINCT];
    memcpy(other, first, b->bytes);
}

static sgemm_fn load_blas(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *symbol = library ? dlsym(library, "cblas_sgemm") : NULL;
    if (!symbol) bench_check(ERR("no cblas_sgemm in %s: %s", path, dlerror()));
    sgemm_fn fn;
    memcpy(&fn, &symbol, sizeof fn); /* ISO C has no cast from object to function pointers */
    return fn;
}

static const isa *choose_isa(const char *name) {
    const isa *best = NULL;
    for (size_t i = 0; i < COUNT_OF(isas); i++)
        if (cpu_has_isa(isas[i].name) && (!name || !strcmp(name, isas[i].name))) best = &isas[i];
    if (!best) {
        fprintf(stderr, "this processor has no %s; it has:", name);
        for (size_t i = 0; i < COUNT_OF(isas); i++)
            if (cpu_has_isa(isas[i].name)) fprintf(stderr, " %s", isas[i].name);
        fprintf(stderr, "\n");
        exit(1);
    }
    return best;
}

int main(int argc, char **argv) {
    const char *name = NULL, *blas = NULL, *only = NULL;
    int threads = 0;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--isa"))
            name = value;
        else if (!strcmp(argv[i], "--dtype"))
            only = value;
        else if (!strcmp(argv[i], "--threads"))
            threads = atoi(value);
        else if (!strcmp(argv[i], "--blas"))
            blas = value;
        else {
            fprintf(stderr,
                    "usage: %s [--isa NAME] [--dtype NAME] [--threads N] [--blas LIBRARY.so]\n",
                    argv[0]);
            return 1;
        }
    }
    bench b = { .isa = choose_isa(name), .pool = pool_new(threads) };
    b.threads = pool_size(b.pool);
    b.bytes = (size_t)MOST_ROWS * TOKENS * sizeof(float);
    void **buffers[] = { &b.a, &b.b, &b.c };
    for (size_t i = 0; i < COUNT_OF(buffers); i++) bench_check(mem_map(b.bytes, buffers[i]));
    fill(&b);
    b.peak[0] = peak_of(&b, b.isa->f32);
    b.peak[1] = peak_of(&b, *b.isa->bf16);
    printf("%s, %d threads: peak fp32 %.1f GFLOP/s, bf16 %.1f GFLOP/s; copy %.1f GB/s\n",
           b.isa->name, b.threads, b.peak[0] * 1e-9, b.peak[1] * 1e-9, copy_bandwidth(&b) * 1e-9);
    fill(&b);
    bool both = !only, f32 = both || dt_from_name(only) == DT_F32;
    if (f32) print_table(&b, DT_F32, b.peak[0], false);
    if (both || !f32) print_table(&b, DT_BF16, b.peak[1], false);
    if (blas) {
        b.sgemm = load_blas(blas);
        print_table(&b, DT_F32, b.peak[0], true);
    }
    for (size_t i = 0; i < COUNT_OF(buffers); i++) mem_unmap(*buffers[i], b.bytes);
    pool_free(b.pool);
    return 0;
}
