/* The CUDA runtime, as far as src/ops/cuda calls it, on a CPU: memory is the host's, and what is queued
 * is done at once. So streams and events have nothing to do; recording is refused, which callers can
 * live with. A call that is missing here does not compile. */
#ifndef INGOT_EMULATE_CUDA_RUNTIME_API_H
#define INGOT_EMULATE_CUDA_RUNTIME_API_H

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef enum cudaError {
    cudaSuccess,
    cudaErrorMemoryAllocation = 2,
    cudaErrorNotSupported = 801
} cudaError_t;

typedef struct emulated_stream *cudaStream_t;
typedef struct emulated_event *cudaEvent_t;
typedef struct emulated_graph *cudaGraph_t;
typedef struct emulated_recording *cudaGraphExec_t;

enum {
    cudaEventDisableTiming = 2,
    cudaEventWaitExternal = 1,
    cudaStreamNonBlocking = 1,
    cudaHostRegisterMapped = 2
};
enum { cudaDevAttrMultiProcessorCount = 16, cudaStreamCaptureModeThreadLocal = 1 };
enum {
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone };
typedef enum { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 } cudaFuncAttribute;

/* ---- faults: kernels that do what they must not end the program (emulate.cpp) -------------------- */
static inline cudaError_t cudaGetLastError(void) { return cudaSuccess; }
static inline const char *cudaGetErrorString(cudaError_t e) {
    return e == cudaErrorMemoryAllocation ? "out of memory" : e ? "not emulated" : "no error";
}

/* ---- memory -------------------------------------------------------------------------------------- */
static inline cudaError_t cudaMalloc(void **p, size_t bytes) {
    return posix_memalign(p, 256, bytes) ? cudaErrorMemoryAllocation : cudaSuccess;
}
static inline cudaError_t cudaFree(void *p) {
    free(p);
    return cudaSuccess;
}
static inline cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags) {
    return cudaMalloc(p, bytes);
}
static inline cudaError_t cudaFreeHost(void *p) { return cudaFree(p); }
static inline cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags) {
    return cudaSuccess;
}
static inline cudaError_t cudaHostUnregister(void *p) { return cudaSuccess; }
static inline cudaError_t cudaHostGetDevicePointer(void **seen, void *p, unsigned flags) {
    *seen = p;
    return cudaSuccess;
}
static inline cudaError_t cudaMemGetInfo(size_t *left, size_t *all) {
    *left = *all = (size_t)1 << 34;
    return cudaSuccess;
}
static inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind,
                                          cudaStream_t s) {
    memcpy(to, from, bytes);
    return cudaSuccess;
}
static inline cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s) {
    memset(p, value, bytes);
    return cudaSuccess;
}

/* ---- streams and events: a byte each, so that one that is used or freed wrongly shows ------------- */
static inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) {
    *s = (cudaStream_t)malloc(1);
    return cudaSuccess;
}
static inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int at) {
    return cudaStreamCreateWithFlags(s, flags);
}
static inline cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *most) {
    *least = *most = 0;
    return cudaSuccess;
}
static inline cudaError_t cudaStreamDestroy(cudaStream_t s) { return cudaFree(s); }
static inline cudaError_t cudaStreamSynchronize(cudaStream_t s) { return cudaSuccess; }
static inline cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
    return cudaSuccess;
}
static inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
    *e = (cudaEvent_t)malloc(1);
    return cudaSuccess;
}
static inline cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
static inline cudaError_t cudaEventDestroy(cudaEvent_t e) { return cudaFree(e); }
static inline cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { return cudaSuccess; }
static inline cudaError_t cudaEventSynchronize(cudaEvent_t e) { return cudaSuccess; }
static inline cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    *ms = 0;
    return cudaSuccess;
}

/* ---- recording ----------------------------------------------------------------------------------- */
static inline cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *now) {
    *now = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
static inline cudaError_t cudaStreamBeginCapture(cudaStream_t s, int mode) {
    return cudaErrorNotSupported;
}
static inline cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g) {
    return cudaErrorNotSupported;
}
static inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t g, int flags) {
    return cudaErrorNotSupported;
}
static inline cudaError_t cudaGraphDestroy(cudaGraph_t g) { return cudaErrorNotSupported; }
static inline cudaError_t cudaGraphLaunch(cudaGraphExec_t made, cudaStream_t s) {
    return cudaErrorNotSupported;
}
static inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t made) {
    return cudaErrorNotSupported;
}

/* ---- the device ---------------------------------------------------------------------------------- */
static inline cudaError_t cudaSetDevice(int number) { return cudaSuccess; }
static inline cudaError_t cudaDeviceGetAttribute(int *value, int which, int number) {
    *value = 132; /* multiprocessors of an H200: it decides how many blocks a kernel has */
    return cudaSuccess;
}
static inline cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute which,
                                               int value) {
    return cudaSuccess; /* what a launch asks for is checked then */
}

#endif
