/* Megatron-LM: what takes more than one of its arguments. */
#include "convert_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Interleaved: the file states layers per chunk, or chunks per rank. */
static err set_chunks(convert_source *s) {
    double pp = convert_take_number(s, "pipeline_model_parallel_size"),
           layers = convert_take_number(s, "num_layers"),
           each = convert_take_number(s, "num_layers_per_virtual_pipeline_stage"),
           chunks = convert_take_number(s, "num_virtual_stages_per_pipeline_rank");
    if (isnan(chunks) && each > 0 && pp > 0) {
        /* the embedding and the loss count as a layer each where the file says so */
        layers += convert_true(s, "account_for_embedding_in_pipeline_split");
        layers += convert_true(s, "account_for_loss_in_pipeline_split");
        chunks = layers / pp / each;
    }
    if (!(chunks > 1)) return OK;
    TRY(convert_set(s, "virtual stages", "parallelism.pipeline_parallel_schedule",
                    "Interleaved1F1B"));
    return convert_set_number(s, "virtual stages", "parallelism.pipeline_parallel_chunks", chunks);
}

static err set_activation(convert_source *s) {
    static const char *const of_gelu[] = { "openai_gelu", "no_bias_gelu_fusion" };
    bool swiglu = convert_true(s, "swiglu"),
         fused = !convert_true(s, of_gelu[1]) && !convert_true(s, "disable_bias_linear");
    if (convert_true(s, "squared_relu")) convert_refuse(s, "squared_relu", "true", "");
    /* Fused with the bias, gelu is the tanh approximation; otherwise it is exact. */
    if (swiglu || fused) convert_leave_out_all(s, of_gelu, COUNT_OF(of_gelu));
    return convert_set(s, "swiglu", "model.activation",
                       swiglu                                 ? "swiglu"
                       : fused || convert_true(s, of_gelu[0]) ? "gelu"
                                                              : "gelu_erf");
}

static err set_shape(convert_source *s) {
    double dim = convert_take_number(s, "hidden_size"),
           heads = convert_take_number(s, "num_attention_heads"),
           ffn = convert_take_number(s, "ffn_hidden_size"),
           groups = convert_take_number(s, "num_query_groups"),
           tp = convert_take_number(s, "tensor_model_parallel_size"),
           to = convert_take_number(s, "make_vocab_size_divisible_by"),
           padded = convert_take_number(s, "padded_vocab_size"),
           dropout = convert_number_or(s, "hidden_dropout", 0.1);
    bool grouped = convert_true(s, "group_query_attention");
    if (isnan(ffn) && convert_true(s, "swiglu")) ffn = floor(4 * dim * 2 / 3 / 64) * 64;
    if (grouped && isnan(groups)) groups = 1;
    if (!grouped && groups > 1 && groups != heads)
        convert_refuse(s, "num_query_groups", convert_take(s, "num_query_groups"),
                       "it has no effect without --group-query-attention");
    TRY(convert_widths(s, dim, heads, convert_take_number(s, "kv_channels"), grouped ? groups : NAN,
                       ffn));
    if (!isnan(padded))
        TRY(convert_vocab(s, padded, 1));
    else
        TRY(convert_vocab(s, convert_take_number(s, "vocab_size"),
                          (isnan(to) ? 128 : to) * (tp > 1 ? tp : 1)));
    TRY(convert_set_number(s, "hidden_dropout", "model.dropout", dropout));
    TRY(convert_set_number(s, "hidden_dropout", "model.embedding_dropout", dropout));
    if (convert_true(s, "use_rotary_position_embeddings"))
        TRY(convert_set(s, "use_rotary_position_embeddings", "model.positions", "rope"));
    if (convert_true(s, "no_position_embedding")) { /* the learned ones */
        if (s->c->model.positions == POS_ROPE)
            convert_leave_out(s, "no_position_embedding", "true");
        else
            convert_refuse(s, "no_position_embedding", "true", "");
    }
    if (convert_true(s, "use_rope_scaling") && s->c->model.positions != POS_ROPE) {
        static const char *const of_rope[] = { "use_rope_scaling", "rope_scaling_factor" };
        convert_leave_out_all(s, of_rope, COUNT_OF(of_rope));
    } else if (convert_true(s, "use_rope_scaling")) {
        double factor = convert_number_or(s, "rope_scaling_factor", 8);
        TRY(convert_set(s, "use_rope_scaling", "model.rope_scaling", "llama3"));
        TRY(convert_set_number(s, "rope_scaling_factor", "model.rope_scaling_factor", factor));
    } else
        convert_leave_out_given(s, "rope_scaling_factor");
    const char *window = convert_take(s, "window_size"); /* "4096,0" or "(4096, 0)" */
    double left, right = 0;
    if (!window) return set_activation(s);
    char *end;
    left = strtod(window + strspn(window, "([ "), &end);
    right = strtod(end + strspn(end, ", "), &end);
    if (right != 0 || left < 0) convert_refuse(s, "window_size", window, "");
    TRY(convert_set_number(s, "window_size", "model.sliding_window", left + 1));
    return set_activation(s);
}

