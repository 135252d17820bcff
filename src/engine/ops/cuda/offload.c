/* Optimizer updates whose state (optimizer.offload) or parameters (training.offload_params) are in host memory. They
 * are copied to the device in pieces, the same kernels as for all other updates run on each piece, and it is copied back:
 *
 *     copies in    0 | 1 | 2 | 3 |
 *     updates          0 | 1 | 2 | 3
 *     copies out           0 | 1 | 2 | 3
 *
 * The copy engines move the bytes, on a queue for each direction, so that both directions of the bus are
 * busy at once and kernels of the compute queue keep the SMs to themselves. A piece waits in one of SLOTS
 * slots of the workspace; an event per slot marks that its last copy out is done and the slot can be
 * reused.
 *
 * Updates on the update queue follow each other without a gap on the bus: copies in do not wait for that
 * queue. They must wait for the copies out of the step before instead: whoever queues a step's updates
 * first lets QUEUE_COMPUTE join QUEUE_COPY_OUT, then QUEUE_COPY_IN join QUEUE_COMPUTE. */
#include "cuda_internal.h"

#include <stdlib.h>

#include "ops/block8.h"
#include "ops/op_table.h"

/* Elements of a piece: a multiple of BLOCK8, and enough that its time on the bus exceeds the time its
 * update may wait for a GEMM that occupies all SMs. Tests set a smaller one. */
#ifndef OFFLOAD_PIECE
#define OFFLOAD_PIECE (1 << 23)
#endif
enum { PIECE = OFFLOAD_PIECE, SLOTS = 3 };

struct cuda_offload {
    cudaEvent_t slot_free[SLOTS]; /* recorded after the slot's last copy out */
    int next;                     /* slot */
};

/* @return the slots' events, created by the first call. */
static struct cuda_offload *offload_of(cuda_context *x) {
    if (x->device->offload) return x->device->offload;
    struct cuda_offload *f = x->device->offload = mem_alloc(sizeof *f);
    for (int i = 0; i < SLOTS; i++)
        CUDA_OK(x, cudaEventCreateWithFlags(&f->slot_free[i], cudaEventDisableTiming));
    return f;
}

void cuda_offload_free(struct cuda_offload *f) {
    if (!f) return;
    for (int i = 0; i < SLOTS; i++) cudaEventDestroy(f->slot_free[i]);
    free(f);
}

/* ---- pieces ------------------------------------------------------------------------------------ */
/* Whether pieces of out[k] pass through slots: p is out[0], its copy comes after the states. So do 8-bit states
 * wherever they are, since the scales of a piece are stored apart from its codes. */
static bool passes_through_slot(const op_call *c, int k) {
    bool state = k > 0 && k <= op_states(c->op), host = c->attr.update.host_state;
    if (c->out[k].dt == DT_NONE || k > op_states(c->op) + 1) return false;
    if (!host && !c->attr.update.host_params) return false;
    return state ? host || c->out[k].dt == DT_U8 : c->attr.update.host_params;
}

static size_t piece_bytes(const tensor *t, int64_t n) {
    return t->dt == DT_U8 ? block8_bytes(n) : (size_t)n * dt_size(t->dt);
}
/* A slot holds a piece of each tensor, back to back. */
static size_t slot_part_bytes(const op_call *c, int k) {
    if (!passes_through_slot(c, k)) return 0;
    return align_up(piece_bytes(&c->out[k], MIN((int64_t)PIECE, tensor_count(&c->in[0]))), 256);
}
size_t cuda_offload_workspace(const op_backend *b, const op_call *c, int threads) {
    size_t slot = 0;
    for (int k = 0; k < OP_MAX_OUT; k++) slot += slot_part_bytes(c, k);
    return SLOTS * slot;
}

/* Divides the whole workspace, not what this call needs: all calls of a queue have the same
 * workspace, so that a slot is the same memory in each of them. */
static char *slot_of(const op_call *c, int slot) {
    size_t each = c->run->workspace_bytes / SLOTS / 256 * 256;
    return (char *)c->run->workspace + (size_t)slot * each;
}

/* Elements [at, at + n) of an update. */
typedef struct state_piece {
    const op_call *whole;
    int64_t at, n;
    char *slot;
} state_piece;

static void narrow_to_piece(const state_piece *p, tensor *t) {
    *t = tensor_of((char *)t->data + (size_t)p->at * dt_size(t->dt), t->dt, 1, &p->n);
}

