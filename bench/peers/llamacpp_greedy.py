#!/usr/bin/env python3
"""GGUF files of every family that llama.cpp knows, continued by llama.cpp and by us.

    llamacpp_greedy.py --program INGOT --llamacpp SOURCE --build BUILD [--family NAME ...] [--keep DIR]
    llamacpp_greedy.py --program INGOT --llamacpp SOURCE --build BUILD --time RUN [--threads N] [--tokens N] [--repeat N]

SOURCE is a checkout of llama.cpp and BUILD a folder in which its library was built (BUILD/bin/libllama.so):

    cmake -S SOURCE -B BUILD -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF && cmake --build BUILD --target llama

Writes small models of each family with transformers, imports them, exports each as fp32, fp16, bf16 and q8_0, and continues prompts
of token ids with the most likely tokens: `ingot sample --ids` reads the run; llamacpp_greedy.c, which is compiled against the
library, reads the file, and states its most likely token after each beginning of that text. Tokens are compared where one is clearly the
likeliest, by a margin that depends on the type: llama.cpp also rounds activations to it. In fp32 that is every token but for ties. All must be equal; of models with experts in
a rounded type nine in ten, since rounding sends a token to another expert at times. Prints a line per model, and exits with 1 when too few are, or
a file is not read.

With --time, exports RUN in fp32, bf16 and q8_0 and prints the tokens per second of both programs and their CPU time per token, the best of
several runs that alternate, on as many cores as threads.
"""

import argparse
import copy
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "fixtures"))
import make  # noqa: E402

T = transformers
HERE = Path(__file__).resolve().parent
PROMPTS, PROMPT, ANSWER = 4, 9, 24
# How far, in standard deviations of the logits, the likeliest token must be ahead of the second to be compared.
TYPES = {"fp32": 0.002, "fp16": 0.02, "bf16": 0.1, "q8_0": 0.4}

