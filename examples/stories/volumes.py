#!/usr/bin/env python3
"""Whole volumes instead of patches: the decisive voxels are far away, and a tenth of the memory is enough to see them.

    python3 examples/stories/volumes.py            # needs: pip install numpy onnx onnxruntime; with PyTorch, its patches are compared with Forebay's

Each volume is noise with a few bright balls in the upper half, and one small marker in the corner below. If the marker is bright, the balls are
of kind 1; if it is dark, they are of kind 2. The balls look the same in both cases: only a model that sees the marker can tell the kinds apart,
and no patch contains both the marker and a ball. The same U-Net trains on whole volumes within 10 % of the memory that they need, and on random
patches that need as much. The guide's page docs/stories.md explains each step.
"""
import os

import numpy as np

import story

# Sides of volumes and of patches; voxels between the marker and the balls along the first axis, more than a patch has there; the marker's side.
SIZE, PATCH, DISTANCE, MARKER = 32, (8, 16, 16), 12, 6
CHANNELS = (8, 16, 32, 32)
CLASSES = 3
BATCH = 4
RATE = 2e-3


def volume(random):
    """A volume and its labels."""
    image = (0.25 * random.standard_normal((SIZE,) * 3)).astype(np.float32)
    labels = np.zeros((SIZE,) * 3, np.uint8)
    kind = int(random.integers(1, 3))
    corner = random.integers(0, 3, 3)
    image[tuple(slice(at, at + MARKER) for at in corner)] += 3 if kind == 1 else -3
    # Where balls can begin.
    edge = corner[0] + MARKER + DISTANCE
    places = np.indices((SIZE,) * 3)
    for _ in range(int(random.integers(4, 8))):
        radius = int(random.integers(2, 5))
        center = random.integers([edge + radius, radius, radius], SIZE - radius)
        ball = ((places - center.reshape(3, 1, 1, 1)) ** 2).sum(0) <= radius**2
        labels[ball] = kind
    image[labels > 0] += 1.5
    return image, labels


def write_nifti(path, array):
    """A NIfTI-1 file: a header of 352 bytes, then the voxels, with the first axis varying fastest."""
    header = np.zeros(1, np.dtype([
        ("size", "<i4"), ("unused", "S36"), ("dim", "<i2", 8), ("intent", "<f4", 3), ("intent_code", "<i2"), ("datatype", "<i2"),
        ("bits", "<i2"), ("slice_start", "<i2"), ("pixdim", "<f4", 8), ("offset", "<f4"), ("slope", "<f4"), ("inter", "<f4"),
        ("rest", "S224"), ("magic", "S4"), ("extension", "S4")]))
    header["size"], header["offset"], header["slope"], header["magic"] = 348, 352, 1, b"n+1"
    header["dim"][0, :4], header["dim"][0, 4:], header["pixdim"] = (3, *array.shape), 1, 1
    header["datatype"], header["bits"] = (16, 32) if array.dtype == np.float32 else (2, 8)
    assert header.nbytes == 352
    with open(path, "wb") as file:
        file.write(header.tobytes() + array.tobytes(order="F"))


def write_set(folder, count, seed):
    os.makedirs(folder, exist_ok=True)
    random = np.random.default_rng(seed)
    for number in range(count):
        image, labels = volume(random)
        write_nifti(os.path.join(folder, f"case{number:03}_image.nii"), image)
        write_nifti(os.path.join(folder, f"case{number:03}_label.nii"), labels)


def write_model(path):
    """A U-Net for volumes of any size that its poolings divide. It has no normalization: with one volume in a batch, batch normalization would
    remove everything that is constant in the whole volume, and that is the information in the marker."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random, nodes, weights = np.random.default_rng(7), [], []

    def add(name, array):
        weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def node(kind, inputs, output, **attributes):
        nodes.append(helper.make_node(kind, inputs, [output], output, **attributes))
        return output

    def convolution(name, x, channels, out, side=3):
        scale = np.sqrt(2 / (channels * side**3))
        given = [x, add(f"{name}.weight", scale * random.standard_normal((out, channels, side, side, side))), add(f"{name}.bias", np.zeros(out))]
        return node("Conv", given, name, kernel_shape=[side] * 3, pads=[side // 2] * 6)

    def block(name, x, channels, out):
        for number in (1, 2):
            x = convolution(f"{name}.conv{number}", x, channels if number == 1 else out, out)
            x = node("Relu", [x], f"{name}.relu{number}")
        return x

    x, before, kept = "x", 1, []
    for level, channels in enumerate(CHANNELS):
        x = block(f"down{level}", x, before, channels)
        if level + 1 < len(CHANNELS):
            kept.append(x)
            x = node("MaxPool", [x], f"pool{level}", kernel_shape=[2] * 3, strides=[2] * 3)
        before = channels
    for level in reversed(range(len(CHANNELS) - 1)):
        channels = CHANNELS[level]
        weight = add(f"grow{level}.weight", np.sqrt(1 / before) * random.standard_normal((before, channels, 2, 2, 2)))
        x = node("ConvTranspose", [x, weight, add(f"grow{level}.bias", np.zeros(channels))], f"grow{level}", kernel_shape=[2] * 3, strides=[2] * 3)
        x = node("Concat", [x, kept[level]], f"joined{level}", axis=1)
        x, before = block(f"up{level}", x, 2 * channels, channels), channels
    convolution("logits", x, before, CLASSES, side=1)
    sizes = ["depth", "height", "width"]
    graph = helper.make_graph(
        nodes, "unet", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1, *sizes])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", CLASSES, *sizes])], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def counts(run):
    """How many volumes to train on, and to evaluate on."""
    return (8, 4) if run.arguments.quick else (64, 16)


def prepare(run):
    """The model, and volumes to train on and to evaluate on."""
    trained, measured = counts(run)
    write_model(run.path("unet.onnx"))
    write_set(run.path("train"), trained, 1)
    write_set(run.path("held-out"), measured, 2)


def held_out(run):
    """The volumes to evaluate on and their labels, normalized as Forebay normalizes them."""
    random = np.random.default_rng(2)
    for _ in range(counts(run)[1]):
        image, labels = volume(random)
        yield (image - image.mean()) / image.std(), labels


def mean_dice(run, network, sides):
    """The mean Dice of both kinds of balls for a function from an image to logits that sees boxes with these sides."""
    both, sums = np.zeros(CLASSES), np.zeros(CLASSES)
    for image, labels in held_out(run):
        for corner in np.ndindex(*(SIZE // side for side in sides)):
            box = tuple(slice(place * side, (place + 1) * side) for place, side in zip(corner, sides))
            found = network(image[box][None, None])[0].argmax(0)
            for kind in range(CLASSES):
                both[kind] += np.sum((found == kind) & (labels[box] == kind))
                sums[kind] += np.sum(found == kind) + np.sum(labels[box] == kind)
    return float(np.mean(2 * both[1:] / np.maximum(sums[1:], 1)))


def dice_of(run, model, sides):
    """The mean Dice of a saved model, run by ONNX Runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(run.path(model), providers=["CPUExecutionProvider"])
    return mean_dice(run, lambda image: session.run(None, {"x": image})[0], sides)


