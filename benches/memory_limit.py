#!/usr/bin/env python3
"""Steps of training within limits on the memory of the process, next to steps without: resident memory and time.

    cargo build --release
    python3 benches/memory_limit.py examples/brain/unet3d.onnx examples/brain 80% 70% 60% 55% 50% [--rounds 3] [--spill-dir DIR]

Limits are sizes, or shares of the resident memory of a run without a limit. Runs take turns. The memory is the system's own count
(VmHWM). Losses must be the same bits.
"""
import argparse
import json
import os
import statistics
import subprocess

import recording

# Steps that are not counted: the first ones touch memory for the first time, and may end with another plan.
WARM_UP = 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("limits", nargs="+", metavar="LIMIT")
    parser.add_argument("--binary", default=os.path.join(recording.ROOT, "target", "release", "forebay"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="counted steps of each run")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--spill-dir")
    recording.add_output(parser)
    arguments = parser.parse_args()

    def train(limit):
        command = [arguments.binary, "train", arguments.model, "--data", arguments.data, "--momentum", "0.9", "--threads",
                   str(arguments.threads), "--steps", str(arguments.steps + WARM_UP), "--no-compare", "--json"]
        command += ["--memory-limit", f"{limit >> 10}KiB"] if limit else []
        command += ["--spill-dir", arguments.spill_dir] if limit and arguments.spill_dir else []
        done = subprocess.run(command, capture_output=True, text=True)
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip()

    free = train(None)
    if isinstance(free, str):
        raise SystemExit(free)
    units = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

    def size(text):
        if text.endswith("%"):
            return int(free["resident_peak_bytes"] * float(text[:-1]) / 100)
        return int(float(text[:-3]) * units[text[-3:]])

    limits = [None] + [size(text) for text in arguments.limits]
    seconds, peaks, reports, refused = {}, {}, {}, {}
    for _ in range(arguments.rounds):
        for limit in limits:
            report = refused.get(limit) or train(limit)
            if isinstance(report, str):
                refused[limit] = report
                continue
            seconds.setdefault(limit, []).extend(step["seconds"] for step in report["steps"][WARM_UP:])
            peaks[limit] = max(peaks.get(limit, 0), report["resident_peak_bytes"])
            reports[limit] = report
    losses = [step["loss"] for step in reports[None]["steps"]]
    in_core = statistics.median(seconds[None])
    rows = []
    for limit in limits:
        if limit in refused:
            print(f"{limit >> 20} MiB: {refused[limit]}")
            continue
        report, median = reports[limit], statistics.median(seconds[limit])
        if [step["loss"] for step in report["steps"]] != losses:
            raise SystemExit(f"losses within {limit} bytes differ")
        rows.append([limit and limit / (1 << 20), peaks[limit] / (1 << 20), report["device_peak_bytes"] / (1 << 20),
                     report["spill_bytes"] / (1 << 20), median, median / in_core])
        print(*(f"{number:.3f}" if number is not None else "none" for number in rows[-1]))
    columns = [recording.column("memory limit", "MiB", 0), recording.column("process, most", "MiB", 0),
               recording.column("tensors", "MiB", 0), recording.column("on disk", "MiB", 0),
               recording.column("step", "s", 3, "median"), recording.column("over no limit", digits=2)]
    conditions = f"{arguments.rounds} runs of {arguments.steps} counted steps each, in turn; losses have the same bits"
    recording.save(arguments.output, "memory-limit", "Training within a limit on the process",
                   [recording.table("steps", columns, rows)], conditions=conditions)


if __name__ == "__main__":
    main()
