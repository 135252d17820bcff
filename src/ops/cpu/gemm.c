/* Matrix products: cuts C into strips, strips into blocks of tiles, and K into stretches.
 *
 *     for each strip of C, at most STRIP x STRIP                  (bounds the workspace)
 *         for each stretch of K, at most STRETCH                  (likewise)
 *             pack A's rows and B's columns into panels           one task: a block of panels
 *             for each block of the strip                         one task: its panels in one L2
 *                 for each piece of the stretch, of kernel.kc     a panel of A and of B in one L1
 *                     for each panel of B, for each panel of A: kernel.tile
 *
 * A sum runs over the whole of K in one order whatever the cut of M and N, and the cuts of K depend
 * on K alone: the bits do not depend on the number of threads. Between pieces sums stay fp32: in C
 * itself when it is fp32, else beside the panels of the task; between stretches in the workspace.
 *
 * Workspace, each part aligned to 64 bytes:
 *
 *     | A panels | B panels | sums between stretches | sums and conversion scratch, one a thread |
 */
#include "kernel/kernel_internal.h"

enum { STRIP = 2048, STRETCH = 4096 };

typedef struct plan {
    const gemm *g;
    const gemm_kernel *kernel;
    gemm_side a, b;
    int64_t mc, nc, kc;       /* a strip, a stretch: whole panels, whole groups */
    int64_t piece;            /* of a stretch */
    int64_t block_m, block_n; /* of a task, whole panels */
    size_t element;           /* of the panels, bytes */
    bool fp32_plain;          /* tiles may be summed in C directly */
    bool partial;             /* sums between stretches need the workspace */
    size_t a_bytes, b_bytes, partial_bytes, thread_bytes;
    char *pa, *pb, *scratch; /* scratch: thread_bytes a thread */
    float *sums;
    int64_t m0, n0, k0, mn, nn, kn, k_pad; /* the strip and stretch at hand */
} plan;

static int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t round_up(int64_t a, int64_t to) { return div_up(a, to) * to; }

/* `total` in equal parts of at most `most`, each a multiple of `unit`. */
static int64_t part_size(int64_t total, int64_t most, int64_t unit) {
    return round_up(div_up(total, div_up(total, most)), unit);
}

/* A task of packing is some panels over some of K: small enough for every thread to have its share, wide enough
 * to read whole cache lines of an operand that lies across. */
enum { PACK_ROWS = 96, PACK_K = 512 };

/* Rows of A or B in one task: whole panels. */
static int64_t pack_rows(int height) { return round_up(PACK_ROWS, height); }

static plan plan_make(const gemm *g) {
    bool bf16 = g->at == DT_BF16 && g->bt == DT_BF16;
    const gemm_kernel *kernel = bf16 ? CPU(gemm_bf16_kernel) : &CPU(gemm_f32_kernel);
    plan p = { .g = g, .kernel = kernel };
    p.a = (gemm_side){ g->a, g->at, g->lda, g->ta };
    p.b = (gemm_side){ g->b, g->bt, g->ldb, !g->tb };
    p.mc = part_size(g->m, STRIP, kernel->mr);
    p.nc = part_size(g->n, STRIP, kernel->nr);
    p.kc = part_size(g->k, STRETCH, kernel->ku);
    p.piece = part_size(p.kc, kernel->kc, kernel->ku);
    p.block_m = kernel->block_m / kernel->mr * kernel->mr;
    p.block_n = kernel->block_n / kernel->nr * kernel->nr;
    bool plain_alpha = g->alpha == 0 || g->alpha == 1;
    p.fp32_plain = g->ct == DT_F32 && !g->bias && !g->gelu && plain_alpha;
    p.partial = p.kc < g->k && (g->ct != DT_F32 || g->gelu);

    size_t element = p.element = dt_size(kernel->dt);
    p.a_bytes = align_up((size_t)(p.mc * p.kc) * element, 64);
    p.b_bytes = align_up((size_t)(p.nc * p.kc) * element, 64);
    p.partial_bytes = p.partial ? align_up((size_t)(p.mc * p.nc) * sizeof(float), 64) : 0;
    /* packing and tiles use a thread's scratch in turn */
    if (p.piece < p.kc && !p.partial)
        p.thread_bytes = (size_t)(p.block_m * p.block_n) * sizeof(float);
    if (g->at != kernel->dt || g->bt != kernel->dt) {
        int64_t slice = round_up(PACK_K, kernel->ku);
        size_t for_a = CPU(gemm_convert_bytes)(pack_rows(kernel->mr), slice, kernel->mr);
        size_t for_b = CPU(gemm_convert_bytes)(pack_rows(kernel->nr), slice, kernel->nr);
        p.thread_bytes = MAX(p.thread_bytes, MAX(for_a, for_b));
    }
    p.thread_bytes = align_up(p.thread_bytes, 64);
    return p;
}

