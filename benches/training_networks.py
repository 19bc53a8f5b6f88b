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
import statistics
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

import recording

OPSET = 17
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
        contenders = {"PyTorch": PyTorch(name, False)}
        if arguments.compile:
            contenders["torch.compile"] = PyTorch(name, True)
        contenders |= {label: Forebay(program, folder, axis, arguments.threads, batch) for label, program in programs.items()}
        early = {label: contender.steps(3) for label, contender in contenders.items()}
        expected = early["PyTorch"][1]
        difference = max(abs(found - wanted) / wanted for _, losses in early.values() for found, wanted in zip(losses, expected))
        count = max(2, math.ceil(arguments.seconds / min(early["PyTorch"][0])))
        seconds, other_work = {label: [] for label in contenders}, recording.OtherWork()
        for _ in range(arguments.rounds):
            for label, contender in contenders.items():
                seconds[label] += contender.steps(WARM_UP + count)[0][WARM_UP:]
        return {label: min(all) for label, all in seconds.items()}, difference, other_work.processors()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    recording.add_program(parser)
    parser.add_argument("--before", metavar="PATH", help="an older build of the program, measured as well")
    parser.add_argument("--compile", action="store_true", help="also measure torch.compile")
    parser.add_argument("--only", metavar="TEXT", help="networks with this in their names only")
    parser.add_argument("--threads", type=int, default=1, help="threads of each contender [default: 1]")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender [default: 3]")
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long a turn takes [default: 1]")
    recording.add_output(parser)
    arguments = parser.parse_args()
    names = [name for name in NETWORKS if (arguments.only or "") in name]
    if not names:
        parser.error(f"--only {arguments.only}: no network's name contains it; the networks are {'; '.join(NETWORKS)}")
    programs = {"before": arguments.before, "Forebay": arguments.forebay} if arguments.before else {"Forebay": arguments.forebay}
    for program in programs.values():
        recording.check_program(parser, program)
    torch.set_num_threads(arguments.threads)
    others = ["torch.compile"] * arguments.compile + list(programs)
    rows, ratios = [], {label: [] for label in others}
    for name in names:
        seconds, difference, other_work = measure(name, arguments, programs)
        own = {label: seconds[label] / seconds["PyTorch"] for label in others}
        for label, ratio in own.items():
            ratios[label].append(ratio)
        rows.append([name, seconds["PyTorch"] * 1e3, *(value for label in others for value in (seconds[label] * 1e3, own[label])),
                     difference, other_work])
        print(f"{name:28} PyTorch {seconds['PyTorch'] * 1e3:7.1f} ms; "
              + "; ".join(f"{label} {seconds[label] * 1e3:7.1f} ms, {own[label]:.2f}" for label in others)
              + f"; losses differ by {difference:.0e}"
              + ("" if other_work is None else f"; other work: {other_work:.1f} processors"), flush=True)
    means = {label: math.exp(statistics.mean(map(math.log, all))) for label, all in ratios.items()}
    rows.append(["geometric mean", None, *(value for label in others for value in (None, means[label])), None, None])
    print("geometric mean: " + ", ".join(f"{label} {mean:.3f}" for label, mean in means.items()))
    columns = [recording.column("network"), recording.column("PyTorch", "ms", 1, "best")]
    for label in others:
        columns += [recording.column(label, "ms", 1, "best"), recording.column(f"{label}, ratio", digits=2)]
    columns += [recording.column("losses differ by"), recording.column("other work", "processors", 1, "mean")]
    recording.save(arguments.output, "training-networks", "Training steps of networks next to PyTorch",
                   [recording.table("networks", columns, rows)],
                   software={"PyTorch": torch.__version__, "torchvision": torchvision.__version__,
                             "transformers": transformers.__version__},
                   conditions=f"threads of each contender: {arguments.threads}; {arguments.rounds} rounds; SGD with momentum; images in "
                              "batches of 4 at 224 x 224 unless a row says otherwise; losses of 3 steps")


if __name__ == "__main__":
    main()
