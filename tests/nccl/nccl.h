/* The part of NCCL that comm_nccl.c calls, between threads of the process (stand_in.c). A call returns when it is done;
 * sending never waits. */
#ifndef INGOT_TESTS_NCCL_STAND_IN_H
#define INGOT_TESTS_NCCL_STAND_IN_H

#include <cuda_runtime_api.h>

typedef enum { ncclSuccess, ncclInProgress = 7 } ncclResult_t;
typedef enum {
    ncclUint8,
    ncclInt32,
    ncclInt64,
    ncclFloat16,
    ncclFloat32,
    ncclBfloat16
} ncclDataType_t;
typedef enum { ncclSum, ncclMax } ncclRedOp_t;
typedef struct nccl_stand_in *ncclComm_t;
typedef struct ncclUniqueId {
    char internal[128];
} ncclUniqueId;

/* Set by tests. */
extern int nccl_stand_in_version;
/* NCCL_ALGO when a communicator was last made; "": not set. */
extern char nccl_stand_in_algorithm[64];

ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRank(ncclComm_t *out, int ranks, ncclUniqueId id, int me);
ncclResult_t ncclCommDestroy(ncclComm_t c);
ncclResult_t ncclCommAbort(ncclComm_t c);
ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *e);
const char *ncclGetErrorString(ncclResult_t e);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclSend(const void *from, size_t n, ncclDataType_t t, int to, ncclComm_t c,
                      cudaStream_t s);
ncclResult_t ncclRecv(void *to, size_t n, ncclDataType_t t, int from, ncclComm_t c, cudaStream_t s);
ncclResult_t ncclAllGather(const void *in, void *out, size_t n, ncclDataType_t t, ncclComm_t c,
                           cudaStream_t s);
ncclResult_t ncclReduceScatter(const void *in, void *out, size_t n, ncclDataType_t t,
                               ncclRedOp_t op, ncclComm_t c, cudaStream_t s);
ncclResult_t ncclAllReduce(const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t op,
                           ncclComm_t c, cudaStream_t s);

#endif
