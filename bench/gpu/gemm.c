/* How fast the GEMMs of a training step run on a GPU, shape by shape: forward, both gradients, with
 * and without the epilogues fused into them, in bf16 and fp8. Printed are the speed of the algorithm
 * chosen by autotuning, of the one cuBLASLt would take, and of our own kernel.
 *
 *     bench_gpu_gemm [--json] [--log] [MODEL ROWS SEQ]
 *
 * Without a model, those of bench/gpu/run. --log prints what autotuning chose, on stderr. Operands are
 * random and the cache is swept between runs; medians of ten. */
#include "bench.h"

#include "model/model.h"
#include "ops/cuda/cuda_internal.h"

enum { RUNS = 10, SWEEP_BYTES = 96 << 20, PATTERN = 1 << 20 };
#define OPERAND_BYTES ((size_t)5 << 28)

typedef enum { WAY_TUNED, WAY_FIRST, WAYS, WAY_OWN = WAYS } way;
typedef struct bench {
    op_backend *gpu[WAYS];
    char *a, *b, *c, *pre, *sweep, *work; /* of the device */
    cudaEvent_t from[RUNS], to[RUNS];
    bool json;
    int lines;
} bench;

static void check_cuda(cudaError_t status) {
    if (status) bench_check(ERR("CUDA: %s", cudaGetErrorString(status)));
}

/* ---- operands ---------------------------------------------------------------------------------- */

/* Normally distributed values of this type; a million of them repeat. */
static void fill(char *to, dtype dt) {
    float *v = mem_alloc(PATTERN * sizeof *v);
    char *bytes = mem_alloc(PATTERN * sizeof *v);
    for (uint64_t i = 0; i < PATTERN; i++) v[i] = 0.5f * rng_normal(rng_key_of(1, 2), i);
    dt_from_f32(dt, v, bytes, PATTERN);
    size_t have = PATTERN * dt_size(dt);
    check_cuda(cudaMemcpy(to, bytes, have, cudaMemcpyHostToDevice));
    for (; have < OPERAND_BYTES; have *= 2)
        check_cuda(
            cudaMemcpy(to + have, to, MIN(have, OPERAND_BYTES - have), cudaMemcpyDeviceToDevice));
    free(v);
    free(bytes);
}

/* ---- timing ------------------------------------------------------------------------------------ */

static bool run_gemm(bench *b, way w, cuda_context *x, const cuda_gemm *g) {
    return w == WAY_OWN ? cuda_gemm_hopper(x, g)
                        : cuda_gemm_run(x, g, b->work, CUDA_GEMM_WORKSPACE);
}

/* @return milliseconds; 0: there is no algorithm for it. */
static double time_of(bench *b, way w, const cuda_gemm *g) {
    const op_backend *gpu = b->gpu[w == WAY_OWN ? WAY_TUNED : w];
    cuda_context *x = &((cuda_device *)gpu->context)->queue[QUEUE_COMPUTE];
    double ms[RUNS];
    if (!run_gemm(b, w, x, g)) return 0;
    for (int i = 0; i < RUNS; i++) {
        check_cuda(cudaMemsetAsync(b->sweep, 0, SWEEP_BYTES, x->stream));
        check_cuda(cudaEventRecord(b->from[i], x->stream));
        if (!run_gemm(b, w, x, g)) return 0;
        check_cuda(cudaEventRecord(b->to[i], x->stream));
    }
    bench_check(gpu->device->sync(x->device));
    for (int i = 0; i < RUNS; i++) {
        float one;
        check_cuda(cudaEventElapsedTime(&one, b->from[i], b->to[i]));
        ms[i] = one;
    }
    return bench_median(ms, RUNS);
}

/* ---- what is measured -------------------------------------------------------------------------- */

typedef struct layer {
    const char *model, *name;
    int64_t n, k, m; /* x[n,k], w[m,k], y[n,m] */
    bool bias, gelu_out, gelu_in;
} layer;

