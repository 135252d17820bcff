/* Chooses the algorithm of a GEMM by timing those that cuBLASLt's heuristic offers, and our own kernel where it fits. They
 * run on the operands of the call at hand and write its real result, so that tuning needs no memory of its own
 * and a model that fills the GPU is tuned too.
 *
 *     heuristic, own kernel -> up to 33 candidates
 *         the cache file names one of them:  taken, without trials
 *         else all run 3 rounds  -> the 4 fastest run 8 more rounds -> the fastest is kept and saved
 *
 * The timing is fair for these reasons:
 *   - candidates alternate within a round, and the minimum time of each counts: a change of the GPU's
 *     clock in between does not favor one of them;
 *   - a round is queued as a whole, behind a run that does not count: events enclose the GEMM alone, and no gap in
 *     which the host prepares the next call;
 *   - the workspace is overwritten before each run, which pushes operands out of the L2 cache: in a
 *     training step they would not be there either.
 *
 * A GEMM that accumulates must not change C while it is tuned: see TRIAL_ALPHA. Under
 * debug.deterministic, and while a CUDA graph is captured, nothing is timed: where the file names no
 * algorithm either (a deterministic run does not read it), the heuristic's first candidate is used. */
#include "gemm_internal.h"

#include <stdlib.h>

enum { OFFERED = 32, CANDIDATES = OFFERED + 1, ROUNDS = 3, FINALISTS = 4, FINAL_ROUNDS = 8 };

/* Where a GEMM accumulates, a trial adds AB times this: too little to change any C that matters, since
 * less than 1e-30 of a gradient is lost in rounding. */
static const float TRIAL_ALPHA = 1e-36f;

typedef struct tuning {
    cuda_context *x;
    const tuned_gemm *tuned;
    const cuda_gemm *g;
    gemm_workspace workspace;
    gemm_algo found[CANDIDATES];
    int n;
    int order[CANDIDATES];   /* candidates, fastest first once they are ranked */
    float least[CANDIDATES]; /* milliseconds; 0: not run yet, negative: refuses to run */
    cudaEvent_t from[CANDIDATES], to[CANDIDATES];
} tuning;

static void queue_gemm(tuning *t, int i) {
    cuda_gemm g = *t->g;
    if (g.accumulate) g.alpha = TRIAL_ALPHA;
    if (tuned_gemm_run(t->x, t->tuned, &t->found[i], &g, t->workspace) == CUBLAS_STATUS_SUCCESS)
        return;
    cudaGetLastError(); /* clears it: a refused launch is not an error of a later call */
    t->least[i] = -1;
}

static void queue_trial(tuning *t, int i) {
    cudaMemsetAsync(t->workspace.memory, 0, t->workspace.bytes, t->x->stream);
    cudaEventRecord(t->from[i], t->x->stream);
    queue_gemm(t, i);
    cudaEventRecord(t->to[i], t->x->stream);
}

/* Runs the first n candidates of the order once each and waits for them. */
static void run_round(tuning *t, int n) {
    queue_gemm(t, t->order[0]);
    for (int k = 0; k < n; k++) queue_trial(t, t->order[k]);
    if (!CUDA_OK(t->x, cudaStreamSynchronize(t->x->stream))) return;
    for (int k = 0; k < n; k++) {
        int i = t->order[k];
        float ms = 0;
        if (t->least[i] < 0 || cudaEventElapsedTime(&ms, t->from[i], t->to[i]) != cudaSuccess)
            continue;
        if (t->least[i] == 0 || ms < t->least[i]) t->least[i] = ms;
    }
}

/* Sorts the first n of the order: fastest first, those that refuse to run last. Insertion sort, since
 * there are few and ties must keep the library's order. */
