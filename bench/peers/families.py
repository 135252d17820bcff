#!/usr/bin/env python3
"""Odd models of every Hugging Face family, against transformers in fp32.

    families.py --tests BUILD/tests [--count 20] [--seed 1] [--family NAME ...] [--keep DIR]

Draws configs at random from what a family's config class allows (sizes, biases, tied tables, activations, kinds of
layers, rope scaling, windows), and for each one:

  - transformers computes logits, the loss and every gradient of random weights (tests/fixtures/make.py);
  - test_pytorch imports the folder and computes the same: within 1e-5 of the norm of a gradient, 2e-5 of a logit. Where
    transformers' own fp32 is further than a quarter of that from its fp64, or weights that are rounded move the gradients
    further, as in models of a few channels, the limits are four times that distance; the table counts these models;
  - five steps of AdamW lead to the same weights, within 1e-5 of their norm, and generation to the same most likely tokens;
  - the model is exported again, transformers reloads it, and its logits and most likely tokens are equal.

Then keys that change what a model computes and that we lack are set, one at a time: each must be refused by name.
Prints a table, and exits with 1 when any model differs or any key is taken silently.
"""

import argparse
import contextlib
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "fixtures"))
import make  # noqa: E402

GATED_ACTS = ["silu", "silu", "gelu", "gelu_pytorch_tanh"]
PLAIN_ACTS = ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu2"]


# ---- what families share ---------------------------------------------------------------------


def sizes(r, divided=False, kv=True, tied=True):
    """@param divided heads are as wide as hidden_size / heads, else of any even width"""
    heads = r.choice([1, 2, 3, 4, 6])
    head_dim = r.choice([4, 6, 8, 10, 16])
    out = dict(
        vocab_size=r.randint(40, 99),
        hidden_size=heads * head_dim if divided else heads * r.choice([4, 6, 8, 12]),
        intermediate_size=r.randint(9, 70),
        num_hidden_layers=r.randint(1, 4),
        num_attention_heads=heads,
        max_position_embeddings=r.choice([32, 64, 100]),
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=None,
    )
    if not divided:
        out["head_dim"] = head_dim
    if kv:
        out["num_key_value_heads"] = r.choice([h for h in range(1, heads + 1) if heads % h == 0])
    if tied:
        out["tie_word_embeddings"] = r.random() < 0.5
    return out


def flag(r):
    return r.random() < 0.5


def eps(r):
    return r.choice([1e-6, 1e-5, 1e-3])


def yarn(r):
    out = dict(rope_type="yarn", factor=r.choice([1.0, 2.0, 4.5, 8.0]))
    out["original_max_position_embeddings"] = r.choice([8, 16, 24])
    if flag(r):
        out.update(beta_fast=float(r.choice([2, 8, 32])), beta_slow=r.choice([0.25, 0.5, 1.0]))
    if flag(r):
        out["attention_factor"] = r.choice([0.8, 1.0, 1.3])
    elif flag(r):
        out.update(mscale=r.choice([0.7, 1.0]), mscale_all_dim=r.choice([0.5, 1.0]))
    return out


def longrope(r):
    """Its lists are as long as a head has pairs that rotate: with_lists draws them. Sequences have 16 tokens, and answers
    end at 24: some contexts end before, some within and some after them."""
    out = dict(rope_type="longrope", original_max_position_embeddings=r.choice([4, 11, 16, 64]))
    if flag(r):
        out["factor"] = r.choice([1.0, 2.5, 32.0])
    if r.random() < 0.3:
        out["attention_factor"] = r.choice([0.8, 1.3])
    return out


def with_lists(r, settings):
    """Draws the factors of longrope, wherever it was drawn."""
    s = settings.get("rope_parameters", {})
    head = settings.get("head_dim") or settings.get("qk_rope_head_dim")
    for rope in [s, s.get("full_attention", {})]:
        if rope.get("rope_type") == "longrope":
            width = head or settings["hidden_size"] // settings["num_attention_heads"]
            pairs = int(width * rope.get("partial_rotary_factor", 1.0)) // 2
            for name, most in (("short_factor", 1.5), ("long_factor", 20.0)):
                rope[name] = [round(r.uniform(1.0, most), 3) for _ in range(pairs)]
    return settings


