/* Attention on tensor cores, forward: attention_mma.cuh. */
#include "attention_mma.cuh"

/* ---- forward ------------------------------------------------------------------------------------- */
/* One tile's share of two rows: scores become probabilities, and what was summed is rescaled. */
template <int DIM>
static __device__ __forceinline__ void soften(const att &a, const two_rows &t, int tile,
                                              const uint8_t *kept, float (&s)[KEYS / 8][4],
                                              float (&most)[2], float (&sum)[2],
                                              float (&out)[DIM / 8][4]) {
    int lane = threadIdx.x % WARP, line = threadIdx.x / WARP * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = most[h], share = 0;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int j = tile + 8 * n + lane % 4 * 2 + i;
                float &x = s[n][2 * h + i];
                x = j >= t.lo[h] && j <= t.hi[h] ? att_score(a, x, LOG2E) : -INFINITY;
                top = fmaxf(top, x);
            }
        top = quad_max(top);
        float from = top == -INFINITY ? 0 : top, rescale = exp2_approx(most[h] - from);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            uint32_t keeps = a.drop.id ? kept[(line + 8 * h) * (KEYS / EIGHT) + n] : 0;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &x = s[n][2 * h + i];
                x = exp2_approx(x - from);
                share += x;
                if (a.drop.id) x = keeps >> (lane % 4 * 2 + i) & 1 ? x * a.drop.keep : 0;
            }
        }
        sum[h] = sum[h] * rescale + share;
        most[h] = top;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) out[n][2 * h] *= rescale, out[n][2 * h + 1] *= rescale;
    }
}

template <class T, int DIM>
static __global__ void __launch_bounds__(MMA_THREADS)
    attend_mma(att a, att_before before, mixed o, float *lse) {
    enum { LD = DIM + PAD, TILE_ELEMENTS = KEYS * LD };
    DYNAMIC_SHARED(pack16, shared);
    __shared__ int bounds[2][MMA_WARPS];
    T *qs = (T *)shared, *ks = qs + ROWS * LD, *vs = ks + 2 * TILE_ELEMENTS;
    uint8_t *kept = (uint8_t *)(vs + 2 * TILE_ELEMENTS);
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int head = blockIdx.y, group = head / (a.q / a.kv), begin, end;
    int64_t first = first_of_set(a);
    if (first >= a.n) return;
    int count = (int)min((int64_t)ROWS, a.n - first);
    queue_rows<T, DIM>(qs, a.qkv, a.stride, (int64_t)head * a.dim, first, a.n, ROWS, a.dim);
    keys_of_set(a, first, count, bounds, &begin, &end);
    load_key_tile<T, DIM>(a, group, begin, end, ks, vs);
    copies_commit();
    two_rows t = rows_of_lane(a, first, count, threadIdx.x);
    float most[2], sum[2], out[DIM / 8][4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        bool more = before.lse && t.live[h];
        most[h] = more ? before.lse[lse_at(a, head, t.i[h])] * LOG2E : -INFINITY;
        sum[h] = more && lane % 4 == 0 ? 1 : 0; /* the lanes' sums are added at the end */
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                out[n][2 * h + i] =
                    more && 8 * n < a.dim
                        ? read1(before.o, before.dt,
                                (t.i[h] * a.q + head) * a.dim + 8 * n + lane % 4 * 2 + i)
                        : 0;
    }
    for (int tile = begin, buffer = 0; tile < end; tile += KEYS, buffer ^= 1) {
        if (tile + KEYS < end)
            load_key_tile<T, DIM>(a, group, tile + KEYS, end, ks + (buffer ^ 1) * TILE_ELEMENTS,
                                  vs + (buffer ^ 1) * TILE_ELEMENTS);
        copies_commit();
        if (a.drop.id) draw_kept<KEYS, MMA_THREADS>(a, head, first, ROWS, tile, kept, threadIdx.x);
        copies_wait<1>();
        __syncthreads();
        float s[KEYS / 8][4];
        multiply_rows<T, DIM, KEYS>(s, qs, warp * 16, ks + buffer * TILE_ELEMENTS);
        soften<DIM>(a, t, tile, kept, s, most, sum, out);
        add_product<T, DIM, KEYS>(out, s, vs + buffer * TILE_ELEMENTS);
        __syncthreads();
    }
    copies_wait<0>();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float all = quad_sum(sum[h]), part = all > 0 ? 1 / all : 0;
        if (!t.live[h]) continue;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
            if (8 * n < a.dim)
                write_two(o, (t.i[h] * a.q + head) * a.dim + 8 * n + lane % 4 * 2,
                          out[n][2 * h] * part, out[n][2 * h + 1] * part, false);
        if (lse && lane % 4 == 0) lse[lse_at(a, head, t.i[h])] = (most[h] + log2f(all)) * LN2;
    }
}

template <class T, int DIM>
static void launch_attend_mma(const op_call *c, const att &a, const att_before &before,
                              const tensor *o, float *lse) {
    size_t shared = (ROWS + 4 * KEYS) * (DIM + PAD) * sizeof(T) + ROWS * (KEYS / EIGHT);
    dim3 grid((unsigned)ceil_div(a.n, ROWS), (unsigned)a.q);
    auto kernel = attend_mma<T, DIM>;
    LAUNCH(cuda_of(c), { grid, MMA_THREADS, shared }, kernel, a, before, mixed(*o), lse);
}

bool attend_by_mma(const op_call *c, const att &a, const att_before &before, const tensor *o,
                   float *lse) {
    if (!takes_mma(c, a)) return false;
    if (a.qkv_t == DT_BF16)
        WITH_HEAD(a.dim, launch_attend_mma<bf16, DIM>(c, a, before, o, lse));
    else
        WITH_HEAD(a.dim, launch_attend_mma<half, DIM>(c, a, before, o, lse));
    return true;
}
