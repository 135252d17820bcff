/* Ranks with a GPU each, over NCCL. Nothing here waits for the GPU: a communication runs on a stream of
 * its own, after what the compute queue held when it was started; comm_wait makes the compute queue wait
 * for it.
 *
 *     compute   -- matmul --+------- matmul ----------+-- norm ...
 *                           | event                   ^ event: comm_wait
 *     group's stream        +-- [pack] NCCL [unpack] --
 *
 * A set of axes has one communicator, made when it is first used, and one stream. Messages have one for
 * each pair of ranks, direction and channel: a message that has not been received yet holds up only those
 * behind it. What a collective does along other dims than the first is packed and unpacked by copies.
 *
 * NCCL adds up in the type that it sends. On a narrower wire than the tensors' a sum is therefore an exchange of
 * rounded pieces, which each rank then adds up in fp32, and where all ranks get it, a gather of the rounded sums.
 *
 * A thread watches what is open: after the timeout, an error of NCCL or the end of another rank, it aborts
 * all communicators, so that nothing on the GPU waits for ever. */
#include "comm_internal.h"

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum { OPEN = 1024 }; /* communications that may be under way */

/* A communicator with its stream and the memory that it packs in. */
typedef struct nccl_link {
    ncclComm_t nccl;
    cudaStream_t stream;
    void *scratch;
    size_t scratch_bytes;
} nccl_link;

typedef struct message_link {
    axis_set axes;
    int from, to, channel; /* from, to: in the group */
    nccl_link l;
} message_link;

typedef struct open_move {
    cudaEvent_t ready, begun, done; /* ready and wait: of the compute queue */
    cudaEvent_t wait;
    bool waited;    /* and not counted yet */
    double started; /* 0: not under way */
    comm_move move;
} open_move;

typedef struct nccl_end {
    comm *host;
    comm_gpu gpu;
    nccl_link set[COMM_SETS];
    message_link *message;
    int messages, message_cap;
    open_move open[OPEN];
    uint64_t next, settled; /* communications begun; counted, in order */
    pthread_mutex_t lock;   /* of links and open moves, which the watching thread reads */
    pthread_t watcher;
    bool watched;
    _Atomic bool stop, failed;
    char cause[512]; /* written before failed */
} nccl_end;

/* ---- errors ------------------------------------------------------------------------------------ */
static err cuda_error(const char *what, cudaError_t status) {
    return status == cudaSuccess ? OK : ERR("%s: %s", what, cudaGetErrorString(status));
}
static err nccl_error(const char *what, ncclResult_t status) {
    if (status == ncclSuccess || status == ncclInProgress) return OK;
    return err_hint(ERR("NCCL, %s: %s", what, ncclGetErrorString(status)),
                    "NCCL_DEBUG=INFO shows more");
}
#define TRY_CUDA(call) TRY(cuda_error(#call, call))
#define TRY_NCCL(call) TRY(nccl_error(#call, call))

static err check_failed(const nccl_end *n) {
    return atomic_load(&n->failed) ? ERR("%s", n->cause) : OK;
}

/* ---- links ------------------------------------------------------------------------------------- */
static err link_open(nccl_end *n, const ncclUniqueId *id, int ranks, int me, nccl_link *out) {
    ncclComm_t made;
    TRY_CUDA(cudaSetDevice(n->gpu.number));
    TRY_NCCL(ncclCommInitRank(&made, ranks, *id, me));
    int lowest, highest; /* its kernels are few and others wait for them */
    TRY_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    TRY_CUDA(cudaStreamCreateWithPriority(&out->stream, cudaStreamNonBlocking, highest));
    pthread_mutex_lock(&n->lock);
    out->nccl = made;
    pthread_mutex_unlock(&n->lock);
    return OK;
}

/* NCCL reads NCCL_ALGO when it makes a communicator. From 2.24 on it takes an algorithm for all-reduces alone, and an
 * algorithm that another collective does not have would be an error there. The user's own value counts under "auto". */
static void set_algorithm_variable(nccl_algorithm algorithm) {
    enum { BY_COLLECTIVE = 22400 };
    int version = 0;
    ncclGetVersion(&version);
    bool alone = version >= BY_COLLECTIVE;
    switch (algorithm) {
    case NCCL_BY_SIZE: break;
    case NCCL_BY_RING: setenv("NCCL_ALGO", alone ? "allreduce:ring" : "Ring", 1); break;
    case NCCL_BY_TREE: setenv("NCCL_ALGO", alone ? "allreduce:tree" : "Tree", 1); break;
    }
}

