/* bf16 tiles for BFMMLA, which multiplies 2x4 by 4x2. Both operands have the layout
 *     [outer / 8][inner / 4][8 outer][4 inner]
 * so that a panel of 8 rows of L, or 8 columns of R, is read sequentially. Sums are fp32. */
enum { BF16_PANEL = 8, BF16_STEP = 4, BF16_UNIT = 16 };

/* @return the index of the group of 4 inner elements at k of outer index `at`; `inner` as in tile_job. */
static inline size_t bf16_at(int at, int k, int inner) {
    return (size_t)(at / BF16_PANEL) * BF16_PANEL * inner + (size_t)k * BF16_PANEL +
           (size_t)(at % BF16_PANEL) * BF16_STEP;
}

/* The source's rows are outer: each row is split into groups of four. */
static void bf16_outer(void *dst, const tile_src *s, int width) {
    uint16_t *to = dst;
    int rows = (int)align_up(s->rows, BF16_UNIT), whole = s->cols / BF16_STEP * BF16_STEP;
    for (int r = 0; r < rows; r++) {
        const uint16_t *from = (const uint16_t *)s->data + r * s->stride;
        int k = 0;
        prefetch_rows(s, r, 1);
        if (r < s->rows) {
            for (; k < whole; k += BF16_STEP) memcpy(to + bf16_at(r, k, width), from + k, 8);
            if (k < s->cols) {
                uint16_t part[BF16_STEP] = { 0 };
                memcpy(part, from + k, (size_t)(s->cols - k) * 2);
                memcpy(to + bf16_at(r, k, width), part, 8);
                k += BF16_STEP;
            }
        }
        for (; k < width; k += BF16_STEP) memset(to + bf16_at(r, k, width), 0, 8);
    }
}

/* out[i][j] = x[j][i] for 8 x 4 elements. */
static inline void bf16_zip4(uint16_t *out, const uint16x8_t x[4]) {
    uint16x8_t a0 = vzip1q_u16(x[0], x[2]), a1 = vzip2q_u16(x[0], x[2]);
    uint16x8_t b0 = vzip1q_u16(x[1], x[3]), b1 = vzip2q_u16(x[1], x[3]);
    vst1q_u16(out, vzip1q_u16(a0, b0));
    vst1q_u16(out + 8, vzip2q_u16(a0, b0));
    vst1q_u16(out + 16, vzip1q_u16(a1, b1));
    vst1q_u16(out + 24, vzip2q_u16(a1, b1));
}

/* The source's rows are inner: four of them are interleaved. */
static void bf16_inner(void *dst, const tile_src *s, int width) {
    uint16_t *to = dst;
    int rows = (int)align_up(s->rows, BF16_UNIT);
    for (int k = 0; k < rows; k += BF16_STEP) {
        prefetch_rows(s, k, BF16_STEP);
        for (int c = 0; c < width; c += BF16_PANEL) {
            uint16_t part[BF16_STEP][BF16_PANEL] = { { 0 } };
            int n = MIN(BF16_PANEL, MAX(s->cols - c, 0));
            uint16x8_t x[BF16_STEP];
            ATT_UNROLL
            for (int i = 0; i < BF16_STEP; i++) {
                const uint16_t *from = (const uint16_t *)s->data + (k + i) * s->stride + c;
                if (k + i < s->rows && n < BF16_PANEL) memcpy(part[i], from, (size_t)n * 2);
                bool direct = k + i < s->rows && n == BF16_PANEL;
                x[i] = vld1q_u16(direct ? from : part[i]);
            }
            bf16_zip4(to + bf16_at(c, k, ATT_TILE), x);
        }
    }
}

static inline uint16x8_t bf16_of8(const float *x) {
    bfloat16x8_t h = vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(vld1q_f32(x)), vld1q_f32(x + 4));
    return vreinterpretq_u16_bf16(h);
}

