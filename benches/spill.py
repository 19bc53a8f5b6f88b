#!/usr/bin/env python3
"""One training step whose tensors fit neither the device nor the host, in a process with little memory.

    cargo build --release
    python3 benches/spill.py MODEL.onnx DATA [--device-memory 1.25GiB --host-memory 256MiB --process-memory 2GiB]

Trains a step without budgets, and the same step with both budgets and a folder for the rest. The second runs in a separate memory
control group without swap: the system itself ensures that device memory, host memory, planning and copies of files together stay
within --process-memory. Both must give the same loss and the same saved model, byte for byte. Needs the right to create control
groups (version 2, or 1); without it, the peak of the process's memory is sampled instead.
"""
import argparse
import hashlib
import json
import os
import subprocess
import tempfile
import time

import recording

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def size(text):
    """The bytes in a size such as 1.25GiB."""
    unit = UNITS.get(text[-3:])
    return int(float(text[:-3]) * unit) if unit else int(text)


def mib(size_bytes):
    return f"{size_bytes / (1 << 20):.0f} MiB"


class Group:
    """A control group for one process."""

    def __init__(self, folder, limit, files):
        self.folder = folder
        os.mkdir(folder)
        for name, value in files(limit):
            path = os.path.join(folder, name)
            if os.path.exists(path):
                with open(path, "w") as file:
                    file.write(value)

    def enter(self):
        with open(os.path.join(self.folder, "cgroup.procs"), "w") as file:
            file.write(str(os.getpid()))

    def read(self, *names):
        for name in names:
            path = os.path.join(self.folder, name)
            if os.path.exists(path):
                with open(path) as file:
                    return file.read()
        return None

    def close(self):
        os.rmdir(self.folder)


def group(limit):
    """A group with a limit and without swap, and its description; none if the machine cannot provide one."""
    name = f"forebay-spill-{os.getpid()}"
    second = lambda limit: [("memory.max", str(limit)), ("memory.swap.max", "0")]
    first = lambda limit: [("memory.limit_in_bytes", str(limit)), ("memory.memsw.limit_in_bytes", str(limit))]
    for version, parent, file, files in ((2, "/sys/fs/cgroup", "memory.max", second),
                                         (1, "/sys/fs/cgroup/memory", "memory.limit_in_bytes", first)):
        folder = os.path.join(parent, name)
        try:
            made = Group(folder, limit, files)
        except OSError:
            continue
        if os.path.exists(os.path.join(folder, file)):
            return made, f"version {version}, {file} = {limit}, no swap"
        made.close()
    return None, "no control groups"


def resident(pid):
    """The resident bytes of a process, including its mapped heaps."""
    try:
        with open(f"/proc/{pid}/status") as file:
            lines = [line.split() for line in file if line.startswith("VmRSS:")]
        return int(lines[0][1]) * 1024 if lines else 0
    except OSError:
        return 0


def train(arguments, save, options, limited=None):
    """Trains; returns the report, the seconds, and the most resident bytes observed."""
    command = [arguments.binary, "train", arguments.model, "--data", arguments.data, "--steps", str(arguments.steps),
               "--learning-rate", "0.01", "--momentum", "0.9", "--threads", str(arguments.threads), "--save", save,
               "--no-compare", "--json"] + options
    start, peak = time.time(), 0
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, preexec_fn=limited.enter if limited else None)
        while process.poll() is None:
            peak = max(peak, resident(process.pid))
            time.sleep(0.05)
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(command)}\nended with {process.returncode}")
        output.seek(0)
        return json.load(output), time.time() - start, peak


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--binary", default=os.path.join(recording.ROOT, "target", "release", "forebay"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--device-memory", default="1.25GiB")
    parser.add_argument("--host-memory", default="256MiB")
    parser.add_argument("--process-memory", default="2GiB")
    parser.add_argument("--spill-dir", default=".")
    recording.add_output(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("whole.onnx", "spilled.onnx")]
        runs, most = [], None
        whole, seconds, peak = train(arguments, paths[0], [])
        runs.append(["none", seconds, peak / (1 << 20), whole["seconds_median"], whole["steps"][-1]["loss"]])
        print(f"without budgets     {seconds:.1f} s, resident at most {mib(peak)}, "
              f"step {whole['seconds_median']:.2f} s, loss {whole['steps'][-1]['loss']!r}")
        limited, kind = group(size(arguments.process_memory))
        options = ["--device-memory", arguments.device_memory, "--host-memory", arguments.host_memory,
                   "--spill-dir", arguments.spill_dir]
        before = set(os.listdir(arguments.spill_dir))
        try:
            spilled, seconds, peak = train(arguments, paths[1], options, limited)
            budgets = f"{arguments.device_memory} on the device, {arguments.host_memory} on the host"
            runs.append([budgets, seconds, peak / (1 << 20), spilled["seconds_median"], spilled["steps"][-1]["loss"]])
            print(f"with them           {seconds:.1f} s, resident at most {mib(peak)}, "
                  f"step {spilled['seconds_median']:.2f} s, loss {spilled['steps'][-1]['loss']!r}")
            print(f"control group       {kind}")
            if limited:
                most = limited.read("memory.peak", "memory.max_usage_in_bytes")
                print(f"  most at once      {mib(int(most)) if most else 'not reported'}, copies of files included")
        finally:
            if limited:
                limited.close()
        keys = {"device peak": "device_peak_bytes", "host": "host_bytes", "spilled": "spill_bytes",
                "to disk": "bytes_to_disk", "from disk": "bytes_from_disk"}
        print("  " + ", ".join(f"{name} {mib(spilled[key])}" for name, key in keys.items()))
        print(f"  {spilled['stall_seconds']:.2f} s of the step without a kernel running")
        same = [step["loss"] for step in whole["steps"]] == [step["loss"] for step in spilled["steps"]]
        digests = [digest(path) for path in paths]
        print(f"losses              {'the same' if same else 'DIFFERENT'}")
        print(f"saved models        {'the same' if digests[0] == digests[1] else 'DIFFERENT'}, sha256 {digests[1]}")
        left = set(os.listdir(arguments.spill_dir)) - before
        print(f"left in the folder  {sorted(left) or 'nothing'}")
        outcome = lambda holds: "the same" if holds else "DIFFERENT"
        mebibytes = lambda name: recording.column(name, "MiB", 0)
        recording.save(arguments.output, "spill", "A step whose tensors fit neither the device nor the host", [
            recording.table("runs", [recording.column("budgets"), recording.column("whole run", "s", 1),
                                     mebibytes("most resident"), recording.column("step", "s", 2, "median"),
                                     recording.column("loss")], runs),
            recording.table("memory", [mebibytes("most in the control group"), *map(mebibytes, keys),
                                       recording.column("without a kernel running", "s", 2)],
                            [[int(most) / (1 << 20) if most else None, *(spilled[key] / (1 << 20) for key in keys.values()),
                              spilled["stall_seconds"]]]),
            recording.table("same", [recording.column("what is compared"), recording.column("result")],
                            [["losses", outcome(same)],
                             ["saved models", f"{outcome(digests[0] == digests[1])}, sha256 {digests[1]}"],
                             ["left in the folder", ", ".join(sorted(left)) or "nothing"]]),
        ], conditions=f"control group: {kind}; {arguments.threads} threads")
        if not same or digests[0] != digests[1] or left:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