/* The first member creates the id, and all others receive it over the host's communication. */
static err set_link(comm *c, axis_set axes, nccl_link **out) {
    nccl_end *n = c->state;
    ncclUniqueId id;
    *out = &n->set[axes];
    if (n->set[axes].nccl) return OK;
    int me = mesh_index(&c->m, axes), ranks = mesh_span(&c->m, axes);
    float bytes[sizeof id] = { 0 };
    if (me == 0) {
        TRY_NCCL(ncclGetUniqueId(&id));
        for (size_t i = 0; i < sizeof id; i++) bytes[i] = (uint8_t)id.internal[i];
    }
    TRY(comm_sum(n->host, axes, bytes, sizeof id));
    for (size_t i = 0; i < sizeof id; i++) id.internal[i] = (char)(uint8_t)bytes[i];
    return link_open(n, &id, ranks, me, *out);
}

/* Opens both directions of a channel between this rank and m->peer, whichever of the two is used first on either rank:
 * in a fixed order, so that two ranks that both begin by sending do not wait for each other. The lower one makes the
 * ids and sends them over the host's communication. */
static err open_message_links(comm *c, const comm_move *m) {
    nccl_end *n = c->state;
    int me = mesh_index(&c->m, m->axes), low = MIN(me, m->peer), high = MAX(me, m->peer);
    ncclUniqueId id[2];
    int64_t size = sizeof id;
    tensor t = tensor_of(id, DT_U8, 1, &size);
    comm_move over = *m;
    comm_ticket ticket;
    for (int i = 0; i < 2 && me == low; i++) TRY_NCCL(ncclGetUniqueId(&id[i]));
    over.kind = me == low ? MOVE_SEND : MOVE_RECV;
    over.wire = DT_NONE;
    TRY(comm_start(n->host, &over, me == low ? &t : NULL, me == low ? NULL : &t, &ticket));
    TRY(comm_wait(n->host, &ticket));
    for (int i = 0; i < 2; i++) {
        int from = i ? high : low, to = i ? low : high;
        pthread_mutex_lock(&n->lock); /* the list may move */
        message_link *k = &LIST_ADD(n->message, n->messages, n->message_cap);
        *k = (message_link){ .axes = m->axes, .from = from, .to = to, .channel = m->channel };
        pthread_mutex_unlock(&n->lock);
        TRY(link_open(n, &id[i], 2, me == to, &k->l));
    }
    return OK;
}

/* @return NULL when it is not open. */
static nccl_link *find_message_link(comm *c, const comm_move *m) {
    nccl_end *n = c->state;
    bool sends = comm_kind(m) == MOVE_SEND;
    int me = mesh_index(&c->m, m->axes), from = sends ? me : m->peer, to = sends ? m->peer : me;
    for (int i = 0; i < n->messages; i++) {
        message_link *k = &n->message[i];
        if (k->axes == m->axes && k->from == from && k->to == to && k->channel == m->channel)
            return &k->l;
    }
    return NULL;
}

static err message_link_of(comm *c, const comm_move *m, nccl_link **out) {
    *out = find_message_link(c, m);
    if (*out) return OK;
    TRY(open_message_links(c, m));
    *out = find_message_link(c, m);
    return OK;
}

static err reserve_scratch(nccl_link *l, size_t bytes, char **out) {
    if (l->scratch_bytes <
        bytes) { /* while shapes are new: a step makes the same calls every time */
        TRY_CUDA(cudaStreamSynchronize(l->stream));
        cudaFree(l->scratch);
        l->scratch = NULL;
        l->scratch_bytes = 0;
        TRY_CUDA(cudaMalloc(&l->scratch, bytes));
        l->scratch_bytes = bytes;
    }
    *out = l->scratch;
    return OK;
}

/* ---- types and boxes --------------------------------------------------------------------------- */
static ncclDataType_t type_of(dtype dt) {
    switch (dt) {
    case DT_F32: return ncclFloat32;
    case DT_BF16: return ncclBfloat16;
    case DT_F16: return ncclFloat16;
    case DT_I32: return ncclInt32;
    case DT_I64: return ncclInt64;
    default: return ncclUint8;
    }
}

