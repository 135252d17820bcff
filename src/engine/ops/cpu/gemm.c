/* GEMM. Splits C into strips, strips into blocks of tiles, and K into ranges, so that every level of the
 * loop nest works on what fits one level of the memory hierarchy (as in GotoBLAS and BLIS):
 *
 *     for each strip of C, at most STRIP x STRIP                  (bounds the workspace)
 *         for each range of K, at most K_RANGE                    (likewise)
 *             pack A's rows and B's columns into panels           one task: some panels
 *             for each block of the strip                         one task: its panels fit one L2
 *                 for each piece of the range, of kernel.kc       a panel of A and of B fit one L1
 *                     for each panel of B, for each panel of A: kernel.tile
 *
 * A panel is mr rows of A or nr columns of B, in the order in which the kernel reads them
 * (kernel/kernel_internal.h). Packing costs one pass over an operand and saves the kernel all strides.
 *
 * Two shortcuts. A kernel with tile_rows (AMX) reads rows of A directly from memory, so that only B is
 * packed (a_in_place). Where C then has few rows, each task even packs the part of B that it needs by
 * itself (task_packs_b): blocks are tall, so that no part is packed more than about twice, and no task
 * waits for panels or writes cache lines that other cores hold, which costs many times the copy itself.
 * And where A is transposed and the kernel asks for it (the weight gradient on AMX), tasks pack both operands
 * for themselves (task_packs_a): every part is packed several times, by blocks that are chosen to be few,
 * but into the thread's own memory. A GEMM with few rows of A goes to gemm_row.c.
 *
 * Deterministic: each element of C is summed over K in one order, however M and N are split, and the
 * split of K depends on K alone, so that the result does not depend on the number of threads. Between
 * pieces sums stay in fp32: in C itself when it is fp32, else in the task's scratch; between ranges of K
 * in the workspace.
 *
 * Workspace, each part aligned to 64 bytes:
 *
 *     | A panels | B panels | sums between ranges | scratch, one per thread |
 *
 *     scratch: | sums between pieces, or conversions | the task's panels of B | its panels of A |
 */
#include "kernel/kernel_internal.h"

enum { STRIP = 2048, K_RANGE = 4096 };

/* A GEMM with all the sizes that follow from it, and where the loops are. */
typedef struct gemm_job {
    const gemm *g;
    const gemm_kernel *kernel;
    gemm_side a, b;
    bool a_in_place;          /* rows of A are read from memory, not packed */
    bool task_packs_a;        /* each task packs its own panels of A, and of B */
    bool task_packs_b;        /* each task packs its own panels of B */
    int64_t mc, nc, kc;       /* size of a strip, of a range of K: whole panels, whole groups */
    int64_t piece;            /* of a range of K */
    int64_t block_m, block_n; /* of a task, whole panels */
    size_t element;           /* bytes of an element of the panels */
    bool sums_in_c;           /* tiles may be summed in C directly */
    bool partial;             /* sums between ranges need the workspace */
    size_t a_bytes, b_bytes, partial_bytes, thread_bytes;
    size_t own_b, own_a;     /* offsets of a task's own panels in its scratch */
    char *pa, *pb, *scratch; /* scratch: thread_bytes per thread */
    float *sums;
    int64_t m0, n0, k0, mn, nn, kn, k_pad; /* the current strip and range of K */
} gemm_job;

static int64_t round_up(int64_t a, int64_t to) { return ceil_div(a, to) * to; }

/* @return the size of equal parts of `total`, each at most `most` and a multiple of `unit`. */
static int64_t equal_part(int64_t total, int64_t most, int64_t unit) {
    return round_up(ceil_div(total, ceil_div(total, most)), unit);
}

/* A packing task is some panels over a part of K: small enough to give every thread a share, wide enough
 * to read whole cache lines of an operand whose rows run across K. */
enum { PACK_ROWS = 96, PACK_K = 512, PACK_LEAST_K = 64 };
/* Packing a panel of A or of B, beside multiplying one tile over the same stretch of K. */
static const double OWN_A_COST = 0.7, OWN_B_COST = 0.3;

/* Rows of A (columns of B) per packing task: whole panels. */
static int64_t pack_task_rows(int height) { return round_up(PACK_ROWS, height); }

