/* In cuDNN's place: attention by documents, as attention_cudnn.c runs it, so that the kernels run that
 * find the documents, and those that handle what cuDNN has no slot for. Ours compute its part too.
 *
 *     tokens   | doc 0 | doc 1 | ... | doc SLOTS - 1 | doc SLOTS | ...
 *              |<------------ cuDNN's ------------->|<-- the rest, ours -->
 */
#include "ops/cuda/cuda_internal.h"
#include "ops/op_table.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 5, LONG = 40000, LONG_SLOTS = 1000 };

static bool by_documents(const op_call *c) {
    return c->attr.heads.seq && c->attr.heads.documents && !c->attr.heads.window;
}

static int64_t tokens(const op_call *c) { return c->in[c->op == OP_ATTENTION_BWD ? 1 : 0].dim[0]; }

static void check_documents(const op_call *c, const int32_t *start, int64_t n, int slots,
                            cuda_places *p) {
    static const int64_t width[3] = { 7, 3, 2 }; /* any */
    int64_t *begin = mem_alloc((size_t)(slots + 1) * sizeof *begin);
    int k = 0;
    cuda_cut_documents(c, start, n, slots, width, p);
    cudaStreamSynchronize(cuda_stream(c));
    for (int64_t i = 0; i < n && k <= slots; i++)
        if (start[i] == i) begin[k++] = i;
    while (k <= slots) begin[k++] = n;
    for (k = 0; k <= slots; k++)
        for (int w = 0; w < 3; w++) BUG_IF(p->at[w][k] != begin[k] * width[w]);
    for (k = 0; k < slots; k++) BUG_IF(p->length[k] != begin[k + 1] - begin[k]);
    BUG_IF(p->rest != begin[slots]);
    free(begin);
}

/* More tokens than a block sees at a time. */
static void check_many_documents(const op_call *c, cuda_places *p) {
    int32_t *start = mem_alloc(LONG * sizeof *start);
    for (int32_t i = 1; i < LONG; i++) start[i] = i * 37 % 71 < 2 ? i : start[i - 1];
    check_documents(c, start, LONG, LONG_SLOTS, p);
    free(start);
}

static void check_first_keys(const op_call *c, const int32_t *start, int32_t *first) {
    int64_t n = tokens(c), seq = c->attr.heads.seq;
    cuda_row_starts(c, start, n, seq, first);
    cudaStreamSynchronize(cuda_stream(c));
    for (int64_t i = 0; i < n; i++) BUG_IF(first[i] != start[i] - i / seq * seq);
}

/* The rest alone must leave what is before it as it was. */
static void attend(const op_call *c, const int32_t *rest, void *work) {
    static const int32_t none = 0;
    size_t n = (size_t)tokens(c), bytes[OP_MAX_OUT] = { 0 };
    char *whole[OP_MAX_OUT] = { 0 };
    cuda_attention_rest(c, &none, work);
    cudaStreamSynchronize(cuda_stream(c));
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (!c->out[i].data) continue;
        bytes[i] = tensor_bytes(&c->out[i]) / n * (size_t)*rest;
        whole[i] = mem_alloc(bytes[i] + 1);
        memcpy(whole[i], c->out[i].data, bytes[i]);
        memset(c->out[i].data, 0xff, tensor_bytes(&c->out[i]));
    }
    cuda_attention_rest(c, rest, work);
    cudaStreamSynchronize(cuda_stream(c));
    for (int i = 0; i < OP_MAX_OUT; i++) {
        unsigned char *out = c->out[i].data;
        for (size_t k = 0; k < bytes[i]; k++) BUG_IF(out[k] != 0xff);
        if (out) memcpy(out, whole[i], bytes[i]);
        free(whole[i]);
    }
}

static bool recorded(const op_call *c) {
    enum cudaStreamCaptureStatus status;
    cudaStreamIsCapturing(cuda_stream(c), &status);
    return status != cudaStreamCaptureStatusNone;
}

bool cuda_attention_cudnn(const op_call *c) {
    if (!by_documents(c) || recorded(c)) return false; /* what is looked at has to be there */
    const int32_t *start = c->in[c->op == OP_ATTENTION_BWD ? 4 : 1].data;
    cuda_places *places = c->run->workspace;
    check_first_keys(c, start, c->run->workspace);
    check_many_documents(c, places);
    check_documents(c, start, tokens(c), SLOTS, places);
    attend(c, &places->rest, (char *)places + align_up(sizeof *places, 256));
    return true;
}

size_t cuda_attention_cudnn_bytes(const cuda_context *x, const op_call *c) {
    size_t first = (size_t)tokens(c) * sizeof(int32_t);
    if (!by_documents(c)) return 0;
    return MAX(first, align_up(sizeof(cuda_places), 256) + cuda_attention_tiles_bytes(c));
}

err cuda_attention_new(cudaStream_t stream, struct cuda_attention **out) {
    *out = NULL;
    return OK;
}
void cuda_attention_free(struct cuda_attention *a) {}
