/* The gated delta rule, in chunks. A head keeps a state S [K,V], which maps keys to values. A token first lets it decay, then
 * replaces a share beta of what its key maps to by its value, and reads what its query maps to:
 *
 *     S = e^g S + beta k (v - e^g S' k)',   o = S' q
 *
 * Of a chunk of tokens, with G the sums of g from the chunk's beginning, and S the state before it:
 *
 *     A_ij = beta_i e^(G_i - G_j) k_i.k_j  (j < i),   (I + A) D = beta (V - e^G K S)        D: the corrections that are written
 *     P_ij = e^(G_i - G_j) q_i.k_j  (j <= i),         O = e^G Q S + P D
 *     S' = e^G_last S + (e^(G_last - G) K)' D
 *
 * Every exponent is at most 0. A document begins with S = 0, and no chunk crosses its end. Backward runs the states of a document
 * forward once more, kept per chunk in the workspace, and then the chunks from the last to the first.
 *
 * A task has one head of keys with its heads of values, and the documents of one row of the batch. FLOPs per token and head of
 * values: 6 K V with the state, 2 CHUNK (K + V) within the chunk; three times that in backward. */
#include "chunks.h"
#include "ops/op_table.h"
#include "vmath.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 64 };
static const float LENGTH_EPS = 1e-6f; /* of the norms of q and k */

/* ---- shapes and memory ------------------------------------------------------------------------ */
typedef struct delta_job {
    const op_call *c;
    const tensor *qkv, *gate, *o, *d_o, *dqkv, *dgate; /* o: the result; d_o: its gradient */
    const int32_t *start;
    int64_t n, each;            /* each: tokens of a task */
    int64_t keys, group, K, V;  /* heads of keys, heads of values for each, dims */
    int64_t cols, gates, width; /* of a row of qkv, of gate, of o */
    char *worker;
    size_t worker_bytes, gemm_bytes;
} delta_job;

/* The buffers of a worker; [rows, columns] beside each. */
typedef struct delta_work {
    const delta_job *j;
    float *S, *dS;                         /* [K, V] */
    float *q, *k, *v, *x, *t;              /* q, k [CHUNK, K]; v, x, t [CHUNK, wide] */
    float *kk, *P;                         /* [CHUNK, CHUNK] */
    float *dO, *D, *dD, *M, *dq, *dk, *dP; /* backward: [CHUNK, wide], dP [CHUNK, CHUNK] */
    float *states;                         /* backward: [chunks, K, V] */
    float *dqk;                            /* backward: [each, 2 K], summed over heads of values */
    void *gemm;
    float G[CHUNK], beta[CHUNK], qr[CHUNK], kr[CHUNK], dG[CHUNK], dbeta[CHUNK];
    int64_t rows; /* of the chunk */
} delta_work;

static delta_job delta_job_of(const op_call *c, const tensor *qkv, const tensor *o) {
    delta_job j = { .c = c,
                    .qkv = qkv,
                    .gate = qkv + 1,
                    .o = o,
                    .n = qkv->dim[0],
                    .keys = c->attr.heads.q,
                    .cols = qkv->dim[1],
                    .gates = qkv[1].dim[1],
                    .width = o->dim[1] };
    int64_t heads = j.gates / 2;
    j.group = heads / j.keys;
    j.V = j.width / heads;
    j.K = (j.cols - j.width) / (2 * j.keys);
    BUG_IF(j.keys < 1 || heads % j.keys || 2 * j.keys * j.K + j.width != j.cols);
    j.each = c->attr.heads.seq > 0 && j.n % c->attr.heads.seq == 0 ? c->attr.heads.seq : j.n;
    return j;
}

static size_t gemm_most(const delta_job *j) {
    int64_t wide = MAX(CHUNK, MAX(j->K, j->V)), sides[] = { CHUNK, j->K, j->V };
    size_t most = 0;
    for (int i = 0; i < 12; i++) {
        gemm g = {
            .m = wide, .n = sides[i / 4], .k = wide, .at = DT_F32, .bt = DT_F32, .ct = DT_F32
        };
        g.lda = g.ldb = g.ldc = wide;
        g.ta = i & 1, g.tb = i & 2;
        most = MAX(most, CPU(gemm_workspace_most)(&g, 1));
    }
    return align_up(most, 64);
}