/* Sizes of blocks, strips and pieces. Where tasks pack B, C is one strip and K one range. */
static void choose_blocks(gemm_job *p) {
    const gemm *g = p->g;
    const gemm_kernel *kernel = p->kernel;
    int64_t whole_steps = g->k / kernel->ku * kernel->ku;
    p->a_in_place = kernel->tile_rows && !g->ta;
    p->task_packs_a = kernel->own_k && g->ta;
    p->task_packs_b = p->task_packs_a || (p->a_in_place && g->m <= 2 * kernel->rows_m);
    bool column = p->task_packs_b && !p->task_packs_a; /* blocks are one panel of B wide */
    p->block_m = column ? kernel->rows_m : kernel->block_m / kernel->mr * kernel->mr;
    p->block_n = column ? kernel->nr : kernel->block_n / kernel->nr * kernel->nr;
    p->nc = equal_part(g->n, p->task_packs_b ? g->n : STRIP, kernel->nr);
    p->kc = equal_part(g->k, p->task_packs_b ? g->k : K_RANGE, kernel->ku);
    bool whole = p->task_packs_a || (p->a_in_place && p->kc >= g->k);
    p->mc = equal_part(g->m, whole ? g->m : STRIP, kernel->mr);
    int64_t range = p->a_in_place ? MAX(MIN(whole_steps, p->kc), kernel->ku) : p->kc;
    p->piece = equal_part(range, p->task_packs_a ? kernel->own_k : kernel->kc, kernel->ku);
}

static void size_scratch(gemm_job *p) {
    const gemm *g = p->g;
    const gemm_kernel *kernel = p->kernel;
    /* packing tasks and tile tasks use a thread's scratch in turn */
    if (p->piece < p->kc && !p->partial)
        p->thread_bytes = (size_t)(p->block_m * p->block_n) * sizeof(float);
    if (g->at != kernel->dt || g->bt != kernel->dt) {
        int64_t slice = round_up(PACK_K, kernel->ku);
        size_t for_a = CPU(gemm_convert_bytes)(pack_task_rows(kernel->mr), slice, kernel->mr);
        size_t for_b = CPU(gemm_convert_bytes)(pack_task_rows(kernel->nr), slice, kernel->nr);
        p->thread_bytes = MAX(p->thread_bytes, MAX(for_a, for_b));
    }
    p->thread_bytes = align_up(p->thread_bytes, 64);
    if (!p->a_in_place && !p->task_packs_a) return;
    p->own_b = p->thread_bytes;
    p->own_a = p->own_b + (size_t)(p->task_packs_b ? p->block_n * p->piece : 0) * p->element;
    int64_t last_rows = kernel->mr * p->piece, last_step = p->block_m * kernel->ku;
    int64_t most = p->task_packs_a ? p->block_m * p->piece : MAX(last_rows, last_step);
    size_t a_bytes = (size_t)most * p->element;
    p->thread_bytes = align_up(p->own_a + a_bytes, 64);
}

static gemm_job gemm_job_of(const gemm *g) {
    bool bf16 = g->at == DT_BF16 && g->bt == DT_BF16;
    const gemm_kernel *kernel = bf16 ? CPU(gemm_bf16_kernel) : &CPU(gemm_f32_kernel);
    gemm_job p = { .g = g, .kernel = kernel, .element = dt_size(kernel->dt) };
    p.a = (gemm_side){ g->a, g->at, g->lda, g->ta };
    p.b = (gemm_side){ g->b, g->bt, g->ldb, !g->tb };
    choose_blocks(&p);
    bool plain_alpha = g->alpha == 0 || g->alpha == 1;
    p.sums_in_c = g->ct == DT_F32 && !g->bias && !g->gelu && plain_alpha;
    p.partial = p.kc < g->k && (g->ct != DT_F32 || g->gelu);
    p.a_bytes =
        p.a_in_place || p.task_packs_a ? 0 : align_up((size_t)(p.mc * p.kc) * p.element, 64);
    p.b_bytes = p.task_packs_b ? 0 : align_up((size_t)(p.nc * p.kc) * p.element, 64);
    p.partial_bytes = p.partial ? align_up((size_t)(p.mc * p.nc) * sizeof(float), 64) : 0;
    size_scratch(&p);
    return p;
}

/* The best blocks for tasks that pack both operands: no larger than the ones there is scratch for. The time of blocks of
 * m x n is estimated in multiplications of tiles: as many rounds as the busiest thread has tasks, each of which also
 * packs its panels. */
