"""A decoder-only transformer of any size whose weights are zeros that take no disk space.

    python3 benches/decoder.py FOLDER --layers 32 --width 4096 --vocabulary 32000 --positions 128
    python3 benches/decoder.py FOLDER --layers 10 --width 2048 --vocabulary 1000 --positions 64 --inline

Writes FOLDER/model.onnx, with its weights in FOLDER/weights.bin or, with --inline, in the model itself, and FOLDER/data.npz: token
numbers and labels for `forebay train --class-axis 2` and `forebay run`. Use it to measure how much memory plans and loading take.
It needs only Python.
"""

import argparse
import os
import struct
import zipfile

FLOAT, INT64 = 1, 7


def varint(number):
    out = bytearray()
    number &= (1 << 64) - 1
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out + bytes([number]))


def number(field, value):
    return varint(field << 3) + varint(value)


def header(field, length):
    return varint(field << 3 | 2) + varint(length)


def message(field, *contents):
    content = b"".join(contents)
    return header(field, len(content)) + content


def text(field, value):
    return message(field, value.encode())


def attribute(name, value):
    if isinstance(value, list):
        return message(5, text(1, name), b"".join(number(8, item) for item in value), number(20, 7))
    return message(5, text(1, name), number(3, value), number(20, 2))


class Decoder:
    """Nodes and initializers of a graph. An initializer is a message without contents, and the number of zero bytes that follow it."""

    def __init__(self, options):
        self.options = options
        self.nodes, self.initializers, self.weights_bytes, self.count = [], [], 0, 0

    def node(self, operator, inputs, **attributes):
        self.count += 1
        output = f"{operator.lower()}_{self.count}"
        fields = [text(1, name) for name in inputs] + [text(2, output), text(3, output), text(4, operator)]
        fields += [attribute(name, value) for name, value in attributes.items()]
        self.nodes.append(message(1, *fields))
        return output

    def weight(self, name, *shape):
        size = 4
        for dimension in shape:
            size *= dimension
        described = b"".join(number(1, dimension) for dimension in shape) + number(2, FLOAT) + text(8, name)
        if self.options.inline:
            self.initializers.append((described + header(9, size), size))
        else:
            entries = {"location": "weights.bin", "offset": str(self.weights_bytes), "length": str(size)}
            external = [message(13, text(1, key), text(2, value)) for key, value in entries.items()]
            self.initializers.append((described + b"".join(external) + number(14, 1), 0))
        self.weights_bytes += size
        return name

    def constant(self, name, shape, data_type, content):
        described = b"".join(number(1, dimension) for dimension in shape) + number(2, data_type) + text(8, name)
        self.initializers.append((described + message(9, content), 0))
        return name

    def normalized(self, name, x):
        width = self.options.width
        scale, bias = self.weight(f"{name}.scale", width), self.weight(f"{name}.bias", width)
        return self.node("LayerNormalization", [x, scale, bias], axis=-1)

    def heads(self, name, x):
        width = self.options.width
        y = self.node("MatMul", [x, self.weight(name, width, width)])
        return self.node("Transpose", [self.node("Reshape", [y, "heads"])], perm=[0, 2, 1, 3])

    def layer(self, name, x):
        width = self.options.width
        y = self.normalized(f"{name}.norm1", x)
        query, key, value = (self.heads(f"{name}.{part}", y) for part in ("query", "key", "value"))
        scores = self.node("MatMul", [query, self.node("Transpose", [key], perm=[0, 1, 3, 2])])
        scores = self.node("Add", [self.node("Mul", [scores, "scale"]), "mask"])
        y = self.node("MatMul", [self.node("Softmax", [scores], axis=-1), value])
        y = self.node("Reshape", [self.node("Transpose", [y], perm=[0, 2, 1, 3]), "joined"])
        x = self.node("Add", [x, self.node("MatMul", [y, self.weight(f"{name}.out", width, width)])])
        y = self.normalized(f"{name}.norm2", x)
        y = self.node("MatMul", [y, self.weight(f"{name}.up", width, 4 * width)])
        y = self.node("MatMul", [self.node("Relu", [y]), self.weight(f"{name}.down", 4 * width, width)])
        return self.node("Add", [x, y])

    def build(self):
        options = self.options
        width, positions, heads = options.width, options.positions, options.heads
        integers = lambda *values: struct.pack(f"<{len(values)}q", *values)
        self.constant("heads", [4], INT64, integers(1, positions, heads, width // heads))
        self.constant("joined", [3], INT64, integers(1, positions, width))
        self.constant("scale", [], FLOAT, struct.pack("<f", (width // heads) ** -0.5))
        rows = [[0.0] * (row + 1) + [-1e9] * (positions - row - 1) for row in range(positions)]
        self.constant("mask", [positions, positions], FLOAT, b"".join(struct.pack(f"<{positions}f", *row) for row in rows))
        x = self.node("Gather", [self.weight("tokens", options.vocabulary, width), "ids"], axis=0)
        x = self.node("Add", [x, self.weight("positions", positions, width)])
        for layer in range(options.layers):
            x = self.layer(f"layer{layer}", x)
        return self.node("MatMul", [self.normalized("norm", x), self.weight("head", width, options.vocabulary)])


def value_info(name, data_type, shape):
    sizes = b"".join(message(1, number(1, size)) for size in shape)
    return text(1, name) + message(2, message(1, number(1, data_type), message(2, sizes)))


def write_npz(path, arrays):
    with zipfile.ZipFile(path, "w") as archive:
        for name, (shape, values) in arrays.items():
            described = str({"descr": "<i8", "fortran_order": False, "shape": tuple(shape)})
            described += " " * (-(len(described) + 11) % 64) + "\n"
            start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(described)) + described.encode()
            archive.writestr(f"{name}.npy", start + struct.pack(f"<{len(values)}q", *values))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    for name, default in {"layers": 2, "width": 256, "vocabulary": 1000, "positions": 64, "heads": 8}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--inline", action="store_true", help="weights in the model itself, at most 2 GiB")
    options = parser.parse_args()
    os.makedirs(options.folder, exist_ok=True)
    decoder = Decoder(options)
    output = decoder.build()
    positions = options.positions
    head = b"".join(decoder.nodes) + text(2, "decoder")
    tail = message(11, value_info("ids", INT64, [1, positions]))
    tail += message(12, value_info(output, FLOAT, [1, positions, options.vocabulary]))
    initializers = [(header(5, len(described) + zeros) + described, zeros) for described, zeros in decoder.initializers]
    graph_bytes = len(head) + len(tail) + sum(len(described) + zeros for described, zeros in initializers)
    with open(os.path.join(options.folder, "model.onnx"), "wb") as file:
        file.write(number(1, 8) + header(7, graph_bytes) + head)
        for described, zeros in initializers:
            file.write(described)
            file.seek(zeros, os.SEEK_CUR)
        file.write(tail + message(8, number(2, 17)))
    if not options.inline:
        with open(os.path.join(options.folder, "weights.bin"), "wb") as file:
            file.truncate(decoder.weights_bytes)
    tokens = [[index % options.vocabulary for index in range(positions)]] * 2
    flat = [token for row in tokens for token in row]
    write_npz(os.path.join(options.folder, "data.npz"), {"ids": ([2, positions], flat), "y": ([2, positions], flat)})
    print(f"{decoder.weights_bytes / 4e9:.2f} billion parameters, {decoder.weights_bytes / 2**30:.1f} GiB")


if __name__ == "__main__":
    main()