/* @return the number of elements, or of bytes for types that NCCL only copies. */
static size_t units_of(dtype dt, int64_t n) {
    return type_of(dt) == ncclUint8 ? (size_t)n * dt_size(dt) : (size_t)n;
}

/* A tensor as three dims; its own are the last ones. */
typedef struct box3 {
    char *data;
    size_t dim[3], at[3];
} box3;

static box3 box3_of(const tensor *t, void *data) {
    box3 b = { .data = data, .dim = { 1, 1, 1 } };
    for (int i = 0; i < t->ndim; i++) b.dim[3 - t->ndim + i] = (size_t)t->dim[i];
    return b;
}

static err copy_box3(cudaStream_t s, const box3 *from, const box3 *to, const size_t *size,
                     size_t unit) {
    struct cudaMemcpy3DParms p = { .kind = cudaMemcpyDeviceToDevice };
    p.srcPtr =
        make_cudaPitchedPtr(from->data, from->dim[2] * unit, from->dim[2] * unit, from->dim[1]);
    p.dstPtr = make_cudaPitchedPtr(to->data, to->dim[2] * unit, to->dim[2] * unit, to->dim[1]);
    p.srcPos = make_cudaPos(from->at[2] * unit, from->at[1], from->at[0]);
    p.dstPos = make_cudaPos(to->at[2] * unit, to->at[1], to->at[0]);
    p.extent = make_cudaExtent(size[2] * unit, size[1], size[0]);
    TRY_CUDA(cudaMemcpy3DAsync(&p, s));
    return OK;
}

/* Copies part `index` of `parts` along dim `d` of the whole to or from a tensor that is this part alone. */
static err copy_part(cudaStream_t s, const tensor *whole, void *whole_data, void *part_data, int d,
                     int index, int parts, bool to_whole) {
    box3 w = box3_of(whole, whole_data), p = w;
    int axis = 3 - whole->ndim + d;
    p.data = part_data;
    p.dim[axis] /= (size_t)parts;
    w.at[axis] = (size_t)index * p.dim[axis];
    size_t unit = dt_size(whole->dt);
    return to_whole ? copy_box3(s, &p, &w, p.dim, unit) : copy_box3(s, &w, &p, p.dim, unit);
}

static bool is_outermost(const tensor *t, int d) {
    for (int i = 0; i < d; i++)
        if (t->dim[i] != 1) return false;
    return true;
}

/* ---- collectives ------------------------------------------------------------------------------- */
typedef struct job { /* one of them, on its stream */
    comm *c;
    nccl_link *l;
    comm_ticket *t;
    int n, me;
} job;

static err all_gather(const job *j) {
    const tensor *in = &j->t->in, *out = &j->t->out;
    int d = j->t->move.from.dim;
    size_t units = units_of(in->dt, tensor_count(in)), bytes = tensor_bytes(in);
    bool direct = is_outermost(in, d);
    char *to = out->data;
    if (!direct) TRY(reserve_scratch(j->l, bytes * (size_t)j->n, &to));
    TRY_NCCL(ncclAllGather(in->data, to, units, type_of(in->dt), j->l->nccl, j->l->stream));
    for (int i = 0; i < j->n && !direct; i++)
        TRY(copy_part(j->l->stream, out, out->data, to + (size_t)i * bytes, d, i, j->n, true));
    return OK;
}

static err reduce_scatter(const job *j) {
    const tensor *in = &j->t->in, *out = &j->t->out;
    int d = j->t->move.to.dim;
    size_t bytes = tensor_bytes(out);
    bool direct = is_outermost(in, d);
    char *from = in->data;
    if (!direct) TRY(reserve_scratch(j->l, bytes * (size_t)j->n, &from));
    for (int i = 0; i < j->n && !direct; i++)
        TRY(copy_part(j->l->stream, in, in->data, from + (size_t)i * bytes, d, i, j->n, false));
    TRY_NCCL(ncclReduceScatter(from, out->data, (size_t)tensor_count(out), type_of(out->dt),
                               ncclSum, j->l->nccl, j->l->stream));
    return OK;
}

