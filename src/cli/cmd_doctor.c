/* ingot doctor: what this build and this machine can do. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "io/io.h"
#include "ops/ops.h"

typedef struct doctor_args {
    bool json;
} doctor_args;
static const cli_arg args[] = {
    { "json", ARG_FLAG, offsetof(doctor_args, json), "", "print JSON" },
};
const cli_spec cmd_doctor_spec = { "doctor", "[--json]", args, (int)COUNT_OF(args), 0 };

/* ---- bandwidth: a copy, cut over all threads ------------------------------------------------- */
enum { COPY_BYTES = 256 << 20, ROUNDS = 8 };
typedef struct copy_job {
    char *from, *to;
    size_t each;
} copy_job;

static void copy_part(void *ctx, int64_t i, int worker) {
    const copy_job *j = ctx;
    memcpy(j->to + (size_t)i * j->each, j->from + (size_t)i * j->each, j->each);
}

/* Bytes read and written a second; 0 when there is no memory to try it. */
static double copy_rate(pool *p) {
    void *from = NULL, *to = NULL;
    double best = 0;
    err e = mem_map(COPY_BYTES, &from);
    if (!e) e = mem_map(COPY_BYTES, &to);
    if (!e) {
        copy_job j = { from, to, (size_t)(COPY_BYTES / pool_size(p) / 64 * 64) };
        memset(from, 1, COPY_BYTES);
        for (int r = 0; r < ROUNDS; r++) { /* the best: others only ever slow it down */
            double t0 = time_now();
            pool_run(p, pool_size(p), copy_part, &j);
            best = MAX(best, 2.0 * (double)j.each * pool_size(p) / (time_now() - t0));
        }
    }
    err_free(e);
    if (from) mem_unmap(from, COPY_BYTES);
    if (to) mem_unmap(to, COPY_BYTES);
    return best;
}

/* ---- the report -------------------------------------------------------------------------------- */
typedef struct findings {
    char compiler[64], isa[160];
    int threads, gpus;
    double memory, copy, fp32, bf16;
} findings;

static findings examine_cpu(void) {
    findings f = { .gpus = ops_cuda_count() };
    const op_backend *b = ops_cpu(OPS_ISA_BEST);
    pool *p = pool_new(0);
    snprintf(f.compiler, sizeof f.compiler, "%.60s", __VERSION__);
    for (int i = 0; ops_cpu_isa(i); i++) {
        size_t n = strlen(f.isa);
        snprintf(f.isa + n, sizeof f.isa - n, "%s%s", i ? ", " : "", ops_cpu_isa(i));
    }
    f.threads = pool_size(p);
    f.memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    f.copy = copy_rate(p);
    f.fp32 = ops_peak_flops(b, DT_F32, p);
    f.bf16 = b->bf16_products ? ops_peak_flops(b, DT_BF16, p) : 0;
    pool_free(p);
    return f;
}

static void line(const char *name, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void line(const char *name, const char *fmt, ...) {
    va_list list;
    printf("  %-14s ", name);
    va_start(list, fmt);
    vprintf(fmt, list);
    va_end(list);
    printf("\n");
}

static err print_gpu(int number) {
    ops_gpu_info g;
    op_backend *b = NULL;
    TRY(ops_cuda_describe(number, &g));
    printf("GPU %d\n", number);
    line("name", "%s, %d multiprocessors", g.name, g.multiprocessors);
    line("memory", "%.1f GiB, %.1f free", g.memory / 0x1p30, g.free_memory / 0x1p30);
    line("software", "driver for CUDA %d.%d, runtime %d.%d, cuBLASLt %s, cuDNN %s", g.driver / 1000,
         g.driver % 1000 / 10, g.runtime / 1000, g.runtime % 1000 / 10, g.blas, g.dnn);
    TRY(ops_cuda_open(number, false, &b));
    line("products", "fp32 %.1f TFLOP/s, bf16 %.0f TFLOP/s", ops_peak_flops(b, DT_F32, NULL) / 1e12,
         ops_peak_flops(b, DT_BF16, NULL) / 1e12);
    ops_cuda_close(b);
    return OK;
}

static void print_cpu(const findings *f) {
    char bytes[32];
    printf("ingot %s, compiler %s\n", INGOT_VERSION, f->compiler);
    printf("CPU\n");
    line("threads", "%d", f->threads);
    line("memory", "%s", str_bytes(bytes, sizeof bytes, f->memory));
    line("instructions", "%s (the last is used)", f->isa);
    line("copy", "%.1f GB/s", f->copy / 1e9);
    line("fp32 products", "%.0f GFLOP/s on registers", f->fp32 / 1e9);
    if (f->bf16 > 0)
        line("bf16 products", "%.0f GFLOP/s on registers", f->bf16 / 1e9);
    else
        line("bf16 products", "no instructions for them: train in fp32 here");
    if (!f->gpus)
        printf("GPU\n  none, or this ingot was built without CUDA (cmake --preset cuda)\n");
}

static err print_json(const findings *f) {
    json_t *gpus = json_array();
    for (int i = 0; i < f->gpus; i++) {
        ops_gpu_info g;
        err e = ops_cuda_describe(i, &g);
        if (e) {
            json_decref(gpus);
            return e;
        }
        json_array_append_new(gpus, json_pack("{s:s, s:f, s:i, s:i}", "name", g.name, "memory",
                                              g.memory, "driver", g.driver, "runtime", g.runtime));
    }
    json_t *o = json_pack("{s:s, s:s, s:i, s:f, s:s, s:f, s:f, s:f, s:o}", "version", INGOT_VERSION,
                          "compiler", f->compiler, "threads", f->threads, "memory", f->memory,
                          "instructions", f->isa, "copy_bytes_s", f->copy, "fp32_flops", f->fp32,
                          "bf16_flops", f->bf16, "gpus", gpus);
    json_dumpf(o, stdout, JSON_INDENT(2));
    printf("\n");
    json_decref(o);
    return OK;
}

err cmd_doctor(int argc, char **argv) {
    doctor_args a = { 0 };
    TRY(cli_parse(&cmd_doctor_spec, argc - 1, argv + 1, &a, NULL));
    findings f = examine_cpu();
    if (a.json) return print_json(&f);
    print_cpu(&f);
    for (int i = 0; i < f.gpus; i++) TRY(print_gpu(i));
    return OK;
}
