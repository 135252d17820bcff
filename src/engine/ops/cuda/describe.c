/* Which GPUs the machine has, why none can be used, and measured copy and GEMM rates (ingot doctor). */
#include "cuda_internal.h"

#include <math.h>
#include <string.h>

/* ---- devices and versions ---------------------------------------------------------------------- */

static err count_gpus(int *n) {
    *n = 0;
    cudaError_t status = cudaGetDeviceCount(n);
    cudaGetLastError(); /* clears it: a missing driver is not an error of a later call */
    if (status == cudaSuccess && *n > 0) return OK;
    *n = 0;
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    if (!driver)
        return err_hint(ERR("no NVIDIA driver was found"),
                        "install one, or pass the GPUs through to the container; --device cpu runs "
                        "without a GPU");
    if (status == cudaErrorInsufficientDriver)
        return err_hint(
            ERR("the NVIDIA driver supports CUDA up to %d.%d, this ingot was built with "
                "%d.%d",
                driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10),
            "update the driver, or build with a CUDA toolkit that it supports");
    if (status == cudaErrorNoDevice || status == cudaSuccess)
        return err_hint(ERR("the NVIDIA driver shows no GPU"),
                        "nvidia-smi lists those it knows, CUDA_VISIBLE_DEVICES may hide them; "
                        "--device cpu runs without a GPU");
    return err_hint(ERR("the GPUs do not answer: %s", cudaGetErrorString(status)),
                    "nvidia-smi may show more; --device cpu runs without a GPU");
}

int ops_cuda_count(void) {
    int n;
    err_free(count_gpus(&n));
    return n;
}

err ops_cuda_check(int number) {
    int n;
    TRY(count_gpus(&n));
    if (number >= 0 && number < n) return OK;
    return err_hint(ERR("GPU %d does not exist; the last one here is number %d", number, n - 1),
                    "set device.index to one that is here, or leave it out");
}

/* Finds the version in "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul ...": the
 * first word that consists of digits and dots. */
static void driver_version(char *out, size_t capacity) {
    char text[512] = "";
    FILE *f = fopen("/proc/driver/nvidia/version", "r");
    out[0] = 0;
    if (!f) return;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    text[strcspn(text, "\n")] = 0;
    char *next = NULL;
    for (char *w = strtok_r(text, " \t", &next); w; w = strtok_r(NULL, " \t", &next))
        if (strchr(w, '.') && strspn(w, "0123456789.") == strlen(w)) {
            snprintf(out, capacity, "%s", w);
            return;
        }
}

/* A library's version as text: 130100 is 13.1.0. */
static void version_text(size_t number, char *out, size_t capacity) {
    if (number)
        snprintf(out, capacity, "%zu.%zu.%zu", number / 10000, number / 100 % 100, number % 100);
    else
        snprintf(out, capacity, "none");
}

err ops_cuda_describe(int number, ops_gpu_info *out) {
    struct cudaDeviceProp p;
    size_t free_bytes = 0, all = 0;
    *out = (ops_gpu_info){ .name = "" };
    TRY(ops_cuda_check(number));
    cudaError_t status = cudaGetDeviceProperties(&p, number);
    if (status == cudaSuccess) status = cudaSetDevice(number);
    if (status == cudaSuccess) status = cudaMemGetInfo(&free_bytes, &all);
    if (status != cudaSuccess)
        return err_hint(ERR("GPU %d does not answer: %s", number, cudaGetErrorString(status)),
                        "nvidia-smi may show more; --device cpu runs without a GPU");
    snprintf(out->name, sizeof out->name, "%s", p.name);
    out->sms = p.multiProcessorCount;
    out->capability = 10 * p.major + p.minor;
    out->memory = (double)all;
    out->free_memory = (double)free_bytes;
    driver_version(out->driver, sizeof out->driver);
    cudaDriverGetVersion(&out->driver_cuda);
    cudaRuntimeGetVersion(&out->runtime);
    version_text(cuda_gemm_version(), out->blas, sizeof out->blas);
    version_text(cuda_attention_version(), out->dnn, sizeof out->dnn);
    return OK;
}

/* ---- measured rates ---------------------------------------------------------------------------- */
enum { COPY_BYTES = 1 << 30, COPY_ROUNDS = 6 };

typedef struct stopwatch {
    cudaStream_t stream;
    cudaEvent_t from, to;
} stopwatch;

/* @return bytes per second of a copy, the best of some rounds, since whatever else runs only ever slows
 * it down; NaN when an address is NULL. */
static double device_copy_rate(const stopwatch *w, void *to, const void *from, size_t bytes) {
    double best = NAN;
    if (!to || !from) return NAN;
    for (int i = 0; i < COPY_ROUNDS; i++) {
        cudaEventRecord(w->from, w->stream);
        if (cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, w->stream) != cudaSuccess) break;
        cudaEventRecord(w->to, w->stream);
        float ms = 0; /* stays 0 where the copy failed */
        if (cudaEventSynchronize(w->to) != cudaSuccess ||
            cudaEventElapsedTime(&ms, w->from, w->to) != cudaSuccess || !(ms > 0))
            continue;
        best = fmax((double)bytes / (ms * 1e-3), isnan(best) ? 0 : best);
    }
    return best;
}

static void measure_copies(const stopwatch *w, ops_gpu_speed *out) {
    void *a = NULL, *b = NULL, *host = NULL;
    size_t bus_bytes = COPY_BYTES / 4; /* the bus is slower: less takes long enough */
    if (cudaMalloc(&a, COPY_BYTES) != cudaSuccess) a = NULL;
    if (cudaMalloc(&b, COPY_BYTES) != cudaSuccess) b = NULL;
    if (cudaHostAlloc(&host, bus_bytes, 0) != cudaSuccess) host = NULL;
    out->copy = 2 * device_copy_rate(w, b, a, COPY_BYTES);
    out->to_device = device_copy_rate(w, a, host, bus_bytes);
    out->to_host = device_copy_rate(w, host, a, bus_bytes);
    cudaFree(a);
    cudaFree(b);
    cudaFreeHost(host);
}

/* @return floating-point operations per second of a large GEMM; NaN when this GPU cannot multiply the
 * type. */
static double gemm_rate(cuda_context *x, dtype dt, bool tf32) {
    cuda_device *d = x->device;
    bool before = d->tf32;
    d->tf32 = tf32;
    double rate = cuda_measure_gemm_rate(x, dt);
    d->tf32 = before;
    if (d->fault) rate = NAN;
    err_free(d->fault);
    d->fault = OK;
    return rate;
}

err ops_cuda_measure(const op_backend *b, ops_gpu_speed *out) {
    cuda_context *x = &((cuda_device *)b->context)->queue[QUEUE_COMPUTE];
    stopwatch w = { .stream = x->stream };
    *out = (ops_gpu_speed){ NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN };
    if (CUDA_OK(x, cudaEventCreate(&w.from)) && CUDA_OK(x, cudaEventCreate(&w.to))) {
        measure_copies(&w, out);
        out->fp32 = gemm_rate(x, DT_F32, false);
        out->tf32 = gemm_rate(x, DT_F32, true);
        out->bf16 = gemm_rate(x, DT_BF16, false);
        out->fp16 = gemm_rate(x, DT_F16, false);
        out->fp8 = gemm_rate(x, DT_E4M3, false);
    }
    if (w.from) cudaEventDestroy(w.from);
    if (w.to) cudaEventDestroy(w.to);
    cudaGetLastError(); /* clears it: failed allocations are not errors of a later call */
    return b->device->sync(b->context);
}
