/* A stand-in for libnvidia-ml.so.1: one GPU. */
#include <string.h>

typedef struct fake_memory {
    unsigned long long total, free, used;
} fake_memory;
static int gpu;
#define STATUS __attribute__((visibility("default"))) int
STATUS nvmlInit_v2(void);
STATUS nvmlShutdown(void);
STATUS nvmlDeviceGetHandleByIndex_v2(unsigned i, void **out);
STATUS nvmlDeviceGetHandleByUUID(const char *uuid, void **out);
STATUS nvmlDeviceGetMemoryInfo(void *d, fake_memory *out);
STATUS nvmlDeviceGetUtilizationRates(void *d, unsigned out[2]);
STATUS nvmlDeviceGetPowerUsage(void *d, unsigned *out);
STATUS nvmlDeviceGetTemperature(void *d, int sensor, unsigned *out);
STATUS nvmlDeviceGetTotalEccErrors(void *d, int type, int counter, unsigned long long *out);

STATUS nvmlInit_v2(void) { return 0; }
STATUS nvmlShutdown(void) { return 0; }
STATUS nvmlDeviceGetHandleByIndex_v2(unsigned i, void **out) {
    *out = &gpu;
    return i == 3 ? 0 : 2;
}
STATUS nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    *out = &gpu;
    return strcmp(uuid, "GPU-abc") ? 2 : 0;
}
STATUS nvmlDeviceGetMemoryInfo(void *d, fake_memory *out) {
    *out = (fake_memory){ 100, 60, 40 };
    return d == &gpu ? 0 : 2;
}
STATUS nvmlDeviceGetUtilizationRates(void *d, unsigned out[2]) {
    out[0] = 97;
    out[1] = 12;
    return 0;
}
STATUS nvmlDeviceGetPowerUsage(void *d, unsigned *out) {
    *out = 650500;
    return 0;
}
STATUS nvmlDeviceGetTemperature(void *d, int sensor, unsigned *out) {
    *out = 61;
    return sensor;
}
STATUS nvmlDeviceGetTotalEccErrors(void *d, int type, int counter, unsigned long long *out) {
    *out = 2;
    return type != 1 || counter;
}
