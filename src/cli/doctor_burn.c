/* Computations whose results are known, on the CPU or on a device, through the interface that training uses: memory
 * that must read back as it was written, and GEMMs that run for some seconds, each batch compared with what it must
 * yield.
 *
 * Operands of a GEMM are -1, 0 or 1, and a result sums DEPTH products, so that it is exact in fp32 and in bf16 (integers
 * up to 256), in whatever order it is summed. Rows repeat after ROW_PERIOD and columns after COL_PERIOD: a small table
 * has all results of a matrix of any size. */
#include <stdlib.h>
#include <string.h>

#include "cli/doctor.h"
#include "ops/op_table.h"
#include "util/fault.h"

/* ---- memory of a backend ------------------------------------------------------------------------- */
err doctor_map(const op_backend *b, size_t bytes, void **out) {
    *out = NULL;
    return b->device ? b->device->map(b->context, bytes, out) : mem_map(bytes, out);
}

void doctor_unmap(const op_backend *b, void *at, size_t bytes) {
    if (!at) return;
    if (b->device)
        b->device->unmap(b->context, at, bytes);
    else
        mem_unmap(at, bytes);
}

void doctor_put(const op_backend *b, void *to, const void *from, size_t bytes) {
    if (b->device)
        b->device->put(b->context, to, from, bytes);
    else
        memcpy(to, from, bytes);
}

err doctor_get(const op_backend *b, void *to, const void *from, size_t bytes) {
    if (b->device) return b->device->get(b->context, to, from, bytes);
    memcpy(to, from, bytes);
    return OK;
}

err doctor_sync(const op_backend *b) { return b->device ? b->device->sync(b->context) : OK; }

/* ---- memory ---------------------------------------------------------------------------------------- */
uint64_t doctor_word(uint64_t seed, uint64_t i) { return (i + seed) * 0x9E3779B97F4A7C15u ^ seed; }

enum { PIECE_WORDS = DOCTOR_PIECE_BYTES / 8 };

/* Writes the pattern of this pass, piece by piece. */
static void write_pattern(const doctor_burn *j, char *at, size_t bytes, uint64_t pass,
                          uint64_t *piece) {
    for (size_t from = 0; from < bytes; from += DOCTOR_PIECE_BYTES) {
        for (size_t i = 0; i < PIECE_WORDS; i++) piece[i] = doctor_word(pass, from / 8 + i);
        if (!from && fault_flips(FAULT_DOCTOR_MEMORY, j->rank)) piece[PIECE_WORDS / 2] ^= 1u << 7;
        doctor_put(j->b, at + from, piece, DOCTOR_PIECE_BYTES);
    }
}

static err read_pattern(const doctor_burn *j, const char *at, size_t bytes, uint64_t pass,
                        uint64_t *piece, int64_t *wrong) {
    for (size_t from = 0; from < bytes; from += DOCTOR_PIECE_BYTES) {
        TRY(doctor_get(j->b, piece, at + from, DOCTOR_PIECE_BYTES));
        for (size_t i = 0; i < PIECE_WORDS; i++)
            *wrong += piece[i] != doctor_word(pass, from / 8 + i);
    }
    return OK;
}

err doctor_burn_memory(const doctor_burn *j, size_t bytes, int64_t *wrong) {
    void *at = NULL;
    bytes = bytes / DOCTOR_PIECE_BYTES * DOCTOR_PIECE_BYTES;
    *wrong = 0;
    if (!bytes) return OK;
    TRY(doctor_map(j->b, bytes, &at));
    uint64_t *piece = mem_alloc(DOCTOR_PIECE_BYTES);
    err e = OK;
    for (uint64_t pass = 1; pass <= 2 && !e; pass++) {
        write_pattern(j, at, bytes, pass, piece);
        e = read_pattern(j, at, bytes, pass, piece, wrong);
    }
    free(piece);
    doctor_unmap(j->b, at, bytes);
    return e;
}

/* ---- GEMMs ------------------------------------------------------------------------------------------ */
enum { DEPTH = 256, ROW_PERIOD = 11, COL_PERIOD = 13, LEAST_SIZE = 256, MOST_SIZE = 4096 };

static int known_operand(uint64_t seed, int64_t row, int64_t k) {
    return (int)(doctor_word(seed, (uint64_t)(row * DEPTH + k)) >> 40) % 3 - 1;
}

/* A square of known results, y = x w^T, in the backend's memory. */
typedef struct known_gemm {
    const doctor_burn *job;
    dtype dt;
    int64_t size;
    op_run run;
    op_call call;
    size_t operand_bytes, result_bytes;
    char *host; /* [result_bytes] */
    float *row; /* [MAX(size, DEPTH)] */
    float expected[ROW_PERIOD][COL_PERIOD];
    void *x, *w, *y;
} known_gemm;

static void put_operand(known_gemm *g, void *to, uint64_t seed, int period) {
    for (int64_t i = 0; i < g->size; i++) {
        for (int64_t k = 0; k < DEPTH; k++) g->row[k] = (float)known_operand(seed, i % period, k);
        dt_from_f32(g->dt, g->row, g->host + (size_t)(i * DEPTH) * dt_size(g->dt), DEPTH);
    }
    doctor_put(g->job->b, to, g->host, g->operand_bytes);
}

static void fill_expected(known_gemm *g) {
    for (int i = 0; i < ROW_PERIOD; i++)
        for (int j = 0; j < COL_PERIOD; j++) {
            int sum = 0;
            for (int k = 0; k < DEPTH; k++) sum += known_operand(1, i, k) * known_operand(2, j, k);
            g->expected[i][j] = (float)sum;
        }
}