static const void *bf16_left_scores(void *buffer, const float *t, int keys, int queries) {
    uint16_t *to = buffer;
    for (int k = 0; k < keys; k++) {
        for (int q = 0; q < queries; q += 8) {
            uint16x8_t h = bf16_of8(t + (size_t)k * ATT_TILE + q);
            vst1_u16(to + bf16_at(k, q, ATT_TILE), vget_low_u16(h));
            vst1_u16(to + bf16_at(k, q + 4, ATT_TILE), vget_high_u16(h));
        }
    }
    return buffer;
}

static const void *bf16_right_scores(void *buffer, const float *t, int keys, int queries) {
    uint16_t *to = buffer;
    for (int k = 0; k < keys; k += BF16_STEP) {
        for (int q = 0; q < queries; q += BF16_PANEL) {
            uint16x8_t x[BF16_STEP];
            ATT_UNROLL
            for (int i = 0; i < BF16_STEP; i++) x[i] = bf16_of8(t + (size_t)(k + i) * ATT_TILE + q);
            bf16_zip4(to + bf16_at(q, k, ATT_TILE), x);
        }
    }
    return buffer;
}

/* C[8, 8]: 16 sums of 2 x 2. */
static inline void bf16_panel(const uint16_t *l, const uint16_t *r, int k0, int k1, float *c,
                              int ldc, bool add) {
    float32x4_t sum[4][4];
    ATT_UNROLL
    for (int i = 0; i < 4; i++) ATT_UNROLL
    for (int j = 0; j < 4; j++) sum[i][j] = vdupq_n_f32(0);
    for (int k = k0; k < k1; k += BF16_STEP) {
        bfloat16x8_t x[4], y[4];
        ATT_UNROLL
        for (int i = 0; i < 4; i++) {
            x[i] = vreinterpretq_bf16_u16(vld1q_u16(l + (size_t)k * BF16_PANEL + 8 * i));
            y[i] = vreinterpretq_bf16_u16(vld1q_u16(r + (size_t)k * BF16_PANEL + 8 * i));
        }
        ATT_UNROLL
        for (int i = 0; i < 4; i++) ATT_UNROLL
        for (int j = 0; j < 4; j++) sum[i][j] = vbfmmlaq_f32(sum[i][j], x[i], y[j]);
    }
    ATT_UNROLL
    for (int i = 0; i < 4; i++) {
        ATT_UNROLL
        for (int j = 0; j < 4; j += 2) {
            float64x2_t a = vreinterpretq_f64_f32(sum[i][j]);
            float64x2_t b = vreinterpretq_f64_f32(sum[i][j + 1]);
            float32x4_t even = vreinterpretq_f32_f64(vzip1q_f64(a, b));
            float32x4_t odd = vreinterpretq_f32_f64(vzip2q_f64(a, b));
            float *to = c + (size_t)(2 * i) * ldc + 2 * j;
            vst1q_f32(to, add ? vaddq_f32(even, vld1q_f32(to)) : even);
            vst1q_f32(to + ldc, add ? vaddq_f32(odd, vld1q_f32(to + ldc)) : odd);
        }
    }
}

static void bf16_mul(const tile_job *j) {
    const uint16_t *left = j->left, *right = j->right;
    for (int n = 0; n < j->n; n += BF16_PANEL) {
        for (int m = 0; m < j->m; m += BF16_PANEL) {
            int k0, k1;
            if (!tile_inner(j, m, m + BF16_PANEL, n, n + BF16_PANEL, BF16_STEP, &k0, &k1)) continue;
            bf16_panel(left + (size_t)m * j->inner, right + (size_t)n * j->inner, k0, k1,
                       j->c + (size_t)m * j->ldc + n, j->ldc, j->add);
        }
    }
}

/* Both operands have one layout. */
#define bf16_left_outer  bf16_outer
#define bf16_left_inner  bf16_inner
#define bf16_right_outer bf16_outer
#define bf16_right_inner bf16_inner
static const tile_path bf16_path = TILE_PATH("bf16 mmla", uint16_t, BF16_UNIT, bf16);
static const tile_path *bf16_path_or_null(void) { return &bf16_path; }
