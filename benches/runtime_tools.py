#!/usr/bin/env python3
"""Models written by ONNX Runtime's own tools: outputs next to ONNX Runtime's.

    cargo build --release
    python3 benches/runtime_tools.py            # needs: pip install torch torchvision transformers onnx onnxscript onnxruntime numpy

Networks from `benches/architecture_models.py`, and some kinds that are missing there (an LSTM; decoders with key and value caches), are
exported and then changed by the tools of ONNX Runtime: dynamic and static quantization, 4-bit weights, the transformer optimizer,
conversion to float16, and the model that a session writes after its own optimizations. ONNX Runtime runs each without further
optimizations; `forebay run` must give the same outputs. The table lists failures with their reasons; the command exits with 0.
"""
import argparse
import json
import logging
import multiprocessing
import os
import subprocess
import tempfile
import warnings

import numpy as np
import onnx
import onnxruntime
import torch
import transformers
from torch import nn

import architecture_models
import recording
import rounding

# Outputs agree if they differ by at most this fraction of the largest, for float16 and for models that round to integers on the way;
# or by little more than rounding may change.
TOLERANCE = {"float32": 1e-4, "float16": 5e-3, "integers": 1e-3}
LIMIT_SECONDS = 300
OPSET = 17


class Failed(Exception):
    """Why a model has no figures."""


class Tagger(nn.Module):
    """A recurrent network in both directions."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(64, 32)
        self.states = nn.LSTM(32, 48, 2, bidirectional=True, batch_first=True)
        self.tags = nn.Linear(96, 10)

    def forward(self, words):
        return self.tags(self.states(self.words(words))[0])


class WithCache(nn.Module):
    """A decoder that takes and returns the keys and values of earlier tokens."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, input_ids, *past):
        cache = transformers.DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        found = self.network(input_ids, past_key_values=cache, use_cache=True)
        return found.logits, *[part for layer in found.past_key_values.layers for part in (layer.keys, layer.values)]


def with_cache(name, heads, length=5):
    """How to build such a decoder, with its inputs: one token after `length` others."""
    def network():
        torch.manual_seed(0)
        module = WithCache(architecture_models.NETWORKS[name].build().eval())
        past = {f"past.{layer}.{part}": torch.randn(2, heads, length, 16) for layer in range(2) for part in ("keys", "values")}
        return module.eval(), {"input_ids": torch.randint(3, 256, (2, 1)), **past}
    return network


def tagger():
    torch.manual_seed(0)
    return Tagger().eval(), {"words": torch.randint(0, 64, (1, 12))}


def named(name):
    return lambda: architecture_models.build(name)


# Networks, with the type under which the transformer optimizer knows them.
NETWORKS = {
    "tagger (LSTM)": (tagger, None),
    "gpt2 with caches": (with_cache("gpt2", 4), "gpt2"),
    "llama with caches": (with_cache("llama", 2), "gpt2"),
    "bert": (named("bert"), "bert"),
    "gpt2": (named("gpt2"), "gpt2"),
    "distilbert": (named("distilbert"), "bert"),
    "vit": (named("vit"), "vit"),
    "t5": (named("t5"), "t5"),
    "bart": (named("bart"), "bart"),
    "wav2vec2": (named("wav2vec2"), None),
    "tv_resnet18": (named("tv_resnet18"), None),
    "tv_mobilenet_v3_small": (named("tv_mobilenet_v3_small"), None),
    "tv_squeezenet1_1": (named("tv_squeezenet1_1"), None),
}


def static(kind, **options):
    """Static quantization, calibrated on the inputs themselves."""
    def make(source, target, feeds, _):
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
        from onnxruntime.quantization.shape_inference import quant_pre_process

        class Inputs(CalibrationDataReader):
            """The inputs, once."""

            def __init__(self):
                self.left = iter([feeds])

            def get_next(self):
                return next(self.left, None)

        prepared = target + ".prepared"
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        types = {key: kind_of(value) if key.endswith("_type") else value for key, value in options.items()}
        quantize_static(prepared, target, Inputs(), quant_format=getattr(QuantFormat, kind), **types)
    return make


def kind_of(name):
    from onnxruntime.quantization import QuantType
    return getattr(QuantType, name)


def dynamic(source, target, _feeds, _kind, **options):
    from onnxruntime.quantization import quantize_dynamic
    quantize_dynamic(source, target, extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT}, **options)


def dynamic_bytes(source, target, feeds, kind):
    dynamic(source, target, feeds, kind, weight_type=kind_of("QUInt8"))


def dynamic_columns(source, target, feeds, kind):
    dynamic(source, target, feeds, kind, per_channel=True)


def blocks(**options):
    """4-bit weights in blocks."""
    def make(source, target, _feeds, _kind):
        from onnxruntime.quantization import QuantFormat
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
        given = dict(options)
        if given.pop("pairs", False):
            given["quant_format"] = QuantFormat.QDQ
        quantizer = MatMulNBitsQuantizer(onnx.load(source), block_size=16, **given)
        quantizer.process()
        quantizer.model.save_model_to_file(target)
    return make