static void free_gemm(known_gemm *g) {
    const op_backend *b = g->job->b;
    doctor_unmap(b, g->run.workspace, g->run.workspace_bytes);
    doctor_unmap(b, g->y, g->result_bytes);
    doctor_unmap(b, g->w, g->operand_bytes);
    doctor_unmap(b, g->x, g->operand_bytes);
    free(g->row);
    free(g->host);
}

static err make_gemm(known_gemm *g, const doctor_burn *j, dtype dt, int64_t size) {
    *g = (known_gemm){ .job = j, .dt = dt, .size = size };
    g->operand_bytes = (size_t)(size * DEPTH) * dt_size(dt);
    g->result_bytes = (size_t)(size * size) * dt_size(dt);
    g->host = mem_alloc(MAX(g->result_bytes, g->operand_bytes));
    g->row = mem_alloc((size_t)MAX(size, (int64_t)DEPTH) * sizeof *g->row);
    g->run = (op_run){ .pool = j->p, .context = j->b->context, .queue = QUEUE_COMPUTE };
    g->call = (op_call){ .op = OP_LINEAR, .run = &g->run };
    g->call.in[0] = tensor_of(NULL, dt, 2, (int64_t[]){ size, DEPTH });
    g->call.in[1] = tensor_of(NULL, dt, 2, (int64_t[]){ size, DEPTH });
    g->call.out[0] = tensor_of(NULL, dt, 2, (int64_t[]){ size, size });
    g->run.workspace_bytes = ops_workspace(j->b, &g->call, pool_size(j->p)) + 64;
    TRY(doctor_map(j->b, g->operand_bytes, &g->x));
    TRY(doctor_map(j->b, g->operand_bytes, &g->w));
    TRY(doctor_map(j->b, g->result_bytes, &g->y));
    TRY(doctor_map(j->b, g->run.workspace_bytes, &g->run.workspace));
    g->call.in[0].data = g->x;
    g->call.in[1].data = g->w;
    g->call.out[0].data = g->y;
    fill_expected(g);
    put_operand(g, g->x, 1, ROW_PERIOD);
    put_operand(g, g->w, 2, COL_PERIOD);
    return ops_check(j->b, &g->call);
}

/* Runs it `times` times. @param seconds of all of them. */
static err run_gemm_batch(known_gemm *g, int times, double *seconds) {
    TRY(doctor_sync(g->job->b));
    double from = time_now();
    for (int i = 0; i < times; i++) ops_run(g->job->b, &g->call);
    TRY(doctor_sync(g->job->b));
    *seconds = MAX(time_now() - from, 1e-9);
    return OK;
}

static err compare_results(known_gemm *g, int64_t *wrong) {
    TRY(doctor_get(g->job->b, g->host, g->y, g->result_bytes));
    bool flips = fault_flips(FAULT_DOCTOR_GEMM, g->job->rank);
    for (int64_t i = 0; i < g->size; i++) {
        const float *expected = g->expected[i % ROW_PERIOD];
        dt_to_f32(g->dt, g->host + (size_t)(i * g->size) * dt_size(g->dt), g->row, g->size);
        if (flips && i == 0) g->row[7] += 1;
        for (int64_t j = 0; j < g->size; j++) *wrong += g->row[j] != expected[j % COL_PERIOD];
    }
    return OK;
}

/* Batches of about a tenth of a second until the time is over; at least one. */
static err burn_gemm(known_gemm *g, double seconds, double *rate, int64_t *wrong) {
    const double batch = 0.1;
    double until = time_now() + seconds, took = 0;
    int times = 1;
    do {
        TRY(run_gemm_batch(g, times, &took));
        TRY(compare_results(g, wrong));
        *rate = MAX(*rate, 2.0 * (double)(g->size * g->size) * DEPTH * times / took);
        if (took < batch / 2) times *= 2;
    } while (time_now() < until);
    return OK;
}

/* Sizes grow while a GEMM is short: then it keeps all of a GPU busy, and takes no minutes where one is emulated. */
err doctor_burn_gemm(const doctor_burn *j, dtype dt, double *rate, int64_t *wrong) {
    const double least = 0.002; /* seconds */
    double took = 0;
    known_gemm g;
    err e = OK;
    *rate = 0;
    *wrong = 0;
    for (int64_t size = LEAST_SIZE; size <= MOST_SIZE && took < least && !e; size *= 2) {
        e = make_gemm(&g, j, dt, size);
        if (!e) e = run_gemm_batch(&g, 1, &took); /* tunes, where the backend does */
        if (!e) e = run_gemm_batch(&g, 1, &took);
        bool last = took >= least || size == MOST_SIZE;
        if (!e && last) e = burn_gemm(&g, j->seconds, rate, wrong);
        free_gemm(&g);
    }
    return e;
}

/* ---- a GPU -------------------------------------------------------------------------------------------- */
static size_t gpu_test_bytes(int number) {
    const size_t most = (size_t)4 << 30, least = 32 << 20;
    ops_gpu_info g = { .free_memory = 0 };
    err e = ops_cuda_describe(number, &g);
    err_free(e);
    return g.free_memory > 0 ? MIN(most, (size_t)(g.free_memory / 4)) : least;
}

err doctor_burn_gpu(const doctor_burn *j, int number, doctor_gpu *out) {
    int64_t wrong = 0;
    size_t bytes = gpu_test_bytes(number);
    *out = (doctor_gpu){ .bytes = (double)bytes };
    TRY(doctor_burn_memory(j, bytes, &out->wrong_words));
    TRY(doctor_burn_gemm(j, DT_F32, &out->fp32, &out->wrong_results));
    TRY(doctor_burn_gemm(j, DT_BF16, &out->bf16, &wrong));
    out->wrong_results += wrong;
    return OK;
}
