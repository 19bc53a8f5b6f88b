#!/usr/bin/env python3
"""Architectures of transformers and torchvision, exported by both of PyTorch's exporters: outputs, training, time and memory.

    cargo build --release
    python3 benches/architectures.py            # needs: pip install torch torchvision transformers onnx onnxscript numpy

Each network has small random weights. Both exporters write it as ONNX with their defaults, with open batch and text sizes if they can,
otherwise with fixed ones. `forebay run` must give the same logits as PyTorch, at two sizes if sizes are open. Then `forebay train` and
PyTorch take the same SGD steps on the same data, and their losses must agree. If sizes are open, the second batch is smaller. Networks with
batch normalization are exported again for training, because they compute something else there, and without dynamo's optimizer, which folds
the normalizations into convolutions. The same applies to networks that train differently because of what it folds. The table lists
failures with their reasons; the command exits with 0, since finding failures is its purpose.
"""
import argparse
import json
import multiprocessing
import os
import re
import subprocess
import tempfile
import time
import warnings

import numpy as np
import onnx
import torch
import torch.nn.functional as F
import torchvision
import transformers

import architecture_models
import recording

EXPORTERS = ("TorchScript", "dynamo")
OPSET = 18
# Open sizes, with attention written out, as transformers advise if an exporter cannot write the fused form.
EAGER = "open, eager attention"
# By whether a network normalizes batches: small weights before a normalization have steep gradients.
LEARNING_RATES = {False: 0.01, True: 0.001}
# Losses agree with PyTorch's losses in float64 if they differ by at most this fraction, or by at most this many times the
# difference of PyTorch's own losses in float32: statistics of small batches amplify rounding.
LOSS_TOLERANCE = 1e-4
ROUNDING = 4
# Logits agree if they differ by at most this fraction of the largest.
OUTPUT_TOLERANCE = 1e-3
# One of our processes that takes longer has failed.
LIMIT_SECONDS = 300


class Failed(Exception):
    """Why a network has no figures."""


class LossesDiffer(Failed):
    """A network that trains differently than in PyTorch."""


def reason(error):
    """An exception in one line: the original one, if others were raised from it."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(re.sub("\\x1b\\[[0-9;]*m", "", str(error)).split())
    return f"{type(error).__name__}: {text[:300]}"


def in_child(function, *arguments):
    """The result of a function called in a separate process, which isolates its memory, its crashes and its output."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def body():
        warnings.simplefilter("ignore")
        nothing = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nothing, stream)
        try:
            sender.send((True, function(*arguments)))
        except BaseException as error:  # exporters raise all kinds of exceptions
            sender.send((False, reason(error)))

    process = context.Process(target=body)
    process.start()
    sender.close()
    try:
        good, result = receiver.recv() if receiver.poll(LIMIT_SECONDS) else (False, f"took over {LIMIT_SECONDS} s")
    except EOFError:
        good, result = False, "the process ended early"
    if not good:
        process.kill()
    process.join()
    if not good:
        raise Failed(result)
    return result


def kept(arguments, folder, name, function, *rest):
    """The result of a function in a separate process, or why it fails; with --reuse, what an earlier run recorded of it."""
    path = os.path.join(folder, f"{name}.json")
    if arguments.reuse and os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            good, result = json.load(file)
    else:
        try:
            good, result = True, in_child(function, *rest)
        except Failed as error:
            good, result = False, str(error)
        with open(path, "w", encoding="utf-8") as file:
            json.dump([good, result], file)
    if not good:
        raise Failed(result)
    return result


def is_text(name, value):
    """Whether the second size of an input is a length."""
    return value.dim() >= 2 and name.endswith(("input_ids", "attention_mask", "bbox"))


