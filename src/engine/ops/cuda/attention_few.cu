/* Attention of few tokens over a cache: a step of generation. The tokens' own keys and values are in the cache already (store_keys,
 * attention.cu), except those of a token alone, which the part that sees them reads from qkv and stores. The keys and values that a
 * token sees are read once for all heads of a set, which share them.
 *
 *     attend_parts     grid: parts of the keys x sets of HEADS heads x tokens
 *     join_parts       grid: heads x tokens; adds up the parts
 *
 * LANES adjacent lanes divide the columns of a head, eight each, so that a warp reads several keys at a time; each such group of
 * lanes has a maximum, a sum and an output of its own until the end. Deterministic: the keys of a part depend on the number that
 * a token sees, on the shapes and on the number of SMs. */
#include "attention.cuh"

enum {
    THREADS = 128,
    WARPS = THREADS / WARP,
    AHEAD = 4, /* keys that a group of lanes reads at once */
    MOST_PARTS = 64,
    FEWEST_KEYS = 32 /* of a part, where the cache is full */
};

/* Results of the parts, for each head of a token: the members of `partial`, one after another. */
typedef struct part_list {
    float *at;       /* [token][head][part]: dim + 2 floats */
    int parts, sets; /* sets: of heads that share keys */
} part_list;

static __device__ __forceinline__ float *part_at(const att &a, const part_list &p, int64_t token,
                                                 int head, int part) {
    return p.at + ((token * a.q + head) * p.parts + part) * (a.dim + 2);
}

/* Softmax of a head over some keys, not yet divided: the largest score, the sum of the keys' weights 2^(score - most), and the
 * sum of the values times these. */
struct partial {
    float most, sum, out[EIGHT];
    __device__ __forceinline__ void add(float most_, float sum_, const float (&out_)[EIGHT]) {
        float top = fmaxf(most, most_), from = top == -INFINITY ? 0 : top;
        float old = exp2_approx(most - from), by = exp2_approx(most_ - from);
        most = top, sum = sum * old + sum_ * by;
#pragma unroll
        for (int k = 0; k < EIGHT; k++) out[k] = out[k] * old + out_[k] * by;
    }
};

/* Reads eight columns of key and value j. @param own the token's own, which are not in the cache yet; -1: they are */
template <class A>
static __device__ __forceinline__ void fetch_key(const att &a, A qkv, A cache, int64_t j,
                                                 int64_t own, int kv, int col, bool stores,
                                                 typename A::raw &key, typename A::raw &value) {
    int64_t wide = (int64_t)a.kv * a.dim, at = j * a.key_stride + kv * a.dim + col;
    if (j != own) {
        key = cache.fetch(at, at + EIGHT);
        value = cache.fetch(at + wide, at + wide + EIGHT);
        return;
    }
    int64_t from = (int64_t)(a.q + kv) * a.dim + col;
    float v[EIGHT];
    key = qkv.fetch(from, from + EIGHT);
    value = qkv.fetch(from + wide, from + wide + EIGHT);
    if (!stores) return;
    A::widen(key, v);
    cache.store(at, at + EIGHT, v);
    A::widen(value, v);
    cache.store(at + wide, at + wide + EIGHT, v);
}

template <class A, int LANES, int HEADS>
static __global__ void __launch_bounds__(THREADS)
    attend_parts(att a, mixed queries, A qkv, A cache, bool alone, part_list p) {
    enum { GROUPS = THREADS / LANES };
    __shared__ float merged[WARPS][HEADS][LANES * EIGHT + 2];
    int64_t token = blockIdx.z;
    int kv = blockIdx.y / p.sets, first = blockIdx.y % p.sets * HEADS, shared = a.q / a.kv;
    int lane = threadIdx.x % LANES, col = lane * EIGHT, group = threadIdx.x / LANES;
    bool has = col < a.dim;
    await_previous();
    int64_t from = first_key(a, token), end = last_key(a, token) + 1, own = alone ? end - 1 : -1;
    int64_t each = (end - from + p.parts - 1) / p.parts;
    from += blockIdx.x * each;
    end = min(end, from + each);
    float q[HEADS][EIGHT];
    partial of[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        int head = kv * shared + min(first + h, shared - 1);
        of[h] = { -INFINITY, 0, { 0 } };
        int64_t at = token * a.stride + head * a.dim + col;
#pragma unroll
        for (int k = 0; k < EIGHT; k++) q[h][k] = 0;
        if (has) queries.load(at, at + EIGHT, q[h]);
    }
    for (; from < end; from += GROUPS * AHEAD) {
        typename A::raw keys[AHEAD] = {}, values[AHEAD] = {};
        float score[AHEAD][HEADS];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int64_t j = from + i * GROUPS + group;
            if (j < end && has)
                fetch_key(a, qkv, cache, j, own, kv, col, first == 0, keys[i], values[i]);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            float key[EIGHT];
            A::widen(keys[i], key);
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                float s = 0;
#pragma unroll
                for (int k = 0; k < EIGHT; k++) s += q[h][k] * key[k];
#pragma unroll
                for (int o = LANES / 2; o; o /= 2) s += __shfl_xor_sync(~0u, s, o);
                bool seen = from + i * GROUPS + group < end;
                score[i][h] = seen ? att_score(a, s, LOG2E) : -INFINITY;
            }
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            float most = of[h].most;
#pragma unroll
            for (int i = 0; i < AHEAD; i++) most = fmaxf(most, score[i][h]);
            float none[EIGHT] = { 0 };
            of[h].add(most, 0, none);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            float value[EIGHT];
            A::widen(values[i], value);
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                float most = of[h].most,
                      by = exp2_approx(score[i][h] - (most == -INFINITY ? 0 : most));
                of[h].sum += by;
#pragma unroll
                for (int k = 0; k < EIGHT; k++) of[h].out[k] += by * value[k];
            }
        }
    }
    /* the groups of a warp, then the warps */
    int warp = threadIdx.x / WARP;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
