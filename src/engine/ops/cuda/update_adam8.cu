/* AdamW with 8-bit moments (ops/block8.h). Grid: blocks of 8 warps; a warp decodes one block of 256
 * elements, updates it in fp32 and encodes it again. A lane has elements [4 lane, 4 lane + 4) of each half
 * of the block. Bytes per element: 16, plus the copy's; 4 less with bf16 weights. Deterministic. */
#include "update.cuh"

#include "ops/block8.h"

enum { THREADS = 256, WARPS = THREADS / WARP, HALF = BLOCK8 / 2 };

/* Decodes four codes. */
static __device__ __forceinline__ void unpack4(const uint8_t *code, bool sign, float scale,
                                               float x[4]) {
    uint32_t base = BLOCK8_ONE - ((sign ? 127u : 255u) << BLOCK8_SHIFT);
    uint32_t four = *(const uint32_t *)code;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t byte = four >> 8 * k & 255u;
        uint32_t c = byte & (sign ? 0x7fu : 0xffu), bits = base + (c << BLOCK8_SHIFT);
        if (sign) bits = (c ? bits : 0) | (byte & 0x80u) << 24;
        x[k] = __uint_as_float(bits) * scale;
    }
}

/* Encodes eight elements per lane, a block per warp, and stores the scale of the block. */
static __device__ __forceinline__ void pack8(const float x[2][4], bool sign, uint8_t *code,
                                             float *scale) {
    uint32_t base = BLOCK8_ONE - ((sign ? 127u : 255u) << BLOCK8_SHIFT), most = 0;
#pragma unroll
    for (int k = 0; k < 8; k++) most = max(most, __float_as_uint(x[k / 4][k % 4]) & 0x7fffffffu);
    most = __reduce_max_sync(~0u, most);
    float largest = most < __float_as_uint(BLOCK8_TINY) ? 0 : __uint_as_float(most);
    float inverse = largest > 0 ? __fdiv_rn(1.0f, largest) : 0;
    if (threadIdx.x % WARP == 0) *scale = largest;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t four = 0;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t bits = __float_as_uint(x[h][k]);
            uint32_t part = __float_as_uint(__uint_as_float(bits & 0x7fffffffu) * inverse);
            uint32_t c = (max(part, base) - base + (1u << (BLOCK8_SHIFT - 1))) >> BLOCK8_SHIFT;
            if (sign) c |= bits >> 24 & 0x80u;
            four |= (c & 255u) << 8 * k;
        }
        *(uint32_t *)(code + h * HALF) = four;
    }
}

template <class P> static __global__ void __launch_bounds__(THREADS, 4) update_adam8(elements o) {
    int64_t b = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    int64_t blocks = (o.n + BLOCK8 - 1) / BLOCK8, lane = threadIdx.x % WARP, at = b * BLOCK8;
    uint8_t *mc = (uint8_t *)o.m + at + lane * 4, *vc = (uint8_t *)o.v + at + lane * 4;
    float *ms = (float *)((uint8_t *)o.m + blocks * BLOCK8) + b;
    float *vs = (float *)((uint8_t *)o.v + blocks * BLOCK8) + b;
    float g[2][4], p[2][4], m[2][4], v[2][4];
    four e[2];
#pragma unroll
    for (int h = 0; h < 2 && b < blocks; h++) {
        int64_t from = at + h * HALF + lane * 4, left = o.n - from;
        e[h] = four{ from, (int)(left < 0 ? 0 : left < 4 ? left : 4), o.fours && left >= 4 };
        load4(o.g, e[h], g[h]);
        load4((const P *)o.p, e[h], p[h]);
        unpack4(mc + h * HALF, true, *ms, m[h]);
        unpack4(vc + h * HALF, false, *vs, v[h]);
    }
    const factors f = block_factors(o.a, o.s); /* computed while the loads are in flight */
    if (f.skip || b >= blocks) return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            adam<false>::at(f, g[h][k], p[h][k], m[h][k], v[h][k]);
            if (k >= e[h].count) m[h][k] = v[h][k] = 0;
        }
        store_weights(o, f, (P *)o.p, e[h], p[h]);
    }
    pack8(m, true, mc, ms);
    pack8(v, false, vc, vs);
}

template <class P> static void launch_adam8(const op_call *c) {
    elements o = elements_of(c, 2);
    int64_t blocks = ceil_div(ceil_div(o.n, BLOCK8), WARPS);
    LAUNCH(cuda_of(c), { (unsigned)blocks, THREADS }, update_adam8<P>, o);
}

static void cuda_update_adam8(const op_call *c) {
    if (c->attr.update.host_state || c->attr.update.host_params)
        return cuda_update_offloaded(c, cuda_update_adam8);
    if (c->out[0].dt == DT_BF16)
        launch_adam8<bf16>(c);
    else
        launch_adam8<float>(c);
}

KERNEL(UPDATE_ADAM8, cuda_update_adam8, cuda_offload_workspace, ATTRS_UPDATE_DECOUPLED);
