#!/usr/bin/env python3
"""Matrix products of sizes that occur in networks, next to NumPy's BLAS library (OpenBLAS in its wheels), on one thread.

    python3 benches/products.py                 # needs: pip install numpy

`cargo bench -p forebay-device --bench products` defines the sizes and measures Forebay. Both programs take turns at measuring the same few
products, because a machine may be slower for seconds at a time. The best time of each product counts.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time

# Before NumPy is loaded.
os.environ.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", OMP_NUM_THREADS="1")

import numpy as np  # noqa: E402

import recording  # noqa: E402

# Repetitions of a measurement end after this time, or this number, as in the Rust bench.
SECONDS_MAX = 0.4
RUNS_MAX = 40


def forebay(*arguments):
    """The output of the bench."""
    call = ["cargo", "bench", "--quiet", "--package", "forebay-device", "--bench", "products", "--", *arguments]
    done = subprocess.run(call, cwd=recording.ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(call)}\n{done.stderr}")
    return done.stdout


def turns(name):
    """The prefixes of the product names in each turn, for all products or for those with this in their names: "BERT, up projection, by the
    first" is in the turn of "BERT, up projection"."""
    names = dict.fromkeys(", ".join(line.split(", ")[:2]) for line in forebay("--list", *([name] if name else [])).splitlines())
    return [name for name in names if name.split(", ")[0] not in names or ", " not in name]


def forebay_rows(name):
    """Rows of the bench's table for products with this in their names."""
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "record.json")
        forebay(name, "--output", output)
        with open(output, encoding="utf-8") as file:
            return json.load(file)["tables"][0]["rows"]


def blas_seconds(batches, m, k, n, transposed):
    """The best time of NumPy's product."""
    def matrix(rows, columns, is_transposed):
        stored = np.full((batches, columns, rows) if is_transposed else (batches, rows, columns), 0.5, np.float32)
        return stored.transpose(0, 2, 1) if is_transposed else stored

    a, b = matrix(m, k, transposed in ("first", "both")), matrix(k, n, transposed in ("second", "both"))
    c = np.empty((batches, m, n), np.float32)
    best, begin = math.inf, time.perf_counter()
    for number in range(RUNS_MAX):
        if number >= 3 and time.perf_counter() - begin > SECONDS_MAX:
            break
        start = time.perf_counter()
        np.matmul(a, b, out=c)
        best = min(best, time.perf_counter() - start)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", help="only products with this in their names")
    parser.add_argument("--rounds", type=int, default=3, help="how often the programs take turns [default: 3]")
    parser.add_argument("--busy", action="store_true", help="note in the record that other work kept the machine busy")
    recording.add_output(parser)
    arguments = parser.parse_args()
    best, peer = {}, {}
    names = turns(arguments.name)
    for number in range(arguments.rounds):
        for turn in names:
            print(f"round {number + 1} of {arguments.rounds}: {turn}", file=sys.stderr)
            for name, *sizes, milliseconds, _ in forebay_rows(turn):
                key = (name, *sizes)
                best[key] = min(best.get(key, math.inf), milliseconds / 1e3)
                peer[key] = min(peer.get(key, math.inf), blas_seconds(*key[1:]))
    rows = []
    for key, seconds in best.items():
        name, batches, m, k, n, transposed = key
        speed = 2 * batches * m * k * n / seconds / 1e9
        rows.append([name, batches, m, k, n, transposed, seconds * 1e3, peer[key] * 1e3, seconds / peer[key], speed])
        print(f"{name:36} {batches:3} x {m:5} x {k:5} x {n:5} {transposed:6} {seconds * 1e3:9.3f} ms, BLAS {peer[key] * 1e3:9.3f} ms "
              f"({seconds / peer[key]:.2f})", flush=True)
    ratios = sorted(row[8] for row in rows)
    whole = [["geometric mean", math.exp(sum(map(math.log, ratios)) / len(ratios))], ["median", ratios[len(ratios) // 2]],
             ["largest", ratios[-1]], ["share within 1.05", sum(ratio <= 1.05 for ratio in ratios) / len(ratios)]]
    for what, value in whole:
        print(f"{what}: {value:.2f}")
    columns = [recording.column("product"), *(recording.column(name) for name in ("batches", "m", "k", "n", "transposed")),
               recording.column("time", "ms", 3, "best"), recording.column("BLAS", "ms", 3, "best"), recording.column("over it", digits=2),
               recording.column("speed", "GFLOP/s", 0)]
    recording.save(arguments.output, "products-peer", "Matrix products next to a BLAS library",
                   [recording.table("all", [recording.column("ratios of times"), recording.column("value", digits=2)], whole),
                    recording.table("products", columns, rows)],
                   software={"NumPy": np.__version__, **blas_library()},
                   conditions=f"one thread; the programs take turns, {arguments.rounds} rounds"
                              f"{'; other work kept the machine busy' if arguments.busy else ''}")


def blas_library():
    """Name and version of the library that NumPy uses."""
    found = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {found["name"]: found["version"]}


if __name__ == "__main__":
    main()
