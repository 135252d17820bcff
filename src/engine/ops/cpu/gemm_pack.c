/* Copies operands into the panels that GEMM kernels read (kernel/kernel_internal.h). Each element is packed
 * once per GEMM, so that this must run near the speed of memory: transposing copies move 16 bytes at a time
 * and shuffle registers. */
#include "kernel/kernel_internal.h"
#include "pack_wide.h"

#include <string.h>

typedef uint16_t u16x8 __attribute__((vector_size(16)));
typedef uint32_t u32x4 __attribute__((vector_size(16)));
typedef uint64_t u64x2 __attribute__((vector_size(16)));

static inline u16x8 load16(const void *p) {
    u16x8 v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void store16(void *p, u16x8 v) { memcpy(p, &v, sizeof v); }

/* ---- K contiguous: a group of K is one unit of 4, 8 or 64 bytes -------------------------------
 * out[u][r] = in[r][u] for `rows` rows and `units` units; a panel has `height` rows. */

static inline void copy_units(const char *in, size_t stride, int r, int rows, int64_t u,
                              int64_t units, int height, char *out, size_t size) {
    for (; r < rows; r++)
        for (int64_t i = u; i < units; i++)
            memcpy(out + ((size_t)i * height + r) * size, in + r * stride + (size_t)i * size, size);
}

/* 4 rows x 4 units: out[u][0..3]. */
static inline void transpose4x4(const char *p, size_t stride, char *o, size_t step) {
    u32x4 a = (u32x4)load16(p), b = (u32x4)load16(p + stride);
    u32x4 c = (u32x4)load16(p + 2 * stride), d = (u32x4)load16(p + 3 * stride);
    u64x2 ab0 = (u64x2)__builtin_shufflevector(a, b, 0, 4, 1, 5);
    u64x2 ab1 = (u64x2)__builtin_shufflevector(a, b, 2, 6, 3, 7);
    u64x2 cd0 = (u64x2)__builtin_shufflevector(c, d, 0, 4, 1, 5);
    u64x2 cd1 = (u64x2)__builtin_shufflevector(c, d, 2, 6, 3, 7);
    store16(o, (u16x8)__builtin_shufflevector(ab0, cd0, 0, 2));
    store16(o + step, (u16x8)__builtin_shufflevector(ab0, cd0, 1, 3));
    store16(o + 2 * step, (u16x8)__builtin_shufflevector(ab1, cd1, 0, 2));
    store16(o + 3 * step, (u16x8)__builtin_shufflevector(ab1, cd1, 1, 3));
}

static void pack_units4(const char *in, size_t stride, int rows, int64_t units, int height,
                        char *out) {
    int64_t whole = units / 4 * 4;
    int rows4 = rows / 4 * 4;
    size_t step = (size_t)height * 4;
    for (int64_t u = 0; u < whole; u += 4)
        for (int r = 0; r < rows4; r += 4)
            transpose4x4(in + r * stride + u * 4, stride, out + u * step + r * 4, step);
    copy_units(in, stride, 0, rows4, whole, units, height, out, 4);
    copy_units(in, stride, rows4, rows, 0, units, height, out, 4);
}

static void pack_units8(const char *in, size_t stride, int rows, int64_t units, int height,
                        char *out) {
    int64_t whole = units / 2 * 2;
    int rows2 = rows / 2 * 2;
    size_t step = (size_t)height * 8;
    for (int64_t u = 0; u < whole; u += 2)
        for (int r = 0; r < rows2; r += 2) {
            const char *p = in + r * stride + u * 8;
            u64x2 a = (u64x2)load16(p), b = (u64x2)load16(p + stride);
            char *o = out + u * step + r * 8;
            store16(o, (u16x8)__builtin_shufflevector(a, b, 0, 2));
            store16(o + step, (u16x8)__builtin_shufflevector(a, b, 1, 3));
        }
    copy_units(in, stride, 0, rows2, whole, units, height, out, 8);
    copy_units(in, stride, rows2, rows, 0, units, height, out, 8);
}

static void pack_units64(const char *in, size_t stride, int rows, int64_t units, int height,
                         char *out) {
    copy_units(in, stride, 0, rows, 0, units, height, out, 64);
}

/* ---- rows contiguous: g rows of K are interleaved ------------------------------------------- */

static void interleave1(const char *in, size_t stride, int height, int64_t units, char *out) {
    for (int64_t u = 0; u < units; u++, in += stride, out += height * 4)
        for (int r = 0; r < height; r += 4) store16(out + r * 4, load16(in + r * 4));
}

/* Two rows of 4 16-bit elements, for the part of a panel that is not a multiple of 8. */
static inline u16x8 load_two4(const char *a, const char *b) {
    u64x2 v;
    memcpy((char *)&v, a, 8);
    memcpy((char *)&v + 8, b, 8);
    return (u16x8)v;
}

/* Panels as wide as a register of 64 bytes. @return how many of its rows are done. */
#if WIDE_REGISTERS
static int wide_pairs_of(const char *in, size_t stride, int height, int64_t units, char *out) {
    int r = 0;
    for (; r + WIDE_ROWS <= height; r += WIDE_ROWS)
        wide_interleave2(in + r * 2, stride, units, (size_t)height * 4, out + r * 4);
    return r;
}
static int wide_columns_of(const char *in, size_t stride, int height, int64_t units, char *out) {
    int r = 0;
    for (; r + WIDE_ROWS <= height; r += WIDE_ROWS)
        for (int64_t u = 0; u < units; u++)
            wide_transpose32(in + (size_t)u * 32 * stride + r * 2, stride,
                             out + (size_t)u * height * 64 + r * 64);
    return r;
}
#else
static int wide_pairs_of(const char *in, size_t stride, int height, int64_t units, char *out) {
    return 0;
}
static int wide_columns_of(const char *in, size_t stride, int height, int64_t units, char *out) {
    return 0;
}
#endif

static void interleave2(const char *in, size_t stride, int height, int64_t units, char *out) {
    int done = wide_pairs_of(in, stride, height, units, out);
    if (done == height) return;
    for (int64_t u = 0; u < units; u++, in += 2 * stride, out += height * 4) {
        int r = done;
        for (; r + 8 <= height; r += 8) {
            u16x8 a = load16(in + r * 2), b = load16(in + stride + r * 2);
            store16(out + r * 4, __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11));
            store16(out + r * 4 + 16, __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15));
        }
        if (r < height) {
            u16x8 v = load_two4(in + r * 2, in + stride + r * 2);
            store16(out + r * 4, __builtin_shufflevector(v, v, 0, 4, 1, 5, 2, 6, 3, 7));
        }
    }
}