SIZES = dict(vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4)
SIZES.update(num_key_value_heads=2, max_position_embeddings=64, pad_token_id=None, bos_token_id=1, eos_token_id=2)
ALONE = dict(SIZES, num_key_value_heads=4)
EXPERTS = dict(SIZES, num_experts_per_tok=2, moe_intermediate_size=32)
DELTA = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=32, linear_value_head_dim=32)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, rope_theta=10000.0)
LLAMA3["original_max_position_embeddings"] = 16
UNTIED = dict(tie_word_embeddings=False)
LONGROPE = dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0 + 0.1 * i for i in range(8)])
LONGROPE["long_factor"] = [1.0 + 2.0 * i for i in range(8)]
FALCON = dict(vocab_size=300, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, bos_token_id=1, eos_token_id=2)
LATENT = dict(ALONE, kv_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=32, n_routed_experts=8)
LATENT.update(num_experts_per_tok=2, n_shared_experts=1, first_k_dense_replace=1, moe_intermediate_size=32)
YARN = dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=1.0)
YARN["rope_theta"] = 10000.0
MODELS = {
    "llama": T.LlamaConfig(**SIZES),
    "llama, tied": T.LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama, llama3 rope": T.LlamaConfig(**SIZES, rope_parameters=LLAMA3),
    "llama, linear rope": T.LlamaConfig(**SIZES, rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=1e4)),
    "mistral": T.MistralConfig(**SIZES, sliding_window=None),
    "mixtral": T.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
    "qwen2": T.Qwen2Config(**SIZES),
    "qwen3": T.Qwen3Config(**SIZES, head_dim=32),
    "qwen3_moe": T.Qwen3MoeConfig(**EXPERTS, num_experts=4, head_dim=32, norm_topk_prob=True),
    "qwen2_moe": T.Qwen2MoeConfig(**EXPERTS, num_experts=4, shared_expert_intermediate_size=48),
    "olmo2": T.Olmo2Config(**SIZES, **UNTIED),
    "olmoe": T.OlmoeConfig(**ALONE, num_experts=4, num_experts_per_tok=2, **UNTIED),
    "gpt2": T.GPT2Config(vocab_size=300, n_positions=64, n_embd=64, n_layer=3, n_head=4, bos_token_id=1, eos_token_id=2),
    "gpt_neox": T.GPTNeoXConfig(**{k: v for k, v in SIZES.items() if k != "num_key_value_heads"}, hidden_act="gelu_new"),
    "granite": T.GraniteConfig(
        **SIZES, embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.5, attention_multiplier=0.2
    ),
    "smollm3": T.SmolLM3Config(**SIZES),
    "starcoder2": T.Starcoder2Config(**SIZES, sliding_window=None),
    "glm4": T.Glm4Config(**SIZES, head_dim=16),
    "glm4_moe": T.Glm4MoeConfig(**EXPERTS, n_routed_experts=4, head_dim=16, use_qk_norm=True, attention_bias=True),
    "gpt_oss": T.GptOssConfig(**SIZES, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=6),
    "mpt": T.MptConfig(vocab_size=300, d_model=64, n_heads=4, n_layers=3, max_seq_len=64),
    "phi3": T.Phi3Config(**SIZES),
    # llama.cpp chooses the list by the context that it is opened with, 256 at least, not by the tokens so far
    "phi3, long": T.Phi3Config(**SIZES, original_max_position_embeddings=8, rope_parameters=LONGROPE),
    "phi3, short": T.Phi3Config(**SIZES, original_max_position_embeddings=512, rope_parameters=dict(LONGROPE, factor=4.0)),
    "olmo3": T.Olmo3Config(**SIZES, **UNTIED, sliding_window=6),
    "gemma2": T.Gemma2Config(**SIZES, head_dim=16, query_pre_attn_scalar=16, sliding_window=6, tie_word_embeddings=True),
    "gemma3_text": T.Gemma3TextConfig(
        **dict(SIZES, num_hidden_layers=6), head_dim=16, query_pre_attn_scalar=16, sliding_window=6
    ),
    "cohere2": T.Cohere2Config(**SIZES, sliding_window=6, logit_scale=0.5, tie_word_embeddings=True),
    "stablelm": T.StableLmConfig(**SIZES, **UNTIED, use_qkv_bias=True),
    "stablelm, parallel": T.StableLmConfig(**SIZES, **UNTIED, use_parallel_residual=True),
    "falcon": T.FalconConfig(**FALCON, parallel_attn=True),
    "falcon, two norms": T.FalconConfig(**FALCON, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=2),
    "llama4_text": T.Llama4TextConfig(
        **SIZES, head_dim=16, num_local_experts=4, num_experts_per_tok=1, intermediate_size_mlp=96, attention_chunk_size=8192,
        interleave_moe_layer_step=2, attn_temperature_tuning=True, no_rope_layer_interval=4
    ),
    "deepseek_v3": T.DeepseekV3Config(**LATENT, q_lora_rank=32, n_group=2, topk_group=1, norm_topk_prob=True),
    "deepseek_v3, yarn": T.DeepseekV3Config(**LATENT, q_lora_rank=32, n_group=1, topk_group=1, rope_parameters=YARN),
    "deepseek_v2": T.DeepseekV2Config(**LATENT, q_lora_rank=None, topk_method="greedy"),
    "qwen3_next": T.Qwen3NextConfig(
        **EXPERTS, **DELTA, num_experts=4, head_dim=32, shared_expert_intermediate_size=48, full_attention_interval=4
    ),
    "qwen3_next, tied": T.Qwen3NextConfig(
        **EXPERTS, **dict(DELTA, linear_num_value_heads=2, linear_conv_kernel_dim=3), num_experts=4, head_dim=16,
        shared_expert_intermediate_size=32, full_attention_interval=2, tie_word_embeddings=True
    ),
    "kimi_k2": make.KimiK2Config(**dict(LATENT, num_experts_per_tok=4), q_lora_rank=32, n_group=1, topk_group=1, routed_scaling_factor=2.827),
}


def run(*words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))}: {(done.stdout + done.stderr).strip()}")
    return done.stdout


def compile_peer(args, folder):
    out = folder / "llamacpp_greedy"
    libraries = args.build.resolve() / "bin"
    run("cc", "-O2", f"-I{args.llamacpp}/include", f"-I{args.llamacpp}/ggml/include", HERE / "llamacpp_greedy.c", "-o", out,
        f"-L{libraries}", "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{libraries}", "-lm")  # fmt: skip
    return out


def write_run(program, config, folder, seed):
    """@return a run of a model of the config with random weights"""
    config = copy.deepcopy(config)  # transformers shares the dictionaries of rotary positions among configs
    config._experts_implementation = "eager"
    model = T.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    make.randomise(model, torch.Generator().manual_seed(seed))
    for p in model.parameters():  # which files in fp16 and bf16 hold as they are
        p.data = p.data.bfloat16().float()
    model.tie_weights()
    at = folder / f"model-{seed}"
    make.save_model(model, at)
    (at / "tokenizer.json").write_text((folder / "tokenizer.json").read_text())
    run(program, "import", at, folder / f"run-{seed}")
    return folder / f"run-{seed}"