static err all_reduce(const job *j, ncclRedOp_t op) {
    const tensor *in = &j->t->in;
    TRY_NCCL(ncclAllReduce(in->data, j->t->out.data, (size_t)tensor_count(in), type_of(in->dt), op,
                           j->l->nccl, j->l->stream));
    return OK;
}

/* Sends a piece to every member and receives one from each; sizes and offsets in bytes. */
static err send_and_receive(const job *j, const char *from, const size_t *send_at,
                            const size_t *send, char *to, const size_t *recv_at,
                            const size_t *recv) {
    TRY_NCCL(ncclGroupStart());
    for (int i = 0; i < j->n; i++) {
        if (send[i])
            TRY_NCCL(ncclSend(from + send_at[i], send[i], ncclUint8, i, j->l->nccl, j->l->stream));
        if (recv[i])
            TRY_NCCL(ncclRecv(to + recv_at[i], recv[i], ncclUint8, i, j->l->nccl, j->l->stream));
    }
    TRY_NCCL(ncclGroupEnd());
    return OK;
}

static err all_to_all(const job *j) {
    const tensor *in = &j->t->in, *out = &j->t->out;
    int d = j->t->move.from.dim, e = j->t->move.to.dim;
    size_t piece = tensor_bytes(in) / (size_t)j->n, all = tensor_bytes(in);
    size_t at[COMM_MAX_RANKS], size[COMM_MAX_RANKS];
    char *packed = NULL;
    TRY(reserve_scratch(j->l, 2 * all, &packed));
    for (int i = 0; i < j->n; i++) {
        at[i] = (size_t)i * piece;
        size[i] = piece;
        TRY(copy_part(j->l->stream, in, in->data, packed + at[i], e, i, j->n, false));
    }
    char *received = packed + all;
    TRY(send_and_receive(j, packed, at, size, received, at, size));
    for (int i = 0; i < j->n; i++)
        TRY(copy_part(j->l->stream, out, out->data, received + at[i], d, i, j->n, true));
    return OK;
}

/* Only the senders know how many rows they send: the hosts exchange the counts first. */
static err nccl_exchange_rows(const job *j) {
    nccl_end *n = j->c->state;
    const comm_move *m = &j->t->move;
    size_t row = tensor_bytes(&j->t->in) / (size_t)MAX(j->t->in.dim[0], 1);
    size_t send_at[COMM_MAX_RANKS], send[COMM_MAX_RANKS], recv_at[COMM_MAX_RANKS],
        recv[COMM_MAX_RANKS];
    int64_t own = j->n, all = own * own;
    int32_t *table = mem_alloc((size_t)all * sizeof *table);
    tensor mine = tensor_of((void *)m->send_rows, DT_I32, 1, &own);
    tensor every = tensor_of(table, DT_I32, 1, &all);
    comm_move gather = { .axes = m->axes, .from = PLACE_S(0), .to = PLACE_I, .name = m->name };
    comm_ticket ticket;
    err e = comm_start(n->host, &gather, &mine, &every, &ticket);
    if (!e) e = comm_wait(n->host, &ticket);
    size_t sent = 0, received = 0;
    for (int i = 0; i < j->n && !e; i++) {
        m->recv_rows[i] = table[i * j->n + j->me];
        send_at[i] = sent, recv_at[i] = received;
        send[i] = (size_t)m->send_rows[i] * row;
        recv[i] = (size_t)m->recv_rows[i] * row;
        sent += send[i], received += recv[i];
    }
    free(table);
    TRY(e);
    return send_and_receive(j, j->t->in.data, send_at, send, j->t->out.data, recv_at, recv);
}

static err shift_ring(const job *j) {
    int by = j->t->move.peer, n = j->n, to = ((j->me + by) % n + n) % n,
        from = ((j->me - by) % n + n) % n;
    TRY_NCCL(ncclGroupStart());
    TRY_NCCL(
        ncclSend(j->t->in.data, tensor_bytes(&j->t->in), ncclUint8, to, j->l->nccl, j->l->stream));
    TRY_NCCL(ncclRecv(j->t->out.data, tensor_bytes(&j->t->out), ncclUint8, from, j->l->nccl,
                      j->l->stream));
    TRY_NCCL(ncclGroupEnd());
    return OK;
}