/* Divides a worker's memory. @param base NULL: measures alone @return its bytes */
static size_t carve(const delta_job *j, char *base, bool back, delta_work *w) {
    int64_t wide = CHUNK * MAX(CHUNK, MAX(j->K, j->V)), state = j->K * j->V;
    size_t at = 0;
    *w = (delta_work){ .j = j };
#define CARVE(member, count)                                                                       \
    w->member = base ? (float *)(base + at) : NULL,                                                \
    at += align_up((size_t)(count) * sizeof(float), 64)
    CARVE(S, state), CARVE(dS, back ? state : 0);
    CARVE(q, wide), CARVE(k, wide), CARVE(v, wide), CARVE(x, wide), CARVE(t, wide);
    CARVE(kk, wide), CARVE(P, wide);
    int64_t more = back ? wide : 0;
    CARVE(dO, more), CARVE(D, more), CARVE(dD, more), CARVE(M, more);
    CARVE(dq, more), CARVE(dk, more), CARVE(dP, more);
    CARVE(states, back ? ceil_div(j->each, CHUNK) * state : 0);
    CARVE(dqk, back ? j->each * 2 * j->K : 0);
#undef CARVE
    w->gemm = base + at;
    return at + gemm_most(j);
}

static delta_job with_workspace(delta_job j, bool back) {
    delta_work w;
    j.worker = j.c->run ? j.c->run->workspace : NULL;
    j.gemm_bytes = gemm_most(&j);
    j.worker_bytes = carve(&j, NULL, back, &w);
    return j;
}

/* ---- GEMMs of a chunk, on contiguous matrices ---------------------------------------------------- */
enum { PLAIN = 0, TA = 1, TB = 2, ADD = 4 };
/* c[m,n] (+)= op(a) op(b), summed over k. */
static void mm(const delta_work *w, int how, int64_t m, int64_t n, int64_t k, const float *a,
               const float *b, float *c) {
    gemm g = {
        .m = m, .n = n, .k = k, .a = a, .b = b, .c = c, .at = DT_F32, .bt = DT_F32, .ct = DT_F32
    };
    g.ta = how & TA, g.tb = how & TB, g.accumulate = how & ADD;
    g.lda = g.ta ? m : k, g.ldb = g.tb ? k : n, g.ldc = n;
    CPU(gemm_run)(&g, NULL, w->gemm, w->j->gemm_bytes);
}

static float dot_floats(const float *x, const float *y, int64_t n) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}
static void axpy(float *to, float by, const float *x, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] += by * x[i];
}
static void scale_to(float *to, float by, const float *x, int64_t n) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) to[i] = by * x[i];
}

/* ---- a chunk ------------------------------------------------------------------------------------ */
/* A normalized vector. @return 1 / its length */
static float load_unit(const tensor *t, int64_t at, int64_t n, float by, float *to) {
    const float *x = elems_get(t, at, n, to);
    float r = 1 / sqrtf(dot_floats(x, x, n) + LENGTH_EPS);
    scale_to(to, r * by, x, n);
    return r;
}

/* Loads rows [at, at + w->rows) of value head h. */
static void load_tokens(delta_work *w, int64_t at, int64_t h) {
    const delta_job *j = w->j;
    int64_t key = h / j->group, heads = j->gates / 2;
    const float *gate = j->gate->data;
    float sum = 0, by = 1 / sqrtf((float)j->K);
    for (int64_t i = 0; i < w->rows; i++) {
        int64_t row = (at + i) * j->cols;
        w->qr[i] = load_unit(j->qkv, row + key * j->K, j->K, by, w->q + i * j->K);
        w->kr[i] = load_unit(j->qkv, row + (j->keys + key) * j->K, j->K, 1, w->k + i * j->K);
        const float *v =
            elems_get(j->qkv, row + 2 * j->keys * j->K + h * j->V, j->V, w->v + i * j->V);
        if (v != w->v + i * j->V) memcpy(w->v + i * j->V, v, (size_t)j->V * sizeof *v);
        w->beta[i] = gate[(at + i) * j->gates + h];
        w->G[i] = sum += gate[(at + i) * j->gates + heads + h];
    }
}

/* e^(G_i - G_j) */
static float decay(const delta_work *w, int64_t i, int64_t j) { return vm_exp(w->G[i] - w->G[j]); }

