#!/usr/bin/env python3
"""A small language model, trained on this machine, killed again and again, and none the worse for it.

    python3 examples/stories/language_model.py     # needs: pip install numpy onnx; with PyTorch and tokenizers, the same recipe runs there

The text is Python's own reference, which comes with Python. The script makes a byte-pair tokenizer from it, and a GPT with four layers. The
recipe is a common one: AdamW, warm-up and a cosine schedule, gradient norm clipping, two batches per step, products in bfloat16. It runs once
without interruption, and once with interruptions: it is killed (SIGKILL) at random moments and resumed from the latest checkpoint. Both runs
must end with the same bytes. The guide's page docs/stories.md explains each step.
"""
import collections
import dataclasses
import json
import os
import random as random_
import re
import subprocess
import sys
import time

import numpy as np

import story

END = "<|endoftext|>"
BATCH, ACCUMULATE = 8, 2
RATE, DECAY, CLIP, WARMUP = 2e-3, 0.1, 1.0, 20


@dataclasses.dataclass
class Sizes:
    """Sizes of the model, and steps."""
    vocabulary: int = 512
    length: int = 64
    width: int = 96
    heads: int = 4
    layers: int = 4
    steps: int = 300
    every: int = 20
    kills: int = 5


QUICK = Sizes(vocabulary=300, length=32, width=32, heads=2, layers=2, steps=40, every=5, kills=3)


def documents():
    """The topics of Python's reference, in a fixed random order."""
    from pydoc_data.topics import topics

    found = [topics[name] for name in sorted(topics)]
    random_.Random(1).shuffle(found)
    return found


