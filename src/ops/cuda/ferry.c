/* Updates whose state lies on the host. Pieces of it come to the device, are updated there by the
 * kernels of all other updates, and go back; copies are the copy engines' work, so that kernels of the
 * main queue have the processors to themselves, and both ways of the bus are busy at once:
 *
 *     in       0 | 1 | 2 | 3 |
 *     update       0 | 1 | 2 | 3
 *     out              0 | 1 | 2 | 3
 */
#include "cuda_internal.h"

#include <stdlib.h>

#include "ops/block8.h"
#include "ops/op_table.h"

/* Elements of a piece: whole blocks of bytes, and more time on the bus than its update may wait for
 * the product that has all processors. Tests have smaller ones. */
#ifndef FERRY_PIECE
#define FERRY_PIECE (1 << 23)
#endif
enum { PIECE = FERRY_PIECE, ROOMS = 3 };

struct cuda_ferry {
    cudaStream_t in, out;
    cudaEvent_t turn;        /* from one stream to another, where the wait follows at once */
    cudaEvent_t gone[ROOMS]; /* the room is free */
    int next;                /* room */
};

static struct cuda_ferry *ferry_of(cuda_context *x) {
    if (x->ferry) return x->ferry;
    struct cuda_ferry *f = x->ferry = mem_alloc(sizeof *f);
    CUDA_OK(x, cudaStreamCreateWithFlags(&f->in, cudaStreamNonBlocking));
    CUDA_OK(x, cudaStreamCreateWithFlags(&f->out, cudaStreamNonBlocking));
    CUDA_OK(x, cudaEventCreateWithFlags(&f->turn, cudaEventDisableTiming));
    for (int i = 0; i < ROOMS; i++)
        CUDA_OK(x, cudaEventCreateWithFlags(&f->gone[i], cudaEventDisableTiming));
    return f;
}

void cuda_ferry_free(struct cuda_ferry *f) {
    if (!f) return;
    for (int i = 0; i < ROOMS; i++) cudaEventDestroy(f->gone[i]);
    cudaEventDestroy(f->turn);
    cudaStreamDestroy(f->in);
    cudaStreamDestroy(f->out);
    free(f);
}

/* ---- pieces ------------------------------------------------------------------------------------ */
static int states_of(op_code op) {
    return op == OP_UPDATE_SGD ? 0 : op == OP_UPDATE_MOMENTUM || op == OP_UPDATE_LION ? 1 : 2;
}

static size_t state_bytes(const tensor *state, int64_t n) {
    return state->dt == DT_U8 ? block8_bytes(n) : (size_t)n * dt_size(state->dt);
}
/* A room has the state of one piece, one tensor behind the other. */
static size_t state_room(const op_call *c, int k) {
    return align_up(state_bytes(&c->out[1 + k], MIN((int64_t)PIECE, tensor_count(&c->in[0]))), 256);
}
static size_t room_bytes(const op_call *c) {
    size_t sum = 0;
    for (int k = 0; k < states_of(c->op); k++) sum += state_room(c, k);
    return sum;
}
size_t cuda_far_workspace(const op_backend *b, const op_call *c, int threads) {
    return c->attr.update.host_state ? ROOMS * room_bytes(c) : 0;
}

/* All calls aside have the same workspace, so that a room is the same memory in each of them. */
static char *room_of(const op_call *c, int room) {
    size_t each = c->run->workspace_bytes / ROOMS / 256 * 256;
    return (char *)c->run->workspace + (size_t)room * each;
}

typedef struct piece {
    const op_call *whole;
    int64_t at, n;
    char *room;
} piece;

/* The piece's own call: state in the room, the rest where it is. */
static op_call call_of_piece(const piece *p) {
    op_call c = *p->whole;
    int states = states_of(c.op);
    char *room = p->room;
    tensor *whole[] = { &c.in[0], &c.out[0], &c.out[states + 1] };
    for (size_t i = 0; i < COUNT_OF(whole); i++)
        if (whole[i]->data)
            *whole[i] = tensor_of((char *)whole[i]->data + (size_t)p->at * dt_size(whole[i]->dt),
                                  whole[i]->dt, 1, &p->n);
    for (int k = 0; k < states; k++) {
        bool bytes = c.out[1 + k].dt == DT_U8;
        int64_t n = bytes ? (int64_t)block8_bytes(p->n) : p->n;
        c.out[1 + k] = tensor_of(room, c.out[1 + k].dt, 1, &n);
        room += state_room(p->whole, k);
    }
    c.attr.update.first += p->at;
    c.attr.update.host_state = false;
    return c;
}

static void copy(cuda_context *x, cudaStream_t s, void *room, void *host, size_t n, bool in) {
    CUDA_OK(x, cudaMemcpyAsync(in ? room : host, in ? host : room, n,
                               in ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, s));
}

/* The piece's state, to its room or back. Bytes have their blocks' scales behind them. */
static void carry(cuda_context *x, cudaStream_t s, const piece *p, bool in) {
    char *room = p->room;
    int64_t all = tensor_count(&p->whole->in[0]);
    for (int k = 0; k < states_of(p->whole->op); k++) {
        const tensor *t = &p->whole->out[1 + k];
        if (t->dt == DT_U8) {
            copy(x, s, room, (char *)t->data + p->at, (size_t)(block8_count(p->n) * BLOCK8), in);
            copy(x, s, block8_scales(room, p->n), block8_scales(t->data, all) + p->at / BLOCK8,
                 (size_t)block8_count(p->n) * sizeof(float), in);
        } else {
            copy(x, s, room, (float *)t->data + p->at, state_bytes(t, p->n), in);
        }
        room += state_room(p->whole, k);
    }
}

/* `after` waits for what `before` has queued so far. */
static void follow(cuda_context *x, cudaStream_t after, cudaStream_t before) {
    CUDA_OK(x, cudaEventRecord(x->ferry->turn, before));
    CUDA_OK(x, cudaStreamWaitEvent(after, x->ferry->turn, 0));
}

/* Copies begin where the queue aside did, not when it gets here: one call's pieces follow another's
 * without a gap. What went to the host in the step before is there by then. */
static void begin(cuda_context *x, struct cuda_ferry *f) {
    cudaEvent_t forked = cuda_forked(x);
    if (forked)
        CUDA_OK(x, cudaStreamWaitEvent(f->in, forked, 0));
    else
        follow(x, f->in, x->stream);
}

static void move(cuda_context *x, struct cuda_ferry *f, const piece *p, op_kernel kernel) {
    int room = f->next;
    op_call own = call_of_piece(p);
    f->next = (room + 1) % ROOMS;
    CUDA_OK(x, cudaStreamWaitEvent(f->in, f->gone[room], 0));
    carry(x, f->in, p, true);
    follow(x, x->stream, f->in);
    kernel(&own);
    follow(x, f->out, x->stream);
    carry(x, f->out, p, false);
    CUDA_OK(x, cudaEventRecord(f->gone[room], f->out));
}

void cuda_update_far(const op_call *c, op_kernel kernel) {
    cuda_context *x = cuda_of(c);
    struct cuda_ferry *f = ferry_of(x);
    int64_t n = tensor_count(&c->in[0]);
    begin(x, f);
    for (int64_t at = 0; at < n; at += PIECE) {
        piece p = { c, at, MIN((int64_t)PIECE, n - at), room_of(c, f->next) };
        move(x, f, &p, kernel);
    }
    if (!cuda_forked(x)) cuda_ferry_join(x);
}

void cuda_ferry_join(cuda_context *x) {
    if (x->ferry) follow(x, x->stream, x->ferry->out);
}