def scaling(r, nested=False):
    kind = r.choice(["default", "linear", "dynamic", "yarn", "llama3", "longrope"])
    if kind == "longrope":
        return longrope(r)
    if kind == "yarn":
        out = yarn(r)
        if flag(r) and not nested:  # transformers looks for it outside of the kinds of layers
            out["truncate"] = False
        return out
    if kind == "llama3":
        return dict(
            rope_type="llama3",
            factor=r.choice([2.0, 8.0]),
            low_freq_factor=r.choice([0.5, 1.0]),
            high_freq_factor=r.choice([1.0, 2.0, 4.0]),  # equal ones, as Llama 4 Scout has, leave nothing between
            original_max_position_embeddings=r.choice([8, 16, 32]),
        )
    out = dict(rope_type=kind)
    if kind != "default":
        out["factor"] = r.choice([1.5, 2.0, 4.0])
    return out


def fraction_of(r, s):
    """Half of each head, or all of it; transformers rotates an even number of dims."""
    even = s["hidden_size"] // s["num_attention_heads"] % 4 == 0
    return r.choice([0.5, 1.0]) if even else 1.0


def rope(r, plain=False, fraction=None):
    out = dict(rope_type="default") if plain else scaling(r)
    out["rope_theta"] = r.choice([100.0, 1000.0, 10000.0, 500000.0])
    if fraction:
        out["partial_rotary_factor"] = fraction
    return dict(rope_parameters=out)


def kinds(r, layers):
    """Which layers have the window: by the family's own rule, or any."""
    if r.random() < 0.3:
        return {}
    types = [r.choice(["sliding_attention", "full_attention"]) for _ in range(layers)]
    return dict(layer_types=types)


def by_kind(r):
    """Rotary positions of layers with a window, and of others."""
    full = dict(scaling(r, nested=True), rope_theta=r.choice([1000.0, 1000000.0]))
    local = dict(rope_type="default", rope_theta=r.choice([100.0, 1000.0, 10000.0]))
    return dict(rope_parameters=dict(full_attention=full, sliding_attention=local))


def biases(r, mlp=True):
    out = dict(attention_bias=flag(r))
    if mlp:
        out["mlp_bias"] = flag(r)
    return out


# ---- families --------------------------------------------------------------------------------
# name: (a config class, a function that draws its settings, keys that must be refused)


def llama(r):
    return dict(sizes(r), **rope(r), **biases(r), rms_norm_eps=eps(r), hidden_act=r.choice(GATED_ACTS))


def mistral(r):
    window = r.choice([None, 3, 7, 40])
    return dict(sizes(r), **rope(r), sliding_window=window, hidden_act=r.choice(GATED_ACTS))


def qwen2(r):
    return dict(sizes(r, divided=True), **rope(r), rms_norm_eps=eps(r))


def qwen3(r):
    return dict(sizes(r), **rope(r), **biases(r, mlp=False), rms_norm_eps=eps(r))


def olmo2(r):
    return dict(sizes(r, divided=True), **rope(r), **biases(r, mlp=False), rms_norm_eps=eps(r))


def olmoe(r):
    experts = r.randint(2, 6)
    s = dict(sizes(r, divided=True), **rope(r), **biases(r, mlp=False), num_experts=experts)
    return dict(s, num_experts_per_tok=r.randint(1, experts), norm_topk_prob=flag(r))


def olmo3(r):
    s = sizes(r, divided=True)
    s.update(kinds(r, s["num_hidden_layers"]), **by_kind(r), sliding_window=r.choice([2, 5, 9]))
    return dict(s, **biases(r, mlp=False))


def gpt2(r):
    s = sizes(r, divided=True, kv=False)
    out = dict(
        vocab_size=s["vocab_size"],
        n_positions=s["max_position_embeddings"],
        n_embd=s["hidden_size"],
        n_layer=s["num_hidden_layers"],
        n_head=s["num_attention_heads"],
        n_inner=r.choice([None, s["intermediate_size"]]),
        activation_function=r.choice(PLAIN_ACTS),
        tie_word_embeddings=s["tie_word_embeddings"],
        layer_norm_epsilon=eps(r),
        bos_token_id=1,
        eos_token_id=2,
    )
    return dict(out, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)


