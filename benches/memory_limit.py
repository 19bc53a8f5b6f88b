#!/usr/bin/env python3
"""Training steps within limits on process memory, next to steps without a limit: resident memory and time.

    cargo build --release
    python3 benches/memory_limit.py examples/brain/unet3d.onnx examples/brain 80% 60% 50% 45% 35% [--spill-dir DIR] [--rounds 3]

Limits are sizes, or shares of the resident memory of a run without a limit. With a folder to spill to, each limit is tried with and
without it. Runs take turns. Memory is the system's own count (VmHWM). If this machine lets us create control groups, each run within a
limit is in a separate group that can take the limit plus 5 %: beyond that, the system would kill the run. Losses must be bit-identical.
"""
import argparse
import contextlib
import json
import os
import statistics
import subprocess

import recording

# Steps that are not counted: the first ones touch memory for the first time, and may end with a different plan.
WARM_UP = 2
# The memory allowed to a control group, over the limit.
GROUP_SHARE = 1.05
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def own_groups():
    """Folders of this process's control groups that can limit memory: of version 1, and of version 2."""
    for line in open("/proc/self/cgroup"):
        _, controllers, path = line.rstrip("\n").split(":", 2)
        if controllers == "" or "memory" in controllers.split(","):
            for mount in open("/proc/self/mountinfo"):
                place, _, kind = mount.partition(" - ")
                fields, kind = place.split(), kind.split()
                right = kind[0] == "cgroup2" if controllers == "" else kind[0] == "cgroup" and "memory" in kind[2].split(",")
                if right:
                    yield fields[4] + ("" if fields[3] == path else path)


@contextlib.contextmanager
def control_group(limit_bytes):
    """The folder of a new control group with this limit; None if none can be created."""
    for parent in own_groups() if os.path.exists("/proc/self/cgroup") else []:
        folder = os.path.join(parent, f"forebay-bench-{os.getpid()}")
        try:
            os.mkdir(folder)
        except OSError:
            continue
        try:
            for name in ("memory.max", "memory.limit_in_bytes"):
                file = os.path.join(folder, name)
                if os.path.exists(file):
                    with open(file, "w") as stream:
                        stream.write(str(limit_bytes))
                    yield folder
                    return
        finally:
            os.rmdir(folder)
    yield None


def run_in(group, command):
    """Runs a command in the control group of this folder, or directly if there is none."""
    script = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
    return subprocess.run(["sh", "-c", script, group, *command] if group else command, capture_output=True, text=True)


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
    grouped = {True: 0, False: 0}

    def train(limit, disk):
        command = [arguments.binary, "train", arguments.model, "--data", arguments.data, "--momentum", "0.9", "--threads",
                   str(arguments.threads), "--steps", str(arguments.steps + WARM_UP), "--no-compare", "--json"]
        if not limit:
            done = subprocess.run([*command, "--memory-limit", "none"], capture_output=True, text=True)
            return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip()
        command += ["--memory-limit", f"{limit >> 10}KiB"] + (["--spill-dir", arguments.spill_dir] if disk else [])
        with control_group(int(limit * GROUP_SHARE)) as group:
            done = run_in(group, command)
        grouped[group is not None] += 1
        if done.returncode < 0:
            raise SystemExit(f"within {limit} bytes, the system ended the run with signal {-done.returncode}")
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip()

    free = train(None, False)
    if isinstance(free, str):
        raise SystemExit(free)

    def size(text):
        if text.endswith("%"):
            return int(free["resident_peak_bytes"] * float(text[:-1]) / 100)
        return int(float(text[:-3]) * UNITS[text[-3:]])

    disks = [False, True] if arguments.spill_dir else [False]
    cases = [(None, False)] + [(size(text), disk) for text in arguments.limits for disk in disks]
    seconds, peaks, reports, refused = {}, {}, {}, {}
    for _ in range(arguments.rounds):
        for case in cases:
            report = refused.get(case) or train(*case)
            if isinstance(report, str):
                refused[case] = report
                continue
            seconds.setdefault(case, []).extend(step["seconds"] for step in report["steps"][WARM_UP:])
            peaks[case] = max(peaks.get(case, 0), report["resident_peak_bytes"])
            reports[case] = report
    losses = [step["loss"] for step in reports[cases[0]]["steps"]]
    in_core = statistics.median(seconds[cases[0]])
    rows = []
    for case in cases:
        limit, disk = case
        if case in refused:
            print(f"{limit >> 20} MiB{', with a disk' if disk else ''}: {refused[case]}")
            continue
        report, median = reports[case], statistics.median(seconds[case])
        if [step["loss"] for step in report["steps"]] != losses:
            raise SystemExit(f"losses within {limit} bytes differ")
        if limit and peaks[case] > limit:
            raise SystemExit(f"a run within {limit} bytes took {peaks[case]}")
        rows.append([limit and limit / (1 << 20), "may be used" if disk else "none", peaks[case] / (1 << 20),
                     report["device_peak_bytes"] / (1 << 20), report["spill_bytes"] / (1 << 20), report["repeats"], median,
                     median / in_core])
        print(*(f"{cell:.3f}" if isinstance(cell, float) else cell for cell in rows[-1]), flush=True)
    columns = [recording.column("memory limit", "MiB", 0), recording.column("disk"),
               recording.column("process, most", "MiB", 0), recording.column("tensors", "MiB", 0),
               recording.column("on disk", "MiB", 0), recording.column("launches run again"),
               recording.column("step", "s", 3, "median"), recording.column("over no limit", digits=2)]
    conditions = f"{arguments.rounds} runs of {arguments.steps} counted steps each, in turn; losses have the same bits"
    if grouped[True] and not grouped[False]:
        conditions += "; each limited run in a control group of its limit plus 5 %"
    recording.save(arguments.output, "memory-limit", "Training within a limit on the process",
                   [recording.table("steps", columns, rows)], conditions=conditions)


if __name__ == "__main__":
    main()
