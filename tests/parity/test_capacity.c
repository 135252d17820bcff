/* The planner reports the memory that training then reserves: same programs, same bytes. */
#include "support/train.h"

#include <math.h>

#include "planning/planning.h"

static void set_all(config *c, const char *const *list) {
    for (int i = 0; list[i]; i += 2) assert_ok(config_set(c, list[i], list[i + 1]));
}

/* The planned bytes of the run that train_small makes of the same settings: RUN/config.yaml has them. */
static capacity plan_ranks(test_folder *f, const char *name, int ranks) {
    char path[64];
    config c;
    capacity cap;
    snprintf(path, sizeof path, "%s/config.yaml", name);
    config_init(&c);
    assert_ok(config_load(&c, in_folder(f, path)));
    const op_backend *ops = NULL;
    assert_ok(train_device(&c, 0, &ops));
    assert_ok(capacity_of(&c, &(run_target){ .ops = ops, .ranks = ranks }, &cap));
    ops_close(ops);
    config_free(&c);
    return cap;
}

static capacity plan_run(test_folder *f, const char *name) { return plan_ranks(f, name, 0); }

static double file_bytes(test_folder *f, const char *name) {
    int64_t bytes = 0;
    assert_ok(io_size(in_folder(f, name), &bytes));
    return (double)bytes;
}

static void predicts_what_training_reserves(void **state) {
    static const settings runs[] = {
        { "precision", "fp32" },
        { "precision", "bf16" },
        { "precision", "bf16", "activation_checkpoint.mode", "full", "model.layers", "4" },
        { "precision", "bf16", "activation_checkpoint.mode", "every", "model.layers", "5" },
        { "precision", "bf16", "activation_checkpoint.mode", "selective" },
        { "precision", "bf16", "optimizer.name", "adam8bit", "optimizer.master", "bf16" },
        { "precision", "bf16", "optimizer.name", "muon", "training.threads", "2" },
        { "precision", "bf16", "optimizer.name", "adafactor", "training.seq_len", "96" },
        { "precision", "bf16", "optimizer.name", "muon", "optimizer.muon_beta2", "0.9",
          "optimizer.muon_equilibrate", "true", "optimizer.groups",
          "[{match: embed, name: sgd}, {match: \"l0.*\", name: adam8bit}, {match: vectors, name: "
          "adafactor}]" },
        { "precision", "fp16", "validation.every", "4" },
        { "precision", "bf16", "precision.fp8", "delayed", "training.global_batch_size", "8" },
        { "precision", "bf16", "precision.fp8", "current", "precision.fp8_head", "true",
          "model.vocab_size", "272" },
        { "precision", "fp32", "sample.every", "8", "optimizer.name", "lion" },
        { "precision", "bf16", "model.qk_norm", "head", "model.norm", "layer", "model.bias",
          "true" },
    };
    test_folder *f = *state;
    for (size_t i = 0; i < COUNT_OF(runs); i++) {
        char name[16], path[96];
        double listed = 0;
        settings own;
        memcpy(own, runs[i], sizeof own);
        snprintf(name, sizeof name, "run%zu", i);
        train_small(f, name, own);
        json_t *steps = logged_steps(f, name);
        capacity cap = plan_run(f, name);
        /* plan_commit may add a page's rest, never an instruction's memory */
        if (cap.total != logged_number(steps, 0, "plan_mem"))
            fail_msg("run %zu: %.0f bytes planned, %.0f reserved", i, cap.total,
                     logged_number(steps, 0, "plan_mem"));
        for (int k = 0; k < MEMORY_KINDS; k++) listed += cap.memory[k];
        assert_true(listed == cap.total && cap.memory[MEMORY_OTHER] == 0);
        assert_true(cap.tokens == logged_number(steps, json_array_size(steps) - 1, "tokens"));
        json_decref(steps);
        snprintf(path, sizeof path, "%s/checkpoints/step-00000008/model.safetensors", name);
        double files = file_bytes(f, path);
        snprintf(path, sizeof path, "%s/checkpoints/step-00000008/optim.safetensors", name);
        files += file_bytes(f, path);
        if (!(cap.checkpoint < files && files < cap.checkpoint + 32768)) /* beside the headers */
            fail_msg("run %zu: checkpoint of %.0f bytes, planned %.0f", i, files, cap.checkpoint);
    }
}

