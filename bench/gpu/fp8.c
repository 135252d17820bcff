/* Times what fp8 adds to a linear layer and what it saves, on a GPU: quantisation in GB/s, products in
 * TFLOP/s in bf16 and fp8, at the shapes of a model's block.
 *
 *     bench_gpu_fp8 TOKENS IN OUT [IN OUT ...] */
#include <stdlib.h>

#include "ops/ops.h"

static op_backend *gpu;

static void die(err e) {
    if (!e) return;
    err_print(stderr, e, true);
    exit(1);
}

static tensor on_gpu(dtype dt, int64_t rows, int64_t cols) {
    tensor t = tensor_of(NULL, dt, cols ? 2 : 1, (int64_t[]){ rows, cols });
    size_t bytes = tensor_bytes(&t);
    die(gpu->device->map(gpu->context, bytes, &t.data));
    int64_t n = tensor_count(&t);
    float *v = mem_alloc((size_t)n * sizeof *v);
    void *narrow = mem_alloc(bytes);
    rng_key key = rng_key_of(1, (uint64_t)n);
    for (int64_t i = 0; i < MIN(n, 65536); i++) v[i] = rng_normal(key, (uint64_t)i);
    for (int64_t i = 65536; i < n; i++) v[i] = v[i & 65535];
    dt_from_f32(dt, v, narrow, n);
    gpu->device->put(gpu->context, t.data, narrow, bytes);
    die(gpu->device->sync(gpu->context));
    free(v);
    free(narrow);
    return t;
}

static tensor cold_row(void) {
    tensor row = on_gpu(DT_F32, FP8_ROW, 0);
    float zero[FP8_ROW] = { 0 };
    gpu->device->put(gpu->context, row.data, zero, sizeof zero);
    return row;
}

/* Seconds of one call, the mean of many in a row. */
static double seconds(op_call *c) {
    enum { WARM = 3, RUNS = 20 };
    op_run run = { .context = gpu->context, .workspace_bytes = ops_workspace(gpu, c, 1) };
    if (run.workspace_bytes)
        die(gpu->device->map(gpu->context, run.workspace_bytes, &run.workspace));
    c->run = &run;
    for (int i = 0; i < WARM; i++) ops_run(gpu, c);
    gpu->device->mark(gpu->context, 0);
    for (int i = 0; i < RUNS; i++) ops_run(gpu, c);
    gpu->device->mark(gpu->context, 1);
    double s = gpu->device->between(gpu->context, 0, 1) / RUNS;
    die(gpu->device->sync(gpu->context));
    gpu->device->unmap(gpu->context, run.workspace, run.workspace_bytes);
    return s;
}

static void print(const char *what, op_call *c) {
    double s = seconds(c);
    op_work w = ops_work(c);
    if (w.flops > 0)
        printf(" %s %.0f", what, w.flops / s / 1e12);
    else
        printf(" %s %.0f (%.1f us)", what, w.bytes / s / 1e9, s * 1e6);
    fflush(stdout);
}

static void quantisations(const char *name, int64_t rows, int64_t cols, dtype dt) {
    tensor x = on_gpu(DT_BF16, rows, cols), row = cold_row();
    op_call c = { .op = OP_QUANTIZE, .in = { x, row } };
    tensor q = on_gpu(dt, rows, cols), qt = on_gpu(dt, cols, rows);
    c.attr.fp8.recipe = FP8_DELAYED;
    printf("  %-3s [%lld, %lld] GB/s:", name, (long long)rows, (long long)cols);
    for (int which = 1; which <= 3; which++) {
        static const char *const names[] = { "q", "qt", "both" };
        c.out[0] = which & 1 ? q : (tensor){ 0 };
        c.out[1] = which & 2 ? qt : (tensor){ 0 };
        print(names[which - 1], &c);
    }
    c.attr.fp8.given = true;
    print("both, given", &c);
    c.attr.fp8.given = false;
    c.attr.fp8.recipe = FP8_CURRENT;
    print("both, current", &c);
    printf("\n");
    tensor all[] = { x, row, q, qt };
    for (int i = 0; i < 4; i++) gpu->device->unmap(gpu->context, all[i].data, 0);
}

static void activations(int64_t n, int64_t k) {
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
        print(all[i].name, &c);
        c.out[2] = on_gpu(DT_F32, width, 0);
        print("with sums", &c);
        for (int j = 0; j < 3; j++) gpu->device->unmap(gpu->context, c.in[j].data, 0);
        for (int j = 0; j < 3; j++) gpu->device->unmap(gpu->context, c.out[j].data, 0);
    }
    printf("\n");
}

static void products(int64_t n, int64_t k, int64_t m, bool fp8) {
    dtype v = fp8 ? DT_E4M3 : DT_BF16, g = fp8 ? DT_E5M2 : DT_BF16;
    tensor x = on_gpu(v, n, k), w = on_gpu(v, m, k), dy = on_gpu(g, n, m),
           y = on_gpu(DT_BF16, n, m);
    tensor dx = on_gpu(DT_BF16, n, k), dw = on_gpu(DT_F32, m, k), row = cold_row();
    float one[FP8_ROW] = { [FP8_SCALE] = 1, [FP8_UNSCALE] = 1 };
    gpu->device->put(gpu->context, row.data, one, sizeof one);
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
    print("y", &f);
    print("dx", &b);
    print("dw", &a);
    a.accumulate = ~0u;
    print("+= dw", &a);
    printf("\n");
    tensor all[] = { x, w, dy, y, dx, dw, row, none };
    for (int i = 0; i < 8; i++) gpu->device->unmap(gpu->context, all[i].data, 0);
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: bench_gpu_fp8 TOKENS IN OUT [IN OUT ...]\n");
        return 2;
    }
    die(ops_cuda_open(0, 0, &gpu));
    int64_t n = atoll(argv[1]);
    for (int i = 2; i + 1 < argc; i += 2) {
        int64_t k = atoll(argv[i]), m = atoll(argv[i + 1]);
        printf("%lld tokens, %lld -> %lld\n", (long long)n, (long long)k, (long long)m);
        quantisations("x", n, k, DT_E4M3);
        quantisations("w", m, k, DT_E4M3);
        quantisations("dy", n, m, DT_E5M2);
        activations(n, k);
        products(n, k, m, false);
        products(n, k, m, true);
    }
    ops_cuda_close(gpu);
    return 0;
}