/* 4 rows of K x 8: out[8][4]. */
static inline void interleave4x8(const char *in, size_t stride, char *out) {
    u16x8 k0 = load16(in), k1 = load16(in + stride);
    u16x8 k2 = load16(in + 2 * stride), k3 = load16(in + 3 * stride);
    u16x8 even0 = __builtin_shufflevector(k0, k2, 0, 8, 1, 9, 2, 10, 3, 11);
    u16x8 even1 = __builtin_shufflevector(k0, k2, 4, 12, 5, 13, 6, 14, 7, 15);
    u16x8 odd0 = __builtin_shufflevector(k1, k3, 0, 8, 1, 9, 2, 10, 3, 11);
    u16x8 odd1 = __builtin_shufflevector(k1, k3, 4, 12, 5, 13, 6, 14, 7, 15);
    store16(out, __builtin_shufflevector(even0, odd0, 0, 8, 1, 9, 2, 10, 3, 11));
    store16(out + 16, __builtin_shufflevector(even0, odd0, 4, 12, 5, 13, 6, 14, 7, 15));
    store16(out + 32, __builtin_shufflevector(even1, odd1, 0, 8, 1, 9, 2, 10, 3, 11));
    store16(out + 48, __builtin_shufflevector(even1, odd1, 4, 12, 5, 13, 6, 14, 7, 15));
}

