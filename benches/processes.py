#!/usr/bin/env python3
"""Training steps of several processes: Forebay over MPI next to PyTorch's DistributedDataParallel over gloo.

    cargo build --release
    python3 benches/processes.py           # needs: mpirun, pip install torch onnx numpy

Both run on the same machine with the same batch, and with one thread for each process, each on its own processor. Rounds of the contenders
alternate; the table has medians. The networks are the golden ones: ResNet-20 on random images in batches of 64, and the 3-D U-Net on volumes
of 48 x 48 x 48 in batches of 4. Forebay's results with several processes have the same bits as with one; PyTorch's do not, and its batch
normalization does not cross processes.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx

import recording

# Steps of every round that are not counted.
WARM_UP = 2
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NETWORKS = {
    "resnet20": ("ResNet-20, 32 x 32, batch 64", (64, 3, 32, 32), (64,), 10),
    "unet3d": ("3-D U-Net, 48 x 48 x 48, batch 4", (4, 1, 48, 48, 48), (4, 48, 48, 48), 3),
}


def batch(network):
    """A batch of random samples with random labels."""
    _, shape, label_shape, classes = NETWORKS[network]
    random = np.random.RandomState(0)
    return random.standard_normal(shape).astype(np.float32), random.randint(0, classes, label_shape).astype(np.int64)


def work(network, rank, size, meeting, count):
    """One PyTorch process: prints the seconds of its steps."""
    import torch
    import torch.distributed as distributed
    import torch.nn.functional as F

    import peer_models

    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % os.cpu_count()]})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = peer_models.MODELS[network]().train()
    if size > 1:
        distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    x, y = batch(network)
    own = slice(rank * len(x) // size, (rank + 1) * len(x) // size)
    x, y = torch.from_numpy(x[own]), torch.from_numpy(y[own])
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    if size > 1:
        distributed.barrier()
        distributed.destroy_process_group()
    print(json.dumps(seconds))


def pytorch(network, size, count):
    with tempfile.TemporaryDirectory() as folder:
        def start(rank):
            words = [sys.executable, __file__, "--work", network, str(rank), str(size), os.path.join(folder, "meeting"), str(count)]
            return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

        processes = [start(rank) for rank in range(size)]
        outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"PyTorch with {size} processes failed")
    return {"seconds": json.loads(outputs[0])[WARM_UP:]}


def forebay(binary, mpirun, model, data, size, count):
    command = ["taskset", "-c", "0"] if size == 1 else mpirun.split() + ["-n", str(size)]
    command += [binary, "train", model, "--data", data, "--optimizer", "sgd", "--learning-rate", "0.01", "--momentum", "0.9"]
    command += ["--threads", "1", "--no-compare", "--json", "--steps", str(count)]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\n{run.stderr}")
    report = json.loads(run.stdout)
    numbers = report["processes"] or {}
    return {
        "seconds": [step["seconds"] for step in report["steps"]][WARM_UP:],
        "losses": [step["loss"] for step in report["steps"]],
        "sent": numbers.get("sent_bytes_per_step", 0),
        "exchange": numbers.get("exchange_seconds", 0.0) / count,
        "resident": report.get("resident_peak_bytes"),
    }


def measure(arguments, network):
    title, shape, _, _ = NETWORKS[network]
    x, y = batch(network)
    with tempfile.TemporaryDirectory() as folder:
        model = onnx.load(os.path.join(ROOT, "testdata", "golden", network, "model.onnx"))
        for value in (model.graph.input[0], model.graph.output[0]):
            value.type.tensor_type.shape.dim[0].dim_value = shape[0]
        del model.graph.value_info[:]
        path, data = os.path.join(folder, "model.onnx"), os.path.join(folder, "data.npz")
        onnx.save(model, path)
        np.savez(data, x=x, y=y)
        contenders = {}
        for size in arguments.processes:
            contenders["Forebay", size] = lambda size=size: forebay(
                arguments.binary, arguments.mpirun, path, data, size, WARM_UP + arguments.steps)
            contenders["PyTorch", size] = lambda size=size: pytorch(network, size, WARM_UP + arguments.steps)
        found = {key: [] for key in contenders}
        for _ in range(arguments.rounds):
            for key, contender in contenders.items():
                found[key].append(contender())
    losses = [run["losses"] for (name, _), runs in found.items() if name == "Forebay" for run in runs]
    assert all(other == losses[0] for other in losses), "losses depend on the number of processes"
    medians = {key: statistics.median(second for run in runs for second in run["seconds"]) for key, runs in found.items()}
    rows = []
    for (name, size), runs in found.items():
        median, first = medians[name, size], runs[0]
        exchange = statistics.median(run.get("exchange", 0.0) for run in runs) if name == "Forebay" and size > 1 else None
        row = [title, name, size, median, medians[name, min(arguments.processes)] / median, median / medians["PyTorch", size],
               first.get("sent", 0) / 2**20 if name == "Forebay" and size > 1 else None, exchange]
        rows.append(row)
        print(f"{title}  {name:8} {size} processes {median:8.4f} s/step, {row[4]:.2f} x one, {row[5]:.2f} x PyTorch"
              + (f", {row[6]:.2f} MiB sent, exchanges under way for {exchange:.4f} s" if exchange is not None else ""), flush=True)
    return rows


def main():
    if "--work" in sys.argv:
        network, rank, size, meeting, count = sys.argv[2:]
        return work(network, int(rank), int(size), meeting, int(count))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=os.path.join(ROOT, "target", "release", "forebay"))
    parser.add_argument("--mpirun", default="mpirun --bind-to core", help="the launcher, with flags that give each process a processor")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10, help="counted steps per contender and round")
    parser.add_argument("--only", choices=list(NETWORKS))
    recording.add_output(parser)
    arguments = parser.parse_args()
    import torch

    rows = []
    for network in [arguments.only] if arguments.only else NETWORKS:
        rows += measure(arguments, network)
    columns = [recording.column("network"), recording.column("contender"), recording.column("processes", digits=0),
               recording.column("step", "s", 4, "median"), recording.column("speedup", digits=2), recording.column("over PyTorch", digits=2),
               recording.column("sent per step", "MiB", 2), recording.column("exchanges under way", "s", 4, "median")]
    recording.save(arguments.output, "processes", "Training steps of several processes next to PyTorch's DistributedDataParallel",
                   [recording.table("steps", columns, rows)], software={"PyTorch": torch.__version__},
                   conditions=f"one thread for each process, each on a processor of its own; rounds alternate, {arguments.rounds} of each")


if __name__ == "__main__":
    main()