/* Ranks as threads of one process: rank 0 logs what it has reserved, a rank of the first stage. */
static void predicts_what_ranks_reserve(void **state) {
    static const struct {
        int ranks;
        settings set;
    } runs[] = {
        { 2, { "parallelism.zero_stage", "0", "training.steps", "2" } },
        { 2, { "parallelism.zero_stage", "1" } },
        { 2, { "parallelism.zero_stage", "2", "training.global_batch_size", "8" } },
        { 2, { "parallelism.zero_stage", "3", "precision", "bf16" } },
        { 2, { "parallelism.tensor_parallel_degree", "2" } },
        { 2, { "parallelism.context_parallel_degree", "2" } },
        { 2,
          { "parallelism.pipeline_parallel_degree", "2", "model.layers", "4",
            "training.global_batch_size", "8" } },
        { 4,
          { "parallelism.pipeline_parallel_degree", "2", "model.layers", "4",
            "parallelism.tensor_parallel_degree", "2", "training.global_batch_size", "16",
            "parallelism.pipeline_parallel_schedule", "Interleaved1F1B" } },
        { 2,
          { "parallelism.pipeline_parallel_degree", "2", "model.layers", "4",
            "training.global_batch_size", "8", "model.layer_scalars", "true", "model.backout",
            "true", "model.smear", "true" } },
        { 2, { "model.experts", "4", "parallelism.expert_parallel_degree", "2" } },
    };
    test_folder *f = *state;
    for (size_t i = 0; i < COUNT_OF(runs); i++) {
        char name[16];
        settings own;
        memcpy(own, runs[i].set, sizeof own);
        snprintf(name, sizeof name, "ranks%zu", i);
        assert_ok(try_train_ranks(f, name, own, runs[i].ranks));
        json_t *steps = logged_steps(f, name);
        capacity cap = plan_ranks(f, name, runs[i].ranks);
        assert_int_equal(mesh_world(&cap.layout), runs[i].ranks);
        if (cap.total != logged_number(steps, 0, "plan_mem"))
            fail_msg("run %zu: %.0f bytes planned, %.0f reserved", i, cap.total,
                     logged_number(steps, 0, "plan_mem"));
        assert_true(cap.of_all_ranks <= cap.total * runs[i].ranks);
        assert_true(fabs(cap.checkpoint / (12 * cap.params) - 1) < 0.01); /* of all ranks */
        json_decref(steps);
    }
}

static capacity plan_settings(const char *const *list, bool device) {
    config c;
    capacity cap;
    config_init(&c);
    set_all(&c, list);
    assert_ok(
        capacity_of(&c, &(run_target){ .ops = ops_cpu(OPS_ISA_BEST), .device = device }, &cap));
    config_free(&c);
    return cap;
}

/* Gradients are fp32, 4 bytes per parameter beside the padding of buckets, whether a step has one microbatch or many. */
static void gradients_are_fp32_for_any_number_of_microbatches(void **state) {
    static const char *const types[][4] = {
        { "precision", "fp32" },
        { "precision", "bf16" },
        { "precision", "bf16", "precision.fp8", "delayed" },
        { "precision", "fp16" },
    };
    static const char *const optimizers[] = { "adamw", "muon", "adam8bit" };
    static const char *const batches[] = { "2", "4", "16" };
    for (size_t t = 0; t < COUNT_OF(types); t++)
        for (size_t o = 0; o < COUNT_OF(optimizers); o++)
            for (size_t b = 0; b < COUNT_OF(batches); b++) {
                const char *list[] = { "model.preset",
                                       "demo",
                                       "training.seq_len",
                                       "32",
                                       "training.local_batch_size",
                                       "2",
                                       "training.global_batch_size",
                                       batches[b],
                                       "optimizer.name",
                                       optimizers[o],
                                       types[t][0],
                                       types[t][1],
                                       types[t][2],
                                       types[t][3],
                                       NULL };
                capacity cap = plan_settings(list, false);
                double each = cap.memory[MEMORY_GRADIENTS] / cap.params;
                if (!(each >= 4 && each < 4.1))
                    fail_msg("%s %s, %s, batches of %s: %g bytes of gradients per parameter",
                             types[t][1], types[t][2] ? "with fp8" : "", optimizers[o], batches[b],
                             each);
            }
}

