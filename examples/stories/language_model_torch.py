"""The recipe of `language_model.py` in PyTorch: the same initial weights, and the same tokens in the same order."""
import json
import math

import numpy as np
import onnx
import tokenizers
import torch
from onnx import numpy_helper
from torch.nn import functional

import language_model as recipe


def sequences(run, name, length):
    """The concatenated tokens of all documents, cut into sequences with the next tokens as labels."""
    tokenizer = tokenizers.Tokenizer.from_file(run.path("tokenizer.json"))
    found = []
    with open(run.path(f"{name}.jsonl"), encoding="utf-8") as file:
        for line in file:
            found += [*tokenizer.encode(json.loads(line)["text"]).ids, tokenizer.token_to_id(recipe.END)]
    count = (len(found) - 1) // length
    tokens = torch.tensor(found)
    return tokens[:count * length].view(count, length), tokens[1:count * length + 1].view(count, length)


def forward(weights, sizes, tokens):
    """The logits."""
    def linear(name, x):
        return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def norm(name, x):
        return functional.layer_norm(x, (sizes.width,), weights[f"{name}.weight"], weights[f"{name}.bias"])

    x = weights["tokens.weight"][tokens] + weights["positions.weight"]
    for layer in range(sizes.layers):
        name = f"layers.{layer}"
        y = norm(f"{name}.norm1", x)
        q, k, v = (linear(f"{name}.{part}", y).unflatten(-1, (sizes.heads, -1)).transpose(1, 2) for part in "qkv")
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + linear(f"{name}.out", y)
        x = x + linear(f"{name}.narrow", functional.gelu(linear(f"{name}.wide", norm(f"{name}.norm2", x))))
    return norm("norm", x) @ weights["head.weight"]


def rate(step, steps):
    """Linear warm-up, then half a cosine."""
    if step < recipe.WARMUP:
        return recipe.RATE * step / recipe.WARMUP
    return recipe.RATE * 0.5 * (1 + math.cos(math.pi * (step - recipe.WARMUP) / (steps - recipe.WARMUP)))


def perplexity(run, sizes, count):
    """The perplexity of held-out text after the recipe."""
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(run.path("gpt.onnx")).graph.initializer}
    constants = {"heads", "joined", "mask", "scale"}
    weights = {name: torch.from_numpy(np.array(value)).requires_grad_() for name, value in tensors.items() if name not in constants}
    groups = [{"params": [weight for weight in weights.values() if weight.dim() > 1], "weight_decay": recipe.DECAY},
              {"params": [weight for weight in weights.values() if weight.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    tokens, labels = sequences(run, "train", sizes.length)
    tokens, labels = tokens[:count], labels[:count]

    def loss_of(tokens, labels):
        with torch.autocast("cpu", torch.bfloat16):
            logits = forward(weights, sizes, tokens)
        return functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())

    for step in range(sizes.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, sizes.steps)
        optimizer.zero_grad()
        for part in range(recipe.ACCUMULATE):
            start = (step * recipe.ACCUMULATE + part) * recipe.BATCH % count
            at = slice(start, start + recipe.BATCH)
            (loss_of(tokens[at], labels[at]) / recipe.ACCUMULATE).backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), recipe.CLIP)
        optimizer.step()
    tokens, labels = sequences(run, "held-out", sizes.length)
    with torch.no_grad():
        losses = [float(loss_of(tokens[at:at + 1], labels[at:at + 1])) for at in range(len(tokens))]
    return math.exp(sum(losses) / len(losses))
