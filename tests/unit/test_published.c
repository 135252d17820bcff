/* Simulated steps beside published ones. One set of efficiencies (planning/roofline.c) holds for all rows; a row
 * has nothing of its own but its config. Prints the table that docs/planning.md shows. */
#include "support/test.h"

#include <math.h>

#include "planning/planning.h"

enum { MOST = 48 };
typedef const char *row_settings[MOST];

typedef struct published_row {
    const char *name, *gpu;
    int ranks;
    double rate; /* model TFLOP/s per GPU with causal attention, or tokens per second and GPU */
    bool tokens;
    const char *as; /* NULL: a system whose step differs from ours in nothing that is simulated */
    row_settings set;
} published_row;

/* Megatron-LM, H100, sequences of 4,096 tokens, 131,072 tokens of vocabulary, GPT architecture. Its pipelines
 * are interleaved; here they have two chunks per rank where layers divide evenly. Microbatches are one
 * sequence. */
#define MEGATRON(name, heads, dim, ffn, layers, tp, pp, ranks, batch, micro, rate)                 \
    {                                                                                              \
        name, "h100", ranks, rate, false, "megatron-lm", {                                         \
            "model.preset", "custom", "model.layers", #layers, "model.dim", #dim, "model.heads",   \
                #heads, "model.kv_heads", #heads, "model.head_dim", "128", "model.ffn_dim", #ffn,  \
                "model.vocab_size", "131072", "model.max_seq_len", "4096", "model.norm", "layer",  \
                "model.activation", "gelu", "model.bias", "true", "training.seq_len", "4096",      \
                "training.local_batch_size", #micro, "training.global_batch_size", #batch,         \
                "parallelism.tensor_parallel_degree", #tp, "parallelism.pipeline_parallel_degree", \
                #pp, "parallelism.pipeline_parallel_schedule",                                     \
                (pp > 1 && layers % (2 * pp) == 0) ? "Interleaved1F1B" : "1F1B"                    \
        }                                                                                          \
    }
/* torchtitan, Llama 3.1 8B, FSDP, sequences of 8,192 tokens, two per GPU, H100 at 500 W. It recomputes every
 * second GEMM; here that is half of the blocks. */
#define TORCHTITAN(name, ranks, fp8, rate)                                                         \
    {                                                                                              \
        name, "h100-500w", ranks, rate, true, NULL, {                                              \
            "model.preset", "llama3-8b", "training.seq_len", "8192", "training.local_batch_size",  \
                "2", "parallelism.zero_stage", "3", "activation_checkpoint.mode", "full",          \
                "activation_checkpoint.part", "0.5", "precision.fp8", fp8                          \
        }                                                                                          \
    }

static const published_row rows[] = {
    MEGATRON("Megatron-LM 1.7B", 16, 2048, 8192, 24, 1, 1, 48, 192, 1, 408.8),
    MEGATRON("Megatron-LM 16B", 48, 6144, 24576, 32, 4, 1, 192, 192, 1, 489.1),
    MEGATRON("Megatron-LM 70B", 64, 8192, 32768, 84, 8, 2, 768, 384, 1, 419.7),
    MEGATRON("Megatron-LM 177B", 96, 12288, 49152, 96, 8, 6, 2304, 1152, 1, 432.8),
    MEGATRON("Megatron-LM 462B", 144, 18432, 73728, 112, 8, 16, 6144, 3072, 1, 459.9),
    TORCHTITAN("torchtitan 8B, 8 GPUs", 8, "off", 6667),
    TORCHTITAN("torchtitan 8B, 128 GPUs", 128, "off", 6514),
    TORCHTITAN("torchtitan 8B, 8 GPUs, float8", 8, "current", 8532),
    TORCHTITAN("torchtitan 8B, 128 GPUs, float8", 128, "current", 8380),
    /* an earlier table of torchtitan's: Llama 3 on 64 A100, one sequence per GPU */
    { "torchtitan 8B, 64 A100",
      "a100-80gb",
      64,
      2973,
      true,
      NULL,
      { "model.preset", "llama3-8b", "training.seq_len", "8192", "training.local_batch_size", "1",
        "parallelism.zero_stage", "3", "activation_checkpoint.mode", "full",
        "activation_checkpoint.part", "0.5" } },
    { "torchtitan 70B, 64 A100",
      "a100-80gb",
      64,
      331,
      true,
      NULL,
      { "model.preset", "llama3-70b", "training.seq_len", "8192", "training.local_batch_size", "1",
        "parallelism.zero_stage", "3", "activation_checkpoint.mode", "full" } },
};