static inline void interleave4x4(const char *in, size_t stride, char *out) {
    u16x8 x = load_two4(in, in + 2 * stride), y = load_two4(in + stride, in + 3 * stride);
    u16x8 even = __builtin_shufflevector(x, x, 0, 4, 1, 5, 2, 6, 3, 7);
    u16x8 odd = __builtin_shufflevector(y, y, 0, 4, 1, 5, 2, 6, 3, 7);
    store16(out, __builtin_shufflevector(even, odd, 0, 8, 1, 9, 2, 10, 3, 11));
    store16(out + 16, __builtin_shufflevector(even, odd, 4, 12, 5, 13, 6, 14, 7, 15));
}

static void interleave4(const char *in, size_t stride, int height, int64_t units, char *out) {
    for (int64_t u = 0; u < units; u++, in += 4 * stride, out += height * 8) {
        int r = 0;
        for (; r + 8 <= height; r += 8) interleave4x8(in + r * 2, stride, out + r * 8);
        if (r < height) interleave4x4(in + r * 2, stride, out + r * 8);
    }
}

/* Groups of 32: each 8 x 8 block is two interleavings of 4, whose halves are combined. */
static inline void transpose8x8(const char *in, size_t stride, char *out, size_t out_stride) {
    char half[2][64];
    interleave4x8(in, stride, half[0]);
    interleave4x8(in + 4 * stride, stride, half[1]);
    for (int r = 0; r < 8; r++)
        store16(out + r * out_stride, load_two4(half[0] + r * 8, half[1] + r * 8));
}

static void interleave32(const char *in, size_t stride, int height, int64_t units, char *out) {
    int done = wide_columns_of(in, stride, height, units, out);
    if (done == height) return;
    for (int64_t u = 0; u < units; u++, in += 32 * stride, out += height * 64)
        for (int k = 0; k < 32; k += 8)
            for (int r = done; r < height; r += 8)
                transpose8x8(in + k * stride + r * 2, stride, out + r * 64 + k * 2, 64);
}

/* ---- panels --------------------------------------------------------------------------------- */

static const struct packer {
    int g;
    size_t element;
    void (*units)(const char *in, size_t stride, int rows, int64_t units, int height, char *out);
    void (*interleave)(const char *in, size_t stride, int height, int64_t units, char *out);
} packers[] = {
    { 1, 4, pack_units4, interleave1 },
    { 2, 2, pack_units4, interleave2 },
    { 4, 2, pack_units8, interleave4 },
    { 32, 2, pack_units64, interleave32 },
};

static const struct packer *packer_of(int g) {
    for (size_t i = 0; i < COUNT_OF(packers); i++)
        if (packers[i].g == g) return &packers[i];
    BUG_IF("no packer for this group of K");
    return NULL;
}

/* Packs the edges element by element, into a panel that was cleared before. */
static void pack_elements(const struct packer *p, const char *in, size_t stride, bool k_major,
                          int rows, int64_t k_from, int64_t k_to, int height, char *out) {
    size_t row_step = k_major ? p->element : stride, k_step = k_major ? stride : p->element;
    for (int64_t k = k_from; k < k_to; k++)
        for (int r = 0; r < rows; r++)
            memcpy(out + ((k / p->g * height + r) * p->g + k % p->g) * p->element,
                   in + (size_t)r * row_step + (size_t)k * k_step, p->element);
}

/* Packs one panel from elements of its own type: rows <= height, kn <= k_pad. */
static void pack_panel(const struct packer *p, const char *in, size_t stride, bool k_major,
                       int rows, int64_t kn, int height, int64_t k_pad, char *out) {
    int64_t units = kn / p->g, k_whole = units * p->g;
    bool short_panel = rows < height;
    size_t unit_bytes = (size_t)height * p->g * p->element;
    int64_t clear_from = short_panel ? 0 : units;
    memset(out + (size_t)clear_from * unit_bytes, 0,
           (size_t)(k_pad / p->g - clear_from) * unit_bytes);
    if (!k_major)
        p->units(in, stride, rows, units, height, out);
    else if (short_panel)
        k_whole = 0;
    else
        p->interleave(in, stride, height, units, out);
    pack_elements(p, in, stride, k_major, rows, k_whole, kn, height, out);
}

