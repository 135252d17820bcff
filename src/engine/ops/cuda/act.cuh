/* GELU, in both forms, and squared ReLU, and their derivatives for one element. */
#ifndef INGOT_OPS_CUDA_ACT_CUH
#define INGOT_OPS_CUDA_ACT_CUH

#include "device.cuh"

/* The tanh form is x times the sigmoid of 2 sqrt(2/pi) (x + 0.044715 x^3). */
static __device__ __forceinline__ float gelu(float x, act_kind act) {
    if (act == ACT_RELU2) return x < 0 ? 0 : x * x; /* NaN stays NaN */
    if (act == ACT_GELU_ERF) return 0.5f * x * (1 + erff(x * 0.70710678118654752f));
    return x * sigmoid(x * (1.5957691216057308f + 0.0713548162726009f * x * x));
}

static __device__ __forceinline__ float gelu_derivative(float x, act_kind act) {
    if (act == ACT_RELU2) return x < 0 ? 0 : 2 * x;
    if (act == ACT_GELU_ERF)
        return 0.5f * (1 + erff(x * 0.70710678118654752f)) +
               x * 0.39894228040143268f * __expf(-0.5f * x * x);
    float s = sigmoid(x * (1.5957691216057308f + 0.0713548162726009f * x * x));
    return s + s * (1 - s) * x * (1.5957691216057308f + 0.2140644488178027f * x * x);
}

#endif
