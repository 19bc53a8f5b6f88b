#!/usr/bin/env python3
"""Training steps next to PyTorch, for networks of torchvision and transformers with random weights.

    cargo build --release
    python3 benches/training_networks.py [--threads 2] [--before PROGRAM] [--compile]
    # needs: pip install torch torchvision transformers onnx numpy; --compile also a C++ compiler

Forebay trains the file that PyTorch's TorchScript exporter writes. A step is a forward pass, cross-entropy, a backward pass and an update
with momentum. The contenders take turns, and the fastest step of each counts: it is the one that other work disturbed least. Losses of the
first steps are compared. How many processors other work occupied is shown for each network. `--before` names an older build of the
program, and `--compile` adds `torch.compile`.
"""
import argparse
import json
import math
import os
import subprocess
import tempfile
import time
import warnings

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
import transformers
from torch import nn

import peer_table
import recording

OPSET = 17
PEER, COMPILED = "PyTorch", "torch.compile"
LEARNING_RATE, MOMENTUM = 0.001, 0.9
# Steps of every turn that are not counted: the first is measured, and a plan made from that may take over at the second.
WARM_UP = 2


class Logits(nn.Module):
    """A network whose only output is its logits."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        # Without a mask, transformers looks for several sequences in one, with operators that the exporter lacks.
        found = self.network(x) if x.is_floating_point() else self.network(x, attention_mask=torch.ones_like(x))
        return found["out"] if isinstance(found, dict) and "out" in found else found if torch.is_tensor(found) else found.logits


def vision(build, shape=(4, 3, 224, 224), **options):
    """A network from torchvision and its input."""
    return lambda: (build(**options), torch.randn(shape))


def text(model, config, batch, length, **fields):
    """A network from transformers of width 256, and its tokens."""
    def build():
        sizes = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 5000, "bos_token_id": 1,
                 "eos_token_id": 2, "use_cache": False}
        configuration = getattr(transformers, config)(**{**sizes, **fields}, attn_implementation="eager")
        return getattr(transformers, model)(configuration), torch.randint(0, 5000, (batch, length))
    return build


# By name: a network and its input.
NETWORKS = {
    "r3d_18, 8 x 112 x 112": vision(torchvision.models.video.r3d_18, (1, 3, 8, 112, 112)),
    "alexnet": vision(torchvision.models.alexnet),
    "lraspp, mobilenet_v3": vision(torchvision.models.segmentation.lraspp_mobilenet_v3_large, weights_backbone=None),
    "shufflenet_v2": vision(torchvision.models.shufflenet_v2_x1_0),
    "squeezenet1_1": vision(torchvision.models.squeezenet1_1),
    "efficientnet_b0": vision(torchvision.models.efficientnet_b0),
    "resnet18": vision(torchvision.models.resnet18),
    "densenet121": vision(torchvision.models.densenet121),
    "convnext_tiny": vision(torchvision.models.convnext_tiny),
    "mobilenet_v2": vision(torchvision.models.mobilenet_v2),
    "resnet50": vision(torchvision.models.resnet50),
    "vit_b_32": vision(torchvision.models.vit_b_32),
    "resnet18, 32 x 32, batch 32": vision(torchvision.models.resnet18, (32, 3, 32, 32)),
    "bert, 128 tokens": text("BertForMaskedLM", "BertConfig", 4, 128, intermediate_size=1024),
    "gpt2, 256 tokens": text("GPT2LMHeadModel", "GPT2Config", 4, 256),
    "llama, 512 tokens": text("LlamaForCausalLM", "LlamaConfig", 2, 512, intermediate_size=688, num_key_value_heads=2),
}


def build(name):
    """A network without random numbers in its forward pass, the same at every call, and its input and labels."""
    torch.manual_seed(0)
    module, x = NETWORKS[name]()
    for part in module.modules():
        if isinstance(part, (nn.Dropout, torchvision.ops.StochasticDepth)):
            part.p = 0.0
        # ViT's is initialized with zeros.
        elif isinstance(part, nn.Linear) and not part.weight.any():
            part.weight.data.normal_(0, 0.02)
    module = Logits(module).train()
    with torch.no_grad():
        for weights in module.parameters():
            weights += 1e-3 * torch.randn_like(weights)  # the exporter writes equal weights as one
        shape = list(module(x).shape)
    axis = 1 if x.is_floating_point() else -1
    classes = shape.pop(axis)
    return module, x, torch.randint(0, classes, shape), axis


class PyTorch:
    """Training steps in this process."""

    def __init__(self, name, compiled):
        module, self.x, self.y, self.axis = build(name)
        self.module = torch.compile(module) if compiled else module
        self.optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)

    def steps(self, count):
        """Seconds and losses."""
        seconds, losses = [], []
        for _ in range(count):
            start = time.perf_counter()
            self.optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(self.module(self.x).movedim(self.axis, 1), self.y)
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
            seconds.append(time.perf_counter() - start)
        return seconds, losses


class Forebay:
    """Training steps on the command line."""

    def __init__(self, program, folder, axis, threads, batch):
        self.command = [program, "train", os.path.join(folder, "model.onnx"), "--data", os.path.join(folder, "data.npz"), "--batch-size",
                        str(batch), "--class-axis", str(axis), "--optimizer", "sgd", "--learning-rate", str(LEARNING_RATE), "--momentum",
                        str(MOMENTUM), "--threads", str(threads), "--no-compare", "--json"]

    def steps(self, count):
        """Seconds and losses."""
        done = subprocess.run([*self.command, "--steps", str(count)], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(self.command)}\n{done.stderr}")
        steps = json.loads(done.stdout)["steps"]
        return [step["seconds"] for step in steps], [step["loss"] for step in steps]


def export(name, folder):
    """Writes a network and a batch of data."""
    module, x, y, axis = build(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), os.path.join(folder, "model.onnx"), input_names=["x"], output_names=["logits"], dynamo=False,
                          opset_version=OPSET, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)
    np.savez(os.path.join(folder, "data.npz"), x=x.numpy(), y=y.numpy())
    return axis, len(x)


def measure(name, arguments, programs):
    """Seconds of the fastest step by contender, the largest relative difference of early losses, and other work's processors."""
    with tempfile.TemporaryDirectory() as folder:
        axis, batch = export(name, folder)
        contenders = {PEER: PyTorch(name, False)}
        if arguments.compile:
            contenders[COMPILED] = PyTorch(name, True)
        contenders |= {label: Forebay(program, folder, axis, arguments.threads, batch) for label, program in programs.items()}
        early = {label: contender.steps(3) for label, contender in contenders.items()}
        expected = early[PEER][1]
        difference = max(abs(found - wanted) / wanted for _, losses in early.values() for found, wanted in zip(losses, expected))
        count = max(2, math.ceil(arguments.seconds / min(early[PEER][0])))
        seconds, other_work = {label: [] for label in contenders}, recording.OtherWork()
        for _ in range(arguments.rounds):
            for label, contender in contenders.items():
                seconds[label] += contender.steps(WARM_UP + count)[0][WARM_UP:]
        return {label: min(all) for label, all in seconds.items()}, difference, other_work.processors()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peer_table.add_arguments(parser, rounds=3, seconds=1.0)
    parser.add_argument("--compile", action="store_true", help="also measure torch.compile")
    arguments = parser.parse_args()
    names, programs = peer_table.chosen(parser, arguments, NETWORKS)
    torch.set_num_threads(arguments.threads)
    others = [COMPILED] * arguments.compile + list(programs)
    table = peer_table.table(names, lambda name: measure(name, arguments, programs), PEER, others, "losses", digits=1)
    recording.save(arguments.output, "training-networks", "Training steps of networks next to PyTorch", [table],
                   software={"PyTorch": torch.__version__, "torchvision": torchvision.__version__,
                             "transformers": transformers.__version__},
                   conditions=f"threads of each contender: {arguments.threads}; {arguments.rounds} rounds; SGD with momentum; images in "
                              "batches of 4 at 224 x 224 unless a row says otherwise; losses of 3 steps")


if __name__ == "__main__":
    main()
