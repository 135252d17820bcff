/* Matrix products: cuts C into strips, strips into blocks of tiles, and K into stretches.
 *
 *     for each strip of C, at most STRIP x STRIP                  (bounds the workspace)
 *         for each stretch of K, at most STRETCH                  (likewise)
 *             pack A's rows and B's columns into panels           one task: a block of panels
 *             for each block of the strip                         one task: its panels in one L2
 *                 for each piece of the stretch, of kernel.kc     a panel of A and of B in one L1
 *                     for each panel of B, for each panel of A: kernel.tile
 *
 * A kernel that reads the rows of A where they lie needs only B packed. Where C has few rows a task
 * even packs the piece of B it needs for itself: blocks are tall, so that no piece is packed more
 * than twice or so, and nobody waits for panels or writes what other cores hold, which costs many
 * times the copy itself.
 *
 * A sum runs over the whole of K in one order whatever the cut of M and N, and the cuts of K depend
 * on K alone: the bits do not depend on the number of threads. Between pieces sums stay fp32: in C
 * itself when it is fp32, else beside the panels of the task; between stretches in the workspace.
 *
 * Workspace, each part aligned to 64 bytes:
 *
 *     | A panels | B panels | sums between stretches | scratch, one a thread |
 *
 *     scratch: | sums between pieces, or conversions | own panels of B | own panels of A |
 */
#include "kernel/kernel_internal.h"

enum { STRIP = 2048, STRETCH = 4096 };