/* x: the corrections D, from t = K S. kk becomes A, with zeros on and above the diagonal. */
static void solve_corrections(delta_work *w) {
    int64_t n = w->rows, V = w->j->V, K = w->j->K;
    mm(w, TB, n, n, K, w->k, w->k, w->kk);
    for (int64_t i = 0; i < n; i++) {
        float *x = w->x + i * V, by = -vm_exp(w->G[i]);
        for (int64_t e = 0; e < V; e++)
            x[e] = w->beta[i] * (w->v[i * V + e] + by * w->t[i * V + e]);
        for (int64_t k = 0; k < n; k++) {
            float *a = &w->kk[i * n + k];
            *a = k < i ? w->beta[i] * decay(w, i, k) * *a : 0;
            if (k < i) axpy(x, -*a, w->x + k * V, V);
        }
    }
}

/* P, with zeros above the diagonal. */
static void score_chunk(delta_work *w) {
    int64_t n = w->rows;
    mm(w, TB, n, n, w->j->K, w->q, w->k, w->P);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < n; k++)
            w->P[i * n + k] = k <= i ? w->P[i * n + k] * decay(w, i, k) : 0;
}

/* S after the chunk, from the corrections in x. Overwrites q. */
static void step_state_on(delta_work *w) {
    int64_t n = w->rows, K = w->j->K, V = w->j->V;
    for (int64_t i = 0; i < n; i++) scale_to(w->q + i * K, decay(w, n - 1, i), w->k + i * K, K);
    scale_to(w->S, vm_exp(w->G[n - 1]), w->S, K * V);
    mm(w, TA | ADD, K, V, n, w->q, w->x, w->S);
}

static void chunk_forward(delta_work *w, int64_t at, int64_t h) {
    const delta_job *j = w->j;
    int64_t n = w->rows, K = j->K, V = j->V;
    load_tokens(w, at, h);
    mm(w, PLAIN, n, V, K, w->k, w->S, w->t);
    solve_corrections(w);
    score_chunk(w);
    mm(w, PLAIN, n, V, K, w->q, w->S, w->t);
    for (int64_t i = 0; i < n; i++) scale_to(w->t + i * V, vm_exp(w->G[i]), w->t + i * V, V);
    mm(w, ADD, n, V, n, w->P, w->x, w->t);
    for (int64_t i = 0; i < n; i++) elems_put(j->o, (at + i) * j->width + h * V, V, w->t + i * V);
    step_state_on(w);
}

/* Chunks of [from, to) that no document's end divides. @return the end of the one that begins at `at` */
static int64_t chunk_end(const delta_job *j, int64_t at, int64_t to) {
    int64_t end = MIN(at + CHUNK, to), i = at + 1;
    while (i < end && j->start[i] <= at) i++;
    return i;
}

static void delta_task(void *ctx, int64_t task, int worker) {
    const delta_job *j = ctx;
    delta_work w;
    int64_t key = task % j->keys, from = task / j->keys * j->each, to = MIN(from + j->each, j->n);
    carve(j, j->worker + (size_t)worker * j->worker_bytes, false, &w);
    for (int64_t h = key * j->group; h < (key + 1) * j->group; h++)
        for (int64_t at = from; at < to; at += w.rows) {
            if (at == from || j->start[at] == at)
                memset(w.S, 0, (size_t)(j->K * j->V) * sizeof *w.S);
            w.rows = chunk_end(j, at, to) - at;
            chunk_forward(&w, at, h);
        }
}

static void CPU(delta_rule)(const op_call *c) {
    delta_job j = with_workspace(delta_job_of(c, &c->in[0], &c->out[0]), false);
    j.start = c->in[2].data;
    pool_run(c->run->pool, j.keys * ceil_div(j.n, j.each), delta_task, &j);
}

static size_t CPU(delta_rule_workspace)(const op_backend *b, const op_call *c, int threads) {
    bool back = c->op == OP_DELTA_RULE_BWD;
    delta_job j = delta_job_of(c, &c->in[back], back ? &c->in[0] : &c->out[0]);
    return (size_t)threads * with_workspace(j, back).worker_bytes;
}

/* ---- backward ------------------------------------------------------------------------------------ */
/* Through O = e^G Q S + P D: dq, dk, dG, and dD, to which the state after the chunk adds its part. P becomes the gradient of
 * the scores. */