/* Smaller blocks when there are too few for the threads to share evenly. */
static void plan_share(plan *p, int threads) {
    int64_t down = div_up(p->mc, p->block_m), nr = p->kernel->nr;
    while (down * div_up(p->nc, p->block_n) < 4 * threads && p->block_n >= 4 * nr)
        p->block_n = round_up(p->block_n / 2, nr);
}

static size_t plan_bytes(const plan *p, int threads) {
    return p->a_bytes + p->b_bytes + p->partial_bytes + p->thread_bytes * (size_t)threads + 64;
}

gemm CPU(gemm_of)(const tensor *a, bool ta, const tensor *b, bool tb, const tensor *c) {
    gemm g = { .m = a->dim[ta], .k = a->dim[!ta], .n = b->dim[!tb], .ta = ta, .tb = tb };
    BUG_IF(a->ndim != 2 || b->ndim != 2 || b->dim[tb] != g.k);
    g.a = a->data, g.at = a->dt, g.lda = a->dim[1];
    g.b = b->data, g.bt = b->dt, g.ldb = b->dim[1];
    g.c = c->data, g.ct = c->dt, g.ldc = g.n;
    return g;
}

size_t CPU(gemm_workspace)(const gemm *g, int threads) {
    if (g->m <= 0 || g->n <= 0 || g->k <= 0) return 0;
    if (CPU(gemm_is_row)(g)) return CPU(gemm_row_workspace)(g, threads);
    plan p = plan_make(g);
    return plan_bytes(&p, threads);
}

/* ---- packing --------------------------------------------------------------------------------- */

typedef struct pack_run {
    plan *p;
    int64_t slice;   /* of K */
    int64_t slices;  /* in the stretch */
    int64_t a_tasks; /* the rest are B's */
} pack_run;

