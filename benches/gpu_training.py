"""Training steps of the U-Net in PyTorch: in core, and with activation checkpointing, on one device.

    python3 benches/gpu_training.py [--device cuda] [--sizes 96 112 96] [--steps 5]

Prints the median seconds of a step and, on a card, the peak memory allocated during the counted steps. Checkpointing recomputes blocks of
two convolutions. The network is that of `peer_models.py`, the data are random, and the rest is the same as what `gpu.sh` runs with Forebay:
batch 1, softmax cross-entropy, SGD with momentum 0.9, float32 without TF32. PyTorch is allowed to try its algorithms and take the best.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import recording
from peer_models import UNet3d

BLOCKS = ["enc1", "enc2", "enc3", "enc4", "dec3", "dec2", "dec1"]


class Recomputed(torch.nn.Module):
    """A block whose activations are recomputed in the backward pass."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


def seconds(device, sizes, steps, checkpointed):
    """The seconds per step, after two steps that are not counted, and the peak in bytes."""
    torch.manual_seed(0)
    model = UNet3d()
    if checkpointed:
        for name in BLOCKS:
            setattr(model, name, Recomputed(getattr(model, name)))
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x = torch.randn(1, 1, *sizes, device=device)
    y = torch.randint(0, 3, (1, *sizes), device=device)
    on_card = device != "cpu"
    times = []
    for step in range(2 + steps):
        if on_card and step == 2:
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        loss.item()
        if on_card:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return times[2:], torch.cuda.max_memory_allocated() if on_card else None


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--device", default="cuda", help="cuda or cpu")
    arguments.add_argument("--sizes", type=int, nargs=3, default=[96, 112, 96], help="of the volume, multiples of 8")
    arguments.add_argument("--steps", type=int, default=5)
    recording.add_output(arguments)
    given = arguments.parse_args()
    rows = []
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    for name, checkpointed in [("in core", False), ("with activation checkpointing", True)]:
        times, peak_bytes = seconds(given.device, given.sizes, given.steps, checkpointed)
        step = statistics.median(times)
        peak = f", {peak_bytes / 2**20:.0f} MiB" if peak_bytes is not None else ""
        print(f"PyTorch {name}: {step:.4f} s/step{peak}", flush=True)
        mebibytes = None if peak_bytes is None else peak_bytes / 2**20
        rows.append([name, {"value": step, "from": min(times), "to": max(times)}, mebibytes])
    columns = [recording.column("PyTorch"), recording.column("step", "s", 4, "median"), recording.column("peak", "MiB", 0)]
    sizes = " x ".join(map(str, given.sizes))
    recording.save(given.output, "gpu-training-peer", f"Training the U-Net at {sizes} with PyTorch",
                   [recording.table("steps", columns, rows)], software={"PyTorch": torch.__version__},
                   conditions=f"{given.steps} steps, on {given.device}")


if __name__ == "__main__":
    main()
