/* Attention on Hopper's tensor cores, forward: attention_hopper.cuh.
 *
 * The scores of a tile and the sums of the tile before it are multiplied at the same time, while the registers of
 * neither are read:
 *
 *     scores 0 | soften 0 | scores 1, sums 0 | soften 1 | scores 2, sums 1 | ... */
#include "attention_hopper.cuh"

template <int DIM, bool DROPS> struct forward_sizes {
    enum {
        LINES = DIM <= 128 ? 128 : 64,        /* keys of a tile */
        GROUPS = DIM == 64 && !DROPS ? 3 : 2, /* as many as there are registers for */
        STAGES_ = 2,
        ROWS_ = 64 * GROUPS,
        OWN = tile_bytes<DIM, 64>(),
        TILE = tile_bytes<DIM, LINES>(),
        SHARED = ALIGN + GROUPS * OWN + 2 * STAGES_ * TILE
    };
};

/* Scores become probabilities. @return in factor: what the sums so far are multiplied by */
template <int LINES, bool DROPS>
static __device__ __forceinline__ void soften_rows(const att &a, const two_rows &t, int tile,
                                                   bool all_seen, const uint32_t (&kept)[2],
                                                   float (&s)[LINES / 2], float (&most)[2],
                                                   float (&sum)[2], float (&factor)[2]) {
    int lane = threadIdx.x % WARP;
    float by = a.scale * LOG2E;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = -INFINITY, share = 0;
        if (!all_seen)
#pragma unroll
            for (int n = 0; n < LINES / 8; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    int j = tile + 8 * n + lane % 4 * 2 + i;
                    if (j < t.lo[h] || j > t.hi[h]) s[4 * n + 2 * h + i] = -INFINITY;
                }
#pragma unroll
        for (int n = 0; n < LINES / 8; n++)
            top = fmaxf(top, fmaxf(s[4 * n + 2 * h], s[4 * n + 2 * h + 1]));
        top = fmaxf(quad_max(top) * by, most[h]);
        float from = top == -INFINITY ? 0 : top;
        factor[h] = exp2_approx(most[h] - from);
#pragma unroll
        for (int n = 0; n < LINES / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float &x = s[4 * n + 2 * h + i];
                x = exp2_approx(fmaf(x, by, -from));
                share += x;
            }
        sum[h] = sum[h] * factor[h] + share;
        most[h] = top;
        if constexpr (DROPS) {
#pragma unroll
            for (int n = 0; n < LINES / 8; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float &x = s[4 * n + 2 * h + i];
                    x = row_keeps(kept[h], n, i) ? x : 0;
                }
        }
    }
}

template <int DIM>
static __device__ __forceinline__ void rescale(float (&out)[DIM / 2], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < DIM / 2; i++) out[i] *= factor[i / 2 % 2];
}

