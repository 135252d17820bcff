/* The CUDA runtime, as far as src/engine/ops/cuda calls it, on a CPU: memory is the host's, and what is queued
 * is done as late as it may (queues.cpp). A call that is missing here does not compile. */
#ifndef INGOT_EMULATE_CUDA_RUNTIME_API_H
#define INGOT_EMULATE_CUDA_RUNTIME_API_H

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum cudaError { cudaSuccess, cudaErrorMemoryAllocation = 2 } cudaError_t;

typedef struct emulated_stream *cudaStream_t;
typedef struct emulated_event *cudaEvent_t;
typedef struct emulated_graph *cudaGraph_t;
typedef struct emulated_recording *cudaGraphExec_t;

enum {
    cudaEventBlockingSync = 1,
    cudaEventDisableTiming = 2,
    cudaEventWaitExternal = 1,
    cudaStreamNonBlocking = 1
};
enum {
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
};
enum { cudaStreamCaptureModeThreadLocal = 1 };
enum {
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
typedef enum { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 } cudaFuncAttribute;

/* ---- faults: kernels that do what they must not end the program (emulate.cpp) -------------------- */
static inline cudaError_t cudaGetLastError(void) { return cudaSuccess; }
static inline const char *cudaGetErrorString(cudaError_t e) {
    return e ? "out of memory" : "no error";
}

/* ---- queues.cpp ---------------------------------------------------------------------------------- */
cudaError_t cudaMalloc(void **p, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, cudaStream_t s);
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int at);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *now);
cudaError_t cudaStreamBeginCapture(cudaStream_t s, int mode);
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *made, cudaGraph_t g, int flags);
cudaError_t cudaGraphDestroy(cudaGraph_t g);
cudaError_t cudaGraphLaunch(cudaGraphExec_t made, cudaStream_t s);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t made);
/* Queues a call with a copy of these bytes. */
void emulate_call(cudaStream_t s, void (*call)(const void *bytes), const void *bytes, size_t n);

static inline cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
static inline cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    *ms = 0;
    return cudaSuccess;
}
static inline cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *most) {
    *least = *most = 0;
    return cudaSuccess;
}
static inline cudaError_t cudaMemGetInfo(size_t *left, size_t *all) {
    *left = *all = (size_t)1 << 34;
    return cudaSuccess;
}

/* ---- the device ---------------------------------------------------------------------------------- */
static inline cudaError_t cudaSetDevice(int number) { return cudaSuccess; }
static inline cudaError_t cudaDeviceGetAttribute(int *value, int which, int number) {
    /* SMs of an H200: they decide how many blocks a kernel has */
    *value = which == cudaDevAttrMultiProcessorCount      ? 132
             : which == cudaDevAttrComputeCapabilityMajor ? 9
                                                          : 227 << 10;
    return cudaSuccess;
}
static inline cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute which,
                                               int value) {
    return cudaSuccess; /* what a launch asks for is checked then */
}

#ifdef __cplusplus
}
#endif

#endif