def main():
    parser = story.parser(__doc__, "volumes")
    parser.add_argument("--steps", type=int, help="steps on whole volumes [default: 250, or 4 of the quick form]")
    arguments = parser.parse_args()
    run = story.Story(arguments)
    prepare(run)
    if arguments.prepare:
        return
    steps = arguments.steps or (4 if arguments.quick else 250)
    sizes = [word for name in ("depth", "height", "width") for word in ("--size", f"{name}={SIZE}")]
    recipe = ["train", run.path("unet.onnx"), "--data", run.path("train"), "--batch-size", BATCH,
              "--loss", "dice-ce", "--no-background", "--optimizer", "adam", "--learning-rate", RATE, "--schedule", "cosine", "--shuffle", 1,
              "--no-compare"]
    free = run.forebay(*recipe, *sizes, "--steps", 3, "--save", run.path("free.onnx"))
    short = run.forebay(*recipe, *sizes, "--steps", 3, "--simulate-device", "10%", "--save", run.path("short.onnx"))
    whole, tight = free["device_peak_bytes"], short["device_peak_bytes"]
    run.found("step_bytes", whole, f"a step on a whole volume takes {story.mib(whole)}")
    run.found("step_bytes_limited", tight, f"within 10 %: {story.mib(tight)}; {short['seconds_median']:.2f} s instead of {free['seconds_median']:.2f}")
    run.check(tight <= 0.1 * whole, "whole volumes train within 10 % of the memory")
    run.check(story.same_bytes(run.path("free.onnx"), run.path("short.onnx")), "three steps leave the same bytes as without a budget")

    run.forebay(*recipe, *sizes, "--steps", steps, "--simulate-device", "10%", "--save", run.path("whole.onnx"))
    dice = dice_of(run, "whole.onnx", (SIZE,) * 3)
    run.found("dice_whole", dice, f"whole volumes: Dice {dice:.3f}")
    share = SIZE**3 // int(np.prod(PATCH))
    words = "x".join(str(side) for side in PATCH)
    # The number of voxels seen is the same as with whole volumes.
    patches = run.forebay(*recipe, "--patch", words, "--patches", share, "--steps", steps * share, "--save", run.path("patches.onnx"))
    run.found("patch_bytes", patches["device_peak_bytes"], f"a step on a patch of {words} takes {story.mib(patches['device_peak_bytes'])}")
    dice = dice_of(run, "patches.onnx", PATCH)
    run.found("dice_patches", dice, f"patches: Dice {dice:.3f}")
    dice = dice_of(run, "patches.onnx", (SIZE,) * 3)
    run.found("dice_patches_on_whole", dice, f"what patches taught, on whole volumes: Dice {dice:.3f}")
    torch_dice = told_by_torch(run, steps * share)
    if torch_dice is not None:
        run.found("dice_torch_patches", torch_dice, f"PyTorch's patches: Dice {torch_dice:.3f}")
    run.check(patches["device_peak_bytes"] >= tight, "a step on a patch takes no less memory than one on a whole volume within its budget")
    if not arguments.quick:
        run.check(run.figures["dice_whole"] > 0.8, "whole volumes are learned")
        run.check(max(run.figures["dice_patches"], run.figures["dice_patches_on_whole"]) < 0.7, "patches do not suffice")
    run.end()


def told_by_torch(run, steps):
    """The Dice of the same network, trained by PyTorch on random patches; None without PyTorch."""
    if run.arguments.without_torch:
        return None
    try:
        import torch
    except ImportError:
        print("  PyTorch is not installed; its patches are left out")
        return None
    import volumes_torch

    if run.arguments.threads:
        torch.set_num_threads(run.arguments.threads)
    return volumes_torch.dice(run, steps)


if __name__ == "__main__":
    main()