/* Models that fit nowhere are laid out too. */
static void plans_beyond_the_machine(void **state) {
    const char *const big[] = { "model.preset",
                                "llama3-405b",
                                "training.seq_len",
                                "8192",
                                "training.local_batch_size",
                                "1",
                                "precision.dtype",
                                "bf16",
                                "training.steps",
                                "1e12 tokens",
                                NULL };
    capacity c = plan_settings(big, true);
    assert_true(fabs(c.params / 405.85e9 - 1) < 0.001);
    assert_true(fabs(c.memory[MEMORY_WEIGHTS] / (2 * c.params) - 1) < 0.001);
    assert_true(fabs(c.memory[MEMORY_GRADIENTS] / (4 * c.params) - 1) < 0.001);
    assert_true(fabs(c.memory[MEMORY_MASTER] / (4 * c.params) - 1) < 0.001);
    assert_true(fabs(c.memory[MEMORY_MOMENTS] / (8 * c.params) - 1) < 0.001);
    assert_true(fabs(c.checkpoint / (12 * c.params) - 1) < 0.001);
    assert_true(c.flops_causal < c.flops_full && c.flops_full < 1.2 * 6 * c.params);
    assert_true(fabs(c.tokens / 1e12 - 1) < 1e-6);
    const char *const epochs[] = { "training.steps", "2 epochs", NULL };
    assert_true(isnan(plan_settings(epochs, false).tokens));
#define BF16 "precision.dtype", "bf16"
    const char *const offload[] = { BF16, "optimizer.offload", "1", NULL };
    const char *const plain[] = { BF16, NULL };
    capacity off = plan_settings(offload, true), on = plan_settings(plain, true);
    assert_true(off.offloaded > 0 && off.total + off.offloaded >= on.total);
    assert_true(off.memory[MEMORY_MOMENTS] < on.memory[MEMORY_MOMENTS] / 10);
    const char *const params[] = { BF16, "training.offload_params", "true", NULL };
#undef BF16
    capacity away = plan_settings(params, true), here = plan_settings(params, false);
    double weights = on.memory[MEMORY_WEIGHTS] + on.memory[MEMORY_MASTER];
    assert_true(away.offloaded >= weights && away.memory[MEMORY_WEIGHTS] == 0);
    assert_true(away.memory[MEMORY_MASTER] == 0);
    assert_true(away.total < on.total - weights / 2); /* slots hold some of them */
    assert_true(here.offloaded == 0 && here.total > on.total);
}

/* The change that is proposed does fit, and nothing is proposed where nothing helps. */
static void proposes_what_fits(void **state) {
    config c;
    capacity now;
    const op_backend *ops = ops_cpu(OPS_ISA_BEST);
    double last = INFINITY;
    config_init(&c);
    assert_ok(config_set(&c, "model.preset", "gpt-small"));
    assert_ok(config_set(&c, "precision.dtype", "bf16"));
    assert_ok(capacity_of(&c, &(run_target){ .ops = ops, .device = true }, &now));
    for (double share = 0.95; share > 0.3; share -= 0.15) {
        fit_change f;
        assert_ok(capacity_make_fit(&c, &(run_target){ .ops = ops, .device = true },
                                    share * now.total, &now, &f));
        assert_true(f.found && f.after.total <= share * now.total && f.after.total <= last);
        assert_true(f.settings.len > 0 && f.what.len > 0);
        assert_true(f.after.step_tokens == now.step_tokens); /* the same training */
        config changed;
        capacity again;
        config_copy(&changed, &c);
        char *next = NULL;
        for (char *o = strtok_r(f.settings.text, " ", &next); o; o = strtok_r(NULL, " ", &next)) {
            char *equals = strchr(o, '=');
            *equals = '\0';
            assert_ok(config_set(&changed, o + 2, equals + 1));
        }
        assert_ok(capacity_of(&changed, &(run_target){ .ops = ops, .device = true }, &again));
        assert_true(again.total == f.after.total);
        config_free(&changed);
        fit_change_free(&f);
    }
    fit_change none;
    assert_ok(capacity_make_fit(&c, &(run_target){ .ops = ops, .device = true }, 1e6, &now, &none));
    assert_false(none.found);
    assert_true(none.least > 1e6 && none.least < now.total);
    fit_change_free(&none);
    config_free(&c);
}