static void measure(bench *b, const layer *l, const char *what, cuda_gemm g) {
    g.a = b->a, g.b = b->b, g.c = b->c;
    if (g.gelu || g.dgelu) g.pre = b->pre;
    double tuned = time_of(b, WAY_TUNED, &g), first = time_of(b, WAY_FIRST, &g);
    double alone = time_of(b, WAY_OWN, &g);
    double flops = 2e-9 * (double)g.m * (double)g.n * (double)g.k;
    double rate = tuned > 0 ? flops / tuned : 0, plain = first > 0 ? flops / first : 0;
    double own = alone > 0 ? flops / alone : 0;
    if (b->json) {
        printf(
            "%s\n  {\"model\": \"%s\", \"layer\": \"%s\", \"gemm\": \"%s\", \"type\": \"%s\", "
            "\"fast\": %s, \"m\": %lld, \"n\": %lld, \"k\": %lld, \"ms\": %.5f, \"tflops\": %.1f, "
            "\"untuned_tflops\": %.1f, \"own_tflops\": %.1f}",
            b->lines++ ? "," : "[", l->model, l->name, what, dt_name(g.at),
            g.fast ? "true" : "false", (long long)g.m, (long long)g.n, (long long)g.k, tuned, rate,
            plain, own);
        return;
    }
    if (!b->lines++)
        printf("%-11s %-9s %-14s %-10s %20s %8s %8s %8s %8s\n", "model", "layer", "GEMM", "type",
               "m x n x k", "ms", "TFLOP/s", "untuned", "own");
    char shape[64], type[32];
    snprintf(shape, sizeof shape, "%lldx%lldx%lld", (long long)g.m, (long long)g.n, (long long)g.k);
    snprintf(type, sizeof type, "%s%s", dt_name(g.at), g.fast ? " fast" : "");
    printf("%-11s %-9s %-14s %-10s %20s ", l->model, l->name, what, type, shape);
    if (tuned > 0)
        printf("%8.4f %8.0f %8.0f %8.0f\n", tuned, rate, plain, own);
    else
        printf("%8s\n", "none");
    fflush(stdout);
}

/* C[m,n] = op(A) op(B), each matrix without gaps. */
static cuda_gemm dense(int64_t m, int64_t n, int64_t k, bool ta, bool tb) {
    return (cuda_gemm){ .m = m,
                        .n = n,
                        .k = k,
                        .lda = ta ? m : k,
                        .ldb = tb ? k : n,
                        .ldc = n,
                        .ct = DT_BF16,
                        .ta = ta,
                        .tb = tb,
                        .exact = true };
}

static cuda_gemm forward(const layer *l, dtype dt) {
    cuda_gemm g = dense(l->n, l->m, l->k, false, true);
    g.at = g.bt = dt;
    return g;
}
/* dy[n,m] w[m,k]; in fp8 w is transposed: [k,m] */
static cuda_gemm backward_x(const layer *l, dtype dt, dtype wt) {
    cuda_gemm g = dense(l->n, l->k, l->m, false, dt != DT_BF16);
    g.at = dt, g.bt = wt;
    return g;
}
/* dy[n,m]^T x[n,k]; in fp8 both are transposed: [m,n], [k,n] */
static cuda_gemm backward_w(const layer *l, dtype dt, dtype xt) {
    bool fp8 = dt != DT_BF16;
    cuda_gemm g = dense(l->m, l->k, l->n, !fp8, fp8);
    g.at = dt, g.bt = xt, g.ct = DT_F32;
    return g;
}

/* Each GEMM of the layer, with the epilogues that the model fuses into it. */
static void measure_layer(bench *b, const layer *l, cuda_gemm y, cuda_gemm dx, cuda_gemm dw) {
    measure(b, l, "y", y);
    y.bias = b->pre;
    y.bias_t = DT_BF16;
    if (l->bias) measure(b, l, "y bias", y);
    y.gelu = true;
    if (l->gelu_out) measure(b, l, "y bias gelu", y);
    measure(b, l, "dx", dx);
    dx.dgelu = true;
    if (l->gelu_in) measure(b, l, "dx gelu'", dx);
    measure(b, l, "dw", dw);
    dw.accumulate = true;
    measure(b, l, "dw add", dw);
}

static void measure_bf16(bench *b, const layer *l) {
    measure_layer(b, l, forward(l, DT_BF16), backward_x(l, DT_BF16, DT_BF16),
                  backward_w(l, DT_BF16, DT_BF16));
}