static err send_or_receive(const job *j, bool sends) {
    const tensor *t = sends ? &j->t->in : &j->t->out;
    size_t bytes = tensor_bytes(t);
    TRY_NCCL(sends ? ncclSend(t->data, bytes, ncclUint8, 1, j->l->nccl, j->l->stream)
                   : ncclRecv(t->data, bytes, ncclUint8, 0, j->l->nccl, j->l->stream));
    return OK;
}

/* ---- narrow wires -------------------------------------------------------------------------------- */
/* @return a tensor of n elements of type dt, from element `first` of a buffer on. */
static tensor elements_at(void *data, dtype dt, int64_t first, int64_t n) {
    return tensor_of((char *)data + (size_t)first * dt_size(dt), dt, 1, &n);
}

/* out = a + b, or a, in the type of out; on the link's stream. */
static void add_on_gpu(const job *j, const tensor *a, const tensor *b, const tensor *out) {
    const nccl_end *n = j->c->state;
    static const tensor none;
    n->gpu.add(n->gpu.context, j->l->stream, a, b ? b : &none, out);
}

/* Gathers every member's `each` rounded elements, in place. */
static err gather_rounded(const job *j, char *rounded, int64_t each) {
    dtype wire = j->t->move.wire;
    TRY_NCCL(ncclAllGather(rounded + (size_t)(j->me * each) * dt_size(wire), rounded, (size_t)each,
                           type_of(wire), j->l->nccl, j->l->stream));
    return OK;
}

static err gather_narrow(const job *j) {
    const tensor *in = &j->t->in, *out = &j->t->out;
    int64_t each = tensor_count(in), all = each * j->n;
    dtype wire = j->t->move.wire;
    char *rounded = NULL;
    TRY(reserve_scratch(j->l, (size_t)all * dt_size(wire), &rounded));
    tensor from = elements_at(in->data, in->dt, 0, each),
           to = elements_at(out->data, out->dt, 0, all);
    tensor mine = elements_at(rounded, wire, j->me * each, each);
    tensor every = elements_at(rounded, wire, 0, all);
    add_on_gpu(j, &from, NULL, &mine);
    TRY(gather_rounded(j, rounded, each));
    add_on_gpu(j, &every, NULL, &to);
    return OK;
}

/* Sums piece `me` of n, of `each` elements, of all members' inputs in fp32; the last pieces of `count` elements may
 * be shorter. Scratch: the rounded input, then the pieces that arrive, then the sum if `sum` is NULL. */
static err sum_piece(const job *j, int64_t count, int64_t each, tensor *sum, char **scratch) {
    const tensor *in = &j->t->in;
    dtype wire = j->t->move.wire;
    int64_t all = each * j->n, mine = MAX(0, MIN(each, count - j->me * each));
    size_t bytes = (size_t)all * dt_size(wire), wide = (size_t)each * sizeof(float);
    size_t send_at[COMM_MAX_RANKS], recv_at[COMM_MAX_RANKS], send[COMM_MAX_RANKS],
        recv[COMM_MAX_RANKS];
    TRY(reserve_scratch(j->l, align_up(2 * bytes, 16) + wide, scratch));
    char *rounded = *scratch, *pieces = rounded + bytes;
    if (!sum->data) *sum = elements_at(rounded + align_up(2 * bytes, 16), DT_F32, 0, mine);
    tensor from = elements_at(in->data, in->dt, 0, count);
    tensor narrow = elements_at(rounded, wire, 0, count);
    add_on_gpu(j, &from, NULL, &narrow);
    for (int i = 0; i < j->n; i++) {
        send_at[i] = recv_at[i] = (size_t)(i * each) * dt_size(wire);
        send[i] = (size_t)MAX(0, MIN(each, count - i * each)) * dt_size(wire);
        recv[i] = (size_t)mine * dt_size(wire);
    }
    TRY(send_and_receive(j, rounded, send_at, send, pieces, recv_at, recv));
    for (int i = 0; i < j->n && mine; i++) {
        tensor piece = elements_at(pieces, wire, i * each, mine);
        add_on_gpu(j, i ? sum : &piece, i ? &piece : NULL, sum);
    }
    return OK;
}