static void output_bwd(delta_work *w) {
    int64_t n = w->rows, K = w->j->K, V = w->j->V;
    mm(w, TA, n, V, n, w->P, w->dO, w->dD);
    mm(w, PLAIN, n, V, K, w->q, w->S, w->t);
    for (int64_t i = 0; i < n; i++)
        w->dG[i] = vm_exp(w->G[i]) * dot_floats(w->dO + i * V, w->t + i * V, V);
    mm(w, TB, n, n, V, w->dO, w->D, w->dP);
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k <= i; k++) {
            float t = w->dP[i * n + k] * w->P[i * n + k];
            w->dG[i] += t, w->dG[k] -= t;
            w->P[i * n + k] = w->dP[i * n + k] * decay(w, i, k);
        }
    mm(w, TB, n, K, V, w->dO, w->S, w->dq);
    for (int64_t i = 0; i < n; i++) scale_to(w->dq + i * K, vm_exp(w->G[i]), w->dq + i * K, K);
    mm(w, ADD, n, K, n, w->P, w->k, w->dq);
    mm(w, TA, n, K, n, w->P, w->q, w->dk);
}

/* Through S' = e^G_last S + (e^(G_last - G) K)' D. */
static void state_bwd(delta_work *w) {
    int64_t n = w->rows, K = w->j->K, V = w->j->V;
    float total = vm_exp(w->G[n - 1]) * dot_floats(w->dS, w->S, K * V);
    mm(w, TB, n, K, V, w->D, w->dS, w->t);
    for (int64_t i = 0; i < n; i++) {
        float by = decay(w, n - 1, i), u = by * dot_floats(w->t + i * K, w->k + i * K, K);
        axpy(w->dk + i * K, by, w->t + i * K, K);
        w->dG[i] -= u, total += u;
        scale_to(w->x + i * K, by, w->k + i * K, K);
    }
    w->dG[n - 1] += total;
    mm(w, ADD, n, V, K, w->x, w->dS, w->dD);
}

/* Through (I + A) D = beta (V - e^G K S): dD becomes the gradient of the right side, t that of K S. kk has A. */
static void solve_bwd(delta_work *w) {
    int64_t n = w->rows, K = w->j->K, V = w->j->V;
    for (int64_t i = n - 1; i >= 0; i--)
        for (int64_t k = i + 1; k < n; k++)
            axpy(w->dD + i * V, -w->kk[k * n + i], w->dD + k * V, V);
    mm(w, TB, n, n, V, w->dD, w->D, w->dP); /* - the gradient of A */
    for (int64_t i = 0; i < n; i++) {
        const float *d = w->dD + i * V;
        float by = -vm_exp(w->G[i]), of_v = dot_floats(d, w->v + i * V, V),
              of_m = by * dot_floats(d, w->M + i * V, V);
        w->dbeta[i] = of_v + of_m;
        w->dG[i] += w->beta[i] * of_m;
        for (int64_t e = 0; e < V; e++) w->t[i * V + e] = w->beta[i] * by * d[e];
        for (int64_t k = 0; k < n; k++) {
            float g = k < i ? -w->dP[i * n + k] : 0, a = g * w->kk[i * n + k];
            w->dG[i] += a, w->dG[k] -= a;
            w->P[i * n + k] = k < i ? g * decay(w, i, k) : 0; /* of beta_i k_i.k_j */
        }
    }
    /* the gradient of beta needs A / beta, which is not defined at beta = 0 */
    mm(w, TB, n, n, K, w->k, w->k, w->dP);
    for (int64_t i = 0; i < n; i++) {
        w->dbeta[i] += dot_floats(w->P + i * n, w->dP + i * n, i);
        scale_to(w->P + i * n, w->beta[i], w->P + i * n, n);
    }
    mm(w, TB | ADD, n, K, V, w->t, w->S, w->dk);
    mm(w, ADD, n, K, n, w->P, w->k, w->dk);
    mm(w, TA | ADD, n, K, n, w->P, w->k, w->dk);
}

/* dS of the state before the chunk. */
static void state_back_on(delta_work *w) {
    int64_t n = w->rows, K = w->j->K, V = w->j->V;
    scale_to(w->dS, vm_exp(w->G[n - 1]), w->dS, K * V);
    mm(w, TA | ADD, K, V, n, w->k, w->t, w->dS);
    for (int64_t i = 0; i < n; i++) scale_to(w->q + i * K, vm_exp(w->G[i]), w->q + i * K, K);
    mm(w, TA | ADD, K, V, n, w->q, w->dO, w->dS);
}