static void choose_own_blocks(gemm_job *p, int threads) {
    int64_t mr = p->kernel->mr, nr = p->kernel->nr, most_m = p->block_m, most_n = p->block_n;
    double best = -1;
    for (int64_t m = mr; m <= most_m; m += mr)
        for (int64_t n = nr; n <= most_n; n += nr) {
            int64_t tasks = ceil_div(p->mc, m) * ceil_div(p->nc, n);
            double down = (double)(m / mr), across = (double)(n / nr);
            double each = down * across + (OWN_A_COST * down + OWN_B_COST * across);
            double cost = (double)ceil_div(tasks, threads) * each;
            if (best >= 0 && cost >= best) continue;
            best = cost;
            p->block_m = m;
            p->block_n = n;
        }
}

/* Halves blocks until there are enough for the threads to share evenly. */
static void shrink_blocks(gemm_job *p, int threads) {
    int64_t mr = p->kernel->mr, nr = p->kernel->nr;
    if (p->task_packs_a) {
        choose_own_blocks(p, threads);
        return;
    }
    while (ceil_div(p->mc, p->block_m) * ceil_div(p->nc, p->block_n) < 3 * threads) {
        bool tall = p->block_m > p->block_n;
        int64_t unit = tall ? mr : nr, *longer = tall ? &p->block_m : &p->block_n;
        if (*longer < 4 * unit) return;
        *longer = round_up(*longer / 2, unit);
    }
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
    gemm_job p = gemm_job_of(g);
    return p.a_bytes + p.b_bytes + p.partial_bytes + p.thread_bytes * (size_t)threads + 64;
}

/* Blocks are largest at the most rows of each way to run: by rows, by columns of blocks, in one strip, as they are. */
size_t CPU(gemm_workspace_rows)(const gemm *g, int threads) {
    gemm_job p = gemm_job_of(g);
    int64_t rows[] = { 1, 2 * p.kernel->rows_m, STRIP, g->m };
    size_t most = 0;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        gemm fewer = *g;
        fewer.m = MIN(rows[i], g->m);
        most = MAX(most, CPU(gemm_workspace)(&fewer, threads));
    }
    return most;
}

/* Each part at its largest: parts of m and k are at most as long as those of the largest sizes,
 * rounded. */
size_t CPU(gemm_workspace_most)(const gemm *g, int threads) {
    gemm_job p = gemm_job_of(g);
    const gemm_kernel *kn = p.kernel;
    int64_t mc = round_up(MIN(g->m, STRIP), kn->mr), nc = round_up(MIN(g->n, STRIP), kn->nr);
    int64_t kc = round_up(MIN(g->k, K_RANGE), kn->ku);
    int64_t piece = round_up(MAX(kn->kc, kn->own_k), kn->ku);
    int64_t block_m = MAX(kn->rows_m, kn->block_m), block_n = MAX(kn->nr, kn->block_n);
    size_t thread = (size_t)(block_m * block_n) * sizeof(float) + p.thread_bytes +
                    (size_t)((block_n + block_m) * piece + block_m * kn->ku) * p.element + 3 * 64;
    size_t shared = (size_t)((mc + nc) * kc) * p.element + (size_t)(mc * nc) * sizeof(float);
    size_t row = CPU(gemm_row_workspace)(g, threads);
    return MAX(row, shared + thread * (size_t)threads + 4 * 64);
}

/* ---- packing --------------------------------------------------------------------------------- */

/* Packs rows [from, from + rows) of the strip's A or B over [k, k + length) of the range of K into `out`,
 * whose panels are `stride` of K long. */
static void pack_panels(const gemm_job *p, bool is_a, int64_t from, int64_t rows, int64_t k,
                        int64_t length, int64_t stride, char *out, int worker) {
    const gemm_kernel *kn = p->kernel;
    gemm_panels to = { .dt = kn->dt, .length = stride, .k_pad = length, .out = out };
    to.height = is_a ? kn->mr : kn->nr;
    to.g = is_a ? kn->ga : kn->gb;
    to.convert = (float *)(void *)(p->scratch + p->thread_bytes * (size_t)worker);
    int64_t r0 = (is_a ? p->m0 : p->n0) + from;
    CPU(gemm_pack)(is_a ? &p->a : &p->b, &to, r0, rows, p->k0 + k, MIN(length, p->kn - k));
}

typedef struct pack_run {
    gemm_job *p;
    int64_t slice;   /* of K */
    int64_t slices;  /* per range */
    int64_t a_tasks; /* the first tasks pack A, the others B */
} pack_run;