def batches(name):
    """Inputs in three sizes: unchanged; with more and longer examples; and as a data set of one batch and a smaller batch."""
    _, inputs = architecture_models.build(name)
    count = len(next(iter(inputs.values())))
    more = {key: torch.cat([value, value[:1]]) for key, value in inputs.items()}
    longer = {key: torch.cat([value, value[:, :4]], dim=1) if is_text(key, value) else value for key, value in more.items()}
    torch.manual_seed(1)
    network = architecture_models.NETWORKS[name]
    other = network.inputs()
    both = {key: torch.cat([value, other[key][:max(count // 2, 1)]]) for key, value in inputs.items()}
    return inputs, longer, both


def references(name, folder, threads):
    """Writes inputs, logits and labels; returns whether training computes something other than evaluation, the batch size and the
    number of examples."""
    torch.set_num_threads(threads)
    module, inputs = architecture_models.build(name)
    axis = architecture_models.NETWORKS[name].class_axis
    _, longer, both = batches(name)
    for key, value in (("inputs", inputs), ("longer", longer)):
        with torch.no_grad():
            np.save(os.path.join(folder, f"{key}.logits.npy"), module(*value.values()).numpy())
        np.savez(os.path.join(folder, f"{key}.npz"), **{key: array.numpy() for key, array in value.items()})
    with torch.no_grad():
        shape = list(module(*both.values()).shape)
    classes = shape.pop(axis)
    labels = np.random.RandomState(0).randint(0, classes, shape)
    count = len(next(iter(inputs.values())))
    arrays = {key: value.numpy() for key, value in both.items()}
    np.savez(os.path.join(folder, "data.npz"), **arrays, y=labels)
    np.savez(os.path.join(folder, "batch.npz"), **{key: array[:count] for key, array in arrays.items()}, y=labels[:count])
    return architecture_models.normalizes_batches(module), count


def export(name, exporter, path, for_training, sizes):
    """Writes a network as ONNX."""
    module, inputs = architecture_models.build(name)
    open_sizes = sizes != "fixed"
    if sizes == EAGER:
        module.network.set_attn_implementation("eager")
    training = for_training and architecture_models.normalizes_batches(module)
    module.train(training)
    values = tuple(inputs.values())
    options = {"input_names": list(inputs), "output_names": ["logits"], "opset_version": OPSET}
    if exporter == "dynamo":
        if open_sizes:
            free = torch.export.Dim.DYNAMIC
            options["dynamic_shapes"] = (tuple({0: free, 1: free} if is_text(key, value) else {0: free} for key, value in inputs.items()),)
        # Its optimizer folds normalizations into convolutions, and parameters into values computed from them, even if they are to be
        # trained.
        torch.onnx.export(module, values, path, dynamo=True, verbose=False, optimize=not for_training, **options)
        return
    if open_sizes:
        options["dynamic_axes"] = {key: {0: "batch", 1: f"length_{key}"} if is_text(key, value) else {0: "batch"}
                                   for key, value in inputs.items()}
    mode = torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL
    torch.onnx.export(module, values, path, dynamo=False, training=mode, do_constant_folding=False, **options)


def torch_steps(name, folder, data, batch, steps, threads, kind=torch.float32):
    """Losses, seconds of the best whole step but the first, and the peak memory in bytes, of SGD in PyTorch."""
    torch.set_num_threads(threads)
    module, inputs = architecture_models.build(name)
    module.to(kind)
    with np.load(os.path.join(folder, data)) as arrays:
        read = {key: torch.from_numpy(arrays[key]) for key in arrays.files}
    all_labels = read.pop("y")
    read = {key: read[key].to(kind) if read[key].is_floating_point() else read[key] for key in inputs}
    normalizes = architecture_models.normalizes_batches(module)
    module.train(normalizes)
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATES[normalizes])
    axis = architecture_models.NETWORKS[name].class_axis
    losses, seconds = [], []
    begins = list(range(0, len(all_labels), batch))
    for step in range(steps):
        first = begins[step % len(begins)]
        labels, part = all_labels[first:first + batch], [value[first:first + batch] for value in read.values()]
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(module(*part).movedim(axis, 1), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step > 0 and len(labels) == batch:
            seconds.append(time.perf_counter() - start)
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM:"))
    return losses, min(seconds), peak


def forebay(command, folder):
    """The report of a command with --json; messages omit the folder of its files."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"forebay {command[1]}: took over {LIMIT_SECONDS} s") from error
    if done.returncode != 0:
        # Records reject everything that looks like a path, and node names do.
        message = " ".join(done.stderr.replace(folder + os.sep, "").replace("'/", "'").split())[:500]
        raise Failed(f"forebay {command[1]}: {message or f'ended with {done.returncode}'}")
    return json.loads(done.stdout)


def compare_logits(arguments, model, folder, inputs):
    """The largest difference of the logits, over the largest logit."""
    with tempfile.TemporaryDirectory() as results:
        forebay([arguments.forebay, "run", model, "--inputs", os.path.join(folder, f"{inputs}.npz"), "--output-dir", results, "--threads",
                 str(arguments.threads), "--json"], folder)
        found, expected = np.load(os.path.join(results, "logits.npy")), np.load(os.path.join(folder, f"{inputs}.logits.npy"))
    if found.shape != expected.shape:
        raise Failed(f"forebay run: logits have the shape {found.shape}, not {expected.shape}")
    difference = float(np.max(np.abs(found.astype(np.float64) - expected)) / np.max(np.abs(expected)))
    if not difference <= OUTPUT_TOLERANCE:
        raise Failed(f"forebay run: logits differ by {difference:.1e} of the largest")
    return difference


def buffers(name, model):
    """Names of the tensors that the network holds and does not train: buffers, which look like weights in a TorchScript file, and
    parameters without gradients, such as position tables, which do so in both."""
    module, _ = architecture_models.build(name)
    held = {key for key, value in module.named_buffers() if value.is_floating_point() and not key.split(".")[-1].startswith("running_")}
    held |= {key for key, value in module.named_parameters() if not value.requires_grad}
    return sorted(held & {weights.name for weights in onnx.load(model, load_external_data=False).graph.initializer})


def compare_losses(arguments, name, model, folder, data, batch, rate, expected, tolerance):
    """The largest relative difference of losses, seconds of the best whole step but the first, and the peak memory in bytes."""
    of_model = f"{os.path.basename(model)}.buffers"
    frozen = [word for buffer in kept(arguments, folder, of_model, buffers, name, model) for word in ("--freeze", buffer)]
    report = forebay([arguments.forebay, "train", model, "--data", os.path.join(folder, data), "--class-axis",
                      str(architecture_models.NETWORKS[name].class_axis), "--batch-size", str(batch), "--steps", str(arguments.steps),
                      "--learning-rate", str(rate), "--threads", str(arguments.threads), "--no-compare", "--json", *frozen], folder)
    losses = [step["loss"] for step in report["steps"]]
    difference = furthest(losses, expected)
    if not difference <= tolerance:
        raise LossesDiffer(f"forebay train: losses {', '.join(f'{loss:.6f}' for loss in losses)}; PyTorch's "
                     f"{', '.join(f'{loss:.6f}' for loss in expected)}")
    return difference, min(step["seconds"] for step in report["steps"][2::2]), report["resident_peak_bytes"]


def furthest(losses, expected):
    """The largest difference of losses, over the loss, or over 1 if that is more than the loss."""
    return max(abs(found - wanted) / max(abs(wanted), 1) for found, wanted in zip(losses, expected, strict=True))


def works_elsewhere(model, folder, inputs):
    """Whether ONNX Runtime computes the logits; an exporter may write sizes as numbers although it was told that they are open."""
    import onnxruntime  # only needed after a failure
    with np.load(os.path.join(folder, f"{inputs}.npz")) as arrays:
        given = dict(arrays)
    expected = np.load(os.path.join(folder, f"{inputs}.logits.npy"))
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    found = session.run(["logits"], {value.name: given[value.name] for value in session.get_inputs()})[0]
    return found.shape == expected.shape and bool(np.max(np.abs(found - expected)) <= OUTPUT_TOLERANCE * np.max(np.abs(expected)))


def are_open(arguments, model, folder):
    """Whether a file works for sizes other than those with which it was exported."""
    try:
        compare_logits(arguments, model, folder, "longer")
        return True
    except Failed:
        try:
            return in_child(works_elsewhere, model, folder, "longer")
        except Failed:
            return False


def exported(arguments, name, exporter, folder, for_training, choices=("open", EAGER, "fixed")):
    """The file of an exported network, and the kind of its sizes."""
    failures = []
    for sizes in choices:
        path = os.path.join(folder, f"{exporter}{'-training' if for_training else ''}{'-fixed' if sizes == 'fixed' else ''}.onnx")
        try:
            kept(arguments, folder, f"{os.path.basename(path)}.{sizes}", export, name, exporter, path, for_training, sizes)
            return path, sizes
        except Failed as error:
            failures.append(error)
    raise Failed(f"export: {failures[0]}")


class Expected:
    """PyTorch's losses in float64 and float32 on a data set."""

    def __init__(self, arguments, name, folder, data, batch):
        steps = (name, folder, data, batch, arguments.steps, arguments.threads)
        single, self.seconds, self.peak = kept(arguments, folder, f"{data}.float32", torch_steps, *steps)
        try:
            self.losses, _, _ = kept(arguments, folder, f"{data}.float64", torch_steps, *steps, torch.float64)
        except Failed:  # some networks compute in only one type
            self.losses = single
        self.rounding = furthest(single, self.losses)
        self.data = data


def rows_of(arguments, name, folder):
    """Prints and yields a row for each exporter."""
    kind = architecture_models.NETWORKS[name].kind
    references_of = {}
    try:
        normalizes, batch = kept(arguments, folder, "references", references, name, folder, arguments.threads)
    except Failed as error:
        print(f"{name}: PyTorch: {error}", flush=True)
        yield [name, kind, *[None] * 9, f"PyTorch: {error}"]
        return
    for exporter in arguments.exporters:
        sizes = logits = losses = seconds = peak = expected = None
        failures = []
        try:
            model, sizes = exported(arguments, name, exporter, folder, False)
            if sizes != "fixed" and not are_open(arguments, model, folder):
                model, sizes = exported(arguments, name, exporter, folder, False, ("fixed",))
            choices = tuple(dict.fromkeys((sizes, "fixed")))
            try:
                logits = max(compare_logits(arguments, model, folder, inputs)
                             for inputs in (("inputs",) if sizes == "fixed" else ("inputs", "longer")))
            except Failed as error:
                failures.append(str(error))
            if normalizes:
                model, sizes = exported(arguments, name, exporter, folder, True, choices)
            if sizes not in references_of:
                references_of[sizes] = Expected(arguments, name, folder, "batch.npz" if sizes == "fixed" else "data.npz", batch)
            expected = references_of[sizes]
            rest = (folder, expected.data, batch, LEARNING_RATES[normalizes], expected.losses,
                    max(LOSS_TOLERANCE, ROUNDING * expected.rounding))
            try:
                losses, seconds, peak = compare_losses(arguments, name, model, *rest)
            except LossesDiffer:
                if exporter != "dynamo" or normalizes:
                    raise
                model, sizes = exported(arguments, name, exporter, folder, True, choices)
                losses, seconds, peak = compare_losses(arguments, name, model, *rest)
                sizes += ", optimize=False"
        except Failed as error:
            failures.append(str(error))
        mib = lambda bytes: bytes and bytes / (1 << 20)
        theirs = [expected.rounding, seconds, expected.seconds, mib(peak), mib(expected.peak)] if expected else [None] * 5
        yield [name, kind, exporter, sizes, logits, losses, *theirs, "; ".join(failures) or None]
        show = lambda value, form: "-" if value is None else format(value, form)
        print(f"{name:22} {exporter:12} {show(sizes, ''):6} logits {show(logits, '.1e'):8} losses {show(losses, '.1e'):8} "
              f"(PyTorch {show(theirs[0], '.1e')}) {show(seconds, '.4f')} s, PyTorch {show(theirs[2], '.4f')} s; "
              f"{show(mib(peak), '.0f')} MiB, PyTorch {show(theirs[4], '.0f')} MiB {'; '.join(failures)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    recording.add_program(parser)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(architecture_models.NETWORKS), help="these networks only")
    parser.add_argument("--exporters", nargs="+", choices=EXPORTERS, default=EXPORTERS)
    parser.add_argument("--steps", type=int, default=3, help="steps of training, at least three [default: 3]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--keep", metavar="FOLDER", help="keep exported networks and data there")
    parser.add_argument("--reuse", action="store_true", help="take networks, data and PyTorch's figures from the folder of --keep, if "
                        "it has them")
    parser.add_argument("--list", action="store_true", help="list the networks and exit")
    recording.add_output(parser)
    arguments = parser.parse_args()
    if arguments.list:
        for name, network in architecture_models.NETWORKS.items():
            print(f"{name:24} {network.kind}")
        return
    if arguments.steps < 3:
        parser.error("--steps: the first step is not timed, and the second may be a smaller one, so at least three are needed")
    if arguments.reuse and not arguments.keep:
        parser.error("--reuse: name the folder of an earlier run with --keep")
    recording.check_program(parser, arguments.forebay)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in arguments.only or architecture_models.NETWORKS:
            folder = os.path.join(arguments.keep or temporary, name)
            os.makedirs(folder, exist_ok=True)
            rows += rows_of(arguments, name, folder)
    good = sum(row[-1] is None for row in rows)
    print(f"{good} of {len(rows)} exported networks agree with PyTorch in logits and losses")
    columns = [recording.column("network"), recording.column("kind"), recording.column("exporter"), recording.column("sizes"),
               recording.column("logits differ by"), recording.column("losses differ by"),
               recording.column("PyTorch's own differ by"), recording.column("step", "s", 4, "best"),
               recording.column("step, PyTorch", "s", 4, "best"), recording.column("process", "MiB", 0),
               recording.column("process, PyTorch", "MiB", 0), recording.column("failure")]
    recording.save(arguments.output, "architectures", "Architectures of transformers and torchvision, run and trained",
                   [recording.table("architectures", columns, rows)],
                   software={"PyTorch": torch.__version__, "torchvision": torchvision.__version__,
                             "transformers": transformers.__version__},
                   conditions=f"{arguments.threads} threads each; {arguments.steps} steps of SGD at {LEARNING_RATES[False]}, or "
                              f"{LEARNING_RATES[True]} for networks that normalize batches; "
                              "differences are relative, of losses to PyTorch in float64; "
                              "PyTorch's memory includes its libraries")


if __name__ == "__main__":
    main()