def letters():
    """The letter that represents each byte in tokenizers of this kind (GPT-2's)."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in seen]
    return {**{byte: chr(byte) for byte in seen}, **{byte: chr(256 + number) for number, byte in enumerate(others)}}


def write_tokenizer(path, texts, size):
    """Byte-pair encoding: the most common pair of tokens becomes a token, until there are as many tokens as requested."""
    names = letters()
    counts = collections.Counter(word for text in texts for word in re.findall(r" ?[^\W\d_]+| ?\d+| ?(?:[^\w\s]|_)+|\s+", text))
    words = [([names[byte] for byte in word.encode()], count) for word, count in counts.items()]
    vocabulary, merges = [END, *sorted(names.values())], []
    while len(vocabulary) < size:
        pairs = collections.Counter()
        for tokens, count in words:
            for pair in zip(tokens, tokens[1:]):
                pairs[pair] += count
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        vocabulary.append("".join(best))
        for tokens, _ in words:
            at = 0
            while at + 1 < len(tokens):
                if (tokens[at], tokens[at + 1]) == best:
                    tokens[at:at + 2] = ["".join(best)]
                at += 1
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    end = {"id": 0, "content": END, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
             "byte_fallback": False, "ignore_merges": False, "vocab": {token: number for number, token in enumerate(vocabulary)},
             "merges": [" ".join(pair) for pair in merges]}
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None, "pre_tokenizer": level,
                   "post_processor": None, "decoder": level, "model": model}, file)


def write_model(path, sizes):
    """A GPT: pre-norm layers, learned positions, GELU."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random, nodes, weights = np.random.default_rng(7), [], []

    def add(name, array):
        weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def floats(name, *shape, deviation=0.02):
        return add(name, (deviation * random.standard_normal(shape)).astype(np.float32))

    def node(kind, inputs, output, **attributes):
        nodes.append(helper.make_node(kind, inputs, [output], output, **attributes))
        return output

    def linear(name, x, inputs, outputs, deviation=0.02):
        product = node("MatMul", [x, floats(f"{name}.weight", inputs, outputs, deviation=deviation)], f"{name}.product")
        return node("Add", [product, add(f"{name}.bias", np.zeros(outputs, np.float32))], name)

    def norm(name, x):
        given = [x, add(f"{name}.weight", np.ones(width, np.float32)), add(f"{name}.bias", np.zeros(width, np.float32))]
        return node("LayerNormalization", given, name, axis=-1, epsilon=1e-5)

    def turned(name, x, order):
        split = node("Reshape", [x, "heads"], f"{name}.heads")
        return node("Transpose", [split], name, perm=order)

    width, heads, length = sizes.width, sizes.heads, sizes.length
    add("heads", np.array([0, 0, heads, width // heads], np.int64))
    add("joined", np.array([0, 0, width], np.int64))
    add("mask", np.triu(np.full((length, length), -1e9, np.float32), 1))
    add("scale", np.float32((width // heads) ** -0.5))
    x = node("Gather", [floats("tokens.weight", sizes.vocabulary, width), "tokens"], "embedded")
    x = node("Add", [x, floats("positions.weight", length, width)], "placed")
    small = 0.02 / (2 * sizes.layers) ** 0.5
    for layer in range(sizes.layers):
        name = f"layers.{layer}"
        y = norm(f"{name}.norm1", x)
        q, k, v = (turned(f"{name}.{part}.turned", linear(f"{name}.{part}", y, width, width), order)
                   for part, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])))
        scores = node("Mul", [node("MatMul", [q, k], f"{name}.scores"), "scale"], f"{name}.scaled")
        shares = node("Softmax", [node("Add", [scores, "mask"], f"{name}.masked")], f"{name}.shares", axis=-1)
        mixed = node("Transpose", [node("MatMul", [shares, v], f"{name}.mixed")], f"{name}.back", perm=[0, 2, 1, 3])
        y = linear(f"{name}.out", node("Reshape", [mixed, "joined"], f"{name}.joined"), width, width, small)
        x = node("Add", [x, y], f"{name}.attended")
        y = node("Gelu", [linear(f"{name}.wide", norm(f"{name}.norm2", x), width, 4 * width)], f"{name}.gelu")
        x = node("Add", [x, linear(f"{name}.narrow", y, 4 * width, width, small)], f"{name}.end")
    node("MatMul", [norm("norm", x), floats("head.weight", width, sizes.vocabulary)], "logits")
    graph = helper.make_graph(
        nodes, "gpt", [helper.make_tensor_value_info("tokens", TensorProto.INT64, ["N", length])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", length, sizes.vocabulary])], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)


def prepare(run, sizes):
    """The texts, the tokenizer and the model."""
    texts = documents()
    if run.arguments.quick:
        texts = texts[:12]
    held_out = max(1, len(texts) // 10)
    for name, part in (("train", texts[held_out:]), ("held-out", texts[:held_out])):
        with open(run.path(f"{name}.jsonl"), "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in part)
    write_tokenizer(run.path("tokenizer.json"), texts[held_out:], sizes.vocabulary)
    write_model(run.path("gpt.onnx"), sizes)


def killed_and_resumed(run, words, sizes, seconds):
    """Runs a command, killing it at random moments, until it ends normally; returns how often it was killed, and from which steps it resumed."""
    random, folder, kills, resumed = random_.Random(run.arguments.seed), run.path("killed"), 0, []
    if os.path.exists(folder):
        sys.exit(f"error: {folder} already exists; remove it, or pass another --folder")
    while True:
        call = [*words, "--checkpoint", folder, "--checkpoint-every", sizes.every]
        if os.path.exists(os.path.join(folder, "checkpoint.json")):
            call += ["--resume", folder]
        process = subprocess.Popen(run.command(*call), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if kills == sizes.kills:
            _, errors = process.communicate()
            if process.returncode != 0:
                sys.exit(f"error: the resumed run exited with {process.returncode}:\n{errors[-2000:]}")
            return kills, resumed
        time.sleep(random.uniform(0.2, 1) * seconds / (0.6 * sizes.kills))
        ended = process.poll()
        process.kill()
        _, errors = process.communicate()
        if ended == 0:
            return kills, resumed
        if ended is not None:
            sys.exit(f"error: a run exited with {ended} before it was killed:\n{errors[-2000:]}")
        kills += 1


def main():
    parser = story.parser(__doc__, "language-model")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the moments at which the run is killed [default: the time]")
    arguments = parser.parse_args()
    run = story.Story(arguments)
    sizes = QUICK if arguments.quick else Sizes()
    prepare(run, sizes)
    if arguments.prepare:
        return
    recipe = ["train", run.path("gpt.onnx"), "--tokenizer", run.path("tokenizer.json"), "--class-axis", -1,
              "--batch-size", BATCH, "--accumulate", ACCUMULATE, "--optimizer", "adamw", "--learning-rate", RATE, "--weight-decay", DECAY,
              "--beta2", 0.95, "--schedule", "cosine", "--warmup", WARMUP, "--clip-global-norm", CLIP, "--precision", "bf16",
              "--steps", sizes.steps, "--validate", run.path("held-out.jsonl"), "--metrics", "perplexity", "--no-compare"]
    # A whole number of steps in each pass over the data.
    found = run.forebay(*recipe, "--data", run.path("train.jsonl"), "--dry-run")
    step = BATCH * ACCUMULATE
    count = found["data"]["samples"] // step * step
    recipe += ["--data", f"{run.path('train.jsonl')}#0..{count}"]
    run.found("sequences", count, f"{count} sequences of {sizes.length} tokens")
    start = time.monotonic()
    whole = run.forebay(*recipe, "--save", run.path("whole.onnx"), "--log", run.path("whole.jsonl"))
    seconds = time.monotonic() - start
    perplexity = whole["validation"]["metrics"]["perplexity"]
    run.found("perplexity", perplexity, f"perplexity on held-out text: {perplexity:.2f} (a guess among all tokens: {sizes.vocabulary})")
    run.found("step_seconds", whole["seconds_median"], f"a step: {whole['seconds_median']:.3f} s")
    kills, _ = killed_and_resumed(run, [*recipe, "--save", run.path("killed.onnx"), "--log", run.path("killed.jsonl")], sizes, seconds)
    run.found("kills", kills, f"killed {kills} times (--seed {arguments.seed})")
    run.check(kills > 0, "the second run was killed")
    run.check(story.same_bytes(run.path("whole.onnx"), run.path("killed.onnx")), "the model has the same bytes as without interruption")
    run.check(losses(run.path("whole.jsonl")) == losses(run.path("killed.jsonl")), "each step had the same loss")
    run.check(perplexity < sizes.vocabulary / (2.5 if arguments.quick else 5), "the model learned")
    torch_says = told_by_torch(run, sizes, count)
    if torch_says is not None:
        run.found("perplexity_torch", torch_says, f"PyTorch, the same recipe: {torch_says:.2f}")
        run.check(abs(perplexity / torch_says - 1) < 0.03, "PyTorch's perplexity is the same within 3 %")
    run.end()


def losses(path):
    """The losses of all steps in a log, in order."""
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return [(line["step"], line["loss"]) for line in lines if line["kind"] == "step"]


def told_by_torch(run, sizes, count):
    """The perplexity of the same recipe in PyTorch; None without PyTorch."""
    if run.arguments.without_torch:
        return None
    try:
        import tokenizers  # noqa: F401
        import torch
    except ImportError as error:
        print(f"  {error.name} is not installed; PyTorch's perplexity is left out")
        return None
    import language_model_torch

    if run.arguments.threads:
        torch.set_num_threads(run.arguments.threads)
    return language_model_torch.perplexity(run, sizes, count)


if __name__ == "__main__":
    main()
