"""PyTorch on the same card, with the types and sizes that the Vulkan device's bench printed.

Reads the output lines of `cargo bench -p forebay-vulkan --bench kernels` and prints each with PyTorch's GFLOP/s and the ratio. float32
is without TF32 on both sides; PyTorch is allowed to try its algorithms and take the best.

    cargo bench -p forebay-vulkan --bench kernels | python3 benches/gpu_peer.py
"""

import argparse
import json
import statistics
import sys

import torch
import torch.nn.grad

import recording


def gflops(flops, run, busy):
    """The median of nine runs by the card's own clock, after one that is not counted.

    All are submitted after a long product, so that the card never waits for the host between them.
    """
    run()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(9)]
    torch.cuda.synchronize()
    busy @ busy
    for start, end in events:
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return flops / statistics.median(start.elapsed_time(end) / 1e3 for start, end in events) / 1e9


def peer(line, kind, busy):
    """PyTorch's speed with the sizes of a line."""
    def tensor(sizes):
        return torch.full(sizes, 0.5, device="cuda", dtype=kind)

    if line["kernel"] == "matmul":
        m, k, n = line["sizes"]
        a, b = tensor((m, k)), tensor((k, n))
        return gflops(2 * m * k * n, lambda: a @ b, busy)
    x, w = tensor(line["x"]), tensor(line["w"])
    dimensions = len(line["x"]) - 2
    forward = [torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d][dimensions - 1]
    y = forward(x, w, padding=1)
    flops = 2 * y.numel() * w[0].numel()
    data = getattr(torch.nn.grad, f"conv{dimensions}d_input")
    weight = getattr(torch.nn.grad, f"conv{dimensions}d_weight")
    return gflops(flops, {
        "convolution": lambda: forward(x, w, padding=1),
        "convolution data gradient": lambda: data(x.shape, w, y, padding=1),
        "convolution weight gradient": lambda: weight(x, w.shape, y, padding=1),
    }[line["kernel"]], busy)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    recording.add_output(parser)
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    busy = torch.ones((8192, 8192), device="cuda")
    failed, rows = False, []
    print(f"{'kernel':30}{'type':>10}{'sizes':>44}{'ours':>10}{'PyTorch':>10}{'ratio':>8}   GFLOP/s")
    for text in sys.stdin:
        if not text.startswith("{"):
            continue
        line = json.loads(text)
        sizes, ours = line.get("sizes") or (line["x"], line["w"]), line["gflops"]
        words = f"{line['kernel']:30}{line['type']:>10}{str(sizes):>44}{ours:10.0f}"
        try:
            other = peer(line, getattr(torch, line["type"]), busy)
            print(f"{words}{other:10.0f}{ours / other:8.2f}")
            rows.append([line["kernel"], line["type"], str(sizes), ours, other, ours / other])
        except RuntimeError as error:
            failed = True
            print(f"{words}    PyTorch: {error}")
            rows.append([line["kernel"], line["type"], str(sizes), ours, "PyTorch cannot run it", None])
    speed = lambda name: recording.column(name, "GFLOP/s", 0, "median")
    columns = [recording.column("kernel"), recording.column("type"), recording.column("sizes"), speed("Forebay"), speed("PyTorch"),
               recording.column("ratio", digits=2)]
    recording.save(arguments.output, "gpu-kernels-peer", "Products and convolutions next to PyTorch on the same card",
                   [recording.table("kernels", columns, rows)], software={"PyTorch": torch.__version__})
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