static err all_reduce_narrow(const job *j) {
    const tensor *out = &j->t->out;
    int64_t count = tensor_count(out), each = (count + j->n - 1) / j->n;
    tensor sum = { 0 }, to = elements_at(out->data, out->dt, 0, count);
    char *rounded = NULL;
    TRY(sum_piece(j, count, each, &sum, &rounded));
    tensor mine = elements_at(rounded, j->t->move.wire, j->me * each, tensor_count(&sum));
    if (tensor_count(&sum)) add_on_gpu(j, &sum, NULL, &mine);
    TRY(gather_rounded(j, rounded, each));
    tensor every = elements_at(rounded, j->t->move.wire, 0, count);
    add_on_gpu(j, &every, NULL, &to);
    return OK;
}

/* Runs a move whose wire is narrower than its tensors: those of buckets, which are flat and fp32. */
static err run_narrow(const job *j) {
    move_kind k = comm_kind(&j->t->move);
    bool first =
        is_outermost(&j->t->in, j->t->move.from.dim) && is_outermost(&j->t->in, j->t->move.to.dim);
    if (j->t->in.dt == DT_F32 && first && k == MOVE_ALL_REDUCE) return all_reduce_narrow(j);
    if (j->t->in.dt == DT_F32 && first && k == MOVE_REDUCE_SCATTER) {
        tensor *out = &j->t->out, sum = elements_at(out->data, out->dt, 0, tensor_count(out));
        char *scratch = NULL;
        return sum_piece(j, tensor_count(&j->t->in), tensor_count(out), &sum, &scratch);
    }
    if (first && k == MOVE_ALL_GATHER) return gather_narrow(j);
    return ERR("GPUs do not send the %s of a %s tensor as %s", move_name(k), dt_name(j->t->in.dt),
               dt_name(j->t->move.wire));
}

static err run_collective(const job *j) {
    if (comm_rounds(j->t->in.dt, j->t->move.wire)) return run_narrow(j);
    switch (comm_kind(&j->t->move)) {
    case MOVE_ALL_REDUCE: return all_reduce(j, ncclSum);
    case MOVE_ALL_MAX: return all_reduce(j, ncclMax);
    case MOVE_ALL_GATHER: return all_gather(j);
    case MOVE_REDUCE_SCATTER: return reduce_scatter(j);
    case MOVE_ALL_TO_ALL: return all_to_all(j);
    case MOVE_ROWS: return nccl_exchange_rows(j);
    case MOVE_SHIFT: return shift_ring(j);
    case MOVE_SEND: return send_or_receive(j, true);
    case MOVE_RECV: return send_or_receive(j, false);
    default: BUG("a move that no other rank takes part in");
    }
}

/* ---- when bytes moved -------------------------------------------------------------------------- */
/* Counts the time between the events around its kernels; the part before the compute queue reached the wait is
 * hidden.
 * @return false while it is under way. */
static bool settle_move(comm *c, open_move *o) {
    float moved = 0, exposed = 0;
    if (!o->waited) return true;
    if (cudaEventQuery(o->done) != cudaSuccess || cudaEventQuery(o->wait) != cudaSuccess)
        return false;
    o->waited = false;
    if (cudaEventElapsedTime(&moved, o->begun, o->done) != cudaSuccess ||
        cudaEventElapsedTime(&exposed, o->wait, o->done) != cudaSuccess)
        return true;
    comm_counter *k = &c->count[o->move.axes][comm_kind(&o->move)];
    exposed = MIN(MAX(exposed, 0), moved);
    k->moving_seconds += (double)moved / 1000;
    k->hidden_seconds += (double)(moved - exposed) / 1000;
    return true;
}

static void nccl_settle(comm *c) {
    nccl_end *n = c->state;
    if (atomic_load(&n->failed)) return;
    for (; n->settled < n->next; n->settled++)
        if (!settle_move(c, &n->open[n->settled % OPEN])) return;
}

