/* DeepSpeed and GPT-NeoX, which runs on it: what takes more than one key. */
#include "convert_internal.h"

#include <math.h>
#include <string.h>

/* ---- shared ------------------------------------------------------------------------------------------ */
static err convert_scale_power(convert_source *s, double otherwise) {
    const char *key = "fp16.initial_scale_power";
    return convert_set_number(s, key, "precision.loss_scale",
                              exp2(convert_number_or(s, key, otherwise)));
}

/* DeepSpeed's place of the optimizer state and parameters. */
static err convert_offload(convert_source *s) {
    const char *key = "zero_optimization.offload_optimizer.device";
    const char *ratio_key = "zero_optimization.offload_optimizer.ratio";
    bool has_ratio = foreign_find(s->system->table, ratio_key, NULL) == FOREIGN_READ;
    if (convert_is(s, key, "cpu"))
        return convert_set_number(s, key, "optimizer.offload",
                                  has_ratio ? convert_number_or(s, ratio_key, 1) : 1);
    if (has_ratio) convert_leave_out_given(s, ratio_key);
    return convert_choice(s, key, "optimizer.offload", "none=0", NULL); /* an NVMe has no place */
}

/* ---- DeepSpeed --------------------------------------------------------------------------------------- */
static err set_optimizer(convert_source *s) {
    const char *type = convert_take(s, "optimizer.type"), *beta2 = "optimizer.params.betas.1";
    double momentum = convert_take_number(s, "optimizer.params.momentum");
    bool adam = type && (!strcmp(type, "Adam") || !strcmp(type, "adam")),
         sgd = type && !strcmp(type, "SGD");
    bool coupled =
        convert_is(s, "optimizer.params.adam_w_mode", "false"); /* decay in the gradient */
    static const char *const of_type[] = { "optimizer.params.adam_w_mode",
                                           "optimizer.params.nesterov",
                                           "optimizer.params.momentum" };
    convert_leave_out_given(s, "optimizer.params.torch_adam");
    if (!type) {
        convert_leave_out_all(s, of_type, COUNT_OF(of_type));
        if (!convert_take(s, "scheduler.type")) return OK;
        convert_note(s, "optimizer.type: the program's own; here AdamW");
        return OK;
    }
    if (adam || !strcmp(type, "AdamW") || !strcmp(type, "adamw"))
        TRY(convert_set(s, "optimizer.type", "optimizer.name", coupled ? "adam" : "adamw"));
    else
        TRY(convert_choice(s, "optimizer.type", "optimizer.name",
                           momentum > 0 ? "SGD=momentum,Lion=lion" : "SGD=sgd,Lion=lion", NULL));
    if (sgd)
        TRY(convert_set_number(s, "optimizer.params.momentum", "optimizer.momentum", momentum));
    if (momentum > 0)
        TRY(convert_set(s, "optimizer.params.nesterov", "optimizer.nesterov",
                        convert_true(s, "optimizer.params.nesterov") ? "true" : "false"));
    if (convert_take(s, beta2))
        return convert_set(s, beta2, "optimizer.beta2", convert_take(s, beta2));
    return convert_default(s, "optimizer.beta2", !strcmp(type, "Lion") ? "0.99" : "0.999");
}

/* Its schedulers warm up along a logarithm unless the file says "linear", and two of them replace the optimizer's
 * learning rate. */