def ours(program, of, prompt):
    words = run(program, "sample", of, "--ids", " ".join(map(str, prompt)), "--greedy", "--tokens", ANSWER).split()
    return [int(w) for w in words][-ANSWER:]


def theirs(peer, file, prompt, answer=(), threads=1, tokens=ANSWER):
    lines = run(peer, file, threads, tokens, *prompt, "/", *answer).splitlines()
    pairs = [line.split() for line in lines[:-1]]
    return [int(a) for a, _ in pairs], [float(b) for _, b in pairs], float(lines[-1])


def compare(program, peer, of, file, margin):
    """@return tokens that were compared, and of them those that are equal"""
    compared = equal = 0
    generator = torch.Generator().manual_seed(7)
    for _ in range(PROMPTS):
        prompt = torch.randint(3, 290, (PROMPT,), generator=generator).tolist()
        answer = ours(program, of, prompt)
        ids, ahead, _ = theirs(peer, file, prompt, answer)
        for a, b, clear in zip(answer, ids, ahead):
            compared += clear >= margin
            equal += clear >= margin and a == b
    return compared, equal


def check(args, peer, name, config, folder, seed):
    of = write_run(args.program, config, folder, seed)
    line, good, architecture = [], True, ""
    for kind, margin in TYPES.items():
        file = folder / f"{seed}-{kind}.gguf"
        run(args.program, "export", of, file, "--dtype", kind)
        compared, equal = compare(args.program, peer, of, file, margin)
        tolerant = kind != "fp32" and any(key.endswith("experts") for key in config.to_dict())
        good &= compared > 0 and equal >= compared * (0.9 if tolerant else 1)
        line.append(f"{kind} {equal} of {compared}")
    print(f"{name:20} {', '.join(line)}{'' if good else '  DIFFERENT'}", flush=True)
    return good


def spent(words):
    """@return seconds that a command took, and seconds of CPU"""
    begin, before = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    run(*words)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.time() - begin, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(args, peer, folder):
    """Decodes with both programs, by turns; what a run for one token takes is not counted."""
    prompt = list(range(3, 3 + PROMPT))
    pin = ["taskset", "-c", f"0-{args.threads - 1}"]
    for kind, ours_as in (("fp32", "fp32"), ("bf16", "bf16"), ("q8_0", "bf16")):
        file = folder / f"{kind}.gguf"
        run(args.program, "export", args.time, file, "--dtype", kind)
        sample = [args.program, "sample", args.time, "--ids", " ".join(map(str, prompt)), "--greedy", "--dtype", ours_as]
        commands = {
            "ingot": lambda n: [*pin, *sample, "--tokens", n],
            "llama.cpp": lambda n: [*pin, peer, file, args.threads, n, *prompt],
        }
        taken = {(name, n): [] for name in commands for n in (1, args.tokens)}
        for _ in range(args.repeat):
            for name, n in taken:
                taken[name, n].append(spent(commands[name](n)))
        # Others use the machine: the least is nearest to what it takes.
        least = {key: [min(column) for column in zip(*of)] for key, of in taken.items()}
        rates = {}
        for name in commands:
            wall, cpu = [(b - a) / (args.tokens - 1) for a, b in zip(least[name, 1], least[name, args.tokens])]
            rates[name] = dict(tokens_per_second=round(1 / wall, 1), cpu_ms_per_token=round(1000 * cpu, 2))
        print(json.dumps(dict(file=kind, ingot_dtype=ours_as, threads=args.threads, **rates)), flush=True)


def main():
    parser = argparse.ArgumentParser(description="Continue prompts with llama.cpp and with ingot.")
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--llamacpp", type=Path, required=True)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--family", nargs="+", default=[])
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--time", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(exist_ok=True)
        peer = compile_peer(args, folder)
        if args.time:
            measure(args, peer, folder)
            return
        (folder / "text.txt").write_text("a few words of text, again and again\n" * 200)
        run(args.program, "tokenizer", "train", folder / "text.txt", "--vocab", 290, "--out", folder / "tokenizer.json")
        good = True
        for seed, (name, config) in enumerate(MODELS.items()):
            if args.family and name.split(",")[0] not in args.family:
                continue
            try:
                good &= check(args, peer, name, config, folder, seed)
            except (RuntimeError, subprocess.TimeoutExpired) as e:
                print(f"{name:20} {e}", flush=True)
                good = False
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