static void gemm_pack_task(void *ctx, int64_t i, int worker) {
    const pack_run *r = ctx;
    const gemm_job *p = r->p;
    bool is_a = i < r->a_tasks;
    if (!is_a) i -= r->a_tasks;
    int height = is_a ? p->kernel->mr : p->kernel->nr;
    int64_t rows_per_task = pack_task_rows(height), from = i / r->slices * rows_per_task,
            k = i % r->slices * r->slice;
    int64_t rows = MIN(rows_per_task, (is_a ? p->mn : p->nn) - from);
    char *out = (is_a ? p->pa : p->pb) + (size_t)(from * p->k_pad + k * height) * p->element;
    pack_panels(p, is_a, from, rows, k, MIN(r->slice, p->k_pad - k), p->k_pad, out, worker);
}

/* @return how much of K one task packs: less when there are few blocks for many threads. */
static int64_t pack_slice(const gemm_job *p, int64_t blocks, int threads) {
    int64_t slice = PACK_K;
    while (blocks * ceil_div(p->kn, slice) < 2 * threads && slice > PACK_LEAST_K) slice /= 2;
    return round_up(slice, p->kernel->ku);
}

static void pack_strip(gemm_job *p, pool *pl, bool a_is_packed) {
    int64_t a_blocks =
        a_is_packed || p->a_in_place ? 0 : ceil_div(p->mn, pack_task_rows(p->kernel->mr));
    int64_t blocks = a_blocks + ceil_div(p->nn, pack_task_rows(p->kernel->nr));
    pack_run run = { .p = p, .slice = pack_slice(p, blocks, pool_size(pl)) };
    run.slices = ceil_div(p->kn, run.slice);
    run.a_tasks = a_blocks * run.slices;
    pool_run(pl, blocks * run.slices, gemm_pack_task, &run);
}

/* ---- tiles ----------------------------------------------------------------------------------- */

typedef struct gemm_block {
    const gemm_job *p;
    int64_t i0, i1, j0, j1; /* within the strip */
    int64_t k, length;      /* the current piece, within the range of K */
    char *scratch;          /* the thread's */
} gemm_block;

/* @return whether panel i of A can be read from memory: at the edges of A it cannot. */
static bool is_in_place(const gemm_block *b, int64_t i) {
    const gemm_job *p = b->p;
    return p->a_in_place && i + p->kernel->mr <= p->mn && b->k + b->length <= p->kn;
}

/* Packs what a task needs for itself: B, if no packing task did, and A, all of it or where it cannot be read
 * in place. */
static void pack_task_panels(const gemm_block *b, int worker) {
    const gemm_job *p = b->p;
    char *own_b = b->scratch + p->own_b, *own_a = b->scratch + p->own_a;
    int64_t i = b->i0;
    while (i < b->i1 && is_in_place(b, i)) i += p->kernel->mr;
    if (p->task_packs_b)
        pack_panels(p, false, b->j0, b->j1 - b->j0, b->k, b->length, b->length, own_b, worker);
    if (i < b->i1) pack_panels(p, true, i, b->i1 - i, b->k, b->length, b->length, own_a, worker);
}

static const char *a_panel(const gemm_block *b, int64_t i) {
    const gemm_job *p = b->p;
    int64_t shared = i * p->k_pad + b->k * p->kernel->mr;
    if (!p->a_in_place && !p->task_packs_a) return p->pa + (size_t)shared * p->element;
    /* in place, only the last panel is packed, but for the last step of K */
    bool all = p->task_packs_a || b->k + b->length > p->kn;
    return b->scratch + p->own_a + (size_t)(all ? (i - b->i0) * b->length : 0) * p->element;
}

static const char *b_panel(const gemm_block *b, int64_t j) {
    const gemm_job *p = b->p;
    int64_t shared = j * p->k_pad + b->k * p->kernel->nr;
    if (!p->task_packs_b) return p->pb + (size_t)shared * p->element;
    return b->scratch + p->own_b + (size_t)((j - b->j0) * b->length) * p->element;
}

/* c (+)= panel i of A times panel j of B, over the piece. */
static void multiply_panels(const gemm_block *b, int64_t i, int64_t j, float *c, int64_t ldc,
                            bool add) {
    const gemm_job *p = b->p;
    const gemm_kernel *kn = p->kernel;
    if (is_in_place(b, i)) {
        int64_t lda = p->g->lda, at = (p->m0 + i) * lda + p->k0 + b->k;
        const char *a = (const char *)p->g->a + (size_t)at * p->element;
        kn->tile_rows(b->length, a, lda, b_panel(b, j), c, ldc, add);
    } else
        kn->tile(b->length, a_panel(b, i), b_panel(b, j), c, ldc, add);
}

