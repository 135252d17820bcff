/* MXFP4 (OCP Microscaling Formats 1.0): values of 4 bits, e2m1, in groups of 32 that share a power of two, e8m0. A byte holds
 * two values, the first in its low half. */
#include <math.h>

#include "checkpoint/hf_internal.h"

void hf_mxfp4_row(const st_tensor *blocks, const st_tensor *scales, int64_t row, int64_t cols,
                  float *out) {
    static const float value[16] = { 0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                     -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6 };
    int64_t groups = cols / HF_MXFP4_GROUP;
    for (int64_t g = row * groups; g < (row + 1) * groups; g++) {
        uint8_t packed[HF_MXFP4_GROUP / 2], exponent;
        st_read(blocks, g * (int64_t)sizeof packed, (int64_t)sizeof packed, packed);
        st_read(scales, g, 1, &exponent);
        for (int i = 0; i < HF_MXFP4_GROUP; i++)
            *out++ = ldexpf(value[packed[i / 2] >> i % 2 * 4 & 15], exponent - 127);
    }
}
