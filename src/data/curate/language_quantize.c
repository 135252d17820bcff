/* Quantizes the input matrix of a fastText model, as its .ftz files have it: a row is a norm and a direction, the
 * direction in parts of two columns, and each part and the norm are one of 256 centroids. So a row of 16 columns
 * takes 9 bytes instead of 64.
 *
 * Centroids are found by k-means over a sample of the rows, in a fixed order: the same matrix gives the same bytes. */
#include "curate/language_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CENTROIDS = 256, PART = 2, SAMPLE = 40000, ROUNDS = 25 };

/* Transposes centroids, so that distances from all of them are computed side by side. @param columns [n][256]. */
static void transpose_centroids(const float *centroids, int n, float *columns) {
    for (int k = 0; k < CENTROIDS; k++)
        for (int c = 0; c < n; c++) columns[c * CENTROIDS + k] = centroids[k * n + c];
}

static uint8_t nearest_centroid(const float *columns, const float *x, int n) {
    float distance[CENTROIDS] = { 0 }; /* squared */
    int best = 0;
    for (int c = 0; c < n; c++)
        for (int k = 0; k < CENTROIDS; k++) {
            float d = columns[c * CENTROIDS + k] - x[c];
            distance[k] += d * d;
        }
    for (int k = 1; k < CENTROIDS; k++)
        if (distance[k] < distance[best]) best = k;
    return (uint8_t)best;
}

/* Finds the centroids of points of n values; each point is `stride` values after the last. @param centroids
 * [256][n]. */
static void find_centroids(const float *points, int64_t count, int64_t stride, int n, uint64_t seed,
                           float *centroids) {
    int64_t sampled = MIN(count, SAMPLE);
    double *sum = mem_alloc((size_t)CENTROIDS * (size_t)n * sizeof *sum);
    int64_t members[CENTROIDS];
    float *columns = mem_alloc((size_t)CENTROIDS * (size_t)n * sizeof *columns);
    rng_key key = rng_key_of(seed, 0);
    int64_t *at = mem_alloc((size_t)sampled * sizeof *at);
    for (int64_t i = 0; i < sampled; i++)
        at[i] = (int64_t)rng_below(key, (uint64_t)i, (uint64_t)count) * stride;
    for (int k = 0; k < CENTROIDS; k++)
        memcpy(centroids + k * n, points + at[k % sampled], (size_t)n * sizeof *centroids);
    for (int round = 0; round < ROUNDS; round++) {
        memset(sum, 0, (size_t)CENTROIDS * (size_t)n * sizeof *sum);
        memset(members, 0, sizeof members);
        transpose_centroids(centroids, n, columns);
        for (int64_t i = 0; i < sampled; i++) {
            int k = nearest_centroid(columns, points + at[i], n);
            members[k]++;
            for (int c = 0; c < n; c++) sum[k * n + c] += (double)points[at[i] + c];
        }
        for (int k = 0; k < CENTROIDS; k++)
            for (int c = 0; c < n && members[k]; c++)
                centroids[k * n + c] = (float)(sum[k * n + c] / (double)members[k]);
    }
    free(columns);
    free(at);
    free(sum);
}

/* @return [rows][columns] the rows with length 1, and their lengths. */
static float *split_norms(const ft_matrix *m, float *norms) {
    float *rows = mem_alloc((size_t)(m->rows * m->columns) * sizeof *rows);
    memcpy(rows, m->data, (size_t)(m->rows * m->columns) * sizeof *rows);
    for (int64_t r = 0; r < m->rows; r++) {
        float *row = rows + r * m->columns;
        double sum = 0;
        for (int64_t c = 0; c < m->columns; c++) sum += (double)row[c] * (double)row[c];
        norms[r] = (float)sqrt(sum);
        for (int64_t c = 0; c < m->columns && sum > 0; c++) row[c] /= norms[r];
    }
    return rows;
}

/* Codes are as the file has them: a row's parts side by side, and the centroids of a part after those of the last. */
static void quantize_parts(const float *rows, ft_matrix *out, uint8_t *codes, float *centroids,
                           uint64_t seed) {
    const ft_quantizer *q = &out->q;
    float *columns = mem_alloc((size_t)CENTROIDS * (size_t)q->part * sizeof *columns);
    for (int32_t p = 0; p < q->parts; p++) {
        int width = p == q->parts - 1 ? q->last_part : q->part;
        float *from = centroids + (int64_t)p * CENTROIDS * q->part;
        const float *points = rows + (int64_t)p * q->part;
        find_centroids(points, out->rows, out->columns, width, seed + (uint64_t)p, from);
        transpose_centroids(from, width, columns);
        for (int64_t r = 0; r < out->rows; r++)
            codes[r * q->parts + p] = nearest_centroid(columns, points + r * out->columns, width);
    }
    free(columns);
}

void ft_quantize(const ft_matrix *m, uint64_t seed, ft_matrix *out, ft_quantized *memory) {
    int32_t parts = (int32_t)((m->columns + PART - 1) / PART);
    int32_t last = (int32_t)(m->columns - (int64_t)(parts - 1) * PART);
    BUG_IF(m->quantized || m->rows < 1);
    float *norms = mem_alloc((size_t)m->rows * sizeof *norms);
    float *rows = split_norms(m, norms);
    memory->codes = mem_alloc((size_t)(m->rows * parts));
    memory->norms = mem_alloc((size_t)m->rows);
    memory->centroids = mem_alloc((size_t)m->columns * CENTROIDS * sizeof *memory->centroids);
    memory->norm_centroids = mem_alloc(CENTROIDS * sizeof *memory->norm_centroids);
    *out = (ft_matrix){ .rows = m->rows,
                        .columns = m->columns,
                        .quantized = true,
                        .data = memory->codes,
                        .norms = memory->norms,
                        .q = { (int32_t)m->columns, parts, PART, last,
                               (const uint8_t *)memory->centroids },
                        .norm = { 1, 1, 1, 1, (const uint8_t *)memory->norm_centroids } };
    quantize_parts(rows, out, memory->codes, memory->centroids, seed);
    find_centroids(norms, m->rows, 1, 1, seed + UINT64_C(1000), memory->norm_centroids);
    for (int64_t r = 0; r < m->rows; r++)
        memory->norms[r] = nearest_centroid(memory->norm_centroids, norms + r, 1);
    free(rows);
    free(norms);
}

void ft_quantized_free(ft_quantized *memory) {
    free(memory->codes);
    free(memory->norms);
    free(memory->centroids);
    free(memory->norm_centroids);
}
