#!/usr/bin/env python3
"""Replays every batch size and machine for which the artifact of G10 (MICRO 2023) has published times, and compares the times.

    git clone https://github.com/platformxlab/G10
    cargo build --release
    python3 benches/g10.py G10 [--filter bert-b256,host16] [--traces FOLDER]

Builds the artifact's simulator (needs g++, make, flex with libfl, and bison), lets it write the graph of each network at each
batch size, and turns the graph into a trace with the times and workspaces that the artifact measured, in the format that `forebay
replay` reads. Then it replays all traces: on the artifact's machine (40 GiB, 128 GiB on the host, a link of 15.754 GB/s, an SSD of
3.2 GB/s), with less memory on the host, and with faster SSDs. Prints times over ideal: the lower bound, ours, demand LRU and
G10's own. A row is marked "over" if ours is above G10's, or above 1.05 and 1.02 times the bound.

The checkout is built in place; nothing from it is copied into this repository.
"""
import argparse
import gzip
import json
import os
import re
import subprocess
import tempfile
import time

import recording

FOREBAY = os.path.join(recording.ROOT, "target", "release", "forebay")

# By network: the artifact's names for it, for its results and for its published tables, lines of its configuration, and the batch
# sizes that it measured.
NETWORKS = {
    "bert": ("BERT_Base", "BERT_Base", "bert", "is_transformer 1\ntrans_borden 210", (128, 256, 384, 512, 640, 768, 1024)),
    "vit": ("VIT", "VIT", "vit", "is_transformer 1\ntrans_borden 184", (256, 512, 768, 1024, 1280, 1536)),
    "inceptionv3": ("Inceptionv3", "Inceptionv3", "inception", "is_inception 1",
                    (512, 768, 1024, 1152, 1280, 1536, 1792)),
    "resnet152": ("ResNet152", "ResNet152", "resnet", "is_resnet 1", (256, 512, 768, 1024, 1280, 1536)),
    "senet154": ("SENet154", "SENet154", "senet", "is_senet 1", (256, 512, 768, 1024)),
}
# The batch sizes of the published times with faster SSDs.
SSD_BATCHES = {"bert": 512, "vit": 1280, "inceptionv3": 1536, "resnet152": 1280, "senet154": 1024}
MACHINE = {
    "device_memory_bytes": 40 << 30,
    "link_bytes_per_s": 15_754_000_000,
    "ssd_bytes_per_s": 3_200_000_000,
    "host_memory_bytes": 128 << 30,
}
PAGE_BYTES = 4096
CYCLES_PER_NS = 1.2
TENSOR = re.compile(r"tensor(\d+) Is weight \(global\)\?: (\d), Size in byte: (\d+)")
KERNEL = re.compile(r"Kernel ID: \d+, Name: (\S+)")


def pages(size_bytes):
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


