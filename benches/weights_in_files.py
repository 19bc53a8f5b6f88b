#!/usr/bin/env python3
"""A decoder whose weights do not fit in the process limit: runs, and training of adapters, with weights read from the model's file.

    cargo build --release
    python3 benches/weights_in_files.py FOLDER 2GiB 500MiB 200MiB      # needs: pip install numpy; writes 4.6 GiB into the folder

Runs take turns. Each limit is tried with as much memory for the system's page cache as the machine has. If this machine lets us create
control groups, it is also tried in a group of the limit plus 5 %, in which the cache has no room, so that every step reads the disk. Outputs
and losses must be bit-identical. Memory is the system's own count (VmHWM).
"""
import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys

import numpy as np

import recording
from memory_limit import GROUP_SHARE, UNITS, control_group, run_in

# Steps that are not counted: the first one touches memory for the first time.
WARM_UP = 1


def make_model(folder, layers, width):
    """A decoder with random weights, and inputs for it."""
    here = os.path.dirname(os.path.abspath(__file__))
    sizes = ["--layers", str(layers), "--width", str(width), "--vocabulary", "8000", "--positions", "64"]
    subprocess.run([sys.executable, os.path.join(here, "decoder.py"), folder, *sizes], check=True)
    path, random = os.path.join(folder, "weights.bin"), np.random.default_rng(1)
    block = (random.standard_normal(1 << 22, dtype=np.float32) * 0.02).tobytes()
    with open(path, "r+b") as file:
        for start in range(0, os.path.getsize(path), len(block)):
            file.write(block[:os.path.getsize(path) - start])
    data = np.load(os.path.join(folder, "data.npz"))
    np.savez(os.path.join(folder, "inputs.npz"), ids=data["ids"][:1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("limits", nargs="+", metavar="LIMIT")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--binary", default=os.path.join(recording.ROOT, "target", "release", "forebay"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="counted steps of each run")
    parser.add_argument("--threads", type=int, default=2)
    recording.add_output(parser)
    arguments = parser.parse_args()
    make_model(arguments.folder, arguments.layers, arguments.width)
    model, outputs = os.path.join(arguments.folder, "model.onnx"), os.path.join(arguments.folder, "outputs")
    count = str(arguments.steps + WARM_UP)
    commands = {
        "run": ["run", model, "--inputs", os.path.join(arguments.folder, "inputs.npz"), "--output-dir", outputs, "--repeat", count],
        "train adapters": ["train", model, "--data", os.path.join(arguments.folder, "data.npz"), "--class-axis", "-1", "--batch-size", "1",
                           "--lora", "layer*.query", "--rank", "4", "--steps", count, "--no-compare"],
    }

    def measure(what, limit, grouped):
        command = [arguments.binary, *commands[what], "--threads", str(arguments.threads), "--json", "--memory-limit"]
        command.append(f"{limit >> 10}KiB" if limit else "none")
        if not grouped:
            done = run_in(None, command)
        else:
            with control_group(int(limit * GROUP_SHARE)) as group:
                if not group:
                    return None
                # Otherwise, parts of the file that earlier runs left in memory would be read from there.
                descriptor = os.open(os.path.join(arguments.folder, "weights.bin"), os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)
                done = run_in(group, command)
        if done.returncode != 0:
            raise SystemExit(f"{what} within {limit}: {done.stderr.strip() or done.returncode}")
        report = json.loads(done.stdout)
        if what == "run":
            files = [os.path.join(outputs, name) for name in sorted(os.listdir(outputs))]
            report["bits"] = hashlib.sha256(b"".join(open(file, "rb").read() for file in files)).hexdigest()
        else:
            report["bits"] = [step["loss"] for step in report["steps"]]
        return report

    limits = [int(float(text[:-3]) * UNITS[text[-3:]]) for text in arguments.limits]
    cases = [(None, False)] + [(limit, grouped) for limit in limits for grouped in (False, True)]
    rows = []
    for what in commands:
        seconds, reports, peaks = {}, {}, {}
        for _ in range(arguments.rounds):
            for case in cases:
                report = measure(what, *case)
                if report is None:
                    continue
                seconds.setdefault(case, []).extend(step["seconds"] for step in report["steps"][WARM_UP:])
                peaks[case] = max(peaks.get(case, 0), report["resident_peak_bytes"])
                reports[case] = report
        whole = statistics.median(seconds[cases[0]])
        for case in filter(reports.get, cases):
            (limit, grouped), report, median = case, reports[case], statistics.median(seconds[case])
            if report["bits"] != reports[cases[0]]["bits"]:
                raise SystemExit(f"{what} within {limit} bytes has other bits")
            if limit and peaks[case] > limit:
                raise SystemExit(f"{what} within {limit} bytes took {peaks[case]}")
            read = report["bytes_from_model_files"] / (1 << 30)
            rows.append([what, limit and limit / (1 << 20), "limit + 5 %" if grouped else "the machine's", peaks[case] / (1 << 20), read,
                         median, median / whole, read * (1 << 30) / 1e9 / median])
            print(*(f"{cell:.3f}" if isinstance(cell, float) else cell for cell in rows[-1]), flush=True)
    columns = [recording.column("command"), recording.column("memory limit", "MiB", 0), recording.column("memory there"),
               recording.column("process, most", "MiB", 0), recording.column("read per step", "GiB", 2),
               recording.column("step", "s", 3, "median"), recording.column("over no limit", digits=2),
               recording.column("read", "GB/s", 2)]
    size = os.path.getsize(os.path.join(arguments.folder, "weights.bin")) / (1 << 30)
    conditions = (f"a decoder of {arguments.layers} layers and width {arguments.width}, {size:.1f} GiB of float32, 64 positions; "
                  f"{arguments.rounds} runs of {arguments.steps} counted steps each, in turn; outputs and losses have the same bits")
    recording.save(arguments.output, "weights-in-files", "Weights read from the model's file",
                   [recording.table("steps", columns, rows)], conditions=conditions)


if __name__ == "__main__":
    main()