def session(source, target, _feeds, _kind):
    """The model that a session writes after the optimizations that do not depend on the machine."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = target
    onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def transformers_optimizer(source, target, _feeds, kind, half=False):
    from onnxruntime.transformers.optimizer import optimize_model
    model = optimize_model(source, model_type=kind, num_heads=4, hidden_size=64, opt_level=0)
    if half:
        model.convert_float_to_float16(keep_io_types=True)
    model.save_model_to_file(target)


def half(source, target, _feeds, _kind):
    from onnxruntime.transformers.float16 import convert_float_to_float16
    onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), target)


def after(first, second):
    """One tool applied to the result of another."""
    def make(source, target, feeds, kind):
        first(source, target + ".first", feeds, kind)
        second(target + ".first", target, feeds, kind)
    return make


BYTES = static("QOperator", activation_type="QUInt8", weight_type="QInt8")
PAIRS = static("QDQ")

# By tool: what it makes, how accurate that is, and whether it needs a network that the transformer optimizer knows.
TOOLS = {
    "dynamic quantization": (dynamic, "integers", False),
    "dynamic quantization, uint8 weights": (dynamic_bytes, "integers", False),
    "dynamic quantization by columns": (dynamic_columns, "integers", False),
    "static quantization (QDQ)": (PAIRS, "integers", False),
    "static quantization (QDQ), int8 by channels":
        (static("QDQ", per_channel=True, activation_type="QInt8", weight_type="QInt8"), "integers", False),
    "static quantization (QDQ), uint16": (static("QDQ", activation_type="QUInt16", weight_type="QInt8"), "integers", False),
    "static quantization (QOperator)": (BYTES, "integers", False),
    "static quantization (QOperator), uint8 weights":
        (static("QOperator", activation_type="QUInt8", weight_type="QUInt8"), "integers", False),
    "weights of 4 bits": (blocks(is_symmetric=True), "float32", False),
    "weights of 4 bits with zero points": (blocks(is_symmetric=False), "float32", False),
    "weights of 4 bits (QDQ)": (blocks(is_symmetric=True, pairs=True), "float32", False),
    "weights and tables of 4 bits": (blocks(is_symmetric=True, op_types_to_quantize=("MatMul", "Gather")), "float32", False),
    "float16": (half, "float16", False),
    "session": (session, "float32", False),
    "session after dynamic quantization": (after(dynamic, session), "integers", False),
    "session after static quantization (QDQ)": (after(PAIRS, session), "integers", False),
    "session after static quantization (QOperator)": (after(BYTES, session), "integers", False),
    "optimizer of transformers": (transformers_optimizer, "float32", True),
    "optimizer of transformers, float16": (lambda *all: transformers_optimizer(*all, half=True), "float16", True),
    "optimizer of transformers, dynamic quantization": (after(transformers_optimizer, dynamic), "integers", True),
}


def in_child(function, *arguments):
    """The result of a function in a separate process that prints nothing."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def body():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        try:
            sender.send((True, function(*arguments)))
        except BaseException as error:  # tools raise all kinds of exceptions
            sender.send((False, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"))

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
        raise Failed(result.replace("'/", "'"))
    return result


def export(network, folder):
    """Writes a network and its inputs."""
    module, inputs = NETWORKS[network][0]()
    np.savez(os.path.join(folder, "inputs.npz"), **{key: value.numpy() for key, value in inputs.items()})
    with torch.no_grad():
        found = module(*inputs.values())
    count = len(found) if isinstance(found, tuple) else 1
    torch.onnx.export(module, tuple(inputs.values()), os.path.join(folder, "source.onnx"), dynamo=False, input_names=list(inputs),
                      output_names=["logits", *[f"present.{i}" for i in range(count - 1)]], opset_version=OPSET)


def peer_outputs(model, feeds):
    """ONNX Runtime's outputs for a model as it is written."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    rounding.make_integer_sums_exact(options)
    peer = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return dict(zip([output.name for output in peer.get_outputs()], peer.run(None, feeds)))


def furthest(found, expected):
    """The largest difference of all outputs, each over its largest value."""
    worst = 0.0
    for name, wanted in expected.items():
        if found[name].shape != wanted.shape or found[name].dtype != wanted.dtype:
            raise Failed(f"output '{name}' is {found[name].dtype}{list(found[name].shape)}, not {wanted.dtype}{list(wanted.shape)}")
        difference = np.max(np.abs(found[name].astype(np.float64) - wanted)) / max(float(np.max(np.abs(wanted))), 1e-6)
        worst = max(worst, float(difference))
    return worst


def own_rounding(folder):
    """How much rounding can change ONNX Runtime's outputs."""
    with np.load(os.path.join(folder, "inputs.npz")) as arrays:
        feeds = {key: arrays[key] for key in arrays.files}
    with np.load(os.path.join(folder, "outputs.npz")) as arrays:
        expected = {key: arrays[key] for key in arrays.files}
    target = os.path.join(folder, "target.onnx")
    return rounding.sensitivity(target, lambda model: peer_outputs(model, feeds), lambda found: furthest(found, expected))


def make(network, tool, folder):
    """Writes a changed model and ONNX Runtime's results for it; returns its operators of com.microsoft."""
    with np.load(os.path.join(folder, "inputs.npz")) as arrays:
        feeds = {key: arrays[key] for key in arrays.files}
    target = os.path.join(folder, "target.onnx")
    TOOLS[tool][0](os.path.join(folder, "source.onnx"), target, feeds, NETWORKS[network][1])
    np.savez(os.path.join(folder, "outputs.npz"), **peer_outputs(target, feeds))
    nodes = onnx.load(target, load_external_data=False).graph.node
    return sorted({node.op_type for node in nodes if node.domain == "com.microsoft"})


def compare(arguments, folder):
    """The largest difference of all outputs, each over its largest value."""
    target, results = os.path.join(folder, "target.onnx"), os.path.join(folder, "results")
    command = [arguments.forebay, "run", target, "--inputs", os.path.join(folder, "inputs.npz"), "--output-dir", results, "--threads",
               str(arguments.threads), "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"forebay run: took over {LIMIT_SECONDS} s") from error
    if done.returncode != 0:
        message = " ".join(done.stderr.replace(folder + os.sep, "").replace("'/", "'").split())[:500]
        raise Failed(f"forebay run: {message or f'ended with {done.returncode}'}")
    json.loads(done.stdout)
    with np.load(os.path.join(folder, "outputs.npz")) as expected:
        found = {name: np.load(os.path.join(results, f"{name}.npy")) for name in expected.files}
        return furthest(found, {name: expected[name] for name in expected.files})


def row_of(arguments, network, tool, folder):
    """A row of the table without the names."""
    difference, theirs, operators, failure = None, None, [], None
    try:
        operators = in_child(make, network, tool, folder)
    except Failed as error:
        # Records reject everything that looks like a path, and node names do.
        message = str(error).replace(folder + os.sep, "").replace('"/', '"')
        return [None, None, None, f"the tool, or ONNX Runtime: {message}"]
    try:
        difference = compare(arguments, folder)
        if not difference <= TOLERANCE[TOOLS[tool][1]]:
            theirs = in_child(own_rounding, folder)
            if not difference <= rounding.FACTOR * theirs:
                raise Failed(f"outputs differ by {difference:.1e} of the largest value")
    except Failed as error:
        failure = str(error)
    return [difference, theirs, ", ".join(operators) or None, failure]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    recording.add_program(parser)
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=list(NETWORKS), help="these networks only")
    parser.add_argument("--tools", nargs="+", metavar="NAME", choices=list(TOOLS), help="these tools only")
    parser.add_argument("--threads", type=int, default=2)
    recording.add_output(parser)
    arguments = parser.parse_args()
    recording.check_program(parser, arguments.forebay)
    rows = []
    for network in arguments.only or NETWORKS:
        with tempfile.TemporaryDirectory() as source:
            try:
                in_child(export, network, source)
            except Failed as error:
                rows.append([network, None, None, None, None, f"export: {error}"])
                print(f"{network}: export: {error}", flush=True)
                continue
            for tool in arguments.tools or TOOLS:
                if TOOLS[tool][2] and NETWORKS[network][1] is None:
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    for name in ("source.onnx", "inputs.npz"):
                        os.link(os.path.join(source, name), os.path.join(folder, name))
                    row = row_of(arguments, network, tool, folder)
                rows.append([network, tool, *row])
                shown = "-" if row[0] is None else format(row[0], ".1e")
                moved = "" if row[1] is None else f"({row[1]:.1e})"
                print(f"{network:22} {tool:48} {shown:8} {moved} {row[3] or ''}", flush=True)
    made = [row for row in rows if not (row[-1] or "").startswith(("the tool", "export"))]
    good = sum(row[-1] is None for row in made)
    print(f"{good} of {len(made)} models give ONNX Runtime's outputs; {len(rows) - len(made)} could not be made")
    columns = [recording.column("network"), recording.column("tool"), recording.column("outputs differ by"),
               recording.column("rounding changes"), recording.column("operators of com.microsoft"), recording.column("failure")]
    recording.save(arguments.output, "runtime-tools", "Models as ONNX Runtime's tools write them",
                   [recording.table("models", columns, rows)],
                   software={"ONNX Runtime": onnxruntime.__version__, "PyTorch": torch.__version__,
                             "transformers": transformers.__version__},
                   conditions="differences are shares of an output's largest value; ONNX Runtime runs each model as it is written; rounding: what "
                              "its outputs change by where weights change by a millionth, measured where outputs differ")


if __name__ == "__main__":
    main()