class Artifact:
    """A built checkout of the artifact."""

    def __init__(self, folder):
        self.source = os.path.join(folder, "src")
        self.results = os.path.join(folder, "results")
        self.published = os.path.join(folder, "example_results")
        self.networks = os.path.join(folder, "frontend", "Nets")
        subprocess.run(["make"], cwd=self.source, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def dump(self, network, batch, folder):
        """Lets the simulator write tensors and kernels, and stops it before the simulation."""
        name, results, _, lines, _ = NETWORKS[network]
        side = 299 if network == "inceptionv3" else 224
        times = os.path.join(self.results, results, f"cudnn{batch}")
        description = os.path.join(self.networks, f"{name}.txt")
        config = os.path.join(folder, "config")
        with open(config, "w") as file:
            file.write(
                f"output_folder {folder}/out\nis_simulation 1\n{lines}\nbatch_size {batch}\n"
                f"input_H {side}\ninput_W {side}\nnum_iteration 2\nnum_threads 128\nnn_model_input_file {description}\n"
                f"orig_kernel_time_file {times}.txt\npf_kernel_time_file {times}PF.txt\n"
                f"input_pf_kernel_time_file {times}InputPF.txt\nworkspace_size_file {times}Workspace.txt\n"
                "stat_output_file sim_result\nis_UVM 1\nuse_prefetch 1\neviction_policy LRU\nsystem_latency_us 45\n"
                "CPU_PCIe_bandwidth_GBps 15.754\nCPU_memory_line_GB 128\nGPU_memory_size_GB 40\nGPU_frequency_GHz 1.2\n"
                "GPU_PCIe_bandwidth_GBps 15.754\nGPU_malloc_uspB 0.000000814\nGPU_free_uspB 0\n"
                "SSD_PCIe_bandwidth_GBps 3.2\nSSD_read_latency_us 12\nSSD_write_latency_us 16\nSSD_latency_us 20\n"
                "PCIe_latency_us 5\nPCIe_batch_size_page 50\ndelta_parameter 0.5\n")
        statistics = os.path.join(folder, "out", "statistics")
        # It writes this file after the two that are needed.
        written = os.path.join(statistics, "interval.config")
        with open(description) as stdin:
            process = subprocess.Popen(["./gpg", config], cwd=self.source, stdin=stdin, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)
            while process.poll() is None and not (os.path.exists(written) and os.path.getsize(written) > 0):
                time.sleep(0.1)
            process.kill()
            process.wait()
        return os.path.join(statistics, "tensors.config"), os.path.join(statistics, "kernels.config")

    def measured(self, network, batch):
        """By kernel: nanoseconds, and bytes of workspace."""
        path = os.path.join(self.results, NETWORKS[network][1], f"cudnn{batch}")
        with open(f"{path}.txt") as times, open(f"{path}Workspace.txt") as workspaces:
            durations = [round(float(line.split()[1]) * 1e6) for line in times if line.strip()]
            return durations, [int(line.split()[1]) for line in workspaces if line.strip()]

    def table(self, kind, network):
        """Rows of a published table: the names in its first line, and the values below it by row name."""
        with open(os.path.join(self.published, kind, f"{NETWORKS[network][2]}.txt")) as file:
            names, *rows = [line.strip() for line in file if line.strip()]
        return [name.strip() for name in names.split("|")], list(zip(rows[::2], (row.split() for row in rows[1::2])))


def graph(artifact, network, batch):
    """Lines of a trace after its header."""
    with tempfile.TemporaryDirectory() as folder:
        tensors_file, kernels_file = artifact.dump(network, batch, folder)
        tensors, kernels = {}, []
        with open(tensors_file) as file:
            for found in filter(None, map(TENSOR.match, file)):
                tensors[int(found[1])] = (int(found[3]), found[2] == "1")
        with open(kernels_file) as file:
            for line in file:
                if found := KERNEL.match(line):
                    kernels.append({"name": found[1], "reads": set(), "writes": set()})
                elif line.startswith(("Input", "Output")):
                    side = "reads" if line.startswith("Input") else "writes"
                elif found := TENSOR.match(line):
                    kernels[-1][side].add(int(found[1]))
    durations, workspaces = artifact.measured(network, batch)
    users = {}
    for index, kernel in enumerate(kernels):
        for tensor in kernel["reads"] | kernel["writes"]:
            users.setdefault(tensor, set()).add(index)
    # The artifact has a separate tensor for each workspace: the last one that its kernel writes.
    for index, (kernel, workspace) in enumerate(zip(kernels, workspaces)):
        if workspace:
            own = max(tensor for tensor in kernel["writes"] if users[tensor] == {index})
            assert pages(tensors[own][0]) == pages(workspace), (network, batch, index)
            kernel["writes"].remove(own)
            del tensors[own]
    numbers = {tensor: number for number, tensor in enumerate(sorted(tensors))}
    lines = [{"tensor": numbers[tensor], "size_bytes": pages(size), "persistent": persistent}
             for tensor, (size, persistent) in sorted(tensors.items())]
    for index, kernel in enumerate(kernels):
        named = {side: sorted(numbers[tensor] for tensor in kernel[side]) for side in ("reads", "writes")}
        lines.append({"kernel": index, "name": kernel["name"], "duration_ns": durations[index], **named,
                      "workspace_bytes": pages(workspaces[index])})
    return lines


def cases(artifact):
    """Every published case: network, batch, what differs in the machine, its name, and G10's cycles, if any."""
    less_host = []
    for network, (*_, batches) in NETWORKS.items():
        columns, rows = artifact.table("overall_batchsize", network)
        cycles = {int(batch): float(values[columns.index("prefetch_lru")]) for batch, values in rows}
        host_batches, rows = artifact.table("sensitivity_cpumem", network)
        for host, values in rows:
            for batch, value in zip(map(int, host_batches), map(float, values)):
                if int(host) << 30 == MACHINE["host_memory_bytes"]:
                    cycles.setdefault(batch, value)
                else:
                    machine = {"host_memory_bytes": int(host) << 30}
                    less_host.append((network, batch, machine, f"host{host}", value))
        for batch in batches:
            yield network, batch, {}, "", cycles.get(batch)
    yield from less_host
    for network, batch in SSD_BATCHES.items():
        columns, rows = artifact.table("sensitivity_ssdbw", network)
        for rate, values in rows:
            # These have a link of 32 GB/s.
            machine = {"ssd_bytes_per_s": int(float(rate) * 1e9), "link_bytes_per_s": 32_000_000_000}
            yield network, batch, machine, f"ssd{rate}", float(values[columns.index("prefetch_lru")])


def write(path, network, batch, machine, lines):
    kernels = [line for line in lines if "kernel" in line]
    header = {"model": network, "batch": batch, **MACHINE, **machine, "source": "github.com/platformxlab/G10",
              "format": "oocm-trace-1", "page_bytes": PAGE_BYTES, "tensors": len(lines) - len(kernels),
              "kernels": len(kernels), "total_duration_ns": sum(kernel["duration_ns"] for kernel in kernels)}
    with gzip.open(path, "wt", compresslevel=1) as file:
        for line in [header, *lines]:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", help="a checkout of G10")
    parser.add_argument("--filter", default="", help="only cases whose name begins with one of these, or has it behind the comma")
    parser.add_argument("--traces", help="keep the traces in this folder")
    recording.add_output(parser)
    options = parser.parse_args()
    artifact = Artifact(os.path.abspath(options.artifact))
    wanted = [word for word in options.filter.split(",") if word]
    folder = options.traces or tempfile.mkdtemp()
    os.makedirs(folder, exist_ok=True)
    graphs, over, count, rows = {}, 0, 0, []
    print("| trace | differs | lower bound | ours | demand LRU | G10 | runs again | seconds | |")
    print("|---|---|---|---|---|---|---|---|---|")
    for network, batch, machine, differs, cycles in cases(artifact):
        name = f"{network}-b{batch}"
        if wanted and name not in wanted and differs not in wanted:
            continue
        if (network, batch) not in graphs:
            graphs[network, batch] = graph(artifact, network, batch)
        path = os.path.join(folder, "-".join(filter(None, [name, differs])) + ".jsonl.gz")
        write(path, network, batch, machine, graphs[network, batch])
        start = time.monotonic()
        ran = subprocess.run([FOREBAY, "replay", path, "--json"], capture_output=True, text=True)
        seconds = time.monotonic() - start
        if not options.traces:
            os.remove(path)
        if ran.returncode != 0:
            print(f"| {name} | {differs} | {ran.stderr.strip()} |", flush=True)
            rows.append([name, differs, None, None, None, None, None, None, "failed"])
            continue
        found = json.loads(ran.stdout)
        ours, bound, lru = (found[key] for key in ("time_over_ideal", "bound_over_ideal", "lru_over_ideal"))
        peer = cycles / CYCLES_PER_NS / found["ideal_ns"] if cycles else None
        # The artifact drops the fraction of a cycle in each kernel's time.
        is_over = ours > max(1.05, 1.02 * bound) or peer is not None and ours > peer * 1.000001
        over, count = over + is_over, count + 1
        rows.append([name, differs, bound, ours, lru, peer, found["recomputed_kernels"], seconds, "over" if is_over else None])
        shown = ["" if value is None else f"{value:.4f}" for value in (bound, ours, lru, peer)]
        print(f"| {name} | {differs} | {' | '.join(shown)} | {found['recomputed_kernels']} | {seconds:.1f} "
              f"| {'over' if is_over else ''} |", flush=True)
    print(f"\n{count} cases, {over} of them over")
    ratio = lambda name: recording.column(name, digits=4)
    columns = [recording.column("trace"), recording.column("differs"), ratio("lower bound"), ratio("plan"), ratio("demand LRU"),
               ratio("G10"), recording.column("runs again", digits=0), recording.column("replay", "s", 1), recording.column("verdict")]
    counts = [recording.column("cases", digits=0), recording.column("over", digits=0)]
    recording.save(options.output, "g10", "Every batch size and machine of the artifact of G10",
                   [recording.table("cases", columns, rows), recording.table("counts", counts, [[count, over]])],
                   conditions="times over ideal; over: above G10's, or above 1.05 and 1.02 times the bound")


if __name__ == "__main__":
    main()
