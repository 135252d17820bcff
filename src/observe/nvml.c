/* NVML by dlopen: no header, no link, and nothing said when it is not there. The signatures are those of
 * nvml.h, whose ABI is stable; a status of 0 is success. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "observe/observe.h"

typedef struct nvml_memory {
    unsigned long long total, free, used;
} nvml_memory;
typedef struct nvml_utilization {
    unsigned gpu, memory;
} nvml_utilization;
enum { TEMPERATURE_GPU = 0, ECC_UNCORRECTED = 1, ECC_VOLATILE = 0 };

struct nvml {
    void *library, *gpu;
    int (*shutdown)(void);
    int (*memory)(void *gpu, nvml_memory *out);
    int (*utilization)(void *gpu, nvml_utilization *out);
    int (*power)(void *gpu, unsigned *milliwatts);
    int (*temperature)(void *gpu, int sensor, unsigned *out);
    int (*ecc)(void *gpu, int type, int counter, unsigned long long *out);
    double read_at; /* time_now of the values below */
    double mem, util, watts, celsius, errors;
};

/* ISO C has no cast from an object's address to a function's. */
static void find_symbol(void *library, const char *name, void *to) {
    void *symbol = dlsym(library, name);
    memcpy(to, &symbol, sizeof symbol);
}

/* The n-th GPU that CUDA shows: CUDA_VISIBLE_DEVICES renumbers them, NVML does not. */
static int find_gpu(void *library, int index, void **gpu) {
    int (*by_index)(unsigned, void **), (*by_uuid)(const char *, void **);
    find_symbol(library, "nvmlDeviceGetHandleByIndex_v2", &by_index);
    find_symbol(library, "nvmlDeviceGetHandleByUUID", &by_uuid);
    const char *at = getenv("CUDA_VISIBLE_DEVICES");
    for (int i = 0; at && i < index; i++) {
        at = strchr(at, ',');
        if (at) at++;
    }
    char entry[96] = "", *end = entry;
    if (at) snprintf(entry, sizeof entry, "%.*s", (int)strcspn(at, ","), at);
    long number = strtol(entry, &end, 10);
    if (*entry && *end) return by_uuid ? by_uuid(entry, gpu) : -1;
    return by_index ? by_index((unsigned)(*entry ? number : index), gpu) : -1;
}

nvml *nvml_open(const char *path, int gpu_index) {
    void *library = dlopen(path ? path : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    int (*init)(void);
    if (!library) return NULL;
    nvml *n = mem_alloc(sizeof *n);
    n->library = library;
    n->read_at = -INFINITY;
    find_symbol(library, "nvmlInit_v2", &init);
    find_symbol(library, "nvmlShutdown", &n->shutdown);
    find_symbol(library, "nvmlDeviceGetMemoryInfo", &n->memory);
    find_symbol(library, "nvmlDeviceGetUtilizationRates", &n->utilization);
    find_symbol(library, "nvmlDeviceGetPowerUsage", &n->power);
    find_symbol(library, "nvmlDeviceGetTemperature", &n->temperature);
    find_symbol(library, "nvmlDeviceGetTotalEccErrors", &n->ecc);
    if (init && init() == 0 && find_gpu(library, gpu_index, &n->gpu) == 0) return n;
    nvml_close(n);
    return NULL;
}

static void refresh_sample(nvml *n) {
    nvml_memory memory;
    nvml_utilization use;
    unsigned milliwatts, celsius;
    unsigned long long errors;
    n->mem = n->memory && !n->memory(n->gpu, &memory) ? (double)memory.used : NAN;
    n->util = n->utilization && !n->utilization(n->gpu, &use) ? use.gpu : NAN;
    n->watts = n->power && !n->power(n->gpu, &milliwatts) ? milliwatts / 1e3 : NAN;
    bool warm = n->temperature && !n->temperature(n->gpu, TEMPERATURE_GPU, &celsius);
    n->celsius = warm ? celsius : NAN;
    bool counted = n->ecc && !n->ecc(n->gpu, ECC_UNCORRECTED, ECC_VOLATILE, &errors);
    n->errors = counted ? (double)errors : NAN;
    n->read_at = time_now();
}

void nvml_read(nvml *n, observe_step *s) {
    if (time_now() - n->read_at > 1) refresh_sample(n); /* a call may take a millisecond */
    s->gpu_mem = n->mem;
    s->gpu_util = n->util;
    s->gpu_power = n->watts;
    s->gpu_temp = n->celsius;
    s->gpu_ecc = n->errors;
}

void nvml_close(nvml *n) {
    if (!n) return;
    if (n->shutdown) n->shutdown();
    dlclose(n->library);
    free(n);
}
