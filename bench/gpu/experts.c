/* How fast the GEMMs of experts run beside dense ones of the same FLOPs:
 *
 *     bench_gpu_experts EXPERTS ROWS K F
 *
 * Prints a line of JSON with TFLOP/s of y = x w^T, dx = dy w and dw = dy^T x for x[ROWS,K] and w[F,K], in
 * bf16 with dw in fp32, grouped and dense. Groups are uneven: between 0.7 and 1.3 of the mean. */
#include "bench.h"
#include "ops/op_table.h"

enum { ROUNDS = 3 };

/* Where the groups begin; bench/peers/grouped_torch.py divides the rows in the same way. */
static tensor make_offsets(const bench_target *t, int64_t experts, int64_t rows) {
    tensor out = tensor_of(NULL, DT_I32, 1, (int64_t[]){ experts + 1 });
    int32_t *v = mem_alloc(tensor_bytes(&out));
    for (int64_t e = 0; e < experts; e++)
        v[e + 1] = v[e] + (int32_t)((double)rows / (double)experts *
                                    (0.7 + 0.006 * (double)(e * 37 % 101)));
    double by = (double)rows / v[experts];
    for (int64_t e = 1; e <= experts; e++) v[e] = (int32_t)(v[e] * by);
    v[experts] = (int32_t)rows;
    out.data = bench_map(t, tensor_bytes(&out));
    bench_put(t, out.data, v, tensor_bytes(&out));
    bench_wait(t);
    free(v);
    return out;
}

/* @return TFLOP/s, of the grouped call and of the dense one, in turns. */
static void measure(const bench_target *t, op_call *grouped, op_call *dense, double flops,
                    double rate[2]) {
    rate[0] = rate[1] = 0;
    for (int i = 0; i < ROUNDS; i++) {
        rate[0] = MAX(rate[0], flops / bench_call_seconds(t, grouped) / 1e12);
        rate[1] = MAX(rate[1], flops / bench_call_seconds(t, dense) / 1e12);
    }
}

int main(int argc, char **argv) {
    int64_t size[4] = { 8, 16384, 4096, 14336 };
    for (int i = 0; i < 4 && i + 1 < argc; i++) size[i] = atoll(argv[i + 1]);
    int64_t experts = size[0], rows = size[1], k = size[2], f = size[3];
    if (experts < 1 || rows < experts || k < 1 || f < 1) {
        fprintf(stderr, "usage: bench_gpu_experts EXPERTS ROWS K F\n");
        return 2;
    }
    op_backend *gpu = NULL;
    bench_check(ops_cuda_open(0, 0, &gpu));
    bench_target t = { .ops = gpu };
    tensor x = bench_tensor(&t, DT_BF16, rows, k, 0, 1);
    tensor w = bench_tensor(&t, DT_BF16, experts * f, k, 0, 0.02f), one = w;
    tensor dy = bench_tensor(&t, DT_BF16, rows, f, 0, 1),
           y = bench_tensor(&t, DT_BF16, rows, f, 0, 1);
    tensor dx = bench_tensor(&t, DT_BF16, rows, k, 0, 1);
    tensor dw = bench_tensor(&t, DT_F32, experts * f, k, 0, 1), dw_one = dw;
    tensor offset = make_offsets(&t, experts, rows);
    one.dim[0] = dw_one.dim[0] = f;
    op_attr attr = { .experts = (int)experts };
    struct {
        const char *name;
        op_call grouped, dense;
    } passes[] = {
        { "y",
          { .op = OP_GROUPED_LINEAR, .in = { x, w, offset }, .out = { y }, .attr = attr },
          { .op = OP_LINEAR, .in = { x, one }, .out = { y } } },
        { "dx",
          { .op = OP_GROUPED_LINEAR_BWD_X, .in = { dy, w, offset }, .out = { dx }, .attr = attr },
          { .op = OP_LINEAR_BWD_X, .in = { dy, one }, .out = { dx } } },
        { "dw",
          { .op = OP_GROUPED_LINEAR_BWD_W, .in = { dy, x, offset }, .out = { dw }, .attr = attr },
          { .op = OP_LINEAR_BWD_W, .in = { dy, x }, .out = { dw_one } } },
    };
    for (size_t i = 0; i < COUNT_OF(passes); i++) {
        double rate[2];
        measure(&t, &passes[i].grouped, &passes[i].dense, 2. * (double)rows * (double)k * (double)f,
                rate);
        printf("%s\"%s\": %.0f, \"dense_%s\": %.0f", i ? ", " : "{", passes[i].name, rate[0],
               passes[i].name, rate[1]);
    }
    puts("}");
    tensor *all[] = { &x, &w, &dy, &y, &dx, &dw, &offset };
    for (size_t i = 0; i < COUNT_OF(all); i++) bench_tensor_free(&t, all[i]);
    ops_cuda_close(gpu);
    return 0;
}
