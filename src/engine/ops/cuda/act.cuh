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

/* WITH_ACT(act, call): with ACT, the activation, as a constant. */
#define WITH_ACT(act, ...)                                                                         \
    do switch (act) {                                                                              \
            AS_ACT(ACT_GELU_TANH, __VA_ARGS__);                                                    \
            AS_ACT(ACT_GELU_ERF, __VA_ARGS__);                                                     \
            AS_ACT(ACT_RELU2, __VA_ARGS__);                                                        \
        }                                                                                          \
    while (0)
#define AS_ACT(kind, ...)                                                                          \
    case kind: {                                                                                   \
        constexpr act_kind ACT = kind;                                                             \
        __VA_ARGS__;                                                                               \
    } break

#endif