static err set_megatron_experts(convert_source *s) {
    static const char *const keys[] = { "moe_shared_expert_intermediate_size", "moe_aux_loss_coeff",
                                        "moe_router_load_balancing_type", "moe_layer_freq",
                                        "moe_router_pre_softmax" };
    double shared = convert_take_number(s, keys[0]), each;
    const char *balance = convert_take(s, keys[2]);
    if (!convert_take(s, "num_experts")) {
        convert_leave_out_all(s, keys, COUNT_OF(keys));
        return OK;
    }
    each = convert_take_number(s, "moe_ffn_hidden_size");
    if (isnan(each)) each = convert_take_number(s, "ffn_hidden_size");
    if (shared > 0 && fmod(shared, each) != 0)
        convert_refuse(s, keys[0], convert_take(s, keys[0]), "not a multiple of an expert's width");
    else
        TRY(convert_set_number(s, keys[0], "model.shared_experts", shared / each));
    /* Only a balance within sequences is computed here; over a batch it is another loss. */
    double factor = convert_take_number(s, keys[1]);
    if (factor > 0 && balance && strcmp(balance, "seq_aux_loss") != 0 && strcmp(balance, "none"))
        convert_refuse(s, keys[2], balance, "the balance loss here is within a sequence");
    else if (factor > 0 && !balance)
        convert_note(
            s,
            "moe_router_load_balancing_type = aux_loss: the balance loss here is within a sequence");
    bool off = balance && !strcmp(balance, "none");
    TRY(convert_set_number(s, keys[1], "model.balance_loss", isnan(factor) || off ? 0 : factor));
    TRY(convert_set_number(s, keys[3], "model.moe_layer_step", convert_take_number(s, keys[3])));
    /* softmax over the chosen experts is the normalized softmax over all */
    return convert_set(s, keys[4], "model.router_normalize",
                       convert_true(s, keys[4]) ? "false" : "true");
}

static err set_megatron_schedule(convert_source *s) {
    double seq = convert_take_number(s, "seq_length"),
           iters = convert_take_number(s, "train_iters"),
           samples = convert_take_number(s, "train_samples"),
           fraction = convert_take_number(s, "lr_warmup_fraction"),
           old = convert_take_number(s, "warmup"),
           wsd = convert_take_number(s, "lr_wsd_decay_samples"),
           length = isnan(samples) ? iters : samples,
           decay = convert_take_number(s, isnan(samples) ? "lr_decay_iters" : "lr_decay_samples");
    static const char *const of_samples[] = { "lr_decay_samples" }, *const of_iters[] = {
        "lr_decay_iters"
    };
    if (isnan(samples))
        convert_leave_out_all(s, of_samples, 1);
    else
        convert_leave_out_all(s, of_iters, 1);
    if (!isnan(samples))
        TRY(convert_length(s, "lr_decay_samples", samples, decay, seq, "tokens"));
    else
        TRY(convert_length(s, "lr_decay_iters", iters, decay, 1, ""));
    if (isnan(fraction) && !isnan(old)) fraction = old / 100;
    TRY(convert_set_amount(s, "lr_warmup_fraction", "lr_scheduler.warmup",
                           100 * fraction * convert_schedule_part(length, decay), "%"));
    TRY(convert_set_amount(s, "lr_warmup_samples", "lr_scheduler.warmup",
                           seq * convert_take_number(s, "lr_warmup_samples"), "tokens"));
    TRY(convert_set_number(s, "lr_warmup_iters", "lr_scheduler.warmup",
                           convert_take_number(s, "lr_warmup_iters")));
    TRY(convert_default(s, "lr_scheduler.warmup", "0"));
    TRY(convert_set_amount(s, "lr_wsd_decay_samples", "lr_scheduler.decay", seq * wsd, "tokens"));
    return convert_min_lr(s, "min_lr", convert_take_number(s, "lr"));
}