/* ---- start and wait ----------------------------------------------------------------------------- */
static err nccl_start(comm *c, comm_ticket *t) {
    nccl_end *n = c->state;
    move_kind k = comm_kind(&t->move);
    bool is_message = k == MOVE_SEND || k == MOVE_RECV;
    TRY(check_failed(n));
    job j = { c, NULL, t, mesh_span(&c->m, t->move.axes), mesh_index(&c->m, t->move.axes) };
    TRY(is_message ? message_link_of(c, &t->move, &j.l) : set_link(c, t->move.axes, &j.l));
    t->sequence = n->next++;
    open_move *o = &n->open[t->sequence % OPEN];
    if (!o->done) {
        TRY_CUDA(cudaEventCreateWithFlags(&o->ready, cudaEventDisableTiming));
        TRY_CUDA(cudaEventCreate(&o->begun));
        TRY_CUDA(cudaEventCreate(&o->wait));
        TRY_CUDA(cudaEventCreate(&o->done));
    }
    if (n->settled + OPEN <= t->sequence) { /* the ring is full: what it held is not counted */
        o->waited = false;
        n->settled = t->sequence - OPEN + 1;
    }
    cudaStream_t before[] = { n->gpu.compute, t->move.after };
    for (size_t i = 0; i < COUNT_OF(before) && before[i]; i++) {
        TRY_CUDA(cudaEventRecord(o->ready, before[i]));
        TRY_CUDA(cudaStreamWaitEvent(j.l->stream, o->ready, 0));
    }
    TRY_CUDA(cudaEventRecord(o->begun, j.l->stream));
    TRY(run_collective(&j));
    TRY_CUDA(cudaEventRecord(o->done, j.l->stream));
    pthread_mutex_lock(&n->lock);
    o->move = t->move;
    o->started = time_now();
    pthread_mutex_unlock(&n->lock);
    return OK;
}

static err nccl_wait(comm *c, comm_ticket *t) {
    nccl_end *n = c->state;
    TRY(check_failed(n));
    open_move *o = &n->open[t->sequence % OPEN];
    TRY_CUDA(cudaEventRecord(o->wait, n->gpu.compute));
    o->waited = true;
    TRY_CUDA(cudaStreamWaitEvent(n->gpu.compute, o->done, 0));
    return OK;
}

/* Moves without other ranks, in the GPU's memory. */
static err nccl_local(comm *c, const comm_ticket *t) {
    nccl_end *n = c->state;
    if (comm_kind(&t->move) == MOVE_SLICE)
        return copy_part(n->gpu.compute, &t->in, t->in.data, t->out.data, t->move.to.dim,
                         mesh_index(&c->m, t->move.axes), mesh_span(&c->m, t->move.axes), false);
    size_t bytes = MIN(tensor_bytes(&t->in), tensor_bytes(&t->out));
    if (t->in.data != t->out.data)
        TRY_CUDA(cudaMemcpyAsync(t->out.data, t->in.data, bytes, cudaMemcpyDeviceToDevice,
                                 n->gpu.compute));
    return OK;
}

/* ---- watching ---------------------------------------------------------------------------------- */
static void abort_links(nccl_end *n) {
    for (int i = 0; i < COMM_SETS; i++)
        if (n->set[i].nccl) ncclCommAbort(n->set[i].nccl), n->set[i].nccl = NULL;
    for (int i = 0; i < n->messages; i++)
        if (n->message[i].l.nccl) ncclCommAbort(n->message[i].l.nccl), n->message[i].l.nccl = NULL;
}

static bool link_is_bad(const nccl_link *l, ncclResult_t *why) {
    return l->nccl && (ncclCommGetAsyncError(l->nccl, why) != ncclSuccess ||
                       (*why != ncclSuccess && *why != ncclInProgress));
}

/* Returns the fault; NULL: none. The caller holds the lock. */
static const char *find_fault(nccl_end *n, double timeout, char *buf, size_t size) {
    char what[128];
    ncclResult_t why = ncclSuccess;
    for (int i = 0; i < COMM_SETS; i++)
        if (link_is_bad(&n->set[i], &why)) return ncclGetErrorString(why);
    for (int i = 0; i < n->messages; i++)
        if (link_is_bad(&n->message[i].l, &why)) return ncclGetErrorString(why);
    if (comm_failed_elsewhere(n->host)) return "another rank failed";
    for (int i = 0; i < OPEN; i++) {
        open_move *o = &n->open[i];
        if (o->started <= 0) continue;
        if (cudaEventQuery(o->done) == cudaSuccess)
            o->started = 0;
        else if (time_now() - o->started > timeout) {
            snprintf(buf, size, "rank %d has waited %.0f s in %s", n->host->m.rank, timeout,
                     comm_describe(&o->move, what, sizeof what));
            return buf;
        }
    }
    return NULL;
}