def mpt(r):
    s = sizes(r, divided=True, kv=False)
    out = dict(d_model=s["hidden_size"], n_heads=s["num_attention_heads"], n_layers=s["num_hidden_layers"])
    out.update(vocab_size=s["vocab_size"], max_seq_len=s["max_position_embeddings"], layer_norm_epsilon=eps(r))
    out.update(attn_config=dict(softmax_scale=r.choice([None, 0.2])))
    return dict(out, tie_word_embeddings=s["tie_word_embeddings"])


def gpt_neox(r):
    s = sizes(r, divided=True, kv=False)
    s.update(rope(r, fraction=fraction_of(r, s)), hidden_act=r.choice(PLAIN_ACTS), layer_norm_eps=eps(r))
    return dict(s, use_parallel_residual=flag(r))


def mixtral(r):
    experts = r.randint(2, 6)
    s = dict(sizes(r), **rope(r), num_local_experts=experts, sliding_window=r.choice([None, 4]))
    return dict(s, num_experts_per_tok=r.randint(1, experts))


def qwen3_moe(r):
    experts = r.randint(2, 6)
    s = dict(sizes(r), **rope(r), **biases(r, mlp=False), num_experts=experts)
    s.update(num_experts_per_tok=r.randint(1, experts), norm_topk_prob=flag(r))
    return dict(s, moe_intermediate_size=r.randint(8, 30))


def qwen2_moe(r):
    experts = r.randint(2, 6)
    s = dict(sizes(r, divided=True), **rope(r), num_experts=experts, qkv_bias=flag(r))
    s.update(num_experts_per_tok=r.randint(1, experts), norm_topk_prob=flag(r), hidden_act=r.choice(GATED_ACTS))
    s.update(mlp_only_layers=r.choice([[], [0]]) if s["num_hidden_layers"] > 1 else [])
    return dict(s, moe_intermediate_size=r.randint(8, 30), shared_expert_intermediate_size=r.randint(8, 30))


def qwen3_next(r):
    """Kinds of layers by the family's own rule, its interval, or any."""
    experts, keys = r.randint(2, 6), r.choice([1, 2, 3])
    s = sizes(r)
    fraction = r.choice([0.25, 0.5, 1.0]) if s["head_dim"] % 8 == 0 else 1.0
    s.update(rope(r, fraction=fraction), attention_bias=flag(r), rms_norm_eps=eps(r), num_experts=experts)
    s.update(num_experts_per_tok=r.randint(1, experts), norm_topk_prob=flag(r))
    s.update(linear_num_key_heads=keys, linear_num_value_heads=keys * r.choice([1, 2, 3]))
    s.update(linear_key_head_dim=r.randint(1, 9), linear_value_head_dim=r.randint(1, 9))
    s.update(linear_conv_kernel_dim=r.choice([2, 3, 4, 4]), moe_intermediate_size=r.randint(8, 30))
    s.update(shared_expert_intermediate_size=r.randint(8, 30), decoder_sparse_step=r.choice([1, 1, 2]))
    if s["decoder_sparse_step"] > s["num_hidden_layers"]:
        s["decoder_sparse_step"] = 1
    way = r.choice(["rule", "interval", "list"])
    if way == "interval":
        s["full_attention_interval"] = r.randint(1, 3)
    if way == "list":
        both = ["linear_attention", "full_attention"]
        s["layer_types"] = [r.choice(both) for _ in range(s["num_hidden_layers"])]
    return dict(s, use_cache=False)  # transformers' caches need a layer of attention


