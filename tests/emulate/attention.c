/* Replaces cuDNN: attention in the form "documents" of attention_cudnn.c, so that the kernels run that
 * find documents and first keys and that process documents past the slots. Those kernels also compute
 * cuDNN's own part here.
 *
 *     tokens   | doc 0 | doc 1 | ... | doc SLOTS - 1 | doc SLOTS | ...
 *              |<------------ cuDNN's ------------->|<-- the remainder -->
 */
#include "ops/cuda/cuda_internal.h"
#include "ops/op_table.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS = 5, LONG = 20000, LONG_SLOTS = 500 };

static bool by_documents(const op_call *c) {
    return c->attr.heads.seq && c->attr.heads.documents && !c->attr.heads.window &&
           !c->attr.heads.sinks; /* attention_cudnn.c refuses them too */
}

static int64_t tokens(const op_call *c) { return c->in[c->op == OP_ATTENTION_BWD ? 1 : 0].dim[0]; }

/* Runs cuda_find_documents and checks its result against a loop. */
static void check_documents(const op_call *c, const int32_t *start, int64_t n, int slots,
                            cuda_documents *p) {
    static const int64_t width[3] = { 7, 3, 2 }; /* any */
    int64_t *begin = mem_alloc((size_t)(slots + 1) * sizeof *begin);
    int k = 0;
    cuda_find_documents(c, start, n, slots, width, p);
    cudaStreamSynchronize(cuda_stream(c));
    for (int64_t i = 0; i < n && k <= slots; i++)
        if (start[i] == i) begin[k++] = i;
    while (k <= slots) begin[k++] = n;
    for (k = 0; k <= slots; k++)
        for (int w = 0; w < 3; w++) BUG_IF(p->offset[w][k] != begin[k] * width[w]);
    for (k = 0; k < slots; k++) BUG_IF(p->length[k] != begin[k + 1] - begin[k]);
    BUG_IF(p->remainder != begin[slots]);
    free(begin);
}

/* The same for more tokens than the block scans at a time; once per process, since these never change. */
static void check_many_documents(const op_call *c, cuda_documents *p) {
    static bool checked;
    if (checked) return;
    checked = true;
    int32_t *start = mem_alloc(LONG * sizeof *start);
    for (int32_t i = 1; i < LONG; i++) start[i] = i * 37 % 71 < 2 ? i : start[i - 1];
    check_documents(c, start, LONG, LONG_SLOTS, p);
    free(start);
}

static void check_first_keys(const op_call *c, const int32_t *start, int32_t *first) {
    int64_t n = tokens(c), seq = c->attr.heads.seq;
    cuda_find_first_keys(c, start, n, seq, first);
    cudaStreamSynchronize(cuda_stream(c));
    for (int64_t i = 0; i < n; i++) BUG_IF(first[i] != start[i] - i / seq * seq);
}

/* Runs attention, and checks that the remainder alone does not write before its first token. */
static void attend(const op_call *c, const int32_t *remainder, void *work) {
    static const int32_t none = 0;
    size_t n = (size_t)tokens(c), bytes[OP_MAX_OUT] = { 0 };
    char *whole[OP_MAX_OUT] = { 0 };
    cuda_attention_remainder(c, &none, work);
    cudaStreamSynchronize(cuda_stream(c));
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (!c->out[i].data) continue;
        bytes[i] = tensor_bytes(&c->out[i]) / n * (size_t)*remainder;
        whole[i] = mem_alloc(bytes[i] + 1);
        memcpy(whole[i], c->out[i].data, bytes[i]);
        memset(c->out[i].data, 0xff, tensor_bytes(&c->out[i]));
    }
    cuda_attention_remainder(c, remainder, work);
    cudaStreamSynchronize(cuda_stream(c));
    for (int i = 0; i < OP_MAX_OUT; i++) {
        unsigned char *out = c->out[i].data;
        for (size_t k = 0; k < bytes[i]; k++) BUG_IF(out[k] != 0xff);
        if (out) memcpy(out, whole[i], bytes[i]);
        free(whole[i]);
    }
}

static bool is_captured(const op_call *c) {
    enum cudaStreamCaptureStatus status;
    cudaStreamIsCapturing(cuda_stream(c), &status);
    return status != cudaStreamCaptureStatusNone;
}

bool cuda_attention_cudnn(const op_call *c) {
    if (!by_documents(c) || is_captured(c)) return false; /* the checks read results at once */
    const int32_t *start = c->in[c->op == OP_ATTENTION_BWD ? 4 : 1].data;
    cuda_documents *documents = c->run->workspace;
    check_first_keys(c, start, c->run->workspace);
    check_many_documents(c, documents);
    check_documents(c, start, tokens(c), SLOTS, documents);
    attend(c, &documents->remainder, (char *)documents + align_up(sizeof *documents, 256));
    return true;
}

size_t cuda_attention_cudnn_bytes(const cuda_device *d, const op_call *c) {
    size_t first = (size_t)tokens(c) * sizeof(int32_t);
    if (!by_documents(c)) return 0;
    return MAX(first, align_up(sizeof(cuda_documents), 256) + cuda_attention_tiles_bytes(d, c));
}

err cuda_attention_new(struct cuda_attention **out) {
    *out = NULL;
    return OK;
}
void cuda_attention_free(struct cuda_attention *a) {}
