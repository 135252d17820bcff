/* Times what fp8 adds to a linear layer and what it saves, on a GPU: quantization in GB/s, GEMMs in
 * TFLOP/s in bf16 and fp8, at the shapes of a model's block.
 *
 *     bench_gpu_fp8 TOKENS IN OUT [IN OUT ...] */
#include "bench.h"
#include "ops/op_table.h"

static op_backend *gpu;
static bench_target target;

static tensor on_gpu(dtype dt, int64_t rows, int64_t cols) {
    return bench_tensor(&target, dt, rows, cols, 0, 1);
}

/* A row of scales that knows nothing yet. */
static tensor cold_row(void) {
    tensor row = on_gpu(DT_F32, FP8_ROW, 0);
    float zero[FP8_ROW] = { 0 };
    bench_put(&target, row.data, zero, sizeof zero);
    return row;
}

static void print_speed(const char *what, op_call *c) {
    double s = bench_call_seconds(&target, c);
    op_work w = ops_work(c);
    if (w.flops > 0)
        printf(" %s %.0f", what, w.flops / s / 1e12);
    else
        printf(" %s %.0f (%.1f us)", what, w.bytes / s / 1e9, s * 1e6);
    fflush(stdout);
}

static void bench_quantization(const char *name, int64_t rows, int64_t cols, dtype dt) {
    tensor x = on_gpu(DT_BF16, rows, cols), row = cold_row();
    op_call c = { .op = OP_QUANTIZE, .in = { x, row } };
    tensor q = on_gpu(dt, rows, cols), qt = on_gpu(dt, cols, rows);
    c.attr.fp8.recipe = FP8_DELAYED;
    printf("  %-3s [%lld, %lld] GB/s:", name, (long long)rows, (long long)cols);
    for (int which = 1; which <= 3; which++) {
        static const char *const names[] = { "q", "qt", "both" };
        c.out[0] = which & 1 ? q : (tensor){ 0 };
        c.out[1] = which & 2 ? qt : (tensor){ 0 };
        print_speed(names[which - 1], &c);
    }
    c.attr.fp8.given = true;
    print_speed("both, given", &c);
    c.attr.fp8.given = false;
    c.attr.fp8.recipe = FP8_CURRENT;
    print_speed("both, current", &c);
    printf("\n");
    tensor all[] = { x, row, q, qt };
    for (size_t i = 0; i < COUNT_OF(all); i++) bench_tensor_free(&target, &all[i]);
}

static void bench_activations(int64_t n, int64_t k) {
    static const struct {
        const char *name;
        op_code op;
        int in, second, out;
    } all[] = { { "swiglu", OP_QUANTIZE_SWIGLU, 2, 0, 1 },
                { "swiglu_bwd", OP_QUANTIZE_SWIGLU_BWD, 1, 2, 2 },
                { "gelu", OP_QUANTIZE_GELU, 1, 0, 1 },
                { "gelu_bwd", OP_QUANTIZE_GELU_BWD, 1, 1, 1 },
                { "plain", OP_QUANTIZE, 1, 0, 1 } };
    printf("  activations, %lld wide, GB/s:", (long long)k);
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        int64_t width = all[i].out * k;
        op_call c = { .op = all[i].op, .in = { on_gpu(DT_BF16, n, all[i].in * k), cold_row() } };
        if (all[i].second) c.in[2] = on_gpu(DT_BF16, n, all[i].second * k);
        c.out[0] = on_gpu(DT_E5M2, n, width), c.out[1] = on_gpu(DT_E5M2, width, n);
        c.attr.fp8.recipe = FP8_DELAYED;
        print_speed(all[i].name, &c);
        c.out[2] = on_gpu(DT_F32, width, 0);
        print_speed("with sums", &c);
        for (int j = 0; j < 3; j++) bench_tensor_free(&target, &c.in[j]);
        for (int j = 0; j < 3; j++) bench_tensor_free(&target, &c.out[j]);
    }
    printf("\n");
}

static void bench_gemms(int64_t n, int64_t k, int64_t m, bool fp8) {
    dtype v = fp8 ? DT_E4M3 : DT_BF16, g = fp8 ? DT_E5M2 : DT_BF16;
    tensor x = on_gpu(v, n, k), w = on_gpu(v, m, k), dy = on_gpu(g, n, m),
           y = on_gpu(DT_BF16, n, m);
    tensor dx = on_gpu(DT_BF16, n, k), dw = on_gpu(DT_F32, m, k), row = cold_row();
    float one[FP8_ROW] = { [FP8_SCALE] = 1, [FP8_UNSCALE] = 1 };
    bench_put(&target, row.data, one, sizeof one);
    tensor wt = w, dyt = dy, xt = x, none = { 0 };
    if (fp8) {
        wt.dim[0] = k, wt.dim[1] = m;
        dyt.dim[0] = m, dyt.dim[1] = n;
        xt.dim[0] = k, xt.dim[1] = n;
    } else {
        none = row, row = (tensor){ 0 };
    }
    printf("  %s TFLOP/s:", fp8 ? "fp8 " : "bf16");
    op_call f = { .op = OP_LINEAR, .in = { x, w, { 0 }, row, row }, .out = { y } };
    op_call b = { .op = OP_LINEAR_BWD_X, .in = { dy, wt, { 0 }, row, row }, .out = { dx } };
    op_call a = { .op = OP_LINEAR_BWD_W, .in = { dyt, xt, { 0 }, row, row }, .out = { dw } };
    print_speed("y", &f);
    print_speed("dx", &b);
    print_speed("dw", &a);
    a.accumulate = ~0u;
    print_speed("+= dw", &a);
    printf("\n");
    tensor all[] = { x, w, dy, y, dx, dw, row, none };
    for (size_t i = 0; i < COUNT_OF(all); i++) bench_tensor_free(&target, &all[i]);
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: bench_gpu_fp8 TOKENS IN OUT [IN OUT ...]\n");
        return 2;
    }
    bench_check(ops_cuda_open(0, 0, &gpu));
    target.ops = gpu;
    int64_t n = atoll(argv[1]);
    for (int i = 2; i + 1 < argc; i += 2) {
        int64_t k = atoll(argv[i]), m = atoll(argv[i + 1]);
        printf("%lld tokens, %lld -> %lld\n", (long long)n, (long long)k, (long long)m);
        bench_quantization("x", n, k, DT_E4M3);
        bench_quantization("w", m, k, DT_E4M3);
        bench_quantization("dy", n, m, DT_E5M2);
        bench_activations(n, k);
        bench_gemms(n, k, m, false);
        bench_gemms(n, k, m, true);
    }
    ops_cuda_close(gpu);
    return 0;
}