/* ---- with conversion to fp32 (g = 1) -------------------------------------------------------- */
enum { CONVERT_K = 16 }; /* rows of K converted at a time when K is the outer dimension */

size_t CPU(gemm_convert_bytes)(int64_t rows, int64_t kn, int height) {
    int64_t by_row = height * kn, by_k = CONVERT_K * rows;
    return (size_t)MAX(by_row, by_k) * sizeof(float);
}

static const char *side_at(const gemm_side *s, int64_t r, int64_t k) {
    int64_t element = s->k_major ? k * s->ld + r : r * s->ld + k;
    return (const char *)s->data + element * (int64_t)dt_size(s->dt);
}

static void convert_rows(const gemm_side *s, const gemm_panels *to, int64_t r0, int64_t rows,
                         int64_t k0, int64_t kn) {
    const struct packer *p = packer_of(1);
    char *out = to->out;
    for (int64_t r = 0; r < rows; r += to->height, out += (size_t)(to->height * to->length) * 4) {
        int n = (int)MIN(to->height, rows - r);
        for (int i = 0; i < n; i++)
            CPU(to_f32)(s->dt, side_at(s, r0 + r + i, k0), to->convert + i * kn, kn);
        pack_panel(p, (const char *)to->convert, (size_t)kn * 4, false, n, kn, to->height,
                   to->k_pad, out);
    }
}

static void convert_k_major(const gemm_side *s, const gemm_panels *to, int64_t r0, int64_t rows,
                            int64_t k0, int64_t kn) {
    const struct packer *p = packer_of(1);
    for (int64_t k = 0; k < kn; k += CONVERT_K) {
        int64_t n = MIN(CONVERT_K, kn - k);
        int64_t pad = k + CONVERT_K < kn ? n : to->k_pad - k; /* the last one clears to the end */
        for (int64_t i = 0; i < n; i++)
            CPU(to_f32)(s->dt, side_at(s, r0, k0 + k + i), to->convert + i * rows, rows);
        for (int64_t r = 0; r < rows; r += to->height) {
            char *out = (char *)to->out + (size_t)(r * to->length + k * to->height) * 4;
            pack_panel(p, (const char *)(to->convert + r), (size_t)rows * 4, true,
                       (int)MIN(to->height, rows - r), n, to->height, pad, out);
        }
    }
}

/* Rows of K packed at a time across all panels when K is the outer dimension: each row is read
 * sequentially, and all of them stay in L1. */
enum { PACK_K_MAJOR = 64 };

void CPU(gemm_pack)(const gemm_side *s, const gemm_panels *to, int64_t r0, int64_t rows, int64_t k0,
                    int64_t kn) {
    if (s->dt != to->dt) {
        BUG_IF(to->dt != DT_F32);
        (s->k_major ? convert_k_major : convert_rows)(s, to, r0, rows, k0, kn);
        return;
    }
    const struct packer *p = packer_of(to->g);
    int64_t step = s->k_major ? PACK_K_MAJOR : to->k_pad;
    for (int64_t k = 0; k < to->k_pad; k += step) {
        int64_t pad = MIN(step, to->k_pad - k), n = MIN(pad, kn - k);
        for (int64_t r = 0; r < rows; r += to->height) {
            char *out = (char *)to->out + (size_t)(r * to->length + k * to->height) * p->element;
            pack_panel(p, side_at(s, r0 + r, k0 + k), (size_t)s->ld * p->element, s->k_major,
                       (int)MIN(to->height, rows - r), n, to->height, pad, out);
        }
    }
}