static void measure_fp8(bench *b, const layer *l, bool fast) {
    cuda_gemm y = forward(l, DT_E4M3), dx = backward_x(l, DT_E5M2, DT_E4M3);
    cuda_gemm dw = backward_w(l, DT_E5M2, DT_E4M3);
    y.fast = dx.fast = dw.fast = fast;
    measure_layer(b, l, y, dx, dw);
}

/* ---- models ------------------------------------------------------------------------------------ */

static int layers_of(const char *preset, int64_t n, layer *out) {
    model_config c;
    bench_check(model_preset(preset, &c));
    bool gelu = c.mlp != MLP_SWIGLU;
    int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
    int64_t vocab = (int64_t)align_up((size_t)c.vocab, 64);
    int64_t rows = MIN(n, ((int64_t)1 << 29) / vocab); /* of logits at a time, as in linear.c */
    out[0] =
        (layer){ preset, "attn.qkv", n, c.dim, q + 2 * kv, c.bias || c.qkv_bias, false, false };
    out[1] = (layer){ preset, "attn.o", n, q, c.dim, c.bias, false, false };
    out[2] = (layer){ preset, "mlp.up", n, c.dim, gelu ? c.ffn : 2 * c.ffn, c.bias, gelu, false };
    out[3] = (layer){ preset, "mlp.down", n, c.ffn, c.dim, c.bias, false, gelu };
    out[4] =
        (layer){ preset, "head", n / ((n + rows - 1) / rows), c.dim, vocab, false, false, false };
    return 5;
}

static void bench_model(bench *b, const char *preset, int64_t n) {
    layer all[8];
    int layers = layers_of(preset, n, all);
    fill(b->a, DT_BF16);
    fill(b->b, DT_BF16);
    fill(b->pre, DT_BF16);
    for (int i = 0; i < layers; i++) measure_bf16(b, &all[i]);
    /* bytes of e4m3 in this range are numbers in e5m2 too */
    fill(b->a, DT_E4M3);
    fill(b->b, DT_E4M3);
    for (int i = 0; i + 1 < layers; i++)
        for (int fast = 1; fast >= 0; fast--) measure_fp8(b, &all[i], fast);
}

int main(int argc, char **argv) {
    static const struct {
        const char *model;
        int64_t tokens;
    } models[] = { { "gpt2-124m", 65536 },
                   { "gpt2-1558m", 16384 },
                   { "llama-1b", 16384 },
                   { "llama-3b", 8192 },
                   { "llama2-7b", 4096 } };
    bench b = { 0 };
    int at = 1;
    for (; at < argc && argv[at][0] == '-'; at++) {
        if (!strcmp(argv[at], "--json")) b.json = true;
        if (!strcmp(argv[at], "--log")) log_set_level(LOG_DEBUG);
    }
    bench_check(ops_cuda_open(0, OPS_OFFER_OWN_GEMMS, &b.gpu[WAY_TUNED]));
    bench_check(ops_cuda_open(0, OPS_DETERMINISTIC, &b.gpu[WAY_FIRST]));
    char **operands[] = { &b.a, &b.b, &b.c, &b.pre };
    for (size_t i = 0; i < COUNT_OF(operands); i++)
        check_cuda(cudaMalloc((void **)operands[i], OPERAND_BYTES));
    check_cuda(cudaMalloc((void **)&b.sweep, SWEEP_BYTES));
    check_cuda(cudaMalloc((void **)&b.work, CUDA_GEMM_WORKSPACE));
    for (int i = 0; i < RUNS; i++) {
        check_cuda(cudaEventCreate(&b.from[i]));
        check_cuda(cudaEventCreate(&b.to[i]));
    }
    if (argc - at == 3)
        bench_model(&b, argv[at], (int64_t)atoll(argv[at + 1]) * atoll(argv[at + 2]));
    else
        for (size_t i = 0; i < COUNT_OF(models); i++)
            bench_model(&b, models[i].model, models[i].tokens);
    if (b.json) puts("\n]");
    for (int w = 0; w < WAYS; w++) ops_cuda_close(b.gpu[w]);
    return 0;
}