/* In fp32 there is no master copy to leave out; a proposal must still be found. */
static void proposes_in_fp32(void **state) {
    config c;
    capacity now;
    fit_change f;
    const op_backend *ops = ops_cpu(OPS_ISA_BEST);
    config_init(&c);
    assert_ok(config_set(&c, "model.preset", "gpt-small"));
    assert_ok(config_set(&c, "precision.dtype", "fp32"));
    assert_ok(capacity_of(&c, &(run_target){ .ops = ops, .device = true }, &now));
    assert_ok(capacity_make_fit(&c, &(run_target){ .ops = ops, .device = true }, 0.4 * now.total,
                                &now, &f));
    assert_true(f.found && f.after.total <= 0.4 * now.total);
    fit_change_free(&f);
    assert_ok(capacity_make_fit(&c, &(run_target){ .ops = ops, .device = true }, 1e6, &now,
                                &f)); /* tries all of them */
    assert_false(f.found);
    fit_change_free(&f);
    config_free(&c);
}

/* Each variant is what its options make of the config. */
static void compares_variants(void **state) {
    config c;
    capacity now;
    capacity_variant *list = NULL;
    int n = 0;
    const op_backend *ops = ops_cpu(OPS_ISA_BEST);
    config_init(&c);
    assert_ok(config_set(&c, "model.preset", "gpt-small"));
    assert_ok(config_set(&c, "precision.dtype", "bf16"));
    assert_ok(capacity_of(&c, &(run_target){ .ops = ops, .device = true }, &now));
    assert_ok(capacity_compare(&c, &(run_target){ .ops = ops, .device = true }, &now, &list, &n));
    assert_true(n > 8 && list[0].cap.total == now.total && !list[0].settings.len);
    for (int i = 1; i < n; i++) {
        assert_true(list[i].settings.len > 0);
        if (!list[i].other_run) assert_true(list[i].cap.total < now.total && list[i].slower >= 0);
        for (int k = 0; k < i; k++) assert_string_not_equal(list[i].what.text, list[k].what.text);
    }
    capacity_variants_free(list, n);
    config_free(&c);
}

static const capacity_variant *find_variant(const capacity_variant *list, int n,
                                            const char *options) {
    for (int i = 0; i < n; i++)
        if (list[i].settings.text && !strcmp(list[i].settings.text, options)) return &list[i];
    fail_msg("no variant has %s", options);
    return NULL;
}

/* Other models: as many active weights with experts and without, fewer scores in a window. */
static void compares_other_models(void **state) {
    hardware h;
    config c;
    capacity now;
    capacity_variant *list = NULL;
    int n = 0;
    run_target on = { .ops = ops_cpu(OPS_ISA_BEST), .device = true };
    assert_ok(hardware_open(NULL, &h));
    assert_ok(hardware_find(&h, "h100", &on.gpu));
    config_init(&c);
    assert_ok(config_set(&c, "model.preset", "llama-1b"));
    assert_ok(config_set(&c, "model.layers", "2"));
    assert_ok(config_set(&c, "model.ffn_dim", "5632"));
    assert_ok(config_set(&c, "training.seq_len", "4096"));
    assert_ok(config_set(&c, "precision.dtype", "bf16"));
    assert_ok(capacity_of(&c, &on, &now));
    assert_ok(capacity_compare(&c, &on, &now, &list, &n));
    double dense = (double)model_count_active(&now.mc);
    const capacity_variant *window = find_variant(list, n, "--model.sliding_window=1024");
    const capacity_variant *heads = find_variant(list, n, "--model.kv_heads=32");
    const capacity_variant *packed = find_variant(list, n, "--data.packing=best_fit");
    const capacity_variant *experts = find_variant(
        list, n, "--model.experts=8 --model.experts_per_token=2 --model.expert_dim=2816");
    assert_true(window->slower < -0.02 && window->cap.params == now.params);
    assert_true(heads->slower > 0 && heads->cap.params > now.params);
    assert_true(fabs(packed->slower) < 1e-3 && packed->other_run);
    assert_true(fabs((double)model_count_active(&experts->cap.mc) / dense - 1) < 1e-3);
    assert_true(experts->cap.params > 1.5 * now.params && experts->cap.total > now.total);
    capacity_variants_free(list, n);
    config_free(&c);
    hardware_free(&h);
}