static err set_scheduler(convert_source *s) {
    const char *type = convert_take(s, "scheduler.type"),
               *warmup_type = "scheduler.params.warmup_type",
               *max_lr = "scheduler.params.warmup_max_lr",
               *least = "scheduler.params.cos_min_ratio";
    static const char *const zero[] = { "scheduler.params.warmup_min_lr",
                                        "scheduler.params.warmup_min_ratio" };
    static const char *const all[] = { "scheduler.params.warmup_type",
                                       "scheduler.params.warmup_min_lr",
                                       "scheduler.params.warmup_min_ratio",
                                       "scheduler.params.warmup_max_lr",
                                       "scheduler.params.cos_min_ratio" };
    if (!type) {
        convert_leave_out_all(s, all, COUNT_OF(all));
        return OK;
    }
    TRY(convert_choice(s, "scheduler.type", "lr_scheduler.name",
                       "WarmupLR=constant,WarmupDecayLR=linear,WarmupCosineLR=cosine", NULL));
    if (!str_starts(type, "Warmup")) return OK;
    if (!convert_is(s, warmup_type, "linear"))
        convert_refuse(s, warmup_type,
                       convert_take(s, warmup_type) ? convert_take(s, warmup_type) : "log",
                       "the default; here it is linear");
    for (size_t i = 0; i < COUNT_OF(zero); i++)
        if (convert_take_number(s, zero[i]) > 0)
            convert_refuse(s, zero[i], convert_take(s, zero[i]), "here it is 0");
    bool cosine = !strcmp(type, "WarmupCosineLR");
    if (!cosine && !convert_auto(s, max_lr))
        TRY(convert_set_number(s, max_lr, "optimizer.lr", convert_number_or(s, max_lr, 1e-3)));
    convert_leave_out_given(s, cosine ? max_lr : least);
    return convert_set_number(s, least, "lr_scheduler.min_lr_factor",
                              cosine ? convert_number_or(s, least, 1e-4) : 0);
}

static const batch_keys batch = { "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
                                  "train_batch_size" };

err finish_deepspeed(convert_source *s) {
    bool bf16 = convert_true(s, "bf16.enabled") || convert_true(s, "bfloat16.enabled");
    if (bf16 && convert_true(s, "fp16.enabled"))
        return err_hint(ERR("%s: fp16.enabled and bf16.enabled are both true, which DeepSpeed "
                            "refuses",
                            s->name),
                        "set one of them to false");
    TRY(set_optimizer(s));
    TRY(set_scheduler(s));
    TRY(convert_scale_power(s, 16));
    TRY(convert_offload(s));
    return convert_batch(s, &batch, NAN, 1);
}

/* ---- GPT-NeoX ---------------------------------------------------------------------------------------- */
/* Models of other kinds, which the same keys describe. */
static void refuse_models(convert_source *s) {
    static const char *const attention[] = { "global", "flash", "attention" };
    for (int i = 0; i < s->n; i++) { /* [[["flash"], 24]]: a kind, and how many layers it is for */
        const char *value = s->at[i].value;
        bool known = !str_starts(s->at[i].key, "attention_config.") || s->at[i].refused;
        for (size_t k = 0; k < COUNT_OF(attention); k++) known |= !strcmp(value, attention[k]);
        known |= value[strspn(value, "0123456789")] == '\0' || !strcmp(value, "all");
        if (!known) {
            convert_refuse(s, "attention_config", value, "not causal attention in all layers");
            return;
        }
    }
    if (convert_take(s, "attention_config"))
        convert_refuse(s, "attention_config", convert_take(s, "attention_config"),
                       "a list of kinds and numbers of layers");
    double experts = convert_take_number(s, "moe_num_experts");
    if (convert_true(s, "finetune")) convert_refuse(s, "finetune", "true", "");
    if (!(experts > 1)) return;
    if (!convert_is(s, "moe_router_type", "topk"))
        convert_refuse(s, "moe_router_type",
                       convert_take(s, "moe_router_type") ? convert_take(s, "moe_router_type")
                                                          : "sinkhorn",
                       "the default; here it is topk");
}

static err set_neox_experts(convert_source *s) {
    static const struct {
        const char *key, *option;
        double otherwise;
    } rows[] = { { "moe_num_experts", "model.experts", 0 },
                 { "moe_top_k", "model.experts_per_token", 1 },
                 { "moe_expert_interval", "model.moe_layer_step", 1 },
                 { "moe_aux_loss_coeff", "model.balance_loss", 0.1 } };
    bool any = convert_take_number(s, rows[0].key) > 1;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        double value = convert_number_or(s, rows[i].key, rows[i].otherwise);
        if (any) TRY(convert_set_number(s, rows[i].key, rows[i].option, value));
        if (!any) convert_leave_out_given(s, rows[i].key);
    }
    if (any) return convert_set(s, rows[0].key, "model.capacity_factor", "0"); /* dropless */
    convert_leave_out_given(s, "moe_router_type");
    return OK;
}