/* Adds the piece to one tile. @param sums keeps the tile between pieces; NULL: there is only one piece. */
static void compute_tile(const gemm_block *b, int64_t i, int64_t j, float *sums) {
    const gemm_job *p = b->p;
    const gemm *g = p->g;
    const gemm_kernel *kn = p->kernel;
    bool done = b->k + b->length == p->k_pad, first = p->k0 == 0;
    gemm_tile t = { .mr = kn->mr, .nr = kn->nr, .row = p->m0 + i, .col = p->n0 + j };
    t.rows = MIN(kn->mr, p->mn - i);
    t.cols = MIN(kn->nr, p->nn - j);
    if (p->sums_in_c && t.rows == kn->mr && t.cols == kn->nr) {
        multiply_panels(b, i, j, (float *)g->c + t.row * g->ldc + t.col, g->ldc,
                        g->accumulate || !first || b->k > 0);
        return;
    }
    _Alignas(64) float local[GEMM_MAX_TILE];
    t.t = p->partial ? p->sums + i * p->nc + j * kn->mr : sums ? sums : local;
    t.add = g->accumulate || (!first && !p->partial);
    t.bias = first || p->partial;
    multiply_panels(b, i, j, t.t, kn->nr, b->k > 0 || (p->partial && !first));
    bool last = p->k0 + p->kn == g->k;
    if (done && (last || !p->partial)) CPU(gemm_store)(g, &t);
}

/* @return the length of the piece at k. With A in place, the rest of K that is not a multiple of ku is a
 * piece of its own. */
static int64_t piece_length(const gemm_job *p, int64_t k) {
    int64_t whole = p->a_in_place ? p->kn / p->kernel->ku * p->kernel->ku : p->k_pad;
    return k < whole ? MIN(p->piece, whole - k) : p->k_pad - k;
}

static void tiles_task(void *ctx, int64_t task, int worker) {
    const gemm_job *p = ctx;
    const gemm_kernel *kn = p->kernel;
    int64_t across = ceil_div(p->nn, p->block_n), tile = (int64_t)kn->mr * kn->nr;
    gemm_block b = { .p = p, .scratch = p->scratch + p->thread_bytes * (size_t)worker };
    b.i0 = task / across * p->block_m, b.i1 = MIN(b.i0 + p->block_m, p->mn);
    b.j0 = task % across * p->block_n, b.j1 = MIN(b.j0 + p->block_n, p->nn);
    bool several_pieces = piece_length(p, 0) < p->k_pad && !p->partial;
    if (kn->enter) kn->enter();
    for (; b.k < p->k_pad; b.k += b.length) {
        b.length = piece_length(p, b.k);
        if (p->a_in_place || p->task_packs_a) pack_task_panels(&b, worker);
        float *sums = several_pieces ? (float *)(void *)b.scratch : NULL;
        for (int64_t j = b.j0; j < b.j1; j += kn->nr)
            for (int64_t i = b.i0; i < b.i1; i += kn->mr) {
                compute_tile(&b, i, j, sums);
                if (several_pieces) sums += tile;
            }
    }
    if (kn->leave) kn->leave();
}

void CPU(gemm_run)(const gemm *g, pool *pl, void *workspace, size_t workspace_bytes) {
    if (g->m <= 0 || g->n <= 0) return;
    BUG_IF(g->k <= 0 || workspace_bytes < CPU(gemm_workspace)(g, pool_size(pl)));
    if (CPU(gemm_is_row)(g)) {
        CPU(gemm_row_run)(g, pl, workspace);
        return;
    }
    gemm_job p = gemm_job_of(g);
    shrink_blocks(&p, pool_size(pl));
    p.pa = (char *)align_up((uintptr_t)workspace, 64);
    p.pb = p.pa + p.a_bytes;
    p.sums = (float *)(void *)(p.pb + p.b_bytes);
    p.scratch = p.pb + p.b_bytes + p.partial_bytes;
    for (p.m0 = 0; p.m0 < g->m; p.m0 += p.mc)
        for (p.n0 = 0; p.n0 < g->n; p.n0 += p.nc) {
            p.mn = MIN(p.mc, g->m - p.m0);
            p.nn = MIN(p.nc, g->n - p.n0);
            for (p.k0 = 0; p.k0 < g->k; p.k0 += p.kc) {
                p.kn = MIN(p.kc, g->k - p.k0);
                p.k_pad = round_up(p.kn, p.kernel->ku);
                if (!p.task_packs_b) pack_strip(&p, pl, p.n0 > 0 && p.kc >= g->k);
                int64_t blocks = ceil_div(p.mn, p.block_m) * ceil_div(p.nn, p.block_n);
                pool_run(pl, blocks, tiles_task, &p);
            }
        }
}