typedef struct plan {
    const gemm *g;
    const gemm_kernel *kernel;
    gemm_side a, b;
    bool rows;                /* A is read where it lies */
    bool own;                 /* and tasks pack B themselves */
    int64_t mc, nc, kc;       /* a strip, a stretch: whole panels, whole groups */
    int64_t piece;            /* of a stretch */
    int64_t block_m, block_n; /* of a task, whole panels */
    size_t element;           /* of the panels, bytes */
    bool fp32_plain;          /* tiles may be summed in C directly */
    bool partial;             /* sums between stretches need the workspace */
    size_t a_bytes, b_bytes, partial_bytes, thread_bytes;
    size_t own_b, own_a;     /* in a thread's scratch */
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

/* A task of packing is some panels over some of K: small enough for every thread to have its share,
 * wide enough to read whole cache lines of an operand that lies across. */
enum { PACK_ROWS = 96, PACK_K = 512, PACK_LEAST_K = 64 };

/* Rows of A or B in one task: whole panels. */
static int64_t pack_rows(int height) { return round_up(PACK_ROWS, height); }

/* Blocks, strips and pieces. Where tasks pack all they need, C is one strip and K one stretch. */
static void plan_cut(plan *p) {
    const gemm *g = p->g;
    const gemm_kernel *kernel = p->kernel;
    int64_t whole_steps = g->k / kernel->ku * kernel->ku;
    p->rows = kernel->tile_rows && !g->ta;
    p->own = p->rows && g->m <= 2 * kernel->rows_m;
    p->block_m = p->own ? kernel->rows_m : kernel->block_m / kernel->mr * kernel->mr;
    p->block_n = p->own ? kernel->nr : kernel->block_n / kernel->nr * kernel->nr;
    p->nc = part_size(g->n, p->own ? g->n : STRIP, kernel->nr);
    p->kc = part_size(g->k, p->own ? g->k : STRETCH, kernel->ku);
    p->mc = part_size(g->m, p->rows && p->kc >= g->k ? g->m : STRIP, kernel->mr);
    int64_t cut = p->rows ? MAX(MIN(whole_steps, p->kc), kernel->ku) : p->kc;
    p->piece = part_size(cut, kernel->kc, kernel->ku);
}

static void plan_scratch(plan *p) {
    const gemm *g = p->g;
    const gemm_kernel *kernel = p->kernel;
    /* packing for all and tiles use a thread's scratch in turn */
    if (p->piece < p->kc && !p->partial)
        p->thread_bytes = (size_t)(p->block_m * p->block_n) * sizeof(float);
    if (g->at != kernel->dt || g->bt != kernel->dt) {
        int64_t slice = round_up(PACK_K, kernel->ku);
        size_t for_a = CPU(gemm_convert_bytes)(pack_rows(kernel->mr), slice, kernel->mr);
        size_t for_b = CPU(gemm_convert_bytes)(pack_rows(kernel->nr), slice, kernel->nr);
        p->thread_bytes = MAX(p->thread_bytes, MAX(for_a, for_b));
    }
    p->thread_bytes = align_up(p->thread_bytes, 64);
    if (!p->rows) return;
    p->own_b = p->thread_bytes;
    p->own_a = p->own_b + (size_t)(p->own ? p->block_n * p->piece : 0) * p->element;
    int64_t last_rows = kernel->mr * p->piece, last_step = p->block_m * kernel->ku;
    size_t a_bytes = (size_t)MAX(last_rows, last_step) * p->element;
    p->thread_bytes = align_up(p->own_a + a_bytes, 64);
}

static plan plan_make(const gemm *g) {
    bool bf16 = g->at == DT_BF16 && g->bt == DT_BF16;
    const gemm_kernel *kernel = bf16 ? CPU(gemm_bf16_kernel) : &CPU(gemm_f32_kernel);
    plan p = { .g = g, .kernel = kernel, .element = dt_size(kernel->dt) };
    p.a = (gemm_side){ g->a, g->at, g->lda, g->ta };
    p.b = (gemm_side){ g->b, g->bt, g->ldb, !g->tb };
    plan_cut(&p);
    bool plain_alpha = g->alpha == 0 || g->alpha == 1;
    p.fp32_plain = g->ct == DT_F32 && !g->bias && !g->gelu && plain_alpha;
    p.partial = p.kc < g->k && (g->ct != DT_F32 || g->gelu);
    p.a_bytes = p.rows ? 0 : align_up((size_t)(p.mc * p.kc) * p.element, 64);
    p.b_bytes = p.own ? 0 : align_up((size_t)(p.nc * p.kc) * p.element, 64);
    p.partial_bytes = p.partial ? align_up((size_t)(p.mc * p.nc) * sizeof(float), 64) : 0;
    plan_scratch(&p);
    return p;
}

/* Smaller blocks when there are too few for the threads to share evenly. */
static void plan_share(plan *p, int threads) {
    int64_t mr = p->kernel->mr, nr = p->kernel->nr;
    while (div_up(p->mc, p->block_m) * div_up(p->nc, p->block_n) < 3 * threads) {
        bool tall = p->block_m > p->block_n;
        int64_t unit = tall ? mr : nr, *longer = tall ? &p->block_m : &p->block_n;
        if (*longer < 4 * unit) return;
        *longer = round_up(*longer / 2, unit);
    }
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

/* Packs rows [from, from + rows) of the strip's A or B over [k, k + length) of the stretch into
 * `out`, whose panels are `stride` of K long. */
static void pack(const plan *p, bool is_a, int64_t from, int64_t rows, int64_t k, int64_t length,
                 int64_t stride, char *out, int worker) {
    const gemm_kernel *kn = p->kernel;
    gemm_panels to = { .dt = kn->dt, .length = stride, .k_pad = length, .out = out };
    to.height = is_a ? kn->mr : kn->nr;
    to.g = is_a ? kn->ga : kn->gb;
    to.convert = (float *)(void *)(p->scratch + p->thread_bytes * (size_t)worker);
    int64_t r0 = (is_a ? p->m0 : p->n0) + from;
    CPU(gemm_pack)(is_a ? &p->a : &p->b, &to, r0, rows, p->k0 + k, MIN(length, p->kn - k));
}

typedef struct pack_run {
    plan *p;
    int64_t slice;   /* of K */
    int64_t slices;  /* in the stretch */
    int64_t a_tasks; /* the rest are B's */
} pack_run;

static void pack_task(void *ctx, int64_t i, int worker) {
    const pack_run *r = ctx;
    const plan *p = r->p;
    bool is_a = i < r->a_tasks;
    if (!is_a) i -= r->a_tasks;
    int height = is_a ? p->kernel->mr : p->kernel->nr;
    int64_t many = pack_rows(height), from = i / r->slices * many, k = i % r->slices * r->slice;
    int64_t rows = MIN(many, (is_a ? p->mn : p->nn) - from);
    char *out = (is_a ? p->pa : p->pb) + (size_t)(from * p->k_pad + k * height) * p->element;
    pack(p, is_a, from, rows, k, MIN(r->slice, p->k_pad - k), p->k_pad, out, worker);
}

/* How much of K one task packs: less when there are few blocks for many threads. */
static int64_t pack_slice(const plan *p, int64_t blocks, int threads) {
    int64_t slice = PACK_K;
    while (blocks * div_up(p->kn, slice) < 2 * threads && slice > PACK_LEAST_K) slice /= 2;
    return round_up(slice, p->kernel->ku);
}

static void pack_for_all(plan *p, pool *pl, bool a_is_packed) {
    int64_t a_blocks = a_is_packed || p->rows ? 0 : div_up(p->mn, pack_rows(p->kernel->mr));
    int64_t blocks = a_blocks + div_up(p->nn, pack_rows(p->kernel->nr));
    pack_run run = { .p = p, .slice = pack_slice(p, blocks, pool_size(pl)) };
    run.slices = div_up(p->kn, run.slice);
    run.a_tasks = a_blocks * run.slices;
    pool_run(pl, blocks * run.slices, pack_task, &run);
}

/* ---- tiles ----------------------------------------------------------------------------------- */

typedef struct block {
    const plan *p;
    int64_t i0, i1, j0, j1; /* of the strip */
    int64_t k, length;      /* the piece of the stretch at hand */
    char *own;              /* the thread's scratch */
} block;

/* Whether panel i of A can be read where it lies: over the edges it cannot. */
static bool lies(const block *b, int64_t i) {
    const plan *p = b->p;
    return p->rows && i + p->kernel->mr <= p->mn && b->k + b->length <= p->kn;
}

/* What a task packs for itself: its B, if nobody did, and the panels of A that do not lie ready. */
static void pack_own(const block *b, int worker) {
    const plan *p = b->p;
    char *own_b = b->own + p->own_b, *own_a = b->own + p->own_a;
    int64_t i = b->i0;
    while (i < b->i1 && lies(b, i)) i += p->kernel->mr;
    if (p->own) pack(p, false, b->j0, b->j1 - b->j0, b->k, b->length, b->length, own_b, worker);
    if (i < b->i1) pack(p, true, i, b->i1 - i, b->k, b->length, b->length, own_a, worker);
}

static const char *a_panel(const block *b, int64_t i) {
    const plan *p = b->p;
    int64_t shared = i * p->k_pad + b->k * p->kernel->mr;
    if (!p->rows) return p->pa + (size_t)shared * p->element;
    bool last_step = b->k + b->length > p->kn; /* else the only one packed is the last panel */
    return b->own + p->own_a + (size_t)(last_step ? (i - b->i0) * b->length : 0) * p->element;
}

static const char *b_panel(const block *b, int64_t j) {
    const plan *p = b->p;
    int64_t shared = j * p->k_pad + b->k * p->kernel->nr;
    if (!p->own) return p->pb + (size_t)shared * p->element;
    return b->own + p->own_b + (size_t)((j - b->j0) * b->length) * p->element;
}

/* c (+)= panels i of A and j of B over the piece. */
static void multiply(const block *b, int64_t i, int64_t j, float *c, int64_t ldc, bool add) {
    const plan *p = b->p;
    const gemm_kernel *kn = p->kernel;
    if (lies(b, i)) {
        int64_t lda = p->g->lda, at = (p->m0 + i) * lda + p->k0 + b->k;
        const char *a = (const char *)p->g->a + (size_t)at * p->element;
        kn->tile_rows(b->length, a, lda, b_panel(b, j), c, ldc, add);
    } else
        kn->tile(b->length, a_panel(b, i), b_panel(b, j), c, ldc, add);
}

/* One tile over the piece. `sums`: where this tile's wait for the next; NULL: there is but one. */
static void one_tile(const block *b, int64_t i, int64_t j, float *sums) {
    const plan *p = b->p;
    const gemm *g = p->g;
    const gemm_kernel *kn = p->kernel;
    bool done = b->k + b->length == p->k_pad, first = p->k0 == 0;
    gemm_tile t = { .mr = kn->mr, .nr = kn->nr, .row = p->m0 + i, .col = p->n0 + j };
    t.rows = MIN(kn->mr, p->mn - i);
    t.cols = MIN(kn->nr, p->nn - j);
    if (p->fp32_plain && t.rows == kn->mr && t.cols == kn->nr) {
        multiply(b, i, j, (float *)g->c + t.row * g->ldc + t.col, g->ldc,
                 g->accumulate || !first || b->k > 0);
        return;
    }
    _Alignas(64) float local[GEMM_MAX_TILE];
    t.t = p->partial ? p->sums + i * p->nc + j * kn->mr : sums ? sums : local;
    t.add = g->accumulate || (!first && !p->partial);
    t.bias = first || p->partial;
    multiply(b, i, j, t.t, kn->nr, b->k > 0 || (p->partial && !first));
    bool last = p->k0 + p->kn == g->k;
    if (done && (last || !p->partial)) CPU(gemm_store)(g, &t);
}

/* The next piece: where A is read as it lies, what is no whole step is one of its own. */
static int64_t piece_length(const plan *p, int64_t k) {
    int64_t whole = p->rows ? p->kn / p->kernel->ku * p->kernel->ku : p->k_pad;
    return k < whole ? MIN(p->piece, whole - k) : p->k_pad - k;
}

static void tiles_task(void *ctx, int64_t task, int worker) {
    const plan *p = ctx;
    const gemm_kernel *kn = p->kernel;
    int64_t across = div_up(p->nn, p->block_n), tile = (int64_t)kn->mr * kn->nr;
    block b = { .p = p, .own = p->scratch + p->thread_bytes * (size_t)worker };
    b.i0 = task / across * p->block_m, b.i1 = MIN(b.i0 + p->block_m, p->mn);
    b.j0 = task % across * p->block_n, b.j1 = MIN(b.j0 + p->block_n, p->nn);
    bool waits = piece_length(p, 0) < p->k_pad && !p->partial;
    if (kn->enter) kn->enter();
    for (; b.k < p->k_pad; b.k += b.length) {
        b.length = piece_length(p, b.k);
        if (p->rows) pack_own(&b, worker);
        float *sums = waits ? (float *)(void *)b.own : NULL;
        for (int64_t j = b.j0; j < b.j1; j += kn->nr)
            for (int64_t i = b.i0; i < b.i1; i += kn->mr) {
                one_tile(&b, i, j, sums);
                if (waits) sums += tile;
            }
    }
    if (kn->leave) kn->leave();
}

static void run_stretch(plan *p, pool *pl, bool a_is_packed) {
    if (!p->own) pack_for_all(p, pl, a_is_packed);
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