template <class T, int DIM, bool DROPS>
static __global__ void __launch_bounds__((forward_sizes<DIM, DROPS>::GROUPS + 1) * GROUP_THREADS, 1)
    attend_hopper(const __grid_constant__ att_maps maps, const __grid_constant__ att a,
                  att_before before, mixed o, float *lse) {
    typedef forward_sizes<DIM, DROPS> S;
    enum { GROUPS = S::GROUPS, LINES = S::LINES };
    DYNAMIC_SHARED(char, memory);
    __shared__ uint64_t bars[4 * S::STAGES_ + 1];
    __shared__ seen_keys seen[GROUPS + 1], parts[2 * GROUPS];
    __shared__ uint32_t sixteens[S::STAGES_][LINES / SIXTEEN]; /* with dropout */
    char *own = aligned(memory), *tiles = own + GROUPS * S::OWN;
    uint64_t *have_queries = &bars[4 * S::STAGES_];
    stage_ring<S::STAGES_, S::TILE> keys = { tiles, bars, bars + S::STAGES_, 0, 0 },
                                    values = { tiles + S::STAGES_ * S::TILE, bars + 2 * S::STAGES_,
                                               bars + 3 * S::STAGES_, 0, 0 };
    int head = blockIdx.y, kv_head = head / (a.q / a.kv);
    int64_t first = (int64_t)(gridDim.x - 1 - blockIdx.x) * S::ROWS_;
    if (threadIdx.x == 0) {
        keys.init(GROUPS);
        values.init(GROUPS);
        barrier_init(have_queries, 1);
        barriers_ready();
    }
    find_seen_keys(a, first, GROUPS, seen, parts);
    int begin = seen[GROUPS].begin, end = seen[GROUPS].end;
    int count = end > begin ? (end - begin + LINES - 1) / LINES : 0;

    if (threadIdx.x < GROUP_THREADS) {
        keep_registers<GROUPS>(true);
        if (threadIdx.x >= (DROPS ? WARP : 1)) return;
        bool copies = threadIdx.x == 0;
        int k = a.key_col + kv_head * DIM, v = k + a.kv * DIM;
        if (copies) {
            barrier_expect(have_queries, GROUPS * S::OWN);
            for (int g = 0; g < GROUPS; g++)
                copy_tile<DIM, 64>(own + g * S::OWN, &maps.q, head * DIM, (int)first + 64 * g,
                                   have_queries);
        }
        for (int t = 0; t <= count; t++) {
            if (t < count) {
                keys.wait_empty();
                if (DROPS) {
                    write_sixteens<LINES>(a, begin + t * LINES, sixteens[keys.at]);
                    __syncwarp();
                }
                if (copies) {
                    barrier_expect(&keys.full[keys.at], S::TILE);
                    copy_tile<DIM, LINES>(keys.stage(), &maps.kv, k, begin + t * LINES,
                                          &keys.full[keys.at]);
                }
                keys.next();
            }
            if (t > 0) {
                values.wait_empty();
                if (copies) {
                    barrier_expect(&values.full[values.at], S::TILE);
                    copy_tile<DIM, LINES>(values.stage(), &maps.kv, v, begin + (t - 1) * LINES,
                                          &values.full[values.at]);
                }
                values.next();
            }
        }
        return;
    }

    keep_registers<GROUPS>(false);
    int group = __shfl_sync(~0u, (int)threadIdx.x / GROUP_THREADS - 1, 0);
    int lane = threadIdx.x % WARP;
    const char *queries = own + group * S::OWN;
    query_group own_rows = query_group_of<LINES>(a, first, group, GROUPS, seen);
    const two_rows &t = own_rows.rows;
    int from = own_rows.from, to = own_rows.to;
    /* Sums are without the factor of what dropout keeps until the end. */
    float most[2], sum[2], factor[2], out[DIM / 2], unscaled = DROPS ? 1 / a.drop.keep : 1;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        bool more = before.lse && t.live[h];
        most[h] = more ? before.lse[lse_at(a, head, t.i[h])] * LOG2E : -INFINITY;
        sum[h] = more && lane % 4 == 0 ? 1 : 0; /* the lanes' sums are added at the end */
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                out[4 * n + 2 * h + i] =
                    more ? read1(before.o, before.dt,
                                 (t.i[h] * a.q + head) * DIM + 8 * n + lane % 4 * 2 + i) *
                               unscaled
                         : 0;
    }
    auto whole = [&](int tile) { return all_seen<LINES>(own_rows, tile); };
    uint64_t query[2];
    uint2 key;
    if (DROPS) query_ids(a, t, query), key = drop_key(a);
    barrier_wait(have_queries, 0);
    for (int at = 0; at < from; at++) keys.skip(), values.skip();
    if (from < to) {
        float s[LINES / 2];
        uint32_t p[LINES / 4], kept[2];
        int tile = begin + from * LINES;
        keys.wait_full();
        begin_scores<T, DIM, LINES>(s, queries, keys.stage());
        if (DROPS) draw_rows<LINES>(a, key, head, t, query, tile, sixteens[keys.at], kept);
        multiply_wait<0>();
        keys.release();
        keys.next();
        soften_rows<LINES, DROPS>(a, t, tile, whole(tile), kept, s, most, sum, factor);
        rescale<DIM>(out, factor); /* it may hold the result of other blocks */
        pack_scores<T, LINES>(p, s);
#pragma unroll 1
        for (int at = from + 1; at < to; at++) {
            tile += LINES;
            keys.wait_full();
            begin_scores<T, DIM, LINES>(s, queries, keys.stage());
            values.wait_full();
            begin_sums<T, DIM, LINES>(out, p, values.stage());
            if (DROPS) draw_rows<LINES>(a, key, head, t, query, tile, sixteens[keys.at], kept);
            multiply_wait<1>();
            keys.release();
            keys.next();
            soften_rows<LINES, DROPS>(a, t, tile, whole(tile), kept, s, most, sum, factor);
            multiply_wait<0>();
            values.release();
            values.next();
            rescale<DIM>(out, factor);
            pack_scores<T, LINES>(p, s);
        }
        values.wait_full();
        begin_sums<T, DIM, LINES>(out, p, values.stage());
        multiply_wait<0>();
        values.release();
        values.next();
    }
    for (int at = to; at < count; at++) keys.skip(), values.skip();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float all = quad_sum(sum[h]), part = all > 0 ? a.drop.keep / all : 0;
        if (!t.live[h]) continue;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
            write_two(o, (t.i[h] * a.q + head) * DIM + 8 * n + lane % 4 * 2,
                      out[4 * n + 2 * h] * part, out[4 * n + 2 * h + 1] * part, false);
        if (lse && lane % 4 == 0) lse[lse_at(a, head, t.i[h])] = (most[h] + log2f(all)) * LN2;
    }
}

template <class T, int DIM, bool DROPS>
static void launch_attend_hopper(const op_call *c, const att_maps &maps, const att &a,
                                 const att_before &before, const tensor *o, float *lse) {
    typedef forward_sizes<DIM, DROPS> S;
    dim3 grid((unsigned)ceil_div(a.n, S::ROWS_), (unsigned)a.q);
    LAUNCH(cuda_of(c), { grid, (S::GROUPS + 1) * GROUP_THREADS, S::SHARED },
           attend_hopper<T, DIM, DROPS>, maps, a, before, mixed(*o), lse);
}

extern "C" bool attend_by_hopper(const op_call *c, const att *a, const att_before *before,
                                 const tensor *o, float *lse) {
    att_maps maps = {};
    if (!takes_hopper(c, *a) || !encode_rows(&maps.q, a->qkv, a->qkv_t, a->n, a->stride) ||
        !encode_rows(&maps.kv, a->keys, a->key_t, a->n_keys, a->key_stride))
        return false;
    if (a->drop.id)
        WITH_WIDE_HEAD(a->dim, launch_attend_hopper<bf16, DIM, true>(c, maps, *a, *before, o, lse));
    else
        WITH_WIDE_HEAD(a->dim,
                       launch_attend_hopper<bf16, DIM, false>(c, maps, *a, *before, o, lse));
    return true;
}
