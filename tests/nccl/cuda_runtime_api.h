/* The part of CUDA's runtime that comm_nccl.c calls, on the memory of the process: whatever is queued is done at
 * once. */
#ifndef INGOT_TESTS_CUDA_STAND_IN_H
#define INGOT_TESTS_CUDA_STAND_IN_H

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef enum { cudaSuccess, cudaErrorMemoryAllocation } cudaError_t;
typedef void *cudaStream_t, *cudaEvent_t;
typedef enum { cudaMemcpyDeviceToDevice = 3 } cudaMemcpyKind;
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };

typedef struct cudaPitchedPtr {
    void *ptr;
    size_t pitch, xsize, ysize;
} cudaPitchedPtr;
typedef struct cudaPos {
    size_t x, y, z;
} cudaPos;
typedef struct cudaExtent {
    size_t width, height, depth;
} cudaExtent;
struct cudaMemcpy3DParms {
    cudaPitchedPtr srcPtr, dstPtr;
    cudaPos srcPos, dstPos;
    cudaExtent extent;
    cudaMemcpyKind kind;
};

static inline cudaPitchedPtr make_cudaPitchedPtr(void *p, size_t pitch, size_t x, size_t y) {
    return (cudaPitchedPtr){ p, pitch, x, y };
}
static inline cudaPos make_cudaPos(size_t x, size_t y, size_t z) { return (cudaPos){ x, y, z }; }
static inline cudaExtent make_cudaExtent(size_t w, size_t h, size_t d) {
    return (cudaExtent){ w, h, d };
}
static inline char *pitched_row(const cudaPitchedPtr *p, const cudaPos *at, size_t y, size_t z) {
    return (char *)p->ptr + ((at->z + z) * p->ysize + at->y + y) * p->pitch + at->x;
}
static inline cudaError_t cudaMemcpy3DAsync(const struct cudaMemcpy3DParms *p, cudaStream_t s) {
    for (size_t z = 0; z < p->extent.depth; z++)
        for (size_t y = 0; y < p->extent.height; y++)
            memcpy(pitched_row(&p->dstPtr, &p->dstPos, y, z),
                   pitched_row(&p->srcPtr, &p->srcPos, y, z), p->extent.width);
    return cudaSuccess;
}
static inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind k,
                                          cudaStream_t s) {
    memmove(to, from, n);
    return cudaSuccess;
}
static inline cudaError_t cudaMalloc(void **out, size_t n) {
    *out = malloc(n ? n : 1);
    return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}
static inline cudaError_t cudaFree(void *p) {
    free(p);
    return cudaSuccess;
}
static inline const char *cudaGetErrorString(cudaError_t e) { return e ? "no memory" : "none"; }
static inline cudaError_t cudaSetDevice(int number) { return cudaSuccess; }
static inline cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }
static inline cudaError_t cudaDeviceGetStreamPriorityRange(int *low, int *high) {
    *low = *high = 0;
    return cudaSuccess;
}
static inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int p) {
    return cudaMalloc(s, 1);
}
static inline cudaError_t cudaStreamSynchronize(cudaStream_t s) { return cudaSuccess; }
static inline cudaError_t cudaStreamDestroy(cudaStream_t s) { return cudaFree(s); }
static inline cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
    return cudaSuccess;
}
static inline cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaMalloc(e, 1); }
static inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
    return cudaMalloc(e, 1);
}
static inline cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { return cudaSuccess; }
static inline cudaError_t cudaEventQuery(cudaEvent_t e) { return cudaSuccess; }
static inline cudaError_t cudaEventDestroy(cudaEvent_t e) { return cudaFree(e); }
static inline cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    *ms = 0;
    return cudaSuccess;
}

#endif