static void rank_candidates(tuning *t, int n) {
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
static int time_candidates(tuning *t) {
    for (int i = 0; i < t->n; i++) {
        t->order[i] = i;
        cudaEventCreate(&t->from[i]);
        cudaEventCreate(&t->to[i]);
    }
    for (int r = 0; r < ROUNDS; r++) run_round(t, t->n);
    rank_candidates(t, t->n);
    int finalists = MIN(t->n, FINALISTS);
    for (int r = 0; r < FINAL_ROUNDS; r++) run_round(t, finalists);
    rank_candidates(t, finalists);
    for (int i = 0; i < t->n; i++) {
        cudaEventDestroy(t->from[i]);
        cudaEventDestroy(t->to[i]);
    }
    return t->order[0];
}

/* @return the least time of cuBLASLt's candidates, or of our own kernel, in microseconds; 0: none ran. */
static double least_us(const tuning *t, bool own) {
    float least = 0;
    for (int i = 0; i < t->n; i++)
        if (t->found[i].own == own && t->least[i] > 0 && (least == 0 || t->least[i] < least))
            least = t->least[i];
    return least * 1e3;
}

static void log_choice(const tuning *t, int best) {
    const gemm_key *k = &t->tuned->key;
    log_at(
        LOG_DEBUG,
        "GEMM %lld x %lld x %lld, %s -> %s%s%s%s: candidate %d of %d; %.1f us by cuBLASLt (%.1f with "
        "its first), %.1f by our own",
        (long long)k->m, (long long)k->n, (long long)k->k, dt_name((dtype)k->at),
        dt_name((dtype)k->ct), k->bias ? ", bias" : "", k->gelu ? ", GELU" : "",
        k->dgelu ? ", GELU'" : "", best, t->n, least_us(t, false), t->least[0] * 1e3,
        least_us(t, true));
}

static void find_candidates(tuning *t) {
    cublasLtMatmulPreference_t preference;
    uint32_t align = (uint32_t)t->tuned->key.align;
    cublasLtMatmulPreferenceCreate(&preference);
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &t->workspace.bytes, sizeof t->workspace.bytes);
    static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
    };
    for (size_t i = 0; i < COUNT_OF(aligned); i++)
        cublasLtMatmulPreferenceSetAttribute(preference, aligned[i], &align, sizeof align);
    cublasLtMatmulHeuristicResult_t offer[OFFERED];
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        t->x->device->gemm_cache->blas, t->tuned->op, t->tuned->a, t->tuned->b, t->tuned->c,
        t->tuned->c, preference, OFFERED, offer, &t->n);
    cublasLtMatmulPreferenceDestroy(preference);
    if (status != CUBLAS_STATUS_SUCCESS) t->n = 0;
    for (int i = 0; i < t->n; i++) t->found[i] = (gemm_algo){ .blas = offer[i].algo };
    if (!t->x->device->offers_own_gemms || t->x->device->deterministic ||
        !cuda_gemm_hopper_fits(t->x, t->g))
        return;
    if (t->x->device->own_gemms) t->n = 0;
    t->found[t->n++] = (gemm_algo){ .own = true };
}

/* Trials run and are waited for; a stream under capture allows neither. */
static bool may_time(const cuda_context *x) {
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(x->stream, &status);
    return !x->device->deterministic && status == cudaStreamCaptureStatusNone;
}

void tuned_gemm_choose(cuda_context *x, tuned_gemm *tuned, const cuda_gemm *g, gemm_workspace w) {
    tuning *t = mem_alloc(sizeof *t);
    *t = (tuning){ .x = x, .tuned = tuned, .g = g, .workspace = w };
    find_candidates(t);
    int saved = gemm_cache_file_pick(x->device->gemm_cache->file, &tuned->key, t->found, t->n);
    bool trials = saved < 0 && t->n > 0 && may_time(x);
    int best = trials ? time_candidates(t) : MAX(saved, 0);
    tuned->usable = t->n > 0 && t->least[best] >= 0;
    if (tuned->usable) tuned->algo = t->found[best];
    if (tuned->usable && trials) {
        log_choice(t, best);
        gemm_cache_file_save(x->device->gemm_cache->file, &tuned->key, &tuned->algo);
    }
    free(t);
}