static void fail_links(nccl_end *n, const char *cause) {
    if (atomic_load(&n->failed)) return;
    snprintf(n->cause, sizeof n->cause, "%s", cause);
    atomic_store(&n->failed, true);
    abort_links(n);
}

static void *watch_links(void *arg) {
    comm *c = arg;
    nccl_end *n = c->state;
    char buf[512];
    cudaSetDevice(n->gpu.number);
    while (!atomic_load(&n->stop)) {
        nanosleep(&(struct timespec){ .tv_nsec = 200000000 }, NULL);
        pthread_mutex_lock(&n->lock);
        const char *cause =
            atomic_load(&n->failed) ? NULL : find_fault(n, comm_patience(c), buf, sizeof buf);
        if (cause) fail_links(n, cause);
        pthread_mutex_unlock(&n->lock);
        if (cause) comm_abort(n->host, cause);
    }
    return NULL;
}

static void nccl_abort(comm *c, const char *cause) {
    nccl_end *n = c->state;
    pthread_mutex_lock(&n->lock);
    fail_links(n, cause ? cause : "the run ends");
    pthread_mutex_unlock(&n->lock);
    comm_abort(n->host, cause);
}

static void link_close(nccl_link *l) {
    if (l->nccl) ncclCommDestroy(l->nccl);
    if (l->stream) cudaStreamDestroy(l->stream);
    cudaFree(l->scratch);
}

static void nccl_free(comm *c) {
    nccl_end *n = c->state;
    atomic_store(&n->stop, true);
    if (n->watched) pthread_join(n->watcher, NULL);
    if (!atomic_load(&n->failed)) cudaDeviceSynchronize();
    for (int i = 0; i < COMM_SETS; i++) link_close(&n->set[i]);
    for (int i = 0; i < n->messages; i++) link_close(&n->message[i].l);
    for (int i = 0; i < OPEN && n->open[i].done; i++) {
        cudaEventDestroy(n->open[i].ready);
        cudaEventDestroy(n->open[i].begun);
        cudaEventDestroy(n->open[i].wait);
        cudaEventDestroy(n->open[i].done);
    }
    free(n->message);
    pthread_mutex_destroy(&n->lock);
    comm_free(n->host);
    free(n);
}

static void nccl_set_algorithm(comm *c, nccl_algorithm algorithm) {
    nccl_end *n = c->state;
    cudaDeviceSynchronize();
    pthread_mutex_lock(&n->lock); /* the thread that watches looks at them */
    for (int i = 0; i < COMM_SETS; i++) {
        link_close(&n->set[i]);
        n->set[i] = (nccl_link){ 0 };
    }
    pthread_mutex_unlock(&n->lock);
    set_algorithm_variable(algorithm);
}

static bool nccl_failed_elsewhere(const comm *c) {
    const nccl_end *n = c->state;
    return comm_failed_elsewhere(n->host);
}

err comm_nccl(comm *host, const comm_gpu *gpu, comm **out) {
    static const comm_backend backend = { .name = "NCCL",
                                          .start = nccl_start,
                                          .wait = nccl_wait,
                                          .local = nccl_local,
                                          .abort = nccl_abort,
                                          .free = nccl_free,
                                          .failed_elsewhere = nccl_failed_elsewhere,
                                          .set_algorithm = nccl_set_algorithm,
                                          .settle = nccl_settle };
    nccl_end *n = mem_alloc(sizeof *n);
    set_algorithm_variable(gpu->algorithm);
    *n = (nccl_end){ .host = host, .gpu = *gpu };
    pthread_mutex_init(&n->lock, NULL);
    comm *c = *out = mem_alloc(sizeof *c);
    *c = (comm){ .backend = &backend,
                 .m = host->m,
                 .timeout = host->timeout,
                 .members = host->members,
                 .core_sharers = host->core_sharers,
                 .local_rank = host->local_rank,
                 .host = host,
                 .state = n };
    n->watched = pthread_create(&n->watcher, NULL, watch_links, c) == 0;
    if (n->watched) return OK;
    return ERR("the thread that watches over NCCL does not start");
}
