#!/usr/bin/env python3
"""Compares a model of ours with nanochat's own, from a checkout of it, on a CPU in fp32: same weights, same tokens.

    check_nanochat.py CHECKOUT INGOT

Trains a small model with all facts of configs/speedrun-*.yaml, and those of docs/recipes.md that nanochat has, for a few
steps of SGD on one batch. The weights of the first checkpoint become those of nanochat's model. Its loss on that batch,
and the gradient of every parameter, must be ours: the next checkpoint has the weights minus the rate times the gradient.
Prints the largest differences as a line of JSON, and fails above LIMITS.
"""
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

os.environ["NANOCHAT_DTYPE"] = "float32"
import torch
from safetensors.torch import load_file

LAYERS, WIDTH, HEADS, VOCAB, SEQ, ROWS, RATE = 4, 256, 2, 256, 64, 2, 0.5
LIMITS = {"loss": 1e-6, "gradient": 1e-4}
FACTS = """activation=relu2 weightless_norms=true embedding_norm=true qk_norm=head qk_norm_scale=1.2 logit_softcap=15
value_embedding_step=2 rope_theta=100000 tie_embeddings=false layer_scalars=true backout=true smear=true init=uniform init_up_scale=0.4
init_embed_std=0.8 init_head_std=0.05"""


def write_tokens(path):
    """Writes one batch of windows as a .bin file of llm.c."""
    tokens = torch.randint(0, VOCAB, (ROWS * SEQ + 1,), generator=torch.Generator().manual_seed(1))
    path.write_bytes(struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253) + tokens.to(torch.uint16).numpy().tobytes())
    return tokens


def train(ingot, folder, tokens, steps, *more):
    words = [ingot, "train", "--quiet", f"--run.dir={folder}", f"--data.train={tokens}", "--data.documents=false"]
    words += [f"--data.validation={tokens}", "--data.epoch_offset=false"]
    words += [f"--model.{f}" for f in FACTS.split()] + ["--model.preset=custom", f"--model.layers={LAYERS}"]
    words += [f"--model.dim={WIDTH}", f"--model.heads={HEADS}", f"--model.kv_heads={HEADS}", f"--model.vocab_size={VOCAB}"]
    words += [f"--model.head_dim={WIDTH // HEADS}", f"--model.ffn_dim={4 * WIDTH}", f"--model.max_seq_len={SEQ}"]
    words += [f"--model.norm_eps={torch.finfo(torch.float32).eps:.9g}", "--optimizer=sgd", f"--optimizer.lr={RATE}"]
    words += ["--optimizer.weight_decay=0", "--lr_scheduler.name=constant", "--lr_scheduler.warmup=0"]
    words += ["--training.max_norm=0", f"--training.steps={steps}", f"--training.seq_len={SEQ}", "--precision=fp32"]
    words += [f"--training.local_batch_size={ROWS}", "--validation.every=0", "--checkpoint.every=1"]
    words += ["--checkpoint.keep_latest_k=0", "--device=cpu", *more]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in open(folder / "metrics.jsonl")]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def turned(w):
    """Queries and keys rotate the other way there, which is the same with the second half of each head negated."""
    halves = w.view(HEADS, 2, -1, w.shape[1]).clone()
    halves[:, 1] *= -1
    return halves.view_as(w)


def names_of(layer):
    """Ours, theirs, and what turns one into the other, of a layer."""
    at, same = f"transformer.h.{layer}.", lambda w: w
    yield f"l{layer}.attn.q", at + "attn.c_q.weight", turned
    yield f"l{layer}.attn.k", at + "attn.c_k.weight", turned
    yield f"l{layer}.attn.v", at + "attn.c_v.weight", same
    yield f"l{layer}.attn.o", at + "attn.c_proj.weight", same
    yield f"l{layer}.mlp.up", at + "mlp.c_fc.weight", same
    yield f"l{layer}.mlp.down", at + "mlp.c_proj.weight", same
    if (LAYERS - 1 - layer) % 2 == 0:
        yield f"l{layer}.attn.values", f"value_embeds.{layer}.weight", same
        yield f"l{layer}.attn.values.gate", at + "attn.ve_gate.weight", same


def as_theirs(ours):
    """A checkpoint of ours under nanochat's names."""
    out = {"transformer.wte.weight": ours["embed.tokens"], "lm_head.weight": ours["head"]}
    for layer in range(LAYERS):
        out.update({theirs: turn(ours[name]) for name, theirs, turn in names_of(layer)})
    out["resid_lambdas"] = torch.cat([ours[f"l{i}.mix.residual"] for i in range(LAYERS)])
    out["x0_lambdas"] = torch.cat([ours[f"l{i}.mix.embed"] for i in range(LAYERS)])
    out["backout_lambda"] = -ours["mix.middle"]
    out["smear_gate.weight"] = ours["smear.gate"].view(1, -1)
    out["smear_lambda"] = ours["smear.factor"]
    return out


def nanochat_model(checkout):
    sys.path.insert(0, checkout)
    from nanochat.gpt import GPT, GPTConfig

    shape = dict(n_layer=LAYERS, n_head=HEADS, n_kv_head=HEADS, n_embd=WIDTH)
    with torch.device("meta"):
        model = GPT(GPTConfig(sequence_len=SEQ, vocab_size=VOCAB, window_pattern="L", **shape))
    model.to_empty(device="cpu")
    model.init_weights()
    return model.float()


def main():
    checkout, ingot = sys.argv[1], os.path.abspath(sys.argv[2])
    model = nanochat_model(checkout)
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        tokens = write_tokens(work / "train.bin")
        losses = train(ingot, work / "run", work / "train.bin", 4)
        before, after = (
            as_theirs(load_file(work / f"run/checkpoints/step-{step:08d}/model.safetensors")) for step in (3, 4)
        )
    # the factor starts at 0, where the gate would have no gradient: steps have moved it
    assert before["smear_lambda"].abs().item() > 1e-3, before["smear_lambda"]
    rows = tokens.unfold(0, SEQ + 1, SEQ).long()
    with torch.no_grad():
        own = dict(model.named_parameters())
        for key, value in before.items():
            own[key].copy_(value)
    loss = model(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())
    loss.backward()
    out = {"loss": abs(losses[4] - loss.item()) / loss.item(), "gradient": 0.0, "worst": ""}
    for key in before:
        ours, theirs = (before[key] - after[key]) / RATE, own[key].grad
        # of what the checkpoint's rounding of the weights leaves of the gradient
        rounding = 6e-8 * before[key].norm().item() / RATE
        apart = max(0.0, (ours - theirs).norm().item() - 2 * rounding) / theirs.norm().item()
        if apart > out["gradient"]:
            out["gradient"], out["worst"] = apart, key
    print(json.dumps(out))
    sys.exit(any(out[k] > LIMITS[k] for k in LIMITS))


if __name__ == "__main__":
    main()
