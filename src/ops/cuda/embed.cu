/* Token embedding: a gather of rows, and its transpose. Backward sorts the tokens on the device
 * (stable, so that a token's rows are added in their order: deterministic), then one block a
 * distinct token adds up its rows.
 *
 * Workspace: | keys in, out [N] | places in, out [N] | what the sort needs |
 */
#include <cub/device/device_radix_sort.cuh>

#include "device.cuh"

enum { THREADS = 128, PER_SM = 16 };

template <class A>
static __global__ void gather(const int32_t *tok, A table, A x, int64_t n, int64_t d) {
    int64_t eights = (d + 7) / 8, total = n * eights;
    for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < total;
         e += (int64_t)gridDim.x * THREADS) {
        int64_t row = e / eights, col = e % eights * 8, from = (int64_t)tok[row] * d;
        float v[8];
        table.load(from + col, from + d, v);
        x.store(row * d + col, row * d + d, v);
    }
}

extern "C" void cuda_embed(const op_call *c) {
    const tensor *table = &c->in[1], *x = &c->out[0], *all[] = { table, x };
    int64_t n = x->dim[0], d = x->dim[1];
    int blocks = grid_for(cuda_of(c), n * ceil_div(d, 8), THREADS, PER_SM);
    WITH_TYPE(common_type(d, all, 2), (gather<A><<<blocks, THREADS, 0, cuda_stream(c)>>>(
                                          (const int32_t *)c->in[0].data, A(*table), A(*x), n, d)));
    CUDA_LAUNCHED(c);
}

static __global__ void number(int32_t *place, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) place[i] = (int32_t)i;
}

/* Block (i, slice): when sorted token i begins a run, adds the run's rows of dx to its row. */
template <class A>
static __global__ void scatter(const int32_t *key, const int32_t *place, A dx, float *dtable,
                               int64_t n, int64_t d) {
    int64_t i = blockIdx.x;
    int32_t token = key[i];
    if (i > 0 && key[i - 1] == token) return;
    int64_t col = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * EIGHT;
    if (col >= d) return;
    float sum[8] = { 0 }, v[8];
    for (int64_t j = i; j < n && key[j] == token; j++) {
        int64_t row = place[j];
        dx.load(row * d + col, row * d + d, v);
        for (int k = 0; k < 8; k++) sum[k] += v[k];
    }
    float *to = dtable + token * d + col;
    for (int k = 0; k < 8; k++)
        if (col + k < d) to[k] += sum[k];
}

static size_t sort_bytes(int64_t n) {
    size_t bytes = 0;
    cub::DeviceRadixSort::SortPairs(nullptr, bytes, (const int32_t *)nullptr, (int32_t *)nullptr,
                                    (const int32_t *)nullptr, (int32_t *)nullptr, (int)n);
    return bytes;
}

extern "C" size_t cuda_embed_workspace(const op_call *c) {
    int64_t n = c->in[0].dim[0];
    return align_up(3 * (size_t)n * sizeof(int32_t), 256) + sort_bytes(n);
}

extern "C" void cuda_embed_bwd(const op_call *c) {
    const tensor *dx = &c->in[0], *all[] = { dx };
    int64_t n = dx->dim[0], d = dx->dim[1];
    cudaStream_t stream = cuda_stream(c);
    float *dtable = (float *)c->out[0].data;
    BUG_IF(c->out[0].dt != DT_F32);
    if (!(c->accumulate & 1))
        CUDA_OK(cuda_of(c), cudaMemsetAsync(dtable, 0, tensor_bytes(&c->out[0]), stream));
    int32_t *key = (int32_t *)c->run->workspace, *place = key + n, *sorted = place + n;
    size_t own = align_up(3 * (size_t)n * sizeof(int32_t), 256), bytes = sort_bytes(n);
    number<<<(unsigned)ceil_div(n, 256), 256, 0, stream>>>(sorted, n);
    CUDA_OK(cuda_of(c), cub::DeviceRadixSort::SortPairs((char *)c->run->workspace + own, bytes,
                                                        (const int32_t *)c->in[1].data, key, sorted,
                                                        place, (int)n, 0, 32, stream));
    dim3 blocks((unsigned)n, (unsigned)ceil_div(d, THREADS * EIGHT));
    WITH_TYPE(common_type(d, all, 1),
              (scatter<A><<<blocks, THREADS, 0, stream>>>(key, place, A(*dx), dtable, n, d)));
    CUDA_LAUNCHED(c);
}