/* @return the update of this piece alone: what passes through slots in its slot, all else where it is. */
static op_call call_of_piece(const state_piece *p) {
    op_call c = *p->whole;
    char *slot = p->slot;
    narrow_to_piece(p, &c.in[0]);
    for (int k = 0; k <= op_states(c.op) + 1; k++) {
        int64_t n = c.out[k].dt == DT_U8 ? (int64_t)block8_bytes(p->n) : p->n;
        if (passes_through_slot(p->whole, k))
            c.out[k] = tensor_of(slot, c.out[k].dt, 1, &n);
        else if (c.out[k].data)
            narrow_to_piece(p, &c.out[k]);
        slot += slot_part_bytes(p->whole, k);
    }
    c.attr.update.first += p->at;
    c.attr.update.host_state = c.attr.update.host_params = false;
    return c;
}

static void copy_bytes(cuda_context *x, void *slot, void *home, size_t n, bool in) {
    CUDA_OK(x,
            cudaMemcpyAsync(in ? slot : home, in ? home : slot, n, cudaMemcpyDefault, x->stream));
}

/* Queues copies of the piece from where it is kept to its slot (in), or back. The copy of p comes too: an update that
 * is skipped leaves what is in the slot. 8-bit codes are followed by the scales of their blocks
 * (ops/block8.h), both in the slot and on the host. */
static void copy_piece(cuda_device *d, const state_piece *p, bool in) {
    cuda_context *x = &d->queue[in ? QUEUE_COPY_IN : QUEUE_COPY_OUT];
    char *slot = p->slot;
    int64_t all = tensor_count(&p->whole->in[0]);
    for (int k = 0; k < OP_MAX_OUT; k++) {
        const tensor *t = &p->whole->out[k];
        if (!passes_through_slot(p->whole, k)) continue;
        if (t->dt == DT_U8) {
            copy_bytes(x, slot, (char *)t->data + p->at, (size_t)(block8_count(p->n) * BLOCK8), in);
            copy_bytes(x, block8_scales(slot, p->n), block8_scales(t->data, all) + p->at / BLOCK8,
                       (size_t)block8_count(p->n) * sizeof(float), in);
        } else {
            char *home = (char *)t->data + (size_t)p->at * dt_size(t->dt);
            copy_bytes(x, slot, home, piece_bytes(t, p->n), in);
        }
        slot += slot_part_bytes(p->whole, k);
    }
}

static void update_piece(cuda_device *d, const state_piece *p, op_kernel kernel) {
    struct cuda_offload *f = d->offload;
    cuda_context *in = &d->queue[QUEUE_COPY_IN], *out = &d->queue[QUEUE_COPY_OUT];
    device_queue q = p->whole->run->queue;
    int slot = f->next;
    op_call own = call_of_piece(p);
    f->next = (slot + 1) % SLOTS;
    CUDA_OK(in, cudaStreamWaitEvent(in->stream, f->slot_free[slot], 0));
    copy_piece(d, p, true);
    cuda_join(d, q, QUEUE_COPY_IN);
    kernel(&own);
    cuda_join(d, QUEUE_COPY_OUT, q);
    copy_piece(d, p, false);
    CUDA_OK(out, cudaEventRecord(f->slot_free[slot], out->stream));
}

void cuda_update_offloaded(const op_call *c, op_kernel kernel) {
    cuda_device *d = cuda_of(c)->device;
    struct cuda_offload *f = offload_of(cuda_of(c));
    int64_t n = tensor_count(&c->in[0]);
    bool alone = c->run->queue == QUEUE_COMPUTE; /* what follows there may read the state */
    if (alone) cuda_join(d, QUEUE_COPY_IN, QUEUE_COMPUTE);
    for (int64_t at = 0; at < n; at += PIECE) {
        state_piece p = { c, at, MIN((int64_t)PIECE, n - at), slot_of(c, f->next) };
        update_piece(d, &p, kernel);
    }
    if (alone) cuda_join(d, QUEUE_COMPUTE, QUEUE_COPY_OUT);
}

/* ---- parameters that programs read -------------------------------------------------------------- */
static void cuda_fetch(const op_call *c) {
    BUG_IF(c->in[0].dt != c->out[0].dt);
    CUDA_OK(cuda_of(c), cudaMemcpyAsync(c->out[0].data, c->in[0].data, tensor_bytes(&c->in[0]),
                                        cudaMemcpyDefault, cuda_stream(c)));
}

KERNEL(FETCH, cuda_fetch);