static void pack_task(void *ctx, int64_t i, int worker) {
    const pack_run *r = ctx;
    const plan *p = r->p;
    const gemm_kernel *kn = p->kernel;
    bool is_a = i < r->a_tasks;
    if (!is_a) i -= r->a_tasks;
    int height = is_a ? kn->mr : kn->nr;
    int64_t many = pack_rows(height), from = i / r->slices * many, k = i % r->slices * r->slice;
    int64_t rows = MIN(many, (is_a ? p->mn : p->nn) - from);
    gemm_panels to = { .dt = kn->dt, .height = height, .length = p->k_pad };
    to.k_pad = MIN(r->slice, p->k_pad - k);
    to.g = is_a ? kn->ga : kn->gb;
    to.out = (is_a ? p->pa : p->pb) + (size_t)(from * p->k_pad + k * height) * p->element;
    to.convert = (float *)(void *)(p->scratch + p->thread_bytes * (size_t)worker);
    int64_t r0 = (is_a ? p->m0 : p->n0) + from;
    CPU(gemm_pack)(is_a ? &p->a : &p->b, &to, r0, rows, p->k0 + k, MIN(r->slice, p->kn - k));
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* Panels i of A and j of B over the piece of the stretch from k on. `sums`: where this tile's wait
 * for the next piece; NULL: there is but one. */
static void one_tile(const plan *p, int64_t i, int64_t j, int64_t k, float *sums) {
    const gemm *g = p->g;
    const gemm_kernel *kn = p->kernel;
    const char *pa = p->pa + (size_t)(i * p->k_pad + k * kn->mr) * p->element;
    const char *pb = p->pb + (size_t)(j * p->k_pad + k * kn->nr) * p->element;
    int64_t length = MIN(p->piece, p->k_pad - k);
    bool first = p->k0 == 0, last = p->k0 + p->kn == g->k && k + length == p->k_pad;
    gemm_tile t = { .mr = kn->mr, .nr = kn->nr, .row = p->m0 + i, .col = p->n0 + j };
    t.rows = MIN(kn->mr, p->mn - i);
    t.cols = MIN(kn->nr, p->nn - j);
    if (p->fp32_plain && t.rows == kn->mr && t.cols == kn->nr) {
        kn->tile(length, pa, pb, (float *)g->c + t.row * g->ldc + t.col, g->ldc,
                 g->accumulate || !first || k > 0);
        return;
    }
    _Alignas(64) float local[GEMM_MAX_TILE];
    t.t = p->partial ? p->sums + i * p->nc + j * kn->mr : sums ? sums : local;
    t.add = g->accumulate || (!first && !p->partial);
    t.bias = first || p->partial;
    kn->tile(length, pa, pb, t.t, kn->nr, k > 0 || (p->partial && !first));
    bool done = k + length == p->k_pad;
    if (p->partial ? last : done) CPU(gemm_store)(g, &t);
}

static void tiles_task(void *ctx, int64_t task, int worker) {
    const plan *p = ctx;
    const gemm_kernel *kn = p->kernel;
    int64_t across = div_up(p->nn, p->block_n), tile = (int64_t)kn->mr * kn->nr;
    int64_t i0 = task / across * p->block_m, j0 = task % across * p->block_n;
    int64_t i1 = MIN(i0 + p->block_m, p->mn), j1 = MIN(j0 + p->block_n, p->nn);
    bool waits = p->piece < p->k_pad && !p->partial;
    float *sums = (float *)(void *)(p->scratch + p->thread_bytes * (size_t)worker);
    if (kn->enter) kn->enter();
    for (int64_t k = 0; k < p->k_pad; k += p->piece) {
        float *at = waits ? sums : NULL;
        for (int64_t j = j0; j < j1; j += kn->nr)
            for (int64_t i = i0; i < i1; i += kn->mr) {
                one_tile(p, i, j, k, at);
                if (waits) at += tile;
            }
    }
    if (kn->leave) kn->leave();
}

static void run_stretch(plan *p, pool *pl, bool a_is_packed) {
    const gemm_kernel *kn = p->kernel;
    pack_run pack = { .p = p, .slice = round_up(PACK_K, kn->ku) };
    pack.slices = div_up(p->kn, pack.slice);
    if (!a_is_packed) pack.a_tasks = div_up(p->mn, pack_rows(kn->mr)) * pack.slices;
    pool_run(pl, pack.a_tasks + div_up(p->nn, pack_rows(kn->nr)) * pack.slices, pack_task, &pack);
    pool_run(pl, div_up(p->mn, p->block_m) * div_up(p->nn, p->block_n), tiles_task, p);
}

static void run_strip(plan *p, pool *pl) {
    for (p->k0 = 0; p->k0 < p->g->k; p->k0 += p->kc) {
        p->kn = MIN(p->kc, p->g->k - p->k0);
        p->k_pad = round_up(p->kn, p->kernel->ku);
        run_stretch(p, pl, p->n0 > 0 && p->kc >= p->g->k);
    }
}

void CPU(gemm_run)(const gemm *g, pool *pl, void *workspace, size_t workspace_bytes) {
    if (g->m <= 0 || g->n <= 0) return;
    BUG_IF(g->k <= 0 || workspace_bytes < CPU(gemm_workspace)(g, pool_size(pl)));
    if (CPU(gemm_is_row)(g)) {
        CPU(gemm_row_run)(g, pl, workspace);
        return;
    }
    plan p = plan_make(g);
    plan_share(&p, pool_size(pl));
    p.pa = (char *)align_up((uintptr_t)workspace, 64);
    p.pb = p.pa + p.a_bytes;
    p.sums = (float *)(void *)(p.pb + p.b_bytes);
    p.scratch = p.pb + p.b_bytes + p.partial_bytes;
    for (p.m0 = 0; p.m0 < g->m; p.m0 += p.mc)
        for (p.n0 = 0; p.n0 < g->n; p.n0 += p.nc) {
            p.mn = MIN(p.mc, g->m - p.m0);
            p.nn = MIN(p.nc, g->n - p.n0);
            run_strip(&p, pl);
        }
}