/* Of a gated layer the stated width is cut to two thirds and counts both halves. */
static double neox_ffn(convert_source *s, double dim, bool gated) {
    double ffn = convert_take_number(s, "intermediate_size"),
           multiple = convert_take_number(s, "mlp_multiple_of");
    if (isnan(ffn)) ffn = 4 * dim;
    if (gated) ffn = floor(floor(ffn * 2 / 3) / 2);
    if (!(multiple > 1)) multiple = 1;
    return ceil(ffn / multiple) * multiple;
}

static err set_biases(convert_source *s) {
    bool attention = !convert_is(s, "use_bias_in_attn_linear", "false"),
         mlp = !convert_is(s, "use_bias_in_mlp", "false"),
         norms = !convert_is(s, "use_bias_in_norms", "false");
    if (attention != mlp)
        convert_refuse(s, attention ? "use_bias_in_mlp" : "use_bias_in_attn_linear", "false",
                       "here both have biases or neither has");
    TRY(convert_set(s, "use_bias_in_mlp", "model.bias", mlp ? "true" : "false"));
    return convert_set(s, "use_bias_in_norms", "model.norm_bias", norms ? "true" : "false");
}

static err set_neox_model(convert_source *s) {
    double dim = convert_take_number(s, "hidden_size"),
           tp = convert_take_number(s, "model_parallel_size"),
           to = convert_take_number(s, "make_vocab_size_divisible_by"),
           dropout = convert_number_or(s, "hidden_dropout", 0),
           window = convert_take_number(s, "sliding_window_width");
    const char *activation = convert_take(s, "activation");
    bool swiglu = activation && !strcmp(activation, "swiglu"),
         rms = convert_is(s, "norm", "rmsnorm");
    TRY(convert_choice(s, "activation", "model.activation",
                       convert_true(s, "bias_gelu_fusion") ? "gelu=gelu,swiglu=swiglu"
                                                           : "gelu=gelu_erf,swiglu=swiglu",
                       convert_true(s, "bias_gelu_fusion") ? "gelu" : "gelu_erf"));
    TRY(convert_widths(s, dim, convert_take_number(s, "num_attention_heads"), NAN,
                       convert_take_number(s, "num_kv_heads"), neox_ffn(s, dim, swiglu)));
    TRY(convert_vocab(s, convert_take_number(s, "padded_vocab_size"),
                      (isnan(to) ? 128 : to) * (tp > 1 ? tp : 1)));
    TRY(convert_set_number(s, "hidden_dropout", "model.dropout", dropout));
    TRY(convert_set_number(s, "hidden_dropout", "model.embedding_dropout", dropout));
    const char *used = rms ? "rms_norm_epsilon" : "layernorm_epsilon",
               *other = rms ? "layernorm_epsilon" : "rms_norm_epsilon";
    double eps = convert_number_or(s, used, rms ? 1e-8 : 1e-5);
    convert_leave_out_given(s, other);
    TRY(convert_set_number(s, used, "model.norm_eps", eps));
    TRY(convert_set_number(s, "sliding_window_width", "model.sliding_window", window));
    TRY(convert_set(s, "use_qk_layernorm", "model.qk_norm",
                    convert_true(s, "use_qk_layernorm") ? "head" : "none"));
    TRY(set_biases(s));
    return set_neox_experts(s);
}

static err set_neox_optimizer(convert_source *s) {
    const char *key = convert_take(s, "optimizer.type") ? "optimizer.type" : "optimizer_type";
    const char *type = convert_take(s, key);
    bool adam = !type || !strcmp(type, "Adam") || !strcmp(type, "adam");
    double momentum = convert_take_number(s, "optimizer.params.momentum"),
           lr = convert_take_number(s, "lr");
    TRY(convert_set_number(s, "lr", "optimizer.lr", lr));
    if (adam && convert_true(s, "use_bnb_optimizer"))
        return convert_set(s, "use_bnb_optimizer", "optimizer.name", "adam8bit");
    TRY(convert_set_number(s, "optimizer.params.momentum", "optimizer.momentum", momentum));
    if (momentum > 0) TRY(convert_default(s, "optimizer.nesterov", "false"));
    return convert_choice(
        s, key, "optimizer.name",
        momentum > 0
            ? "Adam=adamw,adam=adamw,cpu_adam=adamw,Lion=lion,lion=lion,SGD=momentum,sgd=momentum"
            : "Adam=adamw,adam=adamw,cpu_adam=adamw,Lion=lion,lion=lion,SGD=sgd,sgd=sgd",
        "adamw");
}