static void chunk_backward(delta_work *w, int64_t at, int64_t h, int64_t from) {
    const delta_job *j = w->j;
    int64_t n = w->rows, K = j->K, V = j->V, heads = j->gates / 2;
    load_tokens(w, at, h);
    for (int64_t i = 0; i < n; i++) {
        const float *d = elems_get(j->d_o, (at + i) * j->width + h * V, V, w->dO + i * V);
        if (d != w->dO + i * V) memcpy(w->dO + i * V, d, (size_t)V * sizeof *d);
    }
    mm(w, PLAIN, n, V, K, w->k, w->S, w->t);
    memcpy(w->M, w->t, (size_t)(n * V) * sizeof *w->t);
    solve_corrections(w);
    memcpy(w->D, w->x, (size_t)(n * V) * sizeof *w->x);
    score_chunk(w);
    output_bwd(w);
    state_bwd(w);
    solve_bwd(w);
    state_back_on(w);
    float sum = 0, *dgate = j->dgate->data;
    for (int64_t i = n - 1; i >= 0; i--) {
        sum += w->dG[i];
        if (dgate) {
            dgate[(at + i) * j->gates + h] = w->dbeta[i];
            dgate[(at + i) * j->gates + heads + h] = sum;
        }
        axpy(w->dqk + (at + i - from) * 2 * K, 1, w->dq + i * K, K);
        axpy(w->dqk + (at + i - from) * 2 * K + K, 1, w->dk + i * K, K);
        if (!j->dqkv->data) continue;
        scale_to(w->x, w->beta[i], w->dD + i * V, V);
        elems_put(j->dqkv, (at + i) * j->cols + 2 * j->keys * K + h * V, V, w->x);
    }
}

/* One document and one head of values. */
static void document_backward(delta_work *w, int64_t at, int64_t end, int64_t h, int64_t from) {
    const delta_job *j = w->j;
    size_t state = (size_t)(j->K * j->V);
    memset(w->S, 0, state * sizeof *w->S);
    memset(w->dS, 0, state * sizeof *w->dS);
    for (int64_t i = at; i < end; i += CHUNK) {
        memcpy(w->states + (size_t)((i - at) / CHUNK) * state, w->S, state * sizeof *w->S);
        w->rows = MIN(CHUNK, end - i);
        load_tokens(w, i, h);
        mm(w, PLAIN, w->rows, j->V, j->K, w->k, w->S, w->t);
        solve_corrections(w);
        step_state_on(w);
    }
    for (int64_t chunk = ceil_div(end - at, CHUNK) - 1; chunk >= 0; chunk--) {
        int64_t i = at + chunk * CHUNK;
        memcpy(w->S, w->states + (size_t)chunk * state, state * sizeof *w->S);
        w->rows = MIN(CHUNK, end - i);
        chunk_backward(w, i, h, from);
    }
}

/* Through the normalization of a vector: its gradient is by r (d - u (u . d)), where u is the unit vector. */
static void put_unit_bwd(delta_work *w, int64_t at, float by, float *d) {
    const delta_job *j = w->j;
    float r = load_unit(j->qkv, at, j->K, 1, w->q), along = dot_floats(w->q, d, j->K);
    /* eps keeps u shorter than 1, which the formula already has right */
    for (int64_t e = 0; e < j->K; e++) d[e] = by * r * (d[e] - along * w->q[e]);
    elems_put(j->dqkv, at, j->K, d);
}

static void delta_bwd_task(void *ctx, int64_t task, int worker) {
    const delta_job *j = ctx;
    delta_work w;
    int64_t key = task % j->keys, from = task / j->keys * j->each, to = MIN(from + j->each, j->n);
    carve(j, j->worker + (size_t)worker * j->worker_bytes, true, &w);
    memset(w.dqk, 0, (size_t)((to - from) * 2 * j->K) * sizeof *w.dqk);
    for (int64_t at = from, end; at < to; at = end) {
        for (end = at + 1; end < to && j->start[end] <= at;) end++;
        for (int64_t h = key * j->group; h < (key + 1) * j->group; h++)
            document_backward(&w, at, end, h, from);
    }
    for (int64_t i = from; i < to && j->dqkv->data; i++) {
        float *d = w.dqk + (i - from) * 2 * j->K;
        put_unit_bwd(&w, i * j->cols + key * j->K, 1 / sqrtf((float)j->K), d);
        put_unit_bwd(&w, i * j->cols + (j->keys + key) * j->K, 1, d + j->K);
    }
}

