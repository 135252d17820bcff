/* Chooses a product's algorithm: those that cuBLASLt offers are run on the operands as they are,
 * into the real result, and the fastest is kept. So a model that fills the GPU is tuned too.
 *
 * What makes a trial tell the truth:
 *   - all candidates take turns, several rounds, and the least time of each counts, so that a change
 *     of clock in the middle does not favour one;
 *   - a round is queued as a whole, so that events stand right around the product and not around
 *     the host's next call;
 *   - the workspace is overwritten before each run, so that operands do not wait in the cache as
 *     they would not in a step either. */
#include "products_internal.h"

#include <stdlib.h>

enum { CANDIDATES = 32, ROUNDS = 3, FINALISTS = 4, FINAL_ROUNDS = 8 };

/* Where a product adds to C, a trial adds so small a multiple that C stays what it is: less than
 * 1e-30 of a gradient is no gradient. */
static const float TRIAL_ALPHA = 1e-36f;

typedef struct contest {
    cuda_context *x;
    const plan *p;
    const cuda_gemm *g;
    plan_memory memory;
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int n;
    int order[CANDIDATES];   /* candidates, fastest first once a round was run */
    float least[CANDIDATES]; /* milliseconds; 0: not run, negative: does not run */
    cudaEvent_t from[CANDIDATES], to[CANDIDATES];
} contest;

static void run_one(contest *t, int i) {
    cudaStream_t stream = t->x->stream;
    float alpha = t->g->accumulate ? TRIAL_ALPHA : t->g->alpha == 0 ? 1 : t->g->alpha;
    cudaMemsetAsync(t->memory.workspace, 0, t->memory.bytes, stream);
    cudaEventRecord(t->from[i], stream);
    if (plan_run(t->x, t->p, &t->found[i].algo, t->g, alpha, t->memory) != CUBLAS_STATUS_SUCCESS) {
        cudaGetLastError(); /* a launch that was refused is no fault of a later call */
        t->least[i] = -1;
    }
    cudaEventRecord(t->to[i], stream);
}

/* The first `n` of the order run once each. */
static void round_of(contest *t, int n) {
    for (int k = 0; k < n; k++) run_one(t, t->order[k]);
    if (!CUDA_OK(t->x, cudaStreamSynchronize(t->x->stream))) return;
    for (int k = 0; k < n; k++) {
        int i = t->order[k];
        float ms = 0;
        if (t->least[i] < 0 || cudaEventElapsedTime(&ms, t->from[i], t->to[i]) != cudaSuccess)
            continue;
        if (t->least[i] == 0 || ms < t->least[i]) t->least[i] = ms;
    }
}

/* Fastest first, and those that do not run last. Insertion: there are few, and ties keep the
 * library's order. */
static void rank(contest *t, int n) {
    for (int k = 1; k < n; k++) {
        int i = t->order[k], at = k;
        for (; at > 0; at--) {
            float before = t->least[t->order[at - 1]];
            bool sooner = t->least[i] > 0 && (before <= 0 || t->least[i] < before);
            if (!sooner) break;
            t->order[at] = t->order[at - 1];
        }
        t->order[at] = i;
    }
}

/* @return the fastest candidate. */
static int hold(contest *t) {
    for (int i = 0; i < t->n; i++) {
        t->order[i] = i;
        cudaEventCreate(&t->from[i]);
        cudaEventCreate(&t->to[i]);
    }
    for (int r = 0; r < ROUNDS; r++) round_of(t, t->n);
    rank(t, t->n);
    int finalists = MIN(t->n, FINALISTS);
    for (int r = 0; r < FINAL_ROUNDS; r++) round_of(t, finalists);
    rank(t, finalists);
    for (int i = 0; i < t->n; i++) {
        cudaEventDestroy(t->from[i]);
        cudaEventDestroy(t->to[i]);
    }
    return t->order[0];
}

static void report(const contest *t, int best) {
    const plan_key *k = &t->p->key;
    log_at(LOG_DEBUG,
           "product %lld x %lld x %lld, %s -> %s: %.1f us by candidate %d of %d, %.1f by the first",
           (long long)k->m, (long long)k->n, (long long)k->k, dt_name((dtype)k->at),
           dt_name((dtype)k->ct), t->least[best] * 1e3, best, t->n, t->least[0] * 1e3);
}

static void find(contest *t) {
    cublasLtMatmulPreference_t wish;
    uint32_t align = (uint32_t)t->p->key.align;
    cublasLtMatmulPreferenceCreate(&wish);
    cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &t->memory.bytes, sizeof t->memory.bytes);
    static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
    };
    for (size_t i = 0; i < COUNT_OF(aligned); i++)
        cublasLtMatmulPreferenceSetAttribute(wish, aligned[i], &align, sizeof align);
    cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(t->x->products->blas, t->p->op, t->p->a, t->p->b, t->p->c,
                                       t->p->c, wish, CANDIDATES, t->found, &t->n);
    cublasLtMatmulPreferenceDestroy(wish);
    if (status != CUBLAS_STATUS_SUCCESS) t->n = 0;
}

/* Trials run and wait; a queue that is being recorded can do neither. */
static bool may_try(const cuda_context *x) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(x->stream, &status);
    return !x->deterministic && status == cudaStreamCaptureStatusNone;
}

void plan_choose(cuda_context *x, plan *p, const cuda_gemm *g, plan_memory m) {
    contest *t = mem_alloc(sizeof *t);
    *t = (contest){ .x = x, .p = p, .g = g, .memory = m };
    find(t);
    int kept = plan_file_pick(x->products->file, &p->key, t->found, t->n);
    bool trials = kept < 0 && t->n > 0 && may_try(x);
    int best = trials ? hold(t) : MAX(kept, 0);
    p->usable = t->n > 0 && t->least[best] >= 0;
    if (p->usable) p->algo = t->found[best].algo;
    if (p->usable && trials) {
        report(t, best);
        plan_file_keep(x->products->file, &p->key, &p->algo);
    }
    free(t);
}
