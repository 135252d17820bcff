/* NCCL between threads: every call is messages, which are kept in one list until they are received. Reductions run in the
 * type they are given, in the order of ranks, as NCCL's do in some order. */
#include <math.h>
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "tensor/tensor.h"

struct nccl_stand_in {
    unsigned long id;
    int n, me;
};

typedef struct message {
    unsigned long id; /* of the communicator */
    int from, to;
    size_t bytes;
    void *data;
    struct message *next;
} message;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t arrived = PTHREAD_COND_INITIALIZER;
static message *first;
static unsigned long ids;

/* Receives of a group wait until all its sends are made. */
static _Thread_local struct {
    int depth, n;
    struct {
        void *to;
        int from;
        ncclComm_t c;
    } get[64];
} group;

static void post(ncclComm_t c, int to, const void *data, size_t bytes) {
    message *m = mem_alloc(sizeof *m), **end = &first;
    *m = (message){ .id = c->id, .from = c->me, .to = to, .bytes = bytes };
    m->data = mem_alloc(bytes + 1);
    memcpy(m->data, data, bytes);
    pthread_mutex_lock(&lock);
    while (*end) end = &(*end)->next;
    *end = m;
    pthread_cond_broadcast(&arrived);
    pthread_mutex_unlock(&lock);
}

static void receive(ncclComm_t c, int from, void *to) {
    pthread_mutex_lock(&lock);
    for (;;) {
        message **at = &first;
        while (*at && ((*at)->id != c->id || (*at)->from != from || (*at)->to != c->me))
            at = &(*at)->next;
        message *m = *at;
        if (m) {
            *at = m->next;
            memcpy(to, m->data, m->bytes);
            free(m->data);
            free(m);
            break;
        }
        pthread_cond_wait(&arrived, &lock);
    }
    pthread_mutex_unlock(&lock);
}

static dtype stand_in_type(ncclDataType_t t) {
    static const dtype types[] = {
        [ncclUint8] = DT_U8,    [ncclInt32] = DT_I32,   [ncclInt64] = DT_I64,
        [ncclFloat16] = DT_F16, [ncclFloat32] = DT_F32, [ncclBfloat16] = DT_BF16
    };
    return types[t];
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    pthread_mutex_lock(&lock);
    unsigned long n = ++ids;
    pthread_mutex_unlock(&lock);
    memset(id, 0, sizeof *id);
    memcpy(id->internal, &n, sizeof n);
    return ncclSuccess;
}
int nccl_stand_in_version = 22703;
char nccl_stand_in_algorithm[64];

ncclResult_t ncclGetVersion(int *version) {
    *version = nccl_stand_in_version;
    return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t *out, int ranks, ncclUniqueId id, int me) {
    *out = mem_alloc(sizeof **out);
    const char *algorithm = getenv("NCCL_ALGO");
    pthread_mutex_lock(&lock);
    snprintf(nccl_stand_in_algorithm, sizeof nccl_stand_in_algorithm, "%s",
             algorithm ? algorithm : "");
    pthread_mutex_unlock(&lock);
    (*out)->n = ranks;
    (*out)->me = me;
    memcpy(&(*out)->id, id.internal, sizeof(*out)->id);
    return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t c) {
    free(c);
    return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t c) { return ncclCommDestroy(c); }
ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *e) { return *e = ncclSuccess; }
const char *ncclGetErrorString(ncclResult_t e) { return e ? "in progress" : "none"; }

ncclResult_t ncclGroupStart(void) {
    group.depth++;
    return ncclSuccess;
}
ncclResult_t ncclGroupEnd(void) {
    if (--group.depth) return ncclSuccess;
    for (int i = 0; i < group.n; i++) receive(group.get[i].c, group.get[i].from, group.get[i].to);
    group.n = 0;
    return ncclSuccess;
}
ncclResult_t ncclSend(const void *from, size_t n, ncclDataType_t t, int to, ncclComm_t c,
                      cudaStream_t s) {
    post(c, to, from, n * dt_size(stand_in_type(t)));
    return ncclSuccess;
}
ncclResult_t ncclRecv(void *to, size_t n, ncclDataType_t t, int from, ncclComm_t c,
                      cudaStream_t s) {
    BUG_IF(group.n == COUNT_OF(group.get));
    group.get[group.n].to = to;
    group.get[group.n].from = from;
    group.get[group.n++].c = c;
    group.depth++;
    return ncclGroupEnd();
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t n, ncclDataType_t t, ncclComm_t c,
                           cudaStream_t s) {
    size_t bytes = n * dt_size(stand_in_type(t));
    for (int i = 0; i < c->n; i++) post(c, i, in, bytes);
    for (int i = 0; i < c->n; i++) receive(c, i, (char *)out + (size_t)i * bytes);
    return ncclSuccess;
}

/* Members' n values, as they arrive, to out. */
static void reduce_messages(ncclComm_t c, dtype dt, size_t n, ncclRedOp_t op, void *out) {
    size_t bytes = n * dt_size(dt);
    float *sum = mem_alloc((n + 1) * sizeof *sum), *next = mem_alloc((n + 1) * sizeof *next);
    void *raw = mem_alloc(bytes + 1);
    for (int i = 0; i < c->n; i++) {
        receive(c, i, raw);
        dt_to_f32(dt, raw, next, (int64_t)n);
        for (size_t k = 0; k < n; k++) {
            bool larger = !(sum[k] >= next[k]) && !isnan(sum[k]);
            sum[k] = i == 0          ? next[k]
                     : op == ncclSum ? sum[k] + next[k]
                     : larger        ? next[k]
                                     : sum[k];
        }
        dt_from_f32(dt, sum, raw, (int64_t)n);
        dt_to_f32(dt, raw, sum, (int64_t)n);
    }
    dt_from_f32(dt, sum, out, (int64_t)n);
    free(sum);
    free(next);
    free(raw);
}
ncclResult_t ncclReduceScatter(const void *in, void *out, size_t n, ncclDataType_t t,
                               ncclRedOp_t op, ncclComm_t c, cudaStream_t s) {
    size_t bytes = n * dt_size(stand_in_type(t));
    for (int i = 0; i < c->n; i++) post(c, i, (const char *)in + (size_t)i * bytes, bytes);
    reduce_messages(c, stand_in_type(t), n, op, out);
    return ncclSuccess;
}
ncclResult_t ncclAllReduce(const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t op,
                           ncclComm_t c, cudaStream_t s) {
    for (int i = 0; i < c->n; i++) post(c, i, in, n * dt_size(stand_in_type(t)));
    reduce_messages(c, stand_in_type(t), n, op, out);
    return ncclSuccess;
}