/* Rings and trees are compared where NCCL would choose, and all-reduces take time. */
static void compares_algorithms(void **state) {
    hardware h;
    config c;
    capacity now;
    run_target on = { .ops = ops_cpu(OPS_ISA_BEST), .device = true, .ranks = 16 };
    assert_ok(hardware_open(NULL, &h));
    assert_ok(hardware_find(&h, "h100", &on.gpu));
    config_init(&c);
    set_all(&c, (const char *const[]){ "model.preset", "gpt-small", "precision.dtype", "bf16",
                                       "parallelism.data_parallel_replicate_degree", "16", NULL });
    for (int chosen = 0; chosen < 2; chosen++) {
        capacity_variant *list = NULL;
        int n = 0, found = 0;
        if (chosen) assert_ok(config_set(&c, "comm.nccl_algorithm", "ring"));
        assert_ok(capacity_of(&c, &on, &now));
        assert_ok(capacity_compare(&c, &on, &now, &list, &n));
        for (int i = 0; i < n; i++)
            found +=
                list[i].settings.text && strstr(list[i].settings.text, "nccl_algorithm") != NULL;
        assert_true(chosen ? found == 0 : found > 0);
        capacity_variants_free(list, n);
    }
    config_free(&c);
    hardware_free(&h);
}

/* ZeRO's memory per rank: what stage n and later ones shard is an eighth of the whole, on eight ranks. */
static void zero_shards_by_its_stage(void **state) {
    static const struct {
        memory_kind kind;
        double bytes; /* per parameter, whole */
        int from;     /* the stage that shards it */
    } parts[] = { { MEMORY_WEIGHTS, 2, 3 },
                  { MEMORY_GRADIENTS, 4, 2 },
                  { MEMORY_MASTER, 4, 1 },
                  { MEMORY_MOMENTS, 8, 1 } };
    const op_backend *ops = ops_cpu(OPS_ISA_BEST);
    for (int stage = 0; stage <= 3; stage++) {
        char text[8];
        config c;
        capacity cap;
        snprintf(text, sizeof text, "%d", stage);
        config_init(&c);
        set_all(&c, (const char *[]){ "model.preset", "llama-1b", "precision.dtype", "bf16",
                                      "optimizer.name", "adamw",
                                      "parallelism.data_parallel_shard_degree", "8",
                                      "parallelism.zero_stage", text, NULL });
        assert_ok(capacity_of(&c, &(run_target){ .ops = ops, .device = true }, &cap));
        for (size_t i = 0; i < COUNT_OF(parts); i++) {
            double want = parts[i].bytes * (double)model_count(&cap.mc);
            if (stage >= parts[i].from) want /= 8;
            if (fabs(cap.memory[parts[i].kind] / want - 1) > 0.01)
                fail_msg("stage %d: %s take %g bytes, expected %g", stage,
                         memory_name(parts[i].kind), cap.memory[parts[i].kind], want);
        }
        config_free(&c);
    }
}

/* Tensor parallelism shards every matrix, the token tables too; beyond the number of key/value heads, 8 here,
 * these no longer. */
static void tensor_parallelism_shards_every_matrix(void **state) {
    static const int degrees[] = { 1, 2, 8, 16 };
    for (size_t i = 0; i < COUNT_OF(degrees); i++) {
        char text[8];
        snprintf(text, sizeof text, "%d", degrees[i]);
        capacity c =
            plan_settings((const char *[]){ "model.preset", "llama3-8b", "precision.dtype", "bf16",
                                            "parallelism.tensor_parallel_degree", text, NULL },
                          true);
        double heads = 2.0 * c.mc.layers * (double)(c.mc.kv_heads * c.mc.head_dim * c.mc.dim);
        double own = (c.params - heads) / degrees[i] + heads / MIN(degrees[i], c.mc.kv_heads);
        if (fabs(c.memory[MEMORY_WEIGHTS] / (2 * own) - 1) > 0.002)
            fail_msg("tp %d: weights take %g bytes, expected %g", degrees[i],
                     c.memory[MEMORY_WEIGHTS], 2 * own);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(predicts_what_ranks_reserve, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(predicts_what_training_reserves, folder_setup,
                                        folder_teardown),
        cmocka_unit_test(gradients_are_fp32_for_any_number_of_microbatches),
        cmocka_unit_test(plans_beyond_the_machine),
        cmocka_unit_test(proposes_what_fits),
        cmocka_unit_test(proposes_in_fp32),
        cmocka_unit_test(compares_variants),
        cmocka_unit_test(compares_other_models),
        cmocka_unit_test(compares_algorithms),
        cmocka_unit_test(zero_shards_by_its_stage),
        cmocka_unit_test(tensor_parallelism_shards_every_matrix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