def glm4_moe(r):
    groups = r.choice([1, 1, 2, 3])
    experts, limit = groups * r.randint(2, 4), r.randint(1, groups)
    s = sizes(r)
    fraction = r.choice([0.5, 1.0]) if s["head_dim"] % 4 == 0 else 1.0
    s.update(rope(r, fraction=fraction), attention_bias=flag(r), rms_norm_eps=eps(r), use_qk_norm=flag(r))
    s.update(n_routed_experts=experts, n_group=groups, topk_group=limit, norm_topk_prob=flag(r))
    s.update(num_experts_per_tok=r.randint(1, experts // groups * limit), n_shared_experts=r.randint(1, 3))
    s.update(first_k_dense_replace=r.randint(0, s["num_hidden_layers"] - 1), hidden_act=r.choice(GATED_ACTS))
    return dict(s, routed_scaling_factor=r.choice([1.0, 2.5]), moe_intermediate_size=r.randint(8, 30))


def gpt_oss(r):
    experts = r.randint(2, 6)
    s = sizes(r)
    s.update(kinds(r, s["num_hidden_layers"]), **rope(r), attention_bias=flag(r), rms_norm_eps=eps(r))
    s.update(num_local_experts=experts, num_experts_per_tok=r.randint(1, experts), sliding_window=r.choice([2, 5, 9]))
    return dict(s, swiglu_alpha=r.choice([1.702, 1.0]), swiglu_limit=r.choice([7.0, 0.5]))


def llama4(r):
    s = sizes(r)
    layers = s["num_hidden_layers"]
    experts = r.randint(2, 6)
    s.update(rope(r), attention_bias=flag(r), rms_norm_eps=eps(r), num_local_experts=experts)
    s.update(use_qk_norm=flag(r) and s["rope_parameters"]["rope_type"] not in ("yarn", "longrope"))
    s.update(num_experts_per_tok=r.choice([1, 1, min(2, experts)]), interleave_moe_layer_step=r.randint(1, min(2, layers)))
    s.update(intermediate_size_mlp=r.randint(9, 40), attention_chunk_size=r.choice([2, 5, 9]))
    s.update(attn_temperature_tuning=flag(r), floor_scale=r.choice([3, 8]), attn_scale=r.choice([0.1, 0.7]))
    if flag(r):
        s["no_rope_layers"] = [r.randint(0, 1) for _ in range(layers)]
    else:
        s["no_rope_layer_interval"] = r.randint(1, 4)
    if flag(r):
        s["layer_types"] = [r.choice(["chunked_attention", "full_attention"]) for _ in range(layers)]
    return dict(s, hidden_act=r.choice(GATED_ACTS))


def smollm3(r):
    s = sizes(r, divided=True)
    if flag(r):
        s["no_rope_layers"] = [r.randint(0, 1) for _ in range(s["num_hidden_layers"])]
    else:
        s["no_rope_layer_interval"] = r.randint(1, 4)
    return dict(s, **rope(r), **biases(r), rms_norm_eps=eps(r))


def granite(r):
    s = dict(sizes(r, divided=True), **rope(r), **biases(r), rms_norm_eps=eps(r))
    s.update(embedding_multiplier=r.choice([1.0, 12.0, 0.3]), logits_scaling=r.choice([1.0, 8.0, 0.7]))
    s.update(residual_multiplier=r.choice([1.0, 0.22]), attention_multiplier=r.choice([1.0, 0.0625, 0.4]))
    return s


def phi3(r):
    s = sizes(r, divided=True)
    s.update(rope(r, plain=True, fraction=fraction_of(r, s)), rms_norm_eps=eps(r))
    if flag(r):  # its key of the context is outside of the object
        s["rope_parameters"].update(longrope(r))
        s["original_max_position_embeddings"] = s["rope_parameters"].pop("original_max_position_embeddings")
    return dict(s, sliding_window=r.choice([None, 3, 6]), hidden_act=r.choice(GATED_ACTS))


def glm4(r):
    s = sizes(r)
    fraction = r.choice([0.5, 1.0]) if s["head_dim"] % 4 == 0 else 1.0
    return dict(s, **rope(r, fraction=fraction), attention_bias=flag(r), rms_norm_eps=eps(r))


def starcoder2(r):
    s = dict(sizes(r, divided=True), **rope(r), use_bias=flag(r), norm_epsilon=eps(r))
    return dict(s, sliding_window=r.choice([None, 3, 6]), hidden_act=r.choice(PLAIN_ACTS))


def stablelm(r):
    s = sizes(r, divided=True)
    s.update(rope(r, fraction=fraction_of(r, s)), use_qkv_bias=flag(r))
    return dict(s, use_parallel_residual=flag(r), layer_norm_eps=eps(r))


def cohere2(r):
    s = sizes(r, divided=True)
    s.update(kinds(r, s["num_hidden_layers"]), **rope(r), **biases(r, mlp=False))
    s.update(sliding_window=r.choice([2, 5, 9]), logit_scale=r.choice([0.0625, 1.0, 0.3]))
    return dict(s, layer_norm_eps=eps(r))


def gemma(r):
    s = sizes(r)
    while s["hidden_size"] % s["num_attention_heads"]:
        s = sizes(r)
    s.update(kinds(r, s["num_hidden_layers"]), **biases(r, mlp=False), rms_norm_eps=eps(r))
    s.update(sliding_window=r.choice([2, 5, 9]), query_pre_attn_scalar=r.choice([3, 16, 100]))
    s.update(final_logit_softcapping=r.choice([None, 2.0, 30.0]))
    return dict(s, hidden_activation=r.choice(["gelu_pytorch_tanh", "gelu", "silu"]))


def gemma2(r):
    return dict(gemma(r), **rope(r), attn_logit_softcapping=r.choice([None, 0.5, 3.0, 50.0]))


def gemma3(r):
    return dict(gemma(r), **by_kind(r))


def falcon(r):
    s = sizes(r, divided=True, kv=False)
    del s["intermediate_size"]
    heads = s["num_attention_heads"]
    s.update(rope(r), bias=flag(r), layer_norm_epsilon=eps(r), activation=r.choice(PLAIN_ACTS))
    if flag(r):
        s.update(new_decoder_architecture=True, num_ln_in_parallel_attn=r.choice([1, 2]))
        s["num_kv_heads"] = r.choice([h for h in range(1, heads + 1) if heads % h == 0])
    else:
        s.update(multi_query=flag(r), parallel_attn=flag(r))
    return dict(s, ffn_hidden_size=r.choice([None, r.randint(9, 70)]), alibi=False)


def nanochat(r):
    s = dict(sizes(r, divided=True), **rope(r, plain=True), **biases(r, mlp=False), rms_norm_eps=eps(r))
    return dict(s, hidden_act=r.choice(PLAIN_ACTS), final_logit_softcapping=r.choice([None, 0.5, 3.0, 50.0]))


def latent(r):
    """Latent attention; heads of keys are narrower or wider than those of values"""
    s = sizes(r, kv=False)
    del s["head_dim"]
    s.update(num_key_value_heads=s["num_attention_heads"], kv_lora_rank=r.randint(3, 20))
    s.update(q_lora_rank=r.choice([None, r.randint(3, 20)]), qk_rope_head_dim=r.choice([4, 6, 8]))
    s.update(qk_nope_head_dim=r.choice([1, 4, 6, 12]), v_head_dim=r.choice([3, 8, 16]))
    return dict(s, **rope(r), **biases(r, mlp=False), rms_norm_eps=eps(r))


def deepseek_v3(r):
    s = dict(latent(r), hidden_act=r.choice(GATED_ACTS), num_mtp_layers=0, rope_interleave=flag(r))
    if r.random() < 0.3:
        return dict(s, first_k_dense_replace=s["num_hidden_layers"] + r.randint(0, 2))
    groups = r.choice([1, 1, 2, 3])
    experts, limit = groups * r.randint(2, 4), r.randint(1, groups)
    s.update(n_routed_experts=experts, n_group=groups, topk_group=limit, norm_topk_prob=flag(r))
    s.update(num_experts_per_tok=r.randint(1, experts // groups * limit), n_shared_experts=r.randint(1, 3))
    s.update(first_k_dense_replace=r.randint(0, s["num_hidden_layers"] - 1))
    return dict(s, routed_scaling_factor=r.choice([1.0, 2.5]), moe_intermediate_size=r.randint(8, 30))


def kimi_k2(r):
    """Of its type there is no dense model."""
    s = deepseek_v3(r)
    while "n_routed_experts" not in s:
        s = deepseek_v3(r)
    return dict(s, rope_interleave=True)


def deepseek_v2(r):
    s = dict(latent(r), hidden_act=r.choice(GATED_ACTS))
    s.update(kv_lora_rank=2 * r.randint(2, 10), qk_nope_head_dim=r.choice([4, 6, 12]))  # its rotation reads pairs
    if r.random() < 0.3:
        return dict(s, first_k_dense_replace=s["num_hidden_layers"])
    groups = r.choice([1, 2, 3])
    experts, limit = groups * r.randint(1, 4), r.randint(1, groups)
    if groups > 1:
        s.update(topk_method="group_limited_greedy", n_group=groups, topk_group=limit)
    s.update(n_routed_experts=experts, num_experts_per_tok=r.randint(1, experts // groups * limit))
    s.update(first_k_dense_replace=r.randint(0, s["num_hidden_layers"] - 1), n_shared_experts=r.randint(1, 3))
    return dict(s, routed_scaling_factor=r.choice([1.0, 16.0]), moe_intermediate_size=r.randint(8, 30))


LONGROPE = dict(rope_scaling=dict(rope_type="longrope", short_factor=[1.0] * 99, long_factor=[2.0] * 99))
LONGROPE["rope_scaling"]["original_max_position_embeddings"] = 8
YARN_NORM = dict(rope_scaling=dict(rope_type="yarn", factor=4.0), use_qk_norm=True)
T = transformers
FAMILIES = {
    "gpt2": (T.GPT2Config, gpt2, [dict(scale_attn_weights=False), dict(scale_attn_by_inverse_layer_idx=True)]),
    "mpt": (T.MptConfig, mpt, [dict(no_bias=False), dict(attn_config=dict(alibi_bias_max=4))]),
    "gpt_neox": (T.GPTNeoXConfig, gpt_neox, [dict(attention_bias=False), LONGROPE]),
    "llama": (T.LlamaConfig, llama, [LONGROPE, dict(hidden_act="relu")]),
    "mistral": (T.MistralConfig, mistral, [LONGROPE]),
    "qwen2": (T.Qwen2Config, qwen2, [dict(use_sliding_window=True), LONGROPE]),
    "qwen3": (T.Qwen3Config, qwen3, [dict(use_sliding_window=True), LONGROPE]),
    "mixtral": (T.MixtralConfig, mixtral, [LONGROPE]),
    "qwen3_moe": (T.Qwen3MoeConfig, qwen3_moe, [dict(use_sliding_window=True), dict(mlp_only_layers=[1])]),
    "qwen2_moe": (T.Qwen2MoeConfig, qwen2_moe, [dict(use_sliding_window=True), dict(mlp_only_layers=[1]), LONGROPE]),
    "qwen3_next": (
        T.Qwen3NextConfig,
        qwen3_next,
        [LONGROPE, dict(hidden_act="gelu"), dict(layer_types=["sliding_attention"] * 9), dict(mlp_only_layers=[1])],
    ),
    "glm4_moe": (T.Glm4MoeConfig, glm4_moe, [LONGROPE, dict(hidden_act="relu")]),
    "gpt_oss": (T.GptOssConfig, gpt_oss, [LONGROPE, dict(quantization_config=dict(quant_method="gptq"))]),
    "llama4_text": (T.Llama4TextConfig, llama4, [LONGROPE, dict(moe_layers=[0, 2]), YARN_NORM]),
    "olmo2": (T.Olmo2Config, olmo2, [LONGROPE]),
    "olmoe": (T.OlmoeConfig, olmoe, [dict(clip_qkv=0.5), LONGROPE]),
    "olmo3": (T.Olmo3Config, olmo3, [LONGROPE]),
    "smollm3": (T.SmolLM3Config, smollm3, [dict(use_sliding_window=True), LONGROPE]),
    "granite": (T.GraniteConfig, granite, [LONGROPE, dict(hidden_act="relu")]),
    "phi3": (T.Phi3Config, phi3, [LONGROPE, dict(rope_scaling=dict(rope_type="linear", factor=2.0))]),
    "glm4": (T.Glm4Config, glm4, [LONGROPE]),
    "starcoder2": (T.Starcoder2Config, starcoder2, [LONGROPE]),
    "stablelm": (T.StableLmConfig, stablelm, [dict(qk_layernorm=True), LONGROPE]),
    "cohere2": (T.Cohere2Config, cohere2, [dict(use_qk_norm=True), LONGROPE]),
    "gemma2": (T.Gemma2Config, gemma2, [dict(use_bidirectional_attention=True)]),
    "gemma3_text": (T.Gemma3TextConfig, gemma3, [dict(use_bidirectional_attention=True), dict(attn_logit_softcapping=5.0)]),
    "falcon": (T.FalconConfig, falcon, [dict(alibi=True), LONGROPE]),
    "nanochat": (T.NanoChatConfig, nanochat, [LONGROPE]),
    "deepseek_v3": (T.DeepseekV3Config, deepseek_v3, [dict(topk_method="greedy"), dict(scoring_func="softmax")]),
    "kimi_k2": (make.KimiK2Config, kimi_k2, [dict(topk_method="greedy"), dict(scoring_func="softmax")]),
    "deepseek_v2": (T.DeepseekV2Config, deepseek_v2, [dict(mlp_bias=True), dict(topk_method="noaux_tc")]),
}


# ---- one model -------------------------------------------------------------------------------


class Doubles:
    """Stands for torch in a module whose functions compute in fp32 whatever the model's type."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def has_delta_rule(model):
    return hasattr(sys.modules[type(model).__module__], "torch_chunk_gated_delta_rule")


@contextlib.contextmanager
def in_doubles(model):
    """The gated delta rule of transformers casts to fp32: within this, to fp64."""
    module = sys.modules[type(model).__module__]
    if not has_delta_rule(model):
        yield
        return
    module.torch, torch.Tensor.float, plain = Doubles(), torch.Tensor.double, torch.Tensor.float
    try:
        yield
    finally:
        module.torch, torch.Tensor.float = torch, plain


def gradients_of(model, expected):
    model.zero_grad()
    ids, targets = expected["input_ids"].long(), expected["targets"].long()
    logits = model(input_ids=ids).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100).backward()
    return logits.detach(), [p.grad.double().clone() for p in model.parameters()]


def nudged(double, seed):
    """@return a copy whose weights differ by as much as fp32 rounds them"""
    out, generator = copy.deepcopy(double), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in out.parameters():
            p.mul_(1 + 6e-8 * (2 * torch.rand(p.shape, generator=generator, dtype=p.dtype) - 1))
    return out


def noise(model, expected):
    """@return how far fp32 is from fp64, or fp64 from itself where weights change by as much as fp32 rounds them, the further
    of the two; at least 1, in units of the limits of test_pytorch"""
    double = copy.deepcopy(model).double()
    logits, exact = gradients_of(double, expected)
    whole = sum(g.norm() ** 2 for g in exact).sqrt()

    def apart(grads):
        return max(((a - b).norm() / max(b.norm(), 1e-3 * whole)).item() for a, b in zip(grads, exact))

    off = [apart([p.grad.double() for p in model.parameters()])]
    for seed in range(3):
        moved = apart(gradients_of(nudged(double, seed), expected)[1])
        off += [moved] if moved < 1e-3 else []  # further: a token went to another expert
    worst = max(max(off) / 1e-5, (logits - expected["logits"]).abs().max().item() / 2e-5)
    return 1.0 if worst < 0.25 else 4 * worst


def write_model(folder, config, seed):
    generator = torch.Generator().manual_seed(seed)
    config._experts_implementation = "eager"  # grouped GEMMs need widths of 4
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", dtype=torch.float32
    ).eval()
    make.randomise(model, generator)
    model.tie_weights()
    make.save_model(model, folder)
    expected = make.expected_of(model, generator)
    worst = noise(model, expected)
    expected["greedy"] = make.greedy_of(model, expected["input_ids"])
    double = copy.deepcopy(model).double()
    others = [nudged(double, seed) for seed in range(3)] if has_delta_rule(model) else []
    expected.update(make.steps_of(model, expected))
    with in_doubles(double):
        exact = make.steps_of(double, expected)
        others = [make.steps_of(other, expected) for other in others]

    def apart(weights):
        return max(((weights[k].double() - v).norm() / v.norm()).item() for k, v in exact.items())

    off = max(map(apart, [expected, *others]))  # steps of short vectors amplify what rounding does to the first weights
    stepped = 1.0 if off < 0.25e-5 else 4 * off / 1e-5
    if has_delta_rule(model):  # AdamW divides by a gradient: weights are not nearer than gradients of short vectors
        stepped = max(stepped, worst)
    limits = dict(noise=torch.tensor([worst]), noise_steps=torch.tensor([stepped]))
    make.save_tensors(dict(expected, **limits), folder / "expected.safetensors")
    return max(worst, stepped) > 1


def run_test(tests, folder, export):
    env = dict(os.environ, INGOT_PEER_MODEL=str(folder), INGOT_PEER_EXPORT=str(export))
    run = subprocess.run([tests / "test_pytorch"], env=env, capture_output=True, text=True, timeout=300)
    lines = (run.stdout + run.stderr).splitlines()
    why = [line for line in lines if line.startswith("ERROR") or "error" in line.lower()]
    return None if run.returncode == 0 else (why or lines[-3:])[0]


def reloads(folder, export):
    """@return what differs when transformers loads our export"""
    config = transformers.AutoConfig.from_pretrained(export)
    config._experts_implementation = "eager"
    config.use_cache = False
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        export, config=config, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
    )
    for trouble in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[trouble]:
            return f"export: {trouble}: {sorted(map(str, info[trouble]))}"
    ours = load_file(folder / "expected.safetensors")
    with torch.no_grad():
        theirs = model.eval()(input_ids=ours["input_ids"].long()).logits
    worst = (theirs - ours["logits"]).abs().max().item()
    if worst > 1e-5:
        return f"export: logits differ by {worst:.3e}"
    greedy = make.greedy_of(model, ours["input_ids"])
    same = torch.equal(greedy, ours["greedy"])
    return None if same else f"export: greedy tokens {greedy.tolist()}, expected {ours['greedy'].tolist()}"


def check_model(tests, folder, config, seed):
    export = folder.with_name(folder.name + "-export")
    export.mkdir(parents=True, exist_ok=True)
    noisy = write_model(folder, config, seed)
    why = run_test(tests, folder, export) or reloads(folder, export)
    shutil.rmtree(export)
    return why, noisy


def check_refused(tests, folder, keys):
    """Adds keys to a model's config.json. @return None when they are refused by name"""
    file = folder / "config.json"
    if not file.exists():
        return f"{keys}: the last model was not written"
    before = file.read_text()
    doc = json.loads(before)
    if "rope_scaling" in keys:
        doc.pop("rope_parameters", None)
    doc.update(keys)
    file.write_text(json.dumps(doc))
    why = run_test(tests, folder, folder)
    file.write_text(before)
    if why is None:
        return f"{keys} is taken silently"
    name = "rope_type" if "rope_scaling" in keys else next(iter(keys))
    named = f'"{name}"' in why or "config.json" in why or keys is LONGROPE and "rope_short_factor" in why
    return None if named else f"{keys}: {why}"


# ---- all of them -----------------------------------------------------------------------------


def check_family(name, args, folder):
    config_class, draw, refused = FAMILIES[name]
    equal, noisy, faults = 0, 0, []
    for i in range(args.count):
        r = random.Random(f"{name} {args.seed} {i}")
        at = folder / f"{name}-{i}"
        settings = with_lists(r, draw(r))
        try:
            why, widened = check_model(args.tests, at, config_class(**settings), args.seed * 1000 + i)
            noisy += widened
        except Exception as e:  # of transformers, about our export or about what was drawn
            why = f"{type(e).__name__}: {e}"
        equal += why is None
        if why:
            faults.append(f"{name} {i}: {why}\n    {settings}")
        if why is None and i < args.count - 1 and not args.keep:
            shutil.rmtree(at)
    silent = [check_refused(args.tests, folder / f"{name}-{args.count - 1}", keys) for keys in refused]
    faults += [f"{name}: {why}" for why in silent if why]
    print(f"{name:12} {equal:3} of {args.count} equal ({noisy} with wider limits), {silent.count(None)} of {len(refused)} keys refused", flush=True)
    return faults


def main():
    parser = argparse.ArgumentParser(description="Compare odd models of each family with transformers.")
    parser.add_argument("--tests", type=Path, required=True)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--family", nargs="+", default=list(FAMILIES))
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    faults = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in args.family:
            faults += check_family(name, args, args.keep or Path(temporary))
    for fault in faults:
        print(fault)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