#pragma unroll
        for (int o = LANES; o < WARP; o *= 2) {
            float out[EIGHT];
#pragma unroll
            for (int k = 0; k < EIGHT; k++) out[k] = __shfl_xor_sync(~0u, of[h].out[k], o);
            float most = __shfl_xor_sync(~0u, of[h].most, o),
                  sum = __shfl_xor_sync(~0u, of[h].sum, o);
            of[h].add(most, sum, out);
        }
        if (threadIdx.x % WARP >= LANES) continue;
        float *to = merged[warp][h];
        to[0] = of[h].most, to[1] = of[h].sum;
#pragma unroll
        for (int k = 0; k < EIGHT; k++) to[2 + col + k] = of[h].out[k];
    }
    __syncthreads();
    for (int h = group; h < HEADS && first + h < shared; h += GROUPS) {
        partial all = { -INFINITY, 0, { 0 } };
        for (int w = 0; w < WARPS; w++) {
            float out[EIGHT];
#pragma unroll
            for (int k = 0; k < EIGHT; k++) out[k] = merged[w][h][2 + col + k];
            all.add(merged[w][h][0], merged[w][h][1], out);
        }
        float *to = part_at(a, p, token, kv * shared + first + h, blockIdx.x);
        if (lane == 0) to[0] = all.most, to[1] = all.sum;
#pragma unroll
        for (int k = 0; k < EIGHT; k++)
            if (has) to[2 + col + k] = all.out[k];
    }
}

static __global__ void __launch_bounds__(THREADS)
    join_parts(att a, part_list p, mixed o, float *lse) {
    int head = blockIdx.x;
    int64_t token = blockIdx.y;
    await_previous();
    for (int c = threadIdx.x; c < a.dim; c += THREADS) {
        float most = -INFINITY, sum = 0, out = 0;
#pragma unroll 8
        for (int i = 0; i < p.parts; i++) {
            const float *part = part_at(a, p, token, head, i);
            float top = fmaxf(most, part[0]), from = top == -INFINITY ? 0 : top;
            float old = exp2_approx(most - from), by = exp2_approx(part[0] - from);
            most = top, sum = sum * old + part[1] * by, out = out * old + part[2 + c] * by;
        }
        write1(o.p, o.dt, (token * a.q + head) * a.dim + c, out / sum);
        if (lse && c == 0) lse[lse_at(a, head, token)] = (most + log2f(sum)) * LN2;
    }
}

/* ---- launches ------------------------------------------------------------------------------------ */
static int heads_at_once(int shared) { return shared >= 3 ? 4 : shared; }

/* As many parts as occupy the GPU, of at least FEWEST_KEYS keys where the cache is full. */
static part_list part_list_of(const cuda_device *d, const op_call *c) {
    int64_t tokens = c->in[0].dim[0], rows = c->in[1].dim[0];
    int kv = c->attr.heads.kv, shared = c->attr.heads.q / kv;
    part_list p = { NULL, 1, (int)ceil_div(shared, heads_at_once(shared)) };
    int64_t fit = 4 * d->sms / (tokens * kv * p.sets), most = ceil_div(rows, FEWEST_KEYS);
    p.parts = (int)max((int64_t)1, min(min(fit, most), (int64_t)MOST_PARTS));
    return p;
}

static bool is_read_by_eights(dtype dt) { return dt == DT_F32 || dt == DT_BF16 || dt == DT_F16; }

extern "C" bool attend_few_stores(const op_call *c) {
    const tensor *all[] = { &c->in[0], &c->in[1] };
    return c->in[0].dim[0] == 1 && is_read_by_eights(common_type(c->attr.heads.dim, all, 2));
}

extern "C" size_t attend_few_bytes(const cuda_device *d, const op_call *c) {
    int64_t heads = c->in[0].dim[0] * c->attr.heads.q, each = c->attr.heads.dim + 2;
    return (size_t)(heads * part_list_of(d, c).parts * each) * sizeof(float);
}

template <class A, int LANES>
static void launch_parts(const op_call *c, const att &a, const part_list &p) {
    int shared = a.q / a.kv;
    dim3 grid((unsigned)p.parts, (unsigned)(a.kv * p.sets), (unsigned)a.n);
    auto kernel = shared == 1   ? attend_parts<A, LANES, 1>
                  : shared == 2 ? attend_parts<A, LANES, 2>
                                : attend_parts<A, LANES, 4>;
    LAUNCH(cuda_of(c), { grid, THREADS, 0, true }, kernel, a, mixed(c->in[0]), A(c->in[0]),
           A(c->in[1]), attend_few_stores(c), p);
}

extern "C" bool attend_few(const op_call *c, const att *a, void *workspace, float *lse) {
    const tensor *cache[] = { &c->in[1] };
    dtype dt = common_type(a->dim, cache, 1);
    if (!is_read_by_eights(dt)) return false;
    part_list p = part_list_of(cuda_of(c)->device, c);
    p.at = (float *)workspace;
    WITH_ONE_TYPE(dt, if (a->dim <= 64) launch_parts<A, 8>(c, *a, p);
                  else if (a->dim <= 128) launch_parts<A, 16>(c, *a, p);
                  else launch_parts<A, 32>(c, *a, p));
    dim3 heads((unsigned)a->q, (unsigned)a->n);
    LAUNCH(cuda_of(c), { heads, THREADS, 0, true }, join_parts, *a, p, mixed(c->out[0]), lse);
    return true;
}