static err set_megatron_batch(convert_source *s) {
    double tp = convert_take_number(s, "tensor_model_parallel_size"),
           pp = convert_take_number(s, "pipeline_model_parallel_size"),
           cp = convert_take_number(s, "context_parallel_size"),
           seq = convert_take_number(s, "seq_length");
    static const batch_keys keys = { "micro_batch_size", NULL, "global_batch_size" };
    TRY(convert_batch(s, &keys, NAN, (tp > 1 ? tp : 1) * (pp > 1 ? pp : 1) * (cp > 1 ? cp : 1)));
    const char *ramp = convert_take(s, "rampup_batch_size"); /* start, increment, samples */
    char *end = NULL;
    if (!ramp) return OK;
    double start = strtod(ramp, &end), increment = strtod(end, &end);
    TRY(convert_set_number(s, "rampup_batch_size", "training.batch_ramp_start", start));
    TRY(convert_set_number(s, "rampup_batch_size", "training.batch_ramp_increment", increment));
    return convert_set_amount(s, "rampup_batch_size", "training.batch_ramp",
                              strtod(end, NULL) * seq, "tokens");
}

/* Converts how data-parallel ranks shard state, and where the optimizer state is. */
static err set_sharding(convert_source *s) {
    bool fsdp = convert_true(s, "use_megatron_fsdp") || convert_true(s, "use_custom_fsdp");
    const char *key = "data_parallel_sharding_strategy";
    if (convert_true(s, "use_torch_fsdp2"))
        TRY(convert_set(s, "use_torch_fsdp2", "parallelism.zero_stage", "3"));
    else if (fsdp)
        TRY(convert_choice(s, key, "parallelism.zero_stage",
                           "no_shard=0,optim=1,optim_grads=2,optim_grads_params=3", "0"));
    else {
        convert_leave_out_given(s, key);
        TRY(convert_set(s, "use_distributed_optimizer", "parallelism.zero_stage",
                        convert_true(s, "use_distributed_optimizer") ? "1" : "0"));
    }
    static const char *const with_fsdp[] = { "use_megatron_fsdp", "use_custom_fsdp" };
    if (fsdp && s->c->parallelism.zero_stage == 0)
        convert_leave_out_all(s, with_fsdp, COUNT_OF(with_fsdp));
    const char *part = "optimizer_offload_fraction";
    if (convert_true(s, "optimizer_cpu_offload"))
        return convert_set_number(s, part, "optimizer.offload", convert_number_or(s, part, 1));
    convert_leave_out_given(s, part);
    return OK;
}

/* fp8 with e5m2 gradients; a scale by the tensor itself, or by the maximum of 16 steps. */
static err set_fp8(convert_source *s) {
    static const char *const keys[] = { "fp8_recipe", "fp8_amax_history_len",
                                        "fp8_amax_compute_algo" };
    const char *format = convert_take(s, "fp8_format"), *recipe = convert_take(s, keys[0]);
    if (!format) {
        convert_leave_out_all(s, keys, COUNT_OF(keys));
        return OK;
    }
    if (strcmp(format, "hybrid") != 0)
        convert_refuse(s, "fp8_format", format, "gradients are in e5m2 here");
    bool delayed = !recipe || !strcmp(recipe, "delayed");
    for (size_t i = 1; i < COUNT_OF(keys); i++) {
        const char *value = convert_take(s, keys[i]), *ours = i == 1 ? "16" : "max";
        if (!delayed && value)
            convert_leave_out(s, keys[i], value);
        else if (delayed && (!value || strcmp(value, ours) != 0))
            convert_refuse(s, keys[i],
                           value    ? value
                           : i == 1 ? "1"
                                    : "most_recent",
                           "here the maximum of 16 steps");
    }
    return convert_choice(s, keys[0], "precision.fp8", "tensorwise=current,delayed=delayed",
                          "delayed");
}

/* Its samples run over documents unless all three flags are set. */
static err set_documents(convert_source *s) {
    static const char *const keys[] = { "reset_attention_mask", "reset_position_ids",
                                        "eod_mask_loss" };
    int n = 0;
    for (size_t i = 0; i < COUNT_OF(keys); i++) n += convert_true(s, keys[i]);
    for (size_t i = 0; n > 0 && n < 3 && i < COUNT_OF(keys); i++)
        if (convert_true(s, keys[i]))
            convert_refuse(s, keys[i], "true",
                           "documents are separated in attention, positions and loss, or in none");
    return convert_set(s, keys[0], "data.documents", n == 3 ? "true" : "false");
}

err finish_megatron(convert_source *s) {
    TRY(set_shape(s));
    TRY(set_megatron_experts(s));
    TRY(set_megatron_schedule(s));
    TRY(set_megatron_batch(s));
    TRY(set_chunks(s));
    TRY(set_sharding(s));
    TRY(set_fp8(s));
    TRY(set_documents(s));
    TRY(convert_data(s, "data_path", "data.train"));
    TRY(convert_data(s, "train_data_path", "data.train"));
    TRY(convert_data(s, "valid_data_path", "data.validation"));
    TRY(convert_split(s, NULL));
    TRY(convert_default(s, "optimizer.nesterov", "false"));
    TRY(convert_default(s, "checkpoint.keep_latest_k", "0"));
    convert_load(s);
    return OK;
}
