#!/usr/bin/env python3
"""GGUF files of families with experts, or with ALiBi, read by the gguf package.

    gguf_package.py --program INGOT

Writes a small model of each family with transformers, imports it, exports it as a GGUF file and reads that: every tensor must be
one of those that the package lists for the architecture, none that the model has may be missing, and all elements are
those of the model. Prints a line per family, and exits with 1 when one differs.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from gguf.constants import MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "fixtures"))
import make  # noqa: E402

T = transformers
SIZES = dict(vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
SIZES.update(num_key_value_heads=2, max_position_embeddings=64, pad_token_id=None, bos_token_id=1, eos_token_id=2)
EXPERTS = dict(SIZES, num_experts_per_tok=2, moe_intermediate_size=32)
MODELS = {
    "qwen2_moe": T.Qwen2MoeConfig(**EXPERTS, num_experts=4, shared_expert_intermediate_size=48),
    "glm4_moe": T.Glm4MoeConfig(**EXPERTS, n_routed_experts=4, head_dim=16, use_qk_norm=True, attention_bias=True),
    "gpt_oss": T.GptOssConfig(**SIZES, head_dim=16, num_local_experts=4, num_experts_per_tok=2),
    "mpt": T.MptConfig(vocab_size=300, d_model=64, n_heads=4, n_layers=2, max_seq_len=64),
}


def listed(architecture):
    arch = next(a for a, name in MODEL_ARCH_NAMES.items() if name == architecture)
    return {TENSOR_NAMES[t].replace("{bid}", "N") for t in MODEL_TENSORS[arch]}


def run(program, *words):
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: {done.stdout}{done.stderr}")


def check(program, family, config, folder):
    model = T.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    make.randomise(model, torch.Generator().manual_seed(1))
    model.tie_weights()
    make.save_model(model, folder / family)
    (folder / family / "tokenizer.json").write_text((folder / "tokenizer.json").read_text())
    run(program, "import", folder / family, folder / f"{family}-run")
    file = folder / f"{family}.gguf"
    run(program, "export", folder / f"{family}-run", file, "--dtype", "fp32")
    reader = gguf.GGUFReader(file)
    architecture = str(reader.get_field("general.architecture").contents())
    allowed = listed(architecture)
    names = {re.sub(r"blk\.\d+\.", "blk.N.", t.name) for t in reader.tensors}
    unknown = {n for n in names if n.rsplit(".", 1)[0] not in allowed}
    ours = sum(int(np.prod(t.shape)) for t in reader.tensors)
    theirs = sum(p.numel() for p in model.parameters()) + sum(b.numel() for n, b in model.named_buffers() if "correction" in n)
    values = np.sort(np.concatenate([np.asarray(t.data, dtype=np.float32).ravel() for t in reader.tensors]))
    parts = [p.detach().float().numpy().ravel() for p in model.parameters()]
    parts += [b.float().numpy().ravel() for n, b in model.named_buffers() if "correction" in n]
    same = ours == theirs and np.array_equal(values, np.sort(np.concatenate(parts)))
    print(f"{family:10} {architecture:9} {len(reader.tensors):3} tensors, unknown: {sorted(unknown) or 'none'}, "
          f"{ours} of {theirs} elements, {'equal' if same else 'DIFFERENT'}", flush=True)
    return same and not unknown


def main():
    parser = argparse.ArgumentParser(description="Read GGUF files of newer families with the gguf package.")
    parser.add_argument("--program", type=Path, required=True)
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "text.txt").write_text("a few words of text, again and again\n" * 200)
        run(args.program, "tokenizer", "train", folder / "text.txt", "--vocab", 290, "--out", folder / "tokenizer.json")
        good = [check(args.program, family, config, folder) for family, config in MODELS.items()]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
