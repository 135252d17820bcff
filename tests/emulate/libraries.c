/* Replaces cuBLASLt and the driver: GEMMs are plain loops, so that the kernels around them can run.
 * Compiled without sanitizers; checks itself that matrices are within allocations. */
#include "ops/cuda/cuda_internal.h"

#include <math.h>
#include <sanitizer/asan_interface.h>
#include <stdlib.h>
#include <string.h>

/* ---- GEMM ---------------------------------------------------------------------------------------- */
err cuda_gemm_cache_new(const cuda_device *d, struct cuda_gemm_cache **out) {
    *out = NULL;
    return OK;
}
void cuda_gemm_cache_free(struct cuda_gemm_cache *cache) {}
double cuda_measure_gemm_rate(cuda_context *x, dtype dt) { return NAN; }

/* Row i of a matrix in memory; it has `cols` elements there. */
static char *matrix_row(const void *p, dtype dt, int64_t i, int64_t stride, int64_t cols) {
    char *row = (char *)p + (size_t)(i * stride) * dt_size(dt);
    BUG_IF(__asan_region_is_poisoned(row, (size_t)cols * dt_size(dt)));
    return row;
}

/* @return [rows, cols] in fp32 from a matrix with this stride, or stored transposed. Owned. */
static float *matrix_to_fp32(const void *p, dtype dt, int64_t rows, int64_t cols, int64_t stride,
                             bool transposed) {
    float *v = mem_alloc((size_t)(rows * cols) * sizeof *v);
    float *line = transposed ? mem_alloc((size_t)rows * sizeof *line) : NULL;
    for (int64_t i = 0; i < rows && !transposed; i++)
        dt_to_f32(dt, matrix_row(p, dt, i, stride, cols), v + i * cols, (size_t)cols);
    for (int64_t j = 0; j < cols && transposed; j++) {
        dt_to_f32(dt, matrix_row(p, dt, j, stride, rows), line, (size_t)rows);
        for (int64_t i = 0; i < rows; i++) v[i * cols + j] = line[i];
    }
    free(line);
    return v;
}

static void run_gemm(const void *call) {
    const cuda_gemm *g = call;
    float *a = matrix_to_fp32(g->a, g->at, g->m, g->k, g->lda, g->ta);
    float *b = matrix_to_fp32(g->b, g->bt, g->k, g->n, g->ldb, g->tb);
    float *line = mem_alloc((size_t)g->n * sizeof *line);
    double *sum = mem_alloc((size_t)g->n * sizeof *sum);
    double scale = (g->scale_a ? *g->scale_a : 1.0) * (g->scale_b ? *g->scale_b : 1.0);
    for (int64_t i = 0; i < g->m; i++) {
        char *to = matrix_row(g->c, g->ct, i, g->ldc, g->n);
        memset(sum, 0, (size_t)g->n * sizeof *sum);
        for (int64_t k = 0; k < g->k; k++) {
            double factor = a[i * g->k + k];
            for (int64_t j = 0; j < g->n; j++) sum[j] += factor * b[k * g->n + j];
        }
        if (g->accumulate) dt_to_f32(g->ct, to, line, (size_t)g->n);
        for (int64_t j = 0; j < g->n; j++)
            line[j] = (float)(sum[j] * scale) + (g->accumulate ? line[j] : 0);
        dt_from_f32(g->ct, line, to, (size_t)g->n);
    }
    free(sum);
    free(line);
    free(a);
    free(b);
}

/* EMULATE_NO_GEMM=N: like a GPU without GEMMs of N rows or columns. */
static bool is_refused(const cuda_gemm *g) {
    const char *size = getenv("EMULATE_NO_GEMM");
    return size && (g->m == atoll(size) || g->n == atoll(size));
}

bool cuda_gemm_run(cuda_context *x, const cuda_gemm *g, void *workspace, size_t bytes) {
    if (is_refused(g)) return false;
    if (x->device->own_gemms && cuda_gemm_hopper(x, g)) return true;
    if (g->bias || g->gelu || g->dgelu) return false; /* our own kernels then add them */
    BUG_IF(g->alpha != 0 && g->alpha != 1);
    emulate_call(x->stream, run_gemm, g, sizeof *g);
    return true;
}

/* ---- the device ---------------------------------------------------------------------------------- */
int ops_cuda_count(void) { return 1; }
err ops_cuda_check(int number) {
    if (number == 0) return OK;
    return err_hint(ERR("no GPU number %d: the last one here is number 0", number), "use number 0");
}
err ops_cuda_describe(int number, ops_gpu_info *out) {
    *out = (ops_gpu_info){ .name = "emulated", .capability = 90 };
    return OK;
}
err ops_cuda_measure(const op_backend *b, ops_gpu_speed *out) { return ERR("nothing to measure"); }
