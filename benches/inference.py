#!/usr/bin/env python3
"""Inference next to ONNX Runtime: the time of a run, by default at batch 1 with one thread each.

    cargo build --release
    python3 benches/inference.py [--batch 8] [--threads 2] [--before PROGRAM]
    # needs: pip install torch torchvision transformers onnx onnxruntime numpy

Networks from torchvision and transformers, and a U-Net, have random weights, and normalizations with an effect. Both runtimes get the
file that PyTorch's TorchScript exporter writes without folding constants. Runtimes take turns, and the fastest run of each counts: it is
the one that other work disturbed least. How many processors other work occupied is shown for each network. `--before` names an older build
of the program, to be measured in the same rounds.
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
import onnxruntime
import torch
import torchvision
import transformers
from torch import nn

import peer_table
import recording

OPSET = 17
PEER = "ONNX Runtime"
IMAGE = (1, 3, 224, 224)


class UNet2d(nn.Module):
    """A U-Net of three levels, two 3x3 convolutions with normalizations each (16, 32, 64 channels)."""

    def __init__(self, c=16):
        super().__init__()

        def block(i, o):
            return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(),
                                 nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU())

        self.enc1, self.enc2, self.enc3 = block(1, c), block(c, 2 * c), block(2 * c, 4 * c)
        self.up2, self.up1 = nn.ConvTranspose2d(4 * c, 2 * c, 2, stride=2), nn.ConvTranspose2d(2 * c, c, 2, stride=2)
        self.dec2, self.dec1, self.head = block(4 * c, 2 * c), block(2 * c, c), nn.Conv2d(c, 3, 1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x):
        a = self.enc1(x)
        b = self.enc2(self.pool(a))
        x = self.dec2(torch.cat([self.up2(self.enc3(self.pool(b))), b], 1))
        return self.head(self.dec1(torch.cat([self.up1(x), a], 1)))


class Bert(nn.Module):
    """A BERT of four layers of width 256."""

    def __init__(self):
        super().__init__()
        self.network = transformers.BertModel(transformers.BertConfig(
            hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, vocab_size=5000,
            attn_implementation="eager"))

    def forward(self, x):
        return self.network(input_ids=x).last_hidden_state


def vision(build, shape=IMAGE, **options):
    """A network from torchvision and its input."""
    return lambda: (build(**options), torch.randn(shape))


# By name: a network and its input.
NETWORKS = {
    "resnet50": vision(torchvision.models.resnet50),
    "resnet18 at 64 x 64": vision(torchvision.models.resnet18, (1, 3, 64, 64)),
    "mobilenet_v2": vision(torchvision.models.mobilenet_v2),
    "shufflenet_v2": vision(torchvision.models.shufflenet_v2_x1_0),
    "efficientnet_b0": vision(torchvision.models.efficientnet_b0),
    "squeezenet1_1": vision(torchvision.models.squeezenet1_1),
    "googlenet": vision(torchvision.models.googlenet, init_weights=False, aux_logits=False),
    "densenet121": vision(torchvision.models.densenet121),
    "vit_b_32": vision(torchvision.models.vit_b_32),
    "convnext_tiny": vision(torchvision.models.convnext_tiny),
    "bert, 4 layers, 64 tokens": lambda: (Bert(), torch.randint(0, 5000, (1, 64))),
    "unet2d at 64 x 64": lambda: (UNet2d(), torch.randn(1, 1, 64, 64)),
}


def export(name, folder, batch=1):
    """Writes a network as ONNX; returns the path of the file, and the input."""
    torch.manual_seed(0)
    module, x = NETWORKS[name]()
    if batch > 1:
        others = [x.shape[0] * (batch - 1), *x.shape[1:]]
        x = torch.cat([x, torch.randn(others) if x.is_floating_point() else torch.randint(0, 5000, others)])
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.8, 1.2)
            part.weight.data.uniform_(0.8, 1.2)
            part.bias.data.normal_(0, 0.1)
        # ViT's is initialized with zeros, which would make all logits zero.
        elif isinstance(part, nn.Linear) and not part.weight.any():
            part.weight.data.normal_(0, 0.02)
    path = os.path.join(folder, "model.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module.eval(), (x,), path, input_names=["x"], output_names=["y"], dynamo=False, opset_version=OPSET,
                          do_constant_folding=False)
    np.save(os.path.join(folder, "x.npy"), x.numpy())
    return path, x.numpy()


def forebay(program, folder, repeat, threads):
    """Seconds of each run of a command that runs the model `repeat` times and leaves its output in the folder."""
    call = [program, "run", os.path.join(folder, "model.onnx"), "--input", f"x={os.path.join(folder, 'x.npy')}", "--output-dir",
            folder, "--threads", str(threads), "--repeat", str(repeat), "--json"]
    done = subprocess.run(call, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{program}: {done.stderr}")
    return [step["seconds"] for step in json.loads(done.stdout)["steps"]]


def measure(name, arguments, programs):
    """Seconds of the fastest run by runtime, the difference of the outputs as a share of the largest value, and other work's processors."""
    with tempfile.TemporaryDirectory() as folder:
        path, x = export(name, folder, arguments.batch)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = arguments.threads, 4
        peer = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        expected = peer.run(None, {"x": x})[0]
        begin = time.perf_counter()
        peer.run(None, {"x": x})
        repeat = max(3, math.ceil(arguments.seconds / max(time.perf_counter() - begin, 1e-4)))
        seconds = {runtime: [] for runtime in [*programs, PEER]}
        difference, other_work = 0.0, recording.OtherWork()
        for _ in range(arguments.rounds):
            for _ in range(repeat):
                begin = time.perf_counter()
                peer.run(None, {"x": x})
                seconds[PEER].append(time.perf_counter() - begin)
            for runtime, program in programs.items():
                seconds[runtime] += forebay(program, folder, repeat, arguments.threads)
                found = np.load(os.path.join(folder, "y.npy"))
                difference = max(difference, float(np.abs(found - expected).max() / np.abs(expected).max()))
        return {runtime: min(all) for runtime, all in seconds.items()}, difference, other_work.processors()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    peer_table.add_arguments(parser, rounds=5, seconds=0.5)
    parser.add_argument("--batch", type=int, default=1, help="images or sequences per run [default: 1]")
    arguments = parser.parse_args()
    names, programs = peer_table.chosen(parser, arguments, NETWORKS)
    table = peer_table.table(names, lambda name: measure(name, arguments, programs), PEER, list(programs), "outputs", digits=2)
    recording.save(arguments.output, "inference", f"Inference at batch {arguments.batch} next to ONNX Runtime", [table],
                   software={"ONNX Runtime": onnxruntime.__version__, "PyTorch": torch.__version__},
                   conditions=f"threads of each runtime: {arguments.threads}; {arguments.rounds} rounds; differences are shares of the "
                              "largest output")


if __name__ == "__main__":
    main()