static err set_neox_length(convert_source *s) {
    double iters = convert_take_number(s, "train_iters"),
           epochs = convert_take_number(s, "train_epochs"),
           decay = convert_take_number(s, "lr_decay_iters"),
           part = convert_take_number(s, "lr_decay_fraction"),
           warmup = convert_take_number(s, "warmup"),
           lr = convert_take_number(s, "optimizer.params.lr");
    if (isnan(decay) && !isnan(part)) decay = floor(iters * part);
    if (isnan(iters))
        TRY(convert_set_amount(s, "train_epochs", "training.steps", epochs, "epochs"));
    else
        TRY(convert_length(s, "lr_decay_iters", iters, decay, 1, ""));
    TRY(convert_set_amount(
        s, "warmup", "lr_scheduler.warmup",
        100 * (isnan(warmup) ? 0.01 : warmup) * convert_schedule_part(iters, decay), "%"));
    return convert_min_lr(s, "min_lr", isnan(lr) ? convert_take_number(s, "lr") : lr);
}

static err set_neox_saves(convert_source *s) {
    double every = convert_take_number(s, "checkpoint_factor");
    const char *scale = convert_take(s, "checkpoint_scale");
    if (isnan(every)) every = convert_take_number(s, "save_interval");
    if (scale) convert_leave_out(s, "checkpoint_scale", scale);
    if (scale && !strcmp(scale, "log"))
        every = NAN; /* steps 1, 2, 4, ...: here at fixed distances */
    return convert_set_number(s, "checkpoint_factor", "checkpoint.every", isnan(every) ? 0 : every);
}

err finish_neox(convert_source *s) {
    double tp = convert_take_number(s, "model_parallel_size"),
           pp = convert_take_number(s, "pipe_parallel_size"),
           nodes = convert_take_number(s, "num_nodes"), each = convert_take_number(s, "num_gpus"),
           world = convert_take_number(s, "world_size"),
           all = convert_take_number(s, "global_num_gpus");
    refuse_models(s);
    if (!s->ranks) s->ranks = world > 0 ? (int64_t)world : all > 0 ? (int64_t)all : 0;
    if (!s->ranks && each > 0 && nodes > 0) s->ranks = (int64_t)(each * nodes);
    TRY(convert_set_number(s, "pipe_parallel_size", "parallelism.pipeline_parallel_degree",
                           pp > 1 ? pp : 1));
    TRY(set_neox_model(s));
    TRY(set_neox_optimizer(s));
    TRY(set_neox_length(s));
    TRY(convert_scale_power(s, 12));
    TRY(convert_offload(s));
    TRY(convert_choice(s, "zero_optimization.offload_param.device", "training.offload_params",
                       "cpu=true,none=false", NULL));
    TRY(set_neox_saves(s));
    TRY(convert_default(s, "data.documents", "false"));
    TRY(convert_data(s, "data_path", "data.train"));
    TRY(convert_data(s, "train_data_paths", "data.train"));
    TRY(convert_data(s, "train_data_paths.0", "data.train"));
    TRY(convert_data(s, "valid_data_paths", "data.validation"));
    TRY(convert_data(s, "valid_data_paths.0", "data.validation"));
    TRY(convert_split(s, "969, 30, 1"));
    convert_load(s);
    if (convert_take(s, batch.micro)) convert_leave_out_given(s, "batch_size");
    return convert_batch(s, &batch, convert_take_number(s, "batch_size"),
                         (tp > 1 ? tp : 1) * (pp > 1 ? pp : 1));
}