static void CPU(delta_rule_bwd)(const op_call *c) {
    delta_job j = with_workspace(delta_job_of(c, &c->in[1], &c->in[0]), true);
    j.d_o = &c->in[0];
    j.start = c->in[3].data;
    j.dqkv = &c->out[0];
    j.dgate = &c->out[1];
    pool_run(c->run->pool, j.keys * ceil_div(j.n, j.each), delta_bwd_task, &j);
}

/* ---- generation: token by token --------------------------------------------------------------------- */
static void cached_token(const delta_job *j, const float *q, const float *k, const float *v,
                         float beta, float keep, float *S, float *o) {
    memset(o, 0, (size_t)j->V * sizeof *o);
    for (int64_t e = 0; e < j->K; e++) {
        scale_to(S + e * j->V, keep, S + e * j->V, j->V);
        axpy(o, k[e], S + e * j->V, j->V);
    }
    for (int64_t e = 0; e < j->V; e++) o[e] = beta * (v[e] - o[e]);
    for (int64_t e = 0; e < j->K; e++) axpy(S + e * j->V, k[e], o, j->V);
    memset(o, 0, (size_t)j->V * sizeof *o);
    for (int64_t e = 0; e < j->K; e++) axpy(o, q[e], S + e * j->V, j->V);
}

static void delta_cached_task(void *ctx, int64_t h, int worker) {
    const delta_job *j = ctx;
    const int32_t *pos = j->c->in[3].data, *start = j->c->in[4].data;
    int64_t key = h / j->group, heads = j->gates / 2, state = j->K * j->V;
    float *q = (float *)(j->worker + (size_t)worker * j->worker_bytes), *k = q + j->K;
    float *v = k + j->K, *o = v + j->V;
    const float *gate = j->gate->data;
    for (int64_t i = 0; i < j->n; i++) {
        int64_t row = i * j->cols;
        float *S =
            (float *)j->c->in[2].data + (start[i] / j->c->attr.heads.seq * heads + h) * state;
        if (!i || start[i] != start[i - 1] || pos[i] != pos[i - 1]) {
            if (pos[i] == 0) memset(S, 0, (size_t)state * sizeof *S);
            load_unit(j->qkv, row + key * j->K, j->K, 1 / sqrtf((float)j->K), q);
            load_unit(j->qkv, row + (j->keys + key) * j->K, j->K, 1, k);
            cached_token(j, q, k, elems_get(j->qkv, row + 2 * j->keys * j->K + h * j->V, j->V, v),
                         gate[i * j->gates + h], vm_exp(gate[i * j->gates + heads + h]), S, o);
        }
        elems_put(j->o, i * j->width + h * j->V, j->V, o);
    }
}

static size_t cached_bytes(const delta_job *j) {
    return align_up((size_t)(2 * j->K + 2 * j->V) * sizeof(float), 64);
}

static void CPU(delta_cached)(const op_call *c) {
    delta_job j = delta_job_of(c, &c->in[0], &c->out[0]);
    j.worker = c->run->workspace;
    j.worker_bytes = cached_bytes(&j);
    BUG_IF(c->attr.heads.seq < 1 || c->in[2].dim[1] != j.gates / 2 * j.K * j.V);
    pool_run(c->run->pool, j.gates / 2, delta_cached_task, &j);
}

static size_t CPU(delta_cached_workspace)(const op_backend *b, const op_call *c, int threads) {
    delta_job j = delta_job_of(c, &c->in[0], &c->out[0]);
    return (size_t)threads * cached_bytes(&j);
}

KERNEL(DELTA_RULE, CPU(delta_rule), CPU(delta_rule_workspace), ATTR(HEADS_Q) | ATTR(SEQ));
KERNEL(DELTA_RULE_BWD, CPU(delta_rule_bwd), CPU(delta_rule_workspace), ATTR(HEADS_Q) | ATTR(SEQ));
KERNEL(DELTA_CACHED, CPU(delta_cached), CPU(delta_cached_workspace), ATTR(HEADS_Q) | ATTR(SEQ));
