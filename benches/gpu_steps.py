"""Training steps of Forebay on a device: in core, and within shares of the memory needed in core.

    cargo build --release
    python3 benches/gpu_steps.py MODEL.onnx DATA [--device vulkan] [--budgets 25% 10%] [--steps 10]

The counterpart of `gpu_training.py`, for `gpu.sh`. The first steps are measured, and the plan is then made from the measurements; the
figure is the median of all steps. Failures are reported, do not stop the other attempts, and make the command exit with 1. It needs only
Python.
"""

import argparse
import json
import os
import subprocess

import recording


def card(binary, device):
    """The first Vulkan device that matches the name, and its driver, as described by `forebay devices`: NAME (KIND; DRIVER)."""
    listed = subprocess.run([binary, "devices"], capture_output=True, text=True).stdout.splitlines()
    wanted = device.removeprefix("vulkan").removeprefix(":")
    for line in listed:
        if not line.startswith("vulkan:") or "cannot be used" in line:
            continue
        number = line.split()[0].removeprefix("vulkan:")
        if not wanted or wanted == number or wanted.lower() in line.lower():
            described, _, driver = line.rpartition("; ")
            name = described.rpartition(" (")[0].rpartition("  ")[2]
            return {"gpu": name, "driver": driver.strip().removesuffix(")")}
    return None


def train(arguments, budget):
    """The report of a run, or None after printing the reason."""
    command = [arguments.binary, "train", arguments.model, "--data", arguments.data, "--device", arguments.device, "--steps",
               str(arguments.steps), "--learning-rate", "0.01", "--momentum", "0.9", "--no-compare", "--json"]
    run = subprocess.run(command + (["--device-memory", budget] if budget else []), capture_output=True, text=True)
    if run.returncode != 0:
        print(run.stderr.strip(), flush=True)
        return None
    return json.loads(run.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--binary", default=os.path.join(recording.ROOT, "target", "release", "forebay"))
    parser.add_argument("--device", default="vulkan", help="as in `forebay devices`")
    parser.add_argument("--budgets", nargs="*", default=["25%", "10%"], help="besides no budget")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--sizes", default="", help="the size of the input, for the record")
    recording.add_output(parser)
    arguments = parser.parse_args()
    rows, failed = [], False
    for budget in [None, *arguments.budgets]:
        name = budget or "none"
        report = train(arguments, budget)
        if report is None:
            failed = True
            print(f"budget {name}: FAILED", flush=True)
            rows.append([name, "failed"] + [None] * 8)
            continue
        seconds = [step["seconds"] for step in report["steps"]]
        losses = [report["steps"][index]["loss"] for index in (0, -1)]
        step = {"value": report["seconds_median"], "from": min(seconds), "to": max(seconds)}
        mebibytes = [report[key] / (1 << 20) for key in ("device_peak_bytes", "bytes_to_device", "bytes_from_device")]
        rows.append([name, step, report["stall_seconds"], *mebibytes, report["barriers"], report["waits"], *losses])
        print(f"budget {name}: {step['value']:.4f} s/step (median), peak {mebibytes[0]:.1f} MiB, {report['barriers']} barriers, "
              f"loss {losses[0]:.6f} to {losses[1]:.6f}", flush=True)
    columns = [recording.column("budget"), recording.column("step", "s", 4, "median"),
               recording.column("without a kernel running", "s", 4, "median"), recording.column("peak", "MiB", 1),
               recording.column("to the device", "MiB", 1), recording.column("from the device", "MiB", 1),
               recording.column("barriers", digits=0), recording.column("waits", digits=0),
               recording.column("first loss", digits=6), recording.column("last loss", digits=6)]
    sizes = f" at {arguments.sizes}" if arguments.sizes else ""
    recording.save(arguments.output, "gpu-training", f"Training the U-Net{sizes} on a GPU",
                   [recording.table("steps", columns, rows)], conditions=f"{arguments.steps} steps",
                   machine=card(arguments.binary, arguments.device))
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