/* Ours on one H200, as bench/gpu/train measured them. */
#define H200(name, preset, batch, seq, fp8, rate)                                                  \
    {                                                                                              \
        name, "h200", 1, rate, true, NULL, {                                                       \
            "model.preset", preset, "training.seq_len", #seq, "training.local_batch_size", #batch, \
                "precision.fp8", fp8                                                               \
        }                                                                                          \
    }
static const published_row measured[] = {
    H200("GPT-2 124M", "gpt2-124m", 64, 1024, "off", 626500),
    H200("GPT-2 1558M", "gpt2-1558m", 16, 1024, "off", 53400),
    H200("llama-1b", "llama-1b", 4, 4096, "off", 75100),
    H200("llama-3b", "llama-3b", 2, 4096, "off", 27300),
    H200("GPT-2 124M, fp8", "gpt2-124m", 64, 1024, "delayed", 724000),
    H200("GPT-2 1558M, fp8", "gpt2-1558m", 16, 1024, "delayed", 73100),
    H200("llama-1b, fp8", "llama-1b", 4, 4096, "delayed", 100500),
    H200("llama-3b, fp8", "llama-3b", 2, 4096, "delayed", 37000),
};

static double simulated_rate(const hardware *h, const published_row *r, step_time *t) {
    config c;
    const accelerator *gpu;
    run_target on = { .ops = ops_cpu(OPS_ISA_BEST), .device = true, .ranks = r->ranks };
    config_init(&c);
    assert_ok(config_set(&c, "precision.dtype", "bf16"));
    assert_ok(config_set(&c, "parallelism.tensor_parallel_chunks", "1")); /* as on a GPU */
    for (int i = 0; i + 1 < MOST && r->set[i]; i += 2)
        assert_ok(config_set(&c, r->set[i], r->set[i + 1]));
    assert_ok(hardware_find(h, r->gpu, &gpu));
    if (r->as) assert_ok(other_system_find(r->as, &on.as));
    assert_ok(step_simulate(&c, &on, gpu, NULL, t));
    config_free(&c);
    return r->tokens ? t->tokens_per_second / r->ranks : t->flops_causal / 1e12;
}

static int compare_rows(const published_row *list, size_t n, double within) {
    hardware h;
    int outside = 0;
    assert_ok(hardware_open(NULL, &h));
    printf("%-32s %10s %10s %7s   %6s %7s %7s %7s\n", "", "simulated", "published", "", "bubble",
           "exposed", "hidden", "update");
    for (size_t i = 0; i < n; i++) {
        step_time t;
        double rate = simulated_rate(&h, &list[i], &t), off = rate / list[i].rate - 1;
        bool is_outside = fabs(off) > within;
        printf("%-32s %10.5g %10.5g %+6.1f %%   %4.1f %% %5.1f %% %5.1f %% %5.1f %%%s\n",
               list[i].name, rate, list[i].rate, 100 * off, 100 * t.run.bubble,
               100 * t.run.exposed / t.seconds, 100 * t.run.hidden / t.seconds,
               100 * t.update / t.seconds, is_outside ? "  outside" : "");
        outside += is_outside;
    }
    hardware_free(&h);
    return outside;
}

static void published_runs_come_out(void **state) {
    assert_int_equal(compare_rows(rows, COUNT_OF(rows), 0.15), 0);
}

static void measured_runs_come_out(void **state) {
    assert_int_equal(compare_rows(measured, COUNT_OF(measured), 0.10), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_runs_come_out),
        cmocka_unit_test(measured_runs_come_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
