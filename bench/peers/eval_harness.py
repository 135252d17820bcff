"""`ingot eval` against lm-evaluation-harness with transformers: the same random GPT-2 of 124 million parameters, the same questions, one call
each, on the CPU in fp32.

    bench/peers/eval_harness.py INGOT [QUESTIONS] [TASK,...] [ROUNDS] [SHOTS]      24 questions of each task, three rounds, no examples

Needs lm_eval, accelerate, torch and transformers. Both run in turns. Prints a line of JSON per task: the medians of seconds and CPU seconds of both,
and of the rounds' ratios. Where other programs run on the machine the ratio of CPU seconds is the one to trust. Both include reading the model; the import of Python's packages does not
count. The questions have the lengths of the published ones, and random words."""
import json
import os
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import lm_eval
import torch
import transformers
import yaml
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

ingot = os.path.abspath(sys.argv[1])
questions = int(sys.argv[2]) if len(sys.argv) > 2 else 24
BATCH = 8
here = pathlib.Path(__file__).resolve().parent
definitions = pathlib.Path(lm_eval.__file__).parent / "tasks"
tokenizer = here.parent.parent / "tests" / "fixtures" / "tokenizers" / "gpt2.json"
r = random.Random(1)
words = "the river stone cloud lamp bread garden winter music horse letter and of to in is that was with for".split()


def phrase(n):
    return " ".join(r.choice(words) for _ in range(n))


MAKE = {
    "hellaswag": ("hellaswag/hellaswag.yaml", lambda: {
        "activity_label": phrase(2), "ctx_a": phrase(30), "ctx_b": phrase(4), "endings": [phrase(14) for _ in range(4)], "label": "1",
        "ind": 1, "ctx": "", "source_id": "", "split": "", "split_type": ""}),
    "arc": ("arc/arc_easy.yaml", lambda: {
        "id": "1", "question": phrase(18), "choices": {"text": [phrase(3) for _ in range(4)], "label": list("ABCD")}, "answerKey": "B"}),
    "mmlu": ("mmlu/default/mmlu_abstract_algebra.yaml", lambda: {
        "question": phrase(30), "choices": [phrase(6) for _ in range(4)], "answer": 1, "subject": "abstract_algebra"}),
    "lambada": ("lambada/lambada_openai.yaml", lambda: {"text": phrase(50)}),
    "triviaqa": ("triviaqa/default.yaml", lambda: {"question": phrase(12), "question_id": "q", "answer": {"aliases": ["x"], "value": "x"}}),
}
tasks = sys.argv[3].split(",") if len(sys.argv) > 3 else list(MAKE)
rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 3
shots = int(sys.argv[5]) if len(sys.argv) > 5 else 0


def spent(who, call):
    """@return seconds and CPU seconds of a call."""
    before, then = resource.getrusage(who), time.time()
    call()
    after = resource.getrusage(who)
    return time.time() - then, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def harness(folder, task, path):
    doc = {"include": str(definitions / MAKE[task][0]), "task": f"ours_{task}", "dataset_path": "json", "dataset_name": None, "training_split": "train" if shots else None,
           "validation_split": "validation", "test_split": None, "fewshot_split": "train" if shots else None, "tag": None,
           "dataset_kwargs": {"data_files": {"validation": str(path), "train": str(path) + ".shots"}}}
    place = path.parent / f"{task}-task"
    place.mkdir(exist_ok=True)
    (place / "task.yaml").write_text(yaml.dump(doc))
    manager = TaskManager(include_path=str(place))
    lm_eval.simple_evaluate(model=HFLM(pretrained=str(folder), dtype="float32", device="cpu", batch_size=BATCH), tasks=[f"ours_{task}"], num_fewshot=shots,
                            bootstrap_iters=0, task_manager=manager)


with tempfile.TemporaryDirectory() as work:
    folder = pathlib.Path(work) / "model"
    torch.manual_seed(1)
    transformers.GPT2LMHeadModel(transformers.GPT2Config(bos_token_id=0, eos_token_id=0)).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(tokenizer.read_text())
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}')
    for task in tasks:
        path = pathlib.Path(work) / f"{task}.jsonl"
        path.write_text("".join(json.dumps(MAKE[task][1]()) + "\n" for _ in range(questions)))
        pathlib.Path(f"{path}.shots").write_text("".join(json.dumps(MAKE[task][1]()) + "\n" for _ in range(max(shots, 1))))
        both = []  # seconds and CPU seconds of ingot, then of the harness
        for _ in range(rounds):
            ours = spent(resource.RUSAGE_CHILDREN, lambda: subprocess.run(
                [ingot, "eval", str(folder), "--tasks", f"{task}={path}", "--json", "--device", "cpu", "--shots", str(shots), "--shots-from", f"{path}.shots"], check=True, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL))
            both.append(ours + spent(resource.RUSAGE_SELF, lambda: harness(folder, task, path)))
        median = lambda of: round(statistics.median(of(r) for r in both), 2)
        print(json.dumps({"task": task, "shots": shots, "questions": questions, "rounds": rounds, "ours_s": median(lambda r: r[0]), "ours_cpu_s": median(lambda r: r[1]),
                          "harness_s": median(lambda r: r[2]), "harness_cpu_s": median(lambda r: r[3]), "times": median(lambda r: r[2] / r[0]),
                          "times_cpu": median(lambda r: r[3] / r[1])}), flush=True)
