/* NVML by dlopen: no header, no link, and no message when it is not there. The signatures are those of
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
enum { TEMPERATURE_GPU = 0, ECC_CORRECTED = 0, ECC_UNCORRECTED = 1, ECC_VOLATILE = 0 };
enum { EVENT_XID = 0x8 };
/* Reasons for low clocks that are a fault of the host: a GPU or a board that is too hot, or short of power. A GPU that
 * computes GEMMs all the time is held at its power limit in every step, which is no fault. */
enum { HARDWARE_SLOWDOWN = 0x8, HOT = 0x20, HARDWARE_HOT = 0x40, POWER_BRAKE = 0x80 };
enum { THROTTLED = HARDWARE_SLOWDOWN | HOT | HARDWARE_HOT | POWER_BRAKE };
typedef struct nvml_event {
    void *gpu;
    unsigned long long type, data;
    unsigned instance[2];
} nvml_event;

struct nvml {
    void *library, *gpu;
    int (*shutdown)(void);
    int (*memory)(void *gpu, nvml_memory *out);
    int (*utilization)(void *gpu, nvml_utilization *out);
    int (*power)(void *gpu, unsigned *milliwatts);
    int (*temperature)(void *gpu, int sensor, unsigned *out);
    int (*ecc)(void *gpu, int type, int counter, unsigned long long *out);
    int (*throttle)(void *gpu, unsigned long long *reasons);
    int (*event_wait)(void *set, nvml_event *out, unsigned milliseconds);
    int (*event_free)(void *set);
    void *events;   /* NULL: Xid errors are not reported here */
    double read_at; /* time_now of the values below */
    double mem, util, watts, celsius, errors, corrected, throttled, xid;
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

/* The driver reports Xid errors as events. */
static void watch_xid(nvml *n) {
    int (*create)(void **), (*add)(void *gpu, unsigned long long types, void *set);
    find_symbol(n->library, "nvmlEventSetCreate", &create);
    find_symbol(n->library, "nvmlDeviceRegisterEvents", &add);
    find_symbol(n->library, "nvmlEventSetWait_v2", &n->event_wait);
    find_symbol(n->library, "nvmlEventSetFree", &n->event_free);
    if (!create || !add || !n->event_wait || create(&n->events) != 0) n->events = NULL;
    if (n->events && add(n->gpu, EVENT_XID, n->events) != 0) {
        if (n->event_free) n->event_free(n->events);
        n->events = NULL;
    }
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
    find_symbol(library, "nvmlDeviceGetCurrentClocksThrottleReasons", &n->throttle);
    n->xid = NAN;
    if (init && init() == 0 && find_gpu(library, gpu_index, &n->gpu) == 0) {
        watch_xid(n);
        return n;
    }
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
    counted = n->ecc && !n->ecc(n->gpu, ECC_CORRECTED, ECC_VOLATILE, &errors);
    n->corrected = counted && errors ? (double)errors : NAN;
    unsigned long long reasons;
    bool known = n->throttle && !n->throttle(n->gpu, &reasons);
    n->throttled = known ? (reasons & THROTTLED) != 0 : NAN;
    nvml_event event;
    while (n->events && n->event_wait(n->events, &event, 0) == 0)
        if (event.type & EVENT_XID) n->xid = (double)event.data;
    n->read_at = time_now();
}

void nvml_read(nvml *n, observe_step *s) {
    if (time_now() - n->read_at > 1) refresh_sample(n); /* a call may take a millisecond */
    s->gpu_mem = n->mem;
    s->gpu_util = n->util;
    s->gpu_power = n->watts;
    s->gpu_temp = n->celsius;
    s->gpu_ecc = n->errors;
    s->gpu_ecc_corrected = n->corrected;
    s->gpu_throttled = n->throttled;
    s->gpu_xid = n->xid;
}

void nvml_close(nvml *n) {
    if (!n) return;
    if (n->events && n->event_free) n->event_free(n->events);
    if (n->shutdown) n->shutdown();
    dlclose(n->library);
    free(n);
}
