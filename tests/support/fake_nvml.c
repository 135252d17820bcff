/* A stand-in for libnvidia-ml.so.1: two GPUs, one by its index and one, idle at its power limit, by its UUID. */
#include <string.h>

typedef struct fake_memory {
    unsigned long long total, free, used;
} fake_memory;
static int gpu, idle_gpu;
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

STATUS nvmlDeviceGetCurrentClocksThrottleReasons(void *d, unsigned long long *out);
STATUS nvmlEventSetCreate(void **out);
STATUS nvmlDeviceRegisterEvents(void *d, unsigned long long types, void *set);
typedef struct fake_event {
    void *gpu;
    unsigned long long type, data;
    unsigned instance[2];
} fake_event;
STATUS nvmlEventSetWait_v2(void *set, fake_event *out, unsigned milliseconds);

STATUS nvmlInit_v2(void) { return 0; }
STATUS nvmlDeviceGetCurrentClocksThrottleReasons(void *d, unsigned long long *out) {
    *out = d == &idle_gpu ? 0x1 | 0x4 : 0x4 | 0x40; /* at the power limit: idle, or too hot */
    return 0;
}
static int events_left;
STATUS nvmlEventSetCreate(void **out) {
    *out = &events_left;
    events_left = 1;
    return 0;
}
STATUS nvmlDeviceRegisterEvents(void *d, unsigned long long types, void *set) {
    return types == 8 && set == &events_left ? 0 : 2;
}
STATUS nvmlEventSetWait_v2(void *set, fake_event *out, unsigned milliseconds) {
    if (!events_left) return 10; /* a timeout */
    events_left--;
    *out = (fake_event){ &gpu, 8, 79, { 0, 0 } };
    return 0;
}
STATUS nvmlShutdown(void) { return 0; }
STATUS nvmlDeviceGetHandleByIndex_v2(unsigned i, void **out) {
    *out = &gpu;
    return i == 3 ? 0 : 2;
}
STATUS nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    *out = &idle_gpu;
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
    *out = type ? 2 : 5;
    return counter;
}
